//! The header of an extent identifies the dataset and the file of the extent, and contains the checksums of its blocks.
//! Layout: `docs/format.md`, "Extent header".
//!
//! The first extent of a segment contains the headers of the other extents. The reference to an extent contains the
//! checksum of the extent's header. A chain of checksums therefore leads from the log to every block. The chain detects
//! flipped bits, stale blocks, and blocks of another file. Headers identify their extents, so they also allow a
//! recovery of the store if the log is lost.

use crate::{
    ExtentAddress,
    log::encoding::{Cursor, put_u32},
    shared::HEADER_BYTES,
};

const MAGIC: &[u8; 8] = b"INSHEXTN";
const VERSION: u32 = 1;

/// `Header` is the content of the header of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The address of the extent to which the header belongs.
    pub place: ExtentAddress,
    pub dataset: u64,
    /// The number of the file in the dataset.
    pub file: u32,
    /// The content of the extent: 0 for data, 1 for a list of references to extents, 2 for parity.
    pub level: u8,
    /// The number of the extent among the extents of its level in the file.
    pub index: u64,
    /// The number of bytes of data in the extent.
    pub used: u32,
    pub block_bytes: u32,
    /// The CRC-32 of each stored block, including padding.
    pub sums: Vec<u32>,
}

impl Header {
    /// Encodes the header as a page.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.place.device.to_le_bytes());
        out.extend([self.level, 0]);
        out.extend(self.place.extent.to_le_bytes());
        out.extend(self.file.to_le_bytes());
        out.extend(self.dataset.to_le_bytes());
        out.extend(self.index.to_le_bytes());
        out.extend(self.used.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        put_u32(&mut out, self.sums.len());
        self.sums.iter().for_each(|sum| out.extend(sum.to_le_bytes()));
        assert!(out.len() <= HEADER_BYTES, "checksums of {} blocks", self.sums.len());
        out.resize(HEADER_BYTES, 0);
        out
    }

    /// Decodes a page. The result is `None` if the page is not a header of this version.
    pub fn decode(page: &[u8]) -> Option<Header> {
        let mut page = Cursor(page);
        if page.take(8)? != MAGIC || page.u32()? != VERSION {
            return None;
        }
        let device = page.u16()?;
        let level = page.u8()?;
        page.u8()?;
        let place = ExtentAddress { device, extent: page.u32()? };
        let (file, dataset, index) = (page.u32()?, page.u64()?, page.u64()?);
        let (used, block_bytes) = (page.u32()?, page.u32()?);
        let sums = page.list(|page| page.u32())?;
        Some(Header { place, dataset, file, level, index, used, block_bytes, sums })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_header_fits_its_page_and_survives_encoding() {
        let header = Header {
            place: ExtentAddress { device: 3, extent: 77 },
            dataset: 5,
            file: 2,
            level: 1,
            index: 9,
            used: 1 << 21,
            block_bytes: 4096,
            sums: (0..512).collect(),
        };
        let page = header.encode();
        assert_eq!((page.len(), Header::decode(&page)), (HEADER_BYTES, Some(header)));
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(mut page in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::decode(&page);
            let mut known = MAGIC.to_vec();
            known.extend(VERSION.to_le_bytes());
            known.append(&mut page);
            let _ = Header::decode(&known);
        }
    }
}
