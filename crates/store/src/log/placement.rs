//! The copies of the log are placed on as many devices as the datasets need.

use std::collections::BTreeSet;

use super::{Devices, LogExtents, superblock::Superblock};
use crate::{Catalog, ExtentAddress};

/// `Placement` is the wanted placement of the copies of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The number of devices on which a log can lie.
    pub devices: usize,
    /// The wanted number of copies: one more than the number of devices that may fail.
    pub copies: usize,
}

impl Placement {
    /// Returns the placement that the datasets of a catalog need: if any m devices may fail, the log lies on m + 1
    /// devices, and on at least two. Only those of `devices` that take new data according to `superblock` can hold it.
    pub fn of(catalog: &Catalog, superblock: &Superblock, devices: &Devices) -> Placement {
        let devices = devices.keys().filter(|number| superblock.takes_data(**number)).count();
        let wanted = catalog.datasets.values().map(|record| record.redundancy.list_copies());
        let copies = wanted.max().unwrap_or(1).min(devices).max(2);
        Placement { devices, copies }
    }

    /// Returns the number of devices on which the log should lie.
    pub fn spread(&self) -> usize {
        self.copies.min(self.devices)
    }
}

/// Returns the number of devices that each hold a whole copy of the log: all but one of them may be lost.
pub(crate) fn spread(log: &LogExtents) -> usize {
    let first = |copy: &Vec<ExtentAddress>| {
        copy.iter().all(|place| place.device == copy[0].device).then_some(copy[0].device)
    };
    log.iter().filter_map(first).collect::<BTreeSet<u16>>().len()
}
