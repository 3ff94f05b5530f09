//! Limits the memory of requests and answers outside of tasks, and the rate of log lines about refusals.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tonic::Status as Refusal;

/// The smallest limit of the memory of all requests together.
const BYTES_MIN: u64 = 64 << 20;
/// The memory of a parsed JSON object's first tree node.
const OBJECT_BYTES: u64 = 700;
/// The memory of each further member: its share of half-full tree nodes, and the allocation of its key.
const MEMBER_BYTES: u64 = 200;
/// The memory of a parsed array: room for four elements from the first element on.
const ARRAY_BYTES: u64 = 160;
/// The memory of an array's element, including the moment in which the array doubles its capacity, and the allocation
/// of its text.
const ELEMENT_BYTES: u64 = 128;

/// Accounts for the memory of requests that wait or run, and of answers that clients have not taken yet. Clients
/// determine how much memory these requests and answers need. The limit is an eighth of the memory of all tasks.
/// Incomplete bodies have a separate limit of half that size, so that no complete request is refused because of
/// incomplete bodies.
#[derive(Debug)]
pub(super) struct Requests {
    held: Arc<AtomicU64>,
    unfinished: Arc<AtomicU64>,
    bytes_max: u64,
}

/// The accounted memory of a request or an answer. Dropping this value releases the memory.
#[derive(Debug)]
pub(super) struct AccountedMemory {
    all: Arc<AtomicU64>,
    bytes: u64,
}

/// The arguments of a request, which may be JSON of any form.
#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// Returns an upper bound of the memory that a JSON text takes when parsed.
fn read_bytes(json: &str) -> u64 {
    let weight = |byte: u8| match byte {
        b'{' => OBJECT_BYTES,
        b':' => MEMBER_BYTES,
        b'[' => ARRAY_BYTES,
        b',' => ELEMENT_BYTES,
        _ => 1,
    };
    json.bytes().map(weight).sum()
}

impl Requests {
    pub fn new(memory_bytes: u64) -> Requests {
        let bytes_max = (memory_bytes / 8).max(BYTES_MIN);
        Requests { held: Arc::default(), unfinished: Arc::default(), bytes_max }
    }

    /// Starts the accounting of a body, with no bytes received so far.
    pub fn unfinished(&self) -> AccountedMemory {
        AccountedMemory { all: self.unfinished.clone(), bytes: 0 }
    }

    /// Adds received bytes to the accounting of a body.
    ///
    /// # Errors
    /// Returns the reason for the refusal if the bodies exceed their limit.
    pub fn more(&self, body: &mut AccountedMemory, bytes: u64) -> Result<(), Refusal> {
        let most = self.bytes_max / 2;
        let all = body.all.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        body.bytes += bytes;
        match all <= most {
            true => Ok(()),
            false => Err(Refusal::resource_exhausted(format!(
                "incomplete requests would take {} of memory, this request {}: the limit is {}",
                inshore_store::format_bytes(all),
                inshore_store::format_bytes(body.bytes),
                inshore_store::format_bytes(most)
            ))),
        }
    }

    /// Returns the memory of requests and answers, and of incomplete bodies.
    pub fn bytes(&self) -> (u64, u64) {
        (self.held.load(Ordering::Relaxed), self.unfinished.load(Ordering::Relaxed))
    }

    /// Reserves the memory of a request before parsing the request.
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub fn hold(&self, request: &[u8]) -> Result<AccountedMemory, Refusal> {
        let shape: Arguments<'_> = serde_json::from_slice(request)
            .map_err(|error| Refusal::invalid_argument(format!("invalid request: {error}")))?;
        self.take(request.len() as u64 * 2 + read_bytes(shape.arguments.get()))
    }

    /// Reserves `bytes` bytes.
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub fn take(&self, bytes: u64) -> Result<AccountedMemory, Refusal> {
        let held = AccountedMemory { all: self.held.clone(), bytes };
        let all = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if all > self.bytes_max {
            return Err(Refusal::resource_exhausted(format!(
                "requests and unread answers would take {} of memory, this one {}: the limit is {}",
                inshore_store::format_bytes(all),
                inshore_store::format_bytes(bytes),
                inshore_store::format_bytes(self.bytes_max)
            )));
        }
        Ok(held)
    }
}

