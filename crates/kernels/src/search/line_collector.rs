//! Collects the results of a block. The results are lines with their numbers, matches and context, or counts.

use grep_matcher::Match;
use inshore_kernel::Block;
use memchr::{memchr, memchr_iter, memrchr};

use super::{BlockMatches, FoundLine, Search, SearchOutput, replacement::Replacer};

/// Collects the lines of a block that belong to the result.
pub(super) struct LineCollector<'a> {
    pub search: &'a Search,
    pub block: &'a Block<'a>,
    pub text: &'a [u8],
    pub found: BlockMatches,
    pub numbered: bool,
    pub spans: bool,
    /// Holds an offset in the block, and how many line ends precede this offset.
    pub counted: (usize, u64),
    pub replacer: Option<Replacer<'a>>,
    /// The limit, in bytes, on the total size of the lines after matches were replaced.
    pub room: usize,
    /// Holds a copy of a line. If the block is a memory map, other processes can change the line, but not the copy.
    pub copy: Vec<u8>,
}

/// Records the sizes of the results collected so far, so that later results can be removed.
#[derive(Clone, Copy)]
pub(super) struct ResultSizes {
    sizes: (usize, usize, usize),
    counts: (u64, u64),
}

impl LineCollector<'_> {
    /// Tells whether replacements made the lines too long.
    pub fn is_full(&self) -> bool {
        self.replacer.as_ref().is_some_and(|replacer| replacer.is_full)
    }

    /// Returns the sizes of all results. These are the lines, the text, the spans and the counts.
    pub fn mark(&self) -> ResultSizes {
        let BlockMatches { lines, text, spans, line_count, match_count, .. } = &self.found;
        ResultSizes { sizes: (lines.len(), text.len(), spans.len()), counts: (*line_count, *match_count) }
    }

    /// Removes results that were added after the mark.
    pub fn rewind(&mut self, mark: ResultSizes) {
        let BlockMatches { lines, text, spans, line_count, match_count, .. } = &mut self.found;
        lines.truncate(mark.sizes.0);
        text.truncate(mark.sizes.1);
        spans.truncate(mark.sizes.2);
        (*line_count, *match_count) = mark.counts;
        // Later line ends are counted again from the start of the block.
        self.counted = (0, 0);
        if let Some(replacer) = &mut self.replacer {
            replacer.is_full = false;
        }
    }

    /// Adds the wanted results of all selected lines from the line at `start` on. Returns false if the result needs no
    /// more lines.
    pub fn add_from(&mut self, start: usize, wanted: SearchOutput) -> bool {
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
                // The line is copied, so that two passes over the line read equal bytes even if another process writes
                // to the file.
                self.copy.extend_from_slice(&text[line]);
                search.spans(&self.copy, |_, _| self.found.match_count += 1);
                true
            }),
            SearchOutput::Lines { before: 0, after: 0, .. } => {
                search.for_each_line(text, start, |line| self.add(line, true));
            }
            // A search with context has a single piece, the complete block, whose lines are added in one call.
            SearchOutput::Lines { before, after, .. } => self.add_with_context(before, after),
        }
        goes_on
    }

    /// Adds a line. Returns false if the result needs no more lines.
    fn add(&mut self, line: Match, is_match: bool) -> bool {
        let text = &self.text[line];
        let number = if self.numbered {
            let (from, ends) = self.counted;
            // If another process writes to the file during the search, the start of this line may be before the counted
            // offset.
            let before = self.text.get(from..line.start()).unwrap_or_default();
            let ends = ends + memchr_iter(b'\n', before).count() as u64;
            self.counted = (line.start(), ends);
            self.block.first_line() + ends
        } else {
            0
        };
        let (before, begun) = (self.found.spans.len(), self.found.text.len());
        let BlockMatches { text: out, spans, .. } = &mut self.found;
        // In an inverted search, the context lines around the selected lines may match the pattern.
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

    /// Adds all matching lines and their context lines. Also adds the lines near the block's borders, since they may be
    /// context of a match in an adjacent block.
    fn add_with_context(&mut self, before: usize, after: usize) {
        let text = self.text;
        // All wanted lines before this offset have been added.
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

    /// Adds up to `limit` lines from `position` on, but none after `end`. Returns the start of the next line.
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

/// Returns the offset at which the last `lines` lines before `end` begin. The result is not less than `start`.
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
