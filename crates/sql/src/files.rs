//! Files as a table: what is known of them before they are read.

use std::{collections::HashSet, sync::Arc};

use arrow::{
    array::Array,
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{ColumnStatistics, DFSchema, ScalarValue, Statistics, stats::Precision},
    datasource::TableType,
    error::{DataFusionError, Result},
    logical_expr::{Expr, TableProviderFilterPushDown, utils::conjunction},
    physical_plan::{ExecutionPlan, PhysicalExpr},
};
use inshore_store::Job;
use inshore_tables::{GroupValues, Input, TableReader, is_readable};

use crate::{Error, feed::Feed, floats::of_statistics, scan::Scan};

/// Files with the same columns.
#[derive(Debug)]
pub(crate) struct Files {
    pub job: Job,
    pub inputs: Vec<Input>,
    /// What gives more files, instead of those.
    pub feed: Option<Arc<Feed>>,
    pub schema: SchemaRef,
    pub as_text: Vec<String>,
    /// Rows of all files, where they say so.
    rows: Option<u64>,
    /// Whether the files have row groups, so that many threads can read one.
    has_groups: bool,
    /// Whether no member of JSON lines may be left out where all columns are read.
    pub has_whole_rows: bool,
    /// Whether plans know of rows alone, as they do of tables that are elsewhere: then both sides make the same plan.
    pub tells_rows_alone: bool,
}

/// Rows of a batch, read, made or handed on.
pub(crate) const BATCH_ROWS: usize = 8 << 10;

impl Files {
    pub fn open(job: &Job, inputs: Vec<Input>, as_text: &[String]) -> crate::Result<Files> {
        let mut files = Files {
            job: job.clone(),
            inputs,
            feed: None,
            schema: Arc::new(Schema::empty()),
            as_text: as_text.to_vec(),
            rows: Some(0),
            has_groups: true,
            has_whole_rows: false,
            tells_rows_alone: false,
        };
        let mut first: Option<SchemaRef> = None;
        for input in &files.inputs {
            let described = TableReader::describe(input, as_text, job.budget())?;
            let schema = &described.schema;
            check_names(input, schema)?;
            match &first {
                None => first = Some(schema.clone()),
                Some(first) if first == schema => {}
                Some(first) if is_guess(input, first, schema) => {
                    let what = inshore_tables::Error::Contradiction {
                        place: input.name().to_string(),
                        expected: format!("the columns {}, as in the first file", list(first)),
                        found: list(schema),
                    };
                    return Err(what.into());
                }
                Some(first) => {
                    let (name, found, expected) = (input.name(), list(schema), list(first));
                    let text = format!(
                        "{name}: its columns are not those of the first file: expected {expected}, got {found}"
                    );
                    return Err(Error::Query(text));
                }
            }
            files.rows = files.rows.zip(described.rows).map(|(all, rows)| all + rows);
            files.has_groups &= described.row_groups.is_some();
        }
        files.schema = first.ok_or_else(|| Error::Query("no file is given".to_string()))?;
        Ok(files)
    }

    /// Files with these columns, as they are named.
    pub fn fed(job: &Job, schema: &SchemaRef, feed: Feed) -> Files {
        Files {
            job: job.clone(),
            inputs: Vec::new(),
            feed: Some(Arc::new(feed)),
            schema: schema.clone(),
            as_text: Vec::new(),
            rows: None,
            has_groups: false,
            has_whole_rows: false,
            tells_rows_alone: true,
        }
    }

    /// Bytes of all files, as far as they are known.
    pub fn bytes(&self) -> u64 {
        let known = self.inputs.iter().filter_map(|input| input.compressed_bytes()).sum();
        self.feed.as_ref().map_or(known, |feed| feed.bytes().unwrap_or(0))
    }

    /// The file of this number.
    pub fn file(&self, number: usize) -> crate::Result<Option<Input>> {
        match &self.feed {
            Some(feed) => Ok(feed.next().transpose()?),
            None => Ok(self.inputs.get(number).cloned()),
        }
    }

    /// A reader of chosen columns.
    pub fn reader(&self, input: &Input, columns: &[String]) -> crate::Result<TableReader> {
        let budget = self.job.budget();
        let input = input.clone().with_whole_rows(self.has_whole_rows);
        Ok(TableReader::open_stored(&input, Some(columns), &self.as_text, BATCH_ROWS, budget, (0, 1))?)
    }

    fn statistics(&self, columns: &[String]) -> crate::Result<Statistics> {
        let schema =
            self.schema.project(&self.places(columns)).map_err(|error| Error::Query(error.to_string()))?;
        let mut statistics = row_statistics(&schema, self.rows);
        if columns.is_empty() || self.rows.is_none() || self.tells_rows_alone {
            return Ok(statistics);
        }
        let mut known: Vec<Known> = Vec::new();
        for (number, input) in self.inputs.iter().enumerate() {
            let values = self.reader(input, columns)?.group_values(columns)?;
            let found = values.iter().map(|values| values.as_ref().map(Known::of).unwrap_or_default());
            match number {
                0 => known = found.collect(),
                _ => known = known.into_iter().zip(found).map(|(all, one)| all.and(one)).collect(),
            }
        }
        statistics.column_statistics = known.into_iter().map(Known::told).collect();
        Ok(statistics)
    }

    /// Rows of all files, where they say so.
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// The same, to be read once more.
    pub fn again(&self) -> Files {
        Files {
            inputs: self.inputs.clone(),
            feed: self.feed.clone(),
            job: self.job.clone(),
            schema: self.schema.clone(),
            as_text: self.as_text.clone(),
            ..*self
        }
    }

