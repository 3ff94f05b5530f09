//! A job that has finished: its outputs lie on the nodes until they are read or published.

use std::{collections::BTreeMap, io::Read, sync::Arc};

use arrow_array::{RecordBatch, cast::AsArray};
use arrow_ipc::reader::StreamReader;
use arrow_schema::ArrowError;
use inshore_nodes::{
    Error as NodesError, Nodes, SpreadId, TaskReader, WatchedTask,
    protocol::{FileMap, Generation, MAP_VERSION, MapNode, MapPiece},
    spread,
};
use inshore_store::Context;
use serde::Serialize;

use super::{
    job::JobStage,
    members::{Member, Result, ask_all},
};
use crate::{
    AttemptToken, Counters, DriverError, NodeId, Output,
    node::{
        PUBLISH_KIND, PublishAnswer, PublishRequest, RANGE_KIND, RangeContent, RangeRequest, task_of_session,
    },
};

/// The cost of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageReport {
    /// The name of the stage.
    pub name: String,
    /// The number of partitions.
    pub partitions: u32,
    /// The number of attempts that finished.
    pub attempts: u64,
    /// The bytes of all outputs.
    pub bytes: u64,
    /// The time from the start of the job to the last output of the stage, in seconds.
    pub seconds: f64,
    /// The sum of the times of all finished attempts, in seconds.
    pub attempt_seconds: f64,
}

impl StageReport {
    /// Returns the report of a stage that has not begun.
    pub(super) fn of(stage: &JobStage, partitions: u32) -> StageReport {
        StageReport { name: stage.name.clone(), partitions, ..StageReport::default() }
    }
}

/// The part of a node in a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeReport {
    /// The address of the node.
    pub node: String,
    /// The number of attempts that finished.
    pub attempts: u64,
    /// The bytes that the node sent to other nodes.
    pub sent: u64,
    /// The bytes that the node received from other nodes.
    pub received: u64,
}

/// The cost of a job.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// The trace id of the job: 32 hexadecimal digits, which are in the log line of each of its tasks on the nodes.
    pub trace: String,
    /// The stages, in order.
    pub stages: Vec<StageReport>,
    /// The nodes, each with the bytes of its link.
    pub nodes: Vec<NodeReport>,
    /// The numbers of attempts.
    pub attempts: Counters,
    /// The time from the start to the last output, in seconds.
    pub seconds: f64,
}

/// The facts that a finished attempt reports about its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The number of line feeds in the output.
    pub lines: u64,
    pub counts: Vec<u64>,
}

impl Facts {
    /// Adds up the counts of attempts, one number after the other.
    pub fn counts<'a>(of: impl Iterator<Item = &'a Facts>) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::new();
        for Facts { counts, .. } in of {
            sums.resize(sums.len().max(counts.len()), 0);
            // The counts come from nodes, and must not end the driver.
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
        sums
    }
}

/// A finished job, with its outputs on the nodes. Dropping this value deletes the outputs.
#[derive(Debug)]
pub struct FinishedJob {
    nodes: Nodes,
    members: Vec<Member>,
    id: String,
    sessions: BTreeMap<NodeId, WatchedTask>,
    /// For each result partition: its output, and the facts that its attempt reported.
    outputs: Vec<(Output, Facts)>,
    report: JobReport,
}

impl FinishedJob {
    pub(super) fn new(
        nodes: Nodes,
        members: Vec<Member>,
        id: String,
        sessions: BTreeMap<NodeId, WatchedTask>,
        outputs: Vec<Output>,
        mut facts: BTreeMap<AttemptToken, Facts>,
        report: JobReport,
    ) -> FinishedJob {
        let with_facts = |output: Output| (output, facts.remove(&output.token).unwrap_or_default());
        let outputs = outputs.into_iter().map(with_facts).collect();
        FinishedJob { nodes, members, id, sessions, outputs, report }
    }

    /// Returns the cost of the job.
    pub fn report(&self) -> &JobReport {
        &self.report
    }

    /// Returns the size of the result in bytes.
    pub fn bytes(&self) -> u64 {
        self.outputs.iter().map(|(output, _)| output.bytes).sum()
    }

    /// Returns the number of line feeds in the result.
    pub fn lines(&self) -> u64 {
        self.outputs.iter().map(|(_, facts)| facts.lines).sum()
    }

    /// Returns the counts of the attempts that made the result, added up: see
    /// [`OutputWriter::set_counts`](crate::OutputWriter::set_counts).
    pub fn counts(&self) -> Vec<u64> {
        Facts::counts(self.outputs.iter().map(|(_, facts)| facts))
    }

