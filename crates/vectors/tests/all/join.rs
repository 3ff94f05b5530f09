//! Tests of joins of a dataset with another dataset or with itself. The answers must equal those of brute force.

use std::time::{Duration, Instant};

use inshore_store::{Budget, Cancel};
use inshore_vectors::{Approximate, Element, Index, Instructions, Metric, Search, Strategy, plan, search};

use crate::{
    exact::{ELEMENTS, made, metrics},
    index::{EVERYTHING, ask, build, clustered},
    support::{Made, Random, Setup, brute_force},
};

#[test]
fn joins_equal_brute_force_for_any_elements_and_metric() {
    for (round, element) in ELEMENTS.into_iter().enumerate() {
        let mut random = Random(100 + round as u64);
        let setup = Setup::new();
        // Rows have 257 bytes or elements, so that some rows are split between two reads.
        let dimensions = if element == Element::Bits { 8 * 257 } else { 257 };
        let (a, b) =
            (made(&mut random, element, dimensions, 70), made(&mut random, element, dimensions, 190));
        setup.import("a", &a);
        setup.import("b", &b);
        for &metric in metrics(element) {
            for k in [1, 7, 1000] {
                let options = Search { k, metric, ..Search::default() };
                let (rows, found) = setup.search("b", &setup.open("a"), &options, (16 << 20, 2));
                assert_eq!(rows, brute_force(&b, &a, &options), "{element} {options:?}");
                assert_eq!((found.queries, found.vectors), (70, 190));
                let options = Search { excludes_itself: true, ..options };
                let (rows, _) = setup.search("b", &setup.open("b"), &options, (16 << 20, 2));
                let expected = brute_force(&b, &b, &options);
                assert_eq!(rows, expected, "{element} {options:?}");
                assert_eq!(rows.len() as u64, 190 * k.min(189));
            }
        }
    }
}

#[test]
fn a_vector_is_excluded_by_its_id_and_not_by_its_distance() {
    let setup = Setup::new();
    let vectors = Made { element: Element::F32, dimensions: 1, values: vec![5.0, 5.0, 9.0, 5.0] };
    setup.import("v", &vectors);
    let options = Search { k: 2, excludes_itself: true, ..Search::default() };
    let (rows, _) = setup.search("v", &setup.open("v"), &options, (8 << 20, 1));
    let ids: Vec<(u64, u64)> = rows.iter().map(|row| (row.0, row.2)).collect();
    assert_eq!(ids, [(0, 1), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)]);
    // The only vector of this dataset has no neighbour.
    setup.import("one", &Made { values: vec![1.0], ..vectors });
    let (rows, _) = setup.search("one", &setup.open("one"), &options, (8 << 20, 1));
    assert_eq!(rows, []);
}

#[test]
fn joins_are_the_same_bits_for_every_budget_and_number_of_threads() {
    let mut random = Random(31);
    let setup = Setup::new();
    let vectors = made(&mut random, Element::U8, 96, 6000);
    setup.import("v", &vectors);
    let options = Search { k: 20, excludes_itself: true, ..Search::default() };
    let (expected, found) = setup.search("v", &setup.open("v"), &options, (64 << 20, 2));
    assert_eq!(found.plan.passes, 1);
    for (memory_bytes, threads) in [(1 << 20, 1), (2 << 20, 2), (8 << 20, 1), (8 << 20, 2), (32 << 20, 3)] {
        let (rows, found) = setup.search("v", &setup.open("v"), &options, (memory_bytes, threads));
        assert_eq!(rows, expected, "{memory_bytes} bytes, {threads} threads");
        assert_eq!(found.plan.passes > 1, memory_bytes <= 2 << 20, "{}", found.plan);
    }
    assert!(found.measured < 6000 * 6000 / 5, "{} pairs measured", found.measured);
}

#[test]
fn an_index_joins_as_the_exact_search_if_all_lists_are_probed() {
    for (element, metric) in [(Element::U8, Metric::L2), (Element::F32, Metric::Cosine)] {
        let setup = Setup::new();
        let vectors = clustered(element, 24, 3000, 5);
        setup.import("v", &vectors);
        build(&setup, "v", &Index { metric, lists: Some(40), seed: 1, ..Index::default() }, (32 << 20, 2));
        let options = Search { k: 9, metric, excludes_itself: true, ..Search::default() };
        let (expected, _) = setup.search("v", &setup.open("v"), &options, (32 << 20, 2));
        for strategy in [Strategy::Single, Strategy::Batch] {
            let all = Approximate { strategy: Some(strategy), ..EVERYTHING };
            let (rows, _) = ask(&setup, "v", &setup.open("v"), (&options, &all), (32 << 20, 2));
            assert!(rows == expected, "{element} {strategy}");
        }
        let few = Approximate { probes: Some(4), strategy: Some(Strategy::Batch), ..EVERYTHING };
        let (rows, found) = ask(&setup, "v", &setup.open("v"), (&options, &few), (32 << 20, 2));
        assert_eq!((rows.len(), found.probes), (9 * 3000, 4));
        let (again, rounds) = ask(&setup, "v", &setup.open("v"), (&options, &few), (6 << 20, 1));
        assert!(again == rows && rounds.plan.rounds > 1, "{}", rounds.plan);
        assert!(rows.iter().all(|row| row.0 != row.2), "no vector is its own neighbour");
    }
}

