//! Bytes on flash: devices, extents, checksums, datasets, jobs.
//!
//! The nouns, from the bottom up:
//!
//! - [`Device`]: something that holds numbered extents of 2 MiB. [`Directory`] is a folder on a file system, read and
//!   written past the page cache; [`Memory`], [`Throttled`], [`Faulty`] and [`Recording`] stand in for it in tests.
//! - the log: a superblock and records on the devices that say what the store holds, the [`Catalog`].
//! - [`CheckedFile`]: a list of extents whose every block is checked against a checksum kept apart from it.
//!   [`FileWriter`] makes one, [`FileReader`] streams it, [`BlockFile`] is the one that is changed in place.
//! - [`Store`]: named [`Dataset`]s on a set of devices, each published by one record of the log.
//! - [`Job`]: one run of one command on a store: a [`Context`] (budget, I/O, counters, progress, stop flag), and the extents
//!   and scratch files that it has. An [`Execution`] is a job, or a context where there is no store.
//! - [`Keep`]: pieces of a job's finished work that outlive it, for the job that goes on with it.
//! - [`NewFile`]: a plain file that a command writes, which appears whole or not at all and survives a power loss.
//! - [`measure`]: what a drive can do; its [`DriveProfile`] stays with the store and feeds estimates of time.
//!
//! ```text
//!   Store ── Dataset ── CheckedFile ── extents ── Device
//!     ├── log ── Catalog
//!     └── Job ── Context, Lease (extents), Scratch
//! ```
//!
//! What needs no store (budgets, buffers, contexts, plain files) is `inshore_runtime`'s; its names are found here, too.
//!
//! The store knows bytes and never records: what a dataset means is up to the crate that wrote it, which
//! keeps its own header in [`Dataset::attributes`]. The byte layout of everything is in `docs/format.md`.
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
mod redundancy;
mod shared;
mod space;
mod store;
mod upkeep;

pub use dataset::{
    blocks::{BlockFile, PendingBlock},
    checked::{CheckedFile, PendingRead},
    reader::FileReader,
    writer::FileWriter,
};
pub use device::{
    Device, Directory, EXTENT_BYTES, SEGMENT_EXTENTS,
    faulty::{Fault, Faulty},
    measure::{MeasurePlan, measure},
    memory::Memory,
    profile::{DeviceProfile, DriveProfile, Pattern, Point},
    recording::{Fate, History, Operation, Recording, after_crash},
    throttled::{Limits, Throttled},
};
pub use error::{Error, Result};
pub use inshore_runtime::{
    Budget, Buffer, Cancel, Context, Counters, Deadline, DriveFloor, Error as RuntimeError,
    FILE_SOURCE_BYTES, FileEdges, FileSink, FileSource, LevelReport, PAGE_BYTES, PendingPiece, PhaseReport,
    PlainFile, ProcessCounts, Progress, ProgressState, Report, Reservation, Window, default_memory_bytes,
    file_bytes, format_bytes, format_bytes_up, largest_buffer, parse_bytes, release_code, taken_bytes,
    url_hint,
};
pub use job::{Execution, Job};
pub use keep::{Keep, Kept, KeptPiece};
pub use log::{
    DeviceEntry,
    catalog::{Catalog, DatasetRecord, Edit, ExtentRef, FileRecord, Place, Redundancy, Run},
};
pub use new_file::{NewFile, NewFileWriter, make_folder, remove_file};
pub use space::{
    relocate::Moved,
    scratch::{Owner, Scratch},
    usage::{DeviceUsage, JobUsage},
};
pub use store::{
    BYTES, Dataset, DatasetBuilder, DatasetSummary, Location, NamedFile, Store, default_store_path,
};
pub use upkeep::{Damage, Findings};
