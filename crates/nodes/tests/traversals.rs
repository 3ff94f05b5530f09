//! Tests traversals over chains of pages on several agents in one process.

use std::{
    io::Cursor,
    thread,
    time::{Duration, Instant},
};

use arrow_flight::{FlightData, Ticket, flight_service_client::FlightServiceClient};
use inshore_kernel::{Parts, TaskHandlers};
use inshore_nodes::{
    Agent, AgentConfig, Authority, CHAINS_MAX, ChainPosition, ClientConfig, ClientCredentials, Error,
    LAST_PAGE, LoadOptions, NodeCredentials, Nodes, Pointers, Right, RunningAgent, STEPS_MAX, TraversalSide,
    TraverseOptions, Traversed,
};
use inshore_store::{Budget, Cancel, Context, Deadline, Store};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest time that a test waits for an expected event. Only a failing test waits this long, so that a busy
/// machine causes no failures.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

const ALL: [TraversalSide; 3] = [TraversalSide::Nodes, TraversalSide::Turns, TraversalSide::Client];

/// A cluster of nodes in this process.
struct Cluster {
    serving: Vec<Option<RunningAgent>>,
    folders: Vec<TempDir>,
    nodes: Nodes,
}

fn config(name: &str) -> AgentConfig {
    AgentConfig { drain: Duration::from_millis(100), ..AgentConfig::new(name, 64 << 20, 2) }
}

fn client(addresses: Vec<String>, credentials: Option<ClientCredentials>) -> Nodes {
    let config = ClientConfig {
        connect: PATIENCE,
        silence: PATIENCE,
        answer: PATIENCE,
        ..ClientConfig::new(addresses, credentials)
    };
    Nodes::new(config).unwrap()
}

fn job() -> Context {
    Context::new(Budget::new(64 << 20, 2), Cancel::default())
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        Cluster::with(count, config)
    }

    fn with(count: usize, config: impl Fn(&str) -> AgentConfig) -> Cluster {
        let folders: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let serve = |(number, folder): (usize, &TempDir)| {
            let works = TaskHandlers::default().with(Parts::<inshore_kernel::Contents>::default());
            let agent = Agent::new(Store::open(folder.path()).unwrap(), works, config(&format!("n{number}")));
            agent.serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let serving: Vec<RunningAgent> = folders.iter().enumerate().map(serve).collect();
        let nodes = client(serving.iter().map(|serving| serving.address().to_string()).collect(), None);
        Cluster { serving: serving.into_iter().map(Some).collect(), folders, nodes }
    }

    fn addresses(&self) -> Vec<String> {
        self.serving.iter().flatten().map(|serving| serving.address().to_string()).collect()
    }

    fn put(&self, name: &str, file: &[u8], pages_of_piece: u64, copies: usize) {
        put(&self.nodes, name, file, pages_of_piece * PAGE, copies);
    }

    fn running(&self) -> usize {
        let status = |serving: &RunningAgent| serving.agent().status().running.len();
        self.serving.iter().flatten().map(status).sum()
    }

    fn is_idle_soon(&self) {
        let used = |serving: &RunningAgent| serving.agent().status().memory_used_bytes;
        until("a traversal runs on", || {
            self.running() == 0 && self.serving.iter().flatten().map(used).sum::<u64>() == 0
        });
    }
}

fn put(nodes: &Nodes, name: &str, file: &[u8], piece_bytes: u64, copies: usize) {
    let options = LoadOptions {
        copies,
        piece_bytes: Some(piece_bytes),
        record_bytes: Some(PAGE),
        block_bytes: 4096,
        ..LoadOptions::default()
    };
    nodes.put(&job(), name, ("pages", Some(file.len() as u64)), Cursor::new(file), &options).unwrap();
}

fn traverse(
    nodes: &Nodes,
    name: &str,
    starts: &[u64],
    options: &TraverseOptions,
) -> Result<Traversed, Error> {
    traverse_in(&job(), nodes, name, starts, options)
}

fn traverse_in(
    job: &Context,
    nodes: &Nodes,
    name: &str,
    starts: &[u64],
    options: &TraverseOptions,
) -> Result<Traversed, Error> {
    // A hanging test ends with a deadline error.
    let nodes = nodes.begin(Deadline::after(PATIENCE));
    let whole = nodes.catalog()?.named(name)?.remove(0);
    nodes.traverse(job, &whole, starts, options)
}

