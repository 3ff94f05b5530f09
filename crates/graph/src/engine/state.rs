//! Vertex state: an array in memory, or blocks on flash that are read and written in the order of vertices.

use std::{collections::VecDeque, marker::PhantomData};

use inshore_store::{BlockFile, Buffer, Job, PendingBlock, taken_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Result;

/// The state of a vertex as plain bytes. The size must be a power of two, so that no state is in two blocks.
pub trait State:
    FromBytes + IntoBytes + Immutable + KnownLayout + Copy + Default + Send + Sync + 'static
{
}

impl<T> State for T where
    T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + Default + Send + Sync + 'static
{
}

/// The size of a block of states on flash. With this size, four reads in flight keep a drive busy, and a superstep with
/// few active vertices reads few unneeded bytes.
const BLOCK_BYTES: usize = 64 << 10;
const BUFFERS: usize = 8;
const AHEAD: usize = 4;
/// The bytes of all buffers of an array on flash. Each reader of [`VertexArray::peeks`] has buffers of this size too.
pub(super) const BUFFERS_BYTES: usize = BUFFERS * BLOCK_BYTES;
/// An array of fewer values is filled by one thread, since starting another thread would cost more.
const FILLED_ALONE: usize = 1 << 18;

fn per_block<S>() -> u32 {
    assert!(size_of::<S>().is_power_of_two(), "states are powers of two");
    (BLOCK_BYTES / size_of::<S>()) as u32
}

/// Returns the bytes of memory of an array in memory.
pub(crate) fn memory_bytes<S>(vertices: u64) -> u64 {
    taken_bytes(vertices as usize * size_of::<S>()) as u64
}

/// Returns the bytes of memory that an array on flash takes: buffers, and 4 bytes per block.
pub(crate) fn flash_memory_bytes<S>(vertices: u64) -> u64 {
    BUFFERS_BYTES as u64 + vertices.div_ceil(per_block::<S>() as u64) * 4
}

/// Sets the value of every vertex by several threads, since first touches of memory are slow.
pub(super) fn fill<T: Send>(all: &mut [T], threads: usize, value: impl Fn(u32) -> T + Sync) {
    let part_len = all.len().div_ceil(threads).max(FILLED_ALONE);
    let fill = |first: usize, part: &mut [T]| {
        part.iter_mut().enumerate().for_each(|(place, each)| *each = value((first + place) as u32));
    };
    std::thread::scope(|scope| {
        let mut parts = all.chunks_mut(part_len).enumerate();
        let first = parts.next();
        for (number, part) in parts {
            scope.spawn(move || fill(number * part_len, part));
        }
        first.into_iter().for_each(|(_, part)| fill(0, part));
    });
}

/// An array of the states of all vertices.
pub(crate) enum VertexArray<S: State> {
    Memory(Buffer, PhantomData<S>),
    Flash(Box<Blocks>),
}

impl<S: State> VertexArray<S> {
    pub fn new(job: &Job, vertices: u64, in_memory: bool, initial: impl Fn(u32) -> S + Sync) -> Result<Self> {
        if in_memory {
            let bytes = vertices as usize * size_of::<S>();
            let mut buffer = Buffer::zeroed(job.budget(), bytes, "vertex state")?;
            fill(&mut buffer.typed_mut::<S>()[..vertices as usize], job.budget().threads(), initial);
            return Ok(VertexArray::Memory(buffer, PhantomData));
        }
        Self::on_flash(job, vertices, |vertex| Ok(initial(vertex)))
    }

    /// Creates an array on flash. `initial` is called for every vertex in ascending order.
    pub fn on_flash(job: &Job, vertices: u64, mut initial: impl FnMut(u32) -> Result<S>) -> Result<Self> {
        let blocks = vertices.div_ceil(per_block::<S>() as u64) as usize;
        let mut file = BlockFile::create(job, "vertex state", blocks, BLOCK_BYTES)?;
        let whole = Buffer::zeroed(job.budget(), BUFFERS_BYTES, "blocks of vertex state")?;
        let mut buffers = whole.split(BLOCK_BYTES);
        let mut in_flight: VecDeque<PendingBlock> = VecDeque::new();
        for block in 0..blocks {
            job.check_cancelled()?;
            let mut buffer = match buffers.pop() {
                Some(buffer) => buffer,
                None => in_flight.pop_front().expect("all buffers are in flight").wait()?,
            };
            let first = block as u64 * u64::from(per_block::<S>());
            let states = buffer.typed_mut::<S>();
            let (states, behind) = states.split_at_mut(states.len().min((vertices - first) as usize));
            for (vertex, state) in (first as u32..).zip(states) {
                *state = initial(vertex)?;
            }
            behind.fill(S::default());
            in_flight.push_back(file.submit_write(block, buffer)?);
        }
        for pending in in_flight {
            buffers.push(pending.wait()?);
        }
        Ok(VertexArray::Flash(Box::new(Blocks::new(file, buffers))))
    }

    /// Creates a cursor that reads and changes states.
    pub fn cursor(&mut self) -> StateCursor<'_, S> {
        match self {
            VertexArray::Memory(buffer, _) => StateCursor::Memory(buffer.typed_mut::<S>()),
            VertexArray::Flash(blocks) => StateCursor::Flash(blocks),
        }
    }

    /// Creates a reader for a single thread.
    pub fn peek(&mut self) -> StatePeek<'_, S> {
        match self {
            VertexArray::Memory(buffer, _) => StatePeek::Memory(buffer.typed::<S>()),
            VertexArray::Flash(_) => StatePeek::Flash(self.cursor()),
        }
    }

    /// Creates `count` readers, for threads that read in parallel.
    pub fn peeks(&mut self, job: &Job, count: usize) -> Result<Vec<StatePeek<'_, S>>> {
        match self {
            VertexArray::Memory(buffer, _) => {
                let states = buffer.typed::<S>();
                Ok((0..count).map(|_| StatePeek::Memory(states)).collect())
            }
            VertexArray::Flash(blocks) => {
                let file = blocks.flushed()?;
                (0..count).map(|_| Ok(StatePeek::Blocks(BlockPeek::new(job, file)?))).collect()
            }
        }
    }

    /// Returns all states if they are in memory, and `None` otherwise.
    pub fn in_memory(&mut self) -> Option<&mut [S]> {
        match self {
            VertexArray::Memory(buffer, _) => Some(buffer.typed_mut::<S>()),
            VertexArray::Flash(_) => None,
        }
    }

    pub fn into_reader(self) -> Result<StateReader<S>> {
        Ok(match self {
            VertexArray::Memory(buffer, _) => StateReader::Memory(buffer, PhantomData),
            VertexArray::Flash(blocks) => StateReader::Flash(blocks),
        })
    }
}

