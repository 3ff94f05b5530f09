//! Computes Hamming and Jaccard distances, which are derived from counts over the dimensions.
//!
//! A count is exact, so no filter is needed. The key of each pair is computed, and compared with the k-th best key.
//! With AVX-512, a count over 8,192 bytes takes 128 loads, 128 exclusive ors and 128 population counts. The bandwidth
//! of the caches therefore limits the speed. A block of rows that fits into the cache is compared with one query after
//! the other.

use crate::{Metric, tiles::Instructions};

/// The quantity that is counted for a pair of vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Count {
    /// The number of bits that differ.
    Bits,
    /// The number of bytes that differ.
    Bytes,
    /// The number of bits that are set in both vectors, divided by the number of bits that are set in at least one of
    /// them.
    Shared,
}

impl Count {
    /// Returns the count that a metric needs. Returns `None` for a metric that is not a count.
    pub fn of(metric: Metric, is_bits: bool) -> Option<Count> {
        match metric {
            Metric::Hamming if is_bits => Some(Count::Bits),
            Metric::Hamming => Some(Count::Bytes),
            Metric::Jaccard => Some(Count::Shared),
            Metric::L2 | Metric::Ip | Metric::Cosine => None,
        }
    }

    /// For each row, appends the key of the pair of the query and the row to `out`. Each row has the length of the
    /// query.
    pub fn keys(self, instructions: Instructions, query: &[u8], rows: &[u8], out: &mut Vec<f64>) {
        match instructions {
            Instructions::Portable => keys(self, query, rows, out),
            // SAFETY: an instruction set is selected only if the processor has it, and AVX2 implies POPCNT.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { keys_avx2(self, query, rows, out) },
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 if is_x86_feature_detected!("avx512vpopcntdq") => {
                // SAFETY: the processor has AVX-512 (F, BW) and VPOPCNTDQ.
                unsafe { keys_avx512(self, query, rows, out) }
            }
            // SAFETY: a processor with AVX-512 has AVX2.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { keys_avx2(self, query, rows, out) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn keys_avx2(count: Count, query: &[u8], rows: &[u8], out: &mut Vec<f64>) {
    keys(count, query, rows, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vpopcntdq,popcnt")]
fn keys_avx512(count: Count, query: &[u8], rows: &[u8], out: &mut Vec<f64>) {
    keys(count, query, rows, out);
}

/// The rows are visited by loops and not by iterators that `Vec::extend` and `Iterator::sum` consume. The compiler may
/// make the latter functions of their own, which do not have the instructions of the caller.
#[inline(always)]
fn keys(count: Count, query: &[u8], rows: &[u8], out: &mut Vec<f64>) {
    let rows = rows.chunks_exact(query.len());
    out.reserve(rows.len());
    match count {
        Count::Bits => {
            for row in rows {
                out.push(bits(query, row, |q, x| q ^ x) as f64);
            }
        }
        Count::Bytes => {
            for row in rows {
                out.push(different_bytes(query, row) as f64);
            }
        }
        Count::Shared => {
            for row in rows {
                out.push(jaccard_key(bits(query, row, |q, x| q & x), bits(query, row, |q, x| q | x)));
            }
        }
    }
}

/// Returns the negated similarity. Two empty sets count as equal. Counts are below 2^24, so equal fractions have equal
/// keys, and different fractions have different keys.
#[inline(always)]
fn jaccard_key(shared: u64, all: u64) -> f64 {
    if all > 0 { -(shared as f64 / all as f64) + 0.0 } else { -1.0 }
}

/// Combines the query and a row with `combine`, and counts the bits that are set in the result.
#[inline(always)]
fn bits(query: &[u8], row: &[u8], combine: impl Fn(u64, u64) -> u64) -> u64 {
    let (qs, q_rest) = query.as_chunks::<8>();
    let (xs, x_rest) = row.as_chunks::<8>();
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let mut count = 0;
    for (q, x) in qs.iter().zip(xs) {
        count += u64::from(combine(word(q), word(x)).count_ones());
    }
    for (&q, &x) in q_rest.iter().zip(x_rest) {
        count += u64::from(combine(q.into(), x.into()).count_ones());
    }
    count
}

/// Counts the bytes in which the query and a row differ.
#[inline(always)]
fn different_bytes(query: &[u8], row: &[u8]) -> u64 {
    const LANES: usize = 64;
    // A lane of 8 bits can count up to 255, so the loop adds the lanes to the total after 255 bytes for each lane.
    let mut all = 0;
    for (query, row) in query.chunks(LANES * 255).zip(row.chunks(LANES * 255)) {
        let (qs, q_rest) = query.as_chunks::<LANES>();
        let (xs, x_rest) = row.as_chunks::<LANES>();
        let mut counts = [0u8; LANES];
        for (q, x) in qs.iter().zip(xs) {
            for lane in 0..LANES {
                counts[lane] += u8::from(q[lane] != x[lane]);
            }
        }
        for count in counts {
            all += u64::from(count);
        }
        for (q, x) in q_rest.iter().zip(x_rest) {
            all += u64::from(q != x);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_instructions_equal_naive_ones() {
        let mut state = 88_172_645_463_325_252u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // A third of the bytes has the same value, so that equal bytes are frequent.
            if state.is_multiple_of(3) { 7 } else { (state >> 32) as u8 }
        };
        for len in [1, 7, 8, 9, 63, 64, 65, 1000, 8192, 32_768] {
            let query: Vec<u8> = (0..len).map(|_| byte()).collect();
            let mut rows: Vec<u8> = (0..3 * len).map(|_| byte()).collect();
            rows[..len].copy_from_slice(&query);
            rows.extend(query.iter().map(|x| !x));
            rows.extend(vec![0; len]);
            let here = Instructions::ALL.iter().filter(|instructions| instructions.are_here());
            for &instructions in here {
                for count in [Count::Bits, Count::Bytes, Count::Shared] {
                    let mut found = Vec::new();
                    count.keys(instructions, &query, &rows, &mut found);
                    let expected = rows.chunks(len).map(|row| {
                        let bit = |bytes: &[u8], number: usize| bytes[number / 8] >> (number % 8) & 1;
                        let each = || (0..8 * len).map(|number| (bit(&query, number), bit(row, number)));
                        match count {
                            Count::Bits => each().filter(|(q, x)| q != x).count() as f64,
                            Count::Bytes => query.iter().zip(row).filter(|(q, x)| q != x).count() as f64,
                            Count::Shared => {
                                let both = each().filter(|&pair| pair == (1, 1)).count() as f64;
                                let any = each().filter(|&pair| pair != (0, 0)).count() as f64;
                                -both / any + 0.0
                            }
                        }
                    });
                    let expected: Vec<f64> = expected.collect();
                    assert_eq!(found, expected, "{instructions} {count:?} {len}");
                }
            }
        }
        let mut empty = Vec::new();
        Count::Shared.keys(Instructions::Portable, &[0, 0], &[0, 0, 1, 0], &mut empty);
        assert_eq!(empty, [-1.0, 0.0]);
    }
}
