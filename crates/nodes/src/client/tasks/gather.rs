//! Runs a task on files that are spread over nodes, and gathers the answers.
//!
//! ```text
//!   shards, in order:   0   1   2   3   4   5
//!   pulled by:          A   B   C   B   A   B        A: {0, 4}, B: {1, 3, 5}, C: {2}
//!   taken:              0 from A, 1 from B, 2 from C, 3 from B ...
//! ```
//!
//! A node pulls shards and answers them in that order. The answers are therefore merged by taking from each
//! stream in the order of shards. Answers of a node that is ahead wait on this machine while memory is free; after
//! that, the flow control window of the connection stops the node.
//!
//! If a node is lost, its unanswered shards return to the queue (`scheduler.rs`). The shard in work continues
//! from the position up to which it was taken. The same happens to the shards of a node that answers but makes
//! no progress ([`RunOptions::stall`]). No row is taken twice: an answer that reaches no further than the rows
//! already taken of its shard is a protocol error, and the node counts as lost.
//!
//! The cores of this machine may pull shards, too (`here.rs`).

mod streams;

pub use self::streams::{Streams, stream_from_each, stream_from_nodes, stream_with_help};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_kernel::{Answer, Border, Contents, Event, Next, PartRow, Portable, ResumePosition, part_rows};
use inshore_store::{Context, Reservation, release_code};
use serde_json::Value;

use super::{
    gather_report::{ANSWER_BYTES, GatherReport, RunOptions, told},
    local::{LocalThreads, PANICKED},
    run::{Answers, Run, State},
    scheduler::{AnswerOrder, Event as Happened, ShardState},
};
use crate::{DistributedFile, Error, Nodes, Result};

