//! When a command has to be over.

use std::time::{Duration, Instant};

/// The moment at which a command has to be over. One value is made when the command starts, and every phase of the command gets a
/// copy: each wait, each request and the [stop flag](crate::Cancel) of the job.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    given: Duration,
}

impl Deadline {
    /// The moment so long from now on; `None` where the clock does not reach so far.
    pub fn after(given: Duration) -> Option<Deadline> {
        Some(Deadline { at: Instant::now().checked_add(given)?, given })
    }

    /// The time that was given.
    pub fn given(&self) -> Duration {
        self.given
    }

    /// The time that is left.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}
