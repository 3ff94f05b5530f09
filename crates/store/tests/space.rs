//! These tests check that the space of removed data is freed. Usually this happens at once. If a reader, a killed
//! process or a failing drive prevents it, the next job, a compaction or a scrub frees the space. Space in use must
//! never be freed.

use std::{fs, path::Path, sync::Arc};

use inshore_store::{
    Budget, Cancel, CheckedFile, EXTENT_BYTES, Fault, Faulty, FileReader, Job, Memory, Result, Store,
};

/// The number of the first data extent of a new store on a single drive. Before it are the headers, the superblock, two
/// copies of the log, and two copies of the spare log.
const NOT_DATA: u32 = 6;

fn job(store: &Store) -> Result<Job> {
    store.job(Budget::new(16 << 20, 1), Cancel::default())
}

fn content(name: &str) -> Vec<u8> {
    let salt = name.bytes().fold(7u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..2 * EXTENT_BYTES + 5000).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(salt | 1)).collect()
}

fn put_by(store: &Store, job: &Job, name: &str, attributes: &[u8]) -> Result<()> {
    let mut builder = store.create_dataset(job, name, "test")?;
    let mut writer = builder.file("bytes", 65536, 1 << 20)?;
    writer.write(&content(name))?;
    builder.add(writer)?;
    builder.commit(attributes)
}

fn put(store: &Store, name: &str) -> Result<()> {
    put_by(store, &job(store)?, name, &[])
}

fn read(store: &Store, file: &CheckedFile) -> Vec<u8> {
    let job = job(store).unwrap();
    let mut reader = FileReader::new(&job, file, 0..file.len(), 65536).unwrap();
    let mut found = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        found.extend_from_slice(piece);
    }
    found
}

fn is_whole(store: &Store, name: &str) {
    assert!(read(store, &store.dataset(name).unwrap().file("bytes").unwrap()) == content(name), "{name}");
}

/// `Bench` is a store on a drive in memory. Each call of `open` simulates another process.
struct Bench {
    home: tempfile::TempDir,
    memory: Arc<Memory>,
    drive: Faulty,
}

impl Bench {
    fn new() -> Bench {
        let memory = Arc::new(Memory::new(600));
        let drive = Faulty::new(memory.clone(), &[]);
        Bench { home: tempfile::tempdir().unwrap(), memory, drive }
    }

    fn open(&self) -> Store {
        Store::open_on(self.home.path(), vec![Arc::new(self.drive.clone())]).unwrap()
    }

    /// Returns the number of extents that contain data or headers of data.
    fn extents(&self) -> usize {
        let mut extents: Vec<u32> = self.memory.written().into_iter().map(|(extent, _)| extent).collect();
        extents.dedup();
        extents.into_iter().filter(|&extent| extent >= NOT_DATA).count()
    }

    /// Simulates a process that removes a dataset and dies before it discards the space.
    fn remove_and_die(&self, name: &str) {
        let store = self.open();
        self.drive.set(&[Fault::FailFromDiscard(0)]);
        store.remove(name).unwrap();
        drop(store);
        self.drive.set(&[]);
    }
}

#[test]
fn the_next_job_frees_the_space_of_a_process_that_died_after_its_commit() {
    let bench = Bench::new();
    put(&bench.open(), "stays").unwrap();
    let without = bench.extents();
    // The log has 512 pages. The initial state takes 2 pages, each dataset 72 pages, and each removal 1 page. At the
    // seventh dataset, a new log is begun, which omits the extents that were freed before.
    for round in 0..9 {
        let store = bench.open();
        put_by(&store, &job(&store).unwrap(), "goes", &vec![7; 72 * 4096 - 2000]).unwrap();
        drop(store);
        bench.remove_and_die("goes");
        assert!(bench.extents() > without, "round {round}: it did not die early enough");
        drop(job(&bench.open()).unwrap());
        assert_eq!(bench.extents(), without, "round {round}");
    }
    is_whole(&bench.open(), "stays");
}

#[test]
fn space_of_a_removed_dataset_is_freed_after_its_last_reader() {
    for ends_first in [true, false] {
        let bench = Bench::new();
        put(&bench.open(), "stays").unwrap();
        let without = bench.extents();
        put(&bench.open(), "goes").unwrap();
        let (reader, other) = (bench.open(), bench.open());
        let dataset = reader.dataset("goes").unwrap();
        other.remove("goes").unwrap();
        // The next job runs in a new process, or in the process that removed the dataset and still has its state in
        // memory.
        let other = if ends_first { None } else { Some(other) };
        let begun = job(&bench.open()).unwrap();
        assert!(bench.extents() > without, "somebody reads it");
        drop((dataset, begun));
        let next = other.unwrap_or_else(|| bench.open());
        drop(job(&next).unwrap());
        assert_eq!(bench.extents(), without, "ends first: {ends_first}");
        is_whole(&next, "stays");
    }
}

