//! A forest of disjoint sets that is larger than memory. The members of the sets are divided into ranges, and one range
//! at a time is in memory. (The method is that of Sibeyn, "External connected components", 2004, who processes single
//! members instead of ranges.)
//!
//! ```text
//!   pairs ──► the topmost range, whose parents are in memory
//!     │           a root has no parent, or one in a lower range: a second pair of such a root joins two lower members
//!     │                                  │
//!     └──► bins of the ranges below ◄────┘           the next lower range follows, and so on
//!   range 0 up: a root with a parent in a lower range looks up its label there, since the lower range is finished
//! ```
//!
//! A pair goes to the bin of the range that has its larger number, and is processed when this range is in memory. The
//! pair then joins two trees. If the roots of both trees already have parents in lower ranges, these two parents form a
//! new pair, which goes to a lower range. A pair descends until both of its members are in one tree, or until it
//! becomes the first link of a root to a lower range. When all pairs are processed, ranges are read in ascending order,
//! and each member gets its label. A root with a parent in a lower range gets the parent's label by a lookup.
//!
//! Lower ranges have smaller numbers, and a parent is always smaller than its child. The root of a tree is therefore
//! its smallest member.
//!
//! Cost with k ranges: a pair is written and read at most k - 1 times, or fewer times if it turns out to be redundant.
//! If there is more than one range, the parent of each member is written and read once. For each tree with a link to a
//! lower range, 16 bytes are also written and read once.

use inshore_store::{Buffer, CheckedFile, FileReader, FileWriter, Job, largest_buffer, taken_bytes};
use zerocopy::IntoBytes;

use super::pairs::{self, PairWriter, Pairs};
use crate::Result;

/// The size of a write or read of parents, in bytes.
const PARENTS_BYTES: usize = 64 << 10;
const BUFFER_BYTES_MIN: usize = 4 << 10;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// The bytes of memory for readers, for the writer of parents, and for small allocations that are not reserved.
const BESIDE_BYTES: u64 = 2 * pairs::READER_BYTES + 2 * PARENTS_BYTES as u64 + (256 << 10);
/// The largest number of ranges if the tuning forces their width. The number is limited because each range has files of
/// its own.
const FORCED_RANGES_MAX: u64 = 64;

/// Divides members into ranges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RangePlan {
    /// Number of members.
    count: u64,
    /// The number of members per range, except in the last range.
    width: u64,
    /// Size of the buffer of each writer, in bytes.
    buffer_bytes: usize,
}

impl RangePlan {
    /// Chooses the widest ranges that `free` bytes allow. Returns `None` if the memory cannot hold the writers of so
    /// many ranges.
    pub fn new(free: u64, count: u64, forced: Option<u64>) -> Option<RangePlan> {
        let count = count.max(1);
        let room = free.checked_sub(BESIDE_BYTES)?;
        let width = match forced {
            Some(width) => width.max(count.div_ceil(FORCED_RANGES_MAX)),
            None if memory_bytes(count) <= room => count,
            // Half of the memory is for the parents, a quarter is for writers, and a quarter is for checksums of
            // written data and for a bit per member.
            None => (largest_buffer(room as usize / 2) as u64 / 4).max(1),
        };
        let plan = |buffer_bytes| RangePlan { count, width, buffer_bytes };
        let ranges = plan(0).ranges();
        if ranges == 1 {
            return Some(plan(BUFFER_BYTES_MAX));
        }
        // Each lower range has a writer of pairs and a writer of lookups, with two buffers each.
        let buffer_bytes = (room / 4 / (4 * ranges)).checked_ilog2().map_or(0, |power| 1usize << power);
        (buffer_bytes >= BUFFER_BYTES_MIN).then(|| plan(buffer_bytes.min(BUFFER_BYTES_MAX)))
    }

    pub fn ranges(&self) -> u64 {
        self.count.div_ceil(self.width)
    }

    fn range_of(&self, number: u32) -> usize {
        (u64::from(number) / self.width) as usize
    }

