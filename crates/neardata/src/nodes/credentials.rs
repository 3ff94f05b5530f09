//! Who may do what on which node.
//!
//! An authority is a key pair that whoever runs the nodes makes once ([`Authority::create`]). It signs two things:
//!
//! - the certificate of a node, by which clients know that they speak with one of these nodes, in TLS;
//! - the token of a client: a name, [`Rights`](Right), and when it expires. A node checks the signature and needs no list.
//!   A node has one too, by which other nodes know it; it has the right to relay and no other.
//!
//! ```text
//!   authority.json   stays with whoever runs the nodes: key, certificate
//!   NODE.json        on the node: its key, certificate and token, the authority's certificate and public key
//!   CLIENT.json      with the client: the authority's certificate, its token
//! ```
//!
//! Keys are Ed25519. A token is `claims.signature`, both base64 without padding for URLs; the claims are JSON. It travels
//! inside TLS only.

use std::{
    fs, io,
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use inshore_store::NewFile;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use time::OffsetDateTime;
use tokio_rustls::rustls::{
    self, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

use super::{Error, Result};

/// What a client may ask of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// List and read datasets, and ask how the node is.
    Read,
    /// Put datasets onto it and remove them.
    Write,
    /// Run the kernels that are built in.
    Run,
    /// Run WebAssembly that the client sends.
    RunWasm,
    /// Run commands that the operator allows.
    RunCommands,
    /// Drain it, and see and stop what others do.
    Administer,
    /// Hand on to it the work that clients have asked it for: what nodes may of each other.
    Relay,
}

impl Right {
    /// All of them, the harmless ones first.
    pub const ALL: [Right; 7] = [
        Right::Read,
        Right::Run,
        Right::Write,
        Right::RunWasm,
        Right::RunCommands,
        Right::Administer,
        Right::Relay,
    ];

    /// As the command line and tokens call it.
    pub fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Run => "run",
            Right::RunWasm => "run-wasm",
            Right::RunCommands => "run-commands",
            Right::Administer => "administer",
            Right::Relay => "relay",
        }
    }
}

impl std::str::FromStr for Right {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Right, String> {
        let found = Right::ALL.into_iter().find(|right| right.name() == name);
        found.ok_or_else(|| {
            let names = Right::ALL.map(Right::name).join(", ");
            format!("'{name}' is no right: there are {names}")
        })
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Who it was made for: tasks of one name wait in one queue.
    pub name: String,
    /// What its bearer may do.
    pub rights: Vec<Right>,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

/// What makes credentials.
#[derive(Serialize, Deserialize)]
pub struct Authority {
    name: String,
    key: String,
    certificate: String,
}

/// What a node shows and checks.
#[derive(Clone, Serialize, Deserialize)]
pub struct NodeCredentials {
    pub(super) authority: String,
    pub(super) certificate: String,
    pub(super) key: String,
    /// Public key of the authority, base64.
    pub(super) token_key: String,
    /// What it shows to other nodes; none in credentials of before nodes did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// What a client shows and checks.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClientCredentials {
    pub(super) authority: String,
    pub(super) token: String,
}

/// Keys are never printed.
macro_rules! no_secrets {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

no_secrets!(Authority, NodeCredentials, ClientCredentials);

impl Authority {
    /// Makes a new one; its certificate holds for ten years.
    ///
    /// # Errors
    /// [`Error::Credentials`] where the system gives no random numbers.
    pub fn create() -> Result<Authority> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| bad(error.to_string()))?;
        let name = format!("Inshore authority {}", BASE64.encode(random));
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(failed)?;
        let certificate = params_of_authority(&name).self_signed(&key).map_err(failed)?.pem();
        Ok(Authority { name, key: key.serialize_pem(), certificate })
    }

    fn key(&self) -> Result<KeyPair> {
        KeyPair::from_pem(&self.key).map_err(failed)
    }

    /// Credentials for a node that clients reach under `addresses`: names or numbers of the network.
    ///
    /// # Errors
    /// [`Error::Credentials`] for an address that is none.
    pub fn node(&self, name: &str, addresses: &[String], lifetime: Duration) -> Result<NodeCredentials> {
        let mut params = CertificateParams::new(addresses.to_vec()).map_err(failed)?;
        params.distinguished_name = called(name);
        (params.not_before, params.not_after) = validity(lifetime);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (key, own) = (self.key()?, KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(failed)?);
        let token_key = BASE64.encode(key.public_key_raw());
        let issuer = Issuer::new(params_of_authority(&self.name), key);
        let certificate = params.signed_by(&own, &issuer).map_err(failed)?.pem();
        let authority = self.certificate.clone();
        let token = Some(self.token(name, &[Right::Relay], lifetime)?);
        Ok(NodeCredentials { authority, certificate, key: own.serialize_pem(), token_key, token })
    }

