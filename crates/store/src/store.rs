//! Named datasets on a set of devices.
//!
//! ```text
//!   DIR/segment-00000000, ...   128 extents of 2 MiB each; extent 1 of the first holds the superblock
//!   DIR/scratch/...             who is at work (see `scratch.rs`)
//! ```
//!
//! A dataset is written into extents that nobody else uses, made durable, and exists from the moment in which one
//! record of the log says so. So at every instant, after a kill or a power loss too, there is the whole dataset or none
//! of it. Whoever opened it keeps its extents from being used again, so that removing it disturbs no job.

use std::{
    fs,
    iter::zip,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Budget, Cancel, CheckedFile, DatasetRecord, Device, DeviceEntry, Directory, EXTENT_BYTES, Edit, Error,
    FileRecord, FileWriter, Job, Place, Redundancy, Result,
    dataset::checked::{Identity, Kept},
    dataset::writer::Begun,
    device::sync_names,
    keep::KEPT,
    log::catalog::Run,
    log::{Superblock, read_superblock},
    shared::{Failed, NewStore, Opener, Pin, Shared, check_is_blank},
    space::extents::Extents,
    space::scratch::{random_u64, told_folders},
};

/// The kind of a dataset that is one file of plain bytes, and the name of that file.
pub const BYTES: &str = "bytes";

/// The least that a device may be limited to: log, spare, superblock, headers, what is held back, and a few extents.
const LEAST_BYTES: u64 = 32 << 20;

/// The header of stores before the first release, which had a folder for each dataset.
const OLD_HEADER_NAME: &str = "inshore.store";

/// A store: datasets on a set of devices. Cheap to clone; any number of processes may have it open.
#[derive(Clone, Debug)]
pub struct Store(pub(crate) Arc<Shared>);

/// A dataset's name, kind and size.
#[derive(Clone, Debug)]
pub struct DatasetSummary {
    /// Tells it from one of the same name that was removed: see [`Dataset::id`].
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Which crate's format it is in.
    pub kind: String,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes that it takes on devices, with all copies, parity and lists.
    pub stored_bytes: u64,
    /// Its files.
    pub files: usize,
    /// Whether nothing can be appended any more.
    pub sealed: bool,
    /// What guards it.
    pub redundancy: Redundancy,
}

impl DatasetSummary {
    fn of(record: &Arc<DatasetRecord>) -> DatasetSummary {
        DatasetSummary {
            id: record.id,
            name: record.name.clone(),
            kind: record.kind.clone(),
            bytes: record.bytes(),
            stored_bytes: record.runs.iter().map(|run| run.count as u64 * EXTENT_BYTES as u64).sum(),
            files: record.files.len(),
            sealed: record.sealed,
            redundancy: record.redundancy,
        }
    }
}

/// A range of a file that lies in one extent: the answer to the papers' query for physical addresses (BlueDBM, 2016
/// article, section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where the range begins in the file, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// The extent of each copy.
    pub places: Vec<Place>,
    /// Where the range begins in the extent, in bytes.
    pub extent_offset: u64,
}

/// Where the store lies if nobody says: `$INSHORE_STORE`, else `inshore` in the user's data directory
/// (`$XDG_DATA_HOME`, else `~/.local/share`). `None` where there is no home either.
pub fn default_store_path() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("INSHORE_STORE")
        .or_else(|| named("XDG_DATA_HOME").map(|data| data.join("inshore")))
        .or_else(|| named("HOME").map(|home| home.join(".local/share/inshore")))
}

