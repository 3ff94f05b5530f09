//! Nodes as a user has them: agents in processes of their own, and commands that name them.

use std::{
    io::{BufRead, BufReader},
    process::Child,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::util::Folder;

/// An agent in a process of its own; killed where the test ends without stopping it.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    /// Starts one on a port that is free.
    fn start(folder: &Folder, store: &str, words: &str) -> Node {
        let serve = format!("node serve --store {store} --memory 64MiB --listen 127.0.0.1:0 --json {words}");
        let mut child = folder.run(&serve).spawn();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        Node { address: said["address"].as_str().unwrap().to_string(), child }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text() -> String {
    let line = |number: usize| match number % 11 {
        4 => format!("{number} ERROR: it broke {} times\n", number % 17),
        _ => format!("{number} all is well, as it was before {}\n", "and before ".repeat(number % 5)),
    };
    (0..60_000).map(line).collect()
}

fn cluster(folder: &Folder, count: usize) -> (Vec<Node>, String) {
    let nodes: Vec<Node> = (0..count).map(|n| Node::start(folder, &format!("node{n}"), "")).collect();
    let named = nodes.iter().map(|node| node.address.clone()).collect::<Vec<_>>().join(",");
    (nodes, named)
}

#[test]
fn a_search_on_nodes_prints_what_one_here_prints() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    folder.write("web.log", text());
    folder.run("store put web.log --quiet").ok();
    let said = folder.run(&format!("store put web.log --node {named} --piece 300KiB")).ok();
    assert!(said.stdout.starts_with("web.log: 3.") && said.stdout.contains("on 3 nodes"), "{}", said.stdout);
    let listed = folder.run(&format!("store ls --node {named} --json")).ok().json();
    assert_eq!(listed[0]["name"], "store:web.log");
    assert_eq!(listed[0]["nodes"].as_array().unwrap().len(), 3);
    for words in [
        "-n ERROR",
        "-c ERROR",
        "-o -b broke",
        "-n -C 2 10003.ERROR",
        "-l ERROR",
        "-v -c ERROR",
        "-i -m 5 error",
        "--json broke.1 ",
        "-q ERROR",
        "--count-matches before",
        "-n -A 1 -B 3 47.85",
        "-F -e well,|-e nothing",
        "nothing-of-this-kind",
    ] {
        let words = words.replace('|', " ");
        let here = folder.run(&format!("search {words} store:web.log"));
        let there = folder.run(&format!("search {words} store:web.log --node {named}"));
        let code = if words.contains("nothing-of") { 1 } else { 0 };
        let (here, there) = (here.exits(code), there.exits(code));
        let stable = |out: &str| -> String {
            out.lines()
                .filter(|line| !line.contains("elapsed_total"))
                .map(|line| line.split("\"elapsed\"").next().unwrap().to_string() + "\n")
                .collect()
        };
        assert_eq!(stable(&there.stdout), stable(&here.stdout), "{words}");
    }
    let said =
        folder.run(&format!("search ERROR store:web.log --node {named} -c --counters c.json --explain")).ok();
    assert!(said.stderr.contains("read") && said.stderr.contains("came here"), "{}", said.stderr);
    let counters: serde_json::Value = serde_json::from_str(&folder.read("c.json")).unwrap();
    let nodes = counters["summary"]["nodes"].as_array().unwrap();
    let read: u64 = nodes.iter().map(|node| node["bytes_read"].as_u64().unwrap()).sum();
    assert!(
        read as usize >= text().len() && counters["summary"]["bytes_moved"].as_u64().unwrap() < read / 20
    );
}

#[test]
fn words_are_counted_on_nodes_as_they_are_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    folder.write("web.log", text());
    folder.run(&format!("store put web.log --node {named} --piece 100KiB --quiet")).ok();
    for words in ["", "--split", "--ignore-case --min-count 3", "--split --top 3"] {
        let here = folder.run(&format!("count words web.log {words} -o here.csv")).ok();
        let there =
            folder.run(&format!("count words store:web.log {words} -o there.csv --node {named}")).ok();
        assert_eq!(folder.read("there.csv"), folder.read("here.csv"), "{words}");
        assert_eq!(there.stdout, here.stdout, "{words}");
    }
}

