//! Tests in which drives fail, fill up or return wrong data, or jobs are cancelled, in every phase. A sort-reduce
//! must return an error, and never a wrong result.

use crate::common::{Random, TestJob, assert_same, by, job, model, push_all};
use inshore_sortreduce::{
    Config, Error, Result, SortReduce, Strategy,
    rows::{KeepAll, Lines, RowConfig, RowSort, smallest_row_memory_bytes},
};
use inshore_store::Fault;

const MEMORY_BYTES: u64 = 1 << 20;

/// All strategies that write to the drive.
const STRATEGIES: [Strategy; 3] = [Strategy::Merge, Strategy::Partition, Strategy::HashFirst];

fn config(sinks: usize, strategy: Strategy) -> Config {
    Config {
        key_range: Some(400_000),
        memory_bytes: MEMORY_BYTES,
        sinks,
        strategy: Some(strategy),
        chunk_bytes: Some(8 << 10),
        name: "test",
        ..Config::default()
    }
}

fn records(count: u64) -> Vec<(u64, u64)> {
    let mut random = Random(count);
    (0..count).map(|n| (random.below(count * 4), n)).collect()
}

/// Sorts as `common::sort_reduce` does, but does not check that no scratch file is left.
fn sort(job: &TestJob, strategy: Strategy, records: &[(u64, u64)]) -> Result<Vec<(u64, u64)>> {
    let sort = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config(1, strategy))?;
    push_all(&sort, 1, records)?;
    let mut out = Vec::new();
    // The parts are read one after the other, so that the fault with a given number always affects the same request.
    for part in sort.finish()?.split(2)? {
        out.extend(crate::common::read(part)?.0);
    }
    Ok(out)
}

/// Checks that no scratch file and no memory is left after the end of the job.
fn check_nothing_left(job: TestJob, what: &str) {
    check_left(job, MEMORY_BYTES, what);
}

fn check_left(job: TestJob, memory_bytes: u64, what: &str) {
    job.assert_scratch_is_empty(what);
    let budget = job.job.budget().clone();
    assert!(budget.reserved_bytes_max() <= memory_bytes, "{what}");
    drop(job);
    assert_eq!(budget.reserved_bytes(), 0, "{what}");
}

#[test]
fn every_fault_in_every_phase_is_an_error() {
    STRATEGIES.into_iter().for_each(every_fault_is_an_error);
}

fn every_fault_is_an_error(strategy: Strategy) {
    let records = records(100_000);
    let expected = model(&by(|a: u64, b| a + b), &records);
    let healthy = job(MEMORY_BYTES, &[]);
    assert_same(&sort(&healthy, strategy, &records).unwrap(), &expected, "healthy");
    let levels = healthy.job.report().levels.len();
    let least = if strategy == Strategy::Partition { 2 } else { 3 };
    assert!(levels >= least, "forms runs, merges some, streams the last merge: {levels}");
    let (reads, writes, _) = healthy.device.counts();
    println!("{reads} reads, {writes} writes");
    assert!(reads > 100 && writes > 20, "{reads} reads, {writes} writes");

    // Faults affect the first, the last and some other requests. The step is a prime number, so that every phase is
    // affected.
    let step = if strategy == Strategy::Merge { 7 } else { 29 };
    let numbers = |count: u64| (0..count).step_by(step).chain([count - 1]);
    let read_faults = numbers(reads).flat_map(|n| [Fault::FailRead(n), Fault::FlipRead(n)]);
    let write_faults = numbers(writes).flat_map(|n| {
        [Fault::FailWrite(n), Fault::NoSpaceFromWrite(n), Fault::DropWrite(n), Fault::TearWrite(n)]
    });
    let (mut harmless, mut all) = (0, 0);
    for fault in read_faults.chain(write_faults) {
        let job = job(MEMORY_BYTES, &[fault]);
        let what = format!("{strategy} {fault:?}");
        match sort(&job, strategy, &records) {
            Err(Error::Store(error)) => println!("{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
            // A torn write is harmless if its second half is padding. Faults in the superblock and the log are also
            // harmless, since each has two copies.
            Ok(out) => {
                assert_same(&out, &expected, &what);
                harmless += 1;
            }
        }
        check_nothing_left(job, &what);
        all += 1;
    }
    assert!(harmless * 10 < all, "{harmless} of {all} faults were not noticed");
}

#[test]
fn a_full_drive_is_named() {
    let job = job(MEMORY_BYTES, &[Fault::NoSpaceFromWrite(5)]);
    let error = sort(&job, Strategy::Merge, &records(100_000)).unwrap_err().to_string();
    assert!(error.contains("No space left on device") && error.starts_with("test: "), "{error}");
    check_nothing_left(job, "full drive");
}

#[test]
fn one_failing_sink_of_several_fails_the_whole() {
    STRATEGIES.into_iter().for_each(one_failing_sink_fails_the_whole);
}

fn one_failing_sink_fails_the_whole(strategy: Strategy) {
    let memory_bytes = 2 * MEMORY_BYTES;
    let job = job(memory_bytes, &[Fault::FailWrite(9)]);
    let config = Config { memory_bytes, ..config(2, strategy) };
    let sort = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config).unwrap();
    let failed = push_all(&sort, 2, &records(100_000)).err();
    // If the failed write is the last write of a sink, only the end of the input reports the failure.
    let failed = match failed {
        Some(error) => {
            drop(sort);
            error
        }
        None => sort.finish().expect_err("a failed write"),
    };
    assert!(failed.to_string().contains("Input/output error"), "{failed}");
    check_left(job, memory_bytes, "two sinks");
}

