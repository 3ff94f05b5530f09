//! Tests of commands on nodes. The agents of the nodes run in child processes.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::Child,
    sync::Arc,
    time::Instant,
};

use arrow_array::{ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};
use rustix::process::{Pid, Signal, kill_process};

use crate::util::{Folder, PATIENCE, Run, until};

/// An agent in a child process. On drop, the process is killed.
pub struct Node {
    child: Child,
    pub address: String,
    /// The address of the agent's status page, if it has one.
    pub page: Option<String>,
}

impl Node {
    /// Starts an agent on a free port.
    pub fn start(folder: &Folder, store: &str, words: &str) -> Node {
        Node::start_with(folder, store, "64MiB", words)
    }

    /// Starts an agent with this amount of memory.
    pub fn start_with(folder: &Folder, store: &str, memory: &str, words: &str) -> Node {
        let serve =
            format!("node serve --store {store} --memory {memory} --listen 127.0.0.1:0 --json {words}");
        Node::started(folder.run(&serve))
    }

    /// Runs a command that starts an agent, and waits until the agent prints its address.
    pub fn started(serve: Run) -> Node {
        let mut child = serve.spawn();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let address = |name: &str| said[name].as_str().map(str::to_string);
        Node { address: address("address").unwrap(), page: address("page"), child }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the agent, and returns its standard error.
    pub fn stop(&mut self) -> String {
        self.send(Signal::TERM);
        let mut errors = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut errors).unwrap();
        assert!(self.child.wait().unwrap().success(), "{errors}");
        errors
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text() -> String {
    let line = |number: usize| match number % 11 {
        4 => format!("{number} ERROR: it broke {} times\n", number % 17),
        _ => format!("{number} all is well, as it was before {}\n", "and before ".repeat(number % 5)),
    };
    (0..60_000).map(line).collect()
}

pub fn cluster(folder: &Folder, count: usize) -> (Vec<Node>, String) {
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
    let counting =
        format!("search ERROR store:web.log --node {named} -c --counters c.json --explain --only-nodes");
    let said = folder.run(&counting).ok();
    assert!(said.stderr.contains("read") && said.stderr.contains("sent here"), "{}", said.stderr);
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
    assert!(said.stderr.contains("not found on any of the nodes"), "{}", said.stderr);
    let said = folder.run(&format!("store put - --name piped --node {named} --quiet")).stdin("a\nb\n").ok();
    assert_eq!(said.stderr, "");
    assert_eq!(folder.run(&format!("store get piped --node {named} --quiet")).ok().stdout, "a\nb\n");
}

#[test]
fn checksums_decompressed_files_and_profiles_of_nodes_are_those_of_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    folder.write("web.log", text());
    folder.write(
        "de.txt",
        "der Hund bellt, die Katze schläft und das Kind läuft über die Straße\n".repeat(3000),
    );
    folder.run("compress web.log -o web.log.gz --quiet").ok();
    for (name, more) in [("web.log", ""), ("de.txt", ""), ("web.log.gz", "--record 1")] {
        folder.run(&format!("store put {name} --piece 64KiB {more} --node {named} --quiet")).ok();
    }
    for algorithm in ["sha256", "crc32"] {
        let here = folder.run(&format!("checksum --algorithm {algorithm} web.log web.log.gz")).ok().stdout;
        let words = format!("checksum --algorithm {algorithm} store:web.log store:web.log.gz --node {named}");
        let there = folder.run(&words).ok().stdout;
        assert_eq!(there.replace("store:", ""), here);
        folder.write("sums", &there);
        let said = folder.run(&format!("checksum --algorithm {algorithm} --check sums --node {named}")).ok();
        assert_eq!(said.stdout, "store:web.log: OK\nstore:web.log.gz: OK\n");
    }
    let wrong = format!("{}  store:web.log\n{}  store:none\n", "0".repeat(64), "0".repeat(64));
    folder.write("wrong", &wrong);
    let said = folder.run(&format!("checksum --check wrong --node {named}")).exits(2);
    assert_eq!(said.stdout, "store:web.log: FAILED\nstore:none: FAILED\n");
    assert!(said.stderr.contains("store:none"), "{}", said.stderr);

    folder.run(&format!("decompress store:web.log.gz -o unpacked --node {named} --quiet")).ok();
    assert!(folder.read("unpacked") == text());
    let said = folder.run(&format!("decompress store:web.log.gz --node {named}")).exits(2);
    assert!(said.stderr.contains("web.log: it exists already: --force replaces it"), "{}", said.stderr);
    let said = folder.run(&format!("decompress store:web.log.gz --rm --node {named}")).exits(2);
    assert!(said.stderr.contains("--rm does not work with --node"), "{}", said.stderr);
    let said = folder.run(&format!("decompress store:web.log -o none --node {named}")).exits(2);
    assert!(said.stderr.contains("store:web.log"), "{}", said.stderr);

    let train = "language train --grams 200 --json";
    let here = folder.run(&format!("{train} --name here en=web.log de=de.txt")).ok().json();
    let samples = "en=store:web.log store:de.txt";
    let there = folder.run(&format!("{train} --name there {samples} --node {named}")).ok().json();
    assert_eq!(there["summary"]["grams"], here["summary"]["grams"]);
    folder.run("store get here -o here.grams --quiet").ok();
    folder.run("store get there -o there.grams --quiet").ok();
    let grams = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(grams("here.grams") == grams("there.grams"));
    let said = folder.run(&format!("{train} --name there {samples} --node {named}")).exits(2);
    assert!(said.stderr.contains("there"), "{}", said.stderr);
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
    // The node is started again, and has all acknowledged data.
    let again = Node::start(&folder, "node1", "");
    let named = named.replace(&nodes[1].address, &again.address);
    assert_eq!(folder.run(&format!("search -c ERROR store:single --node {named}")).ok().stdout, whole);
}

#[test]
fn nodes_with_credentials_serve_who_has_some() {
    let folder = Folder::new();
    let said = folder.run("node credentials keys --for-node a --address 127.0.0.1,a.lan").ok();
    assert_eq!(said.stdout, "keys/authority.json\nkeys/node-a.json\n");
    folder.run("node credentials keys --for-client writer --rights read,run,write").ok();
    folder.run("node credentials keys --for-client reader --rights read").ok();
    let said = folder.run("node credentials keys --for-client writer").exits(2);
    assert!(said.stderr.contains("exists"), "{}", said.stderr);
    let node = Node::start(&folder, "node0", "--credentials keys/node-a.json");
    let named = node.address.clone();
    folder.write("web.log", "an ERROR\n");
    let writer = format!("--node {named} --credentials keys/client-writer.json");
    folder.run(&format!("store put web.log --quiet {writer}")).ok();
    assert_eq!(folder.run(&format!("search ERROR store:web.log {writer}")).ok().stdout, "an ERROR\n");
    let reader = format!("--node {named} --credentials keys/client-reader.json");
    assert_eq!(folder.run(&format!("store get web.log --quiet {reader}")).ok().stdout, "an ERROR\n");
    let said = folder.run(&format!("search ERROR store:web.log {reader}")).exits(2);
    assert!(said.stderr.contains("reader has no right to run"), "{}", said.stderr);
    folder.run(&format!("search ERROR store:web.log --node {named}")).exits(2);
    let said = folder.run("node serve --listen 0.0.0.0:0").exits(2);
    assert!(said.stderr.contains("needs credentials"), "{}", said.stderr);
    let said = folder.run("search ERROR store:web.log --node 10.1.2.3").exits(2);
    assert!(said.stderr.contains("--credentials"), "{}", said.stderr);
}

#[test]
fn credentials_that_end_soon_are_told_and_warned_of() {
    let folder = Folder::new();
    folder.run("node credentials keys --for-node a --address 127.0.0.1 --days 4").ok();
    let made = folder.run("node credentials keys --for-client soon --days 3 --json").ok().json();
    let token = &made["token"];
    assert!(token["sub"] == "soon" && token["jti"].as_str().unwrap().len() == 22, "{made}");
    assert!(token["exp"].as_str().unwrap().ends_with('Z') && token["rights"][0] == "read", "{made}");
    folder.run("node credentials keys --for-client late --days 99").ok();
    let mut node = Node::start(&folder, "node0", "--name a --credentials keys/node-a.json");
    let address = node.address.clone();
    let status = |words: &str| folder.run(&format!("node status --node {address} {words}")).ok();
    let said = status("--credentials keys/client-soon.json");
    let ends = token["exp"].as_str().unwrap();
    let renewal = "`inshore node credentials DIR --for-client soon --rights read,run` creates a new one";
    for (begin, end) in [
        ("warning: the token of soon expires in ".to_string(), format!("at {ends}: {renewal}")),
        (format!("warning: the certificate of {address} expires in "), ":".to_string()),
        (format!("warning: the token of {address} expires in "), ":".to_string()),
    ] {
        let told = |line: &str| line.starts_with(&begin) && line.contains(&end);
        assert!(said.stderr.lines().any(told), "{begin} ... {end} is not in {}", said.stderr);
    }
    assert!(!said.stderr.contains("authority of"), "it holds for years: {}", said.stderr);
    let certificate = said.stderr.lines().find(|line| line.contains("the certificate of")).unwrap();
    let date = &certificate.rsplit_once(" at ").unwrap().1[..10];
    assert!(said.stdout.contains("credentials end") && said.stdout.contains(date), "{}", said.stdout);
    let said = status("--credentials keys/client-late.json");
    assert!(!said.stderr.contains("of late") && said.stderr.lines().count() == 2, "{}", said.stderr);
    assert_eq!(status("--credentials keys/client-soon.json --quiet").stderr, "");
    let told = status("--credentials keys/client-late.json --json").json();
    let expires = &told[0]["status"]["expires"];
    assert!(
        expires["certificate"].as_u64() < expires["authority"].as_u64() && expires["token"].is_u64(),
        "{told}"
    );
    let log = node.stop();
    assert!(log.contains("the certificate of a expires in "), "{log}");
    assert!(log.contains("--for-node a --address HOST,...` creates new ones"), "{log}");
}

#[test]
fn credentials_of_version_1_are_refused_with_the_command_that_renews_them() {
    let folder = Folder::new();
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/../nodes/test_data/credentials_1");
    for (words, command) in [
        (format!("node credentials {old} --for-client new"), format!("`inshore node credentials {old}`")),
        (
            format!("node serve --listen 127.0.0.1:0 --credentials {old}/node-a.json"),
            "`inshore node credentials DIR --for-node a --address HOST,...`".to_string(),
        ),
        (
            format!("node status --node 127.0.0.1:1 --credentials {old}/client-laptop.json"),
            "`inshore node credentials DIR --for-client laptop --rights read,run,write`".to_string(),
        ),
    ] {
        let said = folder.run(&words).exits(2);
        assert!(said.stderr.contains("version 1 (Ed25519 keys)"), "{words}: {}", said.stderr);
        assert!(said.stderr.contains(&command), "{command} is not in {}", said.stderr);
    }
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
    // A program may end without reading its input. Failures of programs are reported, and programs that are not allowed
    // do not run.
    folder.run(&format!("node run --node {named} --input store:web.log sh -c true")).ok();
    let said = folder.run(&format!("node run --node {named} sh -c nonsense-of-a-command")).exits(1);
    assert!(said.stderr.contains("ended with 127"), "{}", said.stderr);
    let said = folder.run(&format!("node run --node {named} cat /etc/passwd")).exits(2);
    assert!(said.stderr.contains("does not allow 'cat': it allows grep, sh, words"), "{}", said.stderr);
    let said = folder.run(&format!("node run --node {named} store:web.log words")).exits(2);
    assert!(said.stderr.contains("with --input store:web.log"), "{}", said.stderr);
    let store = folder.path("node0");
    let said = folder.run(&format!("node run --node {named} sh -c ls<{}", store.display())).exits(1);
    assert!(said.stderr.contains("ermission denied"), "{}", said.stderr);
    let began = Instant::now();
    let sleeping = folder.run(&format!("node run --node {named} --deadline 1 sh -c yes>/dev/null")).exits(2);
    assert!(sleeping.stderr.contains("deadline") && began.elapsed() < PATIENCE, "{sleeping:?}");
    let plain = Node::start(&folder, "node3", "");
    let said = folder.run(&format!("node run --node {} grep x", plain.address)).exits(2);
    assert!(said.stderr.contains("tasks of the kind 'command'"), "{}", said.stderr);
}

#[test]
fn pointers_are_followed_from_node_to_node() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    // Page n points to page (5 n + 1) modulo 1024, and the pointer is at byte 8 of the page. All pages form one cycle.
    let next = |page: u64| (5 * page + 1) % 1024;
    let page = |number: u64| [&[7; 8][..], &next(number).to_le_bytes(), &[9; 496]].concat();
    folder.write("pages", (0..1024).flat_map(page).collect::<Vec<u8>>());
    let put = format!("store put pages --node {named} --piece 64KiB --record 512 --block 4KiB --quiet");
    folder.run(&put).ok();
    let walk = |start: u64, steps: u64| (0..steps).fold(start, |page, _| next(page));
    let ask = format!("node traverse store:pages --node {named} --page 512 --at 8");
    let mut digests = Vec::new();
    for by in ["nodes", "turns", "client", "client --keep 64KiB"] {
        let said = folder.run(&format!("{ask} --start 3,200 --steps 1000 --json --by {by}")).ok().json();
        let summary = &said["summary"];
        let chains = summary["chains"].as_array().unwrap();
        assert_eq!(
            (&chains[0]["page"], &chains[1]["page"]),
            (&walk(3, 1000).into(), &walk(200, 1000).into())
        );
        assert!(summary["steps"] == 2000 && summary["name"] == "store:pages", "{summary}");
        digests.push(chains[0]["digest"].as_u64().unwrap());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let said = folder.run(&format!("{ask} --start 3 --steps 10 --explain")).ok();
    let row: Vec<&str> = said.stdout.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["3", &walk(3, 10).to_string()[..], "10"], "{}", said.stdout);
    assert!(
        said.stderr.contains("10 steps in") && said.stderr.contains("per page reading"),
        "{}",
        said.stderr
    );
    for (words, expected) in [
        ("--page 512 --start 1024", "the starting page 1024 does not exist"),
        ("--page 512 --keep 1MiB", "--keep needs --by client"),
        ("--page 512 --at 505", "are not within a page"),
        ("--page 512 --partial", "--partial does not work"),
        ("--page 1000", "are not whole pages of 1000 bytes"),
        ("--page 512 --at 0", "page 0 points to page 506381209866536711"),
    ] {
        let said = folder.run(&format!("node traverse store:pages --node {named} {words}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
    }
}

#[test]
fn a_node_ends_when_it_is_asked_to() {
    let folder = Folder::new();
    let mut node = Node::start(&folder, "node0", "--drain 5 --log json");
    node.send(Signal::TERM);
    until("it goes on", || node.child.try_wait().unwrap().is_some());
    let status = node.child.wait().unwrap();
    assert!(status.success(), "{status}");
    let mut log = String::new();
    std::io::Read::read_to_string(node.child.stderr.as_mut().unwrap(), &mut log).unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert!(first["message"] == "serves" && first["address"] == node.address, "{log}");
}

#[test]
fn what_a_node_kept_while_its_dataset_was_removed_is_not_read_and_a_repair_drops_it() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    folder.write("old", "old line\n".repeat(1000));
    folder.write("new", "new line\n".repeat(1000));
    folder.run(&format!("store put old --name doc.txt --copies 3 --node {named} --quiet")).ok();
    nodes[2].send(Signal::KILL);
    let said = folder.run(&format!("store rm doc.txt --node {named}")).exits(2);
    assert!(said.stderr.contains("`inshore store repair doc.txt`"), "{}", said.stderr);
    let two = format!("{},{}", nodes[0].address, nodes[1].address);
    folder.run(&format!("store put new --name doc.txt --copies 2 --node {two} --quiet")).ok();
    let again = Node::start(&folder, "node2", "");
    let named = format!("{two},{}", again.address);
    for ask in
        ["search -c line store:doc.txt", "count words store:doc.txt --top 3", "store get doc.txt -o got"]
    {
        let said = folder.run(&format!("{ask} --node {named}")).exits(2);
        for part in ["these nodes have different generations", "removed 20", "`inshore store repair doc.txt`"]
        {
            assert!(
                said.stderr.contains(part) && said.stderr.contains(&again.address),
                "{ask}: {}",
                said.stderr
            );
        }
    }
    let said = folder.run(&format!("store ls --node {named}")).ok();
    assert!(
        said.stderr.contains("note: ") && said.stderr.contains("different generations"),
        "{}",
        said.stderr
    );
    let said = folder.run("store repair").exits(2);
    assert!(said.stderr.contains("--node"), "{}", said.stderr);
    let said = folder.run(&format!("store repair doc.txt --node {named}")).ok();
    let expected = format!("shards on {}", again.address);
    assert!(
        said.stdout.starts_with("doc.txt: removed generation ") && said.stdout.contains(&expected),
        "{}",
        said.stdout
    );
    assert_eq!(folder.run(&format!("search -c line store:doc.txt --node {named}")).ok().stdout, "1000\n");
    assert_eq!(folder.run(&format!("search -c new store:doc.txt --node {named}")).ok().stdout, "1000\n");
    let said = folder.run(&format!("store repair --node {named} --json")).ok().json();
    assert_eq!(said["dropped"], serde_json::json!([]));
}

#[test]
fn a_node_logs_each_put_removal_and_task_with_who_asked() {
    let folder = Folder::new();
    folder.run("node credentials keys --for-node a --address 127.0.0.1").ok();
    folder.run("node credentials keys --for-client writer --rights read,run,write").ok();
    let mut node = Node::start(&folder, "node0", "--credentials keys/node-a.json --log json");
    folder.write("web.log", "an ERROR\n");
    let asked = format!("--node {} --credentials keys/client-writer.json", node.address);
    folder.run(&format!("store put web.log --quiet {asked}")).ok();
    folder.run(&format!("store put web.log --quiet {asked}")).exits(2);
    folder.run(&format!("search ERROR store:web.log {asked}")).ok();
    folder.run(&format!("store rm web.log {asked}")).ok();
    let log = node.stop();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let lines: Vec<_> = lines.filter(|line| line["message"] == "audit").collect();
    let actions: Vec<&str> = lines.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["put", "put", "search", "rm"], "{log}");
    for line in &lines {
        let who = line["who"].as_str().unwrap();
        assert!(who.starts_with("writer (token ") && who.len() == "writer (token )".len() + 22, "{line}");
        assert!(line["dataset"] == "web.log" && line["seconds"].is_f64(), "{line}");
    }
    assert_eq!(lines[0]["bytes"], 9);
    assert!(lines[0]["result"] == "done" && lines[3]["result"] == "done", "{log}");
    assert!(lines[1]["result"].as_str().unwrap().contains("exists"), "{log}");
    assert!(lines[2]["bytes"].as_u64() > Some(0) && lines[3]["bytes"].as_u64() > Some(0), "{log}");
}

