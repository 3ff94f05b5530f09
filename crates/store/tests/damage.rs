//! These tests flip bits on flash. Without redundancy, a read of a damaged block returns an error with the offset of
//! the block. With two copies or parity, a read returns the correct bytes, and `verify` repairs the damage. No read
//! returns wrong bytes, and no call panics.
//!
//! In metadata (superblocks, log, headers of extents, lists of references), the tests flip a bit in every byte, one
//! byte at a time. The tests flip only some of the zero bytes at the end of a page. In data, the tests flip random
//! bits. The environment variable `INSHORE_FLIPS` sets the number of these flips, and `INSHORE_SEED` the seed.

use std::{io, ops::Range, sync::Arc};

use inshore_store::{
    Budget, Cancel, Dataset, Device, EXTENT_BYTES, FileReader, Job, Memory, PAGE_BYTES, Redundancy, Result,
    Store,
};

const EXTENTS: u32 = 400;
/// The number of the extent that contains the superblock on every device.
const SUPERBLOCK: u32 = 1;
/// The extents of the log and of the spare log of a new store on a single device. With several devices, only the first
/// two of these extents belong to the logs, and the other two contain data.
const LOG: Range<u32> = 2..6;
/// The distance in bytes between the flips in the zeros at the end of a page.
const ZEROS_STEP: usize = 97;

const NONE: Redundancy = Redundancy::Copies(1);
const COPIES: Redundancy = Redundancy::Copies(2);
const PARITY: Redundancy = Redundancy::Parity { data: 2, parity: 1 };

/// Returns `len` bytes in which each sector differs from the next sector.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 512) * 31 + i % 512 + 7) as u8).collect()
}

/// `Sparse` is a device in memory that stores no pages of zeros, so that a file of many extents takes little memory.
#[derive(Debug)]
struct Sparse(Arc<Memory>);

