//! Implements the node's side of an exact search for neighbours.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_kernel::{Failure, Reply, Task, TaskHandler, TaskSource};
use inshore_vectors::{Search, ShardSearch};
use serde_json::Value;

use super::{Arguments, KIND, merge::Summary};

/// The task handler that finds nearest neighbours in the shards of a node.
#[derive(Debug)]
pub struct SearchesVectors;

impl TaskHandler for SearchesVectors {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let Arguments { layout, queries, k, metric, radius_bits, selection } =
            serde_json::from_value(arguments)?;
        layout.check()?;
        let (row_bytes, query_bytes) = (layout.row_bytes() as u64, layout.query_bytes());
        let selection_bytes = selection.as_ref().map_or(0, |selection| 2 * selection.len() as u64);
        let mut memory = job.budget().reserve(selection_bytes, "a set of vectors")?;
        let selection = selection.map(|selection| BASE64.decode(selection)).transpose()?;
        memory.resize(selection.as_ref().map_or(0, Vec::len) as u64)?;
        let (mut search, queries) = {
            // The memory is that of the text, the elements, and a copy of the elements in a file.
            let _memory = job.budget().reserve(3 * queries.len() as u64, "queries")?;
            let elements = BASE64.decode(queries)?;
            let radius = radius_bits.map(f64::from_bits);
            let options = Search { k, metric, radius, ..Search::default() };
            let count = (elements.len() / query_bytes) as u64;
            (ShardSearch::new(&job, layout, &elements, options)?, count)
        };
        for source in sources {
            let TaskSource { source, .. } = source?;
            let (file, range) = source.part().ok_or("a source is not a file of a dataset")?;
            let offset = source.base().offset;
            if *range != (0..file.len()) || !offset.is_multiple_of(row_bytes) {
                return Err(format!(
                    "invalid request: bytes {range:?} of {} at {offset}: expected whole vectors",
                    file.name()
                )
                .into());
            }
            match &selection {
                None => search.add(file, offset / row_bytes)?,
                Some(selection) => search.add_selected(file, offset / row_bytes, selection)?,
            }
        }
        let (vectors, measured) = search.counts();
        search.finish(|batch| reply.batch(batch))?;
        let compared = vectors.saturating_mul(queries);
        Ok(serde_json::to_value(Summary { vectors, lists: 0, compared, measured, selected: Vec::new() })?)
    }
}
