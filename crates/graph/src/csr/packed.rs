//! Packs the entries of rows into frames of 128 entries. Frames are in blocks that can be read independently.
//!
//! ```text
//!   block (16 KiB):  u32 number of its first frame  u16 frames  u16 0
//!                    { u32 first entry  u16 offset of its data  u16 code } for each frame ──►
//!                    ◄── data of the frames, in reverse order
//!   code:            6 bits width  6 bits base  4 bits bytes of an outlier
//!   data:            differences of width bits, in four lanes | positions of outliers | bits of outliers above width
//! ```
//!
//! An entry is stored as its difference from the previous entry. Rows ascend, so differences are small except where a
//! row ends and another begins. Such a difference can be negative. It can also be so large that all 128 differences
//! would need its width. A negative base allows negative differences, and outliers are stored separately (Zukowski et
//! al., "Super-Scalar RAM-CPU Cache Compression", 2006). The lanes are those of vector registers: four consecutive
//! differences are in four adjacent lanes (Lemire and Boytsov, "Decoding billions of integers per second through
//! vectorization", 2015).

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_BYTES, Csr};
use crate::{Error, Result};

/// The number of entries in a frame.
pub(super) const FRAME: usize = 128;
const LANES: usize = 4;
const HEADER_BYTES: usize = 8;
const SLOT_BYTES: usize = 8;
/// The number of bytes of a frame's data per bit of width.
const WIDTH_BYTES: usize = FRAME / 8;
/// The number of frames that are unpacked at once. The number is small, so that the unpacked entries stay in the
/// nearest cache.
const STEP: usize = 32;

/// The bytes of memory that one [`Unpacker`] takes.
pub(crate) const UNPACKER_BYTES: u64 = (STEP * FRAME * 4) as u64;

/// Returns an upper bound on the bytes of the blocks of a number of entries. The bound consists of 4 bytes for each
/// entry, a slot for each frame, and the unused space at the end of each block.
pub(crate) fn blocks_bytes_max(entries: u64) -> u64 {
    let frames = entries.div_ceil(FRAME as u64);
    let frame_bytes = (SLOT_BYTES + FRAME * 4) as u64;
    let in_block = (BLOCK_BYTES - HEADER_BYTES) as u64 / frame_bytes;
    frames.div_ceil(in_block) * BLOCK_BYTES as u64
}

/// Returns the number of the frame that has an entry.
pub(super) fn frame_of(entry: u64) -> u64 {
    entry / FRAME as u64
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Slot {
    first: [u8; 4],
    place: [u8; 2],
    code: [u8; 2],
}

/// The encoding of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Code {
    width: u32,
    /// 0, or k + 1 if 2^k is added to each difference before the difference is stored.
    base: u32,
    /// The number of bytes that store the bits of an outlier above the width; 0 if the frame has no outliers.
    outlier_bytes: u32,
}

impl Code {
    fn to_bits(self) -> u16 {
        (self.width | self.base << 6 | self.outlier_bytes << 12) as u16
    }

    fn from_bits(bits: u16) -> Option<Code> {
        let bits = u32::from(bits);
        let code = Code { width: bits & 63, base: bits >> 6 & 63, outlier_bytes: bits >> 12 };
        (code.width <= 32 && code.base <= 32 && code.outlier_bytes <= 4).then_some(code)
    }

    /// Returns the number that a reader adds to each stored difference, modulo 2^32.
    fn base(self) -> u32 {
        if self.base == 0 { 0 } else { (1u32 << (self.base - 1)).wrapping_neg() }
    }
}

fn bits_of(value: u32) -> u32 {
    32 - value.leading_zeros()
}

/// Returns the cheapest encoding of these differences: the number of bytes, the width, and the bytes of an outlier.
fn cheapest(differences: &[u32; FRAME]) -> (usize, u32, u32) {
    // Each lane has an array of counters, since most differences have about the same width. With a single array, each
    // increment of a counter would wait for the previous increment.
    let mut counts_of = [[0u32; 33]; LANES];
    let (rounds, _) = differences.as_chunks::<LANES>();
    for round in rounds {
        for lane in 0..LANES {
            counts_of[lane][bits_of(round[lane]) as usize] += 1;
        }
    }
    let counts: [u32; 33] = std::array::from_fn(|width| counts_of.iter().map(|counts| counts[width]).sum());
    let widest = counts.iter().rposition(|&count| count > 0).expect("there are differences") as u32;
    let mut best = (WIDTH_BYTES * widest as usize, widest, 0);
    let mut outliers = 0;
    for width in (0..widest).rev() {
        outliers += counts[width as usize + 1] as usize;
        let outlier_bytes = (widest - width).div_ceil(8);
        let bytes = WIDTH_BYTES * width as usize + outliers * (1 + outlier_bytes as usize);
        if bytes < best.0 {
            best = (bytes, width, outlier_bytes);
        }
    }
    best
}

