//! These tests damage stores at random and compare their content with a model. Damaged sectors contain random bytes,
//! zeros, or their earlier content. Damaged extents are missing, or contain their earlier content or the content of
//! another extent. Whole segments may also be missing. A store gets one to eight of these faults at once. The stores
//! have one to three devices, and datasets without redundancy, with copies, and with parity.
//!
//! ```text
//!   read             returns the bytes that were written, or an error that reports damage
//!   list             returns the names of all datasets and no others, or an error
//!   loss of a device data with redundancy can be read, and is repaired after the device was added again
//!   verify, scrub    report no unrepaired damage only if everything can be read
//!   next commit      fails, or loses no other data
//! ```
//!
//! The environment variable `INSHORE_DAMAGES` sets the number of damaged stores, and `INSHORE_SEED` the first seed.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use inshore_store::{
    Budget, Cancel, Device, EXTENT_BYTES, Error, FileReader, Findings, Job, Memory, PAGE_BYTES, Redundancy,
    Result, SEGMENT_EXTENTS, Store,
};

const EXTENTS: u32 = 400;
const SECTOR: usize = 512;
const SECTORS: usize = PAGE_BYTES / SECTOR;
/// The number of the extent that contains the superblock on every device.
const SUPERBLOCK: u32 = 1;

const NONE: Redundancy = Redundancy::Copies(1);
const COPIES: Redundancy = Redundancy::Copies(2);
const PARITY: Redundancy = Redundancy::Parity { data: 2, parity: 1 };

/// `MemoryDrive` is a device in memory that stores no pages of zeros. Its name contains its number, so that the store
/// recognizes the drive when it is added again.
#[derive(Debug)]
struct MemoryDrive {
    number: usize,
    memory: Memory,
}

impl MemoryDrive {
    fn copy(&self) -> Arc<MemoryDrive> {
        Arc::new(MemoryDrive { number: self.number, memory: self.memory.copy() })
    }

    fn page(&self, extent: u32, page: usize) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        self.memory.read(extent, page * PAGE_BYTES, &mut bytes).unwrap();
        bytes
    }

    /// Returns the numbers of the written pages of an extent.
    fn pages(&self, extent: u32) -> Vec<usize> {
        let written = self.memory.written().into_iter();
        written.filter(|(other, _)| *other == extent).map(|(_, page)| page).collect()
    }

    /// Returns the written extents in four groups: the superblock, extents of logs, extents of headers, and all other
    /// extents.
    fn kinds(&self) -> [Vec<u32>; 4] {
        let mut kinds: [Vec<u32>; 4] = Default::default();
        let mut extents: Vec<u32> = self.memory.written().iter().map(|(extent, _)| *extent).collect();
        extents.dedup();
        for extent in extents {
            let kind = match extent {
                SUPERBLOCK => 0,
                extent if extent.is_multiple_of(SEGMENT_EXTENTS) => 2,
                _ if self.page(extent, 0).starts_with(b"INSHRECD") => 1,
                _ => 3,
            };
            kinds[kind].push(extent);
        }
        kinds
    }

    /// Overwrites an extent with the content of the extent `other_extent` of `other`, which may be another drive or an
    /// earlier state of this drive.
    fn become_like(&self, extent: u32, other: &MemoryDrive, other_extent: u32) {
        let pages = other.pages(other_extent);
        let pages: Vec<_> = pages.into_iter().map(|page| (page, other.page(other_extent, page))).collect();
        self.memory.discard(extent..extent + 1).unwrap();
        pages.iter().for_each(|(page, bytes)| self.memory.change_page(extent, *page, |it| *it = *bytes));
    }
}

impl Device for MemoryDrive {
    fn extents(&self) -> u32 {
        self.memory.extents()
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read(extent, offset, buffer)
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        let pages = buffer.chunks(PAGE_BYTES).enumerate();
        for (number, bytes) in pages {
            let page = offset / PAGE_BYTES + number;
            if bytes.iter().any(|&byte| byte != 0) || self.page(extent, page) != [0; PAGE_BYTES] {
                self.memory.write(extent, page * PAGE_BYTES, bytes)?;
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn prepare(&self, _extents: Range<u32>) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        self.memory.discard(extents)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("drive {}", self.number)
    }
}

/// `Dice` is the random number generator SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % limit as u64) as usize
    }

