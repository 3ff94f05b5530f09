//! What client and node say to each other beside record batches: JSON, of version [`VERSION`].
//!
//! | Flight call | what it carries |
//! |---|---|
//! | `DoGet` | ticket: a [`TaskRequest`]; answer: record batches, plain or compressed by zstd, the last with [`TaskDone`] in its metadata, and [`TaskAlive`] between them where it was asked for |
//! | `DoPut` | metadata of each message: a [`LoadStep`]; answer: [`LoadAnswer`] for each step that asks for one |
//! | `DoExchange` | metadata of each message, both ways: a step of a traversal, 64 bytes (`hop.rs`) |
//! | `DoAction` | `status`: [`Status`]; `catalog`: [`Held`] for each dataset; `map`: a list of [`DatasetKey`], and a [`MapAnswer`] for each; `remove`: a [`Removal`]; `hand-out`: a [`HandOut`]; `drain` |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the messages. A node refuses another one by name.
pub const VERSION: u32 = 4;

/// The version of the maps that lie on nodes. A client refuses another one by name.
pub const MAP_VERSION: u32 = 2;

pub use crate::source::{MAP, SPREAD};

/// The kind of a task that follows pointers from page to page.
pub const TRAVERSE: &str = "traverse";

/// A task: what to do with which pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRequest {
    /// [`VERSION`].
    pub version: u32,
    /// The kind of work.
    pub kind: String,
    /// What that kind wants to know.
    pub arguments: Value,
    /// What it reads, in order.
    pub pieces: Vec<PieceRequest>,
    /// Memory that it may use; the node's habit where it is not said, and never more than the node gives to all tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// When it is to be stopped, in milliseconds from its arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// How often the node is to tell that the task goes on, in milliseconds: by [`TaskAlive`] in the metadata of a message that
    /// has nothing else. Never, where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive_ms: Option<u64>,
    /// The task [pulls](Pulls) what it reads, and has no pieces of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulls: Option<Pulls>,
    /// A task of the same client that runs on the node, which this one is to run beside without waiting for a place: for reads of what
    /// the client works on itself. It takes memory that is free, and is refused where there is none; where the other has ended, or four
    /// read beside it, it waits as any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<TaskKey>,
}

/// Memory of a read beside a task, at most.
pub(super) const READ_BESIDE_BYTES: u64 = 8 << 20;
/// Reads beside a task, at most: as many threads of a client do a part of it.
pub(super) const READS_BESIDE: usize = 4;

/// A task that is handed its shards one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulls {
    /// A number that nobody can guess, of the client that may [hand out](HandOut).
    pub key: u64,
    /// Bytes that it may expect.
    pub bytes: u64,
    /// Shards that it is handed at most.
    pub shards: u64,
}

/// A task that runs, and its [`Pulls::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskKey {
    /// The task, as [`TaskPulls::task`] calls it.
    pub task: u64,
    /// Its key.
    pub key: u64,
}

/// Shards for a task that pulls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandOut {
    /// The task.
    pub to: TaskKey,
    /// Shards that it reads next, in order.
    pub shards: Vec<PieceRequest>,
    /// Whether nothing more comes.
    pub is_last: bool,
}

/// A task goes on, or waits for its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskAlive {
    /// A number that grows as long as the task gets on.
    pub progress: u64,
    /// It wants more shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulls: Option<TaskPulls>,
}

/// A task wants more shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPulls {
    /// The node's number of the task.
    pub task: u64,
    /// Shards that it has finished reading, of those that it was handed, or that another of its threads reads.
    pub finished: u64,
    /// How many of these are read by other threads.
    pub reading: u64,
}

