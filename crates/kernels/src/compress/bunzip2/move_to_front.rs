//! The move-to-front list. It maps positions to letters. Recently used letters have the lowest positions.

/// Holds letters in the order of their last use, with eight letters in each 64-bit word. The most recently used letter
/// is in the lowest byte of the first word.
pub(super) struct MoveToFront([u64; 32]);

impl MoveToFront {
    pub fn new(letters: &[u8]) -> MoveToFront {
        let mut words = [0; 32];
        for (place, &letter) in letters.iter().enumerate() {
            words[place / 8] |= u64::from(letter) << (8 * (place % 8));
        }
        MoveToFront(words)
    }

    #[inline]
    pub fn front(&self) -> u8 {
        self.0[0] as u8
    }

    /// Returns the letter at position `place`, and moves the letter to the front. `place` must be below 256.
    #[inline(always)]
    pub fn take(&mut self, place: usize) -> u8 {
        let (row, shift) = (place / 8 % 32, 8 * (place % 8));
        let word = self.0[row];
        let letter = word >> shift & 255;
        let mut carried = letter;
        for word in &mut self.0[..row] {
            let last = *word >> 56;
            *word = *word << 8 | carried;
            carried = last;
        }
        // Within the word, letters before the taken letter move up by one byte. Letters after the taken letter do not
        // move.
        let before = (1u64 << shift) - 1;
        self.0[row] = word & !(before << 8 | 255) | (word & before) << 8 | carried;
        letter as u8
    }
}