    /// Returns the first member of a range and the number of members.
    fn range(&self, range: usize) -> (u32, usize) {
        let first = range as u64 * self.width;
        (first as u32, self.width.min(self.count - first) as usize)
    }

    fn writers(&self, job: &Job, name: &'static str, count: usize) -> Result<Vec<PairWriter>> {
        (0..count).map(|_| PairWriter::new(job, name, self.buffer_bytes)).collect()
    }
}

/// Returns the bytes of memory that the parents of a range's members take, and a bit for each member.
fn memory_bytes(width: u64) -> u64 {
    (taken_bytes(width as usize * 4) + taken_bytes(width.div_ceil(64) as usize * 8)) as u64
}

/// A forest that first collects pairs. The ranges are then resolved one after the other, from the topmost range down.
pub(super) struct RangeForest {
    job: Job,
    plan: RangePlan,
    /// The first member of the current range, the number of its members, and the parent of each of them.
    first: u32,
    len: usize,
    parents: Buffer,
    /// The writers of pairs, one for each lower range: a pair goes to the range of its larger number.
    below: Vec<PairWriter>,
    /// The writers of lookups, one for each lower range. A lookup consists of a member whose label is needed and of the
    /// member that needs the label.
    asked: Vec<PairWriter>,
    /// Files of the parents of the higher ranges, which are finished. The topmost range is the first.
    done: Vec<CheckedFile>,
}

impl RangeForest {
    pub fn new(job: &Job, plan: RangePlan) -> Result<RangeForest> {
        let lower = plan.ranges() as usize - 1;
        let parents =
            Buffer::zeroed(job.budget(), plan.width.min(plan.count) as usize * 4, "parents of vertices")?;
        let mut ranges = RangeForest {
            job: job.clone(),
            plan,
            first: 0,
            len: 0,
            parents,
            below: plan.writers(job, "pairs", lower)?,
            asked: plan.writers(job, "questions", lower)?,
            done: Vec::new(),
        };
        ranges.turn_to(lower);
        Ok(ranges)
    }

    /// Makes `range` the current range, and makes each of its members a root.
    fn turn_to(&mut self, range: usize) {
        (self.first, self.len) = self.plan.range(range);
        let parents = &mut self.parents.typed_mut::<u32>()[..self.len];
        (self.first..).zip(parents).for_each(|(number, parent)| *parent = number);
    }

    /// Connects two different members by joining their trees.
    #[inline]
    pub fn push(&mut self, a: u32, b: u32) -> Result<()> {
        debug_assert_ne!(a, b);
        let (low, high) = (a.min(b), a.max(b));
        if high >= self.first {
            return self.join(low, high);
        }
        self.below[self.plan.range_of(high)].push(high, low)
    }

    /// Joins the trees of `high`, which is in the current range, and of `low`, which may be in a lower range.
    #[inline]
    fn join(&mut self, low: u32, high: u32) -> Result<()> {
        let root = self.root(high);
        let above = self.parent(root);
        let (other, other_above) = if low < self.first {
            (root, low)
        } else {
            let other = self.root(low);
            if other == root {
                return Ok(());
            }
            (other, self.parent(other))
        };
        if above == other_above {
            return Ok(());
        }
        let (small, large) = (root.min(other), root.max(other));
        self.set_parent(large, small);
        let is_below = |number: u32| number < self.first;
        match (is_below(above), is_below(other_above)) {
            (false, false) => {}
            (true, false) => self.set_parent(small, above),
            (false, true) => self.set_parent(small, other_above),
            (true, true) => {
                self.set_parent(small, above.min(other_above));
                self.push(above, other_above)?;
            }
        }
        Ok(())
    }

    fn parent(&self, number: u32) -> u32 {
        self.parents.typed::<u32>()[(number - self.first) as usize]
    }

    fn set_parent(&mut self, number: u32, parent: u32) {
        self.parents.typed_mut::<u32>()[(number - self.first) as usize] = parent;
    }

