//! Implements the tasks of nodes for an index: the sample of shards, the lists of shards, and the search in lists.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_kernel::{Failure, MAP, Reply, RequiredRight, SPREAD, Task, TaskHandler, TaskSource};
use inshore_nodes::{
    SpreadId,
    protocol::{FileMap, Generation, MAP_BYTES_MAX, piece_name},
};
use inshore_store::{CheckedFile, Dataset, Error as StoreError, FileReader, Job};
use inshore_vectors::{
    Error as VectorError, ListRequest, ListSelection, Search, SpreadIndex, VectorLayout, sample_of_shard,
    search_lists, shard_lists_bytes, write_shard_lists,
};
use serde_json::{Value, json};

use super::{
    LISTS_KIND,
    index::{SAMPLE_KIND, SampleArguments, WRITE_KIND, WriteArguments},
    lists::{Arguments, KIND},
    merge::Summary,
};

/// The size at which a batch of sampled vectors ends, in bytes.
const BATCH_BYTES: usize = 256 << 10;
/// The number of lists in a batch of counts.
const BATCH_LISTS: usize = 8 << 10;
/// The size of a check block of lists, in bytes. The blocks are small because a read of a list is small.
const BLOCK_BYTES: usize = 4 << 10;
/// The size of a write buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Returns the file of a source. Returns an error if the source is only a part of a file.
fn whole_file(source: &TaskSource) -> Result<&CheckedFile, Failure> {
    let (file, range) = source.source.part().ok_or("a source is not a file of a dataset")?;
    match *range == (0..file.len()) {
        true => Ok(file),
        false => Err(format!("invalid request: a part of {}, expected all of it", file.name()).into()),
    }
}

/// The task handler that returns the sampled vectors of the shards of a node.
#[derive(Debug)]
pub struct SamplesVectors;

impl TaskHandler for SamplesVectors {
    fn kind(&self) -> &'static str {
        SAMPLE_KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let SampleArguments { layout, plan } = serde_json::from_value(arguments)?;
        layout.check()?;
        let row_bytes = layout.row_bytes();
        let mut memory = job.budget().reserve(0, "the sample of vectors")?;
        // Shards may arrive in any order, so the rows are sorted before they are sent.
        let mut rows: Vec<(u64, Vec<u8>)> = Vec::new();
        for source in sources {
            let source = source?;
            let (file, offset) = (whole_file(&source)?, source.source.base().offset);
            let mut held = memory.bytes();
            sample_of_shard(&job, layout, file, offset / row_bytes as u64, &plan, &mut |id, row| {
                held += 3 * row.len() as u64 + 64;
                memory.resize(held)?;
                rows.push((id, row.to_vec()));
                Ok(())
            })?;
        }
        rows.sort_unstable_by_key(|(id, _)| *id);
        for rows in rows.chunks((BATCH_BYTES / row_bytes).max(1)) {
            reply.batch(sampled(rows, row_bytes)?)?;
        }
        Ok(json!({}))
    }
}

/// Returns sampled vectors as a batch.
fn sampled(rows: &[(u64, Vec<u8>)], row_bytes: usize) -> Result<RecordBatch, Failure> {
    let width = i32::try_from(row_bytes)?;
    let elements: Vec<u8> = rows.iter().flat_map(|(_, row)| row).copied().collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(id, _)| *id))),
        Arc::new(FixedSizeBinaryArray::try_new(width, elements.into(), None)?),
    ];
    let schema = Schema::new(vec![
        Field::new("id", DataType::UInt64, false),
        Field::new("vector", DataType::FixedSizeBinary(width), false),
    ]);
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}

/// The task handler that writes the lists of the shards of a node.
#[derive(Debug)]
pub struct WritesLists;