    fn of<'a, T>(&mut self, some: &'a [T]) -> &'a T {
        &some[self.below(some.len())]
    }
}

/// `Data` describes a dataset: its redundancy and its content. The content consists of zeros, followed by bytes that
/// depend on the salt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Data {
    redundancy: Redundancy,
    zeros: usize,
    /// The seed of the bytes after the zeros. `lens` contains the length of each append.
    salt: usize,
    lens: [usize; 2],
}

impl Data {
    fn new(redundancy: Redundancy, salt: usize, len: usize) -> Data {
        // In a group with one extent of data, parity would be only a copy. The content therefore has two extents.
        let zeros = if redundancy == PARITY { EXTENT_BYTES } else { 0 };
        Data { redundancy, zeros, salt, lens: [len, 0] }
    }

    /// Returns the bytes of append number `part`. The sectors differ from each other.
    fn part(&self, part: usize) -> Vec<u8> {
        (0..self.lens[part])
            .map(|i| ((i / SECTOR) * 31 + i % SECTOR * (1 + 2 * part) + self.salt) as u8)
            .collect()
    }

    fn bytes(&self) -> Vec<u8> {
        [vec![0; self.zeros], self.part(0), self.part(1)].concat()
    }
}

/// The expected datasets of a store by name.
type Model = BTreeMap<String, Data>;

fn home() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(home: &Path, drives: &[Arc<MemoryDrive>]) -> Result<Store> {
    Store::open_on(home, drives.iter().map(|drive| drive.clone() as Arc<dyn Device>).collect())
}

fn job(store: &Store) -> Result<Job> {
    store.job(Budget::new(32 << 20, 1), Cancel::default())
}

fn create(store: &Store, name: &str, data: &Data, attributes: usize) -> Result<()> {
    let job = job(store)?;
    let mut builder = store.create_dataset(&job, name, "test")?;
    builder.redundancy(data.redundancy)?;
    builder.unsealed();
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&vec![0; data.zeros])?;
    writer.write(&data.part(0))?;
    builder.add(writer)?;
    builder.commit(&vec![7; attributes])
}

fn read(store: &Store, name: &str) -> Result<Vec<u8>> {
    let job = job(store)?;
    let file = store.dataset(name)?.file("bytes").expect("every dataset here has it");
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 1 << 20)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// `TestStore` contains the states of a store after its commits, and the expected content of the last state.
struct TestStore {
    /// Copies of the drives after commits, in order. The last element is the final state.
    states: Vec<Vec<Arc<MemoryDrive>>>,
    /// For each drive its written extents: the superblock, extents of logs, extents of headers, and all other extents.
    extents: Vec<[Vec<u32>; 4]>,
    /// The content of the lock file `scratch/lock`, in which processes announce the last record.
    lock: Vec<u8>,
    model: Model,
}

