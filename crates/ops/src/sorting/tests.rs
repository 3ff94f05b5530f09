//! These tests sort on nodes in this process, with planned faults. The results equal those of local sorts byte by
//! byte.

use std::{
    fs,
    io::Cursor,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, UInt32Array};
use inshore_kernel::{
    Contents, Failure, Parts, Portable, Reply, RequiredRight, Task, TaskHandler, TaskHandlers,
};
use inshore_nodes::{Agent, AgentConfig, ClientConfig, LoadOptions, OrderedRow, RunningAgent};
use inshore_store::{Budget, Cancel, Deadline, Limits, Store};
use inshore_tables::{Input, sort_lines, sort_records, sort_table};
use tempfile::TempDir;

use super::{bytes::ByteRows, table::TableRows, *};
use crate::testing::{slow_store, write_parquet};

/// The planned fault of a node. The fault occurs after a given number of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The task fails.
    Fails,
    /// The node sends an invalid row.
    Garbage,
    /// The task ends early, as if all rows were sent.
    EndsEarly,
    /// The node sends the last row twice.
    Twice,
    /// A read fails, after a number of successful reads.
    ReadFails,
}

type Plan = Arc<Mutex<(Fault, usize)>>;

/// A handler that sorts like [`Sorts`], but has a planned fault and sends batches of a few rows.
struct Faulty(Plan);

impl TaskHandler for Faulty {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let (fault, left) = *self.0.lock().unwrap();
        match Sorts.work(task, &mut FewRows { reply, fault, left }) {
            Err(error) if error.to_string() == "ends early" => Ok(serde_json::json!({})),
            done => done,
        }
    }
}

/// The handler of read tasks on a node, with a planned fault.
struct Reads(Plan);

impl TaskHandler for Reads {
    fn kind(&self) -> &'static str {
        Contents::KIND
    }

    fn needs(&self) -> RequiredRight {
        Contents::NEEDS
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let (fault, left) = *self.0.lock().unwrap();
        let reads_fail = matches!(fault, Fault::ReadFails);
        if reads_fail && left > 0 {
            self.0.lock().unwrap().1 -= 1;
        }
        match reads_fail && left == 0 {
            true => Err("a planned fault of reading".into()),
            false => Parts::<Contents>::default().work(task, reply),
        }
    }
}

struct FewRows<'a> {
    reply: &'a mut dyn Reply,
    fault: Fault,
    left: usize,
}

impl Reply for FewRows<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        for start in (0..batch.num_rows()).step_by(5) {
            let few = batch.slice(start, 5.min(batch.num_rows() - start));
            match self.fault {
                Fault::None | Fault::ReadFails => {}
                _ if self.left > 0 => self.left -= 1,
                Fault::Fails => return Err("a planned fault".into()),
                Fault::EndsEarly => return Err("ends early".into()),
                Fault::Twice => {
                    self.fault = Fault::None;
                    self.reply.batch(batch.slice(start - 1, 1))?;
                }
                Fault::Garbage => {
                    let mut columns = few.columns().to_vec();
                    let garbage: ArrayRef =
                        Arc::new(BinaryArray::from(vec![&b"garbage"[..]; few.num_rows()]));
                    // Any text is valid in a column of a table, but a null in the column of shard numbers is
                    // invalid.
                    match columns[0].data_type() == garbage.data_type() {
                        true => columns[0] = garbage,
                        false => {
                            let pieces = UInt32Array::from(vec![None; few.num_rows()]);
                            *columns.last_mut().unwrap() = Arc::new(pieces);
                        }
                    }
                    let bad = RecordBatch::try_from_iter(
                        columns.into_iter().enumerate().map(|(number, column)| (number.to_string(), column)),
                    );
                    return self.reply.batch(bad?);
                }
            }
            self.reply.batch(few)?;
        }
        Ok(())
    }
}

