//! Defines the messages of a traversal, and the links on which nodes exchange these messages.
//!
//! A file is cut into pages of one size, numbered from 0. Each page contains the number of the next page at a fixed
//! offset ([`Pointers`]). Following a chain of these pointers is a sequence of dependent reads: no read can begin
//! before the previous read has ended, so latency determines the speed. The position of a chain ([`ChainPosition`])
//! has 32 bytes and is part of a [`Hop`]:
//!
//! ```text
//!   byte 0        16     20      24     32      40       48     56           64
//!        traversal  what   chain   page   steps   digest   hops   unheard µs        little endian; then text or a page
//! ```
//!
//! A [`Link`] is one stream from a node (or a client) to a node, and transfers the hops of all chains and
//! traversals. A hop is therefore a message on an open connection, without a request and a response.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt8Array, UInt64Array};
use arrow_flight::FlightData;
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Handle,
    sync::{mpsc, mpsc::error::TrySendError},
    task::JoinHandle,
};

use crate::{Error, client::Node, protocol::wire::message_bytes};

/// The pointer value that marks the last page of a chain.
pub const LAST_PAGE: u64 = u64::MAX;
/// The maximum number of chains that are followed at the same time.
pub const CHAINS_MAX: usize = 1024;
/// The maximum number of nodes of a traversal, since each node may connect to all others.
pub const NODES_MAX: usize = 256;
/// The maximum number of steps of a chain.
pub const STEPS_MAX: u64 = 1 << 40;
/// The maximum bytes of a page.
pub const PAGE_BYTES_MAX: u64 = 1 << 20;

/// The size of pages, and the offset of the pointer to the next page within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointers {
    /// The bytes of a page.
    pub page_bytes: u64,
    /// The offset in each page of the number of the next page: 8 bytes, little endian.
    pub at: u64,
}

impl Default for Pointers {
    /// Returns pages of 8 KiB, as in the papers, with the number at the beginning.
    fn default() -> Self {
        Pointers { page_bytes: 8192, at: 0 }
    }
}

impl Pointers {
    /// Returns true if the pointer lies within the page and the page is no larger than [`PAGE_BYTES_MAX`].
    pub fn is_sound(&self) -> bool {
        let end = self.at.checked_add(8);
        self.page_bytes <= PAGE_BYTES_MAX && end.is_some_and(|end| end <= self.page_bytes)
    }

    /// Returns the number of the next page.
    ///
    /// # Panics
    /// The function panics if the page is too short: [`Self::is_sound`] was not checked, or the page has another
    /// length.
    pub fn next(&self, page: &[u8]) -> u64 {
        let at = self.at as usize;
        u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"))
    }
}

/// The position of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainPosition {
    /// The current page.
    pub page: u64,
    /// The number of pointers followed.
    pub steps: u64,
    /// A digest of the numbers of all visited pages in their order: equal digests indicate equal walks.
    pub digest: u64,
    /// The number of changes from one node to another.
    pub hops: u64,
}

impl ChainPosition {
    /// Returns the position at the beginning of a chain.
    pub fn at(page: u64) -> ChainPosition {
        ChainPosition { page, ..ChainPosition::default() }
    }

    /// Moves one step to `page`.
    pub fn step(&mut self, page: u64) {
        self.page = page;
        self.steps += 1;
        self.digest = (self.digest ^ page).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// The random id of a traversal, which other clients cannot guess.
pub(crate) type Session = [u8; 16];

/// The kind of a [`Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopKind {
    /// The receiver continues the chain.
    GoOn = 1,
    /// The receiver sends a page.
    Read = 2,
    /// The body has the requested page.
    Page = 3,
    /// The chain continues at a page that this node does not hold.
    Left = 4,
    /// The request failed; the reason is in the body.
    Refused = 5,
    /// The traversal has ended.
    End = 6,
}

/// A message of a traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub session: Session,
    pub what: HopKind,
    pub chain: u32,
    pub walked: ChainPosition,
    /// The time since the client last received a report on the chain, as far as the nodes can tell.
    pub unheard: Duration,
}

/// The bytes of a [`Hop`].
pub(crate) const HOP_BYTES: usize = 64;

