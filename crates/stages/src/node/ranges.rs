//! Serves ranges of outputs to the nodes that merge them, and to the driver.

use std::{ops::Range, sync::Arc};

use arrow_array::{BinaryArray, RecordBatch, UInt32Array};
use inshore_kernel::{Failure, Reply, RequiredRight, Task, TaskHandler};
use inshore_nodes::{open_pieces, protocol::PieceRequest};
use inshore_store::{CheckedFile, FileReader};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{memory::SERVE_BUFFERS, output::BLOCK_BYTES, session::Sessions};

pub(crate) const RANGE_KIND: &str = "stage-ranges";

/// The request for bytes of a session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RangeRequest {
    /// The id of the session.
    pub session: String,
    pub content: RangeContent,
}

/// The requested bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RangeContent {
    /// One range of several outputs: all of them, or none. Each output is given by its attempt and by the checksum of its
    /// directory.
    Outputs { outputs: Vec<(u32, u64)>, range: u32 },
    /// Pieces of files that are spread over nodes.
    Pieces(Vec<PieceRequest>),
}

/// The summary of an answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RangeSummary {
    /// The length and the CRC-32 of each part, in the order of the request.
    pub ranges: Vec<(u64, u32)>,
    /// The attempts whose outputs the node lacks. If there is one, the answer has no bytes.
    pub gone: Vec<u32>,
}

/// The handler that serves bytes of a session.
pub(super) struct Ranges(pub Sessions);

impl TaskHandler for Ranges {
    fn kind(&self) -> &'static str {
        RANGE_KIND
    }

    fn needs(&self) -> RequiredRight {
        RequiredRight::Relay
    }

    fn takes_slot(&self) -> bool {
        false
    }

    /// Sends the bytes, each batch with the index of its part in the request.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let RangeRequest { session, content } = serde_json::from_value(task.arguments)?;
        let found = self.0.get(&session);
        let mut summary = RangeSummary::default();
        let mut parts: Vec<(CheckedFile, Vec<Range<u64>>, Option<u32>)> = Vec::new();
        match content {
            RangeContent::Outputs { outputs, range } => {
                for (token, checksum) in outputs {
                    match found.as_ref().and_then(|session| session.output(token, checksum)) {
                        Some(output) => {
                            let entry = output.range(range);
                            parts.push((output.file.clone(), entry.segments, Some(entry.crc)));
                        }
                        None => summary.gone.push(token),
                    }
                }
            }
            RangeContent::Pieces(pieces) => {
                let session = found.as_ref().ok_or("the session of the pieces has ended")?;
                for source in open_pieces(&session.job, pieces)? {
                    let (file, bytes) = source.source.part().ok_or("a piece is not a file of a dataset")?;
                    parts.push((file.clone(), vec![bytes.clone()], None));
                }
            }
        }
        let Some(session) = found.filter(|_| summary.gone.is_empty()) else { return Ok(json!(summary)) };
        let serve = session.begin_serve(task.job.cancel())?;
        for (index, (file, segments, crc)) in parts.into_iter().enumerate() {
            let len = segments.iter().map(|segment| segment.end - segment.start).sum();
            let mut sent = crc32fast::Hasher::new();
            for segment in segments.into_iter().filter(|segment| !segment.is_empty()) {
                let mut reader = FileReader::deep(&serve.job, &file, segment, BLOCK_BYTES, SERVE_BUFFERS)?;
                while let Some(piece) = reader.next_piece()? {
                    if crc.is_none() {
                        sent.update(piece);
                    }
                    session.counters.sent(piece.len() as u64);
                    reply.batch(RecordBatch::try_from_iter([
                        ("part", Arc::new(UInt32Array::from(vec![index as u32])) as _),
                        ("bytes", Arc::new(BinaryArray::from(vec![piece])) as _),
                    ])?)?;
                }
            }
            summary.ranges.push((len, crc.unwrap_or_else(|| sent.finalize())));
        }
        session.counters.served(summary.ranges.len());
        Ok(json!(summary))
    }
}
