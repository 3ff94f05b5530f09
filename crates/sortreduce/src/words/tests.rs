//! Runs a table of inputs with every instruction set and with emulated vectors. The expected results are those of the
//! standard library's sort.

use proptest::prelude::*;

use super::{
    Instructions,
    emulated::Emulated,
    min_max, network, quick, ranges, sort, sort_parts, sort_spread,
    unique::{unique, unique_with},
    vector::Vector,
};

/// A sort function with its name.
type Sort = (String, Box<dyn Fn(&mut [u64])>);

/// Iterates over all instruction sets that this processor has.
fn here() -> impl Iterator<Item = Instructions> {
    Instructions::ALL.iter().copied().filter(|instructions| instructions.are_here())
}

fn sorts() -> Vec<Sort> {
    let mut sorts: Vec<Sort> = Vec::new();
    for instructions in here() {
        let sort = move |words: &mut [u64]| sort_parts(instructions, words, &[words.len() as u32]);
        sorts.push((format!("{instructions:?}"), Box::new(sort)));
    }
    sorts.push(("best".into(), Box::new(sort)));
    sorts.push((
        "spread".into(),
        Box::new(|words| {
            let (unsorted, (min, max)) = (words.to_vec(), min_max(words));
            sort_spread(&unsorted, words, &mut vec![7; ranges(words.len())], min.min(max), max);
        }),
    ));
    // SAFETY: emulated vectors need no special instructions.
    unsafe {
        sorts.push(("emulated 2".into(), Box::new(|words| quick::sort::<Emulated<u64, 2>>(words))));
        sorts.push(("emulated 4".into(), Box::new(|words| quick::sort::<Emulated<u64, 4>>(words))));
        sorts.push(("emulated 8".into(), Box::new(|words| quick::sort::<Emulated<u64, 8>>(words))));
    }
    sorts
}

fn check(words: &[u64], what: &str) {
    let mut expected = words.to_vec();
    expected.sort_unstable();
    for (name, sort) in sorts() {
        // The words before and after the sorted words must not change.
        let mut got = [&[3][..], words, &[2, 1]].concat();
        let end = 1 + words.len();
        sort(&mut got[1..end]);
        assert_eq!(&got[1..end], expected, "{what}, {} words, by {name}", words.len());
        assert_eq!((got[0], &got[end..]), (3, &[2, 1][..]), "{what}, {} words, by {name}", words.len());
    }
    check_unique(&expected, what);
}

fn check_unique(sorted: &[u64], what: &str) {
    let mut expected = sorted.to_vec();
    expected.dedup();
    let (min, max) = (sorted.first().copied(), sorted.last().copied());
    assert!(sorted.is_empty() || (min, max) == (Some(min_max(sorted).0), Some(min_max(sorted).1)), "{what}");
    let ways = here().map(|instructions| (format!("{instructions:?}"), Some(instructions)));
    for (name, instructions) in ways.chain([("emulated".to_string(), None)]) {
        let mut out = vec![7; sorted.len()];
        let count = match instructions {
            _ if sorted.is_empty() => 0,
            Some(instructions) => unique(instructions, sorted, &mut out),
            // SAFETY: emulated vectors need no special instructions.
            None => unsafe { unique_with::<Emulated<u64, 4>>(sorted, &mut out) },
        };
        assert_eq!(&out[..count], expected, "{what}, {} words, by {name}", sorted.len());
    }
}

fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
}