#[test]
fn elements_of_a_join_are_converted_if_that_is_exact() {
    let setup = Setup::new();
    let mut random = Random(3);
    let bytes = made(&mut random, Element::U8, 20, 100);
    let floats = Made { element: Element::F32, ..bytes.clone() };
    setup.import("bytes", &bytes);
    setup.import("floats", &floats);
    let options = Search::default();
    let expected = brute_force(&bytes, &bytes, &options);
    for (a, b) in [("bytes", "floats"), ("floats", "bytes")] {
        let (rows, _) = setup.search(b, &setup.open(a), &options, (16 << 20, 2));
        assert_eq!(rows, expected, "{a} in {b}");
    }
    let halves = Made { element: Element::F16, dimensions: 20, values: vec![0.5; 40] };
    setup.import("halves", &halves);
    let job = setup.job(16 << 20, 1);
    let (bytes, halves) = (setup.open("bytes"), setup.open("halves"));
    let error = search(&job, &bytes, &halves, &options, &mut |_| Ok(())).unwrap_err().to_string();
    let wanted = "halves: vector 0, dimension 0: found 0.5, expected a value of u8, as the elements of bytes";
    assert_eq!(error, wanted);
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn joins_that_cannot_work_are_refused_by_name() {
    let setup = Setup::new();
    let mut random = Random(4);
    setup.import("a", &made(&mut random, Element::F32, 20, 10));
    setup.import("b", &made(&mut random, Element::F32, 21, 10));
    setup.import("bits", &made(&mut random, Element::Bits, 24, 10));
    let (a, b, bits) = (setup.open("a"), setup.open("b"), setup.open("bits"));
    let job = setup.job(16 << 20, 1);
    let error = plan(&job, b.info(), &a, &Search::default()).unwrap_err().to_string();
    assert_eq!(error, "a: vector 0: found 20 dimensions, expected 21, as the vectors of b");
    let error = plan(&job, b.info(), &bits, &Search::default()).unwrap_err().to_string();
    assert_eq!(error, "bits: the elements: found bits, expected f32, as the vectors of b");
    let tiny = setup.job(200 << 10, 1);
    let error = plan(&tiny, a.info(), &a, &Search::default()).unwrap_err().to_string();
    assert!(error.contains("budget") && error.contains("10 neighbours among a"), "{error}");
}

#[test]
fn a_cancelled_join_returns_its_memory() {
    let setup = Setup::new();
    setup.import("v", &made(&mut Random(6), Element::U8, 96, 3000));
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(1 << 20, 2), cancel.clone()).unwrap();
    let vectors = setup.open("v");
    let mut batches = 0;
    let stopped = search(&job, &vectors, &vectors, &Search::default(), &mut |_| {
        batches += 1;
        cancel.cancel();
        Ok(())
    });
    assert!(stopped.unwrap_err().is_cancelled());
    assert_eq!((batches, job.budget().reserved_bytes()), (1, 0));
}

/// All vectors are in one block, and all queries are in one pass.
#[test]
fn a_join_is_cancelled_within_a_block() {
    let setup = Setup::new();
    for (element, metric) in [(Element::U8, Metric::L2), (Element::U8, Metric::Hamming)] {
        setup.import("v", &made(&mut Random(7), element, 96, 10_000));
        let vectors = setup.open("v");
        let options = Search { metric, instructions: Some(Instructions::Portable), ..Search::default() };
        let run = |cancel: &Cancel| {
            let job = setup.store.job(Budget::new(64 << 20, 1), cancel.clone()).unwrap();
            let begun = Instant::now();
            let found = search(&job, &vectors, &vectors, &options, &mut |_| Ok(()));
            assert_eq!(job.budget().reserved_bytes(), 0);
            (found, begun.elapsed())
        };
        let (found, whole) = run(&Cancel::default());
        let plan = found.unwrap().plan;
        assert!(plan.passes == 1 && plan.block_rows >= 10_000, "{plan}");
        // Another process may delay a thread, so the test repeats the search.
        let is_soon = |_| {
            let cancel = Cancel::default();
            let (found, elapsed) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(whole / 10);
                    cancel.cancel();
                });
                run(&cancel)
            });
            assert!(found.is_err_and(|error| error.is_cancelled()));
            elapsed < whole / 2
        };
        assert!(whole > Duration::from_millis(50) && (0..5).any(is_soon), "{metric:?}: {whole:?}");
        setup.store.remove("v").unwrap();
    }
}
