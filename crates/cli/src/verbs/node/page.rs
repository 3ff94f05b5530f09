//! The status page of a node.

use anyhow::Result;
use inshore::nodes::{Agent, Page, PageConfig, read_credentials};

use crate::args::PageArgs;

/// Serves the status page of an agent if `--page` is given.
pub fn serve(agent: &Agent, arguments: &PageArgs) -> Result<Option<Page>> {
    let Some(listen) = arguments.page else { return Ok(None) };
    let peer_credentials = arguments.peer_credentials.as_deref().map(read_credentials).transpose()?;
    let config = PageConfig { listen, peers: arguments.peers.clone(), peer_credentials };
    Ok(Some(agent.serve_page(config)?))
}
