//! A record of the log: its header, and the edits in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inshore_store::fuzzing::log_record(&mut bytes.to_vec()));
