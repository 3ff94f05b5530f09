//! Reads the header of a block. The header consists of a marker, the set of bytes that occur in the block, and the
//! Huffman codes. Another marker stands for the end of the stream.

use super::{
    BlockError, Result,
    bits::Bits,
    huffman::{CODE_BITS_MAX, Code, SYMBOLS_MAX},
};

/// The 48 bits with which a block begins.
pub const BLOCK_MAGIC: u64 = 0x3141_5926_5359;
/// The 48 bits that follow the last block of a stream.
const END_MAGIC: u64 = 0x1772_4538_5090;
/// The largest number of groups of symbols in a block. All symbols of a group use the same Huffman code.
pub(super) const GROUPS_MAX: usize = 18_002;

/// Tells whether a block or the end of the stream follows.
pub enum StreamMarker {
    Block,
    /// The end of the stream, with the checksum of the stream. The next stream, if any, begins at a byte boundary.
    End(u32),
}

/// Reads the next marker, which begins a block or ends the stream. The stream's checksum follows the marker of its end.
pub fn next_mark(bits: &mut Bits<'_>) -> Result<StreamMarker> {
    match bits.take(48)? {
        BLOCK_MAGIC => Ok(StreamMarker::Block),
        END_MAGIC => {
            let checksum = bits.take(32)? as u32;
            bits.align();
            bits.checked(StreamMarker::End(checksum))
        }
        _ => Err(BlockError::Damaged("expected a block or the end of a stream")),
    }
}

/// Reads the set of byte values that occur in a block. Writes the values to `alphabet` in ascending order, and returns
/// their number.
pub(super) fn read_alphabet(bits: &mut Bits<'_>, alphabet: &mut [u8; 256]) -> Result<usize> {
    let rows = bits.take(16)?;
    let mut used = 0;
    for row in (0..16).filter(|row| rows >> (15 - row) & 1 == 1) {
        let columns = bits.take(16)?;
        for column in (0..16).filter(|column| columns >> (15 - column) & 1 == 1) {
            alphabet[used] = 16 * row + column;
            used += 1;
        }
    }
    if used == 0 { Err(BlockError::Damaged("a block uses no bytes")) } else { Ok(used) }
}

/// Reads the Huffman codes and the selectors. The selector of a group of symbols is the index of the group's code.
pub(super) fn read_codes(
    bits: &mut Bits<'_>,
    symbols: usize,
    codes: &mut [Code; 6],
    selectors: &mut Vec<u8>,
) -> Result<()> {
    let code_count = bits.take(3)? as usize;
    let groups = bits.take(15)? as usize;
    if !(2..=6).contains(&code_count) || groups == 0 {
        return Err(BlockError::Damaged("a block has no Huffman codes"));
    }
    selectors.clear();
    let mut order = [0, 1, 2, 3, 4, 5];
    for group in 0..groups {
        let mut place = 0;
        while bits.take(1)? == 1 {
            place += 1;
            if place >= code_count {
                return Err(BlockError::Damaged("a group selects a Huffman code that does not exist"));
            }
        }
        order[..=place].rotate_right(1);
        // A stream may list more selectors than any block needs. The additional selectors are ignored.
        if group < GROUPS_MAX {
            selectors.push(order[0]);
        }
    }
    for code in &mut codes[..code_count] {
        let mut lengths = [0; SYMBOLS_MAX];
        let mut length = bits.take(5)?;
        for slot in &mut lengths[..symbols] {
            loop {
                if !(1..=u64::from(CODE_BITS_MAX)).contains(&length) {
                    return Err(BlockError::Damaged("the length of a Huffman code is out of range"));
                }
                if bits.take(1)? == 0 {
                    break;
                }
                length = if bits.take(1)? == 0 { length + 1 } else { length.wrapping_sub(1) };
            }
            *slot = length as u8;
        }
        code.set(&lengths[..symbols])?;
    }
    Ok(())
}
