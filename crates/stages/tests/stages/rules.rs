//! Tests each rule of the scheduler by a short sequence of events.

use std::time::Duration;

use inshore_stages::{
    Action, AttemptToken, Error, Event, FailureKind, FetchFailure, NodeId, Options, Output, PartitionId,
    Partitioning, Plan, Scheduler, Stage, StageInput, StageOutput, Work,
};

/// An attempt that was started.
#[derive(Clone, Copy, Debug)]
struct Started {
    token: AttemptToken,
    node: u32,
    partition: PartitionId,
    work: Work,
}

/// A job on nodes of one slot, which have reserved memory and have not asked for work.
struct Job {
    scheduler: Scheduler,
    ms: u64,
}

impl Job {
    /// Creates a sort with the given replicas and number of merge partitions.
    fn new(nodes: u32, replicas: &[&[u32]], merges: u32) -> Job {
        Job::with(nodes, 1, replicas, merges, Options::default())
    }

    fn with(nodes: u32, slots: u32, replicas: &[&[u32]], merges: u32, options: Options) -> Job {
        let replicas = replicas.iter().map(|nodes| nodes.iter().copied().map(NodeId).collect()).collect();
        let map = Stage {
            input: StageInput::Replicas(replicas),
            broadcasts: Vec::new(),
            output: StageOutput::Exchange(Partitioning::Hash { partitions: merges }),
            memory_bytes: 10,
        };
        let merge = Stage {
            input: StageInput::exchange([0]),
            broadcasts: Vec::new(),
            output: StageOutput::Result,
            memory_bytes: 10,
        };
        Job::of(vec![map, merge], nodes, slots, options)
    }

    fn of(stages: Vec<Stage>, nodes: u32, slots: u32, options: Options) -> Job {
        Job::planned(Plan::new(stages).unwrap(), nodes, slots, options)
    }

    fn planned(plan: Plan, nodes: u32, slots: u32, options: Options) -> Job {
        let ids: Vec<(NodeId, u32)> = (0..nodes).map(|node| (NodeId(node), slots)).collect();
        let (scheduler, _) = Scheduler::start(plan, options, &ids);
        let mut job = Job { scheduler, ms: 0 };
        for node in 0..nodes {
            job.reserved(node, slots);
        }
        job
    }

    fn reserved(&mut self, node: u32, slots: u32) {
        self.on(Event::Reserved { node: NodeId(node), memory_bytes: 10 * u64::from(slots) });
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.scheduler.on(Duration::from_millis(self.ms), event)
    }

    /// Lets a node ask, and returns the attempt that it gets.
    fn ask(&mut self, node: u32) -> Started {
        let actions = self.on(Event::Asked { node: NodeId(node) });
        started(&actions).unwrap_or_else(|| panic!("node {node} gets an attempt and not {actions:?}"))
    }

    /// Lets a node ask, which gets nothing.
    fn ask_in_vain(&mut self, node: u32) {
        assert_eq!(self.on(Event::Asked { node: NodeId(node) }), []);
    }

    fn finish(&mut self, attempt: Started) -> Vec<Action> {
        self.on(Event::Finished { token: attempt.token, bytes: 1_000, checksum: 7 })
    }

    fn fail(&mut self, attempt: Started, kind: FailureKind) -> Vec<Action> {
        self.on(Event::Failed { token: attempt.token, kind, why: "no luck".to_string() })
    }

    fn miss(&mut self, attempt: Started, output: Started, cause: FetchFailure) -> Vec<Action> {
        self.on(Event::FetchFailed { token: attempt.token, outputs: vec![output.token], cause })
    }

    /// Lets a number of milliseconds pass, in which all nodes are heard.
    fn pass(&mut self, ms: u64, nodes: u32) -> Vec<Action> {
        self.ms += ms;
        for node in 0..nodes {
            self.on(Event::LeaseRenewed { node: NodeId(node) });
        }
        let actions = self.on(Event::Tick);
        actions.into_iter().filter(|action| !matches!(action, Action::RenewLease { .. })).collect()
    }

