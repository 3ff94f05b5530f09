//! Tests the rules of plans.

use inshore_stages::{Error, NodeId, Partitioning, Plan, Stage, StageInput, StageOutput};

fn map(ranges: u32) -> Stage {
    Stage {
        input: StageInput::Replicas(vec![vec![NodeId(0)]]),
        broadcasts: Vec::new(),
        output: StageOutput::Exchange(Partitioning::Hash { partitions: ranges }),
        memory_bytes: 1,
    }
}

fn merge(producers: &[u32]) -> Stage {
    Stage {
        input: StageInput::exchange(producers),
        broadcasts: Vec::new(),
        output: StageOutput::Result,
        memory_bytes: 1,
    }
}

fn by_splitters(splitters: &[&str]) -> Stage {
    let splitters = splitters.iter().map(|key| key.as_bytes().to_vec()).collect();
    Stage { output: StageOutput::Exchange(Partitioning::Range { splitters }), ..map(1) }
}

#[test]
fn a_merge_stage_has_a_partition_for_each_range_of_its_producers() {
    let plan = Plan::new(vec![map(3), by_splitters(&["b", "d"]), merge(&[0, 1])]).unwrap();
    assert_eq!((plan.partitions(0), plan.partitions(1), plan.partitions(2)), (1, 1, 3));
    assert_eq!(plan.producers(2), [0, 1]);
}

#[test]
fn a_plan_that_grows_ends_with_an_exchange_or_the_result() {
    assert!(Plan::growing(vec![map(3)]).unwrap().is_open());
    assert!(!Plan::growing(vec![map(3), merge(&[0])]).unwrap().is_open());
    let error = Plan::growing(vec![map(3), map(3)]).unwrap_err();
    assert_eq!(error, Error::InvalidPlan { stage: 0, why: "no stage reads its exchange".to_string() });
}

#[test]
fn a_plan_that_breaks_a_rule_is_refused_with_the_stage_and_the_rule() {
    let bare = Stage { input: StageInput::Replicas(vec![vec![]]), ..map(1) };
    let empty = Stage { input: StageInput::Replicas(vec![]), ..map(1) };
    let result = Stage { output: StageOutput::Result, ..map(1) };
    let with = |broadcasts: Vec<u32>| Stage { broadcasts, ..merge(&[0]) };
    let cases: Vec<(Vec<Stage>, u32, &str)> = vec![
        (vec![], 0, "a plan has stages"),
        (vec![bare, merge(&[0])], 0, "input partition 0 has no replica"),
        (vec![empty, merge(&[0])], 0, "expected 1 to 4294967295 input partitions, found 0"),
        (vec![map(1), merge(&[])], 1, "a merge stage has no producer"),
        (vec![map(1), merge(&[1])], 1, "producer 1 is not an earlier stage with an exchange"),
        (vec![map(1), merge(&[0, 0])], 1, "producer 0 is named twice"),
        (vec![map(1), map(2), merge(&[0, 1])], 2, "its producers have 1 and 2 ranges"),
        (vec![map(1), map(1), merge(&[0])], 1, "no stage reads its exchange"),
        (vec![map(1), map(2), with(vec![1])], 2, "stage 1 is broadcast and has 2 ranges, expected 1"),
        (vec![map(1), with(vec![7])], 1, "producer 7 is not an earlier stage with an exchange"),
        (vec![result, merge(&[0])], 0, "only the last stage makes the result"),
        (vec![map(1)], 0, "the last stage makes the result, not an exchange"),
        (vec![map(0), merge(&[0])], 0, "its exchange has no range"),
        (vec![by_splitters(&["d", "b"]), merge(&[0])], 0, "the splitters of its exchange do not ascend"),
        (vec![by_splitters(&["b", "b"]), merge(&[0])], 0, "the splitters of its exchange do not ascend"),
    ];
    for (stages, stage, why) in cases {
        let error = Plan::new(stages).unwrap_err();
        assert_eq!(error, Error::InvalidPlan { stage, why: why.to_string() });
        assert_eq!(error.to_string(), format!("invalid plan: stage {stage}: {why}"));
    }
}
