//! These tests simulate a crash after each operation of a store on its devices. In a crash, writes that are not durable
//! are kept, lost or torn. Every acknowledged dataset must exist after the crash with all its bytes. A dataset whose
//! commit was in progress must exist with all its bytes, or not exist.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use inshore_store::{
    Budget, Cancel, DatasetBuilder, Device, FileReader, History, Memory, Operation, Recording, Redundancy,
    Result, Store, WriteFate, after_crash,
};

const EXTENTS: u32 = 600;

/// `Step` is one change of the store in a recorded test run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Creates a dataset of a given length.
    Create(&'static str, usize),
    /// Removes a dataset, if it exists.
    Remove(&'static str),
    /// Replaces a dataset by a dataset of a given length, or creates it if it does not exist.
    Replace(&'static str, usize),
    /// Writes a dataset and drops its builder without a commit.
    Abandon(usize),
    /// Appends bytes to an unsealed dataset, or creates the dataset if it does not exist.
    Append(&'static str, usize),
    /// Seals a dataset, if it exists.
    Seal(&'static str),
    /// Compacts the store, including a balance of the devices.
    Compact,
    /// Adds a device, if the store has had fewer than [`DEVICES_MAX`] devices.
    AddDevice,
    /// Removes the last added device, if any was added.
    RemoveDevice,
}

/// The largest number of devices of a store in a test run.
const DEVICES_MAX: usize = 4;

/// Creates a folder for a store whose devices are in memory. If possible, the folder is in a memory file system, since
/// the tests create tens of thousands of folders.
fn home() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the content of a dataset. The bytes differ between datasets and between the sectors of a dataset.
fn content(name: &str, len: usize) -> Vec<u8> {
    let salt = name.bytes().fold(len, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte as usize));
    (0..len).map(|i| ((i / 512) * 31 + i % 512 + salt) as u8).collect()
}

/// Returns the content of a file after appends of the lengths `lens`.
fn contents(name: &str, lens: &[usize]) -> Vec<u8> {
    lens.iter().flat_map(|&len| content(name, len)).collect()
}

fn write(store: &Store, name: &str, len: usize, commit: bool, unsealed: bool) -> Result<()> {
    let job = store.job(Budget::new(16 << 20, 1), Cancel::default())?;
    fill(store.create_dataset(&job, name, "test")?, name, len, commit, unsealed)
}

fn replace(store: &Store, name: &str, len: usize, commit: bool) -> Result<()> {
    let job = store.job(Budget::new(16 << 20, 1), Cancel::default())?;
    fill(store.replace_dataset(&job, name, "test")?, name, len, commit, false)
}

/// Writes the file of a dataset, and commits the dataset if `commit` is set.
fn fill(mut builder: DatasetBuilder, name: &str, len: usize, commit: bool, unsealed: bool) -> Result<()> {
    // The redundancy of a dataset depends on its name. An error is ignored: with too few devices, the dataset has no
    // redundancy.
    let wanted = match name {
        "b" => Redundancy::Copies(2),
        "c" => Redundancy::Parity { data: 2, parity: 1 },
        _ => Redundancy::Copies(1),
    };
    let _ = builder.redundancy(wanted);
    if unsealed {
        builder.unsealed();
    }
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    // Some datasets have large attributes, so that the log is soon full and a new log is begun.
    let attributes = vec![7; if name > "b" { 900_000 } else { 10 }];
    if commit { builder.commit(&attributes) } else { Ok(()) }
}

fn append(store: &Store, name: &str, len: usize) -> Result<()> {
    let job = store.job(Budget::new(16 << 20, 1), Cancel::default())?;
    let mut builder = store.append_to_dataset(&job, name)?;
    let mut writer = builder.append("bytes", 4096, 65536, 2)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    builder.commit(&[7; 10])
}

fn read(store: &Store, name: &str) -> Result<Vec<u8>> {
    let job = store.job(Budget::new(16 << 20, 1), Cancel::default())?;
    let file = store.dataset(name)?.file("bytes").expect("every dataset here has it");
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// `Model` is the expected state of a store: for each dataset the lengths of its appends, and true if it is sealed.
type Model = BTreeMap<&'static str, (Vec<usize>, bool)>;

/// `Run` is a recorded test run.
struct Run {
    /// The number of devices at the start of the test run.
    devices: usize,
    history: Vec<(u16, Operation)>,
    /// For each step: the length of the history before and after the step, and the expected state after the step.
    states: Vec<(usize, usize, Model)>,
}

fn record(devices: usize, steps: &[Step]) -> Run {
    let history = History::default();
    let recorded = |number: u16| -> Arc<dyn Device> {
        Arc::new(Recording::new(Arc::new(Memory::new(EXTENTS)), number, &history))
    };
    let home = home();
    let len = || history.lock().unwrap().len();
    let store = Store::open_on(home.path(), (0..devices as u16).map(recorded).collect()).unwrap();
    let mut model = Model::new();
    let mut states = vec![(0, len(), model.clone())];
    // The store must give a new device the number that the recording uses for it.
    let (mut next_device, mut added) = (devices as u16, Vec::new());
    for &step in steps {
        let before = len();
        match step {
            Step::Create(name, bytes) => {
                if write(&store, name, bytes, true, false).is_ok() {
                    model.insert(name, (vec![bytes], true));
                }
            }
            Step::Replace(name, bytes) => {
                replace(&store, name, bytes, true).unwrap();
                model.insert(name, (vec![bytes], true));
            }
            Step::Append(name, bytes) => match model.get_mut(name) {
                None => {
                    write(&store, name, bytes, true, true).unwrap();
                    model.insert(name, (vec![bytes], false));
                }
                Some((_, true)) => assert!(append(&store, name, bytes).is_err()),
                Some((lens, false)) => {
                    append(&store, name, bytes).unwrap();
                    lens.push(bytes);
                }
            },
            Step::Seal(name) => {
                if store.seal(name).is_ok() {
                    model.get_mut(name).unwrap().1 = true;
                }
            }
            Step::Remove(name) => {
                if store.remove(name).is_ok() {
                    model.remove(name);
                }
            }
            Step::Abandon(bytes) => write(&store, "abandoned", bytes, false, false).unwrap(),
            Step::Compact => {
                let job = store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
                store.compact(&job, true).unwrap();
            }
            Step::AddDevice => {
                if (next_device as usize) < DEVICES_MAX {
                    assert_eq!(store.add_device(recorded(next_device), None).unwrap(), next_device);
                    added.push(next_device);
                    next_device += 1;
                }
            }
            Step::RemoveDevice => {
                if let Some(number) = added.pop() {
                    let job = store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
                    if store.remove_device(&job, number, |who| panic!("waits for {who}")).is_err() {
                        added.push(number);
                    } else {
                        // The store may reuse the number of the removed device, so no further device is added.
                        next_device = DEVICES_MAX as u16;
                    }
                }
            }
        }
        states.push((before, len(), model.clone()));
    }
    drop(store);
    let history = history.lock().unwrap().clone();
    Run { devices, history, states }
}

impl Run {
    /// Opens the store in its state after a crash that followed the first `end` operations, and compares its content
    /// with the allowed states.
    fn check(&self, end: usize, fate: impl FnMut(usize) -> WriteFate, what: &str) {
        let blank: Vec<Memory> = (0..DEVICES_MAX).map(|_| Memory::new(EXTENTS)).collect();
        let left = after_crash(&self.history[..end], &blank, fate);
        // A device that is added during the test run does not exist before its first write.
        let is_there = |(n, device): &(usize, Memory)| *n < self.devices || !device.written().is_empty();
        let left = left.into_iter().enumerate().filter(is_there);
        let left: Vec<Arc<dyn Device>> = left.map(|(_, device)| Arc::new(device) as _).collect();
        let home = home();
        // Allowed are the last acknowledged state, and the states of changes that were in progress. If the crash was
        // during the creation of the store, no store may exist, and an empty store is created.
        let last = self.states.iter().rposition(|(_, after, _)| *after <= end).unwrap_or(0);
        let possible: Vec<&Model> =
            self.states[last..].iter().filter(|(before, ..)| *before <= end).map(|state| &state.2).collect();
        let store =
            Store::open_on(home.path(), left.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = store.list().unwrap();
        let found = |model: &&&Model| {
            let same = |(name, (lens, sealed)): (&&str, &(Vec<usize>, bool))| {
                found.iter().any(|summary| {
                    (&summary.name[..], summary.sealed, summary.bytes)
                        == (*name, *sealed, lens.iter().sum::<usize>() as u64)
                })
            };
            model.len() == found.len() && model.iter().all(same)
        };
        let model = possible.iter().find(found);
        let model = model.unwrap_or_else(|| {
            panic!("{what}: found {:?}, expected one of {possible:?}", store.list().unwrap())
        });
        for (name, (lens, _)) in model.iter() {
            let bytes = read(&store, name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(bytes == contents(name, lens), "{what}: {name} is not what was written");
        }
        // The store must stay usable, and a new dataset must not overwrite an old dataset.
        write(&store, "after", 5000, true, false).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        let store = Store::open_on(home.path(), left).unwrap();
        let after = (vec![5000], true);
        for (name, (lens, _)) in model.iter().map(|(name, state)| (*name, state)).chain([("after", &after)]) {
            assert!(read(&store, name).unwrap() == contents(name, lens), "{what}: {name} after going on");
        }
    }
}

const STEPS: [Step; 10] = [
    Step::Create("a", 10_000),
    Step::Create("b", 70_000),
    Step::Remove("a"),
    Step::Append("a", 3),
    Step::Append("a", 9_000),
    Step::Seal("a"),
    Step::Abandon(20_000),
    Step::Compact,
    Step::AddDevice,
    Step::RemoveDevice,
];

#[test]
fn every_crash_in_every_short_sequence_leaves_acknowledged_datasets() {
    let (next, crashes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let check_pairs = || {
        while let pair = next.fetch_add(1, Ordering::Relaxed)
            && pair < STEPS.len() * STEPS.len()
        {
            let (first, second) = (STEPS[pair / STEPS.len()], STEPS[pair % STEPS.len()]);
            for third in STEPS {
                let run = record(1, &[first, second, third]);
                // For each pair of first and second steps, crashes during these two steps are checked only once.
                let begin = if third == STEPS[0] { 0 } else { run.states[2].1 };
                for end in begin..=run.history.len() {
                    let what = format!("{first:?}, {second:?}, {third:?}, crash after {end}");
                    run.check(end, |_| WriteFate::Kept, &what);
                    run.check(end, |_| WriteFate::Lost, &what);
                    crashes.fetch_add(2, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(check_pairs);
        }
    });
    let crashes = crashes.into_inner();
    println!("{crashes} crashes");
    assert!(crashes > 10_000);
}

#[test]
fn every_crash_of_a_replacement_leaves_the_old_dataset_or_the_new_one() {
    for steps in [
        [Step::Create("a", 10_000), Step::Replace("a", 30_000), Step::Replace("a", 500)],
        [Step::Append("b", 9_000), Step::Replace("b", 70_000), Step::Compact],
        [Step::Replace("c", 9_000), Step::Remove("c"), Step::Replace("c", 20_000)],
    ] {
        for devices in [1, 3] {
            let run = record(devices, &steps);
            for end in 0..=run.history.len() {
                let what = format!("{steps:?}, {devices} devices, crash after {end}");
                run.check(end, |_| WriteFate::Kept, &what);
                run.check(end, |_| WriteFate::Lost, &what);
            }
        }
    }
}

#[test]
fn every_tear_of_the_last_write_leaves_acknowledged_datasets() {
    let sequences: [&[Step]; 5] = [
        &[STEPS[0], STEPS[2], STEPS[1]],
        &[Step::Create("a", 10_000), Step::Replace("a", 30_000), Step::Replace("a", 500)],
        &[Step::Append("b", 9_000), Step::Append("b", 7_000), Step::Seal("b")],
        &[Step::AddDevice, Step::Create("a", 30_000), Step::Compact],
        &[Step::AddDevice, Step::Create("a", 30_000), Step::RemoveDevice],
    ];
    for (devices, steps) in sequences.iter().flat_map(|steps| [(1, steps), (2, steps)]) {
        let run = record(devices, steps);
        for end in 0..=run.history.len() {
            let Some((_, Operation::Write(_, _, bytes))) = run.history[..end].last() else { continue };
            let sectors = bytes.len() / 512;
            for sector in (0..sectors).filter(|sector| sectors <= 16 || sector % 61 == 0) {
                for fate in [WriteFate::TornAfter(sector), WriteFate::TornBefore(sector)] {
                    let what = format!("{steps:?}, {devices} devices, crash after {end}, {fate:?}");
                    run.check(end, |place| if place + 1 == end { fate } else { WriteFate::Kept }, &what);
                }
            }
        }
    }
}

/// Simulates crashes at random operations of longer test runs, with a random fate for each write that is not durable.
/// The environment variable `INSHORE_CRASHES` sets the number of crashes, and `INSHORE_SEED` the first seed.
#[test]
fn random_crashes_of_long_runs_leave_acknowledged_datasets() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let wanted = number("INSHORE_CRASHES", 600);
    let names = ["a", "b", "c", "d", "e"];
    let (mut done, mut generations) = (0, 0);
    for seed in number("INSHORE_SEED", 1).. {
        let mut state: u64 = seed;
        let mut below = |limit: u64| {
            // This random number generator is SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (word ^ (word >> 31)) % limit
        };
        let devices = 1 + below(3) as usize;
        let count = 3 + below(20);
        let steps: Vec<Step> = (0..count)
            .map(|_| {
                let name = names[below(5) as usize];
                match below(12) {
                    0..=3 => Step::Create(name, below(40_000) as usize),
                    4..=5 => Step::Remove(name),
                    6 => Step::Abandon(below(20_000) as usize),
                    7..=8 => Step::Append(name, below(30_000) as usize),
                    9 => Step::Seal(name),
                    10 => Step::Compact,
                    _ => [Step::AddDevice, Step::RemoveDevice][below(2) as usize],
                }
            })
            .collect();
        let run = record(devices, &steps);
        // For each new log, superblocks are written to extent 1, so the number of these writes shows the number of new
        // logs.
        let is_superblock = |(_, operation): &&(u16, Operation)| matches!(operation, Operation::Write(1, ..));
        generations += run.history.iter().filter(is_superblock).count() / devices - 2;
        for _ in 0..20 {
            let end = below(run.history.len() as u64 + 1) as usize;
            let what = format!("seed {seed}, {devices} devices, crash after {end} of {}", run.history.len());
            let fate = |_| match below(4) {
                0 => WriteFate::Lost,
                1 => WriteFate::TornAfter(below(20) as usize),
                2 => WriteFate::TornBefore(below(20) as usize),
                _ => WriteFate::Kept,
            };
            run.check(end, fate, &what);
            done += 1;
            if done == wanted {
                assert!(generations > 5, "{generations} new logs");
                return;
            }
        }
    }
}
