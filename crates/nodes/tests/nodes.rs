//! Tests jobs that a client runs on several agents in one process.

#[path = "nodes/admission.rs"]
mod admission;
#[path = "nodes/compression.rs"]
mod compression;
#[path = "nodes/connections.rs"]
mod connections;
#[path = "nodes/deadlines.rs"]
mod deadlines;
#[path = "nodes/generations.rs"]
mod generations;
#[path = "nodes/helping.rs"]
mod helping;
#[path = "nodes/loads.rs"]
mod loads;
#[path = "nodes/merging.rs"]
mod merging;
#[path = "nodes/misbehaving.rs"]
mod misbehaving;
#[path = "nodes/pages.rs"]
mod pages;
#[path = "nodes/stalls.rs"]
mod stalls;

use std::{
    io::Cursor,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_kernel::{
    Block, Border, Contents, Error as ReadError, Event, Failure, Kernel, Next, Parts, Portable, Reply, Task,
    TaskHandler, TaskHandlers,
};
use inshore_nodes::{
    Agent, AgentConfig, Authority, Catalog, ClientConfig, ClientCredentials, Error, GatherReport,
    LoadOptions, Nodes, Right, RunOptions, RunningAgent, run_on_nodes,
};
use inshore_store::{Budget, Cancel, Context, Deadline, Store};
use memchr::memmem;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest time that a test waits for an expected event. Only a failing test waits this long, so that a busy
/// machine causes no failures.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A kernel that finds the offset and the line number of each match of a needle.
struct Find {
    needle: String,
    /// The additional time for each block on a node, and on the client.
    slow: Duration,
    slow_here: Duration,
    /// True if the kernel fails on the client.
    fails_here: bool,
}

impl Kernel for Find {
    type Error = ReadError;
    type Worker = ();
    type Part = Vec<(u64, u64)>;

    fn border(&self) -> Border {
        Border::Line { numbered: true }
    }

    fn worker(&self, _: &Context) -> Result<(), ReadError> {
        Ok(())
    }

    fn block(&self, _: &mut (), block: &Block<'_>) -> Result<Vec<(u64, u64)>, ReadError> {
        thread::sleep(self.slow);
        if self.fails_here {
            return Err(ReadError::Stream("a planned fault".into()));
        }
        let (mut counted, mut line) = (0, block.first_line());
        let places = memmem::find_iter(block.bytes, self.needle.as_bytes());
        Ok(places
            .map(|place| {
                line += memchr::memchr_iter(b'\n', &block.bytes[counted..place]).count() as u64;
                counted = place;
                (block.offset + place as u64, line)
            })
            .collect())
    }
}

impl Portable for Find {
    const KIND: &'static str = "find";
    const CAN_HELP: bool = true;

    fn arguments(&self) -> Value {
        let millis = |time: Duration| time.as_millis() as u64;
        json!({ "needle": self.needle, "slow": millis(self.slow), "slow_here": millis(self.slow_here),
            "fails_here": self.fails_here })
    }

    fn of_arguments(arguments: &Value) -> Result<Self, ReadError> {
        let needle = arguments["needle"].as_str().ok_or_else(|| ReadError::Stream("no needle".into()))?;
        let millis = |name: &str| Duration::from_millis(arguments[name].as_u64().unwrap_or(0));
        Ok(Find { slow: millis("slow"), slow_here: millis("slow_here"), ..find(needle) })
    }

    fn for_client(arguments: &Value) -> Result<Self, ReadError> {
        let find = Find::of_arguments(arguments)?;
        Ok(Find { slow: find.slow_here, fails_here: arguments["fails_here"] == true, ..find })
    }

    fn encode(part: &Vec<(u64, u64)>, out: &mut Vec<u8>) {
        for (offset, line) in part {
            out.extend(offset.to_le_bytes());
            out.extend(line.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let pair = |pair: &[u8]| (number(&pair[..8]), number(&pair[8..]));
        bytes.len().is_multiple_of(16).then(|| bytes.chunks_exact(16).map(pair).collect())
    }
}

fn find(needle: &str) -> Find {
    Find { needle: needle.to_string(), slow: Duration::ZERO, slow_here: Duration::ZERO, fails_here: false }
}

/// A fault that a node injects after a number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// The task fails.
    Fails,
    /// The next row is sent twice.
    Twice,
    /// A row is omitted.
    Skips,
    /// The task ends early and reports success.
    EndsEarly,
    /// A row contains a part that cannot be decoded.
    Garbage,
    /// The task sends nothing more.
    Hangs,
    /// The row is repeated forever.
    Endless,
}

const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::Fails,
    Fault::Twice,
    Fault::Skips,
    Fault::EndsEarly,
    Fault::Garbage,
    Fault::Hangs,
    Fault::Endless,
];

type Plan = Arc<Mutex<(Fault, usize)>>;

/// Runs [`Parts`] of [`Find`] and injects the planned fault. Answers are sent row by row.
struct Faulty(Plan);

impl TaskHandler for Faulty {
    fn kind(&self) -> &'static str {
        Find::KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let (fault, after) = *self.0.lock().unwrap();
        let cancel = task.job.cancel().clone();
        let mut faulty = FaultyReply { reply, fault, after, cancel };
        match Parts::<Find>::default().work(task, &mut faulty) {
            Err(error) if error.to_string() == "ends early" => Ok(json!({})),
            done => done,
        }
    }
}

