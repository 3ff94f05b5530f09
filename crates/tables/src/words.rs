//! Converts columns of numbers to words of 64 bits, and defines the operations by which sort-reduce combines words.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow_array::{
    Array, ArrayRef, Decimal128Array, Float64Array, Int64Array, UInt64Array,
    cast::AsArray,
    types::{Decimal128Type, Float64Type, Int64Type, UInt64Type},
};
use arrow_cast::cast::cast;
use arrow_schema::DataType;
use inshore_sortreduce::{Key, Operation};

use crate::{Error, Result};

/// The maximum number of 64-bit words in a record. If records had more words, sorting them would be as slow as sorting
/// encoded rows.
pub(crate) const WORDS_MAX: usize = 4;

/// The operation that combines two words of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Combine {
    #[default]
    Count,
    AddSigned,
    AddUnsigned,
    AddFloat,
    Min,
    Max,
    /// The bitwise OR.
    Or,
}

impl Combine {
    /// Returns the neutral word of the operation. A word that is combined with the neutral word stays the same.
    fn neutral(self) -> u64 {
        match self {
            Combine::Min => u64::MAX,
            // With 0.0 as the neutral word, a sum of -0.0 alone would become 0.0.
            Combine::AddFloat => (-0.0f64).to_bits(),
            Combine::Count | Combine::AddSigned | Combine::AddUnsigned | Combine::Max | Combine::Or => 0,
        }
    }
}

/// The range of key words, from `first` to `first + last`. A record stores the difference between its key and `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub first: u64,
    pub last: u64,
}

impl Keys {
    pub fn all(kind: &DataType) -> Keys {
        Keys { first: 0, last: if is_narrow(kind) { u32::MAX.into() } else { u64::MAX } }
    }

    /// Converts the values `min` and `max` of type `kind` to key words, and returns the range between them. Returns
    /// `None` if a value does not fit the type.
    pub fn between(kind: &DataType, (min, max): (i128, i128)) -> Option<Keys> {
        let word = |value: i128| match (kind.is_unsigned_integer(), is_narrow(kind)) {
            (true, _) => u64::try_from(value).ok(),
            (false, true) => i32::try_from(value).ok().map(|value| (value as u32 ^ (1 << 31)) as u64),
            (false, false) => i64::try_from(value).ok().map(|value| value as u64 ^ SIGN),
        };
        let (first, last) = (word(min)?, word(max)?);
        Some(Keys { first, last: last.checked_sub(first)? })
    }

    /// Returns true if 32 bits suffice for the keys of records.
    pub fn is_narrow(self) -> bool {
        self.last <= u32::MAX.into()
    }

    /// Converts key words to keys of records. Returns `None` if a key word lies outside of the range.
    pub fn of_records<K: Key>(self, keys: &[u64]) -> Option<Vec<K>> {
        let above_first = |&key: &u64| key.wrapping_sub(self.first);
        let inside = keys.iter().map(above_first).fold(0, u64::max) <= self.last;
        inside.then(|| keys.iter().map(|key| K::from_u64(above_first(key))).collect())
    }

    /// Returns how many different keys the range contains. If sort-reduce gets this number, it assumes that the keys of
    /// the records are evenly distributed over the range. If the range contains many more keys than there are rows, the
    /// function returns `None`, and sort-reduce samples the keys instead.
    pub fn range(self, rows: Option<u64>) -> Option<u64> {
        let range = self.last.checked_add(1)?;
        (range / KEYS_PER_ROW_MAX <= rows?).then_some(range)
    }
}

/// A range is passed to sort-reduce only if it contains at most this number of keys for each row.
pub(crate) const KEYS_PER_ROW_MAX: u64 = 64;

