//! Copies and parity of a dataset's extents, and how an extent is restored from the others.

pub(crate) mod parity;
pub(crate) mod whole;
