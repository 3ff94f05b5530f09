//! Prints two times of a simulated job of 10,000 map and 10,000 merge partitions on 1,000 nodes. The first is the time
//! of the plan and the start of the job. The second is the time of all events of the scheduler, without faults.
//!
//! ```text
//!   cargo run --release -p inshore-stages --example scale
//! ```

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use inshore_stages::{
    Action, Event, NodeId, Options, Partitioning, Plan, Scheduler, Stage, StageInput, StageOutput,
};

const NODES: u32 = 1_000;
const PARTITIONS: u32 = 10_000;
const SLOTS: u32 = 2;

fn plan() -> inshore_stages::Result<Plan> {
    let replicas = (0..PARTITIONS).map(|partition| {
        let first = partition % NODES;
        vec![NodeId(first), NodeId((first + 1 + partition / NODES * 37) % NODES)]
    });
    let splitters = (1..PARTITIONS).map(|key| u128::from(key).to_be_bytes()[6..].to_vec()).collect();
    let map = Stage {
        input: StageInput::Replicas(replicas.collect()),
        broadcasts: Vec::new(),
        output: StageOutput::Exchange(Partitioning::Range { splitters }),
        memory_bytes: 1 << 30,
    };
    let merge = Stage {
        input: StageInput::exchange([0]),
        broadcasts: Vec::new(),
        output: StageOutput::Result,
        memory_bytes: 1 << 30,
    };
    Plan::new(vec![map, merge])
}

fn main() -> inshore_stages::Result<()> {
    let begun = Instant::now();
    let nodes: Vec<(NodeId, u32)> = (0..NODES).map(|node| (NodeId(node), SLOTS)).collect();
    let (mut scheduler, actions) = Scheduler::start(plan()?, Options::default(), &nodes);
    println!("plan and start: {:?}", begun.elapsed());
    let mut actions = VecDeque::from(actions);
    let (mut events, mut now) = (0_u64, Duration::ZERO);
    let mut on = |scheduler: &mut Scheduler, actions: &mut VecDeque<Action>, event| {
        (events, now) = (events + 1, now + Duration::from_micros(100));
        actions.extend(scheduler.on(now, event));
        events
    };
    for &(node, slots) in &nodes {
        (0..slots).for_each(|_| {
            on(&mut scheduler, &mut actions, Event::Asked { node });
        });
    }
    while let Some(action) = actions.pop_front() {
        match action {
            Action::Reserve { node, memory_bytes } => {
                on(&mut scheduler, &mut actions, Event::Reserved { node, memory_bytes });
            }
            Action::Start { token, node, .. } => {
                on(&mut scheduler, &mut actions, Event::Finished { token, bytes: 1 << 30, checksum: 7 });
                let count = on(&mut scheduler, &mut actions, Event::Asked { node });
                if count % 10_000 == 0 {
                    on(&mut scheduler, &mut actions, Event::Tick);
                }
            }
            Action::Finish { result } => println!("{} partitions in the result", result.len()),
            Action::Fail { error } => return Err(error),
            _ => {}
        }
    }
    println!("{:?} and {events} events: {:?}", scheduler.counters(), begun.elapsed());
    Ok(())
}