/// The page size of most tests, in bytes.
const PAGE: u64 = 4096;
/// The offset of the pointer within a page, in bytes.
const AT: u64 = 24;

fn options(steps: u64, by: TraversalSide) -> TraverseOptions {
    let pointers = Pointers { page_bytes: PAGE, at: AT };
    TraverseOptions { pointers, steps, by, ..TraverseOptions::default() }
}

/// Returns a file whose page n points to page `pointers[n]`.
fn file(pointers: &[u64]) -> Vec<u8> {
    let mut file = vec![0xee; pointers.len() * PAGE as usize];
    for (page, pointer) in file.chunks_exact_mut(PAGE as usize).zip(pointers) {
        page[AT as usize..AT as usize + 8].copy_from_slice(&pointer.to_le_bytes());
    }
    file
}

/// Returns a single cycle through all pages, in pseudo-random order.
fn cycle(pages: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    let mut state = 88_172_645_463_325_252u64;
    for left in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(left, (state % (left as u64 + 1)) as usize);
    }
    let mut pointers = vec![0; pages as usize];
    for (place, &page) in order.iter().enumerate() {
        pointers[page as usize] = order[(place + 1) % order.len()];
    }
    pointers
}

/// Walks a chain in memory as the reference: returns the final position, and true if the chain ended at a
/// last page.
fn walked(pointers: &[u64], start: u64, steps: u64) -> (ChainPosition, bool) {
    let mut walked = ChainPosition::at(start);
    while walked.steps < steps {
        let next = pointers[walked.page as usize];
        if next == LAST_PAGE {
            return (walked, true);
        }
        walked.step(next);
    }
    (walked, false)
}

