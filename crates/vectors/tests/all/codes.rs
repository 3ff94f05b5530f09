//! Tests of indexes with codes, from which the single strategy estimates distances.

use std::{collections::HashSet, sync::Arc};

use inshore_store::{Budget, Cancel, Store};
use inshore_vectors::{
    Approximate, Dedup, Element, Index, Metric, RowSet, Search, SearchIndex, Searcher, SearcherOptions,
    Strategy, VectorFile, VectorIndex, Vectors, build_index, compact_vectors, describe, measure_recall,
    search_index,
};

use crate::{
    changes::{add, remove as remove_ids},
    hazards::flip,
    index::{ask, build, bytes_of, clustered},
    support::{Made, Random, Row, Setup},
};

fn with_codes(lists: u64, bits: u32) -> Index {
    Index { lists: Some(lists), codes: Some(bits), ..Index::default() }
}

fn pairs(rows: &[Row]) -> HashSet<(u64, u64)> {
    rows.iter().map(|row| (row.0, row.2)).collect()
}

/// Returns the share of `expected` that `rows` have.
fn share(rows: &[Row], expected: &[Row]) -> f64 {
    pairs(rows).intersection(&pairs(expected)).count() as f64 / expected.len() as f64
}

fn by(strategy: Strategy, probes: u64) -> Approximate {
    Approximate { recall: 1.0, probes: Some(probes), strategy: Some(strategy) }
}

fn single(probes: u64) -> Approximate {
    by(Strategy::Single, probes)
}

fn batch(probes: u64) -> Approximate {
    by(Strategy::Batch, probes)
}

#[test]
fn a_search_by_codes_finds_nearly_all_that_a_search_in_the_same_lists_finds() {
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::F32, Metric::Ip),
        (Element::F32, Metric::Cosine),
        (Element::U8, Metric::L2),
        (Element::U8, Metric::Cosine),
        (Element::I8, Metric::Ip),
    ] {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 100, 4000, 1001));
        let queries = setup.file("q", &clustered(element, 100, 50, 1002));
        let mut measured = Vec::new();
        for bits in [1, 2, 4] {
            let built = build(&setup, "v", &Index { metric, ..with_codes(60, bits) }, (64 << 20, 2));
            let codes = built.info.codes.expect("codes");
            assert_eq!((codes.bits, built.info.copies), (bits, None));
            assert!(codes.recall.points.last().unwrap().recall > 0.97, "{:?}", codes.recall);
            let search = Search { k: 10, metric, ..Search::default() };
            let (lists, all) = ask(&setup, "v", &queries, (&search, &batch(20)), (32 << 20, 2));
            let (rows, found) = ask(&setup, "v", &queries, (&search, &single(20)), (32 << 20, 2));
            assert!(found.plan.holds_codes.is_some() && all.plan.holds_codes.is_none());
            assert_eq!((found.compared, found.probes), (all.compared, 20));
            assert!(share(&rows, &lists) > 0.98, "{element} {metric:?} {bits}: {}", share(&rows, &lists));
            measured.push(found.measured);
        }
        // More bits give tighter bounds, so fewer vectors are measured.
        assert!(measured[2] < measured[1] && measured[1] < measured[0], "{element} {metric:?}: {measured:?}");
        assert!(measured[0] < 50 * 40, "{measured:?}");
    }
}

