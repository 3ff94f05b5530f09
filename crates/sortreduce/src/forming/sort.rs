//! Sorts the records of a slab and combines equal keys. A slab has as many records as fit in the second-level cache.
//!
//! Chunks and merges divide their records into slabs. A slab is sorted in one of three ways:
//!
//! - **accumulate**: if the slab's keys span a small range, each value is combined into a table that is indexed by
//!   key. A bitmap marks the keys that occurred. This way needs no sort and takes about 2 ns per record.
//! - **keys alone**: if values have no bytes, only the keys are sorted. 64-bit keys are words and need no conversion.
//! - **packed**: a 64-bit word contains the difference of the key from the smallest key, and the record's number. The
//!   words are sorted, and the records are gathered and combined in that order. If keys need too many bits, their
//!   lowest bits are omitted from the words. Records whose remaining bits are equal are then sorted by the whole key.
//!
//! [`crate::words`] sorts the words.

use inshore_store::{Budget, Result};
use zerocopy::IntoBytes;

use crate::{
    Key, Operation, Value,
    array::{Array, typed, typed_mut},
    keys::record::record_bytes,
    keys::word::Word,
    strategies::table::{accumulate, scan},
    words::{self, Instructions, ranges, sort_spread, unique},
};

/// The maximum number of table keys per record of a slab. The scan of the table's bitmap takes about as much time for
/// 64 keys as for one record.
const TABLE_KEYS_PER_RECORD: u64 = 16;

/// The word type (`u64` or `u128`) of an operation's keys.
pub(crate) type WordOf<O> = <<O as Operation>::Key as Key>::Word;

/// Sorts the slabs of one thread, and has the memory for one slab.
pub(crate) struct Sorter<O: Operation> {
    operation: O,
    keys: Array<O::Key>,
    values: Array<O::Value>,
    words: Array<u64>,
    sorted: Array<u64>,
    ranges: Array<u32>,
    table: Array<O::Value>,
    present: Array<u64>,
    out_keys: Array<O::Key>,
    out_values: Array<O::Value>,
}

/// Returns the number of keys in the table of a sorter for slabs of `slab_records` records.
fn table_keys(slab_records: usize) -> usize {
    (4 * slab_records).next_multiple_of(64)
}

/// Returns the number of words that a sorter for slabs of `slab_records` records needs for keys. The number is 0 if
/// keys are words and have no values.
fn words_of(slab_records: usize, key_bytes: usize, value_bytes: usize) -> usize {
    if are_words(key_bytes) && value_bytes == 0 { 0 } else { slab_records }
}

/// Returns whether keys of `key_bytes` bytes are words without a conversion.
fn are_words(key_bytes: usize) -> bool {
    key_bytes == size_of::<u64>()
}

/// Returns the maximum bytes that a [`Sorter`] for slabs of `slab_records` records reserves in the budget.
pub(crate) fn sorter_bytes(slab_records: usize, key_bytes: usize, value_bytes: usize) -> usize {
    use crate::array::taken_bytes;
    let table = table_keys(slab_records);
    taken_bytes(slab_records * key_bytes)
        + taken_bytes(slab_records * value_bytes)
        + taken_bytes(words_of(slab_records, key_bytes, value_bytes) * 8)
        + taken_bytes(slab_records * 8)
        + taken_bytes(ranges(slab_records) * 4)
        + 2 * taken_bytes(table * value_bytes)
        + taken_bytes(table / 8)
        + taken_bytes(table * key_bytes)
}

impl<O: Operation> Sorter<O> {
    pub fn operation(&self) -> &O {
        &self.operation
    }

    /// Creates a sorter for slabs of `slab_records` records (1 or more).
    pub fn new(operation: O, slab_records: usize, budget: &Budget) -> Result<Self> {
        let what = "the memory that records are sorted in";
        let table = table_keys(slab_records);
        let words = words_of(slab_records, size_of::<O::Key>(), size_of::<O::Value>());
        Ok(Sorter {
            operation,
            keys: Array::zeroed(budget, slab_records, what)?,
            values: Array::zeroed(budget, slab_records, what)?,
            words: Array::zeroed(budget, words, what)?,
            sorted: Array::zeroed(budget, slab_records, what)?,
            ranges: Array::zeroed(budget, ranges(slab_records), what)?,
            table: Array::zeroed(budget, table, what)?,
            present: Array::zeroed(budget, table / 64, what)?,
            out_keys: Array::zeroed(budget, table, what)?,
            out_values: Array::zeroed(budget, table, what)?,
        })
    }

