//! A store contains named datasets on a set of devices.
//!
//! ```text
//!   DIR/segment-00000000, ...   128 extents of 2 MiB each; extent 1 of the first holds the superblock
//!   DIR/scratch/...             the jobs and readers at work (see `scratch.rs`)
//! ```
//!
//! A job writes a dataset to extents that only this job uses, and makes them durable. One record of the log then
//! publishes the dataset. At every instant, even after a kill or a power loss, the dataset exists completely or does
//! not exist. A reader that has a dataset open prevents the reuse of the dataset's extents. A job can therefore
//! continue to read a dataset after its removal.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Budget, Device, DeviceEntry, Directory, EXTENT_BYTES, Edit, Error, Result,
    device::sync_names,
    log::{Superblock, read_superblock},
    shared::{NewStore, Opener, Shared, check_is_blank},
    space::scratch::announced_folders,
};

/// The smallest size limit of a device in bytes. A device of this size has room for the log, the spare log, the
/// superblock, headers, the reserved extents, and a few extents of data.
const LEAST_BYTES: u64 = 32 << 20;

/// The name of the header file of stores of version 1, which were created before the first release.
const OLD_HEADER_NAME: &str = "inshore.store";

/// `Store` is an open store: a set of devices with datasets. Clones share the open store. Any number of processes may
/// open the same store.
#[derive(Clone, Debug)]
pub struct Store(pub(crate) Arc<Shared>);

/// Returns the default folder of the store: `$INSHORE_STORE`, else `inshore` in the user's data directory
/// (`$XDG_DATA_HOME`, else `~/.local/share`). The result is `None` if there is no home directory either.
pub fn default_store_path() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("INSHORE_STORE")
        .or_else(|| named("XDG_DATA_HOME").map(|data| data.join("inshore")))
        .or_else(|| named("HOME").map(|home| home.join(".local/share/inshore")))
}