    fn outputs(&self, stage: u32, version: usize) -> (Vec<Output>, usize) {
        let (outputs, version) = self.scheduler.outputs_since(stage, version);
        (outputs.collect(), version)
    }
}

fn started(actions: &[Action]) -> Option<Started> {
    actions.iter().find_map(|action| match *action {
        Action::Start { token, node, partition, work } => {
            Some(Started { token, node: node.0, partition, work })
        }
        _ => None,
    })
}

fn partition(stage: u32, partition: u32) -> PartitionId {
    PartitionId { stage, partition }
}

fn cancel(attempt: Started) -> Action {
    Action::Cancel { token: attempt.token, node: NodeId(attempt.node) }
}

/// Returns the action that resumes a merge.
fn resume(attempt: Started, node: u32) -> Action {
    Action::Resume { token: attempt.token, node: NodeId(node), work: Work::Merge { fan_in: 1 } }
}

fn release(node: u32) -> Action {
    Action::Release { node: NodeId(node), kept: vec![] }
}

fn fatal(error: Error, nodes: &[u32]) -> Vec<Action> {
    nodes.iter().map(|&node| release(node)).chain([Action::Fail { error }]).collect()
}

#[test]
fn a_node_gets_its_own_replicas_first_and_then_those_of_the_longest_queue() {
    let mut job = Job::new(3, &[&[0], &[1], &[1], &[1]], 1);
    let own = job.ask(0);
    assert_eq!((own.partition, own.work), (partition(0, 0), Work::Map { read_from: NodeId(0) }));
    job.finish(own);
    let remote = job.ask(0);
    assert_eq!((remote.partition, remote.work), (partition(0, 3), Work::Map { read_from: NodeId(1) }));
    let own = job.ask(1);
    assert_eq!((own.partition, own.work), (partition(0, 1), Work::Map { read_from: NodeId(1) }));
    assert_eq!(job.scheduler.counters().remote, 1);
}

#[test]
fn merges_begin_when_each_producer_has_an_output_and_share_the_connections_of_a_node() {
    let options = Options { max_connections: 24, ..Options::default() };
    let mut job = Job::with(1, 3, &[&[0], &[0]], 2, options);
    let maps = [job.ask(0), job.ask(0)];
    job.ask_in_vain(0);
    job.finish(maps[0]);
    let merge = started(&job.finish(maps[1])).unwrap();
    assert_eq!((merge.partition, merge.work), (partition(1, 0), Work::Merge { fan_in: 4 }));
    let (outputs, version) = job.outputs(0, 0);
    assert_eq!(outputs.iter().map(|output| output.token).collect::<Vec<_>>(), maps.map(|map| map.token));
    assert_eq!(job.outputs(0, version), (vec![], version));
}

#[test]
fn a_node_that_asks_more_often_than_it_has_slots_gets_no_more() {
    let mut job = Job::new(1, &[&[0], &[0], &[0]], 1);
    let first = job.ask(0);
    job.ask_in_vain(0);
    job.ask_in_vain(0);
    job.finish(first);
    let second = job.ask(0);
    assert_eq!(second.partition, partition(0, 1));
    job.ask_in_vain(0);
}

#[test]
fn a_second_attempt_begins_when_nothing_else_is_left_and_the_first_that_finishes_wins() {
    let mut job = Job::new(2, &[&[0, 1], &[0, 1]], 1);
    let (fast, slow) = (job.ask(0), job.ask(1));
    job.pass(1_000, 2);
    job.finish(fast);
    // The other attempt has not run for longer than the first one took.
    job.ask_in_vain(0);
    let second = started(&job.pass(1_000, 2)).unwrap();
    assert_eq!((second.partition, second.node), (slow.partition, 0));
    assert_eq!(job.finish(second), [cancel(slow)]);
    let late = job.finish(slow);
    assert_eq!(late, [Action::DeleteScratch { token: slow.token, node: NodeId(1) }]);
    assert_eq!(job.outputs(0, 0).0.len(), 2);
    assert_eq!(job.scheduler.counters().second, 1);
}

