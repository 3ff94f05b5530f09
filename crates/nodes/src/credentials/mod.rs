//! Credentials: the rights of a client on a node, and the proof of a node's identity.
//!
//! An authority is two key pairs that the operator of the nodes creates once ([`Authority::create`]):
//!
//! - One key signs the certificates of nodes. In TLS, clients recognise the nodes of the operator by their
//!   certificates.
//! - The other key signs [tokens](Claims) of clients. A token has a name, [rights](Right) and a time of expiry. A node
//!   checks the signature and needs no list of clients. A node also has a token that identifies the node to other
//!   nodes. This token has only the right to relay.
//!
//! ```text
//!   authority.json   stays with the operator: both keys, certificate
//!   NODE.json        on the node: its key, certificate and token, the authority's certificate and the key that checks tokens
//!   CLIENT.json      with the client: the authority's certificate, its token
//! ```
//!
//! The keys of certificates are ECDSA P-256, which every implementation of TLS accepts. Browsers and gRPC (BoringSSL)
//! refuse Ed25519. Tokens are PASETO v4.public (`tokens.rs`, docs/decisions/0032) and travel only inside TLS. Each file
//! contains its version. Files of another version are refused.

mod expiry;
mod tokens;

use std::{fs, io, net::IpAddr, path::Path, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use inshore_store::NewFile;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use time::OffsetDateTime;
use tokio_rustls::rustls::{
    self, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

pub use self::{expiry::time_text, tokens::Claims};
use self::{
    expiry::{YEARS_100, certificate_expires, seconds_now, warning},
    tokens::Version1,
};
use crate::{Error, Result, protocol::CredentialExpiry};

/// The version of credential files. In version 1 keys were Ed25519, and one key signed certificates and tokens.
const VERSION: u64 = 2;

/// A right of a client on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// List and read datasets, and request the status of the node.
    Read,
    /// Put datasets onto the node and remove datasets.
    Write,
    /// Run the built-in kernels.
    Run,
    /// Run WebAssembly that the client sends.
    RunWasm,
    /// Run commands that the operator allows.
    RunCommands,
    /// Drain the node, and see and stop the tasks of other clients.
    Administer,
    /// Pass on work that clients have requested. Nodes have only this right on each other.
    Relay,
}

impl Right {
    /// All rights. The rights that can do the least harm come first.
    pub const ALL: [Right; 7] = [
        Right::Read,
        Right::Run,
        Right::Write,
        Right::RunWasm,
        Right::RunCommands,
        Right::Administer,
        Right::Relay,
    ];

    /// Returns the name of the right on the command line and in tokens.
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
            format!("'{name}' is not a right: expected {names}")
        })
    }
}

/// The keys that sign credentials.
#[derive(Serialize, Deserialize)]
pub struct Authority {
    version: u64,
    name: String,
    key: String,
    certificate: String,
    /// The key that signs tokens.
    token_key: String,
}

/// The proofs of a node's identity, and the keys with which the node checks clients and other nodes.
#[derive(Clone, Serialize, Deserialize)]
pub struct NodeCredentials {
    version: u64,
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The key that checks tokens.
    token_key: String,
    /// The token with which the node authenticates itself to other nodes.
    token: String,
}

/// The token of a client, and the certificate with which the client checks nodes.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClientCredentials {
    version: u64,
    pub(crate) authority: String,
    pub(crate) token: String,
}

