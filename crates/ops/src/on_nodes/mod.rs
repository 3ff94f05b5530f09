//! This module runs the kernels of Inshore on the nodes that store the data, and merges the answers of the nodes.

mod compression;
mod language;
mod search;
#[cfg(test)]
mod tests;
mod words;

use inshore_kernel::Error as ReadError;
use inshore_kernels::Error as KernelError;
use inshore_nodes::{DistributedFile, Error as NodesError, Nodes, RunOptions, read_from_nodes};
use inshore_store::Context;
use inshore_tables::Compression;

pub(crate) use self::{
    compression::compress_on_nodes,
    language::{identify_on_nodes, train_on_nodes},
    search::{search_on_nodes, search_table_on_nodes},
    words::count_words_on_nodes,
};

/// Refuses compressed files on nodes, since a node reads shards, and a single shard cannot be decompressed. The
/// check sends one request for each file.
///
/// # Errors
/// - Returns [`NodesError::Unfit`] if the file is compressed. The error names the compression format.
/// - Returns an error if the file's first bytes cannot be read.
pub(crate) fn refuse_compressed(
    nodes: &Nodes,
    context: &Context,
    wholes: &[DistributedFile],
    options: &RunOptions,
) -> inshore_nodes::Result<()> {
    for whole in wholes {
        let range = 0..whole.bytes().min(Compression::HEAD_BYTES as u64);
        let head = match read_from_nodes(nodes, context, whole, range, options) {
            // The answer reports missing shards at the end.
            Err(NodesError::Missing { .. }) if options.partial => continue,
            head => head?,
        };
        if let Some(format) = Compression::of_head(&head) {
            let what = format!(
                "it is compressed as a whole, so no node can read its piece: load it decompressed ({format})"
            );
            return Err(NodesError::Unfit { name: whole.title.clone(), what });
        }
    }
    Ok(())
}

/// Converts an error of nodes to an error of kernels.
fn failed(error: NodesError) -> KernelError {
    match error {
        NodesError::Store(error) => KernelError::Store(error),
        error => KernelError::Read(ReadError::Stream(Box::new(error))),
    }
}
