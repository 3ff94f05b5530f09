//! These tests simulate drives that are removed and returned. A drive is a folder of the file system, which is renamed
//! between two uses of the store. Acknowledged data must be readable as long as the drives that contain it are present.
//! A loss must always be reported.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use inshore_store::{
    Budget, Cancel, Device, Directory, Error, Fault, Faulty, FileReader, Findings, Job, Memory, Redundancy,
    Result, Store,
};

const SIZE: Option<u64> = Some(128 << 20);
const COPIES: Redundancy = Redundancy::Copies(2);
const NONE: Redundancy = Redundancy::Copies(1);

/// `Bench` is a temporary folder whose subfolders are the drives.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        Bench(tempfile::tempdir().unwrap())
    }

    /// Creates a store on these drives.
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

    fn is_whole(&self, drive: &str, name: &str) -> Result<()> {
        is_whole(&self.open(drive)?, name)
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
    (0..2_500_000u32).map(|n| (n.wrapping_mul(salt | 1) >> 13) as u8).collect()
}

/// Checks that a dataset contains the bytes that [`put`] writes.
fn is_whole(store: &Store, name: &str) -> Result<()> {
    let job = job(store);
    let file = store.dataset(name)?.file("bytes").unwrap();
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536)?;
    let mut found = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        found.extend_from_slice(piece);
    }
    assert!(found == content(name), "{name}");
    Ok(())
}

fn put(store: &Store, name: &str, redundancy: Redundancy) -> Result<()> {
    let job = store.job(Budget::new(64 << 20, 1), Cancel::default())?;
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
fn as_many_drives_may_fail_as_the_strongest_redundancy_allows() {
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
fn the_next_commit_updates_a_drive_that_was_missing() {
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
fn a_drive_with_a_damaged_superblock_counts_as_missing() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    let segment = fs::File::options().write(true).open(bench.path("e0/segment-00000000")).unwrap();
    for slot in [2, 3] {
        segment.write_all_at(&[0x55; 64], (slot << 20) + 24).unwrap();
    }
    bench.mv("e1", "q1");
    let alone = bench.open("e0").unwrap_err().to_string();
    assert!(alone.contains("both copies are damaged"), "{alone}");
    bench.mv("q1", "e1");
    bench.is_whole("e0", "c").unwrap();
    bench.is_whole("e1", "c").unwrap();
    bench.put("e1", "x", NONE).unwrap();
    let refused = bench.put("e1", "y", COPIES).unwrap_err().to_string();
    assert!(refused.contains("1 missing"), "{refused}");
    let both = Store::open_folders(&[bench.path("e0"), bench.path("e1")]).unwrap();
    assert_eq!(both.list().unwrap().len(), 2);
    assert!(Store::open_folders(&[bench.path("e1"), bench.path("nowhere")]).is_err());
    drop(both);
    bench.mv("e0", "broken");
    bench.add("e2", "e1").unwrap();
    let store = bench.open("e1").unwrap();
    store.remove_device(&job(&store), 0, |_| {}).unwrap();
    assert_eq!(bench.verify("e1", false).damage, []);
    bench.mv("e1", "q1");
    bench.is_whole("e2", "c").unwrap();
}

#[test]
fn a_drive_that_answers_with_errors_counts_as_missing() {
    let home = tempfile::tempdir().unwrap();
    let drives = [0, 1].map(|_| Faulty::new(Arc::new(Memory::new(64)), &[]));
    let open = || {
        let devices = drives.iter().map(|drive| Arc::new(drive.clone()) as Arc<dyn Device>);
        Store::open_on(home.path(), devices.collect()).unwrap()
    };
    put(&open(), "c", COPIES).unwrap();
    let faults = [Fault::FailFromRead(0), Fault::FailFromWrite(0), Fault::FailFromSync(0)];
    for (bad, drive) in drives.iter().enumerate() {
        let before = open();
        drive.set(&faults);
        for store in [&before, &open()] {
            let name = format!("x{bad}-{}", store.list().unwrap().len());
            put(store, &name, NONE).unwrap();
            let file = store.dataset("c").unwrap().file("bytes").unwrap();
            let mut reader = FileReader::new(&job(store), &file, 0..file.len(), 65536).unwrap();
            let mut found = Vec::new();
            while let Some(piece) = reader.next_piece().unwrap() {
                found.extend_from_slice(piece);
            }
            assert!(found == content("c"));
        }
        drive.set(&[]);
        // The next commit of a process that can use the drive updates the drive.
        put(&open(), &format!("y{bad}"), COPIES).unwrap();
    }
    let store = open();
    assert_eq!(store.list().unwrap().len(), 7);
    assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, []);
}

#[test]
fn jobs_continue_after_a_drive_and_its_folder_were_removed() {
    let bench = Bench::with(&["e0", "e1"]);
    let store = bench.open("e0").unwrap();
    let other = bench.open("e0").unwrap();
    let mut late = other.create_dataset(&job(&other), "late", "test").unwrap();
    store.remove_device(&job(&store), 1, |_| {}).unwrap();
    assert_eq!(fs::read_dir(bench.path("e1")).unwrap().count(), 0);
    fs::remove_dir(bench.path("e1")).unwrap();
    let mut writer = late.file("bytes", 65536, 1 << 20).unwrap();
    writer.write(&content("late")).unwrap();
    late.add(writer).unwrap();
    late.commit(&[]).unwrap();
    bench.is_whole("e0", "late").unwrap();
    put(&other, "more", NONE).unwrap();
    assert_eq!(bench.verify("e0", false).damage, []);
}

#[test]
fn an_init_overwrites_the_remains_of_a_killed_one() {
    let names = ["e0", "e1", "e2"];
    for finished in 0..3 {
        let bench = Bench::with(&names);
        let folders: Vec<PathBuf> = names.iter().map(|name| bench.path(name)).collect();
        for (number, folder) in folders.iter().enumerate() {
            // The creation of a store writes slot 1 of one device after the other, and then slot 0. The test undoes the
            // later writes of a creation that was killed after it had written slot 1 of `finished + 1` devices.
            let segment = fs::File::options().write(true).open(folder.join("segment-00000000")).unwrap();
            segment.write_all_at(&[0; 4096], 2 << 20).unwrap();
            if number > finished {
                segment.write_all_at(&[0; 4096], 3 << 20).unwrap();
            }
            fs::write(folder.join("scratch/lock"), "").unwrap();
        }
        assert!(bench.open("e0").is_err());
        Store::init(&folders, SIZE).unwrap();
        bench.put("e2", "c", COPIES).unwrap();
        bench.is_whole("e1", "c").unwrap();
        assert!(matches!(Store::init(&folders, SIZE), Err(Error::StoreExists { .. })));
    }
}

#[test]
fn verify_reports_a_drive_that_was_missing_and_scrub_updates_it() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e1", "q1");
    bench.put("e0", "x", NONE).unwrap();
    bench.mv("q1", "e1");
    let findings = bench.verify("e0", false);
    let told = |what: &str| findings.damage.iter().any(|damage| damage.what.contains(what));
    assert!(told("older state") && told("log are on 1 drive"), "{findings:?}");
    let mended = bench.verify("e0", true);
    assert!(!mended.damage.is_empty() && mended.is_sound(), "{mended:?}");
    assert_eq!(bench.verify("e0", false).damage, []);
    bench.mv("e0", "q0");
    bench.is_whole("e1", "c").unwrap();
    assert_eq!(bench.names("e1"), ["c", "x"]);
}

