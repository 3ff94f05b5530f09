//! Three vertex programs that use nothing but the public API of `inshore::graph`:
//!
//! - [`Rank`]: PageRank, where every vertex is active in every superstep, with an aggregate.
//! - [`Widest`]: widest paths, which read weights, and end when no vertex changes.
//! - [`Reach`]: which vertices can be reached from some others, a search with early exit.
//!
//! Read [`Rank`] first, then `main.rs`, which runs it over a file of edges.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use inshore::graph::{
    SearchProgram, VertexId, VertexProgram,
    program::{Column, Needs, SuperstepInfo},
};

/// 1.0 in fixed point, with 62 bits behind the point: integer sums are the same in every order, sums of fractions are not.
const ONE: u64 = 1 << 62;

fn times(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 62) as u64
}

/// PageRank with dangling mass spread evenly (2018 thesis, section 9.7.1; LDBC Graphalytics): the column `rank`, whose sum is 1.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// The share of rank that follows edges, 0 to 1.
    pub damping: f64,
    /// The number of vertices in the graph.
    pub vertices: u64,
}

impl VertexProgram for Rank {
    type Value = u64;
    type Message = u64;
    const NAME: &'static str = "rank";
    const NEEDS: Needs = Needs { weights: false, every_vertex: true };

    fn initial(&self, _vertex: VertexId) -> u64 {
        ONE / self.vertices
    }

    fn edge_program(
        &self,
        _at: &SuperstepInfo,
        _vertex: VertexId,
        rank: u64,
        out_degree: u64,
    ) -> Option<u64> {
        Some(rank / out_degree)
    }

    fn reduce(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn finalize(&self, at: &SuperstepInfo, _vertex: VertexId, sum: Option<u64>, _rank: u64) -> u64 {
        let damping = (self.damping * ONE as f64) as u64;
        let base = (ONE - damping + times(damping, at.aggregate)) / at.vertices;
        base + times(damping, sum.unwrap_or(0))
    }

    fn is_active(&self, _new: u64, _old: u64) -> bool {
        true
    }

    /// Adds up the rank of vertices that have no edges to send it along.
    fn aggregate(&self, rank: u64, out_degree: u64) -> u64 {
        if out_degree == 0 { rank } else { 0 }
    }

    fn columns(&self) -> Vec<Column<u64>> {
        vec![Column::float("rank", |rank| Some(rank as f64 / ONE as f64))]
    }
}

/// Widest paths from a vertex (Pollack 1960): the column `width` has the greatest least weight of a path, null where none leads. The
/// graph has weights above 0.
#[derive(Clone, Copy, Debug)]
pub struct Widest {
    /// The vertex where paths start; its own width is infinite.
    pub source: VertexId,
}

impl VertexProgram for Widest {
    type Value = f64;
    type Message = f64;
    const NAME: &'static str = "widest";
    const NEEDS: Needs = Needs { weights: true, every_vertex: false };

    fn initial(&self, vertex: VertexId) -> f64 {
        if vertex == self.source { f64::INFINITY } else { 0.0 }
    }

    fn starts(&self, vertex: VertexId, _width: f64) -> bool {
        vertex == self.source
    }

    fn edge_program(
        &self,
        _at: &SuperstepInfo,
        _vertex: VertexId,
        width: f64,
        _out_degree: u64,
    ) -> Option<f64> {
        Some(width)
    }

    fn along(&self, width: f64, weight: f64) -> f64 {
        width.min(weight)
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a.max(b)
    }

    fn finalize(&self, _at: &SuperstepInfo, _vertex: VertexId, found: Option<f64>, width: f64) -> f64 {
        found.map_or(width, |found| found.max(width))
    }

    fn is_active(&self, new: f64, old: f64) -> bool {
        new > old
    }

    fn columns(&self) -> Vec<Column<f64>> {
        vec![Column::float("width", |width| Some(width).filter(|width| *width > 0.0))]
    }
}

/// Vertices that can be reached from some sources: the columns `from`, the in-neighbour through which a vertex was reached first (of
/// several, the one with the smallest id), and `steps`, edges from the nearest source; null where no path leads. A source
/// is its own `from`.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The vertices where the search starts, sorted.
    pub sources: Vec<VertexId>,
}

impl SearchProgram for Reach {
    /// Steps from the nearest source, and the vertex before.
    type Value = (u64, Option<VertexId>);
    const NAME: &'static str = "reach";

    fn initial(&self, vertex: VertexId) -> Self::Value {
        let is_source = self.sources.binary_search(&vertex).is_ok();
        (0, is_source.then_some(vertex))
    }

    fn starts(&self, _vertex: VertexId, (_, from): Self::Value) -> bool {
        from.is_some()
    }

    fn waits(&self, (_, from): Self::Value) -> bool {
        from.is_none()
    }

    fn reached(&self, at: &SuperstepInfo, _: VertexId, from: VertexId, _: Self::Value) -> Self::Value {
        (at.number.into(), Some(from))
    }

    fn columns(&self) -> Vec<Column<Self::Value>> {
        vec![
            Column::vertex("from", |(_, from)| from),
            Column::unsigned("steps", |(steps, from): Self::Value| from.map(|_| steps)),
        ]
    }
}
