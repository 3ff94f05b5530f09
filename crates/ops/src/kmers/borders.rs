//! K-mers across the borders of pieces.
//!
//! ```text
//!   piece    ...GATTACA | CATTAG... | AG>next...          k = 4
//!   ends            ACA   CAT   TAG   AG
//!   stretch       ACACAT        TAGAG                     each k-mer of these has letters of both sides
//! ```
//!
//! A stretch of the k - 1 letters before a border and the k - 1 letters after it has no k-mer on one side alone, so
//! that no k-mer is counted twice. The letters of a shorter piece without a header are appended to those of the piece
//! before.

use inshore_store::{Budget, Reservation};
use inshore_tables::{KmerCode, KmerOptions, PieceEnds, Result, kmer_codes};

/// The initial capacity in codes.
const CODES_MIN: usize = 1 << 10;

/// Counts the k-mers across the borders of pieces, whose ends are added in order.
#[derive(Debug)]
pub(super) struct KmerBorders {
    k: u32,
    canonical: bool,
    /// The letters before the next piece: k - 1 at most.
    before: Vec<u8>,
    /// The codes, in descending order once they are sorted.
    codes: Vec<u128>,
    is_sorted: bool,
    kmers: u64,
    memory: Reservation,
}

impl KmerBorders {
    /// Creates a counter of k-mers of this length. Their codes take memory of `budget`: k codes for each border, 16
    /// bytes each.
    ///
    /// # Errors
    /// [`inshore_tables::Error::Store`] where too little is free.
    pub(super) fn new(options: &KmerOptions, budget: &Budget) -> Result<KmerBorders> {
        let &KmerOptions { k, canonical, .. } = options;
        let memory = budget.reserve(0, "k-mers across the borders of pieces")?;
        let (before, codes) = (Vec::new(), Vec::new());
        Ok(KmerBorders { k, canonical, before, codes, is_sorted: false, kmers: 0, memory })
    }

    /// Adds the ends of the next piece. `follows` is true if this piece directly follows the previous piece.
    ///
    /// # Errors
    /// [`inshore_tables::Error::Store`] where too little memory is free.
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

    /// Makes room for the k-mers of a border.
    fn make_room(&mut self) -> Result<()> {
        let wanted = self.codes.len() + self.k as usize;
        let old = self.codes.capacity();
        if wanted > old {
            let new = wanted.max(2 * old).max(CODES_MIN);
            // During the copy both lists exist.
            self.memory.resize(((old + new) * size_of::<u128>()) as u64)?;
            self.codes.reserve_exact(new - self.codes.len());
            self.memory.resize((self.codes.capacity() * size_of::<u128>()) as u64)?;
        }
        Ok(())
    }

    /// Returns the number of k-mers.
    pub(super) fn kmers(&self) -> u64 {
        self.kmers
    }

    /// Takes those whose codes are not beyond `last`, in the order of codes, each once, and how often it occurs. To be called when
    /// all pieces are told of.
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
