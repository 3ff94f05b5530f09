//! A builder creates a dataset, or appends to a dataset, and publishes the result.

use std::sync::Arc;

use crate::{
    CheckedFile, Dataset, DatasetRecord, EXTENT_BYTES, Edit, Error, ExtentAddress, FileRecord, FileWriter,
    Job, Redundancy, Result, Store, dataset::checked::ExtentOwner, dataset::layout::Identity,
    dataset::writer::Existing, device::metadata_buffer, log::catalog::Run, random::random_u64,
    redundancy::whole::ExtentFile, shared::CommitError, space::extents::Extents, store::check_name,
};

impl Store {
    /// Begins a dataset. Readers see the dataset after [`DatasetBuilder::commit`].
    ///
    /// # Errors
    /// - Returns [`Error::BadName`] if the name is not valid for a dataset.
    /// - Returns [`Error::NameExists`] if the store already has a dataset with this name. The commit checks the name
    ///   again.
    pub fn create_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        check_name(name)?;
        if self.0.catalog()?.datasets.contains_key(name) {
            return Err(self.name_exists(name));
        }
        Ok(DatasetBuilder::new(self, job, new_record(name, kind), None))
    }

    /// Begins a dataset that replaces the dataset of the same name, if there is one. Until [`DatasetBuilder::commit`],
    /// readers see the old dataset. A reader that has the old dataset open can continue to read it after the commit.
    ///
    /// # Errors
    /// Returns [`Error::BadName`] if the name is not valid for a dataset. If another job commits first, the commit
    /// fails with [`Error::NameExists`] or [`Error::Changed`].
    pub fn replace_dataset(&self, job: &Job, name: &str, kind: &str) -> Result<DatasetBuilder> {
        let base = match self.dataset(name) {
            Err(Error::NotFound { .. }) => None,
            base => Some(base?),
        };
        Ok(DatasetBuilder::new(self, job, new_record(name, kind), base))
    }

    /// Begins to append to the files of a dataset that is not sealed. Readers that open the dataset after
    /// [`DatasetBuilder::commit`] see the appended data. A reader that has the dataset open still sees the old content.
    ///
    /// For each file that grows, the call copies the last extent of the file. With parity, it copies the last parity
    /// group.
    ///
    /// # Errors
    /// - Returns [`Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`Error::BadName`] if the name is not valid for a dataset.
    /// - Returns [`Error::Sealed`] if the dataset is sealed.
    /// - Returns [`Error::TooFewDevices`] if the store has fewer devices than the redundancy needs.
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

/// `DatasetBuilder` creates or extends a dataset. If the builder is dropped without [`DatasetBuilder::commit`], no
/// dataset is left.
#[derive(Debug)]
pub struct DatasetBuilder {
    store: Store,
    job: Job,
    record: DatasetRecord,
    /// The dataset that is extended or replaced, in the state before the change.
    base: Option<Dataset>,
    /// The number of files that were begun. `unended` is the number of files that were begun and not ended.
    begun: u32,
    unended: u32,
    /// The extents that the commit takes over from the job.
    extents: Vec<Arc<Extents>>,
    /// The old extents that the extended files do not need after the commit.
    dropped: Vec<ExtentAddress>,
}

/// The default number of buffers of a writer.
const WRITE_BUFFERS: usize = 2;

impl DatasetBuilder {
    fn new(store: &Store, job: &Job, record: DatasetRecord, base: Option<Dataset>) -> DatasetBuilder {
        let (store, job, begun) = (store.clone(), job.clone(), record.files.len() as u32);
        let (extents, dropped) = Default::default();
        DatasetBuilder { store, job, record, base, begun, unended: 0, extents, dropped }
    }

    /// Sets the redundancy against damage and the loss of a device. Damaged or missing data is then restored from other
    /// extents and repaired. Two copies double the space and the bytes written. Parity of k+m adds the fraction m/k of
    /// space and bytes written. While a file with parity is written, it takes memory for k + m extents of 2 MiB. This
    /// function must be called before the first file is begun.
    ///
    /// # Errors
    /// Returns [`Error::TooFewDevices`] if the store has fewer devices than the redundancy needs.
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

