//! Sort-reduce held against simple code in memory. One program, since each would compile the same loops again.

mod common;
mod faults;
mod oracle;
mod resume;
