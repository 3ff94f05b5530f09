//! Signed tokens with the name and the rights of their bearer, in the format PASETO v4.public.
//!
//! ```text
//!   v4.public.BASE64(claims, signature)
//!
//!   claims: {"sub":"laptop","jti":"0mTq…","iat":"2026-11-27T04:00:00Z","exp":"2027-02-25T04:00:00Z","rights":["read","run"]}
//! ```
//!
//! The version stands for one algorithm, Ed25519, so that a token cannot select a different signature
//! algorithm. Keys are written in the PASERK format: `k4.secret.…` and `k4.public.…`.
//!
//! Source: the specification of PASETO, docs/01-Protocol-Versions/Version4.md and
//! docs/02-Implementation-Guide/04-Claims.md.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use pasetors::{
    Public,
    keys::{AsymmetricKeyPair, AsymmetricPublicKey, AsymmetricSecretKey, Generate},
    paserk::FormatAsPaserk,
    token::UntrustedToken,
    version4::{PublicToken, V4},
};
use serde::{Deserialize, Serialize};

use super::{
    Right, bad,
    expiry::{YEARS_100, rfc3339, seconds_now},
};
use crate::Result;

/// The content of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The name of the bearer. All tasks of the same bearer wait in one queue.
    #[serde(rename = "sub")]
    pub subject: String,
    /// A token id of 128 random bits in base64, which distinguishes tokens of the same bearer.
    #[serde(rename = "jti")]
    pub id: String,
    /// The time of issue, in seconds since 1970.
    #[serde(rename = "iat", with = "rfc3339")]
    pub issued: u64,
    /// The time of expiry, in seconds since 1970.
    #[serde(rename = "exp", with = "rfc3339")]
    pub expires: u64,
    /// The rights of the bearer.
    pub rights: Vec<Right>,
}

impl Claims {
    /// Creates claims that are valid from the present time.
    pub(super) fn new(subject: &str, rights: &[Right], lifetime: std::time::Duration) -> Result<Claims> {
        let issued = seconds_now();
        let expires = issued + lifetime.min(YEARS_100).as_secs();
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| bad(error.to_string()))?;
        let (subject, rights, id) = (subject.to_string(), rights.to_vec(), BASE64.encode(id));
        Ok(Claims { subject, id, issued, expires, rights })
    }

    /// Returns the command that renews the token.
    pub(super) fn renewal(&self) -> String {
        renewal(&self.subject, &self.rights)
    }
}

/// Returns the command that renews the credentials of the bearer of a token.
pub(super) fn renewal(subject: &str, rights: &[Right]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = if !subject.is_empty() && subject.chars().all(is_plain) { subject } else { "NAME" };
    match rights {
        [Right::Relay] => format!("inshore node credentials DIR --for-node {name} --address HOST,..."),
        rights => {
            let rights: Vec<&str> = rights.iter().map(|right| right.name()).collect();
            format!("inshore node credentials DIR --for-client {name} --rights {}", rights.join(","))
        }
    }
}

/// Generates a key that signs tokens.
pub(super) fn new_key() -> Result<String> {
    let pair = AsymmetricKeyPair::<V4>::generate().map_err(|error| bad(format!("{error:?}")))?;
    Ok(written(&pair.secret))
}

/// Returns the public key that checks signatures of the secret key.
pub(super) fn public_key(secret: &str) -> Result<String> {
    let public = AsymmetricPublicKey::try_from(&secret_of(secret)?);
    Ok(written(&public.map_err(|_| bad("token_key of the authority is not a key"))?))
}

fn secret_of(secret: &str) -> Result<AsymmetricSecretKey<V4>> {
    AsymmetricSecretKey::try_from(secret)
        .map_err(|_| bad("token_key of the authority is not a key (expected k4.secret)"))
}

fn written(key: &impl FormatAsPaserk) -> String {
    let mut text = String::new();
    key.fmt(&mut text).expect("a string takes everything");
    text
}

pub(super) fn sign(secret: &str, claims: &Claims) -> Result<String> {
    let claims = serde_json::to_vec(claims).expect("plain data");
    let signed = PublicToken::sign(&secret_of(secret)?, &claims, None, None);
    signed.map_err(|error| bad(format!("cannot sign a token: {error:?}")))
}

/// Returns the claims of a token that was signed with the matching secret key. The time of expiry is not
/// checked.
pub(super) fn verify(public: &str, token: &str) -> Result<Claims> {
    let parsed = parse(token)?;
    let key = AsymmetricPublicKey::<V4>::try_from(public);
    let key = key.map_err(|_| bad("token_key of the node is not a key (expected k4.public)"))?;
    let trusted = PublicToken::verify(&key, &parsed, None, None);
    let trusted = trusted.map_err(|_| bad("the token was not signed by the authority of this node"))?;
    claims_of(trusted.payload().as_bytes())
}

/// Returns the claims of a token without verification, for the owner of the token.
pub(super) fn read_unverified(token: &str) -> Result<Claims> {
    claims_of(parse(token)?.untrusted_payload())
}