struct FaultyReply<'a> {
    reply: &'a mut dyn Reply,
    fault: Fault,
    after: usize,
    cancel: Cancel,
}

impl Reply for FaultyReply<'_> {
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        for row in 0..batch.num_rows() {
            let one = batch.slice(row, 1);
            if self.after > 0 {
                self.after -= 1;
                self.reply.batch(one)?;
                continue;
            }
            match std::mem::replace(&mut self.fault, Fault::None) {
                Fault::None => self.reply.batch(one)?,
                Fault::Fails => return Err("a planned fault".into()),
                Fault::Twice => {
                    self.reply.batch(one.clone())?;
                    self.reply.batch(one)?;
                }
                Fault::Skips => {}
                Fault::EndsEarly => return Err("ends early".into()),
                Fault::Garbage => {
                    let mut columns = one.columns().to_vec();
                    columns[4] = Arc::new(arrow_array::BinaryArray::from(vec![&b"garbage"[..]]));
                    self.reply.batch(RecordBatch::try_new(one.schema(), columns)?)?;
                }
                Fault::Hangs => {
                    while !self.cancel.is_cancelled() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    return Err("hung".into());
                }
                Fault::Endless => loop {
                    self.reply.batch(one.clone())?;
                },
            }
        }
        Ok(())
    }
}

/// A cluster of nodes in this process.
struct Cluster {
    serving: Vec<Option<RunningAgent>>,
    plans: Vec<Plan>,
    _folders: Vec<TempDir>,
    nodes: Nodes,
}

fn works(plan: &Plan) -> TaskHandlers {
    TaskHandlers::default().with(Faulty(plan.clone())).with(Parts::<Contents>::default())
}

fn config(name: &str) -> AgentConfig {
    AgentConfig { drain: Duration::from_millis(100), ..AgentConfig::new(name, 64 << 20, 2) }
}

fn client(addresses: Vec<String>, credentials: Option<ClientCredentials>) -> Nodes {
    let config = ClientConfig {
        connect: PATIENCE,
        silence: PATIENCE,
        answer: PATIENCE,
        ..ClientConfig::new(addresses, credentials)
    };
    Nodes::new(config).unwrap()
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        let folders: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let plans: Vec<Plan> = (0..count).map(|_| Arc::new(Mutex::new((Fault::None, 0)))).collect();
        let serving: Vec<Option<RunningAgent>> = folders
            .iter()
            .zip(&plans)
            .enumerate()
            .map(|(number, (folder, plan))| {
                let store = Store::open(folder.path()).unwrap();
                let agent = Agent::new(store, works(plan), config(&format!("n{number}")));
                Some(agent.serve("127.0.0.1:0".parse().unwrap()).unwrap())
            })
            .collect();
        let addresses = serving.iter().flatten().map(|serving| serving.address().to_string()).collect();
        let nodes = client(addresses, None);
        Cluster { serving, plans, _folders: folders, nodes }
    }

    fn put(&self, name: &str, text: &[u8], copies: usize, piece_bytes: u64) {
        let options = LoadOptions {
            copies,
            piece_bytes: Some(piece_bytes),
            block_bytes: 4096,
            ..LoadOptions::default()
        };
        let len = Some(text.len() as u64);
        let loaded = self.nodes.put(&job(), name, ("text", len), Cursor::new(text), &options).unwrap();
        assert_eq!(loaded.bytes, text.len() as u64);
        assert!(loaded.bytes_moved >= copies as u64 * loaded.bytes);
    }

    fn plan(&self, node: usize, fault: Fault, after: usize) {
        *self.plans[node].lock().unwrap() = (fault, after);
    }

    fn find(&self, kernel: &Find, name: &str, options: &RunOptions) -> Result<SearchResult, ReadError> {
        self.find_within(PATIENCE, kernel, name, options)
    }

    /// Runs the search like a separate command with this time limit.
    fn find_within(
        &self,
        time: Duration,
        kernel: &Find,
        name: &str,
        options: &RunOptions,
    ) -> Result<SearchResult, ReadError> {
        let nodes = self.nodes.begin(Deadline::after(time));
        let wholes = nodes.catalog().and_then(|catalog| catalog.named(name));
        let wholes = wholes.map_err(|error| ReadError::Stream(Box::new(error)))?;
        let mut places = Vec::new();
        let gathered = run_on_nodes(&nodes, &job(), kernel, &wholes, options, |event: Event<'_, Find>| {
            if let Some(part) = event.part {
                places.extend(part?);
            }
            Ok(Next::Go)
        })?;
        Ok(SearchResult { places, gathered })
    }

    /// Returns the number of running tasks on all nodes.
    fn running(&self) -> usize {
        let status = |serving: &RunningAgent| serving.agent().status().running.len();
        self.serving.iter().flatten().map(status).sum()
    }
}

