//! A chunk is the memory in which one thread forms runs.
//!
//! ```text
//!   keys    [ block 0 | block 1 | block 2 | ... ]     a block is 4 to 512 records
//!   values  [ block 0 | block 1 | block 2 | ... ]
//!   bucket 0: block 7 -> block 2 -> open block 9
//!   bucket 1: open block 4
//!   ...       buckets are ascending ranges of keys
//!   free: 5, 6, 8, ...
//! ```
//!
//! A pushed record is written directly to the open block of its bucket. The scatter of a radix sort therefore needs
//! neither a separate pass nor a second copy of the chunk. When no block is free, the chunk is sorted in place, one
//! bucket at a time. A bucket's records are copied to the [`Sorter`], which frees the bucket's blocks. The sorter
//! sorts the records and combines equal keys, and the result is written back to fewer blocks. A bucket with more
//! records than a slab (the sorter's capacity) is first scattered over smaller buckets in the free blocks. The memory
//! of the chunk therefore suffices to sort any distribution of keys. If at least half of the blocks are free after
//! the sort, pushing continues. Otherwise the owner writes the chunk as a run. A small number of distinct keys is
//! thus never written to flash.
//!
//! The usual alternative is a radix pass from one array to a second array, but then a chunk has only half of the
//! memory. There would be twice as many runs, and fewer equal keys would be combined before they are written.

use inshore_store::{Budget, Job, Reservation, Result};

use crate::{
    Key, Operation, Value,
    array::Array,
    forming::scatter::{BucketBlocks, BucketMap, scatter},
    forming::sizes::{BLOCK_EXTRA_BYTES, BUCKET_BITS_MAX, ChunkSizes, spare_blocks},
    forming::sort::{Sorter, min_max},
    keys::word::Word,
};

const NONE: u32 = u32::MAX;
/// A linked list of blocks.
#[derive(Clone, Copy, Debug)]
struct BlockList {
    head: u32,
    last: u32,
    records: usize,
}

const EMPTY: BlockList = BlockList { head: NONE, last: NONE, records: 0 };

/// The records of one key range, in closed blocks and one open block. The bucket's cursor points into the open block.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    closed: BlockList,
    open: u32,
}

/// A chunk of memory, whose blocks contain the records of buckets.
#[derive(Debug)]
pub(crate) struct Chunk<K: Key, V> {
    keys: Array<K>,
    values: Array<V>,
    sizes: ChunkSizes,
    next: Vec<u32>,
    fill: Vec<u32>,
    free: Vec<u32>,
    map: BucketMap<K::Word>,
    buckets: Vec<Bucket>,
    cursors: Vec<u32>,
    /// A buffer for the records of a block while they are scattered to other buckets.
    moving: (Vec<K>, Vec<V>),
    _extra: Reservation,
}

impl<K: Key, V: Value> Chunk<K, V> {
    pub fn new(sizes: ChunkSizes, map: BucketMap<K::Word>, budget: &Budget) -> Result<Self> {
        let records = sizes.blocks * sizes.block_records;
        let what = "the chunk that runs are formed in";
        let extra = budget.reserve((sizes.blocks * BLOCK_EXTRA_BYTES) as u64, what)?;
        let mut chunk = Chunk {
            keys: Array::zeroed(budget, records, what)?,
            values: Array::zeroed(budget, records, what)?,
            sizes,
            next: vec![NONE; sizes.blocks],
            fill: vec![0; sizes.blocks],
            // Blocks are taken from the end of this list, in ascending order, so that few records touch few memory
            // pages.
            free: (0..sizes.blocks as u32).rev().collect(),
            map,
            buckets: Vec::new(),
            cursors: Vec::new(),
            moving: (vec![K::default(); sizes.block_records], vec![V::default(); sizes.block_records]),
            _extra: extra,
        };
        chunk.clear(map);
        Ok(chunk)
    }

