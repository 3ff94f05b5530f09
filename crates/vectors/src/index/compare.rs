//! Compares blocks of rows with some of the packed queries, and keeps the nearest rows of each query. A *hit* is a pair
//! whose approximate score reaches the limit of the query. Only hits are measured exactly.
//!
//! ```text
//!   rows ─► subblocks ─► for each panel of members: limits ─► tiles ─► hits
//!                                                     ▲                  │ measured in f64
//!                                                     └───── bounds ◄────┘
//! ```
//!
//! A search over all vectors (`search/scan.rs`) prepares rows and finds hits in the same way ([`crate::subblock`]). In
//! this module, the queries change from block to block, since a list is compared with the queries that probe the list,
//! and centroids are compared with the vectors whose list is searched. Two things therefore differ from a scan. First,
//! the elements of the queries are copied to a new panel for each block. Second, the best hits are measured first. Most
//! queries meet only a few hundred rows, and a query has no bound before its first hits are measured. The bound from
//! the best hits excludes most other hits. A scan measures hits in the order of the rows, because it has a bound for
//! all blocks except the first ones.
//!
//! A tile costs the same for one query as for a full register of queries. Up to four queries are therefore compared one
//! after the other, by sums over the dimensions of each row (`RowSum`). For a single query of 128 bytes, this is ten
//! times as fast as a tile.

use super::Clustered;
use crate::{
    filter::{BlockFacts, Filter, QueryFacts},
    heaps::Heaps,
    metric::{AT_ONCE, Metric},
    search::compared_value,
    subblock::{HITS, HITS_MAX, Preparation, Subblock, subblock_rows},
    tiles::{Hit, Instructions, LANES_MAX, RowSum, reaches},
    topk::Entry,
};

/// The best hit of each lane is measured this number of times before all other hits. The first hits of a lane are found
/// without a bound, and the best one usually excludes most of the others. The number of such steps is limited, because
/// each step examines all remaining hits, and equal rows do not exclude each other.
const BEST_FIRST: usize = 16;
/// The largest number of queries that are compared with rows one after the other. More queries are compared by tiles.
const FEW: usize = 4;
/// This number of scores is compared with a limit in one step.
const SCORES: usize = 32;

/// The metric, and the facts about the data that the filter needs.
#[derive(Clone, Debug)]
pub(crate) struct Space<T: Clustered> {
    pub metric: Metric,
    pub dimensions: usize,
    pub radius: Option<f64>,
    pub instructions: Instructions,
    filter: Filter,
    /// The filter for scores that are sums over the dimensions of each row.
    filter_of_rows: Filter,
    /// The center of the data, if the metric is L2 and the elements are floating-point numbers. Otherwise the center is
    /// zero.
    center: Vec<T::Lane>,
}

impl<T: Clustered> Space<T> {
    /// Creates a space. `center` is the center of the data. An empty slice means that all coordinates of the center are
    /// zero.
    pub fn new(metric: Metric, dimensions: usize, center: &[f32], instructions: Instructions) -> Space<T> {
        let is_centered = metric == Metric::L2 && !T::IS_INTEGER && !center.is_empty();
        let center = if is_centered { center.to_vec() } else { vec![0.0; dimensions] };
        let norm = <f32 as crate::metric::Measured>::norm(&center);
        let filter = Filter::new(metric, dimensions, norm, T::IS_INTEGER);
        let center = center.into_iter().map(|c| T::star(c.into())).collect();
        let filter_of_rows = filter.of_row_sums();
        Space { metric, dimensions, radius: None, instructions, filter, filter_of_rows, center }
    }

    /// Returns a copy of the space that keeps only rows within the radius.
    pub fn within(&self, radius: Option<f64>) -> Space<T> {
        Space { radius, ..self.clone() }
    }

    /// Returns a key that no neighbour exceeds.
    pub fn bound(&self) -> f64 {
        self.radius.map_or(f64::INFINITY, |radius| self.metric.key_within(radius))
    }
}

/// Queries, each with its elements in the form that tiles need.
#[derive(Debug)]
pub(crate) struct Packed<T: Clustered> {
    dimensions: usize,
    stride: usize,
    rows: Vec<T>,
    stars: Vec<T::Lane>,
    facts: Vec<QueryFacts>,
}

impl<T: Clustered> Packed<T> {
    pub fn with_capacity(dimensions: usize, count: usize) -> Packed<T> {
        let stride = T::stride(dimensions);
        Packed {
            dimensions,
            stride,
            rows: Vec::with_capacity(count * dimensions),
            stars: Vec::with_capacity(count * stride),
            facts: Vec::with_capacity(count),
        }
    }

