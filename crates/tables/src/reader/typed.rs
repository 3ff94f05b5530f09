//! Builds columns of chosen types from the values of a text file (CSV, JSON lines), one value after the other.

#[cfg(feature = "json")]
use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, UInt32Array,
    UInt64Array, builder::StringBuilder, make_array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};

use super::value_classes::{WIDE, exact_fraction, fraction, wide};

/// The origin of a column's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeOrigin {
    /// The caller requested the type. Any value that can be parsed as this type is accepted.
    Asked,
    /// The type was inferred from values. A value of another kind, or beyond the type's range, is an error.
    Guessed,
    /// The first rows had no value in this column. Any later value is an error.
    Unseen,
}

/// The values of a column so far.
pub(super) struct Column {
    values: Values,
    origin: TypeOrigin,
    /// For each row, true if the row has a value. The list exists only if the column may have nulls.
    valid: Option<Vec<bool>>,
}

impl Column {
    /// Makes an empty column of a type that [`is_typed`] allows.
    pub fn new(field: &Field, origin: TypeOrigin) -> Self {
        Column { values: Values::new(field.data_type()), origin, valid: field.is_nullable().then(Vec::new) }
    }

    /// Adds a null. Returns `None` if the column allows no nulls.
    pub fn push_null(&mut self) -> Option<u64> {
        self.valid.as_mut()?.push(false);
        self.values.push_default();
        Some(0)
    }

    /// Adds a field of CSV. Returns how many bytes of text the column stored for the field. For a number, the result is
    /// 0. Returns `None` if the field cannot be parsed as the type of the column.
    pub fn push_text(&mut self, field: &[u8]) -> Option<u64> {
        if field.is_empty() && self.valid.is_some() {
            return self.push_null();
        }
        if self.origin == TypeOrigin::Unseen {
            return None;
        }
        let bytes = self.values.push(std::str::from_utf8(field).ok()?, self.origin)?;
        self.push_valid();
        Some(bytes)
    }

    /// Adds a value in its JSON form. The result is that of [`Column::push_text`].
    #[cfg(feature = "json")]
    pub fn push_json(&mut self, value: &str) -> Option<u64> {
        let first = *value.as_bytes().first()?;
        if first == b'n' {
            return self.push_null();
        }
        let is_text = matches!(self.values, Values::Utf8(_));
        let bytes = match first {
            _ if self.origin == TypeOrigin::Unseen => None,
            b'{' | b'[' => None,
            b'"' if is_text || self.origin == TypeOrigin::Asked => {
                self.values.push(&unquoted(value)?, self.origin)
            }
            // Digits in quotes may be an identifier rather than a number: "007".
            b'"' => None,
            b't' | b'f' if !is_text => match &mut self.values {
                Values::Boolean(values) => {
                    values.push(first == b't');
                    Some(0)
                }
                _ => None,
            },
            _ => self.values.push(value, self.origin),
        }?;
        self.push_valid();
        Some(bytes)
    }

    fn push_valid(&mut self) {
        if let Some(valid) = &mut self.valid {
            valid.push(true);
        }
    }

    /// Describes the values that the column accepts.
    pub fn expected(&self) -> &'static str {
        match self.origin {
            TypeOrigin::Unseen => "nothing",
            _ => self.values.expected(self.origin),
        }
    }

    pub fn finish(self) -> ArrayRef {
        let array = self.values.finish();
        let Some(valid) = self.valid else { return array };
        let data = array.to_data().into_builder().nulls(Some(NullBuffer::from(valid)));
        make_array(data.build().expect("a validity for each value"))
    }
}

/// Parses a string of JSON. Returns `None` for a string that is not valid Unicode, such as one half of a surrogate
/// pair.
#[cfg(feature = "json")]
fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    match memchr::memchr(b'\\', inner.as_bytes()) {
        None => Some(Cow::Borrowed(inner)),
        Some(_) => serde_json::from_str::<String>(value).ok().map(Cow::Owned),
    }
}

/// Returns true if values of a text file can become a column of this type.
pub(super) fn is_typed(kind: &DataType) -> bool {
    use DataType::*;
    matches!(kind, UInt64 | Int64 | UInt32 | Int32 | Float64 | Float32 | Utf8 | Boolean) || *kind == WIDE
}

