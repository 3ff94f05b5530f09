//! Implements the fast method of grouping. The method requires one key of whole numbers, aggregates that fit into words
//! of 64 bits, and columns without nulls.
//!
//! Each row becomes a key of 32 or 64 bits and one or more words. Signed and floating-point numbers become unsigned
//! numbers in the same order. All threads of the job read parts of the input and push records, so the result must not
//! depend on the order of rows. The functions first and last depend on this order, and use the general method.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arrow_array::{Array, Float64Array, RecordBatch};
use arrow_schema::{DataType, Schema, SchemaRef};
use inshore_sortreduce::{
    Config, Key, Operation, SortReduce, Sorted, Strategy, Value, choose, merge_memory_bytes_for,
    smallest_memory_bytes,
};

use super::{MEMORY_PART, ReduceRequest, ReduceSummary, aggregate::Function};
use crate::{
    Error, Input, Result, TableReader, resume,
    words::{
        Combine, CompactWords, Keys, SIGN, WORDS_MAX, Words, column_of, is_key, key_column, key_words,
        words_of,
    },
    writer::BackgroundWriter,
};

pub(super) enum Outcome {
    Done(ReduceSummary),
    /// The input has a null. No result was written.
    SawNull,
    /// A key, a value or the number of rows contradicts the statistics of the files. No result was written.
    OutOfRange,
}

/// The origin of the values of one word of a record.
#[derive(Clone, Copy, Debug)]
struct WordSource {
    combine: Combine,
    /// The column of the input that has the values. The value is `None` if the word counts rows.
    column: Option<usize>,
    /// The smallest word, and the difference between the largest and the smallest word, according to the statistics of
    /// the files.
    range: Option<(u64, u64)>,
    /// True if the sum of the words of all rows is known to fit into 64 bits.
    is_bounded: bool,
}

impl WordSource {
    fn new(combine: Combine, column: Option<usize>) -> WordSource {
        let is_count = combine == Combine::Count;
        WordSource { combine, column, range: is_count.then_some((1, 0)), is_bounded: is_count }
    }

    /// Sets the range of the words. `min` and `max` are the smallest and the largest value of a column of whole
    /// numbers, according to the statistics of the files.
    fn between(self, kind: &DataType, (min, max): (i128, i128), rows: u64) -> WordSource {
        let is_ordered = matches!(self.combine, Combine::Min | Combine::Max);
        let flip = if is_ordered && !kind.is_unsigned_integer() { SIGN } else { 0 };
        let range = u64::try_from(max - min).ok().map(|span| (min as u64 ^ flip, span));
        let largest = min.unsigned_abs().max(max.unsigned_abs());
        let is_bounded = largest.checked_mul(rows.into()).is_some_and(|sum| sum < SIGN.into());
        WordSource { range, is_bounded: is_bounded && !is_ordered, ..self }
    }

    /// Returns true if all `words` lie in the range.
    fn has(self, words: &[u64]) -> bool {
        let Some((first, span)) = self.range.filter(|_| self.column.is_some()) else { return true };
        words.iter().map(|word| word.wrapping_sub(first)).fold(0, u64::max) <= span
    }
}

/// Describes how a table's rows become records.
pub(super) struct RecordPlan {
    schema: SchemaRef,
    result: SchemaRef,
    key_type: DataType,
    words: Vec<WordSource>,
    /// The number of rows of all inputs, if each file states its number of rows.
    rows: Option<u64>,
    /// The smallest number of row groups that any input has.
    row_groups: usize,
    keys: Keys,
}

