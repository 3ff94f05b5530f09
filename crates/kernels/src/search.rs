//! This module searches for lines that match patterns.
//!
//! The crate `grep-regex` finds matches. If a pattern contains a literal, the crate searches for the literal with SIMD,
//! and runs the automaton only on lines that contain the literal. This module turns matches in a block into lines,
//! positions in lines, and counts.
//!
//! - [`Search`] holds the automata, and finds the lines that match.
//! - The module `kernel` searches a block piece by piece, and the module `line_collector` collects the lines with their
//!   context.
//! - [`SearchTable`] turns the results into rows.
//!
//! A line ends with a line feed, and no match crosses the line's end. A NUL byte marks a source as binary. If the first
//! NUL byte is among the first 64 KiB, the complete source is binary. Otherwise the source is binary from the NUL byte
//! on.
//!
//! # Cost
//!
//! A block is scanned once for the pattern and once for a NUL byte. The scan for NUL bytes needs one vector comparison
//! for each 64 bytes, which are then in the core's cache. If every match contains a rare literal, a single scan finds
//! both NUL bytes and candidates for matches. The result of a block holds the text of the lines that match, and 32
//! bytes for each of these lines. If all lines match, the text is as large as the block. With a replacement, the lines
//! of a block may become longer than the block. If their total length exceeds a quarter of the memory that each worker
//! gets from the budget, the search fails with [`Error::ReplacedTooLong`].
//!
//! String search in the storage device is described in section 7.3 of the 2016 article (see docs/from-the-papers.md).

mod files;
mod kernel;
mod line_collector;
mod memory;
mod multiline;
mod needle;
mod portable;
mod replacement;
mod table;

use grep_matcher::{LineMatchKind, Match, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use inshore_store::Budget;
use memchr::{memchr, memrchr};
use serde::{Deserialize, Serialize};

use self::{memory::PatternMemory, needle::Needle};
pub use self::{
    memory::PatternSize,
    multiline::{MultilineMatcher, matcher_across_lines},
    table::{SearchColumns, SearchItem, SearchRows, SearchSummary, SearchTable, SearchTableOptions},
};
use crate::{Error, Result};

/// Options that determine which lines a pattern matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatternOptions {
    /// Treats patterns as literal texts and not as regular expressions.
    pub fixed: bool,
    /// Ignores case.
    pub ignore_case: bool,
    /// Ignores case for patterns without a capital letter.
    pub smart_case: bool,
    /// Accepts a match only if no word character is adjacent to the match.
    pub words: bool,
    /// Accepts a match only if the match is a whole line.
    pub lines: bool,
    /// Selects lines that do not match.
    pub invert: bool,
    /// Treats a carriage return before the line feed as a part of the line's end.
    pub crlf: bool,
}

/// Selects which results of a search are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchOutput {
    /// The caller only needs to know whether there is a match. The match may be before or after a NUL byte.
    Any,
    /// The number of lines is wanted.
    LineCount,
    /// The number of matches is wanted. A line may have several matches.
    MatchCount,
    /// The lines are wanted.
    Lines {
        /// Adds line numbers.
        numbered: bool,
        /// Adds the positions of matches in lines.
        spans: bool,
        /// Adds this number of lines before each matching line.
        before: usize,
        /// Adds this number of lines after each matching line.
        after: usize,
    },
}

/// Searches blocks for lines.
#[derive(Debug)]
pub struct Search {
    matcher: RegexMatcher,
    /// True if a pattern, such as \\A, requires a separate call of the matcher for each line.
    line_by_line: bool,
    /// A literal that every selected line contains, if one is known.
    needle: Option<Needle>,
    arguments: Arguments,
    memory: PatternMemory,
}

/// Holds the arguments of a search, with which another machine can run this search.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arguments {
    patterns: Vec<String>,
    options: PatternOptions,
    wanted: SearchOutput,
    /// True if the search looks for NUL bytes.
    detect_binary: bool,
    /// The text that replaces matches in the lines of the result. `None` leaves the lines unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replacement: Option<String>,
}

