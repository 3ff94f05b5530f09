//! Searches in an index where only selected vectors may be answers.
//!
//! The neighbours among a share *s* of the vectors lie as far away as the k / s nearest of all, so they are in more lists.
//! A query probes 1 / √s times as many lists as for the same recall among all vectors. The reason: the neighbours lie in
//! a ball around the query, and the number of lists that a ball touches grows with the number of vectors in the ball, by
//! a power that depends on the dimensions of the data. Let a list have L vectors. In data of d dimensions the radii of
//! ball and list are as (k / s)^(1/d) to L^(1/d), and the ball touches about (1 + (k / sL)^(1/d))^d lists. With k / L from
//! 0.05 to 0.5 and d from 5 to 20, this grows tenfold or less from s = 1 to s = 1/100, as 1 / √s does.
//!
//! That holds for vectors that are selected independently of their place. A query far from all selected vectors finds few
//! of them in its lists. If these have fewer than k, or less than a quarter of the selected vectors that lists have on
//! average, the query is compared with all selected vectors, in one pass over the blocks that have any. So a query has
//! k neighbours if k vectors are selected. What is probed, and which queries need that pass, depends on index, queries,
//! recall and selection only.
//!
//! If less than one vector of a hundred is selected ([`crate::is_sparse`]), the exact search over the selected vectors reads
//! less than the lists.

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

/// The lists of a query have enough selected vectors if they have this share of the average, and k.
const ENOUGH: f64 = 0.25;
/// The bytes of a block of vectors, with room for one vector of any dimensions.
const BLOCK_BYTES: usize = 256 << 10;

/// Returns the lists that a query probes among selected vectors, from those that it probes among all.
pub(crate) fn probes_among(selection: &RowSet, probes: u64, lists: u64) -> u64 {
    let share = selection.count() as f64 / selection.len() as f64;
    ((probes as f64 / share.max(1e-12).sqrt()).ceil() as u64).clamp(1, lists)
}

impl<'a> Selected<'a> {
    /// The memory for each query: its two counters, and its number.
    pub const QUERY_BYTES: u64 = size_of::<Met>() as u64 + 4;

    pub fn new(rows: &'a RowSet, queries: usize) -> Selected<'a> {
        Selected { rows, count: rows.count(), met: (0..queries).map(|_| Met::default()).collect() }
    }

    /// Returns the memory that does not depend on the number of queries.
    pub fn bytes(rows: &RowSet, row_bytes: u64) -> u64 {
        4 * rows.len().div_ceil(block_rows(row_bytes)).min(rows.count())
    }

    /// Compares the selected vectors of a list with queries. The list has `own` vectors, and copies behind them up to `count`,
    /// which are met in other lists.
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

    /// Compares the queries whose lists have too few selected vectors for `k` neighbours with all selected vectors, and
    /// returns their number.
    pub fn complete<T: Clustered>(&self, round: &Round<'_, T>, k: u64) -> Result<u64> {
        let share = self.count as f64 / self.rows.len() as f64;
        let has_enough = |met: &Met| {
            let (vectors, selected) =
                (met.vectors.load(Ordering::Relaxed), met.selected.load(Ordering::Relaxed));
            let is_all = selected == self.count;
            is_all || (selected >= k && selected as f64 >= ENOUGH * share * vectors as f64)
        };
        let lacking: Vec<u32> =
            (0..).zip(&self.met).filter(|(_, met)| !has_enough(met)).map(|(query, _)| query).collect();
        if !lacking.is_empty() {
            self.search_all(round, &lacking)?;
        }
        Ok(lacking.len() as u64)
    }

    /// Finds the nearest of all selected vectors for some queries.
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

/// Returns the vectors of a block.
fn block_rows(row_bytes: u64) -> u64 {
    ((BLOCK_BYTES - 2 * CHECK_BYTES) as u64 / row_bytes).max(1)
}
