//! An in-place quicksort that processes vectors of words.
//!
//! A partition step reads the next group of vectors from the end of the unread words at which less space for writes
//! is left. The step moves the words up to the pivot to the front of a vector, and the words above the pivot to its
//! back. The complete vector is then written at both ends. The words that belong to the other end overwrite only
//! words that were already read. No branch depends on a comparison, and all writes are complete vectors.

use std::{hint::select_unpredictable, mem::MaybeUninit};

use super::{
    network::{ROWS, sort_rows_into, sort_words},
    vector::{LANES_MAX, Vector, Word},
};

/// The maximum number of vectors in a group.
const GROUP_MAX: usize = 8;
/// The number of vectors in the sample from which a pivot is chosen.
const SAMPLE_ROWS: usize = 8;

/// Sorts words in place, in O(n log n) time for any input.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn sort<V: Vector>(words: &mut [V::Word]) {
    if words.len() <= ROWS * V::LANES {
        // SAFETY: the caller meets the function's safety conditions.
        return unsafe { sort_small::<V>(words.as_mut_ptr(), words.len()) };
    }
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ words.len() as u64;
    // The stack of pending parts: the start, the length and the remaining depth. The smaller side is sorted first, so
    // each step at least halves the length. The stack therefore has space for all pending parts.
    let mut left = [(std::ptr::null_mut(), 0, 0); usize::BITS as usize];
    let mut lefts = 0;
    let (mut start, mut count) = (words.as_mut_ptr(), words.len());
    let mut depth = 2 * count.ilog2();
    loop {
        // SAFETY: `start` and `count` always describe a part of `words`, and parts do not overlap.
        unsafe {
            while count > ROWS * V::LANES {
                if depth == 0 {
                    std::slice::from_raw_parts_mut(start, count).sort_unstable();
                    count = 0;
                    break;
                }
                depth -= 1;
                let (pivot, is_frequent) = pivot::<V>(start, count, &mut random);
                let low = partition::<V>(start, count, pivot);
                let high = (start.add(low), count - low);
                count = low;
                if is_frequent || high.1 == 0 {
                    // The words that are equal to the pivot are already in their final position, so they are
                    // excluded.
                    count = pivot.below().map_or(0, |below| partition::<V>(start, low, below));
                }
                left[lefts] = (high.0, high.1, depth);
                if count > high.1 {
                    left[lefts] = (start, count, depth);
                    (start, count) = high;
                }
                lefts += 1;
            }
            sort_small::<V>(start, count);
        }
        if lefts == 0 {
            return;
        }
        lefts -= 1;
        (start, count, depth) = left[lefts];
    }
}

/// Sorts at most `ROWS * LANES` words.
///
/// # Safety
/// The processor has the instructions of `V`; the caller has exclusive access to the words.
#[inline(always)]
unsafe fn sort_small<V: Vector>(start: *mut V::Word, count: usize) {
    // SAFETY: the caller meets the function's safety conditions.
    unsafe {
        if count <= V::LANES {
            sort_few(std::slice::from_raw_parts_mut(start, count));
        } else if V::LANES <= 4 && count <= 4 * V::LANES {
            sort_words::<V, 4>(start, count);
        } else if V::LANES <= 8 && count <= 8 * V::LANES {
            sort_words::<V, 8>(start, count);
        } else {
            sort_words::<V, ROWS>(start, count);
        }
    }
}

/// Sorts a few words by insertion.
fn sort_few<W: Word>(words: &mut [W]) {
    for end in 1..words.len() {
        let word = words[end];
        let mut place = end;
        while place > 0 && words[place - 1] > word {
            words[place] = words[place - 1];
            place -= 1;
        }
        words[place] = word;
    }
}

/// Returns the median of a sample as pivot. Also returns whether the median makes up at least about a quarter of the
/// sample.
///
/// # Safety
/// The processor has the instructions of `V`; there are at least `LANES` words.
#[inline(always)]
unsafe fn pivot<V: Vector>(start: *const V::Word, count: usize, random: &mut u64) -> (V::Word, bool) {
    // SAFETY: the indexes are at most `count - LANES`.
    let rows = unsafe {
        let mut rows = [V::load(start); SAMPLE_ROWS];
        for row in &mut rows {
            *random = random.wrapping_mul(0xd129_0d3d_5e2f_96cd).wrapping_add(1);
            let place = ((*random >> 32) * (count - V::LANES) as u64) >> 32;
            *row = V::load(start.add(place as usize));
        }
        rows
    };
    let mut sample = [V::Word::default(); SAMPLE_ROWS * LANES_MAX];
    // SAFETY: the caller meets the function's safety conditions.
    unsafe { sort_rows_into(rows, &mut sample) };
    // The order of the sorted sample is column by column.
    let quarter = |number: usize| {
        let at = number * SAMPLE_ROWS * V::LANES / 4;
        sample[at % SAMPLE_ROWS * V::LANES + at / SAMPLE_ROWS]
    };
    (quarter(2), quarter(1) == quarter(2) || quarter(2) == quarter(3))
}

