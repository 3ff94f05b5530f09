//! Runs compute kernels over files and datasets. A compute kernel is a streaming function over blocks of bytes.
//!
//! The main types are:
//!
//! - A [`Kernel`] (compute kernel) is a function over a block. It receives the bytes of the block and returns a result,
//!   which is called a part. It depends on no file and no machine.
//! - A [`Source`] is a file, a file of a dataset, or a stream (a pipe, a decompressor).
//! - A [`Block`] is a range of consecutive bytes of a source. If the compute kernel needs complete lines, the block
//!   contains complete lines only.
//! - [`run`] reads the blocks of all sources with all threads of a job, and delivers the parts to a consumer in order.
//!
//! ```text
//!   Source, Source, ...          claimed in order       parts, delivered in order
//!    └─ block 0, 1, 2 ... ──► worker: read ─ Kernel ──┐
//!                        ──► worker: read ─ Kernel ──┴──► consumer (one at a time)
//! ```
//!
//! The runner copies a file in the page cache in blocks that fit in a core's cache, unless the compute kernel accepts
//! memory maps. It reads other files and datasets directly from the drive. While a worker processes a block of such a
//! file, the reads of its next blocks are in flight. If a compute kernel needs complete lines, a block ends at a line
//! end: the worker that has the beginning of a line also reads the rest of the line. Workers are therefore independent,
//! and even different nodes can read different blocks of a source. A stream must be read sequentially, so one worker
//! reads the complete stream.
//!
//! The design follows compute kernels that run in the storage device, as chapter 5 of the 2014 thesis and section 7 of
//! the 2016 article describe them (see docs/from-the-papers.md).
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
    Answer, Contents, Failure, FinalFailure, Metric, MetricKind, PartRow, Parts, Portable, Reply,
    RequiredRight, Sources, StoredSource, Task, TaskHandler, TaskHandlers, TaskSource, answer_parts,
    failure_told, part_rows, part_schema,
};
