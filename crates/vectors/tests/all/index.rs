//! Tests of indexes: builds, approximate searches and recall.

use arrow_array::RecordBatch;
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_vectors::{
    Approximate, ApproximateSearched, Built, Element, Error, Index, Lsh, Metric, Search, Source, Strategy,
    VectorIndex, Vectors, add_vectors, build_index, build_lsh, describe, import, index_name, measure_recall,
    remove_index, search_index,
};

use crate::{
    hazards::flip,
    support::{Made, Random, Row, Setup, rows_of},
};

/// Returns vectors in clusters, which resemble real data. The clusters depend only on `seed / 1000`, so vectors and
/// queries can have the same distribution.
pub fn clustered(element: Element, dimensions: usize, count: usize, seed: u64) -> Made {
    let mut centers = Random(seed / 1000);
    let points: Vec<f64> = (0..50 * dimensions).map(|_| centers.normal() * 30.0 + 100.0).collect();
    let mut random = Random(seed);
    let mut place = 0;
    let mut point = 0;
    Made::new(element, dimensions, count, || {
        if place == 0 {
            point = random.below(50) as usize;
        }
        let value = points[point * dimensions + place] + random.normal() * 12.0;
        place = (place + 1) % dimensions;
        match element {
            Element::F32 => value - 100.0,
            Element::U8 => value.clamp(0.0, 255.0).round(),
            _ => (value - 100.0).clamp(-128.0, 127.0).round(),
        }
    })
}

pub fn build(setup: &Setup, name: &str, options: &Index, (memory_bytes, threads): (u64, usize)) -> Built {
    let job = setup.job(memory_bytes, threads);
    let vectors = Vectors::open(&setup.store, name).unwrap();
    let built = build_index(&setup.store, &job, &vectors, options).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    built
}

pub fn ask<'a>(
    setup: &Setup,
    name: &str,
    queries: impl Into<Source<'a>>,
    (search, approximate): (&Search, &Approximate),
    (memory_bytes, threads): (u64, usize),
) -> (Vec<Row>, ApproximateSearched) {
    let job = setup.job(memory_bytes, threads);
    let (vectors, index) = open(setup, name);
    let mut rows = Vec::new();
    let mut each = |batch: RecordBatch| {
        rows.extend(rows_of(&batch));
        Ok(())
    };
    let found = search_index(&job, &vectors, &index, queries, search, approximate, &mut each).unwrap();
    assert_eq!((job.budget().reserved_bytes(), found.rows), (0, rows.len() as u64));
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    (rows, found)
}

fn open(setup: &Setup, name: &str) -> (Vectors, VectorIndex) {
    let vectors = Vectors::open(&setup.store, name).unwrap();
    let index = VectorIndex::open(&setup.store, &vectors).unwrap().expect("an index");
    (vectors, index)
}

/// Returns the bytes of each file of an index.
pub fn bytes_of(store: &Store, job: &Job, name: &str) -> Vec<Vec<u8>> {
    let dataset = store.dataset(&index_name(name)).unwrap();
    let read = |name: &str| {
        let file = dataset.file(name).unwrap();
        let mut reader = inshore_store::FileReader::new(job, &file, 0..file.len(), 64 << 10).unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next_piece().unwrap() {
            bytes.extend_from_slice(piece);
        }
        bytes
    };
    dataset.file_names().map(read).collect()
}

pub const EVERYTHING: Approximate = Approximate { recall: 1.0, probes: Some(1 << 31), strategy: None };