    fn places(&self, columns: &[String]) -> Vec<usize> {
        columns.iter().filter_map(|name| self.schema.index_of(name).ok()).collect()
    }
}

/// Refuses a file that has two columns of one name: nobody could ask for the second.
fn check_names(input: &Input, schema: &Schema) -> crate::Result<()> {
    let columns: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut seen = HashSet::new();
    let Some(column) = columns.iter().find(|name| !seen.insert(name.as_str())) else { return Ok(()) };
    let found = columns.iter().filter(|name| *name == column).count();
    let (file, column) = (input.name().to_string(), column.clone());
    Err(inshore_tables::Error::NoColumn { file, column, found, columns }.into())
}

/// Columns with their types, for people.
fn list(schema: &Schema) -> String {
    let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    fields.collect::<Vec<_>>().join(", ")
}

/// True where two files differ only in guessed types.
fn is_guess(input: &Input, first: &Schema, found: &Schema) -> bool {
    let names =
        |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    input.is_text() && names(first) == names(found)
}

/// Refuses columns of types that are not read.
pub(crate) fn check_readable(schema: &Schema, chosen: &[usize], file: &str) -> crate::Result<()> {
    let mut chosen = chosen.iter().map(|&index| schema.field(index));
    let unread = chosen.find(|field| !is_readable(field.data_type()));
    unread.map_or(Ok(()), |field| Err(inshore_tables::Error::unread_type(file, field).into()))
}

/// All filters of a scan as one expression over what statistics say of a table's columns.
pub(crate) fn predicate(
    state: &dyn Session,
    schema: &Schema,
    filters: &[Expr],
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(filter) = conjunction(filters.to_vec()) else { return Ok(None) };
    let schema = DFSchema::try_from(schema.clone())?;
    state.create_physical_expr(of_statistics(filter)?, &schema).map(Some)
}

/// What the number of rows alone tells.
pub(crate) fn row_statistics(schema: &Schema, rows: Option<u64>) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    if let Some(rows) = rows {
        statistics.num_rows = Precision::Exact(rows as usize);
        let width: usize = schema.fields().iter().map(|field| width(field)).sum();
        statistics.total_byte_size = Precision::Inexact((rows as usize).saturating_mul(width));
    }
    statistics
}

/// About how many bytes a value takes in memory.
fn width(field: &Field) -> usize {
    match field.data_type() {
        DataType::Utf8 | DataType::Binary => 24,
        other => other.primitive_width().unwrap_or(1),
    }
}

/// What files say of a column.
#[derive(Default)]
struct Known {
    range: Option<(ScalarValue, ScalarValue)>,
    nulls: Option<u64>,
}

impl Known {
    fn of(values: &GroupValues) -> Known {
        let known_nulls = values.nulls.null_count() == 0;
        Known { range: range(values), nulls: known_nulls.then(|| values.nulls.values().iter().sum()) }
    }

    fn and(self, other: Known) -> Known {
        let range = self.range.zip(other.range).and_then(|(all, one)| wider(all, one));
        Known { range, nulls: self.nulls.zip(other.nulls).map(|(all, one)| all + one) }
    }

    /// Whoever wrote the file may have got it wrong: good for estimates alone, and for what is looked at again.
    fn told(self) -> ColumnStatistics {
        let mut column = ColumnStatistics::new_unknown();
        if let Some((least, most)) = self.range {
            (column.min_value, column.max_value) = (Precision::Inexact(least), Precision::Inexact(most));
        }
        if let Some(nulls) = self.nulls {
            column.null_count = Precision::Inexact(nulls as usize);
        }
        column
    }
}

/// From the smallest to the largest value of all row groups, where each says so.
fn range(values: &GroupValues) -> Option<(ScalarValue, ScalarValue)> {
    let mut all: Option<(ScalarValue, ScalarValue)> = None;
    for group in 0..values.rows.len() {
        let least =
            ScalarValue::try_from_array(&values.smallest, group).ok().filter(|value| !value.is_null())?;
        let most =
            ScalarValue::try_from_array(&values.largest, group).ok().filter(|value| !value.is_null())?;
        all = match all {
            None => Some((least, most)),
            Some(all) => wider(all, (least, most)),
        };
    }
    all
}

fn wider(
    one: (ScalarValue, ScalarValue),
    other: (ScalarValue, ScalarValue),
) -> Option<(ScalarValue, ScalarValue)> {
    let least = if one.0.partial_cmp(&other.0)?.is_le() { one.0 } else { other.0 };
    let most = if one.1.partial_cmp(&other.1)?.is_ge() { one.1 } else { other.1 };
    Some((least, most))
}

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // They leave out row groups; rows are looked at by who asked.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let chosen = projection.unwrap_or(&all);
        let columns: Vec<String> =
            chosen.iter().map(|&index| self.schema.field(index).name().clone()).collect();
        check_readable(&self.schema, chosen, self.inputs[0].name())?;
        let predicate = predicate(state, &self.schema, filters)?;
        let statistics = self.statistics(&columns).map_err(DataFusionError::from)?;
        let threads = state.config().target_partitions();
        let partitions = if self.has_groups { threads } else { threads.min(self.inputs.len()) };
        Ok(Arc::new(Scan::new(
            self.again(),
            self.schema.project(chosen)?,
            columns,
            predicate,
            statistics,
            partitions.max(1),
        )))
    }
}
