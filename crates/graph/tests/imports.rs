//! Tests that every format gives the same graph, and that every kind of bad input gives an error that names the place
//! in the input, and leaves no incomplete graph.

mod support;

use std::io::Write;

use inshore_graph::{EdgeFormat, Graph, ImportOptions, export, list};
use support::{MIB, TestStore};

const EDGES: &str = "# a comment\n10 20\n20\t30\n10,20\n\n30 30\n% another\n30 10\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The edges of a graph as CSV.
fn edges(world: &TestStore, graph: &Graph) -> String {
    let path = world.folder.path().join("export.csv");
    export(graph, &world.job(16 * MIB, 1), &path).unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_format_gives_the_same_graph() {
    let world = TestStore::new();
    let csv = "source,target\n10,20\n20,30\n30,30\n30,10\n";
    let pairs: Vec<u8> = [10u32, 20, 20, 30, 30, 30, 30, 10].iter().flat_map(|id| id.to_le_bytes()).collect();
    let matrix =
        "%%MatrixMarket matrix coordinate pattern general\n% c\n30 30 4\n10 20\n20 30\n30 30\n30 10\n";
    let inputs = [
        ("text.txt", EDGES.into()),
        ("gz.txt.gz", gzip(EDGES.as_bytes())),
        ("table.csv", csv.as_bytes().to_vec()),
        ("pairs.bin", pairs),
        ("matrix.mtx", matrix.as_bytes().to_vec()),
        ("ldbc.e", b"10 20\n20 30\n30 30\n30 10\n".to_vec()),
    ];
    for (name, bytes) in inputs {
        let path = world.file(name, bytes);
        let graph_name = name.split('.').next().unwrap();
        let info = world.import(graph_name, &[path], &ImportOptions::default()).unwrap();
        let vertices = if graph_name == "matrix" { 30 } else { 3 };
        assert_eq!((info.vertices, info.edges, info.self_loops), (vertices, 4, 1), "{name}");
        let exported = edges(&world, &world.graph(graph_name));
        assert_eq!(exported, "source,target\n10,20\n20,30\n30,10\n30,30\n", "{name}");
    }
    // An exported file can be imported again.
    for ending in ["parquet", "arrow", "csv", "bin"] {
        let path = world.folder.path().join(format!("again.{ending}"));
        assert_eq!(export(&world.graph("text"), &world.job(16 * MIB, 1), &path).unwrap(), 4);
        world.import(ending, &[path], &ImportOptions::default()).unwrap();
        assert_eq!(edges(&world, &world.graph(ending)), edges(&world, &world.graph("text")), "{ending}");
    }
}

#[test]
fn weights_are_kept_and_the_smallest_of_duplicates_stays() {
    let world = TestStore::new();
    let path = world.file("g.e", "1 2 0.5\n2 1 3\n1 2 0.25\n2 2 7\n");
    let info = world.import("directed", std::slice::from_ref(&path), &ImportOptions::default()).unwrap();
    assert!(info.weighted);
    let all = "source,target,weight\n1,2,0.25\n2,1,3.0\n2,2,7.0\n";
    assert_eq!(edges(&world, &world.graph("directed")), all);
    let undirected = ImportOptions { undirected: true, ..Default::default() };
    let info = world.import("undirected", &[path], &undirected).unwrap();
    assert_eq!((info.edges, info.entries, info.self_loops), (2, 4, 1));
    assert_eq!(edges(&world, &world.graph("undirected")), "source,target,weight\n1,2,0.25\n2,2,7.0\n");
    let csv = world.file("g.csv", "a,b,c\n1,2,9.5\n");
    let columns = ImportOptions {
        source_column: Some("b".into()),
        target_column: Some("a".into()),
        weight_column: Some("c".into()),
        ..Default::default()
    };
    world.import("columns", &[csv], &columns).unwrap();
    assert_eq!(edges(&world, &world.graph("columns")), "source,target,weight\n2,1,9.5\n");
    let text = world.file("g.txt", "1 2 4\n");
    let weighted = ImportOptions { weighted: true, reverse: true, ..Default::default() };
    assert!(world.import("text", &[text], &weighted).unwrap().weighted);
}

#[test]
fn loops_are_kept_or_dropped_and_their_vertices_stay() {
    let world = TestStore::new();
    let path = world.file("g.txt", "1 1\n1 2\n3 3\n");
    let kept = world.import("kept", std::slice::from_ref(&path), &ImportOptions::default()).unwrap();
    assert_eq!((kept.vertices, kept.edges, kept.self_loops), (3, 3, 2));
    let drop_loops = ImportOptions { drop_loops: true, ..Default::default() };
    let dropped = world.import("dropped", &[path], &drop_loops).unwrap();
    assert_eq!((dropped.vertices, dropped.edges, dropped.self_loops), (3, 1, 0));
}

#[test]
fn a_symmetric_matrix_is_an_undirected_graph_with_all_its_rows() {
    let world = TestStore::new();
    let path =
        world.file("g.mtx", "%%MatrixMarket matrix coordinate real symmetric\n5 5 2\n2 1 0.5\n4 4 1\n");
    let info = world.import("g", &[path], &ImportOptions::default()).unwrap();
    assert_eq!((info.vertices, info.edges, info.directed, info.weighted), (5, 2, false, true));
}

#[test]
fn ids_of_any_size_keep_their_order() {
    let world = TestStore::new();
    let high = u64::MAX;
    let text = format!("{high} 0\n5 {}\n{high} {high}\n", high - 1);
    let info = world.import("g", &[world.file("g.txt", text)], &ImportOptions::default()).unwrap();
    assert_eq!((info.vertices, info.id_min, info.id_max, info.dense_ids), (4, 0, high, false));
    let all = format!("source,target\n5,{}\n{high},0\n{high},{high}\n", high - 1);
    assert_eq!(edges(&world, &world.graph("g")), all);
}

/// Edges whose ids all have a bit in the bitmap are sorted on arrival, and other edges wait in logs until their ids
/// have numbers. A graph can have both kinds of edges. The result must always equal a sorted set of edges.
#[test]
fn low_and_high_ids_in_any_mixture_give_the_same_rows() {
    const EDGES: u64 = 60_000;
    let world = TestStore::new();
    let random = |number: u64| {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
    };
    type Ids = fn(u64) -> u64;
    let dense: Ids = |random| random % 1000;
    let sparse: Ids = |random| random % 5000 * 391;
    let wide: Ids = |random| random % 3000 * 1_400_000;
    let few_high: Ids = |random| if random % 500 == 0 { u64::MAX - random % 7 } else { random % 2000 };
    let half_high: Ids = |random| if random % 2 == 0 { random % 900 } else { (random % 900) << 40 };
    for (kind, ids) in
        [("dense", dense), ("sparse", sparse), ("wide", wide), ("few", few_high), ("half", half_high)]
    {
        for (number, &(undirected, drop_loops, weighted)) in
            [(false, false, false), (true, false, false), (true, true, true), (false, true, true)]
                .iter()
                .enumerate()
        {
            let (mut text, mut expected) = (String::new(), std::collections::BTreeMap::new());
            let mut vertices = std::collections::BTreeSet::new();
            for edge in 0..EDGES {
                let (from, to) = (ids(random(2 * edge)), ids(random(2 * edge + 1)));
                let weight = (random(edge + 7 * EDGES) % 1000) as f64 / 8.0;
                text.push_str(&format!(
                    "{from}\t{to}{}\n",
                    if weighted { format!("\t{weight}") } else { String::new() }
                ));
                vertices.extend([from, to]);
                if drop_loops && from == to {
                    continue;
                }
                let key = if undirected { (from.min(to), from.max(to)) } else { (from, to) };
                let kept: &mut f64 = expected.entry(key).or_insert(f64::INFINITY);
                *kept = kept.min(weight);
            }
            let header = if weighted { "source,target,weight\n" } else { "source,target\n" };
            let expected = expected.iter().fold(header.to_string(), |all, ((from, to), weight)| {
                all + &if weighted { format!("{from},{to},{weight:?}\n") } else { format!("{from},{to}\n") }
            });
            let path = world.file("mixed.txt", text);
            let options = ImportOptions { undirected, drop_loops, weighted, ..Default::default() };
            for memory in [8 * MIB, 32 * MIB, 64 * MIB] {
                let name = format!("{kind}{number}-{memory}");
                let info = world.import_in(&name, std::slice::from_ref(&path), &options, memory).unwrap();
                assert_eq!(info.vertices, vertices.len() as u64, "{name}");
                assert_eq!(edges(&world, &world.graph(&name)), expected, "{name}");
            }
        }
    }
}

#[test]
fn formats_follow_each_other_in_any_order() {
    let world = TestStore::new();
    // An import adds 4096 pairs at once. The test has this number of pairs, one less, one more, and many more.
    for pairs in [4095u32, 4096, 4097, 50_000] {
        let bytes: Vec<u8> = (0..pairs).flat_map(|n| [n, n + 1]).flat_map(u32::to_le_bytes).collect();
        let text: String = (0..20_000u32).map(|n| format!("{n} {}\n", n + 2)).collect();
        let files = [
            world.file("a.bin", bytes),
            world.file("b.txt", text),
            world.file("c.csv", "source,target\n7,1\n"),
        ];
        let mut turned = files.clone();
        turned.reverse();
        let names = ["forwards", "backwards"].map(|name| format!("{name}{pairs}"));
        world.import(&names[0], &files, &ImportOptions::default()).unwrap();
        world.import(&names[1], &turned, &ImportOptions::default()).unwrap();
        let [one, other] = names.map(|name| edges(&world, &world.graph(&name)));
        assert_eq!(one.lines().count(), 1 + pairs as usize + 20_000 + 1);
        assert_eq!(one, other);
    }
}

#[test]
fn ids_that_do_not_fit_in_memory_are_numbered_in_bins() {
    let world = TestStore::new();
    let id = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
    // These ids take 4.8 MB, which is more than half of the budget of 8 MiB.
    let count = 600_000;
    let mut text = String::new();
    for n in 0..count {
        text += &format!("{} {}\n", id(n), id((n * n + 1) % count));
    }
    let path = world.file("g.txt", text);
    let reverse = ImportOptions { reverse: true, ..Default::default() };
    let small = world.import_in("small", std::slice::from_ref(&path), &reverse, 8 * MIB).unwrap();
    let large = world.import_in("large", &[path], &reverse, 1024 * MIB).unwrap();
    assert_eq!(small.vertices, count);
    assert_eq!(inshore_graph::GraphInfo { name: "large".into(), ..small }, large);
    let (small, large) = (world.graph("small"), world.graph("large"));
    let export_in = |graph: &Graph, memory_bytes| {
        let path = world.folder.path().join("export.csv");
        export(graph, &world.job(memory_bytes, 1), &path).unwrap();
        std::fs::read(path).unwrap()
    };
    assert!(export_in(&small, 8 * MIB) == export_in(&large, 1024 * MIB));
    let labels = |graph: &Graph, memory_bytes| {
        let job = world.job(memory_bytes, 2);
        support::rows(inshore_graph::components(graph, &job, &Default::default()).unwrap())
    };
    assert!(labels(&small, 8 * MIB) == labels(&large, 1024 * MIB));
}

#[test]
fn bad_input_is_named_with_its_place_and_leaves_nothing() {
    let world = TestStore::new();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a.txt", b"1 2\n3 foo\n".to_vec(), "a.txt:2: expected two vertex ids, got '3 foo'"),
        ("b.txt", b"1 2\n# c\n\n7\n".to_vec(), "b.txt:4: expected two vertex ids, got '7'"),
        ("c.txt", b"1 -2\n".to_vec(), "c.txt:1: expected two vertex ids, got '1 -2'"),
        (
            "d.txt",
            b"1 18446744073709551616\n".to_vec(),
            "d.txt:1: expected an id from 0 to 18446744073709551615",
        ),
        ("e.txt", b"".to_vec(), "e.txt: no edges and no vertices found"),
        ("f.txt", b"# nothing\n".to_vec(), "no edges and no vertices"),
        ("g.txt.gz", gzip(EDGES.as_bytes())[..30].to_vec(), "g.txt.gz"),
        (
            "h.bin",
            vec![0; 20],
            "h.bin: byte 16: expected a pair of 4-byte ids, got the end of the file after 4 bytes",
        ),
        ("i.csv", b"source,target\n1,2\n3,x\n".to_vec(), "i.csv:3"),
        ("j.csv", b"source,target\n1,2\n3,\n".to_vec(), "j.csv:3"),
        (
            "k.csv",
            b"source\n1\n".to_vec(),
            "k.csv: expected a column of targets: target, dst or to, or the name given by --target-column, got columns source",
        ),
        ("l.mtx", b"hello\n".to_vec(), "l.mtx:1: expected '%%MatrixMarket"),
        (
            "m.mtx",
            b"%%MatrixMarket matrix coordinate pattern general\n2 2 3\n1 2\n".to_vec(),
            "expected 3 entries, got 1",
        ),
        (
            "n.mtx",
            b"%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 3\n".to_vec(),
            "n.mtx:3: expected row and column from 1 to 2",
        ),
        ("o.e", b"1 2 0.5\n2 3\n".to_vec(), "o.e:2: expected two vertex ids and a finite weight"),
        ("p.e", b"1 2 0.5\n2 3 inf\n".to_vec(), "p.e:2: expected two vertex ids and a finite weight"),
        ("s.csv", b"1,2\n3,4\n".to_vec(), "s.csv: expected names of columns (--format text"),
        ("t.csv", b"to,x\n1,2\n".to_vec(), "t.csv: expected a column of sources: source, src or from"),
        ("u.csv", b"x,from\n1,2\n".to_vec(), "u.csv: expected a column of targets: target, dst or to"),
        ("v.csv", b"a,b,weight\n1,2,1\n1,2,nan\n".to_vec(), "v.csv: row 2: expected a finite weight"),
        ("w.txt", b"1 2\r3 4\r".to_vec(), "w.txt:1: expected two vertex ids"),
        ("x.txt", b"1,,2\n".to_vec(), "x.txt:1: expected two vertex ids, got '1,,2'"),
        ("y.txt", b"1 2 3 4 5\n".to_vec(), "y.txt:1: expected at most 4 fields, got '1 2 3 4 5'"),
        (
            "z.mtx",
            b"%%MatrixMarket matrix coordinate pattern general\n18446744073709551615 3 1\n1 2\n".to_vec(),
            "z.mtx:2: expected as many columns as rows",
        ),
        ("z2.mtx", b"%%MatrixMarket matrix coordinate pattern general\n".to_vec(), "got the end of the file"),
        ("q.parquet", b"PAR1 not really PAR1".to_vec(), "q.parquet"),
        ("r.txt", [b"1 2\n".to_vec(), vec![b'1'; 3 << 20]].concat(), "r.txt"),
        ("missing.txt", Vec::new(), "missing.txt"),
    ];
    for (name, bytes, message) in cases {
        let path = match name {
            "missing.txt" => world.folder.path().join(name),
            _ => world.file(name, bytes),
        };
        let error = world.import("bad", &[path], &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(message), "{name}: {error}");
        assert!(list(&world.store).unwrap().is_empty(), "{name}");
        let left = std::fs::read_dir(world.store.path().join("scratch")).unwrap().count();
        assert_eq!(left, 1, "{name}: only the lock is left in scratch");
    }
}

