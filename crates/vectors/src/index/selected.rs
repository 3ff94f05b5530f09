//! Searches in an index in which only selected vectors may be answers.
//!
//! Let *s* be the fraction of the vectors that are selected. The k nearest selected vectors lie as far from the query
//! as the k / s nearest of all vectors, so they are spread over more lists. A query therefore probes 1 / √s times as
//! many lists as it would for the same recall among all vectors. The factor 1 / √s has the following reason. The
//! neighbours lie in a ball around the query. The number of lists that a ball touches is proportional to a power of the
//! number of vectors in the ball. The exponent depends on the dimensions of the data. Let a list have L vectors. In
//! data of d dimensions, the ratio of the radius of the ball to the radius of a list is (k / sL)^(1/d). The ball then
//! touches about (1 + (k / sL)^(1/d))^d lists. With k / L from 0.05 to 0.5 and d from 5 to 20, this number grows at
//! most tenfold from s = 1 to s = 1/100, and 1 / √s grows tenfold.
//!
//! This estimate holds for vectors that are selected independently of their position in space. A query far from all
//! selected vectors finds few selected vectors in its lists. Let n be the number of vectors in the probed lists of a
//! query. The expected number of selected vectors among them is s times n. If fewer than k of them are selected, or
//! less than a quarter of the expected number, the query is compared with all selected vectors, in one pass over the
//! blocks of rows with selected vectors. Each query therefore has k neighbours if at least k vectors are selected. The
//! probed lists, and the queries that need the pass over all selected vectors, depend only on the index, the queries,
//! the recall and the selection.
//!
//! If less than one vector of a hundred is selected ([`crate::is_sparse`]), the exact search over the selected vectors
//! reads fewer bytes than a search in the lists.

use std::{ops::Range, sync::atomic::Ordering};

use super::{
    Clustered,
    compare::{Comparer, Members, Space},
    directory::List,
    ranges::Ranges,
    round::{Met, Round, Selected},
};
use crate::{
    Result, RowSet,
    dataset::CHECK_BYTES,
    heaps::{Heaps, Tops},
    ids::Ids,
};

/// Let n be the number of vectors in the probed lists of a query, and s the fraction of the dataset's vectors that are
/// selected. The lists have enough selected vectors if they have at least k, and at least this fraction of s times n.
const ENOUGH: f64 = 0.25;
/// The size of a block of vectors in bytes. A block can hold at least one vector with any number of dimensions.
const BLOCK_BYTES: usize = 256 << 10;

/// Returns the lists that a query probes among selected vectors, from those that it probes among all.
pub fn probes_among(selection: &RowSet, probes: u64, lists: u64) -> u64 {
    let share = selection.count() as f64 / selection.len() as f64;
    ((probes as f64 / share.max(1e-12).sqrt()).ceil() as u64).clamp(1, lists)
}

/// Returns true if the lists that a query probed have enough selected vectors for its `k` neighbours. Otherwise the
/// query is compared with all selected vectors. `vectors` and `selected` are the numbers of all and of the selected
/// vectors in these lists. `of_all` has the same numbers for the whole dataset.
pub fn has_enough_selected(k: u64, (vectors, selected): (u64, u64), of_all: (u64, u64)) -> bool {
    let share = of_all.1 as f64 / of_all.0 as f64;
    selected == of_all.1 || (selected >= k && selected as f64 >= ENOUGH * share * vectors as f64)
}

impl<'a> Selected<'a> {
    /// The memory, in bytes, for the two counters and the number of each query.
    pub const QUERY_BYTES: u64 = size_of::<Met>() as u64 + 4;

