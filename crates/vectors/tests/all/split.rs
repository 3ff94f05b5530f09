//! Tests of lists that grow: a compaction splits them, and the new index answers as before.

use inshore_vectors::{
    Approximate, Compacted, Element, Index, IndexInfo, ListSizes, MeasuredOn, Metric, Search, Strategy,
    VectorIndex, Vectors, compact_vectors, describe_lists, measure_recall,
};

use crate::{
    changes::{Model, add, remove as remove_ids},
    index::{EVERYTHING, ask, build, bytes_of},
    layers::{around, near, recall},
    support::{Made, Random, Setup},
};

fn compact(setup: &Setup, (memory_bytes, threads): (u64, usize)) -> Compacted {
    let job = setup.job(memory_bytes, threads);
    let compacted = compact_vectors(&setup.store, &job, "v").unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    compacted
}

fn sizes(setup: &Setup) -> ListSizes {
    let job = setup.job(16 << 20, 1);
    let sizes = describe_lists(&setup.store, &job, "v").unwrap().list_sizes.expect("an index of lists");
    assert_eq!(job.budget().reserved_bytes(), 0);
    sizes
}

fn index_info(setup: &Setup) -> IndexInfo {
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    VectorIndex::open(&setup.store, &vectors).unwrap().unwrap().info().clone()
}

/// Imports 2,000 vectors, builds 60 lists of them, and adds 9,000 vectors around one point.
fn grown(element: Element, (metric, copies): (Metric, Option<u64>)) -> (Setup, Model, Made) {
    let (setup, mut random, mut model) = (Setup::new(), Random(211), Model::default());
    let base = around(element, 128, 2000, 0.0, &mut random);
    setup.import("v", &base);
    model.add(&base);
    build(&setup, "v", &Index { metric, lists: Some(60), seed: 3, copies, codes: None }, (64 << 20, 2));
    let added = near(element, base.rows()[7], 9000, 4.0, &mut random);
    add(&setup, &added).unwrap();
    model.add(&added);
    (setup, model, base)
}

#[test]
fn a_list_that_grows_is_split_and_answers_stay() {
    for (element, metric, copies) in [
        (Element::U8, Metric::L2, None),
        (Element::U8, Metric::Ip, Some(3)),
        (Element::F32, Metric::Cosine, None),
    ] {
        let (setup, mut model, base) = grown(element, (metric, copies));
        let before = (sizes(&setup), index_info(&setup));
        let gone: Vec<u64> = (0..1500).map(|number| 5 * number).collect();
        remove_ids(&setup, &gone).unwrap();
        model.remove(&gone);
        let compacted = compact(&setup, (48 << 20, 2));
        let after = (sizes(&setup), index_info(&setup));
        assert!(compacted.split > Some(0), "{element}: {compacted:?}");
        assert_eq!(compacted.lists, Some(after.1.lists));
        // The large list had about 9,000 vectors of which 7,500 are left, and the plan is 33 vectors.
        assert!(before.0.largest > 4000 && after.0.largest < 500, "{element}: {before:?} {after:?}");
        assert!(after.1.lists > before.1.lists + 100, "{element}: {before:?} {after:?}");
        assert!(after.1.groups > before.1.groups && after.1.sample > before.1.sample, "{after:?}");
        assert_eq!(after.1.recall.measured_on, MeasuredOn::HeldOutVectors);
        assert_eq!((after.1.seed, after.1.copies.is_some()), (3, copies.is_some()));
        let mut random = Random(223);
        let asked = near(element, base.rows()[7], 20, 4.0, &mut random);
        let queries = setup.file("q", &asked);
        let search = Search { k: 10, metric, ..Search::default() };
        let expected = model.answer(&base, &asked, &search);
        assert_eq!(setup.search("v", &queries, &search, (16 << 20, 2)).0, expected);
        for (strategy, memory) in [(Strategy::Single, (16 << 20, 1)), (Strategy::Batch, (32 << 20, 2))] {
            let approximate = Approximate { strategy: Some(strategy), ..EVERYTHING };
            let (rows, _) = ask(&setup, "v", &queries, (&search, &approximate), memory);
            assert_eq!(rows, expected, "{element} {metric:?} {strategy}");
            let approximate = Approximate { strategy: Some(strategy), recall: 0.9, ..Approximate::default() };
            let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), memory);
            assert!(recall(&rows, &expected) >= 0.85, "{element} {strategy}: {}", recall(&rows, &expected));
            assert!(found.recall_estimate.is_some_and(|recall| recall >= 0.9), "{found:?}");
        }
    }
}

#[test]
fn every_budget_and_number_of_threads_splits_into_the_same_lists() {
    for copies in [None, Some(2)] {
        let results = [(24 << 20, 1), (64 << 20, 3), (300 << 20, 2)].map(|budget| {
            let (setup, ..) = grown(Element::U8, (Metric::L2, copies));
            let compacted = compact(&setup, budget);
            let job = setup.job(64 << 20, 1);
            let info = index_info(&setup);
            let points = (info.recall.points, info.copies.map(|copies| copies.recall.points));
            (bytes_of(&setup.store, &job, "v"), compacted.split, points)
        });
        assert!(results[0].0 == results[1].0 && results[0].0 == results[2].0, "{copies:?}");
        assert_eq!((&results[0].1, &results[0].2), (&results[1].1, &results[1].2));
        assert_eq!((&results[0].1, &results[0].2), (&results[2].1, &results[2].2));
    }
}

