//! Tests of jobs with `--resume` that are killed and started again.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::util::{Folder, PATIENCE};

/// Returns pseudo-random numbers (SplitMix64).
fn mixed(i: u64) -> u64 {
    let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn lines(count: u64) -> String {
    (0..count).map(|i| format!("{:x} and the rest of line {i}\n", mixed(i))).collect()
}

fn table(count: u64) -> String {
    let row = |i| format!("{},{},name {}\n", mixed(i) % 700_000, i % 1000, mixed(i) % 400_000);
    "k,v,s\n".to_string() + &(0..count).map(row).collect::<String>()
}

fn sequences(bases: u64) -> String {
    let letter = |i| b"ACGT"[mixed(i) as usize % 4] as char;
    (0..bases / 100)
        .map(|n| format!(">{n}\n{}\n", (n * 100..n * 100 + 100).map(letter).collect::<String>()))
        .collect()
}

/// Creates a folder with a store, so that `store jobs` works before the first job.
fn folder_with_store() -> Folder {
    let folder = Folder::new();
    folder.run("store init store").ok();
    folder
}

/// Returns the finished work that `store jobs` lists.
fn kept(folder: &Folder) -> Value {
    folder.run("store jobs --json").ok().json()["kept"].clone()
}

fn kept_runs(folder: &Folder) -> u64 {
    kept(folder)[0]["pieces"].as_u64().unwrap_or(0)
}

/// Starts a job, and stops the job when it has kept more than `runs` runs. Returns the number of kept runs, or `None`
/// if the job succeeded before the signal.
fn interrupted(folder: &Folder, words: &str, runs: u64, signal: Signal) -> Option<u64> {
    let mut child = folder.run(words).spawn();
    let deadline = Instant::now() + PATIENCE;
    while kept_runs(folder) <= runs && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "{words} kept nothing");
    }
    let _ = kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        return None;
    }
    if signal == Signal::INT {
        assert_eq!(output.status.code(), Some(130), "{told}");
        assert!(told.contains("finished work") && told.contains("the same command resumes"), "{told}");
    } else {
        assert_eq!(output.status.code(), None, "{told}");
    }
    Some(kept_runs(folder))
}

/// Interrupts a job that has kept at least two runs. On a busy machine the job may end before the signal, or it may be
/// removing the runs that it no longer needs, so there are several attempts.
fn surely_interrupted(folder: &Folder, words: &str) -> u64 {
    let attempt = |_| interrupted(folder, words, 1, Signal::KILL).filter(|left| *left > 1);
    (0..20).find_map(attempt).unwrap_or_else(|| panic!("{words} always ended before it was stopped"))
}

#[test]
fn what_is_killed_goes_on_with_the_runs_that_it_kept() {
    let folder = folder_with_store();
    folder.write("in.txt", lines(900_000));
    folder.write("t.csv", table(1_200_000));
    folder.write("in.fa", sequences(10_000_000));
    for (words, counted) in [
        ("sort in.txt", "/summary/rows_kept"),
        ("sort t.csv --key s,k:desc", "/summary/rows_kept"),
        ("reduce t.csv --by k --count --sum v", "/summary/rows_kept"),
        ("reduce t.csv --by s --count --first v", "/summary/rows_kept"),
        ("count kmers in.fa -k 21", "/summary/kmers_kept"),
    ] {
        folder.run(&format!("{words} -o expected.csv --memory 12MiB")).ok();
        let again = format!("{words} -o out.csv --memory 12MiB --resume");
        let first = surely_interrupted(&folder, &again);
        assert!(first > 1, "{words}: {first} runs");
        if let Some(second) = interrupted(&folder, &again, first, Signal::INT) {
            assert!(second > first, "{words}: {first} runs, then {second}");
            let said = folder.run(&format!("{again} --json")).ok().json();
            assert!(said.pointer(counted).and_then(Value::as_u64) > Some(0), "{words}: {said}");
        }
        assert!(folder.read("out.csv") == folder.read("expected.csv"), "{words}");
        assert_eq!(kept(&folder), serde_json::json!([]), "{words}");
        assert!(folder.scratch().is_empty(), "{words}");
        std::fs::remove_file(folder.path("out.csv")).unwrap();
    }
}

