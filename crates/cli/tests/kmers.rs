//! Counts k-mers on nodes, and compares the result with a local count of the same files.

use std::{fs, path::Path, process::Child, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    nodes::{Node, cluster},
    util::Folder,
};

fn bases(count: usize, seed: u64) -> String {
    let mut state = seed;
    let mut base = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // One in a thousand letters is not a base.
        if (state >> 40).is_multiple_of(1000) { 'N' } else { char::from(b"ACGT"[(state >> 61) as usize & 3]) }
    };
    (0..count).map(|_| base()).collect()
}

/// Returns FASTA sequences: a long sequence with short lines that spans many shards, many short sequences, and a long
/// sequence on a single line.
fn genome() -> String {
    let mut text = ">chromosome 1\n".to_string();
    for (number, line) in bases(300_000, 1).as_bytes().chunks(31).enumerate() {
        let line = std::str::from_utf8(line).unwrap();
        text += &if number % 9 == 0 { line.to_lowercase() } else { line.to_string() };
        text += if number % 100 == 0 { "\r\n\n" } else { "\n" };
    }
    for number in 0..300 {
        text += &format!(">s{number}\n{}\n", bases(number, 5));
    }
    text + ">line\n" + &bases(200_000, 9)
}

fn reads() -> String {
    let genome = bases(100_000, 2);
    let read = |number: usize| {
        let start = number * 7919 % (genome.len() - 150);
        let blank = if number % 50 == 7 { "\n" } else { "" };
        format!("@read{number}\n{}\n+\n@{}\n{blank}", &genome[start..start + 150], "F".repeat(149))
    };
    (0..5000).map(read).collect()
}

/// Returns the numbers of a summary that depend only on the data.
fn numbers(said: &Value) -> Vec<Value> {
    ["sequences", "bases", "kmers", "distinct", "written", "histogram"]
        .map(|name| {
            assert!(!said["summary"][name].is_null(), "{name}");
            said["summary"][name].clone()
        })
        .into()
}

#[test]
fn k_mers_on_nodes_make_the_same_table_as_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    folder.write("genome.fa", genome());
    folder.write("reads.fq", reads());
    for file in ["genome.fa", "reads.fq"] {
        folder.run(&format!("store put {file} --node {named} --piece 64KiB --quiet")).ok();
    }
    for (inputs, words) in [
        ("genome.fa", "-k 5"),
        ("genome.fa", "-k 25 --min-count 2 --histogram HERE.txt"),
        ("genome.fa", "-k 47 --forward"),
        ("reads.fq", "-k 5 --codes"),
        ("reads.fq", "-k 25 --histogram HERE.txt"),
        ("reads.fq", "-k 47"),
        ("reads.fq genome.fa", "-k 31 --codes"),
    ] {
        for format in ["parquet", "csv"] {
            let count = |inputs: &str, place: &str, more: &str| {
                let words = words.replace("HERE", place);
                folder
                    .run(&format!("count kmers {inputs} {words} -o {place}.{format} --json {more}"))
                    .ok()
                    .json()
            };
            let here = count(inputs, "here", "");
            let stored: String = inputs.split(' ').map(|input| format!("store:{input} ")).collect();
            let there = count(&stored, "there", &format!("--node {named}"));
            assert_eq!(numbers(&there), numbers(&here), "{inputs} {words}");
            let bytes = |place: &str| fs::read(folder.path(&format!("{place}.{format}"))).unwrap();
            assert!(bytes("there") == bytes("here"), "{inputs} {words}");
            let nodes = there["summary"]["nodes"].as_array().unwrap();
            assert!(nodes.len() == 3 && nodes.iter().all(|node| node["bytes_read"].as_u64().unwrap() > 0));
        }
        if words.contains("--histogram") {
            assert_eq!(folder.read("there.txt"), folder.read("here.txt"));
        }
    }
    let words = format!("count kmers store:reads.fq -o - --node {named}");
    let there = folder.run(&words).ok();
    assert_eq!(there.stdout, folder.run("count kmers reads.fq -o -").ok().stdout);
    let said = folder.run(&format!("count kmers store:reads.fq -o x.csv --explain --node {named}")).ok();
    assert!(said.stderr.contains("sent here") && said.stderr.contains("runs"), "{}", said.stderr);
}

#[test]
fn what_nodes_cannot_count_is_refused_and_leaves_nothing() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    folder.write("reads.fq", reads());
    folder.write("table.csv", "a,b\n1,2\n");
    folder.run("compress reads.fq --format gzip -o packed.fq.gz").ok();
    let put =
        |words: &str| folder.run(&format!("store put {words} --node {named} --piece 64KiB --quiet")).ok();
    put("reads.fq");
    put("packed.fq.gz");
    put("table.csv");
    put("reads.fq --name records --record 100");
    // The extension of the name is not that of FASTQ, so shards of the file may end at any line, and not only after a
    // record.
    folder.write("reads.txt", reads());
    put("reads.txt");
    for (words, expected) in [
        ("store:reads.fq --resume", "--resume does not work with --node"),
        ("store:reads.fq --json -o -", "both use standard output"),
        ("store:packed.fq.gz", "compressed as a whole, so no node can read its piece: load it decompressed"),
        ("store:reads.txt", "under a name that ends with .fastq"),
        ("store:table.csv", "expected '>' of FASTA or '@' of FASTQ, got 'a,b'"),
        ("store:records", "its pieces end with records of 100 bytes"),
        ("store:reads.fq -k 33 --codes", "expected a k up to 32"),
        ("store:none.fq", "not found on any of the nodes"),
        ("store:reads.fq --node-memory 4MiB", "counting k-mers"),
    ] {
        let output = if words.contains("-o") { "" } else { "-o out.parquet" };
        let said = folder.run(&format!("count kmers {words} {output} --node {named}")).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(!folder.path("out.parquet").exists());
    }
}

