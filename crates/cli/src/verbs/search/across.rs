//! `inshore search --multiline`: searches for matches that span lines. The libraries of ripgrep find and print the
//! matches.
//!
//! A match may be as long as a file, so each file is read into memory. One thread searches the files, one after the
//! other. A third of the budget is for the file, a third for positions of matches and their replacements, and a third
//! for lines with replacements.

use std::{
    cell::Cell,
    ffi::OsString,
    fmt,
    io::{self, Read, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use grep_matcher::{ByteSet, Captures, LineMatchKind, LineTerminator, Match, Matcher};
use grep_printer::{
    ColorSpecs, JSON, JSONBuilder, Standard, StandardBuilder, Stats, Summary, SummaryBuilder, SummaryKind,
};
use grep_regex::{RegexCaptures, RegexMatcher};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};
use inshore::{
    kernel,
    kernels::{self, SearchSummary, text_reader},
    ops::{self, Error, verbs::Text},
    store::{Context, format_bytes},
};
use termcolor::{Ansi, NoColor, WriteColor};

use super::{
    json::Json,
    print::{OutputMode, Style},
};
use crate::{args::Search, report::terminal::printable_bytes};

/// Searches texts one after the other and prints the results.
pub struct SearchPrinter<'a> {
    words: &'a Search,
    style: &'a Style,
    printer: Printer<'a>,
    json: Json,
    has_match: bool,
}

type Output<'a> = Box<dyn WriteColor + Send + 'a>;

