//! Computes all states in which a power loss may leave a drive, from the recorded changes.
//!
//! A power loss can come after any change. Changes that were synced before the loss are kept. Each other change may be
//! lost, since POSIX promises no order. Without a journal (ext2, or ext4 without a journal), a check of the file system
//! also removes two kinds of files and folders. Those of the first kind were never synced while they had a name. Those
//! of the second kind had lost their last name: such a file may be freed on the drive before the change of the folder
//! is written. A kill of the process is a loss in which no change is lost.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Change, File, Files, Node, Tree};

/// The largest number of unsynced changes for which every subset is tried as a loss.
const SUBSETS_OF: usize = 5;
/// The number of subsets that are drawn at random if there are more unsynced changes.
const SUBSETS_DRAWN: usize = 32;

/// The recording of one run of a command: the changes of the drive.
pub struct Recording {
    before: Tree,
    changes: Vec<Change>,
    pub old: Files,
    pub new: Files,
    /// The number of changes that were made before the command reported success.
    reported: usize,
    /// For each change, the index of the first sync that makes the change durable.
    durable_from: Vec<usize>,
    /// For each file and folder that was created, the index of the first sync while the file or folder had a name.
    named_from: BTreeMap<u64, usize>,
    /// For each file and folder that has no name at the end, the index of the change that removed its last name.
    freed_from: BTreeMap<u64, usize>,
}

/// A power loss: the time at which it comes, and the changes that are lost.
#[derive(Clone, Debug)]
struct Loss {
    /// The number of changes that were made before the loss.
    after: usize,
    /// The indexes of the changes that are lost.
    lost: BTreeSet<usize>,
    has_journal: bool,
}

impl Recording {
    /// Creates the recording of a drive that had the files `old` before these changes. The command reports success when
    /// it last writes to the file `report`. If it never writes to this file, it reports success when it ends.
    pub fn new(old: &Files, changes: Vec<Change>, report: &str) -> Recording {
        let before = Tree::new(old);
        let mut tree = before.clone();
        changes.iter().for_each(|change| tree.apply(change));
        let without_report = |mut files: Files| {
            files.remove(report);
            files
        };
        let (old, new) = (without_report(before.files(|_| true)), without_report(tree.files(|_| true)));
        Recording::of_blocks(before, changes, report, old, new)
    }

    /// Creates the recording of a drive that has the image of a file system as a file. `before` is the drive before
    /// these changes. `old` and `new` are the files inside of the image, before and after the changes.
    pub fn of_blocks(before: Tree, changes: Vec<Change>, report: &str, old: Files, new: Files) -> Recording {
        let report_node = before.nodes[&super::tree::ROOT].names.get(report).copied();
        let is_report =
            |change: &Change| matches!(change, Change::Write { node, .. } if Some(*node) == report_node);
        let reported = changes.iter().rposition(is_report).map_or(changes.len(), |last| last + 1);
        let durable_from = changes.iter().enumerate().map(|(at, change)| {
            let sync = changes[at..].iter().position(|later| change.is_made_durable_by(later));
            sync.map_or(usize::MAX, |after| at + after)
        });
        let durable_from = durable_from.collect();
        let (mut tree, mut named_from, mut freed_from) = (before.clone(), BTreeMap::new(), BTreeMap::new());
        for (at, change) in changes.iter().enumerate() {
            tree.apply(change);
            for (&node, Node { links, .. }) in tree.nodes.iter().filter(|_| change.names()) {
                match links {
                    0 => _ = freed_from.entry(node).or_insert(at),
                    _ => _ = freed_from.remove(&node),
                }
            }
            match change {
                Change::Make { node, .. } => _ = named_from.insert(*node, usize::MAX),
                Change::Sync { node, .. } if tree.nodes[node].links > 0 => {
                    named_from.entry(*node).and_modify(|first| *first = at.min(*first));
                }
                _ => {}
            }
        }
        Recording { before, changes, old, new, reported, durable_from, named_from, freed_from }
    }

    /// Checks the files of the drive after each of at most `losses_max` power losses. Returns the number of losses.
    ///
    /// # Errors
    /// Returns a description of the first fault, and of the loss that led to the fault.
    pub fn check(&self, losses_max: usize, seed: u64) -> Result<usize, String> {
        self.check_by(losses_max, seed, Ok)
    }

    /// Checks as [`Recording::check`] does, but `look` converts the files of the drive to the files that are checked.
    ///
    /// # Errors
    /// Returns the errors of [`Recording::check`] and of `look`.
    pub fn check_by(
        &self,
        losses_max: usize,
        seed: u64,
        look: impl Fn(Files) -> Result<Files, String>,
    ) -> Result<usize, String> {
        let losses = self.losses(losses_max, seed);
        for loss in &losses {
            let judged = look(self.found(loss)).and_then(|found| self.judge(loss, &found));
            judged.map_err(|wrong| format!("{wrong}\n{}", self.told(loss)))?;
        }
        Ok(losses.len())
    }

    /// Tells whether losses with and without a journal differ. They differ only if changes affect names. A recording of
    /// blocks has no such changes.
    fn journal_matters(&self) -> bool {
        self.changes.iter().any(Change::names)
    }

