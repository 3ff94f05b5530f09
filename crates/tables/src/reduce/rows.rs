//! Implements the general method of grouping, for any number of keys of any types. Keys are encoded so that their bytes
//! compare like their values. The aggregate states follow the keys.
//!
//! ```text
//!   row     [ frame | key columns, encoded | state of each aggregate ]
//!
//!   count         [ rows or values u64 ]
//!   sum, mean     [ values u64 | sum i128 or f64 ]
//!   min, max      [ length u32 | value, encoded so that it compares as bytes ]     0 bytes: none yet
//!   first, last   the same
//! ```

use std::{
    cmp::Ordering,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering as MemoryOrdering},
    },
};

use arrow_array::{
    Array, ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt64Array,
    cast::AsArray,
    new_null_array,
    types::{Decimal128Type, Float64Type, Int64Type, UInt64Type},
};
use arrow_buffer::NullBuffer;
use arrow_cast::cast::cast;
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef, SortOptions as ColumnOrder};
use inshore_sortreduce::rows::{
    FramedRows, RowConfig, RowOperation, RowShape, RowSort, frame, smallest_row_memory_bytes,
};

use super::{ReduceRequest, ReduceSummary, aggregate::Function};
use crate::{
    Error, Result,
    floats::{normal_floats, one_nan},
    resume,
    sort::too_long,
    writer::BackgroundWriter,
};

const SHAPE: FramedRows = FramedRows { row_bytes_hint: 56 };
const BLOCK_BYTES: usize = 1 << 20;

/// The form of an aggregate's state, and the operation that combines two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AggregateState {
    Count,
    SumWhole,
    SumFloat,
    Min,
    Max,
    First,
    Last,
}

impl AggregateState {
    fn of(function: Function, kind: Option<&DataType>) -> AggregateState {
        let is_float = kind.is_some_and(DataType::is_floating);
        match function {
            Function::Count => AggregateState::Count,
            Function::Sum | Function::Mean if is_float => AggregateState::SumFloat,
            Function::Sum | Function::Mean => AggregateState::SumWhole,
            Function::Min => AggregateState::Min,
            Function::Max => AggregateState::Max,
            Function::First => AggregateState::First,
            Function::Last => AggregateState::Last,
        }
    }

    /// Returns the length of the state at the beginning of `bytes`.
    fn len(self, bytes: &[u8]) -> usize {
        match self {
            AggregateState::Count => 8,
            AggregateState::SumWhole => 24,
            AggregateState::SumFloat => 16,
            _ => 4 + u32::from_le_bytes(word(bytes)) as usize,
        }
    }

    fn is_fixed(self) -> bool {
        matches!(self, AggregateState::Count | AggregateState::SumWhole | AggregateState::SumFloat)
    }
}

fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes[..N].try_into().expect("so many bytes")
}

/// Combines the states of rows with equal keys.
#[derive(Clone)]
struct CombineStates {
    states: Arc<[AggregateState]>,
    overflow: Arc<AtomicBool>,
}

impl CombineStates {
    /// Combines two states of a fixed size in place.
    fn add(&self, state: AggregateState, first: &mut [u8], next: &[u8]) {
        let count = u64::from_le_bytes(word(first)) + u64::from_le_bytes(word(next));
        first[..8].copy_from_slice(&count.to_le_bytes());
        match state {
            AggregateState::SumWhole => {
                let (a, b) = (i128::from_le_bytes(word(&first[8..])), i128::from_le_bytes(word(&next[8..])));
                let (sum, over) = a.overflowing_add(b);
                if over {
                    self.overflow.store(true, MemoryOrdering::Relaxed);
                }
                first[8..24].copy_from_slice(&sum.to_le_bytes());
            }
            AggregateState::SumFloat => {
                let sum = f64::from_le_bytes(word(&first[8..])) + f64::from_le_bytes(word(&next[8..]));
                first[8..16].copy_from_slice(&sum.to_le_bytes());
            }
            _ => {}
        }
    }
}

