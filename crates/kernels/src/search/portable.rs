//! Runs a search as a task on a node. The client sends the patterns to the node, and the node returns the matching
//! lines.

use inshore_kernel::Portable;
use inshore_store::Budget;
use serde::Deserialize;
use serde_json::Value;

use super::{Arguments, BlockMatches, FoundLine, Search, SearchOutput, memory::PatternMemory};
use crate::{Error, Result};

/// The limit, in bytes, on the automata of a search that another machine sent. One limit of this size is for the
/// automata that the threads share, and one for the caches of each thread.
const SENT_BYTES_MAX: usize = 10 << 20;
/// The limit, in bytes, on the memory for the patterns of a search that another machine sent, if no budget is known.
const SENT_MEMORY_BYTES_MAX: u64 = 64 << 20;

const IS_MATCH: u32 = 1 << 31;

impl Search {
    /// Makes the search that [`Portable::arguments`] describes. The limits for searches from other machines apply.
    fn from_arguments(arguments: &Value, budget: &Budget) -> Result<Search> {
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
}

/// Encodes the result of a block. Numbers are in little endian, and the fields have this order:
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
        Search::from_arguments(arguments, &Budget::new(SENT_MEMORY_BYTES_MAX, 1))
    }

    fn within(arguments: &Value, budget: &Budget) -> Result<Self> {
        Search::from_arguments(arguments, budget)
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
        // The counts are checked against the remaining bytes, so that an invalid count cannot make this machine
        // allocate much memory.
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
            // The spans of a line must be in ascending order, and must lie within the line.
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
/// Removes the first `N` bytes from `bytes` and returns them.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PatternOptions;

    /// Finding the groups of a pattern takes memory in proportion to the number of groups. A search from another
    /// machine must not use up the memory of this machine.
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