#[test]
fn columns_are_taken_by_their_names_and_never_twice() {
    let world = TestStore::new();
    let both = world.file("w.csv", "weight,a,b\n5,1,2\n7,2,3\n");
    let info = world.import("w", &[both], &ImportOptions::default()).unwrap();
    assert!(info.weighted);
    assert_eq!((info.id_min, info.id_max, info.edges, info.self_loops), (1, 3, 2, 0));
    let plain = world.file("p.csv", "x,y\n1,2\n");
    let named = |source: &str, target: &str| ImportOptions {
        source_column: Some(source.into()),
        target_column: Some(target.into()),
        ..ImportOptions::default()
    };
    let error = world.import("p", std::slice::from_ref(&plain), &named("x", "x")).unwrap_err().to_string();
    assert!(error.contains("'x' is used twice"), "{error}");
    world.import("p", std::slice::from_ref(&plain), &named("y", "x")).unwrap();
    let weighted = ImportOptions { weighted: true, ..ImportOptions::default() };
    let error = world.import("q", &[plain], &weighted).unwrap_err().to_string();
    assert!(error.contains("expected a column of weights"), "{error}");
    let text = world.file("t.txt", "1 2\n");
    let error = world.import("t", &[text], &named("x", "y")).unwrap_err().to_string();
    assert!(error.contains("a format without column names"), "{error}");
}

