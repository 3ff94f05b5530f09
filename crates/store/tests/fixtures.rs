//! Fixtures are stores in each version of the storage format, with known content. These tests detect accidental changes
//! of the format, including the Reed-Solomon code.
//!
//! `test_data/README.md` describes the files of the fixtures, and how to create these files and the seeds of the fuzz
//! targets.

use std::{fs, path::PathBuf, sync::Arc};

use inshore_store::{
    Budget, Cancel, Device, EXTENT_BYTES, FileReader, Job, Memory, PAGE_BYTES, Redundancy, Result, Store,
};

const EXTENTS: u32 = 200;
/// The versions of the format that this program reads. It writes the last of them.
const VERSIONS: [&str; 2] = ["v2", "v3"];

/// `FixtureDataset` is a dataset of a fixture: its name, its redundancy, and true if it is sealed.
type FixtureDataset = (&'static str, Redundancy, bool);

const NONE: Redundancy = Redundancy::Copies(1);

/// The fixtures: for each store its name, its number of devices and its datasets.
const STORES: [(&str, usize, &[FixtureDataset]); 3] = [
    ("one-device", 1, &[("plain", NONE, true), ("empty", NONE, true)]),
    (
        "three-devices",
        3,
        &[
            ("copies", Redundancy::Copies(2), true),
            ("parity", Redundancy::Parity { data: 2, parity: 1 }, true),
        ],
    ),
    ("open", 1, &[("open", NONE, false)]),
];

/// Returns 700 bytes that depend on the name of the dataset. The dataset "parity" has two extents: these bytes and
/// zeros in the first extent, and the same bytes in reverse order in the second extent. The dataset "empty" has no
/// content.
fn content(name: &str) -> Vec<u8> {
    let salt = name.bytes().fold(0usize, |sum, byte| sum * 31 + byte as usize);
    let some: Vec<u8> = (0..700).map(|i| (i * 7 + i / 5 + salt) as u8).collect();
    match name {
        "empty" => Vec::new(),
        "parity" => {
            let mut bytes = some.clone();
            bytes.resize(EXTENT_BYTES, 0);
            bytes.extend(some.iter().rev());
            bytes
        }
        _ => some,
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("test_data")
}

fn job(store: &Store) -> Job {
    store.job(Budget::new(32 << 20, 1), Cancel::default()).unwrap()
}

fn open(devices: &[Arc<Memory>]) -> Result<(tempfile::TempDir, Store)> {
    let home = tempfile::tempdir().unwrap();
    let devices = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let store = Store::open_on(home.path(), devices)?;
    Ok((home, store))
}

fn make(devices: usize, datasets: &[FixtureDataset]) -> Vec<Arc<Memory>> {
    let devices: Vec<Arc<Memory>> = (0..devices).map(|_| Arc::new(Memory::new(EXTENTS))).collect();
    let (_home, store) = open(&devices).unwrap();
    for &(name, redundancy, is_sealed) in datasets {
        let job = job(&store);
        let mut builder = store.create_dataset(&job, name, "test").unwrap();
        builder.redundancy(redundancy).unwrap();
        if !is_sealed {
            builder.unsealed();
        }
        let mut writer = builder.file("bytes", 65536, 65536).unwrap();
        writer.write(&content(name)).unwrap();
        builder.add(writer).unwrap();
        builder.commit(name.as_bytes()).unwrap();
    }
    devices
}

/// Encodes the devices as the content of a fixture file: every page that is not zero, up to its last byte that is not
/// zero.
fn image(devices: &[Arc<Memory>]) -> Vec<u8> {
    let mut out = (devices.len() as u16).to_le_bytes().to_vec();
    for (number, device) in devices.iter().enumerate() {
        for (extent, page) in device.written() {
            device.change_page(extent, page, |bytes| {
                let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                if len > 0 {
                    out.extend((number as u16).to_le_bytes());
                    out.extend(extent.to_le_bytes());
                    out.extend((page as u16).to_le_bytes());
                    out.extend((len as u16).to_le_bytes());
                    out.extend(&bytes[..len]);
                }
            });
        }
    }
    out
}

fn load(image: &[u8]) -> Vec<Arc<Memory>> {
    let word = |at: usize| u16::from_le_bytes(image[at..at + 2].try_into().unwrap());
    let devices: Vec<Arc<Memory>> = (0..word(0)).map(|_| Arc::new(Memory::new(EXTENTS))).collect();
    let mut at = 2;
    while at < image.len() {
        let extent = u32::from_le_bytes(image[at + 2..at + 6].try_into().unwrap());
        let (page, len) = (word(at + 6) as usize, word(at + 8) as usize);
        let bytes = &image[at + 10..at + 10 + len];
        devices[word(at) as usize].change_page(extent, page, |page| page[..len].copy_from_slice(bytes));
        at += 10 + len;
    }
    devices
}

fn check(name: &str, store: &Store, datasets: &[FixtureDataset]) {
    let job = job(store);
    assert_eq!(store.list().unwrap().len(), datasets.len(), "{name}");
    for &(dataset, redundancy, is_sealed) in datasets {
        let opened = store.dataset(dataset).unwrap();
        let summary = opened.summary();
        assert_eq!((summary.redundancy, summary.sealed), (redundancy, is_sealed), "{name}/{dataset}");
        assert_eq!((opened.kind(), opened.attributes()), ("test", dataset.as_bytes()));
        let file = opened.file("bytes").unwrap();
        let mut reader = FileReader::new(&job, &file, 0..file.len(), 65536).unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next_piece().unwrap() {
            bytes.extend_from_slice(piece);
        }
        assert!(bytes == content(dataset), "{name}/{dataset}");
    }
    assert_eq!(store.verify(&job, &[], false).unwrap().damage, [], "{name}");
}

#[test]
fn stores_of_every_version_are_read_byte_for_byte() {
    for version in VERSIONS {
        for (name, _, datasets) in STORES {
            let image = fs::read(folder().join(version).join(name)).unwrap();
            let (_home, store) = open(&load(&image)).unwrap();
            check(name, &store, datasets);
        }
    }
}

#[test]
fn stores_of_every_version_can_be_written_to() {
    for version in VERSIONS {
        for (name, _, datasets) in STORES {
            let devices = load(&fs::read(folder().join(version).join(name)).unwrap());
            let (_home, store) = open(&devices).unwrap();
            store.create_dataset(&job(&store), "new", "test").unwrap().commit(&vec![7; 3 << 20]).unwrap();
            drop(store);
            let (_home, store) = open(&devices).unwrap();
            store.remove("new").unwrap();
            check(name, &store, datasets);
        }
    }
}

#[test]
fn parity_of_every_version_restores_each_device() {
    VERSIONS.into_iter().for_each(parity_restores_each_device);
}

fn parity_restores_each_device(version: &str) {
    let (name, devices, datasets) = STORES[1];
    let image = fs::read(folder().join(version).join(name)).unwrap();
    for lost in 0..devices {
        let loaded = load(&image);
        // All data and headers on the device are lost. The superblock stays, and so does the log, of which only the
        // first two devices have copies.
        let is_data = |extent: u32| extent != 1 && (lost == 2 || ![2, 3].contains(&extent));
        for (extent, page) in loaded[lost].written() {
            if is_data(extent) {
                loaded[lost].change_page(extent, page, |bytes| bytes.fill(0));
            }
        }
        let (_home, store) = open(&loaded).unwrap();
        store.verify(&job(&store), &[], true).unwrap();
        check(name, &store, datasets);
        // The restored bytes must equal the lost bytes.
        let again = load(&image);
        for (extent, page) in again[lost].written() {
            let (mut was, mut is) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
            again[lost].change_page(extent, page, |bytes| was = *bytes);
            loaded[lost].change_page(extent, page, |bytes| is = *bytes);
            assert!(was == is || !is_data(extent), "device {lost}, extent {extent}, page {page}");
        }
    }
}

#[test]
#[ignore = "writes test_data and the seeds of the fuzz targets"]
fn make_fixtures_and_seeds() {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let seed = |target: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(seeds.join(target)).unwrap();
        fs::write(seeds.join(target).join(name), bytes).unwrap();
    };
    for (name, devices, datasets) in STORES {
        let devices = make(devices, datasets);
        let version = VERSIONS[VERSIONS.len() - 1];
        fs::create_dir_all(folder().join(version)).unwrap();
        fs::write(folder().join(version).join(name), image(&devices)).unwrap();
        for (extent, page) in devices[0].written() {
            devices[0].change_page(extent, page, |bytes| {
                let target = match &bytes[..8] {
                    b"INSHSUPR" => "superblock",
                    b"INSHRECD" => "log_record",
                    b"INSHEXTN" => "extent_header",
                    _ => return,
                };
                // The seed for a log record must have the exact length of the record.
                let body_len = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
                let len = if target == "log_record" { 48 + body_len } else { 600 };
                seed(target, &format!("{name}-{extent}-{page}"), &bytes[..len.min(PAGE_BYTES)]);
            });
        }
    }
    let references = [0, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4, 1, 0, 0, 0, 9, 0, 0, 0, 5, 6, 7, 8];
    seed("references", "two", &references);
    // The seeds contain each kind of change, for a store of one device and for a store of three devices.
    for devices in 0..2u8 {
        for what in 0..5u8 {
            for page in [0, 3, 9, 17] {
                let mut changes = vec![devices];
                (0..4).for_each(|n| changes.extend([what, n, page + n, 0, 20 * n, 0, 1 << n, page]));
                seed("store", &format!("{devices}-{what}-{page}"), &changes);
            }
        }
    }
    let mut registry = vec![31];
    registry.extend([0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(5));
    seed("registry", "all", &registry);
}