    /// Reads the result in the order of partitions, and passes its bytes to `each`.
    ///
    /// # Errors
    /// - Returns [`DriverError::Nodes`] if a node is lost.
    /// - Returns [`DriverError::OutputLost`] if a node lacks an output, or sends fewer bytes than the output has.
    /// - Returns the errors of `each`.
    pub fn read(
        &self,
        context: &Context,
        each: &mut dyn FnMut(&[u8]) -> inshore_store::Result<()>,
    ) -> Result<()> {
        for output in 0..self.outputs.len() {
            let mut bytes = self.open(output);
            while let Some(part) = bytes.next(context)? {
                each(&part)?;
                context.progress().add(part.len() as u64);
            }
        }
        Ok(())
    }

    /// Reads the rows of a result whose partitions are batches: an iterator over the batches of all partitions, in
    /// their order. The iterator holds the outputs on the nodes until it is dropped.
    pub fn into_rows(self, context: &Context) -> ResultRows {
        ResultRows { finished: Arc::new(self), context: context.clone(), next: 0, reader: None }
    }

    fn open(&self, output: usize) -> OutputBytes {
        let output = self.outputs[output].0;
        let member = &self.members[output.node.0 as usize];
        let outputs = vec![(output.token.0, output.checksum)];
        let content = RangeContent::Outputs { outputs, range: 0 };
        let request = RangeRequest { session: self.id.clone(), content };
        let reader = self
            .nodes
            .read_task(member.index, task_of_session(RANGE_KIND, &request, Some(&self.report.trace)));
        OutputBytes { reader, output, node: member.address.clone(), bytes: 0 }
    }

    /// Makes the result a dataset that is spread over the nodes: each result partition is a piece on the node that
    /// computed it. The dataset becomes visible on all nodes after each of them has all of its pieces.
    ///
    /// The cost is one read and one write of the result, on the nodes.
    ///
    /// # Errors
    /// - Returns [`DriverError::Nodes`] if a node is lost or refuses the dataset, for example because it has a dataset of
    ///   this name.
    /// - Returns [`DriverError::Incomplete`] if only some nodes have committed the dataset.
    pub fn publish(&self, context: &Context, name: &str, record_bytes: Option<u64>) -> Result<()> {
        let holders: Vec<NodeId> = self.sessions.keys().copied().collect();
        let task = |node: NodeId, request: &PublishRequest| {
            (
                self.members[node.0 as usize].index,
                task_of_session(PUBLISH_KIND, request, Some(&self.report.trace)),
            )
        };
        let pieces = |node: NodeId| {
            let own = self.outputs.iter().filter(|(output, _)| output.node == node);
            let own = own.map(|(output, _)| (output.partition.partition, output.token.0, output.checksum));
            let (session, name) = (self.id.clone(), name.to_string());
            task(node, &PublishRequest::Pieces { session, name, outputs: own.collect() })
        };
        let mut number = 1;
        for answer in ask_all(&self.nodes, context, holders.iter().map(|&node| pieces(node)).collect())? {
            if let Ok(PublishAnswer::Pieces { generation }) = serde_json::from_value(answer) {
                number = number.max(generation.saturating_add(1));
            }
        }
        let place = |node: NodeId| {
            holders.iter().position(|&holder| holder == node).and_then(|place| u16::try_from(place).ok())
        };
        let piece = |(output, facts): &(Output, Facts)| {
            let node = place(output.node).ok_or_else(|| DriverError::OutputLost {
                node: self.members[output.node.0 as usize].address.clone(),
                partition: output.partition,
            })?;
            Ok(MapPiece { bytes: output.bytes, lines: facts.lines, nodes: vec![node] })
        };
        let map_node = |&node: &NodeId| {
            let Member { number, address, .. } = &self.members[node.0 as usize];
            MapNode { number: *number, name: address.clone() }
        };
        let pieces: Vec<MapPiece> = self.outputs.iter().map(piece).collect::<Result<_>>()?;
        let map = FileMap {
            version: MAP_VERSION,
            generation: Generation { id: SpreadId::random(), number, put_ms: spread::now_ms() },
            record_bytes: record_bytes.filter(|_| pieces.len() > 1),
            record_lines: None,
            is_grouped: false,
            description: None,
            nodes: holders.iter().map(map_node).collect(),
            pieces,
        };
        let request = PublishRequest::Map { session: self.id.clone(), map };
        ask_all(&self.nodes, context, holders.iter().map(|&node| task(node, &request)).collect())?;
        let request = PublishRequest::Commit { session: self.id.clone() };
        let (mut committed, mut failed) = (0, None);
        for &node in &holders {
            match ask_all(&self.nodes, context, vec![task(node, &request)]) {
                Ok(_) => committed += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(()),
            Some(error) if committed == 0 => Err(error),
            Some(error) => Err(DriverError::Incomplete {
                name: name.to_string(),
                what: format!("{committed} of {} nodes committed it: {error}", holders.len()),
            }),
        }
    }
}

/// The bytes of a result partition, as they arrive.
#[derive(Debug)]
struct OutputBytes {
    reader: TaskReader,
    output: Output,
    /// The address of the node.
    node: String,
    bytes: u64,
}

impl OutputBytes {
    /// Returns the next bytes, and `None` after the last ones.
    fn next(&mut self, context: &Context) -> Result<Option<Vec<u8>>> {
        let Self { reader, output, node, bytes } = self;
        let lost = || DriverError::OutputLost { node: node.clone(), partition: output.partition };
        let Some(batch) = reader.next(context)? else {
            return if *bytes == output.bytes { Ok(None) } else { Err(lost()) };
        };
        let part = batch.columns().get(1).and_then(|bytes| bytes.as_binary_opt::<i32>());
        let part = part.filter(|_| batch.num_rows() == 1).ok_or_else(lost)?.value(0);
        *bytes += part.len() as u64;
        Ok(Some(part.to_vec()))
    }
}

/// An iterator over the batches of a result: see [`FinishedJob::into_rows`].
#[derive(Debug)]
pub struct ResultRows {
    finished: Arc<FinishedJob>,
    context: Context,
    /// The number of the next partition.
    next: usize,
    reader: Option<StreamReader<OutputStream>>,
}

impl ResultRows {
    /// Returns the cost of the job.
    pub fn report(&self) -> &JobReport {
        self.finished.report()
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next() {
                    Some(Ok(batch)) => return Ok(Some(batch)),
                    Some(Err(error)) => return Err(self.failed(error)),
                    None => self.reader = None,
                }
            }
            let Some((output, _)) = self.finished.outputs.get(self.next) else { return Ok(None) };
            let is_empty = output.bytes == 0;
            let bytes = self.finished.open(self.next);
            self.next += 1;
            if !is_empty {
                let stream = OutputStream {
                    bytes,
                    context: self.context.clone(),
                    piece: Vec::new(),
                    used: 0,
                    failure: None,
                };
                let opened = StreamReader::try_new(stream, None);
                self.reader = Some(opened.map_err(|error| self.failed(error))?);
            }
        }
    }

    /// Returns the error of a node behind an error of the decoder.
    fn failed(&mut self, error: ArrowError) -> DriverError {
        let of_node = self.reader.as_mut().and_then(|reader| reader.get_mut().failure.take());
        of_node.unwrap_or_else(|| {
            NodesError::BadAnswer { node: "the nodes".to_string(), what: format!("invalid rows: {error}") }
                .into()
        })
    }
}