    /// Returns the memory, in bytes, that a packed query takes.
    pub fn bytes_each(dimensions: usize) -> u64 {
        let elements = dimensions * size_of::<T>() + T::stride(dimensions) * size_of::<T::Lane>();
        (elements + size_of::<QueryFacts>()) as u64
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.stars.clear();
        self.facts.clear();
    }

    pub fn len(&self) -> usize {
        self.facts.len()
    }

    pub fn row(&self, query: usize) -> &[T] {
        &self.rows[query * self.dimensions..][..self.dimensions]
    }

    /// Returns the elements of a query in the form that tiles need.
    fn star(&self, query: usize) -> &[T::Lane] {
        &self.stars[query * self.stride..][..self.stride]
    }

    /// Appends queries. The elements of the queries follow each other in `rows`.
    pub fn extend(&mut self, rows: &[T], space: &Space<T>) {
        self.rows.extend_from_slice(rows);
        for row in rows.chunks_exact(self.dimensions) {
            let norm = T::norm(row);
            let (mut squares, mut at_center) = (0.0, 0.0);
            for (&q, &c) in row.iter().zip(&space.center) {
                let c = T::lane_value(c);
                let star = T::star(compared_value(q, c, norm, space.metric));
                let used = T::lane_value(star);
                squares += used * used;
                at_center += used * c;
                self.stars.push(star);
            }
            self.stars.resize(self.facts.len() * self.stride + self.stride, T::Lane::default());
            let base = at_center + squares / 2.0;
            self.facts.push(QueryFacts { norm, star: squares.sqrt(), base });
        }
    }
}

/// The scratch memory of a thread that compares rows with queries.
#[derive(Debug)]
pub(crate) struct Comparer<T: Clustered> {
    panel: Vec<T::Lane>,
    preparation: Preparation<T::Lane>,
    hits: Vec<Hit>,
    /// The number of pairs that were measured exactly.
    pub measured: u64,
}

/// The queries of a comparison, and the receiver of their nearest rows. The queries are those queries of `packed` whose
/// numbers are in `members`.
pub(crate) struct Members<'a, T: Clustered, H: Heaps> {
    pub packed: &'a Packed<T>,
    pub members: &'a [u32],
    pub heaps: &'a H,
}

impl<T: Clustered> Comparer<T> {
    pub fn new(dimensions: usize) -> Comparer<T> {
        let (rows, lanes) = (rows_of::<T>(dimensions), T::stride(dimensions));
        Comparer {
            panel: Vec::with_capacity(LANES_MAX * lanes),
            preparation: Preparation::with_capacity(rows, if T::IS_INTEGER { rows * lanes } else { 0 }),
            hits: Vec::with_capacity(HITS_MAX),
            measured: 0,
        }
    }

    /// Returns the memory of a comparer, in bytes.
    pub fn bytes(dimensions: usize) -> u64 {
        let (rows, lanes) = (rows_of::<T>(dimensions), T::stride(dimensions) * size_of::<T::Lane>());
        let widened = if T::IS_INTEGER { rows * lanes } else { 0 };
        let hits = HITS_MAX * size_of::<Hit>();
        (LANES_MAX * lanes + widened + rows * 8 + hits) as u64
    }

    /// Compares all `rows` with all members. `id_of` returns the id of a row.
    pub fn compare<H: Heaps>(
        &mut self,
        space: &Space<T>,
        rows: &[T],
        id_of: impl Fn(usize) -> u64 + Copy,
        queries: &Members<'_, T, H>,
    ) {
        self.compare_some(space, rows, |row| Some(id_of(row)), queries);
    }

    /// Compares rows with all members. A row for which `id_of` returns `None` is skipped.
    pub fn compare_some<H: Heaps>(
        &mut self,
        space: &Space<T>,
        rows: &[T],
        id_of: impl Fn(usize) -> Option<u64> + Copy,
        queries: &Members<'_, T, H>,
    ) {
        let subblock_rows = rows_of::<T>(space.dimensions);
        for (number, rows) in rows.chunks(subblock_rows * space.dimensions).enumerate() {
            let id_of = |row: usize| id_of(number * subblock_rows + row);
            match queries.members.len() <= FEW {
                true => self.compare_rows(space, rows, id_of, queries),
                false => self.compare_tiles(space, rows, id_of, queries),
            }
        }
    }

    /// Compares a subblock with many members.
    fn compare_tiles<H: Heaps>(
        &mut self,
        space: &Space<T>,
        rows: &[T],
        id_of: impl Fn(usize) -> Option<u64> + Copy,
        queries: &Members<'_, T, H>,
    ) {
        let Comparer { panel, preparation, hits, measured } = self;
        let width = space.instructions.width();
        let subblock = preparation.prepare(space.instructions, &space.filter, &space.center, rows);
        for members in queries.members.chunks(2 * width) {
            let lanes = if members.len() > width { 2 * width } else { width };
            fill_panel(queries.packed, members, lanes, panel);
            let limits = [f32::INFINITY; LANES_MAX];
            let (filter, facts) = (&space.filter, subblock.facts);
            let mut compared = Compared { space, filter, facts, rows, members, limits, queries };
            *measured += compared.run(&subblock, panel, lanes, hits, id_of);
        }
    }

