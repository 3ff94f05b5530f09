//! Who is at work on a store: the folders of living jobs, what extents they took, and what they still read.
//!
//! ```text
//!   DEVICE/scratch/lock              held for moments: by who commits, takes extents, or comes and goes; in it stands
//!                                    which record of the log is the last (24 bytes: its generation and number, and
//!                                    the sequence of the superblock), or zeros while that changes; up to which commit
//!                                    the space of freed extents was given back (8 bytes); and where the devices of the
//!                                    store are (their folders, each with a zero byte at its end)
//!   DEVICE/scratch/PID-RANDOM/       one for each job
//!   DEVICE/scratch/reader-PID-RANDOM/  one for each process that has datasets open
//!   DEVICE/scratch/PID-RANDOM/lock   held by its owner as long as it lives
//!   DEVICE/scratch/PID-RANDOM/lease  extents that it took (10 bytes each: device, first extent, count)
//!   DEVICE/scratch/PID-RANDOM/pin    the oldest commit that it reads (8 bytes); absent: none
//!   DEVICE/scratch/PID-RANDOM/keeps  what it keeps for the job that goes on with it (a name); absent: nothing
//! ```
//!
//! The same stands in the folder of every device, and who changes something holds the locks of all devices that it
//! sees. So two that have any device in common meet, whatever was moved or unmounted meanwhile: with one meeting place
//! in the folder of the first device, one that comes while that is away would meet nobody. A folder that is no longer
//! where it was found is an error for who wants to change something, and left out by who only reads.
//!
//! The record that stands in a lock was durable before. So a log that ends before that record is damaged, whatever else
//! is there, and a folder whose lock says anything was a device of a store, although its superblock may be lost. The
//! other devices of that store are then found by the folders that stand there.
//!
//! A lock (`flock`) ends with the process that holds it, however it ends. So a folder whose lock can be taken belongs
//! to a dead owner and is removed at the start of the next job; the folders of the living are not touched. After a
//! power loss everybody is dead, so nothing here is ever synced.

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

use crate::{Error, Place, Result, log::LastRecord, log::catalog::Run, log::encoding::Cursor};

const RUN_BYTES: usize = 10;
const LAST_RECORD_BYTES: usize = 24;

/// The scratch folders of a store.
#[derive(Debug)]
pub(crate) struct Registry {
    /// That of the folder which was named first; jobs keep plain files there.
    home: PathBuf,
    /// In the order in which everybody locks them.
    roots: RwLock<Vec<Root>>,
}

/// The scratch folder of a device.
#[derive(Clone, Debug)]
struct Root {
    /// Which folder the device was when it was found: number of the file system and of the folder.
    identity: (u64, u64),
    folder: PathBuf,
    path: PathBuf,
}

/// The lock of a store. Whoever writes the log or takes extents holds it alone; whoever reads the log may share it.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    registry: &'a Registry,
    roots: Vec<PathBuf>,
    _locks: Vec<File>,
}

/// Which folder or file that is, whatever it is called; `None` where there is none.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Root {
    fn lock(&self, operation: FlockOperation) -> Result<Option<File>> {
        let path = self.path.join("lock");
        loop {
            if identity(&self.folder) != Some(self.identity) {
                let what = "it is no longer where it was: was it moved or unmounted? Begin again".to_string();
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
            // While this one waited, the folder may have been removed or moved.
            let held = lock.metadata().map_err(|error| Error::io("lock", &path, error))?;
            if identity(&path) == Some((held.dev(), held.ino())) {
                return Ok(Some(lock));
            }
        }
    }
}

impl Registry {
    /// That of the store whose home is `home`. Makes the folder if it is not there and can be made.
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

