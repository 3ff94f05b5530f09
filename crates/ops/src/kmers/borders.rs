//! This module counts the k-mers that lie across the borders of shards.
//!
//! ```text
//!   shard    ...GATTACA | CATTAG... | AG>next...          k = 4
//!   ends            ACA   CAT   TAG   AG
//!   stretch       ACACAT        TAGAG                     each k-mer of these has letters of both sides
//! ```
//!
//! A stretch consists of the k - 1 letters before a border and the k - 1 letters after the border. Each k-mer of a
//! stretch has letters of both sides, so the nodes have not counted it. If a shard without a header has fewer than
//! k - 1 letters, its letters are appended to those of the previous shard.

use inshore_store::{Budget, Reservation};
use inshore_tables::{KmerCode, KmerOptions, PieceEnds, Result, kmer_codes};

/// The initial capacity of the list of codes.
const CODES_MIN: usize = 1 << 10;

/// Counts the k-mers across the borders of shards. The first and last letters of shards are added in the order of
/// the shards.
#[derive(Debug)]
pub(super) struct KmerBorders {
    k: u32,
    canonical: bool,
    /// The letters before the next shard, at most k - 1 letters.
    before: Vec<u8>,
    /// The codes of the k-mers; in descending order if `is_sorted` is true.
    codes: Vec<u128>,
    is_sorted: bool,
    kmers: u64,
    memory: Reservation,
}

impl KmerBorders {
    /// Creates a counter of k-mers. The codes take memory of `budget`: at most k codes of 16 bytes for each
    /// border.
    ///
    /// # Errors
    /// Returns [`inshore_tables::Error::Store`] if the budget has too little free memory.
    pub(super) fn new(options: &KmerOptions, budget: &Budget) -> Result<KmerBorders> {
        let &KmerOptions { k, canonical, .. } = options;
        let memory = budget.reserve(0, "k-mers across the borders of pieces")?;
        let (before, codes) = (Vec::new(), Vec::new());
        Ok(KmerBorders { k, canonical, before, codes, is_sorted: false, kmers: 0, memory })
    }

    /// Adds the first and last letters of the next shard. `follows` is true if this shard directly follows the
    /// previous one.
    ///
    /// # Errors
    /// Returns [`inshore_tables::Error::Store`] if the budget has too little free memory.
    pub(super) fn piece(&mut self, ends: &PieceEnds, follows: bool) -> Result<()> {
        if !follows {
            self.before.clear();
        }
        let most = self.k as usize - 1;
        let side = |text: &str| text.len().min(most);
        let (head, tail) = (
            &ends.head.as_bytes()[..side(&ends.head)],
            &ends.tail.as_bytes()[ends.tail.len() - side(&ends.tail)..],
        );
        let before = self.before.len();
        self.before.extend_from_slice(head);
        if before > 0 && !head.is_empty() {
            self.make_room()?;
            let KmerBorders { before, codes, k, canonical, kmers, .. } = self;
            kmer_codes(before, (*k, *canonical), |some| {
                codes.extend_from_slice(some);
                *kmers += some.len() as u64;
                Ok(())
            })?;
            self.is_sorted = false;
        }
        self.before.truncate(before);
        if ends.has_header {
            self.before.clear();
        }
        self.before.extend_from_slice(tail);
        self.before.drain(..self.before.len().saturating_sub(most));
        Ok(())
    }

    /// Reserves memory for the k-mers of one border.
    fn make_room(&mut self) -> Result<()> {
        let wanted = self.codes.len() + self.k as usize;
        let old = self.codes.capacity();
        if wanted > old {
            let new = wanted.max(2 * old).max(CODES_MIN);
            // While the codes are copied into a larger list, both lists exist.
            self.memory.resize(((old + new) * size_of::<u128>()) as u64)?;
            self.codes.reserve_exact(new - self.codes.len());
            self.memory.resize((self.codes.capacity() * size_of::<u128>()) as u64)?;
        }
        Ok(())
    }

    /// Returns the number of k-mers across all borders.
    pub(super) fn kmers(&self) -> u64 {
        self.kmers
    }

    /// Takes the k-mers whose codes are at most `last`, and appends each distinct code once, in ascending order,
    /// with its count. This must be called only after the letters of all shards were added.
    pub(super) fn up_to<C: KmerCode>(&mut self, last: u128, codes: &mut Vec<C>, counts: &mut Vec<u32>) {
        if !self.is_sorted {
            self.codes.sort_unstable_by(|code, other| other.cmp(code));
            self.is_sorted = true;
        }
        while let Some(code) = self.codes.pop_if(|next| *next <= last) {
            let code = C::of_wide(code).expect("as many bases as were asked for");
            match codes.last().filter(|&&last| last == code).and(counts.last_mut()) {
                Some(count) => *count = count.saturating_add(1),
                None => {
                    codes.push(code);
                    counts.push(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
