//! Where answers let what is fetched go first.
//!
//! Where what nodes answer is more than what they read for it (rows that travel decoded), each byte of the wire does more when this machine fetches
//! what they have not begun. A node that waits for its answers to be taken begins no more, so the rest is left for this machine; and when
//! nothing is fetched, or what is fetched waits for this machine, the wire is for answers again.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Nobody waits longer for a message: a node whose answers nobody takes for some seconds sets its task aside.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// It is looked again so often.
const NAP: Duration = Duration::from_millis(2);

/// Who waits for the wire.
#[derive(Debug, Default)]
pub(in crate::nodes) struct Gate {
    /// What nodes answer is more than what they read.
    is_wide: AtomicBool,
    /// So many reads wait for bytes on their way here.
    fetching: AtomicUsize,
}

/// A read waits for bytes, until it goes.
pub(in crate::nodes) struct Fetching<'a>(&'a Gate);

impl Gate {
    /// Whether what nodes answer is more than what they read for it.
    pub fn set_wide(&self, is_wide: bool) {
        self.is_wide.store(is_wide, Ordering::Relaxed);
    }

    /// A read begins to wait for bytes.
    pub fn fetches(&self) -> Fetching<'_> {
        self.fetching.fetch_add(1, Ordering::Relaxed);
        Fetching(self)
    }

    /// Waits as long as reads go first.
    pub async fn pass(&self) {
        let began = Instant::now();
        let is_closed = || self.is_wide.load(Ordering::Relaxed) && self.fetching.load(Ordering::Relaxed) > 0;
        while is_closed() && began.elapsed() < WAIT_MAX {
            tokio::time::sleep(NAP).await;
        }
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.fetching.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_wait_for_reads_where_they_are_wide_and_not_for_ever() {
        let gate = Gate::default();
        let passes = async |gate: &Gate| tokio::time::timeout(WAIT_MAX / 4, gate.pass()).await.is_ok();
        let fetching = gate.fetches();
        assert!(passes(&gate).await);
        gate.set_wide(true);
        assert!(!passes(&gate).await);
        gate.pass().await;
        drop(fetching);
        assert!(passes(&gate).await);
    }
}
