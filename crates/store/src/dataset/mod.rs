//! A dataset is files of extents that are written once, read in a stream and checked block by block.

pub(crate) mod blocks;
pub(crate) mod builder;
pub(crate) mod checked;
pub(crate) mod layout;
pub(crate) mod named;
pub(crate) mod reader;
pub(crate) mod writer;
