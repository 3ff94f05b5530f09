//! Kernels as tasks: streaming functions over blocks of files and datasets, and the runner for them.
//!
//! The main types are:
//!
//! - A [`Kernel`] is a function over a block. A kernel knows neither files nor machines: it receives bytes and returns
//!   a part.
//! - A [`Source`] is a file, a file of a dataset, or a stream (a pipe, a decompressor).
//! - A [`Block`] is some complete lines of a source, or any consecutive bytes.
//! - [`run`] reads the blocks of all sources with all threads of a job and delivers the parts in order.
//!
//! ```text
//!   Source, Source, ...          claimed in order       parts, delivered in order
//!    └─ block 0, 1, 2 ... ──► worker: read ─ Kernel ──┐
//!                        ──► worker: read ─ Kernel ──┴──► consumer (one at a time)
//! ```
//!
//! A file in the page cache is copied in blocks that fit in a core's cache. Other files and datasets are read directly
//! from the drive; each worker has its next blocks in flight while it processes one block. A block ends at a line end:
//! the worker with the block in which a line begins also reads the rest of the line. Workers are therefore independent,
//! and a source can be cut anywhere, even between nodes. A stream must be read sequentially, so one worker reads all of
//! it.
//!
//! Papers: kernels in the storage device (2014 thesis, chapter 5; 2016 article, section 7).
#![warn(missing_docs)]

mod batch;
mod error;
mod kernel;
mod lines;
mod order;
mod reading;
mod runner;
mod source;
mod task;

pub use error::{Error, Result};
pub use kernel::{Block, Border, FileBlocks, Kernel};
pub use order::Next;
pub use runner::{Event, ResumePosition, run, smallest_memory_bytes};
pub use source::{MAP, OpenedSource, SPREAD, Source, SourceOffset};
pub use task::{
    Answer, Contents, Failure, PartRow, Parts, Portable, Reply, RequiredRight, Sources, StoredSource, Task,
    TaskHandler, TaskHandlers, TaskSource, answer_parts, failure_told, part_rows, part_schema,
};
