//! The store manages datasets on flash drives. It consists of devices, extents, checksums, a log, datasets and jobs.
//!
//! The main types, from the lowest level to the highest:
//!
//! - [`Device`] stores numbered extents of 2 MiB. [`Directory`] is a device in a folder of a file system. The I/O of a
//!   directory bypasses the page cache. [`Memory`], [`Throttled`], [`Faulty`] and [`Recording`] replace a directory in
//!   tests.
//! - The log consists of a superblock and records on the devices. It describes the content of the store, which is
//!   called the [`Catalog`].
//! - [`CheckedFile`] is a file: a list of extents. Every read verifies the checksums of blocks, which are stored
//!   separately from the blocks. [`FileWriter`] writes a file, [`FileReader`] streams a file, and a [`BlockFile`] is
//!   changed in place.
//! - [`Store`] contains named [`Dataset`]s on a set of devices. One record of the log publishes a dataset.
//! - [`Job`] is one execution of a command on a store. It has a [`Context`] (budget, I/O, counters, progress,
//!   cancellation flag), extents and scratch files. An [`Execution`] is a job, or a context without a store.
//! - [`Keep`] stores finished pieces of a job's work. If the job is interrupted, its next execution resumes from these
//!   pieces.
//! - [`NewFile`] writes a plain file atomically: after a crash, the file is complete or does not exist. A published
//!   file survives a power loss.
//! - [`measure`] measures the speed of a drive. The store keeps the result as a [`DriveProfile`], from which planners
//!   estimate times.
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
//! The store does not interpret the bytes of a dataset. The crate that wrote the dataset defines its format, and stores
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
