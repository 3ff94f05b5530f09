//! Compares each algorithm with its textbook version on random graphs of every shape, with every layout and budget.

mod support;

use inshore_graph::{
    Answer, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions, Graph,
    ImportOptions, Kronecker, PageRankOptions, Regime, SsspOptions, Tuning,
    algorithms::{betweenness, bfs, clustering, communities, components, pagerank, sssp},
    check::InMemoryGraph,
    generate,
};
use inshore_sortreduce::Strategy;
use inshore_store::Job;
use proptest::prelude::*;
use support::{MIB, TestStore, forced, rows, ways};

/// A graph in a store, and the same graph in plain vectors.
struct StoredAndInMemory {
    world: TestStore,
    graph: Graph,
    plain: InMemoryGraph,
    ids: Vec<u64>,
    directed: bool,
}

/// Returns the weight of an edge, which is the same in both directions. Some weights are 0, and some sums of weights
/// must be rounded.
fn weight(a: u32, b: u32) -> f64 {
    ((a ^ b).wrapping_mul(0x9e37_79b9) >> 28) as f64 * 0.1
}

/// Imports `edges` between vertices with these ids. Vertices without edges are in the graph too.
fn both(ids: &[u64], edges: &[(u32, u32)], undirected: bool) -> StoredAndInMemory {
    both_with(ids, edges, undirected, false)
}

/// Imports as [`both`] does, with in-edges if `reverse` is set.
fn both_with(ids: &[u64], edges: &[(u32, u32)], undirected: bool, reverse: bool) -> StoredAndInMemory {
    let world = TestStore::new();
    let vertices: String = ids.iter().map(|id| format!("{id}\n")).collect();
    let line = |&(a, b): &(u32, u32)| format!("{} {} {}\n", ids[a as usize], ids[b as usize], weight(a, b));
    let paths = [world.file("g.v", vertices), world.file("g.e", edges.iter().map(line).collect::<String>())];
    let options = ImportOptions { undirected, reverse, weighted: true, ..Default::default() };
    world.import("g", &paths, &options).unwrap();
    let mut distinct: Vec<_> = edges.to_vec();
    if undirected {
        distinct.extend(edges.iter().map(|&(a, b)| (b, a)));
    }
    distinct.sort_unstable();
    distinct.dedup();
    if undirected {
        // An undirected self-loop has two entries.
        distinct.extend(distinct.clone().into_iter().filter(|(a, b)| a == b));
    }
    let graph = world.graph("g");
    assert_eq!(graph.vertices() as usize, ids.len());
    assert_eq!(graph.info().entries as usize, distinct.len());
    distinct.sort_unstable();
    let weights = distinct.iter().map(|&(a, b)| weight(a, b)).collect();
    let plain = InMemoryGraph::new(ids.len(), &distinct).with_weights(weights);
    StoredAndInMemory { world, graph, plain, ids: ids.to_vec(), directed: !undirected }
}

impl StoredAndInMemory {
    fn number(&self, id: f64) -> u32 {
        self.ids.binary_search(&(id as u64)).unwrap() as u32
    }

