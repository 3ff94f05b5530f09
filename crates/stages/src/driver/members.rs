//! The nodes of a job, and requests to several of them.

use std::collections::BTreeMap;

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
    /// The certificate that the node shows.
    pub certificate: Option<String>,
}

/// Returns the nodes that take part in a job, in the order of their permanent numbers, and for each other node the
/// reason for which it does not.
pub(super) fn members(nodes: &Nodes) -> Result<(Vec<Member>, BTreeMap<usize, NodesError>)> {
    let (mut members, mut absent): (Vec<Member>, BTreeMap<usize, NodesError>) = Default::default();
    let statuses = nodes.status();
    let certificates = nodes.certificates(&(0..statuses.len()).collect::<Vec<_>>());
    let answers = statuses.into_iter().zip(certificates).enumerate();
    for (index, (NodeStatus { address, status }, certificate)) in answers {
        match status.and_then(|status| Ok((status, certificate?))) {
            Ok((status, _)) if status.draining => {
                let what = "the node is shutting down and accepts no more tasks".to_string();
                absent.insert(index, NodesError::Lost { node: address, what });
            }
            Ok((status, certificate)) => {
                let (number, memory_bytes) = (status.node, status.memory_bytes);
                members.push(Member { index, address, number, memory_bytes, certificate });
            }
            Err(error) => drop(absent.insert(index, error)),
        }
    }
    members.sort_by_key(|member| member.number);
    if let Some(pair) = members.windows(2).find(|pair| pair[0].number == pair[1].number) {
        return Err(DriverError::SameStore { one: pair[0].address.clone(), other: pair[1].address.clone() });
    }
    match (members.is_empty(), absent.pop_first()) {
        (true, Some((_, error))) => Err(error.into()),
        (true, None) => Err(DriverError::NoNodes),
        (false, first) => {
            absent.extend(first);
            Ok((members, absent))
        }
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
