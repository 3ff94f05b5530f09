//! Sends progress messages to a task's client, between answers.
//!
//! A search without matches sends no answers for as long as the search takes, and neither does a task whose
//! drive hangs. A connection's keep-alive cannot distinguish these cases, since the node's process is healthy
//! in both. If the client has requested reports, a node therefore reports the progress of a task every few
//! seconds. If a client sees no progress for a long time, it continues on another node that has a copy of the
//! data.
//!
//! Progress is measured in bytes read and written. A block whose computation takes longer than the client
//! waits looks like a stall. Such a false alarm loses no answers, but costs time: another node processes the
//! block again.

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

use crate::protocol::{PullRequest, TaskAlive, wire::json};

/// The minimum interval between progress messages.
const OFTEN: Duration = Duration::from_millis(20);

/// Builds a progress message.
pub(crate) fn message(progress: u64, pulls: Option<PullRequest>) -> FlightData {
    FlightData { app_metadata: json(&TaskAlive { progress, pulls }), ..FlightData::default() }
}

/// Sends progress messages until dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    number: Arc<OnceLock<u64>>,
    teller: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts sending the progress of a task at the interval `every`. A task without a number waits for admission,
    /// and waiting counts as progress.
    pub fn begin(
        progress: impl Fn(u64) -> u64 + Send + 'static,
        out: Sender<Result<FlightData, Refusal>>,
        every: Duration,
    ) -> Heartbeat {
        let number: Arc<OnceLock<u64>> = Arc::default();
        let known = number.clone();
        let teller = tokio::spawn(async move {
            let mut waited = 0;
            loop {
                let number = known.get();
                waited += u64::from(number.is_none());
                let message = message(waited + number.map_or(0, |&number| progress(number)), None);
                // A full channel already contains answers, and answers show progress too.
                if let Err(TrySendError::Closed(_)) = out.try_send(Ok(message)) {
                    return;
                }
                tokio::time::sleep(every.max(OFTEN)).await;
            }
        });
        Heartbeat { number, teller }
    }

    /// Records that the task was admitted under this number.
    pub fn runs(&self, number: u64) {
        let _ = self.number.set(number);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.teller.abort();
    }
}
