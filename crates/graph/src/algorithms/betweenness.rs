//! Betweenness centrality by Brandes' algorithm (2001), with all vertices or a sample of them as sources.
//!
//! A breadth-first search from each source counts shortest paths: the `paths` of a vertex is the sum of the `paths` of
//! its predecessors. Then levels are visited in reverse order. A vertex w sends `(1 + dependency) / paths` along its
//! in-edges. The dependency of a vertex v one level above w is the sum of these messages, multiplied by the `paths` of
//! v. The centrality of v is the sum of its dependencies over all sources. Centralities are not scaled: if all vertices
//! of an undirected graph are sources, each pair of vertices counts twice.
//!
//! The lists of vertices of all levels, which the reverse pass needs, are stored on flash (4 bytes per reached vertex).
//! Supersteps read 16 bytes of state per vertex. Sums over several sources are stored separately, since they change
//! once per source. If messages fit in memory, both passes may pull if that reads fewer edges: a vertex then reads the
//! values of its predecessors (in the reverse pass, of its successors). On Kronecker graphs pulling halves the number
//! of edges that are read.
//!
//! Path counts are 64-bit floats, exact to 2^53. The last bits of dependencies depend on the order of sums.
//! Centralities therefore agree to about 10^-9 between budgets and numbers of threads, but not bit for bit. (The 2018
//! thesis, section 9.7.1, counts paths along one parent only; Brandes counts paths along all parents.)

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use arrow_array::Float64Array;
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NONE;
use crate::{
    Answer, Error, Graph, Regime, Result, Tuning,
    answer::VertexRows,
    checkpoint::{Checkpoints, seconds},
    engine::{
        Engine, Frontier, FrontierCollection, KeyLog, Pull, ReverseSuperstep, Setup, StateStream,
        StepProgram, Superstep, VertexArray, memory_bytes,
    },
    generate::random_u64,
    graph::check_budget,
    in_memory::InMemoryGraph,
};

/// Sets the options of betweenness centrality.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BetweennessOptions {
    /// Number of vertices to search from, drawn without repetition; 16 by default. If the graph has no more vertices
    /// than this number, the search starts from each of them.
    pub sources: u64,
    /// The seed of the random numbers by which the sources are drawn; 1 by default.
    pub seed: u64,
    /// Resumes an interrupted job with the same options on the same graph, and saves checkpoints at about this
    /// interval. [`Rows::finish`](crate::Rows::finish) removes the checkpoints. With `None`, the job does not resume,
    /// and saves no checkpoints.
    #[serde(with = "seconds")]
    pub resume: Option<Duration>,
    /// Overrides the choices of the engine, for tests and comparisons.
    pub tuning: Tuning,
}

impl Default for BetweennessOptions {
    fn default() -> Self {
        BetweennessOptions { sources: 16, seed: 1, resume: None, tuning: Tuning::default() }
    }
}

/// Holds the state of a vertex in the search from one source.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SearchState {
    /// The number of shortest paths; 0 if the vertex was not reached.
    paths: f64,
    /// The dependency of the vertex. Until the reverse pass reaches the vertex, this field holds the level, encoded by
    /// [`waiting`].
    dependency: f64,
}

impl SearchState {
    /// Returns the dependency; 0 if no shortest path continues from the vertex.
    fn found(&self, vertex: u32) -> Result<f64> {
        if !(self.paths.is_finite() && self.dependency.is_finite()) {
            let what = format!("more shortest paths lead to vertex number {vertex} than 64 bits can count");
            return Err(Error::Overflow { what });
        }
        Ok(self.dependency.max(0.0))
    }
}

/// Encodes the level of a vertex whose dependency is not known yet. The code is negative, which distinguishes it from a
/// dependency.
fn waiting(level: u32) -> f64 {
    -1.0 - f64::from(level)
}

/// The vertex program of the forward pass: counts shortest paths from the source outwards.
#[derive(Clone)]
struct CountPaths {
    level: u32,
}

impl StepProgram for CountPaths {
    type State = SearchState;
    type Message = f64;
    const NOTHING: f64 = 0.0;
    const PULL: Pull = Pull::All;
    const REREADS: bool = true;

    fn edge_program(&self, _vertex: u32, state: &SearchState, _degree: u32) -> Option<f64> {
        Some(state.paths)
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a + b
    }

    fn finalize(&self, _vertex: u32, paths: f64, state: &SearchState) -> SearchState {
        if state.paths == 0.0 { SearchState { paths, dependency: waiting(self.level) } } else { *state }
    }

    fn is_active(&self, _vertex: u32, new: &SearchState, old: &SearchState) -> bool {
        new.paths != old.paths
    }

    fn waits(&self, _vertex: u32, state: &SearchState) -> bool {
        state.paths == 0.0
    }
}

/// The vertex program of the reverse pass: vertices at `level` send messages towards the source. The vertices at `level
/// - 1` compute their dependencies from the sums of these messages.
#[derive(Clone)]
struct SumDependencies {
    level: u32,
}