#[test]
fn an_index_whose_lists_are_all_probed_answers_as_the_exact_search() {
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::F32, Metric::Ip),
        (Element::F32, Metric::Cosine),
        (Element::U8, Metric::L2),
        (Element::U8, Metric::Cosine),
        (Element::I8, Metric::Ip),
    ] {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 17, 3000, 1001));
        let queries = setup.file("q", &clustered(element, 17, 41, 1002));
        let built = build(
            &setup,
            "v",
            &Index { metric, lists: Some(60), seed: 1, copies: None, codes: None },
            (64 << 20, 2),
        );
        assert_eq!((built.info.vectors, built.info.metric), (3000, metric));
        let radius = match metric {
            Metric::L2 => 90.0,
            Metric::Ip => 10.0,
            _ => 0.3,
        };
        for radius in [None, Some(radius)] {
            let search = Search { k: 20, metric, radius, ..Search::default() };
            let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
            for strategy in [Strategy::Single, Strategy::Batch] {
                let approximate = Approximate { strategy: Some(strategy), ..EVERYTHING };
                let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), (32 << 20, 2));
                assert_eq!(rows, exact, "{element} {metric:?} {strategy} {radius:?}");
                assert_eq!((found.compared, found.recall_estimate), (41 * 3000, Some(1.0)));
            }
        }
    }
}

#[test]
fn an_answer_does_not_depend_on_memory_threads_and_strategy() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 20_000, 2001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 300, 2002));
    let built = build(&setup, "v", &Index { lists: Some(300), ..Index::default() }, (64 << 20, 2));
    let search = Search::default();
    let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
    let mut answers = Vec::new();
    for memory in [(6 << 20, 1), (64 << 20, 3)] {
        for strategy in [Strategy::Single, Strategy::Batch] {
            let approximate = Approximate { recall: 0.9, probes: None, strategy: Some(strategy) };
            let (rows, found) = ask(&setup, "v", &queries, (&search, &approximate), memory);
            assert_eq!(found.latency_us.is_some(), strategy == Strategy::Single);
            assert!(
                found.probes < built.info.lists / 4 && found.recall_estimate.unwrap() >= 0.9,
                "{found:?}"
            );
            answers.push(rows);
        }
    }
    assert!(answers.iter().all(|rows| *rows == answers[0]));
    let ids = |rows: &[Row]| rows.iter().map(|row| (row.0, row.2)).collect::<std::collections::HashSet<_>>();
    let common = ids(&exact).intersection(&ids(&answers[0])).count();
    assert!(common as f64 >= 0.85 * exact.len() as f64, "{common} of {}", exact.len());
}

#[test]
fn the_lists_do_not_depend_on_memory_and_threads() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 16, 20_000, 3001));
    let index = Index { lists: Some(200), seed: 7, ..Index::default() };
    let job = setup.job(16 << 20, 1);
    let small = build(&setup, "v", &index, (18 << 20, 1));
    let first = bytes_of(&setup.store, &job, "v");
    let large = build(&setup, "v", &index, (256 << 20, 3));
    assert!(small.plan.sort_bytes < large.plan.sort_bytes);
    assert_eq!(bytes_of(&setup.store, &job, "v"), first);
    assert_eq!(small.info.recall.points, large.info.recall.points);
    build(&setup, "v", &Index { seed: 8, ..index }, (64 << 20, 2));
    assert_ne!(bytes_of(&setup.store, &job, "v"), first);
}

