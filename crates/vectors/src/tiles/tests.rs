use super::*;
use crate::filter::{BlockFacts, Filter, QueryFacts};
use crate::metric::Metric;

/// A generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 1000.0 - 10.0
    }
}

fn here() -> impl Iterator<Item = Instructions> {
    Instructions::ALL.iter().copied().filter(|instructions| instructions.are_here())
}

/// Runs a tile of `count` rows and `lanes` lanes, and returns the score of each pair. The limits are so low that each
/// pair is a hit.
fn scores<T: Tiled>(
    instructions: Instructions,
    (rows, count): (&[T], usize),
    queries: &[Vec<T>],
    lanes: usize,
    (scale, shift): (f32, f32),
) -> Vec<f32> {
    let dimensions = rows.len() / count;
    let stride = T::stride(dimensions);
    let mut panel = vec![T::Lane::default(); stride * lanes];
    for (lane, query) in queries.iter().enumerate() {
        for (dimension, q) in query.iter().enumerate() {
            panel[T::place(dimension, lane, lanes)] = T::star(q.value());
        }
    }
    let mut scratch = Vec::new();
    let rows = T::widen(rows, dimensions, &mut scratch);
    let (scales, shifts) = (vec![scale; count], vec![shift; count]);
    let tile = Tile {
        rows,
        stride,
        panel: &panel,
        scales: &scales,
        shifts: &shifts,
        limits: &vec![f32::NEG_INFINITY; lanes],
    };
    let mut hits = Vec::new();
    T::hits(instructions, &tile, &mut hits);
    let mut all = vec![f32::NAN; count * lanes];
    for hit in &hits {
        all[hit.row as usize * lanes + hit.lane as usize] = hit.score;
    }
    assert_eq!(hits.len(), count * lanes, "each pair once");
    all
}

