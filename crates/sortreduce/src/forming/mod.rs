//! Forms runs in memory: records are scattered over buckets of a chunk, and each bucket is sorted and reduced.

pub(crate) mod chunk;
pub(crate) mod form;
pub(crate) mod scatter;
pub(crate) mod sizes;
pub(crate) mod sort;
