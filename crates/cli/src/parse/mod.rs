//! Parses the command line, and explains a command line that cannot be parsed.

pub mod absent;
mod advice;
