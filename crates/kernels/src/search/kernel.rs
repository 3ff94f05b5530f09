//! Searches a block for matching lines. The block is divided into pieces of about 64 KiB, which are searched one after
//! the other. A search for lines ends at the first NUL byte.

use inshore_kernel::{Block, Border, Kernel};
use inshore_store::Context;
use memchr::{memchr, memrchr};

use super::{
    Arguments, BlockMatches, FoundLine, Search, SearchOutput, line_collector::LineCollector,
    replacement::Replacer,
};
use crate::{Error, Result};

/// If the first NUL byte is among this number of bytes at the start of a source, the complete source is binary. After a
/// later NUL byte, only the rest of the source is binary, as in ripgrep.
const EARLY_BYTES: usize = 64 << 10;

/// The approximate size of a piece of a block, in bytes. A piece is searched first, and then scanned for a NUL byte
/// while its bytes are in the core's cache. If the scan came first, it would wait for memory, since it computes little
/// for each byte. The first piece of a source has [`EARLY_BYTES`] bytes, since these bytes determine whether the
/// complete source is binary.
const PIECE_BYTES: usize = 64 << 10;

impl Kernel for Search {
    type Error = Error;
    /// The largest total size, in bytes, of the lines that are found in a block. The limit applies only if matches are
    /// replaced, and to the lines after the replacement.
    type Worker = usize;
    type Part = BlockMatches;

    fn border(&self) -> Border {
        Border::Line { numbered: matches!(self.arguments.wanted, SearchOutput::Lines { numbered: true, .. }) }
    }

    fn worker(&self, job: &Context) -> Result<usize> {
        let share = job.budget().memory_bytes() / job.budget().threads() as u64 / 4;
        Ok(share.min(u32::MAX.into()) as usize)
    }

    /// Blocks may be memory maps, whose bytes other processes can change during the search. This does no harm, since
    /// the matcher relies only on the number of bytes.
    fn takes_windows(&self) -> bool {
        true
    }

    fn block(&self, room: &mut usize, block: &Block<'_>) -> Result<BlockMatches> {
        let Arguments { wanted, detect_binary, replacement, .. } = &self.arguments;
        let (numbered, spans, before, after) = match *wanted {
            SearchOutput::Lines { numbered, spans, before, after } => (numbered, spans, before, after),
            _ => (false, false, 0, 0),
        };
        let mut lines = LineCollector {
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
        // If context is wanted, lines near the borders of a block are returned even if they do not match. A search for
        // the literal would skip these lines, so it is not used.
        let mut needle = self.needle.as_ref().filter(|_| before == 0 && after == 0);
        while start < text.len() {
            if let Some(looked_for) = needle {
                let end = start + looked_for.free_bytes(&text[start..]);
                if end == text.len() {
                    break;
                }
                // If the literal is frequent, the separate search for the literal ends, since it would scan many bytes
                // that the matcher scans again.
                needle = needle.filter(|_| end - start >= PIECE_BYTES);
                start = memrchr(b'\n', &text[start..end]).map_or(start, |line| start + line + 1);
            }
            // The size of a piece is small enough that its bytes are still in the core's cache during the scan for a
            // NUL byte.
            let bytes = if block.is_first() && start == 0 { EARLY_BYTES } else { PIECE_BYTES };
            let is_one = before > 0 || after > 0 || text.len() - start <= bytes;
            let line_end =
                |from: usize| memchr(b'\n', &text[from..]).map_or(text.len(), |end| from + end + 1);
            let mut end = if is_one { text.len() } else { line_end(start + bytes) };
            let mark = lines.mark();
            lines.text = &text[..end];
            // With [`SearchOutput::Any`], `is_enough` is true after the first match. The scan below may show that this
            // match is after a NUL byte.
            let is_enough = !lines.add_from(start, *wanted);
            let nul = detect_binary.then(|| memchr(0, &text[start..end])).flatten().map(|nul| start + nul);
            if let Some(nul) = nul {
                lines.found.nul.get_or_insert(block.offset + nul as u64);
                if let SearchOutput::Lines { .. } | SearchOutput::Any = wanted {
                    let is_early = block.is_first() && nul < EARLY_BYTES;
                    let line = memrchr(b'\n', &text[..nul]).filter(|_| !is_early).map_or(0, |end| end + 1);
                    // Lines before the NUL byte are returned. For the lines after the NUL byte, the result only states
                    // whether one of them matches.
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

    /// Returns true if the search detects NUL bytes. After a NUL byte, only the existence of a match matters.
    fn zeros_end_lines(&self) -> bool {
        self.arguments.detect_binary
    }

    fn part_bytes(&self, found: &BlockMatches) -> u64 {
        let lines = found.lines.capacity() * size_of::<FoundLine>() + found.spans.capacity() * 8;
        (found.text.capacity() + lines) as u64
    }
}

#[cfg(test)]
mod tests {
    use inshore_kernel::{Next, Source, run};
    use inshore_store::Budget;

    use super::*;
    use crate::PatternOptions;

    /// Checks that the sizes of pieces do not affect the result of a block.
    #[test]
    fn lines_before_the_first_nul_byte_are_returned_and_later_matches_are_flagged() {
        let job = Context::new(Budget::new(64 << 20, 1), Default::default());
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
                let source = Source::file(&path);
                let mut found = Vec::new();
                let ran = run(&job, &search, [source].into_iter(), |event| {
                    found.extend(event.part.transpose()?);
                    Ok::<_, Error>(Next::Go)
                });
                ran.unwrap();
                let [found] = &found[..] else { panic!("{} blocks", found.len()) };
                // With `Any`, the search ends at a match before the NUL byte, and need not find the NUL byte.
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
}
