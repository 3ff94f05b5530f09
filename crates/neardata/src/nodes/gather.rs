//! Asks nodes to work on files that are spread over them, and gathers what they answer.
//!
//! ```text
//!   shards, in order:   0   1   2   3   4   5
//!   pulled by:          A   B   C   B   A   B        A: {0, 4}, B: {1, 3, 5}, C: {2}
//!   taken:              0 from A, 1 from B, 2 from C, 3 from B ...
//! ```
//!
//! A node pulls shards and answers them in that order, so the answers are merged by taking from each stream when it is its turn.
//! Answers of a node that is ahead wait here, as far as there is memory to spare; behind that its connection's window
//! stops it.
//!
//! Where a node is lost, what it has not answered goes back to the queue (`scheduler.rs`), the shard that was being taken from the
//! place on up to which it was taken. So does what a node has that is there but gets on no further ([`RunOptions::stall`]). Nothing is
//! taken twice: an answer that does not reach further than what was taken of its shard is one that no node should give, and the node
//! counts as lost.
//!
//! The cores of this machine may pull, too (`here.rs`).

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
use inshore_store::{Context, Reservation, release_code};
use serde_json::Value;

use super::{
    Error, Nodes, Result, Whole,
    gathered::{ANSWER_BYTES, Gathered, RunOptions, told},
    here::{Lanes, PANICKED},
    run::{Answers, Run, State},
    scheduler::{Event as Happened, Order, ShardState},
};
use crate::{Answer, Border, Contents, Event, Next, PartRow, Portable, Reach, part_rows};