    /// Returns the number of records per slab.
    pub fn slab_records(&self) -> usize {
        self.keys.len()
    }

    /// Returns the input buffers, into which the caller writes a slab's records before [`Sorter::sort_reduce`].
    pub fn inputs(&mut self) -> (&mut [O::Key], &mut [O::Value]) {
        (&mut self.keys, &mut self.values)
    }

    /// Returns the first `count` records of the input buffers.
    pub fn first_inputs(&self, count: usize) -> (&[O::Key], &[O::Value]) {
        (&self.keys[..count], &self.values[..count])
    }

    /// Returns the first `count` records of the last result.
    pub fn outputs(&self, count: usize) -> (&[O::Key], &[O::Value]) {
        (&self.out_keys[..count], &self.out_values[..count])
    }

    /// Sorts the first `count` records of the input buffers, and combines equal keys. Returns the number of output
    /// records.
    pub fn sort_reduce(&mut self, count: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let (min, max) = min_max(&self.keys[..count]);
        if self.has_table_for(min, max)
            && max - min < TABLE_KEYS_PER_RECORD.saturating_mul(count as u64).into()
        {
            let operation = &self.operation;
            let combine = |place, a, b| operation.combine_at(key_at::<O>(min, place), a, b);
            let (keys, values) = (&self.keys[..count], &self.values[..count]);
            accumulate(min, keys, values, &mut self.table, &mut self.present, combine);
            self.take_table(min, max)
        } else if size_of::<O::Value>() == 0 && (max - min).bits() <= u64::BITS {
            self.sort_keys(count, min, max)
        } else {
            self.sort_packed(count, min, max)
        }
    }

    /// Returns whether the table of [`Sorter::accumulate`] is large enough for the keys from `min` to `max`.
    pub fn has_table_for(&self, min: WordOf<O>, max: WordOf<O>) -> bool {
        max - min < (self.table.len() as u64).into()
    }

    /// Combines records into the table, which begins with the key `min`. No key may be below `min`.
    pub fn accumulate(&mut self, min: WordOf<O>, keys: &[O::Key], values: &[O::Value]) {
        let operation = &self.operation;
        let combine = |place, a, b| operation.combine_at(key_at::<O>(min, place), a, b);
        accumulate(min, keys, values, &mut self.table, &mut self.present, combine);
    }

    /// Moves the accumulated records from the table to the output buffers, and returns their number.
    pub fn take_table(&mut self, min: WordOf<O>, max: WordOf<O>) -> usize {
        let words = (max - min).low() as usize / 64 + 1;
        let present = &mut self.present[..words];
        let (_, count) = scan(min, present, &self.table, &mut self.out_keys, &mut self.out_values);
        present.fill(0);
        count
    }

    fn sort_keys(&mut self, count: usize, min: WordOf<O>, max: WordOf<O>) -> usize {
        let sorted = &mut self.sorted[..count];
        if are_words(size_of::<O::Key>()) {
            let keys = typed::<u64>(self.keys.as_bytes(), count);
            sort_spread(keys, sorted, &mut self.ranges, min.low(), max.low());
            let out = typed_mut::<u64>(self.out_keys.as_mut_bytes(), count);
            return unique(Instructions::best(), sorted, out);
        }
        let words = &mut self.words[..count];
        for (word, key) in words.iter_mut().zip(&self.keys[..count]) {
            *word = (key.to_word() - min).low();
        }
        sort_spread(words, sorted, &mut self.ranges, 0, (max - min).low());
        gather_keys(min, sorted, &mut self.out_keys)
    }