#[test]
fn what_was_put_on_nodes_comes_back_and_goes() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(7919) >> 5) as u8).collect();
    folder.write("blob", &bytes);
    folder.run(&format!("store put blob --node {named} --copies 2 --piece 64KiB --record 1000 --quiet")).ok();
    folder.run(&format!("store get blob --node {named} -o again --quiet")).ok();
    assert!(std::fs::read(folder.path("again")).unwrap() == bytes);
    let said = folder.run(&format!("store put blob --node {named}")).exits(2);
    assert!(said.stderr.contains("blob"), "{}", said.stderr);
    folder.run(&format!("store rm blob --node {named}")).ok();
    let said = folder.run(&format!("store get blob --node {named}")).exits(2);
    assert!(said.stderr.contains("on none of the nodes"), "{}", said.stderr);
    let said = folder.run(&format!("store put - --name piped --node {named} --quiet")).stdin("a\nb\n").ok();
    assert_eq!(said.stderr, "");
    assert_eq!(folder.run(&format!("store get piped --node {named} --quiet")).ok().stdout, "a\nb\n");
}

#[test]
fn a_killed_node_is_told_or_made_up_for() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    folder.write("web.log", text());
    folder
        .run(&format!("store put web.log --node {named} --piece 200KiB --copies 2 --name safe --quiet"))
        .ok();
    folder.run(&format!("store put web.log --node {named} --piece 200KiB --name single --quiet")).ok();
    let whole = folder.run(&format!("search -c ERROR store:safe --node {named}")).ok().stdout;
    nodes[1].send(Signal::KILL);
    assert_eq!(folder.run(&format!("search -c ERROR store:safe --node {named}")).ok().stdout, whole);
    let said = folder.run(&format!("search -c ERROR store:single --node {named}")).exits(2);
    assert!(
        said.stderr.contains(&nodes[1].address) && said.stderr.contains("were not read"),
        "{}",
        said.stderr
    );
    let said = folder.run(&format!("search -c ERROR store:single --node {named} --partial")).ok();
    assert!(said.stderr.contains("note: store:single: bytes"), "{}", said.stderr);
    let part: u64 = said.stdout.trim().parse().unwrap();
    assert!(part > 0 && part < whole.trim().parse().unwrap());
    let said = folder.run(&format!("node status --node {named}")).exits(1);
    assert!(said.stdout.lines().count() == 3 && said.stderr.contains(&nodes[1].address), "{}", said.stdout);
    // It comes back with all that it acknowledged.
    let again = Node::start(&folder, "node1", "");
    let named = named.replace(&nodes[1].address, &again.address);
    assert_eq!(folder.run(&format!("search -c ERROR store:single --node {named}")).ok().stdout, whole);
}

#[test]
fn nodes_with_credentials_serve_who_has_some() {
    let folder = Folder::new();
    let said = folder.run("node credentials keys --for-node a --address 127.0.0.1,a.lan").ok();
    assert_eq!(said.stdout, "keys/authority.json\nkeys/node-a.json\n");
    folder.run("node credentials keys --for-client ann --rights read,run,write").ok();
    folder.run("node credentials keys --for-client bob --rights read").ok();
    let said = folder.run("node credentials keys --for-client ann").exits(2);
    assert!(said.stderr.contains("exists"), "{}", said.stderr);
    let node = Node::start(&folder, "node0", "--credentials keys/node-a.json");
    let named = node.address.clone();
    folder.write("web.log", "an ERROR\n");
    let ann = format!("--node {named} --credentials keys/client-ann.json");
    folder.run(&format!("store put web.log --quiet {ann}")).ok();
    assert_eq!(folder.run(&format!("search ERROR store:web.log {ann}")).ok().stdout, "an ERROR\n");
    let bob = format!("--node {named} --credentials keys/client-bob.json");
    assert_eq!(folder.run(&format!("store get web.log --quiet {bob}")).ok().stdout, "an ERROR\n");
    let said = folder.run(&format!("search ERROR store:web.log {bob}")).exits(2);
    assert!(said.stderr.contains("bob has no right to run"), "{}", said.stderr);
    folder.run(&format!("search ERROR store:web.log --node {named}")).exits(2);
    let said = folder.run("node serve --listen 0.0.0.0:0").exits(2);
    assert!(said.stderr.contains("needs credentials"), "{}", said.stderr);
    let said = folder.run("search ERROR store:web.log --node 10.1.2.3").exits(2);
    assert!(said.stderr.contains("--credentials"), "{}", said.stderr);
}

