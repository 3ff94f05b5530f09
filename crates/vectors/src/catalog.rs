//! Lists, describes and removes the vectors of a store and their indexes.

use arrow_array::temporal_conversions::timestamp_s_to_datetime;
use inshore_store::{Job, Store, format_bytes};
use serde::{Serialize, Serializer};

use crate::{
    Content, Error, Family, IndexInfo, ListSizes, LshInfo, MeasuredOn, RecallTable, Result, SearchIndex,
    SpreadIndexInfo, Vectors, VectorsInfo,
    columns::{column_names, id_column},
    dataset::KIND,
    index::{layer_names, list_sizes},
    names::{LISTS_KIND, TABLES_KIND, check_kind, index_dataset, index_name},
    text::counted,
};

/// The properties of a dataset of vectors and of its index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// The properties of the vectors. As JSON, the field `vectors` is the number of vectors that were not removed.
    #[serde(flatten, serialize_with = "with_live_vectors")]
    pub vectors: VectorsInfo,
    /// The input from which the vectors were imported. `None` from [`list`] and [`describe`], which read no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<ImportedFrom>,
    /// The names of the columns, if the vectors were imported from a table. Empty from [`list`] and [`describe`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// The name of the column of ids, if there is one. `None` from [`list`] and [`describe`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_column: Option<String>,
    /// The properties of the index. The value is `None` if the vectors have no index, or if the index cannot be used.
    pub index: Option<IndexInfo>,
    /// The properties of the hash tables. `None` if the vectors have no hash tables that can be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lsh: Option<LshInfo>,
    /// The number of layers of the index: vectors that were added since its lists were written, by the same lists.
    pub layers: u64,
    /// The sizes of the lists of the index, with the vectors in layers. `None` without an index of lists, and from
    /// [`list`] and [`describe`], which read no directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list_sizes: Option<ListSizes>,
    /// The number of rows in the tail of the index. The tail consists of the rows that no list and no layer holds. An
    /// approximate search compares each of them with its queries.
    pub unlisted: u64,
    /// The reason why the index cannot be used. Either the index is damaged or has an unknown version, or its vectors
    /// were replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_error: Option<String>,
}

/// The input from which a dataset of vectors was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportedFrom {
    /// A file of vectors.
    Vectors,
    /// A table, whose other columns the dataset has.
    Table,
    /// Images, from which the vectors were computed.
    Images,
    /// Documents, from which the vectors were computed.
    Documents,
}

impl std::fmt::Display for ImportedFrom {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            ImportedFrom::Vectors => "a file of vectors",
            ImportedFrom::Table => "a table",
            ImportedFrom::Images => "images",
            ImportedFrom::Documents => "documents",
        })
    }
}

/// Serialises `info` with the number of vectors that were not removed, since `info` counts their rows, too.
fn with_live_vectors<S: Serializer>(info: &VectorsInfo, to: S) -> std::result::Result<S::Ok, S::Error> {
    VectorsInfo { vectors: info.live(), ..info.clone() }.serialize(to)
}

/// Describes the vectors `name` without reading their elements.
///
/// # Errors
/// - Returns the errors of [`Vectors::open`].
/// - Returns [`Error::Store`] if an I/O operation fails.
pub fn describe(store: &Store, name: &str) -> Result<Description> {
    Ok(described(store, &Vectors::open(store, name)?)?.0)
}

