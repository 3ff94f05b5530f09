//! Compares sort-reduce with a `BTreeMap`. Every strategy, budget and key type must have the same result.

use crate::common::{Random, TestJob, assert_same, by, job, model, sort_reduce, sort_reduce_in};
use inshore_sortreduce::{
    Block, Config, Error, Key, Operation, SortReduce, Strategy, choose, smallest_memory_bytes,
};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MIB: u64 = 1 << 20;

fn config(memory_bytes: u64, sinks: usize) -> Config {
    Config { memory_bytes, sinks, name: "test", ..Config::default() }
}

/// Returns all tested configurations for records of `record_bytes` bytes, whose keys are below `range` if there is a
/// range.
fn configs(range: Option<u64>, record_bytes: usize) -> Vec<Config> {
    let mut all = Vec::new();
    for sinks in [1, 3] {
        let tiny = smallest_memory_bytes(sinks, record_bytes);
        for (memory_bytes, chunk_bytes) in [
            (64 * MIB, None),
            (tiny, None),
            (tiny.max(sinks as u64 * MIB), Some(4 << 10)),
            (16 * MIB, Some(64 << 10)),
        ] {
            let merge =
                Config { chunk_bytes, strategy: Some(Strategy::Merge), ..config(memory_bytes, sinks) };
            if range.is_some() {
                all.push(Config { key_range: range, ..merge.clone() });
            }
            all.push(merge);
        }
        if range.is_some() {
            let strategy = Some(Strategy::Dense);
            all.push(Config { key_range: range, strategy, ..config(256 * MIB, sinks) });
            for (memory_bytes, chunk_bytes) in [(64 * MIB, None), (16 * MIB, Some(64 << 10))] {
                let strategy = Some(Strategy::Partition);
                all.push(Config { key_range: range, strategy, chunk_bytes, ..config(memory_bytes, sinks) });
            }
        }
        let tiny = smallest_memory_bytes(sinks, record_bytes)
            + (sinks * (64 << 10) + sinks * 1100 * record_bytes) as u64;
        for (memory_bytes, chunk_bytes) in [(64 * MIB, None), (tiny, Some(16 << 10))] {
            let strategy = Some(Strategy::HashFirst);
            all.push(Config { key_range: range, strategy, chunk_bytes, ..config(memory_bytes, sinks) });
        }
    }
    all
}