impl Store {
    /// Opens the store that has a device in the folder `path`; makes the folder and the store where there is none.
    ///
    /// # Errors
    /// [`Error::NotAStore`] where the folder holds something else; [`Error::BadFormat`] where the store is of another
    /// version or damaged; [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        match Self::open_existing(path.as_ref()) {
            Err(Error::NoStore { .. }) => Self::make(&[path.as_ref()], None),
            opened => opened,
        }
    }

    /// Opens the store that has a device in the folder `path`. Its other devices are where they were, or where they are
    /// if all were moved together: at the same place seen from this one, or beside it. Where they are is written down by
    /// the next commit.
    ///
    /// # Errors
    /// [`Error::NoStore`]; [`Error::IsACopy`]; [`Error::Diverged`]; those of [`Store::open`].
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Store> {
        Self::open_folders(&[path])
    }

    /// The same where devices are in the folders `paths`: for those that nothing else leads to.
    ///
    /// # Errors
    /// Those of [`Store::open_existing`].
    pub fn open_folders(paths: &[impl AsRef<Path>]) -> Result<Store> {
        Self::open_without(paths, None)
    }

    /// Takes a device back into the store at `path` that went its own way while it was away: see [`Error::Diverged`].
    /// What was committed there only is given up. To be verified afterwards: where that wrote over something that the
    /// store still has, it is damaged. Gives the number of the device.
    ///
    /// # Errors
    /// [`Error::BadDevice`]; those of [`Store::open_existing`].
    pub fn rejoin(path: impl AsRef<Path>, given_up: impl AsRef<Path>) -> Result<u16> {
        let given_up = canonical(given_up.as_ref())?;
        let path = canonical(path.as_ref())?;
        if path == given_up {
            let what = "it is the one that names the store: name another one with --store".to_string();
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
        let mut whereabouts =
            Whereabouts { without: without.map(Path::to_path_buf), ..Whereabouts::default() };
        let (mut first, mut devices, mut failed) = (None, Vec::new(), Vec::new());
        let mut open = |path: &Path| -> Result<()> {
            let (number, superblock) = superblock_in(path)?;
            let entry = superblock.devices.iter().find(|entry| entry.number == number).cloned();
            devices.push(directory(path, entry.as_ref().and_then(|entry| entry.limit_bytes))?);
            whereabouts.known.extend(entry.map(|entry| (entry.path, path.to_path_buf())));
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
            // None of them says which store it is of. Those who were at work there said where its devices are.
            let told = failed.iter().flat_map(|(path, _)| told_folders(path));
            told.filter(|told| without != Some(told.as_path())).for_each(|told| drop(open(&told)));
        }
        let Some((path, number, superblock)) = first else {
            let (_, error) = failed.into_iter().next().expect("at least one folder");
            return Err(error);
        };
        // A drive that is known and cannot be read is as good as one that is not there.
        let is_known = |path: &Path| superblock.devices.iter().any(|entry| entry.path == path);
        if let Some((_, error)) = failed.into_iter().find(|(path, _)| !is_known(path)) {
            return Err(error);
        }
        // The home of the store is the folder of the first device that is there.
        let place_of = |entry: &DeviceEntry| match entry.number == number {
            true => Some(path.clone()),
            false => {
                let is_it = |device: &dyn Device| {
                    read_superblock(device).ok().flatten().is_some_and(|(number, found)| {
                        (number, found.uuid_of(number)) == (entry.number, Some(entry.uuid))
                    })
                };
                let found = whereabouts.find(entry, &superblock.devices, &is_it);
                found.and_then(|device| Some(device.folder()?.to_path_buf()))
            }
        };
        let home = superblock.devices.iter().find_map(place_of).unwrap_or_else(|| path.clone());
        Ok(Store(Shared::open(&home, devices, whereabouts.opener(), None)?))
    }

    /// Makes a store whose devices are the folders `paths`, which are made where they are not there and must be empty.
    /// Each may take `limit_bytes` of its file system, or all of it.
    ///
    /// # Errors
    /// [`Error::StoreExists`]; [`Error::NotAStore`] where a folder holds something else; [`Error::BadDevice`];
    /// [`Error::Io`].
    pub fn init(paths: &[impl AsRef<Path>], limit_bytes: Option<u64>) -> Result<Store> {
        if let Some(bytes) = limit_bytes.filter(|&bytes| bytes < LEAST_BYTES) {
            let (given, least) = (crate::format_bytes(bytes), crate::format_bytes(LEAST_BYTES));
            let path = paths.first().expect("at least one folder").as_ref().to_path_buf();
            let what = format!("{given} are too few for a device of a store: the least is {least}");
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
        // What lies in others first.
        made.sort_unstable_by_key(|path| std::cmp::Reverse(path.components().count()));
        let store = Self::make_in(paths, limit_bytes);
        if store.is_err() {
            // Only what is empty goes: another process may be about to do the same.
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
        // Before there is a store in them, and so for whoever finds one.
        for path in &folders {
            sync_names(path).map_err(|error| Error::io("sync the name of", path, error))?;
        }
        let home = folders.first().expect("at least one folder");
        let make = Some(NewStore { limit_bytes });
        Ok(Store(Shared::open(home, devices, Whereabouts::default().opener(), make)?))
    }

    /// The store on `devices`, or a new one if they hold none; `home` is a folder where those who are at work meet.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(home: impl AsRef<Path>, devices: Vec<Arc<dyn Device>>) -> Result<Store> {
        let make = Some(NewStore { limit_bytes: None });
        Ok(Store(Shared::open(home.as_ref(), devices, Box::new(|_, _, _| None), make)?))
    }

    /// The folder of its first device.
    pub fn path(&self) -> &Path {
        &self.0.home
    }

    /// The folders of its devices that are there: [`Store::open_folders`] finds it by them, wherever they were moved.
    pub fn folders(&self) -> Vec<PathBuf> {
        self.0.folders()
    }

    /// How many buffers of `buffer_bytes` keep all drives busy while a file is streamed: four extents for each drive that
    /// takes data, since neighbours in a file lie on different drives; but no more than a quarter of the budget, and
    /// two at least.
    pub fn stream_buffers(&self, budget: &Budget, buffer_bytes: usize) -> usize {
        let wanted = 4 * EXTENT_BYTES * self.0.open_devices().len();
        let affordable = (budget.memory_bytes() / 4).min(usize::MAX as u64) as usize;
        (wanted.min(affordable) / buffer_bytes).max(2)
    }

    /// The random number that the store was given when it was made, which stands on each of its devices.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.uuid()
    }

    /// Gives back what jobs of killed processes left behind: for who killed one. Otherwise the next job does that when it begins.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn give_back_of_dead(&self) -> Result<()> {
        self.0.bury_dead()
    }

    /// Starts a job, after giving back what dead jobs left behind.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn job(&self, budget: Budget, cancel: Cancel) -> Result<Job> {
        let scratch = self.0.join()?;
        Ok(Job::new(self.0.clone(), scratch, budget, cancel))
    }

    /// Begins a dataset. Nothing is visible before [`DatasetBuilder::commit`].
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NameExists`], at once and not after hours of work.
    pub fn create_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        check_name(name)?;
        if self.0.catalog()?.datasets.contains_key(name) {
            return Err(self.name_exists(name));
        }
        let record = DatasetRecord {
            id: random_u64(),
            name: name.to_string(),
            kind: kind.to_string(),
            sealed: true,
            redundancy: Redundancy::Copies(1),
            attributes: Vec::new(),
            files: Vec::new(),
            runs: Vec::new(),
        };
        Ok(DatasetBuilder::new(self, job, record, None))
    }

    /// Begins to append to the files of a dataset that is not sealed. Nothing is visible before
    /// [`DatasetBuilder::commit`]; who has the dataset open goes on reading what it was.
    ///
    /// Costs, for each file that grows, one more copy of its last extent (with parity: of its last group).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::Sealed`], [`Error::TooFewDevices`].
    pub fn append_to_dataset(&self, job: &Job, name: &str) -> Result<DatasetBuilder> {
        let base = self.dataset(name)?;
        if base.record.sealed {
            return Err(Error::Sealed { name: name.to_string(), store: self.path().to_path_buf() });
        }
        self.check_devices(base.record.redundancy)?;
        let record = (*base.record).clone();
        Ok(DatasetBuilder::new(self, job, record, Some(base)))
    }

    /// Whether there are as many devices as a dataset that is guarded like this needs.
    fn check_devices(&self, redundancy: Redundancy) -> Result<()> {
        let found = self.0.open_devices().len();
        if found < redundancy.devices() {
            let (store, missing) = (self.path().to_path_buf(), self.0.missing_devices());
            return Err(Error::TooFewDevices { store, redundancy, found, missing });
        }
        Ok(())
    }

    /// Seals a dataset: nothing can be appended any more. One that is sealed already stays so.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::Io`].
    pub fn seal(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let (name, not_found) = (name.to_string(), self.not_found(name));
        self.commit(move |catalog| match catalog.datasets.get(&name) {
            None => Err(not_found),
            Some(record) if record.sealed => Ok(Vec::new()),
            Some(record) => {
                Ok(vec![Edit::Put(Arc::new(DatasetRecord { sealed: true, ..(**record).clone() }))])
            }
        })
    }

    pub(crate) fn commit(
        &self,
        make: impl FnOnce(&crate::Catalog) -> Result<Vec<Edit>> + Send + 'static,
    ) -> Result<()> {
        self.0.commit(make).map_err(|failed| failed.error)
    }

    /// Opens a dataset with all its files.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::BadFormat`], [`Error::Io`].
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        check_name(name)?;
        let (catalog, pin) = self.0.pinned_catalog()?;
        let record = catalog.datasets.get(name).ok_or_else(|| self.not_found(name))?.clone();
        Ok(self.opened(record, &pin))
    }

    /// Opens all datasets as they are at one moment, by name, without what jobs keep for those that go on with them ([`Store::kept`]).
    /// This costs one look at the log, where [`Store::dataset`] for each costs one each.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFormat`].
    pub fn datasets(&self) -> Result<Vec<Dataset>> {
        let (catalog, pin) = self.0.pinned_catalog()?;
        let records = catalog.datasets.values().filter(|record| record.kind != KEPT);
        Ok(records.map(|record| self.opened(record.clone(), &pin)).collect())
    }

    fn opened(&self, record: Arc<DatasetRecord>, pin: &Arc<Pin>) -> Dataset {
        let open = |(number, file): (usize, &FileRecord)| {
            self.open_file(&record, number as u32, file, Kept::Pin(pin.clone()))
        };
        let files = record.files.iter().enumerate().map(open).collect();
        Dataset { record, files }
    }

    /// The files that `NAME` (all of a dataset's) or `NAME/FILE` (one of them) means.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn named_files(&self, named: &str) -> Result<Vec<NamedFile>> {
        let (name, wanted) = named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
        let dataset = self.dataset(name)?;
        let is_all = wanted.is_none() && dataset.files.len() == 1;
        let files: Vec<NamedFile> = zip(dataset.file_names(), &dataset.files)
            .filter(|(called, _)| wanted.is_none_or(|wanted| wanted == *called))
            .map(|(called, file)| NamedFile {
                dataset: name.to_string(),
                name: called.to_string(),
                is_all,
                file: file.clone(),
            })
            .collect();
        if files.is_empty() { Err(self.not_found(named)) } else { Ok(files) }
    }

    pub(crate) fn open_file(
        &self,
        record: &DatasetRecord,
        number: u32,
        file: &FileRecord,
        kept: Kept,
    ) -> CheckedFile {
        let label = format!("{}/{}", record.name, file.name);
        let identity = Identity { dataset: record.id, file: number, level: 0 };
        CheckedFile::of_record(label, file, identity, record.redundancy, kept)
    }

    /// All datasets, by name, without what jobs keep for those that go on with them ([`Store::kept`]).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFormat`].
    pub fn list(&self) -> Result<Vec<DatasetSummary>> {
        let catalog = self.0.catalog()?;
        let datasets = catalog.datasets.values().filter(|record| record.kind != KEPT);
        Ok(datasets.map(DatasetSummary::of).collect())
    }

    /// Removes a dataset. Jobs that have it open go on undisturbed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::Io`].
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_dataset(name, None)
    }

    /// Removes a dataset if it is the one with this number ([`Dataset::id`]), and leaves one that was made anew by this name.
    ///
    /// # Errors
    /// As [`Store::remove`]; [`Error::NotFound`] for another one, too.
    pub fn remove_exactly(&self, name: &str, id: u64) -> Result<()> {
        self.remove_dataset(name, Some(id))
    }

    fn remove_dataset(&self, name: &str, id: Option<u64>) -> Result<()> {
        check_name(name)?;
        let (name, not_found) = (name.to_string(), self.not_found(name));
        self.commit(move |catalog| match catalog.datasets.get(&name) {
            Some(record) if id.is_none_or(|id| record.id == id) => Ok(vec![Edit::Remove(name)]),
            _ => Err(not_found),
        })
    }

    fn name_exists(&self, name: &str) -> Error {
        Error::NameExists { name: name.to_string(), store: self.path().to_path_buf() }
    }

    fn not_found(&self, name: &str) -> Error {
        Error::NotFound { name: name.to_string(), store: self.path().to_path_buf() }
    }
}

