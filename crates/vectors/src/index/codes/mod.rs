//! Codes of vectors for single queries. A code has one, two or four bits for each dimension, from which the distance of
//! a vector is estimated with a bound on the error.
//!
//! ```text
//!   build   vector - centroid ─► random rotation ─► code, three factors              beside each list of vectors
//!   query   - center ─► the same rotation ─► bytes ─┬─ estimates of all vectors of the probed lists
//!                                                   └─► candidates ─► exact distances, 16 reads at once ─► k nearest
//! ```
//!
//! The file `codes` has the lists of the file `lists`, with a code in the place of each vector. A list of codes is
//! small, so a query can probe many vectors with few reads, or without reads if all codes are in memory. The vectors
//! whose distance may be among the k smallest are read one by one and measured exactly ([`search`]).
//!
//! A list of the file is the squared norm of its centroid (f64), then the codes of its vectors, then their factors
//! (three f32 each), then their row numbers.

mod encode;
mod kernel;
mod measure;
mod query;
mod rotation;
mod search;
pub(super) mod shape;
mod write;

use inshore_store::{CheckedFile, Job, Reservation};
use zerocopy::little_endian::F64;

pub(super) use self::{
    measure::{Measured, lists_of_found, measure_bytes},
    search::{CodeScratch, CodeSearch, ProbedList},
    write::CodeWriter,
};
use self::{rotation::Rotation, shape::Shape};
use super::dataset::VectorIndex;
use crate::{Metric, Result, read::read_elements};

/// The frame in which vectors and queries are encoded.
#[derive(Debug)]
struct Frame {
    shape: Shape,
    metric: Metric,
    rotation: Rotation,
    /// The center of all centroids.
    center: Vec<f64>,
}

impl Frame {
    fn new(shape: Shape, metric: Metric, seed: u64, center: Vec<f64>) -> Frame {
        Frame { shape, metric, rotation: Rotation::new(seed, shape.dimensions), center }
    }
}

/// The codes of an index, and what a query needs to use them.
#[derive(Debug)]
pub(crate) struct Codes {
    pub shape: Shape,
    /// The file of codes, which may be in memory.
    file: CheckedFile,
    frame: Frame,
    is_in_memory: bool,
    _reservation: Reservation,
}

impl Codes {
    /// Opens the codes of an index. If `holds` is true, reads them into memory.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    /// little free memory.
    pub fn open(job: &Job, index: &VectorIndex, holds: bool) -> Result<Option<Codes>> {
        let (Some(shape), Some(files)) = (index.info().shape_of_codes(), &index.files.codes) else {
            return Ok(None);
        };
        let (metric, seed) = (index.info().metric, index.info().seed);
        let reservation = job.budget().reserve(shape.fixed_bytes(), "the rotation of codes")?;
        let mut center = Vec::with_capacity(shape.dimensions);
        read_elements::<F64>(job, &files.center, |piece| center.extend(piece.iter().map(|x| x.get())))?;
        let file = if holds { files.codes.hold(job, |_| ())? } else { files.codes.clone() };
        Ok(Some(Codes {
            shape,
            file,
            frame: Frame::new(shape, metric, seed, center),
            is_in_memory: holds,
            _reservation: reservation,
        }))
    }

    /// Returns true if the codes are in memory.
    pub fn are_in_memory(&self) -> bool {
        self.is_in_memory
    }
}
