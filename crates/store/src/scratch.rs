//! Who is at work on a store: the folders of living jobs, what extents they took, and what they still read.
//!
//! ```text
//!   STORE/scratch/lock              held for moments: by who commits, takes extents, or comes and goes; in it stands
//!                                   which record of the log is the last (24 bytes: its generation and number, and
//!                                   the sequence of the superblock)
//!   STORE/scratch/PID-RANDOM/       one for each job
//!   STORE/scratch/reader-PID-RANDOM/  one for each process that has datasets open
//!   STORE/scratch/PID-RANDOM/lock   held by its owner as long as it lives
//!   STORE/scratch/PID-RANDOM/lease  extents that it took (10 bytes each: device, first extent, count)
//!   STORE/scratch/PID-RANDOM/pin    the oldest commit that it reads (8 bytes); absent: none
//! ```
//!
//! A lock (`flock`) ends with the process that holds it, however it ends. So a folder whose lock can be taken belongs
//! to a dead owner and is removed at the start of the next job; the folders of the living are not touched. After a
//! power loss everybody is dead, so nothing here is ever synced.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Place, Result, catalog::Run, encoding::Cursor, log::LastRecord};

const RUN_BYTES: usize = 10;

/// The scratch folder of a store.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    root: PathBuf,
}

/// The lock of a store. Whoever writes the log or takes extents holds it alone; whoever reads the log may share it.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    root: &'a Path,
    _lock: Option<File>,
}

impl Registry {
    /// That of the store whose home is `home`. Makes the folder if it is not there and can be made.
    pub fn open(home: &Path) -> Result<Registry> {
        let root = home.join("scratch");
        match fs::create_dir_all(&root) {
            Err(error) if !is_read_only(&error) => Err(Error::io("create folder", root, error)),
            _ => Ok(Registry { root }),
        }
    }

    /// Waits for the lock, to change something.
    pub fn lock(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// Waits until nobody changes anything. On a file system that is mounted read-only nobody does.
    pub fn share(&self) -> Result<Guard<'_>> {
        match self.lock_as(FlockOperation::LockShared) {
            Err(Error::Io { source, .. }) if is_read_only(&source) => {
                Ok(Guard { root: &self.root, _lock: None })
            }
            guard => guard,
        }
    }

    /// The last record that somebody appended to the log since the machine was started; `None`: nobody knows. To be
    /// called under the lock.
    pub fn last_record(&self) -> Option<LastRecord> {
        let bytes = fs::read(self.root.join("lock")).ok()?;
        let mut bytes = Cursor(&bytes);
        Some(LastRecord { generation: bytes.u64()?, number: bytes.u64()?, sequence: bytes.u64()? })
    }

    /// Tells the others which record of the log is the last. If that fails they know an older one, which is true too.
    /// To be called under the lock, also one that is shared: then nobody appends, and all tell the same.
    pub fn tell_last_record(&self, last: LastRecord) {
        let path = self.root.join("lock");
        let mut bytes = last.generation.to_le_bytes().to_vec();
        bytes.extend(last.number.to_le_bytes());
        bytes.extend(last.sequence.to_le_bytes());
        let file = File::options().write(true).create(true).truncate(false).open(path);
        // In one call: a reader sees the old one or this one.
        let _ = file.and_then(|mut file| file.write_all(&bytes));
    }

    fn lock_as(&self, operation: FlockOperation) -> Result<Guard<'_>> {
        let path = self.root.join("lock");
        let lock = open_lock(&path)?;
        loop {
            match flock(&lock, operation) {
                Ok(()) => return Ok(Guard { root: &self.root, _lock: Some(lock) }),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("lock", path, error.into())),
            }
        }
    }
}

/// Whether nobody can change what the error is about: a file system that is mounted read-only, a folder of others.
pub(crate) fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

/// Who is at work on a store.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its folder.
    pub path: PathBuf,
    /// The number of its process.
    pub process: u32,
    /// Whether it has datasets open, or is a job.
    pub is_reader: bool,
    /// Extents that it took.
    pub lease: Vec<Run>,
    /// The oldest commit that it reads.
    pub pin: Option<u64>,
    /// When it came.
    pub since: Option<std::time::SystemTime>,
}