/// Runs a kernel on the nodes that have the files, and passes the results of their blocks to `consume`, in the
/// order of files and blocks, as [`inshore_kernel::run`] does on one machine.
///
/// With [`RunOptions::help_from`] this machine does a part of the work, if [`Portable::for_client`] provides a
/// kernel and measurements show a gain.
///
/// Memory on this machine: 3 MiB for each node for answers in flight, enforced by flow control; a quarter of
/// the remaining memory, at most 64 MiB a thread, for local work; and an eighth of the rest, at most 64 MiB a
/// node, for answers that wait for their turn.
///
/// # Errors
/// The errors of `consume`; [`Error::Missing`] as [`inshore_kernel::Error::Stream`] if no reachable node holds a part,
/// unless [`RunOptions::partial`]; [`Error::Deadline`]; [`Error::Refused`] if a node refuses the task and no
/// other node has a copy.
pub fn run_on_nodes<K: Portable>(
    nodes: &Nodes,
    job: &Context,
    kernel: &K,
    wholes: &[DistributedFile],
    options: &RunOptions,
    consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<GatherReport, K::Error>
where
    K::Error: std::error::Error + Sync + 'static,
{
    if matches!(kernel.border(), Border::Line { .. }) {
        check_lines(wholes).map_err(failed)?;
    }
    let arguments = kernel.arguments();
    let help_from = options.help_from.filter(|_| K::CAN_HELP && !wholes.is_empty());
    let order = AnswerOrder::Window(WINDOW_BYTES);
    let mut gather =
        Gather::new(nodes, job, wholes, (K::KIND, arguments.clone()), options, order).map_err(failed)?;
    gather.take_in_order();
    let Some(help_from) = help_from else {
        gather.begin_all().map_err(failed)?;
        return consume_all(gather, wholes, consume);
    };
    let lanes = Arc::new(LocalThreads::new(&gather.run, help_from));
    gather.lanes = Some(lanes.clone());
    let budgets = lanes.budgets(job);
    thread::scope(|scope| {
        gather.begin_all().map_err(failed)?;
        for budget in budgets {
            let (lanes, arguments) = (&lanes, &arguments);
            scope.spawn(move || {
                let work = AssertUnwindSafe(|| lanes.work::<K>(budget, arguments));
                if panic::catch_unwind(work).is_err() {
                    lanes.give_up(PANICKED.to_string());
                }
            });
        }
        consume_all(gather, wholes, consume)
    })
}

/// Passes the results of all pieces to `consume`, in their order.
fn consume_all<K: Portable>(
    mut gather: Gather,
    wholes: &[DistributedFile],
    mut consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<GatherReport, K::Error> {
    let mut number = 0;
    for (source, whole) in wholes.iter().enumerate() {
        let mut skipped = false;
        for _ in &whole.pieces {
            while let Some(row) = if skipped { None } else { gather.next_row(number).map_err(failed)? } {
                let (reach, part) = match row {
                    TakenRow::Part(reach, bytes) => match K::decode(&bytes) {
                        Some(part) => (reach, Ok(part)),
                        None => {
                            gather.lose_shard(number, "protocol error: an invalid part").map_err(failed)?;
                            continue;
                        }
                    },
                    TakenRow::Failed(error) => (ResumePosition::default(), Err(failed(error))),
                };
                gather.accept(number, reach);
                let was_bad = part.is_err();
                match consume(Event { source, name: &whole.title, reach, part: Some(part) })? {
                    Next::Go if !was_bad => {}
                    Next::Stop => return Ok(gather.finish()),
                    _ => {
                        skipped = true;
                        break;
                    }
                }
            }
            gather.end_of(number, skipped);
            number += 1;
        }
        if consume(Event { source, name: &whole.title, reach: ResumePosition::default(), part: None })?
            == Next::Stop
        {
            return Ok(gather.finish());
        }
    }
    gather.wait_for_ends().map_err(failed)?;
    Ok(gather.finish())
}

/// Reads a byte range of a file from nodes.
///
/// Memory: as [`run_on_nodes`], and the bytes of the range, which are not reserved.
///
/// # Errors
/// The errors are those of [`run_on_nodes`].
pub fn read_from_nodes(
    nodes: &Nodes,
    job: &Context,
    whole: &DistributedFile,
    range: Range<u64>,
    options: &RunOptions,
) -> Result<Vec<u8>> {
    let wanted = range.end - range.start;
    let came = |bytes: usize| {
        let what = format!("received {bytes} bytes, expected {wanted}");
        Error::Incomplete { name: whole.title.clone(), what }
    };
    let mut bytes = Vec::with_capacity(wanted as usize);
    let read = run_on_nodes(nodes, job, &Contents, &[whole.slice(range)], options, |event| {
        bytes.extend(event.part.transpose()?.unwrap_or_default());
        match bytes.len() as u64 > wanted {
            true => Err(inshore_kernel::Error::Stream(Box::new(came(bytes.len())))),
            false => Ok(Next::Go),
        }
    });
    read.map_err(|error: inshore_kernel::Error| match error {
        inshore_kernel::Error::Store(error) => Error::Store(error),
        inshore_kernel::Error::Stream(failure) => match failure.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::Incomplete { name: whole.title.clone(), what: other.to_string() },
        },
        other => Error::Incomplete { name: whole.title.clone(), what: other.to_string() },
    })?;
    match bytes.len() as u64 == wanted {
        true => Ok(bytes),
        false => Err(came(bytes.len())),
    }
}

/// Refuses files whose pieces do not end with a line, for kernels that work on lines.
fn check_lines(wholes: &[DistributedFile]) -> Result<()> {
    if let Some(whole) = wholes.iter().find(|whole| whole.is_grouped) {
        return Err(Error::RowGroups { name: whole.title.clone() });
    }
    let cut =
        |whole: &DistributedFile| whole.record_bytes.map(|record_bytes| (whole.title.clone(), record_bytes));
    match wholes.iter().find_map(cut) {
        Some((name, record_bytes)) => Err(Error::NoLines { name, record_bytes }),
        None => Ok(()),
    }
}

/// Converts an error of nodes to the error of a kernel.
fn failed<E: From<inshore_kernel::Error>>(error: Error) -> E {
    match error {
        Error::Store(error) => inshore_kernel::Error::Store(error).into(),
        error => inshore_kernel::Error::Stream(Box::new(error)).into(),
    }
}

impl Nodes {
    /// Returns the memory in bytes on this machine for answers in flight of a job on these nodes.
    pub fn answer_bytes(&self) -> u64 {
        self.0.nodes.len() as u64 * ANSWER_BYTES
    }
}

/// A row that was taken.
pub(crate) enum TakenRow {
    Part(ResumePosition, Vec<u8>),
    Failed(Error),
}

/// A message of an attempt.
enum Message {
    Batch(RecordBatch),
    Done,
    Failed(Error),
}

/// Takes the answers of a [`Run`].
#[derive(Debug)]
pub(crate) struct Gather {
    pub(crate) run: Arc<Run>,
    /// The threads that do a part of the work on this machine.
    lanes: Option<Arc<LocalThreads>>,
    streams: BTreeMap<usize, Answers>,
    /// The rows of each attempt that arrived and were not taken.
    rows: BTreeMap<usize, VecDeque<PartRow>>,
    passed: BTreeMap<usize, SkippedRows>,
    /// The beginning of a part that comes in several rows. `begun_by` is the attempt that sent the rows.
    beginning: Vec<u8>,
    begun_by: usize,
    /// The memory for answers in flight.
    memory: Reservation,
    /// The memory for answers that wait for their turn.
    ahead: Option<Reservation>,
}

/// The window in bytes after the first unanswered shard within which shards are handed out: the maximum lead of
/// a fast node over the slowest node. Answers ahead use only the memory reserved for each node.
const WINDOW_BYTES: u64 = 4 << 30;
/// The maximum bytes of the result of a block: a block in which every byte is a matching line has a result of
/// 32 times its size.
const PART_BYTES_MAX: usize = 256 << 20;
/// The maximum bytes of the answers of a node that wait for their turn: the results of a few pieces.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// The interval at which a waiting job checks for cancellation and the deadline.
const LOOK: Duration = Duration::from_millis(50);

/// The position in an unwanted shard up to which an attempt has sent rows.
#[derive(Debug, Default)]
struct SkippedRows {
    piece: u64,
    /// The bytes of the shard that the rows cover, from the start of the attempt. `is_over` is true at the end
    /// of the shard.
    reach: Option<u64>,
    is_over: bool,
    /// The bytes of a part that comes in several rows.
    beginning: usize,
}

impl SkippedRows {
    /// Returns true if a row reaches further than the rows before, within a piece of `piece_bytes` bytes. A
    /// stream of rows without progress could be endless.
    fn goes_on(&mut self, row: &PartRow, piece_bytes: u64) -> bool {
        if row.number != self.piece {
            let is_later = row.number > self.piece;
            *self = SkippedRows { piece: row.number, ..SkippedRows::default() };
            if !is_later {
                return false;
            }
        }
        match &row.answer {
            _ if self.is_over => false,
            Answer::Beginning(bytes) => {
                self.beginning += bytes.len();
                !bytes.is_empty() && self.beginning <= PART_BYTES_MAX
            }
            Answer::Part(_) => {
                let reach = row.reach.bytes;
                let is_further = self.reach.is_none_or(|before| before < reach) && reach <= piece_bytes;
                (self.reach, self.beginning) = (Some(reach), 0);
                is_further
            }
            Answer::End | Answer::Failed(_) => {
                self.is_over = true;
                true
            }
        }
    }
}

impl Gather {
    pub(crate) fn new(
        nodes: &Nodes,
        job: &Context,
        wholes: &[DistributedFile],
        work: (&'static str, Value),
        options: &RunOptions,
        order: AnswerOrder,
    ) -> Result<Gather> {
        let holders = wholes.iter().flat_map(|whole| &whole.pieces).flat_map(|piece| &piece.holders);
        let used = holders.map(|holder| holder.node).collect::<BTreeSet<_>>().len().max(1);
        let memory = job.budget().reserve(used as u64 * ANSWER_BYTES, "received answers of nodes")?;
        let run = Run::new(nodes, job, wholes, work, options, order);
        run.state().ahead_nodes = used;
        Ok(Gather {
            run,
            lanes: None,
            streams: BTreeMap::new(),
            rows: BTreeMap::new(),
            passed: BTreeMap::new(),
            beginning: Vec::new(),
            begun_by: usize::MAX,
            memory,
            ahead: None,
        })
    }

    /// Reserves memory for answers that wait for their turn: without this memory a node that is ahead has to
    /// pause. The job also works without the reservation.
    fn take_in_order(&mut self) {
        let mut state = self.run.state();
        let (budget, nodes) = (self.run.job.budget(), state.ahead_nodes as u64);
        let each = (budget.free_bytes() / 8 / nodes).min(AHEAD_BYTES_MAX);
        if let Ok(memory) = budget.reserve(nodes * each, "buffered answers") {
            state.ahead_bytes = each;
            self.ahead = Some(memory);
        }
    }

    pub(crate) fn begin_all(&mut self) -> Result<()> {
        self.run.start();
        self.check_missing()?;
        // The code for arguments, connections and lookups is large, and answers do not need it.
        release_code();
        Ok(())
    }

    /// Fails if no remaining node has a shard, unless a partial answer is allowed.
    fn check_missing(&self) -> Result<()> {
        let mut state = self.run.state();
        if self.run.options.partial {
            return Ok(());
        }
        let missing = self.run.missing(&state);
        if missing.is_empty() {
            return Ok(());
        }
        // A refusal is more specific than a missing shard.
        Err(state.refusal.take().unwrap_or_else(|| Error::Missing { what: told(&missing) }))
    }

    fn state_of(&self, shard: usize) -> ShardState {
        self.run.state().scheduler.state(shard)
    }

    fn lost(&self, attempt: usize, what: String) -> Error {
        let puller = self.run.state().scheduler.puller(attempt);
        Error::Lost { node: self.run.address(puller).to_string(), what }
    }

    /// Drops the remaining data of an attempt that is over.
    fn forget(&mut self, attempt: usize) {
        self.rows.remove(&attempt);
        self.streams.remove(&attempt);
        self.passed.remove(&attempt);
        if self.begun_by == attempt {
            self.beginning.clear();
        }
    }

    /// Returns the next message of an attempt, or `None` if no message came within `wait`.
    fn receive_within(&mut self, attempt: usize, wait: Duration) -> Result<Option<Message>> {
        let run = self.run.clone();
        // The deadline comes first, since its error names the unfinished work: the deadline also cancels the
        // job.
        run.nodes.0.check(|| self.unfinished(attempt))?;
        run.job.check_cancelled()?;
        {
            let mut state = run.state();
            // A node that takes over the work of another node may answer in two streams at once.
            let bytes = run.answering(&state) as u64 * ANSWER_BYTES;
            if bytes > self.memory.bytes()
                && let Err(error) = self.memory.resize(bytes)
            {
                // Many attempts after a refusal may take more memory than there is: the refusal is the cause.
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
            run.tell(Happened::Waited { attempt });
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

    /// Describes the work that is not done while the client waits for an attempt.
    fn unfinished(&self, attempt: usize) -> String {
        let state = self.run.state();
        let puller = state.scheduler.puller(attempt);
        let why = match puller.node() {
            Some(_) => format!("node {} has not answered", self.run.address(puller)),
            None => "this machine did not finish it".to_string(),
        };
        self.open(&state, why)
    }

    fn open(&self, state: &State, why: String) -> String {
        let is_open = |shard: &usize| {
            matches!(state.scheduler.state(*shard), ShardState::Queued | ShardState::Out(_))
                && !state.scheduler.is_skipped(*shard)
        };
        let rest = |shard: usize| self.run.shards[shard].rest(state.reach[shard], why.clone());
        match (0..self.run.shards.len()).filter(is_open).map(rest).collect::<Vec<_>>() {
            open if open.is_empty() => why,
            open => told(&open),
        }
    }

    /// Waits until a puller has a queued shard.
    fn wait_for_puller(&self, number: usize) -> Result<()> {
        let run = &self.run;
        run.nodes.0.check(|| {
            let state = run.state();
            let holders = run.shards[number].piece.holders.iter();
            let nodes = holders.map(|holder| run.nodes.0.nodes[holder.node].address.clone());
            let nodes = nodes.collect::<Vec<_>>().join(", ");
            self.open(&state, format!("node {nodes} has not answered"))
        })?;
        run.job.check_cancelled()?;
        let mut state = run.state();
        run.tell_to(&mut state, Happened::Starved { shard: number });
        if state.scheduler.state(number) == ShardState::Queued {
            run.wait(state);
        }
        Ok(())
    }

    /// Returns the next row of a shard, or `None` if the shard is answered or missing.
    pub(crate) fn next_row(&mut self, number: usize) -> Result<Option<TakenRow>> {
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

    /// Receives rows of skipped shards while the next shard is in the queue, and returns false if no attempt still
    /// answers a skipped shard: a node pulls its next shard only after the client received the rows before it.
    fn receive_skipped(&mut self, number: usize) -> Result<bool> {
        let attempts: Vec<usize> = {
            let mut state = self.run.state();
            self.run.tell_to(&mut state, Happened::Starved { shard: number });
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

    /// Waits for a short time for a message of an attempt.
    fn receive(&mut self, attempt: usize) -> Result<()> {
        let Some(message) = self.receive_within(attempt, LOOK)? else {
            // Attempts that were cancelled meanwhile hold memory.
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
                self.run.tell(Happened::Completed { attempt, shards: Vec::new() });
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

    /// Skips a row of a shard whose rest is not needed; such rows must also come to an end.
    fn pass_over(&mut self, attempt: usize, row: &PartRow) -> Result<()> {
        let shard = row.number as usize;
        let bytes = self.run.shards[shard].piece.bytes;
        if !self.passed.entry(attempt).or_default().goes_on(row, bytes) {
            return self.lose(
                attempt,
                "protocol error: an answer for a shard that was answered already".to_string(),
                true,
            );
        }
        if matches!(row.answer, Answer::End | Answer::Failed(_)) {
            self.run.tell(Happened::Answered { attempt, shard });
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
                    // The beginning came from another attempt.
                    part.clear();
                }
                if part.is_empty() {
                    part = bytes;
                } else {
                    part.extend(bytes);
                }
                return Ok(Some(TakenRow::Part(reach, part)));
            }
            Answer::End => self.run.tell(Happened::Answered { attempt, shard: number }),
            Answer::Failed(what) => return self.unreadable(attempt, number, what),
        }
        Ok(None)
    }

    /// Records that a node cannot read a shard: other nodes are asked.
    fn unreadable(&mut self, attempt: usize, shard: usize, what: String) -> Result<Option<TakenRow>> {
        let puller = self.run.state().scheduler.puller(attempt);
        if puller.node().is_none() {
            self.lose(attempt, what, false)?;
            return Ok(None);
        }
        let node = self.run.address(puller).to_string();
        let why = format!("node {node}: {what}");
        self.run.tell(Happened::Unreadable { attempt, shard, why });
        if self.state_of(shard) != ShardState::Missing {
            return Ok(None);
        }
        self.run.state().scheduler.forgive(shard);
        Ok(Some(TakenRow::Failed(Error::Refused { node, what })))
    }

    /// Records the position up to which a shard was taken.
    pub(crate) fn accept(&mut self, number: usize, reach: ResumePosition) {
        let mut state = self.run.state();
        if reach.bytes > state.reach[number].bytes {
            state.reach[number] = reach;
            if let ShardState::Out(attempt) = state.scheduler.state(number) {
                self.run.tell_to(&mut state, Happened::Advanced { attempt, shard: number });
            }
        }
    }

    /// Records that the rest of a shard is not needed.
    fn end_of(&mut self, number: usize, is_skipped: bool) {
        self.beginning.clear();
        if is_skipped {
            self.run.tell(Happened::Skipped { shard: number });
        }
    }

    /// Gives up the attempt that has a shard.
    fn lose_shard(&mut self, number: usize, why: &str) -> Result<()> {
        match self.state_of(number) {
            ShardState::Out(attempt) => self.lose(attempt, why.to_string(), true),
            _ => Ok(()),
        }
    }

    /// Gives up an attempt, and its node too if `is_gone`: its unanswered shards go to other pullers.
    fn lose(&mut self, attempt: usize, why: String, is_gone: bool) -> Result<()> {
        self.forget(attempt);
        let puller = {
            let mut state = self.run.state();
            // An earlier refusal does not explain the shards that are missing at this point.
            state.refusal.take_if(|refusal| refusal.to_string() != why);
            state.scheduler.puller(attempt)
        };
        let why = match puller.node() {
            Some(node) => self.run.named(node, &why),
            None => {
                if let Some(lanes) = &self.lanes {
                    lanes.give_up(why.clone());
                }
                why
            }
        };
        self.run.tell(Happened::Failed { attempt, why, is_gone });
        self.check_missing()
    }

    /// Waits for the ends of all tasks, which report their costs. A task with unwanted answers may run for long
    /// and is stopped, as is a task that does not end in time.
    pub(crate) fn wait_for_ends(&mut self) -> Result<()> {
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
                    // All wanted rows of the task have arrived.
                    Ok(Some(_)) | Err(Error::Deadline { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> GatherReport {
        self.run.stop();
        let missing = self.run.missing(&self.run.state());
        let mut gathered = GatherReport { nodes: self.run.costs(), missing, here: None };
        if let Some(lanes) = self.lanes.take() {
            lanes.tell_costs(&mut gathered);
        }
        gathered
    }
}

impl Drop for Gather {
    /// Closes the streams, which stops the tasks.
    fn drop(&mut self) {
        self.run.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_passed_over_come_to_an_end() {
        let row =
            |number, bytes, answer| PartRow { number, reach: ResumePosition { bytes, lines: 0 }, answer };
        let part = |number, bytes| row(number, bytes, Answer::Part(Vec::new()));
        let beginning = |bytes| row(7, 0, Answer::Beginning(vec![0; bytes]));
        let goes_on = |rows: Vec<PartRow>| {
            let mut passed = SkippedRows::default();
            rows.iter().all(|row| passed.goes_on(row, 100))
        };
        let end = || row(4, 0, Answer::End);
        assert!(goes_on(vec![part(4, 10), part(4, 100), end(), beginning(5), beginning(5), part(7, 1)]));
        assert!(goes_on(vec![end(), part(5, 100), row(5, 0, Answer::Failed("x".to_string())), part(6, 1)]));
        for bad in [
            vec![part(4, 10), part(4, 10)],
            vec![part(4, 10), part(4, 9)],
            vec![part(4, 101)],
            vec![part(4, 10), part(3, 11)],
            vec![end(), end()],
            vec![end(), part(4, 10)],
            vec![beginning(0)],
            vec![beginning(PART_BYTES_MAX), beginning(1)],
        ] {
            assert!(!goes_on(bad));
        }
    }
}