#[test]
fn space_is_freed_at_the_end_of_a_job_that_removed_its_own_dataset() {
    let bench = Bench::new();
    put(&bench.open(), "stays").unwrap();
    let without = bench.extents();
    let store = bench.open();
    let job = job(&store).unwrap();
    put_by(&store, &job, "goes", &[]).unwrap();
    put_by(&store, &job, "comes", &[]).unwrap();
    store.remove("goes").unwrap();
    drop(job);
    assert_eq!(bench.extents(), without + 3);
    is_whole(&store, "comes");
}

#[test]
fn compaction_and_scrub_free_space_after_a_failed_discard() {
    for repair in [false, true] {
        let bench = Bench::new();
        put(&bench.open(), "stays").unwrap();
        let without = bench.extents();
        put(&bench.open(), "goes").unwrap();
        let store = bench.open();
        bench.drive.set(&[Fault::FailFromDiscard(0)]);
        store.remove("goes").unwrap();
        drop(job(&store).unwrap());
        let refused = store.compact(&job(&store).unwrap(), false).unwrap_err().to_string();
        assert!(refused.contains("free space"), "{refused}");
        bench.drive.set(&[]);
        drop(job(&store).unwrap());
        assert!(bench.extents() > without, "the process believes that it was given back");
        let job = job(&store).unwrap();
        if repair {
            assert!(store.verify(&job, &[], true).unwrap().is_sound());
        } else {
            store.compact(&job, false).unwrap();
        }
        assert_eq!(bench.extents(), without, "repair: {repair}");
        is_whole(&store, "stays");
    }
}

#[test]
fn compaction_takes_nothing_from_living_jobs() {
    let bench = Bench::new();
    let [store, other] = [bench.open(), bench.open()];
    put(&store, "read").unwrap();
    let dataset = store.dataset("read").unwrap();
    let at_work = job(&store).unwrap();
    let mut builder = store.create_dataset(&at_work, "written", "test").unwrap();
    let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
    writer.write(&content("written")).unwrap();
    other.remove("read").unwrap();
    other.compact(&job(&other).unwrap(), false).unwrap();
    other.verify(&job(&other).unwrap(), &[], true).unwrap();
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    is_whole(&other, "written");
    assert!(read(&other, &dataset.file("bytes").unwrap()) == content("read"));
}

/// Makes the file `name` of an owner unreadable while `act` runs. A folder with the name of the file makes every read
/// fail, like a drive with errors.
fn with_unreadable<T>(home: &Path, name: &str, act: impl FnOnce() -> T) -> T {
    let owner = home.join("scratch/reader-1-unreadable");
    fs::create_dir_all(owner.join(name)).unwrap();
    let lock = fs::File::create(owner.join("lock")).unwrap();
    lock.lock().unwrap();
    let done = act();
    fs::remove_dir_all(&owner).unwrap();
    done
}

#[test]
fn a_durable_commit_is_acknowledged_even_if_the_pins_of_readers_are_unreadable() {
    let bench = Bench::new();
    put(&bench.open(), "old").unwrap();
    let store = bench.open();
    let at_work = job(&store).unwrap();
    let reader = bench.open();
    let held = reader.dataset("old").unwrap();
    let mut builder = store.create_dataset(&at_work, "new", "test").unwrap();
    let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
    writer.write(&content("new")).unwrap();
    builder.add(writer).unwrap();
    with_unreadable(bench.home.path(), "pin", || {
        store.remove("old").unwrap();
        builder.commit(&[]).unwrap();
        // A job that cannot determine which extents are free gets an error when it takes extents.
        let told = job(&bench.open()).and_then(|job| put_by(&store, &job, "refused", &[])).unwrap_err();
        assert!(told.to_string().contains("pin"), "{told}");
    });
    // Neither this job nor other jobs may take extents that are in use.
    put_by(&store, &at_work, "later", &[]).unwrap();
    drop(at_work);
    put(&bench.open(), "last").unwrap();
    ["new", "later", "last"].iter().for_each(|name| is_whole(&store, name));
    assert!(read(&store, &held.file("bytes").unwrap()) == content("old"));
    assert_eq!(store.verify(&job(&store).unwrap(), &[], false).unwrap().damage, []);
}

#[test]
fn a_job_does_not_take_over_the_work_of_another() {
    let bench = Bench::new();
    let store = bench.open();
    let job = job(&store).unwrap();
    let told = with_unreadable(bench.home.path(), "keeps", || store.keep(&job, 7, "sort a.csv").unwrap_err());
    assert!(told.to_string().contains("keeps"), "{told}");
    store.keep(&job, 7, "sort a.csv").unwrap();
}