fn is_right(done: &Traversed, pointers: &[u64], starts: &[u64], steps: u64) {
    assert_eq!(done.chains.len(), starts.len());
    for (chain, &start) in done.chains.iter().zip(starts) {
        let (expected, ended) = walked(pointers, start, steps);
        let found = ChainPosition { hops: 0, ..chain.walked };
        assert_eq!((chain.start, found, chain.ended), (start, expected, ended));
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[test]
fn a_chain_gets_where_it_gets_on_one_machine() {
    let cluster = Cluster::new(3);
    let pointers = cycle(300);
    cluster.put("one", &file(&pointers), 16, 1);
    cluster.put("two", &file(&pointers), 7, 2);
    cluster.put("all", &file(&pointers), 16, 3);
    for by in ALL {
        for name in ["one", "two", "all"] {
            for (starts, steps) in [(&[0][..], 1000), (&[299, 5, 5, 0], 77), (&[3], 1), (&[3, 4], 0)] {
                let done = traverse(&cluster.nodes, name, starts, &options(steps, by)).unwrap();
                is_right(&done, &pointers, starts, steps);
                let reads: u64 = done.nodes.iter().map(|node| node.visited.reads).sum();
                assert_eq!(reads, steps * starts.len() as u64, "{by:?} {name}");
                // If every node holds all pages, no chain changes its node.
                let hops: u64 = done.chains.iter().map(|chain| chain.walked.hops).sum();
                let goes = name != "all" && by != TraversalSide::Client && steps > 50;
                assert_eq!(hops > 0, goes, "{by:?} {name} {hops}");
            }
        }
    }
    cluster.is_idle_soon();
}

#[test]
fn many_chains_go_at_once_and_some_end() {
    let cluster = Cluster::new(3);
    let mut pointers = cycle(200);
    pointers[17] = LAST_PAGE;
    pointers[18] = 18;
    cluster.put("pages", &file(&pointers), 9, 1);
    let starts: Vec<u64> = (0..200).collect();
    for by in ALL {
        let done = traverse(&cluster.nodes, "pages", &starts, &options(500, by)).unwrap();
        is_right(&done, &pointers, &starts, 500);
        assert!(done.chains.iter().any(|chain| chain.ended) && done.chains.iter().any(|chain| !chain.ended));
    }
}

#[test]
fn pages_that_the_client_keeps_are_not_fetched_again() {
    let cluster = Cluster::new(2);
    let pointers = cycle(64);
    cluster.put("pages", &file(&pointers), 8, 1);
    // The traversal goes ten times around the cycle of 64 pages. The first round fetches every page.
    for (kept, moved) in [(64, 64), (32, 64 + 9 * 32), (0, 640)] {
        let keep = TraverseOptions { keep_bytes: kept * (PAGE + 8), ..options(640, TraversalSide::Client) };
        let done = traverse(&cluster.nodes, "pages", &[7], &keep).unwrap();
        is_right(&done, &pointers, &[7], 640);
        assert_eq!((done.pages_moved, done.pages_kept), (moved, 640 - moved));
    }
    let large = TraverseOptions { keep_bytes: 1 << 40, ..options(10, TraversalSide::Client) };
    assert!(told(traverse(&cluster.nodes, "pages", &[7], &large).unwrap_err()).contains("budget"));
}

#[test]
fn pages_of_any_size_are_followed_wherever_blocks_end() {
    let cluster = Cluster::new(2);
    let pointers = cycle(100);
    for page_bytes in [8u64, 100, 5000, 12_288] {
        let mut file = vec![1; (page_bytes * 100) as usize];
        for (page, pointer) in file.chunks_exact_mut(page_bytes as usize).zip(&pointers) {
            page[page_bytes as usize - 8..].copy_from_slice(&pointer.to_le_bytes());
        }
        let load = LoadOptions {
            piece_bytes: Some(page_bytes * 30),
            record_bytes: Some(page_bytes),
            block_bytes: 8192,
            ..LoadOptions::default()
        };
        let name = format!("pages{page_bytes}");
        cluster.nodes.put(&job(), &name, ("pages", None), Cursor::new(&file), &load).unwrap();
        for by in ALL {
            let pointers_of = Pointers { page_bytes, at: page_bytes - 8 };
            let asked = TraverseOptions { pointers: pointers_of, ..options(150, by) };
            let done = traverse(&cluster.nodes, &name, &[1, 99], &asked).unwrap();
            is_right(&done, &pointers, &[1, 99], 150);
        }
    }
}

#[test]
fn what_is_no_file_of_pages_is_refused_before_anything_is_asked() {
    let cluster = Cluster::new(2);
    cluster.put("pages", &file(&cycle(10)), 4, 1);
    let lines = LoadOptions { piece_bytes: Some(5000), ..LoadOptions::default() };
    cluster
        .nodes
        .put(&job(), "lines", ("lines", None), Cursor::new("a line\n".repeat(2000)), &lines)
        .unwrap();
    let ask = |name: &str, starts: &[u64], options: TraverseOptions| {
        told(traverse(&cluster.nodes, name, starts, &options).unwrap_err())
    };
    let good = || options(10, TraversalSide::Nodes);
    let with = |page_bytes, at| TraverseOptions { pointers: Pointers { page_bytes, at }, ..good() };
    assert!(ask("lines", &[0], good()).contains("are not whole pages of 4096 bytes: put it with --record"));
    assert!(ask("pages", &[0], with(4095, 0)).contains("are not whole pages of 4095"));
    assert!(ask("pages", &[10], good()).contains("the starting page 10 does not exist: the file has 10"));
    assert!(ask("pages", &[u64::MAX], good()).contains("the starting page 18446744073709551615"));
    assert!(ask("pages", &[], good()).contains("chains, got 0"));
    assert!(ask("pages", &vec![0; CHAINS_MAX + 1], good()).contains("expected 1 to"));
    assert!(ask("pages", &[0], with(4096, 4089)).contains("byte 4089 are not within a page"));
    assert!(ask("pages", &[0], with(0, 0)).contains("are not within"));
    assert!(ask("pages", &[0], with(1 << 40, 0)).contains("are not within"));
    let far = TraverseOptions { steps: STEPS_MAX + 1, ..good() };
    assert!(ask("pages", &[0], far).contains("exceed the limit of"));
    let large = TraverseOptions { node_memory_bytes: Some(1 << 40), ..good() };
    assert!(ask("pages", &[0], large).contains("of memory free, and this task needs"));
    let small = TraverseOptions { node_memory_bytes: Some(100), ..good() };
    assert!(ask("pages", &[0], small).contains("pages of chains"));
}

#[test]
fn a_page_that_points_nowhere_is_named() {
    let cluster = Cluster::new(3);
    for nowhere in [100u64, 1 << 63, LAST_PAGE - 1] {
        let mut pointers = cycle(100);
        pointers[42] = nowhere;
        let name = format!("to{nowhere}");
        cluster.put(&name, &file(&pointers), 5, 1);
        for by in ALL {
            let error = told(traverse(&cluster.nodes, &name, &[0], &options(1000, by)).unwrap_err());
            assert!(
                error.contains("page 42 points to page") && error.contains(&nowhere.to_string()),
                "{error}"
            );
            assert!(error.contains("the file has 100") && error.contains(&name), "{error}");
            // The chain is followed up to the bad page.
            let before = pointers.iter().position(|&next| next == 42).unwrap() as u64;
            let done = traverse(&cluster.nodes, &name, &[before], &options(1, by)).unwrap();
            assert_eq!(done.chains[0].walked.page, 42);
        }
    }
    cluster.is_idle_soon();
}

#[test]
fn what_a_lost_node_has_comes_from_copies_or_the_page_is_named() {
    let mut cluster = Cluster::new(3);
    let pointers = cycle(200);
    cluster.put("copied", &file(&pointers), 10, 2);
    cluster.put("single", &file(&pointers), 10, 1);
    let lost = cluster.serving[1].take().unwrap();
    let address = lost.address().to_string();
    drop(lost);
    for by in ALL {
        let done = traverse(&cluster.nodes, "copied", &[0, 9], &options(400, by)).unwrap();
        is_right(&done, &pointers, &[0, 9], 400);
        let error = told(traverse(&cluster.nodes, "single", &[0], &options(400, by)).unwrap_err());
        assert!(error.contains(&address) && error.contains("was not read"), "{error}");
        // Pages on the remaining nodes can still be read.
        let on_first = pointers.iter().position(|&next| next / 10 % 3 == 0).unwrap() as u64;
        if on_first / 10 % 3 != 1 {
            let done = traverse(&cluster.nodes, "single", &[on_first], &options(1, by)).unwrap();
            is_right(&done, &pointers, &[on_first], 1);
        }
    }
}

/// A node dies during a traversal: chains resume from their last report to the client.
#[test]
fn a_node_that_dies_while_chains_are_on_their_way_is_done_without() {
    for (by, copies) in [
        (TraversalSide::Nodes, 2),
        (TraversalSide::Turns, 2),
        (TraversalSide::Client, 2),
        (TraversalSide::Nodes, 1),
        (TraversalSide::Client, 1),
    ] {
        let mut cluster = Cluster::new(3);
        let pointers = cycle(300);
        cluster.put("pages", &file(&pointers), 10, copies);
        let steps = 10_000;
        let dying = cluster.serving[0].take().unwrap();
        let address = dying.address().to_string();
        let done = thread::scope(|scope| {
            scope.spawn(move || {
                until("no traversal begins", || !dying.agent().status().running.is_empty());
                thread::sleep(Duration::from_millis(150));
                drop(dying);
            });
            traverse(&cluster.nodes, "pages", &[0, 150], &options(steps, by))
        });
        match copies {
            1 => {
                let error = told(done.unwrap_err());
                assert!(error.contains(&address) && error.contains("was not read"), "{error}");
            }
            _ => {
                let done = done.unwrap();
                is_right(&done, &pointers, &[0, 150], steps);
                assert!(done.nodes.iter().any(|node| node.lost.is_some()), "{by:?}: {:?}", done.nodes);
            }
        }
        cluster.is_idle_soon();
    }
}

#[test]
fn a_traversal_that_is_stopped_or_late_ends_on_all_nodes() {
    let cluster = Cluster::new(3);
    cluster.put("pages", &file(&cycle(100)), 3, 1);
    for by in ALL {
        let cancel = Cancel::default();
        let stopped = Context::new(Budget::new(64 << 20, 2), cancel.clone());
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                cancel.cancel();
            });
            traverse_in(&stopped, &cluster.nodes, "pages", &[0], &options(STEPS_MAX, by)).unwrap_err()
        });
        assert!(error.is_cancelled(), "{error}");
        cluster.is_idle_soon();
        let whole = cluster.nodes.catalog().unwrap().named("pages").unwrap().remove(0);
        let nodes = cluster.nodes.begin(Deadline::after(Duration::from_millis(300)));
        let began = Instant::now();
        let error = told(nodes.traverse(&job(), &whole, &[0], &options(STEPS_MAX, by)).unwrap_err());
        assert!(error.contains("deadline"), "{error}");
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        cluster.is_idle_soon();
    }
}

