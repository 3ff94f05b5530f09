//! Requests a task from a node, and queues the answers until the caller takes them.
//!
//! The queue always has room for two batches. If the caller has memory, the queue also has room for further batches
//! ([`queue`]). When the queue is full, the flow control of the connection makes the node wait.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_flight::{
    FlightData, Ticket,
    decode::{DecodedFlightData, DecodedPayload, FlightDataDecoder},
    error::FlightError,
};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Status as Refusal, Streaming};

use super::nodes::Node;
use crate::{
    Error, Result,
    protocol::{
        PullRequest, TaskAlive, TaskDone, TaskRequest,
        lengths::check_lengths,
        wire::{json, message_bytes},
    },
};

/// The number of batches for which the queue has room regardless of memory.
const BATCHES: usize = 2;
/// The unit of memory accounting in bytes.
const UNIT_BYTES: u64 = 1 << 10;

/// The delay after the client's deadline after which a node stops a task by itself.
pub(crate) const LATE: Duration = Duration::from_secs(1);

/// A batch, the end of the answers, or an error.
type NextBatch = Result<Option<RecordBatch>>;

/// The results of an attempt (one task of a job on a node) other than its answers.
#[derive(Debug, Default)]
pub(crate) struct AttemptReport {
    pub done: Option<TaskDone>,
    /// The number of the task on the node; `None` before the node has sent the number.
    pub task: Option<u64>,
}

/// A message of a node that is not an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeMessage<'a> {
    /// The task makes progress.
    Progress,
    /// The task requests more shards.
    Pulls(PullRequest),
    /// The stream ended with an error.
    Closed(&'a Error),
}

/// Creates a queue of answers, which has room for two batches and for further batches of up to `room_bytes` bytes in
/// total.
pub(crate) fn queue(room_bytes: u64) -> (Inlet, Outlet) {
    let (out, answers) = mpsc::unbounded_channel();
    let units = usize::try_from(room_bytes / UNIT_BYTES).map_or(Semaphore::MAX_PERMITS, |units| units);
    let room = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
    (Inlet { out, places: Arc::new(Semaphore::new(BATCHES)), room }, Outlet(answers))
}

/// The sending end of a queue of answers.
#[derive(Debug)]
pub(crate) struct Inlet {
    out: mpsc::UnboundedSender<(NextBatch, OwnedSemaphorePermit)>,
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl Inlet {
    /// Waits until there is room for the bytes, and sends the batch. Returns `false` if the receiver was
    /// dropped.
    async fn send(&self, batch: NextBatch, bytes: u64) -> bool {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            biased;
            () = self.out.closed() => return false,
            permit = self.room.clone().acquire_many_owned(units) => permit,
            permit = self.places.clone().acquire_owned() => permit,
        };
        let permit = permit.expect("places are never closed");
        self.out.send((batch, permit)).is_ok()
    }
}

/// The receiving end of a queue of answers.
#[derive(Debug)]
pub(crate) struct Outlet(mpsc::UnboundedReceiver<(NextBatch, OwnedSemaphorePermit)>);

impl Outlet {
    /// Returns the next answer and frees its slot. Returns `None` after the last answer.
    pub async fn next(&mut self) -> Option<NextBatch> {
        self.0.recv().await.map(|(batch, _)| batch)
    }
}

/// Decodes messages. The lengths in a message are checked before the message is decoded.
fn decoded(
    messages: impl Stream<Item = std::result::Result<FlightData, Refusal>> + Send + 'static,
) -> FlightDataDecoder {
    let messages = messages.map_err(|refusal| FlightError::Tonic(Box::new(refusal)));
    let looked_at = messages.and_then(|message| {
        let checked = check_lengths(&message.data_header, &message.data_body);
        std::future::ready(checked.map_err(FlightError::DecodeError).map(|_| message))
    });
    FlightDataDecoder::new(looked_at.boxed())
}

/// Returns the next decoded message. The Arrow library returns errors for most invalid messages, and panics on some. A
/// panic also counts as a bad answer.
async fn next(
    decoded: &mut FlightDataDecoder,
) -> Option<std::result::Result<DecodedFlightData, FlightError>> {
    let next = AssertUnwindSafe(decoded.next()).catch_unwind().await;
    next.unwrap_or_else(|_| {
        Some(Err(FlightError::DecodeError("a length in the message is wrong".to_string())))
    })
}

