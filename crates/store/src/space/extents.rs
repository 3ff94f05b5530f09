//! The extents of a file are allocated one after the other as the file grows. If no dataset becomes their owner, they
//! return to the lease of the job.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::{EXTENT_BYTES, ExtentAddress, Redundancy, Result, space::lease::Lease};

/// `Extents` contains the addresses of a file's extents in order, beginning with extent number `first`. When the object
/// is dropped, the extents return to the job's lease, unless a dataset has become their owner.
#[derive(Debug)]
pub(crate) struct Extents {
    redundancy: Redundancy,
    first: u64,
    places: Mutex<ExtentPlaces>,
    lease: Mutex<Option<Arc<Lease>>>,
}

#[derive(Debug, Default)]
struct ExtentPlaces {
    /// The addresses of the copies of the first extent, then of the copies of the second extent, and so on.
    data: Vec<ExtentAddress>,
    /// The addresses of the parity of the first group, then of the parity of the second group, and so on.
    parity: Vec<ExtentAddress>,
}

impl Extents {
    /// Creates the object for a file. No extent is taken from the lease yet.
    pub fn of_lease(lease: &Arc<Lease>, redundancy: Redundancy, first: u64) -> Arc<Extents> {
        let lease = Mutex::new(Some(lease.clone()));
        Arc::new(Extents { redundancy, first, places: Mutex::default(), lease })
    }

    /// Returns the addresses of the copies of extent `index`. The call first takes all missing extents up to this one
    /// from the lease.
    pub fn take(&self, index: u64) -> Result<Vec<ExtentAddress>> {
        let (copies, group) = (self.redundancy.copies(), self.redundancy.group() as usize);
        let index = (index - self.first) as usize;
        let mut places = self.places.lock().expect("no panic under this lock");
        while places.data.len() < (index + 1) * copies {
            let together = copies * group;
            let begun = places.data.len() / together * together;
            let place = self.take_apart_from(&places.data[begun..])?;
            places.data.push(place);
        }
        Ok(places.data[index * copies..(index + 1) * copies].to_vec())
    }

    /// Takes extents for the parity of the group to which the last taken extent belongs.
    pub fn take_parity(&self) -> Result<Vec<ExtentAddress>> {
        let group = self.redundancy.group() as usize;
        let mut places = self.places.lock().expect("no panic under this lock");
        let mut apart = places.data[(places.data.len() - 1) / group * group..].to_vec();
        let mut parity = Vec::new();
        for _ in 0..self.redundancy.parity() {
            let place = self.take_apart_from(&apart)?;
            apart.push(place);
            parity.push(place);
            places.parity.push(place);
        }
        Ok(parity)
    }

    fn take_apart_from(&self, places: &[ExtentAddress]) -> Result<ExtentAddress> {
        let avoid: Vec<u16> = places.iter().map(|place| place.device).collect();
        let lease = self.lease.lock().expect("no panic under this lock");
        lease.as_ref().expect("a file that grows has a lease").take(&avoid)
    }

    /// Returns the addresses of all extents that were taken.
    pub fn places(&self) -> Vec<ExtentAddress> {
        let places = self.places.lock().expect("no panic under this lock");
        places.data.iter().chain(&places.parity).copied().collect()
    }

    /// Makes a dataset the owner of the extents, so that they do not return to the lease.
    pub fn keep(&self) {
        *self.lease.lock().expect("no panic under this lock") = None;
    }
}

impl Drop for Extents {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.get_mut().expect("no panic under this lock") {
            let places = self.places.get_mut().expect("no panic under this lock");
            places.data.iter().chain(&places.parity).for_each(|&place| lease.release(place));
        }
    }
}

/// Splits the byte range `bytes` of a file at the boundaries of extents. For each piece, the iterator returns the
/// number of its extent, the offset in that extent, and its range in a buffer with the bytes of `bytes`.
pub(crate) fn pieces(bytes: Range<u64>) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut next = bytes.start;
    std::iter::from_fn(move || {
        if next >= bytes.end {
            return None;
        }
        let (extent, offset) = (next / EXTENT_BYTES as u64, (next % EXTENT_BYTES as u64) as usize);
        let end = bytes.end.min((extent + 1) * EXTENT_BYTES as u64);
        let range = (next - bytes.start) as usize..(end - bytes.start) as usize;
        next = end;
        Some((extent, offset, range))
    })
}
