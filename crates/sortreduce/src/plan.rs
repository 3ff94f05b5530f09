//! Divides the memory. The functions compute sizes only from the configuration, and allocate nothing.

use inshore_store::Error;

use crate::{
    Config, Key, Result, Value,
    array::{largest_buffer, taken_bytes},
    forming::sizes::ChunkSizes,
    forming::sort::{slab_records_in, sorter_bytes},
    keys::record::record_bytes,
    runs::block::{reader_bytes, writer_bytes},
    runs::block_index_bytes,
    smallest_memory_bytes,
};

const PAGE_BYTES: usize = inshore_store::PAGE_BYTES;
/// The maximum bytes of a check block (the unit of checksums) in run files. Blocks of this size are large enough that
/// checksums of 4 bytes are negligible. They are small enough that hundreds of runs can be read at once.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// The maximum bytes of a write request, and the maximum bytes of a read request. In measurements, requests of 512
/// KiB and more ran at full speed, so larger requests would have no effect.
const WRITE_BYTES_MAX: usize = 1 << 20;
const READ_BYTES_MAX: usize = 512 << 10;
/// The maximum number of records in a slab (the unit of sorting) of a chunk. Slabs of 8 Ki / 16 Ki / 32 Ki words are
/// sorted in 5.2 / 5.1 / 6.0 ns per word. With these slabs, the formation of runs of (u32, u64) records in 128 MiB
/// takes 31 / 21 / 21 ns per record, since larger slabs need fewer buckets.
const SLAB_RECORDS_MAX: usize = 16 << 10;
/// The maximum number of keys in a slab if there are no values, since a sort of keys without values takes half the
/// memory. With a budget of 1 GiB, a whole bucket then fits in a slab. No second scatter is needed, which saves 3 of
/// 18 ns per key.
const SLAB_KEYS_MAX: usize = 64 << 10;
/// The maximum number of records in a slab of a merge. These slabs are larger, since each contains some records of
/// every run.
const MERGE_SLAB_RECORDS_MAX: usize = 32 << 10;

/// Returns a [`Config::memory_bytes`] with which the merge strategy accepts `sink_records` records with different
/// keys from each of `sinks` sinks. A small budget limits the number of records, since checksums and first keys of
/// all runs are in memory.
pub fn merge_memory_bytes_for<K: Key, V: Value>(sinks: usize, sink_records: u64) -> u64 {
    let record = record_bytes::<K, V>();
    // Incompressible keys and values have their original size after packing. An additional eighth is for the headers
    // of packing.
    let bytes = sink_records
        .saturating_mul(record as u64)
        .saturating_add(sink_records.saturating_mul(record as u64) / 8);
    let mut memory_bytes = smallest_memory_bytes(sinks, record);
    let fits = |memory_bytes| {
        let config = Config { memory_bytes, sinks, ..Config::default() };
        MergePlan::new::<K, V>(&config).is_ok_and(|plan| plan.spilled_bytes_max >= bytes)
    };
    while !fits(memory_bytes) && memory_bytes < 1 << 50 {
        memory_bytes += memory_bytes / 8;
    }
    memory_bytes
}

/// The sizes of all buffers of the merge strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergePlan {
    pub memory_bytes: usize,
    pub chunk: ChunkSizes,
    pub slab_records: usize,
    pub block_bytes: usize,
    pub write_bytes: usize,
    /// The bytes for the checksums and first keys of the blocks of all runs.
    index_bytes: usize,
    /// The maximum bytes of runs that one sink may write. Half of the index (`index_bytes`) is for the checksums and
    /// first keys of the sinks' runs, and the other half is for those of merged runs. The index suffices unless
    /// incompressible records make packed runs several times as large.
    pub spilled_bytes_max: u64,
}

/// The buffer sizes of one of several parallel merges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeSizes {
    pub slab_records: usize,
    /// The number of runs that can be merged together.
    pub fan_in: usize,
    /// The bytes for the read buffers of all runs and for the memory that unpacks their records.
    read_bytes: usize,
    block_bytes: usize,
    /// The bytes of memory to read one run, in addition to its two read buffers.
    reader_bytes: usize,
}

