//! This kernel counts words (the pieces between white space), and returns each word with its count, in the order of
//! bytes.

use core::fmt::Write;

use inshore_sdk::{Kernel, Output, State};

/// Is a hash table with open addressing. The words lie in `bytes`, one after the other.
pub struct Words {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    used: usize,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    count: u64,
    at: u32,
    length: u32,
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash(word: &[u8]) -> u64 {
    let mut hash = word.len() as u64;
    let mut eights = word.chunks_exact(8);
    for eight in &mut eights {
        let number = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        hash = (hash.rotate_left(5) ^ number).wrapping_mul(FACTOR);
    }
    for byte in eights.remainder() {
        hash = (hash.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(FACTOR);
    }
    hash ^ (hash >> 32)
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || (9..=13).contains(&byte)
}

impl Words {
    fn add(&mut self, word: &[u8], count: u64) -> Result<(), i32> {
        if self.used * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let (hash, mask) = (hash(word), self.slots.len() - 1);
        let mut place = hash as usize & mask;
        loop {
            let slot = &mut self.slots[place];
            if slot.count == 0 {
                let at = u32::try_from(self.bytes.len()).map_err(|_| -12)?;
                *slot = Slot { hash, count, at, length: word.len() as u32 };
                self.bytes.extend_from_slice(word);
                self.used += 1;
                return Ok(());
            }
            let is_same = slot.hash == hash && slot.length as usize == word.len();
            if is_same && self.bytes[slot.at as usize..][..word.len()] == *word {
                slot.count += count;
                return Ok(());
            }
            place = (place + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let length = (self.slots.len() * 2).max(1 << 12);
        let old = core::mem::replace(&mut self.slots, vec![Slot::default(); length]);
        for slot in old.into_iter().filter(|slot| slot.count > 0) {
            let mut place = slot.hash as usize & (length - 1);
            while self.slots[place].count > 0 {
                place = (place + 1) & (length - 1);
            }
            self.slots[place] = slot;
        }
    }

    fn word(&self, slot: &Slot) -> &[u8] {
        &self.bytes[slot.at as usize..][..slot.length as usize]
    }
}

impl Kernel for Words {
    fn new(_arguments: &[u8]) -> Result<Self, i32> {
        Ok(Words { bytes: Vec::new(), slots: Vec::new(), used: 0 })
    }

    fn block(&mut self, block: &[u8], _offset: u64, _out: &mut Output) -> Result<(), i32> {
        let mut at = 0;
        while at < block.len() {
            if is_space(block[at]) {
                at += 1;
                continue;
            }
            let start = at;
            while at < block.len() && !is_space(block[at]) {
                at += 1;
            }
            self.add(&block[start..at], 1)?;
        }
        Ok(())
    }
}

impl State for Words {
    /// Writes for each word the count and the length, as 8 and 4 bytes, and the word.
    fn save(&mut self, out: &mut Output) {
        for slot in self.slots.iter().filter(|slot| slot.count > 0) {
            out.write(&slot.count.to_le_bytes());
            out.write(&slot.length.to_le_bytes());
            out.write(self.word(slot));
        }
    }

    fn merge(&mut self, saved: &[u8]) -> Result<(), i32> {
        let mut rest = saved;
        while !rest.is_empty() {
            let head = rest.get(..12).ok_or(-1)?;
            let count = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
            let length = u32::from_le_bytes(head[8..].try_into().expect("four bytes")) as usize;
            let word = rest[12..].get(..length).ok_or(-1)?;
            self.add(word, count)?;
            rest = &rest[12 + length..];
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) {
        let mut all: Vec<Slot> = self.slots.iter().copied().filter(|slot| slot.count > 0).collect();
        all.sort_unstable_by(|a, b| self.word(a).cmp(self.word(b)));
        for slot in all {
            out.write(self.word(&slot));
            writeln!(out, "\t{}", slot.count).expect("an output takes everything");
        }
    }
}

inshore_sdk::kernel!(Words, state);
