//! Defines the errors of the store.

use std::{io, path::PathBuf};

use inshore_runtime as runtime;

/// `Result` is the result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// `Error` lists the errors of the store. An error message contains the failed operation, the file or folder, the value
/// found and the value expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or folder (no permission, disk full, I/O error).
    #[error("{}: cannot {what}: {source}{}", path.display(), runtime::url_hint(&path.to_string_lossy(), source))]
    Io {
        /// The failed operation, as a verb phrase ("write 1048576 bytes at 0").
        what: String,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Bytes that were read from flash differ from the bytes that were written.
    #[error("{file}: damaged at offset {offset}: checksum is {found:08x}, expected {expected:08x}")]
    Damaged {
        /// The name of the dataset and file (`dataset/file`), or of the scratch file.
        file: String,
        /// The offset of the damaged block in the file, in bytes.
        offset: u64,
        /// The checksum of the bytes that were read.
        found: u32,
        /// The checksum that was recorded when the bytes were written.
        expected: u32,
    },
    /// A file of the store contains bytes that this version of Inshore cannot interpret.
    #[error("{}: invalid {what}: found {found}, expected {expected}", path.display())]
    BadFormat {
        /// The path of the file or device.
        path: PathBuf,
        /// The field or structure that is wrong ("magic", "version", "length").
        what: &'static str,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// A reservation would exceed the memory budget.
    #[error("{}", runtime::Error::OverBudget { what, wanted: *wanted, free: *free, total: *total, enough: *enough })]
    OverBudget {
        /// The purpose of the memory.
        what: &'static str,
        /// The number of bytes that the reservation asked for.
        wanted: u64,
        /// The number of bytes of the budget that were not reserved at that moment.
        free: u64,
        /// The total number of bytes of the budget.
        total: u64,
        /// The size of a budget with room for the reservation. The value is `None` if this budget is part of a larger
        /// budget.
        enough: Option<u64>,
    },
    /// The memory budget is too small for the job.
    #[error("{}", runtime::Error::BudgetTooSmall { what: what.clone(), given: *given, smallest: *smallest })]
    BudgetTooSmall {
        /// A description of the job.
        what: String,
        /// The budget that was given, in bytes.
        given: u64,
        /// The smallest budget with which the job works, in bytes.
        smallest: u64,
    },
    /// A dataset of this name exists already.
    #[error("dataset {name:?} exists already in {}: remove it first or choose another name", store.display())]
    NameExists {
        /// The name of the dataset.
        name: String,
        /// The folder of the store.
        store: PathBuf,
    },
    /// There is no dataset of this name.
    #[error("there is no dataset {name:?} in {}", store.display())]
    NotFound {
        /// The name of the dataset.
        name: String,
        /// The folder of the store.
        store: PathBuf,
    },
    /// A running process uses the resumable work that the caller wants to take over or remove.
    #[error("process {process} uses {name}: wait until the process ends, or stop it")]
    InUse {
        /// The name of the resumable work.
        name: String,
        /// The id of the process.
        process: u32,
    },
    /// A text is not a valid name for a dataset.
    #[error(
        "bad name {name:?}: expected 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    )]
    BadName {
        /// The invalid name.
        name: String,
    },
    /// A text is not a size.
    #[error("{}", runtime::Error::BadSize { text: text.clone() })]
    BadSize {
        /// The invalid text.
        text: String,
    },
    /// The folder contains files that do not belong to a store.
    #[error("{} is not an Inshore store: it has files but no store header", path.display())]
    NotAStore {
        /// The path of the folder.
        path: PathBuf,
    },
    /// The header of an extent does not match the reference to the extent.
    #[error("{file}: damaged at offset {offset}: the header of the extent is invalid: {what}")]
    DamagedHeader {
        /// The name of the dataset and file (`dataset/file`).
        file: String,
        /// The offset of the extent in the file, in bytes.
        offset: u64,
        /// The difference between the header and the reference.
        what: String,
    },
    /// An extent is damaged, and its bytes cannot be restored from copies or parity.
    #[error(
        "{file}: damaged at offset {offset}: extent {extent} of device {device} is damaged and cannot be restored"
    )]
    DamagedExtent {
        /// The name of the dataset and file (`dataset/file`).
        file: String,
        /// The offset of the extent in the file, in bytes. For an extent of parity, the offset is the end of the file.
        offset: u64,
        /// The number of the device.
        device: u16,
        /// The number of the extent on the device.
        extent: u32,
    },
    /// A device of the store is missing.
    #[error("device {number} of the store is missing: put it back where it was, or name its folder")]
    NoDevice {
        /// The number of the device.
        number: u16,
    },
    /// The redundancy needs more devices than the store has.
    #[error(
        "{}: {redundancy} need {} devices, and the store has {found}{}",
        store.display(), redundancy.devices(),
        if *missing > 0 { format!(" that are there and {missing} missing: put them back where they were") }
        else { String::new() }
    )]
    TooFewDevices {
        /// The folder of the store.
        store: PathBuf,
        /// The requested redundancy.
        redundancy: crate::Redundancy,
        /// The number of devices that are present and take data.
        found: usize,
        /// The number of missing devices.
        missing: usize,
    },
    /// A sealed dataset cannot grow.
    #[error("dataset {name:?} in {} is sealed: no bytes can be appended", store.display())]
    Sealed {
        /// The name of the dataset.
        name: String,
        /// The folder of the store.
        store: PathBuf,
    },
    /// Another job changed a dataset after this job had begun its own change of the dataset.
    #[error("another job changed dataset {name:?} in {} during this job: try again", store.display())]
    Changed {
        /// The name of the dataset.
        name: String,
        /// The folder of the store.
        store: PathBuf,
    },
    /// The folder contains no store.
    #[error("there is no store in {}: `inshore store init` makes one, and so does the first import or put", path.display())]
    NoStore {
        /// The path of the folder.
        path: PathBuf,
    },
    /// The superblock of a device is lost, although the folder contains other data of a store.
    #[error(
        "{}: this folder is a device of a store whose superblock (extent 1, in segment-00000000) is lost: {found}. No store was \
         created. If the store has other devices, use it with --store and the folder of one of them, and return this \
         device with `inshore store add-device` and `inshore store scrub`; otherwise restore the folder from a backup",
        path.display()
    )]
    LostSuperblock {
        /// The folder of the device.
        path: PathBuf,
        /// A description of the bytes in place of the superblock, or of the evidence that the folder contained a store.
        found: String,
    },
    /// The folder already contains a store.
    #[error("{} already holds a store", path.display())]
    StoreExists {
        /// The path of the folder.
        path: PathBuf,
    },
    /// A device cannot be added, removed or used.
    #[error("{}: {what}", path.display())]
    BadDevice {
        /// The folder of the device.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// Two groups of devices of a store have different commits: each group was written to while the other group was
    /// missing.
    #[error(
        "the devices of the store have diverged: {one} and {other} were each written to while the other was missing. \
         No data was changed by this command. Move one of the two away, and the store opens with the other; `inshore store rejoin DIR` \
         discards the commits that only the drive in DIR has"
    )]
    Diverged {
        /// A description of the devices of the first group and of their last commit.
        one: String,
        /// A description of the devices of the second group and of their last commit.
        other: String,
    },
    /// A folder is a copy of a device of a store, and the original device is still in its recorded folder.
    #[error(
        "{} is a copy of device {number} of the store, which is at {}: two copies of a device in one store would overwrite \
         each other. Use the store there, or remove one of the two",
        copy.display(), path.display()
    )]
    IsACopy {
        /// The folder with the copy, which the caller named.
        copy: PathBuf,
        /// The number of the device.
        number: u16,
        /// The recorded folder of the device, which contains the original.
        path: PathBuf,
    },
    /// All devices are full.
    #[error("{}: no space left on its devices", store.display())]
    NoSpace {
        /// The folder of the store.
        store: PathBuf,
    },
    /// An output file cannot be written.
    #[error("{file}: {what}")]
    BadOutput {
        /// The path, or "standard output".
        file: String,
        /// The reason.
        what: String,
    },
    /// The job was cancelled.
    #[error("{}", runtime::Error::Cancelled)]
    Cancelled,
    /// The job was cancelled after it had finished some of its work.
    #[error("the job was stopped before it was done; {left}")]
    Stopped {
        /// The state in which the job left the store.
        left: String,
    },
}

