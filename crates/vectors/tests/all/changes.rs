//! Tests of changes to datasets of vectors. Answers must equal those of brute force over the live vectors, and every
//! crash must leave the changes that were acknowledged.

use std::{collections::BTreeMap, sync::Arc};

use inshore_store::{Budget, Cancel, Device, History, Memory, Recording, Store, WriteFate, after_crash};
use inshore_vectors::{
    Changed, Element, Error, Metric, Result, Search, Vectors, add_vectors, remove_vectors, search,
    upsert_vectors,
};

use crate::support::{Made, Random, Row, Setup, brute_force, rows_of};

/// The expected content of a dataset: the vector of each id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub vectors: BTreeMap<u64, Vec<f64>>,
    pub next_id: u64,
}

impl Model {
    pub fn add(&mut self, made: &Made) {
        for row in made.rows() {
            self.vectors.insert(self.next_id, row.to_vec());
            self.next_id += 1;
        }
    }

    pub fn upsert(&mut self, made: &Made, ids: &[u64]) {
        for (&id, row) in ids.iter().zip(made.rows()) {
            self.vectors.insert(id, row.to_vec());
            self.next_id = self.next_id.max(id + 1);
        }
    }

    pub fn remove(&mut self, ids: &[u64]) {
        ids.iter().for_each(|id| drop(self.vectors.remove(id)));
    }

    /// Returns the answer of brute force over the live vectors.
    pub fn answer(&self, like: &Made, queries: &Made, search: &Search) -> Vec<Row> {
        let values = self.vectors.values().flatten().copied().collect();
        let made = Made { values, ..like.clone() };
        let ids: Vec<u64> = self.vectors.keys().copied().collect();
        let named = |(query, rank, number, distance): Row| (query, rank, ids[number as usize], distance);
        brute_force(&made, queries, search).into_iter().map(named).collect()
    }
}

pub fn small(element: Element, random: &mut Random, count: usize) -> Made {
    Made::new(element, 8, count, || random.below(6) as f64)
}

pub fn add(setup: &Setup, made: &Made) -> Result<Changed> {
    let job = setup.job(40 << 20, 2);
    let changed = add_vectors(&setup.store, &job, "v", &setup.file("added", made));
    assert_eq!(job.budget().reserved_bytes(), 0);
    changed
}

pub fn upsert(setup: &Setup, made: &Made, ids: &[u64]) -> Result<Changed> {
    let job = setup.job(40 << 20, 2);
    let changed = upsert_vectors(&setup.store, &job, "v", &setup.file("replacing", made), ids);
    assert_eq!(job.budget().reserved_bytes(), 0);
    changed
}

pub fn remove(setup: &Setup, ids: &[u64]) -> Result<Changed> {
    let job = setup.job(16 << 20, 2);
    let changed = remove_vectors(&setup.store, &job, "v", ids);
    assert_eq!(job.budget().reserved_bytes(), 0);
    changed
}

#[test]
fn answers_equal_brute_force_over_the_vectors_that_are_live() {
    for element in [Element::U8, Element::F32, Element::F16, Element::Bits] {
        let (setup, mut random, mut model) = (Setup::new(), Random(71), Model::default());
        let base = small(element, &mut random, 500);
        setup.import("v", &base);
        model.add(&base);
        let asked = small(element, &mut random, 30);
        let queries = setup.file("q", &asked);
        let metrics = match element {
            Element::Bits => [Metric::Hamming, Metric::Jaccard],
            _ => [Metric::L2, Metric::Cosine],
        };
        for round in 0..6 {
            let added = small(element, &mut random, 40 + round);
            assert_eq!(add(&setup, &added).unwrap().first_id, Some(model.next_id));
            model.add(&added);
            let gone: Vec<u64> = model.vectors.keys().copied().filter(|id| id % 7 == round as u64).collect();
            let removed = remove(&setup, &gone).unwrap();
            assert_eq!((removed.taken, removed.absent), (gone.len() as u64, 0));
            model.remove(&gone);
            if round % 2 == 1 {
                // Some of these ids exist, some were removed, and some are new.
                let ids: Vec<u64> = (0..25).map(|number| (number * 31 + 100 * round as u64) % 900).collect();
                let replacing = small(element, &mut random, ids.len());
                let there = ids.iter().filter(|id| model.vectors.contains_key(id)).count() as u64;
                let changed = upsert(&setup, &replacing, &ids).unwrap();
                assert_eq!((changed.replaced, changed.added), (there, 25 - there));
                model.upsert(&replacing, &ids);
            }
            let info = Vectors::open(&setup.store, "v").unwrap().info().clone();
            assert_eq!((info.live(), info.next_id), (model.vectors.len() as u64, model.next_id));
            for metric in metrics {
                for (k, memory) in [(10, (16 << 20, 2)), (1000, (5 << 20, 1))] {
                    let options = Search { k, metric, ..Search::default() };
                    let (rows, searched) = setup.search("v", &queries, &options, memory);
                    assert_eq!(
                        rows,
                        model.answer(&base, &asked, &options),
                        "{element} {metric:?} round {round}"
                    );
                    assert_eq!(searched.vectors, info.live());
                }
                // A single query is compared by another kernel.
                let one = Made { values: asked.values[..8].to_vec(), ..asked.clone() };
                let options = Search { metric, ..Search::default() };
                let (rows, _) = setup.search("v", &setup.file("one", &one), &options, (16 << 20, 2));
                assert_eq!(rows, model.answer(&base, &one, &options), "{element} {metric:?} round {round}");
            }
        }
    }
}

