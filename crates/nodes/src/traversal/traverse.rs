//! Follows pointers through a file that is spread over nodes.
//!
//! The pointers can be followed in three ways with the same results ([`TraversalSide`]):
//!
//! ```text
//!   nodes    client ─► A ──► C ──► B ──► C ─► client         half a round trip for each change of node
//!   turns    client ─► A ─► client ─► C ─► client ─► B ...   a round trip for each change of node
//!   client   client ─► A ─► client ─► A ─► client ─► C ...   a round trip for each page, which the client reads
//! ```
//!
//! In each way the client first asks all nodes that hold a part of the file to take part, with the token of the
//! client: every access along a chain was requested by the client. The client listens to all nodes and
//! therefore sees the loss of a node. The chains are then followed again on the remaining nodes, each from the
//! last position that the client knows. Reading a page has no side effects, so nothing has to be undone.
//!
//! Estimated cost on a network of 1 Gbit/s with a round trip of 0.1 ms and a drive with a latency of 0.1 ms:
//! 0.3 to 0.4 ms for a page that is sent to the client, 0.1 ms for a page on the current node of the chain, and
//! 0.2 ms for a page on another node. The measured times without optimised libraries are 0.5 ms, 0.1 ms and 0.3
//! ms (docs/benchmarks.md). The difference is software at both ends, not the network.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use bytes::Bytes;
use futures::FutureExt;
use inshore_store::{Context, Reservation};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinHandle};

use super::hop::{
    Arguments, CHAINS_MAX, ChainPosition, Hop, HopKind, LAST_PAGE, Link, LinkMessage, PAGE_BYTES_MAX,
    Pointers, ReportKind, STEPS_MAX, Session, TraversalReport, TraversalSummary, send,
};
use crate::{
    DistributedFile, Error, Nodes, Result,
    client::pump::{AttemptReport, pump, queue},
    protocol::{PieceRequest, TRAVERSE, TaskRequest, VERSION},
};

/// The side that follows the pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraversalSide {
    /// The nodes: each node follows a chain through its own pages and hands the chain to the node with the next
    /// page.
    #[default]
    Nodes,
    /// The nodes, by way of the client: each node returns the chain to the client, and the client hands the
    /// chain to the next node.
    Turns,
    /// The client: every page is sent to the client.
    Client,
}

/// Options of a traversal: the format of the pages, limits and memory.
#[derive(Clone, Debug)]
pub struct TraverseOptions {
    /// The place of the pointer to the next page within a page.
    pub pointers: Pointers,
    /// The maximum number of pointers to follow in each chain, at most [`STEPS_MAX`].
    pub steps: u64,
    /// The side that follows the pointers.
    pub by: TraversalSide,
    /// The memory in bytes for pages that the client caches if the client follows the pointers. The first pages
    /// to arrive are kept.
    pub keep_bytes: u64,
    /// The memory in bytes on each node; `None` stands for the default of the node (8 MiB).
    pub node_memory_bytes: Option<u64>,
}

impl Default for TraverseOptions {
    /// Returns options for pages of 8 KiB that begin with the number of the next page, a thousand steps, and
    /// [`TraversalSide::Nodes`].
    fn default() -> Self {
        TraverseOptions {
            pointers: Pointers::default(),
            steps: 1000,
            by: TraversalSide::default(),
            keep_bytes: 0,
            node_memory_bytes: None,
        }
    }
}

/// The result for one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChainResult {
    /// The number of the first page.
    pub start: u64,
    /// The number of steps taken and the last page reached.
    #[serde(flatten)]
    pub walked: ChainPosition,
    /// True if the last page is marked as the end of the chain.
    pub ended: bool,
}

/// The result of a traversal.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Traversed {
    /// The chains, in the order of the requested start pages.
    pub chains: Vec<ChainResult>,
    /// The work of each node since the last loss of a node.
    pub nodes: Vec<NodeVisits>,
    /// The time in seconds from the moment when all nodes were ready to the end of the last chain.
    pub seconds: f64,
    /// The number of pages that were sent to the client.
    pub pages_moved: u64,
    /// The number of pages that the client read from its cache.
    pub pages_kept: u64,
}

