//! Groups of one key of whole numbers with states that are numbers, for who has the rows already: a query.

use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use inshore_sortreduce::{Config, Stats, smallest_memory_bytes};
use inshore_store::Job;

use crate::{
    Error, Result,
    records::{RecordBlock, RecordSink, Records, SortedRecords, records},
    sort::with_nulls,
    words::{Combine, Keys, WORDS_MAX, column_of, is_key, key_column, key_words, words_of},
};

/// What is made of the numbers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Their sum.
    Sum,
    /// The smallest; NaN is greater than all others.
    Min,
    /// The largest.
    Max,
}

/// A column of numbers of which a group has one.
#[derive(Clone, Debug)]
pub struct NumberState {
    /// Whole numbers or fractions of up to 64 bits; or decimals of 128, of which no value and no sum needs more than 64.
    pub kind: DataType,
    /// What becomes of them.
    pub fold: Fold,
    /// Whether there may be nulls, which are passed over; a group of nulls alone has a null.
    pub has_nulls: bool,
}

impl NumberState {
    fn combine(&self) -> Option<Combine> {
        let kind = &self.kind;
        let is_fraction = matches!(kind, DataType::Float32 | DataType::Float64);
        match self.fold {
            _ if !kind.is_integer() && !is_fraction && !matches!(kind, DataType::Decimal128(..)) => None,
            Fold::Min => Some(Combine::Min),
            Fold::Max => Some(Combine::Max),
            Fold::Sum if is_fraction => Some(Combine::AddFloat),
            Fold::Sum if kind.is_unsigned_integer() => Some(Combine::AddUnsigned),
            Fold::Sum => Some(Combine::AddSigned),
        }
    }
}

/// In what [`NumberGroups`] are made.
#[derive(Clone, Copy, Debug)]
pub struct NumberConfig {
    /// All keys are known to lie between these, both included: records are narrower then.
    pub range: Option<(i128, i128)>,
    /// About how many rows there will be.
    pub rows: Option<u64>,
    /// Bytes of the job's budget.
    pub memory_bytes: u64,
    /// As [`Config::chunk_bytes`].
    pub chunk_bytes: Option<usize>,
}

/// A sort-reduce of one key of whole numbers (or dates, or times) and states of numbers, larger than memory; it takes
/// and gives columns. An order of magnitude faster than rows.
pub struct NumberGroups {
    name: String,
    shape: Shape,
    sink: Box<dyn RecordSink>,
    records: Box<dyn Records>,
}

/// The columns, and the words of a record that stand for them.
#[derive(Clone)]
struct Shape {
    key_type: DataType,
    keys: Keys,
    states: Vec<NumberState>,
    /// One for each state, and one of bits that say which of them are not null, where some may be.
    combine: Vec<Combine>,
}

impl Shape {
    fn new(key: &DataType, range: Option<(i128, i128)>, states: &[NumberState]) -> Option<Shape> {
        is_key(key).then_some(())?;
        let mut combine = states.iter().map(NumberState::combine).collect::<Option<Vec<_>>>()?;
        if states.iter().any(|state| state.has_nulls) {
            combine.push(Combine::Or);
        }
        let keys = range.and_then(|range| Keys::between(key, range)).unwrap_or(Keys::all(key));
        let fits = combine.len() <= WORDS_MAX;
        fits.then(|| Shape { key_type: key.clone(), keys, states: states.to_vec(), combine })
    }

    fn has_bits(&self) -> bool {
        self.combine.len() > self.states.len()
    }
}

impl NumberGroups {
    /// Whether there can be such groups.
    pub fn is_possible(key: &DataType, states: &[NumberState]) -> bool {
        Shape::new(key, None, states).is_some()
    }

    /// The least that [`NumberGroups::new`] takes.
    pub fn smallest_memory_bytes() -> u64 {
        smallest_memory_bytes(1, 8 + 8 * WORDS_MAX)
    }

