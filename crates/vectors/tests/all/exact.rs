//! Tests of the exact search. Its answer must equal that of brute force for every budget, number of threads and
//! instruction set.

use inshore_vectors::{Element, Instructions, Kernel, Metric, Search, VectorFile, Vectors};

use crate::support::{Made, Random, Setup, brute_force};

pub const ELEMENTS: [Element; 6] =
    [Element::F32, Element::U8, Element::I8, Element::F16, Element::Bf16, Element::Bits];

pub fn metrics(element: Element) -> &'static [Metric] {
    match element {
        Element::Bits => &[Metric::Hamming, Metric::Jaccard],
        Element::U8 | Element::I8 => &[Metric::L2, Metric::Ip, Metric::Cosine, Metric::Hamming],
        _ => &[Metric::L2, Metric::Ip, Metric::Cosine],
    }
}

fn instructions() -> Vec<Instructions> {
    let mut all = vec![Instructions::Portable];
    #[cfg(target_arch = "x86_64")]
    {
        let best = Instructions::best();
        all.extend([Instructions::Avx2, Instructions::Avx512].into_iter().filter(|wanted| *wanted <= best));
    }
    all
}

/// Returns vectors, of which some are duplicates or zero vectors.
pub fn made(random: &mut Random, element: Element, dimensions: usize, count: usize) -> Made {
    let scale = 10f64.powi(random.below(5) as i32 - 2);
    let mut made = Made::new(element, dimensions, count, || match element {
        Element::F32 => scale * (random.normal() + 0.3),
        Element::U8 => random.below(256) as f64,
        Element::I8 => random.below(256) as f64 - 128.0,
        Element::F16 | Element::Bf16 => random.normal(),
        Element::Bits => random.below(2) as f64,
    });
    for _ in 0..count / 4 {
        let (from, to) = (random.below(count as u64) as usize, random.below(count as u64) as usize);
        let row = made.values[from * dimensions..][..dimensions].to_vec();
        made.values[to * dimensions..][..dimensions].copy_from_slice(&row);
    }
    if random.below(2) == 0 {
        let zero = random.below(count as u64) as usize;
        made.values[zero * dimensions..][..dimensions].fill(0.0);
    }
    made
}

#[test]
fn answers_equal_brute_force_for_any_elements_metric_shape_and_instructions() {
    let seed = std::env::var("INSHORE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let all = instructions();
    for round in 0..48 {
        let mut random = Random(seed + round);
        let setup = Setup::new();
        let element = ELEMENTS[(round % 6) as usize];
        let dimensions = [1, 2, 3, 7, 8, 16, 17, 31, 64, 100, 128, 515][random.below(12) as usize];
        let dimensions = if element == Element::Bits { 8 * dimensions } else { dimensions };
        let count = [1, 2, 5, 13, 200, 777][random.below(6) as usize];
        let queries = [1, 2, 8, 9, 16, 17, 33, 70][random.below(8) as usize];
        let vectors = made(&mut random, element, dimensions, count);
        let mut asked = made(&mut random, element, dimensions, queries);
        // Some queries are equal to vectors, so that distances of 0 occur.
        for query in 0..queries / 3 {
            let row = vectors.values[query % count * dimensions..][..dimensions].to_vec();
            asked.values[query * dimensions..][..dimensions].copy_from_slice(&row);
        }
        setup.import("v", &vectors);
        let file = setup.file("q", &asked);
        for &metric in metrics(element) {
            let k = [1, 3, 10, 1000][random.below(4) as usize];
            let mut options = Search { k, metric, ..Search::default() };
            let expected = brute_force(&vectors, &asked, &options);
            for (&instructions, kernel) in all.iter().flat_map(|i| [(i, Kernel::Tiles), (i, Kernel::Rows)]) {
                (options.instructions, options.kernel) = (Some(instructions), Some(kernel));
                let (rows, _) = setup.search("v", &file, &options, (16 << 20, 2));
                let what = format!(
                    "seed {}: {element} {count} x {dimensions}, {queries} queries, {options:?}",
                    seed + round
                );
                assert_eq!(rows, expected, "{what}");
            }
            // This radius is the exact distance of some neighbours.
            if let Some(&(.., distance)) = expected.get(expected.len() / 2) {
                options.radius = Some(f64::from(f32::from_bits(distance)));
                let expected = brute_force(&vectors, &asked, &options);
                let (rows, _) = setup.search("v", &file, &options, (16 << 20, 1));
                assert_eq!(rows, expected, "seed {}: radius {options:?}", seed + round);
            }
        }
    }
}

#[test]
fn answers_are_the_same_bits_for_every_budget_and_number_of_threads() {
    let mut random = Random(7);
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::U8, Metric::L2),
        (Element::F16, Metric::Cosine),
        (Element::Bits, Metric::Jaccard),
    ] {
        let setup = Setup::new();
        // The data has several MiB, so that each thread searches many blocks.
        let dimensions = if element == Element::Bits { 4096 } else { 96 };
        let queried = if element == Element::Bits { 60 } else { 600 };
        let vectors = made(
            &mut random,
            element,
            dimensions,
            if element == Element::F32 || element == Element::U8 { 20_000 } else { 8000 },
        );
        let queries = made(&mut random, element, dimensions, queried);
        setup.import("v", &vectors);
        let file = setup.file("q", &queries);
        let options = Search { k: 50, metric, ..Search::default() };
        let (expected, searched) = setup.search("v", &file, &options, (64 << 20, 2));
        assert_eq!(searched.plan.passes, 1);
        for (memory_bytes, threads) in
            [(1 << 20, 1), (2 << 20, 2), (3 << 20, 3), (16 << 20, 7), (256 << 20, 1)]
        {
            let (rows, searched) = setup.search("v", &file, &options, (memory_bytes, threads));
            assert_eq!(rows, expected, "{memory_bytes} bytes, {threads} threads");
            if queried == 600 {
                assert_eq!(searched.plan.passes > 1, memory_bytes == 1 << 20, "{}", searched.plan);
            }
        }
        if element == Element::Bits {
            continue;
        }
        // The answer would also be right without a filter, so the test checks that the filter excludes most pairs.
        let pairs = searched.vectors * searched.queries;
        assert!(searched.measured < pairs / 5, "{} of {pairs} pairs measured", searched.measured);
    }
}