/// Chains cross all nodes in every order, and each node has a single slot.
#[test]
fn traversals_at_once_on_nodes_with_one_slot_do_not_wait_for_each_other() {
    let single = |name: &str| AgentConfig { slots: 1, queue: 1, ..config(name) };
    let cluster = Cluster::with(3, single);
    let pointers = cycle(300);
    cluster.put("pages", &file(&pointers), 5, 1);
    thread::scope(|scope| {
        for number in 0..4 {
            let (cluster, pointers) = (&cluster, &pointers);
            scope.spawn(move || {
                let by = ALL[number % 3];
                let starts = [number as u64, 100 + number as u64];
                let done = traverse(&cluster.nodes, "pages", &starts, &options(2000, by)).unwrap();
                is_right(&done, pointers, &starts, 2000);
            });
        }
    });
    cluster.is_idle_soon();
}

#[test]
fn a_node_takes_part_in_so_many_traversals_and_says_so() {
    let cluster = Cluster::with(1, |name| {
        // All clients share one address.
        AgentConfig { memory_bytes: 4 << 30, connections_per_address: 256, ..config(name) }
    });
    cluster.put("pages", &file(&cycle(10)), 10, 1);
    let cancel = Cancel::default();
    let whole = cluster.nodes.catalog().unwrap().named("pages").unwrap().remove(0);
    thread::scope(|scope| {
        for _ in 0..64 {
            // Each traversal has its own client, since one connection has at most 64 streams.
            let (cancel, whole, addresses) = (cancel.clone(), &whole, cluster.addresses());
            scope.spawn(move || {
                let nodes = client(addresses, None);
                let stopped = Context::new(Budget::new(64 << 20, 2), cancel);
                nodes.traverse(&stopped, whole, &[0], &options(STEPS_MAX, TraversalSide::Nodes)).unwrap_err()
            });
        }
        until("not all of them begin", || cluster.running() >= 64);
        let error = traverse(&cluster.nodes, "pages", &[0], &options(1, TraversalSide::Nodes));
        cancel.cancel();
        assert!(told(error.unwrap_err()).contains("64 traversals are running already"));
    });
    cluster.is_idle_soon();
}