/// Returns the differences as they are stored, and their cheapest encoding: the number of bytes and the code.
fn coded(entries: &[u32; FRAME]) -> ([u32; FRAME], usize, Code) {
    let mut plain = [0; FRAME];
    for at in 1..FRAME {
        plain[at] = entries[at].wrapping_sub(entries[at - 1]);
    }
    let (bytes, width, outlier_bytes) = cheapest(&plain);
    let code = Code { width, base: 0, outlier_bytes };
    let lowest = plain.iter().map(|&difference| difference as i32).min().expect("there are differences");
    if lowest >= 0 {
        return (plain, bytes, code);
    }
    let base = lowest.unsigned_abs().next_power_of_two();
    let mut raised = plain.map(|difference| difference.wrapping_add(base));
    raised[0] = 0;
    let (raised_bytes, width, outlier_bytes) = cheapest(&raised);
    if raised_bytes < bytes {
        let base = base.trailing_zeros() + 1;
        (raised, raised_bytes, Code { width, base, outlier_bytes })
    } else {
        (plain, bytes, code)
    }
}

/// Writes differences into `data`, encoded by `code`. `data` must have the length of the encoding.
fn write_frame(differences: &[u32; FRAME], code: Code, data: &mut [u8]) {
    let (narrow, outliers) = data.split_at_mut(WIDTH_BYTES * code.width as usize);
    let mask = ((1u64 << code.width) - 1) as u32;
    let mut words = [[0u32; LANES]; 33];
    let (rounds, _) = differences.as_chunks::<LANES>();
    let (mut open, mut word, mut shift) = ([0u32; LANES], 0, 0);
    for round in rounds {
        for lane in 0..LANES {
            open[lane] |= (round[lane] & mask) << shift;
        }
        words[word] = open;
        if shift + code.width >= 32 {
            word += 1;
            for lane in 0..LANES {
                open[lane] = (round[lane] & mask) >> 1 >> (31 - shift);
            }
        }
        shift = (shift + code.width) % 32;
    }
    narrow.copy_from_slice(&words.as_bytes()[..narrow.len()]);
    if code.outlier_bytes > 0 {
        let bytes = code.outlier_bytes as usize;
        let (places, above) = outliers.split_at_mut(outliers.len() / (1 + bytes));
        let wide = differences.iter().enumerate().filter(|&(_, &difference)| difference > mask);
        for ((place, above), (at, difference)) in places.iter_mut().zip(above.chunks_mut(bytes)).zip(wide) {
            *place = at as u8;
            above.copy_from_slice(&(difference >> code.width).to_le_bytes()[..bytes]);
        }
    }
}

/// Reads the entries of a frame; returns `None` if the data are malformed.
fn read_frame(first: u32, code: Code, data: &[u8], entries: &mut [u32; FRAME]) -> Option<()> {
    let (narrow, outliers) = data.split_at_checked(WIDTH_BYTES * code.width as usize)?;
    // The last differences also read the word after the data. This word is 0 here, and the mask removes its bits.
    let mut words = [[0u32; LANES]; 33];
    words.as_mut_bytes()[..narrow.len()].copy_from_slice(narrow);
    let mask = ((1u64 << code.width) - 1) as u32;
    let mut bit = 0;
    let (rounds, _) = entries.as_chunks_mut::<LANES>();
    for round in rounds {
        let (word, shift) = (bit / 32, bit % 32);
        let (low, high) = (words[word], words[word + 1]);
        for lane in 0..LANES {
            round[lane] = (low[lane] >> shift | high[lane] << 1 << (31 - shift)) & mask;
        }
        bit += code.width as usize;
    }
    if code.outlier_bytes > 0 {
        let bytes = code.outlier_bytes as usize;
        if code.width == 32 || !outliers.len().is_multiple_of(1 + bytes) {
            return None;
        }
        let (places, above) = outliers.split_at(outliers.len() / (1 + bytes));
        for (&place, above) in places.iter().zip(above.chunks(bytes)) {
            let mut wide = [0; 4];
            wide[..bytes].copy_from_slice(above);
            *entries.get_mut(usize::from(place))? |= u32::from_le_bytes(wide) << code.width;
        }
    } else if !outliers.is_empty() {
        return None;
    }
    entries[0] = 0;
    let base = code.base();
    let mut entry = first.wrapping_sub(base);
    for slot in entries {
        entry = entry.wrapping_add(*slot).wrapping_add(base);
        *slot = entry;
    }
    Some(())
}

