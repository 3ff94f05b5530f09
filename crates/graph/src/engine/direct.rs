//! Updates in memory: each vertex has an accumulator, into which all workers combine messages concurrently.
//!
//! Direct updates make one random access to memory for each message, by a compare-and-swap. Accumulators are prefetched
//! some messages ahead so that the cache misses overlap. Direct updates are faster than sort-reduce if the accumulators
//! fit in memory. A superstep that reaches few vertices keeps a list of these vertices. Its cost then depends on the
//! number of reached vertices, and not on the size of the graph.

use std::ops::Range;

use inshore_sortreduce::prefetch;
use inshore_store::{Budget, Buffer, Reservation, taken_bytes};
use zerocopy::IntoBytes;

use super::{Message, StepProgram, chunks::Sender, state::fill};
use crate::Result;

/// Accumulators are prefetched this number of messages ahead.
const AHEAD: usize = 24;
/// The capacity of a list of vertices is the number of all vertices divided by this number. Sorting a list of that
/// length takes as long as scanning all accumulators.
const TOUCHED_SHARE: u64 = 64;
const TOUCHED_MIN: u64 = 16 << 10;

fn touched_max(vertices: u64) -> usize {
    (vertices / TOUCHED_SHARE).max(TOUCHED_MIN) as usize
}

/// Returns the bytes of memory that accumulators and lists take.
pub(super) fn memory_bytes(vertices: u64, message_bytes: u64, workers: usize) -> u64 {
    let accumulators = taken_bytes((vertices * message_bytes) as usize);
    accumulators as u64 + list_bytes(vertices, workers)
}

/// Returns the memory of one list per worker, and of the list of all workers' vertices while it is sorted.
fn list_bytes(vertices: u64, workers: usize) -> u64 {
    (2 * workers * touched_max(vertices) * 4) as u64
}

/// An accumulator for each vertex.
pub(super) struct Accumulators {
    buffer: Buffer,
    vertices: u64,
    /// The bytes of the empty message; empty before the first superstep.
    nothing: Vec<u8>,
    touched: Vec<FirstMessages>,
    is_alone: bool,
    threads: usize,
    _lists: Reservation,
}

/// The vertices whose first message in this superstep came from this worker, in the order of arrival.
pub(super) struct FirstMessages {
    list: Vec<u32>,
    max: usize,
    /// Tells whether this worker sent the first message to more vertices than the list holds.
    is_full: bool,
}

impl FirstMessages {
    #[inline(always)]
    fn add(&mut self, vertex: u32) {
        if self.list.len() < self.list.capacity() {
            self.list.push(vertex);
        } else {
            self.add_more(vertex);
        }
    }
}

impl FirstMessages {
    #[cold]
    fn add_more(&mut self, vertex: u32) {
        let more = self.list.len().max(64).min(self.max - self.list.len());
        if more == 0 {
            self.is_full = true;
            return;
        }
        self.list.reserve_exact(more);
        self.list.push(vertex);
    }
}

impl Accumulators {
    pub fn new<M: Message>(budget: &Budget, vertices: u64, workers: usize) -> Result<Accumulators> {
        let buffer = Buffer::zeroed(budget, vertices as usize * size_of::<M>(), "updates of vertices")?;
        let max = touched_max(vertices);
        let lists = budget.reserve(list_bytes(vertices, workers), "lists of updated vertices")?;
        let touched = (0..workers).map(|_| FirstMessages { list: Vec::new(), max, is_full: false }).collect();
        Ok(Accumulators {
            buffer,
            vertices,
            nothing: Vec::new(),
            touched,
            is_alone: workers == 1,
            threads: budget.threads(),
            _lists: lists,
        })
    }