    /// Credentials for a client.
    ///
    /// # Errors
    /// [`Error::Credentials`] where the authority's key is none.
    pub fn client(&self, name: &str, rights: &[Right], lifetime: Duration) -> Result<ClientCredentials> {
        let token = self.token(name, rights, lifetime)?;
        Ok(ClientCredentials { authority: self.certificate.clone(), token })
    }

    fn token(&self, name: &str, rights: &[Right], lifetime: Duration) -> Result<String> {
        let expires = seconds_now() + lifetime.as_secs();
        let claims = Claims { name: name.to_string(), rights: rights.to_vec(), expires };
        let claims = BASE64.encode(serde_json::to_vec(&claims).expect("plain data"));
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(self.key()?.serialized_der());
        let key = key.map_err(|error| bad(format!("the authority's key: {error}")))?;
        let signature = BASE64.encode(key.sign(claims.as_bytes()));
        Ok(format!("{claims}.{signature}"))
    }
}

impl NodeCredentials {
    /// Checks that the authority has signed a certificate for a node that is reached under `host`, and that it holds today: what TLS
    /// would check with that node, before anything is sent to it.
    ///
    /// # Errors
    /// [`Error::Credentials`] with the reason.
    pub(super) fn check_node(&self, host: &str, certificate: &str) -> Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(of_pem(&self.authority)?).map_err(|error| bad(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
        let verifier = verifier.map_err(|error| bad(error.to_string()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let name = ServerName::try_from(host).map_err(|error| bad(error.to_string()))?;
        let checked = verifier.verify_server_cert(&of_pem(certificate)?, &[], &name, &[], UnixTime::now());
        checked.map(drop).map_err(|error| bad(format!("the certificate of {}: {error}", name.to_str())))
    }

    /// What the node shows and checks where it asks another one.
    ///
    /// # Errors
    /// [`Error::Credentials`] where they are of before nodes spoke with each other.
    pub fn as_client(&self) -> Result<ClientCredentials> {
        let token = self.token.clone().ok_or_else(|| {
            bad("this node's have no token for other nodes: make them anew with `inshore node credentials`")
        })?;
        Ok(ClientCredentials { authority: self.authority.clone(), token })
    }

    /// What a token says, if the authority signed it and it has not expired.
    ///
    /// # Errors
    /// [`Error::Credentials`] with the reason.
    pub fn check(&self, token: &str) -> Result<Claims> {
        let no_token = || bad("this is no token");
        let (claims, signature) = token.split_once('.').ok_or_else(no_token)?;
        let signature = BASE64.decode(signature).map_err(|_| no_token())?;
        let key = BASE64.decode(&self.token_key).map_err(|_| bad("the node's token_key is no base64"))?;
        UnparsedPublicKey::new(&ED25519, key)
            .verify(claims.as_bytes(), &signature)
            .map_err(|_| bad("the token was not signed by the authority of this node"))?;
        let claims = BASE64.decode(claims).map_err(|_| no_token())?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| no_token())?;
        match seconds_now() < claims.expires {
            true => Ok(claims),
            false => Err(bad(format!("the token of {} has expired", claims.name))),
        }
    }
}

fn of_pem(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| bad(format!("a certificate: {error}")))
}

/// Reads credentials from a file.
///
/// # Errors
/// [`Error::Credentials`] that names the file.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|error| bad(format!("{}: {error}", path.display())))?;
    serde_json::from_slice(&text)
        .map_err(|error| bad(format!("{}: these are no credentials of this kind: {error}", path.display())))
}

/// Writes credentials to a new file that only its owner reads.
///
/// # Errors
/// [`Error::Credentials`] that names the file, also where it is there already.
pub fn write<T: Serialize>(path: &Path, credentials: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(credentials).expect("plain data");
    let written = NewFile::write_whole_private(path, format!("{text}\n").as_bytes());
    written.map_err(|error| match &error {
        inshore_store::Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
            bad(format!("{}: the file exists: remove it to make it anew", path.display()))
        }
        _ => bad(error.to_string()),
    })
}