impl StepProgram for SumDependencies {
    type State = SearchState;
    type Message = f64;
    const NOTHING: f64 = 0.0;
    const PULL: Pull = Pull::All;
    const REREADS: bool = true;

    fn edge_program(&self, _vertex: u32, state: &SearchState, _degree: u32) -> Option<f64> {
        // If the field still holds the vertex's level, no shortest path continues from the vertex, and the dependency
        // is 0.
        Some((1.0 + state.dependency.max(0.0)) / state.paths)
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a + b
    }

    fn finalize(&self, vertex: u32, sum: f64, state: &SearchState) -> SearchState {
        match self.waits(vertex, state) {
            true => SearchState { dependency: state.paths * sum, ..*state },
            false => *state,
        }
    }

    fn is_active(&self, _vertex: u32, _new: &SearchState, _old: &SearchState) -> bool {
        false
    }

    fn waits(&self, _vertex: u32, state: &SearchState) -> bool {
        state.dependency == waiting(self.level - 1)
    }
}

/// Computes the centrality of all vertices, in columns `vertex`, `centrality`.
///
/// Cost for each source: the edges of reached vertices are read at most once in each direction. There are two passes
/// over vertex state: 16 bytes per vertex, and 8 more for the vertex's sum if there are several sources. A directed
/// graph that was imported without in-edges is transposed first, with a notice in the summary.
///
/// # Errors
/// - Returns [`Error::BadOption`] if the number of sources is 0.
/// - Returns [`Error::Overflow`] if a vertex has more than 10^308 shortest paths.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn betweenness(graph: &Graph, job: &Job, options: &BetweennessOptions) -> Result<Answer> {
    check_budget(job, "betweenness")?;
    if options.sources == 0 {
        return Err(Error::BadOption { option: "sources", found: "0".into(), expected: "at least 1".into() });
    }
    let vertices = graph.vertices();
    let in_edges = graph.in_edges(job)?;
    let question = (options.sources, options.seed);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph betweenness", question)?;
    let in_memory = match options.tuning.regime {
        // The sums may be on flash, since they are read and written in order, once per source.
        None => memory_bytes::<f64>(vertices) <= job.budget().free_bytes() / 16,
        Some(regime) => regime != Regime::External,
    };
    // With one source, the centrality of a vertex is its dependency, and no array of sums is needed.
    let mut sums = match options.sources.min(vertices) {
        1 => None,
        _ => Some(VertexArray::new(job, vertices, in_memory, |_| 0f64)?),
    };
    let mut rows = vec![graph.out().unweighted()];
    if graph.info().directed {
        rows.push(in_edges.unweighted());
    }
    let kept_bytes = checkpoints.bytes::<f64>(vertices);
    let setup = Setup { tuning: &options.tuning, rows, has_in_edges: true, dense: None, kept_bytes };
    let mut engine = Engine::new::<CountPaths>(job, setup, |_| SearchState::default())?;
    let done = match &mut sums {
        Some(sums) => engine.resume_states_from(&checkpoints, sums)?.map_or(0, |(_, numbers)| numbers[0]),
        None => 0,
    };
    let sources = (1..).zip(draw(vertices, options.sources, options.seed));
    for (number, source) in sources.skip(done as usize) {
        search(&mut engine, job, source)?;
        engine.set(source, |state| state.dependency = 0.0)?;
        let Some(sums) = &mut sums else { break };
        let mut cursor = sums.cursor();
        engine.for_each(|vertex, state| {
            let dependency = state.found(vertex)?;
            if dependency > 0.0 {
                let sum = *cursor.get(vertex)?;
                cursor.replace(vertex, &sum, sum + dependency)?;
            }
            *state = SearchState::default();
            Ok(())
        })?;
        // Between two sources a checkpoint holds only the sums, which are much smaller than the state within a source.
        engine.save_states(&mut checkpoints, sums, &Frontier::All, [number, 0])?;
    }
    let mut summary = engine.summary();
    summary.notice = graph.reverse_notice();
    if options.sources < vertices {
        for source in draw(vertices, options.sources, options.seed) {
            summary.sources.push(graph.id_of(job, source)?);
        }
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("centrality", DataType::Float64, false),
    ]));
    let rows = match sums {
        Some(sums) => {
            drop(engine);
            let column = |_: u32, sums: &[f64]| Ok(vec![Arc::new(Float64Array::from(sums.to_vec())) as _]);
            VertexRows::stream(graph, job, schema, StateStream::new(vertices, sums)?, column)?
        }
        None => {
            let column = |first: u32, states: &[SearchState]| {
                let found = (first..).zip(states).map(|(vertex, state)| state.found(vertex));
                let found = found.collect::<Result<Vec<f64>>>()?;
                Ok(vec![Arc::new(Float64Array::from(found)) as _])
            };
            VertexRows::stream(graph, job, schema, engine.into_stream()?, column)?
        }
    };
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Searches from `source`, and computes the paths and dependencies of all vertices.
fn search(engine: &mut Engine<SearchState>, job: &Job, source: u32) -> Result<()> {
    let mut log = KeyLog::new(job)?;
    engine.set(source, |state| *state = SearchState { paths: 1.0, dependency: waiting(0) })?;
    let mut active = Frontier::one(source);
    let mut level = 0;
    // The number of edges out of the vertices of each level; element 0 is that of the source.
    let mut edges: Vec<u64> = Vec::new();
    // The first level whose rows are cached in memory.
    let mut cached_from = u32::MAX;
    while !active.is_empty() {
        level += 1;
        let edges_before = edges.iter().sum();
        let asked = Superstep {
            log: Some(&mut log),
            edges_before,
            ..Superstep::new(&active, FrontierCollection::Yes)
        };
        let done = engine.superstep(&mut CountPaths { level }, asked)?;
        if engine.has_cached() {
            cached_from = cached_from.min(level + 1);
        }
        edges.push(done.edges);
        active = done.active;
        log.end_level();
    }
    let mut levels = log.into_levels()?.peekable();
    // The list of the last superstep is empty, since that superstep reached no vertex.
    levels.next();
    while let Some(reached) = levels.next() {
        level -= 1;
        let backwards = Some(ReverseSuperstep {
            waiting: levels.peek(),
            edges: [level, level - 1].map(|level| edges[level as usize]),
            are_cached: level >= cached_from,
        });
        let asked = Superstep { backwards, ..Superstep::new(&reached, FrontierCollection::No) };
        engine.superstep(&mut SumDependencies { level }, asked)?;
    }
    engine.forget_cached();
    Ok(())
}

