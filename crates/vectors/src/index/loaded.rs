//! The parts of an index that stay in memory from the first search in it on.

use std::{any::Any, sync::OnceLock};

use inshore_store::{DriveProfile, Job};

use super::{
    Clustered,
    centroids::Centroids,
    dataset::VectorIndex,
    parts::{Part, Remembered},
};
use crate::Result;

/// What all queries need of an index.
pub(super) struct Lists<T: Clustered> {
    own: Vec<Part>,
    /// The same with lists that have copies, once a search has read these.
    copied: OnceLock<Vec<Part>>,
    pub centroids: Centroids<T>,
    /// The checksums of the lists that the single strategy reads.
    pub checks: Option<Remembered>,
    /// The measured rates of the drive, for plans.
    pub drive: Option<DriveProfile>,
}

impl<T: Clustered> Lists<T> {
    /// Reads the directories and the centroids, and the checksums if these shall stay in memory.
    ///
    /// # Errors
    /// Damage; I/O; too little memory.
    pub fn read(
        job: &Job,
        index: &VectorIndex,
        (holds_centroids, holds_checks): (bool, bool),
    ) -> Result<Lists<T>> {
        let (directory, centroids) = index.load::<T>(job, holds_centroids)?;
        let (own, copied) = (Part::all(job, index, directory)?, OnceLock::new());
        let checks = holds_checks.then(|| Remembered::new(job, index.read_file(true))).transpose()?;
        Ok(Lists { own, copied, centroids, checks, drive: job.store().drive_profile() })
    }

    /// Returns the parts, with copies or without.
    ///
    /// # Errors
    /// As [`Lists::read`].
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

/// The lists of an index in memory, once a search has loaded them: [`Lists`] of the element type of the vectors.
#[derive(Default)]
pub(crate) struct LoadedLists(OnceLock<Box<dyn Any + Send + Sync>>);

impl LoadedLists {
    /// Returns the lists, if they are loaded.
    pub(super) fn get<T: Clustered>(&self) -> Option<&Lists<T>> {
        self.0.get().map(|lists| lists.downcast_ref().expect("lists of one element type"))
    }

    /// Returns the lists, which `load` returns if they are not loaded yet.
    ///
    /// # Errors
    /// Those of `load`.
    pub(super) fn get_or_load<T: Clustered>(
        &self,
        load: impl FnOnce() -> Result<Lists<T>>,
    ) -> Result<&Lists<T>> {
        if self.0.get().is_none() {
            // Another thread may have loaded them meanwhile.
            let _ = self.0.set(Box::new(load()?));
        }
        Ok(self.get().expect("just set"))
    }
}
