//! Kills commands with `kill -9` at many moments, on stores of one to four drives with several processes at work. Data
//! that a command acknowledged must exist, and other data must exist completely or not at all.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::util::Folder;

/// For each worker, the number of drives that the redundancy of its dataset needs, and the options for this redundancy.
const KEPT: [(u64, &str); 3] = [(1, ""), (2, "--copies 2"), (3, "--parity 2+1")];

/// A SplitMix64 generator of pseudo-random numbers.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    }
}

/// The expected content of a dataset.
#[derive(Clone, Debug, PartialEq)]
struct ExpectedContent {
    bytes: Vec<u8>,
    sealed: bool,
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut chance = SplitMix64(seed);
    let block: Vec<u8> = (0..512).flat_map(|_| chance.below(u64::MAX).to_le_bytes()).collect();
    (0..len).map(|at| block[at % 4096] ^ (at / 4096) as u8).collect()
}

/// Starts a command whose standard input is `input`. The thread that writes the input ends when the command ends.
fn start(folder: &Folder, words: &str, input: Vec<u8>) -> Child {
    let mut child = folder.run(words).spawn();
    let mut pipe = child.stdin.take().unwrap();
    thread::spawn(move || drop(pipe.write_all(&input)));
    child
}

/// Runs commands on a dataset of one worker, and kills most of the commands. Returns the number of kills.
fn work(folder: &Folder, worker: u64, kept: &str, kills: u64) -> u64 {
    let mut chance = SplitMix64(worker);
    let name = format!("w{worker}");
    let mut known: Option<ExpectedContent> = None;
    let mut killed = 0;
    // The average time of a command, without the check of its result. Most kills should come before the command has
    // ended.
    let mut usual = Duration::from_millis(20);
    while killed < kills {
        let bytes = pattern(chance.below(u64::MAX), chance.below(3_000_000) as usize);
        let (words, after) = match (&known, chance.below(8)) {
            (None, 0..=3) => {
                let after = ExpectedContent { bytes: bytes.clone(), sealed: true };
                (format!("store put - --name {name} {kept}"), Some(after))
            }
            (None, _) => {
                let after = ExpectedContent { bytes: bytes.clone(), sealed: false };
                (format!("store put - --name {name} --append {kept}"), Some(after))
            }
            (Some(_), 0) => ("store compact --memory 16MiB".to_string(), known.clone()),
            (Some(ExpectedContent { sealed: false, bytes: there }), 1..=4) => {
                let after = ExpectedContent { bytes: [&there[..], &bytes].concat(), sealed: false };
                (format!("store put - --name {name} --append"), Some(after))
            }
            (Some(now), 5) => {
                (format!("store seal {name}"), Some(ExpectedContent { sealed: true, ..now.clone() }))
            }
            (Some(_), _) => (format!("store rm {name}"), None),
        };
        let started = std::time::Instant::now();
        let mut child = start(folder, &words, bytes);
        let patience = Duration::from_micros(chance.below(usual.as_micros() as u64 * 5 / 4));
        while started.elapsed() < patience && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_micros(200));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let took = started.elapsed();
        let found = look(folder, &name);
        match output.status.code() {
            Some(0) => {
                assert_eq!(is(&found), is(&after), "{words} was acknowledged");
                assert!(found == after, "{words} was acknowledged, and its bytes are not there");
                usual = (usual * 7 + took) / 8;
            }
            None => {
                assert!(
                    found == known || found == after,
                    "{words} was killed: {:?}, expected {:?} or {:?}",
                    is(&found),
                    is(&known),
                    is(&after)
                );
                killed += 1;
                // The time of a killed command says nothing about the average. Short commands are killed less often and
                // would lower the average, so each kill increases it slightly.
                usual += usual / 64;
            }
            code => panic!("{words}: {code:?} {}", String::from_utf8_lossy(&output.stderr)),
        }
        known = found;
    }
    killed
}

/// Returns the length of the content, and whether the dataset is sealed.
fn is(known: &Option<ExpectedContent>) -> Option<(usize, bool)> {
    known.as_ref().map(|known| (known.bytes.len(), known.sealed))
}

/// Reads a dataset of the store, if it exists.
fn look(folder: &Folder, name: &str) -> Option<ExpectedContent> {
    let all: Value = serde_json::from_str(&folder.run("store ls --json").ok().stdout).unwrap();
    let found = all.as_array().unwrap().iter().find(|dataset| dataset["name"] == name)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_inshore"));
    command.args(["store", "get", name, "--quiet"]).env("INSHORE_STORE", folder.path("store"));
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(ExpectedContent { bytes: output.stdout, sealed: found["sealed"].as_bool().unwrap() })
}

/// Runs workers on a new store with this number of drives, and kills their commands. Returns the number of kills.
fn killed(drives: u64, kills: u64) -> u64 {
    let folder = Folder::new();
    folder
        .run(&format!("store init {}", ["store", "two", "three", "four"][..drives as usize].join(" ")))
        .ok();
    let workers = KEPT.len() as u64;
    let killed = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .zip(KEPT)
            .map(|(worker, (least, kept))| {
                let (folder, kept) = (&folder, if least <= drives { kept } else { "" });
                scope.spawn(move || work(folder, drives * workers + worker, kept, kills.div_ceil(workers)))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    folder.run("store verify").ok();
    // The next job releases the extents of the killed processes.
    folder.run("store put - --name last").stdin("last").ok();
    assert!(folder.scratch().is_empty());
    killed
}

/// `INSHORE_KILLS` is the total number of kills. `make kills-long` kills 10,000 times.
#[test]
fn what_was_acknowledged_survives_every_kill() {
    let kills: u64 = std::env::var("INSHORE_KILLS").map_or(60, |count| count.parse().unwrap());
    for drives in 1..=4 {
        println!("{} kills on {drives} drives", killed(drives, kills / 4));
    }
}
