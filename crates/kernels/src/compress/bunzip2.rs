//! This module decompresses blocks of bzip2, several at once on one thread.
//!
//! ```text
//! bits ──Huffman, move to front──► letters ──count, place──► table ──walk──► letters ──runs, checksum──► bytes
//! ```
//!
//! A block holds up to 900,000 letters, and its table a word for each letter: the letter, and the index of the next
//! word. The walk follows the words in the order of the text, all over 3.6 MB, and each index is known only when the
//! previous word has come from memory behind the second-level cache. A decoder that walks one block at a time spends
//! most of its time on that wait, as the library does (in Rust and in C alike). This module lays out all blocks of a
//! [`Workspace`] first and then walks them in step, so that their waits overlap. If a block has few different pairs of
//! letters, as texts have, each word represents two letters, which halves the number of waits. Such a word has 20
//! bits for the row and 12 for the number of the pair: 4,095 pairs have a number, and letters of rarer pairs are
//! looked up.
//!
//! Measured on a core that was shared with further work, the best of twelve, 300 MB of English text, a letter a word:
//! 33 MB/s for the library, 43 with one block at a time, 42 to 43 with two, 51 with three, 46 to 50 with four, 45 to
//! 47 with eight. In all cases the walk took three quarters of the time, Huffman and move to front an eighth. By
//! pairs, 96 MB of sources, in turn, four blocks, seconds of one core: 1.4 to 1.6, against 1.8 to 2.3 with a letter a
//! word, on a machine whose cache was shared; laying out a block takes 0.48 of these instead of 0.36.
//!
//! Method: Burrows and Wheeler, A block-sorting lossless data compression algorithm, 1994. The format has no
//! standard; this module follows the library's source, but refuses input that no program writes (an ambiguous code).

/// The number of letters in the largest block.
pub const BLOCK_LETTERS_MAX: usize = 900_000;
/// The memory for a letter and for a word of the table.
const BYTES_A_LETTER: usize = 1 + 4;
/// Begins a block.
pub const BLOCK_MAGIC: u64 = 0x3141_5926_5359;
/// Follows the last block of a stream.
const END_MAGIC: u64 = 0x1772_4538_5090;
/// The number of symbols that use one code before the next is chosen.
const GROUP_SYMBOLS: usize = 50;
/// Limits the groups of such symbols in a block.
const GROUPS_MAX: usize = 18_002;
/// Counts the symbols: two for runs, 255 places, and the end.
const SYMBOLS_MAX: usize = 258;
const CODE_BITS_MAX: u32 = 20;
/// Limits the codes that one look-up finds.
const WIDE_BITS: u32 = 10;
/// Splits a table word that represents pairs: the row below, the number of the pair above; the other way round while
/// the
/// table is made.
const ROW_BITS: u32 = 20;
const ROW_MASK: u32 = (1 << ROW_BITS) - 1;
const NAME_BITS: u32 = 32 - ROW_BITS;
const PAIRS: usize = 1 << 16;
/// The number of pairs that have a number; one further number stands for all rare pairs.
const PAIRS_NAMED: usize = (1 << NAME_BITS) - 1;
/// Limits the number of rare pairs, and their share of a block's letters (one in this number), up to which pairs are
/// used: a text has few rare pairs, and a program has a tenth of its letters in rare pairs.
const PAIRS_RARE: usize = 8 << 10;
const RARE_SHARE: usize = 32;
/// The memory of a block's pairs.
const PAIRS_BYTES: usize = (PAIRS_NAMED + 1) * 2 + 2 * PAIRS_RARE * size_of::<(u32, u16)>();
/// The number of bytes per checksum update and write.
const CHUNK_BYTES: usize = 64 << 10;

/// Says why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The bits end before the block does.
    Short,
    /// The bits are not a valid block.
    Damaged(&'static str),
}

type Result<T> = std::result::Result<T, BlockError>;

/// Reads bits, the highest of each byte first.
pub struct Bits<'a> {
    bytes: &'a [u8],
    /// Holds the next bits, at the top; the lowest are zero.
    word: u64,
    /// Counts the valid bits of `word`.
    held: u32,
    /// The next byte that is not in `word`. After the end, zeros follow.
    next: usize,
    end_bits: usize,
}