/// Reads and changes states in ascending order of vertices.
pub(crate) enum StateCursor<'a, S: State> {
    Memory(&'a mut [S]),
    Flash(&'a mut Blocks),
}

impl<S: State> StateCursor<'_, S> {
    /// Returns the state of `vertex`.
    #[inline]
    pub fn get(&mut self, vertex: u32) -> Result<&S> {
        match self {
            StateCursor::Memory(states) => Ok(&states[vertex as usize]),
            StateCursor::Flash(blocks) => blocks.get(vertex),
        }
    }

    /// Replaces `old` by `new`. If both are equal, the block does not count as changed. Many messages change nothing,
    /// and an unchanged block need not be written.
    #[inline]
    pub fn replace(&mut self, vertex: u32, old: &S, new: S) -> Result<()> {
        if new.as_bytes() != old.as_bytes() {
            *self.get_mut(vertex)? = new;
        }
        Ok(())
    }

    /// Returns a mutable reference to the state of `vertex`.
    #[inline]
    pub fn get_mut(&mut self, vertex: u32) -> Result<&mut S> {
        match self {
            StateCursor::Memory(states) => Ok(&mut states[vertex as usize]),
            StateCursor::Flash(blocks) => {
                let place = blocks.load(vertex, per_block::<S>())?;
                Ok(&mut blocks.current_mut().typed_mut::<S>()[place])
            }
        }
    }
}

