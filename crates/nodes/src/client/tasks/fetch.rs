//! Fetches the bytes of a shard from a node with a copy, so that the client can process the shard.

use std::{
    io::{self, Read},
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use inshore_kernel::{Answer, Contents, PartRow, Portable, part_rows};
use serde_json::json;

use super::{run::Run, scheduler::Event};
use crate::{
    Error, Result,
    client::pump::{AttemptReport, LATE, NodeMessage, Outlet, pump, queue},
    protocol::{PieceRequest, READ_BESIDE_BYTES, TaskRequest, VERSION},
};

/// The interval at which a waiting fetch checks whether its bytes are still needed.
const LOOK: Duration = Duration::from_millis(50);

/// A reader of consecutive byte ranges of a shard. The node serves these reads while a task of the job runs on the
/// node.
#[derive(Debug)]
pub(crate) struct Fetch {
    run: Arc<Run>,
    attempt: usize,
    node: usize,
    answers: Outlet,
    told: Arc<Mutex<AttemptReport>>,
    pump: tokio::task::JoinHandle<()>,
    rows: std::vec::IntoIter<PartRow>,
    bytes: Vec<u8>,
    place: usize,
    left: u64,
}

impl Fetch {
    /// Begins to read `ranges` of the file. The ranges are parts of the shard that is assigned to `attempt`.
    /// Up to `ahead_bytes` of the answers may wait on this machine.
    ///
    /// # Errors
    /// Returns [`Error::Incomplete`] if no remaining node has the shard.
    pub fn begin(
        run: &Arc<Run>,
        attempt: usize,
        shard: usize,
        ranges: &[Range<u64>],
        ahead_bytes: u64,
    ) -> Result<Fetch> {
        let placed = &run.shards[shard];
        let (node, whole) = run.holders(shard).into_iter().next().ok_or_else(|| Error::Incomplete {
            name: placed.title.clone(),
            what: "no remaining node has it".to_string(),
        })?;
        let begin = placed.piece.offset;
        let part = |(number, range): (usize, &Range<u64>)| PieceRequest {
            number: number as u64,
            from: range.start - begin,
            to: range.end - begin,
            offset: range.start,
            lines: 0,
            ..whole.clone()
        };
        let left = run.nodes.0.deadline.map(|deadline| deadline.left());
        let request = TaskRequest {
            version: VERSION,
            kind: Contents::KIND.to_string(),
            arguments: json!({}),
            pieces: ranges.iter().enumerate().map(part).collect(),
            memory_bytes: Some(READ_BESIDE_BYTES),
            deadline_ms: left.map(|left| (left + LATE).as_millis() as u64),
            alive_ms: None,
            pulls: None,
            beside: run.beside(node),
            trace: None,
        };
        let (out, answers) = queue(ahead_bytes);
        let told: Arc<Mutex<AttemptReport>> = Arc::default();
        let hear = |_: NodeMessage<'_>| {};
        let pump = pump(run.nodes.0.nodes[node].clone(), request, out, told.clone(), hear);
        let pump = run.nodes.0.runtime.spawn(pump);
        let left = ranges.iter().map(|range| range.end - range.start).sum();
        Ok(Fetch {
            run: run.clone(),
            attempt,
            node,
            answers,
            told,
            pump,
            rows: Vec::new().into_iter(),
            bytes: Vec::new(),
            place: 0,
            left,
        })
    }

    /// Returns true if all bytes were read.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.place == self.bytes.len()
    }

    /// Returns the source node, and the bytes that the node read from its devices for this fetch.
    pub fn cost(&self) -> (usize, u64) {
        let told = self.told.lock().expect("no panic under this lock");
        (self.node, told.done.as_ref().map_or(0, |done| done.bytes_read))
    }

    /// Returns the next answer of the node; `None` at the end.
    fn answer(&mut self) -> Result<Option<Vec<PartRow>>> {
        let address = self.run.nodes.0.nodes[self.node].address.clone();
        loop {
            self.run.nodes.0.check(|| format!("node {address} has not answered"))?;
            self.run.job.check_cancelled()?;
            if self.run.is_over(self.attempt) {
                return Err(inshore_store::Error::Cancelled.into());
            }
            let answers = &mut self.answers;
            let next = async { tokio::time::timeout(LOOK, answers.next()).await };
            let Ok(answer) = self.run.nodes.0.runtime.block_on(next) else { continue };
            let bad = |what: &str| Error::BadAnswer { node: address.clone(), what: what.to_string() };
            return match answer {
                Some(Ok(Some(batch))) => {
                    part_rows(&batch).ok_or_else(|| bad("an answer has unexpected columns")).map(Some)
                }
                Some(Ok(None)) | None => Ok(None),
                Some(Err(error)) => Err(error),
            };
        }
    }

    /// Returns the next bytes of the ranges, or an empty vector at the end.
    fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            match self.rows.next().map(|row| row.answer) {
                Some(Answer::Part(bytes) | Answer::Beginning(bytes)) if !bytes.is_empty() => {
                    return Ok(bytes);
                }
                Some(Answer::Failed(what)) => {
                    let node = self.run.nodes.0.nodes[self.node].address.clone();
                    return Err(Error::Refused { node, what });
                }
                Some(_) => {}
                None => match self.answer()? {
                    Some(rows) => self.rows = rows.into_iter(),
                    None => return Ok(Vec::new()),
                },
            }
        }
    }

    /// Waits for the end of the task, which reports its cost.
    pub fn end(&mut self) {
        while let Ok(Some(_)) = self.answer() {}
    }
}

impl Read for Fetch {
    /// Fills `out` completely, except at the end of the ranges, since the kernel processes complete blocks.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            if self.place == self.bytes.len() {
                if self.left == 0 {
                    break;
                }
                (self.bytes, self.place) = (self.next().map_err(io::Error::other)?, 0);
                if self.bytes.is_empty() || self.bytes.len() as u64 > self.left {
                    let what = format!("received {} bytes, expected at most {}", self.bytes.len(), self.left);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                self.left -= self.bytes.len() as u64;
                self.run.tell(Event::Progressed { attempt: self.attempt });
            }
            let len = (out.len() - filled).min(self.bytes.len() - self.place);
            out[filled..filled + len].copy_from_slice(&self.bytes[self.place..self.place + len]);
            (filled, self.place) = (filled + len, self.place + len);
        }
        Ok(filled)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.pump.abort();
    }
}
