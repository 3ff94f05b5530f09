//! Searches lists by their codes. Vectors that may be among the nearest ones are read and measured exactly.
//!
//! Each estimate has a bound on its error, so each vector has a lower and an upper bound of its distance. Let b be the
//! k-th smallest upper bound of all vectors of the probed lists. A *candidate* is a vector whose lower bound is at most
//! b. First the k candidates with the smallest estimates are measured. Then the others are measured by rising lower
//! bound, until a lower bound is above the k-th smallest distance.
//!
//! The candidates do not depend on the order in which lists are read, since b does not. They are read in groups of
//! [`DEPTH`], and the candidates of a group are known when the group before it has been measured. So the answer does
//! not depend on the times of reads, on the memory and on the number of threads.

use std::{collections::BinaryHeap, ops::Range, sync::atomic::Ordering};

use inshore_store::{Buffer, Job, PendingRead, Reservation};

use super::{
    Codes,
    query::{CodeList, CodeQuery},
    shape::Shape,
};
use crate::{
    Error, Result,
    heaps::Heaps,
    ids::Ids,
    index::{
        Clustered,
        compare::{Comparer, Members, Packed, Space},
        parts::Part,
        plan::{DEPTH, JOINED_BYTES},
        round::Selected,
    },
    topk::Entry,
};

/// The largest number of candidates. If there are more, those with the smallest lower bounds are kept.
const CANDIDATES: usize = 32 << 10;
/// Candidates that lie near each other are read together, in one read of at most this many bytes.
const TOGETHER_BYTES: u64 = 32 << 10;
/// The largest gap between two candidates that are read together.
const GAP_BYTES: u64 = 8 << 10;

/// A list that a query probes.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct ProbedList {
    pub list: u32,
    /// The key of the centroid of the list.
    pub key: f64,
}

/// A vector that may be near enough.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    lower: f64,
    estimate: f64,
    /// The position in the file of lists. Positions count the vectors of all lists.
    place: u64,
    row: u64,
}

/// The memory of a thread that searches by codes.
#[derive(Debug)]
pub(in crate::index) struct CodeScratch {
    products: Vec<i32>,
    candidates: Vec<Candidate>,
    uppers: BinaryHeap<Entry>,
    /// The number of neighbours of a query.
    k: usize,
    reservation: Reservation,
}

impl CodeScratch {
    /// Returns the memory, in bytes, for queries with `k` neighbours and lists of at most `vectors` vectors.
    pub fn bytes(shape: &Shape, k: u64, vectors: u64) -> u64 {
        let candidates = 2 * most_candidates(k as usize) as u64 * size_of::<Candidate>() as u64;
        candidates + (k + 1) * size_of::<Entry>() as u64 + vectors * 4 + CodeQuery::bytes(shape) + (64 << 10)
    }

    /// Reserves the memory.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the budget has too little free memory.
    pub fn new(job: &Job, shape: &Shape, k: u64, vectors: u64) -> Result<CodeScratch> {
        let reservation =
            job.budget().reserve(CodeScratch::bytes(shape, k, vectors), "candidates of a query")?;
        Ok(CodeScratch {
            products: Vec::new(),
            candidates: Vec::new(),
            uppers: BinaryHeap::new(),
            k: k as usize,
            reservation,
        })
    }

    /// Returns true if the memory was reserved for queries with `k` neighbours.
    pub fn is_for(&self, k: usize) -> bool {
        self.k == k
    }

    /// Returns the number of bytes that are reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.bytes()
    }
}

/// Returns the largest number of candidates of a query with `k` neighbours.
fn most_candidates(k: usize) -> usize {
    CANDIDATES.max(k.saturating_mul(4))
}

/// A search in the lists of the build by their codes.
pub(in crate::index) struct CodeSearch<'a, T: Clustered, H: Heaps> {
    pub job: &'a Job,
    pub codes: &'a Codes,
    /// The lists of the build, without layers.
    pub part: &'a Part,
    pub space: &'a Space<T>,
    pub packed: &'a Packed<T>,
    pub heaps: &'a H,
    pub selected: Option<&'a Selected<'a>>,
    pub ids: &'a Ids,
    /// The number of nearest vectors that a query needs.
    pub k: usize,
}

