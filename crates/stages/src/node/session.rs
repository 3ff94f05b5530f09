//! The sessions of the jobs in which a node takes part.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use arrow_array::{RecordBatch, UInt32Array};
use inshore_kernel::{Failure, Metric, Reply, Task, TaskHandler};
use inshore_nodes::{ClientConfig, NodeCredentials, Nodes, protocol::Generation};
use inshore_store::{Cancel, DatasetBuilder, Job};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    SESSION_KIND,
    counters::{Counters, Stored},
    lists::OutputList,
    memory::{PUBLISH_BYTES, SERVE_BYTES, SLOT_BESIDE_BYTES},
    output::StoredOutput,
};
use crate::{
    StageWork,
    lists::{ListPart, Producer},
};

/// The number of requests for ranges that a session serves at the same time. Further requests wait.
const SERVES_MAX: usize = 8;
/// The number of other nodes to which a session keeps connections. If a job has more nodes, a fetch opens a connection
/// and closes it, since attempts fetch from all nodes in turn and would otherwise keep a connection to each: a thousand
/// for each node, of which an agent takes 256. This is half of the default of
/// [`Options::max_connections`](crate::Options).
const PEERS_MAX: usize = 32;
/// The part of a session's memory that holds the checksums and directories of its outputs: one of this number, besides
/// [`OUTPUTS_BYTES`]. The checksums of 16 GiB of outputs take 1 MiB, so a session with 16 GiB of memory stores up to 16
/// TiB of outputs. Further attempts fail for lack of memory.
const OUTPUTS_PART: u64 = 16;
/// The smallest memory for the checksums and directories of outputs, in bytes.
const OUTPUTS_BYTES: u64 = 2 << 20;
/// The interval at which a waiting thread checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// The time for which a merge waits for the parts of its lists that other attempts bring. They were sent before the merge,
/// so this is the time by which one request can overtake another one on the same connection.
const LISTS_WAIT: Duration = Duration::from_secs(1);

/// The memory of a session besides its slots and the part for outputs, in bytes.
const BESIDE_BYTES: u64 = SERVES_MAX as u64 * SERVE_BYTES + OUTPUTS_BYTES;

/// Returns the memory that a job takes on a node if it has slots of `slot_bytes` bytes. The writer of an attempt takes
/// the memory of the session, since the checksums of its output stay until the end of the job. All requests of the job
/// take their memory from the session, so that no other task of the node can refuse them.
pub fn memory_bytes(slot_bytes: u64, slots: u32) -> u64 {
    let in_slots = slot_bytes.saturating_add(SLOT_BESIDE_BYTES).saturating_mul(slots.into());
    in_slots.saturating_add(in_slots / OUTPUTS_PART).saturating_add(BESIDE_BYTES)
}

/// Returns the memory of a slot if a job takes `memory_bytes` bytes on a node.
pub fn slot_bytes(memory_bytes: u64, slots: u32) -> u64 {
    let in_slots = memory_bytes.saturating_sub(BESIDE_BYTES) / (OUTPUTS_PART + 1) * OUTPUTS_PART;
    (in_slots / u64::from(slots.max(1))).saturating_sub(SLOT_BESIDE_BYTES)
}

/// Returns true if an id has the form of a session's id. A node serves a session to everyone who knows its id, so short
/// ids, which could be guessed, are refused.
fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The request for a session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionRequest {
    /// The id of the session, the same on all nodes of a job: 32 hexadecimal digits.
    pub id: String,
    /// The kind of the job: see [`StageWork::kind`].
    pub kind: String,
    /// The arguments of the job's code.
    pub arguments: Value,
    /// The number of slots, and the memory of each in bytes.
    pub slots: u32,
    pub slot_bytes: u64,
    /// The addresses of the job's nodes, and the certificate that each one shows.
    pub nodes: Vec<(String, Option<String>)>,
    /// The index of this node in the list.
    pub own: usize,
    /// The trace id of the job. Unlike the id of the session, it is no secret and appears in logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The sessions of a node, and the handler that runs them.
#[derive(Clone)]
pub(super) struct Sessions(Arc<Inner>);

struct Inner {
    works: Vec<Arc<dyn StageWork>>,
    credentials: Option<NodeCredentials>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    counters: Arc<Counters>,
}

impl Sessions {
    pub fn new(works: Vec<Arc<dyn StageWork>>, credentials: Option<NodeCredentials>) -> Sessions {
        Sessions(Arc::new(Inner { works, credentials, sessions: Mutex::default(), counters: Arc::default() }))
    }

    /// Returns a session that has not ended.
    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.all().get(id).cloned()
    }

    /// Returns what the node stores for all sessions.
    fn stored(&self) -> Stored {
        let sessions: Vec<Arc<Session>> = self.all().values().cloned().collect();
        let mut stored = Stored { sessions: sessions.len() as u64, ..Stored::default() };
        for session in sessions {
            let state = session.state();
            stored.outputs += state.outputs.len() as u64;
            stored.bytes += state.outputs.values().map(|output| output.file.len()).sum::<u64>();
        }
        stored
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        self.0.sessions.lock().expect("no panic under this lock")
    }

    /// Connects to the other nodes of a job. The driver names their addresses, but cannot make this node connect to
    /// arbitrary machines: the authority of this node must have signed a certificate for each host.
    fn connect(&self, nodes: &[(String, Option<String>)]) -> Result<Nodes, Failure> {
        let own = self.0.credentials.as_ref();
        for (address, certificate) in nodes {
            own.map_or(Ok(()), |own| own.check_peer(address, certificate.as_deref()))?;
        }
        let addresses = nodes.iter().map(|(address, _)| address.clone()).collect();
        Ok(Nodes::new(ClientConfig::new(addresses, own.map(NodeCredentials::as_client)))?)
    }
}

