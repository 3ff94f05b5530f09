//! Tests of vertex programs of users: a program gives the same answer with every layout and budget, and an error if it
//! is wrong.

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use inshore_graph::{
    Answer, Error, Graph, ImportOptions, Result, SearchProgram, Tuning, VertexId, VertexProgram,
    program::{Column, Needs, ProgramOptions, Resume, SuperstepInfo, run, search},
};
use inshore_sortreduce::Strategy;
use inshore_store::{Budget, Cancel, Job};
use support::{MIB, TestStore, forced, rows, ways};

/// The number of vertices in the graph. Vertex number `n` has the original id `3 n + 2`, so that no id is its number.
const VERTICES: u32 = 300;

fn id(number: u32) -> u64 {
    u64::from(number) * 3 + 2
}

/// Returns the edges of a ring with chords and a hub: every vertex has edges, and many vertices have several in-edges.
fn edges() -> Vec<(u32, u32)> {
    let mut edges: Vec<_> = (0..VERTICES).map(|v| (v, (v + 1) % VERTICES)).collect();
    edges.extend((0..VERTICES).map(|v| (v, v * 7 % VERTICES)));
    edges.extend((0..VERTICES).map(|v| (v, 11)));
    edges.sort_unstable();
    edges.dedup();
    edges
}

fn ring(world: &TestStore) -> Graph {
    let line = |(a, b)| format!("{} {} {}\n", id(a), id(b), f64::from(a % 5) + 1.0);
    let path = world.file("g.e", edges().into_iter().map(line).collect::<String>());
    let options = ImportOptions { weighted: true, reverse: true, ..ImportOptions::default() };
    world.import("g", &[path], &options).unwrap();
    world.graph("g")
}

