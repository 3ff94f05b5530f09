//! Sends the answers of a task: encodes, compresses and counts the batches.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_kernel::{Failure, Reply};

use super::client_channel::ClientChannel;
use crate::{
    protocol::{
        compression::CompressionSelector,
        wire::{Encoder, batch_bytes, message_bytes},
    },
    server::heartbeat,
};

/// The sender of a task's answers to its client.
pub(super) struct TaskReply {
    pub encoder: Encoder,
    compression: RegisteredSender,
    client: ClientChannel,
    /// The interval of progress messages to the client.
    progress_interval: Option<Duration>,
    /// The time of the last progress message between answers.
    reported: Option<Instant>,
}

impl TaskReply {
    pub fn new(
        client: ClientChannel,
        compression: Arc<Mutex<CompressionSelector>>,
        progress_interval: Option<Duration>,
    ) -> TaskReply {
        TaskReply {
            encoder: Encoder::new(),
            compression: RegisteredSender::begin(compression),
            client,
            progress_interval,
            reported: None,
        }
    }

    /// Sends a progress message if one is due. While answers wait for their client, no other message reports
    /// progress.
    fn report_progress(&mut self) -> Result<(), Failure> {
        let Some(interval) = self.progress_interval else { return Ok(()) };
        if self.reported.is_some_and(|reported| reported.elapsed() < interval) {
            return Ok(());
        }
        self.reported = Some(Instant::now());
        let ClientChannel { agent, number, .. } = &self.client;
        self.client.send(heartbeat::message(agent.task_progress(*number), None)).map(drop)
    }
}

impl Reply for TaskReply {
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        self.report_progress()?;
        let mut waited = Duration::ZERO;
        let level = self.compression.compression().level();
        for message in self.encoder.batch(&batch, level)? {
            let counters = &self.client.agent.0.counters;
            counters.bytes_answered.fetch_add(message_bytes(&message), Ordering::Relaxed);
            waited += self.client.send(message)?;
        }
        self.compression.compression().sent(batch_bytes(&batch), waited, Instant::now());
        Ok(())
    }
}

/// Registers a sender in the shared compression state, until dropped.
struct RegisteredSender(Arc<Mutex<CompressionSelector>>);

impl RegisteredSender {
    fn begin(compression: Arc<Mutex<CompressionSelector>>) -> RegisteredSender {
        let sends = RegisteredSender(compression);
        sends.compression().begins(Instant::now());
        sends
    }

    fn compression(&self) -> MutexGuard<'_, CompressionSelector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredSender {
    fn drop(&mut self) {
        self.compression().ends(Instant::now());
    }
}
