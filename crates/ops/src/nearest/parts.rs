//! The datasets of an index on nodes. `NAME` is the name of the vectors.
//!
//! | dataset | content |
//! |---|---|
//! | `NAME.index` | the centroids of the lists and their numbers of vectors, with the description of the index |
//! | `NAME.index.lists` | the lists of the shards |
//! | `NAME.index.centroids` | the centroids, which nodes read while they write the lists |
//! | `NAME.index.recall.0`, `NAME.index.recall.1` | a table of recall that was measured on queries |
//!
//! Searches find an index through `NAME.index`. Its description contains the table of recall of the build. A table that
//! was measured on queries is a dataset of its own: the new table is written under the free one of the two names, and
//! the earlier table is removed afterwards. A search uses the table with the higher number. So an interrupted
//! measurement leaves the earlier table or the new one, and an index never lacks a table.

use inshore_nodes::{Catalog, DistributedFile, Error as NodesError, LoadOptions, SpreadId};
use inshore_store::Execution;
use inshore_vectors::RecallTable;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    target::OnNodes,
};

/// The current version of the description of a table of recall.
const TABLE_VERSION: u32 = 1;

/// Returns the names of the three datasets of the index of the vectors `vectors`. The first dataset contains the
/// centroids, and the second contains the lists. The third contains the centroids that nodes read while they write the
/// lists.
pub(super) fn index_names(vectors: &str) -> [String; 3] {
    ["index", "index.lists", "index.centroids"].map(|end| format!("{vectors}.{end}"))
}

/// Returns the spread dataset `name`. Returns `None` if no node stores a dataset of this name.
pub(super) fn dataset_on_nodes(on: &OnNodes, name: &str) -> Result<Option<DistributedFile>> {
    dataset_in(&on.nodes.catalog()?, name)
}

/// Returns the spread dataset `name` of a catalog. Returns `None` if no node stores a dataset of this name.
pub(super) fn dataset_in(catalog: &Catalog, name: &str) -> Result<Option<DistributedFile>> {
    match catalog.named(name) {
        Ok(found) => Ok(found.into_iter().next()),
        // Other errors are returned, since a node that did not answer may store the dataset.
        Err(NodesError::NotFound { name: shown }) if shown == format!("store:{name}") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the id of a dataset as text.
pub(super) fn id_of(file: &DistributedFile) -> String {
    file.id.map_or(String::new(), |id| id.to_string())
}

/// Returns the names of all datasets of the index of the vectors `vectors`. The dataset through which searches find the
/// index is the first one.
pub(super) fn index_parts(vectors: &str) -> Vec<String> {
    index_names(vectors).into_iter().chain(table_names(vectors)).collect()
}

/// Removes datasets from all nodes, also if the removal of one of them fails. Returns the largest number of nodes from
/// which a dataset was removed, or `None` if no node stores any of them. Returns the first error.
pub(super) fn remove_parts(on: &OnNodes, names: &[String]) -> Result<Option<usize>> {
    let (mut removed, mut failed) = (None, None);
    for name in names {
        match on.nodes.remove(name) {
            Ok(nodes) => removed = removed.max(Some(nodes)),
            Err(NodesError::NotFound { .. }) => {}
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    failed.map_or(Ok(removed), |error| Err(error.into()))
}

/// Writes bytes to each node as the dataset `name`. Returns the id of the dataset.
pub(super) fn put_copies(
    on: &OnNodes,
    job: &Execution,
    name: &str,
    bytes: &[u8],
    description: Value,
) -> Result<SpreadId> {
    let options = LoadOptions {
        copies: on.nodes.addresses().count(),
        // The dataset has one piece, so each node stores all of it.
        piece_bytes: Some(u64::MAX),
        record_bytes: Some(1),
        description: Some(description),
        ..LoadOptions::default()
    };
    on.nodes.put(job, name, (name, Some(bytes.len() as u64)), bytes, &options)?;
    dataset_on_nodes(on, name)?.and_then(|file| file.id).ok_or_else(|| missing(name))
}

/// Returns the error of a dataset that was written and is not there.
pub(super) fn missing(name: &str) -> Error {
    let what = "the dataset has no id, or is not there".to_string();
    NodesError::Incomplete { name: format!("store:{name}"), what }.into()
}

/// The kind of the bytes of a table of recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TableKind {
    /// The bytes are the description as JSON.
    VectorRecall,
}

/// The description of a table of recall that was measured on queries. The map of the dataset contains the description.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTable {
    /// The kind of the bytes.
    kind: TableKind,
    /// The version of the description: 1.
    version: u32,
    /// The id of the dataset `NAME.index`, as text. A table of another index is ignored.
    index_id: String,
    /// The number of the table. A search uses the table with the highest number.
    number: u64,
    recall: RecallTable,
}

/// A table of recall of an index.
pub(super) struct LatestTable {
    number: u64,
    /// The position of the dataset among [`table_names`].
    slot: usize,
    pub recall: RecallTable,
}

/// Returns the names of the two datasets of tables of recall. At most one of them exists, except while a table is
/// replaced.
pub(super) fn table_names(vectors: &str) -> [String; 2] {
    [0, 1].map(|slot| format!("{vectors}.index.recall.{slot}"))
}

/// Returns the table of recall that was measured last on queries. Returns `None` if the index has only the table of its
/// build. `index_id` is the id of the dataset `NAME.index` as text.
///
/// # Errors
/// Returns [`NodesError::Deadline`] if the deadline has passed.
pub(super) fn latest_table(catalog: &Catalog, vectors: &str, index_id: &str) -> Result<Option<LatestTable>> {
    let mut latest: Option<LatestTable> = None;
    for (slot, name) in table_names(vectors).iter().enumerate() {
        // Tables that were removed and tables of earlier indexes are ignored.
        for file in catalog.files_of(name)?.into_iter().filter(|file| file.fault.is_none()) {
            let Ok(stored) = serde_json::from_value(file.description.unwrap_or_default()) else { continue };
            let StoredTable { version, index_id: of_index, number, recall, .. } = stored;
            let is_later = latest.as_ref().is_none_or(|earlier| earlier.number < number);
            if version == TABLE_VERSION && of_index == index_id && is_later {
                latest = Some(LatestTable { number, slot, recall });
            }
        }
    }
    Ok(latest)
}

/// Writes a table of recall of the vectors `vectors` to all nodes, and removes the earlier table. `index_id` is the id
/// of the dataset `NAME.index` as text.
///
/// # Errors
/// Returns an error that names a node if the node does not answer. The index has its earlier table then, or the new
/// one.
pub(super) fn replace_table(
    on: &OnNodes,
    job: &Execution,
    (vectors, index_id): (&str, &str),
    recall: &RecallTable,
) -> Result<()> {
    let latest = latest_table(&on.nodes.catalog()?, vectors, index_id)?;
    let (number, earlier) = latest.map_or((1, 1), |latest| (latest.number.saturating_add(1), latest.slot));
    let names = table_names(vectors);
    // An interrupted measurement may have left a table under this name.
    remove_parts(on, std::slice::from_ref(&names[1 - earlier]))?;
    let (kind, version) = (TableKind::VectorRecall, TABLE_VERSION);
    let (index_id, recall) = (index_id.to_string(), recall.clone());
    let stored = StoredTable { kind, version, index_id, number, recall };
    let description = serde_json::to_value(stored).expect("plain data");
    put_copies(on, job, &names[1 - earlier], description.to_string().as_bytes(), description)?;
    // Searches use the new table from here on. The next measurement or removal repeats a removal that fails.
    let _ = remove_parts(on, std::slice::from_ref(&names[earlier]));
    Ok(())
}