    /// Removes all records, and replaces the buckets by those of `map`.
    pub fn clear(&mut self, map: BucketMap<K::Word>) {
        for bucket in std::mem::take(&mut self.buckets) {
            self.release(bucket.closed);
            self.free.extend(Some(bucket.open).filter(|&block| block != NONE));
        }
        debug_assert_eq!(self.free.len(), self.sizes.blocks);
        self.map = map;
        self.buckets = vec![Bucket { closed: EMPTY, open: NONE }; map.buckets()];
        self.cursors = vec![0; map.buckets()];
        self.open();
    }

    /// Returns the current map of keys to buckets.
    pub fn map(&self) -> BucketMap<K::Word> {
        self.map
    }

    /// Returns the base-2 logarithm of the number of buckets.
    pub fn bucket_bits(&self) -> u32 {
        self.sizes.bucket_bits
    }

    /// Opens a block for each bucket without one. After [`Chunk::sort`], this call must precede [`Chunk::push`].
    pub fn open(&mut self) {
        for bucket in 0..self.buckets.len() {
            if self.buckets[bucket].open == NONE {
                let block = self.free.pop().expect("more blocks than buckets");
                self.buckets[bucket].open = block;
                self.cursors[bucket] = self.start(block);
            }
        }
    }

    /// Adds records until the chunk is full. Returns the number of added records, and whether the chunk is full. A
    /// full chunk must be sorted before the next push, even if all records were added.
    #[inline]
    pub fn push(&mut self, keys: &[K], value_at: impl Fn(usize) -> V) -> (usize, bool) {
        let map = self.map;
        let mut taken = 0;
        while taken < keys.len() {
            let into = BucketBlocks {
                keys: &mut self.keys,
                values: &mut self.values,
                block_records: self.sizes.block_records,
            };
            let done = taken;
            taken += scatter(
                |key| map.bucket(key),
                &keys[done..],
                |i| value_at(done + i),
                into,
                &mut self.cursors,
            );
            let bucket = self.map.bucket(keys[taken - 1].to_word());
            if self.is_block_full(self.cursors[bucket], self.buckets[bucket].open) && !self.open_next(bucket)
            {
                return (taken, true);
            }
        }
        (taken, false)
    }

    fn is_block_full(&self, cursor: u32, open: u32) -> bool {
        cursor == self.start(open) + self.sizes.block_records as u32
    }

    /// Closes a bucket's full block. Opens another block and returns true if more blocks are free than the reserve.
    fn open_next(&mut self, bucket: usize) -> bool {
        self.close(bucket);
        if self.free.len() <= self.sizes.reserve_blocks {
            return false;
        }
        self.open_bucket(bucket);
        true
    }

    fn open_bucket(&mut self, bucket: usize) {
        let block = self.free.pop().expect("checked by the caller");
        self.buckets[bucket].open = block;
        self.cursors[bucket] = self.start(block);
    }

    /// Adds a bucket's open block to its closed blocks, or frees the block if it is empty.
    fn close(&mut self, number: usize) {
        let block = std::mem::replace(&mut self.buckets[number].open, NONE);
        if block == NONE {
            return;
        }
        let fill = self.cursors[number] - self.start(block);
        if fill == 0 {
            self.free.push(block);
        } else {
            self.fill[block as usize] = fill;
            link(&mut self.buckets[number].closed, block, fill, &mut self.next);
        }
    }

    fn start(&self, block: u32) -> u32 {
        block * self.sizes.block_records as u32
    }

    fn block(&self, block: u32) -> (&[K], &[V]) {
        let start = self.start(block) as usize;
        let range = start..start + self.fill[block as usize] as usize;
        (&self.keys[range.clone()], &self.values[range])
    }

