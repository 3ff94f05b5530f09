//! Tests of drives that fail in the middle of jobs. A job must then return an error, and never a wrong answer or an
//! incomplete graph.

mod support;

use std::{sync::Arc, time::Duration};

use arrow_array::{RecordBatch, cast::AsArray, types::Float64Type};
use inshore_graph::{
    Answer, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions, Graph,
    ImportOptions, Kronecker, PageRankOptions, Regime, SsspOptions, Tuning, betweenness, bfs, clustering,
    communities, components, generate, import, list, pagerank, sssp,
};
use inshore_sortreduce::Strategy;
use inshore_store::{Budget, Cancel, Directory, EXTENT_BYTES, Fault, Faulty, Job, SEGMENT_EXTENTS, Store};
use inshore_tables::Input;
use support::MIB;

struct FaultyStore {
    folder: tempfile::TempDir,
    store: Store,
    device: Faulty,
}

impl FaultyStore {
    fn new(faults: &[Fault]) -> FaultyStore {
        let folder = tempfile::tempdir().unwrap();
        FaultyStore::on(folder, faults)
    }

    /// Reopens the store in a folder, on a device that fails as `faults` say.
    fn on(folder: tempfile::TempDir, faults: &[Fault]) -> FaultyStore {
        let directory = Directory::open(folder.path(), None).unwrap();
        let device = Faulty::new(Arc::new(directory), &[]);
        let store = Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
        device.set(faults);
        FaultyStore { folder, store, device }
    }

    /// Creates a job. This reads the superblock and the log of the store, and may fail too.
    fn job(&self) -> inshore_store::Result<Job> {
        self.store.job(Budget::new(8 * MIB, 2), Cancel::default())
    }
}

/// Returns about 30 numbers from 0 to `count`, including the first and last few.
fn spread(count: u64) -> impl Iterator<Item = u64> {
    let step = (count / 24).max(1);
    (0..count).filter(move |n| *n < 4 || n + 4 >= count || n % step == 0)
}

/// Reads the edges of the graph `g` on a device without faults.
fn edges(rig: &FaultyStore) -> Vec<u8> {
    let store = Store::open(rig.store.path()).unwrap();
    let job = store.job(Budget::new(8 * MIB, 2), Cancel::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edges.csv");
    inshore_graph::export(&Graph::open(&store, "g").unwrap(), &job, &path).unwrap();
    std::fs::read(path).unwrap()
}

/// Runs `work` with each fault. Each run must either fail with an error that describes the fault and leave no
/// incomplete graph, or succeed with the right edges. A run may succeed because the schedule of threads varies. It may
/// need a few operations less than the run in which they were counted, or a fault may hit read-ahead that is not
/// needed.
fn assert_fails(
    faults: impl Iterator<Item = Fault>,
    expected: &[u8],
    work: impl Fn(&FaultyStore) -> inshore_graph::Result<()>,
) {
    let (mut failed, mut all, mut whole) = (0, 0, 0);
    for fault in faults {
        let rig = FaultyStore::new(&[fault]);
        let error = match work(&rig) {
            Err(error) => error.to_string(),
            Ok(()) => {
                assert!(edges(&rig) == expected, "{fault:?}: a wrong graph, and nothing was said");
                all += 1;
                continue;
            }
        };
        let told = ["No space left", "Input/output error", "damaged at offset", "the file ends before"];
        assert!(told.iter().any(|word| error.contains(word)), "{fault:?}: {error}");
        // If only the write of the second copy of the log's record failed, the first copy counts: the graph exists and
        // is complete.
        let store = Store::open(rig.store.path()).unwrap();
        if !list(&store).unwrap().is_empty() {
            assert!(edges(&rig) == expected, "{fault:?}: half made");
            whole += 1;
        }
        drop(store);
        let left = std::fs::read_dir(rig.store.path().join("scratch")).unwrap().count();
        assert_eq!(left, 1, "{fault:?}: only the lock is left in scratch");
        (failed, all) = (failed + 1, all + 1);
    }
    assert!(whole <= 4, "{whole} graphs were made by jobs that failed");
    // Some faults make no difference, since the superblock and the log have two copies, and a wrong copy is ignored.
    assert!(failed * 3 >= all, "only {failed} of {all} faults made a difference");
}

#[test]
fn import_survives_every_kind_of_fault_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edges.txt");
    let text: String = (0..200_000u64).map(|n| format!("{} {}\n", n * n % 70_001, n % 65_537 * 3)).collect();
    std::fs::write(&path, text).unwrap();
    let work = |rig: &FaultyStore| {
        let options = ImportOptions { reverse: true, ..Default::default() };
        import(&rig.store, &rig.job()?, "g", &[Input::new(&path)], &options).map(drop)
    };
    let rig = FaultyStore::new(&[]);
    work(&rig).unwrap();
    let (reads, writes, syncs) = rig.device.counts();
    let expected = edges(&rig);
    assert!(reads > 20 && writes > 20 && syncs >= 2, "{reads} reads, {writes} writes, {syncs} syncs");
    assert_fails(spread(writes).map(Fault::NoSpaceFromWrite), &expected, work);
    assert_fails(spread(writes).map(Fault::FailWrite), &expected, work);
    assert_fails(spread(reads).map(Fault::FailRead), &expected, work);
    assert_fails(spread(reads).map(Fault::FlipRead), &expected, work);
    assert_fails((0..syncs).map(Fault::FailSync), &expected, work);
}