/// The nodes connect to each other over TLS. One client has all rights, one client has no right to run, and one client
/// has a short-lived token.
#[test]
fn nodes_show_each_other_who_they_are_and_clients_get_no_more_than_they_may() {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create().unwrap();
    let names = ["127.0.0.1".to_string()];
    let cluster = Cluster::with(3, |name| {
        let credentials = Some(authority.node(name, &names, day).unwrap());
        AgentConfig { credentials, ..config(name) }
    });
    let with = |rights: &[Right], lifetime| {
        client(cluster.addresses(), Some(authority.client("writer", rights, lifetime).unwrap()))
    };
    let all = [Right::Read, Right::Run, Right::Write];
    let writer = with(&all, day);
    let pointers = cycle(100);
    put(&writer, "pages", &file(&pointers), 4 * PAGE, 1);
    for by in ALL {
        let done = traverse(&writer, "pages", &[0], &options(500, by)).unwrap();
        is_right(&done, &pointers, &[0], 500);
    }
    let reader = with(&[Right::Read, Right::Write], day);
    let error = told(traverse(&reader, "pages", &[0], &options(5, TraversalSide::Nodes)).unwrap_err());
    assert!(error.contains("no right to run"), "{error}");
    // This token expires during the test: requests after the expiry are refused.
    let lifetime = Duration::from_secs(5);
    let short = with(&all, lifetime);
    let made = Instant::now();
    let whole = writer.catalog().unwrap().named("pages").unwrap().remove(0);
    let done = short.traverse(&job(), &whole, &[0], &options(5, TraversalSide::Nodes)).unwrap();
    is_right(&done, &pointers, &[0], 5);
    thread::sleep((lifetime + Duration::from_millis(100)).saturating_sub(made.elapsed()));
    let error = told(short.traverse(&job(), &whole, &[0], &options(5, TraversalSide::Nodes)).unwrap_err());
    assert!(error.contains("has expired"), "{error}");
}

