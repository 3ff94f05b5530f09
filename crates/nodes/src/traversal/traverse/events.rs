//! Handles the reports of nodes on chains, and the messages on the links to nodes.

use arrow_array::RecordBatch;

use super::{AttemptOutcome, Traversal, attempt::Attempt, options::TraversalSide};
use crate::{
    Error, Result,
    traversal::hop::{ChainPosition, HopKind, LinkMessage, ReportKind, TraversalReport},
};

impl Traversal<'_> {
    /// Handles the report of a node on a chain.
    pub(super) fn handle_report(
        &mut self,
        attempt: &mut Attempt,
        node: usize,
        answer: Result<Option<RecordBatch>>,
    ) -> Result<AttemptOutcome> {
        let batch = match answer {
            Ok(Some(batch)) => batch,
            Ok(None) => return Ok(self.give_up(node, "it ended before the traversal")),
            Err(error @ Error::Lost { .. }) => return Ok(self.give_up(node, error)),
            Err(error) => return Err(error),
        };
        let Some(TraversalReport { said: kind, chain, walked, peer, text }) =
            TraversalReport::of_batch(&batch)
        else {
            return Ok(self.give_up(node, "protocol error: expected a step of a traversal"));
        };
        let name = || self.nodes.0.nodes[node].address.clone();
        let chain = chain as usize;
        match kind {
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
        match kind {
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
                // If no usable node holds the page, the next attempt reports that the page is missing.
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

    /// Handles a message on the link to a node.
    pub(super) fn handle_message(
        &mut self,
        attempt: &Attempt,
        node: usize,
        message: LinkMessage,
    ) -> Result<AttemptOutcome> {
        let (hop, body) = match message {
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
}