fn directory(path: &Path, limit_bytes: Option<u64>) -> Result<Arc<dyn Device>> {
    let device = Directory::open(path, limit_bytes).map_err(|error| Error::io("open device", path, error))?;
    Ok(Arc::new(device))
}

/// The superblock of the device in the folder `path`, and its number.
fn superblock_in(path: &Path) -> Result<(u16, Superblock)> {
    let device = directory(path, None)?;
    if let Some(found) = read_superblock(device.as_ref())? {
        return Ok(found);
    }
    let is_blank = check_is_blank(device.as_ref());
    // What is there may be of another process that made a store just now: it wrote the superblock first.
    if let Some(found) = read_superblock(device.as_ref())? {
        return Ok(found);
    }
    is_blank.and_then(|()| check_is_empty(path))?;
    Err(Error::NoStore { path: path.to_path_buf() })
}

/// Where the devices of a store may be.
#[derive(Clone, Debug, Default)]
struct Whereabouts {
    /// Folders that were named, and where their superblocks say that they are.
    known: Vec<(PathBuf, PathBuf)>,
    /// A folder that is to count as absent.
    without: Option<PathBuf>,
}

impl Whereabouts {
    /// Looks for a device of `all`: where it was; where another one was, or beside that, since drives may have changed
    /// places; and if it went together with one that is known, at each of these places seen from that one, or beside it.
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

/// Where `was` is, if `old` is `new` now and what lies above both went along.
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

/// Whether somebody began to make a store there, and did not live to finish it on this device: it has the first of all
/// superblocks. Nothing was ever put into that store, since whoever does writes all superblocks anew.
fn is_unfinished(path: &Path) -> bool {
    let device = path.canonicalize().ok().and_then(|path| directory(&path, None).ok());
    let found = device.and_then(|device| read_superblock(device.as_ref()).ok().flatten());
    found.is_some_and(|(_, superblock)| superblock.sequence == 1)
}

/// Refuses a new device that lies in another one, or another in it.
pub(crate) fn check_lies_apart(path: &Path, others: &[PathBuf]) -> Result<()> {
    let bad = |what: String| Err(Error::BadDevice { path: path.to_path_buf(), what });
    for other in others {
        if path == other {
            return bad("it is named twice".to_string());
        }
        if path.starts_with(other) || other.starts_with(path) {
            return bad(format!("it and {} lie one in the other", other.display()));
        }
    }
    for above in path.ancestors().skip(1) {
        if above.join("segment-00000000").is_file() {
            return bad(format!("it lies in {}, which is a device of a store", above.display()));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good =
        name.len() <= 100 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
    if good { Ok(()) } else { Err(Error::BadName { name: name.to_string() }) }
}

/// Whether a store may be made in a folder without one: nothing is in it but what another process makes that does
/// the same right now.
fn check_is_empty(path: &Path) -> Result<()> {
    let list = |error| Error::io("list", path, error);
    for entry in fs::read_dir(path).map_err(list)? {
        let name = entry.map_err(list)?.file_name().to_string_lossy().into_owned();
        if name == OLD_HEADER_NAME {
            return Err(Error::BadFormat {
                path: path.to_path_buf(),
                what: "version of the store",
                found: "1, from before the first release".to_string(),
                expected: "2 or 3".to_string(),
            });
        }
        if name != "scratch" && name != "segment-00000000" && name != "lost+found" {
            return Err(Error::NotAStore { path: path.to_path_buf() });
        }
    }
    Ok(())
}

/// A dataset in the making, or one that grows; dropping it without [`DatasetBuilder::commit`] leaves nothing.
#[derive(Debug)]
pub struct DatasetBuilder {
    store: Store,
    job: Job,
    record: DatasetRecord,
    /// What it was before something is appended.
    base: Option<Dataset>,
    /// Files that were begun, and those among them that were not ended yet.
    begun: u32,
    unended: u32,
    /// What the commit takes over from the job.
    extents: Vec<Arc<Extents>>,
    /// What the files that grew no longer need.
    dropped: Vec<Place>,
}

/// The buffers of a writer whose speed does not matter much.
const WRITE_BUFFERS: usize = 2;

impl DatasetBuilder {
    fn new(store: &Store, job: &Job, record: DatasetRecord, base: Option<Dataset>) -> DatasetBuilder {
        let (store, job, begun) = (store.clone(), job.clone(), record.files.len() as u32);
        let (extents, dropped) = Default::default();
        DatasetBuilder { store, job, record, base, begun, unended: 0, extents, dropped }
    }

    /// Guards the dataset against damage and the loss of a device: what is damaged or missing is then made from the
    /// rest and repaired. Two copies cost twice the space and the writing; parity of k+m costs m/k more of both, and
    /// memory for k + m extents of 2 MiB while each file is written. To be called before the first file is begun.
    ///
    /// # Errors
    /// [`Error::TooFewDevices`].
    pub fn redundancy(&mut self, redundancy: Redundancy) -> Result<()> {
        assert!(self.begun == 0, "redundancy is chosen before files are written");
        assert!(redundancy.is_sound(), "{redundancy:?}");
        self.store.check_devices(redundancy)?;
        self.record.redundancy = redundancy;
        Ok(())
    }

    /// What guards the dataset.
    pub fn guarded_by(&self) -> Redundancy {
        self.record.redundancy
    }

    /// Leaves the dataset open: [`Store::append_to_dataset`] makes it longer until [`Store::seal`].
    pub fn unsealed(&mut self) {
        self.record.sealed = false;
    }

    /// Begins a file: see [`FileWriter::create`] for `block_bytes` and `buffer_bytes`. Files are ended in the order
    /// in which they were begun.
    pub fn file(&mut self, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        self.file_with_buffers(name, block_bytes, buffer_bytes, WRITE_BUFFERS)
    }

    /// The same with `buffers` buffers, of which all but one can be on their way: four of 1 MiB keep a drive busy.
    pub fn file_with_buffers(
        &mut self,
        name: &str,
        block_bytes: usize,
        buffer_bytes: usize,
        buffers: usize,
    ) -> Result<FileWriter> {
        let identity = Identity { dataset: self.record.id, file: self.begun, level: 0 };
        let (job, redundancy) = (&self.job, self.record.redundancy);
        let buffers = (buffer_bytes, buffers);
        let writer =
            FileWriter::of_dataset(job, name.to_string(), identity, redundancy, block_bytes, buffers, None)?;
        self.begun += 1;
        self.unended += 1;
        Ok(writer)
    }

    /// The check block of a file that is there already and can be gone on with.
    pub fn block_bytes(&self, name: &str) -> Option<usize> {
        Some(self.base.as_ref()?.file(name)?.block_bytes())
    }

    /// Goes on with a file of a dataset that grows; one that is not there begins, with check blocks of
    /// `block_bytes`.
    ///
    /// # Errors
    /// As [`FileWriter::write`]; damage in the last extent of what is there.
    pub fn append(
        &mut self,
        name: &str,
        block_bytes: usize,
        buffer_bytes: usize,
        buffers: usize,
    ) -> Result<FileWriter> {
        let Some(number) = self.record.files.iter().position(|file| file.name == name) else {
            return self.file_with_buffers(name, block_bytes, buffer_bytes, buffers);
        };
        let base = self.base.as_ref().expect("a file that is there has a dataset");
        let file = base.files[number].clone();
        let (redundancy, extents) = (self.record.redundancy, file.extents());
        // Whole extents stay, with parity whole groups.
        let group_bytes = redundancy.group() * EXTENT_BYTES as u64;
        let kept = file.len() / group_bytes * redundancy.group();
        let groups = kept / redundancy.group();
        let mut begun = Begun { refs: Vec::new(), parity: Vec::new(), extents: kept };
        for copy in 0..redundancy.copies() as u64 {
            begun.refs.push(file.references_at(&self.job, copy * extents, kept)?);
            let dropped = file.references_at(&self.job, copy * extents + kept, extents - kept)?;
            self.dropped.extend(dropped.iter().map(|reference| reference.place));
        }
        let first_parity = extents * redundancy.copies() as u64;
        let (all, parity) = (file.positions() - first_parity, groups * redundancy.parity());
        begun.parity = file.references_at(&self.job, first_parity, parity)?;
        let dropped = file.references_at(&self.job, first_parity + parity, all - parity)?;
        self.dropped.extend(dropped.iter().map(|reference| reference.place));
        if let Some(list) = file.list() {
            let dropped = list.references_at(&self.job, 0, list.positions())?;
            self.dropped.extend(dropped.iter().map(|reference| reference.place));
        }
        let identity = Identity { dataset: self.record.id, file: number as u32, level: 0 };
        let block_bytes = file.block_bytes();
        let buffer_bytes = buffer_bytes.next_multiple_of(block_bytes);
        let (job, buffers) = (&self.job, (buffer_bytes, buffers));
        let name = name.to_string();
        let mut writer =
            FileWriter::of_dataset(job, name, identity, redundancy, block_bytes, buffers, Some(begun))?;
        let mut offset = kept * EXTENT_BYTES as u64;
        while offset < file.len() {
            let end = file.len().min(offset + block_bytes as u64);
            let buffer = crate::log::metadata_buffer(block_bytes)?;
            let (buffer, wanted) = file.submit_read(job, offset..end, buffer)?.wait()?;
            writer.write(&buffer[wanted])?;
            offset = end;
        }
        self.unended += 1;
        Ok(writer)
    }

    /// Ends a file that [`Self::file`] or [`Self::append`] began.
    pub fn add(&mut self, writer: FileWriter) -> Result<()> {
        self.end(writer).map(drop)
    }

    /// Ends a file that [`Self::file`] began, and opens it for reading, before the dataset as a whole is there.
    pub fn add_and_open(&mut self, writer: FileWriter) -> Result<CheckedFile> {
        let (number, extents) = self.end(writer)?;
        let file = &self.record.files[number as usize];
        Ok(self.store.open_file(&self.record, number, file, Kept::Extents(extents)))
    }

    fn end(&mut self, writer: FileWriter) -> Result<(u32, Vec<Arc<Extents>>)> {
        let number = writer.number();
        let (file, extents) = writer.seal()?;
        if self.record.files.len() <= number as usize {
            self.record.files.resize(number as usize + 1, FileRecord::default());
        }
        self.record.files[number as usize] = file;
        self.extents.extend(extents.iter().cloned());
        self.unended -= 1;
        Ok((number, extents))
    }

    /// Bytes of data in the files that were added.
    pub fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Publishes the dataset. When this returns, it survives a power loss. Of a dataset that grew, `attributes` take
    /// the place of those that it had.
    ///
    /// # Errors
    /// [`Error::NameExists`] and [`Error::Changed`] where another job was faster; [`Error::Io`];
    /// [`Error::Cancelled`].
    pub fn commit(mut self, attributes: &[u8]) -> Result<()> {
        self.job.check_cancelled()?;
        assert!(self.unended == 0, "a file was begun and not added");
        self.record.attributes = attributes.to_vec();
        let places: Vec<Place> = self.extents.iter().flat_map(|extents| extents.places()).collect();
        let touched = places.clone();
        self.record.runs = Run::without(&self.record.runs, &Run::collect(std::mem::take(&mut self.dropped)));
        self.record.runs.extend(Run::collect(places));
        let base = self.base.as_ref().map(|base| base.record.clone());
        publish(&self.store, &self.job, Arc::new(self.record), base, &touched, || {
            self.extents.iter().for_each(|extents| extents.keep());
        })
    }
}

/// Makes what was written to `places` durable and then `record` the dataset of its name, if that is still `base`.
/// `keep` is called unless it is certain that the record was not written.
pub(crate) fn publish(
    store: &Store,
    job: &Job,
    record: Arc<DatasetRecord>,
    base: Option<Arc<DatasetRecord>>,
    places: &[Place],
    keep: impl FnOnce(),
) -> Result<()> {
    let mut touched: Vec<u16> = places.iter().map(|place| place.device).collect();
    touched.sort_unstable();
    touched.dedup();
    // First the data, then what says that it is there.
    for number in touched {
        let device = job.device(number)?;
        device.sync().map_err(|error| Error::io("sync", device.name(), error))?;
    }
    let (name, path) = (record.name.clone(), store.path().to_path_buf());
    let done = store.0.commit(move |catalog| match (catalog.datasets.get(&name), base) {
        (None, None) => Ok(vec![Edit::Put(record)]),
        (Some(found), Some(base)) if *found == base => Ok(vec![Edit::Put(record)]),
        (Some(_), None) => Err(Error::NameExists { name, store: path }),
        (_, Some(_)) => Err(Error::Changed { name, store: path }),
    });
    // After an error of the log nobody knows whether the dataset is there, so its extents must stay.
    if !matches!(&done, Err(Failed { is_in_doubt: false, .. })) {
        keep();
    }
    done.map_err(|failed| failed.error)
}

/// A dataset with its files open.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(crate) record: Arc<DatasetRecord>,
    pub(crate) files: Vec<CheckedFile>,
}

/// A file of a dataset, as it was asked for.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// The dataset's name.
    pub dataset: String,
    /// The file's.
    pub name: String,
    /// Whether the dataset was asked for, and this is all of it.
    pub is_all: bool,
    /// What is in it.
    pub file: CheckedFile,
}

impl NamedFile {
    /// What it is called where files that are no datasets' are named too: `store:NAME`, or `store:NAME/FILE`.
    pub fn title(&self) -> String {
        let NamedFile { dataset, name, is_all, .. } = self;
        if *is_all { format!("store:{dataset}") } else { format!("store:{dataset}/{name}") }
    }
}

impl Dataset {
    /// A random number that it was given when it was made. A dataset never changes, so what was read of this one stays
    /// true, and one that has the same name later has another number.
    pub fn id(&self) -> u64 {
        self.record.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Which crate's format it is in.
    pub fn kind(&self) -> &str {
        &self.record.kind
    }

    /// That crate's own header.
    pub fn attributes(&self) -> &[u8] {
        &self.record.attributes
    }

    /// Bytes of data in all files.
    pub fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// The names of its files, in order.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.record.files.iter().map(|file| file.name.as_str())
    }