impl<'a> Bits<'a> {
    /// Starts at bit `at` of `bytes`, and ends at `end_bits`.
    pub fn new(bytes: &'a [u8], at: usize, end_bits: usize) -> Bits<'a> {
        debug_assert!(end_bits <= 8 * bytes.len());
        let mut bits = Bits { bytes, word: 0, held: 0, next: at / 8, end_bits };
        bits.fill();
        bits.drop((at % 8) as u32);
        bits
    }

    /// Returns the place of the next bit.
    pub fn at(&self) -> usize {
        8 * self.next - self.held as usize
    }

    /// Fills `word` to at least 56 bits.
    #[inline(always)]
    fn fill(&mut self) {
        if let Some(eight) = self.bytes.get(self.next..self.next + 8) {
            let eight = u64::from_be_bytes(eight.try_into().expect("eight bytes"));
            self.word |= eight >> self.held;
            let taken = (63 - self.held) / 8;
            self.next += taken as usize;
            self.held += 8 * taken;
            // Lower bits are read again.
            self.word &= !(u64::MAX >> 1 >> (self.held - 1));
        } else {
            while self.held <= 56 {
                let byte = self.bytes.get(self.next).copied().unwrap_or(0);
                self.word |= u64::from(byte) << (56 - self.held);
                self.next += 1;
                self.held += 8;
            }
        }
    }

    #[inline(always)]
    fn drop(&mut self, count: u32) {
        self.word <<= count;
        self.held -= count;
    }

    /// Returns the next `count` bits, from 1 to 56.
    pub fn take(&mut self, count: u32) -> Result<u64> {
        if self.held < count {
            self.fill();
        }
        let value = self.word >> (64 - count);
        self.drop(count);
        self.checked(value)
    }

    fn checked<T>(&self, value: T) -> Result<T> {
        if self.at() <= self.end_bits { Ok(value) } else { Err(BlockError::Short) }
    }

    fn align(&mut self) {
        self.drop(self.held % 8);
    }
}

/// Says what follows in a stream.
pub enum StreamMarker {
    Block,
    /// The stream ends, and has this checksum; whole bytes follow.
    End(u32),
}

/// Reads whether a block or the end of a stream follows, with the checksum of the end.
pub fn next_mark(bits: &mut Bits<'_>) -> Result<StreamMarker> {
    match bits.take(48)? {
        BLOCK_MAGIC => Ok(StreamMarker::Block),
        END_MAGIC => {
            let checksum = bits.take(32)? as u32;
            bits.align();
            bits.checked(StreamMarker::End(checksum))
        }
        _ => Err(BlockError::Damaged("expected a block or the end of a stream")),
    }
}

/// A Huffman code, which maps bits to symbols.
struct Code {
    /// Maps the next [`WIDE_BITS`] bits to the symbol, above five bits of the code's length; 0 if the code is longer
    /// or invalid.
    wide: Box<[u16; 1 << WIDE_BITS]>,
    /// Holds for each length the end of its codes, at the top of [`CODE_BITS_MAX`] bits.
    ends: [u32; CODE_BITS_MAX as usize + 1],
    /// Holds for each length the first code (as in `ends`), and the place of that code's symbol.
    firsts: [(u32, u16); CODE_BITS_MAX as usize + 1],
    symbols: [u16; SYMBOLS_MAX],
}

impl Default for Code {
    fn default() -> Code {
        Code {
            wide: Box::new([0; 1 << WIDE_BITS]),
            ends: [0; CODE_BITS_MAX as usize + 1],
            firsts: [(0, 0); CODE_BITS_MAX as usize + 1],
            symbols: [0; SYMBOLS_MAX],
        }
    }
}

impl Code {
    /// Builds the code from the lengths of the symbols' codes: codes are assigned by length, then by symbol.
    fn set(&mut self, lengths: &[u8]) -> Result<()> {
        self.wide.fill(0);
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=CODE_BITS_MAX {
            let step = 1u32 << (CODE_BITS_MAX - length);
            self.firsts[length as usize] = (code, place as u16);
            for (symbol, _) in lengths.iter().enumerate().filter(|&(_, &other)| u32::from(other) == length) {
                if code + step > 1 << CODE_BITS_MAX {
                    return Err(BlockError::Damaged("a Huffman code is ambiguous"));
                }
                self.symbols[place] = symbol as u16;
                place += 1;
                if length <= WIDE_BITS {
                    let down = CODE_BITS_MAX - WIDE_BITS;
                    let entries = (code >> down) as usize..((code + step) >> down) as usize;
                    self.wide[entries].fill((symbol as u16) << 5 | length as u16);
                }
                code += step;
            }
            self.ends[length as usize] = code;
        }
        Ok(())
    }

