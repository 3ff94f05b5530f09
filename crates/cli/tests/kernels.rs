//! Tests that create, build and push WebAssembly kernels, and run them over files locally and on nodes.

use std::{ffi::OsString, path::Path, process::Command, time::Instant};

use crate::{
    nodes::Node,
    util::{Folder, PATIENCE},
};

const COMMON: &str = r#"
    (import "inshore" "emit" (func $emit (param i32 i32)))
    (memory (export "memory") 1)
    (global $end (mut i32) (i32.const 65536))
    (func (export "inshore_abi") (result i32) (i32.const 1))
    (func (export "inshore_alloc") (param $len i32) (result i32) (local $at i32)
        (local.set $at (global.get $end))
        (global.set $end (i32.add (global.get $end) (local.get $len)))
        (if (i32.eq (i32.const -1) (memory.grow
                (i32.sub (i32.shr_u (i32.add (global.get $end) (i32.const 65535)) (i32.const 16)) (memory.size))))
            (then (return (i32.const 0))))
        (local.get $at))
    (global $first (mut i32) (i32.const 0))
    (func (export "inshore_init") (param $at i32) (param $len i32) (result i32)
        (if (local.get $len) (then (global.set $first (i32.load8_u (local.get $at)))))
        (i32.const 0))
    (func $is_end (param $at i32) (result i32) (i32.eq (i32.load8_u (local.get $at)) (i32.const 10)))
"#;

const BLOCK: &str =
    r#"(func (export "inshore_block") (param $at i32) (param $len i32) (param $offset i64) (result i32)"#;

fn module(text: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {COMMON} {text})")).unwrap()
}

/// Builds a kernel that returns the lines that begin with the argument.
pub fn lines() -> Vec<u8> {
    module(&format!(
        r#"{BLOCK} (local $end i32) (local $start i32)
            (local.set $end (i32.add (local.get $at) (local.get $len)))
            (block $done (loop $next
                (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                (local.set $start (local.get $at))
                (block $line (loop $more
                    (local.set $at (i32.add (local.get $at) (i32.const 1)))
                    (br_if $line (i32.ge_u (local.get $at) (local.get $end)))
                    (br_if $line (call $is_end (i32.sub (local.get $at) (i32.const 1))))
                    (br $more)))
                (if (i32.eq (i32.load8_u (local.get $start)) (global.get $first)) (then
                    (call $emit (local.get $start) (i32.sub (local.get $at) (local.get $start)))))
                (br $next)))
            (i32.const 0))"#
    ))
}

