//! Blocks of bzip2 back to what they were, several at once on one thread.
//!
//! ```text
//! bits ──Huffman, move to front──► letters ──count, place──► table ──walk──► letters ──runs, checksum──► bytes
//! ```
//!
//! A block holds up to 900,000 letters, and its table a word for each: the letter, and which word comes next. The words are
//! walked in the order of the text, that is, all over 3.6 MB, and each is known when the one before has come from the memory
//! behind the second cache. That wait is most of the time of a decoder that does a block at a time, as the library does (in
//! Rust and in C alike). Here all blocks that a [`Room`] holds are laid out first and then walked in step, so that their waits
//! overlap; and where a block has few different pairs of letters, as texts have, each word is for two letters, so that there
//! are half as many waits. Such a word has 20 bits for the row and 12 for the number of the pair: 4,095 pairs have one, and
//! the few letters in others are looked up.
//!
//! Measured on a core that was shared with other work, the best of twelve, 300 MB of English text, a letter a word: 33 MB/s for
//! the library, 43 with one block at a time, 42 to 43 with two, 51 with three, 46 to 50 with four, 45 to 47 with eight. Over all
//! of these the walk took three quarters of the time, Huffman and move to front an eighth. By pairs, 96 MB of sources, in turn,
//! four blocks, seconds of one core: 1.4 to 1.6 where a letter a word took 1.8 to 2.3, when others wanted the cache too; to lay
//! out a block takes 0.48 of these instead of 0.36.
//!
//! Method: Burrows and Wheeler, A block-sorting lossless data compression algorithm, 1994. There is no standard of the format;
//! the library's source is followed, and where it takes what no program writes (a code that is ambiguous), this does not.

/// Letters of the largest block.
pub const BLOCK_LETTERS_MAX: usize = 900_000;
/// A letter, and a word of the table.
const BYTES_A_LETTER: usize = 1 + 4;
/// What a block begins with.
pub const BLOCK_MAGIC: u64 = 0x3141_5926_5359;
/// What stands behind the last block of a stream.
const END_MAGIC: u64 = 0x1772_4538_5090;
/// Symbols that use one code before the next is chosen, and the most such groups.
const GROUP_SYMBOLS: usize = 50;
const GROUPS_MAX: usize = 18_002;
/// Two for runs, 255 places, and the end.
const SYMBOLS_MAX: usize = 258;
const CODE_BITS_MAX: u32 = 20;
/// Codes of up to so many bits are found with one look.
const WIDE_BITS: u32 = 10;
/// A word of a table by pairs: a row below, the number of its pair above; in words on their way, the other way round.
const ROW_BITS: u32 = 20;
const ROW_MASK: u32 = (1 << ROW_BITS) - 1;
const NAME_BITS: u32 = 32 - ROW_BITS;
const PAIRS: usize = 1 << 16;
/// Pairs that have a number; one number more is for all others.
const PAIRS_NAMED: usize = (1 << NAME_BITS) - 1;
/// The most of the others, and the most letters of a block in them (one of so many), for which pairs pay: a text has none or
/// few, a program has a tenth of its letters there.
const PAIRS_RARE: usize = 8 << 10;
const RARE_SHARE: usize = 32;
/// What a block's pairs take.
const PAIRS_BYTES: usize = (PAIRS_NAMED + 1) * 2 + 2 * PAIRS_RARE * size_of::<(u32, u16)>();
/// Bytes that are checked and handed on at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The bits end before the block does.
    Short,
    /// It is none.
    Damaged(&'static str),
}

type Result<T> = std::result::Result<T, Wrong>;

/// Bits, the highest of each byte first.
pub struct Bits<'a> {
    bytes: &'a [u8],
    /// The next ones, at the top; the lowest are zero.
    word: u64,
    /// How many of `word` are there.
    held: u32,
    /// The next byte that is not in `word`. May be behind the end, where zeros come.
    next: usize,
    end_bits: usize,
}

