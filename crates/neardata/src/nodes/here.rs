//! The client's own cores, which do a part of what nodes were asked to do.
//!
//! ```text
//!   node A:  0 3 6 9 . . . .     a task, which tells four times a second how it stands
//!                    └── "take-back" ──► piece 15 ──► read from A beside its task ──► kernel, here ──► an attempt like A's
//! ```
//!
//! Each thread here takes one piece at a time, from the node that would need longest for what it has not begun, and only as long as
//! it is expected to be done with the piece before that node had come to it. Both speeds are measured: that of a node by what it has
//! read since its task began, that of this machine by the pieces it has done, the reading included. The first piece is for measuring, and is
//! taken where a node has work for some seconds before it. What is taken is no piece of the node's any more, so nothing is done twice,
//! and the answers are those of an attempt: in order, each piece's of exactly one.
//!
//! What goes wrong here is no error of the job: the piece goes back to the nodes, and no more are taken.
//!
//! Where nodes give one answer each of all their pieces, in the order of a key, this machine gives one more of those that it took
//! (`helping.rs`).
//!
//! Papers: host and devices working together, 2019 thesis 4.2.

mod gate;
mod helping;
mod passing;

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use inshore_store::{Budget, Cancel, Context};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

pub use self::helping::{Help, HelpEnd, HelpPiece, HelpPieces};
use self::passing::{PieceReader, Waiting};
pub(super) use self::{gate::Gate, passing::Held};
use super::{
    Error, Gathered, Nodes, Piece, Result, RunOptions, Whole,
    agent::{READ_BESIDE_BYTES, READS_BESIDE},
    protocol::{TakeBack, TakenBack},
    pump::Told,
    wire::json as written,
};
use crate::{Base, Opened, Portable, Source, TaskSource, Unbegun, answer_parts};

/// Less than this share of what nodes do is not worth the bytes that have to come here.
const WORTH: f64 = 0.2;
/// Where both together do less than so many times what the nodes did alone, the client only takes from them what they have too little of: their
/// drives.
const GAIN: f64 = 1.15;
/// What comes behind the last piece, where all of them make one answer in order: runs are merged and sent. A share of the time that the pieces took.
const TAIL: f64 = 0.5;
/// What is taken ahead keeps a node from it for good: only where this machine is so much sooner.
const AHEAD: f64 = 1.25;
/// Of a query, no more pieces are ahead for each that was done.
const AHEAD_PIECES: u64 = 2;
/// A node that does not say so long whether it gives a piece back is not asked again.
const ANSWER: Duration = Duration::from_secs(1);
/// Threads here: as many as a node lets read beside a task.
const LANES_MAX: u64 = READS_BESIDE as u64;
/// Memory of each of them, and the least with which one works.
const LANE_BYTES_MAX: u64 = 512 << 20;
const LANE_BYTES_MIN: u64 = 12 << 20;
/// What a thread wants beside its kernel: a block, answers, and what it reads on its way.
const READING_BYTES: u64 = 6 << 20;
/// Why no more is done here, where this program is at fault.
pub(super) const PANICKED: &str = "the work here panicked: this is a fault of this program";
/// Nothing is looked at more often, whatever the options say.
const FROM_MIN: Duration = Duration::from_millis(10);

/// What this machine did of a job on nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HereCost {
    /// Pieces that it did.
    pub pieces: u64,
    /// Bytes that came here for them.
    pub bytes: u64,
    /// Bytes a second that one of its threads did; absent where it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Bytes a second that all nodes did together, at most.
    pub nodes_bytes_per_second: f64,
    /// Why it did no more, or nothing.
    pub why: String,
}

/// What the threads here and whoever gathers answers know of each other.
#[derive(Debug)]
pub(super) struct Here {
    nodes: Nodes,
    options: RunOptions,
    pieces: Vec<HerePiece>,
    /// A node that has so much work before it is worth a measurement, and one that has worked half as long has shown its speed.
    from: Duration,
    kind: HelpKind,
    state: Mutex<State>,
    has_taken: AtomicBool,
    /// Who may take back what was asked for here.
    key: u64,
    /// The piece whose answers are waited for.
    wanted: AtomicUsize,
    /// Bytes of answers that wait here for their turn, and how many may.
    waiting: Arc<AtomicU64>,
    room: AtomicU64,
    /// Bytes that were read from nodes to be worked on here.
    read: AtomicU64,
    gate: Arc<Gate>,
    /// No more pieces are taken; those that were are done.
    has_given_up: AtomicBool,
    /// All is over.
    stop: Cancel,
}

