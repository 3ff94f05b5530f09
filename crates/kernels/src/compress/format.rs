//! This module describes the compression formats: names, endings, first bytes and levels.

use std::{
    fmt::{self, Display, Formatter},
    path::Path,
};

use serde::{Deserialize, Serialize};

pub(super) const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
pub(super) const ZSTD_MAGIC: u32 = 0xfd2f_b528;

/// Names a compression format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The file consists of gzip members. Inshore compresses each MiB of input into a member, with libdeflate.
    Gzip,
    /// The file consists of bzip2 streams. Inshore compresses each 900 kB of input into a stream.
    Bzip2,
    /// The file consists of Zstandard frames. Inshore compresses 4 MiB of input into each frame. From level 9 on, a
    /// frame has 16 MiB of input, and from level 17 on 32 MiB.
    Zstd,
    /// The file consists of LZ4 frames. Inshore writes one frame that consists of independent blocks of 4 MiB.
    Lz4,
}

impl Format {
    /// Lists all formats.
    pub const ALL: [Format; 4] = [Format::Gzip, Format::Bzip2, Format::Zstd, Format::Lz4];

    /// Returns the ending of the format's files.
    pub fn ending(self) -> &'static str {
        match self {
            Format::Gzip => "gz",
            Format::Bzip2 => "bz2",
            Format::Zstd => "zst",
            Format::Lz4 => "lz4",
        }
    }

    /// Detects the format from the first four bytes.
    pub(crate) fn of_head(head: &[u8]) -> Option<Format> {
        let word = head.first_chunk().map(|word| u32::from_le_bytes(*word));
        match (head, word) {
            ([0x1f, 0x8b, ..], _) => Some(Format::Gzip),
            ([b'B', b'Z', b'h', b'1'..=b'9', ..], _) => Some(Format::Bzip2),
            (_, Some(ZSTD_MAGIC | 0x184d_2a50..=0x184d_2a5f)) => Some(Format::Zstd),
            (_, Some(word)) if word.to_le_bytes() == LZ4_MAGIC => Some(Format::Lz4),
            _ => None,
        }
    }

    /// Returns the format that the ending of a file's name determines.
    pub fn of_path(path: &Path) -> Option<Format> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|format| format.ending() == ending)
    }

    /// Returns the compression levels of the format, and the default level.
    pub fn levels(self) -> (std::ops::RangeInclusive<u32>, u32) {
        match self {
            Format::Gzip => (1..=12, 6),
            Format::Bzip2 => (1..=9, 9),
            Format::Zstd => (1..=19, 3),
            Format::Lz4 => (1..=1, 1),
        }
    }
}

impl Display for Format {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Format::Gzip => "gzip",
            Format::Bzip2 => "bzip2",
            Format::Zstd => "zstd",
            Format::Lz4 => "lz4",
        })
    }
}
