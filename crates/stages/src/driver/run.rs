//! The loop of a driver.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use inshore_nodes::{Error as NodesError, Nodes, SingleTask, TaskEvent, protocol::TaskDone};
use inshore_store::Context;

use super::{
    finished::{Facts, FinishedJob, JobReport, NodeReport, StageReport},
    job::{JobStage, StagesJob},
    members::{Member, Result, members},
    state::{Driver, Message, NextStages, OpenSession, RunningAttempt},
};
use crate::{
    Action, AttemptToken, DriverError, Error, Event, FailureKind, InputPartition, NAMED, NodeId, Output,
    Plan, Scheduler,
    node::{AttemptResult, SESSION_KIND, SessionRequest, StageReads, WorkRequest, task_of_session},
};

/// The interval of ticks.
const TICK: Duration = Duration::from_secs(1);
/// The interval at which a waiting driver checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a job on nodes, and returns its outputs, which stay on the nodes until the returned value is dropped.
///
/// The cost: a map attempt reads its pieces and writes as many bytes, and a merge attempt reads one range of each map
/// output and writes its result. Ranges of other nodes are sent once; they stay in memory if the slot has room, and are
/// written and read once more otherwise. The driver holds the state of the [`Scheduler`], and no rows.
///
/// # Errors
/// - Returns [`DriverError::Stages`] if the job fails. The message names lost nodes, and the partitions that failed.
/// - Returns [`DriverError::Nodes`] if no node can be reached.
/// - Returns [`DriverError::Store`] if the job of `context` was cancelled.
pub fn run(nodes: &Nodes, context: &Context, job: &StagesJob) -> Result<FinishedJob> {
    drive(nodes, context, job, None)
}

/// Runs a job whose number of stages depends on its rows, such as a search in a graph. `job` has the first stages. When
/// the last known stage is complete, `next` decides from its counts which stages follow, until a stage without ranges
/// makes the result. Stages are numbered on.
///
/// The cost is that of [`run`]. All outputs stay on the nodes, so each stage adds to their scratch.
///
/// # Errors
/// Returns the errors of [`run`], and [`DriverError::Stopped`] with an error of `next`.
pub fn run_growing<'a>(
    nodes: &'a Nodes,
    context: &'a Context,
    job: &'a StagesJob,
    next: NextStages<'a>,
) -> Result<FinishedJob> {
    drive(nodes, context, job, Some(next))
}

fn drive<'a>(
    nodes: &'a Nodes,
    context: &'a Context,
    job: &'a StagesJob,
    next: Option<NextStages<'a>>,
) -> Result<FinishedJob> {
    let (members, absent) = members(nodes)?;
    let number = |node: usize| number_of(&members, node);
    let is_lost = |input: &&InputPartition| !input.holders().any(|node| number(node).is_some());
    if let Some(lost) = job.inputs().find(is_lost) {
        let why = lost.holders().filter_map(|node| absent.get(&node).map(ToString::to_string));
        return Err(DriverError::NoReplica { why: why.collect() });
    }
    let plan = match next {
        None => job.plan(number)?,
        Some(_) => Plan::growing(JobStage::growing(&job.stages, job.slot_bytes, number))?,
    };
    let (sender, events) = channel();
    let slots: Vec<(NodeId, u32)> =
        (0..members.len()).map(|number| (NodeId(number as u32), job.slots)).collect();
    let report = |(stage, of): (usize, &JobStage)| StageReport::of(of, plan.partitions(stage as u32));
    let stages = job.stages.iter().enumerate().map(report).collect();
    let (scheduler, actions) = Scheduler::start(plan, job.options.clone(), &slots);
    let trace = random_id();
    let node = |member: &Member| NodeReport { node: member.address.clone(), ..NodeReport::default() };
    let nodes_report = members.iter().map(node).collect();
    let mut driver = Driver {
        nodes,
        context,
        job,
        next,
        added: Vec::new(),
        members,
        id: random_id(),
        trace,
        began: Instant::now(),
        scheduler,
        actions: actions.into(),
        sender,
        sessions: BTreeMap::new(),
        attempts: BTreeMap::new(),
        unsent: VecDeque::new(),
        partitions: BTreeMap::new(),
        deletions: Vec::new(),
        losses: BTreeMap::new(),
        facts: BTreeMap::new(),
        stages,
        phase: None,
        nodes_report,
        runs: 0,
    };
    let outputs = driver.drive(&events)?;
    let Driver { members, id, trace, sessions, facts, stages, nodes_report, scheduler, began, .. } = driver;
    let report = JobReport {
        trace,
        stages,
        nodes: nodes_report,
        attempts: scheduler.counters(),
        seconds: began.elapsed().as_secs_f64(),
    };
    let sessions = sessions.into_iter().map(|(number, session)| (number, session.task)).collect();
    Ok(FinishedJob::new(nodes.clone(), members, id, sessions, outputs, facts, report))
}

