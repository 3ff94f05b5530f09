//! Each program against a naive one in memory, and against the built-in algorithm where there is one, in every way to run it.

use std::collections::VecDeque;

use arrow_array::{
    Array,
    cast::AsArray,
    types::{Float64Type, UInt32Type, UInt64Type},
};
use arrow_schema::DataType;
use inshore::{
    graph::{
        Answer, BfsOptions, Graph, ImportOptions, Kronecker, PageRankOptions, Regime, Step, Tuning, bfs,
        generate, import, pagerank,
        program::{ProgramOptions, run, search},
    },
    sortreduce::Strategy,
    store::{Budget, Cancel, Job, Store},
    tables::Input,
};
use inshore_own_program::{Rank, Reach, Widest};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const ITERATIONS: u32 = 4;

struct World {
    folder: tempfile::TempDir,
    store: Store,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        World { folder, store }
    }

    fn job(&self, memory_bytes: u64, threads: usize) -> Job {
        self.store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap()
    }
}

/// A graph in a store, and its vertices and edges in plain vectors. Vertex `n` has the original id `7 n + 5`.
struct Both {
    world: World,
    graph: Graph,
    vertices: u32,
    edges: Vec<(u32, u32)>,
}

fn id(number: u32) -> u64 {
    u64::from(number) * 7 + 5
}

fn weight((from, to): (u32, u32)) -> f64 {
    f64::from(from.wrapping_mul(31) ^ to) % 9.0 + 0.5
}

fn both(vertices: u32, mut edges: Vec<(u32, u32)>) -> Both {
    edges.sort_unstable();
    edges.dedup();
    let world = World::new();
    let path = world.folder.path().join("edges.txt");
    let mut text: String = (0..vertices).map(|vertex| format!("{}\n", id(vertex))).collect();
    let alone = world.folder.path().join("vertices.v");
    std::fs::write(&alone, &text).unwrap();
    text.clear();
    for &(from, to) in &edges {
        text += &format!("{} {} {}\n", id(from), id(to), weight((from, to)));
    }
    std::fs::write(&path, text).unwrap();
    let options = ImportOptions { weighted: true, reverse: true, ..ImportOptions::default() };
    let inputs = [Input::new(&alone), Input::new(&path)];
    import(&world.store, &world.job(64 * MIB, 2), "g", &inputs, &options).unwrap();
    let graph = Graph::open(&world.store, "g").unwrap();
    assert_eq!((graph.vertices(), graph.info().entries), (vertices.into(), edges.len() as u64));
    Both { world, graph, vertices, edges }
}

/// The original id, and each other column as a number.
type Row = (u64, Vec<Option<f64>>);

/// All rows of an answer.
fn rows(mut answer: Answer) -> Vec<Row> {
    let mut all = Vec::new();
    while let Some(batch) = answer.rows.next_batch().unwrap() {
        let ids = batch.column(0).as_primitive::<UInt64Type>();
        for row in 0..batch.num_rows() {
            let cells = batch.columns()[1..].iter().map(|column| {
                if column.is_null(row) {
                    return None;
                }
                Some(match column.data_type() {
                    DataType::Float64 => column.as_primitive::<Float64Type>().value(row),
                    DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).into(),
                    _ => column.as_primitive::<UInt64Type>().value(row) as f64,
                })
            });
            all.push((ids.value(row), cells.collect()));
        }
    }
    answer.rows.finish().unwrap();
    all
}

/// Budgets, threads, and choices that are forced: each must give the same answer, bit for bit.
fn ways() -> Vec<(u64, usize, Tuning)> {
    let usual = Tuning::default();
    let spill = |strategy| Tuning { strategy: Some(strategy), chunk_bytes: Some(16 << 10), ..usual };
    let mut ways = vec![(4096 * MIB, 1, usual), (4096 * MIB, 2, usual), (16 * MIB, 2, usual)];
    for strategy in [Strategy::Merge, Strategy::HashFirst] {
        ways.push((16 * MIB, 2, spill(strategy)));
    }
    ways.push((16 * MIB, 2, Tuning { strategy: Some(Strategy::Partition), ..usual }));
    for regime in [Regime::Memory, Regime::SemiExternal, Regime::External] {
        ways.push((64 * MIB, 2, Tuning { regime: Some(regime), ..usual }));
        let columns = Tuning { regime: Some(regime), column_vertices: Some(7), ..usual };
        ways.push((64 * MIB, 2, columns));
    }
    for step in Step::ALL {
        ways.push((64 * MIB, 2, Tuning { step: Some(step), ..usual }));
    }
    ways.extend((0..6).map(|seed| (64 * MIB, 2, Tuning { draw: Some(seed), ..usual })));
    ways
}