    /// From now on the store's folders are these, beside that of its home. Where no folder can be made, nobody meets.
    pub fn meet_on(&self, folders: impl IntoIterator<Item = PathBuf>) {
        let folders: Vec<PathBuf> = folders.into_iter().collect();
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.path == self.home || folders.contains(&root.folder));
        for folder in folders {
            let Some(identity) = identity(&folder) else { continue };
            let path = folder.join("scratch");
            // A device that was taken out of the store has no segment any more, and is to stay empty.
            if folder.join("segment-00000000").exists() {
                let _ = fs::create_dir_all(&path);
            }
            if !roots.iter().any(|root| root.identity == identity) {
                roots.push(Root { identity, folder, path });
            }
        }
        roots.sort_unstable_by_key(|root| root.identity);
    }

    /// A folder is no longer one of the store: nobody meets there any more.
    ///
    /// # Errors
    /// I/O, where something of it stays.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let mut roots = self.roots.write().expect("no panic under this lock");
        roots.retain(|root| root.folder != folder);
        let path = folder.join("scratch");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
            _ => Ok(()),
        }
    }

    /// Waits for the lock, to change something.
    ///
    /// # Errors
    /// I/O; [`Error::BadDevice`] where a folder is no longer where it was.
    pub fn lock(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// Waits until nobody changes anything. On a file system that is mounted read-only nobody does.
    pub fn share(&self) -> Result<Guard<'_>> {
        self.lock_as(FlockOperation::LockShared)
    }

    /// For an owner that can do nothing but read: no folder, until [`Guard::join_also`] makes one.
    pub fn nowhere(&self, prefix: &str) -> Scratch {
        let name = format!("{prefix}{}-{:016x}", std::process::id(), random_u64());
        Scratch { home: self.home.join(&name), name, members: Mutex::default() }
    }

    /// The last record that somebody appended to the log since the machine was started; `None`: nobody knows. To be
    /// called under the lock.
    pub fn last_record(&self) -> Option<LastRecord> {
        let told = self.told();
        let first = (*told.first()?)?;
        // One that was away knows an older one, or nothing.
        told.iter().all(|other| *other == Some(first)).then_some(first)
    }

    /// Whether somebody told of this record, on any device.
    pub fn has_told(&self, record: LastRecord) -> bool {
        self.told().contains(&Some(record))
    }

    /// The latest record that somebody told of, in the home of the store or in one of `folders`. It was durable then.
    pub fn latest_record(&self, folders: impl IntoIterator<Item = PathBuf>) -> Option<LastRecord> {
        let locks = folders.into_iter().map(|folder| lock_of(&folder)).chain([self.home.join("lock")]);
        locks.filter_map(|lock| Told::read(&lock).ok()??.last).max()
    }

    /// What is told of the log on each device; a folder without a lock, in which nobody can meet, says nothing. One that
    /// cannot be read may tell of a later record than the others, so that nobody knows.
    fn told(&self) -> Vec<Option<LastRecord>> {
        let roots = self.roots.read().expect("no panic under this lock");
        let told = roots.iter().filter_map(|root| Told::read(&root.path.join("lock")).transpose());
        told.map(|told| told.ok()?.last).collect()
    }

    /// Tells the others which record of the log is the last, and where the devices are. Where that fails they are told
    /// nothing, and look themselves. To be called under the lock, also one that is shared: then nobody appends, and all
    /// tell the same.
    pub fn tell_last_record(&self, last: LastRecord) {
        let roots = self.roots.read().expect("no panic under this lock");
        let folders: Vec<PathBuf> = roots.iter().map(|root| root.folder.clone()).collect();
        for root in roots.iter() {
            let path = root.path.join("lock");
            let told = Told { last: Some(last), folders: folders.clone(), ..Told::read_or_nothing(&path) };
            let _ = told.write(&path);
        }
    }

    /// The last commit of which somebody told that the space of all that was freed until then was given back; 0: nobody
    /// told. To be called under the lock.
    pub fn discarded(&self) -> u64 {
        let roots = self.roots.read().expect("no panic under this lock");
        let told = roots.iter().map(|root| Told::read_or_nothing(&root.path.join("lock")));
        told.map(|told| told.discarded).min().unwrap_or(0)
    }

    /// Tells the others so, who do it again where they are not told. To be called under the lock, and not under one that
    /// is shared.
    pub fn tell_discarded(&self, commit: u64) {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            let path = root.path.join("lock");
            let told = Told { discarded: commit, ..Told::read_or_nothing(&path) };
            let _ = told.write(&path);
        }
    }

    /// Takes back what was told of the log. To be called under the lock, before the log changes.
    ///
    /// # Errors
    /// I/O. Nothing may be changed then.
    pub fn tell_nothing(&self) -> Result<()> {
        for root in self.roots.read().expect("no panic under this lock").iter() {
            Told::take_back_last(&root.path.join("lock"))?;
        }
        Ok(())
    }

    /// A drive that fails, is full or cannot be written is left out as long as there are others: all meet on those.
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
                // That it is read-only tells most: it can still be read.
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