#[derive(Debug)]
struct SearchResult {
    places: Vec<(u64, u64)>,
    gathered: GatherReport,
}

fn job() -> Context {
    Context::new(Budget::new(64 << 20, 2), Cancel::default())
}

/// Returns lines of different lengths; every seventh line contains the needle.
fn text(lines: usize) -> Vec<u8> {
    let line = |number: usize| match number % 7 {
        3 => format!("{number} a needle {}\n", "x".repeat(number % 90)),
        _ => format!("{number} {}\n", "hay ".repeat(number % 23)),
    };
    (0..lines).map(line).collect::<String>().into_bytes()
}

/// Finds the needle's offsets and lines in memory, as the reference.
fn expected(text: &[u8]) -> Vec<(u64, u64)> {
    let mut offset = 0;
    let mut all = Vec::new();
    for (number, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if let Some(place) = memmem::find(line, b"needle") {
            all.push((offset + place as u64, number as u64 + 1));
        }
        offset += line.len() as u64;
    }
    all
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[test]
fn a_file_that_is_spread_is_searched_and_read_as_if_it_lay_here() {
    let cluster = Cluster::new(3);
    let text = text(60_000);
    for (name, copies, piece_bytes) in [("one", 1, 100_000), ("two", 2, 700_000), ("whole", 1, 1 << 30)] {
        cluster.put(name, &text, copies, piece_bytes);
        let found = cluster.find(&find("needle"), name, &RunOptions::default()).unwrap();
        assert_eq!(found.places, expected(&text), "{name}");
        assert!(found.gathered.missing.is_empty());
        let read: u64 = found.gathered.nodes.iter().map(|node| node.bytes_read).sum();
        assert!(read >= text.len() as u64, "{read} bytes were read near the data");
    }
    let catalog = cluster.nodes.catalog().unwrap();
    let all = catalog.wholes().unwrap();
    let titles: Vec<&str> = all.iter().map(|whole| whole.title.as_str()).collect();
    assert_eq!(titles, ["store:one", "store:two", "store:whole"]);
    assert_eq!(all[1].copies(), 2);
    let mut bytes = Vec::new();
    let wholes = catalog.named("one").unwrap();
    run_on_nodes(&cluster.nodes, &job(), &Contents, &wholes, &RunOptions::default(), |event| {
        assert_eq!(event.name, "store:one");
        if let Some(part) = event.part {
            bytes.extend(part?);
        }
        Ok::<_, ReadError>(Next::Go)
    })
    .unwrap();
    assert!(bytes == text);
    assert_eq!(cluster.nodes.remove("one").unwrap(), 3);
    assert!(
        told(cluster.nodes.catalog().unwrap().named("one").unwrap_err())
            .contains("not found on any of the nodes")
    );
}

#[test]
fn records_of_one_length_are_not_cut() {
    let cluster = Cluster::new(3);
    let bytes: Vec<u8> = (0..100_000u32).flat_map(|number| number.to_le_bytes()).collect();
    let options =
        LoadOptions { piece_bytes: Some(30_001), record_bytes: Some(100), ..LoadOptions::default() };
    cluster.nodes.put(&job(), "records", ("bytes", None), Cursor::new(&bytes), &options).unwrap();
    let wholes = cluster.nodes.catalog().unwrap().named("records").unwrap();
    assert!(wholes[0].pieces.len() == 14 && wholes[0].pieces.iter().all(|piece| piece.offset % 100 == 0));
    assert_eq!(wholes[0].bytes(), bytes.len() as u64);
    // Lines may cross the borders of pieces.
    let error = told(cluster.find(&find("needle"), "records", &RunOptions::default()).unwrap_err());
    assert!(error.contains("records of 100 bytes"), "{error}");
}

#[test]
fn what_a_lost_node_has_comes_from_copies_or_is_named() {
    let mut cluster = Cluster::new(3);
    let text = text(30_000);
    cluster.put("copied", &text, 2, 50_000);
    cluster.put("single", &text, 1, 50_000);
    let lost = cluster.serving[1].take().unwrap();
    let address = lost.address().to_string();
    drop(lost);
    let found = cluster.find(&find("needle"), "copied", &RunOptions::default()).unwrap();
    assert_eq!(found.places, expected(&text));
    let error = told(cluster.find(&find("needle"), "single", &RunOptions::default()).unwrap_err());
    assert!(
        error.contains(&address) && error.contains("store:single") && error.contains("--partial"),
        "{error}"
    );
    let partial = RunOptions { partial: true, ..RunOptions::default() };
    let found = cluster.find(&find("needle"), "single", &partial).unwrap();
    let missing = found.gathered.missing;
    let is_there = |&(offset, _): &(u64, u64)| {
        !missing.iter().any(|part| (part.offset..part.offset + part.bytes).contains(&offset))
    };
    assert!(!missing.is_empty());
    assert_eq!(found.places, expected(&text).into_iter().filter(is_there).collect::<Vec<_>>());
    // The load fails, and leaves no data.
    let put = cluster.nodes.put(&job(), "new", ("text", None), Cursor::new(b"a\n"), &LoadOptions::default());
    assert!(told(put.unwrap_err()).contains(&address));
    assert!(!cluster.nodes.catalog().unwrap().has("new"));
}

#[test]
fn a_node_that_dies_in_the_middle_of_a_task_is_replaced() {
    let mut cluster = Cluster::new(3);
    let text = text(120_000);
    cluster.put("copied", &text, 2, 1 << 20);
    let slow = Find { slow: Duration::from_millis(200), ..find("needle") };
    let dying = cluster.serving[0].take().unwrap();
    let found = thread::scope(|scope| {
        scope.spawn(move || {
            until("no task begins", || !dying.agent().status().running.is_empty());
            thread::sleep(Duration::from_millis(150));
            drop(dying);
        });
        // The budget is small, so that there are several blocks.
        let small = RunOptions { node_memory_bytes: Some(8 << 20), ..RunOptions::default() };
        cluster.find(&slow, "copied", &small).unwrap()
    });
    assert_eq!(found.places, expected(&text));
    assert!(found.gathered.nodes.iter().any(|node| node.lost.is_some()), "{:?}", found.gathered);
}

/// Checks a line kernel that resumes in the middle of a piece, where the read begins within a block with a
/// checksum.
#[test]
fn a_large_piece_is_taken_over_in_its_middle() {
    let cluster = Cluster::new(2);
    let text = text(300_000);
    cluster.put("large", &text, 2, 1 << 30);
    for after in [1, 2, 5] {
        cluster.plan(0, Fault::Fails, after);
        // Either node may pull the piece first.
        let is_taken_over = (0..100).any(|_| {
            let small = RunOptions { node_memory_bytes: Some(16 << 20), ..RunOptions::default() };
            let found = cluster.find(&find("needle"), "large", &small).unwrap();
            assert!(found.places == expected(&text), "after {after} rows");
            found.gathered.nodes.iter().any(|node| node.lost.is_some())
        });
        assert!(is_taken_over, "after {after} rows");
    }
}

/// A node with one slot runs a task that waits for its client, and the client waits for a lost node. The task that
/// replaces the lost node's task must not queue behind the running task.
#[test]
fn a_task_that_takes_over_does_not_wait_behind_one_of_the_same_job() {
    let folders: Vec<TempDir> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let plans: Vec<Plan> = (0..2).map(|_| Arc::new(Mutex::new((Fault::None, 0)))).collect();
    let serve = |node: usize| {
        let single = AgentConfig { slots: 1, ..config("single") };
        let agent = Agent::new(Store::open(folders[node].path()).unwrap(), works(&plans[node]), single);
        agent.serve("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let serving: Vec<RunningAgent> = (0..2).map(serve).collect();
    let nodes = client(serving.iter().map(|serving| serving.address().to_string()).collect(), None);
    // Every line matches, so that the other node's answers fill its connection.
    let text = "needle ".repeat(2_000_000) + "\n";
    let text = text.replace("needle needle ", "needle\nneedle ").into_bytes();
    let options = LoadOptions { copies: 2, piece_bytes: Some(5 << 20), ..LoadOptions::default() };
    nodes.put(&job(), "text", ("text", None), Cursor::new(&text), &options).unwrap();
    *plans[0].lock().unwrap() = (Fault::Fails, 1);
    let wholes = nodes.catalog().unwrap().named("text").unwrap();
    let mut count = 0;
    let (nodes, options) = (nodes.begin(Deadline::after(PATIENCE)), RunOptions::default());
    run_on_nodes(&nodes, &job(), &find("needle"), &wholes, &options, |event: Event<'_, Find>| {
        count += event.part.transpose()?.map_or(0, |part| part.len());
        thread::sleep(Duration::from_millis(20));
        Ok(Next::Go)
    })
    .unwrap();
    assert_eq!(count, memmem::find_iter(&text, b"needle").count());
}

#[test]
fn a_slow_client_makes_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let plan: Plan = Arc::new(Mutex::new((Fault::None, 0)));
    let single = AgentConfig { slots: 1, ..config("single") };
    let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&plan), single);
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = || vec![serving.address().to_string()];
    let nodes = client(address(), None);
    let bytes = vec![b'x'; 24 << 20];
    let options = LoadOptions { record_bytes: Some(1), ..LoadOptions::default() };
    nodes.put(&job(), "bytes", ("bytes", None), Cursor::new(&bytes), &options).unwrap();
    let wholes = nodes.catalog().unwrap().named("bytes").unwrap();
    // The slow client takes no further answers until the other client is done.
    let (done, other_done) = std::sync::mpsc::channel::<()>();
    let read = |nodes: &Nodes, mut pause: Option<std::sync::mpsc::Receiver<()>>| {
        let mut read = 0;
        run_on_nodes(
            nodes,
            &job(),
            &Contents,
            &wholes,
            &RunOptions::default(),
            |event: Event<'_, Contents>| {
                read += event.part.transpose()?.map_or(0, |part| part.len());
                if let Some(end) = pause.take() {
                    let _ = end.recv_timeout(PATIENCE);
                }
                Ok::<_, ReadError>(Next::Go)
            },
        )
        .unwrap();
        read
    };
    thread::scope(|scope| {
        let slow = scope.spawn(|| read(&nodes, Some(other_done)));
        until("no task begins", || !serving.agent().status().running.is_empty());
        assert_eq!(read(&client(address(), None), None), bytes.len());
        assert!(!slow.is_finished(), "it did not wait for the slow one");
        drop(done);
        assert_eq!(slow.join().unwrap(), bytes.len());
    });
}

