//! Begins and ends an attempt, with a task and a link on each node that holds a part of the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use bytes::Bytes;
use futures::FutureExt;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    PATIENCE, Traversal,
    options::{NodeVisits, TraversalSide},
};
use crate::{
    Error, Result,
    client::pump::{AttemptReport, pump, queue},
    protocol::{PieceRequest, TRAVERSE, TaskRequest, VERSION},
    traversal::hop::{Arguments, ChainPosition, Hop, HopKind, Link, LinkMessage, Session},
};

/// The time that nodes have to report the cost of a traversal.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The capacity of the queue of events from nodes.
const EVENTS: usize = 256;

/// An event of an attempt.
pub(super) enum AttemptEvent {
    Task(usize, Result<Option<RecordBatch>>),
    Link(usize, LinkMessage),
}

/// One attempt of a traversal on the current set of nodes. Dropping the attempt ends the tasks on all nodes.
pub(super) struct Attempt {
    pub session: Session,
    /// The usable nodes for each piece.
    pub holders: Vec<Vec<usize>>,
    pub links: BTreeMap<usize, Link>,
    pub tasks: BTreeMap<usize, (JoinHandle<()>, Arc<Mutex<AttemptReport>>)>,
    pub events: mpsc::Receiver<AttemptEvent>,
    /// The nodes that are not ready yet.
    pub awaited: BTreeSet<usize>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.tasks.values().for_each(|(task, _)| task.abort());
    }
}

impl Traversal<'_> {
    /// Returns the certificates of the nodes that hold a part of the file, for authentication between nodes.
    /// Returns `None` if a node did not answer and was given up.
    pub(super) fn certificates(&mut self, holders: &[Vec<usize>]) -> Result<Option<Vec<Option<String>>>> {
        let mut certificates = vec![None; self.nodes.0.nodes.len()];
        if self.options.by != TraversalSide::Nodes {
            return Ok(Some(certificates));
        }
        let nodes: BTreeSet<usize> = holders.iter().flatten().copied().collect();
        let inner = &self.nodes.0;
        let requests = nodes.iter().map(|&node| inner.ask(node, "certificate", Bytes::new()));
        let mut requests = pin!(futures::future::join_all(requests));
        let answers = loop {
            self.check()?;
            let waited = async { tokio::time::timeout(PATIENCE, &mut requests).await };
            if let Ok(answers) = inner.runtime.block_on(waited) {
                break answers;
            }
        };
        for (&node, answer) in nodes.iter().zip(answers) {
            let answer = answer.and_then(|answer| self.nodes.0.nodes[node].certificate(&answer));
            match answer {
                Ok(certificate) => certificates[node] = certificate,
                Err(error @ (Error::Lost { .. } | Error::BadAnswer { .. })) => {
                    self.give_up(node, error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(certificates))
    }

    /// Starts a task on each node that holds a part of the file, and opens a link to each of these nodes.
    pub(super) fn begin(&self, holders: Vec<Vec<usize>>, certificates: &[Option<String>]) -> Attempt {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the system gives random numbers");
        let nodes: BTreeSet<usize> = holders.iter().flatten().copied().collect();
        let (events_in, events) = mpsc::channel(EVENTS);
        let mut tasks = BTreeMap::new();
        for &node in &nodes {
            let request = self.request(node, &holders, certificates, random);
            let report: Arc<Mutex<AttemptReport>> = Arc::default();
            let (out, mut answers) = queue(0);
            let pumped = pump(self.nodes.0.nodes[node].clone(), request, out, report.clone(), |_| {});
            let events_in = events_in.clone();
            let task = self.nodes.0.runtime.spawn(async move {
                let forward = async {
                    while let Some(answer) = answers.next().await {
                        if events_in.send(AttemptEvent::Task(node, answer)).await.is_err() {
                            return;
                        }
                    }
                };
                futures::future::join(pumped, forward).await;
            });
            tasks.insert(node, (task, report));
        }
        let link = |&node: &usize| {
            let events_in = events_in.clone();
            let receive = move |message| {
                let events_in = events_in.clone();
                async move { drop(events_in.send(AttemptEvent::Link(node, message)).await) }.boxed()
            };
            let inner = &self.nodes.0;
            (node, Link::open(inner.runtime.handle(), inner.nodes[node].clone(), receive))
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
            let is_used = holders[number].contains(&node);
            let Some(holder) = piece.holders.iter().find(|holder| holder.node == node && is_used) else {
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
            // The node reports the progress of chains, so no regular progress messages are requested.
            alive_ms: None,
            pulls: None,
            beside: None,
            trace: None,
        }
    }

    /// Informs all nodes that the traversal is over, and collects their costs.
    pub(super) fn end(&mut self, mut attempt: Attempt) -> Result<()> {
        let (walked, unheard) = (ChainPosition::default(), Duration::ZERO);
        let end = Hop { session: attempt.session, what: HopKind::End, chain: 0, walked, unheard };
        let nodes: Vec<usize> = attempt.tasks.keys().copied().collect();
        for &node in &nodes {
            self.send(&attempt, node, end)?;
        }
        let mut left: BTreeSet<usize> = nodes.into_iter().collect();
        let until = Instant::now() + END_PATIENCE;
        // A node that is lost at this point has already followed its chains.
        while !left.is_empty() && Instant::now() < until {
            match self.nodes.0.runtime.block_on(async {
                tokio::time::timeout(PATIENCE, attempt.events.recv()).await.unwrap_or(None)
            }) {
                Some(AttemptEvent::Task(node, Ok(None) | Err(_))) => drop(left.remove(&node)),
                _ => self.job.check_cancelled()?,
            }
        }
        for (&node, (_, report)) in &attempt.tasks {
            let done = report.lock().expect("no panic under this lock").done.take().unwrap_or_default();
            self.result.nodes.push(NodeVisits {
                node: self.nodes.0.nodes[node].address.clone(),
                visited: serde_json::from_value(done.summary).unwrap_or_default(),
                bytes_read: done.bytes_read,
                lost: None,
            });
        }
        Ok(())
    }
}