/// A job on this node.
pub(super) struct Session {
    pub id: String,
    pub job: Job,
    pub work: Arc<dyn StageWork>,
    pub arguments: Value,
    pub nodes: Nodes,
    pub own: usize,
    pub trace: Option<String>,
    pub counters: Arc<Counters>,
    slots: u32,
    slot_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outputs: BTreeMap<u32, Arc<StoredOutput>>,
    /// The outputs of all nodes, by stage.
    lists: BTreeMap<u32, OutputList>,
    running: BTreeMap<u32, Cancel>,
    /// The requests that are served, by their numbers.
    serving: BTreeMap<u64, Cancel>,
    /// The number of the next served request.
    next: u64,
    is_closed: bool,
    /// The dataset that is being published, and its generation if it has its map.
    publishing: Option<(DatasetBuilder, Option<Generation>)>,
}

impl State {
    fn add(&mut self, job: &Job, part: &ListPart, nodes: usize) -> Result<bool, Failure> {
        let list = match self.lists.entry(part.stage) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(OutputList::new(job, part.partitions)?),
        };
        list.add(part, nodes)
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Closes the connection of a fetch that has ended, unless the job has few nodes.
    pub fn end_fetch(&self, node: usize) {
        if self.nodes.addresses().count() > PEERS_MAX + 1 {
            self.nodes.disconnect(node);
        }
    }

    /// Returns the output of an attempt if its directory has this checksum.
    pub fn output(&self, token: u32, checksum: u64) -> Option<Arc<StoredOutput>> {
        self.state().outputs.get(&token).filter(|output| output.checksum == checksum).cloned()
    }

    pub fn add(&self, token: u32, output: Arc<StoredOutput>) {
        self.state().outputs.insert(token, output);
    }

    pub fn delete(&self, token: u32) {
        self.state().outputs.remove(&token);
    }

    /// Adds parts to the lists of outputs. Returns false if a list lacks the parts before them. If `is_awaited`, waits for
    /// these parts for a moment.
    pub fn take_lists(&self, parts: &[ListPart], is_awaited: bool, cancel: &Cancel) -> Result<bool, Failure> {
        let nodes = self.nodes.addresses().count();
        let end = Instant::now() + if is_awaited { LISTS_WAIT } else { Duration::ZERO };
        let mut is_whole = true;
        for part in parts {
            is_whole &= self.wait_until(cancel, |state| match state.add(&self.job, part, nodes) {
                Ok(false) if Instant::now() < end => None,
                added => Some(added),
            })??;
            self.changed.notify_all();
        }
        Ok(is_whole)
    }

    /// Returns the outputs of a stage that the lists name, or the output of one of its partitions.
    pub fn listed_outputs(&self, stage: u32, only: Option<u32>) -> Result<Vec<Producer>, Failure> {
        let outputs = self.state().lists.get(&stage).and_then(|list| list.outputs(only));
        outputs.ok_or_else(|| format!("the list of the outputs of stage {stage} is incomplete").into())
    }

