//! Arrays of a partition, within the memory of a slot.

use inshore_kernel::Failure;
use inshore_store::{Job, Reservation, format_bytes};

/// Reserves memory for `what` of a partition.
///
/// # Errors
/// Returns an error that names the memory of the nodes, if the slot has too little.
pub(super) fn reserve(
    job: &Job,
    partition: u32,
    bytes: u64,
    what: &'static str,
) -> Result<Reservation, Failure> {
    job.budget().reserve(bytes, what).map_err(|_| too_large(job, partition, bytes, what))
}

fn too_large(job: &Job, partition: u32, bytes: u64, what: &str) -> Failure {
    let budget = job.budget();
    let (needed, free) = (format_bytes(bytes), format_bytes(budget.free_bytes()));
    let slot = format_bytes(budget.memory_bytes());
    let message = format!(
        "partition {partition}: {what} need {needed} more of memory, and {free} of a slot of {slot} are free: raise --node-memory, or the --memory of the nodes"
    );
    message.into()
}

/// A vector that grows within the memory of a slot.
pub(super) struct Growing<T> {
    pub values: Vec<T>,
    memory: Reservation,
    what: &'static str,
}

impl<T> Growing<T> {
    pub fn new(job: &Job, what: &'static str) -> Result<Growing<T>, Failure> {
        Ok(Growing { values: Vec::new(), memory: job.budget().reserve(0, what)?, what })
    }

    /// Makes room for `more` values. If the slot has too little memory, `compact` may remove values first.
    pub fn room(
        &mut self,
        job: &Job,
        partition: u32,
        more: usize,
        compact: impl FnOnce(&mut Vec<T>),
    ) -> Result<(), Failure> {
        let (needed, capacity) = (self.values.len() + more, self.values.capacity());
        if needed <= capacity || self.grow(needed.max(capacity / 4 * 5)) || self.grow(needed) {
            return Ok(());
        }
        compact(&mut self.values);
        // If few values were removed, each of the next calls would have to compact again.
        let is_enough = self.values.len() + more <= capacity && self.values.len() <= capacity / 16 * 15;
        if is_enough {
            return Ok(());
        }
        let more = ((needed * size_of::<T>()) as u64).saturating_sub(self.memory.bytes());
        Err(too_large(job, partition, more, self.what))
    }

    /// Returns the values, and their memory.
    pub fn into_parts(self) -> (Vec<T>, Reservation) {
        (self.values, self.memory)
    }

    fn grow(&mut self, capacity: usize) -> bool {
        if self.memory.resize((capacity * size_of::<T>()) as u64).is_err() {
            return false;
        }
        self.values.reserve_exact(capacity.saturating_sub(self.values.len()));
        true
    }
}
