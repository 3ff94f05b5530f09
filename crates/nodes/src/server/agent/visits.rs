//! Runs a node's part of a distributed traversal: the node follows chains of pages as long as the next page
//! is in its own store.
//!
//! ```text
//!   link from another node ─┐                     ┌─► next page local:  read the page
//!   link from the client ───┴─► inbox ─► thread ──┼─► next page remote: hop on a link to that node
//!                                                 └─► client: progress of chains, and their ends
//! ```
//!
//! A client opens a traversal on every node that holds a part of the file. On each node the traversal is a task with
//! the client's token. From then on, a chain moves from node to node without the client and without the client's token.
//! This is permitted, since the client authorized the traversal on each node when it opened the traversal on that node.
//! The sender of a hop has to be the traversal's client or a node (with the right to relay), and has to know the
//! traversal's session number, which is too large to guess.
//!
//! A traversal takes no slot: the traversal has at most one read per chain, hardly computes, and other nodes wait for
//! the result. Two traversals that wait for each other's slots would deadlock. A traversal is refused immediately if
//! its memory is not free or [`TRAVERSALS_MAX`] traversals are running.
//!
//! A client sends the addresses of the other nodes, but cannot make a node connect to arbitrary machines. For each
//! address the client sends the certificate that is shown at this address, and the node connects only to hosts for
//! which the authority has signed a certificate (without credentials: only to this machine). TLS checks the certificate
//! again when the node connects. Certificates contain no ports, so a client may make a node try any port of another
//! node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, Weak, atomic::Ordering, mpsc as threads},
    time::{Duration, Instant},
};

use arrow_flight::FlightData;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use inshore_kernel::{Failure, OpenedSource, Reply, Task, TaskHandler};
use inshore_store::{Buffer, CheckedFile, Job, PendingRead};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::mpsc};
use tonic::{Request, Status as Refusal, Streaming};

use super::{Agent, AnswerResult, authentication::Caller, requests::short};
use crate::{
    ClientConfig, Error, Result, Right,
    client::{Node, parsed},
    protocol::{TRAVERSE, TaskRequest},
    traversal::hop::{
        Arguments, ChainPosition, Hop, HopKind, LAST_PAGE, Link, LinkMessage, ReportKind, Session,
        TraversalReport, TraversalSummary, send,
    },
};

/// The maximum number of traversals that run on a node at the same time.
const TRAVERSALS_MAX: usize = 64;
/// The default memory of a traversal, in bytes. The memory suffices for the pages of 64 chains, and for the checksums
/// of 16 GiB of the file.
pub(super) const MEMORY_BYTES: u64 = 8 << 20;
/// The maximum number of simultaneous reads in a traversal on a node.
const DEPTH_MAX: usize = 64;
/// The longest time between two progress reports of a chain to the client. The client resumes a chain from its last
/// report if a node is lost.
const UNHEARD_MAX: Duration = Duration::from_millis(250);
/// The interval at which an idle traversal checks for cancellation.
const PATIENCE: Duration = Duration::from_millis(50);
/// The number of pages and steps queued for return on a link before the sender has to wait.
const ANSWERS: usize = 32;
/// The longest time until the sender of chains is informed that this node shuts down.
const LOOK: Duration = Duration::from_secs(1);

/// The traversals in which an agent takes part, and the agent's links to other nodes.
#[derive(Debug, Default)]
pub(super) struct Traversals {
    doors: Mutex<HashMap<Session, HopInbox>>,
    links: Mutex<HashMap<String, Weak<Link>>>,
}

/// The inbox of a traversal's hops.
#[derive(Debug)]
struct HopInbox {
    client: String,
    inbox: threads::SyncSender<Event>,
}

/// An event in a traversal's inbox.
#[derive(Debug)]
enum Event {
    /// A chain or a read request, and the channel for the answer.
    Hop(Hop, mpsc::Sender<AnswerResult>),
    /// Another node refused a chain.
    Refused { hop: Hop, address: String, why: String },
    /// A link to another node broke.
    Lost,
}

