//! Computes the inverse Burrows-Wheeler transform. The module builds the table of each block, and walks the tables of
//! several blocks in lockstep.
//!
//! The documentation of the [parent module](super) explains why the tables of several blocks are walked at the same
//! time, and why a word of the table can represent two letters.

/// A word of the table has 20 bits for the index of a row and 12 bits for the number of a pair of letters. In the
/// table, the number of the pair is in the low bits. The table is made from an array that has one word (a slot) for
/// each pair. In a slot, the row is in the low bits.
const ROW_BITS: u32 = 20;
const ROW_MASK: u32 = (1 << ROW_BITS) - 1;
const NAME_BITS: u32 = 32 - ROW_BITS;
pub(super) const PAIRS: usize = 1 << 16;
/// At most this many letter pairs have a number of their own. One further number stands for all rarer pairs.
const PAIRS_NAMED: usize = (1 << NAME_BITS) - 1;
/// The limit on the number of distinct rare pairs. If a block has more rare pairs, or too many letters in rare pairs
/// ([`RARE_SHARE`]), the words of its table represent single letters instead of pairs.
const PAIRS_RARE: usize = 8 << 10;
/// The words of a table represent pairs only if at most one of every `RARE_SHARE` letters of the block is in a rare
/// pair. Texts have few rare pairs. In an executable program, a tenth of the letters is in rare pairs.
const RARE_SHARE: usize = 32;
/// The memory for the pairs of a block, in bytes.
pub(super) const PAIRS_BYTES: usize = (PAIRS_NAMED + 1) * 2 + 2 * PAIRS_RARE * size_of::<(u32, u16)>();

/// A block whose table is complete, so that the block can be decoded.
pub(super) struct LaidOutBlock {
    /// The range of the workspace's letters that belong to the block. The words of the block's table are in the same
    /// range of the workspace's table.
    pub range: std::ops::Range<usize>,
    /// The index of the table's word with which the walk begins.
    pub start: u32,
    pub checksum: u32,
    /// The offset of the block's first bit in the input, in bits.
    pub at: usize,
    pub kind: TableKind,
}

/// Tells what the words of a block's table contain.
pub(super) enum TableKind {
    /// Each word holds a letter, and the row of the next letter.
    Letters,
    /// Each word holds two letters, and the row of the letters after them.
    Pairs(Pairs),
}

/// Lists the pairs of letters that the words of a table represent.
pub(super) struct Pairs {
    /// The two letters of each pair that has a number of its own. The words of the table refer to a pair by its index
    /// in this array. The first letter is in the lower byte.
    named: Box<[u16; PAIRS_NAMED + 1]>,
    /// The pairs without a number of their own. Each pair follows the index of the first row that begins with it. The
    /// list is sorted by these rows.
    rare: Vec<(u32, u16)>,
}

impl Pairs {
    /// Returns the pair of letters with which `row` begins. The caller must know that this pair has no number of its
    /// own, so that the pair is in `rare`.
    #[cold]
    fn of_row(&self, row: u32) -> u16 {
        let behind = self.rare.partition_point(|&(first, _)| first <= row);
        self.rare[behind - 1].1
    }
}

/// Returns, for each letter, the index of the first row that begins with the letter.
pub(super) fn first_rows(counts: &[u32; 256]) -> [u32; 256] {
    let mut sum = 0;
    counts.map(|count| {
        sum += count;
        sum - count
    })
}

/// Fills the table of a block. The block's letters are the last letters of the rows of the sorted matrix of rotations.
/// The lowest byte of word `r` is the first letter of row `r`. The other bits of word `r` are the index of the row that
/// begins with the next letter of the text.
pub(super) fn place(letters: &[u8], mut next: [u32; 256], table: &mut [u32]) {
    for (row, &letter) in letters.iter().enumerate() {
        let next = &mut next[usize::from(letter)];
        table[*next as usize] = (row as u32) << 8 | u32::from(letter);
        *next += 1;
    }
}

