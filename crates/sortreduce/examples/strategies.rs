//! Measures each forced strategy and the chosen strategy on a grid of key distributions, record types and budgets,
//! with two threads. Usage: `cargo run --release -p inshore-sortreduce --example strategies [FOLDER [MILLIONS
//! [CASE]]]`.
//!
//! Scratch files are in a store in FOLDER (default: the system's temporary folder). The example pushes MILLIONS
//! million records (default 32; 4 for a quick test). CASE selects the cases whose name contains it. Keys are below
//! 100 million. They are spread evenly, follow Zipf's law, or have only 65,536 values. Records are (u32, u32) and
//! (u64, u64). A measurement lasts from the first push to the last record read, and the result is read in two parts.
//! Each number is the better of two measurements. There are numbers for elapsed time and for CPU time, which depends
//! less on other work of the machine. "!" marks a choice that is more than 25 % slower than the best strategy.
//!
//! docs/benchmarks.md ("Does sort-reduce choose the right strategy?") has results in which every choice is within 25
//! % of the best. A known weakness is that the estimates use the number of keys but not how often each key occurs. On
//! a slow drive, the example therefore chose merge for Zipf's law with 16-byte records in 1 GiB. In that case,
//! partition writes less than estimated.

use std::{marker::PhantomData, path::Path, time::Instant};

use inshore_sortreduce::{
    Choice, Config, Error, Key, Operation, Result, SortReduce, Sorted, Strategy, Value,
};
use inshore_store::{Budget, Cancel, Store};

const RANGE: u64 = 100_000_000;
const DISTINCT: u64 = 1 << 16;
const THREADS: usize = 2;

