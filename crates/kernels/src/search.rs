//! This module searches for lines that match patterns.
//!
//! `grep-regex` finds matches: it looks for a literal of the pattern with SIMD, and runs the automaton on candidate
//! lines only. This module turns matches in a block into lines, places in lines, and counts.
//!
//! A line ends with a line feed, and no match crosses the line's end. A NUL byte makes a source binary: from the byte
//! on, or, if the byte is among the first 64 KiB, from the start.
//!
//! # Cost
//!
//! A block is scanned once for a NUL (a vector compare for each 64 bytes, in the core's cache) and once for the
//! pattern; both scans are one if every match contains a rare literal. A part holds the text of the lines that match:
//! as large as the block if all lines match, and 32 bytes for each line. With a replacement a part may be larger than
//! the block, up to a quarter of a worker's share of the budget.
//!
//! Paper: string search in the storage device, 2016 article 7.3.

mod files;
mod memory;
mod needle;
mod table;

use grep_matcher::{Captures, LineMatchKind, Match, Matcher};
use grep_regex::{RegexCaptures, RegexMatcher, RegexMatcherBuilder};
use inshore_kernel::{Block, Border, Kernel, Portable};
use inshore_store::{Budget, Context};
use memchr::{memchr, memchr_iter, memrchr};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::memory::PatternSize;
pub use self::table::{
    SearchColumns, SearchItem, SearchRows, SearchSummary, SearchTable, SearchTableOptions,
};
use self::{memory::PatternMemory, needle::Needle};
use crate::{Error, Result};

/// A NUL byte among the first bytes makes all of a source binary; a later one only the bytes that follow, as in
/// ripgrep.
const EARLY_BYTES: usize = 64 << 10;

/// Pieces of this size are searched first, and then scanned for a NUL byte while they lie in the core's cache. In the
/// opposite order the scan, which computes little, would wait for memory. The first piece of a source has
/// [`EARLY_BYTES`], which tell whether all of the source is binary.
const PIECE_BYTES: usize = 64 << 10;

/// Says how patterns are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatternOptions {
    /// Treats patterns as literal texts and not as regular expressions.
    pub fixed: bool,
    /// Ignores case.
    pub ignore_case: bool,
    /// Ignores case for patterns without a capital letter.
    pub smart_case: bool,
    /// Accepts matches only if no word character is adjacent.
    pub words: bool,
    /// Accepts matches only if they are whole lines.
    pub lines: bool,
    /// Selects lines that do not match.
    pub invert: bool,
    /// Treats a carriage return before the line feed as a part of the line's end.
    pub crlf: bool,
}

/// Says which results of a search are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchOutput {
    /// A single match is enough, before a NUL byte or after it.
    Any,
    /// The number of lines is wanted.
    LineCount,
    /// The number of matches is wanted; a line may have several.
    MatchCount,
    /// The lines are wanted.
    Lines {
        /// Adds line numbers.
        numbered: bool,
        /// Adds the places of matches in lines.
        spans: bool,
        /// Adds this many lines before each match.
        before: usize,
        /// Adds this many lines after each match.
        after: usize,
    },
}

/// Searches blocks for lines.
#[derive(Debug)]
pub struct Search {
    matcher: RegexMatcher,
    /// True for patterns such as \\A, which must be matched line by line.
    line_by_line: bool,
    /// A literal that every selected line contains, if one is known.
    needle: Option<Needle>,
    arguments: Arguments,
    memory: PatternMemory,
}

/// Holds the arguments of a search: all that another machine needs to run the same search.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arguments {
    patterns: Vec<String>,
    options: PatternOptions,
    wanted: SearchOutput,
    /// Looks for NUL bytes.
    detect_binary: bool,
    /// Replaces matches in the lines of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replacement: Option<String>,
}

