//! Builds an index of vectors on nodes. `NAME` is the name of the vectors.
//!
//! ```text
//!   shards ─► sample ─► client: k-means ─► NAME.index.centroids, a copy on each node
//!   each node: its shards of NAME ─► nearest list of each vector ─► its shards of NAME.index.lists
//!   client: numbers of vectors, recall ─► NAME.index, a copy on each node
//! ```
//!
//! A build writes the dataset `NAME.index` last, and searches find an index only through this dataset. So an
//! interrupted build leaves no index. The next build removes the other datasets of the interrupted build.

use std::{collections::BTreeMap, time::Duration};

use arrow_array::{Array, FixedSizeBinaryArray, RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_nodes::{
    Error as NodesError, Merged, OrderedRow, RunOptions, SpreadId, Streams, protocol::Generation,
    stream_from_each, stream_from_nodes,
};
use inshore_store::Execution;
use inshore_vectors::{
    Element, Index, MeasuredOn, RecallTable, SamplePlan, SpreadIndex, SpreadIndexInfo, VectorLayout,
    plan_sample, train_lists,
};
use serde::{Deserialize, Serialize};

use super::{
    VectorsOnNodes,
    lists::IndexOnNodes,
    parts::{dataset_on_nodes, index_names, index_parts, missing, put_copies, remove_parts},
    recall::Measurement,
};
use crate::{error::Result, target::OnNodes};

pub(super) const SAMPLE_KIND: &str = "nearest sample";
pub(super) const WRITE_KIND: &str = "nearest index";
/// The number of neighbours of each query on which recall is measured.
const RECALL_K: u64 = 10;
/// The time for which the client waits for a message of one node before it checks the next node.
const LOOK: Duration = Duration::from_millis(5);

/// The arguments of a request for a sample.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SampleArguments {
    pub layout: VectorLayout,
    pub plan: SamplePlan,
}

/// The arguments of a request to write lists.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    /// The name and the id of the dataset of vectors.
    pub vectors: (String, SpreadId),
    /// The name and the id of the dataset of centroids.
    pub centroids: (String, SpreadId),
    /// The name and the new generation of the dataset of lists.
    pub lists: (String, Generation),
    /// The description of the centroids.
    pub info: SpreadIndexInfo,
}

/// Builds the index of the vectors `name` on nodes, or builds it again. Returns the properties of the index.
///
/// The client needs memory for three copies of the sample, which has at most 8 MiB, and for the sums of k-means.
///
/// # Errors
/// - Returns the errors of [`plan_sample`], for example if an option is out of range.
/// - Returns the errors of [`train_lists`], for example if the budget has too little free memory.
/// - Returns an error of a node if a node does not answer or a task of a node fails.
///
/// If an error occurs before the first write, the old index remains. After a later error the vectors have no index.
pub(crate) fn index_on_nodes(
    on: &OnNodes,
    job: &Execution,
    name: &str,
    options: &Index,
) -> Result<SpreadIndexInfo> {
    let options_of_runs = RunOptions { partial: false, ..on.options.clone() };
    let on = &OnNodes { nodes: on.nodes.clone(), options: options_of_runs };
    let vectors = VectorsOnNodes::find(on, name)?;
    let plan = plan_sample(&vectors.info, options)?;
    let row_bytes = vectors.layout.row_bytes() as u64;
    let bytes = plan.rows_max * (row_bytes + 16);
    job.budget().need(bytes, || format!("the sample for the index of {name}"))?;
    let mut memory = job.budget().reserve(bytes, "the sample of vectors")?;
    let mut sample = Sample::gather(&vectors, job, plan)?;
    job.start_phase("training lists", "vectors", 0);
    let index = train_lists(job, &vectors.info, options, &plan, &sample.rows)?;
    sample.rows = Vec::new();
    memory.resize(sample.held_ids.len() as u64 * (row_bytes + 8))?;
    // All nodes must answer before the old index is removed.
    on.nodes.status().into_iter().try_for_each(|node| node.status.map(drop))?;
    remove_parts(on, &index_parts(&vectors.info.name))?;
    let built = Build { on, job, vectors: &vectors }.run(index, &sample);
    if built.is_err() {
        // An error of the removal is ignored, since the error of the build is more useful to the user.
        let _ = remove_parts(on, &index_parts(&vectors.info.name));
    }
    built
}

