//! Classifies the values of a column in a text file (CSV, JSON lines), to find the type that fits all values.
//!
//! A column's type is inferred from the first rows. Each value adds its class to a set ([`ValueClasses`]). The set
//! determines the narrowest type in which every value keeps its meaning:
//!
//! ```text
//!   whole numbers   Int64, else UInt64, else Decimal128(38, 0)
//!   with fractions  Float64, as long as it holds the whole numbers among them exactly
//!   anything else   Utf8 (JSON: Boolean for truth values alone)
//! ```

use std::ops::BitOrAssign;

use arrow_schema::{DataType, Fields};

/// The type of whole numbers that need more than 64 bits.
pub(super) const WIDE: DataType = DataType::Decimal128(WIDE_DIGITS, 0);
const WIDE_DIGITS: u8 = 38;
/// The smallest number with more than [`WIDE_DIGITS`] digits.
const WIDE_END: u128 = 10u128.pow(WIDE_DIGITS as u32);
/// Whole numbers with this many digits may exceed 2^53. `f64` represents all whole numbers with fewer digits exactly.
const EXACT_DIGITS: usize = 16;

/// A set of classes of the values of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueClasses(u8);

impl ValueClasses {
    /// The empty set, which stands for a column that has only nulls.
    pub const NOTHING: ValueClasses = ValueClasses(0);
    const WHOLE: ValueClasses = ValueClasses(1);
    const NEGATIVE: ValueClasses = ValueClasses(1 << 1);
    /// A number above 2^63-1.
    const LARGE: ValueClasses = ValueClasses(1 << 2);
    /// A number above 2^64-1 or below -2^63.
    const HUGE: ValueClasses = ValueClasses(1 << 3);
    const FRACTION: ValueClasses = ValueClasses(1 << 4);
    pub const TEXT: ValueClasses = ValueClasses(1 << 5);
    pub const TRUTH: ValueClasses = ValueClasses(1 << 6);
    /// An object or an array.
    pub const NESTED: ValueClasses = ValueClasses(1 << 7);

    /// Classifies a field of CSV that is not empty.
    pub fn of_text(value: &str) -> ValueClasses {
        let value = value.trim();
        match ValueClasses::of_whole(value) {
            Some(seen) => seen,
            None if fraction(value).is_some() => ValueClasses::FRACTION,
            None => ValueClasses::TEXT,
        }
    }

    /// Classifies a number of JSON.
    #[cfg(feature = "json")]
    pub fn of_number(number: &str) -> ValueClasses {
        ValueClasses::of_whole(number).unwrap_or(ValueClasses::FRACTION)
    }

    fn of_whole(value: &str) -> Option<ValueClasses> {
        let digits = digits(value)?.trim_start_matches('0');
        let is_negative = value.starts_with('-');
        let mut seen = ValueClasses::WHOLE;
        if is_negative {
            seen |= ValueClasses::NEGATIVE;
        }
        if digits.len() <= 18 {
            return Some(seen);
        }
        let magnitude = digits.parse::<u128>().unwrap_or(u128::MAX);
        let (large, huge) = match is_negative {
            true => (false, magnitude > 1 << 63),
            false => (magnitude >= 1 << 63, magnitude > u64::MAX.into()),
        };
        if large {
            seen |= ValueClasses::LARGE;
        }
        if huge {
            seen |= ValueClasses::HUGE;
        }
        Some(seen)
    }

    pub fn has(self, other: ValueClasses) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the narrowest type in which all values keep their meaning. A column of nulls becomes text. Nested values
    /// get a type that no reader supports. A query that reads such a column then fails with an error that names the
    /// column.
    pub fn data_type(self) -> DataType {
        if self.has(ValueClasses::NESTED) {
            return DataType::Struct(Fields::empty());
        }
        if self == ValueClasses::TRUTH {
            return DataType::Boolean;
        }
        if self == ValueClasses::NOTHING || self.has(ValueClasses::TEXT) || self.has(ValueClasses::TRUTH) {
            return DataType::Utf8;
        }
        match (self.has(ValueClasses::FRACTION), self.has(ValueClasses::HUGE), self.has(ValueClasses::LARGE))
        {
            (true, ..) => DataType::Float64,
            (false, true, _) => WIDE,
            (false, false, true) if self.has(ValueClasses::NEGATIVE) => WIDE,
            (false, false, true) => DataType::UInt64,
            (false, false, false) => DataType::Int64,
        }
    }
}

