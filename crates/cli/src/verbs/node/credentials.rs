//! `inshore node credentials`: creates the authority, and the credentials of nodes and clients.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use inshore::{
    nodes::{Authority, read_credentials, write_credentials},
    store::make_folder,
};
use serde_json::json;

use crate::{
    args::{Credentials, GlobalOptions},
    report::outcome::{print_json, print_line, say},
};

pub fn credentials(options: &GlobalOptions, words: &Credentials) -> Result<()> {
    let lifetime = Duration::from_secs(u64::from(words.days) * 86_400);
    let path = words.folder.join("authority.json");
    let (mut made, mut token) = (Vec::new(), None);
    if !path.exists() {
        make_folder(&words.folder).with_context(|| words.folder.display().to_string())?;
        write_credentials(&path, &Authority::create()?)?;
        made.push(path.clone());
    }
    let authority: Authority = read_credentials(&path)?;
    if let Some(name) = &words.for_node {
        let path = words.folder.join(format!("node-{}.json", checked_name(name)?));
        write_credentials(&path, &authority.node(name, &words.address, lifetime)?)?;
        made.push(path);
    }
    if let Some(name) = &words.for_client {
        let path = words.folder.join(format!("client-{}.json", checked_name(name)?));
        let credentials = authority.client(name, &words.rights, lifetime)?;
        write_credentials(&path, &credentials)?;
        token = Some(credentials.claims()?);
        made.push(path);
    }
    if options.json {
        return Ok(print_json(&json!({ "command": "node credentials", "files": made, "token": token }))?);
    }
    if made.is_empty() && !options.quiet {
        say("the authority exists already: --for-node and --for-client create credentials");
    }
    made.iter().try_for_each(|path| print_line(&path.display().to_string()))?;
    Ok(())
}

/// Checks a name that becomes a part of a file name.
pub(super) fn checked_name(name: &str) -> Result<&str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_good) {
        bail!("bad name '{name}': expected letters, digits, '-', '_' and '.', not beginning with '.'");
    }
    Ok(name)
}