type Algorithm = fn(&Graph, &Job, Tuning, Option<Duration>) -> inshore_graph::Result<Answer>;

const ALGORITHMS: [(&str, Algorithm); 8] = [
    ("PageRank", |graph, job, tuning, resume| {
        pagerank(
            graph,
            job,
            &PageRankOptions { iterations: Some(3), tuning, resume, ..PageRankOptions::default() },
        )
    }),
    ("PageRank by deltas", |graph, job, tuning, resume| {
        pagerank(graph, job, &PageRankOptions { tuning, resume, ..PageRankOptions::converging(2e-2) })
    }),
    ("BFS", |graph, job, tuning, resume| bfs(graph, job, &BfsOptions { source: 0, tuning, resume })),
    ("shortest paths", |graph, job, tuning, resume| {
        sssp(graph, job, &SsspOptions { source: 0, tuning, resume })
    }),
    ("components", |graph, job, tuning, resume| {
        components(graph, job, &ComponentsOptions { tuning, resume })
    }),
    ("communities", |graph, job, tuning, resume| {
        communities(graph, job, &CommunitiesOptions { iterations: 3, tuning, resume })
    }),
    ("clustering", |graph, job, tuning, _| clustering(graph, job, &ClusteringOptions { tuning })),
    ("betweenness", |graph, job, tuning, resume| {
        betweenness(graph, job, &BetweennessOptions { sources: 2, seed: 1, tuning, resume })
    }),
];

/// Returns each algorithm with the default tuning and with a tuning that makes runs spill. Some algorithms also come
/// with columns on flash.
fn algorithms_in_all_ways() -> impl Iterator<Item = ((&'static str, Algorithm), Tuning)> {
    let spill = Tuning { strategy: Some(Strategy::Merge), chunk_bytes: Some(64 << 10), ..Tuning::default() };
    let columns = Tuning { column_vertices: Some(3000), regime: Some(Regime::External), ..Tuning::default() };
    ALGORITHMS.into_iter().flat_map(move |(name, algorithm)| {
        let has_columns = matches!(name, "PageRank" | "PageRank by deltas" | "components");
        let ways = [Some(Tuning::default()), Some(spill), has_columns.then_some(columns)];
        ways.into_iter().flatten().map(move |tuning| ((name, algorithm), tuning))
    })
}

/// Creates a store with a directed graph that has weights. Its vertices are on a ring, so that all of them are reached,
/// and random edges connect them.
fn ring() -> FaultyStore {
    let mut text = String::new();
    for n in 0..1u64 << 14 {
        text += &format!("{n} {} 1\n", (n + 1) % (1 << 14));
        (1..6).for_each(|k| text += &format!("{n} {} {k}.5\n", n * n * k % 16_381));
    }
    let input = tempfile::tempdir().unwrap();
    let path = input.path().join("edges.txt");
    std::fs::write(&path, text).unwrap();
    let rig = FaultyStore::new(&[]);
    let options = ImportOptions { weighted: true, ..Default::default() };
    import(&rig.store, &rig.job().unwrap(), "g", &[Input::new(&path)], &options).unwrap();
    rig
}

/// Reads all rows, and removes the checkpoints.
fn read(mut answer: Answer) -> inshore_graph::Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    while let Some(batch) = answer.rows.next_batch()? {
        batches.push(batch);
    }
    answer.rows.finish()?;
    Ok(batches)
}

