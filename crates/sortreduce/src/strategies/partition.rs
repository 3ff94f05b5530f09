//! The partition strategy, which combines keys one key range after the other. It suits dense keys whose array does
//! not fit in memory.
//!
//! ```text
//!   push     key ─► bin = key >> bits ─► [ low bits * n ] [ value * n ]     a block of n records per bin, in memory
//!   full     block ─► [ low bits, 2 to 4 bytes each | value * n | zeros ]   appended to the sink's one file
//!   read     bin by bin: its blocks on flash, then its records in memory ─► table + presence bitmap ─► scan
//! ```
//!
//! Each record is written once and read once. Records that are in memory at the end of the input are not written.
//! Writes are sequential, since the blocks of all bins are appended to one file. Reads are random, in complete
//! blocks, with many requests in flight. A bin's table fits in the second-level cache, so that updates do not wait
//! for memory. Bins have ascending key ranges, so the result is streamed in order and can be split between bins.
//!
//! If a value needs few bits ([`Operation::short_bits`]), they are stored above the key's low bits in the same 32-bit
//! word. There are then no separate values.
//!
//! Compared with merging, partitioning needs no sort, takes one pass, and writes fewer bytes per key. Partitioning is
//! slower if many records have the same keys. A merge combines records in a chunk before they are written, whereas
//! partitioning writes each record.
//!
//! On input, a record takes one scattered write (2 to 4 ns) and one copy into the packed block (1 ns). On output, a
//! record takes one unpacking (1 ns) and one access to the table (2 to 4 ns). In addition, the scan reads one bitmap
//! word for each 64 keys of the range.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use inshore_store::{Buffer, CheckedFile, FileWriter, Job, Reservation};

use crate::{
    Error, Key, Operation, Result, Value,
    array::{Array, typed, typed_mut},
    forming::sort::min_max,
    keys::word::Word,
    strategies::partplan::{BLOCK_NUMBER_BYTES, PartitionPlan},
};

/// The number of blocks for which one reservation provides memory for block numbers.
const STEP_BLOCKS: usize = 512;

/// The bins of one sink, and the file of its full blocks. A partitioner outlives the sink that uses it, so that
/// successive sinks can share one partitioner.
pub(crate) struct Partitioner<O: Operation> {
    job: Job,
    operation: O,
    name: &'static str,
    plan: PartitionPlan,
    /// The number of blocks that all sinks have written.
    written: Arc<AtomicUsize>,
    /// The low bits of keys. If values are short, each word also contains the value above these bits.
    lows: Array<u32>,
    /// The values of the records. The array is empty if values are short.
    values: Array<O::Value>,
    /// For each bin, the index of its next record, and the end index of its block.
    cursors: Vec<[u32; 2]>,
    packed: Buffer,
    file: Option<FileWriter>,
    /// The bin number of each block in the file.
    bins: Vec<u16>,
    reservation: Reservation,
    pub records: u64,
}

impl<O: Operation> Partitioner<O> {
    pub fn new(
        job: &Job,
        name: &'static str,
        operation: O,
        plan: &PartitionPlan,
        written: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let what = "the bins that records are partitioned into";
        let records = plan.bins * plan.block_records;
        let start = |bin: usize| (bin * plan.block_records) as u32;
        Ok(Partitioner {
            job: job.clone(),
            operation,
            name,
            plan: *plan,
            written,
            lows: Array::zeroed(job.budget(), records, what)?,
            values: Array::zeroed(job.budget(), if plan.is_short { 0 } else { records }, what)?,
            cursors: (0..plan.bins).map(|bin| [start(bin), start(bin + 1)]).collect(),
            packed: Buffer::zeroed(job.budget(), plan.block_bytes, what)?,
            file: None,
            bins: Vec::new(),
            reservation: job.budget().reserve(0, "the numbers of blocks of bins")?,
            records: 0,
        })
    }