/// Implements `Debug` without the keys, so that keys are never printed.
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
    /// Creates a new authority. The certificate is valid for ten years.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the system provides no random numbers.
    pub fn create() -> Result<Authority> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| bad(error.to_string()))?;
        let name = format!("Inshore authority {}", BASE64.encode(random));
        let key = new_key()?;
        let certificate = params_of_authority(&name).self_signed(&key).map_err(failed)?.pem();
        let token_key = tokens::new_key()?;
        Ok(Authority { version: VERSION, name, key: key.serialize_pem(), certificate, token_key })
    }

    fn key(&self) -> Result<KeyPair> {
        KeyPair::from_pem(&self.key).map_err(failed)
    }

    /// Creates credentials for a node that clients reach under `addresses`: host names or IP addresses.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the address is invalid.
    pub fn node(&self, name: &str, addresses: &[String], lifetime: Duration) -> Result<NodeCredentials> {
        let mut params = CertificateParams::new(addresses.to_vec()).map_err(failed)?;
        params.distinguished_name = called(name);
        (params.not_before, params.not_after) = validity(lifetime);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let own = new_key()?;
        let issuer = Issuer::new(params_of_authority(&self.name), self.key()?);
        let certificate = params.signed_by(&own, &issuer).map_err(failed)?.pem();
        let (authority, key) = (self.certificate.clone(), own.serialize_pem());
        let token_key = tokens::public_key(&self.token_key)?;
        let token = self.token(name, &[Right::Relay], lifetime)?;
        Ok(NodeCredentials { version: VERSION, authority, certificate, key, token_key, token })
    }

    /// Creates credentials for a client.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the authority's key is invalid.
    pub fn client(&self, name: &str, rights: &[Right], lifetime: Duration) -> Result<ClientCredentials> {
        let token = self.token(name, rights, lifetime)?;
        Ok(ClientCredentials { version: VERSION, authority: self.certificate.clone(), token })
    }

    fn token(&self, name: &str, rights: &[Right], lifetime: Duration) -> Result<String> {
        tokens::sign(&self.token_key, &Claims::new(name, rights, lifetime)?)
    }
}

impl NodeCredentials {
    /// Checks that the authority has signed a certificate for a node with the address `host`, and that the certificate
    /// is valid at present. TLS repeats this check on the connection to the node. The check here takes place before any
    /// data is sent to the node.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the operation fails. The error contains the reason.
    pub(crate) fn check_node(&self, host: &str, certificate: &str) -> Result<()> {
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

    /// Returns the credentials that the node uses as a client of another node.
    pub fn as_client(&self) -> ClientCredentials {
        let (authority, token) = (self.authority.clone(), self.token.clone());
        ClientCredentials { version: VERSION, authority, token }
    }

    /// Returns the claims of a token if the authority signed the token and the token has not expired.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the operation fails. The error contains the reason.
    pub fn check(&self, token: &str) -> Result<Claims> {
        self.check_at(token, seconds_now())
    }

    fn check_at(&self, token: &str, now: u64) -> Result<Claims> {
        let claims = tokens::verify(&self.token_key, token)?;
        match now < claims.expires {
            true => Ok(claims),
            false => Err(bad(format!(
                "the token of {} has expired at {}; this node's clock says {}: `{}` creates a new one",
                claims.subject,
                time_text(claims.expires),
                time_text(now),
                claims.renewal()
            ))),
        }
    }

    /// Returns the expiry times of the credentials.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the certificate or the token is invalid.
    pub fn expires(&self) -> Result<CredentialExpiry> {
        Ok(CredentialExpiry {
            authority: certificate_expires(&of_pem(&self.authority)?)?,
            certificate: certificate_expires(&of_pem(&self.certificate)?)?,
            token: tokens::read_unverified(&self.token)?.expires,
        })
    }

    /// Returns the command that renews the credentials.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the token is invalid.
    pub(crate) fn renewal(&self) -> Result<String> {
        Ok(tokens::read_unverified(&self.token)?.renewal())
    }
}

impl ClientCredentials {
    /// Returns the claims of the token without verification, since only a node can verify the signature.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the token is invalid.
    pub fn claims(&self) -> Result<Claims> {
        tokens::read_unverified(&self.token)
    }

    /// Returns a warning for the token and for the authority's certificate, each if it has expired or expires
    /// within 14 days by the clock of this machine.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] if the token or the certificate is invalid.
    pub fn warnings(&self) -> Result<Vec<String>> {
        let (claims, now) = (self.claims()?, seconds_now());
        let of_token = warning(&format!("the token of {}", claims.subject), claims.expires, now);
        let of_token = of_token.map(|told| format!("{told}: `{}` creates a new one", claims.renewal()));
        let of_authority = certificate_expires(&of_pem(&self.authority)?)?;
        let of_authority = warning("the certificate of the authority", of_authority, now);
        Ok(of_token.into_iter().chain(of_authority).collect())
    }
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)
}