    /// Sorts all records and combines equal keys. After the call, no block is open.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn sort<O>(&mut self, sorter: &mut Sorter<O>, job: &Job) -> Result<()>
    where
        O: Operation<Key = K, Value = V>,
    {
        for bucket in 0..self.buckets.len() {
            self.close(bucket);
        }
        for bucket in 0..self.buckets.len() {
            job.check_cancelled()?;
            let chain = std::mem::replace(&mut self.buckets[bucket].closed, EMPTY);
            self.buckets[bucket].closed = self.sort_chain(chain, sorter, job)?;
        }
        Ok(())
    }

    fn sort_chain<O>(&mut self, chain: BlockList, sorter: &mut Sorter<O>, job: &Job) -> Result<BlockList>
    where
        O: Operation<Key = K, Value = V>,
    {
        let mut sorted = EMPTY;
        let mut left = vec![chain];
        while let Some(chain) = left.pop() {
            if chain.records == 0 {
                continue;
            }
            if chain.records <= sorter.slab_records() {
                let count = self.gather(chain, sorter.inputs());
                let count = sorter.sort_reduce(count);
                self.append(&mut sorted, sorter.outputs(count));
                continue;
            }
            job.check_cancelled()?;
            let (min, max) = self.min_max(chain);
            if sorter.has_table_for(min, max) {
                self.accumulate(chain, min, sorter);
                let count = sorter.take_table(min, max);
                self.append(&mut sorted, sorter.outputs(count));
            } else {
                left.extend(self.scatter_chain(chain, min, max, sorter.slab_records()).into_iter().rev());
            }
        }
        Ok(sorted)
    }

    /// Copies the records of a list of blocks to `keys` and `values`, and frees the blocks.
    fn gather(&mut self, chain: BlockList, (keys, values): (&mut [K], &mut [V])) -> usize {
        let mut count = 0;
        let mut block = chain.head;
        while block != NONE {
            let (from_keys, from_values) = self.block(block);
            let end = count + from_keys.len();
            keys[count..end].copy_from_slice(from_keys);
            values[count..end].copy_from_slice(from_values);
            count = end;
            block = self.next[block as usize];
        }
        self.release(chain);
        count
    }

    fn min_max(&self, chain: BlockList) -> (K::Word, K::Word) {
        let (mut min, mut max) = (K::Word::MAX, K::Word::from(0));
        let mut block = chain.head;
        while block != NONE {
            let (low, high) = min_max(self.block(block).0);
            (min, max) = (min.min(low), max.max(high));
            block = self.next[block as usize];
        }
        (min, max)
    }

    fn accumulate<O>(&mut self, chain: BlockList, min: K::Word, sorter: &mut Sorter<O>)
    where
        O: Operation<Key = K, Value = V>,
    {
        let mut block = chain.head;
        while block != NONE {
            let (keys, values) = self.block(block);
            sorter.accumulate(min, keys, values);
            block = self.next[block as usize];
        }
        self.release(chain);
    }

    fn release(&mut self, chain: BlockList) {
        let mut block = chain.head;
        while block != NONE {
            self.free.push(block);
            block = self.next[block as usize];
        }
    }

    /// Appends sorted records to a list in which all blocks except the last are full.
    fn append(&mut self, chain: &mut BlockList, (keys, values): (&[K], &[V])) {
        let mut done = 0;
        while done < keys.len() {
            let room = |fill: u32| self.sizes.block_records - fill as usize;
            if chain.last == NONE || room(self.fill[chain.last as usize]) == 0 {
                let block = self.free.pop().expect("reduced records need no more blocks than before");
                self.fill[block as usize] = 0;
                link(chain, block, 0, &mut self.next);
            }
            let fill = self.fill[chain.last as usize];
            let part = room(fill).min(keys.len() - done);
            let start = (self.start(chain.last) + fill) as usize;
            self.keys[start..start + part].copy_from_slice(&keys[done..done + part]);
            self.values[start..start + part].copy_from_slice(&values[done..done + part]);
            self.fill[chain.last as usize] += part as u32;
            chain.records += part;
            done += part;
        }
    }

