//! Reserves memory from the budget for decoders. Decoders are libraries that allocate their memory themselves.
//!
//! A process may use 64 MiB of memory in addition to its budget. These 64 MiB cover the memory of the Parquet and zstd
//! libraries while their state is small. Some files make the state large (a zstd window of 128 MiB, Parquet pages of
//! 100 MiB). The memory of such a state beyond [`UNCOUNTED_BYTES`] is reserved from the budget before the allocation.
//! If the budget has too little free memory, the file is refused.

use inshore_store::{Budget, Reservation};

use crate::Result;

/// The memory, in bytes, that the decoder of one input may use without a reservation. This memory suffices for six
/// Parquet columns with pages and dictionaries of the usual 1 MiB, or for the window of `zstd -19`. The decoders of a
/// few open inputs together stay below 64 MiB.
pub(crate) const UNCOUNTED_BYTES: u64 = 8 << 20;

/// The name by which error messages of the budget call the memory of a Parquet reader.
pub(crate) const PAGES: &str = "reading Parquet";

/// The budget divided by this number is the size limit of an indivisible piece of a file, such as a page or a line.
pub(crate) const PIECE_SHARE: u64 = 4;

/// Returns the size limit, in bytes, of an indivisible piece of a file, such as a page or a line.
pub(crate) fn piece_limit(budget: &Budget) -> u64 {
    budget.memory_bytes() / PIECE_SHARE
}

/// The memory of one decoder. All bytes above [`UNCOUNTED_BYTES`] are reserved from the budget.
#[derive(Debug)]
pub(crate) struct Allowance(Reservation);

impl Allowance {
    pub fn new(budget: &Budget, what: &'static str) -> Result<Self> {
        Ok(Allowance(budget.reserve(0, what)?))
    }

    /// Returns the number of bytes that are reserved from the budget.
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
