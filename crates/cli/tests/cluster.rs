//! Tests of `cluster`: jobs whose nodes exchange rows.
//!
//! The result of each job is compared with that of the same operation on one machine. After each job, the nodes must
//! have returned all memory and all scratch space, also after kills of nodes and of the client.

use std::{
    fs,
    process::Child,
    time::{Duration, Instant},
};

use inshore::{
    nodes::{ClientConfig, Nodes, RunOptions},
    ops::{Attachments, OnNodes, Target, named as operation},
    store::{Budget, Cancel, Execution, Store},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    kernels,
    nodes::Node,
    util::{CommandOutput, Folder, until},
};

/// The time after which a living node must have noticed that its client or another node was killed: two keepalive
/// intervals, and the delay of a busy machine.
pub const NOTICED: Duration = Duration::from_secs(25);

/// A random number generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns `count` lines of different lengths. About a tenth of the lines occurs several times.
fn lines(count: u64, seed: u64) -> String {
    let mut random = Random(seed);
    let line = |_| match random.below(10) {
        0 => format!("twice {}\n", random.below(50)),
        1 => "\n".to_string(),
        _ => format!("{:x} and the rest of a line{}\n", random.next(), ".".repeat(random.below(40) as usize)),
    };
    (0..count).map(line).collect()
}

/// Returns `count` records of 100 bytes. The keys are the first 10 bytes, and about half of them occur twice.
fn records(count: u64, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let record = |number: u64| format!("{:010}{number:090}", random.below(count)).into_bytes();
    (0..count).flat_map(record).collect()
}

/// Sorts a file on this machine and its dataset `NAME` on nodes, and compares the results as a file and as a dataset.
fn check(folder: &Folder, named: &str, name: &str, words: &str) {
    folder.run(&format!("sort {name} -o here {words} --quiet")).ok();
    folder.run(&format!("cluster sort store:{name} -o there {words} --node {named}")).ok();
    folder.run(&format!("cluster sort store:{name} -o store:sorted {words} --node {named}")).ok();
    folder.run(&format!("store get sorted -o got --node {named} --quiet")).ok();
    folder.run(&format!("store rm sorted --node {named} --quiet")).ok();
    let read = |name: &str| fs::read(folder.path(name)).unwrap();
    let here = read("here");
    assert!(read("there") == here, "the file of {name} {words} differs");
    assert!(read("got") == here, "the dataset of {name} {words} differs");
    for name in ["here", "there", "got"] {
        fs::remove_file(folder.path(name)).unwrap();
    }
}

/// Returns what a job has left on nodes: running tasks, memory in use, and scratch folders. `stores` are the folders of
/// the nodes' stores.
fn left(folder: &Folder, named: &str, stores: &[String], credentials: &str) -> Vec<String> {
    let status = folder.run(&format!("node status --node {named} --json {credentials}")).ok().json();
    let mut left = Vec::new();
    for node in status.as_array().unwrap() {
        let status = &node["status"];
        let is_idle = status["running"].as_array().unwrap().is_empty() && status["memory_used_bytes"] == 0;
        if !is_idle {
            left.push(format!("{}: {} {}", node["address"], status["running"], status["memory_used_bytes"]));
        }
    }
    for store in stores {
        let Ok(entries) = fs::read_dir(folder.path(store).join("scratch")) else { continue };
        let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        left.extend(folders.map(|path| path.display().to_string()));
    }
    left
}

/// Starts nodes without a log: nobody reads their standard error, and a full pipe would stop them.
pub fn cluster(folder: &Folder, count: usize) -> (Vec<Node>, String) {
    let nodes: Vec<Node> =
        (0..count).map(|node| Node::start(folder, &format!("node{node}"), "--log none")).collect();
    let named = named(&nodes);
    (nodes, named)
}

pub fn named<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> String {
    nodes.into_iter().map(|node| node.address.as_str()).collect::<Vec<_>>().join(",")
}