/// Creates a store on two drives, and writes to each drive while the other drive is missing.
fn split() -> Bench {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e1", "a1");
    bench.put("e0", "x", NONE).unwrap();
    bench.mv("e0", "a0");
    bench.mv("a1", "e1");
    bench.put("e1", "y", NONE).unwrap();
    bench.put("e1", "z", NONE).unwrap();
    bench.mv("a0", "e0");
    bench
}

#[test]
fn two_diverged_drives_are_reported_and_neither_is_written_to() {
    let bench = split();
    for drive in ["e0", "e1"] {
        let error = bench.open(drive).unwrap_err();
        let Error::Diverged { one, other } = &error else { panic!("{error}") };
        assert!(one.contains("e0") && one.contains("2 datasets"), "{one}");
        assert!(other.contains("e1") && other.contains("3 datasets"), "{other}");
    }
    for (drive, other, datasets) in [("e0", "e1", &["c", "x"][..]), ("e1", "e0", &["c", "y", "z"])] {
        bench.mv(other, "away");
        assert_eq!(bench.names(drive), datasets);
        datasets.iter().for_each(|name| bench.is_whole(drive, name).unwrap());
        bench.mv("away", other);
    }
}

#[test]
fn a_diverged_drive_rejoins_once_its_own_commits_are_given_up() {
    let bench = split();
    assert!(matches!(Store::rejoin(bench.path("e0"), bench.path("e0")), Err(Error::BadDevice { .. })));
    assert_eq!(Store::rejoin(bench.path("e0"), bench.path("e1")).unwrap(), 1);
    assert_eq!(bench.names("e1"), ["c", "x"]);
    assert!(bench.verify("e0", true).is_sound());
    bench.mv("e0", "a0");
    bench.is_whole("e1", "c").unwrap();
    bench.mv("a0", "e0");
    // A second rejoin fails, since the drive is no longer diverged.
    assert!(matches!(Store::rejoin(bench.path("e0"), bench.path("e1")), Err(Error::BadDevice { .. })));
}