/// Returns true if columns of this type can be keys: whole numbers, dates and times.
pub(crate) fn is_key(kind: &DataType) -> bool {
    kind.is_integer() || matches!(kind, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
}

pub(crate) fn is_narrow(kind: &DataType) -> bool {
    matches!(kind.primitive_width(), Some(1 | 2 | 4))
}

/// Combines the words of records with the key type `K`. If `SUMS` is true, all words are added, and every sum is known
/// to fit into 64 bits. No word then needs an overflow test, so the compiler vectorizes the additions and needs no
/// branch on the equality of two keys.
#[derive(Clone)]
pub(crate) struct Words<K, const N: usize, const SUMS: bool = false> {
    combine: [Combine; N],
    short: Option<CompactWords<N>>,
    overflow: Arc<AtomicBool>,
    of: PhantomData<K>,
}

impl<K, const N: usize, const SUMS: bool> Words<K, N, SUMS> {
    /// Creates the operation. Words beyond those in `combine` are ignored. A sum that 64 bits do not hold sets
    /// `overflow`.
    pub fn new(combine: &[Combine], short: Option<CompactWords<N>>, overflow: &Arc<AtomicBool>) -> Self {
        let combine = std::array::from_fn(|i| combine.get(i).copied().unwrap_or_default());
        Words { combine, short, overflow: overflow.clone(), of: PhantomData }
    }
}

impl<K: Key, const N: usize, const SUMS: bool> Operation for Words<K, N, SUMS>
where
    [u64; N]: Default,
{
    type Key = K;
    type Value = [u64; N];

    #[inline]
    fn combine(&self, a: [u64; N], b: [u64; N]) -> [u64; N] {
        if SUMS {
            return std::array::from_fn(|i| a[i].wrapping_add(b[i]));
        }
        std::array::from_fn(|i| combine_words(self.combine[i], a[i], b[i], &self.overflow))
    }

    fn is_sound(&self) -> bool {
        !self.overflow.load(Ordering::Relaxed)
    }

    fn neutral(&self) -> Option<[u64; N]> {
        Some(self.combine.map(Combine::neutral))
    }

    fn short_bits(&self) -> Option<u32> {
        self.short.map(|short| short.bits)
    }

    #[inline(always)]
    fn shorten(&self, value: [u64; N]) -> u32 {
        self.short.map_or(0, |short| short.shorten(value))
    }

    #[inline(always)]
    fn lengthen(&self, short: u32) -> [u64; N] {
        self.short.map_or([0; N], |all| all.lengthen(short))
    }
}

/// A compact form of the words of one record. The form is used before records are combined. For each word, the form
/// contains the difference between the word and its smallest value. All differences are packed into one number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactWords<const N: usize> {
    least: [u64; N],
    /// For each word, the position of its lowest bit in the packed number.
    shift: [u32; N],
    /// For each word, a mask of its bits before they are shifted to the position in `shift`.
    mask: [u32; N],
    bits: u32,
}

/// The values of a record may have at most this number of bits, so that they fit into one 32-bit word together with the
/// bits of the key.
const SHORT_BITS_MAX: u32 = 24;

impl<const N: usize> CompactWords<N> {
    /// Creates the compact form. `ranges` has a pair `(first, span)` for each word, whose values are from `first` to
    /// `first + span`. Words without a range take no bits. Returns `None` if the words need too many bits.
    pub fn new(ranges: &[(u64, u64)]) -> Option<CompactWords<N>> {
        let mut short = CompactWords { least: [0; N], shift: [0; N], mask: [0; N], bits: 0 };
        for (i, &(first, span)) in ranges.iter().enumerate() {
            let bits = u64::BITS - span.leading_zeros();
            if short.bits + bits > SHORT_BITS_MAX {
                return None;
            }
            (short.least[i], short.shift[i], short.mask[i]) = (first, short.bits, (1 << bits) - 1);
            short.bits += bits;
        }
        Some(short)
    }

    #[inline(always)]
    fn shorten(self, value: [u64; N]) -> u32 {
        (0..N).fold(0, |short, i| {
            short | (value[i].wrapping_sub(self.least[i]) as u32 & self.mask[i]) << self.shift[i]
        })
    }

