//! This module implements the queue of tasks. The queue is bounded and fair between clients, and reserves the memory of
//! a task before the task starts.
//!
//! Tasks of one client run in the order of arrival. Between clients, the tasks are chosen in turn. A task starts when a
//! slot and its memory are free. Small tasks do not overtake a large task forever: if the next task waits for its
//! memory, all other tasks wait behind this task. A task is refused if the queue is full, or if its client already has
//! half of the queue's places; the refusal then contains a time to retry.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::oneshot;
use tonic::Status as Refusal;

use crate::protocol::wire::ask_again;

/// The queue of running and waiting tasks.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory_bytes: u64,
    slots: usize,
    waiting_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: u64,
    running: usize,
    waiting: BTreeMap<String, VecDeque<QueuedTask>>,
    /// The clients with waiting tasks. The first client in this list is the next to start a task.
    turns: VecDeque<String>,
    count: usize,
}

#[derive(Debug)]
struct QueuedTask {
    memory_bytes: u64,
    start: oneshot::Sender<Permit>,
}

/// The permission to run, together with the reserved memory. Dropping the permission lets the next task run.
#[derive(Debug)]
pub(crate) struct Permit {
    queue: Arc<Inner>,
    memory_bytes: u64,
    slots: usize,
}

/// The fill level of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLoad {
    pub used_bytes: u64,
    pub waiting: usize,
}

impl Queue {
    pub fn new(memory_bytes: u64, slots: usize, waiting_max: usize) -> Queue {
        Queue(Arc::new(Inner { memory_bytes, slots, waiting_max, state: Mutex::default() }))
    }

    /// Enters a task. The returned future resolves when the task may start. Dropping the future removes the task from
    /// the queue.
    ///
    /// # Errors
    /// Returns the refusal of the task. The refusal is permanent if the task exceeds the node's memory. Otherwise the
    /// refusal contains the time after which the client may retry.
    pub fn enter(
        &self,
        client: &str,
        memory_bytes: u64,
    ) -> Result<impl Future<Output = Permit> + use<>, Refusal> {
        let inner = &self.0;
        if memory_bytes > inner.memory_bytes {
            return Err(Refusal::resource_exhausted(format!(
                "a task of {} exceeds the memory of this node for all tasks ({})",
                inshore_store::format_bytes(memory_bytes),
                inshore_store::format_bytes(inner.memory_bytes)
            )));
        }
        let (start, started) = oneshot::channel();
        let mut state = inner.state();
        let runs_now = state.count == 0 && inner.fits(&state, memory_bytes);
        // Waiting tasks whose clients have disconnected are removed, to make room.
        if !runs_now && inner.has_no_place(&state, client).is_some() {
            state.forget_gone();
        }
        if let Some(why) = inner.has_no_place(&state, client).filter(|_| !runs_now) {
            return Err(ask_again(why));
        }
        let queue = state.waiting.entry(client.to_string()).or_default();
        queue.push_back(QueuedTask { memory_bytes, start });
        if queue.len() == 1 {
            state.turns.push_back(client.to_string());
        }
        state.count += 1;
        drop(state);
        start_next(inner);
        Ok(async move { started.await.expect("the queue lives as long as its tasks wait") })
    }

    /// Reserves memory without a slot, for a task that computes little and must not wait. The reservation succeeds or
    /// fails without waiting.
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub fn reserve_without_slot(&self, memory_bytes: u64) -> Result<Permit, String> {
        let mut state = self.0.state();
        let free = self.0.memory_bytes - state.used_bytes;
        if memory_bytes > free {
            return Err(format!(
                "running tasks leave {} of memory free, and this task needs {}",
                inshore_store::format_bytes(free),
                inshore_store::format_bytes(memory_bytes)
            ));
        }
        state.used_bytes += memory_bytes;
        Ok(Permit { queue: self.0.clone(), memory_bytes, slots: 0 })
    }

    pub fn fullness(&self) -> QueueLoad {
        let state = self.0.state();
        QueueLoad { used_bytes: state.used_bytes, waiting: state.count }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Returns the reason why no more tasks of this client may wait. Returns `None` if another task may wait.
    fn has_no_place(&self, state: &State, client: &str) -> Option<String> {
        if state.count >= self.waiting_max {
            return Some(format!("the queue is full: {} tasks run and {} wait", state.running, state.count));
        }
        let own = state.waiting.get(client).map_or(0, VecDeque::len);
        let places = self.waiting_max.div_ceil(2);
        (own >= places).then(|| {
            format!("{own} tasks of {client} wait, half of the queue, which is the limit for a client")
        })
    }

    fn fits(&self, state: &State, memory_bytes: u64) -> bool {
        state.running < self.slots && memory_bytes <= self.memory_bytes - state.used_bytes
    }
}

impl State {
    fn forget_gone(&mut self) {
        for queue in self.waiting.values_mut() {
            queue.retain(|waiting| !waiting.start.is_closed());
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|client| self.waiting.contains_key(client));
        self.count = self.waiting.values().map(VecDeque::len).sum();
    }

