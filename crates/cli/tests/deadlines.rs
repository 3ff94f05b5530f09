//! Tests of `--deadline`: a command ends at its deadline, whatever it is doing.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    nodes::{Node, text},
    util::{CommandOutput, Folder, PATIENCE, Run},
};

/// Starts nodes with TLS. Returns the nodes, and the options of a client with credentials.
fn closed_cluster(folder: &Folder, count: usize) -> (Vec<Node>, String) {
    folder.run("node credentials keys --for-node n --address 127.0.0.1").ok();
    folder.run("node credentials keys --for-client c --rights read,run,write").ok();
    let words = "--credentials keys/node-n.json --log none";
    let nodes: Vec<Node> = (0..count).map(|n| Node::start(folder, &format!("node{n}"), words)).collect();
    let named: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let options = format!("--node {} --credentials keys/client-c.json", named.join(","));
    (nodes, options)
}

/// Asserts that the command fails at its deadline, and that its error names the deadline.
fn is_over(command: Run, seconds: f64) -> CommandOutput {
    let began = Instant::now();
    let said = command.exits(2);
    assert!(said.stderr.contains(&format!("the deadline of {seconds} s has passed")), "{}", said.stderr);
    assert!(began.elapsed() >= Duration::from_secs_f64(seconds), "{:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    said
}

#[test]
fn a_stopped_node_is_lost_at_its_silence_and_copies_make_up_for_it() {
    let folder = Folder::new();
    let (nodes, options) = closed_cluster(&folder, 3);
    folder.write("web.log", text());
    for words in ["safe --copies 2", "single"] {
        folder.run(&format!("store put web.log --piece 300KiB --quiet {options} --name {words}")).ok();
    }
    let ask = |name: &str, more: &str| folder.run(&format!("search -c ERROR store:{name} {options} {more}"));
    let right = ask("safe", "").ok();
    assert_eq!(right.stderr, "");
    nodes[2].send(Signal::STOP);
    // The operating system accepts the connection, but no server answers.
    let said = ask("safe", "--silence 2").ok();
    assert_eq!(said.stdout, right.stdout);
    let told: Vec<&str> = said.stderr.lines().collect();
    let expected = format!("note: node {} was lost", nodes[2].address);
    assert!(told.len() == 1 && told[0].starts_with(&expected), "{}", said.stderr);
    assert!(told[0].ends_with("; copies on other nodes were read"), "{}", said.stderr);
    let said = ask("single", "--silence 2").exits(2);
    assert!(said.stderr.contains("were not read") && said.stderr.contains(&nodes[2].address), "{said:?}");
    // The client waits for a connection for at most half of the time to the deadline. In the other half it can read
    // replicas.
    let said = ask("safe", "--silence 3600 --deadline 8").ok();
    assert_eq!(said.stdout, right.stdout);
    let status = folder.run(&format!("node status --silence 2 {options}")).exits(1);
    assert!(status.stdout.contains(&nodes[0].address), "{status:?}");
    assert!(status.stderr.contains(&nodes[2].address), "{status:?}");
    nodes[2].send(Signal::CONT);
    assert_eq!(ask("single", "").ok().stdout, right.stdout);
}

#[test]
fn a_command_on_a_node_that_stops_in_its_middle_is_over_at_its_deadline() {
    let folder = Folder::new();
    let node = Node::start(&folder, "node", "");
    let named = &node.address;
    folder.write("a.csv", "a\n1\n");
    folder.run(&format!("store put a.csv --node {named} --quiet")).ok();
    node.send(Signal::STOP);
    for words in
        ["search -c a store:a.csv", "sql -", "store put a.csv --name b --quiet", "store ls", "store rm a.csv"]
    {
        let words = format!("{words} --node {named} --silence 3600 --deadline 0.5");
        is_over(folder.run(&words).stdin("SELECT count(*) FROM 'store:a.csv'"), 0.5);
    }
    node.send(Signal::CONT);
}

#[test]
fn the_work_of_this_machine_is_over_at_the_deadline() {
    let folder = Folder::new();
    let node = Node::start(&folder, "node", "");
    let rows: String = (0..20_000).map(|n| format!("{n},x\n")).collect();
    folder.write("n.csv", format!("a,s\n{rows}"));
    folder.run(&format!("store put n.csv --node {} --quiet", node.address)).ok();
    let near = format!("--node {}", node.address);
    for (query, more) in [
        (
            "SELECT count(*) FROM generate_series(1,100000) a, generate_series(1,100000) b, generate_series(1,9)",
            "",
        ),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n > 0) SELECT count(*) FROM r",
            "",
        ),
        ("SELECT count(*) FROM 'store:n.csv' a, 'store:n.csv' b, 'store:n.csv' c", &*near),
    ] {
        is_over(folder.run(&format!("sql - --deadline 1 {more}")).stdin(query), 1.0);
    }
    // The deadline also applies to a job without nodes.
    is_over(folder.run("graph generate kronecker --scale 26 --name g --memory 16MiB --deadline 1"), 1.0);
}

#[test]
fn input_that_does_not_come_is_not_waited_for_beyond_the_deadline() {
    let folder = Folder::new();
    let node = Node::start(&folder, "node", "");
    let words = format!("store put - --name text --node {} --deadline 0.5", node.address);
    // The command's standard input is a pipe to which no process writes.
    let mut child = folder.run(&words).spawn();
    let pipe = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && stderr.contains("the deadline of 0.5 s has passed"),
        "{stderr}"
    );
    drop(pipe);
}

#[test]
fn a_process_that_gets_no_threads_or_no_memory_ends_with_an_error() {
    let folder = Folder::new();
    folder.write("l", text());
    let within = |words: &str, mib: u64| folder.run(words).with_address_space(mib << 10).ends();
    // This loop finds the smallest address space in which the program can start.
    let enough = (1..200).map(|step| step * 8).find(|&mib| within("--version", mib).0 == Some(0));
    let enough = enough.expect("the program is not that large");
    let mut failed = 0;
    for words in [
        "search -c 7 l --threads 64",
        "checksum l l l l l l l l --threads 64",
        "sort l -o s --memory 64MiB --threads 64 --quiet",
        "count words l -o w.csv --memory 64MiB --threads 64 --quiet",
        "sql - --memory 64MiB --threads 64 --quiet",
    ] {
        for more in [16, 32, 64, 128] {
            let limited = folder.run(words).with_address_space((enough + more) << 10);
            let (code, said) = limited.stdin("SELECT count(*) FROM generate_series(1, 1000)").ends();
            assert!(matches!(code, Some(0 | 2)), "{words}, {more} MiB more: {code:?} {said:?}");
            assert!(!said.stderr.contains("panicked"), "{words}, {more} MiB more: {said:?}");
            failed += usize::from(code == Some(2));
        }
    }
    assert!(failed > 0, "the limits are too high to say anything");
}
