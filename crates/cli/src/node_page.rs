//! The page of a node: its words, and what serves it.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Result;
use clap::Args;
use inshore::neardata::nodes::{Agent, Page, PageConfig, read_credentials};

/// What a node shows of itself.
#[derive(Args)]
pub struct PageWords {
    /// Serve a page that shows what this node does, with its counters for Prometheus under /metrics. On this machine alone
    /// (127.0.0.1:4780) everybody here sees it; elsewhere it is HTTPS with the node's certificate, and a token with the right to
    /// read is the password
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Page")]
    pub page: Option<SocketAddr>,
    /// Other nodes that the page shows too: HOST or HOST:PORT of each
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "page", help_heading = "Page")]
    pub peers: Vec<String>,
    /// The credentials of a client, with which the page asks the --peers how they are; the right to read is enough
    #[arg(long, value_name = "FILE", requires = "peers", help_heading = "Page")]
    pub peer_credentials: Option<PathBuf>,
}

/// Serves the page of an agent, if there is to be one.
pub fn serve(agent: &Agent, words: &PageWords) -> Result<Option<Page>> {
    let Some(listen) = words.page else { return Ok(None) };
    let peer_credentials = words.peer_credentials.as_deref().map(read_credentials).transpose()?;
    let config = PageConfig { listen, peers: words.peers.clone(), peer_credentials };
    Ok(Some(agent.serve_page(config)?))
}