#[test]
fn selected_vectors_a_radius_and_more_neighbours_than_a_list_has_work_by_codes() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 64, 6000, 1001));
    let queries = setup.file("q", &clustered(Element::F32, 64, 40, 1002));
    build(&setup, "v", &with_codes(80, 1), (64 << 20, 2));
    let mut some = RowSet::empty(&Budget::new(1 << 20, 1), 6000).unwrap();
    (0..6000).filter(|row| row % 3 == 0).for_each(|row| some.insert(row));
    let base = Search { k: 10, ..Search::default() };
    for search in [
        Search { selection: Some(Arc::new(some)), ..base.clone() },
        Search { k: 300, ..base.clone() },
        Search { k: 50, radius: Some(130.0), ..base.clone() },
        Search { excludes_itself: true, ..base.clone() },
    ] {
        let (lists, other) = ask(&setup, "v", &queries, (&search, &batch(30)), (32 << 20, 2));
        let (rows, found) = ask(&setup, "v", &queries, (&search, &single(30)), (32 << 20, 2));
        assert!(found.plan.holds_codes.is_some());
        assert_eq!(found.exhaustive, other.exhaustive);
        assert!(!lists.is_empty() && share(&rows, &lists) > 0.97, "{search:?}: {}", share(&rows, &lists));
        if let Some(selection) = &search.selection {
            assert!(rows.iter().all(|row| selection.contains(row.2)));
        }
        let is_near = |row: &Row| f64::from(f32::from_bits(row.3)) <= search.radius.unwrap_or(f64::INFINITY);
        assert!(rows.iter().all(is_near));
    }
    // Vectors of the dataset as queries find all but themselves.
    let search = Search { excludes_itself: true, ..base };
    let vectors = setup.open("v");
    let (lists, _) = ask(&setup, "v", &vectors, (&search, &batch(20)), (32 << 20, 2));
    let (rows, _) = ask(&setup, "v", &vectors, (&search, &single(20)), (32 << 20, 2));
    assert!(rows.iter().all(|row| row.0 != row.2));
    assert!(share(&rows, &lists) > 0.98, "{}", share(&rows, &lists));
}

#[test]
fn answers_by_codes_do_not_depend_on_memory_threads_and_the_place_of_the_codes() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 96, 20_000, 2001));
    let all = clustered(Element::U8, 96, 300, 2002);
    let queries = setup.file("q", &all);
    build(&setup, "v", &with_codes(200, 1), (64 << 20, 2));
    let search = Search::default();
    let answer = |queries: &VectorFile, memory| {
        let approximate = Approximate { strategy: Some(Strategy::Single), ..Approximate::default() };
        ask(&setup, "v", queries, (&search, &approximate), memory)
    };
    let (rows, found) = answer(&queries, (64 << 20, 3));
    assert_eq!(found.plan.holds_codes, Some(true));
    assert!(found.recall_estimate.unwrap() >= 0.95 && found.probes < 100, "{found:?}");
    let mut places = Vec::new();
    // A file in memory takes at least 2 MiB, so the codes do not fit the first budget.
    for memory in [(found.plan.smallest_bytes + (1 << 20), 1), (14 << 20, 1), (24 << 20, 2)] {
        let (others, found) = answer(&queries, memory);
        assert_eq!(others, rows);
        places.push(found.plan.holds_codes);
    }
    assert!(places.contains(&Some(false)), "{places:?}");
    // One query does not pay for the read of all codes.
    for number in [0, 7] {
        let values = all.rows()[number].to_vec();
        let one = setup.file("one", &Made { values, ..all.clone() });
        let (found, facts) = answer(&one, (64 << 20, 2));
        assert_eq!(facts.plan.holds_codes, Some(false));
        let expected = rows.iter().filter(|row| row.0 == number as u64).map(|row| (0, row.1, row.2, row.3));
        assert_eq!(found, expected.collect::<Vec<Row>>());
    }
    // A searcher keeps codes for later calls.
    let job = setup.job(64 << 20, 2);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let index = SearchIndex::open(&setup.store, &vectors).unwrap();
    let searcher = Searcher::open(&job, vectors, index, &SearcherOptions::default()).unwrap();
    let one = setup.file("one", &Made { values: all.rows()[3].to_vec(), ..all.clone() });
    for _ in 0..2 {
        let mut found = Vec::new();
        let mut call = searcher.begin(&Cancel::default()).unwrap();
        let approximate = Approximate { strategy: Some(Strategy::Single), ..Approximate::default() };
        call.search_index(&one, &search, &approximate, &mut |batch| {
            found.extend(crate::support::rows_of(&batch));
            Ok(())
        })
        .unwrap();
        let expected = rows.iter().filter(|row| row.0 == 3).map(|row| (0, row.1, row.2, row.3));
        assert_eq!(found, expected.collect::<Vec<Row>>());
    }
    drop(searcher);
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn the_codes_do_not_depend_on_memory_and_threads() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 80, 12_000, 4001));
    let job = setup.job(16 << 20, 1);
    let small = build(&setup, "v", &with_codes(100, 2), (24 << 20, 1));
    let first = bytes_of(&setup.store, &job, "v");
    let large = build(&setup, "v", &with_codes(100, 2), (256 << 20, 3));
    assert!(small.plan.sort_bytes < large.plan.sort_bytes);
    assert!(bytes_of(&setup.store, &job, "v") == first);
    assert_eq!(small.info.codes.unwrap().recall.points, large.info.codes.unwrap().recall.points);
}