/// A part of a file of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PieceRequest {
    /// What the client calls it.
    pub number: u64,
    /// Which whole it belongs to, by a number of the client's.
    pub whole: u64,
    /// The dataset on the node.
    pub dataset: String,
    /// Its number: a dataset of the same name that was made later is another one.
    pub id: u64,
    /// The file in it.
    pub file: String,
    /// The byte of the file to begin with.
    pub from: u64,
    /// The byte to end before: the length of the file, as the client knows it. One that is shorter is refused.
    pub to: u64,
    /// Bytes of the whole before the first one.
    pub offset: u64,
    /// Line feeds of the whole before that byte.
    pub lines: u64,
}

/// The end of an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskDone {
    /// What the kind of work says.
    pub summary: Value,
    /// Bytes that the node read from its devices.
    pub bytes_read: u64,
    /// Bytes that it wrote.
    pub bytes_written: u64,
    /// Time from its start to its end.
    pub seconds: f64,
    /// Time that it waited before.
    pub queued_seconds: f64,
    /// CPU time of the node in that time: of this task, where it ran alone.
    pub cpu_seconds: f64,
    /// The shards that it was handed, all of which its answer is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<u64>,
}

/// A step of loading.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum LoadStep {
    /// Begins a dataset; the first step.
    Begin {
        /// [`VERSION`].
        version: u32,
        /// Its name.
        name: String,
        /// The id of the dataset, the same on all nodes.
        id: SpreadId,
        /// Bytes between checksums.
        block_bytes: u64,
    },
    /// Begins a file; data follows until the next step.
    File {
        /// Its name.
        name: String,
    },
    /// Bytes of the file: the body of this message.
    Data,
    /// Everything was sent; the node answers when it has all of it.
    Received,
    /// All nodes have all: the map, and the dataset appears.
    Commit {
        /// What lies where.
        map: Map,
    },
}

/// The answer to a step that asks for one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum LoadAnswer {
    /// The dataset is begun.
    Begun {
        /// The highest number of a [`Generation`] of this name that the node knows to be removed; 0 where it knows none.
        generation: u64,
    },
    /// The node has so many bytes.
    Received {
        /// Bytes of all files.
        bytes: u64,
    },
    /// The dataset is there, and survives a power loss.
    Committed,
}

/// The id of a spread dataset: 128 random bits that its put drew, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SpreadId(pub u128);

impl fmt::Display for SpreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SpreadId {
    type Err = String;

    fn from_str(text: &str) -> Result<SpreadId, String> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(SpreadId).ok_or_else(|| "an id of a spread dataset has 32 hexadecimal digits".to_string())
    }
}

impl From<SpreadId> for String {
    fn from(id: SpreadId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for SpreadId {
    type Error = String;

    fn try_from(text: String) -> Result<SpreadId, String> {
        text.parse()
    }
}

/// Which dataset of a name shards are of: the name can be removed and put anew while a node is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation {
    /// Tells the dataset from all others.
    pub id: SpreadId,
    /// One more than the numbers of all datasets of the name that the nodes of the put knew to be removed: a higher one outdates
    /// a lower one.
    pub number: u64,
    /// When it was put, by the client's clock, in milliseconds since 1970. People choose by it, nothing is decided by it.
    pub put_ms: u64,
}

impl Generation {
    /// The attributes of a shard on its node.
    pub fn attributes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..].copy_from_slice(&self.put_ms.to_le_bytes());
        bytes
    }

    /// Reads attributes; none of an earlier version are of a generation.
    pub fn of_attributes(bytes: &[u8]) -> Option<Generation> {
        let bytes: [u8; 32] = bytes.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let id = SpreadId(u128::from_le_bytes(bytes[..16].try_into().expect("16 bytes")));
        Some(Generation { id, number: number(16), put_ms: number(24) })
    }
}

/// The kind of the dataset that keeps a [`Mark`] on a node.
pub const REMOVED: &str = "removed";

