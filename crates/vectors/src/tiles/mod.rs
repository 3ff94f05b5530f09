//! Tiles compute the products of some vectors with a panel of queries. Only pairs that reach the limit (hits) are kept.
//!
//! ```text
//!              panel: queries packed dimension by dimension            a lane is a query
//!              ┌ d0: q0 q1 q2 ... ┐
//!              │ d1: q0 q1 q2 ... │
//!   rows  x0 ──┤    ...           ├──► sums[x][q] in registers ──► score ──► score >= limit[q]? ──► Hit
//!         x1 ──┤                  │
//!         ...  └                  ┘
//! ```
//!
//! This is the inner loop of a blocked matrix multiplication, with two differences. First, the matrix of products is
//! never written: each score is compared in the register in which it was computed. Second, the vectors are not packed:
//! each element is broadcast from the row as it was read, so a block that is used by few queries costs no copy.
//!
//! Cost: one fused multiplication and addition for each lane and dimension. With 12 rows and 2 registers of lanes there
//! are 24 sums, which hide the latency of the additions, and 14 loads for 24 operations. (With AVX2 there are 16
//! registers: 6 rows and 12 sums.) Integer rows are widened to 16 bits first; one operation then multiplies pairs of
//! dimensions.

mod portable;
mod rows;
#[cfg(target_arch = "x86_64")]
mod x86;

use serde::Serialize;

pub(crate) use self::rows::RowSum;
use crate::metric::Measured;

/// A pair whose score reaches the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hit {
    /// The row of the tile.
    pub row: u32,
    /// The lane of the panel.
    pub lane: u32,
    pub score: f32,
}

/// Returns true if a score is at least the limit. The result for a NaN is false.
pub(crate) fn reaches(score: f32, limit: f32) -> bool {
    !matches!(score.partial_cmp(&limit), Some(std::cmp::Ordering::Less))
}

/// The largest number of lanes of a panel.
pub(crate) const LANES_MAX: usize = 32;
/// The largest number of rows of a tile.
pub(crate) const ROWS_MAX: usize = 12;

/// The instruction sets for which tiles are implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Instructions {
    /// Portable code without explicit vector instructions, which the compiler may vectorize.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 (F, BW) with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// All instruction sets for this architecture, the best last.
    pub(crate) const ALL: &[Instructions] = &[
        Instructions::Portable,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512,
    ];

    /// Returns true if this processor has the instructions.
    pub(crate) fn are_here(self) -> bool {
        match self {
            Instructions::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => {
                Instructions::Avx2.are_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    /// Returns the best instruction set of this processor.
    pub fn best() -> Instructions {
        let mut from_best = Self::ALL.iter().rev().copied();
        from_best.find(|instructions| instructions.are_here()).unwrap_or(Instructions::Portable)
    }

    /// Returns the number of lanes of a register.
    pub(crate) fn width(self) -> usize {
        match self {
            Instructions::Portable => portable::WIDTH,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => 8,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => 16,
        }
    }
}

impl std::fmt::Display for Instructions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "AVX-512",
        })
    }
}

/// `Tile` is some rows and a panel of queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a, P> {
    /// The rows, `stride` elements apart.
    pub rows: &'a [P],
    pub stride: usize,
    /// The elements of each lane, dimension by dimension; for integers, pair by pair of dimensions.
    pub panel: &'a [P],
    /// The scale of each row; its length is the number of rows.
    pub scales: &'a [f32],
    /// The shift of each row.
    pub shifts: &'a [f32],
    /// The limit of each lane; its length is the number of lanes, one or two registers.
    pub limits: &'a [f32],
}

impl<P> Tile<'_, P> {
    /// Checks the lengths of all slices, on which the tiles with unchecked loads rely.
    fn check(&self, instructions: Instructions) {
        let (count, lanes) = (self.scales.len(), self.limits.len());
        assert!((1..=ROWS_MAX).contains(&count) && self.shifts.len() == count, "{count} rows");
        assert!(self.rows.len() == count * self.stride, "rows of {} elements", self.stride);
        assert!(self.panel.len() == self.stride * lanes, "a panel of {lanes} lanes");
        let width = instructions.width();
        assert!(lanes == width || lanes == 2 * width, "{lanes} lanes");
    }

    /// Returns the rows from `first` on, at most `count`.
    fn part(&self, first: usize, count: usize) -> Self {
        let range = first..first + count;
        Tile {
            rows: &self.rows[first * self.stride..range.end * self.stride],
            scales: &self.scales[range.clone()],
            shifts: &self.shifts[range],
            ..*self
        }
    }

    /// Splits the rows into groups of 12, 6, 4 or 1 rows. No group has more than `most` rows.
    fn groups(&self, most: usize, mut each: impl FnMut(usize, Tile<'_, P>)) {
        let mut first = 0;
        while first < self.scales.len() {
            let left = self.scales.len() - first;
            let count = [12, 6, 4, 1].into_iter().find(|&count| count <= left && count <= most);
            let count = count.expect("at least 1");
            each(first, self.part(first, count));
            first += count;
        }
    }
}

