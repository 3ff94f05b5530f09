//! Expands the runs of equal letters, which bzip2 shortens before it sorts a block.

use super::{BlockError, CHUNK_BYTES, Result};

/// Expands runs, and passes the bytes to `sink`. After four equal letters, the next letter is the number of further
/// equal letters. Returns false if `sink` refused some bytes.
pub(super) fn expand(
    letters: &[u8],
    chunk: &mut Vec<u8>,
    sink: &mut impl FnMut(&[u8]) -> bool,
) -> Result<bool> {
    let mut rest = letters;
    chunk.clear();
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(CHUNK_BYTES)];
        let mut plain = plain_letters(window);
        if plain == window.len() && plain < rest.len() {
            // The last three letters may begin a run.
            plain -= 3;
        }
        chunk.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        if let [first, second, third, fourth, behind @ ..] = rest
            && first == second
            && second == third
            && third == fourth
        {
            let Some((&more, behind)) = behind.split_first() else {
                return Err(BlockError::Damaged("a run has no length"));
            };
            chunk.resize(chunk.len() + 4 + usize::from(more), *first);
            rest = behind;
        }
        if chunk.len() >= CHUNK_BYTES || rest.is_empty() {
            if !sink(chunk) {
                return Ok(false);
            }
            chunk.clear();
        }
    }
    Ok(true)
}

/// Returns how many letters precede the first run of four equal letters.
fn plain_letters(letters: &[u8]) -> usize {
    const LOWEST: u64 = u64::from_le_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    let is_run = |four: &[u8]| four[0] == four[1] && four[1] == four[2] && four[2] == four[3];
    let mut at = 0;
    // Eight positions are checked at once. The byte for a position becomes zero if the letter at this position equals
    // the next three letters.
    while let Some(window) = letters[at..].first_chunk::<11>() {
        let word = |from: usize| u64::from_le_bytes(*window[from..].first_chunk().expect("eight bytes"));
        let (here, next) = (word(0), word(1));
        let differ = (here ^ next) | (next ^ word(2)) | (word(2) ^ word(3));
        let zero = differ.wrapping_sub(LOWEST) & !differ & HIGHEST;
        if zero != 0 {
            return at + zero.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    letters[at..].windows(4).position(is_run).map_or(letters.len(), |place| at + place)
}