#[test]
fn a_recall_that_codes_do_not_reach_is_answered_from_the_lists() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 32, 10_000, 2001));
    let queries = setup.file("q", &clustered(Element::U8, 32, 60, 2002));
    build(&setup, "v", &with_codes(150, 1), (64 << 20, 2));
    let search = Search::default();
    let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
    for strategy in [Strategy::Single, Strategy::Batch] {
        let approximate = Approximate { recall: 1.0, probes: None, strategy: Some(strategy) };
        let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), (32 << 20, 2));
        assert_eq!(found.plan.holds_codes, None);
        assert!(share(&rows, &exact) > 0.99);
        let (rows, found) = ask(&setup, "v", &queries, (&search, &by(strategy, 1 << 31)), (32 << 20, 2));
        assert_eq!((rows, found.recall_estimate), (exact.clone(), Some(1.0)));
    }
}

#[test]
fn the_strategy_that_is_chosen_does_not_depend_on_the_budget() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 64, 10_000, 3001));
    build(&setup, "v", &with_codes(150, 1), (64 << 20, 2));
    let approximate = Approximate { recall: 0.9, ..Approximate::default() };
    let chosen = |count, memory| {
        let queries = setup.file("q", &clustered(Element::F32, 64, count, 3002));
        ask(&setup, "v", &queries, (&Search::default(), &approximate), memory).1.plan.strategy
    };
    for count in [1, 16, 256] {
        assert_eq!(chosen(count, (24 << 20, 1)), chosen(count, (64 << 20, 8)), "{count} queries");
    }
    assert_eq!(chosen(3000, (64 << 20, 2)), Strategy::Batch);
}

#[test]
fn the_recall_of_codes_is_measured_on_queries_too() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 64, 10_000, 5001));
    let queries = setup.file("q", &clustered(Element::U8, 64, 50, 5002));
    build(&setup, "v", &with_codes(200, 1), (64 << 20, 2));
    remove_ids(&setup, &(0..300).map(|id| id * 7).collect::<Vec<u64>>()).unwrap();
    let job = setup.job(32 << 20, 2);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let mut index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let table = measure_recall(&setup.store, &job, &vectors, &mut index, &queries, 50, 5).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    let index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    assert_eq!(index.info().recall, table);
    let codes = index.info().codes.clone().unwrap().recall;
    assert_eq!((codes.queries, codes.k, codes.measured_on), (50, 5, table.measured_on));
    let search = Search { k: 5, ..Search::default() };
    let exact = setup.search("v", &queries, &search, (16 << 20, 2)).0;
    assert!(!codes.points.is_empty());
    for point in &codes.points {
        let (rows, found) = ask(&setup, "v", &queries, (&search, &single(point.probes)), (32 << 20, 2));
        let recall = share(&rows, &exact) as f32;
        // The table is a lower bound.
        assert!(point.recall < recall + 1e-6 && recall < point.recall + 0.03, "{recall}: {point:?}");
        assert_eq!(found.recall_estimate, Some(point.recall));
    }
}

#[test]
fn few_equal_zero_and_wide_vectors_have_codes() {
    let setup = Setup::new();
    let mut number = 0.0;
    let mut rising = || {
        number += 1.0;
        number
    };
    let mut random = Random(77);
    let mut wide = Random(78);
    let cases = [
        ("one", Made::new(Element::F32, 3, 1, || 1.5), Metric::L2, true),
        ("few", Made::new(Element::F32, 3, 7, &mut rising), Metric::L2, true),
        ("equal", Made::new(Element::U8, 5, 1500, || 9.0), Metric::L2, true),
        ("zeros", Made::new(Element::I8, 5, 500, || 0.0), Metric::Cosine, true),
        ("huge", Made::new(Element::F32, 4, 400, || random.normal() * 1e37), Metric::L2, false),
        ("line", Made::new(Element::F32, 1, 3000, &mut rising), Metric::L2, false),
        ("wide", Made::new(Element::F32, 8192, 200, || wide.normal()), Metric::L2, false),
    ];
    for (name, vectors, metric, is_same) in cases {
        setup.import(name, &vectors);
        let values = vectors.values[..vectors.dimensions].to_vec();
        let queries = setup.file("q", &Made { values, ..vectors.clone() });
        for bits in [1, 4] {
            let options = Index { codes: Some(bits), metric, ..Index::default() };
            // The vectors on which recall is measured take most of this memory.
            let built = build(&setup, name, &options, (320 << 20, 2));
            let search = Search { k: 20, metric, ..Search::default() };
            let probes = (built.info.lists - 1).max(1);
            let (lists, _) = ask(&setup, name, &queries, (&search, &batch(probes)), (128 << 20, 2));
            let (rows, _) = ask(&setup, name, &queries, (&search, &single(probes)), (128 << 20, 2));
            assert_eq!(rows.len(), lists.len(), "{name}");
            assert!(!is_same || rows == lists, "{name}");
            assert!(share(&rows, &lists) > 0.8, "{name}: {}", share(&rows, &lists));
            assert_eq!(rows[0], lists[0], "{name}: the query itself is found");
        }
    }
}

