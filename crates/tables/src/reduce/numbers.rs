//! The fast way: one key of whole numbers, aggregates that are words of 64 bits, no nulls.
//!
//! Each row becomes a key of 32 or 64 bits and a word or a few; signed numbers and fractions become unsigned ones in
//! the same order. As many threads as the job has read parts of the input and push, so nothing here may depend on the
//! order of rows (first and last take the other way).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arrow::{
    array::AsArray,
    array::{Array, ArrayRef, Float64Array, Int64Array, UInt64Array},
    compute::cast,
    datatypes::{DataType, Float64Type, Int64Type, Schema, SchemaRef, UInt64Type},
    record_batch::RecordBatch,
};
use inshore_sortreduce::{Config, Key, Operation, SortReduce, Strategy, choose, smallest_memory_bytes};

use super::{Asked, ReduceSummary, aggregate::Function};
use crate::{Error, Input, Result, TableReader, resume, writer::BackgroundWriter};

/// Words of a record at most: more would be as slow as the other way.
const WORDS_MAX: usize = 4;

pub(super) enum Outcome {
    Done(ReduceSummary),
    /// There is a null: nothing was written.
    SawNull,
    /// A key lies outside of what the files say: nothing was written.
    OutOfRange,
}

/// How two words of one group become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Combine {
    #[default]
    Count,
    AddSigned,
    AddUnsigned,
    AddFloat,
    Min,
    Max,
}

/// Where a word comes from.
#[derive(Clone, Copy, Debug)]
struct Word {
    combine: Combine,
    /// The column of the input; none for the number of rows.
    column: Option<usize>,
}

/// How the rows of a table become records.
pub(super) struct Plan {
    schema: SchemaRef,
    result: SchemaRef,
    key_type: DataType,
    words: Vec<Word>,
    /// Rows of all inputs, where their files say so.
    rows: Option<u64>,
    keys: Keys,
}

/// Which words of keys there are: `first` and as many as `last` after it. Records have what is above the first.
#[derive(Clone, Copy, Debug)]
struct Keys {
    first: u64,
    last: u64,
}

impl Keys {
    fn all(kind: &DataType) -> Keys {
        Keys { first: 0, last: if is_narrow(kind) { u32::MAX.into() } else { u64::MAX } }
    }

    /// From the smallest to the largest value of a type.
    fn between(kind: &DataType, (min, max): (i128, i128)) -> Option<Keys> {
        let word = |value: i128| match (kind.is_unsigned_integer(), is_narrow(kind)) {
            (true, _) => u64::try_from(value).ok(),
            (false, true) => i32::try_from(value).ok().map(|value| (value as u32 ^ (1 << 31)) as u64),
            (false, false) => i64::try_from(value).ok().map(|value| value as u64 ^ SIGN),
        };
        let (first, last) = (word(min)?, word(max)?);
        Some(Keys { first, last: last.checked_sub(first)? })
    }

    /// For sort-reduce, which takes keys for spread over their range: where it is so wide that most of it must be empty,
    /// it had better look at the keys.
    fn range(self, rows: Option<u64>) -> Option<u64> {
        let range = self.last.checked_add(1)?;
        (range / KEYS_PER_ROW_MAX <= rows?).then_some(range)
    }
}

/// A range of keys with fewer rows than one for so many is not worth knowing.
const KEYS_PER_ROW_MAX: u64 = 64;

