//! Runs the stages of a job over a list of nodes: the decisions, as one state machine without I/O, threads or clock.
//!
//! The nouns:
//!
//! - A [`Plan`] is a list of [`Stage`]s. A *map* stage reads input partitions, of which nodes hold replicas. A *merge*
//!   stage reads an exchange.
//! - An *exchange* is blocking and on disk: each attempt of a stage writes one output with a range for each partition
//!   of the next stage. An attempt of the next stage begins when each producer partition has an output, and reads one
//!   range of each.
//! - An *attempt* computes a partition on a node. It has an [`AttemptToken`], and ends with an [`Output`] or a failure.
//! - A *node* pulls: it asks for work when a slot is free. Nothing is assigned ahead, so no speed is predicted.
//! - The [`Scheduler`] receives [`Event`]s, each with its time, and returns [`Action`]s. A driver carries these out.
//!
//! ```text
//!                 map           exchange            merge
//!   replica ─► attempt 0 ─► [range 0 | range 1] ─┬─► attempt 2 ─► result, partition 0
//!   replica ─► attempt 1 ─► [range 0 | range 1] ─┴─► attempt 3 ─► result, partition 1
//!
//!   events, each with its time ──► Scheduler ──► actions
//!     Joined, Lost, Draining,                      Reserve, Unreserve, RenewLease,
//!     Asked, Reserved, LeaseExpired,               Start, Resume, Cancel, DeleteScratch,
//!     Finished, Failed, FetchFailed,               Extend, Release, Finish, Fail
//!     Tick, Cancelled ...
//! ```
//!
//! # Rules
//!
//! **Plans that grow.** A plan whose last stage has an exchange is open. When that stage is complete, the scheduler asks
//! for the stages that follow ([`Action::Extend`]). The driver decides them from the counts that attempts report with
//! their ends, so a stage of unknown number costs no round trip more than a planned one. Lost outputs of all stages are
//! computed again as in any plan. A draining node keeps the outputs of an open plan, since any of them may still be read.
//!
//! **One output.** A partition has at most one current output and at most two attempts. The first attempt that finishes
//! wins, and the other one is cancelled. A consumer takes each range from one attempt, as a whole and by its checksum.
//! Later messages of an attempt that is over are dropped, and an output that comes too late is deleted.
//!
//! **Order of work.** A node that asks gets, in this order: an attempt of its own that waited for ranges; an output
//! that must move; a queued partition of the earliest stage that can run, its own replicas first, then a replica of the
//! node with the longest queue; a second attempt. A partition that reads state is left to the node that stores its
//! state, as long as that node gets attempts. A second attempt is for the oldest attempt that runs alone and for
//! longer than the finished attempts of its stage took on average. It begins only when nothing else is left.
//!
//! **Lost nodes.** The cluster reports a loss, or a node is silent for the time of its lease. Attempts and outputs of
//! the node are gone. Lost outputs are computed again where they are needed: a stage is needed if it makes the result
//! or if a partition of a consumer has no output. All outputs are kept until the job ends, because a lost partition of
//! a stage needs one range of each partition of the stage before. If no node holds a replica of a needed input, the job
//! fails and names the partitions and nodes.
//!
//! **Waiting for ranges.** A merge attempt that misses ranges fetches all others, keeps them, frees its slot and waits.
//! It resumes when other attempts have computed the missing outputs. A loss in the exchange therefore costs the lost
//! outputs, and not the merges that run. The slot that a waiting attempt frees can compute what the attempt waits for,
//! so that attempts never wait for each other in a circle.
//!
//! **Causes of failed fetches.** *Gone*: the output is computed again. *Unreachable*: the fetch is tried again. After
//! three such failures between two nodes that the driver hears, the node with more unreachable counterparts counts as
//! cut off and is lost. Nodes that died end by their lease before. *Slow*: the attempt has waited for the last ranges
//! for as long as it took to fetch all others. Their node gets no more attempts, and its outputs are computed again
//! from other replicas while the old ones stay in use. To wait as long as was spent costs at most twice the best
//! choice, whatever the speed of the node, and needs no estimate (the ski-rental problem; Karlin et al., Competitive
//! Snoopy Caching, Algorithmica 1988).
//!
//! **Failures.** A failed attempt is retried on another node if there is one, up to [`Options::max_failures`]. A node
//! with a full disk gets no more attempts; its outputs stay in use. A fatal failure ends the job.
//!
//! **Draining nodes.** A draining node gets no attempts. Its needed outputs are copied by attempts on other nodes, and
//! computed again if a copy fails. When the job needs nothing more from the node, the node is released.
//!
//! **Memory.** The stages of a level run at the same time, after all stages of lower levels. Memory for a level is
//! reserved on all nodes or on none, in the order of their numbers.
//!
//! **Connections.** Half of a node's connections are shared by the merge attempts in its slots, as their fan-in. The
//! other half serves. To spread the load, an attempt fetches from nodes in the order of their numbers, begins after its
//! own, and a node lets further requests wait. The scheduler cannot see which nodes serve, so the second limit is the
//! node's. In a job of more than 33 nodes, a fetch closes its connection at its end. Each attempt then has one connection
//! to fetch: the fan-in is a limit for nodes that fetch from several nodes at once, which these ones do not.
//!
//! **Leases and the end.** Scratch on a node is a lease, which the scheduler renews while the job runs. At the end it
//! releases each node. On nodes that it cannot reach, and after its own death, the lease runs out, and the node ends
//! the job's attempts and deletes its scratch.
//!
//! **Time.** Events carry the time since the start of the job. A job ends with a result or an error at the first
//! [`Event::Tick`] after its deadline, at the latest.
//!
//! # Invariants
//!
//! The simulator of the tests asserts each of these after each event:
//!
//! 1. An attempt starts or resumes only in a slot for which its node has asked, on a node that holds the memory for all
//!    of its slots and is not lost.
//! 2. A partition has at most one current output, at most two attempts, and never two on one node.
//! 3. A merge attempt starts only when each producer partition has an output, on a node that the driver does not know
//!    to be lost. A finished merge has read one range of each producer partition, from one finished attempt.
//! 4. Merge attempts on a node have at most half of its connections open to fetch.
//! 5. Memory is returned only when no attempt uses it.
//! 6. A job ends once, with all partitions of the result or with an error that names a loss, and nothing follows.
//!    When the last lease has ended, no attempt runs, no memory is reserved, and only the result is stored.
//!
//! # Cost
//!
//! The state grows with the number of partitions, attempts and nodes, and not with pairs of them: sizes and checksums
//! of the ranges stay with their output (see [`Output::checksum`]). 10,000 map and 10,000 merge partitions on 1,000
//! nodes take less than 16 MiB (`tests/memory.rs`).
//!
//! # Why a simulator
//!
//! The tests drive the scheduler with simulated nodes, which fail in each way and in each stage, and compare each
//! action with a record of their own. The real driver runs the same code.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod driver;
mod error;
mod events;
mod ids;
mod lists;
mod node;
mod options;
mod plan;
mod scheduler;
mod work;

pub use driver::{
    FinishedJob, InputPartition, JobInput, JobReport, JobStage, NodeReport, ResultRows, StageReport,
    StagesJob, check_name, run, run_growing,
};
pub use error::{DriverError, Error, NAMED, Result};
pub use events::{Action, Event, FailureKind, FetchFailure, Output, Work};
pub use ids::{AttemptToken, NodeId, PartitionId};
pub use node::{
    OutputWriter, READER_BYTES, RangeInput, RangeReader, WRITER_BYTES, memory_bytes, slot_bytes, with_stages,
};
pub use options::Options;
pub use plan::{Partitioning, Plan, Stage, StageInput, StageOutput};
pub use scheduler::{Counters, Scheduler};
pub use work::{MapInputs, MergeInputs, StageTask, StageWork};
