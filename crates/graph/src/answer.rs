//! Answers of algorithms. An answer consists of streamed rows and a summary.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::SchemaRef;
use inshore_store::{Job, Keep};
use serde::Serialize;

use crate::{
    Graph, Result,
    checkpoint::Checkpoints,
    engine::{State, StateStream},
    ids::IdStream,
};

/// The result of an algorithm: rows and a summary.
#[derive(Debug)]
pub struct Answer {
    /// Facts about the whole run and its result.
    pub summary: Summary,
    /// One row for each vertex, in the order of the user's ids.
    pub rows: Rows,
}

/// Reports facts about a run and its result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The number of supersteps that were run. For clustering and components it is the number of passes over the edges.
    pub supersteps: u32,
    /// The number of supersteps before the checkpoint from which the job resumed, if it resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supersteps_kept: Option<u32>,
    /// The number of edges that were traversed, over all supersteps.
    pub edges_traversed: u64,
    /// The place of vertex state: "memory" or "flash".
    pub state: &'static str,
    /// The strategy that combined updates: "columns" (destination blocks), "dense", "partition", "merge", or several of
    /// them. It is "look-up" if vertices read their neighbours' state and sent no updates, and "union-find" if edges
    /// joined trees.
    pub strategy: String,
    /// Tells whether all edges were read into memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub edges_held: bool,
    /// The number of vertices that were reached (BFS, shortest paths), including the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<u64>,
    /// The number of levels of the search, including that of the source (BFS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<u32>,
    /// The number of connected components.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub components: Option<u64>,
    /// The number of triangles (clustering).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triangles: Option<u64>,
    /// The sum of the changes of all ranks in the last iteration (PageRank).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_change: Option<f64>,
    /// An upper bound on the sum of absolute differences between the ranks and the converged ranks (PageRank with a
    /// tolerance per vertex).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_max: Option<f64>,
    /// The user's ids of the sampled sources (betweenness).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<u64>,
    /// A notice for the user, if in-edges had to be computed for this job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// Computes the rows of a table in batches of at most some thousands of rows.
pub(crate) trait RowSource: Send {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>>;
}

/// Streams the rows of an answer once. The stream holds the job's memory and scratch files until it is dropped.
pub struct Rows {
    schema: SchemaRef,
    job: Job,
    source: Box<dyn RowSource>,
    keep: Option<Keep>,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Rows({:?})", self.schema)
    }
}

impl Rows {
    /// Returns the names and types of the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the job that made the rows.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the next rows (some thousands at most), or `None` at the end.
    ///
    /// # Errors
    /// The function fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.source.next_batch()
    }

    /// Removes the job's checkpoints. Call this function once the rows are stored safely, since no job can resume from
    /// these checkpoints afterwards.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Io`] if a read fails.
    pub fn finish(self) -> Result<()> {
        self.keep.map_or(Ok(()), |keep| Ok(keep.finish()?))
    }

    /// Attaches the checkpoints that [`Rows::finish`] is to remove.
    pub(crate) fn kept(self, checkpoints: Checkpoints) -> Rows {
        Rows { keep: checkpoints.into_keep(), ..self }
    }
}

/// The number of rows in a batch: few enough for the smallest budget, and enough to make the overhead of a batch
/// negligible.
const BATCH_ROWS: usize = 8 << 10;

/// Makes a row for each vertex: the vertex's id, and columns that are computed from its state.
pub(crate) struct VertexRows<S: State, C> {
    schema: SchemaRef,
    job: Job,
    ids: IdStream,
    states: StateStream<S>,
    columns: C,
}

impl<S, C> VertexRows<S, C>
where
    S: State,
    C: FnMut(u32, &[S]) -> Result<Vec<ArrayRef>> + Send + 'static,
{
    /// Streams rows. `columns` gets the number of a vertex and the states of this vertex and the following ones. It
    /// computes all columns except the first, which has the vertices' ids.
    pub fn stream(
        graph: &Graph,
        job: &Job,
        schema: SchemaRef,
        states: StateStream<S>,
        columns: C,
    ) -> Result<Rows> {
        job.start_phase("writing rows", "vertices", graph.vertices());
        let ids = IdStream::new(job, graph)?;
        let source = VertexRows { schema: schema.clone(), job: job.clone(), ids, states, columns };
        Ok(Rows { schema, job: job.clone(), source: Box::new(source), keep: None })
    }
}

impl<S, C> RowSource for VertexRows<S, C>
where
    S: State,
    C: FnMut(u32, &[S]) -> Result<Vec<ArrayRef>> + Send,
{
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.job.check_cancelled()?;
        let first = self.states.position();
        let states = self.states.take(BATCH_ROWS)?;
        if states.is_empty() {
            return Ok(None);
        }
        let ids = self.ids.take(states.len())?;
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(ids))];
        columns.extend((self.columns)(first, &states)?);
        self.job.progress().add(states.len() as u64);
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        Ok(Some(batch.expect("columns of the schema's types and of one length")))
    }
}
