//! The driver on agents of this process, over real connections.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use arrow_array::{RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_kernel::{Failure, OpenedSource, TaskHandlers};
use inshore_nodes::{
    Agent, AgentConfig, ClientConfig, DistributedFile, LoadOptions, Nodes, PageConfig, RunningAgent,
};
use inshore_stages::{
    DriverError, Error, FinishedJob, InputPartition, JobInput, JobStage, MapInputs, MergeInputs, NodeReport,
    Options, OutputWriter, StageTask, StageWork, StagesJob, memory_bytes, run, run_growing, with_stages,
};
use inshore_store::{Budget, Cancel, Context, FileReader, Store};
use serde_json::json;

const SLOT_BYTES: u64 = 16 << 20;
const RANGES: u32 = 5;

/// Divides the numbers of lines by their remainder, and writes the sorted numbers of a remainder. Attempts fail as a
/// test wants.
struct Remainders {
    /// The number of the next map and merge attempts that fail.
    map_failures: AtomicU32,
    merge_failures: AtomicU32,
    /// The attempts of a map sleep for this time.
    nap: Duration,
}

impl Remainders {
    fn new(map_failures: u32, merge_failures: u32, nap: Duration) -> Arc<Remainders> {
        let (map_failures, merge_failures) = (map_failures.into(), merge_failures.into());
        Arc::new(Remainders { map_failures, merge_failures, nap })
    }
}

fn fail(left: &AtomicU32, what: &str) -> Result<(), Failure> {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    if taken.is_ok() { Err(format!("the {what} fails as wanted").into()) } else { Ok(()) }
}