#[test]
fn a_message_that_comes_twice_changes_nothing() {
    let mut job = Job::new(1, &[&[0]], 1);
    let map = job.ask(0);
    job.finish(map);
    assert_eq!(job.finish(map), []);
    assert_eq!(job.fail(map, FailureKind::Fatal), []);
    assert_eq!(job.miss(map, map, FetchFailure::Gone), []);
    assert_eq!(job.outputs(0, 0).0.len(), 1);
}

#[test]
fn a_failed_attempt_is_retried_on_another_node_and_too_many_failures_end_the_job() {
    let mut job = Job::new(2, &[&[0, 1]], 1);
    let first = job.ask(0);
    job.fail(first, FailureKind::Retryable);
    job.ask_in_vain(0);
    let second = job.ask(1);
    // Attempts on both nodes have failed, so node 0, which waits for work, gets the partition again.
    let third = started(&job.fail(second, FailureKind::Retryable)).unwrap();
    assert_eq!((third.node, third.partition), (0, first.partition));
    job.fail(third, FailureKind::Retryable);
    let fourth = job.ask(1);
    let failures = [0, 1, 0, 1].map(|node| (NodeId(node), "no luck".to_string())).to_vec();
    let error = Error::RetriesExhausted { partition: first.partition, failures };
    assert_eq!(job.fail(fourth, FailureKind::Retryable), fatal(error, &[0, 1]));
    assert_eq!(job.on(Event::Cancelled), [], "no action follows the end");
}

#[test]
fn a_fatal_failure_ends_the_job_and_names_partition_and_node() {
    let mut job = Job::new(1, &[&[0]], 1);
    let map = job.ask(0);
    let actions = job.fail(map, FailureKind::Fatal);
    let error = Error::Failed { partition: map.partition, node: NodeId(0), why: "no luck".to_string() };
    assert_eq!(error.to_string(), "partition 0 of stage 0 failed on node 0: no luck");
    assert_eq!(actions, fatal(error, &[0]));
}

#[test]
fn a_full_node_gets_no_more_attempts_and_keeps_its_outputs() {
    let mut job = Job::new(2, &[&[0], &[0]], 1);
    let kept = job.ask(0);
    job.finish(kept);
    let map = job.ask(0);
    job.fail(map, FailureKind::DiskFull);
    job.ask_in_vain(0);
    let other = job.ask(1);
    assert_eq!((other.partition, other.work), (map.partition, Work::Map { read_from: NodeId(0) }));
    assert_eq!(job.outputs(0, 0).0[0].node, NodeId(0));
    let actions = job.fail(other, FailureKind::DiskFull);
    let Some(Action::Fail { error }) = actions.last() else { panic!("{actions:?}") };
    assert_eq!(
        error.to_string(),
        "no node remains that can run partition 1 of stage 0: node 0: its disk is full; node 1: its disk is full"
    );
}

/// Returns a job of two nodes in which node 0 merges, and the map attempts of nodes 0 and 1.
fn merging() -> (Job, Started, [Started; 2]) {
    let mut job = Job::new(2, &[&[0, 1], &[1, 0]], 2);
    let maps = [job.ask(0), job.ask(1)];
    job.finish(maps[0]);
    job.finish(maps[1]);
    let merge = job.ask(0);
    (job, merge, maps)
}

