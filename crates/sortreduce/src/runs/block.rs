//! Blocks of runs. The records of a block are either plain (not compressed) or packed (compressed).
//!
//! ```text
//!   block    [ records u32 | 1 if packed u32 | 0 u64 | body ]           all blocks of a run have the same size
//!   plain    [ key * n | zeros | value * n | zeros ]    n is the capacity of a block; values start after n keys,
//!                                                       at an offset rounded up to their alignment
//!   packed   [ frame | frame | ... | zeros ]            frames of 256 records, see [`super::pack`]
//! ```
//!
//! To pack and unpack a record of three words takes about 6 nanoseconds. In this time, a drive of 1 GB/s writes and
//! reads three bytes. Packing therefore pays only if a packed block has many more records than a plain block.
//! Otherwise the next blocks are plain, and packing is tried again after [`PLAIN_BLOCKS`] blocks.

use std::{marker::PhantomData, ops::Range};

use inshore_store::{Budget, Buffer, Reservation};

use crate::{
    Key, Result, Value,
    array::{taken_bytes, typed, typed_mut},
    keys::record::record_bytes,
    runs::pack::{FRAME_RECORDS, Packing},
};

const HEADER_BYTES: usize = 16;
/// The number of plain blocks that follow a block in which packing saved too little.
const PLAIN_BLOCKS: u32 = 32;

/// The layout of a block.
#[derive(Clone, Copy, Debug)]
struct BlockLayout<K, V> {
    block_bytes: usize,
    /// The number of records in a plain block.
    block_records: usize,
    values_offset: usize,
    packing: Option<Packing<K, V>>,
    of: PhantomData<(K, V)>,
}

impl<K: Key, V: Value> BlockLayout<K, V> {
    fn new(block_bytes: usize) -> Self {
        let mut block_records = (block_bytes - HEADER_BYTES) / record_bytes::<K, V>();
        let offset =
            |records: usize| (HEADER_BYTES + records * size_of::<K>()).next_multiple_of(align_of::<V>());
        while offset(block_records) + block_records * size_of::<V>() > block_bytes {
            block_records -= 1;
        }
        assert!(block_records > 0, "a block of {block_bytes} bytes holds no record");
        BlockLayout {
            block_bytes,
            block_records,
            values_offset: offset(block_records),
            packing: packing(block_bytes),
            of: PhantomData,
        }
    }

    /// Returns the maximum number of records in a packed block. With this number, the block's frames consist only of
    /// headers.
    fn packed_records_max(&self) -> usize {
        (self.block_bytes - HEADER_BYTES) / Packing::<K, V>::HEADER_BYTES * FRAME_RECORDS
    }

    fn keys<'a>(&self, block: &'a [u8], count: usize) -> &'a [K] {
        typed(&block[HEADER_BYTES.min(block.len())..], count)
    }

    fn values<'a>(&self, block: &'a [u8], count: usize) -> &'a [V] {
        typed(&block[self.values_offset.min(block.len())..], count)
    }
}

/// Returns the packing for blocks of this size, or `None` if records cannot be packed, or if a block is too small for
/// the largest frame.
fn packing<K: Key, V: Value>(block_bytes: usize) -> Option<Packing<K, V>> {
    Packing::new().filter(|_| HEADER_BYTES + Packing::<K, V>::FRAME_BYTES_MAX <= block_bytes)
}

/// Returns the bytes of `records` unpacked records, or 0 if blocks of this size are never packed.
fn unpacked_bytes<K: Key, V: Value>(block_bytes: usize, records: usize) -> usize {
    packing::<K, V>(block_bytes).map_or(0, |_| records * record_bytes::<K, V>())
}

/// Returns the bytes of memory that a [`BlockWriter`] takes.
pub(crate) fn writer_bytes<K: Key, V: Value>(block_bytes: usize) -> usize {
    taken_bytes(block_bytes) + unpacked_bytes::<K, V>(block_bytes, FRAME_RECORDS)
}

/// Returns the bytes of memory that a [`BlockReader`] takes, without the blocks that it reads.
pub(crate) fn reader_bytes<K: Key, V: Value>(block_bytes: usize) -> usize {
    unpacked_bytes::<K, V>(block_bytes, WINDOW_RECORDS)
}

/// Writes records into blocks.
#[derive(Debug)]
pub(crate) struct BlockWriter<K, V> {
    layout: BlockLayout<K, V>,
    block: Buffer,
    /// The number of records in the block, and the byte offset at which its frames end.
    records: usize,
    end: usize,
    first_key: K,
    /// The number of next blocks, including the current block, that will be plain.
    plain: u32,
    /// The keys and values of an incomplete frame.
    keys: Vec<K>,
    values: Vec<V>,
    _memory: Reservation,
}