    fn check_all(&self, source: u32, seed: u64) {
        let mut converged = None;
        for way in ways() {
            let job = || self.world.job(way.memory_bytes, way.threads);
            let tuning = way.tuning;

            let options = PageRankOptions { iterations: Some(4), tuning, ..PageRankOptions::default() };
            let found = rows(pagerank::pagerank(&self.graph, &job(), &options).unwrap());
            assert!(found.iter().map(|(id, _)| *id).eq(self.ids.iter().copied()));
            let ranks: Vec<f64> = found.iter().map(|(_, columns)| columns[0].unwrap()).collect();
            pagerank::verify(&self.plain, &options, &ranks).unwrap();

            let options = PageRankOptions { tuning, ..PageRankOptions::converging(1e-3) };
            let answer = pagerank::pagerank(&self.graph, &job(), &options).unwrap();
            let error_max = answer.summary.error_max.unwrap();
            let ranks: Vec<f64> = rows(answer).iter().map(|(_, columns)| columns[0].unwrap()).collect();
            pagerank::verify(&self.plain, &options, &ranks).unwrap();
            assert!(error_max < 2e-3 / 0.15, "{error_max}");
            assert!(*converged.get_or_insert_with(|| ranks.clone()) == ranks, "{}", way.name);

            let options = BfsOptions { tuning, ..BfsOptions::new(self.ids[source as usize]) };
            let found = rows(bfs::bfs(&self.graph, &job(), &options).unwrap());
            let visits: Vec<_> = found
                .iter()
                .map(|(_, columns)| Some((self.number(columns[0]?), columns[1]? as u32)))
                .collect();
            bfs::verify(&self.plain, source as usize, &visits).unwrap();

            let options = SsspOptions { tuning, ..SsspOptions::new(self.ids[source as usize]) };
            let found = rows(sssp::sssp(&self.graph, &job(), &options).unwrap());
            let distances: Vec<_> = found.iter().map(|(_, columns)| columns[0]).collect();
            sssp::verify(&self.plain, source as usize, &distances).unwrap();

            let options = CommunitiesOptions { iterations: 4, tuning, ..Default::default() };
            let answer = communities::communities(&self.graph, &job(), &options).unwrap();
            let labels: Vec<_> =
                rows(answer).iter().map(|(_, columns)| self.number(columns[0].unwrap())).collect();
            communities::verify(&self.plain, self.directed, &options, &labels).unwrap();

            let answer = clustering::clustering(&self.graph, &job(), &ClusteringOptions { tuning }).unwrap();
            let values: Vec<f64> = rows(answer).iter().map(|(_, columns)| columns[0].unwrap()).collect();
            clustering::verify(&self.plain, &values).unwrap();

            let answer = components::components(
                &self.graph,
                &job(),
                &ComponentsOptions { tuning, ..Default::default() },
            )
            .unwrap();
            let labels: Vec<_> =
                rows(answer).iter().map(|(_, columns)| self.number(columns[0].unwrap())).collect();
            components::verify(&self.plain, &labels).unwrap();

            let options = BetweennessOptions { sources: 3, seed, tuning, ..Default::default() };
            let found = rows(betweenness::betweenness(&self.graph, &job(), &options).unwrap());
            let values: Vec<f64> = found.iter().map(|(_, columns)| columns[0].unwrap()).collect();
            betweenness::verify(&self.plain, &options, &values).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_give_textbook_answers(
        ids in prop::collection::btree_set(prop_oneof![0u64..60, (1u64 << 53) - 60..1 << 53, 1u64 << 30..1 << 31], 1..40),
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..120),
        undirected: bool,
        source: prop::sample::Index,
        seed: u64,
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let edges: Vec<_> =
            picks.iter().map(|(a, b)| (a.index(ids.len()) as u32, b.index(ids.len()) as u32)).collect();
        both(&ids, &edges, undirected).check_all(source.index(ids.len()) as u32, seed);
    }
}

#[test]
fn all_graphs_of_two_vertices_give_textbook_answers() {
    for undirected in [false, true] {
        for set in 0..16u32 {
            let all = [(0, 0), (0, 1), (1, 0), (1, 1)];
            let edges: Vec<_> =
                (0..4).filter(|bit| set >> bit & 1 == 1).map(|bit| all[bit as usize]).collect();
            both(&[3, 7], &edges, undirected).check_all(0, 1);
        }
    }
}

#[test]
fn a_path_a_star_and_a_hub_with_a_row_of_many_windows_give_textbook_answers() {
    let ids: Vec<u64> = (0..40_000).map(|id| id * 7).collect();
    let path: Vec<_> = (0..300).map(|at| (at, at + 1)).collect();
    both(&ids[..301], &path, false).check_all(0, 1);
    let star: Vec<_> = (1..40_000).flat_map(|leaf| [(20_000, leaf), (leaf, 20_000)]).collect();
    both(&ids, &star, false).check_all(5, 1);
}

/// Returns the ranks to which a power iteration in memory converges.
fn converged(plain: &InMemoryGraph, damping: f64) -> Vec<f64> {
    let count = plain.vertices();
    let mut ranks = vec![1.0 / count as f64; count];
    for _ in 0..5000 {
        let held: f64 = (0..count).filter(|&v| plain.out(v).is_empty()).map(|v| ranks[v]).sum();
        let mut next = vec![(1.0 - damping + damping * held) / count as f64; count];
        for (vertex, rank) in ranks.iter().enumerate() {
            let row = plain.out(vertex);
            row.iter().for_each(|&to| next[to as usize] += damping * rank / row.len() as f64);
        }
        ranks = next;
    }
    ranks
}

/// Creates a graph with hubs, vertices without out-edges, and a chain at whose end changes arrive late.
fn with_hubs() -> StoredAndInMemory {
    let ids: Vec<u64> = (0..1000).collect();
    let mut edges: Vec<_> = (0..6000u32).map(|n| (n * n % 701, n * 7919 % (n % 97 + 1))).collect();
    edges.extend((0..250).map(|n| (700 + n, 701 + n)));
    edges.sort_unstable();
    edges.dedup();
    both(&ids, &edges, false)
}

#[test]
fn ranks_are_no_further_from_converged_ones_than_is_reported() {
    let StoredAndInMemory { world, graph, plain, .. } = with_hubs();
    for damping in [0.0, 0.3, 0.85, 0.99] {
        let expected = converged(&plain, damping);
        let mut closest = f64::INFINITY;
        for (of_limit, iterations) in
            [(0.99, u32::MAX), (0.5, u32::MAX), (1e-2, u32::MAX), (1e-2, 0), (1e-2, 5), (1e-7, u32::MAX)]
        {
            let vertex_tolerance = of_limit * (1.0 - damping);
            let options = PageRankOptions {
                iterations: Some(iterations),
                damping,
                ..PageRankOptions::converging(vertex_tolerance)
            };
            let answer = pagerank::pagerank(&graph, &world.job(16 * MIB, 2), &options).unwrap();
            let error_max = answer.summary.error_max.unwrap();
            let is_capped = iterations < u32::MAX;
            assert!(!is_capped || answer.summary.supersteps <= iterations);
            let ranks: Vec<f64> = rows(answer).iter().map(|(_, columns)| columns[0].unwrap()).collect();
            let found: f64 =
                ranks.iter().zip(&expected).map(|(rank, expected)| (rank - expected).abs()).sum();
            assert!(found <= error_max + 1e-12, "{damping} {options:?}: {found}, told {error_max}");
            if !is_capped {
                pagerank::verify(&plain, &options, &ranks).unwrap();
                assert!(error_max <= 2.0 * of_limit);
                closest = closest.min(found);
            }
        }
        assert!(closest < 1e-6, "{damping}: {closest}");
    }
}

/// On a ring, rounding could make a change of one bit circulate for ever.
#[test]
fn ranks_converge_below_every_tolerance() {
    let ids: Vec<u64> = (0..5).collect();
    let edges: Vec<_> = (0..5).map(|n| (n, (n + 1) % 5)).collect();
    let StoredAndInMemory { world, graph, plain, .. } = both(&ids, &edges, false);
    let options = PageRankOptions::converging(1e-300);
    let answer = pagerank::pagerank(&graph, &world.job(16 * MIB, 2), &options).unwrap();
    assert!(answer.summary.supersteps < 400, "{}", answer.summary.supersteps);
    let ranks: Vec<f64> = rows(answer).iter().map(|(_, columns)| columns[0].unwrap()).collect();
    pagerank::verify(&plain, &options, &ranks).unwrap();
}

#[test]
fn converged_vertices_are_not_read_again() {
    let StoredAndInMemory { world, graph, .. } = with_hubs();
    let entries = graph.info().entries;
    let mut first = None;
    for way in ways() {
        let options = PageRankOptions { tuning: way.tuning, ..PageRankOptions::converging(1e-5) };
        let answer = pagerank::pagerank(&graph, &world.job(way.memory_bytes, way.threads), &options).unwrap();
        let summary = answer.summary.clone();
        let all = u64::from(summary.supersteps) * entries;
        let has_columns = way.tuning.column_vertices.is_some();
        assert_eq!(summary.strategy.contains("columns and "), has_columns, "{}", summary.strategy);
        assert!(summary.edges_traversed < all, "{}: {summary:?}", way.name);
        assert!(has_columns || summary.edges_traversed < all * 2 / 3, "{}: {summary:?}", way.name);
        let found = rows(answer);
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "{}", way.name);
    }
}

