//! Sorts and combines streams of records larger than memory.
//!
//! The main terms are:
//!
//! - A record consists of a [`Key`] of 32, 64 or 128 bits and a [`Value`]. An [`Operation`] combines two values of
//!   one key.
//! - [`SortReduce`] takes records in any order. It returns each key once, in ascending order, with all values of the
//!   key combined. Random updates of data larger than memory are thus replaced by one sequential pass (thesis of
//!   2018, section 9.3).
//! - A [`Sink`] takes the records of one thread. [`Sorted`] returns the result block by block.
//! - The module [`rows`] sorts byte strings of any length by the bytes of their keys.
//! - [`Packing`] compresses sorted records to as few bits as they need.
//! - A run is a sorted sequence of records without equal keys in the job's scratch folder. A run is packed if packing
//!   saves bytes.
//!
//! ```
//! use inshore_sortreduce::{Config, Operation, SortReduce};
//! use inshore_store::{Budget, Cancel, Store};
//!
//! #[derive(Clone)]
//! struct Sum;
//! impl Operation for Sum {
//!     type Key = u32;
//!     type Value = u64;
//!     fn combine(&self, a: u64, b: u64) -> u64 {
//!         a + b
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path())?;
//! let job = store.job(Budget::new(64 << 20, 2), Cancel::default())?;
//! let config = Config { memory_bytes: 16 << 20, ..Config::default() };
//! let degrees = SortReduce::new(&job, Sum, &config)?;
//! let mut sink = degrees.sink()?;
//! sink.push_all(&[7, 3, 7], 1)?;
//! sink.push(9, 5)?;
//! sink.finish()?;
//! let mut sorted = degrees.finish()?;
//! let block = sorted.next_block()?.expect("some records");
//! assert_eq!((block.keys, block.values), (&[3, 7, 9][..], &[1, 2, 5][..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Strategies
//!
//! ```text
//!   dense       push -> bins of key ranges -> array in memory + presence bitmap -> scan
//!   partition   push -> bins of key ranges (-> flash) -> table in memory for one bin after the other -> scan
//!   merge       push -> buckets of a chunk -> sort, reduce (-> run on flash -> merge passes) -> merge
//!   hash-first  push -> hash table in the cache -> records that leave the table: as for merge
//! ```
//!
//! A [`Choice`] estimates the seconds of each strategy that the key range and the memory allow, and selects the
//! fastest. The estimates use the expected number of records and the store's drive profile.
//!
//! - Dense writes nothing to flash.
//! - Partition writes each record to flash once, and reads each record once.
//! - Merge combines equal keys at every step. A full chunk is sorted and reduced in place, and is written only if it
//!   is then still more than half full. A small number of distinct keys is therefore never written to the drive. The
//!   fan-in is limited only by the read buffers, which have one check block for each run. It is hundreds of runs (16
//!   in the paper's hardware), so that usually one merge pass suffices.
//! - Hash-first avoids most of the sorting if a few keys occur often. Otherwise it bypasses its table.
//!
//! With any strategy, [`Sorted::split`] divides the result into parts, so that each part can be read by its own
//! thread.
//!
//! # Cost
//!
//! The following cost estimate is for n records of b bytes each (packed, on the drive), of which d n records remain
//! after reduction in chunks. Dense writes nothing to the drive. Merge writes and reads d n b bytes in each pass, and
//! one pass suffices for up to `fan_in * chunk` bytes. The CPU time per record is the sum of one scattered write (2
//! to 4 ns), one sort of 64-bit words in slabs that fit in the second-level cache (6 ns), one gather (2 ns), packing
//! and unpacking (6 ns), and some copies (1 ns each). The merge sorts and gathers each record once more.
//!
//! The table shows nanoseconds of CPU time per record, measured with `examples/rates.rs` on one core of Zen 5 class
//! with 64 million records. The times include I/O threads and page zeroing. The machine was **busy with other work**.
//! Without that work, the times are two to three times lower.
//!
//! | | (u32, u64), 2^25 keys, even | the same, skewed | (u64, u64), 64-bit keys | (u64, ()), 64-bit keys |
//! |---|---|---|---|---|
//! | dense push | 29 | 24 | | |
//! | dense scan, per returned record | 2 | 5 | | |
//! | forming runs, 128 MiB | 25 | 23 | 31 | 23 |
//! | merging under 50 runs | 10 | 9 | 16 | 10 |
//! | merging 200 runs | 22 | | 29 | 19 |
//!
//! The time of dense depends on the memory's speed. In the same hour, one random update in an array of 256 MiB took
//! 14 ns.
//!
//! # Same answer
//!
//! Keys and integer results do not depend on the strategy, the memory or the number of threads. See [`Operation`] for
//! floating-point values.
#![warn(missing_docs)]

mod array;
mod cache;
mod config;
mod error;
mod forming;
mod keys;
mod part;
mod plan;
pub mod rows;
mod runs;
mod shared;
mod sink;
mod sorted;
mod sortreduce;
mod strategies;
mod words;

pub use cache::prefetch;
pub use config::{Config, smallest_memory_bytes};
pub use error::{Error, Result};
pub use keys::record::{Block, Key, Operation, Value};
pub use plan::merge_memory_bytes_for;
pub use runs::pack::{BadFrame, FRAME_RECORDS, Packing};
pub use sink::Sink;
pub use sorted::{Sorted, Stats};
pub use sortreduce::SortReduce;
pub use strategies::{
    Strategy,
    cost::{Choice, Estimate, choose},
};
