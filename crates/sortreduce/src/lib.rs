//! Sorts and combines streams of records larger than memory.
//!
//! Nouns of the crate:
//!
//! - A record consists of a [`Key`] of 32, 64 or 128 bits and a [`Value`]; an [`Operation`] combines two values of one
//!   key.
//! - [`SortReduce`] takes records in any order and returns each key once, in ascending order, with all its values
//!   combined. Random updates of data larger than memory thus become one sequential pass (thesis of 2018, section 9.3).
//! - A [`Sink`] is the input of one thread. [`Sorted`] is the result, read block by block.
//! - The module [`rows`] does the same for byte strings of any length, sorted by the bytes of their keys.
//! - [`Packing`] stores sorted records in as few bits as they need.
//! - A run is a sorted, reduced sequence of records in the job's scratch folder, packed if packing saves bytes.
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
//!   partition   push -> bins of key ranges (-> flash) -> the same for one bin after the other
//!   merge       push -> buckets of a chunk -> sort, reduce (-> run on flash -> merge passes) -> merge
//!   hash-first  push -> table in the cache -> what leaves it goes on as for merge
//! ```
//!
//! A [`Choice`] estimates the seconds of each strategy that the key range and the memory allow, from the expected
//! records and the store's drive profile, and takes the fastest.
//!
//! - Dense writes nothing to flash.
//! - Partition writes each update to flash once and reads it once.
//! - Merging reduces at every step: a chunk is written only if sorting and reducing it in place leaves it more than
//!   half full. A small number of distinct keys therefore never reaches the drive. The fan-in is limited only by read
//!   buffers of one check block for each run (hundreds of runs, where the paper's hardware had 16), so that usually one
//!   merge pass suffices.
//! - Hash-first saves most of the sorting if a few keys occur often, and otherwise switches itself off.
//!
//! With any strategy [`Sorted::split`] divides the result into parts, one for each thread.
//!
//! # Cost
//!
//! The following estimate of costs is for n records of b bytes (packed, on the drive), of which d n are left after
//! reduction in chunks. Dense writes nothing to the drive. Merging writes and reads d n b bytes for each pass, with one
//! pass for up to `fan_in * chunk` bytes. The CPU time of a record is the sum of one scattered write (2 to 4 ns), one
//! sort of 64-bit words in slabs that fit in the second-level cache (6 ns), one gather (2 ns), packing and unpacking (6
//! ns), and some copies (1 ns each). The merge sorts and gathers once more.
//!
//! The table shows nanoseconds of CPU time per record, measured with `examples/rates.rs` on one core of Zen 5 class
//! with 64 million records. The times include I/O threads and page zeroing. The machine was **busy with other work**:
//! its figures without that work are two to three times lower.
//!
//! | | (u32, u64), 2^25 keys, even | the same, skewed | (u64, u64), 64-bit keys | (u64, ()), 64-bit keys |
//! |---|---|---|---|---|
//! | dense push | 29 | 24 | | |
//! | dense scan, a record handed out | 2 | 5 | | |
//! | forming runs, 128 MiB | 25 | 23 | 31 | 23 |
//! | merging under 50 runs | 10 | 9 | 16 | 10 |
//! | merging 200 runs | 22 | | 29 | 19 |
//!
//! The dense figure depends on the memory's speed: one random update of 256 MiB took 14 ns in the same hour.
//!
//! # Same answer
//!
//! Keys and integer results do not depend on strategy, memory or threads. See [`Operation`] for floating-point values.
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
