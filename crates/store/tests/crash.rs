//! Every crash that could have happened: after each step of what a store does to its devices, with what no sync had
//! made durable kept, lost or torn. What was acknowledged must be there, whole; what was not may be there, whole.

use std::{collections::BTreeMap, sync::Arc};

use inshore_store::{
    Budget, Cancel, Device, Fate, FileReader, History, Memory, Operation, Recording, Result, Store,
    after_crash,
};

const EXTENTS: u32 = 600;

/// What one step does to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Makes a dataset of so many bytes.
    Create(&'static str, usize),
    /// Removes one, if it is there.
    Remove(&'static str),
    /// Makes a dataset and gives up before the commit.
    Abandon(usize),
}

/// Bytes that tell one dataset from another, and each sector from the next.
fn content(name: &str, len: usize) -> Vec<u8> {
    let salt = name.bytes().fold(len, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte as usize));
    (0..len).map(|i| ((i / 512) * 31 + i % 512 + salt) as u8).collect()
}

fn write(store: &Store, name: &str, len: usize, commit: bool) -> Result<()> {
    let job = store.job(Budget::new(1 << 20, 1), Cancel::default())?;
    let mut builder = store.create_dataset(&job, name, "test")?;
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    // Some datasets have so much to say that the log is soon full and begins anew elsewhere.
    let attributes = vec![7; if name > "b" { 900_000 } else { 10 }];
    if commit { builder.commit(&attributes) } else { Ok(()) }
}