impl MergePlan {
    /// Divides the memory. Each sink has a share for its chunk, its sorter and two write buffers. The index of the
    /// blocks of runs has an eighth of the total memory.
    ///
    /// # Errors
    /// Returns [`Error::BudgetTooSmall`] if the memory does not suffice.
    pub fn new<K: Key, V: Value>(config: &Config) -> Result<MergePlan> {
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX / 2);
        let record = record_bytes::<K, V>();
        let sinks = config.sinks.max(1);
        let smallest = smallest_memory_bytes(sinks, record);
        let too_small = |smallest: u64| Error::BudgetTooSmall {
            what: format!("sorting {} with {sinks} sinks", config.name),
            given: config.memory_bytes,
            smallest,
        };
        if config.memory_bytes < smallest {
            return Err(too_small(smallest).into());
        }
        let index_bytes = memory_bytes / 8;
        let share = (memory_bytes - index_bytes) / sinks;
        let block_bytes = block_bytes(record, share, config.chunk_bytes);
        let write_bytes = (share / 32).clamp(block_bytes, WRITE_BYTES_MAX) / block_bytes * block_bytes;
        let mut slab_records = slab_records_in::<K, V>(share / 4).min(slab_records_max::<V>());
        let rest = |slab: usize| {
            let taken = sorter_bytes(slab, size_of::<K>(), size_of::<V>())
                + taken_bytes(2 * write_bytes)
                + writer_bytes::<K, V>(block_bytes);
            share.saturating_sub(taken)
        };
        let records = config.chunk_bytes.unwrap_or(usize::MAX) / record;
        let chunk_for = |slab: usize| ChunkSizes::within::<K, V>(rest(slab), records, slab);
        let mut chunk = chunk_for(slab_records);
        if chunk.blocks < 3 * chunk.reserve_blocks {
            // A chunk with too few blocks to sort large buckets in place becomes one slab.
            slab_records = chunk.blocks * chunk.block_records;
            chunk = chunk_for(slab_records);
        }
        if chunk.bytes::<K, V>() > rest(slab_records) {
            return Err(too_small(2 * config.memory_bytes).into());
        }
        Ok(MergePlan {
            memory_bytes,
            chunk,
            slab_records,
            block_bytes,
            write_bytes,
            index_bytes,
            spilled_bytes_max: (index_bytes / 2 / sinks / block_index_bytes::<K>() * block_bytes) as u64,
        })
    }

    /// Returns the buffer sizes of each of `count` parallel merges, including write buffers. The merges divide the
    /// memory that the index does not take.
    pub fn merge<K: Key, V: Value>(&self, count: usize) -> MergeSizes {
        let share = (self.memory_bytes - self.index_bytes) / count;
        let slab_records = slab_records_in::<K, V>(share / 8).min(MERGE_SLAB_RECORDS_MAX);
        let taken = sorter_bytes(slab_records, size_of::<K>(), size_of::<V>())
            + taken_bytes(2 * self.write_bytes)
            + writer_bytes::<K, V>(self.block_bytes);
        let reader_bytes = reader_bytes::<K, V>(self.block_bytes);
        let block_bytes = self.block_bytes;
        let read_bytes = share.saturating_sub(taken);
        let mut sizes = MergeSizes { slab_records, fan_in: 0, read_bytes, block_bytes, reader_bytes };
        // A run needs two buffers of one block each, and space for at least a few of its records in a slab.
        let most = read_bytes / (2 * block_bytes + reader_bytes);
        sizes.fan_in = (sizes.buffer_bytes(most) / (2 * block_bytes)).min(most).min(slab_records / 4);
        sizes
    }

    /// Returns the fan-in of one merge that uses all of the memory.
    pub fn fan_in<K: Key, V: Value>(&self) -> usize {
        self.merge::<K, V>(1).fan_in.max(2)
    }
}

impl MergeSizes {
    /// Returns the size of each of the two read buffers of a run, if `runs` runs have `bytes` bytes in total. A
    /// buffer is not larger than the largest useful request. It is also at most a small part of a run, since memory
    /// is zeroed before its first use. The number of blocks in a buffer is odd, since buffers at a power-of-two
    /// stride would compete for the same cache lines.
    pub fn unit_bytes(&self, runs: usize, bytes: u64) -> usize {
        let pays = READ_BYTES_MAX.min((bytes / (8 * runs as u64)) as usize);
        let blocks = (self.buffer_bytes(runs) / (2 * runs)).min(pays) / self.block_bytes;
        (blocks.saturating_sub(1) | 1) * self.block_bytes
    }

    /// Returns the bytes of memory to read `runs` runs, with two buffers of `unit_bytes` for each run.
    pub fn readers_bytes(&self, runs: usize, unit_bytes: usize) -> usize {
        taken_bytes(2 * runs * unit_bytes) + runs * self.reader_bytes
    }