/// Builds a kernel that counts lines, and returns the count as eight bytes.
fn count() -> Vec<u8> {
    module(&format!(
        r#"(global $count (mut i64) (i64.const 0))
        {BLOCK} (local $end i32)
            (local.set $end (i32.add (local.get $at) (local.get $len)))
            (block $done (loop $next
                (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                (global.set $count (i64.add (global.get $count) (i64.extend_i32_u (call $is_end (local.get $at)))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br $next)))
            (i32.const 0))
        (func $say (result i32)
            (i64.store (i32.const 0) (global.get $count)) (call $emit (i32.const 0) (i32.const 8)) (i32.const 0))
        (func (export "inshore_state") (result i32) (call $say))
        (func (export "inshore_finish") (result i32) (call $say))
        (func (export "inshore_merge") (param $at i32) (param $len i32) (result i32)
            (if (i32.ne (local.get $len) (i32.const 8)) (then (return (i32.const -7))))
            (global.set $count (i64.add (global.get $count) (i64.load (local.get $at))))
            (i32.const 0))"#
    ))
}

/// Builds a kernel that runs `body` for each block of lines.
fn on_block(body: &str) -> Vec<u8> {
    module(&format!("{BLOCK} {body} (i32.const 0))"))
}

fn text() -> String {
    let letters = ["apple", "bear", "cherry and a rather longer line than others", "dune", ""];
    (0..150_000).map(|number| format!("{} {number}\n", letters[number * 7 % 5])).collect()
}

/// Creates a folder with kernels and a text. If this machine cannot run kernels in a sandbox, prints that and returns
/// `None`.
pub fn folder() -> Option<Folder> {
    let folder = Folder::new();
    folder.write("lines.wasm", lines());
    folder.write("count.wasm", count());
    folder.write("big.txt", text());
    let (code, said) = folder.run("kernel run lines.wasm --args a big.txt").ends();
    if code != Some(0) && said.stderr.contains("protection") {
        println!("skipped: this machine cannot contain kernels: {}", said.stderr);
        return None;
    }
    Some(folder)
}

/// Starts a node with enough memory for kernels.
fn start(folder: &Folder, number: usize, words: &str) -> Node {
    let serve = "node serve --memory 256MiB --listen 127.0.0.1:0 --json";
    Node::started(folder.run(&format!("{serve} --store node{number} {words}")))
}

fn cluster(folder: &Folder, count: usize) -> (Vec<Node>, String) {
    let start = |number| start(folder, number, "--log none");
    let nodes: Vec<Node> = (0..count).map(start).collect();
    let named = nodes.iter().map(|node| node.address.clone()).collect::<Vec<_>>().join(",");
    (nodes, named)
}

fn counted(folder: &Folder, name: &str) -> u64 {
    u64::from_le_bytes(std::fs::read(folder.path(name)).unwrap().try_into().unwrap())
}

#[test]
fn results_are_the_same_here_and_on_nodes_whatever_memory_and_threads() {
    let Some(folder) = folder() else { return };
    let expected: String =
        text().lines().filter(|line| line.starts_with('c')).map(|l| format!("{l}\n")).collect();
    folder.run("store put big.txt --quiet").ok();
    let (_nodes, named) = cluster(&folder, 3);
    folder.run(&format!("store put big.txt --node {named} --piece 300KiB --copies 2 --quiet")).ok();
    folder
        .run(&format!("store put big.txt --node {} --name one --quiet", named.split(',').next().unwrap()))
        .ok();
    let near = |how: &str| format!("store:big.txt --node {named} {how}");
    let here = ["--threads 1", "--threads 2 --memory 100MiB", "--threads 3 --memory 1GiB"];
    let here = here.iter().flat_map(|how| ["big.txt", "store:big.txt"].map(|file| format!("{file} {how}")));
    let ways: Vec<String> =
        here.chain([near(""), near("--node-memory 90MiB"), format!("store:one --node {named}")]).collect();
    for way in &ways {
        let found = folder.run(&format!("kernel run lines.wasm --args c {way}")).ok();
        assert!(found.stdout == expected, "{way}: {} bytes of {}", found.stdout.len(), expected.len());
        assert_eq!(found.stderr, "", "{way}");
        folder.run(&format!("kernel run count.wasm --output counted --quiet {way}")).ok();
        assert_eq!(counted(&folder, "counted"), 150_000, "{way}");
    }
    // A kernel that was pushed can be run by its name.
    for there in [String::new(), format!("--node {named}")] {
        let said = folder.run(&format!("kernel push lines.wasm --name c-lines {there}")).ok();
        assert!(said.stdout.contains("c-lines: a kernel of") && said.stdout.contains("in order"), "{said:?}");
        let found = folder.run(&format!("kernel run c-lines --args c store:big.txt {there}")).ok();
        assert!(found.stdout == expected, "{there}");
        let listed = folder.run(&format!("kernel ls {there} --json")).ok().json();
        assert_eq!(listed[0]["name"], "c-lines");
        let said = folder.run(&format!("kernel push count.wasm --name c-lines {there}")).exits(2);
        assert!(said.stderr.contains("c-lines"), "{}", said.stderr);
        folder.run(&format!("kernel rm c-lines {there}")).ok();
        let said = folder.run(&format!("kernel run c-lines store:big.txt {there}")).exits(2);
        assert!(said.stderr.contains("c-lines"), "{}", said.stderr);
    }
    let said = folder
        .run(&format!(
            "kernel run count.wasm store:big.txt --node {named} --output o --counters c.json --explain"
        ))
        .ok();
    assert!(said.stderr.contains("sent here") && said.stderr.contains("contained by"), "{}", said.stderr);
    let counters: serde_json::Value = serde_json::from_str(&folder.read("c.json")).unwrap();
    let moved = counters["summary"]["bytes_moved"].as_u64().unwrap();
    assert!(moved < 100_000, "{moved} bytes for a count");
}

#[test]
fn compressed_files_and_empty_ones_are_read() {
    let Some(folder) = folder() else { return };
    folder.write("empty", "");
    folder.write("no-end", "alpha\nbeta\nat the end");
    let found = folder.run("kernel run lines.wasm --args a empty no-end").ok();
    assert_eq!(found.stdout, "alpha\nat the end");
    folder.run("compress no-end --quiet").ok();
    let found = folder.run("kernel run lines.wasm --args b no-end.zst").ok();
    assert_eq!(found.stdout, "beta\n");
    let found = folder.run("kernel run lines.wasm --args x -").stdin("xyz\nabc\nx\n").ok();
    assert_eq!(found.stdout, "xyz\nx\n");
    folder.run("kernel run count.wasm empty --output counted --quiet").ok();
    assert_eq!(counted(&folder, "counted"), 0);
}

/// Returns lines of random length up to `longest`. The last line has no line end.
fn lines_up_to(longest: u64, bytes: usize) -> String {
    let (mut text, mut seed) = (String::new(), longest);
    while text.len() < bytes {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let letter = char::from(b'a' + (seed >> 20) as u8 % 5);
        text.extend(std::iter::repeat_n(letter, ((seed >> 33) % longest) as usize));
        text.push('\n');
    }
    text.push_str("at the end");
    text
}

#[test]
fn files_that_the_modules_process_reads_give_what_streams_do() {
    let Some(folder) = folder() else { return };
    // A block is read with a margin after its end. Depending on its length, a line that crosses the end of a block ends
    // in the margin, after the margin, or only after the next block.
    for (longest, bytes) in [(100, 9_000_000), (50_000, 9_000_000), (1_500_000, 20_000_000)] {
        let text = lines_up_to(longest, bytes);
        let expected: String =
            text.split_inclusive('\n').filter(|line| line.starts_with('a')).map(String::from).collect();
        folder.write("text", &text);
        for way in
            ["text --threads 1", "text --threads 3 --memory 512MiB", "text --memory 100MiB --threads 2"]
        {
            let found = folder.run(&format!("kernel run lines.wasm --args a {way}")).ok();
            assert!(found.stdout == expected, "lines up to {longest}, {way}: {} bytes", found.stdout.len());
            folder.run(&format!("kernel run count.wasm --output counted --quiet {way}")).ok();
            assert_eq!(counted(&folder, "counted"), text.matches('\n').count() as u64, "{longest} {way}");
        }
        let found = folder.run("kernel run lines.wasm --args a -").stdin(text).ok();
        assert!(found.stdout == expected, "a stream of lines up to {longest}");
    }
}

/// Lists malicious modules: a name, the module, and a part of the expected error message.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let recurse = "(func $again (call $again) (call $again))";
    let garbage = r#"(func (export "inshore_state") (result i32) (call $emit (i32.const 0) (i32.const 13)) (i32.const 0))
        (func (export "inshore_merge") (param i32 i32) (result i32) (i32.const -7))
        (func (export "inshore_finish") (result i32) (i32.const 0))"#;
    let abi =
        "(module (memory (export \"memory\") 1) (func (export \"inshore_abi\") (result i32) (i32.const 9)))";
    let imports = "(module (import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32))))";
    vec![
        ("traps", on_block("(unreachable)"), "unreachable"),
        ("returns", on_block("(return (i32.const -5))"), "-5"),
        ("outside", on_block("(call $emit (i32.const -1) (i32.const 9))"), "not in its memory"),
        ("recurses", module(&format!("{recurse} {BLOCK} (call $again) (i32.const 0))")), "stack"),
        (
            "grows",
            // The kernel grows its memory to the limit, and then accesses memory out of bounds.
            on_block(
                "(loop $more (br_if $more (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
                (i32.store (i32.shl (memory.size) (i32.const 16)) (i32.const 1))",
            ),
            "out of bounds",
        ),
        (
            "floods",
            on_block("(loop $more (call $emit (i32.const 0) (i32.const 60000)) (br $more))"),
            "emits more than",
        ),
        ("garbage", module(&format!("{BLOCK} (i32.const 0)) {garbage}")), "-7"),
        ("abi", wat::parse_str(abi).unwrap(), "inshore_a"),
        ("imports", wat::parse_str(imports).unwrap(), "fd_write"),
        ("no-module", b"#!/bin/sh\n".to_vec(), "not a kernel for Inshore"),
    ]
}