impl Arguments {
    /// Returns a literal that every selected line contains. Only searches that look for NUL bytes need the literal:
    /// without NUL bytes, the engine looks at each byte once anyway.
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
    /// Counts the matches in the lines, if wanted.
    pub match_count: u64,
    /// Holds the lines, in order: if wanted, with lines that may be shown around a match, of this block or an
    /// adjacent one.
    pub lines: Vec<FoundLine>,
    /// Holds the text of the lines, each with its line end if it has one. Matches are replaced if that was
    /// [wanted](Search::replacing).
    pub text: Vec<u8>,
    /// Holds the places of matches, or of replacements, in lines.
    pub spans: Vec<(u32, u32)>,
    /// Holds the offset of the first NUL byte in the source, if the block has one. If `Lines` or `Any` are wanted,
    /// lines from the NUL byte on are left out and do not count.
    pub nul: Option<u64>,
    /// Says, if `Lines` or `Any` are wanted, whether a line at or after the NUL byte matches.
    pub matches_behind_nul: bool,
}

/// Describes a line of the result.
#[derive(Clone, Copy, Debug)]
pub struct FoundLine {
    /// Holds the line's offset in the source.
    pub offset: u64,
    /// Holds the line number, from 1; 0 if numbers were not wanted.
    pub number: u64,
    /// Counts the line's bytes in [`BlockMatches::text`].
    pub bytes: u32,
    /// Counts the line's places in [`BlockMatches::spans`].
    pub spans: u32,
    /// Says whether the line matches; otherwise it is near a match, or may be.
    pub is_match: bool,
}

impl Search {
    /// Makes a search for lines that match one of `patterns`. The memory of the automata is reserved in `budget` as
    /// long as the search lives; a few MiB are not counted.
    ///
    /// # Errors
    /// [`Error::BadPattern`]; [`Error::Store`] if the budget is too small for the patterns.
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

    /// Returns the search with a replacement for matches: `$1` and `$name` in `replacement` stand for the groups of
    /// the pattern (`${1}` before letters and digits), `$0` for the whole match, and `$$` for a dollar sign.
    ///
    /// # Errors
    /// [`Error::BadPattern`] if the pattern has so many groups that finding them takes too much memory, or if the
    /// replacement is longer than 64 KiB.
    pub fn replacing(self, replacement: impl Into<String>) -> Result<Search> {
        self.replacing_within(replacement.into(), GROUPS_BYTES_MAX)
    }

    /// The engine that finds groups has a table of all states and groups for each thread, which `limit` bounds.
    fn replacing_within(self, replacement: String, limit: usize) -> Result<Search> {
        if replacement.len() > REPLACEMENT_BYTES_MAX {
            let what =
                format!("the replacement has {} bytes, more than the limit of 64 KiB", replacement.len());
            return Err(Error::BadPattern { what });
        }
        let groups = if replacement.contains('$') { self.matcher.capture_count().max(1) } else { 1 };
        let Search { matcher, arguments, memory, .. } = self;
        // The reserved memory is for one matcher.
        drop(matcher);
        Search::build(Arguments { replacement: Some(replacement), ..arguments }, memory, limit / groups)
    }

    /// Makes the search that [`Portable::arguments`] describe.
    fn sent(arguments: &Value, budget: &Budget) -> Result<Search> {
        let mut arguments: Arguments = Arguments::deserialize(arguments)
            .map_err(|error| Error::BadPattern { what: format!("invalid arguments of a search: {error}") })?;
        let memory = PatternMemory::take(&arguments.patterns, &arguments.options, budget)?;
        let replacement = arguments.replacement.take();
        let search = Search::build(arguments, memory, SENT_BYTES_MAX)?;
        match replacement {
            Some(replacement) => search.replacing_within(replacement, SENT_BYTES_MAX),
            None => Ok(search),
        }
    }

    /// Returns a line without its end.
    fn without_end<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        match line.strip_suffix(b"\n") {
            Some(line) if self.arguments.options.crlf => line.strip_suffix(b"\r").unwrap_or(line),
            Some(line) => line,
            None => line,
        }
    }

    /// Builds a search from arguments, with automata of at most `limit` bytes.
    fn build(arguments: Arguments, memory: PatternMemory, limit: usize) -> Result<Search> {
        let mut builder = matcher_builder(&arguments.options, arguments.detect_binary, &memory, limit);
        builder.line_terminator(Some(b'\n'));
        if arguments.options.crlf {
            // This comes after the line's end, which `crlf` sets too.
            builder.crlf(true);
        }
        let matcher = builder
            .build_many(&arguments.patterns)
            .map_err(|error| Error::BadPattern { what: error.to_string() })?;
        let line_by_line = matcher.line_terminator().is_none();
        let needle = arguments.needle();
        Ok(Search { matcher, line_by_line, needle, arguments, memory })
    }

    /// Calls `each` with the places of matches in a line (without its end), in order.
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

