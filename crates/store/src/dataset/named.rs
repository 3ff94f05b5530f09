//! This module opens, lists, seals and removes datasets by name.

use std::{iter::zip, sync::Arc};

use crate::{
    CheckedFile, DatasetRecord, EXTENT_BYTES, Edit, ExtentAddress, FileRecord, Job, Redundancy, Result,
    Store, dataset::checked::ExtentOwner, dataset::layout::Identity, shared::Pin, space::extents::pieces,
    store::check_name,
};

/// The kind of a dataset that is one file of plain bytes, and also the name of that file.
pub const BYTES: &str = "bytes";

/// The kind of datasets that contain resumable work ([`Store::keep`]). Lists of datasets omit them.
pub(crate) const KEPT: &str = "kept";

/// `DatasetSummary` contains the information about a dataset that a list of datasets shows.
#[derive(Clone, Debug)]
pub struct DatasetSummary {
    /// The random id of the dataset: see [`Dataset::id`].
    pub id: u64,
    /// The name of the dataset.
    pub name: String,
    /// The kind of the dataset, which identifies its format. The crate that writes the dataset defines the kind.
    pub kind: String,
    /// The number of bytes of data.
    pub bytes: u64,
    /// The number of bytes on the devices, including copies, parity and lists of extents.
    pub stored_bytes: u64,
    /// The number of files.
    pub files: usize,
    /// True if no more bytes can be appended.
    pub sealed: bool,
    /// The redundancy against damage and the loss of a device.
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

/// `Location` is the physical location of a byte range that is stored in one extent. [`Dataset::locate`] returns
/// locations, like the query for physical addresses in the BlueDBM papers (2016 article, section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The offset of the range in the file, in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len: u64,
    /// The address of each copy of the extent.
    pub places: Vec<ExtentAddress>,
    /// The offset of the range in the extent, in bytes.
    pub extent_offset: u64,
}

impl Store {
    /// Opens a dataset with all its files.
    ///
    /// # Errors
    /// - Returns [`crate::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`crate::Error::BadName`] if the name is not valid for a dataset.
    /// - Returns [`crate::Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        check_name(name)?;
        let (catalog, pin) = self.0.pinned_catalog()?;
        let record = catalog.datasets.get(name).ok_or_else(|| self.not_found(name))?.clone();
        Ok(self.opened(record, &pin))
    }

    /// Opens all datasets of one commit, sorted by name, without resumable work ([`Store::kept`]). The call reads the
    /// log once, while calls of [`Store::dataset`] would read the log once per dataset.
    ///
    /// # Errors
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`crate::Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn datasets(&self) -> Result<Vec<Dataset>> {
        let (catalog, pin) = self.0.pinned_catalog()?;
        let records = catalog.datasets.values().filter(|record| record.kind != KEPT);
        Ok(records.map(|record| self.opened(record.clone(), &pin)).collect())
    }

    fn opened(&self, record: Arc<DatasetRecord>, pin: &Arc<Pin>) -> Dataset {
        let open = |(number, file): (usize, &FileRecord)| {
            self.open_file(&record, number as u32, file, ExtentOwner::Pin(pin.clone()))
        };
        let files = record.files.iter().enumerate().map(open).collect();
        Dataset { record, files }
    }

    /// Opens the files that the name `NAME` (all files of a dataset) or `NAME/FILE` (one file) selects.
    ///
    /// # Errors
    /// Returns [`crate::Error::NotFound`] if the store has no dataset with this name.
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
        kept: ExtentOwner,
    ) -> CheckedFile {
        let label = format!("{}/{}", record.name, file.name);
        let identity = Identity { dataset: record.id, file: number, level: 0 };
        CheckedFile::of_record(label, file, identity, record.redundancy, kept)
    }

    /// Lists all datasets, sorted by name, without resumable work ([`Store::kept`]).
    ///
    /// # Errors
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`crate::Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn list(&self) -> Result<Vec<DatasetSummary>> {
        let catalog = self.0.catalog()?;
        let datasets = catalog.datasets.values().filter(|record| record.kind != KEPT);
        Ok(datasets.map(DatasetSummary::of).collect())
    }

    /// Removes a dataset. Jobs that have the dataset open can continue to read it.
    ///
    /// # Errors
    /// - Returns [`crate::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`crate::Error::BadName`] if the name is not valid for a dataset.
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_dataset(name, None)
    }

    /// Removes a dataset only if it has this id ([`Dataset::id`]). A newer dataset of the same name is not removed.
    ///
    /// # Errors
    /// - Returns the errors of [`Store::remove`].
    /// - Returns [`crate::Error::NotFound`] if the dataset has another id.
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

    /// Seals a dataset, so that no more bytes can be appended. A dataset cannot be unsealed.
    ///
    /// # Errors
    /// - Returns [`crate::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`crate::Error::BadName`] if the name is not valid for a dataset.
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
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
}

/// `Dataset` is a dataset with its files open.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(crate) record: Arc<DatasetRecord>,
    pub(crate) files: Vec<CheckedFile>,
}

/// `NamedFile` is a file of a dataset that [`Store::named_files`] has found by name.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// The name of the dataset.
    pub dataset: String,
    /// The name of the file.
    pub name: String,
    /// True if the given name was the name of a dataset, and this file is the only file of the dataset.
    pub is_all: bool,
    /// The open file.
    pub file: CheckedFile,
}

impl NamedFile {
    /// Returns the title of the file for lists that also contain files outside of the store: `store:NAME`, or
    /// `store:NAME/FILE`.
    pub fn title(&self) -> String {
        let NamedFile { dataset, name, is_all, .. } = self;
        if *is_all { format!("store:{dataset}") } else { format!("store:{dataset}/{name}") }
    }
}

impl Dataset {
    /// Returns the random id of the dataset. An append does not change the id. A dataset that replaces a dataset of the
    /// same name has another id.
    pub fn id(&self) -> u64 {
        self.record.id
    }

    /// Returns the name of the dataset.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns the kind of the dataset, which identifies its format. The crate that writes the dataset defines the
    /// kind.
    pub fn kind(&self) -> &str {
        &self.record.kind
    }

    /// Returns the attributes: a header in the format of the crate that wrote the dataset.
    pub fn attributes(&self) -> &[u8] {
        &self.record.attributes
    }

    /// Returns the number of bytes of data in all files.
    pub fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Returns the names of the files, in order.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.record.files.iter().map(|file| file.name.as_str())
    }

    /// Returns the file of this name, if the dataset has one.
    pub fn file(&self, name: &str) -> Option<CheckedFile> {
        let place = self.record.files.iter().position(|file| file.name == name)?;
        Some(self.files[place].clone())
    }

    /// Returns the summary of the dataset.
    pub fn summary(&self) -> DatasetSummary {
        DatasetSummary::of(&self.record)
    }

    /// Returns the locations of a byte range of a file, in order. The list is empty if the file ends before the range.
    ///
    /// # Errors
    /// Returns an error if the call has to read the list of extents of a large file, and the list cannot be read or is
    /// damaged.
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
        pieces(range.clone()).map(piece).collect()
    }
}
