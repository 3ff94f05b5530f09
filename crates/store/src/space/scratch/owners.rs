//! An owner is a job or a reader. Its folders record the extents that it has taken and the oldest commit that it reads.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use rustix::fs::{FlockOperation, flock};

use super::lock::{open_lock, read_if_there};
use crate::{
    Error, ExtentAddress, Result,
    log::{catalog::Run, encoding::Cursor},
};

const RUN_BYTES: usize = 10;

/// `Owner` describes a running job or reader of a store.
#[derive(Clone, Debug)]
pub struct Owner {
    /// A folder of the owner.
    pub path: PathBuf,
    /// The id of the owner's process.
    pub process: u32,
    /// True if the owner is a reader (a process that has datasets open), false if it is a job.
    pub is_reader: bool,
    /// The extents that the owner has taken.
    pub lease: Vec<Run>,
    /// The oldest commit that the owner reads, if it reads any.
    pub pin: Option<u64>,
    /// The time at which the owner started.
    pub since: Option<std::time::SystemTime>,
    /// The name of the resumable work ([`crate::Keep`]) whose finished pieces this owner stores, if any.
    pub keeps: Option<String>,
}

/// `DeadOwners` contains the folders and the extents of dead owners.
#[derive(Debug, Default)]
pub(crate) struct DeadOwners {
    /// The extents that dead owners had taken.
    pub lease: Vec<Run>,
    /// The extents that running owners have taken.
    pub leases_of_living: Vec<Run>,
    pub(super) folders: Vec<PathBuf>,
}

impl DeadOwners {
    /// Removes the folders of dead owners. The caller has freed their extents before. If the caller dies before the
    /// folders are removed, the next process repeats both steps.
    pub fn remove(self) -> Result<()> {
        for path in self.folders {
            match fs::remove_dir_all(&path) {
                // An owner that ends removes its folder without the lock.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(|error| Error::io("remove", &path, error))?,
            }
        }
        Ok(())
    }
}

/// Creates a folder of an owner with the same content as its folder `known`, and takes the lock of the new folder.
pub(super) fn new_member(path: &Path, known: Option<&Path>) -> Result<File> {
    fs::create_dir(path).map_err(|error| Error::io("create folder", path, error))?;
    let lock = open_lock(&path.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| Error::io("lock", path.join("lock"), error.into()))?;
    for (name, known) in ["lease", "pin", "keeps"].iter().filter_map(|name| Some((name, known?))) {
        if let Some(bytes) = read_if_there(&known.join(name))? {
            let copy = path.join(name);
            fs::write(&copy, bytes).map_err(|error| Error::io("write", copy, error))?;
        }
    }
    Ok(lock)
}

/// `Scratch` manages the folders of one owner. The folders are removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    pub(super) name: String,
    pub(super) home: PathBuf,
    /// The folders of the owner, each with its held lock.
    pub(super) members: Mutex<Vec<(PathBuf, File)>>,
}

impl Scratch {
    /// Returns the folder in which the owner can store plain files.
    pub fn path(&self) -> &Path {
        &self.home
    }

    /// Records that the owner has taken these extents. The caller holds the lock of the store.
    pub(crate) fn add_lease(&self, run: Run) -> Result<()> {
        let mut bytes = Vec::with_capacity(RUN_BYTES);
        bytes.extend(run.start.device.to_le_bytes());
        bytes.extend(run.start.extent.to_le_bytes());
        bytes.extend(run.count.to_le_bytes());
        self.in_each("lease", |path| File::options().append(true).create(true).open(path)?.write_all(&bytes))
    }

    /// Records the oldest commit that the owner reads. The argument is `None` if the owner reads no commit.
    pub(crate) fn pin(&self, commit: Option<u64>) -> Result<()> {
        self.in_each("pin", |path| match commit {
            // The pin is overwritten in place by one system call, so that other processes read the old commit or the
            // new commit.
            Some(commit) => {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                file.and_then(|mut file| file.write_all(&commit.to_le_bytes()))
            }
            None => fs::remove_file(path),
        })
    }

    /// Records the name of the owner's resumable work. The caller holds the lock of the store.
    pub(crate) fn keep(&self, name: &str) -> Result<()> {
        self.in_each("keeps", |path| fs::write(path, name))
    }

    /// Changes a file in each folder of the owner. A folder on a drive that is full, fails or is missing is ignored as
    /// long as the change succeeds in another folder.
    fn in_each(&self, name: &str, act: impl Fn(&Path) -> std::io::Result<()>) -> Result<()> {
        let members = self.members.lock().expect("no panic under this lock");
        let (mut done, mut failed) = (false, None);
        for (folder, _) in members.iter() {
            let path = folder.join(name);
            match act(&path) {
                Ok(()) => done = true,
                Err(error) => failed = Some(Error::io("write", path, error)),
            }
        }
        if done { Ok(()) } else { failed.map_or(Ok(()), Err) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (folder, _) in self.members.get_mut().expect("no panic under this lock") {
            // If a folder cannot be removed, the next job removes it.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Reads the extents that an owner has taken. Some extents may not be recorded in a folder, since its drive was missing
/// or full, or since the owner has not written to it yet. The result is therefore the union over all folders.
pub(super) fn read_lease(folders: &[PathBuf]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for folder in folders {
        let bytes = read_if_there(&folder.join("lease"))?.unwrap_or_default();
        runs.extend(bytes.chunks_exact(RUN_BYTES).map(|bytes| {
            let mut bytes = Cursor(bytes);
            let (device, extent) = (bytes.u16().expect("10 bytes"), bytes.u32().expect("10 bytes"));
            Run { start: ExtentAddress { device, extent }, count: bytes.u32().expect("10 bytes") }
        }));
    }
    // Files in scratch folders are never synced, so a lease file may contain zeros after a power loss. Extents that
    // cannot contain data are ignored.
    runs.retain(|run| run.is_for_data());
    Ok(Run::merged(&runs))
}

/// Reads the name of the owner's resumable work, if it has any.
pub(super) fn kept_name(folders: &[PathBuf]) -> Result<Option<String>> {
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("keeps"))? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(None)
}

/// Reads the oldest commit that an owner has pinned.
pub(super) fn oldest_pin(folders: &[PathBuf]) -> Result<Option<u64>> {
    let mut oldest: Option<u64> = None;
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("pin"))? {
            // If the pin is incomplete, since the owner is writing it, all commits count as pinned.
            let pin = Cursor(&bytes).u64().unwrap_or(0);
            oldest = Some(oldest.map_or(pin, |oldest| oldest.min(pin)));
        }
    }
    Ok(oldest)
}

/// Returns true if no lock of the owner's folders is held. A folder without a lock file also counts as dead: the caller
/// holds the lock of the store, so the owner cannot be creating the folder at this moment.
pub(super) fn is_dead(folders: &[PathBuf]) -> Result<bool> {
    for folder in folders {
        match File::options().write(true).open(folder.join("lock")) {
            Ok(lock) if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("open", folder.join("lock"), error)),
        }
    }
    Ok(true)
}
