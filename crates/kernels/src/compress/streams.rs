//! This module splits bzip2 files at the starts of blocks, so that the parts can be decompressed in parallel. A part is
//! a range of the bits of a file. Each block begins with 48 fixed bits, by which this module finds the blocks.
//!
//! ```text
//! header block block block end | header block block end        streams of any length, at any bit
//! └── part ──────┘└── part ────────┘└── part ──┘               each begins with a header (the first) or a block
//! ```
//!
//! All cores can therefore decompress even a file with a single stream, such as a file that `bzip2` wrote. The 48 bits
//! can also occur in the middle of a block, by chance (once in 2^48 bits) or by design. A part that was split inside a
//! block ends too early. The caller's thread receives the decompressed parts in order, together with their compressed
//! bits. If a part ends too early, its bits are joined with the next part, and the caller's thread decompresses the
//! joined part.
//!
//! Workers verify the checksum of each block. The caller's thread verifies the checksum of each stream when it receives
//! the parts.

use std::{
    io::{Read, Write},
    ops::DerefMut,
    sync::{Mutex, PoisonError},
};

use inshore_store::{Budget, Context, Reservation, taken_bytes};

use super::{
    BUFFERS_SUFFICE, CountingWriter, PackSummary, buffers,
    bunzip2::{BLOCK_MAGIC, Bits, BlockError, Output, StreamMarker, Workspace, next_mark},
    format::Format,
    units::{READ_BYTES, Units, damaged, truncated},
};
use crate::{Error, Result, ordered::in_order};

/// The possible numbers of blocks in a part. A plan tries these numbers in this order. A workspace has memory for the
/// blocks of one part.
///
/// Decoding more blocks in lockstep hides more memory latency, but leaves less of the cache to each block.
/// [`super::bunzip2`] has measurements.
const PART_BLOCKS: [usize; 3] = [4, 2, 1];
/// The smallest distance, in bytes, between two block starts at which the input is split. The input of a stream may
/// exceed a block by a few bytes. The stream then ends with a tiny block, and a split at its start would not be useful.
const BLOCK_BYTES_MIN: usize = 1 << 10;
/// The memory that is reserved for the compressed bits of a block, in bytes. No known program writes larger blocks.
const BLOCK_BYTES: usize = 1 << 20;
/// The largest possible size of a compressed block, in bytes. The block has 20 bits for each of 900,000 symbols, and
/// the Huffman codes.
const BLOCK_BYTES_MAX: usize = 5 << 19;
const MAGIC_BITS: usize = 48;
const HEADER_BITS: usize = 32;

/// The plan of a decompression: the number of threads, and the number of blocks that each thread decodes in lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// The number of threads. The number is 0 if the caller's thread decompresses all blocks.
    threads: usize,
    blocks: usize,
}

impl Plan {
    const SMALLEST: Plan = Plan { threads: 0, blocks: 1 };

    fn of(budget: &Budget) -> Plan {
        let fits = |plan: &Plan| plan.bytes() <= budget.free_bytes();
        let plans = (1..=budget.threads()).rev();
        let mut plans = plans.flat_map(|threads| PART_BLOCKS.map(|blocks| Plan { threads, blocks }));
        plans.find(fits).unwrap_or(Plan::SMALLEST)
    }

    /// Returns the size, in bytes, of the buffer for a decompressed part.
    fn out_bytes(self) -> usize {
        2 * self.blocks * BLOCK_BYTES
    }

    /// Returns how many parts are in memory at the same time. These are the parts of the workers, the part that is
    /// being read, and the part that is being joined with another part.
    fn parts(self) -> usize {
        if self.threads == 0 { 2 } else { self.threads + 3 }
    }

    /// Returns the memory, in bytes, for the compressed parts and for the workspaces of the threads and the caller.
    fn in_bytes(self) -> u64 {
        let rooms = self.threads as u64 * Workspace::bytes(self.blocks) + Workspace::bytes(1);
        rooms + (self.parts() * self.blocks * BLOCK_BYTES) as u64
    }

    /// Returns the memory, in bytes, of [`Self::in_bytes`] and of the buffers for decompressed parts.
    fn bytes(self) -> u64 {
        let out = if self.threads == 0 { 0 } else { (self.threads + 1) * taken_bytes(self.out_bytes()) };
        self.in_bytes() + out as u64
    }
}

