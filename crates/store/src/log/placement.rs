//! This module computes on how many devices the copies of the log must be, so that the log survives the same losses as
//! the datasets.

use std::collections::BTreeSet;

use super::{Devices, LogExtents, superblock::Superblock};
use crate::{Catalog, ExtentAddress};

/// `Placement` is the wanted placement of the copies of a log on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The number of devices on which copies of the log can be.
    pub devices: usize,
    /// The wanted number of copies of the log: one more than the number of devices that may fail.
    pub copies: usize,
}

impl Placement {
    /// Returns the placement of the log that the datasets of a catalog need. If the datasets survive the loss of m
    /// devices, the log needs copies on m + 1 devices, and at least two copies. Copies can only be on those of
    /// `devices` that take new data according to `superblock`.
    pub fn of(catalog: &Catalog, superblock: &Superblock, devices: &Devices) -> Placement {
        let devices = devices.keys().filter(|number| superblock.takes_data(**number)).count();
        let wanted = catalog.datasets.values().map(|record| record.redundancy.list_copies());
        let copies = wanted.max().unwrap_or(1).min(devices).max(2);
        Placement { devices, copies }
    }

    /// Returns the number of devices on which copies of the log should be.
    pub fn spread(&self) -> usize {
        self.copies.min(self.devices)
    }
}

/// Returns the number of devices that each contain a complete copy of the log. The log survives the loss of all but one
/// of these devices.
pub(crate) fn spread(log: &LogExtents) -> usize {
    let first = |copy: &Vec<ExtentAddress>| {
        copy.iter().all(|place| place.device == copy[0].device).then_some(copy[0].device)
    };
    log.iter().filter_map(first).collect::<BTreeSet<u16>>().len()
}