/// Holds a matcher and the memory reserved for the matcher.
#[derive(Debug)]
pub struct MultilineMatcher {
    /// Finds matches.
    pub matcher: RegexMatcher,
    _memory: PatternMemory,
}

/// Makes a matcher for `patterns` whose matches may cross line ends; a dot matches line ends too if `dot_is_all`. The
/// memory is reserved in `budget`. Returns `None` if no match can contain or look at a line end (as `^` and `$` do),
/// so that a [`Search`] finds the same.
///
/// # Errors
/// The errors of [`Search::new`].
pub fn matcher_across_lines(
    patterns: &[impl AsRef<str>],
    options: &PatternOptions,
    dot_is_all: bool,
    detect_binary: bool,
    budget: &Budget,
) -> Result<Option<MultilineMatcher>> {
    let memory = PatternMemory::take(patterns, options, budget)?;
    let mut builder = matcher_builder(options, detect_binary, &memory, usize::MAX);
    builder.dot_matches_new_line(dot_is_all);
    if options.crlf {
        builder.crlf(true).line_terminator(None);
    }
    let matcher =
        builder.build_many(patterns).map_err(|error| Error::BadPattern { what: error.to_string() })?;
    // A pattern can contain a carriage return only if the engine does not take it for a line end.
    let ends: &[u8] = if options.crlf { b"\r\n" } else { b"\n" };
    let never = matcher.non_matching_bytes().is_some_and(|bytes| ends.iter().all(|&end| bytes.contains(end)));
    Ok((!never).then_some(MultilineMatcher { matcher, _memory: memory }))
}

/// Returns the line that contains `place`; `None` after the last line.
fn line_at(text: &[u8], place: usize) -> Option<Match> {
    let start = memrchr(b'\n', &text[..place]).map_or(0, |end| end + 1);
    let end = memchr(b'\n', &text[place..]).map_or(text.len(), |end| place + end + 1);
    (start < text.len()).then(|| Match::new(start, end))
}

impl Kernel for Search {
    type Error = Error;
    /// Limits the bytes of a block's lines with replaced matches.
    type Worker = usize;
    type Part = BlockMatches;

    fn border(&self) -> Border {
        Border::Line { numbered: matches!(self.arguments.wanted, SearchOutput::Lines { numbered: true, .. }) }
    }

    fn worker(&self, job: &Context) -> Result<usize> {
        let share = job.budget().memory_bytes() / job.budget().threads() as u64 / 4;
        Ok(share.min(u32::MAX.into()) as usize)
    }

    /// The search stays correct if a process changes the bytes meanwhile: the engine relies on their number alone.
    fn takes_windows(&self) -> bool {
        true
    }