impl Guard<'_> {
    /// Everybody who is alive.
    pub fn owners(&self) -> Result<Vec<Owner>> {
        let mut owners = Vec::new();
        for path in self.folders()? {
            if is_dead(&path)? {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (is_reader, rest) = match name.strip_prefix("reader-") {
                Some(rest) => (true, rest),
                None => (false, &name[..]),
            };
            let process = rest.split('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let pin = read_if_there(&path.join("pin"))?.map(|bytes| Cursor(&bytes).u64().unwrap_or(0));
            let since = fs::metadata(path.join("lock")).and_then(|lock| lock.modified()).ok();
            let lease = read_lease(&path)?;
            owners.push(Owner { path, process, is_reader, lease, pin, since });
        }
        Ok(owners)
    }

    /// Ends the meeting place: the store has another one now.
    pub fn close(self) {
        let _ = fs::remove_dir_all(self.root);
    }

    /// Removes what dead owners left, and gives the extents that they had taken.
    pub fn remove_dead(&self) -> Result<Vec<Run>> {
        let mut left = Vec::new();
        for path in self.folders()? {
            if is_dead(&path)? {
                left.extend(read_lease(&path)?);
                match fs::remove_dir_all(&path) {
                    // An owner that ends removes its folder without asking.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    removed => removed.map_err(|error| Error::io("remove", &path, error))?,
                }
            }
        }
        Ok(left)
    }

    /// A folder for a new owner, whose name begins with `prefix`.
    pub fn join(&self, prefix: &str) -> Result<Scratch> {
        let path = self.root.join(format!("{prefix}{}-{:016x}", std::process::id(), random_u64()));
        fs::create_dir(&path).map_err(|error| Error::io("create folder", &path, error))?;
        let lock = open_lock(&path.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Error::io("lock", path.join("lock"), error.into()))?;
        Ok(Scratch { path, _lock: lock })
    }

    /// The extents that all owners have taken.
    pub fn leases(&self) -> Result<Vec<Run>> {
        let mut leases = Vec::new();
        for path in self.folders()? {
            leases.extend(read_lease(&path)?);
        }
        Ok(leases)
    }

    /// The oldest commit that somebody reads; `commit`, which is the last, where nobody reads an older one.
    pub fn pinned(&self, commit: u64) -> Result<u64> {
        Ok(self.oldest_pin()?.map_or(commit, |oldest| oldest.min(commit)))
    }

    /// The oldest commit that somebody says to read.
    fn oldest_pin(&self) -> Result<Option<u64>> {
        let mut oldest: Option<u64> = None;
        for path in self.folders()? {
            if let Some(bytes) = read_if_there(&path.join("pin"))?
                // A pin that is being written pins everything.
                && !is_dead(&path)?
            {
                let pin = Cursor(&bytes).u64().unwrap_or(0);
                oldest = Some(oldest.map_or(pin, |oldest| oldest.min(pin)));
            }
        }
        Ok(oldest)
    }

    fn folders(&self) -> Result<Vec<PathBuf>> {
        let read = |error| Error::io("list", self.root, error);
        let mut folders = Vec::new();
        for entry in fs::read_dir(self.root).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
        Ok(folders)
    }
}

/// The folder of one owner; removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down that these extents are taken. To be called under the store's lock.
    pub(crate) fn add_lease(&self, run: Run) -> Result<()> {
        let path = self.path.join("lease");
        let mut bytes = Vec::with_capacity(RUN_BYTES);
        bytes.extend(run.start.device.to_le_bytes());
        bytes.extend(run.start.extent.to_le_bytes());
        bytes.extend(run.count.to_le_bytes());
        let mut file = File::options().append(true).create(true).open(&path);
        let written = file.as_mut().map_err(|error| std::io::Error::from(error.kind()));
        written.and_then(|file| file.write_all(&bytes)).map_err(|error| Error::io("write", path, error))
    }

    /// Writes down the oldest commit that is read here; `None` for none.
    pub(crate) fn pin(&self, commit: Option<u64>) -> Result<()> {
        let path = self.path.join("pin");
        let done = match commit {
            // Overwritten in place and in one call: a reader sees the old commit or the new one.
            Some(commit) => {
                let file = File::options().write(true).create(true).truncate(false).open(&path);
                file.and_then(|mut file| file.write_all(&commit.to_le_bytes()))
            }
            None => fs::remove_file(&path),
        };
        done.map_err(|error| Error::io("write", path, error))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next job.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn open_lock(path: &Path) -> Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| Error::io("open", path, error))
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

fn read_lease(folder: &Path) -> Result<Vec<Run>> {
    let bytes = read_if_there(&folder.join("lease"))?.unwrap_or_default();
    let runs = bytes.chunks_exact(RUN_BYTES).map(|bytes| {
        let mut bytes = Cursor(bytes);
        let start = Place { device: bytes.u16().expect("10 bytes"), extent: bytes.u32().expect("10 bytes") };
        Run { start, count: bytes.u32().expect("10 bytes") }
    });
    // Nothing here is ever synced: after a power loss a lease may be zeros. What nobody can have taken, nobody has.
    Ok(runs.filter(|run| run.is_for_data()).collect())
}

/// Whether nobody holds the lock of a folder. A folder without one is of an owner that died between two system
/// calls, since the lock of `root` is held here.
fn is_dead(folder: &Path) -> Result<bool> {
    match File::options().write(true).open(folder.join("lock")) {
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::io("open", folder.join("lock"), error)),
    }
}