#[test]
fn a_missing_drive_without_writes_has_not_diverged() {
    let bench = Bench::with(&["e0", "e1", "e2"]);
    for (away, other, name) in [("e0", "e1", "a"), ("e1", "e2", "b"), ("e2", "e0", "c"), ("e0", "e2", "d")] {
        bench.mv(away, "away");
        bench.put(other, name, COPIES).unwrap();
        bench.mv("away", away);
        bench.put(away, &format!("{name}2"), COPIES).unwrap();
    }
    assert_eq!(bench.verify("e0", false).damage, []);
    assert_eq!(bench.names("e1").len(), 8);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn a_copy_of_a_drive_is_refused_where_the_drive_is_and_taken_where_it_is_gone() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    copy(&bench.path("e0"), &bench.path("par/e0"));
    copy(&bench.path("e1"), &bench.path("par/e1"));
    for drive in ["par/e0", "par/e1"] {
        match bench.open(drive).unwrap_err() {
            Error::IsACopy { copy, path, .. } => {
                assert_eq!((copy, path), (bench.path(drive), bench.path(&drive[4..])));
            }
            error => panic!("{error}"),
        }
    }
    bench.is_whole("e0", "c").unwrap();
    bench.mv("e0", "gone0");
    bench.mv("e1", "gone1");
    bench.is_whole("par/e0", "c").unwrap();
    bench.put("par/e0", "d", COPIES).unwrap();
    bench.is_whole("par/e1", "d").unwrap();
    assert_eq!(bench.verify("par/e1", false).damage, []);
}

#[test]
fn drives_that_were_moved_together_find_each_other_and_their_new_places_are_written_down() {
    let bench = Bench::with(&["e0", "e1", "e2"]);
    bench.put("e0", "a", Redundancy::Parity { data: 2, parity: 1 }).unwrap();
    fs::create_dir(bench.path("par")).unwrap();
    for drive in ["e0", "e1", "e2"] {
        bench.mv(drive, &format!("par/{drive}"));
    }
    bench.is_whole("par/e0", "a").unwrap();
    bench.is_whole("par/e2", "a").unwrap();
    let paths: Vec<PathBuf> = bench.open("par/e1").unwrap().device_paths().unwrap().into_values().collect();
    assert_eq!(paths, ["par/e0", "par/e1", "par/e2"].map(|path| bench.path(path)));
    assert_eq!(bench.open("par/e1").unwrap().usage().unwrap()[2].path, bench.path("par/e2"));
    // The drives cannot be found from each other in these folders, so the test names all of them. The commit records
    // the new folders.
    let apart = ["one", "two/deep", "three/deeper/still"];
    for (drive, place) in ["e0", "e1", "e2"].into_iter().zip(apart) {
        fs::create_dir_all(bench.path(place).parent().unwrap()).unwrap();
        bench.mv(&format!("par/{drive}"), place);
    }
    assert!(bench.is_whole("one", "a").is_err());
    let store = Store::open_folders(&apart.map(|place| bench.path(place))).unwrap();
    put(&store, "b", COPIES).unwrap();
    drop(store);
    bench.is_whole("two/deep", "a").unwrap();
    bench.is_whole("one", "b").unwrap();
    assert_eq!(bench.verify("three/deeper/still", false).damage, []);
}

#[test]
fn processes_meet_even_if_they_open_different_drives() {
    let bench = Bench::with(&["e0", "e1"]);
    let store = bench.open("e0").unwrap();
    let at_work = job(&store);
    let mut builder = store.create_dataset(&at_work, "slow", "test").unwrap();
    let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
    let bytes = content("slow");
    writer.write(&bytes).unwrap();
    bench.mv("e0", "q0");
    // The next job sees only e1. It must not take the extents of e1 that the running job `at_work` has taken.
    bench.put("e1", "fast", NONE).unwrap();
    assert_eq!(bench.open("e1").unwrap().jobs().unwrap().len(), 1);
    bench.mv("q0", "e0");
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    drop((at_work, store));
    bench.is_whole("e0", "slow").unwrap();
    bench.is_whole("e0", "fast").unwrap();
    assert_eq!(bench.verify("e1", false).damage, []);
}

#[test]
fn a_job_on_a_moved_drive_gets_an_error_and_commits_nothing() {
    let bench = Bench::with(&["e0", "e1"]);
    let store = bench.open("e0").unwrap();
    bench.mv("e0", "q0");
    bench.put("e1", "fast", NONE).unwrap();
    let error = put(&store, "slow", NONE).unwrap_err();
    assert!(error.to_string().contains("moved or unmounted"), "{error}");
    // A reader can still use the drives that are present.
    assert_eq!(store.list().unwrap().len(), 1);
    drop(store);
    bench.is_whole("q0", "fast").unwrap();
    assert_eq!(bench.names("q0"), ["fast"]);
}

