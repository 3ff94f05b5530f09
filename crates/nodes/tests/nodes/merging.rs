//! Tests merges of sorted streams in which one node fails and several nodes take over.

use std::{cmp::Ordering, collections::BTreeMap, ops::Range};

use arrow_array::{Array, ArrayRef, StringArray, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_nodes::{Merged, OrderedRow, stream_from_nodes};

use super::*;

/// A task handler that returns the sorted lines, a few rows at a time, with or without their counts.
struct Lines {
    plan: Plan,
    counts: bool,
    /// True if the node starts late, so that another node pulls all shards.
    is_late: bool,
}

impl TaskHandler for Lines {
    fn kind(&self) -> &'static str {
        if self.counts { "counted" } else { "sorted" }
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let (fault, mut after) = *self.plan.lock().unwrap();
        let mut text = Vec::new();
        if self.is_late {
            thread::sleep(Duration::from_millis(if fault == Fault::Endless { 2000 } else { 20 }));
        }
        for source in task.sources {
            let source = source?;
            let (file, range): &(_, Range<u64>) = source.source.part().unwrap();
            let mut reader = inshore_store::FileReader::new(&task.job, file, range.clone(), 1 << 16)?;
            while let Some(piece) = reader.next_piece()? {
                text.extend_from_slice(piece);
            }
        }
        let text = String::from_utf8(text)?;
        let mut lines: Vec<(&str, u64)> = text.lines().map(|line| (line, 1)).collect();
        lines.sort_unstable();
        if self.counts {
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            lines.iter().for_each(|(line, _)| *counts.entry(line).or_default() += 1);
            lines = counts.into_iter().collect();
        }
        for some in lines.chunks(3) {
            if fault == Fault::Fails && after == 0 {
                return Err("a planned fault".into());
            }
            after = after.saturating_sub(1);
            let lines: ArrayRef = Arc::new(some.iter().map(|(line, _)| Some(*line)).collect::<StringArray>());
            let counts: ArrayRef = Arc::new(some.iter().map(|(_, count)| *count).collect::<UInt64Array>());
            let batch = RecordBatch::try_from_iter([("line", lines), ("count", counts)])?;
            let times = if fault == Fault::Endless { usize::MAX } else { 1 };
            (0..times).try_for_each(|_| reply.batch(batch.clone()))?;
        }
        Ok(json!({}))
    }
}

struct Rows<const ADDS_UP: bool>(StringArray, UInt64Array);

impl<const SUMS: bool> OrderedRow for Rows<SUMS> {
    const ADDS_UP: bool = SUMS;
    type How = ();

    fn of_batch(batch: &RecordBatch, (): &()) -> Option<Self> {
        let lines = batch.column(0).as_string_opt::<i32>()?.clone();
        Some(Rows(lines, batch.column(1).as_primitive_opt::<UInt64Type>()?.clone()))
    }

    fn rows(&self) -> usize {
        self.0.len()
    }

    fn compare(&self, row: usize, other: &Self, other_row: usize) -> Ordering {
        self.0.value(row).cmp(other.0.value(other_row))
    }

    fn alone(&self, row: usize) -> Self {
        Rows(vec![self.0.value(row)].into(), vec![self.1.value(row)].into())
    }
}

fn begun<const SUMS: bool>(nodes: &Nodes, kind: &'static str) -> Merged<Rows<SUMS>> {
    let catalog = nodes.catalog().unwrap();
    let wholes: Vec<_> = ["x", "y"].iter().flat_map(|name| catalog.named(name).unwrap()).collect();
    let streams =
        stream_from_nodes(nodes, &job(), (kind, true), json!({}), &wholes, &RunOptions::default()).unwrap();
    Merged::new(streams, ()).unwrap()
}

