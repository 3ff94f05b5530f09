//! Checks an answer with the textbook algorithm, in memory.
//!
//! The check is for users who do not trust the engine. It reads the files of the graph, but does not use the engine:
//! each algorithm has a function `verify` that works on plain vectors. The whole graph must fit in memory, about 4
//! bytes per edge and 50 per vertex. The job's budget does not limit this memory.

use std::collections::HashMap;

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Float64Type, UInt32Type, UInt64Type},
};
use arrow_schema::{DataType, Field};
use inshore_store::{Budget, Job};
use inshore_tables::{Input, TableReader, column_names};
use serde::{Deserialize, Serialize};

pub use crate::in_memory::InMemoryGraph;
use crate::{
    BetweennessOptions, CommunitiesOptions, Error, Graph, PageRankOptions, Result,
    algorithms::{betweenness, bfs, clustering, communities, components, pagerank, sssp},
    ids::IdStream,
};

/// Repeats the options of the job that wrote the answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckOptions {
    /// PageRank and communities: the number of iterations.
    pub iterations: u32,
    /// PageRank: the damping.
    pub damping: f64,
    /// PageRank: the tolerance per vertex. If it is set, the ranks must have converged, after any number of iterations.
    pub vertex_tolerance: Option<f64>,
    /// BFS and shortest paths: the user's id of the source; by default the first vertex at level or distance 0.
    pub source: Option<u64>,
    /// Betweenness: the number of sources that were drawn.
    pub sources: u64,
    /// Betweenness: the seed of the random numbers by which the sources were drawn.
    pub seed: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let (ranks, centrality) = (PageRankOptions::default(), BetweennessOptions::default());
        CheckOptions {
            iterations: ranks.iterations_max(),
            damping: ranks.damping,
            vertex_tolerance: ranks.vertex_tolerance,
            source: None,
            sources: centrality.sources,
            seed: centrality.seed,
        }
    }
}

/// Reports the result of a check.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Tells whether the answer is right.
    pub good: bool,
    /// The properties that were compared, or the difference that was found, as text.
    pub facts: Vec<String>,
}

/// Checks the table that a job wrote. The names of the table's columns identify the algorithm that wrote it.
///
/// # Errors
/// The function fails if the table is not an answer of this crate, or cannot be read. It returns
/// [`Error::NoSuchVertex`] if the graph does not have the source. A wrong answer is not an error: see
/// [`CheckReport::good`].
pub fn check(graph: &Graph, job: &Job, answer: &Input, options: &CheckOptions) -> Result<CheckReport> {
    job.start_phase("loading the graph", "edges", graph.out().entries);
    let mut plain = InMemoryGraph::load(graph, job)?;
    let ids = IdStream::new(job, graph)?.take(plain.vertices())?;
    plain.ids.clone_from(&ids);
    let names = column_names(answer, job.budget())?;
    job.start_phase("checking", "vertices", 0);
    let table = Table { answer, ids: &ids, budget: job.budget() };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let verdict = match names[..] {
        ["vertex", "rank"] => {
            let CheckOptions { iterations, damping, vertex_tolerance, .. } = *options;
            pagerank::check_damping(damping)?;
            vertex_tolerance.map_or(Ok(()), |each| pagerank::check_vertex_tolerance(each, damping))?;
            let options = PageRankOptions {
                iterations: Some(iterations),
                damping,
                vertex_tolerance,
                ..PageRankOptions::default()
            };
            table.floats("rank")?.and_then(|ranks| pagerank::verify(&plain, &options, &ranks))
        }
        ["vertex", "centrality"] => {
            let (sources, seed) = (options.sources, options.seed);
            let options = BetweennessOptions { sources, seed, ..BetweennessOptions::default() };
            table.floats("centrality")?.and_then(|values| betweenness::verify(&plain, &options, &values))
        }
        ["vertex", "component"] => {
            table.labels("component")?.and_then(|labels| components::verify(&plain, &labels))
        }
        ["vertex", "community"] => {
            let options =
                CommunitiesOptions { iterations: options.iterations, ..CommunitiesOptions::default() };
            let directed = graph.info().directed;
            let labels = table.labels("community")?;
            labels.and_then(|labels| communities::verify(&plain, directed, &options, &labels))
        }
        ["vertex", "coefficient"] => {
            table.floats("coefficient")?.and_then(|values| clustering::verify(&plain, &values))
        }
        ["vertex", "distance"] => {
            let source = options.source.map(|id| graph.number_of(job, id)).transpose()?;
            table.distances()?.and_then(|distances| {
                let source = source.map(|source| source as usize);
                let source = source.or_else(|| distances.iter().position(|&distance| distance == Some(0.0)));
                sssp::verify(&plain, source.ok_or("no vertex is at distance 0")?, &distances)
            })
        }
        ["vertex", "parent", "level"] => {
            let source =
                options.source.map(|id| graph.number_of(job, id)).transpose()?.map(|source| source as usize);
            table.visits()?.and_then(|visits| {
                let is_first = |visit: &Option<(u32, u32)>| visit.is_some_and(|(_, level)| level == 0);
                let source = source.or_else(|| visits.iter().position(is_first));
                bfs::verify(&plain, source.ok_or("no vertex is at level 0")?, &visits)
            })
        }
        _ => {
            return Err(Error::BadInput {
                place: answer.name().to_string(),
                found: format!("columns {}", names.join(", ")),
                expected: "the columns of a result of graph pagerank, bfs, sssp, communities, clustering, components or betweenness".to_string(),
            });
        }
    };
    Ok(match verdict {
        Ok(fact) => CheckReport { good: true, facts: vec![fact] },
        Err(fault) => CheckReport { good: false, facts: vec![fault] },
    })
}