impl Iterator for ResultRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        self.advance().transpose()
    }
}

/// The bytes of a result partition, as a reader.
#[derive(Debug)]
struct OutputStream {
    bytes: OutputBytes,
    context: Context,
    piece: Vec<u8>,
    used: usize,
    /// The error that ended the stream.
    failure: Option<DriverError>,
}

impl Read for OutputStream {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.used == self.piece.len() {
            self.used = 0;
            match self.bytes.next(&self.context) {
                Ok(Some(piece)) => self.piece = piece,
                Ok(None) => return Ok(0),
                Err(error) => {
                    let shown = std::io::Error::other(error.to_string());
                    self.failure = Some(error);
                    return Err(shown);
                }
            }
        }
        let len = (self.piece.len() - self.used).min(out.len());
        out[..len].copy_from_slice(&self.piece[self.used..self.used + len]);
        self.used += len;
        Ok(len)
    }
}

/// Checks before a job that its result can become a dataset: that each node that answers lets this client write, and has
/// no dataset of this name. [`FinishedJob::publish`] checks the same again.
///
/// # Errors
/// Returns [`DriverError::Nodes`] for the first node that refuses the name or the client.
pub fn check_name(nodes: &Nodes, context: &Context, name: &str) -> Result<()> {
    let request = PublishRequest::Check { name: name.to_string() };
    let count = nodes.addresses().count();
    let mut readers: Vec<_> =
        (0..count).map(|node| nodes.read_task(node, task_of_session(PUBLISH_KIND, &request, None))).collect();
    for reader in &mut readers {
        match reader.next(context) {
            // A lost node takes no part in the job.
            Ok(_) | Err(NodesError::Lost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
