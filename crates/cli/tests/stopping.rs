//! Tests of stopped, killed and concurrent commands: the store must be consistent at every instant.

use std::{
    io::Write,
    process::Child,
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};

use crate::util::{EDGES, Folder, PATIENCE, processor_time};

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

/// Waits until a command ends. Returns its processor time, which does not depend on the load of the machine.
fn processor_time_until_end(child: &Child) -> Duration {
    let id = WaitId::Pid(Pid::from_raw(child.id() as i32).unwrap());
    waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    processor_time(child.id())
}

/// A command that runs so long that a signal arrives before its end.
const LONG_JOB: &str = "graph generate kronecker --scale 20 --name long --memory 16MiB";

#[test]
fn a_signal_stops_a_job_and_leaves_the_store_as_it_was() {
    let folder = Folder::with_graph("old", EDGES);
    let before = folder.run("graph info old").ok().stdout;
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = folder.run(LONG_JOB).spawn();
        folder.wait_for_scratch(1 << 20, &mut child);
        let before = processor_time(child.id());
        send(&child, signal);
        let worked = processor_time_until_end(&child) - before;
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {stderr}");
        assert_eq!(stderr, "inshore: the job was stopped before it was done; the store is unchanged\n");
        assert!(worked < Duration::from_secs(3), "{signal:?}: it worked on for {worked:?}");
        assert!(output.stdout.is_empty());
        assert!(folder.scratch().is_empty(), "{signal:?}");
        assert_eq!(folder.graphs(), ["old"]);
    }
    assert_eq!(folder.run("graph info old").ok().stdout, before);
}

#[test]
fn a_signal_stops_an_import_that_waits_for_standard_input() {
    let folder = Folder::new();
    let mut child = folder.run("graph import - --name g").spawn();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(b"1 2\n").unwrap();
    folder.wait_for_job(&mut child);
    let sent = Instant::now();
    send(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(sent.elapsed() < PATIENCE, "{:?}", sent.elapsed());
    drop(pipe);
    assert!(folder.scratch().is_empty());
}

#[test]
fn a_second_signal_ends_a_job_that_hangs() {
    let folder = Folder::new();
    // No process ever writes to this pipe, so the command blocks when it opens the pipe, and cannot react to the first
    // signal.
    mknodat(CWD, folder.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut child = folder.run("graph import pipe --name g").spawn();
    folder.wait_for_job(&mut child);
    send(&child, Signal::INT);
    // A command that does not hang would react to the signal within this time. If the command hangs, as it should, the
    // test passes for any time.
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the first signal was seen: this needs a job that hangs");
    let sent = Instant::now();
    send(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(sent.elapsed() < PATIENCE, "{:?}", sent.elapsed());
    assert_eq!(folder.graphs(), [""; 0]);
}

#[test]
fn a_kill_during_import_leaves_the_old_graph_and_scratch_that_the_next_job_removes() {
    let folder = Folder::with_graph("old", EDGES);
    let before = folder.run("graph export old -o before.csv --quiet").ok();
    let mut child = folder.run("graph import - --name new --memory 8MiB").spawn();
    let mut pipe = child.stdin.take().unwrap();
    // The pipe stays open, so the import cannot end.
    let feeder = std::thread::spawn(move || {
        for edge in 0..6_000_000u64 {
            let (source, target) = (edge.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, edge >> 3);
            if writeln!(pipe, "{source} {target}").is_err() {
                return;
            }
        }
        std::thread::sleep(2 * PATIENCE);
    });
    folder.wait_for_scratch(1 << 20, &mut child);
    send(&child, Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), None, "killed, not ended");
    drop(feeder);
    assert_eq!(folder.scratch().len(), 1, "a killed job cannot tidy up");

    folder.run("graph import - --name next").stdin("1 2\n").ok();
    assert!(folder.scratch().is_empty());
    assert_eq!(folder.graphs(), ["next", "old"]);
    assert_eq!(before.stderr, "");
    folder.run("graph export old -o after.csv --quiet").ok();
    assert_eq!(folder.read("after.csv"), folder.read("before.csv"));
}

#[test]
fn jobs_on_one_store_do_not_disturb_each_other() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 14 --name k --memory 16MiB").ok();
    folder.run("graph bfs k --source 0 -o alone.csv --memory 16MiB").ok();
    let mut children: Vec<(String, Child)> = Vec::new();
    for round in 0..3 {
        for words in [
            format!("graph generate kronecker --scale 13 --seed {round} --name k{round}"),
            format!("graph bfs k --source 0 -o tree{round}.csv"),
            format!("graph pagerank k --iterations 3 --top {round}1"),
        ] {
            let child = folder.run(&format!("{words} --memory 16MiB")).spawn();
            children.push((words, child));
        }
    }
    for (words, child) in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for round in 0..3 {
        assert!(folder.read(&format!("tree{round}.csv")) == folder.read("alone.csv"), "round {round}");
    }
    assert_eq!(folder.graphs(), ["k", "k0", "k1", "k2"]);
    assert!(folder.scratch().is_empty());
}

#[test]
fn of_two_imports_with_one_name_one_is_told() {
    let folder = Folder::new();
    let words = "graph generate kronecker --scale 14 --name same --memory 16MiB";
    let children = [(); 2].map(|()| folder.run(words).spawn());
    let mut codes = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        assert!(code == Some(0) || stderr.contains("exists already"), "{stderr}");
        code
    });
    codes.sort();
    assert_eq!(codes, [Some(0), Some(2)]);
    assert_eq!(folder.graphs(), ["same"]);
}