impl Store {
    /// Opens the store that has a device in the folder `path`, or creates the folder and the store.
    ///
    /// # Errors
    /// - Returns [`Error::NotAStore`] if the folder contains other files.
    /// - Returns [`Error::BadFormat`] if the store is damaged or of another version.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        match Self::open_existing(path.as_ref()) {
            Err(Error::NoStore { .. }) => Self::make(&[path.as_ref()], None),
            opened => opened,
        }
    }

    /// Opens the store that has a device in the folder `path`. The call searches for each other device in its recorded
    /// folder, and in the parent folder of this device. If all devices were moved together, it also finds them by their
    /// paths relative to this device. The next commit records the new folders.
    ///
    /// # Errors
    /// - Returns [`Error::NoStore`] if the folder contains no store.
    /// - Returns [`Error::IsACopy`] if the folder is a copy of a device, and the original device is still in its
    ///   recorded folder.
    /// - Returns [`Error::Diverged`] if two groups of devices have different commits.
    /// - Returns the errors of [`Store::open`].
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Store> {
        Self::open_folders(&[path])
    }

    /// Opens the store that has devices in the folders `paths`. Callers use this function if the devices cannot be
    /// found from one of them.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open_existing`].
    pub fn open_folders(paths: &[impl AsRef<Path>]) -> Result<Store> {
        Self::open_without(paths, None)
    }

    /// Takes a diverged device ([`Error::Diverged`]) in the folder `given_up` back into the store at `path`, and
    /// returns the number of the device. Commits that only this device has are lost. The caller should verify the store
    /// afterwards, since these commits may have overwritten data of the store.
    ///
    /// # Errors
    /// - Returns [`Error::BadDevice`] if a device cannot be used.
    /// - Returns the errors of [`Store::open_existing`].
    pub fn rejoin(path: impl AsRef<Path>, given_up: impl AsRef<Path>) -> Result<u16> {
        let given_up = canonical(given_up.as_ref())?;
        let path = canonical(path.as_ref())?;
        if path == given_up {
            let what = "it is the folder that --store names: pass another device of the store with --store"
                .to_string();
            return Err(Error::BadDevice { path, what });
        }
        let store = Self::open_without(&[path], Some(&given_up))?;
        let limit =
            read_superblock(directory(&given_up, None)?.as_ref())?.and_then(|(number, superblock)| {
                superblock
                    .devices
                    .iter()
                    .find(|entry| entry.number == number)
                    .and_then(|entry| entry.limit_bytes)
            });
        store.0.rejoin(directory(&given_up, limit)?)
    }

    fn open_without(paths: &[impl AsRef<Path>], without: Option<&Path>) -> Result<Store> {
        let mut finder = DeviceFinder { without: without.map(Path::to_path_buf), ..DeviceFinder::default() };
        let (mut first, mut devices, mut failed) = (None, Vec::new(), Vec::new());
        let mut open = |path: &Path| -> Result<()> {
            let (number, superblock) = superblock_in(path)?;
            let entry = superblock.devices.iter().find(|entry| entry.number == number).cloned();
            devices.push(directory(path, entry.as_ref().and_then(|entry| entry.limit_bytes))?);
            finder.known.extend(entry.map(|entry| (entry.path, path.to_path_buf())));
            first.get_or_insert((path.to_path_buf(), number, superblock));
            Ok(())
        };
        for path in paths {
            let path = match canonical(path.as_ref()) {
                Ok(path) => path,
                Err(error) => {
                    let path = std::path::absolute(path.as_ref()).unwrap_or(path.as_ref().to_path_buf());
                    failed.push((path, error));
                    continue;
                }
            };
            if let Err(error) = open(&path) {
                failed.push((path, error));
            }
        }
        if failed.len() == paths.len() {
            // No folder has a readable superblock. The lock files in the folders may still contain the folders of the
            // other devices.
            let announced = failed.iter().flat_map(|(path, _)| announced_folders(path));
            announced
                .filter(|announced| without != Some(announced.as_path()))
                .for_each(|announced| drop(open(&announced)));
        }
        let Some((path, number, superblock)) = first else {
            let (_, error) = failed.into_iter().next().expect("at least one folder");
            return Err(error);
        };
        // If a device of the store cannot be read, it counts as missing.
        let is_known = |path: &Path| superblock.devices.iter().any(|entry| entry.path == path);
        if let Some((_, error)) = failed.into_iter().find(|(path, _)| !is_known(path)) {
            return Err(error);
        }
        // The home of the store is the folder of the first device that is present.
        let place_of = |entry: &DeviceEntry| match entry.number == number {
            true => Some(path.clone()),
            false => {
                let is_it = |device: &dyn Device| {
                    read_superblock(device).ok().flatten().is_some_and(|(number, found)| {
                        (number, found.uuid_of(number)) == (entry.number, Some(entry.uuid))
                    })
                };
                let found = finder.find(entry, &superblock.devices, &is_it);
                found.and_then(|device| Some(device.folder()?.to_path_buf()))
            }
        };
        let home = superblock.devices.iter().find_map(place_of).unwrap_or_else(|| path.clone());
        Ok(Store(Shared::open(&home, devices, finder.opener(), None)?))
    }

    /// Creates a store with devices in the folders `paths`. Missing folders are created, and existing folders must be
    /// empty. Each device may take up to `limit_bytes` bytes of its file system, or all of it without a limit.
    ///
    /// # Errors
    /// - Returns [`Error::StoreExists`] if a folder already contains a store.
    /// - Returns [`Error::NotAStore`] if a folder contains other files.
    /// - Returns [`Error::BadDevice`] if a device cannot be used.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn init(paths: &[impl AsRef<Path>], limit_bytes: Option<u64>) -> Result<Store> {
        if let Some(bytes) = limit_bytes.filter(|&bytes| bytes < LEAST_BYTES) {
            let (given, least) = (crate::format_bytes(bytes), crate::format_bytes(LEAST_BYTES));
            let path = paths.first().expect("at least one folder").as_ref().to_path_buf();
            let what = format!("{given} is too small for a device of a store: the smallest limit is {least}");
            return Err(Error::BadDevice { path, what });
        }
        for path in paths {
            match Self::open_existing(path.as_ref()) {
                Err(Error::NoStore { .. }) => {}
                Err(_) if is_unfinished(path.as_ref()) => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(Error::StoreExists { path: path.as_ref().to_path_buf() }),
            }
        }
        Self::make(paths, limit_bytes)
    }

    fn make(paths: &[impl AsRef<Path>], limit_bytes: Option<u64>) -> Result<Store> {
        let is_new = |path: &&Path| !path.exists();
        let mut made: Vec<&Path> = paths.iter().map(AsRef::as_ref).filter(is_new).collect();
        // Nested folders are removed first.
        made.sort_unstable_by_key(|path| std::cmp::Reverse(path.components().count()));
        let store = Self::make_in(paths, limit_bytes);
        if store.is_err() {
            // Only empty folders are removed, since another process may be creating the same store.
            made.iter().for_each(|path| drop(fs::remove_dir(path)));
        }
        store
    }

    fn make_in(paths: &[impl AsRef<Path>], limit_bytes: Option<u64>) -> Result<Store> {
        let (mut folders, mut devices): (Vec<PathBuf>, Vec<_>) = Default::default();
        for path in paths {
            let path = path.as_ref();
            fs::create_dir_all(path).map_err(|error| Error::io("create folder", path, error))?;
            let path = path.canonicalize().map_err(|error| Error::io("open", path, error))?;
            check_lies_apart(&path, &folders)?;
            devices.push(directory(&path, limit_bytes)?);
            folders.push(path);
        }
        // The folder names are synced before the store exists. A process that opens the store later can then rely on
        // them.
        for path in &folders {
            sync_names(path).map_err(|error| Error::io("sync the folder of", path, error))?;
        }
        let home = folders.first().expect("at least one folder");
        let make = Some(NewStore { limit_bytes });
        Ok(Store(Shared::open(home, devices, DeviceFinder::default().opener(), make)?))
    }

    /// Opens the store on `devices`, or creates a store if the devices contain none. The processes that use the store
    /// coordinate through files in the folder `home`.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`].
    pub fn open_on(home: impl AsRef<Path>, devices: Vec<Arc<dyn Device>>) -> Result<Store> {
        let make = Some(NewStore { limit_bytes: None });
        Ok(Store(Shared::open(home.as_ref(), devices, Box::new(|_, _, _| None), make)?))
    }

    /// Returns the home of the store. Except after [`Store::open_on`], this is the folder of the first device that is
    /// present.
    pub fn path(&self) -> &Path {
        &self.0.home
    }

    /// Returns the folders of the devices that are present. [`Store::open_folders`] can open the store from these
    /// folders.
    pub fn folders(&self) -> Vec<PathBuf> {
        self.0.folders()
    }

    /// Returns the number of buffers of `buffer_bytes` bytes that keep all drives busy while a file is streamed. The
    /// buffers have room for four extents per drive that takes data, since successive extents of a file are on
    /// different drives. The buffers take at most a quarter of the budget, but there are at least two buffers.
    pub fn stream_buffers(&self, budget: &Budget, buffer_bytes: usize) -> usize {
        let wanted = 4 * EXTENT_BYTES * self.0.open_devices().len();
        let affordable = (budget.memory_bytes() / 4).min(usize::MAX as u64) as usize;
        (wanted.min(affordable) / buffer_bytes).max(2)
    }

    /// Returns the random UUID of the store. The UUID is created with the store, and all devices record it.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.uuid()
    }

    /// Frees the resources of jobs whose processes were killed. Otherwise the next job frees them at its start.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn give_back_of_dead(&self) -> Result<()> {
        self.0.free_dead()
    }

    pub(crate) fn commit(
        &self,
        make: impl FnOnce(&crate::Catalog) -> Result<Vec<Edit>> + Send + 'static,
    ) -> Result<()> {
        self.0.commit(make).map_err(|failed| failed.error)
    }

    pub(crate) fn not_found(&self, name: &str) -> Error {
        Error::NotFound { name: name.to_string(), store: self.path().to_path_buf() }
    }
}

