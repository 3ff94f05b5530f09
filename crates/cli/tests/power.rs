//! Tests of power losses while commands write files. After a command has reported success, its result must exist,
//! complete and with the right mode. Before the report, the name of the result must stand for the complete result, or
//! be as it was before (absent, or the old file). No input may be removed before its result is durable.
//!
//! ```text
//!   command ── files ── kernel ── FUSE ── Disk       keeps the files in memory, and records each change
//!                                            │
//!                                        Recording   the changes and the syncs of one run
//!                                            │
//!             after each change: checks every state in which a power loss may leave the drive
//! ```
//!
//! Each command runs once. The states after power losses are computed from the recording, so that hundreds of losses
//! take milliseconds. `INSHORE_POWER_LOSSES` is the largest number of losses for each command (300 by default). If more
//! losses are possible, they are drawn at random with the seed `INSHORE_SEED`.
//!
//! `blocks.rs` records the blocks that ext4 writes instead of the changes of files, and mounts each state.
//! `INSHORE_POWER_MOUNTS` is the number of states for each command. Without this variable, only a few states of a few
//! commands are mounted.
//!
//! `power/files.txt` lists every argument that names a file. A test in `src/args/mod.rs` compares the list with the
//! arguments of all commands, and each listed file that a command writes has a case in this module. The files of the
//! store are not tested here, since the store follows other rules (docs/durability.md).

mod blocks;
mod disk;
mod losses;
mod tree;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Mutex,
};

use crate::{
    kernels,
    nodes::Node,
    util::{EDGES, Folder},
};
use blocks::{Ext4, Journal};
use disk::Disk;
use losses::Recording;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, renameat_with},
    io::Errno,
};
use tree::Files;

/// Lists every argument that names a file. A line has the use of the file (reads, writes or store), the command, and
/// the argument.
const FILES: &str = include_str!("power/files.txt");
/// The file for the standard output of a command. The last write to this file counts as the command's report of
/// success.
const REPORT: &str = ".report";
/// The mode of files that are replaced or compressed. This mode differs from the mode of a new file.
const PRIVATE: u32 = 0o600;
/// The number of states of ext4 that are mounted for each command by default.
const MOUNTS: usize = 12;
/// The number of commands that run concurrently. The commands mostly wait.
const WORKERS: usize = 3;

/// A command whose files are checked.
#[derive(Clone, Default)]
struct Case {
    words: String,
    /// The arguments in `files.txt` that this case tests.
    about: Vec<String>,
    /// The results for which an old file exists before the command runs.
    old: Vec<&'static str>,
    /// Files that the command writes.
    results: Vec<&'static str>,
    /// The mode that results must have. The value is `None` if they may have the mode of a new file.
    mode: Option<u32>,
}