    fn block(&self, room: &mut usize, block: &Block<'_>) -> Result<BlockMatches> {
        let Arguments { wanted, detect_binary, replacement, .. } = &self.arguments;
        let (numbered, spans, before, after) = match *wanted {
            SearchOutput::Lines { numbered, spans, before, after } => (numbered, spans, before, after),
            _ => (false, false, 0, 0),
        };
        let mut lines = Lines {
            search: self,
            block,
            text: block.bytes,
            found: BlockMatches::default(),
            numbered,
            spans,
            counted: (0, 0),
            replacer: replacement.as_ref().map(|replacement| Replacer::new(&self.matcher, replacement)),
            room: *room,
            copy: Vec::new(),
        };
        let (text, mut start) = (block.bytes, 0);
        // With context, lines near the borders of a block are returned, match or not, so that the literal does not
        // help.
        let mut needle = self.needle.as_ref().filter(|_| before == 0 && after == 0);
        while start < text.len() {
            if let Some(looked_for) = needle {
                let end = start + looked_for.free_bytes(&text[start..]);
                if end == text.len() {
                    break;
                }
                // If the literal is frequent, the engine alone scans fewer bytes twice.
                needle = needle.filter(|_| end - start >= PIECE_BYTES);
                start = memrchr(b'\n', &text[start..end]).map_or(start, |line| start + line + 1);
            }
            // The piece lies in the core's cache when it is scanned for a NUL byte.
            let bytes = if block.is_first() && start == 0 { EARLY_BYTES } else { PIECE_BYTES };
            let is_one = before > 0 || after > 0 || text.len() - start <= bytes;
            let line_end =
                |from: usize| memchr(b'\n', &text[from..]).map_or(text.len(), |end| from + end + 1);
            let mut end = if is_one { text.len() } else { line_end(start + bytes) };
            let mark = lines.mark();
            lines.text = &text[..end];
            // A single match is enough, unless the match turns out to be after a NUL byte of the same piece.
            let is_enough = !lines.add_from(start, *wanted);
            let nul = detect_binary.then(|| memchr(0, &text[start..end])).flatten().map(|nul| start + nul);
            if let Some(nul) = nul {
                lines.found.nul.get_or_insert(block.offset + nul as u64);
                if let SearchOutput::Lines { .. } | SearchOutput::Any = wanted {
                    let is_early = block.is_first() && nul < EARLY_BYTES;
                    let line = memrchr(b'\n', &text[..nul]).filter(|_| !is_early).map_or(0, |end| end + 1);
                    // Lines before the NUL byte are returned; for lines after the byte only whether one matches.
                    lines.rewind(mark);
                    lines.text = &text[..line];
                    lines.add_from(start, *wanted);
                    if *wanted != SearchOutput::Any || lines.found.line_count == 0 {
                        self.for_each_line(text, line, |_| {
                            lines.found.matches_behind_nul = true;
                            false
                        });
                    }
                    end = text.len();
                }
            }
            if lines.is_full() {
                return Err(Error::ReplacedTooLong { offset: block.offset, limit: *room as u64 });
            }
            if is_enough {
                break;
            }
            start = end;
        }
        Ok(lines.found)
    }

    /// After a NUL byte, only the existence of a match matters.
    fn zeros_end_lines(&self) -> bool {
        self.arguments.detect_binary
    }

    fn part_bytes(&self, found: &BlockMatches) -> u64 {
        let lines = found.lines.capacity() * size_of::<FoundLine>() + found.spans.capacity() * 8;
        (found.text.capacity() + lines) as u64
    }
}

/// Encodes results: numbers in little endian, then line by line, then the text.
///
/// ```text
///   line_count u64, match_count u64, nul u64 (2^64 - 1: none), matches_behind_nul u64, lines u64, spans u64
///   each line:  offset u64, number u64, bytes u32, spans u32 (its highest bit: it matches)
///   each span:  start u32, end u32
///   text
/// ```
impl Portable for Search {
    const KIND: &'static str = "search";
    const CAN_HELP: bool = true;

    fn arguments(&self) -> Value {
        serde_json::to_value(&self.arguments).expect("plain data")
    }

    fn of_arguments(arguments: &Value) -> Result<Self> {
        Search::sent(arguments, &Budget::new(SENT_MEMORY_BYTES_MAX, 1))
    }

    fn within(arguments: &Value, budget: &Budget) -> Result<Self> {
        Search::sent(arguments, budget)
    }

    fn encode(found: &BlockMatches, out: &mut Vec<u8>) {
        if found.line_count == 0 && found.lines.is_empty() && found.nul.is_none() {
            return;
        }
        let behind = u64::from(found.matches_behind_nul);
        let (lines, spans) = (found.lines.len() as u64, found.spans.len() as u64);
        let nul = found.nul.unwrap_or(u64::MAX);
        for number in [found.line_count, found.match_count, nul, behind, lines, spans] {
            out.extend(number.to_le_bytes());
        }
        for line in &found.lines {
            out.extend(line.offset.to_le_bytes());
            out.extend(line.number.to_le_bytes());
            out.extend(line.bytes.to_le_bytes());
            out.extend((line.spans | if line.is_match { IS_MATCH } else { 0 }).to_le_bytes());
        }
        for (start, end) in &found.spans {
            out.extend(start.to_le_bytes());
            out.extend(end.to_le_bytes());
        }
        out.extend(&found.text);
    }