impl Plan {
    /// `None` where this way is none.
    pub fn new(asked: &Asked<'_>, schema: &SchemaRef) -> Option<Plan> {
        let [by] = &asked.options.by[..] else { return None };
        let key_type = schema.field_with_name(by).ok()?.data_type().clone();
        is_key(&key_type).then_some(())?;
        let mut words = Vec::new();
        for aggregate in &asked.options.aggregates {
            let column =
                aggregate.column.as_ref().map(|column| schema.index_of(column).ok()).transpose_some()?;
            let kind = column.map(|column| schema.field(column).data_type());
            let word = |combine| Word { combine, column };
            let add = || match kind {
                Some(kind) if kind.is_unsigned_integer() => Some(Combine::AddUnsigned),
                Some(kind) if kind.is_integer() => Some(Combine::AddSigned),
                Some(kind) if kind.is_floating() => Some(Combine::AddFloat),
                _ => None,
            };
            let ordered = kind.is_some_and(|kind| kind.is_integer() || kind.is_floating());
            match aggregate.function {
                Function::Count => words.push(Word { combine: Combine::Count, column: None }),
                Function::Sum => words.push(word(add()?)),
                // The sum of whole numbers may need more than 64 bits, which a mean can do without.
                Function::Mean if add()? == Combine::AddFloat => {
                    words.extend([word(Combine::AddFloat), Word { combine: Combine::Count, column: None }]);
                }
                Function::Min if ordered => words.push(word(Combine::Min)),
                Function::Max if ordered => words.push(word(Combine::Max)),
                _ => return None,
            }
        }
        let fits = words.len() <= WORDS_MAX;
        let result = asked.result_schema(schema);
        let readers: Vec<_> = asked.inputs.iter().map(|input| asked.open(input, (0, 1)).ok()).collect();
        let rows = readers.iter().map(|reader| reader.as_ref()?.rows()).sum();
        let range = |reader: &Option<TableReader>| reader.as_ref()?.range_of(by).ok()?;
        let ranges = readers.iter().map(range).collect::<Option<Vec<_>>>().unwrap_or_default();
        let range = ranges.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let keys = range.and_then(|range| Keys::between(&key_type, range));
        let keys = keys.unwrap_or(Keys::all(&key_type));
        fits.then(|| Plan { schema: schema.clone(), result, key_type, words, rows, keys })
    }

    /// The same for any keys.
    pub fn without_range(self) -> Plan {
        Plan { keys: Keys::all(&self.key_type), ..self }
    }
}

trait TransposeSome<T> {
    /// `None` becomes `Some(None)`.
    fn transpose_some(self) -> Option<Option<T>>;
}

impl<T> TransposeSome<T> for Option<Option<T>> {
    fn transpose_some(self) -> Option<Option<T>> {
        match self {
            None => Some(None),
            Some(None) => None,
            Some(some) => Some(some),
        }
    }
}

