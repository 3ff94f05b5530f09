//! The dense strategy, in which an array in memory has an element for every possible key.
//!
//! ```text
//!   array    [ shard 0 | shard 1 | ... ]            each under its own lock
//!   shard    [ value * shard_keys | bitmap ]        half a megabyte, so that it stays in the cache
//!   sink     bins: [ shard 0's updates | shard 1's updates | ... ]
//! ```
//!
//! A sink writes each record to the bin of the key's shard. A full bin is combined into its shard under the shard's
//! lock, so that all its updates are in the same half megabyte. An immediate update for each record would miss the
//! cache. With several sinks, an immediate update would also need an atomic operation, which structs and
//! floating-point values do not have. The memory of array and bins is not touched before its first use, so few
//! records over a wide range touch few pages.

use std::{
    marker::PhantomData,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_store::{Budget, Buffer};

use crate::{
    Block, Error, Key, Operation, Result, Value,
    array::{Array, taken_bytes, typed, typed_mut},
    forming::scatter::{BucketBlocks, ShiftMap, scatter},
    forming::sort::{key_at, min_max},
    plan::{DensePlan, shard_bytes},
    strategies::table::{accumulate, scan},
};

/// The array that all sinks share.
pub(crate) struct Dense<O> {
    name: &'static str,
    operation: O,
    plan: DensePlan,
    shards: Vec<Mutex<Shard>>,
    pushed: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    memory: Buffer,
    used: bool,
}

/// Splits a shard's memory into values and bitmap.
fn parts<V: Value>(memory: &[u8], keys: usize) -> (&[V], &[u64]) {
    let (values, bitmap) = memory.split_at(keys * size_of::<V>());
    (typed(values, keys), typed(bitmap, keys / 64))
}

fn parts_mut<V: Value>(memory: &mut [u8], keys: usize) -> (&mut [V], &mut [u64]) {
    let (values, bitmap) = memory.split_at_mut(keys * size_of::<V>());
    (typed_mut(values, keys), typed_mut(bitmap, keys / 64))
}

impl<O: Operation> Dense<O> {
    pub fn new(name: &'static str, operation: O, plan: DensePlan, budget: &Budget) -> Result<Self> {
        let each = shard_bytes(plan.shard_keys, size_of::<O::Value>());
        let array = Buffer::zeroed(budget, plan.shards * each, "the array of the dense strategy")?;
        let shards = array.split(each).into_iter().map(|memory| Mutex::new(Shard { memory, used: false }));
        Ok(Dense { name, operation, plan, shards: shards.collect(), pushed: AtomicU64::new(0) })
    }

    /// Combines the records of a bin into their shard.
    fn apply(&self, shard: usize, keys: &[O::Key], values: &[O::Value]) -> Result<()> {
        let Some(_) = keys.first() else { return Ok(()) };
        let (_, max) = min_max(keys);
        if max >= self.plan.key_range.into() {
            let key = O::Key::from_word(max).to_u64();
            return Err(Error::KeyOutOfRange { name: self.name, key, range: self.plan.key_range });
        }
        let min = ((shard * self.plan.shard_keys) as u64).into();
        let mut shard = self.shards[shard].lock().expect("operations do not panic");
        shard.used = true;
        let (table, present) = parts_mut(&mut shard.memory, self.plan.shard_keys);
        let combine = |place, a, b| self.operation.combine_at(key_at::<O>(min, place), a, b);
        accumulate(min, keys, values, table, present, combine);
        self.pushed.fetch_add(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of records that were combined into the array.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }
}

/// The bins of one sink, one for each shard.
pub(crate) struct Bins<K: Key, V> {
    keys: Array<K>,
    values: Array<V>,
    cursors: Vec<u32>,
    map: ShiftMap<K::Word>,
    bin_records: usize,
}

impl<K: Key, V: Value> Bins<K, V> {
    pub fn new(plan: &DensePlan, budget: &Budget) -> Result<Self> {
        let records = plan.shards * plan.bin_records;
        let what = "the bins of the dense strategy";
        // Each shard has exactly one bucket, since the number of keys in a shard is a power of two. Keys out of range
        // map to the last bucket.
        let max = ((plan.shards * plan.shard_keys) as u64 - 1).into();
        let map = ShiftMap::new(plan.shard_keys.ilog2(), max);
        debug_assert_eq!(map.buckets(), plan.shards);
        Ok(Bins {
            keys: Array::zeroed(budget, records, what)?,
            values: Array::zeroed(budget, records, what)?,
            cursors: (0..plan.shards).map(|bin| (bin * plan.bin_records) as u32).collect(),
            map,
            bin_records: plan.bin_records,
        })
    }

    /// Writes records to bins, and combines full bins into their shards.
    ///
    /// # Errors
    /// Returns [`Error::KeyOutOfRange`] if a key is not below the upper bound.
    #[inline]
    pub fn push<O>(&mut self, keys: &[K], value_at: impl Fn(usize) -> V, dense: &Dense<O>) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        let map = self.map;
        let mut taken = 0;
        while taken < keys.len() {
            let into = BucketBlocks {
                keys: &mut self.keys,
                values: &mut self.values,
                block_records: self.bin_records,
            };
            let done = taken;
            taken += scatter(
                |key| map.bucket(key),
                &keys[done..],
                |i| value_at(done + i),
                into,
                &mut self.cursors,
            );
            let bin = self.map.bucket(keys[taken - 1].to_word());
            if self.cursors[bin] as usize == (bin + 1) * self.bin_records {
                self.apply(bin, dense)?;
            }
        }
        Ok(())
    }

    fn apply<O>(&mut self, bin: usize, dense: &Dense<O>) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        let start = bin * self.bin_records;
        let range = start..self.cursors[bin] as usize;
        self.cursors[bin] = start as u32;
        dense.apply(bin, &self.keys[range.clone()], &self.values[range])
    }

    /// Combines all bins into their shards, even if they are not full.
    ///
    /// # Errors
    /// Returns [`Error::KeyOutOfRange`] if a key is not below the upper bound.
    pub fn finish<O>(mut self, dense: &Dense<O>) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        (0..self.cursors.len()).try_for_each(|bin| self.apply(bin, dense))
    }
}