/// Lets a selection of the reads and writes of a run fail. Each run must return an error or the right answer. (The
/// schedule of threads varies, so the n-th operation is not the same in each run.)
#[test]
fn every_algorithm_survives_every_kind_of_fault_at_any_time() {
    let FaultyStore { folder: made, store, .. } = ring();
    drop(store);
    let run = |rig: &FaultyStore, algorithm: Algorithm, tuning: Tuning| -> inshore_graph::Result<Vec<_>> {
        let graph = Graph::open(&rig.store, "g")?;
        read(algorithm(&graph, &rig.job()?, tuning, None)?)
    };
    let mut folder = Some(made);
    for ((name, algorithm), tuning) in algorithms_in_all_ways() {
        let rig = FaultyStore::on(folder.take().unwrap(), &[]);
        let expected = run(&rig, algorithm, tuning).unwrap();
        let (reads, writes, _) = rig.device.counts();
        assert!(reads >= 4, "{name}: {reads} reads");
        let faults = (spread(reads).step_by(2).flat_map(|n| [Fault::FailRead(n), Fault::FlipRead(n)])).chain(
            spread(writes)
                .step_by(3)
                .flat_map(|n| [Fault::NoSpaceFromWrite(n), Fault::TearWrite(n), Fault::DropWrite(n)]),
        );
        let (mut failed, mut rig) = (0, rig);
        for fault in faults {
            let FaultyStore { folder, store, .. } = rig;
            drop(store);
            rig = FaultyStore::on(folder, &[fault]);
            // The number of operations varies a little with the schedule, so the last faults may not occur.
            match run(&rig, algorithm, tuning) {
                Err(error) => {
                    assert!(!error.to_string().is_empty(), "{name}: {fault:?}");
                    failed += 1;
                }
                Ok(found) if name == "betweenness" => assert!(is_close(&found, &expected), "{fault:?}"),
                Ok(found) => assert!(found == expected, "{name}: {fault:?}: a wrong answer"),
            }
            rig.device.set(&[]);
            assert_eq!(list(&rig.store).unwrap().len(), 1, "{name}: {fault:?}");
        }
        assert!(failed >= 4, "{name}: only {failed} faults made a difference");
        let FaultyStore { folder: back, store, .. } = rig;
        drop(store);
        folder = Some(back);
    }
}

/// A job fails repeatedly, a little later each time, and resumes from its checkpoints. The job must give the answer of
/// an undisturbed job, and must leave no checkpoint behind.
#[test]
fn every_algorithm_resumes_where_it_was_interrupted() {
    let FaultyStore { folder: made, store, .. } = ring();
    drop(store);
    let mut folder = Some(made);
    for ((name, algorithm), tuning) in algorithms_in_all_ways() {
        let is_one_pass = name == "clustering" || (name == "components" && tuning.column_vertices.is_none());
        if is_one_pass {
            continue;
        }
        let mut rig = FaultyStore::on(folder.take().unwrap(), &[]);
        let graph = Graph::open(&rig.store, "g").unwrap();
        let expected = read(algorithm(&graph, &rig.job().unwrap(), tuning, None).unwrap()).unwrap();
        let (mut fails_at, mut runs, mut failed, mut went_on) = (4, 0, 0, 0);
        // A fault may have no effect on a job. The job then gives an answer, which counts only if the job resumed from
        // a checkpoint.
        while went_on < 3 {
            let FaultyStore { folder, store, .. } = rig;
            drop(store);
            let fault =
                if runs % 2 == 0 { Fault::FailRead(fails_at) } else { Fault::NoSpaceFromWrite(fails_at) };
            rig = FaultyStore::on(folder, &[fault]);
            // The job resumes with a different amount of memory each time.
            let memory = if runs % 3 == 0 { 9 * MIB } else { 16 * MIB };
            let job = rig.store.job(Budget::new(memory, 1 + runs % 2), Cancel::default()).unwrap();
            let graph = Graph::open(&rig.store, "g").unwrap();
            let result = algorithm(&graph, &job, tuning, Some(Duration::ZERO)).and_then(read);
            let took_up = job.report().phases.iter().any(|phase| phase.phase.starts_with("resuming"));
            match result {
                Ok(found) => {
                    let is_right = match name {
                        "betweenness" => is_close(&found, &expected),
                        _ => found == expected,
                    };
                    assert!(is_right, "{name}: a wrong answer after {failed} interruptions");
                    went_on += u32::from(took_up);
                }
                Err(_) => failed += 1,
            }
            (fails_at, runs) = (fails_at + 1 + fails_at / 16, runs + 1);
            assert!(runs < 200, "{name}: failed {failed} times, {went_on} answers went on");
        }
        assert!(failed > 0, "{name}");
        rig.device.set(&[]);
        assert!(rig.store.kept().unwrap().is_empty(), "{name}: nothing is left");
        let FaultyStore { folder: back, store, .. } = rig;
        drop(store);
        folder = Some(back);
    }
}