/// A function that takes a finished block. Its arguments are the block's first key, the bytes, and the number of
/// records.
type TakeBlock<'a, K> = dyn FnMut(K, &[u8], usize) -> Result<()> + 'a;

impl<K: Key, V: Value> BlockWriter<K, V> {
    pub fn new(block_bytes: usize, budget: &Budget) -> Result<Self> {
        let layout = BlockLayout::<K, V>::new(block_bytes);
        let what = "a run's block";
        let waiting = if layout.packing.is_some() { FRAME_RECORDS } else { 0 };
        Ok(BlockWriter {
            block: Buffer::zeroed(budget, block_bytes, what)?,
            records: 0,
            end: HEADER_BYTES,
            first_key: K::default(),
            plain: if layout.packing.is_some() { 0 } else { u32::MAX },
            keys: Vec::with_capacity(waiting),
            values: Vec::with_capacity(waiting),
            _memory: budget.reserve(unpacked_bytes::<K, V>(block_bytes, FRAME_RECORDS) as u64, what)?,
            layout,
        })
    }

    pub fn block_bytes(&self) -> usize {
        self.layout.block_bytes
    }

    /// Appends records, and passes full blocks to `take`.
    ///
    /// # Errors
    /// Returns the errors of `take`.
    pub fn append(&mut self, mut keys: &[K], mut values: &[V], take: &mut TakeBlock<'_, K>) -> Result<()> {
        while !keys.is_empty() {
            let taken = if self.plain > 0 && self.keys.is_empty() {
                self.append_plain(keys, values, take)?
            } else if self.keys.is_empty() && keys.len() >= FRAME_RECORDS {
                self.put_frame(&keys[..FRAME_RECORDS], &values[..FRAME_RECORDS], take)?;
                FRAME_RECORDS
            } else {
                let taken = keys.len().min(FRAME_RECORDS - self.keys.len());
                self.keys.extend_from_slice(&keys[..taken]);
                self.values.extend_from_slice(&values[..taken]);
                if self.keys.len() == FRAME_RECORDS {
                    self.put_waiting(take)?;
                }
                taken
            };
            (keys, values) = (&keys[taken..], &values[taken..]);
        }
        Ok(())
    }

    /// Passes the last block to `take`.
    ///
    /// # Errors
    /// Returns the errors of `take`.
    pub fn end(&mut self, take: &mut TakeBlock<'_, K>) -> Result<()> {
        self.put_waiting(take)?;
        if self.records > 0 { self.give(take) } else { Ok(()) }
    }

    fn put_waiting(&mut self, take: &mut TakeBlock<'_, K>) -> Result<()> {
        let (mut keys, mut values) = (std::mem::take(&mut self.keys), std::mem::take(&mut self.values));
        let put = if keys.is_empty() { Ok(()) } else { self.put_frame(&keys, &values, take) };
        keys.clear();
        values.clear();
        (self.keys, self.values) = (keys, values);
        put
    }

    /// Writes at most one frame of records, in packed or plain form as the block requires.
    fn put_frame(&mut self, keys: &[K], values: &[V], take: &mut TakeBlock<'_, K>) -> Result<()> {
        if let Some(packing) = self.layout.packing.filter(|_| self.plain == 0) {
            if self.pack(packing, keys, values) {
                return Ok(());
            }
            self.block[self.end..].fill(0);
            if self.records < self.layout.block_records * 5 / 4 {
                self.plain = PLAIN_BLOCKS;
            }
            self.give(take)?;
            if self.plain == 0 {
                assert!(self.pack(packing, keys, values), "a block has room for any frame");
                return Ok(());
            }
        }
        let mut done = 0;
        while done < keys.len() {
            done += self.append_plain(&keys[done..], &values[done..], take)?;
        }
        Ok(())
    }

    fn pack(&mut self, packing: Packing<K, V>, keys: &[K], values: &[V]) -> bool {
        let Some(bytes) = packing.pack(keys, values, &mut self.block[self.end..]) else { return false };
        if self.records == 0 {
            self.first_key = keys[0];
        }
        self.end += bytes;
        self.records += keys.len();
        true
    }