/// A pseudo-random generator with a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Returns the seeds of the fault tests: the range in INSHORE_SEEDS, as 10000 (1 to 10000) or 2501-5000 (for one of
/// several processes); otherwise 1 to `unless_named`.
fn seeds(unless_named: u64) -> RangeInclusive<u64> {
    let Ok(named) = std::env::var("INSHORE_SEEDS") else { return 1..=unless_named };
    let (first, last) = named.split_once('-').unwrap_or(("1", &named));
    first.parse().expect("the first seed")..=last.parse().expect("the last seed")
}

#[test]
fn whatever_goes_wrong_on_nodes_nothing_is_told_twice_or_left_out() {
    let cluster = Cluster::new(3);
    let text = text(90_000);
    cluster.put("copied", &text, 2, 900_000);
    let all = expected(&text);
    let (mut good, mut bad) = (0, 0);
    for seed in seeds(60) {
        let mut dice = Dice(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15));
        let faulty = dice.below(4);
        let mut faults = Vec::new();
        for node in 0..3 {
            let fault = if node < faulty { FAULTS[1 + dice.below(FAULTS.len() - 1)] } else { Fault::None };
            let after = dice.below(12);
            cluster.plan((node + seed as usize) % 3, fault, after);
            faults.push((fault, after));
        }
        let hangs = faults.iter().any(|(fault, _)| *fault == Fault::Hangs);
        let options = RunOptions { partial: dice.below(2) == 0, ..RunOptions::default() };
        let time = if hangs { Duration::from_millis(300) } else { PATIENCE };
        match cluster.find_within(time, &find("needle"), "copied", &options) {
            Ok(SearchResult { places, gathered }) => {
                let is_there = |&(offset, _): &(u64, u64)| {
                    let has = |part: &inshore_nodes::MissingPart| {
                        (part.offset..part.offset + part.bytes).contains(&offset)
                    };
                    !gathered.missing.iter().any(has)
                };
                let there: Vec<(u64, u64)> = all.iter().copied().filter(is_there).collect();
                // An omitted row is detected only if the row is the end of a piece.
                let skips = faults.iter().any(|(fault, _)| *fault == Fault::Skips);
                match skips {
                    true => assert!(places.iter().all(|place| there.contains(place)), "seed {seed}"),
                    false => assert!(places == there, "seed {seed}: {faults:?}"),
                }
                good += 1;
            }
            Err(error) => {
                let error = told(error);
                let is_expected = faulty > 1 || hangs && error.contains("deadline");
                assert!(is_expected, "seed {seed}: {faults:?}: {error}");
                bad += 1;
            }
        }
    }
    assert!(good > bad / 2 && bad > 0, "{good} answers, {bad} errors");
}

