//! Reserves memory for decoders whose memory callers cannot count.
//!
//! The state of the Parquet and zstd libraries is covered by the fixed 64 MiB beyond the budget, as long as the state
//! is small. Some files make the state large (a zstd window of 128 MiB, Parquet pages of 100 MiB). The rest of such a
//! state is reserved from the budget before the allocation. If the budget has too little free memory, the file is
//! refused.

use inshore_store::{Budget, Reservation};

use crate::Result;

/// The bytes of one input's decoder state that are not reserved from the budget. These bytes suffice for six Parquet
/// columns with pages and dictionaries of the usual 1 MiB, or for the window of `zstd -19`. A few inputs that are open
/// at once stay below 64 MiB.
pub(crate) const UNCOUNTED_BYTES: u64 = 8 << 20;

/// The purpose of a Parquet reader's memory, for messages of the budget.
pub(crate) const PAGES: &str = "reading Parquet";

/// The divisor that gives the share of the budget for an indivisible piece of a file: a quarter.
pub(crate) const PIECE_SHARE: u64 = 4;

/// Returns the largest indivisible piece of a file that is accepted, in bytes.
pub(crate) fn piece_limit(budget: &Budget) -> u64 {
    budget.memory_bytes() / PIECE_SHARE
}

/// The memory of one decoder; all bytes above [`UNCOUNTED_BYTES`] are reserved.
#[derive(Debug)]
pub(crate) struct Allowance(Reservation);

impl Allowance {
    pub fn new(budget: &Budget, what: &'static str) -> Result<Self> {
        Ok(Allowance(budget.reserve(0, what)?))
    }

    /// Returns the bytes that are reserved now.
    pub fn reserved_bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Reserves memory for a decoder whose total memory will be `bytes`.
    pub fn hold(&mut self, bytes: u64) -> Result<()> {
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES);
        if counted != self.0.bytes() {
            self.0.resize(counted)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_decoder_states_are_taken_from_the_budget() {
        let budget = Budget::new(10 << 20, 1);
        let mut held = Allowance::new(&budget, "pages").unwrap();
        held.hold(UNCOUNTED_BYTES).unwrap();
        assert_eq!(budget.reserved_bytes(), 0);
        held.hold(UNCOUNTED_BYTES + 5).unwrap();
        assert_eq!(budget.reserved_bytes(), 5);
        assert!(held.hold(100 << 20).is_err());
        held.hold(0).unwrap();
        assert_eq!(budget.reserved_bytes(), 0);
    }
}
