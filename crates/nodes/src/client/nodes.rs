//! Connects a client to named nodes, and sends single requests to each node.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arrow_flight::{Action, flight_service_client::FlightServiceClient};
use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use inshore_store::Deadline;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use tonic::{
    Code, Request, Status as Refusal,
    metadata::AsciiMetadataValue,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::{
    ClientCredentials, Error, Result,
    credentials::is_loopback,
    error::chain,
    protocol::{
        Status, VERSION,
        wire::{MESSAGE_BYTES_MAX, pushback},
    },
};

/// The default port of an agent.
pub const PORT: u16 = 4710;

/// The maximum number of bytes of an answer that were sent and not yet read by the client. At this limit, flow control
/// makes the node wait.
pub(crate) const STREAM_BYTES: u32 = 2 << 20;

/// The maximum size, in bytes, of the answer to a request that is not a task. The longest answer is a catalog that
/// lists each piece of each file.
const ANSWERS_BYTES_MAX: usize = 256 << 20;

/// The nodes to connect to, and the parameters of the connections.
#[derive(Debug)]
pub struct ClientConfig {
    /// The address of each node: `HOST` or `HOST:PORT`.
    pub nodes: Vec<String>,
    /// The credentials of this client. The value is `None` for nodes on this machine that require none.
    pub credentials: Option<ClientCredentials>,
    /// The timeout for connecting, including TLS. The timeout is at most [`Self::silence`], and at most half
    /// of the time to the deadline, so that requests to other nodes fit in the other half.
    pub connect: Duration,
    /// The time without any message (keepalives are also messages) after which a node counts as lost. The client sends
    /// a keepalive request after half of this time.
    pub silence: Duration,
    /// The timeout for the answer to a small request. If a node has no room for a request, the client retries for
    /// this time, or until the deadline if there is one.
    pub answer: Duration,
    /// The deadline of the command; see [`Nodes::begin`].
    pub deadline: Option<Deadline>,
}

impl ClientConfig {
    /// Returns a configuration for these nodes: 5 s to connect, 10 s of silence, 30 s for a small answer, no
    /// deadline.
    pub fn new(nodes: Vec<String>, credentials: Option<ClientCredentials>) -> ClientConfig {
        ClientConfig {
            nodes,
            credentials,
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            deadline: None,
        }
    }
}

/// A group of nodes for one command. All clones of a value share one deadline, and send no more requests to a
/// lost node. [`Nodes::begin`] returns a value for the next command. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Nodes(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub runtime: Arc<Runtime>,
    pub nodes: Vec<Arc<Node>>,
    /// The timeout for the answer to a small request.
    answer: Duration,
    /// The deadline of the command.
    pub deadline: Option<Deadline>,
    /// The nodes that were lost in this command, with the reasons.
    lost: Mutex<BTreeMap<usize, String>>,
}

/// A node with its address and connection.
#[derive(Debug)]
pub(crate) struct Node {
    /// The address, `HOST:PORT`.
    pub address: String,
    endpoint: Endpoint,
    /// The connection, which opens with the first request.
    channel: Mutex<Channel>,
    token: Option<AsciiMetadataValue>,
    /// The time for which a request is retried if the node has no room and there is no deadline.
    answer: Duration,
    /// The number of bytes of messages received from the node.
    pub bytes_in: AtomicU64,
    /// The number of bytes of messages sent to the node.
    pub bytes_out: AtomicU64,
}

/// The status of a node.
#[derive(Debug)]
pub struct NodeStatus {
    /// The address of the node.
    pub address: String,
    /// The status, or the error if the node did not answer.
    pub status: Result<Status>,
}

impl Nodes {
    /// Prepares connections to nodes. No data is sent before the first request.
    ///
    /// # Errors
    /// - Returns [`Error::Address`] if the address of a node is invalid.
    /// - Returns [`Error::Credentials`] if a node is on another machine and there are no credentials.
    pub fn new(config: ClientConfig) -> Result<Nodes> {
        let bad = |address: &str, what: String| Error::Address { address: address.to_string(), what };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("inshore-client")
            .enable_all()
            .build()
            .map_err(|error| bad("this machine", error.to_string()))?;
        let _inside = runtime.enter();
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for named in &config.nodes {
            let (host, address) = parsed(named).ok_or_else(|| {
                bad(named, "this is not an address of a node: expected HOST or HOST:PORT".to_string())
            })?;
            if nodes.iter().any(|node| node.address == address) {
                return Err(bad(named, "it is given twice".to_string()));
            }
            nodes.push(Arc::new(Node::new(&host, address, &config)?));
        }
        if nodes.is_empty() {
            return Err(bad("--node", "no node is given".to_string()));
        }
        drop(_inside);
        let ClientConfig { answer, deadline, .. } = config;
        let (runtime, lost) = (Arc::new(runtime), Mutex::default());
        Ok(Nodes(Arc::new(Inner { runtime, nodes, answer, deadline, lost })))
    }