#[test]
fn a_graph_job_that_is_killed_goes_on_with_the_states_that_it_kept() {
    let folder = folder_with_store();
    folder.run("graph generate kronecker --name g --scale 17 --seed 3").ok();
    for words in
        ["graph pagerank g --iterations 60 --memory 64MiB", "graph betweenness g --sources 8 --memory 8MiB"]
    {
        folder.run(&format!("{words} -o expected.csv")).ok();
        let again = format!("{words} -o out.csv --resume --checkpoint-every 0");
        let attempt = |signal| (0..20).find_map(|_| interrupted(&folder, &again, 0, signal));
        let left =
            attempt(Signal::KILL).unwrap_or_else(|| panic!("{words} always ended before it was stopped"));
        // A killed job may leave two checkpoints: the new one, and the previous one, which the job had not removed yet.
        assert!((1..=2).contains(&left), "{words}: {left} checkpoints");
        let told = folder.run("store jobs").ok().stdout;
        assert!(told.contains("graph "), "{told}");
        let said = folder.run(&format!("{again} --json")).ok().json();
        assert!(
            said.pointer("/summary/supersteps_kept").and_then(Value::as_u64) > Some(0),
            "{words}: {said}"
        );
        match words.contains("pagerank") {
            true => assert!(folder.read("out.csv") == folder.read("expected.csv"), "{words}"),
            false => assert_eq!(
                folder.read("out.csv").lines().count(),
                folder.read("expected.csv").lines().count()
            ),
        }
        assert_eq!(kept(&folder), serde_json::json!([]), "{words}");
        std::fs::remove_file(folder.path("out.csv")).unwrap();
    }
    folder.run("graph bfs g --source 0 --checkpoint-every 5").exits(2);
}

/// Returns a file of vectors of bytes.
fn vectors(count: u64, dimensions: u64) -> Vec<u8> {
    let header = [count as u32, dimensions as u32].map(u32::to_le_bytes).concat();
    header.into_iter().chain((0..count * dimensions).map(|i| mixed(i) as u8)).collect()
}

#[test]
fn an_index_build_that_is_killed_goes_on_with_the_centroids_and_runs_that_it_kept() {
    let folder = folder_with_store();
    folder.write("v.u8bin", vectors(200_000, 64));
    folder.run("nearest import v.u8bin --name v").ok();
    let words = "nearest index v --memory 20MiB";
    folder.run(words).ok();
    let query = "nearest query v v.u8bin --probes 3 -k 3 -o";
    folder.run(&format!("{query} expected.csv")).ok();
    let again = format!("{words} --resume");
    surely_interrupted(&folder, &again);
    let told = folder.run("store jobs").ok().stdout;
    assert!(told.contains("nearest index v"), "{told}");
    let said = folder.run(&format!("{again} --json")).ok().json();
    assert!(said.pointer("/summary/resumed").and_then(Value::as_u64) > Some(0), "{said}");
    folder.run(&format!("{query} found.csv")).ok();
    assert!(folder.read("found.csv") == folder.read("expected.csv"));
    assert_eq!(kept(&folder), serde_json::json!([]));
}

#[test]
fn what_was_kept_is_told_removed_and_of_no_use_to_others() {
    let folder = folder_with_store();
    folder.write("in.txt", lines(900_000));
    let words = "sort in.txt -o out.txt --memory 8MiB --resume";
    surely_interrupted(&folder, words);
    let told = folder.run("store jobs").ok();
    assert!(told.stdout.contains("resume-") && told.stdout.contains("sort in.txt"), "{told:?}");
    assert_eq!(folder.run("store ls --json").ok().json(), serde_json::json!([]));
    folder.run("store verify").ok();
    let name = kept(&folder)[0]["name"].as_str().unwrap().to_string();
    // A job with other options, or with the same options and a changed input, does not use the kept runs.
    let said = folder.run(&format!("{words} --reverse --json")).ok().json();
    assert_eq!(said["summary"]["rows_kept"], 0);
    folder.write("in.txt", lines(300_000));
    let said = folder.run(&format!("{words} --json")).ok().json();
    assert_eq!((&said["summary"]["rows_kept"], &said["summary"]["rows"]), (&0.into(), &300_000.into()));
    assert_eq!(kept(&folder)[0]["name"], *name);
    folder.run(&format!("store jobs --remove {name}")).ok();
    assert_eq!(kept(&folder), serde_json::json!([]));
    let said = folder.run(&format!("store jobs --remove {name}")).exits(2);
    assert!(said.stderr.contains("there is no"), "{}", said.stderr);
    let said = folder.run("sort - -o out.txt --resume").exits(2);
    assert!(said.stderr.contains("expected files to resume with"), "{}", said.stderr);
}

#[test]
fn only_one_process_keeps_the_same_runs() {
    let folder = folder_with_store();
    folder.write("in.txt", lines(1_500_000));
    let words = "sort in.txt -o out.txt --memory 8MiB --resume";
    let attempt = |_| {
        let mut child = folder.run(words).spawn();
        while kept_runs(&folder) == 0 && child.try_wait().unwrap().is_none() {}
        let mut second = folder.run(words).spawn();
        second.wait().unwrap();
        // On a busy machine, the first job may have ended before the second one started.
        let is_there = child.try_wait().unwrap().is_none();
        let said = second.wait_with_output().unwrap();
        assert!(child.wait().unwrap().success());
        is_there.then_some((child.id(), said))
    };
    let (process, said) = (0..20).find_map(attempt).expect("one that is still at work");
    let told = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2), "{told}");
    assert!(told.contains(&format!("process {process} uses resume-")), "{told}");
}
