//! Adds up the lengths of the strings in a Parquet page whose encoding stores lengths as differences
//! (DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY).
//!
//! ```text
//!   lengths             [ values in a block | miniblocks in a block | values | first value ] block ...
//!   block               [ least difference | bits of each miniblock | miniblock ... ]
//!   DELTA_LENGTH        lengths, then the bytes of all strings
//!   DELTA_BYTE_ARRAY    lengths of prefixes shared with the previous string, then the suffixes as DELTA_LENGTH
//! ```
//!
//! A few bytes can claim millions of strings, each of which repeats a million bytes of the previous string. This module
//! therefore adds the lengths before the decoder allocates memory.

use parquet::basic::Encoding;

/// The number of strings in a page, and their total length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StringSizes {
    pub strings: u64,
    pub bytes: u64,
}

/// Adds up the lengths of the strings in `values`. Returns `None` if `values` is not valid in this encoding, or if
/// there are more than `strings_max` strings.
pub(super) fn coded(encoding: Encoding, values: &[u8], strings_max: u64) -> Option<StringSizes> {
    let (shared, rest) = match encoding {
        Encoding::DELTA_BYTE_ARRAY => lengths(values, strings_max)?,
        _ => (StringSizes { strings: 0, bytes: 0 }, values),
    };
    let (own, bytes) = lengths(rest, strings_max)?;
    let is_whole = own.bytes <= bytes.len() as u64;
    let are_paired = encoding != Encoding::DELTA_BYTE_ARRAY || shared.strings == own.strings;
    let all = StringSizes { strings: own.strings, bytes: own.bytes.checked_add(shared.bytes)? };
    (is_whole && are_paired).then_some(all)
}

/// Decodes nonnegative lengths and adds them up. Also returns the bytes after the lengths.
fn lengths(bytes: &[u8], count_max: u64) -> Option<(StringSizes, &[u8])> {
    let mut rest = bytes;
    let block_values = number(&mut rest)?;
    let miniblocks = number(&mut rest)?;
    let strings = number(&mut rest)?;
    let mut value = signed(&mut rest)?;
    let miniblock_values = block_values.checked_div(miniblocks)?;
    if strings > count_max || !miniblock_values.is_multiple_of(8) || miniblocks > block_values {
        return None;
    }
    if strings == 0 {
        return Some((StringSizes { strings, bytes: 0 }, rest));
    }
    let mut sum = u64::try_from(value).ok()?;
    let mut left = strings - 1;
    while left > 0 {
        let least = signed(&mut rest)?;
        let (widths, after) = rest.split_at_checked(usize::try_from(miniblocks).ok()?)?;
        rest = after;
        for &width in widths {
            if left == 0 {
                break;
            }
            let packed_bytes = usize::try_from(miniblock_values / 8).ok()?.checked_mul(width.into())?;
            let (packed, after) = rest.split_at_checked(packed_bytes)?;
            rest = after;
            let count = left.min(miniblock_values);
            for index in 0..count {
                value = value.wrapping_add(least).wrapping_add(unpacked(packed, index, width)? as i64);
                sum = sum.checked_add(u64::try_from(value).ok()?)?;
            }
            left -= count;
        }
    }
    Some((StringSizes { strings, bytes: sum }, rest))
}

/// Returns the number at position `index` of packed numbers of `width` bits each. The lowest bits come first.
fn unpacked(packed: &[u8], index: u64, width: u8) -> Option<u64> {
    if width == 0 {
        return Some(0);
    }
    let first = index * u64::from(width);
    let (byte, shift) = ((first / 8) as usize, (first % 8) as u32);
    let mut word = [0; 16];
    let here = &packed[byte..packed.len().min(byte + 16)];
    word[..here.len()].copy_from_slice(here);
    let mask = u64::MAX >> 64u32.checked_sub(width.into())?;
    Some((u128::from_le_bytes(word) >> shift) as u64 & mask)
}

/// Reads an unsigned number that has 7 bits in each byte. The lowest bits come first.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads a signed number in zigzag encoding, in which the lowest bit is the sign.
fn signed(bytes: &mut &[u8]) -> Option<i64> {
    let number = number(bytes)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes lengths in blocks of 128 values with 4 miniblocks of 32, each of `width` bits.
    fn coded_lengths(all: &[u64], width: u8) -> Vec<u8> {
        let mut bytes = vec![0x80, 1, 4];
        let put = |mut number: u64, bytes: &mut Vec<u8>| loop {
            let more = number >> 7 != 0;
            bytes.push(number as u8 & 0x7f | if more { 0x80 } else { 0 });
            number >>= 7;
            if !more {
                break;
            }
        };
        let zigzag = |value: i64| (value << 1 ^ value >> 63) as u64;
        put(all.len() as u64, &mut bytes);
        put(zigzag(all.first().map_or(0, |&first| first as i64)), &mut bytes);
        let differences: Vec<i64> = all.windows(2).map(|two| two[1] as i64 - two[0] as i64).collect();
        for block in differences.chunks(128) {
            let least = *block.iter().min().unwrap();
            put(zigzag(least), &mut bytes);
            bytes.extend([width; 4]);
            for miniblock in block.chunks(32) {
                let mut bits = vec![0u8; 4 * width as usize];
                for (place, difference) in miniblock.iter().enumerate() {
                    let above = (difference - least) as u64;
                    for bit in (0..usize::from(width)).filter(|bit| above >> bit & 1 == 1) {
                        let at = place * usize::from(width) + bit;
                        bits[at / 8] |= 1 << (at % 8);
                    }
                }
                bytes.extend(bits);
            }
        }
        bytes
    }

    #[test]
    fn lengths_are_added_up() {
        for count in [0, 1, 2, 32, 33, 129, 1000] {
            let all: Vec<u64> = (0..count).map(|n| n * 7 % 61).collect();
            let mut bytes = coded_lengths(&all, 7);
            let sum = all.iter().sum::<u64>();
            bytes.extend(vec![b'x'; sum as usize]);
            let expected = Some(StringSizes { strings: count, bytes: sum });
            assert_eq!(coded(Encoding::DELTA_LENGTH_BYTE_ARRAY, &bytes, count), expected, "{count}");
            let both = [coded_lengths(&all, 9), bytes].concat();
            let expected = Some(StringSizes { strings: count, bytes: 2 * sum });
            assert_eq!(coded(Encoding::DELTA_BYTE_ARRAY, &both, count), expected, "{count}");
            if count > 0 {
                assert_eq!(coded(Encoding::DELTA_BYTE_ARRAY, &both, count - 1), None);
                for end in 0..both.len() {
                    assert_eq!(coded(Encoding::DELTA_BYTE_ARRAY, &both[..end], count), None, "{count} {end}");
                }
            }
        }
    }

    #[test]
    fn hostile_lengths_are_refused() {
        let delta = Encoding::DELTA_LENGTH_BYTE_ARRAY;
        // The invalid inputs have no miniblocks, a width beyond 64 bits, a negative length, and lengths whose sum is
        // above 2^64.
        for bytes in [
            &[0x80, 1, 0, 2, 0, 0, 0, 0][..],
            &[0x80, 1, 4, 2, 0, 0, 65, 0, 0, 0],
            &[0x80, 1, 4, 1, 1],
            &[0x80, 1, 4, 2, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0],
        ] {
            let padded = [bytes, &[0; 600]].concat();
            assert_eq!(coded(delta, &padded, 1000), None, "{bytes:?}");
        }
    }
}
