//! A task on a node is asked for, and its answers wait here until they are taken.
//!
//! Two batches always have a place to wait in. More wait where the asker has memory for them ([`queue`]); beyond that the window of
//! the connection stops the node.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use arrow_flight::{
    FlightData, Ticket,
    decode::{DecodedFlightData, DecodedPayload, FlightDataDecoder},
    error::FlightError,
};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status as Refusal;

use super::{
    Result,
    client::Node,
    here::Gate,
    lengths::check_lengths,
    protocol::{TaskAlive, TaskDone, TaskRequest, TaskStands},
    wire::{json, message_bytes},
};

/// Batches that have a place to wait in, whatever memory there is.
const BATCHES: usize = 2;
/// What memory is counted in.
const UNIT_BYTES: u64 = 1 << 10;

/// A node stops a task by itself so long after its client should have.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// A batch, or the end, or why there is no more.
type Said = Result<Option<RecordBatch>>;

/// What came of an attempt beside its answers.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub done: Option<TaskDone>,
    /// How far it got, and when that was new. Nothing, where the node tells no such thing.
    pub alive: Option<(u64, Instant)>,
    /// The same number, and how the task stood when the node told it.
    pub stands: Option<(u64, TaskStands)>,
    /// When it told so. What it tells comes behind answers, which may have to wait.
    pub stood: Option<Instant>,
    /// Bytes of the answers that came before that.
    pub answered_then: u64,
    /// It gave an answer.
    pub has_answered: bool,
    /// Bytes of its answers, as they came over the wire.
    pub answered_bytes: u64,
    /// It says no more.
    pub is_over: bool,
}

/// Tells that an attempt says no more, when its pump ends or is ended.
struct Ends(Arc<Mutex<Told>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_over = true;
    }
}

/// A queue of answers: two batches, and as many more as `room_bytes` hold.
pub(super) fn queue(room_bytes: u64) -> (Inlet, Outlet) {
    let (out, answers) = mpsc::unbounded_channel();
    let units = usize::try_from(room_bytes / UNIT_BYTES).map_or(Semaphore::MAX_PERMITS, |units| units);
    let room = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
    (Inlet { out, places: Arc::new(Semaphore::new(BATCHES)), room }, Outlet(answers))
}

/// Where answers go in.
#[derive(Debug)]
pub(super) struct Inlet {
    out: mpsc::UnboundedSender<(Said, OwnedSemaphorePermit)>,
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl Inlet {
    /// Waits until there is a place for so many bytes; `false` where nobody takes answers any more.
    async fn send(&self, said: Said, bytes: u64) -> bool {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            biased;
            () = self.out.closed() => return false,
            permit = self.room.clone().acquire_many_owned(units) => permit,
            permit = self.places.clone().acquire_owned() => permit,
        };
        let permit = permit.expect("places are never closed");
        self.out.send((said, permit)).is_ok()
    }
}

/// Where answers are taken.
#[derive(Debug)]
pub(super) struct Outlet(mpsc::UnboundedReceiver<(Said, OwnedSemaphorePermit)>);

impl Outlet {
    /// The next answer, whose place is free then; `None` behind the last one.
    pub async fn next(&mut self) -> Option<Said> {
        self.0.recv().await.map(|(said, _)| said)
    }

    /// Takes no more answers, and lets those go that wait.
    pub fn close(&mut self) {
        self.0.close();
        while self.0.try_recv().is_ok() {}
    }
}

/// What messages say, each looked at before it is unpacked.
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

/// The next thing that they say. The library checks most of what a message claims, and asserts the rest: that is a bad answer, too.
async fn next(
    decoded: &mut FlightDataDecoder,
) -> Option<std::result::Result<DecodedFlightData, FlightError>> {
    let next = AssertUnwindSafe(decoded.next()).catch_unwind().await;
    next.unwrap_or_else(|_| Some(Err(FlightError::DecodeError("what it claims does not fit".to_string()))))
}

/// Which answers let others go first on the wire, if any.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    /// What this machine fetches to work on goes before answers.
    First(Arc<Gate>),
    /// Answers let it.
    Behind(Arc<Gate>),
    /// There is nothing else.
    Any,
}

impl Turn {
    /// So many bytes came.
    fn came(&self, bytes: u64) {
        match self {
            Turn::First(gate) => gate.came(bytes, true),
            Turn::Behind(gate) => gate.came(bytes, false),
            Turn::Any => {}
        }
    }
}

