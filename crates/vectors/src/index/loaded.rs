//! Holds the parts of an index that stay in memory after the first search in the index.

use std::{any::Any, sync::OnceLock};

use inshore_store::{DriveProfile, Job};

use super::{
    Clustered,
    centroids::Centroids,
    codes::Codes,
    dataset::VectorIndex,
    parts::{Part, Remembered},
};
use crate::Result;

/// The parts of an index that all queries need.
pub(super) struct Lists<T: Clustered> {
    /// The parts whose lists have no copies of vectors of other lists.
    own: Vec<Part>,
    /// The parts whose lists also contain copies. The first search that uses copies sets this field.
    copied: OnceLock<Vec<Part>>,
    /// The codes. The first search that uses codes sets this field.
    codes: OnceLock<Codes>,
    pub centroids: Centroids<T>,
    /// The checksums of the lists that the single strategy reads. `None` if the checksums do not stay in memory.
    pub checks: Option<Vec<Remembered>>,
    /// The measured rates of the drive, for plans.
    pub drive: Option<DriveProfile>,
}

impl<T: Clustered> Lists<T> {
    /// Reads the directories and the centroids of groups. Also reads the centroids of lists and the checksums if the
    /// arguments state that these stay in memory.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if the index is damaged.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    ///   little free memory.
    pub fn read(
        job: &Job,
        index: &VectorIndex,
        (holds_centroids, holds_checks): (bool, bool),
    ) -> Result<Lists<T>> {
        let (directory, centroids) = index.load::<T>(job, holds_centroids)?;
        let (own, copied, codes) = (Part::all(job, index, directory)?, OnceLock::new(), OnceLock::new());
        let remember = || index.single_files().map(|file| Remembered::new(job, file)).collect();
        let checks = holds_checks.then(remember).transpose()?;
        Ok(Lists { own, copied, codes, centroids, checks, drive: job.store().drive_profile() })
    }

    /// Returns the codes. The first call opens them, and reads them into memory if `holds` is true. Returns `None` if
    /// the index has no codes.
    ///
    /// # Errors
    /// Returns the errors of [`Codes::open`].
    pub fn codes(&self, job: &Job, index: &VectorIndex, holds: bool) -> Result<Option<&Codes>> {
        match self.codes.get() {
            Some(codes) => Ok(Some(codes)),
            None => {
                let Some(codes) = Codes::open(job, index, holds)? else { return Ok(None) };
                Ok(Some(self.codes.get_or_init(|| codes)))
            }
        }
    }

    /// Returns true if the codes are in memory. Returns `None` if the codes were not opened.
    pub fn codes_are_in_memory(&self) -> Option<bool> {
        self.codes.get().map(Codes::are_in_memory)
    }

    /// Returns the parts. `with_copies` states if their lists contain copies. The first call with copies reads these
    /// parts.
    ///
    /// # Errors
    /// Returns the errors of [`Lists::read`].
    pub fn parts(&self, job: &Job, index: &VectorIndex, with_copies: bool) -> Result<&[Part]> {
        match (with_copies, self.copied.get()) {
            (false, _) => Ok(&self.own),
            (true, Some(copied)) => Ok(copied),
            (true, None) => {
                let copied = Part::with_copies(job, index, &self.own)?;
                Ok(self.copied.get_or_init(|| copied))
            }
        }
    }
}

/// The [`Lists`] of an index, for any element type. The first search that needs the lists sets this value.
#[derive(Default)]
pub(crate) struct LoadedLists(OnceLock<Box<dyn Any + Send + Sync>>);

impl LoadedLists {
    /// Returns the lists, or `None` if they are not loaded.
    pub(super) fn get<T: Clustered>(&self) -> Option<&Lists<T>> {
        self.0.get().map(|lists| lists.downcast_ref().expect("lists of one element type"))
    }

    /// Returns the lists. If the lists are not loaded yet, `load` loads them.
    ///
    /// # Errors
    /// Returns the errors of `load`.
    pub(super) fn get_or_load<T: Clustered>(
        &self,
        load: impl FnOnce() -> Result<Lists<T>>,
    ) -> Result<&Lists<T>> {
        if self.0.get().is_none() {
            // Another thread may have loaded the lists meanwhile. Both threads have loaded the same lists.
            let _ = self.0.set(Box::new(load()?));
        }
        Ok(self.get().expect("just set"))
    }
}