#[test]
fn a_merge_that_misses_a_range_resumes_when_the_output_was_computed_again() {
    let (mut job, merge, maps) = merging();
    let actions = job.miss(merge, maps[1], FetchFailure::Gone);
    assert_eq!(actions, [Action::DeleteScratch { token: maps[1].token, node: NodeId(1) }]);
    // The slot of the waiting attempt computes what the attempt waits for.
    let again = job.ask(0);
    assert_eq!(again.partition, maps[1].partition);
    let version = job.outputs(0, 0).1;
    job.finish(again);
    let resumed = job.on(Event::Asked { node: NodeId(0) });
    assert_eq!(resumed, [resume(merge, 0)]);
    assert_eq!(job.outputs(0, version).0[0].token, again.token);
    job.finish(merge);
    let last = job.ask(0);
    let actions = job.finish(last);
    let kept = vec![merge.token, last.token];
    assert_eq!(actions[..2], [Action::Release { node: NodeId(0), kept }, release(1)]);
    let Action::Finish { result } = &actions[2] else { panic!("{actions:?}") };
    assert_eq!(result.iter().map(|output| output.token).collect::<Vec<_>>(), [merge.token, last.token]);
}

/// A failed fetch names the outputs of one request, and a lost node may have had more.
#[test]
fn a_merge_that_waited_resumes_when_every_producer_has_an_output() {
    let mut job = Job::new(2, &[&[0, 1], &[0, 1]], 1);
    let maps = [0, 0].map(|node| {
        let map = job.ask(node);
        job.finish(map);
        map
    });
    let merge = job.ask(1);
    job.on(Event::Lost { node: NodeId(0) });
    job.miss(merge, maps[0], FetchFailure::Gone);
    for number in 0..2 {
        let again = job.ask(1);
        assert_eq!(again.partition, partition(0, number));
        job.finish(again);
    }
    let resume = resume(merge, 1);
    assert_eq!(job.on(Event::Asked { node: NodeId(1) }), [resume]);
}

/// A stage that is broadcast is complete before a map reads it. A map that cannot fetch it waits, reads its shard again
/// from the same node, and does not count as failed.
#[test]
fn a_map_waits_for_the_stage_that_is_broadcast_to_it() {
    let exchange = |partitions| StageOutput::Exchange(Partitioning::Hash { partitions });
    let pieces = |node| StageInput::Replicas(vec![vec![NodeId(node), NodeId(2)]]);
    let small = Stage { input: pieces(0), broadcasts: Vec::new(), output: exchange(1), memory_bytes: 10 };
    let large =
        Stage { input: pieces(1), broadcasts: vec![0], output: StageOutput::Result, memory_bytes: 10 };
    let mut job = Job::of(vec![small, large], 3, 1, Options::default());
    let small = job.ask(0);
    job.ask_in_vain(1);
    let large = started(&job.finish(small)).unwrap();
    assert_eq!((large.partition, large.work), (partition(1, 0), Work::Map { read_from: NodeId(1) }));
    job.on(Event::Lost { node: NodeId(0) });
    job.miss(large, small, FetchFailure::Unreachable);
    let again = job.ask(2);
    assert_eq!(again.partition, small.partition);
    job.finish(again);
    let resume = Action::Resume { token: large.token, node: NodeId(1), work: large.work };
    assert_eq!(job.on(Event::Asked { node: NodeId(1) }), [resume]);
    job.finish(large);
    assert_eq!((job.scheduler.is_running(), job.scheduler.counters().failed), (false, 0));
}

#[test]
fn a_plan_that_grows_asks_once_for_the_stages_that_follow() {
    let exchange = StageOutput::Exchange(Partitioning::Hash { partitions: 1 });
    let stage = |input, output| Stage { input, broadcasts: Vec::new(), output, memory_bytes: 10 };
    let map = stage(StageInput::Replicas(vec![vec![NodeId(0), NodeId(1)]]), exchange.clone());
    let mut job = Job::planned(Plan::growing(vec![map]).unwrap(), 2, 1, Options::default());
    let first = job.ask(0);
    let asked = job.finish(first);
    let [Action::Extend { outputs }] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(outputs.iter().map(|output| output.token).collect::<Vec<_>>(), [first.token]);
    job.ask_in_vain(0);
    // An output that is lost before the plan grows is computed again, and the scheduler does not ask again.
    job.on(Event::Lost { node: NodeId(0) });
    let again = job.ask(1);
    assert_eq!((again.partition, job.finish(again)), (first.partition, vec![]));
    job.ask_in_vain(1);
    let step = stage(StageInput::exchange([0]), exchange);
    let actions = job.scheduler.extend(Duration::from_millis(job.ms), vec![step]).unwrap();
    let step = started(&actions).unwrap();
    assert_eq!((step.node, step.partition), (1, partition(1, 0)));
    assert!(matches!(job.finish(step)[..], [Action::Extend { .. }]));
    // A stage that is not known yet may read an output of a draining node, which therefore stays.
    assert_eq!(job.on(Event::Draining { node: NodeId(1) }), []);
    let unread = stage(StageInput::exchange([0]), StageOutput::Result);
    let error = job.scheduler.extend(Duration::from_millis(job.ms), vec![unread]).unwrap_err();
    assert_eq!(error, Error::InvalidPlan { stage: 1, why: "no stage reads its exchange".to_string() });
}

