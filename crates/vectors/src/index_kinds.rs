//! Dispatches operations on an index of vectors by the kind of the index. An index consists of inverted lists or of
//! hash tables.
//!
//! The vectors NAME have at most one index, the dataset `NAME.index`. The kind of this dataset determines how the index
//! is searched, measured and rewritten.

use inshore_store::{DatasetBuilder, Job, Store};

use crate::{
    Approximate, ApproximateSearched, Error, LshIndex, LshSearched, Metric, RecallTable, Result, Search,
    Source, VectorFile, VectorIndex, Vectors, VectorsInfo, check_index_search,
    index::{RewrittenIndex, check_measurement, commit_table, extend_index, rewrite_index},
    lsh::{check_lsh_search, measure_lsh, rewrite_lsh},
    measure_recall,
    names::{TABLES_KIND, index_dataset, index_name},
};

/// An open index of vectors. Its files stay open, so later changes of the store do not affect it.
#[derive(Clone, Debug)]
pub enum SearchIndex {
    /// The index consists of inverted lists.
    Lists(VectorIndex),
    /// The index consists of hash tables.
    Tables(LshIndex),
}

/// Facts about a search in an index.
#[derive(Clone, Debug)]
pub enum FoundInIndex {
    /// The search probed inverted lists.
    Lists(ApproximateSearched),
    /// The search probed buckets of hash tables.
    Tables(LshSearched),
}

impl SearchIndex {
    /// Opens the index of `vectors`. Returns `None` if the vectors have no index.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the index is damaged, has another version, or was built from other vectors of
    ///   the same name.
    /// - Returns [`Error::Store`] if an I/O operation fails.
    pub fn open(store: &Store, vectors: &Vectors) -> Result<Option<SearchIndex>> {
        match index_dataset(store, &vectors.info().name)? {
            None => Ok(None),
            Some(dataset) if dataset.kind() == TABLES_KIND => {
                Ok(Some(SearchIndex::Tables(LshIndex::of(&dataset, vectors)?)))
            }
            Some(_) => Ok(VectorIndex::open(store, vectors)?.map(SearchIndex::Lists)),
        }
    }

    /// Returns the inverted lists. `what` names the operation that needs them, for the error message.
    ///
    /// # Errors
    /// Returns [`Error::BadDataset`] if the index consists of hash tables.
    pub fn into_lists(self, what: &str) -> Result<VectorIndex> {
        match self {
            SearchIndex::Lists(index) => Ok(index),
            SearchIndex::Tables(index) => {
                let name = &index.info().name;
                Err(Error::BadDataset {
                    name: index_name(name),
                    what: "kind",
                    found: "hash tables".to_string(),
                    expected: format!(
                        "inverted lists, which {what} needs: `nearest index {name}` builds them"
                    ),
                })
            }
        }
    }

    /// Returns the metric for which the index was built.
    pub fn metric(&self) -> Metric {
        match self {
            SearchIndex::Lists(index) => index.info().metric,
            SearchIndex::Tables(index) => index.info().metric,
        }
    }

    /// Returns true if `other` is the same index and no job has changed the index between both openings.
    pub(crate) fn is_same(&self, other: &SearchIndex) -> bool {
        let layers = |index: &VectorIndex| index.layers.iter().map(|layer| layer.id).collect::<Vec<_>>();
        match (self, other) {
            (SearchIndex::Lists(one), SearchIndex::Lists(other)) => {
                (one.id(), one.info(), layers(one)) == (other.id(), other.info(), layers(other))
            }
            (SearchIndex::Tables(one), SearchIndex::Tables(other)) => {
                (one.id(), one.info()) == (other.id(), other.info())
            }
            _ => false,
        }
    }

    /// Returns the memory, in bytes, that the directory of the index takes if a searcher keeps it.
    pub(crate) fn directory_bytes(&self) -> u64 {
        match self {
            SearchIndex::Lists(index) => index.directory_bytes(),
            // A searcher keeps no directory of hash tables. Each search decides if it holds the directory in memory.
            SearchIndex::Tables(_) => 0,
        }
    }

    /// Returns the number of the first row that the index does not contain.
    pub(crate) fn end(&self) -> u64 {
        match self {
            SearchIndex::Lists(index) => index.end(),
            SearchIndex::Tables(index) => index.info().vectors,
        }
    }

