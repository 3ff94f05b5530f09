//! The nodes of the file system: the root, the datasets and their files. The kernel identifies a node by its number
//! (inode number).
//!
//! ```text
//!   /                     number 1
//!   ├── NAME              a dataset of kind "bytes": a regular file
//!   └── NAME/FILE         any other: a folder with its files
//! ```
//!
//! The number of a file is computed from the random id of its dataset, its index in the dataset, and its length. A
//! number therefore always stands for the same bytes, even if a new dataset gets the name of a removed one, or if bytes
//! are appended. For this reason the kernel may cache the bytes of a number without a time limit.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::{Duration, UNIX_EPOCH},
};

use fuser::{FileAttr, FileType, INodeNo};
use inshore::store::{BYTES, Dataset, DatasetSummary};

const YEAR_MICROSECONDS: u64 = 365 * 24 * 3600 * 1_000_000;

/// A dataset, or one file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the dataset.
    pub name: String,
    /// The id of the dataset. The name does not suffice, since a later dataset may have the same name.
    pub id: u64,
    /// The file's name and length. The value is `None` for a folder.
    pub file: Option<(String, u64)>,
}

impl Node {
    /// Returns the number and the node that stand for a dataset in the root folder.
    pub fn of_dataset(dataset: &DatasetSummary) -> (u64, Node) {
        let file = (dataset.kind == BYTES).then(|| (BYTES.to_string(), dataset.bytes));
        (
            number(dataset.id, 0, file.as_ref().map_or(0, |(_, len)| *len)),
            Node { name: dataset.name.clone(), id: dataset.id, file },
        )
    }

    /// Returns the numbers and the nodes of the files in a dataset's folder, in order.
    pub fn of_files(dataset: &Dataset) -> impl Iterator<Item = (u64, Node)> {
        dataset.file_names().enumerate().map(|(at, name)| {
            let len = dataset.file(name).expect("one of its files").len();
            let file = Some((name.to_string(), len));
            (
                number(dataset.id(), 1 + at as u64, len),
                Node { name: dataset.name().into(), id: dataset.id(), file },
            )
        })
    }

    /// Returns the name that the node has in its folder.
    pub fn label(&self, in_root: bool) -> &str {
        match &self.file {
            Some((file, _)) if !in_root => file,
            _ => &self.name,
        }
    }

    /// Tells whether the node is a file or a folder.
    pub fn kind(&self) -> FileType {
        if self.file.is_some() { FileType::RegularFile } else { FileType::Directory }
    }
}

/// Returns the number of a dataset (`at` is 0), or of a file of a dataset (`at` is 1 or more), with a length of `len`
/// bytes. The result is greater than 1: 0 is not valid, and 1 is the root.
fn number(id: u64, at: u64, len: u64) -> u64 {
    let number = [at, len].into_iter().fold(id, |number, word| mix(number ^ word));
    number.max(INodeNo::ROOT.0 + 1)
}

/// Mixes the bits of a word as SplitMix64 does. Different words give different results.
fn mix(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The user and the group that own all files.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// Returns the attributes of a node, or of the root. The attributes of a number never change. The store keeps no
    /// times, so the times of files and folders are in 1970 and are computed from the node's number. Programs that
    /// compare times therefore notice that a dataset was replaced, or that bytes were appended.
    pub fn attributes(self, number: u64, node: Option<&Node>) -> FileAttr {
        let size = node.and_then(|node| node.file.as_ref()).map_or(0, |(_, len)| *len);
        let kind = node.map_or(FileType::Directory, Node::kind);
        let time = UNIX_EPOCH + Duration::from_micros(node.map_or(0, |_| number) % YEAR_MICROSECONDS);
        let (perm, nlink) = if kind == FileType::Directory { (0o555, 2) } else { (0o444, 1) };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The nodes to which the kernel holds references, and the number of references to each.
#[derive(Debug, Default)]
pub struct Tree(Mutex<HashMap<u64, (Node, u64)>>);

impl Tree {
    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, (Node, u64)>> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Returns the node with this number, if the kernel holds a reference to it.
    pub fn get(&self, number: u64) -> Option<Node> {
        self.nodes().get(&number).map(|(node, _)| node.clone())
    }

    /// Adds one of the kernel's references to a node. Returns `false` if two datasets have the same number, which is
    /// practically impossible.
    pub fn remember(&self, number: u64, node: &Node) -> bool {
        let mut nodes = self.nodes();
        let (known, told) = nodes.entry(number).or_insert_with(|| (node.clone(), 0));
        *told += 1;
        *known == *node
    }

    /// Drops `times` of the kernel's references to a node.
    pub fn forget(&self, number: u64, times: u64) {
        let mut nodes = self.nodes();
        let Some((_, told)) = nodes.get_mut(&number) else { return };
        *told = told.saturating_sub(times);
        if *told == 0 {
            nodes.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_forgotten_once_the_kernel_has_let_go_of_it_as_often_as_it_was_told() {
        let tree = Tree::default();
        let node = Node { name: "a".into(), id: 7, file: None };
        assert!(tree.remember(7, &node) && tree.remember(7, &node));
        tree.forget(7, 1);
        assert_eq!(tree.get(7), Some(node.clone()));
        tree.forget(7, 1);
        assert_eq!(tree.get(7), None);
        assert!(tree.remember(7, &node));
        assert!(!tree.remember(7, &Node { id: 6, file: Some(("b".into(), 1)), ..node }));
    }

    #[test]
    fn no_node_has_the_number_of_the_root() {
        for id in [0, 1, u64::MAX] {
            assert!(number(id, 0, 0) > 1 && number(id, 1, 9) > 1);
        }
    }

    #[test]
    fn what_grew_has_another_number() {
        let numbers = [number(7, 0, 5), number(7, 0, 6), number(7, 1, 5), number(8, 0, 5)];
        assert!((0..4).all(|at| !numbers[..at].contains(&numbers[at])), "{numbers:?}");
    }
}
