//! The footer of a Parquet table that grows.
//!
//! ```text
//!   before   PAR1 │ row group 0 │ row group 1 │ row group 2 │ footer
//!   after    PAR1 │ row group 0 │ row group 1 │ PAR1 │ rows of 2 and more rows, in row groups │ their footer │ footer
//!                                             └ the first byte that is written
//! ```
//!
//! The last row group is written again together with the rows that follow it, so many small additions do not leave many
//! small row groups. The former footer is dropped, and the last footer names all row groups. Readers begin with the
//! last footer, so other footers are unused bytes, which the next addition drops.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use inshore_store::Budget;
use parquet::{
    arrow::ArrowSchemaConverter,
    errors::{ParquetError, Result as ParquetResult},
    file::metadata::{
        ColumnChunkMetaData, FileMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData,
    },
};

use crate::{
    Error, Input, Result,
    reader::{read_schema, whole_metadata},
};

/// A table to which rows are appended.
pub(super) struct FormerTable {
    info: FileMetaData,
    /// The row groups that stay: all but the last one.
    groups: Vec<RowGroupMetaData>,
    /// True if the table has a last row group, which is written again.
    pub has_last: bool,
    /// The columns, with the types that readers return.
    pub schema: SchemaRef,
    /// The number of bytes that stay.
    pub kept_bytes: u64,
    /// The memory, in bytes, of the metadata and of the footer that is made of it.
    pub memory_bytes: u64,
}

impl FormerTable {
    /// Reads the footer of a table that [`super::ParquetStream`] wrote.
    ///
    /// # Errors
    /// - Returns [`Error::Damaged`] if the footer is damaged, or if the columns are not those of such a table.
    /// - Returns [`Error::TooLarge`] if the footer is larger than a quarter of the budget.
    pub fn of(input: &Input, budget: &Budget) -> Result<FormerTable> {
        let metadata = whole_metadata(input, budget)?;
        let memory_bytes = 2 * metadata.memory_size() as u64;
        let damaged = |what: String| Error::damaged(input.name(), what);
        let info = metadata.file_metadata().clone();
        let schema = read_schema(&info).map_err(|error| damaged(error.to_string()))?;
        let written = ArrowSchemaConverter::new().convert(&schema);
        if written.is_ok_and(|written| written.root_schema() != info.schema_descr().root_schema()) {
            return Err(damaged(
                "the columns have types that the writer of this table does not use".to_string(),
            ));
        }
        let mut groups = metadata.into_builder().take_row_groups();
        let has_last = groups.pop().is_some();
        let kept_bytes = match groups.last() {
            None => 0,
            Some(group) => {
                end_of(group).ok_or_else(|| damaged("a row group lies outside of the file".to_string()))?
            }
        };
        Ok(FormerTable { info, groups, has_last, schema: Arc::new(schema), kept_bytes, memory_bytes })
    }

    /// Returns the number of row groups that stay.
    pub fn kept_groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the number of rows in the row groups that stay.
    pub fn kept_rows(&self) -> u64 {
        self.groups.iter().map(|group| group.num_rows().max(0) as u64).sum()
    }

    /// Returns the footer of the table with the row groups `more` behind those that stay. The positions in `more` count
    /// from [`FormerTable::kept_bytes`].
    ///
    /// # Errors
    /// Returns an error if there are more row groups than Parquet can number.
    pub fn footer(self, more: Vec<RowGroupMetaData>) -> ParquetResult<Vec<u8>> {
        let FormerTable { info, mut groups, kept_bytes, .. } = self;
        for group in more {
            groups.push(moved(group, kept_bytes as i64, groups.len())?);
        }
        let info = FileMetaData::new(
            info.version(),
            groups.iter().map(RowGroupMetaData::num_rows).sum(),
            info.created_by().map(str::to_string),
            info.key_value_metadata().cloned(),
            info.schema_descr_ptr(),
            info.column_orders().cloned(),
        );
        let metadata = ParquetMetaDataBuilder::new(info).set_row_groups(groups).build();
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
        Ok(footer)
    }
}

/// Returns the position after the last byte of a row group.
fn end_of(group: &RowGroupMetaData) -> Option<u64> {
    let end = |chunk: &ColumnChunkMetaData| {
        let start = chunk.dictionary_page_offset().filter(|&start| start != 0);
        let start = u64::try_from(start.unwrap_or(chunk.data_page_offset())).ok()?;
        start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)
    };
    group.columns().iter().map(end).try_fold(0, |last, end| Some(last.max(end?)))
}

/// Returns a row group whose positions are larger by `by`, and which has the number `number` in the file.
fn moved(group: RowGroupMetaData, by: i64, number: usize) -> ParquetResult<RowGroupMetaData> {
    let ordinal = i16::try_from(number)
        .map_err(|_| ParquetError::General(format!("more than {} row groups", i16::MAX)))?;
    let start = group.file_offset().unwrap_or(0) + by;
    let mut group = group.into_builder();
    let columns = group.take_columns().into_iter().map(|chunk| {
        let (data, index) =
            (chunk.data_page_offset() + by, chunk.index_page_offset().map(|place| place + by));
        let dictionary = chunk.dictionary_page_offset().map(|place| place + by);
        let chunk = chunk.into_builder().set_data_page_offset(data).set_index_page_offset(index);
        chunk.set_dictionary_page_offset(dictionary).build()
    });
    let columns = columns.collect::<ParquetResult<Vec<_>>>()?;
    group.set_column_metadata(columns).set_ordinal(ordinal).set_file_offset(start).build()
}
