//! Defines the names and kinds of the datasets that belong to vectors.
//!
//! The vectors NAME have at most one index, the dataset `NAME.index`, and layers of this index, whose names begin with
//! `NAME.index.`.

use inshore_store::{Dataset, DatasetBuilder, Error as StoreError, Job, Store};

use crate::{Error, Result, dataset::KIND};

/// The dataset kind of inverted lists.
pub(crate) const LISTS_KIND: &str = "vector-index";
/// The dataset kind of hash tables.
pub(crate) const TABLES_KIND: &str = "vector-lsh";
/// The ending of the name of an index.
const ENDING: &str = ".index";
/// The largest length of a name of vectors. The name of a layer of their index is at most 27 characters longer, and a
/// store has names of at most 100 characters.
const NAME_BYTES_MAX: usize = 73;

/// Returns the name of the dataset that is the index of the vectors `name`.
pub fn index_name(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// Creates the dataset of the vectors `name`, which may grow later.
///
/// # Errors
/// - Returns [`Error::BadOption`] if the name is too long, or if it is a name for an index.
/// - Returns [`Error::Store`] if the store already has the name.
pub(crate) fn create_vectors(store: &Store, job: &Job, name: &str) -> Result<DatasetBuilder> {
    if name.len() > NAME_BYTES_MAX || name.ends_with(ENDING) {
        let expected = format!("at most {NAME_BYTES_MAX} characters that do not end in {ENDING}");
        return Err(Error::BadOption { option: "name", found: name.to_string(), expected });
    }
    let mut builder = store.create_dataset(job, name, KIND)?;
    // The dataset is not sealed, so that vectors can be added and removed.
    builder.unsealed();
    Ok(builder)
}

/// Opens the dataset with the name of the index of the vectors `name`. Returns `None` if there is none.
///
/// # Errors
/// Returns [`Error::Store`] if an I/O operation fails.
pub(crate) fn index_dataset(store: &Store, name: &str) -> Result<Option<Dataset>> {
    match store.dataset(&index_name(name)) {
        // No dataset has a name that is too long.
        Err(StoreError::NotFound { .. } | StoreError::BadName { .. }) => Ok(None),
        dataset => Ok(Some(dataset?)),
    }
}

/// Checks that a new index of the vectors `name` replaces an old index or nothing.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the dataset with the name of the index is of another kind.
/// - Returns [`Error::Store`] if an I/O operation fails.
pub(crate) fn check_index_place(store: &Store, name: &str) -> Result<()> {
    let found = index_dataset(store, name)?;
    found.map_or(Ok(()), |dataset| check_kind(&dataset, &[LISTS_KIND, TABLES_KIND]))
}

/// Checks the kind of a dataset.
///
/// # Errors
/// Returns [`Error::BadDataset`] if the dataset has none of the kinds.
pub(crate) fn check_kind(dataset: &Dataset, kinds: &[&str]) -> Result<()> {
    match kinds.contains(&dataset.kind()) {
        true => Ok(()),
        false => Err(Error::BadDataset {
            name: dataset.name().to_string(),
            what: "kind",
            found: dataset.kind().to_string(),
            expected: kinds.join(" or "),
        }),
    }
}
