//! Imports a file of vectors or a table into nodes. The vectors are stored as shards, which are distributed over the
//! nodes.

use std::{fs::File, path::Path};

use inshore_nodes::{DistributedFile, Error as NodesError, LoadOptions, default_piece_bytes};
use inshore_store::{Error as StoreError, Execution, Job};
use inshore_tables::{Input, row_groups};
use inshore_vectors::{Imported, RowReader, SpreadTable, TableColumns, VectorFile, VectorLayout};
use serde_json::json;

use super::{
    columns::{COLUMNS_VERSION, ColumnsKind, ColumnsOnNodes, columns_name, description_of},
    parts::{dataset_on_nodes, id_of, missing, remove_parts},
};
use crate::{error::Result, target::OnNodes};

/// The size of the check blocks of columns, in bytes.
const COLUMNS_BLOCK_BYTES: u64 = 16 << 10;

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

/// Imports a table of Parquet or Arrow as the spread dataset `name`. One column of lists becomes the vectors. The other
/// columns become the dataset of columns, whose shards lie on the same nodes as the shards of the vectors.
///
/// The columns are written first, and the vectors last. Searches find the columns only through the vectors, so an
/// interrupted import leaves no vectors. The next import or removal removes columns that are left.
///
/// The table is read three times: to check the vectors, to write the columns to a scratch file of the job, and to send
/// the vectors. If there is a column of ids, the ids are read and sorted once more.
///
/// # Errors
/// - Returns [`NodesError::Unfit`] if the nodes have a dataset of this name.
/// - Returns the errors of [`SpreadTable::open`], for example if a list has another length than the first one.
/// - Returns the errors of [`inshore_nodes::Nodes::put`].
///
/// After an error, no data remains on the nodes, unless the message states that data remains.
pub(crate) fn import_table_on_nodes(
    on: &OnNodes,
    job: &Job,
    name: &str,
    (input, columns): (&Input, &TableColumns),
    (copies, piece_bytes): (u8, Option<u64>),
) -> Result<Imported> {
    if on.nodes.catalog()?.files_of(name)?.iter().any(|file| file.fault.is_none()) {
        let what = "the nodes have a dataset of this name: `inshore nearest rm --node` removes vectors";
        return Err(NodesError::Unfit { name: format!("store:{name}"), what: what.to_string() }.into());
    }
    let table = SpreadTable::open(job, input, columns)?;
    let row_bytes = table.layout().row_bytes() as u64;
    let nodes = on.nodes.addresses().count() as u64;
    let default = || default_piece_bytes(Some(table.vectors() * row_bytes), nodes);
    let piece_bytes = piece_bytes.unwrap_or_else(default);
    let dataset_id = put_columns(on, job, name, (&table, copies), (piece_bytes / row_bytes).max(1))?;
    let columns = ColumnsOnNodes { dataset_id, id_column: table.id_column().map(str::to_string) };
    let options = LoadOptions {
        copies: copies.into(),
        piece_bytes: Some(piece_bytes),
        block_bytes: VectorLayout::BLOCK_BYTES,
        record_bytes: Some(row_bytes),
        description: Some(description_of(table.layout(), &columns)),
        ..LoadOptions::default()
    };
    put_vectors(on, job, name, (&table, input.name()), &options).inspect_err(|_| {
        // The error of the import is more useful to the user than the error of this removal.
        let _ = remove_parts(on, &[columns_name(name)]);
    })?;
    Ok(table.imported(name)?)
}

/// Writes the vectors of a table to nodes.
fn put_vectors(
    on: &OnNodes,
    job: &Job,
    name: &str,
    (table, file): (&SpreadTable, &str),
    options: &LoadOptions,
) -> Result<()> {
    let bytes = table.vectors() * table.layout().row_bytes() as u64;
    let mut rows = table.rows()?;
    job.start_phase("loading", "bytes", bytes);
    let loaded = on.nodes.put(job, name, (file, Some(bytes)), &mut rows, options);
    match (loaded, rows.error()) {
        (Ok(loaded), _) if loaded.bytes == bytes => Ok(()),
        (Ok(loaded), _) => {
            let _ = remove_parts(on, &[name.to_string()]);
            let what = format!(
                "the file changed during the import: found {} bytes of vectors, expected {bytes}",
                loaded.bytes
            );
            Err(NodesError::Incomplete { name: file.to_string(), what }.into())
        }
        (Err(_), Some(error)) => Err(error.into()),
        (Err(error), None) => Err(error.into()),
    }
}

/// Writes the columns of a table to nodes. Each shard has the rows of `shard_rows` vectors. Returns the id of the
/// dataset as text.
fn put_columns(
    on: &OnNodes,
    job: &Job,
    name: &str,
    (table, copies): (&SpreadTable, u8),
    shard_rows: u64,
) -> Result<String> {
    let columns = columns_name(name);
    let path = job.scratch_path("columns.parquet");
    let failed = |error| StoreError::io("create", &path, error);
    let groups_of_shards = table.write_columns(File::create(&path).map_err(failed)?, shard_rows)?;
    let groups = row_groups(&Input::new(&path), job.budget())?;
    let before_last = &groups_of_shards[..groups_of_shards.len() - 1];
    let options = LoadOptions {
        copies: copies.into(),
        // Each shard ends at the first end after its start.
        piece_bytes: Some(1),
        ends: Some(before_last.iter().map(|&group| groups[group].start).collect()),
        block_bytes: COLUMNS_BLOCK_BYTES,
        description: Some(json!({ "kind": ColumnsKind::VectorColumns, "version": COLUMNS_VERSION })),
        ..LoadOptions::default()
    };
    let failed = |error| StoreError::io("open", &path, error);
    let file = File::open(&path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    remove_columns_that_are_left(on, name)?;
    job.start_phase("loading", "bytes", len);
    on.nodes.put(job, &columns, (&columns, Some(len)), file, &options)?;
    dataset_on_nodes(on, &columns)?.map(|file| id_of(&file)).ok_or_else(|| missing(&columns))
}

/// Removes columns without vectors, which are those of an interrupted import. Datasets of another kind remain.
fn remove_columns_that_are_left(on: &OnNodes, name: &str) -> Result<()> {
    let (catalog, columns) = (on.nodes.catalog()?, columns_name(name));
    let kind = json!(ColumnsKind::VectorColumns);
    let is_left = |file: &DistributedFile| {
        file.description.as_ref().is_some_and(|description| description.get("kind") == Some(&kind))
    };
    if !catalog.has(name) && catalog.files_of(&columns)?.iter().all(is_left) {
        remove_parts(on, &[columns])?;
    }
    Ok(())
}