#[test]
fn a_device_in_a_device_is_refused_by_name() {
    let bench = Bench::with(&["e0"]);
    bench.put("e0", "a", NONE).unwrap();
    for inner in ["e0/scratch/in", "e0/in"] {
        let error = bench.add(inner, "e0").unwrap_err();
        assert!(error.to_string().contains(&bench.path("e0").display().to_string()), "{error}");
        let error = Store::init(&[bench.path(inner)], SIZE).unwrap_err();
        assert!(matches!(error, Error::BadDevice { .. }), "{error}");
    }
    for folders in [["s", "s/inner"], ["s/inner", "s"], ["s", "s"]] {
        let error = Store::init(&folders.map(|folder| bench.path(folder)), SIZE).unwrap_err();
        assert!(matches!(error, Error::BadDevice { .. } | Error::NotAStore { .. }), "{error}");
        assert!(!bench.path("s").exists(), "{folders:?}");
    }
    bench.is_whole("e0", "a").unwrap();
}

#[test]
fn a_folder_whose_store_is_gone_becomes_no_new_store_silently() {
    let bench = Bench::with(&["e0"]);
    bench.put("e0", "a", NONE).unwrap();
    fs::remove_file(bench.path("e0/segment-00000000")).unwrap();
    let error = Store::open(bench.path("e0")).unwrap_err();
    assert!(error.to_string().contains("segment-00000000"), "{error}");
    assert!(!bench.path("e0/segment-00000000").exists());
}

/// Overwrites a range of a segment file with zeros. The range is given in MiB.
fn erase(bench: &Bench, segment: &str, mebibytes: std::ops::Range<u64>) {
    let file = fs::File::options().write(true).open(bench.path(segment)).unwrap();
    mebibytes.for_each(|at| file.write_all_at(&vec![0; 1 << 20], at << 20).unwrap());
}

#[test]
fn a_store_is_found_by_a_drive_whose_superblock_is_gone_and_gives_it_back() {
    let bench = Bench::with(&["e0", "e1", "e2"]);
    let parity = Redundancy::Parity { data: 2, parity: 1 };
    bench.put("e0", "p", parity).unwrap();
    erase(&bench, "e0/segment-00000000", 2..4);
    for drive in ["e0", "e1"] {
        bench.is_whole(drive, "p").unwrap();
    }
    bench.put("e0", "x", NONE).unwrap();
    let folders = ["e0", "e1", "e2"].map(|drive| bench.path(drive));
    assert!(matches!(Store::init(&folders, SIZE), Err(Error::StoreExists { .. })));
    let findings = bench.verify("e1", true);
    let told = |what: &str| findings.damage.iter().any(|damage| damage.what.contains(what));
    assert!(told("the superblock of device 0") && told("store add-device"), "{findings:?}");
    assert!(!findings.is_sound());
    assert_eq!(bench.add("e0", "e1").unwrap(), 0);
    assert!(bench.verify("e1", true).is_sound());
    assert_eq!(bench.verify("e0", false).damage, []);
    assert_eq!(bench.names("e0"), ["p", "x"]);
    // Without the superblock and the other drives, the lock file still proves that the folder was a device of a store.
    erase(&bench, "e0/segment-00000000", 2..4);
    bench.mv("e1", "q1");
    bench.mv("e2", "q2");
    for error in [Store::open(bench.path("e0")).err(), Store::init(&folders[..1], SIZE).err()] {
        let said = error.unwrap().to_string();
        assert!(said.contains("superblock (extent 1, in segment-00000000) is lost"), "{said}");
    }
}

