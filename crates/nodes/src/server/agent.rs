//! The server that runs on a node and serves its store to clients and other nodes.
//!
//! ```text
//!   connection (async) ─► authorization ─► Queue ─► worker thread: TaskHandler in its own job ─► 2 batches queued ─► connection
//! ```
//!
//! A task stops when its connection breaks: the job's cancellation flag is set as soon as the answer stream is dropped.
//! The same flag ends a task at its deadline.
//!
//! The submodules:
//!
//! - `admission`: checks the headers of requests before their bodies are read.
//! - `requests`: accounts for the memory of requests and answers.
//! - `handed`: queues the shards that clients hand to running tasks.
//! - `loads`, `receiving`: limit and receive the files that clients load.
//! - `visits`: takes part in traversals.
//! - `latest`: queries drives that may hang.
//!
//! Memory: the budgets of the running tasks, plus for each task the messages in flight (at most two batches and the
//! connection's buffers, about 1 MiB).

mod admission;
mod latest;
mod loads;
mod receiving;
mod requests;
mod shard_queue;
mod visits;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket, flight_service_server::FlightService,
};
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use inshore_kernel::{Failure, Reply, RequiredRight, Sources, Task, TaskHandler, TaskHandlers};
use inshore_store::{
    Budget, Cancel, CheckedFile, Dataset, DeviceUsage, FileReader, Job, Store, format_bytes,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tonic::{
    Request, Response, Status as Refusal, Streaming,
    codegen::http::HeaderMap,
    transport::{Identity, Server, ServerTlsConfig, server::TcpIncoming},
};
use tracing::{info, warn};

use self::{
    admission::Admission,
    latest::Latest,
    loads::RunningLoads,
    requests::{AccountedMemory, LogRateLimit, Requests, short},
    shard_queue::{ClientChannel, PulledShards, ShardQueue},
    visits::{TraversalHandler, Traversals},
};
use super::{
    connection::{ConnectionLimiter, ConnectionLimits},
    heartbeat::{self, Heartbeat},
    pieces::open_pieces,
    queue::{Permit, Queue, QueueLoad},
    tombstones,
};
use crate::{
    Error, NodeCredentials, Result, Right,
    error::{chain, no_thread},
    protocol::{
        CredentialExpiry, DatasetKey, DatasetReplica, Generation, MAP, MAP_BYTES_MAX, MAPS_MAX, NodeDevice,
        READ_BESIDE_BYTES, READS_BESIDE, REMOVED, RemoveRequest, RunningTask, SPREAD, ShardGrant, Status,
        TRAVERSE, TaskDone, TaskKey, TaskRequest, VERSION,
        compression::CompressionSelector,
        wire::{Encoder, batch_bytes, json, message_bytes},
    },
};

/// The configuration of an agent. All limits have safe defaults.
#[derive(Debug)]
pub struct AgentConfig {
    /// The name of the node in messages.
    pub name: String,
    /// The memory budget of all tasks together, in bytes.
    pub memory_bytes: u64,
    /// The memory budget of a task whose request names none, in bytes.
    pub task_memory_bytes: u64,
    /// The number of threads of each task.
    pub threads: usize,
    /// The number of tasks that run at once. More slots make tasks share drives and cores; fewer slots make tasks wait
    /// longer.
    pub slots: usize,
    /// The number of tasks that may wait in the queue; any further task is refused.
    pub queue: usize,
    /// The longest run time of a task. A client's request can only shorten this limit.
    pub deadline: Duration,
    /// The number of connections at once, from all clients together.
    pub connections: usize,
    /// The number of connections at once from one address.
    pub connections_per_address: usize,
    /// The time from accepting a connection, TLS handshake included, to its first request with a valid token;
    /// afterwards the connection is closed.
    pub first_request: Duration,
    /// The time in which the body of a request has to arrive. Loads are exempt: the body of a load lasts as long as
    /// data comes.
    pub request: Duration,
    /// The time that running tasks have to end when the agent is asked to stop.
    pub drain: Duration,
    /// The node's credentials. Without credentials the agent serves only this machine, unencrypted, and gives every
    /// local user all rights.
    pub credentials: Option<NodeCredentials>,
}

impl AgentConfig {
    /// Creates the configuration of a node with this name, memory and number of threads. The defaults are two tasks at
    /// once with two fifths of the memory each, a queue of 64 tasks, a deadline of one hour, 256 connections of which
    /// 64 from one address, ten seconds to the first request, and half a minute each for a request's body and for
    /// draining.
    pub fn new(name: impl Into<String>, memory_bytes: u64, threads: usize) -> AgentConfig {
        AgentConfig {
            name: name.into(),
            memory_bytes,
            task_memory_bytes: memory_bytes * 2 / 5,
            threads,
            slots: 2,
            queue: 64,
            deadline: Duration::from_secs(3600),
            connections: 256,
            connections_per_address: 64,
            first_request: Duration::from_secs(10),
            request: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            credentials: None,
        }
    }
}

/// The server on a node. Clones share one server.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: AgentConfig,
    store: Store,
    works: TaskHandlers,
    queue: Queue,
    requests: Requests,
    /// Limits the number of catalog and map actions that run at once, since each may read much from the drives.
    looks: Arc<Semaphore>,
    telling: LogRateLimit,
    began: Instant,
    draining: AtomicBool,
    tasks: Mutex<BTreeMap<u64, Running>>,
    numbers: AtomicU64,
    counts: AgentCounters,
    traversals: Traversals,
    loads: RunningLoads,
    door: Arc<ConnectionLimiter>,
    /// The usage of the drives. A hanging drive may delay this value.
    drives: Latest<Vec<DeviceUsage>>,
}

/// The number of catalogs and maps that are read at once.
const LOOKS: usize = 8;
/// The longest wait for the usage of the drives; afterwards the status shows the previous values.
const DRIVE_PATIENCE: Duration = Duration::from_secs(1);