impl TestStore {
    /// Creates a store on `count` drives. If `is_old` is set, the store has begun several new logs, with more than one
    /// extent per copy, and has data in a second segment.
    fn new(count: usize, is_old: bool) -> TestStore {
        let drives: Vec<Arc<MemoryDrive>> =
            (0..count).map(|number| Arc::new(MemoryDrive { number, memory: Memory::new(EXTENTS) })).collect();
        let home = home();
        let store = open(home.path(), &drives).unwrap();
        let (mut states, mut model, mut commits) = (Vec::new(), Model::new(), 0);
        let now = || drives.iter().map(|drive| drive.copy()).collect::<Vec<_>>();
        let mut note = || {
            // The states of an old store are large, so only every third state is stored.
            if !is_old || commits % 3 == 0 {
                states.push(now());
            }
            commits += 1;
        };
        note();
        let mut salt = 0;
        let mut put = |name: &str, redundancy, len, attributes| {
            salt += 1;
            let data = Data::new(redundancy, salt, len);
            create(&store, name, &data, attributes).unwrap();
            model.insert(name.to_string(), data);
        };
        let guards = [NONE, COPIES, PARITY];
        let guards = &guards[..count];
        if is_old {
            let job = job(&store).unwrap();
            let mut builder = store.create_dataset(&job, "filler", "test").unwrap();
            let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
            let some = vec![0; EXTENT_BYTES];
            (0..count * 124).for_each(|_| writer.write(&some).unwrap());
            builder.add(writer).unwrap();
            builder.commit(&[]).unwrap();
        }
        for (number, redundancy) in guards.iter().enumerate() {
            put(&format!("first-{number}"), *redundancy, 9_000, 10);
            note();
        }
        if is_old {
            store.remove("filler").unwrap();
            for number in 0..4 {
                put(&format!("bulk-{number}"), NONE, 100, 600_000);
                note();
            }
            store.remove("bulk-0").unwrap();
            store.remove("bulk-1").unwrap();
            store.remove("bulk-2").unwrap();
            note();
        }
        for (number, redundancy) in guards.iter().enumerate() {
            put(&format!("second-{number}"), *redundancy, 30_000 + number, 10);
            note();
            put(&format!("gone-{number}"), *redundancy, 5_000, 10);
            note();
        }
        guards.iter().enumerate().for_each(|(number, _)| store.remove(&format!("gone-{number}")).unwrap());
        note();
        for (number, redundancy) in guards.iter().enumerate() {
            // A new dataset with other bytes gets the name of a removed dataset.
            store.remove(&format!("first-{number}")).unwrap();
            put(&format!("first-{number}"), *redundancy, 9_000, 10);
            note();
        }
        model.retain(|name, _| !name.starts_with("gone") && (!name.starts_with("bulk") || name == "bulk-3"));
        for name in (0..count).map(|number| format!("second-{number}")) {
            let data = model.get_mut(&name).unwrap();
            data.lens[1] = 7_000;
            let job = job(&store).unwrap();
            let mut builder = store.append_to_dataset(&job, &name).unwrap();
            let mut writer = builder.append("bytes", 4096, 65536, 2).unwrap();
            writer.write(&data.part(1)).unwrap();
            builder.add(writer).unwrap();
            builder.commit(&[7; 10]).unwrap();
            note();
        }
        let findings = store.verify(&job(&store).unwrap(), &[], false).unwrap();
        assert_eq!(findings.damage, []);
        drop(store);
        let lock = fs::read(home.path().join("scratch/lock")).unwrap();
        states.push(now());
        let extents = drives.iter().map(|drive| drive.kinds()).collect();
        TestStore { states, extents, lock, model }
    }

    fn drives(&self) -> &[Arc<MemoryDrive>] {
        self.states.last().expect("one after each commit")
    }
}

/// `Damage` describes what was damaged in a store.
struct Damage {
    what: Vec<String>,
    /// True if all damage is on one drive, and all copied extents come from this drive.
    is_on_one: bool,
}