#[test]
fn a_store_with_any_trace_of_being_one_is_never_made_anew() {
    // The test erases ranges of the first segment. Offsets in MiB: 0 and 1 are headers, 2 and 3 are the slots of the
    // superblock, and 4 to 11 are the log and the spare log.
    let whole = |bench: &Bench| bench.put("e0", "a", NONE);
    let large = |bench: &Bench| {
        let store = bench.open("e0")?;
        // These commits are so large that a new log is begun.
        for number in 0..4 {
            let job = job(&store);
            store.create_dataset(&job, &format!("l{number}"), "test")?.commit(&vec![7; 900_000])?;
        }
        Ok(())
    };
    type Put<'a> = &'a dyn Fn(&Bench) -> Result<()>;
    let puts: [Put<'_>; 2] = [&whole, &large];
    for put in puts {
        // Each lost range is a pair: its start and its end in MiB.
        for lost in [&[(2, 4)][..], &[(2, 3)], &[(2, 4), (0, 2)], &[(2, 4), (4, 12)]] {
            let bench = Bench::with(&["e0"]);
            put(&bench).unwrap();
            let names = bench.names("e0");
            lost.iter().for_each(|&(first, end)| erase(&bench, "e0/segment-00000000", first..end));
            // The lock file in `scratch`, which also proves that the store existed, is removed too.
            fs::remove_dir_all(bench.path("e0/scratch")).unwrap();
            if lost == [(2, 3)] {
                assert_eq!(bench.names("e0"), names);
                assert!(matches!(Store::init(&[bench.path("e0")], SIZE), Err(Error::StoreExists { .. })));
                continue;
            }
            for error in [
                Store::open(bench.path("e0")).err(),
                bench.open("e0").err(),
                Store::init(&[bench.path("e0")], SIZE).err(),
                bench.add("e0", "e0").err(),
            ] {
                assert!(matches!(error, Some(Error::LostSuperblock { .. })), "{lost:?}: {error:?}");
            }
            let other = Bench::with(&["e1"]);
            let error = other
                .open("e1")
                .unwrap()
                .add_device(Arc::new(Directory::open(&bench.path("e0"), SIZE).unwrap()), SIZE);
            assert!(error.unwrap_err().to_string().contains("remains of a device"), "{lost:?}");
        }
    }
    let bench = Bench::with(&["e0"]);
    fs::remove_dir_all(bench.path("e0/scratch")).unwrap();
    fs::rename(bench.path("e0/segment-00000000"), bench.path("e0/segment-00000001")).unwrap();
    let error = Store::open(bench.path("e0")).unwrap_err();
    assert!(matches!(error, Error::LostSuperblock { .. }), "{error}");
}

#[test]
fn lost_names_are_reported_and_not_overwritten() {
    let bench = Bench::with(&["e0"]);
    bench.put("e0", "a", NONE).unwrap();
    let old = fs::read(bench.path("e0/segment-00000000")).unwrap();
    bench.put("e0", "b", NONE).unwrap();
    // This drive contains both copies of the log. The test overwrites both with their earlier content.
    let segment = fs::File::options().read(true).write(true).open(bench.path("e0/segment-00000000")).unwrap();
    for (extent, bytes) in [2usize, 4].map(|extent| (extent, &old[extent << 21..(extent + 1) << 21])) {
        segment.write_all_at(bytes, (extent as u64) << 21).unwrap();
    }
    for _ in 0..2 {
        for error in [bench.open("e0").err(), bench.put("e0", "c", NONE).err()] {
            let said = error.unwrap().to_string();
            let place =
                "no whole copy of record 2 (at 8192 of extent 2 of device 0 and of extent 4 of device 0)";
            assert!(said.contains(place), "{said}");
        }
    }
    // The lock file in `scratch` announces the lost record. Without this file, the store opens without the record.
    fs::remove_dir_all(bench.path("e0/scratch")).unwrap();
    assert_eq!(bench.names("e0"), ["a"]);
}

#[test]
fn a_superblock_that_names_an_older_log_is_reported() {
    let bench = Bench::with(&["e0"]);
    let commit = |name: &str| {
        let store = bench.open("e0")?;
        let job = job(&store);
        store.create_dataset(&job, name, "test")?.commit(&vec![7; 900_000])
    };
    commit("a").unwrap();
    let old = fs::read(bench.path("e0/segment-00000000")).unwrap();
    ["b", "c"].into_iter().for_each(|name| commit(name).unwrap());
    let segment = fs::File::options().write(true).open(bench.path("e0/segment-00000000")).unwrap();
    segment.write_all_at(&old[2 << 20..4 << 20], 2 << 20).unwrap();
    for error in [bench.open("e0").err(), commit("d").err()] {
        let said = error.unwrap().to_string();
        assert!(said.contains("lost in extent 1 of device 0") && said.contains("log of the store"), "{said}");
    }
}

#[test]
fn a_removed_drive_that_comes_back_is_no_device() {
    let bench = Bench::with(&["e0", "e1", "e2"]);
    bench.put("e0", "a", COPIES).unwrap();
    bench.mv("e2", "q2");
    let store = bench.open("e0").unwrap();
    store.remove_device(&job(&store), 2, |who| panic!("waits for {who}")).unwrap();
    drop(store);
    // The new device gets the number of the removed device.
    assert_eq!(bench.add("e3", "e0").unwrap(), 2);
    bench.put("e0", "b", COPIES).unwrap();
    bench.mv("q2", "e2");
    let error = bench.add("e2", "e0").unwrap_err();
    assert!(error.to_string().contains("was device 2 of this store and was removed"), "{error}");
    bench.is_whole("e3", "b").unwrap();
    assert_eq!(bench.names("e0"), ["a", "b"]);
}

#[test]
fn a_size_that_is_too_small_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    let error = Store::init(&[bench.path("e0")], Some(4 << 20)).unwrap_err();
    assert!(error.to_string().contains("the smallest limit is 32 MiB"), "{error}");
    assert!(!bench.path("e0").exists());
    Store::init(&[bench.path("e0")], Some(32 << 20)).unwrap();
    bench.put("e0", "a", NONE).unwrap();
    bench.is_whole("e0", "a").unwrap();
}