/// Asks a node, and hands on what it answers.
pub(super) async fn pump(
    node: Arc<Node>,
    request: TaskRequest,
    out: Inlet,
    told: Arc<Mutex<Told>>,
    turn: Turn,
) {
    let _ends = Ends(told.clone());
    let ticket = Ticket { ticket: json(&request) };
    let patience = request.deadline_ms.map(|left| Duration::from_millis(left).saturating_sub(LATE));
    drop(request);
    node.bytes_out.fetch_add(ticket.ticket.len() as u64, Ordering::Relaxed);
    let asked = node.send(patience, || {
        let (mut client, request) = (node.client(), node.request(ticket.clone()));
        async move { client.do_get(request).await }
    });
    let stream = match asked.await {
        Ok(stream) => stream.into_inner(),
        Err(refusal) => {
            out.send(Err(node.error(&refusal)), 0).await;
            return;
        }
    };
    let (counts, heard) = (node.clone(), told.clone());
    let counted = stream.try_filter(move |message| {
        counts.bytes_in.fetch_add(message_bytes(message), Ordering::Relaxed);
        let is_answer = !message.data_header.is_empty();
        let alive = serde_json::from_slice::<TaskAlive>(&message.app_metadata).ok();
        if let Some(TaskAlive { progress, stands }) = alive.filter(|_| !is_answer) {
            let mut told = heard.lock().expect("no panic under this lock");
            if told.alive.is_none_or(|(before, _)| before != progress) {
                told.alive = Some((progress, Instant::now()));
            }
            if let Some(stands) = stands {
                (told.stands, told.stood) = (Some((progress, stands)), Some(Instant::now()));
                told.answered_then = told.answered_bytes;
            }
        }
        std::future::ready(is_answer)
    });
    let mut decoded = decoded(counted);
    loop {
        let said = match &turn {
            Turn::First(gate) => {
                let _fetching = gate.fetches();
                next(&mut decoded).await
            }
            Turn::Behind(gate) => {
                gate.pass().await;
                next(&mut decoded).await
            }
            Turn::Any => next(&mut decoded).await,
        };
        let Some(message) = said else { break };
        let mut bytes = 0;
        let answer = match message {
            Ok(message) => {
                let metadata = message.app_metadata();
                match message.payload {
                    _ if !metadata.is_empty() => match node.read::<TaskDone>(&metadata) {
                        Ok(done) => {
                            told.lock().expect("no panic under this lock").done = Some(done);
                            out.send(Ok(None), 0).await;
                            return;
                        }
                        Err(error) => Err(error),
                    },
                    DecodedPayload::RecordBatch(batch) => {
                        let came = message_bytes(&message.inner);
                        turn.came(came);
                        let mut told = told.lock().expect("no panic under this lock");
                        (told.has_answered, told.answered_bytes) = (true, told.answered_bytes + came);
                        // However few rows it has, its buffers may be longer.
                        let kept = check_lengths(&message.inner.data_header, &message.inner.data_body);
                        bytes = kept.unwrap_or(u64::MAX).max(came);
                        Ok(Some(batch))
                    }
                    DecodedPayload::Schema(_) | DecodedPayload::None => continue,
                }
            }
            Err(FlightError::Tonic(refusal)) => Err(node.error(&refusal)),
            Err(error) => Err(node.bad_answer(&format!("a message that is none: {error}"))),
        };
        let is_end = answer.is_err();
        if !out.send(answer, bytes).await || is_end {
            return;
        }
    }
    out.send(Err(node.lost("its answer ended early".to_string())), 0).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Array, ArrayRef, StringViewArray, UInt64Array};
    use arrow_schema::Schema;

    use super::*;
    use crate::nodes::wire::Encoder;

    fn one(name: &str, column: impl Array + 'static) -> RecordBatch {
        RecordBatch::try_from_iter([(name, Arc::new(column) as ArrayRef)]).unwrap()
    }

    fn say(messages: Vec<FlightData>) -> FlightDataDecoder {
        decoded(futures::stream::iter(messages.into_iter().map(Ok)))
    }

    /// What is wrong with the second of two messages, of which the first one tells the columns.
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
        assert!(error.contains("what it claims does not fit"), "{error}");
    }

    fn batch() -> Said {
        Ok(Some(RecordBatch::new_empty(Schema::empty().into())))
    }

    /// How many batches of so many bytes go in before nothing is taken.
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
            // What is taken makes room for as much.
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
        let (inlet, mut outlet) = queue(8 << 10);
        assert_eq!(accepted(&inlet, 4 << 10).await, 4);
        outlet.close();
        assert_eq!(inlet.room.available_permits(), 8, "the room is free again");
        assert!(!inlet.send(batch(), 1).await);
    }
}
