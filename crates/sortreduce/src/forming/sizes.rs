//! Sizes of a chunk and its blocks.

use crate::{Key, Value, array::taken_bytes, keys::record::record_bytes};

/// The bytes of metadata per block: its successor, the number of its records, its entry in the list of free blocks, and
/// its entry in the order of a finished chunk.
pub(crate) const BLOCK_EXTRA_BYTES: usize = 16;
/// The largest number of bits of a bucket number. With more buckets, the cache lines that are being written would not
/// fit in the cache.
pub(crate) const BUCKET_BITS_MAX: u32 = 10;

/// Sizes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSizes {
    pub blocks: usize,
    pub block_records: usize,
    pub bucket_bits: u32,
    /// The number of blocks that only sorting may use.
    pub reserve_blocks: usize,
}

impl ChunkSizes {
    /// Returns the largest chunk that takes at most `bytes` and has at most `records`, for slabs of `slab_records`.
    pub fn within<K: Key, V: Value>(bytes: usize, records: usize, slab_records: usize) -> ChunkSizes {
        // A cursor has 32 bits, which limits the number of records.
        let mut records = (bytes / record_bytes::<K, V>()).min(records).min(1 << 31);
        loop {
            let sizes = Self::of::<K>(records, slab_records);
            if sizes.bytes::<K, V>() <= bytes || sizes.blocks == SMALLEST_BLOCKS {
                return sizes;
            }
            records -= (records / 64).max(1);
        }
    }

    fn of<K: Key>(records: usize, slab_records: usize) -> ChunkSizes {
        let block_records = prev_power_of_two(records / 4096).clamp(4, 512);
        let blocks = (records / block_records).max(SMALLEST_BLOCKS);
        // A bucket has half a slab of records on average, and at least 32 blocks; otherwise half-full blocks would
        // waste too much.
        let wanted = (2 * records / slab_records).next_power_of_two().ilog2();
        let most = prev_power_of_two(blocks / 32).ilog2();
        let bucket_bits = wanted.min(most).clamp(1, BUCKET_BITS_MAX);
        let reserve_blocks = if blocks * block_records > slab_records { 64 + spare_blocks::<K>() } else { 0 };
        ChunkSizes { blocks, block_records, bucket_bits, reserve_blocks }
    }

    /// Returns the bytes that a chunk takes from the budget.
    pub fn bytes<K: Key, V: Value>(&self) -> usize {
        let records = self.blocks * self.block_records;
        taken_bytes(records * size_of::<K>())
            + taken_bytes(records * size_of::<V>())
            + self.blocks * BLOCK_EXTRA_BYTES
    }
}

/// The smallest number of blocks in a chunk, which suffices for two open blocks in each bucket of a chunk with the
/// fewest buckets.
const SMALLEST_BLOCKS: usize = 8;

/// Returns the number of spare blocks for scattering. Each level of scattering at least halves the range of a large
/// bucket, so there are at most as many levels as bits in a key. Each level may open two blocks.
pub(crate) fn spare_blocks<K: Key>() -> usize {
    2 * K::BITS as usize + 2
}

fn prev_power_of_two(number: usize) -> usize {
    1 << number.max(1).ilog2()
}
