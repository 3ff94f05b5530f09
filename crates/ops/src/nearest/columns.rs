//! The columns of vectors on nodes that were imported from a table: predicates over them, and their values in answers.
//!
//! ```text
//!   NAME.columns.parquet   shard 0 │ shard 1 │ ...   on the same nodes as the shards of NAME
//!
//!   predicate ─► nodes: SQL over their shards ─► numbers of rows ─► bitmap ─► each search request
//!   answer    ─► numbers of its vectors ─► nodes: SQL ─► values of the selected columns
//! ```
//!
//! The dataset `NAME.columns.parquet` is a spread table of Parquet, which any query can read. The row groups of each
//! shard of the vectors are one shard of the table. Nodes evaluate a predicate where the columns are, in the processes
//! that run fragments of queries. The client collects the selected rows, since the decisions of a search depend on
//! their number on all nodes: whether an index is used, and how many lists are probed.

#[cfg(feature = "sql")]
use inshore_nodes::Error as NodesError;
use inshore_vectors::VectorLayout;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::VectorsOnNodes;
#[cfg(feature = "sql")]
use super::parts::{dataset_in, id_of};
#[cfg(feature = "sql")]
use crate::error::Result;

/// The version of the description of columns.
pub(super) const COLUMNS_VERSION: u32 = 1;

/// The kind of the bytes of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ColumnsKind {
    /// The bytes are a table of Parquet.
    VectorColumns,
}

/// The reference to the columns in the description of vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnsOnNodes {
    /// The id of the dataset of columns, as text. Columns of another import are refused.
    pub dataset_id: String,
    /// The column whose values are the ids in answers. With `None`, the ids are the numbers of the vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_column: Option<String>,
}

/// Returns the description of vectors whose columns are `columns`.
pub(super) fn description_of(layout: VectorLayout, columns: &ColumnsOnNodes) -> Value {
    let mut description = serde_json::to_value(layout).expect("plain data");
    description["columns"] = serde_json::to_value(columns).expect("plain data");
    description
}

/// Returns the layout and the columns that a description of vectors states.
pub(super) fn parts_of(description: &Value) -> serde_json::Result<(VectorLayout, Option<ColumnsOnNodes>)> {
    let mut layout = description.clone();
    let columns = layout.as_object_mut().and_then(|fields| fields.remove("columns"));
    Ok((serde_json::from_value(layout)?, columns.map(serde_json::from_value).transpose()?))
}

/// Returns the name of the dataset of columns of the vectors `vectors`.
pub(super) fn columns_name(vectors: &str) -> String {
    format!("{vectors}.columns.parquet")
}

impl VectorsOnNodes {
    /// Returns true if the answer of a search contains values of columns: those of `selected`, or ids.
    pub fn answers_have_columns(&self, selected: &[String]) -> bool {
        !selected.is_empty() || self.id_column().is_some()
    }

    /// Returns the column of ids. Returns `None` if the ids are the numbers of the vectors.
    pub fn id_column(&self) -> Option<&str> {
        self.columns.as_ref()?.id_column.as_deref()
    }
}

#[cfg(feature = "sql")]
impl VectorsOnNodes {
    /// Checks that the columns of the vectors are on the nodes. Returns the name of the dataset of columns.
    ///
    /// # Errors
    /// - Returns [`NodesError::Unfit`] if the vectors have no columns, or if their columns were removed or replaced.
    /// - Returns an error that names a node if the node does not answer.
    pub fn columns_table(&self) -> Result<String> {
        let unfit = |what: String| NodesError::Unfit { name: self.file.title.clone(), what };
        let Some(columns) = &self.columns else {
            let what = "columns: found none, expected vectors that were imported from Parquet or Arrow";
            return Err(unfit(what.to_string()).into());
        };
        let name = columns_name(&self.info.name);
        let found = dataset_in(&self.on.nodes.catalog()?, &name)?;
        match found.is_some_and(|found| id_of(&found) == columns.dataset_id) {
            true => Ok(name),
            false => {
                let what = format!(
                    "its columns, store:{name}, are missing or were replaced: import the table again"
                );
                Err(unfit(what).into())
            }
        }
    }
}