impl Device for Sparse {
    fn extents(&self) -> u32 {
        self.0.extents()
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read(extent, offset, buffer)
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        let pages = buffer.chunks(PAGE_BYTES).enumerate();
        for (number, page) in pages.filter(|(_, page)| page.iter().any(|&byte| byte != 0)) {
            self.0.write(extent, offset + number * PAGE_BYTES, page)?;
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
        self.0.discard(extents)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

/// `Page` is the address of a page: the number of the device, the number of the extent, and the number of the page in
/// the extent.
type Page = (usize, u32, usize);

/// `TestStore` is a store with one dataset `kept`, which has one file `bytes`.
struct TestStore {
    home: tempfile::TempDir,
    devices: Vec<Arc<Memory>>,
    store: Store,
}

impl TestStore {
    fn open(devices: Vec<Arc<Memory>>) -> Result<TestStore> {
        let home = tempfile::tempdir().unwrap();
        let all = devices.iter().map(|device| Arc::new(Sparse(device.clone())) as Arc<dyn Device>).collect();
        let store = Store::open_on(home.path(), all)?;
        Ok(TestStore { home, devices, store })
    }

    /// Creates a store with a dataset whose file has `zeros` zero bytes, followed by `content(len)`.
    fn with(redundancy: Redundancy, zeros: usize, len: usize) -> TestStore {
        let count = redundancy.devices();
        let bed = TestStore::open((0..count).map(|_| Arc::new(Memory::new(EXTENTS))).collect()).unwrap();
        let job = bed.job();
        let mut builder = bed.store.create_dataset(&job, "kept", "test").unwrap();
        builder.redundancy(redundancy).unwrap();
        let mut writer = builder.file("bytes", 4096, 65536).unwrap();
        let some = vec![0; 1 << 20];
        (0..zeros / some.len()).for_each(|_| writer.write(&some).unwrap());
        writer.write(&content(len)).unwrap();
        builder.add(writer).unwrap();
        builder.commit(b"attributes").unwrap();
        drop(job);
        bed
    }

    fn job(&self) -> Job {
        self.store.job(Budget::new(32 << 20, 1), Cancel::default()).unwrap()
    }

    /// Returns true if an extent contains a superblock or the log.
    fn is_log(&self, extent: u32) -> bool {
        let log = if self.devices.len() == 1 { LOG } else { 2..4 };
        extent == SUPERBLOCK || log.contains(&extent)
    }

    /// Copies the devices, so that the store can be opened on the copies as after a restart.
    fn copy(&self) -> Vec<Arc<Memory>> {
        self.devices.iter().map(|device| Arc::new(device.copy())).collect()
    }

    fn dataset(&self) -> Dataset {
        self.store.dataset("kept").unwrap()
    }

    /// Returns the written pages of the extents that `is_wanted` accepts.
    fn pages(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<Page> {
        let devices = self.devices.iter().enumerate();
        let pages = devices.flat_map(|(number, device)| {
            device.written().into_iter().map(move |(extent, page)| (number, extent, page))
        });
        pages.filter(|&(_, extent, _)| is_wanted(extent)).collect()
    }

    /// Returns the offsets in a page at which a bit is flipped: all offsets up to the last byte that is not zero, and
    /// some later offsets.
    fn places(&self, (device, extent, page): Page) -> Vec<usize> {
        let mut places = Vec::new();
        self.devices[device].change_page(extent, page, |bytes| {
            let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            places.extend((0..end).chain((end..PAGE_BYTES).step_by(ZEROS_STEP)));
        });
        places
    }

    /// Flips bits of a byte, calls `look`, and restores the page.
    fn flipped<T>(&self, (device, extent, page): Page, at: usize, bits: u8, look: impl FnOnce() -> T) -> T {
        let mut was = [0; PAGE_BYTES];
        self.devices[device].change_page(extent, page, |bytes| {
            was = *bytes;
            bytes[at] ^= bits;
        });
        let found = look();
        self.devices[device].change_page(extent, page, |bytes| *bytes = was);
        found
    }

    /// Repairs the store, and checks that a further verification finds no damage.
    fn scrub(&self, job: &Job, what: &str) {
        self.store.verify(job, &[], true).unwrap_or_else(|error| panic!("{what}: {error}"));
        let left = self.store.verify(job, &[], false).unwrap().damage;
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

fn read(dataset: &Dataset, job: &Job, range: Range<u64>) -> Result<Vec<u8>> {
    let file = dataset.file("bytes").expect("it has it");
    let mut reader = FileReader::new(job, &file, range, 65536)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Checks the result of a read. The bytes must be correct. An error is allowed only without redundancy, and its message
/// must contain the file and the offset.
fn check(found: Result<Vec<u8>>, expected: &[u8], redundancy: Redundancy, what: &str) {
    match found {
        Ok(found) => assert!(found == expected, "{what}: wrong bytes"),
        Err(error) => {
            let message = error.to_string();
            assert!(redundancy == NONE && message.contains("kept/bytes"), "{what}: {message}");
            assert!(message.contains("offset"), "{what}: {message}");
        }
    }
}

fn is_header(extent: u32) -> bool {
    extent.is_multiple_of(128)
}

#[test]
fn every_flipped_byte_of_superblocks_and_log_is_survived_and_repaired() {
    let len = 9_000;
    // A single device also has two copies of the superblock and of the log.
    for redundancy in [NONE, COPIES, PARITY] {
        let bed = TestStore::with(redundancy, 0, len);
        let mut flips = 0;
        for page in bed.pages(|extent| bed.is_log(extent)) {
            for at in bed.places(page) {
                let what = format!("{redundancy}, {page:?}, byte {at}");
                let other = bed.flipped(page, at, 1 << (flips % 8), || bed.copy());
                let other = TestStore::open(other).unwrap_or_else(|error| panic!("{what}: {error}"));
                let job = other.job();
                let found = read(&other.dataset(), &job, 0..len as u64);
                assert!(found.unwrap() == content(len), "{what}");
                // The scrub takes more time than all other checks, and it repairs complete pages. It is therefore not
                // repeated for every byte.
                if at < 8 || at % 24 == 0 {
                    other.scrub(&job, &what);
                }
                flips += 1;
            }
        }
        assert!(flips > 500, "{flips} bytes");
    }
}

#[test]
fn damage_in_all_copies_of_superblock_or_log_is_reported_with_its_device() {
    let bed = TestStore::with(NONE, 0, 9_000);
    let superblock = bed.pages(|extent| extent == SUPERBLOCK);
    let log = bed.pages(|extent| LOG.contains(&extent));
    // These pages contain the checkpoint, which is the first record of each copy of the log. The record of the dataset
    // follows.
    let first: Vec<Page> = log.iter().copied().filter(|&(.., page)| page == 0).collect();
    assert_eq!((superblock.len(), first.len(), log.len() > first.len()), (2, 2, true));
    // The test does not damage the last record. If both copies of the last record are damaged, the store cannot detect
    // that it was written.
    for pages in [superblock, first] {
        for at in (0..100).step_by(9) {
            let other = TestStore {
                home: tempfile::tempdir().unwrap(),
                devices: bed.copy(),
                store: bed.store.clone(),
            };
            for &(device, extent, page) in &pages {
                other.devices[device].change_page(extent, page, |bytes| bytes[at] ^= 1);
            }
            match TestStore::open(other.devices) {
                Err(error) => assert!(error.to_string().contains("memory "), "{error}"),
                // The store opens if the damaged byte is not covered by a checksum, since the checkpoint of an empty
                // catalog is short.
                Ok(opened) => {
                    let job = opened.job();
                    assert!(read(&opened.dataset(), &job, 0..9_000).unwrap() == content(9_000), "byte {at}");
                }
            }
            drop(other.home);
        }
    }
}

#[test]
fn one_damaged_superblock_loses_no_commit() {
    let bed = TestStore::with(NONE, 0, 9_000);
    // The first round damages each of the two superblocks of the new store. Later rounds damage the superblocks of
    // later logs, since about every second of the commits below begins a new log.
    for number in 0..7 {
        for page in bed.pages(|extent| extent == SUPERBLOCK) {
            let other = bed.flipped(page, 50, 1, || bed.copy());
            let other = TestStore::open(other).unwrap();
            assert_eq!(other.store.list().unwrap().len(), 1 + number, "slot in page {}", page.2);
            // Changes after the damage survive a restart.
            other.store.remove("kept").unwrap();
            let again = TestStore::open(other.devices).unwrap();
            assert_eq!(again.store.list().unwrap().len(), number, "slot in page {}", page.2);
        }
        let builder = bed.store.create_dataset(&bed.job(), &format!("large-{number}"), "test").unwrap();
        builder.commit(&vec![7; 200_000 * number]).unwrap();
    }
}

#[test]
fn every_flipped_byte_of_extent_headers_is_reported_or_repaired() {
    let len = 70_000;
    for redundancy in [NONE, COPIES, PARITY] {
        let bed = TestStore::with(redundancy, 0, len);
        let (job, expected) = (bed.job(), content(len));
        let mut flips = 0;
        for page in bed.pages(is_header) {
            for at in bed.places(page) {
                let what = format!("{redundancy}, {page:?}, byte {at}");
                bed.flipped(page, at, 1 << (flips % 8), || {
                    check(read(&bed.dataset(), &job, 0..len as u64), &expected, redundancy, &what);
                });
                // The byte is flipped again before the scrub, since the read may have repaired the page.
                bed.flipped(page, at, 1 << (flips % 8), || bed.scrub(&job, &what));
                flips += 1;
            }
        }
        assert!(flips > 100, "{flips} bytes");
    }
}

#[test]
fn every_flipped_byte_of_lists_of_references_is_reported_or_repaired() {
    // Each of the files has so many extents that its references are in a separate list.
    let many = Redundancy::Parity { data: 2, parity: 6 };
    for (redundancy, extents) in [(NONE, 129), (COPIES, 65), (many, 33)] {
        let (zeros, len) = ((extents - 1) * EXTENT_BYTES, 9_000);
        let bed = TestStore::with(redundancy, zeros, len);
        let (job, expected) = (bed.job(), content(len));
        let end = (zeros + len) as u64;
        // The list of references is recognized by its first reference: the device number is valid, and the two bytes
        // after it are zeros.
        let is_data = |extent: u32| !is_header(extent) && !bed.is_log(extent);
        let places = |page: &Page| {
            let mut first = [0; 12];
            bed.devices[page.0].change_page(page.1, page.2, |bytes| first.copy_from_slice(&bytes[..12]));
            first[2..4] == [0, 0] && (first[0] as usize) < bed.devices.len() && first[1] == 0
        };
        let lists: Vec<Page> = bed.pages(is_data).into_iter().filter(places).collect();
        assert!(lists.len() >= redundancy.list_copies(), "{lists:?}");
        let mut flips = 0;
        for (copy, page) in lists.into_iter().enumerate() {
            // A read uses the second copy of the list only if the first copy is damaged, so fewer bytes of the second
            // copy are flipped.
            for at in bed.places(page).into_iter().step_by(if copy == 0 { 1 } else { 50 }) {
                let what = format!("{redundancy}, list in {page:?}, byte {at}");
                bed.flipped(page, at, 1 << (flips % 8), || {
                    check(read(&bed.dataset(), &job, zeros as u64..end), &expected, redundancy, &what);
                });
                // The scrub reads the large file twice, so it is not repeated for every byte.
                if redundancy != NONE && flips % 1500 == 7 {
                    bed.flipped(page, at, 1 << (flips % 8), || bed.scrub(&job, &what));
                }
                flips += 1;
            }
        }
        assert!(flips > 1500, "{flips} bytes");
    }
}

#[test]
fn random_flips_of_data_never_give_wrong_bytes() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (wanted, seed) = (number("INSHORE_FLIPS", 20_000), number("INSHORE_SEED", 1));
    println!("seed {seed}, {wanted} flips");
    let len = 70_000;
    let expected = content(len);
    // The last store has two extents of data in its parity group. It is tested less often, since each restored page
    // needs two reads of 2 MiB.
    let beds = [(NONE, 0), (COPIES, 0), (PARITY, 0), (PARITY, EXTENT_BYTES)].map(|(redundancy, zeros)| {
        let bed = TestStore::with(redundancy, zeros, len);
        let pages = bed.pages(|extent| !is_header(extent) && !bed.is_log(extent));
        let (dataset, job) = (bed.dataset(), bed.job());
        (redundancy, zeros as u64, bed, pages, dataset, job)
    });
    let mut state = seed;
    let mut below = |limit: u64| {
        // This random number generator is SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    };
    let (mut told, mut repaired) = (0, 0);
    for flip in 0..wanted {
        let (redundancy, zeros, bed, pages, dataset, job) =
            &beds[if flip % 500 == 499 { 3 } else { (flip % 3) as usize }];
        let page = pages[below(pages.len() as u64) as usize];
        let (at, bits) = (below(PAGE_BYTES as u64) as usize, 1 << below(8));
        let what = format!("seed {seed}, flip {flip}: {redundancy}, {page:?}, byte {at}");
        let before = job.counters().repairs();
        bed.flipped(page, at, bits, || {
            let found = read(dataset, job, *zeros..zeros + len as u64);
            told += u64::from(found.is_err());
            check(found, &expected, *redundancy, &what);
            // Only a scrub finds damage in the second copy or in parity.
            if *redundancy != NONE && flip % 211 == 0 {
                bed.scrub(job, &what);
            }
        });
        repaired += job.counters().repairs() - before;
    }
    println!("{told} were told, {repaired} repaired");
    assert!(wanted < 1000 || (told > wanted / 4 && repaired > wanted / 4));
}