fn read(store: &Store, name: &str) -> Result<Vec<u8>> {
    let job = store.job(Budget::new(1 << 20, 1), Cancel::default())?;
    let file = store.dataset(name)?.file("bytes").expect("every dataset here has it");
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// What must be there: lengths by name.
type Model = BTreeMap<&'static str, usize>;

/// A run that was written down.
struct Run {
    history: Vec<(u16, Operation)>,
    /// The state after each step, with the length of the history before and after that step.
    states: Vec<(usize, usize, Model)>,
}

fn record(devices: usize, steps: &[Step]) -> Run {
    let history = History::default();
    let recorded = (0..devices as u16).map(|number| {
        let device = Arc::new(Memory::new(EXTENTS));
        Arc::new(Recording::new(device, number, &history)) as Arc<dyn Device>
    });
    let home = tempfile::tempdir().unwrap();
    let len = || history.lock().unwrap().len();
    let store = Store::open_on(home.path(), recorded.collect()).unwrap();
    let mut model = Model::new();
    let mut states = vec![(0, len(), model.clone())];
    for &step in steps {
        let before = len();
        match step {
            Step::Create(name, bytes) => {
                if write(&store, name, bytes, true).is_ok() {
                    model.insert(name, bytes);
                }
            }
            Step::Remove(name) => {
                if store.remove(name).is_ok() {
                    model.remove(name);
                }
            }
            Step::Abandon(bytes) => write(&store, "abandoned", bytes, false).unwrap(),
        }
        states.push((before, len(), model.clone()));
    }
    drop(store);
    let history = history.lock().unwrap().clone();
    Run { history, states }
}

impl Run {
    /// Opens what a crash after `end` operations left and compares it with what may be there.
    fn check(&self, devices: usize, end: usize, fate: impl FnMut(usize) -> Fate, what: &str) {
        let blank: Vec<Memory> = (0..devices).map(|_| Memory::new(EXTENTS)).collect();
        let left = after_crash(&self.history[..end], &blank, fate);
        let left: Vec<Arc<dyn Device>> = left.into_iter().map(|device| Arc::new(device) as _).collect();
        let home = tempfile::tempdir().unwrap();
        // The last state that was acknowledged, and those that were on their way. Before the store itself was
        // acknowledged there may be none, and then an empty one is made.
        let last = self.states.iter().rposition(|(_, after, _)| *after <= end).unwrap_or(0);
        let possible: Vec<&Model> =
            self.states[last..].iter().filter(|(before, ..)| *before <= end).map(|state| &state.2).collect();
        let store =
            Store::open_on(home.path(), left.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found: Vec<String> = store.list().unwrap().into_iter().map(|summary| summary.name).collect();
        let model = possible.iter().find(|model| model.keys().eq(found.iter()));
        let model = model.unwrap_or_else(|| panic!("{what}: found {found:?}, expected one of {possible:?}"));
        for (name, &len) in model.iter() {
            let bytes = read(&store, name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(bytes == content(name, len), "{what}: {name} is not what was written");
        }
        // It goes on from there, and what is written now takes nothing from what was there.
        write(&store, "after", 5000, true).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        let store = Store::open_on(home.path(), left).unwrap();
        for (name, &len) in model.iter().chain([(&"after", &5000)]) {
            assert!(read(&store, name).unwrap() == content(name, len), "{what}: {name} after going on");
        }
    }
}

const STEPS: [Step; 5] = [
    Step::Create("a", 10_000),
    Step::Create("b", 70_000),
    Step::Remove("a"),
    Step::Create("a", 3),
    Step::Abandon(20_000),
];

#[test]
fn every_crash_in_every_short_sequence_leaves_what_was_acknowledged() {
    let mut crashes = 0;
    for first in STEPS {
        for second in STEPS {
            for third in STEPS {
                let run = record(1, &[first, second, third]);
                // What the first two steps do is looked at once for each pair.
                let begin = if third == STEPS[0] { 0 } else { run.states[2].1 };
                for end in begin..=run.history.len() {
                    let what = format!("{first:?}, {second:?}, {third:?}, crash after {end}");
                    run.check(1, end, |_| Fate::Kept, &what);
                    run.check(1, end, |_| Fate::Lost, &what);
                    crashes += 2;
                }
            }
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 1000);
}

#[test]
fn every_tear_of_the_last_write_leaves_what_was_acknowledged() {
    for devices in [1, 2] {
        let run = record(devices, &[STEPS[0], STEPS[2], STEPS[1]]);
        for end in 0..=run.history.len() {
            let Some((_, Operation::Write(_, _, bytes))) = run.history[..end].last() else { continue };
            let sectors = bytes.len() / 512;
            for sector in (0..sectors).filter(|sector| sectors <= 16 || sector % 61 == 0) {
                for fate in [Fate::TornAfter(sector), Fate::TornBefore(sector)] {
                    let what = format!("{devices} devices, crash after {end}, {fate:?}");
                    run.check(devices, end, |place| if place + 1 == end { fate } else { Fate::Kept }, &what);
                }
            }
        }
    }
}

/// Longer runs, crashed anywhere, where each write that was on its way has a fate of its own. `INSHORE_CRASHES` says
/// how many.
#[test]
fn random_crashes_of_long_runs_leave_what_was_acknowledged() {
    let wanted: u64 = std::env::var("INSHORE_CRASHES").map_or(600, |count| count.parse().unwrap());
    let names = ["a", "b", "c", "d", "e"];
    let (mut done, mut generations) = (0, 0);
    for seed in 1.. {
        let mut state: u64 = seed;
        let mut below = |limit: u64| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (word ^ (word >> 31)) % limit
        };
        let devices = 1 + below(2) as usize;
        let count = 3 + below(20);
        let steps: Vec<Step> = (0..count)
            .map(|_| match below(5) {
                0..=2 => Step::Create(names[below(5) as usize], below(40_000) as usize),
                3 => Step::Remove(names[below(5) as usize]),
                _ => Step::Abandon(below(20_000) as usize),
            })
            .collect();
        let run = record(devices, &steps);
        // Each new log comes with a superblock, at the beginning of the second extent or in its middle.
        let is_superblock = |(_, operation): &&(u16, Operation)| matches!(operation, Operation::Write(1, ..));
        generations += run.history.iter().filter(is_superblock).count() / devices - 2;
        for _ in 0..20 {
            let end = below(run.history.len() as u64 + 1) as usize;
            let what = format!("seed {seed}, {devices} devices, crash after {end} of {}", run.history.len());
            let fate = |_| match below(4) {
                0 => Fate::Lost,
                1 => Fate::TornAfter(below(20) as usize),
                2 => Fate::TornBefore(below(20) as usize),
                _ => Fate::Kept,
            };
            run.check(devices, end, fate, &what);
            done += 1;
            if done == wanted {
                assert!(generations > 5, "{generations} new logs");
                return;
            }
        }
    }
}
