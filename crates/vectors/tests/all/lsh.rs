//! Tests hash tables. The tests cover builds, searches with multi-probe LSH, recall, changes and damage.

use std::{collections::HashSet, sync::Arc};

use arrow_array::RecordBatch;
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_vectors::{
    Approximate, Element, FoundInIndex, Index, Lsh, LshBuilt, LshIndex, LshSearched, Metric, RowSet, Search,
    SearchIndex, Source, Strategy, Vectors, build_lsh, compact_vectors, describe, remove_index,
};

use crate::{
    changes::{Model, add, remove as remove_ids, upsert},
    hazards::flip,
    index::{EVERYTHING, build as build_lists, bytes_of, clustered},
    support::{Made, Random, Row, Setup, rows_of},
};

fn build(setup: &Setup, name: &str, options: &Lsh, (memory_bytes, threads): (u64, usize)) -> LshBuilt {
    let job = setup.job(memory_bytes, threads);
    let vectors = Vectors::open(&setup.store, name).unwrap();
    let built = build_lsh(&setup.store, &job, &vectors, options).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    built
}

fn open(store: &Store, name: &str) -> (Vectors, LshIndex) {
    let vectors = Vectors::open(store, name).unwrap();
    match SearchIndex::open(store, &vectors).unwrap() {
        Some(SearchIndex::Tables(index)) => (vectors, index),
        other => panic!("expected hash tables, found {other:?}"),
    }
}

fn ask<'a>(
    setup: &Setup,
    name: &str,
    queries: impl Into<Source<'a>>,
    (search, approximate): (&Search, &Approximate),
    (memory_bytes, threads): (u64, usize),
) -> (Vec<Row>, LshSearched) {
    let job = setup.job(memory_bytes, threads);
    let (vectors, index) = open(&setup.store, name);
    let mut rows = Vec::new();
    let mut each = |batch: RecordBatch| {
        rows.extend(rows_of(&batch));
        Ok(())
    };
    let index = SearchIndex::Tables(index);
    let found = index.search(&job, &vectors, queries, (search, approximate), &mut each).unwrap();
    let FoundInIndex::Tables(found) = found else { panic!("hash tables were searched") };
    assert_eq!((job.budget().reserved_bytes(), found.rows), (0, rows.len() as u64));
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    (rows, found)
}

fn probing(probes: u64) -> Approximate {
    Approximate { probes: Some(probes), ..Approximate::default() }
}

/// Returns vectors of bytes or bits. Each vector is a copy of one of 50 prototypes, with some elements replaced.
fn mutated(element: Element, dimensions: usize, count: usize, seed: u64) -> Made {
    let mut values = Random(seed / 1000);
    let mut any = |_| if element == Element::Bits { values.below(2) } else { values.below(256) };
    let prototypes: Vec<u64> = (0..50 * dimensions).map(&mut any).collect();
    let mut random = Random(seed);
    let (mut place, mut prototype) = (0, 0);
    Made::new(element, dimensions, count, || {
        if place == 0 {
            prototype = random.below(50) as usize;
        }
        let value = prototypes[prototype * dimensions + place];
        place = (place + 1) % dimensions;
        let other = if element == Element::Bits { 1 - value } else { random.below(256) };
        (if random.below(8) == 0 { other } else { value }) as f64
    })
}

fn made(element: Element, metric: Metric, count: usize, seed: u64) -> Made {
    match metric {
        Metric::Hamming => mutated(element, 128, count, seed),
        _ if element == Element::F16 => {
            let made = clustered(Element::F32, 24, count, seed);
            let mut values = made.values.iter().map(|value| value / 30.0);
            Made::new(element, 24, count, || values.next().unwrap())
        }
        _ => clustered(element, 24, count, seed),
    }
}

const KINDS: [(Element, Metric); 7] = [
    (Element::F32, Metric::L2),
    (Element::U8, Metric::L2),
    (Element::F16, Metric::L2),
    (Element::F32, Metric::Cosine),
    (Element::U8, Metric::Cosine),
    (Element::Bits, Metric::Hamming),
    (Element::U8, Metric::Hamming),
];

fn pairs(rows: &[Row]) -> HashSet<(u64, u64)> {
    rows.iter().map(|row| (row.0, row.2)).collect()
}

