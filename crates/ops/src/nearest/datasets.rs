//! Lists, describes and removes the vectors of nodes and their indexes.

use std::fmt::{self, Display, Formatter};

use inshore_kernel::SPREAD;
use inshore_nodes::{Catalog, DistributedFile, Error as NodesError};
use inshore_store::format_bytes;
use inshore_vectors::{
    Error as VectorError, LayoutKind, SpreadIndexInfo, SpreadIndexKind, VectorsInfo, index_name,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    LISTS_KIND, VectorsOnNodes,
    columns::{ColumnsKind, columns_name},
    lists::IndexFiles,
    parts::{TableKind, index_names, index_parts, remove_parts, table_names},
};
use crate::{
    error::{Error, Result},
    target::OnNodes,
};

/// The properties of vectors on nodes and of their index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpreadDescription {
    /// The properties of the vectors.
    #[serde(flatten)]
    pub vectors: VectorsInfo,
    /// The number of shards.
    pub pieces: usize,
    /// The number of nodes that hold each shard.
    pub copies: usize,
    /// The nodes that hold shards.
    pub stored_on: Vec<String>,
    /// The properties of the index. The value is `None` if the vectors have no index, or if the index cannot be used.
    pub index: Option<SpreadIndexInfo>,
    /// The reason why the index cannot be used. For example, its vectors were replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_error: Option<String>,
}

impl SpreadDescription {
    /// Describes vectors. An index that cannot be used is described by its error.
    fn of(catalog: &Catalog, vectors: &VectorsOnNodes) -> Result<SpreadDescription> {
        let (index, index_error) = match IndexFiles::find(catalog, vectors) {
            Ok(files) => (files.map(|files| files.info), None),
            Err(error @ Error::Nodes(NodesError::Deadline { .. })) => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        let VectorsOnNodes { on, file, info, .. } = vectors;
        Ok(SpreadDescription {
            vectors: info.clone(),
            pieces: file.pieces.len(),
            copies: file.copies(),
            stored_on: file.nodes(&on.nodes).into_iter().map(str::to_string).collect(),
            index,
            index_error,
        })
    }
}

impl Display for SpreadDescription {
    /// Writes the properties as text lines.
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let VectorsInfo { name, vectors, dimensions, element, bytes, .. } = &self.vectors;
        writeln!(out, "{name}")?;
        writeln!(out, "  vectors          {vectors}")?;
        writeln!(out, "  dimensions       {dimensions}")?;
        writeln!(out, "  element type     {element}")?;
        writeln!(out, "  on flash         {}, each copy", format_bytes(*bytes))?;
        writeln!(out, "  shards           {}, each on {} of the nodes", self.pieces, self.copies)?;
        writeln!(out, "  nodes            {}", self.stored_on.join(" "))?;
        match (&self.index, &self.index_error) {
            (Some(index), _) => write!(out, "  index            {}\n{index}", index_name(name)),
            (None, Some(error)) => write!(out, "  index            not usable: {error}"),
            (None, None) => write!(out, "  index            none"),
        }
    }
}

/// Describes the vectors `name` without reading their elements.
///
/// # Errors
/// - Returns the errors of [`VectorsOnNodes::find`].
/// - Returns [`NodesError::Deadline`] if the deadline has passed.
pub(crate) fn describe_on_nodes(on: &OnNodes, name: &str) -> Result<SpreadDescription> {
    let vectors = VectorsOnNodes::find(on, name)?;
    SpreadDescription::of(&on.nodes.catalog()?, &vectors)
}

/// Describes all vectors of the nodes, in the order of their names. Also returns the faults of vectors that cannot be
/// used, and the errors of nodes that did not answer.
///
/// # Errors
/// Returns the errors of [`inshore_nodes::Nodes::catalog`].
pub(crate) fn list_on_nodes(on: &OnNodes) -> Result<(Vec<SpreadDescription>, Vec<String>)> {
    let catalog = on.nodes.catalog()?;
    let (mut described, mut notes) = (Vec::new(), Vec::new());
    for file in catalog.wholes()?.into_iter().filter(|file| has_kind(file, &LayoutKind::Vectors)) {
        let fault = file.fault.as_ref().map(|fault| format!("{}: {fault}", file.title));
        match fault.map_or_else(|| VectorsOnNodes::of_file(on, file).map_err(|error| error.to_string()), Err)
        {
            Ok(vectors) => described.push(SpreadDescription::of(&catalog, &vectors)?),
            Err(note) => notes.push(note),
        }
    }
    notes.extend(catalog.lost().iter().map(|(_, why)| why.clone()));
    Ok((described, notes))
}

