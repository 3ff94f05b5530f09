//! Moves chains: hands a chain to the next node, and follows pointers on the client.

use std::time::Duration;

use bytes::Bytes;

use super::{AttemptOutcome, Traversal, attempt::Attempt, options::TraversalSide};
use crate::{
    Result,
    traversal::hop::{ChainPosition, Hop, HopKind, LAST_PAGE, send},
};

impl Traversal<'_> {
    /// Hands a chain to a node that holds the current page of the chain, or requests that page.
    pub(super) fn go_on(&mut self, attempt: &Attempt, chain: usize) -> Result<AttemptOutcome> {
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

    pub(super) fn send(&mut self, attempt: &Attempt, node: usize, hop: Hop) -> Result<AttemptOutcome> {
        let (link, runtime) = (&attempt.links[&node], self.nodes.0.runtime.handle());
        let sent = send(runtime, link.out(), hop.encode(Bytes::new()), || Ok(self.job.check_cancelled()?))?;
        // The reason for a lost link arrives as an event.
        let _ = sent;
        Ok(AttemptOutcome::On)
    }

    /// Records the new position of a chain.
    pub(super) fn move_on(&mut self, chain: usize, walked: ChainPosition) {
        let before = self.chains[chain].walked.steps;
        if !self.over[chain] && walked.steps >= before {
            self.job.progress().add(walked.steps - before);
            self.chains[chain].walked = walked;
        }
    }

    /// Moves a chain to the next page that the current page names.
    pub(super) fn follow(&mut self, chain: usize, next: u64) -> Result<()> {
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
}
