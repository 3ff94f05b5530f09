//! Tiles with AVX2 and FMA, and with AVX-512.
//!
//! Each function is generic over V, which is the number of registers of lanes. V is one or two. A macro defines one
//! function for each number of rows. The macro writes a statement for each row, because an array stays in registers
//! only if its indices are literals. The compiler does not always unroll a loop over rows. It does not unroll such a
//! loop in the profile of the tests.

use std::arch::x86_64::*;

use super::{Hit, RowSum, Tile, rows};
use crate::filter::CHUNK;

#[target_feature(enable = "avx2,fma")]
pub(super) fn float_sums_avx2(sum: RowSum, rows: &[f32], other: &[f32], out: &mut Vec<f32>) {
    rows::float_sums(sum, rows, other, out);
}

#[target_feature(enable = "avx512f")]
pub(super) fn float_sums_avx512(sum: RowSum, rows: &[f32], other: &[f32], out: &mut Vec<f32>) {
    rows::float_sums(sum, rows, other, out);
}

/// Defines a function that computes the sums of rows of bytes. The bytes are widened to 16 bits, in registers of
/// `$width` elements.
macro_rules! byte_sums {
    (
        $name:ident, $element:ty, $features:literal, $width:literal,
        $load:ident, $widen:ident, $load_other:ident, $subtract:ident, $multiply:ident, $zero:ident, $reduce:ident
    ) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(sum: RowSum, rows: &[$element], other: &[i16], out: &mut Vec<f32>) {
            let whole = other.len() / $width * $width;
            for row in rows.chunks_exact(other.len()) {
                let mut sums = $zero();
                for first in (0..whole).step_by($width) {
                    // SAFETY: both slices have at least `whole` elements, and first + width <= whole.
                    let (x, y) = unsafe {
                        ($load(row.as_ptr().add(first).cast()), $load_other(other.as_ptr().add(first).cast()))
                    };
                    let x = $widen(x);
                    sums = match sum {
                        RowSum::Differences => {
                            let difference = $subtract(x, y);
                            $multiply(sums, difference, difference)
                        }
                        RowSum::Products => $multiply(sums, x, y),
                    };
                }
                let rest = rows::integer_sum(sum, &row[whole..], &other[whole..]);
                out.push(($reduce(sums) + rest) as f32);
            }
        }
    };
}

macro_rules! byte_sums_avx2 {
    ($name:ident, $element:ty, $widen:ident) => {
        byte_sums!(
            $name,
            $element,
            "avx2,fma",
            16,
            _mm_loadu_si128,
            $widen,
            _mm256_loadu_si256,
            _mm256_sub_epi16,
            multiply_avx2,
            _mm256_setzero_si256,
            reduce_avx2
        );
    };
}

byte_sums_avx2!(unsigned_sums_avx2, u8, _mm256_cvtepu8_epi16);
byte_sums_avx2!(signed_sums_avx2, i8, _mm256_cvtepi8_epi16);

macro_rules! byte_sums_avx512 {
    ($name:ident, $element:ty, $widen:ident) => {
        byte_sums!(
            $name,
            $element,
            "avx512f,avx512bw,avx512vnni",
            32,
            _mm256_loadu_si256,
            $widen,
            _mm512_loadu_si512,
            _mm512_sub_epi16,
            _mm512_dpwssd_epi32,
            _mm512_setzero_si512,
            _mm512_reduce_add_epi32
        );
    };
}

byte_sums_avx512!(unsigned_sums_avx512, u8, _mm512_cvtepu8_epi16);
byte_sums_avx512!(signed_sums_avx512, i8, _mm512_cvtepi8_epi16);

/// Returns the sum of the eight elements of a register.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce_avx2(sums: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(two) + _mm_extract_epi32::<1>(two)
}