/// The work of one node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeVisits {
    /// The address of the node.
    pub node: String,
    /// The page counts and times of the node.
    #[serde(flatten)]
    pub visited: TraversalSummary,
    /// The bytes that the node read from its devices, in whole checksum units.
    pub bytes_read: u64,
    /// The reason why the node was given up, if the node was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// The interval at which a waiting thread checks for cancellation and the deadline.
const PATIENCE: Duration = Duration::from_millis(50);
/// The time that nodes have to report the cost of a traversal.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// The capacity of the queue of events from nodes.
const EVENTS: usize = 256;

impl Nodes {
    /// Follows chains of pages through a file from each of `starts`, concurrently.
    ///
    /// Memory on this machine: [`TraverseOptions::keep_bytes`], 16 bytes for each piece of the file, and one
    /// page in flight for each chain if the client follows the pointers.
    ///
    /// # Errors
    /// [`Error::Pages`] if the file does not consist of such pages, if a page has an invalid pointer, or if no
    /// reachable node holds a page; [`Error::Refused`], [`Error::Deadline`], [`Error::Store`] (over budget,
    /// stopped).
    pub fn traverse(
        &self,
        job: &Context,
        whole: &DistributedFile,
        starts: &[u64],
        options: &TraverseOptions,
    ) -> Result<Traversed> {
        let mut traversal = Traversal::new(self, job, whole, starts, options)?;
        while !traversal.is_over() {
            traversal.attempt()?;
        }
        Ok(traversal.finish())
    }
}

/// The state of a traversal across all attempts.
struct Traversal<'a> {
    nodes: &'a Nodes,
    job: &'a Context,
    whole: &'a DistributedFile,
    options: &'a TraverseOptions,
    /// The end of each piece, in pages.
    ends: Vec<u64>,
    chains: Vec<ChainResult>,
    over: Vec<bool>,
    given_up: BTreeMap<usize, String>,
    /// The pieces that a node holds and cannot read, with the reason.
    unreadable: BTreeMap<(usize, usize), String>,
    kept: PageCache,
    result: Traversed,
}

/// An event of an attempt.
enum AttemptEvent {
    Told(usize, Result<Option<RecordBatch>>),
    Link(usize, LinkMessage),
}

/// One attempt of a traversal on the current set of nodes. Dropping the attempt ends the tasks on all nodes.
struct Attempt {
    session: Session,
    /// The usable nodes for each piece.
    holders: Vec<Vec<usize>>,
    links: BTreeMap<usize, Link>,
    tasks: BTreeMap<usize, (JoinHandle<()>, Arc<Mutex<AttemptReport>>)>,
    events: mpsc::Receiver<AttemptEvent>,
    /// The nodes that are not ready yet.
    awaited: BTreeSet<usize>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.tasks.values().for_each(|(task, _)| task.abort());
    }
}

/// The decision to continue an attempt or to start again.
#[derive(PartialEq, Eq)]
enum AttemptOutcome {
    On,
    /// A node was lost: a new attempt continues from the current positions of the chains.
    Anew,
}