/// Nodes in this process, and a local folder.
struct Cluster {
    _serving: Vec<RunningAgent>,
    plans: Vec<Plan>,
    folders: Vec<TempDir>,
    nodes: Nodes,
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        Cluster::with_latency(count, Duration::ZERO)
    }

    /// Starts nodes whose drives have this latency for each read and write.
    fn with_latency(count: usize, latency: Duration) -> Cluster {
        let folders: Vec<TempDir> = (0..=count).map(|_| tempfile::tempdir().unwrap()).collect();
        let plans: Vec<Plan> = (0..count).map(|_| Arc::new(Mutex::new((Fault::None, 0)))).collect();
        let serve = |(number, plan): (usize, &Plan)| {
            let store = match latency.is_zero() {
                true => Store::open(folders[number].path()).unwrap(),
                false => slow_store(folders[number].path(), Limits { latency, ..Limits::default() }),
            };
            let works = TaskHandlers::default().with(Faulty(plan.clone())).with(Reads(plan.clone()));
            let config = AgentConfig::new(format!("n{number}"), 64 << 20, 2);
            Agent::new(store, works, config).serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let serving: Vec<RunningAgent> = plans.iter().enumerate().map(serve).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        Cluster { _serving: serving, plans, folders, nodes }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.folders.last().unwrap().path().join(name)
    }

    /// Writes a file locally and to the nodes. Each shard is stored on `copies` nodes.
    fn put(&self, name: &str, bytes: &[u8], copies: usize, record_bytes: Option<u64>) {
        self.put_in_pieces(name, bytes, (copies, 9), record_bytes);
    }

    fn put_in_pieces(
        &self,
        name: &str,
        bytes: &[u8],
        (copies, pieces): (usize, u64),
        record_bytes: Option<u64>,
    ) {
        fs::write(self.here(name), bytes).unwrap();
        let piece_bytes = Some(bytes.len() as u64 / pieces);
        let ends =
            crate::split_points::row_group_offsets(&Input::new(self.here(name)), job().budget()).unwrap();
        let options = LoadOptions {
            copies,
            piece_bytes,
            record_bytes,
            ends,
            block_bytes: 4096,
            ..LoadOptions::default()
        };
        let len = Some(bytes.len() as u64);
        self.nodes.put(&job(), name, (name, len), Cursor::new(bytes), &options).unwrap();
    }

    fn plan(&self, faults: &[(Fault, usize)]) {
        for (plan, fault) in self.plans.iter().zip(faults) {
            *plan.lock().unwrap() = *fault;
        }
    }

    fn sort(&self, name: &str, by: &SortBy, options: SortOptions, output: &str) -> Result<SortSummary> {
        let wholes = self.nodes.catalog()?.named(name)?;
        let job = job();
        let run = RunOptions::default();
        let sorted = sort_on_nodes(&self.nodes, &job, wholes, by, options, &self.here(output), &run);
        assert_eq!(job.budget().reserved_bytes(), 0);
        Ok(sorted?.0)
    }

    /// Sorts on nodes, while the client sorts some shards itself with this memory. Returns the nodes' counters,
    /// too.
    fn sort_together(
        &self,
        memory_bytes: u64,
        name: &str,
        by: &SortBy,
        options: SortOptions,
    ) -> Result<(SortSummary, GatherReport)> {
        let nodes = self.nodes.begin(Deadline::after(Duration::from_secs(120)));
        let wholes = nodes.catalog()?.named(name)?;
        let store = Store::open(self.here("store")).unwrap();
        let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
        let (help_from, help_on) = (Some(Duration::from_millis(60)), Some(store));
        let run = RunOptions { help_from, help_on, ..RunOptions::default() };
        let sorted = sort_on_nodes(&nodes, &job, wholes, by, options, &self.here("out.csv"), &run);
        assert_eq!(job.budget().reserved_bytes(), 0);
        sorted
    }

    /// Returns the result of a local sort.
    fn expected(&self, name: &str, by: &SortBy, options: SortOptions) -> Vec<u8> {
        let store = Store::open(self.here("store")).unwrap();
        let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
        let (inputs, output) = ([Input::new(self.here(name))], self.here("expected.csv"));
        let sorted = match by {
            SortBy::Lines => sort_lines(&job, &inputs, &output, options),
            SortBy::Records(bytes, key) => {
                let shape = inshore_sortreduce::rows::FixedRows::new(*bytes, key.clone());
                sort_records(&job, &inputs, &output, shape, options)
            }
            SortBy::Columns { keys, as_text, .. } => {
                sort_table(&job, &inputs, &output, keys, as_text, options)
            }
        };
        sorted.unwrap();
        fs::read(output).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.here(name)).unwrap()
    }
}

