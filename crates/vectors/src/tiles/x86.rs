//! Tiles with AVX2 and FMA, and with AVX-512.
//!
//! Each function is generic over the rows R and the registers of lanes V; the loops over both are unrolled, so that
//! all R x V sums stay in registers.
#![allow(clippy::needless_range_loop, reason = "rows and registers count through several arrays")]

use std::arch::x86_64::*;

use super::{Hit, Tile, portable};
use crate::filter::CHUNK;

#[target_feature(enable = "avx2,fma")]
pub(super) fn squares_avx2(row: &[f32], center: &[f32]) -> f32 {
    portable::squares(row, center)
}

#[target_feature(enable = "avx512f")]
pub(super) fn squares_avx512(row: &[f32], center: &[f32]) -> f32 {
    portable::squares(row, center)
}

/// Adds the hits of a register of scores.
#[cold]
#[inline(never)]
fn push(row: usize, first_lane: usize, scores: &[f32], mut mask: u32, hits: &mut Vec<Hit>) {
    while mask != 0 {
        let lane = mask.trailing_zeros() as usize;
        hits.push(Hit { row: row as u32, lane: (first_lane + lane) as u32, score: scores[lane] });
        mask &= mask - 1;
    }
}

/// Defines a function that calls `$tile` for groups of rows, with as many sums as there are registers.
macro_rules! by_rows {
    ($name:ident, $tile:ident, $lane:ty, $width:expr, $most_of_two:expr) => {
        pub(super) fn $name(tile: &Tile<'_, $lane>, hits: &mut Vec<Hit>) {
            let is_single = tile.limits.len() == $width;
            let most = if is_single { 12 } else { $most_of_two };
            tile.groups(most, |first, tile| {
                // SAFETY: the caller checked that the processor has the instructions, and the lengths of the slices
                // (`Tile::check`); `groups` keeps them in step, with as many rows as R.
                unsafe {
                    match (tile.scales.len(), is_single) {
                        (12, true) => $tile::<12, 1>(&tile, first, hits),
                        (12, false) => $tile::<12, 2>(&tile, first, hits),
                        (6, true) => $tile::<6, 1>(&tile, first, hits),
                        (6, false) => $tile::<6, 2>(&tile, first, hits),
                        (4, true) => $tile::<4, 1>(&tile, first, hits),
                        (4, false) => $tile::<4, 2>(&tile, first, hits),
                        (1, true) => $tile::<1, 1>(&tile, first, hits),
                        (1, false) => $tile::<1, 2>(&tile, first, hits),
                        (count, _) => unreachable!("a group of {count} rows"),
                    }
                }
            });
        }
    };
}

by_rows!(float_hits_avx2, float_avx2, f32, 8, 6);
by_rows!(float_hits_avx512, float_avx512, f32, 16, 12);
by_rows!(integer_hits_avx2, integer_avx2, i16, 8, 6);
by_rows!(integer_hits_avx512, integer_avx512, i16, 16, 12);

/// Multiplies R rows with V registers of lanes.
///
/// # Safety
/// The tile has R rows of `stride` elements, a panel of `stride` times V * 8 elements, and V * 8 limits.
#[target_feature(enable = "avx2,fma")]
unsafe fn float_avx2<const R: usize, const V: usize>(
    tile: &Tile<'_, f32>,
    first: usize,
    hits: &mut Vec<Hit>,
) {
    let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
    let mut totals = [[_mm256_setzero_ps(); V]; R];
    let mut start = 0;
    while start < stride {
        let end = stride.min(start + CHUNK);
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        for dimension in start..end {
            // SAFETY: dimension < stride, row < R and register < V: in the rows and in the panel.
            unsafe {
                let mut queries = [_mm256_setzero_ps(); V];
                for register in 0..V {
                    queries[register] = _mm256_loadu_ps(panel.add((dimension * V + register) * 8));
                }
                for row in 0..R {
                    let x = _mm256_set1_ps(*rows.add(row * stride + dimension));
                    for register in 0..V {
                        sums[row][register] = _mm256_fmadd_ps(x, queries[register], sums[row][register]);
                    }
                }
            }
        }
        for row in 0..R {
            for register in 0..V {
                totals[row][register] = _mm256_add_ps(totals[row][register], sums[row][register]);
            }
        }
        start = end;
    }
    compare_avx2(tile, &totals, first, hits);
}

/// Compares scores with limits.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn compare_avx2<const R: usize, const V: usize, P>(
    tile: &Tile<'_, P>,
    products: &[[__m256; V]; R],
    first: usize,
    hits: &mut Vec<Hit>,
) {
    for row in 0..R {
        let (scale, shift) = (_mm256_set1_ps(tile.scales[row]), _mm256_set1_ps(tile.shifts[row]));
        for register in 0..V {
            let scores = _mm256_fmsub_ps(products[row][register], scale, shift);
            let limits = &tile.limits[register * 8..][..8];
            // SAFETY: eight limits.
            let limits = unsafe { _mm256_loadu_ps(limits.as_ptr()) };
            // Not less, or a NaN.
            let mask = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(scores, limits));
            if mask != 0 {
                let mut out = [0.0; 8];
                // SAFETY: room for eight scores.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), scores) };
                push(first + row, register * 8, &out, mask as u32, hits);
            }
        }
    }
}

