//! A slot of a superblock.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inshore_store::fuzzing::superblock(&mut bytes.to_vec()));