/// Counters since the start of the agent.
#[derive(Debug, Default)]
struct AgentCounters {
    done: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    bytes_read: AtomicU64,
    bytes_answered: AtomicU64,
    bytes_loaded: AtomicU64,
}

#[derive(Debug)]
struct Running {
    client: String,
    who: String,
    kind: String,
    datasets: Vec<String>,
    bytes_asked: u64,
    job: Job,
    began: Instant,
    handed: Arc<ShardQueue>,
    key: Option<u64>,
    /// The compression state that all reads beside this task share, since reads of about a second each would have to
    /// learn the level anew. Each read beside the task holds a clone, so the reference count limits these reads.
    beside: Arc<Mutex<CompressionSelector>>,
}

impl Running {
    fn is_of(&self, client: &str, key: u64) -> bool {
        self.client == client && self.key == Some(key)
    }
}

/// A running agent. The agent serves until this handle is dropped or stopped.
#[derive(Debug)]
pub struct RunningAgent {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    agent: Agent,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

/// The authenticated sender of a request.
#[derive(Clone)]
struct Caller {
    name: String,
    rights: Vec<Right>,
    /// The id of the token, if the request had one: two tokens may have the same subject.
    token: Option<String>,
}

/// One line of the audit log about a put, a removal or a task.
pub(crate) struct Audit<'a> {
    /// The logged action: "put", "rm", or the kind of a task.
    pub action: &'a str,
    pub who: &'a str,
    pub dataset: &'a str,
    /// The number of bytes that were loaded, removed or read.
    pub bytes: u64,
    pub seconds: f64,
    /// The reason of the failure, if the action failed.
    pub failed: Option<&'a str>,
}

impl Caller {
    /// Returns the caller's name for the log: the token's subject and the token's id.
    fn who(&self) -> String {
        match &self.token {
            Some(id) => format!("{} (token {id})", self.name),
            None => self.name.clone(),
        }
    }

    /// Refuses a caller that has none of these rights.
    fn check_rights(&self, any_of: &[Right]) -> std::result::Result<(), Refusal> {
        if any_of.iter().any(|right| self.rights.contains(right)) {
            return Ok(());
        }
        let names = |rights: &[Right], between| {
            rights.iter().map(|right| right.name()).collect::<Vec<_>>().join(between)
        };
        let (wanted, own) = (names(any_of, " or "), names(&self.rights, ", "));
        let what = format!("{} has no right to {wanted}: the token has {own}", self.name);
        Err(Refusal::permission_denied(what))
    }
}

impl Agent {
    /// Creates an agent that serves `store` and runs tasks of the kinds in `works`.
    pub fn new(store: Store, works: TaskHandlers, config: AgentConfig) -> Agent {
        let queue = Queue::new(config.memory_bytes, config.slots.max(1), config.queue);
        let door = ConnectionLimiter::new(ConnectionLimits {
            connections: config.connections.max(1),
            per_address: config.connections_per_address.max(1),
            first_request: config.first_request,
        });
        Agent(Arc::new(Inner {
            queue,
            requests: Requests::new(config.memory_bytes),
            looks: Arc::new(Semaphore::new(LOOKS)),
            telling: LogRateLimit::default(),
            door,
            drives: Latest::default(),
            store,
            works,
            config,
            began: Instant::now(),
            draining: AtomicBool::new(false),
            tasks: Mutex::default(),
            numbers: AtomicU64::new(0),
            counts: AgentCounters::default(),
            traversals: Traversals::default(),
            loads: RunningLoads::default(),
        }))
    }

    /// Returns the number of the node, which is derived from the store's UUID on its devices.
    pub fn number(&self) -> u64 {
        let uuid = self.0.store.uuid();
        u64::from_le_bytes(uuid[..8].try_into().expect("8 bytes"))
    }

