//! Sorts rows whose numbers together fit 64 bits. Each distinct row becomes one 64-bit number with a count.
//!
//! ```text
//!   row  k = 7, v = null, d = 12      ranges of the columns: 0..=99, 0..=1000 or null, 10..=13
//!   key  [ 7 | null | 2 ]             7 + 10 + 2 bits, in the order of the columns
//! ```
//!
//! The columns that are not sort keys follow the sort keys in the 64-bit key, so rows with equal 64-bit keys are
//! identical.

use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, SortOptions};
use inshore_sortreduce::{Config, Stats, smallest_memory_bytes};
use inshore_store::Job;

use crate::{
    Error, Result,
    records::{RecordSink, Records, SortedRecords, records},
    words::{Combine, Keys, column_of, is_key, key_column, key_words, total, words_of},
};

/// A column of numbers, and the order in which rows are sorted by the column.
#[derive(Clone, Debug)]
pub struct NumberColumn {
    /// The type of the numbers: whole numbers, dates, times, or floating-point numbers of up to 64 bits.
    pub kind: DataType,
    /// The smallest and the largest possible number, if known (inclusive).
    pub range: Option<(i128, i128)>,
    /// True if the column may have nulls.
    pub has_nulls: bool,
    /// The direction, and whether nulls come first or last.
    pub order: SortOptions,
}

/// The settings of a [`NumberSort`].
#[derive(Clone, Copy, Debug)]
pub struct NumberSortConfig {
    /// How many sinks push rows at the same time.
    pub sinks: usize,
    /// An estimate of the number of rows.
    pub rows: Option<u64>,
    /// The memory that the sort takes from the job's budget, in bytes.
    pub memory_bytes: u64,
    /// A limit on the size of chunks in bytes, as in [`Config::chunk_bytes`].
    pub chunk_bytes: Option<usize>,
}

/// Sorts rows of numbers. All rows together may be larger than memory. Each row becomes a 64-bit key, and equal rows
/// are counted.
pub struct NumberSort {
    shape: KeyLayout,
    records: Box<dyn Records>,
}

/// Takes the rows of one thread.
pub struct NumberSink {
    shape: KeyLayout,
    sink: Box<dyn RecordSink>,
}

/// All rows in sorted order.
pub struct SortedNumbers {
    shape: KeyLayout,
    sorted: Box<dyn SortedRecords>,
    keys: Vec<u64>,
    counts: Vec<u64>,
    /// The index in `keys` of the next key, and how many of the rows with this key were already returned.
    at: (usize, u64),
}

/// The positions of the columns in a key.
#[derive(Clone)]
struct KeyLayout {
    name: String,
    columns: Vec<KeyPart>,
    bits: u32,
}

#[derive(Clone)]
struct KeyPart {
    column: NumberColumn,
    keys: Keys,
    /// The number that stands for null, if the column may have nulls.
    null: Option<u64>,
    /// How many bits of a key are below the bits of the column.
    shift: u32,
    /// How many bits of a key belong to the column.
    bits: u32,
}

impl KeyLayout {
    fn new(name: &str, columns: &[NumberColumn]) -> Option<KeyLayout> {
        let mut parts = Vec::new();
        for column in columns {
            let kind = &column.kind;
            let is_fraction = matches!(kind, DataType::Float32 | DataType::Float64);
            let keys =
                match column.range.filter(|_| is_key(kind)).and_then(|range| Keys::between(kind, range)) {
                    Some(keys) => keys,
                    None if is_key(kind) => Keys::all(kind),
                    None if is_fraction => Keys { first: 0, last: u64::MAX },
                    None => return None,
                };
            // Null takes one additional code, which is the first or the last code of the column.
            let last = if column.has_nulls { keys.last.checked_add(1)? } else { keys.last };
            let null = column.has_nulls.then_some(if column.order.nulls_first { 0 } else { last });
            let bits = u64::BITS - last.leading_zeros();
            parts.push(KeyPart { column: column.clone(), keys, null, shift: 0, bits });
        }
        let bits: u32 = parts.iter().map(|part| part.bits).sum();
        let mut left = bits;
        for part in &mut parts {
            left -= part.bits;
            part.shift = left;
        }
        (bits <= u64::BITS).then(|| KeyLayout { name: name.to_string(), columns: parts, bits })
    }

    fn keys(&self, columns: &[ArrayRef]) -> Result<Vec<u64>> {
        let mut keys = vec![0; columns.first().map_or(0, |column| column.len())];
        for (part, column) in self.columns.iter().zip(columns) {
            part.add_to(&mut keys, column, &self.name)?;
        }
        Ok(keys)
    }

