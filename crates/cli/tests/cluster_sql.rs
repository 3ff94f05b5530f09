//! Tests of `cluster sql` and `cluster reduce`: queries whose rows meet on the nodes, in child processes.

use std::{fs, time::Duration};

use rustix::process::Signal;

use crate::{
    cluster::{AT_ONCE, named, nothing_is_left, stores, wait_for_session},
    nodes::Node,
    util::Folder,
};

const JOIN: &str = "SELECT town, size, count(*) n, sum(number) s FROM SALES JOIN SHOPS USING (shop)
    WHERE number % 3 > 0 GROUP BY town, size HAVING count(*) > 5 ORDER BY s DESC, town";
const PAIRS: &str =
    "SELECT one.id a, other.id b, rank() OVER (PARTITION BY one.shop ORDER BY one.id, other.id) r
    FROM SALES one JOIN SALES other ON one.number = other.id ORDER BY a, b";

/// Starts nodes with this memory, and loads two tables of which the first one has `rows` rows.
fn tables(folder: &Folder, count: usize, memory: &str, rows: usize) -> Vec<Node> {
    let start = |node: usize| Node::start_with(folder, &format!("node{node}"), memory, "--log none");
    let nodes: Vec<Node> = (0..count).map(start).collect();
    let sale = |id: usize| format!("{id},{},{}\n", id * 7919 % 701, id * 104_729 % rows);
    folder.write("sales.csv", "id,shop,number\n".to_string() + &(0..rows).map(sale).collect::<String>());
    let shop = |shop: usize| format!("{shop},town {},{}\n", shop % 40, ["big", "small"][shop % 2]);
    folder.write("shops.csv", "shop,town,size\n".to_string() + &(0..900).map(shop).collect::<String>());
    let all = named(&nodes);
    for table in ["sales.csv", "shops.csv"] {
        folder.run(&format!("store put {table} --copies 2 --piece 128KiB --node {all} --quiet")).ok();
    }
    nodes
}

/// Writes a query with the names of tables on this machine and on nodes.
fn write_query(folder: &Folder, query: &str) {
    let with = |prefix: &str| {
        query
            .replace("SALES", &format!("'{prefix}sales.csv'"))
            .replace("SHOPS", &format!("'{prefix}shops.csv'"))
    };
    folder.write("here.sql", with(""));
    folder.write("there.sql", with("store:"));
    folder.run("sql --file here.sql -o here.csv --quiet").ok();
}

#[test]
fn queries_give_the_rows_of_one_machine() {
    let folder = Folder::new();
    let nodes = tables(&folder, 3, "320MiB", 30_000);
    let all = named(&nodes);
    for query in [JOIN, PAIRS] {
        write_query(&folder, query);
        let said =
            folder.run(&format!("cluster sql --file there.sql -o there.csv --node {all} --json")).ok().json();
        assert!(folder.read("there.csv") == folder.read("here.csv"), "{query}");
        let job = &said["summary"]["jobs"][0];
        let names: Vec<&str> =
            job["stages"].as_array().unwrap().iter().map(|stage| stage["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"join") && names.contains(&"map store:sales.csv"), "{names:?}");
        let sent: u64 =
            job["nodes"].as_array().unwrap().iter().map(|node| node["sent"].as_u64().unwrap()).sum();
        assert!(sent > 10_000, "{job}");
    }
    let reduce = "--by shop --sum number --count -o";
    folder.run(&format!("reduce sales.csv {reduce} here.csv --quiet")).ok();
    let said = folder
        .run(&format!("cluster reduce store:sales.csv {reduce} there.csv --node {all} --json"))
        .ok()
        .json();
    assert!(folder.read("there.csv") == folder.read("here.csv"));
    assert_eq!(said["summary"]["jobs"][0]["stages"][1]["name"], "group");
    nothing_is_left(&folder, &all, &stores(0..3), AT_ONCE);
}

#[test]
fn a_query_that_takes_too_much_memory_ends_its_attempts_and_no_node() {
    let folder = Folder::new();
    let nodes = tables(&folder, 2, "256MiB", 4_000);
    let all = named(&nodes);
    let query = "SELECT shop, max(length(repeat(town, 1000000 + shop))) FROM 'store:shops.csv' GROUP BY shop";
    folder.write("large.sql", query);
    let said = folder.run(&format!("cluster sql --file large.sql -o there.csv --node {all}")).exits(2);
    assert!(said.stderr.contains("memory") && said.stderr.contains("node "), "{}", said.stderr);
    assert!(!folder.path("there.csv").exists());
    nothing_is_left(&folder, &all, &stores(0..2), AT_ONCE);
    write_query(&folder, JOIN);
    folder.run(&format!("cluster sql --file there.sql -o there.csv --node {all} --quiet")).ok();
    assert!(folder.read("there.csv") == folder.read("here.csv"));
}

#[test]
fn a_node_that_is_killed_in_a_query_costs_no_result() {
    let folder = Folder::new();
    let mut nodes = tables(&folder, 4, "320MiB", 60_000);
    write_query(&folder, PAIRS);
    for (hit, delay) in [(1, 0), (2, 300), (3, 900)] {
        let all = named(&nodes);
        let query = format!("cluster sql --file there.sql -o there.csv --node {all} --deadline 100 --json");
        let child = folder.run(&query).spawn();
        wait_for_session(&folder, &nodes[hit]);
        std::thread::sleep(Duration::from_millis(delay));
        nodes[hit].send(Signal::KILL);
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{hit}: {}", String::from_utf8_lossy(&ended.stderr));
        assert!(folder.read("there.csv") == folder.read("here.csv"), "{hit}");
        fs::remove_file(folder.path("there.csv")).unwrap();
        let living: Vec<usize> = (0..4).filter(|&node| node != hit).collect();
        let others = named(living.iter().map(|&node| &nodes[node]));
        nothing_is_left(&folder, &others, &stores(living), AT_ONCE);
        nodes[hit] = Node::start_with(&folder, &format!("node{hit}"), "320MiB", "--log none");
    }
}

#[test]
fn a_signal_stops_a_query_on_a_cluster() {
    let folder = Folder::new();
    let nodes = tables(&folder, 3, "320MiB", 60_000);
    let all = named(&nodes);
    write_query(&folder, PAIRS);
    let child = folder.run(&format!("cluster sql --file there.sql -o there.csv --node {all} --json")).spawn();
    wait_for_session(&folder, &nodes[0]);
    crate::cluster::signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!folder.path("there.csv").exists());
    nothing_is_left(&folder, &all, &stores(0..3), AT_ONCE);
}