#[test]
fn a_tolerance_with_which_ranks_cannot_converge_is_refused() {
    let StoredAndInMemory { world, graph, .. } = both(&[3, 7], &[(0, 1)], false);
    let refused = |options: &PageRankOptions| {
        pagerank::pagerank(&graph, &world.job(16 * MIB, 2), options).unwrap_err().to_string()
    };
    for vertex_tolerance in [0.0, -1e-3, 0.16, 1.0, f64::NAN, f64::INFINITY] {
        let error = refused(&PageRankOptions::converging(vertex_tolerance));
        assert!(error.starts_with(&format!("vertex_tolerance is {vertex_tolerance}: expected")), "{error}");
    }
    let without_jumps = PageRankOptions { damping: 1.0, ..PageRankOptions::converging(1e-3) };
    assert!(refused(&without_jumps).contains("less than 1 - damping"));
    let both = PageRankOptions { tolerance: 1e-3, ..PageRankOptions::converging(1e-3) };
    assert!(refused(&both).starts_with("tolerance is 0.001"));
}

/// Kronecker graphs spill at 8 MiB without any tuning. The answers equal those at 4 GiB, bit for bit.
#[test]
fn a_graph_larger_than_its_budget_gives_the_answers_of_a_large_budget() {
    let world = TestStore::new();
    let graph = world.kronecker("kron", 20, 8 * support::MIB);
    let ranks = |memory_bytes, tuning, state, strategy| {
        let job = world.job(memory_bytes, 2);
        let options = PageRankOptions { iterations: Some(2), tuning, ..PageRankOptions::default() };
        let answer = pagerank::pagerank(&graph, &job, &options).unwrap();
        let summary = (answer.summary.state, &answer.summary.strategy[..]);
        assert_eq!(summary, (state, strategy), "{memory_bytes}");
        let found = rows(answer);
        assert_eq!(job.budget().reserved_bytes(), 0, "memory was handed back");
        assert!(job.budget().reserved_bytes_max() <= memory_bytes);
        let merged = job.report().levels.iter().any(|level| level.level > 0);
        assert_eq!(merged, strategy == "merge", "{strategy} in {memory_bytes}");
        found
    };
    let chosen = Tuning::default();
    let merge = Tuning { strategy: Some(Strategy::Merge), ..chosen };
    let columns = |vertices, regime| Tuning { column_vertices: Some(vertices), regime, ..chosen };
    let large = ranks(4096 * support::MIB, chosen, "memory", "dense");
    // Three cases: messages and packed edges are on flash, both are in memory, or only edges are on flash.
    assert!(ranks(10 * support::MIB, chosen, "flash", "columns") == large);
    assert!(ranks(4096 * support::MIB, columns(1 << 17, None), "memory", "columns") == large);
    assert!(
        ranks(64 * support::MIB, columns(100_000, Some(Regime::SemiExternal)), "memory", "columns") == large
    );
    assert!(ranks(8 * support::MIB, merge, "flash", "merge") == large);
    let converging = |memory_bytes, tuning, state, strategy| {
        let job = world.job(memory_bytes, 2);
        let options = PageRankOptions { tuning, ..PageRankOptions::converging(2e-2) };
        let answer = pagerank::pagerank(&graph, &job, &options).unwrap();
        let summary = (answer.summary.state, &answer.summary.strategy[..]);
        assert_eq!(summary, (state, strategy), "{memory_bytes}");
        let found = rows(answer);
        assert!(job.budget().reserved_bytes_max() <= memory_bytes);
        found
    };
    let large = converging(4096 * support::MIB, chosen, "memory", "dense");
    assert!(converging(10 * support::MIB, chosen, "flash", "columns and merge") == large);
    assert!(converging(8 * support::MIB, merge, "flash", "merge") == large);
    let tree = |memory_bytes| {
        rows(
            bfs::bfs(&graph, &world.job(memory_bytes, 2), &BfsOptions::new(graph.info().id_min + 1)).unwrap(),
        )
    };
    assert!(tree(8 * support::MIB) == tree(4096 * support::MIB));
    let component = |memory_bytes| {
        let job = world.job(memory_bytes, 2);
        rows(components::components(&graph, &job, &ComponentsOptions::default()).unwrap())
    };
    assert!(component(8 * support::MIB) == component(4096 * support::MIB));
    let community = |memory_bytes| {
        let job = world.job(memory_bytes, 2);
        let options = CommunitiesOptions { iterations: 2, ..CommunitiesOptions::default() };
        let answer = communities::communities(&graph, &job, &options).unwrap();
        assert_eq!(answer.summary.state, if memory_bytes > 1 << 30 { "memory" } else { "flash" });
        let found = rows(answer);
        assert!(job.budget().reserved_bytes_max() <= memory_bytes);
        found
    };
    assert!(community(8 * support::MIB) == community(4096 * support::MIB));
}