/// Damages `drives`, which are a copy of the last state of `bed`.
fn damage(bed: &TestStore, drives: &[Arc<MemoryDrive>], dice: &mut Dice) -> Damage {
    let (count, is_on_one) = (1 + dice.below(8), dice.below(2) == 0);
    let the_one = dice.below(drives.len());
    let mut what = Vec::new();
    for _ in 0..count {
        let number = if is_on_one { the_one } else { dice.below(drives.len()) };
        let drive = &drives[number];
        let kinds = &bed.extents[number];
        let kind = *dice.of(&[0, 0, 1, 1, 1, 2, 3, 3]);
        let Some(extents) = kinds.get(kind).filter(|extents| !extents.is_empty()) else { continue };
        let extent = *dice.of(extents);
        let state = &bed.states[dice.below(bed.states.len() - 1)][number];
        let pages = bed.drives()[number].pages(extent);
        let first = *dice.of(&pages);
        // The damaged sectors begin at a random sector of a written page. They may be a single sector or cover several
        // pages.
        let from = first * SECTORS + dice.below(SECTORS);
        let many = *dice.of(&[1, 1, 2, 8, 40]);
        let sectors = from..(from + many).min(EXTENT_BYTES / SECTOR);
        let each = |change: &mut dyn FnMut(&mut [u8], usize, usize)| {
            for sector in sectors.clone() {
                let (page, at) = (sector / SECTORS, sector % SECTORS * SECTOR);
                drive.memory.change_page(extent, page, |bytes| change(&mut bytes[at..at + SECTOR], page, at));
            }
        };
        let named = match dice.below(8) {
            0 => {
                let mut noise = Dice(dice.below(usize::MAX) as u64);
                each(&mut |sector, _, _| sector.fill_with(|| noise.below(256) as u8));
                format!("noise in sectors {sectors:?}")
            }
            1 | 2 => {
                each(&mut |sector, _, _| sector.fill(0));
                format!("zeros in sectors {sectors:?}")
            }
            3 | 4 => {
                each(&mut |sector, page, at| {
                    sector.copy_from_slice(&state.page(extent, page)[at..at + SECTOR]);
                });
                format!("old sectors {sectors:?}")
            }
            5 => {
                drive.become_like(extent, state, extent);
                "an old extent".to_string()
            }
            6 if dice.below(6) == 0 => {
                let segment = extent / SEGMENT_EXTENTS * SEGMENT_EXTENTS;
                drive.memory.discard(segment..segment + SEGMENT_EXTENTS).unwrap();
                format!("segment {} is missing", segment / SEGMENT_EXTENTS)
            }
            6 => {
                drive.memory.discard(extent..extent + 1).unwrap();
                "zeros".to_string()
            }
            _ => {
                let from = if is_on_one { number } else { dice.below(drives.len()) };
                let others: Vec<u32> = bed.extents[from].iter().flatten().copied().collect();
                let other = *dice.of(&others);
                let source = drives[from].copy();
                drive.become_like(extent, &source, other);
                format!("what is in extent {other} of drive {from}")
            }
        };
        what.push(format!("extent {extent} of drive {number}: {named}"));
    }
    Damage { what, is_on_one }
}

/// Returns true if an error reports damage or loss.
fn is_told(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. }
            | Error::DamagedHeader { .. }
            | Error::DamagedExtent { .. }
            | Error::BadFormat { .. }
            | Error::LostSuperblock { .. }
            | Error::NoDevice { .. }
            | Error::TooFewDevices { .. }
    )
}

/// Reads all datasets of a store, and returns the names of those that cannot be read. The result is `None` if the list
/// of datasets cannot be read.
fn look(store: &Store, model: &Model, what: &str) -> Option<Vec<String>> {
    let list = match store.list() {
        Ok(list) => list,
        Err(error) => {
            assert!(is_told(&error), "{what}: {error}");
            return None;
        }
    };
    let names: Vec<&str> = list.iter().map(|summary| &summary.name[..]).collect();
    let expected: Vec<&str> = model.keys().map(|name| &name[..]).collect();
    assert_eq!(names, expected, "{what}");
    let mut lost = Vec::new();
    for (name, data) in model {
        match read(store, name) {
            Ok(found) => assert!(found == data.bytes(), "{what}: wrong bytes in {name}"),
            Err(error) => {
                assert!(is_told(&error), "{what}: {name}: {error}");
                lost.push(name.clone());
            }
        }
    }
    Some(lost)
}

/// Verifies a store. If the verification finds no damage or repairs all damage, all datasets must be readable.
fn verify(store: &Store, repair: bool, model: &Model, what: &str) -> Option<Findings> {
    let findings = match job(store).and_then(|job| store.verify(&job, &[], repair)) {
        Ok(findings) => findings,
        Err(error) => {
            assert!(is_told(&error), "{what}: {error}");
            return None;
        }
    };
    if findings.is_sound() {
        assert_eq!(look(store, model, what), Some(Vec::new()), "{what}, which was said to be whole");
    }
    Some(findings)
}

/// `Outcomes` counts the damaged stores by result: completely readable, partly readable, or not readable. It also
/// counts the drives that were added again.
#[derive(Default)]
struct Outcomes {
    whole: AtomicU64,
    part: AtomicU64,
    refused: AtomicU64,
    given_back: AtomicU64,
}