/// Moves the words that are at most `pivot` to the front, and returns their number.
///
/// # Safety
/// The processor has the instructions of `V`; the caller has exclusive access to the words.
#[inline(always)]
unsafe fn partition<V: Vector>(start: *mut V::Word, count: usize, pivot: V::Word) -> usize {
    // Two groups are in registers at a time, which take half of the registers. SAFETY: the caller meets the
    // function's safety conditions.
    unsafe {
        if V::LANES >= 8 {
            partition_groups::<V, 8>(start, count, pivot)
        } else {
            partition_groups::<V, 4>(start, count, pivot)
        }
    }
}

/// Partitions as [`partition`] does, in groups of `GROUP` vectors.
///
/// # Safety
/// The conditions of [`partition`] must be met.
#[inline(always)]
unsafe fn partition_groups<V: Vector, const GROUP: usize>(
    start: *mut V::Word,
    count: usize,
    pivot: V::Word,
) -> usize {
    let group = GROUP * V::LANES;
    if count < 2 * group {
        // SAFETY: the caller meets the function's safety conditions.
        return partition_few(unsafe { std::slice::from_raw_parts_mut(start, count) }, pivot);
    }
    // SAFETY: all reads are of the `count` words. The `unread` words between `from_low` and `from_high` are still to be
    // read. The free space before and after them has room for exactly the words in `held` and in the current group.
    // Whenever a group is written, each side has room for at least one group, since the next group is read from the
    // side with less room.
    unsafe {
        let limit = V::splat(pivot).flip();
        let held_count = count % group + group;
        let mut held = [MaybeUninit::<V::Word>::uninit(); 2 * GROUP_MAX * LANES_MAX];
        let held = held.as_mut_ptr().cast::<V::Word>();
        held.copy_from_nonoverlapping(start.add(count - held_count), held_count);
        let mut to = PartitionTarget { low: start, between: count };
        let (mut low, mut high) = (start.add(group), start.add(count - held_count));
        let mut current = load_group::<V, GROUP>(start);
        while low < high {
            let low_room = low.offset_from(to.low);
            let high_room = to.low.add(to.between).offset_from(high);
            let from_low = low_room <= high_room;
            let from = select_unpredictable(from_low, low, high.sub(group));
            low = select_unpredictable(from_low, low.add(group), low);
            high = select_unpredictable(from_low, high, from);
            let next = load_group::<V, GROUP>(from);
            for vector in current {
                to.put(vector, limit);
            }
            current = next;
        }
        for vector in current {
            to.put(vector, limit);
        }
        let mut done = 0;
        while held_count - done >= 2 * V::LANES {
            to.put(V::load(held.add(done)), limit);
            done += V::LANES;
        }
        while done < held_count {
            to.put_word(*held.add(done), pivot);
            done += 1;
        }
        to.low.offset_from(start) as usize
    }
}

/// The destination of a partition step. The `between` words from `low` on can be overwritten.
struct PartitionTarget<W> {
    low: *mut W,
    between: usize,
}

impl<W: Word> PartitionTarget<W> {
    /// # Safety
    /// `2 * LANES` words of the destination are free.
    #[inline(always)]
    unsafe fn put<V: Vector<Word = W>>(&mut self, vector: V, limit: V) {
        let above = vector.flip().above(limit);
        let split = vector.split(above);
        // SAFETY: the caller meets the function's safety conditions.
        unsafe {
            split.store(self.low);
            split.store(self.low.add(self.between - V::LANES));
            self.low = self.low.add(V::LANES - above.count_ones() as usize);
        }
        self.between -= V::LANES;
    }

    /// # Safety
    /// A word of the destination is free.
    #[inline(always)]
    unsafe fn put_word(&mut self, word: W, pivot: W) {
        // SAFETY: the caller meets the function's safety conditions.
        unsafe {
            *self.low = word;
            *self.low.add(self.between - 1) = word;
            self.low = self.low.add(usize::from(word <= pivot));
        }
        self.between -= 1;
    }
}

#[inline(always)]
unsafe fn load_group<V: Vector, const GROUP: usize>(from: *const V::Word) -> [V; GROUP] {
    // SAFETY: the caller meets the function's safety conditions.
    unsafe {
        let mut vectors = [V::load(from); GROUP];
        for (number, vector) in vectors.iter_mut().enumerate() {
            *vector = V::load(from.add(number * V::LANES));
        }
        vectors
    }
}

/// Partitions as [`partition`] does, one word at a time.
fn partition_few<W: Word>(words: &mut [W], pivot: W) -> usize {
    let mut low = 0;
    for number in 0..words.len() {
        words.swap(low, number);
        low += usize::from(words[low] <= pivot);
    }
    low
}