impl Arguments {
    /// Returns a literal that every selected line contains, for a scan that finds the literal and NUL bytes in one
    /// pass. A search that does not look for NUL bytes gets no literal, since its matcher scans each byte only once.
    fn needle(&self) -> Option<Needle> {
        let [pattern] = &self.patterns[..] else { return None };
        let PatternOptions { fixed, ignore_case, smart_case, invert, .. } = self.options;
        let is_exact = !ignore_case && (!smart_case || pattern.chars().any(char::is_uppercase));
        let is_text = fixed || !pattern.contains(|letter| r"\.+*?()|[]{}^$".contains(letter));
        let is_needle = self.detect_binary && is_exact && is_text && !invert;
        is_needle.then(|| Needle::new(pattern.as_bytes())).flatten()
    }
}

/// Holds the results of a search in a block.
#[derive(Clone, Debug, Default)]
pub struct BlockMatches {
    /// Counts the lines that match.
    pub line_count: u64,
    /// Counts the matches in the lines, if the caller wants this count.
    pub match_count: u64,
    /// Holds the lines in order. If context lines are wanted, the lines also include the context of matches, and lines
    /// that may be context of a match in an adjacent block.
    pub lines: Vec<FoundLine>,
    /// Holds the text of the lines. Each line has its line end, unless the source ends without one. Matches are
    /// replaced if the search has a [replacement](Search::replacing).
    pub text: Vec<u8>,
    /// Holds the positions of matches, or of replacements, in lines.
    pub spans: Vec<(u32, u32)>,
    /// Holds the offset of the block's first NUL byte in the source, if the block has one. The block is binary from the
    /// line with this byte on. With `Lines` and `Any`, `lines` and the counts do not include this binary part.
    pub nul: Option<u64>,
    /// Says whether a line in the binary part of the block matches. Only searches for `Lines` and `Any` set this field.
    /// A search for `Any` sets it only if no earlier line of the block matches.
    pub matches_behind_nul: bool,
}

/// Describes a line of the result.
#[derive(Clone, Copy, Debug)]
pub struct FoundLine {
    /// Holds the line's offset in the source.
    pub offset: u64,
    /// Holds the line number, counted from 1. The number is 0 if line numbers were not wanted.
    pub number: u64,
    /// Holds the length of the line in [`BlockMatches::text`], in bytes.
    pub bytes: u32,
    /// Holds the number of entries of [`BlockMatches::spans`] that belong to the line.
    pub spans: u32,
    /// Says whether the line matches. A line that does not match is context of a match, or may be context of a match in
    /// an adjacent block.
    pub is_match: bool,
}

impl Search {
    /// Makes a search for lines that match one of `patterns`. The memory of the automata is reserved in `budget` as
    /// long as the search exists, except for 4 MiB that are not reserved.
    ///
    /// # Errors
    /// - Returns [`Error::BadPattern`] if a pattern is not valid.
    /// - Returns [`Error::Store`] if the budget is too small for the patterns.
    pub fn new(
        patterns: &[impl AsRef<str>],
        options: &PatternOptions,
        wanted: SearchOutput,
        detect_binary: bool,
        budget: &Budget,
    ) -> Result<Search> {
        let memory = PatternMemory::take(patterns, options, budget)?;
        let patterns = patterns.iter().map(|pattern| pattern.as_ref().to_string()).collect();
        let arguments = Arguments { patterns, options: *options, wanted, detect_binary, replacement: None };
        Search::build(arguments, memory, usize::MAX)
    }