impl Traversals {
    fn doors(&self) -> MutexGuard<'_, HashMap<Session, HopInbox>> {
        self.doors.lock().expect("no panic under this lock")
    }

    /// Delivers a hop to its traversal if the traversal runs here and the caller may send hops.
    fn deliver(
        &self,
        caller: &Caller,
        hop: Hop,
        answers: &mpsc::Sender<AnswerResult>,
    ) -> std::result::Result<(), String> {
        let doors = self.doors();
        let is_nodes = caller.rights.contains(&Right::Relay);
        let door = doors.get(&hop.session).filter(|door| is_nodes || door.client == caller.name);
        let door = door.ok_or("the node does not, or no longer, take part in this traversal")?;
        let sent = door.inbox.try_send(Event::Hop(hop, answers.clone()));
        sent.map_err(|_| "protocol error: more chains than the traversal has".to_string())
    }

    /// Dispatches a message from a link: a refusal goes to its traversal, and a lost link is reported to all
    /// traversals.
    fn hear(&self, address: &str, said: LinkMessage) {
        let doors = self.doors();
        let tell = |door: &HopInbox, event: Event| drop(door.inbox.try_send(event));
        let address = address.to_string();
        match said {
            LinkMessage::Hop(hop @ Hop { what: HopKind::Refused, .. }, why) => {
                let why = short(&String::from_utf8_lossy(&why)).into_owned();
                doors.get(&hop.session).inspect(|door| tell(door, Event::Refused { hop, address, why }));
            }
            // Links between nodes transfer no answers except refusals.
            LinkMessage::Hop(..) => {}
            LinkMessage::Lost(_) => doors.values().for_each(|door| tell(door, Event::Lost)),
        }
    }
}

impl Agent {
    /// Returns the link to another node, which has shown this certificate: an open link if there is one, otherwise a
    /// new link.
    fn link(&self, address: &str, certificate: Option<&str>) -> Result<Arc<Link>> {
        let mut links = self.0.traversals.links.lock().expect("no panic under this lock");
        let found = links.get(address).and_then(Weak::upgrade).filter(|link| !link.is_closed());
        if let Some(link) = found {
            return Ok(link);
        }
        let credentials = self.0.config.credentials.as_ref().map(|own| own.as_client());
        let (host, named) = parsed(address).ok_or_else(|| Error::Address {
            address: address.to_string(),
            what: "this is not an address of a node: expected HOST or HOST:PORT".to_string(),
        })?;
        if let Some(own) = &self.0.config.credentials {
            own.check_peer(address, certificate)?;
        }
        let node = Node::new(&host, named, &ClientConfig::new(Vec::new(), credentials))?;
        let (agent, called) = (self.clone(), address.to_string());
        let link = Arc::new(Link::open(&Handle::current(), Arc::new(node), move |said| {
            agent.0.traversals.hear(&called, said);
            futures::future::ready(()).boxed()
        }));
        links.retain(|_, link| link.strong_count() > 0);
        links.insert(address.to_string(), Arc::downgrade(&link));
        Ok(link)
    }