    fn decode(mut bytes: &[u8]) -> Option<BlockMatches> {
        let long = |bytes: &mut &[u8]| -> Option<u64> { take(bytes).map(u64::from_le_bytes) };
        let short = |bytes: &mut &[u8]| -> Option<u32> { take(bytes).map(u32::from_le_bytes) };
        let bytes = &mut bytes;
        let mut found =
            BlockMatches { line_count: long(bytes)?, match_count: long(bytes)?, ..BlockMatches::default() };
        found.nul = long(bytes).map(|nul| (nul < u64::MAX).then_some(nul))?;
        found.matches_behind_nul = long(bytes)? == 1;
        let (lines, spans) = (long(bytes)?, long(bytes)?);
        // Memory is reserved only for bytes that exist.
        let fits = |count: u64, each: u64, left: usize| {
            count.checked_mul(each).is_some_and(|all| all <= left as u64)
        };
        if !fits(lines, 24, bytes.len()) {
            return None;
        }
        let (mut text, mut in_lines) = (0u64, 0u64);
        for _ in 0..lines {
            let (offset, number, length, matched) =
                (long(bytes)?, long(bytes)?, short(bytes)?, short(bytes)?);
            let (spans, is_match) = (matched & !IS_MATCH, matched & IS_MATCH != 0);
            text += u64::from(length);
            in_lines += u64::from(spans);
            found.lines.push(FoundLine { offset, number, bytes: length, spans, is_match });
        }
        if in_lines != spans || !fits(spans, 8, bytes.len()) {
            return None;
        }
        for line in &found.lines {
            // Spans must be in order, and within the line.
            let mut position = 0;
            for _ in 0..line.spans {
                let (start, end) = (short(bytes)?, short(bytes)?);
                if start < position || end < start || end > line.bytes {
                    return None;
                }
                found.spans.push((start, end));
                position = end;
            }
        }
        found.text = bytes.to_vec();
        (text == bytes.len() as u64).then_some(found)
    }

    fn suffices(&self, found: &BlockMatches) -> bool {
        self.arguments.wanted == SearchOutput::Any && (found.line_count > 0 || found.matches_behind_nul)
    }
}

/// Limits the memory of the automata of a search that another machine sent: in all, and for each thread.
const SENT_BYTES_MAX: usize = 10 << 20;
/// Limits the memory for the patterns of such a search if no budget is known.
const SENT_MEMORY_BYTES_MAX: u64 = 64 << 20;

const IS_MATCH: u32 = 1 << 31;

/// Splits off the first bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Limits the length of a replacement.
const REPLACEMENT_BYTES_MAX: usize = 64 << 10;
/// Limits the memory for finding groups, for each thread.
const GROUPS_BYTES_MAX: usize = 64 << 20;

/// Writes lines with replaced matches.
struct Replacer<'a> {
    replacement: &'a [u8],
    /// Bounds the number of groups that the replacement names.
    groups: usize,
    captures: RegexCaptures,
    is_full: bool,
}

impl<'a> Replacer<'a> {
    fn new(matcher: &RegexMatcher, replacement: &'a str) -> Replacer<'a> {
        let (replacement, groups) =
            (replacement.as_bytes(), memchr_iter(b'$', replacement.as_bytes()).count());
        let captures = matcher.new_captures().expect("this matcher never fails");
        Replacer { replacement, groups, captures, is_full: false }
    }

    /// Appends a line to `out`, which may grow to `room` bytes, and the places of the replacements to `spans`.
    fn append(
        &mut self,
        search: &Search,
        line: &[u8],
        out: &mut Vec<u8>,
        mut spans: Option<&mut Vec<(u32, u32)>>,
        room: usize,
    ) {
        let Replacer { replacement, groups, captures, is_full } = self;
        let (start, mut copied) = (out.len(), 0);
        let (text, matcher) = (search.without_end(line), &search.matcher);
        let mut replace = |place: Match, captures: Option<&RegexCaptures>| {
            // The bound is checked first: a replacement may name a group any number of times.
            let longest = replacement.len() + *groups * place.len() + (line.len() - copied);
            *is_full |= out.len() + longest > room;
            if *is_full {
                return false;
            }
            out.extend_from_slice(&text[copied..place.start()]);
            let begun = out.len() - start;
            match captures {
                Some(captures) => {
                    captures.interpolate(|name| matcher.capture_index(name), text, replacement, out);
                }
                None => out.extend_from_slice(replacement),
            }
            if let Some(spans) = &mut spans {
                spans.push((begun as u32, (out.len() - start) as u32));
            }
            copied = place.end();
            true
        };
        let replaced = match *groups {
            0 => matcher.find_iter(text, |place| replace(place, None)),
            _ => matcher.captures_iter(text, captures, |captures| {
                replace(captures.get(0).expect("a match has a place"), Some(captures))
            }),
        };
        replaced.expect("this matcher never fails");
        out.extend_from_slice(&line[copied..]);
    }
}

/// Gathers lines of a block.
struct Lines<'a> {
    search: &'a Search,
    block: &'a Block<'a>,
    text: &'a [u8],
    found: BlockMatches,
    numbered: bool,
    spans: bool,
    /// Holds the range whose line ends are counted, and their number.
    counted: (usize, u64),
    replacer: Option<Replacer<'a>>,
    /// Limits the bytes of lines with replaced matches.
    room: usize,
    /// Holds a copy of a line that no process can write to.
    copy: Vec<u8>,
}

