//! Tests of layers, which hold vectors that were added after the build of an index. Layers must answer like the lists
//! of a build, and a search must find a cluster that drifts.

use std::sync::Arc;

use inshore_store::{Device, History, Memory, Recording, Store, WriteFate, after_crash};
use inshore_vectors::{
    Approximate, Element, Index, Metric, Search, Strategy, VectorIndex, Vectors, compact_vectors, describe,
    remove, remove_index, search as search_vectors,
};

use crate::{
    changes::{Model, add, remove as remove_ids, upsert},
    index::{ask, build},
    support::{Made, Random, Row, Setup, rows_of},
};

const EVERYTHING: Approximate = Approximate { recall: 1.0, probes: Some(1 << 31), strategy: None };

/// Returns vectors around several centers. The first center is moved by `drift` in each dimension.
fn around(element: Element, dimensions: usize, count: usize, drift: f64, random: &mut Random) -> Made {
    let mut centers = Random(5);
    let points: Vec<f64> = (0..24 * dimensions).map(|_| centers.normal() * 25.0 + 110.0).collect();
    let (mut place, mut center) = (0, 0);
    Made::new(element, dimensions, count, || {
        if place == 0 {
            // One vector in six belongs to the cluster that drifts.
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
        // A layer is written once the tail has 1 MiB of rows.
        let dimensions = 256;
        let rows = if element == Element::F32 { 1100 } else { 4200 };
        let base = around(element, dimensions, 1500, 0.0, &mut random);
        setup.import("v", &base);
        model.add(&base);
        let copies = (element != Element::F32).then_some(3);
        build(&setup, "v", &Index { metric, lists: Some(30), seed: 1, copies, codes: None }, (64 << 20, 2));
        let asked = around(element, dimensions, 20, 0.0, &mut random);
        let queries = setup.file("q", &asked);
        let mut seen = Vec::new();
        for round in 0..4 {
            let added = around(element, dimensions, rows + round, 0.0, &mut random);
            let changed = add(&setup, &added).unwrap();
            assert_eq!((changed.index_error, changed.unlisted), (None, 0));
            model.add(&added);
            // These rows are too few for a layer, so no list has them. Some of them replace rows of layers.
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
        // The new index covers all rows, and the layers of the old index are removed.
        build(
            &setup,
            "v",
            &Index { metric, lists: Some(40), seed: 1, copies: None, codes: None },
            (64 << 20, 2),
        );
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
    // All added vectors belong to the same list.
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
    // The crashes left states without a layer, and states with a layer.
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn a_compaction_keeps_ids_and_answers_and_frees_rows() {
    for (element, is_indexed) in
        [(Element::U8, true), (Element::F32, true), (Element::F16, false), (Element::Bits, false)]
    {
        let (setup, mut random, mut model) = (Setup::new(), Random(127), Model::default());
        let metric = if element == Element::Bits { Metric::Hamming } else { Metric::L2 };
        let make = |random: &mut Random, count: usize| {
            Made::new(element, 128, count, || (110.0 + 40.0 * random.normal()).round().clamp(0.0, 255.0))
        };
        let base = make(&mut random, 3000);
        setup.import("v", &base);
        model.add(&base);
        if is_indexed {
            build(
                &setup,
                "v",
                &Index { metric, lists: Some(40), seed: 1, ..Index::default() },
                (64 << 20, 2),
            );
        }
        let asked = make(&mut random, 20);
        let queries = setup.file("q", &asked);
        let search = Search { k: 15, metric, ..Search::default() };
        for round in 0..3 {
            let added = make(&mut random, 9000);
            add(&setup, &added).unwrap();
            model.add(&added);
            let ids: Vec<u64> = (0..40).map(|number| 4 + 37 * number).collect();
            let replacing = make(&mut random, 40);
            upsert(&setup, &replacing, &ids).unwrap();
            model.upsert(&replacing, &ids);
            let gone: Vec<u64> = model.vectors.keys().copied().filter(|id| id % 9 == round).collect();
            remove_ids(&setup, &gone).unwrap();
            model.remove(&gone);
            let opened = Vectors::open(&setup.store, "v").unwrap();
            let before = opened.info().clone();
            let job = setup.job(64 << 20, 2);
            let compacted = compact_vectors(&setup.store, &job, "v").unwrap();
            assert_eq!((job.budget().reserved_bytes(), compacted.freed), (0, before.removed));
            let info = Vectors::open(&setup.store, "v").unwrap().info().clone();
            assert_eq!((&info, info.removed, info.vectors), (&compacted.info, 0, model.vectors.len() as u64));
            assert_eq!((info.next_id, compacted.lists.is_some()), (before.next_id, is_indexed));
            let expected = model.answer(&base, &asked, &search);
            let (rows, _) = setup.search("v", &queries, &search, (16 << 20, 2));
            assert_eq!(rows, expected, "{element} round {round}");
            if is_indexed {
                assert_eq!((layers(&setup), setup.store.list().unwrap().len()), ((0, 0), 2));
                let (found, _) = ask(&setup, "v", &queries, (&search, &EVERYTHING), (32 << 20, 2));
                assert_eq!(found, expected, "{element} round {round}");
                let good = Approximate { recall: 0.9, ..Approximate::default() };
                let (_, searched) = ask(&setup, "v", &queries, (&search, &good), (32 << 20, 2));
                assert!(searched.recall_estimate.is_some_and(|recall| recall >= 0.9), "{searched:?}");
            }
            // A second compaction has nothing to do, and a search that is open continues to read the old files.
            let id = Vectors::open(&setup.store, "v").unwrap().id();
            assert_eq!(compact_vectors(&setup.store, &job, "v").unwrap().freed, 0);
            assert_eq!(Vectors::open(&setup.store, "v").unwrap().id(), id);
            let mut old = Vec::new();
            search_vectors(&job, &opened, &queries, &search, &mut |batch| {
                old.extend(rows_of(&batch));
                Ok(())
            })
            .unwrap();
            assert_eq!(old, expected, "{element} round {round}");
        }
    }
}

#[test]
fn a_compaction_without_vectors_is_refused_and_opens_sealed_ones() {
    let (setup, mut random) = (Setup::new(), Random(131));
    setup.import("v", &around(Element::U8, 8, 20, 0.0, &mut random));
    setup.store.seal("v").unwrap();
    assert!(remove_ids(&setup, &[1]).is_err());
    let job = setup.job(16 << 20, 1);
    assert_eq!(compact_vectors(&setup.store, &job, "v").unwrap().freed, 0);
    remove_ids(&setup, &(0..20).collect::<Vec<_>>()).unwrap();
    let error = compact_vectors(&setup.store, &job, "v").unwrap_err().to_string();
    assert!(error.contains("none that was not removed, expected at least one: `nearest rm v`"), "{error}");
}

#[test]
fn every_crash_of_a_compaction_leaves_the_old_vectors_and_index_or_the_new_ones() {
    const EXTENTS: u32 = 300;
    let history = History::default();
    let device: Arc<dyn Device> = Arc::new(Recording::new(Arc::new(Memory::new(EXTENTS)), 0, &history));
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_on(folder.path(), vec![device]).unwrap();
    let setup = Setup { folder, store };
    let mut random = Random(137);
    let base = around(Element::U8, 16, 2000, 0.0, &mut random);
    setup.import("v", &base);
    build(&setup, "v", &Index { lists: Some(12), ..Index::default() }, (64 << 20, 2));
    add(&setup, &around(Element::U8, 16, 500, 0.0, &mut random)).unwrap();
    remove_ids(&setup, &(0..900).map(|id| 2 * id).collect::<Vec<_>>()).unwrap();
    let begin = history.lock().unwrap().len();
    let queries = Made { values: base.values[..16 * 3].to_vec(), ..base };
    let search = Search::default();
    let (expected, _) = setup.search("v", &setup.file("q", &queries), &search, (16 << 20, 1));
    compact_vectors(&setup.store, &setup.job(64 << 20, 1), "v").unwrap();
    let history = history.lock().unwrap().clone();
    let mut seen = Vec::new();
    for end in begin..=history.len() {
        for fate in [WriteFate::Kept, WriteFate::Lost] {
            let left = after_crash(&history[..end], &[Memory::new(EXTENTS)], |_| fate);
            let left = left.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open_on(folder.path(), left).unwrap();
            let setup = Setup { folder, store };
            let file = setup.file("q", &queries);
            let (exact, _) = setup.search("v", &file, &search, (16 << 20, 1));
            let (found, _) = ask(&setup, "v", &file, (&search, &EVERYTHING), (16 << 20, 1));
            assert_eq!((&found, &exact), (&expected, &expected), "crash after {end}, {fate:?}");
            let rows = Vectors::open(&setup.store, "v").unwrap().info().vectors;
            if !seen.contains(&rows) {
                seen.push(rows);
            }
        }
    }
    assert_eq!(seen, [2500, 1600]);
}
