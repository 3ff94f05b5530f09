//! Checkpoints of jobs. At intervals, between two supersteps (in betweenness between two sources), the state of all
//! vertices and the list of active vertices are saved. A job with the same options on the same graph resumes from a
//! checkpoint.
//!
//! ```text
//!   a checkpoint   state         one state for each vertex
//!                  active        u32 numbers of the active vertices, ascending     unless all vertices are active
//!                  description   vertices, bytes of a state, whether all are active, supersteps, edges read,
//!                                two counters
//! ```
//!
//! Each number of the description is a u64. The algorithm defines the two counters.
//!
//! A checkpoint is complete and durable, or absent. A new checkpoint is committed before the old one is removed, so
//! after the first commit there is always a checkpoint. If there are two, the one with the most supersteps is used.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use inshore_store::{FileReader, Job, Keep, ResumablePiece};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Graph, Result,
    engine::{Frontier, FrontierBuilder, State, VertexArray},
};

const BLOCK_BYTES: usize = 64 << 10;
/// The bytes of memory that two buffers, a list of extents, and small allocations take.
const BESIDE_BYTES: u64 = 4 * BLOCK_BYTES as u64;
/// The next checkpoint is due after at least this multiple of the time that the last checkpoint took, unless the job
/// requested a checkpoint after every superstep.
const TIMES: u32 = 20;

/// Serializes and deserializes the interval between checkpoints as a number of seconds.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(every: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        every.map(|every| every.as_secs_f64()).serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let every = Option::<f64>::deserialize(from)?.map(Duration::try_from_secs_f64);
        every.transpose().map_err(D::Error::custom)
    }
}

/// Saves and loads the checkpoints of a job. If the job requested no checkpoints, nothing is saved or loaded.
pub(crate) struct Checkpoints {
    keep: Option<Keep>,
    every: Duration,
    due: Instant,
}

/// The position of a job between two supersteps.
pub(crate) struct CheckpointPosition {
    pub active: Frontier,
    pub supersteps: u64,
    pub edges_traversed: u64,
    /// Two numbers that the algorithm counts.
    pub numbers: [u64; 2],
}

impl Checkpoints {
    /// Creates checkpoints for the job `what` on `graph`. `question` has the options on which the states of vertices
    /// depend. `every` is the interval between two checkpoints; with `None` there are no checkpoints.
    pub fn new(
        graph: &Graph,
        job: &Job,
        every: Option<Duration>,
        what: &str,
        question: impl Debug,
    ) -> Result<Checkpoints> {
        let keep = match every {
            None => None,
            Some(_) => {
                let mut hash = DefaultHasher::new();
                // The version of the program is hashed too, since the format of states may differ between versions of
                // the program.
                (env!("CARGO_PKG_VERSION"), what, graph.id(), format!("{question:?}")).hash(&mut hash);
                let name = &graph.info().name;
                Some(job.store().keep(job, hash.finish(), &format!("{what} {name}"))?)
            }
        };
        let every = every.unwrap_or(Duration::MAX);
        Ok(Checkpoints { keep, every, due: after(every) })
    }

    /// Returns the memory that saving and resuming need.
    pub fn bytes<S: State>(&self, vertices: u64) -> u64 {
        match self.keep {
            None => 0,
            // An extent of 2 MiB has an entry of at most 64 bytes in the list of extents.
            Some(_) => BESIDE_BYTES + ((vertices * size_of::<S>() as u64) >> 21) * 64,
        }
    }

    /// Returns the newest checkpoint, whether all vertices are active in it, and its stored data.
    fn newest<S: State>(&self, vertices: u64) -> Result<Option<(CheckpointPosition, bool, ResumablePiece)>> {
        let Some(keep) = &self.keep else { return Ok(None) };
        let mut newest: Option<(CheckpointPosition, bool, ResumablePiece)> = None;
        for piece in keep.pieces()? {
            let Some((point, is_all)) = parse::<S>(&piece.state, vertices) else { continue };
            if newest.as_ref().is_none_or(|(newest, _, _)| newest.supersteps < point.supersteps) {
                newest = Some((point, is_all, piece));
            }
        }
        Ok(newest)
    }

    /// Returns the numbers that the algorithm counted up to the newest checkpoint, if there is one.
    ///
    /// # Errors
    /// The function fails if an I/O operation fails, or if stored data is damaged.
    pub fn numbers<S: State>(&self, vertices: u64) -> Result<Option<[u64; 2]>> {
        Ok(self.newest::<S>(vertices)?.map(|(point, ..)| point.numbers))
    }

