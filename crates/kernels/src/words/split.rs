//! This module finds the starts and ends of words.
//!
//! Each step turns 64 bytes into a bit mask of the bytes that belong to words. A word begins or ends where adjacent
//! bits of the mask differ. The crate `unicode-segmentation` splits text that is not ASCII. A mark is a punctuation
//! character that may join two words. If a mark is next to text that is not ASCII, the crate also gets the text on the
//! other side of the mark.

use unicode_segmentation::UnicodeSegmentation;

/// Calls `each` with the start and the end of each word that white space delimits.
pub(super) fn at_white_space(text: &[u8], each: impl FnMut(usize, usize)) {
    runs(text, in_no_space, each);
}

/// Calls `each` with the start and the end of each word of UAX #29 that contains a letter or digit. The text must be
/// UTF-8. Some combining marks are letters. If such a mark follows a space or an ASCII punctuation character, a word
/// begins with the mark.
pub(super) fn words(text: &[u8], mut each: impl FnMut(usize, usize)) {
    // `last` is the current group of runs that marks may join. A run is a sequence of bytes that all belong to words.
    let mut last: Option<Group> = None;
    let is_ascii = text.is_ascii();
    runs(text, in_word, |start, end| {
        let plain = is_ascii || text[start..end].is_ascii();
        match &mut last {
            Some(group) if group.end + 1 == start && group.goes_on(text, plain) => {
                group.end = end;
                group.plain &= plain;
            }
            group => {
                if let Some(group) = group.replace(Group { start, end, plain }) {
                    group.give(text, &mut each);
                }
            }
        }
    });
    if let Some(group) = last {
        group.give(text, &mut each);
    }
}

/// A group of runs in which one character separates each run from the next.
struct Group {
    start: usize,
    end: usize,
    /// True if all bytes of the group are ASCII. Such a group is a single word, unless all of its bytes are
    /// underscores.
    plain: bool,
}

impl Group {
    /// Tells whether the character after the group may join it to the next run.
    #[inline]
    fn goes_on(&self, text: &[u8], plain: bool) -> bool {
        match self.plain && plain {
            true => joins(text, self.end),
            false => is_mark(text[self.end]),
        }
    }

    #[inline]
    fn give(&self, text: &[u8], each: &mut impl FnMut(usize, usize)) {
        let bytes = &text[self.start..self.end];
        if self.plain {
            if bytes[0] != b'_' || bytes.iter().any(u8::is_ascii_alphanumeric) {
                each(self.start, self.end);
            }
            return;
        }
        // The text includes the mark after the group, since after a Hebrew letter the mark belongs to the word (rule
        // WB7a of UAX #29).
        let with_mark = self.end + usize::from(text.get(self.end).is_some_and(|&byte| is_mark(byte)));
        let piece = std::str::from_utf8(&text[self.start..with_mark]);
        let piece = piece.expect("a piece of UTF-8 between ASCII characters");
        for (place, word) in piece.unicode_word_indices() {
            let is_aside = |byte: &u8| byte.is_ascii() && !byte.is_ascii_alphanumeric() && *byte != b'_';
            let aside = word.bytes().take_while(is_aside).count();
            each(self.start + place + aside, self.start + place + word.len());
        }
    }
}

/// Calls `each` with the start and the end of each run of bytes that `in_word` marks.
#[inline(always)]
fn runs(text: &[u8], in_word: impl Fn(&[u8; 64]) -> u64, mut each: impl FnMut(usize, usize)) {
    let (mut start, mut inside) = (0, 0u64);
    let mut step = |base: usize, mask: u64| {
        // A bit is set if either its byte or the previous byte belongs to a word, but not both.
        let mut borders = mask ^ (mask << 1 | inside);
        inside = mask >> 63;
        while borders != 0 {
            let place = borders.trailing_zeros();
            borders &= borders - 1;
            match mask >> place & 1 {
                1 => start = base + place as usize,
                _ => each(start, base + place as usize),
            }
        }
    };
    let (whole, rest) = text.as_chunks::<64>();
    for (number, chunk) in whole.iter().enumerate() {
        step(number * 64, in_word(chunk));
    }
    // The last chunk is padded with spaces, so that the last word ends within the chunk.
    let mut last = [b' '; 64];
    last[..rest.len()].copy_from_slice(rest);
    step(whole.len() * 64, in_word(&last));
}

/// Returns a bit mask of the bytes that are not white space.
#[inline(always)]
fn in_no_space(chunk: &[u8; 64]) -> u64 {
    mask(chunk, |byte| !(byte == b' ' || byte.wrapping_sub(9) <= 4))
}