/// Packs entries into blocks.
pub(super) struct Packer {
    block: Box<[u8; BLOCK_BYTES]>,
    /// The number of the block's first frame, the number of its frames, and the offset at which its data begin.
    first_frame: u64,
    frames: usize,
    data_start: usize,
    /// The frame that is being filled, and the number of its entries.
    frame: [u32; FRAME],
    filled: usize,
}

impl Packer {
    pub fn new() -> Packer {
        let (block, frame) = (Box::new([0; BLOCK_BYTES]), [0; FRAME]);
        Packer { block, first_frame: 0, frames: 0, data_start: BLOCK_BYTES, frame, filled: 0 }
    }

    /// Packs the next entries. `each` gets every full block, with the number of the block's first frame.
    pub fn push(&mut self, entries: &[u32], mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut entries = entries;
        while !entries.is_empty() {
            let (now, later) = entries.split_at(entries.len().min(FRAME - self.filled));
            self.frame[self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == FRAME {
                self.close_frame(&mut each)?;
            }
            entries = later;
        }
        Ok(())
    }

    /// Packs the remaining entries. `each` gets the remaining blocks.
    pub fn finish(mut self, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        if self.filled > 0 {
            let last = self.frame[self.filled - 1];
            self.frame[self.filled..].fill(last);
            self.close_frame(&mut each)?;
        }
        if self.frames > 0 { self.close_block(&mut each) } else { Ok(()) }
    }

    fn close_frame(&mut self, each: &mut impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (differences, bytes, code) = coded(&self.frame);
        if self.data_start - (HEADER_BYTES + SLOT_BYTES * self.frames) < bytes + SLOT_BYTES {
            self.close_block(each)?;
        }
        let data = self.data_start - bytes..self.data_start;
        self.data_start = data.start;
        write_frame(&differences, code, &mut self.block[data]);
        let slot = Slot {
            first: self.frame[0].to_le_bytes(),
            place: (self.data_start as u16).to_le_bytes(),
            code: code.to_bits().to_le_bytes(),
        };
        self.block[HEADER_BYTES + SLOT_BYTES * self.frames..][..SLOT_BYTES].copy_from_slice(slot.as_bytes());
        self.frames += 1;
        self.filled = 0;
        Ok(())
    }

    fn close_block(&mut self, each: &mut impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.block[..4].copy_from_slice(&(self.first_frame as u32).to_le_bytes());
        self.block[4..6].copy_from_slice(&(self.frames as u16).to_le_bytes());
        each(self.first_frame, &self.block[..])?;
        self.first_frame += self.frames as u64;
        (self.frames, self.data_start) = (0, BLOCK_BYTES);
        self.block.fill(0);
        Ok(())
    }
}

/// The parsed header of a block, and its data.
struct ParsedBlock<'a> {
    bytes: &'a [u8],
    first_frame: u64,
    slots: &'a [Slot],
}

impl ParsedBlock<'_> {
    fn open(bytes: &[u8]) -> Option<ParsedBlock<'_>> {
        let frames = usize::from(u16::from_le_bytes(bytes[4..6].try_into().expect("2 bytes")));
        let slots = bytes[HEADER_BYTES..].get(..frames * SLOT_BYTES)?;
        let slots = <[Slot]>::ref_from_bytes(slots).expect("whole slots, of bytes");
        let first_frame = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes")).into();
        Some(ParsedBlock { bytes, first_frame, slots })
    }

    fn frames(&self) -> Range<u64> {
        self.first_frame..self.first_frame + self.slots.len() as u64
    }

    fn unpack(&self, frame: u64, entries: &mut [u32; FRAME]) -> Option<()> {
        let number = (frame - self.first_frame) as usize;
        let (slot, end) = match number {
            0 => (self.slots[0], BLOCK_BYTES),
            _ => (self.slots[number], u16::from_le_bytes(self.slots[number - 1].place).into()),
        };
        let data = self.bytes.get(usize::from(u16::from_le_bytes(slot.place))..end)?;
        read_frame(
            u32::from_le_bytes(slot.first),
            Code::from_bits(u16::from_le_bytes(slot.code))?,
            data,
            entries,
        )
    }
}

