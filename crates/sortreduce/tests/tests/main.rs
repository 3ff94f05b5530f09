//! Compares sort-reduce with simple code that works in memory. All tests are in one program, since each further
//! program would compile the same generic code again.

mod common;
mod faults;
mod oracle;
mod resume;
