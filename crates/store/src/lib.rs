//! The store keeps bytes on flash: devices, extents, checksums, datasets and jobs.
//!
//! The main types, from the lowest level to the highest:
//!
//! - [`Device`]: numbered extents of 2 MiB. [`Directory`] is a device in a folder of a file system. Its I/O bypasses
//!   the page cache. [`Memory`], [`Throttled`], [`Faulty`] and [`Recording`] replace a directory in tests.
//! - the log: a superblock and records on the devices, which describe the content of the store, the [`Catalog`].
//! - [`CheckedFile`]: a list of extents. Every block is checked against a checksum that is stored apart from the block.
//!   [`FileWriter`] writes a file, [`FileReader`] streams one, and a [`BlockFile`] is changed in place.
//! - [`Store`]: named [`Dataset`]s on a set of devices, each published by one record of the log.
//! - [`Job`]: one run of one command on a store: a [`Context`] (budget, I/O, counters, progress, stop flag), with its
//!   extents and scratch files. An [`Execution`] is a job, or a context without a store.
//! - [`Keep`]: pieces of a job's finished work that outlive the job, so that the next run resumes there.
//! - [`NewFile`]: a plain file that a command writes, which appears whole or not at all and survives a power loss.
//! - [`measure`]: the benchmark of a drive; its [`DriveProfile`] stays with the store and feeds estimates of time.
//!
//! ```text
//!   Store ── Dataset ── CheckedFile ── extents ── Device
//!     ├── log ── Catalog
//!     └── Job ── Context, Lease (extents), Scratch
//! ```
//!
//! The types that need no store (budgets, buffers, contexts, plain files) come from `inshore_runtime` and are
//! re-exported here.
//!
//! The store does not know the records in a dataset: the crate that wrote the dataset defines its format, and stores
//! its own header in [`Dataset::attributes`]. The byte layout of all structures is in `docs/format.md`.
#![warn(missing_docs)]

mod dataset;
mod device;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod keep;
mod log;
mod new_file;
mod random;
mod redundancy;
mod shared;
mod space;
mod store;
mod upkeep;

pub use dataset::{
    blocks::{BlockFile, PendingBlock},
    builder::DatasetBuilder,
    checked::{CheckedFile, PendingRead},
    named::{BYTES, Dataset, DatasetSummary, Location, NamedFile},
    reader::FileReader,
    writer::FileWriter,
};
pub use device::{
    Device, Directory, EXTENT_BYTES, SEGMENT_EXTENTS,
    faulty::{Fault, Faulty},
    measure::{MeasurePlan, measure},
    memory::Memory,
    profile::{AccessPattern, DeviceProfile, DriveProfile, Point},
    recording::{History, Operation, Recording, WriteFate, after_crash},
    throttled::{Limits, Throttled},
};
pub use error::{Error, Result};
pub use inshore_runtime::{
    Budget, Buffer, Cancel, Context, Counters, Deadline, DriveFloor, Error as RuntimeError,
    FILE_SOURCE_BYTES, FileEdges, FileSink, FileSource, LevelReport, MemoryMap, PAGE_BYTES, PendingPiece,
    PhaseReport, PlainFile, ProcessCounts, Progress, ProgressState, Report, Reservation,
    default_memory_bytes, file_bytes, format_bytes, format_bytes_up, largest_buffer, parse_bytes,
    release_code, taken_bytes, url_hint,
};
pub use job::{Execution, Job};
pub use keep::{Keep, ResumablePiece, ResumableWork};
pub use log::{
    DeviceEntry,
    catalog::{Catalog, DatasetRecord, Edit, ExtentAddress, ExtentRef, FileRecord, Run},
};
pub use new_file::{NewFile, NewFileWriter, make_folder, remove_file};
pub use redundancy::Redundancy;
pub use space::{
    relocate::RelocationReport,
    scratch::{Owner, Scratch},
    usage::{DeviceUsage, JobUsage},
};
pub use store::{Store, default_store_path};
pub use upkeep::{Damage, Findings};