#[test]
fn k_mers_survive_a_node_that_is_killed_and_a_stop_leaves_nothing() {
    let folder = Folder::new();
    let (nodes, named) = cluster(&folder, 3);
    // The text is long enough that its count can be interrupted even on fast machines.
    let text =
        format!(">one\n{}\n", bases(60 * 100_000, 4).as_bytes().chunks(60).map(line).collect::<String>());
    folder.write("genome.fa", text);
    for (name, copies) in [("safe.fa", 2), ("single.fa", 1)] {
        let put = format!("store put genome.fa --name {name} --copies {copies} --piece 200KiB");
        folder.run(&format!("{put} --node {named} --quiet")).ok();
    }
    folder.run("count kmers genome.fa --codes -o here.parquet").ok();
    let count = |name: &str, output: &str| {
        folder.run(&format!("count kmers store:{name} --codes -o {output} --node {named} --json"))
    };
    // Ctrl-C stops a count. The test repeats this until the signal arrives while the count runs.
    let stopped = |_| {
        let mut child = count("safe.fa", "stopped.parquet").spawn();
        while !is_working(&folder, &nodes[1]) && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        let code = interrupt(child);
        if code == Some(0) {
            fs::remove_file(folder.path("stopped.parquet")).unwrap();
        }
        code.filter(|&code| code != 0)
    };
    assert_eq!((0..20).find_map(stopped), Some(130));
    assert!(!folder.path("stopped.parquet").exists());
    // The node is killed as soon as it has begun to work.
    thread::scope(|scope| {
        let counting = scope.spawn(|| count("safe.fa", "there.parquet").ends());
        while !is_working(&folder, &nodes[1]) && !counting.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        nodes[1].send(Signal::KILL);
        let (code, said) = counting.join().unwrap();
        assert_eq!(code, Some(0), "{said:?}");
        let nodes = &said.json()["summary"]["nodes"];
        println!(
            "lost in the middle: {}",
            nodes.as_array().unwrap().iter().any(|node| node["lost"].is_string())
        );
    });
    let bytes = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(bytes("there.parquet") == bytes("here.parquet"));
    // The killed node is still named, so this count starts without it.
    count("safe.fa", "again.parquet").ok();
    assert!(bytes("again.parquet") == bytes("here.parquet"));
    let said = count("single.fa", "none.parquet").exits(2);
    assert!(
        said.stderr.contains("were not read") && !folder.path("none.parquet").exists(),
        "{}",
        said.stderr
    );
}

/// Sends the signal of Ctrl-C, and returns the exit code.
fn interrupt(mut child: Child) -> Option<i32> {
    let _ = kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT);
    child.wait().unwrap().code()
}

fn line(letters: &[u8]) -> String {
    format!("{}\n", std::str::from_utf8(letters).unwrap())
}

/// Tells whether a node runs a task that has read data.
fn is_working(folder: &Folder, node: &Node) -> bool {
    let (_, said) = folder.run(&format!("node status --json --node {}", node.address)).ends();
    let status: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    let running = status[0]["status"]["running"].as_array().cloned().unwrap_or_default();
    running.iter().any(|task| task["bytes_read"].as_u64() > Some(1 << 20))
}

#[test]
fn k_mers_of_real_genomes_are_the_same_on_nodes() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/dna");
    let genomes = ["ecoli-k12-mg1655.fna", "salmonella-lt2.fna"];
    let packed = genomes.map(|name| data.join(format!("{name}.gz")));
    if !packed.iter().all(|path| path.exists()) {
        println!("skipped: the genomes of two bacteria are not in {}", data.display());
        return;
    }
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    for (name, packed) in genomes.iter().zip(&packed) {
        fs::copy(packed, folder.path(&format!("{name}.gz"))).unwrap();
        folder.run(&format!("decompress {name}.gz -o {name}")).ok();
        folder.run(&format!("store put {name} --node {named} --piece 300KiB --quiet")).ok();
    }
    let [one, two] = genomes;
    let here = folder.run(&format!("count kmers {one} {two} -k 25 -o here.parquet --json")).ok().json();
    let words = format!("count kmers store:{one} store:{two} -k 25 -o there.parquet --json --node {named}");
    let there = folder.run(&words).ok().json();
    assert_eq!(numbers(&there), numbers(&here));
    let bytes = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(bytes("there.parquet") == bytes("here.parquet"));
}
