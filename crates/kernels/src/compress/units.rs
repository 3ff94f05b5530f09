//! This module splits compressed input into pieces that are decompressed in parallel. A piece is a part of the input
//! that can be decompressed on its own.
//!
//! | format | a piece is | known by |
//! |---|---|---|
//! | gzip | a member with its size, as Inshore writes | the extra field of its header |
//! | zstd | a frame | the lengths of its blocks |
//! | lz4 | an independent block | its length |
//!
//! Some pieces are larger than the limit, and some input cannot be split (a gzip member of another program, or
//! dependent blocks of lz4). From the first such place on, one thread decompresses the rest of the input while reading
//! it. bzip2 files are split before any of their blocks, even within a byte: see [`super::streams`].

use std::{
    hash::Hasher,
    io::{self, BufReader, Cursor, Read},
};

use inshore_store::{Budget, Buffer, Context, Reservation};
use inshore_tables::{Compression, GzipMembers, Lz4Frames};
use twox_hash::XxHash32;

use super::{
    fill,
    format::{Format, LZ4_MAGIC, ZSTD_MAGIC},
    formats::{
        GZIP_HEAD_BYTES, GZIP_SIZE_FIELD, LARGEST_ZSTD_WINDOW, LZ4_PLAIN, SKIPPABLE_MAGIC,
        lz4_descriptor_check,
    },
};
use crate::{Error, Result};

/// The number of bytes that one read requests.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Reads compressed input.
pub(super) struct Units<R> {
    name: String,
    input: R,
    /// The bytes that were read from `input`. The first `taken` of these bytes were consumed.
    buffer: Vec<u8>,
    taken: usize,
    read: u64,
    ended: bool,
    format: Format,
    limit: usize,
    /// The properties of the current lz4 frame. The number is the largest size of a block in bytes. The flag is true if
    /// a checksum of the content follows the last block. The value is `None` outside of an lz4 frame.
    frame: Option<(usize, bool)>,
    /// True if all further input is decompressed as one stream while the input is read.
    is_whole: bool,
}

/// A piece of compressed input.
pub(super) struct CompressedUnit {
    kind: Kind,
    /// The size in bytes of the compressed piece and of the skippable frames before it.
    packed_bytes: u64,
}

enum Kind {
    Piece(Vec<u8>),
    /// A block of lz4, and the largest size of its content.
    Block(Vec<u8>, usize),
    /// The end of an lz4 frame, with the checksum of the content if there is one.
    End(Option<u32>),
}

/// A decompressed piece.
pub(super) struct DecompressedUnit {
    memory: Buffer,
    len: usize,
    pub packed_bytes: u64,
    /// True if the bytes are the content of an lz4 block. The checksum of an lz4 frame covers the content of its
    /// blocks.
    is_block: bool,
    end: Option<Option<u32>>,
}

/// Checks the content of lz4 frames that end with a checksum.
pub(super) struct ContentChecksum(XxHash32);

impl Default for ContentChecksum {
    fn default() -> Self {
        ContentChecksum(XxHash32::with_seed(0))
    }
}

impl ContentChecksum {
    pub fn saw(&mut self, unpacked: &DecompressedUnit, name: &str) -> Result<()> {
        if unpacked.is_block {
            self.0.write(unpacked.bytes());
        }
        if let Some(expected) = unpacked.end {
            let found = self.0.finish() as u32;
            *self = ContentChecksum::default();
            if expected.is_some_and(|expected| expected != found) {
                return Err(damaged(name, "the checksum of the content does not match"));
            }
        }
        Ok(())
    }
}

impl DecompressedUnit {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Returns the buffer, so that another piece can use it.
    pub fn into_memory(self) -> Buffer {
        self.memory
    }
}

pub(super) fn damaged(name: &str, what: impl Into<String>) -> Error {
    Error::Damaged { name: name.to_string(), what: what.into() }
}

pub(super) fn truncated(name: &str, format: Format) -> Error {
    damaged(name, format!("truncated: the {format} data ends in the middle"))
}