fn directory(path: &Path, limit_bytes: Option<u64>) -> Result<Arc<dyn Device>> {
    let device = Directory::open(path, limit_bytes).map_err(|error| Error::io("open device", path, error))?;
    Ok(Arc::new(device))
}

/// Reads the superblock of the device in the folder `path`, and returns it with the device's number.
fn superblock_in(path: &Path) -> Result<(u16, Superblock)> {
    let device = directory(path, None)?;
    if let Some(found) = read_superblock(device.as_ref())? {
        return Ok(found);
    }
    let is_blank = check_is_blank(device.as_ref());
    // Another process may have created a store in the meantime, so the superblock is read again.
    if let Some(found) = read_superblock(device.as_ref())? {
        return Ok(found);
    }
    is_blank.and_then(|()| check_is_empty(path))?;
    Err(Error::NoStore { path: path.to_path_buf() })
}

/// `DeviceFinder` searches for the devices of a store in the folders where they may be.
#[derive(Clone, Debug, Default)]
struct DeviceFinder {
    /// For each device whose folder the caller named: its recorded folder and its current folder.
    known: Vec<(PathBuf, PathBuf)>,
    /// A folder that the search ignores, as if it did not exist.
    without: Option<PathBuf>,
}

impl DeviceFinder {
    /// Searches for the device of `entry`; `all` are the entries of all devices. The first candidate is the recorded
    /// folder of the device. Drives may have been exchanged, so the folders of the other devices and their parent
    /// folders are also candidates. Devices may have been moved together. For each candidate, the search therefore also
    /// tries the same path relative to a device whose new folder is known, and the parent folder of that device.
    fn find(
        &self,
        entry: &DeviceEntry,
        all: &[DeviceEntry],
        is_it: &dyn Fn(&dyn Device) -> bool,
    ) -> Option<Arc<dyn Device>> {
        let beside = |other: &Path, was: &Path| Some(other.parent()?.join(was.file_name()?));
        let mut were = vec![entry.path.clone()];
        for other in all.iter().filter(|other| other.number != entry.number) {
            were.push(other.path.clone());
            were.extend(beside(&other.path, &entry.path));
        }
        let from_known = |was: &PathBuf| -> Vec<PathBuf> {
            let seen = self.known.iter().flat_map(|(old, new)| [moved(old, new, was), beside(new, was)]);
            seen.flatten().collect()
        };
        let places = were.iter().flat_map(|was| [vec![was.clone()], from_known(was)].concat());
        let places = places.filter(|place| self.without.as_ref() != Some(place));
        let places = places.filter_map(|place| place.canonicalize().ok());
        let mut devices = places.filter_map(|place| directory(&place, entry.limit_bytes).ok());
        devices.find(|device| is_it(device.as_ref()))
    }

