//! Betweenness centrality by Brandes' algorithm (2001), from sampled sources or from all.
//!
//! From each source a breadth-first search counts shortest paths: a vertex's `paths` is the sum of those of its
//! predecessors. Then levels are walked back, last first: a vertex w sends `(1 + dependency) / paths` along its
//! in-edges, and a vertex v one level before takes `paths` of its own times the sum. The centrality of v is the sum
//! of its dependencies over the sources, not scaled: in an undirected graph with all vertices as sources, each
//! pair counts from both ends.
//!
//! The lists of vertices of all levels, which the way back needs, are kept on flash (4 bytes a reached vertex).
//!
//! Path counts are 64-bit floats, exact to 2^53; dependencies depend on the order of sums in their last
//! bits, so centralities are the same over budgets and threads to about 10^-9 and not bit for bit. (The thesis,
//! section 9.7.1, counts along one parent only; Brandes' counts along all.)

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use arrow::{
    array::Float64Array,
    datatypes::{DataType, Field, Schema},
};
use inshore_store::Job;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NONE;
use crate::{
    Answer, Error, Graph, Result, Tuning,
    answer::VertexRows,
    check::Plain,
    checkpoint::Checkpoints,
    engine::{Engine, Frontier, KeyLog, VertexProgram},
    generate::random_u64,
    graph::check_budget,
};

/// What betweenness is to do.
#[derive(Clone, Copy, Debug)]
pub struct BetweennessOptions {
    /// How many vertices to search from, drawn without repetition; all if there are no more. 16 by default.
    pub sources: u64,
    /// The seed of the draw; 1 by default.
    pub seed: u64,
    /// Goes on where an interrupted job ended that asked the same of the same graph, and keeps what it needs for that,
    /// about this often, between two sources. [`Rows::finish`](crate::Rows::finish) forgets it. `None`: neither.
    pub resume: Option<Duration>,
    /// For tests and comparisons.
    pub tuning: Tuning,
}

impl Default for BetweennessOptions {
    fn default() -> Self {
        BetweennessOptions { sources: 16, seed: 1, resume: None, tuning: Tuning::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Centrality {
    centrality: f64,
    paths: f64,
    dependency: f64,
    level: u32,
    _padding: u32,
}

/// From the source outwards: counts paths.
#[derive(Clone)]
struct Outwards {
    level: u32,
}

impl VertexProgram for Outwards {
    type State = Centrality;
    type Message = f64;
    const NOTHING: f64 = 0.0;

    fn edge_program(&self, _vertex: u32, state: &Centrality, _degree: u32) -> Option<f64> {
        Some(state.paths)
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a + b
    }

    fn finalize(&self, _vertex: u32, paths: f64, state: &Centrality) -> Centrality {
        if state.level == NONE { Centrality { paths, level: self.level, ..*state } } else { *state }
    }

    fn is_active(&self, new: &Centrality, old: &Centrality) -> bool {
        new.level != old.level
    }
}

/// Back to the source: sums dependencies of the vertices at `level`.
#[derive(Clone)]
struct Back {
    level: u32,
}

impl VertexProgram for Back {
    type State = Centrality;
    type Message = f64;
    const NOTHING: f64 = 0.0;

    fn edge_program(&self, _vertex: u32, state: &Centrality, _degree: u32) -> Option<f64> {
        Some((1.0 + state.dependency) / state.paths)
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a + b
    }

    fn finalize(&self, _vertex: u32, sum: f64, state: &Centrality) -> Centrality {
        match state.level != NONE && state.level + 1 == self.level {
            true => Centrality { dependency: state.paths * sum, ..*state },
            false => *state,
        }
    }

    fn is_active(&self, _new: &Centrality, _old: &Centrality) -> bool {
        false
    }
}

/// Centrality of all vertices: columns `vertex`, `centrality`.
///
/// Cost for each source: the edges of the reached vertices twice, once in each direction, and two passes over vertex
/// state (32 bytes a vertex). A directed graph that was imported without in-edges is turned around first; the
/// summary's notice says so.
///
/// # Errors
/// [`Error::BadOption`] for no sources; [`Error::Overflow`] where shortest paths are more than 10^308;
/// [`inshore_store::Error::BudgetTooSmall`]; I/O and damage; cancellation.
pub fn betweenness(graph: &Graph, job: &Job, options: &BetweennessOptions) -> Result<Answer> {
    check_budget(job, "betweenness")?;
    if options.sources == 0 {
        return Err(Error::BadOption { option: "sources", found: "0".into(), expected: "at least 1".into() });
    }
    let vertices = graph.vertices();
    let in_edges = graph.in_edges(job)?;
    let fresh = Centrality { level: NONE, ..Centrality::default() };
    let question = (options.sources, options.seed);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph betweenness", question)?;
    let kept_bytes = checkpoints.bytes::<Centrality>(vertices);
    let mut engine = Engine::new::<Outwards>(job, vertices, &options.tuning, kept_bytes, |_| fresh)?;
    let done = engine.take_up(&checkpoints)?.map_or(0, |(_, numbers)| numbers[0]);
    let mut rows = vec![graph.out().unweighted()];
    if graph.info().directed {
        rows.push(in_edges.unweighted());
    }
    let sources = (1..).zip(draw(vertices, options.sources, options.seed));
    for (number, source) in sources.skip(done as usize) {
        let mut log = KeyLog::new(job)?;
        engine.set(source, |state| *state = Centrality { paths: 1.0, level: 0, ..*state })?;
        let mut active = Frontier::one(source);
        let mut level = 0;
        while !active.is_empty() {
            level += 1;
            engine.hold_if_walked(&mut rows, kept_bytes)?;
            active =
                engine.superstep(&mut Outwards { level }, &[&rows[0]], &active, true, Some(&mut log))?.active;
            log.end_level();
        }
        // The last list is empty, and nobody lies before the source.
        for reached in log.into_levels()?.skip(1) {
            level -= 1;
            let in_edges = rows.last().expect("out-edges at least");
            engine.superstep(&mut Back { level }, &[in_edges], &reached, false, None)?;
        }
        engine.for_each(|vertex, state| {
            if !(state.paths.is_finite() && state.dependency.is_finite()) {
                let what =
                    format!("more shortest paths lead to vertex number {vertex} than 64 bits can count");
                return Err(Error::Overflow { what });
            }
            let dependency = if vertex == source { 0.0 } else { state.dependency };
            *state = Centrality { centrality: state.centrality + dependency, ..fresh };
            Ok(())
        })?;
        // What lies between two sources is little against what one takes.
        engine.save(&mut checkpoints, &Frontier::All, [number, 0])?;
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
    let column = |_: u32, states: &[Centrality]| {
        let values = states.iter().map(|state| state.centrality);
        Ok(vec![Arc::new(Float64Array::from_iter_values(values)) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, engine.into_stream()?, column)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// `count` vertices without repetition, in ascending order (Floyd's method); all where `count` is no less.
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

/// Compares centralities with Brandes' algorithm as its paper gives it, in memory: each within 10^-6.
///
/// # Errors
/// What is wrong, in words, with the user's ids.
pub fn verify(
    graph: &Plain,
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