/// Multiplies R rows with V registers of lanes, a pair of dimensions at once.
///
/// # Safety
/// As for `float_avx2`; the stride is even.
#[target_feature(enable = "avx2,fma")]
unsafe fn integer_avx2<const R: usize, const V: usize>(
    tile: &Tile<'_, i16>,
    first: usize,
    hits: &mut Vec<Hit>,
) {
    let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
    let mut sums = [[_mm256_setzero_si256(); V]; R];
    for pair in 0..stride / 2 {
        // SAFETY: 2 * pair + 1 < stride, row < R and register < V: in the rows and in the panel.
        unsafe {
            let mut queries = [_mm256_setzero_si256(); V];
            for register in 0..V {
                queries[register] = _mm256_loadu_si256(panel.add((pair * V + register) * 16).cast());
            }
            for row in 0..R {
                let x = rows.add(row * stride + 2 * pair).cast::<i32>().read_unaligned();
                let x = _mm256_set1_epi32(x);
                for register in 0..V {
                    let products = _mm256_madd_epi16(x, queries[register]);
                    sums[row][register] = _mm256_add_epi32(sums[row][register], products);
                }
            }
        }
    }
    let mut products = [[_mm256_setzero_ps(); V]; R];
    for row in 0..R {
        for register in 0..V {
            products[row][register] = _mm256_cvtepi32_ps(sums[row][register]);
        }
    }
    compare_avx2(tile, &products, first, hits);
}

/// Multiplies R rows with V registers of lanes.
///
/// # Safety
/// The tile has R rows of `stride` elements, a panel of `stride` times V * 16 elements, and V * 16 limits.
#[target_feature(enable = "avx512f")]
unsafe fn float_avx512<const R: usize, const V: usize>(
    tile: &Tile<'_, f32>,
    first: usize,
    hits: &mut Vec<Hit>,
) {
    let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
    let mut totals = [[_mm512_setzero_ps(); V]; R];
    let mut start = 0;
    while start < stride {
        let end = stride.min(start + CHUNK);
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        for dimension in start..end {
            // SAFETY: dimension < stride, row < R and register < V: in the rows and in the panel.
            unsafe {
                let mut queries = [_mm512_setzero_ps(); V];
                for register in 0..V {
                    queries[register] = _mm512_loadu_ps(panel.add((dimension * V + register) * 16));
                }
                for row in 0..R {
                    let x = _mm512_set1_ps(*rows.add(row * stride + dimension));
                    for register in 0..V {
                        sums[row][register] = _mm512_fmadd_ps(x, queries[register], sums[row][register]);
                    }
                }
            }
        }
        for row in 0..R {
            for register in 0..V {
                totals[row][register] = _mm512_add_ps(totals[row][register], sums[row][register]);
            }
        }
        start = end;
    }
    compare_avx512(tile, &totals, first, hits);
}

/// Compares scores with limits.
#[target_feature(enable = "avx512f")]
#[inline]
fn compare_avx512<const R: usize, const V: usize, P>(
    tile: &Tile<'_, P>,
    products: &[[__m512; V]; R],
    first: usize,
    hits: &mut Vec<Hit>,
) {
    for row in 0..R {
        let (scale, shift) = (_mm512_set1_ps(tile.scales[row]), _mm512_set1_ps(tile.shifts[row]));
        for register in 0..V {
            let scores = _mm512_fmsub_ps(products[row][register], scale, shift);
            let limits = &tile.limits[register * 16..][..16];
            // SAFETY: sixteen limits.
            let limits = unsafe { _mm512_loadu_ps(limits.as_ptr()) };
            // Not less, or a NaN.
            let mask = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(scores, limits);
            if mask != 0 {
                let mut out = [0.0; 16];
                // SAFETY: room for sixteen scores.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), scores) };
                push(first + row, register * 16, &out, mask.into(), hits);
            }
        }
    }
}

/// Multiplies R rows with V registers of lanes, a pair of dimensions at once.
///
/// # Safety
/// As for `float_avx512`; the stride is even.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn integer_avx512<const R: usize, const V: usize>(
    tile: &Tile<'_, i16>,
    first: usize,
    hits: &mut Vec<Hit>,
) {
    let (rows, panel, stride) = (tile.rows.as_ptr(), tile.panel.as_ptr(), tile.stride);
    let mut sums = [[_mm512_setzero_si512(); V]; R];
    for pair in 0..stride / 2 {
        // SAFETY: 2 * pair + 1 < stride, row < R and register < V: in the rows and in the panel.
        unsafe {
            let mut queries = [_mm512_setzero_si512(); V];
            for register in 0..V {
                queries[register] = _mm512_loadu_si512(panel.add((pair * V + register) * 32).cast());
            }
            for row in 0..R {
                let x = rows.add(row * stride + 2 * pair).cast::<i32>().read_unaligned();
                let x = _mm512_set1_epi32(x);
                for register in 0..V {
                    sums[row][register] = _mm512_dpwssd_epi32(sums[row][register], x, queries[register]);
                }
            }
        }
    }
    let mut products = [[_mm512_setzero_ps(); V]; R];
    for row in 0..R {
        for register in 0..V {
            products[row][register] = _mm512_cvtepi32_ps(sums[row][register]);
        }
    }
    compare_avx512(tile, &products, first, hits);
}
