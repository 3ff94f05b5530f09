//! Takes the rows of shards in the order of shards, and checks each row against the earlier rows.

use inshore_kernel::{Answer, PartRow, ResumePosition};

use super::{Gather, PART_BYTES_MAX};
use crate::{
    Error, Result,
    client::tasks::scheduler::{Event, ShardState},
};

/// A row of a shard that the client has taken.
pub(super) enum TakenRow {
    Part(ResumePosition, Vec<u8>),
    Failed(Error),
}

impl Gather {
    /// Returns the next row of a shard, or `None` if the shard is answered or missing.
    pub(super) fn next_row(&mut self, number: usize) -> Result<Option<TakenRow>> {
        loop {
            let attempt = match self.state_of(number) {
                ShardState::Answered => return Ok(None),
                ShardState::Missing => {
                    self.check_missing()?;
                    return Ok(None);
                }
                ShardState::Queued => {
                    if !self.receive_skipped(number)? {
                        self.wait_for_puller(number)?;
                    }
                    continue;
                }
                ShardState::Out(attempt) => attempt,
            };
            let Some(row) = self.rows.entry(attempt).or_default().pop_front() else {
                self.receive(attempt)?;
                continue;
            };
            if let Some(taken) = self.handle_row(attempt, number, row)? {
                return Ok(Some(taken));
            }
        }
    }

    /// Handles one received row while the consumer waits for a shard, and returns the row if it belongs to the shard.
    fn handle_row(&mut self, attempt: usize, number: usize, row: PartRow) -> Result<Option<TakenRow>> {
        let next = self.run.state().scheduler.next_of(attempt);
        if next.is_none_or(|next| row.number != next as u64) {
            let is_over = row.number < number as u64;
            let why = if is_over {
                "protocol error: an answer for a shard that was answered already"
            } else {
                "protocol error: an answer out of order"
            };
            self.lose(attempt, why.to_string(), true)?;
            return Ok(None);
        }
        if row.number != number as u64 {
            self.pass_over(attempt, &row)?;
            return Ok(None);
        }
        self.take_row(attempt, number, row)
    }

    /// Receives rows of skipped shards while the next shard is in the queue. Returns false if no attempt
    /// still answers a skipped shard. A node pulls its next shard only after the client has received the
    /// earlier rows.
    fn receive_skipped(&mut self, number: usize) -> Result<bool> {
        let attempts: Vec<usize> = {
            let mut state = self.run.state();
            self.run.tell_to(&mut state, Event::Starved { shard: number });
            let scheduler = &state.scheduler;
            let answers_skipped =
                |&attempt: &usize| scheduler.next_of(attempt).is_some_and(|next| next < number);
            (0..scheduler.attempts()).filter(answers_skipped).collect()
        };
        for &attempt in &attempts {
            match self.rows.entry(attempt).or_default().pop_front() {
                Some(row) => drop(self.handle_row(attempt, number, row)?),
                None => self.receive(attempt)?,
            }
        }
        Ok(!attempts.is_empty())
    }

    /// Skips a row of a shard whose remaining rows are not needed. The skipped rows must make progress, since
    /// they could be endless otherwise.
    fn pass_over(&mut self, attempt: usize, row: &PartRow) -> Result<()> {
        let shard = row.number as usize;
        let bytes = self.run.shards[shard].piece.bytes;
        if !self.skipped.entry(attempt).or_default().goes_on(row, bytes) {
            return self.lose(
                attempt,
                "protocol error: an answer for a shard that was answered already".to_string(),
                true,
            );
        }
        if matches!(row.answer, Answer::End | Answer::Failed(_)) {
            self.run.tell(Event::Answered { attempt, shard });
        }
        Ok(())
    }

    fn take_row(&mut self, attempt: usize, number: usize, row: PartRow) -> Result<Option<TakenRow>> {
        let (from, before) = {
            let state = self.run.state();
            (state.from[number], state.reach[number])
        };
        let reach = ResumePosition {
            bytes: from.bytes.saturating_add(row.reach.bytes),
            lines: from.lines.saturating_add(row.reach.lines),
        };
        let bytes_max = self.run.shards[number].piece.bytes;
        match row.answer {
            Answer::Part(_)
                if reach.bytes <= before.bytes
                    || reach.bytes > bytes_max
                    || row.reach.lines > row.reach.bytes =>
            {
                self.lose(
                    attempt,
                    "protocol error: an answer repeats bytes, or exceeds the shard".to_string(),
                    true,
                )?;
            }
            Answer::Beginning(bytes) if bytes.is_empty() => {
                self.lose(attempt, "protocol error: a part begins with an empty answer".to_string(), true)?;
            }
            Answer::Beginning(bytes) => {
                if self.begun_by != attempt {
                    self.beginning.clear();
                    self.begun_by = attempt;
                }
                if self.beginning.len() + bytes.len() > PART_BYTES_MAX {
                    self.lose(attempt, "protocol error: a part exceeds the size limit".to_string(), true)?;
                } else {
                    self.beginning.extend(bytes);
                }
            }
            Answer::Part(bytes) => {
                let mut part = std::mem::take(&mut self.beginning);
                if self.begun_by != attempt {
                    // The beginning came from another attempt, so it is dropped.
                    part.clear();
                }
                if part.is_empty() {
                    part = bytes;
                } else {
                    part.extend(bytes);
                }
                return Ok(Some(TakenRow::Part(reach, part)));
            }
            Answer::End => self.run.tell(Event::Answered { attempt, shard: number }),
            Answer::Failed(what) => return self.unreadable(attempt, number, what),
        }
        Ok(None)
    }

    /// Records that a node cannot read a shard. Other nodes with a copy may then pull the shard.
    fn unreadable(&mut self, attempt: usize, shard: usize, what: String) -> Result<Option<TakenRow>> {
        let puller = self.run.state().scheduler.puller(attempt);
        if puller.node().is_none() {
            self.lose(attempt, what, false)?;
            return Ok(None);
        }
        let node = self.run.address(puller).to_string();
        let why = format!("node {node}: {what}");
        self.run.tell(Event::Unreadable { attempt, shard, why });
        if self.state_of(shard) != ShardState::Missing {
            return Ok(None);
        }
        self.run.state().scheduler.forgive(shard);
        Ok(Some(TakenRow::Failed(Error::Refused { node, what })))
    }

    /// Records the position up to which the client has taken a shard.
    pub(super) fn accept(&mut self, number: usize, reach: ResumePosition) {
        let mut state = self.run.state();
        if reach.bytes > state.reach[number].bytes {
            state.reach[number] = reach;
            if let ShardState::Out(attempt) = state.scheduler.state(number) {
                self.run.tell_to(&mut state, Event::Advanced { attempt, shard: number });
            }
        }
    }

    /// Records that the remaining rows of a shard are not needed.
    pub(super) fn end_of(&mut self, number: usize, is_skipped: bool) {
        self.beginning.clear();
        if is_skipped {
            self.run.tell(Event::Skipped { shard: number });
        }
    }
}
