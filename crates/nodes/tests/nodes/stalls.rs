//! Tests nodes that are reachable but make no progress, and answers that are corrupted in transit.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
};

use super::*;

fn stall(millis: u64) -> RunOptions {
    RunOptions { stall: Duration::from_millis(millis), ..RunOptions::default() }
}

#[test]
fn what_a_stalled_node_has_comes_from_copies() {
    let cluster = Cluster::new(3);
    let text = text(30_000);
    cluster.put("copied", &text, 2, 50_000);
    for after in [0, 1, 5] {
        cluster.plan(1, Fault::Hangs, after);
        let began = Instant::now();
        let found = cluster.find(&find("needle"), "copied", &stall(600)).unwrap();
        assert_eq!(found.places, expected(&text), "after {after} rows");
        let lost = found.gathered.nodes.iter().find_map(|node| node.lost.clone());
        assert!(
            lost.is_some_and(|why| why.contains("it made no progress for 0.6 s")),
            "{:?}",
            found.gathered
        );
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}

#[test]
fn a_stalled_node_that_nobody_can_stand_in_for_is_named_at_the_deadline() {
    let cluster = Cluster::new(2);
    let text = text(20_000);
    cluster.put("single", &text, 1, 50_000);
    cluster.plan(1, Fault::Hangs, 1);
    let time = Duration::from_secs(2);
    let error = told(cluster.find_within(time, &find("needle"), "single", &stall(300)).unwrap_err());
    let address = cluster.serving[1].as_ref().unwrap().address().to_string();
    assert!(error.contains("deadline") && error.contains(&address), "{error}");
    assert!(error.contains("store:single: bytes") && error.contains("were not read"), "{error}");
}

#[test]
fn a_task_that_finds_nothing_for_long_or_waits_for_its_turn_is_not_stalled() {
    let folders: Vec<TempDir> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let serve = |folder: &TempDir| {
        let single = AgentConfig { slots: 1, ..config("single") };
        let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&Plan::default()), single);
        agent.serve("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let serving: Vec<RunningAgent> = folders.iter().map(serve).collect();
    let nodes = client(serving.iter().map(|serving| serving.address().to_string()).collect(), None);
    let text = text(60_000);
    let options = LoadOptions { piece_bytes: Some(1 << 20), copies: 2, ..LoadOptions::default() };
    nodes.put(&job(), "text", ("text", None), Cursor::new(&text), &options).unwrap();
    let wholes = nodes.catalog().unwrap().named("text").unwrap();
    // Each block takes a while and finds nothing.
    let slow = Find { slow: Duration::from_millis(150), ..find("nothing of the kind") };
    let ask = || {
        let small = RunOptions { node_memory_bytes: Some(8 << 20), ..stall(2500) };
        let gathered = run_on_nodes(&nodes, &job(), &slow, &wholes, &small, |event: Event<'_, Find>| {
            event.part.transpose()?;
            Ok(Next::Go)
        });
        gathered.unwrap()
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        for asked in all {
            assert!(asked.join().unwrap().nodes.iter().all(|node| node.lost.is_none()));
        }
    });
}

/// Starts a proxy that corrupts the node's bytes: flipped bits, delays, repeated bytes, or a closed connection.
fn meddler(node: SocketAddr, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let Ok(to_node) = TcpStream::connect(node) else { return };
            let (mut client, mut back) = (stream.try_clone().unwrap(), to_node.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut client, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
            thread::spawn(move || meddle(to_node, stream, Dice(seed * 1000 + number as u64 + 1)));
        }
    });
    address
}

fn meddle(mut from: TcpStream, mut to: TcpStream, mut dice: Dice) {
    let mut bytes = vec![0; 4096];
    let kind = dice.below(4);
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let heard = &mut bytes[..len];
        if dice.below(4) == 0 {
            match kind {
                0 => heard[dice.below(len)] ^= 1 << dice.below(8),
                1 => thread::sleep(Duration::from_millis(20)),
                2 => {
                    // Repeats the bytes.
                    let _ = to.write_all(heard);
                }
                _ if dice.below(3) == 0 => break,
                _ => {}
            }
        }
        if to.write_all(heard).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}

#[test]
fn answers_that_are_changed_on_their_way_end_in_an_error_or_an_answer_and_never_in_a_panic() {
    let cluster = Cluster::new(2);
    let text = text(30_000);
    cluster.put("copied", &text, 2, 200_000);
    let address = |node: usize| cluster.serving[node].as_ref().unwrap().address();
    let (mut good, mut bad) = (0, 0);
    for seed in seeds(40) {
        let through = meddler(address(0), seed);
        let addresses = vec![through.to_string(), address(1).to_string()];
        let config = ClientConfig { silence: Duration::from_secs(2), ..ClientConfig::new(addresses, None) };
        let nodes = Nodes::new(config).unwrap();
        let began = Instant::now();
        let Ok(wholes) = nodes.catalog().and_then(|catalog| catalog.named("copied")) else {
            bad += 1;
            continue;
        };
        let nodes = nodes.begin(Deadline::after(Duration::from_secs(5)));
        let found =
            run_on_nodes(&nodes, &job(), &find("needle"), &wholes, &stall(1000), |event: Event<'_, Find>| {
                event.part.transpose()?;
                Ok(Next::Go)
            });
        *(if found.is_ok() { &mut good } else { &mut bad }) += 1;
        assert!(began.elapsed() < PATIENCE, "seed {seed}: it took {:?}", began.elapsed());
    }
    assert!(good > 0, "{good} answers, {bad} errors");
    assert_eq!(
        cluster.find(&find("needle"), "copied", &RunOptions::default()).unwrap().places,
        expected(&text)
    );
}