/// Records the sizes of results up to some line.
#[derive(Clone, Copy)]
struct ResultSizes {
    sizes: (usize, usize, usize),
    counts: (u64, u64),
}

impl Lines<'_> {
    /// Tells whether replacements made the lines too long.
    fn is_full(&self) -> bool {
        self.replacer.as_ref().is_some_and(|replacer| replacer.is_full)
    }

    /// Returns the sizes of all results: lines, text, places, counts.
    fn mark(&self) -> ResultSizes {
        let BlockMatches { lines, text, spans, line_count, match_count, .. } = &self.found;
        ResultSizes { sizes: (lines.len(), text.len(), spans.len()), counts: (*line_count, *match_count) }
    }

    /// Removes results that were added after the mark.
    fn rewind(&mut self, mark: ResultSizes) {
        let BlockMatches { lines, text, spans, line_count, match_count, .. } = &mut self.found;
        lines.truncate(mark.sizes.0);
        text.truncate(mark.sizes.1);
        spans.truncate(mark.sizes.2);
        (*line_count, *match_count) = mark.counts;
        // Line ends are counted from the start of the block again.
        self.counted = (0, 0);
        if let Some(replacer) = &mut self.replacer {
            replacer.is_full = false;
        }
    }

    /// Adds the wanted results of selected lines from the line at `start` on, and tells whether there may be more.
    fn add_from(&mut self, start: usize, wanted: SearchOutput) -> bool {
        let (search, text) = (self.search, self.text);
        let mut goes_on = true;
        match wanted {
            SearchOutput::Any => search.for_each_line(text, start, |_| {
                self.found.line_count = 1;
                goes_on = false;
                false
            }),
            SearchOutput::LineCount => search.for_each_line(text, start, |_| {
                self.found.line_count += 1;
                true
            }),
            SearchOutput::MatchCount => search.for_each_line(text, start, |line| {
                self.found.line_count += 1;
                self.copy.clear();
                // Two passes over the copy see the same bytes.
                self.copy.extend_from_slice(&text[line]);
                search.spans(&self.copy, |_, _| self.found.match_count += 1);
                true
            }),
            SearchOutput::Lines { before: 0, after: 0, .. } => {
                search.for_each_line(text, start, |line| self.add(line, true));
            }
            // Lines with context are added at once, from the beginning.
            SearchOutput::Lines { before, after, .. } => self.add_with_context(before, after),
        }
        goes_on
    }

    /// Adds a line, and returns whether more lines are needed.
    fn add(&mut self, line: Match, is_match: bool) -> bool {
        let text = &self.text[line];
        let number = if self.numbered {
            let (from, ends) = self.counted;
            // If a process writes to the file meanwhile, lines may seem to begin anywhere.
            let before = self.text.get(from..line.start()).unwrap_or_default();
            let ends = ends + memchr_iter(b'\n', before).count() as u64;
            self.counted = (line.start(), ends);
            self.block.first_line() + ends
        } else {
            0
        };
        let (before, begun) = (self.found.spans.len(), self.found.text.len());
        let BlockMatches { text: out, spans, .. } = &mut self.found;
        // In an inverted search, lines around the selected ones may match.
        let inverts = self.search.arguments.options.invert;
        let wants_spans = self.spans && is_match && !inverts;
        match &mut self.replacer {
            Some(replacer) if is_match != inverts => {
                self.copy.clear();
                self.copy.extend_from_slice(text);
                replacer.append(self.search, &self.copy, out, wants_spans.then_some(spans), self.room);
            }
            _ => {
                out.extend_from_slice(text);
                if wants_spans {
                    self.search.spans(&out[begun..], |start, end| spans.push((start as u32, end as u32)));
                }
            }
        }
        let spans = self.found.spans.len() - before;
        self.found.line_count += u64::from(is_match);
        self.found.match_count += spans as u64;
        self.found.lines.push(FoundLine {
            offset: self.block.offset + line.start() as u64,
            number,
            bytes: (self.found.text.len() - begun) as u32,
            spans: spans as u32,
            is_match,
        });
        !self.is_full()
    }

    /// Adds all lines that match, lines near them, and lines near the block's borders: a nearby match in another
    /// block is not known here.
    fn add_with_context(&mut self, before: usize, after: usize) {
        let text = self.text;
        // Lines before this place are added or not wanted.
        let mut done = 0;
        let mut wanted_after = after;
        let search = self.search;
        search.for_each_line(text, 0, |line| {
            done = self.add_lines_after(done, line.start(), wanted_after);
            let first = back(text, done, line.start(), before);
            self.add_lines_after(first, line.start(), usize::MAX);
            done = line.end();
            wanted_after = after;
            self.add(line, true)
        });
        done = self.add_lines_after(done, text.len(), wanted_after);
        let first = back(text, done, text.len(), before);
        self.add_lines_after(first, text.len(), usize::MAX);
    }

    /// Adds up to `limit` lines between two places, and returns the start of the next line.
    fn add_lines_after(&mut self, mut position: usize, end: usize, limit: usize) -> usize {
        for _ in 0..limit {
            if position >= end {
                break;
            }
            let line_end = memchr(b'\n', &self.text[position..end]).map_or(end, |at| position + at + 1);
            self.add(Match::new(position, line_end), false);
            position = line_end;
        }
        position
    }
}

