//! `inshore search`.
//!
//! ```text
//!   words ─► Request ─► run ─► MatchPrinter ─┬─► Printer ───────────────┬─► standard output, or a file
//!                                    └─► SearchPrinter (across lines) ─┘
//! ```

mod across;
mod json;
mod print;

use std::{
    borrow::Cow,
    fs,
    io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, bail};
use inshore::{
    kernel::Next,
    kernels::{
        self, BlockMatches, MultilineMatcher, PatternOptions, PatternSize, SearchOutput, SearchSummary,
        SearchTableOptions, WalkOptions, WalkedFile, file_types,
    },
    ops::{
        self, Attachments, Request, TargetKind,
        verbs::{self, Matches, Text},
    },
    store::{Budget, Context},
    tables::NewFile,
};
use serde_json::json;

use self::{
    across::SearchPrinter,
    print::{OutputMode, Printer, Style},
};
use crate::{
    args::{Color, GlobalOptions, Search},
    job::{
        operations::{self, StoreAccess},
        session::budget,
    },
    report::{failure::AlreadyReported, outcome::say, terminal::printable_bytes},
};

/// Searches, and returns whether there was a match.
pub fn search(options: GlobalOptions, words: &Search) -> Result<bool> {
    let is_local = operations::place(&options) == TargetKind::Local;
    if !is_local && (words.files || words.type_list) {
        bail!("--files and --type-list do not work with --node: datasets are searched by name");
    }
    if words.type_list {
        file_types().iter().try_for_each(|line| writeln!(io::stdout(), "{line}"))?;
        return Ok(true);
    }
    let (first, mut paths) = pattern_words(words);
    let is_read = words.files || words.file.iter().any(|path| path == Path::new("-"));
    if is_local && paths.is_empty() && !is_read && is_piped() {
        paths.push(PathBuf::from("-"));
    }
    let request = Request::new(operation(words, patterns(words, first, &budget(&options))?), paths);
    if words.files {
        return list(words, &request);
    }
    let file = words.output.as_deref().map(NewFile::create).transpose()?;
    let mut view = MatchPrinter::new(&options, words, &request.inputs, file.as_ref())?;
    let (is_quiet, explain) = (is_quiet(&options, words), options.explain);
    let attachments = Attachments { matches: Some(&mut view), ..Attachments::default() };
    let searched = operations::run_on(options, StoreAccess::Existing, &request, attachments);
    let finished = view.finish();
    drop(view);
    let ran = searched?;
    let has_match = finished?;
    if let Some(file) = file {
        file.publish()?;
    }
    if explain {
        ran.costs.iter().for_each(|(name, told)| say(&format!("{name:<12} {told}")));
    }
    let has_failed = ran.has_failed();
    if let Some(path) = &words.counters {
        let summary = ran.done.map(|_| json!({ "matched": has_match }));
        let counters = json!({ "command": "search", "report": ran.report, "summary": summary });
        NewFile::write_whole(path, format!("{counters}\n").as_bytes())?;
    }
    if has_failed && !(has_match && is_quiet) {
        bail!(AlreadyReported);
    }
    Ok(has_match)
}

fn operation(words: &Search, patterns: Vec<String>) -> verbs::Search {
    verbs::Search {
        patterns,
        matching: pattern_options(words),
        rows: SearchTableOptions {
            max_count: words.max_count.unwrap_or(u64::MAX),
            text: words.text,
            ..SearchTableOptions::default()
        },
        walk: WalkOptions {
            globs: words.glob.clone(),
            types: words.types.clone(),
            types_not: words.type_not.clone(),
            hidden: words.hidden || words.unrestricted > 1,
            no_ignore: words.no_ignore || words.unrestricted > 0,
            follow: words.follow,
            max_depth: words.max_depth,
        },
        unpack: words.search_zip,
        multiline: words.multiline,
        multiline_dotall: words.multiline_dotall,
    }
}

/// Prints matches as ripgrep does.
struct MatchPrinter<'a> {
    words: &'a Search,
    style: Style,
    file: Option<&'a NewFile>,
    printer: Printer<'a>,
    /// For a search whose matches can span lines: true if there was a match. The value is `None` for other searches.
    across: Option<bool>,
}

