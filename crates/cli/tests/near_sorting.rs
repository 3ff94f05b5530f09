//! Tests of `sort --node`: the result has the same bytes as the result of a local sort.

use std::io::Write;

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    nodes::{Node, cluster, sales},
    util::{Folder, until},
};

/// Sorts a file locally and on nodes, and asserts that the results are equal.
fn same(folder: &Folder, named: &str, file: &str, words: &str, output: &str) {
    let here = format!("sort {file} {words} -o here.{output} --quiet");
    folder.run(&here).ok();
    let there = format!(
        "sort store:{file} {words} -o there.{output} --node {named} --node-memory 8MiB --only-nodes --json"
    );
    let counters = folder.run(&there).ok().json();
    let summary = &counters["summary"];
    assert!(summary["runs"].as_u64().unwrap() > 3, "{file} {words}: nothing was written to flash: {summary}");
    assert_eq!(summary["nodes"].as_array().unwrap().len(), 3, "{summary}");
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    let (here, there) = (read(&format!("here.{output}")), read(&format!("there.{output}")));
    assert!(there == here, "{file} {words}: {} bytes and {}", there.len(), here.len());
    assert_eq!(summary["bytes"].as_u64().unwrap(), here.len() as u64);
}

/// Returns a pseudo-random number.
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

#[test]
fn lines_and_records_are_sorted_on_nodes_as_they_are_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    // The file has many equal lines, and its last line has no line end.
    let line = |row: u64| format!("{} {}\n", mixed(row) % 60_000, "and more ".repeat(row as usize % 5));
    let lines: String = (0..600_000).map(line).collect();
    folder.write("lines", lines.trim_end());
    folder.run(&format!("store put lines --node {named} --piece 200KiB --quiet")).ok();
    for words in ["", "--reverse", "--unique", "--reverse --unique"] {
        same(&folder, &named, "lines", words, "txt");
    }
    // Records with equal keys are all over the file. The bytes after the key show the original position of a record.
    let record = |row: u64| {
        let key = (mixed(row) % 1000) as u16;
        [&[b'-'; 3][..], &key.to_be_bytes(), &row.to_le_bytes(), &[b'+'; 7]].concat()
    };
    folder.write("records", (0..800_000).flat_map(record).collect::<Vec<u8>>());
    folder.run(&format!("store put records --node {named} --piece 300KiB --record 20 --quiet")).ok();
    for words in ["--record 20 --key-bytes 3..5", "--record 20", "--record 20 --key-bytes 1..5 -r -u"] {
        same(&folder, &named, "records", words, "bin");
    }
    let said = folder.run(&format!("sort store:lines -o out --node {named} --explain")).ok();
    assert!(said.stderr.contains("600000 lines, 14.2 MiB, written to out"), "{}", said.stderr);
    assert!(said.stderr.contains("sent here"), "{}", said.stderr);
    let piped = folder.run(&format!("sort store:lines -u -o - --node {named} --quiet")).ok();
    folder.run("sort lines -u -o u --quiet").ok();
    assert!(piped.stdout == folder.read("u"));
}

#[test]
fn tables_are_sorted_on_nodes_as_they_are_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    sales(&folder, 300_000);
    // The table has a text column with line feeds and empty values, and a column of numbers with nulls.
    let row = |row: u64| {
        let town = ["Ulm", "", "\"Bad\nHomburg\"", "\"a \"\"b\"\"\""][(mixed(row) % 4) as usize];
        let number = if mixed(row).is_multiple_of(9) { String::new() } else { (mixed(row) % 50).to_string() };
        format!("{row},{town},{number}\n")
    };
    folder.write("towns.csv", "row,town,number\n".to_string() + &(0..300_000).map(row).collect::<String>());
    let log = |row: u64| match row % 5 {
        2 => format!("{{\"user\":{},\"what\":\"came\"}}\n", mixed(row) % 77),
        _ => format!("{{\"user\":{},\"what\":\"went\",\"bytes\":{}}}\n", mixed(row) % 91, row * 3),
    };
    folder.write("log.jsonl", (0..300_000).map(log).collect::<String>());
    for (file, piece) in [("sales.parquet", "100KiB"), ("towns.csv", "300KiB"), ("log.jsonl", "400KiB")] {
        folder.run(&format!("store put {file} --node {named} --piece {piece} --copies 2 --quiet")).ok();
    }
    same(&folder, &named, "sales.parquet", "--key shop,price:desc", "parquet");
    same(&folder, &named, "sales.parquet", "--key shop,price:desc --reverse", "arrow");
    same(&folder, &named, "sales.parquet", "--key shop:desc,item --unique", "csv");
    same(&folder, &named, "towns.csv", "--key town:desc,number", "csv");
    same(&folder, &named, "towns.csv", "--key number:desc,town --unique", "parquet");
    same(&folder, &named, "towns.csv", "--key number --text number", "csv");
    same(&folder, &named, "log.jsonl", "--key what,user", "csv");
    // The first row may be a header or data. Nodes need column names, so the sort is refused unless `--header yes` is
    // given.
    folder.write("numbers.csv", "1,2\n3,4\n");
    folder.run(&format!("store put numbers.csv --node {named} --quiet")).ok();
    let sort = format!("sort store:numbers.csv -o none.csv --node {named}");
    let said = folder.run(&format!("{sort} --key 1")).exits(2).stderr;
    assert!(said.contains("expected the names of columns"), "{said}");
    let said = folder.run(&format!("{sort} --key column_1 --header no")).exits(2).stderr;
    assert!(said.contains("nodes need names of columns"), "{said}");
    folder.run(&format!("{sort} --key 1 --header yes")).ok();
    assert_eq!(folder.read("none.csv"), "1,2\n3,4\n");
}