    /// Lists power losses. For each number of changes before the loss, there is a loss of all changes that can be lost,
    /// and a loss of none (plain losses). There are also losses of some of the changes (mixed losses). If there are too
    /// many losses of a kind, a sample is drawn at random.
    fn losses(&self, losses_max: usize, seed: u64) -> Vec<Loss> {
        let mut random = Random(seed);
        let (mut plain, mut mixed) = (Vec::new(), Vec::new());
        for after in 0..=self.changes.len() {
            let unsynced: Vec<usize> = (0..after)
                .filter(|&at| self.changes[at].is_lasting() && self.durable_from[at] >= after)
                .collect();
            let journals = if self.journal_matters() { &[true, false][..] } else { &[true] };
            for &has_journal in journals {
                let loss = |lost| Loss { after, lost, has_journal };
                plain.push(loss(BTreeSet::new()));
                plain.push(loss(unsynced.iter().copied().collect()));
                let subset = |bits: u64| {
                    let is_in = |(place, _): &(usize, &usize)| bits >> (place % 64) & 1 == 1;
                    unsynced.iter().enumerate().filter(is_in).map(|(_, &at)| at).collect()
                };
                match unsynced.len() {
                    0 | 1 => {}
                    count @ ..=SUBSETS_OF => {
                        mixed.extend((1..(1 << count) - 1).map(|bits| loss(subset(bits))));
                    }
                    _ => mixed.extend((0..SUBSETS_DRAWN).map(|_| loss(subset(random.next())))),
                }
            }
        }
        // A third of the sample is reserved for mixed losses, if there are so many.
        let plain_max = losses_max - mixed.len().min(losses_max / 3);
        let mut losses = random.sample(plain, plain_max);
        losses.extend(random.sample(mixed, losses_max - losses.len()));
        losses
    }

    /// Returns the files on the drive after a power loss.
    fn found(&self, loss: &Loss) -> Files {
        let mut tree = self.before.clone();
        for (at, change) in self.changes[..loss.after].iter().enumerate() {
            if !loss.lost.contains(&at) {
                tree.apply(change);
            }
        }
        let is_named = |node| {
            let is_freed = self.freed_from.get(&node).is_some_and(|&first| first < loss.after);
            !is_freed && self.named_from.get(&node).is_none_or(|&first| first < loss.after)
        };
        tree.files(|node| loss.has_journal || is_named(node))
    }

    fn judge(&self, loss: &Loss, found: &Files) -> Result<(), String> {
        let is_reported = loss.after >= self.reported;
        let is_whole = |path: &String| found.get(path) == self.new.get(path);
        for path in self.old.keys().chain(self.new.keys()) {
            let (was, is, becomes) = (self.old.get(path), found.get(path), self.new.get(path));
            if is == becomes && becomes.is_some() || is == was && (becomes.is_some() && !is_reported) {
                continue;
            }
            if becomes.is_none() && (is == was || is.is_none() && self.results_of(path).all(is_whole)) {
                continue;
            }
            return Err(format!("{path} is {}, was {}, and becomes {}", told(is), told(was), told(becomes)));
        }
        let allowed = self.results().fold(0, |modes, path| modes | self.new[path].mode);
        for (path, file) in found {
            let is_left_over = path.rsplit('/').next().is_some_and(|name| name.starts_with('.'));
            if !self.old.contains_key(path) && !self.new.contains_key(path) && !is_left_over {
                return Err(format!("{path} should not be there"));
            }
            if is_left_over && file.mode & 0o077 & !allowed != 0 {
                return Err(format!("{path} may be read by more users than the result"));
            }
        }
        Ok(())
    }

    /// Iterates over the files that the command created or changed.
    pub fn results(&self) -> impl Iterator<Item = &String> {
        self.new.iter().filter(|(path, file)| self.old.get(*path) != Some(file)).map(|(path, _)| path)
    }

    /// Iterates over the results of an input file that was removed: results whose names differ from the name of the
    /// file by an added or removed extension, or all results if there are no such names.
    fn results_of(&self, removed: &str) -> impl Iterator<Item = &String> {
        let is_kin = move |path: &&String| removed.starts_with(path.as_str()) || path.starts_with(removed);
        let has_kin = self.results().any(|path| is_kin(&path));
        self.results().filter(move |path| !has_kin || is_kin(path))
    }

    fn told(&self, loss: &Loss) -> String {
        let mut text = format!(
            "after {} of {} changes,{} {}:",
            loss.after,
            self.changes.len(),
            match loss.has_journal {
                _ if !self.journal_matters() => "",
                true => " with a journal,",
                false => " without a journal,",
            },
            if loss.after >= self.reported { "reported as done" } else { "not yet reported as done" },
        );
        for (at, change) in self.changes[..loss.after].iter().enumerate() {
            let fate = match self.durable_from[at] {
                _ if loss.lost.contains(&at) => "lost",
                sync if sync < loss.after => "synced",
                _ => "",
            };
            let change = match change {
                Change::Write { node, offset, bytes } => {
                    format!("Write {{ node: {node}, offset: {offset}, bytes: {} }}", bytes.len())
                }
                change => format!("{change:?}"),
            };
            text += &format!("\n  {at:3} {fate:6} {change}");
        }
        text
    }
}

fn told(file: Option<&File>) -> String {
    file.map_or("absent".to_string(), |file| format!("{} bytes of mode {:o}", file.bytes.len(), file.mode))
}

/// Pseudo-random numbers: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d049bb133111eb);
        mixed ^ mixed >> 31
    }

    /// Draws a sample of at most `at_most` elements. The sample always contains the last element: for plain losses,
    /// this is the loss of all unsynced changes at the end.
    fn sample<T>(&mut self, mut all: Vec<T>, at_most: usize) -> Vec<T> {
        while all.len() > at_most {
            let place = self.next() as usize % (all.len() - 1).max(1);
            all.remove(place);
        }
        all
    }
}