#[test]
fn a_symmetric_matrix_beside_directed_edges_is_refused() {
    let world = TestStore::new();
    let banner = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 1\n3 1\n";
    let (matrix, text) = (world.file("m.mtx", banner), world.file("e.txt", "1 2\n2 3\n"));
    let both = [matrix.clone(), text.clone()];
    let error = world.import("g", &both, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("e.txt: expected a symmetric matrix, as in"), "{error}");
    let undirected = ImportOptions { undirected: true, ..ImportOptions::default() };
    assert_eq!(world.import("g", &both, &undirected).unwrap().edges, 3);
    assert!(!world.import("h", &[matrix], &ImportOptions::default()).unwrap().directed);
}

#[test]
fn inputs_that_disagree_on_weights_and_names_that_exist_are_refused() {
    let world = TestStore::new();
    let (with, without) = (world.file("a.e", "1 2 0.5\n"), world.file("b.e", "1 2\n"));
    let error = world.import("g", &[with.clone(), without], &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("b.e: expected edges with weights, as in"), "{error}");
    world.import("g", std::slice::from_ref(&with), &ImportOptions::default()).unwrap();
    let error = world.import("g", &[with], &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("\"g\" exists already"), "{error}");
}

#[test]
fn a_forced_format_overrules_the_ending() {
    let world = TestStore::new();
    let path = world.file("edges.dat", "source,target\n1,2\n");
    let csv = ImportOptions { format: Some(EdgeFormat::Csv), ..Default::default() };
    assert_eq!(world.import("g", &[path], &csv).unwrap().edges, 1);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_the_smallest_that_works() {
    let world = TestStore::new();
    let path = world.file("g.txt", "1 2\n");
    let error = world.import_in("g", &[path], &ImportOptions::default(), 7 * MIB).unwrap_err().to_string();
    assert!(error.contains("the smallest budget that works is 8 MiB"), "{error}");
}

#[test]
fn graphs_of_metis_are_refused_by_name_and_edge_lists_like_them_are_read() {
    let world = TestStore::new();
    let ring = "4 4\n2 4\n1 3\n2 4\n1 3\n";
    let refused = [
        ("ring.graph", ring),
        ("ring.metis", ring),
        // METIS is recognized by its content: the header says 4 vertices and 4 edges, and 4 lines with 8 neighbours
        // follow.
        ("ring.txt", ring),
        ("commented.txt", "% a ring\n4 4\n2 4\n% more\n1 3\n2 4\n1 3"),
        ("isolated.txt", "5 4\n2 4\n1 3\n2 4\n1 3\n\n"),
        ("weighted.txt", "3 3 1\n2 5 3 7\n1 5 3 9\n1 7 2 9\n"),
        ("triangle.txt", "3 3 0\n2 3\n1 3\n1 2\n"),
    ];
    for (name, text) in refused {
        let error = world.import("g", &[world.file(name, text)], &ImportOptions::default()).unwrap_err();
        assert!(error.to_string().contains("METIS") && error.to_string().contains(name), "{error}");
        assert!(list(&world.store).unwrap().is_empty(), "{name}");
    }
    let text = ImportOptions { format: Some(EdgeFormat::Text), ..Default::default() };
    let path = world.file("again.graph", ring);
    // As text, 4 4 is a self-loop, and the lines 2 4 and 1 3 occur twice.
    assert_eq!(world.import("forced", &[path], &text).unwrap().edges, 3);
    let read = [
        // The number of lines matches the header, but neighbours are missing or invalid.
        ("counts.txt", "4 3\n2 4\n1 3\n2 4\n1 3\n"),
        ("own.txt", "4 4\n2 4\n2 3\n2 4\n1 3\n"),
        ("outside.txt", "4 4\n2 5\n1 3\n2 4\n1 3\n"),
        ("zero.txt", "4 4\n2 4\n0 3\n2 4\n1 3\n"),
        ("lines.txt", "4 4\n2 4\n1 3\n2 4\n1 3\n1 2\n"),
        ("one.txt", "1 2\n2 3\n"),
    ];
    for (name, text) in read {
        let path = world.file(name, text);
        world.import(name.split('.').next().unwrap(), &[path], &ImportOptions::default()).unwrap();
    }
}

#[test]
fn matrix_market_is_known_by_its_first_line_and_has_to_be_square() {
    let world = TestStore::new();
    let matrix =
        |banner: &str, size: &str| format!("{banner} matrix coordinate pattern general\n{size}\n1 2\n2 1\n");
    for (name, text) in [
        ("one.mtx", matrix("%MatrixMarket", "2 2 2")),
        ("marked.mtx", matrix("\u{feff}%%MatrixMarket", "2 2 2")),
        ("text.txt", matrix("%%MatrixMarket", "2 2 2")),
        ("single.txt", matrix("%matrixmarket", "2 2 2")),
    ] {
        let path = world.file(name, text);
        let info = world.import(name.split('.').next().unwrap(), &[path], &ImportOptions::default()).unwrap();
        assert_eq!((info.vertices, info.edges), (2, 2), "{name}");
    }
    for size in ["2 3 2", "3 2 2"] {
        let path = world.file("wide.mtx", matrix("%%MatrixMarket", size));
        let error = world.import("wide", &[path], &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("wide.mtx:2: expected as many columns as rows"), "{error}");
    }
    // If the text format is forced, the import fails, since the line with the matrix's size would be read as an edge.
    let path = world.file("forced.mtx", matrix("%%MatrixMarket", "2 2 2"));
    let text = ImportOptions { format: Some(EdgeFormat::Text), ..Default::default() };
    let error = world.import("forced", &[path], &text).unwrap_err().to_string();
    assert!(error.contains("forced.mtx:1: expected an edge list (--format mtx"), "{error}");
}

#[test]
fn a_byte_order_mark_before_edges_is_passed_over() {
    let world = TestStore::new();
    for (name, text) in [("plain.txt", "\u{feff}1 2\n2 3\n"), ("comment.e", "\u{feff}# c\n1 2\n2 3\n")] {
        let path = world.file(name, text);
        let name = name.split('.').next().unwrap();
        assert_eq!(world.import(name, &[path], &ImportOptions::default()).unwrap().edges, 2);
        assert_eq!(edges(&world, &world.graph(name)), "source,target\n1,2\n2,3\n");
    }
}
