//! Scratch folders register the jobs and readers at work on a store: the extents that they took, and the commits that
//! they still read.
//!
//! ```text
//!   DEVICE/scratch/lock              held for moments: by a process that commits, takes extents, comes or goes. Its content:
//!                                    the last record of the log (24 bytes: its generation and number, and the sequence
//!                                    of the superblock), or zeros while it changes; the commit up to which the space of
//!                                    freed extents was discarded (8 bytes); the folders of the devices of the store
//!                                    (each with a zero byte at its end)
//!   DEVICE/scratch/PID-RANDOM/       one for each job
//!   DEVICE/scratch/reader-PID-RANDOM/  one for each process that has datasets open
//!   DEVICE/scratch/PID-RANDOM/lock   held by its owner as long as it lives
//!   DEVICE/scratch/PID-RANDOM/lease  extents that the owner took (10 bytes each: device, first extent, count)
//!   DEVICE/scratch/PID-RANDOM/pin    the oldest commit that the owner reads (8 bytes); absent: none
//!   DEVICE/scratch/PID-RANDOM/keeps  the name of the work that the owner keeps; absent: nothing
//! ```
//!
//! The folder of every device has the same content, and a process that changes something holds the locks of all devices
//! that it sees. Two processes with a common device therefore always meet, even if other devices were moved or
//! unmounted. With one meeting place in the folder of the first device, a process that comes while that device is
//! missing would meet no other. If a folder is no longer at its place, a change fails, and a read ignores the folder.
//!
//! The record that a lock announces was durable before. A log that ends before that record is damaged, whatever else
//! exists. A folder with a non-empty lock belonged to a device of a store, even if its superblock is lost; the lock
//! then names the folders of the other devices.
//!
//! A lock (`flock`) ends with the process that holds it, even on a kill. A folder whose lock can be taken therefore
//! belongs to a dead owner, and the next job removes it at its start; folders of the living are not touched. After a
//! power loss all owners are dead, so nothing here is ever synced.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, RwLock},
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    Error, Place, Result, log::LastRecord, log::catalog::Run, log::encoding::Cursor, random::random_u64,
};

const RUN_BYTES: usize = 10;
const LAST_RECORD_BYTES: usize = 24;

/// `Registry` is the set of scratch folders of a store.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The scratch folder of the device that was named first; jobs keep plain files there.
    home: PathBuf,
    /// The scratch folders in the order in which all processes lock them.
    roots: RwLock<Vec<Root>>,
}

/// `Root` is the scratch folder of a device.
#[derive(Clone, Debug)]
struct Root {
    /// The identity of the device's folder when it was found: the numbers of the file system and of the inode.
    identity: (u64, u64),
    folder: PathBuf,
    path: PathBuf,
}

/// `Guard` is the lock of a store. A process that writes the log or takes extents holds it exclusively; readers of the
/// log may share it.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    registry: &'a Registry,
    roots: Vec<PathBuf>,
    _locks: Vec<File>,
}

