//! The plan node that reads files. Its partitions claim row groups or whole files one after the other.

use std::{
    fmt::{self, Formatter},
    ops::Range,
    sync::{Arc, Mutex},
};

use arrow::{
    array::{ArrayRef, BooleanArray, UInt64Array},
    datatypes::{Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use datafusion::{
    common::{Column, ScalarValue, Statistics, pruning::PruningStatistics, tree_node::TreeNodeRecursion},
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::utils::collect_columns,
    physical_optimizer::pruning::PruningPredicateBuilder,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::stream;
use inshore_tables::{GroupValues, Input, TableReader};

use super::{files::Files, properties};
use crate::{Error, rules::floats};

/// The plan node that reads the files of a table.
#[derive(Debug)]
pub(crate) struct Scan {
    files: Arc<Files>,
    selection: Arc<Selection>,
    schema: SchemaRef,
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
    partitions: usize,
    unclaimed: Arc<Mutex<UnclaimedUnits>>,
}

/// The part of a table that is read: the needed columns of those row groups in which the predicate may be true.
#[derive(Debug)]
struct Selection {
    columns: Vec<String>,
    predicate: Option<Arc<dyn PhysicalExpr>>,
}

impl Selection {
    /// Opens a file to read the needed columns. A scan that needs only the number of rows reads the first column.
    fn reader(&self, files: &Files, input: &Input) -> crate::Result<TableReader> {
        let any = [files.schema.field(0).name().clone()];
        files.reader(input, if self.columns.is_empty() { &any } else { &self.columns })
    }

    /// Returns the indices of the row groups of a Parquet file that are read.
    fn groups(&self, files: &Files, reader: &TableReader) -> Result<Vec<usize>> {
        let groups = reader.row_groups().unwrap_or(0);
        let all = || (0..groups).collect();
        let Some(predicate) = &self.predicate else { return Ok(all()) };
        let schema = files.schema.clone();
        let pruning = PruningPredicateBuilder::new().with_file_schema(schema).build(predicate.clone());
        let Some(pruning) = pruning else { return Ok(all()) };
        let names: Vec<String> =
            collect_columns(predicate).iter().map(|column| column.name().to_string()).collect();
        let values = reader.group_values(&names).map_err(Error::from)?;
        let chosen = pruning.prune(&RowGroupBounds { names, values, groups })?;
        Ok((0..groups).filter(|&group| chosen[group]).collect())
    }
}

/// Describes which part of a table's files a fragment reads.
#[derive(Clone, Debug)]
pub struct FragmentScan {
    files: Arc<Files>,
    selection: Arc<Selection>,
}

impl FragmentScan {
    /// Returns the byte ranges within `part` that will be read, in order. For Parquet, these are the needed columns
    /// of the needed row groups; for other formats, all bytes. `input` must contain at least the footer of a Parquet
    /// file.
    ///
    /// # Errors
    /// Returns an error if the footer is damaged.
    pub fn ranges(&self, input: &Input, part: &Range<u64>) -> crate::Result<Vec<Range<u64>>> {
        if input.extension() != "parquet" {
            return Ok(vec![part.clone()]);
        }
        let reader = self.selection.reader(&self.files, input)?;
        let mut ranges = Vec::new();
        for group in self.selection.groups(&self.files, &reader)? {
            let place = reader.row_group_bytes(group)?;
            if place.is_some_and(|place| part.start <= place.start && place.end <= part.end) {
                ranges.extend(reader.row_group_chunks(group)?);
            }
        }
        Ok(ranges)
    }
}

/// The files and row groups that no partition has yet claimed.
#[derive(Debug, Default)]
struct UnclaimedUnits {
    /// The index of the next file.
    file: usize,
    /// The unclaimed row groups of the current file, in reverse order.
    groups: Vec<ScanUnit>,
}

impl UnclaimedUnits {
    /// Returns the index of the row group that will be claimed next, if it belongs to this file.
    fn next_group(&self, file: usize) -> Option<usize> {
        let unit = self.groups.last().filter(|unit| unit.file == file)?;
        Some(unit.groups.as_ref()?.start)
    }
}

/// The part of a file that one partition reads at a time.
#[derive(Clone, Debug)]
struct ScanUnit {
    file: usize,
    input: Input,
    /// A range of row group indices. `None` means the whole file.
    groups: Option<Range<usize>>,
    /// The bytes that are added to the progress counter after this unit is read.
    bytes: u64,
}

impl Scan {
    pub fn new(
        files: Files,
        schema: Schema,
        columns: Vec<String>,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        statistics: Statistics,
        partitions: usize,
    ) -> Scan {
        let schema = Arc::new(schema);
        Scan {
            files: Arc::new(files),
            selection: Arc::new(Selection { columns, predicate }),
            properties: properties(schema.clone(), partitions),
            schema,
            statistics: Arc::new(statistics),
            partitions,
            unclaimed: Arc::default(),
        }
    }
}

impl Scan {
    /// Returns the statistics that the files contain.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the total bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Describes the byte ranges that the scan will read.
    pub fn needed(&self) -> FragmentScan {
        // The copy has no feed. The source of the files may keep the copy, and a feed in the copy would hide the end
        // of the scan from the source.
        let mut files = self.files.again();
        files.feed = None;
        FragmentScan { files: Arc::new(files), selection: self.selection.clone() }
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        let files = &self.files.inputs;
        write!(text, "Scan: {}", files.first().map_or("pieces", |file| file.name()))?;
        if files.len() > 1 {
            write!(text, " and {} more", files.len() - 1)?;
        }
        let Selection { columns, predicate } = &*self.selection;
        write!(text, ", columns=[{}]", columns.join(", "))?;
        if let Some(predicate) = predicate {
            write!(text, ", row groups where {predicate}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        "Scan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.selection.predicate.as_ref().map_or(Ok(TreeNodeRecursion::Continue), visit)
    }

    /// Creates a scan that reads from the start, for a plan that runs again.
    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Scan {
            files: self.files.clone(),
            selection: self.selection.clone(),
            schema: self.schema.clone(),
            statistics: self.statistics.clone(),
            properties: self.properties.clone(),
            partitions: self.partitions,
            unclaimed: Arc::default(),
        }))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        Ok(match partition {
            None => self.statistics.clone(),
            Some(_) => Arc::new(Statistics::new_unknown(&self.schema)),
        })
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let reading = PartitionReader {
            files: self.files.clone(),
            selection: self.selection.clone(),
            schema: self.schema.clone(),
            unclaimed: self.unclaimed.clone(),
            open: None,
            unit: None,
        };
        let batches = stream::try_unfold(reading, |mut reading| async move {
            Ok(reading.next()?.map(|batch| (batch, reading)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches)))
    }
}

/// The state of one partition that reads files.
struct PartitionReader {
    files: Arc<Files>,
    selection: Arc<Selection>,
    schema: SchemaRef,
    unclaimed: Arc<Mutex<UnclaimedUnits>>,
    /// The index and the reader of the file that was opened last.
    open: Option<(usize, TableReader)>,
    unit: Option<ScanUnit>,
}

impl PartitionReader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let job = self.files.job.clone();
        loop {
            job.check_cancelled().map_err(Error::from)?;
            if self.unit.is_none() {
                self.unit = self.claim()?;
                let Some(unit) = &self.unit else {
                    self.open = None;
                    return Ok(None);
                };
                let unit = unit.clone();
                self.begin(&unit)?;
            }
            let (_, reader) = self.open.as_mut().expect("opened with the unit");
            match reader.next_batch().map_err(Error::from)? {
                Some(batch) => return Ok(Some(self.select_columns(&batch)?)),
                None => {
                    let unit = self.unit.take().expect("looked at above");
                    job.progress().add(unit.bytes);
                }
            }
        }
    }

    /// Returns only the columns of the plan. A batch without columns keeps its number of rows.
    fn select_columns(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns()[..self.schema.fields().len()].to_vec();
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn begin(&mut self, unit: &ScanUnit) -> Result<()> {
        if self.open.as_ref().is_none_or(|(file, _)| *file != unit.file) {
            // The previous file is closed first, to free its memory.
            self.open = None;
            let reader = self.selection.reader(&self.files, &unit.input)?;
            self.open = Some((unit.file, reader));
        }
        let (_, reader) = self.open.as_mut().expect("set above");
        if let Some(groups) = &unit.groups {
            reader.will_read_row_group(groups.start);
            let next = self.unclaimed.lock().expect("no panic under this lock").next_group(unit.file);
            if let Some(next) = next {
                reader.will_read_row_group(next);
            }
            reader.read_row_groups(groups.clone()).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Claims the next row group or file that no partition has claimed.
    fn claim(&mut self) -> Result<Option<ScanUnit>> {
        let unclaimed = self.unclaimed.clone();
        let mut unclaimed = unclaimed.lock().expect("no panic under this lock");
        loop {
            if let Some(unit) = unclaimed.groups.pop() {
                return Ok(Some(unit));
            }
            if self.files.feed.is_some() {
                // The previous file may be in memory, which must be freed before the feed returns another file.
                self.open = None;
            }
            let file = unclaimed.file;
            let Some(input) = self.files.file(file)? else { return Ok(None) };
            unclaimed.file += 1;
            unclaimed.groups = self.units(file, input)?;
        }
    }

    /// Splits a file into units that may have matching rows, in reverse order.
    fn units(&mut self, file: usize, input: Input) -> Result<Vec<ScanUnit>> {
        let bytes = input.compressed_bytes().unwrap_or(0);
        // Only Parquet files have row groups. A file of another format is opened once, by the partition that reads
        // its rows.
        if input.extension() != "parquet" {
            return Ok(vec![ScanUnit { file, input, groups: None, bytes }]);
        }
        let reader = self.selection.reader(&self.files, &input)?;
        let groups = self.selection.groups(&self.files, &reader)?;
        let share = bytes / reader.row_groups().unwrap_or(0).max(1) as u64;
        let mut units = Vec::new();
        for group in groups.into_iter().rev() {
            // Row groups that are not on this machine are skipped, since other nodes read them.
            let chunks = reader.row_group_chunks(group).map_err(Error::from)?;
            if chunks.iter().all(|chunk| input.holds(chunk)) {
                units.push(ScanUnit {
                    file,
                    input: input.clone(),
                    groups: Some(group..group + 1),
                    bytes: share,
                });
            }
        }
        self.open = Some((file, reader));
        Ok(units)
    }
}

/// The statistics of a file's row groups, in the form that DataFusion's pruning requires.
struct RowGroupBounds {
    names: Vec<String>,
    values: Vec<Option<GroupValues>>,
    groups: usize,
}

impl RowGroupBounds {
    fn of(&self, column: &Column) -> Option<&GroupValues> {
        let place = self.names.iter().position(|name| name == column.name())?;
        self.values[place].as_ref()
    }
}

impl PruningStatistics for RowGroupBounds {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column).map(|values| floats::least(&values.smallest))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column).map(|values| floats::most(&values.largest))
    }

    fn num_containers(&self) -> usize {
        self.groups
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column).map(|values| Arc::new(values.nulls.clone()) as ArrayRef)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let rows = &self.values.iter().flatten().next()?.rows;
        Some(Arc::new(UInt64Array::from(rows.clone())))
    }

    fn contained(&self, _: &Column, _: &std::collections::HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