    fn columns(&self, keys: &[u64]) -> Result<Vec<ArrayRef>> {
        self.columns.iter().map(|part| part.column_of(keys, &self.name)).collect()
    }
}

impl KeyPart {
    fn is_fraction(&self) -> bool {
        self.column.kind.is_floating()
    }

    /// Adds the bits of a column to the keys of all rows.
    fn add_to(&self, keys: &mut [u64], column: &ArrayRef, name: &str) -> Result<()> {
        let words = match self.is_fraction() {
            // Floating-point numbers are sorted by the total order, as in all other sorts.
            true => words_of(column, Combine::AddFloat, name)?
                .into_iter()
                .map(f64::from_bits)
                .map(total)
                .collect(),
            false => key_words(column, name)?,
        };
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        let wrong =
            |what: &str| Error::damaged(name, format!("damaged file: its statistics are wrong: {what}"));
        if nulls.is_some() && self.null.is_none() {
            return Err(wrong("a column has a null, and the statistics count none"));
        }
        let Keys { first, last } = self.keys;
        let is_moved = u64::from(self.null == Some(0));
        let mut is_outside = false;
        for (row, (key, word)) in keys.iter_mut().zip(words).enumerate() {
            let above = word.wrapping_sub(first);
            let code = match nulls.is_some_and(|nulls| nulls.is_null(row)) {
                true => self.null.expect("looked at above"),
                false => {
                    is_outside |= above > last;
                    (if self.column.order.descending { last.wrapping_sub(above) } else { above })
                        .wrapping_add(is_moved)
                }
            };
            // A column with one possible value has no bits. If 64 bits of other columns follow this column, the shift
            // is 64.
            *key |= code.checked_shl(self.shift).unwrap_or(0);
        }
        match is_outside {
            true => Err(wrong("a column has a number outside of the range of the statistics")),
            false => Ok(()),
        }
    }

    fn column_of(&self, keys: &[u64], name: &str) -> Result<ArrayRef> {
        let mask = u64::MAX.checked_shr(u64::BITS - self.bits).unwrap_or(0);
        let codes = || keys.iter().map(|key| key.checked_shr(self.shift).unwrap_or(0) & mask);
        let Keys { first, last } = self.keys;
        let is_moved = u64::from(self.null == Some(0));
        let word = |code: u64| {
            let above = code.wrapping_sub(is_moved);
            (if self.column.order.descending { last.wrapping_sub(above) } else { above }).wrapping_add(first)
        };
        let words: Vec<u64> = codes().map(word).collect();
        let kind = &self.column.kind;
        let valid = self.null.map(|null| codes().map(|code| code != null).collect::<NullBuffer>());
        let valid = valid.filter(|valid| valid.null_count() > 0);
        let words = match &valid {
            // The bits of a null value are meaningless, so the smallest key replaces them.
            Some(valid) => words
                .iter()
                .enumerate()
                .map(|(row, &word)| if valid.is_valid(row) { word } else { first })
                .collect(),
            None => words,
        };
        let column = match self.is_fraction() {
            true => column_of(words, Combine::Min, kind, name)?,
            false => key_column(&words, 0, kind, name)?,
        };
        Ok(valid.map_or_else(|| column.clone(), |valid| with_nulls(&column, valid)))
    }
}

/// Copies a column, and replaces by null each value that `valid` marks as invalid.
pub(crate) fn with_nulls(column: &ArrayRef, valid: NullBuffer) -> ArrayRef {
    let data = column.to_data().into_builder().nulls(Some(valid));
    make_array(data.build().expect("as many bits as values"))
}

impl NumberSort {
    /// Returns true if a row of these columns fits into 64 bits.
    pub fn is_possible(columns: &[NumberColumn]) -> bool {
        KeyLayout::new("", columns).is_some()
    }

    /// Returns the smallest memory, in bytes, with which [`NumberSort::new`] works.
    pub fn smallest_memory_bytes(sinks: usize) -> u64 {
        smallest_memory_bytes(sinks, 16)
    }

