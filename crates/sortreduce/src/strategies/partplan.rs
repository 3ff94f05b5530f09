//! Computes how the partition strategy divides its memory. This module allocates nothing.

use crate::{Config, array::taken_bytes, keys::record::RecordLayout};

/// The maximum bytes of values in a bin's table. The table must fit in the second-level cache, as a shard of the
/// dense strategy does.
const TABLE_VALUES_BYTES: usize = 512 << 10;
/// The maximum number of bins. With more bins, the cache lines to which records are scattered would not fit in the
/// cache.
const BINS_MAX: u64 = 2048;
/// The preferred minimum size of blocks, which are read in random order. In measurements, random reads of 64 KiB
/// reached a third of the full rate, and random reads of 16 KiB reached a tenth.
const BLOCK_BYTES_WISHED: usize = 32 << 10;
/// The block sizes that are tried, in KiB. The unit of checksums is the largest power of two that divides the size.
const BLOCK_KIB: [usize; 17] = [1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4];
const CHECK_BYTES_MAX: usize = 64 << 10;
const WRITE_BYTES_MAX: usize = 1 << 20;
/// The bytes of read requests that one reader has in flight.
const READ_AHEAD_BYTES: usize = 2 << 20;
/// The maximum number of records in a block that a reader returns.
const SCAN_RECORDS: usize = 16 << 10;
/// The number of records that one unpacking step processes.
pub(crate) const UNPACKED_RECORDS: usize = 4 << 10;

/// The bytes of memory per block, in addition to its checksums. They are for the number of the block's bin, and for
/// the block number in the order of bins.
pub(crate) const BLOCK_NUMBER_BYTES: usize = 8;

/// The sizes of all buffers of the partition strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartitionPlan {
    pub memory_bytes: u64,
    pub key_range: u64,
    /// The number of low bits of a key that are stored in a bin. A bin covers `2^bin_bits` keys.
    pub bin_bits: u32,
    pub bins: usize,
    /// The bytes of a key on flash, including the value if values are short.
    pub low_bytes: usize,
    /// True if one word contains both the low bits and a short value, so that there are no separate values.
    pub is_short: bool,
    pub block_bytes: usize,
    pub block_records: usize,
    /// The byte offset of the values in a block.
    pub values_offset: usize,
    /// The bytes that one checksum covers.
    pub check_bytes: usize,
    pub write_bytes: usize,
    /// The maximum number of blocks that all sinks together may write. The number is limited because block numbers
    /// are in memory.
    pub blocks_max: usize,
    /// The number of block reads that one reader has in flight.
    pub reads_ahead: usize,
    pub scan_records: usize,
    /// The bytes of memory that one reader takes.
    pub reader_bytes: usize,
    /// The largest number of parallel readers.
    pub readers_max: usize,
}

impl PartitionPlan {
    /// Returns the first key of a bin.
    #[inline(always)]
    pub fn first_key(&self, bin: usize) -> u64 {
        (bin as u64) << self.bin_bits
    }

    /// Computes the sizes. Returns `None` if there is no key range, or if the range is too wide for the memory.
    pub fn new(config: &Config, layout: RecordLayout) -> Option<PartitionPlan> {
        let value_bytes = layout.value_bytes;
        let range = config.key_range?.max(1);
        let bits_of_range = u64::BITS - (range - 1).leading_zeros();
        let by_cache =
            TABLE_VALUES_BYTES.checked_div(value_bytes).unwrap_or(TABLE_VALUES_BYTES * 8).max(64).ilog2();
        // Tests force small chunks, and then also need several bins.
        let first = if config.chunk_bytes.is_some() {
            by_cache.min(bits_of_range.saturating_sub(4))
        } else {
            by_cache
        };
        let plans = |bits| {
            let sizes = BLOCK_KIB.iter().map(|kib| kib << 10);
            let shape = PlanInputs { config, range, bits, layout };
            sizes.filter_map(move |block_bytes| shape.plan(block_bytes)).next()
        };
        let all =
            || (first.max(6)..32).filter(|bits| range.div_ceil(1 << bits) <= BINS_MAX).filter_map(plans);
        let is_enough =
            |plan: &PartitionPlan| plan.block_bytes >= BLOCK_BYTES_WISHED || config.chunk_bytes.is_some();
        all().find(is_enough).or_else(|| all().max_by_key(|plan| plan.block_bytes))
    }
}