    /// Starts serving on `address`, in background threads. Port 0 selects any free port.
    ///
    /// # Errors
    /// [`Error::Credentials`] if `address` is reachable from other machines and the agent has no credentials;
    /// [`Error::Address`] if binding the address fails.
    pub fn serve(self, address: SocketAddr) -> Result<RunningAgent> {
        let config = &self.0.config;
        if config.credentials.is_none() && !address.ip().is_loopback() {
            return Err(Error::Credentials {
                what: format!(
                    "{address} can be reached by other machines: to serve them a node needs credentials (`inshore node credentials` creates them)"
                ),
            });
        }
        let bad = move |what: String| Error::Address { address: address.to_string(), what };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("inshore-node")
            .enable_all()
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let incoming = {
            let _inside = runtime.enter();
            TcpIncoming::bind(address).map_err(|error| bad(error.to_string()))?.with_nodelay(Some(true))
        };
        let bound = incoming.local_addr().map_err(|error| bad(error.to_string()))?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .concurrency_limit_per_connection(64)
            .max_concurrent_streams(64);
        if let Some(credentials) = &config.credentials {
            let renewal = credentials.renewal()?;
            runtime.spawn(warn_of_expiry(credentials.expires()?, config.name.clone(), renewal));
            let NodeCredentials { certificate, key, .. } = credentials;
            let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
            server = server.tls_config(tls).map_err(|error| Error::Credentials { what: chain(&error) })?;
        }
        let service = Admission(self.clone());
        let (stop, mut stopped) = watch::channel(false);
        let (agent, drain) = (self.clone(), config.drain);
        let connections = self.0.door.clone();
        let incoming = incoming.filter_map(move |connection| {
            // A connection that has already been closed is skipped.
            let accepted = connection.map(|stream| connections.accept(stream).ok()).transpose();
            std::future::ready(accepted)
        });
        info!(node = self.0.config.name, address = %bound, "serves");
        let started = thread::Builder::new().name("inshore-node".into()).spawn(move || {
            let served = runtime.block_on(async {
                let mut asked = stopped.clone();
                let ended = server.add_service(service).serve_with_incoming_shutdown(incoming, async move {
                    let _ = asked.wait_for(|stop| *stop).await;
                    agent.drained(drain).await;
                });
                tokio::select! {
                    ended = ended => ended.map_err(|error| bad(chain(&error))),
                    // Connections that stay open, but idle, do not delay the end of the server.
                    () = async {
                        let _ = stopped.wait_for(|stop| *stop).await;
                        tokio::time::sleep(drain + Duration::from_secs(2)).await;
                    } => Ok(()),
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            served
        });
        let thread = Some(started.map_err(|error| no_thread(&address, &error))?);
        Ok(RunningAgent { address: bound, stop, agent: self, thread })
    }

    /// Returns the node's status: tasks, queue, counters, drives and limits.
    pub fn status(&self) -> Status {
        let inner = &self.0;
        let config = &inner.config;
        let fullness = inner.queue.fullness();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tasks = inner.tasks();
        let running = tasks.iter().map(|(&number, task)| RunningTask {
            number,
            client: task.client.clone(),
            kind: task.kind.clone(),
            memory_bytes: task.job.budget().memory_bytes(),
            seconds: task.began.elapsed().as_secs_f64(),
            bytes_read: task.job.counters().bytes_read(),
            bytes_asked: task.bytes_asked,
            datasets: task.datasets.clone(),
        });
        let running: Vec<RunningTask> = running.collect();
        // Read under the same lock under which a finished task leaves the list of running tasks: no byte counts twice.
        let bytes_read =
            count(&inner.counts.bytes_read) + running.iter().map(|task| task.bytes_read).sum::<u64>();
        drop(tasks);
        let store = inner.store.clone();
        let devices = inner.drives.get(DRIVE_PATIENCE, move || store.usage().ok());
        let drives = devices.iter().map(|device| NodeDevice {
            number: device.number.into(),
            path: device.path.display().to_string(),
            state: device.state.to_string(),
            free_bytes: device.free_bytes,
            capacity_bytes: device.capacity_bytes,
        });
        let (requests_bytes, unfinished_bytes) = inner.requests.bytes();
        Status {
            version: VERSION,
            name: config.name.clone(),
            node: self.number(),
            program: env!("CARGO_PKG_VERSION").to_string(),
            seconds: inner.began.elapsed().as_secs(),
            draining: inner.draining.load(Ordering::Relaxed),
            kinds: inner.works.kinds().chain([TRAVERSE]).map(str::to_string).collect(),
            memory_bytes: config.memory_bytes,
            memory_used_bytes: fullness.used_bytes,
            slots: config.slots as u64,
            queue: config.queue as u64,
            running,
            waiting: fullness.waiting as u64,
            done: count(&inner.counts.done),
            failed: count(&inner.counts.failed),
            refused: count(&inner.counts.refused),
            bytes_read,
            bytes_answered: count(&inner.counts.bytes_answered),
            bytes_loaded: count(&inner.counts.bytes_loaded),
            load: load_average(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            celsius: warmest(),
            free_bytes: devices.iter().map(|device| device.free_bytes).sum(),
            capacity_bytes: devices.iter().map(|device| device.capacity_bytes).sum(),
            drives: drives.collect(),
            connections: inner.door.counts(),
            resident_bytes: resident_bytes(),
            requests_bytes,
            unfinished_bytes,
            expires: config.credentials.as_ref().and_then(|credentials| credentials.expires().ok()),
        }
    }

    /// Returns the number of bytes that a running task has read and written; 0 if the task has ended.
    pub(crate) fn task_progress(&self, number: u64) -> u64 {
        let tasks = self.0.tasks();
        tasks.get(&number).map_or(0, |running| {
            let counters = running.job.counters();
            counters.bytes_read() + counters.bytes_written()
        })
    }

    /// Hands shards out to a client's running task. Returns false if the client has no such task.
    fn hand_out(&self, client: &str, handed: ShardGrant) -> bool {
        let mut tasks = self.0.tasks();
        let TaskKey { task, key } = handed.to;
        let Some(running) = tasks.get_mut(&task).filter(|running| running.is_of(client, key)) else {
            return false;
        };
        for shard in &handed.shards {
            running.bytes_asked = running.bytes_asked.saturating_add(shard.to.saturating_sub(shard.from));
            let is_known = running.datasets.contains(&shard.dataset);
            if !is_known && running.datasets.len() < TASK_DATASETS_MAX {
                running.datasets.push(shard.dataset.clone());
            }
        }
        running.handed.hand_out(handed)
    }

    /// Reserves a read beside a client's running task, for as long as the result is held. Returns `None` if the task
    /// has ended or has enough such reads.
    fn beside(&self, client: &str, asked: TaskKey) -> Option<Arc<Mutex<CompressionSelector>>> {
        let tasks = self.0.tasks();
        let running = tasks.get(&asked.task).filter(|running| running.is_of(client, asked.key))?;
        (Arc::strong_count(&running.beside) <= READS_BESIDE).then(|| running.beside.clone())
    }

    /// Returns the agent's configuration.
    pub(crate) fn config(&self) -> &AgentConfig {
        &self.0.config
    }

    /// Refuses new tasks, waits until the running tasks have ended, and cancels the rest after `patience`.
    async fn drained(&self, patience: Duration) {
        self.0.draining.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let is_idle = || self.0.queue.fullness() == QueueLoad { used_bytes: 0, waiting: 0 };
        while !is_idle() && began.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for task in self.0.tasks().values() {
            warn!(kind = task.kind, client = task.client, "stopped: the node ends");
            task.job.cancel().cancel();
        }
        self.0.loads.stop().cancel();
    }

    /// Authenticates the sender of a request by the bearer token in its headers.
    fn caller(&self, headers: &HeaderMap) -> std::result::Result<Caller, Refusal> {
        Ok(match &self.0.config.credentials {
            None => {
                // All rights include the right to run commands, but no command exists unless the operator named some.
                Caller { name: "local".to_string(), rights: Right::ALL.to_vec(), token: None }
            }
            Some(credentials) => {
                let header = headers.get("authorization").and_then(|value| value.to_str().ok());
                let token = header.and_then(|value| value.strip_prefix("Bearer "));
                let token =
                    token.ok_or_else(|| Refusal::unauthenticated("credentials: the request has no token"))?;
                let claims = credentials.check(token);
                let claims = claims.map_err(|error| Refusal::unauthenticated(error.to_string()))?;
                Caller { name: claims.subject, rights: claims.rights, token: Some(claims.id) }
            }
        })
    }

    /// Returns the caller of a request, or refuses a caller without this right.
    fn allowed<T>(&self, request: &Request<T>, right: Right) -> std::result::Result<Caller, Refusal> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller
            .ok_or_else(|| Refusal::unauthenticated("credentials: the connection was not authenticated"))?;
        caller.check_rights(&[right]).map_err(|refusal| self.refuse(refusal))?;
        Ok(caller)
    }

    /// Runs a task to its end in a thread that may block, and returns the task's last messages. Sending these here
    /// would keep the thread if the client does not read.
    fn work(
        &self,
        work: &dyn TaskHandler,
        begun: AdmittedTask,
        out: &mpsc::Sender<AnswerResult>,
    ) -> Vec<AnswerResult> {
        let AdmittedTask { request, job, queued, place, deadline_is_over, number, handed, compression } =
            begun;
        let began = Instant::now();
        let cpu = job.report().cpu_seconds;
        let client = ClientChannel {
            agent: self.clone(),
            job: job.clone(),
            out: out.clone(),
            runtime: tokio::runtime::Handle::current(),
            number,
            is_set_aside: Arc::default(),
        };
        let mut reply = Sender {
            encoder: Encoder::new(),
            compression: RegisteredSender::begin(compression),
            client: client.clone(),
            every: request.alive_ms.map(Duration::from_millis),
            told: None,
        };
        // A panic in a work ends only that task.
        let worked = panic::catch_unwind(AssertUnwindSafe(|| {
            let (job, arguments) = (job.clone(), request.arguments);
            let Some(pulls) = request.pulls else {
                let sources = Sources::of(open_pieces(&job, request.pieces)?);
                return work.work(Task { job, arguments, sources }, &mut reply);
            };
            let next = PulledShards::new(handed.clone(), client.clone());
            let count_max = usize::try_from(pulls.shards).unwrap_or(usize::MAX);
            let sources = Sources::pulled(next, pulls.bytes, count_max);
            let of_task = handed.clone();
            let sources = sources.left_by(move || of_task.leave());
            let done = work.work(Task { job, arguments, sources }, &mut reply)?;
            PulledShards::new(handed.clone(), client.clone()).pass_over()?;
            Ok(done)
        }));
        let worked =
            worked.unwrap_or_else(|_| Err("the task panicked: this is a bug in the node's program".into()));
        let report = job.report();
        let counts = &self.0.counts;
        let task = {
            let mut tasks = self.0.tasks();
            counts.bytes_read.fetch_add(report.bytes_read, Ordering::Relaxed);
            tasks.remove(&number).expect("it was there")
        };
        let seconds = began.elapsed().as_secs_f64();
        let failed = worked.as_ref().err().map(ToString::to_string);
        self.audit(&Audit {
            action: &task.kind,
            who: &task.who,
            dataset: &task.datasets.join(", "),
            bytes: report.bytes_read,
            seconds,
            failed: failed.as_deref(),
        });
        let answer = match worked {
            Ok(summary) => {
                let done = TaskDone {
                    summary,
                    bytes_read: report.bytes_read,
                    bytes_written: report.bytes_written,
                    seconds,
                    queued_seconds: queued.as_secs_f64(),
                    cpu_seconds: report.cpu_seconds - cpu,
                    shards: handed.taken(),
                };
                counts.done.fetch_add(1, Ordering::Relaxed);
                reply.encoder.done(&done).map_err(|error| Refusal::internal(error.to_string()))
            }
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                Err(if client.is_set_aside.load(Ordering::Relaxed) {
                    Refusal::aborted("the task was stopped for a slow client")
                } else if deadline_is_over.load(Ordering::Relaxed) {
                    Refusal::deadline_exceeded("the task was stopped at its deadline")
                } else if job.cancel().is_cancelled() {
                    Refusal::unavailable("the task was stopped: the node is shutting down")
                } else {
                    Refusal::failed_precondition(error.to_string())
                })
            }
        };
        // The memory is released before the client learns that the task has ended.
        drop((task, job, place));
        match answer {
            Ok(messages) => messages.into_iter().map(Ok).collect(),
            Err(refusal) => vec![Err(refusal)],
        }
    }

    fn catalog(&self) -> Result<Vec<DatasetReplica>> {
        let mut all = Vec::new();
        for dataset in self.0.store.datasets()? {
            if dataset.kind() == REMOVED {
                let mark = tombstones::read_mark(&self.0.store, &dataset)?;
                all.push(DatasetReplica {
                    name: mark.name.clone(),
                    id: 0,
                    kind: REMOVED.to_string(),
                    files: Vec::new(),
                    generation: Some(mark.generation),
                    mark: Some(mark),
                });
                continue;
            }
            let is_spread = dataset.kind() == SPREAD;
            let generation = Generation::of_attributes(dataset.attributes()).filter(|_| is_spread);
            let named = dataset.file_names().filter(|_| !is_spread);
            let files = named.map(|name| (name.to_string(), dataset.file(name).map_or(0, |file| file.len())));
            all.push(DatasetReplica {
                name: dataset.name().to_string(),
                id: dataset.id(),
                kind: dataset.kind().to_string(),
                files: files.collect(),
                generation,
                mark: None,
            });
        }
        Ok(all)
    }

    /// Returns the maps of spread datasets as [`MapAnswer`]s, concatenated.
    fn maps(&self, asked: &[DatasetKey]) -> Result<bytes::Bytes> {
        let job = self.0.store.job(Budget::new(16 << 20, 1), Cancel::default())?;
        let datasets = self.0.store.datasets()?;
        let mut answers = Vec::new();
        for key in asked.iter().take(MAPS_MAX) {
            let file = self.map_file(&datasets, key);
            let bytes = file.as_ref().map_or(0, |file| file.len() as usize);
            if !answers.is_empty() && answers.len() + bytes > MAP_BYTES_MAX {
                break;
            }
            let read = file.and_then(|file| read_map(&job, &file));
            let map = match &read {
                Ok(bytes) => serde_json::from_slice::<&RawValue>(bytes).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            serde_json::to_writer(&mut answers, &map).expect("memory takes all");
        }
        Ok(answers.into())
    }

    /// Returns the map file of one dataset. `datasets` has to be sorted by name.
    fn map_file(&self, datasets: &[Dataset], asked: &DatasetKey) -> Result<CheckedFile> {
        let not_found = || inshore_store::Error::NotFound {
            name: asked.name.clone(),
            store: self.0.store.path().to_path_buf(),
        };
        let place = datasets.binary_search_by(|dataset| dataset.name().cmp(&asked.name));
        let dataset = place.ok().map(|place| &datasets[place]).filter(|dataset| dataset.id() == asked.id);
        let file = dataset.and_then(|dataset| dataset.file(MAP)).ok_or_else(not_found)?;
        if file.len() > MAP_BYTES_MAX as u64 {
            let what = format!("the map of pieces has {}, more than the limit", format_bytes(file.len()));
            return Err(Error::BadAnswer { node: self.0.config.name.clone(), what });
        }
        Ok(file)
    }

    /// Removes a dataset for a client, or writes or ends a removal mark.
    fn remove(&self, who: &str, asked: &RemoveRequest) -> Result<()> {
        let began = Instant::now();
        let removed = tombstones::remove(&self.0.store, asked);
        let failed = removed.as_ref().err().map(ToString::to_string);
        self.audit(&Audit {
            action: "rm",
            who,
            dataset: &asked.name,
            bytes: removed.as_ref().copied().unwrap_or(0),
            seconds: began.elapsed().as_secs_f64(),
            failed: failed.as_deref(),
        });
        removed.map(drop)?;
        Ok(())
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Logs a put, a removal or a task as one line, successful or not.
    pub(crate) fn audit(&self, audit: &Audit<'_>) {
        let Audit { action, who, dataset, bytes, seconds, failed } = *audit;
        let dataset = short(dataset);
        let dataset = &*dataset;
        match failed {
            None => info!(action, who, dataset, bytes, seconds, result = "done", "audit"),
            Some(why) => warn!(action, who, dataset, bytes, seconds, result = &*short(why), "audit"),
        }
    }

    /// Returns the reason if the node is not ready for requests.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Some("this node is shutting down and accepts no more tasks");
        }
        let store = self.0.store.clone();
        let devices = self.0.drives.get(DRIVE_PATIENCE, move || store.usage().ok());
        devices.is_empty().then_some("the drives of the store do not respond")
    }

    pub(crate) fn count_loaded(&self, bytes: u64) {
        self.0.counts.bytes_loaded.fetch_add(bytes, Ordering::Relaxed);
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.0.counts.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.0.telling.next(Instant::now()) {
            let reason = &*short(refusal.message());
            match left_out {
                0 => warn!(code = ?refusal.code(), reason, "refused"),
                _ => warn!(code = ?refusal.code(), reason, others = left_out, "refused, as others before"),
            }
        }
        refusal
    }
}

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<u64, Running>> {
        self.tasks.lock().expect("no panic under this lock")
    }
}

impl RunningAgent {
    /// Returns the address on which the agent serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Stops the agent: refuses new tasks, gives the running tasks the time of [`AgentConfig::drain`], and ends.
    ///
    /// # Errors
    /// The error that ended the server.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Returns true if the server thread has ended by itself, which is an error. Does not wait.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_finished())
    }

