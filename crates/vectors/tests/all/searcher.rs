//! Tests searchers. Each call of a searcher must give the same answer as a separate search, from any thread and within
//! the budget.

use std::{sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use inshore_store::{Budget, Cancel, Error as StoreError, Job};
use inshore_vectors::{
    Approximate, Element, Error, Index, Lsh, Metric, Result, RowSet, Search, SearchIndex, Searcher,
    SearcherOptions, Source, Strategy, VectorFile, Vectors, add_vectors, build_lsh, remove, remove_vectors,
};

use crate::{
    index::{ask, build, clustered},
    support::{Made, Random, Row, Setup, rows_of},
};

const IN_MEMORY: SearcherOptions = SearcherOptions { in_memory: true, calls: None };

fn open(setup: &Setup, job: &Job, options: &SearcherOptions) -> Result<Searcher> {
    let vectors = Vectors::open(&setup.store, "v")?;
    let index = SearchIndex::open(&setup.store, &vectors)?;
    Searcher::open(job, vectors, index, options)
}

fn find<'a>(
    searcher: &Searcher,
    queries: impl Into<Source<'a>>,
    search: &Search,
    approximate: Option<&Approximate>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut each = |batch: RecordBatch| {
        rows.extend(rows_of(&batch));
        Ok(())
    };
    let mut call = searcher.begin(&Cancel::default())?;
    match approximate {
        Some(approximate) => call.search_index(queries, search, approximate, &mut each).map(|_| ())?,
        None => call.search(queries, search, &mut each).map(|_| ())?,
    }
    Ok(rows)
}

/// Returns a set of about a third of the vectors.
fn some_of(vectors: u64) -> Arc<RowSet> {
    let mut some = RowSet::empty(&Budget::new(1 << 20, 1), vectors).unwrap();
    (0..vectors).filter(|row| row % 3 == 1).for_each(|row| some.insert(row));
    Arc::new(some)
}

#[test]
fn every_call_answers_as_a_search_of_its_own() {
    for (element, metric, copies) in [
        (Element::F32, Metric::L2, None),
        (Element::U8, Metric::L2, Some(4)),
        (Element::I8, Metric::Ip, None),
        (Element::F32, Metric::Cosine, Some(3)),
    ] {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 17, 6000, 1001));
        build(&setup, "v", &Index { metric, lists: Some(80), seed: 1, copies, codes: None }, (64 << 20, 2));
        // The dataset also has rows that no list contains, and removed vectors.
        let added = setup.file("added", &clustered(element, 17, 50, 1003));
        add_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &added).unwrap();
        remove_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &[3, 77, 5999, 6001]).unwrap();
        let queries = setup.file("q", &clustered(element, 17, 41, 1002));
        let one = setup.file("one", &clustered(element, 17, 1, 1004));
        for options in [SearcherOptions::default(), IN_MEMORY] {
            let job = setup.job(48 << 20, 2);
            let searcher = open(&setup, &job, &options).unwrap();
            assert_eq!((searcher.calls(), searcher.is_in_memory()), (2, options.in_memory));
            let reserved = job.budget().reserved_bytes();
            for round in 0..3 {
                for queries in [&one, &queries] {
                    for selection in [None, Some(some_of(6050))] {
                        let search = Search { k: 12, metric, selection, ..Search::default() };
                        let (exact, _) = setup.search("v", queries, &search, (32 << 20, 2));
                        assert_eq!(find(&searcher, queries, &search, None).unwrap(), exact);
                        for strategy in [None, Some(Strategy::Single), Some(Strategy::Batch)] {
                            let approximate = Approximate { recall: 0.9, probes: None, strategy };
                            let (rows, _) = ask(&setup, "v", queries, (&search, &approximate), (32 << 20, 2));
                            let found = find(&searcher, queries, &search, Some(&approximate)).unwrap();
                            assert_eq!(found, rows, "{element} {metric:?} {strategy:?} round {round}");
                        }
                    }
                }
                assert_eq!(job.budget().reserved_bytes(), reserved);
            }
            drop(searcher);
            assert_eq!(job.budget().reserved_bytes(), 0);
        }
    }
}

#[test]
fn elements_without_an_index_are_found_in_memory() {
    for (element, metric) in
        [(Element::F16, Metric::L2), (Element::Bits, Metric::Hamming), (Element::Bf16, Metric::Ip)]
    {
        let (setup, mut random) = (Setup::new(), Random(9));
        setup.import("v", &Made::new(element, 64, 3000, || random.normal()));
        let queries = setup.file("q", &Made::new(element, 64, 7, || random.normal()));
        let search = Search { metric, ..Search::default() };
        let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
        let job = setup.job(24 << 20, 2);
        let searcher = open(&setup, &job, &IN_MEMORY).unwrap();
        for _ in 0..3 {
            assert_eq!(find(&searcher, &queries, &search, None).unwrap(), exact);
        }
        let refused = find(&searcher, &queries, &search, Some(&Approximate::default()));
        assert!(matches!(refused, Err(Error::NoIndex { .. })));
    }
}