enum Printer<'a> {
    Lines(Standard<Output<'a>>),
    Summary(Summary<Output<'a>>),
    Json(JSON<Output<'a>>),
}

/// The matches in a text.
struct TextMatches {
    has_match: bool,
    lines: u64,
    stats: Option<Stats>,
}

impl<'a> SearchPrinter<'a> {
    pub fn new(words: &'a Search, style: &'a Style, out: Box<dyn Write + Send + 'a>) -> SearchPrinter<'a> {
        let out: Output = match style.colours {
            true => Box::new(Ansi::new(out)),
            false => Box::new(NoColor::new(out)),
        };
        let colours = ColorSpecs::default_with_color;
        let path_end = style.null.then_some(0);
        let summary = |out, kind| {
            let mut builder = SummaryBuilder::new();
            builder.kind(kind).path(style.with_path).path_terminator(path_end);
            builder.exclude_zero(!style.include_zero).color_specs(colours());
            Printer::Summary(builder.build(out))
        };
        let printer = match style.shown {
            OutputMode::Nothing => summary(out, SummaryKind::QuietWithMatch),
            OutputMode::Paths => summary(out, SummaryKind::PathWithMatch),
            OutputMode::PathsWithout => summary(out, SummaryKind::PathWithoutMatch),
            OutputMode::LineCounts => summary(out, SummaryKind::Count),
            OutputMode::MatchCounts => summary(out, SummaryKind::CountMatches),
            OutputMode::Json => Printer::Json(JSONBuilder::new().build(out)),
            OutputMode::Lines | OutputMode::Matches => {
                let between: Option<&[u8]> = match () {
                    () if style.heading => Some(b""),
                    () if style.has_context() => Some(b"--"),
                    () => None,
                };
                let mut builder = StandardBuilder::new();
                builder.heading(style.heading).path(style.with_path).path_terminator(path_end);
                builder.only_matching(style.shown == OutputMode::Matches).column(style.column);
                builder.replacement(words.replace.clone().map(String::into_bytes));
                builder.byte_offset(style.byte_offset).separator_search(between.map(<[u8]>::to_vec));
                Printer::Lines(builder.color_specs(colours()).build(out))
            }
        };
        SearchPrinter { words, style, printer, json: Json::default(), has_match: false }
    }

    /// Returns true if there was a match.
    pub fn has_match(&self) -> bool {
        self.has_match
    }

    /// Searches all texts. `failed` is called with the error of each text that cannot be read.
    pub fn show_all(
        &mut self,
        job: &Context,
        matcher: &RegexMatcher,
        texts: &mut dyn Iterator<Item = Text>,
        failed: &dyn Fn(&Error),
    ) -> ops::Result<SearchSummary> {
        let mut summary = SearchSummary::default();
        if self.style.max_count == 0 {
            return Ok(summary);
        }
        let third = job.budget().free_bytes() / 3;
        let room = job.budget().reserve(third, "a search across lines")?;
        let _places = job.budget().reserve(third, "matches across lines")?;
        let limit = if self.keeps_places() { third as usize } else { usize::MAX };
        let matcher = CancellableMatcher::new(matcher, job, limit, self.words.replace.as_deref());
        let mut searcher = self.searcher(room.bytes());
        for text in texts {
            job.check_cancelled()?;
            summary.files += 1;
            match self.show_text(job, &mut searcher, &matcher, text, third)? {
                Ok(found) => self.add_to(&mut summary, found),
                Err(error) => {
                    summary.failed += 1;
                    failed(&error);
                }
            }
            if self.style.at_once {
                self.flush()?;
            }
            if self.has_match && self.style.shown == OutputMode::Nothing {
                break;
            }
        }
        if self.style.shown == OutputMode::Json {
            self.json.summary(self.printer.out()).map_err(kernels::Error::Write)?;
        }
        self.flush()?;
        Ok(summary)
    }

    /// Returns whether the printer keeps the positions of matches. Lines without a match have no positions.
    fn keeps_places(&self) -> bool {
        let Style { shown, colours, column, .. } = *self.style;
        let needs_places = match shown {
            OutputMode::Lines => colours || column || self.words.replace.is_some(),
            shown => matches!(shown, OutputMode::Matches | OutputMode::Json),
        };
        needs_places && !self.words.invert_match
    }

    /// Searches a text of up to `text_bytes_max` bytes, and prints its matches. The inner result is an error if this
    /// text cannot be searched; the search continues with the next text. The outer error ends the search.
    fn show_text(
        &mut self,
        job: &Context,
        searcher: &mut Searcher,
        matcher: &CancellableMatcher<'_>,
        text: Text,
        text_bytes_max: u64,
    ) -> ops::Result<ops::Result<TextMatches>> {
        let bytes = match text_reader(&text.input, text.options, job).map_err(kernels::Error::from) {
            Ok(bytes) => bytes,
            Err(error) if error.is_cancelled() => return Err(error.into()),
            Err(error) => return Ok(Err(error.into())),
        };
        let detection = self.binary_detection(text.file.is_named);
        let ends_at_nul = detection.quit_byte().is_some();
        let mut bytes = MonitoredReader { bytes, job, read: 0, failed: false, ends_at_nul, has_ended: false };
        searcher.set_binary_detection(detection);
        let shown = self.style.shown;
        let is_of_lines = matches!(shown, OutputMode::Lines | OutputMode::Matches | OutputMode::Json);
        let limits = (self.style.max_count, if is_of_lines { self.style.after } else { 0 });
        let title = match self.style.at_once && shown != OutputMode::Json {
            true => PathBuf::from(OsString::from_vec(printable_bytes(text.file.path.as_os_str().as_bytes()))),
            false => text.file.path.clone(),
        };
        match self.printer.show(searcher, matcher, limits, &title, &mut bytes) {
            Ok(found) => Ok(Ok(found)),
            Err(error) => {
                job.check_cancelled()?;
                text_error(&text.file.path, &bytes, matcher, text_bytes_max, error).map(Err)
            }
        }
    }

    /// Adds the matches of a text to the summary.
    fn add_to(&mut self, summary: &mut SearchSummary, found: TextMatches) {
        self.has_match |= found.has_match;
        summary.files_matched += u64::from(found.has_match);
        summary.lines += found.lines;
        if let Some(stats) = found.stats.filter(|_| found.has_match) {
            self.json.add(stats.matched_lines(), stats.matches());
        }
    }

    fn flush(&mut self) -> ops::Result<()> {
        Ok(self.printer.out().flush().map_err(kernels::Error::Write)?)
    }

    fn searcher(&self, room: u64) -> Searcher {
        let mut builder = SearcherBuilder::new();
        builder.multi_line(true).line_number(self.style.line_number || self.style.shown == OutputMode::Json);
        builder.invert_match(self.words.invert_match).bom_sniffing(false);
        builder.before_context(self.style.before).after_context(self.style.after);
        builder.heap_limit(Some(room as usize));
        if self.words.crlf {
            builder.line_terminator(LineTerminator::crlf());
        }
        builder.build()
    }

    fn binary_detection(&self, is_named: bool) -> BinaryDetection {
        match () {
            () if self.words.text => BinaryDetection::none(),
            () if is_named || self.style.binary_is_named => BinaryDetection::convert(0),
            () => BinaryDetection::quit(0),
        }
    }
}

impl<'a> Printer<'a> {
    fn show(
        &mut self,
        searcher: &mut Searcher,
        matcher: &CancellableMatcher<'_>,
        limits: (u64, usize),
        title: &Path,
        bytes: &mut impl Read,
    ) -> io::Result<TextMatches> {
        Ok(match self {
            Printer::Lines(lines) => {
                let mut sink = LimitedSink::new(lines.sink_with_path(matcher, title), matcher, limits);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                TextMatches { has_match: sink.sink.has_match(), lines: sink.lines, stats: None }
            }
            Printer::Summary(summary) => {
                let mut sink = LimitedSink::new(summary.sink_with_path(matcher, title), matcher, limits);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                TextMatches { has_match: sink.sink.has_match(), lines: sink.lines, stats: None }
            }
            Printer::Json(json) => {
                let mut sink = LimitedSink::new(json.sink_with_path(matcher, title), matcher, limits);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                TextMatches {
                    has_match: sink.sink.has_match(),
                    lines: sink.lines,
                    stats: Some(sink.sink.stats().clone()),
                }
            }
        })
    }

    fn out(&mut self) -> &mut Output<'a> {
        match self {
            Printer::Lines(lines) => lines.get_mut(),
            Printer::Summary(summary) => summary.get_mut(),
            Printer::Json(json) => json.get_mut(),
        }
    }
}

/// Converts an error of a search to an error about the text.
///
/// # Errors
/// Returns an error if the output failed, since the matches of further texts cannot be printed either.
fn text_error(
    path: &Path,
    bytes: &MonitoredReader<'_>,
    matcher: &CancellableMatcher<'_>,
    text_bytes_max: u64,
    error: io::Error,
) -> ops::Result<Error> {
    let is_of_writing = error.raw_os_error().is_some() || error.kind() == io::ErrorKind::BrokenPipe;
    let (title, room) = (path.display(), format_bytes(text_bytes_max));
    let what = match () {
        () if bytes.failed => kernel::Error::from_read(&title.to_string(), error).to_string(),
        () if matcher.is_full.take() => format!(
            "{title}: adjacent matches and their replacements take more than {room}, a third of the budget: raise --memory"
        ),
        () if bytes.read >= text_bytes_max && !is_of_writing => format!(
            "{title}: a search across lines (-U) reads all of a file into memory, and this file has more than {room}, a third of the budget: raise --memory"
        ),
        () => return Err(kernels::Error::Write(error).into()),
    };
    Ok(Error::Rows(what.into()))
}

/// A reader of a text that checks for cancellation, counts bytes, and remembers whether a read failed.
struct MonitoredReader<'a> {
    bytes: Box<dyn Read + Send>,
    job: &'a Context,
    read: u64,
    failed: bool,
    /// True if a NUL byte in the first [`EARLY_BYTES`] bytes ends the read, since the text is then binary.
    ends_at_nul: bool,
    has_ended: bool,
}

/// A NUL byte within this number of bytes at the start makes the whole file binary.
const EARLY_BYTES: u64 = 64 << 10;

impl Read for MonitoredReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.has_ended {
            return Ok(0);
        }
        let read = match self.job.check_cancelled() {
            Ok(()) => self.bytes.read(out),
            Err(error) => Err(io::Error::other(error)),
        };
        match &read {
            Ok(read) => {
                let early = EARLY_BYTES.saturating_sub(self.read).min(*read as u64) as usize;
                self.has_ended = self.ends_at_nul && out[..early].contains(&0);
                self.read += *read as u64;
            }
            Err(error) => self.failed |= error.kind() != io::ErrorKind::Interrupted,
        }
        read
    }
}

