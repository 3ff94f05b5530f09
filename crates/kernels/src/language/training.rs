//! Counts n-grams in a task on a node. The answer of the node contains all n-grams of the data on this node with their
//! counts, sorted by n-gram.
//!
//! A node sends each distinct n-gram over the network once for each language.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use inshore_kernel::{Failure, Reply, Task, TaskHandler};
use serde_json::{Value, json};

use super::{GRAM_BYTES, count};
use crate::texts::source_of_task;

const KIND: &str = "count-grams";
/// The number of n-grams in a batch.
const BATCH_ROWS: usize = 64 << 10;

/// The handler of the task that counts n-grams on a node.
#[derive(Debug)]
pub struct CountsGrams;

impl TaskHandler for CountsGrams {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let expected = CountsGrams::arguments();
        if task.arguments != expected {
            return Err(format!("expected the arguments {expected}, got {}", task.arguments).into());
        }
        let counts = count(&task.job, task.sources.map(source_of_task))?;
        let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
        counts.sort_unstable();
        let fields = [("gram", DataType::UInt32), ("count", DataType::UInt64)]
            .map(|(name, kind)| Field::new(name, kind, false));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        for rows in counts.chunks(BATCH_ROWS) {
            let (grams, counts): (Vec<u32>, Vec<u64>) = rows.iter().copied().unzip();
            let columns: Vec<Arc<dyn Array>> =
                vec![Arc::new(UInt32Array::from(grams)), Arc::new(UInt64Array::from(counts))];
            reply.batch(RecordBatch::try_new(schema.clone(), columns)?)?;
        }
        Ok(json!({}))
    }
}

impl CountsGrams {
    /// Returns the arguments of a request.
    pub fn arguments() -> Value {
        json!({ "gram_bytes": GRAM_BYTES })
    }
}
