//! Tests of graph algorithms on a cluster. Each result is compared with that of an import and the same algorithm on one
//! machine, byte for byte.

use std::{fmt::Write as _, fs, time::Duration};

use rustix::process::Signal;

use crate::{
    cluster::{AT_ONCE, NOTICED, Random, cluster, named, nothing_is_left, stores},
    util::Folder,
};

/// Returns `edges` edges between `vertices` ids, with comments, loops, equal edges, ids of 64 bits, vertices without
/// out-edges, and fields that are no ids.
fn edges(vertices: u64, edges: u64, seed: u64) -> String {
    let mut random = Random(seed);
    let mut text = "# source target\n\n".to_string();
    for number in 0..edges {
        // Few vertices have most edges, and a third of the vertices has none that leaves it.
        let (one, other) = (random.below(vertices), random.below(vertices));
        let source = one.min(other) / 3 * 3 + random.below(2);
        let target = match number % 16 {
            0 => source,
            _ => random.below(vertices).min(random.below(vertices)),
        };
        let id = |vertex: u64| if vertex % 7 == 5 { u64::MAX - vertex } else { vertex };
        match number % 5 {
            0 => writeln!(text, "{}\t{}", id(source), id(target)),
            1 => writeln!(text, "{},{}", id(source), id(target)),
            2 => writeln!(text, " {}  {} 0.5", id(source), id(target)),
            3 => write!(text, "{} {}\r\n", id(source), id(target)),
            _ => writeln!(text, "{} {}\n{} {}", id(source), id(target), id(source), id(target)),
        }
        .unwrap();
    }
    text + "5 5"
}

/// Runs an algorithm on an imported file here and on a cluster, and compares the rows.
fn check(folder: &Folder, named: &str, verb: &str, file: &str, words: &str, endings: &[&str]) {
    for ending in endings {
        folder.run(&format!("graph {verb} {file} -o here.{ending} {words} --quiet")).ok();
        let there = format!("cluster {verb} store:{file} -o there.{ending} {words} --node {named} --quiet");
        folder.run(&there).ok();
        let read = |name: &str| fs::read(folder.path(&format!("{name}.{ending}"))).unwrap();
        assert!(read("there") == read("here"), "the rows of {verb} {file} {words} differ in {ending}");
    }
}

/// The searches, and an option of each.
const SEARCHES: [(&str, &str); 3] = [("bfs", "--source 0"), ("components", ""), ("sssp", "--source 0")];

fn put(folder: &Folder, named: &str, file: &str, content: String, words: &str) {
    put_as(folder, named, file, content, words, "");
}

fn put_as(folder: &Folder, named: &str, file: &str, content: String, words: &str, as_graph: &str) {
    folder.write(file, content);
    folder.run(&format!("graph import {file} --name {file} {as_graph} --quiet")).ok();
    folder.run(&format!("store put {file} --node {named} --quiet {words}")).ok();
}

#[test]
fn vertices_are_ranked_on_a_cluster_as_on_one_machine() {
    for count in [1, 3] {
        let folder = Folder::new();
        let (_nodes, named) = cluster(&folder, count);
        put(&folder, &named, "links", edges(3_000, 20_000, 1), "--piece 64KiB");
        check(&folder, &named, "pagerank", "links", "", &["parquet", "csv", "arrow"]);
        for words in
            ["--iterations 0", "--iterations 1", "--iterations 2 --damping 1", "--iterations 3 --damping 0"]
        {
            check(&folder, &named, "pagerank", "links", words, &["csv"]);
        }
        // The ranks are settled after some iterations, and the last stages change nothing.
        check(&folder, &named, "pagerank", "links", "--iterations 30 --tolerance 1e-3", &["csv"]);
        let said = folder.run(&format!(
            "cluster pagerank store:links -o there.csv --iterations 30 --tolerance 1e-3 --node {named} --json"
        ));
        let there = said.ok().json();
        let said = folder.run("graph pagerank links -o here.csv --iterations 30 --tolerance 1e-3 --json");
        let here = said.ok().json();
        for field in ["supersteps", "last_change"] {
            assert_eq!(there["summary"][field], here["summary"][field], "{there}");
        }
        assert!(there["summary"]["supersteps"].as_u64().unwrap() < 30, "{there}");
        // A dataset has the bytes of a file of CSV.
        folder.run("graph pagerank links -o here.csv --quiet").ok();
        folder.run(&format!("cluster pagerank store:links -o store:ranks.csv --node {named} --quiet")).ok();
        folder.run(&format!("store get ranks.csv -o got.csv --node {named} --quiet")).ok();
        assert!(folder.read("got.csv") == folder.read("here.csv"));
        nothing_is_left(&folder, &named, &stores(0..count), AT_ONCE);
    }
}

