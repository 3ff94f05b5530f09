//! The status page of a node, for people and for Prometheus, over HTTP.
//!
//! | path | content |
//! |---|---|
//! | `/` | a page that shows this node and its peers, and refreshes itself |
//! | `/status.json` | the data of the page: each node's status, and bytes read and sent in the last minutes |
//! | `/metrics` | this node's counters in the text format of Prometheus |
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 while the node takes tasks; 503 and the reason while the node shuts down or its store does not answer |
//!
//! On a loopback address, the page is unencrypted and open to every local user. On other addresses, the page uses HTTPS
//! with the node's certificate and requires a token with the right to read: as `Bearer`, or as the password of `Basic`,
//! for which browsers ask. Only callers with the right to administer see the tasks of other clients. `/healthz` and
//! `/readyz` need no token, and accept any host name in the request, since health probes call these paths. These two
//! paths reveal only the state of the node.
//!
//! A separate thread with its own Tokio runtime serves the page, so that the page does not share threads with tasks and
//! loads. The page serves at most 32 connections at once. A connection has one request and lasts at most 10 seconds.
//! Names of clients, datasets and peers never become markup: the page's script inserts names as text.

mod metrics;
mod watch;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{self, HeaderValue},
    rt::{Read, Write},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::watch as channel, time::timeout};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tonic::transport::server::Connected;
use tracing::{info, warn};

use self::watch::NodePoller;
use crate::{
    Agent, ClientCredentials, Error, NodeCredentials, Result, Right,
    error::no_thread,
    is_loopback,
    server::connection::{ClientConnection, ConnectionLimiter, ConnectionLimits, ConnectionStream},
};

/// The configuration of a status page.
#[derive(Debug)]
pub struct PageConfig {
    /// The address to listen on. Addresses beyond loopback require the agent to have credentials.
    pub listen: SocketAddr,
    /// The other nodes on the page: `HOST` or `HOST:PORT` of each.
    pub peers: Vec<String>,
    /// The credentials for the nodes in `peers`. The value is `None` if these nodes require no credentials.
    pub peer_credentials: Option<ClientCredentials>,
}

