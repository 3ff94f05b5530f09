//! The runtime provides memory, threads, files, progress and cancellation to every job, with or without a store.
//!
//! The main types, from the bottom up:
//!
//! - A [`Budget`] is the memory and threads that a job may use. Memory is reserved before it is allocated, and returned
//!   when the [`Reservation`] is dropped.
//! - A [`Buffer`] is aligned memory for direct I/O, counted in a budget; large buffers lie on huge pages.
//! - A [`Storage`] holds bytes at offsets, and a [`Part`] of a request reads or writes a range of these
//!   bytes. [`Pending`] is a request in flight, by io_uring or, if io_uring is forbidden, by a pool of
//!   threads.
//! - A [`Context`] holds the state of one run of one command: a budget, I/O, [`Counters`], [`Progress`], and
//!   a [`Cancel`] flag, which a [`Deadline`] may set. [`Report`] is the summary of the run at its end.
//! - [`PlainFile`], [`FileSource`], [`FileSink`] and [`MemoryMap`] access files of the file system. Files are
//!   read and written without the page cache, or mapped from the page cache.
//!
//! ```text
//!   Context ── Budget ── Reservation ── Buffer
//!     ├── I/O ── Part ── Storage          a file; for a store, an extent of a device
//!     └── Counters, Progress, Cancel
//! ```
//!
//! The crate contains no code for extents, datasets or records. A request holds a [`Guard`], which keeps a
//! resource alive until the bytes are transferred. A job on a store contains a `Context`
//! (`inshore_store::Job`). A function that takes a `Context` needs no store, and the compiler ensures this.
//!
//! ```
//! use inshore_runtime::{Budget, Cancel, Context, FileSource};
//!
//! let context = Context::new(Budget::new(8 << 20, 1), Cancel::default());
//! let mut source = FileSource::open(&context, &std::env::current_exe()?)?;
//! let mut bytes = 0;
//! while let Some(piece) = source.next_piece()? {
//!     bytes += piece.len() as u64;
//! }
//! assert_eq!(bytes, source.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod budget;
mod buffer;
mod cancel;
mod code;
mod context;
mod counters;
mod deadline;
mod error;
mod file_sink;
mod file_source;
mod io;
mod memory_map;
mod pages;
mod progress;
mod report;
mod ring;
mod sizes;
mod slab;
mod storage;

pub use budget::{Budget, Reservation, default_memory_bytes, parse_bytes};
pub use buffer::{Buffer, largest_buffer, taken_bytes};
pub use cancel::Cancel;
pub use code::release_code;
pub use context::Context;
pub use counters::{Counters, ProcessCounts};
pub use deadline::Deadline;
pub use error::{Error, Result, url_hint};
pub use file_sink::{FileEdges, FileSink};
pub use file_source::{FILE_SOURCE_BYTES, FileSource, PendingPiece, PlainFile, file_bytes};
pub use io::Pending;
pub use memory_map::MemoryMap;
pub use pages::PAGE_BYTES;
pub use progress::{Progress, ProgressState};
pub use report::{DriveFloor, LevelReport, PhaseReport, Report};
pub use sizes::{format_bytes, format_bytes_up};
pub use storage::{Direction, Guard, Part, Storage};