/// Returns the start of the last `lines` lines before `end`, not before `start`.
fn back(text: &[u8], start: usize, end: usize, lines: usize) -> usize {
    let mut position = end;
    for _ in 0..lines {
        if position <= start {
            break;
        }
        position = memrchr(b'\n', &text[start..position - 1]).map_or(start, |at| start + at + 1);
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result does not depend on the pieces in which a block is scanned.
    #[test]
    fn lines_before_the_first_nul_byte_are_returned_and_later_matches_are_flagged() {
        let job = Context::new(inshore_store::Budget::new(64 << 20, 1), Default::default());
        let mut dice = 3u64;
        let mut below = |limit: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % limit
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for case in 0..200 {
            let mut text = Vec::new();
            while text.len() < [300, 70_000, 230_000][case % 3] {
                let long = [40, 3000][below(2)];
                text.extend(std::iter::repeat_n(b"ab "[below(3)], below(long)));
                text.extend([&b"fox\n"[..], b"\n", b"\n\n", b"of"][below(4)]);
            }
            let nul = [below(text.len()), below(200).min(text.len() - 1), text.len()][below(3)];
            if nul < text.len() {
                text[nul] = 0;
            }
            std::fs::write(&path, &text).unwrap();
            let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
            let starts = lines.iter().scan(0, |at, line| Some(std::mem::replace(at, *at + line.len())));
            let is_fox = |line: &&[u8]| line.windows(3).any(|part| part == b"fox");
            let places: Vec<usize> =
                starts.zip(&lines).filter(|(_, line)| is_fox(line)).map(|(at, _)| at).collect();
            let line = text[..nul].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            let from = if nul < EARLY_BYTES { 0 } else { line };
            let (before, behind): (Vec<usize>, Vec<usize>) = match nul < text.len() {
                true => places.iter().partition(|&&place| place < from),
                false => (places.clone(), Vec::new()),
            };
            let lines =
                |numbered, before| SearchOutput::Lines { numbered, spans: true, before, after: before };
            for wanted in [SearchOutput::LineCount, SearchOutput::Any, lines(false, 0), lines(true, 1)] {
                let search =
                    Search::new(&["fox"], &PatternOptions::default(), wanted, true, job.budget()).unwrap();
                let source = inshore_kernel::Source::file(&path);
                let mut found = Vec::new();
                let ran = inshore_kernel::run(&job, &search, [source].into_iter(), |event| {
                    found.extend(event.part.transpose()?);
                    Ok::<_, Error>(inshore_kernel::Next::Go)
                });
                ran.unwrap();
                let [found] = &found[..] else { panic!("{} blocks", found.len()) };
                // A single match before the NUL byte is enough.
                if wanted != SearchOutput::Any || found.line_count == 0 {
                    assert_eq!(found.nul, Some(nul as u64).filter(|&nul| nul < text.len() as u64), "{case}");
                }
                match wanted {
                    SearchOutput::LineCount => assert_eq!(found.line_count, places.len() as u64, "{case}"),
                    SearchOutput::Any => {
                        assert_eq!(found.line_count, u64::from(!before.is_empty()), "{case}");
                        let is_behind = before.is_empty() && !behind.is_empty();
                        assert_eq!(found.matches_behind_nul, is_behind, "{case}");
                    }
                    _ => {
                        let given = found.lines.iter().filter(|line| line.is_match);
                        let given: Vec<usize> = given.map(|line| line.offset as usize).collect();
                        assert_eq!(given, before, "{case}");
                        assert_eq!(found.matches_behind_nul, !behind.is_empty(), "{case}");
                        assert_eq!(
                            (found.line_count, found.match_count),
                            (before.len() as u64, before.len() as u64)
                        );
                    }
                }
            }
        }
    }

    /// Finding groups takes memory for all of them: a search from another machine must not take all memory.
    #[test]
    fn searches_from_another_machine_are_refused_when_their_groups_take_too_much_memory() {
        let sent = |pattern: String, replacement: String| {
            let wanted = SearchOutput::Lines { numbered: false, spans: false, before: 0, after: 0 };
            let budget = Budget::new(64 << 20, 1);
            let mut search =
                Search::new(&[pattern], &PatternOptions::default(), wanted, true, &budget).unwrap();
            search.arguments.replacement = Some(replacement);
            Search::of_arguments(&search.arguments())
        };
        assert!(sent("(a)(b)".to_string(), "$1$2".to_string()).is_ok());
        let refused = sent("(a)".repeat(10_000), "$1".to_string()).unwrap_err().to_string();
        assert!(refused.contains("size limit"), "{refused}");
        assert!(sent("(a)".repeat(10_000), "no groups".to_string()).is_ok());
        let refused = sent("a".to_string(), "$a".repeat(100_000)).unwrap_err().to_string();
        assert!(refused.contains("the replacement has 200000 bytes"), "{refused}");
    }

    /// Another machine may send any bytes.
    #[test]
    fn invalid_parts_are_refused_and_valid_ones_round_trip() {
        let line = |offset, bytes, spans| FoundLine { offset, number: 7, bytes, spans, is_match: spans > 0 };
        let found = BlockMatches {
            line_count: 2,
            match_count: 3,
            lines: vec![line(0, 6, 2), line(6, 0, 0), line(6, 5, 1)],
            spans: vec![(0, 2), (3, 6), (5, 5)],
            text: b"abcdefghijk".to_vec(),
            ..BlockMatches::default()
        };
        let mut good = Vec::new();
        Search::encode(&found, &mut good);
        assert_eq!(format!("{:?}", Search::decode(&good).unwrap()), format!("{found:?}"));
        let mut dice = 7u64;
        let mut below = |limit: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 11) as usize % limit
        };
        let mut understood = 0;
        for _ in 0..100_000 {
            let mut bytes = good.clone();
            for _ in 0..=below(3) {
                let place = below(bytes.len());
                match below(3) {
                    0 => bytes[place] ^= 1 << below(8),
                    1 => bytes[place] = [0, 1, 0x80, 0xff][below(4)],
                    _ => bytes.truncate(place.max(1)),
                }
            }
            if let Some(found) = Search::decode(&bytes) {
                understood += 1;
                let mut again = Vec::new();
                Search::encode(&found, &mut again);
                let is_nothing = again.is_empty();
                let decoded = format!("{:?}", Search::decode(&again).unwrap_or_default());
                assert!(is_nothing || decoded == format!("{found:?}"), "{bytes:?}");
            }
        }
        assert!(understood > 1000, "{understood}");
    }
}