/// Appends the hits of a register of scores. Bit i of `mask` is set if lane i has a hit.
#[cold]
#[inline(never)]
fn push(row: usize, first_lane: usize, scores: &[f32], mut mask: u32, hits: &mut Vec<Hit>) {
    while mask != 0 {
        let lane = mask.trailing_zeros() as usize;
        hits.push(Hit { row: row as u32, lane: (first_lane + lane) as u32, score: scores[lane] });
        mask &= mask - 1;
    }
}

/// Defines a function that splits a tile into groups of rows. For each group, it calls the function for this number of
/// rows. `$most_of_two` is the number of rows in the largest group whose sums fit into the registers if there are two
/// registers of lanes.
macro_rules! by_rows {
    ($name:ident, $lane:ty, $width:expr, $most_of_two:expr, $twelve:ident, $six:ident, $four:ident, $one:ident) => {
        pub(super) fn $name(tile: &Tile<'_, $lane>, hits: &mut Vec<Hit>) {
            let is_single = tile.limits.len() == $width;
            let most = if is_single { 12 } else { $most_of_two };
            tile.groups(most, |first, tile| {
                // SAFETY: the caller checked that the processor has the instructions, and checked the lengths of the
                // slices (`Tile::check`). `groups` cuts all slices at the same rows, and each function gets the number
                // of rows in its name.
                unsafe {
                    match (tile.scales.len(), is_single) {
                        (12, true) => $twelve::<1>(&tile, first, hits),
                        (12, false) => $twelve::<2>(&tile, first, hits),
                        (6, true) => $six::<1>(&tile, first, hits),
                        (6, false) => $six::<2>(&tile, first, hits),
                        (4, true) => $four::<1>(&tile, first, hits),
                        (4, false) => $four::<2>(&tile, first, hits),
                        (1, true) => $one::<1>(&tile, first, hits),
                        (1, false) => $one::<2>(&tile, first, hits),
                        (count, _) => unreachable!("a group of {count} rows"),
                    }
                }
            });
        }
    };
}

by_rows!(float_hits_avx2, f32, 8, 6, float_avx2_12, float_avx2_6, float_avx2_4, float_avx2_1);
by_rows!(integer_hits_avx2, i16, 8, 6, integer_avx2_12, integer_avx2_6, integer_avx2_4, integer_avx2_1);
by_rows!(float_hits_avx512, f32, 16, 12, float_avx512_12, float_avx512_6, float_avx512_4, float_avx512_1);
by_rows!(
    integer_hits_avx512,
    i16,
    16,
    12,
    integer_avx512_12,
    integer_avx512_6,
    integer_avx512_4,
    integer_avx512_1
);

/// Defines a function that computes the products of some rows of floats with the queries in V registers of lanes.
macro_rules! float_tile {
    (
        $name:ident, $features:literal, $width:literal, $count:literal, [$($row:literal)*],
        $zero:ident, $load:ident, $set:ident, $multiply:ident, $add:ident, $compare:ident
    ) => {
        /// # Safety
        /// The tile must have the number of rows in the function's name. Each row has `stride` elements, and the panel
        /// has `stride` elements for each lane of V registers.
        #[target_feature(enable = $features)]
        unsafe fn $name<const V: usize>(tile: &Tile<'_, f32>, first: usize, hits: &mut Vec<Hit>) {
            let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
            let mut totals = [[$zero(); V]; $count];
            let mut start = 0;
            while start < stride {
                let end = stride.min(start + CHUNK);
                let mut sums = [[$zero(); V]; $count];
                for dimension in start..end {
                    // SAFETY: dimension < stride and V - 1 < V, so all reads are inside the rows and the panel.
                    unsafe {
                        let queries = panel.add(dimension * V * $width);
                        let first = $load(queries);
                        let last = $load(queries.add((V - 1) * $width));
                        $(
                            let x = $set(*rows.add($row * stride + dimension));
                            sums[$row][0] = $multiply(x, first, sums[$row][0]);
                            if V == 2 {
                                sums[$row][V - 1] = $multiply(x, last, sums[$row][V - 1]);
                            }
                        )*
                    }
                }
                $(
                    totals[$row][0] = $add(totals[$row][0], sums[$row][0]);
                    if V == 2 {
                        totals[$row][V - 1] = $add(totals[$row][V - 1], sums[$row][V - 1]);
                    }
                )*
                start = end;
            }
            $compare(tile, &totals, first, hits);
        }
    };
}

