//! A stop flag makes a job end early.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::Deadline;

/// `Cancel` is a flag that makes a job stop; clones share the flag. A job that finds the flag set ends with
/// [`Error::Cancelled`](crate::Error::Cancelled).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Flag>);

/// The flag that all clones share. Each handle of a job contains a pointer to the flag.
#[derive(Debug, Default)]
struct Flag {
    asked: AtomicBool,
    deadline: Option<Deadline>,
}

impl Cancel {
    /// Creates a flag that also counts as set from the deadline on.
    pub fn at(deadline: Option<Deadline>) -> Cancel {
        Cancel(Arc::new(Flag { deadline, ..Flag::default() }))
    }

    /// Sets the flag.
    pub fn cancel(&self) {
        self.0.asked.store(true, Ordering::Relaxed);
    }

    /// Returns true if the flag was set or the deadline is over.
    pub fn is_cancelled(&self) -> bool {
        let Flag { asked, deadline } = &*self.0;
        asked.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| deadline.is_over())
    }

    /// Returns the deadline, if there is one.
    pub fn deadline(&self) -> Option<Deadline> {
        self.0.deadline
    }
}