impl TaskHandler for WritesLists {
    fn kind(&self) -> &'static str {
        WRITE_KIND
    }

    fn needs(&self) -> RequiredRight {
        RequiredRight::Store
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, .. } = task;
        let WriteArguments { vectors, centroids, lists, info } = serde_json::from_value(arguments)?;
        let Some(vectors) = open_spread(&job, &vectors.0, vectors.1)? else { return Ok(json!({})) };
        let file = open_spread(&job, &centroids.0, centroids.1)?
            .and_then(|dataset| dataset.file(&piece_name(0)))
            .ok_or("this node has no copy of the centroids")?;
        info.check(file.name(), file.len())?;
        // The memory is that of the bytes of the file and of the index.
        let _memory = job.budget().reserve(3 * file.len(), "the centroids of lists")?;
        let index = SpreadIndex::of_bytes(file.name(), info, &read(&job, &file)?)?;
        let map = vectors.file(MAP).ok_or("the vectors have no map")?;
        let _map_memory =
            job.budget().reserve(3 * map.len().min(MAP_BYTES_MAX as u64), "the map of vectors")?;
        if map.len() > MAP_BYTES_MAX as u64 {
            return Err("the map of the vectors is larger than the limit".into());
        }
        let map: FileMap = serde_json::from_slice(&read(&job, &map)?)?;
        let (name, generation) = lists;
        let mut builder = job.store().create_dataset(&job, &name, SPREAD)?;
        for number in 0..map.pieces.len() {
            let Some(file) = vectors.file(&piece_name(number)) else { continue };
            let mut writer = builder.file(&piece_name(number), BLOCK_BYTES, BUFFER_BYTES)?;
            let counts = write_shard_lists(&job, &index, &file, &mut writer)?;
            builder.add(writer)?;
            for batch in counted(number as u64, &counts) {
                reply.batch(batch?)?;
            }
        }
        let map = serde_json::to_vec(&map_of_lists(map, &index, generation)?)?;
        let mut writer = builder.file(MAP, 64 << 10, BUFFER_BYTES)?;
        writer.write(&map)?;
        builder.add(writer)?;
        builder.commit(&generation.attributes())?;
        Ok(json!({}))
    }
}

