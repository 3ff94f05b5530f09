//! Reads the bins of the partition strategy.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use inshore_store::{Buffer, Job, PendingRead};

use crate::{
    Block, Key, Operation, Result,
    array::Array,
    strategies::partition::{BinnedRecords, block_values, unpack},
    strategies::partplan::{PartitionPlan, UNPACKED_RECORDS},
    strategies::table::{accumulate_places, accumulate_words, scan},
};

/// A part of a result: a range of bins, which are streamed in ascending order of keys.
pub(crate) struct BinsPart<O: Operation> {
    operation: O,
    plan: PartitionPlan,
    sinks: Arc<Vec<BinnedRecords<O::Value>>>,
    bins: Range<usize>,
    /// The largest number of parallel readers.
    pub readers_max: usize,
}

impl<O: Operation> BinsPart<O> {
    pub fn new(operation: O, plan: PartitionPlan, sinks: Vec<BinnedRecords<O::Value>>) -> Self {
        let (bins, readers_max) = (0..plan.bins, plan.readers_max);
        BinsPart { operation, plan, sinks: Arc::new(sinks), bins, readers_max }
    }

    fn records(&self, bin: usize) -> u64 {
        self.sinks.iter().map(|sink| sink.records(bin)).sum()
    }

    /// Splits the range of bins into parts with about equally many records.
    pub fn split(self, parts: usize, readers: usize) -> Vec<BinsPart<O>> {
        let all: u64 = self.bins.clone().map(|bin| self.records(bin)).sum();
        let (mut start, mut done) = (self.bins.start, 0);
        let part = |number: usize| {
            let wanted = all * (number as u64 + 1) / parts as u64;
            let mut end = start;
            // A bin belongs to the part that contains the bin's middle record.
            while end < self.bins.end && (number + 1 == parts || done + self.records(end) / 2 < wanted) {
                done += self.records(end);
                end += 1;
            }
            let bins = std::mem::replace(&mut start, end)..end;
            BinsPart {
                operation: self.operation.clone(),
                plan: self.plan,
                sinks: self.sinks.clone(),
                bins,
                readers_max: self.readers_max / readers,
            }
        };
        (0..parts).map(part).collect()
    }

    /// Combines records of a bin into the bin's table. If values are short, `lows` contains words of low key bits and
    /// value, and `values` is empty. Otherwise `lows` contains only the low bits of the keys.
    #[inline]
    fn accumulate(
        &self,
        bin: usize,
        lows: &[u32],
        values: &[O::Value],
        onto_neutral: bool,
        table: &mut [O::Value],
        present: &mut [u64],
    ) {
        let first = self.plan.first_key(bin);
        let combine = |place, a, b| {
            let key = O::Key::from_word((first + place as u64).into());
            self.operation.combine_at(key, a, b)
        };
        if self.plan.is_short {
            let lengthen = |short| self.operation.lengthen(short);
            accumulate_words(self.plan.bin_bits, lows, lengthen, onto_neutral, table, present, combine);
        } else {
            accumulate_places(lows, values, onto_neutral, table, present, combine);
        }
    }

    /// Returns the bytes of memory that reading takes.
    pub fn reading_bytes(&self) -> usize {
        self.plan.reader_bytes
    }

    /// Reserves the memory for one bin's table and starts to read.
    ///
    /// # Errors
    /// Returns an error if a read fails.
    pub fn begin(self, job: &Job) -> Result<BinReader<O>> {
        let (plan, what) = (self.plan, "the table of a bin");
        let keys = 1usize << plan.bin_bits;
        let read_bytes = plan.reads_ahead * plan.block_bytes;
        let buffers = Buffer::zeroed(job.budget(), read_bytes, "the read buffers of bins")?;
        let mut reader = BinReader {
            job: job.clone(),
            table: Array::zeroed(job.budget(), keys, what)?,
            present: Array::zeroed(job.budget(), keys.div_ceil(64), what)?,
            lows: Array::zeroed(job.budget(), UNPACKED_RECORDS, what)?,
            keys: Array::zeroed(job.budget(), plan.scan_records, what)?,
            values: Array::zeroed(job.budget(), plan.scan_records, what)?,
            neutral: self.operation.neutral(),
            ahead: VecDeque::new(),
            wanted: NextBlock { bin: self.bins.start, sink: 0, block: 0 },
            bin: self.bins.start,
            word: None,
            records_in: 0,
            part: self,
        };
        reader.make_neutral();
        buffers.split(plan.block_bytes).into_iter().try_for_each(|buffer| reader.read_ahead(buffer))?;
        Ok(reader)
    }
}

