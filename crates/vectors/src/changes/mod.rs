//! Changes of a dataset of vectors: vectors are added, replaced and removed, and rows of removed vectors are freed.
//!
//! ```text
//!              rows of `vectors`                      `removed`
//!   import     a b c d                                                     ids 0 1 2 3
//!   add        a b c d│e f                                                 ids 0 1 2 3 4 5
//!   remove     a b c d e f                            1                    b has no id any more
//!   upsert     a b c d e f│C                          1 2                  C has the id of c, 2
//!   compact    a d e f C                                                   ids 0 3 4 5 2: `id-runs`
//! ```
//!
//! A change appends to the files of the dataset and is published by one record of the store's log, with the new counts in
//! the attributes. So a change is there as a whole or not at all, an acknowledged one survives a kill and a power loss, and
//! a search that has the dataset open goes on with the rows that it saw. The cost is that of the bytes, and of one more
//! copy of the last extent (2 MiB) of each file that grows: many vectors in one call are cheaper than many calls.
//!
//! If another job changes the dataset first, the change is made again on top of the other one. A change that meets
//! [`ATTEMPTS`] others ends with [`inshore_store::Error::Changed`].

mod add;
mod compact;
mod id_list;
mod remove;

use inshore_store::{DatasetBuilder, FileWriter, Job, Store};
use serde::Serialize;
use zerocopy::{IntoBytes, little_endian::U64};

pub use self::{
    add::{add_vectors, upsert_vectors},
    compact::{Compacted, compact_vectors},
    id_list::IdList,
    remove::remove_vectors,
};
use crate::{
    Error, Result, RowSet, Vectors, VectorsInfo,
    dataset::{ID_RUNS, REMOVED},
    id_run::{ID_MAX, IdRun},
    ids::Ids,
    index_kinds::extend,
    live::{live_bytes, live_rows},
};

/// How often a change is made again because other jobs changed the dataset.
const ATTEMPTS: usize = 8;
/// The check blocks of the files of changes.
const CHECK_BYTES: usize = 4 << 10;
const BUFFER_BYTES: usize = 64 << 10;
/// The memory to append to a file of changes.
const APPEND_BYTES: u64 = 2 * BUFFER_BYTES as u64 + 2 * CHECK_BYTES as u64 + (64 << 10);

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// The dataset after the change.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of vectors that were added.
    pub added: u64,
    /// The number of vectors that were replaced.
    pub replaced: u64,
    /// The number of vectors that were removed.
    pub taken: u64,
    /// The number of ids to remove whose vectors had been removed before.
    pub absent: u64,
    /// The id of the first vector that was added by a call that chose the ids.
    pub first_id: Option<u64>,
    /// The number of elements that were rounded, from f64 to f32.
    pub rounded: u64,
    /// The number of rows that no list or hash table of the index has. An approximate search compares them one by one.
    pub unlisted: u64,
    /// The reason why added vectors could not be put into lists of the index. They are in the dataset nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_error: Option<String>,
}

impl Changed {
    fn of(info: VectorsInfo) -> Changed {
        let [added, replaced, taken, absent] = [0; 4];
        let (first_id, rounded, unlisted, index_error) = (None, 0, 0, None);
        Changed { info, added, replaced, taken, absent, first_id, rounded, unlisted, index_error }
    }

    /// Puts added vectors into lists of the index. The change is there, whatever comes of it.
    fn listed(self, store: &Store, job: &Job) -> Changed {
        match extend(store, job, &self.info.name) {
            Ok(unlisted) => Changed { unlisted, ..self },
            Err(error) => Changed { index_error: Some(error.to_string()), ..self },
        }
    }
}

/// A change that has begun: the dataset as it is, and the builder that extends it.
struct Change<'a> {
    job: &'a Job,
    vectors: Vectors,
    builder: DatasetBuilder,
}

impl<'a> Change<'a> {
    fn begin(store: &Store, job: &'a Job, name: &str) -> Result<Change<'a>> {
        // A dataset of another kind is refused as that, sealed or not.
        Vectors::open(store, name)?;
        let builder = store.append_to_dataset(job, name).map_err(|error| match error {
            inshore_store::Error::Sealed { .. } => Error::BadDataset {
                name: name.to_string(),
                what: "state",
                found: "sealed".to_string(),
                expected: format!(
                    "open for changes, as `inshore nearest import` makes it, and `inshore nearest compact {name}`"
                ),
            },
            error => error.into(),
        })?;
        let vectors = Vectors::of(builder.base().expect("a dataset that grows"))?;
        Ok(Change { job, vectors, builder })
    }

    fn info(&self) -> &VectorsInfo {
        self.vectors.info()
    }

    /// Begins to append to one of the small files.
    fn append(&mut self, name: &str) -> Result<FileWriter> {
        Ok(self.builder.append(name, CHECK_BYTES, BUFFER_BYTES, 2)?)
    }

    /// Marks rows as removed.
    fn append_removed(&mut self, rows: &[u64]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut writer = self.append(REMOVED)?;
        for &row in rows {
            writer.write(U64::new(row).as_bytes())?;
        }
        Ok(self.builder.add(writer)?)
    }

    fn append_runs(&mut self, runs: &[IdRun]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut writer = self.append(ID_RUNS)?;
        writer.write(runs.as_bytes())?;
        Ok(self.builder.add(writer)?)
    }

    /// Publishes the change with the new counts, and returns them.
    fn commit(self, mut info: VectorsInfo) -> Result<VectorsInfo> {
        info.bytes = self.builder.bytes();
        self.builder.commit(&info.to_attributes())?;
        Ok(info)
    }
}

/// Makes a change, and makes it again if another job changed the dataset meanwhile.
fn retried<R>(job: &Job, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Store(inshore_store::Error::Changed { .. })) => job.check_cancelled()?,
            done => return done,
        }
    }
    attempt()
}

/// The rows of vectors by their ids.
struct RowsOfIds {
    ids: Ids,
    live: Option<RowSet>,
    rows: u64,
}

impl RowsOfIds {
    /// Returns the memory of the rows.
    fn bytes(info: &VectorsInfo) -> u64 {
        Ids::bytes(info) + live_bytes(info)
    }

    fn read(job: &Job, vectors: &Vectors) -> Result<RowsOfIds> {
        let (ids, live) = (Ids::read(job, vectors)?, live_rows(job, vectors)?);
        Ok(RowsOfIds { ids, live, rows: vectors.info().vectors })
    }

    /// Returns the live row of each id; `wanted` ascends.
    fn find(&self, wanted: &[u64]) -> Vec<Option<u64>> {
        self.ids.rows(self.rows, wanted, |row| self.live.as_ref().is_none_or(|live| live.contains(row)))
    }
}

/// Checks ids that ascend.
///
/// # Errors
/// [`Error::BadOption`] for an id above the largest one, and for one that stands there twice.
fn check_ids(ids: &[u64]) -> Result<()> {
    let bad = |found: String, expected: String| Err(Error::BadOption { option: "ids", found, expected });
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return bad(format!("{} twice", pair[0]), "different ids".to_string());
    }
    match ids.last() {
        None => bad("none".to_string(), "at least one".to_string()),
        Some(&last) if last > ID_MAX => bad(last.to_string(), format!("at most {ID_MAX}")),
        Some(_) => Ok(()),
    }
}
