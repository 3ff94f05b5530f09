//! Detects the format of compressed input by its first bytes, and decodes each supported format.
//!
//! Every command calls [`Compression::of_head`], so that all commands treat a file in the same way. The file is
//! decompressed, or refused with the name of its format. Compressed bytes without a decoder are never read as text.
//!
//! | format | treatment |
//! |---|---|
//! | gzip, zstd, bzip2, lz4 | unpacked as a stream, also several members or frames one after the other |
//! | xz, lzma, compress (.Z), pack (.z), lzip, lzop, snappy, legacy lz4 | refused by name |
//! | zip, 7z, rar | refused by name: archives, which have any number of files in them |
//!
//! Brotli and zlib have no magic number, so they are not detected, and are read as text or records.

mod gzip;
mod lz4;
mod zstd;

use std::{
    fmt,
    io::{self, BufReader, Cursor, Read},
};

use bzip2::bufread::MultiBzDecoder;
use inshore_store::{Budget, Reservation};

pub use self::{gzip::GzipMembers, lz4::Lz4Frames};
use self::{lz4::LZ4_BYTES, zstd::ZstdFrames};
use crate::{Error, Result};

const BUFFER_BYTES: usize = 128 << 10;

/// The memory of a bzip2 decoder in bytes. The decoder holds some tables and a block of 900 KB, in which every byte
/// takes 32 bits.
const BZIP2_BYTES: u64 = 4 << 20;

/// The first of the 16 magic numbers with which skippable frames begin. The magic numbers are the same for zstd and
/// lz4.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// A format of compressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
    /// bzip2.
    Bzip2,
    /// LZ4 frames.
    Lz4,
    /// The legacy format of LZ4, without frames.
    Lz4Legacy,
    /// xz.
    Xz,
    /// LZMA without a container. xz later replaced this format.
    Lzma,
    /// compress of Unix.
    Compress,
    /// pack of Unix.
    Pack,
    /// lzip.
    Lzip,
    /// lzop.
    Lzop,
    /// Framed snappy.
    Snappy,
    /// zip.
    Zip,
    /// 7-Zip.
    SevenZip,
    /// RAR.
    Rar,
}

impl Compression {
    /// How many bytes from the beginning of a file suffice to detect its format.
    pub const HEAD_BYTES: usize = 16;

    /// Detects the format of a file by `head`, its first [`HEAD_BYTES`](Self::HEAD_BYTES) bytes, or the whole file if
    /// that is shorter. Returns `None` for bytes that are in no format with a magic number. Text is never mistaken for
    /// a compressed format, since the bytes after a magic number are also checked if the magic number consists of
    /// letters.
    ///
    /// A skippable frame counts as zstd, although an lz4 frame may follow the skippable frame.
    ///
    /// ```
    /// use inshore_tables::Compression;
    /// assert_eq!(Compression::of_head(&[0xfd, b'7', b'z', b'X', b'Z', 0]), Some(Compression::Xz));
    /// assert_eq!(Compression::of_head(b"BZh9 is how bzip2 begins"), None);
    /// ```
    pub fn of_head(head: &[u8]) -> Option<Compression> {
        use Compression::*;
        Some(match head {
            [0x1f, 0x8b, ..] => Gzip,
            [0x1f, 0x9d, ..] => Compress,
            [0x1f, 0x1e, ..] => Pack,
            // The header of the file comes first, then the magic number of a block or of the end of the stream.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Bzip2,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => Bzip2,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Zstd,
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Zstd,
            [0x04, 0x22, 0x4d, 0x18, ..] => Lz4,
            [0x02, 0x21, 0x4c, 0x18, ..] => Lz4Legacy,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Xz,
            [b'L', b'Z', b'I', b'P', 0..=1, ..] => Lzip,
            [0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a, ..] => Lzop,
            [0xff, 0x06, 0, 0, b's', b'N', b'a', b'P', b'p', b'Y', ..] => Snappy,
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Zip,
            [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => SevenZip,
            [b'R', b'a', b'r', b'!', 0x1a, 0x07, ..] => Rar,
            _ if is_lzma(head) => Lzma,
            _ => return None,
        })
    }

    /// Returns true if [`Input::open`](crate::Input::open) decompresses the format.
    pub fn is_unpacked(self) -> bool {
        matches!(self, Compression::Gzip | Compression::Zstd | Compression::Bzip2 | Compression::Lz4)
    }

    /// Returns true if the format is an archive. An archive holds several files.
    pub fn is_archive(self) -> bool {
        matches!(self, Compression::Zip | Compression::SevenZip | Compression::Rar)
    }

    /// Creates the error for a format without a decoder.
    pub(crate) fn refuse(self, name: &str) -> Error {
        let what = match self.is_archive() {
            true => format!("it is a {self} archive, which is not supported: extract the files first"),
            false => format!(
                "it is compressed with {self}, which is not supported: decompress it first (gzip, zstd, bzip2 and lz4 are supported)"
            ),
        };
        Error::unsupported(name, what)
    }

    /// The extensions of files that may be compressed. For most inputs the extension does not matter. For records of
    /// arbitrary bytes, only files with one of these extensions are checked for compression.
    const ENDINGS: [&'static str; 17] = [
        "gz", "zst", "zstd", "bz2", "lz4", "xz", "lzma", "Z", "z", "lz", "lzo", "sz", "snappy", "zip", "7z",
        "rar", "tgz",
    ];

    /// Returns true if compressed files have this extension.
    pub(crate) fn is_ending(ending: &str) -> bool {
        Self::ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Bzip2 => "bzip2",
            Compression::Lz4 => "lz4",
            Compression::Lz4Legacy => "lz4 in its legacy format",
            Compression::Xz => "xz",
            Compression::Lzma => "lzma",
            Compression::Compress => "compress (.Z)",
            Compression::Pack => "pack (.z)",
            Compression::Lzip => "lzip",
            Compression::Lzop => "lzop",
            Compression::Snappy => "snappy",
            Compression::Zip => "zip",
            Compression::SevenZip => "7z",
            Compression::Rar => "rar",
        })
    }
}

