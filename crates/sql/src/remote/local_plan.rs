//! The part of a remote table scan that runs on a node (a remote machine). Finds a fragment in the node's own plan of
//! the client's query, and inserts a scan of local files.

use std::sync::Arc;

use datafusion::{
    common::{
        Statistics,
        tree_node::{Transformed, TreeNode},
    },
    physical_plan::{
        ExecutionPlan, coalesce_partitions::CoalescePartitionsExec,
        execution_plan::replace_children_if_necessary, sorts::sort::SortExec,
    },
};
use inshore_store::Job;

use super::{
    Fragment,
    pushdown::{is_round_robin, plan_text, replace_fragments},
    table::RemoteTableScan,
};
use crate::{
    Error,
    scan::{Feed, Files, Scan},
};

impl Fragment {
    /// Finds the fragment in this machine's plan of the query, and inserts a scan of local files. For
    /// `has_whole_rows`, see [`Files::has_whole_rows`].
    ///
    /// # Errors
    /// Returns [`Error::Query`] if the plan differs from the client's plan.
    pub(crate) fn of_plan(
        &self,
        job: &Job,
        plan: Arc<dyn ExecutionPlan>,
        feed: Feed,
        has_whole_rows: bool,
    ) -> crate::Result<Arc<dyn ExecutionPlan>> {
        let mut found = None;
        replace_fragments(plan, |number, table, node| {
            if number == self.number && table == self.table {
                found = Some(node.clone());
            }
            Ok(node.clone())
        })?;
        let found = found.filter(|node| plan_text(node) == self.plan).ok_or_else(|| {
            let what = "this node plans the query differently than the client: their versions differ, or the query asks \
                for the time";
            Error::Query(what.to_string())
        })?;
        let schema = self
            .schema()
            .ok_or_else(|| Error::Query("the fragment does not describe its table".to_string()))?;
        let mut files = Files::fed(job, schema, feed);
        files.has_whole_rows = has_whole_rows;
        let threads = job.budget().threads();
        let here = found.transform_up(|node| {
            if let Some(scan) = node.downcast_ref::<RemoteTableScan>() {
                let statistics = Statistics::new_unknown(&scan.schema);
                let (schema, columns) = (scan.schema.as_ref().clone(), scan.columns.clone());
                let predicate = scan.predicate.clone();
                let scan = Scan::new(files.again(), schema, columns, predicate, statistics, threads);
                return Ok(Transformed::yes(Arc::new(scan) as Arc<dyn ExecutionPlan>));
            }
            if is_round_robin(&node) {
                return Ok(Transformed::yes(node.children()[0].clone()));
            }
            if let Some(sort) = node.downcast_ref::<SortExec>()
                && !sort.preserve_partitioning()
            {
                let one: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(sort.input().clone()));
                return Ok(Transformed::yes(replace_children_if_necessary(node, vec![one])?));
            }
            Ok(Transformed::no(node))
        })?;
        Ok(here.data)
    }
}