/// Reads states in ascending order of vertices. No state may change meanwhile.
pub(crate) enum StatePeek<'a, S: State> {
    Memory(&'a [S]),
    /// The only reader of an array on flash.
    Flash(StateCursor<'a, S>),
    /// One of several readers of the same file.
    Blocks(BlockPeek<'a>),
}

impl<S: State> StatePeek<'_, S> {
    /// Returns the state of `vertex`.
    #[inline]
    pub fn get(&mut self, vertex: u32) -> Result<&S> {
        match self {
            StatePeek::Memory(states) => Ok(&states[vertex as usize]),
            StatePeek::Flash(cursor) => cursor.get(vertex),
            StatePeek::Blocks(blocks) => blocks.get(vertex),
        }
    }
}

/// Reads states that no longer change, in ascending order of vertices.
pub(crate) enum StateReader<S: State> {
    Memory(Buffer, PhantomData<S>),
    Flash(Box<Blocks>),
}

impl<S: State> StateReader<S> {
    /// Returns the state of `vertex`.
    #[inline]
    pub fn get(&mut self, vertex: u32) -> Result<&S> {
        match self {
            StateReader::Memory(buffer, _) => Ok(&buffer.typed::<S>()[vertex as usize]),
            StateReader::Flash(blocks) => blocks.get(vertex),
        }
    }
}

/// Moves from block to block of states.
trait BlockWalk {
    /// Returns the number of the current block, and the block.
    fn at(&self) -> Option<(u32, &Buffer)>;

    /// Makes another block the current one.
    fn turn_to(&mut self, number: u32) -> Result<()>;

    /// Makes the block of `vertex` the current one, and returns the offset of the state in the block.
    #[inline]
    fn load(&mut self, vertex: u32, per_block: u32) -> Result<usize> {
        let number = vertex / per_block;
        if self.at().is_none_or(|(current, _)| current != number) {
            self.turn_to(number)?;
        }
        Ok((vertex % per_block) as usize)
    }

    /// Returns the state of `vertex`.
    #[inline]
    fn get<S: State>(&mut self, vertex: u32) -> Result<&S> {
        let place = self.load(vertex, per_block::<S>())?;
        let (_, current) = self.at().expect("loaded");
        Ok(&current.typed::<S>()[place])
    }
}

/// A file of blocks, and the blocks in memory: the current block, some that are read ahead, and some that are being
/// written. The current block stays in memory between two supersteps, since the supersteps of a deep search often
/// change the same block.
pub(crate) struct Blocks {
    file: BlockFile,
    number: u32,
    current: Option<Buffer>,
    dirty: bool,
    ahead: VecDeque<(u32, PendingBlock)>,
    behind: VecDeque<(u32, PendingBlock)>,
    spare: Vec<Buffer>,
}

impl Blocks {
    fn new(file: BlockFile, spare: Vec<Buffer>) -> Blocks {
        let (ahead, behind) = (VecDeque::new(), VecDeque::new());
        Blocks { file, number: u32::MAX, current: None, dirty: false, ahead, behind, spare }
    }

    /// Waits for all writes, and returns the file.
    fn flushed(&mut self) -> Result<&BlockFile> {
        self.put_back()?;
        while !self.behind.is_empty() {
            let written = self.wait_behind()?;
            self.spare.push(written);
        }
        Ok(&self.file)
    }

    fn current_mut(&mut self) -> &mut Buffer {
        self.dirty = true;
        self.current.as_mut().expect("loaded")
    }

    fn put_back(&mut self) -> Result<()> {
        let Some(buffer) = self.current.take() else { return Ok(()) };
        if std::mem::take(&mut self.dirty) {
            let pending = self.file.submit_write(self.number as usize, buffer)?;
            self.behind.push_back((self.number, pending));
        } else {
            self.spare.push(buffer);
        }
        Ok(())
    }

    /// Starts to read a block. If a write of the same block is in flight, the read waits for it.
    fn submit_read(&mut self, number: u32, buffer: Buffer) -> Result<PendingBlock> {
        while self.behind.iter().any(|&(behind, _)| behind == number) {
            let written = self.wait_behind()?;
            self.spare.push(written);
        }
        Ok(self.file.submit_read(number as usize, buffer)?)
    }

    fn wait_behind(&mut self) -> Result<Buffer> {
        let (_, pending) = self.behind.pop_front().expect("more buffers than current and ahead");
        Ok(pending.wait()?)
    }

    fn read_ahead(&mut self) -> Result<()> {
        let mut next = self.ahead.back().map_or(self.number, |(number, _)| *number) + 1;
        while self.ahead.len() < AHEAD && (next as usize) < self.file.blocks() {
            let buffer = self.take_spare()?;
            let pending = self.submit_read(next, buffer)?;
            self.ahead.push_back((next, pending));
            next += 1;
        }
        Ok(())
    }

    fn take_spare(&mut self) -> Result<Buffer> {
        match self.spare.pop() {
            Some(buffer) => Ok(buffer),
            None => self.wait_behind(),
        }
    }
}

impl BlockWalk for Blocks {
    #[inline]
    fn at(&self) -> Option<(u32, &Buffer)> {
        self.current.as_ref().map(|current| (self.number, current))
    }

    fn turn_to(&mut self, number: u32) -> Result<()> {
        let follows = number == self.number.wrapping_add(1);
        self.put_back()?;
        while let Some((ahead, pending)) = self.ahead.pop_front() {
            let buffer = pending.wait()?;
            if ahead == number {
                self.current = Some(buffer);
                break;
            }
            self.spare.push(buffer);
        }
        if self.current.is_none() {
            let buffer = self.take_spare()?;
            self.current = Some(self.submit_read(number, buffer)?.wait()?);
        }
        self.number = number;
        if follows {
            self.read_ahead()?;
        }
        Ok(())
    }
}

/// Reads a file of blocks while nothing changes it. The current block and some of the next blocks are in memory.
pub(crate) struct BlockPeek<'a> {
    file: &'a BlockFile,
    number: u32,
    current: Option<Buffer>,
    ahead: VecDeque<(u32, PendingBlock)>,
    spare: Vec<Buffer>,
}