#[test]
fn a_search_that_is_open_goes_on_with_its_vectors() {
    let (setup, mut random, mut model) = (Setup::new(), Random(73), Model::default());
    let base = small(Element::U8, &mut random, 300);
    setup.import("v", &base);
    model.add(&base);
    let opened = Vectors::open(&setup.store, "v").unwrap();
    let options = Search::default();
    let expected = model.answer(&base, &base, &options);
    remove(&setup, &(0..290).collect::<Vec<_>>()).unwrap();
    add(&setup, &small(Element::U8, &mut random, 50_000)).unwrap();
    let (job, mut rows) = (setup.job(16 << 20, 2), Vec::new());
    let queries = setup.file("q", &base);
    search(&job, &opened, &queries, &options, &mut |batch| {
        rows.extend(rows_of(&batch));
        Ok(())
    })
    .unwrap();
    assert_eq!(rows, expected);
    assert_eq!(opened.id(), Vectors::open(&setup.store, "v").unwrap().id());
}

#[test]
fn vectors_may_all_be_removed_and_ids_are_not_used_again() {
    let (setup, mut random, mut model) = (Setup::new(), Random(79), Model::default());
    let base = small(Element::I8, &mut random, 20);
    setup.import("v", &base);
    model.add(&base);
    let all: Vec<u64> = (0..20).collect();
    assert_eq!(remove(&setup, &all).unwrap().taken, 20);
    let again = remove(&setup, &all[5..]).unwrap();
    assert_eq!((again.taken, again.absent), (0, 15));
    model.remove(&all);
    let queries = setup.file("q", &base);
    let (rows, searched) = setup.search("v", &queries, &Search::default(), (16 << 20, 2));
    assert_eq!((rows.len(), searched.vectors), (0, 0));
    let added = small(Element::I8, &mut random, 3);
    assert_eq!(add(&setup, &added).unwrap().first_id, Some(20));
    model.add(&added);
    let (rows, _) = setup.search("v", &queries, &Search::default(), (16 << 20, 2));
    assert_eq!(rows, model.answer(&base, &base, &Search::default()));
}

#[test]
fn changes_that_cannot_be_made_are_refused_by_name_and_change_nothing() {
    let (setup, mut random) = (Setup::new(), Random(83));
    setup.import("v", &small(Element::U8, &mut random, 20));
    let before = Vectors::open(&setup.store, "v").unwrap().info().clone();
    let refused = |changed: Result<Changed>, expected: &str| {
        let error = changed.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(add(&setup, &small(Element::I8, &mut random, 2)), "the elements: found i8, expected u8");
    let narrow = Made::new(Element::U8, 4, 2, || 1.0);
    refused(add(&setup, &narrow), "found 4 dimensions, expected 8, as the vectors of v");
    refused(remove(&setup, &[3, 20]), "ids is 20: expected ids of vectors of v, which are below 20");
    refused(remove(&setup, &[3, 4, 3]), "ids is 3 twice");
    refused(remove(&setup, &[]), "ids is none");
    let two = small(Element::U8, &mut random, 2);
    refused(upsert(&setup, &two, &[1, 1]), "ids is 1 twice");
    refused(upsert(&setup, &two, &[1]), "1 ids: expected one for each of the 2 vectors");
    refused(upsert(&setup, &two, &[1, u64::MAX]), "expected at most");
    // A vector that is not finite follows good vectors.
    setup.import("f", &small(Element::F32, &mut random, 5));
    let mut bytes = small(Element::F32, &mut random, 20_000).bytes();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = inshore_vectors::VectorFile::open(setup.write("bad.fbin", &bytes)).unwrap();
    let job = setup.job(16 << 20, 2);
    refused(add_vectors(&setup.store, &job, "f", &file), "vector 19999, dimension 7: found NaN");
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
    assert_eq!(Vectors::open(&setup.store, "f").unwrap().info().vectors, 5);
    // The next changes have too little memory, or belong to a job that is cancelled.
    let small_job = setup.job(100 << 10, 1);
    let file = setup.file("two", &two);
    let error = add_vectors(&setup.store, &small_job, "v", &file).unwrap_err();
    let Error::Store(inshore_store::Error::BudgetTooSmall { smallest, .. }) = error else {
        panic!("{error}")
    };
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(16 << 20, 2), cancel.clone()).unwrap();
    cancel.cancel();
    assert!(add_vectors(&setup.store, &job, "v", &file).unwrap_err().is_cancelled());
    assert!(remove_vectors(&setup.store, &job, "v", &[1]).unwrap_err().is_cancelled());
    assert_eq!(Vectors::open(&setup.store, "v").unwrap().info(), &before);
    assert_eq!(add_vectors(&setup.store, &setup.job(smallest, 1), "v", &file).unwrap().added, 2);
    setup.store.seal("v").unwrap();
    refused(remove(&setup, &[3]), "v: state: found sealed, expected open for changes");
}

