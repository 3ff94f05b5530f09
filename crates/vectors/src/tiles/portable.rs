//! Tiles in plain loops. They serve processors without the instructions of [`x86`](super::x86), and tests compare the
//! other tiles with them.

use super::{Hit, Tile, reaches};
use crate::filter::CHUNK;

/// The number of lanes of a portable register. Two registers of lanes give enough independent sums to hide the latency
/// of additions.
pub(super) const WIDTH: usize = 8;

/// Appends the hits of a row, whose products with the lanes are `sums`.
fn compare<P>(tile: &Tile<'_, P>, row: usize, sums: &[f32; 2 * WIDTH], hits: &mut Vec<Hit>) {
    for (lane, (sum, limit)) in sums.iter().zip(tile.limits).enumerate() {
        let score = sum * tile.scales[row] - tile.shifts[row];
        if reaches(score, *limit) {
            hits.push(Hit { row: row as u32, lane: lane as u32, score });
        }
    }
}

pub(super) fn float_hits(tile: &Tile<'_, f32>, hits: &mut Vec<Hit>) {
    let lanes = tile.limits.len();
    for (row, elements) in tile.rows.chunks_exact(tile.stride).enumerate() {
        let mut totals = [0.0f32; 2 * WIDTH];
        for (elements, panel) in elements.chunks(CHUNK).zip(tile.panel.chunks(CHUNK * lanes)) {
            let mut sums = [0.0f32; 2 * WIDTH];
            for (&x, queries) in elements.iter().zip(panel.chunks_exact(lanes)) {
                sums.iter_mut().zip(queries).for_each(|(sum, q)| *sum += x * q);
            }
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        compare(tile, row, &totals, hits);
    }
}

pub(super) fn integer_hits(tile: &Tile<'_, i16>, hits: &mut Vec<Hit>) {
    let lanes = tile.limits.len();
    for (row, elements) in tile.rows.chunks_exact(tile.stride).enumerate() {
        let mut sums = [0i32; 2 * WIDTH];
        for (x, queries) in elements.chunks_exact(2).zip(tile.panel.chunks_exact(2 * lanes)) {
            for (sum, q) in sums.iter_mut().zip(queries.chunks_exact(2)) {
                *sum += i32::from(x[0]) * i32::from(q[0]) + i32::from(x[1]) * i32::from(q[1]);
            }
        }
        compare(tile, row, &sums.map(|sum| sum as f32), hits);
    }
}
