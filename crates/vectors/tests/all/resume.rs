//! Tests that interrupt builds of an index and resume them. A resumed build must create the same index as a build that
//! was not interrupted.

use std::sync::atomic::{AtomicBool, Ordering};

use inshore_store::{Budget, Cancel};
use inshore_vectors::{Built, Element, Index, Vectors, add_vectors, plan_index, resume_index};

use crate::{
    index::{build, bytes_of, clustered},
    support::Setup,
};

const VECTORS: usize = 120_000;

fn setup() -> Setup {
    let setup = Setup::new();
    setup.import("v", &clustered(Element::U8, 16, VECTORS, 1001));
    setup
}

/// Returns a memory size, in bytes, with which a build spills runs.
fn small_memory(setup: &Setup, options: &Index) -> u64 {
    let job = setup.job(64 << 20, 2);
    plan_index(&job, setup.open("v").info(), options).unwrap().smallest_bytes
}

/// Starts a build, and stops the build after `done` units of the phase `phase`. Returns false if the build was complete
/// before.
fn interrupted(setup: &Setup, options: &Index, (phase, done): (&str, u64)) -> bool {
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(small_memory(setup, options), 2), cancel.clone()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let state = job.progress().state();
                if state.phase == phase && state.done >= done {
                    cancel.cancel();
                }
                std::thread::yield_now();
            }
        });
        let built = resume_index(&setup.store, &job, &setup.open("v"), options);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(job.budget().reserved_bytes(), 0);
        match built {
            Ok(_) => false,
            Err(error) => {
                assert!(error.is_cancelled(), "{error}");
                true
            }
        }
    })
}

fn surely_interrupted(setup: &Setup, options: &Index, point: (&str, u64)) {
    assert!((0..20).any(|_| interrupted(setup, options, point)), "every build was complete before {point:?}");
}

fn resume(setup: &Setup, options: &Index, (memory_bytes, threads): (u64, usize)) -> Built {
    let job = setup.job(memory_bytes, threads);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let built = resume_index(&setup.store, &job, &vectors, options).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    built
}

#[test]
fn a_build_that_was_interrupted_anywhere_resumes_to_the_same_index() {
    for (copies, codes) in [(None, None), (Some(3), None), (None, Some(1))] {
        let setup = setup();
        let options = Index { lists: Some(300), seed: 5, copies, codes, ..Index::default() };
        let small = small_memory(&setup, &options);
        let job = setup.job(8 << 20, 1);
        let mut expected = build(&setup, "v", &options, (small, 2)).info;
        let bytes = bytes_of(&setup.store, &job, "v");
        let points = [
            (("gathering a sample", 1), false),
            (("assigning", 60_000), true),
            (("writing lists", 1), true),
            (("assigning", 1), true),
            (("assigning", VECTORS as u64 - 1), true),
            (("writing lists", 100_000), true),
        ];
        let count = if copies.is_some() || codes.is_some() { 3 } else { points.len() };
        for (point, is_trained) in points.into_iter().take(count) {
            surely_interrupted(&setup, &options, point);
            assert_eq!(setup.store.kept().unwrap().len(), usize::from(is_trained), "{point:?}");
            // A build without the option must not use or remove the kept work.
            assert_eq!(build(&setup, "v", &options, (small, 1)).resumed, None);
            let built = resume(&setup, &options, (40 << 20, 1));
            assert_eq!((built.resumed.is_some(), &built.unused), (is_trained, &None), "{point:?}");
            if point.0 == "writing lists" {
                assert!(built.resumed >= Some(VECTORS as u64), "{:?}", built.resumed);
            }
            expected.recall.measured_seconds = built.info.recall.measured_seconds;
            if let (Some(one), Some(other)) = (&mut expected.copies, &built.info.copies) {
                one.recall.measured_seconds = other.recall.measured_seconds;
            }
            if let (Some(one), Some(other)) = (&mut expected.codes, &built.info.codes) {
                one.recall.measured_seconds = other.recall.measured_seconds;
            }
            assert_eq!(built.info, expected, "{point:?}");
            assert!(bytes_of(&setup.store, &job, "v") == bytes, "{copies:?} {codes:?} {point:?}");
            assert!(setup.store.kept().unwrap().is_empty());
        }
        // If a build is interrupted several times, the last build must use the runs of all attempts.
        for point in [("assigning", 30_000), ("assigning", 90_000), ("writing lists", 1)] {
            surely_interrupted(&setup, &options, point);
        }
        assert!(resume(&setup, &options, (small, 2)).resumed >= Some(VECTORS as u64));
        assert!(bytes_of(&setup.store, &job, "v") == bytes);
    }
}

#[test]
fn kept_work_of_other_options_or_vectors_is_not_used_and_the_reason_is_told() {
    let setup = setup();
    let options = Index { lists: Some(300), seed: 5, ..Index::default() };
    surely_interrupted(&setup, &options, ("assigning", 60_000));
    let name = setup.store.kept().unwrap()[0].name.clone();
    let other = Index { seed: 6, ..options.clone() };
    let built = resume(&setup, &other, (40 << 20, 2));
    assert_eq!(built.resumed, None);
    let why = built.unused.unwrap();
    assert!(why.contains(&name) && why.contains("other options or other vectors"), "{why}");
    let job = setup.job(8 << 20, 1);
    let bytes = bytes_of(&setup.store, &job, "v");
    build(&setup, "v", &other, (40 << 20, 1));
    assert!(bytes_of(&setup.store, &job, "v") == bytes);
    // The kept work remains for the same options. But a build of changed vectors must not use the work.
    let added = setup.file("added", &clustered(Element::U8, 16, 10, 1002));
    add_vectors(&setup.store, &setup.job(40 << 20, 2), "v", &added).unwrap();
    let built = resume(&setup, &options, (40 << 20, 2));
    assert_eq!((built.resumed, built.info.vectors), (None, VECTORS as u64 + 10));
    assert!(built.unused.unwrap().contains(&name));
    setup.store.remove_kept(&name).unwrap();
    assert!(setup.store.kept().unwrap().is_empty());
}