#[test]
fn each_family_finds_nine_of_ten_neighbours_among_a_part_of_the_vectors() {
    for (element, metric) in KINDS {
        let setup = Setup::new();
        setup.import("v", &made(element, metric, 8000, 1001));
        let queries = setup.file("q", &made(element, metric, 60, 1002));
        let built = build(&setup, "v", &Lsh { metric, seed: 1, ..Lsh::default() }, (64 << 20, 2));
        assert_eq!((built.info.tables, built.info.bits, built.info.buckets), (8, 7, 128));
        let search = Search { metric, ..Search::default() };
        let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
        let good = Approximate { recall: 0.9, ..Approximate::default() };
        let (rows, found) = ask(&setup, "v", &queries, (&search, &good), (24 << 20, 2));
        let common = pairs(&rows).intersection(&pairs(&exact)).count();
        let recall = common as f64 / exact.len() as f64;
        let share = found.compared as f64 / (60.0 * 8000.0);
        println!("{element} {metric:?}: recall {recall:.3}, {} probes, {share:.3} compared", found.probes);
        assert!(recall >= 0.88, "{element} {metric:?}: recall {recall}, {found:?}");
        assert!(share < 0.5, "{element} {metric:?}: {share} compared, {found:?}");
        assert!(found.recall_estimate.is_some_and(|recall| recall >= 0.9), "{found:?}");
        // A search with fewer probes finds fewer neighbours.
        let (few, _) = ask(&setup, "v", &queries, (&search, &probing(2)), (24 << 20, 2));
        assert!(pairs(&few).intersection(&pairs(&exact)).count() < common, "{element} {metric:?}");
    }
}

#[test]
fn an_answer_is_a_part_of_the_exact_ranking() {
    for (element, metric) in KINDS {
        let setup = Setup::new();
        setup.import("v", &made(element, metric, 1500, 2001));
        let queries = setup.file("q", &made(element, metric, 20, 2002));
        build(&setup, "v", &Lsh { metric, ..Lsh::default() }, (64 << 20, 2));
        let all = Search { k: 1500, metric, ..Search::default() };
        let (ranking, _) = setup.search("v", &queries, &all, (16 << 20, 2));
        for k in [1, 10, 300] {
            let search = Search { k, metric, ..Search::default() };
            let (rows, found) = ask(&setup, "v", &queries, (&search, &probing(8)), (24 << 20, 2));
            assert_eq!(rows.len() as u64, 20 * k, "{element} {metric:?} {found:?}");
            let mut rest = ranking.iter();
            for row in &rows {
                let is_it = |ranked: &&Row| (ranked.0, ranked.2, ranked.3) == (row.0, row.2, row.3);
                assert!(rest.any(|ranked| is_it(&ranked)), "{element} {metric:?} k {k}: {row:?}");
            }
        }
        let (rows, found) = ask(&setup, "v", &queries, (&all, &EVERYTHING), (24 << 20, 2));
        assert!(rows == ranking && found.recall_estimate == Some(1.0), "{element} {metric:?}");
    }
}

#[test]
fn tables_and_answers_do_not_depend_on_memory_and_threads() {
    for (element, metric) in [(Element::F32, Metric::L2), (Element::Bits, Metric::Hamming)] {
        let setup = Setup::new();
        setup.import("v", &made(element, metric, 20_000, 3001));
        let queries = setup.file("q", &made(element, metric, 30, 3002));
        let options = Lsh { metric, tables: Some(64), seed: 7, ..Lsh::default() };
        let job = setup.job(16 << 20, 1);
        let small = build(&setup, "v", &options, (12 << 20, 1));
        let first = bytes_of(&setup.store, &job, "v");
        let large = build(&setup, "v", &options, (256 << 20, 3));
        // The sort of the first build spilled, since its memory was too small for all rows.
        assert!(small.plan.sort_bytes < 20_000 * 64 * 16 && 20_000 * 64 * 16 < large.plan.sort_bytes);
        assert_eq!(bytes_of(&setup.store, &job, "v"), first);
        assert_eq!(small.info.recall.points, large.info.recall.points);
        let search = Search { metric, ..Search::default() };
        let approximate = Approximate { recall: 0.8, ..Approximate::default() };
        let asked = |memory| ask(&setup, "v", &queries, (&search, &approximate), memory).0;
        assert_eq!(asked((6 << 20, 1)), asked((128 << 20, 3)));
        build(&setup, "v", &Lsh { seed: 8, ..options }, (64 << 20, 2));
        assert_ne!(bytes_of(&setup.store, &job, "v"), first);
    }
}

