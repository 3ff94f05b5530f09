//! Arbitrary bytes in the files of the scratch folder, of a dead and a living owner, cause no panic, and
//! datasets keep their contents.
//!
//! The input: one byte whose bits select the files, then the contents of the files, in parts of equal length.
#![no_main]

use std::{fs, fs::File, sync::Arc};

use inshore_store::{Budget, Cancel, Device, FileReader, Memory, Store};
use libfuzzer_sys::fuzz_target;

fn write(store: &Store, name: &str) -> inshore_store::Result<()> {
    let job = store.job(Budget::new(8 << 20, 1), Cancel::default())?;
    let mut builder = store.create_dataset(&job, name, "test")?;
    let mut writer = builder.file("bytes", 4096, 65536)?;
    writer.write(&[9; 5000])?;
    builder.add(writer)?;
    builder.commit(&[])
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, rest)) = bytes.split_first() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let device = Arc::new(Memory::new(200));
    let devices = || vec![device.clone() as Arc<dyn Device>];
    let store = Store::open_on(home.path(), devices()).expect("a store");
    write(&store, "kept").expect("a dataset");
    let scratch = home.path().join("scratch");
    let parts: Vec<&[u8]> = rest.chunks(rest.len().div_ceil(5).max(1)).collect();
    let part = |number: usize| parts.get(number).copied().unwrap_or_default();
    let mut locks = Vec::new();
    for (number, name) in ["1-dead", "2-living"].iter().enumerate() {
        let folder = scratch.join(name);
        fs::create_dir(&folder).expect("a folder");
        let lock = File::create(folder.join("lock")).expect("a file");
        if number == 1 {
            lock.lock().expect("a lock");
            locks.push(lock);
        }
        for (bit, file) in ["lease", "pin"].iter().enumerate() {
            if which >> (2 * number + bit) & 1 == 1 {
                fs::write(folder.join(file), part(2 * number + bit)).expect("a file");
            }
        }
    }
    if which & 16 == 16 {
        fs::write(scratch.join("lock"), part(4)).expect("a file");
    }
    let _ = store.jobs();
    let _ = store.usage();
    let _ = write(&store, "new");
    let _ = store.remove("new");
    if let Ok(job) = store.job(Budget::new(8 << 20, 1), Cancel::default()) {
        let _ = store.compact(&job, true);
    }
    drop(store);
    // As after a restart of the machine, all owners are dead.
    drop(locks);
    let other = tempfile::tempdir().expect("a folder");
    let store = Store::open_on(other.path(), devices()).expect("it is there");
    let job = store.job(Budget::new(8 << 20, 1), Cancel::default()).expect("a job");
    let file = store.dataset("kept").expect("it was committed").file("bytes").expect("it has it");
    let mut reader = FileReader::new(&job, &file, 0..5000, 65536).expect("it is whole");
    assert!(reader.next_piece().expect("it is whole") == Some(&[9; 5000][..]));
});