    /// Leaves the dataset unsealed. [`Store::append_to_dataset`] can extend it until [`Store::seal`] is called.
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

    /// Returns the dataset that this builder extends or replaces, in the state at the start of the builder. Returns
    /// `None` for a new dataset. The commit succeeds only if the dataset has not changed since.
    pub fn base(&self) -> Option<&Dataset> {
        self.base.as_ref()
    }

    /// Returns the size of a checksum block of an existing file to which data can be appended.
    pub fn block_bytes(&self, name: &str) -> Option<usize> {
        Some(self.base.as_ref()?.file(name)?.block_bytes())
    }

    /// Appends to a file of an extended dataset. If there is no file of this name, a new file with checksum blocks of
    /// `block_bytes` is begun.
    ///
    /// # Errors
    /// - Returns the errors of [`FileWriter::write`].
    /// - Returns [`Error::Damaged`] if the last extent of the existing file is damaged.
    pub fn append(
        &mut self,
        name: &str,
        block_bytes: usize,
        buffer_bytes: usize,
        buffers: usize,
    ) -> Result<FileWriter> {
        self.append_from(name, u64::MAX, (block_bytes, buffer_bytes, buffers))
    }

    /// Appends to a file of an extended dataset as [`DatasetBuilder::append`] does, but keeps only the first
    /// `kept_bytes` bytes of the existing file. The rest of the file is dropped, for example a footer that a longer one
    /// replaces. If the file is shorter, all of it is kept. The last argument has the sizes of a checksum block and of
    /// a buffer, and the number of buffers.
    ///
    /// # Errors
    /// Returns the errors of [`DatasetBuilder::append`].
    pub fn append_from(
        &mut self,
        name: &str,
        kept_bytes: u64,
        (block_bytes, buffer_bytes, buffers): (usize, usize, usize),
    ) -> Result<FileWriter> {
        let Some(number) = self.record.files.iter().position(|file| file.name == name) else {
            return self.file_with_buffers(name, block_bytes, buffer_bytes, buffers);
        };
        let base = self.base.as_ref().expect("a file that is there has a dataset");
        let file = base.files[number].clone();
        let (redundancy, extents) = (self.record.redundancy, file.layout().extents());
        // The full extents of the kept bytes stay in place, and the rest is copied. With parity, only full parity
        // groups stay in place.
        let len = file.len().min(kept_bytes);
        let group_bytes = redundancy.group() * EXTENT_BYTES as u64;
        let kept = len / group_bytes * redundancy.group();
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
        while offset < len {
            let end = len.min(offset + block_bytes as u64);
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

    /// Publishes the dataset. After the return, the dataset survives a power loss. For an extended dataset,
    /// `attributes` replace the old attributes.
    ///
    /// # Errors
    /// - Returns [`Error::NameExists`] or [`Error::Changed`] if another job committed first.
    /// - Returns [`Error::Io`] if an I/O operation fails.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn commit(self, attributes: &[u8]) -> Result<()> {
        DatasetBuilder::commit_all(vec![(self, attributes.to_vec())])
    }

    /// Publishes several datasets of one job, each with its attributes, by one record of the log. Either all of them
    /// are published, or none.
    ///
    /// # Errors
    /// Returns an error of [`DatasetBuilder::commit`] if the commit of any of the datasets fails.
    pub fn commit_all(builders: Vec<(DatasetBuilder, Vec<u8>)>) -> Result<()> {
        let Some((first, _)) = builders.first() else { return Ok(()) };
        let (store, job) = (first.store.clone(), first.job.clone());
        job.check_cancelled()?;
        let (mut changes, mut touched, mut extents) = (Vec::new(), Vec::new(), Vec::new());
        // The old datasets stay open until the commit is done.
        let mut bases = Vec::new();
        for (mut builder, attributes) in builders {
            assert!(builder.unended == 0, "a file was begun and not added");
            let record = &mut builder.record;
            record.attributes = attributes;
            let places: Vec<ExtentAddress> =
                builder.extents.iter().flat_map(|extents| extents.places()).collect();
            touched.extend_from_slice(&places);
            record.runs = Run::without(&record.runs, &Run::collect(std::mem::take(&mut builder.dropped)));
            record.runs.extend(Run::collect(places));
            let base = builder.base.as_ref().map(|base| base.record.clone());
            changes.push(Published { record: Arc::new(builder.record), base });
            extents.append(&mut builder.extents);
            bases.push(builder.base);
        }
        publish_all(&store, &job, changes, &touched, || {
            extents.iter().for_each(|extents: &Arc<Extents>| extents.keep());
        })
    }

    /// Returns the random id that the dataset will have: see [`Dataset::id`].
    pub fn id(&self) -> u64 {
        self.record.id
    }
}

/// A record that becomes the dataset of its name, if the current record is still `base`.
struct Published {
    record: Arc<DatasetRecord>,
    base: Option<Arc<DatasetRecord>>,
}

/// Makes the data at the addresses `places` durable, and then commits `record` to the log. The commit fails if the
/// current record of the dataset is not `base`. The function calls `keep` if the record was written, or if this is
/// uncertain.
pub(crate) fn publish(
    store: &Store,
    job: &Job,
    record: Arc<DatasetRecord>,
    base: Option<Arc<DatasetRecord>>,
    places: &[ExtentAddress],
    keep: impl FnOnce(),
) -> Result<()> {
    publish_all(store, job, vec![Published { record, base }], places, keep)
}

/// Makes the data at the addresses `places` durable, and then publishes all records, or none.
fn publish_all(
    store: &Store,
    job: &Job,
    changes: Vec<Published>,
    places: &[ExtentAddress],
    keep: impl FnOnce(),
) -> Result<()> {
    let mut touched: Vec<u16> = places.iter().map(|place| place.device).collect();
    touched.sort_unstable();
    touched.dedup();
    // The data must be durable before the record that refers to the data.
    for number in touched {
        let device = job.device(number)?;
        device.sync().map_err(|error| Error::io("sync", device.name(), error))?;
    }
    let path = store.path().to_path_buf();
    let done = store.0.commit(move |catalog| {
        let edits = changes.into_iter().map(|Published { record, base }| {
            let (name, store) = (record.name.clone(), path.clone());
            match (catalog.datasets.get(&name), base) {
                (None, None) => Ok(Edit::Put(record)),
                (Some(found), Some(base)) if *found == base => Ok(Edit::Put(record)),
                (Some(_), None) => Err(Error::NameExists { name, store }),
                (_, Some(_)) => Err(Error::Changed { name, store }),
            }
        });
        edits.collect()
    });
    // After an error while the log was written, the dataset may exist, so its extents must not be freed.
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
        assert_eq!(fs::read_dir(folder.path().join("new/store/scratch")).unwrap().count(), 1); // only the lock file
    }