    fn sort_packed(&mut self, count: usize, min: WordOf<O>, max: WordOf<O>) -> usize {
        let index_bits = (count as u64 - 1).bits();
        let lost_bits = ((max - min).bits() + index_bits).saturating_sub(u64::BITS);
        let (words, sorted) = (&mut self.words[..count], &mut self.sorted[..count]);
        let (keys, values) = (&self.keys[..count], &self.values[..count]);
        for (index, (word, key)) in words.iter_mut().zip(keys).enumerate() {
            *word = ((key.to_word() - min) >> lost_bits).low() << index_bits | index as u64;
        }
        let mask = (1 << index_bits) - 1;
        let greatest = ((max - min) >> lost_bits).low() << index_bits | mask;
        sort_spread(words, sorted, &mut self.ranges, 0, greatest);
        if lost_bits > 0 {
            sort_groups(sorted, index_bits, keys);
        }
        let operation = &self.operation;
        let combine = |key, a, b| operation.combine_at(key, a, b);
        gather(sorted, mask, keys, values, &mut self.out_keys, &mut self.out_values, combine)
    }
}

/// Returns the key at index `place` of a table that begins with the key `min`.
#[inline(always)]
pub(crate) fn key_at<O: Operation>(min: WordOf<O>, place: usize) -> O::Key {
    O::Key::from_word(min + (place as u64).into())
}

/// Returns the number of records (at least 1) in a slab whose sorter takes at most `bytes` bytes.
pub(crate) fn slab_records_in<K, V>(bytes: usize) -> usize {
    let each = 5 * record_bytes::<K, V>() + 4 * size_of::<V>() + 17;
    let mut records = (bytes / each).max(1);
    while records > 1 && sorter_bytes(records, size_of::<K>(), size_of::<V>()) > bytes {
        records -= records.div_ceil(16);
    }
    records
}

/// Returns the smallest and the largest key. There must be at least one key.
pub(crate) fn min_max<K: Key>(keys: &[K]) -> (K::Word, K::Word) {
    if are_words(size_of::<K>()) {
        let (min, max) = words::min_max(typed(keys.as_bytes(), keys.len()));
        return (min.into(), max.into());
    }
    let first = keys[0];
    let (min, max) = keys.iter().fold((first, first), |(min, max), &key| (min.min(key), max.max(key)));
    (min.to_word(), max.to_word())
}

/// Sorts each group of words with equal key bits by the whole key, and equal keys by record number.
fn sort_groups<K: Key>(words: &mut [u64], index_bits: u32, keys: &[K]) {
    let mask = (1 << index_bits) - 1;
    for group in words.chunk_by_mut(|a, b| a >> index_bits == b >> index_bits) {
        if group.len() > 1 {
            group.sort_unstable_by_key(|word| (keys[(word & mask) as usize], *word));
        }
    }
}

/// Writes each distinct word once, converted to a key. Returns the number of keys.
fn gather_keys<K: Key>(min: K::Word, sorted: &[u64], out: &mut [K]) -> usize {
    let mut last = 0;
    let mut current = sorted[0];
    out[0] = K::from_word(min + current.into());
    for &word in sorted {
        last += usize::from(word != current);
        out[last] = K::from_word(min + word.into());
        current = word;
    }
    last + 1
}

