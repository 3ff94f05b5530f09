//! The element types of vectors, in files and in the store.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

/// The largest number of dimensions of a vector. With this number of dimensions, the dot product of two vectors of
/// bytes still fits into 31 bits: 32,768 x 255 x 255 < 2^31.
pub const DIMENSIONS_MAX: usize = 32 << 10;

/// The largest number of dimensions of a vector of bits. The vector has as many bytes as the largest vector of bytes.
pub const BITS_MAX: usize = 8 * DIMENSIONS_MAX;

/// The type of the elements of a dataset of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 32-bit floating-point numbers, all finite.
    F32,
    /// Unsigned bytes.
    U8,
    /// Signed bytes.
    I8,
    /// 16-bit floating-point numbers (IEEE 754 binary16), all finite.
    F16,
    /// The upper 16 bits of 32-bit floating-point numbers (bfloat16), all finite.
    Bf16,
    /// Bits. A byte holds eight of them.
    Bits,
}

impl Element {
    /// All element types.
    pub(crate) const ALL: [Element; 6] =
        [Element::F32, Element::U8, Element::I8, Element::F16, Element::Bf16, Element::Bits];

    /// Returns the number of bytes of a vector. For bits, the number of dimensions must be a multiple of 8.
    pub fn row_bytes(self, dimensions: usize) -> usize {
        match self {
            Element::F32 => 4 * dimensions,
            Element::F16 | Element::Bf16 => 2 * dimensions,
            Element::U8 | Element::I8 => dimensions,
            Element::Bits => dimensions / 8,
        }
    }

    /// Returns the largest number of dimensions of a vector with this element type.
    pub fn dimensions_max(self) -> usize {
        if self == Element::Bits { BITS_MAX } else { DIMENSIONS_MAX }
    }

    /// Returns the element type of queries for a dataset of this element type, to which queries are converted. It is
    /// f32 for all floating-point types, and otherwise the type of the dataset.
    pub(crate) fn queried(self) -> Element {
        if self.is_float() { Element::F32 } else { self }
    }

    /// Returns true if the elements are floating-point numbers.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16 | Element::Bf16)
    }

    /// Appends the elements of rows of f16 or bf16 as f32. The conversion is exact.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        let words = bytes.as_chunks::<2>().0.iter().map(|&word| u16::from_le_bytes(word));
        match self {
            Element::F16 => out.extend(words.map(of_f16)),
            Element::Bf16 => out.extend(words.map(of_bf16)),
            Element::F32 | Element::U8 | Element::I8 | Element::Bits => {
                unreachable!("{self} are not decoded")
            }
        }
    }

    /// Returns the number that stands for the element type in the header of a dataset.
    pub(crate) fn code(self) -> u32 {
        match self {
            Element::F32 => 1,
            Element::U8 => 2,
            Element::I8 => 3,
            Element::F16 => 4,
            Element::Bf16 => 5,
            Element::Bits => 6,
        }
    }

    pub(crate) fn of_code(code: u32) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.code() == code)
    }

    /// Returns the value of the element at `index` of a row. The conversion to f64 is exact.
    fn value(self, row: &[u8], index: usize) -> f64 {
        match self {
            Element::F32 => floats(row)[index].into(),
            Element::U8 => row[index].into(),
            Element::I8 => (row[index] as i8).into(),
            Element::F16 => of_f16(u16::from_le_bytes([row[2 * index], row[2 * index + 1]])).into(),
            Element::Bf16 => of_bf16(u16::from_le_bytes([row[2 * index], row[2 * index + 1]])).into(),
            Element::Bits => (row[index / 8] >> (index % 8) & 1).into(),
        }
    }

    /// Converts a row from this element type to the type `to` of queries, and appends the result to `out`.
    ///
    /// # Errors
    /// Returns the first dimension whose value `to` cannot hold exactly, together with the value.
    pub(crate) fn cast(self, row: &[u8], to: Element, out: &mut Vec<u8>) -> Result<(), (usize, f64)> {
        if self == to {
            out.extend_from_slice(row);
            return Ok(());
        }
        for index in 0..8 * row.len() / self.row_bytes(8) {
            let value = self.value(row, index);
            match to {
                Element::F32 => out.extend_from_slice(&(value as f32).to_le_bytes()),
                Element::U8 if f64::from(value as u8) == value => out.push(value as u8),
                Element::I8 if f64::from(value as i8) == value => out.push(value as i8 as u8),
                _ => return Err((index, value)),
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Element::F32 => "f32",
            Element::U8 => "u8",
            Element::I8 => "i8",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::Bits => "bits",
        })
    }
}

