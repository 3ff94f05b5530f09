//! Messages between nodes and clients: JSON, or answers in Arrow's format.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inshore_nodes::fuzzing::input(bytes));
