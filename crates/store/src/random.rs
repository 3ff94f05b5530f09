//! This module creates random numbers for names and ids. The operating system provides the random bytes.

/// Returns eight random bytes of the operating system.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().expect("the system has random bytes for whoever asks for eight")
}

/// Returns a random (version 4) UUID.
pub(crate) fn random_uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&random_u64().to_le_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