/// Decompresses all input of `units`.
pub(super) fn decompress<R: Read + Send>(
    job: &Context,
    name: &str,
    units: Units<R>,
    out: &mut CountingWriter<impl Write>,
) -> Result<PackSummary> {
    let budget = job.budget();
    let plan = Plan::of(budget);
    budget.need(Plan::SMALLEST.bytes(), || "decompressing bzip2".to_string())?;
    let _memory = budget.reserve(plan.in_bytes(), "blocks of bzip2")?;
    let mut cutter = InputSplitter { units, plan, at: 0, is_first: true, more: None };
    let mut follow = Assembler::new(name);
    let mut pieces = 0;
    let next = || {
        job.check_cancelled()?;
        cutter.next_part(budget)
    };
    if plan.threads == 0 {
        let mut next = next;
        while let Some(part) = next()? {
            pieces += 1;
            job.progress().add(part.whole_bytes() as u64);
            follow.read(part, out)?;
        }
    } else {
        let rooms = Mutex::new(Vec::new());
        let outs = buffers(budget, plan.threads, plan.out_bytes())?;
        let outs = || outs.lock().unwrap_or_else(PoisonError::into_inner);
        in_order(
            plan.threads,
            next,
            |part: BitRange| {
                let rooms = || rooms.lock().unwrap_or_else(PoisonError::into_inner);
                let room = rooms().pop();
                let mut room = room.unwrap_or_else(|| Workspace::new(plan.blocks));
                let to = outs().pop().expect(BUFFERS_SUFFICE);
                let unpacked = unpack(part, &mut room, to);
                rooms().push(room);
                Ok(unpacked)
            },
            |DecompressedRange { part, bytes, len, run }| {
                pieces += 1;
                job.progress().add(part.whole_bytes() as u64);
                follow.saw(part, &bytes[..len], run, out)?;
                outs().push(bytes);
                Ok(())
            },
        )?;
    }
    follow.end()?;
    Ok(PackSummary { bytes_in: cutter.units.bytes(), bytes_out: out.bytes, pieces })
}

/// A part of the input. A part is a range of the bits of a file.
#[derive(Debug)]
struct BitRange {
    bytes: Vec<u8>,
    /// The offset of the range's first bit from the start of `bytes`, in bits. The first bit is in the first byte, so
    /// the offset is below 8.
    at: usize,
    /// The offset of the range's end from the start of `bytes`, in bits. The remaining bits of the last byte belong to
    /// the next part.
    end: usize,
    is_first: bool,
}

impl BitRange {
    /// Returns the size of the part in bytes. If the last byte also contains bits of the next part, this byte is not
    /// counted.
    fn whole_bytes(&self) -> usize {
        self.end / 8
    }

    /// Returns the range without the bits before `at`.
    fn behind(mut self, at: usize) -> BitRange {
        self.bytes.drain(..at / 8);
        BitRange { bytes: self.bytes, at: at % 8, end: self.end - at / 8 * 8, is_first: false }
    }

    /// Returns the range with the bits of the next part appended.
    fn joined(mut self, next: &BitRange) -> BitRange {
        let whole = self.whole_bytes();
        self.bytes.truncate(whole);
        self.bytes.extend_from_slice(&next.bytes);
        self.end = 8 * whole + next.end;
        self
    }
}

/// Splits the input into parts.
struct InputSplitter<R> {
    units: Units<R>,
    plan: Plan,
    /// The number of bits of the next input byte that belong to the previous part.
    at: usize,
    is_first: bool,
    more: Option<Reservation>,
}

