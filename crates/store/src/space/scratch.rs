//! Scratch folders register the running jobs and readers of a store: the extents that they have taken, and the commits
//! that they still read. A job or reader is called an owner.
//!
//! ```text
//!   DEVICE/scratch/lock              the lock of the store: a process holds it while it commits, takes extents, or
//!                                    creates or removes an owner. Content of the file: the last record of the log
//!                                    (24 bytes: its generation and number, and the sequence of the superblock), or
//!                                    zeros while the log changes; the commit up to which freed extents were discarded
//!                                    (8 bytes); the folders of the devices of the store (each with a zero byte at its
//!                                    end)
//!   DEVICE/scratch/PID-RANDOM/       the folder of a job
//!   DEVICE/scratch/reader-PID-RANDOM/  the folder of a reader (a process that has datasets open)
//!   DEVICE/scratch/PID-RANDOM/lock   a lock that the owner holds as long as it runs
//!   DEVICE/scratch/PID-RANDOM/lease  the extents that the owner has taken (10 bytes each: device, first extent, count)
//!   DEVICE/scratch/PID-RANDOM/pin    the oldest commit that the owner reads (8 bytes); absent if it reads none
//!   DEVICE/scratch/PID-RANDOM/keeps  the name of the owner's resumable work; absent if it has none
//! ```
//!
//! The scratch folder of every device has the same content. A process that changes the store holds the locks of all
//! devices that it sees. Two processes that see a common device therefore always use a common lock, even if other
//! devices were moved or unmounted. With a lock on the first device only, a process that starts while that device is
//! missing would not notice other processes. If a folder is no longer at its path, a change fails, and a read ignores
//! the folder.
//!
//! A lock file announces only durable records. If the log ends before the announced record, the log is damaged. A
//! folder with a lock file that is not empty belonged to a device of a store, even if its superblock is lost. The lock
//! file then contains the folders of the other devices.
//!
//! The operating system releases a lock (`flock`) when the process that holds it ends or is killed. If the lock of an
//! owner's folder can be taken, the owner is therefore dead, and the next job removes the folder at its start. Folders
//! of running owners are not changed. After a power loss all owners are dead, so files in scratch folders are never
//! synced.

mod lock;
mod owners;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, RwLock},
};

use rustix::fs::{FlockOperation, flock};

pub(crate) use self::lock::{announced_folders, announces_a_store};
pub(crate) use self::owners::DeadOwners;
pub use self::owners::{Owner, Scratch};
use self::{
    lock::{LockContent, lock_of, open_lock},
    owners::{is_dead, kept_name, new_member, oldest_pin, read_lease},
};
use crate::{
    Error, Result,
    log::{LastRecord, catalog::Run},
    random::random_u64,
};

/// `Registry` manages the scratch folders of a store.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The scratch folder of the first device, in which jobs store plain files.
    home: PathBuf,
    /// The scratch folders of the devices, in the order in which all processes lock them.
    roots: RwLock<Vec<Root>>,
}

/// `Root` describes the scratch folder of a device.
#[derive(Clone, Debug)]
struct Root {
    /// The identity of the device's folder when it was opened: the numbers of its file system and of its inode.
    identity: (u64, u64),
    folder: PathBuf,
    path: PathBuf,
}

/// `Guard` represents the held lock of a store. A process that writes the log or takes extents holds the lock
/// exclusively. Readers of the log may share the lock.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    registry: &'a Registry,
    roots: Vec<PathBuf>,
    _locks: Vec<File>,
}

/// Returns the identity of a folder or file: the numbers of its file system and of its inode. The result is `None` if
/// the path does not exist.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Root {
    fn lock(&self, operation: FlockOperation) -> Result<Option<File>> {
        let path = self.path.join("lock");
        loop {
            if identity(&self.folder) != Some(self.identity) {
                let what = "the folder was moved or unmounted while the store was open: open the store again"
                    .to_string();
                return Err(Error::BadDevice { path: self.folder.clone(), what });
            }
            let lock = match open_lock(&path) {
                // The scratch folder does not exist, since the device was removed from the store.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
                lock => lock?,
            };
            match flock(&lock, operation) {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Error::io("lock", path, error.into())),
            }
            // While this process waited for the lock, the folder may have been removed or moved.
            let held = lock.metadata().map_err(|error| Error::io("lock", &path, error))?;
            if identity(&path) == Some((held.dev(), held.ino())) {
                return Ok(Some(lock));
            }
        }
    }
}