/// Opens this node's part of a spread dataset. Returns `None` if this node stores no part of the dataset. Returns an
/// error if the dataset has another id.
fn open_spread(job: &Job, name: &str, id: SpreadId) -> Result<Option<Dataset>, Failure> {
    match job.store().dataset(name) {
        Ok(dataset) => {
            let generation = Generation::of_attributes(dataset.attributes());
            match dataset.kind() == SPREAD && generation.is_some_and(|generation| generation.id == id) {
                true => Ok(Some(dataset)),
                false => {
                    Err(format!("{name} was replaced since the client looked it up: run the command again")
                        .into())
                }
            }
        }
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads all bytes of a file.
fn read(job: &Job, file: &CheckedFile) -> Result<Vec<u8>, Failure> {
    let mut reader = FileReader::new(job, file, 0..file.len(), 64 << 10)?;
    let mut bytes = Vec::with_capacity(file.len() as usize);
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Returns the map of the lists. `map` is the map of the vectors. Each piece of the lists contains the lists of one
/// piece of the vectors, and both pieces are on the same nodes.
fn map_of_lists(mut map: FileMap, index: &SpreadIndex, generation: Generation) -> Result<FileMap, Failure> {
    let layout: VectorLayout = index.info.layout();
    let row_bytes = layout.row_bytes() as u64;
    for piece in &mut map.pieces {
        if piece.bytes % row_bytes != 0 {
            return Err("a piece does not end with a vector".into());
        }
        piece.bytes = shard_lists_bytes(layout, piece.bytes / row_bytes, index.info.lists);
        piece.lines = 0;
    }
    let description = Some(json!({ "kind": LISTS_KIND, "version": 1 }));
    Ok(FileMap { generation, record_bytes: None, description, ..map })
}

/// Returns the number of vectors of each list of a shard, as batches. Empty lists are omitted.
fn counted(shard: u64, counts: &[u64]) -> impl Iterator<Item = Result<RecordBatch, Failure>> {
    let field = |name| Field::new(name, DataType::UInt64, false);
    let schema = Arc::new(Schema::new(vec![field("shard"), field("list"), field("vectors")]));
    let counts: Vec<(u64, u64)> = (0..).zip(counts.iter().copied()).filter(|(_, count)| *count > 0).collect();
    let batches: Vec<_> = counts
        .chunks(BATCH_LISTS)
        .map(|some| {
            let columns: Vec<ArrayRef> = vec![
                Arc::new(UInt64Array::from_value(shard, some.len())),
                Arc::new(UInt64Array::from_iter_values(some.iter().map(|(list, _)| *list))),
                Arc::new(UInt64Array::from_iter_values(some.iter().map(|(_, count)| *count))),
            ];
            Ok(RecordBatch::try_new(schema.clone(), columns)?)
        })
        .collect();
    batches.into_iter()
}

/// The task handler that finds nearest neighbours in the lists of the shards of a node.
#[derive(Debug)]
pub struct SearchesLists;

impl TaskHandler for SearchesLists {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, mut sources } = task;
        let arguments: Arguments = serde_json::from_value(arguments)?;
        let Arguments { layout, queries, lists, counts, lists_count, first_ids, k, metric, .. } = arguments;
        let Arguments { radius_bits, selection, .. } = arguments;
        let selection_bytes = selection.as_ref().map_or(0, |selection| 2 * selection.len());
        let bytes = queries.len() + 4 * (lists.len() + counts.len()) + selection_bytes;
        let _memory = job.budget().reserve(bytes as u64, "queries and their lists")?;
        let queries = BASE64.decode(queries)?;
        let lists = lists_of(&numbers(&lists)?, &numbers(&counts)?)?;
        let radius = radius_bits.map(f64::from_bits);
        let search = Search { k, metric, radius, ..Search::default() };
        let selection = selection.map(|selection| BASE64.decode(selection)).transpose()?;
        let selection = selection.as_ref().map(|bytes| ListSelection::new(bytes, lists.len()));
        let request = ListRequest {
            layout,
            search: &search,
            queries: &queries,
            lists: &lists,
            lists_count,
            selection: selection.as_ref(),
        };
        let mut next = || {
            let Some(source) = sources.next().transpose().map_err(VectorError::Content)? else {
                return Ok(None);
            };
            let file = whole_file(&source).map_err(VectorError::Content)?.clone();
            let place = usize::try_from(source.number).ok();
            let first_id = place.and_then(|place| first_ids.get(place)).copied();
            let first_id = first_id.filter(|first| first.checked_add(1 << 32).is_some());
            let unknown = || format!("invalid request: no first vector of shard {}", source.number);
            Ok(Some((file, first_id.ok_or_else(|| VectorError::Content(unknown().into()))?)))
        };
        let mut each = |batch| reply.batch(batch).map_err(VectorError::Rows);
        let [lists, compared, measured] = search_lists(&job, &request, &mut next, &mut each)?;
        let selected = selection.map_or(Vec::new(), |selection| selection.met());
        Ok(serde_json::to_value(Summary { vectors: 0, lists, compared, measured, selected })?)
    }
}

/// Decodes 32-bit little-endian numbers from base64.
fn numbers(text: &str) -> Result<Vec<u32>, Failure> {
    let bytes = BASE64.decode(text)?;
    match bytes.as_chunks::<4>() {
        (numbers, []) => Ok(numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()),
        _ => Err("invalid request: numbers of 32 bits are cut".into()),
    }
}

/// Splits the lists of all queries into the lists of each query. `counts` contains the number of lists of each query.
fn lists_of(lists: &[u32], counts: &[u32]) -> Result<Vec<Vec<u32>>, Failure> {
    let (mut rest, mut found) = (lists, Vec::with_capacity(counts.len()));
    for &count in counts {
        let Some((own, others)) = rest.split_at_checked(count as usize) else {
            return Err("invalid request: more lists are counted than there are".into());
        };
        found.push(own.to_vec());
        rest = others;
    }
    if rest.is_empty() { Ok(found) } else { Err("invalid request: lists of no query".into()) }
}