/// Whether a column is a whole number behind its name.
fn is_key(kind: &DataType) -> bool {
    kind.is_integer() || matches!(kind, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
}

fn is_narrow(kind: &DataType) -> bool {
    matches!(kind.primitive_width(), Some(1 | 2 | 4))
}

pub(super) fn reduce(asked: &Asked<'_>, plan: &Plan) -> Result<Outcome> {
    // Few shapes, since each is compiled with all of sort-reduce: what is not needed of a record counts for nothing.
    match (plan.keys.last <= u32::MAX.into(), plan.words.len()) {
        (true, 0 | 1) => run::<u32, 1>(asked, plan),
        (true, 2) => run::<u32, 2>(asked, plan),
        (true, _) => run::<u32, 4>(asked, plan),
        (false, 0 | 1) => run::<u64, 1>(asked, plan),
        (false, 2) => run::<u64, 2>(asked, plan),
        (false, _) => run::<u64, 4>(asked, plan),
    }
}

/// Combines words of records with the key `K`.
#[derive(Clone)]
struct Words<K, const N: usize> {
    combine: [Combine; N],
    overflow: Arc<AtomicBool>,
    of: std::marker::PhantomData<K>,
}

impl<K: Key, const N: usize> Operation for Words<K, N>
where
    [u64; N]: Default,
{
    type Key = K;
    type Value = [u64; N];

    #[inline]
    fn combine(&self, a: [u64; N], b: [u64; N]) -> [u64; N] {
        std::array::from_fn(|i| combine_words(self.combine[i], a[i], b[i], &self.overflow))
    }

    fn is_sound(&self) -> bool {
        !self.overflow.load(Ordering::Relaxed)
    }
}

#[inline(always)]
fn combine_words(combine: Combine, a: u64, b: u64, overflow: &AtomicBool) -> u64 {
    match combine {
        Combine::Count => a + b,
        Combine::AddSigned => {
            let (sum, over) = (a as i64).overflowing_add(b as i64);
            if over {
                overflow.store(true, Ordering::Relaxed);
            }
            sum as u64
        }
        Combine::AddUnsigned => {
            let (sum, over) = a.overflowing_add(b);
            if over {
                overflow.store(true, Ordering::Relaxed);
            }
            sum
        }
        Combine::AddFloat => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Combine::Min => a.min(b),
        Combine::Max => a.max(b),
    }
}

const SIGN: u64 = 1 << 63;

/// A fraction as a number in the same order: NaN is the greatest, as in SQL.
fn ordered(value: f64) -> u64 {
    let value = if value.is_nan() { f64::NAN } else { value };
    let bits = value.to_bits();
    if bits & SIGN != 0 { !bits } else { bits | SIGN }
}

fn unordered(bits: u64) -> f64 {
    f64::from_bits(if bits & SIGN != 0 { bits & !SIGN } else { !bits })
}

/// A column as words.
fn words_of(array: &ArrayRef, combine: Combine, file: &str) -> Result<Vec<u64>> {
    let fail = |error: arrow::error::ArrowError| Error::unsupported(file, error.to_string());
    let kind = array.data_type();
    let is_ordered = matches!(combine, Combine::Min | Combine::Max);
    if kind.is_floating() {
        let array = cast(array, &DataType::Float64).map_err(fail)?;
        let values = array.as_primitive::<Float64Type>().values().iter();
        return Ok(if is_ordered {
            values.map(|&v| ordered(v)).collect()
        } else {
            values.map(|v| v.to_bits()).collect()
        });
    }
    if kind.is_unsigned_integer() {
        let array = cast(array, &DataType::UInt64).map_err(fail)?;
        return Ok(array.as_primitive::<UInt64Type>().values().to_vec());
    }
    let array = cast(array, &DataType::Int64).map_err(fail)?;
    let values = array.as_primitive::<Int64Type>().values().iter();
    Ok(values.map(|&v| if is_ordered { v as u64 ^ SIGN } else { v as u64 }).collect())
}

/// Words as a column of a type that [`words_of`] took.
fn column_of(words: Vec<u64>, combine: Combine, kind: &DataType, file: &str) -> Result<ArrayRef> {
    let fail = |error: arrow::error::ArrowError| Error::unsupported(file, error.to_string());
    let is_ordered = matches!(combine, Combine::Min | Combine::Max);
    let array: ArrayRef = if combine == Combine::Count || kind.is_unsigned_integer() {
        Arc::new(UInt64Array::from(words))
    } else if kind.is_floating() {
        let value = |word| if is_ordered { unordered(word) } else { f64::from_bits(word) };
        Arc::new(Float64Array::from_iter_values(words.into_iter().map(value)))
    } else {
        let value = |word| (if is_ordered { word ^ SIGN } else { word }) as i64;
        Arc::new(Int64Array::from_iter_values(words.into_iter().map(value)))
    };
    cast(&array, kind).map_err(fail)
}

fn run<K: Key, const N: usize>(asked: &Asked<'_>, plan: &Plan) -> Result<Outcome>
where
    [u64; N]: Default,
{
    let overflow = Arc::new(AtomicBool::new(false));
    let operation = Words::<K, N> {
        combine: std::array::from_fn(|i| plan.words.get(i).map_or(Combine::Count, |word| word.combine)),
        overflow: overflow.clone(),
        of: std::marker::PhantomData,
    };
    let job = asked.job;
    let threads = job.budget().threads();
    // Which rows a thread reads depends on how many there are.
    let keep = asked.keep(("numbers", threads, plan.keys))?;
    let config = Config {
        memory_bytes: asked.memory_bytes(smallest_memory_bytes(threads, size_of::<K>() + 8 * N))?,
        sinks: threads,
        name: "reduce",
        expected_records: plan.rows,
        key_range: plan.keys.range(plan.rows),
        keep: keep.clone(),
        ..Config::default()
    };
    job.start_phase("grouping", "bytes", asked.compressed_bytes());
    // Measured: bins leave most of the work to the one thread that reads the result, beside the one that writes the file,
    // and take up to twice as long as runs, which the reading threads have sorted. So the range is for the array only.
    let key_range = config.key_range.filter(|_| choose(&config, 8 * N) == Strategy::Dense);
    let reduce = SortReduce::new(job, operation, &Config { key_range, ..config })?;
    let choice = reduce.choice().clone();
    let rows_kept = reduce.records_kept();
    let (saw_null, out_of_range) = (AtomicBool::new(false), AtomicBool::new(false));
    let work = |number: usize| -> Result<()> {
        let mut sink = reduce.sink()?;
        for (place, input) in asked.inputs.iter().enumerate() {
            if sink.begin_unit((place * threads + number) as u64)? {
                push(asked, plan, input, (number, threads), &mut sink, (&saw_null, &out_of_range))?;
            }
        }
        Ok(sink.finish()?)
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move_ref(&work, number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("readers do not panic")).collect()
    });
    if saw_null.load(Ordering::Relaxed) {
        resume::finish(keep)?;
        return Ok(Outcome::SawNull);
    }
    if out_of_range.load(Ordering::Relaxed) {
        resume::finish(keep)?;
        return Ok(Outcome::OutOfRange);
    }
    results.into_iter().collect::<Result<()>>()?;
    let mut sorted = reduce.finish()?;
    job.start_phase("writing groups", "groups", 0);
    let file = asked.inputs[0].name();
    let mut writer = BackgroundWriter::create(asked.output, plan.result.clone(), job.budget());
    while let Some(block) = sorted.next_block()? {
        job.progress().add(block.keys.len() as u64);
        writer.write(batch(plan, asked, block.keys, block.values, file)?)?;
    }
    let stats = sorted.stats();
    drop(sorted);
    if overflow.load(Ordering::Relaxed) {
        return Err(asked.overflow());
    }
    let groups = writer.finish()?;
    resume::finish(keep)?;
    Ok(Outcome::Done(ReduceSummary {
        rows_in: stats.records_in,
        rows_kept,
        groups,
        way: "numbers",
        strategy: strategy_name(stats.strategy),
        runs: stats.runs,
        bytes_spilled: stats.bytes_spilled,
        choice: Some(choice),
    }))
}

fn strategy_name(strategy: Strategy) -> String {
    format!("{strategy:?}").to_lowercase()
}

/// A closure for a thread that borrows the work and owns its number.
fn move_ref<'a, R>(work: &'a (impl Fn(usize) -> R + Sync), number: usize) -> impl FnOnce() -> R + 'a {
    move || work(number)
}