#[test]
fn integer_tiles_of_all_instructions_are_exact() {
    let mut random = Random(88172645463325252);
    for instructions in here() {
        for dimensions in [1, 2, 3, 15, 16, 33, 130] {
            for count in 1..=ROWS_MAX {
                for lanes in [instructions.width(), 2 * instructions.width()] {
                    let bytes: Vec<u8> = (0..count * dimensions).map(|_| random.next() as u8).collect();
                    let queries: Vec<Vec<u8>> =
                        (0..lanes).map(|_| (0..dimensions).map(|_| random.next() as u8).collect()).collect();
                    let found = scores(instructions, (&bytes[..], count), &queries, lanes, (1.0, 0.0));
                    for (place, score) in found.into_iter().enumerate() {
                        let (row, query) = (&bytes[place / lanes * dimensions..], &queries[place % lanes]);
                        let product: i64 =
                            query.iter().zip(row).map(|(&q, &x)| i64::from(q) * i64::from(x)).sum();
                        assert_eq!(
                            score, product as f32,
                            "{instructions} {count} x {dimensions}, {lanes} lanes"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn float_tiles_of_all_instructions_are_within_the_bound() {
    let mut random = Random(362436069);
    for instructions in here() {
        for (dimensions, count) in [(1, 3), (5, 12), (16, 7), (100, 11), (513, 12), (1500, 5)] {
            for lanes in [instructions.width(), 2 * instructions.width()] {
                let rows: Vec<f32> = (0..count * dimensions).map(|_| random.float()).collect();
                let queries: Vec<Vec<f32>> =
                    (0..lanes).map(|_| (0..dimensions).map(|_| random.float()).collect()).collect();
                let found = scores(instructions, (&rows[..], count), &queries, lanes, (0.5, 3.0));
                for (place, score) in found.into_iter().enumerate() {
                    let (row, query) =
                        (&rows[place / lanes * dimensions..][..dimensions], &queries[place % lanes]);
                    let product: f64 =
                        query.iter().zip(row).map(|(&q, &x)| f64::from(q) * f64::from(x)).sum();
                    let size = f32::norm(query) * f32::norm(row) + 6.0;
                    let bound = 1e-7 * (dimensions.min(512) + 8) as f64 * size;
                    let error = (f64::from(score) - (product * 0.5 - 3.0)).abs();
                    assert!(error <= bound, "{instructions} {count} x {dimensions}: {error} of {bound}");
                }
            }
        }
    }
}

/// Returns the error of a sum over the dimensions, relative to the sum of the absolute values of its terms.
fn error_of(sum: RowSum, found: f32, row: &[f32], other: &[f32]) -> f64 {
    let pairs = || row.iter().zip(other).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    let (exact, size): (f64, f64) = match sum {
        RowSum::Differences => {
            let exact = pairs().map(|(x, y)| (x - y).powi(2)).sum();
            (exact, exact)
        }
        RowSum::Products => (pairs().map(|(x, y)| x * y).sum(), pairs().map(|(x, y)| (x * y).abs()).sum()),
    };
    (f64::from(found) - exact).abs() / size.max(f64::MIN_POSITIVE)
}

#[test]
fn sums_of_float_rows_are_within_the_bound() {
    let mut random = Random(795028841);
    for dimensions in [1, 2, 15, 16, 17, 31, 32, 33, 63, 128, 100, 1000] {
        let rows: Vec<f32> = (0..dimensions * 9).map(|_| 100.0 + random.float()).collect();
        let other: Vec<f32> = (0..dimensions).map(|_| 100.0 + random.float()).collect();
        for instructions in here() {
            for sum in [RowSum::Differences, RowSum::Products] {
                let mut found = vec![7.0];
                f32::row_sums(instructions, sum, &rows, &other, &mut found);
                assert_eq!((found.len(), found[0]), (10, 7.0), "sums are appended");
                for (found, row) in found[1..].iter().zip(rows.chunks(dimensions)) {
                    let error = error_of(sum, *found, row, &other);
                    let bound = (dimensions / 16 + 24) as f64 / (1u64 << 24) as f64;
                    assert!(error <= bound, "{instructions} {dimensions} {sum:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn sums_of_byte_rows_are_exact() {
    fn check<T: Tiled<Lane = i16> + Into<i32>>(instructions: Instructions, rows: &[T], other: &[i16]) {
        for sum in [RowSum::Differences, RowSum::Products] {
            let mut found = Vec::new();
            T::row_sums(instructions, sum, rows, other, &mut found);
            assert_eq!(found.len(), rows.len() / other.len());
            for (found, row) in found.iter().zip(rows.chunks(other.len())) {
                let pairs = row.iter().zip(other).map(|(&x, &y)| (x.into(), i32::from(y)));
                let exact: i32 =
                    pairs.map(|(x, y)| if sum == RowSum::Products { x * y } else { (x - y) * (x - y) }).sum();
                assert_eq!(*found, exact as f32, "{instructions} {} {sum:?}", other.len());
            }
        }
    }
    let mut random = Random(2654435769);
    for dimensions in [1, 15, 16, 17, 31, 32, 33, 100, 128, 32_768] {
        let mut bytes: Vec<u8> = (0..dimensions * 5).map(|_| random.next() as u8).collect();
        // The first row gives the largest sums.
        bytes[..dimensions].fill(255);
        let unsigned: Vec<i16> = (0..dimensions).map(|_| (random.next() % 256) as i16).collect();
        let signed: Vec<i16> = unsigned.iter().map(|x| x - 128).collect();
        let extremes: Vec<u8> = bytes.iter().map(|x| if *x < 128 { 128 } else { 127 }).collect();
        for instructions in here() {
            check(instructions, &bytes, &unsigned);
            check(instructions, &bytes, &vec![0; dimensions]);
            check(instructions, &bytes, &vec![255; dimensions]);
            check::<i8>(instructions, super::signed(&extremes), &vec![-128; dimensions]);
            check::<i8>(instructions, super::signed(&bytes), &signed);
        }
    }
}

#[test]
fn only_scores_below_the_limit_are_left_out() {
    for instructions in here() {
        let lanes = instructions.width();
        let rows = [1.0f32, f32::NAN];
        let panel: Vec<f32> = (0..lanes).map(|lane| lane as f32).collect();
        let tile = Tile {
            rows: &rows,
            stride: 1,
            panel: &panel,
            scales: &[1.0, 1.0],
            shifts: &[0.0, 0.0],
            limits: &vec![2.0; lanes],
        };
        let mut hits = Vec::new();
        f32::hits(instructions, &tile, &mut hits);
        let (of_first, of_second): (Vec<Hit>, Vec<Hit>) = hits.into_iter().partition(|hit| hit.row == 0);
        let lanes_of_first: Vec<u32> = of_first.iter().map(|hit| hit.lane).collect();
        // The hits of the first row are the scores from the limit on. Every NaN of the second row is a hit.
        assert_eq!(lanes_of_first, (2..lanes as u32).collect::<Vec<_>>());
        assert_eq!(of_second.len(), lanes);
    }
}

#[test]
fn a_filter_that_cannot_know_excludes_nothing() {
    let query = QueryFacts { norm: 1.0, star: 1.0, base: 0.5 };
    let block = BlockFacts { norm: 1.0, norm_min: 1.0, shift: 0.5 };
    let limit = |metric, query: QueryFacts, block: BlockFacts, bound| {
        Filter::new(metric, 128, 0.0, false).limit(&query, &block, bound)
    };
    assert!(limit(Metric::L2, query, block, 1.0).is_finite());
    for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
        assert_eq!(limit(metric, query, block, f64::INFINITY), f32::NEG_INFINITY);
        let large = BlockFacts { norm: 1e19, ..block };
        assert_eq!(limit(metric, query, large, 1.0), f32::NEG_INFINITY);
        assert_eq!(limit(metric, query, BlockFacts { norm: f64::NAN, ..block }, 1.0), f32::NEG_INFINITY);
        assert_eq!(limit(metric, QueryFacts { star: f64::INFINITY, ..query }, block, 1.0), f32::NEG_INFINITY);
    }
    let short = BlockFacts { norm_min: 1e-20, ..block };
    assert_eq!(limit(Metric::Cosine, query, short, 1.0), f32::NEG_INFINITY);
    assert!(limit(Metric::L2, query, short, 1.0).is_finite());
}