/// A piece, as it is read here.
#[derive(Debug)]
struct HerePiece {
    title: String,
    whole: u64,
    dataset: String,
    piece: Piece,
}

/// How pieces are done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelpKind {
    /// Each for itself; a node answers while it has others before it.
    Pieces,
    /// All of them make one answer; a node answers when it has begun all of its own.
    OneAnswer(HelpWith),
}

/// How this machine helps with work of which each node gives one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelpWith {
    /// Every byte comes here anyway, worked on or not: what is taken costs no more bytes.
    pub all_moves: bool,
    /// Each thread reads a piece of its own; else one reads, and all work on what it gives them.
    pub by_threads: bool,
    /// Nodes answer before they have begun all of their pieces. Else the first answer says that nothing more can be taken.
    pub answers_early: bool,
    /// The job has nothing else to do with its memory.
    pub takes_all_memory: bool,
}

impl HelpKind {
    fn is_one_answer(self) -> bool {
        matches!(self, HelpKind::OneAnswer(_))
    }

    fn all_moves(self) -> bool {
        matches!(self, HelpKind::OneAnswer(HelpWith { all_moves: true, .. }))
    }

    /// Whether pieces that were begun tell how fast a node is, since what it reads and writes says little of when the end comes: of tables
    /// it reads some columns, and runs of a sort are written and read.
    fn is_told_by_pieces(self) -> bool {
        matches!(
            self,
            HelpKind::OneAnswer(HelpWith { all_moves: true, .. } | HelpWith { answers_early: true, .. })
        )
    }

    /// Whether a first answer tells that all is begun.
    fn answers_late(self) -> bool {
        matches!(self, HelpKind::OneAnswer(HelpWith { answers_early: false, .. }))
    }
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<Watched>,
    taken: Vec<TakenOver>,
    /// Bytes a second of each thread here.
    speeds: Vec<Option<f64>>,
    is_probing: bool,
    /// Somebody left a piece in its middle: nothing more is taken.
    is_closed: bool,
    /// Bytes of the pieces that were done here.
    done_bytes: u64,
    /// How it was before anything was taken.
    before: Option<Before>,
    cost: HereCost,
    read: Gathered,
}

/// Less that was read says little.
const WIDE_FROM_BYTES: u64 = 1 << 20;

impl State {
    /// Whether nodes answer more than they read.
    fn answers_are_wide(&self) -> bool {
        let (mut answered, mut read) = (0, 0);
        for watched in &self.watched {
            let told = watched.told.lock().expect("no panic under this lock");
            answered += told.answered_then;
            read = u64::saturating_add(read, told.stands.map_or(0, |(progress, _)| progress));
        }
        read >= WIDE_FROM_BYTES && answered > read
    }
}

/// When the first piece was taken: what nodes had done, and how fast they were.
#[derive(Clone, Copy, Debug)]
struct Before {
    at: Instant,
    progress: u64,
    speed: f64,
}

/// An attempt of a node.
#[derive(Debug)]
struct Watched {
    attempt: usize,
    node: usize,
    told: Arc<Mutex<Told>>,
    /// Somebody is asking for a piece of it.
    is_asking: bool,
    /// It may have given back what nobody does.
    is_doubtful: bool,
    /// It is asked for nothing any more.
    is_left: bool,
    /// What it was asked for and has not given back.
    pieces: BTreeSet<usize>,
    /// Bytes of the pieces that it gave back.
    given_bytes: u64,
}

/// A piece that is done here.
#[derive(Debug)]
pub(super) struct TakenOver {
    pub piece: usize,
    /// The attempt that it was taken of.
    pub from: usize,
    /// Where its answers come from; none where it goes into the one answer of all.
    pub alone: Option<Alone>,
}

/// Where the answers of one piece come from, and where it is told how far it is.
pub(super) type Alone = (mpsc::Receiver<Result<Option<Held>>>, Arc<Mutex<Told>>);