    /// Returns the topmost ancestor within the current range, and halves the path to it.
    #[inline]
    fn root(&mut self, mut number: u32) -> u32 {
        let first = self.first;
        let parents = self.parents.typed_mut::<u32>();
        loop {
            let parent = parents[(number - first) as usize];
            if parent == number || parent < first {
                return number;
            }
            let above = parents[(parent - first) as usize];
            if above == parent || above < first {
                return parent;
            }
            parents[(number - first) as usize] = above;
            number = above;
        }
    }

    /// Resolves all ranges from the topmost down, and returns the labels. `members` returns the vertices that belong to
    /// the numbers 0, 1, 2, ... of the forest.
    pub fn finish<'a>(mut self, members: Box<dyn Iterator<Item = u32> + 'a>) -> Result<ComponentLabels<'a>> {
        let mut questions = Vec::new();
        while let Some(pairs) = self.below.pop() {
            self.put_away()?;
            questions.push(self.asked.pop().expect("as many").finish()?);
            let range = self.below.len();
            self.turn_to(range);
            let job = self.job.clone();
            // Each pair has its larger number first, and all first numbers are in the current range.
            pairs.finish()?.for_each(&job, |high, low| self.join(low, high))?;
        }
        let RangeForest { job, plan, parents, done, .. } = self;
        let answers = plan.writers(&job, "answers", plan.ranges() as usize - 1)?;
        let marks = match plan.ranges() {
            1 => None,
            _ => {
                Some(Buffer::zeroed(job.budget(), plan.width.div_ceil(64) as usize * 8, "answered lookups")?)
            }
        };
        let mut labels = ComponentLabels {
            job,
            plan,
            range: 0,
            next: 0,
            labels: parents,
            members,
            done,
            questions,
            answers,
            marks,
        };
        labels.name()?;
        Ok(labels)
    }

    /// Writes the parents of the current range, and requests the labels of parents in lower ranges.
    fn put_away(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let parents = &self.parents.typed::<u32>()[..self.len];
        for (number, &parent) in (self.first..).zip(parents) {
            if parent < self.first {
                self.asked[self.plan.range_of(parent)].push(parent, number)?;
            }
        }
        let mut file = FileWriter::create(&self.job, "parents", PARENTS_BYTES, PARENTS_BYTES)?;
        file.write(parents.as_bytes())?;
        self.done.push(file.finish()?);
        Ok(())
    }
}

/// The label of each member, in order. A label is the smallest vertex of the member's tree.
pub(super) struct ComponentLabels<'a> {
    job: Job,
    plan: RangePlan,
    range: usize,
    /// The offset of the next member in the current range.
    next: usize,
    /// Parents of the current range, later overwritten by labels.
    labels: Buffer,
    members: Box<dyn Iterator<Item = u32> + 'a>,
    /// The files of parents of the higher ranges, from the topmost down. The next range is last.
    done: Vec<CheckedFile>,
    /// The lookups in each remaining range, from high to low. The lookups in the current range are last.
    questions: Vec<Pairs>,
    /// The writers of answers to the lookups of higher ranges. The topmost range is the last.
    answers: Vec<PairWriter>,
    /// A bit for each member of the current range; it is set if the member's lookup was answered.
    marks: Option<Buffer>,
}