    /// Reads the next symbol; 20 bits must be held.
    #[inline(always)]
    fn read(&self, bits: &mut Bits<'_>) -> Result<u16> {
        let entry = self.wide[(bits.word >> (64 - WIDE_BITS)) as usize];
        if entry != 0 {
            bits.drop(u32::from(entry & 31));
            return Ok(entry >> 5);
        }
        self.read_long(bits)
    }

    #[cold]
    fn read_long(&self, bits: &mut Bits<'_>) -> Result<u16> {
        let next = (bits.word >> (64 - CODE_BITS_MAX)) as u32;
        for length in WIDE_BITS + 1..=CODE_BITS_MAX {
            if next < self.ends[length as usize] {
                let (first, place) = self.firsts[length as usize];
                bits.drop(length);
                return Ok(
                    self.symbols[usize::from(place) + ((next - first) >> (CODE_BITS_MAX - length)) as usize]
                );
            }
        }
        Err(BlockError::Damaged("bits match no Huffman code"))
    }
}

/// Holds letters in the order of their last use, eight in a word, the latest in the lowest byte of the first.
struct MoveToFront([u64; 32]);

impl MoveToFront {
    fn new(letters: &[u8]) -> MoveToFront {
        let mut words = [0; 32];
        for (place, &letter) in letters.iter().enumerate() {
            words[place / 8] |= u64::from(letter) << (8 * (place % 8));
        }
        MoveToFront(words)
    }

    fn front(&self) -> u8 {
        self.0[0] as u8
    }

    /// Returns the letter at `place`, below 256, and moves the letter to the front.
    #[inline(always)]
    fn take(&mut self, place: usize) -> u8 {
        let (row, shift) = (place / 8 % 32, 8 * (place % 8));
        let word = self.0[row];
        let letter = word >> shift & 255;
        let mut carried = letter;
        for word in &mut self.0[..row] {
            let last = *word >> 56;
            *word = *word << 8 | carried;
            carried = last;
        }
        // Earlier letters of the word move up; later ones stay.
        let before = (1u64 << shift) - 1;
        self.0[row] = word & !(before << 8 | 255) | (word & before) << 8 | carried;
        letter as u8
    }
}

/// A block that is laid out.
struct LaidOutBlock {
    /// The range of the block's letters, and of the words of the table, in the workspace.
    range: std::ops::Range<usize>,
    /// The word that the text begins with.
    start: u32,
    checksum: u32,
    /// The place of the block's first bit.
    at: usize,
    kind: TableKind,
}

/// Says what the words of a block's table contain.
enum TableKind {
    /// Each word holds a letter, and the row of the next letter.
    Letters,
    /// Each word holds two letters, and the row of the letters after them.
    Pairs(Pairs),
}

/// Lists the pairs of letters that the words of a table represent.
struct Pairs {
    /// Maps the number in a word to both letters, the first in the lower byte.
    named: Box<[u16; PAIRS_NAMED + 1]>,
    /// Lists pairs without a number, with the first row of each, in order.
    rare: Vec<(u32, u16)>,
}

impl Pairs {
    /// Returns the first two letters of `row`, if the row's word has no number.
    #[cold]
    fn of_row(&self, row: u32) -> u16 {
        let behind = self.rare.partition_point(|&(first, _)| first <= row);
        self.rare[behind - 1].1
    }
}

/// Reports a block's size and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub letters: usize,
    pub checksum: u32,
}

/// Holds memory for some blocks that are walked in step.
pub struct Workspace {
    blocks: usize,
    letters: Vec<u8>,
    table: Vec<u32>,
    laid: Vec<LaidOutBlock>,
    codes: [Code; 6],
    groups: Vec<u8>,
    chunk: Vec<u8>,
    /// Holds for each pair (the first letter above the second) the count, then the next row and number.
    slots: Vec<u32>,
}

impl Workspace {
    /// Returns the bytes of a workspace for `blocks` blocks of the largest size.
    pub fn bytes(blocks: usize) -> u64 {
        let block = BLOCK_LETTERS_MAX * BYTES_A_LETTER + PAIRS_BYTES;
        (blocks * block + 2 * CHUNK_BYTES + PAIRS * size_of::<u32>() + (64 << 10)) as u64
    }

    pub fn new(blocks: usize) -> Workspace {
        Workspace {
            blocks,
            letters: Vec::new(),
            table: Vec::new(),
            laid: Vec::new(),
            codes: Default::default(),
            groups: Vec::with_capacity(GROUPS_MAX),
            chunk: Vec::with_capacity(2 * CHUNK_BYTES),
            slots: vec![0; PAIRS],
        }
    }

