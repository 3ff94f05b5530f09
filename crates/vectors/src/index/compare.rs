//! Compares blocks of rows with any of the packed queries, and keeps the nearest rows of each.
//!
//! ```text
//!   rows ─► parts that stay in the cache ─► norms ─► for each panel of members: limits ─► tiles ─► hits
//!                                                                                  ▲          │ measured in f64
//!                                                                                  └─ bounds ◄┘
//! ```
//!
//! This is the inner loop of a search over all vectors (`search/scan.rs`) for queries that change from block to block: a
//! list is compared with the queries that probe it, and centroids with the vectors that look for their list. So a panel
//! is assembled for each block, which copies the elements of each query of the block.

use super::{Clustered, heaps::Heaps};
use crate::{
    filter::{BlockFacts, Filter, QueryFacts},
    metric::{AT_ONCE, Metric},
    search::compared_value,
    tiles::{Hit, Instructions, LANES_MAX, ROWS_MAX, Tile, reaches},
    topk::Entry,
};

/// The rows that all panels visit in turn stay in the second-level cache.
const PART_BYTES: usize = 192 << 10;
/// Hits before they are measured, beside those of one more tile.
const HITS: usize = 64;
/// How often the best hit of each lane is measured before the others. The first hits of a lane come without a bound, and most
/// of them are excluded by the best one; many equal rows must not be looked at again and again.
const BEST_FIRST: usize = 16;

/// The metric, and what the filter needs to know of the data.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub metric: Metric,
    pub dimensions: usize,
    pub radius: Option<f64>,
    pub instructions: Instructions,
    filter: Filter,
    /// The center for l2 of floats, and otherwise zeros.
    center: Vec<f32>,
}

impl Space {
    /// Creates a space around `center`, which is empty for zeros.
    pub fn new<T: Clustered>(
        metric: Metric,
        dimensions: usize,
        center: &[f32],
        instructions: Instructions,
    ) -> Space {
        let is_centered = metric == Metric::L2 && !T::IS_INTEGER && !center.is_empty();
        let center = if is_centered { center.to_vec() } else { vec![0.0; dimensions] };
        let norm = <f32 as crate::metric::Measured>::norm(&center);
        let filter = Filter::new(metric, dimensions, norm, T::IS_INTEGER);
        Space { metric, dimensions, radius: None, instructions, filter, center }
    }

    /// Returns the same space, where only rows within the radius are kept.
    pub fn within(&self, radius: Option<f64>) -> Space {
        Space { radius, ..self.clone() }
    }

    /// Returns a key that no neighbour exceeds.
    pub fn bound(&self) -> f64 {
        self.radius.map_or(f64::INFINITY, |radius| self.metric.key_within(radius))
    }
}

/// `Packed` is queries with their elements for tiles.
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

    /// Returns the memory of a query.
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

    /// Adds queries, whose elements follow each other in `rows`.
    pub fn extend(&mut self, rows: &[T], space: &Space) {
        self.rows.extend_from_slice(rows);
        for row in rows.chunks_exact(self.dimensions) {
            let norm = T::norm(row);
            let (mut squares, mut at_center) = (0.0, 0.0);
            for (&q, &c) in row.iter().zip(&space.center) {
                let star = T::star(compared_value(q, c, norm, space.metric));
                let used = T::lane_value(star);
                squares += used * used;
                at_center += used * f64::from(c);
                self.stars.push(star);
            }
            self.stars.resize(self.facts.len() * self.stride + self.stride, T::Lane::default());
            let base = at_center + squares / 2.0;
            self.facts.push(QueryFacts { norm, star: squares.sqrt(), base });
        }
    }
}

/// `Comparer` is the scratch memory of a thread that compares.
#[derive(Debug)]
pub(crate) struct Comparer<T: Clustered> {
    panel: Vec<T::Lane>,
    widened: Vec<T::Lane>,
    scales: Vec<f32>,
    shifts: Vec<f32>,
    hits: Vec<Hit>,
    /// Pairs that were measured exactly.
    pub measured: u64,
}

/// The queries of a comparison: those of `members`, and the place where the nearest rows go.
pub(crate) struct Members<'a, T: Clustered, H: Heaps> {
    pub packed: &'a Packed<T>,
    pub members: &'a [u32],
    pub heaps: &'a H,
}