    /// Receives hops from a link, and returns the stream of answers.
    pub(super) fn take_hops(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> std::result::Result<BoxStream<'static, AnswerResult>, Refusal> {
        let caller = request.extensions().get::<Caller>();
        let is_nodes = caller.is_some_and(|caller| caller.rights.contains(&Right::Relay));
        let caller = self.allowed(&request, if is_nodes { &[Right::Relay] } else { &[Right::Run] })?;
        let (out, mut answers) = mpsc::channel::<AnswerResult>(ANSWERS);
        let (agent, mut hops) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            loop {
                let taken = tokio::time::timeout(LOOK, hops.message()).await;
                let is_needed =
                    || !agent.0.draining.load(Ordering::Relaxed) || !agent.0.traversals.doors().is_empty();
                let message = match taken {
                    Err(_) if is_needed() => continue,
                    Ok(Ok(Some(message))) => message,
                    _ => return,
                };
                let Some(hop) = Hop::decode(&message.app_metadata) else {
                    let what = "invalid request: expected a step of a traversal";
                    let _ = out.send(Err(agent.refuse(Refusal::invalid_argument(what)))).await;
                    return;
                };
                if let Err(why) = agent.0.traversals.deliver(&caller, hop, &out) {
                    let refused = Hop { what: HopKind::Refused, ..hop };
                    if out.send(Ok(refused.encode(why.into_bytes().into()))).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(futures::stream::poll_fn(move |context| answers.poll_recv(context)).boxed())
    }
}

/// The task handler for a node's part of a traversal.
#[derive(Debug)]
pub(super) struct TraversalHandler {
    agent: Agent,
    client: String,
    session: Session,
    arguments: Arguments,
}

impl TraversalHandler {
    /// Creates the handler from a request.
    ///
    /// # Errors
    /// Returns the reason why the request is invalid.
    pub fn new(
        agent: &Agent,
        caller: &Caller,
        asked: &TaskRequest,
    ) -> std::result::Result<TraversalHandler, Refusal> {
        let bad = |what: String| Refusal::invalid_argument(format!("invalid traversal: {what}"));
        let arguments: Arguments =
            serde_json::from_value(asked.arguments.clone()).map_err(|error| bad(error.to_string()))?;
        if let Some(fault) = arguments.fault() {
            return Err(bad(fault.to_string()));
        }
        let session = arguments.session().expect("it has no fault");
        if asked.pieces.iter().any(|piece| piece.number >= arguments.ends.len() as u64) {
            return Err(bad("a piece has an unknown number".to_string()));
        }
        Ok(TraversalHandler { agent: agent.clone(), client: caller.name.clone(), session, arguments })
    }

    /// Registers the traversal's inbox, so that hops are delivered from here on.
    fn open(&self) -> std::result::Result<(InboxGuard<'_>, threads::Receiver<Event>), Failure> {
        let (inbox, events) = threads::sync_channel(self.arguments.chains as usize + 16);
        let mut doors = self.agent.0.traversals.doors();
        if doors.len() >= TRAVERSALS_MAX {
            return Err(
                format!("{TRAVERSALS_MAX} traversals are running already, the limit of the node").into()
            );
        }
        if doors.contains_key(&self.session) {
            return Err("a traversal with this id is running already".into());
        }
        doors.insert(self.session, HopInbox { client: self.client.clone(), inbox });
        Ok((InboxGuard(self), events))
    }
}

/// Removes the traversal's inbox when dropped.
struct InboxGuard<'a>(&'a TraversalHandler);

impl Drop for InboxGuard<'_> {
    fn drop(&mut self) {
        self.0.agent.0.traversals.doors().remove(&self.0.session);
    }
}

impl TaskHandler for TraversalHandler {
    fn kind(&self) -> &'static str {
        TRAVERSE
    }

    fn takes_slot(&self) -> bool {
        false
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, sources, .. } = task;
        let arguments = &self.arguments;
        let mut own: Vec<Option<CheckedFile>> = vec![None; arguments.ends.len()];
        for source in sources {
            let source = source?;
            let piece = source.number as usize;
            let (name, opened) = source.source.open(&job);
            let OpenedSource::Dataset(_, file, range) = opened? else {
                return Err("a piece is not a file of a dataset".into());
            };
            let pages = arguments.ends[piece] - arguments.first_page(piece);
            if range != (0..pages * arguments.pointers.page_bytes) {
                return Err(format!("{name} does not have the {pages} pages that the client expects").into());
            }
            own[piece] = Some(file);
        }
        let spare = buffers(&job, arguments, &own)?;
        let (opening, events) = self.open()?;
        let mut visiting = RunningTraversal {
            visits: self,
            job: &job,
            runtime: Handle::current(),
            remembered: vec![false; own.len()],
            own,
            spare,
            reads: Vec::new(),
            flying: Vec::new(),
            links: BTreeMap::new(),
            reply,
            visited: TraversalSummary::default(),
        };
        visiting.tell(ReportKind::Ready, &ChainVisit::nobodys(), String::new())?;
        let ended = visiting.run(&events);
        drop(opening);
        ended?;
        Ok(json!(visiting.visited))
    }
}

/// Allocates page buffers: one buffer per chain, or as many as fit into half of the free memory.
fn buffers(
    job: &Job,
    arguments: &Arguments,
    own: &[Option<CheckedFile>],
) -> std::result::Result<Vec<Buffer>, Failure> {
    let page = arguments.pointers.page_bytes as usize;
    let needed = |file: &CheckedFile| {
        let block = file.block_bytes();
        let is_whole = page.is_multiple_of(block) || block.is_multiple_of(page);
        page.next_multiple_of(block) + if is_whole { 0 } else { block }
    };
    let each = own.iter().flatten().map(needed).max().unwrap_or(4096).next_multiple_of(4096);
    let room = job.budget().free_bytes() as usize / 2 / each;
    let count = (arguments.chains as usize).min(DEPTH_MAX).min(room).max(1);
    Ok(Buffer::zeroed(job.budget(), count * each, "pages of chains")?.split(each))
}