/// Fills the table of a block by pairs. The low bits of word `r` are the number of the pair of letters with which row
/// `r` begins. The high bits are the index of the row that begins with the letter after this pair. Returns `None` if
/// too many letters are in pairs without a number.
///
/// Let `second` be the last letter of row `k`. In the text, `second` precedes the first letter of row `k`. The rotation
/// that begins with this `second` is another row. Its last letter is `first`, the letter before `second` in the text.
/// Rows that begin with the same pair of letters are sorted by the letters after the pair. A loop over ascending `k`
/// therefore reaches the rows of each pair in ascending order.
pub(super) fn place_pairs(
    letters: &[u8],
    names: &[u8],
    mut next: [u32; 256],
    table: &mut [u32],
    slots: &mut [u32],
) -> Option<Pairs> {
    let slots: &mut [u32; PAIRS] = slots.try_into().expect("a slot for each pair");
    count_pairs(letters, names, &next, slots);
    let pairs = name_pairs(letters.len(), names, slots)?;
    for (row, &second) in letters.iter().enumerate() {
        let between = &mut next[usize::from(second)];
        let first = letters[*between as usize];
        *between += 1;
        let slot = &mut slots[usize::from(first) << 8 | usize::from(second)];
        table[(*slot & ROW_MASK) as usize] = (row as u32) << NAME_BITS | *slot >> ROW_BITS;
        *slot += 1;
    }
    Some(pairs)
}

/// Counts the pairs of letters. In the text, the last letter of a row precedes its first letter, so the two letters are
/// a pair.
fn count_pairs(letters: &[u8], names: &[u8], first_rows: &[u32; 256], slots: &mut [u32; PAIRS]) {
    for (place, &second) in names.iter().enumerate() {
        let start = first_rows[usize::from(second)] as usize;
        let end = names.get(place + 1).map_or(letters.len(), |&next| first_rows[usize::from(next)] as usize);
        // Two arrays of counters are used, so that the increments for adjacent equal letters do not wait for each
        // other.
        let mut counts = [[0u32; 256]; 2];
        let twos = letters[start..end].chunks_exact(2);
        twos.remainder().iter().for_each(|&first| counts[0][usize::from(first)] += 1);
        for two in twos {
            counts[0][usize::from(two[0])] += 1;
            counts[1][usize::from(two[1])] += 1;
        }
        for first in names.iter().copied().map(usize::from) {
            slots[first << 8 | usize::from(second)] = counts[0][first] + counts[1][first];
        }
    }
}

/// Replaces the count of each pair in `slots` by the index of the first row that begins with the pair. The bits above
/// the index get the number of the pair. Only the most frequent pairs get numbers of their own. Returns `None` if the
/// block exceeds a limit on rare pairs.
fn name_pairs(letters: usize, names: &[u8], slots: &mut [u32; PAIRS]) -> Option<Pairs> {
    let all = || {
        let pairs =
            |first: u8| names.iter().map(move |&second| usize::from(first) << 8 | usize::from(second));
        names.iter().copied().flat_map(pairs)
    };
    let mut counts: Vec<u32> = all().map(|pair| slots[pair]).filter(|&count| count > 0).collect();
    // `frequent` is the count of the rarest pair that gets a number. All pairs with a larger count get numbers. Of the
    // pairs with exactly this count, the first `equal` pairs get numbers.
    let (mut frequent, mut equal) = (0, 0);
    if counts.len() > PAIRS_NAMED {
        let (named, &mut last, rare) =
            counts.select_nth_unstable_by_key(PAIRS_NAMED - 1, |&count| std::cmp::Reverse(count));
        if rare.len() > PAIRS_RARE || rare.iter().sum::<u32>() as usize > letters / RARE_SHARE {
            return None;
        }
        (frequent, equal) = (last, 1 + named.iter().filter(|&&count| count == last).count());
    }
    let mut pairs = Pairs { named: Box::new([0; PAIRS_NAMED + 1]), rare: Vec::new() };
    let (mut row, mut number) = (0, 0);
    for pair in all() {
        let count = std::mem::replace(&mut slots[pair], row);
        if count == 0 {
            continue;
        }
        let both = (pair as u16).swap_bytes();
        let is_equal = count == frequent && equal > 0;
        equal -= usize::from(is_equal);
        let name = if count > frequent || is_equal {
            pairs.named[number] = both;
            number += 1;
            number - 1
        } else {
            pairs.rare.push((row, both));
            PAIRS_NAMED
        };
        slots[pair] |= (name as u32) << ROW_BITS;
        row += count;
    }
    Some(pairs)
}