impl<R: Read> InputSplitter<R> {
    fn next_part(&mut self, budget: &Budget) -> Result<Option<BitRange>> {
        let most = self.plan.blocks * BLOCK_BYTES;
        let mut wanted = READ_BYTES;
        // The block of the first part follows a header.
        let mut from = self.at + MAGIC_BITS + if self.is_first { HEADER_BITS } else { 0 };
        let (mut blocks, mut last) = (0, None);
        let end = loop {
            let bytes = self.units.peek(wanted)?;
            let has_all = bytes.len() < wanted;
            if bytes.is_empty() || 8 * bytes.len() <= self.at {
                return Ok(None);
            }
            let end = loop {
                let Some(found) = find_block(bytes, from) else {
                    from = from.max((8 * bytes.len()).saturating_sub(MAGIC_BITS - 1));
                    break None;
                };
                blocks += usize::from(found - last.unwrap_or(self.at) >= 8 * BLOCK_BYTES_MIN);
                last = Some(found);
                from = found + MAGIC_BITS;
                if blocks == self.plan.blocks {
                    break last;
                }
            };
            if let Some(end) = end {
                break end;
            }
            match last {
                _ if has_all => break 8 * bytes.len(),
                Some(last) if bytes.len() >= most => break last,
                None if bytes.len() >= BLOCK_BYTES_MAX.max(most) => {
                    return Err(damaged(self.units.name(), "damaged bzip2 data: a block does not end"));
                }
                None if bytes.len() >= most && self.more.is_none() => {
                    let more = self.plan.parts() * BLOCK_BYTES_MAX;
                    self.more = Some(budget.reserve(more as u64, "blocks of bzip2 of unusual size")?);
                }
                _ => {}
            }
            wanted += READ_BYTES;
        };
        let bytes = self.units.peek(end.div_ceil(8))?.to_vec();
        self.units.skip(end / 8);
        let part = BitRange { bytes, at: self.at, end, is_first: self.is_first };
        (self.at, self.is_first) = (end % 8, false);
        Ok(Some(part))
    }
}

/// Finds the first occurrence, from bit `from` on, of the 48 bits with which a block begins. Returns the offset of this
/// occurrence in bits.
///
/// The 48 bits may begin at any bit of a byte. In all cases, they cover at least two complete bytes after this byte.
/// Two table look-ups for each byte therefore suffice.
fn find_block(bytes: &[u8], from: usize) -> Option<usize> {
    // Each table maps a byte to a bit mask of positions at which the 48 bits can begin. The positions of `NEAR` are in
    // the previous byte. The positions of `FAR` are in the byte before the previous byte.
    const NEAR: [u8; 256] = beginnings(32);
    const FAR: [u8; 256] = beginnings(24);
    let mut first = from / 8;
    loop {
        let pairs = bytes.get(first + 1..)?.windows(2);
        let found = pairs
            .map(|pair| NEAR[usize::from(pair[0])] & FAR[usize::from(pair[1])])
            .position(|beginnings| beginnings != 0)?;
        first += found;
        for shift in 0..8 {
            let at = 8 * first + shift;
            let eight = bytes.get(first..)?;
            let mut word = [0; 8];
            let there = eight.len().min(8);
            word[..there].copy_from_slice(&eight[..there]);
            let word = u64::from_be_bytes(word) << shift >> (64 - MAGIC_BITS);
            if word == BLOCK_MAGIC && at >= from && at + MAGIC_BITS <= 8 * bytes.len() {
                return Some(at);
            }
        }
        first += 1;
    }
}

const fn beginnings(down: u32) -> [u8; 256] {
    let mut table = [0; 256];
    let mut shift = 0;
    while shift < 8 {
        table[(BLOCK_MAGIC >> (down + shift) & 255) as usize] |= 1 << shift;
        shift += 1;
    }
    table
}

/// An element of a stream. An element is the start of the stream, a block, or the end of the stream.
#[derive(Clone, Copy, Debug)]
enum Element {
    /// The start of a stream, with the compression level. Blocks of the stream have at most 100,000 letters times the
    /// level.
    Stream(usize),
    Block {
        letters: usize,
        checksum: u32,
    },
    End(u32),
}

/// A part and its decompressed bytes, which are the first `len` bytes of `bytes`.
struct DecompressedRange<B> {
    part: BitRange,
    bytes: B,
    len: usize,
    run: std::result::Result<ReadRange, BlockError>,
}

/// The elements that were read in a part, and the reason why reading stopped.
struct ReadRange {
    /// The elements that were found, each with the offset of its first bit.
    met: Vec<(usize, Element)>,
    /// The offset of the bit after the last element that was read.
    at: usize,
    why: StopReason,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// All of the part was read.
    All,
    /// The next element does not end in this part.
    Short,
    /// The next element does not fit in the output buffer.
    Full,
}