#[test]
fn commands_that_the_operator_allows_run_where_the_data_lies() {
    let folder = Folder::new();
    let allow = "--allow grep --allow words=/usr/bin/wc --allow sh=/bin/sh";
    let nodes: Vec<Node> = (0..2).map(|n| Node::start(&folder, &format!("node{n}"), allow)).collect();
    let named = format!("{},{}", nodes[0].address, nodes[1].address);
    folder.write("web.log", text());
    folder.run(&format!("store put web.log --node {named} --piece 100KiB --quiet")).ok();
    let said = folder.run(&format!("node run --node {named} --input store:web.log grep -c ERROR")).ends();
    if said.1.stderr.contains("protection") {
        println!("skipped: this machine cannot contain commands: {}", said.1.stderr);
        return;
    }
    let said = said.1;
    let counts: Vec<u64> = said.stdout.lines().map(|line| line.parse().unwrap()).collect();
    let expected = text().lines().filter(|line| line.contains("ERROR")).count() as u64;
    assert!(counts.len() == 2 && counts.iter().sum::<u64>() == expected, "{counts:?} of {expected}");
    let said =
        folder.run(&format!("node run --node {named} --input store:web.log --json words -l")).ok().json();
    let responses = said["summary"]["responses"].as_array().unwrap();
    let lines: u64 =
        responses.iter().map(|one| one["output"].as_str().unwrap().trim().parse::<u64>().unwrap()).sum();
    assert_eq!(lines, 60_000);
    assert!(
        responses
            .iter()
            .all(|one| one["code"] == 0 && one["protections"].as_str().unwrap().contains("files"))
    );
    // It need not read what it gets; what fails is told; what is not allowed is not run.
    folder.run(&format!("node run --node {named} --input store:web.log sh -c true")).ok();
    let said = folder.run(&format!("node run --node {named} sh -c nonsense-of-a-command")).exits(1);
    assert!(said.stderr.contains("ended with 127"), "{}", said.stderr);
    let said = folder.run(&format!("node run --node {named} cat /etc/passwd")).exits(2);
    assert!(said.stderr.contains("does not allow 'cat': it allows grep, sh, words"), "{}", said.stderr);
    let store = folder.path("node0");
    let said = folder.run(&format!("node run --node {named} sh -c ls<{}", store.display())).exits(1);
    assert!(said.stderr.contains("ermission denied"), "{}", said.stderr);
    let began = Instant::now();
    let sleeping = folder.run(&format!("node run --node {named} --deadline 1 sh -c yes>/dev/null")).exits(2);
    assert!(
        sleeping.stderr.contains("deadline") && began.elapsed() < Duration::from_secs(20),
        "{sleeping:?}"
    );
    let plain = Node::start(&folder, "node3", "");
    let said = folder.run(&format!("node run --node {} grep x", plain.address)).exits(2);
    assert!(said.stderr.contains("no work called 'command'"), "{}", said.stderr);
}

#[test]
fn a_node_ends_when_it_is_asked_to() {
    let folder = Folder::new();
    let mut node = Node::start(&folder, "node0", "--drain 5 --log json");
    node.send(Signal::TERM);
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match node.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < until, "it goes on"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    let mut log = String::new();
    std::io::Read::read_to_string(node.child.stderr.as_mut().unwrap(), &mut log).unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert!(first["message"] == "serves" && first["address"] == node.address, "{log}");
}

#[test]
fn commands_that_know_nothing_of_nodes_say_so() {
    let folder = Folder::new();
    for words in ["sort a.csv --key a -o b.csv", "sql SELECT", "store df", "graph ls", "node serve"] {
        let said = folder.run(&format!("{words} --node a.lan")).exits(2);
        assert!(said.stderr.contains("does not work on nodes"), "{words}: {}", said.stderr);
    }
    let said = folder.run("search x --node 127.0.0.1:1").exits(2);
    assert!(said.stderr.contains("which datasets?"), "{}", said.stderr);
    let said = folder.run("search x store:a --node 127.0.0.1:1").exits(2);
    assert!(said.stderr.contains("127.0.0.1:1"), "{}", said.stderr);
}