/// If a graph has in-edges, a search pulls in its large supersteps, and gives the same answer from fewer edges.
#[test]
fn a_search_pulls_where_most_edges_lead_to_reached_vertices() {
    let world = TestStore::new();
    let text: String = (0..40_000u64).map(|n| format!("{} {}\n", n * n % 1999, n * 7919 % 2003)).collect();
    let path = world.file("edges.txt", text);
    let options = |reverse| ImportOptions { reverse, ..Default::default() };
    for reverse in [false, true] {
        let name = format!("reverse {reverse}").replace(' ', "-");
        world.import(&name, std::slice::from_ref(&path), &options(reverse)).unwrap();
    }
    let (without, with) = (world.graph("reverse-false"), world.graph("reverse-true"));
    for memory in [8 * MIB, 64 * MIB] {
        for strategy in [None, Some(Strategy::Merge)] {
            let tuning = Tuning { strategy, ..Tuning::default() };
            let options = BfsOptions { tuning, ..BfsOptions::new(1) };
            let search = |graph| bfs::bfs(graph, &world.job(memory, 2), &options).unwrap();
            let (out, back) = (search(&without), search(&with));
            assert!(
                back.summary.edges_traversed < out.summary.edges_traversed,
                "{} and {} edges",
                back.summary.edges_traversed,
                out.summary.edges_traversed
            );
            assert_eq!(rows(back), rows(out));
        }
    }
}

