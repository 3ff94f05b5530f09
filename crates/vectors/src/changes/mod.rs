//! Changes of a dataset of vectors. Vectors are added, replaced and removed, and a compaction frees the rows of removed
//! vectors.
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
//! A change appends to the files of the dataset. One record of the store's log publishes the change, and writes the new
//! counts to the attributes of the dataset. A change is therefore visible as a whole or not at all, and an acknowledged
//! change survives a kill and a power loss. A search that has the dataset open continues with the rows that the dataset
//! had before the change. A change writes the appended bytes, and copies the last extent (2 MiB) of each file that
//! grows. One call with many vectors is therefore cheaper than many calls.
//!
//! If another job changes the dataset first, the change is attempted again, based on the result of the other change. If
//! [`ATTEMPTS`] attempts fail in this way, the change fails with [`inshore_store::Error::Changed`].

mod add;
mod compact;
mod content;
mod id_list;
mod remove;
mod table;

use inshore_store::{DatasetBuilder, FileWriter, Job, Store};
use serde::Serialize;
use zerocopy::{IntoBytes, little_endian::U64};

pub use self::{
    add::{add_vectors, upsert_vectors},
    compact::{Compacted, compact_vectors},
    content::{OpenContent, add_content},
    id_list::{IdList, ValueList},
    remove::{remove_values, remove_vectors},
    table::{add_table, upsert_table},
};
use crate::{
    Error, Result, Vectors, VectorsInfo,
    dataset::{ID_RUNS, REMOVED},
    id_run::{ID_MAX, IdRun},
    ids::Ids,
    index_kinds::extend,
};

/// The largest number of attempts to make a change. Each attempt except the last one may fail because another job
/// changes the dataset at the same time.
const ATTEMPTS: usize = 8;
/// The size of the checksum blocks of the files `removed` and `id-runs`, in bytes. The next constant is the size of the
/// write buffers of these files.
const CHECK_BYTES: usize = 4 << 10;
const BUFFER_BYTES: usize = 64 << 10;
/// The memory in bytes that is needed to append to one of these files.
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
    /// How many of the given ids belong to vectors that had been removed before.
    pub absent: u64,
    /// The id of the first added vector. The value is `None` if the caller gave the ids, or if a column has them.
    pub first_id: Option<u64>,
    /// The number of elements that were rounded from f64 to f32.
    pub rounded: u64,
    /// The number of rows in the tail of the index. The tail consists of the rows that no list and no layer holds. An
    /// approximate search compares each of them with its queries.
    pub unlisted: u64,
    /// The reason why the added vectors are in no layer of the index, if writing the layer failed. The dataset has the
    /// vectors nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_error: Option<String>,
}

impl Changed {
    fn of(info: VectorsInfo) -> Changed {
        let [added, replaced, taken, absent] = [0; 4];
        let (first_id, rounded, unlisted, index_error) = (None, 0, 0, None);
        Changed { info, added, replaced, taken, absent, first_id, rounded, unlisted, index_error }
    }

    /// Extends the index with the added vectors. The change is already published, so an error does not fail the call,
    /// but is reported in the result.
    fn listed(self, store: &Store, job: &Job) -> Changed {
        match extend(store, job, &self.info.name) {
            Ok(unlisted) => Changed { unlisted, ..self },
            Err(error) => Changed { index_error: Some(error.to_string()), ..self },
        }
    }
}

/// A change that has begun. It has the dataset before the change, and the builder that extends the dataset.
struct Change<'a> {
    job: &'a Job,
    vectors: Vectors,
    builder: DatasetBuilder,
}

impl<'a> Change<'a> {
    fn begin(store: &Store, job: &'a Job, name: &str) -> Result<Change<'a>> {
        // The dataset is opened first, so that a dataset of another kind gets an error for its kind even if it is
        // sealed.
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

    /// Starts to append to one of the small files.
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

    /// Publishes `count` vectors that were appended, with the ids that follow the largest id that the dataset has used.
    /// `replaced` of them replace other vectors, which were marked as removed.
    fn commit_added(mut self, count: u64, replaced: u64, rounded: u64) -> Result<Changed> {
        let info = self.info().clone();
        let ids = Ids::read(self.job, &self.vectors)?;
        let runs = ids.runs_of(info.vectors, info.next_id..info.next_id + count);
        drop(ids);
        self.append_runs(&runs)?;
        let first_id = Some(info.next_id);
        let info = self.commit(VectorsInfo {
            vectors: info.vectors + count,
            removed: info.removed + replaced,
            next_id: info.next_id + count,
            id_runs: info.id_runs + runs.len() as u64,
            ..info
        })?;
        Ok(Changed { added: count - replaced, replaced, first_id, rounded, ..Changed::of(info) })
    }

    /// Publishes the change with the new counts, and returns the new properties of the dataset.
    fn commit(self, mut info: VectorsInfo) -> Result<VectorsInfo> {
        info.bytes = self.builder.bytes();
        self.builder.commit(&info.to_attributes())?;
        Ok(info)
    }
}

/// Attempts a change, and attempts it again if another job changed the dataset meanwhile.
fn retried<R>(job: &Job, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Store(inshore_store::Error::Changed { .. })) => job.check_cancelled()?,
            done => return done,
        }
    }
    attempt()
}

/// Checks ids that are in ascending order.
///
/// # Errors
/// Returns [`Error::BadOption`] if an id is above the largest id or occurs twice, or if the list is empty.
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
