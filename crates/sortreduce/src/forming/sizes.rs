//! The sizes of a chunk and its blocks.

use crate::{Key, Value, array::taken_bytes, keys::record::record_bytes};

/// The bytes of metadata per block: the next block, the number of records, the entry in the list of free blocks, and
/// the entry in the block order of a sorted chunk.
pub(crate) const BLOCK_EXTRA_BYTES: usize = 16;
/// The maximum number of bits of a bucket number. With more buckets, the cache lines to which a scatter writes would
/// not fit in the cache.
pub(crate) const BUCKET_BITS_MAX: u32 = 10;

/// The sizes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSizes {
    pub blocks: usize,
    pub block_records: usize,
    pub bucket_bits: u32,
    /// The number of free blocks that are reserved for the sort.
    pub reserve_blocks: usize,
}

impl ChunkSizes {
    /// Returns the sizes of the largest chunk that takes at most `bytes` bytes and has at most `records` records. A
    /// slab of the sorter has `slab_records` records.
    pub fn within<K: Key, V: Value>(bytes: usize, records: usize, slab_records: usize) -> ChunkSizes {
        // A cursor has 32 bits, which limits the number of records in a chunk.
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
        // A bucket has half a slab of records on average. A bucket has at least 32 blocks, since otherwise half-full
        // blocks would waste too much memory.
        let wanted = (2 * records / slab_records).next_power_of_two().ilog2();
        let most = prev_power_of_two(blocks / 32).ilog2();
        let bucket_bits = wanted.min(most).clamp(1, BUCKET_BITS_MAX);
        let reserve_blocks = if blocks * block_records > slab_records { 64 + spare_blocks::<K>() } else { 0 };
        ChunkSizes { blocks, block_records, bucket_bits, reserve_blocks }
    }

    /// Returns the bytes that a chunk reserves in the budget.
    pub fn bytes<K: Key, V: Value>(&self) -> usize {
        let records = self.blocks * self.block_records;
        taken_bytes(records * size_of::<K>())
            + taken_bytes(records * size_of::<V>())
            + self.blocks * BLOCK_EXTRA_BYTES
    }
}

/// The minimum number of blocks in a chunk. This number suffices for the smallest number of buckets, with two open
/// blocks per bucket.
const SMALLEST_BLOCKS: usize = 8;

/// Returns the number of spare blocks that nested scatters need. Each level of scattering at least halves the key
/// range of a large bucket, so there are at most as many levels as bits in a key. Each level may open two blocks.
pub(crate) fn spare_blocks<K: Key>() -> usize {
    2 * K::BITS as usize + 2
}

fn prev_power_of_two(number: usize) -> usize {
    1 << number.max(1).ilog2()
}