#[test]
fn a_cluster_that_drifts_and_is_compacted_costs_no_more_than_at_first() {
    let (setup, mut random) = (Setup::new(), Random(227));
    let (dimensions, count) = (64, 20_000);
    setup.import("v", &around(Element::U8, dimensions, count, 0.0, &mut random));
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    let ask_at = |random: &mut Random, drift: f64| {
        let queries = setup.file("q", &around(Element::U8, dimensions, 200, drift, random));
        let (exact, _) = setup.search("v", &queries, &Search::default(), (16 << 20, 2));
        let approximate = Approximate { recall: 0.95, ..Approximate::default() };
        let (found, searched) = ask(&setup, "v", &queries, (&Search::default(), &approximate), (32 << 20, 2));
        (recall(&found, &exact), searched.compared)
    };
    let (_, first) = ask_at(&mut random, 0.0);
    let mut last = 0;
    for round in 1..=4 {
        let drift = 20.0 * f64::from(round);
        // The vectors of the cluster that drifts are half of the added ones.
        for _ in 0..2 {
            add(&setup, &around(Element::U8, dimensions, count / 10, drift, &mut random)).unwrap();
        }
        let compacted = compact(&setup, (32 << 20, 2));
        assert!(compacted.lists > Some(last), "round {round}: {compacted:?}");
        last = compacted.lists.unwrap();
        let (recall, compared) = ask_at(&mut random, drift);
        assert!(recall >= 0.95, "round {round}: recall {recall}");
        // There are up to 1.8 times as many vectors.
        assert!(compared as f64 <= 1.5 * first as f64, "round {round}: {compared} after {first}");
    }
    let ListSizes { planned, largest, .. } = sizes(&setup);
    assert!(largest <= 4 * planned, "{largest} of {planned}");
}

#[test]
fn a_list_of_equal_vectors_is_not_split() {
    let (setup, mut random) = (Setup::new(), Random(229));
    let base = around(Element::U8, 128, 1000, 0.0, &mut random);
    setup.import("v", &base);
    build(&setup, "v", &Index { lists: Some(60), ..Index::default() }, (64 << 20, 2));
    let point = vec![3.0; 128];
    for _ in 0..2 {
        add(&setup, &near(Element::U8, &point, 9000, 0.0, &mut random)).unwrap();
    }
    // The first compaction may separate the equal vectors from the others of their list.
    let splits = [0, 1].map(|round| {
        let compacted = compact(&setup, (32 << 20, 2));
        if round == 0 {
            add(&setup, &near(Element::U8, &point, 9000, 0.0, &mut random)).unwrap();
        }
        compacted.split
    });
    assert_eq!(splits[1], Some(0), "{splits:?}");
    let one = Made { values: point, ..base };
    let search = Search { k: 30, ..Search::default() };
    let queries = setup.file("q", &one);
    let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
    assert_eq!(ask(&setup, "v", &queries, (&search, &EVERYTHING), (16 << 20, 1)).0, exact);
}

#[test]
fn a_table_of_the_users_queries_is_scaled_and_keeps_its_date() {
    let (setup, _, base) = grown(Element::U8, (Metric::L2, Some(3)));
    let queries = setup.file("q", &base);
    let job = setup.job(64 << 20, 2);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let mut index = VectorIndex::open(&setup.store, &vectors).unwrap().unwrap();
    measure_recall(&setup.store, &job, &vectors, &mut index, &queries, 50, 5).unwrap();
    let before = index_info(&setup);
    compact(&setup, (64 << 20, 2));
    let after = index_info(&setup);
    let (old, new) = (&before.recall, &after.recall);
    assert!(after.lists > before.lists);
    assert_eq!((old.k, old.queries, old.measured_seconds), (new.k, new.queries, new.measured_seconds));
    assert_eq!(new.measured_on, MeasuredOn::Queries);
    assert_eq!(new.points[0].probes, after.lists.div_ceil(before.lists));
    assert_eq!(new.points[0].recall, old.points[0].recall);
    let copied = |info: &IndexInfo| info.copies.as_ref().unwrap().recall.points[0];
    assert_eq!(copied(&after).recall, copied(&before).recall);
    assert!(copied(&after).probes > copied(&before).probes);
}

#[test]
fn the_sizes_of_lists_say_when_to_compact() {
    let (setup, ..) = grown(Element::U8, (Metric::L2, None));
    let text =
        |setup: &Setup| describe_lists(&setup.store, &setup.job(16 << 20, 1), "v").unwrap().to_string();
    let before = sizes(&setup);
    assert!(before.planned == 33 && before.largest > 5000 && before.oversized > 0, "{before:?}");
    let expected = format!(
        "list sizes     33 vectors planned, {} in the largest with its layers, {} lists with more than twice the plan, which `nearest \
         compact v` splits",
        before.largest, before.oversized
    );
    assert!(text(&setup).contains(&expected), "{}", text(&setup));
    compact(&setup, (64 << 20, 2));
    assert!(!text(&setup).contains("splits"), "{}", text(&setup));
}
