//! Tests nodes that accept connections and never answer. One deadline covers a complete command, and a
//! command waits for a lost node only once.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::*;

/// The time limit of a command in tests where the deadline has to end the command first.
const TIME: Duration = Duration::from_millis(700);

/// A proxy between client and node. A closed proxy accepts connections and bytes and sends nothing, as a
/// stopped process does.
#[derive(Clone)]
struct PausableProxy {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl PausableProxy {
    fn before(node: SocketAddr) -> PausableProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = PausableProxy {
            address: listener.local_addr().unwrap(),
            is_closed: Arc::default(),
            connections: Arc::default(),
        };
        let own = gate.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                own.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(node) = TcpStream::connect(node) else { continue };
                for (from, to) in [(&client, &node), (&node, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let is_closed = own.is_closed.clone();
                    thread::spawn(move || hand_on(from, to, &is_closed));
                }
            }
        });
        gate
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, is_closed: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !is_closed.load(Ordering::Relaxed) && to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Starts nodes behind proxies, and a client without short timeouts.
fn gated(count: usize) -> (Cluster, Vec<PausableProxy>, Nodes) {
    let cluster = Cluster::new(count);
    let gates = cluster.serving.iter().flatten().map(|serving| PausableProxy::before(serving.address()));
    let gates: Vec<PausableProxy> = gates.collect();
    let nodes = client(gates.iter().map(|gate| gate.address.to_string()).collect(), None);
    (cluster, gates, nodes)
}

fn put(nodes: &Nodes, input: impl Read, copies: usize) -> Result<(), Error> {
    let options = LoadOptions { copies, piece_bytes: Some(50_000), ..LoadOptions::default() };
    nodes.put(&job(), "text", ("text", None), input, &options).map(drop)
}

fn find_in(nodes: &Nodes, kernel: &Find) -> Result<Vec<(u64, u64)>, String> {
    let wholes = nodes.catalog().and_then(|catalog| catalog.named("text")).map_err(told)?;
    let mut places = Vec::new();
    let found =
        run_on_nodes(nodes, &job(), kernel, &wholes, &RunOptions::default(), |event: Event<'_, Find>| {
            places.extend(event.part.transpose()?.unwrap_or_default());
            Ok(Next::Go)
        });
    found.map(|_| places).map_err(told)
}

fn is_over_in_time(what: &str, began: Instant, error: &str) {
    assert!(error.contains("the deadline of 0.7 s has passed"), "{what}: {error}");
    assert!(began.elapsed() >= TIME && began.elapsed() < PATIENCE, "{what}: {:?}", began.elapsed());
}

/// An endless text that closes a proxy when its first bytes are read.
struct EndlessText(PausableProxy);

impl Read for EndlessText {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.close();
        buffer.fill(b'\n');
        Ok(buffer.len())
    }
}