#[test]
fn commands_that_know_nothing_of_nodes_say_so() {
    let folder = Folder::new();
    for words in ["store seal a", "store df", "graph ls", "node serve"] {
        let said = folder.run(&format!("{words} --node a.lan")).exits(2);
        assert!(said.stderr.contains("does not run on nodes"), "{words}: {}", said.stderr);
    }
    let said = folder.run("search x --node 127.0.0.1:1").exits(2);
    assert!(said.stderr.contains("no dataset is given"), "{}", said.stderr);
    let said = folder.run("search x store:a --node 127.0.0.1:1").exits(2);
    assert!(said.stderr.contains("127.0.0.1:1"), "{}", said.stderr);
}

/// Writes a table of sales with row groups of 5,000 rows.
pub fn sales(folder: &Folder, rows: i64) {
    let shops = StringArray::from_iter(
        (0..rows)
            .map(|row| (row % 97 != 5).then(|| ["Kiel", "Ulm", "Bonn", "Jena"][row as usize * 7 / 3 % 4])),
    );
    let item = Int64Array::from_iter_values((0..rows).map(|row| row * 7919 % 3001));
    let price = Float64Array::from_iter_values((0..rows).map(|row| (row % 400) as f64 / 4.0));
    let day = Date32Array::from_iter_values((0..rows).map(|row| 19_000 + (row / 100) as i32));
    let columns: [(&str, ArrayRef); 4] = [
        ("shop", Arc::new(shops)),
        ("item", Arc::new(item)),
        ("price", Arc::new(price)),
        ("day", Arc::new(day)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)));
    let batch = batch.unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(5_000)).build();
    let file = File::create(folder.path("sales.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn questions_are_answered_where_the_tables_lie() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    sales(&folder, 60_000);
    let items: String =
        (0..9001).map(|item| format!("{item},thing {},{}\n", item % 13, item % 7 == 0)).collect();
    folder.write("items.csv", format!("item,name,is_new\n{items}"));
    let log = |row: usize| match row % 5 {
        2 => format!("{{\"user\":{},\"what\":\"came\"}}\n", row % 77),
        _ => format!("{{\"user\":{},\"what\":\"went\",\"bytes\":{}}}\n", row % 91, row * 3),
    };
    folder.write("log.jsonl", (0..20_000).map(log).collect::<String>());
    for (file, piece) in [("sales.parquet", "100KiB"), ("items.csv", "64KiB"), ("log.jsonl", "100KiB")] {
        let said = folder.run(&format!("store put {file} --node {named} --piece {piece} --copies 2")).ok();
        assert!(said.stdout.contains("pieces on 3 nodes"), "{}", said.stdout);
        folder.run(&format!("store get {file} --node {named} -o again --quiet")).ok();
        assert!(std::fs::read(folder.path("again")).unwrap() == std::fs::read(folder.path(file)).unwrap());
    }
    let questions = [
        "SELECT shop, count(*), sum(price), avg(price), min(item), max(day), count(DISTINCT item) FROM sales GROUP BY shop ORDER BY shop",
        "SELECT count(*) FROM sales",
        "SELECT sum(price), stddev(item) > 1, min(shop) FROM sales WHERE day >= '2022-06-01' AND shop <> 'Ulm'",
        "SELECT item, sum(price) AS s FROM sales GROUP BY item HAVING sum(price) > 900 ORDER BY s DESC, item LIMIT 20",
        "SELECT DISTINCT day FROM sales WHERE item < 300 ORDER BY day",
        "SELECT shop, item, price, day FROM sales WHERE price = 99.75 ORDER BY day, item LIMIT 7",
        "SELECT day, item FROM sales ORDER BY day DESC, item, price LIMIT 12 OFFSET 3",
        "SELECT name, sum(price) FROM sales JOIN items USING (item) WHERE is_new = 'true' GROUP BY name ORDER BY name",
        "SELECT shop, count(*) FROM sales WHERE item = (SELECT max(item) FROM items WHERE name = 'thing 4' AND item < 3000) GROUP BY shop ORDER BY 1",
        "SELECT shop, count(*) FROM sales WHERE item IN (SELECT item FROM items WHERE item % 10 = 3) GROUP BY shop ORDER BY 1",
        "SELECT what, count(*), count(bytes), sum(bytes), max(\"user\") FROM log GROUP BY what ORDER BY what",
        "SELECT a.\"user\", count(*) FROM log a JOIN log b ON a.\"user\" = b.\"user\" AND a.bytes < 900 AND b.bytes < 900 GROUP BY 1 ORDER BY 1",
        "SELECT shop, row_number() OVER (PARTITION BY shop ORDER BY day, item, price) AS n FROM sales WHERE item < 3 ORDER BY shop, n",
        "SELECT count(*) FROM (SELECT item FROM sales UNION SELECT item FROM items)",
        "SELECT items.name, count(*) FROM items JOIN sales USING (item) WHERE shop = 'Kiel' GROUP BY 1 ORDER BY 1",
        "WITH best AS (SELECT shop, max(price) AS p FROM sales GROUP BY shop) SELECT best.shop, count(*) FROM best JOIN sales ON best.p = sales.price AND best.shop = sales.shop GROUP BY 1 ORDER BY 1",
    ];
    let tables = |place: &str| {
        ["sales.parquet", "items.csv", "log.jsonl"]
            .map(|file| format!("--table {}={place}{file} ", file.split('.').next().unwrap()))
            .concat()
    };
    for question in questions {
        folder.write("q.sql", question);
        let here = folder.run(&format!("sql --file q.sql {}", tables(""))).ok().stdout;
        let there = folder.run(&format!("sql --file q.sql --node {named} {}", tables("store:"))).ok().stdout;
        assert_eq!(there, here, "{question}");
        assert!(here.lines().count() > 1, "{question}");
        // In this query the table of items is a local file, and the other tables are on nodes.
        let mixed = tables("store:").replace("store:items", "items");
        let mixed = folder.run(&format!("sql --file q.sql --node {named} --threads 1 {mixed}")).ok().stdout;
        assert_eq!(mixed, here, "{question}");
    }
    for words in [
        "reduce FROMsales.parquet --by shop --sum price --count --mean item --min day --max price --count=shop",
        "reduce FROMlog.jsonl --by what,user --sum bytes --count",
        "reduce FROMsales.parquet --max item --count",
        "count values FROMsales.parquet --column day,shop",
    ] {
        let here = folder.run(&format!("{} -o here.csv", words.replace("FROM", ""))).ok();
        let there = folder.run(&format!("{} -o there.csv --node {named}", words.replace("FROM", "store:")));
        there.ok();
        assert_eq!(folder.read("there.csv"), folder.read("here.csv"), "{words}");
        drop(here);
    }
    folder.write("q.sql", questions[0]);
    // If shards had replicas, a node that starts late might get no shard, so this dataset has no replicas.
    let once = format!("store put sales.parquet --name once.parquet --node {named} --piece 100KiB --quiet");
    folder.run(&once).ok();
    let said = folder.run(&format!(
        "sql --file q.sql --node {named} --table sales=store:once.parquet --json -o out.csv --only-nodes"
    ));
    let counters = said.ok().json();
    let nodes = counters["summary"]["nodes"].as_array().unwrap();
    assert!(nodes.len() == 3 && nodes.iter().all(|node| node["bytes_read"].as_u64().unwrap() > 0));
    folder.write("q.sql", "EXPLAIN SELECT shop, sum(price) FROM sales WHERE item < 9 GROUP BY shop");
    let said = folder.run(&format!("sql --file q.sql --node {named} --table sales=store:sales.parquet")).ok();
    assert!(said.stdout.contains("NearData: AggregateExec: mode=Partial"), "{}", said.stdout);
    folder.write("q.sql", "SELECT count(*) FROM sales WHERE cast(shop AS INT) > 3");
    let said =
        folder.run(&format!("sql --file q.sql --node {named} --table sales=store:sales.parquet")).exits(2);
    assert!(said.stderr.contains("Cannot cast string"), "{}", said.stderr);
    let said = folder.run(&format!("search Kiel store:sales.parquet --node {named}")).exits(2);
    assert!(said.stderr.contains("row groups"), "{}", said.stderr);
    let said = folder.run(&format!("store put - --name x.parquet --node {named}")).stdin("x").exits(2);
    assert!(said.stderr.contains("row groups"), "{}", said.stderr);
}

#[test]
fn a_question_survives_a_node_that_is_killed() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    sales(&folder, 40_000);
    folder.run(&format!("store put sales.parquet --node {named} --piece 64KiB --copies 2 --quiet")).ok();
    folder
        .run(&format!("store put sales.parquet --name once.parquet --node {named} --piece 64KiB --quiet"))
        .ok();
    let ask = |table: &str, words: &str| {
        folder.write(
            "q.sql",
            format!("SELECT item, count(*) FROM 'store:{table}' GROUP BY item ORDER BY item"),
        );
        folder.run(&format!("sql --file q.sql --node {named} {words}"))
    };
    let whole = ask("sales.parquet", "").ok().stdout;
    nodes[2].send(Signal::KILL);
    assert_eq!(ask("sales.parquet", "").ok().stdout, whole);
    let said = ask("once.parquet", "").exits(2);
    assert!(said.stderr.contains("were not read"), "{}", said.stderr);
}

