//! The index of vectors, of either kind: inverted lists, or hash tables.
//!
//! Vectors have one index, the dataset `NAME.index`, whose kind decides how the index is searched, measured and written
//! again. This module makes that decision for all operations.

use inshore_store::{DatasetBuilder, Job, Store};

use crate::{
    Approximate, ApproximateSearched, Error, LshIndex, LshSearched, Metric, RecallTable, Result, Search,
    Source, VectorFile, VectorIndex, Vectors, VectorsInfo, check_index_search,
    index::{check_measurement, commit_table, extend_index, index_name, rewrite_index},
    lsh::{LSH_KIND, check_lsh_search, measure_lsh, rewrite_lsh},
    measure_recall,
};

/// An index whose files stay open: later changes of the store do not touch it.
#[derive(Clone, Debug)]
pub enum SearchIndex {
    /// Inverted lists.
    Lists(VectorIndex),
    /// Hash tables.
    Tables(LshIndex),
}

/// Facts about a search in an index.
#[derive(Clone, Debug)]
pub enum FoundInIndex {
    /// Inverted lists were probed.
    Lists(ApproximateSearched),
    /// Buckets of hash tables were probed.
    Tables(LshSearched),
}

impl SearchIndex {
    /// Opens the index of `vectors`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::BadDataset`] if the index is damaged, of another version, or was built of other vectors of that name;
    /// I/O.
    pub fn open(store: &Store, vectors: &Vectors) -> Result<Option<SearchIndex>> {
        match store.dataset(&index_name(&vectors.info().name)) {
            Err(inshore_store::Error::NotFound { .. }) => Ok(None),
            Ok(dataset) if dataset.kind() == LSH_KIND => {
                Ok(Some(SearchIndex::Tables(LshIndex::of(&dataset, vectors)?)))
            }
            Ok(_) => Ok(VectorIndex::open(store, vectors)?.map(SearchIndex::Lists)),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the inverted lists.
    ///
    /// # Errors
    /// [`Error::BadDataset`] for hash tables, which `what` does not use.
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

    /// Returns true if `other` is the same index, which no job has changed.
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
            // Each search in hash tables decides how much of the directory it keeps.
            SearchIndex::Tables(_) => 0,
        }
    }

    /// Returns the number of the first row that neither lists nor tables have.
    pub(crate) fn end(&self) -> u64 {
        match self {
            SearchIndex::Lists(index) => index.end(),
            SearchIndex::Tables(index) => index.info().vectors,
        }
    }

    /// Returns the number of rows when the index was built.
    pub(crate) fn rows_built(&self) -> u64 {
        match self {
            SearchIndex::Lists(index) => index.info().vectors,
            SearchIndex::Tables(index) => index.info().vectors,
        }
    }

    /// Checks the options of a search, without I/O.
    ///
    /// # Errors
    /// Bad options; an index for another metric; queries of other dimensions.
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
    /// Queries of other dimensions; I/O and damage; too little memory; cancellation; an index that another job changed.
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

    /// Writes the index again, for all rows of `vectors`, which may be vectors that are not published yet. The result
    /// is the dataset with the attributes with which it is to be committed, and the number of inverted lists.
    ///
    /// # Errors
    /// I/O and damage; too little memory; cancellation.
    pub(crate) fn rewrite(
        &self,
        store: &Store,
        job: &Job,
        vectors: &Vectors,
    ) -> Result<(DatasetBuilder, Vec<u8>, Option<u64>)> {
        match self {
            SearchIndex::Lists(index) => {
                let (builder, made) = rewrite_index(store, job, vectors, index)?;
                Ok((builder, made.to_attributes(), Some(made.lists)))
            }
            SearchIndex::Tables(index) => {
                let (builder, made) = rewrite_lsh(store, job, vectors, index)?;
                Ok((builder, made.to_attributes(), None))
            }
        }
    }
}

/// Puts rows that were added to the vectors `name` into their index, if its kind allows that: lists grow by layers, and
/// hash tables do not grow. Returns the number of rows that the index does not have afterwards.
///
/// # Errors
/// I/O; too little memory; cancellation. The vectors and the index stay as they were.
pub(crate) fn extend(store: &Store, job: &Job, name: &str) -> Result<u64> {
    let vectors = Vectors::open(store, name)?;
    match SearchIndex::open(store, &vectors)? {
        None => Ok(0),
        Some(SearchIndex::Lists(_)) => extend_index(store, job, name),
        Some(tables) => Ok(vectors.info().vectors - tables.end()),
    }
}