/// A distribution of words: its name, and a function of the index `i` and the number `count` of words, which returns
/// the word at index `i`.
type Distribution = (&'static str, fn(u64, u64) -> u64);

const DISTRIBUTIONS: &[Distribution] = &[
    ("random", |i, _| mix(i + 1)),
    ("ascending", |i, _| i),
    ("descending", |i, count| u64::MAX - (count - i)),
    ("organ pipe", |i, count| i.min(count - i)),
    ("saw teeth", |i, _| i % 17),
    ("zeros", |_, _| 0),
    ("largest", |_, _| u64::MAX),
    ("both ends", |i, _| if mix(i + 7).is_multiple_of(2) { 0 } else { u64::MAX }),
    ("one zero", |i, count| if i == count / 2 { 0 } else { u64::MAX }),
    ("one largest", |i, count| if i == count / 3 { u64::MAX } else { 0 }),
    ("three", |i, _| mix(i + 3) % 3 + (1 << 63) - 1),
    ("few", |i, _| (mix(i) % 40) << 58),
    ("signs", |i, _| (1 << 63) ^ mix(i) >> 60),
    ("powers", |i, _| mix(i) >> (mix(!i) % 64)),
    ("almost ascending", |i, _| i ^ (mix(i) % 8)),
    ("packed", |i, _| (mix(i) % 1000) << 13 | i),
];

#[test]
fn every_small_size_of_every_distribution_is_sorted() {
    for (name, word) in DISTRIBUTIONS {
        for count in 0..=300 {
            check(&(0..count).map(|i| word(i, count)).collect::<Vec<_>>(), name);
        }
    }
}

#[test]
fn large_sizes_are_sorted() {
    for (name, word) in DISTRIBUTIONS {
        for count in [511, 512, 513, 1000, 4096, 5003, 30_011] {
            check(&(0..count).map(|i| word(i, count)).collect::<Vec<_>>(), name);
        }
    }
}

/// A network that sorts all sequences of zeros and ones sorts all sequences (Knuth, volume 3, section 5.3.4, theorem
/// Z). The networks of columns are tested with all sequences of zeros and ones. Complete networks have too many such
/// sequences, so they are tested with every number of ones at random positions.
#[test]
fn networks_sort_zeros_and_ones() {
    fn check_rows<const LANES: usize, const ROWS: usize>() {
        for seed in 0..20_000 {
            let ones = seed % (LANES * ROWS) as u64;
            let mut words: Vec<u64> = (0..(LANES * ROWS) as u64)
                .map(|i| u64::from(mix(seed << 8 | i) % ((LANES * ROWS) as u64) < ones))
                .collect();
            // SAFETY: emulated vectors need no special instructions, and `words` has `words.len()` words.
            unsafe { network::sort_words::<Emulated<u64, LANES>, ROWS>(words.as_mut_ptr(), words.len()) };
            assert!(words.is_sorted(), "{ROWS} rows of {LANES}, seed {seed}: {words:?}");
        }
    }
    check_rows::<2, 4>();
    check_rows::<2, 8>();
    check_rows::<2, 16>();
    check_rows::<4, 4>();
    check_rows::<4, 8>();
    check_rows::<8, 8>();
}

#[test]
fn columns_of_all_zeros_and_ones_are_sorted() {
    fn check_columns<const ROWS: usize>() {
        for first in (0..1u64 << ROWS).step_by(8) {
            let mut rows = std::array::from_fn::<_, ROWS, _>(|row| {
                Emulated([0, 1, 2, 3, 4, 5, 6, 7].map(|i| (first + i) >> row & 1))
            });
            network::sort_columns(&mut rows);
            for lane in 0..8 {
                assert!(rows.is_sorted_by_key(|row| row.0[lane]), "{ROWS} rows, input {first} + {lane}");
            }
        }
    }
    check_columns::<4>();
    check_columns::<8>();
    check_columns::<16>();
}

/// Compares every operation of `V` with the same operation of an emulated vector.
///
/// # Safety
/// The processor has the instructions of `V`.
unsafe fn check_vector<V: Vector<Word = u64>, const LANES: usize>() {
    let unload = |vector: V| {
        let mut words = [0; LANES];
        // SAFETY: there is room for all lanes.
        unsafe { vector.store(words.as_mut_ptr()) };
        Emulated(words)
    };
    let both = |(a, b): (V, V)| (unload(a), unload(b));
    assert_eq!(V::LANES, LANES);
    for seed in 0..2000 {
        let word = |i: usize| mix(seed * 100 + i as u64) >> (seed % 3 * 30) << (seed % 5 * 12);
        let (a, b) = (
            Emulated::<u64, LANES>(std::array::from_fn(word)),
            Emulated(std::array::from_fn(|i| word(i + 50))),
        );
        // SAFETY: the caller meets the function's safety conditions; the arrays have as many elements as `V` has lanes.
        unsafe {
            let (x, y, limit) = (V::load(a.0.as_ptr()), V::load(b.0.as_ptr()), V::splat(b.0[0]));
            assert_eq!((unload(x), unload(y)), (a, b));
            assert_eq!(unload(x.or(y)), a.or(b));
            assert_eq!(unload(x.flip().flip()), a);
            let (low, high) = x.flip().min_max(y.flip());
            assert_eq!((unload(low.flip()), unload(high.flip())), a.min_max(b));
            assert_eq!(x.flip().above(limit.flip()), a.above(Emulated::splat(b.0[0])));
            assert_eq!(x.flip().above(x.flip()), 0);
            for bits in 0..1 << LANES {
                assert_eq!(unload(x.split(bits)), a.split(bits), "{bits:b}");
            }
            for count in 0..=LANES {
                let mut words = [7; LANES];
                x.store_first(words.as_mut_ptr(), count);
                assert_eq!((&words[..count], &words[count..]), (&a.0[..count], &[7; LANES][count..]));
            }
            assert_eq!(both(x.exchange::<1>(y)), a.exchange::<1>(b));
            assert_eq!(unload(x.reverse::<2>()), a.reverse::<2>());
            assert_eq!(unload(x.choose::<1>(y)), a.choose::<1>(b));
            if LANES >= 4 {
                assert_eq!(both(x.exchange::<2>(y)), a.exchange::<2>(b));
                assert_eq!(unload(x.reverse::<4>()), a.reverse::<4>());
                assert_eq!(unload(x.choose::<2>(y)), a.choose::<2>(b));
            }
            if LANES >= 8 {
                assert_eq!(both(x.exchange::<4>(y)), a.exchange::<4>(b));
                assert_eq!(unload(x.reverse::<8>()), a.reverse::<8>());
                assert_eq!(unload(x.choose::<4>(y)), a.choose::<4>(b));
            }
        }
    }
}

#[test]
fn vectors_do_what_their_twins_do() {
    for instructions in here() {
        // SAFETY: this processor has the instruction set.
        unsafe {
            match instructions {
                Instructions::Portable => {}
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2 => check_vector::<super::avx2::Avx2U64, 4>(),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512 => check_vector::<super::avx512::Avx512U64, 8>(),
                #[cfg(target_arch = "aarch64")]
                Instructions::Neon => check_vector::<super::neon::NeonU64, 2>(),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_words_are_sorted(
        seeds in prop::collection::vec(any::<u64>(), 0..3000),
        bits in 0u32..64,
        base in any::<u64>(),
    ) {
        // Depending on `bits`, the words are all equal, all different, or partly equal.
        check(&seeds.iter().map(|seed| (seed >> bits).wrapping_add(base)).collect::<Vec<_>>(), "any");
    }
}
