//! `random_reads STORE DATASET DEPTH SECONDS` reads blocks of 8 KiB at random from a dataset of plain bytes.
//!
//! DEPTH reads are in flight at a time. The program prints the number of reads per second. The benchmark
//! `bench/store.py` compares this number with `fio --rw=randread`. The dataset should have small checksum blocks
//! (`store put --block 8KiB`), since each read includes complete checksum blocks.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use inshore_store::{BYTES, Budget, Buffer, Cancel, PendingRead, Store};

const READ_BYTES: u64 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, store, dataset, depth, seconds] = &words[..] else {
        return Err("usage: random_reads STORE DATASET DEPTH SECONDS".into());
    };
    let (depth, seconds): (usize, u64) = (depth.parse()?, seconds.parse()?);
    let job = Store::open_existing(store)?.job(Budget::new(256 << 20, 1), Cancel::default())?;
    let store = Store::open_existing(store)?;
    let file = store.dataset(dataset)?.file(BYTES).ok_or("not a dataset of plain bytes")?;
    file.remember_headers(&job)?;
    let block = file.block_bytes().max(READ_BYTES as usize);
    let mut spare = Buffer::zeroed(job.budget(), depth * block, "reads")?.split(block);
    let mut in_flight = Vec::with_capacity(depth);
    let (mut state, mut reads) = (1u64, 0u64);
    let end = Instant::now() + Duration::from_secs(seconds);
    let started = Instant::now();
    while Instant::now() < end {
        while let Some(buffer) = spare.pop() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 16) % (file.len() / READ_BYTES) * READ_BYTES;
            in_flight.push(file.submit_read(&job, place..place + READ_BYTES, buffer)?);
        }
        let (buffer, _) = in_flight.swap_remove(PendingRead::wait_any(&in_flight)).wait()?;
        spare.push(buffer);
        reads += 1;
    }
    println!("{:.0}", reads as f64 / started.elapsed().as_secs_f64());
    Ok(())
}
