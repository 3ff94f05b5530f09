//! This module defines the wire format of k-mers and their counts. A block of rows is sorted by the k-mers' codes,
//! takes few bits, and is fast to decode.
//!
//! ```text
//!   block   [ rows, u32 | r, u8 | first code, 16 bytes | bits, the lowest of a byte first ]
//!   row     [ count | distance to the previous code, minus one ]           the first row has only the count
//!             1: 0    2, 3: 1 0 b    4 to 7: 1 1 0 b b   ...                 Elias gamma: as many bits b as ones
//!                     quotient by 2^r as ones, then a 0, then r bits of remainder                Golomb and Rice
//!                     a quotient of 32 or more: 32 ones, then the distance without coding
//! ```
//!
//! Codes of k-mers are nearly random, so the distances between successive codes have a geometric distribution. For
//! this distribution, Rice's code is within a few hundredths of a bit of the optimum. The parameter r is computed
//! from the mean distance of the block. Most k-mers of reads occur once, because of sequencing errors, and a count
//! of 1 takes one bit. 35 million 25-mers on a node take 28.1 bits each, compared with 96 bits unpacked (code and
//! count), and 36 bits in LEB128. Decoding takes about 3 ns for each row, so one core decodes faster than a link
//! of 10 Gbit/s delivers.
//!
//! Sources: S. W. Golomb, "Run-length encodings" (1966); R. F. Rice, "Some practical universal noiseless coding
//! techniques" (1979).

use inshore_tables::{KMER_BLOCK_ROWS, KmerCode};

/// The maximum number of bytes of a block.
pub(super) const KMER_BLOCK_BYTES: usize = HEADER_BYTES + (KMER_BLOCK_ROWS * ROW_BITS_MAX).div_ceil(8) + 8;
const HEADER_BYTES: usize = 4 + 1 + 16;
/// The maximum number of bits of a row: a count of 32 bits, an escaped quotient, and a distance of 128 bits.
const ROW_BITS_MAX: usize = 2 * 31 + 1 + ESCAPE as usize + 128;
/// The number of one bits that mark an escape: the distance then follows as a plain number.
const ESCAPE: u32 = 32;
/// The number of valid bits that one read returns at any bit position, since a 64-bit word is read from a byte
/// boundary.
const WORD_BITS: u32 = 57;
/// The number of zero bytes that are appended to a block before decoding, so that a whole row can be read before a
/// truncation is detected.
const PADDING: usize = ROW_BITS_MAX / 8 + 16;

/// A code of a k-mer, as a 64-bit or 128-bit number whose bits can be packed.
pub(super) trait PackedCode: KmerCode {
    /// Returns the difference between this code and the smaller code `from`, minus one.
    fn distance(self, from: Self) -> Self;

    /// Returns the code that is larger than this code by `distance` plus one. Returns `None` if the larger code does
    /// not fit the type.
    fn behind(self, distance: Self) -> Option<Self>;

    /// Returns 64 bits of the number, from bit `at` on.
    fn word_at(self, at: u32) -> u64;

    /// Returns the number that has the bits of `word` from bit `at` on.
    fn of_word_at(word: u64, at: u32) -> Self;

    /// Returns the bitwise or of both numbers.
    fn or(self, other: Self) -> Self;
}

macro_rules! packed_code {
    ($type:ty) => {
        impl PackedCode for $type {
            #[inline(always)]
            fn distance(self, from: $type) -> $type {
                self.wrapping_sub(from).wrapping_sub(1)
            }

            #[inline(always)]
            fn behind(self, distance: $type) -> Option<$type> {
                self.checked_add(distance)?.checked_add(1)
            }

            #[inline(always)]
            fn word_at(self, at: u32) -> u64 {
                self.checked_shr(at).unwrap_or(0) as u64
            }

            #[inline(always)]
            fn of_word_at(word: u64, at: u32) -> $type {
                (word as $type).checked_shl(at).unwrap_or(0)
            }

            #[inline(always)]
            fn or(self, other: $type) -> $type {
                self | other
            }
        }
    };
}