    fn end(&mut self) -> Result<()> {
        let _ = self.stop.send(true);
        match self.thread.take().map(thread::JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for RunningAgent {
    /// Cancels all tasks and stops the server without draining.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.agent.0.draining.store(true, Ordering::Relaxed);
            self.agent.0.tasks().values().for_each(|task| task.job.cancel().cancel());
            self.agent.0.loads.stop().cancel();
            let _ = self.end();
        }
    }
}

type AnswerResult = std::result::Result<FlightData, Refusal>;

/// The time that a load waits for admission.
const LOAD_PATIENCE: Duration = Duration::from_secs(20);
/// The time after which a client that takes no answer gets no more answers.
pub(crate) const UNTAKEN: Duration = Duration::from_secs(20);
/// The number of bytes in one message of a long answer.
const ANSWER_BYTES: usize = 64 << 10;
/// The time that a task waits for its client to take answers while other tasks wait for the slot.
const SLOW_CLIENT: Duration = Duration::from_secs(5);
/// The number of datasets of a task that the node's status lists.
const TASK_DATASETS_MAX: usize = 8;

/// A task that was admitted from the queue.
struct AdmittedTask {
    request: TaskRequest,
    job: Job,
    queued: Duration,
    place: Permit,
    deadline_is_over: Arc<AtomicBool>,
    number: u64,
    handed: Arc<ShardQueue>,
    compression: Arc<Mutex<CompressionSelector>>,
}

/// The sender of a task's answers to its client.
struct Sender {
    encoder: Encoder,
    compression: RegisteredSender,
    client: ClientChannel,
    /// The interval of progress messages to the client, and the time of the last progress message between answers.
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Reply for Sender {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        self.tell()?;
        let mut waited = Duration::ZERO;
        let level = self.compression.compression().level();
        for message in self.encoder.batch(&batch, level)? {
            let counts = &self.client.agent.0.counts;
            counts.bytes_answered.fetch_add(message_bytes(&message), Ordering::Relaxed);
            waited += self.client.send(message)?;
        }
        self.compression.compression().sent(batch_bytes(&batch), waited, Instant::now());
        Ok(())
    }
}

/// A registered sender in the shared compression state, until dropped.
struct RegisteredSender(Arc<Mutex<CompressionSelector>>);

impl RegisteredSender {
    fn begin(compression: Arc<Mutex<CompressionSelector>>) -> RegisteredSender {
        let sends = RegisteredSender(compression);
        sends.compression().begins(Instant::now());
        sends
    }