    /// Begins to sort rows by their columns, in order. `name` names the rows in errors.
    ///
    /// # Errors
    /// - Returns the errors of [`inshore_sortreduce::SortReduce::new`].
    /// - Returns [`Error::Unsupported`] if [`NumberSort::is_possible`] is false.
    pub fn new(
        job: &Job,
        name: &str,
        columns: &[NumberColumn],
        asked: &NumberSortConfig,
    ) -> Result<NumberSort> {
        let shape = KeyLayout::new(name, columns)
            .ok_or_else(|| Error::unsupported(name, "a sort of other columns than numbers".to_string()))?;
        let keys = Keys { first: 0, last: u64::MAX.checked_shr(u64::BITS - shape.bits).unwrap_or(0) };
        let config = Config {
            memory_bytes: asked.memory_bytes,
            sinks: asked.sinks,
            expected_records: asked.rows,
            key_range: keys.range(asked.rows),
            chunk_bytes: asked.chunk_bytes,
            name: "order",
            ..Config::default()
        };
        let records = records(job, keys.is_narrow(), &[Combine::Count], &config)?;
        Ok(NumberSort { shape, records })
    }

    /// Makes a sink for one thread.
    ///
    /// # Errors
    /// Returns the errors of [`inshore_sortreduce::SortReduce::sink`].
    pub fn sink(&self) -> Result<NumberSink> {
        Ok(NumberSink { shape: self.shape.clone(), sink: self.records.sink()? })
    }

    /// Returns the rows in order. All sinks must be finished before this call.
    ///
    /// # Errors
    /// Returns the errors of [`inshore_sortreduce::SortReduce::finish`].
    pub fn finish(self) -> Result<SortedNumbers> {
        let sorted = self.records.finish()?;
        Ok(SortedNumbers { shape: self.shape, sorted, keys: Vec::new(), counts: Vec::new(), at: (0, 0) })
    }
}

impl NumberSink {
    /// Adds rows.
    ///
    /// # Errors
    /// - Returns the errors of [`inshore_sortreduce::Sink::push_many`].
    /// - Returns [`Error::Damaged`] if a number is outside of the range of its column, or if a column that has no nulls
    ///   contains one.
    pub fn add(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let keys = self.shape.keys(columns)?;
        let counts = vec![1; keys.len()];
        self.sink.push(&keys, &[counts])
    }

    /// Ends the rows of this sink.
    ///
    /// # Errors
    /// Returns the errors of [`NumberSink::add`].
    pub fn finish(self) -> Result<()> {
        self.sink.finish()
    }
}

impl SortedNumbers {
    /// Returns the columns of the next rows, at most `rows` rows. Returns `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of [`inshore_sortreduce::Sorted::next_block`].
    pub fn next_columns(&mut self, rows: usize) -> Result<Option<Vec<ArrayRef>>> {
        let mut keys = Vec::with_capacity(rows);
        while keys.len() < rows {
            let (place, given) = self.at;
            if place == self.keys.len() {
                let Some(mut block) = self.sorted.next_block()? else { break };
                (self.keys, self.counts) = (block.keys, block.words.pop().expect("there are counts"));
                self.at = (0, 0);
                continue;
            }
            let left = self.counts[place] - given;
            let count = left.min((rows - keys.len()) as u64);
            keys.extend(std::iter::repeat_n(self.keys[place], count as usize));
            self.at = if count == left { (place + 1, 0) } else { (place, given + count) };
        }
        if keys.is_empty() { Ok(None) } else { self.shape.columns(&keys).map(Some) }
    }

    /// Returns the counters of the sort-reduce.
    pub fn stats(&self) -> Stats {
        self.sorted.stats()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Date32Array, Float64Array, Int16Array, Int64Array, UInt64Array};
    use arrow_ord::sort::{SortColumn, lexsort_to_indices};
    use arrow_select::take::take;
    use inshore_store::{Budget, Cancel, Store};
    use proptest::prelude::*;

    use super::*;