/// Returns true if `head` is an LZMA header. The header consists of one byte of properties (nearly always `5d`), 4
/// bytes for the dictionary size, and 8 bytes for the content size. All bits of the content size are ones if the size
/// is unknown. As in liblzma, only dictionaries of 2^n and 2^n + 2^(n-1) bytes are accepted.
fn is_lzma(head: &[u8]) -> bool {
    let Some((&[0x5d, a, b, c, d], rest)) = head.split_first_chunk() else { return false };
    let dictionary = u32::from_le_bytes([a, b, c, d]);
    let Some(size) = rest.first_chunk().map(|size| u64::from_le_bytes(*size)) else { return false };
    let ones = dictionary.count_ones();
    let is_plausible = dictionary == u32::MAX
        || dictionary >= 1 << 12 && (ones == 1 || ones == 2 && dictionary & dictionary << 1 != 0);
    is_plausible && (size == u64::MAX || size < 1 << 38)
}

pub(crate) type PeekedReader<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Reads the bytes of a source. If the source is compressed, the bytes are decompressed.
pub(crate) enum DecompressedReader<R: Read> {
    Plain(PeekedReader<R>),
    Gzip(Box<GzipMembers<BufReader<PeekedReader<R>>>>),
    Zstd(Box<ZstdFrames<PeekedReader<R>>>),
    Bzip2 { decoder: Box<MultiBzDecoder<BufReader<PeekedReader<R>>>>, _memory: Reservation },
    Lz4 { decoder: Box<Lz4Frames<BufReader<PeekedReader<R>>>>, _memory: Reservation },
}

impl<R: Read> DecompressedReader<R> {
    /// Passes the bytes on unchanged.
    pub fn plain(source: R) -> DecompressedReader<R> {
        DecompressedReader::Plain(Cursor::new(Vec::new()).chain(source))
    }