fn naive_ranks(vertices: u32, edges: &[(u32, u32)], damping: f64) -> Vec<f64> {
    let count = vertices as usize;
    let mut degrees = vec![0.0; count];
    edges.iter().for_each(|&(from, _)| degrees[from as usize] += 1.0);
    let mut ranks = vec![1.0 / count as f64; count];
    for _ in 0..ITERATIONS {
        let dangling: f64 = (0..count).filter(|&v| degrees[v] == 0.0).map(|v| ranks[v]).sum();
        let mut next = vec![(1.0 - damping + damping * dangling) / count as f64; count];
        for &(from, to) in edges {
            next[to as usize] += damping * ranks[from as usize] / degrees[from as usize];
        }
        ranks = next;
    }
    ranks
}

fn naive_widths(vertices: u32, edges: &[(u32, u32)], source: u32) -> Vec<Option<f64>> {
    let mut widths = vec![0.0; vertices as usize];
    widths[source as usize] = f64::INFINITY;
    loop {
        let before = widths.clone();
        for &(from, to) in edges {
            let width = f64::min(widths[from as usize], weight((from, to)));
            widths[to as usize] = f64::max(widths[to as usize], width);
        }
        if widths == before {
            return widths.into_iter().map(|width| (width > 0.0).then_some(width)).collect();
        }
    }
}

/// The vertex before, and steps.
fn naive_reach(vertices: u32, edges: &[(u32, u32)], sources: &[u32]) -> Vec<Option<(u32, u32)>> {
    let mut found = vec![None; vertices as usize];
    let mut queue: VecDeque<u32> = sources.iter().copied().collect();
    queue.iter().for_each(|&source| found[source as usize] = Some((source, 0)));
    while let Some(vertex) = queue.pop_front() {
        let (_, steps) = found[vertex as usize].unwrap();
        for &(_, to) in edges.iter().filter(|(from, _)| *from == vertex) {
            match &mut found[to as usize] {
                None => {
                    found[to as usize] = Some((vertex, steps + 1));
                    queue.push_back(to);
                }
                Some((from, other)) if *other == steps + 1 => *from = vertex.min(*from),
                Some(_) => {}
            }
        }
    }
    found
}