    /// Loads the states of the newest checkpoint, if there is one, into `states`.
    ///
    /// # Errors
    /// The function fails if an I/O operation fails, or if stored data is damaged.
    pub fn resume_from<S: State>(
        &self,
        job: &Job,
        vertices: u64,
        states: &mut VertexArray<S>,
        frontier_keys: usize,
    ) -> Result<Option<CheckpointPosition>> {
        let Some((mut point, is_all, piece)) = self.newest::<S>(vertices)? else { return Ok(None) };
        job.start_phase("resuming from a checkpoint", "vertices", vertices);
        let file = |name: &str| {
            piece.dataset.file(name).ok_or_else(|| crate::Error::BadGraph {
                name: piece.dataset.name().to_string(),
                what: "a checkpoint",
                found: format!("a checkpoint without the file {name}"),
                expected: "files of vertex states and active vertices".to_string(),
            })
        };
        let saved = file("state")?;
        let mut reader = FileReader::new(job, &saved, 0..saved.len(), BLOCK_BYTES)?;
        let (mut cursor, mut vertex) = (states.cursor(), 0);
        while let Some(bytes) = reader.next_piece()? {
            let states =
                <[S]>::ref_from_bytes(bytes).expect("whole states, since their size is a power of two");
            for state in states.iter().take((vertices - vertex) as usize) {
                *cursor.get_mut(vertex as u32)? = *state;
                vertex += 1;
            }
            job.progress().add(states.len() as u64);
        }
        drop(reader);
        if !is_all {
            let saved = file("active")?;
            let mut reader = FileReader::new(job, &saved, 0..saved.len(), BLOCK_BYTES)?;
            let mut active = FrontierBuilder::new(job, frontier_keys);
            while let Some(bytes) = reader.next_piece()? {
                let keys = <[u32]>::ref_from_bytes(bytes).expect("whole numbers");
                keys.iter().try_for_each(|&key| active.push(key))?;
            }
            point.active = active.finish()?;
        }
        Ok(Some(point))
    }

    /// Saves a checkpoint if the interval between checkpoints has passed.
    ///
    /// # Errors
    /// The function fails if an I/O operation fails (for example because the disk is full), or if the job was
    /// cancelled.
    pub fn save<S: State>(
        &mut self,
        job: &Job,
        vertices: u64,
        states: &mut VertexArray<S>,
        point: impl FnOnce() -> CheckpointPosition,
    ) -> Result<()> {
        let Some(keep) = self.keep.as_ref().filter(|_| Instant::now() >= self.due) else { return Ok(()) };
        let (began, point) = (Instant::now(), point());
        let older = keep.pieces()?;
        let mut piece = keep.begin(job)?;
        let mut file = piece.file("state", BLOCK_BYTES, BLOCK_BYTES)?;
        let mut cursor = states.cursor();
        let mut staged: Vec<S> = Vec::with_capacity(4 << 10);
        for vertex in 0..vertices {
            staged.push(*cursor.get(vertex as u32)?);
            if staged.len() == staged.capacity() {
                file.write(staged.as_bytes())?;
                staged.clear();
            }
        }
        file.write(staged.as_bytes())?;
        piece.add(file)?;
        if !point.active.is_all() {
            let mut file = piece.file("active", BLOCK_BYTES, BLOCK_BYTES)?;
            let mut active = point.active.reader(job, vertices)?;
            while let Some(vertex) = active.next()? {
                file.write(&vertex.to_le_bytes())?;
            }
            piece.add(file)?;
        }
        let fixed = [
            vertices,
            size_of::<S>() as u64,
            u64::from(point.active.is_all()),
            point.supersteps,
            point.edges_traversed,
        ];
        let state: Vec<u8> =
            fixed.iter().chain(&point.numbers).flat_map(|number| number.to_le_bytes()).collect();
        keep.commit(piece, &state)?;
        keep.give_up(&older)?;
        let took = began.elapsed();
        tracing::debug!(supersteps = point.supersteps, ?took, "checkpoint");
        self.due = after(if self.every.is_zero() { self.every } else { self.every.max(took * TIMES) });
        Ok(())
    }

    /// Returns the stored checkpoints, which the caller removes when the answer is safe.
    pub fn into_keep(self) -> Option<Keep> {
        self.keep
    }
}

/// Returns the present time plus a duration, or a time decades away if the sum overflows.
fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + Duration::from_secs(1 << 30))
}

/// Parses the description that [`Checkpoints::save`] stored. Returns the position, and whether all vertices are active.
/// Returns `None` if the description is malformed, or is for another number of vertices or another size of states.
fn parse<S: State>(state: &[u8], vertices: u64) -> Option<(CheckpointPosition, bool)> {
    let (numbers, rest) = state.as_chunks::<8>();
    let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    let [of, state_bytes, is_all, supersteps, edges_traversed, first, second] = numbers[..] else {
        return None;
    };
    let is_sound = rest.is_empty() && of == vertices && state_bytes == size_of::<S>() as u64 && is_all < 2;
    let point =
        CheckpointPosition { active: Frontier::All, supersteps, edges_traversed, numbers: [first, second] };
    is_sound.then_some((point, is_all == 1))
}