    /// Scatters a list of blocks with more records than a slab to lists of smaller key ranges, in ascending order.
    /// The free blocks suffice, since a block is freed before another is taken, except for one open block in each new
    /// list.
    fn scatter_chain(
        &mut self,
        chain: BlockList,
        min: K::Word,
        max: K::Word,
        slab_records: usize,
    ) -> Vec<BlockList> {
        let wanted = (2 * chain.records / slab_records).next_power_of_two().ilog2();
        let most = self.free.len().saturating_sub(spare_blocks::<K>()).max(2).ilog2();
        let map = BucketMap::over(min, max, wanted.min(most).clamp(1, BUCKET_BITS_MAX));
        let mut outer = ScatterTargets {
            map,
            buckets: vec![Bucket { closed: EMPTY, open: NONE }; map.buckets()],
            cursors: vec![0; map.buckets()],
        };
        outer.swap(self);
        self.open();
        let mut block = chain.head;
        while block != NONE {
            let next = self.next[block as usize];
            self.move_block(block);
            block = next;
        }
        for bucket in 0..self.buckets.len() {
            self.close(bucket);
        }
        outer.swap(self);
        outer.buckets.into_iter().map(|bucket| bucket.closed).collect()
    }

    /// Scatters the records of one block to the buckets, and frees the block.
    fn move_block(&mut self, block: u32) {
        let (mut keys, mut values) = std::mem::take(&mut self.moving);
        let (from_keys, from_values) = self.block(block);
        let count = from_keys.len();
        keys[..count].copy_from_slice(from_keys);
        values[..count].copy_from_slice(from_values);
        self.free.push(block);
        let reserve = std::mem::replace(&mut self.sizes.reserve_blocks, 0);
        let pushed = self.push(&keys[..count], |i| values[i]);
        assert_eq!(pushed, (count, false), "a block that was freed makes room for its records");
        self.sizes.reserve_blocks = reserve;
        self.moving = (keys, values);
    }

    /// Returns whether so many blocks are free that records can be pushed before a run is written.
    pub fn is_roomy(&self) -> bool {
        self.free.len() >= self.sizes.blocks / 2
    }

    /// Returns the number of records in closed blocks. After [`Chunk::sort`], these are all records.
    pub fn sorted_records(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.closed.records as u64).sum()
    }

    /// Iterates over the blocks of a sorted chunk in order.
    pub fn sorted_blocks(&self) -> impl Iterator<Item = (&[K], &[V])> {
        let heads = self.buckets.iter().map(|bucket| bucket.closed.head).filter(|&head| head != NONE);
        heads.flat_map(move |head| {
            let next = |&block: &u32| Some(self.next[block as usize]).filter(|&next| next != NONE);
            std::iter::successors(Some(head), next).map(|block| self.block(block))
        })
    }

    /// Returns the block numbers of a sorted chunk in key order, for [`Chunk::numbered_block`].
    pub fn sorted_block_numbers(&self) -> Vec<u32> {
        let heads = self.buckets.iter().map(|bucket| bucket.closed.head).filter(|&head| head != NONE);
        let next = |&block: &u32| Some(self.next[block as usize]).filter(|&next| next != NONE);
        heads.flat_map(|head| std::iter::successors(Some(head), next)).collect()
    }

    /// Returns the keys and values of a block.
    pub fn numbered_block(&self, block: u32) -> (&[K], &[V]) {
        self.block(block)
    }
}

/// The target buckets of a scatter. While records are scattered, these buckets and the chunk's own buckets are
/// swapped.
struct ScatterTargets<W> {
    map: BucketMap<W>,
    buckets: Vec<Bucket>,
    cursors: Vec<u32>,
}

impl<W> ScatterTargets<W> {
    fn swap<K: Key<Word = W>, V>(&mut self, chunk: &mut Chunk<K, V>) {
        std::mem::swap(&mut self.map, &mut chunk.map);
        std::mem::swap(&mut self.buckets, &mut chunk.buckets);
        std::mem::swap(&mut self.cursors, &mut chunk.cursors);
    }
}

