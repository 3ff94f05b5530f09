//! What is on the devices and who is at work: what `store df`, `store jobs` and `store locate` tell.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    DeviceEntry, EXTENT_BYTES, Owner, Result, SEGMENT_EXTENTS, Store, log::catalog::Run, shared::reserve,
};

/// What is on one device, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceUsage {
    /// Its number in the store.
    pub number: u16,
    /// Its folder.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// "ok", "leaving" (about to be removed) or "missing".
    pub state: &'static str,
    /// All extents that it has or may have.
    pub capacity_bytes: u64,
    /// Extents of datasets.
    pub dataset_bytes: u64,
    /// Extents that datasets no longer need and somebody may still read.
    pub freed_bytes: u64,
    /// Extents that living jobs took.
    pub job_bytes: u64,
    /// Log, superblocks and headers.
    pub metadata_bytes: u64,
    /// What can still be written to it: as far as its file system has room.
    pub free_bytes: u64,
}

/// Who is at work.
#[derive(Clone, Debug, Serialize)]
pub struct JobUsage {
    /// The number of its process.
    pub process: u32,
    /// "job", or "reader" for a process that has datasets open.
    pub role: &'static str,
    /// Bytes of extents that it took.
    pub bytes: u64,
    /// Seconds since it came.
    pub seconds: f64,
    /// Whether it reads a state of the store from before the last commit.
    pub reads_old_state: bool,
}

/// JSON is text: bytes of a path that are none are replaced, as where it is shown.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn bytes(runs: impl Iterator<Item = Run>) -> u64 {
    runs.map(|run| run.count as u64 * EXTENT_BYTES as u64).sum()
}

impl Store {
    /// What is on each device, by number.
    ///
    /// # Errors
    /// [`crate::Error::Io`], [`crate::Error::BadFormat`].
    pub fn usage(&self) -> Result<Vec<DeviceUsage>> {
        let (superblock, catalog) = self.0.state_of_things()?;
        let owners = self.0.owners()?;
        let pinned = owners.iter().filter_map(|owner| owner.pin).min().unwrap_or(catalog.commit);
        let usage = superblock.devices.iter().map(|entry| {
            let on_it = |run: &Run| run.start.device == entry.number;
            let datasets = catalog.datasets.values().flat_map(|record| record.runs.iter().copied());
            let freed = catalog.freed.iter().filter(|(commit, _)| *commit > pinned).map(|(_, run)| *run);
            let leases = owners.iter().flat_map(|owner| owner.lease.iter().copied());
            let device = self.0.device(entry.number).ok();
            let extents = device.as_ref().map_or(0, |device| device.extents());
            let log = superblock.places().filter(|place| place.device == entry.number).count() as u64;
            let (datasets, freed): (Vec<Run>, Vec<Run>) =
                (datasets.filter(on_it).collect(), freed.filter(on_it).collect());
            // What a job wrote and committed is the dataset's.
            let leases: Vec<Run> = Run::without(&leases.filter(on_it).collect::<Vec<_>>(), &datasets);
            let capacity_bytes = extents as u64 * EXTENT_BYTES as u64;
            // One extent of headers for each segment as far as there is something.
            let last = datasets.iter().chain(&leases).map(|run| run.start.extent + run.count).max();
            let metadata = log + 1 + last.unwrap_or(1).div_ceil(SEGMENT_EXTENTS) as u64;
            let metadata_bytes = (metadata * EXTENT_BYTES as u64).min(capacity_bytes);
            let (dataset_bytes, freed_bytes) = (bytes(datasets.into_iter()), bytes(freed.into_iter()));
            let job_bytes = bytes(leases.into_iter());
            let left =
                capacity_bytes.saturating_sub(metadata_bytes + dataset_bytes + freed_bytes + job_bytes);
            let room = device.as_ref().and_then(|device| device.free_bytes().ok()).flatten();
            let reserved = reserve(extents) * EXTENT_BYTES as u64;
            DeviceUsage {
                number: entry.number,
                path: self.place_of(entry),
                state: match (device.is_some(), entry.is_leaving) {
                    (false, _) => "missing",
                    (true, true) => "leaving",
                    (true, false) => "ok",
                },
                capacity_bytes,
                dataset_bytes,
                freed_bytes,
                job_bytes,
                metadata_bytes,
                free_bytes: room.map_or(left, |room| room.min(left)).saturating_sub(reserved),
            }
        });
        Ok(usage.collect())
    }

    /// Everybody who is at work on the store, on this machine.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn jobs(&self) -> Result<Vec<JobUsage>> {
        let (_, catalog) = self.0.state_of_things()?;
        let job = |owner: Owner| JobUsage {
            process: owner.process,
            role: if owner.is_reader { "reader" } else { "job" },
            bytes: bytes(owner.lease.iter().copied()),
            seconds: owner
                .since
                .and_then(|since| since.elapsed().ok())
                .map_or(0.0, |since| since.as_secs_f64()),
            reads_old_state: owner.pin.is_some_and(|pin| pin < catalog.commit),
        };
        Ok(self.0.owners()?.into_iter().map(job).collect())
    }

    /// Where a device is, or was.
    fn place_of(&self, entry: &DeviceEntry) -> PathBuf {
        let device = self.0.device(entry.number).ok();
        let folder = device.as_ref().and_then(|device| device.folder());
        folder.map_or_else(|| entry.path.clone(), Path::to_path_buf)
    }

    /// The folders of the devices by their numbers.
    ///
    /// # Errors
    /// [`crate::Error::Io`], [`crate::Error::BadFormat`].
    pub fn device_paths(&self) -> Result<BTreeMap<u16, PathBuf>> {
        let (superblock, _) = self.0.state_of_things()?;
        Ok(superblock.devices.iter().map(|entry| (entry.number, self.place_of(entry))).collect())
    }
}
