//! How a job is asked to stop.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::Deadline;

/// A flag that asks a job to stop; clones share it. A job that sees it set ends with [`Error::Cancelled`](crate::Error::Cancelled).
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    asked: Arc<AtomicBool>,
    deadline: Option<Deadline>,
}

impl Cancel {
    /// A flag that is set by itself at the deadline.
    pub fn at(deadline: Option<Deadline>) -> Cancel {
        Cancel { deadline, ..Cancel::default() }
    }

    /// Asks to stop.
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether someone asked to stop, or the deadline is over.
    pub fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| deadline.is_over())
    }

    /// When the flag is set by itself.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }
}