    /// Returns these nodes for a new command with the deadline `deadline`. The new command also sends requests to nodes
    /// that were lost in this command.
    pub fn begin(&self, deadline: Option<Deadline>) -> Nodes {
        let Inner { runtime, nodes, answer, .. } = &*self.0;
        let (runtime, nodes, lost) = (runtime.clone(), nodes.clone(), Mutex::default());
        Nodes(Arc::new(Inner { runtime, nodes, answer: *answer, deadline, lost }))
    }

    /// Returns the addresses of the nodes that were lost in this command, with the reasons.
    pub fn lost(&self) -> Vec<(String, String)> {
        let name = |(&node, why): (&usize, &String)| (self.0.nodes[node].address.clone(), why.clone());
        self.0.lost().iter().map(name).collect()
    }

    /// Returns the addresses of the nodes.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.0.nodes.iter().map(|node| node.address.as_str())
    }

    /// Closes the connection to the node with this index, after the requests that run. The next request opens another
    /// one, at the price of two round trips and a TLS handshake.
    pub fn disconnect(&self, node: usize) {
        let _inside = self.0.runtime.enter();
        self.0.nodes[node].disconnect();
    }

    /// Requests the status of all nodes in parallel.
    pub fn status(&self) -> Vec<NodeStatus> {
        let all = self.each(|_| ("status", Bytes::new()));
        let read = |(node, answered): (&Arc<Node>, Result<Vec<Bytes>>)| NodeStatus {
            address: node.address.clone(),
            status: answered.and_then(|answers| {
                let first = answers.first().ok_or_else(|| node.bad_answer("nothing"))?;
                let status: Status = node.read(first)?;
                if status.version != VERSION {
                    let what = format!("protocol version {}, expected {VERSION}", status.version);
                    return Err(node.bad_answer(&what));
                }
                Ok(status)
            }),
        };
        self.0.nodes.iter().zip(all).map(read).collect()
    }

    /// Returns the bytes of messages received from all nodes so far.
    pub fn bytes_in(&self) -> u64 {
        self.0.nodes.iter().map(|node| node.bytes_in.load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes of messages sent to all nodes so far.
    pub fn bytes_out(&self) -> u64 {
        self.0.nodes.iter().map(|node| node.bytes_out.load(Ordering::Relaxed)).sum()
    }

    /// Sends one request to each node. All requests are sent in parallel.
    pub(crate) fn each(&self, question: impl Fn(usize) -> (&'static str, Bytes)) -> Vec<Result<Vec<Bytes>>> {
        let asked = (0..self.0.nodes.len()).map(|number| {
            let (kind, body) = question(number);
            self.0.ask(number, kind, body)
        });
        self.0.runtime.block_on(join_all(asked))
    }

    /// Sends the given requests to nodes in parallel.
    pub(crate) fn ask_some(&self, questions: Vec<(usize, &'static str, Bytes)>) -> Vec<Result<Vec<Bytes>>> {
        let asked = questions.into_iter().map(|(node, kind, body)| self.0.ask(node, kind, body));
        self.0.runtime.block_on(join_all(asked))
    }
}

impl Inner {
    /// Sends a small request to a node unless the node was lost before.
    pub async fn ask(&self, number: usize, kind: &'static str, body: Bytes) -> Result<Vec<Bytes>> {
        let node = &self.nodes[number];
        if let Some(why) = self.lost().get(&number) {
            return Err(node.lost(why.clone()));
        }
        let left = self.deadline.map(|deadline| deadline.left());
        let asked = node.ask(kind, body, self.answer, left);
        let answered = match left {
            None => asked.await,
            Some(left) => {
                let late = |_| Err(node.lost("no answer before the deadline".to_string()));
                tokio::time::timeout(left, asked).await.unwrap_or_else(late)
            }
        };
        let Err(Error::Lost { what, .. }) = answered else { return answered };
        self.check(|| format!("node {} has not answered", node.address))?;
        self.lose(number, &what);
        Err(node.lost(what))
    }

    /// Records that a node is lost. The command sends no more requests to the node.
    pub fn lose(&self, number: usize, why: &str) {
        self.lost().entry(number).or_insert_with(|| why.to_string());
    }

    /// Returns the lost nodes with the reasons.
    pub fn lost(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.lost.lock().expect("no panic under this lock")
    }

    /// Returns an error if the deadline has passed. `undone` describes the unfinished work for the error.
    pub fn check(&self, undone: impl FnOnce() -> String) -> Result<()> {
        match self.deadline.filter(|deadline| deadline.is_over()) {
            None => Ok(()),
            Some(deadline) => {
                Err(Error::Deadline { seconds: deadline.given().as_secs_f64(), what: undone() })
            }
        }
    }
}

impl Node {
    /// Prepares the connection to a node. The caller must be inside a Tokio runtime.
    pub fn new(host: &str, address: String, config: &ClientConfig) -> Result<Node> {
        let bad = |what: String| Error::Address { address: address.clone(), what };
        let scheme = if config.credentials.is_some() { "https" } else { "http" };
        if config.credentials.is_none() && !is_loopback(host) {
            return Err(Error::Credentials {
                what: format!(
                    "{address} is another machine: pass the credentials of this client with --credentials FILE (`inshore node credentials` creates them)"
                ),
            });
        }
        let half = config.deadline.map_or(Duration::MAX, |deadline| deadline.given() / 2);
        let connect = config.connect.min(config.silence).min(half);
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| bad(chain(&error)))?
            .connect_timeout(connect)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_BYTES)
            .initial_connection_window_size(16 * STREAM_BYTES)
            .http2_keep_alive_interval(config.silence / 2)
            .keep_alive_timeout(config.silence / 2)
            .keep_alive_while_idle(true);
        let mut token = None;
        if let Some(ClientCredentials { authority, token: own, .. }) = &config.credentials {
            let name = host.trim_start_matches('[').trim_end_matches(']').to_string();
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(authority))
                .domain_name(name)
                // This timeout covers the TLS handshake: a suspended node accepts the connection, but sends no data.
                .timeout(connect);
            endpoint =
                endpoint.tls_config(tls).map_err(|error| Error::Credentials { what: chain(&error) })?;
            let value = format!("Bearer {own}")
                .parse()
                .map_err(|_| Error::Credentials { what: "the token has invalid characters".to_string() })?;
            token = Some(value);
        }
        let channel = Mutex::new(endpoint.connect_lazy());
        let (bytes_in, bytes_out) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Node { address, endpoint, channel, token, answer: config.answer, bytes_in, bytes_out })
    }

    pub fn client(&self) -> FlightServiceClient<Channel> {
        let channel = self.channel.lock().expect("no panic under this lock").clone();
        FlightServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Lets go of the connection, which closes after its running requests. The caller must be inside a Tokio runtime.
    fn disconnect(&self) {
        *self.channel.lock().expect("no panic under this lock") = self.endpoint.connect_lazy();
    }

    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// Sends a request. If the node has no room and names a time to retry, the client retries until `patience` is over.
    /// If `patience` is `None`, the limit is the timeout for small answers.
    pub async fn send<T, F: Future<Output = std::result::Result<T, Refusal>>>(
        &self,
        patience: Option<Duration>,
        mut send: impl FnMut() -> F,
    ) -> std::result::Result<T, Refusal> {
        let (began, patience) = (Instant::now(), patience.unwrap_or(self.answer));
        loop {
            let sent = send().await;
            let wait = sent.as_ref().err().and_then(pushback);
            // The retry and its answer have to fit the remaining time. Otherwise the last answer is returned, which
            // contains the reason why the node has no room.
            match wait.filter(|wait| began.elapsed() + 2 * *wait < patience) {
                None => return sent,
                Some(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    /// Sends a request whose answer may take `patience`. While the node has no room for the request, the
    /// client retries for at most `room`.
    pub async fn ask(
        &self,
        kind: &str,
        body: Bytes,
        patience: Duration,
        room: Option<Duration>,
    ) -> Result<Vec<Bytes>> {
        self.bytes_out.fetch_add(body.len() as u64, Ordering::Relaxed);
        let action = Action { r#type: kind.to_string(), body };
        let asked = self.send(room, || {
            let request = self.request(action.clone());
            let answer = async move {
                let mut stream = self.client().do_action(request).await?.into_inner();
                let (mut bodies, mut bytes) = (Vec::new(), 0);
                while let Some(answer) = stream.next().await {
                    let body = answer?.body;
                    self.bytes_in.fetch_add(body.len() as u64, Ordering::Relaxed);
                    bytes += body.len() + size_of::<Bytes>();
                    if bytes > ANSWERS_BYTES_MAX {
                        return Ok(None);
                    }
                    bodies.push(body);
                }
                Ok(Some(bodies))
            };
            let silent =
                move |_| Err(Refusal::unavailable(format!("no answer for {} s", patience.as_secs_f64())));
            async move { tokio::time::timeout(patience, answer).await.unwrap_or_else(silent) }
        });
        match asked.await {
            Ok(Some(bodies)) => Ok(bodies),
            Ok(None) => Err(self.bad_answer(&format!("the answer has more than {ANSWERS_BYTES_MAX} bytes"))),
            Err(refusal) => Err(self.error(&refusal)),
        }
    }

    pub fn lost(&self, what: String) -> Error {
        Error::Lost { node: self.address.clone(), what }
    }

    /// Parses the answer to a request for the node's certificate. A node without credentials has none.
    pub fn certificate(&self, answer: &[Bytes]) -> Result<Option<String>> {
        let text = String::from_utf8(answer.concat());
        let text = text.map_err(|_| self.bad_answer("an invalid certificate"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    pub fn bad_answer(&self, what: &str) -> Error {
        Error::BadAnswer { node: self.address.clone(), what: what.to_string() }
    }

    pub fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|error| self.bad_answer(&format!("invalid JSON: {error}")))
    }

    /// Parses concatenated messages.
    pub fn read_all<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<Vec<T>> {
        let messages = serde_json::Deserializer::from_slice(bytes).into_iter();
        let read = messages.collect::<std::result::Result<Vec<T>, _>>();
        read.map_err(|error| self.bad_answer(&format!("invalid JSON: {error}")))
    }

    /// Converts an error status to an error: either the node is lost, or the node has refused the request.
    pub fn error(&self, refusal: &tonic::Status) -> Error {
        let (node, mut what) = (self.address.clone(), refusal.message().to_string());
        if let Some(source) = std::error::Error::source(refusal) {
            let more = chain(source);
            if !more.is_empty() && !what.contains(&more) && !more.contains(&what) {
                what = format!("{what}: {more}");
            } else if more.contains(&what) {
                what = more;
            }
        }
        if what.is_empty() {
            what = format!("{:?}", refusal.code());
        }
        match refusal.code() {
            Code::Aborted => Error::SetAside { node },
            Code::Unavailable | Code::Unknown | Code::Cancelled => Error::Lost { node, what },
            // The node did not send this status: the connection broke or the peer uses another protocol.
            Code::Internal if std::error::Error::source(refusal).is_some() => Error::Lost { node, what },
            _ => Error::Refused { node, what },
        }
    }
}

/// Returns the host and the address of a named node.
pub(crate) fn parsed(named: &str) -> Option<(String, String)> {
    let (host, port) = match named.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()?),
        _ if named.parse::<std::net::Ipv6Addr>().is_ok() => {
            return Some((format!("[{named}]"), format!("[{named}]:{PORT}")));
        }
        _ => (named, PORT),
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
    let is_good = !host.is_empty() && host.chars().all(is_host);
    is_good.then(|| (host.to_string(), format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_by_host_and_port() {
        let address = |named: &str| parsed(named).map(|(_, address)| address);
        for (named, expected) in [
            ("a", "a:4710"),
            ("a.lan:99", "a.lan:99"),
            ("10.0.0.1", "10.0.0.1:4710"),
            ("::1", "[::1]:4710"),
            ("[::1]:99", "[::1]:99"),
            ("[fe80::2]", "[fe80::2]:4710"),
        ] {
            assert_eq!(address(named).as_deref(), Some(expected), "{named}");
        }
        for named in ["", ":99", "a:b", "a:99999", "a b", "http://a", "a/b", "a@b"] {
            assert_eq!(address(named), None, "{named}");
        }
    }

    #[test]
    fn another_machine_is_not_spoken_with_in_the_clear() {
        let error = Nodes::new(ClientConfig::new(vec!["10.0.0.1".to_string()], None)).unwrap_err();
        assert!(error.to_string().contains("--credentials"), "{error}");
    }
}
