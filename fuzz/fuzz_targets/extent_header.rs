//! The header of an extent.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inshore_store::fuzzing::extent_header(bytes));
