//! Asks nodes to work on files that are spread over them, and gathers what they answer.
//!
//! ```text
//!   pieces, in order:   0   1   2   3   4   5
//!   on nodes:           A   B   C   A   B   C        one task each: A {0, 3}, B {1, 4}, C {2, 5}
//!   consumed:           0 from A, 1 from B, 2 from C, 3 from A ...
//! ```
//!
//! Each node works through its pieces in their order and answers in it, so the answers are merged by taking from each stream
//! when it is its turn. What a node that is ahead has answered waits here, as far as there is memory to spare; behind that its
//! connection's window stops it.
//!
//! Where a node is lost, its unfinished pieces go to others that have copies, the one that was being read from the place
//! on up to which it was consumed. So do those of a node that is there but gets on no further ([`RunOptions::stall`]).
//! Nothing is consumed twice: an answer that does not reach further than what was consumed of its piece is one that no node
//! should give, and the node counts as lost.
//!
//! The cores of this machine may do some pieces that nodes have not begun (`here.rs`): those are attempts like any others.

mod streams;

pub use self::streams::{Streams, stream_from_each, stream_from_nodes, stream_with_help};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_store::{Context, Reservation, Store, release_code};
use serde::Serialize;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Error, Nodes, Result, Whole,
    client::STREAM_BYTES,
    here::{Held, HelpKind, Here, HereCost, PANICKED, Stops, TakenOver},
    protocol::{PieceRequest, TakeBack, TaskDone, TaskRequest, VERSION},
    pump::{LATE, Outlet, Told, Turn, pump, queue},
};
use crate::{Answer, Border, Contents, Event, Next, PartRow, Portable, Reach, part_rows};

/// So many times tasks that were set aside are asked for again while nothing comes.
const SET_ASIDE_MAX: usize = 64;

/// How nodes are asked.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Whether an answer without what lost nodes have will do.
    pub partial: bool,
    /// Memory of the task on each node; the node's habit where it is not said.
    pub node_memory_bytes: Option<u64>,
    /// A node whose task gets on no further for so long is left: pieces that others have go to these. It is waited for where no
    /// other has them.
    pub stall: Duration,
    /// This machine's own cores do a part of the work, where the kernel allows that and it is measured to be faster: once a node has so
    /// much before it that it has not begun. None: they never do.
    pub help_from: Option<Duration>,
    /// The store here for such a part of the work as may have to be kept on flash (sorting, counting words and k-mers). None: this
    /// machine leaves that to nodes.
    pub help_on: Option<Store>,
}

impl Default for RunOptions {
    /// All or nothing, the nodes' habit of memory, half a minute without progress, with help of this machine where no store is needed.
    fn default() -> Self {
        RunOptions {
            partial: false,
            node_memory_bytes: None,
            stall: Duration::from_secs(30),
            help_from: Some(Duration::from_secs(2)),
            help_on: None,
        }
    }
}

/// What a job on nodes cost, and what it lacks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gathered {
    /// What each node did.
    pub nodes: Vec<NodeCost>,
    /// What no node that answers has; empty unless a partial answer will do.
    pub missing: Vec<Missing>,
    /// What this machine did of it, where it might have done something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<HereCost>,
}

