//! A folder of immutable, named datasets.
//!
//! ```text
//!   STORE/inshore.store             magic, version, the store's UUID
//!   STORE/datasets/NAME/manifest    what the dataset consists of
//!   STORE/datasets/NAME/...         its files
//!   STORE/scratch/...               what jobs have in hand
//! ```
//!
//! A dataset is written in the job's scratch folder, made durable file by file, and published by one rename
//! that fails where the name exists. So at every instant, after a kill or a power loss too, there is the
//! whole dataset or none of it. Whoever opened it keeps its open files, so that removing it disturbs no job.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    Budget, Cancel, CheckedFile, Device, Directory, Error, FileWriter, Job, Manifest, Result,
    scratch::{Scratch, random_u64},
};

const HEADER_NAME: &str = "inshore.store";
const HEADER_MAGIC: &[u8; 8] = b"INSHSTOR";
const HEADER_VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;

/// A store: a folder on some file system. Cheap to clone; any number of processes may have it open.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
    device: Arc<dyn Device>,
}

/// A dataset's name, kind and size.
#[derive(Clone, Debug)]
pub struct DatasetSummary {
    /// Its name.
    pub name: String,
    /// Which crate's format it is in.
    pub kind: String,
    /// Bytes on flash.
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
    /// Opens the store in the folder `path`; makes the folder and the store where there is none.
    ///
    /// # Errors
    /// [`Error::NotAStore`] where the folder holds something else; [`Error::BadFormat`] where the header is of
    /// another version or damaged; [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Self::open_on(path, Arc::new(Directory::new()))
    }

    /// As [`Store::open`], with datasets and scratch on `device`.
    pub fn open_on(path: impl AsRef<Path>, device: Arc<dyn Device>) -> Result<Store> {
        let path = path.as_ref();
        fs::create_dir_all(path).map_err(|error| Error::io("create folder", path, error))?;
        let path = path.canonicalize().map_err(|error| Error::io("open", path, error))?;
        let header = path.join(HEADER_NAME);
        if !header.exists() {
            init(&path, &header)?;
        }
        check_header(&header)?;
        Ok(Store { path, device })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a job, after removing what dead jobs left behind.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn job(&self, budget: Budget, cancel: Cancel) -> Result<Job> {
        let scratch = Scratch::create(&self.path.join("scratch"))?;
        Job::new(self.device.clone(), scratch, budget, cancel)
    }

    /// Begins a dataset. Nothing is visible before [`DatasetBuilder::commit`].
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NameExists`], at once and not after hours of work.
    pub fn create_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        check_name(name)?;
        if self.dataset_path(name).exists() {
            return Err(self.name_exists(name));
        }
        let folder = job.scratch_path(&job.scratch_name("dataset"));
        fs::create_dir(&folder).map_err(|error| Error::io("create folder", &folder, error))?;
        Ok(DatasetBuilder {
            store: self.clone(),
            job: job.clone(),
            name: name.to_string(),
            folder,
            manifest: Manifest { kind: kind.to_string(), ..Manifest::default() },
        })
    }

    /// Opens a dataset with all its files.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::BadFormat`], [`Error::Io`].
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        check_name(name)?;
        let path = self.dataset_path(name);
        if !path.is_dir() {
            return Err(Error::NotFound { name: name.to_string(), store: self.path.clone() });
        }
        let manifest = Manifest::read(&path.join("manifest"))?;
        let mut files = Vec::with_capacity(manifest.files.len());
        for record in &manifest.files {
            let file_path = path.join(&record.name);
            let file = self.device.open(&file_path).map_err(|error| Error::io("open", &file_path, error))?;
            let label = format!("{name}/{}", record.name);
            files.push(CheckedFile::from_record(file, label, file_path, record));
        }
        Ok(Dataset { name: name.to_string(), path, manifest, files })
    }

    /// All datasets, by name. One that is damaged is an error that names it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFormat`].
    pub fn list(&self) -> Result<Vec<DatasetSummary>> {
        let folder = self.path.join("datasets");
        let read = |error| Error::io("list", &folder, error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let manifest = match Manifest::read(&path.join("manifest")) {
                Ok(manifest) => manifest,
                // Removed by another process since the folder was listed.
                Err(_) if !path.exists() => continue,
                Err(error) => return Err(error),
            };
            let bytes = manifest.files.iter().map(|file| file.len).sum();
            all.push(DatasetSummary { name, kind: manifest.kind, bytes });
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Removes a dataset. Jobs that have it open go on undisturbed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::BadName`], [`Error::Io`].
    pub fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let path = self.dataset_path(name);
        let scratch = Scratch::create(&self.path.join("scratch"))?;
        match fs::rename(&path, scratch.path().join("removed")) {
            Ok(()) => sync_folder(&self.path.join("datasets")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::NotFound { name: name.to_string(), store: self.path.clone() })
            }
            Err(error) => Err(Error::io("remove", path, error)),
        }
    }

    fn dataset_path(&self, name: &str) -> PathBuf {
        self.path.join("datasets").join(name)
    }

    fn name_exists(&self, name: &str) -> Error {
        Error::NameExists { name: name.to_string(), store: self.path.clone() }
    }
}

fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good =
        name.len() <= 100 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
    if good { Ok(()) } else { Err(Error::BadName { name: name.to_string() }) }
}

/// Makes an empty folder a store. The header comes last and by a rename: of two processes that do this at
/// once, one writes it and the other finds it.
fn init(path: &Path, header: &Path) -> Result<()> {
    let io = |what: &'static str| move |error| Error::io(what, path, error);
    // The names that a process which does the same right now may have made already.
    let ours = |name: &str| name == "datasets" || name == "scratch" || name.starts_with(HEADER_NAME);
    for entry in fs::read_dir(path).map_err(io("list"))? {
        if !ours(&entry.map_err(io("list"))?.file_name().to_string_lossy()) {
            return Err(Error::NotAStore { path: path.to_path_buf() });
        }
    }
    for folder in ["datasets", "scratch"] {
        fs::create_dir_all(path.join(folder)).map_err(io("create folder"))?;
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend(HEADER_MAGIC);
    bytes.extend(HEADER_VERSION.to_le_bytes());
    bytes.extend(uuid());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    let draft = path.join(format!("{HEADER_NAME}.{:016x}", random_u64()));
    let mut file = File::create_new(&draft).map_err(io("create header"))?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io("write header"))?;
    match renameat_with(CWD, &draft, CWD, header, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => fs::remove_file(&draft).map_err(io("remove"))?,
        Err(error) => return Err(Error::io("create header", path, error.into())),
    }
    sync_folder(path)
}

/// A random (version 4) UUID.
fn uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&random_u64().to_le_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn check_header(path: &Path) -> Result<()> {
    let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let bad = |what, found: String, expected: String| {
        Err(Error::BadFormat { path: path.to_path_buf(), what, found, expected })
    };
    if bytes.len() != HEADER_BYTES {
        return bad("length", format!("{} bytes", bytes.len()), format!("{HEADER_BYTES} bytes"));
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    if &bytes[..8] != HEADER_MAGIC {
        return bad("magic", bytes[..8].escape_ascii().to_string(), HEADER_MAGIC.escape_ascii().to_string());
    }
    let found = crc32fast::hash(&bytes[..28]);
    if found != word(28) {
        return bad("checksum", format!("{found:08x}"), format!("{:08x}", word(28)));
    }
    if word(8) != HEADER_VERSION {
        return bad("version", word(8).to_string(), HEADER_VERSION.to_string());
    }
    Ok(())
}

fn sync_folder(path: &Path) -> Result<()> {
    let folder = File::open(path).map_err(|error| Error::io("open", path, error))?;
    folder.sync_all().map_err(|error| Error::io("sync", path, error))
}

/// A dataset in the making; dropping it without [`DatasetBuilder::commit`] leaves nothing.
#[derive(Debug)]
pub struct DatasetBuilder {
    store: Store,
    job: Job,
    name: String,
    folder: PathBuf,
    manifest: Manifest,
}

impl DatasetBuilder {
    /// Begins a file: see [`FileWriter::create`] for `block_bytes` and `buffer_bytes`.
    pub fn file(&mut self, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        FileWriter::create(&self.job, self.folder.join(name), name.to_string(), block_bytes, buffer_bytes)
    }

    /// Ends a file that [`Self::file`] began, and makes it durable.
    pub fn add(&mut self, writer: FileWriter) -> Result<()> {
        self.manifest.files.push(writer.seal()?);
        Ok(())
    }

    /// Ends a file that [`Self::file`] began, makes it durable, and opens it for reading, before the dataset
    /// as a whole is there.
    pub fn add_and_open(&mut self, writer: FileWriter) -> Result<CheckedFile> {
        let record = writer.seal()?;
        let path = self.folder.join(&record.name);
        let file = self.job.device().open(&path).map_err(|error| Error::io("open", &path, error))?;
        let checked = CheckedFile::from_record(file, format!("{}/{}", self.name, record.name), path, &record);
        self.manifest.files.push(record);
        Ok(checked)
    }

    /// Bytes of data in the files that were added.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.len).sum()
    }

    /// Publishes the dataset. When this returns, it survives a power loss.
    ///
    /// # Errors
    /// [`Error::NameExists`] where another job was faster; [`Error::Io`]; [`Error::Cancelled`].
    pub fn commit(mut self, attributes: &[u8]) -> Result<()> {
        self.job.check_cancelled()?;
        self.manifest.attributes = attributes.to_vec();
        let path = self.folder.join("manifest");
        let write = |error| Error::io("write", &path, error);
        let mut file = File::create_new(&path).map_err(write)?;
        file.write_all(&self.manifest.encode()).map_err(write)?;
        file.sync_all().map_err(|error| Error::io("sync", &path, error))?;
        sync_folder(&self.folder)?;
        let target = self.store.dataset_path(&self.name);
        match renameat_with(CWD, &self.folder, CWD, &target, RenameFlags::NOREPLACE) {
            Ok(()) => sync_folder(&self.store.path.join("datasets")),
            Err(rustix::io::Errno::EXIST) => Err(self.store.name_exists(&self.name)),
            Err(error) => Err(Error::io("publish", target, error.into())),
        }
    }
}

/// A dataset with its files open.
#[derive(Clone, Debug)]
pub struct Dataset {
    name: String,
    path: PathBuf,
    manifest: Manifest,
    files: Vec<CheckedFile>,
}

impl Dataset {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which crate's format it is in.
    pub fn kind(&self) -> &str {
        &self.manifest.kind
    }

    /// That crate's own header.
    pub fn attributes(&self) -> &[u8] {
        &self.manifest.attributes
    }

    /// Bytes of data in all files.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.len).sum()
    }

    /// The file of this name, if the dataset has it.
    pub fn file(&self, name: &str) -> Option<CheckedFile> {
        let place = self.manifest.files.iter().position(|file| file.name == name)?;
        Some(self.files[place].clone())
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
        assert_eq!(fs::read_dir(store.path().join("scratch")).unwrap().count(), 1); // the lock
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
    fn foreign_folders_bad_names_and_damaged_headers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        assert!(matches!(Store::open(folder.path()), Err(Error::NotAStore { .. })));
        fs::remove_file(folder.path().join("thesis.tex")).unwrap();
        let store = Store::open(folder.path()).unwrap();
        for name in ["", ".", "..", "a/b", "-a", ".a", "a b", "ä", &"a".repeat(101)] {
            assert!(matches!(store.dataset(name), Err(Error::BadName { .. })), "{name:?}");
        }
        let header = folder.path().join(HEADER_NAME);
        let bytes = fs::read(&header).unwrap();
        for byte in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 0x40;
            fs::write(&header, damaged).unwrap();
            assert!(matches!(Store::open(folder.path()), Err(Error::BadFormat { .. })), "byte {byte}");
        }
    }
}
