//! This module encodes the headers of log records. A record consists of a header with checksums, and a body of edits.

use crate::{
    PAGE_BYTES,
    log::encoding::{Cursor, put_u32},
};

/// The limit of the counters in headers and superblocks. No store reaches this limit. A counter below the limit can be
/// incremented without overflow.
pub(super) const COUNTER_LIMIT: u64 = 1 << 63;

const RECORD_MAGIC: &[u8; 8] = b"INSHRECD";
pub(super) const RECORD_HEADER_BYTES: usize = 48;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) before: u32,
    pub(super) commit: u64,
    pub(super) body_len: usize,
    pub(super) body_sum: u32,
    pub(super) sum: u32,
}

impl RecordHeader {
    pub(super) fn encode(&self, store: &[u8; 16]) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = Vec::with_capacity(RECORD_HEADER_BYTES);
        out.extend(RECORD_MAGIC);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.commit.to_le_bytes());
        put_u32(&mut out, self.body_len);
        out.extend(self.body_sum.to_le_bytes());
        out.extend(self.before.to_le_bytes());
        out.extend(header_sum(store, &out).to_le_bytes());
        out.try_into().expect("48 bytes")
    }

    pub(super) fn decode(store: &[u8; 16], bytes: &[u8]) -> Option<RecordHeader> {
        let mut header = Cursor(bytes);
        if header.take(8)? != RECORD_MAGIC {
            return None;
        }
        let (generation, number, commit) = (header.u64()?, header.u64()?, header.u64()?);
        let (body_len, body_sum, before, sum) =
            (header.u32()? as usize, header.u32()?, header.u32()?, header.u32()?);
        let right = sum == header_sum(store, &bytes[..RECORD_HEADER_BYTES - 4])
            && [generation, number, commit].iter().all(|&count| count < COUNTER_LIMIT);
        right.then_some(RecordHeader { generation, number, before, commit, body_len, body_sum, sum })
    }
}

/// Computes the checksum of a record's header. The checksum also covers the UUID of the store, so that records of other
/// stores are invalid.
fn header_sum(store: &[u8; 16], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(store);
    hasher.update(bytes);
    hasher.finalize()
}

/// Returns the length in bytes of a record with a body of `body_len` bytes.
pub(super) fn record_bytes(body_len: usize) -> usize {
    (RECORD_HEADER_BYTES + body_len).next_multiple_of(PAGE_BYTES)
}

/// Decodes the header of a log record, encodes it, and decodes it again. The result is `None` if the header is invalid.
/// Otherwise the result is true if both decoded headers are equal.
#[cfg(feature = "fuzzing")]
pub(crate) fn record_header_round_trip(store: &[u8; 16], bytes: &[u8]) -> Option<bool> {
    let header = RecordHeader::decode(store, bytes)?;
    Some(RecordHeader::decode(store, &header.encode(store)).as_ref() == Some(&header))
}

/// Returns the correct checksum of the header of a log record.
#[cfg(feature = "fuzzing")]
pub(crate) fn record_header_sum(store: &[u8; 16], bytes: &[u8]) -> u32 {
    header_sum(store, &bytes[..RECORD_HEADER_BYTES - 4])
}
