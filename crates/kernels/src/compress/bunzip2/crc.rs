//! Computes the CRC-32 checksum of bzip2.

/// Computes the CRC-32 of bzip2 from the CRC-32 of gzip. The bits of each input byte are reversed first, and the bits
/// of the result are reversed at the end.
#[derive(Default)]
pub(super) struct Checksum(crc32fast::Hasher);

impl Checksum {
    pub fn update(&mut self, bytes: &[u8]) {
        let mut turned = [0; 4096];
        for part in bytes.chunks(turned.len()) {
            turned.iter_mut().zip(part).for_each(|(turned, byte)| *turned = byte.reverse_bits());
            self.0.update(&turned[..part.len()]);
        }
    }

    pub fn value(self) -> u32 {
        self.0.finalize().reverse_bits()
    }
}