    /// Compares a subblock with one member after the other.
    fn compare_rows<H: Heaps>(
        &mut self,
        space: &Space<T>,
        rows: &[T],
        id_of: impl Fn(usize) -> Option<u64> + Copy,
        queries: &Members<'_, T, H>,
    ) {
        let Comparer { panel, preparation, hits, measured } = self;
        let (filter, instructions, dimensions) =
            (&space.filter_of_rows, space.instructions, space.dimensions);
        let (facts, sum) = match space.metric {
            // The limit for a sum of squared differences does not depend on the rows, so these facts are zeros.
            Metric::L2 => (BlockFacts { norm: 0.0, norm_min: 0.0, shift: 0.0 }, RowSum::Differences),
            _ => (preparation.describe(instructions, filter, &space.center, rows), RowSum::Products),
        };
        for member in queries.members.chunks(1) {
            let query = member[0] as usize;
            let elements = match sum {
                RowSum::Differences => &T::widen(queries.packed.row(query), dimensions, panel)[..dimensions],
                RowSum::Products => &queries.packed.star(query)[..dimensions],
            };
            // No metric needs the shifts in this function, so the scores take their memory.
            let Preparation { scales, shifts: scores, .. } = preparation;
            scores.clear();
            T::row_sums(instructions, sum, rows, elements, scores);
            match space.metric {
                Metric::L2 => scores.iter_mut().for_each(|score| *score = -*score),
                Metric::Cosine => {
                    scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= *scale);
                }
                Metric::Ip | Metric::Hamming | Metric::Jaccard => {}
            }
            let limits = [f32::INFINITY; LANES_MAX];
            let mut compared = Compared { space, filter, facts, rows, members: member, limits, queries };
            *measured += compared.run_scores(scores, hits, id_of);
        }
    }
}

/// Rows and the members with which they are compared. Pairs that reach the limits are measured exactly.
struct Compared<'a, T: Clustered, H: Heaps> {
    space: &'a Space<T>,
    filter: &'a Filter,
    facts: BlockFacts,
    rows: &'a [T],
    /// For each lane, the number of its query.
    members: &'a [u32],
    limits: [f32; LANES_MAX],
    queries: &'a Members<'a, T, H>,
}

impl<'a, T: Clustered, H: Heaps> Compared<'a, T, H> {
    /// Compares all rows with a panel of `lanes` lanes. Returns the number of measured pairs.
    fn run(
        &mut self,
        subblock: &Subblock<'_, T>,
        panel: &[T::Lane],
        lanes: usize,
        hits: &mut Vec<Hit>,
        id_of: impl Fn(usize) -> Option<u64> + Copy,
    ) -> u64 {
        self.set_limits();
        let (mut at, mut measured) = (0, 0);
        while at < subblock.count() {
            at = subblock.hits(at, panel, &self.limits[..lanes], hits);
            if hits.len() >= HITS || (at == subblock.count() && !hits.is_empty()) {
                measured += self.measure_best_first(hits, id_of);
            }
        }
        measured
    }

    /// Compares the scores of all rows with the limit of the only member. Returns the number of measured pairs.
    fn run_scores(
        &mut self,
        scores: &[f32],
        hits: &mut Vec<Hit>,
        id_of: impl Fn(usize) -> Option<u64> + Copy,
    ) -> u64 {
        self.set_limits();
        let mut measured = 0;
        for (part, some) in scores.chunks(SCORES).enumerate() {
            let limit = self.limits[0];
            // This test has no branches, and is false for nearly all parts.
            if !some.iter().fold(false, |any, &score| any | reaches(score, limit)) {
                continue;
            }
            for (row, &score) in (part * SCORES..).zip(some) {
                if reaches(score, limit) {
                    hits.push(Hit { row: row as u32, lane: 0, score });
                }
            }
            if hits.len() >= HITS {
                measured += self.measure_best_first(hits, id_of);
            }
        }
        measured + self.measure_best_first(hits, id_of)
    }

    fn set_limits(&mut self) {
        for (lane, &query) in self.members.iter().enumerate() {
            self.limits[lane] = self.limit(query as usize, self.queries.heaps.bound(query as usize));
        }
    }

    fn limit(&self, query: usize, bound: f64) -> f32 {
        self.filter.limit(&self.queries.packed.facts[query], &self.facts, bound)
    }