/// Answers that are no longer needed are skipped, but a node may not send them forever.
#[test]
fn a_node_that_repeats_what_is_over_is_lost() {
    let cluster = Cluster::new(1);
    let text = text(30_000);
    cluster.put("a", &text, 1, 1 << 20);
    cluster.put("b", &text, 1, 1 << 20);
    let catalog = cluster.nodes.catalog().unwrap();
    let wholes: Vec<_> = ["a", "b"].iter().flat_map(|name| catalog.named(name).unwrap()).collect();
    // The client does not help: otherwise this machine would process the second dataset as soon as the node
    // seems slow.
    let options = RunOptions { help_from: None, ..RunOptions::default() };
    let find_first = || {
        let mut places = Vec::new();
        let found = run_on_nodes(
            &cluster.nodes,
            &job(),
            &find("needle"),
            &wholes,
            &options,
            |event: Event<'_, Find>| {
                places.extend(event.part.transpose()?.unwrap_or_default().first().copied());
                Ok(Next::SkipSource)
            },
        );
        found.map(|_| places)
    };
    let first = expected(&text)[0];
    assert_eq!(find_first().unwrap(), [first, first]);
    cluster.plan(0, Fault::Endless, 1);
    let began = Instant::now();
    let error = told(find_first().unwrap_err());
    assert!(error.contains("an answer for a shard that was answered already"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_task_ends_when_its_client_goes_or_its_deadline_is_over() {
    let cluster = Cluster::new(2);
    cluster.put("text", &text(20_000), 1, 50_000);
    cluster.plan(0, Fault::Hangs, 0);
    let (time, options) = (Duration::from_millis(300), RunOptions::default());
    let began = Instant::now();
    let error = told(cluster.find_within(time, &find("needle"), "text", &options).unwrap_err());
    assert!(error.contains("deadline"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    until("a task runs on without a client", || cluster.running() == 0);
}

#[test]
fn a_task_that_is_stopped_here_is_stopped_there() {
    let cluster = Cluster::new(2);
    cluster.put("text", &text(20_000), 1, 50_000);
    cluster.plan(0, Fault::Hangs, 0);
    let cancel = Cancel::default();
    let job = Context::new(Budget::new(64 << 20, 2), cancel.clone());
    let wholes = cluster.nodes.catalog().unwrap().named("text").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            cancel.cancel();
        });
        let kernel = find("needle");
        let stopped =
            run_on_nodes(&cluster.nodes, &job, &kernel, &wholes, &RunOptions::default(), |_| Ok(Next::Go));
        assert!(stopped.unwrap_err().is_cancelled());
    });
    until("a task runs on without a client", || cluster.running() == 0);
}

