//! Provides slots: equal shares of a resource that threads take in the order in which they asked for them.
//!
//! A thread that returns a slot hands it to the thread that has waited longest. If a returned slot could be taken by
//! whoever asks next, a thread that calls again at once would overtake all threads that wait, and some of these would
//! wait for many times the mean.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use inshore_store::Cancel;

/// The interval at which a thread that waits for a slot checks for cancellation.
const TICK: Duration = Duration::from_millis(20);

/// The slots that are free, and the threads that wait for one.
pub(crate) struct Slots<T> {
    state: Mutex<State<T>>,
    count: usize,
}

struct State<T> {
    /// The free slots. No thread waits while there are any.
    free: Vec<T>,
    waiting: VecDeque<Waiter<T>>,
    next_number: u64,
}

struct Waiter<T> {
    number: u64,
    hand: SyncSender<T>,
}

impl<T> Slots<T> {
    pub fn new(free: Vec<T>) -> Slots<T> {
        let count = free.len();
        Slots { state: Mutex::new(State { free, waiting: VecDeque::new(), next_number: 0 }), count }
    }

    /// Returns the number of slots, free or not.
    pub fn count(&self) -> usize {
        self.count
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Takes a slot, and waits until it is the turn of this thread. Also returns true if all slots were free. Returns
    /// `None` if `cancel` was cancelled during the wait.
    pub fn take(&self, cancel: &Cancel) -> Option<(T, bool)> {
        let (number, slot) = {
            let mut state = self.lock();
            let is_alone = state.free.len() == self.count;
            if let Some(slot) = state.free.pop() {
                return Some((slot, is_alone));
            }
            let number = state.next_number;
            state.next_number += 1;
            let (hand, slot) = sync_channel(1);
            state.waiting.push_back(Waiter { number, hand });
            (number, slot)
        };
        loop {
            match slot.recv_timeout(TICK) {
                Ok(slot) => return Some((slot, false)),
                Err(RecvTimeoutError::Timeout) if !cancel.is_cancelled() => {}
                Err(_) => {
                    self.leave(number, &slot);
                    return None;
                }
            }
        }
    }

    /// Removes a thread from those that wait. If it was handed a slot meanwhile, the slot is returned.
    fn leave(&self, number: u64, slot: &Receiver<T>) {
        self.lock().waiting.retain(|waiter| waiter.number != number);
        if let Ok(slot) = slot.try_recv() {
            self.give(slot);
        }
    }

    /// Returns a slot. The thread that has waited longest receives it.
    pub fn give(&self, slot: T) {
        let mut state = self.lock();
        match state.waiting.pop_front() {
            // The receiver lives until its thread has left `waiting`, and the channel of a thread is empty before.
            Some(waiter) => waiter.hand.try_send(slot).unwrap_or_else(|_| unreachable!("a waiter that left")),
            None => state.free.push(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use super::*;

    fn wait_for_waiters(slots: &Slots<u32>, count: usize) {
        while slots.lock().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn slots_are_given_in_the_order_of_the_waits() {
        let slots = Slots::new(vec![7]);
        let (first, is_alone) = slots.take(&Cancel::default()).unwrap();
        assert!(first == 7 && is_alone);
        let (tell, told) = channel();
        thread::scope(|scope| {
            for number in 0..8 {
                let (tell, slots) = (tell.clone(), &slots);
                scope.spawn(move || {
                    let (slot, is_alone) = slots.take(&Cancel::default()).unwrap();
                    assert!(!is_alone);
                    tell.send(number).unwrap();
                    slots.give(slot);
                });
                wait_for_waiters(slots, number + 1);
            }
            slots.give(first);
        });
        drop(tell);
        assert!(told.iter().eq(0..8));
        assert_eq!(slots.lock().free, [7]);
    }

    #[test]
    fn a_thread_that_calls_again_waits_behind_the_others() {
        let slots = Slots::new(vec![0]);
        let (slot, _) = slots.take(&Cancel::default()).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.take(&Cancel::default()).unwrap());
            wait_for_waiters(&slots, 1);
            slots.give(slot);
            // The slot belongs to the other thread already, whether or not it has run.
            assert!(slots.lock().free.is_empty());
            slots.give(waiting.join().unwrap().0);
        });
        assert!(slots.take(&Cancel::default()).unwrap().1);
    }

    #[test]
    fn cancelled_waits_lose_no_slot() {
        let slots = Slots::new(vec![1, 2]);
        let held = [(); 2].map(|()| slots.take(&Cancel::default()).unwrap().0);
        let (cancel, kept) = (Cancel::default(), Cancel::default());
        thread::scope(|scope| {
            let cancelled = [(); 3].map(|()| scope.spawn(|| slots.take(&cancel).map(|(slot, _)| slot)));
            wait_for_waiters(&slots, 3);
            let waiting = scope.spawn(|| slots.take(&kept).unwrap().0);
            wait_for_waiters(&slots, 4);
            cancel.cancel();
            // Slots that are returned at the same time go to cancelled threads or to the other one.
            held.into_iter().for_each(|slot| slots.give(slot));
            for slot in cancelled.into_iter().filter_map(|thread| thread.join().unwrap()) {
                slots.give(slot);
            }
            slots.give(waiting.join().unwrap());
        });
        let mut free = slots.lock().free.clone();
        free.sort_unstable();
        assert_eq!(free, [1, 2]);
    }
}