/// Runs a kernel on the nodes that have the files, and gives what came of their blocks to `consume`, in the order of files
/// and blocks, as [`crate::run`] does here.
///
/// With [`RunOptions::help_from`] this machine does a part, where [`Portable::for_client`] has a kernel for that and it is measured to be
/// faster.
///
/// Memory here: 3 MiB for each node, for answers on their way, which flow control holds; a quarter of what is free then, of at most
/// 64 MiB a thread, for what is done here; and an eighth of what is left, of at most 64 MiB a node, for answers that wait for their
/// turn.
///
/// # Errors
/// What `consume` gives; [`Error::Missing`] as [`crate::Error::Stream`] where a part is on no node that answers, unless
/// [`RunOptions::partial`]; [`Error::Deadline`]; [`Error::Refused`] where a node refuses the task and no other has a copy.
pub fn run_on_nodes<K: Portable>(
    nodes: &Nodes,
    job: &Context,
    kernel: &K,
    wholes: &[Whole],
    options: &RunOptions,
    consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<Gathered, K::Error>
where
    K::Error: std::error::Error + Sync + 'static,
{
    if matches!(kernel.border(), Border::Line { .. }) {
        check_lines(wholes).map_err(failed)?;
    }
    let arguments = kernel.arguments();
    let help_from = options.help_from.filter(|_| K::CAN_HELP && !wholes.is_empty());
    let order = Order::Window(WINDOW_BYTES);
    let mut gather =
        Gather::new(nodes, job, wholes, (K::KIND, arguments.clone()), options, order).map_err(failed)?;
    gather.take_in_order();
    let Some(help_from) = help_from else {
        gather.begin_all().map_err(failed)?;
        return consume_all(gather, wholes, consume);
    };
    let lanes = Arc::new(Lanes::new(&gather.run, help_from));
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

/// Gives what comes of all pieces to `consume`, in their order.
fn consume_all<K: Portable>(
    mut gather: Gather,
    wholes: &[Whole],
    mut consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<Gathered, K::Error> {
    let mut number = 0;
    for (source, whole) in wholes.iter().enumerate() {
        let mut skipped = false;
        for _ in &whole.pieces {
            while let Some(row) = if skipped { None } else { gather.next_row(number).map_err(failed)? } {
                let (reach, part) = match row {
                    Taken::Part(reach, bytes) => match K::decode(&bytes) {
                        Some(part) => (reach, Ok(part)),
                        None => {
                            gather.lose_shard(number, "it answers a part that is none").map_err(failed)?;
                            continue;
                        }
                    },
                    Taken::Failed(error) => (Reach::default(), Err(failed(error))),
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
        if consume(Event { source, name: &whole.title, reach: Reach::default(), part: None })? == Next::Stop {
            return Ok(gather.finish());
        }
    }
    gather.wait_for_ends().map_err(failed)?;
    Ok(gather.finish())
}

/// The bytes of a part of a file, as many as are asked for.
///
/// Memory: as [`run_on_nodes`], and the bytes, which are not counted.
///
/// # Errors
/// As [`run_on_nodes`].
pub fn read_from_nodes(
    nodes: &Nodes,
    job: &Context,
    whole: &Whole,
    range: Range<u64>,
    options: &RunOptions,
) -> Result<Vec<u8>> {
    let wanted = range.end - range.start;
    let came = |bytes: usize| {
        let what = format!("{bytes} bytes came of {wanted}");
        Error::Incomplete { name: whole.title.clone(), what }
    };
    let mut bytes = Vec::with_capacity(wanted as usize);
    let read = run_on_nodes(nodes, job, &Contents, &[whole.slice(range)], options, |event| {
        bytes.extend(event.part.transpose()?.unwrap_or_default());
        match bytes.len() as u64 > wanted {
            true => Err(crate::Error::Stream(Box::new(came(bytes.len())))),
            false => Ok(Next::Go),
        }
    });
    read.map_err(|error: crate::Error| match error {
        crate::Error::Store(error) => Error::Store(error),
        crate::Error::Stream(failure) => match failure.downcast::<Error>() {
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

/// Refuses files whose pieces do not end with a line, for work on lines.
fn check_lines(wholes: &[Whole]) -> Result<()> {
    if let Some(whole) = wholes.iter().find(|whole| whole.is_grouped) {
        return Err(Error::RowGroups { name: whole.title.clone() });
    }
    let cut = |whole: &Whole| whole.record_bytes.map(|record_bytes| (whole.title.clone(), record_bytes));
    match wholes.iter().find_map(cut) {
        Some((name, record_bytes)) => Err(Error::NoLines { name, record_bytes }),
        None => Ok(()),
    }
}

/// An error of nodes as the error of a kernel.
fn failed<E: From<crate::Error>>(error: Error) -> E {
    match error {
        Error::Store(error) => crate::Error::Store(error).into(),
        error => crate::Error::Stream(Box::new(error)).into(),
    }
}

impl Nodes {
    /// Memory here that the answers of a job on these nodes may take while they are on their way.
    pub fn answer_bytes(&self) -> u64 {
        self.0.nodes.len() as u64 * ANSWER_BYTES
    }
}

/// A row that was taken.
pub(super) enum Taken {
    Part(Reach, Vec<u8>),
    Failed(Error),
}

/// What an attempt says.
enum Message {
    Batch(RecordBatch),
    Done,
    Failed(Error),
}

/// Takes what a [`Run`] brings.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) run: Arc<Run>,
    /// The threads that do a part of it on this machine.
    lanes: Option<Arc<Lanes>>,
    streams: BTreeMap<usize, Answers>,
    /// Rows that came and were not taken, of each attempt.
    rows: BTreeMap<usize, VecDeque<PartRow>>,
    passed: BTreeMap<usize, Passed>,
    /// The beginning of a part that comes in several rows, and the attempt that gave it.
    beginning: Vec<u8>,
    begun_by: usize,
    /// For answers on their way.
    memory: Reservation,
    /// For those that wait for their turn.
    ahead: Option<Reservation>,
}

/// Shards are handed out so far behind the first one that is not answered: what nodes that are faster than the slowest may be ahead.
/// Answers take no memory for that beside what is set aside for each node.
const WINDOW_BYTES: u64 = 4 << 30;
/// Bytes of what comes of a block, at most: a block where everything matches, with a line for each byte, is 32 times its size.
const PART_BYTES_MAX: usize = 256 << 20;
/// Answers of a node that wait for their turn, at most: what comes of a few pieces.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// A waiting job looks so often whether it goes on.
const LOOK: Duration = Duration::from_millis(50);

/// How far rows go that an attempt gives of a shard of which nothing more is wanted.
#[derive(Debug, Default)]
struct Passed {
    piece: u64,
    /// Bytes of the shard up to where they go, from where the attempt began, and whether it is at its end.
    reach: Option<u64>,
    is_over: bool,
    /// Bytes of a part that comes in several rows.
    beginning: usize,
}

impl Passed {
    /// Whether a row goes further than those before, within a piece of so many bytes: what does not is without end.
    fn goes_on(&mut self, row: &PartRow, piece_bytes: u64) -> bool {
        if row.number != self.piece {
            let is_later = row.number > self.piece;
            *self = Passed { piece: row.number, ..Passed::default() };
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
    pub(super) fn new(
        nodes: &Nodes,
        job: &Context,
        wholes: &[Whole],
        work: (&'static str, Value),
        options: &RunOptions,
        order: Order,
    ) -> Result<Gather> {
        let holders = wholes.iter().flat_map(|whole| &whole.pieces).flat_map(|piece| &piece.holders);
        let used = holders.map(|holder| holder.node).collect::<BTreeSet<_>>().len().max(1);
        let memory = job.budget().reserve(used as u64 * ANSWER_BYTES, "answers of nodes on their way")?;
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

    /// Answers are taken in the order of shards: nodes that are ahead need room here, or they stand still. It goes without, too.
    fn take_in_order(&mut self) {
        let mut state = self.run.state();
        let (budget, nodes) = (self.run.job.budget(), state.ahead_nodes as u64);
        let each = (budget.free_bytes() / 8 / nodes).min(AHEAD_BYTES_MAX);
        if let Ok(memory) = budget.reserve(nodes * each, "answers that wait for their turn") {
            state.ahead_bytes = each;
            self.ahead = Some(memory);
        }
    }

    pub(super) fn begin_all(&mut self) -> Result<()> {
        self.run.start();
        self.check_missing()?;
        // Arguments, connections and lookups ran through much code, which answers do not need.
        release_code();
        Ok(())
    }

    /// Fails where a shard is on no node that is left, unless a partial answer will do.
    fn check_missing(&self) -> Result<()> {
        let mut state = self.run.state();
        if self.run.options.partial {
            return Ok(());
        }
        let missing = self.run.missing(&state);
        if missing.is_empty() {
            return Ok(());
        }
        // A refusal says more than that something is missing.
        Err(state.refusal.take().unwrap_or_else(|| Error::Missing { what: told(&missing) }))
    }

    fn state_of(&self, shard: usize) -> ShardState {
        self.run.state().scheduler.state(shard)
    }

    fn lost(&self, attempt: usize, what: String) -> Error {
        let puller = self.run.state().scheduler.puller(attempt);
        Error::Lost { node: self.run.address(puller).to_string(), what }
    }

    /// Drops what is left of attempts that are over.
    fn forget(&mut self, attempt: usize) {
        self.rows.remove(&attempt);
        self.streams.remove(&attempt);
        self.passed.remove(&attempt);
        if self.begun_by == attempt {
            self.beginning.clear();
        }
    }

    /// What an attempt says within some time; `None` where that is nothing.
    fn receive_within(&mut self, attempt: usize, wait: Duration) -> Result<Option<Message>> {
        let run = self.run.clone();
        // The deadline first, which says what was not done: the job is stopped by the same.
        run.nodes.0.check(|| self.unfinished(attempt))?;
        run.job.check_cancelled()?;
        {
            let mut state = run.state();
            // A node that takes another's work over may answer twice at once.
            let bytes = run.answering(&state) as u64 * ANSWER_BYTES;
            if bytes > self.memory.bytes() {
                self.memory.resize(bytes)?;
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
        // An attempt that was cancelled meanwhile ends early, which is no fault of its node.
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
                Message::Failed(self.lost(attempt, "its answer ended early".to_string()))
            }
        }))
    }

    /// What is not done while an attempt is waited for.
    fn unfinished(&self, attempt: usize) -> String {
        let state = self.run.state();
        let puller = state.scheduler.puller(attempt);
        let why = match puller.node() {
            Some(_) => format!("node {} has not answered", self.run.address(puller)),
            None => "this machine was not done with it".to_string(),
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

    /// Waits until somebody has a shard that is queued.
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

    /// The next row of a shard; `None` where it is answered, or missing.
    pub(super) fn next_row(&mut self, number: usize) -> Result<Option<Taken>> {
        loop {
            let attempt = match self.state_of(number) {
                ShardState::Answered => return Ok(None),
                ShardState::Missing => {
                    self.check_missing()?;
                    return Ok(None);
                }
                ShardState::Queued => {
                    self.wait_for_puller(number)?;
                    continue;
                }
                ShardState::Out(attempt) => attempt,
            };
            let Some(row) = self.rows.entry(attempt).or_default().pop_front() else {
                self.receive(attempt)?;
                continue;
            };
            let next = self.run.state().scheduler.next_of(attempt);
            if next.is_none_or(|next| row.number != next as u64) {
                let is_over = row.number < number as u64;
                let why = if is_over { "it answers again what is over" } else { "it answers out of turn" };
                self.lose(attempt, why.to_string(), true)?;
            } else if row.number != number as u64 {
                self.pass_over(attempt, &row)?;
            } else if let Some(taken) = self.take_row(attempt, number, row)? {
                return Ok(Some(taken));
            }
        }
    }

    /// Waits a moment for what an attempt says.
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
                None => self.lose(attempt, "it answers columns that are none of a part".to_string(), true)?,
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

    /// A row of a shard of which nothing more is wanted, which comes to an end all the same.
    fn pass_over(&mut self, attempt: usize, row: &PartRow) -> Result<()> {
        let shard = row.number as usize;
        let bytes = self.run.shards[shard].piece.bytes;
        if !self.passed.entry(attempt).or_default().goes_on(row, bytes) {
            return self.lose(attempt, "it answers again what is over".to_string(), true);
        }
        if matches!(row.answer, Answer::End | Answer::Failed(_)) {
            self.run.tell(Happened::Answered { attempt, shard });
        }
        Ok(())
    }

    fn take_row(&mut self, attempt: usize, number: usize, row: PartRow) -> Result<Option<Taken>> {
        let (from, before) = {
            let state = self.run.state();
            (state.from[number], state.reach[number])
        };
        let reach = Reach {
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
                self.lose(attempt, "it answers the same twice, or more than there is".to_string(), true)?;
            }
            Answer::Beginning(bytes) if bytes.is_empty() => {
                self.lose(attempt, "it begins a part with nothing".to_string(), true)?;
            }
            Answer::Beginning(bytes) => {
                if self.begun_by != attempt {
                    self.beginning.clear();
                    self.begun_by = attempt;
                }
                if self.beginning.len() + bytes.len() > PART_BYTES_MAX {
                    self.lose(attempt, "it answers a part that is larger than any".to_string(), true)?;
                } else {
                    self.beginning.extend(bytes);
                }
            }
            Answer::Part(bytes) => {
                let mut part = std::mem::take(&mut self.beginning);
                if self.begun_by != attempt {
                    // The beginning was another attempt's.
                    part.clear();
                }
                if part.is_empty() {
                    part = bytes;
                } else {
                    part.extend(bytes);
                }
                return Ok(Some(Taken::Part(reach, part)));
            }
            Answer::End => self.run.tell(Happened::Answered { attempt, shard: number }),
            Answer::Failed(what) => return self.unreadable(attempt, number, what),
        }
        Ok(None)
    }

    /// A node cannot read a shard: it goes on with others.
    fn unreadable(&mut self, attempt: usize, shard: usize, what: String) -> Result<Option<Taken>> {
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
        Ok(Some(Taken::Failed(Error::Refused { node, what })))
    }

    /// A shard was taken so far.
    pub(super) fn accept(&mut self, number: usize, reach: Reach) {
        let mut state = self.run.state();
        if reach.bytes > state.reach[number].bytes {
            state.reach[number] = reach;
            if let ShardState::Out(attempt) = state.scheduler.state(number) {
                self.run.tell_to(&mut state, Happened::Advanced { attempt, shard: number });
            }
        }
    }

    /// Nothing more of a shard is wanted.
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

    /// Gives up an attempt, and its node with it: its unanswered shards go to others.
    fn lose(&mut self, attempt: usize, why: String, is_gone: bool) -> Result<()> {
        self.forget(attempt);
        let puller = {
            let mut state = self.run.state();
            // An earlier refusal is not why something is missing now.
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

    /// Waits for the ends of all tasks, which say what they cost. One of whose answers not all are wanted may be at work for long: it is
    /// stopped. So is one that does not come to its end.
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
                    // All that was wanted of it is here.
                    Ok(Some(_)) | Err(Error::Deadline { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Gathered {
        self.run.stop();
        let missing = self.run.missing(&self.run.state());
        let mut gathered = Gathered { nodes: self.run.costs(), missing, here: None };
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
        let row = |number, bytes, answer| PartRow { number, reach: Reach { bytes, lines: 0 }, answer };
        let part = |number, bytes| row(number, bytes, Answer::Part(Vec::new()));
        let beginning = |bytes| row(7, 0, Answer::Beginning(vec![0; bytes]));
        let goes_on = |rows: Vec<PartRow>| {
            let mut passed = Passed::default();
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
