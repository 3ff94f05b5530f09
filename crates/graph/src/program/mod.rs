//! Vertex programs of users. The programming model is that of the 2018 thesis (section 9.2, algorithms 1 and 3). The
//! engine of the built-in algorithms runs the programs within a memory budget.
//!
//! - [`VertexProgram`]: active vertices send messages along their edges, all messages to one vertex are reduced to one
//!   message, and the vertex gets a new value. The program tells whether the vertex is active in the next superstep.
//!   [`run`] runs such a program.
//! - [`SearchProgram`]: a vertex waits until one of its in-neighbours is active, and is then reached. [`search`] runs
//!   such a program.
//! - [`VertexId`], [`FixedWidth`], [`Column`]: vertices, values, and columns of the answer.
//!
//! ```text
//!   thesis          here
//!   A_0             starts              the vertices that are active in the first superstep
//!   edge_program    edge_program,       once for each active vertex; the part that depends on the edge,
//!                   along               its weight, once for each edge
//!   vertex_update   reduce              associative and commutative
//!   finalize        finalize            new value from the reduced message and the value before
//!   is_active       is_active           whether the vertex sends in the next superstep
//! ```
//!
//! The thesis stores the value before `finalize` (algorithms 1 and 3) or after it (algorithm 4); this engine stores the
//! value after it. Algorithm 4 also lists the sources of edges to vertices that changed; this engine does not offer
//! that list. A program whose vertices all send in every superstep declares [`Needs::every_vertex`] instead, and a
//! program whose vertices send only changes needs no such list.
//!
//! Example: a program that labels each vertex with the smallest vertex of its component.
//!
//! ```
//! use inshore_graph::{Graph, ImportOptions, VertexId, VertexProgram, import};
//! use inshore_graph::program::{Column, Needs, ProgramOptions, SuperstepInfo, run};
//! # use inshore_store::{Budget, Cancel, Store};
//! # use inshore_tables::Input;
//!
//! struct Smallest;
//!
//! impl VertexProgram for Smallest {
//!     type Value = VertexId;
//!     type Message = VertexId;
//!     const NAME: &'static str = "smallest";
//!     const NEEDS: Needs = Needs { weights: false, every_vertex: false };
//!
//!     fn initial(&self, vertex: VertexId) -> VertexId {
//!         vertex
//!     }
//!     fn edge_program(&self, _: &SuperstepInfo, _: VertexId, label: VertexId, _: u64) -> Option<VertexId> {
//!         Some(label)
//!     }
//!     fn reduce(&self, a: VertexId, b: VertexId) -> VertexId {
//!         a.min(b)
//!     }
//!     fn finalize(&self, _: &SuperstepInfo, _: VertexId, message: Option<VertexId>, label: VertexId) -> VertexId {
//!         message.map_or(label, |message| message.min(label))
//!     }
//!     fn is_active(&self, new: VertexId, old: VertexId) -> bool {
//!         new < old
//!     }
//!     fn columns(&self) -> Vec<Column<VertexId>> {
//!         vec![Column::vertex("smallest", Some)]
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let edges = folder.path().join("edges.txt");
//! # std::fs::write(&edges, "20 30\n30 10\n50 40\n")?;
//! # let store = Store::open(folder.path().join("store"))?;
//! # let job = store.job(Budget::new(16 << 20, 2), Cancel::default())?;
//! # let options = ImportOptions { undirected: true, ..ImportOptions::default() };
//! # import(&store, &job, "links", &[Input::new(&edges)], &options)?;
//! let graph = Graph::open(&store, "links")?;
//! let job = store.job(Budget::new(16 << 20, 2), Cancel::default())?;
//! let mut rows = run(&graph, &job, Smallest, &ProgramOptions::default())?.rows;
//! let batch = rows.next_batch()?.expect("five vertices");
//! # use arrow_array::{cast::AsArray, types::UInt64Type};
//! let smallest = batch.column(1).as_primitive::<UInt64Type>();
//! assert_eq!(smallest.values(), &[10, 10, 10, 40, 40]);
//! # Ok(())
//! # }
//! ```
//!
//! # Contract
//!
//! - **Memory** stays within the job's budget. Values and messages have a fixed width, and are in memory if they fit
//!   and on flash otherwise. The fields of the program itself are not counted; the caller accounts for them.
//! - **The same answer** at every budget and number of threads has two conditions. `reduce` must be associative and
//!   commutative to the bit, and all functions must depend only on their arguments and on fields that do not change.
//!   Integer sums, minima, maxima and bit operations qualify. Sums of floating-point numbers do not qualify, since they
//!   differ in their last digits from run to run. [`VertexProgram`] describes how to avoid that.
//! - **Panics** in a function of the program, on any thread, end the job with
//!   [`Error::Program`](crate::Error::Program), which names the program, the function and the vertex. (If the process
//!   is built with `panic = "abort"`, a panic ends the process.)
//! - **Cancellation**, progress, `--explain` texts and checkpoints ([`Resume`]) are those of the built-in algorithms.
//!
//! # Traits that stay private
//!
//! The engine's steps (push, pull, destination blocks, in memory or through sort-reduce) use one trait, `StepProgram`.
//! Both the hosts of programs and the built-in algorithms implement it. The trait stays private because its
//! implementations make promises that are easy to break, and that no engine can check cheaply. One promise is that a
//! message may be skipped if a vertex has seen a value (`kept`). Another is that a pull finds the message that a push
//! would have sent (`message_of`), and another is that a bit pattern changes nothing (`NOTHING`). A program that breaks
//! a promise gives different answers at different budgets. Vertex numbers are also 32 bits wide in that trait. `State`
//! and `Message` tie values to the layout of buffers and to atomic operations; [`FixedWidth`] hides both. `Sender`,
//! `SingleSender` and `AccumulatorArray` are ways in which a message gets from an edge to its vertex, and the engine
//! chooses among these.