/// The vectors of a sample. Held-out vectors are those on which recall is measured.
struct Sample {
    /// The ids of the held-out vectors.
    held_ids: Vec<u64>,
    /// The elements of the held-out vectors.
    held_rows: Vec<u8>,
    /// The elements of the other vectors.
    rows: Vec<u8>,
}

impl Sample {
    /// Gathers the vectors of a sample from the nodes, by ascending ids.
    fn gather(vectors: &VectorsOnNodes, job: &Execution, plan: SamplePlan) -> Result<Sample> {
        let VectorsOnNodes { on, file, layout, info, .. } = vectors;
        let arguments = serde_json::to_value(SampleArguments { layout: *layout, plan }).expect("plain data");
        job.start_phase("sampling", "vectors", info.vectors);
        let files = std::slice::from_ref(file);
        let streams = stream_from_nodes(&on.nodes, job, (SAMPLE_KIND, false), arguments, files, &on.options)?;
        let expected = ExpectedRows {
            row_bytes: layout.row_bytes(),
            vectors: info.vectors,
            are_floats: info.element == Element::F32,
        };
        let mut merged = Merged::<SampledRows>::new(streams, expected)?;
        let mut sample = Sample { held_ids: Vec::new(), held_rows: Vec::new(), rows: Vec::new() };
        let mut count = 0;
        while let Some((found, rows)) = merged.next()? {
            count += rows.len() as u64;
            if count > plan.rows_max {
                let what = format!("a sample of more than {} vectors", plan.rows_max);
                return Err(NodesError::Incomplete { name: file.title.clone(), what }.into());
            }
            for row in rows {
                let (id, elements) = (found.ids.value(row), found.rows.value(row));
                match plan.holds_out(id) {
                    true => {
                        sample.held_ids.push(id);
                        sample.held_rows.extend_from_slice(elements);
                    }
                    false => sample.rows.extend_from_slice(elements),
                }
            }
        }
        merged.finish();
        if sample.rows.is_empty() {
            let what = "the sample has no vectors".to_string();
            return Err(NodesError::Incomplete { name: file.title.clone(), what }.into());
        }
        Ok(sample)
    }
}

/// The limits for valid rows of a sample.
#[derive(Clone, Copy, Debug)]
struct ExpectedRows {
    row_bytes: usize,
    vectors: u64,
    are_floats: bool,
}

/// A batch of sampled vectors, by ascending ids.
struct SampledRows {
    ids: UInt64Array,
    rows: FixedSizeBinaryArray,
}

impl OrderedRow for SampledRows {
    const ADDS_UP: bool = false;
    type How = ExpectedRows;

    fn of_batch(batch: &RecordBatch, expected: &ExpectedRows) -> Option<SampledRows> {
        let [ids, rows] = batch.columns() else { return None };
        let found = SampledRows {
            ids: ids.as_primitive_opt::<UInt64Type>()?.clone(),
            rows: rows.as_fixed_size_binary_opt()?.clone(),
        };
        let SampledRows { ids, rows } = &found;
        let is_finite = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
        let is_row =
            |row: usize| !expected.are_floats || rows.value(row).as_chunks::<4>().0.iter().all(is_finite);
        let is_sound = rows.value_length() as usize == expected.row_bytes
            && ids.null_count() == 0
            && rows.null_count() == 0
            && ids.values().iter().all(|&id| id < expected.vectors)
            && ids.values().windows(2).all(|pair| pair[0] < pair[1])
            && (0..rows.len()).all(is_row);
        is_sound.then_some(found)
    }

    fn rows(&self) -> usize {
        self.ids.len()
    }

    fn compare(&self, row: usize, other: &SampledRows, other_row: usize) -> std::cmp::Ordering {
        self.ids.value(row).cmp(&other.ids.value(other_row))
    }

    fn alone(&self, row: usize) -> SampledRows {
        SampledRows { ids: vec![self.ids.value(row)].into(), rows: self.rows.slice(row, 1) }
    }
}

/// The part of a build that follows the training of the centroids.
struct Build<'a> {
    on: &'a OnNodes,
    job: &'a Execution,
    vectors: &'a VectorsOnNodes,
}

