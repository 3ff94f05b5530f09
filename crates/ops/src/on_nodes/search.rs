//! This module searches files on the nodes that store them.

use inshore_kernel::{Event, Next};
use inshore_kernels::{Result, Search, SearchItem, SearchRows, SearchSummary, SearchTable, WalkedFile};
use inshore_nodes::{DistributedFile, GatherReport, Nodes, RunOptions, run_on_nodes};
use inshore_store::Context;

/// Searches files on nodes in the same way as [`Search::run`]. The name of a file is its title, such as
/// `store:NAME`.
///
/// # Errors
/// Returns the errors of [`Search::run`] and [`run_on_nodes`].
pub fn search_on_nodes(
    search: &Search,
    nodes: &Nodes,
    job: &Context,
    wholes: &[DistributedFile],
    options: &RunOptions,
    mut each: impl FnMut(&WalkedFile, Event<'_, Search>) -> Result<Next>,
) -> Result<GatherReport> {
    let candidate = |whole: &DistributedFile| WalkedFile { path: (&whole.title).into(), is_named: true };
    let named: Vec<WalkedFile> = wholes.iter().map(candidate).collect();
    run_on_nodes(nodes, job, search, wholes, options, |event: Event<'_, Search>| {
        each(&named[event.source], event)
    })
}

/// Searches files on nodes, and turns matches into rows. The rows name a file by its title, such as `store:NAME`.
///
/// # Errors
/// Returns the errors of [`SearchTable::run`] and [`search_on_nodes`].
pub fn search_table_on_nodes(
    table: &SearchTable,
    nodes: &Nodes,
    job: &Context,
    wholes: &[DistributedFile],
    options: &RunOptions,
    each: impl FnMut(SearchItem) -> Result<Next>,
) -> Result<(SearchSummary, GatherReport)> {
    let mut rows = SearchRows::new(table, job, each)?;
    let take = |whose: &WalkedFile, event: Event<'_, Search>| rows.take(whose, event);
    let gathered = search_on_nodes(table.kernel(), nodes, job, wholes, options, take)?;
    Ok((rows.finish()?, gathered))
}
