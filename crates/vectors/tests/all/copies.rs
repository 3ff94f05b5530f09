//! Tests of indexes with copies, which have a second file of lists for the single strategy. In this file a vector may
//! be in several lists.

use std::collections::HashSet;

use inshore_store::{Budget, Cancel, Store};
use inshore_vectors::{
    Approximate, Element, Index, Metric, RowSet, Search, Strategy, VectorIndex, Vectors, build_index,
    measure_recall, search_index,
};

use crate::{
    hazards::flip,
    index::{ask, build, bytes_of, clustered},
    support::{Made, Random, Row, Setup},
};

const EVERYTHING: Approximate =
    Approximate { recall: 1.0, probes: Some(1 << 31), strategy: Some(Strategy::Single) };

fn with_copies(lists: u64) -> Index {
    Index { lists: Some(lists), copies: Some(4), ..Index::default() }
}

fn pairs(rows: &[Row]) -> HashSet<(u64, u64)> {
    rows.iter().map(|row| (row.0, row.2)).collect()
}

#[test]
fn lists_with_copies_that_are_all_probed_answer_as_the_exact_search() {
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::F32, Metric::Ip),
        (Element::F32, Metric::Cosine),
        (Element::U8, Metric::L2),
        (Element::I8, Metric::Cosine),
    ] {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 17, 3000, 1001));
        let queries = setup.file("q", &clustered(element, 17, 41, 1002));
        let built = build(&setup, "v", &Index { metric, ..with_copies(60) }, (64 << 20, 2));
        let copies = built.info.copies.expect("lists with copies");
        assert!(copies.vectors > 3050, "{element} {metric:?}: {} vectors in the lists", copies.vectors);
        let mut some = RowSet::empty(&Budget::new(1 << 20, 1), 3000).unwrap();
        (0..3000).filter(|row| row % 3 == 0).for_each(|row| some.insert(row));
        for selection in [None, Some(std::sync::Arc::new(some))] {
            // k is larger than the number of vectors in a list, so that the heap meets the same vectors in several
            // lists.
            let search = Search { k: 120, metric, selection, ..Search::default() };
            let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
            let (rows, found) = ask(&setup, "v", &queries, (&search, &EVERYTHING), (32 << 20, 2));
            assert_eq!(rows, exact, "{element} {metric:?}");
            assert_eq!(found.compared, 41 * copies.vectors);
        }
    }
}

#[test]
fn answers_from_copies_do_not_depend_on_memory_and_threads_and_need_fewer_lists() {
    let setup = Setup::new();
    // Data without clusters has many vectors near the borders of lists.
    let mut random = Random(2001);
    let vectors = Made::new(Element::U8, 8, 20_000, || random.below(200) as f64);
    setup.import("v", &vectors);
    setup.import("w", &vectors);
    let queries = setup.file("q", &Made::new(Element::U8, 8, 300, || random.below(200) as f64));
    let built = build(&setup, "v", &with_copies(300), (64 << 20, 2));
    build(&setup, "w", &Index { copies: None, ..with_copies(300) }, (64 << 20, 2));
    let search = Search::default();
    let answer = |name: &str, probes, strategy, memory| {
        let approximate = Approximate { recall: 0.9, probes, strategy: Some(strategy) };
        ask(&setup, name, &queries, (&search, &approximate), memory)
    };
    let (rows, found) = answer("v", None, Strategy::Single, (64 << 20, 3));
    assert!(found.recall_estimate.unwrap() >= 0.9);
    for memory in [(6 << 20, 1), (12 << 20, 2)] {
        assert_eq!(answer("v", None, Strategy::Single, memory).0, rows);
    }
    assert_eq!(pairs(&rows).len(), rows.len(), "an id is in the answer of a query once");
    // The batch strategy reads the lists without copies, so its answer is that of an index without copies.
    let (plain, found_plain) = answer("v", None, Strategy::Batch, (64 << 20, 2));
    assert_eq!(plain, answer("w", None, Strategy::Batch, (64 << 20, 2)).0);
    assert!(found.probes < found_plain.probes, "{} of {}", found.probes, found_plain.probes);
    let exact = pairs(&setup.search("v", &queries, &search, (16 << 20, 2)).0);
    let recall = |rows: &[Row]| pairs(rows).intersection(&exact).count() as f64 / exact.len() as f64;
    assert!(recall(&rows) > 0.85, "{}", recall(&rows));
    // With the same number of probes, lists with copies contain more neighbours.
    let probes = Some(found.probes);
    let (without, with) = (
        answer("w", probes, Strategy::Single, (64 << 20, 2)),
        answer("v", probes, Strategy::Single, (64 << 20, 2)),
    );
    assert!(recall(&without.0) + 0.02 < recall(&with.0), "{} {}", recall(&without.0), recall(&with.0));
    // The lists with copies are within the size that the option allows.
    let copies = built.info.copies.unwrap();
    let most = 4 * 20_000u64.div_ceil(300);
    assert!(copies.vectors <= built.info.lists * most && copies.list_vectors_max <= most, "{copies:?}");
}

