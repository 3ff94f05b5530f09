//! Matchers for patterns whose matches may cross line ends.

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use inshore_store::Budget;

use super::{PatternOptions, matcher_builder, memory::PatternMemory};
use crate::{Error, Result};

/// Holds a matcher and the memory reserved for the matcher.
#[derive(Debug)]
pub struct MultilineMatcher {
    /// Finds matches.
    pub matcher: RegexMatcher,
    _memory: PatternMemory,
}

/// Makes a matcher for `patterns` whose matches may cross line ends. If `dot_is_all` is true, a dot also matches a line
/// end. The memory is reserved in `budget`. Returns `None` if no match can contain a line end or depend on one (as `^`
/// and `$` do). In this case, a [`Search`](super::Search) finds the same matches.
///
/// # Errors
/// Returns the errors of [`Search::new`](super::Search::new).
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
    // With `crlf`, carriage returns and line feeds are both line ends. Otherwise only line feeds are line ends.
    let ends: &[u8] = if options.crlf { b"\r\n" } else { b"\n" };
    let never = matcher.non_matching_bytes().is_some_and(|bytes| ends.iter().all(|&end| bytes.contains(end)));
    Ok((!never).then_some(MultilineMatcher { matcher, _memory: memory }))
}
