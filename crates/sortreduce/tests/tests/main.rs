//! Compares sort-reduce with simple code in memory. The tests are one program, since each would compile the same loops again.

mod common;
mod faults;
mod oracle;
mod resume;
