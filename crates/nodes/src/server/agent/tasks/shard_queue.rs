//! Queues the shards that a client hands to a running task, until the task pulls them.
//!
//! ```text
//!   client ── "hand-out" ──► queue ──► PulledShards ──► work: requests the next shard after reading the previous one
//!      ◄──── PullRequest, between answers ──┘
//! ```

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use inshore_kernel::{Failure, TaskSource};

use super::client_channel::ClientChannel;
use crate::{
    protocol::{PieceRequest, PullRequest, ShardGrant},
    server::{heartbeat, pieces::open_pieces},
};

/// The interval at which a waiting task checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// The number of shards that may be queued for a task.
const AHEAD_MAX: usize = 1024;

/// The queue of shards of a task.
#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ahead: VecDeque<PieceRequest>,
    is_last: bool,
    /// True after the task handler has failed. The task then takes no more shards.
    is_left: bool,
    taken: Vec<u64>,
    /// The threads that have requested a shard. Each of these, except the current one, is reading one shard.
    askers: HashSet<ThreadId>,
}

impl State {
    /// Registers that a thread has finished its shard and requests the next one. Returns the number of shards
    /// taken so far, and the number of these that other threads are reading.
    fn asks(&mut self, thread: ThreadId) -> (u64, u64) {
        self.askers.insert(thread);
        let taken = self.taken.len() as u64;
        (taken, taken.min(self.askers.len() as u64 - 1))
    }
}

impl ShardQueue {
    /// Appends shards to the queue. Returns false if the queue would become too long.
    pub fn hand_out(&self, grant: ShardGrant) -> bool {
        let mut state = self.state();
        if state.ahead.len() + grant.shards.len() > AHEAD_MAX {
            return false;
        }
        state.ahead.extend(grant.shards);
        state.is_last |= grant.is_last;
        self.changed.notify_all();
        true
    }

    /// Ends the wait of a task that has failed in another thread.
    pub fn leave(&self) {
        self.state().is_left = true;
        self.changed.notify_all();
    }

    /// Returns the numbers of the shards that the task has taken.
    pub fn taken(&self) -> Vec<u64> {
        self.state().taken.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

/// The iterator over a task's shards, as the client hands them out.
pub(super) struct PulledShards {
    queue: Arc<ShardQueue>,
    client: ClientChannel,
}

impl PulledShards {
    pub fn new(queue: Arc<ShardQueue>, client: ClientChannel) -> PulledShards {
        PulledShards { queue, client }
    }

    fn take_shard(&self) -> Result<Option<PieceRequest>, Failure> {
        let ((finished, reading), ahead) = {
            let mut state = self.queue.state();
            (state.asks(thread::current().id()), state.ahead.len())
        };
        // A pull is reported only while at most one shard is queued, so that many small shards need few
        // messages.
        if ahead <= 1 {
            let ClientChannel { agent, number, .. } = &self.client;
            let pulls = PullRequest { task: *number, finished, reading };
            self.client.send(heartbeat::message(agent.task_progress(*number), Some(pulls)))?;
        }
        let began = Instant::now();
        let mut state = self.queue.state();
        loop {
            if state.is_left {
                return Err("the task has failed".into());
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
            let waited = self.queue.changed.wait_timeout(state, LOOK);
            state = waited.expect("no panic under this lock").0;
        }
    }

    /// Takes the remaining shards after the task handler needs no more input, since the answer of the task
    /// covers these shards too.
    pub fn pass_over(&self) -> Result<(), Failure> {
        while self.take_shard()?.is_some() {}
        Ok(())
    }
}

impl Iterator for PulledShards {
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
