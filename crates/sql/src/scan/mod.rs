//! Scans the files of a table. [`Files`] describes the files to the planner, and [`Scan`] is the plan node that reads
//! them.
//!
//! A table is a list of files with the same columns. For a fragment (the part of a query that nodes run), a [`Feed`]
//! returns the files one after the other. Partitions of a scan claim row groups (Parquet) or whole files from a
//! shared list. They skip row groups whose statistics show that no row passes the filter.

mod feed;
mod files;
mod node;
mod provider;
mod statistics;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::{
    physical_expr::EquivalenceProperties,
    physical_plan::{
        Partitioning, PlanProperties,
        execution_plan::{Boundedness, EmissionType},
    },
};

pub use feed::Feed;
pub(crate) use files::Files;
pub use node::FragmentScan;
pub(crate) use node::Scan;
pub(crate) use provider::{check_readable, predicate};
pub(crate) use statistics::row_statistics;

/// Returns the properties of a plan node whose rows have no known order.
pub(crate) fn properties(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}