fn push<K: Key, const N: usize>(
    asked: &Asked<'_>,
    plan: &Plan,
    input: &Input,
    part: (usize, usize),
    sink: &mut inshore_sortreduce::Sink<Words<K, N>>,
    (saw_null, out_of_range): (&AtomicBool, &AtomicBool),
) -> Result<()>
where
    [u64; N]: Default,
{
    let mut reader = asked.open(input, part)?;
    asked.check_same(input, &plan.schema, reader.schema())?;
    let mut position = reader.position();
    while let Some(batch) = reader.next_batch()? {
        if saw_null.load(Ordering::Relaxed) || out_of_range.load(Ordering::Relaxed) {
            return Ok(());
        }
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            saw_null.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let keys = key_words(batch.column(0), input.name())?;
        let words = plan.words.iter().map(|word| match word.column {
            Some(column) => words_of(batch.column(column), word.combine, input.name()),
            None => Ok(vec![1; batch.num_rows()]),
        });
        let words = words.collect::<Result<Vec<_>>>()?;
        let above_first = |&key: &u64| key.wrapping_sub(plan.keys.first);
        if keys.iter().map(above_first).fold(0, u64::max) > plan.keys.last {
            out_of_range.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let keys: Vec<K> = keys.iter().map(|key| K::from_u64(above_first(key))).collect();
        let unused = vec![0; if words.len() < N { keys.len() } else { 0 }];
        let columns: [&[u64]; N] = std::array::from_fn(|i| words.get(i).unwrap_or(&unused).as_slice());
        sink.push_many(&keys, |row| columns.map(|words| words[row]))?;
        let now = reader.position();
        asked.job.progress().add(now.saturating_sub(position));
        position = now.max(position);
    }
    Ok(())
}

/// Keys as unsigned numbers in the same order.
fn key_words(array: &ArrayRef, file: &str) -> Result<Vec<u64>> {
    let kind = array.data_type();
    if kind.is_unsigned_integer() {
        return words_of(array, Combine::Min, file);
    }
    let fail = |error: arrow::error::ArrowError| Error::unsupported(file, error.to_string());
    // Dates and times are whole numbers beneath: 32 bits go by way of their own width.
    let narrow = is_narrow(kind);
    let array = match kind {
        DataType::Date32 => cast(array, &DataType::Int32).map_err(fail)?,
        _ => array.clone(),
    };
    let array = cast(&array, &DataType::Int64).map_err(fail)?;
    let flip =
        |&value: &i64| if narrow { (value as i32 as u32 ^ (1 << 31)) as u64 } else { value as u64 ^ SIGN };
    Ok(array.as_primitive::<Int64Type>().values().iter().map(flip).collect())
}

fn key_column<K: Key>(keys: &[K], first: u64, kind: &DataType, file: &str) -> Result<ArrayRef> {
    let fail = |error: arrow::error::ArrowError| Error::unsupported(file, error.to_string());
    let word = |key: &K| key.to_u64().wrapping_add(first);
    if kind.is_unsigned_integer() {
        return column_of(keys.iter().map(word).collect(), Combine::Min, kind, file);
    }
    let narrow = is_narrow(kind);
    let value = |key: &K| {
        let word = word(key);
        if narrow { (word as u32 ^ (1 << 31)) as i32 as i64 } else { (word ^ SIGN) as i64 }
    };
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.iter().map(value)));
    let array = match kind {
        DataType::Date32 => cast(&array, &DataType::Int32).map_err(fail)?,
        _ => array,
    };
    cast(&array, kind).map_err(fail)
}

fn batch<K: Key, const N: usize>(
    plan: &Plan,
    asked: &Asked<'_>,
    keys: &[K],
    values: &[[u64; N]],
    file: &str,
) -> Result<RecordBatch> {
    let mut columns = vec![key_column(keys, plan.keys.first, &plan.key_type, file)?];
    let word = |i: usize| values.iter().map(|value| value[i]).collect::<Vec<u64>>();
    let mut next = 0;
    for (number, aggregate) in asked.options.aggregates.iter().enumerate() {
        let kind = plan.result.field(number + 1).data_type();
        let combine = plan.words[next].combine;
        if aggregate.function == Function::Mean {
            let mean = |value: &[u64; N]| f64::from_bits(value[next]) / value[next + 1] as f64;
            columns.push(Arc::new(Float64Array::from_iter_values(values.iter().map(mean))));
            next += 2;
            continue;
        }
        columns.push(column_of(word(next), combine, kind, file)?);
        next += 1;
    }
    let schema: &Schema = &plan.result;
    RecordBatch::try_new(Arc::new(schema.clone()), columns)
        .map_err(|error| Error::unsupported(file, error.to_string()))
}
