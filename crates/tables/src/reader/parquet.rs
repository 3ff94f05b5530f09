//! Reads a Parquet file as a source of record batches.
//!
//! The library's batch reader gets pages from this crate ([`super::parquet_pages`]), which checks every page. Strings
//! are read as views into their pages, since copies of the strings of a short dictionary could fill gigabytes.

use std::{ops::Range, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_cast::cast::cast;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use inshore_store::Budget;
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowGroups,
            statistics::StatisticsConverter,
        },
        parquet_to_arrow_field_levels, parquet_to_arrow_schema,
    },
    column::page::{PageIterator, PageReader},
    errors::Result as ParquetResult,
    file::{
        metadata::{
            ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetStatisticsPolicy, RowGroupMetaData,
        },
        statistics::Statistics,
    },
};

use super::{
    parquet_needs::{PageMemory, enough},
    parquet_pages::{Footer, LIST_VALUE_BYTES, METADATA_BYTES_PER_FOOTER_BYTE, Pages, ParquetFile, start_of},
};
use crate::{
    Error, Input, Result,
    allowance::{Allowance, PAGES, piece_limit},
};

pub(super) struct ParquetSource {
    file: Arc<ParquetFile>,
    budget: Budget,
    metadata: Arc<ParquetMetaData>,
    schema: Schema,
    reader: Option<ParquetRecordBatchReader>,
    /// The positions of the columns that are read, in the order of the file, and the number of rows in a batch.
    chosen: (Vec<usize>, usize),
    /// For each requested column, its position among the columns that are read. These columns are in the order of the
    /// file.
    order: Vec<usize>,
    rows_left: u64,
    /// The row groups that are read.
    groups: Range<usize>,
}

/// Returns options that skip the statistics and the Arrow metadata in the footer.
fn options() -> ArrowReaderOptions {
    ArrowReaderOptions::new()
        .with_skip_arrow_metadata(true)
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
}

/// Returns the metadata of a plain Parquet file, with all statistics.
pub(super) fn whole_metadata(input: &Input, budget: &Budget) -> Result<ParquetMetaData> {
    let bytes = input.compressed_bytes().unwrap_or(0);
    let allowance = Allowance::new(budget, PAGES)?;
    let file = ParquetFile::new(input.open_pieces()?, bytes, input.name(), piece_limit(budget), allowance);
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let found = ArrowReaderMetadata::load(&Footer(&file), options);
    let found = found.map_err(|reported| file.error(reported))?;
    Ok(ParquetMetaData::clone(found.metadata()))
}

/// Returns the columns of a Parquet file with the types that its readers return.
///
/// # Errors
/// Returns a message if the schema of the file has no counterpart in Arrow.
pub(crate) fn read_schema(metadata: &FileMetaData) -> ParquetResult<Schema> {
    let schema = parquet_to_arrow_schema(metadata.schema_descr(), None)?;
    let plain = |field: &Arc<Field>| {
        let kind = super::types::plain_type(field.data_type());
        Field::new(field.name(), kind, field.is_nullable())
    };
    let fields = with_times(&schema, metadata).fields().iter().map(plain).collect::<Vec<_>>();
    Ok(Schema::new(fields))
}

