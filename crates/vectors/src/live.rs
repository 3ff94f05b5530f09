//! The live rows of a dataset. A row is live if its vector was not removed.

use inshore_store::Job;
use zerocopy::little_endian::U64;

use crate::{
    Error, Result, RowSet, Vectors, VectorsInfo,
    ids::Ids,
    read::{READ_ELEMENTS_BYTES, read_elements},
};

/// Returns the memory, in bytes, that [`live_rows`] takes.
pub(crate) fn live_bytes(info: &VectorsInfo) -> u64 {
    if info.removed == 0 { 0 } else { RowSet::bytes(info.vectors) + READ_ELEMENTS_BYTES }
}

/// Reads the set of live rows. Returns `None` if no row was removed.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if a row that is listed as removed does not exist, or is listed twice.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little free
///   memory.
pub(crate) fn live_rows(job: &Job, vectors: &Vectors) -> Result<Option<RowSet>> {
    let Some(file) = &vectors.removed else { return Ok(None) };
    let info = vectors.info();
    let mut live = RowSet::full(job.budget(), info.vectors)?;
    let mut wrong = None;
    read_elements::<U64>(job, file, |piece| {
        for row in piece.iter().map(|row| row.get()) {
            match live.contains(row) {
                true => live.remove(row),
                false => wrong = wrong.or(Some(row)),
            }
        }
    })?;
    match wrong {
        None => Ok(Some(live)),
        Some(row) => Err(Error::BadDataset {
            name: info.name.clone(),
            what: "removed vectors",
            found: format!("row {row}"),
            expected: format!("different rows below {}", info.vectors),
        }),
    }
}

/// Finds the live rows of vectors by their ids.
pub(crate) struct RowsOfIds {
    pub ids: Ids,
    live: Option<RowSet>,
    rows: u64,
}

impl RowsOfIds {
    /// Returns the memory, in bytes, of the ids and the live rows.
    pub fn bytes(info: &VectorsInfo) -> u64 {
        Ids::bytes(info) + live_bytes(info)
    }

    /// Reads the ids and the live rows.
    ///
    /// # Errors
    /// Returns the errors of [`Ids::read`] and [`live_rows`].
    pub fn read(job: &Job, vectors: &Vectors) -> Result<RowsOfIds> {
        let (ids, live) = (Ids::read(job, vectors)?, live_rows(job, vectors)?);
        Ok(RowsOfIds { ids, live, rows: vectors.info().vectors })
    }

    /// Returns the live row of each id in `wanted`, which must be in ascending order. The result is `None` for an id
    /// that no live row has.
    pub fn find(&self, wanted: &[u64]) -> Vec<Option<u64>> {
        self.ids.rows(self.rows, wanted, |row| self.live.as_ref().is_none_or(|live| live.contains(row)))
    }
}