/// The nodes refuse each other's tokens, since the tokens have expired, lack the right to relay, or were signed by
/// another authority.
#[test]
fn a_node_that_cannot_show_who_it_is_hands_nothing_on_and_says_so() {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create().unwrap();
    let names = ["127.0.0.1".to_string()];
    let changed = |token: Value| {
        let mut value = serde_json::to_value(authority.node("old", &names, day).unwrap()).unwrap();
        value["token"] = token;
        serde_json::from_value::<NodeCredentials>(value).unwrap()
    };
    let token = |credentials: ClientCredentials| serde_json::to_value(credentials).unwrap()["token"].clone();
    let expired = token(authority.client("old", &[Right::Relay], Duration::ZERO).unwrap());
    let powerless = token(authority.client("old", &[Right::Read], day).unwrap());
    let foreign = token(Authority::create().unwrap().client("old", &[Right::Relay], day).unwrap());
    for (token, expected) in
        [(expired, "has expired"), (powerless, "no right to run"), (foreign, "not signed by the authority")]
    {
        let cluster = Cluster::with(2, |name| AgentConfig {
            credentials: Some(changed(token.clone())),
            ..config(name)
        });
        let own = authority.client("writer", &[Right::Read, Right::Run, Right::Write], day).unwrap();
        let writer = client(cluster.addresses(), Some(own));
        put(&writer, "pages", &file(&cycle(100)), 4 * PAGE, 1);
        let error = told(traverse(&writer, "pages", &[0], &options(500, TraversalSide::Nodes)).unwrap_err());
        assert!(
            error.contains(expected) && error.contains("cannot pass chains to it"),
            "{expected}: {error}"
        );
        // The client's own credentials are valid.
        let done = traverse(&writer, "pages", &[0], &options(500, TraversalSide::Turns)).unwrap();
        is_right(&done, &cycle(100), &[0], 500);
    }
}

/// A hostile client sends malformed messages. The node refuses each message, and continues to serve.
#[test]
fn steps_that_make_no_sense_are_refused_and_the_node_goes_on() {
    let cluster = Cluster::new(1);
    let pointers = cycle(20);
    cluster.put("pages", &file(&pointers), 20, 1);
    let whole = cluster.nodes.catalog().unwrap().named("pages").unwrap().remove(0);
    let address = cluster.addresses().remove(0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = FlightServiceClient::new(channel.connect().await.unwrap());
        // The following task requests are invalid.
        let arguments = json!({ "session": "ff", "pointers": { "page_bytes": PAGE, "at": AT }, "steps": 5, "chains": 1,
            "nodes": [address], "ends": [20], "holders": [0], "by_itself": true });
        let request = |change: &dyn Fn(&mut Value)| {
            let mut arguments = arguments.clone();
            change(&mut arguments);
            json!({ "version": 4, "kind": "traverse", "arguments": arguments, "pieces": [] })
        };
        for bad in [
            request(&|arguments| *arguments = json!({})),
            request(&|arguments| arguments["session"] = json!("-1")),
            request(&|arguments| arguments["pointers"]["at"] = json!(u64::MAX)),
            request(&|arguments| arguments["pointers"]["page_bytes"] = json!(0)),
            request(&|arguments| arguments["chains"] = json!(4_000_000_000u32)),
            request(&|arguments| arguments["ends"] = json!([u64::MAX])),
            request(&|arguments| arguments["ends"] = json!([])),
            request(&|arguments| arguments["holders"] = json!([7])),
        ] {
            let ticket = Ticket { ticket: bad.to_string().into() };
            assert!(client.do_get(ticket).await.is_err(), "{bad}");
        }
        // The traversal has no local pieces, and its only peer is the node itself, so chains would return to
        // the same node forever.
        let ticket = Ticket { ticket: request(&|_| {}).to_string().into() };
        let mut answers = client.do_get(ticket).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
        let step = |session: u8, what: u32, chain: u32, page: u64, steps: u64, hops: u64| {
            let mut bytes = vec![0; 15];
            bytes.push(session);
            bytes.extend(what.to_le_bytes());
            bytes.extend(chain.to_le_bytes());
            for number in [page, steps, 0, hops, 0] {
                bytes.extend(number.to_le_bytes());
            }
            FlightData { app_metadata: bytes.into(), ..FlightData::default() }
        };
        // The cases are: an unknown traversal, an invalid page, a page of another node, which is the node itself, and
        // a request to read such a page.
        let steps = [
            step(1, 1, 0, 0, 0, 0),
            step(0xff, 1, 0, u64::MAX, 0, 0),
            step(0xff, 1, u32::MAX, 3, 0, 0),
            step(0xff, 2, 9, 3, 0, 0),
            step(0xff, 2, 9, 99, u64::MAX, u64::MAX),
            step(0xff, 1, 0, 3, u64::MAX, u64::MAX),
        ];
        let sent = futures::StreamExt::chain(futures::stream::iter(steps), futures::stream::pending());
        let mut said = client.do_exchange(sent).await.unwrap().into_inner();
        for _ in 0..3 {
            let answer = said.message().await.unwrap().unwrap();
            assert_eq!(answer.app_metadata[16], 5, "{:?}", String::from_utf8_lossy(&answer.data_body));
        }
        for bytes in [&b""[..], b"x", &[0xff; 64], &[1; 1000]] {
            let message = FlightData { app_metadata: bytes.to_vec().into(), ..FlightData::default() };
            let mut said = client.do_exchange(futures::stream::iter([message])).await.unwrap().into_inner();
            assert!(said.message().await.is_err());
        }
        // There are more requests than the traversal has chains: some are refused, and none is queued.
        let many: Vec<FlightData> = (0..5000).map(|_| step(0xff, 2, 0, 99, 0, 0)).collect();
        let mut said = client.do_exchange(futures::stream::iter(many)).await.unwrap().into_inner();
        let mut count = 0;
        while let Ok(Some(_)) = said.message().await {
            count += 1;
        }
        assert_eq!(count, 5000);
    });
    drop(runtime);
    for by in ALL {
        let done = cluster.nodes.traverse(&job(), &whole, &[0], &options(50, by)).unwrap();
        is_right(&done, &pointers, &[0], 50);
    }
    cluster.is_idle_soon();
}