#[test]
fn a_removal_that_is_stopped_says_that_the_device_is_still_leaving() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "a", NONE).unwrap();
    let store = bench.open("e0").unwrap();
    let cancel = Cancel::default();
    let stopped = store.job(Budget::new(64 << 20, 1), cancel.clone()).unwrap();
    cancel.cancel();
    let error = store.remove_device(&stopped, 1, |_| {}).unwrap_err();
    assert!(
        error.is_cancelled() && error.to_string().contains("the removal of device 1 is not complete"),
        "{error}"
    );
    assert_eq!(store.usage().unwrap()[1].state, "leaving");
    store.keep_device(1).unwrap();
    assert_eq!(store.usage().unwrap()[1].state, "ok");
    bench.is_whole("e1", "a").unwrap();
}

#[test]
fn a_lost_drive_with_the_only_copy_of_something_is_not_removed_by_halves() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "alone", NONE).unwrap();
    bench.put("e0", "twice", COPIES).unwrap();
    bench.add("e2", "e0").unwrap();
    bench.mv("e1", "q1");
    let store = bench.open("e0").unwrap();
    let error = store.remove_device(&job(&store), 1, |_| {}).unwrap_err().to_string();
    assert!(error.contains("data of alone has") && !error.contains("twice"), "{error}");
    assert_eq!(store.usage().unwrap()[1].state, "missing");
    drop(store);
    bench.mv("q1", "e1");
    bench.put("e0", "more", NONE).unwrap();
    assert_eq!(bench.verify("e0", false).damage, []);
}

#[test]
fn drives_that_changed_places_are_found_and_their_places_are_written_down() {
    for (drives, mounts) in [
        (["e0", "e1", "e2"], [("e0", "e1"), ("e1", "e2")]),
        // In this case, the parent folders of the drives' folders are exchanged, and the drives' folders have different
        // names.
        (["m0/x", "m1/y", "m2/z"], [("m0", "m1"), ("m1", "m2")]),
    ] {
        let bench = Bench::with(&drives);
        bench.put(drives[0], "p", Redundancy::Parity { data: 2, parity: 1 }).unwrap();
        let swap = |(one, other): (&str, &str)| {
            bench.mv(one, "aside");
            bench.mv(other, one);
            bench.mv("aside", other);
        };
        let folders = || {
            let folders = bench.path("").read_dir().unwrap().map(|entry| entry.unwrap().path());
            let is_drive = |path: &PathBuf| path.join("segment-00000000").exists();
            let inner = |path: PathBuf| match is_drive(&path) {
                true => vec![path],
                false => {
                    path.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(is_drive).collect()
                }
            };
            folders.flat_map(inner).collect::<Vec<_>>()
        };
        let is_all_there = |name: &str| {
            for folder in folders() {
                let store = Store::open_existing(&folder).unwrap();
                assert!(store.usage().unwrap().iter().all(|device| device.state == "ok"), "{folder:?}");
                bench.is_whole(folder.strip_prefix(bench.path("")).unwrap().to_str().unwrap(), name).unwrap();
            }
        };
        for (round, mounts) in mounts.into_iter().chain(mounts).enumerate() {
            swap(mounts);
            is_all_there("p");
            let name = format!("n{round}");
            put(&Store::open_existing(&folders()[1]).unwrap(), &name, COPIES).unwrap();
            is_all_there(&name);
        }
        let store = Store::open_existing(&folders()[0]).unwrap();
        assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, []);
    }
}

#[test]
fn folders_whose_names_are_no_text_are_devices_like_others() {
    let bench = Bench::new();
    let path = |bytes: &[u8]| bench.path("").join(OsStr::from_bytes(bytes));
    let mut folders = [&b"x\xff/a"[..], b"y\xfe/b", b"%"].map(path);
    Store::init(&folders, SIZE).unwrap();
    let open = |path: &Path| Store::open_existing(path).unwrap();
    put(&open(&folders[0]), "c", COPIES).unwrap();
    put(&open(&folders[1]), "p", Redundancy::Parity { data: 2, parity: 1 }).unwrap();
    for (number, to) in [(0, &b"z\xff\xff"[..]), (1, b"text")] {
        let to = path(to);
        fs::rename(&folders[number], &to).unwrap();
        folders[number] = to;
        let store = Store::open_folders(&folders).unwrap();
        put(&store, &format!("moved{number}"), COPIES).unwrap();
        drop(store);
        for folder in &folders {
            let store = open(folder);
            let paths: Vec<PathBuf> = store.device_paths().unwrap().into_values().collect();
            assert_eq!(paths, folders);
            assert_eq!(store.list().unwrap().len(), 3 + number);
            assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, []);
        }
    }
    // In JSON, invalid bytes of a path are replaced.
    let told = serde_json::to_string(&open(&folders[2]).usage().unwrap()).unwrap();
    assert!(told.contains("z\u{fffd}\u{fffd}") && told.contains("/text"), "{told}");
}