    fn opener(self) -> Opener {
        Box::new(move |entry, all, is_it| self.find(entry, all, is_it))
    }
}

/// Returns the new path of the folder `was`, under the assumption that its common ancestor with `old` was moved, so
/// that `old` became `new`.
fn moved(old: &Path, new: &Path, was: &Path) -> Option<PathBuf> {
    let common = old.ancestors().find(|above| was.starts_with(above))?;
    let depth = old.strip_prefix(common).ok()?.components().count();
    Some(new.ancestors().nth(depth)?.join(was.strip_prefix(common).ok()?))
}

fn canonical(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::NoStore { path: path.to_path_buf() })
        }
        found => found.map_err(|error| Error::io("open", path, error)),
    }
}

/// Returns true if a process began to create a store in this folder and was killed before it had finished this device.
/// The device then has only the first superblock of a store. An unfinished store contains no data, since its creation
/// ends with the second superblock.
fn is_unfinished(path: &Path) -> bool {
    let device = path.canonicalize().ok().and_then(|path| directory(&path, None).ok());
    let found = device.and_then(|device| read_superblock(device.as_ref()).ok().flatten());
    found.is_some_and(|(_, superblock)| superblock.sequence == 1)
}

/// Checks that the folder of a new device is not inside the folder of another device, and does not contain one.
pub(crate) fn check_lies_apart(path: &Path, others: &[PathBuf]) -> Result<()> {
    let bad = |what: String| Err(Error::BadDevice { path: path.to_path_buf(), what });
    for other in others {
        if path == other {
            return bad("it is given twice".to_string());
        }
        if path.starts_with(other) || other.starts_with(path) {
            return bad(format!("it overlaps with {}: one folder lies in the other", other.display()));
        }
    }
    for above in path.ancestors().skip(1) {
        if above.join("segment-00000000").is_file() {
            return bad(format!("it lies in {}, which is a device of a store", above.display()));
        }
    }
    Ok(())
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good =
        name.len() <= 100 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
    if good { Ok(()) } else { Err(Error::BadName { name: name.to_string() }) }
}

/// Checks that a store may be created in a folder. The folder must be empty, except for files of another process that
/// is creating the same store.
fn check_is_empty(path: &Path) -> Result<()> {
    let list = |error| Error::io("list", path, error);
    for entry in fs::read_dir(path).map_err(list)? {
        let name = entry.map_err(list)?.file_name().to_string_lossy().into_owned();
        if name == OLD_HEADER_NAME {
            return Err(Error::BadFormat {
                path: path.to_path_buf(),
                what: "version of the store",
                found: "1, of a version before the first release".to_string(),
                expected: "2 or 3".to_string(),
            });
        }
        if name != "scratch" && name != "segment-00000000" && name != "lost+found" {
            return Err(Error::NotAStore { path: path.to_path_buf() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_folders_bad_names_and_damaged_headers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        assert!(matches!(Store::open(folder.path()), Err(Error::NotAStore { .. })));
        fs::remove_file(folder.path().join("thesis.tex")).unwrap();
        let store = Store::open(folder.path()).unwrap();
        for name in ["", ".", "..", "a/b", "-a", ".a", "a b", "ä", &"a".repeat(101)] {
            assert!(matches!(store.dataset(name), Err(Error::BadName { .. })), "{name:?}");
        }
        drop(store);
        // First one slot of the superblock is damaged, then both slots.
        let path = folder.path().join("segment-00000000");
        let mut bytes = fs::read(&path).unwrap();
        for (slot, is_left) in [(0, true), (1, false)] {
            bytes[crate::EXTENT_BYTES + slot * crate::EXTENT_BYTES / 2 + 20] ^= 0x40;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(Store::open(folder.path()).is_ok(), is_left, "slot {slot}");
        }
        let old = tempfile::tempdir().unwrap();
        fs::write(old.path().join(OLD_HEADER_NAME), "").unwrap();
        assert!(matches!(
            Store::open(old.path()),
            Err(Error::BadFormat { what: "version of the store", .. })
        ));
    }
}