#[test]
fn rows_without_an_active_vertex_are_cached_and_scanned_again() {
    let world = TestStore::new();
    let kronecker = Kronecker { scale: 15, edge_factor: 8, seed: 3 };
    generate(&world.store, &world.job(64 * MIB, 2), "kron", &kronecker, true).unwrap();
    let graph = world.graph("kron");
    let told = |memory, run: &dyn Fn(&Job) -> Answer| {
        let job = world.job(memory, 2);
        job.progress().listen();
        let answer = run(&job);
        let told = job.progress().take_told().join("\n");
        (rows(answer), told.contains("that are in memory"))
    };
    let merge = Tuning { strategy: Some(Strategy::Merge), ..Tuning::default() };
    let search = |tuning| {
        let options = BfsOptions { tuning, ..BfsOptions::new(1) };
        move |graph: &Graph, job: &Job| bfs::bfs(graph, job, &options).unwrap()
    };
    let (sorted, is_kept) = told(64 * MIB, &|job| search(merge)(&graph, job));
    assert!(!is_kept);
    for memory in [12 * MIB, 64 * MIB] {
        let (found, is_kept) = told(memory, &|job| search(Tuning::default())(&graph, job));
        assert!(is_kept, "in {memory} bytes");
        assert_eq!(found, sorted, "in {memory} bytes");
    }
    let on_flash = Tuning { regime: Some(Regime::SemiExternal), ..Tuning::default() };
    assert_eq!(told(64 * MIB, &|job| search(on_flash)(&graph, job)), (sorted, false));

    let sums = |tuning| {
        let options = BetweennessOptions { sources: 2, tuning, ..Default::default() };
        move |graph: &Graph, job: &Job| betweenness::betweenness(graph, job, &options).unwrap()
    };
    let (sorted, _) = told(64 * MIB, &|job| sums(merge)(&graph, job));
    let (found, is_kept) = told(64 * MIB, &|job| sums(Tuning::default())(&graph, job));
    assert!(is_kept);
    for ((_, sorted), (_, found)) in sorted.iter().zip(&found) {
        let (sorted, found) = (sorted[0].unwrap(), found[0].unwrap());
        assert!((sorted - found).abs() <= 1e-9 * sorted.max(1.0), "{sorted} and {found}");
    }
}