#[test]
fn recall_is_measured_on_the_queries_of_the_user_and_replaces_the_table() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 24, 20_000, 4001));
    let queries = setup.file("q", &clustered(Element::U8, 24, 100, 4002));
    build(&setup, "v", &Index { lists: Some(300), ..Index::default() }, (64 << 20, 2));
    let (vectors, mut index) = open(&setup, "v");
    let before = index.info().recall.clone();
    let job = setup.job(32 << 20, 2);
    let table = measure_recall(&setup.store, &job, &vectors, &mut index, &queries, 40, 5).unwrap();
    assert_eq!((table.queries, table.k), (40, 5));
    assert_eq!(job.budget().reserved_bytes(), 0);
    let (_, index) = open(&setup, "v");
    assert_eq!(index.info().recall, table);
    assert_ne!(table, before);
    // The table must be right: a search with the number of probes of a point must reach the recall of the point.
    let search = Search { k: 5, ..Search::default() };
    let sampled: Vec<u64> = (0..40).map(|number| number * 100 / 40).collect();
    let keep =
        |rows: Vec<Row>| rows.into_iter().filter(|row| sampled.contains(&row.0)).map(|row| (row.0, row.2));
    let exact: std::collections::HashSet<_> =
        keep(setup.search("v", &queries, &search, (16 << 20, 2)).0).collect();
    for point in table.points.iter().take(4) {
        let approximate = Approximate { probes: Some(point.probes), ..Approximate::default() };
        let (rows, _) = ask(&setup, "v", &queries, (&search, &approximate), (32 << 20, 2));
        let found = keep(rows).filter(|row| exact.contains(row)).count() as f32 / exact.len() as f32;
        assert!((found - point.recall).abs() < 1e-6, "{found}: {point:?}");
    }
}

#[test]
fn an_index_of_former_vectors_of_the_name_is_refused() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 5001));
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    setup.store.remove("v").unwrap();
    setup.import("v", &clustered(Element::U8, 8, 500, 5002));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let error = VectorIndex::open(&setup.store, &vectors).unwrap_err().to_string();
    assert!(error.starts_with("v.index: vectors: found an index of other vectors"), "{error}");
    assert!(error.contains("build the index again"), "{error}");
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    assert!(VectorIndex::open(&setup.store, &vectors).unwrap().is_some());
}

#[test]
fn vectors_that_are_few_or_equal_or_of_one_dimension_have_an_index() {
    let setup = Setup::new();
    let mut random = Random(6);
    let cases = [
        ("one", Made::new(Element::F32, 3, 1, || 1.5)),
        ("few", Made::new(Element::U8, 3, 7, || random.below(200) as f64)),
        ("equal", Made::new(Element::U8, 5, 5000, || 9.0)),
        ("zero", Made::new(Element::F32, 5, 3000, || 0.0)),
        ("line", Made::new(Element::F32, 1, 3000, || (random.below(4000) as f64) - 2000.0)),
        ("large", Made::new(Element::F32, 2, 300, || random.normal() * 1e38)),
    ];
    for (name, vectors) in cases {
        setup.import(name, &vectors);
        let queries = Made { values: vectors.values[..vectors.dimensions].to_vec(), ..vectors.clone() };
        let queries = setup.file("q", &queries);
        for metric in [Metric::L2, Metric::Cosine, Metric::Ip] {
            let built = build(&setup, name, &Index { metric, ..Index::default() }, (96 << 20, 2));
            assert!(built.info.lists >= built.info.vectors.div_ceil(built.plan.list_vectors_max), "{name}");
            let search = Search { k: 3000, metric, ..Search::default() };
            let (exact, _) = setup.search(name, &queries, &search, (32 << 20, 2));
            // One list has fewer than k vectors, so more lists are probed.
            for strategy in [Strategy::Single, Strategy::Batch] {
                let approximate = Approximate { probes: Some(1), strategy: Some(strategy), ..EVERYTHING };
                let (rows, _) = ask(&setup, name, &queries, (&search, &approximate), (32 << 20, 2));
                assert_eq!(rows.len(), exact.len(), "{name} {metric:?}");
                let same = exact.len() < 3000 || name != "line";
                assert!(!same || name == "equal" || rows == exact, "{name} {metric:?}");
            }
        }
    }
}

