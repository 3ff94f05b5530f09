//! Tests that memory is reserved on all nodes or on none, in the order of their numbers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use inshore_stages::{
    Action, Error, Event, NodeId, Options, Partitioning, Plan, Scheduler, Stage, StageInput, StageOutput,
};

use crate::simulation::settings::Dice;

fn plan(nodes: u32, map_bytes: u64, merge_bytes: u64) -> Plan {
    let map = Stage {
        input: StageInput::Replicas(
            (0..nodes).map(|node| vec![NodeId(node), NodeId((node + 1) % nodes)]).collect(),
        ),
        broadcasts: Vec::new(),
        output: StageOutput::Exchange(Partitioning::Hash { partitions: 3 }),
        memory_bytes: map_bytes,
    };
    let merge = Stage {
        input: StageInput::exchange([0]),
        broadcasts: Vec::new(),
        output: StageOutput::Result,
        memory_bytes: merge_bytes,
    };
    Plan::new(vec![map, merge]).unwrap()
}

fn nodes(count: u32, slots: u32) -> Vec<(NodeId, u32)> {
    (0..count).map(|node| (NodeId(node), slots)).collect()
}

fn reserve(node: u32, memory_bytes: u64) -> Action {
    Action::Reserve { node: NodeId(node), memory_bytes }
}

fn without_leases(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|action| !matches!(action, Action::RenewLease { .. })).collect()
}

#[test]
fn nodes_are_asked_one_after_the_other_and_attempts_start_after_the_last_reply() {
    let (mut scheduler, actions) = Scheduler::start(plan(3, 10, 10), Options::default(), &nodes(3, 2));
    assert_eq!(without_leases(actions), [reserve(0, 20)]);
    let mut on = |event| without_leases(scheduler.on(Duration::ZERO, event));
    assert_eq!(on(Event::Asked { node: NodeId(0) }), []);
    assert_eq!(on(Event::Reserved { node: NodeId(0), memory_bytes: 20 }), [reserve(1, 20)]);
    // A reply to another request, and a reply that was not asked for, change nothing.
    assert_eq!(on(Event::Reserved { node: NodeId(1), memory_bytes: 10 }), []);
    assert_eq!(on(Event::Reserved { node: NodeId(2), memory_bytes: 20 }), []);
    // A lost node is passed over.
    let release = Action::Release { node: NodeId(1), kept: vec![] };
    assert_eq!(on(Event::Lost { node: NodeId(1) }), [release, reserve(2, 20)]);
    let started = on(Event::Reserved { node: NodeId(2), memory_bytes: 20 });
    assert!(matches!(started[..], [Action::Start { node: NodeId(0), .. }]), "{started:?}");
}

#[test]
fn a_refusal_returns_all_memory_until_the_job_tries_again() {
    let (mut scheduler, _) = Scheduler::start(plan(3, 10, 10), Options::default(), &nodes(3, 1));
    let mut on = |seconds, event| without_leases(scheduler.on(Duration::from_secs(seconds), event));
    on(0, Event::Reserved { node: NodeId(0), memory_bytes: 10 });
    on(0, Event::Reserved { node: NodeId(1), memory_bytes: 10 });
    let returned = [0, 1].map(|node| Action::Unreserve { node: NodeId(node) });
    assert_eq!(on(1, Event::Refused { node: NodeId(2), limit_bytes: 15 }), returned);
    assert_eq!(on(2, Event::Tick), []);
    assert_eq!(on(3, Event::Tick), [reserve(0, 10)]);
    let failed = on(4, Event::Refused { node: NodeId(0), limit_bytes: 9 });
    let error = Error::Memory { node: NodeId(0), needed_bytes: 10, limit_bytes: 9 };
    assert_eq!(failed.last(), Some(&Action::Fail { error }));
}

#[test]
fn a_node_that_joins_late_is_asked_alone_and_again_after_a_refusal() {
    let (mut scheduler, _) = Scheduler::start(plan(1, 10, 10), Options::default(), &nodes(1, 1));
    let mut on = |seconds, event| without_leases(scheduler.on(Duration::from_secs(seconds), event));
    on(0, Event::Reserved { node: NodeId(0), memory_bytes: 10 });
    assert_eq!(on(1, Event::Joined { node: NodeId(7), slots: 4 }), [reserve(7, 40)]);
    assert_eq!(on(1, Event::Asked { node: NodeId(7) }), []);
    assert_eq!(on(2, Event::Refused { node: NodeId(7), limit_bytes: 100 }), []);
    assert_eq!(on(3, Event::Tick), []);
    assert_eq!(on(4, Event::Tick), [reserve(7, 40)]);
    let started = on(5, Event::Reserved { node: NodeId(7), memory_bytes: 40 });
    assert!(matches!(started[..], [Action::Start { node: NodeId(7), .. }]), "{started:?}");
}

