//! The messages between client and node other than record batches, in JSON of version [`VERSION`].
//!
//! | Flight call | contents |
//! |---|---|
//! | `DoGet` | ticket: a [`TaskRequest`]; answer: record batches, plain or compressed by zstd, the last with [`TaskDone`] in its metadata, and [`TaskAlive`] messages in between on request |
//! | `DoPut` | metadata of each message: a [`LoadStep`]; answer: [`LoadAnswer`] for each step that requires an answer |
//! | `DoExchange` | metadata of each message, both ways: a step of a traversal, 64 bytes (`hop.rs`) |
//! | `DoAction` | `status`: [`Status`]; `catalog`: [`DatasetReplica`] for each dataset; `map`: a list of [`DatasetKey`], and a [`MapAnswer`] for each; `remove`: a [`RemoveRequest`]; `hand-out`: a [`ShardGrant`]; `drain` |

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the messages. A node refuses messages of another version with an error that names the
/// version.
pub const VERSION: u32 = 4;

/// The version of the maps on nodes. A client refuses a map of another version with an error that names the
/// version.
pub const MAP_VERSION: u32 = 2;

pub use inshore_kernel::{MAP, SPREAD};

/// The task kind that follows pointers from page to page.
pub const TRAVERSE: &str = "traverse";

/// The request for a task: the kind of the task and the pieces to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRequest {
    /// The version of the messages: [`VERSION`].
    pub version: u32,
    /// The kind of the task.
    pub kind: String,
    /// The arguments of this kind of task.
    pub arguments: Value,
    /// The pieces to read, in order.
    pub pieces: Vec<PieceRequest>,
    /// The maximum memory in bytes; `None` stands for the default of the node. The memory of the node for all
    /// tasks is an upper limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The time in milliseconds from the arrival of the request after which the task is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The interval in milliseconds at which the node reports progress, by [`TaskAlive`] in the metadata of an
    /// otherwise empty message. With `None`, the node sends no reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive_ms: Option<u64>,
    /// Present if the task [pulls](PullOptions) its shards and has no pieces in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulls: Option<PullOptions>,
    /// A running task of this client on the node. The new task runs at the same time as the running task, and does not
    /// wait for a slot. Clients use such a task to read data that they process themselves. The new task is refused if
    /// there is not enough free memory. If the running task has ended, or four additional reads already run, the new
    /// task waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<TaskKey>,
    /// The trace id of the job to which the task belongs: up to 32 hexadecimal digits. The node writes the id into its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The maximum memory in bytes of an additional read during a task.
pub(crate) const READ_BESIDE_BYTES: u64 = 8 << 20;
/// The maximum number of additional reads during a task. Each read serves a thread of the client that
/// processes a part of the shards.
pub(crate) const READS_BESIDE: usize = 4;

/// The parameters of a task that pulls its shards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PullOptions {
    /// A random secret. Only a client that sends the secret may [hand out](ShardGrant) shards.
    pub key: u64,
    /// The expected number of bytes that the task reads.
    pub bytes: u64,
    /// The maximum number of shards that the task receives.
    pub shards: u64,
}

/// The number of a running task, together with its [`PullOptions::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskKey {
    /// The number of the task, as in [`PullRequest::task`].
    pub task: u64,
    /// The key of the task.
    pub key: u64,
}

/// A message that hands shards to a task that pulls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShardGrant {
    /// The receiving task.
    pub to: TaskKey,
    /// The next shards to read, in order.
    pub shards: Vec<PieceRequest>,
    /// True if no more shards follow.
    pub is_last: bool,
}

/// The progress message of a task that runs or waits for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskAlive {
    /// A counter that grows while the task makes progress.
    pub progress: u64,
    /// Present if the task requests more shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulls: Option<PullRequest>,
}

/// The request of a task for more shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    /// The number of the task on the node.
    pub task: u64,
    /// The number of the task's shards that were read completely or are being read by another thread of the task.
    pub finished: u64,
    /// The number of shards counted in `finished` that other threads are still reading.
    pub reading: u64,
}

/// The request to read a part of a file of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PieceRequest {
    /// The number that the client has given to the piece.
    pub number: u64,
    /// The number that the client has given to the complete file to which the piece belongs.
    pub whole: u64,
    /// The dataset on the node.
    pub dataset: String,
    /// The number of the dataset: a later dataset of the same name has a different number.
    pub id: u64,
    /// The file in the dataset.
    pub file: String,
    /// The first byte to read in the file.
    pub from: u64,
    /// The end of the range to read: the length of the file as known to the client. A shorter file is refused.
    pub to: u64,
    /// The offset in the complete file of the first byte to read.
    pub offset: u64,
    /// The number of line feeds in the complete file before the first byte to read.
    pub lines: u64,
}

