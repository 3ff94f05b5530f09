//! What queries of this process do now: for whoever ends the process, since it takes too much memory, and says where that was.
//!
//! ```text
//!   threads   [ FilterExec: k > 5 | - | SortReduceGroup: GROUP BY town ]     each in a place of its own
//!                ▲ put there when a stream of that operator is asked for rows, and taken away behind it
//! ```
//!
//! An operator that asks another one for rows does so on the same thread, so the place of a thread tells the innermost. It costs about
//! 50 ns for each operator and batch. The nodes of a plan are wrapped when all is planned: no rule sees a [`Traced`].

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

/// Characters of the name of an operator.
const NAME_CHARS: usize = 100;

/// What a thread does.
type Place = Mutex<Option<Arc<str>>>;

/// The places of all threads that ever worked on a query; those that ended are taken out by the next that comes.
static PLACES: Mutex<Vec<Weak<Place>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: RefCell<Option<Arc<Place>>> = const { RefCell::new(None) };
}

/// What queries in this process do at the moment, as far as that can be told without waiting: the operator that the calling thread is
/// in, else one that another thread is in, as EXPLAIN calls it; "planning"; or nothing.
pub fn doing() -> Option<String> {
    let of = |place: &Place| place.try_lock().ok()?.as_deref().map(str::to_string);
    let mine = MINE.try_with(|mine| mine.try_borrow().ok()?.as_deref().and_then(of));
    let any = || PLACES.try_lock().ok()?.iter().find_map(|place| of(&*place.upgrade()?));
    mine.ok().flatten().or_else(any)
}

/// As long as it lives, the thread does this.
pub(crate) struct Doing(Option<Arc<str>>);

impl Doing {
    pub fn begin(what: Arc<str>) -> Doing {
        Doing(put(Some(what)))
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        put(self.0.take());
    }
}

/// Puts something in the place of this thread, and gives what was there.
fn put(what: Option<Arc<str>>) -> Option<Arc<str>> {
    let put =
        |place: &Place| std::mem::replace(&mut *place.lock().unwrap_or_else(PoisonError::into_inner), what);
    // A thread that ends has no place any more.
    MINE.try_with(|mine| put(mine.borrow_mut().get_or_insert_with(new_place))).ok().flatten()
}

fn new_place() -> Arc<Place> {
    let place = Arc::new(Place::default());
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    places.retain(|place| place.strong_count() > 0);
    places.push(Arc::downgrade(&place));
    place
}

/// A plan whose operators tell what is done in them.
pub(crate) fn traced(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        let name = short_name(&*node);
        Ok(Transformed::yes(Arc::new(Traced { node, name }) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(wrapped.data)
}

/// An operator as EXPLAIN shows it, without what is beyond [`NAME_CHARS`].
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

/// An operator in whose streams it is told what is done; all else is left to it.
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
        // All is planned.
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
        let _doing = Doing::begin(self.name.clone());
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
        let _doing = Doing::begin(self.name.clone());
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
    fn the_innermost_is_told_and_of_the_own_thread_first() {
        let outer = Doing::begin("outer".into());
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(doing().is_some(), "what another thread does");
                let inner = Doing::begin("elsewhere".into());
                assert_eq!(doing().as_deref(), Some("elsewhere"));
                drop(inner);
            });
        });
        let inner = Doing::begin("inner".into());
        assert_eq!(doing().as_deref(), Some("inner"));
        drop(inner);
        assert_eq!(doing().as_deref(), Some("outer"));
        drop(outer);
    }
}