    /// Writes as many records as fit in the plain block, and returns the number of written records.
    fn append_plain(&mut self, keys: &[K], values: &[V], take: &mut TakeBlock<'_, K>) -> Result<usize> {
        let part = keys.len().min(self.layout.block_records - self.records);
        let range = self.records..self.records + part;
        if self.records == 0 {
            self.first_key = keys[0];
        }
        typed_mut::<K>(&mut self.block[HEADER_BYTES..], range.end)[range.clone()]
            .copy_from_slice(&keys[..part]);
        let values_bytes = &mut self.block[self.layout.values_offset..];
        typed_mut::<V>(values_bytes, range.end)[range].copy_from_slice(&values[..part]);
        self.records += part;
        if self.records == self.layout.block_records {
            self.give(take)?;
        }
        Ok(part)
    }

    fn give(&mut self, take: &mut TakeBlock<'_, K>) -> Result<()> {
        let is_packed = self.end > HEADER_BYTES;
        let header = [self.records as u32, is_packed.into(), 0, 0];
        typed_mut::<u32>(&mut self.block, 4).copy_from_slice(&header);
        let given = take(self.first_key, &self.block, self.records);
        self.block.fill(0);
        (self.records, self.end) = (0, HEADER_BYTES);
        if !is_packed && self.layout.packing.is_some() {
            self.plain -= 1;
        }
        given
    }
}

/// The error for a block that no [`BlockWriter`] can have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBlock;

/// Reads the records of one block after the other.
///
/// If blocks are never packed, all records of a block are returned without a copy. If blocks may be packed, records
/// are unpacked into a buffer of [`WINDOW_RECORDS`] records, the window. The window is refilled before it is empty,
/// also from the next block. A merge therefore never gets only the last few records of a frame.
#[derive(Debug)]
pub(crate) struct BlockReader<K, V> {
    layout: BlockLayout<K, V>,
    keys: Box<[K]>,
    values: Box<[V]>,
    /// The current records, as a range in the window, or in the block if blocks are never packed.
    shown: Range<usize>,
    is_packed: bool,
    /// The number of the block's records that are not yet in the window, and the position of the first of them: a
    /// byte offset if the block is packed, and otherwise a record index.
    left: usize,
    next: usize,
    _memory: Reservation,
}

/// The maximum number of records in the window of a [`BlockReader`].
const WINDOW_RECORDS: usize = 3 * FRAME_RECORDS;

impl<K: Key, V: Value> BlockReader<K, V> {
    pub fn new(block_bytes: usize, budget: &Budget) -> Result<Self> {
        let memory = budget.reserve(reader_bytes::<K, V>(block_bytes) as u64, "unpacked records of a run")?;
        let layout = BlockLayout::<K, V>::new(block_bytes);
        let window = if layout.packing.is_some() { WINDOW_RECORDS } else { 0 };
        Ok(BlockReader {
            layout,
            keys: vec![K::default(); window].into(),
            values: vec![V::default(); window].into(),
            shown: 0..0,
            is_packed: false,
            left: 0,
            next: 0,
            _memory: memory,
        })
    }

    /// Starts to read `block`. All records of the previous block must have been taken or moved to the window.
    ///
    /// # Errors
    /// Returns [`BadBlock`] if the block is malformed.
    pub fn begin(&mut self, block: &[u8]) -> std::result::Result<(), BadBlock> {
        let &[records, is_packed, ..] = typed::<u32>(block, 4) else { unreachable!() };
        let records = records as usize;
        self.is_packed = is_packed == 1;
        match (is_packed, self.layout.packing) {
            (0 | 1, _) if records == 0 => return Err(BadBlock),
            (1, _) if records > self.layout.packed_records_max() => return Err(BadBlock),
            (0, _) if records > self.layout.block_records => return Err(BadBlock),
            (0, None) => self.shown = 0..records,
            (0, Some(_)) => (self.left, self.next) = (records, 0),
            (1, Some(_)) => (self.left, self.next) = (records, HEADER_BYTES),
            _ => return Err(BadBlock),
        }
        Ok(())
    }

