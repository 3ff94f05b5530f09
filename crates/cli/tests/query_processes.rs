//! Tests of query fragments, which nodes run in child processes. If a fragment fails, only its task fails, and the node
//! goes on.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    memory::Cgroup,
    nodes::Node,
    util::{Folder, PATIENCE, Run, children, parent, until},
};

/// Waits until a node has `count` child processes, and returns their ids.
fn wait_for_children(node: &Node, count: usize) -> Vec<u32> {
    let began = Instant::now();
    loop {
        let found = children(node.id());
        if found.len() == count {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{found:?}");
        sleep(Duration::from_millis(2));
    }
}

fn peak_bytes(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Starts a node, and puts a table of groups and texts onto the node.
fn node(folder: &Folder, words: &str) -> Node {
    let node = Node::start_with(folder, "store", "192MiB", words);
    let row = |row: usize| format!("{},{}{}\n", row % 2000, "abcdefghij".repeat(5), row % 1000);
    folder.write("t.csv", "g,s\n".to_string() + &(0..100_000).map(row).collect::<String>());
    folder.run(&format!("store put t.csv --node {} --quiet", node.address)).ok();
    node
}

/// Creates a query whose fragments all run on the node. Without `--only-nodes`, the client would run some of the
/// fragments itself if the machine is busy.
fn ask(folder: &Folder, node: &Node, query: &str) -> Run {
    folder.write("q.sql", query);
    folder.run(&format!("sql --file q.sql --table t=store:t.csv --node {} --only-nodes", node.address))
}

const EASY: &str = "SELECT count(*), sum(length(s)) FROM t WHERE g < 1000";

/// Returns a query with twenty terms, each of which takes quadratic time. The query takes minutes on any machine.
fn slow() -> String {
    let term = |number: u32| {
        format!("length(regexp_replace(repeat(s, 9) || '{number}', '[a-j0-9]*Q|[a-j0-9]', '', 'g'))")
    };
    format!("SELECT sum({}) FROM t", (0..20).map(term).collect::<Vec<_>>().join(" + "))
}

/// Returns a query that needs 2 MiB for each batch and column, and 400 MiB in all.
fn large() -> String {
    let column = |number| format!("repeat(substr(s, {}), {})", number % 40 + 1, 6 + number / 40);
    let columns: Vec<String> = (0..200).map(column).collect();
    format!("SELECT {} FROM t WHERE g < 1000", columns.join(", "))
}

#[test]
fn a_fragment_that_takes_too_much_memory_ends_alone() {
    let folder = Folder::new();
    let mut node = node(&folder, "");
    let easy = ask(&folder, &node, EASY).ok().stdout;
    let said = ask(&folder, &node, &large()).exits(2);
    assert!(said.stderr.contains("it wanted more memory than the"), "{}", said.stderr);
    wait_for_children(&node, 0);
    assert!(peak_bytes(&node) < 128 << 20, "{}", peak_bytes(&node));
    // In some of these queries, functions have small inputs and large results. In others, a batch of text exceeds the
    // limit of the query library.
    for query in [
        "SELECT repeat('x', g * 1000000) FROM t",
        "SELECT count(*) FROM t WHERE lpad('x', g * 1000000) > 'a'",
        "SELECT count(*) FROM t WHERE repeat(s, 100000) < 'b'",
        "SELECT count(*) FROM t WHERE s LIKE repeat('a', 3000000) || '_b'",
        "SELECT s, repeat(arrow_cast('x', 'LargeUtf8'), 4000000000000) FROM t",
        "SELECT repeat('x', 1000000), s FROM t",
    ] {
        let said = ask(&folder, &node, query).exits(2);
        let is_told =
            ["it wanted more memory than the", "needs more memory than it was given", "more than 2 GiB"];
        assert!(is_told.iter().any(|told| said.stderr.contains(told)), "{query}: {}", said.stderr);
        wait_for_children(&node, 0);
    }
    assert!(peak_bytes(&node) < 128 << 20, "{}", peak_bytes(&node));
    assert_eq!(ask(&folder, &node, EASY).ok().stdout, easy);
    let log = node.stop();
    assert!(log.contains("it wanted more memory than the"), "{log}");
}

#[test]
fn a_node_whose_fragments_take_too_much_keeps_to_its_memory() {
    let folder = Folder::new();
    let node = node(&folder, "");
    match Cgroup::new("apart", (192 + 96) << 20) {
        Some(group) => {
            group.add(node.id());
            folder.write("large.sql", large());
            let words =
                format!("sql --file large.sql --table t=store:t.csv --node {} --only-nodes", node.address);
            for _ in 0..3 {
                let clients = [0; 3].map(|_| folder.run(&words).spawn());
                for client in clients {
                    let said = client.wait_with_output().unwrap();
                    let errors = String::from_utf8_lossy(&said.stderr);
                    let is_told =
                        errors.contains("it wanted more memory") || errors.contains("it was killed");
                    assert!(said.status.code() == Some(2) && is_told, "{errors}");
                }
            }
            ask(&folder, &node, EASY).ok();
            assert!(peak_bytes(&node) < 128 << 20, "{}", peak_bytes(&node));
            drop(node);
        }
        None => println!("skipped: no memory cgroup can be made here"),
    }
}

#[test]
fn a_fragment_that_does_not_end_is_ended_at_the_deadline() {
    let folder = Folder::new();
    let node = node(&folder, "--task-deadline 2");
    let began = Instant::now();
    let said = ask(&folder, &node, &slow()).exits(2);
    assert!(said.stderr.contains("deadline"), "{}", said.stderr);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    wait_for_children(&node, 0);
    ask(&folder, &node, EASY).ok();
}

#[test]
fn a_fragment_ends_with_its_client_and_its_node() {
    let folder = Folder::new();
    let mut node = node(&folder, "--log none");
    let mut client = ask(&folder, &node, &slow()).spawn();
    wait_for_children(&node, 1);
    client.kill().unwrap();
    client.wait().unwrap();
    wait_for_children(&node, 0);
    let mut client = ask(&folder, &node, &slow()).spawn();
    let pids = wait_for_children(&node, 1);
    node.send(Signal::KILL);
    until("it outlives its node", || parent(pids[0]).is_none());
    assert!(!client.wait().unwrap().success());
    // The extents of the killed process are free again, so that a new node can use this store.
    drop(node);
    node = Node::start_with(&folder, "store", "192MiB", "--log none");
    ask(&folder, &node, EASY).ok();
    node.stop();
}

#[test]
fn a_fragment_that_is_killed_is_an_error_that_says_so() {
    let folder = Folder::new();
    let node = node(&folder, "");
    let client = ask(&folder, &node, &slow()).spawn();
    let pids = wait_for_children(&node, 1);
    kill_process(Pid::from_raw(pids[0] as i32).unwrap(), Signal::KILL).unwrap();
    let said = client.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(2) && errors.contains("it was killed"), "{errors}");
    ask(&folder, &node, EASY).ok();
}
