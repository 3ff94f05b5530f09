//! Handles lost attempts and missing shards, and waits until a puller takes a shard. A puller is a machine that takes
//! shards from the queue and processes them: a node, or this machine. An attempt is one task of a puller.

use super::Gather;
use crate::{
    Error, Result,
    client::tasks::{
        gather_report::describe_missing,
        run::State,
        scheduler::{Event, ShardState},
    },
};

impl Gather {
    /// Gives up an attempt, which is one task of a puller. Other pullers take the unanswered shards of the attempt. If
    /// `is_gone`, the node of the attempt receives no more requests.
    pub(super) fn lose(&mut self, attempt: usize, why: String, is_gone: bool) -> Result<()> {
        self.forget(attempt);
        let puller = {
            let mut state = self.run.state();
            // A stored refusal with another reason does not explain why shards are missing now, so this refusal is
            // dropped.
            state.refusal.take_if(|refusal| refusal.to_string() != why);
            state.scheduler.puller(attempt)
        };
        let why = match puller.node() {
            Some(node) => self.run.named(node, &why),
            None => {
                if let Some(local) = &self.local_threads {
                    local.give_up(why.clone());
                }
                why
            }
        };
        self.run.tell(Event::Failed { attempt, why, is_gone });
        self.check_missing()
    }

    /// Gives up the attempt to which a shard is assigned.
    pub(super) fn lose_shard(&mut self, number: usize, why: &str) -> Result<()> {
        match self.state_of(number) {
            ShardState::Out(attempt) => self.lose(attempt, why.to_string(), true),
            _ => Ok(()),
        }
    }

    pub(super) fn lost(&self, attempt: usize, what: String) -> Error {
        let puller = self.run.state().scheduler.puller(attempt);
        Error::Lost { node: self.run.address(puller).to_string(), what }
    }

    /// Returns an error if there is a shard that no remaining node has, unless a partial answer is allowed.
    pub(super) fn check_missing(&self) -> Result<()> {
        let mut state = self.run.state();
        if self.run.options.partial {
            return Ok(());
        }
        let missing = self.run.missing(&state);
        if missing.is_empty() {
            return Ok(());
        }
        // If a node refused the task, its reason is more specific than the list of missing shards.
        Err(state.refusal.take().unwrap_or_else(|| Error::Missing { what: describe_missing(&missing) }))
    }

    /// Waits until a puller takes a queued shard, or until the state changes in another way.
    pub(super) fn wait_for_puller(&self, number: usize) -> Result<()> {
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
        run.tell_to(&mut state, Event::Starved { shard: number });
        if state.scheduler.state(number) == ShardState::Queued {
            run.wait(state);
        }
        Ok(())
    }

    /// Describes the shards that are not answered while the client waits for an attempt.
    pub(super) fn unfinished(&self, attempt: usize) -> String {
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
            open => describe_missing(&open),
        }
    }
}
