//! The server that runs on a node and serves its store to clients and other nodes.
//!
//! ```text
//!   connection (async) ─► authorization ─► Queue ─► worker thread: TaskHandler in its own job ─► 2 batches queued ─► connection
//! ```
//!
//! A task stops when its connection breaks: the job's cancellation flag is set as soon as the answer stream is dropped.
//! The cancellation flag is also set at the deadline of the task.
//!
//! The submodules:
//!
//! - `config`: the limits and credentials of an agent.
//! - `lifecycle`: starts and stops the server.
//! - `admission`: checks the headers of requests before their bodies are read.
//! - `authentication`: identifies callers by their tokens, and checks their rights.
//! - `requests`: accounts for the memory of requests and answers.
//! - `tasks`: validates, queues and runs tasks.
//! - `actions`: answers short requests, with the help of `status` and `datasets`.
//! - `loads`, `receiving`: limit and receive the files that clients load.
//! - `visits`: takes part in traversals.
//! - `latest`: queries drives that may hang.
//! - `audit`: logs puts, removals, tasks and refusals.
//!
//! Memory: the budgets of the running tasks, plus for each task the messages in flight (at most two batches and the
//! connection's buffers, about 1 MiB).

mod actions;
mod admission;
mod audit;
mod authentication;
mod config;
mod datasets;
mod latest;
mod lifecycle;
mod loads;
mod receiving;
mod requests;
mod status;
mod tasks;
mod visits;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket, flight_service_server::FlightService,
};
use futures::{StreamExt, stream::BoxStream};
use inshore_kernel::TaskHandlers;
use inshore_store::{DeviceUsage, Store};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status as Refusal, Streaming};

pub use self::{config::AgentConfig, lifecycle::RunningAgent};
use self::{
    latest::Latest,
    loads::RunningLoads,
    requests::{LogRateLimit, Requests},
    status::AgentCounters,
    tasks::active::ActiveTask,
    visits::Traversals,
};
use super::{
    connection::{ConnectionLimiter, ConnectionLimits},
    queue::Queue,
};
use crate::Right;

/// The maximum number of requests for catalogs or maps that are processed at once.
const CATALOG_READS_MAX: usize = 8;
/// The time for which the node waits until a client takes an answer. After this time, the client gets no more answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

type AnswerResult = Result<FlightData, Refusal>;

/// The server on a node. Clones share one server.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: AgentConfig,
    store: Store,
    handlers: TaskHandlers,
    queue: Queue,
    requests: Requests,
    /// Limits the number of catalog and map actions that run at once, since each may read much from the drives.
    catalog_reads: Arc<Semaphore>,
    /// Limits the log lines about refused requests.
    refusal_log: LogRateLimit,
    began: Instant,
    draining: AtomicBool,
    tasks: Mutex<BTreeMap<u64, ActiveTask>>,
    /// The number of the next task.
    numbers: AtomicU64,
    counters: AgentCounters,
    traversals: Traversals,
    loads: RunningLoads,
    connections: Arc<ConnectionLimiter>,
    /// The usage of the drives. If a drive hangs, this is the last known usage.
    drives: Latest<Vec<DeviceUsage>>,
}

impl Agent {
    /// Creates an agent that serves `store` and runs tasks of the kinds in `handlers`.
    pub fn new(store: Store, handlers: TaskHandlers, config: AgentConfig) -> Agent {
        let queue = Queue::new(config.memory_bytes, config.slots.max(1), config.queue);
        let connections = ConnectionLimiter::new(ConnectionLimits {
            connections: config.connections.max(1),
            per_address: config.connections_per_address.max(1),
            first_request: config.first_request,
        });
        Agent(Arc::new(Inner {
            queue,
            requests: Requests::new(config.memory_bytes),
            catalog_reads: Arc::new(Semaphore::new(CATALOG_READS_MAX)),
            refusal_log: LogRateLimit::default(),
            connections,
            drives: Latest::default(),
            store,
            handlers,
            config,
            began: Instant::now(),
            draining: AtomicBool::new(false),
            tasks: Mutex::default(),
            numbers: AtomicU64::new(0),
            counters: AgentCounters::default(),
            traversals: Traversals::default(),
            loads: RunningLoads::default(),
        }))
    }

    /// Returns the number of the node, which is derived from the store's UUID on its devices.
    pub fn number(&self) -> u64 {
        let uuid = self.0.store.uuid();
        u64::from_le_bytes(uuid[..8].try_into().expect("8 bytes"))
    }

    /// Returns the agent's configuration.
    pub(crate) fn config(&self) -> &AgentConfig {
        &self.0.config
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }
}

#[tonic::async_trait]
impl FlightService for Agent {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Refusal>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Refusal>>;
    type DoGetStream = BoxStream<'static, AnswerResult>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Refusal>>;
    type DoExchangeStream = BoxStream<'static, AnswerResult>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Refusal>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Refusal>>;

    /// Runs a task.
    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Refusal> {
        let task = self.validate_task(&request)?;
        Ok(Response::new(self.start_task(task)?.boxed()))
    }

    /// Receives a load.
    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Refusal> {
        let caller = self.allowed(&request, &[Right::Write])?;
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(
                self.refuse(Refusal::unavailable("this node is shutting down and accepts no more uploads"))
            );
        }
        let permit = self.0.loads.wait(&caller.name, &self.0.queue).await;
        let permit = permit.map_err(|why| self.refuse(Refusal::resource_exhausted(why)))?;
        let (stop, who) = (self.0.loads.stop(), caller.who());
        Ok(Response::new(receiving::receive(self.clone(), permit, stop, who, request.into_inner()).boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Refusal> {
        Ok(Response::new(self.act(request).await?.boxed()))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Refusal> {
        Ok(Response::new(actions::list().boxed()))
    }

    /// Receives the hops of traversals from another node or a client.
    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Refusal> {
        Ok(Response::new(self.take_hops(request)?))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Refusal> {
        Err(Refusal::unimplemented("handshakes are not supported: send a token with each request"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Refusal> {
        Err(Refusal::unimplemented("not supported: use the action 'catalog'"))
    }
}
