//! Assigns blocks to workers, and delivers the parts (the results of blocks) in order.
//!
//! Workers claim sources in order, and the blocks of a source in order. Any worker may claim the next block of the
//! first source that has unclaimed blocks. Parts are delivered to the consumer in the order of their blocks, one at a
//! time. Any worker that finds the next part ready delivers it. The number of parts that wait for delivery is bounded,
//! so that a slow consumer slows down the readers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use crate::{SourceOffset, lines::LineCounts, reading::RandomAccessSource};

/// The decision of the consumer after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The run continues with the next event.
    Go,
    /// The rest of this source is skipped. The consumer still receives the end of the source.
    SkipSource,
    /// The run stops.
    Stop,
}

/// Decides which block a worker processes next, and which part is delivered next.
pub(crate) struct Order<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
    /// The largest number of parts that may wait for delivery.
    window: u64,
    /// The largest total size in bytes of the parts that wait for delivery.
    window_bytes: u64,
    /// The largest number of sources that may be open.
    sources_max: usize,
}

/// The number of parts per worker that may wait for delivery. If the operating system suspends a worker for some
/// milliseconds, each other worker can compute about this many parts before it has to wait.
const PARTS_PER_WORKER: u64 = 64;
/// The number of sources per worker that may be open.
const SOURCES_PER_WORKER: usize = 4;

struct State<P> {
    /// The index of the source and the number of the block whose part is delivered next.
    turn: (usize, u64),
    parts: BTreeMap<(usize, u64), (P, u64)>,
    /// The size in bytes of the parts that wait for delivery.
    bytes: u64,
    /// The sources that were claimed and have not ended yet.
    sources: BTreeMap<usize, ClaimedSource>,
    all_claimed: bool,
    delivering: bool,
    stopped: bool,
    /// The number of workers that wait for a change of this state. If the number is 0, the system call that wakes
    /// workers is omitted.
    waiting: usize,
}

struct ClaimedSource {
    name: Arc<str>,
    /// The number of blocks that workers have claimed.
    taken: u64,
    /// The number of blocks of the source; `None` until it is known.
    total: Option<u64>,
    shape: SourceState,
    skipped: bool,
}

enum SourceState {
    Opening,
    Divided(Arc<SharedSource>),
    Stream,
}

/// A source that several workers read.
pub(crate) struct SharedSource {
    pub divided: RandomAccessSource,
    pub base: SourceOffset,
    pub lines: LineCounts,
}

/// The next action of a worker, as returned by [`Order::claim`].
pub(crate) enum Claim {
    Block {
        source: usize,
        number: u64,
        shared: Arc<SharedSource>,
    },
    /// The worker opens the next source.
    Source,
    /// No block can be claimed at the moment. The worker continues with the blocks that it has already claimed.
    Nothing,
    /// No further block or source can be claimed. The worker ends.
    End,
}

/// A delivery to the consumer: a part, or the end of a source.
pub(crate) enum Delivery<P> {
    Part { source: usize, name: Arc<str>, part: P },
    End { source: usize, name: Arc<str> },
}

