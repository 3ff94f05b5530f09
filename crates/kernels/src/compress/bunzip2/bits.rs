//! Reads single bits from a sequence of bytes.

use super::{BlockError, Result};

/// A reader of the bits of a sequence of bytes. The highest bit of a byte is read first.
pub struct Bits<'a> {
    bytes: &'a [u8],
    /// A word whose highest bits are the next bits of the input. All other bits of the word are zero.
    pub(super) word: u64,
    /// The number of valid bits in `word`.
    pub(super) held: u32,
    /// The index of the first byte that is not yet in `word`. After the end of `bytes`, the reader supplies zeros.
    next: usize,
    end_bits: usize,
}

impl<'a> Bits<'a> {
    /// Creates a reader that begins at bit `at` of `bytes` and ends at bit `end_bits`.
    pub fn new(bytes: &'a [u8], at: usize, end_bits: usize) -> Bits<'a> {
        debug_assert!(end_bits <= 8 * bytes.len());
        let mut bits = Bits { bytes, word: 0, held: 0, next: at / 8, end_bits };
        bits.fill();
        bits.drop((at % 8) as u32);
        bits
    }

    /// Returns the offset of the next bit in the input, in bits.
    #[inline]
    pub fn at(&self) -> usize {
        8 * self.next - self.held as usize
    }

    /// Fills `word` to at least 56 bits.
    #[inline(always)]
    pub(super) fn fill(&mut self) {
        if let Some(eight) = self.bytes.get(self.next..self.next + 8) {
            let eight = u64::from_be_bytes(eight.try_into().expect("eight bytes"));
            self.word |= eight >> self.held;
            let taken = (63 - self.held) / 8;
            self.next += taken as usize;
            self.held += 8 * taken;
            // Only whole bytes are taken. The bits below the last whole byte are cleared, since the next call reads
            // them again.
            self.word &= !(u64::MAX >> 1 >> (self.held - 1));
        } else {
            while self.held <= 56 {
                let byte = self.bytes.get(self.next).copied().unwrap_or(0);
                self.word |= u64::from(byte) << (56 - self.held);
                self.next += 1;
                self.held += 8;
            }
        }
    }

    /// Skips `count` bits. `word` must hold at least this number of valid bits.
    #[inline(always)]
    pub(super) fn drop(&mut self, count: u32) {
        self.word <<= count;
        self.held -= count;
    }

    /// Returns the next `count` bits as a number. `count` is from 1 to 56.
    #[inline]
    pub fn take(&mut self, count: u32) -> Result<u64> {
        if self.held < count {
            self.fill();
        }
        let value = self.word >> (64 - count);
        self.drop(count);
        self.checked(value)
    }

    /// Returns `value`, or an error if bits after the end were read.
    #[inline]
    pub(super) fn checked<T>(&self, value: T) -> Result<T> {
        if self.at() <= self.end_bits { Ok(value) } else { Err(BlockError::Short) }
    }

    /// Skips the rest of the current byte.
    pub(super) fn align(&mut self) {
        self.drop(self.held % 8);
    }
}