#[test]
fn hostile_kernels_end_with_an_error_and_the_nodes_live_on() {
    let Some(folder) = folder() else { return };
    let (_nodes, named) = cluster(&folder, 2);
    folder.run(&format!("store put big.txt --node {named} --piece 300KiB --quiet")).ok();
    for (name, module, reason) in hostile() {
        folder.write(&format!("{name}.wasm"), module);
        for way in ["big.txt --threads 2".to_string(), format!("store:big.txt --node {named}")] {
            let said = folder.run(&format!("kernel run {name}.wasm {way}")).exits(2);
            assert!(said.stderr.contains(reason), "{name} {way}: {}", said.stderr);
        }
    }
    folder.write("spins.wasm", on_block("(loop $for_ever (br $for_ever))"));
    let began = Instant::now();
    let said =
        folder.run(&format!("kernel run spins.wasm store:big.txt --node {named} --deadline 2")).exits(2);
    assert!(said.stderr.contains("deadline"), "{}", said.stderr);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    // This kernel never returns from a call, so the time limit for calls ends the kernel.
    let said = folder.run("kernel run spins.wasm big.txt --threads 1").exits(2);
    assert!(said.stderr.contains("its deadline passed"), "{}", said.stderr);
    folder.run(&format!("kernel run count.wasm store:big.txt --node {named} --output counted --quiet")).ok();
    assert_eq!(counted(&folder, "counted"), 150_000);
    let status = folder.run(&format!("node status --node {named} --json")).ok().json();
    let failed: u64 = status
        .as_array()
        .map_or(0, |all| all.iter().map(|one| one["status"]["failed"].as_u64().unwrap_or(0)).sum());
    assert!(failed > 0, "{status}");
}