/// Defines a function that computes the products of some rows of integers with the queries in V registers of lanes.
/// Each step processes two dimensions.
macro_rules! integer_tile {
    (
        $name:ident, $features:literal, $width:literal, $count:literal, [$($row:literal)*],
        $zero:ident, $load:ident, $set:ident, $multiply:ident, $zero_float:ident, $convert:ident, $compare:ident
    ) => {
        /// # Safety
        /// The tile must have the number of rows in the function's name. Each row has `stride` elements, and the panel
        /// has `stride` elements for each lane of V registers. The stride must be even.
        #[target_feature(enable = $features)]
        unsafe fn $name<const V: usize>(tile: &Tile<'_, i16>, first: usize, hits: &mut Vec<Hit>) {
            let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
            let mut sums = [[$zero(); V]; $count];
            for pair in 0..stride / 2 {
                // SAFETY: 2 * pair + 1 < stride and V - 1 < V, so all reads are inside the rows and the panel.
                unsafe {
                    let queries = panel.add(pair * V * 2 * $width);
                    let first = $load(queries.cast());
                    let last = $load(queries.add((V - 1) * 2 * $width).cast());
                    $(
                        let x = $set(rows.add($row * stride + 2 * pair).cast::<i32>().read_unaligned());
                        sums[$row][0] = $multiply(sums[$row][0], x, first);
                        if V == 2 {
                            sums[$row][V - 1] = $multiply(sums[$row][V - 1], x, last);
                        }
                    )*
                }
            }
            let mut products = [[$zero_float(); V]; $count];
            $(
                products[$row][0] = $convert(sums[$row][0]);
                if V == 2 {
                    products[$row][V - 1] = $convert(sums[$row][V - 1]);
                }
            )*
            $compare(tile, &products, first, hits);
        }
    };
}

macro_rules! float_avx2 {
    ($name:ident, $count:literal, $rows:tt) => {
        float_tile!(
            $name,
            "avx2,fma",
            8,
            $count,
            $rows,
            _mm256_setzero_ps,
            _mm256_loadu_ps,
            _mm256_set1_ps,
            _mm256_fmadd_ps,
            _mm256_add_ps,
            compare_avx2
        );
    };
}

float_avx2!(float_avx2_12, 12, [0 1 2 3 4 5 6 7 8 9 10 11]);
float_avx2!(float_avx2_6, 6, [0 1 2 3 4 5]);
float_avx2!(float_avx2_4, 4, [0 1 2 3]);
float_avx2!(float_avx2_1, 1, [0]);

macro_rules! integer_avx2 {
    ($name:ident, $count:literal, $rows:tt) => {
        integer_tile!(
            $name,
            "avx2,fma",
            8,
            $count,
            $rows,
            _mm256_setzero_si256,
            _mm256_loadu_si256,
            _mm256_set1_epi32,
            multiply_avx2,
            _mm256_setzero_ps,
            _mm256_cvtepi32_ps,
            compare_avx2
        );
    };
}

integer_avx2!(integer_avx2_12, 12, [0 1 2 3 4 5 6 7 8 9 10 11]);
integer_avx2!(integer_avx2_6, 6, [0 1 2 3 4 5]);
integer_avx2!(integer_avx2_4, 4, [0 1 2 3]);
integer_avx2!(integer_avx2_1, 1, [0]);

macro_rules! float_avx512 {
    ($name:ident, $count:literal, $rows:tt) => {
        float_tile!(
            $name,
            "avx512f",
            16,
            $count,
            $rows,
            _mm512_setzero_ps,
            _mm512_loadu_ps,
            _mm512_set1_ps,
            _mm512_fmadd_ps,
            _mm512_add_ps,
            compare_avx512
        );
    };
}