fn check<O: Operation>(operation: &O, range: Option<u64>, records: &[(O::Key, O::Value)])
where
    O::Key: std::fmt::Debug,
    O::Value: PartialEq + std::fmt::Debug,
{
    let expected = model(operation, records);
    let configs = configs(range, size_of::<O::Key>() + size_of::<O::Value>());
    for (config, parts) in configs.into_iter().zip([1, 2, 1, 3, 1, 8, 2].into_iter().cycle()) {
        let job = job(config.memory_bytes, &[]);
        let (got, _) = sort_reduce_in(parts, &job, operation, &config, records).unwrap();
        assert_same(&got, &expected, &format!("{} records, {parts} parts, {config:?}", records.len()));
        assert!(job.job.budget().reserved_bytes_max() <= config.memory_bytes);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Extent {
    low: u32,
    high: u32,
    count: u64,
}

fn join(a: Extent, b: Extent) -> Extent {
    Extent { low: a.low.min(b.low), high: a.high.max(b.high), count: a.count + b.count }
}

/// A distribution of keys, as a function of the record's index, the number of records and a random number.
type Shape = fn(u64, u64, u64) -> u64;

const SHAPES: [(&str, Shape); 8] = [
    ("uniform", |_, _, random| random),
    ("sorted", |i, _, _| i * 3),
    ("reversed", |i, n, _| (n - i) * 3),
    ("all equal", |_, _, _| 77),
    ("few distinct", |_, _, random| random % 5 * 1_000_003),
    ("one heavy bucket", |i, _, random| if i % 50 == 0 { random } else { 5_000_000 + random % 100_000 }),
    ("largest keys", |i, _, random| u64::MAX - (random % 1000) * (i % 3)),
    ("nested prefixes", |_, _, random| random >> (random % 61)),
];

fn keys<K: Key>(shape: Shape, count: u64, range: Option<u64>) -> Vec<K> {
    let mut random = Random(count);
    let key = |i| shape(i, count, random.next());
    (0..count).map(key).map(|key| K::from_u64(range.map_or(key, |range| key % range))).collect()
}

#[test]
fn small_sizes_and_all_shapes_agree_with_the_model() {
    for count in [0, 1, 2, 3, 255, 256, 257, 8191, 8192, 8193] {
        for (name, shape) in SHAPES {
            println!("{count} {name}");
            let records: Vec<(u64, u64)> = keys(shape, count, None).into_iter().zip(1..).collect();
            check(&by(|a: u64, b| a.wrapping_add(b)), None, &records);
            let range = Some(100_000);
            let records: Vec<(u32, u32)> = keys(shape, count, range).into_iter().zip(1..).collect();
            check(&by(|a: u32, b| a.min(b)), range, &records);
        }
    }
}

#[test]
fn large_inputs_of_all_shapes_agree_with_the_model() {
    for (name, shape) in SHAPES {
        println!("{name}");
        let records: Vec<(u64, u64)> = keys(shape, 150_000, None).into_iter().zip(1..).collect();
        check(&by(|a: u64, b| a.wrapping_add(b)), None, &records);
        let records: Vec<(u64, ())> = keys(shape, 200_000, None).into_iter().map(|key| (key, ())).collect();
        check(&by(|(), ()| ()), None, &records);
        let range = Some(3_000_000);
        let records: Vec<(u32, ())> = keys(shape, 150_000, range).into_iter().map(|key| (key, ())).collect();
        check(&by(|(), ()| ()), range, &records);
        let extent = |key| Extent { low: key, high: key, count: 1 };
        let records: Vec<(u32, Extent)> =
            keys(shape, 100_000, range).into_iter().zip((0..).map(extent)).collect();
        check(&by(join), range, &records);
    }
}

/// Functions that map a number to a key of 128 bits. The keys differ in their highest bits, in their lowest bits, in
/// both, or in the middle.
const WIDENINGS: [fn(u64) -> u128; 4] = [
    |key| u128::from(key) << 64,
    u128::from,
    |key| u128::from(key) << 62 | u128::from(key % 1000),
    |key| u128::from(key % 3) << 126 | u128::from(key) << 40,
];

#[test]
fn wide_keys_of_all_shapes_agree_with_the_model() {
    for (name, shape) in SHAPES {
        println!("{name}");
        for (count, widen) in
            [1, 257, 50_000].into_iter().flat_map(|count| WIDENINGS.map(|widen| (count, widen)))
        {
            let keys = keys::<u64>(shape, count, None).into_iter().map(widen);
            if count > 257 {
                let records: Vec<(u128, ())> = keys.map(|key| (key, ())).collect();
                check(&by(|(), ()| ()), None, &records);
            } else {
                let records: Vec<(u128, u32)> = keys.zip(1..).collect();
                check(&by(|a: u32, b| a.wrapping_add(b)), None, &records);
            }
        }
        let records: Vec<(u128, u64)> = keys(shape, 50_000, Some(100_000)).into_iter().zip(1..).collect();
        check(&by(|a: u64, b| a.min(b)), Some(100_000), &records);
    }
}

#[test]
fn wide_values_are_sorted_too() {
    let mut random = Random(1);
    let value = |n: u64| [n; 32];
    let records: Vec<(u64, [u64; 32])> = (0..20_000).map(|n| (random.below(15_000), value(n))).collect();
    check(&by(|a: [u64; 32], b| if a[0] < b[0] { a } else { b }), Some(15_000), &records);
}

#[test]
fn sums_of_floats_agree_within_their_tolerance() {
    let mut random = Random(2);
    let mut value = || random.below(1 << 40) as f64 * 1e-7;
    let records: Vec<(u32, f64)> = (0..200_000).map(|n| (n * 7 % 999, value())).collect();
    let operation = by(|a: f64, b| a + b);
    let expected = model(&operation, &records);
    for config in configs(Some(1000), 12) {
        let (got, _) = sort_reduce(&job(config.memory_bytes, &[]), &operation, &config, &records).unwrap();
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(&expected) {
            assert_eq!(got.0, expected.0);
            let tolerance = 201.0 * f64::EPSILON * expected.1;
            assert!((got.1 - expected.1).abs() <= tolerance, "{got:?} {expected:?}");
        }
    }
}

#[test]
fn many_records_at_once_are_the_same_as_one_after_the_other() {
    let mut random = Random(3);
    let operation = by(|a: u64, b| a + b);
    for strategy in Strategy::ALL {
        let config = Config {
            key_range: Some(50_000),
            strategy: Some(strategy),
            chunk_bytes: Some(16 << 10),
            ..config(16 * MIB, 1)
        };
        let job = job(16 * MIB, &[]);
        let sort = SortReduce::new(&job.job, operation.clone(), &config).unwrap();
        let mut sink = sort.sink().unwrap();
        let mut records = Vec::new();
        for vertex in 0..2000 {
            let degree = random.below([3, 70, 700][vertex as usize % 3]);
            let keys: Vec<u32> = (0..degree).map(|_| random.below(50_000) as u32).collect();
            sink.push_all(&keys, vertex).unwrap();
            records.extend(keys.iter().map(|&key| (key, vertex)));
            // This call pushes many records at once, between records that are buffered one by one.
            sink.push_many(&keys, |at| at as u64).unwrap();
            records.extend(keys.into_iter().zip(0..));
            sink.push(7, 1).unwrap();
            records.push((7, 1));
        }
        sink.finish().unwrap();
        let mut sorted = sort.finish().unwrap();
        let mut got = Vec::new();
        while let Some(Block { keys, values }) = sorted.next_block().unwrap() {
            got.extend(keys.iter().copied().zip(values.iter().copied()));
        }
        assert_same(&got, &model(&operation, &records), "push_all and push_many");
    }
}

/// Creates a job, a configuration and records for which the merge strategy writes many runs under a small budget.
fn spill(count: u64, sinks: usize) -> (TestJob, Config, Vec<(u64, u64)>) {
    let config = Config {
        strategy: Some(Strategy::Merge),
        chunk_bytes: Some(8 << 10),
        ..config((sinks as u64 * 512) << 10, sinks)
    };
    let mut random = Random(count);
    let records = (0..count).map(|n| (random.below(count * 10), n)).collect();
    (job(config.memory_bytes, &[]), config, records)
}

#[test]
fn more_runs_than_the_fan_in_are_merged_in_several_passes() {
    for sinks in [1, 2] {
        let (job, config, records) = spill(150_000, sinks);
        let operation = by(|a: u64, b| a + b);
        let (got, stats) = sort_reduce(&job, &operation, &config, &records).unwrap();
        assert_same(&got, &model(&operation, &records), "spilled");
        assert!(stats.runs > stats.fan_in as u64 && stats.merge_passes >= 2, "{stats:?}");
        assert!(stats.bytes_spilled > 150_000 * 16, "{stats:?}");
        assert!(job.job.counters().bytes_read() >= stats.bytes_spilled);
        assert!(job.job.budget().reserved_bytes_max() <= config.memory_bytes);
        let levels = job.job.report().levels;
        assert_eq!(levels.len(), stats.merge_passes as usize + 1, "{levels:?}");
        assert_eq!(levels[0].records_in, 150_000);
        assert_eq!(levels.last().unwrap().records_out, got.len() as u64);
        assert!(levels.iter().all(|level| level.records_in >= level.records_out), "{levels:?}");
    }
}

#[test]
fn the_parts_of_a_result_hold_about_equally_many_records() {
    let operation = by(|a: u64, b| a + b);
    // Two thirds of the keys are in the lowest fifth of the key range.
    let key = |n: u64| if n < 800_000 { n } else { 800_000 + (n - 800_000) * 8 };
    let records: Vec<(u64, u64)> = (0..1_200_000).map(|n| (key(n * 7919 % 1_200_000), n)).collect();
    let expected = model(&operation, &records);
    let dense = Config { key_range: Some(1 << 22), ..config(64 * MIB, 2) };
    let memory = Config { strategy: Some(Strategy::Merge), ..config(64 * MIB, 2) };
    let flash = Config { chunk_bytes: Some(1 << 22), ..memory.clone() };
    for config in [dense, memory, flash] {
        for parts in [1, 2, 3, 5] {
            let job = job(config.memory_bytes, &[]);
            let sort = SortReduce::new(&job.job, operation.clone(), &config).unwrap();
            crate::common::push_all(&sort, 2, &records).unwrap();
            let sorted = sort.finish().unwrap().split(parts).unwrap();
            assert_eq!(sorted.len(), parts);
            let mut got = Vec::new();
            for part in sorted {
                let (records, stats) = crate::common::read(part).unwrap();
                assert_eq!(stats.records_in, 1_200_000);
                let fair = expected.len() / parts;
                // A shard of a dense array has 2^16 keys.
                let slack = if stats.strategy == Strategy::Dense { 100_000 } else { 60_000 };
                let what = format!("{} of {fair} in {parts} parts, {config:?}", records.len());
                assert!(records.len().abs_diff(fair) <= slack, "{what}");
                got.extend(records);
            }
            assert_same(&got, &expected, "parts");
            assert!(job.job.budget().reserved_bytes_max() <= config.memory_bytes);
            let level = job.job.report().levels.into_iter().next_back().unwrap();
            assert_eq!(level.records_out, expected.len() as u64);
        }
    }
}

/// Parts that are read one after the other have the same records as the whole result. They take at most the reported
/// memory, and few bytes are read twice.
#[test]
fn parts_in_turns_are_the_whole_within_the_reported_memory() {
    let operation = by(|a: u64, b| a + b);
    let records: Vec<(u64, u64)> = (0..1_200_000).map(|n| (n * 7919 % 1_200_007 * 3, n)).collect();
    let expected = model(&operation, &records);
    let dense = Config { key_range: Some(1 << 22), ..config(64 * MIB, 2) };
    let bins = Config { strategy: Some(Strategy::Partition), ..dense.clone() };
    let memory = Config { strategy: Some(Strategy::Merge), ..config(64 * MIB, 2) };
    let flash = Config { chunk_bytes: Some(1 << 20), ..memory.clone() };
    let small = Config { memory_bytes: 4 * MIB, ..memory.clone() };
    for config in [dense, bins, memory, flash, small] {
        for (parts, readers) in [(1, 1), (7, 1), (20, 2), (1000, 3)] {
            let job = job(config.memory_bytes, &[]);
            let sort = SortReduce::new(&job.job, operation.clone(), &config).unwrap();
            crate::common::push_all(&sort, 2, &records).unwrap();
            let (sorted, readers) = sort.finish().unwrap().split_in_turns(parts, readers).unwrap();
            assert!((1..=parts).contains(&sorted.len()) && (1..=3).contains(&readers));
            let told: Vec<u64> = sorted.iter().map(|part| part.reading_bytes()).collect();
            let mut got = Vec::new();
            for (mut part, told) in sorted.into_iter().zip(told) {
                let held = job.job.budget().reserved_bytes();
                while let Some(block) = part.next_block().unwrap() {
                    // Parts that were read to their end may have released memory.
                    let read = job.job.budget().reserved_bytes().saturating_sub(held);
                    assert!(read <= told, "{read} bytes where {told} were told, {config:?}");
                    got.extend(block.keys.iter().copied().zip(block.values.iter().copied()));
                }
            }
            assert_same(&got, &expected, "parts in turns");
        }
    }
}

#[test]
#[should_panic(expected = "a result is cut before its first block is read")]
fn a_result_that_is_being_read_is_not_cut() {
    let (job, config, records) = spill(1000, 1);
    let sort = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config).unwrap();
    crate::common::push_all(&sort, 1, &records).unwrap();
    let mut sorted = sort.finish().unwrap();
    sorted.next_block().unwrap();
    let _ = sorted.split(2);
}

#[test]
fn few_distinct_keys_never_leave_memory() {
    let config = Config { strategy: Some(Strategy::Merge), ..config(MIB, 1) };
    let records: Vec<(u64, u64)> = (0..1_000_000).map(|n| (n % 1000 * 0x1234_5678_9abc, 1)).collect();
    let operation = by(|a: u64, b| a + b);
    let (got, stats) = sort_reduce(&job(MIB, &[]), &operation, &config, &records).unwrap();
    assert!(got.len() == 1000 && got.iter().all(|&(_, count)| count == 1000));
    assert_eq!((stats.runs, stats.merge_passes, stats.bytes_spilled), (0, 0, 0));
}

#[test]
fn sinks_one_after_the_other_share_a_chunk() {
    for (strategy, chunk_bytes) in
        Strategy::ALL.map(|strategy| (strategy, None)).into_iter().chain([(Strategy::Merge, Some(4096))])
    {
        let config =
            Config { key_range: Some(1 << 20), strategy: Some(strategy), chunk_bytes, ..config(64 * MIB, 1) };
        let job = job(64 * MIB, &[]);
        let operation = by(|a: u64, b| a + b);
        let sort = SortReduce::new(&job.job, operation.clone(), &config).unwrap();
        assert_eq!(sort.strategy(), strategy);
        let mut random = Random(5);
        let mut records: Vec<(u32, u64)> = Vec::new();
        for count in [0, 1, 300, 5, 2000, 1, 255, 256] {
            let part: Vec<_> = (0..count).map(|n| (random.below(1 << 20) as u32, n)).collect();
            crate::common::push_all(&sort, 1, &part).unwrap();
            records.extend(part);
        }
        let mut sorted = sort.finish().unwrap();
        let mut got = Vec::new();
        while let Some(Block { keys, values }) = sorted.next_block().unwrap() {
            got.extend(keys.iter().copied().zip(values.iter().copied()));
        }
        assert_same(&got, &model(&operation, &records), "sinks in turn");
    }
}

#[test]
fn partitioning_writes_and_reads_each_update_once() {
    let config = Config {
        key_range: Some(1 << 20),
        strategy: Some(Strategy::Partition),
        chunk_bytes: Some(64 << 10),
        ..config(8 * MIB, 2)
    };
    let mut random = Random(7);
    let records: Vec<(u64, u32)> = (0..600_000).map(|n| (random.below(1 << 20), n)).collect();
    let operation = by(|a: u32, b| a.wrapping_add(b));
    let job = job(config.memory_bytes, &[]);
    let (got, stats) = sort_reduce_in(2, &job, &operation, &config, &records).unwrap();
    assert_same(&got, &model(&operation, &records), "partition");
    // Keys have 20 bits, and take 2 bytes without the bits of the bin number. Records that are in memory at the end
    // are not written.
    let counters = job.job.counters();
    assert_eq!(counters.bytes_read(), stats.bytes_spilled);
    assert!((2_400_000..3_700_000).contains(&stats.bytes_spilled), "{stats:?}");
    assert!(counters.bytes_written() >= stats.bytes_spilled);
    let levels = job.job.report().levels;
    assert_eq!((levels[0].records_in, levels[0].records_out), (600_000, 600_000));
    assert_eq!((levels[1].records_in, levels[1].records_out), (600_000, got.len() as u64));
}

/// An operation that adds numbers. Pushed numbers are below `2^bits`.
#[derive(Clone)]
struct ShortSums {
    bits: u32,
    has_neutral: bool,
}

impl Operation for ShortSums {
    type Key = u32;
    type Value = [u64; 2];

    fn combine(&self, a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
        [a[0] + b[0], a[1].max(b[1])]
    }

    fn neutral(&self) -> Option<[u64; 2]> {
        self.has_neutral.then_some([0; 2])
    }

    fn short_bits(&self) -> Option<u32> {
        Some(self.bits)
    }

    fn shorten(&self, value: [u64; 2]) -> u32 {
        (value[0] - 5) as u32
    }

    fn lengthen(&self, short: u32) -> [u64; 2] {
        [u64::from(short) + 5, u64::from(short) % 100]
    }
}

#[test]
fn values_of_few_bits_agree_with_the_model_and_take_the_room_of_few() {
    let mut random = Random(11);
    for (bits, has_neutral) in [(0, true), (10, false), (16, true), (32, true)] {
        let operation = ShortSums { bits, has_neutral };
        for (range, count) in [(64, 10_000), (3_000_000, 100_000)] {
            let value = |random: u64| operation.lengthen((random % (1 << bits)) as u32);
            let record = |_| (random.below(range) as u32, value(random.next()));
            let records: Vec<(u32, [u64; 2])> = (0..count).map(record).collect();
            check(&operation, Some(range), &records);
            let strategy = Some(Strategy::Partition);
            let config = Config {
                key_range: Some(range),
                strategy,
                chunk_bytes: Some(64 << 10),
                ..config(8 * MIB, 1)
            };
            let job = job(config.memory_bytes, &[]);
            let (_, stats) = sort_reduce(&job, &operation, &config, &records).unwrap();
            // In this test, a bin covers at most 2^16 keys.
            let most = if bits <= 16 { 4 } else { 20 } * count;
            assert!(stats.bytes_spilled <= most, "{bits} {range} {stats:?}");
        }
    }
}

#[test]
fn the_answer_does_not_depend_on_strategy_budget_threads_or_parts() {
    let mut random = Random(8);
    // Some keys occur more often than others.
    let records: Vec<(u32, u64)> = (0..250_000u64)
        .map(|n| (random.below(400_000) as u32 >> (random.below(4) * 5), n.wrapping_mul(n) << 20))
        .collect();
    let operation = by(|a: u64, b| a.wrapping_add(b));
    let expected = model(&operation, &records);
    for strategy in Strategy::ALL {
        for (memory_bytes, chunk_bytes) in [(128 * MIB, None), (8 * MIB, None), (8 * MIB, Some(32 << 10))] {
            for (sinks, parts) in [(1, 4), (2, 1), (4, 2), (3, 7)] {
                let strategy = Some(strategy);
                let config =
                    Config { key_range: Some(400_000), strategy, chunk_bytes, ..config(memory_bytes, sinks) };
                let job = job(config.memory_bytes, &[]);
                let (got, _) = sort_reduce_in(parts, &job, &operation, &config, &records).unwrap();
                assert_same(&got, &expected, &format!("{parts} parts, {config:?}"));
                assert!(job.job.budget().reserved_bytes_max() <= config.memory_bytes, "{config:?}");
            }
        }
    }
}

#[test]
fn a_result_that_is_dropped_half_read_leaves_nothing_behind() {
    let (job, config, records) = spill(50_000, 2);
    let sort = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config).unwrap();
    crate::common::push_all(&sort, 2, &records).unwrap();
    let mut sorted = sort.finish().unwrap();
    assert!(sorted.next_block().unwrap().is_some());
    assert_ne!(job.job.extents_in_use(), 0);
    drop(sorted);
    job.assert_scratch_is_empty("dropped");
}