    /// Returns the bytes of the largest buffer that fits the memory and can be divided among `runs` runs.
    fn buffer_bytes(&self, runs: usize) -> usize {
        largest_buffer(self.read_bytes.saturating_sub(runs * self.reader_bytes))
    }
}

fn slab_records_max<V>() -> usize {
    if size_of::<V>() == 0 { SLAB_KEYS_MAX } else { SLAB_RECORDS_MAX }
}

/// Returns the size of a check block of run files: about a 32nd of a sink's share of the memory, and at least three
/// records.
fn block_bytes(record_bytes: usize, share: usize, chunk_bytes: Option<usize>) -> usize {
    let small = (share / 32).min(chunk_bytes.unwrap_or(usize::MAX)).max(PAGE_BYTES);
    let rounded = (1 << small.ilog2()).clamp(PAGE_BYTES, BLOCK_BYTES_MAX);
    rounded.max((4 * record_bytes).next_power_of_two())
}

/// The bytes of values in a shard of the dense array. In measurements, half a megabyte stayed in the second-level
/// cache while a bin was applied.
const SHARD_VALUES_BYTES: usize = 512 << 10;
const BIN_RECORDS_MIN: usize = 64;
const BIN_RECORDS_MAX: usize = 8 << 10;
/// The maximum number of records in a block that a dense scan returns.
const SCAN_RECORDS: usize = 16 << 10;

/// The sizes of all buffers of the dense strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DensePlan {
    pub key_range: u64,
    /// The number of keys in a shard, a power of two.
    pub shard_keys: usize,
    pub shards: usize,
    /// The number of records in a bin, a power of two.
    pub bin_records: usize,
    pub scan_records: usize,
    sinks: usize,
}

impl DensePlan {
    /// Computes the sizes for keys and values of these lengths. Returns `None` if there is no key range, or if the
    /// array does not fit in memory.
    pub fn new(config: &Config, key_bytes: usize, value_bytes: usize) -> Option<DensePlan> {
        let key_range = config.key_range?.max(1);
        let memory = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX / 2);
        // If the bitmap alone exceeds the memory, the range is refused, so that no product below can overflow.
        if key_range / 8 > memory as u64 {
            return None;
        }
        let shard_keys = shard_keys(key_range, value_bytes);
        let shards = key_range.div_ceil(shard_keys as u64) as usize;
        let array = taken_bytes(shards.checked_mul(shard_bytes(shard_keys, value_bytes))?);
        let scan_records = SCAN_RECORDS.min(key_range as usize).max(64);
        let sinks = config.sinks.max(1);
        let plan = DensePlan { key_range, shard_keys, shards, bin_records: 0, scan_records, sinks };
        let scan = plan.scan_bytes(key_bytes, value_bytes);
        let left = memory.checked_sub(array)?.checked_sub(scan)? / sinks;
        let bins = |records: usize| {
            taken_bytes(shards * records * key_bytes) + taken_bytes(shards * records * value_bytes)
        };
        let mut bin_records = BIN_RECORDS_MAX;
        // A cursor has 32 bits, which limits the number of records in all bins.
        while bins(bin_records) > left || shards * bin_records > 1 << 31 {
            bin_records /= 2;
            if bin_records < BIN_RECORDS_MIN {
                return None;
            }
        }
        Some(DensePlan { bin_records, ..plan })
    }

    /// Returns the bytes of the output buffers of all scans. There is one scan per sink, since the number of reading
    /// threads is expected to equal the number of sinks.
    pub fn scan_bytes(&self, key_bytes: usize, value_bytes: usize) -> usize {
        self.sinks
            * (taken_bytes(self.scan_records * key_bytes) + taken_bytes(self.scan_records * value_bytes))
    }
}

/// Returns the number of keys per shard. This is a power of two, and a multiple of 64, so that a bitmap consists of
/// complete words.
fn shard_keys(key_range: u64, value_bytes: usize) -> usize {
    // If values have no bytes, a shard is only a bitmap.
    let by_cache = SHARD_VALUES_BYTES.checked_div(value_bytes).unwrap_or(SHARD_VALUES_BYTES * 8);
    let by_range = key_range.min(1 << 40) as usize;
    (1 << by_cache.max(64).ilog2()).min(by_range.next_power_of_two()).max(64)
}

/// Returns the bytes of a shard (values and bitmap), rounded up to pages.
pub(crate) fn shard_bytes(shard_keys: usize, value_bytes: usize) -> usize {
    (shard_keys * value_bytes + shard_keys / 8).next_multiple_of(PAGE_BYTES)
}