#[test]
fn calls_of_many_threads_answer_the_same_within_the_budget() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 16, 8000, 1001));
    build(&setup, "v", &Index { lists: Some(100), ..Index::default() }, (64 << 20, 2));
    let made = clustered(Element::F32, 16, 24, 1002);
    let search = Search::default();
    let queries: Vec<VectorFile> = (0..24)
        .map(|number| {
            let values = made.rows()[number].to_vec();
            setup.file(&format!("q{number}"), &Made { values, ..made.clone() })
        })
        .collect();
    let approximate = Approximate { recall: 0.9, ..Approximate::default() };
    let expected: Vec<(Vec<Row>, Vec<Row>)> = queries
        .iter()
        .map(|query| {
            let exact = setup.search("v", query, &search, (16 << 20, 1)).0;
            (exact, ask(&setup, "v", query, (&search, &approximate), (32 << 20, 1)).0)
        })
        .collect();
    for (memory_bytes, options) in [
        (24 << 20, SearcherOptions::default()),
        (48 << 20, SearcherOptions { calls: Some(3), ..SearcherOptions::default() }),
        (48 << 20, IN_MEMORY),
    ] {
        let job = setup.job(memory_bytes, 2);
        let searcher = open(&setup, &job, &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..5 {
                let (searcher, queries, expected) = (&searcher, &queries, &expected);
                let (search, approximate) = (&search, &approximate);
                scope.spawn(move || {
                    for number in 0..60 {
                        let place = (number * 7 + thread) % queries.len();
                        let (exact, near) = &expected[place];
                        match (number + thread) % 3 {
                            0 => assert_eq!(find(searcher, &queries[place], search, None).unwrap(), *exact),
                            _ => {
                                let found = find(searcher, &queries[place], search, Some(approximate));
                                assert_eq!(found.unwrap(), *near);
                            }
                        }
                    }
                });
            }
        });
        drop(searcher);
        assert_eq!(job.budget().reserved_bytes(), 0);
        assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    }
}

#[test]
fn a_searcher_with_hash_tables_answers_as_their_search() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 16, 3000, 1001));
    let vectors = setup.open("v");
    build_lsh(&setup.store, &setup.job(64 << 20, 2), &vectors, &Lsh::default()).unwrap();
    let added = setup.file("added", &clustered(Element::F32, 16, 50, 1003));
    add_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &added).unwrap();
    remove_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &[3, 77, 3001]).unwrap();
    let (vectors, queries) = (setup.open("v"), setup.file("q", &clustered(Element::F32, 16, 9, 1002)));
    let index = SearchIndex::open(&setup.store, &vectors).unwrap().unwrap();
    let (search, approximate) = (Search::default(), Approximate::default());
    let mut expected = Vec::new();
    let mut each = |batch: RecordBatch| {
        expected.extend(rows_of(&batch));
        Ok(())
    };
    let job = setup.job(48 << 20, 2);
    index.search(&job, &vectors, &queries, (&search, &approximate), &mut each).unwrap();
    assert_eq!(expected.len(), 90);
    for options in [SearcherOptions::default(), IN_MEMORY] {
        let searcher = open(&setup, &job, &options).unwrap();
        for _ in 0..3 {
            assert_eq!(find(&searcher, &queries, &search, Some(&approximate)).unwrap(), expected);
        }
        assert!(searcher.is_of(&vectors, Some(&index)));
    }
    let searcher = open(&setup, &job, &SearcherOptions::default()).unwrap();
    build_lsh(&setup.store, &setup.job(64 << 20, 2), &vectors, &Lsh::default()).unwrap();
    assert!(!searcher.is_of(&vectors, SearchIndex::open(&setup.store, &vectors).unwrap().as_ref()));
    assert_eq!(find(&searcher, &queries, &search, Some(&approximate)).unwrap(), expected);
    drop(searcher);
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn a_searcher_sees_the_dataset_as_it_was_opened() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 4000, 1001));
    build(&setup, "v", &Index { lists: Some(40), ..Index::default() }, (64 << 20, 2));
    let queries = setup.file("q", &clustered(Element::U8, 16, 9, 1002));
    let (search, approximate) = (Search::default(), Approximate::default());
    let job = setup.job(32 << 20, 2);
    let searcher = open(&setup, &job, &SearcherOptions::default()).unwrap();
    let is_current = || {
        let vectors = setup.open("v");
        searcher.is_of(&vectors, SearchIndex::open(&setup.store, &vectors).unwrap().as_ref())
    };
    let exact = find(&searcher, &queries, &search, None).unwrap();
    let near = find(&searcher, &queries, &search, Some(&approximate)).unwrap();
    assert!(is_current());
    add_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &queries).unwrap();
    assert!(!is_current());
    assert_eq!(find(&searcher, &queries, &search, None).unwrap(), exact);
    assert_ne!(setup.search("v", &queries, &search, (16 << 20, 2)).0, exact);
    remove(&setup.store, "v").unwrap();
    // Another dataset of the same name takes the free space. It must not overwrite the data of the snapshot.
    setup.import("v", &clustered(Element::U8, 16, 4000, 9001));
    assert!(!is_current());
    for _ in 0..2 {
        assert_eq!(find(&searcher, &queries, &search, None).unwrap(), exact);
        assert_eq!(find(&searcher, &queries, &search, Some(&approximate)).unwrap(), near);
    }
}

