//! Reads the queries of a file, and converts their elements to the type that nodes compare.

use inshore_store::{Context, Reservation};

use crate::{
    Result, VectorFile, VectorsInfo,
    file::Rows,
    search::{Source, check_dimensions},
};

/// A reader of the queries of a file, in order. The reader converts the elements of the queries to the element type of
/// queries for the vectors. This type is `f32` for vectors of any floating-point type.
pub struct QueryReader<'a> {
    file: &'a VectorFile,
    vectors: &'a VectorsInfo,
    rows: Rows,
    next: u64,
    _memory: Reservation,
}

impl<'a> QueryReader<'a> {
    /// Begins to read queries for the vectors `vectors`.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadFile`] if the queries do not have the dimensions and the element type that the
    ///   vectors need.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn new(context: &Context, file: &'a VectorFile, vectors: &'a VectorsInfo) -> Result<QueryReader<'a>> {
        check_dimensions(Source::File(file), vectors)?;
        let memory = context.budget().reserve(file.rows_bytes(false), "queries")?;
        Ok(QueryReader { file, vectors, rows: file.rows(context, 0, false)?, next: 0, _memory: memory })
    }

    /// Returns the number of bytes of a query.
    pub fn query_bytes(&self) -> usize {
        self.vectors.element.queried().row_bytes(self.vectors.dimensions)
    }

    /// Returns the bytes of the next queries, but of at most `most` queries. The result is empty after the last query.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadFile`] if the element type of the vectors cannot represent a value of a query.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails.
    pub fn next(&mut self, most: u64) -> Result<Vec<u8>> {
        let (element, to) = (self.file.element(), self.vectors.element.queried());
        let end = self.file.count().min(self.next.saturating_add(most));
        let mut queries = Vec::with_capacity((end - self.next) as usize * self.query_bytes());
        while self.next < end {
            let bytes = self.rows.next(end - self.next)?;
            for row in bytes.chunks_exact(element.row_bytes(self.vectors.dimensions)) {
                element.cast(row, to, &mut queries).map_err(|(dimension, value)| {
                    let VectorsInfo { element, name, .. } = self.vectors;
                    let expected = format!("a value of {element}, as the elements of {name}");
                    self.file.bad_value(self.next, dimension, value.to_string(), expected)
                })?;
                self.next += 1;
            }
        }
        Ok(queries)
    }
}
