//! `throttled [MB/s of a drive]` writes and reads a dataset over 1, 2 and 4 slow drives, and prints the rates.
//!
//! The slow drives are throttled folders in a temporary folder. The rates therefore show, on a machine with one real
//! drive, whether the store spreads data evenly over drives and keeps all drives busy.

use std::{error::Error, sync::Arc, time::Instant};

use inshore_store::{BYTES, Budget, Cancel, Device, Directory, FileReader, Limits, Store, Throttled};

const BYTES_WRITTEN: u64 = 400 << 20;
const BUFFER_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let rate: u64 = std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?;
    let mut first = None;
    for count in [1, 2, 4] {
        let home = tempfile::tempdir()?;
        let limits = Limits { bytes_per_second: rate * 1_000_000, ..Limits::default() };
        let drive = |number: usize| -> std::io::Result<Arc<dyn Device>> {
            let folder = home.path().join(number.to_string());
            std::fs::create_dir(&folder)?;
            Ok(Arc::new(Throttled::new(Arc::new(Directory::open(&folder, Some(4 << 30))?), limits)))
        };
        let drives = (0..count).map(drive).collect::<std::io::Result<Vec<_>>>()?;
        let store = Store::open_on(home.path(), drives)?;
        let job = store.job(Budget::new(256 << 20, 2), Cancel::default())?;
        let buffers = store.stream_buffers(job.budget(), BUFFER_BYTES);
        let started = Instant::now();
        let mut builder = store.create_dataset(&job, "d", BYTES)?;
        let mut writer = builder.file_with_buffers(BYTES, 64 << 10, BUFFER_BYTES, buffers)?;
        let block = vec![7; BUFFER_BYTES];
        for _ in 0..BYTES_WRITTEN / BUFFER_BYTES as u64 {
            writer.write(&block)?;
        }
        builder.add(writer)?;
        builder.commit(&[])?;
        let written = BYTES_WRITTEN as f64 / started.elapsed().as_secs_f64() / 1e6;
        let started = Instant::now();
        let file = store.dataset("d")?.file(BYTES).ok_or("written just now")?;
        let mut reader = FileReader::deep(&job, &file, 0..file.len(), BUFFER_BYTES, buffers)?;
        while reader.next_piece()?.is_some() {}
        let read = BYTES_WRITTEN as f64 / started.elapsed().as_secs_f64() / 1e6;
        let (one_written, one_read) = *first.get_or_insert((written, read));
        println!(
            "{count} drives of {rate} MB/s: written {written:.0} MB/s ({:.2} times one), read {read:.0} MB/s ({:.2} times one)",
            written / one_written,
            read / one_read
        );
    }
    Ok(())
}
