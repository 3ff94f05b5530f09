//! Spreads the vectors of a file over nodes.

use std::path::Path;

use inshore_nodes::LoadOptions;
use inshore_store::Execution;
use inshore_vectors::{Imported, RowReader, VectorFile, VectorLayout};

use crate::{error::Result, target::OnNodes};

/// Spreads the vectors of a file over nodes as the dataset `name`, in shards that end with vectors.
///
/// Memory: that of [`RowReader`] and [`inshore_nodes::Nodes::put`].
///
/// # Errors
/// The errors of an import and of [`inshore_nodes::Nodes::put`]. After an error, no data remains on the nodes, unless
/// the error says so.
pub(crate) fn import_on_nodes(
    on: &OnNodes,
    job: &Execution,
    name: &str,
    file: &VectorFile,
    (copies, piece_bytes): (u8, Option<u64>),
) -> Result<Imported> {
    let layout = VectorLayout::new(file.element(), file.dimensions());
    let row_bytes = layout.row_bytes() as u64;
    let info = layout.info(name, file.count() * row_bytes)?;
    let options = LoadOptions {
        copies: copies.into(),
        piece_bytes,
        block_bytes: VectorLayout::BLOCK_BYTES,
        record_bytes: Some(row_bytes),
        description: Some(serde_json::to_value(layout).expect("plain data")),
        ..LoadOptions::default()
    };
    let called = Path::display(file.path()).to_string();
    let mut rows = RowReader::new(job, file)?;
    job.start_phase("loading", "bytes", info.bytes);
    let loaded = on.nodes.put(job, name, (&called, Some(info.bytes)), &mut rows, &options);
    let rounded = rows.rounded();
    match (loaded, rows.error()) {
        (Ok(_), _) => Ok(Imported { info, rounded, columns: Vec::new(), left_out: Vec::new() }),
        // The error of a vector names its place in the file.
        (Err(_), Some(error)) => Err(error.into()),
        (Err(error), None) => Err(error.into()),
    }
}
