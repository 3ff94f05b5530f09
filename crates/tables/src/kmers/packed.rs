//! K-mers and their counts as they travel.
//!
//! ```text
//!   code   5         9         300
//!   count  1         7         1
//!          5 * 2     4 * 2 + 1 7   291 * 2          differences, twice; and 1 where a count other than 1 follows
//! ```
//!
//! Numbers have 7 bits in a byte, the lowest first, and the highest bit where more follow. Of 10^8 different 25-mers in order the
//! differences have some 23 bits, and most occur once, by an error of sequencing: 4 bytes each, where code and count take 12.
//! Measured: 4.5 bytes for each of 9.3 million 25-mers of two bacteria on three nodes, all that came over the wire.

/// Bytes of a block, at most: the row with which a packer is full may be beyond it.
pub const KMER_BLOCK_BYTES: usize = 256 << 10;
/// K-mers of a block, at most.
pub const KMER_BLOCK_ROWS: usize = 32 << 10;
/// Bytes of a row, at most: a code of 127 bits and a count.
const ROW_BYTES_MAX: usize = 19 + 5;

/// Packs k-mers that come in the order of their codes into blocks.
#[derive(Debug, Default)]
pub struct KmerPacker {
    bytes: Vec<u8>,
    rows: usize,
    last: u128,
}

impl KmerPacker {
    /// Adds a k-mer. In a block, codes rise, and counts are at least 1.
    pub fn push(&mut self, code: u128, count: u32) {
        debug_assert!(count > 0 && (self.rows == 0 || code > self.last));
        put(&mut self.bytes, (code - self.last) << 1 | u128::from(count != 1));
        if count != 1 {
            put(&mut self.bytes, count.into());
        }
        self.last = code;
        self.rows += 1;
    }

    /// Whether a block is full.
    pub fn is_full(&self) -> bool {
        self.rows == KMER_BLOCK_ROWS || self.bytes.len() > KMER_BLOCK_BYTES - ROW_BYTES_MAX
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The block, and begins the next one, whose first code is whole.
    pub fn take(&mut self) -> Vec<u8> {
        (self.rows, self.last) = (0, 0);
        std::mem::take(&mut self.bytes)
    }
}

/// The codes and counts of a block; `None` where the bytes are none: codes that do not rise or have more than 126 bits, a count
/// of 0, more than [`KMER_BLOCK_ROWS`] of them, something behind them.
pub fn unpack_kmers(mut block: &[u8]) -> Option<(Vec<u128>, Vec<u32>)> {
    let (mut codes, mut counts) = (Vec::new(), Vec::new());
    let mut last = 0u128;
    while !block.is_empty() {
        let number = get(&mut block)?;
        let difference = number >> 1;
        let code = last.checked_add(difference).filter(|code| code >> 126 == 0)?;
        let count = match number & 1 {
            0 => 1,
            _ => u32::try_from(get(&mut block)?).ok()?,
        };
        let is_first = codes.is_empty();
        if count == 0 || codes.len() == KMER_BLOCK_ROWS || difference == 0 && !is_first {
            return None;
        }
        codes.push(code);
        counts.push(count);
        last = code;
    }
    Some((codes, counts))
}

/// Writes a number, 7 bits in a byte.
fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number >> 64 != 0 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    let mut number = number as u64;
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number, and passes over it; `None` where it has no end, or more than 127 bits.
fn get(bytes: &mut &[u8]) -> Option<u128> {
    /// Groups of 7 bits that a `u64` holds.
    const LOW: usize = 9;
    let mut low = 0u64;
    for (place, &byte) in bytes.iter().enumerate().take(LOW) {
        low |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            *bytes = &bytes[place + 1..];
            return Some(low.into());
        }
    }
    let mut number = u128::from(low);
    for (place, &byte) in bytes.iter().enumerate().take(ROW_BYTES_MAX).skip(LOW) {
        let part = u128::from(byte & 0x7f);
        let shift = 7 * place;
        if shift >= 128 || part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            *bytes = &bytes[place + 1..];
            return Some(number).filter(|number| number >> 127 == 0);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Codes in order and counts, of all sizes.
    fn kmers() -> impl Strategy<Value = Vec<(u128, u32)>> {
        let code = (any::<u128>(), 2u32..128).prop_map(|(code, shift)| code >> shift);
        let count = prop_oneof![Just(1u32), 1u32..300, 1u32..];
        proptest::collection::btree_map(code, count, 0..300).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back(kmers in kmers()) {
            let mut packer = KmerPacker::default();
            kmers.iter().for_each(|&(code, count)| packer.push(code, count));
            prop_assert_eq!(packer.is_empty(), kmers.is_empty());
            let (codes, counts) = unpack_kmers(&packer.take()).unwrap();
            prop_assert_eq!(codes.into_iter().zip(counts).collect::<Vec<_>>(), kmers);
        }

        #[test]
        fn any_bytes_are_k_mers_in_order_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some((codes, counts)) = unpack_kmers(&bytes) {
                prop_assert!(codes.is_sorted_by(|a, b| a < b) && codes.iter().all(|code| code >> 126 == 0));
                prop_assert!(counts.iter().all(|&count| count > 0) && counts.len() == codes.len());
            }
        }
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let number = |number: u128| {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            bytes
        };
        let (one, two) = (number(2), number(4));
        assert_eq!(unpack_kmers(&[one.clone(), two.clone()].concat()), Some((vec![1, 3], vec![1, 1])));
        // The same code twice, a count of 0 or one that is too large, codes of 127 bits and more.
        for bad in [
            [one.clone(), number(0)].concat(),
            [number(3), number(0)].concat(),
            [number(3), number(1 << 32)].concat(),
            number(3),
            number(1 << 127),
            [number(((1 << 126) - 1) << 1), one.clone()].concat(),
            [&[0xff; 18][..], &[0x7f]].concat(),
            vec![0x80; 100],
            one.repeat(KMER_BLOCK_ROWS + 1),
        ] {
            assert_eq!(unpack_kmers(&bad), None, "{:?}", &bad[..bad.len().min(20)]);
        }
        assert!(unpack_kmers(&number(((1 << 126) - 1) << 1)).is_some());
        assert!(unpack_kmers(&one.repeat(KMER_BLOCK_ROWS)).is_some());
    }

    #[test]
    fn blocks_are_full_by_rows_or_bytes() {
        for (step, rows_are_many) in [(1u128, true), (1 << 100, false)] {
            let mut packer = KmerPacker::default();
            let mut code = 0;
            while !packer.is_full() {
                // Wrong only in that such codes are too large.
                packer.push(code, 1000);
                code = code.wrapping_add(step) & ((1 << 126) - 1);
                if code == 0 {
                    packer.take();
                }
            }
            assert_eq!(packer.rows == KMER_BLOCK_ROWS, rows_are_many || packer.rows == KMER_BLOCK_ROWS);
            assert!(packer.take().len() <= KMER_BLOCK_BYTES);
        }
    }
}
