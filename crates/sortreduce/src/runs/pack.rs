//! Compresses up to 256 sorted records to a frame, which has as few bits per key and value word as possible.
//!
//! ```text
//!   frame    [ first key | least value word, of each | bits, of key and each value word | columns ]    u64, u8 for bits
//!   column   [ row 0 .. row 63 of lane 0 | ... ]       value i: lane i % 4, row i / 4; bits * 4 words, interleaved
//!              key words: difference from the key at index i - 4; value words: difference from the least word
//! ```
//!
//! Four lanes of 64 bits fill one register of AVX2. One row of all lanes is packed or unpacked at a time, with the
//! same shift. The sum of differences takes one addition per row. The layout is from Lemire and Boytsov, "Decoding
//! billions of integers per second through vectorization" (2015), with words of 64 bits. A frame of fewer than 256
//! records is filled up with copies of the last record.
//!
//! A column has 64 rows, which take about 8 instructions each. Packing or unpacking therefore takes about half a
//! nanosecond per word. The conversion between values and words takes about the same time.

use std::marker::PhantomData;

use zerocopy::IntoBytes;

use crate::{
    Key, Value,
    array::{typed, typed_mut},
    words::Instructions,
};

/// The number of records in a frame.
pub const FRAME_RECORDS: usize = 256;
const LANES: usize = 4;
/// The maximum number of words in a packed value. For larger values, packing takes more time than it saves.
const VALUE_WORDS_MAX: usize = 8;

type Words = [u64; FRAME_RECORDS];

/// Packs and unpacks frames of records with keys `K` and values `V`.
#[derive(Clone, Copy, Debug)]
pub struct Packing<K, V> {
    instructions: Instructions,
    of: PhantomData<(K, V)>,
}

/// The error for a frame that [`Packing::pack`] cannot have created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFrame;

impl<K: Key, V: Value> Packing<K, V> {
    /// The bytes per word of a value (4 or 8), or 0 if values do not consist of words.
    const WORD_BYTES: usize = match size_of::<V>() {
        bytes if bytes.is_multiple_of(8) && align_of::<V>().is_multiple_of(8) => 8,
        0 => 8,
        bytes if bytes.is_multiple_of(4) && align_of::<V>().is_multiple_of(4) => 4,
        _ => 0,
    };
    const VALUE_WORDS: usize = match Self::WORD_BYTES {
        0 => 0,
        bytes => size_of::<V>() / bytes,
    };
    /// The bytes of a frame's header, which precedes the columns.
    pub const HEADER_BYTES: usize = 8 + 8 * Self::VALUE_WORDS + (1 + Self::VALUE_WORDS).next_multiple_of(8);
    /// The maximum bytes of a frame.
    pub const FRAME_BYTES_MAX: usize = Self::HEADER_BYTES + FRAME_RECORDS * (size_of::<K>() + size_of::<V>());

    /// Creates the packing. Returns `None` if records cannot be packed, since keys are wider than 64 bits, values
    /// have too many words, or values do not consist of words.
    pub fn new() -> Option<Self> {
        let can = size_of::<K>() <= 8 && Self::WORD_BYTES > 0 && Self::VALUE_WORDS <= VALUE_WORDS_MAX;
        can.then(|| Packing { instructions: Instructions::best(), of: PhantomData })
    }