#[test]
fn the_result_of_a_plan_that_has_grown_ends_the_job() {
    let exchange = StageOutput::Exchange(Partitioning::Hash { partitions: 2 });
    let stage = |input, output| Stage { input, broadcasts: Vec::new(), output, memory_bytes: 10 };
    let map = stage(StageInput::Replicas(vec![vec![NodeId(0)]]), exchange.clone());
    let mut job = Job::planned(Plan::growing(vec![map]).unwrap(), 1, 1, Options::default());
    let mut attempt = job.ask(0);
    for step in 1..5 {
        let asked = job.finish(attempt);
        assert!(matches!(asked[..], [Action::Extend { .. }]), "{asked:?}");
        // Each stage reads the state of the first exchange and of the stage before.
        let states = if step == 1 { vec![] } else { vec![step - 1] };
        let input = StageInput::Exchange { ranges: vec![step - 1], states };
        let output = if step == 4 { StageOutput::Result } else { exchange.clone() };
        let now = Duration::from_millis(job.ms);
        assert_eq!(job.scheduler.extend(now, vec![stage(input, output)]).unwrap(), []);
        attempt = job.ask(0);
        assert_eq!(attempt.partition, partition(step, 0));
        assert_eq!(job.finish(attempt), []);
        attempt = job.ask(0);
    }
    let ended = job.finish(attempt);
    assert!(matches!(ended.last(), Some(Action::Finish { .. })), "{ended:?}");
    assert_eq!(job.scheduler.extend(Duration::ZERO, vec![]).unwrap(), []);
}

#[test]
fn a_partition_with_state_is_left_to_the_node_that_stores_the_state() {
    let exchange = |partitions| StageOutput::Exchange(Partitioning::Hash { partitions });
    let stage = |input, output| Stage { input, broadcasts: Vec::new(), output, memory_bytes: 10 };
    let with_state = StageInput::Exchange { ranges: vec![1], states: vec![1] };
    let stages = vec![
        stage(StageInput::Replicas(vec![vec![NodeId(0), NodeId(1)]]), exchange(2)),
        stage(StageInput::exchange([0]), exchange(2)),
        stage(with_state, StageOutput::Result),
    ];
    let mut job = Job::of(stages, 2, 1, Options::default());
    let map = job.ask(0);
    job.finish(map);
    let homes = [0, 1].map(|node| job.ask(node));
    for home in homes {
        job.finish(home);
    }
    // Node 1 stores the state of partition 1, and takes no other one.
    let own = job.ask(1);
    assert_eq!((own.partition, homes[1].partition), (partition(2, 1), partition(1, 1)));
    job.finish(own);
    job.ask_in_vain(1);
    // The node of a state that gets no more attempts leaves its partitions to others.
    let first = job.ask(0);
    let moved = started(&job.fail(first, FailureKind::DiskFull)).unwrap();
    assert_eq!((moved.node, moved.partition), (1, partition(2, 0)));
}