pub fn stores(nodes: impl IntoIterator<Item = usize>) -> Vec<String> {
    nodes.into_iter().map(|node| format!("node{node}")).collect()
}

/// Asserts that nothing is left on nodes. The last messages of cancelled tasks may be on their way for a moment.
pub fn nothing_is_left(folder: &Folder, named: &str, stores: &[String], within: Duration) {
    nothing_is_left_with(folder, named, stores, "", within);
}

fn nothing_is_left_with(
    folder: &Folder,
    named: &str,
    stores: &[String],
    credentials: &str,
    within: Duration,
) {
    let began = Instant::now();
    loop {
        let left = left(folder, named, stores, credentials);
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < within, "left after {:?}: {left:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The time for tasks that a driver has cancelled to end.
pub const AT_ONCE: Duration = Duration::from_secs(3);

#[test]
fn lines_and_records_are_sorted_on_a_cluster_as_on_one_machine() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    folder.write("lines", lines(20_000, 1));
    folder.write("records", records(10_000, 2));
    folder.run(&format!("store put lines --node {named} --piece 64KiB --copies 2 --quiet")).ok();
    let put = format!("store put records --record 100 --copies 2 --piece 64KiB --node {named} --quiet");
    folder.run(&put).ok();
    for words in ["", "--reverse --unique"] {
        check(&folder, &named, "lines", words);
    }
    for words in ["--key-bytes 0..10", "--key-bytes 0..10 --unique", "-r --key-bytes 3..10", "-u -r"] {
        check(&folder, &named, "records", &format!("--record 100 {words}"));
    }
    nothing_is_left(&folder, &named, &stores(0..3), AT_ONCE);
}

#[test]
fn unusual_inputs_are_sorted_on_a_cluster_as_on_one_machine() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 2);
    let mut sorted: Vec<String> = lines(5_000, 3).lines().map(|line| format!("{line}\n")).collect();
    sorted.sort();
    for (name, content) in [
        ("empty", String::new()),
        ("one", "the only line, without an end".to_string()),
        ("equal", "all lines are equal\n".repeat(20_000)),
        ("ascending", sorted.concat()),
        ("descending", sorted.into_iter().rev().collect::<String>() + "and no end"),
        ("feeds", "\n".repeat(10_000)),
        ("long", (0..60).map(|n| format!("{}{n}\n", "long ".repeat(1000 * (n % 7)))).collect()),
    ] {
        folder.write(name, content);
        folder.run(&format!("store put {name} --node {named} --piece 64KiB --quiet")).ok();
        for words in ["", "--unique -r"] {
            check(&folder, &named, name, words);
        }
    }
    // The input lies on one node, and another node has only an exchange of rows to do.
    folder.write("single", lines(3_000, 4));
    let (first, second) = (&nodes[0].address, &nodes[1].address);
    folder.run(&format!("store put single --node {first} --quiet")).ok();
    check(&folder, first, "single", "");
    check(&folder, &format!("{second},{first}"), "single", "");
    // The keys are so long that the nodes would refuse a request with whole keys.
    let mut random = Random(10);
    let wide = |_| format!("{:059990}{:010}", random.below(3), random.below(1 << 30)).into_bytes();
    folder.write("wide", (0..120).flat_map(wide).collect::<Vec<u8>>());
    folder.run(&format!("store put wide --record 60000 --piece 512KiB --node {named} --quiet")).ok();
    check(&folder, &named, "wide", "--record 60000");
    check(&folder, &named, "wide", "--record 60000 -r -u --key-bytes 0..59995");
    // Several inputs are one input, in the order of the command.
    folder.run("sort equal descending -o here --quiet").ok();
    folder.run(&format!("cluster sort store:equal store:descending -o there --node {named}")).ok();
    assert!(folder.read("there") == folder.read("here"));
    nothing_is_left(&folder, &named, &stores(0..2), AT_ONCE);
}

