//! Shards that a client hands to a task, and the task pulls.
//!
//! ```text
//!   client ── "hand-out" ──► queue ──► Pulls ──► work, which asks for the next one when it has read the one before
//!      ◄──── TaskPulls, between answers ──┘
//! ```

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use arrow_flight::FlightData;
use inshore_store::Job;
use tokio::{runtime::Handle, sync::mpsc};

use super::{Agent, Answered, SLOW_CLIENT};
use crate::{
    Failure, TaskSource,
    nodes::{
        alive,
        pieces::open_pieces,
        protocol::{HandOut, PieceRequest, TaskPulls},
    },
};

/// A waiting task looks so often whether its client still wants it.
const LOOK: Duration = Duration::from_millis(50);

/// Shards that may wait for their task.
const AHEAD_MAX: usize = 1024;

/// The shards that a task was handed.
#[derive(Debug, Default)]
pub(super) struct Handed {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ahead: VecDeque<PieceRequest>,
    is_last: bool,
    /// The work has failed, and takes no more.
    is_left: bool,
    taken: Vec<u64>,
    /// Threads that have asked for a shard: each but the one that asks reads one.
    askers: HashSet<ThreadId>,
}

impl State {
    /// A thread has read what it had, and asks for a shard: how many were taken, and how many of these others read.
    fn asks(&mut self, thread: ThreadId) -> (u64, u64) {
        self.askers.insert(thread);
        let taken = self.taken.len() as u64;
        (taken, taken.min(self.askers.len() as u64 - 1))
    }
}

impl Handed {
    /// Puts shards behind those that the task has not taken; false where these would be too many.
    pub fn hand_out(&self, handed: HandOut) -> bool {
        let mut state = self.state();
        if state.ahead.len() + handed.shards.len() > AHEAD_MAX {
            return false;
        }
        state.ahead.extend(handed.shards);
        state.is_last |= handed.is_last;
        self.changed.notify_all();
        true
    }

    /// Ends the wait of a task that has failed elsewhere.
    pub fn leave(&self) {
        self.state().is_left = true;
        self.changed.notify_all();
    }

    /// The shards that the task has taken.
    pub fn taken(&self) -> Vec<u64> {
        self.state().taken.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

/// The way of a task to its client.
#[derive(Clone, Debug)]
pub(super) struct ToClient {
    pub agent: Agent,
    pub job: Job,
    pub out: mpsc::Sender<Answered>,
    pub runtime: Handle,
    pub number: u64,
    /// The client took nothing while others waited for the place of the task.
    pub is_set_aside: Arc<AtomicBool>,
}

impl ToClient {
    /// Waits until the client takes a message, and gives how long that was. Where it does not, and others wait for the place of this task, the task
    /// is set aside: the client may be waiting for one of these.
    pub fn send(&self, message: FlightData) -> Result<Duration, Failure> {
        let began = Instant::now();
        loop {
            self.job.check_cancelled()?;
            let reserved = {
                // In a thread of another runtime `Handle::block_on` panics, and the budget of that runtime's tasks would end the wait
                // early.
                let _inside = self.runtime.enter();
                let reserve = tokio::time::timeout(Duration::from_millis(100), self.out.reserve());
                futures::executor::block_on(tokio::task::unconstrained(reserve))
            };
            match reserved {
                Ok(Ok(place)) => {
                    place.send(Ok(message));
                    return Ok(began.elapsed());
                }
                Ok(Err(_)) => {
                    self.job.cancel().cancel();
                    return Err(inshore_store::Error::Cancelled.into());
                }
                Err(_) => self.may_keep_waiting(began)?,
            }
        }
    }

    fn may_keep_waiting(&self, since: Instant) -> Result<(), Failure> {
        if since.elapsed() > SLOW_CLIENT && self.agent.0.queue.fullness().waiting > 0 {
            self.is_set_aside.store(true, Ordering::Relaxed);
            return Err("set aside".into());
        }
        Ok(())
    }
}

/// The shards of a task, as they are handed out.
pub(super) struct Pulls {
    handed: Arc<Handed>,
    client: ToClient,
}

impl Pulls {
    pub fn new(handed: Arc<Handed>, client: ToClient) -> Pulls {
        Pulls { handed, client }
    }

    fn take_shard(&self) -> Result<Option<PieceRequest>, Failure> {
        let ((finished, reading), ahead) = {
            let mut state = self.handed.state();
            (state.asks(thread::current().id()), state.ahead.len())
        };
        // Not each of many small shards that are here is told.
        if ahead <= 1 {
            let ToClient { agent, number, .. } = &self.client;
            let pulls = TaskPulls { task: *number, finished, reading };
            self.client.send(alive::message(agent.task_progress(*number), Some(pulls)))?;
        }
        let began = Instant::now();
        let mut state = self.handed.state();
        loop {
            if state.is_left {
                return Err("the work has failed".into());
            }
            if let Some(shard) = state.ahead.pop_front() {
                state.taken.push(shard.number);
                return Ok(Some(shard));
            }
            if state.is_last {
                return Ok(None);
            }
            self.client.job.check_cancelled()?;
            self.client.may_keep_waiting(began)?;
            let waited = self.handed.changed.wait_timeout(state, LOOK);
            state = waited.expect("no panic under this lock").0;
        }
    }

    /// Takes what is left, of a work that needs no more: its answer is about that, too.
    pub fn pass_over(&self) -> Result<(), Failure> {
        while self.take_shard()?.is_some() {}
        Ok(())
    }
}

impl Iterator for Pulls {
    type Item = Result<TaskSource, Failure>;

    fn next(&mut self) -> Option<Result<TaskSource, Failure>> {
        let shard = self.take_shard().transpose()?;
        let opened = shard.and_then(|shard| {
            let mut opened = open_pieces(&self.client.job, vec![shard])?;
            Ok(opened.pop().expect("one of one"))
        });
        Some(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_other_threads_read_are_not_finished() {
        let mut state = State::default();
        let threads: Vec<ThreadId> = (0..3).map(|_| thread::spawn(|| {}).thread().id()).collect();
        let mut asks = |thread: usize| {
            let (finished, reading) = state.asks(threads[thread]);
            state.taken.push(0);
            (finished, reading)
        };
        let asked = [0, 1, 2, 1, 1, 0].map(&mut asks);
        assert_eq!(asked, [(0, 0), (1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]);
    }
}