#[test]
fn dense_is_chosen_where_it_fits() {
    let with = |key_range, memory_bytes| Config { key_range, ..config(memory_bytes, 2) };
    assert_eq!(choose(&with(Some(1 << 20), 64 * MIB), 8), Strategy::Dense);
    assert_ne!(choose(&with(Some(1 << 20), 8 * MIB), 8), Strategy::Dense);
    assert_eq!(choose(&with(Some(1 << 20), MIB), 8), Strategy::Merge);
    assert_eq!(choose(&with(Some(1 << 28), 64 * MIB), 0), Strategy::Dense);
    assert_eq!(choose(&with(Some(u64::MAX), 64 * MIB), 0), Strategy::Merge);
    assert_eq!(choose(&with(None, 64 * MIB), 8), Strategy::Merge);
}

#[test]
fn the_choice_follows_the_expected_records() {
    let with = |key_range, records, keys| Config {
        key_range,
        expected_records: Some(records),
        expected_keys: Some(keys),
        ..config(64 * MIB, 2)
    };
    let range = Some(100_000_000);
    // With 1 GiB of memory, bins stay in memory. In the case with 1,000,000,000 records, bins are written and take
    // more bytes of the drive than packed runs.
    let large = Config { memory_bytes: 1 << 30, ..with(range, 64_000_000, 48_000_000) };
    assert_eq!(choose(&large, 4), Strategy::Partition);
    // The maximum number of records could fill more blocks than the partition strategy can index.
    let endless = Config { records_max: Some(1 << 50), ..large };
    assert_ne!(choose(&endless, 4), Strategy::Partition);
    assert_eq!(choose(&with(range, 1_000_000_000, 100_000_000), 4), Strategy::Merge);
    // With few keys, about half of the records are combined in the hash table, and the rest in a chunk.
    assert_eq!(choose(&with(None, 1_000_000_000, 1 << 14), 8), Strategy::HashFirst);
    assert_eq!(choose(&with(None, 1_000_000_000, 500_000_000), 8), Strategy::Merge);
    let forced = Config { strategy: Some(Strategy::Merge), ..with(range, 1_000_000_000, 100_000_000) };
    assert_eq!(choose(&forced, 4), Strategy::Merge);
}

