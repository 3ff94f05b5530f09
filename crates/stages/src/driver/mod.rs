//! The side of the driver: carries out the actions of the scheduler on nodes, and reports events to the scheduler.
//!
//! ```text
//!              ┌── event ◄── end of a task, tick, cancellation
//!   Scheduler ─┤
//!              └── action ─► Reserve: a session       Start, Resume: an attempt       Cancel: its connection ends
//! ```
//!
//! Every request is a task of the node, and its connection is its life: the driver cancels a task by dropping its
//! stream, and a node ends all tasks of a driver that it no longer hears. The driver pulls for the slots of a node: it
//! asks the scheduler for work when a session opens and when an attempt ends.

mod attempts;
mod finished;
mod job;
mod members;
mod run;
mod state;

pub use self::{
    finished::{FinishedJob, JobReport, NodeReport, ResultRows, StageReport, check_name},
    job::{InputPartition, JobInput, JobStage, StagesJob},
};
pub use run::{run, run_growing};
