//! A builder makes a dataset, or appends to one, and publishes the result.

use std::sync::Arc;

use crate::{
    CheckedFile, Dataset, DatasetRecord, EXTENT_BYTES, Edit, Error, ExtentAddress, FileRecord, FileWriter,
    Job, Redundancy, Result, Store, dataset::checked::ExtentOwner, dataset::layout::Identity,
    dataset::writer::Existing, device::metadata_buffer, log::catalog::Run, random::random_u64,
    redundancy::whole::ExtentFile, shared::CommitError, space::extents::Extents, store::check_name,
};

impl Store {
    /// Begins a dataset, which is visible after [`DatasetBuilder::commit`].
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NameExists`], which is checked here and again by the commit.
    pub fn create_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        check_name(name)?;
        if self.0.catalog()?.datasets.contains_key(name) {
            return Err(self.name_exists(name));
        }
        Ok(DatasetBuilder::new(self, job, new_record(name, kind), None))
    }

    /// Begins a dataset that replaces the dataset of the same name, if there is one, at [`DatasetBuilder::commit`].
    /// Until then readers see the old dataset. A reader that has the old dataset open can continue to read it after the
    /// commit.
    ///
    /// # Errors
    /// [`Error::BadName`]; the commit ends with [`Error::NameExists`] or [`Error::Changed`] if another job committed first.
    pub fn replace_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        let base = match self.dataset(name) {
            Err(Error::NotFound { .. }) => None,
            base => Some(base?),
        };
        Ok(DatasetBuilder::new(self, job, new_record(name, kind), base))
    }

    /// Begins to append to the files of a dataset that is not sealed. The appended data is visible after
    /// [`DatasetBuilder::commit`]; a reader that has the dataset open still sees the old content.
    ///
    /// The cost for each file that grows is one more copy of its last extent (with parity: of its last group).
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

    /// Checks that the store has enough devices for this redundancy.
    fn check_devices(&self, redundancy: Redundancy) -> Result<()> {
        let found = self.0.open_devices().len();
        if found < redundancy.devices() {
            let (store, missing) = (self.path().to_path_buf(), self.0.missing_devices());
            return Err(Error::TooFewDevices { store, redundancy, found, missing });
        }
        Ok(())
    }

    fn name_exists(&self, name: &str) -> Error {
        Error::NameExists { name: name.to_string(), store: self.path().to_path_buf() }
    }
}

fn new_record(name: &str, kind: &str) -> DatasetRecord {
    DatasetRecord {
        id: random_u64(),
        name: name.to_string(),
        kind: kind.to_string(),
        sealed: true,
        redundancy: Redundancy::Copies(1),
        attributes: Vec::new(),
        files: Vec::new(),
        runs: Vec::new(),
    }
}

/// `DatasetBuilder` is a dataset that is being made or extended. Dropping it without [`DatasetBuilder::commit`]
/// leaves no dataset.
#[derive(Debug)]
pub struct DatasetBuilder {
    store: Store,
    job: Job,
    record: DatasetRecord,
    /// The dataset to which data is appended, before the change.
    base: Option<Dataset>,
    /// The number of files that were begun. The next field is the number of those that were not ended yet.
    begun: u32,
    unended: u32,
    /// The extents that the commit takes over from the job.
    extents: Vec<Arc<Extents>>,
    /// The extents that the extended files no longer need.
    dropped: Vec<ExtentAddress>,
}

/// The number of buffers of a writer whose speed is not critical.
const WRITE_BUFFERS: usize = 2;

impl DatasetBuilder {
    fn new(store: &Store, job: &Job, record: DatasetRecord, base: Option<Dataset>) -> DatasetBuilder {
        let (store, job, begun) = (store.clone(), job.clone(), record.files.len() as u32);
        let (extents, dropped) = Default::default();
        DatasetBuilder { store, job, record, base, begun, unended: 0, extents, dropped }
    }

    /// Sets the redundancy against damage and the loss of a device: damaged or missing data is then restored from the
    /// other extents and repaired. Two copies take twice the space and twice the writes. Parity of k+m takes m/k more
    /// space and writes, and memory for k + m extents of 2 MiB while each file is written. The call must come before
    /// the first file is begun.
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

    /// Returns the redundancy of the dataset.
    pub fn guarded_by(&self) -> Redundancy {
        self.record.redundancy
    }

    /// Leaves the dataset open, so that [`Store::append_to_dataset`] can extend it until [`Store::seal`].
    pub fn unsealed(&mut self) {
        self.record.sealed = false;
    }

    /// Begins a file: see [`FileWriter::create`] for `block_bytes` and `buffer_bytes`. Files must be ended in the order
    /// in which they were begun.
    pub fn file(&mut self, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        self.file_with_buffers(name, block_bytes, buffer_bytes, WRITE_BUFFERS)
    }

    /// Begins a file with `buffers` buffers. All but one of the buffers can be in flight; four buffers of 1 MiB keep a
    /// drive busy.
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

    /// Returns the dataset that this builder extends or replaces, as it was when the builder began; `None` for a new one.
    /// The commit succeeds only if the dataset is still the same.
    pub fn base(&self) -> Option<&Dataset> {
        self.base.as_ref()
    }

    /// Returns the check block size of an existing file to which data can be appended.
    pub fn block_bytes(&self, name: &str) -> Option<usize> {
        Some(self.base.as_ref()?.file(name)?.block_bytes())
    }

    /// Appends to a file of an extended dataset. If there is no file of this name, a new file begins, with check blocks
    /// of `block_bytes`.
    ///
    /// # Errors
    /// The errors of [`FileWriter::write`]; damage in the last extent of the existing file.
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
        let (redundancy, extents) = (self.record.redundancy, file.layout().extents());
        // Whole extents of the existing file stay in place. With parity, only whole parity groups stay.
        let group_bytes = redundancy.group() * EXTENT_BYTES as u64;
        let kept = file.len() / group_bytes * redundancy.group();
        let groups = kept / redundancy.group();
        let mut begun = Existing { refs: Vec::new(), parity: Vec::new(), extents: kept };
        for copy in 0..redundancy.copies() as u64 {
            begun.refs.push(file.references_at(&self.job, copy * extents, kept)?);
            let dropped = file.references_at(&self.job, copy * extents + kept, extents - kept)?;
            self.dropped.extend(dropped.iter().map(|reference| reference.place));
        }
        let first_parity = extents * redundancy.copies() as u64;
        let (all, parity) = (file.layout().positions() - first_parity, groups * redundancy.parity());
        begun.parity = file.references_at(&self.job, first_parity, parity)?;
        let dropped = file.references_at(&self.job, first_parity + parity, all - parity)?;
        self.dropped.extend(dropped.iter().map(|reference| reference.place));
        if let Some(list) = file.list() {
            let dropped = list.references_at(&self.job, 0, list.layout().positions())?;
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
            let buffer = metadata_buffer(block_bytes)?;
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

    /// Ends a file that [`Self::file`] began, and opens it for reading before the dataset is published.
    pub fn add_and_open(&mut self, writer: FileWriter) -> Result<CheckedFile> {
        let (number, extents) = self.end(writer)?;
        let file = &self.record.files[number as usize];
        Ok(self.store.open_file(&self.record, number, file, ExtentOwner::Extents(extents)))
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

    /// Returns the number of bytes of data in the files that were added.
    pub fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Publishes the dataset. After the return, it survives a power loss. For an extended dataset, `attributes` replace
    /// the old ones.
    ///
    /// # Errors
    /// [`Error::NameExists`] and [`Error::Changed`] if another job committed first; [`Error::Io`];
    /// [`Error::Cancelled`].
    pub fn commit(mut self, attributes: &[u8]) -> Result<()> {
        self.job.check_cancelled()?;
        assert!(self.unended == 0, "a file was begun and not added");
        self.record.attributes = attributes.to_vec();
        let places: Vec<ExtentAddress> = self.extents.iter().flat_map(|extents| extents.places()).collect();
        let touched = places.clone();
        self.record.runs = Run::without(&self.record.runs, &Run::collect(std::mem::take(&mut self.dropped)));
        self.record.runs.extend(Run::collect(places));
        let base = self.base.as_ref().map(|base| base.record.clone());
        publish(&self.store, &self.job, Arc::new(self.record), base, &touched, || {
            self.extents.iter().for_each(|extents| extents.keep());
        })
    }
}

/// Makes the data at the addresses `places` durable, and then makes `record` the dataset of its name, if the current
/// record is still `base`. The function calls `keep` unless it is certain that the record was not written.
pub(crate) fn publish(
    store: &Store,
    job: &Job,
    record: Arc<DatasetRecord>,
    base: Option<Arc<DatasetRecord>>,
    places: &[ExtentAddress],
    keep: impl FnOnce(),
) -> Result<()> {
    let mut touched: Vec<u16> = places.iter().map(|place| place.device).collect();
    touched.sort_unstable();
    touched.dedup();
    // The data becomes durable first, then the record that refers to it.
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
    // After an error of the log the dataset may exist, so its extents must stay.
    if !matches!(&done, Err(CommitError { is_in_doubt: false, .. })) {
        keep();
    }
    done.map_err(|failed| failed.error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Budget, Cancel, Device};

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
    fn the_end_of_a_job_keeps_its_dataset_in_the_space_of_a_removed_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_on(folder.path(), vec![Arc::new(crate::Memory::new(300))]).unwrap();
        // The first dataset takes one extent, which becomes free, and the second one uses it again and takes more.
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
    fn the_second_commit_of_a_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let late = store.create_dataset(&job, "a", "test").unwrap();
        put(&store, "a", b"first").unwrap();
        assert!(matches!(late.commit(&[]), Err(Error::NameExists { .. })));
        assert_eq!(store.dataset("a").unwrap().bytes(), 5);
    }

    #[test]
    fn an_open_dataset_stays_readable_after_its_removal() {
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
    fn damage_in_one_copy_is_repaired_from_the_other() {
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
        // One bit is flipped in every page of one device except superblock and log.
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
}