/// What a node did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeCost {
    /// Its address.
    pub node: String,
    /// Tasks that it was asked to do.
    pub tasks: u64,
    /// Bytes that it read from its devices, near the data.
    pub bytes_read: u64,
    /// Bytes that it sent here.
    pub bytes_moved: u64,
    /// CPU time that it took.
    pub cpu_seconds: f64,
    /// Time that it worked.
    pub seconds: f64,
    /// Time that the task waited on it before.
    pub queued_seconds: f64,
    /// Why it was given up, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// A part of a file that was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The file.
    pub title: String,
    /// Where the part begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// Which nodes should have it, and what is with them.
    pub why: String,
}

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
    let mut gather = Gather::new(nodes, job, wholes, K::KIND, arguments.clone(), options).map_err(failed)?;
    let Some(help_from) = help_from else {
        gather.take_in_order();
        gather.begin_all().map_err(failed)?;
        return consume_all(gather, wholes, consume);
    };
    let here = Arc::new(Here::new(nodes, wholes, options, help_from, HelpKind::Pieces));
    gather.here = Some(here.clone());
    let lanes = here.lanes(job);
    gather.take_in_order();
    thread::scope(|scope| {
        let _stops = Stops(here.clone());
        gather.begin_all().map_err(failed)?;
        for (lane, budget) in lanes.into_iter().enumerate() {
            let (here, arguments) = (&here, &arguments);
            scope.spawn(move || {
                let work = AssertUnwindSafe(|| here.work::<K>(lane, budget, arguments));
                if panic::catch_unwind(work).is_err() {
                    here.give_up(PANICKED.to_string());
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
                            gather
                                .lose(number, "it answers a part that is none".to_string())
                                .map_err(failed)?;
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

impl Gathered {
    /// Adds what another job cost.
    pub fn add(&mut self, other: Gathered) {
        for cost in other.nodes {
            let Some(own) = self.nodes.iter_mut().find(|own| own.node == cost.node) else {
                self.nodes.push(cost);
                continue;
            };
            own.tasks += cost.tasks;
            own.bytes_read += cost.bytes_read;
            own.bytes_moved += cost.bytes_moved;
            own.cpu_seconds += cost.cpu_seconds;
            own.seconds += cost.seconds;
            own.queued_seconds += cost.queued_seconds;
            own.lost = own.lost.take().or(cost.lost);
        }
        // What was asked for twice is missing once.
        let place = |missing: &Missing| (missing.title.clone(), missing.offset);
        let mut known: BTreeSet<(String, u64)> = self.missing.iter().map(place).collect();
        self.missing.extend(other.missing.into_iter().filter(|missing| known.insert(place(missing))));
        self.here = self.here.take().or(other.here);
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

/// Pieces, and who is asked for which.
#[derive(Debug)]
pub(super) struct Gather {
    nodes: Nodes,
    job: Context,
    kind: &'static str,
    arguments: Value,
    options: RunOptions,
    pieces: Vec<Wanted>,
    attempts: Vec<Attempt>,
    given_up: BTreeSet<usize>,
    /// Whether a task can be asked for anew from where it was consumed, so that a node has one at a time.
    may_begin_anew: bool,
    missing: Vec<Missing>,
    costs: BTreeMap<usize, NodeCost>,
    /// Of the attempt whose rows are being taken.
    rows: BTreeMap<usize, VecDeque<PartRow>>,
    /// What came so far of a part that comes in several rows.
    beginning: Vec<u8>,
    /// The attempt that gave it.
    begun_by: usize,
    /// So many tasks were set aside since the last row came.
    set_aside: usize,
    /// Attempts of whose answers some are not wanted any more.
    unwanted: BTreeSet<usize>,
    /// What does a part of it on this machine.
    here: Option<Arc<Here>>,
    /// The attempt whose one answer has all that this machine does, where it is one.
    helping: Option<usize>,
    /// Which answers let others go first.
    pub(super) turn: Turn,
    /// A node, and a task on it that this one is to be read beside.
    pub(super) beside: Option<(usize, TakeBack)>,
    /// Bytes that came from each node before.
    bytes_before: Vec<u64>,
    /// For answers on their way.
    memory: Reservation,
    /// For those that wait for their turn: of each of so many nodes so many bytes.
    ahead: Option<Reservation>,
    ahead_bytes: u64,
    ahead_nodes: usize,
}

/// Bytes of what comes of a block, at most: a block where everything matches, with a line for each byte, is 32 times its size.
const PART_BYTES_MAX: usize = 256 << 20;
/// Memory here for the answers of a node: the window of its stream, two batches that wait and one that is taken apart.
pub(super) const ANSWER_BYTES: u64 = STREAM_BYTES as u64 + (1 << 20);

/// Answers of a node that wait for their turn, at most: what comes of a few pieces.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// A piece that is to be read.
#[derive(Debug)]
struct Wanted {
    title: String,
    whole: u64,
    dataset: String,
    piece: super::Piece,
    /// How far it was consumed, of the piece.
    reach: Reach,
    /// Where the attempt that reads it began.
    from: Reach,
    attempt: Option<usize>,
    is_done: bool,
    /// Nodes that could not read it.
    unreadable: BTreeSet<usize>,
    /// Nodes that got on no further with it, and are asked where nobody else can be.
    slow: BTreeSet<usize>,
    why: Vec<String>,
}

impl Wanted {
    /// What of it was not consumed.
    fn rest(&self, why: String) -> Missing {
        Missing {
            title: self.title.clone(),
            offset: self.piece.offset + self.reach.bytes,
            bytes: self.piece.bytes - self.reach.bytes,
            why,
        }
    }
}

/// A task on a node, or what this machine does.
#[derive(Debug)]
struct Attempt {
    /// None for this machine.
    node: Option<usize>,
    pieces: Vec<usize>,
    answers: Answers,
    told: Arc<std::sync::Mutex<Told>>,
    done: Option<TaskDone>,
    is_over: bool,
    passed: Passed,
    pump: JoinHandle<()>,
}

/// How far rows go that an attempt gives of pieces of which nothing more is wanted.
#[derive(Debug, Default)]
struct Passed {
    piece: u64,
    /// Bytes of the piece up to where they go, from where the attempt began, and whether it is at its end.
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

/// Where the answers of an attempt come from.
#[derive(Debug)]
enum Answers {
    Node(Outlet),
    Here(mpsc::Receiver<Result<Option<Held>>>),
}

impl Answers {
    async fn next(&mut self) -> Option<Result<Option<RecordBatch>>> {
        match self {
            Answers::Node(answers) => answers.next().await,
            Answers::Here(answers) => {
                answers.recv().await.map(|answer| answer.map(|held| held.map(Held::into_batch)))
            }
        }
    }
}

impl Attempt {
    /// Stops it.
    fn end(&mut self) {
        self.is_over = true;
        self.pump.abort();
        self.close();
    }

    /// Takes no more answers, and lets those go that wait: they are memory.
    fn close(&mut self) {
        match &mut self.answers {
            Answers::Node(answers) => answers.close(),
            Answers::Here(answers) => {
                answers.close();
                while answers.try_recv().is_ok() {}
            }
        }
    }
}

impl Drop for Attempt {
    /// Closes the stream, which stops the task.
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Gather {
    pub(super) fn new(
        nodes: &Nodes,
        job: &Context,
        wholes: &[Whole],
        kind: &'static str,
        arguments: Value,
        options: &RunOptions,
    ) -> Result<Gather> {
        let holders = wholes.iter().flat_map(|whole| &whole.pieces).flat_map(|piece| &piece.holders);
        let used = holders.map(|holder| holder.node).collect::<BTreeSet<_>>().len().max(1) as u64;
        let memory = job.budget().reserve(used * ANSWER_BYTES, "answers of nodes on their way")?;
        let lost = nodes.0.lost().clone();
        // Nodes that have it and were lost before are asked no more.
        let why = |piece: &super::Piece| {
            let lost = piece.holders.iter().filter_map(|holder| Some((holder.node, lost.get(&holder.node)?)));
            let told = lost.map(|(node, why)| format!("{}: {why}", nodes.0.nodes[node].address));
            piece.absent.iter().cloned().chain(told).collect()
        };
        let why = &why;
        let pieces = wholes.iter().enumerate().flat_map(|(number, whole)| {
            whole.pieces.iter().map(move |piece| Wanted {
                title: whole.title.clone(),
                whole: number as u64,
                dataset: whole.dataset.clone(),
                piece: piece.clone(),
                reach: Reach { bytes: piece.from, lines: 0 },
                from: Reach::default(),
                attempt: None,
                is_done: false,
                unreadable: BTreeSet::new(),
                slow: BTreeSet::new(),
                why: why(piece),
            })
        });
        let pieces = pieces.collect();
        Ok(Gather {
            memory,
            ahead: None,
            ahead_bytes: 0,
            ahead_nodes: used as usize,
            bytes_before: nodes.0.nodes.iter().map(|node| node.bytes_in.load(Ordering::Relaxed)).collect(),
            nodes: nodes.clone(),
            job: job.clone(),
            kind,
            arguments,
            options: options.clone(),
            pieces,
            attempts: Vec::new(),
            given_up: lost.into_keys().collect(),
            may_begin_anew: false,
            here: None,
            helping: None,
            turn: Turn::Any,
            beside: None,
            missing: Vec::new(),
            costs: BTreeMap::new(),
            rows: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            beginning: Vec::new(),
            begun_by: usize::MAX,
            set_aside: 0,
        })
    }

    /// Answers are taken in the order of pieces: nodes that are ahead need room here, or they stand still; and a task can be asked for
    /// anew from where it was consumed.
    fn take_in_order(&mut self) {
        self.may_begin_anew = true;
        let nodes = self.ahead_nodes as u64;
        self.let_wait((self.job.budget().free_bytes() / 8 / nodes).min(AHEAD_BYTES_MAX));
    }

    /// Lets so many bytes of the answers of each node wait here, if there is memory for that; it goes without, too.
    pub(super) fn let_wait(&mut self, each: u64) {
        let all = self.ahead_nodes as u64 * each;
        if let Ok(memory) = self.job.budget().reserve(all, "answers that wait for their turn") {
            (self.ahead_bytes, self.ahead) = (each, Some(memory));
        }
    }

    pub(super) fn begin_all(&mut self) -> Result<()> {
        self.assign((0..self.pieces.len()).collect())?;
        // Arguments, connections and lookups ran through much code, which answers do not need.
        release_code();
        Ok(())
    }

    /// Asks nodes for these pieces, each node for all of them that it is chosen for. What no node has is missing.
    fn assign(&mut self, pieces: Vec<usize>) -> Result<()> {
        let mut tasks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut missing = Vec::new();
        for number in pieces {
            let wanted = &self.pieces[number];
            let can = |node: usize| !self.given_up.contains(&node) && !wanted.unreadable.contains(&node);
            let mut holders: Vec<_> = wanted.piece.holders.iter().filter(|holder| can(holder.node)).collect();
            holders.sort_by_key(|holder| wanted.slow.contains(&holder.node));
            match holders.first() {
                Some(holder) => tasks.entry(holder.node).or_default().push(number),
                None => missing.push(number),
            }
        }
        for number in missing {
            let wanted = &mut self.pieces[number];
            (wanted.is_done, wanted.attempt) = (true, None);
            self.missing.push(wanted.rest(wanted.why.join("; ")));
        }
        if !self.options.partial && !self.missing.is_empty() {
            return Err(Error::Missing { what: told(&self.missing) });
        }
        for (node, mut pieces) in tasks {
            // One task for each node: one more could wait for its turn behind the first, which waits for its own here.
            for attempt in 0..self.attempts.len() {
                let other = &mut self.attempts[attempt];
                if other.node == Some(node) && !other.is_over && self.may_begin_anew {
                    other.end();
                    self.rows.remove(&attempt);
                    self.beginning.clear();
                    let undone = |piece: &&usize| {
                        let wanted = &self.pieces[**piece];
                        wanted.attempt == Some(attempt) && !wanted.is_done
                    };
                    pieces.extend(self.attempts[attempt].pieces.iter().filter(undone));
                }
            }
            pieces.sort_unstable();
            // A node that takes another's work over may answer twice at once.
            let answering = 1 + self.answering();
            let bytes = answering as u64 * ANSWER_BYTES;
            if bytes > self.memory.bytes() {
                self.memory.resize(bytes)?;
            }
            self.begin(node, pieces);
        }
        Ok(())
    }

    /// How many attempts on nodes are not over.
    fn answering(&self) -> usize {
        self.attempts.iter().filter(|attempt| !attempt.is_over && attempt.node.is_some()).count()
    }

    /// Asks a node for pieces that it has.
    fn begin(&mut self, node: usize, pieces: Vec<usize>) {
        let number = self.attempts.len();
        let mut requests = Vec::with_capacity(pieces.len());
        for &piece in &pieces {
            let wanted = &mut self.pieces[piece];
            let holder = wanted.piece.holders.iter().find(|holder| holder.node == node);
            let holder = holder.expect("it was chosen among them");
            (wanted.attempt, wanted.from) = (Some(number), wanted.reach);
            requests.push(PieceRequest {
                number: piece as u64,
                whole: wanted.whole,
                dataset: wanted.dataset.clone(),
                id: holder.id,
                file: holder.file.clone(),
                from: wanted.reach.bytes,
                to: wanted.piece.bytes,
                offset: wanted.piece.offset + wanted.reach.bytes,
                lines: wanted.piece.lines_before + wanted.reach.lines,
            });
        }
        // Some tell it a little late.
        let often = self.options.stall / 6;
        let often = self.here.as_ref().map_or(often, |here| often.min(here.often()));
        let left = self.nodes.0.deadline.map(|deadline| deadline.left());
        let request = TaskRequest {
            version: VERSION,
            kind: self.kind.to_string(),
            arguments: self.arguments.clone(),
            pieces: requests,
            memory_bytes: self.options.node_memory_bytes,
            // A little later than here, where it is known what was not read.
            deadline_ms: left.map(|left| (left + LATE).as_millis() as u64),
            alive_ms: Some(often.as_millis() as u64),
            key: self.here.as_ref().map(|here| here.key()),
            beside: self.beside.filter(|&(other, _)| other == node).map(|(_, task)| task),
        };
        let cost = self.costs.entry(node).or_default();
        cost.node = self.nodes.0.nodes[node].address.clone();
        cost.tasks += 1;
        let has_room = self.answering() < self.ahead_nodes;
        let (out, answers) = queue(if has_room { self.ahead_bytes } else { 0 });
        let told: Arc<std::sync::Mutex<Told>> = Arc::default();
        if let Some(here) = &self.here {
            here.watch(number, node, &pieces, told.clone());
        }
        let pump = pump(self.nodes.0.nodes[node].clone(), request, out, Arc::clone(&told), self.turn.clone());
        let pump = self.nodes.0.runtime.spawn(pump);
        let (node, answers) = (Some(node), Answers::Node(answers));
        self.attempts.push(Attempt {
            node,
            pieces,
            answers,
            told,
            done: None,
            is_over: false,
            passed: Passed::default(),
            pump,
        });
    }

    /// Makes attempts of the pieces that this machine has taken over.
    fn adopt(&mut self) {
        let Some(here) = self.here.clone().filter(|here| here.has_taken()) else { return };
        for TakenOver { piece, from, alone } in here.taken() {
            let number = self.attempts.len();
            let wanted = &mut self.pieces[piece];
            let Some((answers, told)) = alone else {
                let helping = self.helping.expect("it goes into the answer of an attempt");
                wanted.attempt = Some(helping);
                self.attempts[helping].pieces.push(piece);
                continue;
            };
            if wanted.is_done || wanted.attempt != Some(from) {
                // Others were asked for it meanwhile. Nobody listens to what is done here.
                continue;
            }
            if wanted.reach != (Reach { bytes: wanted.piece.from, lines: 0 }) {
                // A part of it was consumed, and here it is begun from its start.
                here.doubt(from);
                continue;
            }
            (wanted.attempt, wanted.from) = (Some(number), wanted.reach);
            self.begin_here(vec![piece], answers, told);
        }
    }

    /// An attempt of this machine.
    fn begin_here(
        &mut self,
        pieces: Vec<usize>,
        answers: mpsc::Receiver<Result<Option<Held>>>,
        told: Arc<std::sync::Mutex<Told>>,
    ) {
        self.attempts.push(Attempt {
            node: None,
            pieces,
            answers: Answers::Here(answers),
            told,
            done: None,
            is_over: false,
            passed: Passed::default(),
            pump: self.nodes.0.runtime.spawn(std::future::ready(())),
        });
    }

    /// Whether a piece that an attempt passes over is somebody else's now: this machine took it, or it was given back to a question whose
    /// answer was lost, and the node is asked again.
    fn was_taken(&mut self, number: usize, attempt: usize) -> Result<bool> {
        let Some(here) = self.here.clone() else { return Ok(false) };
        while here.is_asking(attempt) {
            self.check()?;
            thread::sleep(Duration::from_millis(1));
        }
        self.adopt();
        if self.pieces[number].attempt != Some(attempt) {
            return Ok(true);
        }
        let asks_again = here.is_doubtful(attempt);
        if asks_again {
            self.ask_again(attempt);
        }
        Ok(asks_again)
    }

    /// Asks nodes for what this machine took over and did not do, and takes over no more.
    fn give_back(&mut self, attempt: usize, why: String) -> Result<()> {
        if let Some(here) = &self.here {
            here.give_up(why);
        }
        let own = &mut self.attempts[attempt];
        own.end();
        let pieces = own.pieces.clone();
        self.rows.remove(&attempt);
        self.beginning.clear();
        self.assign(pieces.into_iter().filter(|&piece| !self.pieces[piece].is_done).collect())
    }

    /// What an attempt's machine is called.
    fn address(&self, node: Option<usize>) -> &str {
        node.map_or("this machine", |node| &self.nodes.0.nodes[node].address)
    }

    fn lost(&self, attempt: usize, what: String) -> Error {
        Error::Lost { node: self.address(self.attempts[attempt].node).to_string(), what }
    }

    /// Whether the job goes on.
    fn check(&self) -> Result<()> {
        self.nodes.0.check(|| "a node has not answered".to_string())?;
        Ok(self.job.check_cancelled()?)
    }

    /// What an attempt says within some time; `None` where that is nothing.
    fn receive_within(&mut self, attempt: usize, wait: Duration) -> Result<Option<Message>> {
        // The deadline first, which says what was not done: the job is stopped by the same.
        self.nodes.0.check(|| self.unfinished(attempt))?;
        self.job.check_cancelled()?;
        let Attempt { node, answers, told, done, is_over, .. } = &mut self.attempts[attempt];
        if *is_over {
            return Ok(Some(Message::Done));
        }
        let waited =
            self.nodes.0.runtime.block_on(async { tokio::time::timeout(wait, answers.next()).await });
        let Ok(answer) = waited else { return Ok(None) };
        Ok(Some(match answer {
            Some(Ok(Some(batch))) => Message::Batch(batch),
            Some(Ok(None)) => {
                *is_over = true;
                *done = told.lock().expect("no panic under this lock").done.take();
                Message::Done
            }
            Some(Err(error)) => {
                *is_over = true;
                if let (Some(node), Error::Lost { what, .. }) = (*node, &error) {
                    self.nodes.0.lose(node, what);
                }
                Message::Failed(error)
            }
            None => {
                *is_over = true;
                Message::Failed(self.lost(attempt, "its answer ended early".to_string()))
            }
        }))
    }

    /// What is not done while an attempt is waited for.
    fn unfinished(&self, attempt: usize) -> String {
        let Attempt { node, .. } = self.attempts[attempt];
        let is_open = |wanted: &&Wanted| {
            let is_over = wanted.attempt.is_some_and(|attempt| self.attempts[attempt].done.is_some());
            !wanted.is_done && !is_over
        };
        let why = match node {
            Some(_) => format!("node {} has not answered", self.address(node)),
            None => "this machine was not done with it".to_string(),
        };
        let open = self.pieces.iter().filter(is_open).map(|wanted| wanted.rest(why.clone()));
        match open.collect::<Vec<_>>() {
            open if open.is_empty() => why,
            open => told(&open),
        }
    }

    /// The next thing that the attempt says that reads a piece. Where it gets on no further for long, its pieces go to others as
    /// far as others have them, and there is nothing to be said.
    fn receive_piece(&mut self, number: usize, attempt: usize) -> Result<Option<Message>> {
        let began = Instant::now();
        if let Some(here) = &self.here {
            here.is_waited_for(number);
        }
        loop {
            if let Some(message) = self.receive_within(attempt, Duration::from_millis(50))? {
                return Ok(Some(message));
            }
            self.adopt();
            if self.pieces[number].attempt != Some(attempt) {
                return Ok(None);
            }
            let alive = self.attempts[attempt].told.lock().expect("no panic under this lock").alive;
            let is_stalled = alive.is_some_and(|(_, since)| since.max(began).elapsed() > self.options.stall);
            if is_stalled && self.has_other(number) {
                self.leave(attempt)?;
                return Ok(None);
            }
        }
    }

    /// Whether an attempt gets on no further, and others have all that it was asked for.
    fn is_stalled(&self, attempt: usize, waiting_since: Instant) -> bool {
        let Attempt { told, pieces, .. } = &self.attempts[attempt];
        let alive = told.lock().expect("no panic under this lock").alive;
        !pieces.is_empty()
            && alive.is_some_and(|(_, since)| since.max(waiting_since).elapsed() > self.options.stall)
            && pieces.iter().all(|&piece| self.has_other(piece))
    }

    /// Whether a node can be asked for a piece other than the one that is.
    fn has_other(&self, number: usize) -> bool {
        let wanted = &self.pieces[number];
        let node = wanted.attempt.and_then(|attempt| self.attempts[attempt].node);
        wanted.piece.holders.iter().any(|holder| {
            let node_is_bad = [&self.given_up, &wanted.unreadable, &wanted.slow]
                .iter()
                .any(|bad| bad.contains(&holder.node));
            !node_is_bad && Some(holder.node) != node
        })
    }

    /// Asks others for all that an attempt has not done and they have. What they don't have it goes on with.
    fn leave(&mut self, attempt: usize) -> Result<()> {
        let seconds = self.options.stall.as_secs_f64();
        let what = format!("it got on no further for {seconds} s");
        let Some(node) = self.attempts[attempt].node else { return self.give_back(attempt, what) };
        let why = format!("{}: {what}", self.nodes.0.nodes[node].address);
        let undone =
            |&piece: &usize| !self.pieces[piece].is_done && self.pieces[piece].attempt == Some(attempt);
        let undone: Vec<usize> = self.attempts[attempt].pieces.iter().copied().filter(undone).collect();
        let (others, own): (Vec<_>, Vec<_>) = undone.into_iter().partition(|&piece| self.has_other(piece));
        self.rows.remove(&attempt);
        self.beginning.clear();
        if own.is_empty() {
            self.attempts[attempt].end();
        }
        for &piece in &others {
            let wanted = &mut self.pieces[piece];
            wanted.slow.insert(node);
            wanted.why.push(why.clone());
        }
        // What others do now is not waited for.
        self.unwanted.insert(attempt);
        self.costs.entry(node).or_default().lost = Some(why);
        self.assign(others)
    }

    /// The next row of a piece; `None` where it is done, or missing.
    pub(super) fn next_row(&mut self, number: usize) -> Result<Option<Taken>> {
        loop {
            self.adopt();
            let Some(attempt) = self.pieces[number].attempt.filter(|_| !self.pieces[number].is_done) else {
                return Ok(None);
            };
            let Some(row) = self.rows.entry(attempt).or_default().pop_front() else {
                let Some(message) = self.receive_piece(number, attempt)? else { continue };
                match message {
                    Message::Batch(batch) => match part_rows(&batch) {
                        Some(rows) => drop(self.rows.insert(attempt, rows.into())),
                        None => {
                            self.lose(number, "it answers columns that are none of a part".to_string())?
                        }
                    },
                    Message::Done if self.was_taken(number, attempt)? => {}
                    Message::Done => self.lose(number, "it ended without having read all".to_string())?,
                    Message::Failed(Error::SetAside { .. }) if self.set_aside < SET_ASIDE_MAX => {
                        self.set_aside += 1;
                        self.ask_again(attempt);
                    }
                    Message::Failed(error) => {
                        let is_node = self.attempts[attempt].node.is_some();
                        if matches!(error, Error::Refused { .. }) && is_node && self.is_alone(number) {
                            return Err(error);
                        }
                        self.lose(number, error.to_string())?;
                    }
                }
                continue;
            };
            self.set_aside = 0;
            if row.number < number as u64 {
                // Of a piece of which nothing more is wanted, which comes to an end all the same.
                let bytes = self.pieces[row.number as usize].piece.bytes;
                if !self.attempts[attempt].passed.goes_on(&row, bytes) {
                    self.lose(number, "it answers again what is over".to_string())?;
                }
                continue;
            }
            if row.number > number as u64 {
                self.rows.entry(attempt).or_default().push_front(row);
                if !self.was_taken(number, attempt)? {
                    self.lose(number, "it answers out of turn".to_string())?;
                }
                continue;
            }
            let wanted = &mut self.pieces[number];
            let reach = Reach {
                bytes: wanted.from.bytes.saturating_add(row.reach.bytes),
                lines: wanted.from.lines.saturating_add(row.reach.lines),
            };
            match row.answer {
                Answer::Part(_)
                    if reach.bytes <= wanted.reach.bytes
                        || reach.bytes > wanted.piece.bytes
                        || row.reach.lines > row.reach.bytes =>
                {
                    self.lose(number, "it answers the same twice, or more than there is".to_string())?;
                }
                Answer::Beginning(bytes) if bytes.is_empty() => {
                    self.lose(number, "it begins a part with nothing".to_string())?;
                }
                Answer::Beginning(bytes) => {
                    if self.begun_by != attempt {
                        self.beginning.clear();
                        self.begun_by = attempt;
                    }
                    if self.beginning.len() + bytes.len() > PART_BYTES_MAX {
                        self.lose(number, "it answers a part that is larger than any".to_string())?;
                    } else {
                        self.beginning.extend(bytes);
                    }
                }
                Answer::Part(bytes) => {
                    let mut part = std::mem::take(&mut self.beginning);
                    if self.begun_by != attempt {
                        // Of another's answer.
                        part.clear();
                    }
                    if part.is_empty() {
                        part = bytes;
                    } else {
                        part.extend(bytes);
                    }
                    return Ok(Some(Taken::Part(reach, part)));
                }
                Answer::End => {
                    wanted.is_done = true;
                    return Ok(None);
                }
                Answer::Failed(what) => {
                    // This piece alone: the node goes on with others.
                    let Some(node) = self.attempts[attempt].node else {
                        self.give_back(attempt, what)?;
                        continue;
                    };
                    wanted.unreadable.insert(node);
                    wanted.why.push(format!("node {}: {what}", self.nodes.0.nodes[node].address));
                    let others = wanted.piece.holders.iter().any(|holder| {
                        !wanted.unreadable.contains(&holder.node) && !self.given_up.contains(&holder.node)
                    });
                    if !others {
                        wanted.is_done = true;
                        let node = self.nodes.0.nodes[node].address.clone();
                        return Ok(Some(Taken::Failed(Error::Refused { node, what })));
                    }
                    self.assign(vec![number])?;
                }
            }
        }
    }

    /// Asks the same node again for what an attempt that was set aside has not done.
    fn ask_again(&mut self, attempt: usize) {
        self.attempts[attempt].end();
        self.rows.remove(&attempt);
        self.beginning.clear();
        let Attempt { node, pieces, .. } = &self.attempts[attempt];
        let undone =
            |piece: &usize| !self.pieces[*piece].is_done && self.pieces[*piece].attempt == Some(attempt);
        let (node, pieces) =
            (node.expect("nodes set tasks aside"), pieces.iter().copied().filter(undone).collect());
        self.begin(node, pieces);
    }

    /// Whether no other node can be asked for any of the pieces of the attempt that has this one.
    fn is_alone(&self, number: usize) -> bool {
        let Some(attempt) = self.pieces[number].attempt else { return true };
        let node = self.attempts[attempt].node;
        self.attempts[attempt].pieces.iter().filter(|&&piece| !self.pieces[piece].is_done).any(|&piece| {
            let mut others = self.pieces[piece].piece.holders.iter().map(|holder| holder.node);
            !others.any(|other| Some(other) != node && !self.given_up.contains(&other))
        }) && !self.options.partial
    }

    /// A piece was consumed so far.
    pub(super) fn accept(&mut self, number: usize, reach: Reach) {
        let wanted = &mut self.pieces[number];
        if reach.bytes > wanted.reach.bytes {
            wanted.reach = reach;
        }
    }

    /// Nothing more of a piece is wanted.
    fn end_of(&mut self, number: usize, is_skipped: bool) {
        self.beginning.clear();
        let wanted = &mut self.pieces[number];
        if let Some(attempt) = wanted.attempt.filter(|_| is_skipped && !wanted.is_done) {
            self.unwanted.insert(attempt);
            let reads = &mut self.attempts[attempt];
            if reads.node.is_none() {
                // This machine goes on with something else.
                reads.close();
            }
        }
        wanted.is_done = true;
    }

    /// Gives up the node that reads a piece.
    fn lose(&mut self, number: usize, why: String) -> Result<()> {
        let attempt = self.pieces[number].attempt.expect("somebody reads it");
        self.lose_attempt(attempt, why, true, false)
    }

    /// Gives up the node of an attempt, and asks others for what it was asked for: all of it, or what is not done.
    fn lose_attempt(
        &mut self,
        attempt: usize,
        why: String,
        is_gone: bool,
        from_the_start: bool,
    ) -> Result<()> {
        let Some(node) = self.attempts[attempt].node else { return self.give_back(attempt, why) };
        self.attempts[attempt].end();
        if from_the_start {
            // Whoever does it instead says it all again.
            self.attempts[attempt].done = None;
        }
        self.rows.remove(&attempt);
        self.beginning.clear();
        if is_gone {
            self.given_up.insert(node);
        }
        let why = why.strip_prefix("node ").map_or(why.clone(), str::to_string);
        let address = &self.nodes.0.nodes[node].address;
        let why = if why.starts_with(address) { why } else { format!("{address}: {why}") };
        if is_gone {
            self.costs.entry(node).or_default().lost = Some(why.clone());
        }
        let pieces = self.attempts[attempt].pieces.clone();
        let mut again = Vec::new();
        for number in pieces {
            let wanted = &mut self.pieces[number];
            if wanted.attempt == Some(attempt) && (from_the_start || !wanted.is_done) {
                wanted.why.push(why.clone());
                again.push(number);
            }
        }
        self.assign(again)
    }

    /// Waits for the ends of all tasks, which say what they cost.
    pub(super) fn wait_for_ends(&mut self) -> Result<()> {
        let until = Instant::now() + self.options.stall;
        for attempt in 0..self.attempts.len() {
            // One of whose answers not all are wanted may be at work for long: it is stopped. So is one that does not come to its end.
            while !self.attempts[attempt].is_over
                && !self.unwanted.contains(&attempt)
                && Instant::now() < until
            {
                match self.receive_within(attempt, Duration::from_millis(50)) {
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
        for attempt in &self.attempts {
            let (Some(done), Some(node)) = (&attempt.done, attempt.node) else { continue };
            let cost = self.costs.entry(node).or_default();
            cost.bytes_read += done.bytes_read;
            cost.cpu_seconds += done.cpu_seconds;
            cost.seconds += done.seconds;
            cost.queued_seconds += done.queued_seconds;
        }
        for (&node, cost) in &mut self.costs {
            let now = self.nodes.0.nodes[node].bytes_in.load(Ordering::Relaxed);
            cost.bytes_moved = now - self.bytes_before[node];
        }
        let nodes = std::mem::take(&mut self.costs).into_values().collect();
        let mut gathered = Gathered { nodes, missing: self.missing, here: None };
        if let Some(here) = self.here {
            let (cost, mut read) = here.costs();
            // What came here for it was counted above, and so was the time of the node's processor, as far as the task ran. A read that was lost is
            // another's to do.
            for node in &mut read.nodes {
                *node = NodeCost {
                    node: std::mem::take(&mut node.node),
                    bytes_read: node.bytes_read,
                    ..NodeCost::default()
                };
            }
            gathered.add(read);
            gathered.here = Some(cost);
        }
        gathered
    }
}

/// Missing parts in a sentence.
fn told(missing: &[Missing]) -> String {
    let bytes = missing.iter().fold(0u64, |sum, missing| sum.saturating_add(missing.bytes));
    let first = &missing[0];
    let Missing { title, offset, bytes: first_bytes, why } = first;
    let others = match missing.len() {
        1 => String::new(),
        parts => format!(" and {} other parts, {} together", parts - 1, inshore_store::format_bytes(bytes)),
    };
    format!("{title}: bytes {offset} to {}{others} were not read: {why}", offset + first_bytes)
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