#[test]
fn a_sort_survives_a_node_that_is_killed() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    sales(&folder, 60_000);
    folder.run(&format!("store put sales.parquet --node {named} --piece 64KiB --copies 2 --quiet")).ok();
    let lines: String = (0..60_000).map(|row| format!("{}\n", mixed(row) % 1000)).collect();
    folder.write("once", lines);
    folder.run(&format!("store put once --node {named} --piece 64KiB --quiet")).ok();
    folder.run("sort sales.parquet --key shop,price -o here.csv --quiet").ok();
    nodes[2].send(Signal::KILL);
    folder.run(&format!("sort store:sales.parquet --key shop,price -o there.csv --node {named}")).ok();
    assert!(folder.read("there.csv") == folder.read("here.csv"));
    let once = format!("sort store:once -o there --node {named}");
    let said = folder.run(&once).exits(2);
    assert!(said.stderr.contains("were not read") && !folder.path("there").exists(), "{}", said.stderr);
    let said = folder.run(&format!("{once} --partial")).ok();
    assert!(said.stderr.contains("note: store:once: bytes"), "{}", said.stderr);
    let rows = folder.read("there").lines().count();
    assert!(rows > 1 && rows < 60_000, "{rows} lines");
}

#[test]
fn a_sort_on_nodes_that_is_stopped_leaves_nothing() {
    let folder = Folder::new();
    let node = Node::start(&folder, "node0", "--slots 1");
    let named = &node.address;
    folder.write("lines", "b\na\n".repeat(1000));
    folder.run(&format!("store put lines --node {named} --quiet")).ok();
    let wait_for = |what: &str, least: u64| {
        until(&format!("{what} is not {least}"), || {
            let status = folder.run(&format!("node status --node {named} --json")).ok().json();
            status[0]["status"][what].as_u64().unwrap() >= least
        });
    };
    // A put that is in progress reserves a quarter of the node's memory. The sort requests nearly all of the memory, so
    // it must wait.
    let mut load = folder.run(&format!("store put - --name slow --node {named} --piece 64KiB")).spawn();
    load.stdin.as_mut().unwrap().write_all("line\n".repeat(100_000).as_bytes()).unwrap();
    wait_for("memory_used_bytes", 1);
    let sort = folder.run(&format!("sort store:lines -o there --node {named} --node-memory 60MiB")).spawn();
    wait_for("waiting", 1);
    kill_process(Pid::from_raw(sort.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = sort.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!folder.path("there").exists());
    drop(load.stdin.take());
    assert!(load.wait().unwrap().success());
    folder.run(&format!("sort store:lines -o there --node {named}")).ok();
    assert_eq!(folder.read("there"), "a\n".repeat(1000) + &"b\n".repeat(1000));
}

#[test]
fn what_cannot_be_sorted_on_nodes_is_refused() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    folder.write("lines", "b\na\n".repeat(50_000));
    folder.write("table.csv", "a,b\n1,2\n".to_string() + &"3,4\n".repeat(50_000));
    folder.write("other.csv", "a,c\n1,2\n");
    folder.run("compress lines -o packed --format gzip").ok();
    sales(&folder, 20_000);
    for (file, words) in [
        ("lines", "--piece 64KiB"),
        ("lines", "--piece 64KiB --record 100 --name hundreds"),
        ("table.csv", "--piece 64KiB"),
        ("other.csv", ""),
        ("packed", ""),
        ("packed", "--name packed.csv"),
        ("lines", "--name lines.gz --record 2"),
        ("sales.parquet", "--piece 64KiB"),
    ] {
        folder.run(&format!("store put {file} --node {named} {words} --quiet")).ok();
    }
    for (words, expected) in [
        ("store:lines --resume", "--resume does not work with --node"),
        ("store:lines --record 2", "load it again with store put --record 2"),
        ("store:hundreds", "records of 100 bytes"),
        ("store:hundreds --record 7", "do not end with records of 7 bytes"),
        ("store:lines.gz --record 2", "its name says that it is compressed"),
        ("store:packed", "compressed as a whole"),
        ("store:packed.csv --key a", "compressed as a whole"),
        ("store:sales.parquet", "give them with --key"),
        ("store:sales.parquet --record 4", "do not end with records of 4 bytes"),
        ("store:sales.parquet --key nome", "'nome'"),
        ("store:table.csv store:other.csv --key a", "its columns differ from those of the first file"),
        ("store:nothing", "not found on any of the nodes"),
        ("store:lines -o -  --json", "both use standard output"),
        ("store:lines --node-memory 4MiB", "sorting cannot work in 4 MiB"),
        ("store:lines --memory 1MiB", "answers of nodes"),
    ] {
        let output = if words.contains("-o -") { "" } else { "-o out.csv" };
        let said = folder.run(&format!("sort {words} {output} --node {named}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(!folder.path("out.csv").exists(), "{words}");
    }
    // The file was put with records of 100 bytes. Each of them consists of fifty records of two bytes, so this sort is
    // allowed.
    folder.run(&format!("sort store:hundreds --record 2 -o out.bin --node {named}")).ok();
    assert!(folder.read("out.bin") == "a\n".repeat(50_000) + &"b\n".repeat(50_000));
    // Several files are sorted as one input, in the order in which they are named.
    folder.run(&format!("sort store:table.csv store:table.csv --key a -u -o out.csv --node {named}")).ok();
    assert_eq!(folder.read("out.csv"), "a,b\n1,2\n3,4\n");
    folder.write("empty", "");
    folder.run(&format!("store put empty --node {named} --quiet")).ok();
    folder.run(&format!("sort store:empty -o none --node {named} --quiet")).ok();
    assert_eq!(folder.read("none"), "");
}