/// A checkpoint of a job is not used by a job with other options.
#[test]
fn checkpoints_of_another_question_are_not_used() {
    let rig = ring();
    let graph = Graph::open(&rig.store, "g").unwrap();
    let search =
        |source, resume| bfs(&graph, &rig.job().unwrap(), &BfsOptions { resume, ..BfsOptions::new(source) });
    let expected = [0, 5].map(|source| read(search(source, None).unwrap()).unwrap());
    // The rows are dropped without a call of `finish`, so the checkpoint stays.
    drop(search(0, Some(Duration::ZERO)).unwrap());
    assert_eq!(rig.store.kept().unwrap().len(), 1);
    let resumed = [0, 5].map(|source| read(search(source, Some(Duration::ZERO)).unwrap()).unwrap());
    assert!(resumed == expected);
    assert!(rig.store.kept().unwrap().is_empty());
}

/// Tells whether the second columns of two answers are equal, except for the last bits of their values.
fn is_close(found: &[RecordBatch], expected: &[RecordBatch]) -> bool {
    let values = |batches: &[RecordBatch]| -> Vec<f64> {
        let columns = batches.iter().flat_map(|batch| batch.column(1).as_primitive::<Float64Type>().values());
        columns.copied().collect()
    };
    let (found, expected) = (values(found), values(expected));
    found.len() == expected.len()
        && found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
}

#[test]
fn damage_on_flash_is_found_in_every_file_of_a_graph() {
    for name in ["out.index", "out.edges", "ids"] {
        let rig = FaultyStore::new(&[]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.txt");
        std::fs::write(&path, "5 7\n7 9\n9 5\n").unwrap();
        import(&rig.store, &rig.job().unwrap(), "g", &[Input::new(&path)], &ImportOptions::default())
            .unwrap();
        let dataset = rig.store.dataset("g").unwrap();
        let file = dataset.file(name).unwrap();
        let found = &dataset.locate(&rig.job().unwrap(), &file, 9..10).unwrap()[0];
        let (place, offset) = (found.places[0], found.extent_offset as usize);
        let segment = rig.store.path().join(format!("segment-{:08}", place.extent / SEGMENT_EXTENTS));
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[(place.extent % SEGMENT_EXTENTS) as usize * EXTENT_BYTES + offset] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let run = || -> inshore_graph::Result<()> {
            let graph = Graph::open(&rig.store, "g")?;
            let mut answer = pagerank(&graph, &rig.job()?, &PageRankOptions::default())?;
            while answer.rows.next_batch()?.is_some() {}
            Ok(())
        };
        let error = run().expect_err(name).to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn a_job_that_is_stopped_leaves_the_store_as_it_was() {
    let rig = FaultyStore::new(&[]);
    let cancel = Cancel::default();
    let job = rig.store.job(Budget::new(8 * MIB, 2), cancel.clone()).unwrap();
    let progress = job.clone();
    let stopper = std::thread::spawn(move || {
        while progress.progress().state().done == 0 {
            std::thread::yield_now();
        }
        cancel.cancel();
    });
    let kronecker = Kronecker { scale: 20, edge_factor: 16, seed: 1 };
    let error = generate(&rig.store, &job, "g", &kronecker, false).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    stopper.join().unwrap();
    drop(job);
    assert!(list(&rig.store).unwrap().is_empty());
}