/// A part of a result: a range of shards, which are streamed in order.
pub(crate) struct DensePart<O: Operation> {
    shards: Vec<Shard>,
    /// The number of the part's first shard in the array.
    first: usize,
    plan: DensePlan,
    /// The bytes of memory for the output buffers of the scan.
    scan_bytes: usize,
    of: PhantomData<O>,
}

impl<O: Operation> DensePart<O> {
    pub fn new(dense: Dense<O>) -> Self {
        let shards =
            dense.shards.into_iter().map(|shard| shard.into_inner().expect("operations do not panic"));
        let scan_bytes = dense.plan.scan_bytes(size_of::<O::Key>(), size_of::<O::Value>());
        DensePart { shards: shards.collect(), first: 0, plan: dense.plan, scan_bytes, of: PhantomData }
    }

    /// Returns the maximum number of records per returned block if there are `readers` readers. Returns 0 if the
    /// memory does not suffice for this number of readers.
    pub fn scan_records(&self, readers: usize) -> usize {
        let (key_bytes, value_bytes) = (size_of::<O::Key>(), size_of::<O::Value>());
        let fits = |&records: &usize| {
            taken_bytes(records * key_bytes) + taken_bytes(records * value_bytes) <= self.scan_bytes / readers
        };
        let halved = std::iter::successors(Some(self.plan.scan_records), |records| Some(records / 2));
        halved.take_while(|&records| records >= 64).find(fits).unwrap_or(0)
    }

    /// Splits the range of shards into parts with about equally many records.
    pub fn split(self, parts: usize, readers: usize) -> Vec<DensePart<O>> {
        let (plan, scan_bytes) = (self.plan, self.scan_bytes / readers);
        let counts: Vec<u64> = self.shards.iter().map(|shard| shard.records::<O::Value>(&plan)).collect();
        let all: u64 = counts.iter().sum();
        let mut shards = self.shards.into_iter().zip(counts).enumerate().peekable();
        let mut done = 0;
        let part = |number: usize| {
            let end = all * (number as u64 + 1) / parts as u64;
            let first = self.first + shards.peek().map_or(0, |(number, _)| *number);
            let mut taken = Vec::new();
            // A shard belongs to the part that contains the shard's middle record.
            while let Some((_, (shard, count))) =
                shards.next_if(|(_, (_, count))| number + 1 == parts || done + count / 2 < end)
            {
                done += count;
                taken.push(shard);
            }
            DensePart { shards: taken, first, plan, scan_bytes, of: PhantomData }
        };
        (0..parts).map(part).collect()
    }

    /// Returns the bytes of memory that reading takes.
    pub fn reading_bytes(&self) -> usize {
        let records = self.scan_records(1);
        taken_bytes(records * size_of::<O::Key>()) + taken_bytes(records * size_of::<O::Value>())
    }

    /// Reserves the memory for the output buffers, and starts a scan.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::OverBudget`] if the budget has too little free memory.
    pub fn begin(self, budget: &Budget) -> Result<Scan<O>> {
        let what = "the records of a dense scan";
        let records = self.scan_records(1);
        Ok(Scan {
            keys: Array::zeroed(budget, records, what)?,
            values: Array::zeroed(budget, records, what)?,
            part: self,
            shard: 0,
            word: 0,
        })
    }
}

impl Shard {
    /// Returns the number of keys that have a value in the shard.
    fn records<V: Value>(&self, plan: &DensePlan) -> u64 {
        if !self.used {
            return 0;
        }
        let (_, present) = parts::<V>(&self.memory, plan.shard_keys);
        present.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Streams the records of shards in order.
pub(crate) struct Scan<O: Operation> {
    part: DensePart<O>,
    keys: Array<O::Key>,
    values: Array<O::Value>,
    shard: usize,
    word: usize,
}

impl<O: Operation> Scan<O> {
    /// Returns the next block of records, or `None` at the end.
    pub fn next_block(&mut self) -> Option<Block<'_, O::Key, O::Value>> {
        let shard_keys = self.part.plan.shard_keys;
        let mut count = 0;
        while count == 0 {
            let shard = self.part.shards.get(self.shard)?;
            if !shard.used || self.word == shard_keys / 64 {
                self.shard += 1;
                self.word = 0;
                continue;
            }
            let (table, present) = parts::<O::Value>(&shard.memory, shard_keys);
            let place = self.word * 64;
            let min = (((self.part.first + self.shard) * shard_keys + place) as u64).into();
            let (words, records) =
                scan(min, &present[self.word..], &table[place..], &mut self.keys, &mut self.values);
            self.word += words;
            count = records;
        }
        Some(Block { keys: &self.keys[..count], values: &self.values[..count] })
    }
}