#[test]
fn options_out_of_range_and_small_budgets_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 7001));
    let queries = setup.file("q", &clustered(Element::U8, 8, 5, 7002));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let job = setup.job(64 << 20, 2);
    for lists in [0, 501] {
        let options = Index { lists: Some(lists), ..Index::default() };
        let error = build_index(&setup.store, &job, &vectors, &options).unwrap_err().to_string();
        assert_eq!(error, format!("lists is {lists}: expected 1 to 500"));
    }
    let small = setup.job(1 << 20, 1);
    let error = build_index(&setup.store, &small, &vectors, &Index::default()).unwrap_err().to_string();
    assert!(error.starts_with("building an index of v cannot work in 1 MiB"), "{error}");
    assert!(VectorIndex::open(&setup.store, &vectors).unwrap().is_none());
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    let (vectors, index) = open(&setup, "v");
    let ask = |search: &Search, approximate: &Approximate, job: &Job| {
        let found = search_index(job, &vectors, &index, &queries, search, approximate, &mut |_| Ok(()));
        found.unwrap_err().to_string()
    };
    let search = Search::default();
    let approximate = Approximate::default();
    let error = ask(&Search { metric: Metric::Ip, ..search.clone() }, &approximate, &job);
    assert_eq!(error, "metric is ip: expected l2, for which the index of v was built");
    let error = ask(&search, &Approximate { recall: 1.5, ..approximate.clone() }, &job);
    assert_eq!(error, "recall is 1.5: expected above 0, and at most 1");
    let error = ask(&search, &Approximate { probes: Some(0), ..approximate.clone() }, &job);
    assert_eq!(error, "probes is 0: expected at least 1");
    let tiny = setup.store.job(Budget::new(64 << 10, 1), Cancel::default()).unwrap();
    let error = ask(&search, &approximate, &tiny);
    assert!(error.contains("a search of 10 neighbours in the index of v cannot work"), "{error}");
}

#[test]
fn a_flipped_bit_in_a_list_or_in_the_directory_is_an_error_that_names_the_file() {
    for (file, place) in [("lists", 3000), ("firsts", 8), ("centroids", 40)] {
        let setup = Setup::new();
        setup.import("v", &clustered(Element::U8, 16, 4000, 8001));
        let queries = setup.file("q", &clustered(Element::U8, 16, 20, 8002));
        build(&setup, "v", &Index { lists: Some(60), ..Index::default() }, (64 << 20, 2));
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
        for strategy in [Strategy::Single, Strategy::Batch] {
            let approximate = Approximate { strategy: Some(strategy), ..EVERYTHING };
            let ask =
                search_index(&job, &vectors, &index, &queries, &Search::default(), &approximate, &mut |_| {
                    Ok(())
                });
            let error = ask.unwrap_err().to_string();
            assert!(error.contains(&format!("v.index/{file}")), "{file}: {error}");
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}

/// The checksums are right in this test, as if another program had written the files.
#[test]
fn an_index_that_does_not_describe_its_lists_is_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 4000, 9001));
    let queries = setup.file("q", &clustered(Element::U8, 16, 20, 9002));
    build(&setup, "v", &Index { lists: Some(60), ..Index::default() }, (64 << 20, 2));
    let job = setup.job(32 << 20, 2);
    let dataset = setup.store.dataset("v.index").unwrap();
    let names: Vec<String> = dataset.file_names().map(str::to_string).collect();
    let (files, attributes) = (bytes_of(&setup.store, &job, "v"), dataset.attributes().to_vec());
    type Change = fn(&mut [Vec<u8>], &mut Vec<u8>, [usize; 3]);
    let number = |name: &str| names.iter().position(|found| found == name).unwrap();
    let places = [number("lists"), number("firsts"), number("spans")];
    let refused = |change: Change| {
        let (mut files, mut attributes) = (files.clone(), attributes.clone());
        change(&mut files, &mut attributes, places);
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
    assert_eq!(refused(|_, _, _| ()), "an answer");
    let cases: [(&str, Change); 13] = [
        ("v.index: magic: found XNSHVIDX", |_, a, _| a[0] = b'X'),
        ("v.index: version: found 9, expected 1 to 3: build the index again", |_, a, _| a[8] = 9),
        ("v.index: element", |_, a, _| a[12] = 77),
        ("v.index: metric: found 9", |_, a, _| a[20] = 9),
        ("v.index: lists: found 0", |_, a, _| a[40..44].fill(0)),
        ("v.index: groups", |_, a, _| a[44..48].fill(255)),
        ("v.index: points of recall", |_, a, _| a[92] = 200),
        ("v.index: header", |_, a, _| a.truncate(50)),
        ("v.index/firsts: length", |files, _, [_, firsts, _]| files[firsts].truncate(16)),
        ("v.index: directory", |files, _, [_, firsts, _]| files[firsts][8..16].fill(255)),
        ("v.index: directory", |files, _, [_, firsts, _]| files[firsts][0] = 1),
        ("v.index: groups: found", |files, _, [_, _, spans]| files[spans][0] = 1),
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
    setup.import("v", &clustered(Element::U8, 16, 20_000, 10_001));
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
        let options = Index { lists: Some(300), copies: Some(3), ..Index::default() };
        let built = build_index(&setup.store, &job, &vectors, &options);
        job.cancel().cancel();
        watcher.join().unwrap();
        assert_eq!(job.budget().reserved_bytes(), 0);
        let is_built = built.is_ok();
        assert!(built.map_or_else(|error| error.is_cancelled(), |_| true));
        is_built
    };
    // The last phases are short, so the build may end before it is cancelled.
    for phase in [
        "",
        "sampling",
        "gathering a sample",
        "training lists",
        "assigning",
        "writing lists",
        "measuring recall",
    ] {
        let is_built = stopped(phase);
        assert_eq!(VectorIndex::open(&setup.store, &vectors).unwrap().is_some(), is_built, "{phase}");
        if is_built {
            setup.store.remove("v.index").unwrap();
        }
    }
    build(&setup, "v", &Index::default(), (64 << 20, 2));
    let id = setup.store.dataset("v.index").unwrap().id();
    assert!(!stopped(""));
    assert_eq!(setup.store.dataset("v.index").unwrap().id(), id);
}