fn job() -> Context {
    Context::new(Budget::new(64 << 20, 2), Cancel::default())
}

const ROWS: usize = 3000;

/// Returns many lines with few different values. The last line has no line feed.
fn lines(rows: usize) -> Vec<u8> {
    let all: String = (0..rows).map(|row| format!("{}\n", "x".repeat(row * 7919 % 31))).collect();
    all.into_bytes()[..].strip_suffix(b"\n").unwrap().to_vec()
}

/// Returns records with few different keys, in the second and third byte. The last two bytes identify the record.
fn records(rows: usize) -> Vec<u8> {
    let record = |row: usize| {
        let [a, b, ..] = ((row * 7919 % 13) as u16).to_be_bytes();
        let [_, _, c, d, ..] = (row as u32).to_be_bytes();
        [7, a, b, c, d]
    };
    (0..rows).flat_map(record).collect()
}

/// Returns a table with ties and nulls in both keys.
fn table(rows: usize) -> Vec<u8> {
    let row = |row: usize| {
        let town = ["Ulm", "", "Kiel"][row * 7919 % 3];
        let number = if row % 11 == 4 { String::new() } else { (row * 31 % 7).to_string() };
        format!("{row},{town},{number}\n")
    };
    ("row,town,number\n".to_string() + &(0..rows).map(row).collect::<String>()).into_bytes()
}

fn key(column: &str, descending: bool) -> SortKey {
    SortKey { column: column.to_string(), descending }
}