#[test]
fn a_drive_whose_superblock_is_gone_finds_the_others_in_folders_whose_names_are_no_text() {
    let bench = Bench::new();
    let folders = [&b"x\xff"[..], b"e1"].map(|name| bench.path("").join(OsStr::from_bytes(name)));
    Store::init(&folders, SIZE).unwrap();
    put(&Store::open_existing(&folders[1]).unwrap(), "c", COPIES).unwrap();
    for (number, folder) in folders.iter().enumerate() {
        let segment = fs::File::options().write(true).open(folder.join("segment-00000000")).unwrap();
        segment.write_all_at(&vec![0; 2 << 20], 2 << 20).unwrap();
        let store = Store::open_existing(folder).unwrap();
        assert_eq!(store.device_paths().unwrap().into_values().collect::<Vec<_>>(), folders);
        is_whole(&store, "c").unwrap();
        assert_eq!(store.add_folder(folder, SIZE).unwrap() as usize, number);
        assert!(store.verify(&job(&store), &[], true).unwrap().is_sound());
        assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, []);
    }
}

#[test]
fn an_added_or_removed_drive_is_announced_on_all_others_at_once() {
    let bench = Bench::with(&["e0", "e1"]);
    let list = |drive: &str| {
        let lock = fs::read(bench.path(drive).join("scratch/lock")).unwrap();
        let mut folders: Vec<PathBuf> = lock[32..]
            .split(|&byte| byte == 0)
            .map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
            .collect();
        assert_eq!(folders.pop(), Some(PathBuf::new()), "each ends with a zero");
        folders.sort_unstable();
        folders
    };
    bench.add("e2", "e0").unwrap();
    for drive in ["e0", "e1", "e2"] {
        assert_eq!(list(drive), ["e0", "e1", "e2"].map(|drive| bench.path(drive)));
    }
    let store = bench.open("e0").unwrap();
    store.remove_device(&job(&store), 1, |who| panic!("waits for {who}")).unwrap();
    for drive in ["e0", "e2"] {
        assert_eq!(list(drive), ["e0", "e2"].map(|drive| bench.path(drive)));
    }
}

/// Adds a drive many times. Each time, another operation on the old drive or on the new drive fails. After the error,
/// the store has the new drive or does not have it. The store must not report damage, and a further call must complete
/// the addition.
#[test]
fn a_drive_whose_adding_failed_is_no_damage_and_can_be_added_again() {
    let scene = || {
        let drives = [0, 1].map(|_| Faulty::new(Arc::new(Memory::new(64)), &[]));
        (tempfile::tempdir().unwrap(), drives)
    };
    let open = |home: &Path, drives: &[Faulty]| {
        let devices = drives.iter().map(|drive| Arc::new(drive.clone()) as Arc<dyn Device>);
        Store::open_on(home, devices.collect()).unwrap()
    };
    let add = |store: &Store, drive: &Faulty| store.add_device(Arc::new(drive.clone()), None);
    let mut runs = 0;
    for bad in [0, 1] {
        let (home, drives) = scene();
        put(&open(home.path(), &drives[..1]), "a", NONE).unwrap();
        let store = open(home.path(), &drives[..1]);
        drives[bad].set(&[]);
        add(&store, &drives[1]).unwrap();
        let (reads, writes, syncs) = drives[bad].counts();
        assert!(writes > 3 && syncs > 3, "{writes} writes, {syncs} syncs");
        let all = |count: u64, kinds: &[fn(u64) -> Fault]| -> Vec<Fault> {
            (0..count).flat_map(|n| kinds.iter().map(move |kind| kind(n))).collect()
        };
        let faults = [
            all(reads, &[Fault::FailRead, Fault::FailFromRead]),
            all(writes, &[Fault::FailWrite, Fault::FailFromWrite]),
            all(syncs, &[Fault::FailSync, Fault::FailFromSync]),
            all(1, &[Fault::NoSpaceFromPrepare]),
        ];
        for fault in faults.concat() {
            for is_seen in [true, false] {
                let what = format!("{fault:?} on drive {bad}, which is seen afterwards: {is_seen}");
                let (home, drives) = scene();
                put(&open(home.path(), &drives[..1]), "a", NONE).unwrap();
                let store = open(home.path(), &drives[..1]);
                drives[bad].set(&[fault]);
                let added = add(&store, &drives[1]);
                drives[bad].set(&[]);
                drop(store);
                // If the addition was acknowledged, the new drive belongs to the store, and its absence would be
                // reported as damage.
                if added.is_ok() && !is_seen {
                    continue;
                }
                let store = open(home.path(), if is_seen { &drives } else { &drives[..1] });
                let findings = store.verify(&job(&store), &[], false).unwrap();
                if is_seen || !store.usage().unwrap().iter().any(|device| device.state == "missing") {
                    assert_eq!(findings.damage, [], "{what}");
                }
                drop(store);
                runs += 1;
                if !is_seen {
                    continue;
                }
                let store = open(home.path(), &drives);
                if let Err(error) = add(&store, &drives[1]) {
                    assert!(error.to_string().contains("of this store already"), "{what}: {error}");
                }
                put(&store, "c", COPIES).unwrap();
                let states: Vec<&str> = store.usage().unwrap().iter().map(|device| device.state).collect();
                assert_eq!(states, ["ok", "ok"], "{what}");
                assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, [], "{what}");
            }
        }
    }
    println!("{runs} faults");
}

