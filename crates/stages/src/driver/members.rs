//! The nodes of a job, and requests to several of them.

use inshore_nodes::{Error as NodesError, NodeStatus, Nodes, SingleTask};
use inshore_store::Context;
use serde_json::Value;

use crate::DriverError;

/// The result of a driver.
pub(super) type Result<T> = std::result::Result<T, DriverError>;

/// A node of a job. The number of a node is its rank by the permanent number of its store, so that all drivers reserve
/// memory in the same order.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The index in the list of nodes.
    pub index: usize,
    pub address: String,
    /// The permanent number.
    pub number: u64,
    pub memory_bytes: u64,
}

/// Returns the nodes that answer, in the order of their permanent numbers.
pub(super) fn members(nodes: &Nodes) -> Result<Vec<Member>> {
    let (mut members, mut refusal): (Vec<Member>, Option<NodesError>) = Default::default();
    for (index, NodeStatus { address, status }) in nodes.status().into_iter().enumerate() {
        match status {
            Ok(status) if status.draining => {}
            Ok(status) => {
                members.push(Member {
                    index,
                    address,
                    number: status.node,
                    memory_bytes: status.memory_bytes,
                });
            }
            Err(error) => refusal = Some(error),
        }
    }
    members.sort_by_key(|member| member.number);
    if let Some(pair) = members.windows(2).find(|pair| pair[0].number == pair[1].number) {
        return Err(DriverError::SameStore { one: pair[0].address.clone(), other: pair[1].address.clone() });
    }
    match (members.is_empty(), refusal) {
        (true, Some(error)) => Err(error.into()),
        (true, None) => Err(DriverError::NoNodes),
        (false, _) => Ok(members),
    }
}

/// Requests tasks from nodes in parallel, and returns their summaries in the order of the requests.
pub(super) fn ask_all(
    nodes: &Nodes,
    context: &Context,
    tasks: Vec<(usize, SingleTask)>,
) -> Result<Vec<Value>> {
    let mut readers: Vec<_> = tasks.into_iter().map(|(node, task)| nodes.read_task(node, task)).collect();
    let mut summaries = Vec::with_capacity(readers.len());
    for reader in &mut readers {
        while reader.next(context)?.is_some() {}
        summaries.push(reader.summary().unwrap_or_default());
    }
    Ok(summaries)
}