    #[inline(always)]
    fn lengthen(self, short: u32) -> [u64; N] {
        std::array::from_fn(|i| self.least[i].wrapping_add((short >> self.shift[i] & self.mask[i]).into()))
    }
}

#[inline(always)]
pub(crate) fn combine_words(combine: Combine, a: u64, b: u64, overflow: &AtomicBool) -> u64 {
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
        Combine::Or => a | b,
    }
}

pub(crate) const SIGN: u64 = 1 << 63;

/// Converts a floating-point number to a whole number, so that the order is the same. NaN becomes the greatest number,
/// as in SQL.
pub(crate) fn ordered(value: f64) -> u64 {
    total(if value.is_nan() { f64::NAN } else { value })
}

/// Converts a floating-point number to a whole number, so that the order is the total order of IEEE 754. In this order,
/// negative NaN is the smallest number.
pub(crate) fn total(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits & SIGN != 0 { !bits } else { bits | SIGN }
}

pub(crate) fn unordered(bits: u64) -> f64 {
    f64::from_bits(if bits & SIGN != 0 { bits & !SIGN } else { !bits })
}

/// Converts a column to words of 64 bits that the operation `combine` can combine.
pub(crate) fn words_of(array: &ArrayRef, combine: Combine, file: &str) -> Result<Vec<u64>> {
    let fail = |error: arrow_schema::ArrowError| Error::unsupported(file, error.to_string());
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
    let word = |value: i64| if is_ordered { value as u64 ^ SIGN } else { value as u64 };
    if kind.is_decimal() {
        let narrow = |value: Option<i128>| {
            let value = i64::try_from(value.unwrap_or(0))
                .map_err(|_| Error::unsupported(file, "a decimal number that exceeds 64 bits".to_string()));
            value.map(word)
        };
        return array.as_primitive::<Decimal128Type>().iter().map(narrow).collect();
    }
    let array = cast(array, &DataType::Int64).map_err(fail)?;
    Ok(array.as_primitive::<Int64Type>().values().iter().map(|&value| word(value)).collect())
}

/// Converts words to a column of type `kind`. This conversion reverses [`words_of`].
pub(crate) fn column_of(words: Vec<u64>, combine: Combine, kind: &DataType, file: &str) -> Result<ArrayRef> {
    let fail = |error: arrow_schema::ArrowError| Error::unsupported(file, error.to_string());
    let is_ordered = matches!(combine, Combine::Min | Combine::Max);
    let array: ArrayRef = if combine == Combine::Count || kind.is_unsigned_integer() {
        Arc::new(UInt64Array::from(words))
    } else if kind.is_floating() {
        let value = |word| if is_ordered { unordered(word) } else { f64::from_bits(word) };
        Arc::new(Float64Array::from_iter_values(words.into_iter().map(value)))
    } else {
        let value = |word| (if is_ordered { word ^ SIGN } else { word }) as i64;
        if kind.is_decimal() {
            let values = words.into_iter().map(|word| i128::from(value(word)));
            return Ok(Arc::new(Decimal128Array::from_iter_values(values).with_data_type(kind.clone())));
        }
        Arc::new(Int64Array::from_iter_values(words.into_iter().map(value)))
    };
    cast(&array, kind).map_err(fail)
}

/// Converts a column of keys to unsigned numbers, so that the order is the same.
pub(crate) fn key_words(array: &ArrayRef, file: &str) -> Result<Vec<u64>> {
    let kind = array.data_type();
    if kind.is_unsigned_integer() {
        return words_of(array, Combine::Min, file);
    }
    let fail = |error: arrow_schema::ArrowError| Error::unsupported(file, error.to_string());
    // Keys, including dates and times, are cast to 64-bit numbers. A 32-bit date is cast to a 32-bit number first.
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

/// Converts keys of records to a column of type `kind`. This conversion reverses [`key_words`].
pub(crate) fn key_column<K: Key>(keys: &[K], first: u64, kind: &DataType, file: &str) -> Result<ArrayRef> {
    let fail = |error: arrow_schema::ArrowError| Error::unsupported(file, error.to_string());
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