#[test]
fn the_strategy_that_is_chosen_does_not_depend_on_the_budget() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 20_000, 3001));
    build(&setup, "v", &with_copies(300), (64 << 20, 2));
    let approximate = Approximate { recall: 0.9, ..Approximate::default() };
    let chosen = |count, memory| {
        let queries = setup.file("q", &clustered(Element::U8, 24, count, 3002));
        ask(&setup, "v", &queries, (&Search::default(), &approximate), memory).1.plan.strategy
    };
    for count in [1, 4, 16, 64, 256] {
        assert_eq!(chosen(count, (7 << 20, 1)), chosen(count, (64 << 20, 8)), "{count} queries");
    }
    assert_eq!(chosen(1, (64 << 20, 2)), Strategy::Single);
    assert_eq!(chosen(3000, (64 << 20, 2)), Strategy::Batch);
}

#[test]
fn the_copies_do_not_depend_on_memory_and_threads() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 16, 20_000, 4001));
    let job = setup.job(16 << 20, 1);
    let small = build(&setup, "v", &with_copies(200), (24 << 20, 1));
    let first = bytes_of(&setup.store, &job, "v");
    let large = build(&setup, "v", &with_copies(200), (256 << 20, 3));
    assert!(small.plan.sort_bytes < large.plan.sort_bytes);
    assert_eq!(bytes_of(&setup.store, &job, "v"), first);
    assert_eq!(small.info.copies.unwrap().recall.points, large.info.copies.unwrap().recall.points);
}

#[test]
fn the_recall_of_the_lists_with_copies_is_measured_on_queries_too() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 20_000, 5001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 50, 5002));
    build(&setup, "v", &with_copies(300), (64 << 20, 2));
    let job = setup.job(32 << 20, 2);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let mut index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let table = measure_recall(&setup.store, &job, &vectors, &mut index, &queries, 50, 5).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    let index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    assert_eq!(index.info().recall, table);
    let copies = index.info().copies.clone().unwrap().recall;
    assert_eq!((copies.queries, copies.k, copies.measured_on), (50, 5, table.measured_on));
    let search = Search { k: 5, ..Search::default() };
    let exact = pairs(&setup.search("v", &queries, &search, (16 << 20, 2)).0);
    for point in copies.points.iter().take(5) {
        let approximate = Approximate { probes: Some(point.probes), ..EVERYTHING };
        let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), (32 << 20, 2));
        let recall = pairs(&rows).intersection(&exact).count() as f32 / exact.len() as f32;
        assert!((recall - point.recall).abs() < 1e-6, "{recall}: {point:?}");
        assert_eq!(found.recall_estimate, Some(point.recall));
    }
}

#[test]
fn few_or_equal_vectors_have_lists_with_copies() {
    let setup = Setup::new();
    let mut number = 0.0;
    let mut rising = || {
        number += 1.0;
        number
    };
    let cases = [
        ("one", Made::new(Element::F32, 3, 1, || 1.5)),
        ("few", Made::new(Element::F32, 3, 7, &mut rising)),
        ("equal", Made::new(Element::U8, 5, 5000, || 9.0)),
        ("line", Made::new(Element::F32, 1, 3000, &mut rising)),
    ];
    for (name, vectors) in cases {
        setup.import(name, &vectors);
        let queries = Made { values: vectors.values[..vectors.dimensions].to_vec(), ..vectors.clone() };
        let queries = setup.file("q", &queries);
        build(&setup, name, &Index { copies: Some(2), ..Index::default() }, (96 << 20, 2));
        let search = Search { k: 4000, ..Search::default() };
        let (exact, _) = setup.search(name, &queries, &search, (32 << 20, 2));
        let (rows, _) = ask(&setup, name, &queries, (&search, &EVERYTHING), (32 << 20, 2));
        assert_eq!(rows, exact, "{name}");
        // One list has fewer than k vectors of its own. Copies do not count, so more lists are probed.
        let approximate = Approximate { probes: Some(1), ..EVERYTHING };
        let (rows, _) = ask(&setup, name, &queries, (&search, &approximate), (32 << 20, 2));
        assert_eq!(rows.len(), exact.len(), "{name}");
    }
}

#[test]
fn copies_out_of_range_and_small_budgets_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 6001));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let refused = |copies, memory| {
        let job = setup.job(memory, 1);
        let options = Index { copies: Some(copies), ..Index::default() };
        build_index(&setup.store, &job, &vectors, &options).unwrap_err().to_string()
    };
    assert_eq!(refused(1, 64 << 20), "copies is 1: expected 2 to 16");
    assert_eq!(refused(17, 64 << 20), "copies is 17: expected 2 to 16");
    assert!(refused(2, 1 << 20).starts_with("building an index of v cannot work in 1 MiB"));
}