    /// Drops all blocks that are laid out.
    pub fn clear(&mut self) {
        self.laid.clear();
    }

    fn filled(&self) -> usize {
        self.laid.last().map_or(0, |laid| laid.range.end)
    }

    /// Tells whether a block of any size still fits.
    pub fn has_place(&self) -> bool {
        self.filled() + BLOCK_LETTERS_MAX <= self.blocks * BLOCK_LETTERS_MAX
    }

    /// Reads the block after the magic and lays it out; `at` is the position of the magic. The workspace must have
    /// space for a block.
    pub fn lay_out(&mut self, bits: &mut Bits<'_>, at: usize) -> Result<Block> {
        let before = self.laid.len();
        let found = self.read_block(bits, at);
        // Bits after the end are invalid, even if they look like a block.
        bits.checked(()).inspect_err(|_| self.laid.truncate(before)).and(found)
    }

    fn read_block(&mut self, bits: &mut Bits<'_>, at: usize) -> Result<Block> {
        assert!(self.has_place(), "a full room is emptied first");
        let from = self.filled();
        let checksum = bits.take(32)? as u32;
        let is_mixed = bits.take(1)? == 1;
        let start = bits.take(24)? as u32;
        let mut names = [0; 256];
        let used = read_names(bits, &mut names)?;
        self.read_codes(bits, used + 2)?;
        grow(&mut self.letters, from + BLOCK_LETTERS_MAX);
        let letters = &mut self.letters[from..from + BLOCK_LETTERS_MAX];
        let names = &names[..used];
        let (count, counts) =
            read_letters(bits, &self.codes, &self.groups, MoveToFront::new(names), used, letters)?;
        if start as usize >= count {
            return Err(BlockError::Damaged("the start index of a block is out of range"));
        }
        // Programs of 1998 and earlier wrote such blocks.
        if is_mixed {
            return Err(BlockError::Damaged(
                "a block is randomised, as by bzip2 0.9.0, which is not supported: decompress the file with bzip2",
            ));
        }
        // A small file needs no large table.
        grow(&mut self.table, from + count.next_power_of_two().min(BLOCK_LETTERS_MAX));
        let (letters, table) = (&letters[..count], &mut self.table[from..from + count]);
        let rows = first_rows(&counts);
        let kind = match place_pairs(letters, names, rows, table, &mut self.slots) {
            Some(pairs) => TableKind::Pairs(pairs),
            None => {
                place(letters, rows, table);
                TableKind::Letters
            }
        };
        self.laid.push(LaidOutBlock { range: from..from + count, start, checksum, at, kind });
        Ok(Block { letters: count, checksum })
    }

    /// Reads the codes, and the code that each group of symbols uses.
    fn read_codes(&mut self, bits: &mut Bits<'_>, symbols: usize) -> Result<()> {
        let codes = bits.take(3)? as usize;
        let groups = bits.take(15)? as usize;
        if !(2..=6).contains(&codes) || groups == 0 {
            return Err(BlockError::Damaged("a block has no Huffman codes"));
        }
        self.groups.clear();
        let mut order = [0, 1, 2, 3, 4, 5];
        for group in 0..groups {
            let mut place = 0;
            while bits.take(1)? == 1 {
                place += 1;
                if place >= codes {
                    return Err(BlockError::Damaged("a group selects a Huffman code that does not exist"));
                }
            }
            order[..=place].rotate_right(1);
            // A stream may have more groups than any block needs.
            if group < GROUPS_MAX {
                self.groups.push(order[0]);
            }
        }
        for code in &mut self.codes[..codes] {
            let mut lengths = [0; SYMBOLS_MAX];
            let mut length = bits.take(5)?;
            for slot in &mut lengths[..symbols] {
                loop {
                    if !(1..=u64::from(CODE_BITS_MAX)).contains(&length) {
                        return Err(BlockError::Damaged("the length of a Huffman code is out of range"));
                    }
                    if bits.take(1)? == 0 {
                        break;
                    }
                    length = if bits.take(1)? == 0 { length + 1 } else { length.wrapping_sub(1) };
                }
                *slot = length as u8;
            }
            code.set(&lengths[..symbols])?;
        }
        Ok(())
    }

