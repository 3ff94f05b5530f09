//! Imports content as a dataset of vectors, in one pass. Content is a set of images or documents.
//!
//! ```text
//!   ContentRows ─► rows ──► `vectors`, `center`
//!               ─► paths ─► `columns.parquet`: the column `path`, which answers and predicates can use
//!   vocabulary ───────────► `content`
//! ```

use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{DatasetBuilder, Job, Store};
use inshore_tables::ParquetStream;
use serde::Serialize;

use super::{ContentRows, stored::write_content};
use crate::{
    Error, Result, Vectors, VectorsInfo,
    columns::{COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile, ROW_COLUMN, append_columns},
    dataset::{CHECK_BYTES, COLUMNS, CONTENT},
    import::VectorWriter,
    names::create_vectors,
};

/// The memory, in bytes, that a source of content must leave free for its consumer.
pub const CONSUMER_BYTES: u64 = VectorWriter::BUFFER_BYTES
    + ParquetStream::<DatasetFile>::MEMORY_BYTES
    + 2 * (COLUMNS_BUFFER_BYTES + COLUMNS_CHECK_BYTES) as u64
    + 6 * CHECK_BYTES as u64
    + (512 << 10);
/// The name of the column of paths.
const PATH: &str = "path";

/// The result of an import of content.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedContent {
    /// The new dataset.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of malformed items that were skipped.
    pub skipped: u64,
    /// The error of the first skipped item.
    pub first_skipped: Option<String>,
}

/// Imports vectors that are computed from content as the dataset `name`. For documents, the dataset also keeps the
/// vocabulary, since queries need it. The paths of files become the column `path`. A job that ends before the commit
/// leaves no dataset.
///
/// The function takes [`super::CONSUMER_BYTES`] bytes in addition to the memory of `content`.
///
/// # Errors
/// - Returns [`Error::BadFile`] if content is malformed, or if all items were skipped.
/// - Returns [`Error::Store`] if the store already has the name, a read or write fails, the budget has too little free
///   memory, or the job was cancelled.
pub fn import_content(
    store: &Store,
    job: &Job,
    name: &str,
    content: &mut dyn ContentRows,
) -> Result<ImportedContent> {
    let (element, dimensions) = (content.element(), content.dimensions());
    let mut builder = create_vectors(store, job, name)?;
    let mut writer = VectorWriter::new(&mut builder, element, dimensions)?;
    let mut paths = None;
    let (unit, total) = content.total();
    job.start_phase("computing vectors", unit, total);
    while let Some(batch) = content.next()? {
        writer.add(batch.rows)?;
        if !batch.paths.is_empty() {
            let paths = match &mut paths {
                Some(paths) => paths,
                None => paths.insert(Paths::new(job, &mut builder)?),
            };
            paths.add(batch.paths)?;
        }
    }
    let (skipped, first_skipped) = content.skipped();
    let sums = writer.end(&mut builder)?;
    let vectors = sums.count;
    if vectors == 0 {
        let found =
            first_skipped.map_or("none".to_string(), |first| format!("{skipped} malformed ({first})"));
        let (file, expected) = (name.to_string(), "at least one".to_string());
        return Err(Error::BadFile { file, place: unit.to_string(), found, expected });
    }
    sums.write(&mut builder)?;
    if let Some(paths) = paths {
        paths.end(&mut builder)?;
    }
    let mut writer = builder.file(CONTENT, CHECK_BYTES, CHECK_BYTES)?;
    write_content(&mut writer, content.vocabulary())?;
    builder.add(writer)?;
    let info = VectorsInfo::new(name, vectors, dimensions, element, builder.bytes());
    builder.commit(&info.to_attributes())?;
    Ok(ImportedContent { info, skipped, first_skipped })
}

/// The writer of the column of paths.
pub(crate) struct Paths(ParquetStream<DatasetFile>);

impl Paths {
    fn schema() -> SchemaRef {
        let fields =
            [Field::new(PATH, DataType::Utf8, false), Field::new(ROW_COLUMN, DataType::UInt64, false)];
        Arc::new(Schema::new(fields.to_vec()))
    }

    fn new(job: &Job, builder: &mut DatasetBuilder) -> Result<Paths> {
        let file = builder.file_with_buffers(COLUMNS, COLUMNS_CHECK_BYTES, COLUMNS_BUFFER_BYTES, 2)?;
        Ok(Paths(ParquetStream::new(DatasetFile(file), COLUMNS, Paths::schema(), job.budget())?))
    }

    /// Begins to append to the column of paths of a dataset. Returns `None` if the dataset has no such column.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the dataset does not have a path for each vector.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little
    ///   free memory.
    pub fn append(job: &Job, vectors: &Vectors, builder: &mut DatasetBuilder) -> Result<Option<Paths>> {
        append_columns(job, vectors, builder).map(|stream| stream.map(Paths))
    }

    /// Adds the paths of the next vectors.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn add(&mut self, paths: &[String]) -> Result<()> {
        let first = self.0.rows();
        let rows = UInt64Array::from_iter_values(first..first + paths.len() as u64);
        let paths = StringArray::from_iter_values(paths);
        let batch = RecordBatch::try_new(Paths::schema(), vec![Arc::new(paths), Arc::new(rows)]);
        Ok(self.0.write(&batch.expect("columns of one length"))?)
    }

    /// Completes the column, and adds it to the dataset.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn end(self, builder: &mut DatasetBuilder) -> Result<()> {
        Ok(builder.add(self.0.finish()?.0)?)
    }
}