/// The fault of a program: the function of this name fails at the vertex with this number.
#[derive(Clone, Copy)]
struct Fault(&'static str, u64);

const SOUND: Fault = Fault("nothing", 0);

impl Fault {
    fn at(self, function: &str, vertex: VertexId) {
        assert!(!(self.0 == function && vertex.number() == self.1), "{} at {}", self.0, self.1);
    }
}

/// Adds the sums of all in-neighbours to the sum of each vertex, in three supersteps. A value also contains the number
/// of its vertex, since some functions do not get the vertex as an argument.
struct Sums {
    fault: Fault,
}

/// The number of low bits of a value, which hold a sum. The bits above hold the number of the vertex.
const SHIFT: u32 = 40;

impl Sums {
    fn of(value: u64) -> u64 {
        value & ((1 << SHIFT) - 1)
    }

    fn vertex(value: u64) -> u64 {
        value >> SHIFT
    }

    fn at(&self, function: &str, vertex: u64) {
        assert!(!(self.fault.0 == function && vertex == self.fault.1), "{function} at {vertex}");
    }
}

impl VertexProgram for Sums {
    type Value = u64;
    type Message = u64;
    const NAME: &'static str = "sums";
    const NEEDS: Needs = Needs { weights: true, every_vertex: false };

    fn initial(&self, vertex: VertexId) -> u64 {
        self.fault.at("initial", vertex);
        vertex.number() << SHIFT | 1
    }

    fn starts(&self, vertex: VertexId, _value: u64) -> bool {
        self.fault.at("starts", vertex);
        true
    }

    fn edge_program(&self, at: &SuperstepInfo, vertex: VertexId, value: u64, out_degree: u64) -> Option<u64> {
        self.fault.at("edge_program", vertex);
        if self.fault.0 == "reserved" && vertex.number() == self.fault.1 {
            return Some(u64::MAX);
        }
        assert_eq!((at.vertices, Sums::vertex(value)), (VERTICES.into(), vertex.number()));
        Some(Sums::of(value) + out_degree)
    }

    fn along(&self, message: u64, weight: f64) -> u64 {
        if self.fault.0 == "along" {
            panic!("along");
        }
        (message + weight as u64) % (1 << 30)
    }

    fn reduce(&self, a: u64, b: u64) -> u64 {
        if self.fault.0 == "reduce" {
            panic!("reduce");
        }
        (a + b) % (1 << 30)
    }

    fn finalize(&self, at: &SuperstepInfo, vertex: VertexId, message: Option<u64>, value: u64) -> u64 {
        self.fault.at("finalize", vertex);
        assert_eq!(at.aggregate, u64::from(VERTICES) * 2);
        (vertex.number() << SHIFT) | ((Sums::of(value) + message.unwrap()) % (1 << 30))
    }

    fn is_active(&self, new: u64, _old: u64) -> bool {
        self.at("is_active", Sums::vertex(new));
        true
    }

    fn aggregate(&self, value: u64, _out_degree: u64) -> u64 {
        self.at("aggregate", Sums::vertex(value));
        2
    }

    fn columns(&self) -> Vec<Column<u64>> {
        assert!(self.fault.0 != "columns", "columns");
        let fault = self.fault;
        let sum = move |value| {
            assert!(!(fault.0 == "a column" && Sums::vertex(value) == fault.1), "cell");
            Some(Sums::of(value))
        };
        vec![Column::unsigned("sum", sum)]
    }
}

fn options(tuning: Tuning) -> ProgramOptions {
    ProgramOptions { supersteps: Some(3), tuning, ..ProgramOptions::default() }
}

#[test]
fn every_possible_choice_gives_the_sums_of_a_plain_loop() {
    let world = TestStore::new();
    let graph = ring(&world);
    let edges = edges();
    let mut degrees = vec![0; VERTICES as usize];
    edges.iter().for_each(|&(from, _)| degrees[from as usize] += 1);
    let mut sums = vec![1u64; VERTICES as usize];
    for _ in 0..3 {
        let before = sums.clone();
        for &(from, to) in &edges {
            let sent = before[from as usize] + degrees[from as usize] + u64::from(from % 5) + 1;
            sums[to as usize] = (sums[to as usize] + sent) % (1 << 30);
        }
    }
    let expected: Vec<_> = (0..VERTICES).zip(sums).map(|(v, sum)| (id(v), vec![Some(sum as f64)])).collect();
    let ways = ways().into_iter().map(|way| (way.memory_bytes, way.threads, way.tuning));
    for (memory_bytes, threads, tuning) in
        ways.chain(forced(7).into_iter().map(|tuning| (64 * MIB, 2, tuning)))
    {
        let job = world.job(memory_bytes, threads);
        let found = rows(run(&graph, &job, Sums { fault: SOUND }, &options(tuning)).unwrap());
        assert!(found == expected, "{memory_bytes} bytes, {threads} threads, {tuning:?}");
        assert_eq!(job.budget().reserved_bytes(), 0, "{tuning:?} hands its memory back");
    }
}

/// Returns layouts that call functions from different places in the engine: accumulators, and several kinds of
/// sort-reduce.
fn layouts() -> Vec<(u64, Tuning)> {
    let sorted = |strategy| Tuning { strategy: Some(strategy), ..Tuning::default() };
    let strategies = [Strategy::Merge, Strategy::Partition, Strategy::HashFirst].map(sorted);
    let spilling = Tuning { chunk_bytes: Some(16 << 10), ..sorted(Strategy::Merge) };
    let all = [Tuning::default(), spilling].into_iter().chain(strategies);
    all.map(|tuning| (16 * MIB, tuning)).collect()
}

fn program_error(result: Result<Answer>) -> (String, String, Option<u64>, String) {
    let error = match result {
        Err(error) => error,
        Ok(mut answer) => loop {
            match answer.rows.next_batch() {
                Ok(batch) => assert!(batch.is_some(), "no error"),
                Err(error) => break error,
            }
        },
    };
    match error {
        Error::Program { program, function, vertex, what } => (program.into(), function.into(), vertex, what),
        other => panic!("{other}"),
    }
}

#[test]
fn a_panic_in_any_function_is_an_error_that_names_program_function_and_vertex() {
    let world = TestStore::new();
    let graph = ring(&world);
    let functions = ["initial", "starts", "edge_program", "aggregate", "finalize", "is_active", "a column"];
    for (memory_bytes, tuning) in layouts() {
        for function in functions {
            let job = world.job(memory_bytes, 2);
            let fault = Fault(function, 123);
            let found = program_error(run(&graph, &job, Sums { fault }, &options(tuning)));
            let (program, named, vertex, what) = found;
            assert_eq!((&program[..], &named[..], vertex), ("sums", function, Some(id(123))), "{tuning:?}");
            assert!(what.starts_with("panicked: "), "{what}");
            assert_eq!(job.budget().reserved_bytes(), 0, "{function}: memory came back");
        }
        // The error may name any vertex for which the function is called.
        for function in ["along", "reduce"] {
            let job = world.job(memory_bytes, 2);
            let fault = Fault(function, 0);
            let (_, named, vertex, what) = program_error(run(&graph, &job, Sums { fault }, &options(tuning)));
            assert_eq!((&named[..], &what[..]), (function, &format!("panicked: {function}")[..]));
            let vertex = vertex.expect("a vertex");
            assert!(vertex % 3 == 2 && vertex < id(VERTICES), "{tuning:?}: {vertex}");
        }
    }
    let error = run(
        &graph,
        &world.job(16 * MIB, 2),
        Sums { fault: Fault("columns", 0) },
        &options(Tuning::default()),
    );
    assert_eq!(program_error(error).1, "columns");
    let error = run(
        &graph,
        &world.job(16 * MIB, 2),
        Sums { fault: Fault("finalize", 5) },
        &options(Tuning::default()),
    );
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("vertex program sums: finalize of vertex 17 panicked: finalize at 5"), "{text}");
}