impl<'a> Bits<'a> {
    /// From bit `at` of `bytes` to `end_bits`.
    pub fn new(bytes: &'a [u8], at: usize, end_bits: usize) -> Bits<'a> {
        debug_assert!(end_bits <= 8 * bytes.len());
        let mut bits = Bits { bytes, word: 0, held: 0, next: at / 8, end_bits };
        bits.fill();
        bits.drop((at % 8) as u32);
        bits
    }

    /// The place of the next bit.
    pub fn at(&self) -> usize {
        8 * self.next - self.held as usize
    }

    /// At least 56 bits are held then.
    #[inline(always)]
    fn fill(&mut self) {
        if let Some(eight) = self.bytes.get(self.next..self.next + 8) {
            let eight = u64::from_be_bytes(eight.try_into().expect("eight bytes"));
            self.word |= eight >> self.held;
            let taken = (63 - self.held) / 8;
            self.next += taken as usize;
            self.held += 8 * taken;
            // What stands below is read again.
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

    /// The next `count` bits, from 1 to 56.
    pub fn take(&mut self, count: u32) -> Result<u64> {
        if self.held < count {
            self.fill();
        }
        let value = self.word >> (64 - count);
        self.drop(count);
        self.checked(value)
    }

    fn checked<T>(&self, value: T) -> Result<T> {
        if self.at() <= self.end_bits { Ok(value) } else { Err(Wrong::Short) }
    }

    fn align(&mut self) {
        self.drop(self.held % 8);
    }
}

/// What comes next in a stream.
pub enum Mark {
    Block,
    /// The last of a stream, with its checksum; whole bytes follow.
    End(u32),
}

/// Reads whether a block or the end of a stream comes, with the checksum of the end.
pub fn next_mark(bits: &mut Bits<'_>) -> Result<Mark> {
    match bits.take(48)? {
        BLOCK_MAGIC => Ok(Mark::Block),
        END_MAGIC => {
            let checksum = bits.take(32)? as u32;
            bits.align();
            bits.checked(Mark::End(checksum))
        }
        _ => Err(Wrong::Damaged("neither a block nor the end of a stream")),
    }
}

/// A code: which symbol a row of bits is.
struct Code {
    /// By the next [`WIDE_BITS`] bits: the symbol above five bits of its length; 0 where the code is longer or none.
    wide: Box<[u16; 1 << WIDE_BITS]>,
    /// By length: the end of its codes, at the top of [`CODE_BITS_MAX`] bits.
    ends: [u32; CODE_BITS_MAX as usize + 1],
    /// By length: its first code (as `ends`), and the place of that code's symbol.
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
    /// Codes are given by length, then by symbol.
    fn set(&mut self, lengths: &[u8]) -> Result<()> {
        self.wide.fill(0);
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=CODE_BITS_MAX {
            let step = 1u32 << (CODE_BITS_MAX - length);
            self.firsts[length as usize] = (code, place as u16);
            for (symbol, _) in lengths.iter().enumerate().filter(|&(_, &other)| u32::from(other) == length) {
                if code + step > 1 << CODE_BITS_MAX {
                    return Err(Wrong::Damaged("a code that is ambiguous"));
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

    /// The next symbol; 20 bits are held.
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
        Err(Wrong::Damaged("bits that are no code"))
    }
}

/// Letters in the order of their last use, eight in a word, the latest in the lowest byte of the first.
struct Recent([u64; 32]);

impl Recent {
    fn new(letters: &[u8]) -> Recent {
        let mut words = [0; 32];
        for (place, &letter) in letters.iter().enumerate() {
            words[place / 8] |= u64::from(letter) << (8 * (place % 8));
        }
        Recent(words)
    }

    fn front(&self) -> u8 {
        self.0[0] as u8
    }

    /// The letter at `place`, below 256, which comes to the front.
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
        // Those before it in its word move up; those behind stay.
        let before = (1u64 << shift) - 1;
        self.0[row] = word & !(before << 8 | 255) | (word & before) << 8 | carried;
        letter as u8
    }
}

/// A block that is laid out.
struct Laid {
    /// Its letters, and words of the table, in the room.
    range: std::ops::Range<usize>,
    /// The word that the text begins with.
    start: u32,
    checksum: u32,
    /// Where its first bit is.
    at: usize,
    kind: Kind,
}

/// What the words of a block's table say.
enum Kind {
    /// One letter, and the row of the next.
    Letters,
    /// Two letters, and the row of those behind them.
    Pairs(Pairs),
}

/// Which pairs of letters the words of a table name.
struct Pairs {
    /// By the number in a word: both letters, the first one in the lower byte.
    named: Box<[u16; PAIRS_NAMED + 1]>,
    /// Those without a number: the first row that begins with them, in order.
    rare: Vec<(u32, u16)>,
}

impl Pairs {
    /// The letters that `row` begins with, where its word does not name them.
    #[cold]
    fn of_row(&self, row: u32) -> u16 {
        let behind = self.rare.partition_point(|&(first, _)| first <= row);
        self.rare[behind - 1].1
    }
}

/// What a block was, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub letters: usize,
    pub checksum: u32,
}

/// Memory for some blocks that are walked in step.
pub struct Room {
    blocks: usize,
    letters: Vec<u8>,
    table: Vec<u32>,
    laid: Vec<Laid>,
    codes: [Code; 6],
    groups: Vec<u8>,
    chunk: Vec<u8>,
    /// By pair, the first letter above the second: how often it occurs, then its next row and number.
    slots: Vec<u32>,
}

impl Room {
    /// Bytes of a room for `blocks` blocks of the largest size.
    pub fn bytes(blocks: usize) -> u64 {
        let block = BLOCK_LETTERS_MAX * BYTES_A_LETTER + PAIRS_BYTES;
        (blocks * block + 2 * CHUNK_BYTES + PAIRS * size_of::<u32>() + (64 << 10)) as u64
    }

    pub fn new(blocks: usize) -> Room {
        Room {
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

    /// Forgets what is laid out.
    pub fn clear(&mut self) {
        self.laid.clear();
    }

    fn filled(&self) -> usize {
        self.laid.last().map_or(0, |laid| laid.range.end)
    }

    /// Whether a block of any size has place still.
    pub fn has_place(&self) -> bool {
        self.filled() + BLOCK_LETTERS_MAX <= self.blocks * BLOCK_LETTERS_MAX
    }

    /// Reads the block behind its magic and lays it out; `at` is where it began. It must have place.
    pub fn lay_out(&mut self, bits: &mut Bits<'_>, at: usize) -> Result<Block> {
        let before = self.laid.len();
        let found = self.read_block(bits, at);
        // What is read behind the end is nonsense, whatever it looks like.
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
            read_letters(bits, &self.codes, &self.groups, Recent::new(names), used, letters)?;
        if start as usize >= count {
            return Err(Wrong::Damaged("a block that begins outside of itself"));
        }
        // Written by programs of 1998 and before.
        if is_mixed {
            return Err(Wrong::Damaged(
                "a block whose letters were mixed, as bzip2 0.9.0 did: bzip2 reads it",
            ));
        }
        // A small file needs no large table.
        grow(&mut self.table, from + count.next_power_of_two().min(BLOCK_LETTERS_MAX));
        let (letters, table) = (&letters[..count], &mut self.table[from..from + count]);
        let rows = first_rows(&counts);
        let kind = match place_pairs(letters, names, rows, table, &mut self.slots) {
            Some(pairs) => Kind::Pairs(pairs),
            None => {
                place(letters, rows, table);
                Kind::Letters
            }
        };
        self.laid.push(Laid { range: from..from + count, start, checksum, at, kind });
        Ok(Block { letters: count, checksum })
    }

    /// Where the bytes of a code begin, and how groups of symbols choose among them.
    fn read_codes(&mut self, bits: &mut Bits<'_>, symbols: usize) -> Result<()> {
        let codes = bits.take(3)? as usize;
        let groups = bits.take(15)? as usize;
        if !(2..=6).contains(&codes) || groups == 0 {
            return Err(Wrong::Damaged("a block without codes"));
        }
        self.groups.clear();
        let mut order = [0, 1, 2, 3, 4, 5];
        for group in 0..groups {
            let mut place = 0;
            while bits.take(1)? == 1 {
                place += 1;
                if place >= codes {
                    return Err(Wrong::Damaged("a group that chooses no code"));
                }
            }
            order[..=place].rotate_right(1);
            // More than any block needs are there to fill up.
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
                        return Err(Wrong::Damaged("a code of impossible length"));
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

    /// Gives the bytes of all blocks that are laid out to `sink`, in order, and has place again. Where `sink` says that it
    /// is full, the place of that block's first bit is returned, and those before it are whole.
    pub fn empty(&mut self, mut sink: impl FnMut(Out<'_>) -> bool) -> Result<Option<usize>> {
        let laid = std::mem::take(&mut self.laid);
        walk_all(&laid, &self.table, &mut self.letters);
        for block in &laid {
            let letters = &self.letters[block.range.clone()];
            let mut checksum = Checksum::default();
            let mut took = |bytes: &[u8]| {
                checksum.saw(bytes);
                sink(Out::Bytes(bytes))
            };
            if !expand(letters, &mut self.chunk, &mut took)? {
                return Ok(Some(block.at));
            }
            if checksum.value() != block.checksum {
                return Err(Wrong::Damaged("the checksum of a block differs"));
            }
            sink(Out::Whole);
        }
        Ok(None)
    }
}

/// Makes it at least so long, and takes no more memory than that.
fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.reserve_exact(len - values.len());
        values.resize(len, T::default());
    }
}

/// What comes out of a room.
pub enum Out<'a> {
    Bytes(&'a [u8]),
    /// The bytes since the last time were a block, and its checksum is right.
    Whole,
}

/// The letters that occur in a block, in order; how many.
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
    if used == 0 { Err(Wrong::Damaged("a block without letters")) } else { Ok(used) }
}

/// Symbols into letters, up to the end of the block; how many, and how many of each.
fn read_letters(
    bits: &mut Bits<'_>,
    codes: &[Code; 6],
    groups: &[u8],
    mut recent: Recent,
    used: usize,
    letters: &mut [u8],
) -> Result<(usize, [u32; 256])> {
    const TOO_MANY: Result<(usize, [u32; 256])> = Err(Wrong::Damaged("a block of too many letters"));
    let (end, mut count, mut counts) = (used as u16 + 1, 0, [0; 256]);
    // A run of the letter at the front, as digits 1 and 2 of rising weight.
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
    Err(Wrong::Damaged("a block that does not end"))
}

/// For each letter, the first row that begins with it.
fn first_rows(counts: &[u32; 256]) -> [u32; 256] {
    let mut sum = 0;
    counts.map(|count| {
        sum += count;
        sum - count
    })
}

/// The table of a block. Its letters are the last of the rows of the sorted matrix; word `r` is the first letter of row `r`, and
/// above it the row that begins with the letter behind that.
fn place(letters: &[u8], mut next: [u32; 256], table: &mut [u32]) {
    for (row, &letter) in letters.iter().enumerate() {
        let next = &mut next[usize::from(letter)];
        table[*next as usize] = (row as u32) << 8 | u32::from(letter);
        *next += 1;
    }
}

/// The table of a block by pairs: word `r` is the number of the two letters that row `r` begins with, and above it the row that
/// begins with the letter behind these. None where so many letters are in pairs without a number that it does not pay.
///
/// A row `k` is preceded by its last letter; the row that begins there by that one's last letter. Rows that begin with the same
/// two letters are in the order of what follows these, so whoever takes each `k` in order meets them in order.
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

/// How often each pair of these letters occurs: the last letter of each row, and its first.
fn count_pairs(letters: &[u8], names: &[u8], first_rows: &[u32; 256], slots: &mut [u32; PAIRS]) {
    for (place, &second) in names.iter().enumerate() {
        let start = first_rows[usize::from(second)] as usize;
        let end = names.get(place + 1).map_or(letters.len(), |&next| first_rows[usize::from(next)] as usize);
        // Two counts, so that equal letters side by side do not wait for each other.
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

/// Makes of counts the first rows, and above them the numbers of the most frequent pairs.
fn name_pairs(letters: usize, names: &[u8], slots: &mut [u32; PAIRS]) -> Option<Pairs> {
    let all = || {
        let pairs =
            |first: u8| names.iter().map(move |&second| usize::from(first) << 8 | usize::from(second));
        names.iter().copied().flat_map(pairs)
    };
    let mut counts: Vec<u32> = all().map(|pair| slots[pair]).filter(|&count| count > 0).collect();
    // Those that are more frequent have numbers, and so many of those that are as frequent.
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

/// A block on its way through its table.
struct Walk<'a> {
    table: &'a [u32],
    pairs: Option<&'a Pairs>,
    row: u32,
    out: &'a mut [u8],
}

/// How many blocks are walked in step.
const ABREAST: usize = 4;

/// Writes the text of each block over its letters.
fn walk_all(laid: &[Laid], table: &[u32], letters: &mut [u8]) {
    let (mut walks, mut rest) = (Vec::with_capacity(laid.len()), letters);
    for block in laid {
        let (out, behind) = std::mem::take(&mut rest).split_at_mut(block.range.len());
        rest = behind;
        let pairs = match &block.kind {
            Kind::Pairs(pairs) => Some(pairs),
            Kind::Letters => None,
        };
        walks.push(Walk { table: &table[block.range.clone()], pairs, row: block.start, out });
    }
    // Those of one kind and about a length together; the shortest of a few ends, and the others go on.
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
    /// That of an odd number, by pairs.
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

/// Gives what letters stand for to `sink`: behind four equal ones comes how many more there are. Whether `sink` took it all.
fn expand(letters: &[u8], chunk: &mut Vec<u8>, sink: &mut impl FnMut(&[u8]) -> bool) -> Result<bool> {
    let mut rest = letters;
    chunk.clear();
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(CHUNK_BYTES)];
        let mut plain = plain_letters(window);
        if plain == window.len() && plain < rest.len() {
            // The last three may begin a run.
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
                return Err(Wrong::Damaged("a run without a length"));
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

/// How many letters there are before the first four equal ones side by side.
fn plain_letters(letters: &[u8]) -> usize {
    const LOWEST: u64 = u64::from_le_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    let is_run = |four: &[u8]| four[0] == four[1] && four[1] == four[2] && four[2] == four[3];
    let mut at = 0;
    // Eight places at once: a byte becomes zero where it and the three behind it are equal.
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

/// The checksum of bzip2: that of gzip with the bits of each byte, and of the result, the other way round.
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

    /// The last letters of all rotations in order, and the row of the text itself.
    fn sorted(text: &[u8]) -> (Vec<u8>, u32) {
        let twice = text.repeat(2);
        let mut starts: Vec<usize> = (0..text.len()).collect();
        starts.sort_by_key(|&start| &twice[start..start + text.len()]);
        let last = |&start: &usize| twice[start + text.len() - 1];
        let row = starts.iter().position(|&start| start == 0).unwrap();
        (starts.iter().map(last).collect(), row as u32)
    }

    #[test]
    fn texts_come_back_by_pairs_with_and_without_numbers_and_by_letters() {
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
                    Kind::Pairs(pairs)
                }
                None => {
                    rare.push(None);
                    place(&last, rows, &mut words);
                    Kind::Letters
                }
            };
            let from = letters.len();
            laid.push(Laid { range: from..from + last.len(), start, checksum: 0, at: 0, kind });
            letters.extend(last);
            table.extend(words);
        }
        assert!(matches!(rare[..], [Some(0), Some(1..), None]), "{rare:?}");
        walk_all(&laid, &table, &mut letters);
        assert!(letters == texts.concat());
    }
}
