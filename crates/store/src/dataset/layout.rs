//! A layout describes the extents of a file, their parity groups and copies, and the content of their headers.

use crate::{EXTENT_BYTES, ExtentAddress, PAGE_BYTES, Redundancy, log::header::Header};

/// The level of an extent that contains data.
pub(crate) const DATA: u8 = 0;
/// The level of an extent that contains parity.
pub(crate) const PARITY: u8 = 2;

/// `ExtentShape` describes an extent as an element of its file: its kind, its index and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentShape {
    pub level: u8,
    /// The number of the extent among the extents of its level in the file.
    pub index: u64,
    /// The number of bytes of data in the extent.
    pub used: u32,
    pub block_bytes: u32,
}

impl ExtentShape {
    /// Creates the header of the extent's copy at the address `place`.
    pub fn header(self, identity: Identity, place: ExtentAddress, sums: &[u32]) -> Header {
        Header {
            place,
            dataset: identity.dataset,
            file: identity.file,
            level: self.level,
            index: self.index,
            used: self.used,
            block_bytes: self.block_bytes,
            sums: sums.to_vec(),
        }
    }

    /// Creates the encoded header of the extent's copy at the address `place`, with the checksums of `bytes`.
    pub fn page(self, identity: Identity, place: ExtentAddress, bytes: &[u8]) -> Vec<u8> {
        let sums: Vec<u32> = bytes.chunks(self.block_bytes as usize).map(crc32fast::hash).collect();
        self.header(identity, place, &sums).encode()
    }

    /// Returns the stored length of the extent: the length of its data, rounded up to pages.
    pub fn stored(self) -> usize {
        (self.used as usize).next_multiple_of(PAGE_BYTES)
    }
}

/// `Identity` identifies the dataset and the file to which an extent belongs. The header of each extent contains it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Identity {
    pub dataset: u64,
    pub file: u32,
    pub level: u8,
}

/// `Layout` contains the properties of a file from its record, without the addresses of its extents.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The name in error messages: the name of the scratch file, or `dataset/file`.
    pub name: String,
    /// The length of the data in bytes.
    pub len: u64,
    /// The size of a checksum block in bytes.
    pub block_bytes: usize,
    pub identity: Identity,
    pub redundancy: Redundancy,
}

impl Layout {
    /// Returns the number of extents of data, without copies.
    pub fn extents(&self) -> u64 {
        self.len.div_ceil(EXTENT_BYTES as u64)
    }

    /// Returns the number of references to extents, including copies and parity.
    pub fn positions(&self) -> u64 {
        self.redundancy.refs(self.extents())
    }

    /// Returns the shape of the extent to which the reference at `position` refers.
    pub fn shape(&self, position: u64) -> ExtentShape {
        let (redundancy, extents) = (self.redundancy, self.extents());
        let block_bytes = self.block_bytes as u32;
        match position.checked_sub(extents * redundancy.copies() as u64) {
            None => {
                let index = position % extents;
                let used = (self.len - index * EXTENT_BYTES as u64).min(EXTENT_BYTES as u64) as u32;
                ExtentShape { level: self.identity.level, index, used, block_bytes }
            }
            Some(index) => {
                let used = self.group_len(position) as u32;
                ExtentShape { level: PARITY, index, used, block_bytes }
            }
        }
    }

    /// Returns the number of the parity group to which the extent at `position` belongs.
    fn group(&self, position: u64) -> u64 {
        let redundancy = self.redundancy;
        match position.checked_sub(self.extents()) {
            None => position / redundancy.group(),
            Some(parity) => parity / redundancy.parity(),
        }
    }

    /// Returns the length of the longest extent in the parity group of `position`, rounded up to pages.
    pub fn group_len(&self, position: u64) -> usize {
        let first = self.group(position) * self.redundancy.group();
        let len = (self.len - first * EXTENT_BYTES as u64).min(EXTENT_BYTES as u64);
        (len as usize).next_multiple_of(PAGE_BYTES)
    }

    /// Returns the members of the parity group of `position`: their numbers in the group (first data, then parity) and
    /// their positions in the list of references.
    pub fn group_of(&self, position: u64) -> Vec<(usize, u64)> {
        let (redundancy, extents, group) = (self.redundancy, self.extents(), self.group(position));
        let data = group * redundancy.group()..((group + 1) * redundancy.group()).min(extents);
        let parity = extents + group * redundancy.parity();
        data.chain(parity..parity + redundancy.parity()).enumerate().collect()
    }
}