impl Hop {
    pub fn encode(&self, body: Bytes) -> FlightData {
        let mut bytes = Vec::with_capacity(HOP_BYTES);
        bytes.extend(self.session);
        bytes.extend((self.what as u32).to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        let ChainPosition { page, steps, digest, hops } = self.walked;
        for number in [page, steps, digest, hops, self.unheard.as_micros() as u64] {
            bytes.extend(number.to_le_bytes());
        }
        FlightData { app_metadata: bytes.into(), data_body: body, ..FlightData::default() }
    }

    /// Decodes a hop. Returns `None` for an invalid message.
    pub fn decode(bytes: &[u8]) -> Option<Hop> {
        let bytes: &[u8; HOP_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let small = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let whats =
            [HopKind::GoOn, HopKind::Read, HopKind::Page, HopKind::Left, HopKind::Refused, HopKind::End];
        let what = whats.into_iter().find(|what| *what as u32 == small(16))?;
        let walked =
            ChainPosition { page: number(24), steps: number(32), digest: number(40), hops: number(48) };
        let session = bytes[..16].try_into().expect("16 bytes");
        Some(Hop { session, what, chain: small(20), walked, unheard: Duration::from_micros(number(56)) })
    }
}

/// The arguments of a node's task in a traversal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Arguments {
    /// The id of the traversal, in hexadecimal digits.
    pub session: String,
    pub pointers: Pointers,
    /// The number of steps of each chain.
    pub steps: u64,
    /// The number of chains.
    pub chains: u32,
    /// The addresses of the nodes.
    pub nodes: Vec<String>,
    /// The certificates that the nodes have presented, if any. A node connects only to nodes whose certificate its
    /// authority has signed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Option<String>>,
    /// The end of each piece, in pages of the file.
    pub ends: Vec<u64>,
    /// For each piece, the node that receives chains: an index in `nodes`, or `None` if no node has the piece.
    pub holders: Vec<Option<u16>>,
    /// True if nodes hand chains to each other, false if they return chains to the client.
    pub by_itself: bool,
}

impl Arguments {
    /// Returns the number of pages of the file.
    pub fn pages(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the piece that contains an existing page.
    pub fn piece(&self, page: u64) -> usize {
        self.ends.partition_point(|&end| end <= page)
    }

    /// Returns the first page of a piece.
    pub fn first_page(&self, piece: usize) -> u64 {
        piece.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Returns the certificate of a node, if the node has shown one.
    pub fn certificate(&self, node: u16) -> Option<&str> {
        self.certificates.get(node as usize)?.as_deref()
    }

    /// Returns the id of the traversal.
    pub fn session(&self) -> Option<Session> {
        u128::from_str_radix(&self.session, 16).ok().map(u128::to_be_bytes)
    }

    /// Returns the first invalid argument, if any.
    pub fn fault(&self) -> Option<&'static str> {
        let is_known =
            |holder: &Option<u16>| holder.is_none_or(|holder| (holder as usize) < self.nodes.len());
        Some(match () {
            () if self.session().is_none() => "its id is invalid",
            () if !self.pointers.is_sound() => "pointers lie outside of pages",
            () if self.nodes.len() > NODES_MAX => "there are more nodes than the limit",
            () if self.certificates.len() > NODES_MAX => "there are more certificates than nodes",
            () if self.steps > STEPS_MAX => "there are more steps than the limit",
            () if self.chains == 0 || self.chains as usize > CHAINS_MAX => {
                "the number of chains is not within the limits"
            }
            () if self.ends.len() != self.holders.len() => "the numbers of pieces and of replicas differ",
            () if !self.ends.is_sorted() => "a piece ends before it begins",
            () if self.pages().checked_mul(self.pointers.page_bytes).is_none() => {
                "there are more pages than the limit"
            }
            () if !self.holders.iter().all(is_known) => "a replica is on an unknown node",
            () => return None,
        })
    }
}

/// The kind of a report from a node to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportKind {
    /// The node is ready.
    Ready = 0,
    /// The chain has reached this position and continues.
    Progress = 1,
    /// All steps of the chain are done.
    Done = 2,
    /// The chain has reached its last page.
    Ended = 3,
    /// The pointer of the page is invalid.
    Bad = 4,
    /// The page cannot be read.
    Unreadable = 5,
    /// No available node holds the page.
    Nowhere = 6,
    /// A node that holds the page is unreachable.
    Unreached = 7,
}

/// A report from a node to the client: one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraversalReport {
    pub said: ReportKind,
    pub chain: u32,
    pub walked: ChainPosition,
    /// The unreachable node, as an index in [`Arguments::nodes`].
    pub peer: u64,
    pub text: String,
}

