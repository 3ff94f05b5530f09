//! Cuts bytes into blocks of whole lines, for parallel parsing.
//!
//! One thread cuts the input into blocks and many threads parse them. The cutting thread searches for a line end only
//! at the end of a block. It also counts the line ends in the block (memchr, above 10 GB/s). Parsing therefore remains
//! the bottleneck. A byte order mark of UTF-8 at the beginning of the input is skipped.

use std::io::{ErrorKind, Read};

use memchr::{memchr, memchr_iter, memrchr};

use crate::{Bytes, Error, Result};

/// Cuts [`Bytes`] into blocks of whole lines.
pub struct LineBlocks {
    input: Bytes,
    block_bytes: usize,
    /// The beginning of a line that continues in the next block.
    carry: Vec<u8>,
    next_line: u64,
    ended: bool,
    /// True until the first bytes are read.
    is_new: bool,
}

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// A block of whole lines.
#[derive(Debug)]
pub struct LineBlock {
    /// The lines with their line ends. Only the last line of a file may lack its line end.
    pub bytes: Vec<u8>,
    /// The number of the first line of the block. Lines are counted from 1.
    pub first_line: u64,
}

impl LineBlocks {
    /// Makes blocks of at most `block_bytes` bytes (at least 1). A line that is longer than a block causes an error.
    pub fn new(input: Bytes, block_bytes: usize) -> LineBlocks {
        LineBlocks {
            input,
            block_bytes: block_bytes.max(1),
            carry: Vec::new(),
            next_line: 1,
            ended: false,
            is_new: true,
        }
    }

    /// Returns the next block. Returns `None` at the end of the input. The block is stored in `recycled`, which can be
    /// any vector, preferably the vector of an earlier block. A call copies at most one line. The block takes
    /// `block_bytes` bytes of memory. The beginning of a line that continues in the next block takes less than
    /// `block_bytes` bytes.
    ///
    /// # Errors
    /// - Returns [`Error::TooLarge`] if a line is longer than `block_bytes`. The error names the file and the line.
    /// - Returns the errors of [`Bytes::fill`] if the input cannot be read.
    pub fn next_block(&mut self, recycled: Vec<u8>) -> Result<Option<LineBlock>> {
        let mut bytes = recycled;
        if std::mem::take(&mut self.is_new) {
            self.pass_over_mark()?;
        }
        let filled = self.fill(&mut bytes)?;
        if filled == 0 {
            return Ok(None);
        }
        let whole = if self.ended {
            filled
        } else {
            memrchr(b'\n', &bytes[..filled]).map(|end| end + 1).ok_or_else(|| self.too_long())?
        };
        self.carry.extend_from_slice(&bytes[whole..filled]);
        bytes.truncate(whole);
        let first_line = self.next_line;
        self.next_line += memchr_iter(b'\n', &bytes).count() as u64;
        Ok(Some(LineBlock { bytes, first_line }))
    }

    /// Returns how many line ends the blocks that were returned so far contain.
    pub fn lines(&self) -> u64 {
        self.next_line - 1
    }

    /// Returns how many bytes of the file, before decompression, were read so far.
    pub fn position(&self) -> u64 {
        self.input.position()
    }

    /// Returns the name by which errors call the input. The name is the path, or "standard input".
    pub fn name(&self) -> &str {
        self.input.name()
    }

    /// Reads the first bytes of the input. Unless they are a byte order mark, they become the beginning of the first
    /// block.
    fn pass_over_mark(&mut self) -> Result<()> {
        let mut head = [0; BYTE_ORDER_MARK.len()];
        let filled = self.input.fill(&mut head[..BYTE_ORDER_MARK.len().min(self.block_bytes)])?;
        if head[..filled] != BYTE_ORDER_MARK {
            self.carry.extend_from_slice(&head[..filled]);
        }
        Ok(())
    }

    /// Fills `bytes` with the bytes in `carry`, followed by further input. Returns the number of bytes. This number is
    /// `block_bytes`, unless the input has ended.
    fn fill(&mut self, bytes: &mut Vec<u8>) -> Result<usize> {
        bytes.reserve_exact(self.block_bytes.saturating_sub(bytes.len()));
        bytes.resize(self.block_bytes, 0);
        let mut filled = self.carry.len();
        bytes[..filled].copy_from_slice(&self.carry);
        self.carry.clear();
        if !self.ended {
            filled += self.input.fill(&mut bytes[filled..])?;
            self.ended = filled < self.block_bytes;
        }
        // A line that exactly fills the block may be the last line. Another read then shows whether the line is
        // complete.
        if filled == self.block_bytes && !self.ended && bytes[filled - 1] != b'\n' {
            self.peek_end(bytes, filled)?;
        }
        Ok(filled)
    }

