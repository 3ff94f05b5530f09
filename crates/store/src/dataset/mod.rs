//! A dataset consists of files, which consist of extents. Data is written once and read as a stream. Each block has a
//! checksum.

pub(crate) mod blocks;
pub(crate) mod builder;
pub(crate) mod checked;
pub(crate) mod layout;
pub(crate) mod named;
pub(crate) mod reader;
pub(crate) mod writer;
