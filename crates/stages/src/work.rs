//! The trait for the code of a job's stages, which attempts run on nodes.

use inshore_kernel::{Failure, Sources};
use inshore_store::Job;
use serde_json::Value;

use crate::node::{OutputWriter, READER_BYTES, RangeInput, RangeReader};

/// The attempt for which the code of a stage runs.
#[derive(Clone, Copy, Debug)]
pub struct StageTask<'a> {
    /// The memory, threads and cancellation of the attempt.
    pub job: &'a Job,
    /// The arguments of the job.
    pub arguments: &'a Value,
    /// The number of the stage.
    pub stage: u32,
    /// The arguments of the stage: see [`JobStage::arguments`](crate::JobStage).
    pub stage_arguments: &'a Value,
    /// The number of the partition.
    pub partition: u32,
}

/// The input of a map attempt.
#[derive(Debug)]
pub struct MapInputs {
    /// The pieces of the partition.
    pub sources: Sources,
    /// For each stage of [`JobStage::broadcasts`](crate::JobStage), its rows in the order of its partitions.
    pub broadcasts: Vec<Vec<RangeInput>>,
}

/// The input of a merge attempt. Ranges of other nodes have been fetched, and lie in memory or on scratch.
#[derive(Debug)]
pub struct MergeInputs {
    /// For each stage of [`JobInput::Exchange::ranges`](crate::JobInput), its ranges in the order of its partitions.
    pub ranges: Vec<Vec<RangeInput>>,
    /// For each stage of [`JobInput::Exchange::states`](crate::JobInput), the state of the partition.
    pub states: Vec<RangeInput>,
    /// For each stage of [`JobStage::broadcasts`](crate::JobStage), its rows in the order of its partitions.
    pub broadcasts: Vec<Vec<RangeInput>>,
}

impl MergeInputs {
    /// Opens all ranges, in order. Each one takes [`READER_BYTES`] of the budget.
    ///
    /// # Errors
    /// Returns an error if the budget does not suffice, or if a range is damaged.
    pub fn open_ranges(self, job: &Job) -> Result<Vec<RangeReader>, Failure> {
        self.ranges.into_iter().flatten().map(|range| range.open(job)).collect()
    }
}

/// The code of a job's stages. Each node has one value for each kind of job, and attempts share it.
///
/// An attempt may run twice, on two nodes, or again after a loss. Each run must write the same rows to the same ranges,
/// so the code may depend only on its arguments and its input.
pub trait StageWork: Send + Sync {
    /// Returns the name by which a driver selects this code.
    fn kind(&self) -> &'static str;

    /// Returns the part of a slot that fetched ranges leave free: a range that does not fit beside it goes to scratch.
    /// `ranges` is the number of ranges that the attempt reads. By default, all of them can be open at the same time.
    fn kept_bytes(&self, slot_bytes: u64, ranges: u64) -> u64 {
        let _ = slot_bytes;
        ranges * READER_BYTES
    }

    /// Reads an input partition, and writes a batch of rows for each range of the exchange.
    ///
    /// # Errors
    /// Returns the error that prevents the attempt from completing. The driver tries again on another node.
    fn map(&self, task: &StageTask<'_>, inputs: MapInputs, output: &mut OutputWriter) -> Result<(), Failure>;

    /// Reads one range of each output of the producers, and writes an exchange or the bytes of a result partition.
    ///
    /// # Errors
    /// Returns the error that prevents the attempt from completing. The driver tries again on another node.
    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure>;
}