/// Eight random bytes of the system's.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("the system has random bytes for whoever asks for eight");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_of_the_dead_goes_and_that_of_the_living_stays() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let living = registry.lock().unwrap().join("").unwrap();
        fs::write(living.path().join("run"), "alive").unwrap();
        let dead = home.path().join("scratch/1-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("lock"), "").unwrap();
        fs::write(dead.join("run"), "dead").unwrap();
        fs::write(dead.join("lease"), [1, 0, 2, 0, 0, 0, 3, 0, 0, 0]).unwrap();
        let torn = home.path().join("scratch/1-torn");
        fs::create_dir(&torn).unwrap();

        let run = Run { start: Place { device: 1, extent: 2 }, count: 3 };
        let owners = registry.lock().unwrap().owners().unwrap();
        assert_eq!((owners.len(), owners[0].process), (1, std::process::id()));
        assert_eq!(registry.lock().unwrap().remove_dead().unwrap(), [run]);
        assert!(living.path().join("run").exists());
        assert!(!dead.exists() && !torn.exists());
        let second = registry.lock().unwrap().join("").unwrap();
        let path = second.path().to_path_buf();
        drop(second);
        assert!(!path.exists() && living.path().exists());
    }

    #[test]
    fn leases_and_pins_that_nobody_wrote_are_not_believed() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let living = registry.lock().unwrap().join("").unwrap();
        let mut lease = vec![0; 10];
        // The headers of the first segment and the superblock; an end that overflows; one that is whole; a torn one.
        lease.extend([0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
        lease.extend([0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        lease.extend([1, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        lease.extend([1, 0, 9]);
        fs::write(living.path().join("lease"), lease).unwrap();
        let guard = registry.lock().unwrap();
        assert_eq!(guard.leases().unwrap(), [Run { start: Place { device: 1, extent: 2 }, count: 3 }]);
        fs::write(living.path().join("pin"), [255; 8]).unwrap();
        assert_eq!(guard.pinned(7).unwrap(), 7);
        // One that is being written pins everything.
        fs::write(living.path().join("pin"), [255; 3]).unwrap();
        assert_eq!(guard.pinned(7).unwrap(), 0);
    }

    #[test]
    fn leases_and_the_oldest_pin_are_those_of_the_living() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let owners = [0, 1].map(|_| registry.lock().unwrap().join("").unwrap());
        assert_eq!(registry.lock().unwrap().oldest_pin().unwrap(), None);
        owners[0].pin(Some(7)).unwrap();
        owners[1].pin(Some(9)).unwrap();
        let run = |extent| Run { start: Place { device: 0, extent }, count: 2 };
        owners[0].add_lease(run(5)).unwrap();
        owners[0].add_lease(run(9)).unwrap();
        let guard = registry.lock().unwrap();
        assert_eq!((guard.oldest_pin().unwrap(), guard.leases().unwrap()), (Some(7), vec![run(5), run(9)]));
        owners[0].pin(None).unwrap();
        assert_eq!(guard.oldest_pin().unwrap(), Some(9));
        drop(owners);
        assert_eq!((guard.oldest_pin().unwrap(), guard.leases().unwrap()), (None, vec![]));
    }
}