    /// Detects the format of a source called `name`, and decompresses the source. The first `uncounted` bytes of the
    /// state of the bzip2 and lz4 decoders are not reserved from the budget. The state of gzip is small. The state of
    /// zstd is reserved as [`crate::allowance::UNCOUNTED_BYTES`] describes.
    pub fn open(mut source: R, name: &str, budget: &Budget, uncounted: u64) -> Result<DecompressedReader<R>> {
        let failed = |source| Error::from_read(name, source);
        let mut head = read_head(&mut source).map_err(failed)?;
        let first = Compression::of_head(&head);
        let mut whole = Cursor::new(head.clone()).chain(source);
        let mut format = first;
        if is_skippable(&head) {
            (head, whole) = behind_skippable(whole).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    Error::damaged(name, "truncated: the data ends inside a skippable frame")
                }
                _ => failed(error),
            })?;
            format = Compression::of_head(&head);
            let is_frame = matches!(format, Some(Compression::Zstd | Compression::Lz4));
            if !is_frame && !head.is_empty() {
                let what = "damaged zstd or lz4 data: expected a frame after a skippable frame, or the end of the data";
                return Err(Error::damaged(name, what));
            }
            // A file that consists of skippable frames only is an empty zstd file.
            format = format.or(first);
        }
        let buffered = |whole| BufReader::with_capacity(BUFFER_BYTES, whole);
        let memory = |bytes: u64, what| budget.reserve(bytes.saturating_sub(uncounted), what);
        Ok(match format {
            None => DecompressedReader::Plain(whole),
            Some(Compression::Gzip) => DecompressedReader::Gzip(Box::new(GzipMembers::new(buffered(whole)))),
            Some(Compression::Zstd) => {
                DecompressedReader::Zstd(Box::new(ZstdFrames::new(whole, name, budget)?))
            }
            Some(Compression::Bzip2) => DecompressedReader::Bzip2 {
                _memory: memory(BZIP2_BYTES, "the bzip2 decompressor")?,
                decoder: Box::new(MultiBzDecoder::new(buffered(whole))),
            },
            Some(Compression::Lz4) => DecompressedReader::Lz4 {
                _memory: memory(LZ4_BYTES, "the lz4 decompressor")?,
                decoder: Box::new(Lz4Frames::new(buffered(whole))),
            },
            Some(other) => return Err(other.refuse(name)),
        })
    }

    /// Returns the format, if the source is decompressed.
    pub fn format(&self) -> Option<Compression> {
        match self {
            DecompressedReader::Plain(_) => None,
            DecompressedReader::Gzip(_) => Some(Compression::Gzip),
            DecompressedReader::Zstd(_) => Some(Compression::Zstd),
            DecompressedReader::Bzip2 { .. } => Some(Compression::Bzip2),
            DecompressedReader::Lz4 { .. } => Some(Compression::Lz4),
        }
    }

    /// Reads decompressed bytes. Errors that the decoder found carry an [`Error`] that names the file.
    pub fn read(&mut self, name: &str, out: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            DecompressedReader::Plain(source) => return source.read(out),
            // The errors of this decoder are errors of this crate, and already name the file.
            DecompressedReader::Zstd(source) => return source.read(out),
            DecompressedReader::Gzip(source) => source.read(out),
            DecompressedReader::Bzip2 { decoder, .. } => decoder.read(out),
            DecompressedReader::Lz4 { decoder, .. } => decoder.read(out),
        };
        read.map_err(|error| {
            let is_named = error.get_ref().is_some_and(|inner| inner.is::<Error>());
            let format = self.format().expect("it is unpacked");
            let what = match error.kind() {
                // An error of the operating system is returned unchanged. An error of the decoder means that the file
                // is damaged.
                _ if is_named || error.raw_os_error().is_some() => return error,
                io::ErrorKind::Interrupted => return error,
                io::ErrorKind::UnexpectedEof => {
                    format!("truncated: the {format} data, or the data after it, ends early")
                }
                _ => format!("damaged {format} data: {error}"),
            };
            io::Error::other(Error::damaged(name, what))
        })
    }
}

fn read_head(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(Compression::HEAD_BYTES);
    source.take(Compression::HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn is_skippable(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|magic| u32::from_le_bytes(*magic) & !15 == SKIPPABLE_MAGIC)
}

/// Skips skippable frames, and returns the first bytes after them. A skippable frame consists of a magic number, a
/// length in 4 bytes, and as many bytes as the length states.
fn behind_skippable<R: Read>(mut whole: PeekedReader<R>) -> io::Result<(Vec<u8>, PeekedReader<R>)> {
    loop {
        let mut header = [0; 8];
        whole.read_exact(&mut header)?;
        let [_, _, _, _, length @ ..] = header;
        skip_exact(&mut whole, u32::from_le_bytes(length).into())?;
        let head = read_head(&mut whole)?;
        let (peeked, rest) = whole.into_inner();
        // `left` contains the bytes that an earlier peek has read but that were not consumed. These bytes follow
        // `head`.
        let left = &peeked.get_ref()[peeked.position() as usize..];
        let is_more = is_skippable(&head);
        whole = Cursor::new([&head[..], left].concat()).chain(rest);
        if !is_more {
            return Ok((head, whole));
        }
    }
}

/// Skips `bytes` bytes. If the source has fewer bytes, the result is an error.
fn skip_exact(source: &mut impl Read, bytes: u64) -> io::Result<()> {
    match io::copy(&mut source.take(bytes), &mut io::sink())? {
        passed if passed == bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_first_bytes_and_texts_are_none() {
        let lzma = [0x5d, 0, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x18, 0x9a];
        for (head, expected) in [
            (&[0x1f, 0x8b, 8, 0][..], Compression::Gzip),
            (&[0x1f, 0x9d, 0x90], Compression::Compress),
            (b"BZh91AY&SY", Compression::Bzip2),
            (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
            (&[0x53, 0x2a, 0x4d, 0x18], Compression::Zstd),
            (&[0x04, 0x22, 0x4d, 0x18], Compression::Lz4),
            (&[0x02, 0x21, 0x4c, 0x18], Compression::Lz4Legacy),
            (b"\xfd7zXZ\0", Compression::Xz),
            (&lzma, Compression::Lzma),
            (b"PK\x03\x04", Compression::Zip),
        ] {
            assert_eq!(Compression::of_head(head), Some(expected));
        }
        let texts =
            ["", "B", "BZh9", "BZh91AY&S", "PK", "LZIP is", "Rar!", "] ", "7z", "P*M", "the quick brown fox"];
        for text in texts {
            assert_eq!(Compression::of_head(text.as_bytes()), None, "{text}");
        }
        // The dictionary has a size that liblzma never writes.
        assert_eq!(
            Compression::of_head(&[0x5d, 0, 0, 0x81, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            None
        );
    }
}