#[test]
fn rows_that_exceed_the_memory_of_the_nodes_spill() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    folder.write("records", records(300_000, 5));
    let put = format!("store put records --record 100 --copies 2 --piece 1MiB --node {named} --quiet");
    folder.run(&put).ok();
    folder.run("sort records --record 100 --key-bytes 0..10 -o here --quiet").ok();
    let sort = format!("cluster sort store:records --record 100 --key-bytes 0..10 --node {named}");
    let said = folder.run(&format!("{sort} -o there --json")).ok().json();
    let read = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(read("there") == read("here"));
    let job = &said["summary"]["jobs"][0];
    let nodes = job["nodes"].as_array().unwrap();
    let sent: u64 = nodes.iter().map(|node| node["sent"].as_u64().unwrap()).sum();
    assert!(sent > 10_000_000, "{job}");
    // All rows have one of two keys, so a merge attempt reads half of the input, which does not fit in a slot.
    let record = |number: u64| format!("{:010}{number:090}", number % 2 * 1_000_000).into_bytes();
    folder.write("skewed", (0..300_000u64).flat_map(record).collect::<Vec<u8>>());
    let put = format!("store put skewed --record 100 --copies 2 --piece 1MiB --node {named} --quiet");
    folder.run(&put).ok();
    folder.run("sort skewed --record 100 --key-bytes 0..10 -o here --quiet").ok();
    let sort = sort.replace("records", "skewed");
    folder.run(&format!("{sort} -o there --quiet")).ok();
    assert!(read("there") == read("here"));
    nothing_is_left(&folder, &named, &stores(0..3), AT_ONCE);
}

