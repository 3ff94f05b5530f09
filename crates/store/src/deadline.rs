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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Cancel, Error, Job};

    #[test]
    fn a_job_ends_at_its_deadline_as_if_it_were_asked_to_stop() {
        let job = |given: Duration| {
            let cancel = Cancel::at(Deadline::after(given));
            Job::without_store(Budget::new(1 << 20, 1), cancel)
        };
        assert!(matches!(job(Duration::ZERO).check_cancelled(), Err(Error::Cancelled)));
        let later = job(Duration::from_secs(3600));
        later.check_cancelled().unwrap();
        // A clone shares the deadline and the flag.
        let cancel = later.cancel().clone();
        assert!(cancel.deadline().unwrap().left() > Duration::from_secs(3000));
        cancel.cancel();
        assert!(later.check_cancelled().is_err());
        assert!(Deadline::after(Duration::MAX).is_none());
    }
}