#[test]
fn a_message_of_reserved_bits_is_an_error() {
    let world = TestStore::new();
    let graph = ring(&world);
    for (memory_bytes, tuning) in layouts() {
        let job = world.job(memory_bytes, 2);
        let fault = Fault("reserved", 9);
        let (_, function, vertex, what) = program_error(run(&graph, &job, Sums { fault }, &options(tuning)));
        assert_eq!((&function[..], vertex), ("edge_program", Some(id(9))));
        assert!(what.contains("reserved"), "{what}");
    }
}

/// Counts the messages and supersteps of every vertex. If `fails` is set, `reduce` panics at the vertex that gets a
/// hundred messages.
struct Counts {
    fails: bool,
}

impl VertexProgram for Counts {
    type Value = (u64, u64);
    type Message = u32;
    const NAME: &'static str = "counts";
    const NEEDS: Needs = Needs { weights: false, every_vertex: true };

    fn initial(&self, vertex: VertexId) -> (u64, u64) {
        (vertex.number(), 0)
    }

    fn edge_program(&self, _: &SuperstepInfo, vertex: VertexId, _: (u64, u64), _: u64) -> Option<u32> {
        // Vertices with odd numbers send nothing.
        vertex.number().is_multiple_of(2).then_some(1)
    }

    fn reduce(&self, a: u32, b: u32) -> u32 {
        assert!(!self.fails || a + b < 100, "a hundred");
        a + b
    }

    fn finalize(
        &self,
        at: &SuperstepInfo,
        vertex: VertexId,
        sum: Option<u32>,
        value: (u64, u64),
    ) -> (u64, u64) {
        assert_eq!((value.0, value.1 >> 32), (vertex.number(), u64::from(at.number) - 1));
        (value.0, u64::from(at.number) << 32 | u64::from(sum.unwrap_or(0)))
    }

    fn is_active(&self, _: (u64, u64), _: (u64, u64)) -> bool {
        unreachable!("every vertex is active")
    }

    fn columns(&self) -> Vec<Column<(u64, u64)>> {
        vec![
            Column::unsigned("count", |(_, counts)| Some(counts & u64::from(u32::MAX))),
            Column::unsigned("supersteps", |(_, counts)| Some(counts >> 32)),
        ]
    }
}