packed_code!(u64);
packed_code!(u128);

fn low(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
}

/// Packs 1 to [`KMER_BLOCK_ROWS`] k-mers into a block; codes must ascend, and counts must be at least 1.
///
/// # Panics
/// The function panics if there are no codes, more than [`KMER_BLOCK_ROWS`] codes, or a different number of
/// counts.
pub(super) fn pack_kmers<C: PackedCode>(codes: &[C], counts: &[u32]) -> Vec<u8> {
    assert!((1..=KMER_BLOCK_ROWS).contains(&codes.len()) && codes.len() == counts.len());
    let (first, last) = (codes[0], codes[codes.len() - 1]);
    let rest_bits = rest_bits(last.wide() - first.wide(), codes.len() as u64);
    let mut out = Vec::with_capacity(HEADER_BYTES + codes.len() * (rest_bits as usize + 8) / 8);
    out.extend_from_slice(&(codes.len() as u32).to_le_bytes());
    out.push(rest_bits as u8);
    out.extend_from_slice(&first.wide().to_le_bytes());
    let mut bits = Bits { out, word: 0, filled: 0 };
    bits.put_count(counts[0]);
    for (pair, &count) in codes.windows(2).zip(&counts[1..]) {
        debug_assert!(pair[0] < pair[1]);
        bits.put_row(count, pair[1].distance(pair[0]), rest_bits);
    }
    bits.finish()
}

/// Returns the number of remainder bits (r) for which the code is shortest. This is the binary logarithm, rounded
/// down, of 0.69 (the natural logarithm of 2) times the mean distance.
fn rest_bits(all: u128, rows: u64) -> u32 {
    let mean = all / u128::from(rows);
    (mean - mean / 16 * 5).checked_ilog2().unwrap_or(0)
}

/// Writes numbers of any number of bits.
struct Bits {
    out: Vec<u8>,
    word: u64,
    filled: u32,
}

impl Bits {
    /// Writes the `count` low bits of a number. All higher bits must be 0.
    #[inline(always)]
    fn put(&mut self, number: u64, count: u32) {
        debug_assert!(count <= u64::BITS && number <= low(count));
        self.word |= number << self.filled;
        self.filled += count;
        if self.filled >= u64::BITS {
            self.out.extend_from_slice(&self.word.to_le_bytes());
            self.filled -= u64::BITS;
            // The next word begins with the bits that did not fit the full word.
            self.word = number.checked_shr(count - self.filled).unwrap_or(0);
        }
    }

    /// Writes a count and a distance. In nearly all rows both together fit into 64 bits, and one step writes both.
    #[inline(always)]
    fn put_row<C: PackedCode>(&mut self, count: u32, distance: C, rest_bits: u32) {
        let more = count.ilog2();
        let of_count = 2 * more + 1;
        let quotient = distance.word_at(rest_bits);
        let is_long =
            quotient >= u64::from(ESCAPE) || u64::from(of_count + rest_bits) + quotient >= u64::BITS.into();
        if is_long || C::BITS > u64::BITS {
            self.put_count(count);
            self.put_distance(distance, rest_bits);
            return;
        }
        let quotient_bits = quotient as u32 + 1;
        let mut row = low(more) | (u64::from(count) & low(more)) << (more + 1);
        row |= low(quotient as u32) << of_count;
        row |= (distance.word_at(0) & low(rest_bits)) << (of_count + quotient_bits - 1) << 1;
        self.put(row, of_count + quotient_bits + rest_bits);
    }

    fn put_count(&mut self, count: u32) {
        debug_assert!(count > 0);
        let more = count.ilog2();
        self.put(low(more), more + 1);
        self.put(u64::from(count) & low(more), more);
    }