/// Gathers records in the order of the packed words, and combines equal keys. Returns the number of output records.
/// If `combine` is cheap, the compiler can avoid an unpredictable branch on equality. The code must not combine
/// values of different keys, since their sum may overflow.
fn gather<K: Key, V: Value>(
    sorted: &[u64],
    mask: u64,
    keys: &[K],
    values: &[V],
    out_keys: &mut [K],
    out_values: &mut [V],
    combine: impl Fn(K, V, V) -> V,
) -> usize {
    let first = (sorted[0] & mask) as usize;
    let (mut last, mut key, mut value) = (0, keys[first], values[first]);
    out_keys[0] = key;
    out_values[0] = value;
    for word in &sorted[1..] {
        let index = (word & mask) as usize;
        let same = keys[index] == key;
        key = keys[index];
        value = if same { combine(key, value, values[index]) } else { values[index] };
        last += usize::from(!same);
        out_keys[last] = key;
        out_values[last] = value;
    }
    last + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Clone)]
    struct First;

    /// This operation is not commutative, so that the result shows the order in which values are combined.
    impl Operation for First {
        type Key = u64;
        type Value = u64;
        fn combine(&self, a: u64, b: u64) -> u64 {
            a * 1_000 + b
        }
    }

    fn check(keys: &[u64], sorter: &mut Sorter<First>) {
        let mut expected = BTreeMap::new();
        let (slab_keys, slab_values) = sorter.inputs();
        for (number, &key) in keys.iter().enumerate() {
            let value = number as u64 % 7;
            slab_keys[number] = key;
            slab_values[number] = value;
            let combined = |old: &mut u64| *old = old.wrapping_mul(1000).wrapping_add(value);
            expected.entry(key).and_modify(combined).or_insert(value);
        }
        let count = sorter.sort_reduce(keys.len());
        let (out_keys, out_values) = sorter.outputs(count);
        let got: Vec<_> = out_keys.iter().copied().zip(out_values.iter().copied()).collect();
        let expected: Vec<_> = expected.into_iter().collect();
        assert_eq!(got, expected, "{} keys", keys.len());
    }

    #[test]
    fn slabs_of_all_small_sizes_and_spreads_are_sorted() {
        let budget = Budget::new(1 << 20, 1);
        let mut sorter = Sorter::new(First, 300, &budget).unwrap();
        for count in (0..=300u64).filter(|count| count % 13 < 3) {
            for spread in 0..64 {
                // Each key occurs at most four times, so that the combined value does not overflow.
                let key = |i: u64| (i / 4 * 7 % count.max(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> spread;
                let keys: Vec<u64> = (0..count).map(key).collect();
                let most = keys.iter().map(|key| keys.iter().filter(|other| *other == key).count()).max();
                if most.unwrap_or(0) <= 6 {
                    check(&keys, &mut sorter);
                }
            }
            let base = u64::MAX - 600;
            check(&(0..count).map(|i| base + 2 * i).collect::<Vec<_>>(), &mut sorter);
        }
    }

    #[test]
    fn keys_whose_packed_bits_are_equal_are_sorted_by_the_rest() {
        let budget = Budget::new(1 << 20, 1);
        let mut sorter = Sorter::new(First, 300, &budget).unwrap();
        // The difference of keys needs 64 bits. A record number below 300 needs nine bits, so the nine low bits of
        // the key do not fit in the word.
        let low = (0..148).map(|i| (i * 37) % 300);
        let high = low.clone().map(|key| u64::MAX - key);
        let equal = [5, u64::MAX - 5, 5, u64::MAX - 5];
        check(&low.chain(high).chain(equal).collect::<Vec<_>>(), &mut sorter);
    }

    #[test]
    fn wide_keys_are_sorted_by_all_their_bits() {
        let budget = Budget::new(1 << 20, 1);
        let mut sorter = Sorter::new(Widest, 300, &budget).unwrap();
        for spread in 0..128 {
            // Keys whose packed bits are equal differ in their lowest bits.
            let key = |i: u128| (i * 91 % 150) << spread ^ (i * 37 % 300);
            let (keys, _) = sorter.inputs();
            (0..300).for_each(|i| keys[i] = key(i as u128));
            let count = sorter.sort_reduce(300);
            let expected: std::collections::BTreeSet<u128> = (0..300).map(key).collect();
            assert!(sorter.outputs(count).0.iter().eq(&expected), "{spread}");
        }
    }

    #[derive(Clone)]
    struct Widest;

    impl Operation for Widest {
        type Key = u128;
        type Value = ();
        fn combine(&self, (): (), (): ()) {}
    }

    #[test]
    fn a_sorter_takes_no_more_than_its_sizes_say() {
        for records in [1, 63, 64, 1000, 16 << 10] {
            let budget = Budget::new(64 << 20, 1);
            let _sorter = Sorter::new(First, records, &budget).unwrap();
            assert_eq!(budget.reserved_bytes(), sorter_bytes(records, 8, 8) as u64, "{records}");
        }
        for bytes in [100 << 10, 1 << 20, 8 << 20] {
            let records = slab_records_in::<u64, u64>(bytes);
            let taken = sorter_bytes(records, 8, 8);
            assert!(taken <= bytes && taken > bytes / 4, "{records} records take {taken} of {bytes}");
        }
    }
}
