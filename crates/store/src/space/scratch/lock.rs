//! The lock file of a device also contains announcements about the state of the log, which other processes read.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    log::{LastRecord, encoding::Cursor},
};

const LAST_RECORD_BYTES: usize = 24;

/// Returns the path of the lock file in the folder of a device.
pub(super) fn lock_of(folder: &Path) -> PathBuf {
    folder.join("scratch/lock")
}

/// `LockContent` is the content of the lock file of a device. It announces the state of the log to other processes.
///
/// ```text
///    0   8   generation of the log   \
///    8   8   number of its last record  } zeros: unknown
///   16   8   sequence of the superblock /
///   24   8   commit up to which the space of freed extents was discarded; 0: unknown
///   32       folders of the devices, byte by byte, each with a zero byte at its end
/// ```
///
/// In a lock file of an older version, the folders begin at byte 24, or the file ends there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockContent {
    pub(super) last: Option<LastRecord>,
    pub(super) discarded: u64,
    pub(super) folders: Vec<PathBuf>,
}

impl LockContent {
    /// Reads the content of a lock file. The result is `None` if the file does not exist.
    pub(super) fn read(lock: &Path) -> Result<Option<LockContent>> {
        Ok(read_if_there(lock)?.map(|bytes| LockContent::decode(&bytes)))
    }

    /// Reads the content of a lock file. If the file cannot be read, the result is the empty content.
    pub(super) fn read_or_nothing(lock: &Path) -> LockContent {
        LockContent::read(lock).ok().flatten().unwrap_or_default()
    }

    pub(super) fn decode(lock: &[u8]) -> LockContent {
        let (record, rest) = lock.split_at_checked(LAST_RECORD_BYTES).unwrap_or_default();
        // The two highest bytes of a commit number are zeros, and a list of folders has no two successive zeros. The
        // two versions of the format can therefore be distinguished.
        let (discarded, folders) = match rest.split_first_chunk::<8>() {
            Some((number @ [.., 0, 0], folders)) => (u64::from_le_bytes(*number), folders),
            _ => (0, rest),
        };
        let folders = folders.split(|&byte| byte == 0).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        LockContent {
            last: decode_last(record),
            discarded,
            // A relative path is the remainder of a longer list, or is empty, and is ignored.
            folders: folders.filter(|folder| folder.is_absolute()).collect(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let record = self.last.map_or([0; 3], |last| [last.generation, last.number, last.sequence]);
        let mut bytes = Vec::new();
        record.into_iter().chain([self.discarded]).for_each(|number| bytes.extend(number.to_le_bytes()));
        for folder in &self.folders {
            bytes.extend(folder.as_os_str().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Writes the content in one system call, so that a reader sees the old content or the new content.
    pub(super) fn write(&self, lock: &Path) -> Result<()> {
        let bytes = self.encode();
        let mut file = open_lock(lock)?;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(bytes.len() as u64))
            .map_err(|error| Error::io("write", lock, error))
    }

    /// Overwrites the last record with zeros. This happens in place and needs no space on the drive.
    pub(super) fn clear_last(lock: &Path) -> Result<()> {
        let take_back = |mut file: File| match file.metadata()?.len() {
            0 => Ok(()),
            _ => file.write_all(&[0; LAST_RECORD_BYTES]),
        };
        match File::options().write(true).open(lock).and_then(take_back) {
            // If the lock file does not exist, it announces no record.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("write", lock, error)),
            _ => Ok(()),
        }
    }
}

/// Decodes the last record at the beginning of a lock file.
fn decode_last(bytes: &[u8]) -> Option<LastRecord> {
    let mut bytes = Cursor(bytes);
    let last = LastRecord { generation: bytes.u64()?, number: bytes.u64()?, sequence: bytes.u64()? };
    // A record that consists of zeros was cleared.
    (last.generation > 0).then_some(last)
}

/// Returns true if the lock file in this folder proves that the folder belonged to a device of a store.
pub(crate) fn announces_a_store(folder: &Path) -> bool {
    fs::metadata(lock_of(folder)).is_ok_and(|lock| lock.len() > 0)
}

/// Returns the device folders that the lock file in `folder` announces.
pub(crate) fn announced_folders(folder: &Path) -> Vec<PathBuf> {
    LockContent::read_or_nothing(&lock_of(folder)).folders
}

pub(super) fn open_lock(path: &Path) -> Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| Error::io("open", path, error))
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}
