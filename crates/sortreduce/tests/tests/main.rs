//! Compares sort-reduce with simple code in memory. All tests are one program, since each program would compile the
//! same loops again.

mod common;
mod faults;
mod oracle;
mod resume;
