//! Receives the messages of attempts: batches of rows, the end of an answer, or an error.

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use inshore_kernel::part_rows;

use super::{Gather, LOOK};
use crate::{
    Error, Result,
    client::tasks::{gather_report::ANSWER_BYTES, run::Run, scheduler::Event},
};

/// A message of an attempt.
pub(super) enum Message {
    Batch(RecordBatch),
    Done,
    Failed(Error),
}

impl Gather {
    /// Returns the next message of an attempt, or `None` if no message came within `wait`.
    pub(super) fn receive_within(&mut self, attempt: usize, wait: Duration) -> Result<Option<Message>> {
        let run = self.run.clone();
        // The deadline is checked before the stop flag. The deadline also sets the flag, but its own error
        // names the unfinished work.
        run.nodes.0.check(|| self.unfinished(attempt))?;
        run.job.check_cancelled()?;
        {
            let mut state = run.state();
            // A node that takes over the shards of another node may answer in two streams at once.
            let bytes = run.answering(&state) as u64 * ANSWER_BYTES;
            if bytes > self.memory.bytes()
                && let Err(error) = self.memory.resize(bytes)
            {
                // After a refusal, many attempts may need more memory than is free. The refusal is then the
                // cause of the error.
                return Err(state.refusal.take().unwrap_or(error.into()));
            }
            if state.scheduler.is_over(attempt) {
                self.streams.remove(&attempt);
            }
            let answers = state.links.get_mut(&attempt).and_then(|link| link.answers.take());
            if let Some(answers) = answers {
                self.streams.insert(attempt, answers);
            }
        }
        let Some(answers) = self.streams.get_mut(&attempt) else { return Ok(Some(Message::Done)) };
        let waited = run.nodes.0.runtime.block_on(async { tokio::time::timeout(wait, answers.next()).await });
        let Ok(answer) = waited else {
            run.tell(Event::Waited { attempt });
            return Ok(None);
        };
        // An attempt that was cancelled meanwhile ends early without fault of its node.
        let is_over = !matches!(answer, Some(Ok(Some(_)))) && run.state().scheduler.is_over(attempt);
        Ok(Some(match answer {
            Some(Ok(Some(batch))) => Message::Batch(batch),
            _ if is_over => {
                self.streams.remove(&attempt);
                Message::Done
            }
            Some(Ok(None)) => {
                self.streams.remove(&attempt);
                Message::Done
            }
            Some(Err(error)) => {
                self.streams.remove(&attempt);
                run.remember(&mut run.state(), attempt, &error);
                Message::Failed(error)
            }
            None => {
                self.streams.remove(&attempt);
                Message::Failed(self.lost(attempt, "the answer ended early".to_string()))
            }
        }))
    }

    /// Waits for a short time for a message of an attempt.
    pub(super) fn receive(&mut self, attempt: usize) -> Result<()> {
        let Some(message) = self.receive_within(attempt, LOOK)? else {
            // Attempts that were cancelled meanwhile still hold memory.
            let over: Vec<usize> = {
                let state = self.run.state();
                self.streams.keys().copied().filter(|&attempt| state.scheduler.is_over(attempt)).collect()
            };
            over.into_iter().for_each(|attempt| self.forget(attempt));
            return Ok(());
        };
        match message {
            Message::Batch(batch) => match part_rows(&batch) {
                Some(rows) => drop(self.rows.insert(attempt, rows.into())),
                None => {
                    self.lose(attempt, "protocol error: an answer has unexpected columns".to_string(), true)?
                }
            },
            Message::Done => {
                self.run.tell(Event::Completed { attempt, shards: Vec::new() });
                self.forget(attempt);
                self.check_missing()?;
            }
            Message::Failed(error) => {
                let is_gone = !matches!(error, Error::SetAside { .. });
                self.lose(attempt, error.to_string(), is_gone)?;
            }
        }
        Ok(())
    }

    /// Waits for the ends of all tasks, which report their costs. A task with unwanted answers may run for a
    /// long time, so it is stopped. A task that does not end in time is stopped too.
    pub(super) fn wait_for_ends(&mut self) -> Result<()> {
        let until = Instant::now() + self.run.options.stall;
        let attempts = self.run.state().scheduler.attempts();
        for attempt in 0..attempts {
            let is_wanted = |run: &Run| {
                let state = run.state();
                let is_node = state.scheduler.puller(attempt).node().is_some();
                let has_more = state.scheduler.out(attempt).next().is_some();
                is_node && !has_more && !state.scheduler.is_over(attempt)
            };
            while is_wanted(&self.run) && Instant::now() < until {
                match self.receive_within(attempt, LOOK) {
                    Ok(None) => {}
                    Ok(Some(Message::Batch(batch))) if batch.num_rows() == 0 => {}
                    // All rows that the client needs from the task have arrived.
                    Ok(Some(_)) | Err(Error::Deadline { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
