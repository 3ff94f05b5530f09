//! The trait for the code of a job's stages, which attempts run on nodes.

use inshore_kernel::{Failure, Sources};
use inshore_store::Job;
use serde_json::Value;

use crate::node::{OutputWriter, RangeReader};

/// The code of a job's stages. Each node has one value for each kind of job, and attempts share it.
///
/// An attempt may run twice, on two nodes, or again after a loss. Each run must write the same ranges, so the code may
/// depend only on its arguments and its input.
pub trait StageWork: Send + Sync {
    /// Returns the name by which a driver selects this code.
    fn kind(&self) -> &'static str;

    /// Reads an input partition, and writes a batch of rows for each range of the exchange, in the order of ranges.
    ///
    /// # Errors
    /// Returns the error that prevents the attempt from completing. The driver tries again on another node.
    fn map(
        &self,
        job: &Job,
        arguments: &Value,
        input: Sources,
        output: &mut OutputWriter,
    ) -> Result<(), Failure>;

    /// Merges one range of each producer, in the order of producer partitions, and writes the bytes of a result
    /// partition.
    ///
    /// # Errors
    /// Returns the error that prevents the attempt from completing. The driver tries again on another node.
    fn merge(
        &self,
        job: &Job,
        arguments: &Value,
        inputs: Vec<RangeReader>,
        output: &mut OutputWriter,
    ) -> Result<(), Failure>;
}
