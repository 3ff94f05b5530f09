//! This module compresses files on the nodes that store them. Only compressed bytes are sent to the client.

use std::io::Write;

use inshore_kernel::{Event, Next};
use inshore_kernels::{Error, Pack, PackSummary, Result};
use inshore_nodes::{DistributedFile, GatherReport, Nodes, RunOptions, run_on_nodes};
use inshore_store::Context;

/// Compresses a file on nodes into `output`.
///
/// The client's memory is that of [`run_on_nodes`].
///
/// # Errors
/// - Returns the errors of [`run_on_nodes`].
/// - Returns [`Error::Write`] if the result cannot be written.
pub fn compress_on_nodes(
    nodes: &Nodes,
    job: &Context,
    whole: &DistributedFile,
    pack: Pack,
    options: &RunOptions,
    mut output: impl Write,
) -> Result<(PackSummary, GatherReport)> {
    let mut summary = PackSummary::default();
    let mut before = 0;
    let gathered =
        run_on_nodes(nodes, job, &pack, std::slice::from_ref(whole), options, |event: Event<'_, Pack>| {
            if let Some(part) = event.part {
                let part = part?;
                output.write_all(&part).map_err(Error::Write)?;
                summary.bytes_out += part.len() as u64;
                summary.pieces += 1;
                // A smaller offset belongs to the next shard, whose offsets begin at 0 again.
                let reach = event.reach.bytes;
                job.progress().add(reach.checked_sub(before).unwrap_or(reach));
                before = reach;
            }
            Ok::<_, Error>(Next::Go)
        })?;
    // For an empty file, the output is the compressed form of no bytes, which is a valid compressed file.
    if summary.bytes_out == 0 {
        let nothing = pack.of_nothing()?;
        output.write_all(&nothing).map_err(Error::Write)?;
        summary.bytes_out = nothing.len() as u64;
    }
    summary.bytes_in = whole.bytes() - gathered.missing.iter().map(|missing| missing.bytes).sum::<u64>();
    Ok((summary, gathered))
}
