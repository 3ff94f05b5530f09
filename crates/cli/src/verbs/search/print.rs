//! Prints the results of a search in the format of ripgrep.

use std::{
    collections::VecDeque,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
};

use inshore::{
    kernel::Next,
    kernels::{BlockMatches, FoundLine, WalkedFile},
};

use super::json::Json;
use crate::report::terminal::printable_bytes;

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Lines,
    Matches,
    LineCounts,
    MatchCounts,
    Paths,
    PathsWithout,
    Json,
    Nothing,
}

/// The format of the output.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub shown: OutputMode,
    pub with_path: bool,
    pub heading: bool,
    pub line_number: bool,
    pub column: bool,
    pub byte_offset: bool,
    /// True if a NUL byte follows each path.
    pub null: bool,
    pub colours: bool,
    /// The number of lines that are shown before a matching line, and after it.
    pub before: usize,
    pub after: usize,
    /// The largest number of lines that are printed for one file.
    pub max_count: u64,
    pub include_zero: bool,
    /// True if the output is a terminal. Results are then printed at once, and not buffered.
    pub at_once: bool,
    /// True if every matching binary file is reported; otherwise only files that the user named are reported.
    pub binary_is_named: bool,
}

/// Prints the matches of one block of a file after the other, in the order of the files.
pub struct Printer<'a> {
    style: Style,
    out: Box<dyn Write + Send + 'a>,
    json: Json,
    state: State,
    has_match: bool,
    /// True if results of an earlier file were printed.
    is_later: bool,
}

/// The state of the file that is being searched.
#[derive(Default)]
struct State {
    lines: u64,
    matches: u64,
    begun: bool,
    /// The offset of the NUL byte that was found. The NUL byte is reported when a later line matches.
    nul: Option<u64>,
    /// True if the number of matching lines is unknown, since the rest of the file was not searched.
    is_left: bool,
    /// The number of lines after the last match that are still to be printed.
    after: usize,
    /// The number of the last line that was printed.
    last: u64,
    /// The last lines without a match, which are printed if a match follows.
    before: VecDeque<(FoundLine, Vec<u8>)>,
}

const PATH: &[u8] = b"\x1b[35m";
const NUMBER: &[u8] = b"\x1b[32m";
const MATCH: &[u8] = b"\x1b[1;31m";
const PLAIN: &[u8] = b"\x1b[0m";

impl Style {
    /// Returns whether lines near a match are printed.
    pub fn has_context(&self) -> bool {
        self.before > 0 || self.after > 0
    }
}

