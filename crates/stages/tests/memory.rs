//! Tests the memory of the driver's state, in a process of its own: an allocator counts what all code of the process
//! holds.

#[path = "stages/simulation/settings.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod settings;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use inshore_stages::{Action, Event, NodeId, Options, Scheduler};

use self::settings::Settings;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a job whose attempts finish at once, and in which a node is lost in the exchange. Returns the number of started
/// attempts.
fn drive(settings: &Settings) -> u64 {
    let ids: Vec<(NodeId, u32)> = (0..settings.nodes).map(|node| (NodeId(node), settings.slots)).collect();
    let (mut scheduler, mut actions) = Scheduler::start(settings.plan(), Options::default(), &ids);
    let now = Duration::from_secs(1);
    for &(node, slots) in &ids {
        (0..slots).for_each(|_| actions.extend(scheduler.on(now, Event::Asked { node })));
    }
    let (mut merges, mut is_lost) = (0, false);
    while let Some(action) = actions.pop() {
        match action {
            Action::Reserve { node, memory_bytes } => {
                actions.extend(scheduler.on(now, Event::Reserved { node, memory_bytes }));
            }
            Action::Start { token, node, partition, .. } => {
                merges += partition.stage;
                if merges > settings.merges / 2 && !is_lost {
                    is_lost = true;
                    actions.extend(scheduler.on(now, Event::Lost { node: NodeId(3) }));
                }
                actions.extend(scheduler.on(now, Event::Finished { token, bytes: 1 << 30, checksum: 7 }));
                actions.extend(scheduler.on(now, Event::Asked { node }));
            }
            Action::Finish { result } => assert_eq!(result.len(), settings.merges as usize),
            Action::Fail { error } => panic!("{error}"),
            _ => {}
        }
    }
    assert!(is_lost);
    scheduler.counters().started
}

#[test]
fn ten_thousand_map_and_merge_partitions_on_a_thousand_nodes_take_less_than_16_mib() {
    let settings = Settings { maps: 10_000, merges: 10_000, ..Settings::sort(1, 1_000) };
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let started = drive(&settings);
    let peak = PEAK.load(Relaxed) - before;
    println!("{started} attempts, peak of {} KiB", peak >> 10);
    assert!(started > 20_000, "the lost outputs were computed again");
    assert!(peak < 16 << 20, "the state took {peak} bytes");
}
