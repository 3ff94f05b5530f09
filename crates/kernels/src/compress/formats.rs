//! This module compresses a block of input into a piece, and decompresses pieces. A piece is a part of a compressed
//! file that can be decompressed on its own: a gzip member, a bzip2 stream, a zstd frame or an lz4 block.

use std::{hash::Hasher, io::Write};

use libdeflater::{CompressionLvl, Compressor, Decompressor};
use twox_hash::XxHash32;

use super::format::{Format, LZ4_MAGIC};
use crate::{Error, Result};

/// The first bytes of an extra field in the header of a gzip member. The field holds the size of the member, so that
/// members can be decompressed in parallel. It consists of two letters, the length of the rest (four), and the size of
/// the member in bytes. Other programs skip the field, as RFC 1952 requires.
pub(super) const GZIP_SIZE_FIELD: [u8; 4] = [b'I', b'S', 4, 0];
/// The header of the gzip members that Inshore writes. The bytes are the magic number, the method (deflate), the flag
/// for an extra field, no modification time, no compression hint, no operating system, and the length of the extra
/// field.
const GZIP_HEAD: [u8; 12] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 8, 0];
/// The size of the header, including the extra field, in bytes.
pub(super) const GZIP_HEAD_BYTES: usize = GZIP_HEAD.len() + 8;
const GZIP_TAIL_BYTES: usize = 8;
/// The first of the 16 magic numbers with which a skippable frame may begin. The magic numbers are the same for zstd
/// and lz4.
pub(super) const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// The frame descriptor of the lz4 frames that Inshore writes. It states version 1, independent blocks of up to 4 MiB,
/// and a checksum of the content.
const LZ4_DESCRIPTOR: [u8; 2] = [0b0110_0100, 0x70];
/// The base-2 logarithm of the largest zstd window that Inshore writes. The largest zstd piece has the size of this
/// window.
pub(super) const LARGEST_ZSTD_WINDOW: u32 = 25;
/// The bit in an lz4 block's length field that marks the block as uncompressed.
pub(super) const LZ4_PLAIN: u32 = 1 << 31;

/// Returns the base-2 logarithm of the size of the zstd window. Returns `None` for levels that keep zstd's own window.
/// At the other levels, the window has the size of a piece: 16 MiB if zstd's own window has 4 MiB, and 32 MiB if zstd's
/// own window is larger.
fn zstd_window(level: u32) -> Option<u32> {
    match level {
        0..=8 => None,
        9..=16 => Some(24),
        _ => Some(LARGEST_ZSTD_WINDOW),
    }
}

impl Format {
    pub(super) fn checked_level(self, level: Option<u32>) -> Result<u32> {
        let (levels, habit) = self.levels();
        match level {
            None => Ok(habit),
            Some(level) if levels.contains(&level) => Ok(level),
            Some(level) => Err(Error::BadLevel { format: self, level, levels }),
        }
    }

    /// Returns how many bytes of input are compressed into one piece.
    ///
    /// Pieces of zstd are independent, so a text with distant repetitions compresses less. Level 12 compressed a text
    /// with distant repetitions to 27.1 % in pieces of 4 MiB. Pieces of 16 MiB gave 22.2 % with the level's window of 4
    /// MiB, and 18.0 % with a window of 16 MiB. The zstd program compressed the text to 21.5 %. Low levels have small
    /// pieces, with which more threads can work in the same memory. At level 19, pieces of 16 MiB compressed the text
    /// to 14.8 %, and the zstd program to 12.7 %.
    pub(super) fn block_bytes(self, level: u32) -> usize {
        match self {
            Format::Gzip => 1 << 20,
            Format::Bzip2 => 900_000,
            Format::Zstd => 1 << zstd_window(level).unwrap_or(22),
            Format::Lz4 => 4 << 20,
        }
    }

    /// Returns the approximate size of a compressor's state in bytes.
    pub(super) fn state_bytes(self, level: u32) -> u64 {
        match self {
            Format::Gzip => {
                if level < 10 {
                    1 << 20
                } else {
                    10 << 20
                }
            }
            Format::Bzip2 => 8 << 20,
            // These sizes were measured with ZSTD_sizeof_CCtx and rounded up.
            Format::Zstd => match level {
                0..=8 => 8 << 20,
                9..=11 => 24 << 20,
                15 | 19 => 84 << 20,
                _ => 52 << 20,
            },
            Format::Lz4 => 64 << 10,
        }
    }