/// The lock in the folder of a device.
fn lock_of(folder: &Path) -> PathBuf {
    folder.join("scratch/lock")
}

/// The content of the lock of a device, by which the processes at work on a store tell each other of the log.
///
/// ```text
///    0   8   generation of the log   \
///    8   8   number of its last record  } zeros: nobody knows
///   16   8   sequence of the superblock /
///   24   8   commit up to which the space of freed extents was given back; 0: nobody knows
///   32       folders of the devices, byte by byte, each with a zero byte at its end
/// ```
///
/// A lock of an older version ends after byte 24, or the folders begin there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    last: Option<LastRecord>,
    discarded: u64,
    folders: Vec<PathBuf>,
}

impl Told {
    /// What stands in a lock; `None` where there is none.
    fn read(lock: &Path) -> Result<Option<Told>> {
        Ok(read_if_there(lock)?.map(|bytes| Told::decode(&bytes)))
    }

    /// The same; nothing where it cannot be read.
    fn read_or_nothing(lock: &Path) -> Told {
        Told::read(lock).ok().flatten().unwrap_or_default()
    }

    fn decode(lock: &[u8]) -> Told {
        let (record, rest) = lock.split_at_checked(LAST_RECORD_BYTES).unwrap_or_default();
        // The highest bytes of a commit's number are zeros, and folders have no two zeros in a row.
        let (discarded, folders) = match rest.split_first_chunk::<8>() {
            Some((number @ [.., 0, 0], folders)) => (u64::from_le_bytes(*number), folders),
            _ => (0, rest),
        };
        let folders = folders.split(|&byte| byte == 0).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        Told {
            last: decode_last(record),
            discarded,
            // What is not absolute is what is left of a longer list, or nothing.
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

    /// Writes it in one call: a reader sees what was there before, or this.
    fn write(&self, lock: &Path) -> Result<()> {
        let bytes = self.encode();
        let mut file = open_lock(lock)?;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(bytes.len() as u64))
            .map_err(|error| Error::io("write", lock, error))
    }

    /// Makes the last record zeros, and leaves the rest as it is: in place, which needs no space.
    fn take_back_last(lock: &Path) -> Result<()> {
        let take_back = |mut file: File| match file.metadata()?.len() {
            0 => Ok(()),
            _ => file.write_all(&[0; LAST_RECORD_BYTES]),
        };
        match File::options().write(true).open(lock).and_then(take_back) {
            // Where there is none, nothing was told.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("write", lock, error)),
            _ => Ok(()),
        }
    }
}

/// The record that stands at the beginning of a lock.
fn decode_last(bytes: &[u8]) -> Option<LastRecord> {
    let mut bytes = Cursor(bytes);
    let last = LastRecord { generation: bytes.u64()?, number: bytes.u64()?, sequence: bytes.u64()? };
    // Zeros are what was taken back.
    (last.generation > 0).then_some(last)
}

/// Whether somebody told of a store in this folder of a device.
pub(crate) fn tells_of_a_store(folder: &Path) -> bool {
    fs::metadata(lock_of(folder)).is_ok_and(|lock| lock.len() > 0)
}

/// The folders of the store whose device was in `folder`, as somebody told there.
pub(crate) fn told_folders(folder: &Path) -> Vec<PathBuf> {
    Told::read_or_nothing(&lock_of(folder)).folders
}

/// Whether the error is that a file system is full.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull)
}

fn is_read_only_error(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_read_only(source))
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
    /// The name of what it keeps for the job that goes on with it.
    pub keeps: Option<String>,
}