    /// Sorts with this module and with arrow, and checks that both results have the same order.
    fn check(
        columns: &[(ArrayRef, Option<(i128, i128)>)],
        orders: &[SortOptions],
        chunk_bytes: Option<usize>,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(32 << 20, 1), Cancel::default()).unwrap();
        let described: Vec<NumberColumn> = columns
            .iter()
            .zip(orders)
            .map(|((column, range), &order)| NumberColumn {
                kind: column.data_type().clone(),
                range: *range,
                has_nulls: column.null_count() > 0,
                order,
            })
            .collect();
        let config = NumberSortConfig { sinks: 2, rows: None, memory_bytes: 8 << 20, chunk_bytes };
        let sort = NumberSort::new(&job, "test", &described, &config).unwrap();
        let half = columns[0].0.len() / 2;
        for (start, len) in [(0, half), (half, columns[0].0.len() - half)] {
            let mut sink = sort.sink().unwrap();
            sink.add(&columns.iter().map(|(column, _)| column.slice(start, len)).collect::<Vec<_>>())
                .unwrap();
            sink.finish().unwrap();
        }
        let mut sorted = sort.finish().unwrap();
        let mut found: Vec<Vec<ArrayRef>> = vec![Vec::new(); columns.len()];
        while let Some(some) = sorted.next_columns(100).unwrap() {
            assert!((1..=100).contains(&some[0].len()));
            found.iter_mut().zip(some).for_each(|(all, some)| all.push(some));
        }
        let by: Vec<SortColumn> = columns
            .iter()
            .zip(orders)
            .map(|((column, _), &order)| SortColumn { values: column.clone(), options: Some(order) })
            .collect();
        let places = lexsort_to_indices(&by, None).unwrap();
        for ((column, _), found) in columns.iter().zip(found) {
            let expected = take(column, &places, None).unwrap();
            let found: Vec<&dyn Array> = found.iter().map(|some| some.as_ref()).collect();
            if found.is_empty() {
                assert!(expected.is_empty());
                continue;
            }
            assert_eq!(&arrow_select::concat::concat(&found).unwrap(), &expected);
        }
    }

    fn order() -> impl Strategy<Value = SortOptions> {
        (any::<bool>(), any::<bool>())
            .prop_map(|(descending, nulls_first)| SortOptions { descending, nulls_first })
    }

    proptest! {
        #[test]
        fn rows_come_in_the_order_of_their_columns(
            rows in prop::collection::vec(
                (prop::option::weighted(0.9, -5i64..2000), any::<i16>(), prop::option::of(-9i32..9), 7u64..8), 0..500),
            orders in prop::collection::vec(order(), 4),
            makes_runs: bool,
        ) {
            let columns: [(ArrayRef, Option<(i128, i128)>); 4] = [
                (Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()), Some((-5, 1999))),
                (Arc::new(rows.iter().map(|row| Some(row.1)).collect::<Int16Array>()), None),
                (Arc::new(rows.iter().map(|row| row.2).collect::<Date32Array>()), Some((-9, 8))),
                (Arc::new(rows.iter().map(|row| Some(row.3)).collect::<UInt64Array>()), Some((7, 7))),
            ];
            check(&columns, &orders, makes_runs.then_some(64 << 10));
        }

        #[test]
        fn columns_of_64_bits_stand_alone(
            rows in prop::collection::vec((any::<i64>(), any::<f64>()), 0..300),
            order in order(),
        ) {
            let whole: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>());
            let special = |row: &(i64, f64)| match row.0 % 9 {
                0 => f64::NAN,
                1 => -f64::NAN,
                2 => f64::NEG_INFINITY,
                3 => -0.0,
                4 => 0.0,
                _ => row.1,
            };
            let fractions: ArrayRef = Arc::new(rows.iter().map(|row| Some(special(row))).collect::<Float64Array>());
            let one: ArrayRef = Arc::new(UInt64Array::from(vec![1u64 << 63; rows.len()]));
            let of_one = Some((1i128 << 63, 1i128 << 63));
            check(&[(whole.clone(), None)], &[order], None);
            check(&[(fractions, None)], &[order], None);
            check(&[(one.clone(), of_one), (whole.clone(), None), (one, of_one)], &[order; 3], None);
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused_before_and_while_they_come() {
        let column = |kind: DataType, range| NumberColumn {
            kind,
            range,
            has_nulls: false,
            order: SortOptions::default(),
        };
        let (long, byte) = (column(DataType::Int64, None), column(DataType::UInt8, Some((3, 4))));
        assert!(!NumberSort::is_possible(&[long.clone(), byte.clone()]));
        assert!(!NumberSort::is_possible(&[NumberColumn { has_nulls: true, ..long.clone() }]));
        assert!(!NumberSort::is_possible(&[column(DataType::Utf8, None)]));
        assert!(NumberSort::is_possible(&[column(DataType::Int64, Some((0, 1 << 40))), byte.clone()]));
        let shape = KeyLayout::new("rows", &[byte]).unwrap();
        let outside: ArrayRef = Arc::new(arrow_array::UInt8Array::from(vec![3, 5]));
        assert!(matches!(shape.keys(&[outside]), Err(Error::Damaged { .. })));
        let null: ArrayRef = Arc::new(arrow_array::UInt8Array::from(vec![Some(3), None]));
        assert!(matches!(shape.keys(&[null]), Err(Error::Damaged { .. })));
    }
}
