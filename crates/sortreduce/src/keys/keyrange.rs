//! Ranges of keys, and the division of a result into key ranges with about equally many records.

use crate::{Key, keys::word::Word};

/// The keys that are at least `from` and less than `below`. `None` means no bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRange<K> {
    pub from: Option<K>,
    pub below: Option<K>,
}

impl<K: Key> KeyRange<K> {
    /// The range that contains every key.
    pub const ALL: KeyRange<K> = KeyRange { from: None, below: None };

    /// Returns the indices of the blocks that may contain keys of the range. There are `count` sorted blocks, and
    /// `first_key` returns the first key of a block.
    pub fn blocks(&self, count: usize, first_key: impl Fn(usize) -> K) -> std::ops::Range<usize> {
        let start = self.from.map_or(0, |from| partition_point(count, |block| first_key(block) <= from));
        let start = start.saturating_sub(1);
        let end = self.below.map_or(count, |below| partition_point(count, |block| first_key(block) < below));
        start..end.max(start)
    }

    /// Returns the number of keys below the range. `keys` must be sorted.
    pub fn skipped(&self, keys: &[K]) -> usize {
        self.from.map_or(0, |from| keys.partition_point(|&key| key < from))
    }

    /// Returns the number of keys below the range's upper bound. `keys` must be sorted.
    pub fn kept(&self, keys: &[K]) -> usize {
        match (self.below, keys.last()) {
            (Some(below), Some(&last)) if last >= below => keys.partition_point(|&key| key < below),
            _ => keys.len(),
        }
    }

    /// Splits the range into `parts` ranges with about equally many records. `below(key)` returns a measure of the
    /// records below a key, such as their number. The split keys are found by bisection of numeric key values, which
    /// needs no memory. If there are few keys, some ranges are empty.
    pub fn split(&self, parts: usize, below: impl Fn(K) -> u64) -> Vec<KeyRange<K>> {
        let lowest = self.from.map_or(K::Word::from(0), K::to_word);
        let highest = self.below.map_or(K::from_word(K::Word::MAX), |below| below).to_word();
        let first = self.from.map_or(0, &below);
        let all = below(K::from_word(highest)).saturating_sub(first);
        let cut = |part: usize| {
            let wanted = first + (u128::from(all) * part as u128 / parts as u128) as u64;
            let (mut low, mut high) = (lowest, highest);
            while low < high {
                let middle = low + ((high - low) >> 1);
                match below(K::from_word(middle)) < wanted {
                    true => low = middle + K::Word::from(1),
                    false => high = middle,
                }
            }
            K::from_word(low)
        };
        let cuts = (1..parts).map(|part| Some(cut(part)));
        let froms = std::iter::once(self.from).chain(cuts.clone());
        let belows = cuts.chain([self.below]);
        froms.zip(belows).map(|(from, below)| KeyRange { from, below }).collect()
    }
}

/// Returns the first number below `count` for which `is_before` is false, or `count` if there is none.
pub(crate) fn partition_point(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_before(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<K: Key + std::fmt::Debug>(keys: &[K]) {
        let below = |key: K| keys.partition_point(|&other| other < key) as u64;
        for parts in 1..9 {
            let ranges = KeyRange::ALL.split(parts, below);
            assert_eq!(ranges.len(), parts);
            assert!(ranges[0].from.is_none() && ranges[parts - 1].below.is_none());
            assert!(ranges.windows(2).all(|pair| pair[0].below == pair[1].from && pair[1].from.is_some()));
            let mut place = 0;
            for range in ranges {
                assert_eq!(range.skipped(keys), place.min(range.skipped(keys)));
                let end = range.kept(keys);
                let len = end - place;
                assert!(len.abs_diff(keys.len() / parts) <= 2, "{len} of {} in {parts} parts", keys.len());
                // The blocks of the range, with three keys each, contain all keys of the range.
                let blocks = range.blocks(keys.len().div_ceil(3), |block| keys[block * 3]);
                assert!(len == 0 || (blocks.start * 3 <= place && end <= blocks.end * 3));
                // A second split of the range loses no key.
                let again = range.split(2, below);
                assert_eq!(again[1].kept(keys), end);
                assert!((place..=end).contains(&again[0].kept(keys)));
                place = end;
            }
            assert_eq!(place, keys.len());
        }
    }

    #[test]
    fn ranges_hold_all_keys_and_about_equally_many() {
        for count in [0u64, 1, 2, 7, 100, 1000] {
            check(&(0..count).map(|i| i as u32).collect::<Vec<_>>());
            check(&(0..count).map(|i| u32::MAX - (count - 1 - i) as u32).collect::<Vec<_>>());
            check(&(0..count).map(|i| i * i * 1_000_003).collect::<Vec<_>>());
            check(&(0..count).map(|i| u128::from(i) << 100 | 7).collect::<Vec<_>>());
        }
    }
}
