//! Files and folders in memory, and their changes.

use std::collections::BTreeMap;

/// The number of the root folder.
pub const ROOT: u64 = 1;

/// A file or a folder, which may have several names.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub is_folder: bool,
    pub mode: u32,
    pub bytes: Vec<u8>,
    /// The entries of a folder: names, and the numbers of their nodes.
    pub names: BTreeMap<String, u64>,
    /// The number of names that the node has.
    pub links: u32,
}

/// One change of the drive. A rename consists of two changes, since without a journal only one of them may reach the
/// drive.
#[derive(Clone, Debug)]
pub enum Change {
    /// Creates a file or folder that has no name yet.
    Make {
        node: u64,
        is_folder: bool,
        mode: u32,
    },
    Write {
        node: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLength {
        node: u64,
        bytes: u64,
    },
    SetMode {
        node: u64,
        mode: u32,
    },
    /// Gives a name in a folder to a node. If another node has this name, that node loses the name.
    Enter {
        folder: u64,
        name: String,
        node: u64,
    },
    Leave {
        folder: u64,
        name: String,
    },
    /// Makes the changes of a node durable. Changes of permissions become durable only if `all` is true.
    Sync {
        node: u64,
        all: bool,
    },
}

impl Change {
    /// Tells whether a sync makes the change durable.
    pub fn is_made_durable_by(&self, sync: &Change) -> bool {
        let Change::Sync { node: synced, all } = sync else { return false };
        match self {
            Change::Make { .. } | Change::Sync { .. } => false,
            Change::Write { node, .. } | Change::SetLength { node, .. } => node == synced,
            Change::SetMode { node, .. } => node == synced && *all,
            Change::Enter { folder, .. } | Change::Leave { folder, .. } => folder == synced,
        }
    }

    /// Splits a write of more than `bytes_max` bytes into several writes. Other changes are returned unchanged.
    pub fn pieces(self, bytes_max: usize) -> Vec<Change> {
        let Change::Write { node, offset, bytes } = self else { return vec![self] };
        let pieces = bytes.chunks(bytes_max).enumerate();
        let at = |place: usize| offset + (place * bytes_max) as u64;
        pieces
            .map(|(place, bytes)| Change::Write { node, offset: at(place), bytes: bytes.to_vec() })
            .collect()
    }

    /// Tells whether the change creates a file or folder, or adds or removes a name.
    pub fn names(&self) -> bool {
        matches!(self, Change::Make { .. } | Change::Enter { .. } | Change::Leave { .. })
    }

    /// Tells whether a power loss can undo the change.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Change::Make { .. } | Change::Sync { .. })
    }
}

/// The mode and the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub mode: u32,
    pub bytes: Vec<u8>,
}

/// Files, by their paths.
pub type Files = BTreeMap<String, File>;

/// All nodes of a drive.
#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
}

impl Tree {
    pub fn new(files: &Files) -> Tree {
        let mut tree = Tree { nodes: BTreeMap::new() };
        tree.nodes.insert(ROOT, Node { is_folder: true, mode: 0o755, links: 1, ..Node::default() });
        for (path, File { mode, bytes }) in files {
            let mut folder = ROOT;
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            for name in above.split('/').filter(|name| !name.is_empty()) {
                folder = match tree.nodes[&folder].names.get(name) {
                    Some(&there) => there,
                    None => tree.add(folder, name, Node { is_folder: true, mode: 0o755, ..Node::default() }),
                };
            }
            tree.add(folder, name, Node { mode: *mode, bytes: bytes.clone(), ..Node::default() });
        }
        tree
    }

    /// Returns a number that no node has.
    pub fn free_number(&self) -> u64 {
        self.nodes.last_key_value().map_or(ROOT, |(last, _)| last + 1)
    }

    fn add(&mut self, folder: u64, name: &str, node: Node) -> u64 {
        let number = self.free_number();
        self.nodes.insert(number, node);
        self.apply(&Change::Enter { folder, name: name.to_string(), node: number });
        number
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Make { node, is_folder, mode } => {
                let made = Node { is_folder: *is_folder, mode: *mode, ..Node::default() };
                self.nodes.insert(*node, made);
            }
            Change::Write { node, offset, bytes } => {
                let file = &mut self.node(*node).bytes;
                let end = *offset as usize + bytes.len();
                file.resize(file.len().max(end), 0);
                file[*offset as usize..end].copy_from_slice(bytes);
            }
            Change::SetLength { node, bytes } => self.node(*node).bytes.resize(*bytes as usize, 0),
            Change::SetMode { node, mode } => self.node(*node).mode = *mode,
            Change::Enter { folder, name, node } => {
                let before = self.node(*folder).names.insert(name.clone(), *node);
                self.node(*node).links += 1;
                self.unlink(before);
            }
            Change::Leave { folder, name } => {
                let before = self.node(*folder).names.remove(name);
                self.unlink(before);
            }
            Change::Sync { .. } => {}
        }
    }

    fn unlink(&mut self, node: Option<u64>) {
        if let Some(node) = node {
            self.node(node).links -= 1;
        }
    }

    fn node(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).expect("a node that was made")
    }

    /// Returns all files, by their paths. Files and folders for which `counts` is false are skipped.
    pub fn files(&self, counts: impl Fn(u64) -> bool) -> Files {
        let mut files = Files::new();
        let mut folders = vec![(ROOT, String::new())];
        while let Some((folder, above)) = folders.pop() {
            for (name, &number) in self.nodes[&folder].names.iter().filter(|(_, number)| counts(**number)) {
                let (path, node) = (format!("{above}{name}"), &self.nodes[&number]);
                match node.is_folder {
                    true => folders.push((number, path + "/")),
                    false => {
                        files.insert(path, File { mode: node.mode, bytes: node.bytes.clone() });
                    }
                }
            }
        }
        files
    }
}
