//! A graph in memory, for the textbook algorithms that check answers.

use inshore_store::Job;

use crate::{Graph, Result, csr::scan};

/// Holds a graph in plain vectors.
#[derive(Debug, Default)]
pub struct InMemoryGraph {
    starts: Vec<usize>,
    destinations: Vec<u32>,
    /// The weights of the edges; empty if edges have no weights.
    weights: Vec<f64>,
    /// The user's ids; empty if each vertex number is its own id.
    pub(crate) ids: Vec<u64>,
}

impl InMemoryGraph {
    /// Creates a graph from `(source, destination)` pairs in any order. Duplicate edges are kept.
    pub fn new(vertices: usize, edges: &[(u32, u32)]) -> InMemoryGraph {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        let mut starts = vec![0; vertices + 1];
        edges.iter().for_each(|&(source, _)| starts[source as usize + 1] += 1);
        (0..vertices).for_each(|vertex| starts[vertex + 1] += starts[vertex]);
        let destinations = edges.into_iter().map(|(_, destination)| destination).collect();
        InMemoryGraph { starts, destinations, ..InMemoryGraph::default() }
    }

    /// Adds a weight for each edge, in the order of edges.
    pub fn with_weights(self, weights: Vec<f64>) -> InMemoryGraph {
        assert_eq!(weights.len(), self.destinations.len());
        InMemoryGraph { weights, ..self }
    }

    pub(crate) fn load(graph: &Graph, job: &Job) -> Result<InMemoryGraph> {
        let vertices = graph.vertices() as usize;
        let mut plain = InMemoryGraph { starts: vec![0; vertices + 1], ..InMemoryGraph::default() };
        plain.destinations.reserve_exact(graph.out().entries as usize);
        scan(job, graph.out(), 0..graph.vertices(), |source, row, weights| {
            plain.destinations.extend_from_slice(row);
            plain.weights.extend_from_slice(weights.unwrap_or_default());
            plain.starts[source as usize + 1] = plain.destinations.len();
            Ok(())
        })?;
        for vertex in 0..vertices {
            // Vertices without edges begin where the vertex before them ends.
            plain.starts[vertex + 1] = plain.starts[vertex + 1].max(plain.starts[vertex]);
        }
        Ok(plain)
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the user's id of a vertex.
    pub fn id(&self, vertex: usize) -> u64 {
        self.ids.get(vertex).copied().unwrap_or(vertex as u64)
    }

    /// Returns the destinations of a vertex's out-edges.
    pub fn out(&self, vertex: usize) -> &[u32] {
        &self.destinations[self.starts[vertex]..self.starts[vertex + 1]]
    }

    /// Returns the weights of a vertex's out-edges; empty if edges have no weights.
    pub fn weights(&self, vertex: usize) -> &[f64] {
        self.weights.get(self.starts[vertex]..self.starts[vertex + 1]).unwrap_or_default()
    }
}