#[test]
fn recall_is_measured_on_the_queries_of_the_user_and_replaces_the_table() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 8000, 4001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 100, 4002));
    let before = build(&setup, "v", &Lsh::default(), (64 << 20, 2)).info.recall;
    assert!(before.queries > 100 && before.points.len() > 5, "{before:?}");
    let (vectors, index) = open(&setup.store, "v");
    let job = setup.job(32 << 20, 2);
    let mut index = SearchIndex::Tables(index);
    let table = index.measure_recall(&setup.store, &job, &vectors, &queries, (40, 5)).unwrap();
    assert_eq!((table.queries, table.k, job.budget().reserved_bytes()), (40, 5, 0));
    assert_eq!(open(&setup.store, "v").1.info().recall, table);
    assert_ne!(table, before);
    // The measured queries must reach the recall that the table states for a number of probes.
    let search = Search { k: 5, ..Search::default() };
    let sampled: Vec<u64> = (0..40).map(|number| number * 100 / 40).collect();
    let keep = |rows: Vec<Row>| -> HashSet<_> {
        pairs(&rows).into_iter().filter(|pair| sampled.contains(&pair.0)).collect()
    };
    let exact = keep(setup.search("v", &queries, &search, (16 << 20, 2)).0);
    for point in table.points.iter().filter(|point| [1, 8, 16, 32].contains(&point.probes)) {
        let (rows, found) = ask(&setup, "v", &queries, (&search, &probing(point.probes)), (32 << 20, 2));
        let recall = keep(rows).intersection(&exact).count() as f32 / exact.len() as f32;
        // The recall may be higher, since queries with fewer than k candidates probed more buckets.
        assert!(recall >= point.recall - 1e-6 && recall < point.recall + 0.1, "{recall}: {point:?}");
        assert_eq!(found.recall_estimate, Some(point.recall));
    }
    let error = index.measure_recall(&setup.store, &job, &vectors, &queries, (0, 5)).unwrap_err().to_string();
    assert_eq!(error, "sample is 0: expected 1 to 1048576");
}

#[test]
fn vectors_that_are_few_or_equal_or_of_one_dimension_have_tables() {
    let setup = Setup::new();
    let mut random = Random(6);
    let cases = [
        ("one", Made::new(Element::F32, 3, 1, || 1.5)),
        ("few", Made::new(Element::U8, 3, 7, || random.below(200) as f64)),
        ("equal", Made::new(Element::U8, 5, 5000, || 9.0)),
        ("zero", Made::new(Element::F32, 5, 3000, || 0.0)),
        ("line", Made::new(Element::F32, 1, 3000, || (random.below(4000) as f64) - 2000.0)),
        ("large", Made::new(Element::F32, 2, 300, || random.normal() * 1e38)),
        ("bits", Made::new(Element::Bits, 8, 500, || random.below(2) as f64)),
    ];
    for (name, vectors) in cases {
        setup.import(name, &vectors);
        let queries = Made { values: vectors.values[..vectors.dimensions].to_vec(), ..vectors.clone() };
        let queries = setup.file("q", &queries);
        let metrics = match vectors.element {
            Element::Bits => vec![Metric::Hamming],
            Element::U8 => vec![Metric::L2, Metric::Cosine, Metric::Hamming],
            _ => vec![Metric::L2, Metric::Cosine],
        };
        for metric in metrics {
            for bits in [None, Some(12)] {
                // Twelve functions give 4,096 buckets, most of which are empty.
                let built = build(&setup, name, &Lsh { metric, bits, ..Lsh::default() }, (64 << 20, 2));
                assert!(built.info.bucket_vectors_max <= built.info.vectors);
                for k in [1, 3000] {
                    let search = Search { k, metric, ..Search::default() };
                    let (exact, _) = setup.search(name, &queries, &search, (32 << 20, 2));
                    // One bucket has too few vectors for 3,000 neighbours. So a query probes more buckets, or is
                    // compared with all vectors.
                    let (rows, found) = ask(&setup, name, &queries, (&search, &probing(1)), (32 << 20, 2));
                    assert_eq!(rows.len(), exact.len(), "{name} {metric:?} {bits:?} {k} {found:?}");
                    assert!(k > 1 || rows[0].3 == exact[0].3, "{name} {metric:?}: the vector finds itself");
                }
            }
        }
    }
}