impl<'a> Printer<'a> {
    pub fn new(style: Style, out: Box<dyn Write + Send + 'a>) -> Printer<'a> {
        let (state, json) = (State::default(), Json::default());
        Printer { style, out, json, state, has_match: false, is_later: false }
    }

    /// Shows the paths of files if `is_so` is true, even if the style does not request paths.
    pub fn name_paths_if(&mut self, is_so: bool) {
        self.style.with_path |= is_so;
    }

    pub fn has_match(&self) -> bool {
        self.has_match
    }

    /// Prints the matches of a block.
    pub fn found(&mut self, whose: &WalkedFile, found: &BlockMatches) -> io::Result<Next> {
        let next = self.show_found(whose, found)?;
        if self.style.at_once && !found.lines.is_empty() {
            self.out.flush()?;
        }
        Ok(next)
    }

    fn show_found(&mut self, whose: &WalkedFile, found: &BlockMatches) -> io::Result<Next> {
        if self.style.max_count == 0 {
            return Ok(Next::Stop);
        }
        let quits = found.nul.is_some() && !(whose.is_named || self.style.binary_is_named);
        match self.style.shown {
            OutputMode::Nothing | OutputMode::Paths | OutputMode::PathsWithout => {
                // The same rule applies to printed lines: matches before a NUL byte count, and matches after the byte
                // count only if the search does not end at this byte.
                let has_match = found.line_count > 0 || found.matches_behind_nul && !quits;
                if !has_match {
                    self.state.is_left |= quits;
                } else {
                    self.state.lines += 1;
                    // A matching file is a result, unless files without a match are listed.
                    self.has_match |= self.style.shown != OutputMode::PathsWithout;
                    let is_done = self.style.shown == OutputMode::Nothing;
                    return Ok(if is_done { Next::Stop } else { Next::SkipSource });
                }
            }
            OutputMode::LineCounts | OutputMode::MatchCounts => {
                if quits {
                    self.state.is_left = true;
                    return Ok(Next::SkipSource);
                }
                // With `--max-count`, the search returns lines with the number of matches in each. The matches are
                // counted here, up to the limit.
                for line in &found.lines {
                    if self.state.lines < self.style.max_count {
                        self.state.lines += 1;
                        self.state.matches += u64::from(line.spans);
                    }
                }
                if found.lines.is_empty() {
                    self.state.lines += found.line_count;
                    self.state.matches += found.match_count.max(found.line_count);
                }
                if self.state.lines >= self.style.max_count {
                    self.state.lines = self.style.max_count;
                    return Ok(Next::SkipSource);
                }
            }
            OutputMode::Lines | OutputMode::Matches | OutputMode::Json => {
                return self.found_lines(whose, found, quits);
            }
        }
        Ok(if quits { Next::SkipSource } else { Next::Go })
    }

    fn found_lines(&mut self, whose: &WalkedFile, found: &BlockMatches, quits: bool) -> io::Result<Next> {
        if let Some(nul) = self.state.nul {
            let matches = found.matches_behind_nul || found.lines.iter().any(|line| line.is_match);
            return if matches { self.binary_matches(whose, nul) } else { Ok(Next::Go) };
        }
        let (mut text, mut spans) = (&found.text[..], &found.spans[..]);
        let mut is_full = false;
        for line in &found.lines {
            let (line_text, line_spans);
            (line_text, text) = text.split_at(line.bytes as usize);
            (line_spans, spans) = spans.split_at(line.spans as usize);
            is_full = self.state.lines >= self.style.max_count;
            if is_full && self.state.after == 0 {
                return Ok(Next::SkipSource);
            }
            match is_full {
                // After `--max-count` matching lines, a further match is printed as a context line.
                true => self.line(whose, &FoundLine { is_match: false, ..*line }, line_text, &[])?,
                false => self.line(whose, line, line_text, line_spans)?,
            }
        }
        is_full |= self.state.lines >= self.style.max_count;
        if is_full && self.state.after == 0 {
            return Ok(Next::SkipSource);
        }
        let Some(nul) = found.nul else { return Ok(Next::Go) };
        if quits {
            if self.state.lines > 0 && self.style.shown != OutputMode::Json {
                self.message(whose, &format!("WARNING: stopped searching binary file after match (found \"\\0\" byte around offset {nul})"))?;
            }
            return Ok(Next::SkipSource);
        }
        if !found.matches_behind_nul {
            self.state.nul = Some(nul);
            return Ok(Next::Go);
        }
        self.binary_matches(whose, nul)
    }

    fn binary_matches(&mut self, whose: &WalkedFile, nul: u64) -> io::Result<Next> {
        self.has_match = true;
        if self.style.shown != OutputMode::Json {
            self.message(whose, &format!("binary file matches (found \"\\0\" byte around offset {nul})"))?;
        }
        Ok(Next::SkipSource)
    }

    /// Prints a line, or keeps it in case a match follows.
    fn line(
        &mut self,
        whose: &WalkedFile,
        line: &FoundLine,
        text: &[u8],
        spans: &[(u32, u32)],
    ) -> io::Result<()> {
        let Style { before, after, .. } = self.style;
        if line.is_match {
            for (line, text) in std::mem::take(&mut self.state.before) {
                if line.number > self.state.last {
                    self.show(whose, &line, &text, &[])?;
                }
            }
            self.show(whose, line, text, spans)?;
            self.state.lines += 1;
            self.state.matches += spans.len() as u64;
            self.state.after = after;
            self.has_match = true;
        } else if self.state.after > 0 && line.number == self.state.last + 1 {
            self.show(whose, line, text, &[])?;
            self.state.after -= 1;
        } else if before > 0 {
            // Only lines that directly precede a match are printed as its context.
            let is_next = self.state.before.back().is_none_or(|(last, _)| last.number + 1 == line.number);
            if !is_next {
                self.state.before.clear();
            }
            if self.state.before.len() == before {
                self.state.before.pop_front();
            }
            self.state.before.push_back((*line, text.to_vec()));
        }
        Ok(())
    }

    fn show(
        &mut self,
        whose: &WalkedFile,
        line: &FoundLine,
        text: &[u8],
        spans: &[(u32, u32)],
    ) -> io::Result<()> {
        let has_context = self.style.has_context();
        let is_apart = self.state.begun && has_context && line.number != self.state.last + 1;
        self.begin(whose)?;
        self.state.last = line.number;
        if self.style.shown == OutputMode::Json {
            return self.json.line(&mut self.out, whose, line, text, spans);
        }
        if is_apart {
            self.out.write_all(b"--\n")?;
        }
        if self.style.shown == OutputMode::Matches && !spans.is_empty() {
            for &(start, end) in spans {
                let bytes = &text[start as usize..end as usize];
                self.prefix(whose, line, Some(start as usize), line.offset + u64::from(start))?;
                self.paint(MATCH, bytes)?;
                // The line end is added unless the replacement already ends with one.
                if !bytes.ends_with(b"\n") {
                    self.out.write_all(b"\n")?;
                }
            }
            return Ok(());
        }
        self.prefix(whose, line, spans.first().map(|span| span.0 as usize), line.offset)?;
        let mut shown = 0;
        if self.style.colours {
            for &(start, end) in spans {
                let (start, end) = (start as usize, end as usize);
                self.out.write_all(&text[shown..start])?;
                self.paint(MATCH, &text[start..end])?;
                shown = end;
            }
        }
        self.out.write_all(&text[shown..])?;
        if !text.ends_with(b"\n") {
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Prints the path of a file above the file's first line.
    fn begin(&mut self, whose: &WalkedFile) -> io::Result<()> {
        if self.state.begun {
            return Ok(());
        }
        self.state.begun = true;
        if self.style.shown == OutputMode::Json {
            return self.json.begin(&mut self.out, whose);
        }
        if self.style.heading && self.style.with_path {
            if self.is_later {
                self.out.write_all(b"\n")?;
            }
            self.path(whose)?;
            self.out.write_all(if self.style.null { b"\0" } else { b"\n" })?;
        } else if self.is_later && self.style.has_context() {
            self.out.write_all(b"--\n")?;
        }
        self.is_later = true;
        Ok(())
    }

    fn prefix(
        &mut self,
        whose: &WalkedFile,
        line: &FoundLine,
        column: Option<usize>,
        offset: u64,
    ) -> io::Result<()> {
        let mark: &[u8] = if line.is_match { b":" } else { b"-" };
        if self.style.with_path && !self.style.heading {
            self.path(whose)?;
            self.out.write_all(if self.style.null { b"\0" } else { mark })?;
        }
        let mut buffer = Digits::default();
        if self.style.line_number {
            self.paint(NUMBER, buffer.of(line.number))?;
            self.out.write_all(mark)?;
        }
        if let Some(column) = column.filter(|_| self.style.column) {
            self.out.write_all(buffer.of(column as u64 + 1))?;
            self.out.write_all(mark)?;
        }
        if self.style.byte_offset {
            self.out.write_all(buffer.of(offset))?;
            self.out.write_all(mark)?;
        }
        Ok(())
    }

    fn path(&mut self, whose: &WalkedFile) -> io::Result<()> {
        let path = whose.path.as_os_str().as_bytes();
        match self.style.at_once {
            true => self.paint(PATH, &printable_bytes(path)),
            false => self.paint(PATH, path),
        }
    }

    fn paint(&mut self, colour: &[u8], text: &[u8]) -> io::Result<()> {
        if !self.style.colours {
            return self.out.write_all(text);
        }
        for part in [colour, text, PLAIN] {
            self.out.write_all(part)?;
        }
        Ok(())
    }

    /// Prints a message about a file.
    fn message(&mut self, whose: &WalkedFile, what: &str) -> io::Result<()> {
        self.begin(whose)?;
        if self.style.with_path && !self.style.heading {
            self.path(whose)?;
            self.out.write_all(b": ")?;
        }
        self.out.write_all(what.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Records that a file could not be read to its end.
    pub fn failed(&mut self) -> io::Result<()> {
        self.state.is_left = true;
        self.out.flush()
    }

    /// Ends a file: prints its counts, its path, or the end message of JSON.
    pub fn end(&mut self, whose: &WalkedFile) -> io::Result<Next> {
        let state = std::mem::take(&mut self.state);
        if state.is_left && self.style.shown != OutputMode::Json {
            return Ok(Next::Go);
        }
        let end: &[u8] = if self.style.null { b"\0" } else { b"\n" };
        match self.style.shown {
            shown @ (OutputMode::Paths | OutputMode::PathsWithout)
                if (state.lines > 0) == (shown == OutputMode::Paths) =>
            {
                self.has_match = true;
                self.path(whose)?;
                self.out.write_all(end)?;
            }
            OutputMode::LineCounts | OutputMode::MatchCounts => {
                let is_lines = self.style.shown == OutputMode::LineCounts;
                let count = if is_lines { state.lines } else { state.matches };
                self.has_match |= state.lines > 0;
                if count > 0 || self.style.include_zero {
                    if self.style.with_path {
                        self.path(whose)?;
                        self.out.write_all(if self.style.null { b"\0" } else { b":" })?;
                    }
                    self.out.write_all(Digits::default().of(count))?;
                    self.out.write_all(b"\n")?;
                }
            }
            OutputMode::Json if state.begun => {
                self.json.end(&mut self.out, whose, state.lines, state.matches)?;
            }
            _ => {}
        }
        Ok(Next::Go)
    }

    /// Prints the end of the output, after the last file.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.style.shown == OutputMode::Json {
            self.json.summary(&mut self.out)?;
        }
        self.out.flush()
    }
}

/// A buffer for the digits of a number, with room for the largest number.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, mut number: u64) -> &[u8] {
        let mut start = self.0.len();
        loop {
            start -= 1;
            self.0[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return &self.0[start..];
            }
        }
    }
}
