//! Tests a client whose own cores process some of the nodes' shards.

use super::*;

pub fn helping(millis: u64) -> RunOptions {
    RunOptions { help_from: Some(Duration::from_millis(millis)), ..RunOptions::default() }
}

/// Returns a kernel that takes `millis` milliseconds per block on nodes.
pub fn slow(millis: u64) -> Find {
    Find { slow: Duration::from_millis(millis), ..find("needle") }
}

#[test]
fn what_slow_nodes_have_not_begun_is_done_here() {
    let cluster = Cluster::new(2);
    let text = text(60_000);
    cluster.put("text", &text, 1, 60_000);
    let found = cluster.find(&slow(100), "text", &helping(200)).unwrap();
    assert_eq!(found.places, expected(&text));
    let here = found.gathered.here.clone().unwrap();
    assert!(here.pieces >= 3 && here.bytes >= 100_000, "{here:?}");
    assert!(here.bytes_per_second.is_some(), "{here:?}");
    // Every piece was read, and none twice.
    let read: u64 = found.gathered.nodes.iter().map(|node| node.bytes_read).sum();
    assert!((text.len() as u64..text.len() as u64 * 2).contains(&read), "{read} of {}", text.len());
    // Without help, few bytes move to the client.
    let moved = |gathered: &GatherReport| gathered.nodes.iter().map(|node| node.bytes_moved).sum::<u64>();
    let alone = RunOptions { help_from: None, ..RunOptions::default() };
    let alone = cluster.find(&slow(20), "text", &alone).unwrap();
    assert_eq!(alone.places, found.places);
    assert!(alone.gathered.here.is_none());
    let (alone, together) = (moved(&alone.gathered), moved(&found.gathered));
    assert!(alone < here.bytes && here.bytes < together, "{alone}, {together}: {here:?}");
}

#[test]
fn nodes_that_are_fast_enough_are_left_alone() {
    let cluster = Cluster::new(2);
    let text = text(60_000);
    cluster.put("text", &text, 1, 60_000);
    let found = cluster.find(&find("needle"), "text", &RunOptions::default()).unwrap();
    let here = found.gathered.here.unwrap();
    assert!(here.pieces == 0 && here.why.contains("less than 2 s of work"), "{here:?}");
    // If this machine is slower than the nodes, it tries one shard and stops.
    let slow_here = Find { slow_here: Duration::from_millis(700), ..slow(40) };
    let found = cluster.find(&slow_here, "text", &helping(100)).unwrap();
    assert_eq!(found.places, expected(&text));
    let here = found.gathered.here.unwrap();
    assert!(here.pieces <= 1, "{here:?}");
}

#[test]
fn what_fails_here_is_done_by_the_nodes() {
    let cluster = Cluster::new(2);
    let text = text(60_000);
    cluster.put("text", &text, 1, 60_000);
    let fails = Find { fails_here: true, ..slow(60) };
    let found = cluster.find(&fails, "text", &helping(100)).unwrap();
    assert_eq!(found.places, expected(&text));
    let here = found.gathered.here.unwrap();
    assert!(here.pieces == 0 && here.why.contains("a planned fault"), "{here:?}");
    // A client with too little memory leaves everything to the nodes, too.
    let small = Context::new(Budget::new(9 << 20, 2), Cancel::default());
    let wholes = cluster.nodes.catalog().unwrap().named("text").unwrap();
    let gathered = run_on_nodes(&cluster.nodes, &small, &slow(20), &wholes, &helping(50), |event| {
        event.part.transpose()?;
        Ok(Next::Go)
    });
    let here = gathered.unwrap().here.unwrap();
    assert!(here.pieces == 0 && here.why.contains("too small"), "{here:?}");
}

#[test]
fn a_client_that_has_enough_or_is_stopped_does_not_wait_for_what_it_does_itself() {
    let cluster = Cluster::new(1);
    let text = text(60_000);
    cluster.put("text", &text, 1, 60_000);
    let wholes = cluster.nodes.catalog().unwrap().named("text").unwrap();
    let slow_here = Find { slow_here: Duration::from_millis(50), ..slow(100) };
    let began = Instant::now();
    let mut parts = 0;
    run_on_nodes(&cluster.nodes, &job(), &slow_here, &wholes, &helping(100), |event| {
        parts += usize::from(event.part.transpose()?.is_some());
        Ok(if parts == 12 { Next::Stop } else { Next::Go })
    })
    .unwrap();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let cancel = Cancel::default();
    let job = Context::new(Budget::new(64 << 20, 2), cancel.clone());
    let stopped = run_on_nodes(&cluster.nodes, &job, &slow_here, &wholes, &helping(100), |event| {
        event.part.transpose()?;
        parts += 1;
        if parts == 24 {
            cancel.cancel();
        }
        Ok(Next::Go)
    });
    assert!(stopped.unwrap_err().is_cancelled());
}

#[test]
fn whatever_goes_wrong_while_a_client_helps_nothing_is_told_twice_or_left_out() {
    let cluster = Cluster::new(3);
    let text = text(40_000);
    cluster.put("copied", &text, 2, 40_000);
    let all = expected(&text);
    let (mut good, mut helped, mut runs) = (0, 0, 0);
    for seed in seeds(24) {
        runs += 1;
        let mut dice = Dice(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15));
        let faulty = dice.below(3);
        let mut faults = Vec::new();
        for node in 0..3 {
            let kinds = [Fault::Fails, Fault::Twice, Fault::EndsEarly, Fault::Garbage, Fault::Hangs];
            let fault = if node < faulty { kinds[dice.below(kinds.len())] } else { Fault::None };
            let after = dice.below(12);
            cluster.plan((node + seed as usize) % 3, fault, after);
            faults.push((fault, after));
        }
        let hangs = faults.iter().any(|(fault, _)| *fault == Fault::Hangs);
        let options =
            RunOptions { stall: Duration::from_millis(if hangs { 400 } else { 30_000 }), ..helping(30) };
        // With two faulty nodes, some pieces may have no healthy copy: then the deadline ends the run.
        let time = if faulty > 1 { Duration::from_secs(10) } else { PATIENCE };
        let kernel = Find { fails_here: dice.below(6) == 0, ..slow(10) };
        match cluster.find_within(time, &kernel, "copied", &options) {
            Ok(SearchResult { places, gathered }) => {
                assert!(places == all, "seed {seed}: {faults:?}: {gathered:?}");
                helped += usize::from(gathered.here.is_some_and(|here| here.pieces > 0));
                good += 1;
            }
            Err(error) => assert!(faulty > 1, "seed {seed}: {faults:?}: {}", told(error)),
        }
    }
    assert!(good > runs / 2 && helped > runs / 4, "{good} answers, {helped} with help");
}