/// Unpacks entries from consecutive blocks, a few frames at a time.
pub(crate) struct Unpacker {
    values: Vec<u32>,
    entries: Range<u64>,
    /// The index, among the blocks of the last call, of the block that was unpacked last.
    block: usize,
}

impl Unpacker {
    pub fn new() -> Unpacker {
        Unpacker { values: Vec::with_capacity(STEP * FRAME), entries: 0..0, block: 0 }
    }

    /// Prepares the unpacker for a call of `unpack` with other blocks than in the last call.
    pub fn restart(&mut self) {
        (self.entries, self.block) = (0..0, 0);
    }

    /// Returns the numbers of the entries that were unpacked last.
    pub fn entries(&self) -> Range<u64> {
        self.entries.clone()
    }

    /// Returns the entries with these numbers. The entries must be among those that were unpacked last.
    pub fn get(&self, entries: Range<u64>) -> &[u32] {
        let start = self.entries.start;
        &self.values[(entries.start - start) as usize..(entries.end - start) as usize]
    }

    /// Unpacks the first of the entries `wanted` from `blocks`, and as many of the following entries as fit in the
    /// buffer. Returns `false` if that first entry is after all blocks. With the same blocks, later calls must request
    /// later entries.
    ///
    /// # Errors
    /// Returns [`Error::BadGraph`] if the blocks were not written by a [`Packer`], or if an entry is beyond the last
    /// vertex.
    pub fn unpack(&mut self, csr: &Csr, blocks: &[u8], wanted: Range<u64>) -> Result<bool> {
        let frame = frame_of(wanted.start);
        loop {
            let Some(bytes) = blocks.get(self.block * BLOCK_BYTES..(self.block + 1) * BLOCK_BYTES) else {
                return Ok(false);
            };
            let block = ParsedBlock::open(bytes).ok_or_else(|| bad_block(csr, "more frames than fit"))?;
            let held = block.frames();
            if held.contains(&frame) {
                let last = wanted.end.div_ceil(FRAME as u64).min(held.end);
                return self.unpack_frames(csr, &block, frame..last.min(frame + STEP as u64)).map(|()| true);
            }
            if frame < held.start {
                return Err(bad_block(
                    csr,
                    &format!("frames beginning with {} instead of {frame}", held.start),
                ));
            }
            self.block += 1;
        }
    }

    fn unpack_frames(&mut self, csr: &Csr, block: &ParsedBlock<'_>, frames: Range<u64>) -> Result<()> {
        self.values.resize((frames.end - frames.start) as usize * FRAME, 0);
        let (chunks, _) = self.values.as_chunks_mut::<FRAME>();
        for (frame, entries) in frames.clone().zip(chunks) {
            block.unpack(frame, entries).ok_or_else(|| bad_block(csr, "a frame of the wrong length"))?;
        }
        csr.check_targets(&self.values)?;
        self.entries = frames.start * FRAME as u64..(frames.end * FRAME as u64).min(csr.entries);
        Ok(())
    }
}