    fn peek_end(&mut self, bytes: &[u8], filled: usize) -> Result<()> {
        if memchr(b'\n', &bytes[..filled]).is_some() {
            return Ok(());
        }
        let mut byte = [0];
        match self.input.read_exact(&mut byte) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.ended = true;
                Ok(())
            }
            Err(error) => Err(Error::from_read(self.input.name(), error)),
            // The line has at least one more byte, which may be its line end.
            Ok(()) => Err(self.too_long()),
        }
    }

    fn too_long(&self) -> Error {
        Error::TooLarge {
            place: format!("{}:{}", self.input.name(), self.next_line),
            what: "a line",
            bytes: self.block_bytes as u64 + 1,
            limit: self.block_bytes as u64,
            enough: None,
        }
    }
}

impl LineBlock {
    /// Iterates over the lines with their numbers, without `\n` or `\r\n`.
    pub fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = &self.bytes[..];
        let mut number = self.first_line;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let line;
            (line, rest) = cut_line(rest);
            number += 1;
            Some((number - 1, line))
        })
    }
}

/// Splits `lines` into the first line (without its `\n` or `\r\n`) and the remaining lines.
#[inline]
pub fn cut_line(lines: &[u8]) -> (&[u8], &[u8]) {
    let (line, after) = match memchr(b'\n', lines) {
        Some(end) => (&lines[..end], &lines[end + 1..]),
        None => (lines, &lines[lines.len()..]),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), after)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use inshore_store::Budget;
    use proptest::prelude::*;

    use super::*;
    use crate::Input;

    fn blocks(text: &[u8], block_bytes: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.txt");
        fs::write(&path, text).unwrap();
        let input = Input::new(&path).open(&Budget::new(1 << 20, 1))?;
        let mut blocks = LineBlocks::new(input, block_bytes);
        let mut lines = Vec::new();
        let mut recycled = Vec::new();
        while let Some(block) = blocks.next_block(recycled)? {
            assert!(!block.bytes.is_empty() && block.bytes.len() <= block_bytes);
            lines.extend(block.lines().map(|(number, line)| (number, line.to_vec())));
            recycled = block.bytes;
        }
        assert_eq!(blocks.position(), text.len() as u64);
        assert!(blocks.next_block(Vec::new())?.is_none());
        Ok(lines)
    }

    /// Splits a text into numbered lines, by a naive method.
    fn naive(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        let strip = |line: &[u8]| line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        lines.into_iter().enumerate().map(|(index, line)| (index as u64 + 1, strip(line))).collect()
    }

    #[test]
    fn only_a_byte_order_mark_at_the_beginning_is_skipped() {
        for (text, expected) in [
            (&b"\xef\xbb\xbf1 2\n\xef\xbb\xbf3\n"[..], &[&b"1 2"[..], b"\xef\xbb\xbf3"][..]),
            (b"\xef\xbb\xbf", &[]),
            (b"\xef\xbb", &[b"\xef\xbb"]),
            (b"\xef\xbb\n", &[b"\xef\xbb"]),
        ] {
            for block_bytes in [7, 8, 100] {
                let found = blocks(text, block_bytes).unwrap();
                assert_eq!(found.iter().map(|(_, line)| &line[..]).collect::<Vec<_>>(), expected, "{text:?}");
            }
        }
    }

    fn longest(text: &[u8]) -> usize {
        text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::len).max().unwrap_or(0)
    }

    #[test]
    fn a_line_longer_than_a_block_is_refused_with_its_number_and_size() {
        let text = b"short\nlonger than ten\nshort\n";
        let error = blocks(text, 10).unwrap_err().to_string();
        assert!(error.contains("edges.txt:2: a line of 11 bytes exceeds the limit of 10 bytes"), "{error}");
        assert_eq!(blocks(text, 16).unwrap(), naive(text));
    }

    proptest! {
        #[test]
        fn blocks_of_any_size_give_the_lines_of_a_naive_split(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), any::<u8>()], 0..60),
            extra in 0usize..40,
        ) {
            let length = longest(&text);
            prop_assert_eq!(blocks(&text, length.max(1) + extra).unwrap(), naive(&text));
            if length > 1 {
                let refused = matches!(blocks(&text, length - 1), Err(Error::TooLarge { .. }));
                prop_assert!(refused);
            }
        }
    }
}