    /// Adds records to bins, and writes the blocks that become full.
    ///
    /// # Errors
    /// - Returns [`Error::KeyOutOfRange`] if a key is not below the upper bound of keys.
    /// - Returns an error if a write fails.
    #[inline]
    pub fn push(&mut self, keys: &[O::Key], value_at: impl Fn(usize) -> O::Value) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.check_range(keys)?;
        let mut done = 0;
        while done < keys.len() {
            let bits = self.plan.bin_bits;
            let (lows, values) = (&mut *self.lows, &mut *self.values);
            let (rest, cursors) = (&keys[done..], &mut self.cursors[..]);
            done += if self.plan.is_short {
                let put = |place: usize, low: u32, i| {
                    lows[place] = low | self.operation.shorten(value_at(done + i)).unbounded_shl(bits);
                };
                scatter(bits, rest, put, cursors)
            } else {
                let put = |place: usize, low, i| {
                    lows[place] = low;
                    values[place] = value_at(done + i);
                };
                scatter(bits, rest, put, cursors)
            };
            let bin = (keys[done - 1].to_word().low() >> bits) as usize;
            if self.cursors[bin][0] == self.cursors[bin][1] {
                self.write(bin)?;
            }
        }
        self.records += keys.len() as u64;
        Ok(())
    }

    fn check_range(&self, keys: &[O::Key]) -> Result<()> {
        let (_, max) = min_max(keys);
        if max >= self.plan.key_range.into() {
            let key = O::Key::from_word(max).to_u64();
            return Err(Error::KeyOutOfRange { name: self.name, key, range: self.plan.key_range });
        }
        Ok(())
    }

    /// Writes a bin's full block.
    #[inline(never)]
    fn write(&mut self, bin: usize) -> Result<()> {
        self.take_of_allowance()?;
        let start = bin * self.plan.block_records;
        let range = start..start + self.plan.block_records;
        pack(&self.lows[range.clone()], self.plan.low_bytes, &mut self.packed);
        if !self.plan.is_short {
            let packed = &mut self.packed[self.plan.values_offset..];
            typed_mut::<O::Value>(packed, self.plan.block_records).copy_from_slice(&self.values[range]);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let (check_bytes, write_bytes) = (self.plan.check_bytes, self.plan.write_bytes);
                self.file.insert(FileWriter::create(&self.job, self.name, check_bytes, write_bytes)?)
            }
        };
        file.write(&self.packed)?;
        self.bins.push(bin as u16);
        self.cursors[bin][0] = start as u32;
        Ok(())
    }

    /// Counts a block against the limit on the number of blocks. The number is limited because block numbers are in
    /// memory.
    fn take_of_allowance(&mut self) -> Result<()> {
        let of_all = self.written.fetch_add(1, Ordering::Relaxed) + 1;
        if of_all > self.plan.blocks_max {
            let spilled = of_all as u64 * self.plan.block_bytes as u64;
            return Err(Error::TooManyRuns {
                name: self.name,
                spilled,
                memory: self.plan.memory_bytes,
                enough: None,
            });
        }
        let blocks = self.bins.len() + 1;
        if (blocks * BLOCK_NUMBER_BYTES) as u64 > self.reservation.bytes() {
            self.reservation.resize(self.reservation.bytes() + (STEP_BLOCKS * BLOCK_NUMBER_BYTES) as u64)?;
        }
        Ok(())
    }

    /// Ends the input, and returns the records for reading.
    ///
    /// # Errors
    /// Returns an error if a write that was still in flight fails.
    pub fn finish(mut self) -> Result<BinnedRecords<O::Value>> {
        let file = self.file.take().map(FileWriter::finish).transpose()?;
        let (starts, order) = order_by_bin(self.plan.bins, &self.bins);
        Ok(BinnedRecords {
            plan: self.plan,
            lows: self.lows,
            values: self.values,
            cursors: self.cursors,
            file,
            starts,
            order,
            _reservation: self.reservation,
        })
    }
}

/// The records of one sink, ordered by bin, for reading.
pub(crate) struct BinnedRecords<V> {
    plan: PartitionPlan,
    lows: Array<u32>,
    values: Array<V>,
    cursors: Vec<[u32; 2]>,
    file: Option<CheckedFile>,
    /// The index in `order` at which each bin's blocks start. The last element is the end of the last bin.
    starts: Vec<u32>,
    /// The block numbers in the file, ordered by bin.
    order: Vec<u32>,
    _reservation: Reservation,
}

impl<V: Value> BinnedRecords<V> {
    /// Returns the records of a bin that are in memory: the low bits of keys, and the values. If values are short,
    /// the first slice contains words of key bits and value, and the second slice is empty.
    pub fn in_memory(&self, bin: usize) -> (&[u32], &[V]) {
        let range = bin * self.plan.block_records..self.cursors[bin][0] as usize;
        let values = if self.plan.is_short { &[] } else { &self.values[range.clone()] };
        (&self.lows[range], values)
    }

    /// Returns the numbers of a bin's blocks on flash.
    pub fn blocks(&self, bin: usize) -> &[u32] {
        &self.order[self.starts[bin] as usize..self.starts[bin + 1] as usize]
    }