#[test]
fn a_new_folder_at_the_old_place_of_a_drive_that_was_moved_is_a_drive_of_its_own() {
    let bench = Bench::with(&["e0", "e1"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e1", "q1");
    let store = Store::open_folders(&[bench.path("e0"), bench.path("q1")]).unwrap();
    assert_eq!(store.add_folder(&bench.path("e1"), SIZE).unwrap(), 2);
    drop(store);
    bench.put("e1", "d", COPIES).unwrap();
    let paths: Vec<PathBuf> = bench.open("e0").unwrap().device_paths().unwrap().into_values().collect();
    assert_eq!(paths, ["e0", "q1", "e1"].map(|drive| bench.path(drive)));
    assert_eq!(bench.verify("q1", false).damage, []);
}

#[test]
fn only_an_empty_folder_is_added() {
    let bench = Bench::with(&["e0"]);
    fs::create_dir(bench.path("e1")).unwrap();
    fs::write(bench.path("e1/thesis.tex"), "").unwrap();
    let store = bench.open("e0").unwrap();
    let error = store.add_folder(&bench.path("e1"), SIZE).unwrap_err();
    assert!(error.to_string().contains("e1: it is not empty"), "{error}");
    assert_eq!(store.add_folder(&bench.path("new/e2"), SIZE).unwrap(), 1);
}

#[test]
fn a_removed_drive_whose_data_cannot_be_deleted_is_named() {
    let home = tempfile::tempdir().unwrap();
    let drives = [0, 1].map(|_| Faulty::new(Arc::new(Memory::new(64)), &[]));
    let devices = drives.iter().map(|drive| Arc::new(drive.clone()) as Arc<dyn Device>);
    let store = Store::open_on(home.path(), devices.collect()).unwrap();
    put(&store, "a", NONE).unwrap();
    drives[1].set(&[Fault::FailFromDiscard(0)]);
    let error = store.remove_device(&job(&store), 1, |_| {}).unwrap_err();
    let Error::BadDevice { path, what } = &error else { panic!("{error}") };
    assert_eq!(path.to_str(), Some(&*drives[1].name()));
    assert!(what.contains("device 1 was removed") && what.contains("segment-*"), "{what}");
    assert_eq!(store.usage().unwrap().len(), 1);
    assert_eq!(store.verify(&job(&store), &[], false).unwrap().damage, []);
}

#[test]
fn removing_a_missing_first_drive_disturbs_no_job_on_the_others() {
    let bench = Bench::with(&["e0", "e1", "e2"]);
    bench.put("e0", "c", COPIES).unwrap();
    bench.mv("e0", "broken");
    let (store, other) = (bench.open("e1").unwrap(), bench.open("e2").unwrap());
    let at_work = job(&other);
    let mut builder = other.create_dataset(&at_work, "slow", "test").unwrap();
    let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
    writer.write(&content("slow")).unwrap();
    store.remove_device(&job(&store), 0, |who| panic!("waits for {who}")).unwrap();
    assert_eq!(store.jobs().unwrap().len(), 1, "who is at work is still known");
    put(&store, "fast", NONE).unwrap();
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    drop(at_work);
    ["c", "slow", "fast"].iter().for_each(|name| bench.is_whole("e2", name).unwrap());
    assert_eq!(bench.verify("e1", false).damage, []);
}
