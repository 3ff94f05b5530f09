//! A subblock is a group of rows that stay in the second-level cache while they are compared with all panels of
//! queries.
//!
//! ```text
//!   rows ─► norms ─► scale and shift of each row, facts for the filter ─┐
//!        └► elements of tiles (integers are widened) ───────────────────┴─► tiles with each panel ─► hits
//! ```
//!
//! The search over all vectors (`search/scan.rs`) and the comparisons of an index (`index/compare.rs`) share this
//! module.

use crate::{
    filter::{BlockFacts, Filter},
    metric::{COUNTED, Metric},
    tiles::{Hit, Instructions, LANES_MAX, ROWS_MAX, RowSum, Tile, Tiled},
};

/// The size, in bytes, of the elements of a subblock in the form for tiles.
const SUBBLOCK_BYTES: usize = 192 << 10;
/// A thread computes exact distances after it has collected this number of hits. A hit is a pair whose approximate
/// score reaches the limit of the query. The buffer can also hold the hits of one more tile.
pub(crate) const HITS: usize = 64;
/// The largest number of hits that a thread holds.
pub(crate) const HITS_MAX: usize = HITS + ROWS_MAX * LANES_MAX;

/// Returns the number of rows in a subblock. If a subblock has more rows than a tile, it has a whole number of tiles.
pub(crate) fn subblock_rows(lane_bytes: usize) -> usize {
    let rows = (SUBBLOCK_BYTES / lane_bytes).max(1);
    if rows > ROWS_MAX { rows / ROWS_MAX * ROWS_MAX } else { rows }
}

/// The memory in which a thread prepares subblocks for tiles.
#[derive(Debug)]
pub(crate) struct Preparation<L> {
    widened: Vec<L>,
    pub scales: Vec<f32>,
    pub shifts: Vec<f32>,
}

impl<L> Preparation<L> {
    /// Allocates memory for `rows` rows, and for `widened` elements that are converted to the form for tiles.
    pub fn with_capacity(rows: usize, widened: usize) -> Preparation<L> {
        Preparation {
            widened: Vec::with_capacity(widened),
            scales: Vec::with_capacity(rows),
            shifts: Vec::with_capacity(rows),
        }
    }

    /// Computes the scale and the shift of each row. Returns the facts about all rows that the filter needs. The center
    /// has as many elements as a row.
    pub fn describe<T: Tiled<Lane = L>>(
        &mut self,
        instructions: Instructions,
        filter: &Filter,
        center: &[L],
        rows: &[T],
    ) -> BlockFacts {
        let Preparation { scales, shifts, .. } = self;
        shifts.clear();
        scales.clear();
        T::row_sums(instructions, RowSum::Differences, rows, center, scales);
        let (mut most, mut least) = (0.0f32, f32::INFINITY);
        for (row, scale) in rows.chunks_exact(center.len()).zip(scales) {
            let squares = *scale;
            // The squares of a row with a norm above 0 may underflow to 0. Such a row still determines the smallest
            // norm, so that the filter is not used for the block.
            if squares > 0.0 || row.iter().any(|x| x.value() != 0.0) {
                least = least.min(squares);
            }
            most = most.max(squares);
            let shift;
            (*scale, shift) = match filter.metric {
                Metric::L2 => (1.0, squares / 2.0),
                Metric::Ip => (1.0, 0.0),
                Metric::Cosine => (if squares > 0.0 { 1.0 / squares.sqrt() } else { 0.0 }, 0.0),
                Metric::Hamming | Metric::Jaccard => unreachable!("{COUNTED}"),
            };
            shifts.push(shift);
        }
        // The factors 1.001 and 0.999 cover the error of the sums. By the bounds of the filter, this error is far below
        // 1e-3.
        let norm = f64::from(most).sqrt() * 1.001;
        let norm_min = f64::from(least).sqrt() * 0.999;
        match filter.metric {
            Metric::L2 => {
                let norm = norm + filter.center() * 1.001;
                BlockFacts { norm, norm_min, shift: f64::from(most) / 2.0 }
            }
            _ => BlockFacts { norm, norm_min, shift: 0.0 },
        }
    }

    /// Computes the facts about rows, and converts the rows to elements of tiles.
    pub fn prepare<'a, T: Tiled<Lane = L>>(
        &'a mut self,
        instructions: Instructions,
        filter: &Filter,
        center: &[L],
        rows: &'a [T],
    ) -> Subblock<'a, T> {
        let facts = self.describe(instructions, filter, center, rows);
        let Preparation { widened, scales, shifts } = self;
        let lanes = T::widen(rows, center.len(), widened);
        Subblock { dimensions: center.len(), facts, instructions, lanes, scales, shifts }
    }
}

/// Rows that are prepared for tiles.
pub(crate) struct Subblock<'a, T: Tiled> {
    dimensions: usize,
    pub facts: BlockFacts,
    instructions: Instructions,
    lanes: &'a [T::Lane],
    scales: &'a [f32],
    shifts: &'a [f32],
}

impl<T: Tiled> Subblock<'_, T> {
    /// Returns the number of rows in the subblock.
    pub fn count(&self) -> usize {
        self.scales.len()
    }

    /// Compares one tile of rows with a panel of queries, and appends the hits to `hits`. The tile begins with row
    /// `first`. Returns the number of the first row after the tile.
    pub fn hits(&self, first: usize, panel: &[T::Lane], limits: &[f32], hits: &mut Vec<Hit>) -> usize {
        let (end, stride) = (self.count().min(first + ROWS_MAX), T::stride(self.dimensions));
        let tile = Tile {
            rows: &self.lanes[first * stride..end * stride],
            stride,
            panel,
            scales: &self.scales[first..end],
            shifts: &self.shifts[first..end],
            limits,
        };
        let before = hits.len();
        T::hits(self.instructions, &tile, hits);
        hits[before..].iter_mut().for_each(|hit| hit.row += first as u32);
        end
    }
}
