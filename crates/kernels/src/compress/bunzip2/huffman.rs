//! Decodes Huffman codes. A Huffman code maps sequences of bits to symbols.

use super::{BlockError, Result, bits::Bits};

/// The largest number of symbols. Two symbols stand for run lengths, 255 for positions in the move-to-front list, and
/// one for the end of the block.
pub(super) const SYMBOLS_MAX: usize = 258;
pub(super) const CODE_BITS_MAX: u32 = 20;
/// The length in bits of the longest code that a single table look-up decodes.
const WIDE_BITS: u32 = 10;

/// A Huffman code, which maps bits to symbols.
pub(super) struct Code {
    /// Maps the next [`WIDE_BITS`] bits of the input to a symbol. The lowest five bits of an entry are the length of
    /// the symbol's code. An entry is 0 if the code is longer than [`WIDE_BITS`] or invalid.
    wide: Box<[u16; 1 << WIDE_BITS]>,
    /// For each code length, one more than the largest code of this length. Each code is shifted left until the code
    /// has [`CODE_BITS_MAX`] bits.
    ends: [u32; CODE_BITS_MAX as usize + 1],
    /// For each code length, the smallest code of this length (shifted left as in `ends`), and the index of that code's
    /// symbol in `symbols`.
    firsts: [(u32, u16); CODE_BITS_MAX as usize + 1],
    symbols: [u16; SYMBOLS_MAX],
}

impl Default for Code {
    fn default() -> Code {
        Code {
            wide: Box::new([0; 1 << WIDE_BITS]),
            ends: [0; CODE_BITS_MAX as usize + 1],
            firsts: [(0, 0); CODE_BITS_MAX as usize + 1],
            symbols: [0; SYMBOLS_MAX],
        }
    }
}

impl Code {
    /// Builds the Huffman code from the length of each symbol's code. Codes are assigned in the order of their lengths.
    /// Codes of equal length are assigned in the order of symbols.
    pub fn set(&mut self, lengths: &[u8]) -> Result<()> {
        self.wide.fill(0);
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=CODE_BITS_MAX {
            let step = 1u32 << (CODE_BITS_MAX - length);
            self.firsts[length as usize] = (code, place as u16);
            for (symbol, _) in lengths.iter().enumerate().filter(|&(_, &other)| u32::from(other) == length) {
                if code + step > 1 << CODE_BITS_MAX {
                    return Err(BlockError::Damaged("a Huffman code is ambiguous"));
                }
                self.symbols[place] = symbol as u16;
                place += 1;
                if length <= WIDE_BITS {
                    let down = CODE_BITS_MAX - WIDE_BITS;
                    let entries = (code >> down) as usize..((code + step) >> down) as usize;
                    self.wide[entries].fill((symbol as u16) << 5 | length as u16);
                }
                code += step;
            }
            self.ends[length as usize] = code;
        }
        Ok(())
    }

    /// Reads the next symbol. `bits.word` must hold at least 20 bits.
    #[inline(always)]
    pub fn read(&self, bits: &mut Bits<'_>) -> Result<u16> {
        let entry = self.wide[(bits.word >> (64 - WIDE_BITS)) as usize];
        if entry != 0 {
            bits.drop(u32::from(entry & 31));
            return Ok(entry >> 5);
        }
        self.read_long(bits)
    }

    #[cold]
    fn read_long(&self, bits: &mut Bits<'_>) -> Result<u16> {
        let next = (bits.word >> (64 - CODE_BITS_MAX)) as u32;
        for length in WIDE_BITS + 1..=CODE_BITS_MAX {
            if next < self.ends[length as usize] {
                let (first, place) = self.firsts[length as usize];
                bits.drop(length);
                return Ok(
                    self.symbols[usize::from(place) + ((next - first) >> (CODE_BITS_MAX - length)) as usize]
                );
            }
        }
        Err(BlockError::Damaged("bits match no Huffman code"))
    }
}
