//! What clients say and are told apart from tasks: how much memory it takes, and how much of it is logged.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tonic::Status as Refusal;

/// The least that all requests together may take.
const BYTES_MIN: u64 = 64 << 20;
/// The first node of an object's tree.
const OBJECT_BYTES: u64 = 700;
/// A further member's share of nodes that are less than half full, and what an allocation costs for its key.
const MEMBER_BYTES: u64 = 200;
/// An array has room for four elements from the first one on.
const ARRAY_BYTES: u64 = 160;
/// An element of one, while it moves to room for twice as many, and what an allocation costs for its text.
const ELEMENT_BYTES: u64 = 128;

/// Memory of requests that wait or run, and of answers that wait to be taken, about both of which clients decide: an eighth of
/// what all tasks have. Bodies that are not complete have half as much beside that, so that they keep no complete request out.
#[derive(Debug)]
pub(super) struct Requests {
    held: Arc<AtomicU64>,
    unfinished: Arc<AtomicU64>,
    bytes_max: u64,
}

/// The memory of a request or an answer.
#[derive(Debug)]
pub(super) struct Held {
    all: Arc<AtomicU64>,
    bytes: u64,
}

/// Of a request, what has any form.
#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// What a text of JSON takes at most when it is read.
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

    /// Counts a body of which nothing came so far.
    pub fn unfinished(&self) -> Held {
        Held { all: self.unfinished.clone(), bytes: 0 }
    }

    /// Counts bytes that came of a body.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn more(&self, body: &mut Held, bytes: u64) -> Result<(), Refusal> {
        let most = self.bytes_max / 2;
        let all = body.all.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        body.bytes += bytes;
        match all <= most {
            true => Ok(()),
            false => Err(Refusal::resource_exhausted(format!(
                "requests that are not complete would have {}, this one {} of it: {} is the most",
                inshore_store::format_bytes(all),
                inshore_store::format_bytes(body.bytes),
                inshore_store::format_bytes(most)
            ))),
        }
    }

    /// The memory of requests and answers, and of bodies that are not complete.
    pub fn bytes(&self) -> (u64, u64) {
        (self.held.load(Ordering::Relaxed), self.unfinished.load(Ordering::Relaxed))
    }

    /// Takes the memory of a request, which is not read yet.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn hold(&self, request: &[u8]) -> Result<Held, Refusal> {
        let shape: Arguments<'_> = serde_json::from_slice(request)
            .map_err(|error| Refusal::invalid_argument(format!("a bad request: {error}")))?;
        self.take(request.len() as u64 * 2 + read_bytes(shape.arguments.get()))
    }

    /// Takes so much memory.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn take(&self, bytes: u64) -> Result<Held, Refusal> {
        let held = Held { all: self.held.clone(), bytes };
        let all = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if all > self.bytes_max {
            return Err(Refusal::resource_exhausted(format!(
                "requests and answers that nobody took would have {}, this one {} of it: {} is the most",
                inshore_store::format_bytes(all),
                inshore_store::format_bytes(bytes),
                inshore_store::format_bytes(self.bytes_max)
            )));
        }
        Ok(held)
    }
}

impl Held {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The beginning of what a client said: enough to know it by.
pub(in crate::nodes) fn short(said: &str) -> Cow<'_, str> {
    const LETTERS: usize = 300;
    match said.char_indices().nth(LETTERS) {
        Some((end, _)) => Cow::Owned(format!("{}...", &said[..end])),
        None => Cow::Borrowed(said),
    }
}

/// Lines about what was refused, of which anybody can cause any number: so many are told each second.
#[derive(Debug, Default)]
pub(super) struct Telling(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Telling {
    const LINES: u32 = 20;

    /// Whether a line is told now, and how many were left out before it.
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
        // A MiB that becomes a hundred.
        let large = request(&format!("[{}0]", r#"{"":0},"#.repeat(150_000)));
        let why = requests.hold(large.as_bytes()).unwrap_err();
        assert!(why.message().contains("64 MiB is the most"), "{why}");
        // What is gone takes nothing.
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
        assert!(why.message().contains("32 MiB is the most"), "{why}");
        drop(requests.take(64 << 20).unwrap());
        drop(second);
        requests.more(&mut first, 12 << 20).unwrap();
        assert_eq!(requests.bytes(), (0, 32 << 20));
        drop(first);
        assert_eq!(requests.bytes(), (0, 0));
    }

    #[test]
    fn so_many_lines_are_told_in_a_second_and_then_how_many_were_not() {
        let (telling, now) = (Telling::default(), Instant::now());
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
