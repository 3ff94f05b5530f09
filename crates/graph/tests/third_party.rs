//! Compares answers with reference answers. These are the answers of LDBC Graphalytics, of libgrape-lite for the graph
//! p2p-31, and of SciPy for graphs of SNAP and of the Laboratory for Web Algorithmics. Each comparison runs at 16 MiB,
//! at 4 GiB, and with small buffers that make sorted runs spill.

mod support;

use std::path::{Path, PathBuf};

use inshore_graph::{
    BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions, Graph, ImportOptions,
    PageRankOptions, SsspOptions, bfs, clustering, communities, components, pagerank, sssp,
};
use support::{TestStore, answers, assert_same_partition, data, read, rows, ways};

/// Relative tolerance of LDBC for PageRank.
const LDBC_EPSILON: f64 = 1e-4;

fn assert_levels(world: &TestStore, graph: &Graph, source: u64, expected: &[(u64, Option<f64>)]) {
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let answer = bfs(graph, &job, &BfsOptions { tuning: way.tuning, ..BfsOptions::new(source) }).unwrap();
        let reached = answer.summary.reached.unwrap() as usize;
        assert_eq!(reached, expected.iter().filter(|(_, level)| level.is_some()).count(), "{}", way.name);
        let found = rows(answer);
        assert_eq!(found.len(), expected.len());
        for ((id, columns), (their_id, level)) in found.iter().zip(expected) {
            assert_eq!((id, columns[1]), (their_id, *level), "{}", way.name);
        }
        assert_spilled(&job, way.name);
    }
}

fn assert_ranks(
    world: &TestStore,
    graph: &Graph,
    iterations: u32,
    expected: &[(u64, Option<f64>)],
    epsilon: f64,
) {
    let mut first = None;
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let options = PageRankOptions {
            iterations: Some(iterations),
            tuning: way.tuning,
            ..PageRankOptions::default()
        };
        let found = rows(pagerank(graph, &job, &options).unwrap());
        assert_eq!(found.len(), expected.len());
        for ((id, columns), (their_id, rank)) in found.iter().zip(expected) {
            let (rank, expected) = (columns[0].unwrap(), rank.unwrap());
            assert_eq!(id, their_id);
            assert!((rank - expected).abs() <= epsilon * expected, "{id}: {rank}, expected {expected}");
        }
        let sum: f64 = found.iter().map(|(_, columns)| columns[0].unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "ranks sum to {sum}");
        assert_eq!(*first.get_or_insert(found.clone()), found, "the same bits: {}", way.name);
        assert_spilled(&job, way.name);
    }
}

fn assert_components(world: &TestStore, graph: &Graph, expected: &[(u64, Option<f64>)]) {
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let answer =
            components(graph, &job, &ComponentsOptions { tuning: way.tuning, ..Default::default() }).unwrap();
        let count = answer.summary.components.unwrap();
        let mut theirs: Vec<_> = expected.iter().map(|(_, label)| label.unwrap() as u64).collect();
        theirs.sort_unstable();
        theirs.dedup();
        assert_eq!(count, theirs.len() as u64);
        assert_same_partition(&rows(answer), expected);
        assert_spilled(&job, way.name);
    }
}

fn assert_distances(world: &TestStore, graph: &Graph, source: u64, expected: &[(u64, Option<f64>)]) {
    let mut first = None;
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let answer =
            sssp(graph, &job, &SsspOptions { tuning: way.tuning, ..SsspOptions::new(source) }).unwrap();
        let reached = answer.summary.reached.unwrap() as usize;
        assert_eq!(reached, expected.iter().filter(|(_, distance)| distance.is_some()).count());
        let found = rows(answer);
        assert_eq!(found.len(), expected.len());
        for ((id, columns), (their_id, distance)) in found.iter().zip(expected) {
            assert_eq!((id, columns[0].is_some()), (their_id, distance.is_some()), "{}", way.name);
            let (distance, expected) = (columns[0].unwrap_or(0.0), distance.unwrap_or(0.0));
            assert!((distance - expected).abs() <= LDBC_EPSILON * expected, "{id}: {distance}, {expected}");
        }
        assert_eq!(*first.get_or_insert(found.clone()), found, "the same bits: {}", way.name);
        assert_spilled(&job, way.name);
    }
}