    /// Removes and returns the task whose turn it is, if `fits` returns true for the memory of the task.
    fn take(&mut self, fits: impl Fn(&State, u64) -> bool) -> Option<QueuedTask> {
        self.forget_gone();
        let client = self.turns.front()?.clone();
        let wanted = self.waiting[&client].front().expect("empty ones are forgotten").memory_bytes;
        if !fits(self, wanted) {
            return None;
        }
        self.turns.pop_front();
        let queue = self.waiting.get_mut(&client).expect("looked at above");
        let next = queue.pop_front().expect("looked at above");
        match queue.is_empty() {
            true => drop(self.waiting.remove(&client)),
            false => self.turns.push_back(client),
        }
        self.count -= 1;
        self.running += 1;
        self.used_bytes += wanted;
        Some(next)
    }
}

/// Starts all tasks that can start. Permissions are sent after the lock is released: if a receiver was dropped, its
/// permission is dropped immediately, which takes the lock again.
fn start_next(inner: &Arc<Inner>) {
    loop {
        let Some(next) = inner.state().take(|state, wanted| inner.fits(state, wanted)) else { return };
        let place = Permit { queue: inner.clone(), memory_bytes: next.memory_bytes, slots: 1 };
        let _ = next.start.send(place);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state();
            state.running -= self.slots;
            state.used_bytes -= self.memory_bytes;
        }
        start_next(&self.queue);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt;

    use super::*;
    use crate::protocol::wire::pushback;

    type PendingPermit = Pin<Box<dyn Future<Output = Permit>>>;

    fn enter(queue: &Queue, client: &str, memory_bytes: u64) -> PendingPermit {
        Box::pin(queue.enter(client, memory_bytes).unwrap())
    }

    fn started(entered: &mut PendingPermit) -> Option<Permit> {
        entered.now_or_never()
    }

    #[test]
    fn clients_take_turns_and_each_is_served_in_order() {
        let queue = Queue::new(100, 1, 10);
        let first = started(&mut enter(&queue, "a", 10)).unwrap();
        let mut waiting: Vec<(&str, PendingPermit)> =
            [("a2", "a"), ("a3", "a"), ("b1", "b"), ("a4", "a"), ("b2", "b")]
                .into_iter()
                .map(|(name, client)| (name, enter(&queue, client, 10)))
                .collect();
        let mut order = Vec::new();
        let mut place = Some(first);
        while !waiting.is_empty() {
            drop(place.take());
            let at = waiting.iter_mut().position(|(_, entered)| {
                place = started(entered);
                place.is_some()
            });
            order.push(waiting.remove(at.expect("one runs")).0);
        }
        assert_eq!(order, ["a2", "b1", "a3", "b2", "a4"]);
    }

    #[test]
    fn memory_of_what_runs_stays_within_the_budget_and_large_tasks_are_not_starved() {
        let queue = Queue::new(100, 10, 10);
        let first = started(&mut enter(&queue, "a", 60)).unwrap();
        let mut large = enter(&queue, "b", 80);
        let mut small = enter(&queue, "c", 10);
        assert!(started(&mut large).is_none() && started(&mut small).is_none(), "the large one is first");
        assert_eq!(queue.fullness(), QueueLoad { used_bytes: 60, waiting: 2 });
        drop(first);
        let (large, small) = (started(&mut large).unwrap(), started(&mut small).unwrap());
        assert_eq!(queue.fullness(), QueueLoad { used_bytes: 90, waiting: 0 });
        drop((large, small));
        assert_eq!(queue.fullness(), QueueLoad { used_bytes: 0, waiting: 0 });
        let refusal = queue.enter("a", 101).err().unwrap();
        assert!(
            refusal.message().contains("exceeds the memory") && pushback(&refusal).is_none(),
            "{refusal}"
        );
    }

    #[test]
    fn a_reservation_without_a_slot_takes_memory_and_never_waits() {
        let queue = Queue::new(100, 1, 10);
        let first = started(&mut enter(&queue, "a", 60)).unwrap();
        let without_slot = queue.reserve_without_slot(30).unwrap();
        assert!(queue.reserve_without_slot(20).unwrap_err().contains("leave 10 bytes of memory free"));
        let mut second = enter(&queue, "a", 80);
        drop(first);
        assert!(started(&mut second).is_none(), "its memory is not free");
        drop(without_slot);
        assert!(started(&mut second).is_some());
        assert_eq!(queue.fullness(), QueueLoad { used_bytes: 0, waiting: 0 });
    }

    #[test]
    fn a_full_queue_refuses_and_those_who_went_away_make_room() {
        let queue = Queue::new(100, 1, 2);
        let running = started(&mut enter(&queue, "a", 1)).unwrap();
        let mut second = enter(&queue, "a", 1);
        let third = enter(&queue, "b", 1);
        let refusal = queue.enter("c", 1).err().unwrap();
        assert_eq!(refusal.message(), "the queue is full: 1 tasks run and 2 wait");
        assert!(pushback(&refusal).is_some(), "there may be room soon");
        drop(third);
        let mut fourth = enter(&queue, "c", 1);
        drop(running);
        let place = started(&mut second).expect("its turn");
        assert!(started(&mut fourth).is_none());
        drop(place);
        assert!(started(&mut fourth).is_some());
    }
    #[test]
    fn a_client_has_half_of_the_places_of_those_that_wait() {
        let queue = Queue::new(100, 1, 5);
        let running = started(&mut enter(&queue, "a", 1)).unwrap();
        let mut own: Vec<PendingPermit> = (0..3).map(|_| enter(&queue, "a", 1)).collect();
        let refusal = queue.enter("a", 1).err().unwrap();
        assert_eq!(
            refusal.message(),
            "3 tasks of a wait, half of the queue, which is the limit for a client"
        );
        assert!(pushback(&refusal).is_some(), "there may be room soon");
        let _others = [enter(&queue, "b", 1), enter(&queue, "c", 1)];
        assert!(queue.enter("d", 1).err().unwrap().message().contains("the queue is full"));
        // Running tasks, and tasks whose clients have disconnected, no longer wait.
        own.pop();
        own.push(enter(&queue, "a", 1));
        drop(running);
        let _running = started(&mut own[0]).expect("its turn");
        own.push(enter(&queue, "a", 1));
    }
}
