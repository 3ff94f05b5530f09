//! This module counts words in a table with a fixed amount of memory.
//!
//! ```text
//!   front   [ word of up to 15 bytes with its length | count ] ...       two places for each hash, in a core's cache
//!   slots   [ hash u32 | place of the entry u32 ] ...                    linear probing, at most 3/5 full
//!   arena   [ hash u64 | count u64 | length u32 | word | up to 8 ] ...   entries in the order of their first occurrence
//! ```
//!
//! The front is a small table that consists of pairs. A pair has two words, of which the first is more frequent. A new
//! word replaces the second word of its pair. Evicted words are inserted into the table in batches. The slots and
//! entries of all words of a batch are loaded before the first word is inserted, so that cache misses overlap.

use std::hint::black_box;

use inshore_store::{Budget, Buffer, Result, taken_bytes};

/// The number of pairs in the front. A pair has 64 bytes, so the front has 2 MiB. The front lies on one huge page, and
/// most of it is in a core's cache.
const PAIRS: usize = 32 << 10;
/// The largest number of evicted words that wait to be inserted into the table.
const WAITING: usize = 32;
/// The size of the front in bytes.
pub(super) const FRONT_BYTES: u64 = (PAIRS * size_of::<Pair>()) as u64;
const HEADER_BYTES: usize = 20;
const SLOTS_MIN: usize = 1 << 12;

#[derive(Clone, Copy, Default)]
struct ShortWord {
    /// The bytes of the word. The highest byte of the number is the length of the word.
    word: u128,
    count: u64,
}

/// Two words of the front. Each word has four numbers: the two halves of its `u128`, its count, and an unused number.
type Pair = [u64; 8];

/// Words and their counts.
pub(super) struct Table {
    front: Buffer,
    waiting: Vec<ShortWord>,
    slots: Buffer,
    slots_max: usize,
    budget: Budget,
    entries: usize,
    arena: Buffer,
    used: usize,
}

impl Table {
    /// Makes a table that takes `bytes` bytes of the budget.
    pub fn new(budget: &Budget, bytes: usize) -> Result<Table> {
        // The sizes of the arena and of the slots are computed for words of 8 bytes. Such a word takes 36 bytes of the
        // arena, including its header of 28 bytes, and 8 / 0.6 bytes of slots.
        let rest = bytes.saturating_sub(FRONT_BYTES as usize).max(1 << 18);
        let slots_max = ((rest / 4 / 8).next_power_of_two() / 2).max(SLOTS_MIN);
        // While the number of slots is doubled, the old and the new slots are both in memory.
        let slots_bytes = taken_bytes(slots_max * 8) * 3 / 2;
        let arena_bytes = rest.saturating_sub(slots_bytes).max(1 << 16) / 4096 * 4096;
        Ok(Table {
            front: Buffer::zeroed(budget, FRONT_BYTES as usize, "a table of words")?,
            waiting: Vec::with_capacity(WAITING),
            slots: Buffer::zeroed(budget, SLOTS_MIN * 8, "a table of words")?,
            slots_max,
            budget: budget.clone(),
            entries: 0,
            arena: Buffer::zeroed(budget, arena_bytes, "a table of words")?,
            used: 8,
        })
    }

    /// Adds 1 to the count of the word from `start` to `end` of `text`. Returns `false` if the table is too full for
    /// the word.
    #[inline]
    pub fn add(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        if end - start > 15 {
            let word = &text[start..end];
            return self.insert(word, hash_long(word), 1);
        }
        let word = pack(text, start, end);
        let (low, high) = (word as u64, (word >> 64) as u64);
        let place = hash_short(word) as usize % PAIRS;
        let pair = &mut self.front.typed_mut::<Pair>()[place];
        let [first_low, first_high, first_count, _, second_low, second_high, second_count, _] = pair;
        if (*first_low, *first_high) == (low, high) {
            *first_count += 1;
            return true;
        }
        if (*second_low, *second_high) == (low, high) {
            *second_count += 1;
            // The more frequent word of a pair comes first.
            if *second_count > *first_count {
                std::mem::swap(first_low, second_low);
                std::mem::swap(first_high, second_high);
                std::mem::swap(first_count, second_count);
            }
            return true;
        }
        let before = ShortWord {
            word: u128::from(*second_high) << 64 | u128::from(*second_low),
            count: *second_count,
        };
        (*second_low, *second_high, *second_count) = (low, high, 1);
        before.count == 0 || self.wait(before, place)
    }

    /// Queues an evicted word. If the queue is full and cannot be emptied, puts the word back into the front and
    /// returns `false`.
    fn wait(&mut self, short: ShortWord, place: usize) -> bool {
        if self.waiting.len() == WAITING && !self.insert_waiting() {
            let pair = &mut self.front.typed_mut::<Pair>()[place];
            (pair[4], pair[5], pair[6]) = (short.word as u64, (short.word >> 64) as u64, short.count);
            return false;
        }
        self.waiting.push(short);
        true
    }

    /// Inserts the waiting words into the table. Returns `false` if the table is too full for all of them.
    #[inline(never)]
    fn insert_waiting(&mut self) -> bool {
        let mask = self.slots.len() / 8 - 1;
        let mut found = [(0u64, 0usize); WAITING];
        let slots: &[u64] = self.slots.typed();
        for (short, found) in self.waiting.iter().zip(&mut found) {
            let hash = hash_short(short.word);
            *found = (hash, slots[hash as usize & mask] as u32 as usize * 8);
        }
        // Combining bytes of all entries loads these entries into the cache at the same time.
        black_box(found.iter().fold(0, |sum, &(_, place)| sum ^ self.arena[place]));
        while let Some(&short) = self.waiting.last() {
            let bytes = short.word.to_le_bytes();
            let (hash, _) = found[self.waiting.len() - 1];
            if !self.insert(&bytes[..bytes[15] as usize], hash, short.count) {
                return false;
            }
            self.waiting.pop();
        }
        true
    }

