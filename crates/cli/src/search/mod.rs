//! `inshore search`.
//!
//! ```text
//!   words ─► patterns ─► Search (the kernel) ─┐
//!   words ─► walk ─► sources ─────────────────┴─► run ─► Printer ─► standard output
//! ```

mod across;
mod json;
#[cfg(feature = "nodes")]
mod on_nodes;
mod print;

use std::{
    borrow::Cow,
    collections::VecDeque,
    fs,
    io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, bail};
use inshore::{
    kernels::{
        self, Candidate, Matching, PatternOptions, PatternSize, Search as Kernel, TextOptions, WalkOptions,
        Wanted, dataset_name, file_types, stored_sources, walk,
    },
    neardata::{Event, Next, run},
    store::{Budget, Execution, Report},
    tables::NewFile,
};
use serde_json::{Value, json};

use self::{
    across::{Shower, Text},
    json::Whose,
    print::{Printer, Style},
};
use crate::{
    args::{Color, Everywhere, Search},
    failure::AlreadyTold,
    outcome::say,
    session::{Session, plain_context},
    terminal::printable_bytes,
};

/// Searches, and says whether there was a match.
pub fn search(options: Everywhere, words: &Search) -> Result<bool> {
    #[cfg(feature = "nodes")]
    if crate::nodes::are_named(&options) {
        return on_nodes::search(&options, words);
    }
    if words.type_list {
        file_types().iter().try_for_each(|line| writeln!(io::stdout(), "{line}"))?;
        return Ok(true);
    }
    let (first, mut paths) = pattern_words(words);
    let is_read = words.files || words.file.iter().any(|path| path == Path::new("-"));
    let is_here = paths.is_empty() && (is_read || !is_piped());
    if paths.is_empty() {
        paths.push(PathBuf::from(if is_here { "./" } else { "-" }));
    }
    let (datasets, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.into_iter().partition(|path| dataset_name(path).is_some());
    let (session, started);
    let job = match datasets.is_empty() {
        true => Execution::Plain(plain_context(&options)?),
        false => {
            let quiet = Everywhere { quiet: true, ..options.clone() };
            session = Session::open_existing(quiet)?;
            started = session.start()?;
            Execution::Stored(started.job.clone())
        }
    };

    let patterns = patterns(words, first, job.budget())?;
    let failed = Arc::new(AtomicBool::new(false));
    let whose = Arc::new(Mutex::new(VecDeque::new()));
    let candidates = candidates(words, &paths, is_here, failed.clone())?;
    if words.files {
        return list(words, candidates, &failed);
    }
    let style = style(&options, words, datasets.len(), &paths);
    let text = TextOptions { unpack: words.search_zip, ..TextOptions::default() };
    if let Some(matching) = matcher_across_lines(words, &patterns, job.budget())? {
        let stored = kernels::table_inputs(job.job(), &datasets)?;
        let files = candidates.map(|file| Text::of_file(file, text));
        let texts = files.chain(stored.into_iter().map(|input| Text::of_dataset(input, text.unpack)));
        let file = words.output.as_deref().map(NewFile::create).transpose()?;
        let has_match = {
            let mut shower = Shower::new(words, &style, writer(file.as_ref())?);
            shower.show_all(&job, &matching.matcher, texts, &failed)?
        };
        return end(&options, words, job.report(), (file, has_match, &failed));
    }
    let kernel = kernel(words, patterns, &style, job.budget())?;
    let mut stored = Vec::new();
    // Without a store there are no datasets.
    if let Some(job) = job.job() {
        for named in datasets.iter().filter_map(|path| dataset_name(path)) {
            stored.extend(stored_sources(job, named, text)?);
        }
    }
    let asked = whose.clone();
    let sources = candidates.map(move |candidate| {
        let source = candidate.source(text);
        let Candidate { path, is_named } = candidate;
        let shown = if path == Path::new("-") { PathBuf::from("<stdin>") } else { path };
        asked.lock().expect("no panic under this lock").push_back(Whose { path: shown, is_named });
        source
    });
    let asked = whose.clone();
    let stored = stored.into_iter().map(move |(path, source)| {
        asked.lock().expect("no panic under this lock").push_back(Whose { path, is_named: true });
        source
    });

    let file = words.output.as_deref().map(NewFile::create).transpose()?;
    let out = writer(file.as_ref())?;
    let ends_at_nul = !(words.text || style.binary_is_named);
    let mut printer = Printer::new(style, out);
    let searched = run(&job, &kernel, sources.chain(stored), |event: Event<'_, Kernel>| {
        let mut whose = whose.lock().expect("no panic under this lock");
        let is_end = event.part.is_none();
        let source = whose.front().expect("a source that was asked for");
        if let Some(Err(error)) = &event.part
            && error.is_binary_line()
            && ends_at_nul
            && !source.is_named
        {
            // Binary, and nobody asked for what is.
            printer.failed().map_err(kernels::Error::Write)?;
            return Ok(Next::SkipSource);
        }
        let next = print(&mut printer, source, event, &failed);
        if is_end {
            whose.pop_front();
        }
        next
    });
    let has_match = printer.has_match();
    let finished = printer.finish();
    match searched {
        Ok(_) => finished?,
        Err(error) => return Err(unwrapped(error)),
    }
    drop(printer);
    end(&options, words, job.report(), (file, has_match, &failed))
}

