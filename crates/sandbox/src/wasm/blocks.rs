//! This code runs in the process of a WebAssembly module, and reads blocks of a file directly into the module's
//! memory.
//!
//! ```text
//!   file:     |<---- stride ---->|<---- stride ---->|<---- stride ---->|
//!   lines:    aaaa bbb ccccccc ddddd eee fffffffff ggggggg hhh iiiiiii
//!   block 0:  aaaa bbb ccccccc ddddd
//!   block 1:                         eee fffffffff ggggggg              (the line that begins where a block
//!   block 2:                                               hhh iiiiiii   does is of the block before it)
//! ```

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use memchr::memchr;

use super::FileBlocks;

/// The number of bytes after a block that are read together with the block. The block's last line usually ends
/// within these bytes.
const MARGIN_BYTES: usize = 4096;
/// The number of bytes that are read after a block if the block's last line does not end within the margin.
const LINE_BYTES: usize = 64 << 10;

/// The result of reading a block.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockRead {
    /// The lines of the block lie in this range.
    Lines(Range<usize>),
    /// No line begins in the block.
    Nothing,
    /// The block can't be read in this process: the last line is too long, the file became shorter, or the system
    /// returned an error.
    NotHere,
}

impl FileBlocks {
    /// Returns the number of bytes of memory that reading a block needs.
    pub fn room_bytes(&self) -> u64 {
        self.stride + LINE_BYTES as u64
    }

    /// Reads a block into `room`.
    pub fn read(&self, file: &File, block: u64, room: &mut [u8]) -> BlockRead {
        self.try_read(file, block, room).unwrap_or(BlockRead::NotHere)
    }

    fn try_read(&self, file: &File, block: u64, room: &mut [u8]) -> io::Result<BlockRead> {
        let start = self.start + block * self.stride;
        let there = self.file_bytes.saturating_sub(start).min(room.len() as u64) as usize;
        let stride = (self.stride as usize).min(there);
        let mut filled = 0;
        for length in [there.min(stride + MARGIN_BYTES), there] {
            file.read_exact_at(&mut room[filled..length], start + filled as u64)?;
            filled = length;
            let is_all = start + filled as u64 == self.file_bytes;
            if let Some(found) = cut(&room[..filled], stride, start == 0, is_all) {
                return Ok(found);
            }
        }
        Ok(BlockRead::NotHere)
    }
}

/// Finds the range of a block's lines. Returns `None` if more bytes have to be read.
fn cut(bytes: &[u8], stride: usize, is_first: bool, is_all: bool) -> Option<BlockRead> {
    let first = match memchr(b'\n', &bytes[..stride]) {
        _ if is_first => 0,
        Some(end) => end + 1,
        None => return Some(BlockRead::Nothing),
    };
    let end = match memchr(b'\n', &bytes[stride..]) {
        _ if is_all && bytes.len() == stride => stride,
        Some(end) => stride + end + 1,
        None if is_all => bytes.len(),
        None => return None,
    };
    Some(if first < end { BlockRead::Lines(first..end) } else { BlockRead::Nothing })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Makes a text with lines of these lengths; with `ends`, the last line ends with a newline.
    fn text(lengths: &[usize], ends: bool) -> Vec<u8> {
        let mut text = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            text.extend(std::iter::repeat_n(b'a' + (number % 26) as u8, *length));
            text.push(b'\n');
        }
        if !ends {
            text.pop();
        }
        text
    }

    fn blocks(text: &[u8], stride: u64) -> (File, FileBlocks) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let file_bytes = text.len() as u64;
        let count = file_bytes.div_ceil(stride);
        (file, FileBlocks { stride, count, file_bytes, ..FileBlocks::default() })
    }

    #[test]
    fn blocks_hold_each_line_once_wherever_borders_fall() {
        let lengths: [&[usize]; 7] = [
            &[3, 0, 0, 12, 1, 7, 7, 7, 15, 0, 2],
            &[7, 7, 7, 7],
            &[15],
            &[100, 3, 100],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[5000, 3, 20_000, 1],
            &[],
        ];
        for lengths in lengths {
            for ends in [true, false] {
                let text = text(lengths, ends);
                for stride in [1, 2, 3, 7, 8, 9, 16, 1000, 4096, 40_000] {
                    let (file, blocks) = blocks(&text, stride);
                    let mut room = vec![0xff; blocks.room_bytes() as usize];
                    let mut all = Vec::new();
                    for block in 0..blocks.count {
                        match blocks.read(&file, block, &mut room) {
                            BlockRead::Lines(range) => {
                                assert!(all.is_empty() || all.ends_with(b"\n"), "{lengths:?} {stride}");
                                all.extend_from_slice(&room[range]);
                            }
                            BlockRead::Nothing => {}
                            BlockRead::NotHere => panic!("{lengths:?} {stride}: block {block}"),
                        }
                    }
                    assert!(all == text, "{lengths:?} {ends} {stride}");
                }
            }
        }
    }

    #[test]
    fn long_lines_and_shortened_files_are_not_read() {
        let (file, blocks) = blocks(&text(&[10, LINE_BYTES + 4096, 10], true), 4096);
        let mut room = vec![0; blocks.room_bytes() as usize];
        assert_eq!(blocks.read(&file, 0, &mut room), BlockRead::NotHere);
        assert_eq!(blocks.read(&file, 1, &mut room), BlockRead::Nothing);
        assert_eq!(blocks.read(&file, blocks.count - 1, &mut room), BlockRead::Lines(12..23));
        file.set_len(8192).unwrap();
        assert_eq!(blocks.read(&file, 1, &mut room), BlockRead::NotHere);
        let for_writing = File::options().write(true).open("/dev/null").unwrap();
        assert_eq!(blocks.read(&for_writing, 0, &mut room), BlockRead::NotHere);
    }
}