/// What a thread here does next.
enum Choice {
    Piece(Chosen),
    /// Nothing yet.
    Wait,
    /// Nothing of what nodes were asked for until now.
    Nothing,
}

/// A node that is to give a piece back.
struct Chosen {
    watched: usize,
    attempt: usize,
    node: usize,
    task: TakeBack,
}

type TakenPiece = (usize, mpsc::Sender<Result<Option<Held>>>, Arc<Mutex<Told>>);

/// A kernel for which there is memory here. A panic is a reason not to help: a node is being asked for a piece, and has to be left.
fn tried<K>(job: &Context, arguments: &Value) -> std::result::Result<K, String>
where
    K: Portable,
    K::Error: std::error::Error,
{
    let told = |error: K::Error| error.to_string();
    let made = panic::catch_unwind(AssertUnwindSafe(|| {
        let kernel = K::for_client(arguments).map_err(told)?;
        let worker = kernel.worker(job).map_err(told)?;
        let bytes = READING_BYTES + kernel.cached_block_bytes() as u64;
        let reserved = job.budget().reserve(bytes, "what is read from a node");
        drop(worker);
        reserved.map(|_| kernel).map_err(|error| error.to_string())
    }));
    made.unwrap_or_else(|_| Err(PANICKED.to_string()))
}

impl Here {
    pub fn new(
        nodes: &Nodes,
        wholes: &[Whole],
        options: &RunOptions,
        from: Duration,
        kind: HelpKind,
    ) -> Here {
        let pieces = wholes.iter().enumerate().flat_map(|(number, whole)| {
            whole.pieces.iter().map(move |piece| HerePiece {
                title: whole.title.clone(),
                whole: number as u64,
                dataset: whole.dataset.clone(),
                piece: piece.clone(),
            })
        });
        let options = RunOptions {
            partial: false,
            node_memory_bytes: Some(READ_BESIDE_BYTES),
            help_from: None,
            ..options.clone()
        };
        let mut key = [0; 8];
        getrandom::fill(&mut key).expect("the system gives random numbers");
        let seconds = from.as_secs_f64();
        let cost = HereCost {
            why: format!("no node had work for {seconds} s before it that was not begun"),
            ..HereCost::default()
        };
        let state = State { cost, ..State::default() };
        Here {
            nodes: nodes.clone(),
            options,
            pieces: pieces.collect(),
            from: from.max(FROM_MIN),
            kind,
            state: Mutex::new(state),
            has_taken: AtomicBool::new(false),
            key: u64::from_le_bytes(key),
            wanted: AtomicUsize::new(usize::MAX),
            waiting: Arc::default(),
            room: AtomicU64::new(0),
            read: AtomicU64::new(0),
            gate: Arc::default(),
            has_given_up: AtomicBool::new(false),
            stop: Cancel::default(),
        }
    }

    /// Memory for the threads here, as many as the budget has room for.
    pub fn lanes(&self, job: &Context) -> Vec<Budget> {
        let budget = job.budget();
        let threads = (budget.threads() as u64).min(LANES_MAX);
        let each = (budget.free_bytes() / 4 / threads).min(LANE_BYTES_MAX);
        let (lanes, each) = match each < LANE_BYTES_MIN {
            true => ((budget.free_bytes() / 4 / LANE_BYTES_MIN).min(threads), LANE_BYTES_MIN),
            false => (threads, each),
        };
        let lanes: Vec<Budget> = (0..lanes)
            .filter_map(|_| budget.part(each, 1, "a part of the work of nodes, done here").ok())
            .collect();
        self.room.store(lanes.len() as u64 * each / 4, Ordering::Relaxed);
        let mut state = self.state();
        state.speeds = vec![None; lanes.len()];
        if lanes.is_empty() {
            state.cost.why = "the memory here has no room for it".to_string();
        }
        lanes
    }