    /// Compresses a block into a piece.
    pub(super) fn pack(self, block: &[u8], level: u32) -> Result<Vec<u8>> {
        let failed = |what: String| Error::Damaged { name: format!("{self} compressor"), what };
        match self {
            Format::Gzip => {
                let level =
                    CompressionLvl::new(level as i32).map_err(|error| failed(format!("{error:?}")))?;
                let mut compressor = Compressor::new(level);
                let most = compressor.deflate_compress_bound(block.len());
                let mut member = vec![0; GZIP_HEAD_BYTES + most + GZIP_TAIL_BYTES];
                let packed = compressor
                    .deflate_compress(block, &mut member[GZIP_HEAD_BYTES..])
                    .map_err(|error| failed(error.to_string()))?;
                member.truncate(GZIP_HEAD_BYTES + packed);
                let checksum = crc32fast::hash(block);
                member.extend_from_slice(&checksum.to_le_bytes());
                member.extend_from_slice(&(block.len() as u32).to_le_bytes());
                let size = member.len() as u32;
                member[..12].copy_from_slice(&GZIP_HEAD);
                member[12..16].copy_from_slice(&GZIP_SIZE_FIELD);
                member[16..20].copy_from_slice(&size.to_le_bytes());
                Ok(member)
            }
            Format::Bzip2 => {
                let out = Vec::with_capacity(block.len() / 2);
                let mut encoder = bzip2::write::BzEncoder::new(out, bzip2::Compression::new(level));
                encoder.write_all(block).map_err(|error| failed(error.to_string()))?;
                encoder.finish().map_err(|error| failed(error.to_string()))
            }
            Format::Zstd => {
                let mut compressor =
                    zstd::bulk::Compressor::new(level as i32).map_err(|error| failed(error.to_string()))?;
                let checked = compressor.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true));
                checked.map_err(|error| failed(error.to_string()))?;
                if let Some(window) = zstd_window(level) {
                    let window = zstd::zstd_safe::CParameter::WindowLog(window);
                    compressor.set_parameter(window).map_err(|error| failed(error.to_string()))?;
                }
                compressor.compress(block).map_err(|error| failed(error.to_string()))
            }
            Format::Lz4 if block.is_empty() => Ok(Vec::new()),
            Format::Lz4 => {
                let mut piece = vec![0; 4 + lz4_flex::block::get_maximum_output_size(block.len())];
                let packed = lz4_flex::block::compress_into(block, &mut piece[4..])
                    .map_err(|error| failed(error.to_string()))?;
                let length = match packed < block.len() {
                    true => packed as u32,
                    false => {
                        piece[4..4 + block.len()].copy_from_slice(block);
                        block.len() as u32 | LZ4_PLAIN
                    }
                };
                piece.truncate(4 + (length & !LZ4_PLAIN) as usize);
                piece[..4].copy_from_slice(&length.to_le_bytes());
                Ok(piece)
            }
        }
    }

    /// Decompresses a piece into the first bytes of `out`, and returns the number of these bytes. An error describes
    /// the damage of the piece. The previous content of `out` does not matter, so buffers can be reused. In some
    /// formats, allocating a buffer for each piece would take as long as decompression.
    pub(super) fn unpack(self, piece: &[u8], out: &mut [u8]) -> std::result::Result<usize, String> {
        match self {
            Format::Gzip => {
                let size = piece.len().checked_sub(4).ok_or("a member is too short")?;
                let bytes = u32::from_le_bytes(piece[size..].try_into().expect("four bytes")) as usize;
                let Some(out) = out.get_mut(..bytes) else {
                    return Err(format!("a member of {bytes} bytes is larger than the limit for a piece"));
                };
                let found =
                    Decompressor::new().gzip_decompress(piece, out).map_err(|error| error.to_string())?;
                if found == bytes {
                    Ok(bytes)
                } else {
                    Err("a member is shorter than its header says".to_string())
                }
            }
            Format::Bzip2 => unreachable!("bzip2 is cut at its blocks"),
            Format::Zstd => {
                let size = zstd::zstd_safe::get_frame_content_size(piece).ok().flatten();
                let size =
                    size.filter(|&size| size <= out.len() as u64).ok_or("a frame does not say its size")?;
                let out = &mut out[..size as usize];
                let unpacked = zstd::bulk::Decompressor::new()
                    .and_then(|mut decompressor| decompressor.decompress_to_buffer(piece, out));
                let found = unpacked.map_err(|error| error.to_string())?;
                if found as u64 == size {
                    Ok(found)
                } else {
                    Err("a frame is shorter than its header says".to_string())
                }
            }
            Format::Lz4 => {
                let (length, bytes) = piece.split_at_checked(4).ok_or("a block is too short")?;
                let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
                if length & LZ4_PLAIN != 0 {
                    let out =
                        out.get_mut(..bytes.len()).ok_or("a block is larger than the limit for a piece")?;
                    out.copy_from_slice(bytes);
                    return Ok(bytes.len());
                }
                lz4_flex::block::decompress_into(bytes, out).map_err(|error| error.to_string())
            }
        }
    }
}

impl std::str::FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found =
            Self::ALL.into_iter().find(|format| format.to_string() == text || format.ending() == text);
        found.ok_or_else(|| "expected gzip, bzip2, zstd or lz4".to_string())
    }
}

/// Makes the bytes that a file of the format has before its first piece and after its last piece.
pub(super) struct Packer {
    format: Format,
    hash: XxHash32,
}

impl Packer {
    pub fn new(format: Format) -> Packer {
        Packer { format, hash: XxHash32::with_seed(0) }
    }

    pub fn head(&self) -> Vec<u8> {
        match self.format {
            Format::Lz4 => {
                [&LZ4_MAGIC[..], &LZ4_DESCRIPTOR, &[lz4_descriptor_check(&LZ4_DESCRIPTOR)]].concat()
            }
            _ => Vec::new(),
        }
    }

    pub fn saw(&mut self, block: &[u8]) {
        if self.format == Format::Lz4 {
            self.hash.write(block);
        }
    }

    pub fn tail(&self) -> Vec<u8> {
        match self.format {
            Format::Lz4 => [0u32.to_le_bytes(), (self.hash.finish() as u32).to_le_bytes()].concat(),
            _ => Vec::new(),
        }
    }
}

/// Returns the checksum byte of an lz4 frame descriptor. This is the second byte of the descriptor's hash.
pub(super) fn lz4_descriptor_check(descriptor: &[u8]) -> u8 {
    let mut hash = XxHash32::with_seed(0);
    hash.write(descriptor);
    (hash.finish() >> 8) as u8
}
