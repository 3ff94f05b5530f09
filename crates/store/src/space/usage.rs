//! This module reports the usage of a store for the commands `store df`, `store jobs` and `store locate`: the data on
//! its devices, the running jobs, and the folders of the devices.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    DeviceEntry, EXTENT_BYTES, Owner, Result, SEGMENT_EXTENTS, Store, log::catalog::Run, shared::reserve,
};

/// `DeviceUsage` describes how the space of one device is used.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceUsage {
    /// The number of the device in the store.
    pub number: u16,
    /// The folder of the device.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The state of the device: "ok", "leaving" (being removed) or "missing".
    pub state: &'static str,
    /// The number of bytes of all extents of the device, up to its size limit.
    pub capacity_bytes: u64,
    /// The number of bytes in extents of datasets.
    pub dataset_bytes: u64,
    /// The number of bytes in extents that no dataset needs any more, but that readers may still read.
    pub freed_bytes: u64,
    /// The number of bytes in extents that running jobs have taken.
    pub job_bytes: u64,
    /// The number of bytes for the log, the superblock and headers.
    pub metadata_bytes: u64,
    /// The number of bytes for new data. This space is limited by the size limit of the device and by the free space of
    /// the file system.
    pub free_bytes: u64,
}

/// `JobUsage` describes a running job or reader.
#[derive(Clone, Debug, Serialize)]
pub struct JobUsage {
    /// The id of the process.
    pub process: u32,
    /// The role of the process: "job", or "reader" if the process only has datasets open.
    pub role: &'static str,
    /// The number of bytes in the extents that the job has taken.
    pub bytes: u64,
    /// The number of seconds since the job or reader started.
    pub seconds: f64,
    /// True if the job or reader reads a state of the store that is older than the last commit.
    pub reads_old_state: bool,
}

/// Serializes a path as text. Invalid UTF-8 is replaced, as when the path is displayed.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn bytes(runs: impl Iterator<Item = Run>) -> u64 {
    runs.map(|run| run.count as u64 * EXTENT_BYTES as u64).sum()
}

impl Store {
    /// Returns the usage of each device, sorted by device number.
    ///
    /// # Errors
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`crate::Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn usage(&self) -> Result<Vec<DeviceUsage>> {
        let (superblock, catalog) = self.0.snapshot()?;
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
            // Extents that a running job has committed are counted for the dataset and not for the job.
            let leases: Vec<Run> = Run::without(&leases.filter(on_it).collect::<Vec<_>>(), &datasets);
            let capacity_bytes = extents as u64 * EXTENT_BYTES as u64;
            // Each segment up to the last extent in use has one extent of headers.
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

    /// Lists the running jobs and readers of the store on this machine.
    ///
    /// # Errors
    /// Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    pub fn jobs(&self) -> Result<Vec<JobUsage>> {
        let (_, catalog) = self.0.snapshot()?;
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

    /// Returns the current folder of a device, or its recorded folder if the device is missing.
    fn place_of(&self, entry: &DeviceEntry) -> PathBuf {
        let device = self.0.device(entry.number).ok();
        let folder = device.as_ref().and_then(|device| device.folder());
        folder.map_or_else(|| entry.path.clone(), Path::to_path_buf)
    }

    /// Returns the folders of the devices by device number.
    ///
    /// # Errors
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`crate::Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn device_paths(&self) -> Result<BTreeMap<u16, PathBuf>> {
        let (superblock, _) = self.0.snapshot()?;
        Ok(superblock.devices.iter().map(|entry| (entry.number, self.place_of(entry))).collect())
    }
}
