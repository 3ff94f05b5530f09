//! The bytes of a dataset: files of extents that are written once, read in a stream and checked block by block.

pub(crate) mod blocks;
pub(crate) mod checked;
pub(crate) mod reader;
pub(crate) mod writer;