impl ParquetSource {
    pub fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let seekable = "Parquet must be a plain file, since its footer is read first: not standard input, a pipe or a compressed file";
        let Some(bytes) = input.compressed_bytes() else {
            // If the path does not exist, opening it gives an error that says so.
            input.open_pieces()?;
            return Err(Error::unsupported(input.name(), seekable));
        };
        let allowance = Allowance::new(budget, PAGES)?;
        let file =
            ParquetFile::new(input.open_pieces()?, bytes, input.name(), piece_limit(budget), allowance);
        let found = ArrowReaderMetadata::load(&Footer(&file), options()).map_err(|reported| {
            let packed = input.path().is_some_and(|path| {
                path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gz") || ending == "zst")
            });
            // The metadata may take half of the budget. The other half is for the rest of the job.
            let held = |bytes| 2 * METADATA_BYTES_PER_FOOTER_BYTE * bytes;
            let needs = |bytes| PageMemory { piece_bytes: bytes, held_bytes: held(bytes) };
            match packed {
                true => Error::unsupported(input.name(), seekable),
                false => enough(file.error(reported), needs, budget, file.reserved_bytes()),
            }
        })?;
        let mut rows_left = 0u64;
        for group in found.metadata().row_groups() {
            let rows = u64::try_from(group.num_rows())
                .map_err(|_| file.error("a row group has a negative length"))?;
            rows_left = rows_left.saturating_add(rows);
        }
        Ok(ParquetSource {
            file: Arc::new(file),
            budget: budget.clone(),
            metadata: found.metadata().clone(),
            schema: with_times(found.schema(), found.metadata().file_metadata()),
            reader: None,
            chosen: (Vec::new(), 0),
            order: Vec::new(),
            groups: 0..found.metadata().row_groups().len(),
            rows_left,
        })
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns, for each column, the smallest and the largest value according to the statistics of all row groups. The
    /// result is `None` for a column that has no statistics or does not contain whole numbers. The statistics may be
    /// wrong.
    pub fn ranges_of(&self, columns: &[Option<usize>]) -> Result<Vec<Option<(i128, i128)>>> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        let leaf = |column: usize| {
            let mut leaves =
                (0..descriptor.num_columns()).filter(|&leaf| descriptor.get_column_root_idx(leaf) == column);
            leaves.next().filter(|_| leaves.next().is_none())
        };
        let leaves: Vec<Option<usize>> = columns.iter().map(|column| leaf((*column)?)).collect();
        let wanted: Vec<usize> = leaves.iter().copied().flatten().collect();
        let options = options().with_column_stats_policy(ParquetStatisticsPolicy::skip_except(&wanted));
        let found = ArrowReaderMetadata::load(&Footer(&self.file), options);
        let found = found.map_err(|reported| self.file.error(reported))?;
        let range = |(column, leaf): (&Option<usize>, &Option<usize>)| {
            let is_unsigned = self.schema.field((*column)?).data_type().is_unsigned_integer();
            range_in(found.metadata(), (*leaf)?, is_unsigned)
        };
        Ok(columns.iter().zip(&leaves).map(range).collect())
    }

    pub fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Returns the statistics of each row group for the columns at the positions `columns`.
    pub fn group_values(&self, columns: &[Option<usize>]) -> Result<Vec<Option<GroupValues>>> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        let leaf = |column: usize| {
            let leaves = 0..descriptor.num_columns();
            let mut leaves = leaves.filter(|&leaf| descriptor.get_column_root_idx(leaf) == column);
            leaves.next().filter(|_| leaves.next().is_none())
        };
        let leaves: Vec<Option<usize>> = columns.iter().map(|column| column.and_then(leaf)).collect();
        let wanted: Vec<usize> = leaves.iter().flatten().copied().collect();
        let options = options().with_column_stats_policy(ParquetStatisticsPolicy::skip_except(&wanted));
        let found = ArrowReaderMetadata::load(&Footer(&self.file), options);
        let found = found.map_err(|reported| self.file.error(reported))?;
        let values = |(column, leaf): (&Option<usize>, Option<usize>)| match (column, leaf) {
            (Some(column), Some(leaf)) => self.values_of(*column, leaf, found.metadata().row_groups()),
            _ => Ok(None),
        };
        columns.iter().zip(leaves).map(values).collect()
    }

    fn values_of(
        &self,
        column: usize,
        leaf: usize,
        groups: &[RowGroupMetaData],
    ) -> Result<Option<GroupValues>> {
        let field = self.schema.field(column);
        // Some writers store only the deprecated statistics, which do not define the order of all types.
        let is_old = |group: &RowGroupMetaData| {
            group.column(leaf).statistics().is_some_and(Statistics::is_min_max_deprecated)
        };
        if groups.iter().any(is_old) || !super::types::is_flat(&super::types::plain_type(field.data_type())) {
            return Ok(None);
        }
        let fail = |reported| self.file.error(reported);
        let descriptor = self.metadata.file_metadata().schema_descr();
        let converter = StatisticsConverter::try_new(field.name(), &self.schema, descriptor)
            .map_err(fail)?
            .with_missing_null_counts_as_zero(false);
        let plain = |values: ArrayRef| {
            let values = cast(&values, &super::types::plain_type(field.data_type()));
            values.map_err(|error| self.file.error(error.to_string()))
        };
        Ok(Some(GroupValues {
            smallest: plain(converter.row_group_mins(groups).map_err(fail)?)?,
            largest: plain(converter.row_group_maxes(groups).map_err(fail)?)?,
            nulls: converter.row_group_null_counts(groups).map_err(fail)?,
            rows: groups.iter().map(|group| group.num_rows().max(0) as u64).collect(),
        }))
    }

    pub fn position(&self) -> u64 {
        self.file.position()
    }

    /// Divides the bytes of all row groups into `count` parts of equal size. Restricts reading to the row groups whose
    /// first byte lies in part `number`, counted from 0.
    pub fn take_part(&mut self, number: usize, count: usize) {
        let groups = self.metadata.row_groups();
        let bytes = |group: &RowGroupMetaData| group.compressed_size().max(0) as u64;
        let all: u64 = groups.iter().map(bytes).fold(0, u64::saturating_add);
        let border = |part: usize| {
            let before = (all as u128 * part as u128 / count.max(1) as u128) as u64;
            let mut sum = 0u64;
            groups
                .iter()
                .take_while(|group| {
                    let is_before = sum < before;
                    sum = sum.saturating_add(bytes(group));
                    is_before
                })
                .count()
        };
        let end = if number + 1 == count { groups.len() } else { border(number + 1) };
        self.take_groups(border(number)..end);
    }

    /// Restricts reading to these row groups.
    pub fn take_groups(&mut self, groups: Range<usize>) {
        let rows = |group: &RowGroupMetaData| group.num_rows().max(0) as u64;
        self.rows_left =
            self.metadata.row_groups()[groups.clone()].iter().map(rows).fold(0, u64::saturating_add);
        self.groups = groups;
    }

    /// Returns the byte range of a row group in the file, from its first page to its last page.
    pub fn bytes_of(&self, group: usize) -> Result<Range<u64>> {
        let mut all: Option<Range<u64>> = None;
        for chunk in self.metadata.row_group(group).columns() {
            let Range { start, end } = self.range_of(chunk)?;
            all = Some(all.map_or(start..end, |all| all.start.min(start)..all.end.max(end)));
        }
        Ok(all.unwrap_or_default())
    }

    /// Returns the byte range of each chosen column of a row group.
    pub fn chunks_of(&self, group: usize) -> Result<Vec<Range<u64>>> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        let leaves = self.metadata.row_group(group).columns().iter().enumerate();
        let chosen =
            leaves.filter(|(leaf, _)| self.chosen.0.contains(&descriptor.get_column_root_idx(*leaf)));
        chosen.map(|(_, chunk)| self.range_of(chunk)).collect()
    }

    fn range_of(&self, chunk: &ColumnChunkMetaData) -> Result<Range<u64>> {
        let range = || {
            let start = u64::try_from(start_of(chunk)).ok()?;
            let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
            (end <= self.file.bytes).then_some(start..end)
        };
        range().ok_or_else(|| self.file.error("a column chunk lies beyond the end of the file"))
    }

    pub fn rows_of_groups(&self) -> Vec<u64> {
        self.metadata.row_groups().iter().map(|group| group.num_rows().max(0) as u64).collect()
    }

    pub fn row_groups(&self) -> usize {
        self.metadata.row_groups().len()
    }

    /// Begins to read the row groups `groups`. The chosen columns do not change.
    pub fn restart(&mut self, groups: Range<usize>) -> Result<()> {
        self.take_groups(groups);
        self.start()
    }

    /// Hints to the operating system that the chosen columns of a row group will be read soon. The hints of all columns
    /// together cover at most a quarter of the budget.
    pub fn will_read(&self, group: usize) {
        let Some(group) = self.metadata.row_groups().get(group) else { return };
        let columns = &self.chosen.0;
        for (leaf, chunk) in group.columns().iter().enumerate() {
            let root = self.metadata.file_metadata().schema_descr().get_column_root_idx(leaf);
            if columns.contains(&root) {
                self.file.will_read(chunk, self.file.piece_limit / columns.len() as u64);
            }
        }
    }

    /// Returns how many rows of the selected row groups were not read yet.
    pub fn rows(&self) -> u64 {
        self.rows_left
    }

    /// Returns the number of the row in the file with which the selected row groups begin.
    pub fn first_row(&self) -> u64 {
        let before = &self.metadata.row_groups()[..self.groups.start];
        before.iter().map(|group| group.num_rows().max(0) as u64).fold(0, u64::saturating_add)
    }

    pub fn choose(&mut self, columns: &[usize], batch_rows: usize) -> Result<()> {
        let mut in_file_order = columns.to_vec();
        in_file_order.sort_unstable();
        in_file_order.dedup();
        self.order =
            columns.iter().map(|column| in_file_order.partition_point(|other| other < column)).collect();

        self.chosen = (in_file_order, batch_rows);
        self.start()
    }

    fn start(&mut self) -> Result<()> {
        let (in_file_order, batch_rows) = &self.chosen;
        let descriptor = self.metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::roots(descriptor, in_file_order.iter().copied());
        let fields = text_as_views(self.schema.fields());
        let levels = parquet_to_arrow_field_levels(descriptor, mask.clone(), Some(&fields))
            .map_err(|reported| self.file.error(reported))?;
        let is_list = |leaf: usize| descriptor.column(leaf).max_rep_level() > 0 && mask.leaf_included(leaf);
        let is_text = |leaf: usize| {
            descriptor.column(leaf).physical_type() == parquet::basic::Type::BYTE_ARRAY
                && mask.leaf_included(leaf)
        };
        let leaves = descriptor.num_columns();
        let is_read = |leaf: &usize| mask.leaf_included(*leaf);
        self.file.set_windows((0..leaves).filter(is_read).count(), &self.budget);
        self.file.set_columns((0..leaves).map(|leaf| is_text(leaf) || is_list(leaf)));
        let text_leaves: Vec<usize> = (0..leaves).filter(|&leaf| is_text(leaf)).collect();
        let list_leaves: Vec<usize> = (0..leaves).filter(|&leaf| is_list(leaf)).collect();
        let batch_rows = (*batch_rows).min(self.text_rows(&text_leaves)).min(self.list_rows(&list_leaves));
        let groups = RowGroupPages {
            file: self.file.clone(),
            metadata: self.metadata.clone(),
            range: self.groups.clone(),
        };
        let reader = ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, batch_rows, None)
            .map_err(|reported| self.file.error(reported))?;
        self.reader = Some(reader);
        Ok(())
    }

    /// Returns the number of rows in a batch with columns of strings. If all strings have the average length, the
    /// strings of such a batch take half of the size limit of a page.
    fn text_rows(&self, leaves: &[usize]) -> usize {
        let groups = || self.metadata.row_groups().iter();
        let bytes = |group: &RowGroupMetaData| {
            leaves.iter().map(|&leaf| group.column(leaf).uncompressed_size().max(0) as u64).sum::<u64>()
        };
        let row_bytes =
            groups().map(|group| bytes(group) / (group.num_rows().max(1) as u64)).max().unwrap_or(0);
        (self.file.piece_limit / 2 / row_bytes.max(1)).max(1) as usize
    }

    /// Returns the number of rows in a batch with columns of lists. If all lists have the average length, the lists of
    /// such a batch take half of the size limit of a page.
    fn list_rows(&self, leaves: &[usize]) -> usize {
        let bytes = |group: &RowGroupMetaData| {
            let bytes = |&leaf: &usize| {
                (group.column(leaf).num_values().max(0) as u64).saturating_mul(LIST_VALUE_BYTES)
            };
            leaves.iter().map(bytes).fold(0, u64::saturating_add)
        };
        let groups = self.metadata.row_groups().iter();
        let row_bytes =
            groups.map(|group| bytes(group) / (group.num_rows().max(1) as u64)).max().unwrap_or(0);
        (self.file.piece_limit / 2 / row_bytes.max(1)).max(1) as usize
    }

    /// Converts an error of the library to the error of this crate that caused it. The resulting error names a budget
    /// in which the chosen columns of all row groups can be read.
    fn refusal(&self, reported: impl ToString) -> Error {
        let needs = |bytes| {
            let descriptor = self.metadata.file_metadata().schema_descr();
            let is_chosen = |leaf: &usize| self.chosen.0.contains(&descriptor.get_column_root_idx(*leaf));
            let leaves: Vec<usize> = (0..descriptor.num_columns()).filter(is_chosen).collect();
            PageMemory::of(&self.file, &self.metadata, &leaves, self.chosen.1, bytes)
        };
        enough(self.file.error(reported), needs, &self.budget, self.file.reserved_bytes())
    }

    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.file.next_batch();
        let reader = self.reader.as_mut().expect("columns are chosen before batches are read");
        let Some(batch) = reader.next() else {
            if self.rows_left > 0 {
                return Err(self.file.error(format!("{} rows are missing at the end", self.rows_left)));
            }
            return Ok(None);
        };
        let batch = batch.map_err(|reported| self.refusal(reported))?;
        self.rows_left = self
            .rows_left
            .checked_sub(batch.num_rows() as u64)
            .ok_or_else(|| self.file.error("there are more rows than the footer counts"))?;
        batch.project(&self.order).map(Some).map_err(|reported| self.file.error(reported))
    }
}