    /// Prepares the accumulators for a superstep. Returns the sender that combines messages into them, and a list of
    /// updated vertices for each worker.
    pub fn open<'a, P: StepProgram>(
        &'a mut self,
        program: &'a P,
    ) -> (AccumulatorSender<'a, P>, Vec<FirstMessages>) {
        if self.nothing != P::NOTHING.as_bytes() {
            // The whole array is written before the first superstep, even if the empty message is 0. First touches of
            // memory are slow, and here all threads share this work.
            let threads = self.threads;
            fill(self.all::<P::Message>(), threads, |_| P::NOTHING);
            self.nothing = P::NOTHING.as_bytes().to_vec();
        }
        let touched = std::mem::take(&mut self.touched);
        (self.direct(program), touched)
    }

    /// Returns the sender that combines messages in another pass of the same superstep.
    pub fn direct<'a, P: StepProgram>(&'a mut self, program: &'a P) -> AccumulatorSender<'a, P> {
        let is_alone = self.is_alone;
        let accumulators =
            &self.buffer.typed_mut::<<P::Message as Message>::Cell>()[..self.vertices as usize];
        AccumulatorSender { program, accumulators, is_alone }
    }

    /// Tells whether more vertices got a message than a worker's list holds.
    pub fn is_crowded(touched: &[FirstMessages]) -> bool {
        touched.iter().any(|touched| touched.is_full)
    }

    /// Tells whether this number of vertices is more than the lists hold. `None` stands for all vertices.
    pub fn are_many(&self, count: Option<u64>) -> bool {
        count.is_none_or(|count| count > touched_max(self.vertices) as u64)
    }

    /// Returns the accumulators of all vertices.
    pub fn all<M: Message>(&mut self) -> &mut [M] {
        &mut self.buffer.typed_mut::<M>()[..self.vertices as usize]
    }

    /// Calls `each` with the listed vertices in order, together with their accumulators.
    pub fn listed<M: Message>(
        &mut self,
        touched: &[FirstMessages],
        mut each: impl FnMut(u32, &mut M) -> Result<()>,
    ) -> Result<()> {
        let mut all = Vec::with_capacity(touched.iter().map(|touched| touched.list.len()).sum());
        touched.iter().for_each(|touched| all.extend_from_slice(&touched.list));
        all.sort_unstable();
        all.dedup();
        let accumulators = self.all::<M>();
        all.into_iter().try_for_each(|vertex| each(vertex, &mut accumulators[vertex as usize]))
    }

    /// Takes the lists back, so that the next superstep can reuse them.
    pub fn close(&mut self, mut touched: Vec<FirstMessages>) {
        for touched in &mut touched {
            touched.list.clear();
            touched.is_full = false;
        }
        self.touched = touched;
    }
}

/// Sends messages into accumulators.
pub(super) struct AccumulatorSender<'a, P: StepProgram> {
    program: &'a P,
    accumulators: &'a [<P::Message as Message>::Cell],
    is_alone: bool,
}

impl<P: StepProgram> AccumulatorSender<'_, P> {
    pub fn program(&self) -> &P {
        self.program
    }

    /// Prefetches the accumulator of a vertex.
    #[inline(always)]
    pub fn ask_for(&self, vertex: u32) {
        prefetch(&self.accumulators[vertex as usize]);
    }

    /// Returns the message in the accumulator of a vertex.
    #[inline(always)]
    pub fn message_of(&self, vertex: u32) -> P::Message {
        P::Message::load(&self.accumulators[vertex as usize])
    }

    /// Combines as [`AccumulatorSender::combine`] does, for a vertex to which no other worker sends. A compare-and-swap
    /// would be slower, since a compare-and-swap waits for all earlier loads.
    #[inline(always)]
    pub fn put(&self, vertex: u32, message: P::Message, touched: &mut FirstMessages) {
        let cell = &self.accumulators[vertex as usize];
        let old = P::Message::load(cell);
        let new = self.program.reduce_at(vertex, old, message);
        if new != old {
            new.store(cell);
            self.touch(vertex, old, touched);
        }
    }

    /// Sends a message to a vertex. The caller sets `is_only` if no other worker sends to this vertex.
    #[inline(always)]
    pub fn send_to(&self, vertex: u32, message: P::Message, is_only: bool, touched: &mut FirstMessages) {
        match is_only {
            true => self.put(vertex, message, touched),
            false => self.combine(vertex, message, touched),
        }
    }

    #[inline(always)]
    fn touch(&self, vertex: u32, old: P::Message, touched: &mut FirstMessages) {
        if !P::EVERY_VERTEX && (P::ACCUMULATORS_KEEP_STATE || old == P::NOTHING) {
            touched.add(vertex);
        }
    }

    #[inline(always)]
    pub fn combine(&self, vertex: u32, message: P::Message, touched: &mut FirstMessages) {
        let cell = &self.accumulators[vertex as usize];
        let mut old = P::Message::load(cell);
        loop {
            let new = self.program.reduce_at(vertex, old, message);
            if new == old {
                return;
            }
            if self.is_alone {
                new.store(cell);
                break;
            }
            match new.swap(cell, old) {
                Ok(()) => break,
                Err(now) => old = now,
            }
        }
        self.touch(vertex, old, touched);
    }
}

impl<P: StepProgram> Sender for AccumulatorSender<'_, P> {
    type State = P::State;
    type Sent = P::Message;
    type Sink = FirstMessages;
    const READS_WEIGHTS: bool = P::WEIGHTED;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<P::Message> {
        self.program.edge_program(vertex, state, degree)
    }

    fn aggregate(&self, vertex: u32, state: &P::State, degree: u32) -> u64 {
        self.program.aggregate(vertex, state, degree)
    }

    #[inline]
    fn push(
        &self,
        touched: &mut FirstMessages,
        window: &[u32],
        row: Range<usize>,
        weights: &[f64],
        sent: P::Message,
    ) -> Result<()> {
        for at in row {
            if let Some(&ahead) = window.get(at + AHEAD) {
                prefetch(&self.accumulators[ahead as usize]);
            }
            let message = if P::WEIGHTED { self.program.along(window[at], sent, weights[at]) } else { sent };
            self.combine(window[at], message, touched);
        }
        Ok(())
    }
}