/// The contents of a table, or the reason why the table is not an answer.
type CheckResult<T> = std::result::Result<T, String>;

/// The parent and the level of each vertex, or `None` if the vertex was not reached.
type Visits = Vec<Option<(u32, u32)>>;

struct Table<'a> {
    answer: &'a Input,
    ids: &'a [u64],
    budget: &'a Budget,
}

impl Table<'_> {
    /// Reads the vertex column and the given `columns` (name, type, whether nulls are allowed), and calls `each` with
    /// each batch. The ids in the vertex column must be those of the graph, in ascending order.
    fn read(
        &self,
        columns: &[(&str, DataType, bool)],
        mut each: impl FnMut(&RecordBatch) -> CheckResult<()>,
    ) -> Result<CheckResult<()>> {
        let mut fields = vec![Field::new("vertex", DataType::UInt64, false)];
        fields.extend(columns.iter().map(|(name, kind, nulls)| Field::new(*name, kind.clone(), *nulls)));
        let mut reader = TableReader::open_with(self.answer, 8192, self.budget, |_| Ok(fields))?;
        let mut row = 0;
        while let Some(batch) = reader.next_batch()? {
            for &id in batch.column(0).as_primitive::<UInt64Type>().values() {
                match self.ids.get(row) {
                    Some(&expected) if expected == id => row += 1,
                    Some(expected) => {
                        return Ok(Err(format!("row {row} has vertex {id}, expected {expected}")));
                    }
                    None => return Ok(Err(format!("row {row}: the graph has only {row} vertices"))),
                }
            }
            if let Err(fault) = each(&batch) {
                return Ok(Err(fault));
            }
        }
        if row < self.ids.len() {
            return Ok(Err(format!("the result has {row} rows, and the graph {} vertices", self.ids.len())));
        }
        Ok(Ok(()))
    }

    fn floats(&self, column: &str) -> Result<CheckResult<Vec<f64>>> {
        let mut values = Vec::with_capacity(self.ids.len());
        let read = self.read(&[(column, DataType::Float64, false)], |batch| {
            values.extend_from_slice(batch.column(1).as_primitive::<Float64Type>().values());
            Ok(())
        })?;
        Ok(read.map(|()| values))
    }

    fn distances(&self) -> Result<CheckResult<Vec<Option<f64>>>> {
        let mut values = Vec::with_capacity(self.ids.len());
        let read = self.read(&[("distance", DataType::Float64, true)], |batch| {
            values.extend(batch.column(1).as_primitive::<Float64Type>().iter());
            Ok(())
        })?;
        Ok(read.map(|()| values))
    }

    fn numbers(&self) -> HashMap<u64, u32> {
        self.ids.iter().enumerate().map(|(number, &id)| (id, number as u32)).collect()
    }

    fn labels(&self, column: &str) -> Result<CheckResult<Vec<u32>>> {
        let numbers = self.numbers();
        let mut labels = Vec::with_capacity(self.ids.len());
        let read = self.read(&[(column, DataType::UInt64, false)], |batch| {
            for id in batch.column(1).as_primitive::<UInt64Type>().values() {
                labels.push(*numbers.get(id).ok_or_else(|| format!("{column} {id} is not a vertex"))?);
            }
            Ok(())
        })?;
        Ok(read.map(|()| labels))
    }

    fn visits(&self) -> Result<CheckResult<Visits>> {
        let numbers = self.numbers();
        let mut visits = Vec::with_capacity(self.ids.len());
        let columns = [("parent", DataType::UInt64, true), ("level", DataType::UInt32, true)];
        let read = self.read(&columns, |batch| {
            let (parents, levels) =
                (batch.column(1).as_primitive::<UInt64Type>(), batch.column(2).as_primitive::<UInt32Type>());
            for row in 0..batch.num_rows() {
                visits.push(match (parents.is_null(row), levels.is_null(row)) {
                    (true, true) => None,
                    (false, false) => {
                        let id = parents.value(row);
                        let parent =
                            numbers.get(&id).ok_or_else(|| format!("parent {id} is not a vertex"))?;
                        Some((*parent, levels.value(row)))
                    }
                    _ => {
                        return Err(format!(
                            "vertex {}: parent or level is null, but not both",
                            self.ids[visits.len()]
                        ));
                    }
                });
            }
            Ok(())
        })?;
        Ok(read.map(|()| visits))
    }
}
