//! A list of references to extents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inshore_store::fuzzing::references(bytes));