/// The next block to be requested.
#[derive(Clone, Copy, Debug)]
struct NextBlock {
    bin: usize,
    sink: usize,
    block: usize,
}

/// Streams the records of bins in order.
pub(crate) struct BinReader<O: Operation> {
    job: Job,
    part: BinsPart<O>,
    table: Array<O::Value>,
    present: Array<u64>,
    /// The neutral value, which fills the empty slots of the table. The value is `None` if the operation has no neutral
    /// value.
    neutral: Option<O::Value>,
    lows: Array<u32>,
    keys: Array<O::Key>,
    values: Array<O::Value>,
    /// The pending block reads, in the order in which the blocks are used.
    ahead: VecDeque<PendingRead>,
    wanted: NextBlock,
    bin: usize,
    /// The index of the next bitmap word to scan. The value is `None` if the bin's records are not yet in the table.
    word: Option<usize>,
    pub records_in: u64,
}

impl<O: Operation> BinReader<O> {
    /// Returns the next block of records, or `None` at the end.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::Io`] if a read fails.
    /// - Returns [`inshore_store::Error::Damaged`] if the checksum of a run does not match.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        while self.bin < self.part.bins.end {
            let word = match self.word {
                Some(word) => word,
                None => {
                    self.accumulate_bin()?;
                    0
                }
            };
            let place = word * 64;
            let min = (self.part.plan.first_key(self.bin) + place as u64).into();
            let (words, count) = scan::<O::Key, _>(
                min,
                &self.present[word..],
                &self.table[place.min(self.table.len())..],
                &mut self.keys,
                &mut self.values,
            );
            self.word = Some(word + words);
            if word + words == self.present.len() {
                self.present.fill(0);
                self.make_neutral();
                self.word = None;
                self.bin += 1;
            }
            if count > 0 {
                return Ok(Some(Block { keys: &self.keys[..count], values: &self.values[..count] }));
            }
        }
        Ok(None)
    }

    fn make_neutral(&mut self) {
        if let Some(neutral) = self.neutral {
            self.table.fill(neutral);
        }
    }

    fn accumulate_bin(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let sinks = self.part.sinks.clone();
        for sink in sinks.iter() {
            for _ in sink.blocks(self.bin) {
                self.accumulate_block()?;
            }
            let (lows, values) = sink.in_memory(self.bin);
            self.part.accumulate(
                self.bin,
                lows,
                values,
                self.neutral.is_some(),
                &mut self.table,
                &mut self.present,
            );
            self.records_in += lows.len() as u64;
        }
        Ok(())
    }

    /// Waits for the block that was requested first, and combines its records into the table.
    fn accumulate_block(&mut self) -> Result<()> {
        let (buffer, wanted) = self.ahead.pop_front().expect("asked for in the order of use").wait()?;
        let plan = self.part.plan;
        let block = &buffer[wanted];
        let values = if plan.is_short { &[] } else { block_values::<O::Value>(&plan, block) };
        for start in (0..plan.block_records).step_by(UNPACKED_RECORDS) {
            let end = plan.block_records.min(start + UNPACKED_RECORDS);
            let lows = &mut self.lows[..end - start];
            unpack(&block[start * plan.low_bytes..], plan.low_bytes, lows);
            let values = values.get(start..end).unwrap_or_default();
            self.part.accumulate(
                self.bin,
                lows,
                values,
                self.neutral.is_some(),
                &mut self.table,
                &mut self.present,
            );
        }
        self.records_in += plan.block_records as u64;
        self.read_ahead(buffer)
    }

    /// Requests the next block, if there is one.
    fn read_ahead(&mut self, buffer: Buffer) -> Result<()> {
        let sinks = &self.part.sinks;
        while self.wanted.bin < self.part.bins.end {
            let NextBlock { bin, sink, block } = self.wanted;
            if sink == sinks.len() {
                self.wanted = NextBlock { bin: bin + 1, sink: 0, block: 0 };
            } else if let Some(&number) = sinks[sink].blocks(bin).get(block) {
                let (file, range) = sinks[sink].place(number);
                self.ahead.push_back(file.submit_read(&self.job, range, buffer)?);
                self.wanted.block += 1;
                return Ok(());
            } else {
                self.wanted = NextBlock { bin, sink: sink + 1, block: 0 };
            }
        }
        Ok(())
    }
}
