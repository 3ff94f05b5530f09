//! Sets of vertices, which take a bit for each vertex, and the numbers of their members.

use std::sync::atomic::{AtomicU64, Ordering};

use inshore_store::{Buffer, Job, taken_bytes};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Result, engine::VertexArray};

/// The table of member counts has one entry for this number of 64-bit words of the set.
const COUNTED_WORDS: usize = 8;

fn words(vertices: u64) -> u64 {
    vertices.div_ceil(64)
}

/// A set of vertices in memory.
pub(super) struct VertexSet(VertexArray<u64>);

impl VertexSet {
    pub fn new(job: &Job, vertices: u64) -> Result<VertexSet> {
        Ok(VertexSet(VertexArray::new(job, words(vertices), true, |_| 0)?))
    }

    /// Returns the memory of a set in bytes.
    pub fn bytes(vertices: u64) -> u64 {
        taken_bytes(words(vertices) as usize * 8) as u64
    }

    /// Returns the number of 64-bit words, and the words as an array that a checkpoint can save.
    pub fn states(&mut self) -> (u64, &mut VertexArray<u64>) {
        (self.words().len() as u64, &mut self.0)
    }

    pub fn words(&self) -> &[u64] {
        match &self.0 {
            VertexArray::Memory(buffer, _) => buffer.typed::<u64>(),
            VertexArray::Flash(_) => unreachable!("made in memory"),
        }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        self.0.in_memory().expect("made in memory")
    }

    /// Shares the set among threads.
    pub fn share(&mut self) -> SharedSet<'_> {
        let words = self.words_mut().as_mut_bytes();
        SharedSet(<[AtomicU64]>::mut_from_bytes(words).expect("a cell is as large as its word"))
    }

    #[inline(always)]
    pub fn has(&self, vertex: u32) -> bool {
        self.words()[vertex as usize / 64] >> (vertex % 64) & 1 == 1
    }

    /// Iterates over all members, in order.
    pub fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().iter().enumerate().flat_map(|(place, &word)| {
            let left = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            let bits = left.take_while(|word| *word != 0).map(u64::trailing_zeros);
            bits.map(move |bit| (place * 64) as u32 + bit)
        })
    }

    /// Returns the smallest member.
    pub fn first(&self) -> Option<u32> {
        let (place, word) = self.words().iter().enumerate().find(|(_, word)| **word != 0)?;
        Some((place * 64) as u32 + word.trailing_zeros())
    }
}

/// A set to which several threads add vertices concurrently. A reader may miss members that another thread has just
/// added.
#[derive(Clone, Copy)]
pub(super) struct SharedSet<'a>(&'a [AtomicU64]);

impl SharedSet<'_> {
    #[inline(always)]
    pub fn has(&self, vertex: u32) -> bool {
        self.0[vertex as usize / 64].load(Ordering::Relaxed) >> (vertex % 64) & 1 == 1
    }

    #[inline(always)]
    pub fn add(&self, vertex: u32) {
        let (word, bit) = (&self.0[vertex as usize / 64], 1 << (vertex % 64));
        // Most vertices are members already, so the bit is tested first. Unlike a write, a load leaves the cache lines
        // of other threads valid.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Adds a vertex and all vertices of its row if the set has at least one of these vertices. Returns true if the
    /// vertices were added.
    #[inline]
    pub fn absorb(&self, vertex: u32, row: &[u32]) -> bool {
        if !self.has(vertex) {
            if !row.iter().any(|&to| self.has(to)) {
                return false;
            }
            self.add(vertex);
        }
        row.iter().for_each(|&to| self.add(to));
        true
    }
}

/// Maps the members of a set to the numbers 0, 1, 2, ... in ascending order. Without a set, each vertex keeps its own
/// number.
pub(super) enum MemberNumbers {
    All(u64),
    Of { set: VertexSet, before: Buffer, count: u64 },
}

impl MemberNumbers {
    /// Returns the memory in bytes that the numbers take in addition to the set.
    pub fn bytes(vertices: u64) -> u64 {
        taken_bytes(words(vertices).div_ceil(COUNTED_WORDS as u64) as usize * 4) as u64
    }

    pub fn of(job: &Job, set: VertexSet) -> Result<MemberNumbers> {
        let blocks = set.words().len().div_ceil(COUNTED_WORDS);
        let mut before = Buffer::zeroed(job.budget(), blocks * 4, "numbers of vertices")?;
        let mut count = 0;
        for (before, words) in before.typed_mut::<u32>().iter_mut().zip(set.words().chunks(COUNTED_WORDS)) {
            *before = count as u32;
            count += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
        Ok(MemberNumbers::Of { set, before, count })
    }

    pub fn count(&self) -> u64 {
        match self {
            MemberNumbers::All(count) | MemberNumbers::Of { count, .. } => *count,
        }
    }

    pub fn has(&self, vertex: u32) -> bool {
        match self {
            MemberNumbers::All(_) => true,
            MemberNumbers::Of { set, .. } => set.has(vertex),
        }
    }

    /// Returns the number of a member. Returns `None` if the vertex is not a member.
    #[inline]
    pub fn get(&self, vertex: u32) -> Option<u32> {
        let MemberNumbers::Of { set, before, .. } = self else { return Some(vertex) };
        let (words, word) = (set.words(), vertex as usize / 64);
        let bit = 1u64 << (vertex % 64);
        if words[word] & bit == 0 {
            return None;
        }
        let block = word / COUNTED_WORDS;
        let whole = words[block * COUNTED_WORDS..word].iter().map(|word| word.count_ones()).sum::<u32>();
        Some(before.typed::<u32>()[block] + whole + (words[word] & (bit - 1)).count_ones())
    }

    /// Iterates over all members, in order.
    pub fn members(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            MemberNumbers::All(count) => Box::new((0..*count).map(|vertex| vertex as u32)),
            MemberNumbers::Of { set, .. } => Box::new(set.members()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_job;

    #[test]
    fn members_are_numbered_in_their_order() {
        let (_folder, job) = test_job(8 << 20);
        let mut set = VertexSet::new(&job, 5000).unwrap();
        let expected: Vec<u32> = (0..5000).filter(|n| n * n % 97 < 11 || (600..1900).contains(n)).collect();
        expected.iter().for_each(|&vertex| set.share().add(vertex));
        assert_eq!(set.first(), Some(0));
        let numbers = MemberNumbers::of(&job, set).unwrap();
        assert_eq!(numbers.count(), expected.len() as u64);
        assert!(numbers.members().eq(expected.iter().copied()));
        for vertex in 0..5000 {
            assert_eq!(numbers.get(vertex), expected.binary_search(&vertex).ok().map(|place| place as u32));
            assert_eq!(numbers.has(vertex), numbers.get(vertex).is_some());
        }
        assert!(MemberNumbers::All(3).members().eq(0..3));
    }
}
