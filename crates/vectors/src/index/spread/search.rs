//! Finds the nearest vectors of queries in the lists of shards.
//!
//! ```text
//!   (list, query), sorted ─► each shard: directory ─► its part of each probed list, once ─► a heap for each query
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use inshore_store::{Buffer, CheckedFile, Job};

use crate::{
    Element, Error, Result, Search, VectorLayout,
    element::{aligned, bytes_of},
    heaps::Tops,
    index::{
        Clustered,
        build::{LIST_ID_BYTES, shard_directory_bytes},
        compare::{Comparer, Members, Packed, Space},
        directory::{Directory, list_of},
        no_index_of,
        ranges::Ranges,
    },
    row_set::has_bit,
    search::{send_tops, shard_tops},
    tiles::Instructions,
};

/// The queries of a search in lists.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest<'a> {
    /// The layout of the vectors.
    pub layout: VectorLayout,
    /// The options of the search.
    pub search: &'a Search,
    /// The elements of the queries. Their type is the element type of the vectors.
    pub queries: &'a [u8],
    /// The lists that each query probes.
    pub lists: &'a [Vec<u32>],
    /// The number of lists of the index.
    pub lists_count: u64,
    /// The selected vectors. `None` selects all vectors.
    pub selection: Option<&'a ListSelection<'a>>,
}

/// The selected vectors of a search in lists.
#[derive(Debug)]
pub struct ListSelection<'a> {
    /// The bitmap of the selected vectors of all shards ([`crate::RowSet::to_bytes`]). Vectors are identified by their
    /// ids.
    bytes: &'a [u8],
    /// For each query the number of selected vectors in its probed lists.
    met: Vec<AtomicU64>,
}