impl Both {
    fn check_all(&self, sources: &[u32]) {
        let vertices: Vec<_> = {
            let job = self.world.job(16 * MIB, 1);
            sources.iter().map(|&source| self.graph.vertex_id(&job, id(source)).unwrap()).collect()
        };
        for (vertex, &number) in vertices.iter().zip(sources) {
            let job = self.world.job(16 * MIB, 1);
            assert_eq!(
                (vertex.number(), self.graph.original_id(&job, *vertex).unwrap()),
                (number.into(), id(number))
            );
        }
        let ranks = naive_ranks(self.vertices, &self.edges, 0.85);
        let widths = naive_widths(self.vertices, &self.edges, sources[0]);
        let reach = naive_reach(self.vertices, &self.edges, sources);
        let mut first: Option<Vec<Vec<Row>>> = None;
        for (memory_bytes, threads, tuning) in ways() {
            let way = format!("{memory_bytes} bytes, {threads} threads, {tuning:?}");
            let job = || self.world.job(memory_bytes, threads);

            let program = Rank { damping: 0.85, vertices: self.graph.vertices() };
            let options =
                ProgramOptions { supersteps: Some(ITERATIONS), tuning, ..ProgramOptions::default() };
            let ranked = rows(run(&self.graph, &job(), program, &options).unwrap());
            for ((vertex, found), (number, &expected)) in ranked.iter().zip((0..).zip(&ranks)) {
                assert_eq!(*vertex, id(number));
                assert!(
                    (found[0].unwrap() - expected).abs() < 1e-9 * expected,
                    "{way}: {found:?}, not {expected}"
                );
            }
            let options =
                PageRankOptions { iterations: Some(ITERATIONS), tuning, ..PageRankOptions::default() };
            let built_in = rows(pagerank(&self.graph, &job(), &options).unwrap());
            for ((_, found), (_, expected)) in ranked.iter().zip(&built_in) {
                let (found, expected) = (found[0].unwrap(), expected[0].unwrap());
                assert!((found - expected).abs() < 1e-12, "{way}: {found}, built in {expected}");
            }

            let options = ProgramOptions { tuning, ..ProgramOptions::default() };
            let wide = rows(run(&self.graph, &job(), Widest { source: vertices[0] }, &options).unwrap());
            assert!(wide.iter().map(|(_, cells)| cells[0]).eq(widths.iter().copied()), "{way}: {wide:?}");

            let program = Reach { sources: vertices.clone() };
            let reached = rows(search(&self.graph, &job(), program, &options).unwrap());
            let expected = reach.iter().map(|found| match found {
                Some((from, steps)) => vec![Some(id(*from) as f64), Some(f64::from(*steps))],
                None => vec![None, None],
            });
            assert!(reached.iter().map(|(_, cells)| cells.clone()).eq(expected), "{way}: {reached:?}");
            if let [source] = sources {
                let options = BfsOptions { tuning, ..BfsOptions::new(id(*source)) };
                let built_in = rows(bfs(&self.graph, &job(), &options).unwrap());
                assert_eq!(reached, built_in, "{way}");
            }

            let all = vec![ranked, wide, reached];
            assert!(*first.get_or_insert_with(|| all.clone()) == all, "{way}: other bits than at first");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn programs_give_textbook_answers_on_random_graphs(
        vertices in 1u32..60,
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..160),
        sources in prop::collection::vec(any::<prop::sample::Index>(), 1..3),
    ) {
        let pick = |index: &prop::sample::Index| index.index(vertices as usize) as u32;
        let edges = picks.iter().map(|(from, to)| (pick(from), pick(to))).collect();
        let mut sources: Vec<u32> = sources.iter().map(pick).collect();
        sources.sort_unstable();
        sources.dedup();
        both(vertices, edges).check_all(&sources);
    }
}

#[test]
fn a_chain_a_star_and_no_edges_give_textbook_answers() {
    both(60, (0..59).map(|at| (at, at + 1)).collect()).check_all(&[0]);
    both(500, (1..500).flat_map(|leaf| [(7, leaf), (leaf, 7)]).collect()).check_all(&[3]);
    both(3, vec![]).check_all(&[1]);
}

/// Two million vertices: an array of one message for each takes 16 MiB for ranks, and 8 MiB for a search.
#[test]
fn a_graph_larger_than_its_budget_is_ranked_and_searched_through_sort_reduce() {
    let world = World::new();
    let kronecker = Kronecker { scale: 21, edge_factor: 1, seed: 1 };
    generate(&world.store, &world.job(64 * MIB, 2), "kron", &kronecker, false).unwrap();
    let graph = Graph::open(&world.store, "kron").unwrap();
    let source = graph.vertex_id(&world.job(16 * MIB, 1), graph.info().id_min).unwrap();
    let rank = |memory_bytes, supersteps| {
        let options = ProgramOptions { supersteps: Some(supersteps), ..ProgramOptions::default() };
        let program = Rank { damping: 0.85, vertices: graph.vertices() };
        let answer = run(&graph, &world.job(memory_bytes, 2), program, &options).unwrap();
        (answer.summary.strategy.clone(), rows(answer))
    };
    let reach = |memory_bytes| {
        let program = Reach { sources: vec![source] };
        let job = world.job(memory_bytes, 2);
        let answer = search(&graph, &job, program, &ProgramOptions::default()).unwrap();
        (answer.summary.strategy.clone(), rows(answer))
    };
    let is_sorted = |strategy: &str| ["merge", "partition"].iter().any(|way| strategy.contains(way));
    let small = [rank(16 * MIB, 1), rank(16 * MIB, 3), reach(8 * MIB)];
    let large = [rank(1024 * MIB, 1), rank(1024 * MIB, 3), reach(1024 * MIB)];
    // Edges of several supersteps of all vertices are cut into blocks of destinations first.
    let strategies = small.each_ref().map(|(strategy, _)| &strategy[..]);
    assert!(
        is_sorted(strategies[0]) && strategies[1] == "columns" && is_sorted(strategies[2]),
        "{strategies:?}"
    );
    for ((_, small), (strategy, large)) in small.iter().zip(&large) {
        assert!(!is_sorted(strategy), "{strategy}");
        assert!(small == large, "other bits than in memory");
    }
}