#[test]
fn a_full_node_refuses_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let plan: Plan = Arc::new(Mutex::new((Fault::None, 0)));
    let full = AgentConfig { slots: 1, queue: 1, ..config("full") };
    let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&plan), full);
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let nodes = client(vec![serving.address().to_string()], None);
    let input = Cursor::new(text(1000));
    nodes.put(&job(), "text", ("text", None), input, &LoadOptions::default()).unwrap();
    *plan.lock().unwrap() = (Fault::Hangs, 0);
    let wholes = nodes.catalog().unwrap().named("text").unwrap();
    let cancel = Cancel::default();
    let ask = |nodes: &Nodes, options: RunOptions| {
        let job = Context::new(Budget::new(64 << 20, 2), cancel.clone());
        run_on_nodes(nodes, &job, &find("needle"), &wholes, &options, |event: Event<'_, Find>| {
            event.part.transpose()?;
            Ok(Next::Go)
        })
    };
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| ask(&nodes, RunOptions::default()))).collect();
        until("no task waits", || serving.agent().status().waiting > 0);
        // The refusal may be temporary: the client retries until its deadline, and then reports the reason.
        let soon = nodes.begin(Deadline::after(Duration::from_millis(1500)));
        let error = told(ask(&soon, RunOptions::default()).unwrap_err());
        assert!(error.contains("the queue is full: 1 tasks run and 1 wait"), "{error}");
        assert!(serving.agent().status().refused >= 2, "it was asked once");
        let large = RunOptions { node_memory_bytes: Some(1 << 40), ..RunOptions::default() };
        let error = told(ask(&nodes, large).unwrap_err());
        assert!(error.contains("exceeds the memory of this node"), "{error}");
        cancel.cancel();
        waiting.into_iter().for_each(|waiting| assert!(waiting.join().unwrap().is_err()));
    });
    assert!(serving.agent().status().refused >= 2);
}

#[test]
fn a_node_beyond_loopback_wants_credentials_and_checks_them() {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan: Plan = Arc::new(Mutex::new((Fault::None, 0)));
    let store = Store::open(folder.path()).unwrap();
    let open = Agent::new(store.clone(), works(&plan), config("open"));
    let refused = open.serve("0.0.0.0:0".parse().unwrap()).unwrap_err();
    assert!(told(&refused).contains("needs credentials"), "{refused}");
    let names = ["localhost".to_string(), "127.0.0.1".to_string()];
    let credentials = Some(authority.node("a", &names, day).unwrap());
    let agent = Agent::new(store, works(&plan), AgentConfig { credentials, ..config("closed") });
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = serving.address().to_string();
    let with = |credentials: Option<ClientCredentials>| client(vec![address.clone()], credentials);
    let status = |nodes: &Nodes| nodes.status().remove(0).status;
    let good = with(Some(authority.client("writer", &[Right::Read, Right::Write], day).unwrap()));
    assert_eq!(status(&good).unwrap().name, "closed");
    let input = Cursor::new(text(100));
    good.put(&job(), "text", ("text", None), input, &LoadOptions::default()).unwrap();
    // Actions that need a right outside of the token are refused.
    let wholes = good.catalog().unwrap().named("text").unwrap();
    let kernel = find("needle");
    let run = run_on_nodes(&good, &job(), &kernel, &wholes, &RunOptions::default(), |_| Ok(Next::Go));
    assert!(told(run.unwrap_err()).contains("writer has no right to run: the token has read, write"));
    let reader = with(Some(authority.client("reader", &[Right::Read], day).unwrap()));
    assert!(told(reader.remove("text").unwrap_err()).contains("reader has no right to write"));
    let put = reader.put(&job(), "new", ("text", None), Cursor::new(b"a"), &LoadOptions::default());
    assert!(told(put.unwrap_err()).contains("reader has no right to write"));
    // The cases are: an expired token, a token of another authority, which the client detects before it sends, no
    // token, and an unencrypted connection.
    let expired = with(Some(authority.client("writer", &Right::ALL, Duration::ZERO).unwrap()));
    assert!(told(status(&expired).unwrap_err()).contains("has expired"));
    let other = Authority::create().unwrap();
    let foreign = with(Some(other.client("writer", &Right::ALL, day).unwrap()));
    assert!(matches!(status(&foreign), Err(Error::Lost { .. })));
    let plain = status(&with(None));
    assert!(matches!(plain, Err(Error::Lost { .. })), "{plain:?}");
    // The client has a token of another authority, but the right certificate.
    let mut mixed = serde_json::to_value(authority.client("writer", &[], day).unwrap()).unwrap();
    mixed["token"] =
        serde_json::to_value(other.client("writer", &Right::ALL, day).unwrap()).unwrap()["token"].clone();
    let mixed: ClientCredentials = serde_json::from_value(mixed).unwrap();
    assert!(told(status(&with(Some(mixed))).unwrap_err()).contains("not signed by the authority"));
    assert!(serving.agent().status().refused >= 5);
}

