//! Space is free and taken extents: jobs take, hand over, move and free them, and usage reports show them.

pub(crate) mod extents;
pub(crate) mod lease;
pub(crate) mod relocate;
pub(crate) mod scratch;
pub(crate) mod usage;