/// A page that is damaged on one drive is read from the copy on another node, or named in the error.
#[test]
fn a_damaged_page_comes_from_a_copy_or_is_named() {
    let cluster = Cluster::new(2);
    let pointers = cycle(64);
    let mut pages = file(&pointers);
    // A marker that identifies the page's bytes on the drive.
    let mark = b"this page will be damaged";
    pages[5 * PAGE as usize + 100..][..mark.len()].copy_from_slice(mark);
    cluster.put("copied", &pages, 64, 2);
    cluster.put("single", &pages, 64, 1);
    // Damages the page in all files on the first node, and in no file on the second node.
    let mut damaged = 0;
    for entry in std::fs::read_dir(cluster.folders[0].path()).unwrap().flatten() {
        let Ok(mut bytes) = std::fs::read(entry.path()) else { continue };
        let places: Vec<usize> = memchr::memmem::find_iter(&bytes, mark).collect();
        places.iter().for_each(|&place| bytes[place] ^= 1);
        damaged += places.len();
        if !places.is_empty() {
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
    assert!(damaged >= 2, "{damaged}");
    for by in ALL {
        let done = traverse(&cluster.nodes, "copied", &[0], &options(200, by)).unwrap();
        is_right(&done, &pointers, &[0], 200);
        let error = told(traverse(&cluster.nodes, "single", &[0], &options(200, by)).unwrap_err());
        assert!(error.contains("page 5") && error.contains("was not read"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_pointers_are_followed_as_the_naive_way_does(
        pointers in proptest::collection::vec(0u64..60, 60),
        lasts in proptest::collection::vec(0usize..60, 0..4),
        starts in proptest::collection::vec(0u64..60, 1..6),
        steps in 0u64..200,
        (nodes, copies, piece) in (1usize..4, 1usize..3, 1u64..20),
    ) {
        let mut pointers = pointers;
        lasts.into_iter().for_each(|page| pointers[page] = LAST_PAGE);
        let cluster = Cluster::new(nodes);
        cluster.put("pages", &file(&pointers), piece, copies.min(nodes));
        for by in ALL {
            let done = traverse(&cluster.nodes, "pages", &starts, &options(steps, by)).unwrap();
            is_right(&done, &pointers, &starts, steps);
        }
    }
}