/// The number of buckets is not a power of two here, so the codes are distributed over the buckets by a hash.
#[test]
fn thirty_buckets_and_one_table_are_enough_for_small_data() {
    for (element, metric) in [(Element::Bits, Metric::Hamming), (Element::U8, Metric::Cosine)] {
        let setup = Setup::new();
        setup.import("v", &made(element, metric, 3000, 5001));
        let queries = setup.file("q", &made(element, metric, 30, 5002));
        let options = Lsh { metric, tables: Some(1), buckets: Some(30), ..Lsh::default() };
        let built = build(&setup, "v", &options, (64 << 20, 2));
        assert_eq!((built.info.tables, built.info.bits, built.info.buckets), (1, 5, 30));
        let search = Search { metric, ..Search::default() };
        let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
        let recall_of = |probes: u64| {
            let (rows, found) = ask(&setup, "v", &queries, (&search, &probing(probes)), (24 << 20, 2));
            (pairs(&rows).intersection(&pairs(&exact)).count() as f64 / exact.len() as f64, found.compared)
        };
        let (few, some) = (recall_of(1), recall_of(8));
        assert!(some.0 >= 0.7 && some.0 > few.0, "{element} {metric:?}: {few:?} {some:?}");
        assert!(few.1 < some.1 && some.1 < 30 * 3000 * 3 / 4, "{element} {metric:?}: {few:?} {some:?}");
        assert_eq!(recall_of(30), (1.0, 30 * 3000));
    }
}

#[test]
fn only_selected_vectors_within_the_radius_are_answers() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 4000, 6001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 20, 6002));
    build(&setup, "v", &Lsh::default(), (64 << 20, 2));
    let budget = Budget::new(1 << 20, 1);
    let mut third = RowSet::empty(&budget, 4000).unwrap();
    (0..4000).step_by(3).for_each(|row| third.insert(row));
    let third = Arc::new(third);
    for radius in [None, Some(70.0)] {
        let search = Search { k: 12, radius, selection: Some(third.clone()), ..Search::default() };
        let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
        let (all, _) = ask(&setup, "v", &queries, (&search, &EVERYTHING), (24 << 20, 2));
        assert_eq!(all, exact);
        let good = Approximate { recall: 0.9, ..Approximate::default() };
        let (rows, found) = ask(&setup, "v", &queries, (&search, &good), (24 << 20, 2));
        assert!(rows.iter().all(|row| row.2 % 3 == 0));
        assert_eq!(found.selected, Some(1334));
        let common = pairs(&rows).intersection(&pairs(&exact)).count();
        assert!(common as f64 >= 0.85 * exact.len() as f64, "{common} of {}", exact.len());
    }
}

