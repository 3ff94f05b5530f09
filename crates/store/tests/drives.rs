//! Drives that are moved away and come back: folders on a file system, renamed between one use of the store and the next.
//! What was acknowledged is there as long as the drives are that hold it, and nothing is lost without a word.

use std::{fs, path::PathBuf, sync::Arc};

use inshore_store::{Budget, Cancel, Directory, FileReader, Findings, Job, Redundancy, Result, Store};

const SIZE: Option<u64> = Some(128 << 20);
const COPIES: Redundancy = Redundancy::Copies(2);
const NONE: Redundancy = Redundancy::Copies(1);

/// A folder in which drives are folders.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        Bench(tempfile::tempdir().unwrap())
    }

    /// With a store on these drives.
    fn with(drives: &[&str]) -> Bench {
        let bench = Bench::new();
        let folders: Vec<PathBuf> = drives.iter().map(|name| bench.path(name)).collect();
        Store::init(&folders, SIZE).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn mv(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn open(&self, name: &str) -> Result<Store> {
        Store::open_existing(self.path(name))
    }

    fn add(&self, drive: &str, to: &str) -> Result<u16> {
        fs::create_dir_all(self.path(drive)).unwrap();
        let device = Directory::open(&self.path(drive), SIZE).unwrap();
        self.open(to)?.add_device(Arc::new(device), SIZE)
    }

    fn put(&self, drive: &str, name: &str, redundancy: Redundancy) -> Result<()> {
        let store = self.open(drive)?;
        put(&store, name, redundancy)
    }

    /// What a dataset holds is what [`Bench::put`] put there.
    fn is_whole(&self, drive: &str, name: &str) -> Result<()> {
        let store = self.open(drive)?;
        let job = job(&store);
        let file = store.dataset(name)?.file("bytes").unwrap();
        let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536)?;
        let mut found = Vec::new();
        while let Some(piece) = reader.next_piece()? {
            found.extend_from_slice(piece);
        }
        assert!(found == content(name), "{name}");
        Ok(())
    }

    fn names(&self, drive: &str) -> Vec<String> {
        self.open(drive).unwrap().list().unwrap().into_iter().map(|summary| summary.name).collect()
    }

    fn verify(&self, drive: &str, repair: bool) -> Findings {
        let store = self.open(drive).unwrap();
        store.verify(&job(&store), &[], repair).unwrap()
    }
}

fn job(store: &Store) -> Job {
    store.job(Budget::new(64 << 20, 1), Cancel::default()).unwrap()
}

fn content(name: &str) -> Vec<u8> {
    let salt = name.bytes().fold(1u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    (0..5_000_000u32).map(|n| (n.wrapping_mul(salt | 1) >> 13) as u8).collect()
}

fn put(store: &Store, name: &str, redundancy: Redundancy) -> Result<()> {
    let job = job(store);
    let mut builder = store.create_dataset(&job, name, "test")?;
    builder.redundancy(redundancy)?;
    let mut writer = builder.file("bytes", 65536, 1 << 20)?;
    writer.write(&content(name))?;
    builder.add(writer)?;
    builder.commit(&[])
}

#[test]
fn the_log_of_a_store_that_grew_lies_on_both_drives() {
    let bench = Bench::with(&["e0"]);
    bench.add("e1", "e0").unwrap();
    bench.put("e0", "c", COPIES).unwrap();
    assert!(bench.verify("e0", false).is_sound());
    bench.mv("e0", "q0");
    bench.is_whole("e1", "c").unwrap();
}

#[test]
fn as_many_drives_may_fail_as_the_strongest_dataset_says() {
    let drives = ["e0", "e1", "e2", "e3", "e4", "e5"];
    let parity = Redundancy::Parity { data: 4, parity: 2 };
    let bench = Bench::with(&drives);
    bench.put("e0", "p", parity).unwrap();
    for first in drives {
        for second in drives.into_iter().filter(|second| *second > first) {
            let other = drives.into_iter().find(|other| ![first, second].contains(other)).unwrap();
            bench.mv(first, "q0");
            bench.mv(second, "q1");
            bench.is_whole(other, "p").unwrap_or_else(|error| panic!("without {first}, {second}: {error}"));
            bench.mv("q0", first);
            bench.mv("q1", second);
        }
    }
    assert_eq!(bench.verify("e0", false).damage, []);
}

#[test]
fn a_drive_that_was_away_is_brought_up_to_date_by_the_next_commit() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e1", "q1");
    bench.put("e0", "x", NONE).unwrap();
    bench.mv("q1", "e1");
    bench.put("e0", "z", COPIES).unwrap();
    assert_eq!(bench.verify("e0", false).damage, []);
    bench.mv("e0", "q0");
    bench.is_whole("e1", "c").unwrap();
    bench.is_whole("e1", "z").unwrap();
    assert_eq!(bench.names("e1"), ["c", "x", "z"]);
}

#[test]
fn verify_tells_of_a_drive_that_was_away_and_scrub_brings_it_up_to_date() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e1", "q1");
    bench.put("e0", "x", NONE).unwrap();
    bench.mv("q1", "e1");
    let findings = bench.verify("e0", false);
    let told = |what: &str| findings.damage.iter().any(|damage| damage.what.contains(what));
    assert!(told("older state") && told("lies on 1 drive"), "{findings:?}");
    let mended = bench.verify("e0", true);
    assert!(!mended.damage.is_empty() && mended.is_sound(), "{mended:?}");
    assert_eq!(bench.verify("e0", false).damage, []);
    bench.mv("e0", "q0");
    bench.is_whole("e1", "c").unwrap();
    assert_eq!(bench.names("e1"), ["c", "x"]);
}