/// Adds type information that Parquet itself does not store. It consists of time zones, and of durations that are
/// stored as whole numbers. The information comes from the metadata `ARROW:schema` of the file.
///
/// Times of 96 bits become microseconds. The library (parquet 59.3) would choose nanoseconds. Nanoseconds in 64 bits
/// end in the year 2262, and later times would wrap around.
fn with_times(schema: &Schema, metadata: &FileMetaData) -> Schema {
    let descriptor = metadata.schema_descr();
    let said = parquet_to_arrow_schema(descriptor, metadata.key_value_metadata()).ok();
    let field = |(place, field): (usize, &Arc<Field>)| {
        use DataType::{Date64, Duration, Time32, Time64, Timestamp};
        let said = said.as_ref().and_then(|said| said.fields().get(place)).map(|said| said.data_type());
        let is_wide = (0..descriptor.num_columns()).any(|leaf| {
            descriptor.get_column_root_idx(leaf) == place
                && descriptor.column(leaf).physical_type() == parquet::basic::Type::INT96
        });
        let kind = match (field.data_type(), said) {
            (Timestamp(..), Some(Timestamp(_, zone))) if is_wide => {
                Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            (Timestamp(_, zone), _) if is_wide => Timestamp(TimeUnit::Microsecond, zone.clone()),
            (own, Some(said @ (Timestamp(..) | Duration(_) | Date64 | Time32(_) | Time64(_))))
                if !own.is_nested() =>
            {
                said.clone()
            }
            (own, _) => own.clone(),
        };
        field.as_ref().clone().with_data_type(kind)
    };
    Schema::new(schema.fields().iter().enumerate().map(field).collect::<Vec<_>>())
}

/// The statistics of a column, one value for each row group. A value is null if the row group has no statistics. The
/// statistics may be wrong.
#[derive(Clone, Debug)]
pub struct GroupValues {
    /// The smallest value of each row group, or a bound that is smaller.
    pub smallest: ArrayRef,
    /// The largest value of each row group, or a bound that is larger.
    pub largest: ArrayRef,
    /// The number of nulls in each row group. The element is null if the file does not state the number.
    pub nulls: UInt64Array,
    /// The number of rows in each row group.
    pub rows: Vec<u64>,
}

fn text_as_views(fields: &Fields) -> Fields {
    let as_view = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => {
            Arc::new(Field::clone(field).with_data_type(DataType::Utf8View))
        }
        _ => field.clone(),
    };
    fields.iter().map(as_view).collect()
}