#[test]
fn a_job_has_one_trace_id_in_its_report_and_in_the_logs_of_all_nodes() {
    let folder = Folder::new();
    let mut nodes: Vec<Node> =
        (0..3).map(|number| Node::start(&folder, &format!("node{number}"), "--log json")).collect();
    let named = nodes.iter().map(|node| node.address.clone()).collect::<Vec<_>>().join(",");
    folder.write("lines", lines(20_000, 6));
    folder.run(&format!("store put lines --node {named} --piece 64KiB --quiet")).ok();
    let said =
        folder.run(&format!("cluster sort store:lines -o store:sorted --node {named} --json")).ok().json();
    let trace = said["summary"]["jobs"][0]["trace"].as_str().unwrap().to_string();
    assert!(trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
    let mut actions = std::collections::BTreeSet::new();
    for node in &mut nodes {
        let log = node.stop();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        for line in lines.filter(|line| line["message"] == "audit") {
            let action = line["action"].as_str().unwrap();
            // The check of the name of the result precedes the job.
            match action.starts_with("stage-") && (action != "stage-publish" || !line["trace"].is_null()) {
                true => assert_eq!(line["trace"], trace.as_str(), "{line}"),
                false => assert!(line["trace"].is_null(), "{line}"),
            }
            actions.insert(action.to_string());
        }
    }
    for action in ["stage-session", "stage-attempt", "stage-ranges", "stage-publish"] {
        assert!(actions.contains(action), "{actions:?}");
    }
}

#[test]
fn jobs_that_a_cluster_cannot_do_are_refused_by_name() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    folder.write("lines", lines(8_000, 6));
    folder.run(&format!("store put lines --node {named} --piece 64KiB --quiet")).ok();
    folder.run(&format!("store put lines --name taken --node {named} --quiet")).ok();
    for (words, expected) in [
        ("store:lines -o out".to_string(), "no nodes are given: use --node"),
        (format!("store:lines -o out --partial --node {named}"), "--partial does not work"),
        (format!("store:lines -o store:taken --node {named}"), "taken"),
        (format!("store:absent -o out --node {named}"), "absent"),
        (format!("store:lines -o out --node {named} --node-memory 8MiB"), "--node-memory"),
        (format!("store:lines -o out --node {named} --node-memory 1GiB"), "memory"),
        (format!("store:lines -o absent/out --node {named}"), "absent/out"),
        (format!("store:lines --record 7 -o out --node {named}"), "7"),
        (format!("store:lines -o store:a/b/c --node {named}"), "a/b/c"),
    ] {
        let began = Instant::now();
        let said = folder.run(&format!("cluster sort {words}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(began.elapsed() < Duration::from_secs(20), "{words}: {:?}", began.elapsed());
        assert!(!folder.path("out").exists(), "{words}");
    }
    nothing_is_left(&folder, &named, &stores(0..3), AT_ONCE);
    nodes[1].send(Signal::KILL);
    let said = folder.run(&format!("cluster sort store:lines -o out --node {named}")).exits(2);
    assert!(said.stderr.contains(&nodes[1].address) && said.stderr.contains("lines"), "{}", said.stderr);
    assert!(!said.stderr.contains("--partial"), "it is refused: {}", said.stderr);
    let living = format!("{},{}", nodes[0].address, nodes[2].address);
    nothing_is_left(&folder, &living, &stores([0, 2]), AT_ONCE);
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

/// Four nodes with two copies of the dataset `records`, and the locally sorted records in the file `here`.
fn four_nodes(folder: &Folder, count: u64) -> Vec<Node> {
    let (nodes, named) = cluster(folder, 4);
    folder.write("records", records(count, 7));
    let put = format!("store put records --record 100 --copies 2 --piece 256KiB --node {named} --quiet");
    folder.run(&put).ok();
    folder.run("sort records --record 100 --key-bytes 0..10 -o here --quiet").ok();
    nodes
}

const SORT: &str = "cluster sort store:records --record 100 --key-bytes 0..10 --deadline 60";

/// Kills or suspends a random node at a random time of a job.
#[test]
fn a_killed_or_suspended_node_costs_no_result_without_an_error_that_names_it() {
    let folder = Folder::new();
    let mut nodes = four_nodes(&folder, 60_000);
    let here = fs::read(folder.path("here")).unwrap();
    let began = Instant::now();
    let whole = Instant::now();
    folder.run(&format!("{SORT} -o there --node {} --quiet", named(&nodes))).ok();
    let whole = whole.elapsed();
    let seed = std::env::var("INSHORE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed} (set INSHORE_TEST_SEED to repeat it), {whole:?} without a fault");
    let mut random = Random(seed);
    let (mut results, mut runs) = (0, 0);
    while runs < 12 && began.elapsed() < Duration::from_secs(60) {
        let delay = Duration::from_micros(random.below(whole.as_micros() as u64));
        let (hit, kills) = (random.below(4) as usize, random.below(3) > 0);
        let to_dataset = random.below(3) == 0;
        let output = if to_dataset { "store:sorted" } else { "there" };
        let all = named(&nodes);
        let what = format!("run {runs}: node {hit} after {delay:?}, killed: {kills}, -o {output}");
        let child = folder.run(&format!("{SORT} -o {output} --node {all} --json")).spawn();
        std::thread::sleep(delay);
        nodes[hit].send(if kills { Signal::KILL } else { Signal::STOP });
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr).to_string();
        println!("{what}: {:?} {stderr}", ended.status.code());
        let living: Vec<usize> = (0..4).filter(|&node| node != hit).collect();
        let others = named(living.iter().map(|&node| &nodes[node]));
        // A client that has ended normally has closed its connections. Other nodes may wait for a suspended one.
        nothing_is_left(&folder, &others, &stores(living), if kills { AT_ONCE } else { NOTICED });
        if !kills {
            nodes[hit].send(Signal::CONT);
        }
        if kills {
            nodes[hit] = Node::start(&folder, &format!("node{hit}"), "--log none");
        }
        let all = named(&nodes);
        if ended.status.success() {
            results += 1;
            if to_dataset {
                folder.run(&format!("store get sorted -o there --node {all} --quiet")).ok();
            }
            assert!(fs::read(folder.path("there")).unwrap() == here, "{what}: the result differs");
        } else {
            let names = stderr.contains("node ") || stderr.contains("store:") || stderr.contains("deadline");
            assert!(ended.status.code() == Some(2) && names, "{what}: {ended:?}");
        }
        let _ = fs::remove_file(folder.path("there"));
        // The dataset may be on some nodes after a failure.
        folder.run(&format!("store rm sorted --node {all} --quiet")).ends();
        runs += 1;
    }
    println!("{results} results in {runs} runs, {:?}", began.elapsed());
    assert!(runs >= 3 && results > 0, "{results} results in {runs} runs");
}

/// Waits until a session runs on a node, and returns the names of all running tasks.
pub fn wait_for_session(folder: &Folder, node: &Node) {
    until("no session opens", || {
        let status = folder.run(&format!("node status --node {} --json", node.address)).ok().json();
        let running = status[0]["status"]["running"].as_array().unwrap().clone();
        running.iter().any(|task| task["kind"] == "stage-session")
    });
}

#[test]
fn a_node_that_is_killed_in_an_exchange_costs_no_result() {
    let folder = Folder::new();
    let nodes = four_nodes(&folder, 300_000);
    let child = folder.run(&format!("{SORT} -o there --node {} --json", named(&nodes))).spawn();
    wait_for_session(&folder, &nodes[2]);
    nodes[2].send(Signal::KILL);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(folder.read("there") == folder.read("here"));
    let living = [0, 1, 3];
    nothing_is_left(&folder, &named(living.map(|node| &nodes[node])), &stores(living), AT_ONCE);
}

#[test]
fn a_client_that_is_killed_leaves_nothing_on_the_nodes() {
    let folder = Folder::new();
    let nodes = four_nodes(&folder, 300_000);
    let all = named(&nodes);
    for output in ["there", "store:sorted"] {
        let mut child = folder.run(&format!("{SORT} -o {output} --node {all} --json")).spawn();
        wait_for_session(&folder, &nodes[3]);
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        nothing_is_left(&folder, &all, &stores(0..4), NOTICED);
        let listed = folder.run(&format!("store ls --node {all} --json")).ok().json();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    }
    // The same job runs afterwards.
    folder.run(&format!("{SORT} -o there --node {all} --quiet")).ok();
    assert!(folder.read("there") == folder.read("here"));
}

#[test]
fn a_signal_stops_a_job_on_a_cluster() {
    let folder = Folder::new();
    let nodes = four_nodes(&folder, 300_000);
    let all = named(&nodes);
    let child = folder.run(&format!("{SORT} -o there --node {all} --json")).spawn();
    wait_for_session(&folder, &nodes[0]);
    let sent = Instant::now();
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    assert!(!folder.path("there").exists());
    nothing_is_left(&folder, &all, &stores(0..4), AT_ONCE);
    // A deadline stops the job as a signal does.
    let said = folder.run(&format!("{} -o there --node {all}", SORT.replace("60", "0.2"))).exits(2);
    assert!(said.stderr.contains("deadline"), "{}", said.stderr);
    nothing_is_left(&folder, &all, &stores(0..4), AT_ONCE);
}

#[test]
fn jobs_share_the_memory_of_nodes_in_turn() {
    let folder = Folder::new();
    let nodes = four_nodes(&folder, 50_000);
    let all = named(&nodes);
    let job = |number: usize| folder.run(&format!("{SORT} -o there{number} --node {all} --quiet")).spawn();
    let jobs: Vec<Child> = (0..4).map(job).collect();
    for (number, child) in jobs.into_iter().enumerate() {
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{number}: {}", String::from_utf8_lossy(&ended.stderr));
        assert!(folder.read(&format!("there{number}")) == folder.read("here"), "{number}");
    }
    nothing_is_left(&folder, &all, &stores(0..4), AT_ONCE);
}

#[test]
fn a_full_node_ends_a_job_with_a_result_or_an_error_that_names_it() {
    let folder = Folder::new();
    folder.run("store init node0 --size 40MiB").ok();
    let (nodes, all) = cluster(&folder, 3);
    folder.write("records", records(150_000, 8));
    let put = format!("store put records --record 100 --copies 2 --piece 2MiB --node {all} --quiet");
    folder.run(&put).ok();
    folder.run("sort records --record 100 --key-bytes 0..10 -o here --quiet").ok();
    let ended = folder.run(&format!("{SORT} -o there --node {all}")).ends();
    println!("one full node: {ended:?}");
    let named_error = |(code, said): (Option<i32>, CommandOutput)| {
        assert!(code == Some(2) && said.stderr.contains(&nodes[0].address), "{code:?}: {}", said.stderr);
    };
    match ended {
        (Some(0), _) => assert!(folder.read("there") == folder.read("here")),
        ended => named_error(ended),
    }
    let ended = folder.run(&format!("{SORT} -o store:sorted --node {all}")).ends();
    println!("a dataset on a full node: {ended:?}");
    let listed = folder.run(&format!("store ls --node {all} --json")).ok().json();
    match ended {
        (Some(0), _) => {
            folder.run(&format!("store get sorted -o there --node {all} --quiet")).ok();
            assert!(folder.read("there") == folder.read("here"));
        }
        ended => {
            named_error(ended);
            assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        }
    }
    nothing_is_left(&folder, &all, &stores(0..3), AT_ONCE);
}

#[test]
fn a_job_needs_the_rights_to_run_and_to_write() {
    let folder = Folder::new();
    for node in ["a", "b"] {
        folder.run(&format!("node credentials keys --for-node {node} --address 127.0.0.1")).ok();
    }
    for rights in ["read,run,write", "read,run", "read,write", "read"] {
        let name = rights.replace(',', "-");
        folder.run(&format!("node credentials keys --for-client {name} --rights {rights}")).ok();
    }
    let start = |store: &str, node: &str| {
        Node::start(&folder, store, &format!("--log none --name {node} --credentials keys/node-{node}.json"))
    };
    let nodes = [start("node0", "a"), start("node1", "b")];
    let all = named(&nodes);
    folder.write("lines", lines(9_000, 9));
    folder.run("sort lines -o here --quiet").ok();
    let by = |client: &str| format!("--node {all} --credentials keys/client-{client}.json");
    folder.run(&format!("store put lines --piece 64KiB {} --quiet", by("read-run-write"))).ok();
    let sort = |client: &str, output: &str| {
        folder.run(&format!("cluster sort store:lines -o {output} {} --quiet", by(client)))
    };
    sort("read-run-write", "store:sorted").ok();
    folder.run(&format!("store get sorted -o got {} --quiet", by("read"))).ok();
    sort("read-run", "there").ok();
    assert!(folder.read("there") == folder.read("here") && folder.read("got") == folder.read("here"));
    fs::remove_file(folder.path("there")).unwrap();
    for (client, output, expected) in [
        ("read-run", "store:again", "read-run has no right to write"),
        ("read-write", "there", "read-write has no right to run"),
        ("read", "there", "read has no right to run"),
        ("read-write", "store:again", "read-write has no right to run"),
    ] {
        let said = sort(client, output).exits(2);
        assert!(said.stderr.contains(expected), "{client} {output}: {}", said.stderr);
        assert!(!folder.path("there").exists(), "{client} {output}");
    }
    let status = "--credentials keys/client-read.json".to_string();
    nothing_is_left_with(&folder, &all, &stores(0..2), &status, AT_ONCE);
}

#[test]
fn the_status_of_a_cluster_tells_which_nodes_run_stages() {
    let folder = Folder::new();
    let (nodes, all) = cluster(&folder, 2);
    let status = |words: &str| folder.run(&format!("cluster status {words}"));
    let table = status(&format!("--node {all}")).ok().stdout;
    for expected in ["version", env!("CARGO_PKG_VERSION"), "0/2", "64 MiB", "runs stages", &*nodes[1].address]
    {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    assert_eq!(table.lines().filter(|line| line.trim_end().ends_with("yes")).count(), 2, "{table}");
    let told = status(&format!("--node {all} --json")).ok().json();
    let plain = folder.run(&format!("node status --node {all} --json")).ok().json();
    for (told, plain) in told.as_array().unwrap().iter().zip(plain.as_array().unwrap()) {
        assert_eq!((&told["runs_stages"], &told["node"]), (&json!(true), &plain["node"]));
        for field in ["program", "kinds", "slots", "memory_bytes", "capacity_bytes"] {
            assert!(told["status"][field] == plain["status"][field] && !told["status"][field].is_null());
        }
        assert_eq!(plain.get("runs_stages"), None, "{plain}");
    }
    assert!(status("").exits(2).stderr.contains("no nodes are given: use --node"));
    nodes[1].send(Signal::KILL);
    let said = status(&format!("--node {all}")).exits(1);
    assert!(said.stderr.contains(&nodes[1].address) && said.stdout.contains(&nodes[0].address), "{said:?}");
    let told = status(&format!("--node {all} --json")).exits(1).json();
    assert!(told[0]["runs_stages"] == true && told[1]["error"].is_string(), "{told}");
}

/// The command has no form for these requests: its `--node` stands for nodes.
#[test]
fn requests_without_an_exchange_of_rows_run_on_a_cluster_as_on_nodes() {
    let Some(folder) = kernels::folder() else { return };
    let start = |number| Node::start(&folder, &format!("node{number}"), "--log none --allow wc");
    let nodes: Vec<Node> = (0..3).map(start).collect();
    let all = named(&nodes);
    folder.write("lines", lines(9_000, 11));
    folder.run(&format!("store put lines --node {all} --piece 64KiB --copies 2 --quiet")).ok();
    folder.run(&format!("kernel push lines.wasm --node {all} --quiet")).ok();
    let store = Store::open(folder.path("here")).unwrap();
    let run = |is_cluster: bool, request: &Value, output: Option<&str>| {
        let config = ClientConfig::new(all.split(',').map(str::to_string).collect(), None);
        let on = OnNodes { nodes: Nodes::new(config).unwrap(), options: RunOptions::default() };
        let target = if is_cluster { Target::Cluster(on) } else { Target::Nodes(on) };
        let mut request = request.clone();
        request["version"] = json!(1);
        if let Some(output) = output {
            request["output"] = json!(folder.path(output));
        }
        let job = Execution::Stored(store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap());
        let attachments = Attachments::default();
        let answer = operation(&request).unwrap().run(&request, &target, &job, attachments).unwrap();
        (answer, output.map(|output| fs::read(folder.path(output)).unwrap()))
    };
    for (request, output, fields) in [
        (json!({ "operation": "search", "patterns": ["ff"], "inputs": ["lines"] }), Some("csv"), "lines"),
        (json!({ "operation": "count words", "inputs": ["lines"] }), Some("parquet"), "words"),
        (json!({ "operation": "checksum", "inputs": ["lines"] }), None, "files"),
        (json!({ "operation": "node run", "program": "wc", "args": ["-l"] }), Some("txt"), "responses"),
        (json!({ "operation": "kernel ls", "inputs": [] }), None, "kernels"),
        (json!({ "operation": "store ls", "inputs": [] }), None, "datasets"),
    ] {
        let there = |is_cluster: bool| {
            let name = output.map(|ending| format!("{is_cluster}.{ending}"));
            run(is_cluster, &request, name.as_deref())
        };
        let ((on_nodes, rows), (on_cluster, found)) = (there(false), there(true));
        assert!(rows == found, "{request}");
        match request["operation"].as_str() {
            // The times of the processes differ.
            Some("node run") => assert_eq!(on_cluster[fields].as_array().unwrap().len(), 3, "{on_cluster}"),
            _ => assert_eq!(on_cluster[fields], on_nodes[fields], "{request}"),
        }
        assert!(!on_cluster[fields].is_null() && on_cluster["jobs"].is_null(), "{request}: {on_cluster}");
    }
    let (removed, _) = run(true, &json!({ "operation": "kernel rm", "inputs": ["lines"] }), None);
    assert_eq!(removed, json!({ "removed": ["lines"], "holders": [3] }));
    nothing_is_left(&folder, &all, &stores(0..3), AT_ONCE);
}