#[test]
fn what_it_takes_and_who_may_is_told() {
    let Some(folder) = folder() else { return };
    let said = folder.run("kernel run lines.wasm big.txt --memory 32MiB").exits(2);
    assert!(said.stderr.contains("WebAssembly kernel") && said.stderr.contains("MiB"), "{}", said.stderr);
    let said = folder.run("kernel run nothing.wasm big.txt").exits(2);
    assert!(said.stderr.contains("nothing.wasm"), "{}", said.stderr);
    let said = folder.run("kernel run lines.wasm no-such-file").exits(2);
    assert!(said.stderr.contains("no-such-file"), "{}", said.stderr);
    folder.run("node credentials keys --for-node a --address 127.0.0.1").ok();
    folder.run("node credentials keys --for-client writer --rights read,run,write,run-wasm").ok();
    folder.run("node credentials keys --for-client reader --rights read,run,write").ok();
    let node = start(&folder, 0, "--credentials keys/node-a.json");
    let writer = format!("--node {} --credentials keys/client-writer.json", node.address);
    let reader = writer.replace("writer", "reader");
    folder.run(&format!("store put big.txt --quiet {writer}")).ok();
    folder.run(&format!("kernel run count.wasm store:big.txt --output counted --quiet {writer}")).ok();
    assert_eq!(counted(&folder, "counted"), 150_000);
    let said = folder.run(&format!("kernel run count.wasm store:big.txt --output counted {reader}")).exits(2);
    assert!(said.stderr.contains("reader has no right to run-wasm"), "{}", said.stderr);
}