/// Returns the number of the node with an index, if it takes part in the job.
fn number_of(members: &[Member], node: usize) -> Option<NodeId> {
    members.iter().position(|member| member.index == node).map(|number| NodeId(number as u32))
}

/// Returns a random number of 128 bits, as 32 hexadecimal digits.
fn random_id() -> String {
    let mut id = [0; 16];
    getrandom::fill(&mut id).expect("the system gives random numbers");
    format!("{:032x}", u128::from_le_bytes(id))
}

impl Driver<'_> {
    fn drive(&mut self, events: &Receiver<Message>) -> Result<Vec<Output>> {
        let mut ticked = Instant::now();
        loop {
            while let Some(action) = self.actions.pop_front() {
                match action {
                    Action::Finish { result } => return Ok(result),
                    Action::Fail { error } => {
                        self.context.check_cancelled().map_err(inshore_store::Error::from)?;
                        return Err(self.failed(error));
                    }
                    Action::Extend { outputs } => self.extend(&outputs)?,
                    action => self.act(action),
                }
            }
            self.send_attempts();
            if !self.actions.is_empty() {
                continue;
            }
            match events.recv_timeout(LOOK) {
                Ok(message) => self.hear(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the driver holds a sender"),
            }
            if self.context.check_cancelled().is_err() {
                self.tell(Event::Cancelled);
            } else if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.confirm_leases();
                self.tell(Event::Tick);
            }
        }
    }

    /// Confirms the leases of all nodes. The connection of a session is its lease: it ends if the node or the driver
    /// dies, and keepalives find a node that is cut off. A session that waits for memory in the queue of its node is
    /// alive too, and so are the nodes that are asked after this one. No node is silent because the driver was suspended.
    fn confirm_leases(&mut self) {
        for node in 0..self.members.len() {
            self.tell(Event::LeaseRenewed { node: NodeId(node as u32) });
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        let actions = self.scheduler.on(self.began.elapsed(), event);
        self.actions.extend(actions);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Reserve { node, memory_bytes } => self.reserve(node, memory_bytes),
            Action::Unreserve { node } => drop(self.sessions.remove(&node)),
            Action::Start { token, node, partition, work } => {
                self.partitions.insert(token, partition);
                self.begin_phase(partition.stage);
                self.start(token, node, work);
            }
            Action::Resume { token, node, work } => self.start(token, node, work),
            Action::Cancel { token, node } => {
                if self.remove_attempt(token).is_some() {
                    self.tell(Event::Asked { node });
                }
            }
            Action::DeleteScratch { token, node } => {
                let partition = self.partitions[&token];
                let of = (token, partition);
                let task =
                    self.attempt_task(of, WorkRequest::Delete, StageReads::default(), Vec::new(), Vec::new());
                let deletion = self.nodes.watch_task(self.members[node.0 as usize].index, task, |_| {});
                self.deletions.push(deletion);
            }
            Action::RenewLease { .. } => {}
            // The outputs of the result are needed until they are published. All sessions end with the job.
            Action::Release { node, kept } => {
                if kept.is_empty() && self.scheduler.is_running() {
                    self.sessions.remove(&node);
                }
            }
            Action::Finish { .. } | Action::Fail { .. } | Action::Extend { .. } => {
                unreachable!("the loop carries out these actions")
            }
        }
    }

    /// Appends the stages that follow the last one.
    fn extend(&mut self, outputs: &[Output]) -> Result<()> {
        let next = self.next.as_mut().expect("only a plan that grows is open");
        let counts = Facts::counts(outputs.iter().filter_map(|output| self.facts.get(&output.token)));
        let stages = next(&counts).map_err(DriverError::Stopped)?;
        let number = |node: usize| number_of(&self.members, node);
        let planned = JobStage::growing(&stages, self.job.slot_bytes, number);
        self.added.extend(stages);
        let actions = self.scheduler.extend(self.began.elapsed(), planned)?;
        for stage in self.stages.len()..self.job.stages.len() + self.added.len() {
            let partitions = self.scheduler.partitions(stage as u32);
            self.stages.push(StageReport::of(self.stage(stage as u32), partitions));
        }
        self.actions.extend(actions);
        Ok(())
    }

    pub(super) fn stage(&self, number: u32) -> &JobStage {
        let number = number as usize;
        self.job.stages.get(number).unwrap_or_else(|| &self.added[number - self.job.stages.len()])
    }

    /// Returns the error of a job that has failed. If nodes were lost, the error names the reasons.
    fn failed(&mut self, error: Error) -> DriverError {
        let is_loss = matches!(error, Error::NoNodes { .. } | Error::InputLost { .. });
        let mut losses = std::mem::take(&mut self.losses);
        // If each node has refused the job, then the refusal is the error, for example of a missing right.
        let is_refused = |error: &NodesError| matches!(error, NodesError::Refused { .. });
        if is_loss && losses.len() == self.members.len() && losses.values().all(is_refused) {
            return losses.pop_first().expect("a job has nodes").1.into();
        }
        let losses = losses.into_values().filter(|_| is_loss).take(NAMED).map(|error| error.to_string());
        let nodes = self.members.iter().map(|member| member.address.clone()).collect();
        DriverError::Stages { error, nodes, losses: losses.collect() }
    }

    fn reserve(&mut self, node: NodeId, memory_bytes: u64) {
        let run = self.next_run();
        let member = &self.members[node.0 as usize];
        let needed_bytes = crate::memory_bytes(self.job.slot_bytes, self.job.slots);
        if needed_bytes > member.memory_bytes {
            let limit_bytes = memory_bytes.saturating_sub(needed_bytes - member.memory_bytes);
            return self.tell(Event::Refused { node, limit_bytes });
        }
        let nodes = self.members.iter().map(|member| (member.address.clone(), member.certificate.clone()));
        let request = SessionRequest {
            id: self.id.clone(),
            kind: self.job.kind.to_string(),
            arguments: self.job.arguments.clone(),
            slots: self.job.slots,
            slot_bytes: self.job.slot_bytes,
            nodes: nodes.collect(),
            own: node.0 as usize,
            trace: Some(self.trace.clone()),
        };
        let task = SingleTask {
            memory_bytes: Some(needed_bytes),
            ..task_of_session(SESSION_KIND, &request, Some(&self.trace))
        };
        let sender = self.sender.clone();
        let task = self.nodes.watch_task(member.index, task, move |event| {
            // The receiver lives as long as the driver.
            let _ = sender.send(Message::Session(node, run, event));
        });
        self.sessions
            .insert(node, OpenSession { task, memory_bytes, is_open: false, run, sent: BTreeMap::new() });
    }

    /// Returns the number of the next connection.
    pub(super) fn next_run(&mut self) -> u64 {
        self.runs += 1;
        self.runs
    }

    /// Shows the progress of a stage that begins. Earlier stages that compute lost outputs again begin no phase.
    fn begin_phase(&mut self, stage: u32) {
        if self.phase.is_none_or(|last| last < stage) {
            self.phase = Some(stage);
            let StageReport { name, partitions, attempts, .. } = &self.stages[stage as usize];
            self.context.start_phase(name, "partitions", u64::from(*partitions).saturating_sub(*attempts));
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Session(node, run, event) => {
                let Some(session) = self.sessions.get_mut(&node).filter(|session| session.run == run) else {
                    return;
                };
                match event {
                    TaskEvent::Batch(_) if session.is_open => {}
                    TaskEvent::Batch(_) => {
                        session.is_open = true;
                        let memory_bytes = session.memory_bytes;
                        self.tell(Event::Reserved { node, memory_bytes });
                        (0..self.job.slots).for_each(|_| self.tell(Event::Asked { node }));
                    }
                    TaskEvent::Ended(ended) => self.lose(node, ended.err()),
                }
            }
            Message::ListsTaken(token, run, is_whole) => {
                let attempt = self.attempts.get_mut(&token).filter(|attempt| attempt.run == run);
                let Some(attempt) = attempt else { return };
                attempt.list_bytes = 0;
                let node = attempt.node;
                if !is_whole {
                    self.forget_lists(node);
                }
            }
            Message::Attempt(token, run, result) => {
                if self.attempts.get(&token).is_some_and(|attempt| attempt.run == run)
                    && let Some(attempt) = self.remove_attempt(token)
                {
                    self.ended(token, attempt, result);
                }
            }
        }
    }

    fn lose(&mut self, node: NodeId, why: Option<NodesError>) {
        if let Some(why) = why {
            self.losses.insert(node, why);
        }
        self.sessions.remove(&node);
        self.attempts.retain(|_, attempt| attempt.node != node);
        self.tell(Event::Lost { node });
    }

    fn ended(
        &mut self,
        token: AttemptToken,
        attempt: RunningAttempt,
        result: std::result::Result<TaskDone, NodesError>,
    ) {
        let node = attempt.node;
        let failed = |why: String| Event::Failed { token, kind: FailureKind::Retryable, why };
        let event = match result {
            Err(error @ NodesError::Lost { .. }) => return self.lose(node, Some(error)),
            Err(error) => failed(error.to_string()),
            Ok(done) => match serde_json::from_value(done.summary.clone()) {
                Ok(AttemptResult::Finished { bytes, checksum, lines, counts, fetched }) => {
                    self.facts.insert(token, Facts { lines, counts });
                    self.count(token, &done, bytes);
                    self.nodes_report[node.0 as usize].attempts += 1;
                    for (from, bytes) in fetched {
                        self.nodes_report[node.0 as usize].received += bytes;
                        if let Some(from) = self.nodes_report.get_mut(from) {
                            from.sent += bytes;
                        }
                    }
                    Event::Finished { token, bytes, checksum }
                }
                Ok(AttemptResult::Failed { kind, why }) => Event::Failed { token, kind, why },
                Ok(AttemptResult::FetchFailed { outputs, cause }) => {
                    let outputs = outputs.into_iter().map(AttemptToken).collect();
                    Event::FetchFailed { token, outputs, cause }
                }
                Ok(AttemptResult::Behind) => return self.restart(token, attempt),
                Ok(AttemptResult::Deleted) => failed("an unexpected answer".to_string()),
                Err(error) => failed(format!("an invalid answer: {error}")),
            },
        };
        self.tell(event);
        self.tell(Event::Asked { node });
    }

    /// Adds a finished attempt to the report.
    fn count(&mut self, token: AttemptToken, done: &TaskDone, bytes: u64) {
        let stage = self.partitions[&token].stage as usize;
        let report = &mut self.stages[stage];
        report.attempts += 1;
        report.bytes += bytes;
        report.seconds = report.seconds.max(self.began.elapsed().as_secs_f64());
        report.attempt_seconds += done.seconds;
        self.context.progress().add(1);
    }
}