    fn put_distance<C: PackedCode>(&mut self, distance: C, rest_bits: u32) {
        let quotient = distance.word_at(rest_bits);
        let is_near =
            quotient < u64::from(ESCAPE) && distance.word_at(rest_bits.saturating_add(u64::BITS)) == 0;
        if is_near {
            self.put(low(quotient as u32), quotient as u32 + 1);
            self.put_long(distance, rest_bits);
        } else {
            self.put(low(ESCAPE), ESCAPE);
            self.put_long(distance, C::BITS);
        }
    }

    /// Writes the `count` low bits of a number, where `count` may exceed 64.
    fn put_long<C: PackedCode>(&mut self, number: C, count: u32) {
        let mut at = 0;
        while at < count {
            let some = (count - at).min(WORD_BITS - 1);
            self.put(number.word_at(at) & low(some), some);
            at += some;
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let bytes = self.filled.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
        self.out
    }
}

/// Appends the codes and counts of a block to `codes` and `counts`. Returns `None` for an invalid block, and may
/// then have appended some rows. A block is invalid if it has no rows or more than [`KMER_BLOCK_ROWS`] rows, a
/// code that exceeds `C` or 126 bits, a count out of range, too few bits, or further bytes at its end.
pub(super) fn unpack_kmers<C: PackedCode>(
    block: &[u8],
    codes: &mut Vec<C>,
    counts: &mut Vec<u32>,
) -> Option<()> {
    let (rows, block) = block.split_first_chunk::<4>()?;
    let (&rest_bits, block) = block.split_first()?;
    let (first, block) = block.split_first_chunk::<16>()?;
    let rows = usize::try_from(u32::from_le_bytes(*rows)).ok()?;
    let rest_bits = u32::from(rest_bits);
    if !(1..=KMER_BLOCK_ROWS).contains(&rows) || rest_bits >= C::BITS {
        return None;
    }
    let mut code = C::of_wide(u128::from_le_bytes(*first))?;
    let mut padded = Vec::with_capacity(block.len() + PADDING);
    padded.extend_from_slice(block);
    padded.resize(block.len() + PADDING, 0);
    let mut taken = Taken { bytes: &padded, place: 0 };
    let end = block.len() * 8;
    codes.push(code);
    counts.push(taken.count()?);
    let (first_code, first_count) = (codes.len(), counts.len());
    codes.resize(first_code + rows - 1, code);
    counts.resize(first_count + rows - 1, 0);
    for (to, count) in codes[first_code..].iter_mut().zip(&mut counts[first_count..]) {
        if taken.place >= end {
            return None;
        }
        let (times, distance) = taken.row(rest_bits)?;
        code = code.behind(distance)?;
        (*to, *count) = (code, times);
    }
    let is_whole = taken.place.div_ceil(8) == block.len();
    (is_whole && code.wide() >> 126 == 0).then_some(())
}

/// Reads numbers of any number of bits.
struct Taken<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl Taken<'_> {
    /// Returns the next bits of the block, the lowest bit first. At least 57 bits are valid.
    #[inline(always)]
    fn look(&self) -> u64 {
        let byte = self.place / 8;
        let word = self.bytes[byte..byte + 8].try_into().expect("8 bytes");
        u64::from_le_bytes(word) >> (self.place % 8)
    }

    /// Reads a count and a distance. In nearly all rows both together fit into one read, and one step decodes
    /// both.
    #[inline(always)]
    fn row<C: PackedCode>(&mut self, rest_bits: u32) -> Option<(u32, C)> {
        let word = self.look();
        let more = word.trailing_ones();
        let of_count = 2 * more + 1;
        let behind = word.checked_shr(of_count).unwrap_or(u64::MAX);
        let quotient = behind.trailing_ones();
        let all = of_count + quotient + 1 + rest_bits;
        // If the quotient's code has at least 32 ones, the distance is escaped.
        if all > WORD_BITS || quotient >= ESCAPE {
            return Some((self.count()?, self.distance(rest_bits)?));
        }
        self.place += all as usize;
        let count = 1 << more | (word >> (more + 1) & low(more)) as u32;
        let rest = C::of_word_at(behind >> (quotient + 1) & low(rest_bits), 0);
        Some((count, rest.or(C::of_word_at(quotient.into(), rest_bits))))
    }