    /// The file of this name, if the dataset has it.
    pub fn file(&self, name: &str) -> Option<CheckedFile> {
        let place = self.record.files.iter().position(|file| file.name == name)?;
        Some(self.files[place].clone())
    }

    /// What can be said of it in a line.
    pub fn summary(&self) -> DatasetSummary {
        DatasetSummary::of(&self.record)
    }

    /// Where a range of a file lies, in order; empty where the file ends before.
    ///
    /// # Errors
    /// I/O and damage, where the list of a large file's extents is read.
    pub fn locate(
        &self,
        job: &Job,
        file: &CheckedFile,
        range: std::ops::Range<u64>,
    ) -> Result<Vec<Location>> {
        let range = range.start..range.end.min(file.len());
        let copies = self.record.redundancy.copies();
        let piece = |(extent, extent_offset, bytes): (u64, usize, std::ops::Range<usize>)| {
            let places = (0..copies).map(|copy| file.place_of(job, extent, copy)).collect::<Result<_>>()?;
            let (offset, len) = (range.start + bytes.start as u64, bytes.len() as u64);
            Ok(Location { offset, len, places, extent_offset: extent_offset as u64 })
        };
        crate::space::extents::pieces(range.clone()).map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &Store, name: &str, bytes: &[u8]) -> Result<()> {
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default())?;
        let mut builder = store.create_dataset(&job, name, "test")?;
        let mut writer = builder.file("bytes", 4096, 4096)?;
        writer.write(bytes)?;
        builder.add(writer)?;
        builder.commit(b"attributes")
    }

