//! Adds the messages along a column's edges to the accumulators of the column.

use std::ops::Range;

use inshore_sortreduce::{BadFrame, FRAME_RECORDS, prefetch};
use inshore_store::Job;

use super::{
    DestinationBlocks, Packing,
    messages::{MessageReader, Messages},
    read::ChunkReader,
};
use crate::{
    Result,
    engine::{Message, StepProgram},
};

/// The target of messages: an accumulator for each vertex of a column.
pub(super) trait AccumulatorArray {
    type Message: Message;

    /// Prefetches the accumulator of a vertex, given by its offset in the column.
    fn ask(&self, place: u32);

    fn add(&mut self, place: u32, message: Self::Message);
}

/// Accumulators that belong to a single thread.
pub(super) struct OwnAccumulators<'a, P: StepProgram> {
    pub program: &'a P,
    /// The vertex whose accumulator is the first.
    pub first: u32,
    pub accumulators: &'a mut [P::Message],
}

impl<P: StepProgram> AccumulatorArray for OwnAccumulators<'_, P> {
    type Message = P::Message;

    #[inline(always)]
    fn ask(&self, place: u32) {
        prefetch(&self.accumulators[place as usize]);
    }

    #[inline(always)]
    fn add(&mut self, place: u32, message: P::Message) {
        let cell = &mut self.accumulators[place as usize];
        *cell = self.program.reduce_at(self.first + place, *cell, message);
    }
}

/// Accumulators that threads share. Each addition is a compare-and-swap, which costs no time if messages are read from
/// flash, since the drive is then the bottleneck.
pub(super) struct SharedAccumulators<'a, P: StepProgram> {
    pub program: &'a P,
    /// The vertex whose accumulator is the first.
    pub first: u32,
    pub accumulators: &'a [<P::Message as Message>::Cell],
}

impl<P: StepProgram> AccumulatorArray for SharedAccumulators<'_, P> {
    type Message = P::Message;

    #[inline(always)]
    fn ask(&self, place: u32) {
        prefetch(&self.accumulators[place as usize]);
    }

    #[inline(always)]
    fn add(&mut self, place: u32, message: P::Message) {
        let cell = &self.accumulators[place as usize];
        let mut old = P::Message::load(cell);
        loop {
            let new = self.program.reduce_at(self.first + place, old, message);
            match if new == old { Ok(()) } else { new.swap(cell, old) } {
                Ok(()) => return,
                Err(other) => old = other,
            }
        }
    }
}

/// Reads the edges that some workers wrote, one column after the other, and adds the messages along these edges.
pub(super) struct Adder<'a, M> {
    job: Job,
    columns: &'a DestinationBlocks,
    cuts: Range<usize>,
    messages: MessageReader<'a, M>,
    chunks: ChunkReader<'a>,
    /// One frame is unpacked ahead, so that the memory for its edges is prefetched while the previous frame is added.
    frame: Box<EdgeFrame>,
    next: Box<EdgeFrame>,
}

impl<'a, M: Message> Adder<'a, M> {
    /// Creates an adder for the edges that a range of workers (`cuts`) wrote, in all columns.
    pub fn new(
        job: &'a Job,
        columns: &'a DestinationBlocks,
        messages: &'a Messages,
        cuts: Range<usize>,
    ) -> Result<Adder<'a, M>> {
        let first = columns.cuts[cuts.start].first_sender;
        let end = columns.cuts.get(cuts.end).map_or(columns.senders.count(), |cut| cut.first_sender);
        Ok(Adder {
            job: job.clone(),
            columns,
            messages: messages.reader(job, first..end)?,
            chunks: ChunkReader::new(job, columns.plan.chunk_bytes)?,
            cuts,
            frame: Box::new(EdgeFrame::new()),
            next: Box::new(EdgeFrame::new()),
        })
    }

    /// Adds the messages of a column's edges to its accumulators.
    pub fn add_up(
        &mut self,
        accumulators: &mut impl AccumulatorArray<Message = M>,
        column: usize,
    ) -> Result<()> {
        self.messages.begin()?;
        let columns = self.columns;
        let packing = Packing::new().expect("words are packed");
        let mut keys = [0; FRAME_RECORDS];
        let (mut frame, mut next) = (&mut *self.frame, &mut *self.next);
        (frame.count, next.count) = (0, 0);
        for cut in &columns.cuts[self.cuts.clone()] {
            self.chunks.begin(cut, column);
            while let Some((mut bytes, mut edges)) = self.chunks.next()? {
                self.job.progress().add(edges as u64);
                while edges > 0 {
                    let used = packing.unpack(bytes, &mut keys, &mut [(); FRAME_RECORDS]);
                    bytes = &bytes[used.map_err(|BadFrame| columns.bad_frame())?..];
                    next.fill(&keys, columns.bits, edges.min(FRAME_RECORDS));
                    edges -= next.count;
                    frame.add(next, accumulators, &mut self.messages)?;
                    std::mem::swap(&mut frame, &mut next);
                }
            }
        }
        next.count = 0;
        frame.add(next, accumulators, &mut self.messages)
    }
}

/// The edges of one frame, in the order of senders.
struct EdgeFrame {
    senders: [u32; FRAME_RECORDS],
    places: [u32; FRAME_RECORDS],
    count: usize,
}

impl EdgeFrame {
    fn new() -> EdgeFrame {
        EdgeFrame { senders: [0; FRAME_RECORDS], places: [0; FRAME_RECORDS], count: 0 }
    }

    /// Splits keys into senders and destinations. A destination is an offset in the column.
    fn fill(&mut self, keys: &[u64; FRAME_RECORDS], bits: u32, count: usize) {
        let mask = (1u64 << bits) - 1;
        for ((sender, place), key) in self.senders.iter_mut().zip(&mut self.places).zip(keys) {
            (*sender, *place) = ((key >> bits) as u32, (key & mask) as u32);
        }
        self.count = count;
    }

    /// Adds the messages of all edges, and prefetches memory for the edges of `next`.
    #[inline]
    fn add<M: Message>(
        &self,
        next: &EdgeFrame,
        accumulators: &mut impl AccumulatorArray<Message = M>,
        messages: &mut MessageReader<'_, M>,
    ) -> Result<()> {
        let mut done = 0;
        while done < self.count {
            let (start, window) = messages.window(self.senders[done].into())?;
            let (start, end) = (start as u32, start + window.len() as u64);
            let left = &self.senders[done..self.count];
            let is_all = left.last().is_some_and(|&last| u64::from(last) < end);
            let inside = if is_all { left.len() } else { left.partition_point(|&s| u64::from(s) < end) };
            let here = done..done + inside;
            let edges = self.senders[here.clone()].iter().zip(&self.places[here.clone()]);
            let later = next.senders[here.clone()].iter().zip(&next.places[here]);
            for ((sender, &place), (next_sender, &next_place)) in edges.zip(later) {
                accumulators.ask(next_place);
                if let Some(message) = window.get(next_sender.wrapping_sub(start) as usize) {
                    prefetch(message);
                }
                accumulators.add(place, window[(sender - start) as usize]);
            }
            done += inside;
        }
        Ok(())
    }
}