impl<'a> MatchPrinter<'a> {
    fn new(
        options: &GlobalOptions,
        words: &'a Search,
        paths: &[PathBuf],
        file: Option<&'a NewFile>,
    ) -> Result<MatchPrinter<'a>> {
        let style = style(options, words, paths);
        Ok(MatchPrinter { words, style, file, printer: Printer::new(style, writer(file)?), across: None })
    }

    /// Prints the end of the output, and returns whether there was a match.
    fn finish(&mut self) -> io::Result<bool> {
        match self.across {
            Some(has_match) => Ok(has_match),
            None => self.printer.finish().map(|()| self.printer.has_match()),
        }
    }
}

impl Matches for MatchPrinter<'_> {
    fn wanted(&self) -> SearchOutput {
        wanted(self.words, &self.style)
    }

    /// Returns the replacement for matches. JSON output has the original matches, without replacements, as in ripgrep
    /// 13.
    fn replacement(&self) -> Option<&str> {
        let is_shown = matches!(self.style.shown, OutputMode::Lines | OutputMode::Matches);
        self.words.replace.as_deref().filter(|_| is_shown)
    }

    fn begin_on_nodes(&mut self, has_several: bool) {
        self.printer.name_paths_if(has_several && !self.words.no_filename);
    }

    fn found(&mut self, file: &WalkedFile, found: &BlockMatches) -> io::Result<Next> {
        self.printer.found(file, found)
    }

    fn failed(&mut self, file: &WalkedFile, error: &kernels::Error) -> io::Result<bool> {
        self.printer.failed()?;
        // A binary file that the user did not name is skipped.
        let is_left = !(self.words.text || self.style.binary_is_named || file.is_named);
        Ok(!(is_left && error.is_binary_line()))
    }

    fn end(&mut self, file: &WalkedFile) -> io::Result<Next> {
        self.printer.end(file)
    }

    fn across(
        &mut self,
        job: &Context,
        matching: &MultilineMatcher,
        texts: &mut dyn Iterator<Item = Text>,
        failed: &dyn Fn(&ops::Error),
    ) -> ops::Result<SearchSummary> {
        let out = writer(self.file).map_err(|error| ops::Error::Rows(error.into()))?;
        // This value remains if the search fails, so that `finish` prints nothing.
        self.across = Some(false);
        let mut shower = SearchPrinter::new(self.words, &self.style, out);
        let summary = shower.show_all(job, &matching.matcher, texts, failed)?;
        self.across = Some(shower.has_match());
        Ok(summary)
    }
}

/// Returns the writer of the output: the file of `--output`, or standard output.
fn writer(file: Option<&NewFile>) -> Result<Box<dyn Write + Send + '_>> {
    Ok(match file {
        Some(file) => Box::new(BufWriter::with_capacity(1 << 16, file.writer()?)),
        None => Box::new(BufWriter::with_capacity(1 << 16, io::stdout())),
    })
}

fn is_quiet(options: &GlobalOptions, words: &Search) -> bool {
    options.quiet || words.q
}

/// Returns the pattern and the paths. If other options give the patterns, or `--files` needs no pattern, the first
/// argument is a path and not a pattern.
fn pattern_words(words: &Search) -> (Option<&str>, Vec<PathBuf>) {
    let mut paths = words.paths.clone();
    match &words.pattern {
        Some(first) if !words.regexp.is_empty() || !words.file.is_empty() || words.files => {
            paths.insert(0, PathBuf::from(first));
            (None, paths)
        }
        first => (first.as_deref(), paths),
    }
}

/// Returns all patterns. If the patterns exceed the budget, the rest of them is read and counted but not kept, so that
/// the error can name a sufficient budget.
fn patterns(words: &Search, first: Option<&str>, budget: &Budget) -> Result<Vec<String>> {
    let (mut patterns, mut size) = (Vec::new(), PatternSize::new(&pattern_options(words)));
    let mut take = |pattern: &str| {
        size.add(pattern);
        match size.may_fit(budget) {
            true => patterns.push(pattern.to_string()),
            false => patterns = Vec::new(),
        }
    };
    words.regexp.iter().for_each(|pattern| take(pattern));
    for path in &words.file {
        let read = match path == Path::new("-") {
            true => for_each_line(io::stdin().lock(), &mut take),
            false => fs::File::open(path).and_then(|file| for_each_line(BufReader::new(file), &mut take)),
        };
        read.with_context(|| format!("{}: cannot read patterns", path.display()))?;
    }
    first.into_iter().for_each(take);
    size.check(budget)?;
    Ok(patterns)
}

