//! Opens the levels of a job one after the other, and ends the job.

use std::{collections::BTreeSet, time::Duration};

use super::{Action, NodeState, Phase, Scheduler};
use crate::{
    error::{Error, NAMED},
    events::Output,
    ids::{AttemptToken, NodeId, PartitionId},
    plan::Stage,
};

impl Scheduler {
    /// Carries out what follows from an event: finds losses, opens levels, finishes the job, and gives work to the
    /// nodes that wait for it.
    pub(super) fn advance(&mut self) {
        if self.phase == Phase::Ended {
            return;
        }
        self.release_drained();
        if std::mem::take(&mut self.is_loss_new) {
            self.check_losses();
        }
        let highest = self.stages.iter().map(|stage| stage.level).max().unwrap_or_default();
        while self.phase == Phase::Open && self.level < highest && self.is_level_complete() {
            self.level += 1;
            self.is_work_new = true;
            self.reserve_level();
        }
        if self.phase != Phase::Ended && self.is_complete() {
            if self.plan.is_open() { self.ask_for_stages() } else { self.finish() }
        }
        if self.phase == Phase::Open && std::mem::take(&mut self.is_work_new) {
            self.feed_all();
        }
    }

    /// Returns true if all needed partitions of the open levels have outputs.
    fn is_level_complete(&self) -> bool {
        let mut open = (0..self.stages.len()).filter(|&stage| self.stages[stage].level <= self.level);
        open.all(|stage| self.stages[stage].missing == 0 || !self.is_needed(stage as u32))
    }

    /// Returns true if each partition of the last stage has an output, and those of a result are on a node that stays, or
    /// no node can take them.
    fn is_complete(&self) -> bool {
        let last = self.stages.len() - 1;
        if self.plan.is_open() {
            return self.stages[last].missing == 0;
        }
        let is_leaving = |node: &super::Node| node.state == NodeState::Draining && node.outputs[last] > 0;
        self.stages[last].missing == 0 && (self.usable == 0 || !self.nodes.values().any(is_leaving))
    }

    /// Fails the job if an input that it needs has no replica left, or if no node takes attempts.
    fn check_losses(&mut self) {
        let lost: Vec<PartitionId> = self.lost_inputs().collect();
        if !lost.is_empty() {
            let holders: BTreeSet<NodeId> =
                lost.iter().flat_map(|&partition| self.plan.replicas(partition)).copied().collect();
            return self.fail(Error::InputLost {
                count: lost.len(),
                partitions: lost.into_iter().take(NAMED).collect(),
                nodes: holders.into_iter().take(NAMED).collect(),
            });
        }
        if self.usable == 0
            && let Some(partition) = self.first_missing()
        {
            let nodes = self.nodes.iter().take(NAMED).map(|(&id, node)| (id, node.why.to_string()));
            self.fail(Error::NoNodes { partition, nodes: nodes.collect() });
        }
    }

    /// Lists the required map partitions that have no output, no attempt and no readable replica.
    fn lost_inputs(&self) -> impl Iterator<Item = PartitionId> + '_ {
        let stages =
            (0..self.stages.len() as u32).filter(|&stage| self.plan.is_map(stage) && self.is_required(stage));
        let queued = stages.flat_map(|stage| {
            self.stages[stage as usize].queue.iter().map(move |&partition| PartitionId { stage, partition })
        });
        queued.filter(|&partition| self.replica(partition, None).is_none())
    }

    /// Returns the first needed partition that has no output.
    fn first_missing(&self) -> Option<PartitionId> {
        let is_open = |stage: &u32| self.stages[*stage as usize].missing > 0 && self.is_needed(*stage);
        let stage = (0..self.stages.len() as u32).find(is_open)?;
        let partitions = &self.stages[stage as usize].partitions;
        let partition = partitions.iter().position(|partition| partition.output.is_none())?;
        Some(PartitionId { stage, partition: partition as u32 })
    }

    fn finish(&mut self) {
        let result = self.last_outputs();
        self.release_all(&result);
        self.actions.push(Action::Finish { result });
    }

    /// Asks for the stages that follow the last one, once.
    fn ask_for_stages(&mut self) {
        if !std::mem::replace(&mut self.is_asked_to_extend, true) {
            let outputs = self.last_outputs();
            self.actions.push(Action::Extend { outputs });
        }
    }

    fn last_outputs(&self) -> Vec<Output> {
        let last = self.stages.last().expect("a plan has stages");
        last.partitions.iter().filter_map(|of| of.output).map(|token| self.output(token)).collect()
    }

    /// Appends stages to an open plan, and returns the resulting actions. The driver calls this function after
    /// [`Action::Extend`]. It changes nothing after the end of the job. Outputs of the last stage that were lost since
    /// are computed again first.
    ///
    /// # Errors
    /// Returns [`Error::InvalidPlan`] if the stages do not continue the plan. The driver ends the job.
    pub fn extend(&mut self, now: Duration, stages: Vec<Stage>) -> Result<Vec<Action>, Error> {
        if self.phase == Phase::Ended {
            return Ok(Vec::new());
        }
        self.now = self.now.max(now);
        let before = self.stages.len();
        self.plan.extend(stages)?;
        super::add_stages(&mut self.stages, &self.plan);
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in nodes {
            let queue = if self.is_readable(id) { self.queued_at(id) } else { BTreeSet::new() };
            let count = self.stages.len();
            let node = self.node_mut(id);
            node.outputs.resize(count, 0);
            node.queue = queue;
        }
        // The last stage has consumers: its outputs on slow nodes are misplaced.
        let stage = before as u32 - 1;
        for partition in 0..self.plan.partitions(stage) {
            self.settle(PartitionId { stage, partition });
        }
        (self.is_asked_to_extend, self.is_work_new, self.is_loss_new) = (false, true, true);
        self.advance();
        Ok(std::mem::take(&mut self.actions))
    }

    /// Ends the job with an error.
    pub(super) fn fail(&mut self, error: Error) {
        if self.phase != Phase::Ended {
            self.release_all(&[]);
            self.actions.push(Action::Fail { error });
        }
    }

    /// Ends a job whose deadline has passed.
    pub(super) fn fail_late(&mut self) {
        let stages = self.stages.iter().enumerate().filter(|(_, stage)| stage.missing > 0);
        let unfinished = stages
            .map(|(number, stage)| (number as u32, stage.missing, stage.partitions.len() as u32))
            .collect();
        self.fail(Error::Deadline { deadline: self.options.deadline, unfinished });
    }

    /// Ends the job on all nodes.
    fn release_all(&mut self, result: &[Output]) {
        self.phase = Phase::Ended;
        let mut kept: std::collections::BTreeMap<NodeId, Vec<AttemptToken>> =
            std::collections::BTreeMap::new();
        result.iter().for_each(|output| kept.entry(output.node).or_default().push(output.token));
        for &node in self.nodes.iter().filter(|(_, node)| !node.is_lost()).map(|(node, _)| node) {
            let kept = kept.remove(&node).unwrap_or_default();
            self.actions.push(Action::Release { node, kept });
        }
    }
}