mod column;
mod host;
mod hosted;
mod run;
mod value;

use std::time::Duration;

pub use column::Column;
pub use run::{run, search};
pub use value::{Bits, FixedWidth, MessageBits, VertexId};

use crate::Tuning;

/// Declares what a program needs from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Tells whether weights are read in addition to edges and [`VertexProgram::along`] is called. Weights take 8 more
    /// bytes per edge.
    pub weights: bool,
    /// Tells whether every vertex is active in every superstep, and gets a new value in each, with or without a message
    /// (as in PageRank). Edges may then be cut into destination blocks first. `starts` and `is_active` are not called,
    /// and [`ProgramOptions::supersteps`] must limit the number of supersteps.
    pub every_vertex: bool,
}

/// The position of a job. Functions of a program get this position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuperstepInfo {
    /// The number of the current superstep; the first one is 1.
    pub number: u32,
    /// The number of vertices in the graph.
    pub vertices: u64,
    /// The sum of [`VertexProgram::aggregate`] over the vertices that are active in this superstep. `finalize` gets the
    /// sum; in `edge_program` it is 0.
    pub aggregate: u64,
}

/// Defines an algorithm as functions of one vertex, one edge, or two messages (2018 thesis, section 9.2).
///
/// Functions are called by many threads at once and in no order that a program may rely on. They must not block.
///
/// **Sums of floating-point numbers**: floating-point addition is not associative. A program whose answer is to be the
/// same at every number of threads must sum fixed-point numbers, as PageRank does: a `u64` with 62 bits behind the
/// point.
///
/// **Reserved bits**: a message whose bits are all set (`u64::MAX`, `i64::MAX`, one NaN) stands for no message. The job
/// of a program that sends or makes such a message ends with [`Error::Program`](crate::Error::Program). Values may have
/// any bits.
pub trait VertexProgram: Send + Sync + 'static {
    /// The value of each vertex: 4, 8 or 16 bytes.
    type Value: FixedWidth;
    /// The message along an edge: 4 or 8 bytes.
    type Message: FixedWidth<Bits: MessageBits>;

    /// The name of the program in errors, progress and checkpoints.
    const NAME: &'static str;

    /// Declares the needs of the program.
    const NEEDS: Needs;

    /// Returns the value of a vertex before the first superstep.
    fn initial(&self, vertex: VertexId) -> Self::Value;

    /// Tells whether a vertex is active in the first superstep (the thesis' `A_0`). By default all vertices are active.
    fn starts(&self, _vertex: VertexId, _value: Self::Value) -> bool {
        true
    }

    /// Returns the message that an active vertex sends along each of its `out_degree` out-edges; `None` sends nothing.
    /// The function is called only for vertices with out-edges.
    fn edge_program(
        &self,
        at: &SuperstepInfo,
        vertex: VertexId,
        value: Self::Value,
        out_degree: u64,
    ) -> Option<Self::Message>;

    /// Returns the message that arrives at the end of an edge of this weight. The function is called only with
    /// [`Needs::weights`].
    fn along(&self, message: Self::Message, _weight: f64) -> Self::Message {
        message
    }

    /// Combines two messages to one vertex (the thesis' `vertex_update`). The function must be associative and
    /// commutative.
    fn reduce(&self, a: Self::Message, b: Self::Message) -> Self::Message;

    /// Returns the new value of a vertex. `message` is the reduction of all messages to the vertex. It is `None` if
    /// there was no message, which happens only with [`Needs::every_vertex`].
    fn finalize(
        &self,
        at: &SuperstepInfo,
        vertex: VertexId,
        message: Option<Self::Message>,
        value: Self::Value,
    ) -> Self::Value;

    /// Tells whether a vertex that got a message is active in the next superstep.
    fn is_active(&self, new: Self::Value, old: Self::Value) -> bool;

    /// Returns the number that an active vertex adds to [`SuperstepInfo::aggregate`]; sums wrap at 2^64. (These are
    /// Pregel's aggregators: Malewicz et al. 2010, section 3.3.) The function is called for vertices without out-edges
    /// too.
    fn aggregate(&self, _value: Self::Value, _out_degree: u64) -> u64 {
        0
    }

    /// Returns the columns of the answer other than `vertex`.
    fn columns(&self) -> Vec<Column<Self::Value>>;
}