#[test]
fn changed_vectors_are_found_and_a_compaction_hashes_all() {
    let (setup, mut model) = (Setup::new(), Model::default());
    let base = clustered(Element::U8, 64, 3000, 7001);
    setup.import("v", &base);
    model.add(&base);
    build(&setup, "v", &Lsh { seed: 5, ..Lsh::default() }, (64 << 20, 2));
    let asked = clustered(Element::U8, 64, 20, 7002);
    let queries = setup.file("q", &asked);
    let search = Search::default();
    for round in 0..2u64 {
        // The added vectors take 1.2 MB. Inverted lists would get a new layer for so many vectors.
        let added = clustered(Element::U8, 64, 20_000, 7003 + round);
        let changed = add(&setup, &added).unwrap();
        model.add(&added);
        assert!((changed.index_error, changed.unlisted) == (None, 20_000), "round {round}");
        let ids: Vec<u64> = (0..40).map(|number| 4 + 37 * number).collect();
        let replacing = clustered(Element::U8, 64, 40, 7010 + round);
        upsert(&setup, &replacing, &ids).unwrap();
        model.upsert(&replacing, &ids);
        let gone: Vec<u64> = model.vectors.keys().copied().filter(|id| id % 9 == round).collect();
        remove_ids(&setup, &gone).unwrap();
        model.remove(&gone);
        let exact = model.answer(&base, &asked, &search);
        let described = describe(&setup.store, "v").unwrap();
        assert!(described.lsh.is_some() && described.layers == 0 && described.unlisted > 20_000);
        assert!(described.to_string().contains("rows in no table, candidates of each query"), "{described}");
        let recall_of = |approximate: &Approximate| {
            let (rows, found) = ask(&setup, "v", &queries, (&search, approximate), (32 << 20, 2));
            let removed: Vec<&Row> = rows.iter().filter(|row| !model.vectors.contains_key(&row.2)).collect();
            assert!(removed.is_empty(), "{removed:?}");
            (pairs(&rows).intersection(&pairs(&exact)).count() as f64 / exact.len() as f64, found, rows)
        };
        assert_eq!(recall_of(&EVERYTHING).2, exact);
        // Many vectors are in no table, so the search is exact.
        let (_, found, rows) = recall_of(&probing(16));
        assert_eq!((rows, found.compared), (exact.clone(), 20 * found.vectors), "round {round}: {found:?}");
        let reason = found.exact_because.expect("a reason");
        assert!(2 * reason.candidates > reason.vectors && reason.vectors == found.vectors, "{reason}");
        let job = setup.job(64 << 20, 2);
        let compacted = compact_vectors(&setup.store, &job, "v").unwrap();
        assert_eq!((job.budget().reserved_bytes(), compacted.lists), (0, None));
        let described = describe(&setup.store, "v").unwrap();
        let tables = described.lsh.expect("tables");
        assert_eq!((tables.vectors, described.unlisted, tables.seed), (model.vectors.len() as u64, 0, 5));
        assert_eq!(recall_of(&EVERYTHING).2, exact);
        let (recall, found, _) = recall_of(&Approximate { recall: 0.9, ..Approximate::default() });
        assert!(recall >= 0.8 && found.compared < 20 * 18_000, "round {round}: {recall} {found:?}");
        assert_eq!(found.exact_because, None);
    }
}

#[test]
fn a_search_with_many_candidates_is_exact_and_one_with_few_is_not() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 4000, 15_001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 20, 15_002));
    let built = build(&setup, "v", &Lsh { tables: Some(2), ..Lsh::default() }, (64 << 20, 2));
    let all = built.info.tables * built.info.buckets;
    add(&setup, &clustered(Element::U8, 24, 1000, 15_003)).unwrap();
    let budget = Budget::new(1 << 20, 1);
    let mut later = RowSet::empty(&budget, 5000).unwrap();
    (3500..5000).for_each(|row| later.insert(row));
    let later = Some(Arc::new(later));
    // The cases state a selection, the number of probes, and if the search is exact. Two thirds of the selected vectors
    // are in no table.
    let cases = [
        (None, 1, false),
        (None, all / 8, false),
        (None, all / 2, true),
        (None, all, true),
        (later, 1, true),
    ];
    for (selection, probes, is_exact) in cases {
        let search = Search { selection, ..Search::default() };
        let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
        let (rows, found) = ask(&setup, "v", &queries, (&search, &probing(probes)), (24 << 20, 2));
        assert_eq!(found.exact_because.is_some(), is_exact, "{probes} of {all}: {found:?}");
        let eligible = found.selected.unwrap_or(5000);
        assert_eq!(found.compared == 20 * eligible, is_exact, "{probes} of {all}: {found:?}");
        assert!(!is_exact || (rows == exact && found.recall_estimate == Some(1.0)), "{probes} of {all}");
    }
}

