//! Authenticates the callers of an agent by bearer tokens, and checks their rights.

use tonic::{Request, Status as Refusal, codegen::http::HeaderMap};

use super::Agent;
use crate::Right;

/// The authenticated sender of a request.
#[derive(Clone)]
pub(super) struct Caller {
    pub name: String,
    pub rights: Vec<Right>,
    /// The id of the token, if the request had one: two tokens may have the same subject.
    pub token: Option<String>,
}

impl Caller {
    /// Returns the caller's name for the log: the token's subject and the token's id.
    pub fn who(&self) -> String {
        match &self.token {
            Some(id) => format!("{} (token {id})", self.name),
            None => self.name.clone(),
        }
    }

    /// Refuses a caller that has none of these rights.
    pub fn check_rights(&self, any_of: &[Right]) -> Result<(), Refusal> {
        if any_of.iter().any(|right| self.rights.contains(right)) {
            return Ok(());
        }
        let names = |rights: &[Right], between| {
            rights.iter().map(|right| right.name()).collect::<Vec<_>>().join(between)
        };
        let (wanted, own) = (names(any_of, " or "), names(&self.rights, ", "));
        let what = format!("{} has no right to {wanted}: the token has {own}", self.name);
        Err(Refusal::permission_denied(what))
    }
}

impl Agent {
    /// Authenticates the sender of a request by the bearer token in its headers.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        Ok(match &self.0.config.credentials {
            None => {
                // All rights include the right to run commands, but no command exists unless the operator named some.
                Caller { name: "local".to_string(), rights: Right::ALL.to_vec(), token: None }
            }
            Some(credentials) => {
                let header = headers.get("authorization").and_then(|value| value.to_str().ok());
                let token = header.and_then(|value| value.strip_prefix("Bearer "));
                let token =
                    token.ok_or_else(|| Refusal::unauthenticated("credentials: the request has no token"))?;
                let claims = credentials.check(token);
                let claims = claims.map_err(|error| Refusal::unauthenticated(error.to_string()))?;
                Caller { name: claims.subject, rights: claims.rights, token: Some(claims.id) }
            }
        })
    }

    /// Returns the caller of a request, or refuses a caller that has none of these rights.
    pub(super) fn allowed<T>(&self, request: &Request<T>, any_of: &[Right]) -> Result<Caller, Refusal> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller
            .ok_or_else(|| Refusal::unauthenticated("credentials: the connection was not authenticated"))?;
        caller.check_rights(any_of).map_err(|refusal| self.refuse(refusal))?;
        Ok(caller)
    }
}
