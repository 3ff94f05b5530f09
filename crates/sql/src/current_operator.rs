//! Tracks which operator each thread of this process runs. A process that reaches its memory limit reports that
//! operator.
//!
//! ```text
//!   threads   [ FilterExec: k > 5 | - | SortReduceGroup: GROUP BY town ]     one slot for each thread
//!                ▲ set while a stream of that operator computes rows
//! ```
//!
//! An operator pulls rows from its input on its own thread, so the slot of a thread names the innermost operator.
//! Tracking takes about 50 ns for each operator and batch. The nodes of a plan are wrapped in [`Traced`] after
//! planning, so that no optimizer rule sees the wrappers.

use std::{
    cell::RefCell,
    fmt::{self, Display, Formatter, Write},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::{
    common::{
        Statistics,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::Result,
    execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties,
        execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions},
        metrics::MetricsSet,
    },
};
use futures::Stream;

/// The greatest length of an operator's name in characters.
const NAME_CHARS: usize = 100;

/// The slot of a thread: the name of the operator that runs.
type Slot = Mutex<Option<Arc<str>>>;

/// The slots of all threads that run, or have run, a query. A new thread removes the slots of threads that have ended.
static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN_SLOT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Returns the name of the operator that the calling thread runs, or else of an operator that any other thread runs.
///
/// The name is the operator's line in EXPLAIN, or "planning". The function never waits: a slot that another thread
/// has locked counts as empty. If no slot has a name, the result is `None`.
pub fn current_operator() -> Option<String> {
    let of = |slot: &Slot| slot.try_lock().ok()?.as_deref().map(str::to_string);
    let mine = OWN_SLOT.try_with(|mine| mine.try_borrow().ok()?.as_deref().and_then(of));
    let any = || SLOTS.try_lock().ok()?.iter().find_map(|slot| of(&*slot.upgrade()?));
    mine.ok().flatten().or_else(any)
}

/// Puts a name (an operator or "planning") into this thread's slot. Dropping the guard restores the previous name.
pub(crate) struct StageGuard(Option<Arc<str>>);

impl StageGuard {
    pub fn begin(what: Arc<str>) -> StageGuard {
        StageGuard(swap_name(Some(what)))
    }
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        swap_name(self.0.take());
    }
}

/// Puts a name into the slot of this thread, and returns the previous name.
fn swap_name(what: Option<Arc<str>>) -> Option<Arc<str>> {
    let swap =
        |slot: &Slot| std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), what);
    // A thread that is ending has no slot.
    OWN_SLOT.try_with(|mine| swap(mine.borrow_mut().get_or_insert_with(new_slot))).ok().flatten()
}

fn new_slot() -> Arc<Slot> {
    let slot = Arc::new(Slot::default());
    let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    slots.retain(|slot| slot.strong_count() > 0);
    slots.push(Arc::downgrade(&slot));
    slot
}

/// Wraps every operator of a plan so that its thread's slot names the operator while rows are computed.
pub(crate) fn traced(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        let name = short_name(&*node);
        Ok(Transformed::yes(Arc::new(Traced { node, name }) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(wrapped.data)
}

/// Formats an operator as EXPLAIN does, and cuts the text off after [`NAME_CHARS`] characters.
fn short_name(node: &dyn ExecutionPlan) -> Arc<str> {
    struct Whole<'a>(&'a dyn ExecutionPlan);
    impl Display for Whole<'_> {
        fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
            self.0.fmt_as(DisplayFormatType::Default, text)
        }
    }
    struct Short {
        text: String,
        left: usize,
    }
    impl Write for Short {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            for char in more.chars() {
                self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
                self.text.push(char);
            }
            Ok(())
        }
    }
    let mut short = Short { text: String::new(), left: NAME_CHARS };
    if write!(short, "{}", Whole(node)).is_err() {
        short.text.push_str(" ...");
    }
    short.text.into()
}

/// A wrapper around an operator. Its streams put the operator's name into the thread's slot, and all other calls go
/// to the operator.
#[derive(Debug)]
struct Traced {
    node: Arc<dyn ExecutionPlan>,
    name: Arc<str>,
}

impl Traced {
    fn of(&self, node: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(Traced { node, name: self.name.clone() })
    }
}

impl DisplayAs for Traced {
    fn fmt_as(&self, kind: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        self.node.fmt_as(kind, text)
    }
}

impl ExecutionPlan for Traced {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(&*self.node)
    }

    fn schema(&self) -> SchemaRef {
        self.node.schema()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.node.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.node.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.node.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.node.children()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(self.node.clone().replace_children(children, options)?))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.node.apply_expressions(visit)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(self.node.clone().reset_state()?))
    }

    fn with_new_state(&self, state: Arc<dyn std::any::Any + Send + Sync>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(self.of(self.node.with_new_state(state)?))
    }

    fn repartitioned(&self, _: usize, _: &ConfigOptions) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        // Planning is finished, so the partitions no longer change.
        Ok(None)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.node.metrics()
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        #[expect(deprecated, reason = "the way from one operator to another")]
        self.node.partition_statistics(partition)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let _guard = StageGuard::begin(self.name.clone());
        let rows = self.node.execute(partition, context)?;
        Ok(Box::pin(TracedRows { rows, name: self.name.clone() }))
    }
}

struct TracedRows {
    rows: SendableRecordBatchStream,
    name: Arc<str>,
}

impl Stream for TracedRows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let _guard = StageGuard::begin(self.name.clone());
        self.rows.as_mut().poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl RecordBatchStream for TracedRows {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_innermost_operator_of_the_own_thread_comes_first() {
        let outer = StageGuard::begin("outer".into());
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(current_operator().is_some(), "what another thread does");
                let inner = StageGuard::begin("elsewhere".into());
                assert_eq!(current_operator().as_deref(), Some("elsewhere"));
                drop(inner);
            });
        });
        let inner = StageGuard::begin("inner".into());
        assert_eq!(current_operator().as_deref(), Some("inner"));
        drop(inner);
        assert_eq!(current_operator().as_deref(), Some("outer"));
        drop(outer);
    }
}
