//! Refuses queries over the columns of vectors on nodes, in a build without the feature `sql`.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::Job;
use inshore_vectors::RowSet;

use super::VectorsOnNodes;
use crate::error::{Error, Result};

fn refused<T>(what: &str) -> Result<T> {
    let what = format!("{what}, which needs a build with the feature `sql`");
    Err(Error::Request { operation: "nearest query", what })
}

/// Refuses a predicate.
pub(crate) fn select_on_nodes(_: &VectorsOnNodes, _: &Job, _: &str) -> Result<RowSet> {
    refused("where: found a predicate")
}

/// The columns of an answer. This build cannot read them.
pub(crate) enum ColumnsOfAnswer {}

impl ColumnsOfAnswer {
    /// Refuses columns.
    pub fn open(_: &VectorsOnNodes, _: &Job, _: &[String]) -> Result<ColumnsOfAnswer> {
        refused("select: found columns of vectors on nodes")
    }

    pub fn schema(&self) -> &SchemaRef {
        match *self {}
    }

    pub fn add(&mut self, _: RecordBatch, _: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        match *self {}
    }

    pub fn finish(&mut self, _: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        match *self {}
    }
}