/// The state of a walk through a block's table. The walk writes the text of the block.
struct Walk<'a> {
    table: &'a [u32],
    pairs: Option<&'a Pairs>,
    row: u32,
    out: &'a mut [u8],
}

/// The number of blocks that are walked in lockstep.
const ABREAST: usize = 4;

/// Walks the tables of all blocks. At first, `letters` has the last letters of the sorted rotations of each block. The
/// walk replaces them by the text of the block.
pub(super) fn walk_all(laid: &[LaidOutBlock], table: &[u32], letters: &mut [u8]) {
    let (mut walks, mut rest) = (Vec::with_capacity(laid.len()), letters);
    for block in laid {
        let (out, behind) = std::mem::take(&mut rest).split_at_mut(block.range.len());
        rest = behind;
        let pairs = match &block.kind {
            TableKind::Pairs(pairs) => Some(pairs),
            TableKind::Letters => None,
        };
        walks.push(Walk { table: &table[block.range.clone()], pairs, row: block.start, out });
    }
    // Blocks with the same kind of table and similar length are walked together. When the shortest block ends, the walk
    // continues with the longer blocks.
    walks.sort_by_key(|walk| (walk.pairs.is_none(), std::cmp::Reverse(walk.out.len())));
    let by_pairs = walks.partition_point(|walk| walk.pairs.is_some());
    let (pairs, single) = walks.split_at_mut(by_pairs);
    for walks in pairs.chunks_mut(ABREAST) {
        for count in (1..=walks.len()).rev() {
            let steps = walks[count - 1].out.len() / 2;
            match count {
                4 => walk_pairs::<4>(walks[..4].as_mut_array().expect("four"), steps),
                3 => walk_pairs::<3>(walks[..3].as_mut_array().expect("three"), steps),
                2 => walk_pairs::<2>(walks[..2].as_mut_array().expect("two"), steps),
                _ => walk_pairs::<1>(walks[..1].as_mut_array().expect("one"), steps),
            }
        }
        walks.iter_mut().for_each(Walk::last_letter);
    }
    for walks in single.chunks_mut(ABREAST) {
        for count in (1..=walks.len()).rev() {
            let steps = walks[count - 1].out.len();
            match count {
                4 => walk::<4>(walks[..4].as_mut_array().expect("four"), steps),
                3 => walk::<3>(walks[..3].as_mut_array().expect("three"), steps),
                2 => walk::<2>(walks[..2].as_mut_array().expect("two"), steps),
                _ => walk::<1>(walks[..1].as_mut_array().expect("one"), steps),
            }
        }
    }
}

impl Walk<'_> {
    /// If the block is decoded by pairs and has an odd number of letters, writes its last letter.
    fn last_letter(&mut self) {
        if let ([last], Some(pairs)) = (&mut *self.out, self.pairs) {
            *last = pair_of(pairs, self.table[self.row as usize], self.row) as u8;
        }
    }
}

#[inline(always)]
fn pair_of(pairs: &Pairs, word: u32, row: u32) -> u16 {
    let name = word as usize & PAIRS_NAMED;
    if name == PAIRS_NAMED { pairs.of_row(row) } else { pairs.named[name] }
}