/// Whether an address is one that only this machine reaches.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn params_of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = called(name);
    (params.not_before, params.not_after) = validity(Duration::from_secs(10 * 365 * 86_400));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// From an hour ago, since clocks differ.
fn validity(lifetime: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - Duration::from_secs(3600), now + lifetime)
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn bad(what: impl Into<String>) -> Error {
    Error::Credentials { what: what.into() }
}

fn failed(error: rcgen::Error) -> Error {
    bad(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_token_says_who_its_bearer_is_and_what_he_may() {
        let authority = Authority::create().unwrap();
        let node = authority.node("a", &["10.0.0.1".to_string(), "a.lan".to_string()], DAY).unwrap();
        let client = authority.client("writer", &[Right::Read, Right::Run], DAY).unwrap();
        let claims = node.check(&client.token).unwrap();
        assert_eq!((claims.name.as_str(), claims.rights), ("writer", vec![Right::Read, Right::Run]));
    }

    #[test]
    fn a_node_may_relay_and_nothing_else_and_one_without_a_token_says_so() {
        let authority = Authority::create().unwrap();
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let claims = node.check(&node.as_client().unwrap().token).unwrap();
        assert_eq!((claims.name.as_str(), claims.rights), ("a", vec![Right::Relay]));
        let mut old = serde_json::to_value(&node).unwrap();
        old.as_object_mut().unwrap().remove("token");
        let old: NodeCredentials = serde_json::from_value(old).unwrap();
        assert!(old.as_client().unwrap_err().to_string().contains("make them anew"));
    }

    #[test]
    fn a_certificate_is_for_the_hosts_that_the_authority_signed_it_for() {
        let (authority, other) = (Authority::create().unwrap(), Authority::create().unwrap());
        let hosts = ["10.0.0.1".to_string(), "::1".to_string(), "b.lan".to_string()];
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let peer = authority.node("b", &hosts, DAY).unwrap().certificate;
        for host in ["10.0.0.1", "[::1]", "b.lan", "B.lan"] {
            node.check_node(host, &peer).unwrap();
        }
        for host in ["10.0.0.2", "a.lan", "x.b.lan", "b.lan:4710", "", "[", "127.0.0.1"] {
            assert!(node.check_node(host, &peer).is_err(), "{host}");
        }
        let over = authority.node("b", &hosts, Duration::ZERO).unwrap().certificate;
        // Certificates count in seconds.
        std::thread::sleep(Duration::from_millis(1100));
        for not_ours in
            [over, other.node("b", &hosts, DAY).unwrap().certificate, node.authority.clone(), String::new()]
        {
            assert!(node.check_node("b.lan", &not_ours).is_err(), "{not_ours}");
        }
    }

    #[test]
    fn tokens_that_are_expired_changed_or_of_another_authority_are_refused() {
        let (authority, other) = (Authority::create().unwrap(), Authority::create().unwrap());
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let told = |token: &str| node.check(token).unwrap_err().to_string();
        let expired = authority.client("writer", &Right::ALL, Duration::ZERO).unwrap().token;
        assert!(told(&expired).contains("writer has expired"));
        let foreign = other.client("writer", &Right::ALL, DAY).unwrap().token;
        assert!(told(&foreign).contains("not signed by the authority"));
        let good = authority.client("writer", &[Right::Read], DAY).unwrap().token;
        let (claims, signature) = good.split_once('.').unwrap();
        let more = BASE64.decode(claims).unwrap();
        let more = String::from_utf8(more).unwrap().replace("\"read\"", "\"read\",\"administer\"");
        assert!(told(&format!("{}.{signature}", BASE64.encode(more))).contains("not signed"));
        for garbage in ["", ".", "a.b", "🦀.🦀", claims, signature] {
            assert!(node.check(garbage).is_err(), "{garbage}");
        }
    }

    #[test]
    fn credentials_are_written_for_their_owner_alone_and_never_over_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("authority.json");
        write(&path, &Authority::create().unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write(&path, &Authority::create().unwrap()).unwrap_err().to_string().contains("exists"));
        let read_again: Authority = read(&path).unwrap();
        assert!(!format!("{read_again:?}").contains("PRIVATE"));
        assert!(read::<ClientCredentials>(&path).unwrap_err().to_string().contains("of this kind"));
    }

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        for (host, expected) in
            [("127.0.0.1", true), ("127.8.8.8", true), ("[::1]", true), ("localhost", true)]
        {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
        for host in ["10.0.0.1", "0.0.0.0", "[::]", "example.org", "localhost.example.org", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