/// A matcher that checks for cancellation, and that limits the memory for matches which the printer has not printed
/// yet.
struct CancellableMatcher<'a> {
    matcher: &'a RegexMatcher,
    job: &'a Context,
    room: usize,
    /// The length of the replacement in bytes, and an upper bound on the number of groups in it.
    replacement: (usize, usize),
    kept: Cell<usize>,
    is_full: Cell<bool>,
    /// True once the requested number of matches was found. Later lines then count as lines without a match.
    has_all: Cell<bool>,
}

/// The reason why the matcher ended the search.
#[derive(Debug)]
struct SearchStopped(String);

impl fmt::Display for SearchStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> CancellableMatcher<'a> {
    fn new(
        matcher: &'a RegexMatcher,
        job: &'a Context,
        room: usize,
        replacement: Option<&str>,
    ) -> CancellableMatcher<'a> {
        let replacement = replacement.map_or((0, 0), |text| (text.len(), text.matches('$').count()));
        CancellableMatcher {
            matcher,
            job,
            room,
            replacement,
            kept: Cell::new(0),
            is_full: Cell::new(false),
            has_all: Cell::new(false),
        }
    }

    /// Counts the memory of a match and of `bytes` bytes of its replacement. Returns an error if the memory exceeds the
    /// limit or the job was cancelled.
    fn keep(&self, bytes: usize) -> Result<(), SearchStopped> {
        self.job.check_cancelled().map_err(|error| SearchStopped(error.to_string()))?;
        self.kept.set(self.kept.get().saturating_add(size_of::<Match>() + bytes));
        if self.kept.get() > self.room {
            self.is_full.set(true);
            return Err(SearchStopped("matches take too much memory".to_string()));
        }
        Ok(())
    }
}