/// Returns edges like those of [`edges`], with weights: some are 0 or equal, and equal edges have different ones.
fn roads(vertices: u64, edges: u64, seed: u64) -> String {
    let mut random = Random(seed);
    let mut text = "# from to length\n".to_string();
    for number in 0..edges {
        let (source, target) = (random.below(vertices) / 2 * 2, random.below(vertices));
        let id = |vertex: u64| if vertex % 7 == 5 { u64::MAX - vertex } else { vertex };
        let weight = [random.below(1000) as f64 / 8.0, 0.0, 1e-3, 7.0][(number % 5).min(3) as usize];
        writeln!(text, "{}\t{}\t{weight}", id(source), id(target)).unwrap();
    }
    text + "1000000 1000001 1e308\n1000001 1000002 1e308"
}

#[test]
fn searches_on_a_cluster_have_the_rows_of_one_machine() {
    for count in [1, 2, 3] {
        let folder = Folder::new();
        let (_nodes, named) = cluster(&folder, count);
        // Searches have about ten levels, and the graph has several components.
        put(&folder, &named, "links", edges(4_000, 9_000, 3), "--piece 64KiB");
        put_as(&folder, &named, "roads", roads(3_000, 12_000, 4), "--piece 64KiB", "--weighted");
        let endings: &[&str] = if count == 3 { &["parquet", "csv", "arrow"] } else { &["csv"] };
        for (verb, words) in SEARCHES {
            let file = if verb == "sssp" { "roads" } else { "links" };
            check(&folder, &named, verb, file, words, endings);
        }
        if count == 3 {
            // A vertex without out-edges. And a distance that no float holds is none.
            check(&folder, &named, "bfs", "links", "--source 5", &["csv"]);
            check(&folder, &named, "sssp", "roads", "--source 1000000", &["csv"]);
            summaries_and_datasets_are_equal(&folder, &named);
        }
        nothing_is_left(&folder, &named, &stores(0..count), AT_ONCE);
    }
}

fn summaries_and_datasets_are_equal(folder: &Folder, named: &str) {
    for (verb, words) in SEARCHES {
        let file = if verb == "sssp" { "roads" } else { "links" };
        let here = folder.run(&format!("graph {verb} {file} -o here.csv {words} --json")).ok().json();
        let job = format!("cluster {verb} store:{file} -o store:{verb}.csv {words} --node {named} --json");
        let there = folder.run(&job).ok().json();
        for field in ["reached", "levels", "components"] {
            assert_eq!(there["summary"][field], here["summary"][field], "{verb}: {there}");
        }
        assert_eq!(there["vertices"], here["vertices"], "{verb}: {there}");
        folder.run(&format!("store get {verb}.csv -o got.csv --node {named} --quiet")).ok();
        assert!(folder.read("got.csv") == folder.read("here.csv"), "the dataset of {verb} differs");
    }
}

#[test]
fn searches_of_unusual_graphs_on_a_cluster_have_the_rows_of_one_machine() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    for (file, content) in [
        ("loop", "0 0 1\n0 0 2\n".to_string()),
        ("edge", "0 18446744073709551615 2".to_string()),
        ("chain", (0..25).map(|vertex| format!("{vertex} {} 1.5\n", vertex + 1)).collect()),
        ("star", (0..5_000).map(|leaf| format!("0 {} 1\n{} 0 1\n", leaf + 10, leaf + 10)).collect()),
    ] {
        put_as(&folder, &named, file, content, "--piece 64KiB", "--weighted");
        for (verb, words) in SEARCHES {
            check(&folder, &named, verb, file, words, &["csv"]);
        }
    }
    nothing_is_left(&folder, &named, &stores(0..2), AT_ONCE);
}