impl Case {
    /// Creates a case of a command that replaces files. The case tests these arguments of `command`.
    fn replaces(command: &str, arguments: &[&str], words: &str, results: &[&'static str]) -> Case {
        Case { old: results.to_vec(), mode: Some(PRIVATE), ..Case::makes(command, arguments, words, results) }
    }

    /// Creates a case of a command that creates files. The case tests these arguments of `command`.
    fn makes(command: &str, arguments: &[&str], words: &str, results: &[&'static str]) -> Case {
        Case {
            words: format!("{command} {words}"),
            about: arguments.iter().map(|argument| format!("{command} {argument}")).collect(),
            results: results.to_vec(),
            ..Case::default()
        }
    }

    /// Sets the mode that results must have, which is the mode of their input files.
    fn with_mode(self, mode: u32) -> Case {
        Case { mode: Some(mode), ..self }
    }
}

fn file(mode: u32, bytes: impl Into<Vec<u8>>) -> tree::File {
    tree::File { mode, bytes: bytes.into() }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn lines() -> String {
    (0..300).map(|line| format!("{} the dog is over there\n", line * 7919 % 300)).collect()
}

/// Returns the files that commands read.
fn inputs() -> Files {
    let rows = (0..200).map(|row| format!("town{},{}\n", row % 7, row * 31 % 100));
    let bases = (0..600).map(|place| ["A", "C", "G", "T"][place * place % 7 % 4]);
    let inputs = [
        ("lines.txt", file(PRIVATE, lines())),
        ("more.txt", file(PRIVATE, lines())),
        ("packed.gz", file(PRIVATE, gzip(lines().as_bytes()))),
        ("table.csv", file(0o644, format!("town,amount\n{}", rows.collect::<String>()))),
        ("reads.fa", file(0o644, format!(">one\n{}\n", bases.collect::<String>()))),
        (
            "links.txt",
            file(
                0o644,
                (0..300).map(|edge| format!("{} {}\n", edge % 17, edge * 31 % 90)).collect::<String>(),
            ),
        ),
        (
            "roads.txt",
            file(
                0o644,
                (0..300)
                    .map(|edge| format!("{} {} {}.5\n", edge % 17, edge * 31 % 90, edge % 9))
                    .collect::<String>(),
            ),
        ),
        ("query.sql", file(0o644, "SELECT town, sum(amount) AS sum FROM 'table.csv' GROUP BY town")),
        ("near.sql", file(0o644, "SELECT town, sum(amount) AS sum FROM 'store:table.csv' GROUP BY town")),
        ("lines.wasm", file(0o644, kernels::lines())),
        ("mine/kernel.c", file(0o644, "")),
        ("points.bvecs", file(0o644, [2, 0, 0, 0, 7, 8, 2, 0, 0, 0, 9, 9])),
        (REPORT, file(0o600, "")),
    ];
    inputs.into_iter().map(|(name, file)| (name.to_string(), file)).collect()
}

fn cases() -> Vec<Case> {
    let (makes, replaces) = (Case::makes, Case::replaces);
    let mut cases = vec![
        replaces("sort", &["--output"], "lines.txt -o out.txt --json", &["out.txt"]),
        makes("sort", &["--output"], "lines.txt more.txt -o out.txt --json --threads 3", &["out.txt"]),
        replaces("sort", &["--output"], "table.csv --key amount -o out.parquet --json", &["out.parquet"]),
        replaces(
            "reduce",
            &["--output"],
            "table.csv --by town --sum amount -o out.arrow --json",
            &["out.arrow"],
        ),
        replaces(
            "count kmers",
            &["--output", "--histogram"],
            "reads.fa -k 5 -o out.csv --histogram histogram.csv --json",
            &["out.csv", "histogram.csv"],
        ),
        replaces("count values", &["--output"], "table.csv --column town -o out.csv --json", &["out.csv"]),
        replaces("count words", &["--output"], "lines.txt -o out.csv --json", &["out.csv"]),
        replaces(
            "search",
            &["--output", "--counters"],
            "1.*dog lines.txt --output found.txt --counters counters.json",
            &["found.txt", "counters.json"],
        ),
        // A search for matches that span lines reads the files in a different way.
        makes(
            "search",
            &["--output", "--counters"],
            "-U 1.*dog lines.txt --output found.txt --counters counters.json",
            &["found.txt", "counters.json"],
        ),
        replaces("sql", &["--output"], "--file query.sql -o out.csv --json", &["out.csv"]),
        replaces(
            "language identify",
            &["--output"],
            "--profiles few --lines lines.txt -o out.csv --json",
            &["out.csv"],
        ),
        makes("compress", &["inputs"], "lines.txt --rm --json", &["lines.txt.zst"]).with_mode(PRIVATE),
        makes("compress", &["inputs"], "lines.txt more.txt --rm --json", &["lines.txt.zst", "more.txt.zst"])
            .with_mode(PRIVATE),
        replaces("compress", &["--output"], "table.csv -o out.gz --force --rm --json", &["out.gz"])
            .with_mode(0o644),
        makes("decompress", &["inputs"], "packed.gz --rm --json", &["packed"]).with_mode(PRIVATE),
        replaces("decompress", &["--output"], "packed.gz -o out --force --rm --json", &["out"]),
        replaces(
            "kernel run",
            &["--output", "--counters"],
            "lines.wasm --args 1 lines.txt --output out.txt --counters counters.json --json",
            &["out.txt", "counters.json"],
        ),
        makes("kernel build", &["folder"], "mine --json", &["mine/mine.wasm"]),
        makes(
            "kernel new",
            &["folder"],
            "deep/new --language c --json",
            &["deep/new/.gitignore", "deep/new/README.md", "deep/new/inshore.h", "deep/new/kernel.c"],
        ),
        makes(
            "node credentials",
            &["folder"],
            "deep/keys --for-node a --address a.lan --json",
            &["deep/keys/authority.json", "deep/keys/node-a.json"],
        )
        .with_mode(PRIVATE),
        makes(
            "node credentials",
            &["folder"],
            "deep/keys --for-client c --json",
            &["deep/keys/authority.json", "deep/keys/client-c.json"],
        )
        .with_mode(PRIVATE),
        replaces("store get", &["--output"], "lines.txt -o out.txt --json", &["out.txt"]),
        replaces(
            "store bench",
            &["--output"],
            "{elsewhere} --seconds 1 --quick --size 16MiB -o out.svg --json",
            &["out.svg"],
        ),
        replaces("graph export", &["--output"], "g -o out.csv --json", &["out.csv"]),
        replaces("graph export", &["--output"], "g -o out.bin --json", &["out.bin"]),
        replaces("nearest query", &["--output"], "points points.bvecs -o out.csv --json", &["out.csv"]),
        replaces("nearest join", &["--output"], "points points -o out.csv --json", &["out.csv"]),
        replaces("nearest dedup", &["--output"], "points --radius 5 -o out.csv --json", &["out.csv"]),
        replaces("nearest graph", &["--output"], "points -o out.csv --json", &["out.csv"]),
    ];
    for algorithm in ["pagerank", "bfs", "sssp", "communities", "clustering", "components", "betweenness"] {
        let graph = match algorithm {
            "bfs" => "g --source 10",
            "sssp" => "weighted --source 10",
            _ => "g",
        };
        let words = format!("{graph} -o out.csv --json");
        cases.push(replaces(&format!("graph {algorithm}"), &["--output"], &words, &["out.csv"]));
    }
    cases
}

/// Lists commands over data on a node. [`cases`] has similar commands over local files.
fn cases_on_nodes() -> Vec<Case> {
    let near = |command: &str, arguments: &[&str], words: &str, results: &[&'static str]| {
        Case::replaces(command, arguments, &format!("{words} --node {{node}}"), results)
    };
    vec![
        near("sort", &["--output"], "store:lines.txt -o out.txt --json", &["out.txt"]),
        near("cluster sort", &["--output"], "store:lines.txt -o out.txt --json", &["out.txt"]),
        near(
            "cluster reduce",
            &["--output"],
            "store:table.csv --by town --count -o out.csv --json",
            &["out.csv"],
        ),
        near("cluster sql", &["--output"], "--file near.sql -o out.csv --json", &["out.csv"]),
        near("cluster pagerank", &["--output"], "store:links.txt -o out.csv --json", &["out.csv"]),
        near("cluster bfs", &["--output"], "store:links.txt --source 1 -o out.csv --json", &["out.csv"]),
        near("cluster components", &["--output"], "store:links.txt -o out.csv --json", &["out.csv"]),
        near("cluster sssp", &["--output"], "store:roads.txt --source 1 -o out.csv --json", &["out.csv"]),
        near("reduce", &["--output"], "store:table.csv --by town --count -o out.csv --json", &["out.csv"]),
        near("count values", &["--output"], "store:table.csv --column town -o out.csv --json", &["out.csv"]),
        near("count words", &["--output"], "store:lines.txt -o out.csv --json", &["out.csv"]),
        near(
            "count kmers",
            &["--output", "--histogram"],
            "store:reads.fa -k 5 -o out.csv --histogram histogram.csv --json",
            &["out.csv", "histogram.csv"],
        ),
        near(
            "search",
            &["--output", "--counters"],
            "dog store:lines.txt --output found.txt --counters counters.json",
            &["found.txt", "counters.json"],
        ),
        near("sql", &["--output"], "--file near.sql -o out.csv --json", &["out.csv"]),
        near("compress", &["--output"], "store:lines.txt -o out.zst --force --json", &["out.zst"]),
        near(
            "kernel run",
            &["--output", "--counters"],
            "lines.wasm --args 1 store:lines.txt --output out.txt --counters counters.json --json",
            &["out.txt", "counters.json"],
        ),
        near("store get", &["--output"], "lines.txt -o out.txt --json", &["out.txt"]),
    ]
}

/// Mounts a drive with these files. If this machine cannot mount by FUSE, prints that and returns `None`.
fn mounted(files: &Files, knows_unnamed: bool) -> Option<Disk> {
    match Disk::mount(files, knows_unnamed) {
        Ok(disk) => Some(disk),
        Err(error) => {
            println!("skipped: no file system can be mounted by FUSE here: {error}");
            None
        }
    }
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

fn check(recording: &Recording) -> Result<usize, String> {
    recording.check(number("INSHORE_POWER_LOSSES", 300), number("INSHORE_SEED", 1) as u64)
}

/// Runs commands on a drive and simulates power losses.
struct Trial {
    /// The folder with the store that commands use.
    folder: Folder,
    node: Option<Node>,
    skipped: Mutex<BTreeSet<String>>,
}

impl Trial {
    fn new() -> Trial {
        let folder = Folder::new();
        for (name, file) in inputs().iter().filter(|(name, _)| !name.contains('/')) {
            folder.write(name, &file.bytes);
        }
        fs::create_dir(folder.path("elsewhere")).unwrap();
        folder.run("graph import - --name g").stdin(EDGES).ok();
        let weighted: String = EDGES.lines().skip(1).map(|edge| format!("{edge} 1.5\n")).collect();
        folder.run("graph import - --name weighted --weighted").stdin(weighted).ok();
        folder.run("language train en=lines.txt de=query.sql --name few").ok();
        folder.run("store put lines.txt").ok();
        folder.run("nearest import points.bvecs --name points").ok();
        // This script replaces clang: it copies an existing kernel.
        let clang = format!(
            "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\n/bin/cp {} \"$2\"\n",
            folder.path("lines.wasm").display()
        );
        folder.write("clang", clang);
        fs::set_permissions(folder.path("clang"), fs::Permissions::from_mode(0o755)).unwrap();
        Trial { folder, node: None, skipped: Mutex::default() }
    }

    fn with_node(self) -> Trial {
        let node = Node::start_with(&self.folder, "node", "1GiB", "--log none");
        for name in ["lines.txt", "table.csv", "reads.fa", "links.txt", "roads.txt"] {
            self.folder.run(&format!("store put {name} --node {}", node.address)).ok();
        }
        Trial { node: Some(node), ..self }
    }

    /// Runs all cases. `one` runs a case and returns the number of power losses.
    fn all(&self, cases: &[Case], one: impl Fn(&Case) -> Result<usize, String> + Sync) {
        let queue = Mutex::new(cases.iter());
        let (failures, losses) = (Mutex::new(Vec::new()), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    loop {
                        let Some(case) = queue.lock().unwrap().next() else { break };
                        match one(case) {
                            Ok(count) => *losses.lock().unwrap() += count,
                            Err(wrong) => {
                                failures.lock().unwrap().push(format!("inshore {}: {wrong}", case.words));
                            }
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().unwrap();
        self.skipped.lock().unwrap().iter().for_each(|reason| println!("skipped: {reason}"));
        assert!(failures.is_empty(), "{} commands:\n{}", failures.len(), failures.join("\n\n"));
        println!("{} commands, {} power losses", cases.len(), losses.into_inner().unwrap());
    }

    /// Returns the files that exist before the command of a case runs.
    fn files(case: &Case) -> Files {
        let mut files = inputs();
        files.extend(case.old.iter().map(|name| (name.to_string(), file(PRIVATE, "old"))));
        files
    }

    /// Runs the command of a case in `folder`, with `report` as standard output. The command must succeed. Returns
    /// false if this machine cannot run the command.
    fn run(&self, case: &Case, folder: &Path, report: File) -> Result<bool, String> {
        let node = self.node.as_ref().map_or("", |node| &node.address);
        let elsewhere = self.folder.path("elsewhere");
        let words = case.words.replace("{node}", node).replace("{elsewhere}", elsewhere.to_str().unwrap());
        let run = self.folder.run(&words).inside(folder).stdout_to(report);
        let (code, said) = run.env("CLANG", self.folder.path("clang")).ends();
        if code != Some(0) && said.stderr.contains("protection") {
            self.skipped.lock().unwrap().insert("this machine cannot contain kernels".to_string());
            return Ok(false);
        }
        match code {
            Some(0) => Ok(true),
            _ => Err(format!("ended with {code:?}: {}", said.stderr)),
        }
    }

    /// Runs a case once, and simulates power losses between the changes of files.
    fn one(&self, case: &Case, knows_unnamed: bool) -> Result<usize, String> {
        let files = Trial::files(case);
        let disk = Disk::mount(&files, knows_unnamed).map_err(|error| error.to_string())?;
        let report = File::options().write(true).open(disk.join(REPORT)).unwrap();
        if !self.run(case, disk.path(), report)? {
            return Ok(0);
        }
        let changes = disk.content().changes.clone();
        drop(disk);
        let recording = Recording::new(&files, changes, REPORT);
        wrote(case, &recording)?;
        check(&recording)
    }

    /// Runs a case once, and simulates power losses between the block writes of ext4.
    fn one_on_ext4(&self, case: &Case, journal: Journal, losses_max: usize) -> Result<usize, String> {
        let told = |error: std::io::Error| error.to_string();
        let mut files = Trial::files(case);
        files.remove(REPORT);
        let ext4 = Ext4::mount(&files, REPORT, journal).map_err(told)?;
        let before = ext4.begin();
        if !self.run(case, ext4.path(), ext4.beside(REPORT).map_err(told)?)? {
            return Ok(0);
        }
        let recording = ext4.recording(before, REPORT).map_err(told)?;
        drop(ext4);
        wrote(case, &recording)?;
        let scratch = blocks::scratch().map_err(told)?;
        let look = |drive| Ext4::look(scratch.path(), &drive, journal);
        recording.check_by(losses_max, number("INSHORE_SEED", 1) as u64, look)
    }
}

/// Checks that a command wrote exactly the results of its case, with the right mode.
fn wrote(case: &Case, recording: &Recording) -> Result<(), String> {
    let (found, mut wanted) = (recording.results().cloned().collect::<Vec<_>>(), case.results.clone());
    wanted.sort_unstable();
    if found != wanted {
        return Err(format!("wrote {found:?}, not {wanted:?}"));
    }
    for path in found {
        let mode = recording.new[&path].mode;
        if case.mode.is_some_and(|wanted| mode != wanted) {
            return Err(format!("{path} has the mode {mode:o}"));
        }
    }
    Ok(())
}

#[test]
fn files_that_verbs_write_survive_a_power_loss_after_any_change() {
    if mounted(&Files::new(), true).is_some() {
        let trial = Trial::new();
        trial.all(&cases(), |case| trial.one(case, true));
    }
}

#[test]
fn files_of_answers_of_nodes_survive_a_power_loss_after_any_change() {
    if mounted(&Files::new(), true).is_some() {
        let trial = Trial::new().with_node();
        trial.all(&cases_on_nodes(), |case| trial.one(case, true));
    }
}

/// Tests a file system that does not support files without a name (O_TMPFILE). Commands then write files under a
/// temporary name.
#[test]
fn files_survive_a_power_loss_where_all_files_have_names() {
    if mounted(&Files::new(), false).is_some() {
        let trial = Trial::new();
        trial.all(&few_cases(), |case| trial.one(case, false));
    }
}

/// Lists a few commands that together cover all ways in which files are written.
fn few_cases() -> Vec<Case> {
    let mut cases = cases();
    cases.retain(|case| {
        let verbs = ["sort", "compress", "count kmers", "node credentials"];
        verbs.iter().any(|verb| case.words.starts_with(verb))
    });
    cases
}

/// Mounts an ext4 file system with these files. If this machine cannot mount it, prints that and returns `None`.
fn on_ext4(files: &Files, journal: Journal) -> Option<Ext4> {
    let ext4 = Ext4::mount(files, REPORT, journal);
    ext4.inspect_err(|error| println!("skipped: no ext4 can be made and mounted here: {error}")).ok()
}

fn try_on_ext4(journal: Journal) {
    if on_ext4(&Files::new(), journal).is_none() {
        return;
    }
    let (cases, losses_max) = match number("INSHORE_POWER_MOUNTS", 0) {
        0 => (few_cases(), MOUNTS),
        losses_max => (cases(), losses_max),
    };
    let trial = Trial::new();
    trial.all(&cases, |case| trial.one_on_ext4(case, journal, losses_max));
}

#[test]
fn files_on_ext4_survive_a_power_loss_after_any_block() {
    try_on_ext4(Journal::With);
}

#[test]
fn files_on_ext4_without_a_journal_survive_a_power_loss_after_any_block() {
    try_on_ext4(Journal::Without);
}

/// Tests `inshore man`, which syncs each page. On some drives these syncs take longer than all other commands together,
/// but the drive of this test is in memory.
#[test]
fn manual_pages_survive_a_power_loss_after_any_change() {
    let Some(disk) = mounted(&inputs(), true) else { return };
    let report = File::options().write(true).open(disk.join(REPORT)).unwrap();
    Folder::new().run("man --out deep/pages").inside(disk.path()).stdout_to(report).ok();
    let recording = Recording::new(&inputs(), disk.content().changes.clone(), REPORT);
    assert!(recording.results().all(|path| path.starts_with("deep/pages/inshore")));
    assert!(recording.results().count() > 50);
    check(&recording).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn every_argument_that_names_a_file_to_write_is_tried() {
    let written = FILES.lines().filter_map(|line| Some(line.strip_prefix("writes ")?.trim().to_string()));
    // Some commands run on nodes alone.
    let tried = cases()
        .into_iter()
        .chain(cases_on_nodes())
        .flat_map(|case| case.about)
        .chain(["man --out".to_string()]);
    assert_eq!(tried.collect::<BTreeSet<_>>(), written.collect::<BTreeSet<_>>());
    for case in cases_on_nodes() {
        assert!(
            case.about.iter().all(|about| FILES.contains(&format!("writes {about}\n"))),
            "{}",
            case.words
        );
    }
}

/// A case of [`each_sync_that_is_left_out_is_found`]: its name, and a function that works on files in a folder. The
/// last element is a part of the message about the fault that a power loss causes (`None`: no fault).
type FileWorkload = (&'static str, fn(&Path), Option<&'static str>);

fn write(path: &Path) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(b"new").unwrap();
    file
}

/// Renames the file `.part` to its final name.
fn rename(folder: &Path, name: &str) {
    fs::rename(folder.join(".part"), folder.join(name)).unwrap();
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Creates a file without a name, and then gives it a name by a link.
fn link_unnamed(folder: &Path, name: &str) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(0o600)).unwrap());
    file.write_all(b"new").unwrap();
    file.sync_all().unwrap();
    let unnamed = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, &unnamed, CWD, folder.join(name), AtFlags::SYMLINK_FOLLOW).unwrap();
    file
}

/// Tests the simulation of losses itself. The simulation must detect known errors, and must accept sequences of
/// operations that are correct.
#[test]
fn each_sync_that_is_left_out_is_found() {
    let habits: [FileWorkload; 12] = [
        (
            "nothing is synced",
            |at| {
                write(&at.join(".part"));
                rename(at, "out");
            },
            Some("out is absent"),
        ),
        (
            "the name is not synced",
            |at| {
                write(&at.join(".part")).sync_all().unwrap();
                rename(at, "out");
            },
            Some("out is absent"),
        ),
        (
            "the file is written in place",
            |at| {
                write(&at.join("old")).sync_all().unwrap();
                sync(at);
            },
            Some("old is 0 bytes"),
        ),
        (
            "the file is synced and then renamed",
            |at| {
                write(&at.join(".part")).sync_all().unwrap();
                rename(at, "old");
                sync(at);
            },
            Some("without a journal"),
        ),
        (
            "the file is synced and then exchanges its name with the old one",
            |at| {
                write(&at.join(".part")).sync_all().unwrap();
                renameat_with(CWD, at.join(".part"), CWD, at.join("old"), RenameFlags::EXCHANGE).unwrap();
                sync(at);
                fs::remove_file(at.join(".part")).unwrap();
            },
            None,
        ),
        (
            "the file is renamed and then synced",
            |at| {
                let file = write(&at.join(".part"));
                rename(at, "old");
                file.sync_all().unwrap();
                sync(at);
            },
            Some("old is"),
        ),
        (
            "bytes are written after the file has its name",
            |at| {
                let mut file = write(&at.join(".part"));
                rename(at, "out");
                file.write_all(b"more").unwrap();
                file.sync_all().unwrap();
                sync(at);
            },
            Some("out is 3 bytes"),
        ),
        (
            "a file is removed before what it became is durable",
            |at| {
                write(&at.join(".part")).sync_all().unwrap();
                rename(at, "out");
                fs::remove_file(at.join("old")).unwrap();
                sync(at);
            },
            Some("old is absent"),
        ),
        (
            "the mode is set when others see the file",
            |at| {
                let file = write(&at.join(".part"));
                file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
                file.sync_all().unwrap();
                rename(at, "out");
                sync(at);
            },
            Some("more users"),
        ),
        (
            "the folder is not synced where it was made",
            |at| {
                fs::create_dir(at.join("deep")).unwrap();
                write(&at.join("deep/.part")).sync_all().unwrap();
                rename(&at.join("deep"), "out");
                sync(&at.join("deep"));
            },
            Some("deep/out is absent"),
        ),
        (
            "a file is synced only while it has no name",
            |at| {
                link_unnamed(at, "out");
                sync(at);
            },
            Some("without a journal"),
        ),
        (
            "a file is synced again when it has a name",
            |at| {
                link_unnamed(at, "out").sync_all().unwrap();
                sync(at);
            },
            None,
        ),
    ];
    let files = Files::from([("old".to_string(), file(0o600, "old"))]);
    for (habit, work, wrong) in habits {
        let Some(disk) = mounted(&files, true) else { return };
        let unnamed = rustix::fs::open(disk.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::empty());
        if matches!(unnamed, Err(Errno::OPNOTSUPP)) {
            println!("skipped: FUSE of this kernel makes no files without names");
            return;
        }
        disk.content().changes.clear();
        work(disk.path());
        let recording = Recording::new(&files, disk.content().changes.clone(), REPORT);
        match (check(&recording), wrong) {
            (Ok(losses), None) => assert!(losses > 20, "{habit}: {losses}"),
            (Err(found), Some(wrong)) => assert!(found.contains(wrong), "{habit}: {found}"),
            (Ok(_), Some(_)) => panic!("{habit}: not found"),
            (Err(found), None) => panic!("{habit}: {found}"),
        }
    }
}

/// Tests the simulation under ext4. The simulation must detect the losses that ext4 is known to cause.
#[test]
fn what_ext4_loses_is_found() {
    let habits: [(Journal, FileWorkload); 4] = [
        (
            Journal::With,
            (
                "the name is not synced",
                |at| {
                    write(&at.join(".part")).sync_data().unwrap();
                    rename(at, "old");
                },
                Some("old is 3 bytes of mode 600"),
            ),
        ),
        (
            Journal::Without,
            (
                "a file is synced only while it has no name",
                |at| {
                    link_unnamed(at, "out");
                    sync(at);
                },
                Some("out is absent"),
            ),
        ),
        (
            Journal::Without,
            (
                "the file is renamed, and the old one freed before the folder is written",
                |at| {
                    write(&at.join(".part")).sync_all().unwrap();
                    rename(at, "old");
                    // The inodes of these files are in the same block as the inode of the old file.
                    for name in ["a", "b", "y", "z"] {
                        fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o644)).unwrap();
                        sync(&at.join(name));
                    }
                    sync(at);
                },
                Some("old is absent"),
            ),
        ),
        (
            Journal::Without,
            (
                "a file is synced again when it has a name",
                |at| {
                    link_unnamed(at, "out").sync_all().unwrap();
                    sync(at);
                },
                None,
            ),
        ),
    ];
    let files = ["a", "b", "old", "y", "z"].map(|name| (name.to_string(), file(0o600, "old")));
    for (journal, (habit, work, wrong)) in habits {
        let Some(ext4) = on_ext4(&files.clone().into(), journal) else { return };
        let before = ext4.begin();
        work(ext4.path());
        let recording = ext4.recording(before, REPORT).unwrap();
        drop(ext4);
        let scratch = blocks::scratch().unwrap();
        let look = |drive| Ext4::look(scratch.path(), &drive, journal);
        match (recording.check_by(100, number("INSHORE_SEED", 1) as u64, look), wrong) {
            (Ok(losses), None) => assert!(losses > 20, "{habit}: {losses}"),
            (Err(found), Some(wrong)) => assert!(found.contains(wrong), "{habit}: {found}"),
            (Ok(_), Some(_)) => panic!("{habit}: not found"),
            (Err(found), None) => panic!("{habit}: {found}"),
        }
    }
}
