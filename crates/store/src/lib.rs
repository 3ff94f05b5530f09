//! Bytes on flash: devices, checksums, datasets, memory budget, I/O.
//!
//! The nouns, from the bottom up:
//!
//! - [`Budget`]: the memory and threads that a job may use. Memory is reserved before it is allocated and
//!   handed back when the [`Reservation`] is dropped.
//! - [`Device`]: something that holds bytes. [`Directory`] is a folder on a file system, read and written past
//!   the page cache; [`Faulty`] wraps another device and fails on cue.
//! - [`CheckedFile`]: a file whose every block is checked against a checksum kept apart from it. [`FileWriter`]
//!   makes one, [`FileReader`] streams it, [`BlockFile`] is the one that is changed in place.
//! - [`Store`]: a folder of immutable, named [`Dataset`]s, published by one atomic rename.
//! - [`Job`]: one run of one command: its budget, scratch folder, counters, progress and stop flag.
//!
//! ```text
//!   Store ── Dataset ── CheckedFile ── Device
//!     └── Job ── Budget, Scratch, Io, Counters, Progress
//! ```
//!
//! The store knows bytes and never records: what a dataset means is up to the crate that wrote it, which
//! keeps its own header in [`Dataset::attributes`]. The byte layout of everything is in `docs/format.md`.
#![warn(missing_docs)]

mod blocks;
mod budget;
mod buffer;
mod checked;
mod device;
mod error;
mod faulty;
mod io;
mod job;
mod manifest;
mod scratch;
mod store;

pub use blocks::{BlockFile, PendingBlock};
pub use budget::{Budget, Reservation, default_memory_bytes, format_bytes, parse_bytes};
pub use buffer::Buffer;
pub use checked::{CheckedFile, FileReader, FileWriter, PAGE_BYTES, PendingRead};
pub use device::{Device, DeviceFile, Directory};
pub use error::{Error, Result};
pub use faulty::{Fault, Faulty};
pub use job::{Cancel, Counters, Job, LevelReport, PhaseReport, Progress, ProgressState, Report};
pub use manifest::{FileRecord, Manifest};
pub use scratch::Scratch;
pub use store::{Dataset, DatasetBuilder, DatasetSummary, Store, default_store_path};

pub(crate) use io::Io;
