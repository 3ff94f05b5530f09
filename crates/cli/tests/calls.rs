//! Tests in which strace makes system calls fail, or kills the command at a call. Data that a command acknowledged must
//! exist, and data that the system may have lost must be reported or repaired.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use crate::util::{CommandOutput, Folder, Run};

/// Returns the path of strace, if this machine allows tracing. Otherwise prints why the test is skipped, and returns
/// `None`.
fn strace() -> Option<PathBuf> {
    let found = ["/usr/bin/strace", "/bin/strace"].map(PathBuf::from).into_iter().find(|path| path.exists());
    let traces = |path: &PathBuf| {
        let tried = std::process::Command::new(path).args(["-o", "/dev/null", "true"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let found = found.filter(traces);
    if found.is_none() {
        println!("skipped: there is no strace here, or it may not trace");
    }
    found
}

/// Runs a command under strace. strace logs the system calls named by `calls` in the file `trace`, and changes the call
/// that `inject` describes.
fn traced(run: Run, strace: &Path, calls: &str, inject: Option<&str>) -> Run {
    let calls = format!("trace={calls}");
    let inject = inject.map(|inject| format!("inject={inject}"));
    let mut words = vec!["-f", "-y", "-qq", "-o", "trace", "-e", &calls];
    words.extend(inject.iter().flat_map(|inject| ["-e", inject]));
    run.under(strace, &words)
}

/// Returns the number of bytes that the segments of the store occupy on the drive.
fn taken(folder: &Folder) -> u64 {
    let entries = fs::read_dir(folder.path("store")).unwrap().map(|entry| entry.unwrap());
    let segments = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("segment-"));
    segments.map(|segment| segment.metadata().unwrap().blocks() * 512).sum()
}

fn is_killed((code, said): (Option<i32>, CommandOutput)) {
    assert!(code.is_none() || code == Some(128 + Signal::KILL.as_raw()), "{code:?}: {said:#?}");
}

#[test]
fn a_sort_that_cannot_look_who_is_at_work_loses_none_of_the_runs_that_it_named() {
    let Some(strace) = strace() else { return };
    let folder = Folder::new();
    folder.run("store init store").ok();
    let line = |i: u64| format!("{:016x} and the rest of line {i}\n", i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    folder.write("in.txt", (0..400_000).map(line).collect::<String>());
    folder.run("sort in.txt -o expected.txt --memory 8MiB --threads 1").ok();
    let words = "sort in.txt -o out.txt --memory 8MiB --threads 1 --resume";
    traced(folder.run(words), &strace, "getdents64", None).ok();
    let calls = folder.read("trace").lines().filter(|line| line.contains("getdents64(")).count();
    assert!(calls > 30, "{calls} calls");
    // In each run, one call fails: at the beginning of the command (where the sort claims the name of its runs), in the
    // middle, or near the end. Listing a folder takes two or three calls.
    for call in [1, calls / 4, calls / 3, calls / 2, calls / 2 + 1, 2 * calls / 3, calls - 3] {
        let inject = format!("getdents64:error=EIO:when={call}");
        fs::remove_file(folder.path("out.txt")).unwrap();
        let (code, said) = traced(folder.run(words), &strace, "getdents64", Some(&inject)).ends();
        assert!(matches!(code, Some(0..=2)), "call {call}: {code:?}, {said:#?}");
        folder.run("store verify").ok();
        folder.run(words).ok();
        assert!(folder.read("out.txt") == folder.read("expected.txt"), "call {call}");
    }
}

#[test]
fn space_of_what_was_removed_is_given_back_where_the_process_was_killed_after_its_commit() {
    let Some(strace) = strace() else { return };
    for next in ["store put small --name next", "store compact", "store scrub"] {
        let folder = Folder::new();
        folder.write("small", "some bytes");
        folder.write("large", vec![7; 20_000_000]);
        folder.run("store put small --name stays").ok();
        let before = taken(&folder);
        folder.run("store put large --name goes").ok();
        let with = taken(&folder);
        let inject = Some("fallocate:signal=KILL:when=1");
        is_killed(traced(folder.run("store rm goes"), &strace, "fallocate", inject).ends());
        assert_eq!(folder.run("store get stays").ok().stdout, "some bytes");
        folder.run("store get goes").exits(2);
        folder.run(next).ok();
        let after = taken(&folder);
        // The limit allows for the dataset of the next command, which takes one extent.
        assert!(
            after <= before + (4 << 20) && with > after + (10 << 20),
            "{next}: {before}, {with}, {after}"
        );
    }
}

#[test]
fn names_of_new_folders_are_synced_before_there_is_a_store_in_them() {
    let Some(strace) = strace() else { return };
    let folder = Folder::new();
    let above = folder.path("").canonicalize().unwrap();
    let calls = "mkdir,fsync,fdatasync";
    for (words, names) in [
        ("store init new/store --size 64MiB", ["new", ""]),
        ("store add-device --store new/store other/drive --size 64MiB", ["other", ""]),
    ] {
        traced(folder.run(words), &strace, calls, None).ok();
        let trace = folder.read("trace");
        let first_write = trace.lines().position(|line| line.contains("fdatasync(")).expect("superblocks");
        for name in names {
            let path = above.join(name);
            let synced = format!("<{}>)", path.display().to_string().trim_end_matches('/'));
            let is_it = |line: &str| line.contains("fsync(") && line.contains(&synced);
            let synced = trace.lines().position(is_it).unwrap_or_else(|| panic!("{name:?}: {trace}"));
            assert!(synced < first_write, "{name:?}: {trace}");
        }
    }
}

#[test]
fn a_device_whose_adding_failed_is_no_damage() {
    let Some(strace) = strace() else { return };
    for call in ["fdatasync", "fsync", "pwrite64"] {
        for when in 1..=5 {
            let folder = Folder::new();
            folder.run("store init store --size 64MiB").ok();
            folder.run("store put - --name a").stdin("some bytes").ok();
            let inject = format!("{call}:error=EIO:when={when}");
            let words = "store add-device drive --size 64MiB";
            let (code, said) = traced(folder.run(words), &strace, call, Some(&inject)).ends();
            let verified = folder.run("store verify").ends();
            assert_eq!(verified.0, Some(0), "{inject}: {code:?}, {said:#?}, {:#?}", verified.1);
            assert_eq!(folder.run("store get a").ok().stdout, "some bytes");
            let (code, said) = folder.run(words).ends();
            assert!(code == Some(0) || said.stderr.contains("of this store already"), "{inject}: {said:#?}");
            let devices = folder.run("store df --json").ok().json();
            let states: Vec<&str> =
                devices.as_array().unwrap().iter().map(|device| device["state"].as_str().unwrap()).collect();
            assert_eq!(states, ["ok", "ok"], "{inject}");
        }
    }
}