/// A running status page. The page is served until this handle is dropped.
#[derive(Debug)]
pub struct Page {
    address: SocketAddr,
    stop: channel::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Page {
    /// Returns the address at which the page is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The maximum number of simultaneous connections. If the limit is reached, a new connection replaces the oldest
/// connection that has sent no request.
const CONNECTIONS: usize = 32;
/// The maximum duration of a connection, from the TLS handshake to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time in which the head of a request (its request line and headers) must arrive.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// The maximum size of the head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;

impl Agent {
    /// Starts a page that shows the status of this agent, in a separate thread.
    ///
    /// # Errors
    /// - Returns [`Error::Credentials`] if the address is reachable from other machines and the agent's credentials are
    ///   missing or invalid.
    /// - Returns [`Error::Address`] if binding the address fails, or a peer's address is invalid.
    pub fn serve_page(&self, config: PageConfig) -> Result<Page> {
        let listen = config.listen;
        let tls = match (&self.config().credentials, listen.ip().is_loopback()) {
            (_, true) => None,
            (Some(credentials), false) => Some(acceptor(credentials)?),
            (None, false) => {
                return Err(Error::Credentials {
                    what: format!(
                        "{listen} can be reached by other machines: to show its status to them, a node needs credentials (`inshore node credentials` creates them)"
                    ),
                });
            }
        };
        let bad = |what: String| Error::Address { address: listen.to_string(), what };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(4)
            .thread_name("inshore-page")
            .enable_all()
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(|error| bad(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| bad(error.to_string()))?;
        let shown = Arc::new(PageState {
            wants_token: tls.is_some(),
            watch: NodePoller::begin(self.clone(), config.peers, config.peer_credentials)?,
            agent: self.clone(),
        });
        info!(node = self.config().name, page = %address, tls = tls.is_some(), "serves its page");
        let (stop, mut stopped) = channel::channel(false);
        let started = thread::Builder::new().name("inshore-page".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, tls, shown) => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        let thread = started.map_err(|error| no_thread(&listen, &error))?;
        Ok(Page { address, stop, thread: Some(thread) })
    }
}

fn acceptor(credentials: &NodeCredentials) -> Result<TlsAcceptor> {
    let bad = |what: String| Error::Credentials { what: format!("of this node: {what}") };
    let chain = CertificateDer::pem_slice_iter(credentials.certificate.as_bytes());
    let chain: std::result::Result<Vec<_>, _> = chain.collect();
    let chain = chain.map_err(|error| bad(error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).map_err(|error| bad(error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| bad(error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shown: Arc<PageState>) {
    let door = ConnectionLimiter::new(ConnectionLimits {
        connections: CONNECTIONS,
        per_address: CONNECTIONS,
        first_request: HEAD_PATIENCE,
    });
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "the page takes no connection");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let Ok(visit) = door.accept(stream) else { continue };
        let (tls, shown) = (tls.clone(), shown.clone());
        // Clients that are too slow or send no valid request get no answer.
        tokio::spawn(timeout(PATIENCE, serve(visit, tls, shown)));
    }
}

async fn serve(visit: ConnectionStream, tls: Option<TlsAcceptor>, shown: Arc<PageState>) {
    let guest = visit.connect_info();
    match tls {
        None => answer(TokioIo::new(visit), guest, shown).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(visit).await {
                answer(TokioIo::new(stream), guest, shown).await;
            }
        }
    }
}

async fn answer(io: impl Read + Write + Unpin, guest: ClientConnection, shown: Arc<PageState>) {
    let service = service_fn(move |request: Request<_>| {
        // Every request gets an answer, which may be a refusal. The connection is then closed.
        let place = guest.ask();
        let shown = shown.clone();
        let (head, _body): (_, hyper::body::Incoming) = request.into_parts();
        async move {
            if let Err(why) = place {
                let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, &why);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                return Ok(response);
            }
            // Answering a request also queries the store, which may wait for a drive. The request is therefore handled
            // on a thread that may block.
            let answered = tokio::task::spawn_blocking(move || shown.respond(&Request::from_parts(head, ())));
            let response =
                answered.await.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "it failed"));
            Ok::<_, Infallible>(response)
        }
    });
    let _ = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(io, service)
        .await;
}

/// The data behind the page, and the access rules.
#[derive(Debug)]
struct PageState {
    agent: Agent,
    watch: NodePoller,
    wants_token: bool,
}

/// The authenticated viewer of the page.
struct Viewer {
    name: String,
    sees_all: bool,
}

const HTML: &str = include_str!("page.html");

impl PageState {
    fn respond(&self, request: &Request<()>) -> Response<Full<Bytes>> {
        let is_look = request.method() == Method::GET || request.method() == Method::HEAD;
        match request.uri().path() {
            "/healthz" if is_look => return plain(StatusCode::OK, "ok"),
            "/readyz" if is_look => {
                return match self.agent.unready() {
                    None => plain(StatusCode::OK, "ready"),
                    Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
                };
            }
            _ => {}
        }
        let viewer = match self.viewer(request) {
            Ok(viewer) => viewer,
            Err(refused) => return *refused,
        };
        if !is_look {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let masked = |status: crate::protocol::Status| match viewer.sees_all {
            true => status,
            false => status.without_others(&viewer.name),
        };
        match request.uri().path() {
            "/" => page(),
            "/status.json" => body("application/json", self.watch.told(&self.agent, masked)),
            "/metrics" => body(
                "text/plain; version=0.0.4; charset=utf-8",
                metrics::prometheus_text(&masked(self.agent.status()), &self.agent.handler_metrics()),
            ),
            _ => plain(
                StatusCode::NOT_FOUND,
                "not found: the pages are /, /status.json, /metrics, /healthz and /readyz",
            ),
        }
    }

    /// Authenticates the sender of a request. The error is the HTTP response that refuses the request.
    fn viewer(&self, request: &Request<()>) -> std::result::Result<Viewer, Box<Response<Full<Bytes>>>> {
        let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if !self.wants_token {
            // This check prevents DNS rebinding: a page from another site, whose name was made to resolve to this
            // machine, is refused.
            return match header(header::HOST).is_none_or(is_of_this_machine) {
                true => Ok(Viewer { name: "local".to_string(), sees_all: true }),
                false => Err(Box::new(plain(
                    StatusCode::FORBIDDEN,
                    "only this machine may read this page: open it as localhost or by a loopback address",
                ))),
            };
        }
        let credentials =
            self.agent.config().credentials.as_ref().expect("it has some where it wants a token");
        let token = header(header::AUTHORIZATION).and_then(token);
        let claims = token.map(|token| credentials.check(&token));
        match claims {
            Some(Ok(claims)) if claims.rights.contains(&Right::Read) => {
                let sees_all = claims.rights.contains(&Right::Administer);
                Ok(Viewer { name: claims.subject, sees_all })
            }
            Some(Ok(_)) => Err(Box::new(plain(StatusCode::FORBIDDEN, "the token has no right to read"))),
            no_token => {
                let why = match no_token {
                    Some(Err(error)) => error.to_string(),
                    _ => "credentials: the request has no token".to_string(),
                };
                let mut response = plain(StatusCode::UNAUTHORIZED, &why);
                let challenge =
                    r#"Basic realm="Inshore: any user name, and a token as the password", charset="UTF-8""#;
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
                Err(Box::new(response))
            }
        }
    }
}

/// Extracts the token from the value of the header `Authorization`.
fn token(value: &str) -> Option<String> {
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_string());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(BASE64.decode(rest.trim()).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_string())
}

/// Returns true if the header `Host` names this machine.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let is_number = |name: &str| name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    name.eq_ignore_ascii_case("localhost") || is_number(name) || is_loopback(name)
}

fn page() -> Response<Full<Bytes>> {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the system returned no random numbers");
    }
    // With this policy, the browser runs only the page's own script, even if a name were inserted as markup.
    let nonce = URL_SAFE_NO_PAD.encode(random);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = body("text/html; charset=utf-8", HTML.replace("{{nonce}}", &nonce));
    let policy = HeaderValue::from_str(&policy).expect("plain letters");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = body("text/plain; charset=utf-8", format!("{text}\n"));
    *response.status_mut() = status;
    response
}

fn body(kind: &'static str, bytes: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(bytes.into()));
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_of_this_machine() {
        for host in
            ["localhost", "localhost:80", "LOCALHOST:1", "127.0.0.1", "127.8.9.1:4711", "[::1]:4711", "[::1]"]
        {
            assert!(is_of_this_machine(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "10.0.0.1", "[2001:db8::1]:80", "127.0.0.1.evil:1"]
        {
            assert!(!is_of_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_a_password() {
        let basic = |pair: &str| token(&format!("Basic {}", BASE64.encode(pair)));
        assert_eq!(token("Bearer a.b").as_deref(), Some("a.b"));
        assert_eq!(basic("anyone:a.b").as_deref(), Some("a.b"));
        assert_eq!(basic(":a:b").as_deref(), Some("a:b"));
        for none in ["", "Bearer", "Basic", "Basic ?", "Digest a", "Basic YQ"] {
            assert_eq!(token(none), None, "{none}");
        }
    }
}