fn assert_communities(world: &TestStore, graph: &Graph, iterations: u32, expected: &[(u64, Option<f64>)]) {
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let options = CommunitiesOptions { iterations, tuning: way.tuning, ..Default::default() };
        let found = rows(communities(graph, &job, &options).unwrap());
        assert_eq!(found.len(), expected.len());
        for ((id, columns), (their_id, label)) in found.iter().zip(expected) {
            assert_eq!((id, columns[0]), (their_id, *label), "{}", way.name);
        }
        assert_spilled(&job, way.name);
    }
}

fn assert_coefficients(world: &TestStore, graph: &Graph, expected: &[(u64, Option<f64>)]) {
    let mut first = None;
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let found = rows(clustering(graph, &job, &ClusteringOptions { tuning: way.tuning }).unwrap());
        assert_eq!(found.len(), expected.len());
        for ((id, columns), (their_id, value)) in found.iter().zip(expected) {
            let (value, expected) = (columns[0].unwrap(), value.unwrap());
            assert_eq!(id, their_id);
            assert!(
                (value - expected).abs() <= LDBC_EPSILON * expected,
                "{id}: {value}, expected {expected}"
            );
        }
        assert_eq!(*first.get_or_insert(found.clone()), found, "the same bits: {}", way.name);
    }
}

/// Asserts that sorting spilled in the mode with tiny buffers, if there are enough updates for several buffers.
fn assert_spilled(job: &inshore_store::Job, way: &str) {
    let report = job.report();
    let pushed = report.levels.iter().find(|level| level.level == 0).map_or(0, |level| level.records_in);
    if way == "spilling" && pushed > 100_000 {
        assert!(report.levels.iter().any(|level| level.level > 0), "{:?}", report.levels);
        assert!(report.bytes_written > 0);
    }
}

#[test]
fn ldbc_examples_and_tests_give_ldbc_answers() {
    let Some(folder) = data("ldbc") else { return };
    for (name, algorithm, source) in [
        ("example-directed", "BFS", 1),
        ("example-undirected", "BFS", 2),
        ("test-bfs-directed", "BFS", 1),
        ("test-bfs-undirected", "BFS", 1),
        ("example-directed", "PR", 2),
        ("example-undirected", "PR", 2),
        ("test-pr-directed", "PR", 14),
        ("test-pr-undirected", "PR", 26),
        ("example-directed", "WCC", 0),
        ("example-undirected", "WCC", 0),
        ("test-wcc-directed", "WCC", 0),
        ("test-wcc-undirected", "WCC", 0),
        ("example-directed", "SSSP", 1),
        ("example-undirected", "SSSP", 2),
        ("test-sssp-directed", "SSSP", 1),
        ("test-sssp-undirected", "SSSP", 1),
        ("example-directed", "CDLP", 2),
        ("example-undirected", "CDLP", 2),
        ("test-cdlp-directed", "CDLP", 5),
        ("test-cdlp-undirected", "CDLP", 5),
        ("example-directed", "LCC", 0),
        ("example-undirected", "LCC", 0),
        ("test-lcc-directed", "LCC", 0),
        ("test-lcc-undirected", "LCC", 0),
    ] {
        let properties = String::from_utf8(read(&folder.join(format!("{name}.properties")))).unwrap();
        let property = |key: &str| {
            let line = properties.lines().find(|line| line.contains(&format!("{name}.{key} =")))?;
            line.split('=').nth(1).map(|value| value.trim().to_string())
        };
        let world = TestStore::new();
        let paths = [folder.join(format!("{name}.v")), folder.join(format!("{name}.e"))];
        let undirected = property("directed").unwrap() == "false";
        world.import("g", &paths, &ImportOptions { undirected, ..Default::default() }).unwrap();
        let graph = world.graph("g");
        let expected = answers(&folder.join(format!("{name}-{algorithm}")));
        match algorithm {
            "BFS" => {
                let named = property("bfs.source-vertex").map_or(source, |id| id.parse().unwrap());
                assert_levels(&world, &graph, named, &expected);
            }
            "PR" => {
                let named = property("pr.num-iterations").map(|count| count.parse().unwrap());
                assert_ranks(&world, &graph, named.unwrap_or(source as u32), &expected, LDBC_EPSILON);
            }
            "SSSP" => {
                let named = property("sssp.source-vertex").map_or(source, |id| id.parse().unwrap());
                assert_distances(&world, &graph, named, &expected);
            }
            "CDLP" => {
                let named = property("cdlp.max-iterations").map(|count| count.parse().unwrap());
                assert_communities(&world, &graph, named.unwrap_or(source as u32), &expected);
            }
            "LCC" => assert_coefficients(&world, &graph, &expected),
            _ => assert_components(&world, &graph, &expected),
        }
    }
}