    fn row(&self, row: u32) -> &'a [T] {
        &self.rows[row as usize * self.space.dimensions..][..self.space.dimensions]
    }

    /// Removes all hits, and measures those that can still be near, the best scores first. Returns the number of
    /// measured pairs.
    fn measure_best_first(&mut self, hits: &mut Vec<Hit>, id_of: impl Fn(usize) -> Option<u64>) -> u64 {
        // A NaN can be a hit in a lane without a query. Hits of rows without an id are removed, too.
        hits.retain(|hit| (hit.lane as usize) < self.members.len() && id_of(hit.row as usize).is_some());
        let mut measured = 0;
        for _ in 0..BEST_FIRST {
            // The limits may have risen after some hits were found.
            hits.retain(|hit| self.is_near(hit));
            if hits.is_empty() {
                return measured;
            }
            let mut best = [usize::MAX; LANES_MAX];
            for (place, hit) in hits.iter().enumerate() {
                let best = &mut best[hit.lane as usize];
                if *best == usize::MAX || hit.score.total_cmp(&hits[*best].score).is_gt() {
                    *best = place;
                }
            }
            // Hits are removed in descending order of their positions, so that `swap_remove` does not move a hit that
            // is still to be removed.
            best.sort_unstable_by(|one, other| other.cmp(one));
            let (mut some, mut count) = ([hits[0]; LANES_MAX], 0);
            for place in best.into_iter().filter(|place| *place != usize::MAX) {
                some[count] = hits.swap_remove(place);
                count += 1;
            }
            measured += self.measure_all(&some[..count], &id_of);
        }
        hits.retain(|hit| self.is_near(hit));
        measured += self.measure_all(hits, &id_of);
        hits.clear();
        measured
    }

    /// Computes the exact distance of each hit, and keeps the hits that are near enough. Returns the number of hits.
    fn measure_all(&mut self, hits: &[Hit], id_of: &impl Fn(usize) -> Option<u64>) -> u64 {
        for hits in hits.chunks(AT_ONCE) {
            // If fewer hits than `AT_ONCE` are left, the last hit fills the rest of the group.
            let group = std::array::from_fn(|number| hits[number.min(hits.len() - 1)]);
            self.measure(&group, hits.len(), id_of);
        }
        hits.len() as u64
    }

    fn is_near(&self, hit: &Hit) -> bool {
        reaches(hit.score, self.limits[hit.lane as usize])
    }

    /// Measures the first `count` hits of a group. The other hits are ignored.
    fn measure(&mut self, group: &[Hit; AT_ONCE], count: usize, id_of: &impl Fn(usize) -> Option<u64>) {
        let Compared { space, members, queries, .. } = *self;
        let query = |number: usize| members[group[number].lane as usize] as usize;
        let keys = T::keys(
            space.metric,
            std::array::from_fn(|number| queries.packed.row(query(number))),
            std::array::from_fn(|number| self.row(group[number].row)),
            std::array::from_fn(|number| queries.packed.facts[query(number)].norm),
        );
        for (number, hit) in group[..count].iter().enumerate() {
            let (key, query) = (keys[number], query(number));
            let is_within = space.radius.is_none_or(|radius| space.metric.is_within(key, radius));
            let bound = queries.heaps.bound(query);
            if key <= bound && is_within {
                let id = id_of(hit.row as usize).expect("hits of other rows were taken out");
                queries.heaps.push(query, Entry { key, id });
                let raised = queries.heaps.bound(query);
                if raised < bound {
                    self.limits[hit.lane as usize] = self.limit(query, raised);
                }
            }
        }
    }
}

/// Returns the number of rows in a subblock.
fn rows_of<T: Clustered>(dimensions: usize) -> usize {
    subblock_rows(T::stride(dimensions) * size_of::<T::Lane>())
}

/// Copies the elements of some queries to the lanes of a panel. Lanes without a query hold zeros.
fn fill_panel<T: Clustered>(packed: &Packed<T>, members: &[u32], lanes: usize, panel: &mut Vec<T::Lane>) {
    panel.clear();
    panel.resize(packed.stride * lanes, T::Lane::default());
    for (lane, &member) in members.iter().enumerate() {
        let star = packed.star(member as usize);
        if T::IS_INTEGER {
            // The two elements of a pair of dimensions are adjacent in the panel.
            for (pair, elements) in star.chunks_exact(2).enumerate() {
                let place = T::place(2 * pair, lane, lanes);
                panel[place..place + 2].copy_from_slice(elements);
            }
        } else {
            for (dimension, &element) in star.iter().enumerate() {
                panel[T::place(dimension, lane, lanes)] = element;
            }
        }
    }
}
