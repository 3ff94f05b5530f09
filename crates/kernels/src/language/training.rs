//! N-grams counted where the samples lie.
//!
//! Each node counts the n-grams of its pieces and answers with all of them, in order; here the answers are merged as they come, and
//! equal ones add up.
//!
//! Cost: every different n-gram of a node goes over the wire once for each language, with its count.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use arrow_array::{
    Array, RecordBatch, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt32Type, UInt64Type},
};
use arrow_schema::{DataType, Field, Schema};
use inshore_kernel::{Error as ReadError, Failure, Reply, Task, Work};
use inshore_nodes::{self as nodes, Gathered, InOrder, Merged, Nodes, RunOptions, Whole, stream_from_nodes};
use inshore_store::Context;
use serde_json::{Value, json};

use super::{COUNTED_BYTES, GRAM_BYTES, Profiles, count};
use crate::{
    Error, Result,
    texts::{refuse_compressed, source_of_task},
};

const KIND: &str = "count-grams";
/// N-grams that are given at once.
const BATCH_ROWS: usize = 64 << 10;

/// The work of counting n-grams, for a node.
#[derive(Debug)]
pub struct CountsGrams;

impl Work for CountsGrams {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let expected = arguments();
        if task.arguments != expected {
            return Err(format!("expected a request for {expected}, got {}", task.arguments).into());
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

fn arguments() -> Value {
    json!({ "gram_bytes": GRAM_BYTES })
}

impl Profiles {
    /// Makes profiles of labelled samples on nodes, as [`Profiles::train`] does here.
    ///
    /// Memory here: 48 bytes for each different n-gram of a language, and a batch of each node's answer.
    ///
    /// # Errors
    /// As [`Profiles::train`] and [`nodes::run_on_nodes`]. A node that is lost in the middle of its answer, whose pieces no other has,
    /// is an error even where a partial answer would do.
    pub fn train_on_nodes(
        nodes: &Nodes,
        context: &Context,
        samples: Vec<(String, Vec<Whole>)>,
        grams: usize,
        run: &RunOptions,
    ) -> Result<(Profiles, Gathered)> {
        let mut all = Gathered::default();
        let profiles = Profiles::of_samples(samples, grams, |wholes| {
            refuse_compressed(nodes, context, &wholes, run).map_err(failed)?;
            let streams = stream_from_nodes(nodes, context, (KIND, true), arguments(), &wholes, run);
            let mut merged = Merged::<Grams>::new(streams.map_err(failed)?, ()).map_err(failed)?;
            let mut memory = context.budget().reserve(0, "n-grams that are counted")?;
            let mut counts: HashMap<u32, u64> = HashMap::new();
            while let Some((grams, rows)) = merged.next().map_err(failed)? {
                let most = (counts.len() + rows.len()) as u64 * COUNTED_BYTES;
                if most > memory.bytes() {
                    memory.resize(2 * most)?;
                }
                for row in rows {
                    let count = counts.entry(grams.grams.value(row)).or_default();
                    *count = count.saturating_add(grams.counts.value(row));
                }
            }
            all.add(merged.finish());
            Ok(counts)
        })?;
        Ok((profiles, all))
    }
}

fn failed(error: nodes::Error) -> Error {
    match error {
        nodes::Error::Store(error) => Error::Store(error),
        error => Error::Read(ReadError::Stream(Box::new(error))),
    }
}

/// N-grams in order, each once, and how often they occur.
struct Grams {
    grams: UInt32Array,
    counts: UInt64Array,
}

impl InOrder for Grams {
    type How = ();
    const ADDS_UP: bool = true;

    fn of_batch(batch: &RecordBatch, _: &()) -> Option<Grams> {
        let grams = batch.columns().first()?.as_primitive_opt::<UInt32Type>()?.clone();
        let counts = batch.columns().get(1)?.as_primitive_opt::<UInt64Type>()?.clone();
        let is_ordered = grams.values().is_sorted_by(|one, next| one < next);
        let is_full = grams.null_count() == 0 && counts.null_count() == 0;
        (is_full && is_ordered && counts.values().iter().all(|&count| count > 0))
            .then_some(Grams { grams, counts })
    }

    fn rows(&self) -> usize {
        self.grams.len()
    }

    fn compare(&self, row: usize, other: &Grams, other_row: usize) -> Ordering {
        self.grams.value(row).cmp(&other.grams.value(other_row))
    }

    fn alone(&self, row: usize) -> Grams {
        Grams { grams: vec![self.grams.value(row)].into(), counts: vec![self.counts.value(row)].into() }
    }
}
