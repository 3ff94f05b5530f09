//! Helpers shared by the unit tests of this crate.

use inshore_store::{Budget, Cancel, Job, Store};

/// Creates a job of two threads in a new store.
pub(crate) fn test_job(memory_bytes: u64) -> (tempfile::TempDir, Job) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
    (folder, job)
}
