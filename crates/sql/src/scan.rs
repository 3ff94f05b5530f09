//! Reading files of a table: partitions take row groups, or whole files, as they get to them.

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

use crate::{Error, files::Files, floats, once::properties};

/// Reads a table.
#[derive(Debug)]
pub(crate) struct Scan {
    files: Arc<Files>,
    selection: Arc<Selection>,
    schema: SchemaRef,
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
    partitions: usize,
    work: Arc<Mutex<Work>>,
}

/// What of a table is read: these columns, of row groups that can have rows for which the predicate is true.
#[derive(Debug)]
struct Selection {
    columns: Vec<String>,
    predicate: Option<Arc<dyn PhysicalExpr>>,
}

impl Selection {
    /// A reader of a file. Where nothing but the number of rows is wanted, of a column that tells.
    fn reader(&self, files: &Files, input: &Input) -> crate::Result<TableReader> {
        let any = [files.schema.field(0).name().clone()];
        files.reader(input, if self.columns.is_empty() { &any } else { &self.columns })
    }

    /// The row groups of a file of Parquet that are read.
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
        let chosen = pruning.prune(&Facts { names, values, groups })?;
        Ok((0..groups).filter(|&group| chosen[group]).collect())
    }
}

/// What a fragment reads of the files of its table.
#[derive(Clone, Debug)]
pub struct Needed {
    files: Arc<Files>,
    selection: Arc<Selection>,
}

impl Needed {
    /// Those bytes of a part of a file that will be read, in order, of an input that has at least its footer: columns and row groups of
    /// Parquet, and all bytes of other files.
    ///
    /// # Errors
    /// Where the footer is damaged.
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

/// What is left to be read.
#[derive(Debug, Default)]
struct Work {
    /// The file that comes next.
    file: usize,
    /// Of that, or of the one before it: the row groups that nobody took, the last one first.
    groups: Vec<Unit>,
}

impl Work {
    /// The row group of a file that is taken next.
    fn next_group(&self, file: usize) -> Option<usize> {
        let unit = self.groups.last().filter(|unit| unit.file == file)?;
        Some(unit.groups.as_ref()?.start)
    }
}

/// What one partition reads at once.
#[derive(Clone, Debug)]
struct Unit {
    file: usize,
    input: Input,
    /// None where a file is read as a whole.
    groups: Option<Range<usize>>,
    /// Bytes of the file that it stands for.
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
            work: Arc::default(),
        }
    }
}

impl Scan {
    /// What files say of their columns.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// What is read of them.
    pub fn needed(&self) -> Needed {
        // Without what gives files: who gives them may hold this, and would never be told that nobody wants more.
        let mut files = self.files.again();
        files.feed = None;
        Needed { files: Arc::new(files), selection: self.selection.clone() }
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

    /// To be read from the start, as a plan that runs again asks for.
    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Scan {
            files: self.files.clone(),
            selection: self.selection.clone(),
            schema: self.schema.clone(),
            statistics: self.statistics.clone(),
            properties: self.properties.clone(),
            partitions: self.partitions,
            work: Arc::default(),
        }))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        Ok(match partition {
            None => self.statistics.clone(),
            Some(_) => Arc::new(Statistics::new_unknown(&self.schema)),
        })
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let reading = Reading {
            files: self.files.clone(),
            selection: self.selection.clone(),
            schema: self.schema.clone(),
            work: self.work.clone(),
            open: None,
            unit: None,
        };
        let batches = stream::try_unfold(reading, |mut reading| async move {
            Ok(reading.next()?.map(|batch| (batch, reading)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches)))
    }
}

/// One partition that reads.
struct Reading {
    files: Arc<Files>,
    selection: Arc<Selection>,
    schema: SchemaRef,
    work: Arc<Mutex<Work>>,
    /// The file that was opened last.
    open: Option<(usize, TableReader)>,
    unit: Option<Unit>,
}

impl Reading {
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
                Some(batch) => return Ok(Some(self.shaped(&batch)?)),
                None => {
                    let unit = self.unit.take().expect("looked at above");
                    job.progress().add(unit.bytes);
                }
            }
        }
    }

    /// The chosen columns; the number of rows where none is.
    fn shaped(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns()[..self.schema.fields().len()].to_vec();
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn begin(&mut self, unit: &Unit) -> Result<()> {
        if self.open.as_ref().is_none_or(|(file, _)| *file != unit.file) {
            // Memory of the one before goes first.
            self.open = None;
            let reader = self.selection.reader(&self.files, &unit.input)?;
            self.open = Some((unit.file, reader));
        }
        let (_, reader) = self.open.as_mut().expect("set above");
        if let Some(groups) = &unit.groups {
            reader.will_read_row_group(groups.start);
            let next = self.work.lock().expect("no panic under this lock").next_group(unit.file);
            if let Some(next) = next {
                reader.will_read_row_group(next);
            }
            reader.read_row_groups(groups.clone()).map_err(Error::from)?;
        }
        Ok(())
    }

    /// What nobody took yet.
    fn claim(&mut self) -> Result<Option<Unit>> {
        let work = self.work.clone();
        let mut work = work.lock().expect("no panic under this lock");
        loop {
            if let Some(unit) = work.groups.pop() {
                return Ok(Some(unit));
            }
            if self.files.feed.is_some() {
                // It may be in memory, which goes before there is more.
                self.open = None;
            }
            let file = work.file;
            let Some(input) = self.files.file(file)? else { return Ok(None) };
            work.file += 1;
            work.groups = self.units(file, input)?;
        }
    }

    /// The parts of a file that may hold rows that are looked for, the last one first.
    fn units(&mut self, file: usize, input: Input) -> Result<Vec<Unit>> {
        let bytes = input.compressed_bytes().unwrap_or(0);
        // CSV knows its columns from what it read: it is opened once, where it is read.
        if input.extension() != "parquet" {
            return Ok(vec![Unit { file, input, groups: None, bytes }]);
        }
        let reader = self.selection.reader(&self.files, &input)?;
        let groups = self.selection.groups(&self.files, &reader)?;
        let share = bytes / reader.row_groups().unwrap_or(0).max(1) as u64;
        let mut units = Vec::new();
        for group in groups.into_iter().rev() {
            // Of a file of which only parts are here, others have the rest.
            let chunks = reader.row_group_chunks(group).map_err(Error::from)?;
            if chunks.iter().all(|chunk| input.holds(chunk)) {
                units.push(Unit { file, input: input.clone(), groups: Some(group..group + 1), bytes: share });
            }
        }
        self.open = Some((file, reader));
        Ok(units)
    }
}

/// What the row groups of a file say about columns.
struct Facts {
    names: Vec<String>,
    values: Vec<Option<GroupValues>>,
    groups: usize,
}

impl Facts {
    fn of(&self, column: &Column) -> Option<&GroupValues> {
        let place = self.names.iter().position(|name| name == column.name())?;
        self.values[place].as_ref()
    }
}

impl PruningStatistics for Facts {
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
