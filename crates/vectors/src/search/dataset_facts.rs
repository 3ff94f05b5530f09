//! Reads the data of a dataset that every search needs in memory. The data do not depend on the queries. They consist
//! of the live rows, the ids of the rows, and the center of the vectors.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use inshore_store::{Buffer, FileReader, Job, Reservation};

use super::Search;
use crate::{
    Element, Metric, Result, RowSet, Vectors, VectorsInfo,
    dataset::CHECK_BYTES,
    element::floats,
    ids::Ids,
    live::{live_bytes, live_rows},
};

/// The facts about a dataset that searches share.
#[derive(Debug)]
pub(crate) struct DatasetFacts {
    /// The rows whose vectors were not removed. `None` if no vector was removed.
    live: Option<Arc<RowSet>>,
    pub ids: Ids,
    /// The center of the data. The first search that needs the center sets this field.
    center: OnceLock<(Vec<f32>, Reservation)>,
}

impl DatasetFacts {
    /// Returns the memory, in bytes, that the facts take with the center.
    pub fn bytes(info: &VectorsInfo) -> u64 {
        live_bytes(info) + Ids::bytes(info) + center_bytes(info)
    }

    /// Returns the memory, in bytes, that [`Self::center`] will take. The memory is 0 if the center was already read.
    pub fn unread_bytes(&self, vectors: &Vectors) -> u64 {
        if self.center.get().is_some() { 0 } else { center_bytes(vectors.info()) }
    }

    /// Reads the live rows and the ids. The center is read later.
    ///
    /// # Errors
    /// Returns the errors of [`live_rows`] and [`Ids::read`].
    pub fn read(job: &Job, vectors: &Vectors) -> Result<DatasetFacts> {
        let live = live_rows(job, vectors)?.map(Arc::new);
        Ok(DatasetFacts { live, ids: Ids::read(job, vectors)?, center: OnceLock::new() })
    }

    /// Returns the options of a search with a selection that contains no removed vectors.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadOption`] if the selection belongs to other vectors.
    /// - Returns [`crate::Error::Store`] if the budget has too little free memory for a set of rows. The set is needed
    ///   only if some vectors were removed and the search has a selection.
    pub fn among_live<'a>(
        &self,
        job: &Job,
        vectors: &Vectors,
        search: &'a Search,
    ) -> Result<Cow<'a, Search>> {
        search.check_selection(vectors.info())?;
        let Some(live) = &self.live else { return Ok(Cow::Borrowed(search)) };
        let selection = match &search.selection {
            None => live.clone(),
            Some(selection) => {
                let mut both = live.copied(job.budget())?;
                both.intersect(selection);
                Arc::new(both)
            }
        };
        Ok(Cow::Owned(Search { selection: Some(selection), ..search.clone() }))
    }

    /// Returns the center of the data if the metric uses the center, and otherwise zeros. The first call reads the
    /// center.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    /// little free memory.
    pub fn center(&self, job: &Job, vectors: &Vectors, metric: Metric) -> Result<Vec<f32>> {
        if vectors.center.is_none() || metric != Metric::L2 {
            return Ok(vec![0.0; vectors.info().dimensions]);
        }
        if let Some((center, _)) = self.center.get() {
            return Ok(center.clone());
        }
        let reservation =
            job.budget().reserve(vectors.info().dimensions as u64 * 4, "the center of the vectors")?;
        let center = center_of_vectors(job, vectors, metric)?;
        // Another thread may have set the center meanwhile. Both threads have read the same center.
        let _ = self.center.set((center.clone(), reservation));
        Ok(center)
    }
}

/// Returns the memory, in bytes, of the center of the data and of the buffers that read the center.
fn center_bytes(info: &VectorsInfo) -> u64 {
    match info.element {
        Element::F32 | Element::F16 | Element::Bf16 => (info.dimensions * 4 + 2 * CHECK_BYTES) as u64,
        Element::U8 | Element::I8 | Element::Bits => 0,
    }
}

/// Reads the center of the data if the metric uses the center, and otherwise returns zeros.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little
/// free memory for two small buffers.
pub(crate) fn center_of_vectors(job: &Job, vectors: &Vectors, metric: Metric) -> Result<Vec<f32>> {
    let mut center = Vec::with_capacity(vectors.info().dimensions);
    if let (Some(file), Metric::L2) = (&vectors.center, metric) {
        let buffers = Buffer::zeroed(job.budget(), 2 * CHECK_BYTES, "the center of the vectors")?;
        let mut reader = FileReader::with_buffers(job, file, 0..file.len(), buffers.split(CHECK_BYTES))?;
        while let Some(piece) = reader.next_piece()? {
            center.extend_from_slice(floats(piece));
        }
    }
    center.resize(vectors.info().dimensions, 0.0);
    Ok(center)
}