impl<'a> Traversal<'a> {
    fn new(
        nodes: &'a Nodes,
        job: &'a Context,
        whole: &'a DistributedFile,
        starts: &[u64],
        options: &'a TraverseOptions,
    ) -> Result<Traversal<'a>> {
        let Pointers { page_bytes, at } = options.pointers;
        let bad = |what: String| Err(Error::Pages { name: whole.title.clone(), what });
        if !options.pointers.is_sound() {
            let most = inshore_store::format_bytes(PAGE_BYTES_MAX);
            return bad(format!(
                "the 8 bytes at byte {at} are not within a page of {page_bytes} bytes (a page has at most {most})"
            ));
        }
        if options.steps > STEPS_MAX {
            return bad(format!("{} steps exceed the limit of {STEPS_MAX} for a chain", options.steps));
        }
        if starts.is_empty() || starts.len() > CHAINS_MAX {
            return bad(format!("expected 1 to {CHAINS_MAX} chains, got {}", starts.len()));
        }
        let mut pages = 0;
        let mut ends = Vec::with_capacity(whole.pieces.len());
        for piece in &whole.pieces {
            if piece.bytes % page_bytes != 0 {
                return bad(format!(
                    "the {} bytes at byte {} are not whole pages of {page_bytes} bytes: put it with --record {page_bytes}",
                    piece.bytes, piece.offset
                ));
            }
            pages += piece.bytes / page_bytes;
            ends.push(pages);
        }
        if let Some(start) = starts.iter().find(|&&start| start >= pages) {
            return bad(format!("the starting page {start} does not exist: the file has {pages} pages"));
        }
        let lost =
            |(&node, why): (&usize, &String)| (node, format!("{}: {why}", nodes.0.nodes[node].address));
        job.start_phase("following", "steps", options.steps.saturating_mul(starts.len() as u64));
        let chain = |&start: &u64| ChainResult { start, walked: ChainPosition::at(start), ended: false };
        Ok(Traversal {
            nodes,
            job,
            whole,
            options,
            ends,
            chains: starts.iter().map(chain).collect(),
            over: vec![options.steps == 0; starts.len()],
            given_up: nodes.0.lost().iter().map(lost).collect(),
            unreadable: BTreeMap::new(),
            kept: PageCache::new(job, options)?,
            result: Traversed::default(),
        })
    }

    fn is_over(&self) -> bool {
        self.over.iter().all(|&over| over)
    }

    fn piece(&self, page: u64) -> usize {
        self.ends.partition_point(|&end| end <= page)
    }

    fn pages(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the usable nodes for each piece.
    fn holders(&self) -> Vec<Vec<usize>> {
        let can = |piece: usize, node: usize| {
            !self.given_up.contains_key(&node) && !self.unreadable.contains_key(&(piece, node))
        };
        let of_piece = |(piece, held): (usize, &crate::Piece)| {
            held.holders.iter().map(|holder| holder.node).filter(|&node| can(piece, node)).collect()
        };
        self.whole.pieces.iter().enumerate().map(of_piece).collect()
    }

    /// Returns the error for a page that no usable node holds.
    fn missing(&self, page: u64) -> Error {
        let piece = self.piece(page);
        let held = &self.whole.pieces[piece];
        let mut why = held.absent.clone();
        for holder in &held.holders {
            let found = self.unreadable.get(&(piece, holder.node)).or(self.given_up.get(&holder.node));
            why.extend(found.cloned());
        }
        let from = page * self.options.pointers.page_bytes;
        self.bad_page(format!("page {page}, at byte {from}, was not read: {}", why.join("; ")))
    }

    fn give_up(&mut self, node: usize, why: impl std::fmt::Display) -> AttemptOutcome {
        let address = &self.nodes.0.nodes[node].address;
        let why = why.to_string();
        let why = why.strip_prefix("node ").map_or(why.clone(), str::to_string);
        let why = if why.starts_with(address) { why } else { format!("{address}: {why}") };
        self.given_up.entry(node).or_insert(why);
        AttemptOutcome::Anew
    }

    /// Follows chains until all are over or a node is lost.
    fn attempt(&mut self) -> Result<()> {
        let holders = self.holders();
        for (chain, over) in self.chains.iter().zip(&self.over) {
            if !over && holders[self.piece(chain.walked.page)].is_empty() {
                return Err(self.missing(chain.walked.page));
            }
        }
        let Some(certificates) = self.certificates(&holders)? else { return Ok(()) };
        let mut attempt = self.begin(holders, &certificates);
        let mut began = Instant::now();
        let mut is_ready = false;
        while !self.is_over() {
            if !is_ready && attempt.awaited.is_empty() {
                (is_ready, began) = (true, Instant::now());
                for chain in 0..self.chains.len() {
                    if self.go_on(&attempt, chain)? == AttemptOutcome::Anew {
                        return Ok(());
                    }
                }
                continue;
            }
            let Some(heard) = self.wait(&mut attempt)? else { continue };
            let flow = match heard {
                AttemptEvent::Told(node, told) => self.told(&mut attempt, node, told)?,
                AttemptEvent::Link(node, said) => self.said(&attempt, node, said)?,
            };
            if flow == AttemptOutcome::Anew {
                return Ok(());
            }
        }
        self.result.seconds += began.elapsed().as_secs_f64();
        self.end(attempt)
    }

    /// Returns the certificates of the nodes that hold a part of the file, for authentication between nodes.
    /// Returns `None` if a node did not answer and was given up.
    fn certificates(&mut self, holders: &[Vec<usize>]) -> Result<Option<Vec<Option<String>>>> {
        let mut certificates = vec![None; self.nodes.0.nodes.len()];
        if self.options.by != TraversalSide::Nodes {
            return Ok(Some(certificates));
        }
        let nodes: BTreeSet<usize> = holders.iter().flatten().copied().collect();
        let inner = &self.nodes.0;
        let asked = nodes.iter().map(|&node| inner.ask(node, "certificate", Bytes::new()));
        let mut asked = pin!(futures::future::join_all(asked));
        let answers = loop {
            self.check()?;
            let waited = async { tokio::time::timeout(PATIENCE, &mut asked).await };
            if let Ok(answers) = inner.runtime.block_on(waited) {
                break answers;
            }
        };
        for (&node, answer) in nodes.iter().zip(answers) {
            let answer = answer.and_then(|answer| {
                let text = String::from_utf8(answer.concat());
                text.map_err(|_| self.nodes.0.nodes[node].bad_answer("an invalid certificate"))
            });
            match answer {
                Ok(certificate) => {
                    certificates[node] = Some(certificate).filter(|text| !text.is_empty());
                }
                Err(error @ (Error::Lost { .. } | Error::BadAnswer { .. })) => {
                    self.give_up(node, error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(certificates))
    }

    /// Asks all nodes that hold a part of the file to take part.
    fn begin(&self, holders: Vec<Vec<usize>>, certificates: &[Option<String>]) -> Attempt {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the system gives random numbers");
        let nodes: BTreeSet<usize> = holders.iter().flatten().copied().collect();
        let (events_in, events) = mpsc::channel(EVENTS);
        let mut tasks = BTreeMap::new();
        for &node in &nodes {
            let request = self.request(node, &holders, certificates, random);
            let told: Arc<Mutex<AttemptReport>> = Arc::default();
            let (out, mut answers) = queue(0);
            let asked = pump(self.nodes.0.nodes[node].clone(), request, out, told.clone(), |_| {});
            let events_in = events_in.clone();
            let task = self.nodes.0.runtime.spawn(async move {
                let hand_on = async {
                    while let Some(answer) = answers.next().await {
                        if events_in.send(AttemptEvent::Told(node, answer)).await.is_err() {
                            return;
                        }
                    }
                };
                futures::future::join(asked, hand_on).await;
            });
            tasks.insert(node, (task, told));
        }
        let link = |&node: &usize| {
            let events_in = events_in.clone();
            let hear = move |said| {
                let events_in = events_in.clone();
                async move { drop(events_in.send(AttemptEvent::Link(node, said)).await) }.boxed()
            };
            let inner = &self.nodes.0;
            (node, Link::open(inner.runtime.handle(), inner.nodes[node].clone(), hear))
        };
        let links = nodes.iter().map(link).collect();
        Attempt { session: random, holders, links, tasks, events, awaited: nodes }
    }

    /// Returns the task request for a node, with the pieces that the node holds.
    fn request(
        &self,
        node: usize,
        holders: &[Vec<usize>],
        certificates: &[Option<String>],
        session: Session,
    ) -> TaskRequest {
        let options = self.options;
        let choose = |holders: &Vec<usize>| {
            let own = holders.iter().find(|&&holder| holder == node);
            own.or(holders.first()).map(|&holder| holder as u16)
        };
        let arguments = Arguments {
            session: format!("{:032x}", u128::from_be_bytes(session)),
            pointers: options.pointers,
            steps: options.steps,
            chains: self.chains.len() as u32,
            nodes: self.nodes.addresses().map(str::to_string).collect(),
            certificates: certificates.to_vec(),
            ends: self.ends.clone(),
            holders: holders.iter().map(choose).collect(),
            by_itself: options.by == TraversalSide::Nodes,
        };
        let mut pieces = Vec::new();
        for (number, piece) in self.whole.pieces.iter().enumerate() {
            let is_asked = holders[number].contains(&node);
            let Some(holder) = piece.holders.iter().find(|holder| holder.node == node && is_asked) else {
                continue;
            };
            pieces.push(PieceRequest {
                number: number as u64,
                whole: 0,
                dataset: self.whole.dataset.clone(),
                id: holder.id,
                file: holder.file.clone(),
                from: 0,
                to: piece.bytes,
                offset: piece.offset,
                lines: 0,
            });
        }
        let left = self.nodes.0.deadline.map(|deadline| deadline.left());
        TaskRequest {
            version: VERSION,
            kind: TRAVERSE.to_string(),
            arguments: serde_json::to_value(arguments).expect("plain data"),
            pieces,
            memory_bytes: options.node_memory_bytes,
            deadline_ms: left.map(|left| left.as_millis() as u64),
            // The node reports when chains reach it, not at regular intervals.
            alive_ms: None,
            pulls: None,
            beside: None,
        }
    }

    /// Fails if the deadline has passed or the job was cancelled.
    fn check(&self) -> Result<()> {
        self.nodes.0.check(|| {
            let left = self.over.iter().filter(|&&over| !over).count();
            format!("{left} of {} chains are not finished", self.chains.len())
        })?;
        Ok(self.job.check_cancelled()?)
    }

    /// Returns the next event, or `None` if no event came within [`PATIENCE`].
    fn wait(&self, attempt: &mut Attempt) -> Result<Option<AttemptEvent>> {
        self.check()?;
        if let Ok(heard) = attempt.events.try_recv() {
            return Ok(Some(heard));
        }
        let runtime = &self.nodes.0.runtime;
        Ok(runtime
            .block_on(async { tokio::time::timeout(PATIENCE, attempt.events.recv()).await })
            .unwrap_or(None))
    }

    /// Hands a chain to a node that holds the current page of the chain, or requests that page.
    fn go_on(&mut self, attempt: &Attempt, chain: usize) -> Result<AttemptOutcome> {
        let what = match self.options.by {
            TraversalSide::Client => HopKind::Read,
            TraversalSide::Nodes | TraversalSide::Turns => HopKind::GoOn,
        };
        if what == HopKind::Read {
            self.follow_kept(chain)?;
        }
        if self.over[chain] {
            return Ok(AttemptOutcome::On);
        }
        let walked = self.chains[chain].walked;
        // The chains are distributed over all holders of a page.
        let holders = &attempt.holders[self.piece(walked.page)];
        let Some(&node) = holders.get(chain % holders.len().max(1)) else {
            return Ok(AttemptOutcome::Anew);
        };
        let hop =
            Hop { session: attempt.session, what, chain: chain as u32, walked, unheard: Duration::ZERO };
        self.send(attempt, node, hop)
    }

    fn send(&mut self, attempt: &Attempt, node: usize, hop: Hop) -> Result<AttemptOutcome> {
        let (link, runtime) = (&attempt.links[&node], self.nodes.0.runtime.handle());
        let sent = send(runtime, link.out(), hop.encode(Bytes::new()), || Ok(self.job.check_cancelled()?))?;
        // The reason for a lost link arrives as an event.
        let _ = sent;
        Ok(AttemptOutcome::On)
    }

    /// Handles the report of a node on a chain.
    fn told(
        &mut self,
        attempt: &mut Attempt,
        node: usize,
        told: Result<Option<RecordBatch>>,
    ) -> Result<AttemptOutcome> {
        let batch = match told {
            Ok(Some(batch)) => batch,
            Ok(None) => return Ok(self.give_up(node, "it ended before the traversal")),
            Err(error @ Error::Lost { .. }) => return Ok(self.give_up(node, error)),
            Err(error) => return Err(error),
        };
        let Some(TraversalReport { said, chain, walked, peer, text }) = TraversalReport::of_batch(&batch)
        else {
            return Ok(self.give_up(node, "protocol error: expected a step of a traversal"));
        };
        let name = || self.nodes.0.nodes[node].address.clone();
        let chain = chain as usize;
        match said {
            ReportKind::Ready => {
                attempt.awaited.remove(&node);
                return Ok(AttemptOutcome::On);
            }
            ReportKind::Unreached => {
                let is_known = (peer as usize) < self.nodes.0.nodes.len();
                let why = format!("node {} cannot pass chains to it: {text}", name());
                return Ok(self.give_up(if is_known { peer as usize } else { node }, why));
            }
            _ => {}
        }
        let steps = self.options.steps;
        if chain >= self.chains.len() || walked.page >= self.pages() || walked.steps > steps {
            return Ok(self.give_up(node, "protocol error: an unknown chain"));
        }
        self.move_on(chain, walked);
        match said {
            ReportKind::Done if walked.steps < steps => {
                return Ok(self.give_up(node, "protocol error: a chain ended early"));
            }
            ReportKind::Done => self.over[chain] = true,
            ReportKind::Ended => (self.over[chain], self.chains[chain].ended) = (true, true),
            ReportKind::Bad => return Err(self.bad_page(format!("node {}: {text}", name()))),
            ReportKind::Unreadable => {
                let why = format!("node {}: {text}", name());
                self.unreadable.insert((self.piece(walked.page), node), why);
                return Ok(AttemptOutcome::Anew);
            }
            ReportKind::Nowhere => {
                // Otherwise the next attempt finds that the page is missing.
                let is_somewhere = !attempt.holders[self.piece(walked.page)].is_empty();
                return Ok(match is_somewhere {
                    true => self.give_up(node, "protocol error: a page that exists was reported as missing"),
                    false => AttemptOutcome::Anew,
                });
            }
            ReportKind::Ready | ReportKind::Progress | ReportKind::Unreached => {}
        }
        Ok(AttemptOutcome::On)
    }

    fn bad_page(&self, what: String) -> Error {
        Error::Pages { name: self.whole.title.clone(), what }
    }

    /// Records the new position of a chain.
    fn move_on(&mut self, chain: usize, walked: ChainPosition) {
        let before = self.chains[chain].walked.steps;
        if !self.over[chain] && walked.steps >= before {
            self.job.progress().add(walked.steps - before);
            self.chains[chain].walked = walked;
        }
    }

    /// Handles a message on the link to a node.
    fn said(&mut self, attempt: &Attempt, node: usize, said: LinkMessage) -> Result<AttemptOutcome> {
        let (hop, body) = match said {
            LinkMessage::Hop(hop, body) if hop.session == attempt.session => (hop, body),
            LinkMessage::Hop(..) => return Ok(AttemptOutcome::On),
            LinkMessage::Lost(error @ Error::Lost { .. }) => return Ok(self.give_up(node, error)),
            LinkMessage::Lost(error) => return Err(error),
        };
        let (chain, page_bytes) = (hop.chain as usize, self.options.pointers.page_bytes);
        if chain >= self.chains.len() || self.over[chain] {
            return Ok(self.give_up(node, "protocol error: an unknown chain"));
        }
        let known = self.chains[chain].walked;
        match hop.what {
            HopKind::Page
                if body.len() as u64 == page_bytes
                    && hop.walked.page == known.page
                    && self.options.by == TraversalSide::Client =>
            {
                self.result.pages_moved += 1;
                self.kept.put(known.page, &body);
                self.follow(chain, self.options.pointers.next(&body))?;
                self.go_on(attempt, chain)
            }
            HopKind::Left
                if hop.walked.page < self.pages()
                    && hop.walked.steps <= self.options.steps
                    && self.options.by == TraversalSide::Turns =>
            {
                self.move_on(chain, ChainPosition { hops: hop.walked.hops + 1, ..hop.walked });
                let holders = &attempt.holders[self.piece(hop.walked.page)];
                match holders.contains(&node) {
                    true => {
                        Ok(self.give_up(node, "protocol error: a page that it has was reported as missing"))
                    }
                    false if holders.is_empty() => Err(self.missing(hop.walked.page)),
                    false => self.go_on(attempt, chain),
                }
            }
            HopKind::Refused => Ok(self.give_up(node, String::from_utf8_lossy(&body))),
            _ => Ok(self.give_up(node, "protocol error: an answer that was not requested")),
        }
    }

    /// Moves a chain to the next page that the current page names.
    fn follow(&mut self, chain: usize, next: u64) -> Result<()> {
        let mut walked = self.chains[chain].walked;
        if next == LAST_PAGE {
            (self.over[chain], self.chains[chain].ended) = (true, true);
            return Ok(());
        }
        if next >= self.pages() {
            let (page, pages) = (walked.page, self.pages());
            let what = format!("page {page} points to page {next}, and the file has {pages} pages");
            return Err(self.bad_page(what));
        }
        walked.step(next);
        self.move_on(chain, walked);
        self.over[chain] = walked.steps >= self.options.steps;
        Ok(())
    }

    /// Follows a chain as long as its pages are in the cache of the client.
    fn follow_kept(&mut self, chain: usize) -> Result<()> {
        while !self.over[chain] {
            let Some(page) = self.kept.get(self.chains[chain].walked.page) else { return Ok(()) };
            let next = self.options.pointers.next(page);
            self.result.pages_kept += 1;
            if self.result.pages_kept.is_multiple_of(4096) {
                self.job.check_cancelled()?;
            }
            self.follow(chain, next)?;
        }
        Ok(())
    }

    /// Tells all nodes that the traversal is over, and collects their costs.
    fn end(&mut self, mut attempt: Attempt) -> Result<()> {
        let (walked, unheard) = (ChainPosition::default(), Duration::ZERO);
        let end = Hop { session: attempt.session, what: HopKind::End, chain: 0, walked, unheard };
        let nodes: Vec<usize> = attempt.tasks.keys().copied().collect();
        for &node in &nodes {
            self.send(&attempt, node, end)?;
        }
        let mut left: BTreeSet<usize> = nodes.into_iter().collect();
        let until = Instant::now() + END_PATIENCE;
        // A node that is lost at this point has already done its work.
        while !left.is_empty() && Instant::now() < until {
            match self.nodes.0.runtime.block_on(async {
                tokio::time::timeout(PATIENCE, attempt.events.recv()).await.unwrap_or(None)
            }) {
                Some(AttemptEvent::Told(node, Ok(None) | Err(_))) => drop(left.remove(&node)),
                _ => self.job.check_cancelled()?,
            }
        }
        for (&node, (_, told)) in &attempt.tasks {
            let told = told.lock().expect("no panic under this lock").done.take().unwrap_or_default();
            self.result.nodes.push(NodeVisits {
                node: self.nodes.0.nodes[node].address.clone(),
                visited: serde_json::from_value(told.summary).unwrap_or_default(),
                bytes_read: told.bytes_read,
                lost: None,
            });
        }
        Ok(())
    }

    fn finish(mut self) -> Traversed {
        for (node, why) in std::mem::take(&mut self.given_up) {
            let node = self.nodes.0.nodes[node].address.clone();
            self.result.nodes.push(NodeVisits { node, lost: Some(why), ..NodeVisits::default() });
        }
        self.result.chains = self.chains;
        self.result
    }
}

/// A direct-mapped cache of pages on the client: page p can only be in slot p mod n of n slots. The first page
/// in a slot stays: on a cyclic chain, a page that replaced it would be evicted before its next use.
struct PageCache {
    page_bytes: usize,
    numbers: Vec<u64>,
    pages: Vec<u8>,
    _memory: Option<Reservation>,
}

impl PageCache {
    fn new(job: &Context, options: &TraverseOptions) -> Result<PageCache> {
        let page_bytes = options.pointers.page_bytes;
        let count =
            if options.by == TraversalSide::Client { options.keep_bytes / (page_bytes + 8) } else { 0 };
        let memory = match count {
            0 => None,
            _ => Some(job.budget().reserve(count * (page_bytes + 8), "cached pages")?),
        };
        Ok(PageCache {
            page_bytes: page_bytes as usize,
            numbers: vec![u64::MAX; count as usize],
            pages: vec![0; (count * page_bytes) as usize],
            _memory: memory,
        })
    }

    fn place(&self, page: u64) -> Option<usize> {
        Some(page.checked_rem(self.numbers.len() as u64)? as usize)
    }

    fn get(&self, page: u64) -> Option<&[u8]> {
        let place = self.place(page).filter(|&place| self.numbers[place] == page)?;
        Some(&self.pages[place * self.page_bytes..][..self.page_bytes])
    }

    fn put(&mut self, page: u64, bytes: &[u8]) {
        let Some(place) = self.place(page).filter(|&place| self.numbers[place] == u64::MAX) else { return };
        self.numbers[place] = page;
        self.pages[place * self.page_bytes..][..self.page_bytes].copy_from_slice(bytes);
    }
}
