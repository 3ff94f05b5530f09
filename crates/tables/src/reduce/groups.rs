//! Groups rows by one key of whole numbers. The aggregate states of a group are numbers. The caller passes the rows in
//! batches, as a query does.

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

/// The operation that combines the numbers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The sum.
    Sum,
    /// The smallest number. NaN counts as greater than all other numbers.
    Min,
    /// The largest number. NaN counts as greater than all other numbers.
    Max,
}

/// A column of numbers that are combined within each group.
#[derive(Clone, Debug)]
pub struct NumberState {
    /// The type of the numbers. It is a type of whole or floating-point numbers of up to 64 bits, or of decimals of 128
    /// bits if 64 bits hold every value and every sum.
    pub kind: DataType,
    /// The operation that combines the numbers.
    pub fold: Fold,
    /// True if the column may have nulls. Nulls are ignored, but the result of a group that has only nulls is null.
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

/// The settings of [`NumberGroups`].
#[derive(Clone, Copy, Debug)]
pub struct NumberConfig {
    /// The smallest and the largest possible key (inclusive), if known. A narrow range makes records shorter.
    pub range: Option<(i128, i128)>,
    /// An estimate of the number of rows.
    pub rows: Option<u64>,
    /// The memory that the groups take from the job's budget, in bytes.
    pub memory_bytes: u64,
    /// A limit on the size of chunks in bytes, as in [`Config::chunk_bytes`].
    pub chunk_bytes: Option<usize>,
}

/// Groups rows by one key of whole numbers, dates or times, with states that are numbers. All groups together may be
/// larger than memory. Input and output are columns. Grouping is an order of magnitude faster than a sort of rows.
pub struct NumberGroups {
    name: String,
    shape: StateWords,
    sink: Box<dyn RecordSink>,
    records: Box<dyn Records>,
}

/// The state columns, and the 64-bit words of a record that represent their values.
#[derive(Clone)]
struct StateWords {
    key_type: DataType,
    keys: Keys,
    states: Vec<NumberState>,
    /// The operation that combines the word of each state. If any state may be null, one more word follows, which has a
    /// bit for each state that is not null.
    combine: Vec<Combine>,
}

impl StateWords {
    fn new(key: &DataType, range: Option<(i128, i128)>, states: &[NumberState]) -> Option<StateWords> {
        is_key(key).then_some(())?;
        let mut combine = states.iter().map(NumberState::combine).collect::<Option<Vec<_>>>()?;
        if states.iter().any(|state| state.has_nulls) {
            combine.push(Combine::Or);
        }
        let keys = range.and_then(|range| Keys::between(key, range)).unwrap_or(Keys::all(key));
        let fits = combine.len() <= WORDS_MAX;
        fits.then(|| StateWords { key_type: key.clone(), keys, states: states.to_vec(), combine })
    }

    fn has_bits(&self) -> bool {
        self.combine.len() > self.states.len()
    }
}

impl NumberGroups {
    /// Returns true if keys and states of these types can be grouped.
    pub fn is_possible(key: &DataType, states: &[NumberState]) -> bool {
        StateWords::new(key, None, states).is_some()
    }

    /// Returns the smallest memory, in bytes, with which [`NumberGroups::new`] works.
    pub fn smallest_memory_bytes() -> u64 {
        smallest_memory_bytes(1, 8 + 8 * WORDS_MAX)
    }

    /// Begins a grouping on one thread. `name` names the rows in errors.
    ///
    /// # Errors
    /// - Returns the errors of [`inshore_sortreduce::SortReduce::new`].
    /// - Returns [`Error::Unsupported`] if [`NumberGroups::is_possible`] is false.
    pub fn new(
        job: &Job,
        name: &str,
        key: &DataType,
        states: &[NumberState],
        asked: &NumberConfig,
    ) -> Result<NumberGroups> {
        let shape = StateWords::new(key, asked.range, states)
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

    /// Adds rows. `key` is a column without nulls, and `states` has one column for each state.
    ///
    /// # Errors
    /// - Returns the errors of [`inshore_sortreduce::Sink::push_many`].
    /// - Returns [`Error::Damaged`] if a key is outside of the range, or if a column that has no nulls contains one.
    pub fn add(&mut self, key: &ArrayRef, states: &[ArrayRef]) -> Result<()> {
        let shape = &self.shape;
        let wrong = |what: &str| {
            Error::damaged(&self.name, format!("damaged file: its statistics are wrong: {what}"))
        };
        let mut words = Vec::with_capacity(shape.combine.len());
        let mut bits = vec![0; if shape.has_bits() { key.len() } else { 0 }];
        for (number, (column, state)) in states.iter().zip(&shape.states).enumerate() {
            let combine = shape.combine[number];
            let mut of_column = words_of(column, combine, &self.name)?;
            match column.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => bits.iter_mut().for_each(|bits| *bits |= 1 << number),
                Some(_) if !state.has_nulls => {
                    return Err(wrong("a column has a null, and the statistics count none"));
                }
                Some(nulls) => {
                    // A null becomes the neutral word, which does not change the result. The neutral word of a sum is
                    // 0.0. The sum of 0.0 and -0.0 is 0.0. This is correct, since 0.0 equals -0.0.
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
            return Err(wrong("a column has a key outside of the range of the statistics"));
        };
        self.sink.push(&keys, &words)
    }

    /// Returns the groups in ascending order of their keys.
    ///
    /// # Errors
    /// Returns the errors of [`inshore_sortreduce::SortReduce::finish`].
    pub fn finish(self) -> Result<SortedGroups> {
        self.sink.finish()?;
        let sorted = self.records.finish()?;
        Ok(SortedGroups { name: self.name, shape: self.shape, sorted })
    }
}

/// The complete groups, in the order of the key.
pub struct SortedGroups {
    name: String,
    shape: StateWords,
    sorted: Box<dyn SortedRecords>,
}

impl SortedGroups {
    /// Returns the next groups, about 1,000 of them. The first column has the keys, and one more column follows for
    /// each state. Returns `None` at the end.
    ///
    /// # Errors
    /// - Returns the errors of [`inshore_sortreduce::Sorted::next_block`].
    /// - Returns [`Error::Unsupported`] if 64 bits do not hold a sum.
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

    /// Returns the counters of the sort-reduce.
    pub fn stats(&self) -> Stats {
        self.sorted.stats()
    }
}