impl Matcher for CancellableMatcher<'_> {
    type Captures = RegexCaptures;
    type Error = SearchStopped;

    fn find_at(&self, text: &[u8], at: usize) -> Result<Option<Match>, SearchStopped> {
        if self.has_all.get() {
            return Ok(None);
        }
        let found = self.matcher.find_at(text, at).expect("this matcher never fails");
        found.map(|place| self.keep(0).map(|()| place)).transpose()
    }

    fn new_captures(&self) -> Result<RegexCaptures, SearchStopped> {
        Ok(self.matcher.new_captures().expect("this matcher never fails"))
    }

    fn captures_at(
        &self,
        text: &[u8],
        at: usize,
        captures: &mut RegexCaptures,
    ) -> Result<bool, SearchStopped> {
        let found = self.matcher.captures_at(text, at, captures).expect("this matcher never fails");
        if let Some(place) = captures.get(0).filter(|_| found) {
            let (bytes, groups) = self.replacement;
            self.keep(bytes + groups * place.len())?;
        }
        Ok(found)
    }

    fn capture_count(&self) -> usize {
        self.matcher.capture_count()
    }

    fn capture_index(&self, name: &str) -> Option<usize> {
        self.matcher.capture_index(name)
    }

    fn non_matching_bytes(&self) -> Option<&ByteSet> {
        self.matcher.non_matching_bytes()
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        self.matcher.line_terminator()
    }

    fn shortest_match_at(&self, text: &[u8], at: usize) -> Result<Option<usize>, SearchStopped> {
        Ok(self.matcher.shortest_match_at(text, at).expect("this matcher never fails"))
    }

    fn find_candidate_line(&self, text: &[u8]) -> Result<Option<LineMatchKind>, SearchStopped> {
        Ok(self.matcher.find_candidate_line(text).expect("this matcher never fails"))
    }
}

/// A sink that prints at most `left` matches, and then at most `after` lines after the last of them.
struct LimitedSink<'a, S> {
    sink: S,
    matcher: &'a CancellableMatcher<'a>,
    left: u64,
    after: usize,
    /// The number of matching lines.
    lines: u64,
}

impl<'a, S> LimitedSink<'a, S> {
    fn new(sink: S, matcher: &'a CancellableMatcher<'a>, (left, after): (u64, usize)) -> LimitedSink<'a, S> {
        LimitedSink { sink, matcher, left, after, lines: 0 }
    }
}

impl<S: Sink> Sink for LimitedSink<'_, S> {
    type Error = S::Error;

    fn matched(&mut self, searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, S::Error> {
        self.matcher.kept.set(0);
        if self.left == 0 && self.after == 0 {
            return Ok(false);
        }
        // Once `left` is 0, a further match is printed only because it lies within the `after` lines.
        let is_near = self.left == 0;
        self.matcher.has_all.set(false);
        let goes_on = self.sink.matched(searcher, found)?;
        self.matcher.kept.set(0);
        match is_near {
            true => self.after = self.after.saturating_sub(found.lines().count()),
            false => {
                self.left -= 1;
                self.lines += found.lines().count() as u64;
            }
        }
        self.matcher.has_all.set(self.left == 0);
        Ok(goes_on && (self.left > 0 || self.after > 0))
    }

    fn context(&mut self, searcher: &Searcher, context: &SinkContext<'_>) -> Result<bool, S::Error> {
        self.matcher.kept.set(0);
        if self.left > 0 {
            return self.sink.context(searcher, context);
        }
        if *context.kind() != SinkContextKind::After || self.after == 0 {
            return Ok(false);
        }
        self.after -= 1;
        Ok(self.sink.context(searcher, context)? && self.after > 0)
    }

    fn context_break(&mut self, searcher: &Searcher) -> Result<bool, S::Error> {
        if self.left > 0 { self.sink.context_break(searcher) } else { Ok(false) }
    }

    fn binary_data(&mut self, searcher: &Searcher, offset: u64) -> Result<bool, S::Error> {
        self.sink.binary_data(searcher, offset)
    }

    fn begin(&mut self, searcher: &Searcher) -> Result<bool, S::Error> {
        self.matcher.kept.set(0);
        self.matcher.has_all.set(false);
        self.sink.begin(searcher)
    }

    fn finish(&mut self, searcher: &Searcher, end: &SinkFinish) -> Result<(), S::Error> {
        self.sink.finish(searcher, end)
    }
}