/// Returns true if the second of two encoded values replaces the first one.
fn takes_place(state: AggregateState, first: &[u8], next: &[u8]) -> bool {
    match (first.is_empty(), next.is_empty()) {
        (_, true) => false,
        (true, false) => true,
        (false, false) => match state {
            AggregateState::Min => next.cmp(first) == Ordering::Less,
            AggregateState::Max => next.cmp(first) == Ordering::Greater,
            AggregateState::Last => true,
            _ => false,
        },
    }
}

impl RowOperation for CombineStates {
    const COMBINES: bool = true;

    fn combine(&self, first: &mut Vec<u8>, next: &[u8]) {
        let mut others = SHAPE.rest(next);
        let mut place = first.len() - SHAPE.rest(first).len();
        for &state in &*self.states {
            let (len, other_len) = (state.len(&first[place..]), state.len(others));
            if state.is_fixed() {
                self.add(state, &mut first[place..place + len], others);
                place += len;
            } else {
                let is_taken = takes_place(state, &first[place + 4..place + len], &others[4..other_len]);
                if is_taken {
                    first.splice(place..place + len, others[..other_len].iter().copied());
                }
                place += if is_taken { other_len } else { len };
            }
            others = &others[other_len..];
        }
        let len = (first.len() as u32).to_le_bytes();
        first[..4].copy_from_slice(&len);
    }

    fn is_sound(&self) -> bool {
        !self.overflow.load(MemoryOrdering::Relaxed)
    }
}

pub(super) fn reduce(asked: &ReduceRequest<'_>) -> Result<ReduceSummary> {
    let job = asked.job;
    let first = &asked.inputs[0];
    let mut opened = Some(asked.open(first, (0, 1))?);
    let schema = opened.as_ref().expect("opened above").schema().clone();
    let is_file = first.path().is_some();
    if is_file {
        asked.schema(first)?;
    }
    let mut codec = GroupCodec::new(asked, &schema)?;
    let overflow = Arc::new(AtomicBool::new(false));
    let operation = CombineStates { states: codec.states.clone().into(), overflow: overflow.clone() };
    let threads = job.budget().threads();
    let memory_bytes = asked.memory_bytes(smallest_row_memory_bytes(threads))?;
    let keep = asked.keep("rows", &schema)?;
    let config =
        RowConfig { memory_bytes, threads, keep: keep.clone(), name: "reduce", ..RowConfig::default() };
    let plan = || {
        format!("rows are sorted and merged by their keys in {}", inshore_store::format_bytes(memory_bytes))
    };
    job.progress().tell(plan);
    job.start_phase("grouping", "bytes", asked.compressed_bytes());
    let mut sort = RowSort::new(job, SHAPE, operation, &config)?;
    let (mut sink, mut block) = (sort.sink(), Vec::new());
    for input in asked.inputs {
        let mut reader = match opened.take() {
            Some(reader) => reader,
            None => asked.open(input, (0, 1))?,
        };
        asked.check_same(input, &schema, reader.schema())?;
        let mut position = 0;
        while let Some(batch) = reader.next_batch()? {
            job.check_cancelled()?;
            block.clear();
            codec.encode(&batch, &mut block)?;
            sink.write(&block)?;
            job.progress().add(reader.position().saturating_sub(position));
            position = reader.position();
        }
    }
    sink.finish()?;
    let mut sorted = sort.finish().map_err(|error| too_long(error, first.name()))?;
    job.start_phase("writing groups", "groups", 0);
    let mut writer = BackgroundWriter::create(asked.output, codec.result.clone(), job.budget());
    loop {
        block.clear();
        sorted.append(&mut block, BLOCK_BYTES)?;
        if block.is_empty() {
            break;
        }
        let batch = codec.decode(asked, &block)?;
        job.progress().add(batch.num_rows() as u64);
        writer.write(batch)?;
    }
    let stats = sorted.stats();
    drop(sorted);
    if overflow.load(MemoryOrdering::Relaxed) {
        return Err(asked.overflow());
    }
    if stats.rows_in == 0 && asked.options.by.is_empty() {
        writer.write(codec.of_no_rows(asked)?)?;
    }
    let groups = writer.finish()?;
    resume::finish(keep)?;
    Ok(ReduceSummary {
        rows_in: stats.rows_in,
        rows_kept: stats.rows_kept,
        groups,
        way: "rows",
        strategy: "rows".to_string(),
        runs: stats.runs,
        bytes_spilled: stats.bytes_spilled,
        choice: None,
    })
}

