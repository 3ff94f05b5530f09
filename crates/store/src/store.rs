//! Named datasets on a set of devices.
//!
//! ```text
//!   DIR/segment-00000000, ...   128 extents of 2 MiB each; extent 1 of the first holds the superblock
//!   DIR/scratch/...             who is at work (see `scratch.rs`); in the folder of the first device only
//! ```
//!
//! A dataset is written into extents that nobody else uses, made durable, and exists from the moment in which one
//! record of the log says so. So at every instant, after a kill or a power loss too, there is the whole dataset or none
//! of it. Whoever opened it keeps its extents from being used again, so that removing it disturbs no job.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Budget, Cancel, CheckedFile, DatasetRecord, Device, Directory, Edit, Error, FileRecord, FileWriter, Job,
    Place, Result,
    catalog::Run,
    checked::{Extents, Identity, Kept},
    log::read_superblock,
    scratch::random_u64,
    shared::Shared,
};

/// The kind of a dataset that is one file of plain bytes, and the name of that file.
pub const BYTES: &str = "bytes";

/// The header of stores before the first release, which had a folder for each dataset.
const OLD_HEADER_NAME: &str = "inshore.store";

/// A store: datasets on a set of devices. Cheap to clone; any number of processes may have it open.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

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
        let path = path.as_ref();
        fs::create_dir_all(path).map_err(|error| Error::io("create folder", path, error))?;
        let path = path.canonicalize().map_err(|error| Error::io("open", path, error))?;
        let device = directory(&path)?;
        let Some((number, superblock)) = read_superblock(device.as_ref())? else {
            check_is_empty(&path)?;
            return Ok(Store(Shared::open(&path, vec![device], Box::new(open_entry))?));
        };
        // Those who are at work meet in the folder of the first device.
        let first = superblock.devices.first().filter(|first| first.number != number);
        let home = first.map_or(path, |first| PathBuf::from(&first.path));
        Ok(Store(Shared::open(&home, vec![device], Box::new(open_entry))?))
    }

    /// The store on `devices`, or a new one if they hold none; `home` is a folder where those who are at work meet.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(home: impl AsRef<Path>, devices: Vec<Arc<dyn Device>>) -> Result<Store> {
        let opener = |entry: &crate::DeviceEntry| Err(Error::NoDevice { number: entry.number });
        Ok(Store(Shared::open(home.as_ref(), devices, Box::new(opener))?))
    }

    /// The folder of its first device.
    pub fn path(&self) -> &Path {
        self.0.home()
    }

    /// Starts a job, after giving back what dead jobs left behind.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn job(&self, budget: Budget, cancel: Cancel) -> Result<Job> {
        let scratch = self.0.join()?;
        Job::new(self.0.clone(), scratch, budget, cancel)
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
            copies: 1,
            attributes: Vec::new(),
            files: Vec::new(),
            runs: Vec::new(),
        };
        Ok(DatasetBuilder { store: self.clone(), job: job.clone(), record, begun: 0, extents: Vec::new() })
    }

    /// Opens a dataset with all its files.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::BadFormat`], [`Error::Io`].
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        check_name(name)?;
        let (catalog, pin) = self.0.pinned_catalog()?;
        let record = catalog.datasets.get(name).ok_or_else(|| self.not_found(name))?.clone();
        let open = |(number, file): (usize, &FileRecord)| {
            self.open_file(&record, number as u32, file, Kept::Pin(pin.clone()))
        };
        let files = record.files.iter().enumerate().map(open).collect();
        Ok(Dataset { record, files })
    }

    fn open_file(&self, record: &DatasetRecord, number: u32, file: &FileRecord, kept: Kept) -> CheckedFile {
        let label = format!("{}/{}", record.name, file.name);
        let identity = Identity { dataset: record.id, file: number, level: 0 };
        CheckedFile::of_record(&self.0, label, file, identity, record.copies as usize, kept)
    }

    /// All datasets, by name.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFormat`].
    pub fn list(&self) -> Result<Vec<DatasetSummary>> {
        let catalog = self.0.catalog()?;
        let summary = |record: &Arc<DatasetRecord>| DatasetSummary {
            id: record.id,
            name: record.name.clone(),
            kind: record.kind.clone(),
            bytes: record.bytes(),
        };
        Ok(catalog.datasets.values().map(summary).collect())
    }

    /// Removes a dataset. Jobs that have it open go on undisturbed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::Io`].
    pub fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.0.commit(|catalog| match catalog.datasets.contains_key(name) {
            true => Ok(vec![Edit::Remove(name.to_string())]),
            false => Err(self.not_found(name)),
        })
    }

    fn name_exists(&self, name: &str) -> Error {
        Error::NameExists { name: name.to_string(), store: self.path().to_path_buf() }
    }

    fn not_found(&self, name: &str) -> Error {
        Error::NotFound { name: name.to_string(), store: self.path().to_path_buf() }
    }
}

