//! Computes the products of packed codes and a quantized query. The products are integers, so they are the same with
//! every instruction set.
//!
//! A code is a sequence of units of 8 bytes. A byte holds 8 / B values of B bits. The values of a unit are ordered by
//! their position in the bytes, then by the byte:
//!
//! ```text
//!   B = 2    byte 0           byte 1           ...   byte 7
//!            d24 d16 d8 d0    d25 d17 d9 d1          d31 d23 d15 d7        the lowest bits are on the right
//! ```
//!
//! A register of AVX2 holds four units. A shift and a mask extract one value of each byte, and one instruction
//! multiplies these 32 values by 32 elements of the query. The elements of the query are stored in the order in which
//! the values are extracted ([`planes`]).

use crate::tiles::Instructions;

/// The size of a unit in bytes.
const UNIT: usize = 8;
/// The number of bytes that are processed in one step.
const STEP: usize = 32;

/// Packs values of `bits` bits. The number of values must be a multiple of 64.
pub(super) fn pack(bits: u32, values: &[u8], out: &mut Vec<u8>) {
    let per_unit = UNIT * 8 / bits as usize;
    for unit in values.chunks_exact(per_unit) {
        for byte in 0..UNIT {
            let of_byte = unit.iter().skip(byte).step_by(UNIT).enumerate();
            out.push(of_byte.fold(0, |packed, (place, &value)| packed | value << (place as u32 * bits)));
        }
    }
}

/// Returns the elements of a query in the order in which the values of codes are extracted. The result is padded with
/// zeros to whole steps.
pub(super) fn planes(bits: u32, elements: &[i8]) -> Vec<i8> {
    let per_byte = 8 / bits as usize;
    let per_unit = UNIT * per_byte;
    let steps = (elements.len() / per_byte).div_ceil(STEP);
    let mut planes = Vec::with_capacity(steps * STEP * per_byte);
    for step in 0..steps {
        for place in 0..per_byte {
            for byte in 0..STEP {
                let unit = step * (STEP / UNIT) + byte / UNIT;
                let dimension = unit * per_unit + place * UNIT + byte % UNIT;
                planes.push(elements.get(dimension).copied().unwrap_or(0));
            }
        }
    }
    planes
}