#[test]
fn a_level_that_needs_more_memory_returns_all_memory_first() {
    let (mut scheduler, mut actions) = Scheduler::start(plan(2, 10, 30), Options::default(), &nodes(2, 1));
    let mut log = Vec::new();
    for node in [0, 1] {
        actions.extend(scheduler.on(Duration::ZERO, Event::Asked { node: NodeId(node) }));
    }
    let mut actions = VecDeque::from(actions);
    while let Some(action) = actions.pop_front() {
        let event = match action {
            Action::Reserve { node, memory_bytes } => Event::Reserved { node, memory_bytes },
            Action::Start { token, .. } => Event::Finished { token, bytes: 1, checksum: 1 },
            _ => Event::Tick,
        };
        if let Action::Reserve { .. } | Action::Unreserve { .. } = action {
            log.push(action);
        }
        actions.extend(scheduler.on(Duration::ZERO, event));
    }
    let returned = [0, 1].map(|node| Action::Unreserve { node: NodeId(node) });
    let [first, second] = returned;
    assert_eq!(log, [reserve(0, 10), reserve(1, 10), first, second, reserve(0, 30), reserve(1, 30)]);
}

/// Runs two jobs on the same nodes, whose memory suffices for one of them. Messages arrive in a random order, except
/// that the order is kept between a job and a node.
fn run_two_jobs(seed: u64) {
    let mut dice = Dice::new(seed);
    let count = 2 + dice.below(6) as u32;
    let mut held: BTreeMap<(NodeId, usize), u64> = BTreeMap::new();
    let mut queues: BTreeMap<(usize, NodeId), VecDeque<Action>> = BTreeMap::new();
    let mut jobs: Vec<Scheduler> = Vec::new();
    let mut ended = [false; 2];
    let mut now = Duration::ZERO;
    let mut pending: Vec<(usize, Vec<Action>)> = Vec::new();
    for job in 0..2 {
        let (scheduler, actions) =
            Scheduler::start(plan(count, 40, 60 + job as u64), Options::default(), &nodes(count, 1));
        jobs.push(scheduler);
        pending.push((job, actions));
        for node in 0..count {
            let asked = jobs[job].on(now, Event::Asked { node: NodeId(node) });
            pending.push((job, asked));
        }
    }
    for _ in 0..100_000 {
        for (job, actions) in std::mem::take(&mut pending) {
            for action in actions {
                match action {
                    Action::Reserve { node, .. }
                    | Action::Unreserve { node }
                    | Action::Start { node, .. }
                    | Action::Release { node, .. } => {
                        queues.entry((job, node)).or_default().push_back(action)
                    }
                    Action::Finish { .. } => ended[job] = true,
                    Action::Fail { error } => panic!("seed {seed}: job {job}: {error}"),
                    _ => {}
                }
            }
        }
        queues.retain(|_, queue| !queue.is_empty());
        if ended == [true; 2] && queues.is_empty() {
            assert!(held.is_empty(), "seed {seed}: memory is still reserved: {held:?}");
            return;
        }
        if queues.is_empty() || dice.below(5) == 0 {
            now += Duration::from_millis(500);
            for (job, scheduler) in jobs.iter_mut().enumerate() {
                // All nodes are heard.
                for node in 0..count {
                    pending.push((job, scheduler.on(now, Event::LeaseRenewed { node: NodeId(node) })));
                }
                pending.push((job, scheduler.on(now, Event::Tick)));
            }
            continue;
        }
        let place = dice.below(queues.len() as u64) as usize;
        let (&(job, node), queue) = queues.iter_mut().nth(place).unwrap();
        let event = match queue.pop_front().unwrap() {
            Action::Reserve { memory_bytes, .. } => {
                let others = held.range((node, 0)..=(node, 1)).map(|(_, bytes)| bytes).sum::<u64>();
                if others + memory_bytes <= 100 {
                    held.insert((node, job), memory_bytes);
                    Event::Reserved { node, memory_bytes }
                } else {
                    Event::Refused { node, limit_bytes: 100 }
                }
            }
            Action::Start { token, .. } => {
                assert!(held.contains_key(&(node, job)), "seed {seed}: an attempt without memory");
                Event::Finished { token, bytes: 1, checksum: 1 }
            }
            _ => {
                held.remove(&(node, job));
                continue;
            }
        };
        let is_finished = matches!(event, Event::Finished { .. });
        pending.push((job, jobs[job].on(now, event)));
        if is_finished {
            pending.push((job, jobs[job].on(now, Event::Asked { node })));
        }
    }
    panic!("seed {seed}: the jobs wait for each other: {held:?}");
}

#[test]
fn two_jobs_never_wait_for_each_others_memory() {
    (1..=200).for_each(run_two_jobs);
}