    /// Returns the number of rows that the vectors had when the index was built.
    pub(crate) fn rows_built(&self) -> u64 {
        match self {
            SearchIndex::Lists(index) => index.info().vectors,
            SearchIndex::Tables(index) => index.info().vectors,
        }
    }

    /// Checks the options of a search. The check does no I/O.
    ///
    /// # Errors
    /// - Returns [`Error::BadOption`] if an option is out of range, if the kind of index does not support an option, if
    ///   the selection belongs to other vectors, or if the index was built for another metric.
    /// - Returns [`Error::BadFile`] if the queries do not have the dimensions and the element type that the vectors
    ///   need.
    pub fn check<'a>(
        &self,
        vectors: &VectorsInfo,
        queries: impl Into<Source<'a>>,
        search: &Search,
        approximate: &Approximate,
    ) -> Result<()> {
        match self {
            SearchIndex::Lists(index) => check_index_search(index, vectors, queries, search, approximate),
            SearchIndex::Tables(index) => {
                check_lsh_search(index, vectors, queries.into(), search, approximate)
            }
        }
    }

    /// Measures the recall of the index on a sample of the user's queries. The new table replaces the former one.
    ///
    /// # Errors
    /// - Returns [`Error::BadOption`] if `sample` or `k` is out of range.
    /// - Returns [`Error::BadFile`] if the queries have another number of dimensions than the vectors.
    /// - Returns [`inshore_store::Error::Changed`] if another job changed the index.
    /// - Returns [`Error::BadDataset`] if the index is damaged.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory, or the job was cancelled.
    pub fn measure_recall(
        &mut self,
        store: &Store,
        job: &Job,
        vectors: &Vectors,
        queries: &VectorFile,
        (sample, k): (u64, u64),
    ) -> Result<RecallTable> {
        match self {
            SearchIndex::Lists(index) => measure_recall(store, job, vectors, index, queries, sample, k),
            SearchIndex::Tables(index) => {
                check_measurement(sample, k)?;
                let table = measure_lsh(job, vectors, index, queries, (sample, k))?;
                let place = (&*vectors.info().name, index.id());
                commit_table(store, job, place, &index.info().to_attributes())?;
                Ok(table)
            }
        }
    }

    /// Rewrites the index for all rows of `vectors`, which may be a dataset that is not published yet. Inverted lists
    /// that have grown are split.
    ///
    /// # Errors
    /// - Returns [`Error::Sort`] if a sort fails.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory, or the job was cancelled.
    pub(crate) fn rewrite(&self, store: &Store, job: &Job, vectors: &Vectors) -> Result<Rewritten> {
        match self {
            SearchIndex::Lists(index) => {
                let RewrittenIndex { builder, info, split } = rewrite_index(store, job, vectors, index)?;
                let attributes = info.to_attributes();
                Ok(Rewritten { builder, attributes, lists: Some(info.lists), split: Some(split) })
            }
            SearchIndex::Tables(index) => {
                let (builder, made) = rewrite_lsh(store, job, vectors, index)?;
                Ok(Rewritten { builder, attributes: made.to_attributes(), lists: None, split: None })
            }
        }
    }
}

/// An index that was written again and is not published yet.
pub(crate) struct Rewritten {
    pub builder: DatasetBuilder,
    /// The attributes with which the caller must commit the builder.
    pub attributes: Vec<u8>,
    /// The number of inverted lists, and the number of lists that were split. Hash tables have `None` in both fields.
    pub lists: Option<u64>,
    pub split: Option<u64>,
}

/// Adds new rows of the vectors `name` to their index, if the index consists of inverted lists. The new rows form a new
/// layer of the lists. Hash tables do not grow. Returns the number of rows that the index does not contain afterwards.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the vectors or the index are damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled. After an error, the vectors and the index are unchanged.
pub(crate) fn extend(store: &Store, job: &Job, name: &str) -> Result<u64> {
    let vectors = Vectors::open(store, name)?;
    match SearchIndex::open(store, &vectors)? {
        None => Ok(0),
        Some(SearchIndex::Lists(_)) => extend_index(store, job, name),
        Some(tables) => Ok(vectors.info().vectors - tables.end()),
    }
}