    /// Returns a line without its end.
    #[inline]
    fn without_end<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        match line.strip_suffix(b"\n") {
            Some(line) if self.arguments.options.crlf => line.strip_suffix(b"\r").unwrap_or(line),
            Some(line) => line,
            None => line,
        }
    }

    /// Builds a search from its arguments. The automata may have at most `limit` bytes.
    fn build(arguments: Arguments, memory: PatternMemory, limit: usize) -> Result<Search> {
        let mut builder = matcher_builder(&arguments.options, arguments.detect_binary, &memory, limit);
        builder.line_terminator(Some(b'\n'));
        if arguments.options.crlf {
            // `crlf` is called after `line_terminator`. Both methods set the line terminator, and the last call wins.
            builder.crlf(true);
        }
        let matcher = builder
            .build_many(&arguments.patterns)
            .map_err(|error| Error::BadPattern { what: error.to_string() })?;
        let line_by_line = matcher.line_terminator().is_none();
        let needle = arguments.needle();
        Ok(Search { matcher, line_by_line, needle, arguments, memory })
    }

    /// Calls `each` with the start and the end of each match in a line, in order. The line end belongs to no match.
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub fn spans(&self, line: &[u8], mut each: impl FnMut(usize, usize)) {
        let found = self.matcher.find_iter(self.without_end(line), |span| {
            each(span.start(), span.end());
            true
        });
        found.expect("this matcher never fails");
    }

    /// Returns the first line of `text` from byte `start` on that matches.
    #[inline]
    fn find_line(&self, text: &[u8], mut start: usize) -> Option<Match> {
        while start < text.len() {
            if self.line_by_line {
                let line = line_at(text, start)?;
                if self.is_match(&text[line]) {
                    return Some(line);
                }
                start = line.end();
                continue;
            }
            let found = self.matcher.find_candidate_line(&text[start..]).expect("this matcher never fails");
            let (place, is_sure) = match found? {
                LineMatchKind::Confirmed(place) => (place, true),
                LineMatchKind::Candidate(place) => (place, false),
            };
            let line = line_at(text, start + place)?;
            if is_sure || self.is_match(&text[line]) {
                return Some(line);
            }
            start = line.end();
        }
        None
    }

    #[inline]
    fn is_match(&self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        self.matcher.is_match(line).expect("this matcher never fails")
    }

    /// Calls `each` with all selected lines from the line at `position` on, until `each` returns false.
    fn for_each_line(&self, text: &[u8], mut position: usize, mut each: impl FnMut(Match) -> bool) {
        while position < text.len() {
            let found = self.find_line(text, position);
            if !self.arguments.options.invert {
                let Some(line) = found else { return };
                if !each(line) {
                    return;
                }
                position = line.end();
                continue;
            }
            // An inverted search selects all lines before the match.
            let end = found.map_or(text.len(), |line| line.start());
            while position < end {
                let line_end = memchr(b'\n', &text[position..end]).map_or(end, |at| position + at + 1);
                if !each(Match::new(position, line_end)) {
                    return;
                }
                position = line_end;
            }
            position = found.map_or(text.len(), |line| line.end());
        }
    }
}

fn matcher_builder(
    options: &PatternOptions,
    detect_binary: bool,
    memory: &PatternMemory,
    limit: usize,
) -> RegexMatcherBuilder {
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .unicode(true)
        .octal(false)
        .fixed_strings(options.fixed)
        .case_insensitive(options.ignore_case)
        .case_smart(options.smart_case)
        .word(options.words)
        .whole_line(options.lines)
        .ban_byte(detect_binary.then_some(b'\0'))
        .size_limit(limit)
        .dfa_size_limit(limit.min(memory.cache_bytes));
    builder
}

/// Returns the line that contains `place`. Returns `None` after the last line.
#[inline]
fn line_at(text: &[u8], place: usize) -> Option<Match> {
    let start = memrchr(b'\n', &text[..place]).map_or(0, |end| end + 1);
    let end = memchr(b'\n', &text[place..]).map_or(text.len(), |end| place + end + 1);
    (start < text.len()).then(|| Match::new(start, end))
}