/// Draws `count` vertices without repetition, in ascending order (Floyd's method). Returns all vertices if `count` is
/// at least their number.
pub(crate) fn draw(vertices: u64, count: u64, seed: u64) -> Box<dyn Iterator<Item = u32>> {
    if count >= vertices {
        return Box::new((0..vertices).map(|vertex| vertex as u32));
    }
    let mut drawn = BTreeSet::new();
    for (turn, last) in (vertices - count..vertices).enumerate() {
        let vertex = ((random_u64(seed, turn as u64) as u128 * (last as u128 + 1)) >> 64) as u32;
        if !drawn.insert(vertex) {
            drawn.insert(last as u32);
        }
    }
    Box::new(drawn.into_iter())
}

/// Compares centralities with those that Brandes' published algorithm computes in memory. A difference may be at most
/// 10^-6 of the expected centrality, or 10^-6 if the expected centrality is below 1.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(
    graph: &InMemoryGraph,
    options: &BetweennessOptions,
    answer: &[f64],
) -> std::result::Result<String, String> {
    let count = graph.vertices();
    let mut centrality = vec![0.0; count];
    for source in draw(count as u64, options.sources, options.seed) {
        let (mut levels, mut paths, mut dependency) = (vec![NONE; count], vec![0.0; count], vec![0.0; count]);
        (levels[source as usize], paths[source as usize]) = (0, 1.0);
        let (mut queue, mut visited) = (VecDeque::from([source]), Vec::new());
        while let Some(vertex) = queue.pop_front() {
            visited.push(vertex);
            for &to in graph.out(vertex as usize) {
                if levels[to as usize] == NONE {
                    levels[to as usize] = levels[vertex as usize] + 1;
                    queue.push_back(to);
                }
                if levels[to as usize] == levels[vertex as usize] + 1 {
                    paths[to as usize] += paths[vertex as usize];
                }
            }
        }
        for &vertex in visited.iter().rev() {
            let vertex = vertex as usize;
            for &to in graph.out(vertex) {
                let to = to as usize;
                if levels[to] == levels[vertex] + 1 {
                    dependency[vertex] += paths[vertex] / paths[to] * (1.0 + dependency[to]);
                }
            }
            if vertex != source as usize {
                centrality[vertex] += dependency[vertex];
            }
        }
    }
    for (vertex, (&found, &expected)) in answer.iter().zip(&centrality).enumerate() {
        let error = (found - expected).abs() / f64::max(1.0, expected);
        if error.is_nan() || error > 1e-6 {
            return Err(format!("vertex {}: centrality {found}, expected {expected}", graph.id(vertex)));
        }
    }
    Ok(format!("{count} centralities, as Brandes' algorithm in memory finds them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_distinct_repeatable_and_spread() {
        for (vertices, count) in [(10, 3), (10, 10), (10, 20), (1 << 20, 1000)] {
            let drawn: Vec<u32> = draw(vertices, count, 7).collect();
            assert_eq!(drawn.len() as u64, count.min(vertices));
            assert!(drawn.is_sorted_by(|a, b| a < b) && drawn.iter().all(|&v| (v as u64) < vertices));
            assert_eq!(drawn, draw(vertices, count, 7).collect::<Vec<_>>());
        }
        let low = draw(1 << 20, 1000, 7).filter(|&vertex| vertex < 1 << 19).count();
        assert!((400..600).contains(&low), "{low} of 1000 in the lower half");
    }
}