impl<T: Clustered> Comparer<T> {
    pub fn new(dimensions: usize) -> Comparer<T> {
        let (rows, lanes) = (part_rows::<T>(dimensions), T::stride(dimensions));
        Comparer {
            panel: Vec::with_capacity(LANES_MAX * lanes),
            widened: Vec::with_capacity(if T::IS_INTEGER { rows * lanes } else { 0 }),
            scales: Vec::with_capacity(rows),
            shifts: Vec::with_capacity(rows),
            hits: Vec::with_capacity(HITS + ROWS_MAX * LANES_MAX),
            measured: 0,
        }
    }

    /// Returns the memory of a comparer.
    pub fn bytes(dimensions: usize) -> u64 {
        let (rows, lanes) = (part_rows::<T>(dimensions), T::stride(dimensions) * size_of::<T::Lane>());
        let widened = if T::IS_INTEGER { rows * lanes } else { 0 };
        let hits = (HITS + ROWS_MAX * LANES_MAX) * size_of::<Hit>();
        (LANES_MAX * lanes + widened + rows * 8 + hits) as u64
    }

    /// Compares all `rows` with all members. The entry of a row has the id that `id_of` gives.
    pub fn compare<H: Heaps>(
        &mut self,
        space: &Space,
        rows: &[T],
        id_of: impl Fn(usize) -> u64 + Copy,
        queries: &Members<'_, T, H>,
    ) {
        let dimensions = space.dimensions;
        let part_rows = part_rows::<T>(dimensions);
        let width = space.instructions.width();
        for (number, rows) in rows.chunks(part_rows * dimensions).enumerate() {
            let facts = self.describe(space, rows);
            let id_of = |row: usize| id_of(number * part_rows + row);
            let mut widened = std::mem::take(&mut self.widened);
            let tiles = T::widen(rows, dimensions, &mut widened);
            let mut panel = std::mem::take(&mut self.panel);
            for members in queries.members.chunks(2 * width) {
                let lanes = if members.len() > width { 2 * width } else { width };
                fill_panel(queries.packed, members, lanes, &mut panel);
                self.compare_panel(space, (rows, tiles), id_of, (&panel, lanes, members), &facts, queries);
            }
            self.panel = panel;
            self.widened = widened;
        }
    }

    /// Computes scale and shift of each row, and the facts about all rows.
    fn describe(&mut self, space: &Space, rows: &[T]) -> BlockFacts {
        self.scales.clear();
        self.shifts.clear();
        let (mut most, mut least) = (0.0f32, f32::INFINITY);
        for row in rows.chunks_exact(space.dimensions) {
            let squares = T::squares(space.instructions, row, &space.center);
            // A square may underflow: then the row has a norm, and it is too short to be filtered.
            if squares > 0.0 || row.iter().any(|x| x.value() != 0.0) {
                least = least.min(squares);
            }
            most = most.max(squares);
            let (scale, shift) = match space.metric {
                Metric::L2 => (1.0, squares / 2.0),
                Metric::Ip | Metric::Hamming | Metric::Jaccard => (1.0, 0.0),
                Metric::Cosine => (if squares > 0.0 { 1.0 / squares.sqrt() } else { 0.0 }, 0.0),
            };
            self.scales.push(scale);
            self.shifts.push(shift);
        }
        // The margins cover the error of the sums, which the filter bounds by far less than 1e-3.
        let norm = f64::from(most).sqrt() * 1.001;
        let norm_min = f64::from(least).sqrt() * 0.999;
        match space.metric {
            Metric::L2 => BlockFacts {
                norm: norm + space.filter.center() * 1.001,
                norm_min,
                shift: f64::from(most) / 2.0,
            },
            _ => BlockFacts { norm, norm_min, shift: 0.0 },
        }
    }