/// The inputs from which a plan is computed.
#[derive(Clone, Copy)]
struct PlanInputs<'a> {
    config: &'a Config,
    range: u64,
    bits: u32,
    layout: RecordLayout,
}

impl PlanInputs<'_> {
    /// Returns the plan with blocks of `block_bytes` bytes, or `None` if the memory does not suffice.
    fn plan(self, block_bytes: usize) -> Option<PartitionPlan> {
        let PlanInputs {
            config,
            range,
            bits,
            layout: RecordLayout { value_bytes, value_align, short_bits, .. },
        } = self;
        let short_bits = short_bits.filter(|short| short + bits <= u32::BITS);
        let value_bytes = if short_bits.is_some() { 0 } else { value_bytes };
        let memory = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX / 2);
        let sinks = config.sinks.max(1);
        let index_bytes = memory / 8;
        let left = memory - index_bytes;
        let bins = range.div_ceil(1 << bits) as usize;
        let low_bytes = ((bits + short_bits.unwrap_or(0)) as usize).div_ceil(8).max(2);
        let check_bytes = (1 << block_bytes.trailing_zeros()).min(CHECK_BYTES_MAX);
        let mut block_records = block_bytes / (low_bytes + value_bytes);
        let offset = |records: usize| (records * low_bytes).next_multiple_of(value_align);
        while offset(block_records) + block_records * value_bytes > block_bytes {
            block_records -= 1;
        }
        if check_bytes < inshore_store::PAGE_BYTES || block_records == 0 || bins * block_records > 1 << 31 {
            return None;
        }
        if config.chunk_bytes.is_some_and(|bytes| block_bytes > (bytes / 8).max(4 << 10)) {
            return None;
        }
        let write_bytes = (left / sinks / 32).clamp(check_bytes, WRITE_BYTES_MAX) / check_bytes * check_bytes;
        let staging = taken_bytes(bins * block_records * 4)
            + taken_bytes(bins * block_records * value_bytes)
            + taken_bytes(block_bytes);
        let reads_ahead = (READ_AHEAD_BYTES / block_bytes).clamp(3, 16);
        let scan_records = SCAN_RECORDS.min(1 << bits).max(64);
        let reader = self.reader_bytes(scan_records, reads_ahead * block_bytes);
        let writing = sinks.checked_mul(staging + taken_bytes(2 * write_bytes))?;
        if writing.checked_add(sinks * reader)? > left {
            return None;
        }
        let block_index_bytes = 4 * block_bytes / check_bytes + BLOCK_NUMBER_BYTES;
        // Memory for checksums and for block numbers is reserved in steps of a page.
        let blocks_max = (index_bytes / sinks).saturating_sub(2 << 12) / block_index_bytes * sinks;
        if config.records_max.is_some_and(|records| records / block_records as u64 > blocks_max as u64) {
            return None;
        }
        Some(PartitionPlan {
            memory_bytes: config.memory_bytes,
            key_range: range,
            bin_bits: bits,
            bins,
            low_bytes,
            is_short: short_bits.is_some(),
            block_bytes,
            block_records,
            values_offset: offset(block_records),
            check_bytes,
            write_bytes,
            blocks_max,
            reads_ahead,
            scan_records,
            reader_bytes: reader,
            readers_max: (left - sinks * staging) / reader,
        })
    }

    fn reader_bytes(&self, scan_records: usize, read_bytes: usize) -> usize {
        let RecordLayout { key_bytes, value_bytes, .. } = self.layout;
        let keys = 1usize << self.bits;
        taken_bytes(keys * value_bytes)
            + taken_bytes(keys.div_ceil(64) * 8)
            + taken_bytes(scan_records * key_bytes)
            + taken_bytes(scan_records * value_bytes)
            + taken_bytes(UNPACKED_RECORDS * 4)
            + taken_bytes(read_bytes)
    }
}