    /// Passes the bytes of all blocks that are laid out to `sink`, in order, and clears the workspace. If `sink`
    /// returns
    /// false, returns the place of that block's first bit; earlier blocks are complete.
    pub fn empty(&mut self, mut sink: impl FnMut(Output<'_>) -> bool) -> Result<Option<usize>> {
        let laid = std::mem::take(&mut self.laid);
        walk_all(&laid, &self.table, &mut self.letters);
        for block in &laid {
            let letters = &self.letters[block.range.clone()];
            let mut checksum = Checksum::default();
            let mut took = |bytes: &[u8]| {
                checksum.saw(bytes);
                sink(Output::Bytes(bytes))
            };
            if !expand(letters, &mut self.chunk, &mut took)? {
                return Ok(Some(block.at));
            }
            if checksum.value() != block.checksum {
                return Err(BlockError::Damaged("the checksum of a block differs"));
            }
            sink(Output::Whole);
        }
        Ok(None)
    }
}

/// Grows a vector to at least `len`, and takes no more memory than that.
fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.reserve_exact(len - values.len());
        values.resize(len, T::default());
    }
}

/// The output of a workspace.
pub enum Output<'a> {
    Bytes(&'a [u8]),
    /// The bytes since the last `Whole` were a block with a correct checksum.
    Whole,
}

/// Reads the letters that occur in a block, in order, and returns their number.
fn read_names(bits: &mut Bits<'_>, names: &mut [u8; 256]) -> Result<usize> {
    let rows = bits.take(16)?;
    let mut used = 0;
    for row in (0..16).filter(|row| rows >> (15 - row) & 1 == 1) {
        let columns = bits.take(16)?;
        for column in (0..16).filter(|column| columns >> (15 - column) & 1 == 1) {
            names[used] = 16 * row + column;
            used += 1;
        }
    }
    if used == 0 { Err(BlockError::Damaged("a block uses no bytes")) } else { Ok(used) }
}

/// Decodes symbols into letters, up to the end of the block; returns the number of letters, and the count of each
/// letter.
fn read_letters(
    bits: &mut Bits<'_>,
    codes: &[Code; 6],
    groups: &[u8],
    mut recent: MoveToFront,
    used: usize,
    letters: &mut [u8],
) -> Result<(usize, [u32; 256])> {
    const TOO_MANY: Result<(usize, [u32; 256])> =
        Err(BlockError::Damaged("a block is larger than 900,000 bytes"));
    let (end, mut count, mut counts) = (used as u16 + 1, 0, [0; 256]);
    // A run of the letter at the front is written as digits 1 and 2 of rising weight.
    let (mut run, mut weight) = (0usize, 1usize);
    for &group in groups {
        let code = &codes[usize::from(group)];
        for _ in 0..GROUP_SYMBOLS {
            if bits.held < CODE_BITS_MAX {
                bits.fill();
            }
            let symbol = code.read(bits)?;
            if symbol < 2 {
                if weight > BLOCK_LETTERS_MAX {
                    return TOO_MANY;
                }
                run += weight << symbol;
                weight *= 2;
                continue;
            }
            if run > 0 {
                let Some(slots) = letters.get_mut(count..count + run) else { return TOO_MANY };
                slots.fill(recent.front());
                counts[usize::from(recent.front())] += run as u32;
                count += run;
                (run, weight) = (0, 1);
            }
            if symbol == end {
                return Ok((count, counts));
            }
            let Some(slot) = letters.get_mut(count) else { return TOO_MANY };
            *slot = recent.take(usize::from(symbol) - 1);
            counts[usize::from(*slot)] += 1;
            count += 1;
        }
        bits.checked(())?;
    }
    Err(BlockError::Damaged("a block does not end"))
}

/// Returns for each letter the first row that begins with the letter.
fn first_rows(counts: &[u32; 256]) -> [u32; 256] {
    let mut sum = 0;
    counts.map(|count| {
        sum += count;
        sum - count
    })
}

/// Fills the table of a block. The block's letters are the last letters of the rows of the sorted matrix; word `r` is
/// the first letter of row `r`, and above it the row that begins with the letter after that.
fn place(letters: &[u8], mut next: [u32; 256], table: &mut [u32]) {
    for (row, &letter) in letters.iter().enumerate() {
        let next = &mut next[usize::from(letter)];
        table[*next as usize] = (row as u32) << 8 | u32::from(letter);
        *next += 1;
    }
}