#[test]
fn a_stopped_job_stops_in_every_phase() {
    STRATEGIES.into_iter().for_each(a_stopped_job_stops);
}

fn a_stopped_job_stops(strategy: Strategy) {
    let records = records(100_000);
    let is_cancelled = |error: Error| matches!(error, Error::Store(inshore_store::Error::Cancelled));
    // The job is cancelled while records are pushed.
    let first = job(MEMORY_BYTES, &[]);
    let sorting = SortReduce::new(&first.job, by(|a: u64, b| a + b), &config(1, strategy)).unwrap();
    let mut sink = sorting.sink().unwrap();
    sink.push(1, 1).unwrap();
    first.job.cancel().cancel();
    let stopped = records.iter().position(|&(key, value)| sink.push(key, value).is_err());
    assert!(stopped.is_some_and(|place| place < 10_000), "{stopped:?}");
    drop((sink, sorting));
    check_nothing_left(first, "pushing");
    // The job is cancelled while a sink ends, while runs are merged, and while the result is read.
    for phase in ["sink", "passes", "reading"] {
        let job = job(MEMORY_BYTES, &[]);
        let sorting = SortReduce::new(&job.job, by(|a: u64, b| a + b), &config(1, strategy)).unwrap();
        let mut sink = sorting.sink().unwrap();
        records.iter().try_for_each(|&(key, value)| sink.push(key, value)).unwrap();
        let stop = |now: &str| {
            if now == phase {
                job.job.cancel().cancel();
            }
        };
        stop("sink");
        let result = sink.finish().and_then(|()| {
            stop("passes");
            let mut sorted = sorting.finish()?;
            sorted.next_block()?;
            stop("reading");
            while sorted.next_block()?.is_some() {}
            Ok(())
        });
        assert!(is_cancelled(result.unwrap_err()), "{phase}");
        check_nothing_left(job, phase);
    }
}

#[test]
fn a_dense_sort_reduce_does_no_io() {
    let memory_bytes = 16 << 20;
    let job = job(memory_bytes, &[Fault::NoSpaceFromWrite(0)]);
    let config = Config { key_range: Some(1 << 17), memory_bytes, ..Config::default() };
    let records: Vec<(u32, u64)> = (0..100_000).map(|n| (n * 7 % (1 << 17), 1)).collect();
    let operation = by(|a: u64, b| a + b);
    let (got, stats) = crate::common::sort_reduce(&job, &operation, &config, &records).unwrap();
    assert_same(&got, &model(&operation, &records), "dense");
    assert_eq!((stats.strategy, stats.bytes_spilled), (Strategy::Dense, 0));
    assert_eq!(job.device.counts(), (0, 0, 0));
}

