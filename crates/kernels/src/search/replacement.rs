//! Replaces matches in lines.

use grep_matcher::{Captures, Match, Matcher};
use grep_regex::{RegexCaptures, RegexMatcher};
use memchr::memchr_iter;

use super::{Arguments, Search};
use crate::{Error, Result};

/// The largest length of a replacement, in bytes.
const REPLACEMENT_BYTES_MAX: usize = 64 << 10;
/// The limit on the memory that each thread uses for finding groups.
const GROUPS_BYTES_MAX: usize = 64 << 20;

impl Search {
    /// Returns the search with a replacement for matches. In `replacement`, `$1` and `$name` stand for the groups of
    /// the pattern, `$0` for the whole match, and `$$` for a dollar sign. If a letter or digit follows the number of a
    /// group, the number must be in braces: `${1}`.
    ///
    /// # Errors
    /// Returns [`Error::BadPattern`] if the pattern has so many groups that finding them takes too much memory, or if
    /// the replacement is longer than 64 KiB.
    pub fn replacing(self, replacement: impl Into<String>) -> Result<Search> {
        self.replacing_within(replacement.into(), GROUPS_BYTES_MAX)
    }

    /// Does the same as [`Search::replacing`] with a limit on memory. For each thread, the regex library has a table of
    /// all states and groups. `limit` is the largest size of this table, in bytes.
    pub(super) fn replacing_within(self, replacement: String, limit: usize) -> Result<Search> {
        if replacement.len() > REPLACEMENT_BYTES_MAX {
            let what =
                format!("the replacement has {} bytes, more than the limit of 64 KiB", replacement.len());
            return Err(Error::BadPattern { what });
        }
        let groups = if replacement.contains('$') { self.matcher.capture_count().max(1) } else { 1 };
        let Search { matcher, arguments, memory, .. } = self;
        // The old matcher is dropped first, since the reserved memory suffices for one matcher only.
        drop(matcher);
        Search::build(Arguments { replacement: Some(replacement), ..arguments }, memory, limit / groups)
    }
}

/// Writes lines with replaced matches.
pub(super) struct Replacer<'a> {
    replacement: &'a [u8],
    /// An upper bound on the number of groups that the replacement names.
    groups: usize,
    captures: RegexCaptures,
    pub is_full: bool,
}

impl<'a> Replacer<'a> {
    pub fn new(matcher: &RegexMatcher, replacement: &'a str) -> Replacer<'a> {
        let (replacement, groups) =
            (replacement.as_bytes(), memchr_iter(b'$', replacement.as_bytes()).count());
        let captures = matcher.new_captures().expect("this matcher never fails");
        Replacer { replacement, groups, captures, is_full: false }
    }

    /// Appends a line to `out`, and the positions of the replacements to `spans`. `out` may grow to `room` bytes.
    pub fn append(
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
            // The length is checked before the replacement is written, since a replacement may name a group any number
            // of times.
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
