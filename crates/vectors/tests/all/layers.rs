//! These tests add vectors behind an index: layers answer as the lists of a build do, and a drifting cluster is found.

use std::sync::Arc;

use inshore_store::{Device, History, Memory, Recording, Store, WriteFate, after_crash};
use inshore_vectors::{
    Approximate, Element, Index, Metric, Search, Strategy, VectorIndex, Vectors, describe, remove,
    remove_index,
};

use crate::{
    changes::{Model, add, remove as remove_ids, upsert},
    index::{ask, build},
    support::{Made, Random, Row, Setup},
};

const EVERYTHING: Approximate = Approximate { recall: 1.0, probes: Some(1 << 31), strategy: None };

/// Returns vectors around some centers, the first of which is at `drift`.
fn around(element: Element, dimensions: usize, count: usize, drift: f64, random: &mut Random) -> Made {
    let mut centers = Random(5);
    let points: Vec<f64> = (0..24 * dimensions).map(|_| centers.normal() * 25.0 + 110.0).collect();
    let (mut place, mut center) = (0, 0);
    Made::new(element, dimensions, count, || {
        if place == 0 {
            // Every sixth vector is of the cluster that drifts.
            center = if random.below(6) == 0 { 0 } else { 1 + random.below(23) as usize };
        }
        let moved = if center == 0 { drift } else { 0.0 };
        let value = points[center * dimensions + place] + moved + random.normal() * 9.0;
        place = (place + 1) % dimensions;
        match element {
            Element::F32 => value,
            Element::I8 => (value - 110.0).clamp(-128.0, 127.0).round(),
            _ => value.clamp(0.0, 255.0).round(),
        }
    })
}

fn layers(setup: &Setup) -> (u64, u64) {
    let described = describe(&setup.store, "v").unwrap();
    assert!(described.index.is_some(), "{described}");
    (described.layers, described.unlisted)
}

#[test]
fn layers_whose_lists_are_all_probed_answer_as_the_exact_search() {
    for (element, metric) in
        [(Element::U8, Metric::L2), (Element::F32, Metric::Cosine), (Element::I8, Metric::Ip)]
    {
        let (setup, mut random, mut model) = (Setup::new(), Random(101), Model::default());
        // A layer begins with 1 MiB of rows.
        let dimensions = 256;
        let rows = if element == Element::F32 { 1100 } else { 4200 };
        let base = around(element, dimensions, 1500, 0.0, &mut random);
        setup.import("v", &base);
        model.add(&base);
        let copies = (element != Element::F32).then_some(3);
        build(&setup, "v", &Index { metric, lists: Some(30), seed: 1, copies }, (64 << 20, 2));
        let asked = around(element, dimensions, 20, 0.0, &mut random);
        let queries = setup.file("q", &asked);
        let mut seen = Vec::new();
        for round in 0..4 {
            let added = around(element, dimensions, rows + round, 0.0, &mut random);
            let changed = add(&setup, &added).unwrap();
            assert_eq!((changed.index_error, changed.unlisted), (None, 0));
            model.add(&added);
            // Some rows in no list, some in no layer any more.
            let ids: Vec<u64> = (0..60).map(|number| number * 23 + round as u64).collect();
            let replacing = around(element, dimensions, ids.len(), 0.0, &mut random);
            assert_eq!(upsert(&setup, &replacing, &ids).unwrap().unlisted, 60);
            model.upsert(&replacing, &ids);
            let gone: Vec<u64> = model.vectors.keys().copied().filter(|id| id % 50 == round as u64).collect();
            remove_ids(&setup, &gone).unwrap();
            model.remove(&gone);
            let search = Search { k: 20, metric, ..Search::default() };
            let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
            assert_eq!(exact, model.answer(&base, &asked, &search), "{element} round {round}");
            for (strategy, memory) in [(Strategy::Single, (16 << 20, 1)), (Strategy::Batch, (32 << 20, 2))] {
                let approximate = Approximate { strategy: Some(strategy), ..EVERYTHING };
                let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), memory);
                assert_eq!(rows, exact, "{element} {metric:?} {strategy} round {round}");
                assert_eq!(found.vectors, model.vectors.len() as u64);
            }
            seen.push(layers(&setup));
        }
        assert!(
            seen.iter().all(|(layers, unlisted)| (1..=2).contains(layers) && *unlisted == 60),
            "{seen:?}"
        );
        // A new index has all rows, and the layers of the former one are gone.
        build(&setup, "v", &Index { metric, lists: Some(40), seed: 1, copies: None }, (64 << 20, 2));
        assert_eq!((layers(&setup), setup.store.list().unwrap().len()), ((0, 0), 2));
    }
}

#[test]
fn a_list_that_grows_is_read_in_chunks() {
    let (setup, mut random, mut model) = (Setup::new(), Random(103), Model::default());
    let base = around(Element::U8, 128, 2000, 0.0, &mut random);
    setup.import("v", &base);
    model.add(&base);
    let built = build(&setup, "v", &Index { lists: Some(60), ..Index::default() }, (64 << 20, 2));
    // All vectors that are added belong to one list.
    let point: Vec<f64> = base.rows()[7].to_vec();
    let mut place = 0;
    let added = Made::new(Element::U8, 128, 20_000, || {
        place = (place + 1) % 128;
        (point[(place + 127) % 128] + random.normal() / 2.0).round().clamp(0.0, 255.0)
    });
    add(&setup, &added).unwrap();
    model.add(&added);
    assert_eq!(layers(&setup), (1, 0));
    assert!(built.info.list_vectors_max < 2000);
    let one = Made { values: point, ..added.clone() };
    let search = Search { k: 50, ..Search::default() };
    let expected = model.answer(&base, &one, &search);
    for strategy in [Strategy::Single, Strategy::Batch] {
        let approximate = Approximate { strategy: Some(strategy), probes: Some(8), recall: 1.0 };
        let (rows, found) = ask(&setup, "v", &setup.file("one", &one), (&search, &approximate), (8 << 20, 1));
        assert_eq!(rows, expected, "{strategy}");
        assert!(found.compared > 15_000, "{found:?}");
    }
}