/// A spread dataset was removed while some of its nodes were away. Nodes that were there keep the mark until each of the others has
/// confirmed that its shards are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// [`MAP_VERSION`].
    pub version: u32,
    /// The dataset's name.
    pub name: String,
    /// Which dataset of that name.
    pub generation: Generation,
    /// When it was removed, by the client's clock, in milliseconds since 1970.
    pub removed_ms: u64,
    /// The nodes that have not confirmed it.
    pub absent: Vec<MapNode>,
}

/// What a node is to remove.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Removal {
    /// The dataset's name.
    pub name: String,
    /// Its number on the node: one that was made later is another one. None where the node only keeps a mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Of a spread dataset, the mark to keep from now on. One without absent nodes is the end of an earlier mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
}

impl Removal {
    /// Whether everything in it fits together.
    pub fn is_sound(&self) -> bool {
        self.mark.as_ref().is_none_or(|mark| mark.version == MAP_VERSION && mark.name == self.name)
    }
}

/// What of a file lies where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// [`MAP_VERSION`].
    pub version: u32,
    /// Which dataset of its name it is of.
    pub generation: Generation,
    /// Bytes of a record, where pieces end with one; none where they end with a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// Lines of a record, where pieces end with one of so many lines, counted from the beginning of the file: see
    /// [`LoadOptions::record_lines`](super::LoadOptions::record_lines).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_lines: Option<u64>,
    /// Whether pieces end with a row group of Parquet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_grouped: bool,
    /// The nodes.
    pub nodes: Vec<MapNode>,
    /// The pieces, in order.
    pub pieces: Vec<MapPiece>,
}

/// Bytes that a map may have, written down: some 200,000 pieces.
pub const MAP_BYTES_MAX: usize = 12 << 20;

/// A node, as the map has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapNode {
    /// Its number.
    pub number: u64,
    /// What it was called when the file was loaded: its address then.
    pub name: String,
}

/// A piece of a file, as the map has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPiece {
    /// Its length.
    pub bytes: u64,
    /// Line feeds in it.
    pub lines: u64,
    /// Places in [`Map::nodes`] of the nodes that have it.
    pub nodes: Vec<u16>,
}

impl Map {
    /// Whether everything in it fits together.
    pub fn is_sound(&self) -> bool {
        let is_known = |place: &u16| (*place as usize) < self.nodes.len();
        self.version == MAP_VERSION
            && self.pieces.iter().all(|piece| !piece.nodes.is_empty() && piece.nodes.iter().all(is_known))
            && self.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.bytes)).is_some()
            && self.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.lines)).is_some()
    }
}

/// How the names of pieces begin.
pub const PIECE: &str = "piece-";
/// Bytes of a message of a load with data.
pub(super) const DATA_BYTES: usize = 1 << 20;

/// The name of the file that holds a piece.
pub fn piece_name(number: usize) -> String {
    format!("{PIECE}{number:08}")
}

/// A dataset on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u64,
    /// Its kind.
    pub kind: String,
    /// Its files and their lengths; for a spread one no files, but its map is asked for.
    pub files: Vec<(String, u64)>,
    /// Which dataset of its name it is of, where it is spread; none of one that an earlier version has spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The mark of a removal, where this is none of a dataset that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
}

/// The answer for a dataset whose map is asked for: the map, or why there is none. A node answers in the order of the request, for at
/// least one dataset, and as long as the answers have [`MAP_BYTES_MAX`] together. The client asks again for the rest.
pub type MapAnswer = Result<Map, String>;

/// Maps that one request asks for at most.
pub const MAPS_MAX: usize = 1000;

/// Which dataset is meant, whose map is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetKey {
    /// Its name.
    pub name: String,
    /// Its number: one that was made later is another one.
    pub id: u64,
}

