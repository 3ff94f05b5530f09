//! Imports a file of vectors as a dataset, in one pass.
//!
//! ```text
//!   file ─► rows, checked and as stored elements ─┬─► `vectors`
//!                                                 └─► sum of each dimension ─► `center`
//! ```
//!
//! The import reads the file once and writes the dataset once. It takes four buffers of 1 MiB for reads, two buffers of
//! 1 MiB for writes, 0.5 MiB for rows, and 12 bytes for each dimension.

use inshore_store::{DatasetBuilder, FileWriter, Job, Store};
use serde::Serialize;

use crate::{
    Result, VectorFile, VectorsInfo,
    dataset::{CENTER, CHECK_BYTES, VECTORS},
    element::{Element, floats},
    names::create_vectors,
};

pub(crate) const BUFFER_BYTES: usize = 1 << 20;
pub(crate) const BUFFERS: usize = 2;

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// The new dataset.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of elements that were rounded from f64 to f32.
    pub rounded: u64,
    /// The columns of a table that the dataset keeps in addition to the vectors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// The columns of a table that the dataset does not keep, because they hold lists or structures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Imports `file` as the dataset `name`. A job that ends before the commit leaves no dataset.
///
/// # Errors
/// - Returns [`crate::Error::BadFile`] if a vector is malformed or a value is not finite.
/// - Returns [`crate::Error::Store`] if the store already has the name, a read or write fails, the budget has too
///   little free memory, or the job was cancelled.
pub fn import(store: &Store, job: &Job, name: &str, file: &VectorFile) -> Result<Imported> {
    let (dimensions, element) = (file.dimensions(), file.element());
    let work = file.rows_bytes(true) - inshore_store::FILE_SOURCE_BYTES + dimensions as u64 * (8 + 4);
    job.budget().need(VectorWriter::BUFFER_BYTES + inshore_store::FILE_SOURCE_BYTES + work, || {
        "importing vectors".to_string()
    })?;
    let _work = job.budget().reserve(work, "vectors that are imported")?;
    let mut builder = create_vectors(store, job, name)?;
    let mut writer = VectorWriter::new(&mut builder, element, dimensions)?;
    let mut rows = file.rows(job, 0, true)?;
    job.start_phase("importing", "vectors", file.count());
    loop {
        let bytes = rows.next(u64::MAX)?;
        if bytes.is_empty() {
            break;
        }
        writer.add(bytes)?;
        job.progress().add((bytes.len() / element.row_bytes(dimensions)) as u64);
    }
    writer.end(&mut builder)?.write(&mut builder)?;
    let info = VectorsInfo::new(name, file.count(), dimensions, element, builder.bytes());
    builder.commit(&info.to_attributes())?;
    Ok(Imported { info, rounded: rows.rounded(), columns: Vec::new(), left_out: Vec::new() })
}

/// Writes the file `vectors` of a dataset, and computes the sum of each dimension.
pub(crate) struct VectorWriter {
    writer: FileWriter,
    sums: Sums,
    element: Element,
    decoded: Vec<f32>,
}

/// The sum of each dimension, from which the center is computed.
pub(crate) struct Sums {
    sums: Vec<f64>,
    is_float: bool,
    pub count: u64,
}

impl VectorWriter {
    /// The memory of the buffers in bytes. The sums take 12 bytes for each dimension in addition.
    pub const BUFFER_BYTES: u64 = (BUFFERS * BUFFER_BYTES + 2 * CHECK_BYTES + (64 << 10)) as u64;

    /// Creates the file.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn new(builder: &mut DatasetBuilder, element: Element, dimensions: usize) -> Result<VectorWriter> {
        let writer = builder.file_with_buffers(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
        let sums = Sums { sums: vec![0.0; dimensions], is_float: element.is_float(), count: 0 };
        Ok(VectorWriter { writer, sums, element, decoded: Vec::with_capacity(dimensions) })
    }

    /// Adds complete vectors. `bytes` contains their stored elements, and must be aligned for the element type.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes)?;
        let VectorWriter { sums: Sums { sums, count, .. }, element, decoded, .. } = self;
        let dimensions = sums.len();
        let row_bytes = element.row_bytes(dimensions);
        *count += (bytes.len() / row_bytes) as u64;
        let mut add = |row: &[f32]| sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        match element {
            Element::F32 => floats(bytes).chunks_exact(dimensions).for_each(add),
            Element::F16 | Element::Bf16 => {
                for row in bytes.chunks_exact(row_bytes) {
                    decoded.clear();
                    element.decode(row, decoded);
                    add(decoded);
                }
            }
            Element::U8 | Element::I8 | Element::Bits => {}
        }
        Ok(())
    }

    /// Completes the file, and adds it to the dataset. Returns the sums.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn end(self, builder: &mut DatasetBuilder) -> Result<Sums> {
        builder.add(self.writer)?;
        Ok(self.sums)
    }
}

impl Sums {
    /// Writes the mean of the vectors to the file `center`. If the elements of the vectors are not floating-point
    /// numbers, nothing is written.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn write(&self, builder: &mut DatasetBuilder) -> Result<()> {
        if self.is_float {
            let mut writer = builder.file(CENTER, CHECK_BYTES, CHECK_BYTES)?;
            for sum in &self.sums {
                writer.write(&((sum / self.count as f64) as f32).to_le_bytes())?;
            }
            builder.add(writer)?;
        }
        Ok(())
    }
}
