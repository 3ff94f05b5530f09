//! The lists of outputs that the driver sends to nodes: each node gets each output about once, also after failures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inshore_kernel::{Failure, TaskHandlers};
use inshore_nodes::{Agent, AgentConfig, ClientConfig, Nodes, RunningAgent};
use inshore_stages::{
    DriverError, FinishedJob, InputPartition, JobInput, JobStage, MapInputs, MergeInputs, Options,
    OutputWriter, StageTask, StageWork, StagesJob, memory_bytes, run, with_stages,
};
use inshore_store::{Budget, Cancel, Context, Store};
use serde_json::Value;

const SLOT_BYTES: u64 = 16 << 20;
/// The number of partitions of the stage that is broadcast.
const SMALL: usize = 3;

/// A job that counts the outputs that each merge reads. Some attempts fail.
#[derive(Default)]
struct Counts {
    attempts: AtomicU32,
    /// One attempt of this number fails, unless the number is 0.
    fails: u32,
    nap: Duration,
}

impl Counts {
    fn work(&self, job: &inshore_store::Job) -> Result<(), Failure> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        // A cancelled attempt ends at once.
        job.check_cancelled()?;
        std::thread::sleep(self.nap);
        match self.fails > 0 && number.is_multiple_of(self.fails) {
            true => Err("the attempt fails as wanted".into()),
            false => Ok(()),
        }
    }
}

impl StageWork for Counts {
    fn kind(&self) -> &'static str {
        "counts"
    }

    fn map(&self, task: &StageTask<'_>, _: MapInputs, _: &mut OutputWriter) -> Result<(), Failure> {
        self.work(task.job)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        self.work(task.job)?;
        let counts: Vec<usize> = inputs.ranges.iter().map(Vec::len).collect();
        if task.stage == 3 {
            let (states, broadcasts) = (inputs.states.len(), inputs.broadcasts[0].len());
            output.bytes(format!("{counts:?} {states} {broadcasts}\n").as_bytes())?;
        }
        Ok(())
    }
}

struct Setup {
    agents: Vec<Option<RunningAgent>>,
    nodes: Nodes,
    _folder: tempfile::TempDir,
}

impl Setup {
    fn new(count: usize, work: Counts) -> Setup {
        let (folder, work) = (tempfile::tempdir().unwrap(), Arc::new(work));
        let serve = |number: usize| {
            let store = Store::open(folder.path().join(number.to_string())).unwrap();
            let handlers = with_stages(TaskHandlers::default(), vec![work.clone() as _], None);
            let memory_bytes = 2 * memory_bytes(SLOT_BYTES, 2);
            let config = AgentConfig {
                drain: Duration::ZERO,
                ..AgentConfig::new(format!("node {number}"), memory_bytes, 2)
            };
            let serving = Agent::new(store, handlers, config).serve("127.0.0.1:0".parse().unwrap());
            Some(serving.unwrap())
        };
        let agents: Vec<Option<RunningAgent>> = (0..count).map(serve).collect();
        let address = |agent: &Option<RunningAgent>| agent.as_ref().unwrap().address().to_string();
        let nodes = Nodes::new(ClientConfig::new(agents.iter().map(address).collect(), None)).unwrap();
        Setup { agents, nodes, _folder: folder }
    }

    /// Runs a job with two map stages and two merge stages, of which the last one reads the states of the first one and
    /// the broadcast of the second map stage.
    fn run(&self, maps: usize, merges: u32, max_list_bytes: u64) -> FinishedJob {
        let all = 0..self.agents.len();
        let inputs =
            |count: usize| JobInput::Pieces((0..count).map(|_| InputPartition::empty(all.clone())).collect());
        let stage = |name: &str, input, broadcasts: Vec<u32>, ranges| JobStage {
            name: name.to_string(),
            input,
            broadcasts,
            ranges,
            arguments: Value::Null,
        };
        let exchange = |ranges: Vec<u32>, states: Vec<u32>| JobInput::Exchange { ranges, states };
        let job = StagesJob {
            kind: "counts",
            arguments: Value::Null,
            stages: vec![
                stage("map", inputs(maps), vec![], merges),
                stage("small", inputs(SMALL), vec![], 1),
                stage("first", exchange(vec![0], vec![]), vec![], merges),
                stage("second", exchange(vec![0, 2], vec![2]), vec![1], 0),
            ],
            slots: 2,
            slot_bytes: SLOT_BYTES,
            options: Options {
                deadline: Duration::from_secs(120),
                max_failures: 100,
                max_list_bytes,
                ..Options::default()
            },
        };
        let finished = run(&self.nodes, &context(), &job).unwrap();
        println!("{:?}", finished.report().attempts);
        finished
    }
}

fn context() -> Context {
    Context::new(Budget::new(64 << 20, 2), Cancel::default())
}

fn text(finished: &FinishedJob) -> Result<String, DriverError> {
    let mut read = Vec::new();
    finished.read(&context(), &mut |bytes| {
        read.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(String::from_utf8(read).unwrap())
}

/// Returns the result of a job: a line for each merge with the number of outputs of both ranges, states and broadcasts.
fn expected(maps: usize, merges: u32) -> String {
    format!("[{maps}, {merges}] 1 {SMALL}\n").repeat(merges as usize)
}

#[test]
fn the_driver_sends_each_node_each_output_once_and_not_with_each_merge() {
    const MAPS: u32 = 300;
    const MERGES: u32 = 300;
    let setup = Setup::new(2, Counts::default());
    let finished = setup.run(MAPS as usize, MERGES, Options::default().max_list_bytes);
    let sent = setup.nodes.bytes_out();
    // 27 bytes for an entry: two nodes get the lists of two stages, and each of 900 attempts is a request of its own.
    let (lists, requests) = (27 * 2 * u64::from(MAPS + MERGES), 700 * u64::from(MAPS + 2 * MERGES));
    println!("{sent} bytes sent, of which about {lists} for lists");
    assert!(sent < 2 * lists + requests, "{sent} bytes");
    let in_each_merge = 27 * u64::from(MERGES) * u64::from(MAPS + MAPS + MERGES);
    assert!(sent * 5 < in_each_merge, "{sent} bytes, and {in_each_merge} with whole lists");
    assert_eq!(text(&finished).unwrap(), expected(MAPS as usize, MERGES));
}

#[test]
fn merges_read_one_output_of_each_partition_after_failures_with_any_limit_of_lists() {
    for (fails, max_list_bytes) in [(0, 0), (7, 0), (5, 100), (3, 8 << 20)] {
        let setup = Setup::new(3, Counts { fails, ..Counts::default() });
        let finished = setup.run(40, 30, max_list_bytes);
        assert_eq!(text(&finished).unwrap(), expected(40, 30), "one attempt of {fails} fails");
    }
}

#[test]
fn lists_name_the_outputs_that_replace_those_of_a_lost_node() {
    for pause in [20, 60, 100, 140, 180] {
        let mut setup = Setup::new(3, Counts { nap: Duration::from_millis(5), ..Counts::default() });
        let leaving = setup.agents[1].take().unwrap();
        let finished = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(pause));
                drop(leaving);
            });
            setup.run(60, 30, 200)
        });
        // A node that leaves at the end takes its part of the result along, which is an error when it is read.
        if let Ok(text) = text(&finished) {
            assert_eq!(text, expected(60, 30), "after {pause} ms");
        }
    }
}