/// Decompresses a part into `bytes`, up to the first block that does not fit in `bytes`.
fn unpack<B: DerefMut<Target = [u8]>>(
    part: BitRange,
    room: &mut Workspace,
    mut bytes: B,
) -> DecompressedRange<B> {
    // `len` is the number of bytes of complete blocks only. The bytes of a block that did not fit are thus dropped.
    let (mut filled, mut len) = (0, 0);
    let run = run(&part, !part.is_first, room, |out| {
        match out {
            Output::Bytes(more) => {
                let Some(place) = bytes.get_mut(filled..filled + more.len()) else { return false };
                place.copy_from_slice(more);
                filled += more.len();
            }
            Output::Whole => len = filled,
        }
        true
    });
    DecompressedRange { part, bytes, len, run }
}

/// Reads a part, which begins with a header or, inside a stream, with a block.
fn run(
    part: &BitRange,
    mut in_stream: bool,
    room: &mut Workspace,
    mut sink: impl FnMut(Output<'_>) -> bool,
) -> std::result::Result<ReadRange, BlockError> {
    room.clear();
    let mut bits = Bits::new(&part.bytes, part.at, part.end);
    let mut run = ReadRange { met: Vec::new(), at: part.at, why: StopReason::All };
    loop {
        let at = bits.at();
        let met = if at == part.end { Err(BlockError::Short) } else { next(&mut bits, at, in_stream, room) };
        let is_last = matches!(met, Err(BlockError::Short));
        if (is_last || !room.has_place())
            && let Some(full) = room.empty(&mut sink)?
        {
            run.met.retain(|&(at, _)| at < full);
            return Ok(ReadRange { at: full, why: StopReason::Full, ..run });
        }
        if is_last {
            let why = if at == part.end { StopReason::All } else { StopReason::Short };
            return Ok(ReadRange { at, why, ..run });
        }
        let met = met?;
        in_stream = !matches!(met, Element::End(_));
        run.met.push((at, met));
    }
}

/// Reads the next element of the stream. If the element is a block, prepares the block for decoding.
fn next(
    bits: &mut Bits<'_>,
    at: usize,
    in_stream: bool,
    room: &mut Workspace,
) -> std::result::Result<Element, BlockError> {
    if !in_stream {
        return match bits.take(HEADER_BITS as u32)?.to_be_bytes() {
            [.., b'B', b'Z', b'h', level @ b'1'..=b'9'] => Ok(Element::Stream((level - b'0').into())),
            _ => Err(BlockError::Damaged("expected another bzip2 stream")),
        };
    }
    match next_mark(bits)? {
        StreamMarker::End(checksum) => Ok(Element::End(checksum)),
        StreamMarker::Block => {
            let block = room.lay_out(bits, at)?;
            Ok(Element::Block { letters: block.letters, checksum: block.checksum })
        }
    }
}

/// Combines the results of parts in order, and checks the checksums of streams.
struct Assembler {
    name: String,
    /// The compression level of the current stream, and the combined checksum of its blocks that were read so far. The
    /// value is `None` outside of a stream.
    stream: Option<(usize, u32)>,
    /// The rest of the previous part, if the last element of the part ends only in the next part.
    open: Option<BitRange>,
    room: Option<Workspace>,
}

impl Assembler {
    fn new(name: &str) -> Assembler {
        Assembler { name: name.to_string(), stream: None, open: None, room: None }
    }

    /// Accepts the next part with the result of a worker.
    fn saw(
        &mut self,
        part: BitRange,
        bytes: &[u8],
        run: std::result::Result<ReadRange, BlockError>,
        out: &mut CountingWriter<impl Write>,
    ) -> Result<()> {
        if self.open.is_some() || (self.stream.is_none() && !part.is_first) {
            // The part was split inside a block, so the worker's result is invalid.
            return self.read(part, out);
        }
        let run = run.map_err(|wrong| self.wrong(wrong))?;
        self.follow(run.met)?;
        out.all(bytes)?;
        match run.why {
            StopReason::All => Ok(()),
            StopReason::Short => {
                self.open = Some(part.behind(run.at));
                Ok(())
            }
            StopReason::Full => self.read_on(part.behind(run.at), out),
        }
    }

    /// Reads the next part on the caller's thread.
    fn read(&mut self, part: BitRange, out: &mut CountingWriter<impl Write>) -> Result<()> {
        let part = match self.open.take() {
            Some(open) => open.joined(&part),
            None => part,
        };
        self.read_on(part, out)
    }

    fn read_on(&mut self, part: BitRange, out: &mut CountingWriter<impl Write>) -> Result<()> {
        let mut failed = None;
        let room = self.room.get_or_insert_with(|| Workspace::new(1));
        let run = run(&part, self.stream.is_some(), room, |bytes| {
            if let Output::Bytes(bytes) = bytes {
                failed = out.all(bytes).err();
            }
            failed.is_none()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let run = run.map_err(|wrong| self.wrong(wrong))?;
        self.follow(run.met)?;
        if run.why == StopReason::Short {
            self.open = Some(part.behind(run.at));
        }
        Ok(())
    }

    /// Checks the sizes and checksums that depend on several elements of the stream.
    fn follow(&mut self, met: Vec<(usize, Element)>) -> Result<()> {
        for (_, met) in met {
            let right = match (met, &mut self.stream) {
                (Element::Stream(level), stream @ None) => {
                    *stream = Some((level, 0));
                    Ok(())
                }
                (Element::Block { letters, checksum }, Some((level, sum))) => {
                    *sum = sum.rotate_left(1) ^ checksum;
                    if letters <= *level * 100_000 {
                        Ok(())
                    } else {
                        Err("a block is larger than its stream allows")
                    }
                }
                (Element::End(checksum), stream @ Some((_, _))) => {
                    let (_, sum) = stream.take().expect("looked at");
                    if sum == checksum { Ok(()) } else { Err("the checksum of a stream does not match") }
                }
                _ => unreachable!("what is met follows the form of a stream"),
            };
            right.map_err(|what| self.wrong(BlockError::Damaged(what)))?;
        }
        Ok(())
    }

    /// Checks that the last stream is complete.
    fn end(self) -> Result<()> {
        if self.open.is_some() || self.stream.is_some() { Err(self.wrong(BlockError::Short)) } else { Ok(()) }
    }

    fn wrong(&self, wrong: BlockError) -> Error {
        match wrong {
            BlockError::Short => truncated(&self.name, Format::Bzip2),
            BlockError::Damaged(what) => {
                damaged(&self.name, format!("damaged {} data: {what}", Format::Bzip2))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bzip2::{Compression, read::MultiBzDecoder, write::BzEncoder};
    use proptest::prelude::*;

    use super::*;

    fn stream(bytes: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = BzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Decompresses `packed`, split at the bit offsets `cuts`, in the way in which the workers and the caller do.
    fn cut_and_read(packed: &[u8], cuts: &[usize], blocks: usize, limit: usize) -> Result<Vec<u8>> {
        let (mut follow, mut out) = (Assembler::new("bytes"), CountingWriter { inner: Vec::new(), bytes: 0 });
        let mut room = Workspace::new(blocks);
        let mut from = 0;
        for &to in cuts.iter().chain([&(8 * packed.len())]) {
            let bytes = packed[from / 8..to.div_ceil(8)].to_vec();
            let part = BitRange { bytes, at: from % 8, end: to - from / 8 * 8, is_first: from == 0 };
            let DecompressedRange { part, bytes, len, run } =
                unpack(part, &mut room, vec![0; limit.min(32 << 20)]);
            follow.saw(part, &bytes[..len], run, &mut out)?;
            from = to;
        }
        follow.end()?;
        Ok(out.inner)
    }

    /// Generates texts that consist of letters, runs of all lengths, and arbitrary bytes.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            (prop::collection::vec(any::<u8>(), 1..8), 1usize..200)
                .prop_map(|(bytes, times)| bytes.repeat(times)),
            (any::<u8>(), 1usize..2000).prop_map(|(byte, times)| vec![byte; times]),
            prop::collection::vec(0u8..4, 0..3000),
            prop::collection::vec(any::<u8>(), 0..3000),
            Just(vec![b'x'; 300_000]),
            Just((0..150_000u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect()),
        ];
        prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn the_text_equals_the_librarys_wherever_it_is_cut(
            texts in prop::collection::vec((text(), 1u32..=9), 1..4),
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            blocks in 1usize..6,
            limit in prop_oneof![Just(0), 1usize..1_000_000, Just(usize::MAX)],
        ) {
            let packed: Vec<u8> = texts.iter().flat_map(|(text, level)| stream(text, *level)).collect();
            let mut cuts: Vec<usize> = places.iter().map(|place| place.index(8 * packed.len())).collect();
            // Some cuts are at the block starts that the splitter finds, and some are inside blocks.
            let mut from = 8 * packed.len() / 3;
            while let Some(found) = find_block(&packed, from) {
                cuts.push(found);
                from = found + MAGIC_BITS + 100_000;
            }
            cuts.retain(|&cut| cut > 0);
            cuts.sort_unstable();
            cuts.dedup();
            let mut expected = Vec::new();
            MultiBzDecoder::new(&packed[..]).read_to_end(&mut expected).unwrap();
            prop_assert!(cut_and_read(&packed, &cuts, blocks, limit).unwrap() == expected);
        }

        #[test]
        fn files_that_the_library_refuses_are_refused(
            text in text(),
            level in 1u32..=9,
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..3),
        ) {
            let mut packed = stream(&text, level);
            for (place, bit) in changes {
                let place = place.index(packed.len());
                packed[place] ^= 1 << bit;
            }
            let mut expected = Vec::new();
            let read = MultiBzDecoder::new(&packed[..]).read_to_end(&mut expected);
            match cut_and_read(&packed, &[], 2, usize::MAX) {
                Ok(found) => prop_assert!(read.is_ok() && found == expected),
                Err(Error::Damaged { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }

        #[test]
        fn block_starts_are_found_at_every_bit(
            mut bytes in prop::collection::vec(any::<u8>(), 8..60),
            place in any::<prop::sample::Index>(),
            from in 0usize..100,
        ) {
            let at = place.index(8 * bytes.len() - MAGIC_BITS + 1);
            for bit in 0..MAGIC_BITS {
                let (byte, mask) = ((at + bit) / 8, 0x80 >> ((at + bit) % 8));
                bytes[byte] &= !mask;
                if BLOCK_MAGIC >> (MAGIC_BITS - 1 - bit) & 1 == 1 {
                    bytes[byte] |= mask;
                }
            }
            prop_assert_eq!(find_block(&bytes, from), (from <= at).then_some(at));
        }
    }

    #[test]
    fn small_streams_are_read_wherever_they_are_cut() {
        let packed = [stream(b"one", 1), stream(b"", 9), stream(b"and another", 5)].concat();
        for first in 1..8 * packed.len() {
            for second in first + 1..8 * packed.len() {
                let read = cut_and_read(&packed, &[first, second], 1, 1 << 10).unwrap();
                assert_eq!(read, b"oneand another", "cut at bits {first} and {second}");
            }
        }
    }

    #[test]
    fn one_stream_of_many_blocks_becomes_many_parts() {
        let text: Vec<u8> =
            (0..400_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        let packed = stream(&text, 1);
        // The smallest budget is too small for two threads, and the largest is more than enough.
        for (mib, parts) in [(8, 2), (20, 15), (1 << 10, 4)] {
            let job = Context::new(Budget::new(mib << 20, 2), inshore_store::Cancel::default());
            let mut out = Vec::new();
            let done = super::super::decompress(&job, "bytes", &packed[..], &mut out).unwrap();
            assert!(out == text, "{mib} MiB");
            assert!(done.pieces >= parts, "{mib} MiB: {} parts", done.pieces);
            assert_eq!(job.budget().reserved_bytes(), 0);
        }
        let job = Context::new(Budget::new(4 << 20, 2), inshore_store::Cancel::default());
        let error = super::super::decompress(&job, "bytes", &packed[..], Vec::new()).unwrap_err();
        assert!(error.to_string().contains("decompressing bzip2"), "{error}");
    }
}