impl Guard<'_> {
    /// Everybody who is alive.
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

    /// Folders for a new owner, whose name begins with `prefix`.
    pub fn join(&self, prefix: &str) -> Result<Scratch> {
        let mut scratch = self.registry.nowhere(prefix);
        self.join_also(&scratch)?;
        let members = scratch.members.get_mut().expect("no panic under this lock");
        if !members.iter().any(|(path, _)| *path == scratch.home) {
            scratch.home = members[0].0.clone();
        }
        Ok(scratch)
    }

    /// Folders for an owner wherever it has none yet: in those of devices that came later. Where a drive is full or
    /// fails, or is being taken out of the store, the others do.
    ///
    /// # Errors
    /// I/O, where there is no folder at all.
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

    /// The extents that all owners have taken.
    pub fn leases(&self) -> Result<Vec<Run>> {
        let mut leases = Vec::new();
        for folders in self.folders()?.into_values() {
            leases.extend(read_lease(&folders)?);
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
        for folders in self.folders()?.into_values() {
            if let Some(pin) = oldest_pin(&folders)?
                && !is_dead(&folders)?
            {
                oldest = Some(oldest.map_or(pin, |oldest| oldest.min(pin)));
            }
        }
        Ok(oldest)
    }

    /// The folders of each owner, by its name.
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
                    // An owner that ends removes its folder without asking.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    kind => kind.map_err(|error| Error::io("look at", entry.path(), error))?,
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

/// The extents that dead owners left.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    /// Extents that they had taken.
    pub lease: Vec<Run>,
    /// Extents that the living have taken.
    pub leases_of_living: Vec<Run>,
    folders: Vec<PathBuf>,
}

impl Dead {
    /// Removes their folders: after the extents were given back, so that whoever dies in between leaves that to the next.
    pub fn remove(self) -> Result<()> {
        for path in self.folders {
            match fs::remove_dir_all(&path) {
                // An owner that ends removes its folder without asking.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(|error| Error::io("remove", &path, error))?,
            }
        }
        Ok(())
    }
}

/// Makes a folder of an owner, which says what that in `known` says, and takes its lock.
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

/// The folders of one owner; removed on drop.
#[derive(Debug)]
pub struct Scratch {
    name: String,
    home: PathBuf,
    /// With the lock of each.
    members: Mutex<Vec<(PathBuf, File)>>,
}

impl Scratch {
    /// The folder for plain files.
    pub fn path(&self) -> &Path {
        &self.home
    }

    /// Writes down that these extents are taken. To be called under the store's lock.
    pub(crate) fn add_lease(&self, run: Run) -> Result<()> {
        let mut bytes = Vec::with_capacity(RUN_BYTES);
        bytes.extend(run.start.device.to_le_bytes());
        bytes.extend(run.start.extent.to_le_bytes());
        bytes.extend(run.count.to_le_bytes());
        self.in_each("lease", |path| File::options().append(true).create(true).open(path)?.write_all(&bytes))
    }

    /// Writes down the oldest commit that is read here; `None` for none.
    pub(crate) fn pin(&self, commit: Option<u64>) -> Result<()> {
        self.in_each("pin", |path| match commit {
            // Overwritten in place and in one call: a reader sees the old commit or the new one.
            Some(commit) => {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                file.and_then(|mut file| file.write_all(&commit.to_le_bytes()))
            }
            None => fs::remove_file(path),
        })
    }

    /// Writes down what is kept here. To be called under the store's lock.
    pub(crate) fn keep(&self, name: &str) -> Result<()> {
        self.in_each("keeps", |path| fs::write(path, name))
    }

    /// Does something to a file in each folder. Where a drive is full, fails or is gone, the others count.
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
            // What cannot be removed now is removed by the next job.
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

/// The extents that an owner has taken, as its folders say. Each of them says everything, but for one that was away or full for a
/// while, or in which it is about to be written: so all that any of them says counts.
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
    // Nothing here is ever synced: after a power loss a lease may be zeros. What nobody can have taken, nobody has.
    runs.retain(|run| run.is_for_data());
    Ok(Run::merged(&runs))
}