#[test]
fn vectors_that_do_not_fit_the_memory_are_refused_with_the_size_that_is_enough() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 64, 60_000, 1001));
    let queries = setup.file("q", &clustered(Element::F32, 64, 3, 1002));
    let job = setup.job(16 << 20, 2);
    let Err(Error::Store(StoreError::BudgetTooSmall { what, smallest, .. })) = open(&setup, &job, &IN_MEMORY)
    else {
        panic!("expected a refusal");
    };
    assert!(what.contains("v, held in memory"), "{what}");
    assert!((60_000 * 256..32 << 20).contains(&smallest), "{smallest}");
    assert_eq!(job.budget().reserved_bytes(), 0);
    let job = setup.job(smallest, 2);
    let searcher = open(&setup, &job, &IN_MEMORY).unwrap();
    let search = Search::default();
    let (exact, _) = setup.search("v", &queries, &search, (16 << 20, 2));
    assert_eq!(find(&searcher, &queries, &search, None).unwrap(), exact);
    // If the share of a call is too small, the error must state the size of the whole budget.
    let job = setup.job(20 << 20, 2);
    let searcher = open(&setup, &job, &SearcherOptions { in_memory: false, calls: Some(16) }).unwrap();
    let search = Search { k: 60_000, ..Search::default() };
    let refused = find(&searcher, &queries, &search, None);
    let Err(Error::Store(StoreError::BudgetTooSmall { given, smallest, .. })) = refused else {
        panic!("expected a refusal");
    };
    assert_eq!(given, 20 << 20);
    let job = setup.job(smallest, 2);
    let searcher = open(&setup, &job, &SearcherOptions { in_memory: false, calls: Some(16) }).unwrap();
    assert_eq!(find(&searcher, &queries, &search, None).unwrap().len(), 3 * 60_000);
}

#[test]
fn a_call_that_waits_for_a_slot_can_be_cancelled_and_ends_no_other_call() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, 4000, 1001));
    let queries = setup.file("q", &clustered(Element::U8, 16, 9, 1002));
    let job = setup.job(24 << 20, 2);
    let options = SearcherOptions { in_memory: false, calls: Some(1) };
    let searcher = open(&setup, &job, &options).unwrap();
    let first = searcher.begin(&Cancel::default()).unwrap();
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| searcher.begin(&cancel).map(drop));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        cancel.cancel();
        assert!(waiting.join().unwrap().unwrap_err().is_cancelled());
    });
    drop(first);
    let mut stopped = searcher.begin(&cancel).unwrap();
    let refused = stopped.search(&queries, &Search::default(), &mut |_| Ok(()));
    assert!(refused.unwrap_err().is_cancelled());
    drop(stopped);
    assert_eq!(find(&searcher, &queries, &Search::default(), None).unwrap().len(), 90);
}

#[test]
fn queries_in_memory_are_those_of_a_file() {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::F32, 16, 2000, 1001));
    let made = Made { element: Element::Bf16, ..clustered(Element::U8, 16, 5, 1002) };
    let bytes = made.bytes();
    let file = VectorFile::open(setup.write("q.npy", &bytes)).unwrap();
    let queries = VectorFile::in_memory("queries", bytes.clone()).unwrap();
    let search = Search::default();
    let expected = setup.search("v", &file, &search, (16 << 20, 2)).0;
    assert_eq!(setup.search("v", &queries, &search, (16 << 20, 2)).0, expected);
    let refused = |bytes: &[u8]| VectorFile::in_memory("queries", bytes.to_vec()).unwrap_err().to_string();
    let cut = refused(&bytes[..bytes.len() - 1]);
    assert!(cut.starts_with("queries: its length: found"), "{cut}");
    assert!(refused(b"\x93NUMPX\x01\x00").starts_with("queries: the magic"));
}
