//! Kernels that can be sent to the node of the data.

use inshore_store::Budget;
use serde_json::Value;

use super::RequiredRight;
use crate::Kernel;

/// A kernel that can be sent to the node that has the data, and whose results of blocks (parts) can be sent back.
pub trait Portable: Kernel + Sized {
    /// The [`TaskHandler::kind`](super::TaskHandler::kind) of tasks that run the kernel.
    const KIND: &'static str;
    /// The right that a client needs.
    const NEEDS: RequiredRight = RequiredRight::BuiltIn;

    /// Returns all arguments that another machine needs to create the same kernel.
    fn arguments(&self) -> Value;

    /// Creates the kernel from [`Self::arguments`].
    ///
    /// # Errors
    /// An error of the kernel if the arguments are invalid.
    fn of_arguments(arguments: &Value) -> Result<Self, Self::Error>;

    /// Creates the kernel like [`Self::of_arguments`], for a kernel that reserves its own memory from this budget.
    ///
    /// # Errors
    /// As [`Self::of_arguments`], and if the budget is too small.
    fn within(arguments: &Value, _budget: &Budget) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }

    /// Serializes a part to `out`. Writes nothing if the part is empty.
    fn encode(part: &Self::Part, out: &mut Vec<u8>);

    /// Deserializes a part; returns `None` if the bytes are invalid.
    fn decode(bytes: &[u8]) -> Option<Self::Part>;

    /// Returns true if no later part of the same file is needed after this part.
    fn suffices(&self, _part: &Self::Part) -> bool {
        false
    }

    /// True if a client may run shards of a job itself, by reading the nodes' data as streams, with the same parts as
    /// result.
    const CAN_HELP: bool = false;

    /// Creates the kernel for a client that runs shards itself.
    ///
    /// # Errors
    /// The errors are those of [`Self::of_arguments`].
    fn for_client(arguments: &Value) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }
}