/// Fills the table of a block by pairs: word `r` is the number of the two letters that row `r` begins with, and above
/// it the row that begins with the letter after these. Returns `None` if too many letters are in pairs without a
/// number.
///
/// A row `k` is preceded by its last letter; the row that begins there is preceded by its own last letter. Rows that
/// begin with the same two letters are in the order of the letters after these, so a loop over `k` in order meets
/// them in order.
fn place_pairs(
    letters: &[u8],
    names: &[u8],
    mut next: [u32; 256],
    table: &mut [u32],
    slots: &mut [u32],
) -> Option<Pairs> {
    let slots: &mut [u32; PAIRS] = slots.try_into().expect("a slot for each pair");
    count_pairs(letters, names, &next, slots);
    let pairs = name_pairs(letters.len(), names, slots)?;
    for (row, &second) in letters.iter().enumerate() {
        let between = &mut next[usize::from(second)];
        let first = letters[*between as usize];
        *between += 1;
        let slot = &mut slots[usize::from(first) << 8 | usize::from(second)];
        table[(*slot & ROW_MASK) as usize] = (row as u32) << NAME_BITS | *slot >> ROW_BITS;
        *slot += 1;
    }
    Some(pairs)
}

/// Counts each pair of letters: the last letter of each row, and the row's first letter.
fn count_pairs(letters: &[u8], names: &[u8], first_rows: &[u32; 256], slots: &mut [u32; PAIRS]) {
    for (place, &second) in names.iter().enumerate() {
        let start = first_rows[usize::from(second)] as usize;
        let end = names.get(place + 1).map_or(letters.len(), |&next| first_rows[usize::from(next)] as usize);
        // With two counts, adjacent equal letters do not wait for each other.
        let mut counts = [[0u32; 256]; 2];
        let twos = letters[start..end].chunks_exact(2);
        twos.remainder().iter().for_each(|&first| counts[0][usize::from(first)] += 1);
        for two in twos {
            counts[0][usize::from(two[0])] += 1;
            counts[1][usize::from(two[1])] += 1;
        }
        for first in names.iter().copied().map(usize::from) {
            slots[first << 8 | usize::from(second)] = counts[0][first] + counts[1][first];
        }
    }
}

/// Replaces counts by the first rows, and above them the numbers of the most frequent pairs.
fn name_pairs(letters: usize, names: &[u8], slots: &mut [u32; PAIRS]) -> Option<Pairs> {
    let all = || {
        let pairs =
            |first: u8| names.iter().map(move |&second| usize::from(first) << 8 | usize::from(second));
        names.iter().copied().flat_map(pairs)
    };
    let mut counts: Vec<u32> = all().map(|pair| slots[pair]).filter(|&count| count > 0).collect();
    // Pairs that are more frequent than the last named pair have numbers, and some of those that are as frequent.
    let (mut frequent, mut equal) = (0, 0);
    if counts.len() > PAIRS_NAMED {
        let (named, &mut last, rare) =
            counts.select_nth_unstable_by_key(PAIRS_NAMED - 1, |&count| std::cmp::Reverse(count));
        if rare.len() > PAIRS_RARE || rare.iter().sum::<u32>() as usize > letters / RARE_SHARE {
            return None;
        }
        (frequent, equal) = (last, 1 + named.iter().filter(|&&count| count == last).count());
    }
    let mut pairs = Pairs { named: Box::new([0; PAIRS_NAMED + 1]), rare: Vec::new() };
    let (mut row, mut number) = (0, 0);
    for pair in all() {
        let count = std::mem::replace(&mut slots[pair], row);
        if count == 0 {
            continue;
        }
        let both = (pair as u16).swap_bytes();
        let is_equal = count == frequent && equal > 0;
        equal -= usize::from(is_equal);
        let name = if count > frequent || is_equal {
            pairs.named[number] = both;
            number += 1;
            number - 1
        } else {
            pairs.rare.push((row, both));
            PAIRS_NAMED
        };
        slots[pair] |= (name as u32) << ROW_BITS;
        row += count;
    }
    Some(pairs)
}

/// A walk through a block's table.
struct Walk<'a> {
    table: &'a [u32],
    pairs: Option<&'a Pairs>,
    row: u32,
    out: &'a mut [u8],
}

/// The number of blocks that are walked in step.
const ABREAST: usize = 4;