impl Registry {
    /// Opens the registry of the store whose first device is in `home`. The scratch folder is created if possible.
    pub fn open(home: &Path) -> Result<Registry> {
        let path = home.join("scratch");
        match fs::create_dir_all(&path) {
            Err(error) if !is_read_only(&error) => return Err(Error::io("create folder", path, error)),
            _ => {}
        }
        let identity = identity(home).ok_or_else(|| Error::io("open", home, ErrorKind::NotFound.into()))?;
        let root = Root { identity, folder: home.to_path_buf(), path: path.clone() };
        Ok(Registry { home: path, roots: RwLock::new(vec![root]) })
    }

    /// Sets the device folders in which processes coordinate, in addition to the home of the store. If no scratch
    /// folder can be created in a device folder, processes do not coordinate there.
    pub fn meet_on(&self, folders: impl IntoIterator<Item = PathBuf>) {
        let folders: Vec<PathBuf> = folders.into_iter().collect();
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.path == self.home || folders.contains(&root.folder));
        for folder in folders {
            let Some(identity) = identity(&folder) else { continue };
            let path = folder.join("scratch");
            // A device that was removed from the store has no segment files, and its folder must stay empty.
            if folder.join("segment-00000000").exists() {
                let _ = fs::create_dir_all(&path);
            }
            if !roots.iter().any(|root| root.identity == identity) {
                roots.push(Root { identity, folder, path });
            }
        }
        roots.sort_unstable_by_key(|root| root.identity);
    }

    /// Removes the scratch folder of a removed device, so that processes no longer coordinate in it.
    ///
    /// # Errors
    /// Returns an I/O error if files in the scratch folder cannot be removed.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.folder != folder);
        let path = folder.join("scratch");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
            _ => Ok(()),
        }
    }

    /// Waits for the exclusive lock of the store.
    ///
    /// # Errors
    /// - Returns an I/O error if a folder cannot be created.
    /// - Returns [`Error::BadDevice`] if a folder of a device was moved or unmounted.
    pub fn lock(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// Waits for the shared lock of the store. On a file system that is mounted read-only, no lock is needed.
    pub fn share(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockShared)
    }

    /// Creates an owner without a folder, for a process that can only read. [`Guard::join_also`] can create its folders
    /// later.
    pub fn without_folder(&self, prefix: &str) -> Scratch {
        let name = format!("{prefix}{}-{:016x}", std::process::id(), random_u64());
        Scratch { home: self.home.join(&name), name, members: Mutex::default() }
    }

    /// Returns the last record of the log that a process announced. The result is `None` if the last record is unknown.
    /// The caller holds the lock.
    pub fn last_record(&self) -> Option<LastRecord> {
        let content = self.announcements();
        let first = (*content.first()?)?;
        // The announcements differ if a device was missing when the last record was announced.
        content.iter().all(|other| *other == Some(first)).then_some(first)
    }

    /// Returns true if the lock file of at least one device announces this record.
    pub fn has_announced(&self, record: LastRecord) -> bool {
        self.announcements().contains(&Some(record))
    }

    /// Returns the latest record that is announced in the home of the store or in `folders`. An announced record is
    /// durable.
    pub fn latest_record(&self, folders: impl IntoIterator<Item = PathBuf>) -> Option<LastRecord> {
        let locks = folders.into_iter().map(|folder| lock_of(&folder)).chain([self.home.join("lock")]);
        locks.filter_map(|lock| LockContent::read(&lock).ok()??.last).max()
    }

    /// Returns the record that the lock file of each device announces. A folder without a lock file has no entry, since
    /// processes cannot coordinate in it. If a lock file cannot be read, its entry is `None`, since it may announce a
    /// later record than the others.
    fn announcements(&self) -> Vec<Option<LastRecord>> {
        let roots = self.roots.read().expect("no panic under this lock");
        let content = roots.iter().filter_map(|root| LockContent::read(&root.path.join("lock")).transpose());
        content.map(|content| content.ok()?.last).collect()
    }

    /// Announces the last record of the log and the folders of the devices to other processes. If this fails, other
    /// processes read the log themselves. The caller holds the lock. A shared lock is sufficient, since no process
    /// appends under it, and all processes announce the same record.
    pub fn announce_last_record(&self, last: LastRecord) {
        let roots = self.roots.read().expect("no panic under this lock");
        let folders: Vec<PathBuf> = roots.iter().map(|root| root.folder.clone()).collect();
        for root in roots.iter() {
            let path = root.path.join("lock");
            let content = LockContent {
                last: Some(last),
                folders: folders.clone(),
                ..LockContent::read_or_nothing(&path)
            };
            let _ = content.write(&path);
        }
    }

    /// Returns the number of the last commit up to which a process announced freed extents as discarded; 0 if it is
    /// unknown. The caller holds the lock.
    pub fn discarded(&self) -> u64 {
        let roots = self.roots.read().expect("no panic under this lock");
        let content = roots.iter().map(|root| LockContent::read_or_nothing(&root.path.join("lock")));
        content.map(|content| content.discarded).min().unwrap_or(0)
    }

    /// Announces the commit up to which freed extents were discarded. If the announcement fails, other processes
    /// discard these extents again. The caller holds the exclusive lock.
    pub fn announce_discarded(&self, commit: u64) {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            let path = root.path.join("lock");
            let content = LockContent { discarded: commit, ..LockContent::read_or_nothing(&path) };
            let _ = content.write(&path);
        }
    }

    /// Clears the announced record before the log is changed. The caller holds the lock.
    ///
    /// # Errors
    /// Returns an I/O error if an I/O operation fails. After an error, the caller must not change the log.
    pub fn clear_last_record(&self) -> Result<()> {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            LockContent::clear_last(&root.path.join("lock"))?;
        }
        Ok(())
    }

    /// Locks all devices. A drive that fails, is full or cannot be written is skipped as long as other drives can be
    /// locked, since all processes also lock the other drives.
    fn lock_as(&self, operation: FlockOperation) -> Result<Guard<'_>> {
        let only_reads = operation == FlockOperation::LockShared;
        let all = self.roots.read().expect("no panic under this lock").clone();
        let (mut roots, mut locks, mut read_only, mut failed) = (Vec::new(), Vec::new(), Vec::new(), None);
        for root in all {
            match root.lock(operation) {
                Ok(Some(lock)) => {
                    locks.push(lock);
                    roots.push(root.path);
                }
                Ok(None) => failed = Some(Error::io("open", root.path, ErrorKind::NotFound.into())),
                Err(Error::Io { source, .. }) if only_reads && is_read_only(&source) => {
                    read_only.push(root.path)
                }
                Err(error @ Error::BadDevice { .. }) if !only_reads => return Err(error),
                // If several drives fail, the error of a read-only file system is returned, since the caller can then
                // still read the store.
                Err(error) if failed.as_ref().is_some_and(is_read_only_error) => drop(error),
                Err(error) => failed = Some(error),
            }
        }
        if roots.is_empty() {
            roots = read_only;
        }
        match failed {
            Some(error) if roots.is_empty() => Err(error),
            _ => Ok(Guard { registry: self, roots, _locks: locks }),
        }
    }
}