impl AccountedMemory {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for AccountedMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Parses the JSON of a request.
///
/// # Errors
/// Returns the reason for the refusal, which is sent to the client.
pub(super) fn parse_request<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::invalid_argument(format!("invalid request: {error}")))
}

/// Returns the beginning of a client's text, long enough to identify the text in a log.
pub(crate) fn short(said: &str) -> Cow<'_, str> {
    const LETTERS: usize = 300;
    match said.char_indices().nth(LETTERS) {
        Some((end, _)) => Cow::Owned(format!("{}...", &said[..end])),
        None => Cow::Borrowed(said),
    }
}

/// The rate limit of log lines about refusals, which any client can cause: [`LogRateLimit::LINES`] lines per second.
#[derive(Debug, Default)]
pub(super) struct LogRateLimit(Mutex<LogSecond>);

#[derive(Debug, Default)]
struct LogSecond {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogRateLimit {
    const LINES: u32 = 20;

    /// Returns `None` if the next line must be suppressed. Otherwise returns the number of lines that were suppressed
    /// since the last logged line.
    pub fn next(&self, now: Instant) -> Option<u64> {
        let mut second = self.0.lock().expect("no panic under this lock");
        if second.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
            (second.began, second.lines) = (Some(now), 0);
        }
        if second.lines >= Self::LINES {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_held_against_what_it_takes_when_it_is_read() {
        let requests = Requests::new(0);
        let request = |arguments: &str| format!(r#"{{"kind":"x","arguments":{arguments},"pieces":[{{}}]}}"#);
        let small = requests.hold(request("{\"a\":1}").as_bytes()).unwrap();
        assert!(small.bytes < 1200);
        // The request has one MiB, and takes a hundred MiB when parsed.
        let large = request(&format!("[{}0]", r#"{"":0},"#.repeat(150_000)));
        let why = requests.hold(large.as_bytes()).unwrap_err();
        assert!(why.message().contains("the limit is 64 MiB"), "{why}");
        // A dropped request takes no memory.
        let many = || requests.hold(request(&format!("\"{}\"", "x".repeat(8 << 20))).as_bytes());
        let held = [many().unwrap(), many().unwrap()];
        assert!(many().is_err());
        drop(held);
        drop(many().unwrap());
        assert_eq!(requests.held.load(Ordering::Relaxed), small.bytes);
        assert!(requests.hold(b"{}").unwrap_err().message().contains("missing field `arguments`"));
    }

    #[test]
    fn bodies_that_are_not_complete_share_half_as_much_and_keep_no_complete_request_out() {
        let requests = Requests::new(0);
        let (mut first, mut second) = (requests.unfinished(), requests.unfinished());
        requests.more(&mut first, 20 << 20).unwrap();
        requests.more(&mut second, 12 << 20).unwrap();
        let why = requests.more(&mut second, 1).unwrap_err();
        assert!(why.message().contains("the limit is 32 MiB"), "{why}");
        drop(requests.take(64 << 20).unwrap());
        drop(second);
        requests.more(&mut first, 12 << 20).unwrap();
        assert_eq!(requests.bytes(), (0, 32 << 20));
        drop(first);
        assert_eq!(requests.bytes(), (0, 0));
    }

    #[test]
    fn so_many_lines_are_told_in_a_second_and_then_how_many_were_not() {
        let (telling, now) = (LogRateLimit::default(), Instant::now());
        let told = (0..100).filter(|_| telling.next(now) == Some(0)).count();
        assert_eq!(told, 20);
        assert_eq!(telling.next(now + Duration::from_secs(1)), Some(80));
        assert_eq!(telling.next(now + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn what_is_long_is_told_by_its_beginning() {
        assert_eq!(short("short"), "short");
        let long = "ä".repeat(1 << 20);
        assert_eq!(short(&long).chars().count(), 303);
    }
}
