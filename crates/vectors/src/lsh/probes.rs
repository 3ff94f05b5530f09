//! Computes the sequence of the buckets that a query probes. The buckets of the query's own codes come first. The
//! buckets of changed codes follow, by rising cost. The method is the query-directed probing of Lv et al. ("Multi-probe
//! LSH", VLDB 2007, section 4.5). This module applies the method to all tables together.
//!
//! A *change* adds -1 or 1 to one digit of a code. The cost of a change is the squared distance of the query from the
//! border that the change crosses. The cost of a set of changes is the sum of the costs of its changes. A heap yields
//! the sets of all tables by rising cost. The changes of a table are numbered by rising cost. A set whose last change
//! has the number j has two successors:
//!
//! ```text
//!   shift:   the same set with the change j + 1 in the place of the change j
//!   expand:  the same set and the change j + 1
//! ```
//!
//! No successor costs less than the set. Each set with a change has exactly one predecessor, so the heap yields each
//! set once. The sequence omits sets that change one digit twice.

use std::{cmp::Ordering, collections::BinaryHeap};

use super::functions::{Change, Functions, Values};

/// A set of changes of the code that a query has in one table.
#[derive(Debug, PartialEq)]
struct Changes {
    /// The sum of the costs of the changes.
    cost: f64,
    table: u64,
    /// The numbers of the changes in [`Probes::changes`], ascending.
    members: Vec<u16>,
}

impl Eq for Changes {}

impl Ord for Changes {
    /// Orders the sets so that a heap yields the cheapest set first. If two sets have the same cost, the set of the
    /// first table comes first, then the set with fewer changes.
    fn cmp(&self, other: &Changes) -> Ordering {
        let key = |changes: &Changes| (changes.table, changes.members.len());
        let order = other.cost.total_cmp(&self.cost);
        order.then_with(|| key(other).cmp(&key(self))).then_with(|| other.members.cmp(&self.members))
    }
}

impl PartialOrd for Changes {
    fn partial_cmp(&self, other: &Changes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An iterator over the numbers of the buckets that a query probes, by rising cost. A bucket occurs more than once if
/// several codes share the bucket.
pub(crate) struct Probes<'a> {
    functions: &'a Functions,
    values: &'a Values,
    /// The changes of each table, by rising cost.
    changes: Vec<Vec<Change>>,
    heap: BinaryHeap<Changes>,
    chosen: Vec<Change>,
}

impl<'a> Probes<'a> {
    /// Creates the sequence of a query. `values` are the values of the hash functions for the query.
    pub fn new(functions: &'a Functions, values: &'a Values) -> Probes<'a> {
        let tables = functions.shape.tables;
        let of_table = |table: u64| {
            let mut changes = Vec::new();
            functions.changes(table, values, &mut changes);
            changes.sort_by(|one, other| {
                one.cost
                    .total_cmp(&other.cost)
                    .then(one.function.cmp(&other.function))
                    .then(one.by.cmp(&other.by))
            });
            changes
        };
        let heap = (0..tables).map(|table| Changes { cost: 0.0, table, members: Vec::new() }).collect();
        Probes { functions, values, changes: (0..tables).map(of_table).collect(), heap, chosen: Vec::new() }
    }

    /// Returns the memory, in bytes, that a sequence takes after `probes` buckets.
    pub fn bytes(functions: &Functions, probes: u64) -> u64 {
        let shape = &functions.shape;
        let sets = 2 * (probes + shape.tables);
        let set_bytes = size_of::<Changes>() as u64 + 2 * shape.bits.min(16);
        sets * set_bytes + 4 * shape.functions() as u64 * size_of::<Change>() as u64
    }

    /// Adds the successors of a set to the heap.
    fn add_successors(&mut self, set: &Changes) {
        let all = &self.changes[set.table as usize];
        let next = set.members.last().map_or(0, |last| last + 1);
        let Some(added) = all.get(next as usize) else { return };
        let mut expanded = set.members.clone();
        expanded.push(next);
        let cost = set.cost + f64::from(added.cost);
        self.heap.push(Changes { cost, table: set.table, members: expanded });
        if let Some(last) = next.checked_sub(1).filter(|_| !set.members.is_empty()) {
            let mut shifted = set.members.clone();
            *shifted.last_mut().expect("not empty") = next;
            let cost = set.cost - f64::from(all[last as usize].cost) + f64::from(added.cost);
            self.heap.push(Changes { cost, table: set.table, members: shifted });
        }
    }
}

impl Iterator for Probes<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let set = self.heap.pop()?;
            self.add_successors(&set);
            let all = &self.changes[set.table as usize];
            self.chosen.clear();
            self.chosen.extend(set.members.iter().map(|&member| all[member as usize]));
            let is_twice = |(place, change): (usize, &Change)| {
                self.chosen[..place].iter().any(|other| other.function == change.function)
            };
            if !self.chosen.iter().enumerate().any(is_twice) {
                return Some(self.functions.bucket(set.table, self.values, &self.chosen));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use inshore_store::Budget;

    use super::*;
    use crate::{
        Element,
        lsh::functions::{Family, Parameters, Shape},
    };

    fn functions(family: Family, bits: u64, tables: u64) -> Functions {
        let (dimensions, buckets) = (8, 1 << bits);
        let shape =
            Shape { family, element: Element::F32, dimensions, tables, bits, buckets, width: 1.0, seed: 9 };
        Functions::new(&Budget::new(1 << 20, 1), shape, Parameters::Mean(vec![0.0; 8])).unwrap()
    }

    fn values(functions: &Functions) -> Values {
        let row: Vec<u8> = (0..8).flat_map(|x| (0.3f32 * x as f32 - 1.0).to_le_bytes()).collect();
        let mut values = Values::default();
        functions.evaluate(Element::F32, &row, &mut values);
        values
    }

    #[test]
    fn all_buckets_of_bits_come_once_by_rising_cost() {
        let functions = functions(Family::Hyperplanes, 6, 2);
        let values = values(&functions);
        let all: Vec<u64> = Probes::new(&functions, &values).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..128).collect::<Vec<_>>());
        // The reference sorts all codes of all tables by the cost of the bits that differ.
        let mut changes = Vec::new();
        let mut naive: Vec<(f64, u64)> = Vec::new();
        for table in 0..2 {
            functions.changes(table, &values, &mut changes);
            for set in 0u32..64 {
                let chosen: Vec<Change> =
                    changes.iter().filter(|change| set >> change.function & 1 == 1).copied().collect();
                let cost = chosen.iter().map(|change| f64::from(change.cost)).sum();
                naive.push((cost, functions.bucket(table, &values, &chosen)));
            }
        }
        naive.sort_by(|one, other| one.0.total_cmp(&other.0));
        let cost = |bucket: &u64| naive.iter().find(|(_, other)| other == bucket).unwrap().0;
        let costs: Vec<f64> = all.iter().map(cost).collect();
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6), "{costs:?}");
        assert_eq!(costs[..2], [0.0, 0.0]);
    }

    #[test]
    fn a_digit_of_cells_is_changed_once_in_a_set() {
        // Each of 3 digits stays, rises or falls, so there are 27 codes.
        let functions = functions(Family::PStable, 3, 1);
        let values = values(&functions);
        assert_eq!(Probes::new(&functions, &values).count(), 27);
        let first: Vec<u64> = Probes::new(&functions, &values).take(5).collect();
        assert_eq!(first, Probes::new(&functions, &values).take(5).collect::<Vec<_>>());
        assert_eq!(first[0], functions.bucket(0, &values, &[]));
    }
}