fn of_pem(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| bad(format!("a certificate: {error}")))
}

/// Reads credentials from a file.
///
/// # Errors
/// Returns [`Error::Credentials`] if the file cannot be read or is invalid. The error names the file. If the
/// credentials have another version, the error also names the command that renews them.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let fail = |what: String| bad(format!("{}: {what}", path.display()));
    let text = fs::read(path).map_err(|error| fail(error.to_string()))?;
    let none =
        |error: serde_json::Error| fail(format!("the file does not have credentials of this kind: {error}"));
    let file: Value = serde_json::from_slice(&text).map_err(none)?;
    check_version(&file, path).map_err(fail)?;
    serde_json::from_value(file).map_err(none)
}

/// Refuses credentials of another version.
fn check_version(file: &Value, path: &Path) -> std::result::Result<(), String> {
    let version = match &file["version"] {
        Value::Null if file["authority"].is_string() || file["certificate"].is_string() => Some(1),
        Value::Null => return Ok(()),
        version => version.as_u64(),
    };
    if version == Some(VERSION) {
        return Ok(());
    }
    if version != Some(1) {
        return Err(format!(
            "the credentials have version {}, expected {VERSION}: a newer version of Inshore created them",
            file["version"]
        ));
    }
    let says = "credentials of version 1 (Ed25519 keys) are no longer supported";
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Err(match file["token"].as_str().and_then(Version1::of) {
        Some(token) => format!(
            "{says}: `{}` creates new ones, in the folder of a new authority.json (`inshore node credentials DIR`)",
            token.renewal()
        ),
        None if file["token_key"].is_string() => format!(
            "{says}: `inshore node credentials DIR --for-node NAME --address HOST,...` creates new ones, in the folder of a new \
             authority.json (`inshore node credentials DIR`)"
        ),
        None => format!(
            "{says}: move the file away, and `inshore node credentials {}` creates a new authority; then create the files of all nodes and clients again (--for-node, --for-client)",
            folder.display()
        ),
    })
}

/// Writes credentials to a new file that only its owner can read.
///
/// # Errors
/// Returns [`Error::Credentials`] if the file cannot be written or already exists. The error names the file.
pub fn write<T: Serialize>(path: &Path, credentials: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(credentials).expect("plain data");
    let written = NewFile::write_whole_private(path, format!("{text}\n").as_bytes());
    written.map_err(|error| match &error {
        inshore_store::Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
            bad(format!("{}: the file exists already: remove it first", path.display()))
        }
        _ => bad(error.to_string()),
    })
}

/// Returns true if an address is only reachable from this machine.
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