/// A chain or a read request on this node.
struct ChainVisit {
    hop: Hop,
    answers: Option<mpsc::Sender<AnswerResult>>,
    came: Instant,
    /// The time up to which the visit was added to the counters.
    counted: Instant,
}

impl ChainVisit {
    /// Returns a placeholder visit for reports that concern no chain.
    fn nobodys() -> ChainVisit {
        let (what, walked) = (HopKind::GoOn, ChainPosition::default());
        let hop = Hop { session: [0; 16], what, chain: u32::MAX, walked, unheard: Duration::ZERO };
        ChainVisit { hop, answers: None, came: Instant::now(), counted: Instant::now() }
    }
}

/// The state of a running traversal.
struct RunningTraversal<'a> {
    visits: &'a TraversalHandler,
    job: &'a Job,
    runtime: Handle,
    /// The pieces in this node's store.
    own: Vec<Option<CheckedFile>>,
    /// True for each piece whose extent headers were loaded into memory, as far as memory allows.
    remembered: Vec<bool>,
    spare: Vec<Buffer>,
    /// The pending page reads.
    reads: Vec<PendingRead>,
    /// The visit of each pending read, at the index of the read in `reads`, with the start time of the read.
    flying: Vec<(ChainVisit, Instant)>,
    links: BTreeMap<u16, Arc<Link>>,
    reply: &'a mut dyn Reply,
    visited: TraversalSummary,
}

/// The number of extents whose headers a file always holds in memory.
const FEW_EXTENTS: u64 = 64;

