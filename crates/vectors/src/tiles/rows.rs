//! Computes sums over the dimensions of each row. The sums are norms, or the scores of a few queries.
//!
//! A [`Tile`](super::Tile) needs a register of lanes for its queries, and most lanes are empty if there are few
//! queries. In this module a lane of a register is a dimension. The rows are read from memory once for each query, and
//! the bandwidth of the memory limits the speed. (For a query with 128 dimensions of f32, a row takes 8 loads instead
//! of 128 broadcasts.)

/// The sum over the dimensions of a row x and another vector y.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowSum {
    /// The sum of (x - y)².
    Differences,
    /// The sum of x y.
    Products,
}

/// The number of lanes in a sum of floats. Two registers of AVX-512 have this number of lanes, so that the additions to
/// the two registers overlap.
const LANES: usize = 32;

/// Returns the sum of `term` over all dimensions. If there are d dimensions, each term is rounded at most d / 32 + 9
/// times.
#[inline(always)]
pub(super) fn float_sum(row: &[f32], other: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (xs, x_rest) = row.as_chunks::<LANES>();
    let (ys, y_rest) = other.as_chunks::<LANES>();
    for (xs, ys) in xs.iter().zip(ys) {
        for lane in 0..LANES {
            sums[lane] += term(xs[lane], ys[lane]);
        }
    }
    for (sum, (&x, &y)) in sums.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *sum += term(x, y);
    }
    let sums: [f32; 16] = std::array::from_fn(|lane| sums[lane] + sums[lane + 16]);
    let sums: [f32; 8] = std::array::from_fn(|lane| sums[lane] + sums[lane + 8]);
    let sums: [f32; 4] = std::array::from_fn(|lane| sums[lane] + sums[lane + 4]);
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// Appends the sum of each row and `other`. Each row has as many dimensions as `other`.
///
/// The rows are visited by a loop and not by an iterator that `Vec::extend` consumes. The compiler makes the latter a
/// function of its own, which does not have the instructions of the caller.
#[inline(always)]
pub(super) fn float_sums(sum: RowSum, rows: &[f32], other: &[f32], out: &mut Vec<f32>) {
    let rows = rows.chunks_exact(other.len());
    out.reserve(rows.len());
    match sum {
        RowSum::Differences => {
            for row in rows {
                out.push(float_sum(row, other, |x, y| (x - y) * (x - y)));
            }
        }
        RowSum::Products => {
            for row in rows {
                out.push(float_sum(row, other, |x, y| x * y));
            }
        }
    }
}

/// Returns the sum of a row of bytes and `other`. The result is exact, because the sum fits into 31 bits (see
/// [`DIMENSIONS_MAX`](crate::DIMENSIONS_MAX)).
#[inline(always)]
pub(super) fn integer_sum<T: Copy + Into<i32>>(sum: RowSum, row: &[T], other: &[i16]) -> i32 {
    let pairs = row.iter().zip(other).map(|(&x, &y)| (x.into(), i32::from(y)));
    match sum {
        RowSum::Differences => pairs.map(|(x, y)| (x - y) * (x - y)).sum(),
        RowSum::Products => pairs.map(|(x, y)| x * y).sum(),
    }
}

/// Appends the sum of each row of bytes and `other`, rounded to f32.
pub(super) fn integer_sums<T: Copy + Into<i32>>(sum: RowSum, rows: &[T], other: &[i16], out: &mut Vec<f32>) {
    out.extend(rows.chunks_exact(other.len()).map(|row| integer_sum(sum, row, other) as f32));
}