#[test]
fn a_choice_lists_its_estimates() {
    let config =
        Config { key_range: Some(100_000_000), expected_records: Some(200_000_000), ..config(64 * MIB, 2) };
    let job = job(64 * MIB, &[]);
    let sort = SortReduce::new(&job.job, by::<u32, f32>(|a, b| a + b), &config).unwrap();
    let choice = sort.choice();
    assert_eq!((choice.strategy, sort.strategy()), (Strategy::Merge, Strategy::Merge));
    assert_eq!((choice.is_forced, choice.is_drive_measured, choice.records), (false, false, 200_000_000));
    // The dense strategy has no estimate, since its array would need 400 MB.
    assert_eq!(choice.estimates.len(), 3);
    assert!(choice.estimates.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
    for estimate in &choice.estimates {
        assert!(estimate.bytes_written >= 100 * MIB && estimate.bytes_read >= 100 * MIB, "{choice}");
        assert!(estimate.cpu_seconds > 0.0 && estimate.drive_seconds > 0.0 && estimate.seconds > 0.0);
    }
    let text = choice.to_string();
    assert!(text.starts_with("merge (least estimate) for 200000000 records"), "{text}");
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn a_key_outside_the_range_of_a_dense_array_is_an_error() {
    for key in [1000, 1u128 << 64, u128::MAX] {
        let config = Config { key_range: Some(1000), ..config(16 * MIB, 1) };
        let records = [(5u128, 1u64), (key, 1)];
        let error = sort_reduce(&job(16 * MIB, &[]), &by(|a: u64, b| a + b), &config, &records).unwrap_err();
        let shown = u64::try_from(key).unwrap_or(u64::MAX);
        assert!(error.to_string().contains(&format!("key {shown} is outside")), "{error}");
    }
    for key in [1000, 1023, 1 << 20, u32::MAX] {
        let config = Config { key_range: Some(1000), ..config(16 * MIB, 1) };
        let records = [(5u32, 1u64), (key, 1)];
        let error = sort_reduce(&job(16 * MIB, &[]), &by(|a: u64, b| a + b), &config, &records).unwrap_err();
        assert!(error.to_string().contains(&format!("key {key} is outside")), "{error}");
    }
    for key in [1000, u32::MAX] {
        let strategy = Some(Strategy::Partition);
        let config = Config { key_range: Some(1000), strategy, ..config(16 * MIB, 1) };
        let records = [(5u32, 1u64), (key, 1)];
        let error = sort_reduce(&job(16 * MIB, &[]), &by(|a: u64, b| a + b), &config, &records).unwrap_err();
        assert!(error.to_string().contains(&format!("key {key} is outside")), "{error}");
    }
    // The merge strategy accepts a key that is out of range.
    let strategy = Some(Strategy::Merge);
    let config = Config { key_range: Some(1000), strategy, ..config(16 * MIB, 1) };
    let records = [(u32::MAX, 1u64), (5, 1), (1000, 1)];
    let (got, _) = sort_reduce(&job(16 * MIB, &[]), &by(|a: u64, b| a + b), &config, &records).unwrap();
    assert_eq!(got, [(5, 1), (1000, 1), (u32::MAX, 1)]);
}

#[test]
fn a_budget_too_small_is_refused_by_size() {
    let job = job(1 << 40, &[]);
    let small = config(smallest_memory_bytes(3, 16) - 1, 3);
    let error = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &small).err().unwrap();
    assert!(error.to_string().contains("the smallest budget that works is 1.5 MiB"), "{error}");
    let strategy = Some(Strategy::Dense);
    let dense = Config { key_range: Some(1 << 30), strategy, ..config(MIB, 1) };
    let error = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &dense).err().unwrap();
    assert!(error.to_string().contains("the smallest budget that works is 16 GiB"), "{error}");
    for strategy in [Strategy::Dense, Strategy::Partition] {
        let small = Config { strategy: Some(strategy), ..config(MIB, 1) };
        let error = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &small).err().unwrap();
        assert!(error.to_string().contains(&format!("the {strategy} strategy needs a range")), "{error}");
    }
    let partition =
        Config { key_range: Some(1 << 33), strategy: Some(Strategy::Partition), ..config(4 * MIB, 1) };
    let error = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &partition).err().unwrap();
    assert!(error.to_string().contains("the partition bins of test"), "{error}");
    let hash_first =
        Config { strategy: Some(Strategy::HashFirst), ..config(smallest_memory_bytes(1, 16), 1) };
    let error = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &hash_first).err().unwrap();
    assert!(error.to_string().contains("the smallest budget that works"), "{error}");
}