/// Returns the value of a finite binary16 number. The multiplication by a power of two corrects the exponent, and also
/// gives the right value for subnormal numbers.
#[inline(always)]
fn of_f16(bits: u16) -> f32 {
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let size = f32::from_bits(u32::from(bits & 0x7fff) << 13) * SCALE;
    f32::from_bits(size.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[inline(always)]
fn of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns aligned bytes as floats, without a copy.
///
/// # Panics
/// Panics if the bytes are not aligned to 4 bytes, or if their number is not a multiple of 4.
pub(crate) fn floats(bytes: &[u8]) -> &[f32] {
    <[f32]>::ref_from_bytes(bytes).expect("aligned and whole")
}

/// The element type of a file of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileElement {
    F32,
    F64,
    U8,
    I8,
    I32,
    F16,
    Bf16,
    Bits,
}

impl FileElement {
    /// Returns the number of bytes of a vector.
    pub fn row_bytes(self, dimensions: usize) -> usize {
        match self {
            FileElement::F64 => 8 * dimensions,
            FileElement::I32 => 4 * dimensions,
            _ => self.stored().row_bytes(dimensions),
        }
    }

    /// Returns the element type with which a dataset stores elements of this type.
    pub fn stored(self) -> Element {
        match self {
            FileElement::F32 | FileElement::F64 | FileElement::I32 => Element::F32,
            FileElement::U8 => Element::U8,
            FileElement::I8 => Element::I8,
            FileElement::F16 => Element::F16,
            FileElement::Bf16 => Element::Bf16,
            FileElement::Bits => Element::Bits,
        }
    }

    /// Converts the elements `raw` of a file to stored elements, and writes them to `out`. `out` must be large enough
    /// for the same number of elements. Returns how many elements were rounded. Only elements of f64 are rounded.
    ///
    /// # Errors
    /// Returns the index and the value of the first element that cannot be stored. Such a value is NaN, an infinity, an
    /// f64 outside the range of f32, or an i32 that f32 cannot hold exactly.
    pub fn store(self, raw: &[u8], out: &mut [u8]) -> Result<u64, (usize, String)> {
        let mut rounded = 0;
        match self {
            FileElement::U8 | FileElement::I8 | FileElement::Bits => out.copy_from_slice(raw),
            FileElement::F16 | FileElement::Bf16 => {
                out.copy_from_slice(raw);
                let exponent = if self == FileElement::F16 { 0x7c00 } else { 0x7f80 };
                let words = || raw.as_chunks::<2>().0.iter().map(|&word| u16::from_le_bytes(word));
                let is_bad = |word: u16| word & exponent == exponent;
                if let Some((index, word)) = words().enumerate().find(|(_, word)| is_bad(*word)) {
                    let is_nan = word & 0x7fff != exponent;
                    let sign = if word & 0x8000 != 0 { "-" } else { "" };
                    return Err((index, if is_nan { "NaN".to_string() } else { format!("{sign}inf") }));
                }
            }
            FileElement::F32 => {
                out.copy_from_slice(raw);
                let words = <[u32]>::ref_from_bytes(out).expect("aligned and whole");
                // This pass has no branch, so the compiler can vectorize it.
                let is_bad = |word: &u32| word & 0x7f80_0000 == 0x7f80_0000;
                if words.iter().fold(false, |bad, word| bad | is_bad(word)) {
                    let index = words.iter().position(is_bad).expect("one was found");
                    return Err((index, f32::from_bits(words[index]).to_string()));
                }
            }
            FileElement::F64 => {
                let out = <[f32]>::mut_from_bytes(out).expect("aligned and whole");
                for (index, (bytes, out)) in raw.chunks_exact(8).zip(out).enumerate() {
                    let value = f64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                    *out = value as f32;
                    if !out.is_finite() {
                        return Err((index, value.to_string()));
                    }
                    rounded += u64::from(f64::from(*out) != value);
                }
            }
            FileElement::I32 => {
                let out = <[f32]>::mut_from_bytes(out).expect("aligned and whole");
                for (index, (bytes, out)) in raw.chunks_exact(4).zip(out).enumerate() {
                    let value = i32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                    *out = value as f32;
                    if f64::from(*out) != f64::from(value) {
                        return Err((index, value.to_string()));
                    }
                }
            }
        }
        Ok(rounded)
    }

    /// Describes the values that [`FileElement::store`] accepts.
    pub fn expected(self) -> &'static str {
        match self {
            FileElement::F32 | FileElement::F16 | FileElement::Bf16 => "a finite number",
            FileElement::F64 => "a finite number in the range of f32",
            FileElement::I32 => "an integer that f32 can hold exactly",
            FileElement::U8 | FileElement::I8 | FileElement::Bits => "a byte",
        }
    }
}

/// Allocates memory for at least `bytes` bytes, aligned to 8 bytes. The bytes are zeros.
pub(crate) fn aligned(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}

/// Returns the first `len` bytes of aligned memory.
pub(crate) fn bytes_of(memory: &mut [u64], len: usize) -> &mut [u8] {
    &mut memory.as_mut_bytes()[..len]
}