impl<P> Order<P> {
    pub fn new(workers: usize, window_bytes: u64) -> Order<P> {
        let state = State {
            turn: (0, 0),
            parts: BTreeMap::new(),
            bytes: 0,
            sources: BTreeMap::new(),
            all_claimed: false,
            delivering: false,
            stopped: false,
            waiting: 0,
        };
        let window = PARTS_PER_WORKER * workers as u64;
        let sources_max = SOURCES_PER_WORKER * workers;
        Order { state: Mutex::new(state), changed: Condvar::new(), window, window_bytes, sources_max }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().expect("no panic under this lock")
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State<P>>) -> MutexGuard<'a, State<P>> {
        state.waiting += 1;
        state = self.changed.wait(state).expect("no panic under this lock");
        state.waiting -= 1;
        state
    }

    /// Wakes the workers that wait for a change of the state.
    fn tell(&self, state: MutexGuard<'_, State<P>>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Returns the next action of a worker. If `wait` is true, the call waits and never returns [`Claim::Nothing`]. If
    /// `wait` is false, the call never returns [`Claim::Source`].
    pub fn claim(&self, wait: bool) -> Claim {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return Claim::End;
            }
            if let Some(claim) = self.claim_block(&mut state) {
                return claim;
            }
            if !wait {
                return Claim::Nothing;
            }
            let has_room = self.has_room(&state) && state.sources.len() < self.sources_max;
            if !state.all_claimed && has_room {
                return Claim::Source;
            }
            let may_come = |claimed: &ClaimedSource| match claimed.shape {
                SourceState::Opening => true,
                SourceState::Divided(_) => !claimed.skipped && claimed.total != Some(claimed.taken),
                SourceState::Stream => false,
            };
            if state.all_claimed && !state.sources.values().any(may_come) {
                return Claim::End;
            }
            state = self.wait(state);
        }
    }

    fn claim_block(&self, state: &mut State<P>) -> Option<Claim> {
        let (turn, has_room) = (state.turn, self.has_room(state));
        let (&source, claimed, shared) =
            state.sources.iter_mut().find_map(|(source, claimed)| match &claimed.shape {
                SourceState::Divided(shared) if !claimed.skipped && claimed.total != Some(claimed.taken) => {
                    let shared = shared.clone();
                    Some((source, claimed, shared))
                }
                _ => None,
            })?;
        let number = claimed.taken;
        if !has_room && (source, number) != turn {
            return None;
        }
        claimed.taken += 1;
        Some(Claim::Block { source, number, shared })
    }

    /// Claims up to `count` blocks of a source directly after block `number`. Returns the number of claimed blocks. The
    /// result is 0 if another worker has already claimed the next block. The result is also 0 if no further part may
    /// wait for delivery.
    pub fn claim_behind(&self, source: usize, number: u64, count: u64) -> u64 {
        let mut state = self.lock();
        let room = self.window.saturating_sub(state.parts.len() as u64);
        let has_room = self.has_room(&state) && !state.stopped;
        let Some(claimed) = state.sources.get_mut(&source) else { return 0 };
        if !has_room || claimed.skipped || claimed.taken != number + 1 {
            return 0;
        }
        let left = claimed.total.map_or(0, |total| total - claimed.taken);
        let more = count.min(left).min(room);
        claimed.taken += more;
        more
    }

    /// Returns true if one more part may wait for delivery.
    fn has_room(&self, state: &State<P>) -> bool {
        (state.parts.len() as u64) < self.window && state.bytes < self.window_bytes
    }

    /// Registers a source that a worker has claimed. Sources must be registered in order.
    pub fn add_source(&self, source: usize, name: Arc<str>) {
        let claimed =
            ClaimedSource { name, taken: 0, total: None, shape: SourceState::Opening, skipped: false };
        self.lock().sources.insert(source, claimed);
    }

    /// Records that all sources are claimed.
    pub fn no_more_sources(&self) {
        let mut state = self.lock();
        state.all_claimed = true;
        self.tell(state);
    }

    /// Records that a source is divided into `blocks` blocks. `blocks` is at least 1. The caller processes the first
    /// block.
    pub fn divide(&self, source: usize, blocks: u64, shared: Arc<SharedSource>) {
        let mut state = self.lock();
        let claimed = state.sources.get_mut(&source).expect("it has not ended");
        claimed.total = Some(blocks);
        claimed.taken = 1;
        claimed.shape = SourceState::Divided(shared);
        self.tell(state);
    }

    /// Records that a source is a stream, which only one worker reads.
    pub fn stream(&self, source: usize) {
        let mut state = self.lock();
        state.sources.get_mut(&source).expect("it has not ended").shape = SourceState::Stream;
        self.tell(state);
    }

    /// Returns true if the caller should read another block of a stream. The call waits until the queue of parts has
    /// room for the part of this block.
    pub fn next_of_stream(&self, source: usize) -> bool {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return false;
            }
            let (turn, has_room) = (state.turn, self.has_room(&state));
            let Some(claimed) = state.sources.get_mut(&source) else { return false };
            if claimed.skipped {
                return false;
            }
            if has_room || (source, claimed.taken) == turn {
                claimed.taken += 1;
                return true;
            }
            state = self.wait(state);
        }
    }

    /// Records that a stream has ended after `blocks` blocks. For a source that could not be opened, `blocks` is 1: its
    /// error counts as a block.
    pub fn end_of_stream(&self, source: usize, blocks: u64) {
        if let Some(claimed) = self.lock().sources.get_mut(&source)
            && !claimed.skipped
        {
            claimed.total = Some(blocks);
            claimed.taken = blocks;
            claimed.shape = SourceState::Stream;
        }
    }

    /// Stops the run.
    pub fn stop(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.stop();
            self.tell(state);
        }
    }

    /// Stores the part of a block until it is delivered. Drops the part if its source has already ended. If the part
    /// would exceed the limit of waiting bytes, the call waits for room. The wait also ends when the part is the next
    /// to be delivered, so a part that is larger than the limit causes no deadlock.
    pub fn push(&self, source: usize, block: u64, part: P, bytes: u64) {
        let waits = |state: &State<P>| {
            let is_early = state.turn != (source, block) && state.sources.contains_key(&source);
            bytes > 0 && state.bytes + bytes > self.window_bytes && is_early && !state.stopped
        };
        let mut state = self.lock();
        while waits(&state) {
            state = self.wait(state);
        }
        let claimed = state.sources.get(&source);
        if claimed.is_some_and(|claimed| claimed.total.is_none_or(|total| block < total)) {
            state.parts.insert((source, block), (part, bytes));
            state.bytes += bytes;
        }
    }

    /// Delivers parts in order until the next part is missing. If another worker is delivering, the call does nothing.
    ///
    /// # Errors
    /// Returns the errors of `consume`. After an error, nothing further is delivered.
    pub fn deliver<E>(&self, mut consume: impl FnMut(Delivery<P>) -> Result<Next, E>) -> Result<(), E> {
        let mut state = self.lock();
        if state.delivering {
            return Ok(());
        }
        state.delivering = true;
        while let Some(turn) = state.take_turn() {
            let ended = matches!(turn, Delivery::End { .. });
            self.tell(state);
            let next = consume(turn);
            state = self.lock();
            let source = state.turn.0;
            match next {
                Ok(Next::Go) => {}
                Ok(Next::SkipSource) => {
                    if let Some(claimed) = state.sources.get_mut(&source).filter(|_| !ended) {
                        claimed.skipped = true;
                        claimed.total = Some(claimed.taken);
                    }
                }
                Ok(Next::Stop) => state.stop(),
                Err(error) => {
                    state.stop();
                    self.tell(state);
                    return Err(error);
                }
            }
        }
        state.delivering = false;
        self.tell(state);
        Ok(())
    }
}

impl<P> State<P> {
    /// Prevents further deliveries, and ends all waits for line counts.
    fn stop(&mut self) {
        self.stopped = true;
        for claimed in self.sources.values() {
            if let SourceState::Divided(shared) = &claimed.shape {
                shared.lines.close();
            }
        }
    }

    /// Removes and returns the next delivery (a part, or the end of a source). Returns `None` if the next part is not
    /// available.
    fn take_turn(&mut self) -> Option<Delivery<P>> {
        loop {
            if self.stopped {
                return None;
            }
            let (source, block) = self.turn;
            let claimed = self.sources.get(&source)?;
            if claimed.total == Some(block) {
                let name = claimed.name.clone();
                self.sources.remove(&source);
                self.turn = (source + 1, 0);
                return Some(Delivery::End { source, name });
            }
            let (part, bytes) = self.parts.remove(&self.turn)?;
            self.bytes -= bytes;
            self.turn.1 += 1;
            if !claimed.skipped {
                return Some(Delivery::Part { source, name: claimed.name.clone(), part });
            }
        }
    }
}