/// A value that can be summed.
trait Summed: Value {
    fn of(number: u64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn number(self) -> u64;
}

macro_rules! impl_summed {
    ($value:ty) => {
        impl Summed for $value {
            fn of(number: u64) -> Self {
                number as $value
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn number(self) -> u64 {
                self.into()
            }
        }
    };
}

impl_summed!(u32);
impl_summed!(u64);

#[derive(Clone)]
struct Sum<K, V>(PhantomData<(K, V)>);

impl<K: Key, V: Summed> Operation for Sum<K, V> {
    type Key = K;
    type Value = V;
    #[inline]
    fn combine(&self, a: V, b: V) -> V {
        a.plus(b)
    }
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Permutes the numbers below [`RANGE`], so that small numbers are spread over the range.
fn spread(number: u64) -> u64 {
    number * 61_803_399 % RANGE
}

/// A distribution of keys, as a function that maps a random number to a key.
type KeyDistribution = fn(u64) -> u64;

const KEYS: [(&str, KeyDistribution); 3] = [
    ("uniform", |random| random % RANGE),
    // With Zipf's law of exponent 1, the logarithm of the key's rank is evenly distributed.
    ("zipf", |random| {
        let part = (random >> 11) as f64 / (1u64 << 53) as f64;
        spread(((RANGE as f64).powf(part) as u64 - 1).min(RANGE - 1))
    }),
    ("64 K distinct", |random| spread(random % DISTINCT)),
];

/// Reads a part of the result, and returns the sum of its values.
fn read<K: Key, V: Summed>(mut part: Sorted<Sum<K, V>>) -> Result<u64> {
    let mut sum = 0;
    while let Some(block) = part.next_block()? {
        sum += block.values.iter().map(|value| value.number()).sum::<u64>();
    }
    Ok(sum)
}

/// The measured costs of one sort-reduce.
struct RunCosts {
    seconds: f64,
    cpu_seconds: f64,
    bytes_written: u64,
    choice: Choice,
}

/// Returns the CPU time of this process in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Pushes all keys with two threads, and reads the result with two threads.
fn run<K: Key, V: Summed>(store: &Store, config: &Config, keys: &[K]) -> Result<RunCosts> {
    let job = store.job(Budget::new(config.memory_bytes, THREADS), Cancel::default())?;
    let (started, cpu_started) = (Instant::now(), cpu_seconds());
    let sort = SortReduce::new(&job, Sum::<K, V>(PhantomData), config)?;
    let choice = sort.choice().clone();
    std::thread::scope(|scope| {
        let push = |keys: &[K]| {
            let mut sink = sort.sink()?;
            keys.iter().try_for_each(|&key| sink.push(key, V::of(1)))?;
            sink.finish()
        };
        let halves = keys.chunks(keys.len().div_ceil(THREADS));
        let threads: Vec<_> = halves.map(|half| scope.spawn(move || push(half))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let parts = sort.finish()?.split(THREADS)?;
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || read(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(sums.iter().sum::<u64>(), keys.len() as u64, "{config:?}");
    let cpu_seconds = cpu_seconds() - cpu_started;
    Ok(RunCosts { seconds, cpu_seconds, bytes_written: job.counters().bytes_written(), choice })
}

/// Measures one cell of the grid, and prints a line. Returns whether the chosen strategy was fast enough.
fn cell<K: Key, V: Summed>(
    store: &Store,
    name: &str,
    memory_mib: u64,
    keys: &[K],
    hint: u64,
) -> Result<bool> {
    let config = Config {
        key_range: Some(RANGE),
        memory_bytes: memory_mib << 20,
        sinks: THREADS,
        expected_records: Some(keys.len() as u64),
        expected_keys: Some(hint),
        name: "strategies",
        ..Config::default()
    };
    let mut best = f64::INFINITY;
    let mut line = format!("{name:32}");
    for strategy in Strategy::ALL {
        let config = Config { strategy: Some(strategy), ..config.clone() };
        let (mut seconds, mut cpu) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..2 {
            match run::<K, V>(store, &config, keys) {
                Ok(ran) => (seconds, cpu) = (seconds.min(ran.seconds), cpu.min(ran.cpu_seconds)),
                Err(Error::Store(inshore_store::Error::BudgetTooSmall { .. })) => break,
                Err(error) => return Err(error),
            }
        }
        best = best.min(seconds);
        line +=
            &if seconds.is_finite() { format!(" {seconds:5.2} {cpu:5.2}") } else { format!(" {:>11}", "-") };
    }
    let (first, second) = (run::<K, V>(store, &config, keys)?, run::<K, V>(store, &config, keys)?);
    let seconds = first.seconds.min(second.seconds);
    let is_good = seconds <= 1.25 * best;
    let choice = &second.choice;
    let estimate = choice.estimates.first().map_or(0.0, |estimate| estimate.seconds);
    println!(
        "{line} | {:10} {seconds:6.2} s (estimate {estimate:.2}) {:5} MB written {}",
        choice.strategy.to_string(),
        second.bytes_written / 1_000_000,
        if is_good { "" } else { "!" }
    );
    if std::env::var_os("EXPLAIN").is_some() {
        print!("{choice}");
    }
    Ok(is_good)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, Into::into).join("inshore-strategies");
    let millions: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let case = arguments.next().unwrap_or_default();
    let result = grid(&folder, millions * 1_000_000, &case);
    std::fs::remove_dir_all(&folder)?;
    Ok(result?)
}

fn grid(folder: &Path, count: usize, case: &str) -> Result<()> {
    let store = Store::open(folder)?;
    println!(
        "{:32} {:>11} {:>11} {:>11} {:>11} | chosen",
        "seconds", "dense", "partition", "merge", "hash-first"
    );
    let mut good = 0;
    let mut all = 0;
    for (name, key) in KEYS {
        let mut random = Random(1);
        let keys: Vec<u64> = (0..count).map(|_| key(random.next())).collect();
        let narrow: Vec<u32> = keys.iter().map(|&key| key as u32).collect();
        let mut seen = vec![0u64; RANGE as usize / 64 + 1];
        keys.iter().for_each(|&key| seen[key as usize / 64] |= 1 << (key % 64));
        let distinct = seen.iter().map(|word| u64::from(word.count_ones())).sum();
        for memory_mib in [64, 256, 1024] {
            for bytes in [8, 16] {
                let name = format!("{name}, {bytes} bytes, {memory_mib} MiB");
                if !name.contains(case) {
                    continue;
                }
                let is_good = match bytes {
                    8 => cell::<u32, u32>(&store, &name, memory_mib, &narrow, distinct)?,
                    _ => cell::<u64, u64>(&store, &name, memory_mib, &keys, distinct)?,
                };
                good += u32::from(is_good);
                all += 1;
            }
        }
    }
    println!("{good} of {all} choices within 25 % of the best");
    Ok(())
}