#[test]
fn a_flipped_bit_in_the_copies_is_an_error_of_the_single_strategy_alone() {
    for (file, place) in [("copies", 3000), ("copy-firsts", 8)] {
        let setup = Setup::new();
        setup.import("v", &clustered(Element::U8, 16, 4000, 7001));
        let queries = setup.file("q", &clustered(Element::U8, 16, 20, 7002));
        build(&setup, "v", &with_copies(60), (64 << 20, 2));
        let job = setup.job(32 << 20, 2);
        let dataset = setup.store.dataset("v.index").unwrap();
        let number = dataset.file_names().position(|name| name == file).unwrap();
        let bytes = bytes_of(&setup.store, &job, "v").swap_remove(number);
        let start = place / 4096 * 4096;
        let page = &bytes[start..bytes.len().min(start + 4096)];
        let store = setup.folder.path().join("store");
        assert!(flip(&store, page), "{file} lies on the drive");
        let store = Store::open(&store).unwrap();
        let job = store.job(Budget::new(32 << 20, 2), Cancel::default()).unwrap();
        let vectors = Vectors::open(&store, "v").unwrap();
        let index = VectorIndex::open(&store, &vectors).unwrap().unwrap();
        let answer = |strategy| {
            let approximate = Approximate { strategy: Some(strategy), ..EVERYTHING };
            search_index(&job, &vectors, &index, &queries, &Search::default(), &approximate, &mut |_| Ok(()))
        };
        let error = answer(Strategy::Single).unwrap_err().to_string();
        assert!(error.contains(&format!("v.index/{file}")), "{file}: {error}");
        answer(Strategy::Batch).unwrap();
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}

/// The checksums are right in this test, as if another program had written the files.
#[test]
fn copies_that_do_not_match_their_lists_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 4000, 8001));
    let queries = setup.file("q", &clustered(Element::U8, 16, 20, 8002));
    build(&setup, "v", &with_copies(60), (64 << 20, 2));
    let job = setup.job(32 << 20, 2);
    let dataset = setup.store.dataset("v.index").unwrap();
    let names: Vec<String> = dataset.file_names().map(str::to_string).collect();
    let (files, attributes) = (bytes_of(&setup.store, &job, "v"), dataset.attributes().to_vec());
    type Change = fn(&mut Vec<u8>, &mut Vec<u8>);
    let refused = |file: &str, change: Change| {
        let (mut files, mut attributes) = (files.clone(), attributes.clone());
        let number = names.iter().position(|name| name == file).unwrap();
        change(&mut files[number], &mut attributes);
        let mut builder = setup.store.replace_dataset(&job, "v.index", "vector-index").unwrap();
        for (name, bytes) in names.iter().zip(&files) {
            let mut writer = builder.file(name, 4096, 4096).unwrap();
            writer.write(bytes).unwrap();
            builder.add(writer).unwrap();
        }
        builder.commit(&attributes).unwrap();
        let vectors = Vectors::open(&setup.store, "v").unwrap();
        let index = match VectorIndex::open(&setup.store, &vectors) {
            Ok(index) => index.unwrap(),
            Err(error) => return error.to_string(),
        };
        let ask =
            search_index(&job, &vectors, &index, &queries, &Search::default(), &EVERYTHING, &mut |_| Ok(()));
        ask.map(|_| "an answer".to_string()).unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(refused("copies", |_, _| ()), "an answer");
    let cases: [(&str, &str, Change); 7] = [
        ("v.index/copies: length", "copies", |file, _| file.truncate(100)),
        ("v.index/copy-firsts: length", "copy-firsts", |file, _| file.truncate(16)),
        ("v.index: directory", "copy-firsts", |file, _| file[0] = 1),
        // The change leaves list 0 with one vector, which is fewer than the list's own vectors.
        ("v.index: directory of copies", "copy-firsts", |file, _| {
            file[8..16].copy_from_slice(&1u64.to_le_bytes());
            let second = u64::from_le_bytes(file[16..24].try_into().unwrap());
            assert!(second > 1);
        }),
        ("v.index: header", "copies", |_, attributes| attributes.truncate(100)),
        ("v.index: points of recall", "copies", |_, attributes| attributes[108] = 200),
        ("v.index: vectors of lists with copies: found 0", "copies", |_, attributes| {
            attributes[96..104].fill(0);
        }),
    ];
    for (expected, file, change) in cases {
        let error = refused(file, change);
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    assert_eq!(job.budget().reserved_bytes(), 0);
}
