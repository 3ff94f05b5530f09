//! These tests let operations on a device fail: each operation once, each operation and all later ones, and random
//! operations. Acknowledged changes must exist afterwards, and failed changes must exist completely or not at all. No
//! read may return wrong bytes.

use std::{collections::BTreeMap, sync::Arc};

use inshore_store::{
    Budget, Cancel, Device, Error, Fault, Faulty, FileReader, Job, Memory, Redundancy, Result, RuntimeError,
    Store,
};

fn content(name: &str, len: usize) -> Vec<u8> {
    let salt = name.bytes().fold(len, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte as usize));
    (0..len).map(|i| ((i / 512) * 31 + i % 512 + salt) as u8).collect()
}

fn job(store: &Store) -> Result<Job> {
    store.job(Budget::new(16 << 20, 1), Cancel::default())
}

fn create(store: &Store, name: &str, len: usize, is_open: bool) -> Result<()> {
    let job = job(store)?;
    let mut builder = store.create_dataset(&job, name, "test")?;
    if name == "twice" {
        let _ = builder.redundancy(Redundancy::Copies(2));
    }
    if is_open {
        builder.unsealed();
    }
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    builder.commit(b"test")
}

fn replace(store: &Store, name: &str, len: usize) -> Result<()> {
    let job = job(store)?;
    let mut builder = store.replace_dataset(&job, name, "test")?;
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    builder.commit(b"test")
}

fn append(store: &Store, name: &str, len: usize) -> Result<()> {
    let job = job(store)?;
    let mut builder = store.append_to_dataset(&job, name)?;
    let mut writer = builder.append("bytes", 4096, 65536, 2)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    builder.commit(b"test")
}