/// What follows when all is searched here: the file appears, counters are written, and what failed decides.
fn end(
    options: &Everywhere,
    words: &Search,
    report: Report,
    (file, has_match, failed): (Option<NewFile>, bool, &AtomicBool),
) -> Result<bool> {
    if let Some(file) = file {
        file.publish()?;
    }
    write_counters(words, report, json!({ "matched": has_match }))?;
    if failed.load(Ordering::Relaxed) && !(has_match && is_quiet(options, words)) {
        bail!(AlreadyTold);
    }
    Ok(has_match)
}

/// Where matches go: the file that was named, or standard output.
fn writer(file: Option<&NewFile>) -> Result<Box<dyn Write + Send + '_>> {
    Ok(match file {
        Some(file) => Box::new(BufWriter::with_capacity(1 << 16, file.writer()?)),
        None => Box::new(BufWriter::with_capacity(1 << 16, io::stdout())),
    })
}

/// Prints what came of a block, or the end of a source.
fn print(
    printer: &mut Printer<'_>,
    whose: &Whose,
    event: Event<'_, Kernel>,
    failed: &AtomicBool,
) -> kernels::Result<Next> {
    let next = match event.part {
        Some(Ok(found)) => printer.found(whose, &found),
        Some(Err(error)) if error.is_cancelled() => return Err(error),
        Some(Err(error)) => {
            failed.store(true, Ordering::Relaxed);
            printer.failed().map_err(kernels::Error::Write)?;
            say(&format!("inshore: {error}"));
            Ok(Next::SkipSource)
        }
        None => printer.end(whose),
    };
    next.map_err(kernels::Error::Write)
}

fn write_counters(words: &Search, report: Report, summary: Value) -> Result<()> {
    let Some(path) = &words.counters else { return Ok(()) };
    let counters = json!({ "command": "search", "report": report, "summary": summary });
    Ok(NewFile::write_whole(path, format!("{counters}\n").as_bytes())?)
}

/// An error of writing keeps its kind: a reader that has seen enough is none.
fn unwrapped(error: kernels::Error) -> anyhow::Error {
    match error {
        kernels::Error::Write(error) => error.into(),
        error => error.into(),
    }
}

fn is_quiet(options: &Everywhere, words: &Search) -> bool {
    options.quiet || words.q
}

/// The patterns and the paths: the first of `words` is a path where patterns are named otherwise.
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

/// All patterns. A file of more than the budget has room for is read to its end, but not kept, so that the error can say
/// how large a budget would do.
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

/// Calls `take` with the lines of a text, without their ends.
fn for_each_line(mut text: impl BufRead, mut take: impl FnMut(&str)) -> io::Result<()> {
    let mut line = String::new();
    while text.read_line(&mut line)? > 0 {
        let end = line.strip_suffix('\n').map_or(&*line, |line| line.strip_suffix('\r').unwrap_or(line));
        take(end);
        line.clear();
    }
    Ok(())
}

/// Whether something comes on standard input.
fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = fs::metadata("/dev/stdin").map(|found| found.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo() || kind.is_socket())
}

