//! This module decompresses blocks of bzip2. One thread decodes several blocks in lockstep.
//!
//! ```text
//! bits ──Huffman, move to front──► letters ──count, place──► table ──walk──► letters ──runs, checksum──► bytes
//! ```
//!
//! A letter is a byte of a block. A block has up to 900,000 letters. The table of a block has a word of 32 bits for
//! each letter. The word contains the letter and the index of the next word. The walk follows the words in the order of
//! the text, at positions scattered over 3.6 MB. Each index is known only after the previous word was loaded, usually
//! from memory beyond the second-level cache. A decoder that walks one block at a time, as the bzip2 libraries in Rust
//! and in C do, spends most of its time on these waits. This module lays out all blocks of a [`Workspace`] first and
//! then walks them in lockstep, so that their waits overlap. Texts have few distinct pairs of letters. In the table of
//! a block of text, each word therefore represents two letters. This halves the number of waits. A word for two letters
//! has 20 bits for the row, and 12 bits for the number of the pair. 4,095 pairs have a number of their own, and rarer
//! pairs are looked up in a list.
//!
//! The following rates are the best of twelve runs on 300 MB of English text, with one letter in a word. Other work
//! shared the core. The library decompressed 33 MB/s. This module decompressed 43 MB/s with one block at a time, 42 to
//! 43 with two, 51 with three, 46 to 50 with four, and 45 to 47 with eight. For each number of blocks, the walk took
//! three quarters of the time. Huffman decoding and the move-to-front transform took an eighth.
//!
//! Pairs of letters were measured on 96 MB of source code with four blocks, on a machine whose cache was shared. They
//! took 1.4 to 1.6 s of one core, and single letters took 1.8 to 2.3 s. Laying out blocks takes 0.48 s of this time
//! with pairs, and 0.36 s with single letters.
//!
//! Burrows and Wheeler describe the method in "A block-sorting lossless data compression algorithm", 1994. The format
//! has no standard. This module follows the source of the bzip2 library, but refuses ambiguous Huffman codes. No
//! program writes such codes.

mod bits;
mod crc;
mod header;
mod huffman;
mod inverse_bwt;
mod move_to_front;
mod run_length;
mod symbols;

pub use self::{
    bits::Bits,
    header::{BLOCK_MAGIC, StreamMarker, next_mark},
};
use self::{
    crc::Checksum,
    header::{GROUPS_MAX, read_alphabet, read_codes},
    huffman::Code,
    inverse_bwt::{LaidOutBlock, PAIRS, PAIRS_BYTES, TableKind, first_rows, place, place_pairs, walk_all},
    move_to_front::MoveToFront,
    run_length::expand,
    symbols::read_letters,
};

/// The number of letters in the largest block.
pub const BLOCK_LETTERS_MAX: usize = 900_000;
/// The memory for each letter of a block, in bytes. It consists of the letter itself and of the letter's word in the
/// table.
const BYTES_A_LETTER: usize = 1 + 4;
/// The number of bytes per checksum update and write.
const CHUNK_BYTES: usize = 64 << 10;

/// Tells why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The bits end before the end of the block.
    Short,
    /// The bits are not a valid block.
    Damaged(&'static str),
}

type Result<T> = std::result::Result<T, BlockError>;

/// Reports a block's size and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub letters: usize,
    pub checksum: u32,
}

/// Holds the memory for blocks that are walked in lockstep.
pub struct Workspace {
    blocks: usize,
    letters: Vec<u8>,
    table: Vec<u32>,
    laid: Vec<LaidOutBlock>,
    codes: [Code; 6],
    /// Holds the index of the code for each group of symbols.
    selectors: Vec<u8>,
    chunk: Vec<u8>,
    /// One word for each pair of letters. The word first holds the count of the pair. Later it holds the next row and
    /// the number of the pair. The first letter of a pair is the high byte of the index into this list.
    slots: Vec<u32>,
}