fn recall(found: &[Row], exact: &[Row]) -> f64 {
    let has = |row: &&Row| found.iter().any(|other| (other.0, other.2) == (row.0, row.2));
    exact.iter().filter(has).count() as f64 / exact.len() as f64
}

#[test]
fn a_cluster_that_drifts_for_twenty_rounds_is_found_without_a_new_build() {
    let (setup, mut random) = (Setup::new(), Random(107));
    let (element, dimensions, count) = (Element::U8, 64, 40_000);
    setup.import("v", &around(element, dimensions, count, 0.0, &mut random));
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    let (mut live, mut most): (Vec<u64>, u64) = ((0..count as u64).collect(), 0);
    for round in 1..=20 {
        let drift = 4.0 * f64::from(round);
        let added = around(element, dimensions, count / 20, drift, &mut random);
        let first = add(&setup, &added).unwrap().first_id.unwrap();
        live.extend(first..first + (count / 20) as u64);
        let gone: Vec<u64> =
            (0..count / 50).map(|_| live.swap_remove(random.below(live.len() as u64) as usize)).collect();
        assert_eq!(remove_ids(&setup, &gone).unwrap().taken, gone.len() as u64);
        most = most.max(layers(&setup).0);
        if round % 5 == 0 {
            let queries = setup.file("q", &around(element, dimensions, 200, drift, &mut random));
            let (exact, _) = setup.search("v", &queries, &Search::default(), (16 << 20, 2));
            let approximate = Approximate { recall: 0.95, ..Approximate::default() };
            let asked = (&Search::default(), &approximate);
            let (found, searched) = ask(&setup, "v", &queries, asked, (32 << 20, 2));
            let recall = recall(&found, &exact);
            assert!(recall >= 0.95, "round {round}: recall {recall}");
            assert!(searched.compared < 200 * live.len() as u64 / 2, "round {round}: {searched:?}");
        }
    }
    assert!((1..=5).contains(&most), "{most} layers");
}

#[test]
fn vectors_are_removed_with_their_layers() {
    let (setup, mut random) = (Setup::new(), Random(109));
    setup.import("v", &around(Element::U8, 128, 500, 0.0, &mut random));
    let more = around(Element::U8, 128, 9000, 0.0, &mut random);
    for index_only in [true, false] {
        build(&setup, "v", &Index { lists: Some(9), ..Index::default() }, (64 << 20, 2));
        add(&setup, &more).unwrap();
        assert_eq!((layers(&setup), setup.store.list().unwrap().len()), ((1, 0), 3));
        match index_only {
            true => remove_index(&setup.store, "v").unwrap(),
            false => remove(&setup.store, "v").unwrap(),
        }
        assert_eq!(setup.store.list().unwrap().len(), usize::from(index_only));
    }
}

#[test]
fn every_crash_while_layers_are_written_leaves_an_index_that_answers() {
    const EXTENTS: u32 = 300;
    let history = History::default();
    let device: Arc<dyn Device> = Arc::new(Recording::new(Arc::new(Memory::new(EXTENTS)), 0, &history));
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_on(folder.path(), vec![device]).unwrap();
    let setup = Setup { folder, store };
    let mut random = Random(113);
    let base = around(Element::U8, 256, 300, 0.0, &mut random);
    setup.import("v", &base);
    build(&setup, "v", &Index { lists: Some(6), ..Index::default() }, (64 << 20, 2));
    let begin = history.lock().unwrap().len();
    let added: Vec<Made> = (0..2).map(|_| around(Element::U8, 256, 4200, 0.0, &mut random)).collect();
    let mut acknowledged = vec![(begin, 300)];
    for made in &added {
        let rows = add(&setup, made).unwrap().info.vectors;
        acknowledged.push((history.lock().unwrap().len(), rows));
    }
    assert_eq!(layers(&setup), (1, 0));
    let history = history.lock().unwrap().clone();
    let queries = Made { values: base.values[..256 * 3].to_vec(), ..base };
    let search = Search::default();
    let mut seen = Vec::new();
    for end in (begin..=history.len()).step_by(3) {
        for fate in [WriteFate::Kept, WriteFate::Lost] {
            let left = after_crash(&history[..end], &[Memory::new(EXTENTS)], |_| fate);
            let left = left.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open_on(folder.path(), left).unwrap();
            let setup = Setup { folder, store };
            let vectors = Vectors::open(&setup.store, "v").unwrap();
            let least = acknowledged.iter().rfind(|(after, _)| *after <= end).unwrap().1;
            assert!(vectors.info().vectors >= least, "crash after {end}, {fate:?}");
            let index = VectorIndex::open(&setup.store, &vectors).unwrap();
            assert!(index.is_some());
            let file = setup.file("q", &queries);
            let (exact, _) = setup.search("v", &file, &search, (16 << 20, 1));
            let (found, _) = ask(&setup, "v", &file, (&search, &EVERYTHING), (16 << 20, 1));
            assert_eq!(found, exact, "crash after {end}, {fate:?}");
            let state = (vectors.info().vectors, layers(&setup));
            if !seen.contains(&state) {
                seen.push(state);
            }
        }
    }
    // Rows without a layer, and with one.
    assert!(seen.len() >= 4, "{seen:?}");
}