/// Decodes two letters from each of the tables in turn, `steps` times.
fn walk_pairs<const WALKS: usize>(walks: &mut [Walk<'_>; WALKS], steps: usize) {
    let tables = walks.each_ref().map(|walk| walk.table);
    let pairs = walks.each_ref().map(|walk| walk.pairs.expect("a walk by pairs"));
    let mut rows = walks.each_ref().map(|walk| walk.row);
    let mut outs = walks.each_mut().map(|walk| {
        let (now, later) = std::mem::take(&mut walk.out).split_at_mut(2 * steps);
        walk.out = later;
        now.as_chunks_mut::<2>().0
    });
    for step in 0..steps {
        for (((row, table), pairs), out) in rows.iter_mut().zip(&tables).zip(&pairs).zip(&mut outs) {
            let word = table[*row as usize];
            out[step] = pair_of(pairs, word, *row).to_le_bytes();
            *row = word >> NAME_BITS;
        }
    }
    for (walk, row) in walks.iter_mut().zip(rows) {
        walk.row = row;
    }
}

/// Decodes one letter from each of the tables in turn, `steps` times.
fn walk<const WALKS: usize>(walks: &mut [Walk<'_>; WALKS], steps: usize) {
    let tables = walks.each_ref().map(|walk| walk.table);
    let mut rows = walks.each_ref().map(|walk| walk.row);
    let mut outs = walks.each_mut().map(|walk| {
        let (now, later) = std::mem::take(&mut walk.out).split_at_mut(steps);
        walk.out = later;
        now
    });
    for step in 0..steps {
        for ((row, table), out) in rows.iter_mut().zip(&tables).zip(&mut outs) {
            let word = table[*row as usize];
            out[step] = word as u8;
            *row = word >> 8;
        }
    }
    for (walk, row) in walks.iter_mut().zip(rows) {
        walk.row = row;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorts all rotations of the text. Returns the last letters of the sorted rotations, and the number of the row
    /// that is the text itself.
    fn sorted(text: &[u8]) -> (Vec<u8>, u32) {
        let twice = text.repeat(2);
        let mut starts: Vec<usize> = (0..text.len()).collect();
        starts.sort_by_key(|&start| &twice[start..start + text.len()]);
        let last = |&start: &usize| twice[start + text.len() - 1];
        let row = starts.iter().position(|&start| start == 0).unwrap();
        (starts.iter().map(last).collect(), row as u32)
    }

    #[test]
    fn texts_round_trip_by_pairs_with_and_without_numbers_and_by_letters() {
        let mut dice = 11u64;
        let mut below = |limit: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % limit
        };
        let mut text = |len: usize, few: usize, many: usize| -> Vec<u8> {
            (0..len).map(|_| if below(100) < 99 { below(few) as u8 } else { below(many) as u8 }).collect()
        };
        let texts = [text(30_001, 40, 40), text(120_000, 60, 90), text(30_000, 250, 256)];
        let (mut letters, mut table, mut laid, mut rare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for text in &texts {
            let (last, start) = sorted(text);
            let mut counts = [0; 256];
            last.iter().for_each(|&letter| counts[usize::from(letter)] += 1);
            let names: Vec<u8> = (0..=255).filter(|&letter| counts[usize::from(letter)] > 0).collect();
            let (mut words, mut slots) = (vec![0; last.len()], vec![7; PAIRS]);
            let rows = first_rows(&counts);
            let kind = match place_pairs(&last, &names, rows, &mut words, &mut slots) {
                Some(pairs) => {
                    rare.push(Some(pairs.rare.len()));
                    TableKind::Pairs(pairs)
                }
                None => {
                    rare.push(None);
                    place(&last, rows, &mut words);
                    TableKind::Letters
                }
            };
            let from = letters.len();
            laid.push(LaidOutBlock { range: from..from + last.len(), start, checksum: 0, at: 0, kind });
            letters.extend(last);
            table.extend(words);
        }
        assert!(matches!(rare[..], [Some(0), Some(1..), None]), "{rare:?}");
        walk_all(&laid, &table, &mut letters);
        assert!(letters == texts.concat());
    }
}