#[test]
fn an_index_of_one_kind_replaces_that_of_the_other() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 256, 1500, 8001));
    build_lists(&setup, "v", &Index { lists: Some(30), ..Index::default() }, (64 << 20, 2));
    add(&setup, &clustered(Element::U8, 256, 4200, 8002)).unwrap();
    assert_eq!(describe(&setup.store, "v").unwrap().layers, 1);
    build(&setup, "v", &Lsh { tables: Some(3), ..Lsh::default() }, (64 << 20, 2));
    let described = describe(&setup.store, "v").unwrap();
    assert_eq!((described.index, described.layers, described.unlisted), (None, 0, 0));
    assert_eq!(setup.store.list().unwrap().len(), 2);
    let text = describe(&setup.store, "v").unwrap().to_string();
    for part in
        ["v.index, hash tables (LSH)", "p-stable projections, cells of ", "tables         3 of 128 buckets"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let tables = SearchIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let error = tables.into_lists("a search for pairs").unwrap_err().to_string();
    let expected = "v.index: kind: found hash tables, expected inverted lists, which a search for pairs needs: \
                    `nearest index v` builds them";
    assert_eq!(error, expected);
    build_lists(&setup, "v", &Index { lists: Some(30), ..Index::default() }, (64 << 20, 2));
    assert!(matches!(SearchIndex::open(&setup.store, &vectors).unwrap(), Some(SearchIndex::Lists(_))));
    build(&setup, "v", &Lsh::default(), (64 << 20, 2));
    remove_index(&setup.store, "v").unwrap();
    assert!(SearchIndex::open(&setup.store, &vectors).unwrap().is_none());
    // The tables of removed vectors must not be used for other vectors of the same name.
    build(&setup, "v", &Lsh::default(), (64 << 20, 2));
    setup.store.remove("v").unwrap();
    setup.import("v", &clustered(Element::U8, 256, 1500, 8003));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let error = SearchIndex::open(&setup.store, &vectors).unwrap_err().to_string();
    assert!(error.starts_with("v.index: vectors: found an index of other vectors"), "{error}");
}

#[test]
fn recall_that_was_measured_on_a_replaced_index_is_not_kept() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 1000, 14_001));
    let queries = setup.file("q", &clustered(Element::U8, 16, 20, 14_002));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let opened = || SearchIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let rebuild = |is_lists: bool| match is_lists {
        true => drop(build_lists(&setup, "v", &Index::default(), (64 << 20, 2))),
        false => drop(build(&setup, "v", &Lsh::default(), (64 << 20, 2))),
    };
    for is_lists in [true, false] {
        rebuild(is_lists);
        let mut index = opened();
        rebuild(!is_lists);
        let job = setup.job(32 << 20, 2);
        let measured = index.measure_recall(&setup.store, &job, &vectors, &queries, (10, 3));
        let error = measured.unwrap_err().to_string();
        assert!(error.contains("another job changed dataset \"v.index\""), "{error}");
        assert_eq!(matches!(opened(), SearchIndex::Lists(_)), !is_lists);
        opened().measure_recall(&setup.store, &job, &vectors, &queries, (10, 3)).unwrap();
    }
}

#[test]
fn options_out_of_range_and_small_budgets_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 9001));
    setup.import("bits", &mutated(Element::Bits, 64, 500, 9002));
    let job = setup.job(64 << 20, 2);
    let refused = |name: &str, options: Lsh| {
        let vectors = Vectors::open(&setup.store, name).unwrap();
        build_lsh(&setup.store, &job, &vectors, &options).unwrap_err().to_string()
    };
    let base = Lsh::default();
    for (option, options, most) in [
        ("tables", Lsh { tables: Some(65), ..base.clone() }, 64),
        ("bits", Lsh { bits: Some(0), ..base.clone() }, 30),
        ("buckets", Lsh { buckets: Some(1 << 31), ..base.clone() }, 1 << 24),
    ] {
        let error = refused("v", options);
        assert!(error.starts_with(option) && error.ends_with(&format!("expected 1 to {most}")), "{error}");
    }
    let error = refused("v", Lsh { metric: Metric::Ip, ..base.clone() });
    assert_eq!(
        error,
        "metric is ip: expected one of l2, cosine, hamming: there are no hash functions for ip"
    );
    let error = refused("bits", Lsh { metric: Metric::Jaccard, ..base.clone() });
    assert!(error.ends_with("there are no hash functions for jaccard"), "{error}");
    let error = refused("bits", base.clone());
    assert_eq!(error, "metric is l2: expected hamming or jaccard for vectors of bits");
    let error = refused("v", Lsh { width: Some(-1.0), ..base.clone() });
    assert_eq!(error, "width is -1: expected a positive number");
    let error = refused("v", Lsh { metric: Metric::Cosine, width: Some(2.0), ..base.clone() });
    assert_eq!(error, "width is 2: expected no width: only hash functions for l2 have cells");
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let small = setup.job(1 << 20, 1);
    let error = build_lsh(&setup.store, &small, &vectors, &base).unwrap_err().to_string();
    assert!(error.starts_with("building an index of v cannot work in 1 MiB"), "{error}");
    assert!(SearchIndex::open(&setup.store, &vectors).unwrap().is_none());
    build(&setup, "v", &base, (64 << 20, 2));
    let queries = setup.file("q", &clustered(Element::U8, 8, 5, 9003));
    let (vectors, index) = open(&setup.store, "v");
    let index = SearchIndex::Tables(index);
    let ask = |search: &Search, approximate: &Approximate, job: &Job| {
        let found = index.search(job, &vectors, &queries, (search, approximate), &mut |_| Ok(()));
        found.unwrap_err().to_string()
    };
    let (search, approximate) = (Search::default(), Approximate::default());
    let error = ask(&Search { metric: Metric::Cosine, ..search.clone() }, &approximate, &job);
    assert_eq!(error, "metric is cosine: expected l2, for which the index of v was built");
    let batch = Approximate { strategy: Some(Strategy::Batch), ..approximate.clone() };
    let error = ask(&search, &batch, &job);
    assert_eq!(error, "strategy is batch: expected none: hash tables are searched in one way");
    let tiny = setup.store.job(Budget::new(64 << 10, 1), Cancel::default()).unwrap();
    let error = ask(&search, &approximate, &tiny);
    assert!(error.contains("a search in the index of v cannot work in 64 KiB"), "{error}");
}

