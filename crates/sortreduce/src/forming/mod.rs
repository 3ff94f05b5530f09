//! Forms runs in memory. Records are scattered to the buckets of a chunk. Each bucket is then sorted, and equal keys
//! are combined.

pub(crate) mod chunk;
pub(crate) mod form;
pub(crate) mod scatter;
pub(crate) mod sizes;
pub(crate) mod sort;