impl Workspace {
    /// Returns the memory, in bytes, of a workspace that can hold `blocks` blocks of the largest size.
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
            selectors: Vec::with_capacity(GROUPS_MAX),
            chunk: Vec::with_capacity(2 * CHUNK_BYTES),
            slots: vec![0; PAIRS],
        }
    }

    /// Drops all blocks that wait in the workspace to be decoded.
    pub fn clear(&mut self) {
        self.laid.clear();
    }

    fn filled(&self) -> usize {
        self.laid.last().map_or(0, |laid| laid.range.end)
    }

    /// Returns true if one more block of the largest size fits in the workspace.
    pub fn has_place(&self) -> bool {
        self.filled() + BLOCK_LETTERS_MAX <= self.blocks * BLOCK_LETTERS_MAX
    }

    /// Reads a block after its 48-bit marker, and fills the block's table. `at` is the offset of the marker, in bits.
    /// The workspace must have space for the block.
    pub fn lay_out(&mut self, bits: &mut Bits<'_>, at: usize) -> Result<Block> {
        let before = self.laid.len();
        let found = self.read_block(bits, at);
        // Bits after the end of the input are invalid, even if they look like a block.
        bits.checked(()).inspect_err(|_| self.laid.truncate(before)).and(found)
    }

    fn read_block(&mut self, bits: &mut Bits<'_>, at: usize) -> Result<Block> {
        assert!(self.has_place(), "a full workspace is emptied first");
        let from = self.filled();
        let checksum = bits.take(32)? as u32;
        let is_mixed = bits.take(1)? == 1;
        let start = bits.take(24)? as u32;
        let mut alphabet = [0; 256];
        let used = read_alphabet(bits, &mut alphabet)?;
        read_codes(bits, used + 2, &mut self.codes, &mut self.selectors)?;
        grow(&mut self.letters, from + BLOCK_LETTERS_MAX);
        let letters = &mut self.letters[from..from + BLOCK_LETTERS_MAX];
        let alphabet = &alphabet[..used];
        let (count, counts) =
            read_letters(bits, &self.codes, &self.selectors, MoveToFront::new(alphabet), used, letters)?;
        if start as usize >= count {
            return Err(BlockError::Damaged("the start index of a block is out of range"));
        }
        // Only programs of 1998 and earlier wrote randomised blocks.
        if is_mixed {
            return Err(BlockError::Damaged(
                "a block is randomised, as by bzip2 0.9.0, which is not supported: decompress the file with bzip2",
            ));
        }
        // The table is only as large as the block requires, so that a small file takes little memory.
        grow(&mut self.table, from + count.next_power_of_two().min(BLOCK_LETTERS_MAX));
        let (letters, table) = (&letters[..count], &mut self.table[from..from + count]);
        let rows = first_rows(&counts);
        let kind = match place_pairs(letters, alphabet, rows, table, &mut self.slots) {
            Some(pairs) => TableKind::Pairs(pairs),
            None => {
                place(letters, rows, table);
                TableKind::Letters
            }
        };
        self.laid.push(LaidOutBlock { range: from..from + count, start, checksum, at, kind });
        Ok(Block { letters: count, checksum })
    }

    /// Decodes all blocks in the workspace, passes their bytes to `sink` in order, and clears the workspace. If `sink`
    /// returns false within a block, the function returns the offset of that block's first bit. `sink` has then
    /// received all earlier blocks completely.
    pub fn empty(&mut self, mut sink: impl FnMut(Output<'_>) -> bool) -> Result<Option<usize>> {
        let laid = std::mem::take(&mut self.laid);
        walk_all(&laid, &self.table, &mut self.letters);
        for block in &laid {
            let letters = &self.letters[block.range.clone()];
            let mut checksum = Checksum::default();
            let mut took = |bytes: &[u8]| {
                checksum.update(bytes);
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

/// Grows a vector to at least `len` elements. The vector allocates no memory beyond `len` elements.
fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.reserve_exact(len - values.len());
        values.resize(len, T::default());
    }
}

/// A part of the output of a workspace.
pub enum Output<'a> {
    Bytes(&'a [u8]),
    /// The end of a block. The bytes since the previous `Whole` are a complete block with a correct checksum.
    Whole,
}