#[test]
fn searches_that_a_cluster_cannot_do_are_refused_by_name() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    for (file, content) in
        [("links", "1 2\n2 3\n"), ("negative", "1 2 1\n2 3 -0.5\n4 5 -1\n"), ("comments", "# none\n\n")]
    {
        folder.write(file, content);
        folder.run(&format!("store put {file} --node {named} --quiet")).ok();
    }
    for (words, expected) in [
        ("bfs store:links --source 7", "links has no vertex 7"),
        ("bfs store:comments --source 7", "no edges and no vertices"),
        ("sssp store:links --source 1", "links:1: expected two vertex ids and a finite weight, got '1 2'"),
        ("sssp store:negative --source 1", "expected weights of 0 or more"),
    ] {
        let said = folder.run(&format!("cluster {words} -o out.csv --node {named}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(!folder.path("out.csv").exists(), "{words}");
    }
    // No path reaches the negative weight.
    folder.run(&format!("cluster sssp store:negative --source 3 -o out.csv --node {named} --quiet")).ok();
    assert_eq!(folder.read("out.csv"), "vertex,distance\n1,\n2,\n3,0.0\n4,\n5,\n");
    nothing_is_left(&folder, &named, &stores(0..2), AT_ONCE);
}

#[test]
fn unusual_graphs_are_ranked_on_a_cluster_as_on_one_machine() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    let star = |number: u64| format!("{} 7\n7 {number}\n", number + 10);
    for (file, content) in [
        ("loop", "1 1\n".to_string()),
        ("edge", "18446744073709551615 0".to_string()),
        ("chain", (0..500).map(|vertex| format!("{vertex} {}\n", vertex + 1)).collect()),
        ("star", (0..5_000).map(star).collect()),
        ("equal", "1 2\n2 1\n".repeat(20_000)),
    ] {
        put(&folder, &named, file, content, "--piece 64KiB");
        check(&folder, &named, "pagerank", file, "", &["csv"]);
    }
    nothing_is_left(&folder, &named, &stores(0..2), AT_ONCE);
}

#[test]
fn graphs_that_a_cluster_cannot_rank_are_refused_by_name() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    for (file, content) in [
        ("links", "1 2\n2 3\n"),
        ("broken", "1 2\n2 x\n"),
        ("comments", "# none\n\n"),
        ("table.csv", "source,target\n1,2\n"),
        ("matrix", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n"),
    ] {
        folder.write(file, content);
        folder.run(&format!("store put {file} --node {named} --quiet")).ok();
    }
    for (words, expected) in [
        ("store:links -o out.csv".to_string(), "no nodes are given"),
        (format!("store:links -o out.txt --node {named}"), ".parquet"),
        (format!("store:absent -o out.csv --node {named}"), "absent"),
        (format!("store:links -o store:broken --node {named}"), "broken"),
        (format!("store:links -o out.csv --iterations 101 --node {named}"), "--iterations"),
        (format!("store:links -o out.csv --damping 1.5 --node {named}"), "damping"),
        (format!("store:links -o out.csv --node-memory 8MiB --node {named}"), "--node-memory"),
        (format!("store:broken -o out.csv --node {named}"), "broken:2"),
        (format!("store:comments -o out.csv --node {named}"), "comments"),
        (format!("store:table.csv -o out.csv --node {named}"), "'.csv'"),
        (format!("store:matrix -o out.csv --node {named}"), "Matrix Market"),
    ] {
        let said = folder.run(&format!("cluster pagerank {words}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(!folder.path("out.csv").exists(), "{words}");
    }
    nothing_is_left(&folder, &named, &stores(0..2), AT_ONCE);
}

/// Runs a job twice, and kills a node in the middle of the second run. The rows are those of `here.csv` both times.
fn check_with_a_killed_node(text: String, local: &str, on_cluster: &str) {
    let folder = Folder::new();
    let (nodes, all) = cluster(&folder, 3);
    put(&folder, &all, "links", text, "--copies 2 --piece 256KiB");
    folder.run(&format!("{local} -o here.csv --quiet")).ok();
    let job = format!("{on_cluster} -o there.csv --node {all} --json");
    let began = std::time::Instant::now();
    folder.run(&job).ok();
    let whole = began.elapsed();
    assert!(folder.read("there.csv") == folder.read("here.csv"));
    let child = folder.run(&job).spawn();
    std::thread::sleep(whole / 2);
    nodes[1].send(Signal::KILL);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(folder.read("there.csv") == folder.read("here.csv"));
    let living = named([&nodes[0], &nodes[2]]);
    nothing_is_left(&folder, &living, &stores([0, 2]), NOTICED + Duration::from_secs(1));
}

#[test]
fn a_killed_node_costs_its_part_of_the_supersteps_and_no_result() {
    let ranks = ("graph pagerank links --iterations 20", "cluster pagerank store:links --iterations 20");
    check_with_a_killed_node(edges(20_000, 200_000, 2), ranks.0, ranks.1);
}

#[test]
fn a_killed_node_costs_its_part_of_a_search_and_no_result() {
    let components = ("graph components links", "cluster components store:links");
    check_with_a_killed_node(edges(100_000, 150_000, 5), components.0, components.1);
}
