//! Follows pointers through a file that is spread over nodes.
//!
//! The pointers can be followed in three ways, which give equal results ([`TraversalSide`]):
//!
//! ```text
//!   nodes    client ─► A ──► C ──► B ──► C ─► client         half a round trip for each change of node
//!   turns    client ─► A ─► client ─► C ─► client ─► B ...   a round trip for each change of node
//!   client   client ─► A ─► client ─► A ─► client ─► C ...   a round trip for each page, which the client reads
//! ```
//!
//! In each way the client first starts a task on all nodes that hold a part of the file, with the token of the client.
//! The client has thus authorized every access along a chain. The client is connected to all nodes, and therefore
//! detects the loss of a node. The chains are then followed again on the remaining nodes, each from the last position
//! that the client knows. Reading a page has no side effects, so nothing has to be undone.
//!
//! Estimated cost on a network of 1 Gbit/s with a round trip of 0.1 ms and a drive with a latency of 0.1 ms: 0.3 to 0.4
//! ms for a page that is sent to the client, 0.1 ms for a page on the current node of the chain, and 0.2 ms for a page
//! on another node. The measured times without optimised libraries are 0.5 ms, 0.1 ms and 0.3 ms (docs/benchmarks.md).
//! The difference is the cost of the software at both ends, and not of the network.
//!
//! The submodules:
//!
//! - `options`: the options and the result.
//! - `attempt`: begins and ends an attempt on the current set of nodes.
//! - `events`: handles reports and messages of nodes.
//! - `chains`: moves chains.
//! - `cache`: caches pages on the client.

mod attempt;
mod cache;
mod chains;
mod events;
mod options;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use inshore_store::Context;

pub use self::options::{ChainResult, NodeVisits, TraversalSide, TraverseOptions, Traversed};
use self::{
    attempt::{Attempt, AttemptEvent},
    cache::PageCache,
};
use super::hop::{CHAINS_MAX, ChainPosition, PAGE_BYTES_MAX, Pointers, STEPS_MAX};
use crate::{DistributedFile, Error, Nodes, Result};

/// The interval at which a waiting thread checks for cancellation and the deadline.
const PATIENCE: Duration = Duration::from_millis(50);

impl Nodes {
    /// Follows chains of pages through a file from each of `starts`, concurrently.
    ///
    /// Memory on this machine: [`TraverseOptions::keep_bytes`], 16 bytes for each piece of the file, and one page for
    /// each chain if the client follows the pointers.
    ///
    /// # Errors
    /// - Returns [`Error::Pages`] if the file does not consist of such pages, if a page has an invalid pointer, or if
    ///   no reachable node holds a page.
    /// - Returns [`Error::Refused`] if a node refuses the request.
    /// - Returns [`Error::Deadline`] if the deadline passes before the traversal ends.
    /// - Returns [`Error::Store`] if the budget has too little free memory or the job was stopped.
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
    /// The pieces that a node holds but cannot read, with the reason.
    unreadable: BTreeMap<(usize, usize), String>,
    kept: PageCache,
    result: Traversed,
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

    fn bad_page(&self, what: String) -> Error {
        Error::Pages { name: self.whole.title.clone(), what }
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
            let Some(event) = self.wait(&mut attempt)? else { continue };
            let flow = match event {
                AttemptEvent::Task(node, answer) => self.handle_report(&mut attempt, node, answer)?,
                AttemptEvent::Link(node, message) => self.handle_message(&attempt, node, message)?,
            };
            if flow == AttemptOutcome::Anew {
                return Ok(());
            }
        }
        self.result.seconds += began.elapsed().as_secs_f64();
        self.end(attempt)
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
        if let Ok(event) = attempt.events.try_recv() {
            return Ok(Some(event));
        }
        let runtime = &self.nodes.0.runtime;
        Ok(runtime
            .block_on(async { tokio::time::timeout(PATIENCE, attempt.events.recv()).await })
            .unwrap_or(None))
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