    fn compression(&self) -> MutexGuard<'_, CompressionSelector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredSender {
    fn drop(&mut self) {
        self.compression().ends(Instant::now());
    }
}

impl Sender {
    /// Sends a progress message if one is due: while answers wait for their client, no other message shows progress.
    fn tell(&mut self) -> std::result::Result<(), Failure> {
        let Some(every) = self.every else { return Ok(()) };
        if self.told.is_some_and(|told| told.elapsed() < every) {
            return Ok(());
        }
        self.told = Some(Instant::now());
        let ClientChannel { agent, number, .. } = &self.client;
        self.client.send(heartbeat::message(agent.task_progress(*number), None)).map(drop)
    }
}

/// Cancels a task when dropped: the stream that holds this guard was dropped because the client no longer listens.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[tonic::async_trait]
impl FlightService for Agent {
    type HandshakeStream = BoxStream<'static, std::result::Result<HandshakeResponse, Refusal>>;
    type ListFlightsStream = BoxStream<'static, std::result::Result<FlightInfo, Refusal>>;
    type DoGetStream = BoxStream<'static, AnswerResult>;
    type DoPutStream = BoxStream<'static, std::result::Result<PutResult, Refusal>>;
    type DoExchangeStream = BoxStream<'static, AnswerResult>;
    type DoActionStream = BoxStream<'static, std::result::Result<arrow_flight::Result, Refusal>>;
    type ListActionsStream = BoxStream<'static, std::result::Result<ActionType, Refusal>>;

