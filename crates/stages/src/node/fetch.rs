//! Fetches ranges from other nodes.

use arrow_array::{RecordBatch, cast::AsArray, types::UInt32Type};
use inshore_kernel::Failure;
use inshore_nodes::{Error as NodesError, TaskReader};
use inshore_store::{CheckedFile, FileWriter, Job, Reservation};

use super::{
    RANGE_KIND, RangeRequest,
    output::{BLOCK_BYTES, RangeBytes, RangeEntry},
    ranges::RangeSummary,
    session::Session,
    task_of_session,
};
use crate::FetchFailure;

/// The reservation for fetched bytes in memory grows in steps of this number of bytes.
const STEP_BYTES: u64 = 1 << 20;

/// A range that was fetched. Its bytes lie in memory, or on scratch if the memory of the slot does not suffice.
#[derive(Debug)]
pub(super) struct FetchedRange {
    pub stored: RangeBytes,
    /// The number of bytes.
    pub bytes: u64,
}

/// The reason why a fetch gave no ranges.
pub(super) enum FetchError {
    /// The outputs of these attempts cannot be fetched.
    Missing(Vec<u32>, FetchFailure),
    /// The attempt fails.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for FetchError {
    fn from(error: E) -> FetchError {
        FetchError::Failed(error.into())
    }
}

/// Fetches `count` parts from a node, as a whole. `tokens` are the attempts whose outputs the parts are, or empty. A part
/// stays in memory if at least `kept_bytes` bytes of the budget stay free.
pub(super) fn fetch(
    session: &Session,
    job: &Job,
    node: usize,
    request: &RangeRequest,
    parts: (usize, &[u32]),
    kept_bytes: u64,
) -> Result<Vec<FetchedRange>, FetchError> {
    let task = task_of_session(RANGE_KIND, request, session.trace.as_deref());
    let reader = session.nodes.read_task(node, task);
    let fetched = receive(session, job, reader, parts, kept_bytes);
    session.end_fetch(node);
    if let Ok(fetched) = &fetched {
        session.counters.fetched(fetched.len());
    }
    fetched
}

fn receive(
    session: &Session,
    job: &Job,
    mut reader: TaskReader,
    (count, tokens): (usize, &[u32]),
    kept_bytes: u64,
) -> Result<Vec<FetchedRange>, FetchError> {
    let missing = |cause| FetchError::Missing(tokens.to_vec(), cause);
    let mut ranges: Vec<RangeBuffer> = (0..count).map(|_| RangeBuffer::default()).collect();
    loop {
        let batch = match reader.next(job) {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(NodesError::Store(error)) => return Err(error.into()),
            Err(error @ NodesError::Refused { .. }) if tokens.is_empty() => return Err(error.into()),
            Err(NodesError::BadAnswer { .. }) => return Err(missing(FetchFailure::Gone)),
            Err(_) => return Err(missing(FetchFailure::Unreachable)),
        };
        let Some((index, bytes)) = part(&batch).filter(|(index, _)| *index < ranges.len()) else {
            return Err(missing(FetchFailure::Gone));
        };
        session.counters.received(bytes.len() as u64);
        // The node sends one part after the other, so at most one part is being written.
        for earlier in &mut ranges[..index] {
            earlier.end()?;
        }
        ranges[index].append(job, bytes, kept_bytes)?;
    }
    let summary = reader.summary().and_then(|summary| serde_json::from_value(summary).ok());
    let RangeSummary { ranges: sent, gone } = summary.unwrap_or_default();
    if !gone.is_empty() {
        return Err(FetchError::Missing(gone, FetchFailure::Gone));
    }
    let is_damaged = |index: &usize| sent.get(*index) != Some(&ranges[*index].checksum());
    let damaged: Vec<usize> = (0..count).filter(is_damaged).collect();
    if !damaged.is_empty() {
        let damaged = damaged.into_iter().filter_map(|index| tokens.get(index).copied());
        return Err(FetchError::Missing(damaged.collect(), FetchFailure::Gone));
    }
    Ok(ranges.into_iter().map(RangeBuffer::finish).collect::<Result<_, _>>()?)
}

/// Returns the index of the output, and the bytes of a message.
fn part(batch: &RecordBatch) -> Option<(usize, &[u8])> {
    let [index, bytes] = batch.columns() else { return None };
    let index = index.as_primitive_opt::<UInt32Type>().filter(|index| index.len() == 1)?.value(0);
    Some((index as usize, bytes.as_binary_opt::<i32>()?.value(0)))
}

/// A range that is being received.
#[derive(Default)]
struct RangeBuffer {
    memory: Vec<Vec<u8>>,
    reservation: Option<Reservation>,
    writer: Option<FileWriter>,
    file: Option<CheckedFile>,
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl RangeBuffer {
    fn append(&mut self, job: &Job, bytes: &[u8], kept_bytes: u64) -> Result<(), Failure> {
        self.crc.update(bytes);
        self.bytes += bytes.len() as u64;
        if self.writer.is_none() {
            if self.holds(job, kept_bytes)? {
                self.memory.push(bytes.to_vec());
                return Ok(());
            }
            let mut writer = FileWriter::create(job, &job.scratch_name("fetched"), BLOCK_BYTES, BLOCK_BYTES)?;
            self.memory.drain(..).try_for_each(|piece| writer.write(&piece))?;
            self.reservation = None;
            self.writer = Some(writer);
        }
        Ok(self.writer.as_mut().expect("created above").write(bytes)?)
    }

    /// Reserves memory for the bytes received so far. Returns false if the budget has too little.
    fn holds(&mut self, job: &Job, kept_bytes: u64) -> Result<bool, Failure> {
        let held = self.reservation.as_ref().map_or(0, Reservation::bytes);
        if self.bytes <= held {
            return Ok(true);
        }
        let wanted = self.bytes.next_multiple_of(STEP_BYTES);
        if job.budget().free_bytes() < kept_bytes.saturating_add(wanted - held) {
            return Ok(false);
        }
        match &mut self.reservation {
            Some(reservation) => reservation.resize(wanted)?,
            none => *none = Some(job.budget().reserve(wanted, "fetched ranges")?),
        }
        Ok(true)
    }

    fn checksum(&self) -> (u64, u32) {
        (self.bytes, if self.bytes == 0 { 0 } else { self.crc.clone().finalize() })
    }

    /// Ends the file, and frees its buffers.
    fn end(&mut self) -> Result<(), Failure> {
        if let Some(writer) = self.writer.take() {
            self.file = Some(writer.finish()?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<FetchedRange, Failure> {
        self.end()?;
        let stored = match self.file {
            Some(file) => {
                let entry = RangeEntry {
                    bytes: self.bytes,
                    crc: self.crc.finalize(),
                    segments: std::iter::once(0..self.bytes).collect(),
                };
                RangeBytes::File(file, entry)
            }
            None => RangeBytes::Memory(self.memory, self.reservation),
        };
        Ok(FetchedRange { stored, bytes: self.bytes })
    }
}
