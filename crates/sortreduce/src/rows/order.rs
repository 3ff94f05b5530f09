//! Orders rows in memory by a sort of 64-bit words.
//!
//! ```text
//!   word    [ some bytes of the key, big endian | number of the row ]
//! ```
//!
//! If row numbers have at most 24 bits, a word has space for five bytes of the key. Rows whose compared bytes are
//! equal form a group. The words of a group are filled with the next five bytes of the keys and sorted again. The
//! sort is therefore a radix sort from the most significant digit, with digits of five bytes. A group of few rows is
//! sorted by comparison. All steps run in place on the words. Row numbers ascend in the order of the input, so rows
//! with equal keys keep that order.

use super::shape::RowShape;
use crate::words;

/// The maximum number of rows in a group that is sorted by comparison of rows.
const GROUP_ROWS_SMALL: usize = 12;

/// Rows in memory: their bytes, the start of each row, and the end of the last row.
pub(crate) struct RowsInMemory<'a, S> {
    pub shape: &'a S,
    pub bytes: &'a [u8],
    pub starts: &'a [u32],
    /// True if the sort is descending, so that the greatest key comes first.
    pub descending: bool,
}

impl<'a, S: RowShape> RowsInMemory<'a, S> {
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    #[inline]
    pub fn row(&self, number: usize) -> &'a [u8] {
        &self.bytes[self.starts[number] as usize..self.starts[number + 1] as usize]
    }

    #[inline]
    pub fn key(&self, number: usize) -> &'a [u8] {
        self.shape.key(self.row(number))
    }

    /// Prefetches the first cache line of a row.
    #[inline]
    pub fn prefetch(&self, number: usize) {
        crate::prefetch(&self.bytes[self.starts[number] as usize]);
    }

    fn order(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        if self.descending { b.cmp(a) } else { a.cmp(b) }
    }
}

/// Returns the eight bytes of a key from index `depth` on as a big-endian number. Missing bytes count as zeros.
#[inline(always)]
pub(crate) fn word_at(key: &[u8], depth: usize) -> u64 {
    match key.get(depth..) {
        Some(rest) if rest.len() >= 8 => u64::from_be_bytes(rest[..8].try_into().expect("eight bytes")),
        Some(rest) => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
        None => 0,
    }
}

/// Returns the length in bytes of the common prefix of two keys.
pub(crate) fn common_len(a: &[u8], b: &[u8]) -> usize {
    let most = a.len().min(b.len());
    let mut len = 0;
    while len + 8 <= most {
        let differs = word_at(a, len) ^ word_at(b, len);
        if differs != 0 {
            return len + differs.leading_zeros() as usize / 8;
        }
        len += 8;
    }
    len + a[len..most].iter().zip(&b[len..most]).take_while(|(a, b)| a == b).count()
}

/// Writes the row numbers to `words` in the order of the rows' keys.
pub(crate) fn sort_rows<S: RowShape>(rows: &RowsInMemory<'_, S>, words: &mut [u64]) {
    let count = rows.len();
    assert_eq!(words.len(), count);
    if count == 0 {
        return;
    }
    let first = rows.key(0);
    let mut common = first.len();
    for number in 1..count {
        if common == 0 {
            break;
        }
        let key = rows.key(number);
        // In most cases, a key has either all of the previous common prefix or none of it.
        if key.len() < common || key[..common] != first[..common] {
            common = common_len(key, &first[..common]);
        }
    }
    for (number, word) in words.iter_mut().enumerate() {
        *word = number as u64;
    }
    let index_bits = (u64::BITS - (count as u64).leading_zeros()).max(1);
    Order {
        rows,
        index_bits,
        mask: (1 << index_bits) - 1,
        key_bytes: ((u64::BITS - index_bits) / 8) as usize,
    }
    .sort(words, common);
    for word in words {
        *word &= (1 << index_bits) - 1;
    }
}

struct Order<'a, 'b, S> {
    rows: &'b RowsInMemory<'a, S>,
    index_bits: u32,
    mask: u64,
    /// The number of key bytes in a word.
    key_bytes: usize,
}

/// A range of rows whose keys are equal in their first `depth` bytes.
struct Group {
    start: usize,
    end: usize,
    depth: usize,
}