impl StageWork for Remainders {
    fn kind(&self) -> &'static str {
        "remainders"
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        MapInputs { sources, .. }: MapInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let job = task.job;
        fail(&self.map_failures, "map")?;
        let mut text = Vec::new();
        for source in sources {
            let OpenedSource::Dataset(_, file, range) = source?.source.open(job).1? else {
                return Err("the input is no dataset".into());
            };
            let mut reader = FileReader::new(job, &file, range, 64 << 10)?;
            while let Some(piece) = reader.next_piece()? {
                text.extend_from_slice(piece);
            }
        }
        let end = Instant::now() + self.nap;
        while Instant::now() < end {
            job.check_cancelled()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        let numbers = std::str::from_utf8(&text)?.lines().map(str::parse::<u64>);
        let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
        for range in 0..RANGES {
            let own = numbers.iter().copied().filter(|number| number % u64::from(RANGES) == u64::from(range));
            let own = UInt64Array::from_iter_values(own);
            output.batch(range, &RecordBatch::try_from_iter([("number", Arc::new(own) as _)])?)?;
        }
        Ok(())
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        fail(&self.merge_failures, "merge")?;
        let mut all: Vec<u64> = Vec::new();
        for batch in inputs.open_ranges(task.job)?.into_iter().flatten() {
            all.extend_from_slice(batch?.column(0).as_primitive::<UInt64Type>().values());
        }
        if task.stage_arguments == "halve" {
            return halve(&all, output);
        }
        all.sort_unstable();
        output.set_counts([all.len() as u64, 1]);
        for number in all {
            output.bytes(format!("{number}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// Sends each number's half to the range of its remainder, and counts the halves above zero.
fn halve(numbers: &[u64], output: &mut OutputWriter) -> Result<(), Failure> {
    let halves: Vec<u64> = numbers.iter().map(|number| number / 2).collect();
    output.set_counts([halves.iter().filter(|half| **half > 0).count() as u64]);
    for range in 0..RANGES {
        let own = halves.iter().copied().filter(|half| half % u64::from(RANGES) == u64::from(range));
        let own = UInt64Array::from_iter_values(own);
        output.batch(range, &RecordBatch::try_from_iter([("number", Arc::new(own) as _)])?)?;
    }
    Ok(())
}

struct Setup {
    folder: tempfile::TempDir,
    agents: Vec<Option<RunningAgent>>,
    nodes: Nodes,
    file: DistributedFile,
}

fn context() -> Context {
    Context::new(Budget::new(64 << 20, 2), Cancel::default())
}

impl Setup {
    /// Starts nodes, and spreads the numbers below 20,000 in two copies.
    fn new(count: usize, work: &Arc<Remainders>) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let serve = |number: usize| {
            let store = Store::open(folder.path().join(number.to_string())).unwrap();
            let handlers = with_stages(TaskHandlers::default(), vec![work.clone() as _], None);
            let config = AgentConfig {
                drain: Duration::ZERO,
                ..AgentConfig::new(format!("node {number}"), 2 * memory_bytes(SLOT_BYTES, 2), 2)
            };
            Agent::new(store, handlers, config).serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let agents: Vec<Option<RunningAgent>> = (0..count).map(|number| Some(serve(number))).collect();
        let address = |agent: &Option<RunningAgent>| agent.as_ref().unwrap().address().to_string();
        let nodes = Nodes::new(ClientConfig::new(agents.iter().map(address).collect(), None)).unwrap();
        let mut text = Vec::new();
        (0..20_000u64).for_each(|number| writeln!(text, "{}", number * 7919 % 20_000).unwrap());
        let options =
            LoadOptions { copies: count.min(2), piece_bytes: Some(8 << 10), ..LoadOptions::default() };
        // The buffers of an upload grow with the nodes.
        let context = Context::new(Budget::new(1 << 30, 2), Cancel::default());
        nodes.put(&context, "numbers", ("numbers", None), &text[..], &options).unwrap();
        let file = nodes.catalog().unwrap().named("numbers").unwrap().remove(0);
        Setup { folder, agents, nodes, file }
    }

    fn job(&self) -> StagesJob {
        StagesJob {
            kind: "remainders",
            arguments: json!({}),
            stages: JobStage::map_and_merge(
                InputPartition::of_files(std::slice::from_ref(&self.file), 16 << 10).unwrap(),
                RANGES,
            ),
            slots: 2,
            slot_bytes: SLOT_BYTES,
            options: Options { deadline: Duration::from_secs(60), ..Options::default() },
        }
    }

    fn run(&self, context: &Context) -> Result<FinishedJob, DriverError> {
        run(&self.nodes, context, &self.job())
    }

    /// Halves all numbers until they are zero, in at most `limit` stages. Returns the counts of each stage, too.
    fn halve(&self, limit: usize) -> (Result<FinishedJob, DriverError>, Vec<Vec<u64>>) {
        let step = |before: u32, ranges, arguments| JobStage {
            name: "step".to_string(),
            broadcasts: Vec::new(),
            input: JobInput::Exchange { ranges: vec![before], states: vec![] },
            ranges,
            arguments,
        };
        let job = self.job();
        let first = vec![job.stages[0].clone(), step(0, RANGES, json!("halve"))];
        let mut seen: Vec<Vec<u64>> = Vec::new();
        let mut next = |counts: &[u64]| -> Result<Vec<JobStage>, Failure> {
            seen.push(counts.to_vec());
            if seen.len() > limit {
                return Err(format!("no zero after {limit} steps").into());
            }
            let before = seen.len() as u32;
            Ok(match counts {
                [0] => vec![step(before, 0, serde_json::Value::Null)],
                _ => vec![step(before, RANGES, json!("halve"))],
            })
        };
        let job = StagesJob { stages: first, ..job };
        (run_growing(&self.nodes, &context(), &job, &mut next), seen)
    }

    /// Waits until no task runs on the nodes that are left, and their stores have no scratch.
    fn wait_until_idle(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        let is_idle = || {
            self.nodes.begin(None).status().into_iter().all(|node| {
                node.status.map_or(true, |status| status.running.is_empty() && status.memory_used_bytes == 0)
            })
        };
        while !is_idle() {
            assert!(Instant::now() < end, "tasks of an ended job still run");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn expected() -> String {
    let of = |remainder: u64| (0..20_000u64).filter(move |number| number % u64::from(RANGES) == remainder);
    (0..RANGES.into()).flat_map(of).map(|number| format!("{number}\n")).collect()
}

fn text(finished: &FinishedJob) -> String {
    let mut text = Vec::new();
    finished
        .read(&context(), &mut |bytes| {
            text.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn rows_of_all_nodes_meet_in_their_ranges() {
    for count in [1, 3] {
        let setup = Setup::new(count, &Remainders::new(0, 0, Duration::ZERO));
        let finished = setup.run(&context()).unwrap();
        assert_eq!(text(&finished), expected());
        assert_eq!((finished.bytes(), finished.lines()), (expected().len() as u64, 20_000));
        let links = &finished.report().nodes;
        let sum = |of: fn(&NodeReport) -> u64| links.iter().map(of).sum::<u64>();
        assert_eq!(sum(|node| node.sent), sum(|node| node.received));
        assert_eq!(sum(|node| node.sent) > 0, count > 1);
        assert_eq!(finished.report().attempts.failed, 0);
        finished.publish(&context(), "sorted", None).unwrap();
        drop(finished);
        setup.wait_until_idle();
        let sorted = setup.nodes.catalog().unwrap().named("sorted").unwrap().remove(0);
        assert_eq!((sorted.bytes(), sorted.pieces.len()), (expected().len() as u64, RANGES as usize));
    }
}

/// An agent takes 256 connections, so a node must not keep one to each of a thousand others.
#[test]
fn a_node_of_a_large_job_keeps_no_connection_to_each_other_node() {
    for (count, kept) in [(3, 3), (40, 1)] {
        let setup = Setup::new(count, &Remainders::new(0, 0, Duration::ZERO));
        let finished = setup.run(&context()).unwrap();
        let open = || -> Vec<u64> {
            let agents = setup.agents.iter().flatten();
            agents.map(|agent| agent.agent().status().connections.open).collect()
        };
        // The driver has one connection. A connection that was let go of closes soon.
        let end = Instant::now() + Duration::from_secs(20);
        while open().into_iter().any(|open| open > kept) {
            assert!(Instant::now() < end, "{:?} connections, expected at most {kept}", open());
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{count} nodes: {:?} connections", open());
        assert_eq!(text(&finished), expected());
    }
}

/// Returns the sum of a sample over all nodes.
fn sum(setup: &Setup, sample: &str) -> u64 {
    let agents = setup.agents.iter().flatten();
    let sample = |agent: &RunningAgent| agent.agent().status().metrics.get(sample).copied();
    agents.map(|agent| sample(agent).unwrap_or_else(|| panic!("no sample"))).sum()
}

/// Reads a page of a node on this machine.
fn page(agent: &RunningAgent, path: &str) -> String {
    let config = PageConfig { listen: "127.0.0.1:0".parse().unwrap(), peers: vec![], peer_credentials: None };
    let page = agent.agent().serve_page(config).unwrap();
    let mut stream = TcpStream::connect(page.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn nodes_count_attempts_ranges_bytes_and_sessions() {
    // Two maps fail, and one merge.
    let setup = Setup::new(3, &Remainders::new(2, 1, Duration::ZERO));
    let finished = setup.run(&context()).unwrap();
    let started = finished.report().attempts.started;
    let of = |stage: &str| sum(&setup, &format!("inshore_stage_attempts_started_total{{stage=\"{stage}\"}}"));
    let ends = |stage: &str, end: &str| {
        sum(&setup, &format!("inshore_stage_attempts_total{{stage=\"{stage}\",end=\"{end}\"}}"))
    };
    // An attempt that is cancelled at once may not have begun.
    let finished_or_failed = finished.report().attempts.finished + 3;
    assert!((finished_or_failed..=started).contains(&(of("map") + of("merge"))), "{started} started");
    assert_eq!((ends("map", "failed"), ends("merge", "failed")), (2, 1));
    let maps = finished.report().stages[0].attempts;
    assert!(ends("map", "done") >= maps && ends("merge", "done") >= u64::from(RANGES));
    let all_ends = ["done", "failed", "missing", "cancelled"];
    let ended = || all_ends.iter().map(|end| ends("map", end) + ends("merge", end)).sum::<u64>();
    let end = Instant::now() + Duration::from_secs(20);
    while ended() != of("map") + of("merge") {
        assert!(Instant::now() < end, "{} of {started} attempts have ended", ended());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(sum(&setup, "inshore_stage_sessions"), 3);
    assert!(sum(&setup, "inshore_stage_outputs") >= maps + u64::from(RANGES));
    assert!(sum(&setup, "inshore_stage_output_bytes") > finished.bytes());
    let received = finished.report().nodes.iter().map(|node| node.received).sum::<u64>();
    assert!(received > 0 && sum(&setup, "inshore_exchange_received_bytes_total") >= received);
    let (served, fetched) = (
        sum(&setup, "inshore_exchange_ranges_served_total"),
        sum(&setup, "inshore_exchange_ranges_fetched_total"),
    );
    assert!(fetched > 0 && served >= fetched, "{served} served, {fetched} fetched");
    let sent = sum(&setup, "inshore_exchange_sent_bytes_total");
    // The driver reads the result from its nodes.
    assert_eq!(text(&finished), expected());
    assert_eq!(sum(&setup, "inshore_exchange_sent_bytes_total") - sent, finished.bytes());
    let shown = page(setup.agents[0].as_ref().unwrap(), "/metrics");
    for line in [
        "# TYPE inshore_stage_sessions gauge",
        "inshore_stage_sessions 1",
        "# TYPE inshore_stage_attempts_total counter",
        "inshore_stage_attempts_total{stage=\"merge\",end=\"missing\"} 0",
        "# TYPE inshore_exchange_received_bytes_total counter",
    ] {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{line} is missing: {shown}");
    }
    drop(finished);
    setup.wait_until_idle();
    assert_eq!((sum(&setup, "inshore_stage_sessions"), sum(&setup, "inshore_stage_outputs")), (0, 0));
    assert!(of("map") + of("merge") >= finished_or_failed, "counters remain");
}

#[test]
fn a_job_grows_by_the_counts_of_its_last_stage_until_a_result_ends_it() {
    for count in [1, 3] {
        let setup = Setup::new(count, &Remainders::new(0, 0, Duration::ZERO));
        let (finished, seen) = setup.halve(100);
        let finished = finished.unwrap();
        // A number below 2^n is zero after n steps.
        let left = |step: usize| vec![20_000u64.saturating_sub(1 << step)];
        assert_eq!(seen, (1..=15).map(left).collect::<Vec<_>>());
        assert_eq!((text(&finished), finished.counts()), ("0\n".repeat(20_000), vec![20_000, 5]));
        assert_eq!(finished.report().stages.len(), 17);
        drop(finished);
        setup.wait_until_idle();
    }
}

#[test]
fn a_job_that_grows_survives_failures_and_losses_and_stops_with_an_error() {
    let mut setup = Setup::new(3, &Remainders::new(2, 3, Duration::from_millis(10)));
    let leaving = setup.agents[1].take().unwrap();
    let (finished, seen) = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(leaving);
        });
        setup.halve(100)
    });
    let finished = finished.unwrap();
    assert_eq!(seen.last(), Some(&vec![0]));
    assert_eq!(finished.counts(), [20_000, 5]);
    drop(finished);
    let error = setup.halve(3).0.unwrap_err();
    assert!(matches!(error, DriverError::Stopped(_)), "{error}");
    assert_eq!(error.to_string(), "no zero after 3 steps");
    setup.wait_until_idle();
}

#[test]
fn attempts_that_fail_are_repeated_on_other_nodes_up_to_a_limit() {
    let setup = Setup::new(3, &Remainders::new(2, 2, Duration::ZERO));
    let finished = setup.run(&context()).unwrap();
    assert_eq!((text(&finished), finished.report().attempts.failed), (expected(), 4));
    drop(finished);
    let setup = Setup::new(2, &Remainders::new(0, u32::MAX, Duration::ZERO));
    let error = setup.run(&context()).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, DriverError::Stages { error: Error::RetriesExhausted { .. }, .. }), "{told}");
    assert!(told.contains("the merge fails as wanted") && told.contains("node 127.0.0.1:"), "{told}");
    setup.wait_until_idle();
}

#[test]
fn a_node_that_leaves_costs_its_own_work_alone() {
    // Some agents leave while they map, others while they merge or after the end.
    for pause in [5, 40, 80, 120, 160] {
        let work = Remainders::new(0, 0, Duration::from_millis(30));
        let mut setup = Setup::new(3, &work);
        let leaving = setup.agents[1].take().unwrap();
        let finished = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(pause));
                drop(leaving);
            });
            setup.run(&context())
        });
        let finished = finished.unwrap_or_else(|error| panic!("after {pause} ms: {error}"));
        let lost_outputs = finished.report().attempts.lost_outputs;
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| text(&finished)));
        // An agent that leaves after the last merge takes its part of the result along, which is an error when it is read.
        assert!(
            read.is_err() || read.unwrap() == expected(),
            "after {pause} ms, {lost_outputs} outputs lost"
        );
        drop(finished);
        setup.wait_until_idle();
    }
}

#[test]
fn a_cancelled_job_and_a_late_one_leave_nothing() {
    let setup = Setup::new(2, &Remainders::new(0, 0, Duration::from_secs(60)));
    let cancel = Cancel::default();
    let context = Context::new(Budget::new(64 << 20, 2), cancel.clone());
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancel.cancel();
        });
        setup.run(&context).unwrap_err()
    });
    assert!(matches!(error, DriverError::Store(inshore_store::Error::Cancelled)), "{error}");
    setup.wait_until_idle();
    let late = StagesJob {
        options: Options { deadline: Duration::from_millis(500), ..Options::default() },
        ..setup.job()
    };
    let error = run(&setup.nodes, &self::context(), &late).unwrap_err();
    assert!(matches!(error, DriverError::Stages { error: Error::Deadline { .. }, .. }), "{error}");
    setup.wait_until_idle();
    assert!(setup.folder.path().join("0").exists());
}

#[test]
fn a_job_that_needs_more_memory_than_a_node_has_is_refused_with_both_sizes() {
    let setup = Setup::new(2, &Remainders::new(0, 0, Duration::ZERO));
    let large = StagesJob { slot_bytes: 1 << 30, ..setup.job() };
    let error = run(&setup.nodes, &context(), &large).unwrap_err();
    assert!(matches!(error, DriverError::Stages { error: Error::Memory { .. }, .. }), "{error}");
    assert!(error.to_string().contains("the job needs 2147483648 bytes there"), "{error}");
}

#[test]
fn two_jobs_share_nodes_that_have_memory_for_one() {
    let setup = Setup::new(2, &Remainders::new(0, 0, Duration::from_millis(20)));
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..4).map(|_| scope.spawn(|| text(&setup.run(&context()).unwrap()))).collect();
        for job in jobs {
            assert_eq!(job.join().unwrap(), expected());
        }
    });
    setup.wait_until_idle();
}