#[test]
fn a_lost_node_loses_its_attempts_and_outputs_and_another_one_computes_them_again() {
    let (mut job, merge, maps) = merging();
    let other = job.ask(1);
    assert_eq!(job.on(Event::Lost { node: NodeId(1) }), [release(1)]);
    assert_eq!(job.finish(other), [], "events of a lost attempt are dropped");
    job.miss(merge, maps[1], FetchFailure::Unreachable);
    let again = job.ask(0);
    assert_eq!((again.partition, again.work), (maps[1].partition, Work::Map { read_from: NodeId(0) }));
    let counters = job.scheduler.counters();
    assert_eq!((counters.lost, counters.lost_outputs, counters.waits), (1, 1, 1));
}

#[test]
fn outputs_that_no_consumer_needs_are_not_computed_again() {
    let mut job = Job::new(3, &[&[0, 1], &[1, 0]], 1);
    let maps = [job.ask(0), job.ask(1)];
    job.finish(maps[0]);
    job.finish(maps[1]);
    let merge = job.ask(2);
    job.on(Event::Lost { node: NodeId(1) });
    let finished = job.finish(merge);
    assert!(matches!(finished.last(), Some(Action::Finish { .. })), "{finished:?}");
}

#[test]
fn a_range_that_is_unreachable_is_tried_again() {
    let (mut job, merge, maps) = merging();
    assert_eq!(job.miss(merge, maps[1], FetchFailure::Unreachable), []);
    let other = job.ask(0);
    assert_eq!(other.partition, partition(1, 1));
    job.finish(other);
    job.ask_in_vain(0);
    let resumed = job.pass(2_000, 2);
    assert_eq!(resumed, [resume(merge, 0)]);
    assert_eq!(job.scheduler.counters().lost_outputs, 0);
}

#[test]
fn a_node_that_others_cannot_reach_three_times_is_given_up_and_stays_away() {
    let (mut job, merge, maps) = merging();
    for _ in 0..2 {
        assert_eq!(job.miss(merge, maps[1], FetchFailure::Unreachable), []);
        job.pass(2_000, 2);
        job.on(Event::Asked { node: NodeId(0) });
    }
    assert_eq!(job.miss(merge, maps[1], FetchFailure::Unreachable), [release(1)]);
    assert_eq!(job.on(Event::Joined { node: NodeId(1), slots: 1 }), []);
    assert_eq!(job.ask(0).partition, maps[1].partition);
}

#[test]
fn outputs_of_a_slow_node_are_computed_again_while_the_old_ones_stay_in_use() {
    let (mut job, merge, maps) = merging();
    assert_eq!(job.miss(merge, maps[1], FetchFailure::Slow), []);
    job.ask_in_vain(1);
    assert_eq!(job.outputs(0, 0).0.len(), 2);
    let again = job.ask(0);
    assert_eq!(again.partition, maps[1].partition);
    job.finish(again);
    let resumed = job.on(Event::Asked { node: NodeId(0) });
    assert_eq!(resumed, [resume(merge, 0)]);
}

#[test]
fn a_slow_range_without_another_replica_is_read_from_the_slow_node() {
    let mut job = Job::new(2, &[&[0], &[1]], 1);
    let maps = [job.ask(0), job.ask(1)];
    job.finish(maps[0]);
    job.finish(maps[1]);
    let merge = job.ask(0);
    job.miss(merge, maps[1], FetchFailure::Slow);
    let resumed = job.on(Event::Asked { node: NodeId(0) });
    assert_eq!(resumed, [resume(merge, 0)]);
}

#[test]
fn outputs_of_a_draining_node_are_copied_before_the_node_is_released() {
    let mut job = Job::new(2, &[&[0], &[1]], 1);
    let map = job.ask(0);
    job.finish(map);
    assert_eq!(job.on(Event::Draining { node: NodeId(0) }), []);
    job.ask_in_vain(0);
    let copy = job.ask(1);
    assert!(matches!(copy.work, Work::Copy { output } if output.token == map.token), "{copy:?}");
    assert_eq!(job.finish(copy), [release(0)]);
    assert_eq!(job.outputs(0, 0).0.iter().map(|output| output.node).collect::<Vec<_>>(), [NodeId(1); 2]);
    assert_eq!(job.scheduler.counters().copies, 1);
}