#[test]
fn jobs_that_change_a_dataset_at_the_same_time_lose_nothing() {
    let (setup, mut random, mut model) = (Setup::new(), Random(89), Model::default());
    let base = small(Element::U8, &mut random, 100);
    setup.import("v", &base);
    model.add(&base);
    let added: Vec<Made> = (0..4).map(|_| small(Element::U8, &mut random, 9)).collect();
    let acknowledged: Vec<(u64, &Made)> = std::thread::scope(|scope| {
        let threads: Vec<_> = added
            .iter()
            .enumerate()
            .map(|(number, made)| {
                let setup = &setup;
                scope.spawn(move || {
                    let file = setup.file(&format!("added{number}"), made);
                    // A second store object stands for another process.
                    let store = Store::open(setup.folder.path().join("store")).unwrap();
                    let job = store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
                    let mut done = Vec::new();
                    while done.len() < 5 {
                        match add_vectors(&store, &job, "v", &file) {
                            Ok(changed) => done.push((changed.first_id.unwrap(), made)),
                            Err(Error::Store(inshore_store::Error::Changed { .. })) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(acknowledged.len(), 20);
    for (first, made) in acknowledged {
        assert!((first..first + 9).all(|id| !model.vectors.contains_key(&id)), "two jobs got the id {first}");
        model.upsert(made, &(first..first + 9).collect::<Vec<_>>());
    }
    let (rows, _) = setup.search("v", &setup.file("q", &base), &Search::default(), (16 << 20, 2));
    assert_eq!(rows, model.answer(&base, &base, &Search::default()));
}

/// Returns all vectors of a dataset, by a search with as many neighbours as there are vectors.
fn content(setup: &Setup, element: Element) -> Option<Vec<Row>> {
    let zero = Made::new(element, 8, 1, || 0.0);
    match Vectors::open(&setup.store, "v") {
        Err(Error::Store(inshore_store::Error::NotFound { .. })) => return None,
        opened => drop(opened.unwrap()),
    }
    let options = Search { k: 1 << 20, ..Search::default() };
    Some(setup.search("v", &setup.file("zero", &zero), &options, (16 << 20, 1)).0)
}

#[test]
fn every_crash_leaves_the_changes_that_were_acknowledged() {
    const EXTENTS: u32 = 300;
    let history = History::default();
    let device: Arc<dyn Device> = Arc::new(Recording::new(Arc::new(Memory::new(EXTENTS)), 0, &history));
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_on(folder.path(), vec![device]).unwrap();
    let setup = Setup { folder, store };
    let len = || history.lock().unwrap().len();
    let mut random = Random(97);
    // Each state has the length of the history before and after the change that led to it.
    let mut states = vec![(0, len(), None)];
    for step in 0..8 {
        let before = len();
        match step {
            0 => setup.import("v", &small(Element::U8, &mut random, 50)),
            1 | 4 => drop(add(&setup, &small(Element::U8, &mut random, 30)).unwrap()),
            2 => drop(remove(&setup, &[1, 7, 60]).unwrap()),
            3 | 6 => drop(upsert(&setup, &small(Element::U8, &mut random, 4), &[2, 7, 200, 61]).unwrap()),
            5 => drop(remove(&setup, &[2, 70]).unwrap()),
            _ => drop(add(&setup, &small(Element::U8, &mut random, 5)).unwrap()),
        }
        let after = len();
        states.push((before, after, content(&setup, Element::U8)));
    }
    let history = history.lock().unwrap().clone();
    let blank = [Memory::new(EXTENTS)];
    for end in 0..=history.len() {
        for fate in [WriteFate::Kept, WriteFate::Lost] {
            let left = after_crash(&history[..end], &blank, |_| fate);
            let left = left.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open_on(folder.path(), left).unwrap();
            let setup = Setup { folder, store };
            let last = states.iter().rposition(|(_, after, _)| *after <= end).unwrap_or(0);
            let found = content(&setup, Element::U8);
            let mut possible = states[last..].iter().filter(|(before, ..)| *before <= end);
            assert!(possible.any(|state| state.2 == found), "crash after {end}, {fate:?}: {found:?}");
            if let (Some(found), 0) = (found, end % 7) {
                // The recovered dataset accepts further changes.
                let added = small(Element::U8, &mut random, 2);
                assert_eq!(add(&setup, &added).unwrap().added, 2);
                assert_eq!(content(&setup, Element::U8).unwrap().len(), found.len() + 2);
            }
        }
    }
    assert!(history.len() > 50, "{} operations", history.len());
}