/// A decoded message of a task.
enum Received {
    /// A batch, and the bytes of memory that the batch occupies.
    Batch(RecordBatch, u64),
    /// The final message.
    Done(TaskDone),
}

/// Sends a task request to a node and passes on the answers.
pub(crate) async fn pump(
    node: Arc<Node>,
    request: TaskRequest,
    out: Inlet,
    report: Arc<Mutex<AttemptReport>>,
    hear: impl Fn(NodeMessage<'_>) + Clone + Send + 'static,
) {
    let stream = match open_stream(&node, request).await {
        Ok(stream) => stream,
        Err(error) => return close(error, &out, hear).await,
    };
    let mut decoded = decoded(answers(stream, node.clone(), report.clone(), hear.clone()));
    while let Some(message) = next(&mut decoded).await {
        let received = match message {
            Ok(message) => receive(&node, message),
            Err(FlightError::Tonic(refusal)) => Err(node.error(&refusal)),
            Err(error) => Err(node.bad_answer(&format!("an invalid message: {error}"))),
        };
        match received {
            Ok(None) => {}
            Ok(Some(Received::Done(done))) => {
                report.lock().expect("no panic under this lock").done = Some(done);
                out.send(Ok(None), 0).await;
                return;
            }
            Ok(Some(Received::Batch(batch, bytes))) => {
                hear(NodeMessage::Progress);
                if !out.send(Ok(Some(batch)), bytes).await {
                    return;
                }
            }
            Err(error) => return close(error, &out, hear).await,
        }
    }
    let error = node.lost("the answer ended early".to_string());
    close(error, &out, hear).await;
}

/// Sends a task request to a node, and returns the stream of messages.
async fn open_stream(node: &Node, request: TaskRequest) -> Result<Streaming<FlightData>> {
    let ticket = Ticket { ticket: json(&request) };
    let timeout = request.deadline_ms.map(|left| Duration::from_millis(left).saturating_sub(LATE));
    drop(request);
    node.bytes_out.fetch_add(ticket.ticket.len() as u64, Ordering::Relaxed);
    let sent = node.send(timeout, || {
        let (mut client, request) = (node.client(), node.request(ticket.clone()));
        async move { client.do_get(request).await }
    });
    Ok(sent.await.map_err(|refusal| node.error(&refusal))?.into_inner())
}

/// Counts the bytes of a task's messages, passes on the answers, and calls `hear` for all other messages.
fn answers(
    stream: Streaming<FlightData>,
    node: Arc<Node>,
    report: Arc<Mutex<AttemptReport>>,
    hear: impl Fn(NodeMessage<'_>) + Send + 'static,
) -> impl Stream<Item = std::result::Result<FlightData, Refusal>> + Send + 'static {
    let mut progressed = None;
    stream.try_filter(move |message| {
        node.bytes_in.fetch_add(message_bytes(message), Ordering::Relaxed);
        let is_answer = !message.data_header.is_empty();
        let alive = serde_json::from_slice::<TaskAlive>(&message.app_metadata).ok();
        if let Some(TaskAlive { progress, pulls }) = alive.filter(|_| !is_answer) {
            if progressed.replace(progress) != Some(progress) {
                hear(NodeMessage::Progress);
            }
            if let Some(pulls) = pulls {
                report.lock().expect("no panic under this lock").task = Some(pulls.task);
                hear(NodeMessage::Pulls(pulls));
            }
        }
        std::future::ready(is_answer)
    })
}

/// Interprets a decoded message; `None` stands for a message without rows.
fn receive(node: &Node, message: DecodedFlightData) -> Result<Option<Received>> {
    let metadata = message.app_metadata();
    if !metadata.is_empty() {
        return Ok(Some(Received::Done(node.read::<TaskDone>(&metadata)?)));
    }
    let DecodedPayload::RecordBatch(batch) = message.payload else { return Ok(None) };
    let sent_bytes = message_bytes(&message.inner);
    // After decompression, the buffers may be larger than the message.
    let kept_bytes = check_lengths(&message.inner.data_header, &message.inner.data_body);
    Ok(Some(Received::Batch(batch, kept_bytes.unwrap_or(u64::MAX).max(sent_bytes))))
}

/// Reports the error that ended the answers, and passes the error on as the last answer.
async fn close(error: Error, out: &Inlet, hear: impl Fn(NodeMessage<'_>)) {
    hear(NodeMessage::Closed(&error));
    out.send(Err(error), 0).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Array, ArrayRef, StringViewArray, UInt64Array};
    use arrow_schema::Schema;

    use super::*;
    use crate::protocol::wire::Encoder;

    fn one(name: &str, column: impl Array + 'static) -> RecordBatch {
        RecordBatch::try_from_iter([(name, Arc::new(column) as ArrayRef)]).unwrap()
    }

    fn say(messages: Vec<FlightData>) -> FlightDataDecoder {
        decoded(futures::stream::iter(messages.into_iter().map(Ok)))
    }

    /// Returns the error of decoding the second of two messages. The first message describes the columns.
    async fn wrong(messages: Vec<FlightData>) -> String {
        let mut said = say(messages);
        assert!(next(&mut said).await.unwrap().is_ok(), "the columns");
        next(&mut said).await.unwrap().unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_batch_that_says_it_is_larger_than_any_is_no_answer() {
        let sent = one("number", UInt64Array::from_iter_values(0..5000));
        let messages = Encoder::new().batch(&sent, Some(0)).unwrap();
        let (mut good, mut count) = (say(messages.clone()), 0);
        while let Some(message) = next(&mut good).await {
            if let DecodedPayload::RecordBatch(batch) = message.unwrap().payload {
                assert_eq!(batch, sent);
                count += 1;
            }
        }
        assert_eq!(count, 1);
        let mut bad = messages;
        let mut body = bad[1].data_body.to_vec();
        body[..8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        bad[1].data_body = body.into();
        let error = wrong(bad).await;
        assert!(error.contains("a batch that would have 1099511627776 bytes"), "{error}");
    }

    #[tokio::test]
    async fn a_batch_of_other_columns_is_no_answer_though_the_library_panics_at_it() {
        let mut messages =
            Encoder::new().batch(&one("number", UInt64Array::from_iter_values(0..2)), None).unwrap();
        let views = one("number", StringViewArray::from_iter_values(["a", "b"]));
        messages[1] = Encoder::new().batch(&views, None).unwrap().remove(1);
        let error = wrong(messages).await;
        assert!(error.contains("a length in the message is wrong"), "{error}");
    }

    fn batch() -> NextBatch {
        Ok(Some(RecordBatch::new_empty(Schema::empty().into())))
    }

    /// Returns the number of batches of `bytes` that the queue accepts before a send has to wait.
    async fn accepted(inlet: &Inlet, bytes: u64) -> usize {
        let mut count = 0;
        while let Ok(true) = tokio::time::timeout(Duration::from_millis(20), inlet.send(batch(), bytes)).await
        {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn two_batches_wait_and_more_as_far_as_there_is_room() {
        for (room, waiting) in [(0, 2), (4 << 10, 3), (8 << 10, 4), (15 << 10, 5)] {
            let (inlet, mut outlet) = queue(room);
            assert_eq!(accepted(&inlet, 4 << 10).await, waiting, "{room} bytes");
            // Taking an answer from the queue makes room for one more answer of this size.
            assert!(matches!(outlet.next().await, Some(Ok(Some(_)))));
            assert_eq!(accepted(&inlet, 4 << 10).await, 1, "{room} bytes");
        }
    }

    #[tokio::test]
    async fn a_batch_larger_than_the_room_takes_one_of_the_places() {
        let (inlet, _outlet) = queue(4 << 10);
        assert_eq!(accepted(&inlet, 64 << 20).await, 2);
        assert_eq!(accepted(&inlet, 4 << 10).await, 1);
    }

    #[tokio::test]
    async fn what_is_closed_keeps_nothing_and_takes_nothing() {
        let (inlet, outlet) = queue(8 << 10);
        assert_eq!(accepted(&inlet, 4 << 10).await, 4);
        drop(outlet);
        assert_eq!(inlet.room.available_permits(), 8, "the room is free again");
        assert!(!inlet.send(batch(), 1).await);
    }
}