#[test]
fn more_runs_than_checksums_have_room_for_are_refused() {
    let strategy = Some(Strategy::Merge);
    let config = Config { chunk_bytes: Some(4 << 10), strategy, ..config(MIB, 1) };
    let job = job(MIB, &[]);
    let sort = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config).unwrap();
    let mut sink = sort.sink().unwrap();
    let refused = (0..3_000_000u64).find_map(|n| sink.push(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n).err());
    let error = refused.expect("48 MB of runs in blocks of 4 KiB");
    assert!(matches!(error, Error::TooManyRuns { .. }), "{error}");
    assert!(error.to_string().contains("a budget of 1 MiB cannot index 21.3 MiB of sorted runs"), "{error}");
    assert!(job.job.budget().reserved_bytes_max() <= MIB);
}

#[test]
fn sinks_share_the_room_for_numbers_of_blocks_and_too_many_records_are_known_before() {
    let partition = |records_max| Config {
        key_range: Some(1 << 12),
        chunk_bytes: Some(32 << 10),
        strategy: Some(Strategy::Partition),
        records_max,
        ..config(MIB, 2)
    };
    let add = || by(|a: u64, b| a + b);
    let count = 3_500_000u64;
    let test = job(MIB, &[]);
    let sort = SortReduce::new(&test.job, add(), &partition(Some(count))).unwrap();
    let (mut busy, idle) = (sort.sink().unwrap(), sort.sink().unwrap());
    for n in 0..count {
        busy.push(n as u32 % 4093, n).unwrap();
    }
    busy.finish().unwrap();
    idle.finish().unwrap();
    let (mut sorted, mut sum) = (sort.finish().unwrap(), 0);
    while let Some(block) = sorted.next_block().unwrap() {
        sum += block.values.iter().sum::<u64>();
    }
    assert_eq!(sum, count * (count - 1) / 2);
    assert!(test.job.budget().reserved_bytes_max() <= MIB);

    let error = SortReduce::new(&test.job, add(), &partition(Some(10_000_000))).err().unwrap();
    assert!(error.to_string().contains("the smallest budget that works"), "{error}");
    let sort = SortReduce::new(&test.job, add(), &partition(None)).unwrap();
    let mut busy = sort.sink().unwrap();
    let refused = (0..10_000_000).find_map(|n| busy.push(n % 4093, 1).err());
    assert!(matches!(refused, Some(Error::TooManyRuns { .. })), "{refused:?}");
}

