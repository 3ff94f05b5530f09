//! Tests what faults cost, in simulated time.

use crate::simulation::{
    run,
    settings::{Dice, FaultKind, Settings},
};

/// Returns the simulated time of a job that must end with a result, in milliseconds.
fn time(settings: &Settings) -> u64 {
    let outcome = run(settings);
    outcome.result.unwrap_or_else(|error| panic!("seed {}: {error}", settings.seed));
    outcome.ms
}

/// Asserts that a fault at the start, in the middle and near the end of each stage costs at most so many percent of the
/// time without faults.
fn assert_costs(of: impl Fn(u64) -> Settings, kind: FaultKind, limit_percent: u64) {
    let mut worst = 0;
    for seed in 1..=5 {
        let settings = of(seed);
        let usual = time(&settings);
        let node = seed as u32 % settings.nodes;
        for stage in 0..2 {
            for tenths in [0, 3, 5, 8, 9] {
                let starts = 1 + settings.maps * tenths / 10;
                let percent = time(&settings.clone().with_fault(node, kind, stage, starts)) * 100 / usual;
                println!("{kind:?} in stage {stage} after {starts} starts, seed {seed}: {percent} %");
                worst = worst.max(percent);
            }
        }
    }
    assert!(worst <= limit_percent, "{kind:?} costs up to {worst} %");
}

/// A sort on ten nodes, in four waves of maps and of merges.
fn ten_nodes(seed: u64) -> Settings {
    Settings::sort(seed, 10)
}

/// A sort on four nodes, in sixteen waves of maps and of merges: a node that is lost takes a quarter of the work with
/// it, so the rest needs smaller partitions for the same limits.
fn four_nodes(seed: u64) -> Settings {
    let attempts = Settings { map_ms: 2_500, fetch_ms: 1_500, merge_ms: 1_500, ..Settings::sort(seed, 4) };
    Settings { maps: 128, merges: 128, ..attempts }
}

#[test]
fn a_node_lost_in_a_stage_costs_at_most_one_and_a_half_times() {
    assert_costs(ten_nodes, FaultKind::Dies, 150);
    assert_costs(four_nodes, FaultKind::Dies, 150);
}

#[test]
fn a_node_whose_loss_the_lease_finds_costs_at_most_one_and_a_half_times() {
    assert_costs(ten_nodes, FaultKind::DiesSilently, 150);
}

#[test]
fn a_node_a_hundred_times_slower_costs_at_most_twice() {
    assert_costs(ten_nodes, FaultKind::Slow, 200);
    assert_costs(four_nodes, FaultKind::Slow, 200);
}

#[test]
fn a_job_without_faults_starts_each_partition_once() {
    for seed in 1..=20 {
        let settings = Settings { spread_percent: 0, ..Settings::sort(seed, 10) };
        let counters = run(&settings).counters;
        assert_eq!((counters.started, counters.finished), (160, 160), "seed {seed}: {counters:?}");
    }
}

#[test]
fn a_hundred_nodes_of_which_five_are_lost_at_random_finish_right() {
    for seed in 1..=5 {
        let mut dice = Dice::new(seed);
        // A seed that takes both replicas of a partition is another test.
        let mut settings = Settings { replicas: 3, maps: 400, merges: 400, ..Settings::sort(seed, 100) };
        for lost in 0..5 {
            let node = lost * 20 + dice.below(20) as u32;
            let kind = [FaultKind::Dies, FaultKind::DiesSilently][dice.below(2) as usize];
            settings = settings.with_fault(node, kind, dice.below(2) as u32, 1 + dice.below(390) as u32);
        }
        let outcome = run(&settings);
        assert_eq!(outcome.result.expect("five of a hundred nodes are lost").len(), 400);
        assert_eq!(outcome.faults.len(), 5);
        assert!(outcome.counters.lost > 0, "{:?}", outcome.counters);
    }
}

#[test]
fn a_lost_node_whose_inputs_have_no_other_replica_is_named() {
    let settings = Settings { replicas: 1, ..Settings::sort(3, 10) };
    let outcome = run(&settings.with_fault(4, FaultKind::Dies, 1, 1));
    let error = outcome.result.unwrap_err().to_string();
    assert!(error.starts_with("input lost: no remaining node holds a replica of 8 partitions"), "{error}");
    assert!(error.contains("partition 4 of stage 0") && error.ends_with("lost nodes: node 4"), "{error}");
}