impl Build<'_> {
    fn run(&self, mut index: SpreadIndex, sample: &Sample) -> Result<SpreadIndexInfo> {
        let [name, lists_name, centroids_name] = index_names(&self.vectors.info.name);
        let vectors_id = self.vectors.file.id.ok_or_else(|| missing(&self.vectors.info.name))?;
        let centroids_id = self.put(&centroids_name, &index)?;
        let generation = Generation::now();
        index.info.vectors_id = vectors_id.to_string();
        index.info.lists_id = generation.id.to_string();
        let arguments = WriteArguments {
            vectors: (self.vectors.info.name.clone(), vectors_id),
            centroids: (centroids_name.clone(), centroids_id),
            lists: (lists_name.clone(), generation),
            info: index.info.clone(),
        };
        index.counts = self.write_lists(&arguments)?;
        let lists = dataset_on_nodes(self.on, &lists_name)?.ok_or_else(|| missing(&lists_name))?;
        let memory = self.job.budget().reserve(index.to_bytes().len() as u64, "the centroids of an index")?;
        let mut found = IndexOnNodes { index, index_id: String::new(), lists, _memory: memory };
        found.index.info.recall = self.measure(&found, sample)?;
        self.put(&name, &found.index)?;
        self.on.nodes.remove(&centroids_name)?;
        Ok(found.index.info)
    }

    /// Measures recall on the held-out vectors.
    fn measure(&self, found: &IndexOnNodes, sample: &Sample) -> Result<RecallTable> {
        let Build { job, vectors, .. } = *self;
        let (rows, own) = (&sample.held_rows, &sample.held_ids);
        Measurement { vectors, found, job, rows, own, k: RECALL_K }.table(MeasuredOn::HeldOutVectors)
    }

    /// Writes the centroids and counts to each node as a dataset. Returns the id of the dataset.
    fn put(&self, name: &str, index: &SpreadIndex) -> Result<SpreadId> {
        let description = serde_json::to_value(&index.info).expect("plain data");
        put_copies(self.on, self.job, name, &index.to_bytes(), description)
    }

    /// Makes each node write the lists of its shards. Returns the number of vectors of each list.
    fn write_lists(&self, arguments: &WriteArguments) -> Result<Vec<u64>> {
        let told = serde_json::to_value(arguments).expect("plain data");
        let nodes = &self.on.nodes;
        self.job.start_phase("writing lists", "vectors", self.vectors.info.vectors);
        let mut streams = stream_from_each(nodes, self.job, WRITE_KIND, told, &self.on.options)?;
        let mut counts = Counts { lists: vec![0; arguments.info.lists as usize], owners: BTreeMap::new() };
        let mut open: Vec<usize> = (0..streams.len()).collect();
        while !open.is_empty() {
            let mut left = Vec::new();
            for stream in open {
                self.job.check_cancelled()?;
                match streams.next_within(stream, LOOK)? {
                    Some(None) => {}
                    Some(Some(batch)) => {
                        counts.add(stream, &batch, self.vectors.file.pieces.len(), &streams)?;
                        left.push(stream);
                    }
                    None => left.push(stream),
                }
            }
            open = left;
        }
        streams.finish();
        let all: u64 = counts.lists.iter().sum();
        if all != self.vectors.info.vectors {
            let what = format!("its lists have {all} vectors, expected {}", self.vectors.info.vectors);
            return Err(NodesError::Incomplete { name: self.vectors.file.title.clone(), what }.into());
        }
        Ok(counts.lists)
    }
}

/// The number of vectors of each list. All nodes that store a copy of a shard send the numbers of this shard. `owners`
/// states for each shard the stream whose numbers are added; the numbers of other streams are ignored.
struct Counts {
    lists: Vec<u64>,
    owners: BTreeMap<u64, usize>,
}

impl Counts {
    fn add(&mut self, stream: usize, batch: &RecordBatch, pieces: usize, streams: &Streams) -> Result<()> {
        let bad = || {
            let what = "invalid numbers of vectors in lists".to_string();
            NodesError::BadAnswer { node: streams.node(stream).to_string(), what }
        };
        let columns: Option<Vec<UInt64Array>> = batch
            .columns()
            .iter()
            .map(|column| Some(column.as_primitive_opt::<UInt64Type>()?.clone()))
            .collect();
        let Some([shards, lists, counts]) = columns.as_deref() else { return Err(bad().into()) };
        for row in 0..batch.num_rows() {
            let (shard, list, count) = (shards.value(row), lists.value(row), counts.value(row));
            if batch.columns().iter().any(|column| column.is_null(row)) || shard >= pieces as u64 {
                return Err(bad().into());
            }
            if *self.owners.entry(shard).or_insert(stream) != stream {
                continue;
            }
            let sum = usize::try_from(list).ok().and_then(|list| self.lists.get_mut(list)).ok_or_else(bad)?;
            *sum = sum.checked_add(count).ok_or_else(bad)?;
        }
        Ok(())
    }
}