    #[test]
    fn the_end_of_a_job_keeps_its_dataset_in_the_space_of_a_removed_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_on(folder.path(), vec![Arc::new(crate::Memory::new(300))]).unwrap();
        // The first dataset takes one extent, which becomes free. The second dataset reuses this extent and takes more.
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
    fn several_datasets_are_published_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        put(&store, "a", b"old").unwrap();
        let begin = || {
            let names = [("a", &b"new a"[..]), ("b", b"new b")];
            names.map(|(name, bytes)| {
                let mut builder = store.replace_dataset(&job, name, "test").unwrap();
                let mut writer = builder.file("bytes", 4096, 4096).unwrap();
                writer.write(bytes).unwrap();
                builder.add(writer).unwrap();
                (builder, name.as_bytes().to_vec())
            })
        };
        // Another job makes one of the datasets first.
        let late = begin();
        put(&store, "b", b"first").unwrap();
        assert!(matches!(DatasetBuilder::commit_all(late.into()), Err(Error::NameExists { .. })));
        let bytes = |name: &str| store.dataset(name).unwrap().bytes();
        assert_eq!((bytes("a"), bytes("b"), job.extents_in_use()), (3, 5, 0));
        let both = begin();
        let ids = both.each_ref().map(|(builder, _)| builder.id());
        DatasetBuilder::commit_all(both.into()).unwrap();
        let again = Store::open(store.path()).unwrap();
        let found = ["a", "b"].map(|name| again.dataset(name).unwrap());
        assert_eq!(found.each_ref().map(|dataset| (dataset.id(), dataset.bytes())), ids.map(|id| (id, 5)));
        assert_eq!(found[1].attributes(), b"b");
        DatasetBuilder::commit_all(Vec::new()).unwrap();
    }

    #[test]
    fn an_append_from_any_byte_keeps_the_bytes_before_it_and_drops_the_others() {
        const LEN: usize = 5 << 20;
        let made: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251) as u8).collect();
        let folder = tempfile::tempdir().unwrap();
        let devices = (0..3).map(|_| Arc::new(crate::Memory::new(300)) as Arc<dyn Device>).collect();
        let store = Store::open_on(folder.path(), devices).unwrap();
        let job = store.job(Budget::new(32 << 20, 1), Cancel::default()).unwrap();
        let read = |dataset: &Dataset| {
            let file = dataset.file("bytes").unwrap();
            let mut reader = crate::FileReader::new(&job, &file, 0..file.len(), 65536).unwrap();
            let mut found = Vec::new();
            while let Some(piece) = reader.next_piece().unwrap() {
                found.extend_from_slice(piece);
            }
            found
        };
        let parity = Redundancy::Parity { data: 2, parity: 1 };
        for redundancy in [Redundancy::Copies(1), Redundancy::Copies(2), parity] {
            let extent = EXTENT_BYTES as u64;
            for kept in [0, 5, 4096, extent, extent + 9, 2 * extent, 2 * extent + 1, LEN as u64 - 1, u64::MAX]
            {
                let mut builder = store.create_dataset(&job, "a", "test").unwrap();
                builder.redundancy(redundancy).unwrap();
                builder.unsealed();
                let mut writer = builder.file("bytes", 4096, 65536).unwrap();
                writer.write(&made).unwrap();
                builder.add(writer).unwrap();
                builder.commit(&[]).unwrap();
                let before = store.dataset("a").unwrap();
                let mut builder = store.append_to_dataset(&job, "a").unwrap();
                let mut writer = builder.append_from("bytes", kept, (4096, 65536, 2)).unwrap();
                writer.write(&[3; 10_000]).unwrap();
                builder.add(writer).unwrap();
                builder.commit(&[]).unwrap();
                let kept = LEN.min(kept as usize);
                let expected = [&made[..kept], &[3; 10_000]].concat();
                assert!(read(&store.dataset("a").unwrap()) == expected, "{redundancy:?} {kept}");
                assert!(read(&before) == made, "{redundancy:?} {kept}");
                drop(before);
                assert_eq!(store.verify(&job, &[], false).unwrap().damage, []);
                store.remove("a").unwrap();
            }
        }
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
        // The closure flips one bit in every written page of a device, except in the superblock and the log.
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
        // If both copies are damaged, a read returns an error and never wrong bytes.
        damage(&devices[0]);
        damage(&devices[1]);
        assert!(read().is_err());
        let alone = Store::open(folder.path().join("alone")).unwrap();
        let job = alone.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
        let refused = alone.create_dataset(&job, "a", "test").unwrap().redundancy(Redundancy::Copies(2));
        assert!(matches!(refused, Err(Error::TooFewDevices { found: 1, .. })));
    }
}
