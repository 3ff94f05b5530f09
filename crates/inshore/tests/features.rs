//! Tests the cost of each feature: the packages that a build with this feature alone compiles.

use std::{collections::BTreeSet, process::Command};

/// Lists `package`, and the packages that it needs if only these features are on. Development and build dependencies do
/// not count.
fn packages(package: &str, features: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(["--package", package, "--no-default-features", "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // A line is `name vVERSION`, followed by `(proc-macro)`, a path or `(*)`.
    let line = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    text.lines().filter(|text| !text.is_empty()).map(line).collect()
}

fn assert_lacks(packages: &BTreeSet<String>, prefixes: &[&str]) {
    for prefix in prefixes {
        let found: Vec<_> = packages.iter().filter(|package| package.starts_with(prefix)).collect();
        assert!(found.is_empty(), "{found:?}");
    }
}

const HEAVY: [&str; 4] = ["datafusion", "wasmtime", "tonic ", "tokio "];

#[test]
fn the_library_with_graphs_alone_needs_at_most_90_packages() {
    let found = packages("inshore", "graph");
    assert!((30..=90).contains(&found.len()), "{} packages: {found:#?}", found.len());
    assert_lacks(&found, &HEAVY);
    assert_lacks(
        &found,
        &[
            "arrow v",
            "inshore-sql",
            "inshore-kernel v",
            "inshore-nodes",
            "inshore-sandbox",
            "inshore-kernels",
        ],
    );
}

#[test]
fn the_command_with_graphs_alone_needs_at_most_150_packages() {
    let found = packages("inshore-cli", "graph");
    assert!((60..=150).contains(&found.len()), "{} packages: {found:#?}", found.len());
    assert_lacks(&found, &HEAVY);
}

#[test]
fn heavy_packages_come_with_one_feature_each() {
    assert_lacks(&packages("inshore", "text,records"), &HEAVY);
    assert_lacks(&packages("inshore", "wasm"), &["datafusion", "tonic ", "tokio "]);
    assert_lacks(&packages("inshore", "nodes"), &["datafusion", "wasmtime", "arrow v"]);
    assert_lacks(&packages("inshore", "sql"), &["wasmtime", "tonic "]);
    let full = packages("inshore", "full");
    for package in ["datafusion v", "wasmtime v", "tonic v", "tokio v"] {
        assert!(full.iter().any(|found| found.starts_with(package)), "{package}");
    }
}