impl<'a> BlockPeek<'a> {
    fn new(job: &Job, file: &'a BlockFile) -> Result<BlockPeek<'a>> {
        let spare = Buffer::zeroed(job.budget(), BUFFERS_BYTES, "blocks of vertex state")?.split(BLOCK_BYTES);
        Ok(BlockPeek { file, number: 0, current: None, ahead: VecDeque::new(), spare })
    }
}

impl BlockWalk for BlockPeek<'_> {
    #[inline]
    fn at(&self) -> Option<(u32, &Buffer)> {
        self.current.as_ref().map(|current| (self.number, current))
    }

    fn turn_to(&mut self, number: u32) -> Result<()> {
        self.spare.extend(self.current.take());
        while let Some((_, passed)) = self.ahead.pop_front_if(|(ahead, _)| *ahead != number) {
            self.spare.push(passed.wait()?);
        }
        let mut next = self.ahead.back().map_or(number, |(last, _)| last + 1);
        while (next as usize) < self.file.blocks()
            && let Some(buffer) = self.spare.pop()
        {
            self.ahead.push_back((next, self.file.submit_read(next as usize, buffer)?));
            next += 1;
        }
        let (_, pending) = self.ahead.pop_front().expect("begun above");
        self.current = Some(pending.wait()?);
        self.number = number;
        Ok(())
    }
}

/// Streams the final states in the order of vertices.
pub(crate) struct StateStream<S: State> {
    vertices: u64,
    next: u64,
    reader: StateReader<S>,
}

impl<S: State> StateStream<S> {
    pub fn new(vertices: u64, states: VertexArray<S>) -> Result<StateStream<S>> {
        Ok(StateStream { vertices, next: 0, reader: states.into_reader()? })
    }

    /// Returns the number of the next vertex.
    pub fn position(&self) -> u32 {
        self.next as u32
    }

    /// Returns the next states, at most `count`. The result is empty at the end.
    pub fn take(&mut self, count: usize) -> Result<Vec<S>> {
        let count = count.min((self.vertices - self.next) as usize);
        let mut states = Vec::with_capacity(count);
        for _ in 0..count {
            states.push(*self.reader.get(self.next as u32)?);
            self.next += 1;
        }
        Ok(states)
    }

    /// Calls `each` with all states, and sets the stream back to its beginning.
    pub fn for_each(&mut self, mut each: impl FnMut(u32, &S) -> Result<()>) -> Result<()> {
        for vertex in 0..self.vertices {
            each(vertex as u32, self.reader.get(vertex as u32)?)?;
        }
        Ok(())
    }
}