impl TraversalReport {
    pub fn batch(&self) -> RecordBatch {
        let ChainPosition { page, steps, digest, hops } = self.walked;
        let numbers = [u64::from(self.chain), page, steps, digest, hops, self.peer];
        let names = ["chain", "page", "steps", "digest", "hops", "peer"];
        let mut columns: Vec<(&str, ArrayRef)> =
            vec![("said", Arc::new(UInt8Array::from(vec![self.said as u8])))];
        for (name, number) in names.into_iter().zip(numbers) {
            columns.push((name, Arc::new(UInt64Array::from(vec![number]))));
        }
        columns.push(("text", Arc::new(StringArray::from(vec![&self.text[..]]))));
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    /// Parses a batch. Returns `None` for an invalid batch.
    pub fn of_batch(batch: &RecordBatch) -> Option<TraversalReport> {
        if batch.num_rows() != 1 {
            return None;
        }
        let number = |column: usize| {
            let numbers = batch.columns().get(column)?.as_any().downcast_ref::<UInt64Array>()?;
            numbers.values().first().copied()
        };
        let said = *batch.columns().first()?.as_any().downcast_ref::<UInt8Array>()?.values().first()?;
        let text = batch.columns().get(7)?.as_any().downcast_ref::<StringArray>()?;
        let all = [
            ReportKind::Ready,
            ReportKind::Progress,
            ReportKind::Done,
            ReportKind::Ended,
            ReportKind::Bad,
            ReportKind::Unreadable,
            ReportKind::Nowhere,
            ReportKind::Unreached,
        ];
        Some(TraversalReport {
            said: all.into_iter().find(|one| *one as u8 == said)?,
            chain: number(1)?.try_into().ok()?,
            walked: ChainPosition {
                page: number(2)?,
                steps: number(3)?,
                digest: number(4)?,
                hops: number(5)?,
            },
            peer: number(6)?,
            text: text.value(0).to_string(),
        })
    }
}

/// The counts and times of a node for a traversal: the summary of its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraversalSummary {
    /// The number of pages read.
    pub reads: u64,
    /// The total time in seconds of these reads.
    pub storage_seconds: f64,
    /// The total time in seconds that chains or page requests spent on the node, from the arrival of the
    /// message to the departure of the reply, including reads.
    pub inside_seconds: f64,
    /// The number of chains or page requests that arrived.
    pub visits: u64,
}

/// A message received on a link.
#[derive(Debug)]
pub(crate) enum LinkMessage {
    Hop(Hop, Bytes),
    /// The link is lost: the node may not have received the last messages.
    Lost(Error),
}

/// The maximum number of queued hops on a link before senders have to wait.
const LINK_MESSAGES: usize = 64;

/// A stream of hops to a node. Dropping the link closes the stream.
#[derive(Debug)]
pub(crate) struct Link {
    out: mpsc::Sender<FlightData>,
    /// The reason for the loss. It is set before the loss is reported.
    lost: Arc<OnceLock<String>>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Opens a link. The link calls `hear` for each message from the node.
    pub fn open(
        runtime: &Handle,
        node: Arc<Node>,
        hear: impl Fn(LinkMessage) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Link {
        let (out, messages) = mpsc::channel::<FlightData>(LINK_MESSAGES);
        let lost = Arc::new(OnceLock::new());
        let set = lost.clone();
        let task = runtime.spawn(async move {
            let why = listen(&node, messages, &hear).await;
            let _ = set.set(why.to_string());
            hear(LinkMessage::Lost(why)).await;
        });
        Link { out, lost, task }
    }

    /// Returns true if the link is lost; messages that were just sent are then lost too.
    pub fn is_closed(&self) -> bool {
        self.lost.get().is_some() || self.out.is_closed()
    }

    /// Returns the reason why the link is closed.
    pub fn why(&self) -> String {
        self.lost.get().cloned().unwrap_or_else(|| "the connection broke".to_string())
    }

    /// Returns the sender of messages.
    pub fn out(&self) -> &mpsc::Sender<FlightData> {
        &self.out
    }
}

/// Sends queued messages and passes on received messages until the link is lost. Returns the reason.
async fn listen(
    node: &Node,
    mut messages: mpsc::Receiver<FlightData>,
    hear: &(impl Fn(LinkMessage) -> BoxFuture<'static, ()> + Send + Sync + 'static),
) -> Error {
    let stream = futures::stream::poll_fn(move |context| messages.poll_recv(context));
    let mut answers = match node.client().do_exchange(node.request(stream)).await {
        Ok(answers) => answers.into_inner(),
        Err(refusal) => return node.error(&refusal),
    };
    loop {
        let message = match answers.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return node.lost("the node ended the connection of the traversal".to_string()),
            Err(refusal) => return node.error(&refusal),
        };
        node.bytes_in.fetch_add(message_bytes(&message), Ordering::Relaxed);
        match Hop::decode(&message.app_metadata) {
            Some(hop) => hear(LinkMessage::Hop(hop, message.data_body)).await,
            None => return node.bad_answer("expected a step of a traversal"),
        }
    }
}