    fn count(&mut self) -> Option<u32> {
        let word = self.look();
        let more = word.trailing_ones();
        if more > 31 {
            return None;
        }
        self.place += more as usize + 1;
        // Unless the count is very large, the word that was read contains the rest of the count, too.
        let word = if 2 * more < WORD_BITS { word >> (more + 1) } else { self.look() };
        self.place += more as usize;
        Some(1 << more | (word & low(more)) as u32)
    }

    fn distance<C: PackedCode>(&mut self, rest_bits: u32) -> Option<C> {
        let word = self.look();
        let quotient = word.trailing_ones();
        if quotient >= ESCAPE {
            self.place += ESCAPE as usize;
            return Some(self.long(C::BITS));
        }
        self.place += quotient as usize + 1;
        let high = C::of_word_at(quotient.into(), rest_bits);
        // The quotient's bits must fit into the type `C`.
        (high.word_at(rest_bits) == u64::from(quotient))
            .then(|| self.long(rest_bits))
            .map(|rest: C| rest.or(high))
    }

    fn long<C: PackedCode>(&mut self, count: u32) -> C {
        let (mut number, mut at) = (C::default(), 0);
        while at < count {
            let some = (count - at).min(WORD_BITS - 1);
            number = number.or(C::of_word_at(self.look() & low(some), at));
            self.place += some as usize;
            at += some;
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unpacked<C: PackedCode>(block: &[u8]) -> Option<(Vec<C>, Vec<u32>)> {
        let (mut codes, mut counts) = (Vec::new(), Vec::new());
        unpack_kmers(block, &mut codes, &mut counts).map(|()| (codes, counts))
    }

    /// Generates ascending codes with counts. The codes, and the distances between adjacent codes, range from small
    /// numbers to numbers of up to `bits` bits.
    fn kmers<C: PackedCode + std::fmt::Debug>(bits: u32) -> impl Strategy<Value = (Vec<C>, Vec<u32>)> {
        let code = (any::<u128>(), 128 - bits..128).prop_map(|(code, shift)| code >> shift);
        let count = prop_oneof![Just(1u32), 1u32..300, 1u32..];
        proptest::collection::btree_map(code, count, 1..300).prop_map(|map| {
            map.into_iter()
                .map(|(code, count)| (C::of_wide(code).expect("it has so many bits"), count))
                .unzip()
        })
    }

    fn comes_back<C: PackedCode + std::fmt::Debug>(codes: &[C], counts: &[u32]) {
        let block = pack_kmers(codes, counts);
        assert!(block.len() <= KMER_BLOCK_BYTES);
        assert_eq!(unpacked::<C>(&block), Some((codes.to_vec(), counts.to_vec())));
        // A truncated block, and a block that is followed by a further byte, are refused.
        assert_eq!(unpacked::<C>(&block[..block.len() - 1]), None);
        assert_eq!(unpacked::<C>(&[&block[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back((codes, counts) in kmers::<u64>(64), (wide, times) in kmers::<u128>(126)) {
            comes_back(&codes, &counts);
            comes_back(&wide, &times);
        }

        #[test]
        fn any_bytes_are_k_mers_in_order_or_refused(
            (rows, bits) in (0u32..100, any::<u8>()), bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let with_head = [&rows.to_le_bytes()[..], &[bits % 130], &bytes[..]].concat();
            for block in [bytes, with_head] {
                if let Some((codes, counts)) = unpacked::<u64>(&block) {
                    prop_assert!(codes.is_sorted_by(|a, b| a < b) && counts.iter().all(|&count| count > 0));
                    prop_assert_eq!(codes.len(), counts.len());
                }
                if let Some((codes, counts)) = unpacked::<u128>(&block) {
                    prop_assert!(codes.is_sorted_by(|a, b| a < b) && codes.iter().all(|code| code >> 126 == 0));
                    prop_assert!(counts.iter().all(|&count| count > 0) && counts.len() == codes.len());
                }
            }
        }
    }

    #[test]
    fn the_smallest_and_the_largest_come_back() {
        let largest = (1u128 << 126) - 1;
        comes_back(&[0u64], &[1]);
        comes_back(&[u64::MAX], &[u32::MAX]);
        comes_back(&[0, u64::MAX], &[u32::MAX, 1]);
        comes_back(&[largest], &[1]);
        comes_back(&[0, 1, largest], &[1, 2, u32::MAX]);
        // The last code is far from all others, so its distance is escaped.
        let near: Vec<u64> = (0..1000).chain([u64::MAX]).collect();
        comes_back(&near, &vec![3; near.len()]);
        let near: Vec<u128> = (0..1000).chain([largest]).collect();
        comes_back(&near, &vec![u32::MAX; near.len()]);
        // These blocks have the maximum number of rows.
        let all: Vec<u64> = (0..KMER_BLOCK_ROWS as u64).map(|row| row * row * (u64::MAX >> 28)).collect();
        comes_back(&all, &vec![u32::MAX; all.len()]);
        let all: Vec<u128> = (0..KMER_BLOCK_ROWS as u128).map(|row| row * row * (largest >> 28)).collect();
        comes_back(&all, &vec![u32::MAX; all.len()]);
    }

    #[test]
    fn codes_by_chance_take_two_bits_more_than_their_mean_distance() {
        let mut state = 1u64;
        let mut codes: Vec<u64> = (0..KMER_BLOCK_ROWS)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state ^ state >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 14
            })
            .collect();
        codes.sort_unstable();
        codes.dedup();
        let block = pack_kmers(&codes, &vec![1; codes.len()]);
        // The mean distance is 2^50 / 2^14, whose binary logarithm is 36. The code of a distance takes one and a
        // half bits more than this logarithm, and the count takes one bit.
        let bits = block.len() as f64 * 8.0 / codes.len() as f64;
        assert!(bits < 36.0 + 2.6, "{bits}");
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let block = pack_kmers(&[5u64, 9, 100], &[1, 2, 3]);
        let with = |at: usize, byte: u8| {
            let mut block = block.clone();
            block[at] = byte;
            unpacked::<u64>(&block)
        };
        assert!(with(0, 3).is_some());
        // The changed headers claim no rows, too few rows, too many rows, a first code that is too wide, or more
        // remainder bits than a code has.
        for (at, byte) in [(0, 0), (0, 1), (0, 9), (2, 1), (3, 1), (5 + 8, 1), (4, 64), (4, 255)] {
            assert_eq!(with(at, byte), None, "{byte} at {at}");
        }
        assert_eq!(unpacked::<u64>(&[]), None);
        // The second code does not fit 64 bits.
        assert_eq!(unpacked::<u64>(&pack_kmers(&[u128::from(u64::MAX), 1 << 64], &[1, 1])), None);
        let mut block = pack_kmers(&[1u64, 9], &[1, 1]);
        block[5..13].fill(0xff);
        assert_eq!(unpacked::<u64>(&block), None);
        assert_eq!(unpacked::<u128>(&pack_kmers(&[0, 1u128 << 126], &[1, 1])), None);
        // The count is changed to a number that needs more than 32 bits.
        let mut block = pack_kmers(&[1u64], &[u32::MAX]);
        block[HEADER_BYTES + 3] |= 0x80;
        assert_eq!(unpacked::<u64>(&block), None);
    }
}