#[test]
fn every_vertex_gets_a_value_in_each_superstep_with_or_without_a_message() {
    let world = TestStore::new();
    let graph = ring(&world);
    let mut counts = vec![0.0; VERTICES as usize];
    edges().iter().filter(|(from, _)| from % 2 == 0).for_each(|&(_, to)| counts[to as usize] += 1.0);
    let expected: Vec<_> =
        (0..VERTICES).zip(counts).map(|(v, count)| (id(v), vec![Some(count), Some(3.0)])).collect();
    let mut strategies = String::new();
    let ways = ways().into_iter().map(|way| (way.memory_bytes, way.threads, way.tuning));
    for (memory_bytes, threads, tuning) in
        ways.chain(forced(3).into_iter().map(|tuning| (64 * MIB, 2, tuning)))
    {
        let job = world.job(memory_bytes, threads);
        let answer = run(&graph, &job, Counts { fails: false }, &options(tuning)).unwrap();
        strategies += &answer.summary.strategy;
        assert!(rows(answer) == expected, "{memory_bytes} bytes, {threads} threads, {tuning:?}");
    }
    for way in ["columns", "dense", "merge", "partition"] {
        assert!(strategies.contains(way), "never {way}");
    }
}

/// Only vertex 11 gets a hundred messages, so the error must name it.
#[test]
fn a_panic_in_reduce_names_the_vertex_of_the_messages() {
    let world = TestStore::new();
    let graph = ring(&world);
    let columns = |regime| Tuning { column_vertices: Some(7), regime, ..Tuning::default() };
    let by_columns = [None, Some(inshore_graph::Regime::External)].map(columns);
    let mut strategies = String::new();
    for (memory_bytes, tuning) in layouts().into_iter().chain(by_columns.map(|tuning| (64 * MIB, tuning))) {
        let job = world.job(memory_bytes, 2);
        let found = program_error(run(&graph, &job, Counts { fails: true }, &options(tuning)));
        let expected = ("counts".into(), "reduce".into(), Some(id(11)), "panicked: a hundred".into());
        assert_eq!(found, expected, "{tuning:?}");
        let sound = run(&graph, &world.job(memory_bytes, 2), Counts { fails: false }, &options(tuning));
        strategies += &sound.unwrap().summary.strategy;
    }
    assert!(strategies.contains("columns"));
}

#[test]
fn a_program_without_an_end_or_without_its_weights_is_refused() {
    let world = TestStore::new();
    let graph = ring(&world);
    let error = run(&graph, &world.job(16 * MIB, 2), Counts { fails: false }, &ProgramOptions::default());
    assert!(error.unwrap_err().to_string().starts_with("supersteps is none: expected a number"));
    let path = world.file("plain.e", "1 2\n");
    world.import("plain", &[path], &ImportOptions::default()).unwrap();
    let plain = world.graph("plain");
    let error = run(&plain, &world.job(16 * MIB, 2), Sums { fault: SOUND }, &options(Tuning::default()));
    assert!(error.unwrap_err().to_string().contains("expected edges with weights"));
    let job = world.job(4 * MIB, 2);
    assert!(run(&graph, &job, Sums { fault: SOUND }, &options(Tuning::default())).is_err());
}

/// The columns that a search answers with.
type AnswerColumns = Vec<Column<(u64, Option<VertexId>)>>;

/// Computes the level of each vertex, with one of several faults.
struct Levels {
    source: VertexId,
    fault: Fault,
    columns: fn() -> AnswerColumns,
}

fn level_columns() -> AnswerColumns {
    vec![
        Column::vertex("from", |(_, from)| from),
        Column::unsigned("level", |(level, from): (u64, Option<VertexId>)| from.map(|_| level)),
    ]
}

impl Levels {
    fn new(source: VertexId, fault: Fault) -> Levels {
        Levels { source, fault, columns: level_columns }
    }
}

impl SearchProgram for Levels {
    type Value = (u64, Option<VertexId>);
    const NAME: &'static str = "levels";

    fn initial(&self, vertex: VertexId) -> Self::Value {
        (0, (vertex == self.source).then_some(vertex))
    }

    fn starts(&self, vertex: VertexId, (_, from): Self::Value) -> bool {
        self.fault.at("starts", vertex);
        from.is_some()
    }

    fn waits(&self, (_, from): Self::Value) -> bool {
        assert!(self.fault.0 != "waits", "waits");
        from.is_none()
    }

