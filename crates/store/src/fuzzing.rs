//! The fuzz targets in `fuzz/` call these functions, which decode arbitrary bytes as structures on flash. If the bytes
//! are a valid structure, the function encodes it and decodes it again, which must give the same structure.

use crate::{
    Catalog, ExtentRef,
    log::catalog::{REF_BYTES, decode_edits, encode_edits},
    log::header::Header,
    log::{Superblock, record_header_round_trip, record_header_sum},
};

/// Decodes a slot of a superblock. The function first writes the correct checksum into the slot, since random bytes do
/// not have a correct checksum.
pub fn superblock(slot: &mut [u8]) {
    if let Some(len) = slot.get(16..20) {
        let len = u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize;
        if let Some(covered) = slot.get(16..len.saturating_add(40)) {
            let sum = crc32fast::hash(covered);
            slot[12..16].copy_from_slice(&sum.to_le_bytes());
        }
    }
    if let Some((device, superblock)) = Superblock::decode(slot) {
        let again = Superblock::decode(&superblock.encode(device));
        assert_eq!(again, Some((device, superblock)));
    }
}

/// Decodes the header of a log record after correcting its checksum, and the edits that follow the header.
pub fn log_record(record: &mut [u8]) {
    let store = [7; 16];
    if record.len() >= 48 {
        let sum = record_header_sum(&store, record);
        record[44..48].copy_from_slice(&sum.to_le_bytes());
        assert_ne!(record_header_round_trip(&store, record), Some(false));
    }
    edits(record.get(48..).unwrap_or_default());
}

/// Decodes the body of a log record.
pub fn edits(body: &[u8]) {
    if let Some(edits) = decode_edits(body) {
        assert_eq!(decode_edits(&encode_edits(&edits)).as_ref(), Some(&edits));
        let mut catalog = Catalog::default();
        catalog.apply(1, &edits);
        catalog.apply(2, &edits);
        let mut again = Catalog::default();
        again.apply(2, &catalog.checkpoint(0));
        assert_eq!(again.datasets, catalog.datasets);
        // These methods of a catalog must not panic for any valid edits.
        catalog.taken(0).into_iter().for_each(|run| assert!(run.places().count() < 128));
        let bytes = catalog.datasets.values().fold(0u64, |sum, record| sum.wrapping_add(record.bytes()));
        std::hint::black_box(bytes);
    }
}

/// Decodes the header of an extent.
pub fn extent_header(page: &[u8]) {
    if let Some(header) = Header::decode(page)
        // A page has room for 1011 checksums. Other callers verify the checksum of the page before they decode the
        // header.
        && header.sums.len() <= 1011
    {
        assert_eq!(Header::decode(&header.encode()), Some(header));
    }
}

/// Decodes a list of references.
pub fn references(list: &[u8]) {
    for bytes in list.chunks_exact(REF_BYTES) {
        if let Some(reference) = ExtentRef::decode(bytes) {
            assert_eq!(ExtentRef::decode(&reference.encode()), Some(reference));
        }
    }
}