/// Returns the description of vectors, and their index if it can be used.
fn described(store: &Store, vectors: &Vectors) -> Result<(Description, Option<SearchIndex>)> {
    let (index, index_error) = match SearchIndex::open(store, vectors) {
        Ok(index) => (index, None),
        Err(error @ Error::BadDataset { .. }) => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let unlisted = index.as_ref().map_or(0, |index| vectors.info().vectors - index.end());
    let (lists, lsh, layers) = match &index {
        Some(SearchIndex::Lists(index)) => (Some(index.info().clone()), None, index.layers.len() as u64),
        Some(SearchIndex::Tables(index)) => (None, Some(index.info().clone()), 0),
        None => (None, None, 0),
    };
    let description = Description {
        vectors: vectors.info().clone(),
        imported_from: None,
        columns: Vec::new(),
        id_column: None,
        index: lists,
        lsh,
        layers,
        list_sizes: None,
        unlisted,
        index_error,
    };
    Ok((description, index))
}

/// Describes the vectors `name` as [`describe`] does. Also reads the names of the columns, and the directory of the
/// index for the sizes of its lists.
///
/// # Errors
/// - Returns the errors of [`describe`].
/// - Returns [`Error::BadDataset`] if a layer of the index, or the description of images or documents, is damaged.
/// - Returns [`Error::Table`] if the table with the columns is damaged.
/// - Returns [`Error::Store`] if stored bytes are damaged, or if the budget has too little free memory.
pub fn describe_lists(store: &Store, job: &Job, name: &str) -> Result<Description> {
    let vectors = Vectors::open(store, name)?;
    let (described, index) = described(store, &vectors)?;
    let list_sizes = match index {
        Some(SearchIndex::Lists(index)) => Some(list_sizes(job, &index)?),
        _ => None,
    };
    let imported_from = match vectors.content(job)? {
        Some(Content::Images) => ImportedFrom::Images,
        Some(Content::Documents(_)) => ImportedFrom::Documents,
        None if vectors.columns.is_some() => ImportedFrom::Table,
        None => ImportedFrom::Vectors,
    };
    let id_column = id_column(job, &vectors)?;
    let columns = if vectors.columns.is_some() { column_names(job, &vectors)? } else { Vec::new() };
    Ok(Description { imported_from: Some(imported_from), columns, id_column, list_sizes, ..described })
}

/// Describes all datasets of vectors in a store, in the order of their names.
///
/// # Errors
/// Returns the errors of [`describe`].
pub fn list(store: &Store) -> Result<Vec<Description>> {
    let mut all = Vec::new();
    for summary in store.list()?.into_iter().filter(|summary| summary.kind == KIND) {
        match describe(store, &summary.name) {
            // Another process removed the vectors after the list was read.
            Err(Error::Store(inshore_store::Error::NotFound { .. })) => {}
            described => all.push(described?),
        }
    }
    Ok(all)
}

/// Removes vectors and their index. A dataset of another kind is refused, but damaged vectors are removed. Searches
/// that have the vectors open continue to read them.
///
/// # Errors
/// - Returns [`inshore_store::Error::NotFound`] if the store has no dataset with this name.
/// - Returns [`Error::BadDataset`] if the dataset has another kind.
/// - Returns [`Error::Store`] if an I/O operation fails.
pub fn remove(store: &Store, name: &str) -> Result<()> {
    check_kind(&store.dataset(name)?, &[KIND])?;
    // The index is removed first, since vectors can be used without an index but not the reverse.
    match remove_index(store, name) {
        Ok(()) | Err(Error::NoIndexToRemove { .. } | Error::BadDataset { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(store.remove(name)?)
}

/// Removes the index of vectors, even if the index is damaged or the vectors no longer exist.
///
/// # Errors
/// - Returns [`Error::NoIndexToRemove`] if the vectors have no index.
/// - Returns [`inshore_store::Error::NotFound`] if there are neither vectors nor an index.
/// - Returns [`Error::BadDataset`] if the dataset with the name of the index is of another kind.
/// - Returns [`Error::Store`] if an I/O operation fails.
pub fn remove_index(store: &Store, name: &str) -> Result<()> {
    let removed = match index_dataset(store, name)? {
        Some(index) => {
            check_kind(&index, &[LISTS_KIND, TABLES_KIND])?;
            Ok(store.remove(index.name())?)
        }
        None => {
            check_kind(&store.dataset(name)?, &[KIND])?;
            Err(Error::NoIndexToRemove { name: name.to_string() })
        }
    };
    // Layers are useless without an index, so they are removed, too.
    for layer in layer_names(store, name)? {
        match store.remove(&layer) {
            Ok(()) | Err(inshore_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    removed
}

impl std::fmt::Display for Description {
    /// Writes the properties as text lines.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let VectorsInfo { name, dimensions, element, bytes, removed, .. } = &self.vectors;
        writeln!(out, "{name}")?;
        writeln!(out, "  vectors          {}", self.vectors.live())?;
        if *removed > 0 {
            writeln!(out, "  removed          {removed}, whose space `nearest compact {name}` frees")?;
        }
        writeln!(out, "  dimensions       {dimensions}")?;
        writeln!(out, "  element type     {element}")?;
        writeln!(out, "  on flash         {}", format_bytes(*bytes))?;
        if let Some(imported_from) = self.imported_from {
            writeln!(out, "  imported from    {imported_from}")?;
        }
        if !self.columns.is_empty() {
            let ids = self.id_column.as_ref().map_or(String::new(), |id| format!("; {id} has the ids"));
            writeln!(out, "  columns          {}{ids}", self.columns.join(", "))?;
        }
        if let Some(tables) = &self.lsh {
            write_tables(tables, out)?;
            return match self.unlisted {
                0 => Ok(()),
                rows => write!(out, "\n    later          {rows} rows in no table, candidates of each query"),
            };
        }
        match (&self.index, &self.index_error) {
            (Some(index), _) => {
                self.write_index(index, out)?;
                match (self.layers, self.unlisted) {
                    (0, 0) => Ok(()),
                    (layers, rows) => {
                        write!(out, "\n    layers         {layers}, and {rows} rows in no list")
                    }
                }
            }
            (None, Some(error)) => write!(out, "  index            not usable: {error}"),
            (None, None) => write!(out, "  index            none"),
        }
    }
}

impl Description {
    fn write_index(&self, index: &IndexInfo, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IndexInfo { metric, lists, groups, list_vectors_max, bytes, recall, .. } = index;
        writeln!(out, "  index            {}", index_name(&index.name))?;
        writeln!(out, "    metric         {}", metric.name())?;
        writeln!(
            out,
            "    lists          {lists} in {}, {} in the largest",
            counted(*groups, "group"),
            counted(*list_vectors_max, "vector")
        )?;
        if let Some(sizes) = &self.list_sizes {
            self.write_sizes(sizes, out)?;
        }
        writeln!(out, "    on flash       {}", format_bytes(*bytes))?;
        write_measured(recall, out)?;
        write_points("lists probed", recall, out)?;
        if let Some(copies) = &index.copies {
            writeln!(
                out,
                "\n    with copies    {} vectors in the lists, {} in the largest",
                copies.vectors, copies.list_vectors_max
            )?;
            write_points("lists probed", &copies.recall, out)?;
        }
        if let Some(codes) = &index.codes {
            let size = format_bytes(codes.bytes);
            let bits = counted(codes.bits.into(), "bit");
            writeln!(out, "\n    codes          {bits} for each dimension, {size}")?;
            write_points("lists probed", &codes.recall, out)?;
        }
        Ok(())
    }

    fn write_sizes(&self, sizes: &ListSizes, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ListSizes { planned, largest, oversized } = sizes;
        write!(
            out,
            "    list sizes     {planned} vectors planned, {largest} in the largest with its layers"
        )?;
        if *oversized > 0 {
            write!(out, ", {oversized} lists with more than twice the plan")?;
            if self.layers > 0 {
                write!(out, ", which `nearest compact {}` splits", self.vectors.name)?;
            }
        }
        writeln!(out)
    }
}

impl std::fmt::Display for SpreadIndexInfo {
    /// Writes the properties as the text lines of an index, without the line of its name.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SpreadIndexInfo { metric, lists, groups, sample, recall, .. } = self;
        writeln!(out, "    metric         {}", metric.name())?;
        writeln!(
            out,
            "    lists          {lists} in {}, trained on {sample} vectors",
            counted(*groups, "group")
        )?;
        write_measured(recall, out)?;
        write_points("lists probed", recall, out)
    }
}

fn write_tables(tables: &LshInfo, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let LshInfo { metric, family, tables: count, bits, buckets, seed, bytes, recall, .. } = tables;
    writeln!(out, "  index            {}, hash tables (LSH)", index_name(&tables.name))?;
    writeln!(out, "    metric         {}", metric.name())?;
    let width = match family {
        Family::PStable => format!(", cells of {:.6}", tables.width),
        Family::BitSampling | Family::Hyperplanes => String::new(),
    };
    writeln!(out, "    functions      {bits} for each table: {}{width}; seed {seed}", family.name())?;
    writeln!(
        out,
        "    tables         {count} of {buckets} buckets, {} vectors in the largest",
        tables.bucket_vectors_max
    )?;
    writeln!(out, "    on flash       {}", format_bytes(*bytes))?;
    write_measured(recall, out)?;
    write_points("buckets probed", recall, out)
}

/// Writes the time of the measurement of recall, and the queries on which recall was measured.
fn write_measured(recall: &RecallTable, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let date = timestamp_s_to_datetime(recall.measured_seconds as i64)
        .map_or("unknown".to_string(), |time| time.date().to_string());
    let on = match recall.measured_on {
        MeasuredOn::HeldOutVectors => "vectors of the dataset",
        MeasuredOn::Queries => "queries",
    };
    writeln!(out, "    measured       {date}, on {} {on}", recall.queries)
}

fn write_points(label: &str, recall: &RecallTable, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    write!(out, "    {label:<14} recall at {}", recall.k)?;
    recall.points.iter().try_for_each(|point| write!(out, "\n    {:<14} {:.4}", point.probes, point.recall))
}
