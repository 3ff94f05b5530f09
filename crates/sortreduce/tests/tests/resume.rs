//! Tests that interrupted sorts resume from their saved runs, and have the same result as an uninterrupted sort.

use crate::common::{Random, Records, assert_same, by, model, read};
use inshore_sortreduce::{
    Config, Error, Operation, Result, SortReduce, Strategy,
    rows::{KeepAll, KeepFirst, Lines, RowConfig, RowOperation, RowShape, RowSort, frame},
};
use inshore_store::{Budget, Cancel, Directory, Fault, Faulty, Job, Keep, Store};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

const MEMORY_BYTES: u64 = 4 << 20;

/// A store that outlives the jobs that use it.
struct TestStore {
    device: Faulty,
    folder: tempfile::TempDir,
}

impl TestStore {
    fn new() -> TestStore {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), None).unwrap();
        let device = Faulty::new(Arc::new(directory), &[]);
        Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
        TestStore { device, folder }
    }

    /// Opens the store again, as another process would do.
    fn store(&self) -> Store {
        Store::open_on(self.folder.path(), vec![Arc::new(self.device.clone())]).unwrap()
    }

    fn job(&self) -> Job {
        self.store().job(Budget::new(MEMORY_BYTES, 2), Cancel::default()).unwrap()
    }

    /// Calls `attempt` with a different fault each time, until a call succeeds. Returns the result and the number of
    /// calls.
    fn until_it_succeeds<T>(
        &self,
        mut fault: impl FnMut(usize) -> Option<Fault>,
        attempt: impl Fn(&Job, &Keep) -> Result<T>,
    ) -> (T, usize) {
        for number in 0..1000 {
            let job = self.job();
            let keep = job.store().keep(&job, 5, "a test").unwrap();
            self.device.set(&fault(number).into_iter().collect::<Vec<_>>());
            let result = attempt(&job, &keep);
            self.device.set(&[]);
            match result {
                Ok(result) => {
                    keep.finish().unwrap();
                    drop((job, keep));
                    let store = self.store();
                    assert!(store.kept().unwrap().is_empty());
                    assert_eq!(store.usage().unwrap()[0].dataset_bytes, 0, "nothing is left");
                    return (result, number + 1);
                }
                Err(Error::Store(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no progress");
    }
}

fn lines(count: u64) -> Vec<u8> {
    let mut random = Random(count);
    let line = |n: u64| format!("{:06}{} {n}\n", random.below(count), "x".repeat(n as usize % 90));
    (0..count).map(line).collect::<String>().into_bytes()
}

fn sort<S: RowShape, O: RowOperation>(
    job: &Job,
    keep: &Keep,
    (shape, operation): (S, O),
    input: &[u8],
) -> Result<(Vec<u8>, u64)> {
    let config = RowConfig {
        memory_bytes: 3 << 20,
        threads: 2,
        arena_bytes: Some(64 << 10),
        keep: Some(keep.clone()),
        name: "test",
        ..RowConfig::default()
    };
    let mut sort = RowSort::new(job, shape, operation, &config)?;
    let kept = sort.bytes_kept();
    let mut sink = sort.sink();
    // The test skips half of the saved bytes itself. The other bytes are passed to the sink, which skips the rest of
    // the saved bytes.
    let unread = sink.to_pass_over() / 2;
    sink.pass_over(unread);
    input[unread as usize..].chunks(5000).try_for_each(|piece| sink.write(piece))?;
    assert_eq!(sink.bytes(), input.len() as u64);
    sink.finish()?;
    let mut sorted = sort.finish()?;
    let (mut out, mut block) = (Vec::new(), Vec::new());
    loop {
        block.clear();
        sorted.append(&mut block, 10_000)?;
        if block.is_empty() {
            return Ok((out, kept));
        }
        out.extend_from_slice(&block);
    }
}

#[test]
fn a_sort_of_rows_resumes_after_any_failed_write_or_read() {
    let input = lines(60_000);
    let mut expected: Vec<&[u8]> = input.split_inclusive(|&byte| byte == b'\n').collect();
    expected.sort();
    let expected = expected.concat();
    let place = TestStore::new();
    let (whole, attempts) =
        place.until_it_succeeds(|_| None, |job, keep| sort(job, keep, (Lines, KeepAll), &input));
    assert_eq!((whole.0.len(), whole.1, attempts), (expected.len(), 0, 1));
    assert!(whole.0 == expected);
    let (mut most, mut furthest) = (0, 0);
    for step in [20, 33, 61, 150] {
        let fault = |number: usize| (number < 200).then_some(Fault::FailWrite(step + number as u64 % 5));
        let ((found, kept), attempts) =
            place.until_it_succeeds(fault, |job, keep| sort(job, keep, (Lines, KeepAll), &input));
        assert!(found == expected, "step {step}");
        (most, furthest) = (most.max(attempts), furthest.max(kept));
    }
    assert!(most > 3 && most < 200, "each attempt goes on where the one before ended: {most}");
    assert!(furthest > input.len() as u64 / 2, "{furthest}");
    // The read that fails is in the merge, after all runs were written.
    let ((found, kept), attempts) = place.until_it_succeeds(
        |number| (number < 3).then_some(Fault::FailRead(10 + 70 * number as u64)),
        |job, keep| sort(job, keep, (Lines, KeepAll), &input),
    );
    assert!(found == expected && kept > 0 && attempts > 1, "{kept} kept, {attempts} attempts");
}

#[test]
fn equal_rows_keep_their_order_over_an_interruption() {
    // The key is the first half of a framed row's contents. The sort keeps only the first row of each key.
    let mut random = Random(3);
    let mut input = Vec::new();
    for n in 0..150_000u32 {
        frame(&(random.below(5000) as u32).to_be_bytes(), &n.to_be_bytes(), &mut input);
    }
    let shape = inshore_sortreduce::rows::FramedRows { row_bytes_hint: 16 };
    let place = TestStore::new();
    let run = |fault: &dyn Fn(usize) -> Option<Fault>| {
        place.until_it_succeeds(fault, |job, keep| sort(job, keep, (shape, KeepFirst), &input))
    };
    let expected = run(&|_| None).0.0;
    let ((found, kept), attempts) = run(&|number| (number < 8).then_some(Fault::FailWrite(25)));
    assert!(found == expected, "{kept} bytes kept over {attempts} attempts");
    assert!(kept > 0, "{kept} bytes kept over {attempts} attempts");
}

/// An operation that adds values, and reports a failure if the flag is set.
#[derive(Clone)]
struct FallibleSum(Arc<AtomicBool>);

impl Operation for FallibleSum {
    type Key = u64;
    type Value = u64;
    fn combine(&self, a: u64, b: u64) -> u64 {
        a + b
    }
    fn is_sound(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

const UNIT_RECORDS: usize = 700;

/// Sorts records with two threads, which share the units of the input. Some units are pushed one record at a time. In
/// others, more than 64 successive records with the same value are pushed together.
fn sort_reduce<O: Operation>(
    job: &Job,
    keep: &Keep,
    operation: O,
    records: &[(O::Key, O::Value)],
) -> Result<(Records<O>, u64)> {
    let config = Config {
        memory_bytes: 2 << 20,
        sinks: 2,
        // With hash-first, the records of a run are not known by unit, so the sort-reduce uses the merge strategy
        // instead.
        strategy: Some(Strategy::HashFirst),
        chunk_bytes: Some(32 << 10),
        keep: Some(keep.clone()),
        name: "test",
        ..Config::default()
    };
    let sort = SortReduce::new(job, operation, &config)?;
    assert_eq!(sort.strategy(), Strategy::Merge);
    let units: Vec<_> = records.chunks(UNIT_RECORDS).enumerate().collect();
    let (next, skipped) = (std::sync::Mutex::new(units.into_iter()), std::sync::atomic::AtomicU64::new(0));
    let work = || -> Result<()> {
        let mut sink = sort.sink()?;
        loop {
            let Some((number, unit)) = next.lock().unwrap().next() else { return sink.finish() };
            if !sink.begin_unit(number as u64)? {
                skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut rest = unit;
            while let Some(&(key, value)) = rest.first() {
                let group =
                    rest.iter().take_while(|record| *record.1.as_bytes_of() == *value.as_bytes_of()).count();
                if number % 2 == 0 && group > 64 {
                    let keys: Vec<O::Key> = rest[..group].iter().map(|record| record.0).collect();
                    sink.push_all(&keys, value)?;
                    rest = &rest[group..];
                } else {
                    sink.push(key, value)?;
                    rest = &rest[1..];
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    })
    .into_iter()
    .collect::<Result<()>>()?;
    let sorted = sort.finish()?;
    assert_eq!(sorted.stats().records_in, records.len() as u64);
    Ok((read(sorted)?.0, skipped.into_inner()))
}

/// Access to the bytes of a value, so that values can be compared.
trait AsBytes {
    fn as_bytes_of(&self) -> Vec<u8>;
}

impl<V: inshore_sortreduce::Value> AsBytes for V {
    fn as_bytes_of(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

fn records(count: u64) -> Vec<(u64, u64)> {
    let mut random = Random(count);
    (0..count).map(|n| (random.below(count * 2), n / 100)).collect()
}

#[test]
fn a_sort_reduce_resumes_after_any_failed_write_or_read() {
    let records = records(100_000);
    let sum = by(|a: u64, b: u64| a + b);
    let expected = model(&sum, &records);
    let place = TestStore::new();
    for step in [15, 40, 90] {
        let fault = |number: usize| (number < 300).then_some(Fault::FailWrite(step + number as u64 % 7));
        let ((found, skipped), attempts) =
            place.until_it_succeeds(fault, |job, keep| sort_reduce(job, keep, sum.clone(), &records));
        assert_same(&found, &expected, &format!("step {step}"));
        assert!(attempts > 1 && skipped > 20, "{attempts} attempts, {skipped} units passed over");
    }
    let ((found, skipped), _) = place.until_it_succeeds(
        |number| (number < 3).then_some(Fault::FailRead(30 + 50 * number as u64)),
        |job, keep| sort_reduce(job, keep, sum.clone(), &records),
    );
    assert_same(&found, &expected, "reads");
    assert!(skipped > 100, "{skipped}");
}

#[test]
fn runs_of_a_failed_operation_are_not_kept() {
    let records = records(50_000);
    let place = TestStore::new();
    for is_sound in [true, false] {
        let job = place.job();
        let keep = job.store().keep(&job, 6, "a test").unwrap();
        let operation = FallibleSum(Arc::new(AtomicBool::new(is_sound)));
        sort_reduce(&job, &keep, operation, &records).unwrap();
        assert_eq!(!keep.pieces().unwrap().is_empty(), is_sound);
        keep.finish().unwrap();
    }
}

#[test]
fn a_run_that_somebody_removed_costs_all_of_them_and_not_the_answer() {
    let records = records(50_000);
    let place = TestStore::new();
    let sum = by(|a: u64, b: u64| a + b);
    let expected = model(&sum, &records);
    let mut gaps = 0;
    for removed in 0..5 {
        {
            let job = place.job();
            let keep = job.store().keep(&job, 5, "a test").unwrap();
            sort_reduce(&job, &keep, sum.clone(), &records).unwrap();
            let pieces = keep.pieces().unwrap();
            assert!(pieces.len() > 5);
            keep.give_up(&pieces[removed..=removed]).unwrap();
        }
        let ((found, skipped), _) =
            place.until_it_succeeds(|_| None, |job, keep| sort_reduce(job, keep, sum.clone(), &records));
        assert_same(&found, &expected, &format!("{removed} was removed"));
        gaps += usize::from(skipped == 0);
    }
    // If a missing run contains only complete units, there is no gap, and its units are pushed again.
    assert!(gaps > 0, "no run that was removed left a gap");
}
