//! Writes the files of codes while the lists of an index are written.

use inshore_store::{Budget, DatasetBuilder, FileWriter, Reservation};

use super::{
    Frame,
    encode::{Encoder, Factors, center_of},
    shape::Shape,
};
use crate::{
    Metric, Result,
    index::{
        Clustered,
        build::add_elements,
        dataset::CodeFiles,
        info::{CODE_CENTER, CODES},
    },
};

/// A list with fewer vectors is encoded by one thread.
const VECTORS_MIN: usize = 64;

/// The files of codes that are being written.
pub(in crate::index) struct CodeWriter {
    codes: FileWriter,
    center_file: FileWriter,
    frame: Frame,
    threads: usize,
    _reservation: Reservation,
}

impl CodeWriter {
    /// Returns the memory, in bytes, for lists of at most `vectors` vectors.
    pub fn bytes(shape: &Shape, vectors: u64, threads: usize) -> u64 {
        let (padded, dimensions) = (shape.padded() as u64, shape.dimensions as u64);
        let encoder = 8 * padded + 2 * padded + 24 * dimensions + 8 * dimensions;
        shape.fixed_bytes() + 2 * vectors * shape.entry_bytes() + threads as u64 * encoder
    }

    /// Begins the files. `groups` are the centroids of all groups, and `vectors_max` is the number of vectors in the
    /// largest list.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the budget has too little free memory or an I/O operation fails.
    pub fn begin<T: Clustered>(
        (budget, builder): (&Budget, &mut DatasetBuilder),
        (shape, metric, seed): (Shape, Metric, u64),
        groups: &[T],
        vectors_max: u64,
        (check_bytes, buffer_bytes, small_bytes): (usize, usize, usize),
    ) -> Result<CodeWriter> {
        let threads = budget.threads();
        let bytes = CodeWriter::bytes(&shape, vectors_max, threads);
        Ok(CodeWriter {
            codes: builder.file(CODES, check_bytes, buffer_bytes)?,
            center_file: builder.file(CODE_CENTER, check_bytes, small_bytes)?,
            frame: Frame::new(shape, metric, seed, center_of(metric, shape.dimensions, groups)),
            threads,
            _reservation: budget.reserve(bytes, "codes of a list")?,
        })
    }

    /// Writes a list. `rows` and `ids` are the bytes of the elements and of the row numbers of its vectors.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails.
    pub fn write<T: Clustered>(&mut self, centroid: &[u8], rows: &[u8], ids: &[u8]) -> Result<()> {
        let dimensions = self.frame.shape.dimensions;
        let row_bytes = dimensions * size_of::<T>();
        let count = rows.len() / row_bytes;
        let each = if count < VECTORS_MIN { count } else { count.div_ceil(self.threads) };
        let parts: Vec<&[u8]> = rows.chunks(each * row_bytes).collect();
        let mut elements = Vec::with_capacity(dimensions);
        add_elements::<T>(&mut elements, centroid);
        let this = &*self;
        let encode = |rows: &[u8]| this.encode::<T>(&elements, rows);
        let encoded: Vec<_> = match parts[..] {
            [rows] => vec![encode(rows)],
            _ => std::thread::scope(|scope| {
                let threads: Vec<_> = parts.iter().map(|rows| scope.spawn(|| encode(rows))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            }),
        };
        self.codes.write(&encoded[0].2.to_le_bytes())?;
        encoded.iter().try_for_each(|part| self.codes.write(&part.0))?;
        for Factors { add, rescale, error } in encoded.iter().flat_map(|part| &part.1) {
            self.codes.write(&[add, rescale, error].map(|x| x.to_le_bytes()).concat())?;
        }
        Ok(self.codes.write(ids)?)
    }

    /// Returns the codes and the factors of some vectors of a list, and the squared norm of its centroid.
    fn encode<T: Clustered>(&self, centroid: &[T], rows: &[u8]) -> (Vec<u8>, Vec<Factors>, f64) {
        let mut encoder = Encoder::new(&self.frame, centroid);
        let shape = &self.frame.shape;
        let row_bytes = shape.dimensions * size_of::<T>();
        let count = rows.len() / row_bytes;
        let (mut codes, mut factors) =
            (Vec::with_capacity(count * shape.code_bytes()), Vec::with_capacity(count));
        let mut row = Vec::with_capacity(shape.dimensions);
        for bytes in rows.chunks_exact(row_bytes) {
            row.clear();
            add_elements::<T>(&mut row, bytes);
            factors.push(encoder.encode(&row, &mut codes));
        }
        (codes, factors, encoder.centroid_square)
    }

    /// Adds the files to the dataset, and opens them.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails.
    pub fn open(mut self, builder: &mut DatasetBuilder) -> Result<CodeFiles> {
        for x in &self.frame.center {
            self.center_file.write(&x.to_le_bytes())?;
        }
        Ok(CodeFiles {
            codes: builder.add_and_open(self.codes)?,
            center: builder.add_and_open(self.center_file)?,
        })
    }
}