/// Encodes columns of the input as rows, and decodes combined rows to columns of the result.
struct GroupCodec {
    name: String,
    result: SchemaRef,
    keys: RowConverter,
    by: usize,
    states: Vec<AggregateState>,
    /// The input column of each aggregate.
    columns: Vec<Option<usize>>,
    kinds: Vec<Option<DataType>>,
    /// The encoders of the aggregates whose state is a value. The value is `None` for other aggregates.
    values: Vec<Option<RowConverter>>,
    /// For each encoder in `values`, the encoding of null.
    nulls: Vec<Vec<u8>>,
}

/// The values of a batch that become states.
enum StateValues {
    /// Each row counts one.
    Ones,
    /// Each value that is not null counts one.
    Present(Option<NullBuffer>),
    Whole(Vec<i128>, Option<NullBuffer>),
    Float(Float64Array),
    Encoded(Option<NullBuffer>, Rows),
}

impl GroupCodec {
    fn new(asked: &ReduceRequest<'_>, schema: &Schema) -> Result<GroupCodec> {
        let name = asked.inputs[0].name().to_string();
        let fail = |error: ArrowError| Error::unsupported(&name, error.to_string());
        let kind = |column: usize| schema.field(column).data_type();
        let index = |column: &String| schema.index_of(column).map_err(fail);
        let order = ColumnOrder { descending: false, nulls_first: false };
        let by = asked.options.by.len();
        let keys = (0..by).map(|column| SortField::new_with_options(kind(column).clone(), order));
        let keys = RowConverter::new(keys.collect()).map_err(fail)?;
        let (mut states, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (mut kinds, mut nulls) = (Vec::new(), Vec::new());
        for aggregate in &asked.options.aggregates {
            let column = aggregate.column.as_ref().map(index).transpose()?;
            let state = AggregateState::of(aggregate.function, column.map(kind));
            let field =
                column.filter(|_| !state.is_fixed()).map(|column| SortField::new(kind(column).clone()));
            let converter = field.map(|field| RowConverter::new(vec![field])).transpose().map_err(fail)?;
            nulls.push(match (&converter, column) {
                (Some(converter), Some(column)) => {
                    let null = new_null_array(kind(column), 1);
                    converter.convert_columns(&[null]).map_err(fail)?.row(0).data().to_vec()
                }
                _ => Vec::new(),
            });
            values.push(converter);
            kinds.push(column.map(|column| kind(column).clone()));
            states.push(state);
            columns.push(column);
        }
        let result = asked.result_schema(schema);
        Ok(GroupCodec { result, keys, by, states, columns, kinds, values, nulls, name })
    }

    fn encode(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
        let name = &self.name;
        let fail = |error: ArrowError| Error::unsupported(name, error.to_string());
        let keys = match self.by {
            0 => None,
            by => {
                let keys: Vec<ArrayRef> = batch.columns()[..by].iter().map(normal_floats).collect();
                Some(self.keys.convert_columns(&keys).map_err(fail)?)
            }
        };
        let mut all = Vec::new();
        for (number, &state) in self.states.iter().enumerate() {
            let column = self.columns[number].map(|column| batch.column(column).clone());
            all.push(match (state, column) {
                (_, None) => StateValues::Ones,
                (AggregateState::Count, Some(column)) => StateValues::Present(column.logical_nulls()),
                (AggregateState::SumFloat, Some(column)) => {
                    let column = cast(&column, &DataType::Float64).map_err(fail)?;
                    StateValues::Float(column.as_primitive::<Float64Type>().clone())
                }
                (AggregateState::SumWhole, Some(column)) => {
                    StateValues::Whole(whole_numbers(&column).map_err(fail)?, column.logical_nulls())
                }
                (_, Some(column)) => {
                    let converter = self.values[number].as_mut().expect("made for such states");
                    let ordered = match state {
                        AggregateState::Min | AggregateState::Max => one_nan(&column),
                        _ => column.clone(),
                    };
                    let rows = converter.convert_columns(&[ordered]).map_err(fail)?;
                    StateValues::Encoded(column.logical_nulls(), rows)
                }
            });
        }
        let mut states = Vec::new();
        for row in 0..batch.num_rows() {
            states.clear();
            all.iter().for_each(|values| values.append(row, &mut states));
            match &keys {
                Some(keys) => frame(keys.row(row).data(), &states, out),
                None => frame(&[], &states, out),
            }
        }
        Ok(())
    }

    fn decode(&self, asked: &ReduceRequest<'_>, block: &[u8]) -> Result<RecordBatch> {
        let fail = |error: ArrowError| Error::damaged(&self.name, error.to_string());
        let parser = self.keys.parser();
        let (mut keys, mut states) = (Vec::new(), vec![Vec::new(); self.states.len()]);
        let mut rest = block;
        while let Some(len) = SHAPE.row_len(rest) {
            let (row, after) = rest.split_at(len);
            keys.push(parser.parse(SHAPE.key(row)));
            let mut bytes = SHAPE.rest(row);
            for (state, found) in self.states.iter().zip(&mut states) {
                let (this, others) = bytes.split_at(state.len(bytes));
                found.push(this);
                bytes = others;
            }
            rest = after;
        }
        let mut columns = if self.by > 0 { self.keys.convert_rows(keys).map_err(fail)? } else { Vec::new() };
        for (number, found) in states.iter().enumerate() {
            columns.push(self.result_column(asked, number, found)?);
        }
        RecordBatch::try_new(self.result.clone(), columns).map_err(fail)
    }

    fn result_column(&self, asked: &ReduceRequest<'_>, number: usize, found: &[&[u8]]) -> Result<ArrayRef> {
        let fail = |error: ArrowError| Error::damaged(&self.name, error.to_string());
        let kind = self.result.field(self.by + number).data_type();
        let is_mean = asked.options.aggregates[number].function == Function::Mean;
        let count = |state: &&[u8]| u64::from_le_bytes(word(state));
        let whole = |state: &&[u8]| i128::from_le_bytes(word(&state[8..]));
        let float = |state: &&[u8]| f64::from_le_bytes(word(&state[8..]));
        let some = |state: &&[u8]| count(state) > 0;
        let scale = match &self.kinds[number] {
            Some(DataType::Decimal128(_, scale)) => 10f64.powi(i32::from(*scale)),
            _ => 1.0,
        };
        Ok(match self.states[number] {
            AggregateState::Count => Arc::new(UInt64Array::from_iter_values(found.iter().map(count))),
            AggregateState::SumWhole if is_mean => {
                let mean = |state| some(state).then(|| whole(state) as f64 / scale / count(state) as f64);
                Arc::new(Float64Array::from_iter(found.iter().map(mean)))
            }
            AggregateState::SumFloat if is_mean => {
                let mean = |state| some(state).then(|| float(state) / count(state) as f64);
                Arc::new(Float64Array::from_iter(found.iter().map(mean)))
            }
            AggregateState::SumFloat => {
                let sum = |state| some(state).then(|| float(state));
                Arc::new(Float64Array::from_iter(found.iter().map(sum)))
            }
            AggregateState::SumWhole => self.whole_sums(asked, kind, found)?,
            _ => {
                let converter = self.values[number].as_ref().expect("made for such states");
                let parser = converter.parser();
                let null = &self.nulls[number];
                let rows = found.iter().map(|state| match &state[4..] {
                    [] => parser.parse(null),
                    bytes => parser.parse(bytes),
                });
                converter.convert_rows(rows).map_err(fail)?.remove(0)
            }
        })
    }

    /// Decodes sums of whole numbers and decimals.
    fn whole_sums(&self, asked: &ReduceRequest<'_>, kind: &DataType, found: &[&[u8]]) -> Result<ArrayRef> {
        let sum = |state: &&[u8]| {
            let sum = i128::from_le_bytes(word(&state[8..]));
            (u64::from_le_bytes(word(state)) > 0).then_some(sum)
        };
        let sums = found.iter().map(sum);
        fn narrow<T: TryFrom<i128>>(sum: Option<i128>) -> Option<Option<T>> {
            sum.map(T::try_from).transpose().ok()
        }
        let array: Option<ArrayRef> = match kind {
            DataType::UInt64 => {
                sums.map(narrow).collect::<Option<UInt64Array>>().map(|array| Arc::new(array) as _)
            }
            DataType::Int64 => {
                sums.map(narrow).collect::<Option<Int64Array>>().map(|array| Arc::new(array) as _)
            }
            DataType::Decimal128(precision, scale) => {
                let array: Decimal128Array = sums.collect();
                let array = array.with_precision_and_scale(*precision, *scale).ok();
                // Sums of 128 bits may have more than 38 digits.
                array
                    .filter(|array| array.validate_decimal_precision(*precision).is_ok())
                    .map(|array| Arc::new(array) as _)
            }
            other => unreachable!("no sums of {other}"),
        };
        array.ok_or_else(|| asked.overflow())
    }

    /// Makes the result row for an input without rows and without keys, which forms a single group.
    fn of_no_rows(&self, asked: &ReduceRequest<'_>) -> Result<RecordBatch> {
        let states: Vec<u8> = self.states.iter().flat_map(|state| vec![0; state.len(&[0; 4])]).collect();
        let mut block = Vec::new();
        frame(&[], &states, &mut block);
        self.decode(asked, &block)
    }
}

impl StateValues {
    /// Appends the state of one row.
    fn append(&self, row: usize, out: &mut Vec<u8>) {
        let is_valid = |nulls: &Option<NullBuffer>| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        match self {
            StateValues::Ones => out.extend_from_slice(&1u64.to_le_bytes()),
            StateValues::Present(nulls) => out.extend_from_slice(&u64::from(is_valid(nulls)).to_le_bytes()),
            StateValues::Whole(values, nulls) => {
                let value = if is_valid(nulls) { values[row] } else { 0 };
                out.extend_from_slice(&u64::from(is_valid(nulls)).to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            StateValues::Float(values) => {
                let value = if values.is_valid(row) { values.value(row) } else { 0.0 };
                out.extend_from_slice(&u64::from(values.is_valid(row)).to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            StateValues::Encoded(nulls, rows) => {
                let row = rows.row(row);
                let bytes = if is_valid(nulls) { row.data() } else { &[] };
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// Converts whole numbers and decimals to 128 bits. The result for a null is arbitrary.
fn whole_numbers(array: &ArrayRef) -> std::result::Result<Vec<i128>, ArrowError> {
    let kind = array.data_type();
    Ok(match kind {
        DataType::Decimal128(..) => array.as_primitive::<Decimal128Type>().values().to_vec(),
        kind if kind.is_unsigned_integer() => {
            let array = cast(array, &DataType::UInt64)?;
            array.as_primitive::<UInt64Type>().values().iter().map(|&value| value.into()).collect()
        }
        _ => {
            let array = cast(array, &DataType::Int64)?;
            array.as_primitive::<Int64Type>().values().iter().map(|&value| value.into()).collect()
        }
    })
}
