//! Merging runs that are too many to be merged at once.

use std::collections::VecDeque;

use inshore_store::Job;

use crate::{
    Operation, Result,
    merge::{Merge, Source, read_buffers},
    plan::MergePlan,
    run::{Run, RunReader, RunWriter, run_bytes},
    sort::Sorter,
};

/// The last merge of some runs.
pub(crate) struct LastMerge<O: Operation> {
    pub merge: Merge<O>,
    /// Merges before it, and itself.
    pub level: u32,
    /// Bytes of runs that merges before it wrote.
    pub bytes_written: u64,
}

/// Merges groups of runs until one merge is left, and begins that one. A group's runs are removed as soon as
/// they are merged.
///
/// # Errors
/// Those of reading and writing runs.
pub(crate) fn merge_runs<O: Operation>(
    job: &Job,
    name: &'static str,
    operation: O,
    plan: &MergePlan,
    runs: Vec<Run>,
) -> Result<LastMerge<O>> {
    let fan_in = plan.fan_in::<O::Key, O::Value>();
    let mut runs = VecDeque::from(runs);
    let mut sorter = Sorter::new(operation, plan.merge_slab_records, job.budget())?;
    let mut bytes_written = 0;
    while runs.len() > fan_in {
        // No more than needed, so that the last merge is as wide as can be and the fewest records are
        // written again.
        let group = runs.drain(..fan_in.min(runs.len() - fan_in + 1)).collect();
        let (run, its_sorter) = merge_group(job, name, sorter, plan, group)?;
        sorter = its_sorter;
        bytes_written += run_bytes::<O::Key, O::Value>(run.records, plan.block_bytes);
        runs.push_back(run);
    }
    let level = level_above(runs.make_contiguous());
    let merge = Merge::new(job, open::<O>(job, plan, runs.into())?, sorter);
    Ok(LastMerge { merge, level, bytes_written })
}

fn level_above(runs: &[Run]) -> u32 {
    runs.iter().map(|run| run.level).max().unwrap_or(0) + 1
}

/// Readers of some runs, with as much memory as pays.
fn open<O: Operation>(job: &Job, plan: &MergePlan, runs: Vec<Run>) -> Result<Vec<Source<O::Key, O::Value>>> {
    let bytes = runs.iter().map(|run| run_bytes::<O::Key, O::Value>(run.records, plan.block_bytes)).sum();
    let unit_bytes = plan.unit_bytes::<O::Key, O::Value>(runs.len(), bytes);
    let buffers = read_buffers(job, runs.len(), unit_bytes)?;
    let readers = runs.into_iter().zip(buffers).map(|(run, buffers)| RunReader::new(job, run, buffers));
    readers.map(|reader| Ok(Source::Run(reader?))).collect()
}

/// Merges runs into one.
fn merge_group<O: Operation>(
    job: &Job,
    name: &'static str,
    sorter: Sorter<O>,
    plan: &MergePlan,
    runs: Vec<Run>,
) -> Result<(Run, Sorter<O>)> {
    let _span = tracing::debug_span!("merge", runs = runs.len()).entered();
    let level = level_above(&runs);
    let mut writer = RunWriter::new(job, name, plan.block_bytes, plan.write_bytes)?;
    writer.begin(level)?;
    let mut merge = Merge::new(job, open::<O>(job, plan, runs)?, sorter);
    while let Some(block) = merge.next_block()? {
        writer.append(block.keys, block.values)?;
    }
    let ended = writer.end()?;
    let run = ended.into_iter().chain(writer.finish()?).next().expect("one run was begun");
    job.counters().add_level(level, merge.records_in, run.records);
    Ok((run, merge.into_sorter()))
}
