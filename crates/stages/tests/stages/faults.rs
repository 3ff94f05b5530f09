//! Runs random jobs with random faults.

use std::collections::{BTreeMap, BTreeSet};

use inshore_stages::{Counters, Error};

use crate::simulation::{
    run,
    settings::{FAULTS, FaultKind, Settings},
};

#[test]
fn a_thousand_jobs_with_faults_in_each_stage_end_once_and_right_or_with_a_named_error() {
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut faults: BTreeSet<(FaultKind, u32)> = BTreeSet::new();
    let mut total = Counters::default();
    for seed in 0..1_000 {
        // The seed of a failed run is the last one printed.
        println!("seed {seed}");
        let settings = Settings::random(seed);
        let outcome = run(&settings);
        let name = match &outcome.result {
            Ok(_) => "result",
            Err(Error::InputLost { .. }) => "input lost",
            Err(Error::NoNodes { .. }) => "no nodes",
            Err(Error::RetriesExhausted { .. }) => "retries",
            Err(Error::Deadline { .. }) => "deadline",
            Err(error) => panic!("no fault explains: {error}"),
        };
        if name == "deadline" {
            assert!(settings.deadline_ms < 100_000, "the job hangs: {}", outcome.result.unwrap_err());
        }
        assert!(outcome.result.is_ok() || name == "deadline" || !outcome.faults.is_empty());
        *outcomes.entry(name).or_default() += 1;
        faults.extend(outcome.faults.iter().map(|&(kind, stage)| (kind, stage.min(1))));
        let Counters { second, remote, copies, lost, lost_outputs, waits, failed, .. } = outcome.counters;
        total.second += second;
        total.remote += remote;
        total.copies += copies;
        total.lost += lost;
        total.lost_outputs += lost_outputs;
        total.waits += waits;
        total.failed += failed;
    }
    println!("{outcomes:?} {total:?}");
    assert!(outcomes["result"] >= 500 && outcomes.len() == 5, "{outcomes:?}");
    let Counters { second, remote, copies, lost, lost_outputs, waits, failed, .. } = total;
    assert!(
        [second, remote, copies, lost, lost_outputs, waits, failed].iter().all(|&count| count >= 100),
        "{total:?}"
    );
    let expected: BTreeSet<(FaultKind, u32)> =
        FAULTS.iter().flat_map(|&kind| [(kind, 0), (kind, 1)]).collect();
    assert_eq!(faults, expected, "each fault occurred in maps and in merges");
}