#[test]
#[should_panic(expected = "1 sinks were not finished")]
fn ending_the_input_with_an_open_sink_panics() {
    let job = job(MIB, &[]);
    let sort = SortReduce::new(&job.job, by::<u64, u64>(|a, b| a + b), &config(MIB, 1)).unwrap();
    let _sink = sort.sink().unwrap();
    let _ = sort.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_records_under_any_budget(
        seed in any::<u64>(),
        count in 0u64..60_000,
        range_bits in 0u32..=64,
        skew in 0u32..3,
        sinks in 1usize..=4,
        memory_kib in 512u64..8192,
        chunk_bits in 10u32..20,
        with_range in any::<bool>(),
        parts in 1usize..6,
    ) {
        let mut random = Random(seed);
        let mask = u64::MAX.checked_shr(64 - range_bits).unwrap_or(0);
        let records: Vec<(u64, u64)> = (0..count)
            .map(|_| ((0..=skew).map(|_| random.next() & mask).min().unwrap(), random.below(1 << 40)))
            .collect();
        let config = Config {
            key_range: with_range.then_some(mask.saturating_add(1)),
            chunk_bytes: Some(1 << chunk_bits),
            ..config(memory_kib * 1024 * sinks as u64, sinks)
        };
        let job = job(config.memory_bytes, &[]);
        let operation = by(|a: u64, b| a + b);
        let (got, _) = sort_reduce_in(parts, &job, &operation, &config, &records).unwrap();
        assert_same(&got, &model(&operation, &records), "any");
        prop_assert!(job.job.budget().reserved_bytes_max() <= config.memory_bytes);
    }
}
