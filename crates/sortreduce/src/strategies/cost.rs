//! The cost model, which estimates the bytes and the CPU time of each strategy, and chooses a strategy.
//!
//! ```text
//!   records n, distinct keys d        from the configuration, or assumed values
//!   memory, sinks, key range      ─►  the memory plans of the strategies: chunks, bins, fronts
//!   drive profile                     measured by the store, or assumed values
//!                                 ─►  Estimate of each possible strategy ─► strategy with the fewest seconds
//! ```
//!
//! The model assumes that all distinct keys are equally frequent. Skewed keys are combined more often, which is an
//! advantage for the strategies that combine before they write. A strategy has two phases, pushing and reading. Drive
//! and cores work at the same time, so a phase takes the larger of the two times. CPU times are constants, which are
//! listed with their measurements.

use std::fmt;

use inshore_store::{DriveProfile, format_bytes};
use serde::Serialize;

use crate::{
    Config, Strategy, keys::record::RecordLayout, plan::DensePlan, smallest_memory_bytes, strategies::front,
    strategies::partplan::PartitionPlan,
};

// Unless stated otherwise, the following constants are CPU nanoseconds per record. They were measured with
// `examples/strategies.rs`, 64 million records and two threads. The times include I/O threads and the zeroing of
// memory. The ratios of the constants matter more than their absolute values.
/// The time of the dense strategy for a value of 4 bytes, and for each additional byte. This time covers bins, shards
/// and the scan of the result. With 65,536 keys over arrays of 400 and 800 MB, dense took 17 and 19 ns, without first
/// touches of memory.
const DENSE_NS: f64 = 12.0;
const DENSE_BYTE_NS: f64 = 0.6;
/// The additional time of the dense strategy if the array is larger than the last-level cache. One random update in
/// 256 MiB takes 14 ns. With keys all over arrays of 400 and 800 MB, dense took 32 and 38 ns in total.
const DENSE_FAR_NS: f64 = 20.0;
const DENSE_FAR_BYTES: f64 = (32 << 20) as f64;
const LINE_BYTES: f64 = 64.0;
/// The nanoseconds per byte for the first touch of memory.
const TOUCH_NS: f64 = 0.35;
/// The times of the partition strategy for pushing (filling bins and packing blocks) and for reading (unpacking
/// blocks and filling tables). Including `PARTITION_KEY_NS`, both together take 21 ns if all records stay in memory.
const PARTITION_PUSH_NS: f64 = 12.0;
const PARTITION_READ_NS: f64 = 8.0;
/// The nanoseconds of the partition strategy for each key of the range, for bitmap and table.
const PARTITION_KEY_NS: f64 = 0.5;
/// The time of the merge strategy to scatter a record to a bucket and sort the chunk once, for a record of 8 bytes
/// and for each additional byte. With 65,536 keys, where no runs are merged, merge took 21 and 24 ns for records of 8
/// and 16 bytes.
const FORM_NS: f64 = 21.0;
const FORM_BYTE_NS: f64 = 0.4;
/// The time of the merge strategy to pack, unpack and merge a record of a run, for a record of 8 bytes and for each
/// additional byte. With evenly spread keys, merge took 36 and 42 ns for records of 8 and 16 bytes, including run
/// formation.
const MERGE_NS: f64 = 16.0;
const MERGE_BYTE_NS: f64 = 0.25;
/// The time of the hash-first strategy for a probe of the table, in addition to run formation, for a record of 8
/// bytes and for each additional byte. With 65,536 keys and records of 8 and 16 bytes, 63 and 47 % of the probes hit.
/// In this case, hash-first took 8.6 and 13 ns, including records that were not combined in the table. Merge without
/// the table took 10.3 and 10.8 ns.
const FRONT_NS: f64 = 10.0;
const FRONT_BYTE_NS: f64 = 0.4;
/// The assumed fraction of records with popular keys. The fraction is used if the distinct keys are too many for the
/// table, but far fewer than with evenly spread keys. By Zipf's law over 100 million keys, 60 % of the records have
/// one of the first 65,000 keys.
const POPULAR_SHARE: f64 = 0.6;

/// The assumed rates of a drive that was not measured: bytes per second while the cores work, and random block reads
/// per second. A virtual drive wrote and read bins of 599 MB in 2.0 s.
const DRIVE_BYTES_PER_SECOND: f64 = 0.6e9;
const DRIVE_READS_PER_SECOND: f64 = 40e3;
/// The approximate bytes of a read request in a merge.
const MERGE_READ_BYTES: u64 = 256 << 10;
const WRITE_BYTES: u64 = 1 << 20;
/// The assumed bytes of all records, as a multiple of the memory, if the configuration has no expected number.
const MEMORY_TIMES: u64 = 8;