impl Error {
    /// Returns true if the error means that no space is left.
    pub fn is_no_space(&self) -> bool {
        match self {
            Error::NoSpace { .. } => true,
            Error::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// Returns true if the error means that the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Cancelled | Error::Stopped { .. })
    }

    /// Converts [`Error::Cancelled`] to [`Error::Stopped`], for a job whose finished work stays in the store. Other
    /// errors are returned unchanged.
    pub(crate) fn leaves(self, left: impl FnOnce() -> String) -> Self {
        if matches!(self, Error::Cancelled) { Error::Stopped { left: left() } } else { self }
    }

    /// Copies the error, for another thread that waits for the same result.
    pub(crate) fn again(&self) -> Self {
        match self {
            Error::Io { what, path, source } => {
                let source = match source.raw_os_error() {
                    Some(number) => io::Error::from_raw_os_error(number),
                    None => io::Error::new(source.kind(), source.to_string()),
                };
                Error::Io { what: what.clone(), path: path.clone(), source }
            }
            Error::NoSpace { store } => Error::NoSpace { store: store.clone() },
            Error::NoDevice { number } => Error::NoDevice { number: *number },
            Error::BadDevice { path, what } => Error::BadDevice { path: path.clone(), what: what.clone() },
            Error::Diverged { one, other } => Error::Diverged { one: one.clone(), other: other.clone() },
            other => Error::io("commit", PathBuf::new(), io::Error::other(other.to_string())),
        }
    }

    /// Creates an [`Error::Io`] for `what` on `path`.
    pub fn io(what: impl Into<String>, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { what: what.into(), path: path.into(), source }
    }
}

/// Errors of the runtime become the store's errors of the same name.
impl From<runtime::Error> for Error {
    fn from(error: runtime::Error) -> Error {
        match error {
            runtime::Error::Io { what, path, source } => Error::Io { what, path, source },
            runtime::Error::OverBudget { what, wanted, free, total, enough } => {
                Error::OverBudget { what, wanted, free, total, enough }
            }
            runtime::Error::BudgetTooSmall { what, given, smallest } => {
                Error::BudgetTooSmall { what, given, smallest }
            }
            runtime::Error::BadSize { text } => Error::BadSize { text },
            runtime::Error::Cancelled => Error::Cancelled,
        }
    }
}