float_avx512!(float_avx512_12, 12, [0 1 2 3 4 5 6 7 8 9 10 11]);
float_avx512!(float_avx512_6, 6, [0 1 2 3 4 5]);
float_avx512!(float_avx512_4, 4, [0 1 2 3]);
float_avx512!(float_avx512_1, 1, [0]);

macro_rules! integer_avx512 {
    ($name:ident, $count:literal, $rows:tt) => {
        integer_tile!(
            $name,
            "avx512f,avx512bw,avx512vnni",
            16,
            $count,
            $rows,
            _mm512_setzero_si512,
            _mm512_loadu_si512,
            _mm512_set1_epi32,
            _mm512_dpwssd_epi32,
            _mm512_setzero_ps,
            _mm512_cvtepi32_ps,
            compare_avx512
        );
    };
}

integer_avx512!(integer_avx512_12, 12, [0 1 2 3 4 5 6 7 8 9 10 11]);
integer_avx512!(integer_avx512_6, 6, [0 1 2 3 4 5]);
integer_avx512!(integer_avx512_4, 4, [0 1 2 3]);
integer_avx512!(integer_avx512_1, 1, [0]);

/// Adds the products of pairs of 16-bit integers to 32-bit sums, as `_mm512_dpwssd_epi32` does.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn multiply_avx2(sums: __m256i, x: __m256i, queries: __m256i) -> __m256i {
    _mm256_add_epi32(sums, _mm256_madd_epi16(x, queries))
}

/// Computes the scores of a group of rows, and appends the pairs that reach their limits to `hits`.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn compare_avx2<const R: usize, const V: usize, P>(
    tile: &Tile<'_, P>,
    products: &[[__m256; V]; R],
    first: usize,
    hits: &mut Vec<Hit>,
) {
    for (row, products) in products.iter().enumerate() {
        let (scale, shift) = (_mm256_set1_ps(tile.scales[row]), _mm256_set1_ps(tile.shifts[row]));
        for (register, &product) in products.iter().enumerate() {
            let scores = _mm256_fmsub_ps(product, scale, shift);
            let limits = &tile.limits[register * 8..][..8];
            // SAFETY: the slice has eight limits.
            let limits = unsafe { _mm256_loadu_ps(limits.as_ptr()) };
            // A bit of the mask is set if the score is not less than the limit, or if one of them is NaN.
            let mask = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(scores, limits));
            if mask != 0 {
                let mut out = [0.0; 8];
                // SAFETY: the array has room for eight scores.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), scores) };
                push(first + row, register * 8, &out, mask as u32, hits);
            }
        }
    }
}

/// Computes the scores of a group of rows, and appends the pairs that reach their limits to `hits`.
#[target_feature(enable = "avx512f")]
#[inline]
fn compare_avx512<const R: usize, const V: usize, P>(
    tile: &Tile<'_, P>,
    products: &[[__m512; V]; R],
    first: usize,
    hits: &mut Vec<Hit>,
) {
    for (row, products) in products.iter().enumerate() {
        let (scale, shift) = (_mm512_set1_ps(tile.scales[row]), _mm512_set1_ps(tile.shifts[row]));
        for (register, &product) in products.iter().enumerate() {
            let scores = _mm512_fmsub_ps(product, scale, shift);
            let limits = &tile.limits[register * 16..][..16];
            // SAFETY: the slice has sixteen limits.
            let limits = unsafe { _mm512_loadu_ps(limits.as_ptr()) };
            // A bit of the mask is set if the score is not less than the limit, or if one of them is NaN.
            let mask = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(scores, limits);
            if mask != 0 {
                let mut out = [0.0; 16];
                // SAFETY: the array has room for sixteen scores.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), scores) };
                push(first + row, register * 16, &out, mask.into(), hits);
            }
        }
    }
}
