//! A deadline limits the time of a command.

use std::time::{Duration, Instant};

/// `Deadline` is the moment by which a command must end. A command creates one value when it starts. Each
/// phase, wait and request of the command gets a copy, as does the [stop flag](crate::Cancel) of its job.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    given: Duration,
}

impl Deadline {
    /// Creates a deadline at `given` from now; returns `None` if the clock cannot represent that moment.
    pub fn after(given: Duration) -> Option<Deadline> {
        Some(Deadline { at: Instant::now().checked_add(given)?, given })
    }

    /// Returns the duration for which the deadline was created.
    pub fn given(&self) -> Duration {
        self.given
    }

    /// Returns the time that is left.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns true if no time is left.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}