impl RunningTraversal<'_> {
    /// Processes events and pages until the client ends the traversal.
    fn run(&mut self, events: &threads::Receiver<Event>) -> std::result::Result<(), Failure> {
        loop {
            self.job.check_cancelled()?;
            while !self.spare.is_empty() {
                let event = match self.reads.is_empty() {
                    true => events.recv_timeout(PATIENCE).ok(),
                    false => events.try_recv().ok(),
                };
                let Some(event) = event else { break };
                if !self.take(event)? {
                    return Ok(());
                }
            }
            match self.reads.is_empty() {
                false => self.take_page()?,
                // The client has received a report of each unreadable page.
                true if self.spare.is_empty() => return Err("too many pages cannot be read".into()),
                true => self.look_at_links()?,
            }
        }
    }

    /// Handles an event. Returns false if the traversal ends.
    fn take(&mut self, event: Event) -> std::result::Result<bool, Failure> {
        match event {
            Event::Hop(Hop { what: HopKind::End, .. }, _) => return Ok(false),
            Event::Hop(hop @ Hop { what: HopKind::GoOn | HopKind::Read, .. }, answers) => {
                self.visited.visits += 1;
                let came = Instant::now();
                self.visit(ChainVisit { hop, answers: Some(answers), came, counted: came })?;
            }
            // This node has requested no pages from other nodes, so other kinds of hops are ignored.
            Event::Hop(..) => {}
            Event::Refused { hop, address, why } => {
                let visit = ChainVisit { hop, ..ChainVisit::nobodys() };
                self.unreached(&visit, &address, why)?;
            }
            Event::Lost => self.look_at_links()?,
        }
        Ok(true)
    }

    /// Reports broken links to the client, since the last messages on a broken link may not have arrived.
    fn look_at_links(&mut self) -> std::result::Result<(), Failure> {
        while let Some((&peer, _)) = self.links.iter().find(|(_, link)| link.is_closed()) {
            let link = self.links.remove(&peer).expect("just found");
            self.unreached(&ChainVisit::nobodys(), &self.visits.arguments.nodes[peer as usize], link.why())?;
        }
        Ok(())
    }

    /// Begins to read the page of a chain, or sends the chain to the node that holds the page.
    fn visit(&mut self, visit: ChainVisit) -> std::result::Result<(), Failure> {
        let arguments = &self.visits.arguments;
        let Hop { what, walked, .. } = visit.hop;
        if what == HopKind::GoOn && walked.steps >= arguments.steps {
            return self.leave(visit, ReportKind::Done, String::new());
        }
        if walked.page >= arguments.pages() || walked.hops > walked.steps.saturating_add(1) {
            let what =
                format!("page {} was requested, and the file has {} pages", walked.page, arguments.pages());
            return self.leave(visit, ReportKind::Bad, what);
        }
        let piece = arguments.piece(walked.page);
        let Some(file) = self.own[piece].clone() else { return self.hand_on(visit, piece) };
        if !self.remembered[piece] && file.len() > FEW_EXTENTS * inshore_store::EXTENT_BYTES as u64 {
            // An error is ignored here, since reading the page then also returns an error.
            let _ = file.remember_headers(self.job);
        }
        self.remembered[piece] = true;
        let page_bytes = arguments.pointers.page_bytes;
        let from = (walked.page - arguments.first_page(piece)) * page_bytes;
        let began = Instant::now();
        let buffer = self.spare.pop().expect("one is spare where anything is taken");
        match file.submit_read(self.job, from..from + page_bytes, buffer) {
            Ok(read) => {
                self.reads.push(read);
                self.flying.push((visit, began));
                Ok(())
            }
            // The buffer is lost with the failed read. This does no harm, since the client begins a new attempt that
            // does not use this copy of the page.
            Err(error) => self.leave(visit, ReportKind::Unreadable, error.to_string()),
        }
    }

    /// Waits for a page, and moves the chain of the page one step further.
    fn take_page(&mut self) -> std::result::Result<(), Failure> {
        let place = PendingRead::wait_any(&self.reads);
        let read = self.reads.swap_remove(place);
        let (mut visit, began) = self.flying.swap_remove(place);
        let (buffer, range) = match read.wait() {
            Ok(read) => read,
            Err(error) if error.is_cancelled() => return Err(error.into()),
            Err(error) => return self.leave(visit, ReportKind::Unreadable, error.to_string()),
        };
        let now = Instant::now();
        self.visited.reads += 1;
        self.visited.storage_seconds += (now - began).as_secs_f64();
        let arguments = &self.visits.arguments;
        if visit.hop.what == HopKind::Read {
            let page = Bytes::copy_from_slice(&buffer[range]);
            self.spare.push(buffer);
            return self.answer(visit, HopKind::Page, page);
        }
        let next = arguments.pointers.next(&buffer[range]);
        self.spare.push(buffer);
        if next == LAST_PAGE {
            return self.leave(visit, ReportKind::Ended, String::new());
        }
        if next >= arguments.pages() {
            let (page, pages) = (visit.hop.walked.page, arguments.pages());
            let what = format!("page {page} points to page {next}, and the file has {pages} pages");
            return self.leave(visit, ReportKind::Bad, what);
        }
        visit.hop.walked.step(next);
        visit.hop.unheard += now - visit.counted;
        visit.counted = now;
        if visit.hop.unheard > UNHEARD_MAX {
            visit.hop.unheard = Duration::ZERO;
            self.tell(ReportKind::Progress, &visit, String::new())?;
        }
        self.visit(visit)
    }

    /// Sends a chain to a node that holds the piece, or returns the chain to the client.
    fn hand_on(&mut self, mut visit: ChainVisit, piece: usize) -> std::result::Result<(), Failure> {
        let arguments = &self.visits.arguments;
        if visit.hop.what == HopKind::Read {
            return self.leave(visit, ReportKind::Nowhere, "the node does not have the page".to_string());
        }
        if !arguments.by_itself {
            return self.answer(visit, HopKind::Left, Bytes::new());
        }
        let Some(peer) = arguments.holders[piece] else {
            return self.leave(visit, ReportKind::Nowhere, String::new());
        };
        let address = &arguments.nodes[peer as usize];
        let link = match self.links.get(&peer).filter(|link| !link.is_closed()) {
            Some(link) => link.clone(),
            None => match self.visits.agent.link(address, arguments.certificate(peer)) {
                Ok(link) => {
                    self.links.insert(peer, link.clone());
                    link
                }
                Err(error) => return self.unreached(&visit, address, error.to_string()),
            },
        };
        visit.hop.walked.hops += 1;
        self.count(&mut visit);
        let message = visit.hop.encode(Bytes::new());
        let sent = send(&self.runtime, link.out(), message, || Ok(self.job.check_cancelled()?))?;
        match sent.is_some() && !link.is_closed() {
            true => Ok(()),
            false => self.unreached(&visit, address, link.why()),
        }
    }

    /// Sends an answer on the link on which a visit arrived.
    fn answer(
        &mut self,
        mut visit: ChainVisit,
        what: HopKind,
        body: Bytes,
    ) -> std::result::Result<(), Failure> {
        self.count(&mut visit);
        let Some(answers) = visit.answers.take() else { return Ok(()) };
        let message = Hop { what, ..visit.hop }.encode(body);
        // If the receiver was dropped, the client has disconnected, and the stream that cancels this task
        // ends too.
        send(&self.runtime, &answers, Ok(message), || Ok(self.job.check_cancelled()?))?;
        Ok(())
    }

    /// Adds the time of a visit on this node to the counters.
    fn count(&mut self, visit: &mut ChainVisit) {
        let now = Instant::now();
        self.visited.inside_seconds += (now - visit.came).as_secs_f64();
        visit.hop.unheard += now - visit.counted;
        visit.counted = now;
    }

    /// Ends a visit: reports the end of a chain to the client, and answers a read request on its link.
    fn leave(
        &mut self,
        mut visit: ChainVisit,
        said: ReportKind,
        text: String,
    ) -> std::result::Result<(), Failure> {
        if visit.hop.what == HopKind::Read && said != ReportKind::Unreadable {
            return self.answer(visit, HopKind::Refused, text.into_bytes().into());
        }
        self.count(&mut visit);
        self.tell(said, &visit, text)
    }

    fn unreached(
        &mut self,
        visit: &ChainVisit,
        address: &str,
        why: String,
    ) -> std::result::Result<(), Failure> {
        let nodes = &self.visits.arguments.nodes;
        let peer = nodes.iter().position(|node| node == address).map_or(u64::MAX, |peer| peer as u64);
        let Hop { chain, walked, .. } = visit.hop;
        let telling = TraversalReport { said: ReportKind::Unreached, chain, walked, peer, text: why };
        self.reply.batch(telling.batch())
    }

    fn tell(
        &mut self,
        said: ReportKind,
        visit: &ChainVisit,
        text: String,
    ) -> std::result::Result<(), Failure> {
        let Hop { chain, walked, .. } = visit.hop;
        self.reply.batch(TraversalReport { said, chain, walked, peer: u64::MAX, text }.batch())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use inshore_kernel::TaskHandlers;
    use inshore_store::Store;

    use super::*;
    use crate::{AgentConfig, Authority};

    #[test]
    fn a_node_tries_no_connection_to_a_host_for_which_there_is_no_certificate() {
        let (authority, day) = (Authority::create().unwrap(), Duration::from_secs(86_400));
        let named = |host: &str| authority.node("n", &[host.to_string()], day).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let credentials = Some(named("127.0.0.1"));
        let config = AgentConfig { credentials, ..AgentConfig::new("n", 64 << 20, 1) };
        let agent = Agent::new(Store::open(folder.path()).unwrap(), TaskHandlers::default(), config);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_tried = |certificate: Option<&str>, wait: Duration| {
            let link = agent.link(&address, certificate);
            let until = Instant::now() + wait;
            while listener.accept().is_err() {
                if Instant::now() > until {
                    return (link.map(drop), false);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            (link.map(drop), true)
        };
        let foreign = Authority::create().unwrap().node("n", &["127.0.0.2".to_string()], day).unwrap();
        for other in
            [None, Some("no certificate"), Some(&named("127.0.0.1").certificate), Some(&foreign.certificate)]
        {
            let (link, is_tried) = is_tried(other, Duration::from_millis(200));
            assert!(matches!(link, Err(Error::Credentials { .. })), "{link:?}");
            assert!(!is_tried, "{other:?}");
        }
        let (link, is_tried) = is_tried(Some(&named("127.0.0.2").certificate), Duration::from_secs(20));
        assert!(link.is_ok() && is_tried, "{link:?}");
    }
}
