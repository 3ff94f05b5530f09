//! Imports a file of vectors into nodes. The vectors are stored as shards, which are distributed over the nodes.

use std::path::Path;

use inshore_nodes::LoadOptions;
use inshore_store::Execution;
use inshore_vectors::{Imported, RowReader, VectorFile, VectorLayout};

use crate::{error::Result, target::OnNodes};

/// Imports the vectors of a file as the spread dataset `name`. No vector is split between two shards.
///
/// The import takes the memory of [`RowReader`] and of [`inshore_nodes::Nodes::put`].
///
/// # Errors
/// - Returns the errors of [`RowReader`], for example if a vector is malformed.
/// - Returns the errors of [`inshore_nodes::Nodes::put`].
///
/// After an error, no data remains on the nodes, unless the message states that data remains.
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
        // The error of the reader is preferred, since it states the position of the vector in the file.
        (Err(_), Some(error)) => Err(error.into()),
        (Err(error), None) => Err(error.into()),
    }
}