/// Vectors far from the origin lose no precision, since codes are measured from the center of all centroids.
#[test]
fn vectors_with_a_large_mean_are_found() {
    let setup = Setup::new();
    let mut random = Random(9);
    setup.import("v", &Made::new(Element::F32, 64, 5000, || 1000.0 + random.normal()));
    let queries = setup.file("q", &Made::new(Element::F32, 64, 40, || 1000.0 + random.normal()));
    build(&setup, "v", &with_codes(50, 1), (64 << 20, 2));
    let search = Search::default();
    let (lists, _) = ask(&setup, "v", &queries, (&search, &batch(40)), (32 << 20, 2));
    let (rows, found) = ask(&setup, "v", &queries, (&search, &single(40)), (32 << 20, 2));
    assert!(share(&rows, &lists) > 0.97, "{}", share(&rows, &lists));
    assert!(found.measured < found.compared / 4, "{} of {}", found.measured, found.compared);
}

#[test]
fn removed_added_and_compacted_vectors_are_answered_by_codes() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 128, 9000, 1001));
    let queries = setup.file("q", &clustered(Element::U8, 128, 40, 1002));
    build(&setup, "v", &with_codes(100, 2), (64 << 20, 2));
    let removed: Vec<u64> = (0..9000).step_by(5).collect();
    remove_ids(&setup, &removed).unwrap();
    // More than 1 MiB becomes a layer, and less stays in no list.
    add(&setup, &clustered(Element::U8, 128, 9000, 1003)).unwrap();
    add(&setup, &clustered(Element::U8, 128, 20, 1004)).unwrap();
    let described = describe(&setup.store, "v").unwrap();
    assert_eq!((described.layers, described.unlisted), (1, 20));
    let search = Search::default();
    let compare = |what: &str| {
        let (lists, _) = ask(&setup, "v", &queries, (&search, &batch(40)), (32 << 20, 2));
        let (rows, found) = ask(&setup, "v", &queries, (&search, &single(40)), (32 << 20, 2));
        assert!(found.plan.holds_codes.is_some());
        assert!(rows.iter().all(|row| row.2 >= 9000 || row.2 % 5 != 0), "{what}");
        assert!(rows.iter().any(|row| row.2 >= 9000), "{what}");
        assert!(share(&rows, &lists) > 0.98, "{what}: {}", share(&rows, &lists));
        for memory in [(16 << 20, 1), (64 << 20, 3)] {
            assert_eq!(ask(&setup, "v", &queries, (&search, &single(40)), memory).0, rows, "{what}");
        }
    };
    compare("with a layer");
    let job = setup.job(64 << 20, 2);
    compact_vectors(&setup.store, &job, "v").unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    let after = describe(&setup.store, "v").unwrap().index.unwrap();
    assert_eq!((after.vectors, describe(&setup.store, "v").unwrap().layers), (9000 - 1800 + 9020, 0));
    let codes = after.codes.unwrap();
    assert_eq!(codes.bits, 2);
    // Lists with twice as many vectors as planned were split, so recall was measured again.
    assert!(after.lists > 100, "{} lists", after.lists);
    assert!(codes.recall.points.iter().all(|point| point.probes < after.lists));
    assert!(!codes.recall.points.is_empty());
    compare("compacted");
}