#[test]
fn an_index_replaces_no_other_dataset() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 8, 500, 9001));
    let job = setup.job(64 << 20, 2);
    let other = setup.store.create_dataset(&job, &index_name("v"), "bytes").unwrap();
    other.commit(b"of another tool").unwrap();
    let vectors = setup.open("v");
    let lists = build_index(&setup.store, &job, &vectors, &Index::default()).unwrap_err();
    let tables = Lsh { metric: Metric::Hamming, ..Lsh::default() };
    let tables = build_lsh(&setup.store, &job, &vectors, &tables).unwrap_err();
    for error in [lists.to_string(), tables.to_string()] {
        assert!(error.contains("v.index") && error.contains("found bytes"), "{error}");
    }
    assert_eq!(setup.store.dataset("v.index").unwrap().attributes(), b"of another tool");
}

#[test]
fn names_of_vectors_leave_room_for_the_names_of_their_layers() {
    let setup = Setup::new();
    let made = clustered(Element::U8, 8, 500, 9001);
    let (file, job) = (setup.file("made", &made), setup.job(64 << 20, 2));
    for name in ["v.index".to_string(), "n".repeat(74)] {
        let error = import(&setup.store, &job, &name, &file).unwrap_err().to_string();
        assert!(error.contains("name") && error.contains("at most 73 characters"), "{error}");
    }
    let longest = "n".repeat(73);
    import(&setup.store, &job, &longest, &file).unwrap();
    build(&setup, &longest, &Index::default(), (64 << 20, 2));
    add_vectors(&setup.store, &job, &longest, &file).unwrap();
    assert_eq!(describe(&setup.store, &longest).unwrap().vectors.vectors, 1000);
    // A store may have vectors of a longer name from before, which have no index.
    let error = remove_index(&setup.store, &"o".repeat(100)).unwrap_err();
    assert!(matches!(error, Error::Store(inshore_store::Error::NotFound { .. })), "{error}");
}
