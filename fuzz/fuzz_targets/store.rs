//! A whole store with changed devices: no panic, no hang, and no wrong byte in any successful read.
//!
//! The input: a byte that is odd for three devices and even for one, then a list of at most 32 changes of 8
//! bytes each:
//!
//! ```text
//!   kind, device, page (2), offset (2), bits, other page      page numbers count written pages only
//!   kind   0: exclusive or   1: swap of two pages   2: copy of a page   3: zeros from the offset on
//!          4: exclusive or, followed by correct checksums of superblock and log record
//! ```
#![no_main]

use std::sync::{Arc, LazyLock};

use inshore_store::{Budget, Cancel, Device, FileReader, Memory, PAGE_BYTES, Redundancy, Result, Store};
use libfuzzer_sys::fuzz_target;

const EXTENTS: u32 = 200;

fn content(name: &str, len: usize) -> Vec<u8> {
    let salt = name.bytes().fold(0usize, |sum, byte| sum * 31 + byte as usize);
    (0..len).map(|i| ((i / 512) * 31 + i % 512 + salt) as u8).collect()
}

fn write(store: &Store, name: &str, redundancy: Redundancy, len: usize) -> Result<()> {
    let job = store.job(Budget::new(32 << 20, 1), Cancel::default())?;
    let mut builder = store.create_dataset(&job, name, "test")?;
    builder.redundancy(redundancy)?;
    if name == "open" {
        builder.unsealed();
    }
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&content(name, len))?;
    builder.add(writer)?;
    builder.commit(b"attributes")
}

/// Returns the devices of a store with some datasets, before all changes.
fn example(count: usize) -> Vec<Arc<Memory>> {
    let home = tempfile::tempdir().expect("a folder");
    let devices: Vec<Arc<Memory>> = (0..count).map(|_| Arc::new(Memory::new(EXTENTS))).collect();
    let store = Store::open_on(home.path(), as_devices(&devices)).expect("a store");
    write(&store, "plain", Redundancy::Copies(1), 9_000).expect("a dataset");
    write(&store, "open", Redundancy::Copies(1), 5_000).expect("a dataset");
    write(&store, "removed", Redundancy::Copies(1), 5_000).expect("a dataset");
    store.remove("removed").expect("it was there");
    if count > 1 {
        write(&store, "copies", Redundancy::Copies(2), 9_000).expect("a dataset");
        write(&store, "parity", Redundancy::Parity { data: 2, parity: 1 }, 9_000).expect("a dataset");
    }
    drop(store);
    devices
}

fn as_devices(devices: &[Arc<Memory>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

fn word(bytes: &[u8]) -> usize {
    u16::from_le_bytes([bytes[0], bytes[1]]) as usize
}

fn change(devices: &[Arc<Memory>], change: &[u8]) {
    let device = &devices[change[1] as usize % devices.len()];
    let written = device.written();
    let (extent, page) = written[word(&change[2..]) % written.len()];
    let (other_extent, other_page) = written[change[7] as usize % written.len()];
    let at = word(&change[4..]) % PAGE_BYTES;
    match change[0] % 5 {
        0 => device.change_page(extent, page, |bytes| bytes[at] ^= change[6]),
        what @ 1..=2 => {
            let (mut first, mut second) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
            device.change_page(extent, page, |bytes| first = *bytes);
            device.change_page(other_extent, other_page, |bytes| second = *bytes);
            device.change_page(extent, page, |bytes| *bytes = second);
            if what == 1 {
                device.change_page(other_extent, other_page, |bytes| *bytes = first);
            }
        }
        3 => device.change_page(extent, page, |bytes| bytes[at..].fill(0)),
        _ => device.change_page(extent, page, |bytes| {
            bytes[at] ^= change[6];
            make_right(bytes);
        }),
    }
}

/// Corrects the checksum of a superblock, since contents that only a bug would write must not crash a reader
/// either.
fn make_right(page: &mut [u8; PAGE_BYTES]) {
    let len = u32::from_le_bytes(page[16..20].try_into().expect("4 bytes")) as usize;
    if page.starts_with(b"INSHSUPR") && len <= PAGE_BYTES - 40 {
        let sum = crc32fast::hash(&page[16..40 + len]);
        page[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}

fn read(store: &Store, name: &str) -> Result<Vec<u8>> {
    let job = store.job(Budget::new(32 << 20, 1), Cancel::default())?;
    let Some(file) = store.dataset(name)?.file("bytes") else { return Ok(Vec::new()) };
    let step = file.block_bytes().max(65536);
    let mut reader = FileReader::new(&job, &file, 0..file.len(), step)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Checks that each successful read returns the written bytes.
fn check(store: &Store) {
    for summary in store.list().unwrap_or_default() {
        if let Ok(found) = read(store, &summary.name) {
            let expected = content(&summary.name, found.len());
            assert!(found == expected, "wrong bytes in {}", summary.name);
        }
    }
}

static EXAMPLES: LazyLock<[Vec<Arc<Memory>>; 2]> = LazyLock::new(|| [example(1), example(3)]);

fuzz_target!(|bytes: &[u8]| {
    let Some((first, changes)) = bytes.split_first() else { return };
    let devices: Vec<Arc<Memory>> =
        EXAMPLES[(first % 2) as usize].iter().map(|device| Arc::new(device.copy())).collect();
    changes.chunks_exact(8).take(32).for_each(|bytes| change(&devices, bytes));
    let home = tempfile::tempdir().expect("a folder");
    let Ok(store) = Store::open_on(home.path(), as_devices(&devices)) else { return };
    check(&store);
    // Clean-up after dead jobs reads the log, which may be damaged.
    let Ok(job) = store.job(Budget::new(32 << 20, 1), Cancel::default()) else { return };
    let _ = store.verify(&job, &[], false);
    let _ = store.verify(&job, &[], true);
    check(&store);
    let _ = store.usage();
    let _ = store.jobs();
    let _ = write(&store, "new", Redundancy::Copies(1), 7_000);
    let _ = store.seal("open");
    let _ = store.remove("plain");
    let _ = store.compact(&job, true);
    check(&store);
    drop((job, store));
    if let Ok(store) = Store::open_on(home.path(), as_devices(&devices)) {
        check(&store);
    }
});
