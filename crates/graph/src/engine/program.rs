//! Vertex programs: an algorithm as functions of one vertex.

use inshore_sortreduce::Operation;

use super::{Message, Pull, State};

/// The interface between an algorithm and the engine's steps: the four functions of the 2018 thesis, one function for
/// weights, two functions for vertices that pull, and three functions for sums over vertices.
///
/// Steps cannot check all promises of an implementation (`NOTHING`, `kept`, `message_of`). Programs of users therefore
/// implement another trait ([`crate::program`]), and an implementation of this trait calls them.
pub(crate) trait StepProgram: Clone + Send + Sync + 'static {
    /// The state of a vertex.
    type State: State;
    /// The message along an edge.
    type Message: Message;

    /// The empty message: the neutral element of the reduction.
    const NOTHING: Self::Message;

    /// Tells whether `finalize` runs for every vertex in each superstep. The message is [`StepProgram::NOTHING`] if no
    /// message arrived.
    const EVERY_VERTEX: bool = false;

    /// Tells whether the weights of edges matter, so that [`StepProgram::along`] is called.
    const WEIGHTED: bool = false;

    /// The messages that a waiting vertex pulls from the active vertices in its row, if the program can pull. With
    /// [`Pull::All`], the program must ensure that no active vertex waits, and that messages do not change a vertex
    /// that does not wait.
    const PULL: Pull = Pull::Never;

    /// Tells whether the same rows may be read repeatedly.
    const REREADS: bool = false;

    /// Tells whether a vertex with this state waits for messages.
    fn waits(&self, _vertex: u32, _state: &Self::State) -> bool {
        false
    }

    /// Returns the message that an active vertex sends with [`Pull::First`]. If several active vertices send to one
    /// vertex, the message of the smallest vertex number wins.
    fn message_of(&self, _vertex: u32) -> Self::Message {
        Self::NOTHING
    }

    /// Returns the message of an active vertex along each of its edges; `None` sends nothing.
    fn edge_program(&self, vertex: u32, state: &Self::State, degree: u32) -> Option<Self::Message>;

    /// Returns the message that arrives at vertex `to` along an edge of this weight.
    fn along(&self, _to: u32, message: Self::Message, _weight: f64) -> Self::Message {
        message
    }

    /// Combines two messages to one vertex. The function is associative and commutative.
    fn reduce(&self, a: Self::Message, b: Self::Message) -> Self::Message;

    /// Combines two messages to a given vertex. The default is `reduce`. All steps call this function, and not
    /// `reduce`.
    #[inline(always)]
    fn reduce_at(&self, _vertex: u32, a: Self::Message, b: Self::Message) -> Self::Message {
        self.reduce(a, b)
    }

    /// Returns the new state of a vertex.
    fn finalize(&self, vertex: u32, message: Self::Message, state: &Self::State) -> Self::State;

    /// Tells whether accumulators hold [`StepProgram::kept`] between supersteps. A vertex then counts as updated
    /// whenever a message changes its accumulator.
    const ACCUMULATORS_KEEP_STATE: bool = false;

    /// Returns a message that a vertex's state already contains. The engine skips every message to the vertex whose
    /// reduction with the returned message is the returned message. If a program overrides this function, only
    /// supersteps may change states.
    fn kept(&self, _state: &Self::State) -> Self::Message {
        Self::NOTHING
    }

    /// Tells whether a vertex with this new and old state is active in the next superstep.
    fn is_active(&self, vertex: u32, new: &Self::State, old: &Self::State) -> bool;

    /// Returns the number that an active vertex adds to the wrapping sum that `set_aggregate` gets.
    fn aggregate(&self, _vertex: u32, _state: &Self::State, _degree: u32) -> u64 {
        0
    }

    /// Gets the sum of `aggregate` over all active vertices. The call comes after all messages were sent, and before
    /// `finalize`.
    fn set_aggregate(&mut self, _sum: u64) {}

    /// Returns the number that a vertex adds to [`super::SuperstepOutcome::change`].
    fn change(&self, _new: &Self::State, _old: &Self::State) -> u64 {
        0
    }
}

/// Makes a program's `reduce` usable by sort-reduce.
#[derive(Clone)]
pub(super) struct ReduceOperation<P>(pub P);

impl<P: StepProgram> Operation for ReduceOperation<P> {
    type Key = u32;
    type Value = P::Message;
    fn combine(&self, a: P::Message, b: P::Message) -> P::Message {
        self.0.reduce(a, b)
    }

    #[inline(always)]
    fn combine_at(&self, vertex: u32, a: P::Message, b: P::Message) -> P::Message {
        self.0.reduce_at(vertex, a, b)
    }
}