    /// Returns the number of records of a bin.
    pub fn records(&self, bin: usize) -> u64 {
        let on_flash = self.blocks(bin).len() * self.plan.block_records;
        (on_flash + self.in_memory(bin).0.len()) as u64
    }

    /// Returns the number of blocks on flash.
    pub fn blocks_len(&self) -> usize {
        self.order.len()
    }

    /// Returns the file of a block, and the block's byte range in the file.
    pub fn place(&self, block: u32) -> (&CheckedFile, Range<u64>) {
        let start = u64::from(block) * self.plan.block_bytes as u64;
        let file = self.file.as_ref().expect("a block was written");
        (file, start..start + self.plan.block_bytes as u64)
    }
}

/// Returns the values in a block that has the layout of blocks on flash.
pub(crate) fn block_values<'a, V: Value>(plan: &PartitionPlan, block: &'a [u8]) -> &'a [V] {
    typed(&block[plan.values_offset..], plan.block_records)
}

/// Sorts block numbers by bin. Returns the start of each bin in the sorted numbers, and the sorted numbers.
fn order_by_bin(bins: usize, bin_of: &[u16]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; bins + 1];
    bin_of.iter().for_each(|&bin| starts[bin as usize + 1] += 1);
    (0..bins).for_each(|bin| starts[bin + 1] += starts[bin]);
    let mut next = starts.clone();
    let mut order = vec![0; bin_of.len()];
    for (block, &bin) in bin_of.iter().enumerate() {
        order[next[bin as usize] as usize] = block as u32;
        next[bin as usize] += 1;
    }
    (starts, order)
}

/// Adds records to the blocks of their bins until a block is full. `put` writes a record. Its arguments are the
/// destination index, the low bits of the key, and the record's index in `keys`. Returns the number of added records.
#[inline(always)]
fn scatter<K: Key>(
    bits: u32,
    keys: &[K],
    mut put: impl FnMut(usize, u32, usize),
    cursors: &mut [[u32; 2]],
) -> usize {
    let mask = (1u64 << bits) - 1;
    for (i, key) in keys.iter().enumerate() {
        let number = key.to_word().low();
        let [cursor, end] = &mut cursors[(number >> bits) as usize];
        put(*cursor as usize, (number & mask) as u32, i);
        *cursor += 1;
        if cursor == end {
            return i + 1;
        }
    }
    keys.len()
}

/// Writes the lowest `bytes` bytes (2, 3 or 4) of each number to `out`.
fn pack(lows: &[u32], bytes: usize, out: &mut [u8]) {
    match bytes {
        2 => pack_in::<2>(lows, out),
        3 => pack_in::<3>(lows, out),
        _ => pack_in::<4>(lows, out),
    }
}

fn pack_in<const BYTES: usize>(lows: &[u32], out: &mut [u8]) {
    let (places, _) = out.as_chunks_mut::<BYTES>();
    for (place, low) in places.iter_mut().zip(lows) {
        place.copy_from_slice(&low.to_le_bytes()[..BYTES]);
    }
}

/// Reverses [`pack`].
pub(crate) fn unpack(packed: &[u8], bytes: usize, out: &mut [u32]) {
    match bytes {
        2 => unpack_in::<2>(packed, out),
        3 => unpack_in::<3>(packed, out),
        _ => unpack_in::<4>(packed, out),
    }
}

fn unpack_in<const BYTES: usize>(packed: &[u8], out: &mut [u32]) {
    let (places, _) = packed.as_chunks::<BYTES>();
    for (low, place) in out.iter_mut().zip(places) {
        let mut bytes = [0; 4];
        bytes[..BYTES].copy_from_slice(place);
        *low = u32::from_le_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_survive_their_packing() {
        for (bytes, max) in [(2, 0xffff), (3, 0xff_ffff), (4, u32::MAX)] {
            let lows: Vec<u32> = (0..100u32).map(|i| (i.wrapping_mul(0x9e37_79b9) ^ i) & max).collect();
            let mut packed = vec![0xaa; 100 * bytes + 5];
            pack(&lows, bytes, &mut packed);
            let mut out = vec![0; 100];
            unpack(&packed, bytes, &mut out);
            assert_eq!(out, lows);
        }
    }

    #[test]
    fn blocks_are_ordered_by_bin_and_then_by_number() {
        assert_eq!(order_by_bin(4, &[2, 0, 2, 3, 0]), (vec![0, 2, 2, 4, 5], vec![1, 4, 0, 2, 3]));
        assert_eq!(order_by_bin(2, &[]), (vec![0, 0, 0], vec![]));
    }
}
