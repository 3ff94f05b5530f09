//! Records: sorts and combines streams larger than memory.
#![warn(missing_docs)]

mod array;
mod chunk;
mod config;
mod dense;
mod error;
mod form;
mod merge;
mod passes;
mod record;
mod run;
mod scatter;
mod sort;
mod sortreduce;
mod table;

pub use config::{Config, Strategy, choose, smallest_memory_bytes};
pub use error::{Error, Result};
pub use record::{Block, Key, Operation, Value};
pub use sortreduce::{Sink, SortReduce, Sorted, Stats};