type Way = (&'static str, Vec<u8>, Option<u64>, SortBy);

fn ways() -> [Way; 3] {
    ways_of(ROWS)
}

fn ways_of(rows: usize) -> [Way; 3] {
    let keys = vec![key("town", true), key("number", false)];
    [
        ("lines.txt", lines(rows), None, SortBy::Lines),
        ("records.bin", records(rows), Some(5), SortBy::Records(5, 1..3)),
        (
            "table.csv",
            table(rows),
            None,
            SortBy::Columns { keys, as_text: Vec::new(), header: Header::default() },
        ),
    ]
}

const ALL_OPTIONS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn nodes_sort_as_one_machine_does_with_equal_rows_in_their_order() {
    let cluster = Cluster::new(3);
    for (name, bytes, record_bytes, by) in ways() {
        cluster.put(name, &bytes, 1, record_bytes);
        for (descending, unique) in ALL_OPTIONS {
            let options = SortOptions { descending, unique, resume: false };
            let summary = cluster.sort(name, &by, options, "out.csv").unwrap();
            let expected = cluster.expected(name, &by, options);
            assert!(cluster.read("out.csv") == expected, "{name} {options:?}");
            assert_eq!(summary.bytes, expected.len() as u64);
            assert_eq!(summary.rows < ROWS as u64, unique, "{name}");
        }
    }
}

#[test]
fn every_row_comes_once_wherever_nodes_are_lost_in_their_answers() {
    let cluster = Cluster::new(4);
    for (name, bytes, record_bytes, by) in ways() {
        cluster.put(name, &bytes, 3, record_bytes);
        for (descending, unique) in ALL_OPTIONS {
            let options = SortOptions { descending, unique, resume: false };
            let expected = cluster.expected(name, &by, options);
            for after in [0, 1, 5, 17, 60, 140] {
                for fault in [Fault::Fails, Fault::Garbage] {
                    let fine = (Fault::None, 0);
                    cluster.plan(&[fine, (fault, after), fine, fine]);
                    cluster.sort(name, &by, options, "out.csv").unwrap();
                    assert!(cluster.read("out.csv") == expected, "{name} {options:?} {fault:?} {after}");
                    // The node that repeats the task of the lost node is lost too.
                    cluster.plan(&[(fault, after / 2), fine, (Fault::Fails, after + 3), fine]);
                    cluster.sort(name, &by, options, "out.csv").unwrap();
                    assert!(cluster.read("out.csv") == expected, "{name} {options:?} {fault:?} {after}, two");
                }
            }
        }
    }
}

/// With this number of rows, the shards exceed the memory of a node's task.
const MANY_ROWS: usize = 60_000;

/// Returns the kinds of sorts. They include Parquet whose row groups lie within shards, and keys that occur in
/// several shards.
fn ways_together() -> Vec<Way> {
    let mut all = ways_of(MANY_ROWS).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let (csv, parquet) = (folder.path().join("table.csv"), folder.path().join("table.parquet"));
    fs::write(&csv, table(MANY_ROWS)).unwrap();
    write_parquet(&csv, &parquet, 1000);
    let by = all[2].3.clone();
    all.push(("table.parquet", fs::read(parquet).unwrap(), None, by));
    // Each key occurs in two or three consecutive shards, so that the order of the shards matters.
    let late = |row: u32| [(row / 5000) as u8].into_iter().chain(row.to_be_bytes());
    let late: Vec<u8> = (0..MANY_ROWS as u32).flat_map(late).collect();
    let rows: String = (0..MANY_ROWS).map(|row| format!("{row},t{}\n", row / 5000)).collect();
    let town =
        SortBy::Columns { keys: vec![key("town", false)], as_text: Vec::new(), header: Header::default() };
    all.push(("late.bin", late, Some(5), SortBy::Records(5, 0..1)));
    all.push(("late.csv", format!("row,town\n{rows}").into_bytes(), None, town));
    all
}

#[test]
fn what_slow_nodes_have_not_begun_is_sorted_here_and_nobody_can_tell() {
    let cluster = Cluster::with_latency(2, Duration::from_millis(12));
    for (way, (name, bytes, record_bytes, by)) in ways_together().into_iter().enumerate() {
        cluster.put_in_pieces(name, &bytes, (1, 24), record_bytes);
        // Each kind of sort runs with two of the options, and each option with two kinds of sorts.
        for (descending, unique) in ALL_OPTIONS.into_iter().skip(way % 2).step_by(2) {
            let options = SortOptions { descending, unique, resume: false };
            let (summary, gathered) = cluster.sort_together(256 << 20, name, &by, options).unwrap();
            let expected = cluster.expected(name, &by, options);
            assert!(cluster.read("out.csv") == expected, "{name} {options:?}");
            assert_eq!(summary.bytes, expected.len() as u64);
            assert_eq!(summary.stats.rows_in, MANY_ROWS as u64, "{name}");
            let here = gathered.here.unwrap();
            assert!(here.pieces > 0 && here.bytes > 0, "{name} {options:?}: {here:?}");
            assert!(!here.why.contains("order"), "{name} {options:?}: {here:?}");
        }
    }
    // If the client has too little memory or no store, the nodes sort all shards.
    let (name, .., by) = &ways()[0];
    let (_, gathered) = cluster.sort_together(48 << 20, name, by, SortOptions::default()).unwrap();
    let here = gathered.here.unwrap();
    assert!(here.pieces == 0 && here.why.contains("too small"), "{here:?}");
    let expected = cluster.expected(name, by, SortOptions::default());
    assert!(cluster.read("out.csv") == expected);
    let wholes = cluster.nodes.catalog().unwrap().named(name).unwrap();
    let (run, plain) = (RunOptions::default(), Context::new(Budget::new(1 << 30, 2), Cancel::default()));
    let output = cluster.here("plain");
    let sorted =
        sort_on_nodes(&cluster.nodes, &plain, wholes, by, SortOptions::default(), &output, &run).unwrap();
    let here = sorted.1.here.unwrap();
    assert!(here.pieces == 0 && here.why.contains("no store"), "{here:?}");
    assert!(cluster.read("plain") == expected);
}

/// The environment variable INSHORE_SEEDS sets the number of seeds.
#[test]
fn whatever_goes_wrong_while_a_sort_is_helped_every_row_comes_once() {
    let cluster = Cluster::with_latency(3, Duration::from_millis(8));
    let ways = ways_together();
    for (name, bytes, record_bytes, _) in &ways {
        cluster.put_in_pieces(name, bytes, (2, 24), *record_bytes);
    }
    let seeds = std::env::var("INSHORE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    let (mut good, mut helped, mut given_up) = (0, 0, 0);
    for seed in 1..=seeds {
        let mut dice = u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15);
        let mut below = |count: usize| {
            dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (dice >> 33) as usize % count
        };
        let (name, _, _, by) = &ways[below(ways.len())];
        let (descending, unique) = ALL_OPTIONS[below(4)];
        let options = SortOptions { descending, unique, resume: false };
        let mut faults = [(Fault::None, 0); 3];
        let faulty = below(3);
        for fault in &mut faults[..faulty] {
            let kinds = [Fault::Fails, Fault::Garbage, Fault::ReadFails, Fault::ReadFails];
            *fault = (kinds[below(kinds.len())], below(12));
        }
        faults.rotate_left(below(3));
        let nobody_gives_pieces = below(4) == 0;
        if nobody_gives_pieces {
            faults = [(Fault::ReadFails, usize::from(*name != "records.bin")); 3];
        }
        cluster.plan(&faults);
        let what = format!("seed {seed}: {name} {options:?} {faults:?}");
        match cluster.sort_together(256 << 20, name, by, options) {
            Ok((_, gathered)) => {
                assert!(cluster.read("out.csv") == cluster.expected(name, by, options), "{what}");
                let here = gathered.here.unwrap();
                helped += usize::from(here.pieces > 0);
                given_up += usize::from(here.why.contains("a planned fault"));
                good += 1;
            }
            Err(error) => {
                assert!(faulty > 1 && !nobody_gives_pieces, "{what}: {error}");
                assert!(!cluster.here("out.csv").exists(), "{what}");
            }
        }
        let _ = fs::remove_file(cluster.here("out.csv"));
    }
    let told = format!("{good} answers of {seeds}, {helped} with help, which was given up {given_up} times");
    println!("{told}");
    assert!(good > seeds / 2 && helped > seeds as usize / 4 && given_up > seeds as usize / 16, "{told}");
}

#[test]
fn what_no_other_node_has_is_an_error_and_leaves_nothing() {
    let cluster = Cluster::new(2);
    for (name, bytes, record_bytes, by) in ways() {
        cluster.put(name, &bytes, 1, record_bytes);
        for fault in [Fault::Fails, Fault::Garbage] {
            cluster.plan(&[(Fault::None, 0), (fault, 3)]);
            let error = cluster.sort(name, &by, SortOptions::default(), "out.csv").unwrap_err();
            let expected = if fault == Fault::Fails { "a planned fault" } else { "were not read" };
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!cluster.here("out.csv").exists());
        }
    }
    // One of the nodes ends early, or sends a row twice.
    for fault in [Fault::EndsEarly, Fault::Twice] {
        cluster.plan(&[(fault, 3), (Fault::None, 0)]);
        for (name, _, _, by) in &ways()[..2] {
            let error = cluster.sort(name, by, SortOptions::default(), "out.csv").unwrap_err();
            assert!(error.to_string().contains("received"), "{error}");
            assert!(!cluster.here("out.csv").exists());
        }
    }
}

