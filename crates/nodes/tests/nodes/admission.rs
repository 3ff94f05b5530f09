//! Tests the limits on the memory that a node spends on incomplete requests.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    transport::{Certificate, Channel, ClientTlsConfig},
};

use super::{connections::closed, pages::within, *};

/// Sends a request to a method, with a body that begins with these parts and never ends.
async fn ask(mut channel: Channel, method: &str, token: Option<&str>, parts: Vec<Bytes>) -> Status {
    let parts = futures::stream::iter(parts).map(|part| Ok::<_, Status>(Frame::data(part)));
    let body = Body::new(StreamBody::new(parts.chain(futures::stream::pending())));
    let mut request =
        http::Request::post(format!("http://node/arrow.flight.protocol.FlightService/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    match channel.call(request.body(body).unwrap()).await {
        Ok(response) => Status::from_header_map(response.headers()).expect("an answer that is a refusal"),
        Err(error) => panic!("the connection broke: {error}"),
    }
}

/// Returns a message of `bytes` bytes without its last byte.
fn all_but_one(bytes: u32) -> Vec<Bytes> {
    let prefix = [&[0][..], &bytes.to_be_bytes()].concat();
    let part = Bytes::from(vec![b' '; 64 << 10]);
    let left = (bytes - 1) as usize;
    let parts = (0..left).step_by(part.len()).map(|from| part.slice(..part.len().min(left - from)));
    [Bytes::from(prefix)].into_iter().chain(parts).collect()
}

async fn connected(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

#[test]
fn unfinished_requests_take_a_share_of_the_memory_and_are_refused_beyond_that() {
    let (serving, nodes, _folder) = closed(false, |config| config.request = PATIENCE);
    let address = serving.address();
    let status = || serving.agent().status();
    let resident = status().resident_bytes;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let channel = runtime.block_on(connected(address));
    let asked: Vec<_> = (0..64)
        .map(|_| {
            let (channel, refused) = (channel.clone(), refused.clone());
            runtime.spawn(async move {
                let why = ask(channel, "DoGet", None, all_but_one(15 << 20)).await;
                assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
                refused.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    // The share of memory holds at most two of the requests; these stay open.
    let (mut most, mut resident_most) = (0, 0);
    until("they are not refused", || {
        let now = status();
        most = most.max(now.unfinished_bytes);
        resident_most = resident_most.max(now.resident_bytes);
        refused.load(Ordering::Relaxed) >= 62
    });
    // One frame of each request may exceed the share at the moment of the refusal.
    assert!(most < 36 << 20, "{most} bytes of unfinished requests");
    // Concurrent tests also use memory. 64 requests would take 960 MiB.
    assert!(resident_most.saturating_sub(resident) < 480 << 20, "{resident} bytes became {resident_most}");
    // A complete request is answered meanwhile.
    assert!(nodes.status().remove(0).status.is_ok());
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    drop((channel, runtime));
    until("what is gone is counted", || status().unfinished_bytes == 0);
}

#[test]
fn unfinished_requests_time_out() {
    let (serving, nodes, _folder) = closed(false, |config| config.request = Duration::from_millis(300));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (method, parts) in
        [("DoGet", all_but_one(1000)), ("DoAction", all_but_one(10)), ("DoGet", Vec::new())]
    {
        let why =
            runtime.block_on(async { ask(connected(serving.address()).await, method, None, parts).await });
        assert_eq!(why.code(), Code::DeadlineExceeded, "{method}: {why}");
        assert!(why.message().contains("incomplete after 0.3 s"), "{why}");
    }
    assert_eq!(serving.agent().status().unfinished_bytes, 0);
    assert!(nodes.status().remove(0).status.is_ok());
}

#[test]
fn a_message_that_ends_before_its_request_counts_until_the_request_ends() {
    let (serving, _nodes, _folder) = closed(false, |config| config.request = PATIENCE);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let whole = |bytes: u32| {
        let mut parts = all_but_one(bytes);
        parts.push(Bytes::from_static(b" "));
        parts
    };
    let address = serving.address();
    let asked =
        runtime.spawn(async move { ask(connected(address).await, "DoGet", None, whole(1 << 20)).await });
    until("it is not counted", || serving.agent().status().unfinished_bytes > 1 << 20);
    asked.abort();
    until("what is gone is counted", || serving.agent().status().unfinished_bytes == 0);
    // A second message is invalid in such a request, and the body of an action is short.
    let twice = [whole(12 << 20), whole(12 << 20)].concat();
    for (method, parts) in [("DoGet", twice), ("DoAction", whole(100 << 10))] {
        let why = runtime.block_on(async { ask(connected(address).await, method, None, parts).await });
        assert!(matches!(why.code(), Code::InvalidArgument | Code::OutOfRange), "{method}: {why}");
    }
}

#[test]
fn a_token_without_the_right_is_refused_before_any_of_the_body_comes() {
    let authority = Authority::create().unwrap();
    let day = Duration::from_secs(86_400);
    let credentials = authority.node("a", &["127.0.0.1".to_string()], day).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = AgentConfig { credentials: Some(credentials), request: PATIENCE, ..config("closed") };
    let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&Plan::default()), config);
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let asked = |rights: &[Right], method: &str| {
        let client = authority.client("c", rights, day).unwrap();
        let trusted = Certificate::from_pem(within(&client, "authority"));
        let tls = ClientTlsConfig::new().ca_certificate(trusted).domain_name("127.0.0.1");
        let endpoint = Channel::from_shared(format!("https://{}", serving.address())).unwrap();
        runtime.block_on(async {
            let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
            let token = within(&client, "token");
            tokio::time::timeout(PATIENCE, ask(channel, method, Some(&token), Vec::new())).await.unwrap()
        })
    };
    for (rights, method) in [
        (&[Right::Write, Right::Administer][..], "DoGet"),
        (&[Right::Read, Right::Run], "DoPut"),
        (&[Right::Read, Right::Write], "DoExchange"),
        (&[Right::Run, Right::Relay], "DoAction"),
    ] {
        let why = asked(rights, method);
        assert_eq!(why.code(), Code::PermissionDenied, "{method}: {why}");
        assert!(why.message().contains("c has no right to"), "{method}: {why}");
    }
}