/// Returns true if the error means that a file system is full.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull)
}

fn is_read_only_error(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_read_only(source))
}

/// Returns true if the error means that this process cannot write, since the file system is mounted read-only or the
/// folder belongs to another user.
pub(crate) fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

impl Guard<'_> {
    /// Lists all running owners (jobs and readers).
    pub fn owners(&self) -> Result<Vec<Owner>> {
        let mut owners = Vec::new();
        for (name, folders) in self.folders()? {
            if is_dead(&folders)? {
                continue;
            }
            let (is_reader, rest) = match name.strip_prefix("reader-") {
                Some(rest) => (true, rest),
                None => (false, &name[..]),
            };
            let process = rest.split('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let path = folders[0].clone();
            let since = fs::metadata(path.join("lock")).and_then(|lock| lock.modified()).ok();
            let (lease, pin) = (read_lease(&folders)?, oldest_pin(&folders)?);
            let keeps = kept_name(&folders)?;
            owners.push(Owner { path, process, is_reader, lease, pin, since, keeps });
        }
        Ok(owners)
    }

    /// Finds the folders and the extents of dead owners, whose processes have ended without removing them.
    pub fn dead(&self) -> Result<DeadOwners> {
        let mut dead = DeadOwners::default();
        for folders in self.folders()?.into_values() {
            match is_dead(&folders)? {
                true => {
                    dead.lease.extend(read_lease(&folders)?);
                    dead.folders.extend(folders);
                }
                false => dead.leases_of_living.extend(read_lease(&folders)?),
            }
        }
        Ok(dead)
    }

    /// Creates the folders of a new owner, whose name begins with `prefix`.
    pub fn join(&self, prefix: &str) -> Result<Scratch> {
        let mut scratch = self.registry.without_folder(prefix);
        self.join_also(&scratch)?;
        let members = scratch.members.get_mut().expect("no panic under this lock");
        if !members.iter().any(|(path, _)| *path == scratch.home) {
            scratch.home = members[0].0.clone();
        }
        Ok(scratch)
    }

    /// Creates the missing folders of an owner, for example on devices that were added later. A drive that is full,
    /// fails or is being removed is skipped as long as the owner has a folder on another drive.
    ///
    /// # Errors
    /// Returns an I/O error if the owner has no folder on any drive.
    pub fn join_also(&self, scratch: &Scratch) -> Result<()> {
        let mut members = scratch.members.lock().expect("no panic under this lock");
        let mut failed = None;
        for root in &self.roots {
            let path = root.join(&scratch.name);
            if members.iter().any(|(known, _)| *known == path) {
                continue;
            }
            match new_member(&path, members.first().map(|(known, _)| known.as_path())) {
                Ok(lock) => members.push((path, lock)),
                Err(error) => {
                    let _ = fs::remove_dir_all(&path);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if members.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the extents that owners have taken, including dead owners.
    pub fn leases(&self) -> Result<Vec<Run>> {
        let mut leases = Vec::new();
        for folders in self.folders()?.into_values() {
            leases.extend(read_lease(&folders)?);
        }
        Ok(leases)
    }

    /// Returns the oldest commit that a running owner reads. `commit` is the last commit, which is the result if no
    /// earlier commit is being read.
    pub fn pinned(&self, commit: u64) -> Result<u64> {
        Ok(self.oldest_pin()?.map_or(commit, |oldest| oldest.min(commit)))
    }

    /// Returns the oldest commit that a running owner has pinned.
    fn oldest_pin(&self) -> Result<Option<u64>> {
        let mut oldest: Option<u64> = None;
        for folders in self.folders()?.into_values() {
            if let Some(pin) = oldest_pin(&folders)?
                && !is_dead(&folders)?
            {
                oldest = Some(oldest.map_or(pin, |oldest| oldest.min(pin)));
            }
        }
        Ok(oldest)
    }

    /// Returns the folders of each owner on all devices, by the name of the owner.
    fn folders(&self) -> Result<BTreeMap<String, Vec<PathBuf>>> {
        let mut folders: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for root in &self.roots {
            let list = |error| Error::io("list", root, error);
            let entries = match fs::read_dir(root) {
                // The device was removed from the store in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                entries => entries.map_err(list)?,
            };
            for entry in entries {
                let entry = entry.map_err(list)?;
                let kind = match entry.file_type() {
                    // An owner removes its folder at its end, without the lock of the store.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    kind => kind.map_err(|error| Error::io("inspect", entry.path(), error))?,
                };
                if kind.is_dir() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    folders.entry(name).or_default().push(entry.path());
                }
            }
        }
        Ok(folders)
    }
}