    fn compare_panel<H: Heaps>(
        &mut self,
        space: &Space,
        (rows, tiles): (&[T], &[T::Lane]),
        id_of: impl Fn(usize) -> u64 + Copy,
        (panel, lanes, members): (&[T::Lane], usize, &[u32]),
        facts: &BlockFacts,
        queries: &Members<'_, T, H>,
    ) {
        let mut limits = [f32::INFINITY; LANES_MAX];
        let limit_of = |query: u32| {
            let query = query as usize;
            space.filter.limit(&queries.packed.facts[query], facts, queries.heaps.bound(query))
        };
        limits.iter_mut().zip(members).for_each(|(limit, &query)| *limit = limit_of(query));
        let (count, stride) = (rows.len() / space.dimensions, T::stride(space.dimensions));
        let mut at = 0;
        while at < count {
            let end = count.min(at + ROWS_MAX);
            let tile = Tile {
                rows: &tiles[at * stride..end * stride],
                stride,
                panel,
                scales: &self.scales[at..end],
                shifts: &self.shifts[at..end],
                limits: &limits[..lanes],
            };
            let before = self.hits.len();
            T::hits(space.instructions, &tile, &mut self.hits);
            self.hits[before..].iter_mut().for_each(|hit| hit.row += at as u32);
            at = end;
            if self.hits.len() >= HITS || (at == count && !self.hits.is_empty()) {
                let mut measuring = Measuring { space, rows, members, limits: &mut limits, facts, queries };
                self.measured += measuring.run(&mut self.hits, id_of);
            }
        }
    }
}

/// The pairs that are measured exactly: rows of a block, and the lanes of a panel.
struct Measuring<'a, T: Clustered, H: Heaps> {
    space: &'a Space,
    rows: &'a [T],
    members: &'a [u32],
    limits: &'a mut [f32],
    facts: &'a BlockFacts,
    queries: &'a Members<'a, T, H>,
}

impl<T: Clustered, H: Heaps> Measuring<'_, T, H> {
    /// Measures the hits that can be near, those of the best scores first, and takes them out. Returns their number.
    fn run(&mut self, hits: &mut Vec<Hit>, id_of: impl Fn(usize) -> u64) -> u64 {
        // A lane without a query can be hit by a NaN.
        hits.retain(|hit| (hit.lane as usize) < self.members.len());
        let mut measured = 0;
        for _ in 0..BEST_FIRST {
            // Limits rose since some hits were found.
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
            // From the last place on, so that the places before stay.
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

    /// Measures hits, and returns their number.
    fn measure_all(&mut self, hits: &[Hit], id_of: &impl Fn(usize) -> u64) -> u64 {
        for hits in hits.chunks(AT_ONCE) {
            // A group that is not full repeats its last pair.
            let group = std::array::from_fn(|number| hits[number.min(hits.len() - 1)]);
            self.measure(&group, hits.len(), id_of);
        }
        hits.len() as u64
    }

    fn is_near(&self, hit: &Hit) -> bool {
        reaches(hit.score, self.limits[hit.lane as usize])
    }

    /// Measures the first `count` hits of a group; the others may be any.
    fn measure(&mut self, group: &[Hit; AT_ONCE], count: usize, id_of: &impl Fn(usize) -> u64) {
        let Measuring { space, rows, members, facts, queries, .. } = *self;
        let query = |number: usize| members[group[number].lane as usize] as usize;
        let row = |number: usize| &rows[group[number].row as usize * space.dimensions..][..space.dimensions];
        let keys = T::keys(
            space.metric,
            std::array::from_fn(|number| queries.packed.row(query(number))),
            std::array::from_fn(row),
            std::array::from_fn(|number| queries.packed.facts[query(number)].norm),
        );
        for (number, hit) in group[..count].iter().enumerate() {
            let (key, query) = (keys[number], query(number));
            let is_within = space.radius.is_none_or(|radius| space.metric.is_within(key, radius));
            let bound = queries.heaps.bound(query);
            if key <= bound && is_within {
                queries.heaps.push(query, Entry { key, id: id_of(hit.row as usize) });
                let raised = queries.heaps.bound(query);
                if raised < bound {
                    self.limits[hit.lane as usize] =
                        space.filter.limit(&queries.packed.facts[query], facts, raised);
                }
            }
        }
    }
}

fn part_rows<T: Clustered>(dimensions: usize) -> usize {
    let rows = (PART_BYTES / (T::stride(dimensions) * size_of::<T::Lane>())).max(1);
    if rows > ROWS_MAX { rows / ROWS_MAX * ROWS_MAX } else { rows }
}

/// Copies the elements of some queries to the lanes of a panel. Lanes without a query hold zeros.
fn fill_panel<T: Clustered>(packed: &Packed<T>, members: &[u32], lanes: usize, panel: &mut Vec<T::Lane>) {
    panel.clear();
    panel.resize(packed.stride * lanes, T::Lane::default());
    for (lane, &member) in members.iter().enumerate() {
        let star = &packed.stars[member as usize * packed.stride..][..packed.stride];
        if T::IS_INTEGER {
            // A pair of dimensions lies together.
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
