//! Which nodes of a plan are replaced by ours, and what these tell when they have run.

use std::{
    fmt::{self, Debug, Display, Formatter},
    sync::{Arc, Mutex, OnceLock, Weak},
};

use datafusion::{
    common::{
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan,
        coop::CooperativeExec,
        joins::{CrossJoinExec, NestedLoopJoinExec},
        recursive_query::RecursiveQueryExec,
    },
};
use inshore_sortreduce::{Stats, rows::RowStats};
use inshore_store::{Job, format_bytes};
use serde::Serialize;

use crate::{elsewhere::Near, group::Group, join::Join, memory::Memory, order::Order, spills::Spills};

/// What one operator of a query did, all its partitions together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ran {
    /// What it was for: "GROUP BY town", "ORDER BY town", "JOIN a = b".
    pub operator: String,
    /// How it went in each of its partitions, each way once: "in memory", "sort-reduce", "sort-reduce of numbers",
    /// "hash join", "sort-merge join".
    pub ways: Vec<&'static str>,
    /// Rows that came in; for a join those of both sides as far as they were seen.
    pub rows_in: u64,
    /// Rows that went through a sort.
    pub rows_sorted: u64,
    /// Runs that were written to flash.
    pub runs: u64,
    /// Bytes of them.
    pub bytes_spilled: u64,
}

impl Display for Ran {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        let ways = if self.ways.is_empty() { "not run".to_string() } else { self.ways.join(" and ") };
        write!(text, "{ways}, {} rows", self.rows_in)?;
        if self.runs > 0 {
            write!(text, ", {} runs of {}", self.runs, format_bytes(self.bytes_spilled))?;
        }
        Ok(())
    }
}

/// Where the partitions of an operator write down what they did.
#[derive(Debug)]
pub(crate) struct Notes(Mutex<Ran>);

impl Notes {
    pub fn went(&self, way: &'static str, rows_in: u64) {
        let mut ran = self.0.lock().expect("no panic under this lock");
        if !ran.ways.contains(&way) {
            ran.ways.push(way);
        }
        ran.rows_in += rows_in;
    }

    pub fn sorted(&self, stats: &RowStats) {
        self.wrote(stats.rows_in, stats.runs, stats.bytes_spilled);
    }

    pub fn reduced(&self, stats: &Stats) {
        self.wrote(stats.records_in, stats.runs, stats.bytes_spilled);
    }

    fn wrote(&self, rows: u64, runs: u64, bytes_spilled: u64) {
        let mut ran = self.0.lock().expect("no panic under this lock");
        ran.rows_sorted += rows;
        ran.runs += runs;
        ran.bytes_spilled += bytes_spilled;
    }

    pub fn ran(&self) -> Ran {
        self.0.lock().expect("no panic under this lock").clone()
    }
}

/// What operators may hold in memory at most, where that is not left to the budget: tests make them go on with
/// sort-reduce, and write runs, for few rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of a table of groups, or of a side of a join.
    pub table_bytes: Option<u64>,
    /// Bytes of rows that are sorted at once.
    pub arena_bytes: Option<usize>,
}

/// What all operators of a query share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub job: Job,
    pub memory: Arc<Memory>,
    pub spills: Arc<Spills>,
    pub limits: Limits,
    /// What the fragments of the query share, as long as one of them runs.
    pub near: Arc<OnceLock<Weak<Near>>>,
    all: Arc<Mutex<Vec<Arc<Notes>>>>,
}

impl Shared {
    pub fn new(job: &Job, memory: Arc<Memory>, limits: Limits) -> Shared {
        let spills = Arc::new(Spills::of(job));
        Shared { job: job.clone(), memory, spills, limits, near: Arc::default(), all: Arc::default() }
    }

    pub fn notes(&self, operator: String) -> Arc<Notes> {
        let notes = Arc::new(Notes(Mutex::new(Ran { operator, ..Ran::default() })));
        self.all.lock().expect("no panic under this lock").push(notes.clone());
        notes
    }

    /// An operator was planned that will not run.
    pub fn forget(&self, notes: &Arc<Notes>) {
        self.all.lock().expect("no panic under this lock").retain(|other| !Arc::ptr_eq(other, notes));
    }