#[test]
fn languages_are_told_and_files_are_compressed_where_they_lie() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    let english = "The dog is over there and the fox jumps over the lazy dog.\n";
    let german = "Der Hund ist faul und der Fuchs springt über den Hund.\n";
    folder.write("en.txt", english.repeat(50));
    folder.write("de.txt", german.repeat(50));
    folder.run("language train --name two en.txt de.txt").ok();
    let line = |row: usize| if row % 3 == 1 { german } else { english };
    folder.write("text", (0..30_000).map(line).collect::<String>());
    folder.run(&format!("store put text --node {named} --piece 100KiB --copies 2 --quiet")).ok();
    folder.run("store put text --quiet").ok();
    for words in ["", "--lines"] {
        let here =
            folder.run(&format!("language identify --profiles two store:text -o here.csv {words}")).ok();
        let there = folder
            .run(&format!("language identify --profiles two store:text -o there.csv --node {named} {words}"));
        assert_eq!(there.ok().stdout, here.stdout);
        assert_eq!(folder.read("there.csv"), folder.read("here.csv"));
    }
    let said = folder.run(&format!("language identify --profiles two store:text --column a --node {named}"));
    assert!(said.exits(2).stderr.contains("--column does not work with --node"));
    for format in ["zstd", "gzip", "bzip2", "lz4"] {
        folder.run(&format!("compress store:text --node {named} --format {format} -o packed --force")).ok();
        folder.run("decompress packed -o again --force").ok();
        assert_eq!(folder.read("again"), folder.read("text"), "{format}");
    }
    let said = folder.run(&format!("compress store:text --node {named} --explain")).ok();
    assert!(said.stdout.contains("1 file, ") && folder.path("text.zst").exists(), "{}", said.stdout);
    let said = folder.run(&format!("compress store:text --node {named}")).exits(2);
    assert!(said.stderr.contains("--force"), "{}", said.stderr);
}