/// Removes vectors and their index from all nodes. A dataset of another kind is refused, but damaged vectors are
/// removed. Returns the number of nodes from which the vectors were removed.
///
/// The index and the columns are removed first, and the vectors last, so that an interrupted removal can be repeated.
///
/// # Errors
/// - Returns [`NodesError::NotFound`] if no node stores the vectors.
/// - Returns [`NodesError::Unfit`] if the dataset or a dataset of the index has another kind.
/// - Returns [`NodesError::Incomplete`] if a node did not answer. The error names the node. A repeated removal removes
///   the parts of this node once it answers again.
pub(crate) fn remove_on_nodes(on: &OnNodes, name: &str) -> Result<usize> {
    let catalog = on.nodes.catalog()?;
    if catalog.files_of(name)?.is_empty() {
        // The error of the look-up also names a node that did not answer.
        catalog.named(name)?;
    }
    check_kind(&catalog, name, &LayoutKind::Vectors)?;
    check_index_kinds(&catalog, name)?;
    check_kind(&catalog, &columns_name(name), &ColumnsKind::VectorColumns)?;
    let others = index_parts(name).into_iter().chain([columns_name(name)]).collect::<Vec<_>>();
    let others = remove_parts(on, &others);
    let vectors = remove_parts(on, &[name.to_string()])?;
    others?;
    vectors.ok_or_else(|| NodesError::NotFound { name: format!("store:{name}") }.into())
}

/// Removes the index of vectors from all nodes, even if the index cannot be used or the vectors no longer exist.
/// Returns the number of nodes from which it was removed.
///
/// # Errors
/// - Returns [`VectorError::NoIndexToRemove`] if the vectors have no index.
/// - Returns [`NodesError::NotFound`] if there are neither vectors nor an index.
/// - Returns [`NodesError::Unfit`] if a dataset of the index has another kind.
/// - Returns [`NodesError::Incomplete`] if a node did not answer, as [`remove_on_nodes`] does.
pub(crate) fn remove_index_on_nodes(on: &OnNodes, name: &str) -> Result<usize> {
    let catalog = on.nodes.catalog()?;
    check_index_kinds(&catalog, name)?;
    if let Some(nodes) = remove_parts(on, &index_parts(name))? {
        return Ok(nodes);
    }
    catalog.named(name)?;
    match catalog.lost().first() {
        None => Err(VectorError::NoIndexToRemove { name: name.to_string() }.into()),
        Some((_, why)) => {
            let what = format!("no other node has parts of it, but {why}");
            Err(NodesError::Incomplete { name: format!("store:{}", index_name(name)), what }.into())
        }
    }
}

/// Refuses datasets that have the names of the datasets of an index, but are of another kind.
fn check_index_kinds(catalog: &Catalog, name: &str) -> Result<()> {
    let [index, lists, centroids] = index_names(name);
    check_kind(catalog, &index, &SpreadIndexKind::VectorIndex)?;
    check_kind(catalog, &lists, &LISTS_KIND)?;
    table_names(name).iter().try_for_each(|name| check_kind(catalog, name, &TableKind::VectorRecall))?;
    check_kind(catalog, &centroids, &SpreadIndexKind::VectorIndex)
}

/// Checks that the dataset `name` has the kind `kind`, if it exists. A dataset whose map cannot be read may have any
/// kind.
fn check_kind(catalog: &Catalog, name: &str, kind: &impl Serialize) -> Result<()> {
    let is_other = |file: &&DistributedFile| {
        let is_unread = file.fault.is_some() && file.description.is_none() && file.kind == SPREAD;
        !is_unread && !has_kind(file, kind)
    };
    match catalog.files_of(name)?.iter().find(is_other) {
        None => Ok(()),
        Some(file) => {
            let kind = serde_json::to_value(kind).expect("plain data");
            let what = format!("kind: found other bytes, expected {kind} of `nearest import --node`");
            Err(NodesError::Unfit { name: file.title.clone(), what }.into())
        }
    }
}

/// Returns true if the description of a spread file states the kind `kind`.
fn has_kind(file: &DistributedFile, kind: &impl Serialize) -> bool {
    let described = file.description.as_ref().and_then(|description| description.get("kind"));
    described.is_some_and(|found: &Value| serde_json::to_value(kind).is_ok_and(|kind| *found == kind))
}