    /// Adds `count` to the count of a word in the table.
    fn insert(&mut self, word: &[u8], hash: u64, count: u64) -> bool {
        let tag = (hash >> 32) << 32;
        let slots: &mut [u64] = self.slots.typed_mut();
        let mask = slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let found = slots[slot];
            if found == 0 {
                break;
            }
            if found & !0xffff_ffff == tag {
                let place = found as u32 as usize * 8;
                let entry = &mut self.arena[place..];
                let len = u32::from_le_bytes(entry[16..20].try_into().expect("4 bytes")) as usize;
                if &entry[HEADER_BYTES..HEADER_BYTES + len] == word {
                    let sum = u64::from_le_bytes(entry[8..16].try_into().expect("8 bytes")) + count;
                    entry[8..16].copy_from_slice(&sum.to_le_bytes());
                    return true;
                }
            }
            slot = (slot + 1) & mask;
        }
        let taken = (HEADER_BYTES + word.len()).next_multiple_of(8);
        if self.used + taken > self.arena.len() || self.entries >= self.slots_max * 3 / 5 {
            return false;
        }
        let entry = &mut self.arena[self.used..self.used + HEADER_BYTES + word.len()];
        entry[..8].copy_from_slice(&hash.to_le_bytes());
        entry[8..16].copy_from_slice(&count.to_le_bytes());
        entry[16..20].copy_from_slice(&(word.len() as u32).to_le_bytes());
        entry[HEADER_BYTES..].copy_from_slice(word);
        slots[slot] = tag | (self.used / 8) as u64;
        self.used += taken;
        self.entries += 1;
        if self.entries > (mask + 1) * 3 / 5 && mask + 1 < self.slots_max {
            self.grow();
        }
        true
    }

    /// Doubles the number of slots if the budget has enough free memory. Otherwise the number of slots stays the same,
    /// and the table becomes full earlier.
    fn grow(&mut self) {
        let count = self.slots.len() / 8;
        let Ok(mut larger) = Buffer::zeroed(&self.budget, count * 16, "a table of words") else {
            self.slots_max = count;
            return;
        };
        let slots: &mut [u64] = larger.typed_mut();
        let mask = slots.len() - 1;
        self.for_each_entry(|place, hash, _, _| {
            let mut slot = hash as usize & mask;
            while slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = (hash >> 32) << 32 | (place / 8) as u64;
        });
        self.slots = larger;
    }

    fn for_each_entry(&self, mut each: impl FnMut(usize, u64, u64, &[u8])) {
        let mut place = 8;
        while place < self.used {
            let entry = &self.arena[place..];
            let hash = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
            let count = u64::from_le_bytes(entry[8..16].try_into().expect("8 bytes"));
            let len = u32::from_le_bytes(entry[16..20].try_into().expect("4 bytes")) as usize;
            each(place, hash, count, &entry[HEADER_BYTES..HEADER_BYTES + len]);
            place += (HEADER_BYTES + len).next_multiple_of(8);
        }
    }

    /// Passes all words and counts to `each`, and clears the table. A word may be passed several times.
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub fn empty<E>(
        &mut self,
        mut each: impl FnMut(&[u8], u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for pair in self.front.typed::<Pair>() {
            for half in [&pair[..4], &pair[4..]] {
                self.waiting.push(ShortWord {
                    word: u128::from(half[1]) << 64 | u128::from(half[0]),
                    count: half[2],
                });
            }
            for short in self.waiting.drain(..).filter(|short| short.count > 0) {
                let bytes = short.word.to_le_bytes();
                each(&bytes[..bytes[15] as usize], short.count)?;
            }
        }
        self.front.fill(0);
        let mut result = Ok(());
        self.for_each_entry(|_, _, count, word| {
            if result.is_ok() {
                result = each(word, count);
            }
        });
        self.slots.fill(0);
        (self.entries, self.used) = (0, 8);
        result
    }
}

/// Packs a word of up to 15 bytes into a number.
#[inline]
fn pack(text: &[u8], start: usize, end: usize) -> u128 {
    let len = end - start;
    let bytes = match text.get(start..start + 16) {
        Some(bytes) => u128::from_le_bytes(bytes.try_into().expect("16 bytes")) & ((1 << (8 * len)) - 1),
        None => {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&text[start..end]);
            u128::from_le_bytes(bytes)
        }
    };
    bytes | (len as u128) << 120
}

const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// Multiplies `a` and `b` and combines both halves of the product, so that each bit of the word affects each bit of the
/// hash.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn hash_short(word: u128) -> u64 {
    fold(word as u64 ^ A, (word >> 64) as u64 ^ B)
}

fn hash_long(word: &[u8]) -> u64 {
    let (whole, rest) = word.as_chunks::<16>();
    let mut hash = word.len() as u64;
    for chunk in whole {
        hash = fold(hash ^ A, hash_short(u128::from_le_bytes(*chunk)));
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    fold(hash ^ A, hash_short(u128::from_le_bytes(last)))
}