#[test]
fn queries_of_other_elements_are_converted_if_that_is_exact() {
    let setup = Setup::new();
    let mut random = Random(3);
    let bytes = made(&mut random, Element::U8, 20, 100);
    setup.import("v", &bytes);
    let floats = Made { element: Element::F32, ..bytes.clone() };
    let options = Search::default();
    let (rows, _) = setup.search("v", &setup.file("q", &floats), &options, (16 << 20, 2));
    assert_eq!(rows, brute_force(&bytes, &bytes, &options));
    setup.import("w", &floats);
    let (rows, _) = setup.search("w", &setup.file("r", &bytes), &options, (16 << 20, 2));
    assert_eq!(rows, brute_force(&bytes, &bytes, &options));
}

#[test]
fn items_of_8192_bytes_are_compared_by_their_bits_and_by_their_bytes() {
    let setup = Setup::new();
    let mut random = Random(5);
    let bits = made(&mut random, Element::Bits, 65_536, 40);
    setup.import("bits", &bits);
    let options = Search { k: 7, metric: Metric::Hamming, ..Search::default() };
    let file = setup.file("q", &bits);
    let (rows, _) = setup.search("bits", &file, &options, (16 << 20, 2));
    assert_eq!(rows, brute_force(&bits, &bits, &options));
    // A file with the same bytes is read as a file of bytes, of which each bit is a dimension.
    let mut packed = bits.bytes();
    packed[4..8].copy_from_slice(&8192u32.to_le_bytes());
    let bytes = VectorFile::open(setup.write("bytes.u8bin", &packed)).unwrap().as_bits().unwrap();
    let (again, _) = setup.search("bits", &bytes, &options, (16 << 20, 1));
    assert_eq!(again, rows);
    let bytes = made(&mut random, Element::U8, 8192, 40);
    setup.import("bytes", &bytes);
    let (rows, _) = setup.search("bytes", &setup.file("r", &bytes), &options, (16 << 20, 2));
    assert_eq!(rows, brute_force(&bytes, &bytes, &options));
}

#[test]
fn metrics_and_elements_that_do_not_go_together_are_refused_by_name() {
    let setup = Setup::new();
    let mut random = Random(9);
    for element in ELEMENTS {
        let vectors = made(&mut random, element, 16, 10);
        let name = element.to_string();
        setup.import(&name, &vectors);
        let file = setup.file(&name, &vectors);
        let opened = Vectors::open(&setup.store, &name).unwrap();
        let job = setup.job(16 << 20, 1);
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine, Metric::Hamming, Metric::Jaccard] {
            let options = Search { metric, ..Search::default() };
            let planned = inshore_vectors::plan(&job, opened.info(), &file, &options);
            match metrics(element).contains(&metric) {
                true => drop(planned.unwrap()),
                false => {
                    let error = planned.unwrap_err().to_string();
                    let wanted = format!("metric is {}: expected ", metric.name());
                    assert!(error.starts_with(&wanted) && error.ends_with(&name), "{error}");
                }
            }
        }
    }
    let bytes = setup.file("bytes", &made(&mut random, Element::U8, 16, 2));
    let bits = Vectors::open(&setup.store, "bits").unwrap();
    let options = Search { metric: Metric::Hamming, ..Search::default() };
    let error = inshore_vectors::plan(&setup.job(16 << 20, 1), bits.info(), &bytes, &options).unwrap_err();
    assert!(error.to_string().ends_with("the elements: found u8, expected bits, as the vectors of bits"));
    let floats = setup.file("floats", &made(&mut random, Element::F32, 16, 2));
    let error = floats.as_bits().unwrap_err().to_string();
    assert!(error.ends_with("the elements: found f32, expected u8, of eight bits each"), "{error}");
}

#[test]
fn queries_among_16_bit_floats_may_be_any_f32() {
    let setup = Setup::new();
    let mut random = Random(21);
    let vectors = made(&mut random, Element::F16, 24, 300);
    setup.import("v", &vectors);
    let queries = made(&mut random, Element::F32, 24, 9);
    let options = Search::default();
    let (rows, _) = setup.search("v", &setup.file("q", &queries), &options, (16 << 20, 2));
    assert_eq!(rows, brute_force(&vectors, &queries, &options));
}