/// Sorts lines. The tests use so little memory that runs are merged in several passes.
fn sort_lines(job: &TestJob, config: &RowConfig, input: &[u8]) -> Result<Vec<u8>> {
    let mut sort = RowSort::new(&job.job, Lines, KeepAll, config)?;
    let mut sink = sort.sink();
    for piece in input.chunks(10_000) {
        sink.write(piece)?;
    }
    sink.finish()?;
    let mut sorted = sort.finish()?;
    let (mut out, mut block) = (Vec::new(), vec![0; 30_000]);
    loop {
        let filled = sorted.fill(&mut block)?;
        out.extend_from_slice(&block[..filled]);
        if filled < block.len() {
            return Ok(out);
        }
    }
}

fn row_config() -> RowConfig {
    RowConfig {
        memory_bytes: smallest_row_memory_bytes(1),
        threads: 1,
        descending: false,
        arena_bytes: Some(16 << 10),
        name: "test",
        ..RowConfig::default()
    }
}

#[test]
fn every_fault_in_every_phase_of_a_sort_of_rows_is_an_error() {
    let config = row_config();
    let mut random = Random(5);
    let mut lines: Vec<String> = (0..60_000).map(|_| format!("{}\n", random.below(1 << 40))).collect();
    let input = lines.concat().into_bytes();
    lines.sort_unstable();
    let expected = lines.concat().into_bytes();
    let healthy = job(config.memory_bytes, &[]);
    assert!(sort_lines(&healthy, &config, &input).unwrap() == expected);
    let (reads, writes, _) = healthy.device.counts();
    println!("{reads} reads, {writes} writes");
    assert!(reads > 100 && writes > 40, "{reads} reads, {writes} writes");
    let numbers = |count: u64| (0..count).step_by(29).chain([count - 1]);
    let read_faults =
        numbers(reads).flat_map(|n| [Fault::FailRead(n), Fault::FlipRead(n), Fault::MisdirectRead(n)]);
    let write_faults = numbers(writes).flat_map(|n| {
        [Fault::FailWrite(n), Fault::NoSpaceFromWrite(n), Fault::DropWrite(n), Fault::TearWrite(n)]
    });
    let (mut harmless, mut all) = (0, 0);
    for fault in read_faults.chain(write_faults) {
        let job = job(config.memory_bytes, &[fault]);
        let what = format!("{fault:?}");
        match sort_lines(&job, &config, &input) {
            Err(Error::Store(_)) => {}
            Err(error) => panic!("{what}: {error}"),
            Ok(out) => {
                assert!(out == expected, "{what}");
                harmless += 1;
            }
        }
        check_left(job, config.memory_bytes, &what);
        all += 1;
    }
    assert!(harmless * 10 < all, "{harmless} of {all} faults were not noticed");
}

#[test]
fn a_sort_of_rows_that_is_stopped_leaves_nothing() {
    let config = row_config();
    let mut random = Random(6);
    let input: Vec<u8> =
        (0..60_000).flat_map(|_| format!("{}\n", random.below(1 << 40)).into_bytes()).collect();
    let job = job(config.memory_bytes, &[]);
    let mut sort = RowSort::new(&job.job, Lines, KeepAll, &config).unwrap();
    let mut sink = sort.sink();
    sink.write(&input).unwrap();
    sink.finish().unwrap();
    job.job.cancel().cancel();
    let stopped = sort.finish().map(|mut sorted| sorted.fill(&mut vec![0; 2 * input.len()]));
    let error = stopped.and_then(|filled| filled).unwrap_err();
    assert!(matches!(error, Error::Store(inshore_store::Error::Cancelled)), "{error}");
    check_left(job, config.memory_bytes, "stopped");
}