#[test]
fn the_deadline_is_heard_in_every_phase() {
    let begin = |nodes: &Nodes| (Instant::now(), nodes.begin(Deadline::after(TIME)));
    let with_text = || {
        let (cluster, gates, nodes) = gated(2);
        put(&nodes, Cursor::new(text(20_000)), 1).unwrap();
        (cluster, gates, nodes)
    };
    // The cases run in parallel, since most of the time is waiting.
    thread::scope(|scope| {
        scope.spawn(|| {
            let (_cluster, gates, nodes) = gated(2);
            gates[1].close();
            let (began, nodes) = begin(&nodes);
            let error = told(nodes.catalog().unwrap_err());
            is_over_in_time("catalog", began, &error);
            assert!(error.contains(&gates[1].address.to_string()), "{error}");
        });
        scope.spawn(|| {
            let (_cluster, gates, nodes) = with_text();
            let (began, nodes) = begin(&nodes);
            let named = nodes.catalog().and_then(|catalog| {
                gates[0].close();
                catalog.named("text")
            });
            is_over_in_time("map", began, &told(named.unwrap_err()));
        });
        scope.spawn(|| {
            let (_cluster, gates, nodes) = gated(2);
            let (began, nodes) = begin(&nodes);
            let error = told(put(&nodes, EndlessText(gates[1].clone()), 1).unwrap_err());
            is_over_in_time("put", began, &error);
        });
        scope.spawn(|| {
            let (_cluster, gates, nodes) = with_text();
            let wholes = nodes.catalog().unwrap().named("text").unwrap();
            gates[1].close();
            let (began, nodes) = begin(&nodes);
            let kernel = find("needle");
            let run =
                run_on_nodes(&nodes, &job(), &kernel, &wholes, &RunOptions::default(), |_| Ok(Next::Go));
            let error = told(run.unwrap_err());
            is_over_in_time("task", began, &error);
            assert!(error.contains("store:text: bytes") && error.contains("were not read"), "{error}");
        });
        scope.spawn(|| {
            // The job of this machine has the same deadline, which also stops the threads of this machine.
            let (_cluster, _gates, nodes) = with_text();
            let wholes = nodes.catalog().unwrap().named("text").unwrap();
            let deadline = Deadline::after(TIME);
            let (began, nodes) = (Instant::now(), nodes.begin(deadline));
            let job = Context::new(Budget::new(64 << 20, 2), Cancel::at(deadline));
            let kernel = find("needle");
            let consume = |_: Event<'_, Find>| {
                until("the job goes on", || job.check_cancelled().is_err());
                Ok(Next::Go)
            };
            let run = run_on_nodes(&nodes, &job, &kernel, &wholes, &RunOptions::default(), consume);
            is_over_in_time("client", began, &told(run.unwrap_err()));
        });
        scope.spawn(|| {
            let (_cluster, gates, nodes) = with_text();
            gates[1].close();
            let (began, nodes) = begin(&nodes);
            is_over_in_time("remove", began, &told(nodes.remove("text").unwrap_err()));
        });
    });
}

#[test]
fn a_node_that_takes_the_connection_and_does_not_greet_is_lost_and_asked_no_more() {
    let day = Duration::from_secs(86_400);
    let (listener, taken) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(Mutex::new(Vec::new())));
    let address = listener.local_addr().unwrap().to_string();
    let kept = taken.clone();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| kept.lock().unwrap().push(stream)));
    let own = Authority::create().unwrap().client("reader", &[Right::Read], day).unwrap();
    let ask = |limit: fn(&mut ClientConfig)| {
        let mut config = ClientConfig {
            connect: PATIENCE,
            silence: PATIENCE,
            answer: PATIENCE,
            ..ClientConfig::new(vec![address.clone()], Some(own.clone()))
        };
        limit(&mut config);
        let nodes = Nodes::new(config).unwrap();
        let before = taken.lock().unwrap().len();
        let error = told(nodes.catalog().unwrap_err());
        assert!(error.contains(&address) && !error.contains("deadline"), "{error}");
        assert_eq!(nodes.lost().len(), 1);
        // A node that was lost stays lost for the complete command; the next command tries the node again.
        assert_eq!(told(nodes.catalog().unwrap_err()), error);
        assert_eq!(taken.lock().unwrap().len(), before + 1, "it is asked no more");
        assert!(nodes.begin(None).lost().is_empty());
    };
    ask(|config| config.connect = Duration::from_millis(300));
    ask(|config| config.silence = Duration::from_millis(300));
    // Half of the time is left for nodes that answer.
    ask(|config| config.deadline = Deadline::after(Duration::from_secs(3)));
}

#[test]
fn copies_make_up_for_a_node_that_is_lost_once() {
    let (cluster, gates, _) = gated(2);
    let text = text(20_000);
    cluster.put("text", &text, 2, 50_000);
    let addresses = gates.iter().map(|gate| gate.address.to_string()).collect();
    let silence = Duration::from_secs(2);
    let config =
        ClientConfig { connect: PATIENCE, silence, answer: PATIENCE, ..ClientConfig::new(addresses, None) };
    let nodes = Nodes::new(config).unwrap();
    assert_eq!(find_in(&nodes, &find("needle")).unwrap(), expected(&text));
    assert!(nodes.lost().is_empty());
    gates[1].close();
    for _ in 0..3 {
        assert_eq!(find_in(&nodes, &find("needle")).unwrap(), expected(&text));
    }
    let lost = nodes.lost();
    assert!(lost.len() == 1 && lost[0].0 == gates[1].address.to_string(), "{lost:?}");
    assert_eq!(gates[1].connections(), 1, "it is asked no more");
}
