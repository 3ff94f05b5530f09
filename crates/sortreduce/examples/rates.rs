//! Prints the throughput of each phase of sort-reduce on one core, in millions of records per second. Usage: `cargo
//! run --release -p inshore-sortreduce --example rates [FOLDER [MILLIONS [CASE]]]`.
//!
//! Sorted runs are written to a store in FOLDER (default: the system's temporary folder). Each number is the best of
//! three measurements. "wall" numbers use elapsed time. "cpu" numbers use the CPU time of the process, including I/O
//! threads, and are more reliable on a busy machine. CASE selects the cases whose name contains it.

use std::{marker::PhantomData, path::Path, time::Instant};

use inshore_sortreduce::{Config, Key, Operation, Result, SortReduce, Stats, Strategy};
use inshore_store::{Budget, Cancel, Store};

#[derive(Clone)]
struct Sum<K>(PhantomData<K>);

impl<K: Key> Operation for Sum<K> {
    type Key = K;
    type Value = u64;
    #[inline]
    fn combine(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }
}

#[derive(Clone)]
struct Distinct;

impl Operation for Distinct {
    type Key = u64;
    type Value = ();
    fn combine(&self, (): (), (): ()) {}
}

const MEMORY_BYTES: u64 = 1 << 30;
const VERTICES: u64 = 1 << 25;

/// A point in time: the wall clock, and the CPU time of this process.
#[derive(Clone, Copy)]
struct Timestamp {
    wall: Instant,
    cpu_seconds: f64,
}

impl Timestamp {
    fn now() -> Timestamp {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Timestamp { wall: Instant::now(), cpu_seconds: ticks as f64 / 100.0 }
    }

    /// Returns the throughput of `records` records since `since`, in millions per second of elapsed time and of CPU
    /// time.
    fn rates(self, since: Timestamp, records: u64) -> [f64; 2] {
        let wall = (self.wall - since.wall).as_secs_f64();
        let cpu = self.cpu_seconds - since.cpu_seconds;
        [wall, cpu].map(|seconds| records as f64 / seconds.max(0.005) / 1e6)
    }
}

struct TimedRun {
    push: [f64; 2],
    merge: [f64; 2],
    stats: Stats,
}

fn run<O: Operation>(
    folder: &Path,
    operation: &O,
    config: &Config,
    keys: &[O::Key],
    value: O::Value,
) -> Result<TimedRun> {
    let store = Store::open(folder)?;
    let job = store.job(Budget::new(MEMORY_BYTES, 1), Cancel::default())?;
    let started = Timestamp::now();
    let sort = SortReduce::new(&job, operation.clone(), config)?;
    let mut sink = sort.sink()?;
    // Records are pushed in groups of 100, as a graph algorithm pushes a message to all neighbours of a vertex.
    for part in keys.chunks(100) {
        sink.push_all(part, value)?;
    }
    sink.finish()?;
    let pushed = Timestamp::now();
    let mut sorted = sort.finish()?;
    while sorted.next_block()?.is_some() {}
    let stats = sorted.stats();
    drop(sorted);
    let ended = Timestamp::now();
    let merged = if stats.runs > 0 { spilled_records::<O>(&stats) } else { stats.records_out };
    Ok(TimedRun { push: pushed.rates(started, keys.len() as u64), merge: ended.rates(pushed, merged), stats })
}

fn report<O: Operation>(
    folder: &Path,
    what: &str,
    operation: &O,
    config: &Config,
    keys: &[O::Key],
    value: O::Value,
) -> Result<()> {
    if std::env::args().nth(3).is_some_and(|part| !what.contains(&part)) {
        return Ok(());
    }
    let best = |a: [f64; 2], b: [f64; 2]| [a[0].max(b[0]), a[1].max(b[1])];
    let mut all = run(folder, operation, config, keys, value)?;
    for _ in 0..2 {
        let timed = run(folder, operation, config, keys, value)?;
        all = TimedRun { push: best(all.push, timed.push), merge: best(all.merge, timed.merge), ..timed };
    }
    let TimedRun { push, merge, stats } = all;
    println!(
        "{what:36} push {:5.0} wall {:5.0} cpu   merge or scan {:5.0} wall {:5.0} cpu   \
         {} runs, fan-in {}, {} M out",
        push[0],
        push[1],
        merge[0],
        merge[1],
        stats.runs,
        stats.fan_in,
        stats.records_out / 1_000_000
    );
    Ok(())
}

fn spilled_records<O: Operation>(stats: &Stats) -> u64 {
    stats.bytes_spilled / (size_of::<O::Key>() + size_of::<O::Value>()) as u64
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random endpoint of a Kronecker edge, in which a quarter of the bits are set. The endpoint is then
    /// mapped to another vertex number by a fixed permutation.
    fn kronecker(&mut self) -> u64 {
        let vertex = self.next() & self.next() & (VERTICES - 1);
        vertex.wrapping_mul(0x9e37_79b1) & (VERTICES - 1)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, Into::into).join("inshore-rates");
    let millions: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let count = millions * 1_000_000;
    let mut random = Random(1);
    let uniform: Vec<u32> = (0..count).map(|_| (random.next() % VERTICES) as u32).collect();
    let skewed: Vec<u32> = (0..count).map(|_| random.kronecker() as u32).collect();
    let wide: Vec<u64> = (0..count).map(|_| random.next()).collect();

    let dense = |memory_mib: u64| Config {
        key_range: Some(VERTICES),
        memory_bytes: memory_mib << 20,
        strategy: Some(Strategy::Dense),
        name: "rates",
        ..Config::default()
    };
    let sum = Sum::<u32>(PhantomData);
    for (name, keys) in [("uniform", &uniform), ("skewed", &skewed)] {
        for memory_mib in [320, 1024] {
            let what = format!("dense (u32, u64) {name} {memory_mib} MiB");
            report(&folder, &what, &sum, &dense(memory_mib), keys, 1)?;
        }
    }
    let merge = |memory_mib: u64, chunk_bytes, key_range| Config {
        key_range,
        memory_bytes: memory_mib << 20,
        strategy: Some(Strategy::Merge),
        chunk_bytes,
        name: "rates",
        ..Config::default()
    };
    let range = Some(VERTICES);
    for (name, keys) in [("uniform", &uniform), ("skewed", &skewed)] {
        for memory_mib in [32, 128, 512] {
            let what = format!("merge (u32, u64) {name} {memory_mib} MiB");
            report(&folder, &what, &sum, &merge(memory_mib, None, range), keys, 1)?;
        }
    }
    let sum = Sum::<u64>(PhantomData);
    for memory_mib in [32, 128, 512] {
        let what = format!("merge (u64, u64) 64-bit {memory_mib} MiB");
        report(&folder, &what, &sum, &merge(memory_mib, None, None), &wide, 1)?;
        let what = format!("merge (u64, ()) 64-bit {memory_mib} MiB");
        report(&folder, &what, &Distinct, &merge(memory_mib, None, None), &wide, ())?;
    }
    // With this chunk size there are 200 runs, and the memory suffices for large read buffers.
    let chunk = |bytes: usize| Some(count * bytes / 200);
    report(&folder, "200 runs (u64, u64)", &sum, &merge(512, chunk(16), None), &wide, 1)?;
    report(&folder, "200 runs (u64, ())", &Distinct, &merge(512, chunk(8), None), &wide, ())?;
    let sum = Sum::<u32>(PhantomData);
    report(&folder, "200 runs (u32, u64) uniform", &sum, &merge(512, chunk(12), range), &uniform, 1)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