/// The last message of an answer: the summary and the cost of the task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskDone {
    /// The summary, whose content depends on the kind of the task.
    pub summary: Value,
    /// The bytes that the node read from its devices.
    pub bytes_read: u64,
    /// The bytes that the node wrote.
    pub bytes_written: u64,
    /// The time in seconds from the start of the task to its end.
    pub seconds: f64,
    /// The waiting time in seconds before the start.
    pub queued_seconds: f64,
    /// The CPU time in seconds that the process of the node used during the task. If no other task ran, this
    /// is the CPU time of the task.
    pub cpu_seconds: f64,
    /// The numbers of the shards that the task received. The answer covers all of these shards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<u64>,
}

/// A step of a load, which sends a part of a file to a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum LoadStep {
    /// Begins a dataset. This is the first step of a load.
    Begin {
        /// The version of the messages: [`VERSION`].
        version: u32,
        /// The name of the dataset.
        name: String,
        /// The id of the dataset, which is equal on all nodes.
        id: SpreadId,
        /// The number of bytes that each checksum covers.
        block_bytes: u64,
    },
    /// Begins a file of the dataset. The data of the file follows in [`LoadStep::Data`] messages.
    File {
        /// The name of the file.
        name: String,
    },
    /// Bytes of the file, in the body of this message.
    Data,
    /// Marks the end of the data. The node answers when all data has arrived.
    Received,
    /// Commits the dataset after all nodes have received all data: the step carries the map, and the dataset becomes
    /// visible.
    Commit {
        /// The map of the dataset.
        map: FileMap,
    },
}

/// The answer to a step that requires an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum LoadAnswer {
    /// The dataset was begun.
    Begun {
        /// The highest generation number among the removed datasets of this name that the node knows, or 0.
        generation: u64,
    },
    /// The node has received the data.
    Received {
        /// The total bytes of all files.
        bytes: u64,
    },
    /// The dataset is visible and survives a power loss.
    Committed,
}

/// The id of a distributed dataset: 128 random bits, drawn when the dataset is put, and written as 32
/// hexadecimal digits.
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

/// Identifies one dataset among all datasets that had the same name. While a node is unreachable, a dataset can be
/// removed and another dataset can be put under its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation {
    /// The unique id of the dataset.
    pub id: SpreadId,
    /// The generation number: one more than the highest number of a removed dataset of the name that the nodes knew at
    /// the put. A generation with a higher number replaces all generations of the name with lower numbers.
    pub number: u64,
    /// The time of the put by the client's clock, in milliseconds since 1970. The time is shown to people and does
    /// not affect decisions.
    pub put_ms: u64,
}

impl Generation {
    /// Encodes this generation as the 32 attribute bytes that a node stores with a shard.
    pub fn attributes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..].copy_from_slice(&self.put_ms.to_le_bytes());
        bytes
    }

    /// Parses attributes. Attributes of an earlier version have no generation.
    pub fn of_attributes(bytes: &[u8]) -> Option<Generation> {
        let bytes: [u8; 32] = bytes.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let id = SpreadId(u128::from_le_bytes(bytes[..16].try_into().expect("16 bytes")));
        Some(Generation { id, number: number(16), put_ms: number(24) })
    }
}

/// The kind of a dataset whose attributes contain a [`Tombstone`] on a node.
pub const REMOVED: &str = "removed";

/// The record of the removal of a distributed dataset while some of its nodes were absent. The nodes that removed
/// their shards keep the tombstone until each absent node has confirmed the removal of its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The version of the stored format: [`MAP_VERSION`].
    pub version: u32,
    /// The name of the dataset.
    pub name: String,
    /// The generation of the removed dataset.
    pub generation: Generation,
    /// The time of the removal by the client's clock, in milliseconds since 1970.
    pub removed_ms: u64,
    /// The nodes that have not confirmed the removal.
    pub absent: Vec<MapNode>,
}

/// The request to remove a dataset from a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveRequest {
    /// The name of the dataset.
    pub name: String,
    /// The number of the dataset on the node: a later dataset of the same name has a different number. The value is
    /// `None` if the node only stores a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The tombstone to store for a distributed dataset. A tombstone without absent nodes removes an earlier
    /// tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Tombstone>,
}