    /// Packs 1 to 256 records with ascending keys to the start of `out`. Returns the length of the frame in bytes. If
    /// the frame does not fit, the function returns `None`, and the contents of `out` are undefined.
    ///
    /// # Panics
    /// The function panics if `out` is not aligned to words.
    pub fn pack(&self, keys: &[K], values: &[V], out: &mut [u8]) -> Option<usize> {
        match self.instructions {
            // SAFETY: a processor with either of these instruction sets has AVX2.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 | Instructions::Avx512 => unsafe { self.pack_avx2(keys, values, out) },
            _ => self.pack_with(keys, values, out),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn pack_avx2(&self, keys: &[K], values: &[V], out: &mut [u8]) -> Option<usize> {
        self.pack_with(keys, values, out)
    }

    #[inline(always)]
    fn pack_with(&self, keys: &[K], values: &[V], out: &mut [u8]) -> Option<usize> {
        let mut end = Self::HEADER_BYTES;
        let mut words: Words = [0; FRAME_RECORDS];
        let base = keys[0].to_u64();
        for (word, key) in words.iter_mut().zip(keys) {
            *word = key.to_u64();
        }
        repeat_last(&mut words, keys.len());
        differences(&mut words, base);
        out.get_mut(..8)?.copy_from_slice(&base.to_le_bytes());
        Self::put_column(&words, 0, &mut end, out)?;
        for column in 0..Self::VALUE_WORDS {
            Self::value_column(values, column, &mut words);
            repeat_last(&mut words, values.len());
            let least = subtract_least(&mut words);
            out.get_mut(8 + 8 * column..16 + 8 * column)?.copy_from_slice(&least.to_le_bytes());
            Self::put_column(&words, 1 + column, &mut end, out)?;
        }
        Some(end)
    }

    #[inline(always)]
    fn put_column(words: &Words, number: usize, end: &mut usize, out: &mut [u8]) -> Option<()> {
        let bits = u64::BITS - words.iter().fold(0, |all, word| all | word).leading_zeros();
        *out.get_mut(8 + 8 * Self::VALUE_WORDS + number)? = bits as u8;
        let bytes = bits as usize * LANES * 8;
        let room = out.get_mut(*end..*end + bytes)?;
        let room = typed_mut::<[u64; LANES]>(room, bits as usize);
        pack_rows(words, bits, room);
        *end += bytes;
        Some(())
    }

    #[inline(always)]
    fn value_column(values: &[V], column: usize, words: &mut Words) {
        let count = values.len() * Self::VALUE_WORDS;
        let bytes = values.as_bytes();
        let step = Self::VALUE_WORDS.max(1);
        match Self::WORD_BYTES {
            8 => {
                let from = typed::<u64>(bytes, count).iter().skip(column).step_by(step);
                words.iter_mut().zip(from).for_each(|(word, &value)| *word = value);
            }
            _ => {
                let from = typed::<u32>(bytes, count).iter().skip(column).step_by(step);
                words.iter_mut().zip(from).for_each(|(word, &value)| *word = value.into());
            }
        }
    }

    /// Unpacks the frame at the start of `bytes` to `keys` and `values`, which must have 256 elements each. Returns
    /// the length of the frame in bytes.
    ///
    /// # Errors
    /// Returns [`BadFrame`] if the frame is malformed or longer than `bytes`.
    pub fn unpack(&self, bytes: &[u8], keys: &mut [K], values: &mut [V]) -> Result<usize, BadFrame> {
        match self.instructions {
            // SAFETY: a processor with either of these instruction sets has AVX2.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 | Instructions::Avx512 => unsafe { self.unpack_avx2(bytes, keys, values) },
            _ => self.unpack_with(bytes, keys, values),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn unpack_avx2(&self, bytes: &[u8], keys: &mut [K], values: &mut [V]) -> Result<usize, BadFrame> {
        self.unpack_with(bytes, keys, values)
    }

    #[inline(always)]
    fn unpack_with(&self, bytes: &[u8], keys: &mut [K], values: &mut [V]) -> Result<usize, BadFrame> {
        let header = bytes.get(..Self::HEADER_BYTES).ok_or(BadFrame)?;
        let word = |number: usize| {
            u64::from_le_bytes(header[8 * number..8 * number + 8].try_into().expect("eight bytes"))
        };
        let bits = &header[8 + 8 * Self::VALUE_WORDS..];
        let mut words: Words = [0; FRAME_RECORDS];
        let mut end = header.len();
        let mut column = |number: usize| {
            let bits = u32::from(bits[number]);
            let length = bits as usize * LANES * 8;
            let packed = bytes.get(end..end + length).filter(|_| bits <= u64::BITS).ok_or(BadFrame)?;
            end += length;
            Ok((typed::<[u64; LANES]>(packed, bits as usize), bits))
        };
        let (packed, width) = column(0)?;
        let mut sums = [word(0); LANES];
        unpack_rows(packed, width, &mut words, |row| {
            for (word, sum) in row.iter_mut().zip(&mut sums) {
                *sum = sum.wrapping_add(*word);
                *word = *sum;
            }
        });
        keys.iter_mut().zip(&words).for_each(|(key, &word)| *key = K::from_u64(word));
        for number in 0..Self::VALUE_WORDS {
            let (packed, width) = column(1 + number)?;
            unpack_rows(packed, width, &mut words, |_| {});
            let least = word(1 + number);
            let count = values.len() * Self::VALUE_WORDS;
            let out = values.as_mut_bytes();
            match Self::WORD_BYTES {
                8 => {
                    let out = typed_mut::<u64>(out, count);
                    let out = out.iter_mut().skip(number).step_by(Self::VALUE_WORDS.max(1));
                    out.zip(&words).for_each(|(out, word)| *out = word.wrapping_add(least));
                }
                _ => {
                    let out = typed_mut::<u32>(out, count);
                    let out = out.iter_mut().skip(number).step_by(Self::VALUE_WORDS.max(1));
                    out.zip(&words).for_each(|(out, word)| *out = word.wrapping_add(least) as u32);
                }
            }
        }
        Ok(end)
    }
}

#[inline(always)]
fn repeat_last(words: &mut Words, count: usize) {
    let last = words[count - 1];
    words[count..].fill(last);
}

/// Replaces each word by its difference from the word at the index that is four lower. The first four words are
/// replaced by their differences from `base`.
#[inline(always)]
fn differences(words: &mut Words, base: u64) {
    for at in (LANES..FRAME_RECORDS).rev() {
        words[at] = words[at].wrapping_sub(words[at - LANES]);
    }
    words[..LANES].iter_mut().for_each(|word| *word = word.wrapping_sub(base));
}

/// Replaces each word by its difference from the least word, which is returned. Words are compared as signed numbers.
/// For unsigned words below 2^63, the result is the same.
#[inline(always)]
fn subtract_least(words: &mut Words) -> u64 {
    let least = words.iter().fold(i64::MAX, |least, &word| least.min(word as i64)) as u64;
    words.iter_mut().for_each(|word| *word = word.wrapping_sub(least));
    least
}

/// Packs the lowest `bits` bits of each word. The other bits of each word must be 0.
#[inline(always)]
fn pack_rows(words: &Words, bits: u32, out: &mut [[u64; LANES]]) {
    out.fill([0; LANES]);
    let Some(last) = out.len().checked_sub(1) else { return };
    for (number, row) in words.as_chunks::<LANES>().0.iter().enumerate() {
        let (place, shift) = place_of(number, bits);
        for (out, word) in out[place].iter_mut().zip(row) {
            *out |= word << shift;
        }
        // The high bits that do not fit are written to the next row of words. All bits of the last row fit.
        for (out, word) in out[(place + 1).min(last)].iter_mut().zip(row) {
            *out |= (word >> 1) >> (u64::BITS - 1 - shift);
        }
    }
}

/// Returns the index of the packed word in which a row's bits begin, and the bit offset within this word.
#[inline(always)]
fn place_of(row: usize, bits: u32) -> (usize, u32) {
    let start = row as u32 * bits;
    ((start / u64::BITS) as usize, start % u64::BITS)
}

/// Reverses [`pack_rows`], and calls `each` with every row.
#[inline(always)]
fn unpack_rows(
    packed: &[[u64; LANES]],
    bits: u32,
    words: &mut Words,
    mut each: impl FnMut(&mut [u64; LANES]),
) {
    let rows = words.as_chunks_mut::<LANES>().0;
    if bits == 0 {
        rows.iter_mut().for_each(|row| {
            *row = [0; LANES];
            each(row);
        });
        return;
    }
    let mask = u64::MAX >> (u64::BITS - bits);
    let last = packed.len() - 1;
    for (number, row) in rows.iter_mut().enumerate() {
        let (place, shift) = place_of(number, bits);
        let (low, high) = (&packed[place], &packed[(place + 1).min(last)]);
        for ((word, low), high) in row.iter_mut().zip(low).zip(high) {
            *word = (low >> shift | (high << 1) << (u64::BITS - 1 - shift)) & mask;
        }
        each(row);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn mix(n: u64) -> u64 {
        let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn there_and_back<K: Key + std::fmt::Debug, V: Value + PartialEq + std::fmt::Debug>(
        keys: &[K],
        values: &[V],
    ) -> usize {
        let best = Packing::<K, V>::new().unwrap();
        let portable = Packing { instructions: Instructions::Portable, ..best };
        let mut sizes = Vec::new();
        for (packs, unpacks) in [(best, portable), (portable, best)] {
            let mut room = vec![0xa5a5_a5a5_a5a5_a5a5u64; Packing::<K, V>::FRAME_BYTES_MAX / 8 + 1];
            let bytes = packs.pack(keys, values, room.as_mut_bytes()).unwrap();
            assert!(bytes <= Packing::<K, V>::FRAME_BYTES_MAX);
            let mut out = (vec![K::default(); FRAME_RECORDS], vec![V::default(); FRAME_RECORDS]);
            assert_eq!(unpacks.unpack(&room.as_bytes()[..bytes], &mut out.0, &mut out.1), Ok(bytes));
            assert_eq!((&out.0[..keys.len()], &out.1[..keys.len()]), (keys, values));
            assert!(best.pack(keys, values, &mut room.as_mut_bytes()[..bytes - 1]).is_none());
            for cut in 0..bytes {
                let cut = unpacks.unpack(&room.as_bytes()[..cut], &mut out.0, &mut out.1);
                assert_eq!(cut, Err(BadFrame));
            }
            sizes.push(bytes);
        }
        assert_eq!(sizes[0], sizes[1]);
        sizes[0]
    }

    #[test]
    fn records_of_all_widths_come_back() {
        for count in [1, 2, 3, 4, 5, 63, 64, 65, 255, 256] {
            for bits in 0..=56 {
                let keys: Vec<u64> = (0..count).map(|i| (i << bits) + (mix(i) & ((1 << bits) - 1))).collect();
                let values: Vec<[u64; 2]> = (0..count)
                    .map(|i| [mix(i) >> (63 - bits), (mix(i) as i64 >> (63 - bits)) as u64])
                    .collect();
                there_and_back(&keys, &values);
                let keys: Vec<u32> = keys.iter().map(|key| (*key % (1 << 24)) as u32).collect();
                if keys.is_sorted() {
                    there_and_back(&keys, &vec![(); keys.len()]);
                    let values: Vec<u32> = (0..count).map(|i| (mix(i) >> bits) as u32).collect();
                    there_and_back(&keys, &values);
                }
            }
        }
    }

    #[test]
    fn the_least_and_the_greatest_come_back() {
        there_and_back(&[0, 1, u64::MAX - 1, u64::MAX], &[u64::MAX, 0, 1 << 63, (1 << 63) - 1]);
        there_and_back(&[0, u32::MAX], &[[u32::MAX, 0, 7], [0, u32::MAX, 7]]);
    }

    #[test]
    fn evenly_spaced_records_take_few_bits() {
        // Keys differ by 26 on average. Each value consists of the count 1 and a sum below 1000. Records of 20 bytes
        // are packed to less than 3 bytes.
        let keys: Vec<u32> = (0..256).map(|i| 1_000_000 + i * 26 + (mix(i.into()) % 26) as u32).collect();
        let values: Vec<[u64; 2]> = (0..256).map(|i| [1, mix(i) % 1000]).collect();
        assert!(there_and_back(&keys, &values) < 256 * 3);
        // The values are signed numbers around zero.
        let values: Vec<u64> = (0..256).map(|i| (mix(i) % 16).wrapping_sub(8)).collect();
        assert!(there_and_back(&keys, &values) < 256 * 2);
        assert_eq!(there_and_back(&keys[..1], &values[..1]), 8 + 8 + 8);
    }

    #[test]
    fn malformed_frames_are_refused() {
        let packing = Packing::<u64, ()>::new().unwrap();
        let mut frame = vec![0u64; 400];
        frame[1] = 65;
        let (keys, values) = (&mut [0; FRAME_RECORDS], &mut [(); FRAME_RECORDS]);
        assert_eq!(packing.unpack(frame.as_bytes(), keys, values), Err(BadFrame));
    }

    #[test]
    fn wide_keys_and_values_without_words_are_not_packed() {
        assert!(Packing::<u128, u64>::new().is_none());
        assert!(Packing::<u64, [u8; 3]>::new().is_none());
        assert!(Packing::<u64, [u64; 9]>::new().is_none());
    }
}