#[test]
fn a_flipped_bit_is_an_error_that_names_the_file() {
    for (file, place) in [("lists", 3000), ("firsts", 8), ("functions", 40)] {
        let setup = Setup::new();
        setup.import("v", &clustered(Element::U8, 16, 4000, 10_001));
        let queries = setup.file("q", &clustered(Element::U8, 16, 20, 10_002));
        build(&setup, "v", &Lsh::default(), (64 << 20, 2));
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
        let (vectors, index) = open(&store, "v");
        let index = SearchIndex::Tables(index);
        let some = probing(32);
        let found = index.search(&job, &vectors, &queries, (&Search::default(), &some), &mut |_| Ok(()));
        let error = found.unwrap_err().to_string();
        assert!(error.contains(&format!("v.index/{file}")), "{file}: {error}");
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}

/// The files of this test have valid checksums, as if another program had written wrong contents.
#[test]
fn tables_that_do_not_describe_their_buckets_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &mutated(Element::U8, 16, 4000, 11_001));
    let queries = setup.file("q", &mutated(Element::U8, 16, 20, 11_002));
    build(&setup, "v", &Lsh { metric: Metric::Hamming, ..Lsh::default() }, (64 << 20, 2));
    let job = setup.job(32 << 20, 2);
    let dataset = setup.store.dataset("v.index").unwrap();
    let names: Vec<String> = dataset.file_names().map(str::to_string).collect();
    let (files, attributes) = (bytes_of(&setup.store, &job, "v"), dataset.attributes().to_vec());
    type Change = fn(&mut [Vec<u8>], &mut Vec<u8>, [usize; 3]);
    let number = |name: &str| names.iter().position(|found| found == name).unwrap();
    let places = [number("lists"), number("firsts"), number("functions")];
    let refused = |change: Change| {
        let (mut files, mut attributes) = (files.clone(), attributes.clone());
        change(&mut files, &mut attributes, places);
        let mut builder = setup.store.replace_dataset(&job, "v.index", "vector-lsh").unwrap();
        for (name, bytes) in names.iter().zip(&files) {
            let mut writer = builder.file(name, 4096, 4096).unwrap();
            writer.write(bytes).unwrap();
            builder.add(writer).unwrap();
        }
        builder.commit(&attributes).unwrap();
        let vectors = Vectors::open(&setup.store, "v").unwrap();
        let index = match SearchIndex::open(&setup.store, &vectors) {
            Ok(index) => index.unwrap(),
            Err(error) => return error.to_string(),
        };
        let search = Search { metric: Metric::Hamming, ..Search::default() };
        let ask = index.search(&job, &vectors, &queries, (&search, &probing(32)), &mut |_| Ok(()));
        ask.map(|_| "an answer".to_string()).unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(refused(|_, _, _| ()), "an answer");
    let cases: [(&str, Change); 15] = [
        ("v.index: magic: found XNSHVLSH", |_, a, _| a[0] = b'X'),
        ("v.index: version: found 9, expected 1: build the index again", |_, a, _| a[8] = 9),
        ("v.index: element", |_, a, _| a[12] = 77),
        ("v.index: metric: found 9", |_, a, _| a[20] = 9),
        ("v.index: tables: found 0", |_, a, _| a[40..44].fill(0)),
        ("v.index: functions of a table: found 31", |_, a, _| a[44] = 31),
        ("v.index: buckets of a table", |_, a, _| a[48..56].fill(255)),
        ("v.index: width of a cell", |_, a, _| a[72..80].fill(255)),
        ("v.index: points of recall", |_, a, _| a[108] = 200),
        ("v.index: header", |_, a, _| a.truncate(50)),
        ("v.index/firsts: length", |files, _, [_, firsts, _]| files[firsts].truncate(16)),
        ("v.index/lists: directory", |files, _, [_, firsts, _]| files[firsts][8..16].fill(255)),
        ("v.index/lists: directory", |files, _, [_, firsts, _]| files[firsts][0] = 1),
        ("v.index: position of a bit", |files, _, [_, _, functions]| files[functions][3] = 1),
        ("v.index/lists: vectors: found row", |files, _, [lists, _, _]| {
            files[lists].iter_mut().for_each(|byte| *byte = 255)
        }),
    ];
    for (expected, change) in cases {
        let error = refused(change);
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn a_build_that_is_stopped_or_fails_leaves_the_former_index_or_none() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 20_000, 12_001));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let stopped = |phase: &str| {
        let cancel = Cancel::default();
        let job = setup.store.job(Budget::new(64 << 20, 2), cancel.clone()).unwrap();
        if phase.is_empty() {
            cancel.cancel();
        }
        let (watched, wanted) = (job.clone(), phase.to_string());
        let watcher = std::thread::spawn(move || {
            while watched.progress().state().phase != wanted && !watched.cancel().is_cancelled() {
                std::thread::yield_now();
            }
            cancel.cancel();
        });
        let built = build_lsh(&setup.store, &job, &vectors, &Lsh::default());
        job.cancel().cancel();
        watcher.join().unwrap();
        assert_eq!(job.budget().reserved_bytes(), 0);
        let is_built = built.is_ok();
        assert!(built.map_or_else(|error| error.is_cancelled(), |_| true));
        is_built
    };
    // The last phases are short, so the build may be complete before it is stopped.
    for phase in ["", "sampling", "hashing", "writing buckets", "searching", "measuring recall"] {
        let is_built = stopped(phase);
        assert_eq!(SearchIndex::open(&setup.store, &vectors).unwrap().is_some(), is_built, "{phase}");
        if is_built {
            setup.store.remove("v.index").unwrap();
        }
    }
    // An interrupted build of hash tables must leave the old inverted lists.
    build_lists(&setup, "v", &Index { lists: Some(50), ..Index::default() }, (64 << 20, 2));
    let id = setup.store.dataset("v.index").unwrap().id();
    assert!(!stopped(""));
    assert_eq!(setup.store.dataset("v.index").unwrap().id(), id);
}