impl CompressedUnit {
    /// Decompresses the piece into `memory`, a buffer that is large enough for the largest piece.
    pub fn unpack(self, format: Format, name: &str, mut memory: Buffer) -> Result<DecompressedUnit> {
        let packed_bytes = self.packed_bytes;
        let fail = |what: String| damaged(name, format!("damaged {format} data: {what}"));
        let (len, is_block, end) = match self.kind {
            Kind::Piece(piece) => (format.unpack(&piece, &mut memory).map_err(fail)?, false, None),
            Kind::Block(block, most) => {
                (format.unpack(&block, &mut memory[..most]).map_err(fail)?, true, None)
            }
            Kind::End(checksum) => (0, false, Some(checksum)),
        };
        Ok(DecompressedUnit { memory, len, packed_bytes, is_block, end })
    }
}

impl<R: Read> Units<R> {
    /// Detects the format from the first bytes of `input`.
    pub fn open(name: &str, input: R) -> Result<Units<R>> {
        let mut units = Units {
            name: name.to_string(),
            input,
            buffer: Vec::new(),
            taken: 0,
            read: 0,
            ended: false,
            format: Format::Gzip,
            limit: 0,
            frame: None,
            is_whole: false,
        };
        let has_skipped = units.skip_frames()?;
        let head = units.peek(Compression::HEAD_BYTES)?;
        units.format = match (Format::of_head(head), Compression::of_head(head)) {
            (Some(format), _) => format,
            // A file that consists only of skippable frames is an empty zstd file.
            (None, _) if has_skipped && head.is_empty() => Format::Zstd,
            (None, other) => {
                let found = match other {
                    Some(other) => format!("a file of {other}"),
                    None if head.is_empty() => "an empty file".to_string(),
                    None => format!("a file that begins with {:02x?}", &head[..head.len().min(4)]),
                };
                return Err(damaged(&units.name, format!("expected gzip, bzip2, zstd or lz4, got {found}")));
            }
        };
        Ok(units)
    }

