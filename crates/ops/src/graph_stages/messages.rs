//! The messages of a superstep: one for each vertex to which edges of a partition lead.

use inshore_kernel::Failure;

use super::{exchange::RangesWriter, rows::partition_of};

/// Writes messages to the ranges of their vertices. Messages to the same vertex follow each other, and are combined.
pub(super) struct MessageWriter<'a> {
    ranges: RangesWriter<'a, u64>,
    partitions: u32,
    combine: fn(u64, u64) -> u64,
    /// The last vertex, and its message so far.
    open: Option<(u64, u64)>,
}

impl<'a> MessageWriter<'a> {
    pub fn new(
        ranges: RangesWriter<'a, u64>,
        partitions: u32,
        combine: fn(u64, u64) -> u64,
    ) -> MessageWriter<'a> {
        MessageWriter { ranges, partitions, combine, open: None }
    }

    /// Appends a message to a vertex.
    pub fn push(&mut self, vertex: u64, message: u64) -> Result<(), Failure> {
        match &mut self.open {
            Some((of, all)) if *of == vertex => *all = (self.combine)(*all, message),
            open => {
                let before = open.replace((vertex, message));
                self.write(before)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, combined: Option<(u64, u64)>) -> Result<(), Failure> {
        let Some((vertex, message)) = combined else { return Ok(()) };
        self.ranges.push(partition_of(vertex, self.partitions), vertex, message)
    }

    /// Writes the last message, and ends the ranges.
    pub fn finish(mut self) -> Result<(), Failure> {
        let last = self.open.take();
        self.write(last)?;
        self.ranges.finish()
    }
}