    /// Waits until a condition holds, and changes the state.
    fn wait_until<T>(
        &self,
        cancel: &Cancel,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Failure> {
        let mut state = self.state();
        loop {
            if state.is_closed || cancel.is_cancelled() {
                return Err(inshore_store::Error::Cancelled.into());
            }
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            state = self.changed.wait_timeout(state, LOOK).expect("no panic under this lock").0;
        }
    }

    /// Waits for a slot, and returns its job. An attempt that was cancelled may still occupy the slot for a moment.
    pub fn begin_attempt(self: &Arc<Session>, token: u32, cancel: &Cancel) -> Result<Slot, Failure> {
        let slots = self.slots as usize;
        self.wait_until(cancel, |state| {
            let is_free = state.running.len() < slots && !state.running.contains_key(&token);
            is_free.then(|| state.running.insert(token, cancel.clone())).map(drop)
        })?;
        // The entry is removed when the slot is dropped, also after an error.
        let mut slot = Slot { session: self.clone(), token, job: self.job.clone() };
        let threads = (self.job.budget().threads() / slots).max(1);
        let budget = self.job.budget().part(self.slot_bytes, threads, "a slot of a job")?;
        slot.job = self.job.within(budget).with_cancel(cancel.clone());
        Ok(slot)
    }

    /// Waits until fewer than the largest number of ranges are served, and returns the job of a served range.
    pub fn begin_serve(self: &Arc<Session>, cancel: &Cancel) -> Result<Serve, Failure> {
        let mut serve = self.serve_if(cancel, |state| state.serving.len() < SERVES_MAX)?;
        let budget = self.job.budget().part(SERVE_BYTES, 1, "a served range")?;
        serve.job = self.job.within(budget).with_cancel(cancel.clone());
        Ok(serve)
    }

    /// Waits until no attempt runs, and returns the job of a publication, which takes the memory of the slots. The job
    /// ends with the session: the published dataset outlives the request that begins it.
    pub fn begin_publication(self: &Arc<Session>, cancel: &Cancel) -> Result<Serve, Failure> {
        let mut serve = self.serve_if(cancel, |state| state.running.is_empty())?;
        let budget = self.job.budget().part(PUBLISH_BYTES, 1, "a publication")?;
        serve.job = self.job.within(budget);
        Ok(serve)
    }

    fn serve_if(
        self: &Arc<Session>,
        cancel: &Cancel,
        may_serve: impl Fn(&State) -> bool,
    ) -> Result<Serve, Failure> {
        let number = self.wait_until(cancel, |state| {
            may_serve(state).then(|| {
                state.next += 1;
                state.serving.insert(state.next, cancel.clone());
                state.next
            })
        })?;
        Ok(Serve { session: self.clone(), number, job: self.job.clone() })
    }

    /// Keeps the builder of a dataset until the driver commits it.
    pub fn keep_builder(&self, builder: DatasetBuilder, generation: Option<Generation>) {
        self.state().publishing = Some((builder, generation));
    }

    pub fn take_builder(&self) -> Option<(DatasetBuilder, Option<Generation>)> {
        self.state().publishing.take()
    }

    /// Cancels all attempts and all served requests, and waits until they have ended.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.running.values().chain(state.serving.values()).for_each(Cancel::cancel);
        while !state.running.is_empty() || !state.serving.is_empty() {
            state = self.changed.wait_timeout(state, LOOK).expect("no panic under this lock").0;
        }
        *state = State { is_closed: true, ..State::default() };
    }
}

/// A slot in which an attempt runs.
pub(super) struct Slot {
    session: Arc<Session>,
    token: u32,
    pub job: Job,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The memory of the slot is free before the next attempt may take it.
        self.job = self.session.job.clone();
        self.session.state().running.remove(&self.token);
        self.session.changed.notify_all();
    }
}

/// The permission to serve a request.
pub(super) struct Serve {
    session: Arc<Session>,
    number: u64,
    pub job: Job,
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.job = self.session.job.clone();
        self.session.state().serving.remove(&self.number);
        self.session.changed.notify_all();
    }
}

impl TaskHandler for Sessions {
    fn kind(&self) -> &'static str {
        SESSION_KIND
    }

    /// Returns the metrics of all requests of jobs.
    fn metrics(&self) -> Vec<Metric> {
        self.0.counters.metrics(self.stored())
    }

    /// Holds the memory and the scratch of a job until the connection of the driver ends.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let request: SessionRequest = serde_json::from_value(task.arguments)?;
        let job = task.job;
        let needed = memory_bytes(request.slot_bytes, request.slots);
        if !is_id(&request.id) {
            return Err("invalid request: the id of a session has 32 hexadecimal digits".into());
        }
        if request.slots == 0 || request.own >= request.nodes.len() || needed > job.budget().memory_bytes() {
            return Err(
                "invalid request: a session without slots, with too little memory, or of unknown nodes"
                    .into(),
            );
        }
        let works = &self.0.works;
        let work = works.iter().find(|work| work.kind() == request.kind).cloned();
        let work =
            work.ok_or_else(|| format!("this node does not support jobs of the kind '{}'", request.kind))?;
        let session = Arc::new(Session {
            id: request.id.clone(),
            nodes: self.connect(&request.nodes)?,
            job: job.clone(),
            work,
            arguments: request.arguments,
            own: request.own,
            trace: request.trace,
            counters: self.0.counters.clone(),
            slots: request.slots,
            slot_bytes: request.slot_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let open = OpenSession::new(self, request.id, session)?;
        reply.batch(RecordBatch::try_from_iter([(
            "slots",
            Arc::new(UInt32Array::from(vec![request.slots])) as _,
        )])?)?;
        while !job.cancel().is_cancelled() {
            std::thread::sleep(LOOK);
        }
        drop(open);
        Ok(json!({}))
    }
}

/// Registers a session, and closes it when dropped.
struct OpenSession<'a>(&'a Sessions, String, Arc<Session>);

impl<'a> OpenSession<'a> {
    fn new(sessions: &'a Sessions, id: String, session: Arc<Session>) -> Result<OpenSession<'a>, Failure> {
        let mut all = sessions.all();
        if all.contains_key(&id) {
            return Err("a session with this id is open already".into());
        }
        all.insert(id.clone(), session.clone());
        Ok(OpenSession(sessions, id, session))
    }
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        self.0.all().remove(&self.1);
        self.2.close();
    }
}
