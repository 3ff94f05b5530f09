//! Tests that create and remove graphs.

use std::io::Write;

use crate::util::{EDGES, Folder};

/// Returns the edges of a graph as CSV.
fn edges(folder: &Folder, name: &str) -> String {
    folder.run(&format!("graph export {name} -o edges-of-{name}.csv --quiet")).ok();
    folder.read(&format!("edges-of-{name}.csv"))
}

const EXPORTED: &str = "source,target\n10,20\n20,30\n30,10\n30,40\n40,50\n50,30\n70,60\n80,80\n";

#[test]
fn a_file_a_gzip_and_a_pipe_give_the_same_graph() {
    let folder = Folder::new();
    folder.write("plain.txt", EDGES);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(EDGES.as_bytes()).unwrap();
    folder.write("packed.txt.gz", gzip.finish().unwrap());
    folder.run("graph import plain.txt --name plain").ok();
    folder.run("graph import packed.txt.gz --name packed").ok();
    folder.run("graph import - --name piped").stdin(EDGES).ok();
    for name in ["plain", "packed", "piped"] {
        assert_eq!(edges(&folder, name), EXPORTED, "{name}");
    }
    assert_eq!(folder.graphs(), ["packed", "piped", "plain"]);
}

#[test]
fn several_files_are_one_graph() {
    let folder = Folder::new();
    let (first, second) = EDGES.split_at(EDGES.find("40 50").unwrap());
    folder.write("first.txt", first);
    folder.write("second.txt", second);
    folder.run("graph import first.txt second.txt --name both").ok();
    assert_eq!(edges(&folder, "both"), EXPORTED);
}

#[test]
fn an_exported_graph_imports_as_itself() {
    let folder = Folder::with_graph("g", EDGES);
    for ending in ["csv", "parquet", "arrow"] {
        folder.run(&format!("graph export g -o out.{ending}")).ok();
        folder.run(&format!("graph import out.{ending} --name from-{ending}")).ok();
        assert_eq!(edges(&folder, &format!("from-{ending}")), EXPORTED, "{ending}");
    }
    folder.run("graph export g -o out.bin").ok();
    folder.run("graph import out.bin --format binary --name from-bin").ok();
    assert_eq!(edges(&folder, "from-bin"), EXPORTED);
}

#[test]
fn an_import_says_what_it_made_and_what_it_cost() {
    let folder = Folder::new();
    let said = folder.run("graph import - --name g --reverse").stdin(EDGES).ok();
    let made = "g: 8 vertices and 8 edges, directed, with in-edges, ";
    assert!(said.stdout.starts_with(made) && said.stdout.lines().count() == 1, "{said:?}");
    assert!(said.stderr.contains(" s, read ") && said.stderr.contains("peak memory"), "{said:?}");
    let said = folder.run("graph import - --name h --undirected --drop-loops --quiet").stdin(EDGES).ok();
    assert!(said.stdout.starts_with("h: 8 vertices and 7 edges, undirected, "), "{said:?}");
    assert_eq!(said.stderr, "");
}

#[test]
fn weights_come_from_the_column_that_is_named() {
    let folder = Folder::new();
    folder.write("calls.csv", "minutes,caller,callee\n0.5,1,2\n2.5,2,1\n");
    let columns = "--source-column caller --target-column callee --weight-column minutes";
    folder.run(&format!("graph import calls.csv --name calls {columns}")).ok();
    assert_eq!(edges(&folder, "calls"), "source,target,weight\n1,2,0.5\n2,1,2.5\n");
}

#[test]
fn a_generated_graph_is_the_same_each_time() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 10 --name a --memory 16MiB --threads 1").ok();
    folder.run("graph generate kronecker --scale 10 --name b --memory 64MiB --threads 2 --reverse").ok();
    folder.run("graph generate kronecker --scale 10 --name c --seed 2").ok();
    let a = edges(&folder, "a");
    assert!(a == edges(&folder, "b"));
    assert!(a != edges(&folder, "c"));
    let info = folder.run("graph info a --json").ok().json();
    assert_eq!(info["summary"]["vertices"], 1024);
    assert_eq!(info["summary"]["edges"], a.lines().count() - 1);
}

#[test]
fn ls_is_an_aligned_table() {
    let folder = Folder::with_graph("links", EDGES);
    folder.run("graph import - --name h --undirected").stdin("1 2\n").ok();
    let table = folder.run("graph ls").ok().stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("name   vertices  edges  kind"), "{table}");
    assert!(lines[1].starts_with("h             2      1  undirected  "), "{table}");
    assert!(lines[2].starts_with("links         8      8  directed    "), "{table}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn ls_of_an_empty_store_prints_no_table() {
    let folder = Folder::new();
    folder.run("store init store").ok();
    let said = folder.run("graph ls").ok();
    assert_eq!(said.stdout, "");
    assert!(said.stderr.starts_with("no graphs in "), "{said:?}");
    assert_eq!(folder.run("graph ls --json").ok().stdout, "[]\n");
}

#[test]
fn info_tells_what_is_known() {
    let folder = Folder::with_graph("g", EDGES);
    let text = folder.run("graph info g").ok().stdout;
    assert!(text.starts_with("g: directed\n") && text.contains("8 (1 self-loops)"), "{text}");
    let json = folder.run("graph info g --json").ok().json();
    assert_eq!(json["command"], "graph info");
    assert_eq!(json["summary"]["self_loops"], 1);
}

#[test]
fn rm_removes_what_is_there_and_names_what_is_not() {
    let folder = Folder::with_graph("a", EDGES);
    folder.run("graph import - --name b").stdin("1 2\n").ok();
    folder.run("graph import - --name c").stdin("1 2\n").ok();
    folder.run("graph rm c").ok();
    let said = folder.run("graph rm a nothing b nobody").exits(2);
    let lines: Vec<&str> = said.stderr.lines().collect();
    assert!(lines[0].starts_with("inshore: there is no dataset \"nothing\" in "), "{said:?}");
    assert!(lines[1].starts_with("inshore: there is no dataset \"nobody\" in "), "{said:?}");
    assert_eq!(folder.graphs(), [""; 0]);
    assert!(folder.scratch().is_empty());
}

#[test]
fn a_store_can_be_named_by_option_or_environment() {
    let folder = Folder::with_graph("here", EDGES);
    folder.run("graph import - --name there --store elsewhere").stdin("1 2\n").ok();
    assert_eq!(folder.graphs(), ["here"]);
    assert!(folder.run("--store elsewhere graph ls").ok().stdout.contains("there"));
    assert!(folder.path("elsewhere/segment-00000000").is_file());
}
