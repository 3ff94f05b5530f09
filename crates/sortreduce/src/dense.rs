//! The dense strategy: a place in memory for every possible key.
//!
//! ```text
//!   array    [ shard 0 | shard 1 | ... ]            each under its own lock
//!   shard    [ value * shard_keys | bitmap ]        half a megabyte, so that it stays in the cache
//!   sink     bins: [ shard 0's updates | shard 1's updates | ... ]
//! ```
//!
//! A sink puts each update into the bin of the key's shard. A full bin is applied under the shard's lock: all
//! its updates hit the same half megabyte. Applying each update at once would miss the cache (and, with several
//! sinks, need an atomic operation that structs and floats do not have). Array and bins are mapped but not
//! touched before they are used, so few updates of a wide range cost few pages.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use inshore_store::{Budget, Buffer};

use crate::{
    Block, Error, Key, Operation, Result, Value,
    array::{Array, typed, typed_mut},
    plan::{DensePlan, shard_bytes},
    scatter::{Blocks, BucketMap, scatter},
    sort::min_max,
    table::{accumulate, scan},
};

/// The shared array.
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

/// The values and the bitmap of a shard.
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

    /// Combines updates of one shard into the array.
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
        accumulate(min, keys, values, table, present, |a, b| self.operation.combine(a, b));
        self.pushed.fetch_add(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Updates applied so far.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }
}

/// The bins of one sink.
pub(crate) struct Bins<K: Key, V> {
    keys: Array<K>,
    values: Array<V>,
    cursors: Vec<u32>,
    map: BucketMap<K::Word>,
    bin_records: usize,
}

impl<K: Key, V: Value> Bins<K, V> {
    pub fn new(plan: &DensePlan, budget: &Budget) -> Result<Self> {
        let records = plan.shards * plan.bin_records;
        let what = "the bins of the dense strategy";
        // One bucket for each shard, since shards are powers of two; what is out of range goes to the last.
        let max = ((plan.shards * plan.shard_keys) as u64 - 1).into();
        let map = BucketMap::by_shift(plan.shard_keys.ilog2(), max);
        debug_assert_eq!(map.buckets(), plan.shards);
        Ok(Bins {
            keys: Array::zeroed(budget, records, what)?,
            values: Array::zeroed(budget, records, what)?,
            cursors: (0..plan.shards).map(|bin| (bin * plan.bin_records) as u32).collect(),
            map,
            bin_records: plan.bin_records,
        })
    }

    /// Puts records into bins and applies those that are full.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`].
    #[inline]
    pub fn push<O>(&mut self, keys: &[K], value_at: impl Fn(usize) -> V, dense: &Dense<O>) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        let mut taken = 0;
        while taken < keys.len() {
            let into =
                Blocks { keys: &mut self.keys, values: &mut self.values, block_records: self.bin_records };
            let done = taken;
            taken += scatter(self.map, &keys[done..], |i| value_at(done + i), into, &mut self.cursors);
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

    /// Applies all bins.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`].
    pub fn finish<O>(mut self, dense: &Dense<O>) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        (0..self.cursors.len()).try_for_each(|bin| self.apply(bin, dense))
    }
}

/// Streams the array's records in order.
pub(crate) struct Scan<O: Operation> {
    dense: Dense<O>,
    keys: Array<O::Key>,
    values: Array<O::Value>,
    shard: usize,
    word: usize,
}

impl<O: Operation> Scan<O> {
    pub fn new(dense: Dense<O>, budget: &Budget) -> Result<Self> {
        let what = "the records of a dense scan";
        Ok(Scan {
            keys: Array::zeroed(budget, dense.plan.scan_records, what)?,
            values: Array::zeroed(budget, dense.plan.scan_records, what)?,
            dense,
            shard: 0,
            word: 0,
        })
    }

    /// The next records; none at the end.
    pub fn next_block(&mut self) -> Option<Block<'_, O::Key, O::Value>> {
        let shard_keys = self.dense.plan.shard_keys;
        let mut count = 0;
        while count == 0 {
            let shard = self.dense.shards.get_mut(self.shard)?.get_mut().expect("operations do not panic");
            if !shard.used || self.word == shard_keys / 64 {
                self.shard += 1;
                self.word = 0;
                continue;
            }
            let (table, present) = parts::<O::Value>(&shard.memory, shard_keys);
            let min = ((self.shard * shard_keys + self.word * 64) as u64).into();
            let place = self.word * 64;
            let (words, records) =
                scan(min, &present[self.word..], &table[place..], &mut self.keys, &mut self.values);
            self.word += words;
            count = records;
        }
        Some(Block { keys: &self.keys[..count], values: &self.values[..count] })
    }
}
