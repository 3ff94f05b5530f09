//! Runs a job on nodes: carries out the decisions of the [scheduler](super::scheduler), and reports events to
//! the scheduler.
//!
//! ```text
//!   node ◄── DoGet, "hand-out" ──┐        ┌── event ──► Scheduler
//!        ── answers, PullRequest ──► Run ───┤◄─ actions ──┘
//!                                  ▲  │   └── batches ──► consumer of the answers (Gather, Streams)
//!        threads of the client ────┘  └── wakes the threads
//! ```
//!
//! Pumps, threads of the client and the consumer of the answers share one [`Run`]. The lock of the state
//! serializes all calls of the scheduler.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_kernel::ResumePosition;
use inshore_store::Context;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    gather_report::{MissingPart, NodeCost, RunOptions},
    help::{MeasuredRates, Rates},
    scheduler::{Action, AnswerOrder, Event, Puller, Scheduler, ShardState},
};
use crate::{
    DistributedFile, Error, Nodes, Piece, Result,
    client::pump::{AttemptReport, LATE, NodeMessage, Outlet, pump, queue},
    protocol::{PieceRequest, PullOptions, ShardGrant, TaskKey, TaskRequest, VERSION, wire::json},
};

/// The maximum time in which a node has to accept shards that it requested.
const TAKES: Duration = Duration::from_secs(30);
/// The interval at which a waiting thread checks for changes, even without a notification.
const LOOK: Duration = Duration::from_millis(50);

/// A shard with its location on nodes.
#[derive(Debug)]
pub(crate) struct PlacedShard {
    pub title: String,
    pub whole: u64,
    pub dataset: String,
    pub piece: Piece,
}

impl PlacedShard {
    /// Returns the description of the part of the shard that the client has not taken.
    pub fn rest(&self, reach: ResumePosition, why: String) -> MissingPart {
        let (offset, bytes) = (self.piece.offset + reach.bytes, self.piece.bytes - reach.bytes);
        MissingPart { title: self.title.clone(), offset, bytes, why }
    }

    /// Returns the request to a node for the remainder of the shard.
    fn request(&self, number: usize, node: usize, reach: ResumePosition) -> Option<PieceRequest> {
        let holder = self.piece.holders.iter().find(|holder| holder.node == node)?;
        Some(self.piece.request(holder, &self.dataset, (number as u64, self.whole), reach))
    }
}

/// A job on nodes.
#[derive(Debug)]
pub(crate) struct Run {
    pub nodes: Nodes,
    pub job: Context,
    pub options: RunOptions,
    pub shards: Vec<PlacedShard>,
    kind: &'static str,
    arguments: Value,
    key: u64,
    began: Instant,
    /// The bytes that had been received from each node before the job began.
    bytes_before: Vec<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub scheduler: Scheduler,
    pub rates: Rates,
    /// For each shard, the position up to which the client has taken its rows.
    pub reach: Vec<ResumePosition>,
    /// For each shard, the position at which the current attempt began.
    pub from: Vec<ResumePosition>,
    pub links: BTreeMap<usize, Link>,
    pub costs: BTreeMap<usize, NodeCost>,
    /// The last refusal of a node.
    pub refusal: Option<Error>,
    /// The maximum size, in bytes, of each node's answers that may wait on this machine.
    pub ahead_bytes: u64,
    /// The number of nodes whose answers may wait on this machine.
    pub ahead_nodes: usize,
    is_stopped: bool,
}

/// The two channels between the client and an attempt.
#[derive(Debug)]
pub(crate) struct Link {
    pub answers: Option<Answers>,
    pub told: Arc<Mutex<AttemptReport>>,
    hands: Option<mpsc::UnboundedSender<AttemptMessage>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Link {
    fn stop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        (self.answers, self.hands) = (None, None);
    }
}

/// A message to an attempt on a node.
#[derive(Debug)]
enum AttemptMessage {
    Shard(PieceRequest),
    Last,
}

/// The source of the answers of an attempt.
#[derive(Debug)]
pub(crate) enum Answers {
    Node(Outlet),
    Client(mpsc::Receiver<Result<Option<RecordBatch>>>),
}

