//! An owner is a job or a reader; its folders hold the extents that it took and the commit that it reads.

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

/// `Owner` is a job or a reader at work on a store.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The folder of the owner.
    pub path: PathBuf,
    /// The id of the process.
    pub process: u32,
    /// True if the owner has datasets open, false if it is a job.
    pub is_reader: bool,
    /// The extents that the owner took.
    pub lease: Vec<Run>,
    /// The oldest commit that the owner reads.
    pub pin: Option<u64>,
    /// The time at which the owner came.
    pub since: Option<std::time::SystemTime>,
    /// The name of the work that the owner keeps ([`crate::Keep`]).
    pub keeps: Option<String>,
}

/// `DeadOwners` holds the extents that dead owners left.
#[derive(Debug, Default)]
pub(crate) struct DeadOwners {
    /// The extents that dead owners had taken.
    pub lease: Vec<Run>,
    /// The extents that living owners have taken.
    pub leases_of_living: Vec<Run>,
    pub(super) folders: Vec<PathBuf>,
}

impl DeadOwners {
    /// Removes the folders of dead owners. The caller has freed their extents before; if it dies in between, the next
    /// process does the same.
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

/// Makes a folder of an owner with the same content as `known`, and takes the lock of the folder.
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

/// `Scratch` is the set of folders of one owner, which are removed on drop.
#[derive(Debug)]
pub struct Scratch {
    pub(super) name: String,
    pub(super) home: PathBuf,
    /// The folders with their locks.
    pub(super) members: Mutex<Vec<(PathBuf, File)>>,
}

impl Scratch {
    /// Returns the folder for plain files.
    pub fn path(&self) -> &Path {
        &self.home
    }

    /// Records that these extents are taken. The caller holds the store's lock.
    pub(crate) fn add_lease(&self, run: Run) -> Result<()> {
        let mut bytes = Vec::with_capacity(RUN_BYTES);
        bytes.extend(run.start.device.to_le_bytes());
        bytes.extend(run.start.extent.to_le_bytes());
        bytes.extend(run.count.to_le_bytes());
        self.in_each("lease", |path| File::options().append(true).create(true).open(path)?.write_all(&bytes))
    }

    /// Records the oldest commit that is being read; `None` if there is none.
    pub(crate) fn pin(&self, commit: Option<u64>) -> Result<()> {
        self.in_each("pin", |path| match commit {
            // The pin is overwritten in place and in one call: a reader sees the old commit or the new one.
            Some(commit) => {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                file.and_then(|mut file| file.write_all(&commit.to_le_bytes()))
            }
            None => fs::remove_file(path),
        })
    }

    /// Records the name of kept work. The caller holds the store's lock.
    pub(crate) fn keep(&self, name: &str) -> Result<()> {
        self.in_each("keeps", |path| fs::write(path, name))
    }

    /// Changes a file in each folder. A folder on a drive that is full, fails or is gone is ignored as long as there
    /// are others.
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
            // The next job removes a folder that cannot be removed now.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Reads the extents that an owner has taken. A folder may miss some of them if its drive was missing or full, or if
/// the owner is about to write there; the result is therefore the union over all folders.
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
    // Nothing here is ever synced, so a lease may be zeros after a power loss. Places that cannot hold data are
    // ignored.
    runs.retain(|run| run.is_for_data());
    Ok(Run::merged(&runs))
}

/// Reads the name of the work that an owner keeps.
pub(super) fn kept_name(folders: &[PathBuf]) -> Result<Option<String>> {
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("keeps"))? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(None)
}

/// Reads the oldest commit that an owner pins.
pub(super) fn oldest_pin(folders: &[PathBuf]) -> Result<Option<u64>> {
    let mut oldest: Option<u64> = None;
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("pin"))? {
            // A pin that is being written pins everything.
            let pin = Cursor(&bytes).u64().unwrap_or(0);
            oldest = Some(oldest.map_or(pin, |oldest| oldest.min(pin)));
        }
    }
    Ok(oldest)
}

/// Returns true if no lock of the owner's folders is held. A folder without a lock belongs to an owner that died
/// between two system calls, since the caller holds the lock of the store.
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
