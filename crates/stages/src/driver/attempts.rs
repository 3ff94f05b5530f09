//! Sends attempts to nodes, each with what its node lacks of the lists of outputs.

use arrow_array::{RecordBatch, cast::AsArray};
use inshore_nodes::{SingleTask, TaskEvent, protocol::PieceRequest};

use super::{
    job::{JobInput, JobStage},
    state::{Driver, Message, RunningAttempt},
};
use crate::{
    AttemptToken, Event, FetchFailure, NodeId, PartitionId, Work,
    lists::{ListPart, Producer},
    node::{ATTEMPT_KIND, AttemptRequest, StageReads, WorkRequest, task_of_session},
};

/// Returns true if the message of an attempt says that its node has all parts of the lists.
fn is_whole(taken: &RecordBatch) -> bool {
    let taken = taken.columns().first().and_then(|taken| taken.as_boolean_opt());
    taken.is_some_and(|taken| !taken.is_empty() && taken.value(0))
}

impl Driver<'_> {
    /// Appends an attempt to those that are to be sent.
    pub(super) fn start(&mut self, token: AttemptToken, node: NodeId, work: Work) {
        let run = self.next_run();
        self.attempts.insert(token, RunningAttempt { node, work, task: None, list_bytes: 0, run });
        self.unsent.push_back((token, run));
    }

    /// Starts an attempt again whose node lacks parts of its lists.
    pub(super) fn restart(&mut self, token: AttemptToken, RunningAttempt { node, work, .. }: RunningAttempt) {
        self.forget_lists(node);
        self.start(token, node, work);
    }

    /// Sends attempts in their order, as long as few bytes of lists are on their way to nodes. At the start of a merge
    /// stage, all nodes need a part of its list at the same time.
    pub(super) fn send_attempts(&mut self) {
        while let Some(&(token, run)) = self.unsent.front() {
            let on_their_way: u64 = self.attempts.values().map(|attempt| attempt.list_bytes).sum();
            if on_their_way > self.job.options.max_list_bytes {
                return;
            }
            self.unsent.pop_front();
            // An attempt that was cancelled meanwhile is not sent.
            if self.attempts.get(&token).is_some_and(|attempt| attempt.run == run) {
                self.send(token);
            }
        }
    }

    /// Removes an attempt that has ended or was cancelled. If its node has not taken its lists, they may not have
    /// arrived.
    pub(super) fn remove_attempt(&mut self, token: AttemptToken) -> Option<RunningAttempt> {
        let attempt = self.attempts.remove(&token)?;
        if attempt.list_bytes > 0 {
            self.forget_lists(attempt.node);
        }
        Some(attempt)
    }

    /// The next attempt on a node brings the lists from their start.
    pub(super) fn forget_lists(&mut self, node: NodeId) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.sent.clear();
        }
    }

    fn send(&mut self, token: AttemptToken) {
        let partition = self.partitions[&token];
        let &RunningAttempt { node, work, run, .. } = &self.attempts[&token];
        let Some(reads) = self.reads(partition) else {
            // An output was lost before the attempt was sent: it waits, as if it had not found the output.
            self.attempts.remove(&token);
            let outputs = self.scheduler.attempts_without_output(partition);
            self.tell(Event::FetchFailed { token, outputs, cause: FetchFailure::Gone });
            return self.tell(Event::Asked { node });
        };
        let (work, pieces) = self.work_request(partition, node, work);
        let lists = self.lists(node, partition.stage);
        let list_bytes = lists.iter().map(ListPart::bytes).sum();
        let task = self.attempt_task((token, partition), work, reads, lists, pieces);
        let sender = self.sender.clone();
        let task = self.nodes.watch_task(self.members[node.0 as usize].index, task, move |event| {
            // The receiver lives as long as the driver.
            let _ = match event {
                TaskEvent::Batch(taken) => sender.send(Message::ListsTaken(token, run, is_whole(&taken))),
                TaskEvent::Ended(result) => sender.send(Message::Attempt(token, run, result)),
            };
        });
        if let Some(attempt) = self.attempts.get_mut(&token) {
            (attempt.task, attempt.list_bytes) = (Some(task), list_bytes);
        }
    }

    pub(super) fn attempt_task(
        &self,
        (token, partition): (AttemptToken, PartitionId),
        work: WorkRequest,
        reads: StageReads,
        lists: Vec<ListPart>,
        pieces: Vec<PieceRequest>,
    ) -> SingleTask {
        let PartitionId { stage, partition } = partition;
        let (session, arguments) = (self.id.clone(), self.stage(stage).arguments.clone());
        let token = token.0;
        let request = AttemptRequest { session, token, stage, partition, lists, arguments, work, reads };
        SingleTask { pieces, ..task_of_session(ATTEMPT_KIND, &request, Some(&self.trace)) }
    }

    /// Returns the stages whose outputs a partition reads. Returns `None` if a producer has no output, since an attempt
    /// without it would lose rows.
    fn reads(&self, partition: PartitionId) -> Option<StageReads> {
        let JobStage { input, broadcasts, .. } = self.stage(partition.stage);
        let (ranges, states): (&[u32], &[u32]) = match input {
            JobInput::Pieces(_) => (&[], &[]),
            JobInput::Exchange { ranges, states } => (ranges, states),
        };
        let has_state = |&stage: &u32| self.scheduler.has_output(PartitionId { stage, ..partition });
        let is_whole = ranges.iter().chain(broadcasts).all(|&stage| self.scheduler.has_outputs(stage))
            && states.iter().all(has_state);
        let state = |&stage: &u32| (stage, self.stage(stage).ranges);
        is_whole.then(|| StageReads {
            ranges: ranges.to_vec(),
            states: states.iter().map(state).collect(),
            broadcasts: broadcasts.clone(),
        })
    }

    /// Returns what a node does for an attempt, and the pieces that it reads.
    fn work_request(
        &self,
        partition: PartitionId,
        node: NodeId,
        work: Work,
    ) -> (WorkRequest, Vec<PieceRequest>) {
        let input = |node: NodeId| match &self.stage(partition.stage).input {
            JobInput::Pieces(inputs) => {
                inputs[partition.partition as usize].request(self.members[node.0 as usize].index)
            }
            JobInput::Exchange { .. } => Vec::new(),
        };
        match work {
            Work::Map { read_from } if read_from == node => (WorkRequest::Map, input(node)),
            Work::Map { read_from } => {
                (WorkRequest::MapOf { node: read_from.0 as usize, pieces: input(read_from) }, Vec::new())
            }
            Work::Merge { .. } => (WorkRequest::Merge, Vec::new()),
            // No node drains yet: a node that shuts down is lost.
            Work::Copy { .. } => unreachable!("the driver reports no draining node"),
        }
    }

    /// Returns what a node lacks of the lists that an attempt needs. An attempt also brings the news of its own stage, so
    /// that the next stage does not begin with the whole list for each node.
    fn lists(&mut self, node: NodeId, stage: u32) -> Vec<ListPart> {
        let JobStage { input, broadcasts, .. } = self.stage(stage);
        let mut producers = match input {
            JobInput::Pieces(_) => broadcasts.clone(),
            JobInput::Exchange { ranges, states } => [ranges.as_slice(), states, broadcasts].concat(),
        };
        producers.sort_unstable();
        producers.dedup();
        let is_last = stage as usize + 1 == self.stages.len();
        let Some(session) = self.sessions.get_mut(&node) else { return Vec::new() };
        let mut parts = Vec::new();
        for (stage, is_needed) in
            producers.iter().map(|&of| (of, true)).chain((!is_last).then_some((stage, false)))
        {
            let sent = session.sent.entry(stage).or_default();
            let (outputs, version) = self.scheduler.outputs_since(stage, *sent);
            // A merge names the version that it needs, also if its node has it already.
            if is_needed || version > *sent {
                let outputs = outputs.map(|output| {
                    let (token, node) = (output.token.0, output.node.0);
                    (output.partition.partition, Producer { token, node, checksum: output.checksum })
                });
                let partitions = self.stages[stage as usize].partitions;
                parts.push(ListPart::new((stage, partitions), (*sent, version), outputs));
                *sent = version;
            }
        }
        parts
    }
}
