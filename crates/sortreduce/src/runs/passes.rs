//! Merges runs if there are too many for one merge. Groups of runs are merged in parallel, with one thread per group.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};

use inshore_store::Job;

use crate::{
    Operation, Result,
    part::RunsPart,
    plan::MergePlan,
    runs::{Run, RunWriter},
};

/// The minimum fan-in of parallel merges. With a smaller fan-in, records would go through too many merges.
const FAN_IN_MIN: usize = 16;

/// The result of all merge passes: runs that are few enough for one merge.
pub(crate) struct MergeableRuns<K> {
    pub runs: Vec<Run<K>>,
    /// The largest number of merges that a record went through.
    pub level: u32,
    /// The bytes of runs that the merge passes wrote.
    pub bytes_written: u64,
}

/// The state that all merges of a round share. A round merges several groups of runs at the same time.
struct Round<'a, O> {
    job: &'a Job,
    name: &'static str,
    operation: &'a O,
    plan: &'a MergePlan,
    /// The number of parallel merges.
    threads: usize,
    /// True if a merge has failed, so that the other merges stop.
    has_failed: AtomicBool,
}

/// Merges groups of runs until one merge suffices for the remaining runs. A group's runs are removed as soon as they
/// are merged.
///
/// # Errors
/// Returns an error if a run cannot be read or written.
pub(crate) fn merge_runs<O: Operation>(
    job: &Job,
    name: &'static str,
    operation: &O,
    plan: &MergePlan,
    threads: usize,
    runs: Vec<Run<O::Key>>,
) -> Result<MergeableRuns<O::Key>> {
    let fan_in = plan.fan_in::<O::Key, O::Value>();
    let mut runs = VecDeque::from(runs);
    let mut bytes_written = 0;
    while runs.len() > fan_in {
        let excess = runs.len() - fan_in;
        let threads = threads_for::<O>(plan, threads.min(excess));
        let group = group_len::<O>(plan, threads, excess);
        let groups: Vec<Vec<Run<O::Key>>> =
            (0..threads).map(|_| runs.drain(..group.min(runs.len())).collect()).collect();
        let round = Round { job, name, operation, plan, threads, has_failed: AtomicBool::new(false) };
        for run in round.merge(groups)? {
            bytes_written += run.bytes();
            runs.push_back(run);
        }
    }
    let level = level_of(runs.make_contiguous());
    Ok(MergeableRuns { runs: runs.into(), level, bytes_written })
}

/// Returns the largest number of parallel merges with which each merge has the minimum fan-in.
fn threads_for<O: Operation>(plan: &MergePlan, most: usize) -> usize {
    let is_wide = |&threads: &usize| plan.merge::<O::Key, O::Value>(threads).fan_in >= FAN_IN_MIN;
    (2..=most).rev().find(is_wide).unwrap_or(1)
}

/// Returns the number of runs per group. The number is as small as possible, so that the last merge has as many runs
/// as possible and few records are written again.
fn group_len<O: Operation>(plan: &MergePlan, threads: usize, excess: usize) -> usize {
    let fan_in = plan.merge::<O::Key, O::Value>(threads).fan_in.max(2);
    fan_in.min(excess.div_ceil(threads) + 1)
}

fn level_of<K>(runs: &[Run<K>]) -> u32 {
    runs.iter().map(|run| run.level).max().unwrap_or(0)
}

impl<O: Operation> Round<'_, O> {
    /// Merges each group to one run.
    fn merge(&self, groups: Vec<Vec<Run<O::Key>>>) -> Result<Vec<Run<O::Key>>> {
        std::thread::scope(|scope| {
            let groups = groups.into_iter().filter(|group| !group.is_empty());
            let threads: Vec<_> = groups.map(|group| scope.spawn(|| self.merge_group(group))).collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            let results = results.into_iter().map(|result| match result {
                Ok(run) => run.transpose(),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            results.flatten().collect()
        })
    }

    /// Merges the runs of a group to one run. Returns `None` if another group failed.
    fn merge_group(&self, runs: Vec<Run<O::Key>>) -> Result<Option<Run<O::Key>>> {
        let result = self.try_merge_group(runs);
        if result.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn try_merge_group(&self, runs: Vec<Run<O::Key>>) -> Result<Option<Run<O::Key>>> {
        let _span = tracing::debug_span!("merge", runs = runs.len()).entered();
        let level = level_of(&runs) + 1;
        let mut writer =
            RunWriter::new(self.job, self.name, None, self.plan.block_bytes, self.plan.write_bytes)?;
        writer.begin(level)?;
        let part = RunsPart::new(self.operation.clone(), *self.plan, runs, self.threads);
        let mut merge = part.begin(self.job)?;
        while let Some(block) = merge.next_block()? {
            writer.append(block.keys, block.values)?;
            if self.has_failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let ended = writer.end()?;
        let run = ended.into_iter().chain(writer.finish()?).next().expect("one run was begun");
        self.job.counters().add_level(level, merge.records_in, run.records);
        Ok(Some(run))
    }
}