/// Imports LDBC's validation graphs, which are adjacency lists: a source and its neighbours on each line.
fn import_adjacency(world: &TestStore, path: &Path, undirected: bool) -> Graph {
    let text = String::from_utf8(read(path)).unwrap();
    let (mut vertices, mut edges) = (String::new(), String::new());
    for line in text.lines() {
        let mut ids = line.split_whitespace();
        let source = ids.next().unwrap();
        vertices += &format!("{source}\n");
        ids.for_each(|target| edges += &format!("{source} {target}\n"));
    }
    let paths = [world.file("g.v", vertices), world.file("g.e", edges)];
    world.import("g", &paths, &ImportOptions { undirected, ..Default::default() }).unwrap();
    world.graph("g")
}

#[test]
fn ldbc_validation_graphs_give_ldbc_answers() {
    let Some(folder) = data("ldbc/validation") else { return };
    for (undirected, prefix) in [(false, "dir"), (true, "undir")] {
        for algorithm in ["bfs", "pr", "wcc", "cdlp", "lcc"] {
            let world = TestStore::new();
            let graph =
                import_adjacency(&world, &folder.join(format!("{algorithm}/{prefix}-input")), undirected);
            let expected = answers(&folder.join(format!("{algorithm}/{prefix}-output")));
            match algorithm {
                "bfs" => assert_levels(&world, &graph, 1, &expected),
                // The graphs are those of LDBC's tests test-pr-*, whose property files give these numbers of
                // iterations.
                "pr" => {
                    assert_ranks(&world, &graph, if undirected { 26 } else { 14 }, &expected, LDBC_EPSILON)
                }
                // The results that LDBC gives for test-cdlp-* are those after 5 iterations.
                "cdlp" => assert_communities(&world, &graph, 5, &expected),
                "lcc" => assert_coefficients(&world, &graph, &expected),
                _ => assert_components(&world, &graph, &expected),
            }
        }
    }
}

#[test]
fn ldbc_validation_of_shortest_paths_gives_ldbc_answers() {
    let Some(folder) = data("ldbc/validation/sssp") else { return };
    for (undirected, prefix) in [(false, "dir"), (true, "undir")] {
        let world = TestStore::new();
        let paths = ["v", "e"].map(|ending| folder.join(format!("{prefix}-input.{ending}")));
        world.import("g", &paths, &ImportOptions { undirected, ..Default::default() }).unwrap();
        assert_distances(&world, &world.graph("g"), 1, &answers(&folder.join(format!("{prefix}-output"))));
    }
}

