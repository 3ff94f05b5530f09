//! The events that a job reports to its scheduler, and the actions that the scheduler requests.

/// A party that pulls and processes shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Puller {
    /// A node, by its number.
    Node(usize),
    /// A thread of the client.
    Client,
}

impl Puller {
    /// Returns the number of the node if the puller is a node.
    pub fn node(self) -> Option<usize> {
        match self {
            Puller::Node(node) => Some(node),
            Puller::Client => None,
        }
    }
}

/// The order in which answers are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerOrder {
    /// In the order of shards; the number is the window in bytes after the first unanswered shard.
    Window(u64),
    /// One combined answer of each attempt for all of its shards.
    Combined,
}

/// An event of the job.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A puller requests more shards, and has finished reading the given number of its shards.
    Pulled { attempt: usize, finished: usize },
    /// A task makes progress or sends a message.
    Progressed { attempt: usize },
    /// The consumer waits for the answer of this attempt.
    Waited { attempt: usize },
    /// The consumer waits for a shard that no puller has.
    Starved { shard: usize },
    /// The client took a part of the answer of a shard.
    Advanced { attempt: usize, shard: usize },
    /// A shard was answered completely.
    Answered { attempt: usize, shard: usize },
    /// An attempt has ended with an answer for the given shards.
    Completed { attempt: usize, shards: Vec<usize> },
    /// A node cannot read a shard.
    Unreadable { attempt: usize, shard: usize, why: String },
    /// An attempt is lost, and if `is_gone` also its node.
    Failed { attempt: usize, why: String, is_gone: bool },
    /// The stream of an attempt ended with an error. The consumer of the answers receives the error later,
    /// unless the attempt has no shards.
    Closed { attempt: usize, why: String, is_gone: bool },
    /// The remaining answer of a shard is not needed.
    Skipped { shard: usize },
}

/// An action that the scheduler requests from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Request a task that pulls shards from a node.
    Begin { attempt: usize, node: usize },
    /// Give a shard to an attempt.
    HandOut { attempt: usize, shard: usize },
    /// Inform an attempt that no more shards follow.
    End { attempt: usize },
    /// Stop an attempt and take no more of its answers.
    Cancel { attempt: usize },
    /// No remaining node has this shard.
    Missing { shard: usize },
}
