//! Maps the letters of the four bases of DNA and RNA to codes of two bits.

pub(crate) const NOT_A_BASE: u8 = 4;

/// The code of each letter. The code of a base has two bits. The code of any other letter is [`NOT_A_BASE`].
pub(crate) const CODES: [u8; 256] = {
    let mut codes = [NOT_A_BASE; 256];
    let letters = *b"ACGTacgt";
    let mut i = 0;
    while i < letters.len() {
        codes[letters[i] as usize] = (i % 4) as u8;
        i += 1;
    }
    codes[b'U' as usize] = 3;
    codes[b'u' as usize] = 3;
    codes
};

/// Returns true if a letter stands for a base.
pub(crate) fn is_base(letter: u8) -> bool {
    CODES[usize::from(letter)] != NOT_A_BASE
}