impl BitOrAssign for ValueClasses {
    fn bitor_assign(&mut self, other: ValueClasses) {
        self.0 |= other.0;
    }
}

/// Returns the digits of a whole number, without its sign. Returns `None` if the value is not a whole number.
fn digits(value: &str) -> Option<&str> {
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_whole.then_some(digits)
}

/// Parses a number as `f64`. Returns `None` for text, and for numbers beyond the range of `f64`.
pub(super) fn fraction(value: &str) -> Option<f64> {
    let number: f64 = value.parse().ok()?;
    let is_too_large = number.is_infinite() && value.bytes().any(|byte| byte.is_ascii_digit());
    (!is_too_large).then_some(number)
}

/// Returns true if a text looks like a date, a time or both. Such a text has groups of digits that are separated by the
/// usual signs (`-`, `/`, `:`).
pub(super) fn is_time(value: &str) -> bool {
    let is_sign = |byte: u8| matches!(byte, b'-' | b'/' | b':' | b'.' | b'+' | b' ' | b'T' | b'Z');
    let groups = value.split(|sign: char| !sign.is_ascii_digit()).filter(|digits| !digits.is_empty());
    groups.count() > 1
        && value.starts_with(|first: char| first.is_ascii_digit())
        && value.bytes().all(|byte| byte.is_ascii_digit() || is_sign(byte))
}

/// Parses a number as [`fraction`] does. Also returns `None` for a whole number that `f64` represents only
/// approximately, since two different ids would become equal.
pub(super) fn exact_fraction(value: &str) -> Option<f64> {
    let number = fraction(value)?;
    if value.len() < EXACT_DIGITS {
        return Some(number);
    }
    let Some(digits) = digits(value) else { return Some(number) };
    let digits = digits.trim_start_matches('0');
    let magnitude = number.abs();
    // The number is exact if it has few digits, or if printing the `f64` gives the same digits.
    let is_held = digits.len() < EXACT_DIGITS
        || digits == format!("{magnitude:.0}")
        || digits == format!("{magnitude}");
    is_held.then_some(number)
}

/// Parses a whole number of at most 38 digits.
pub(super) fn wide(value: &str) -> Option<i128> {
    value.parse::<i128>().ok().filter(|value| value.unsigned_abs() < WIDE_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[&str]) -> DataType {
        let mut seen = ValueClasses::NOTHING;
        values.iter().for_each(|value| seen |= ValueClasses::of_text(value));
        seen.data_type()
    }

    #[test]
    fn the_narrowest_type_that_keeps_every_value_is_chosen() {
        let (max, min) = ("9223372036854775807", "-9223372036854775808");
        for (values, expected) in [
            (&["7", " -3", "+5", "007"][..], DataType::Int64),
            (&[max, min], DataType::Int64),
            (&["9223372036854775808", "18446744073709551615", "0"], DataType::UInt64),
            (&["9223372036854775808", "-1"], WIDE),
            (&["18446744073709551616"], WIDE),
            (&["-9223372036854775809"], WIDE),
            (&["1", "0.5"], DataType::Float64),
            (&["1e3", "nan", "-inf"], DataType::Float64),
            (&["1e999"], DataType::Utf8),
            (&["0x10"], DataType::Utf8),
            (&["1", "a"], DataType::Utf8),
            (&[], DataType::Utf8),
        ] {
            assert_eq!(kind(values), expected, "{values:?}");
        }
    }

    #[test]
    fn fractions_hold_whole_numbers_exactly_or_not_at_all() {
        for held in
            ["9007199254740992", "123", "100000000000000000000000", "-0", "0.1", "12345678901234567890.5"]
        {
            assert!(exact_fraction(held).is_some(), "{held}");
        }
        for lost in ["9007199254740993", "-9007199254740993", "12345678901234567891"] {
            assert_eq!(exact_fraction(lost), None, "{lost}");
        }
        assert_eq!(wide(&"9".repeat(38)), Some(WIDE_END as i128 - 1));
        assert_eq!(wide(&"9".repeat(39)), None);
    }
}
