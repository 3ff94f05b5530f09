//! Decodes the symbols of a block into letters. The module decodes Huffman codes, reverses the move-to-front transform,
//! and expands runs of the letter at the front of the list.

use super::{
    BLOCK_LETTERS_MAX, BlockError, Result,
    bits::Bits,
    huffman::{CODE_BITS_MAX, Code},
    move_to_front::MoveToFront,
};

/// The number of symbols in a group. All symbols of a group use the same Huffman code.
const GROUP_SYMBOLS: usize = 50;

/// Decodes symbols into letters up to the end of the block. Returns the number of letters, and the count of each
/// letter.
pub(super) fn read_letters(
    bits: &mut Bits<'_>,
    codes: &[Code; 6],
    groups: &[u8],
    mut recent: MoveToFront,
    used: usize,
    letters: &mut [u8],
) -> Result<(usize, [u32; 256])> {
    const TOO_MANY: Result<(usize, [u32; 256])> =
        Err(BlockError::Damaged("a block is larger than 900,000 bytes"));
    let (end, mut count, mut counts) = (used as u16 + 1, 0, [0; 256]);
    // Symbols 0 and 1 encode a run of the move-to-front list's first byte. They are digits 1 and 2 of the length in
    // bijective base 2, lowest first.
    let (mut run, mut weight) = (0usize, 1usize);
    for &group in groups {
        let code = &codes[usize::from(group)];
        for _ in 0..GROUP_SYMBOLS {
            if bits.held < CODE_BITS_MAX {
                bits.fill();
            }
            let symbol = code.read(bits)?;
            if symbol < 2 {
                if weight > BLOCK_LETTERS_MAX {
                    return TOO_MANY;
                }
                run += weight << symbol;
                weight *= 2;
                continue;
            }
            if run > 0 {
                let Some(slots) = letters.get_mut(count..count + run) else { return TOO_MANY };
                slots.fill(recent.front());
                counts[usize::from(recent.front())] += run as u32;
                count += run;
                (run, weight) = (0, 1);
            }
            if symbol == end {
                return Ok((count, counts));
            }
            let Some(slot) = letters.get_mut(count) else { return TOO_MANY };
            *slot = recent.take(usize::from(symbol) - 1);
            counts[usize::from(*slot)] += 1;
            count += 1;
        }
        bits.checked(())?;
    }
    Err(BlockError::Damaged("a block does not end"))
}
