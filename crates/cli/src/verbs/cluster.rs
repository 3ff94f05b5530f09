//! `inshore cluster`.

use anyhow::{Result, bail};

#[cfg(feature = "graph")]
use super::graph::algorithms::{bfs_on_cluster, components_on_cluster, pagerank_on_cluster, sssp_on_cluster};
use super::sort::{reduce, sort_as};
use crate::{
    args::{ClusterCommand, GlobalOptions, Sort, SortOnCluster},
    verbs::node::{are_named, status},
};

/// Runs a command on a cluster. Returns `false` if the answer of `status` is "no".
pub fn cluster(options: GlobalOptions, command: ClusterCommand) -> Result<bool> {
    if !are_named(&options) {
        bail!("no nodes are given: use --node HOST,HOST:PORT,...");
    }
    if options.partial && !matches!(command, ClusterCommand::Status) {
        bail!("--partial does not work on a cluster: an exchange needs the rows of all nodes");
    }
    let options = GlobalOptions { is_cluster: true, ..options };
    match command {
        ClusterCommand::Status => status(&options),
        ClusterCommand::Sort(SortOnCluster { inputs, output, record, key_bytes, reverse, unique }) => {
            let (key, text, header, resume) = Default::default();
            let sort = Sort { inputs, output, key, text, header, record, key_bytes, reverse, unique, resume };
            sort_as("cluster sort", options, &sort).map(|()| true)
        }
        ClusterCommand::Reduce(arguments) => reduce(options, &arguments).map(|()| true),
        #[cfg(feature = "sql")]
        ClusterCommand::Sql(arguments) => super::sql::sql(options, &arguments).map(|()| true),
        #[cfg(feature = "graph")]
        ClusterCommand::Pagerank(arguments) => pagerank_on_cluster(options, &arguments).map(|()| true),
        #[cfg(feature = "graph")]
        ClusterCommand::Bfs(arguments) => bfs_on_cluster(options, &arguments).map(|()| true),
        #[cfg(feature = "graph")]
        ClusterCommand::Components(arguments) => components_on_cluster(options, &arguments).map(|()| true),
        #[cfg(feature = "graph")]
        ClusterCommand::Sssp(arguments) => sssp_on_cluster(options, &arguments).map(|()| true),
    }
}
