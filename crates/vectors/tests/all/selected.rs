//! Tests of searches in which only selected vectors may be answers.

use std::{collections::HashSet, sync::Arc};

use inshore_store::Budget;
use inshore_vectors::{
    Approximate, Element, Index, Kernel, Metric, RowSet, Search, Strategy, VectorFile, Vectors, is_sparse,
    search,
};

use crate::{
    index::{ask, build, clustered},
    support::{Made, Random, Row, Setup, brute_force},
};

/// Returns the set of those row numbers below `len` for which `is_selected` returns true.
fn select(len: u64, is_selected: impl FnMut(&u64) -> bool) -> Arc<RowSet> {
    let mut set = RowSet::empty(&Budget::new(1 << 20, 1), len).unwrap();
    (0..len).filter(is_selected).for_each(|row| set.insert(row));
    Arc::new(set)
}

/// Selects a random fraction `share` of the vectors. The choice does not depend on their elements.
fn share(len: u64, share: f64, seed: u64) -> Arc<RowSet> {
    let mut random = Random(seed);
    select(len, |_| random.below(1 << 20) < (share * f64::from(1 << 20)) as u64)
}

/// Returns vectors with small elements, which each element type can hold exactly.
fn small(element: Element, dimensions: usize, count: usize, seed: u64) -> Made {
    let mut random = Random(seed);
    Made::new(element, dimensions, count, || match element {
        Element::Bits => random.below(2) as f64,
        Element::U8 => random.below(20) as f64,
        _ => random.below(20) as f64 / 4.0 - 2.0,
    })
}

#[test]
fn an_exact_search_answers_the_nearest_selected_vectors() {
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::F16, Metric::Cosine),
        (Element::U8, Metric::Ip),
        (Element::I8, Metric::L2),
        (Element::U8, Metric::Hamming),
        (Element::Bits, Metric::Jaccard),
    ] {
        let setup = Setup::new();
        let (dimensions, count) = if element == Element::Bits { (1024, 3000) } else { (48, 6000) };
        let (vectors, queries) = (small(element, dimensions, count, 1), small(element, dimensions, 21, 2));
        setup.import("v", &vectors);
        let file = setup.file("q", &queries);
        let len = count as u64;
        let selections = [
            share(len, 0.5, 3),
            share(len, 0.05, 4),
            share(len, 0.002, 5),
            select(len, |&row| (2000..2100).contains(&row) || row == len - 1),
            select(len, |_| false),
            select(len, |_| true),
        ];
        for selection in selections {
            let options = Search { metric, selection: Some(selection.clone()), ..Search::default() };
            let expected = brute_force(&vectors, &queries, &options);
            assert_eq!(expected.len() as u64, 21 * selection.count().min(10));
            for (kernel, memory) in
                [(None, (16 << 20, 2)), (None, (3 << 20, 3)), (Some(Kernel::Rows), (16 << 20, 1))]
            {
                let options = Search { kernel, ..options.clone() };
                let (rows, searched) = setup.search("v", &file, &options, memory);
                assert_eq!(rows, expected, "{element} {metric:?} {} {kernel:?}", selection.count());
                assert_eq!(searched.vectors, selection.count());
            }
        }
    }
}

#[test]
fn blocks_without_selected_vectors_are_not_read() {
    let setup = Setup::new();
    // The vectors have 12.8 MB, which are 200 blocks of 64 KiB.
    let (vectors, queries) = (small(Element::U8, 128, 100_000, 1), small(Element::U8, 128, 3, 2));
    setup.import("v", &vectors);
    let file = setup.file("q", &queries);
    let read = |selection: Option<Arc<RowSet>>| {
        let job = setup.job(16 << 20, 2);
        let options = Search { selection, ..Search::default() };
        let opened = Vectors::open(&setup.store, "v").unwrap();
        search(&job, &opened, &file, &options, &mut |_| Ok(())).unwrap();
        job.report().bytes_read
    };
    assert!(read(None) >= 12_800_000);
    // With one selected vector, the search reads little more than the checksum block with the vector.
    assert!(read(Some(select(100_000, |&row| row == 77_777))) <= 64 << 10);
    // The five selected vectors are far apart, so each is a read of its own.
    assert!(read(Some(select(100_000, |row| row % 20_000 == 0))) <= 5 * (64 << 10));
    assert!(read(Some(select(100_000, |_| false))) == 0);
    // Only the second half of the vectors is selected.
    let half = read(Some(select(100_000, |&row| row >= 50_000)));
    assert!((6_400_000..7_600_000).contains(&half), "{half}");
}

#[test]
fn an_index_whose_lists_are_all_probed_answers_the_nearest_selected_vectors() {
    for (element, metric) in
        [(Element::F32, Metric::L2), (Element::U8, Metric::Cosine), (Element::I8, Metric::Ip)]
    {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 17, 3000, 1001));
        let queries = setup.file("q", &clustered(element, 17, 41, 1002));
        build(
            &setup,
            "v",
            &Index { metric, lists: Some(60), seed: 1, copies: None, codes: None },
            (64 << 20, 2),
        );
        for selection in [share(3000, 0.4, 1), share(3000, 0.004, 2), select(3000, |_| false)] {
            let options = Search { metric, selection: Some(selection), ..Search::default() };
            let (exact, _) = setup.search("v", &queries, &options, (16 << 20, 2));
            for strategy in [Strategy::Single, Strategy::Batch] {
                let approximate =
                    Approximate { recall: 1.0, probes: Some(1 << 31), strategy: Some(strategy) };
                let (rows, found) = ask(&setup, "v", &queries, (&options, &approximate), (32 << 20, 2));
                assert_eq!(rows, exact, "{element} {metric:?} {strategy}");
                assert_eq!((found.compared, found.exhaustive), (41 * 3000, 0));
            }
        }
    }
}