/// The files to search.
fn candidates(
    words: &Search,
    paths: &[PathBuf],
    is_here: bool,
    failed: Arc<AtomicBool>,
) -> Result<impl Iterator<Item = Candidate> + Send + use<>> {
    let options = WalkOptions {
        globs: words.glob.clone(),
        types: words.types.clone(),
        types_not: words.type_not.clone(),
        hidden: words.hidden || words.unrestricted > 1,
        no_ignore: words.no_ignore || words.unrestricted > 0,
        follow: words.follow,
        max_depth: words.max_depth,
    };
    let walk = (!paths.is_empty()).then(|| walk(if is_here { &[] } else { paths }, &options)).transpose();
    let walk = walk.map_err(|error| match error {
        kernels::Error::BadOption { option: "glob", found, what } => anyhow!("bad --glob {found:?}: {what}"),
        kernels::Error::BadOption { what, .. } => anyhow!(what),
        error => error.into(),
    })?;
    Ok(walk.into_iter().flatten().filter_map(move |found| match found {
        Ok(candidate) => Some(candidate),
        Err(error) => {
            failed.store(true, Ordering::Relaxed);
            say(&format!("inshore: {error}"));
            None
        }
    }))
}

fn list(words: &Search, candidates: impl Iterator<Item = Candidate>, failed: &AtomicBool) -> Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut any, on_terminal) = (false, io::stdout().is_terminal());
    for candidate in candidates {
        let path = candidate.path.as_os_str().as_bytes();
        out.write_all(&if on_terminal { Cow::Owned(printable_bytes(path)) } else { Cow::Borrowed(path) })?;
        out.write_all(if words.null { b"\0" } else { b"\n" })?;
        any = true;
    }
    out.flush()?;
    if failed.load(Ordering::Relaxed) {
        bail!(AlreadyTold);
    }
    Ok(any)
}

fn style(options: &Everywhere, words: &Search, datasets: usize, paths: &[PathBuf]) -> Style {
    let on_terminal = words.output.is_none() && io::stdout().is_terminal();
    let colours = match words.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => on_terminal && std::env::var_os("NO_COLOR").is_none(),
    };
    let several = datasets + paths.len() > 1 || paths.iter().any(|path| path.is_dir());
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

fn shown(options: &Everywhere, words: &Search) -> print::Shown {
    use print::Shown;
    if is_quiet(options, words) {
        Shown::Nothing
    } else if words.files_with_matches {
        Shown::Paths
    } else if words.files_without_match {
        Shown::PathsWithout
    } else if words.count_matches || words.count && words.only_matching {
        Shown::MatchCounts
    } else if words.count {
        Shown::LineCounts
    } else if options.json {
        Shown::Json
    } else if words.only_matching {
        Shown::Matches
    } else {
        Shown::Lines
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

/// What is looked for across lines: where -U is given, and a match could have the end of a line in it.
fn matcher_across_lines(words: &Search, patterns: &[String], budget: &Budget) -> Result<Option<Matching>> {
    let (options, dot_is_all) = (pattern_options(words), words.multiline_dotall);
    Ok(match words.multiline {
        true => kernels::matcher_across_lines(patterns, &options, dot_is_all, !words.text, budget)?,
        false => None,
    })
}

fn kernel(words: &Search, patterns: Vec<String>, style: &Style, budget: &Budget) -> Result<Kernel> {
    use print::Shown;
    let options = pattern_options(words);
    let Style { before, after, line_number, colours, column, .. } = *style;
    let wanted = match style.shown {
        Shown::Nothing | Shown::Paths | Shown::PathsWithout => Wanted::Any,
        Shown::LineCounts => Wanted::LineCount,
        Shown::MatchCounts if words.invert_match => Wanted::LineCount,
        Shown::MatchCounts if words.max_count.is_some() => {
            Wanted::Lines { numbered: false, spans: true, before: 0, after: 0 }
        }
        Shown::MatchCounts => Wanted::MatchCount,
        Shown::Json => Wanted::Lines { numbered: true, spans: true, before, after },
        Shown::Lines | Shown::Matches => {
            // Lines next to each other are known by their numbers.
            let numbered = line_number || style.has_context();
            let spans = style.shown == Shown::Matches || colours || column;
            Wanted::Lines { numbered, spans, before, after }
        }
    };
    let kernel =
        Kernel::new(&patterns, &options, wanted, !words.text, budget).map_err(|error| match error {
            kernels::Error::BadPattern { what } if what.contains(r#"the literal "\n" is not allowed"#) => {
                anyhow!("{what}; -U lets matches go across the ends of lines")
            }
            error => error.into(),
        })?;
    Ok(match &words.replace {
        // As ripgrep 13 has it, JSON tells what was found and not what it is replaced by.
        Some(replacement) if matches!(style.shown, Shown::Lines | Shown::Matches) => {
            kernel.replacing(replacement)?
        }
        _ => kernel,
    })
}