/// Returns the identity of a folder or file: the numbers of its file system and inode; `None` if the path does not
/// exist.
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
                // The device was taken out of the store.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
                lock => lock?,
            };
            match flock(&lock, operation) {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Error::io("lock", path, error.into())),
            }
            // During the wait, the folder may have been removed or moved.
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

    /// Sets the folders of the store beside its home. Where no scratch folder can be made, processes do not meet.
    pub fn meet_on(&self, folders: impl IntoIterator<Item = PathBuf>) {
        let folders: Vec<PathBuf> = folders.into_iter().collect();
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.path == self.home || folders.contains(&root.folder));
        for folder in folders {
            let Some(identity) = identity(&folder) else { continue };
            let path = folder.join("scratch");
            // A device that was taken out of the store has no segment any more, and must stay empty.
            if folder.join("segment-00000000").exists() {
                let _ = fs::create_dir_all(&path);
            }
            if !roots.iter().any(|root| root.identity == identity) {
                roots.push(Root { identity, folder, path });
            }
        }
        roots.sort_unstable_by_key(|root| root.identity);
    }

    /// Takes a folder out of the store, so that processes no longer meet there.
    ///
    /// # Errors
    /// I/O, if files stay in the scratch folder.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.folder != folder);
        let path = folder.join("scratch");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
            _ => Ok(()),
        }
    }

    /// Waits for the exclusive lock.
    ///
    /// # Errors
    /// I/O; [`Error::BadDevice`] if a folder is no longer at its place.
    pub fn lock(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// Waits for the shared lock. On a file system that is mounted read-only no lock is needed.
    pub fn share(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockShared)
    }

    /// Creates an owner without a folder, for a process that can only read, until [`Guard::join_also`] makes one.
    pub fn without_folder(&self, prefix: &str) -> Scratch {
        let name = format!("{prefix}{}-{:016x}", std::process::id(), random_u64());
        Scratch { home: self.home.join(&name), name, members: Mutex::default() }
    }

    /// Returns the last record of the log that a process announced since the machine was started; `None` if it is
    /// unknown. The caller holds the lock.
    pub fn last_record(&self) -> Option<LastRecord> {
        let content = self.announcements();
        let first = (*content.first()?)?;
        // A device that was missing has an older announcement, or none.
        content.iter().all(|other| *other == Some(first)).then_some(first)
    }

    /// Returns true if a device has an announcement of this record.
    pub fn has_announced(&self, record: LastRecord) -> bool {
        self.announcements().contains(&Some(record))
    }

    /// Returns the latest record that was announced in the home of the store or in `folders`. That record was durable.
    pub fn latest_record(&self, folders: impl IntoIterator<Item = PathBuf>) -> Option<LastRecord> {
        let locks = folders.into_iter().map(|folder| lock_of(&folder)).chain([self.home.join("lock")]);
        locks.filter_map(|lock| LockContent::read(&lock).ok()??.last).max()
    }

    /// Returns the announcement on each device. A folder without a lock, in which processes cannot meet, has no entry.
    /// A lock that cannot be read may hold a later record than the others, so its entry is `None`.
    fn announcements(&self) -> Vec<Option<LastRecord>> {
        let roots = self.roots.read().expect("no panic under this lock");
        let content = roots.iter().filter_map(|root| LockContent::read(&root.path.join("lock")).transpose());
        content.map(|content| content.ok()?.last).collect()
    }

    /// Announces the last record of the log and the folders of the devices. If this fails, other processes have no
    /// announcement and read the log themselves. The caller holds the lock, exclusive or shared: under a shared lock no
    /// process appends, and all announce the same.
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

    /// Returns the last commit up to which the space of freed extents was announced as discarded; 0 if it is unknown.
    /// The caller holds the lock.
    pub fn discarded(&self) -> u64 {
        let roots = self.roots.read().expect("no panic under this lock");
        let content = roots.iter().map(|root| LockContent::read_or_nothing(&root.path.join("lock")));
        content.map(|content| content.discarded).min().unwrap_or(0)
    }

    /// Announces the commit up to which the space of freed extents was discarded. Other processes discard it again if
    /// the announcement fails. The caller holds the exclusive lock.
    pub fn announce_discarded(&self, commit: u64) {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            let path = root.path.join("lock");
            let content = LockContent { discarded: commit, ..LockContent::read_or_nothing(&path) };
            let _ = content.write(&path);
        }
    }

    /// Clears the announced record. The caller holds the lock and is about to change the log.
    ///
    /// # Errors
    /// I/O. The caller must then change nothing.
    pub fn clear_last_record(&self) -> Result<()> {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            LockContent::clear_last(&root.path.join("lock"))?;
        }
        Ok(())
    }

    /// Locks all devices. A drive that fails, is full or cannot be written is left out as long as there are others, on
    /// which all processes meet.
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
                // A read-only file system is the most useful error, since the store can still be read.
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

/// Returns the path of the lock in the folder of a device.
fn lock_of(folder: &Path) -> PathBuf {
    folder.join("scratch/lock")
}

/// `LockContent` is the content of the lock of a device, which announces the state of the log to other processes.
///
/// ```text
///    0   8   generation of the log   \
///    8   8   number of its last record  } zeros: unknown
///   16   8   sequence of the superblock /
///   24   8   commit up to which the space of freed extents was discarded; 0: unknown
///   32       folders of the devices, byte by byte, each with a zero byte at its end
/// ```
///
/// A lock of an older version ends after byte 24, or its folders begin there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LockContent {
    last: Option<LastRecord>,
    discarded: u64,
    folders: Vec<PathBuf>,
}

impl LockContent {
    /// Reads the content of a lock; `None` if there is no lock.
    fn read(lock: &Path) -> Result<Option<LockContent>> {
        Ok(read_if_there(lock)?.map(|bytes| LockContent::decode(&bytes)))
    }

    /// Reads the content of a lock, or returns the empty content if it cannot be read.
    fn read_or_nothing(lock: &Path) -> LockContent {
        LockContent::read(lock).ok().flatten().unwrap_or_default()
    }