/// The name of what an owner keeps, as its folders say.
fn kept_name(folders: &[PathBuf]) -> Result<Option<String>> {
    for folder in folders {
        if let Some(bytes) = read_if_there(&folder.join("keeps"))? {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(None)
}

/// The oldest commit that the folders of an owner say to be read.
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

/// Whether nobody holds the lock of any of an owner's folders. A folder without one is of an owner that died between two
/// system calls, since the lock of the store is held here.
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

/// Eight random bytes of the system's.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().expect("the system has random bytes for whoever asks for eight")
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
    fn a_device_that_is_taken_out_or_full_is_done_without() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        let guard = registry.lock().unwrap();
        let run = Run { start: Place { device: 1, extent: 2 }, count: 3 };
        let early = guard.join("").unwrap();
        assert_eq!(early.members.lock().unwrap().len(), 2);
        // Somebody who held the lock before took it out.
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
    fn state_that_cannot_be_read_is_an_error_and_not_nothing() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        let living = registry.lock().unwrap().join("").unwrap();
        // A folder in the place of a file fails whoever reads it.
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
    fn a_drive_whose_lock_cannot_be_read_may_tell_of_a_later_record() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        let last = LastRecord { generation: 1, number: 2, sequence: 3 };
        registry.tell_last_record(last);
        assert_eq!(registry.last_record(), Some(last));
        let lock = other.path().join("scratch/lock");
        fs::remove_file(&lock).unwrap();
        assert_eq!(registry.last_record(), Some(last), "a device that was taken out says nothing");
        fs::create_dir(&lock).unwrap();
        assert_eq!(registry.last_record(), None);
        assert!(registry.has_told(last));
    }

    #[test]
    fn what_is_told_of_the_log_and_of_space_that_was_given_back_are_apart() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::open(home.path()).unwrap();
        assert_eq!((registry.last_record(), registry.discarded()), (None, 0));
        registry.tell_discarded(7);
        assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
        let last = LastRecord { generation: 1, number: 2, sequence: 3 };
        registry.tell_last_record(last);
        assert_eq!((registry.last_record(), registry.discarded()), (Some(last), 7));
        registry.tell_nothing().unwrap();
        assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
    }

    #[test]
    fn a_lock_says_of_folders_what_their_bytes_are_and_locks_of_older_versions_are_read() {
        let last = Some(LastRecord { generation: 1, number: 2, sequence: 3 });
        let folders = [&b"/a"[..], b"/data\xff", b"/data/b"];
        let record = [1u64, 2, 3].map(u64::to_le_bytes).concat();
        for count in 0..=folders.len() {
            let list: Vec<u8> = folders[..count].iter().flat_map(|folder| [*folder, &[0]].concat()).collect();
            let folders: Vec<_> =
                folders[..count].iter().map(|folder| PathBuf::from(OsStr::from_bytes(folder))).collect();
            // The last number has the byte of a `/` where a list of folders would begin.
            for discarded in [0, 7, 0x2f, 0x2f2f_002f_002f] {
                let told = Told { last, discarded, folders: folders.clone() };
                let bytes = told.encode();
                assert_eq!(bytes, [&record[..], &discarded.to_le_bytes(), &list].concat());
                assert_eq!(Told::decode(&bytes), told);
            }
            let older = Told::decode(&[&record[..], &list].concat());
            assert_eq!(older, Told { last, discarded: 0, folders });
        }
        for len in 0..24 {
            assert_eq!(Told::decode(&record[..len]), Told::default());
        }
        assert_eq!(Told::decode(&[0; 24]), Told::default());
    }

    #[test]
    fn who_tells_of_a_shorter_list_of_folders_leaves_nothing_of_the_longer_one() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("segment-00000000"), "").unwrap();
        let registry = Registry::open(home.path()).unwrap();
        registry.meet_on([other.path().to_path_buf()]);
        registry.tell_last_record(LastRecord { generation: 1, number: 2, sequence: 3 });
        registry.tell_discarded(7);
        assert_eq!(told_folders(home.path()).len(), 2);
        assert_eq!(told_folders(home.path()), told_folders(other.path()));
        registry.tell_nothing().unwrap();
        assert_eq!(told_folders(home.path()).len(), 2);
        registry.remove(other.path()).unwrap();
        registry.tell_last_record(LastRecord { generation: 1, number: 3, sequence: 3 });
        assert_eq!((told_folders(home.path()), registry.discarded()), (vec![home.path().to_path_buf()], 7));
    }

    #[test]
    fn an_owner_has_taken_all_that_any_of_its_folders_says() {
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