#[test]
fn near_duplicates_are_found_in_lists_beside_codes() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 3000, 1001));
    build(&setup, "v", &with_codes(40, 1), (64 << 20, 2));
    let vectors = setup.open("v");
    let index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let find = |strategy| {
        let job = setup.job(64 << 20, 2);
        let options = Dedup { metric: Metric::L2, radius: 30.0, groups: false };
        let mut rows = 0;
        let approximate = by(strategy, 5);
        inshore_vectors::dedup(&job, &vectors, Some((&index, &approximate)), &options, &mut |batch| {
            rows += batch.num_rows();
            Ok(())
        })
        .unwrap();
        rows
    };
    assert!(find(Strategy::Single) > 0);
    assert_eq!(find(Strategy::Single), find(Strategy::Batch));
}

#[test]
fn bits_out_of_range_codes_beside_copies_and_small_budgets_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 6001));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let refused = |codes, copies, memory| {
        let job = setup.job(memory, 1);
        let options = Index { codes: Some(codes), copies, ..Index::default() };
        build_index(&setup.store, &job, &vectors, &options).unwrap_err().to_string()
    };
    assert_eq!(refused(3, None, 64 << 20), "codes is 3: expected 1, 2 or 4");
    let both = "codes is 1: expected none beside copies: an index has copies or codes";
    assert_eq!(refused(1, Some(4), 64 << 20), both);
    assert!(refused(2, None, 1 << 20).starts_with("building an index of v cannot work in 1 MiB"));
}

#[test]
fn a_flipped_bit_in_the_codes_is_an_error_of_the_single_strategy_alone() {
    for (file, place) in [("codes", 3000), ("code-center", 8)] {
        let setup = Setup::new();
        setup.import("v", &clustered(Element::U8, 16, 4000, 7001));
        let queries = setup.file("q", &clustered(Element::U8, 16, 20, 7002));
        let lists = build(&setup, "v", &with_codes(60, 1), (64 << 20, 2)).info.lists;
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
            let approximate = by(strategy, lists - 1);
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
fn codes_that_do_not_match_their_lists_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 4000, 8001));
    let queries = setup.file("q", &clustered(Element::U8, 16, 20, 8002));
    let lists = build(&setup, "v", &with_codes(60, 1), (64 << 20, 2)).info.lists;
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
        let (search, approximate) = (Search::default(), single(lists - 1));
        let ask = search_index(&job, &vectors, &index, &queries, &search, &approximate, &mut |_| Ok(()));
        ask.map(|_| "an answer".to_string()).unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(refused("codes", |_, _| ()), "an answer");
    let cases: [(&str, &str, Change); 8] = [
        ("v.index/codes: length", "codes", |file, _| file.truncate(100)),
        ("v.index/code-center: length", "code-center", |file, _| file.truncate(16)),
        // The last bytes of the file are the row number of the last vector.
        ("v.index/codes: vectors: found row 4294967295 in list", "codes", |file, _| {
            let start = file.len() - 4;
            file[start..].fill(255);
        }),
        ("v.index: header", "codes", |_, attributes| attributes.truncate(100)),
        ("v.index: bits of codes: found 3", "codes", |_, attributes| attributes[96] = 3),
        ("v.index: vectors of a chunk: found 0", "codes", |_, attributes| attributes[100..104].fill(0)),
        ("v.index: points of recall", "codes", |_, attributes| attributes[104] = 200),
        ("v.index: version: found 4", "codes", |_, attributes| attributes[8] = 4),
    ];
    for (expected, file, change) in cases {
        let error = refused(file, change);
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn vectors_of_many_dimensions_are_indexed_and_searched_in_24_mib() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 768, 3000, 1001));
    let queries = setup.file("q", &clustered(Element::F32, 768, 20, 1002));
    let built = build(&setup, "v", &Index { codes: Some(1), ..Index::default() }, (24 << 20, 1));
    // A list is cut into chunks, so the batch strategy reads a large list in pieces.
    assert!(built.info.codes.unwrap().chunk_vectors < built.info.list_vectors_max);
    let search = Search::default();
    let (exact, _) = setup.search("v", &queries, &search, (24 << 20, 2));
    for strategy in [Strategy::Single, Strategy::Batch] {
        let approximate = Approximate { strategy: Some(strategy), ..Approximate::default() };
        let (rows, _) = ask(&setup, "v", &queries, (&search, &approximate), (24 << 20, 2));
        assert!(share(&rows, &exact) > 0.9, "{strategy}: {}", share(&rows, &exact));
    }
}