    /// What every operator that was planned did, in the order of the plan from below.
    pub fn ran(&self) -> Vec<Ran> {
        let all = self.all.lock().expect("no panic under this lock");
        all.iter().map(|notes| notes.ran()).collect()
    }
}

/// Puts our operators where theirs would end with the memory.
#[derive(Debug)]
pub(crate) struct Replace(pub Shared);

impl PhysicalOptimizerRule for Replace {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.exists(|node| Ok(node.is::<RecursiveQueryExec>()))? {
            self.0.memory.expect_again();
        }
        let replaced = plan.transform_up(|node| {
            let ours: Arc<dyn ExecutionPlan> = if let Some(group) = Group::of(&node, &self.0)? {
                Arc::new(group)
            } else if let Some(order) = Order::of(&node, &self.0)? {
                Arc::new(order)
            } else if let Some(join) = Join::of(&node, &self.0)? {
                Arc::new(join)
            } else if let Some(pausing) = yielding(&node) {
                pausing
            } else {
                return Ok(Transformed::no(node));
            };
            Ok(Transformed::yes(ours))
        })?;
        Ok(replaced.data)
    }

    fn name(&self) -> &str {
        "sort-reduce"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A cross or nested-loop join, with a pause after each batch that it makes: one batch of its input makes any number of them, and
/// the runtime can stop a task, and advance the timer of the deadline, only in a pause.
fn yielding(node: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let multiplies = node.is::<CrossJoinExec>() || node.is::<NestedLoopJoinExec>();
    multiplies.then(|| Arc::new(CooperativeExec::new(node.clone())) as _)
}

/// A node that stands for one of the library's: all but running it is left to that.
macro_rules! stands_for_original {
    ($node:ident, $name:literal) => {
        impl datafusion::physical_plan::DisplayAs for $node {
            fn fmt_as(
                &self,
                kind: datafusion::physical_plan::DisplayFormatType,
                text: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                let ran = self.notes.ran();
                write!(text, "{}: {}", $name, ran.operator)?;
                if !ran.ways.is_empty() {
                    write!(text, ", ran={ran}")?;
                }
                if matches!(kind, datafusion::physical_plan::DisplayFormatType::Verbose) {
                    write!(text, ", instead of ")?;
                    self.original.fmt_as(kind, text)?;
                }
                Ok(())
            }
        }

        impl datafusion::physical_plan::ExecutionPlan for $node {
            fn name(&self) -> &str {
                $name
            }

            fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
                self.original.properties()
            }

            fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                self.original.children()
            }

            fn maintains_input_order(&self) -> Vec<bool> {
                self.original.maintains_input_order()
            }

            fn benefits_from_input_partitioning(&self) -> Vec<bool> {
                self.original.benefits_from_input_partitioning()
            }

            fn apply_expressions(
                &self,
                visit: &mut dyn FnMut(
                    &std::sync::Arc<dyn datafusion::physical_plan::PhysicalExpr>,
                ) -> datafusion::error::Result<
                    datafusion::common::tree_node::TreeNodeRecursion,
                >,
            ) -> datafusion::error::Result<datafusion::common::tree_node::TreeNodeRecursion> {
                self.original.apply_expressions(visit)
            }

            fn with_new_children(
                self: std::sync::Arc<Self>,
                children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            ) -> datafusion::error::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                let original = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
                    self.original.clone(),
                    children,
                )?;
                let Some(mut ours) = $node::of(&original, &self.shared)? else { return Ok(original) };
                // The same operator: to run once more, as one of a recursive query does.
                self.shared.forget(&ours.notes);
                (ours.claim, ours.notes) = (self.claim.clone(), self.notes.clone());
                Ok(std::sync::Arc::new(ours))
            }

            fn execute(
                &self,
                partition: usize,
                context: std::sync::Arc<datafusion::execution::TaskContext>,
            ) -> datafusion::error::Result<datafusion::execution::SendableRecordBatchStream> {
                self.run(partition, context)
            }
        }
    };
}
pub(crate) use stands_for_original;