impl RemoveRequest {
    /// Returns true if the tombstone matches the name and has the current version.
    pub fn is_sound(&self) -> bool {
        self.mark.as_ref().is_none_or(|mark| mark.version == MAP_VERSION && mark.name == self.name)
    }
}

/// The map of a file: the locations of its pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMap {
    /// The version of the stored format: [`MAP_VERSION`].
    pub version: u32,
    /// The generation of the dataset.
    pub generation: Generation,
    /// The size of a record in bytes, if all records have this size and pieces end with a record; otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// The number of lines of a record, if all records have this number of lines and pieces end with a record. Records
    /// are counted from the beginning of the file: see [`LoadOptions::record_lines`](crate::LoadOptions::record_lines).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_lines: Option<u64>,
    /// True if each piece ends at the end of a row group of Parquet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_grouped: bool,
    /// A description of the bytes by the operation that loaded the file, such as the dimensions of vectors. Nodes do not
    /// interpret the description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Value>,
    /// The nodes that hold pieces of the file.
    pub nodes: Vec<MapNode>,
    /// The pieces, in order.
    pub pieces: Vec<MapPiece>,
}

/// The maximum size of a serialized map, in bytes. A map of this size has about 200,000 pieces.
pub const MAP_BYTES_MAX: usize = 12 << 20;

/// An entry for a node in a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapNode {
    /// The permanent number of the node, derived from the UUID of its store.
    pub number: u64,
    /// The address of the node at the time when the file was loaded.
    pub name: String,
}

/// An entry for a piece of a file in a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPiece {
    /// The length of the piece in bytes.
    pub bytes: u64,
    /// The number of line feeds in the piece.
    pub lines: u64,
    /// The indexes in [`FileMap::nodes`] of the nodes that hold the piece.
    pub nodes: Vec<u16>,
}

impl FileMap {
    /// Returns true if the map is consistent.
    pub fn is_sound(&self) -> bool {
        let is_known = |place: &u16| (*place as usize) < self.nodes.len();
        self.version == MAP_VERSION
            && self.pieces.iter().all(|piece| !piece.nodes.is_empty() && piece.nodes.iter().all(is_known))
            && self.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.bytes)).is_some()
            && self.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.lines)).is_some()
    }
}

/// The prefix of the names of pieces.
pub const PIECE: &str = "piece-";
/// The maximum size, in bytes, of the data in one message of a load.
pub(crate) const DATA_BYTES: usize = 1 << 20;

/// Returns the name of the file that holds a piece.
pub fn piece_name(number: usize) -> String {
    format!("{PIECE}{number:08}")
}

/// A dataset on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetReplica {
    /// The name of the dataset.
    pub name: String,
    /// The number of the dataset.
    pub id: u64,
    /// The kind of the dataset.
    pub kind: String,
    /// The files with their lengths; empty for a distributed dataset, whose map has to be requested.
    pub files: Vec<(String, u64)>,
    /// The generation of a distributed dataset. The value is `None` for a dataset that an earlier version wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The tombstone, if this entry is a tombstone and not a dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Tombstone>,
}

/// The answer to a request for a map: the map, or the reason why there is none. A node answers in the order of the
/// request. A node returns at least one map, and further maps as long as all answers together have at most
/// [`MAP_BYTES_MAX`]. The client then requests the remaining maps.
pub type MapAnswer = Result<FileMap, String>;

/// The maximum number of maps in one request.
pub const MAPS_MAX: usize = 1000;

/// The identity of a dataset in a request for its map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetKey {
    /// The name of the dataset.
    pub name: String,
    /// The number of the dataset: a later dataset of the same name has a different number.
    pub id: u64,
}