    fn decode(lock: &[u8]) -> LockContent {
        let (record, rest) = lock.split_at_checked(LAST_RECORD_BYTES).unwrap_or_default();
        // The highest bytes of a commit's number are zeros, and a list of folders has no two zeros in a row.
        let (discarded, folders) = match rest.split_first_chunk::<8>() {
            Some((number @ [.., 0, 0], folders)) => (u64::from_le_bytes(*number), folders),
            _ => (0, rest),
        };
        let folders = folders.split(|&byte| byte == 0).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        LockContent {
            last: decode_last(record),
            discarded,
            // A relative path is the remainder of a longer list, or empty.
            folders: folders.filter(|folder| folder.is_absolute()).collect(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let record = self.last.map_or([0; 3], |last| [last.generation, last.number, last.sequence]);
        let mut bytes = Vec::new();
        record.into_iter().chain([self.discarded]).for_each(|number| bytes.extend(number.to_le_bytes()));
        for folder in &self.folders {
            bytes.extend(folder.as_os_str().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Writes the content in one call, so that a reader sees the old content or the new one.
    fn write(&self, lock: &Path) -> Result<()> {
        let bytes = self.encode();
        let mut file = open_lock(lock)?;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(bytes.len() as u64))
            .map_err(|error| Error::io("write", lock, error))
    }

    /// Overwrites the last record with zeros in place, which needs no space.
    fn clear_last(lock: &Path) -> Result<()> {
        let take_back = |mut file: File| match file.metadata()?.len() {
            0 => Ok(()),
            _ => file.write_all(&[0; LAST_RECORD_BYTES]),
        };
        match File::options().write(true).open(lock).and_then(take_back) {
            // A missing lock announces nothing.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("write", lock, error)),
            _ => Ok(()),
        }
    }
}

/// Decodes the record at the beginning of a lock.
fn decode_last(bytes: &[u8]) -> Option<LastRecord> {
    let mut bytes = Cursor(bytes);
    let last = LastRecord { generation: bytes.u64()?, number: bytes.u64()?, sequence: bytes.u64()? };
    // Zeros are a cleared record.
    (last.generation > 0).then_some(last)
}

/// Returns true if a process announced a store in this folder of a device.
pub(crate) fn announces_a_store(folder: &Path) -> bool {
    fs::metadata(lock_of(folder)).is_ok_and(|lock| lock.len() > 0)
}

/// Returns the announced folders of the store whose device was in `folder`.
pub(crate) fn announced_folders(folder: &Path) -> Vec<PathBuf> {
    LockContent::read_or_nothing(&lock_of(folder)).folders
}

/// Returns true if the error is a full file system.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull)
}

fn is_read_only_error(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_read_only(source))
}

/// Returns true if the error means that this process cannot write: a file system that is mounted read-only, or a folder
/// of another user.
pub(crate) fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

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

impl Guard<'_> {
    /// Lists all living owners.
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

    /// Finds the extents that dead owners left.
    pub fn dead(&self) -> Result<Dead> {
        let mut dead = Dead::default();
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

    /// Makes folders for a new owner, whose name begins with `prefix`.
    pub fn join(&self, prefix: &str) -> Result<Scratch> {
        let mut scratch = self.registry.without_folder(prefix);
        self.join_also(&scratch)?;
        let members = scratch.members.get_mut().expect("no panic under this lock");
        if !members.iter().any(|(path, _)| *path == scratch.home) {
            scratch.home = members[0].0.clone();
        }
        Ok(scratch)
    }

    /// Makes the missing folders of an owner, such as those on devices that were added later. A drive that is full,
    /// fails, or is being removed is left out as long as there are others.
    ///
    /// # Errors
    /// I/O, if the owner has no folder at all.
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

    /// Returns the extents that all owners have taken.
    pub fn leases(&self) -> Result<Vec<Run>> {
        let mut leases = Vec::new();
        for folders in self.folders()?.into_values() {
            leases.extend(read_lease(&folders)?);
        }
        Ok(leases)
    }

    /// Returns the oldest commit that is being read; `commit`, the last one, if no older one is.
    pub fn pinned(&self, commit: u64) -> Result<u64> {
        Ok(self.oldest_pin()?.map_or(commit, |oldest| oldest.min(commit)))
    }

    /// Returns the oldest pinned commit.
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

    /// Returns the folders of each owner, by the owner's name.
    fn folders(&self) -> Result<BTreeMap<String, Vec<PathBuf>>> {
        let mut folders: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for root in &self.roots {
            let list = |error| Error::io("list", root, error);
            let entries = match fs::read_dir(root) {
                // The device was taken out of the store meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                entries => entries.map_err(list)?,
            };
            for entry in entries {
                let entry = entry.map_err(list)?;
                let kind = match entry.file_type() {
                    // An owner that ends removes its folder without the lock.
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

/// `Dead` holds the extents that dead owners left.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    /// The extents that dead owners had taken.
    pub lease: Vec<Run>,
    /// The extents that living owners have taken.
    pub leases_of_living: Vec<Run>,
    folders: Vec<PathBuf>,
}

impl Dead {
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
fn new_member(path: &Path, known: Option<&Path>) -> Result<File> {
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
    name: String,
    home: PathBuf,
    /// The folders with their locks.
    members: Mutex<Vec<(PathBuf, File)>>,
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

/// Reads the extents that an owner has taken. A folder may miss some of them if its drive was missing or full, or if
/// the owner is about to write there; the result is therefore the union over all folders.
fn read_lease(folders: &[PathBuf]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for folder in folders {
        let bytes = read_if_there(&folder.join("lease"))?.unwrap_or_default();
        runs.extend(bytes.chunks_exact(RUN_BYTES).map(|bytes| {
            let mut bytes = Cursor(bytes);
            let (device, extent) = (bytes.u16().expect("10 bytes"), bytes.u32().expect("10 bytes"));
            Run { start: Place { device, extent }, count: bytes.u32().expect("10 bytes") }
        }));
    }
    // Nothing here is ever synced, so a lease may be zeros after a power loss. Places that cannot hold data are
    // ignored.
    runs.retain(|run| run.is_for_data());
    Ok(Run::merged(&runs))
}

/// Reads the name of the work that an owner keeps.
fn kept_name(folders: &[PathBuf]) -> Result<Option<String>> {
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("keeps"))? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(None)
}

/// Reads the oldest commit that an owner pins.
fn oldest_pin(folders: &[PathBuf]) -> Result<Option<u64>> {
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
fn is_dead(folders: &[PathBuf]) -> Result<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_of_dead_owners_is_removed_and_scratch_of_living_ones_stays() {
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
        let left = registry.lock().unwrap().dead().unwrap();
        assert_eq!(left.lease, [run]);
        left.remove().unwrap();
        assert!(living.path().join("run").exists());
        assert!(!dead.exists() && !torn.exists());
        let second = registry.lock().unwrap().join("").unwrap();
        let path = second.path().to_path_buf();
        drop(second);
        assert!(!path.exists() && living.path().exists());
    }

    #[test]
    fn a_removed_or_full_device_is_left_out() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        let guard = registry.lock().unwrap();
        let run = Run { start: Place { device: 1, extent: 2 }, count: 3 };
        let early = guard.join("").unwrap();
        assert_eq!(early.members.lock().unwrap().len(), 2);
        // Another process that held the lock before took the device out.
        fs::remove_dir_all(other.path().join("scratch")).unwrap();
        let late = guard.join("").unwrap();
        assert_eq!(late.members.lock().unwrap().len(), 1);
        for scratch in [&early, &late] {
            scratch.add_lease(run).unwrap();
            scratch.pin(Some(3)).unwrap();
        }
        assert_eq!((guard.leases().unwrap().len(), guard.pinned(9).unwrap()), (2, 3));
        assert_eq!(guard.dead().unwrap().lease, []);
        drop(guard);
        fs::remove_file(other.path().join("segment-00000000")).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        drop(registry.lock().unwrap());
        assert!(!other.path().join("scratch").exists());
    }

    #[test]
    fn unreadable_state_of_an_owner_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let living = registry.lock().unwrap().join("").unwrap();
        // A folder in the place of a file makes every read fail.
        for name in ["lease", "pin", "keeps"] {
            let path = living.path().join(name);
            fs::create_dir(&path).unwrap();
            let guard = registry.lock().unwrap();
            assert!(guard.owners().is_err(), "{name}");
            match name {
                "lease" => assert!(guard.leases().is_err() && guard.dead().is_err()),
                "pin" => assert!(guard.pinned(7).is_err()),
                _ => assert!(guard.dead().is_ok()),
            }
            fs::remove_dir(path).unwrap();
        }
        assert_eq!(registry.lock().unwrap().owners().unwrap().len(), 1);
    }

    #[test]
    fn an_unreadable_lock_makes_the_last_record_unknown() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        let last = LastRecord { generation: 1, number: 2, sequence: 3 };
        registry.announce_last_record(last);
        assert_eq!(registry.last_record(), Some(last));
        let lock = other.path().join("scratch/lock");
        fs::remove_file(&lock).unwrap();
        assert_eq!(registry.last_record(), Some(last), "a device that was taken out says nothing");
        fs::create_dir(&lock).unwrap();
        assert_eq!(registry.last_record(), None);
        assert!(registry.has_announced(last));
    }

    #[test]
    fn announcements_of_the_log_and_of_discarded_space_are_independent() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        assert_eq!((registry.last_record(), registry.discarded()), (None, 0));
        registry.announce_discarded(7);
        assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
        let last = LastRecord { generation: 1, number: 2, sequence: 3 };
        registry.announce_last_record(last);
        assert_eq!((registry.last_record(), registry.discarded()), (Some(last), 7));
        registry.clear_last_record().unwrap();
        assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
    }

    #[test]
    fn folders_in_a_lock_survive_encoding_and_older_locks_are_read() {
        let last = Some(LastRecord { generation: 1, number: 2, sequence: 3 });
        let folders = [&b"/a"[..], b"/data\xff", b"/data/b"];
        let record = [1u64, 2, 3].map(u64::to_le_bytes).concat();
        for count in 0..=folders.len() {
            let list: Vec<u8> = folders[..count].iter().flat_map(|folder| [*folder, &[0]].concat()).collect();
            let folders: Vec<_> =
                folders[..count].iter().map(|folder| PathBuf::from(OsStr::from_bytes(folder))).collect();
            // The last number has the byte of a `/` where a list of folders would begin.
            for discarded in [0, 7, 0x2f, 0x2f2f_002f_002f] {
                let content = LockContent { last, discarded, folders: folders.clone() };
                let bytes = content.encode();
                assert_eq!(bytes, [&record[..], &discarded.to_le_bytes(), &list].concat());
                assert_eq!(LockContent::decode(&bytes), content);
            }
            let older = LockContent::decode(&[&record[..], &list].concat());
            assert_eq!(older, LockContent { last, discarded: 0, folders });
        }
        for len in 0..24 {
            assert_eq!(LockContent::decode(&record[..len]), LockContent::default());
        }
        assert_eq!(LockContent::decode(&[0; 24]), LockContent::default());
    }

    #[test]
    fn a_shorter_list_of_folders_replaces_a_longer_one() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        registry.announce_last_record(LastRecord { generation: 1, number: 2, sequence: 3 });
        registry.announce_discarded(7);
        assert_eq!(announced_folders(home.path()).len(), 2);
        assert_eq!(announced_folders(home.path()), announced_folders(other.path()));
        registry.clear_last_record().unwrap();
        assert_eq!(announced_folders(home.path()).len(), 2);
        registry.remove(other.path()).unwrap();
        registry.announce_last_record(LastRecord { generation: 1, number: 3, sequence: 3 });
        assert_eq!(
            (announced_folders(home.path()), registry.discarded()),
            (vec![home.path().to_path_buf()], 7)
        );
    }

    #[test]
    fn a_lease_is_the_union_over_the_folders_of_its_owner() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        let guard = registry.lock().unwrap();
        let owner = guard.join("").unwrap();
        let run = |extent| Run { start: Place { device: 0, extent }, count: 2 };
        owner.add_lease(run(5)).unwrap();
        // Each of the drives is full once.
        let folders: Vec<PathBuf> =
            owner.members.lock().unwrap().iter().map(|(path, _)| path.clone()).collect();
        for (folder, missed) in folders.iter().zip([9, 20]) {
            let (lease, aside) = (folder.join("lease"), folder.join("aside"));
            fs::rename(&lease, &aside).unwrap();
            fs::create_dir(&lease).unwrap();
            owner.add_lease(run(missed)).unwrap();
            fs::remove_dir(&lease).unwrap();
            fs::rename(&aside, &lease).unwrap();
        }
        assert_eq!(guard.leases().unwrap(), [run(5), run(9), run(20)]);
    }

    #[test]
    fn corrupt_leases_and_pins_are_ignored() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let living = registry.lock().unwrap().join("").unwrap();
        let mut lease = vec![0; 10];
        // The entries are the headers of the first segment and the superblock; an end that overflows; a valid run; a
        // torn one.
        lease.extend([0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
        lease.extend([0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        lease.extend([1, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        lease.extend([1, 0, 9]);
        fs::write(living.path().join("lease"), lease).unwrap();
        let guard = registry.lock().unwrap();
        assert_eq!(guard.leases().unwrap(), [Run { start: Place { device: 1, extent: 2 }, count: 3 }]);
        fs::write(living.path().join("pin"), [255; 8]).unwrap();
        assert_eq!(guard.pinned(7).unwrap(), 7);
        // A pin that is being written pins everything.
        fs::write(living.path().join("pin"), [255; 3]).unwrap();
        assert_eq!(guard.pinned(7).unwrap(), 0);
    }

    #[test]
    fn only_living_owners_have_leases_and_pins() {
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