fn play(beds: &[TestStore], seed: u64, outcomes: &Outcomes) {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let bed = dice.of(beds);
    let drives: Vec<Arc<MemoryDrive>> = bed.drives().iter().map(|drive| drive.copy()).collect();
    let Damage { what, is_on_one } = damage(bed, &drives, &mut dice);
    let what = format!("seed {seed}, {} drives: {}", drives.len(), what.join("; "));
    let survives = is_on_one && drives.len() > 1;
    let is_guarded = |name: &str| bed.model[name].redundancy != NONE;
    let home = home();
    fs::create_dir(home.path().join("scratch")).unwrap();
    fs::write(home.path().join("scratch/lock"), &bed.lock).unwrap();
    let store = match open(home.path(), &drives) {
        Ok(store) => store,
        Err(error) => {
            assert!(is_told(&error) && !survives, "{what}: {error}");
            outcomes.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
    };
    let lost = look(&store, &bed.model, &what);
    let count = match &lost {
        None => &outcomes.refused,
        Some(lost) if lost.is_empty() => &outcomes.whole,
        Some(_) => &outcomes.part,
    };
    count.fetch_add(1, Ordering::Relaxed);
    if survives {
        let lost = lost.unwrap_or_else(|| panic!("{what}: the log is on the other drive"));
        assert!(!lost.iter().any(|name| is_guarded(name)), "{what}: {lost:?}");
    }
    let mut model = bed.model.clone();
    let put = |model: &mut Model| {
        let data = Data::new(NONE, 99, 5_000);
        match create(&store, "new", &data, 10) {
            Ok(()) => drop(model.insert("new".to_string(), data)),
            Err(error) => assert!(is_told(&error) && !survives, "{what}: {error}"),
        }
    };
    let puts_first = dice.below(2) == 0;
    if puts_first {
        put(&mut model);
    }
    verify(&store, false, &model, &format!("{what}; verified"));
    verify(&store, true, &model, &format!("{what}; scrubbed"));
    verify(&store, false, &model, &format!("{what}; scrubbed and verified"));
    if !puts_first {
        put(&mut model);
    }
    drop(store);
    match open(home.path(), &drives) {
        Ok(store) => {
            let what = format!("{what}; opened again");
            look(&store, &model, &what);
            verify(&store, false, &model, &what);
        }
        Err(error) => assert!(is_told(&error) && !survives, "{what}: {error}"),
    }
    if survives {
        give_back(&drives, home.path(), &model, &format!("{what}; given back"), outcomes);
    }
}

/// Adds a drive again that has lost its superblock, and repairs all data of the store that has redundancy.
fn give_back(drives: &[Arc<MemoryDrive>], home: &Path, model: &Model, what: &str, outcomes: &Outcomes) {
    let store = open(home, drives).unwrap();
    for device in store.usage().unwrap().iter().filter(|device| device.state == "missing") {
        let drive = &drives[device.number as usize];
        let given = store.add_device(drive.clone(), None).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(given, device.number, "{what}");
        outcomes.given_back.fetch_add(1, Ordering::Relaxed);
    }
    store.verify(&job(&store).unwrap(), &[], true).unwrap();
    let left = store.verify(&job(&store).unwrap(), &[], false).unwrap().damage;
    let is_unguarded = |damage: &inshore_store::Damage| {
        let name = damage.file.split('/').next().expect("a first part");
        model.get(name).is_some_and(|data| data.redundancy == NONE)
    };
    assert!(left.iter().all(is_unguarded), "{what}: {left:?}");
    drop(store);
    look(&open(home, drives).unwrap(), model, what);
}

#[test]
fn no_random_damage_is_silent() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (wanted, first) = (number("INSHORE_DAMAGES", 400), number("INSHORE_SEED", 1));
    println!("seed {first}, {wanted} damaged stores");
    let beds: Vec<TestStore> =
        (1..=3).flat_map(|count| [false, true].map(|is_old| TestStore::new(count, is_old))).collect();
    let (next, outcomes) = (AtomicU64::new(first), Outcomes::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < first + wanted
                {
                    play(&beds, seed, &outcomes);
                }
            });
        }
    });
    let Outcomes { whole, part, refused, given_back } = outcomes;
    let counts = [whole, part, refused, given_back].map(AtomicU64::into_inner);
    println!(
        "{} were read as a whole, {} in part, {} refused; {} drives were given back",
        counts[0], counts[1], counts[2], counts[3]
    );
    assert!(wanted < 400 || counts.iter().all(|&count| count > 10), "{counts:?}");
}
