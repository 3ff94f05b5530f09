//! The types of columns that can be read.

use arrow_schema::{DataType, Field};

use super::slices::is_readable_as;
use crate::{Error, Result};

pub(super) const READABLE: &str = ".parquet, .csv, .tsv, .jsonl, .ndjson, .json or .arrow (all but .parquet also with .gz or .zst after it)";

pub(super) fn check_type(file: &str, stored: &Field, wanted: &DataType, has_lists: bool) -> Result<()> {
    use DataType::{Float32, Float64, Int32, Int64, UInt32, UInt64, Utf8};
    let is_wanted = matches!(wanted, UInt64 | Int64 | UInt32 | Int32 | Float64 | Float32 | Utf8);
    let is_read = is_flat(wanted) || has_lists && list_of_numbers(wanted).is_some();
    if is_read && *wanted == plain_type(stored.data_type()) {
        return Ok(());
    }
    if is_wanted && is_readable_as(stored.data_type(), wanted) {
        return Ok(());
    }
    Err(unreadable(file, stored, wanted))
}

pub(super) fn unreadable(file: &str, stored: &Field, wanted: &DataType) -> Error {
    let (name, kind) = (stored.name(), stored.data_type());
    if !is_flat(&plain_type(kind)) {
        return Error::unread_type(file, stored);
    }
    Error::unsupported(file, format!("column '{name}' has type {kind}, which cannot be read as {wanted}"))
}

/// Returns true if `kind` is not nested, so that every reader can return columns of this type. The type is one that
/// [`TableReader::describe`](super::TableReader::describe) returns.
pub fn is_readable(kind: &DataType) -> bool {
    is_flat(kind)
}

/// If `kind` is a type of lists of numbers, returns the type of the numbers. Otherwise returns `None`.
pub fn list_of_numbers(kind: &DataType) -> Option<&DataType> {
    match kind {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type()).filter(|kind| kind.is_integer() || kind.is_floating())
        }
        _ => None,
    }
}

/// Returns the type with which readers return a column of the type `stored`. The result has neither views nor large
/// offsets. A column that has only nulls and no type becomes text.
pub(super) fn plain_type(stored: &DataType) -> DataType {
    match stored {
        DataType::Null | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// Returns true if a type is not nested.
pub(super) fn is_flat(kind: &DataType) -> bool {
    use DataType::*;
    matches!(
        kind,
        Boolean
            | Utf8
            | Binary
            | FixedSizeBinary(_)
            | Date32
            | Date64
            | Time32(_)
            | Time64(_)
            | Timestamp(..)
    ) || matches!(kind, Decimal128(..) | Decimal256(..) | Duration(_))
        || kind.is_integer()
        || kind.is_floating()
}
