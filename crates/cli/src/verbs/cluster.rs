//! `inshore cluster`.

use anyhow::{Result, bail};

use super::sort::{reduce, sort_as};
use crate::{
    args::{ClusterCommand, GlobalOptions, Sort, SortOnCluster},
    verbs::node::are_named,
};

pub fn cluster(options: GlobalOptions, command: ClusterCommand) -> Result<()> {
    if !are_named(&options) {
        bail!("no nodes are given: use --node HOST,HOST:PORT,...");
    }
    if options.partial {
        bail!("--partial does not work on a cluster: an exchange needs the rows of all nodes");
    }
    let options = GlobalOptions { is_cluster: true, ..options };
    match command {
        ClusterCommand::Sort(SortOnCluster { inputs, output, record, key_bytes, reverse, unique }) => {
            let (key, text, header, resume) = Default::default();
            let sort = Sort { inputs, output, key, text, header, record, key_bytes, reverse, unique, resume };
            sort_as("cluster sort", options, &sort)
        }
        ClusterCommand::Reduce(arguments) => reduce(options, &arguments),
        #[cfg(feature = "sql")]
        ClusterCommand::Sql(arguments) => super::sql::sql(options, &arguments),
    }
}