impl<S: RowShape> Order<'_, '_, S> {
    fn number(&self, word: u64) -> usize {
        (word & self.mask) as usize
    }

    fn sort(&self, words: &mut [u64], depth: usize) {
        let mut left = vec![Group { start: 0, end: words.len(), depth }];
        while let Some(Group { start, end, depth }) = left.pop() {
            let group = &mut words[start..end];
            if group.len() <= GROUP_ROWS_SMALL {
                self.sort_small(group, depth);
                continue;
            }
            let next_depth = depth + self.key_bytes;
            if self.load(group, depth) {
                // If all loaded bytes of the group are equal, the sort continues after these bytes.
                if let Some(rest) = self.set_ended_apart(group, next_depth) {
                    left.push(Group { start: start + rest.start, end: start + rest.end, depth: next_depth });
                }
                continue;
            }
            words::sort(group);
            self.push_groups(group, start, next_depth, &mut left);
        }
    }

    /// Loads the key bytes from index `depth` on into the words. Returns whether these bytes are equal in all rows.
    fn load(&self, group: &mut [u64], depth: usize) -> bool {
        const AHEAD: usize = 12;
        let flip = if self.rows.descending { u64::MAX } else { 0 };
        let (mut all, mut any) = (u64::MAX, 0);
        for place in 0..group.len() {
            if let Some(&ahead) = group.get(place + AHEAD) {
                self.rows.prefetch(self.number(ahead));
            }
            let number = self.number(group[place]);
            let key = (word_at(self.rows.key(number), depth) ^ flip) >> self.index_bits;
            // Bits of an incomplete key byte are removed, so that the word contains only complete bytes.
            let key = key >> (u64::BITS - self.index_bits - 8 * self.key_bytes as u32);
            all &= key;
            any |= key;
            group[place] = key << self.index_bits | number as u64;
        }
        all == any
    }

    /// Finds the groups of rows whose first `depth` key bytes are equal in a sorted range. Pushes these groups onto
    /// `left`.
    fn push_groups(&self, words: &mut [u64], start: usize, depth: usize, left: &mut Vec<Group>) {
        let mut first = 0;
        while first < words.len() {
            let key = words[first] >> self.index_bits;
            let same = words[first + 1..].iter().take_while(|&&word| word >> self.index_bits == key).count();
            let end = first + 1 + same;
            if same > 0
                && let Some(rest) = self.set_ended_apart(&mut words[first..end], depth)
            {
                let at = start + first;
                left.push(Group { start: at + rest.start, end: at + rest.end, depth });
            }
            first = end;
        }
    }

    /// Separates the rows whose keys have at most `depth` bytes from the rows with longer keys. The short keys are
    /// sorted by length and move to the front, or to the back in a descending sort. The first `depth` key bytes of
    /// all rows must be equal, where missing bytes count as zeros. Returns the range of the rows with longer keys.
    fn set_ended_apart(&self, group: &mut [u64], depth: usize) -> Option<std::ops::Range<usize>> {
        let len = |word: u64| self.rows.key(self.number(word)).len().min(depth + 1);
        let first = len(group[0]);
        if group.iter().all(|&word| len(word) == first) {
            // If all keys have more than `depth` bytes, or all have the same length, the row numbers are already in
            // ascending order.
            return (first > depth).then_some(0..group.len());
        }
        let descending = self.rows.descending;
        group.sort_unstable_by_key(|&word| {
            let len = len(word);
            (if descending { depth + 1 - len } else { len }, word)
        });
        if descending {
            let rest = group.iter().take_while(|&&word| len(word) > depth).count();
            Some(0..rest)
        } else {
            let ended = group.iter().take_while(|&&word| len(word) <= depth).count();
            Some(ended..group.len())
        }
    }

    /// Sorts a small group by insertion. The key bytes from index `depth` on are compared. Equal rows keep their
    /// order.
    fn sort_small(&self, group: &mut [u64], depth: usize) {
        let key = |word: u64| {
            let key = self.rows.key(self.number(word));
            &key[depth.min(key.len())..]
        };
        for end in 1..group.len() {
            let word = group[end];
            let this = key(word);
            let mut place = end;
            while place > 0 && self.rows.order(key(group[place - 1]), this).is_gt() {
                group[place] = group[place - 1];
                place -= 1;
            }
            group[place] = word;
        }
    }
}