/// Appends the block `block`, which has `fill` records, to a list.
fn link(chain: &mut BlockList, block: u32, fill: u32, next: &mut [u32]) {
    next[block as usize] = NONE;
    if chain.last == NONE {
        chain.head = block;
    } else {
        next[chain.last as usize] = block;
    }
    chain.last = block;
    chain.records += fill as usize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use inshore_store::{Budget, Cancel, Store};

    #[derive(Clone)]
    struct Count;

    impl Operation for Count {
        type Key = u64;
        type Value = u32;
        fn combine(&self, a: u32, b: u32) -> u32 {
            a + b
        }
    }

    const SLAB_RECORDS: usize = 200;

    fn sizes() -> ChunkSizes {
        let sizes = ChunkSizes::within::<u64, u32>(1 << 20, usize::MAX, SLAB_RECORDS);
        assert!(sizes.reserve_blocks > 0 && sizes.blocks > 3 * sizes.reserve_blocks, "{sizes:?}");
        sizes
    }

    /// Fills a chunk with keys, sorts the chunk, and compares the result with a `BTreeMap`.
    fn check(name: &str, mut key: impl FnMut(u64) -> u64) {
        let folder = tempfile::tempdir().unwrap();
        let job = Store::open(folder.path()).unwrap();
        let job = job.job(Budget::new(4 << 20, 1), Cancel::default()).unwrap();
        let sizes = sizes();
        let map = BucketMap::over(0, u64::MAX, sizes.bucket_bits);
        let mut chunk = Chunk::<u64, u32>::new(sizes, map, job.budget()).unwrap();
        assert!(job.budget().reserved_bytes() <= sizes.bytes::<u64, u32>() as u64);
        let mut sorter = Sorter::new(Count, SLAB_RECORDS, job.budget()).unwrap();
        let mut expected = std::collections::BTreeMap::<u64, u32>::new();
        for number in 0.. {
            let key = key(number);
            let (taken, full) = chunk.push(&[key], |_| 1);
            assert_eq!(taken, 1);
            *expected.entry(key).or_default() += 1;
            if full {
                break;
            }
        }
        let pushed: u32 = expected.values().sum();
        let room = sizes.blocks - sizes.reserve_blocks - (1 << sizes.bucket_bits);
        assert!(pushed as usize > (room - 1) * sizes.block_records, "{name}: full after {pushed}");
        chunk.sort(&mut sorter, &job).unwrap();
        assert_eq!(chunk.sorted_records(), expected.len() as u64, "{name}");
        let records = chunk.sorted_blocks().flat_map(|(keys, values)| keys.iter().zip(values));
        assert!(records.eq(&expected), "{name}");
        // After `clear`, all blocks are free except one open block per bucket.
        chunk.clear(map);
        assert_eq!(chunk.free.len() + map.buckets(), sizes.blocks, "{name}");
    }

    #[test]
    fn any_distribution_is_sorted_in_the_memory_of_the_chunk() {
        let mix = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        check("even", mix);
        check("ascending", |n| n);
        check("descending", |n| u64::MAX - n);
        check("equal", |_| u64::MAX);
        check("two", |n| if n % 2 == 0 { 0 } else { u64::MAX });
        check("one bucket", |n| (1 << 40) + mix(n) % (1 << 38));
        // At every level of scattering, almost all records remain in one bucket.
        check("outliers", |n| if n < 64 { 1 << n } else { mix(n) % 5_000 });
        check("nested", |n| mix(n) >> (n % 64));
        check("clusters", |n| (1u64 << (n % 64)).wrapping_add(mix(n) % 3_000));
        check("clusters at the top", |n| u64::MAX.wrapping_sub(1 << (n % 64)).wrapping_sub(mix(n) % 3_000));
    }
}
