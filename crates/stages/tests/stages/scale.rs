//! Tests jobs of the size of a large cluster. `tests/memory.rs` tests the memory of the same job.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::{Duration, Instant},
};

use inshore_stages::{Action, NodeId, Options, Scheduler};

use crate::simulation::{
    run,
    settings::{Dice, FaultKind, Settings},
};

/// A sort of 10,000 map and 10,000 merge partitions on 1,000 nodes.
fn large() -> Settings {
    Settings { maps: 10_000, merges: 10_000, ..Settings::sort(1, 1_000) }
}

/// Loses some nodes at random places of both stages, half of them without a report of the cluster.
fn with_lost_nodes(mut settings: Settings, lost: u32) -> Settings {
    let mut dice = Dice::new(settings.seed);
    let share = settings.nodes / lost;
    for number in 0..lost {
        let node = number * share + dice.below(u64::from(share)) as u32;
        let kind = [FaultKind::Dies, FaultKind::DiesSilently][dice.below(2) as usize];
        let starts = 1 + dice.below(u64::from(settings.maps) * 9 / 10) as u32;
        settings = settings.with_fault(node, kind, dice.below(2) as u32, starts);
    }
    settings
}

#[test]
fn a_plan_of_ten_thousand_partitions_on_a_thousand_nodes_takes_less_than_two_seconds() {
    let settings = large();
    let nodes: Vec<(NodeId, u32)> = (0..settings.nodes).map(|node| (NodeId(node), settings.slots)).collect();
    let begun = Instant::now();
    let plan = settings.plan();
    let planned = begun.elapsed();
    let (_, actions) = Scheduler::start(plan, Options::default(), &nodes);
    let started = begun.elapsed();
    println!("plan: {planned:?}; plan and start of the scheduler: {started:?}");
    // A renewal for each node, and a reservation on the first one: no action for a partition, and none for pairs.
    assert_eq!(actions.len(), 1_001);
    assert!(matches!(actions.last(), Some(Action::Reserve { node: NodeId(0), .. })));
    // The time is some milliseconds.
    assert!(started < Duration::from_secs(2), "{started:?}");
}

#[test]
fn ten_thousand_partitions_on_a_thousand_nodes_run_once_each() {
    let settings = Settings { records_ranges: false, spread_percent: 0, ..large() };
    let begun = Instant::now();
    let outcome = run(&settings);
    println!("{} simulated seconds in {:?}: {:?}", outcome.ms / 1_000, begun.elapsed(), outcome.counters);
    assert_eq!(outcome.result.unwrap().len(), 10_000);
    assert_eq!((outcome.counters.started, outcome.counters.finished), (20_000, 20_000));
}

/// The simulator checks the connections of each node after each event (invariant 4), and each range that is read.
#[test]
fn a_thousand_nodes_of_which_fifty_are_lost_finish_right() {
    let settings = Settings { replicas: 3, maps: 1_000, merges: 1_000, ..Settings::sort(7, 1_000) };
    let outcome = run(&with_lost_nodes(settings, 50));
    println!("{} simulated seconds: {:?}", outcome.ms / 1_000, outcome.counters);
    assert_eq!(outcome.result.unwrap().len(), 1_000);
    assert!(outcome.counters.lost_outputs > 0 && outcome.faults.len() > 25, "{:?}", outcome.faults);
}

#[test]
fn a_hundred_nodes_of_which_five_are_lost_finish_right_for_many_seeds() {
    let mut lost_outputs = 0;
    for seed in 1..=20 {
        let settings = Settings { replicas: 3, maps: 400, merges: 400, ..Settings::sort(seed, 100) };
        let outcome = run(&with_lost_nodes(settings, 5));
        let result = outcome.result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((result.len(), outcome.faults.len()), (400, 5), "seed {seed}");
        lost_outputs += outcome.counters.lost_outputs;
    }
    assert!(lost_outputs > 0);
}

/// A model of the connections between nodes while all of them merge. An attempt fetches from one node after the other,
/// beginning after its own, over a connection that it opens and closes. A node serves eight fetches at the same time, in
/// the order of their arrival, and a connection that waits is open too. Returns the largest number of connections that
/// a node has at a moment, to fetch and to serve.
fn most_connections(nodes: usize, slots: usize, spread_percent: u64, seed: u64) -> usize {
    const SERVES_MAX: usize = 8;
    let mut dice = Dice::new(seed);
    let percents: Vec<u64> = (0..nodes).map(|_| 100 + dice.below(spread_percent + 1)).collect();
    let (mut serving, mut waiting) = (vec![0; nodes], vec![VecDeque::<(usize, usize)>::new(); nodes]);
    // The ends of fetches: time, number of the attempt, and step in its round.
    let mut ends: BinaryHeap<Reverse<(u64, usize, usize)>> = BinaryHeap::new();
    let mut arrivals: VecDeque<(usize, usize)> = (0..nodes * slots).map(|attempt| (attempt, 1)).collect();
    let (mut now, mut most, mut touched) = (0, 0, Vec::new());
    loop {
        while let Some((attempt, step)) = arrivals.pop_front() {
            let node = (attempt % nodes + step) % nodes;
            waiting[node].push_back((attempt, step));
            touched.push(node);
        }
        for node in touched.drain(..) {
            most = most.max(slots + serving[node] + waiting[node].len());
            while serving[node] < SERVES_MAX
                && let Some((attempt, step)) = waiting[node].pop_front()
            {
                serving[node] += 1;
                let time = (500 + dice.below(1_000)) * percents[node] / 100;
                ends.push(Reverse((now + time, attempt, step)));
            }
        }
        let Some(Reverse((at, attempt, step))) = ends.pop() else { return most };
        now = at;
        let node = (attempt % nodes + step) % nodes;
        serving[node] -= 1;
        touched.push(node);
        if step + 1 < nodes {
            arrivals.push_back((attempt, step + 1));
        }
    }
}

#[test]
fn a_thousand_nodes_that_merge_have_at_most_64_connections_each() {
    for (slots, spread_percent) in [(2, 20), (2, 100), (4, 20)] {
        for seed in 1..=3 {
            let most = most_connections(1_000, slots, spread_percent, seed);
            println!("{slots} slots, speeds of 100 to {} %: {most} connections", 100 + spread_percent);
            assert!(most <= 64, "{most} connections");
        }
    }
}