/// Appends, for each code, the sum of the products of its values and the elements of the query. `planes` are the
/// elements as [`planes`] returns them. A code has `code_bytes` bytes.
pub(super) fn products(
    instructions: Instructions,
    bits: u32,
    planes: &[i8],
    (codes, code_bytes): (&[u8], usize),
    out: &mut Vec<i32>,
) {
    let per_byte = 8 / bits as usize;
    assert!(code_bytes.is_multiple_of(UNIT), "codes of whole units");
    assert_eq!(planes.len(), code_bytes.div_ceil(STEP) * STEP * per_byte, "a query of these codes");
    match instructions {
        Instructions::Portable => {
            out.extend(codes.chunks_exact(code_bytes).map(|code| product(bits, planes, code)));
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 | Instructions::Avx512 => {
            // SAFETY: an instruction set is selected only if the processor has it, and AVX-512 implies AVX2. The
            // lengths were checked above.
            unsafe {
                match bits {
                    1 => x86::products::<1>(planes, codes, code_bytes, out),
                    2 => x86::products::<2>(planes, codes, code_bytes, out),
                    _ => x86::products::<4>(planes, codes, code_bytes, out),
                }
            }
        }
    }
}

/// Returns the product of one code.
fn product(bits: u32, planes: &[i8], code: &[u8]) -> i32 {
    let (per_byte, mask) = (8 / bits as usize, (1u8 << bits) - 1);
    let steps = code.chunks(STEP).zip(planes.chunks_exact(STEP * per_byte));
    steps
        .map(|(bytes, planes)| {
            let of_place = |(place, plane): (usize, &[i8])| -> i32 {
                let shift = place as u32 * bits;
                bytes
                    .iter()
                    .zip(plane)
                    .map(|(&byte, &q)| i32::from(byte >> shift & mask) * i32::from(q))
                    .sum()
            };
            planes.chunks_exact(STEP).enumerate().map(of_place).sum::<i32>()
        })
        .sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{STEP, UNIT};

    /// The number of codes that are processed together. The loads of the query are shared, and the chains of additions
    /// overlap.
    const TOGETHER: usize = 4;

    /// Does the work of [`super::products`].
    ///
    /// # Safety
    /// The lengths must be those that [`super::products`] checks.
    #[target_feature(enable = "avx2")]
    pub unsafe fn products<const BITS: i32>(
        planes: &[i8],
        codes: &[u8],
        code_bytes: usize,
        out: &mut Vec<i32>,
    ) {
        let mut groups = codes.chunks_exact(TOGETHER * code_bytes);
        for group in &mut groups {
            // SAFETY: the group has `TOGETHER` codes.
            out.extend_from_slice(&unsafe { some::<BITS, TOGETHER>(planes, group, code_bytes) });
        }
        for code in groups.remainder().chunks_exact(code_bytes) {
            // SAFETY: the slice is one code.
            out.extend_from_slice(&unsafe { some::<BITS, 1>(planes, code, code_bytes) });
        }
    }

    /// Returns the products of `N` codes.
    ///
    /// # Safety
    /// `codes` must have `N` codes of `code_bytes` bytes, and `planes` the elements for all steps of a code.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn some<const BITS: i32, const N: usize>(
        planes: &[i8],
        codes: &[u8],
        code_bytes: usize,
    ) -> [i32; N] {
        let mut sums = [_mm256_setzero_si256(); N];
        let whole = code_bytes / STEP;
        for step in 0..whole {
            let bytes = std::array::from_fn(|code| {
                // SAFETY: the step lies within the code.
                unsafe { _mm256_loadu_si256(codes.as_ptr().add(code * code_bytes + step * STEP).cast()) }
            });
            // SAFETY: the elements of the step lie within the planes.
            unsafe { add::<BITS, N>(&mut sums, bytes, planes, step) };
        }
        let rest = code_bytes % STEP / UNIT;
        if rest > 0 {
            // The mask selects the units that are left. The other units are zeros, and are not read.
            let selected = |unit: usize| if unit < rest { -1 } else { 0 };
            let mask = _mm256_setr_epi64x(selected(0), selected(1), selected(2), selected(3));
            let bytes = std::array::from_fn(|code| {
                // SAFETY: the selected units lie within the code.
                unsafe {
                    _mm256_maskload_epi64(codes.as_ptr().add(code * code_bytes + whole * STEP).cast(), mask)
                }
            });
            // SAFETY: the planes are padded to whole steps.
            unsafe { add::<BITS, N>(&mut sums, bytes, planes, whole) };
        }
        std::array::from_fn(|code| {
            let sums = sums[code];
            let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
            _mm_cvtsi128_si32(two) + _mm_extract_epi32::<1>(two)
        })
    }

    /// Adds the products of one step.
    ///
    /// # Safety
    /// `planes` must have the elements of the step.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn add<const BITS: i32, const N: usize>(
        sums: &mut [__m256i; N],
        bytes: [__m256i; N],
        planes: &[i8],
        step: usize,
    ) {
        let per_byte = (8 / BITS) as usize;
        let mask = _mm256_set1_epi8(((1 << BITS) - 1) as i8);
        // A 16-bit lane adds at most 16 products of a value below 2^BITS and an element of at most 127. The largest sum
        // is 4 x 15 x 127 = 7,620.
        let (mut words, mut rest) = ([_mm256_setzero_si256(); N], bytes);
        for place in 0..per_byte {
            // SAFETY: the elements of the step lie within the planes.
            let q =
                unsafe { _mm256_loadu_si256(planes.as_ptr().add((step * per_byte + place) * STEP).cast()) };
            for code in 0..N {
                // The shift moves bits between the two bytes of a word. The mask removes these bits.
                let values = _mm256_and_si256(rest[code], mask);
                words[code] = _mm256_add_epi16(words[code], _mm256_maddubs_epi16(values, q));
                rest[code] = _mm256_srli_epi16::<BITS>(rest[code]);
            }
        }
        for code in 0..N {
            let pairs = _mm256_madd_epi16(words[code], _mm256_set1_epi16(1));
            sums[code] = _mm256_add_epi32(sums[code], pairs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{below, mixed};

    #[test]
    fn products_are_those_of_the_values_with_every_instruction_set() {
        for bits in [1, 2, 4] {
            for dimensions in [64, 128, 192, 256, 320, 832, 1088] {
                let random = |number: usize, end| below(mixed(number as u64 ^ 77), end);
                let most = 1u64 << bits;
                let count = 7;
                let values: Vec<u8> =
                    (0..count * dimensions).map(|place| random(place, most) as u8).collect();
                let elements: Vec<i8> = (0..dimensions)
                    .map(|place| (random(place + 1_000_000, 255) as i32 - 127) as i8)
                    .collect();
                // The largest products are in the last code.
                let mut extreme = vec![(most - 1) as u8; dimensions];
                extreme[0] = 0;
                let all: Vec<u8> = [values, extreme].concat();
                let (mut codes, code_bytes) = (Vec::new(), dimensions * bits as usize / 8);
                all.chunks(dimensions).for_each(|values| pack(bits, values, &mut codes));
                assert_eq!(codes.len(), (count + 1) * code_bytes);
                for elements in [elements, vec![127; dimensions], vec![-127; dimensions]] {
                    let expected: Vec<i32> = all
                        .chunks(dimensions)
                        .map(|values| {
                            values.iter().zip(&elements).map(|(&v, &q)| i32::from(v) * i32::from(q)).sum()
                        })
                        .collect();
                    let planes = planes(bits, &elements);
                    for &instructions in Instructions::ALL.iter().filter(|some| some.are_here()) {
                        let mut found = Vec::new();
                        products(instructions, bits, &planes, (&codes, code_bytes), &mut found);
                        assert_eq!(found, expected, "{bits} bits, {dimensions} dimensions, {instructions}");
                    }
                }
            }
        }
    }
}