/// Writes the text of each block over its letters.
fn walk_all(laid: &[LaidOutBlock], table: &[u32], letters: &mut [u8]) {
    let (mut walks, mut rest) = (Vec::with_capacity(laid.len()), letters);
    for block in laid {
        let (out, behind) = std::mem::take(&mut rest).split_at_mut(block.range.len());
        rest = behind;
        let pairs = match &block.kind {
            TableKind::Pairs(pairs) => Some(pairs),
            TableKind::Letters => None,
        };
        walks.push(Walk { table: &table[block.range.clone()], pairs, row: block.start, out });
    }
    // Blocks of one kind and similar length are walked together; when the shortest block ends, the others continue.
    walks.sort_by_key(|walk| (walk.pairs.is_none(), std::cmp::Reverse(walk.out.len())));
    let by_pairs = walks.partition_point(|walk| walk.pairs.is_some());
    let (pairs, single) = walks.split_at_mut(by_pairs);
    for walks in pairs.chunks_mut(ABREAST) {
        for count in (1..=walks.len()).rev() {
            let steps = walks[count - 1].out.len() / 2;
            match count {
                4 => walk_pairs::<4>(walks[..4].as_mut_array().expect("four"), steps),
                3 => walk_pairs::<3>(walks[..3].as_mut_array().expect("three"), steps),
                2 => walk_pairs::<2>(walks[..2].as_mut_array().expect("two"), steps),
                _ => walk_pairs::<1>(walks[..1].as_mut_array().expect("one"), steps),
            }
        }
        walks.iter_mut().for_each(Walk::last_letter);
    }
    for walks in single.chunks_mut(ABREAST) {
        for count in (1..=walks.len()).rev() {
            let steps = walks[count - 1].out.len();
            match count {
                4 => walk::<4>(walks[..4].as_mut_array().expect("four"), steps),
                3 => walk::<3>(walks[..3].as_mut_array().expect("three"), steps),
                2 => walk::<2>(walks[..2].as_mut_array().expect("two"), steps),
                _ => walk::<1>(walks[..1].as_mut_array().expect("one"), steps),
            }
        }
    }
}

impl Walk<'_> {
    /// Writes the last letter of an odd number, by pairs.
    fn last_letter(&mut self) {
        if let ([last], Some(pairs)) = (&mut *self.out, self.pairs) {
            *last = pair_of(pairs, self.table[self.row as usize], self.row) as u8;
        }
    }
}

#[inline(always)]
fn pair_of(pairs: &Pairs, word: u32, row: u32) -> u16 {
    let name = word as usize & PAIRS_NAMED;
    if name == PAIRS_NAMED { pairs.of_row(row) } else { pairs.named[name] }
}

/// Takes `steps` steps of two letters in each of the tables, in turn.
fn walk_pairs<const WALKS: usize>(walks: &mut [Walk<'_>; WALKS], steps: usize) {
    let tables = walks.each_ref().map(|walk| walk.table);
    let pairs = walks.each_ref().map(|walk| walk.pairs.expect("a walk by pairs"));
    let mut rows = walks.each_ref().map(|walk| walk.row);
    let mut outs = walks.each_mut().map(|walk| {
        let (now, later) = std::mem::take(&mut walk.out).split_at_mut(2 * steps);
        walk.out = later;
        now.as_chunks_mut::<2>().0
    });
    for step in 0..steps {
        for (((row, table), pairs), out) in rows.iter_mut().zip(&tables).zip(&pairs).zip(&mut outs) {
            let word = table[*row as usize];
            out[step] = pair_of(pairs, word, *row).to_le_bytes();
            *row = word >> NAME_BITS;
        }
    }
    for (walk, row) in walks.iter_mut().zip(rows) {
        walk.row = row;
    }
}

/// Takes `steps` steps of a letter in each of the tables, in turn.
fn walk<const WALKS: usize>(walks: &mut [Walk<'_>; WALKS], steps: usize) {
    let tables = walks.each_ref().map(|walk| walk.table);
    let mut rows = walks.each_ref().map(|walk| walk.row);
    let mut outs = walks.each_mut().map(|walk| {
        let (now, later) = std::mem::take(&mut walk.out).split_at_mut(steps);
        walk.out = later;
        now
    });
    for step in 0..steps {
        for ((row, table), out) in rows.iter_mut().zip(&tables).zip(&mut outs) {
            let word = table[*row as usize];
            out[step] = word as u8;
            *row = word >> 8;
        }
    }
    for (walk, row) in walks.iter_mut().zip(rows) {
        walk.row = row;
    }
}

/// Expands runs and passes the bytes to `sink`: after four equal letters comes the number of further ones. Returns
/// whether `sink` took all bytes.
fn expand(letters: &[u8], chunk: &mut Vec<u8>, sink: &mut impl FnMut(&[u8]) -> bool) -> Result<bool> {
    let mut rest = letters;
    chunk.clear();
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(CHUNK_BYTES)];
        let mut plain = plain_letters(window);
        if plain == window.len() && plain < rest.len() {
            // The last three letters may begin a run.
            plain -= 3;
        }
        chunk.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        if let [first, second, third, fourth, behind @ ..] = rest
            && first == second
            && second == third
            && third == fourth
        {
            let Some((&more, behind)) = behind.split_first() else {
                return Err(BlockError::Damaged("a run has no length"));
            };
            chunk.resize(chunk.len() + 4 + usize::from(more), *first);
            rest = behind;
        }
        if chunk.len() >= CHUNK_BYTES || rest.is_empty() {
            if !sink(chunk) {
                return Ok(false);
            }
            chunk.clear();
        }
    }
    Ok(true)
}

