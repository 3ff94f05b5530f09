//! Tests connections that send no request.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

pub fn closed(credentials: bool, limits: impl FnOnce(&mut AgentConfig)) -> (RunningAgent, Nodes, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("door");
    let day = Duration::from_secs(86_400);
    let mut own = None;
    if credentials {
        let authority = Authority::create().unwrap();
        config.credentials = Some(authority.node("a", &["127.0.0.1".to_string()], day).unwrap());
        own = Some(authority.client("writer", &Right::ALL, day).unwrap());
    }
    limits(&mut config);
    let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&Plan::default()), config);
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let nodes = client(vec![serving.address().to_string()], own);
    (serving, nodes, folder)
}

/// Opens `count` connections that each send these bytes and nothing more.
fn silent(address: SocketAddr, count: usize, says: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(says);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

/// Reads to the end, and returns true if the server has closed the connection.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn silent_connections_lock_nobody_out_and_are_closed() {
    let check = |credentials: bool, says: &[u8]| {
        let (serving, nodes, _folder) = closed(credentials, |config| {
            (config.connections, config.connections_per_address) = (16, 16);
            config.first_request = Duration::from_secs(4);
        });
        let silent = silent(serving.address(), 200, says);
        let began = Instant::now();
        assert_eq!(nodes.status().remove(0).status.unwrap().name, "door", "{says:?}");
        assert!(began.elapsed() < PATIENCE, "it waited for {:?}", began.elapsed());
        let began = Instant::now();
        assert!(silent.into_iter().all(is_closed), "{says:?}");
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        // The connection with a request stays open.
        thread::sleep(Duration::from_millis(4500));
        assert!(nodes.status().remove(0).status.is_ok());
        let counts = serving.agent().status().connections;
        assert_eq!((counts.open, counts.opened, counts.without_request), (1, 201, 200), "{counts:?}");
    };
    // The cases run in parallel, since most of the time is waiting.
    thread::scope(|scope| {
        for (credentials, says) in [(true, &b""[..]), (true, b"\x16\x03\x01"), (false, PREFACE)] {
            scope.spawn(move || check(credentials, says));
        }
    });
}

#[test]
fn a_connection_whose_tokens_are_wrong_is_a_silent_one() {
    let (serving, _nodes, _folder) = closed(true, |config| config.first_request = Duration::from_millis(500));
    let day = Duration::from_secs(86_400);
    let other = Authority::create().unwrap().client("stranger", &Right::ALL, day).unwrap();
    let foreign = client(vec![serving.address().to_string()], Some(other));
    assert!(foreign.status().remove(0).status.is_err());
    until("it stays open", || serving.agent().status().connections.open == 0);
    assert_eq!(serving.agent().status().connections.without_request, 1);
}

/// Returns a client that waits for admission at most this long.
fn impatient(serving: &RunningAgent, patience: Duration) -> Nodes {
    client(vec![serving.address().to_string()], None).begin(Deadline::after(patience))
}

#[test]
fn connections_that_asked_are_not_closed_for_others() {
    let (serving, nodes, _folder) = closed(false, |config| {
        (config.connections, config.connections_per_address) = (3, 2);
        config.first_request = Duration::from_millis(300);
    });
    let second = client(vec![serving.address().to_string()], None);
    assert!(nodes.status().remove(0).status.is_ok() && second.status().remove(0).status.is_ok());
    let third = impatient(&serving, Duration::from_millis(700));
    let error = told(third.status().remove(0).status.unwrap_err());
    // On a busy machine, the client's last request may run into its deadline.
    let is_told = error.contains("2 connections from this address are open");
    assert!(is_told || error.contains("deadline"), "{error}");
    assert_eq!(serving.agent().status().connections.refused_address, 1);
    // A client with more time waits for admission, longer than a connection without requests may stay.
    let fourth = client(vec![serving.address().to_string()], None);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| fourth.status().remove(0).status.map(drop));
        until("it is not told to come again", || serving.agent().status().connections.refused_address == 2);
        thread::sleep(Duration::from_millis(600));
        assert!(!waiting.is_finished());
        drop(second);
        waiting.join().unwrap().unwrap();
    });
    assert!(nodes.status().remove(0).status.is_ok());
}

#[test]
fn a_hundred_clients_at_once_from_one_address_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create().unwrap();
    let day = Duration::from_secs(86_400);
    let credentials = Some(authority.node("a", &["127.0.0.1".to_string()], day).unwrap());
    let agent = Agent::new(
        Store::open(folder.path()).unwrap(),
        works(&Plan::default()),
        AgentConfig { credentials, first_request: PATIENCE, ..config("door") },
    );
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let own = authority.client("writer", &Right::ALL, day).unwrap();
    let all = std::sync::Barrier::new(100);
    thread::scope(|scope| {
        let ask = || {
            let nodes = client(vec![serving.address().to_string()], Some(own.clone()));
            all.wait();
            let status = nodes.status().remove(0).status.map(drop);
            // All admitted connections stay open until the other clients were refused once.
            let refused = || serving.agent().status().connections.refused_address;
            until("nobody is told to come again", || refused() >= 36);
            status.map_err(told)
        };
        let asked: Vec<_> = (0..100).map(|_| scope.spawn(ask)).collect();
        let answers: Vec<_> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    });
    assert_eq!(serving.agent().status().connections.without_request, 0);
}
