//! Files of bzip2, cut before blocks, which are found by the 48 bits that each begins with.
//!
//! ```text
//! header block block block end | header block block end        streams of any length, at any bit
//! └── part ──────┘└── part ────────┘└── part ──┘               each begins with a header (the first) or a block
//! ```
//!
//! So what is one stream, as `bzip2` writes it, is decompressed by all cores as well as what is many. Those 48 bits can stand
//! in the middle of a block, by chance once in 2^48 bits or by design: a part that is cut there ends too early. Parts come back
//! in order, with their bits; such a one is joined with the next, and read on the caller's thread.
//!
//! The checksum of each block is checked where it is decompressed, that of each stream where the parts come back.

use std::{
    io::{Read, Write},
    ops::DerefMut,
    sync::{Mutex, PoisonError},
};

use inshore_store::{Budget, Context, Reservation, taken_bytes};

use super::{
    BUFFERS_SUFFICE, Counted, PackSummary, buffers,
    bunzip2::{BLOCK_MAGIC, Bits, Mark, Out, Room, Wrong, next_mark},
    format::Format,
    units::{READ_BYTES, Units, damaged, truncated},
};
use crate::{Error, Result, ordered::in_order};

/// Blocks of a part, and of a room.
///
/// More blocks in step hide more of the memory's latency, and leave less of the cache to each: [`super::bunzip2`].
const PART_BLOCKS: [usize; 3] = [4, 2, 1];
/// The least distance of two blocks that count: between them stand the few letters by which 900,000 exceed a block.
const BLOCK_BYTES_MIN: usize = 1 << 10;
/// What is reserved for the bits of a block; none that was ever written is larger.
const BLOCK_BYTES: usize = 1 << 20;
/// What the bits of a block can be: 20 for each of 900,000 symbols, and its codes.
const BLOCK_BYTES_MAX: usize = 5 << 19;
const MAGIC_BITS: usize = 48;
const HEADER_BITS: usize = 32;

/// How much is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// 0 where all is done on the caller's thread.
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

    /// What a part may become.
    fn out_bytes(self) -> usize {
        2 * self.blocks * BLOCK_BYTES
    }

    /// Parts on their way, that which is read, and that which is joined.
    fn parts(self) -> usize {
        if self.threads == 0 { 2 } else { self.threads + 3 }
    }

    /// Rooms of the threads and of the caller, and parts.
    fn in_bytes(self) -> u64 {
        let rooms = self.threads as u64 * Room::bytes(self.blocks) + Room::bytes(1);
        rooms + (self.parts() * self.blocks * BLOCK_BYTES) as u64
    }

    /// With what becomes of parts.
    fn bytes(self) -> u64 {
        let out = if self.threads == 0 { 0 } else { (self.threads + 1) * taken_bytes(self.out_bytes()) };
        self.in_bytes() + out as u64
    }
}