/// How a node is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Its name.
    pub name: String,
    /// Its number.
    pub node: u64,
    /// The version of the program.
    pub program: String,
    /// Seconds since it began to serve.
    pub seconds: u64,
    /// Whether it takes no more tasks.
    pub draining: bool,
    /// The kinds of tasks that it knows.
    pub kinds: Vec<String>,
    /// What it may use for all tasks together.
    pub memory_bytes: u64,
    /// What running tasks have of it.
    pub memory_used_bytes: u64,
    /// Tasks that run at once, at most.
    pub slots: u64,
    /// Tasks that may wait.
    pub queue: u64,
    /// Tasks that run.
    pub running: Vec<RunningTask>,
    /// Tasks that wait.
    pub waiting: u64,
    /// Tasks that ended well, failed, and were refused since it began to serve.
    pub done: u64,
    /// See [`Self::done`].
    pub failed: u64,
    /// See [`Self::done`].
    pub refused: u64,
    /// Bytes that tasks read from devices, those that run included.
    pub bytes_read: u64,
    /// Bytes that tasks answered.
    pub bytes_answered: u64,
    /// Bytes that were loaded.
    pub bytes_loaded: u64,
    /// Processes that want to run, in the last minute.
    pub load: f64,
    /// Processor cores.
    pub cores: u64,
    /// The warmest sensor, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celsius: Option<f64>,
    /// Bytes that can still be written to its devices.
    pub free_bytes: u64,
    /// Bytes that its devices can hold.
    pub capacity_bytes: u64,
    /// Its devices, one by one.
    #[serde(default)]
    pub drives: Vec<Drive>,
    /// What came of connections.
    #[serde(default)]
    pub connections: Connections,
    /// Memory of its process, as the system counts it.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Memory of requests that wait or run, and of answers that nobody took.
    #[serde(default)]
    pub requests_bytes: u64,
    /// Memory of requests that are not complete.
    #[serde(default)]
    pub unfinished_bytes: u64,
    /// The ends of its credentials; none where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
}

impl Status {
    /// Leaves out what only who administers the node is told: what others do, and where its drives are mounted.
    pub fn without_others(mut self, own: &str) -> Status {
        for task in self.running.iter_mut().filter(|task| task.client != own) {
            (task.client, task.datasets) = ("another".to_string(), Vec::new());
        }
        self.drives.iter_mut().for_each(|drive| drive.path.clear());
        self
    }
}

/// The ends of a node's credentials, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expires {
    /// The authority's certificate.
    pub authority: u64,
    /// The node's certificate.
    pub certificate: u64,
    /// The token that the node shows to other nodes.
    pub token: u64,
}

impl Expires {
    /// All of them, with what each is called.
    pub fn each(&self) -> [(&'static str, u64); 3] {
        [("authority", self.authority), ("certificate", self.certificate), ("token", self.token)]
    }

    /// The first of them.
    pub fn first(&self) -> u64 {
        self.authority.min(self.certificate).min(self.token)
    }
}

/// A device of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drive {
    /// Its number in the store.
    pub number: u64,
    /// Its folder; empty for whoever does not administer the node.
    pub path: String,
    /// "ok", "leaving" or "missing".
    pub state: String,
    /// Bytes that can still be written to it.
    pub free_bytes: u64,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
}

/// What came of connections since the node began to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Those that are open, also those over which no request came yet.
    pub open: u64,
    /// As many may be open over which requests came.
    pub limit: u64,
    /// Those that were let in.
    pub opened: u64,
    /// Those whose request was told to come again since all places were taken.
    pub refused_full: u64,
    /// Those whose request was told to come again since their address had all places that one may have.
    pub refused_address: u64,
    /// Those that ended before a request with a good token came over them: handshakes that failed or took too long, wrong tokens.
    pub without_request: u64,
}

/// A task that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningTask {
    /// Its number on this node.
    pub number: u64,
    /// Whose it is.
    pub client: String,
    /// What it does.
    pub kind: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Since when.
    pub seconds: f64,
    /// Bytes that it has read.
    pub bytes_read: u64,
    /// Bytes of the pieces that it was asked to read.
    #[serde(default)]
    pub bytes_asked: u64,
    /// The datasets that it reads.
    #[serde(default)]
    pub datasets: Vec<String>,
}