#[test]
fn sums_are_pulled_where_that_is_less_than_sending_along_all_edges() {
    let world = TestStore::new();
    let text: String = (0..40_000u64).map(|n| format!("{} {}\n", n % 2003, n * 7919 % 1999)).collect();
    let path = world.file("edges.txt", text);
    let options = ImportOptions { reverse: true, ..Default::default() };
    world.import("g", std::slice::from_ref(&path), &options).unwrap();
    let graph = world.graph("g");
    for sources in [1, 3] {
        let run = |strategy| {
            let tuning = Tuning { strategy, ..Tuning::default() };
            let options = BetweennessOptions { sources, tuning, ..Default::default() };
            betweenness::betweenness(&graph, &world.job(64 * MIB, 2), &options).unwrap()
        };
        let (sent, gathered) = (run(Some(Strategy::Merge)), run(None));
        let edges = [&sent, &gathered].map(|answer| answer.summary.edges_traversed);
        assert!(edges[1] < edges[0], "{edges:?} edges");
        for ((_, sent), (_, gathered)) in rows(sent).iter().zip(&rows(gathered)) {
            let (sent, gathered) = (sent[0].unwrap(), gathered[0].unwrap());
            assert!((sent - gathered).abs() <= 1e-9 * sent.max(1.0), "{sent} and {gathered}");
        }
    }
}

