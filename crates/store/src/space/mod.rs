//! Free and taken extents: how jobs take, hand over, move and give back space, and what is told of its use.

pub(crate) mod extents;
pub(crate) mod lease;
pub(crate) mod relocate;
pub(crate) mod scratch;
pub(crate) mod usage;
