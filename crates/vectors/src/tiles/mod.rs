//! Tiles compute the products of some vectors with a panel of queries. Only hits are kept. A hit is a pair whose score
//! reaches the limit of the query.
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
//! never written, since each score is compared in the register in which it was computed. Second, the vectors are not
//! packed. Each element is broadcast from the row as it was read, so a block that few queries use is not copied.
//!
//! The cost is one fused multiply-add operation for each row, lane and dimension. A tile of AVX-512 has 12 rows and 2
//! registers of lanes. Its 24 sums hide the latency of the additions, and each dimension takes 14 loads for 24
//! operations. (AVX2 has only 16 registers, so its tile has 6 rows and 12 sums.) Integer rows are first widened to 16
//! bits. One operation then multiplies two dimensions.

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
    /// The number of the row in the tile.
    pub row: u32,
    /// The number of the lane in the panel.
    pub lane: u32,
    pub score: f32,
}

/// Returns true if a score is at least the limit, or if either of them is NaN.
pub(crate) fn reaches(score: f32, limit: f32) -> bool {
    !matches!(score.partial_cmp(&limit), Some(std::cmp::Ordering::Less))
}

/// The largest number of lanes in a panel.
pub(crate) const LANES_MAX: usize = 32;
/// The largest number of rows in a tile.
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
    /// All instruction sets for this architecture, from the slowest to the fastest.
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

    /// Returns the fastest instruction set that this processor has.
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

/// Some rows, and a panel of queries with which they are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a, P> {
    /// The elements of the rows. Each row has `stride` elements.
    pub rows: &'a [P],
    pub stride: usize,
    /// The elements of the queries. They are ordered by dimension, and for each dimension by lane. For integers, they
    /// are ordered by pairs of dimensions instead.
    pub panel: &'a [P],
    /// The scale of each row. The length of this slice is the number of rows.
    pub scales: &'a [f32],
    /// The shift of each row. The length of this slice is the number of rows.
    pub shifts: &'a [f32],
    /// The limit of each lane. The length of this slice is the number of lanes, which fill one or two registers.
    pub limits: &'a [f32],
}

impl<P> Tile<'_, P> {
    /// Checks the lengths of all slices. The tiles that load without bounds checks rely on these lengths.
    fn check(&self, instructions: Instructions) {
        let (count, lanes) = (self.scales.len(), self.limits.len());
        assert!((1..=ROWS_MAX).contains(&count) && self.shifts.len() == count, "{count} rows");
        assert!(self.rows.len() == count * self.stride, "rows of {} elements", self.stride);
        assert!(self.panel.len() == self.stride * lanes, "a panel of {lanes} lanes");
        let width = instructions.width();
        assert!(lanes == width || lanes == 2 * width, "{lanes} lanes");
    }

    /// Returns a tile with only `count` of the rows, from row `first` on.
    fn part(&self, first: usize, count: usize) -> Self {
        let range = first..first + count;
        Tile {
            rows: &self.rows[first * self.stride..range.end * self.stride],
            scales: &self.scales[range.clone()],
            shifts: &self.shifts[range],
            ..*self
        }
    }

    /// Splits the rows into groups of 12, 6, 4 or 1 rows. For each group, calls `each` with the number of the first
    /// row, and with a tile that has only the rows of the group. No group has more than `most` rows.
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

/// An element type of vectors. [`Tiled::Lane`] is the type of its elements in tiles.
pub(crate) trait Tiled: Measured + Copy + Sync + 'static {
    /// The type of an element in tiles.
    type Lane: Copy + Default + Send + Sync + std::fmt::Debug;
    const IS_INTEGER: bool;

    /// Returns the bytes of whole rows as elements.
    fn rows(bytes: &[u8]) -> &[Self];

    /// Returns how many elements a row has in tiles. If the dimensions are padded, this number is larger than the
    /// number of dimensions.
    fn stride(dimensions: usize) -> usize;

    /// Returns the elements of rows as elements of tiles. The result is either `rows` itself, or the converted elements
    /// in `scratch`.
    fn widen<'a>(rows: &'a [Self], dimensions: usize, scratch: &'a mut Vec<Self::Lane>) -> &'a [Self::Lane];

    /// Converts an element of a query, in the form in which products use it (q*), to an element of tiles.
    fn star(value: f64) -> Self::Lane;

    /// Returns the numerical value of an element of tiles.
    fn lane_value(lane: Self::Lane) -> f64;

    /// Returns the numerical value of the element.
    fn value(self) -> f64;

    /// For each row, appends one sum over all dimensions of the row and of `other` to `out`. The length of `other` is
    /// the number of dimensions. A sum of integers is exact until it is rounded once to f32.
    fn row_sums(
        instructions: Instructions,
        sum: RowSum,
        rows: &[Self],
        other: &[Self::Lane],
        out: &mut Vec<f32>,
    );

    /// Returns the index of the element for a dimension and a lane. The index is that in a panel of `lanes` lanes.
    fn place(dimension: usize, lane: usize, lanes: usize) -> usize;

    /// Appends the hits of a tile to `hits`.
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
            // SAFETY: an instruction set is selected only if the processor has it.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { x86::float_sums_avx2(sum, rows, other, out) },
            // SAFETY: an instruction set is selected only if the processor has it.
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

/// Implements [`Tiled`] for bytes. In tiles, bytes are widened to 16 bits, and the two elements of a pair of dimensions
/// are adjacent.
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
                    // SAFETY: an instruction set is selected only if the processor has it.
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx2 => unsafe { x86::$avx2(sum, rows, other, out) },
                    // SAFETY: an instruction set is selected only if the processor has it.
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