impl Answers {
    pub async fn next(&mut self) -> Option<Result<Option<RecordBatch>>> {
        match self {
            Answers::Node(answers) => answers.next().await,
            Answers::Client(answers) => answers.recv().await,
        }
    }
}

impl Run {
    pub fn new(
        nodes: &Nodes,
        job: &Context,
        wholes: &[DistributedFile],
        (kind, arguments): (&'static str, Value),
        options: &RunOptions,
        order: AnswerOrder,
    ) -> Arc<Run> {
        let lost = nodes.0.lost().clone();
        let shards = wholes.iter().enumerate().flat_map(|(number, whole)| {
            whole.pieces.iter().map(move |piece| PlacedShard {
                title: whole.title.clone(),
                whole: number as u64,
                dataset: whole.dataset.clone(),
                piece: piece.clone(),
            })
        });
        let shards: Vec<PlacedShard> = shards.collect();
        let start = |shard: &PlacedShard| ResumePosition { bytes: shard.piece.from, lines: 0 };
        let reach: Vec<ResumePosition> = shards.iter().map(start).collect();
        // The scheduler sends no requests to nodes that were lost earlier.
        let of_scheduler = shards.iter().map(|PlacedShard { piece, .. }| {
            let holders: Vec<usize> = piece.holders.iter().map(|holder| holder.node).collect();
            let lost = holders.iter().filter_map(|node| Some((*node, lost.get(node)?)));
            let told = lost.map(|(node, why)| format!("{}: {why}", nodes.0.nodes[node].address));
            let why = piece.absent.iter().cloned().chain(told).collect();
            (piece.bytes - piece.from, holders, why)
        });
        let gone: BTreeSet<usize> = lost.keys().copied().collect();
        let count = nodes.0.nodes.len();
        let scheduler = Scheduler::new(order, options.stall, count, gone, of_scheduler);
        let mut key = [0; 8];
        getrandom::fill(&mut key).expect("the system gives random numbers");
        Arc::new(Run {
            bytes_before: nodes.0.nodes.iter().map(|node| node.bytes_in.load(Ordering::Relaxed)).collect(),
            nodes: nodes.clone(),
            job: job.clone(),
            options: options.clone(),
            kind,
            arguments,
            key: u64::from_le_bytes(key),
            began: Instant::now(),
            state: Mutex::new(State {
                scheduler,
                rates: Rates::new(options.help_from.unwrap_or_default()),
                from: reach.clone(),
                reach,
                links: BTreeMap::new(),
                costs: BTreeMap::new(),
                refusal: None,
                ahead_bytes: 0,
                ahead_nodes: 0,
                is_stopped: false,
            }),
            changed: Condvar::new(),
            shards,
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Begins a task on each node that holds shards.
    pub fn start(self: &Arc<Run>) {
        let mut state = self.state();
        let actions = state.scheduler.start(self.now());
        self.act(&mut state, actions);
    }

    /// Begins a task that reads no shards, on a node.
    pub fn begin_without_shards(self: &Arc<Run>, node: usize) {
        let mut state = self.state();
        let attempt = state.scheduler.begin_without_shards(node, self.now());
        self.begin(&mut state, attempt, node, false);
    }

    /// Begins an attempt of a client thread, whose answers arrive on the given channel.
    pub fn begin_client(
        &self,
        answers: mpsc::Receiver<Result<Option<RecordBatch>>>,
        told: Arc<Mutex<AttemptReport>>,
    ) -> usize {
        let mut state = self.state();
        let attempt = state.scheduler.begin_client(self.now());
        let answers = Some(Answers::Client(answers));
        state.links.insert(attempt, Link { answers, told, hands: None, tasks: Vec::new() });
        attempt
    }

    /// Reports an event to the scheduler and carries out the resulting actions.
    pub fn tell(self: &Arc<Run>, event: Event) {
        let mut state = self.state();
        self.tell_to(&mut state, event);
    }

    pub fn tell_to(self: &Arc<Run>, state: &mut State, event: Event) {
        let actions = state.scheduler.on(self.now(), event);
        self.act(state, actions);
    }

    /// Pulls a shard for a thread of the client.
    pub fn pull(self: &Arc<Run>, attempt: usize) -> Option<usize> {
        let mut state = self.state();
        let (shard, actions) = state.scheduler.pull(self.now(), attempt);
        if let Some(shard) = shard {
            state.from[shard] = state.reach[shard];
            let now = self.now();
            state.rates.client_pulls(now);
        }
        self.act(&mut state, actions);
        shard
    }

    /// Returns the measurements of the job so far.
    pub fn observed(&self) -> MeasuredRates {
        let state = self.state();
        let (queued, left) = (state.scheduler.queued(), state.scheduler.left_bytes());
        state.rates.observed(queued, left, self.now())
    }

    /// Returns true if the client needs no more answers of an attempt.
    pub fn is_over(&self, attempt: usize) -> bool {
        let state = self.state();
        state.is_stopped || state.scheduler.is_over(attempt)
    }

    /// Records the time in which the client finished a shard.
    pub fn client_did(&self, shard: usize, seconds: f64) {
        let Piece { bytes, from, .. } = self.shards[shard].piece;
        let now = self.now();
        self.state().rates.client_did(now, bytes - from, seconds);
    }

    /// Waits for a short time until the state changes.
    pub fn wait(&self, state: MutexGuard<'_, State>) {
        drop(self.changed.wait_timeout(state, LOOK));
    }

    fn act(self: &Arc<Run>, state: &mut State, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Begin { attempt, node } => self.begin(state, attempt, node, true),
                Action::HandOut { attempt, shard } => {
                    state.from[shard] = state.reach[shard];
                    let Piece { bytes, from, .. } = self.shards[shard].piece;
                    state.rates.handed(attempt, bytes - from);
                    let node = state.scheduler.puller(attempt).node();
                    let request =
                        node.and_then(|node| self.shards[shard].request(shard, node, state.reach[shard]));
                    let hands = state.links.get(&attempt).and_then(|link| link.hands.as_ref());
                    if let (Some(hands), Some(request)) = (hands, request) {
                        // If the receiver was dropped, the attempt has ended. The stream of the attempt reports the
                        // end.
                        let _ = hands.send(AttemptMessage::Shard(request));
                    }
                }
                Action::End { attempt } => {
                    state.rates.forget(attempt);
                    let hands = state.links.get(&attempt).and_then(|link| link.hands.as_ref());
                    let _ = hands.map(|hands| hands.send(AttemptMessage::Last));
                }
                Action::Cancel { attempt } => {
                    if let Some(link) = state.links.get_mut(&attempt) {
                        link.stop();
                    }
                    state.rates.forget(attempt);
                    let why = state.scheduler.blamed(attempt).map(str::to_string);
                    if let Some((why, node)) = why.zip(state.scheduler.puller(attempt).node()) {
                        let why = self.named(node, &why);
                        state.costs.entry(node).or_default().lost = Some(why);
                    }
                }
                // The thread that takes answers checks for missing shards.
                Action::Missing { .. } => {}
            }
        }
        self.changed.notify_all();
    }

    /// Sends the request for a task to a node.
    fn begin(self: &Arc<Run>, state: &mut State, attempt: usize, node: usize, pulls: bool) {
        let (bytes, shards) = state.scheduler.expected_of(node);
        let left = self.nodes.0.deadline.map(|deadline| deadline.left());
        let request = TaskRequest {
            version: VERSION,
            kind: self.kind.to_string(),
            arguments: self.arguments.clone(),
            pieces: Vec::new(),
            memory_bytes: self.options.node_memory_bytes,
            // The deadline of the node is a little later than the client's, since the client reports the unread
            // parts.
            deadline_ms: left.map(|left| (left + LATE).as_millis() as u64),
            // The node reports progress six times within the stall time, since reports may arrive late.
            alive_ms: Some((self.options.stall / 6).as_millis() as u64),
            pulls: pulls.then_some(PullOptions { key: self.key, bytes, shards }),
            beside: None,
            trace: None,
        };
        let cost = state.costs.entry(node).or_default();
        cost.node = self.nodes.0.nodes[node].address.clone();
        cost.tasks += 1;
        let has_room = self.answering(state) <= state.ahead_nodes;
        let (out, answers) = queue(if has_room { state.ahead_bytes } else { 0 });
        let told: Arc<Mutex<AttemptReport>> = Arc::default();
        let (hands, handed) = mpsc::unbounded_channel();
        let run = self.clone();
        let hear = move |heard: NodeMessage<'_>| run.hear(attempt, heard);
        let runtime = &self.nodes.0.runtime;
        let mut tasks =
            vec![runtime.spawn(pump(self.nodes.0.nodes[node].clone(), request, out, told.clone(), hear))];
        if pulls {
            tasks.push(runtime.spawn(self.clone().hand_on(attempt, node, told.clone(), handed)));
        }
        let answers = Some(Answers::Node(answers));
        state.links.insert(attempt, Link { answers, told, hands: Some(hands), tasks });
    }

    /// Returns the number of attempts on nodes that are not over.
    pub fn answering(&self, state: &State) -> usize {
        let scheduler = &state.scheduler;
        let is_node = |attempt: &usize| scheduler.puller(*attempt) != Puller::Client;
        (0..scheduler.attempts()).filter(is_node).filter(|&attempt| !scheduler.is_over(attempt)).count()
    }

    fn hear(self: &Arc<Run>, attempt: usize, heard: NodeMessage<'_>) {
        match heard {
            NodeMessage::Progress => self.tell(Event::Progressed { attempt }),
            NodeMessage::Pulls(pulls) => {
                let finished = usize::try_from(pulls.finished).unwrap_or(usize::MAX);
                let read =
                    usize::try_from(pulls.finished.saturating_sub(pulls.reading)).unwrap_or(usize::MAX);
                let mut state = self.state();
                let bytes = state.scheduler.bytes_of_first(attempt, read);
                state.rates.pulled(attempt, self.now(), bytes);
                self.tell_to(&mut state, Event::Pulled { attempt, finished });
            }
            NodeMessage::Closed(error) => {
                let mut state = self.state();
                let is_gone = !matches!(error, Error::SetAside { .. });
                self.remember(&mut state, attempt, error);
                let why = error.to_string();
                self.tell_to(&mut state, Event::Closed { attempt, why, is_gone });
            }
        }
    }

    /// Stores a refusal, which explains a failure better than a missing shard does, or records that a node is
    /// lost. This command sends no more requests to a lost node.
    pub fn remember(&self, state: &mut State, attempt: usize, error: &Error) {
        if let Error::Refused { node, what } = error {
            let (node, what) = (node.clone(), what.clone());
            state.refusal = Some(Error::Refused { node, what });
        }
        if let (Some(node), Error::Lost { what, .. }) = (state.scheduler.puller(attempt).node(), error)
            && !state.scheduler.is_over(attempt)
        {
            self.nodes.0.lose(node, what);
        }
    }

    /// Sends shards to a node as they are handed out.
    async fn hand_on(
        self: Arc<Run>,
        attempt: usize,
        node: usize,
        told: Arc<Mutex<AttemptReport>>,
        mut handed: mpsc::UnboundedReceiver<AttemptMessage>,
    ) {
        let (mut some, mut is_last) = (Vec::new(), false);
        while !is_last && handed.recv_many(&mut some, 256).await > 0 {
            // No shard is handed out before the node has sent the number of its task.
            let Some(task) = told.lock().expect("no panic under this lock").task else { return };
            let mut shards = Vec::with_capacity(some.len());
            for hands in some.drain(..) {
                match hands {
                    AttemptMessage::Shard(shard) => shards.push(shard),
                    AttemptMessage::Last => is_last = true,
                }
            }
            let message = ShardGrant { to: TaskKey { task, key: self.key }, shards, is_last };
            let asked = self.nodes.0.nodes[node].ask("hand-out", json(&message), TAKES, Some(TAKES));
            if let Err(error @ Error::Lost { .. }) = asked.await {
                let why = error.to_string();
                self.tell(Event::Failed { attempt, why, is_gone: true });
                return;
            }
            // A node that refuses a shard has ended the task, and reports the reason in its stream.
        }
    }

    /// Returns a running task of this job on a node, if there is one. While this task runs, the client may read data
    /// from the node.
    pub fn beside(&self, node: usize) -> Option<TaskKey> {
        let state = self.state();
        let of_node = |attempt: &usize| {
            state.scheduler.puller(*attempt) == Puller::Node(node) && !state.scheduler.is_over(*attempt)
        };
        let attempt = (0..state.scheduler.attempts()).rev().find(of_node)?;
        let told = state.links.get(&attempt)?.told.clone();
        let task = told.lock().expect("no panic under this lock").task?;
        Some(TaskKey { task, key: self.key })
    }

    /// Returns the nodes from which the client can read a shard, each with a request.
    pub fn holders(&self, shard: usize) -> Vec<(usize, PieceRequest)> {
        let state = self.state();
        let takers = state.scheduler.takers(shard);
        let request = |node: usize| Some((node, self.shards[shard].request(shard, node, state.from[shard])?));
        takers.into_iter().filter_map(request).collect()
    }

    /// Returns a sentence about a node that contains its address once.
    pub fn named(&self, node: usize, why: &str) -> String {
        let address = &self.nodes.0.nodes[node].address;
        let why = why.strip_prefix("node ").unwrap_or(why);
        if why.starts_with(address) { why.to_string() } else { format!("{address}: {why}") }
    }

    /// Returns the address of the machine of a puller.
    pub fn address(&self, puller: Puller) -> &str {
        puller.node().map_or("this machine", |node| &self.nodes.0.nodes[node].address)
    }

    /// Returns the parts of files that no remaining node holds.
    pub fn missing(&self, state: &State) -> Vec<MissingPart> {
        let numbers =
            (0..self.shards.len()).filter(|&shard| state.scheduler.state(shard) == ShardState::Missing);
        let why = |shard: usize| {
            let named = |(node, why): &(Option<usize>, String)| match node {
                Some(node) => self.named(*node, why),
                None => why.clone(),
            };
            let mut whys: Vec<String> = state.scheduler.why(shard).iter().map(named).collect();
            whys.dedup();
            whys.join("; ")
        };
        numbers.map(|shard| self.shards[shard].rest(state.reach[shard], why(shard))).collect()
    }

    /// Stops all tasks, and waits until no task refers to this job. Otherwise a task might drop the runtime in one of
    /// the runtime's own threads, which is not allowed.
    pub fn stop(&self) {
        let tasks: Vec<JoinHandle<()>> = {
            let mut state = self.state();
            state.is_stopped = true;
            state.links.values_mut().for_each(Link::stop);
            self.changed.notify_all();
            state.links.values_mut().flat_map(|link| std::mem::take(&mut link.tasks)).collect()
        };
        self.nodes.0.runtime.block_on(futures::future::join_all(tasks));
    }

    /// Returns the costs of each node.
    pub fn costs(&self) -> Vec<NodeCost> {
        let mut state = self.state();
        let State { links, costs, scheduler, .. } = &mut *state;
        for (&attempt, link) in links.iter_mut() {
            let Some(node) = scheduler.puller(attempt).node() else { continue };
            let Some(done) = link.told.lock().expect("no panic under this lock").done.take() else {
                continue;
            };
            let cost = costs.entry(node).or_default();
            cost.bytes_read += done.bytes_read;
            cost.cpu_seconds += done.cpu_seconds;
            cost.seconds += done.seconds;
            cost.queued_seconds += done.queued_seconds;
        }
        for (&node, cost) in costs.iter_mut() {
            let now = self.nodes.0.nodes[node].bytes_in.load(Ordering::Relaxed);
            cost.bytes_moved = now - self.bytes_before[node];
        }
        std::mem::take(costs).into_values().collect()
    }
}