enum Values {
    UInt64(Vec<u64>),
    Int64(Vec<i64>),
    UInt32(Vec<u32>),
    Int32(Vec<i32>),
    Wide(Vec<i128>),
    Float64(Vec<f64>),
    Float32(Vec<f32>),
    Boolean(Vec<bool>),
    Utf8(StringBuilder),
}

impl Values {
    fn new(kind: &DataType) -> Self {
        match kind {
            DataType::UInt64 => Values::UInt64(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::UInt32 => Values::UInt32(Vec::new()),
            DataType::Int32 => Values::Int32(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Float32 => Values::Float32(Vec::new()),
            DataType::Boolean => Values::Boolean(Vec::new()),
            DataType::Utf8 => Values::Utf8(StringBuilder::new()),
            kind if *kind == WIDE => Values::Wide(Vec::new()),
            other => unreachable!("{other} is refused when the table is opened"),
        }
    }

    /// Parses a text and adds the value. Returns how many bytes of text the column stored for the value. Returns `None`
    /// if the text cannot be parsed as the type of the column.
    fn push(&mut self, text: &str, origin: TypeOrigin) -> Option<u64> {
        fn parse<T: std::str::FromStr>(values: &mut Vec<T>, text: &str) -> Option<u64> {
            values.push(text.trim().parse().ok()?);
            Some(0)
        }
        match self {
            Values::UInt64(values) => parse(values, text),
            Values::Int64(values) => parse(values, text),
            Values::UInt32(values) => parse(values, text),
            Values::Int32(values) => parse(values, text),
            Values::Wide(values) => {
                values.push(wide(text.trim())?);
                Some(0)
            }
            Values::Float64(values) => {
                let read = if origin == TypeOrigin::Asked { fraction } else { exact_fraction };
                values.push(read(text.trim())?);
                Some(0)
            }
            Values::Float32(values) => parse(values, text),
            Values::Boolean(values) => parse(values, text),
            Values::Utf8(values) => {
                values.append_value(text);
                Some(text.len() as u64)
            }
        }
    }

    /// Adds a placeholder for a null.
    fn push_default(&mut self) {
        match self {
            Values::UInt64(values) => values.push(0),
            Values::Int64(values) => values.push(0),
            Values::UInt32(values) => values.push(0),
            Values::Int32(values) => values.push(0),
            Values::Wide(values) => values.push(0),
            Values::Float64(values) => values.push(0.0),
            Values::Float32(values) => values.push(0.0),
            Values::Boolean(values) => values.push(false),
            Values::Utf8(values) => values.append_value(""),
        }
    }

    fn expected(&self, origin: TypeOrigin) -> &'static str {
        match self {
            Values::UInt64(_) => "a whole number from 0 to 2^64-1",
            Values::Int64(_) => "a whole number from -2^63 to 2^63-1",
            Values::UInt32(_) => "a whole number from 0 to 2^32-1",
            Values::Int32(_) => "a whole number from -2^31 to 2^31-1",
            Values::Wide(_) => "a whole number of at most 38 digits",
            Values::Float64(_) if origin != TypeOrigin::Asked => {
                "a number in the range of 64-bit floating point"
            }
            Values::Float64(_) | Values::Float32(_) => "a number",
            Values::Boolean(_) => "true or false",
            Values::Utf8(_) => "text in UTF-8",
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Values::UInt64(values) => Arc::new(UInt64Array::from(values)),
            Values::Int64(values) => Arc::new(Int64Array::from(values)),
            Values::UInt32(values) => Arc::new(UInt32Array::from(values)),
            Values::Int32(values) => Arc::new(Int32Array::from(values)),
            Values::Wide(values) => Arc::new(Decimal128Array::from(values).with_data_type(WIDE)),
            Values::Float64(values) => Arc::new(Float64Array::from(values)),
            Values::Float32(values) => Arc::new(Float32Array::from(values)),
            Values::Boolean(values) => Arc::new(BooleanArray::from(values)),
            Values::Utf8(mut values) => Arc::new(values.finish()),
        }
    }
}