impl RecordPlan {
    /// Returns the plan. Returns `None` if rows cannot become records of numbers.
    pub fn new(asked: &ReduceRequest<'_>, schema: &SchemaRef) -> Option<RecordPlan> {
        let [by] = &asked.options.by[..] else { return None };
        let key_type = schema.field_with_name(by).ok()?.data_type().clone();
        is_key(&key_type).then_some(())?;
        let mut words = Vec::new();
        for aggregate in &asked.options.aggregates {
            let column =
                aggregate.column.as_ref().map(|column| schema.index_of(column).ok()).transpose_some()?;
            let kind = column.map(|column| schema.field(column).data_type());
            let word = |combine| WordSource::new(combine, column);
            let add = || match kind {
                Some(kind) if kind.is_unsigned_integer() => Some(Combine::AddUnsigned),
                Some(kind) if kind.is_integer() => Some(Combine::AddSigned),
                Some(kind) if kind.is_floating() => Some(Combine::AddFloat),
                _ => None,
            };
            let ordered = kind.is_some_and(|kind| kind.is_integer() || kind.is_floating());
            match aggregate.function {
                Function::Count => words.push(WordSource::new(Combine::Count, None)),
                Function::Sum => words.push(word(add()?)),
                // A mean must not fail because the sum of whole numbers needs more than 64 bits. Means of whole numbers
                // therefore use the general method.
                Function::Mean if add()? == Combine::AddFloat => {
                    words.extend([word(Combine::AddFloat), WordSource::new(Combine::Count, None)]);
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
        let row_groups = readers.iter().flatten().map(|reader| reader.row_groups().unwrap_or(1)).min();
        // The ranges of the key and of each word's column are read together, so that the footer of each file is read
        // once.
        let mut columns = vec![&**by];
        columns.extend(words.iter().filter_map(|word| Some(&**schema.field(word.column?).name())));
        let of_reader = |reader: &Option<TableReader>| reader.as_ref()?.ranges_of(&columns).ok();
        let of_all: Vec<_> = readers.iter().map(of_reader).collect::<Option<_>>().unwrap_or_default();
        let range_of = |place: usize| {
            let ranges = of_all.iter().map(|ranges| ranges[place]).collect::<Option<Vec<_>>>()?;
            ranges.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        };
        let keys = range_of(0).and_then(|range| Keys::between(&key_type, range));
        for (place, word) in words.iter_mut().filter(|word| word.column.is_some()).enumerate() {
            let kind = word.column.map(|column| schema.field(column).data_type());
            let kind = kind.filter(|kind| kind.is_integer());
            if let (Some(kind), Some(range), Some(rows)) = (kind, range_of(place + 1), rows) {
                *word = word.between(kind, range, rows);
            }
        }
        let keys = keys.unwrap_or(Keys::all(&key_type));
        fits.then(|| RecordPlan {
            schema: schema.clone(),
            result,
            key_type,
            words,
            rows,
            row_groups: row_groups.unwrap_or(1),
            keys,
        })
    }

    /// Returns a plan that accepts any keys and words.
    pub fn without_range(self) -> RecordPlan {
        let words = self.words.iter().map(|word| WordSource::new(word.combine, word.column)).collect();
        RecordPlan { keys: Keys::all(&self.key_type), words, rows: None, ..self }
    }
}

impl RecordPlan {
    /// Returns how many rows one thread reads at most. Row groups are divided among threads.
    fn rows_of_thread(&self, threads: usize) -> Option<u64> {
        let groups = self.row_groups.max(1);
        Some(self.rows?.div_ceil(groups as u64) * (groups / threads + 1).min(groups) as u64)
    }

    /// Adds a sufficient budget to an error of sort-reduce about too many runs.
    fn tell_enough<K: Key, V: Value>(
        &self,
        error: Error,
        asked: &ReduceRequest<'_>,
        memory_bytes: u64,
    ) -> Error {
        let budget = asked.job.budget();
        match (error, self.rows_of_thread(budget.threads())) {
            (Error::SortReduce(inshore_sortreduce::Error::TooManyRuns { name, spilled, .. }), Some(rows)) => {
                let needed = merge_memory_bytes_for::<K, V>(budget.threads(), rows).max(memory_bytes + 1);
                let memory = budget.memory_bytes();
                let more = (needed - memory_bytes).div_ceil(MEMORY_PART.0) * MEMORY_PART.1;
                let enough = Some((memory + more).next_multiple_of(1 << 20));
                Error::SortReduce(inshore_sortreduce::Error::TooManyRuns { name, spilled, memory, enough })
            }
            (error, _) => error,
        }
    }

    /// Returns the compact form of a record's words. Returns `None` if the range of a word is unknown, or if the words
    /// need too many bits.
    fn short<const N: usize>(&self) -> Option<CompactWords<N>> {
        CompactWords::new(&self.words.iter().map(|word| word.range).collect::<Option<Vec<_>>>()?)
    }
}

trait TransposeSome<T> {
    /// Turns `None` into `Some(None)`.
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

pub(super) fn reduce(asked: &ReduceRequest<'_>, plan: &RecordPlan) -> Result<Outcome> {
    // Sort-reduce is compiled for each record shape, so the number of shapes is small. A record may therefore have more
    // words than the job needs.
    let is_sum = plan.words.iter().all(|word| word.is_bounded);
    match (plan.keys.is_narrow(), plan.words.len()) {
        (true, 1) if is_sum => run::<u32, 1, true>(asked, plan),
        (true, 2) if is_sum => run::<u32, 2, true>(asked, plan),
        (true, 0 | 1) => run::<u32, 1, false>(asked, plan),
        (true, 2) => run::<u32, 2, false>(asked, plan),
        (true, _) => run::<u32, 4, false>(asked, plan),
        (false, 0 | 1) => run::<u64, 1, false>(asked, plan),
        (false, 2) => run::<u64, 2, false>(asked, plan),
        (false, _) => run::<u64, 4, false>(asked, plan),
    }
}

fn run<K: Key, const N: usize, const SUMS: bool>(
    asked: &ReduceRequest<'_>,
    plan: &RecordPlan,
) -> Result<Outcome>
where
    [u64; N]: Default,
{
    let overflow = Arc::new(AtomicBool::new(false));
    let combine: Vec<Combine> = plan.words.iter().map(|word| word.combine).collect();
    let operation = Words::<K, N, SUMS>::new(&combine, plan.short(), &overflow);
    let job = asked.job;
    let threads = job.budget().threads();
    // The runs are resumed only with the same number of threads, because the number of threads determines which rows
    // each thread reads.
    let keep = asked.keep(("numbers", threads, plan.keys), &plan.schema)?;
    let memory_bytes = asked.memory_bytes(smallest_memory_bytes(threads, size_of::<K>() + 8 * N))?;
    let config = Config {
        memory_bytes,
        sinks: threads,
        name: "reduce",
        expected_records: plan.rows,
        records_max: plan.rows,
        key_range: plan.keys.range(plan.rows),
        keep: keep.clone(),
        ..Config::default()
    };
    job.start_phase("grouping", "bytes", asked.compressed_bytes());
    // Bins of wide records take up to twice as long as sorted runs, since the single thread that reads the result does
    // most of the work. The key range is therefore used only for the array in memory, and for bins of short records.
    let is_short = operation.short_bits().is_some();
    let key_range = config.key_range.filter(|_| is_short || choose(&config, 8 * N) == Strategy::Dense);
    let reduce = SortReduce::new(job, operation, &Config { key_range, ..config })?;
    let choice = reduce.choice().clone();
    job.progress().tell(|| choice.to_string().trim_end().to_string());
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
    let results = on_threads(threads, &work);
    if saw_null.load(Ordering::Relaxed) {
        resume::finish(keep)?;
        return Ok(Outcome::SawNull);
    }
    if out_of_range.load(Ordering::Relaxed) {
        resume::finish(keep)?;
        return Ok(Outcome::OutOfRange);
    }
    let tell = |error| plan.tell_enough::<K, [u64; N]>(error, asked, memory_bytes);
    results.into_iter().collect::<Result<()>>().map_err(tell)?;
    let mut sorted = reduce.finish().map_err(|error| tell(error.into()))?;
    // The check that sums fit 64 bits relied on the row counts that the files state.
    if plan.rows.is_some_and(|rows| sorted.stats().records_in > rows) {
        resume::finish(keep)?;
        return Ok(Outcome::OutOfRange);
    }
    let writer = write_groups(asked, plan, &mut sorted)?;
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

/// Writes the groups. Returns the writer, which the caller has to finish.
fn write_groups<K: Key, const N: usize, const SUMS: bool>(
    asked: &ReduceRequest<'_>,
    plan: &RecordPlan,
    sorted: &mut Sorted<Words<K, N, SUMS>>,
) -> Result<BackgroundWriter>
where
    [u64; N]: Default,
{
    asked.job.start_phase("writing groups", "groups", 0);
    let file = asked.inputs[0].name();
    let mut writer = BackgroundWriter::create(asked.output, plan.result.clone(), asked.job.budget());
    while let Some(block) = sorted.next_block()? {
        asked.job.progress().add(block.keys.len() as u64);
        writer.write(batch(plan, asked, block.keys, block.values, file)?)?;
    }
    Ok(writer)
}

fn strategy_name(strategy: Strategy) -> String {
    format!("{strategy:?}").to_lowercase()
}

/// Calls `work` on `threads` threads. Each call receives the number of its thread.
fn on_threads(threads: usize, work: &(impl Fn(usize) -> Result<()> + Sync)) -> Vec<Result<()>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move_ref(work, number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("readers do not panic")).collect()
    })
}

/// Makes a closure for a thread. The closure borrows `work` and owns the number of the thread.
fn move_ref<'a, R>(work: &'a (impl Fn(usize) -> R + Sync), number: usize) -> impl FnOnce() -> R + 'a {
    move || work(number)
}

fn push<K: Key, const N: usize, const SUMS: bool>(
    asked: &ReduceRequest<'_>,
    plan: &RecordPlan,
    input: &Input,
    part: (usize, usize),
    sink: &mut inshore_sortreduce::Sink<Words<K, N, SUMS>>,
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
        let are_inside = plan.words.iter().zip(&words).all(|(word, words)| word.has(words));
        let Some(keys) = plan.keys.of_records::<K>(&keys).filter(|_| are_inside) else {
            out_of_range.store(true, Ordering::Relaxed);
            return Ok(());
        };
        let unused = vec![0; if words.len() < N { keys.len() } else { 0 }];
        let columns: [&[u64]; N] = std::array::from_fn(|i| words.get(i).unwrap_or(&unused).as_slice());
        sink.push_many(&keys, |row| columns.map(|words| words[row]))?;
        let now = reader.position();
        asked.job.progress().add(now.saturating_sub(position));
        position = now.max(position);
    }
    Ok(())
}

fn batch<K: Key, const N: usize>(
    plan: &RecordPlan,
    asked: &ReduceRequest<'_>,
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