    #[test]
    fn a_dataset_is_there_after_commit_and_gone_after_remove() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("new/store")).unwrap();
        put(&store, "a", b"hello").unwrap();
        let again = Store::open(store.path()).unwrap();
        let dataset = again.dataset("a").unwrap();
        assert_eq!((dataset.attributes(), dataset.bytes(), dataset.kind()), (&b"attributes"[..], 5, "test"));
        assert_eq!(again.list().unwrap()[0].name, "a");
        assert!(matches!(put(&store, "a", b"x"), Err(Error::NameExists { .. })));
        let id = store.dataset("a").unwrap().id();
        let other = store.remove_exactly("a", id ^ 1);
        assert!(matches!(other, Err(Error::NotFound { .. })));
        store.remove_exactly("a", id).unwrap();
        assert!(matches!(store.dataset("a"), Err(Error::NotFound { .. })));
        assert!(matches!(store.remove("a"), Err(Error::NotFound { .. })));
        drop((again, dataset, store));
        assert_eq!(fs::read_dir(folder.path().join("new/store/scratch")).unwrap().count(), 1); // the lock
    }

    #[test]
    fn the_end_of_a_job_takes_nothing_from_what_it_wrote_over_a_removed_dataset() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_on(folder.path(), vec![Arc::new(crate::Memory::new(300))]).unwrap();
        // The first takes one extent, and what it leaves free is used again by the second, which takes more.
        put(&store, "small", b"hello").unwrap();
        store.remove("small").unwrap();
        let bytes: Vec<u8> = (0..3 * EXTENT_BYTES).map(|n| (n * 7 + n / 251) as u8).collect();
        put(&store, "large", &bytes).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let file = store.dataset("large").unwrap().file("bytes").unwrap();
        let mut reader = crate::FileReader::new(&job, &file, 0..file.len(), 65536).unwrap();
        let mut found = Vec::new();
        while let Some(piece) = reader.next_piece().unwrap() {
            found.extend_from_slice(piece);
        }
        assert!(found == bytes);
    }

    #[test]
    fn a_dataset_that_was_not_committed_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let mut builder = store.create_dataset(&job, "a", "test").unwrap();
        let mut writer = builder.file("bytes", 4096, 4096).unwrap();
        writer.write(&[1; 10_000]).unwrap();
        drop((builder, writer, job));
        assert!(store.list().unwrap().is_empty());
        assert_eq!(fs::read_dir(store.path().join("scratch")).unwrap().count(), 1);
    }

    #[test]
    fn of_two_jobs_with_one_name_the_second_to_commit_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let late = store.create_dataset(&job, "a", "test").unwrap();
        put(&store, "a", b"first").unwrap();
        assert!(matches!(late.commit(&[]), Err(Error::NameExists { .. })));
        assert_eq!(store.dataset("a").unwrap().bytes(), 5);
    }

    #[test]
    fn a_removed_dataset_stays_readable_for_who_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        put(&store, "a", &[9; 10_000]).unwrap();
        let dataset = store.dataset("a").unwrap();
        store.remove("a").unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let file = dataset.file("bytes").unwrap();
        let mut reader = crate::FileReader::new(&job, &file, 0..10_000, 4096).unwrap();
        let mut count = 0;
        while let Some(piece) = reader.next_piece().unwrap() {
            assert!(piece.iter().all(|&byte| byte == 9));
            count += piece.len();
        }
        assert_eq!(count, 10_000);
    }

    #[test]
    fn a_dataset_is_pinned_as_long_as_any_thread_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        put(&store, "a", b"hello").unwrap();
        let is_pinned = || {
            let owners = fs::read_dir(folder.path().join("scratch")).unwrap();
            owners.flatten().any(|owner| owner.path().join("pin").exists())
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let dataset = store.dataset("a").unwrap();
                        assert!(is_pinned());
                        drop(dataset);
                    }
                });
            }
        });
        assert!(!is_pinned());
    }

    #[test]
    fn what_is_damaged_in_one_copy_is_read_from_the_other_and_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let devices: Vec<Arc<crate::Memory>> = (0..2).map(|_| Arc::new(crate::Memory::new(300))).collect();
        let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        let store = Store::open_on(folder.path(), all).unwrap();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let job = store.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
        let mut builder = store.create_dataset(&job, "a", "test").unwrap();
        builder.redundancy(Redundancy::Copies(2)).unwrap();
        let mut writer = builder.file("bytes", 4096, 65536).unwrap();
        writer.write(&bytes).unwrap();
        builder.add(writer).unwrap();
        builder.commit(&[]).unwrap();
        drop(job);
        let read = || {
            let job = store.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
            let file = store.dataset("a").unwrap().file("bytes").unwrap();
            let mut reader = crate::FileReader::new(&job, &file, 0..file.len(), 65536)?;
            let mut found = Vec::new();
            while let Some(piece) = reader.next_piece()? {
                found.extend_from_slice(piece);
            }
            assert!(found == bytes);
            Ok::<u64, Error>(job.counters().repairs())
        };
        assert_eq!(read().unwrap(), 0);
        // A bit in every page of one device that is neither superblock nor log.
        let damage = |device: &crate::Memory| {
            for (extent, page) in
                device.written().into_iter().filter(|(extent, _)| ![1, 2, 3].contains(extent))
            {
                device.change_page(extent, page, |page| page[100] ^= 4);
            }
        };
        damage(&devices[0]);
        assert!(read().unwrap() > 0, "what lay first on the damaged device was repaired");
        assert_eq!(read().unwrap(), 0, "and is whole now");
        // Damage in both copies is an error and never wrong bytes.
        damage(&devices[0]);
        damage(&devices[1]);
        assert!(read().is_err());
        let alone = Store::open(folder.path().join("alone")).unwrap();
        let job = alone.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
        let refused = alone.create_dataset(&job, "a", "test").unwrap().redundancy(Redundancy::Copies(2));
        assert!(matches!(refused, Err(Error::TooFewDevices { found: 1, .. })));
    }

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
        // One copy of the superblock is damaged, then both.
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