/// Returns a period of validity that began an hour ago, since clocks differ.
fn validity(lifetime: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - Duration::from_secs(3600), now + lifetime.min(YEARS_100))
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
        assert_eq!((claims.subject.as_str(), &claims.rights[..]), ("writer", &[Right::Read, Right::Run][..]));
        assert_eq!(client.claims().unwrap(), claims);
    }

    #[test]
    fn a_node_may_relay_and_nothing_else() {
        let authority = Authority::create().unwrap();
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let claims = node.check(&node.as_client().token).unwrap();
        assert_eq!((claims.subject.as_str(), claims.rights), ("a", vec![Right::Relay]));
    }

    #[test]
    fn certificates_and_tokens_are_signed_by_different_keys() {
        let authority = Authority::create().unwrap();
        assert!(authority.key().unwrap().is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256));
        assert!(authority.token_key.starts_with("k4.secret."));
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let own = KeyPair::from_pem(&node.key).unwrap();
        assert!(own.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256));
        assert!(node.token_key.starts_with("k4.public."), "a node cannot make tokens: {}", node.token_key);
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
        // Certificates have times in complete seconds.
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
        let payload = BASE64.decode(good.rsplit_once('.').unwrap().1).unwrap();
        let (claims, signature) = payload.split_at(payload.len() - 64);
        let more = String::from_utf8(claims.to_vec()).unwrap();
        let more = more.replace("\"read\"", "\"read\",\"administer\"");
        let more = BASE64.encode([more.as_bytes(), signature].concat());
        assert!(told(&format!("v4.public.{more}")).contains("not signed"));
        for garbage in ["", ".", "a.b", "🦀.🦀", "v4.public.", "v4.public.AAAA", "v4.public.🦀", &good[10..]]
        {
            assert!(node.check(garbage).is_err(), "{garbage}");
        }
    }

    #[test]
    fn an_expired_token_is_refused_with_both_times_and_whose_clock_it_is() {
        let authority = Authority::create().unwrap();
        let node = authority.node("a", &["a.lan".to_string()], DAY).unwrap();
        let claims = Claims {
            issued: 0,
            expires: 1_795_752_000,
            ..Claims::new("writer", &[Right::Read], DAY).unwrap()
        };
        let token = tokens::sign(&authority.token_key, &claims).unwrap();
        assert_eq!(node.check_at(&token, claims.expires - 1).unwrap(), claims);
        let error = node.check_at(&token, claims.expires + 3600).unwrap_err().to_string();
        let expected = "credentials: the token of writer has expired at 2026-11-27T04:00:00Z; this node's clock says \
                        2026-11-27T05:00:00Z: `inshore node credentials DIR --for-client writer --rights read` creates a new one";
        assert_eq!(error, expected);
    }

    #[test]
    fn credentials_that_end_soon_say_so() {
        let authority = Authority::create().unwrap();
        let soon = authority.client("writer", &[Right::Read], 3 * DAY).unwrap().warnings().unwrap();
        assert!(soon.len() == 1 && soon[0].starts_with("the token of writer expires in "), "{soon:?}");
        assert!(
            soon[0].ends_with(
                "`inshore node credentials DIR --for-client writer --rights read` creates a new one"
            )
        );
        assert!(authority.client("writer", &[], 15 * DAY).unwrap().warnings().unwrap().is_empty());
        let node = authority.node("a", &["a.lan".to_string()], 3 * DAY).unwrap();
        let expires = node.expires().unwrap();
        let in_days = |at: u64| (at - seconds_now() + 3600) / 86_400;
        assert_eq!([expires.authority, expires.certificate, expires.token].map(in_days), [3650, 3, 3]);
        let far = authority.node("a", &["a.lan".to_string()], Duration::MAX).unwrap();
        assert_eq!(far.expires().unwrap().each().map(|(_, at)| in_days(at)), [3650, 36_500, 36_500]);
    }

    /// The program that test_data/README.md names has created the files.
    #[test]
    fn files_of_version_1_are_refused_with_the_command_that_renews_them() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            let error = match name {
                "authority.json" => read::<Authority>(&path).map(drop),
                "node-a.json" => read::<NodeCredentials>(&path).map(drop),
                _ => read::<ClientCredentials>(&path).map(drop),
            };
            error.unwrap_err().to_string()
        };
        for (name, text, command) in [
            (
                "authority.json",
                include_str!("../../test_data/credentials_1/authority.json"),
                &*format!("`inshore node credentials {}`", folder.path().display()),
            ),
            (
                "node-a.json",
                include_str!("../../test_data/credentials_1/node-a.json"),
                "`inshore node credentials DIR --for-node a --address HOST,...`",
            ),
            (
                "client-laptop.json",
                include_str!("../../test_data/credentials_1/client-laptop.json"),
                "`inshore node credentials DIR --for-client laptop --rights read,run,write`",
            ),
        ] {
            let error = told(name, text);
            assert!(error.contains(name) && error.contains("version 1 (Ed25519 keys)"), "{error}");
            assert!(error.contains(command), "{command} is not in {error}");
        }
        // The cases are: credentials without a token, credentials of a future version, and a different file.
        let bare =
            r#"{"authority":"-----BEGIN","certificate":"-----BEGIN","key":"-----BEGIN","token_key":"abc"}"#;
        assert!(told("node-a.json", bare).contains("--for-node NAME --address"));
        let newer = told("client-x.json", r#"{"version":3,"authority":"","token":""}"#);
        assert!(newer.contains("version 3") && newer.contains("newer"), "{newer}");
        assert!(told("client-x.json", "{}").contains("does not have credentials of this kind"));
        assert!(told("client-x.json", "[1]").contains("does not have credentials of this kind"));
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