/// Returns a bit mask of the bytes that may belong to words. These are ASCII letters, digits and underscores, and all
/// bytes that are not ASCII.
#[inline(always)]
fn in_word(chunk: &[u8; 64]) -> u64 {
    mask(chunk, |byte| {
        byte >= 128 || (byte | 32).wrapping_sub(b'a') < 26 || byte.wrapping_sub(b'0') < 10 || byte == b'_'
    })
}

/// Returns a bit mask in which the bit of a byte is set if `is_set` is true for the byte. The function makes a flag for
/// each byte and then a bit from each flag, so that the compiler can use vector comparisons.
#[inline(always)]
fn mask(chunk: &[u8; 64], is_set: impl Fn(u8) -> bool) -> u64 {
    let flags: [u8; 64] = std::array::from_fn(|i| u8::from(is_set(chunk[i])));
    let (words, _) = flags.as_chunks::<8>();
    let mut bits = 0;
    for (number, word) in words.iter().enumerate() {
        // The multiplication moves the lowest bits of all eight bytes to the highest byte.
        let word = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= word << (8 * number);
    }
    bits
}

/// Tells whether an ASCII character may join the characters on both sides to one word, or belong to the previous
/// character.
fn is_mark(byte: u8) -> bool {
    matches!(byte, b'.' | b'\'' | b':' | b',' | b';' | b'"')
}

/// Tells whether the mark at offset `place` joins the two word characters next to the mark (rules WB6, WB7, WB11 and
/// WB12 of UAX #29).
fn joins(text: &[u8], place: usize) -> bool {
    let (before, mark, after) = (text[place - 1], text[place], text[place + 1]);
    let between = |is: fn(&u8) -> bool| is(&before) && is(&after);
    match mark {
        b'.' | b'\'' => between(u8::is_ascii_alphabetic) || between(u8::is_ascii_digit),
        b':' => between(u8::is_ascii_alphabetic),
        b',' | b';' => between(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(text: &str, split: fn(&[u8], &mut dyn FnMut(usize, usize))) -> Vec<String> {
        let mut words = Vec::new();
        split(text.as_bytes(), &mut |start, end| words.push(text[start..end].to_string()));
        words
    }

    fn words_of(text: &str) -> Vec<String> {
        found(text, |text, each| words(text, each))
    }

    /// Returns the words that Unicode defines, without leading ASCII spaces and punctuation. Unicode joins a combining
    /// mark to the space before the mark. If the mark is a letter, the space and the mark together are a word.
    fn naive(text: &str) -> Vec<String> {
        let is_aside = |letter: char| letter.is_ascii() && !letter.is_ascii_alphanumeric() && letter != '_';
        text.unicode_words().map(|word| word.trim_start_matches(is_aside).to_string()).collect()
    }

    #[test]
    fn all_short_texts_of_ascii_have_the_words_of_unicode() {
        let letters: Vec<char> =
            (1u8..128).map(char::from).filter(|letter| !letter.is_ascii_alphanumeric()).collect();
        let letters = [&letters[..], &['a', 'Z', '0', '9']].concat();
        for &a in &letters {
            for &b in &letters {
                for &c in &letters {
                    let text: String = [a, b, c].iter().collect();
                    assert_eq!(words_of(&text), naive(&text), "{text:?}");
                }
            }
        }
        let few = ['a', '1', '_', '.', ':', '\'', ',', ';', ' ', '-', '\n'];
        for number in 0..few.len().pow(6) {
            let text: String = (0..6).map(|place| few[number / few.len().pow(place) % few.len()]).collect();
            assert_eq!(words_of(&text), naive(&text), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn long_texts_have_the_words_of_a_naive_split(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("a".to_string()), Just(" ".to_string()), Just("\n".to_string()), Just("don't".to_string()),
                    Just("3,14".to_string()), Just("\u{301}".to_string()), Just("straße".to_string()), Just("\u{200d}".to_string()),
                    Just("日本語".to_string()), Just("\"".to_string()), Just("\u{5d0}".to_string()), Just(".".to_string()),
                    Just("\u{2019}".to_string()), Just("\u{1f1e6}".to_string()), Just(":".to_string()), Just("__".to_string()), Just("a.b".to_string()), any::<char>().prop_map(String::from),
                    any::<u8>().prop_map(|byte| char::from(byte % 128).to_string()),
                ],
                0..200,
            ),
        ) {
            let text = pieces.concat();
            prop_assert_eq!(words_of(&text), naive(&text));
            let white = |letter: char| matches!(letter, ' ' | '\t'..='\r');
            let expected: Vec<&str> = text.split(white).filter(|word| !word.is_empty()).collect();
            prop_assert_eq!(found(&text, |text, each| at_white_space(text, each)), expected);
        }
    }
}