/// Compares both kinds of an index on the same vectors. The command is
/// `cargo test -p inshore-vectors -- --ignored --nocapture lists_and`.
#[test]
#[ignore = "a measurement"]
fn lists_and_tables_at_the_same_recall() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 64, 60_000, 13_001));
    let queries = setup.file("q", &clustered(Element::U8, 64, 100, 13_002));
    let search = Search::default();
    let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
    for recall in [0.8, 0.9, 0.95] {
        let good = Approximate { recall, ..Approximate::default() };
        build(&setup, "v", &Lsh::default(), (64 << 20, 2));
        let (rows, tables) = ask(&setup, "v", &queries, (&search, &good), (64 << 20, 2));
        let hashed = pairs(&rows).intersection(&pairs(&exact)).count() as f64 / exact.len() as f64;
        build_lists(&setup, "v", &Index::default(), (64 << 20, 2));
        let (rows, lists) = crate::index::ask(&setup, "v", &queries, (&search, &good), (64 << 20, 2));
        let listed = pairs(&rows).intersection(&pairs(&exact)).count() as f64 / exact.len() as f64;
        println!(
            "recall {recall}: tables {hashed:.3} with {} distances a query, lists {listed:.3} with {}",
            tables.compared / 100,
            lists.compared / 100
        );
    }
}
