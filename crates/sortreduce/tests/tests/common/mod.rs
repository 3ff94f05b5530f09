//! Helpers for the tests: operations, a job on a temporary store, and a model that computes expected results.

use std::{collections::BTreeMap, fmt::Debug, marker::PhantomData, sync::Arc};

use inshore_sortreduce::{Config, Key, Operation, Result, SortReduce, Sorted, Stats, Value};
use inshore_store::{Budget, Cancel, Directory, Fault, Faulty, Job, Store};

/// An operation that calls a given function.
#[derive(Clone)]
pub struct FnOperation<K, V>(pub fn(V, V) -> V, pub PhantomData<K>);

impl<K: Key, V: Value> Operation for FnOperation<K, V> {
    type Key = K;
    type Value = V;
    fn combine(&self, a: V, b: V) -> V {
        (self.0)(a, b)
    }
}

pub fn by<K: Key, V: Value>(combine: fn(V, V) -> V) -> FnOperation<K, V> {
    FnOperation(combine, PhantomData)
}

pub struct TestJob {
    pub job: Job,
    pub device: Faulty,
    // The store's folder, which is removed when this value is dropped.
    pub _folder: tempfile::TempDir,
}

/// Creates a job with a budget of `memory_bytes` on a device with `faults`.
pub fn job(memory_bytes: u64, faults: &[Fault]) -> TestJob {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path(), None).unwrap();
    let device = Faulty::new(Arc::new(directory), &[]);
    let store = Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
    let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
    device.set(faults);
    TestJob { job, device, _folder: folder }
}

impl TestJob {
    /// Asserts that no scratch file is left.
    pub fn assert_scratch_is_empty(&self, what: &str) {
        assert_eq!(self.job.extents_in_use(), 0, "{what}");
    }
}

/// Pushes `records` one by one with `sinks` threads, each of which has its own sink.
pub fn push_all<O: Operation>(
    sort: &SortReduce<O>,
    sinks: usize,
    records: &[(O::Key, O::Value)],
) -> Result<()> {
    let part = records.len().div_ceil(sinks).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..sinks)
            .map(|number| {
                let part = records.chunks(part).nth(number).unwrap_or(&[]);
                scope.spawn(move || {
                    let mut sink = sort.sink()?;
                    for &(key, value) in part {
                        sink.push(key, value)?;
                    }
                    sink.finish()
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// The keys and values of records for an operation.
pub type Records<O> = Vec<(<O as Operation>::Key, <O as Operation>::Value)>;

/// Reads all records of a result.
pub fn read<O: Operation>(mut sorted: Sorted<O>) -> Result<(Records<O>, Stats)> {
    let mut out: Vec<(O::Key, O::Value)> = Vec::new();
    while let Some(block) = sorted.next_block()? {
        assert!(!block.keys.is_empty() && block.keys.len() == block.values.len());
        out.extend(block.keys.iter().copied().zip(block.values.iter().copied()));
    }
    assert!(sorted.next_block()?.is_none(), "the end stays the end");
    assert_eq!(sorted.stats().records_out, out.len() as u64);
    Ok((out, sorted.stats()))
}

/// Reads a result in parts, with one thread per part, and concatenates the parts.
pub fn read_in_parts<O: Operation>(sorted: Sorted<O>, parts: usize) -> Result<(Records<O>, Stats)> {
    let (sorted, mut stats) = (sorted.split(parts)?, None::<Stats>);
    assert!((1..=parts).contains(&sorted.len()), "{} parts", sorted.len());
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = sorted.into_iter().map(|part| scope.spawn(move || read(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut out = Vec::new();
    for result in results {
        let (records, part) = result?;
        out.extend(records);
        let records_out = stats.map_or(0, |stats| stats.records_out) + part.records_out;
        stats = Some(Stats { records_out, ..part });
    }
    Ok((out, stats.expect("at least one part")))
}

/// Runs a sort-reduce over the records. Checks that keys ascend strictly, and that no scratch file is left.
pub fn sort_reduce<O: Operation>(
    job: &TestJob,
    operation: &O,
    config: &Config,
    records: &[(O::Key, O::Value)],
) -> Result<(Records<O>, Stats)> {
    sort_reduce_in(1, job, operation, config, records)
}

/// Runs a sort-reduce over the records, and reads the result in parts.
pub fn sort_reduce_in<O: Operation>(
    parts: usize,
    job: &TestJob,
    operation: &O,
    config: &Config,
    records: &[(O::Key, O::Value)],
) -> Result<(Records<O>, Stats)> {
    let sort = SortReduce::new(&job.job, operation.clone(), config)?;
    push_all(&sort, config.sinks, records)?;
    let sorted = sort.finish()?;
    let (out, stats) = if parts == 1 { read(sorted)? } else { read_in_parts(sorted, parts)? };
    assert!(out.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted and unique");
    assert_eq!(stats.records_in, records.len() as u64);
    assert_eq!(stats.records_out, out.len() as u64);
    job.assert_scratch_is_empty("sorted");
    assert_eq!(job.job.budget().reserved_bytes(), 0);
    Ok((out, stats))
}

/// Computes the expected result of a sort-reduce with a `BTreeMap`.
pub fn model<O: Operation>(operation: &O, records: &[(O::Key, O::Value)]) -> Vec<(O::Key, O::Value)> {
    let mut map = BTreeMap::<O::Key, O::Value>::new();
    for &(key, value) in records {
        map.entry(key).and_modify(|old| *old = operation.combine(*old, value)).or_insert(value);
    }
    map.into_iter().collect()
}

/// Asserts that two results are equal. The message of a failure contains only the first difference.
pub fn assert_same<K: Key + Debug, V: Value + PartialEq + Debug>(
    got: &[(K, V)],
    expected: &[(K, V)],
    what: &str,
) {
    if let Some(place) = got.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: record {place} is {:?}, expected {:?}", got[place], expected[place]);
    }
    assert_eq!(got.len(), expected.len(), "{what}: number of records");
}

/// A generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