#[test]
fn p2p_31_gives_the_published_answers() {
    let Some(folder) = data("p2p-31") else { return };
    let world = TestStore::new();
    let paths = [folder.join("p2p-31.v.gz"), folder.join("p2p-31.e.gz")];
    world.import("directed", &paths, &ImportOptions::default()).unwrap();
    world.import("undirected", &paths, &ImportOptions { undirected: true, ..Default::default() }).unwrap();
    let (directed, undirected) = (world.graph("directed"), world.graph("undirected"));
    assert!(directed.info().weighted);
    assert_levels(&world, &directed, 6, &answers(&folder.join("p2p-31-BFS-directed.gz")));
    assert_levels(&world, &undirected, 6, &answers(&folder.join("p2p-31-BFS.gz")));
    assert_ranks(&world, &undirected, 10, &answers(&folder.join("p2p-31-PR.gz")), 1e-6);
    let expected = answers(&folder.join("p2p-31-WCC.gz"));
    assert_components(&world, &directed, &expected);
    assert_components(&world, &undirected, &expected);
    assert_distances(&world, &directed, 6, &answers(&folder.join("p2p-31-SSSP-directed.gz")));
    assert_distances(&world, &undirected, 6, &answers(&folder.join("p2p-31-SSSP.gz")));
    assert_communities(&world, &undirected, 10, &answers(&folder.join("p2p-31-CDLP.gz")));
    assert_coefficients(&world, &undirected, &answers(&folder.join("p2p-31-LCC.gz")));
}

struct ReferenceGraph {
    name: &'static str,
    undirected: bool,
    root: u64,
    vertices: u64,
    components: u64,
    self_loops: u64,
}

const fn known(
    name: &'static str,
    undirected: bool,
    root: u64,
    vertices: u64,
    components: u64,
    self_loops: u64,
) -> ReferenceGraph {
    ReferenceGraph { name, undirected, root, vertices, components, self_loops }
}

const KNOWN: [ReferenceGraph; 5] = [
    known("cnr-2000", false, 46918, 325_557, 1, 87_442),
    known("arxiv-cit-hep-ph", false, 8180, 34_546, 61, 44),
    known("soc-slashdot0902-directed", false, 2494, 82_168, 1, 78_303),
    known("ego-twitter-undirected", true, 7510, 81_306, 1, 14),
    known("facebook-combined", true, 107, 4039, 1, 0),
];

/// Numbers values 0, 1, 2, ..., which are the ids of these graphs' vertices.
fn numbered(values: impl Iterator<Item = Option<f64>>) -> Vec<(u64, Option<f64>)> {
    (0..).zip(values).collect()
}

fn check_known(graph: &ReferenceGraph) {
    let Some(folder) = data("answers") else { return };
    let path: PathBuf = folder.join(format!("../{}.txt.gz", graph.name));
    let world = TestStore::new();
    let options = ImportOptions { undirected: graph.undirected, ..Default::default() };
    let info = world.import_in("g", &[path], &options, 16 << 20).unwrap();
    assert_eq!((info.vertices, info.self_loops), (graph.vertices, graph.self_loops));
    let opened = world.graph("g");
    let bytes = read(&folder.join(format!("{}.pagerank10.npy.gz", graph.name)));
    // The file is a version 1 .npy file: 128 bytes of header, then f64.
    let ranks = bytes[128..].chunks_exact(8).map(|rank| Some(f64::from_le_bytes(rank.try_into().unwrap())));
    assert_ranks(&world, &opened, 10, &numbered(ranks), 1e-8);
    let bytes = read(&folder.join(format!("{}.bfs_from_{}.i32le.bin.gz", graph.name, graph.root)));
    let levels = bytes.chunks_exact(4).map(|level| i32::from_le_bytes(level.try_into().unwrap()));
    let levels = levels.map(|level| (level >= 0).then_some(level as f64));
    assert_levels(&world, &opened, graph.root, &numbered(levels));
    for way in ways() {
        let job = world.job(way.memory_bytes, way.threads);
        let answer =
            components(&opened, &job, &ComponentsOptions { tuning: way.tuning, ..Default::default() })
                .unwrap();
        assert_eq!(answer.summary.components, Some(graph.components), "{}", way.name);
    }
}

#[test]
fn cnr_2000_agrees_with_scipy() {
    check_known(&KNOWN[0]);
}

#[test]
fn arxiv_citations_agree_with_scipy() {
    check_known(&KNOWN[1]);
}

#[test]
fn slashdot_agrees_with_scipy() {
    check_known(&KNOWN[2]);
}

#[test]
fn twitter_egos_agree_with_scipy() {
    check_known(&KNOWN[3]);
}

#[test]
fn facebook_agrees_with_scipy() {
    check_known(&KNOWN[4]);
}
