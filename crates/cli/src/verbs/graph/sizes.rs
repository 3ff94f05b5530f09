//! Counts the vertices of each component (or community), for `--top`.
//!
//! There can be as many components as vertices, so a sort-reduce counts the vertices within a part of the job's budget.
//! The key of a record is the component, and the value is a number of vertices; values of equal keys are added.
//! Adjacent rows of one component become one record. In most graphs few records remain to be sorted, since most
//! vertices are in one component.

use arrow_array::{RecordBatch, cast::AsArray, types::UInt64Type};
use inshore::{
    graph,
    sortreduce::{Config, Operation, Sink, SortReduce, Strategy},
    store::Job,
};

use crate::report::top::{Cell, Order, Top, TopK};

/// The largest amount of memory for counting. With this amount the blocks of runs are large, so that the memory can
/// index the blocks of many runs (see [`Config::records_max`]).
const MEMORY_BYTES_MAX: u64 = 32 << 20;
const MEMORY_BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Sum;

impl Operation for Sum {
    type Key = u64;
    type Value = u64;
    fn combine(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

/// Counts the values of the second column.
pub struct Sizes {
    job: Job,
    sorter: SortReduce<Sum>,
    sink: Sink<Sum>,
    component: u64,
    vertices: u64,
}

impl Sizes {
    /// Creates a counter with at most half of the job's free budget.
    pub fn new(job: &Job) -> graph::Result<Sizes> {
        let memory_bytes = (job.budget().free_bytes() / 2).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        // The merge strategy is used, since component ids are ids of the user, and their range is not known.
        let strategy = Some(Strategy::Merge);
        let config = Config { memory_bytes, strategy, name: "component-sizes", ..Config::default() };
        let sorter = SortReduce::new(job, Sum, &config)?;
        let sink = sorter.sink()?;
        Ok(Sizes { job: job.clone(), sorter, sink, component: 0, vertices: 0 })
    }

    /// Counts the rows of a batch.
    pub fn count(&mut self, batch: &RecordBatch) -> graph::Result<()> {
        for &component in batch.column(1).as_primitive::<UInt64Type>().values() {
            if component != self.component {
                self.flush()?;
                self.component = component;
            }
            self.vertices += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> graph::Result<()> {
        if self.vertices > 0 {
            self.sink.push(self.component, self.vertices)?;
            self.vertices = 0;
        }
        Ok(())
    }

    /// Returns the largest components. Equally large components are in the order of their ids. `column` is the name of
    /// the column of components.
    pub fn largest(mut self, limit: usize, column: String) -> graph::Result<Top> {
        self.flush()?;
        self.job.start_phase("sizing components", "components", 0);
        self.sink.finish()?;
        let mut sorted = self.sorter.finish()?;
        let mut best = TopK::new(limit, Order::Descending(1));
        while let Some(block) = sorted.next_block()? {
            for (&component, &vertices) in block.keys.iter().zip(block.values) {
                best.offer([Cell::Count(component), Cell::Count(vertices), Cell::Null]);
            }
            self.job.progress().add(block.keys.len() as u64);
        }
        Ok(best.into_top(vec![column, "vertices".into()]))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use arrow_array::{ArrayRef, UInt64Array};
    use inshore::store::{Budget, Cancel, Store};

    use super::*;

    /// Returns the component of each row. Adjacent rows have different components, so that every row becomes a record.
    fn components(vertices: u64, count: u64) -> Vec<u64> {
        (0..vertices).map(|vertex| vertex.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count * 3).collect()
    }

    fn largest(memory_bytes: u64, components: &[u64], limit: usize) -> (String, u64) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(memory_bytes, 1), Cancel::default()).unwrap();
        let mut sizes = Sizes::new(&job).unwrap();
        for part in components.chunks(1000) {
            let column = |values: &[u64]| Arc::new(UInt64Array::from(values.to_vec())) as ArrayRef;
            let batch = [("vertex", column(part)), ("component", column(part))];
            sizes.count(&RecordBatch::try_from_iter(batch).unwrap()).unwrap();
        }
        let json = serde_json::to_string(&sizes.largest(limit, "component".into()).unwrap()).unwrap();
        assert_eq!(job.budget().reserved_bytes(), 0, "all memory came back");
        (json, job.counters().bytes_written())
    }

    #[test]
    fn sizes_are_those_of_a_map_in_memory_and_on_flash() {
        let components = components(300_000, 100_000);
        let mut map = BTreeMap::<u64, u64>::new();
        components.iter().for_each(|&component| *map.entry(component).or_default() += 1);
        let mut expected: Vec<(u64, u64)> = map.into_iter().collect();
        expected.sort_by_key(|&(component, vertices)| (u64::MAX - vertices, component));
        let rows = expected[..7]
            .iter()
            .map(|(component, vertices)| format!(r#"{{"component":{component},"vertices":{vertices}}}"#));
        let expected = format!("[{}]", rows.collect::<Vec<_>>().join(","));

        let (tiny, spilled) = largest(2 << 20, &components, 7);
        assert!(spilled > 0, "300000 records of 16 bytes do not fit in 1 MiB");
        let (huge, in_memory) = largest(1 << 30, &components, 7);
        assert_eq!(in_memory, 0);
        assert_eq!((tiny, huge), (expected.clone(), expected));
    }

    #[test]
    fn of_equal_components_the_smaller_id_comes_first() {
        let (json, _) = largest(4 << 20, &[9, 9, 1, 5, 5, 5, 1], 2);
        assert_eq!(json, r#"[{"component":5,"vertices":3},{"component":1,"vertices":2}]"#);
    }
}