impl<T: Clustered, H: Heaps> CodeSearch<'_, T, H> {
    /// Answers a query. `probed` are the lists that the query probes. `spare` has buffers for reads.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if a row number is too large.
    /// - Returns [`Error::Store`] if an I/O operation fails or stored bytes are damaged.
    pub fn answer(
        &self,
        query: u32,
        probed: &mut [ProbedList],
        (scratch, comparer): (&mut CodeScratch, &mut Comparer<T>),
        spare: &mut Vec<Buffer>,
    ) -> Result<()> {
        let coded = CodeQuery::new(&self.codes.frame, self.packed.row(query as usize));
        scratch.candidates.clear();
        scratch.uppers.clear();
        let mut found = Found { search: self, query, coded: &coded, scratch };
        if self.codes.are_in_memory() {
            // The nearest lists come first, so that later lists have fewer candidates.
            for probed in probed.chunks(1) {
                let list = probed[0].list;
                let range = self.codes.shape.range_of(list..list + 1, &self.part.directory);
                match self.codes.file.held(&range) {
                    Some(bytes) => found.take(probed[0], bytes)?,
                    None => found.read_all(probed, spare)?,
                }
            }
        } else {
            probed.sort_unstable_by_key(|probed| probed.list);
            found.read_all(probed, spare)?;
        }
        self.measure_candidates(query, scratch, comparer, spare)
    }
}

/// The candidates of a query while lists are searched.
struct Found<'a, 'b, T: Clustered, H: Heaps> {
    search: &'b CodeSearch<'a, T, H>,
    query: u32,
    coded: &'b CodeQuery,
    scratch: &'b mut CodeScratch,
}

impl<T: Clustered, H: Heaps> Found<'_, '_, T, H> {
    /// Reads lists, which are in ascending order, with many reads in flight, and searches them. Adjacent lists are read
    /// together.
    fn read_all(&mut self, probed: &[ProbedList], spare: &mut Vec<Buffer>) -> Result<()> {
        let CodeSearch { job, codes, part, .. } = *self.search;
        let range_of = |lists: &[ProbedList]| {
            codes.shape.range_of(lists[0].list..lists[lists.len() - 1].list + 1, &part.directory)
        };
        let (mut reads, mut pieces): (Vec<PendingRead>, Vec<&[ProbedList]>) = Default::default();
        let mut rest = probed;
        loop {
            while !rest.is_empty()
                && let Some(buffer) = spare.pop()
            {
                let mut count = 1;
                while count < rest.len()
                    && rest[count].list == rest[count - 1].list + 1
                    && len(&range_of(&rest[..count + 1])) <= JOINED_BYTES
                {
                    count += 1;
                }
                let (piece, others) = rest.split_at(count);
                rest = others;
                reads.push(codes.file.submit_read(job, range_of(piece), buffer)?);
                pieces.push(piece);
            }
            if reads.is_empty() {
                return Ok(());
            }
            let done = PendingRead::wait_any(&reads);
            let (read, piece) = (reads.swap_remove(done), pieces.swap_remove(done));
            let (buffer, bytes) = read.wait()?;
            let mut bytes = &buffer[bytes];
            for &probed in piece {
                let (list, others) = bytes.split_at(len(&range_of(&[probed])) as usize);
                bytes = others;
                self.take(probed, list)?;
            }
            spare.push(buffer);
        }
    }

    /// Takes the candidates of a list, whose bytes are `bytes`.
    fn take(&mut self, probed: ProbedList, bytes: &[u8]) -> Result<()> {
        let CodeSearch { part, space, heaps, selected, k, .. } = *self.search;
        let places = part.directory.places_of(probed.list);
        let list = CodeList::new(&self.search.codes.shape, bytes, (places.end - places.start) as usize);
        if let Some(row) = list.places().map(|place| list.row(place)).find(|row| *row >= part.rows()) {
            return Err(Error::BadDataset {
                name: self.search.codes.file.name().to_string(),
                what: "vectors",
                found: format!("row {row} in list {}", probed.list),
                expected: format!("rows below {}", part.rows()),
            });
        }
        let is_selected = |row: u64| selected.is_none_or(|selected| selected.rows.contains(row));
        if let Some(selected) = selected {
            let met = &selected.met[self.query as usize];
            let count = list.places().filter(|&place| is_selected(list.row(place))).count();
            met.vectors.fetch_add(places.end - places.start, Ordering::Relaxed);
            met.selected.fetch_add(count as u64, Ordering::Relaxed);
        }
        let CodeScratch { products, candidates, uppers, .. } = &mut *self.scratch;
        let mut bound = heaps.bound(self.query as usize);
        if uppers.len() == k {
            bound = uppers.peek().map_or(bound, |worst| bound.min(worst.key));
        }
        self.coded.estimate(space.instructions, &list, probed.key, products, |place, estimate, error| {
            let (mut lower, mut upper) = (estimate - error, estimate + error);
            if !lower.is_finite() || !upper.is_finite() {
                // Factors or sums have overflowed, so the estimate says nothing.
                (lower, upper) = (f64::NEG_INFINITY, f64::INFINITY);
            }
            let row = list.row(place);
            if lower > bound || !is_selected(row) {
                return;
            }
            candidates.push(Candidate { lower, estimate, place: places.start + place as u64, row });
            let entry = Entry { key: upper, id: 0 };
            if uppers.len() < k {
                uppers.push(entry);
            } else if let Some(mut worst) = uppers.peek_mut()
                && entry < *worst
            {
                *worst = entry;
            }
            if uppers.len() == k {
                bound = uppers.peek().map_or(bound, |worst| bound.min(worst.key));
            }
        });
        let most = most_candidates(k);
        if candidates.len() > most {
            drop_far(candidates, bound, most);
        }
        Ok(())
    }
}