/// Defines a search with early exit. Each vertex waits until one of its in-neighbours is active, and ignores all other
/// in-neighbours.
///
/// In each superstep, the engine chooses the direction that reads less. Either active vertices send along their
/// out-edges, or waiting vertices scan their in-edges and stop at the first active vertex (Beamer, Asanović and
/// Patterson, "Direction-optimizing breadth-first search", 2012). Both directions give the same answer by construction:
/// a search defines no messages, and each reached vertex gets the active in-neighbour with the smallest id. A vertex
/// that was reached is active in the next superstep.
pub trait SearchProgram: Send + Sync + 'static {
    /// The value of each vertex: 4, 8 or 16 bytes.
    type Value: FixedWidth;

    /// The name of the program in errors, progress and checkpoints.
    const NAME: &'static str;

    /// Returns the value of a vertex before the first superstep.
    fn initial(&self, vertex: VertexId) -> Self::Value;

    /// Tells whether the search starts at a vertex.
    fn starts(&self, vertex: VertexId, value: Self::Value) -> bool;

    /// Tells whether a vertex with this value still waits to be reached.
    fn waits(&self, value: Self::Value) -> bool;

    /// Returns the new value of a waiting vertex that was reached from `from`. A vertex with the new value must not
    /// wait: otherwise the job ends with [`Error::Program`](crate::Error::Program).
    fn reached(
        &self,
        at: &SuperstepInfo,
        vertex: VertexId,
        from: VertexId,
        value: Self::Value,
    ) -> Self::Value;

    /// Returns the columns of the answer other than `vertex`.
    fn columns(&self) -> Vec<Column<Self::Value>>;
}

/// Sets the options of a run.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    /// The largest number of supersteps. `None`, the default, runs until no vertex is active.
    pub supersteps: Option<u32>,
    /// Saves checkpoints, and resumes from a checkpoint. With `None`, the default, the job saves no checkpoints and
    /// does not resume.
    pub resume: Option<Resume>,
    /// Overrides the choices of the engine, for tests and comparisons.
    pub tuning: Tuning,
}

/// Saves checkpoints, and resumes an interrupted job that had the same question on the same graph.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The approximate interval between two checkpoints. [`Rows::finish`](crate::Rows::finish) removes the last
    /// checkpoint.
    pub every: Duration,
    /// Names what the job computes: the program's version and all of its parameters. The engine cannot tell two
    /// programs of one name apart. If the program changes and the question does not, a job resumes with values of the
    /// old program.
    pub question: String,
}