    async fn do_get(
        &self,
        request: Request<Ticket>,
    ) -> std::result::Result<Response<Self::DoGetStream>, Refusal> {
        let inner = &self.0;
        // A caller without the right to read learns nothing about works or datasets.
        self.allowed(&request, Right::Read)?;
        let ticket = &request.get_ref().ticket;
        let held = inner.requests.hold(ticket).map_err(|refusal| self.refuse(refusal))?;
        let asked: TaskRequest = parsed(ticket).map_err(|refusal| self.refuse(refusal))?;
        if asked.version != VERSION {
            let what = format!("version {} of requests, expected {VERSION}", asked.version);
            return Err(self.refuse(Refusal::unimplemented(format!("this node does not support {what}"))));
        }
        let traverses = asked.kind == TRAVERSE;
        let work = match inner.works.get(&asked.kind).cloned() {
            _ if traverses => {
                let caller = self.allowed(&request, Right::Run)?;
                let visits = TraversalHandler::new(self, &caller, &asked);
                Some(Arc::new(visits.map_err(|refusal| self.refuse(refusal))?) as Arc<dyn TaskHandler>)
            }
            known => known,
        };
        let Some(work) = work else {
            let known = inner.works.kinds().collect::<Vec<_>>().join(", ");
            let what = format!(
                "this node does not support tasks of the kind '{}': expected {known}",
                short(&asked.kind)
            );
            return Err(self.refuse(Refusal::unimplemented(what)));
        };
        let right = match work.needs() {
            RequiredRight::Data => Right::Read,
            RequiredRight::BuiltIn => Right::Run,
            RequiredRight::WebAssembly => Right::RunWasm,
            RequiredRight::Commands => Right::RunCommands,
        };
        let caller = self.allowed(&request, right)?;
        if inner.draining.load(Ordering::Relaxed) {
            return Err(
                self.refuse(Refusal::unavailable("this node is shutting down and accepts no more tasks"))
            );
        }
        let habit = if traverses { visits::MEMORY_BYTES } else { inner.config.task_memory_bytes };
        let habit = habit.max(work.smallest_memory_bytes());
        let memory_bytes = asked.memory_bytes.unwrap_or(habit);
        // A read for a client that runs a part of a task itself must not wait for that task's slot.
        let asks_beside =
            asked.beside.filter(|_| work.needs() == RequiredRight::Data && memory_bytes <= READ_BESIDE_BYTES);
        let held_beside = asks_beside.and_then(|task| self.beside(&caller.name, task));
        let needs_no_slot = traverses || held_beside.is_some();
        let entered: std::result::Result<BoxFuture<'static, Permit>, Refusal> = match needs_no_slot {
            true => match inner.queue.beside(memory_bytes) {
                Ok(place) => Ok(futures::future::ready(place).boxed()),
                Err(why) => Err(Refusal::resource_exhausted(why)),
            },
            false => inner.queue.enter(&caller.name, memory_bytes).map(FutureExt::boxed),
        };
        let entered = entered.map_err(|refusal| self.refuse(refusal))?;
        let deadline = asked.deadline_ms.map(Duration::from_millis).unwrap_or(inner.config.deadline);
        let deadline = deadline.min(inner.config.deadline);
        let (came, agent, cancel) = (Instant::now(), self.clone(), Cancel::default());
        let (out, mut answers) = mpsc::channel::<AnswerResult>(2);
        let stops = CancelOnDrop(cancel.clone());
        let waiting = out.clone();
        let alive = asked.alive_ms.map(|every| {
            let (agent, every) = (self.clone(), Duration::from_millis(every));
            Heartbeat::begin(move |number| agent.task_progress(number), out.clone(), every)
        });
        tokio::spawn(async move {
            let _held: AccountedMemory = held;
            // A client that disconnects while waiting gives up its place in the queue.
            let place = tokio::select! {
                place = entered => place,
                () = waiting.closed() => return,
                () = tokio::time::sleep(deadline) => {
                    let over = Refusal::deadline_exceeded("the task waited in the queue until its deadline");
                    let _ = waiting.send(Err(agent.refuse(over))).await;
                    return;
                }
            };
            if agent.0.draining.load(Ordering::Relaxed) {
                let ends = Refusal::unavailable("this node is shutting down and accepts no more tasks");
                let _ = waiting.send(Err(agent.refuse(ends))).await;
                return;
            }
            drop(waiting);
            let queued = came.elapsed();
            let deadline_is_over = Arc::new(AtomicBool::new(false));
            let threads = if asks_beside.is_some() { 1 } else { agent.0.config.threads };
            let budget = Budget::new(memory_bytes, threads);
            // A hanging drive delays only this task.
            let (of_agent, of_job) = (agent.clone(), cancel.clone());
            let made = tokio::task::spawn_blocking(move || of_agent.0.store.job(budget, of_job)).await;
            let made = made.map_err(|panicked| panicked.to_string());
            let job = match made.and_then(|made| made.map_err(|error| error.to_string())) {
                Ok(job) => job,
                Err(why) => {
                    let _ = out.send(Err(Refusal::internal(why))).await;
                    return;
                }
            };
            let number = agent.0.numbers.fetch_add(1, Ordering::Relaxed);
            let compression =
                held_beside.unwrap_or_else(|| Arc::new(Mutex::new(CompressionSelector::new(Instant::now()))));
            let (who, client, kind) = (caller.who(), caller.name, asked.kind.clone());
            let mut datasets: Vec<String> = asked.pieces.iter().map(|piece| piece.dataset.clone()).collect();
            datasets.sort_unstable();
            datasets.dedup();
            datasets.truncate(TASK_DATASETS_MAX);
            let lengths = asked.pieces.iter().map(|piece| piece.to.saturating_sub(piece.from));
            let bytes_asked = lengths.fold(0, u64::saturating_add);
            let (job_of_it, handed) = (job.clone(), Arc::<ShardQueue>::default());
            let running = Running {
                client,
                who,
                kind,
                datasets,
                bytes_asked,
                job: job_of_it,
                began: Instant::now(),
                handed: handed.clone(),
                key: asked.pulls.map(|pulls| pulls.key),
                beside: Arc::new(Mutex::new(CompressionSelector::new(Instant::now()))),
            };
            agent.0.tasks().insert(number, running);
            let _alive = alive.inspect(|alive| alive.runs(number));
            let (over, flag) = (deadline_is_over.clone(), cancel.clone());
            let timer = tokio::spawn(async move {
                tokio::time::sleep(deadline.saturating_sub(queued)).await;
                over.store(true, Ordering::Relaxed);
                flag.cancel();
            });
            let begun = AdmittedTask {
                request: asked,
                job,
                queued,
                place,
                deadline_is_over,
                number,
                handed,
                compression,
            };
            let last_out = out.clone();
            let worked = tokio::task::spawn_blocking(move || agent.work(&*work, begun, &out)).await;
            timer.abort();
            for message in worked.unwrap_or_default() {
                if last_out.send(message).await.is_err() {
                    break;
                }
            }
        });
        let answers = futures::stream::poll_fn(move |context| {
            let _held = &stops;
            answers.poll_recv(context)
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> std::result::Result<Response<Self::DoPutStream>, Refusal> {
        let caller = self.allowed(&request, Right::Write)?;
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(
                self.refuse(Refusal::unavailable("this node is shutting down and accepts no more uploads"))
            );
        }
        // The wait is short: two clients that each hold a node and wait for the other's node would otherwise wait
        // forever.
        let came = Instant::now();
        let place = loop {
            match self.0.loads.enter(&caller.name, &self.0.queue) {
                Ok(place) => break place,
                Err(why) if came.elapsed() > LOAD_PATIENCE => {
                    return Err(self.refuse(Refusal::resource_exhausted(why)));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let (stop, who) = (self.0.loads.stop(), caller.who());
        Ok(Response::new(receiving::receive(self.clone(), place, stop, who, request.into_inner()).boxed()))
    }

    async fn do_action(
        &self,
        request: Request<Action>,
    ) -> std::result::Result<Response<Self::DoActionStream>, Refusal> {
        let kind = request.get_ref().r#type.clone();
        let right = match kind.as_str() {
            "remove" => Right::Write,
            "drain" => Right::Administer,
            _ => Right::Read,
        };
        let caller = self.allowed(&request, right)?;
        let (agent, body) = (self.clone(), request.into_inner().body);
        let _body = self.0.requests.take(body.len() as u64).map_err(|refusal| self.refuse(refusal))?;
        let _looks = match kind.as_str() {
            "catalog" | "map" => {
                Some(self.0.looks.clone().acquire_owned().await.expect("it is never closed"))
            }
            _ => None,
        };
        let answered =
            tokio::task::spawn_blocking(move || -> std::result::Result<Vec<bytes::Bytes>, Refusal> {
                let refused = |error: Error| Refusal::failed_precondition(error.to_string());
                Ok(match kind.as_str() {
                    "status" => {
                        let status = agent.status();
                        vec![json(&match caller.rights.contains(&Right::Administer) {
                            true => status,
                            false => status.without_others(&caller.name),
                        })]
                    }
                    "catalog" => agent.catalog().map_err(refused)?.iter().map(json).collect(),
                    "map" => {
                        let maps = agent.maps(&parsed::<Vec<DatasetKey>>(&body)?).map_err(refused)?;
                        let starts = (0..maps.len()).step_by(ANSWER_BYTES);
                        starts.map(|start| maps.slice(start..maps.len().min(start + ANSWER_BYTES))).collect()
                    }
                    "certificate" => {
                        let own = agent.0.config.credentials.as_ref();
                        own.map(|own| own.certificate.clone().into()).into_iter().collect()
                    }
                    "remove" => {
                        let asked: RemoveRequest = parsed(&body)?;
                        if !asked.is_sound() {
                            let what = "invalid request: the removal names another dataset or version";
                            return Err(agent.refuse(Refusal::invalid_argument(what)));
                        }
                        agent.remove(&caller.who(), &asked).map_err(refused)?;
                        Vec::new()
                    }
                    "hand-out" => {
                        if !agent.hand_out(&caller.name, parsed(&body)?) {
                            let what =
                                "the task does not exist, belongs to another client, or has too many shards";
                            return Err(Refusal::failed_precondition(what));
                        }
                        Vec::new()
                    }
                    "drain" => {
                        agent.0.draining.store(true, Ordering::Relaxed);
                        Vec::new()
                    }
                    other => {
                        let what = format!("this node does not support the action '{}'", short(other));
                        return Err(agent.refuse(Refusal::unimplemented(what)));
                    }
                })
            });
        let answers = answered.await.map_err(|error| Refusal::internal(error.to_string()))??;
        let bytes = answers.iter().map(|body| (body.len() + size_of::<bytes::Bytes>()) as u64).sum();
        let held = self.0.requests.take(bytes).map_err(|refusal| self.refuse(refusal))?;
        Ok(Response::new(hand_out(answers, held, UNTAKEN).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> std::result::Result<Response<Self::HandshakeStream>, Refusal> {
        Err(Refusal::unimplemented("handshakes are not supported: send a token with each request"))
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> std::result::Result<Response<Self::ListFlightsStream>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<FlightInfo>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<PollInfo>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<SchemaResult>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> std::result::Result<Response<Self::DoExchangeStream>, Refusal> {
        Ok(Response::new(self.take_hops(request)?))
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> std::result::Result<Response<Self::ListActionsStream>, Refusal> {
        let actions = [
            ("status", "returns the state of the node"),
            ("catalog", "lists the datasets on the node"),
            ("map", "returns the nodes that hold the pieces of files"),
            ("certificate", "returns the certificate of the node"),
            ("remove", "removes a dataset"),
            ("hand-out", "assigns shards to a task of the client"),
            ("drain", "stops accepting tasks"),
        ];
        let actions = actions.map(|(kind, description)| {
            Ok(ActionType { r#type: kind.to_string(), description: description.to_string() })
        });
        Ok(Response::new(futures::stream::iter(actions).boxed()))
    }
}

/// Streams answers one at a time and releases their memory once all are sent, or once the client has taken none for
/// `patience`.
fn hand_out(
    answers: Vec<bytes::Bytes>,
    held: AccountedMemory,
    patience: Duration,
) -> impl Stream<Item = std::result::Result<arrow_flight::Result, Refusal>> {
    let (out, mut taken) = mpsc::channel(1);
    let (left, was_left) = oneshot::channel();
    tokio::spawn(async move {
        let _held = held;
        for body in answers {
            match tokio::time::timeout(patience, out.send(Ok(arrow_flight::Result { body }))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    let what = format!("the client did not read answers for {} s", patience.as_secs());
                    let _ = left.send(Refusal::deadline_exceeded(what));
                    return;
                }
            }
        }
    });
    let rest = futures::stream::once(was_left).filter_map(|left| std::future::ready(left.ok().map(Err)));
    futures::stream::poll_fn(move |context| taken.poll_recv(context)).chain(rest)
}

/// Logs once a day a warning for each of the node's credentials that expires soon.
async fn warn_of_expiry(expires: CredentialExpiry, node: String, renewal: String) {
    loop {
        for warning in expires.warnings(&node) {
            warn!(node, "{warning}: `{renewal}` creates new ones");
        }
        tokio::time::sleep(Duration::from_secs(86_400)).await;
    }
}

/// Reads the stored map of a spread dataset.
fn read_map(job: &Job, file: &CheckedFile) -> Result<Vec<u8>> {
    let buffer_bytes =
        (file.len() as usize).next_multiple_of(file.block_bytes()).clamp(file.block_bytes(), 1 << 20);
    let mut reader = FileReader::new(job, file, 0..file.len(), buffer_bytes)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, Refusal> {
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::invalid_argument(format!("invalid request: {error}")))
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Returns the resident memory of this process in bytes, or 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the highest temperature of the machine's thermal sensors, in degrees Celsius.
fn warmest() -> Option<f64> {
    let zones = std::fs::read_dir("/sys/class/thermal").ok()?;
    let read = |zone: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(zone.path().join("temp")).ok()?;
        Some(text.trim().parse::<f64>().ok()? / 1000.0)
    };
    zones.flatten().filter_map(read).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_that_nobody_takes_are_let_go_and_their_end_is_no_end() {
        let requests = Requests::new(0);
        let answers = |count: u8| (0..count).map(|number| vec![number].into()).collect::<Vec<bytes::Bytes>>();
        let held = || requests.take(64 << 20).unwrap();
        let mut taken = Box::pin(hand_out(answers(5), held(), Duration::from_millis(50)));
        assert!(requests.take(1).is_err(), "they are held");
        assert_eq!(&taken.next().await.unwrap().unwrap().body[..], [0]);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(requests.take(1).is_ok(), "nobody took them");
        let rest: Vec<_> = taken.collect().await;
        assert!(rest.len() < 5 && rest.last().unwrap().is_err(), "{rest:?}");
        let all: Vec<_> = hand_out(answers(5), held(), Duration::from_secs(20)).collect().await;
        assert!(all.len() == 5 && all.iter().all(std::result::Result::is_ok), "{all:?}");
        // A dropped stream keeps no memory.
        drop(hand_out(answers(5), held(), Duration::from_secs(20)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(requests.take(64 << 20).is_ok());
    }
}