#[test]
fn a_copy_that_fails_is_replaced_by_a_computation() {
    let mut job = Job::new(3, &[&[0, 1], &[1]], 1);
    let map = job.ask(0);
    job.finish(map);
    job.on(Event::Draining { node: NodeId(0) });
    let copy = job.ask(1);
    job.miss(copy, map, FetchFailure::Unreachable);
    let again = job.ask(2);
    assert_eq!((again.partition, again.work), (map.partition, Work::Map { read_from: NodeId(1) }));
    assert_eq!(job.finish(again), [release(0)]);
}

#[test]
fn the_only_replica_on_a_draining_node_is_read_before_the_node_is_released() {
    let mut job = Job::new(2, &[&[0]], 1);
    assert_eq!(job.on(Event::Draining { node: NodeId(0) }), []);
    let map = job.ask(1);
    assert_eq!(map.work, Work::Map { read_from: NodeId(0) });
    assert_eq!(job.finish(map), [release(0)]);
}

#[test]
fn leases_are_renewed_and_a_node_that_is_silent_for_the_time_of_a_lease_is_lost() {
    let mut job = Job::new(2, &[&[0, 1], &[0, 1]], 1);
    let map = job.ask(1);
    for _ in 0..3 {
        job.ms += 5_000;
        let renewed = [0, 1].map(|node| Action::RenewLease { node: NodeId(node) });
        job.on(Event::LeaseRenewed { node: NodeId(0) });
        let actions = job.on(Event::Tick);
        match job.ms {
            15_000 => assert_eq!(actions, [release(1), Action::RenewLease { node: NodeId(0) }]),
            _ => assert_eq!(actions, renewed),
        }
    }
    assert_eq!(job.ask(0).partition, map.partition);
}

#[test]
fn a_node_that_returns_is_used_again_up_to_the_limit_of_losses() {
    let mut job = Job::new(2, &[&[0, 1]], 1);
    for loss in 1..=4 {
        job.on(Event::LeaseExpired { node: NodeId(1) });
        let actions = job.on(Event::Joined { node: NodeId(1), slots: 1 });
        let reserve = Action::Reserve { node: NodeId(1), memory_bytes: 10 };
        assert_eq!(actions.contains(&reserve), loss <= 3, "loss {loss}: {actions:?}");
    }
}

#[test]
fn a_node_that_joins_without_a_reported_loss_has_lost_its_attempts() {
    let mut job = Job::new(2, &[&[0, 1]], 1);
    let map = job.ask(1);
    job.on(Event::Joined { node: NodeId(1), slots: 1 });
    assert_eq!(job.ask(0).partition, map.partition);
    assert_eq!(job.finish(map).len(), 1, "the late output is deleted");
}

#[test]
fn a_job_ends_at_its_deadline_and_names_unfinished_stages() {
    let options = Options { deadline: Duration::from_secs(60), ..Options::default() };
    let mut job = Job::with(1, 1, &[&[0], &[0]], 3, options);
    let map = job.ask(0);
    job.finish(map);
    let actions = job.pass(60_000, 1);
    let Some(Action::Fail { error }) = actions.last() else { panic!("{actions:?}") };
    assert_eq!(
        error.to_string(),
        "the deadline of 60s passed: 1 of 2 partitions of stage 0 are unfinished, \
         3 of 3 partitions of stage 1 are unfinished"
    );
}

#[test]
fn a_cancelled_job_is_released_on_all_nodes() {
    let mut job = Job::new(2, &[&[0]], 1);
    job.ask(0);
    assert_eq!(job.on(Event::Cancelled), fatal(Error::Cancelled, &[0, 1]));
    assert_eq!(job.on(Event::Asked { node: NodeId(1) }), []);
}
