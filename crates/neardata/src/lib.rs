//! Kernels as tasks: streaming functions over blocks of files and datasets, and what runs them.
//!
//! The nouns:
//!
//! - [`Kernel`]: what is done with a block. It knows neither files nor machines: it gets bytes and says what came of them.
//! - [`Source`]: a file, a file of a dataset, or a stream (a pipe, something compressed).
//! - [`Block`]: some whole lines of a source, or just some bytes of it.
//! - [`run`]: reads the blocks of all sources with all threads of a job and hands over what came of them, in order.
//!
//! ```text
//!   Source, Source, ...          claimed in order       parts, handed over in order
//!    └─ block 0, 1, 2 ... ──► worker: read ─ Kernel ──┐
//!                        ──► worker: read ─ Kernel ──┴──► consumer (one at a time)
//! ```
//!
//! A file that is in the page cache is copied from there in blocks that stay in a core's cache; one that is not, and a
//! dataset, is read past it, each worker having its next blocks on their way while it works on one. A block ends with a
//! line: whoever has the block in which a line begins reads on to its end, so that workers need nothing of each other and
//! a source can be cut anywhere, between nodes too. What is to be read in one go (a stream) goes to one worker.
//!
//! Papers: kernels in the storage device, 2014 thesis chapter 5; 2016 article section 7.
#![warn(missing_docs)]

mod batch;
mod error;
#[cfg(all(feature = "fuzzing", not(feature = "nodes")))]
pub mod fuzzing;
mod kernel;
#[cfg(all(feature = "fuzzing", not(feature = "nodes")))]
#[path = "nodes/lengths.rs"]
mod lengths;
mod lines;
#[cfg(feature = "nodes")]
pub mod nodes;
mod order;
#[cfg(all(feature = "fuzzing", not(feature = "nodes")))]
#[path = "nodes/protocol.rs"]
mod protocol;
mod reading;
mod runner;
mod source;
mod task;

pub use error::{Error, Result};
pub use kernel::{Block, Border, FileBlocks, Kernel};
pub use order::Next;
pub use runner::{Event, Reach, run, smallest_memory_bytes};
pub use source::{Base, MAP, Opened, SPREAD, Source};
pub use task::{
    Answer, Contents, Failure, Needs, PartRow, Parts, Portable, Reply, Sources, Stored, Task, TaskSource,
    Work, Works, answer_parts, part_rows, part_schema,
};