/// The rows of each algorithm's answer.
type Found = Vec<(&'static str, Vec<(u64, Vec<Option<f64>>)>)>;

impl StoredAndInMemory {
    /// Runs each algorithm for which the engine has choices. Returns the rows of all answers, and the plans that the
    /// jobs reported.
    fn answers(&self, memory_bytes: u64, tuning: Tuning) -> (Found, String) {
        let source = self.ids[0];
        let pagerank = PageRankOptions { iterations: Some(4), tuning, ..PageRankOptions::default() };
        let deltas = PageRankOptions { tuning, ..PageRankOptions::converging(1e-3) };
        let search = BfsOptions { tuning, ..BfsOptions::new(source) };
        let paths = SsspOptions { tuning, ..SsspOptions::new(source) };
        let centrality = BetweennessOptions { sources: 2, tuning, ..Default::default() };
        let labels = CommunitiesOptions { iterations: 3, tuning, ..Default::default() };
        type Run<'a> = &'a dyn Fn(&Job) -> inshore_graph::Result<Answer>;
        let runs: [(&str, Run); 6] = [
            ("pagerank", &|job| pagerank::pagerank(&self.graph, job, &pagerank)),
            ("deltas", &|job| pagerank::pagerank(&self.graph, job, &deltas)),
            ("bfs", &|job| bfs::bfs(&self.graph, job, &search)),
            ("sssp", &|job| sssp::sssp(&self.graph, job, &paths)),
            ("betweenness", &|job| betweenness::betweenness(&self.graph, job, &centrality)),
            ("communities", &|job| communities::communities(&self.graph, job, &labels)),
        ];
        let (mut found, mut told) = (Vec::new(), String::new());
        for (name, run) in runs {
            let job = self.world.job(memory_bytes, 2);
            job.progress().listen();
            found.push((name, rows(run(&job).unwrap())));
            told += &job.progress().take_told().join("\n");
            assert_eq!(job.budget().reserved_bytes(), 0, "{name} hands its memory back");
        }
        (found, told)
    }
}

/// Asserts that two answers have equal bits. Only the values of betweenness, which are sums of floating-point numbers,
/// may differ in their last digits.
fn assert_same(expected: &Found, found: &Found, what: &str) {
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        if *name != "betweenness" {
            assert!(expected == found, "{name}, {what}");
            continue;
        }
        for ((vertex, expected), (_, found)) in expected.iter().zip(found) {
            let (expected, found) = (expected[0].unwrap(), found[0].unwrap());
            let is_near = (expected - found).abs() <= 1e-9 * expected.max(1.0);
            assert!(is_near, "{name} of {vertex}, {what}: {expected} and {found}");
        }
    }
}

#[test]
fn every_possible_choice_gives_the_answer_of_the_choice_that_is_taken() {
    let line: Vec<u64> = (0..120).collect();
    let chain: Vec<_> = (0..119).map(|at| (at, at + 1)).collect();
    let star: Vec<_> = (1..120).flat_map(|leaf| [(7, leaf), (leaf, 7)]).collect();
    let loops: Vec<_> = (0..120).flat_map(|at| [(at, at), (at, at * 7 % 120)]).collect();
    let random: Vec<_> = (0..500u32).map(|n| (n * n % 117, n * 7919 % (n % 97 + 1))).collect();
    // The graph has a hub after some levels, and a chain behind the hub, so that searches pull, cache rows, and scan
    // these rows again.
    let mut deep: Vec<_> = (0..4).map(|at| (at, at + 1)).collect();
    deep.extend((5..100).flat_map(|leaf| [(4, leaf), (leaf, leaf * 13 % 95 + 5), (leaf, 100 + leaf % 3)]));
    deep.extend((100..119).map(|at| (at, at + 1)));
    let mut told = String::new();
    for (number, (name, mut edges)) in [
        ("none", vec![]),
        ("chain", chain),
        ("star", star),
        ("loops", loops),
        ("random", random),
        ("deep", deep),
    ]
    .into_iter()
    .enumerate()
    {
        edges.sort_unstable();
        edges.dedup();
        for undirected in [false, true] {
            if undirected {
                edges.retain(|&(a, b)| a <= b);
            }
            let both = both_with(&line, &edges, undirected, !undirected);
            let (expected, _) = both.answers(64 * MIB, Tuning::default());
            for tuning in forced(100 * number as u64) {
                let (found, how) = both.answers(64 * MIB, tuning);
                assert_same(&expected, &found, &format!("{name}, undirected: {undirected}, {tuning:?}"));
                told += &how;
            }
        }
    }
    for way in [
        "combined in an array in memory (forced)",
        "pulled along in-edges, in an array in memory (forced)",
        "pulled along in-edges that are in memory, in an array in memory (forced)",
        "pulled along in-edges, through sort-reduce (forced)",
        "pulled along edges, from an array in memory (forced)",
        "pulled along edges that are in memory, from an array in memory (forced)",
        "sent along edges that are in memory, in an array in memory (forced)",
        "combined by edge partition",
        "combined by ranges of vertices",
        "sorted and merged",
        "edges in memory, ",
        "vertex state on flash, updates in an array in memory",
        "vertex state on flash, messages on flash",
    ] {
        assert!(told.contains(way), "never {way}");
    }
}