    /// The work of one thread here, until [`Self::stop`].
    pub fn work<K>(self: &Arc<Here>, lane: usize, budget: Budget, arguments: &Value)
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let job = Context::new(budget, self.stop.clone());
        let room = job.budget().memory_bytes() / 4;
        let Ok(_room) = job.budget().reserve(room, "answers that wait for their turn") else { return };
        // Made when there is something to do, and tried before a node gives anything back for it.
        let mut kernel: Option<K> = None;
        while let Some(chosen) = self.choose(lane) {
            let made = match kernel.take() {
                Some(kernel) => Ok(kernel),
                None => tried::<K>(&job, arguments),
            };
            let kernel = match made {
                Ok(made) => kernel.insert(made),
                Err(why) => {
                    self.state().watched[chosen.watched].is_asking = false;
                    return self.give_up(why);
                }
            };
            let Some((piece, out, told)) = self.take_alone(&chosen) else { continue };
            let began = Instant::now();
            let source = self.source(piece, chosen, &job, &told);
            let mut reply = Waiting { here: self, piece, out, waited: Duration::ZERO, failed: None };
            let done = answer_parts(&job, kernel, (vec![source], &Unbegun::default()), &mut reply);
            let seconds = began.elapsed().saturating_sub(reply.waited).as_secs_f64();
            if let Some(why) = reply.failed {
                // Whoever takes the answers gives the piece back.
                return self.give_up(why);
            }
            // Nobody may listen any more.
            let is_wanted = !reply.out.is_closed() && !self.stop.is_cancelled();
            match done {
                Ok(()) if is_wanted => self.did(lane, piece, Some(seconds)),
                Err(failure) if is_wanted => {
                    let (name, what) = (self.pieces[piece].title.clone(), failure.to_string());
                    self.give_up(what.clone());
                    let _ = reply.out.blocking_send(Err(Error::Incomplete { name, what }));
                    return;
                }
                _ => self.state().is_probing = false,
            }
            let _ = reply.out.blocking_send(Ok(None));
        }
    }

    /// What to do next, when there is something; `None` where all is over.
    fn choose(&self, lane: usize) -> Option<Chosen> {
        loop {
            if self.stop.is_cancelled() || self.has_given_up.load(Ordering::Relaxed) {
                return None;
            }
            match self.chosen(lane, 0) {
                Choice::Piece(chosen) => return Some(chosen),
                Choice::Nothing if self.kind.is_one_answer() => return None,
                Choice::Nothing | Choice::Wait => thread::sleep(self.from / 40),
            }
        }
    }

    /// What a thread does next that has taken so many pieces before that it has not begun. Of a query no more than twice as many as were done: the
    /// first ones are read, and what is done with them takes longer than that.
    fn chosen(&self, lane: usize, ahead: usize) -> Choice {
        if self.waiting.load(Ordering::Relaxed) >= self.room.load(Ordering::Relaxed) {
            // What would come of it would have to wait.
            return Choice::Wait;
        }
        let by_pieces = self.kind.is_told_by_pieces();
        let mut state = self.state();
        // Rows may be more than what they were read from.
        let is_wide = self.kind.is_one_answer() && state.answers_are_wide();
        self.gate.set_wide(is_wide);
        let all_moves = is_wide || self.kind.all_moves();
        if state.is_closed || self.has_given_up.load(Ordering::Relaxed) {
            return Choice::Nothing;
        }
        let (mut nodes_speed, mut progress_of_all) = (0.0, 0);
        let tail = if self.kind.answers_late() { TAIL } else { 0.0 };
        // The node that needs longest: seconds to its answer, and for what it has not begun alone; bytes of a piece.
        let mut longest: Option<((f64, f64), f64, Chosen)> = None;
        // Where all comes here anyway, there is little to be lost by a wrong guess.
        let from = self.from.as_secs_f64() / if all_moves { 8.0 } else { 1.0 };
        let shown = from / 2.0;
        // Another node may have something to do later.
        let mut may_come = false;
        for (place, watched) in state.watched.iter().enumerate() {
            let told = watched.told.lock().expect("no panic under this lock");
            progress_of_all =
                u64::saturating_add(progress_of_all, told.stands.map_or(0, |(progress, _)| progress));
            if told.is_over || watched.is_left || self.kind.answers_late() && told.has_answered {
                continue;
            }
            // A node whose answers wait gets no further than it told, as long as nothing newer comes.
            let since = told.stood.filter(|_| by_pieces).map_or(0.0, |stood| stood.elapsed().as_secs_f64());
            let worked = told.stands.map(|(_, stands)| stands.seconds + since);
            let told = told.stands.filter(|(_, stands)| stands.has_told).zip(worked);
            let Some(((progress, stands), worked)) = told.filter(|(_, worked)| *worked >= shown) else {
                may_come = true;
                continue;
            };
            let piece_bytes = stands.unbegun_bytes as f64 / stands.unbegun.max(1) as f64;
            let done = match by_pieces {
                // Of the piece under way a half is done.
                true => {
                    let left = stands.unbegun_bytes.saturating_add(watched.given_bytes);
                    (stands.bytes.saturating_sub(left) as f64 - piece_bytes / 2.0).max(0.0)
                }
                false => progress as f64,
            };
            let speed = done / worked;
            nodes_speed += speed;
            let seconds = |bytes: f64| bytes / speed.max(1.0);
            let unbegun = seconds(stands.unbegun_bytes as f64);
            let mut end = unbegun + seconds(stands.bytes.saturating_sub(watched.given_bytes) as f64) * tail;
            if self.kind.is_one_answer() {
                // It has a piece under way, too, while this one is done.
                end += seconds(piece_bytes);
            }
            // Whoever sorts has to begin when there is little left; others can wait and see whether the node becomes slower.
            may_come |= stands.unbegun > 0 && !all_moves;
            let is_free = stands.unbegun > 0 && !watched.is_asking && !watched.is_doubtful;
            if is_free && longest.as_ref().is_none_or(|((other, _), ..)| end > *other) {
                let Watched { attempt, node, .. } = *watched;
                let task = TakeBack { task: stands.task, key: self.key };
                let chosen = Chosen { watched: place, attempt, node, task };
                longest = Some(((end, unbegun), piece_bytes, chosen));
            }
        }
        state.cost.nodes_bytes_per_second = nodes_speed.max(state.cost.nodes_bytes_per_second);
        let nothing = if may_come { Choice::Wait } else { Choice::Nothing };
        let Some(((end, unbegun), bytes, chosen)) = longest else { return nothing };
        let is_over = |before: &Before| !by_pieces && before.at.elapsed() > self.from * 3 / 2;
        if let Some(before) = state.before.filter(is_over) {
            let done = progress_of_all.saturating_sub(before.progress) + self.read.load(Ordering::Relaxed);
            state.before = None;
            if (done as f64) < GAIN * before.speed * before.at.elapsed().as_secs_f64() {
                state.cost.why =
                    "the nodes did as much less meanwhile: their drives are the limit".to_string();
                self.has_given_up.store(true, Ordering::Relaxed);
                return Choice::Nothing;
            }
        }
        let known: Vec<f64> = state.speeds.iter().copied().flatten().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let own = state.speeds[lane].or((!known.is_empty()).then_some(mean));
        let lanes = state.speeds.len() as f64;
        match own {
            None if state.is_probing || ahead > 0 => return Choice::Wait,
            Some(_) if !self.kind.answers_late() && ahead as u64 >= AHEAD_PIECES * state.cost.pieces => {
                return Choice::Wait;
            }
            None if unbegun < from => return nothing,
            None => {
                state.is_probing = true;
                let (at, progress, speed) = (Instant::now(), progress_of_all, nodes_speed);
                state.before = Some(Before { at, progress, speed });
            }
            Some(_) if !all_moves && mean * lanes < WORTH * nodes_speed => {
                state.cost.why = "that would not have been worth the bytes".to_string();
                return nothing;
            }
            Some(own) => {
                let before = ahead as f64 * bytes;
                let of_all = (state.done_bytes as f64 + before + bytes) / lanes * tail;
                let end_here = (bytes + before / lanes + of_all) / own;
                if end_here * if ahead > 0 { AHEAD } else { 1.0 } > end {
                    state.cost.why = "the nodes were done with the rest before".to_string();
                    return nothing;
                }
            }
        }
        state.watched[chosen.watched].is_asking = true;
        Choice::Piece(chosen)
    }

    /// Takes a piece back of a node, to be done for itself; gives its number, where its answers go, and where it is told how far it is.
    fn take_alone(&self, chosen: &Chosen) -> Option<TakenPiece> {
        // Room for all that the account of waiting bytes lets wait.
        let (out, answers) = mpsc::channel(1 << 14);
        let told: Arc<Mutex<Told>> = Arc::default();
        told.lock().expect("no panic under this lock").alive = Some((0, Instant::now()));
        let piece = self.take(chosen, Some((answers, told.clone())))?;
        Some((piece, out, told))
    }

    /// Takes a piece back of a node; gives its number.
    fn take(&self, chosen: &Chosen, alone: Option<Alone>) -> Option<usize> {
        let answered = self.nodes.ask_within(chosen.node, "take-back", written(&chosen.task), ANSWER);
        let read = |answers: Vec<bytes::Bytes>| serde_json::from_slice::<TakenBack>(answers.first()?).ok();
        let taken = answered.ok().and_then(read);
        let mut state = self.state();
        let State { watched, taken: all_taken, is_probing, .. } = &mut *state;
        let watched = &mut watched[chosen.watched];
        watched.is_asking = false;
        let piece = match taken {
            Some(TakenBack { piece }) => piece.and_then(|piece| usize::try_from(piece).ok()),
            // Maybe the node has left one alone.
            None => {
                (watched.is_doubtful, *is_probing) = (true, false);
                return None;
            }
        };
        let mut told = watched.told.lock().expect("no panic under this lock");
        let Some((piece, bytes)) = piece.and_then(|piece| Some((piece, self.pieces.get(piece)?.piece.bytes)))
        else {
            // Whatever it said, it has none.
            if let Some((_, stands)) = &mut told.stands {
                (stands.unbegun, stands.unbegun_bytes) = (0, 0);
            }
            *is_probing = false;
            return None;
        };
        if let Some((_, stands)) = &mut told.stands {
            // It tells so itself a little later.
            stands.unbegun = stands.unbegun.saturating_sub(1);
            stands.unbegun_bytes = stands.unbegun_bytes.saturating_sub(bytes);
        }
        drop(told);
        // Its pieces were given to others while it was asked; or it gives what it was not asked for, or has given before.
        let is_none = watched.is_left && watched.is_doubtful || !watched.pieces.remove(&piece);
        if is_none || self.stop.is_cancelled() {
            (watched.is_doubtful, *is_probing) = (true, false);
            return None;
        }
        watched.given_bytes += bytes;
        all_taken.push(TakenOver { piece, from: chosen.attempt, alone });
        self.has_taken.store(true, Ordering::Release);
        Some(piece)
    }

    /// A piece as a stream from the node that gave it back.
    fn source(
        self: &Arc<Here>,
        number: usize,
        chosen: Chosen,
        job: &Context,
        told: &Arc<Mutex<Told>>,
    ) -> TaskSource {
        let HerePiece { title, whole, piece, .. } = &self.pieces[number];
        let base = Base { offset: piece.offset + piece.from, lines: piece.lines_before };
        // Where that node is lost, whoever takes the answers asks others.
        let read = self.read_of(number, |holder| holder == chosen.node);
        let (here, job, beside) = (self.clone(), job.clone(), (chosen.node, chosen.task));
        let told = told.clone();
        let open = move |_: &Context| {
            let reader = PieceReader::begin(here, &job, &read, beside, told, 0);
            let reader = reader.map_err(|error| crate::Error::Stream(Box::new(error)))?;
            Ok(Opened::Stream(Box::new(reader)))
        };
        let source = Source::new(title, open).behind(base);
        TaskSource { number: number as u64, whole: *whole, source, stored: None }
    }

    /// A piece as something to read, from those nodes that will do.
    fn read_of(&self, number: usize, will_do: impl Fn(usize) -> bool) -> Whole {
        let HerePiece { title, dataset, piece, .. } = &self.pieces[number];
        let holders = piece.holders.iter().filter(|holder| will_do(holder.node)).cloned().collect();
        Whole {
            title: title.clone(),
            dataset: dataset.clone(),
            file: None,
            kind: String::new(),
            pieces: vec![Piece { holders, ..piece.clone() }],
            record_bytes: None,
            record_lines: None,
            is_grouped: false,
            fault: None,
        }
    }

    /// A piece was done in so many seconds; in none that tell how fast this machine is, where none are said.
    fn did(&self, lane: usize, piece: usize, seconds: Option<f64>) {
        let HerePiece { piece, .. } = &self.pieces[piece];
        let bytes = piece.bytes - piece.from;
        let mut state = self.state();
        match seconds {
            Some(seconds) => state.speeds[lane] = Some(bytes as f64 / seconds.max(1e-6)),
            // The next one will tell.
            None => state.is_probing = false,
        }
        let known = state.speeds.iter().copied().flatten();
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), speed| (sum + speed, count + 1.0));
        state.cost.bytes_per_second = (count > 0.0).then(|| sum / count);
        state.cost.pieces += 1;
        state.done_bytes += bytes;
        if !self.has_given_up.load(Ordering::Relaxed) {
            state.cost.why = "the nodes were done with the rest before".to_string();
        }
    }

    /// Takes no more, for this reason.
    pub fn give_up(&self, why: String) {
        let mut state = self.state();
        // What fails because of that is no other reason.
        if !self.has_given_up.swap(true, Ordering::Relaxed) {
            state.cost.why = why;
        }
    }

    /// Who may take back what is asked for here.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The answers of this piece are waited for.
    pub fn is_waited_for(&self, piece: usize) {
        self.wanted.store(piece, Ordering::Relaxed);
    }

    /// Who waits for the wire.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// How often a node is to tell how it stands.
    pub fn often(&self) -> Duration {
        self.from / 8
    }

    /// Watches what a node tells of an attempt, which was asked for these pieces.
    pub fn watch(&self, attempt: usize, node: usize, pieces: &[usize], told: Arc<Mutex<Told>>) {
        let watched = Watched {
            attempt,
            node,
            told,
            is_asking: false,
            is_doubtful: false,
            is_left: false,
            pieces: pieces.iter().copied().collect(),
            given_bytes: 0,
        };
        self.state().watched.push(watched);
    }

    /// Asks an attempt for nothing any more, and waits until nobody is asking it. One of which it is not known what it gave back is
    /// [doubtful](Self::is_doubtful).
    pub fn leave(&self, attempt: usize) {
        let until = Instant::now() + 2 * ANSWER;
        loop {
            let mut state = self.state();
            let of_it = state.watched.iter_mut().filter(|watched| watched.attempt == attempt);
            let is_late = Instant::now() > until;
            let mut is_asking = false;
            for watched in of_it {
                watched.is_left = true;
                watched.is_doubtful |= watched.is_asking && is_late;
                is_asking |= watched.is_asking;
            }
            if !is_asking || is_late {
                return;
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether there is something to [take over](Self::taken).
    pub fn has_taken(&self) -> bool {
        self.has_taken.load(Ordering::Acquire)
    }

    /// What was taken since the last time.
    pub fn taken(&self) -> Vec<TakenOver> {
        let mut state = self.state();
        self.has_taken.store(false, Ordering::Release);
        std::mem::take(&mut state.taken)
    }

    /// Whether somebody is asking for a piece of an attempt.
    pub fn is_asking(&self, attempt: usize) -> bool {
        self.state().watched.iter().any(|watched| watched.attempt == attempt && watched.is_asking)
    }

    /// An attempt may have given back what nobody does.
    pub fn doubt(&self, attempt: usize) {
        let mut state = self.state();
        let of_it = state.watched.iter_mut().filter(|watched| watched.attempt == attempt);
        of_it.for_each(|watched| watched.is_doubtful = true);
    }

    /// Whether that is so.
    pub fn is_doubtful(&self, attempt: usize) -> bool {
        self.state().watched.iter().any(|watched| watched.attempt == attempt && watched.is_doubtful)
    }

    /// Ends all threads here; what they have taken and nobody listens to is forgotten.
    pub fn stop(&self) {
        self.stop.cancel();
        drop(self.taken());
    }

    /// What was done here, and what reading for it cost the nodes.
    pub fn costs(&self) -> (HereCost, Gathered) {
        let state = self.state();
        let bytes = self.read.load(Ordering::Relaxed);
        (HereCost { bytes, ..state.cost.clone() }, state.read.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

/// Ends the threads here when it goes.
#[derive(Debug)]
pub(super) struct Stops(pub Arc<Here>);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.stop();
    }
}
