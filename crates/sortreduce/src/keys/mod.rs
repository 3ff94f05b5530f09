//! Keys and values of records: their types, the differences of keys, and ranges of keys.

pub(crate) mod keyrange;
pub(crate) mod record;
pub(crate) mod word;