    pub fn new(rows: &'a RowSet, queries: usize) -> Selected<'a> {
        Selected { rows, count: rows.count(), met: (0..queries).map(|_| Met::default()).collect() }
    }

    /// Returns the memory, in bytes, that does not depend on the number of queries.
    pub fn bytes(rows: &RowSet, row_bytes: u64) -> u64 {
        4 * rows.len().div_ceil(block_rows(row_bytes)).min(rows.count())
    }

    /// Compares the selected vectors of a list with queries. The first `own` of the list's `count` vectors are its own,
    /// and the others are copies. The counters of a query do not include copies, because each vector is counted in the
    /// list that owns it.
    pub fn compare<T: Clustered, H: Heaps>(
        &self,
        space: &Space<T>,
        (list, ids): (&List<'_, T>, &Ids),
        (own, count): (usize, usize),
        comparer: &mut Comparer<T>,
        queries: &Members<'_, T, H>,
    ) {
        let row_of = |place: usize| Some(list.row(place)).filter(|&row| self.rows.contains(row));
        let id_of = |place: usize| row_of(place).map(|row| ids.id(row));
        let selected = (0..own).filter(|&place| row_of(place).is_some()).count() as u64;
        for &query in queries.members {
            let met = &self.met[query as usize];
            met.vectors.fetch_add(own as u64, Ordering::Relaxed);
            met.selected.fetch_add(selected, Ordering::Relaxed);
        }
        if selected > 0 || own < count {
            comparer.compare_some(space, list.rows, id_of, queries);
        }
    }

    /// Finds the queries whose probed lists have too few selected vectors for `k` neighbours, and compares them with
    /// all selected vectors. Returns the number of these queries.
    pub fn complete<T: Clustered>(&self, round: &Round<'_, T>, k: u64) -> Result<u64> {
        let has_enough = |met: &Met| {
            let found = (met.vectors.load(Ordering::Relaxed), met.selected.load(Ordering::Relaxed));
            has_enough_selected(k, found, (self.rows.len(), self.count))
        };
        let lacking: Vec<u32> =
            (0..).zip(&self.met).filter(|(_, met)| !has_enough(met)).map(|(query, _)| query).collect();
        if !lacking.is_empty() {
            self.search_all(round, &lacking)?;
        }
        Ok(lacking.len() as u64)
    }

    /// Finds the nearest of all selected vectors for the given queries.
    fn search_all<T: Clustered>(&self, round: &Round<'_, T>, queries: &[u32]) -> Result<()> {
        for &query in queries {
            round.tops[query as usize].reset(round.space.bound());
        }
        let row_bytes = (round.space.dimensions * size_of::<T>()) as u64;
        let rows = block_rows(row_bytes);
        let _memory = round
            .job
            .budget()
            .reserve(Selected::bytes(self.rows, row_bytes), "blocks of selected vectors")?;
        let mut blocks = Vec::with_capacity((Selected::bytes(self.rows, row_bytes) / 4) as usize);
        let block = |number: u64| number * rows..(number + 1) * rows;
        blocks.extend(
            (0..self.rows.len().div_ceil(rows)).filter(|&n| self.rows.any_in(block(n))).map(|n| n as u32),
        );
        let selected_of = |number: u64| -> Option<Range<u64>> {
            self.rows.bounds_in(block((*blocks.get(number as usize)?).into()))
        };
        let range =
            |number: u64| selected_of(number).map(|rows| rows.start * row_bytes..rows.end * row_bytes);
        let ranges = Ranges {
            job: round.job,
            file: &round.vectors.file,
            threads: round.plan.threads,
            buffer_bytes: BLOCK_BYTES,
            range,
        };
        let heaps = Tops { first: 0, tops: round.tops };
        let members = Members { packed: round.packed, members: queries, heaps: &heaps };
        let make = || Comparer::<T>::new(round.space.dimensions);
        let comparers = ranges.each(make, |comparer, number, bytes| {
            let first = selected_of(number).expect("a block that was read").start;
            let id_of = |row: usize| {
                Some(first + row as u64).filter(|&row| self.rows.contains(row)).map(|row| round.ids.id(row))
            };
            comparer.compare_some(round.space, T::rows(bytes), id_of, &members);
            Ok(())
        })?;
        let measured = comparers.iter().map(|comparer| comparer.measured).sum();
        round.measured.fetch_add(measured, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the number of vectors in a block.
fn block_rows(row_bytes: u64) -> u64 {
    ((BLOCK_BYTES - 2 * CHECK_BYTES) as u64 / row_bytes).max(1)
}