/// Sends from a thread, which waits for room in the queue until `stops` returns an error. Returns `None` if the
/// receiver was dropped.
pub(crate) fn send<T>(
    runtime: &Handle,
    out: &mpsc::Sender<T>,
    message: T,
    mut stops: impl FnMut() -> inshore_store::Result<()>,
) -> inshore_store::Result<Option<()>> {
    let mut message = match out.try_send(message) {
        Ok(()) => return Ok(Some(())),
        Err(TrySendError::Closed(_)) => return Ok(None),
        Err(TrySendError::Full(message)) => Some(message),
    };
    loop {
        stops()?;
        let reserved = runtime.block_on(async { tokio::time::timeout(PATIENCE, out.reserve()).await });
        match reserved {
            Ok(Ok(place)) => {
                place.send(message.take().expect("sent once"));
                return Ok(Some(()));
            }
            Ok(Err(_)) => return Ok(None),
            Err(_) => {}
        }
    }
}

/// The interval at which a waiting thread checks `stops`.
const PATIENCE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_read_as_it_was_written() {
        let walked = ChainPosition { page: 1, steps: 2, digest: u64::MAX, hops: 1 << 40 };
        let unheard = Duration::from_micros(77);
        for what in
            [HopKind::GoOn, HopKind::Read, HopKind::Page, HopKind::Left, HopKind::Refused, HopKind::End]
        {
            let hop = Hop { session: [7; 16], what, chain: 9, walked, unheard };
            let message = hop.encode(Bytes::new());
            assert_eq!(message.app_metadata.len(), HOP_BYTES);
            assert_eq!(Hop::decode(&message.app_metadata), Some(hop));
        }
        for bad in [&[][..], &[0; HOP_BYTES - 1], &[0; HOP_BYTES], &[9; HOP_BYTES], &[1; HOP_BYTES + 1]] {
            assert_eq!(Hop::decode(bad), None);
        }
    }

    #[test]
    fn what_is_told_is_read_as_it_was_written() {
        let walked = ChainPosition { page: 1, steps: 2, digest: 3, hops: 4 };
        let telling = TraversalReport {
            said: ReportKind::Bad,
            chain: 7,
            walked,
            peer: u64::MAX,
            text: "page 1".to_string(),
        };
        assert_eq!(TraversalReport::of_batch(&telling.batch()), Some(telling.clone()));
        assert_eq!(TraversalReport::of_batch(&telling.batch().slice(0, 0)), None);
        assert_eq!(TraversalReport::of_batch(&telling.batch().project(&[0, 1, 2]).unwrap()), None);
    }

    #[test]
    fn arguments_that_make_no_sense_are_told() {
        let good = Arguments {
            session: "0f".to_string(),
            pointers: Pointers::default(),
            steps: 10,
            chains: 1,
            nodes: vec!["a".to_string()],
            certificates: vec![None],
            ends: vec![3, 3, 5],
            holders: vec![Some(0), None, Some(0)],
            by_itself: true,
        };
        assert_eq!((good.fault(), good.pages()), (None, 5));
        assert_eq!((good.piece(0), good.piece(2), good.piece(3), good.first_page(2)), (0, 0, 2, 3));
        for bad in [
            Arguments { session: String::new(), ..good.clone() },
            Arguments { session: "x".repeat(32), ..good.clone() },
            Arguments { pointers: Pointers { page_bytes: 8, at: 1 }, ..good.clone() },
            Arguments { steps: STEPS_MAX + 1, ..good.clone() },
            Arguments { chains: 0, ..good.clone() },
            Arguments { chains: u32::MAX, ..good.clone() },
            Arguments { holders: Vec::new(), ..good.clone() },
            Arguments { ends: vec![5, 3, 7], ..good.clone() },
            Arguments { ends: vec![1, 2, u64::MAX], ..good.clone() },
            Arguments { holders: vec![Some(1); 3], ..good.clone() },
            Arguments { certificates: vec![None; NODES_MAX + 1], ..good.clone() },
        ] {
            assert!(bad.fault().is_some(), "{bad:?}");
        }
    }

    #[test]
    fn a_pointer_lies_within_its_page() {
        let sound = |page_bytes, at| Pointers { page_bytes, at }.is_sound();
        assert!(sound(8, 0) && sound(8192, 8184) && sound(PAGE_BYTES_MAX, 0));
        assert!(!sound(0, 0) && !sound(7, 0) && !sound(8192, 8185) && !sound(8192, u64::MAX));
        assert!(!sound(PAGE_BYTES_MAX + 1, 0) && !sound(u64::MAX, 0));
        let mut page = vec![0; 32];
        page[20..28].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        assert_eq!(Pointers { page_bytes: 32, at: 20 }.next(&page), 0x0102_0304_0506_0708);
    }

    #[test]
    fn the_digest_tells_walks_apart() {
        let walk = |pages: &[u64]| {
            let mut walked = ChainPosition::at(0);
            pages.iter().for_each(|&page| walked.step(page));
            walked.digest
        };
        assert_ne!(walk(&[1, 2]), walk(&[2, 1]));
        assert_ne!(walk(&[1, 2, 3]), walk(&[1, 2, 2, 3]));
        assert_eq!(walk(&[5, 6]), walk(&[5, 6]));
    }
}