/// Returns the number of letters before the first four equal ones in a row.
fn plain_letters(letters: &[u8]) -> usize {
    const LOWEST: u64 = u64::from_le_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    let is_run = |four: &[u8]| four[0] == four[1] && four[1] == four[2] && four[2] == four[3];
    let mut at = 0;
    // Eight places are checked at once: a byte becomes zero if it equals the three following bytes.
    while let Some(window) = letters[at..].first_chunk::<11>() {
        let word = |from: usize| u64::from_le_bytes(*window[from..].first_chunk().expect("eight bytes"));
        let (here, next) = (word(0), word(1));
        let differ = (here ^ next) | (next ^ word(2)) | (word(2) ^ word(3));
        let zero = differ.wrapping_sub(LOWEST) & !differ & HIGHEST;
        if zero != 0 {
            return at + zero.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    letters[at..].windows(4).position(is_run).map_or(letters.len(), |place| at + place)
}

/// The checksum of bzip2: that of gzip with the bits of each byte, and of the result, in reverse order.
#[derive(Default)]
struct Checksum(crc32fast::Hasher);

impl Checksum {
    fn saw(&mut self, bytes: &[u8]) {
        let mut turned = [0; 4096];
        for part in bytes.chunks(turned.len()) {
            turned.iter_mut().zip(part).for_each(|(turned, byte)| *turned = byte.reverse_bits());
            self.0.update(&turned[..part.len()]);
        }
    }

    fn value(self) -> u32 {
        self.0.finalize().reverse_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the last letters of all rotations in order, and the row of the text itself.
    fn sorted(text: &[u8]) -> (Vec<u8>, u32) {
        let twice = text.repeat(2);
        let mut starts: Vec<usize> = (0..text.len()).collect();
        starts.sort_by_key(|&start| &twice[start..start + text.len()]);
        let last = |&start: &usize| twice[start + text.len() - 1];
        let row = starts.iter().position(|&start| start == 0).unwrap();
        (starts.iter().map(last).collect(), row as u32)
    }

    #[test]
    fn texts_round_trip_by_pairs_with_and_without_numbers_and_by_letters() {
        let mut dice = 11u64;
        let mut below = |limit: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % limit
        };
        let mut text = |len: usize, few: usize, many: usize| -> Vec<u8> {
            (0..len).map(|_| if below(100) < 99 { below(few) as u8 } else { below(many) as u8 }).collect()
        };
        let texts = [text(30_001, 40, 40), text(120_000, 60, 90), text(30_000, 250, 256)];
        let (mut letters, mut table, mut laid, mut rare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for text in &texts {
            let (last, start) = sorted(text);
            let mut counts = [0; 256];
            last.iter().for_each(|&letter| counts[usize::from(letter)] += 1);
            let names: Vec<u8> = (0..=255).filter(|&letter| counts[usize::from(letter)] > 0).collect();
            let (mut words, mut slots) = (vec![0; last.len()], vec![7; PAIRS]);
            let rows = first_rows(&counts);
            let kind = match place_pairs(&last, &names, rows, &mut words, &mut slots) {
                Some(pairs) => {
                    rare.push(Some(pairs.rare.len()));
                    TableKind::Pairs(pairs)
                }
                None => {
                    rare.push(None);
                    place(&last, rows, &mut words);
                    TableKind::Letters
                }
            };
            let from = letters.len();
            laid.push(LaidOutBlock { range: from..from + last.len(), start, checksum: 0, at: 0, kind });
            letters.extend(last);
            table.extend(words);
        }
        assert!(matches!(rare[..], [Some(0), Some(1..), None]), "{rare:?}");
        walk_all(&laid, &table, &mut letters);
        assert!(letters == texts.concat());
    }
}