fn merged<const SUMS: bool>(nodes: &Nodes, kind: &'static str) -> Result<Vec<(String, u64)>, Error> {
    let mut merged = begun::<SUMS>(nodes, kind);
    let mut all: Vec<(String, u64)> = Vec::new();
    let mut count = 0;
    while let Some((Rows(lines, counts), rows)) = merged.next()? {
        count += rows.len();
        assert!(count < 100_000, "it goes on without end");
        for row in rows {
            match all.last_mut().filter(|(last, _)| last == lines.value(row)) {
                Some((_, sum)) => *sum += counts.value(row),
                None => all.push((lines.value(row).to_string(), counts.value(row))),
            }
        }
    }
    Ok(all)
}

/// Returns the same counts, read with `next_together`.
fn merged_together(nodes: &Nodes) -> Vec<(String, u64)> {
    let mut merged = begun::<true>(nodes, "counted");
    let mut all = BTreeMap::new();
    let mut last = String::new();
    while let Some(Rows(lines, _)) = merged.first().unwrap() {
        assert!(*last < *lines.value(lines.len() - 1));
        let some = merged.next_together().unwrap();
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (Rows(lines, counts), row) in
            some.iter().flat_map(|(rows, run)| run.clone().map(move |row| (*rows, row)))
        {
            *sums.entry(lines.value(row).to_string()).or_default() += counts.value(row);
        }
        // All lines of this call are greater than the lines of earlier calls.
        assert!(sums.keys().all(|line| *line > last));
        last.clone_from(sums.last_key_value().unwrap().0);
        all.extend(sums);
    }
    assert!(merged.next_together().unwrap().is_empty());
    all.into_iter().collect()
}

#[test]
fn what_a_lost_node_counted_or_sorted_is_made_up_for_by_two() {
    let folders: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let plans: [Plan; 3] = Default::default();
    let serve = |(number, folder): (usize, &TempDir)| {
        let plan = plans[number].clone();
        let works = TaskHandlers::default()
            .with(Lines { plan: plan.clone(), counts: true, is_late: number > 0 })
            .with(Lines { plan, counts: false, is_late: number > 0 });
        let agent = Agent::new(Store::open(folder.path()).unwrap(), works, config(&format!("n{number}")));
        agent.serve("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let serving: Vec<RunningAgent> = folders.iter().enumerate().map(serve).collect();
    let address = |node: usize| serving[node].address().to_string();
    let text = |step: usize| (0..60).map(|row| format!("w{}\n", row * step % 11)).collect::<String>();
    // File x is on nodes 0 and 1, and file y on nodes 0 and 2.
    for (name, order, step) in [("x", [0, 1, 2], 3), ("y", [0, 2, 1], 5)] {
        let nodes = client(order.map(address).to_vec(), None);
        let options = LoadOptions { copies: 2, piece_bytes: Some(1 << 20), ..LoadOptions::default() };
        nodes.put(&job(), name, (name, None), Cursor::new(text(step)), &options).unwrap();
    }
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let both = text(3) + &text(5);
    both.lines().for_each(|line| *expected.entry(line.to_string()).or_default() += 1);
    let expected: Vec<(String, u64)> = expected.into_iter().collect();
    let ask = || client([0, 1, 2].map(address).to_vec(), None);
    for after in 0..50 {
        // Node 0 has a part of both files, and fails.
        *plans[0].lock().unwrap() = (Fault::Fails, after);
        assert_eq!(merged::<true>(&ask(), "counted").unwrap(), expected, "after {after} batches");
        assert_eq!(merged_together(&ask()), expected, "after {after} batches");
        assert_eq!(merged::<false>(&ask(), "sorted").unwrap(), expected, "after {after} batches");
    }
    // The nodes that take over repeat rows that were already delivered.
    *plans[1].lock().unwrap() = (Fault::Endless, 0);
    *plans[2].lock().unwrap() = (Fault::Endless, 0);
    *plans[0].lock().unwrap() = (Fault::Fails, 2);
    let counted = told(merged::<true>(&ask(), "counted").unwrap_err());
    *plans[0].lock().unwrap() = (Fault::Fails, 6);
    let sorted = told(merged::<false>(&ask(), "sorted").unwrap_err());
    for error in [counted, sorted] {
        assert!(error.contains("rows that differ from those of the replica before"), "{error}");
    }
}