fn parse(token: &str) -> Result<UntrustedToken<Public, V4>> {
    match (UntrustedToken::try_from(token), Version1::of(token)) {
        (Ok(parsed), _) => Ok(parsed),
        (Err(_), Some(old)) => Err(bad(format!(
            "an older version of Inshore created the token: `{}` creates a new one",
            old.renewal()
        ))),
        (Err(_), None) => Err(bad("this is not a token (expected PASETO v4.public)")),
    }
}

fn claims_of(payload: &[u8]) -> Result<Claims> {
    serde_json::from_slice(payload)
        .map_err(|error| bad(format!("the claims of the token are invalid: {error}")))
}

/// The content of a token of version 1, in the form `claims.signature` with both parts in base64.
#[derive(Deserialize)]
pub(super) struct Version1 {
    name: String,
    rights: Vec<Right>,
}

impl Version1 {
    pub fn of(token: &str) -> Option<Version1> {
        let claims = BASE64.decode(token.split_once('.')?.0).ok()?;
        serde_json::from_slice(&claims).ok()
    }

    pub fn renewal(&self) -> String {
        renewal(&self.name, &self.rights)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claims(rights: &[Right]) -> Claims {
        Claims::new("laptop", rights, Duration::from_secs(86_400)).unwrap()
    }

    /// Checks test vector 4-S-2 of the specification: a key, and a token that another implementation has
    /// signed.
    #[test]
    fn a_token_that_others_made_is_understood() {
        let public = "k4.public.Hrnbu7wEfAP9cGBOAHHwmH4Wsot1ciXBHwBBXQ4gsaI";
        let token = "v4.public.eyJkYXRhIjoidGhpcyBpcyBhIHNpZ25lZCBtZXNzYWdlIiwiZXhwIjoiMjAyMi0wMS0wMVQwMDowMDowMCswMDowMCJ9\
                     v3Jt8mx_TdM2ceTGoqwrh4yDFn0XsHvvV_D0DtwQxVrJEBMl0F2caAdgnpKlt4p7xBnx1HcO-SPo8FPp214HDw.\
                     eyJraWQiOiJ6VmhNaVBCUDlmUmYyc25FY1Q3Z0ZUaW9lQTlDT2NOeTlEZmdMMVc2MGhhTiJ9";
        // The signature is valid; the claims belong to another program.
        let error = verify(public, token).unwrap_err().to_string();
        assert!(error.contains("missing field `sub`"), "{error}");
        let other = public_key(&new_key().unwrap()).unwrap();
        assert!(verify(&other, token).unwrap_err().to_string().contains("not signed"));
    }

    #[test]
    fn claims_have_the_names_and_times_of_the_standard() {
        let text = r#"{"sub":"laptop","jti":"0mTq","iat":"2026-11-27T04:00:00Z","exp":"2027-02-25T04:00:00Z","rights":["read","run-wasm"]}"#;
        let claims: Claims = serde_json::from_str(text).unwrap();
        let expected = (1_795_752_000, 1_803_528_000, vec![Right::Read, Right::RunWasm]);
        assert_eq!((claims.issued, claims.expires, claims.rights.clone()), expected);
        assert_eq!(serde_json::to_string(&claims).unwrap(), text);
        let secret = new_key().unwrap();
        let token = sign(&secret, &claims).unwrap();
        assert!(token.starts_with("v4.public.") && secret.starts_with("k4.secret."), "{token}");
        assert_eq!(verify(&public_key(&secret).unwrap(), &token).unwrap(), claims);
        assert_eq!(read_unverified(&token).unwrap(), claims);
    }

    #[test]
    fn each_token_has_an_id_of_its_own() {
        let (first, second) = (claims(&[Right::Read]), claims(&[Right::Read]));
        assert!(first.id.len() == 22 && first.id != second.id, "{} {}", first.id, second.id);
    }

    #[test]
    fn other_versions_and_purposes_of_the_standard_are_no_tokens() {
        let secret = new_key().unwrap();
        let (public, token) = (public_key(&secret).unwrap(), sign(&secret, &claims(&Right::ALL)).unwrap());
        for header in ["v1.public.", "v2.public.", "v3.public.", "v4.local.", "v5.public.", "v4.PUBLIC.", ""]
        {
            let other = token.replace("v4.public.", header);
            assert!(verify(&public, &other).unwrap_err().to_string().contains("not a token"), "{other}");
        }
    }

    #[test]
    fn a_token_of_version_1_is_refused_with_the_command_that_makes_a_new_one() {
        let claims = BASE64.encode(r#"{"name":"laptop","rights":["read","run"],"expires":4102444800}"#);
        let secret = new_key().unwrap();
        let error =
            verify(&public_key(&secret).unwrap(), &format!("{claims}.{claims}")).unwrap_err().to_string();
        let command = "`inshore node credentials DIR --for-client laptop --rights read,run`";
        assert!(error.contains("older version") && error.contains(command), "{error}");
        // A malicious name does not become a part of the command.
        assert!(renewal("a; rm -rf /", &[Right::Read]).contains("--for-client NAME"));
        assert!(renewal("a", &[Right::Relay]).contains("--for-node a --address"));
    }
}
