//! `inshore search --multiline`: matches that go across the ends of lines, found and shown by ripgrep's own libraries.
//!
//! A match may be as long as a file, so that each is read into memory, one after the other, and one thread looks at it.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, anyhow};
use grep_printer::{
    ColorSpecs, JSON, JSONBuilder, Standard, StandardBuilder, Stats, Summary, SummaryBuilder, SummaryKind,
};
use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use inshore::{
    kernels::{Candidate, TextOptions, text_reader},
    store::{Job, format_bytes},
    tables::Input,
};
use termcolor::{Ansi, NoColor, WriteColor};

use super::{
    json::Json,
    print::{Shown, Style},
    words::Search,
};
use crate::outcome::say;

/// Something to be searched.
pub struct Text {
    input: Input,
    title: PathBuf,
    is_named: bool,
}

impl Text {
    pub fn of_file(candidate: Candidate) -> Text {
        let Candidate { path, is_named } = candidate;
        let title = if path == Path::new("-") { PathBuf::from("<stdin>") } else { path.clone() };
        Text { input: Input::new(path), title, is_named }
    }

    pub fn of_dataset(input: Input) -> Text {
        Text { title: PathBuf::from(input.name()), input, is_named: true }
    }
}

/// Searches texts one after the other and shows what it finds.
pub struct Shower<'a> {
    words: &'a Search,
    style: &'a Style,
    printer: Printer<'a>,
    json: Json,
}

type Out<'a> = Box<dyn WriteColor + Send + 'a>;

enum Printer<'a> {
    Lines(Standard<Out<'a>>),
    Summary(Summary<Out<'a>>),
    Json(JSON<Out<'a>>),
}

/// What was found in a text.
struct Seen {
    has_match: bool,
    stats: Option<Stats>,
}

impl<'a> Shower<'a> {
    pub fn new(words: &'a Search, style: &'a Style, out: Box<dyn Write + Send + 'a>) -> Shower<'a> {
        let out: Out = match style.colours {
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
            Shown::Nothing => summary(out, SummaryKind::QuietWithMatch),
            Shown::Paths => summary(out, SummaryKind::PathWithMatch),
            Shown::PathsWithout => summary(out, SummaryKind::PathWithoutMatch),
            Shown::LineCounts => summary(out, SummaryKind::Count),
            Shown::MatchCounts => summary(out, SummaryKind::CountMatches),
            Shown::Json => Printer::Json(JSONBuilder::new().build(out)),
            Shown::Lines | Shown::Matches => {
                let between: Option<&[u8]> = match () {
                    () if style.heading => Some(b""),
                    () if style.has_context() => Some(b"--"),
                    () => None,
                };
                let mut builder = StandardBuilder::new();
                builder.heading(style.heading).path(style.with_path).path_terminator(path_end);
                builder.only_matching(style.shown == Shown::Matches).column(style.column);
                builder.replacement(words.replace.clone().map(String::into_bytes));
                builder.byte_offset(style.byte_offset).separator_search(between.map(<[u8]>::to_vec));
                Printer::Lines(builder.color_specs(colours()).build(out))
            }
        };
        Shower { words, style, printer, json: Json::default() }
    }

    /// Searches all, and says whether there was a match. What cannot be read is told, and noted in `failed`.
    pub fn show_all(
        &mut self,
        job: &Job,
        matcher: &RegexMatcher,
        texts: impl Iterator<Item = Text>,
        how: TextOptions,
        failed: &AtomicBool,
    ) -> Result<bool> {
        // The other half is for what texts are unpacked with, and for the pattern.
        let room =
            job.budget().reserve(job.budget().free_bytes() / 2, "a file that is searched across lines")?;
        let mut searcher = self.searcher(room.bytes());
        let mut has_match = false;
        if self.style.max_count == 0 {
            return Ok(false);
        }
        for text in texts {
            job.check_cancelled()?;
            let refuse = |what: String| {
                failed.store(true, Ordering::Relaxed);
                say(&format!("inshore: {what}"));
            };
            let bytes = match text_reader(&text.input, how, job) {
                Ok(bytes) => bytes,
                Err(error) if error.is_cancelled() => return Err(error.into()),
                Err(error) => {
                    refuse(error.to_string());
                    continue;
                }
            };
            let mut bytes = Watched { bytes, job, read: 0, failed: false };
            searcher.set_binary_detection(self.binary_detection(text.is_named));
            match self.printer.show(&mut searcher, matcher, &text.title, &mut bytes) {
                Ok(seen) => {
                    has_match |= seen.has_match;
                    if let Some(stats) = seen.stats.filter(|_| seen.has_match) {
                        self.json.add(stats.matched_lines(), stats.matches());
                    }
                }
                Err(error) => {
                    job.check_cancelled()?;
                    let title = text.title.display();
                    match () {
                        () if bytes.failed => refuse(format!("{title}: {error}")),
                        () if bytes.read >= room.bytes() => refuse(format!(
                            "{title}: a search across lines (-U) reads all of a file into memory, and this one has more than \
                             the {} that half of the budget are; raise --memory",
                            format_bytes(room.bytes())
                        )),
                        () => return Err(anyhow!(error)),
                    }
                }
            }
            if self.style.at_once {
                self.printer.out().flush()?;
            }
            if has_match && self.style.shown == Shown::Nothing {
                break;
            }
        }
        if self.style.shown == Shown::Json {
            self.json.summary(self.printer.out())?;
        }
        self.printer.out().flush()?;
        Ok(has_match)
    }

    fn searcher(&self, room: u64) -> Searcher {
        let mut builder = SearcherBuilder::new();
        builder.multi_line(true).line_number(self.style.line_number || self.style.shown == Shown::Json);
        builder.invert_match(self.words.invert_match).bom_sniffing(false);
        builder.before_context(self.style.before).after_context(self.style.after);
        builder.heap_limit(Some(room as usize));
        builder.max_matches(Some(self.style.max_count).filter(|&count| count < u64::MAX));
        if self.words.crlf {
            builder.line_terminator(grep_matcher::LineTerminator::crlf());
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
        matcher: &RegexMatcher,
        title: &Path,
        bytes: &mut impl Read,
    ) -> io::Result<Seen> {
        Ok(match self {
            Printer::Lines(lines) => {
                let mut sink = lines.sink_with_path(matcher, title);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                Seen { has_match: sink.has_match(), stats: None }
            }
            Printer::Summary(summary) => {
                let mut sink = summary.sink_with_path(matcher, title);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                Seen { has_match: sink.has_match(), stats: None }
            }
            Printer::Json(json) => {
                let mut sink = json.sink_with_path(matcher, title);
                searcher.search_reader(matcher, bytes, &mut sink)?;
                Seen { has_match: sink.has_match(), stats: Some(sink.stats().clone()) }
            }
        })
    }

    fn out(&mut self) -> &mut Out<'a> {
        match self {
            Printer::Lines(lines) => lines.get_mut(),
            Printer::Summary(summary) => summary.get_mut(),
            Printer::Json(json) => json.get_mut(),
        }
    }
}

/// A text as it is read: how much, and whether that failed.
struct Watched<'a> {
    bytes: Box<dyn Read + Send>,
    job: &'a Job,
    read: u64,
    failed: bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = match self.job.check_cancelled() {
            Ok(()) => self.bytes.read(out),
            Err(error) => Err(io::Error::other(error)),
        };
        match &read {
            Ok(read) => self.read += *read as u64,
            Err(error) => self.failed |= error.kind() != io::ErrorKind::Interrupted,
        }
        read
    }
}