#[test]
fn a_node_whose_certificate_has_expired_is_not_spoken_with() {
    let authority = Authority::create().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let names = ["127.0.0.1".to_string()];
    let credentials = Some(authority.node("a", &names, Duration::ZERO).unwrap());
    let store = Store::open(folder.path()).unwrap();
    let agent = Agent::new(store, TaskHandlers::default(), AgentConfig { credentials, ..config("old") });
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let own = authority.client("writer", &Right::ALL, Duration::from_secs(600)).unwrap();
    thread::sleep(Duration::from_millis(1100));
    let nodes = client(vec![serving.address().to_string()], Some(own));
    let error = told(nodes.status().remove(0).status.unwrap_err());
    assert!(error.to_lowercase().contains("expired"), "{error}");
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_node_goes_on() {
    use arrow_flight::{Action, FlightData, Ticket, flight_service_client::FlightServiceClient};

    let cluster = Cluster::new(1);
    cluster.put("text", &text(1000), 1, 50_000);
    let address = cluster.serving[0].as_ref().unwrap().address();
    let id = cluster.nodes.catalog().unwrap();
    assert!(id.has("text"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = FlightServiceClient::new(
            tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap(),
        );
        let piece = json!({ "number": 0, "whole": 0, "dataset": "text", "id": 1, "file": "piece-00000000", "from": 0, "to": 1, "offset": 0, "lines": 0 });
        let named = |dataset: &str| {
            json!({ "version": 4, "kind": "find", "arguments": { "needle": "a" },
                "pieces": [{ "number": 0, "whole": 0, "dataset": dataset, "id": 1, "file": "../../etc/passwd",
                    "from": 0, "to": 1, "offset": 0, "lines": 0 }] })
        };
        for bad in [
            json!(null),
            json!({}),
            json!({ "version": 5, "kind": "find", "arguments": {}, "pieces": [] }),
            json!({ "version": 4, "kind": "nothing", "arguments": {}, "pieces": [] }),
            json!({ "version": 4, "kind": "find", "arguments": {}, "pieces": [] }),
            json!({ "version": 4, "kind": "find", "arguments": { "needle": "a" }, "pieces": [piece] }),
            json!({ "version": 4, "kind": "find", "arguments": { "needle": "a" }, "pieces": [], "memory_bytes": -1 }),
            json!({ "version": 4, "kind": "find", "arguments": { "needle": "a" }, "pieces": [], "memory_bytes": 1 }),
            named("text"),
            named("../../../etc"),
            named(""),
        ] {
            let ticket = Ticket { ticket: bad.to_string().into() };
            let refused = match client.do_get(ticket).await {
                Err(_) => true,
                Ok(answers) => answers.into_inner().message().await.is_err(),
            };
            assert!(refused, "{bad}");
        }
        // A client of an earlier version gets an error that names both versions.
        let earlier = json!({ "version": 3, "kind": "find", "arguments": { "needle": "a" }, "pieces": [] });
        let refused = client.do_get(Ticket { ticket: earlier.to_string().into() }).await.unwrap_err();
        assert!(refused.message().contains("version 3 of requests, expected 4"), "{refused}");
        let garbage = [&b""[..], b"\xff\xfe", b"{", &[b'['; 100_000]];
        for bytes in garbage {
            let ticket = Ticket { ticket: bytes.to_vec().into() };
            assert!(client.do_get(ticket).await.is_err());
            for kind in ["map", "remove", "hand-out", "nonsense"] {
                let action = Action { r#type: kind.to_string(), body: bytes.to_vec().into() };
                assert!(client.do_action(action).await.is_err(), "{kind}");
            }
            let message = FlightData { app_metadata: bytes.to_vec().into(), ..FlightData::default() };
            let put = client.do_put(futures::stream::iter([message])).await;
            let refused = match put {
                Err(_) => true,
                Ok(answers) => answers.into_inner().message().await.is_err(),
            };
            assert!(refused);
        }
        // This message exceeds the size limit.
        let ticket = Ticket { ticket: vec![b' '; 65 << 20].into() };
        assert!(client.do_get(ticket).await.is_err());
        // This request is small, but its parsed form is large.
        let many = format!("[{}0]", r#"{"":0},"#.repeat(200_000));
        let ticket = format!(r#"{{"version":4,"kind":"contents","arguments":{many},"pieces":[]}}"#);
        let refused = client.do_get(Ticket { ticket: ticket.into() }).await.unwrap_err();
        assert!(refused.message().contains("the limit is 64 MiB"), "{refused}");
        // An incomplete load leaves no dataset.
        let step = |step: Value| FlightData { app_metadata: step.to_string().into(), ..FlightData::default() };
        let begin = json!({ "step": "begin", "version": 4, "name": "half", "id": "1".repeat(32), "block_bytes": 4096 });
        let steps = [step(begin), step(json!({ "step": "file", "name": "piece-00000000" }))];
        let mut answers = client.do_put(futures::stream::iter(steps)).await.unwrap().into_inner();
        while let Ok(Some(_)) = answers.message().await {}
        // Names of pieces have a fixed form, and pieces are sent in order.
        for names in [&["piece-0"][..], &["piece-99999999"], &["../piece-00000000"], &["map"], &["piece-00000002"; 2]] {
            let begin = json!({ "step": "begin", "version": 4, "name": "odd", "id": "1".repeat(32), "block_bytes": 4096 });
            let files = names.iter().map(|name| step(json!({ "step": "file", "name": name })));
            let steps: Vec<FlightData> = [step(begin)].into_iter().chain(files).collect();
            let mut answers = client.do_put(futures::stream::iter(steps)).await.unwrap().into_inner();
            let refused = loop {
                match answers.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{names:?} were taken"),
                    Err(refused) => break refused,
                }
            };
            assert!(refused.message().contains("is not the next file"), "{refused}");
        }
    });
    assert!(!cluster.nodes.catalog().unwrap().has("half"));
    let found = cluster.find(&find("needle"), "text", &RunOptions::default()).unwrap();
    assert_eq!(found.places, expected(&text(1000)));
}

#[test]
fn a_name_that_some_node_has_is_not_loaded_again() {
    let cluster = Cluster::new(2);
    cluster.put("text", &text(1000), 1, 5_000);
    let put = cluster.nodes.put(&job(), "text", ("text", None), Cursor::new(b"a\n"), &LoadOptions::default());
    let error = told(put.unwrap_err());
    assert!(error.contains("text") && error.contains("node 127.0.0.1"), "{error}");
    let found = cluster.find(&find("needle"), "text", &RunOptions::default()).unwrap();
    assert_eq!(found.places, expected(&text(1000)));
}

#[test]
fn datasets_of_one_name_that_are_no_parts_of_one_are_told_apart() {
    let cluster = Cluster::new(2);
    for folder in &cluster._folders {
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
        let mut builder = store.create_dataset(&job, "log", "bytes").unwrap();
        let mut file = builder.file("bytes", 4096, 1 << 20).unwrap();
        file.write(&text(100)).unwrap();
        builder.add(file).unwrap();
        builder.commit(&[]).unwrap();
    }
    let wholes = cluster.nodes.catalog().unwrap().named("log").unwrap();
    let address = |node: usize| cluster.serving[node].as_ref().unwrap().address();
    let expected_titles: Vec<String> = (0..2).map(|node| format!("{}:store:log", address(node))).collect();
    assert_eq!(wholes.iter().map(|whole| whole.title.clone()).collect::<Vec<_>>(), expected_titles);
    let found = cluster.find(&find("needle"), "log", &RunOptions::default()).unwrap();
    assert_eq!(found.places.len(), 2 * expected(&text(100)).len());
}

#[test]
fn a_node_that_is_stopped_lets_its_tasks_end() {
    let mut cluster = Cluster::new(1);
    let text = text(30_000);
    cluster.put("text", &text, 1, 1 << 20);
    let slow = Find { slow: Duration::from_millis(30), ..find("needle") };
    // The drain time exceeds the task's run time.
    let serving = cluster.serving[0].take().unwrap();
    let store = cluster._folders[0].path().to_path_buf();
    drop(serving);
    let patient = AgentConfig { drain: PATIENCE, ..config("patient") };
    let agent = Agent::new(Store::open(&store).unwrap(), works(&cluster.plans[0]), patient);
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    cluster.nodes = client(vec![serving.address().to_string()], None);
    let found = thread::scope(|scope| {
        scope.spawn(move || {
            until("no task begins", || !serving.agent().status().running.is_empty());
            serving.stop().unwrap();
        });
        cluster.find(&slow, "text", &RunOptions::default()).unwrap()
    });
    assert_eq!(found.places, expected(&text));
    assert!(cluster.find(&slow, "text", &RunOptions::default()).is_err());
}
