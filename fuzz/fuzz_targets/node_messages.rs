//! Messages between nodes and clients: JSON, or answers in Arrow's format. The first byte chooses between the
//! two.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match bytes.first() {
        Some(0..128) => inshore_nodes::fuzzing::message(bytes),
        Some(_) => inshore_nodes::fuzzing::answers(&bytes[1..]),
        None => {}
    }
});
