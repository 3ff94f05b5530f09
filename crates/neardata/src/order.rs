//! Who works on which block, and whose turn it is to hand over what came of it.
//!
//! Sources are claimed in order, and so are the blocks of a source; any worker takes any block of the first source that has
//! some. What comes of blocks is handed over in the same order by whichever worker finds the next part there, one at a
//! time. A worker runs ahead of the turn by a bounded number of parts, so that a slow consumer stops the readers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use crate::{Base, lines::LineCounts, reading::Divided};

/// What a consumer wants after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What follows.
    Go,
    /// Nothing more of this source; its end is told.
    SkipSource,
    /// Nothing more at all.
    Stop,
}

/// The order of blocks and of what came of them.
pub(crate) struct Order<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
    /// Parts that may wait for their turn, bytes of them, and sources that may be open.
    window: u64,
    window_bytes: u64,
    sources_max: usize,
}

/// Parts for each worker that may wait: a worker whose core is taken away for some milliseconds has the block whose turn it is,
/// and the others search so much meanwhile.
const PARTS_PER_WORKER: u64 = 64;
/// Sources for each worker that may be open.
const SOURCES_PER_WORKER: usize = 4;

struct State<P> {
    /// Source and block whose part is handed over next.
    turn: (usize, u64),
    parts: BTreeMap<(usize, u64), (P, u64)>,
    /// Bytes of these parts.
    bytes: u64,
    /// Sources that were claimed and have not ended.
    sources: BTreeMap<usize, Claimed>,
    all_claimed: bool,
    delivering: bool,
    stopped: bool,
    /// Workers that wait for a change. To wake nobody is a call of the system too.
    waiting: usize,
}

struct Claimed {
    name: Arc<str>,
    /// Blocks that somebody has taken.
    taken: u64,
    /// Blocks that it has, once known.
    total: Option<u64>,
    shape: Shape,
    skipped: bool,
}

enum Shape {
    Opening,
    Divided(Arc<Shared>),
    Stream,
}

/// A source that several workers read.
pub(crate) struct Shared {
    pub divided: Divided,
    pub base: Base,
    pub lines: LineCounts,
}

/// What a worker is to do.
pub(crate) enum Claim {
    Block {
        source: usize,
        number: u64,
        shared: Arc<Shared>,
    },
    /// Take the next source.
    Source,
    /// Nothing at the moment.
    Nothing,
    /// Nothing will come.
    End,
}

/// What is handed over.
pub(crate) enum Turn<P> {
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

    /// Wakes those who wait for what was changed.
    fn tell(&self, state: MutexGuard<'_, State<P>>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// What to do next. With `wait`, never [`Claim::Nothing`]; without, never a new source.
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
            let may_come = |claimed: &Claimed| match claimed.shape {
                Shape::Opening => true,
                Shape::Divided(_) => !claimed.skipped && claimed.total != Some(claimed.taken),
                Shape::Stream => false,
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
                Shape::Divided(shared) if !claimed.skipped && claimed.total != Some(claimed.taken) => {
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

    /// Takes up to so many blocks of a source behind the one that the caller took, and says how many: none where another worker
    /// has the next one, or what comes of them would have no room to wait.
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

    /// Whether one more part may wait for its turn.
    fn has_room(&self, state: &State<P>) -> bool {
        (state.parts.len() as u64) < self.window && state.bytes < self.window_bytes
    }

    /// A source was taken; called in order of sources.
    pub fn add_source(&self, source: usize, name: Arc<str>) {
        let claimed = Claimed { name, taken: 0, total: None, shape: Shape::Opening, skipped: false };
        self.lock().sources.insert(source, claimed);
    }

    /// There are no more sources.
    pub fn no_more_sources(&self) {
        let mut state = self.lock();
        state.all_claimed = true;
        self.tell(state);
    }

    /// A source has so many blocks, at least one, of which the caller takes the first.
    pub fn divide(&self, source: usize, blocks: u64, shared: Arc<Shared>) {
        let mut state = self.lock();
        let claimed = state.sources.get_mut(&source).expect("it has not ended");
        claimed.total = Some(blocks);
        claimed.taken = 1;
        claimed.shape = Shape::Divided(shared);
        self.tell(state);
    }

    /// A source is a stream.
    pub fn stream(&self, source: usize) {
        let mut state = self.lock();
        state.sources.get_mut(&source).expect("it has not ended").shape = Shape::Stream;
        self.tell(state);
    }

    /// Whether another block of a stream is wanted. Waits until there is room for what comes of it.
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

    /// A stream, or a source that could not be opened, ends after so many blocks.
    pub fn end_of_stream(&self, source: usize, blocks: u64) {
        if let Some(claimed) = self.lock().sources.get_mut(&source)
            && !claimed.skipped
        {
            claimed.total = Some(blocks);
            claimed.taken = blocks;
            claimed.shape = Shape::Stream;
        }
    }

    /// Ends everything.
    pub fn stop(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.stop();
            self.tell(state);
        }
    }

    /// Lays down what came of a block, unless nobody wants it any more. Where there is no room for so many bytes it waits
    /// for its turn: whoever has the first block that is missing does not wait, so this ends.
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

    /// Hands over all whose turn it is, unless somebody else does.
    ///
    /// # Errors
    /// What `consume` gives; nothing is handed over after it.
    pub fn deliver<E>(&self, mut consume: impl FnMut(Turn<P>) -> Result<Next, E>) -> Result<(), E> {
        let mut state = self.lock();
        if state.delivering {
            return Ok(());
        }
        state.delivering = true;
        while let Some(turn) = state.take_turn() {
            let ended = matches!(turn, Turn::End { .. });
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
    /// Whoever waits for a turn, or for lines to be counted, is to end.
    fn stop(&mut self) {
        self.stopped = true;
        for claimed in self.sources.values() {
            if let Shape::Divided(shared) = &claimed.shape {
                shared.lines.close();
            }
        }
    }

    /// What is handed over next, if it is there.
    fn take_turn(&mut self) -> Option<Turn<P>> {
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
                return Some(Turn::End { source, name });
            }
            let (part, bytes) = self.parts.remove(&self.turn)?;
            self.bytes -= bytes;
            self.turn.1 += 1;
            if !claimed.skipped {
                return Some(Turn::Part { source, name: claimed.name.clone(), part });
            }
        }
    }
}