/// Decompresses all of `units`.
pub(super) fn decompress<R: Read + Send>(
    job: &Context,
    name: &str,
    units: Units<R>,
    out: &mut Counted<impl Write>,
) -> Result<PackSummary> {
    let budget = job.budget();
    let plan = Plan::of(budget);
    budget.need(Plan::SMALLEST.bytes(), || "decompressing bzip2".to_string())?;
    let _memory = budget.reserve(plan.in_bytes(), "blocks of bzip2")?;
    let mut cutter = Cutter { units, plan, at: 0, is_first: true, more: None };
    let mut follow = Follow::new(name);
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
            |part: Part| {
                let rooms = || rooms.lock().unwrap_or_else(PoisonError::into_inner);
                let room = rooms().pop();
                let mut room = room.unwrap_or_else(|| Room::new(plan.blocks));
                let to = outs().pop().expect(BUFFERS_SUFFICE);
                let unpacked = unpack(part, &mut room, to);
                rooms().push(room);
                Ok(unpacked)
            },
            |Unpacked { part, bytes, len, run }| {
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

/// Bits of a file between two places.
#[derive(Debug)]
struct Part {
    bytes: Vec<u8>,
    /// In the first byte.
    at: usize,
    /// In `bytes`; the rest of the last byte belongs to the next part.
    end: usize,
    is_first: bool,
}

impl Part {
    /// Those that it does not share with the next part.
    fn whole_bytes(&self) -> usize {
        self.end / 8
    }

    /// Without the bits before `at`.
    fn behind(mut self, at: usize) -> Part {
        self.bytes.drain(..at / 8);
        Part { bytes: self.bytes, at: at % 8, end: self.end - at / 8 * 8, is_first: false }
    }

    /// With the bits of the next part.
    fn joined(mut self, next: &Part) -> Part {
        let whole = self.whole_bytes();
        self.bytes.truncate(whole);
        self.bytes.extend_from_slice(&next.bytes);
        self.end = 8 * whole + next.end;
        self
    }
}

/// Cuts the input.
struct Cutter<R> {
    units: Units<R>,
    plan: Plan,
    /// The bit of the next byte that the next part begins with.
    at: usize,
    is_first: bool,
    more: Option<Reservation>,
}

impl<R: Read> Cutter<R> {
    fn next_part(&mut self, budget: &Budget) -> Result<Option<Part>> {
        let most = self.plan.blocks * BLOCK_BYTES;
        let mut wanted = READ_BYTES;
        // The first part's block stands behind a header.
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
                    return Err(damaged(self.units.name(), "damaged bzip2 data: a block that does not end"));
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
        let part = Part { bytes, at: self.at, end, is_first: self.is_first };
        (self.at, self.is_first) = (end % 8, false);
        Ok(Some(part))
    }
}

/// Where the 48 bits are, at any bit from `from` on.
///
/// Whatever bit they begin at, the two bytes behind the one they begin in are known: two looks a byte.
fn find_block(bytes: &[u8], from: usize) -> Option<usize> {
    // By a byte: at which bits (one bit each) they can begin in the byte before, and in the one before that.
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

/// What was met, in order.
#[derive(Clone, Copy, Debug)]
enum Met {
    /// A stream of blocks of so many times 100,000 letters.
    Stream(usize),
    Block {
        letters: usize,
        checksum: u32,
    },
    End(u32),
}

/// A part, and what of it was read: the first bytes of some memory.
struct Unpacked<B> {
    part: Part,
    bytes: B,
    len: usize,
    run: std::result::Result<Run, Wrong>,
}

/// What of a part was read.
struct Run {
    /// With the bits where they begin.
    met: Vec<(usize, Met)>,
    /// The bit that comes next.
    at: usize,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// All is read.
    All,
    /// What comes next does not end here.
    Short,
    /// What comes next is too large for the sink.
    Full,
}

/// As much of a part as `bytes` have room for.
fn unpack<B: DerefMut<Target = [u8]>>(part: Part, room: &mut Room, mut bytes: B) -> Unpacked<B> {
    // What was whole, so that nothing of a block stays that did not fit.
    let (mut filled, mut len) = (0, 0);
    let run = run(&part, !part.is_first, room, |out| {
        match out {
            Out::Bytes(more) => {
                let Some(place) = bytes.get_mut(filled..filled + more.len()) else { return false };
                place.copy_from_slice(more);
                filled += more.len();
            }
            Out::Whole => len = filled,
        }
        true
    });
    Unpacked { part, bytes, len, run }
}

/// Reads a part, which begins with a header or, in a stream, a block.
fn run(
    part: &Part,
    mut in_stream: bool,
    room: &mut Room,
    mut sink: impl FnMut(Out<'_>) -> bool,
) -> std::result::Result<Run, Wrong> {
    room.clear();
    let mut bits = Bits::new(&part.bytes, part.at, part.end);
    let mut run = Run { met: Vec::new(), at: part.at, why: Why::All };
    loop {
        let at = bits.at();
        let met = if at == part.end { Err(Wrong::Short) } else { next(&mut bits, at, in_stream, room) };
        let is_last = matches!(met, Err(Wrong::Short));
        if (is_last || !room.has_place())
            && let Some(full) = room.empty(&mut sink)?
        {
            run.met.retain(|&(at, _)| at < full);
            return Ok(Run { at: full, why: Why::Full, ..run });
        }
        if is_last {
            let why = if at == part.end { Why::All } else { Why::Short };
            return Ok(Run { at, why, ..run });
        }
        let met = met?;
        in_stream = !matches!(met, Met::End(_));
        run.met.push((at, met));
    }
}

/// Reads what comes next; a block is laid out.
fn next(bits: &mut Bits<'_>, at: usize, in_stream: bool, room: &mut Room) -> std::result::Result<Met, Wrong> {
    if !in_stream {
        return match bits.take(HEADER_BITS as u32)?.to_be_bytes() {
            [.., b'B', b'Z', b'h', level @ b'1'..=b'9'] => Ok(Met::Stream((level - b'0').into())),
            _ => Err(Wrong::Damaged("expected another stream")),
        };
    }
    match next_mark(bits)? {
        Mark::End(checksum) => Ok(Met::End(checksum)),
        Mark::Block => {
            let block = room.lay_out(bits, at)?;
            Ok(Met::Block { letters: block.letters, checksum: block.checksum })
        }
    }
}

/// Parts in order.
struct Follow {
    name: String,
    /// Inside a stream: its level, and the checksum of its blocks so far.
    stream: Option<(usize, u32)>,
    /// What does not end where it was cut.
    open: Option<Part>,
    room: Option<Room>,
}

impl Follow {
    fn new(name: &str) -> Follow {
        Follow { name: name.to_string(), stream: None, open: None, room: None }
    }

    /// The next part, read by a worker.
    fn saw(
        &mut self,
        part: Part,
        bytes: &[u8],
        run: std::result::Result<Run, Wrong>,
        out: &mut Counted<impl Write>,
    ) -> Result<()> {
        if self.open.is_some() || (self.stream.is_none() && !part.is_first) {
            // It was cut elsewhere than before a block, and what was read is nonsense.
            return self.read(part, out);
        }
        let run = run.map_err(|wrong| self.wrong(wrong))?;
        self.follow(run.met)?;
        out.all(bytes)?;
        match run.why {
            Why::All => Ok(()),
            Why::Short => {
                self.open = Some(part.behind(run.at));
                Ok(())
            }
            Why::Full => self.read_on(part.behind(run.at), out),
        }
    }

    /// The next part, not read yet.
    fn read(&mut self, part: Part, out: &mut Counted<impl Write>) -> Result<()> {
        let part = match self.open.take() {
            Some(open) => open.joined(&part),
            None => part,
        };
        self.read_on(part, out)
    }

    fn read_on(&mut self, part: Part, out: &mut Counted<impl Write>) -> Result<()> {
        let mut failed = None;
        let room = self.room.get_or_insert_with(|| Room::new(1));
        let run = run(&part, self.stream.is_some(), room, |bytes| {
            if let Out::Bytes(bytes) = bytes {
                failed = out.all(bytes).err();
            }
            failed.is_none()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let run = run.map_err(|wrong| self.wrong(wrong))?;
        self.follow(run.met)?;
        if run.why == Why::Short {
            self.open = Some(part.behind(run.at));
        }
        Ok(())
    }

    /// Checks what only the whole stream shows.
    fn follow(&mut self, met: Vec<(usize, Met)>) -> Result<()> {
        for (_, met) in met {
            let right = match (met, &mut self.stream) {
                (Met::Stream(level), stream @ None) => {
                    *stream = Some((level, 0));
                    Ok(())
                }
                (Met::Block { letters, checksum }, Some((level, sum))) => {
                    *sum = sum.rotate_left(1) ^ checksum;
                    if letters <= *level * 100_000 {
                        Ok(())
                    } else {
                        Err("a block that is larger than its stream allows")
                    }
                }
                (Met::End(checksum), stream @ Some((_, _))) => {
                    let (_, sum) = stream.take().expect("looked at");
                    if sum == checksum { Ok(()) } else { Err("the checksum of a stream differs") }
                }
                _ => unreachable!("what is met follows the form of a stream"),
            };
            right.map_err(|what| self.wrong(Wrong::Damaged(what)))?;
        }
        Ok(())
    }

    /// There are no more parts.
    fn end(self) -> Result<()> {
        if self.open.is_some() || self.stream.is_some() { Err(self.wrong(Wrong::Short)) } else { Ok(()) }
    }

    fn wrong(&self, wrong: Wrong) -> Error {
        match wrong {
            Wrong::Short => truncated(&self.name, Format::Bzip2),
            Wrong::Damaged(what) => damaged(&self.name, format!("damaged {} data: {what}", Format::Bzip2)),
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

    /// Whatever is in `packed`, cut at these bits, as workers and the caller read it.
    fn cut_and_read(packed: &[u8], cuts: &[usize], blocks: usize, limit: usize) -> Result<Vec<u8>> {
        let (mut follow, mut out) = (Follow::new("bytes"), Counted { inner: Vec::new(), bytes: 0 });
        let mut room = Room::new(blocks);
        let mut from = 0;
        for &to in cuts.iter().chain([&(8 * packed.len())]) {
            let bytes = packed[from / 8..to.div_ceil(8)].to_vec();
            let part = Part { bytes, at: from % 8, end: to - from / 8 * 8, is_first: from == 0 };
            let Unpacked { part, bytes, len, run } = unpack(part, &mut room, vec![0; limit.min(32 << 20)]);
            follow.saw(part, &bytes[..len], run, &mut out)?;
            from = to;
        }
        follow.end()?;
        Ok(out.inner)
    }

    /// Letters, runs of all lengths, and bytes of any kind.
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
        fn wherever_it_is_cut_it_is_what_the_library_reads(
            texts in prop::collection::vec((text(), 1u32..=9), 1..4),
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            blocks in 1usize..6,
            limit in prop_oneof![Just(0), 1usize..1_000_000, Just(usize::MAX)],
        ) {
            let packed: Vec<u8> = texts.iter().flat_map(|(text, level)| stream(text, *level)).collect();
            let mut cuts: Vec<usize> = places.iter().map(|place| place.index(8 * packed.len())).collect();
            // Those that the cutter finds, and those that it should not.
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
        fn what_the_library_refuses_is_refused(
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
        fn beginnings_are_found_at_every_bit(
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
        // From too little for two threads to plenty.
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