fn read(store: &Store, name: &str) -> Result<Vec<u8>> {
    let job = job(store)?;
    let file = store.dataset(name)?.file("bytes").expect("every dataset here has it");
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// `State` is a possible state of a dataset: `None` if it is missing, or the lengths of its writes and true if it is
/// sealed.
type State = Option<(Vec<usize>, bool)>;

/// `PossibleStates` contains the possible states of each dataset.
type PossibleStates = BTreeMap<&'static str, Vec<State>>;

struct FaultyStore {
    devices: Vec<Faulty>,
    home: tempfile::TempDir,
}

impl FaultyStore {
    fn new(devices: usize) -> FaultyStore {
        let device = || Faulty::new(Arc::new(Memory::new(300)), &[]);
        let devices: Vec<Faulty> = (0..devices).map(|_| device()).collect();
        let scene = FaultyStore { devices, home: tempfile::tempdir().unwrap() };
        let store = scene.open().unwrap();
        for (name, is_open) in
            [("gone", false), ("kept", false), ("longer", true), ("shut", true), ("changed", false)]
        {
            create(&store, name, 9000, is_open).unwrap();
        }
        scene
    }

    fn open(&self) -> Result<Store> {
        let devices = self.devices.iter().map(|device| Arc::new(device.clone()) as Arc<dyn Device>);
        Store::open_on(self.home.path(), devices.collect())
    }

    /// Makes several changes of the store, some of which may fail, and returns the states that each dataset may have
    /// afterwards.
    fn act(&self) -> PossibleStates {
        let was = |sealed| vec![Some((vec![9000], sealed))];
        let mut possible: PossibleStates = BTreeMap::from([
            ("new", vec![None]),
            ("twice", vec![None]),
            ("gone", was(true)),
            ("kept", was(true)),
            ("longer", was(false)),
            ("shut", was(false)),
            ("changed", was(true)),
        ]);
        let mut note = |name, done: Result<()>, after: State| {
            let states = possible.get_mut(name).unwrap();
            match done {
                Ok(()) => *states = vec![after],
                Err(_) => states.push(after),
            }
        };
        let Ok(store) = self.open() else { return possible };
        note("new", create(&store, "new", 20_000, false), Some((vec![20_000], true)));
        note("twice", create(&store, "twice", 10_000, false), Some((vec![10_000], true)));
        note("longer", append(&store, "longer", 5000), Some((vec![9000, 5000], false)));
        note("shut", store.seal("shut"), Some((vec![9000], true)));
        note("changed", replace(&store, "changed", 12_000), Some((vec![12_000], true)));
        note("gone", store.remove("gone"), None);
        let _ = job(&store).and_then(|job| store.compact(&job, true));
        if let Ok(bytes) = read(&store, "kept") {
            assert!(bytes == content("kept", 9000));
        }
        possible
    }

    /// Opens the store again, on devices that no longer fail, and checks its datasets. `lied` is true if a device
    /// reported success for a failed operation. Data may then be damaged, but no read may return wrong bytes.
    fn check(&self, possible: &PossibleStates, lied: bool, what: &str) {
        self.devices.iter().for_each(|device| device.set(&[]));
        let store = match self.open() {
            Ok(store) => store,
            Err(error) if lied => return assert!(is_told(&error), "{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
        };
        let list = match store.list() {
            Ok(list) => list,
            Err(error) if lied => return assert!(is_told(&error), "{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
        };
        for (name, states) in possible {
            let found = list.iter().find(|summary| summary.name == *name);
            let fits = |state: &&State| match (state, found) {
                (None, None) => true,
                (Some((lens, sealed)), Some(found)) => {
                    found.bytes == lens.iter().sum::<usize>() as u64 && found.sealed == *sealed
                }
                _ => false,
            };
            let Some(state) = states.iter().find(fits) else {
                panic!("{what}: {name} is {found:?}, expected one of {states:?}");
            };
            let Some((lens, _)) = state else { continue };
            match read(&store, name) {
                Ok(bytes) => {
                    let right: Vec<u8> = lens.iter().flat_map(|&len| content(name, len)).collect();
                    assert!(bytes == right, "{what}: {name}");
                }
                Err(error) => assert!(lied && is_told(&error), "{what}: {name}: {error}"),
            }
        }
        if let Err(error) = create(&store, "after", 5000, false) {
            assert!(lied && is_told(&error), "{what}: {error}");
        }
    }
}

/// Returns true if an error reports damage.
fn is_told(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. }
            | Error::DamagedHeader { .. }
            | Error::DamagedExtent { .. }
            | Error::BadFormat { .. }
            | Error::LostSuperblock { .. }
    )
}

#[test]
fn after_any_call_fails_acknowledged_changes_are_there() {
    let mut runs = 0;
    for devices in [1, 2] {
        let scene = FaultyStore::new(devices);
        scene.devices[0].set(&[]);
        scene.act();
        let (reads, writes, syncs) = scene.devices[0].counts();
        assert!(reads > 50 && writes > 10 && syncs > 5, "{reads} reads, {writes} writes, {syncs} syncs");
        let all = |count: u64, kinds: &[fn(u64) -> Fault]| -> Vec<Fault> {
            (0..count).flat_map(|n| kinds.iter().map(move |kind| kind(n))).collect()
        };
        let faults = [
            all(reads, &[Fault::FailRead, Fault::FailFromRead]),
            all(writes, &[Fault::FailWrite, Fault::FailFromWrite, Fault::NoSpaceFromWrite]),
            all(syncs, &[Fault::FailSync, Fault::FailFromSync]),
            all(4, &[Fault::NoSpaceFromPrepare]),
        ];
        for fault in faults.concat() {
            let scene = FaultyStore::new(devices);
            scene.devices[0].set(&[fault]);
            let possible = scene.act();
            scene.check(&possible, false, &format!("{devices} devices, {fault:?}"));
            runs += 1;
        }
    }
    println!("{runs} faults");
}

#[test]
fn after_any_silent_fault_no_read_returns_wrong_bytes() {
    for devices in [1, 2] {
        let scene = FaultyStore::new(devices);
        scene.devices[0].set(&[]);
        scene.act();
        let (reads, writes, _) = scene.devices[0].counts();
        let reads =
            (0..reads).flat_map(|n| [Fault::FlipRead(n), Fault::MisdirectRead(n), Fault::StaleRead(n)]);
        let writes =
            (0..writes).flat_map(|n| [Fault::DropWrite(n), Fault::MisdirectWrite(n), Fault::TearWrite(n)]);
        for fault in reads.chain(writes) {
            let scene = FaultyStore::new(devices);
            scene.devices[0].set(&[fault]);
            let possible = scene.act();
            scene.check(&possible, true, &format!("{devices} devices, {fault:?}"));
        }
    }
}

/// Repeats the changes with random faults. The environment variable `INSHORE_FAULTS` sets the number of repetitions.
#[test]
fn many_random_faults_never_give_wrong_bytes() {
    let runs = std::env::var("INSHORE_FAULTS").map_or(300, |count| count.parse().unwrap());
    for seed in 0..runs {
        let scene = FaultyStore::new(1 + (seed % 2) as usize);
        scene.devices[0].set_chance(seed, 10 + seed % 50);
        let possible = scene.act();
        scene.check(&possible, true, &format!("seed {seed}"));
    }
}

#[test]
fn an_error_that_needs_no_store_says_the_same_as_the_store_s() {
    let all = || {
        [
            RuntimeError::io("open", "https://example.org", std::io::ErrorKind::NotFound.into()),
            RuntimeError::OverBudget {
                what: "a test",
                wanted: 3 << 20,
                free: 1 << 20,
                total: 2 << 20,
                enough: Some(4 << 20),
            },
            RuntimeError::OverBudget { what: "a test", wanted: 3, free: 1, total: 2, enough: None },
            RuntimeError::BudgetTooSmall { what: "a test".into(), given: 1 << 20, smallest: (3 << 20) + 1 },
            RuntimeError::BadSize { text: "a test".into() },
            RuntimeError::Cancelled,
        ]
    };
    for (error, same) in all().into_iter().zip(all()) {
        let is_cancelled = error.is_cancelled();
        let error = Error::from(error);
        assert_eq!(error.to_string(), same.to_string());
        assert_eq!(error.is_cancelled(), is_cancelled);
    }
}
