//! What every search of a dataset needs in memory, whatever its queries: the live rows, the ids of rows, and the center.

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
    /// The rows whose vectors were not removed; `None` if it is all.
    live: Option<Arc<RowSet>>,
    pub ids: Ids,
    /// The center of the data, once a search has asked for it.
    center: OnceLock<(Vec<f32>, Reservation)>,
}

impl DatasetFacts {
    /// Returns the memory of the facts.
    pub fn bytes(info: &VectorsInfo) -> u64 {
        live_bytes(info) + Ids::bytes(info) + center_bytes(info)
    }

    /// Returns the memory that [`Self::center`] will take.
    pub fn unread_bytes(&self, vectors: &Vectors) -> u64 {
        if self.center.get().is_some() { 0 } else { center_bytes(vectors.info()) }
    }

    /// Reads the facts.
    ///
    /// # Errors
    /// The errors of [`live_rows`] and [`Ids::read`].
    pub fn read(job: &Job, vectors: &Vectors) -> Result<DatasetFacts> {
        let live = live_rows(job, vectors)?.map(Arc::new);
        Ok(DatasetFacts { live, ids: Ids::read(job, vectors)?, center: OnceLock::new() })
    }

    /// Returns the options of a search in which removed vectors are no answers.
    ///
    /// # Errors
    /// A selection of other vectors; too little memory for a set of rows, if some vectors were removed and some are
    /// selected.
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

    /// Returns the center of the data for a metric that uses it, and otherwise zeros. The first call reads it.
    ///
    /// # Errors
    /// I/O and damage; too little memory.
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
        // Another thread may have read it meanwhile.
        let _ = self.center.set((center.clone(), reservation));
        Ok(center)
    }
}

/// Returns the memory of the center of the data, and of its read.
fn center_bytes(info: &VectorsInfo) -> u64 {
    match info.element {
        Element::F32 | Element::F16 | Element::Bf16 => (info.dimensions * 4 + 2 * CHECK_BYTES) as u64,
        Element::U8 | Element::I8 | Element::Bits => 0,
    }
}

/// Returns the center of the data for a metric that uses it, and otherwise zeros.
///
/// # Errors
/// I/O and damage; too little memory for two small buffers.
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
