//! Sends the messages of a task to a client that may be slow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arrow_flight::FlightData;
use inshore_kernel::Failure;
use inshore_store::Job;
use tokio::{runtime::Handle, sync::mpsc};

use super::super::{Agent, AnswerResult};

/// The time that a task waits for its client to take answers while other tasks wait for the slot.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The channel from a task to its client.
#[derive(Clone, Debug)]
pub(super) struct ClientChannel {
    pub agent: Agent,
    pub job: Job,
    pub out: mpsc::Sender<AnswerResult>,
    pub runtime: Handle,
    pub number: u64,
    /// Set if the client took no answer while other tasks waited for this task's slot.
    pub is_set_aside: Arc<AtomicBool>,
}

impl ClientChannel {
    /// Blocks until the client takes a message, and returns the waiting time. If the client takes nothing while other
    /// tasks wait for this task's slot, the task is set aside, since the client may be waiting for one of the other
    /// tasks.
    pub fn send(&self, message: FlightData) -> Result<Duration, Failure> {
        let began = Instant::now();
        loop {
            self.job.check_cancelled()?;
            let reserved = {
                // `Handle::block_on` would panic in a thread of another runtime. `unconstrained` is used since the task
                // budget of that runtime would end the wait early.
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

    /// Fails if the client has taken nothing for long while other tasks wait for this task's slot.
    pub fn may_keep_waiting(&self, since: Instant) -> Result<(), Failure> {
        if since.elapsed() > TIMEOUT && self.agent.0.queue.fullness().waiting > 0 {
            self.is_set_aside.store(true, Ordering::Relaxed);
            return Err("stopped for a slow client".into());
        }
        Ok(())
    }
}