fn directory(path: &Path) -> Result<Arc<dyn Device>> {
    let device = Directory::open(path, None).map_err(|error| Error::io("open device", path, error))?;
    Ok(Arc::new(device))
}

fn open_entry(entry: &crate::DeviceEntry) -> Result<Arc<dyn Device>> {
    directory(Path::new(&entry.path))
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
                expected: "2".to_string(),
            });
        }
        if name != "scratch" && name != "segment-00000000" && name != "lost+found" {
            return Err(Error::NotAStore { path: path.to_path_buf() });
        }
    }
    Ok(())
}

/// A dataset in the making; dropping it without [`DatasetBuilder::commit`] leaves nothing.
#[derive(Debug)]
pub struct DatasetBuilder {
    store: Store,
    job: Job,
    record: DatasetRecord,
    /// Files that were begun.
    begun: u32,
    /// What the commit takes over from the job.
    extents: Vec<Arc<Extents>>,
}

impl DatasetBuilder {
    /// Keeps every extent on two devices, so that what is damaged on one is read from the other and repaired. Costs
    /// twice the space and twice the writing. To be called before the first file is begun.
    ///
    /// # Errors
    /// [`Error::NoSecondDevice`].
    pub fn two_copies(&mut self) -> Result<()> {
        assert!(self.begun == 0, "copies are chosen before files are written");
        if self.store.0.devices().len() < 2 {
            return Err(Error::NoSecondDevice { store: self.store.path().to_path_buf() });
        }
        self.record.copies = 2;
        Ok(())
    }

    /// Begins a file: see [`FileWriter::create`] for `block_bytes` and `buffer_bytes`. Files are ended in the order
    /// in which they were begun.
    pub fn file(&mut self, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        let identity = Identity { dataset: self.record.id, file: self.begun, level: 0 };
        self.begun += 1;
        let copies = self.record.copies as usize;
        FileWriter::of_dataset(&self.job, name.to_string(), identity, copies, block_bytes, buffer_bytes)
    }

    /// Ends a file that [`Self::file`] began.
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
        Ok((number, extents))
    }

    /// Bytes of data in the files that were added.
    pub fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Publishes the dataset. When this returns, it survives a power loss.
    ///
    /// # Errors
    /// [`Error::NameExists`] where another job was faster; [`Error::Io`]; [`Error::Cancelled`].
    pub fn commit(mut self, attributes: &[u8]) -> Result<()> {
        self.job.check_cancelled()?;
        assert!(self.record.files.len() == self.begun as usize, "a file was begun and not added");
        self.record.attributes = attributes.to_vec();
        let places: Vec<Place> = self.extents.iter().flat_map(|extents| extents.places()).collect();
        let mut touched: Vec<u16> = places.iter().map(|place| place.device).collect();
        touched.sort_unstable();
        touched.dedup();
        self.record.runs = Run::collect(places);
        // First the data, then what says that it is there.
        for number in touched {
            let device = self.job.device(number)?;
            device.sync().map_err(|error| Error::io("sync", device.name(), error))?;
        }
        let record = Arc::new(self.record);
        let done = self.store.0.commit(|catalog| match catalog.datasets.contains_key(&record.name) {
            true => Err(self.store.name_exists(&record.name)),
            false => Ok(vec![Edit::Put(record.clone())]),
        });
        // After an error of the log nobody knows whether the dataset is there, so its extents must stay.
        if !matches!(done, Err(Error::NameExists { .. })) {
            self.extents.iter().for_each(|extents| extents.keep());
        }
        done
    }
}

/// A dataset with its files open.
#[derive(Clone, Debug)]
pub struct Dataset {
    record: Arc<DatasetRecord>,
    files: Vec<CheckedFile>,
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

    /// Where the byte `offset` of a file lies: for each copy the device and the extent, and the offset in the extent.
    ///
    /// # Errors
    /// I/O and damage, where the list of a large file's extents is read.
    ///
    /// # Panics
    /// Where the file ends before.
    pub fn locate(&self, job: &Job, file: &CheckedFile, offset: u64) -> Result<(Vec<Place>, usize)> {
        assert!(offset < file.len(), "offset {offset} of {} bytes", file.len());
        let (extent, rest) = (offset / crate::EXTENT_BYTES as u64, offset % crate::EXTENT_BYTES as u64);
        let places = (0..self.record.copies as usize).map(|copy| file.place_of(job, extent, copy));
        Ok((places.collect::<Result<_>>()?, rest as usize))
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
        store.remove("a").unwrap();
        assert!(matches!(store.dataset("a"), Err(Error::NotFound { .. })));
        assert!(matches!(store.remove("a"), Err(Error::NotFound { .. })));
        drop((again, dataset, store));
        assert_eq!(fs::read_dir(folder.path().join("new/store/scratch")).unwrap().count(), 1); // the lock
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
        builder.two_copies().unwrap();
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
        let refused = alone.create_dataset(&job, "a", "test").unwrap().two_copies();
        assert!(matches!(refused, Err(Error::NoSecondDevice { .. })));
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
