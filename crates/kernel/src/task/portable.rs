//! Defines compute kernels that a client can send to the node that has the data.

use inshore_store::Budget;
use serde_json::Value;

use super::RequiredRight;
use crate::Kernel;

/// A compute kernel that a client can send to the node that has the data. The node can send the parts (the results of
/// blocks) back to the client.
pub trait Portable: Kernel + Sized {
    /// The [`TaskHandler::kind`](super::TaskHandler::kind) of tasks that run the compute kernel.
    const KIND: &'static str;
    /// The right that a client needs to run the compute kernel on a node.
    const NEEDS: RequiredRight = RequiredRight::BuiltIn;

    /// Returns all arguments that another machine needs to create the same compute kernel.
    fn arguments(&self) -> Value;

    /// Creates the compute kernel from [`Self::arguments`].
    ///
    /// # Errors
    /// Returns an error of the compute kernel if the arguments are invalid.
    fn of_arguments(arguments: &Value) -> Result<Self, Self::Error>;

    /// Creates the compute kernel from [`Self::arguments`]. The compute kernel may reserve memory from the budget.
    ///
    /// # Errors
    /// - Returns the errors of [`Self::of_arguments`].
    /// - Returns an error if the budget is too small.
    fn within(arguments: &Value, _budget: &Budget) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }

    /// Appends the serialized part to `out`. Appends nothing if the part is empty.
    fn encode(part: &Self::Part, out: &mut Vec<u8>);

    /// Deserializes a part. Returns `None` if the bytes are invalid.
    fn decode(bytes: &[u8]) -> Option<Self::Part>;

    /// Returns true if the result of the job needs no part of this file after `_part`.
    fn suffices(&self, _part: &Self::Part) -> bool {
        false
    }

    /// True if a client may process shards of a job itself. The client then reads the data of the nodes as streams, and
    /// its parts must equal those that a node computes.
    const CAN_HELP: bool = false;

    /// Creates the compute kernel for a client that processes shards itself.
    ///
    /// # Errors
    /// Returns the errors of [`Self::of_arguments`].
    fn for_client(arguments: &Value) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }
}
