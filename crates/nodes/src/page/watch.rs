//! Polls the status of nodes every two seconds, and stores the rates of bytes read and sent for the charts of the page.
//!
//! Memory: the samples of five minutes, 24 bytes each, take a few kilobytes for each node.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    Agent, ClientConfig, ClientCredentials, Error, Nodes, Result, error::no_thread, protocol::Status,
};

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(2);
/// The number of stored samples of each node, which cover five minutes.
const SAMPLES: usize = 150;
/// The time after which a peer is shown as not responding.
const PATIENCE: Duration = Duration::from_secs(4);
/// The largest number of peers on a page.
const PEERS_MAX: usize = 256;

/// The handle of the polling threads, with the recorded data. Dropping this value ends the polling.
#[derive(Debug)]
pub(super) struct NodePoller {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    has_ended: AtomicBool,
    own: Mutex<NodeHistory>,
    peers: Mutex<Vec<NodeHistory>>,
}

/// The history of a node.
#[derive(Debug, Default)]
struct NodeHistory {
    address: String,
    last: Option<(Instant, Status)>,
    error: Option<String>,
    samples: VecDeque<Sample>,
}

/// The rates of a node between two polls.
#[derive(Clone, Copy, Debug)]
struct Sample {
    until: Instant,
    read_bytes_per_second: u64,
    sent_bytes_per_second: u64,
}

/// The content of `/status.json`.
#[derive(Serialize)]
struct StatusReport {
    interval_seconds: f64,
    nodes: Vec<NodeReport>,
}

#[derive(Serialize)]
struct NodeReport {
    address: String,
    is_own: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The samples. Each sample has its age in seconds, the bytes read per second, and the bytes sent per second.
    samples: Vec<(f64, u64, u64)>,
}

impl NodePoller {
    /// Starts polling an agent and its peers.
    ///
    /// # Errors
    /// - Returns [`Error::Address`] if the address of a peer is invalid.
    /// - Returns [`Error::Credentials`] if the credentials of a peer are invalid.
    pub fn begin(
        agent: Agent,
        peers: Vec<String>,
        credentials: Option<ClientCredentials>,
    ) -> Result<NodePoller> {
        if peers.len() > PEERS_MAX {
            let what = format!("{} peers are given, and at most {PEERS_MAX} can be shown", peers.len());
            return Err(Error::Address { address: peers[0].clone(), what });
        }
        let nodes = match peers.is_empty() {
            true => None,
            false => {
                let config = ClientConfig::new(peers, credentials);
                Some(Nodes::new(ClientConfig { connect: PATIENCE / 2, answer: PATIENCE, ..config })?)
            }
        };
        let track = |address: &str| NodeHistory { address: address.to_string(), ..NodeHistory::default() };
        let named = nodes.iter().flat_map(|nodes| nodes.addresses()).map(track).collect();
        let own = Mutex::new(track(""));
        let shared = Arc::new(Shared { has_ended: AtomicBool::new(false), own, peers: Mutex::new(named) });
        let seen = shared.clone();
        spawn(move || {
            seen.each_interval(|| {
                let status = agent.status();
                seen.own().saw(Ok(status));
            });
        })?;
        if let Some(nodes) = nodes {
            let seen = shared.clone();
            spawn(move || {
                seen.each_interval(|| {
                    // Each poll is a new command, so that a node that was unreachable in an earlier poll is polled
                    // again.
                    for (place, found) in nodes.begin(None).status().into_iter().enumerate() {
                        seen.peers()[place].saw(found.status);
                    }
                });
            })?;
        }
        Ok(NodePoller { shared })
    }

    /// Returns the recorded data as JSON. The function `masked` removes from each status what the viewer may not see.
    pub fn told(&self, agent: &Agent, masked: impl Fn(Status) -> Status) -> Vec<u8> {
        let mut own = self.shared.own().told(&masked);
        (own.is_own, own.status) = (true, Some(masked(agent.status())));
        let number = agent.number();
        let is_own =
            |track: &&NodeHistory| track.last.as_ref().is_some_and(|(_, status)| status.node == number);
        let peers = self.shared.peers();
        // The node may be named among its peers, with the address that other nodes use.
        own.address = peers.iter().find(is_own).map_or(String::new(), |track| track.address.clone());
        let others = peers.iter().filter(|track| !is_own(track)).map(|track| track.told(&masked));
        let nodes = std::iter::once(own).chain(others).collect();
        let told = StatusReport { interval_seconds: INTERVAL.as_secs_f64(), nodes };
        serde_json::to_vec(&told).expect("plain data")
    }
}

impl Drop for NodePoller {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
    }
}

fn spawn(look: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name("inshore-watch".into()).spawn(look);
    started.map(drop).map_err(|error| no_thread(&"the page", &error))
}

impl Shared {
    fn own(&self) -> MutexGuard<'_, NodeHistory> {
        self.own.lock().expect("no panic under this lock")
    }

    fn peers(&self) -> MutexGuard<'_, Vec<NodeHistory>> {
        self.peers.lock().expect("no panic under this lock")
    }

    fn each_interval(&self, look: impl Fn()) {
        let mut next = Instant::now();
        while !self.has_ended.load(Ordering::Relaxed) {
            if Instant::now() >= next {
                look();
                next = Instant::now().max(next + INTERVAL);
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl NodeHistory {
    fn saw(&mut self, found: Result<Status>) {
        let status = match found {
            Ok(status) => status,
            Err(error) => {
                self.error = Some(error.to_string());
                return;
            }
        };
        self.error = None;
        let now = Instant::now();
        // The counters of a restarted node begin at zero, so no rate is computed across a restart.
        if let Some((before, last)) = self.last.as_ref().filter(|(_, last)| last.seconds <= status.seconds) {
            let seconds = now.duration_since(*before).as_secs_f64().max(0.001);
            let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
            self.samples.push_back(Sample {
                until: now,
                read_bytes_per_second: rate(status.bytes_read, last.bytes_read),
                sent_bytes_per_second: rate(status.bytes_answered, last.bytes_answered),
            });
        }
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        self.last = Some((now, status));
    }

    fn told(&self, masked: impl Fn(Status) -> Status) -> NodeReport {
        let now = Instant::now();
        let sample = |sample: &Sample| {
            let ago = now.saturating_duration_since(sample.until).as_secs_f64();
            ((ago * 100.0).round() / 100.0, sample.read_bytes_per_second, sample.sent_bytes_per_second)
        };
        NodeReport {
            address: self.address.clone(),
            is_own: false,
            status: self.last.as_ref().map(|(_, status)| masked(status.clone())),
            error: self.error.clone(),
            samples: self.samples.iter().map(sample).collect(),
        }
    }
}