/// The status of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The version of the messages: [`VERSION`].
    pub version: u32,
    /// The name of the node.
    pub name: String,
    /// The number of the node.
    pub node: u64,
    /// The version of the program.
    pub program: String,
    /// The time since the node began to serve, in seconds.
    pub seconds: u64,
    /// True if the node accepts no more tasks.
    pub draining: bool,
    /// The kinds of tasks that the node supports.
    pub kinds: Vec<String>,
    /// The memory in bytes for all tasks together.
    pub memory_bytes: u64,
    /// The memory in bytes that running tasks use.
    pub memory_used_bytes: u64,
    /// The maximum number of tasks that run at once.
    pub slots: u64,
    /// The maximum number of waiting tasks.
    pub queue: u64,
    /// The running tasks.
    pub running: Vec<RunningTask>,
    /// The number of waiting tasks.
    pub waiting: u64,
    /// The number of tasks that succeeded since the service started.
    pub done: u64,
    /// The number of tasks that failed since the service started.
    pub failed: u64,
    /// The number of requests that were refused since the service started.
    pub refused: u64,
    /// The bytes that tasks read from devices, including running tasks.
    pub bytes_read: u64,
    /// The number of bytes of all answers of tasks.
    pub bytes_answered: u64,
    /// The number of bytes that clients have loaded onto the node.
    pub bytes_loaded: u64,
    /// The system's load average of the last minute: the mean number of runnable processes.
    pub load: f64,
    /// The number of processor cores.
    pub cores: u64,
    /// The temperature of the warmest sensor, if there is a sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celsius: Option<f64>,
    /// The free bytes on the devices of the node.
    pub free_bytes: u64,
    /// The capacity of the devices of the node in bytes.
    pub capacity_bytes: u64,
    /// The devices of the node.
    #[serde(default)]
    pub drives: Vec<NodeDevice>,
    /// The counters of connections.
    #[serde(default)]
    pub connections: Connections,
    /// The resident memory of the process, as reported by the operating system.
    #[serde(default)]
    pub resident_bytes: u64,
    /// The memory of waiting and running requests, and of answers that were not taken yet.
    #[serde(default)]
    pub requests_bytes: u64,
    /// The memory of incomplete requests.
    #[serde(default)]
    pub unfinished_bytes: u64,
    /// The expiry times of the node's credentials; `None` without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<CredentialExpiry>,
    /// The counters of the task handlers, by the name and the labels of each sample. The page `/metrics` shows them, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, u64>,
}

impl Status {
    /// Removes the information that only administrators may see: the tasks of other clients, and the mount
    /// points of drives.
    pub fn without_others(mut self, own: &str) -> Status {
        for task in self.running.iter_mut().filter(|task| task.client != own) {
            (task.client, task.datasets) = ("another".to_string(), Vec::new());
        }
        self.drives.iter_mut().for_each(|drive| drive.path.clear());
        self
    }
}

/// The expiry times of a node's credentials, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialExpiry {
    /// The expiry of the authority's certificate.
    pub authority: u64,
    /// The expiry of the node's certificate.
    pub certificate: u64,
    /// The expiry of the token with which the node authenticates itself to other nodes.
    pub token: u64,
}

impl CredentialExpiry {
    /// Returns all expiry times with their names.
    pub fn each(&self) -> [(&'static str, u64); 3] {
        [("authority", self.authority), ("certificate", self.certificate), ("token", self.token)]
    }

    /// Returns the earliest expiry time.
    pub fn first(&self) -> u64 {
        self.authority.min(self.certificate).min(self.token)
    }
}

/// A device of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeDevice {
    /// The number of the device in the store.
    pub number: u64,
    /// The folder of the device; empty for clients that do not administer the node.
    pub path: String,
    /// The state: "ok", "leaving" or "missing".
    pub state: String,
    /// The free bytes of the device.
    pub free_bytes: u64,
    /// The capacity of the device in bytes.
    pub capacity_bytes: u64,
}

/// The counters of connections since the node began to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// The number of open connections, including connections that have sent no request.
    pub open: u64,
    /// The maximum number of open connections that have sent a valid request.
    pub limit: u64,
    /// The number of accepted connections.
    pub opened: u64,
    /// The number of connections whose request was refused because all slots were in use. The refusal
    /// contains a time to retry.
    pub refused_full: u64,
    /// The number of connections whose request was refused because other connections from the same address used all
    /// slots that one address may have. The refusal contains a time to retry.
    pub refused_address: u64,
    /// The number of connections that ended before a request with a valid token arrived. Causes are failed or slow
    /// handshakes, and invalid tokens.
    pub without_request: u64,
}

/// A running task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningTask {
    /// The number of the task on this node.
    pub number: u64,
    /// The client that owns the task.
    pub client: String,
    /// The kind of the task.
    pub kind: String,
    /// The memory of the task in bytes.
    pub memory_bytes: u64,
    /// The running time in seconds.
    pub seconds: f64,
    /// The bytes that the task has read.
    pub bytes_read: u64,
    /// The total length in bytes of the pieces that the task has to read.
    #[serde(default)]
    pub bytes_asked: u64,
    /// The datasets that the task reads.
    #[serde(default)]
    pub datasets: Vec<String>,
}