/// An element type of vectors, together with the type of the elements in its tiles.
pub(crate) trait Tiled: Measured + Copy + Sync + 'static {
    /// The elements of tiles.
    type Lane: Copy + Default + Send + Sync + std::fmt::Debug;
    const IS_INTEGER: bool;

    /// Views the bytes of whole rows.
    fn rows(bytes: &[u8]) -> &[Self];

    /// Returns the number of elements of a row in tiles.
    fn stride(dimensions: usize) -> usize;

    /// Returns rows as elements of tiles. The result is the same memory, or the converted elements in `scratch`.
    fn widen<'a>(rows: &'a [Self], dimensions: usize, scratch: &'a mut Vec<Self::Lane>) -> &'a [Self::Lane];

    /// Returns the elements of q*, in `stride` elements.
    fn star(value: f64) -> Self::Lane;

    /// Returns the element of a tile as a number.
    fn lane_value(lane: Self::Lane) -> f64;

    /// Returns the element as a number.
    fn value(self) -> f64;

    /// Appends the sum of each row and `other`, whose length is the number of dimensions. The sum of integers is exact
    /// and rounded once.
    fn row_sums(
        instructions: Instructions,
        sum: RowSum,
        rows: &[Self],
        other: &[Self::Lane],
        out: &mut Vec<f32>,
    );

    /// Returns the index of the element of `dimension` and lane `lane` in a panel of `lanes` lanes.
    fn place(dimension: usize, lane: usize, lanes: usize) -> usize;

    /// Adds the hits of a tile.
    fn hits(instructions: Instructions, tile: &Tile<'_, Self::Lane>, hits: &mut Vec<Hit>);
}

impl Tiled for f32 {
    type Lane = f32;
    const IS_INTEGER: bool = false;

    fn rows(bytes: &[u8]) -> &[f32] {
        crate::element::floats(bytes)
    }

    fn stride(dimensions: usize) -> usize {
        dimensions
    }

    fn widen<'a>(rows: &'a [f32], _: usize, _: &'a mut Vec<f32>) -> &'a [f32] {
        rows
    }

    fn star(value: f64) -> f32 {
        value as f32
    }

    fn lane_value(lane: f32) -> f64 {
        lane.into()
    }

    fn value(self) -> f64 {
        self.into()
    }

    fn row_sums(instructions: Instructions, sum: RowSum, rows: &[f32], other: &[f32], out: &mut Vec<f32>) {
        match instructions {
            Instructions::Portable => rows::float_sums(sum, rows, other, out),
            // SAFETY: instructions are selected only where the processor has them.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { x86::float_sums_avx2(sum, rows, other, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { x86::float_sums_avx512(sum, rows, other, out) },
        }
    }

    fn place(dimension: usize, lane: usize, lanes: usize) -> usize {
        dimension * lanes + lane
    }

    fn hits(instructions: Instructions, tile: &Tile<'_, f32>, hits: &mut Vec<Hit>) {
        tile.check(instructions);
        match instructions {
            Instructions::Portable => portable::float_hits(tile, hits),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => x86::float_hits_avx2(tile, hits),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => x86::float_hits_avx512(tile, hits),
        }
    }
}

/// Implements [`Tiled`] for bytes, which tiles hold as 16 bits, in pairs of dimensions.
macro_rules! tiled_bytes {
    ($element:ty, $rows:ident, $avx2:ident, $avx512:ident) => {
        impl Tiled for $element {
            type Lane = i16;
            const IS_INTEGER: bool = true;

            fn rows(bytes: &[u8]) -> &[$element] {
                $rows(bytes)
            }

            fn stride(dimensions: usize) -> usize {
                dimensions.next_multiple_of(2)
            }

            fn widen<'a>(rows: &'a [$element], dimensions: usize, scratch: &'a mut Vec<i16>) -> &'a [i16] {
                scratch.clear();
                for row in rows.chunks_exact(dimensions) {
                    scratch.extend(row.iter().map(|&x| i16::from(x)));
                    scratch.resize(scratch.len().next_multiple_of(2), 0);
                }
                scratch
            }

            fn star(value: f64) -> i16 {
                value as i16
            }

            fn lane_value(lane: i16) -> f64 {
                lane.into()
            }

            fn value(self) -> f64 {
                self.into()
            }

            fn row_sums(
                instructions: Instructions,
                sum: RowSum,
                rows: &[$element],
                other: &[i16],
                out: &mut Vec<f32>,
            ) {
                match instructions {
                    Instructions::Portable => rows::integer_sums(sum, rows, other, out),
                    // SAFETY: instructions are selected only where the processor has them.
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx2 => unsafe { x86::$avx2(sum, rows, other, out) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx512 => unsafe { x86::$avx512(sum, rows, other, out) },
                }
            }

            fn place(dimension: usize, lane: usize, lanes: usize) -> usize {
                (dimension / 2 * lanes + lane) * 2 + dimension % 2
            }

            fn hits(instructions: Instructions, tile: &Tile<'_, i16>, hits: &mut Vec<Hit>) {
                tile.check(instructions);
                assert!(tile.stride % 2 == 0, "pairs of dimensions");
                match instructions {
                    Instructions::Portable => portable::integer_hits(tile, hits),
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx2 => x86::integer_hits_avx2(tile, hits),
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx512 => x86::integer_hits_avx512(tile, hits),
                }
            }
        }
    };
}

fn unsigned(bytes: &[u8]) -> &[u8] {
    bytes
}

fn signed(bytes: &[u8]) -> &[i8] {
    zerocopy::FromBytes::ref_from_bytes(bytes).expect("bytes of one")
}

tiled_bytes!(u8, unsigned, unsigned_sums_avx2, unsigned_sums_avx512);
tiled_bytes!(i8, signed, signed_sums_avx2, signed_sums_avx512);

#[cfg(test)]
mod tests;