/// Row groups of a file, whose columns are read through [`Pages`].
struct RowGroupPages {
    file: Arc<ParquetFile>,
    metadata: Arc<ParquetMetaData>,
    range: Range<usize>,
}

impl RowGroupPages {
    fn chosen(&self) -> &[RowGroupMetaData] {
        &self.metadata.row_groups()[self.range.clone()]
    }
}

impl RowGroups for RowGroupPages {
    fn num_rows(&self) -> usize {
        self.chosen().iter().map(|group| group.num_rows().max(0) as usize).fold(0, usize::saturating_add)
    }

    fn column_chunks(&self, column: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let (file, metadata) = (self.file.clone(), self.metadata.clone());
        Ok(Box::new(Chunks { file, metadata, column, groups: self.range.clone() }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.chosen().iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

struct Chunks {
    file: Arc<ParquetFile>,
    metadata: Arc<ParquetMetaData>,
    column: usize,
    groups: Range<usize>,
}

impl Iterator for Chunks {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.metadata.row_group(self.groups.next()?);
        if !self.groups.is_empty() {
            let next = self.metadata.row_group(self.groups.start).column(self.column);
            self.file.will_read(next, self.file.piece_limit);
        }
        let descriptor = self.metadata.file_metadata().schema_descr().column(self.column);
        let chunk = group.column(self.column);
        let rows = group.num_rows().max(0) as usize;
        let pages = Pages::new(&self.file, self.column, &descriptor, chunk, rows);
        Some(pages.map(|pages| Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for Chunks {}

/// Returns the smallest and the largest value of a column of whole numbers, according to the statistics of all row
/// groups.
fn range_in(metadata: &ParquetMetaData, leaf: usize, is_unsigned: bool) -> Option<(i128, i128)> {
    let mut all: Option<(i128, i128)> = None;
    for group in metadata.row_groups().iter().filter(|group| group.num_rows() > 0) {
        let (min, max) = match group.column(leaf).statistics()? {
            // The deprecated statistics do not define the order of unsigned numbers.
            old if is_unsigned && old.is_min_max_deprecated() => return None,
            Statistics::Int32(found) => {
                let wide = |&value: &i32| if is_unsigned { value as u32 as i128 } else { value as i128 };
                (wide(found.min_opt()?), wide(found.max_opt()?))
            }
            Statistics::Int64(found) => {
                let wide = |&value: &i64| if is_unsigned { value as u64 as i128 } else { value as i128 };
                (wide(found.min_opt()?), wide(found.max_opt()?))
            }
            _ => return None,
        };
        all = Some(all.map_or((min, max), |(least, most)| (least.min(min), most.max(max))));
    }
    all
}