/// Calls `take` with the lines of a text, without their line ends.
fn for_each_line(mut text: impl BufRead, mut take: impl FnMut(&str)) -> io::Result<()> {
    let mut line = String::new();
    while text.read_line(&mut line)? > 0 {
        let end = line.strip_suffix('\n').map_or(&*line, |line| line.strip_suffix('\r').unwrap_or(line));
        take(end);
        line.clear();
    }
    Ok(())
}

/// Tells whether standard input is a file, a pipe or a socket.
fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = fs::metadata("/dev/stdin").map(|found| found.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo() || kind.is_socket())
}

/// Prints the paths of the files that would be searched, and returns whether there is any.
fn list(words: &Search, request: &Request<verbs::Search>) -> Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    let failed = AtomicBool::new(false);
    let tell = |error: &ops::Error| {
        failed.store(true, Ordering::Relaxed);
        say(&format!("inshore: {error}"));
    };
    let candidates = request.operation.candidates(&request.inputs, Some(&tell));
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut any, on_terminal) = (false, io::stdout().is_terminal());
    for candidate in candidates.map_err(operations::advised)? {
        let path = candidate.path.as_os_str().as_bytes();
        out.write_all(&if on_terminal { Cow::Owned(printable_bytes(path)) } else { Cow::Borrowed(path) })?;
        out.write_all(if words.null { b"\0" } else { b"\n" })?;
        any = true;
    }
    out.flush()?;
    if failed.into_inner() {
        bail!(AlreadyReported);
    }
    Ok(any)
}

fn style(options: &GlobalOptions, words: &Search, paths: &[PathBuf]) -> Style {
    let on_terminal = words.output.is_none() && io::stdout().is_terminal();
    let colours = match words.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => on_terminal && std::env::var_os("NO_COLOR").is_none(),
    };
    // Without paths the current folder is searched, which may have several files.
    let several = paths.len() != 1 || paths.iter().any(|path| path.is_dir());
    let around = |lines: Option<usize>| lines.or(words.context).unwrap_or(0);
    Style {
        shown: shown(options, words),
        with_path: !words.no_filename && (words.with_filename || several),
        heading: !words.no_heading && (words.heading || on_terminal),
        line_number: !words.no_line_number && (words.line_number || words.column || on_terminal),
        column: words.column,
        byte_offset: words.byte_offset,
        null: words.null,
        colours,
        before: around(words.before_context),
        after: around(words.after_context),
        max_count: words.max_count.unwrap_or(u64::MAX),
        include_zero: words.include_zero,
        at_once: on_terminal,
        binary_is_named: words.binary || words.unrestricted > 2,
    }
}

fn shown(options: &GlobalOptions, words: &Search) -> OutputMode {
    if is_quiet(options, words) {
        OutputMode::Nothing
    } else if words.files_with_matches {
        OutputMode::Paths
    } else if words.files_without_match {
        OutputMode::PathsWithout
    } else if words.count_matches || words.count && words.only_matching {
        OutputMode::MatchCounts
    } else if words.count {
        OutputMode::LineCounts
    } else if options.json {
        OutputMode::Json
    } else if words.only_matching {
        OutputMode::Matches
    } else {
        OutputMode::Lines
    }
}

fn pattern_options(words: &Search) -> PatternOptions {
    PatternOptions {
        fixed: words.fixed_strings,
        ignore_case: words.ignore_case,
        smart_case: words.smart_case,
        words: words.word_regexp,
        lines: words.line_regexp,
        invert: words.invert_match,
        crlf: words.crlf,
    }
}

fn wanted(words: &Search, style: &Style) -> SearchOutput {
    let Style { before, after, line_number, colours, column, .. } = *style;
    match style.shown {
        OutputMode::Nothing | OutputMode::Paths | OutputMode::PathsWithout => SearchOutput::Any,
        OutputMode::LineCounts => SearchOutput::LineCount,
        OutputMode::MatchCounts if words.invert_match => SearchOutput::LineCount,
        OutputMode::MatchCounts if words.max_count.is_some() => {
            SearchOutput::Lines { numbered: false, spans: true, before: 0, after: 0 }
        }
        OutputMode::MatchCounts => SearchOutput::MatchCount,
        OutputMode::Json => SearchOutput::Lines { numbered: true, spans: true, before, after },
        OutputMode::Lines | OutputMode::Matches => {
            // Line numbers are needed to recognize adjacent lines.
            let numbered = line_number || style.has_context();
            let spans = style.shown == OutputMode::Matches || colours || column;
            SearchOutput::Lines { numbered, spans, before, after }
        }
    }
}