/// Drops candidates whose lower bounds are above `bound`. If more than `most` candidates are left, keeps those with the
/// smallest lower bounds.
fn drop_far(candidates: &mut Vec<Candidate>, bound: f64, most: usize) {
    candidates.retain(|candidate| candidate.lower <= bound);
    if candidates.len() > most {
        candidates.select_nth_unstable_by(most, by_lower);
        candidates.truncate(most);
    }
}

fn by_lower(one: &Candidate, other: &Candidate) -> std::cmp::Ordering {
    one.lower.total_cmp(&other.lower).then(one.place.cmp(&other.place))
}

fn by_estimate(one: &Candidate, other: &Candidate) -> std::cmp::Ordering {
    one.estimate.total_cmp(&other.estimate).then(one.place.cmp(&other.place))
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl<T: Clustered, H: Heaps> CodeSearch<'_, T, H> {
    /// Measures the candidates that may be among the nearest vectors.
    fn measure_candidates(
        &self,
        query: u32,
        scratch: &mut CodeScratch,
        comparer: &mut Comparer<T>,
        spare: &mut Vec<Buffer>,
    ) -> Result<()> {
        let CodeScratch { candidates, uppers, .. } = scratch;
        let bound = || self.heaps.bound(query as usize);
        let upper = if uppers.len() == self.k {
            uppers.peek().map_or(f64::INFINITY, |entry| entry.key)
        } else {
            f64::INFINITY
        };
        drop_far(candidates, bound().min(upper), most_candidates(self.k));
        let first = self.k.min(candidates.len());
        if first < candidates.len() {
            candidates.select_nth_unstable_by(first, by_estimate);
        }
        let mut others = candidates.split_off(first);
        candidates.sort_unstable_by(by_estimate);
        for group in candidates.chunks_mut(DEPTH) {
            self.measure(query, group, comparer, spare)?;
        }
        let most = bound();
        others.retain(|candidate| candidate.lower <= most);
        others.sort_unstable_by(by_lower);
        for group in others.chunks_mut(DEPTH) {
            let most = bound();
            let near = group.partition_point(|candidate| candidate.lower <= most);
            if near == 0 {
                break;
            }
            self.measure(query, &mut group[..near], comparer, spare)?;
        }
        Ok(())
    }

    /// Reads and measures a group of candidates.
    fn measure(
        &self,
        query: u32,
        group: &mut [Candidate],
        comparer: &mut Comparer<T>,
        spare: &mut Vec<Buffer>,
    ) -> Result<()> {
        group.sort_unstable_by_key(|candidate| candidate.place);
        let ranges: Vec<Range<u64>> =
            group.iter().map(|candidate| self.part.row_range(candidate.place)).collect();
        let (mut reads, mut pieces): (Vec<PendingRead>, Vec<Range<usize>>) = Default::default();
        let mut start = 0;
        while start < group.len() {
            let mut end = start + 1;
            while end < group.len()
                && ranges[end].start - ranges[end - 1].end <= GAP_BYTES
                && ranges[end].end - ranges[start].start <= TOGETHER_BYTES
            {
                end += 1;
            }
            let buffer = spare.pop().expect("a buffer for each candidate of a group");
            let range = ranges[start].start..ranges[end - 1].end;
            reads.push(self.part.file.submit_read(self.job, range, buffer)?);
            pieces.push(start..end);
            start = end;
        }
        let members = [query];
        let queries = Members { packed: self.packed, members: &members, heaps: self.heaps };
        while !reads.is_empty() {
            let done = PendingRead::wait_any(&reads);
            let (read, piece) = (reads.swap_remove(done), pieces.swap_remove(done));
            let (buffer, bytes) = read.wait()?;
            let bytes = &buffer[bytes];
            for number in piece.clone() {
                let range = &ranges[number];
                let from = (range.start - ranges[piece.start].start) as usize;
                let row = T::rows(&bytes[from..][..len(range) as usize]);
                let id = self.ids.id(group[number].row);
                comparer.compare(self.space, row, |_| id, &queries);
            }
            spare.push(buffer);
        }
        self.heaps.check()
    }
}