impl<'a> ListSelection<'a> {
    /// Begins a search among the vectors of a bitmap. The memory is 8 bytes for each query.
    pub fn new(bytes: &'a [u8], queries: usize) -> ListSelection<'a> {
        ListSelection { bytes, met: (0..queries).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns for each query the number of selected vectors in its probed lists.
    pub fn met(&self) -> Vec<u64> {
        self.met.iter().map(|met| met.load(Ordering::Relaxed)).collect()
    }
}

/// The counts of a search in lists. The first count is the number of lists that were read. The second is the number of
/// pairs of a query and a vector that were compared. The third is the number of pairs whose exact distance was
/// computed.
pub type ListCounts = [u64; 3];

/// Passes the nearest vectors of each query to `each`, as [`crate::ShardSearch::finish`] does. `next` returns the
/// lists of the next shard and the id of the shard's first vector. `next` returns `None` after the last shard.
///
/// The memory consists of two copies of the queries, 16 bytes for each pair of a query and a list, the heaps, the
/// directory of a shard, and three buffers for each thread. A buffer is as large as the largest probed list of a shard.
///
/// # Errors
/// - Returns the errors of `next` and of `each`.
/// - Returns [`Error::BadOption`] if an option or a value of the request is out of range.
/// - Returns [`Error::BadDataset`] if a directory or a list is damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn search_lists(
    job: &Job,
    request: &ListRequest<'_>,
    next: &mut dyn FnMut() -> Result<Option<(CheckedFile, u64)>>,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<ListCounts> {
    request.layout.check()?;
    match request.layout.element {
        Element::F32 => search::<f32>(job, request, next, each),
        Element::U8 => search::<u8>(job, request, next, each),
        Element::I8 => search::<i8>(job, request, next, each),
        Element::F16 | Element::Bf16 | Element::Bits => {
            Err(no_index_of(&request.layout.info("lists", request.layout.row_bytes() as u64)?))
        }
    }
}

fn search<T: Clustered>(
    job: &Job,
    request: &ListRequest<'_>,
    next: &mut dyn FnMut() -> Result<Option<(CheckedFile, u64)>>,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<ListCounts> {
    let ListRequest { layout, search, queries, lists, .. } = *request;
    check_request(request)?;
    let (tops, _heaps) = shard_tops(job, search, lists.len() as u64)?;
    let pairs: usize = lists.iter().map(Vec::len).sum();
    let bytes = queries.len() as u64
        + lists.len() as u64 * Packed::<T>::bytes_each(layout.dimensions)
        + pairs as u64 * 16;
    let _memory = job.budget().reserve(bytes, "queries and their lists")?;
    let space = Space::<T>::new(search.metric, layout.dimensions, &[], Instructions::best());
    let space = space.within(search.radius);
    let mut memory = aligned(queries.len());
    let rows = bytes_of(&mut memory, queries.len());
    rows.copy_from_slice(queries);
    let mut packed = Packed::with_capacity(layout.dimensions, lists.len());
    packed.extend(T::rows(rows), &space);
    let wanted = Wanted::new(lists, pairs);
    let heaps = Tops { first: 0, tops: &tops };
    let shared = Shared { job, request, space: &space, packed: &packed, wanted: &wanted, heaps: &heaps };
    let mut counts = ListCounts::default();
    while let Some((file, first_id)) = next()? {
        let [lists, compared, measured] = shared.search_shard(&file, first_id)?;
        counts = [counts[0] + lists, counts[1] + compared, counts[2] + measured];
    }
    send_tops(tops, each)?;
    Ok(counts)
}

/// Checks the values of a request, which a client may have sent to this node.
fn check_request(request: &ListRequest<'_>) -> Result<()> {
    let ListRequest { layout, search, queries, lists, lists_count, .. } = *request;
    search.check()?;
    search.metric.check(layout.element)?;
    let bad = |option, found: String, expected: String| Err(Error::BadOption { option, found, expected });
    let expected = lists.len() as u64 * layout.row_bytes() as u64;
    if lists.is_empty() || queries.len() as u64 != expected {
        let (found, expected) = (format!("{} bytes", queries.len()), format!("{expected} bytes, and not 0"));
        return bad("queries", found, expected);
    }
    if lists_count == 0 || lists_count > 1 << 31 {
        return bad("the number of lists", lists_count.to_string(), format!("1 to {}", 1u64 << 31));
    }
    if let Some(list) = lists.iter().flatten().find(|list| u64::from(**list) >= lists_count) {
        return bad("a list", list.to_string(), format!("below {lists_count}"));
    }
    let is_finite = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
    if layout.element == Element::F32 && !queries.as_chunks::<4>().0.iter().all(is_finite) {
        return bad("queries", "a value that is not finite".to_string(), "finite numbers".to_string());
    }
    Ok(())
}

/// The lists that at least one query probes, and for each list the queries that probe the list.
struct Wanted {
    /// The numbers of the lists, ascending.
    lists: Vec<u32>,
    /// For each list the position of its first query in `queries`, then the length of `queries`.
    firsts: Vec<usize>,
    /// The queries of each list, one list after the other.
    queries: Vec<u32>,
}

impl Wanted {
    fn new(lists: &[Vec<u32>], count: usize) -> Wanted {
        let mut pairs = Vec::with_capacity(count);
        pairs.extend(
            (0u32..).zip(lists).flat_map(|(query, lists)| lists.iter().map(move |&list| (list, query))),
        );
        pairs.sort_unstable();
        pairs.dedup();
        let mut wanted = Wanted { lists: Vec::new(), firsts: vec![0], queries: Vec::with_capacity(count) };
        for pairs in pairs.chunk_by(|one, other| one.0 == other.0) {
            wanted.lists.push(pairs[0].0);
            wanted.queries.extend(pairs.iter().map(|pair| pair.1));
            wanted.firsts.push(wanted.queries.len());
        }
        wanted
    }

    fn queries(&self, place: usize) -> &[u32] {
        &self.queries[self.firsts[place]..self.firsts[place + 1]]
    }
}

/// The data that the searches of all shards share.
struct Shared<'a, T: Clustered> {
    job: &'a Job,
    request: &'a ListRequest<'a>,
    space: &'a Space<T>,
    packed: &'a Packed<T>,
    wanted: &'a Wanted,
    heaps: &'a Tops<'a>,
}

impl<T: Clustered> Shared<'_, T> {
    /// Compares a shard's parts of the probed lists with the queries that probe these lists.
    fn search_shard(&self, file: &CheckedFile, first_id: u64) -> Result<ListCounts> {
        let (job, layout) = (self.job, self.request.layout);
        let (row_bytes, entry_bytes) = (layout.row_bytes(), layout.row_bytes() + LIST_ID_BYTES);
        let (directory, rows) = self.directory(file)?;
        let present: Vec<(usize, u32)> = (0..)
            .zip(self.wanted.lists.iter().copied())
            .filter(|(_, list)| directory.count(*list) > 0)
            .collect();
        let largest = present.iter().map(|(_, list)| directory.count(*list)).max().unwrap_or(0);
        let block = file.block_bytes();
        let buffer_bytes = (largest as usize * entry_bytes + 2 * block).next_multiple_of(block);
        let range = |number: u64| {
            let &(_, list) = present.get(usize::try_from(number).ok()?)?;
            Some(directory.bytes_of(list..list + 1))
        };
        let threads = job.budget().threads();
        let _comparers = job
            .budget()
            .reserve(threads as u64 * Comparer::<T>::bytes(layout.dimensions), "the comparison of lists")?;
        let ranges = Ranges { job, file, threads, buffer_bytes, range };
        let make = || Comparer::<T>::new(layout.dimensions);
        let comparers = ranges.each(make, |comparer, number, bytes| {
            let (place, list) = present[number as usize];
            let count = directory.count(list) as usize;
            let vectors = list_of::<T>((file.name(), list), bytes, count, (row_bytes, entry_bytes), rows)?;
            let queries =
                Members { packed: self.packed, members: self.wanted.queries(place), heaps: self.heaps };
            let id_of = |row: usize| first_id + vectors.row(row);
            let Some(selection) = self.request.selection else {
                comparer.compare(self.space, vectors.rows, id_of, &queries);
                return Ok(());
            };
            let selected_id = |row: usize| Some(id_of(row)).filter(|&id| has_bit(selection.bytes, id));
            let selected = (0..count).filter(|&row| selected_id(row).is_some()).count() as u64;
            for &query in queries.members {
                if let Some(met) = selection.met.get(query as usize) {
                    met.fetch_add(selected, Ordering::Relaxed);
                }
            }
            if selected > 0 {
                comparer.compare_some(self.space, vectors.rows, selected_id, &queries);
            }
            Ok(())
        })?;
        let pairs =
            |&(place, list): &(usize, u32)| directory.count(list) * self.wanted.queries(place).len() as u64;
        let measured = comparers.iter().map(|comparer| comparer.measured).sum();
        Ok([present.len() as u64, present.iter().map(pairs).sum(), measured])
    }

    /// Reads the directory of a shard's lists. Returns the directory and the number of the shard's vectors.
    fn directory(&self, file: &CheckedFile) -> Result<(Directory, u64)> {
        let (job, lists) = (self.job, self.request.lists_count);
        let entry_bytes = (self.request.layout.row_bytes() + LIST_ID_BYTES) as u64;
        let bad = |what, found: String, expected: String| Error::BadDataset {
            name: file.name().to_string(),
            what,
            found,
            expected,
        };
        let directory_bytes = shard_directory_bytes(lists);
        let entries = file.len().checked_sub(directory_bytes).filter(|bytes| bytes % entry_bytes == 0);
        let Some(entries) = entries else {
            let expected = format!("{directory_bytes} bytes, and {entry_bytes} bytes for each vector");
            return Err(bad("length", format!("{} bytes", file.len()), expected));
        };
        let rows = entries / entry_bytes;
        let reservation = job.budget().reserve(2 * directory_bytes, "the directory of lists")?;
        let range = entries..file.len();
        let buffer = Buffer::zeroed(job.budget(), file.read_bytes(&range), "the directory of lists")?;
        let (buffer, bytes) = file.submit_read(job, range, buffer)?.wait()?;
        let firsts: Vec<u64> =
            buffer[bytes].as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        if firsts[0] != 0 || !firsts.is_sorted() || firsts.last() != Some(&rows) {
            let expected = format!("rising numbers from 0 to {rows}");
            return Err(bad("directory", "numbers out of order".to_string(), expected));
        }
        Ok((Directory::new(firsts, entry_bytes, reservation), rows))
    }
}