    fn reached(&self, at: &SuperstepInfo, vertex: VertexId, from: VertexId, _: Self::Value) -> Self::Value {
        self.fault.at("reached", vertex);
        let still = self.fault.0 == "still waits" && vertex.number() == self.fault.1;
        (at.number.into(), (!still).then_some(from))
    }

    fn columns(&self) -> Vec<Column<Self::Value>> {
        (self.columns)()
    }
}

/// Returns the vertex with number 5.
fn source(graph: &Graph, job: &Job) -> VertexId {
    graph.vertex_id(job, id(5)).unwrap()
}

#[test]
fn a_search_is_that_of_the_built_in_algorithm_in_every_possible_way() {
    let world = TestStore::new();
    let graph = ring(&world);
    let source = source(&graph, &world.job(16 * MIB, 1));
    let mut told = String::new();
    let ways = ways().into_iter().map(|way| (way.memory_bytes, way.threads, way.tuning));
    for (memory_bytes, threads, tuning) in
        ways.chain(forced(40).into_iter().map(|tuning| (64 * MIB, 2, tuning)))
    {
        let bfs = inshore_graph::BfsOptions { tuning, ..inshore_graph::BfsOptions::new(id(5)) };
        let expected = inshore_graph::bfs(&graph, &world.job(memory_bytes, threads), &bfs).unwrap();
        let job = world.job(memory_bytes, threads);
        job.progress().listen();
        let options = ProgramOptions { tuning, ..ProgramOptions::default() };
        let found = search(&graph, &job, Levels::new(source, SOUND), &options).unwrap();
        told += &job.progress().take_told().join("\n");
        assert_eq!(found.summary.edges_traversed, expected.summary.edges_traversed, "{tuning:?}");
        assert!(rows(found) == rows(expected), "{memory_bytes} bytes, {threads} threads, {tuning:?}");
    }
    for way in
        ["along in-edges, in an array", "in-edges that are in memory", "along in-edges, through sort-reduce"]
    {
        assert!(told.contains(way), "never {way}");
    }
}

#[test]
fn a_search_that_is_wrong_is_an_error() {
    let world = TestStore::new();
    let graph = ring(&world);
    let source = source(&graph, &world.job(16 * MIB, 1));
    for (memory_bytes, tuning) in layouts() {
        let options = ProgramOptions { tuning, ..ProgramOptions::default() };
        let found = |fault| {
            let job = world.job(memory_bytes, 2);
            program_error(search(&graph, &job, Levels::new(source, fault), &options))
        };
        assert_eq!(found(Fault("reached", 200)).2, Some(id(200)));
        assert_eq!(found(Fault("starts", 200)).2, Some(id(200)));
        assert_eq!(found(Fault("waits", 0)).1, "waits");
        let (_, function, vertex, what) = found(Fault("still waits", 200));
        assert_eq!(
            (&function[..], vertex, &what[..]),
            ("reached", Some(id(200)), "returned a value for which the vertex still counts as unvisited")
        );
    }
    let columns = |columns: fn() -> AnswerColumns| {
        let program = Levels { columns, ..Levels::new(source, SOUND) };
        program_error(search(&graph, &world.job(16 * MIB, 2), program, &ProgramOptions::default())).3
    };
    let twice = || vec![Column::unsigned("vertex", |_| None)];
    assert_eq!(columns(twice), "returned two columns with the name vertex");
    let vertices = || vec![Column::vertex("a", |_| None), Column::vertex("b", |_| None)];
    assert_eq!(columns(vertices), "returned more than one column of vertices");
}