    /// Returns whether few current records are left, so that the caller should refill the window or begin the next
    /// block.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.shown.len() < if self.layout.packing.is_some() { FRAME_RECORDS } else { 1 }
    }

    /// Returns whether the block has records that are not yet in the window.
    pub fn has_more(&self) -> bool {
        self.left > 0
    }

    /// Refills the window from the block that was passed to [`BlockReader::begin`].
    ///
    /// # Errors
    /// Returns [`BadBlock`] if the block is malformed.
    pub fn fill(&mut self, block: &[u8]) -> std::result::Result<(), BadBlock> {
        let Some(packing) = self.layout.packing.filter(|_| self.left > 0) else { return Ok(()) };
        self.keys.copy_within(self.shown.clone(), 0);
        self.values.copy_within(self.shown.clone(), 0);
        self.shown = 0..self.shown.len();
        while self.left > 0 && self.shown.end + FRAME_RECORDS <= WINDOW_RECORDS {
            let (count, room) =
                (self.left.min(FRAME_RECORDS), self.shown.end..self.shown.end + FRAME_RECORDS);
            if self.is_packed {
                let (keys, values) = (&mut self.keys[room.clone()], &mut self.values[room]);
                let frame = block.get(self.next..).ok_or(BadBlock)?;
                self.next += packing.unpack(frame, keys, values).map_err(|_| BadBlock)?;
            } else {
                let (from, room) = (self.next..self.next + count, room.start..room.start + count);
                self.keys[room.clone()].copy_from_slice(&self.layout.keys(block, from.end)[from.clone()]);
                self.values[room].copy_from_slice(&self.layout.values(block, from.end)[from]);
                self.next += count;
            }
            self.left -= count;
            self.shown.end += count;
        }
        Ok(())
    }

    /// Drops all current records after the first `count` records.
    pub fn cut(&mut self, count: usize) {
        self.shown.end = self.shown.start + count;
    }

    #[inline]
    pub fn keys<'a>(&'a self, block: &'a [u8]) -> &'a [K] {
        let keys =
            if self.layout.packing.is_some() { &self.keys } else { self.layout.keys(block, self.shown.end) };
        &keys[self.shown.clone()]
    }

    #[inline]
    pub fn values<'a>(&'a self, block: &'a [u8]) -> &'a [V] {
        let values = if self.layout.packing.is_some() {
            &self.values
        } else {
            self.layout.values(block, self.shown.end)
        };
        &values[self.shown.clone()]
    }

    /// Removes the first `count` of the current records.
    #[inline]
    pub fn take(&mut self, count: usize) {
        self.shown.start += count;
        debug_assert!(self.shown.start <= self.shown.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::pack::tests::mix;

    type DecodedBlock<K> = Vec<(K, Vec<u8>, usize)>;

    /// Writes records, `piece` records per call, and returns the blocks.
    fn write<K: Key, V: Value>(
        block_bytes: usize,
        keys: &[K],
        values: &[V],
        piece: usize,
    ) -> DecodedBlock<K> {
        let budget = Budget::new(4 << 20, 1);
        let mut writer = BlockWriter::<K, V>::new(block_bytes, &budget).unwrap();
        assert_eq!(budget.reserved_bytes(), writer_bytes::<K, V>(block_bytes) as u64);
        let mut taken = Vec::new();
        let mut take = |key: K, block: &[u8], records: usize| {
            taken.push((key, block.to_vec(), records));
            Ok(())
        };
        for (keys, values) in keys.chunks(piece).zip(values.chunks(piece)) {
            writer.append(keys, values, &mut take).unwrap();
        }
        writer.end(&mut take).unwrap();
        taken
    }

    /// Reads all records of the blocks, and takes up to `step` records at a time.
    fn read<K: Key, V: Value>(block_bytes: usize, blocks: &DecodedBlock<K>, step: usize) -> (Vec<K>, Vec<V>) {
        let budget = Budget::new(4 << 20, 1);
        let mut reader = BlockReader::<K, V>::new(block_bytes, &budget).unwrap();
        assert_eq!(budget.reserved_bytes(), reader_bytes::<K, V>(block_bytes) as u64);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut rest = blocks.iter();
        // A block must have the alignment of a buffer.
        let mut block = Buffer::zeroed(&budget, block_bytes, "a block").unwrap();
        loop {
            while reader.is_low() {
                if reader.has_more() {
                    reader.fill(&block).unwrap();
                } else if let Some((_, next, _)) = rest.next() {
                    block.copy_from_slice(next);
                    reader.begin(&block).unwrap();
                } else {
                    break;
                }
            }
            let count = reader.keys(&block).len().min(step);
            if count == 0 {
                return (keys, values);
            }
            keys.extend_from_slice(&reader.keys(&block)[..count]);
            values.extend_from_slice(&reader.values(&block)[..count]);
            reader.take(count);
        }
    }

    fn check<K: Key + std::fmt::Debug, V: Value + PartialEq + std::fmt::Debug>(
        block_bytes: usize,
        keys: &[K],
        values: &[V],
    ) -> DecodedBlock<K> {
        let all = write(block_bytes, keys, values, keys.len().max(1));
        for piece in [1, 100, 256, 700] {
            assert_eq!(write(block_bytes, keys, values, piece), all, "pieces of {piece}");
        }
        let mut first = 0;
        for (key, _, records) in &all {
            assert_eq!(*key, keys[first]);
            first += records;
        }
        for step in [1, 255, usize::MAX] {
            let (found_keys, found_values) = read::<K, V>(block_bytes, &all, step);
            assert!(found_keys == keys && found_values == values, "{step} of {}", keys.len());
        }
        all
    }

    #[test]
    fn records_that_shrink_are_packed_and_others_are_not() {
        let keys: Vec<u32> = (0..50_000).map(|i| i * 7).collect();
        let small: Vec<u64> = (0..50_000).map(|i| mix(i) % 100).collect();
        let large: Vec<u64> = (0..50_000).map(mix).collect();
        let plain = 50_000usize.div_ceil((8192 - HEADER_BYTES) / 12);
        assert!(check(8192, &keys, &small).len() * 5 < plain);
        // Records of twelve bytes are packed to nine bytes. Random values cannot be compressed, and the attempts add
        // only a few blocks.
        assert!(check(65536, &keys, &large).len() < 50_000usize.div_ceil((65536 - HEADER_BYTES) / 12) - 1);
        let wide: Vec<[u64; 4]> = (0..50_000).map(|i| [mix(i), mix(!i), mix(i ^ 99), mix(i ^ 999)]).collect();
        let plain = 50_000usize.div_ceil((16384 - HEADER_BYTES) / 36);
        assert!(check(16384, &keys, &wide).len() <= plain + plain / 16 + 1);
    }

    #[test]
    fn blocks_are_packed_again_after_incompressible_records() {
        let keys: Vec<u32> = (0..120_000).collect();
        let noise = |i: u64| [mix(i), mix(!i), mix(i ^ 99), mix(i ^ 999)];
        let values: Vec<[u64; 4]> =
            (0..120_000).map(|i| if i / 30_000 % 2 == 0 { [1; 4] } else { noise(i) }).collect();
        let blocks = check(16384, &keys, &values);
        let is_packed = |quarter: u32| {
            let of_quarter = blocks.iter().filter(|(first, ..)| first / 30_000 == quarter);
            let packed = of_quarter.clone().filter(|(_, block, _)| block[4] == 1).count();
            packed * 2 > of_quarter.count()
        };
        assert!(is_packed(0) && !is_packed(1) && !is_packed(3));
        assert!(blocks.iter().any(|(first, block, _)| first / 30_000 == 2 && block[4] == 1));
    }

    /// A value type whose alignment does not match the length of the block's header.
    #[derive(
        Clone,
        Copy,
        Debug,
        Default,
        PartialEq,
        zerocopy::FromBytes,
        zerocopy::IntoBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout,
    )]
    #[repr(C, align(32))]
    struct Wide([u64; 4]);

    #[test]
    fn all_shapes_of_records_come_back() {
        for count in [0, 1, 255, 256, 257, 3000] {
            let keys: Vec<u64> = (0..count).map(|i| i << 40).collect();
            check(4096, &keys, &vec![(); keys.len()]);
            check(8192, &keys, &keys);
            check(4096, &keys, &keys.iter().map(|&key| [key as u8; 3]).collect::<Vec<_>>());
            let wide: Vec<u128> = (0..count).map(|i| u128::from(i) << 90).collect();
            check(4096, &wide, &keys);
            let values: Vec<Wide> = keys.iter().map(|&key| Wide([mix(key); 4])).collect();
            check(8192, &keys, &values);
            check(16384, &keys, &values);
        }
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let keys: Vec<u32> = (0..600).collect();
        let blocks = write(4096, &keys, &keys, 600);
        let budget = Budget::new(1 << 20, 1);
        let read = |change: &dyn Fn(&mut [u8])| {
            let mut block = Buffer::zeroed(&budget, 4096, "a block").unwrap();
            block.copy_from_slice(&blocks[0].1);
            change(&mut block);
            let mut reader = BlockReader::<u32, u32>::new(4096, &budget).unwrap();
            reader.begin(&block)?;
            while reader.has_more() {
                reader.take(reader.keys(&block).len());
                reader.fill(&block)?;
            }
            Ok(())
        };
        assert_eq!(read(&|_| {}), Ok(()));
        for change in [
            &|block: &mut [u8]| block[4] = 2,
            &|block: &mut [u8]| block[..4].fill(0),
            &|block: &mut [u8]| block[..4].fill(0xff),
            // The first change creates a frame with 65 bits per key. The second change creates a plain block with
            // more records than fit.
            &|block: &mut [u8]| block[HEADER_BYTES + 16] = 65,
            &|block: &mut [u8]| block[4] = 0,
        ] as [&dyn Fn(&mut [u8]); 5]
        {
            assert_eq!(read(change), Err(BadBlock));
        }
    }
}