    /// Groups that one thread makes. `name` stands for the rows in errors.
    ///
    /// # Errors
    /// As [`inshore_sortreduce::SortReduce::new`]; [`Error::Unsupported`] where [`NumberGroups::is_possible`] says no.
    pub fn new(
        job: &Job,
        name: &str,
        key: &DataType,
        states: &[NumberState],
        asked: &NumberConfig,
    ) -> Result<NumberGroups> {
        let shape = Shape::new(key, asked.range, states)
            .ok_or_else(|| Error::unsupported(name, "groups of other columns than numbers".to_string()))?;
        let config = Config {
            memory_bytes: asked.memory_bytes,
            expected_records: asked.rows,
            key_range: shape.keys.range(asked.rows),
            chunk_bytes: asked.chunk_bytes,
            name: "group",
            ..Config::default()
        };
        let records = records(job, shape.keys.is_narrow(), &shape.combine, &config)?;
        Ok(NumberGroups { name: name.to_string(), shape, sink: records.sink()?, records })
    }

    /// Adds rows: a key without nulls, and a column for each state.
    ///
    /// # Errors
    /// As [`inshore_sortreduce::Sink::push_many`]; [`Error::Damaged`] for a key out of the range, or a null where there should be none.
    pub fn add(&mut self, key: &ArrayRef, states: &[ArrayRef]) -> Result<()> {
        let shape = &self.shape;
        let wrong = |what: &str| Error::damaged(&self.name, format!("wrong statistics of a file: {what}"));
        let mut words = Vec::with_capacity(shape.combine.len());
        let mut bits = vec![0; if shape.has_bits() { key.len() } else { 0 }];
        for (number, (column, state)) in states.iter().zip(&shape.states).enumerate() {
            let combine = shape.combine[number];
            let mut of_column = words_of(column, combine, &self.name)?;
            match column.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => bits.iter_mut().for_each(|bits| *bits |= 1 << number),
                Some(_) if !state.has_nulls => return Err(wrong("there is a null where it counts none")),
                Some(nulls) => {
                    // What changes nothing. A sum of -0.0 and such a one is 0.0, and equal.
                    let neutral = if combine == Combine::Min { u64::MAX } else { 0 };
                    for (row, word) in of_column.iter_mut().enumerate() {
                        if nulls.is_valid(row) {
                            bits[row] |= 1 << number;
                        } else {
                            *word = neutral;
                        }
                    }
                }
            }
            words.push(of_column);
        }
        if shape.has_bits() {
            words.push(bits);
        }
        let Some(keys) = shape.keys.of_records::<u64>(&key_words(key, &self.name)?) else {
            return Err(wrong("there is a key below the smallest or above the largest of it"));
        };
        self.sink.push(&keys, &words)
    }

    /// The groups in ascending order.
    ///
    /// # Errors
    /// As [`inshore_sortreduce::SortReduce::finish`].
    pub fn finish(self) -> Result<SortedGroups> {
        self.sink.finish()?;
        let sorted = self.records.finish()?;
        Ok(SortedGroups { name: self.name, shape: self.shape, sorted })
    }
}

/// Groups with all their rows, in the order of the key.
pub struct SortedGroups {
    name: String,
    shape: Shape,
    sorted: Box<dyn SortedRecords>,
}

impl SortedGroups {
    /// The next groups, some 1,000: a column of keys, and one for each state; `None` at the end.
    ///
    /// # Errors
    /// As [`inshore_sortreduce::Sorted::next_block`]; [`Error::Unsupported`] for a sum that 64 bits do not hold.
    pub fn next_columns(&mut self) -> Result<Option<Vec<ArrayRef>>> {
        let block = self.sorted.next_block()?;
        if self.sorted.is_overflown() {
            let what = "a sum does not fit 64 bits: cast the column to DOUBLE or DECIMAL".to_string();
            return Err(Error::unsupported(&self.name, what));
        }
        let Some(RecordBlock { keys, words }) = block else { return Ok(None) };
        let shape = &self.shape;
        let bits = shape.has_bits().then(|| words.last().expect("there is one of bits").clone());
        let mut columns = vec![key_column(&keys, shape.keys.first, &shape.key_type, &self.name)?];
        for (number, (of_column, state)) in words.into_iter().zip(&shape.states).enumerate() {
            let column = column_of(of_column, shape.combine[number], &state.kind, &self.name)?;
            let is_valid =
                |bits: &Vec<u64>| bits.iter().map(|bits| bits >> number & 1 == 1).collect::<NullBuffer>();
            columns.push(match bits.as_ref().filter(|_| state.has_nulls).map(is_valid) {
                Some(nulls) if nulls.null_count() > 0 => with_nulls(&column, nulls),
                _ => column,
            });
        }
        Ok(Some(columns))
    }

    /// What it did.
    pub fn stats(&self) -> Stats {
        self.sorted.stats()
    }
}
