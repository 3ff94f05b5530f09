//! The state of a driver.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::Sender,
    time::Instant,
};

use inshore_kernel::Failure;
use inshore_nodes::{Error as NodesError, Nodes, TaskEvent, WatchedTask, protocol::TaskDone};
use inshore_store::Context;

use super::{
    finished::{Facts, NodeReport, StageReport},
    job::{JobStage, StagesJob},
    members::Member,
};
use crate::{Action, AttemptToken, NodeId, PartitionId, Scheduler, Work};

/// Decides the stages that follow the last one, from the counts of its attempts, added up: see
/// [`OutputWriter::set_counts`](crate::OutputWriter::set_counts).
pub(super) type NextStages<'a> = &'a mut dyn FnMut(&[u64]) -> std::result::Result<Vec<JobStage>, Failure>;

/// An event from a connection.
pub(super) enum Message {
    Session(NodeId, u64, TaskEvent),
    /// The node of an attempt has taken the lists that came with it. False if it lacks earlier parts of them.
    ListsTaken(AttemptToken, u64, bool),
    Attempt(AttemptToken, u64, std::result::Result<TaskDone, NodesError>),
}

/// A session that was requested.
pub(super) struct OpenSession {
    pub task: WatchedTask,
    pub memory_bytes: u64,
    pub is_open: bool,
    /// Distinguishes the session from earlier sessions of the node.
    pub run: u64,
    /// The version of each stage's list of outputs that was sent to the node.
    pub sent: BTreeMap<u32, usize>,
}

pub(super) struct Driver<'a> {
    pub nodes: &'a Nodes,
    pub context: &'a Context,
    pub job: &'a StagesJob,
    pub next: Option<NextStages<'a>>,
    /// The stages that follow those of the job.
    pub added: Vec<JobStage>,
    pub members: Vec<Member>,
    pub id: String,
    /// The trace id of the job.
    pub trace: String,
    pub began: Instant,
    pub scheduler: Scheduler,
    pub actions: VecDeque<Action>,
    pub sender: Sender<Message>,
    pub sessions: BTreeMap<NodeId, OpenSession>,
    pub attempts: BTreeMap<AttemptToken, RunningAttempt>,
    /// The attempts that were not sent so far, with their runs.
    pub unsent: VecDeque<(AttemptToken, u64)>,
    pub partitions: BTreeMap<AttemptToken, PartitionId>,
    pub deletions: Vec<WatchedTask>,
    /// The error that ended the session of each lost node.
    pub losses: BTreeMap<NodeId, NodesError>,
    pub facts: BTreeMap<AttemptToken, Facts>,
    pub stages: Vec<StageReport>,
    /// The last stage that has begun.
    pub phase: Option<u32>,
    pub nodes_report: Vec<NodeReport>,
    /// The number of connections so far.
    pub runs: u64,
}

/// An attempt that was sent to its node, or waits for that.
pub(super) struct RunningAttempt {
    pub node: NodeId,
    pub work: Work,
    /// `None` until the attempt was sent.
    pub task: Option<WatchedTask>,
    /// The bytes of the lists that the attempt brings to its node, until the node has taken them.
    pub list_bytes: u64,
    pub run: u64,
}
