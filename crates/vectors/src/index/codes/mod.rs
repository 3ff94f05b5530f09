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
mod write;

use std::ops::Range;

use inshore_store::{CheckedFile, Job, Reservation};

use self::rotation::Rotation;
pub(super) use self::{
    measure::{Measured, measure_bytes, measure_codes, measured_points},
    search::{CodeScratch, CodeSearch, ProbedList},
    write::CodeWriter,
};
use super::{dataset::VectorIndex, directory::Directory};
use crate::{Metric, Result, read::read_elements};
use zerocopy::little_endian::F64;

/// The numbers of bits that a code may have for each dimension.
pub const CODE_BITS: [u32; 3] = [1, 2, 4];
/// The size, in bytes, of the beginning of a list, which holds the squared norm of the centroid.
const HEAD_BYTES: u64 = 8;
/// The size, in bytes, of the factors of a vector.
const FACTOR_BYTES: usize = 12;

/// The form of the codes of an index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub bits: u32,
    pub dimensions: usize,
    /// The size of a row number in bytes.
    pub id_bytes: usize,
}

impl Shape {
    /// Returns the number of dimensions after padding.
    fn padded(&self) -> usize {
        self.dimensions.next_multiple_of(rotation::MULTIPLE)
    }

    fn code_bytes(&self) -> usize {
        self.padded() * self.bits as usize / 8
    }

    /// Returns the size, in bytes, of a code with its factors and its row number.
    pub fn entry_bytes(&self) -> u64 {
        (self.code_bytes() + FACTOR_BYTES + self.id_bytes) as u64
    }

    /// Returns the number that is subtracted from a value, so that values are symmetric around zero.
    fn half(&self) -> f64 {
        f64::from((1u32 << self.bits) - 1) / 2.0
    }

    /// Returns the size of the file of codes in bytes.
    pub fn file_bytes(&self, vectors: u64, lists: u64) -> u64 {
        vectors * self.entry_bytes() + lists * HEAD_BYTES
    }

    /// Returns the size, in bytes, of a list of `vectors` vectors.
    pub fn list_bytes(&self, vectors: u64) -> u64 {
        HEAD_BYTES + vectors * self.entry_bytes()
    }

    /// Returns the byte range of adjacent lists in the file.
    fn range_of(&self, lists: Range<u32>, directory: &Directory) -> Range<u64> {
        let start = |list: u32, place: u64| place * self.entry_bytes() + u64::from(list) * HEAD_BYTES;
        let (first, last) = (directory.places_of(lists.start), directory.places_of(lists.end - 1));
        start(lists.start, first.start)..start(lists.end, last.end)
    }

    /// Returns the memory, in bytes, of [`Codes`] without the file.
    pub fn fixed_bytes(&self) -> u64 {
        Rotation::bytes(self.dimensions) + self.dimensions as u64 * 8
    }
}

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