/// Returns the fraction of the exact neighbours that are in an answer.
fn recall(rows: &[Row], exact: &[Row]) -> f64 {
    let found: HashSet<_> = rows.iter().map(|row| (row.0, row.2)).collect();
    exact.iter().filter(|row| found.contains(&(row.0, row.2))).count() as f64 / exact.len() as f64
}

fn approximate(strategy: Strategy) -> Approximate {
    Approximate { recall: 0.95, probes: None, strategy: Some(strategy) }
}

/// Answers the queries with each strategy, amount of memory and number of threads. Asserts that all answers are equal.
fn answers(setup: &Setup, queries: &VectorFile, options: &Search) -> (Vec<Row>, u64) {
    let mut answers = Vec::new();
    for strategy in [Strategy::Single, Strategy::Batch] {
        for memory in [(8 << 20, 1), (64 << 20, 3)] {
            let (rows, found) = ask(setup, "v", queries, (options, &approximate(strategy)), memory);
            answers.push((rows, found.exhaustive));
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    answers.remove(0)
}

#[test]
fn the_recall_is_kept_when_few_vectors_are_selected() {
    for (element, seed) in [(Element::U8, 2001), (Element::F32, 5001)] {
        let setup = Setup::new();
        let count = 40_000;
        setup.import("v", &clustered(element, 24, count, seed));
        let queries = setup.file("q", &clustered(element, 24, 200, seed + 1));
        build(&setup, "v", &Index { lists: Some(500), ..Index::default() }, (64 << 20, 2));
        let mut probes = 0;
        for selected in [1.0, 0.5, 0.05, 0.005, 0.0005] {
            let selection = share(count as u64, selected, 9);
            assert_eq!(is_sparse(&selection), selected < 0.01);
            let neighbours = selection.count().min(10) * 200;
            let options = Search { selection: Some(selection), ..Search::default() };
            let (exact, _) = setup.search("v", &queries, &options, (16 << 20, 2));
            let (rows, _) = answers(&setup, &queries, &options);
            assert_eq!((rows.len() as u64, exact.len() as u64), (neighbours, neighbours));
            let reached = recall(&rows, &exact);
            println!("{element} {selected}: {reached}");
            // The table of recall was measured on other vectors of the same distribution.
            assert!(reached >= 0.95, "{element} {selected}: {reached}");
            let (_, found) =
                ask(&setup, "v", &queries, (&options, &approximate(Strategy::Batch)), (64 << 20, 2));
            assert!(found.probes > probes && found.probes <= 500, "{found:?}");
            probes = if found.probes == 500 { 499 } else { found.probes };
        }
    }
}

#[test]
fn queries_far_from_all_selected_vectors_have_k_neighbours() {
    let setup = Setup::new();
    let vectors = clustered(Element::U8, 24, 20_000, 2001);
    setup.import("v", &vectors);
    let asked = clustered(Element::U8, 24, 100, 2002);
    let queries = setup.file("q", &asked);
    build(&setup, "v", &Index { lists: Some(300), ..Index::default() }, (64 << 20, 2));
    // The selected vectors lie on one side of the data.
    let rows = vectors.rows();
    let selection = select(20_000, |&row| rows[row as usize][0] > 130.0);
    assert!(!is_sparse(&selection) && selection.count() < 10_000);
    let options = Search { selection: Some(selection), ..Search::default() };
    let (exact, _) = setup.search("v", &queries, &options, (16 << 20, 2));
    let (rows, exhaustive) = answers(&setup, &queries, &options);
    assert_eq!(rows.len(), exact.len());
    assert!((1..100).contains(&exhaustive), "{exhaustive}");
    let reached = recall(&rows, &exact);
    assert!(reached >= 0.95, "{reached}");
}

#[test]
fn a_radius_holds_among_selected_vectors() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 20_000, 2001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 50, 2002));
    build(&setup, "v", &Index { lists: Some(300), ..Index::default() }, (64 << 20, 2));
    let selection = Some(share(20_000, 0.3, 1));
    let options = Search { selection, radius: Some(62.0), ..Search::default() };
    let (exact, _) = setup.search("v", &queries, &options, (16 << 20, 2));
    assert!((50..490).contains(&exact.len()), "{}", exact.len());
    let (rows, exhaustive) = answers(&setup, &queries, &options);
    assert_eq!(exhaustive, 0);
    assert!(recall(&rows, &exact) >= 0.95 && recall(&exact, &rows) == 1.0);
}

#[test]
fn a_selection_of_other_vectors_is_refused() {
    let setup = Setup::new();
    let made = small(Element::U8, 8, 100, 1);
    setup.import("v", &made);
    let file = setup.file("q", &made);
    let options = Search { selection: Some(select(99, |_| true)), ..Search::default() };
    let job = setup.job(16 << 20, 1);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let error = search(&job, &vectors, &file, &options, &mut |_| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "selection is a set of 99 vectors: expected one of the 100 vectors of v");
}