/// The assumed fraction of a value's bits that remain in a packed run. Counts and sums are small numbers, but hashes
/// and floating-point values are not.
const VALUE_KEPT: f64 = 0.5;
/// The factor by which the estimate of the partition strategy is increased. Real keys are less even than the model
/// assumes. All other strategies gain from uneven keys, since they combine before they write.
const PARTITION_HANDICAP: f64 = 1.1;

/// The estimated cost of one strategy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The strategy that is estimated.
    pub strategy: Strategy,
    /// The bytes of runs or bins that are written to the drive.
    pub bytes_written: u64,
    /// The bytes of runs or bins that are read from the drive.
    pub bytes_read: u64,
    /// The seconds that the drive needs to write and read runs or bins.
    pub drive_seconds: f64,
    /// The CPU seconds of all cores together.
    pub cpu_seconds: f64,
    /// The estimated seconds in total. Each phase takes the larger of the drive's time and the cores' time. The
    /// estimate of partition is increased by a tenth, since partition gains nothing from uneven keys.
    pub seconds: f64,
}

/// The chosen strategy, and the estimates that led to the choice. The option `--explain` prints both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The strategy that was chosen.
    pub strategy: Strategy,
    /// True if the strategy was forced; false if it has the lowest estimate.
    pub is_forced: bool,
    /// The expected number of records: [`Config::expected_records`], or an assumption.
    pub records: u64,
    /// The expected number of distinct keys: [`Config::expected_keys`], or an assumption.
    pub keys: u64,
    /// True if the drive's rates were measured; false if they are assumptions.
    pub is_drive_measured: bool,
    /// The estimates of the strategies that the key range and the memory allow, in ascending order of seconds.
    pub estimates: Vec<Estimate>,
}

impl Choice {
    /// Estimates all strategies. Chooses the forced strategy if there is one, and otherwise the fastest.
    pub(crate) fn new(config: &Config, layout: RecordLayout, profile: Option<&DriveProfile>) -> Choice {
        let model = Model::new(config, layout, profile);
        let mut estimates: Vec<Estimate> =
            Strategy::ALL.into_iter().filter_map(|strategy| model.estimate(strategy)).collect();
        estimates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let least = estimates.first().map_or(Strategy::Merge, |estimate| estimate.strategy);
        Choice {
            strategy: config.strategy.unwrap_or(least),
            is_forced: config.strategy.is_some(),
            records: model.records as u64,
            keys: model.keys as u64,
            is_drive_measured: profile.is_some(),
            estimates,
        }
    }
}

/// Returns the strategy for values of `value_bytes` bytes on a drive that was not measured. This is the forced
/// strategy if there is one, and otherwise the fastest by [`Choice`].
pub fn choose(config: &Config, value_bytes: usize) -> Strategy {
    // Most keys have 4 or 8 bytes. The larger size is assumed.
    let layout = RecordLayout {
        key_bytes: 8,
        value_bytes,
        value_align: 1 << value_bytes.trailing_zeros().min(3),
        short_bits: None,
    };
    Choice::new(config, layout, None).strategy
}

impl fmt::Display for Choice {
    /// Writes the choice and the estimates as a few lines of text.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.is_forced { "forced" } else { "least estimate" };
        writeln!(
            out,
            "{} ({why}) for {} records of {} keys, {} drive",
            self.strategy,
            self.records,
            self.keys,
            if self.is_drive_measured { "measured" } else { "assumed" }
        )?;
        for estimate in &self.estimates {
            writeln!(
                out,
                "  {:10} {:8.2} s: cores {:.2} s, drive {:.2} s ({} written, {} read)",
                estimate.strategy.to_string(),
                estimate.seconds,
                estimate.cpu_seconds,
                estimate.drive_seconds,
                format_bytes(estimate.bytes_written),
                format_bytes(estimate.bytes_read)
            )?;
        }
        Ok(())
    }
}

/// The inputs from which the cost of each strategy is estimated.
struct Model<'a> {
    config: &'a Config,
    layout: RecordLayout,
    profile: Option<&'a DriveProfile>,
    threads: f64,
    records: f64,
    keys: f64,
    /// The number of distinct keys that is expected if keys are spread evenly over the range.
    even_keys: f64,
}

/// The cost of a phase: the bytes written and read, the bytes of one read request, and the CPU nanoseconds.
#[derive(Clone, Copy, Default)]
struct Phase {
    written: f64,
    read: f64,
    read_bytes: u64,
    cpu_ns: f64,
}

