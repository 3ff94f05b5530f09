//! Tables, which have a slot for every key of a range, and a bitmap of the slots that contain a value.
//!
//! With the bitmap, an operation needs no neutral value, and no value is reserved for empty slots. Tables are used
//! for slabs with few distinct keys, shards of the dense strategy, and bins of the partition strategy.

use std::hint::select_unpredictable;

use crate::{Key, Value, keys::word::Word};

/// The number of records that are combined as a group.
const GROUP_RECORDS: usize = 256;

/// Combines each value into `table[key - min]`. `present` has a bit for each slot, which is 1 if the slot contains a
/// value. The first argument of `combine` is the slot's index.
///
/// If keys are spread, a branch on an occupied slot is unpredictable, and a misprediction takes more time than all
/// other steps. A group of records is therefore processed by two loops without that branch. The first loop fills
/// empty slots and lists the records whose slots are occupied, with many cache misses in flight. The second loop
/// combines the listed records.
pub(crate) fn accumulate<K: Key, V: Value>(
    min: K::Word,
    keys: &[K],
    values: &[V],
    table: &mut [V],
    present: &mut [u64],
    combine: impl Fn(usize, V, V) -> V,
) {
    for (keys, values) in keys.chunks(GROUP_RECORDS).zip(values.chunks(GROUP_RECORDS)) {
        let records =
            keys.iter().zip(values).map(|(key, &value)| ((key.to_word() - min).low() as usize, value));
        accumulate_group(records, |number| values[number], table, present, &combine);
    }
}

/// Combines values into a table whose empty slots contain the neutral value. The loop needs no tests.
#[inline(always)]
fn accumulate_onto<V: Value>(
    records: impl Iterator<Item = (usize, V)>,
    table: &mut [V],
    present: &mut [u64],
    combine: &impl Fn(usize, V, V) -> V,
) {
    for (place, value) in records {
        present[place / 64] |= 1 << (place % 64);
        table[place] = combine(place, table[place], value);
    }
}

/// Combines values into slots with the indices `places`. If `onto_neutral` is true, empty slots contain the neutral
/// value. Otherwise this function works as [`accumulate`] does.
pub(crate) fn accumulate_places<V: Value>(
    places: &[u32],
    values: &[V],
    onto_neutral: bool,
    table: &mut [V],
    present: &mut [u64],
    combine: impl Fn(usize, V, V) -> V,
) {
    if onto_neutral {
        let records = places.iter().zip(values).map(|(&place, &value)| (place as usize, value));
        accumulate_onto(records, table, present, &combine);
    } else {
        accumulate(0, places, values, table, present, combine);
    }
}

/// Combines records in the form of words. The `bits` lowest bits of a word are a slot's index, and the other bits are
/// a short value.
pub(crate) fn accumulate_words<V: Value>(
    bits: u32,
    words: &[u32],
    lengthen: impl Fn(u32) -> V,
    onto_neutral: bool,
    table: &mut [V],
    present: &mut [u64],
    combine: impl Fn(usize, V, V) -> V,
) {
    let mask = ((1u64 << bits) - 1) as u32;
    let value = |word: u32| lengthen((u64::from(word) >> bits) as u32);
    if onto_neutral {
        // The slices are long enough for every index below `2^bits`, so that the loop needs no bounds checks.
        let (table, present) = (&mut table[..=mask as usize], &mut present[..=mask as usize / 64]);
        let records = words.iter().map(|&word| ((word & mask) as usize, value(word)));
        return accumulate_onto(records, table, present, &combine);
    }
    for words in words.chunks(GROUP_RECORDS) {
        let records = words.iter().map(|&word| ((word & mask) as usize, value(word)));
        accumulate_group(records, |number| value(words[number]), table, present, &combine);
    }
}

/// Combines a group of records, which are pairs of a slot index and a value.
#[inline(always)]
fn accumulate_group<V: Value>(
    records: impl Iterator<Item = (usize, V)>,
    value_of: impl Fn(usize) -> V,
    table: &mut [V],
    present: &mut [u64],
    combine: &impl Fn(usize, V, V) -> V,
) {
    let mut left = [(0u32, 0u32); GROUP_RECORDS];
    let count = fill_empty(records, table, present, &mut left);
    for &(place, number) in &left[..count] {
        let old = &mut table[place as usize];
        *old = combine(place as usize, *old, value_of(number as usize));
    }
}

/// Writes values to empty slots. Lists the slot and the number of each record whose slot is occupied, and returns the
/// number of these records.
#[inline(always)]
fn fill_empty<V: Value>(
    records: impl Iterator<Item = (usize, V)>,
    table: &mut [V],
    present: &mut [u64],
    left: &mut [(u32, u32); GROUP_RECORDS],
) -> usize {
    let mut count = 0;
    let mut nowhere = V::default();
    for (number, (place, value)) in records.enumerate() {
        let word = &mut present[place / 64];
        let taken = *word >> (place % 64) & 1;
        *word |= 1 << (place % 64);
        // A choice of the destination compiles to no branch, whereas a choice of the stored value compiles to a
        // branch.
        *select_unpredictable(taken == 0, &mut table[place], &mut nowhere) = value;
        left[count % GROUP_RECORDS] = (place as u32, number as u32);
        count += taken as usize;
    }
    count
}

/// Writes the records of a table in order, until `keys` has no space for the 64 keys of a bitmap word. Returns the
/// number of scanned bitmap words, and the number of written records.
pub(crate) fn scan<K: Key, V: Value>(
    min: K::Word,
    present: &[u64],
    table: &[V],
    keys: &mut [K],
    values: &mut [V],
) -> (usize, usize) {
    let mut count = 0;
    for (number, &word) in present.iter().enumerate() {
        if count + 64 > keys.len() {
            return (number, count);
        }
        let (start, first) = (number * 64, min + K::Word::from(number as u64 * 64));
        if word == u64::MAX {
            for (i, key) in keys[count..count + 64].iter_mut().enumerate() {
                *key = K::from_word(first + K::Word::from(i as u64));
            }
            values[count..count + 64].copy_from_slice(&table[start..start + 64]);
            count += 64;
            continue;
        }
        let mut left = word;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            keys[count] = K::from_word(first + K::Word::from(place as u64));
            values[count] = table[start + place];
            count += 1;
            left &= left - 1;
        }
    }
    (present.len(), count)
}