#[test]
fn a_new_kernel_is_a_folder_that_is_never_overwritten() {
    let folder = Folder::new();
    folder.run("kernel new hits").ok();
    assert!(folder.read("hits/src/lib.rs").contains("memmem"));
    assert!(folder.read("hits/README.md").contains("inshore kernel build hits"));
    assert!(folder.read("hits/inshore-sdk/src/lib.rs").contains("trait Kernel"));
    let said = folder.run("kernel new hits --language c").exits(2);
    assert!(said.stderr.contains("exists already"), "{}", said.stderr);
    folder.run("kernel new --language c --from words sub/w").ok();
    assert!(folder.read("sub/w/kernel.c").contains("inshore_merge"));
    let said = folder.run("kernel new 1bad").exits(2);
    assert!(said.stderr.contains("name"), "{}", said.stderr);
    let said = folder.run("kernel build .").exits(2);
    assert!(said.stderr.contains("expected"), "{}", said.stderr);
    for (variable, kernel) in [("RUSTC", "hits"), ("CLANG", "sub/w")] {
        let said = folder.run(&format!("kernel build {kernel}")).env(variable, "/no/such/tool").exits(2);
        assert!(said.stderr.contains("/no/such/tool") && said.stderr.contains("needs"), "{}", said.stderr);
    }
}

fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

fn has_rust_target() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).args(["--print", "sysroot"]).output();
    printed.is_ok_and(|said| {
        let root = String::from_utf8_lossy(&said.stdout).trim().to_string();
        Path::new(&root).join("lib/rustlib/wasm32-unknown-unknown").is_dir()
    })
}

fn has_clang() -> bool {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let linker = Command::new("wasm-ld").arg("--version").output().is_ok();
    linker && Command::new(clang).arg("--version").output().is_ok()
}

/// Builds every example in a language and runs it.
fn examples_work(folder: &Folder, language: &str) {
    let home = std::env::var_os("HOME").unwrap_or_default();
    folder.write("text", "to be\nor not to be\nthat is the question\n");
    for (example, args, expected) in [
        ("scan", "", "3\n"),
        ("search", "--args be", "to be\nor not to be\n"),
        ("words", "", "be\t2\nis\t1\nnot\t1\nor\t1\nquestion\t1\nthat\t1\nthe\t1\nto\t2\n"),
    ] {
        folder.run(&format!("kernel new {language}-{example} --language {language} --from {example}")).ok();
        let mut build = folder.run(&format!("kernel build {language}-{example}"));
        for variable in ["RUSTC", "CARGO", "CLANG", "RUSTUP_HOME", "CARGO_HOME", "RUSTUP_TOOLCHAIN"] {
            if let Some(value) = std::env::var_os(variable) {
                build = build.env(variable, value);
            }
        }
        let said = build.env("PATH", path()).env("HOME", &home).ok();
        assert!(said.stdout.contains(".wasm"), "{said:?}");
        let module = format!("{language}-{example}/{language}-{example}.wasm");
        let found = folder.run(&format!("kernel run {module} {args} text --threads 2")).ok();
        assert_eq!(found.stdout, expected, "{language} {example}");
        // With three threads, several instances run, and their results or states are merged.
        let here = folder.run(&format!("kernel run {module} {args} big.txt --threads 1")).ends().1.stdout;
        let there = folder.run(&format!("kernel run {module} {args} big.txt --threads 3")).ends().1.stdout;
        assert!(here == there && (!here.is_empty() || example == "search"), "{language} {example}");
    }
    let said = folder.run(&format!("kernel run {language}-search/{language}-search.wasm text")).exits(2);
    assert!(said.stderr.contains("-22"), "{}", said.stderr);
}

#[test]
fn examples_in_rust_build_and_work() {
    let Some(folder) = folder() else { return };
    match has_rust_target() {
        true => examples_work(&folder, "rust"),
        false => println!("skipped: Rust has no target wasm32-unknown-unknown here"),
    }
}

#[test]
fn examples_in_c_build_and_work() {
    let Some(folder) = folder() else { return };
    match has_clang() {
        true => examples_work(&folder, "c"),
        false => println!("skipped: there is no clang with wasm-ld here"),
    }
}