#[test]
fn a_vertex_of_another_graph_is_an_error() {
    let world = TestStore::new();
    let graph = ring(&world);
    let path = world.file("small.e", "1 2\n2 1\n");
    world.import("small", &[path], &ImportOptions { reverse: true, ..ImportOptions::default() }).unwrap();
    let small = world.graph("small");
    let job = world.job(16 * MIB, 1);
    let vertex = graph.vertex_id(&job, id(7)).unwrap();
    assert!(matches!(small.original_id(&job, vertex), Err(Error::NoSuchVertex { vertex: 7, .. })));
    assert!(matches!(graph.vertex_id(&job, 1), Err(Error::NoSuchVertex { vertex: 1, .. })));
    drop(job);

    struct ReportsIds(VertexId);
    impl SearchProgram for ReportsIds {
        type Value = VertexId;
        const NAME: &'static str = "names";
        fn initial(&self, _: VertexId) -> VertexId {
            self.0
        }
        fn starts(&self, _: VertexId, _: VertexId) -> bool {
            false
        }
        fn waits(&self, _: VertexId) -> bool {
            false
        }
        fn reached(&self, _: &SuperstepInfo, _: VertexId, _: VertexId, value: VertexId) -> VertexId {
            value
        }
        fn columns(&self) -> Vec<Column<VertexId>> {
            vec![Column::vertex("name", Some)]
        }
    }
    let found = program_error(search(
        &small,
        &world.job(16 * MIB, 2),
        ReportsIds(vertex),
        &ProgramOptions::default(),
    ));
    assert_eq!((found.2, &found.3[..]), (Some(1), "returned a vertex that is not in the graph"));
}

#[test]
fn a_cancelled_program_ends_and_a_resumed_one_gives_the_same_rows() {
    /// Cancels its own job in the third superstep, once.
    struct CancelsItself<'a> {
        cancel: &'a Cancel,
        is_done: &'a AtomicBool,
    }
    impl VertexProgram for CancelsItself<'static> {
        type Value = u64;
        type Message = u64;
        const NAME: &'static str = "stops";
        const NEEDS: Needs = Needs { weights: false, every_vertex: false };
        fn initial(&self, vertex: VertexId) -> u64 {
            vertex.number()
        }
        fn edge_program(&self, at: &SuperstepInfo, _: VertexId, value: u64, _: u64) -> Option<u64> {
            if at.number == 3 && !self.is_done.swap(true, Ordering::Relaxed) {
                self.cancel.cancel();
            }
            Some(value + 1)
        }
        fn reduce(&self, a: u64, b: u64) -> u64 {
            a.max(b)
        }
        fn finalize(&self, at: &SuperstepInfo, _: VertexId, message: Option<u64>, value: u64) -> u64 {
            value.max(message.unwrap()) + u64::from(at.number)
        }
        fn is_active(&self, new: u64, _: u64) -> bool {
            !new.is_multiple_of(5)
        }
        fn columns(&self) -> Vec<Column<u64>> {
            vec![Column::unsigned("value", Some)]
        }
    }
    let world = TestStore::new();
    let graph = ring(&world);
    let cancel: &'static Cancel = Box::leak(Box::default());
    let is_done: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(true)));
    let resume = |question: &str| Resume { every: Duration::ZERO, question: question.to_string() };
    let options = |question| ProgramOptions {
        supersteps: Some(6),
        resume: Some(resume(question)),
        ..ProgramOptions::default()
    };
    let whole =
        run(&graph, &world.job(16 * MIB, 2), CancelsItself { cancel, is_done }, &options("0")).unwrap();
    let supersteps = whole.summary.supersteps;
    let expected = rows(whole);
    is_done.store(false, Ordering::Relaxed);
    let job = world.store.job(Budget::new(16 * MIB, 2), cancel.clone()).unwrap();
    let error = run(&graph, &job, CancelsItself { cancel, is_done }, &options("1")).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    drop(job);
    let other =
        run(&graph, &world.job(16 * MIB, 2), CancelsItself { cancel, is_done }, &options("2")).unwrap();
    assert_eq!(other.summary.supersteps_kept, None, "another question");
    let resumed =
        run(&graph, &world.job(16 * MIB, 2), CancelsItself { cancel, is_done }, &options("1")).unwrap();
    assert_eq!(resumed.summary.supersteps, supersteps);
    // The third superstep may or may not have been saved, depending on when the job saw the cancellation.
    assert!(matches!(resumed.summary.supersteps_kept, Some(2 | 3)), "{:?}", resumed.summary);
    assert!(rows(resumed) == expected);
}