impl ComponentLabels<'_> {
    /// Returns the label of the next member.
    ///
    /// # Errors
    /// The function fails if an I/O operation fails, or if stored data is damaged.
    ///
    /// # Panics
    /// Panics if all labels have been returned.
    #[inline]
    pub fn next(&mut self) -> Result<u32> {
        if self.next == self.plan.range(self.range).1 {
            self.turn()?;
        }
        self.next += 1;
        Ok(self.labels.typed::<u32>()[self.next - 1])
    }

    #[cold]
    fn turn(&mut self) -> Result<()> {
        self.range += 1;
        self.next = 0;
        let file = self.done.pop().expect("as many labels are asked for as there are members");
        let mut reader = FileReader::new(&self.job, &file, 0..file.len(), PARENTS_BYTES)?;
        let (parents, mut filled) = (self.labels.as_mut_bytes(), 0);
        while let Some(piece) = reader.next_piece()? {
            parents[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        drop(reader);
        self.name()
    }

    /// Turns the parents of the current range into labels, and answers lookups in this range.
    fn name(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let (first, len) = self.plan.range(self.range);
        let labels = &mut self.labels.typed_mut::<u32>()[..len];
        let is_marked = |marks: &Option<Buffer>, place: usize| {
            marks.as_ref().is_some_and(|marks| marks.typed::<u64>()[place / 64] >> (place % 64) & 1 == 1)
        };
        if self.range > 0 {
            let marks = self.marks.as_mut().expect("there is more than one range").typed_mut::<u64>();
            marks.fill(0);
            self.answers.remove(0).finish()?.for_each(&self.job, |number, label| {
                let place = (number - first) as usize;
                labels[place] = label;
                marks[place / 64] |= 1 << (place % 64);
                Ok(())
            })?;
        }
        for place in 0..len {
            let vertex = self.members.next().expect("a vertex for each number");
            if !is_marked(&self.marks, place) {
                let parent = (labels[place] - first) as usize;
                labels[place] = if parent == place { vertex } else { labels[parent] };
            }
        }
        if let Some(questions) = self.questions.pop() {
            questions.for_each(&self.job, |number, asker| {
                let answers = &mut self.answers[self.plan.range_of(asker) - self.range - 1];
                answers.push(asker, labels[(number - first) as usize])
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_job;

    /// Computes labels by iterating over all pairs until nothing changes.
    fn plain(count: u32, pairs: &[(u32, u32)]) -> Vec<u32> {
        let mut labels: Vec<u32> = (0..count).collect();
        loop {
            let before = labels.clone();
            for &(a, b) in pairs {
                let least = labels[a as usize].min(labels[b as usize]);
                (labels[a as usize], labels[b as usize]) = (least, least);
            }
            if labels == before {
                return labels;
            }
        }
    }

    #[test]
    fn any_width_of_ranges_gives_the_labels_of_one() {
        let (_folder, job) = test_job(16 << 20);
        let mut state = 1u64;
        let mut dice = move |sides: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % sides
        };
        for round in 0..60 {
            let count = 1 + dice(300);
            let mut pairs: Vec<_> = (0..dice(2 * count)).map(|_| (dice(count), dice(count))).collect();
            if round % 3 == 0 {
                // A path on which neighbouring vertices have distant numbers.
                pairs = (1..count).map(|n| (n * 7 % count, (n - 1) * 7 % count)).collect();
            }
            pairs.retain(|(a, b)| a != b);
            let vertex = |number: u32| number * 3 + 5;
            let expected: Vec<u32> = plain(count, &pairs).into_iter().map(vertex).collect();
            for width in [1, 2, 17, u64::from(count)] {
                let plan = RangePlan::new(job.budget().free_bytes(), u64::from(count), Some(width)).unwrap();
                let mut ranges = RangeForest::new(&job, plan).unwrap();
                pairs.iter().for_each(|&(a, b)| ranges.push(a, b).unwrap());
                let mut labels = ranges.finish(Box::new((0..count).map(vertex))).unwrap();
                let found: Vec<u32> = expected.iter().map(|_| labels.next().unwrap()).collect();
                assert_eq!(found, expected, "round {round}, width {width}, {pairs:?}");
            }
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    #[test]
    fn ranges_are_as_wide_as_memory_and_refused_where_there_would_be_too_many() {
        let free = 8 << 20;
        assert_eq!(RangePlan::new(free, 1000, None).unwrap().ranges(), 1);
        let plan = RangePlan::new(free, 16 << 20, None).unwrap();
        assert!(plan.ranges() > 8 && plan.ranges() < 40, "{plan:?}");
        assert_eq!(RangePlan::new(free, u32::MAX.into(), None), None);
        assert!(RangePlan::new(64 << 20, u32::MAX.into(), None).is_some());
        assert_eq!(RangePlan::new(100 << 10, 1000, None), None);
    }
}