#[test]
fn rows_that_no_node_should_give_are_none() {
    let how = |shape| RowHow { shape, descending: false, bytes_max: 40 };
    let of = |rows: &[&[u8]], shape| {
        let column: ArrayRef = Arc::new(BinaryArray::from_iter_values(rows));
        ByteRows::of_batch(&RecordBatch::try_from_iter([("row", column)]).unwrap(), &how(shape)).is_some()
    };
    assert!(of(&[b"\n", b"a\n", b"a\n", b"a\x01\n"], Shape::Lines));
    assert!(!of(&[b"b\n", b"a\n"], Shape::Lines));
    assert!(!of(&[b""], Shape::Lines) && !of(&[b"a"], Shape::Lines) && !of(&[b"a\nb\n"], Shape::Lines));
    assert!(
        !of(&[&[b'\n'; 41]], Shape::Lines) && !of(&[&[b"x".repeat(40), vec![b'\n']].concat()], Shape::Lines)
    );
    let records = Shape::records(2, &(1..2));
    assert!(of(&[b"za\0\0\0\x02", b"ya\0\0\0\x02", b"xb\0\0\0\0"], records));
    assert!(!of(&[b"za\0\0\0\x02", b"ya\0\0\0\x01"], records) && !of(&[b"za\0\0\0"], records));
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let numbers = RecordBatch::try_from_iter([("row", column)]).unwrap();
    assert!(ByteRows::of_batch(&numbers, &how(records)).is_none());
    let layout =
        TableLayout::plain("t", &numbers.schema(), &[key("row", false)], SortOptions::default()).unwrap();
    let how = TableHow::new("t", layout, false, 1000).unwrap();
    assert!(TableRows::of_batch(&numbers, &how).is_none());
}
