//! Tells a client, between answers, that its task gets on.
//!
//! A search that finds nothing answers nothing for as long as it takes, and so does a task whose drive hangs. A connection's
//! keep-alive tells them not apart, since the node's program is well in both. So a node says every few seconds how far a
//! task got, where its client asked for that, and a client that hears no progress for long asks another node that has a copy.
//!
//! Progress is bytes read and written. A block that is computed on for longer than the client's patience passes for a stall, which
//! costs work and no answers: another does it again.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use arrow_flight::FlightData;
use tokio::{
    sync::mpsc::{Sender, error::TrySendError},
    task::JoinHandle,
};
use tonic::Status as Refusal;

use super::{
    protocol::{TaskAlive, TaskPulls},
    wire::json,
};

/// Nobody has to be told more often.
const OFTEN: Duration = Duration::from_millis(20);

/// What tells it.
pub(super) fn message(progress: u64, pulls: Option<TaskPulls>) -> FlightData {
    FlightData { app_metadata: json(&TaskAlive { progress, pulls }), ..FlightData::default() }
}

/// Tells that a task gets on, until it is dropped.
#[derive(Debug)]
pub(super) struct Alive {
    number: Arc<OnceLock<u64>>,
    teller: JoinHandle<()>,
}

impl Alive {
    /// Begins to tell, so often, how far `progress` says that a task got. While the task has no number yet, it waits for its place, which is no
    /// lack of progress.
    pub fn begin(
        progress: impl Fn(u64) -> u64 + Send + 'static,
        out: Sender<Result<FlightData, Refusal>>,
        every: Duration,
    ) -> Alive {
        let number: Arc<OnceLock<u64>> = Arc::default();
        let known = number.clone();
        let teller = tokio::spawn(async move {
            let mut waited = 0;
            loop {
                let number = known.get();
                // What waits for its place lacks no progress either.
                waited += u64::from(number.is_none());
                let message = message(waited + number.map_or(0, |&number| progress(number)), None);
                // Where there is no room, answers are on their way, and say the same between them.
                if let Err(TrySendError::Closed(_)) = out.try_send(Ok(message)) {
                    return;
                }
                tokio::time::sleep(every.max(OFTEN)).await;
            }
        });
        Alive { number, teller }
    }

    /// The task has its place, and this number.
    pub fn runs(&self, number: u64) {
        let _ = self.number.set(number);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.teller.abort();
    }
}