/// Returns the expected number of distinct keys among `records` records, if each of `keys` keys is equally likely.
fn distinct(records: f64, keys: f64) -> f64 {
    keys * -(-records / keys).exp_m1()
}

impl<'a> Model<'a> {
    fn new(config: &'a Config, layout: RecordLayout, profile: Option<&'a DriveProfile>) -> Model<'a> {
        let record = (layout.key_bytes + layout.value_bytes) as u64;
        let guess = config.memory_bytes.saturating_mul(MEMORY_TIMES) / record;
        let records = config.expected_records.unwrap_or(guess).min(config.records_max.unwrap_or(u64::MAX));
        let records = records.max(1) as f64;
        let range = config.key_range.map_or(f64::INFINITY, |range| range.max(1) as f64);
        let even_keys = if range.is_finite() { distinct(records, range).max(1.0) } else { records };
        let keys =
            config.expected_keys.map_or(even_keys, |keys| (keys.max(1) as f64).min(range).min(records));
        let threads = config.sinks.max(1) as f64;
        Model { config, layout, profile, threads, records, keys, even_keys }
    }

    fn estimate(&self, strategy: Strategy) -> Option<Estimate> {
        let phases = match strategy {
            Strategy::Dense => self.dense()?,
            Strategy::Partition => self.partition()?,
            Strategy::Merge => self.merge(self.records, self.config.memory_bytes)?,
            Strategy::HashFirst => self.hash_first()?,
        };
        let mut sum = Estimate {
            strategy,
            bytes_written: 0,
            bytes_read: 0,
            drive_seconds: 0.0,
            cpu_seconds: 0.0,
            seconds: 0.0,
        };
        for phase in phases {
            let (drive, cpu) = (self.drive_seconds(phase), phase.cpu_ns * 1e-9);
            sum.bytes_written += phase.written as u64;
            sum.bytes_read += phase.read as u64;
            sum.drive_seconds += drive;
            sum.cpu_seconds += cpu;
            sum.seconds += drive.max(cpu / self.threads);
        }
        if strategy == Strategy::Partition {
            sum.seconds *= PARTITION_HANDICAP;
        }
        Some(sum)
    }

    fn drive_seconds(&self, phase: Phase) -> f64 {
        match self.profile {
            Some(profile) => {
                profile.write_seconds(phase.written as u64, WRITE_BYTES, true)
                    + profile.read_seconds(phase.read as u64, phase.read_bytes, false)
            }
            None => {
                let read_rate = DRIVE_BYTES_PER_SECOND.min(DRIVE_READS_PER_SECOND * phase.read_bytes as f64);
                phase.written / DRIVE_BYTES_PER_SECOND + phase.read / read_rate.max(1.0)
            }
        }
    }

    fn record_bytes(&self) -> f64 {
        (self.layout.key_bytes + self.layout.value_bytes) as f64
    }

    /// Estimates the bytes of a record in a packed run of `records` records. A packed record consists of the
    /// difference from the previous key, and a part of the value's bits.
    fn packed_bytes(&self, records: f64) -> f64 {
        let RecordLayout { key_bytes, value_bytes, .. } = self.layout;
        if key_bytes > 8 || value_bytes % 4 != 0 {
            return self.record_bytes();
        }
        let range =
            self.config.key_range.map_or((8.0 * key_bytes as f64).exp2(), |range| range.max(1) as f64);
        let key_bits = ((range / records.max(1.0)).max(1.0).log2() + 2.0).min(8.0 * key_bytes as f64);
        key_bits / 8.0 + value_bytes as f64 * VALUE_KEPT
    }

    fn dense(&self) -> Option<[Phase; 2]> {
        let RecordLayout { key_bytes, value_bytes, .. } = self.layout;
        // Keys of fewer than 8 bytes count as 8 bytes, since `choose` assumes 8 bytes and must make the same choice.
        DensePlan::new(self.config, key_bytes.max(8), value_bytes)?;
        // The operating system provides memory in large pages. Few keys over a wide range therefore touch almost one
        // page per key.
        let pages = self.config.key_range? as f64 * value_bytes as f64 / (2 << 20) as f64;
        let touched = distinct(self.keys, pages.max(1.0)) * (2 << 20) as f64;
        let cached = self.keys * LINE_BYTES.max(value_bytes as f64);
        let far_ns = if touched.min(cached) > DENSE_FAR_BYTES { DENSE_FAR_NS } else { 0.0 };
        let each_ns = DENSE_NS + DENSE_BYTE_NS * value_bytes.saturating_sub(4) as f64 + far_ns;
        let cpu_ns = self.records * each_ns + touched * TOUCH_NS;
        Some([Phase { cpu_ns, ..Phase::default() }, Phase::default()])
    }

    fn partition(&self) -> Option<[Phase; 2]> {
        let plan = PartitionPlan::new(self.config, self.layout)?;
        let in_memory = plan.bins as f64 * plan.block_records as f64 * self.threads;
        // On average, half a block of each bin is in memory at the end.
        let spilled =
            if self.records <= in_memory / 2.0 { 0.0 } else { (self.records - in_memory / 2.0).max(0.0) };
        let blocks = spilled / plan.block_records as f64;
        if blocks > plan.blocks_max as f64 {
            return None;
        }
        let bytes = blocks * plan.block_bytes as f64;
        let push = Phase { written: bytes, cpu_ns: self.records * PARTITION_PUSH_NS, ..Phase::default() };
        let cpu_ns = self.records * PARTITION_READ_NS + plan.key_range as f64 * PARTITION_KEY_NS;
        Some([push, Phase { read: bytes, read_bytes: plan.block_bytes as u64, cpu_ns, ..Phase::default() }])
    }

    /// Estimates the merge strategy for `records` records with `memory_bytes` bytes of memory.
    fn merge(&self, records: f64, memory_bytes: u64) -> Option<[Phase; 2]> {
        let smallest = smallest_memory_bytes(self.config.sinks, self.record_bytes() as usize);
        if memory_bytes < smallest {
            return None;
        }
        let share = memory_bytes as f64 * 0.8 / self.threads;
        let chunk = share.min(self.config.chunk_bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
        let chunk = (chunk / self.record_bytes()).max(1.0);
        // A chunk is filled repeatedly, until it is more than half full after a sort. `fills` is the expected number
        // of records pushed until then.
        let fills = if self.keys <= chunk / 2.0 {
            f64::INFINITY
        } else {
            -self.keys * (-chunk / 2.0 / self.keys).ln_1p()
        };
        let pushed = fills.max(chunk);
        let each = records / self.threads;
        let form_ns = FORM_NS + FORM_BYTE_NS * (self.record_bytes() - 8.0).max(0.0);
        let merge_ns = MERGE_NS + MERGE_BYTE_NS * (self.record_bytes() - 8.0).max(0.0);
        let in_run = distinct(pushed.min(each), self.keys);
        let left = in_run * (each / pushed).max(1.0) * self.threads;
        let bytes = if each > pushed { left * self.packed_bytes(in_run) } else { 0.0 };
        let touched = (records * self.record_bytes()).min(0.8 * memory_bytes as f64);
        let cpu_ns = records * form_ns + touched * TOUCH_NS;
        let push = Phase { written: bytes, cpu_ns, ..Phase::default() };
        let read =
            Phase { read: bytes, read_bytes: MERGE_READ_BYTES, cpu_ns: left * merge_ns, ..Phase::default() };
        // If there are more runs than the fan-in, some runs are merged, written and read again.
        let runs = each / pushed * self.threads;
        let fan_in = (memory_bytes as f64 * 0.7 / (2.0 * 64.0 * 1024.0)).max(16.0);
        let again = if runs > fan_in { ((runs - fan_in) / runs).min(1.0) } else { 0.0 };
        let push = Phase {
            written: push.written + bytes * again,
            read: bytes * again,
            read_bytes: MERGE_READ_BYTES,
            cpu_ns: push.cpu_ns + left * again * merge_ns,
        };
        Some([push, read])
    }

    fn hash_first(&self) -> Option<[Phase; 2]> {
        let (slots, fronts) = front::plan(self.config, self.layout)?;
        // If the key range has at most as many keys as the table has slots, the array of the dense strategy also fits
        // in the cache. Hash-first then has no advantage.
        if self.config.key_range.is_some_and(|range| range <= slots as u64) && self.dense().is_some() {
            return None;
        }
        let slots = slots as f64;
        // A probe is a hit unless another key has replaced the record's key in its slot.
        let hits = (slots / self.keys * -(-self.keys / slots).exp_m1()).min(1.0);
        let is_uneven = self.keys < self.even_keys / 2.0;
        let hits = if is_uneven && hits < front::HITS_MIN { POPULAR_SHARE } else { hits };
        let hits = if hits < front::HITS_MIN {
            0.0
        } else {
            hits * (1.0 - self.keys.min(self.records) / self.records)
        };
        let memory_bytes = self.config.memory_bytes - fronts;
        let mut phases = self.merge(self.records * (1.0 - hits), memory_bytes)?;
        let probe_ns = FRONT_NS + FRONT_BYTE_NS * (self.record_bytes() - 8.0).max(0.0);
        phases[0].cpu_ns += self.records * probe_ns;
        Some(phases)
    }
}
