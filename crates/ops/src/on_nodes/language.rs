//! This module identifies languages on the nodes that store the texts. It also computes profiles of languages on
//! the nodes that store the samples.
//!
//! To identify languages, the client sends profiles to the nodes, and the nodes return verdicts. To compute
//! profiles, each node counts the n-grams of its shards and returns all counts in the order of the n-grams. The
//! client merges the answers and adds the counts of equal n-grams.

use std::{cmp::Ordering, collections::HashMap};

use arrow_array::{
    Array, RecordBatch, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt32Type, UInt64Type},
};
use inshore_kernel::{Error as ReadError, TaskHandler};
use inshore_kernels::{
    COUNTED_GRAM_BYTES, CountsGrams, Error, LanguageOfText, LanguageResult, Profiles, Result,
};
use inshore_nodes::{
    DistributedFile, GatherReport, Merged, Nodes, OrderedRow, RunOptions, run_on_nodes, stream_from_nodes,
};
use inshore_store::Context;

use super::{failed, refuse_compressed};

/// Identifies the language of each file on nodes, or of each line that is not empty. The results are in order, and
/// equal those of [`inshore_kernels::identify`] for local files.
///
/// # Errors
/// - Returns the errors of [`run_on_nodes`], of `each` and of `skipped`.
/// - Returns [`Error::BadProfiles`] if the answer of a node has an unknown language.
pub fn identify_on_nodes(
    nodes: &Nodes,
    job: &Context,
    kernel: &LanguageOfText,
    wholes: &[DistributedFile],
    options: &RunOptions,
    mut each: impl FnMut(LanguageResult<'_>) -> Result<()> + Send,
    skipped: impl FnMut(Error) -> Result<()> + Send,
) -> Result<GatherReport> {
    refuse_compressed(nodes, job, wholes, options)
        .map_err(|error| Error::Read(ReadError::Stream(Box::new(error))))?;
    let languages = kernel.classifier().labels().len();
    let known = |found: LanguageResult<'_>| {
        if found.verdict.is_some_and(|verdict| verdict.language >= languages) {
            let what = format!(
                "protocol error: a node returned language {:?}, expected one of {languages}",
                found.verdict
            );
            return Err(Error::BadProfiles { name: found.name.to_string(), what });
        }
        each(found)
    };
    run_on_nodes(nodes, job, kernel, wholes, options, kernel.telling(known, skipped))
}

/// Computes profiles from labelled samples on nodes. The profiles equal those of [`Profiles::train`] for local
/// samples.
///
/// Memory of the client: 48 bytes for each distinct n-gram of a language, and a batch of each node's answer.
///
/// # Errors
/// Returns the errors of [`Profiles::train`] and [`run_on_nodes`]. If a node is lost while it sends its answer, and its
/// shards have no other replica, the result is an error even if partial answers are allowed.
pub fn train_on_nodes(
    nodes: &Nodes,
    context: &Context,
    samples: Vec<(String, Vec<DistributedFile>)>,
    grams: usize,
    run: &RunOptions,
) -> Result<(Profiles, GatherReport)> {
    let mut all = GatherReport::default();
    let profiles = Profiles::of_samples(samples, grams, |wholes| {
        refuse_compressed(nodes, context, &wholes, run).map_err(failed)?;
        let streams = stream_from_nodes(
            nodes,
            context,
            (CountsGrams.kind(), true),
            CountsGrams::arguments(),
            &wholes,
            run,
        );
        let mut merged = Merged::<Grams>::new(streams.map_err(failed)?, ()).map_err(failed)?;
        let mut memory = context.budget().reserve(0, "counted n-grams")?;
        let mut counts: HashMap<u32, u64> = HashMap::new();
        while let Some((grams, rows)) = merged.next().map_err(failed)? {
            let most = (counts.len() + rows.len()) as u64 * COUNTED_GRAM_BYTES;
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

/// A batch of distinct n-grams in order, with their counts.
struct Grams {
    grams: UInt32Array,
    counts: UInt64Array,
}

impl OrderedRow for Grams {
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
