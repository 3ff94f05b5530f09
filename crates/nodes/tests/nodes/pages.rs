//! Tests the status page on an address other than loopback, which requires HTTPS and a token.

use std::net::SocketAddr;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_nodes::{Page, PageConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig as TlsConfig, RootCertStore, SignatureScheme,
        crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring},
        pki_types::{CertificateDer, ServerName, alg_id, pem::PemObject},
    },
};

use super::*;

/// Returns a field of a credentials file.
pub fn within(credentials: &ClientCredentials, name: &str) -> String {
    serde_json::to_value(credentials).unwrap()[name].as_str().unwrap().to_string()
}

/// Returns a TLS provider with the signature schemes of BoringSSL, as used by Chromium and gRPC: without Ed25519.
fn as_browsers_do() -> CryptoProvider {
    let provider = ring::default_provider();
    let known = provider.signature_verification_algorithms;
    let all = known.all.iter().copied().filter(|known| known.signature_alg_id() != alg_id::ED25519);
    let mapping = known.mapping.iter().copied().filter(|(scheme, _)| *scheme != SignatureScheme::ED25519);
    let taken =
        WebPkiSupportedAlgorithms { all: Vec::leak(all.collect()), mapping: Vec::leak(mapping.collect()) };
    CryptoProvider { signature_verification_algorithms: taken, ..provider }
}

async fn get(address: SocketAddr, trusted: &str, path: &str, authorization: Option<&str>) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let config = TlsConfig::builder_with_provider(Arc::new(as_browsers_do()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let header = authorization.map_or(String::new(), |value| format!("Authorization: {value}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.lan\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn served(agent: &Agent, listen: &str) -> Result<Page, Error> {
    agent.serve_page(PageConfig {
        listen: listen.parse().unwrap(),
        peers: Vec::new(),
        peer_credentials: None,
    })
}

#[test]
fn a_page_beyond_this_machine_wants_tls_and_a_token() {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create().unwrap();
    let credentials = authority.node("a", &["127.0.0.1".to_string()], day).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let open = Agent::new(store.clone(), works(&Plan::default()), config("open"));
    assert!(told(served(&open, "0.0.0.0:0").unwrap_err()).contains("needs credentials"));
    let config = AgentConfig { credentials: Some(credentials), ..config("closed") };
    let agent = Agent::new(store, works(&Plan::default()), config);
    let page = served(&agent, "0.0.0.0:0").unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], page.address().port()));
    let reader = authority.client("reader", &[Right::Read], day).unwrap();
    let runner = authority.client("runner", &[Right::Run], day).unwrap();
    let stranger = Authority::create().unwrap().client("stranger", &Right::ALL, day).unwrap();
    let admin = authority.client("ops", &[Right::Read, Right::Administer], day).unwrap();
    let bearer = |credentials: &ClientCredentials| format!("Bearer {}", within(credentials, "token"));
    let trusted = within(&reader, "authority");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |path: &str, authorization: Option<&str>| {
        runtime.block_on(async {
            let answered = get(address, &trusted, path, authorization);
            tokio::time::timeout(PATIENCE, answered).await.unwrap()
        })
    };
    for path in ["/", "/status.json", "/metrics", "/nothing"] {
        let refused = ask(path, None);
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(refused.to_lowercase().contains("www-authenticate: basic"), "{refused}");
        assert!(!refused.contains("closed"), "it tells its name to nobody: {refused}");
    }
    assert!(ask("/", Some(&bearer(&stranger))).contains("not signed by the authority"));
    assert!(ask("/", Some("Bearer nonsense")).starts_with("HTTP/1.1 401"));
    assert!(ask("/", Some(&bearer(&runner))).starts_with("HTTP/1.1 403"));
    assert!(ask("/", Some(&bearer(&reader))).contains("<title>Inshore</title>"));
    let basic = BASE64.encode(format!("whoever:{}", within(&reader, "token")));
    let metrics = ask("/metrics", Some(&format!("Basic {basic}")));
    assert!(metrics.contains("inshore_node_info{name=\"closed\""), "{metrics}");
    for credential in ["authority", "certificate", "token"] {
        let name = format!("inshore_credentials_expiry_timestamp_seconds{{credential=\"{credential}\"}} ");
        let line =
            metrics.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("{metrics}"));
        assert!(line[name.len()..].parse::<f64>().unwrap() > 1.7e9, "{line}");
    }
    // The mount points of drives are visible only with the right to administer.
    let path = folder.path().display().to_string();
    assert!(!metrics.contains(&path) && ask("/metrics", Some(&bearer(&admin))).contains(&path));
    assert!(!ask("/status.json", Some(&bearer(&reader))).contains(&path));
    // An unencrypted request gets no answer.
    let plain = runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    });
    assert!(!String::from_utf8_lossy(&plain).contains("HTTP/1.1"), "{plain:?}");
}

#[test]
fn probes_need_no_token_and_a_node_that_ends_is_alive_and_not_ready() {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create().unwrap();
    let credentials = authority.node("a", &["127.0.0.1".to_string()], day).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = AgentConfig { credentials: Some(credentials), ..config("closed") };
    let agent = Agent::new(Store::open(folder.path()).unwrap(), works(&Plan::default()), config);
    let page = served(&agent, "0.0.0.0:0").unwrap();
    let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], page.address().port()));
    let trusted = within(&authority.client("c", &[Right::Read], day).unwrap(), "authority");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |path: &str| {
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, get(address, &trusted, path, None)).await.unwrap()
        })
    };
    let is = |path: &str, code: &str, said: &str| {
        let answer = ask(path);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")) && answer.contains(said),
            "{path}: {answer}"
        );
        assert!(!answer.contains("closed"), "it tells its name to nobody: {answer}");
    };
    is("/healthz", "200", "\r\n\r\nok\n");
    is("/readyz", "200", "\r\n\r\nready\n");
    serving.stop().unwrap();
    is("/healthz", "200", "\r\n\r\nok\n");
    is("/readyz", "503", "this node is shutting down and accepts no more tasks");
}