fn bad_block(csr: &Csr, found: &str) -> Error {
    Error::BadGraph {
        name: csr.edges.name().to_string(),
        what: "a block of edges",
        found: found.to_string(),
        expected: "consecutive packed frames".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(entries: [u32; FRAME]) -> (Code, Vec<u8>) {
        let (differences, bytes, code) = coded(&entries);
        let mut data = vec![0; bytes];
        write_frame(&differences, code, &mut data);
        (code, data)
    }

    fn unpacked(first: u32, code: Code, data: &[u8]) -> Option<[u32; FRAME]> {
        let mut entries = [7; FRAME];
        let code = Code::from_bits(code.to_bits()).expect("a code");
        read_frame(first, code, data, &mut entries).map(|()| entries)
    }

    fn entries(of: impl Fn(u32) -> u32) -> [u32; FRAME] {
        std::array::from_fn(|at| of(at as u32))
    }

    /// Returns a pseudo-random number of random width.
    fn drawn(at: u32) -> u32 {
        let square = u64::from(at + 1).pow(2);
        (square.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 31) as u32
    }

    #[test]
    fn frames_take_the_bits_that_their_differences_need() {
        let plain = |width| Code { width, base: 0, outlier_bytes: 0 };
        // The entries are equal, have constant steps, or are numbers of all widths.
        assert_eq!(frame(entries(|_| 9)), (plain(0), vec![]));
        let (code, data) = frame(entries(|at| 9 + 10 * at));
        assert_eq!((code, data.len()), (plain(4), 64));
        let (code, data) = frame(entries(drawn));
        assert_eq!((code.width, data.len()), (32, 512));
        // Rows of nearby vertices need a negative base.
        let (code, data) = frame(entries(|at| 1000 + at - at % 4 * 40 % 160));
        assert!(code.base > 0 && code.width <= 9 && data.len() <= 144, "{code:?}, {} bytes", data.len());
        // If a second row begins in the frame, the frame needs an outlier's bytes, but not 20 bits for each difference.
        let (code, data) = frame(entries(|at| if at < 64 { 5 * at + (1 << 20) } else { 5 * at }));
        assert_eq!((code, data.len()), (Code { width: 3, base: 0, outlier_bytes: 4 }, 48 + 5));
    }

    #[test]
    fn blocks_hold_what_was_packed_wherever_reading_begins() {
        let wanted: Vec<u32> = (0..300_000u32).map(|at| at.wrapping_mul(at) >> (at % 29)).collect();
        let (mut blocks, mut starts) = (Vec::new(), Vec::new());
        let mut packer = Packer::new();
        for part in wanted.chunks(1000) {
            packer
                .push(part, |first, block| {
                    starts.push(first);
                    blocks.extend_from_slice(block);
                    Ok(())
                })
                .unwrap();
        }
        packer
            .finish(|first, block| {
                starts.push(first);
                blocks.extend_from_slice(block);
                Ok(())
            })
            .unwrap();
        assert!(starts.len() > 10 && blocks.len() as u64 <= blocks_bytes_max(wanted.len() as u64));
        for (block, &first) in blocks.chunks(BLOCK_BYTES).zip(&starts) {
            let block = ParsedBlock::open(block).unwrap();
            assert_eq!(block.first_frame, first);
            for frame in block.frames() {
                let mut entries = [0; FRAME];
                block.unpack(frame, &mut entries).unwrap();
                let held = &wanted[frame as usize * FRAME..];
                let held = &held[..held.len().min(FRAME)];
                assert_eq!(&entries[..held.len()], held, "frame {frame}");
            }
        }
    }

    #[test]
    fn blocks_take_at_most_their_bound() {
        // Random numbers cannot be compressed: each frame has its largest size.
        let drawn: Vec<u32> = (0..500_000).map(drawn).collect();
        let (mut packer, mut bytes) = (Packer::new(), 0);
        let mut count = |_, block: &[u8]| {
            bytes += block.len() as u64;
            Ok(())
        };
        packer.push(&drawn, &mut count).unwrap();
        packer.finish(&mut count).unwrap();
        let most = blocks_bytes_max(drawn.len() as u64);
        assert!(bytes <= most && most < bytes + bytes / 20, "{bytes} of {most}");
    }

    proptest! {
        #[test]
        fn frames_hold_what_was_packed(
            mut values in prop::collection::vec(prop_oneof![any::<u32>(), 0..1000u32, 1_000_000..1_001_000u32], FRAME),
            sorted in 0..=FRAME,
        ) {
            values[..sorted].sort_unstable();
            let values: [u32; FRAME] = values.try_into().expect("a frame of them");
            let (code, data) = frame(values);
            prop_assert_eq!(unpacked(values[0], code, &data), Some(values));
            prop_assert!(data.len() <= 4 * FRAME);
        }

        #[test]
        fn blocks_of_any_bytes_do_no_harm(
            slots in prop::collection::vec(any::<[u8; SLOT_BYTES]>(), 0..20),
            frames in 0..3000u16,
            fill in any::<u8>(),
        ) {
            let mut bytes = vec![fill; BLOCK_BYTES];
            bytes[4..6].copy_from_slice(&frames.to_le_bytes());
            for (at, slot) in slots.iter().enumerate() {
                bytes[HEADER_BYTES + at * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(slot);
            }
            let Some(block) = ParsedBlock::open(&bytes) else {
                prop_assert!(frames > 2047);
                return Ok(());
            };
            for frame in block.frames() {
                let _ = block.unpack(frame, &mut [0; FRAME]);
            }
        }
    }
}
