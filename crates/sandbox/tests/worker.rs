//! These tests run the rest of a program in a forked worker. They check that the program ends in the same way as
//! the worker, and that a worker that exceeds the limit reports the current operation.
//!
//! This program does not use the test harness, which has several threads, since a program that forks a worker must
//! have one thread.

use std::{
    env,
    hint::black_box,
    process::{Command, Output, Stdio, exit},
    thread,
    time::{Duration, Instant},
};

use inshore_sandbox::{ChildLimits, LimitedAllocator, WorkerEnd, WorkerFork, split};
use rustix::process::{Pid, Signal, kill_process};

#[global_allocator]
static ALLOCATOR: LimitedAllocator = LimitedAllocator;

const MIB: usize = 1 << 20;

fn main() {
    match env::var("INSHORE_TEST_WORKER") {
        Ok(what) => be(&what),
        Err(_) => {
            the_program_ends_as_its_worker_does();
            a_signal_to_stop_is_handed_on_once_and_the_worker_ignores_signals();
            a_worker_ends_with_its_parent();
        }
    }
}

/// Is the main function of a program that a test has started: runs the case that the argument names.
fn be(what: &str) -> ! {
    let limits = ChildLimits { memory_bytes: 64 << 20, stack_bytes: 64 << 20, threads: 1 };
    let split = match what {
        "threads" => {
            let sleeper = || thread::sleep(Duration::from_secs(1000));
            thread::spawn(sleeper);
            split(limits, String::new)
        }
        _ => split(limits, || "what it did".to_string()),
    };
    match split {
        Err(error) => {
            println!("error: {error}");
            exit(3)
        }
        Ok(WorkerFork::Parent(waiting)) => {
            let end = waiting.wait().unwrap();
            println!("{end:?}");
            exit(match end {
                WorkerEnd::Exited(status) => status,
                _ => 2,
            })
        }
        Ok(WorkerFork::Worker(mut stops)) => {
            match what {
                "ends" => exit(7),
                // The allocations are small, so the thread that measures memory finds that the limit is exceeded.
                "small" => loop {
                    black_box(Box::leak(vec![1u8; 4096].into_boxed_slice()));
                },
                // The allocations are large, so the allocator counts each of them. Their memory is never written.
                "large" => {
                    let parts: Vec<Vec<u8>> = (0..9).map(|_| Vec::with_capacity(8 * MIB)).collect();
                    black_box(&parts);
                }
                // Freed allocations no longer count. An allocation that grows counts only with its present size.
                "freed" => {
                    let mut grows: Vec<u8> = Vec::new();
                    for step in 1..=40 {
                        drop(black_box(Vec::<u8>::with_capacity(20 * MIB)));
                        grows.reserve_exact(step * MIB);
                        grows.shrink_to(step * MIB / 2);
                    }
                    black_box(&grows);
                    exit(0);
                }
                // The system refuses this allocation.
                "refused" => drop(black_box(Vec::<u8>::with_capacity(1 << 46))),
                "killed" => {
                    let _ = kill_process(rustix::process::getpid(), Signal::KILL);
                }
                "stops" => {
                    println!("worker {}", std::process::id());
                    stops.wait();
                    exit(130);
                }
                _ => {
                    println!("worker {}", std::process::id());
                    thread::sleep(Duration::from_secs(1000));
                }
            }
            exit(0)
        }
    }
}

fn command(what: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env("INSHORE_TEST_WORKER", what);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ends(what: &str) -> (Option<i32>, String) {
    let Output { status, stdout, .. } = command(what).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap())
}

fn the_program_ends_as_its_worker_does() {
    for (what, code, words) in [
        ("ends", 7, "Exited(7)"),
        ("freed", 0, "Exited(0)"),
        ("small", 2, "TooLarge(\"what it did\")"),
        ("large", 2, "TooLarge(\"what it did\")"),
        ("refused", 2, "TooLarge(\"what it did\")"),
        ("killed", 2, "Killed(9)"),
        ("threads", 3, "there are threads already"),
    ] {
        let (found, said) = ends(what);
        assert!(found == Some(code) && said.contains(words), "{what}: {found:?} {said}");
    }
}

/// Starts this program again, and waits until its worker runs.
fn start(what: &str) -> (std::process::Child, u32) {
    use std::io::{BufRead, BufReader};
    let mut child = command(what).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    let worker = lines.into_iter().find_map(|line| line.strip_prefix("worker ")?.parse().ok());
    (child, worker.expect("it says its number"))
}

fn is_there(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn a_signal_to_stop_is_handed_on_once_and_the_worker_ignores_signals() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut child, worker) = start("stops");
        kill_process(Pid::from_raw(worker as i32).unwrap(), signal).unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(is_there(worker) && child.try_wait().unwrap().is_none());
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

fn a_worker_ends_with_its_parent() {
    let (mut child, worker) = start("sleeps");
    child.kill().unwrap();
    child.wait().unwrap();
    let began = Instant::now();
    while is_there(worker) {
        assert!(began.elapsed() < Duration::from_secs(60), "it outlives its parent");
        thread::sleep(Duration::from_millis(5));
    }
}