    /// Skips the skippable frames with which a zstd or lz4 file may begin. Returns true if there are any. A skippable
    /// frame may be longer than the buffer.
    fn skip_frames(&mut self) -> Result<bool> {
        let mut has_skipped = false;
        loop {
            let head = self.peek(8)?;
            let word = |at: usize| head.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
            let (magic, length) = (word(0), word(4));
            if magic.is_none_or(|magic| magic & !15 != SKIPPABLE_MAGIC) {
                return Ok(has_skipped);
            }
            (has_skipped, self.format) = (true, Format::Zstd);
            let Some(length) = length else { return Err(self.truncated()) };
            let mut left = 8 + u64::from(length);
            while left > 0 {
                let here = self.peek(READ_BYTES)?.len().min(left.try_into().unwrap_or(usize::MAX));
                if here == 0 {
                    return Err(self.truncated());
                }
                self.skip(here);
                left -= here as u64;
            }
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Sets the limit on the size of a piece, in bytes. The limit applies to the compressed and to the decompressed
    /// piece.
    pub fn limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Reads the beginning of the input, and returns an estimate of the decompressed size of a piece, in bytes. The
    /// estimate is large enough for the first piece and for pieces of similar size.
    pub fn piece_bytes(&mut self) -> Result<usize> {
        let bytes = match self.format {
            Format::Zstd => {
                let size = zstd::zstd_safe::get_frame_content_size(self.peek(18)?).ok().flatten();
                size.map_or(4 << 20, |size| size.clamp(64 << 10, 1 << LARGEST_ZSTD_WINDOW) as usize)
            }
            Format::Lz4 => 4 << 20,
            Format::Gzip | Format::Bzip2 => 1 << 20,
        };
        Ok(bytes + bytes / 64)
    }

    /// Returns how many bytes were read from the input so far.
    pub fn bytes(&self) -> u64 {
        self.read
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the next `bytes` bytes of the input, or fewer at its end. The bytes are not consumed.
    pub fn peek(&mut self, bytes: usize) -> Result<&[u8]> {
        if self.buffer.len() - self.taken < bytes && !self.ended {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            while self.buffer.len() < bytes && !self.ended {
                let before = self.buffer.len();
                self.buffer.resize(before + READ_BYTES, 0);
                let filled = fill(&mut self.input, &mut self.buffer[before..], &self.name)?;
                self.buffer.truncate(before + filled);
                self.read += filled as u64;
                self.ended = filled < READ_BYTES;
            }
        }
        let end = self.buffer.len().min(self.taken + bytes);
        Ok(&self.buffer[self.taken..end])
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let piece = self.buffer[self.taken..self.taken + bytes].to_vec();
        self.skip(bytes);
        piece
    }

    /// Consumes the first `bytes` of the bytes that [`Units::peek`] returned.
    pub fn skip(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    fn truncated(&self) -> Error {
        truncated(&self.name, self.format)
    }

    /// Returns the next piece. Returns `None` at the end of the input, or if the rest of the input cannot be split.
    pub fn next_unit(&mut self) -> Result<Option<CompressedUnit>> {
        if self.is_whole {
            return Ok(None);
        }
        let before = self.taken as u64;
        if self.peek(1)?.is_empty() {
            return if self.frame.is_some() { Err(self.truncated()) } else { Ok(None) };
        }
        let passed = (self.taken as u64).saturating_sub(before);
        let kind = match self.format {
            Format::Gzip => self.gzip_member()?.map(Kind::Piece),
            Format::Bzip2 => unreachable!("bzip2 is cut at its blocks"),
            Format::Zstd => self.zstd_frame()?.map(Kind::Piece),
            Format::Lz4 => self.lz4_block()?,
        };
        let Some(kind) = kind else {
            self.is_whole = !self.peek(1)?.is_empty();
            return Ok(None);
        };
        let packed_bytes = passed
            + match &kind {
                Kind::Piece(piece) | Kind::Block(piece, _) => piece.len() as u64,
                Kind::End(_) => 8,
            };
        Ok(Some(CompressedUnit { kind, packed_bytes }))
    }

    fn gzip_member(&mut self) -> Result<Option<Vec<u8>>> {
        let limit = self.limit;
        let head = self.peek(GZIP_HEAD_BYTES)?;
        if head.len() < GZIP_HEAD_BYTES || head[..4] != [0x1f, 0x8b, 8, 4] || head[12..16] != GZIP_SIZE_FIELD
        {
            return Ok(None);
        }
        let size = u32::from_le_bytes(head[16..20].try_into().expect("four bytes")) as usize;
        if size < GZIP_HEAD_BYTES + 8 || size > limit {
            return Ok(None);
        }
        let piece = self.peek(size)?;
        if piece.len() < size {
            return Err(self.truncated());
        }
        let bytes = u32::from_le_bytes(piece[size - 4..].try_into().expect("four bytes")) as usize;
        Ok((bytes <= limit).then(|| self.take(size)))
    }

    fn zstd_frame(&mut self) -> Result<Option<Vec<u8>>> {
        let limit = self.limit;
        loop {
            let head = self.peek(18)?;
            if head.len() < 8 {
                return if head.is_empty() { Ok(None) } else { Err(self.truncated()) };
            }
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
            // A skippable frame has one of 16 magic numbers, which differ in the lowest four bits.
            if word(0) & !15 == SKIPPABLE_MAGIC {
                let size = 8 + word(4) as usize;
                if size > limit {
                    return Ok(None);
                }
                if self.peek(size)?.len() < size {
                    return Err(self.truncated());
                }
                self.taken += size;
                continue;
            }
            if word(0) != ZSTD_MAGIC {
                let found = head[..4].to_vec();
                return Err(damaged(&self.name, format!("expected another zstd frame, got {found:02x?}")));
            }
            let descriptor = head[4];
            let (is_single, has_checksum) = (descriptor & 0x20 != 0, descriptor & 4 != 0);
            let dictionary = [0, 1, 2, 4][(descriptor & 3) as usize];
            let size_bytes = match descriptor >> 6 {
                0 => usize::from(is_single),
                1 => 2,
                2 => 4,
                _ => 8,
            };
            let mut at = 5 + usize::from(!is_single) + dictionary + size_bytes;
            loop {
                let Some(header) = self.peek(at + 3)?.get(at..at + 3) else { return Err(self.truncated()) };
                let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
                let is_run = header >> 1 & 3 == 1;
                at += 3 + if is_run { 1 } else { (header >> 3) as usize };
                if at > limit {
                    return Ok(None);
                }
                if header & 1 == 1 {
                    break;
                }
            }
            at += if has_checksum { 4 } else { 0 };
            let frame = self.peek(at)?;
            if frame.len() < at {
                return Err(self.truncated());
            }
            let size = zstd::zstd_safe::get_frame_content_size(frame).ok().flatten();
            return Ok(size.is_some_and(|size| size <= limit as u64).then(|| self.take(at)));
        }
    }

    fn lz4_block(&mut self) -> Result<Option<Kind>> {
        let Some((most, has_checksum)) = self.frame else {
            let head = self.peek(15)?.to_vec();
            let Some(&[flags, sizes]) = head.get(4..6) else { return Err(self.truncated()) };
            let most = [64 << 10, 256 << 10, 1 << 20, 4 << 20].get((sizes >> 4 & 7).wrapping_sub(4) as usize);
            // The frame has version 1, independent blocks without checksums, and no dictionary.
            let is_plain = flags & 0b1111_0001 == 0b0110_0000;
            let length = 2 + if flags & 8 != 0 { 8 } else { 0 };
            let (Some(&most), true, true) =
                (most.filter(|&&most| most <= self.limit), is_plain, head[..4] == LZ4_MAGIC)
            else {
                return Ok(None);
            };
            let Some(&check) = head.get(4 + length) else { return Err(self.truncated()) };
            if check != lz4_descriptor_check(&head[4..4 + length]) {
                return Err(damaged(
                    &self.name,
                    "damaged lz4 data: the checksum of a frame's header does not match",
                ));
            }
            self.taken += 4 + length + 1;
            self.frame = Some((most, flags & 4 != 0));
            return self.lz4_block();
        };
        let Some(length) = self.peek(4)?.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)) else {
            return Err(self.truncated());
        };
        if length == 0 {
            self.frame = None;
            self.taken += 4;
            if !has_checksum {
                return Ok(Some(Kind::End(None)));
            }
            let Some(checksum) = self.peek(4)?.first_chunk::<4>().map(|check| u32::from_le_bytes(*check))
            else {
                return Err(self.truncated());
            };
            self.taken += 4;
            return Ok(Some(Kind::End(Some(checksum))));
        }
        let size = 4 + (length & !LZ4_PLAIN) as usize;
        if size > 4 + most {
            return Err(damaged(&self.name, "damaged lz4 data: a block is larger than its frame allows"));
        }
        if self.peek(size)?.len() < size {
            return Err(self.truncated());
        }
        Ok(Some(Kind::Block(self.take(size), most)))
    }

    /// Returns a reader that decompresses the rest of the input, which could not be split.
    pub fn rest(&mut self, job: &Context) -> Result<Option<TailReader<'_>>> {
        if !self.is_whole {
            return Ok(None);
        }
        let read_before = Cursor::new(self.buffer.split_off(self.taken));
        let counted = CountingReader { inner: &mut self.input, read: &mut self.read };
        let all = BufReader::with_capacity(READ_BYTES, read_before.chain(counted));
        let (decoder, memory): (Box<dyn Read>, Option<Reservation>) = match self.format {
            Format::Gzip => (Box::new(GzipMembers::new(all)), None),
            Format::Bzip2 => unreachable!("bzip2 is cut at its blocks"),
            Format::Zstd => {
                let (window, memory) = zstd_window(job.budget())?;
                let mut decoder = zstd::stream::read::Decoder::with_buffer(all).map_err(Error::Write)?;
                decoder.window_log_max(window).map_err(Error::Write)?;
                (Box::new(decoder), Some(memory))
            }
            Format::Lz4 => (Box::new(Lz4Frames::new(all)), None),
        };
        Ok(Some(TailReader { decoder, _memory: memory }))
    }
}

/// Returns the base-2 logarithm of the largest zstd window that is accepted, and reserves the memory for this window.
fn zstd_window(budget: &Budget) -> Result<(u32, Reservation)> {
    let free = budget.free_bytes() / 2;
    let log = free.max(1 << 10).ilog2().clamp(10, 31);
    Ok((log, budget.reserve((1u64 << log).min(free), "the window of zstd")?))
}

struct CountingReader<'a, R> {
    inner: &'a mut R,
    read: &'a mut u64,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        *self.read += read as u64;
        Ok(read)
    }
}

/// A reader that decompresses a stream while the stream is read.
pub(super) struct TailReader<'a> {
    decoder: Box<dyn Read + 'a>,
    _memory: Option<Reservation>,
}

impl Read for TailReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(out)
    }
}
