//! Vertex programs: an algorithm as functions of one vertex.

use inshore_sortreduce::Operation;

use super::{Message, Pull, State};

/// An algorithm as all steps see it: the thesis' four functions, one for weights, two for vertices that look for messages themselves, and
/// three small ones for sums over vertices.
///
/// It makes promises that no step can check (`NOTHING`, `kept`, `said_by`): programs of users implement another trait
/// ([`crate::program`]), which is hosted by an implementation of this one.
pub(crate) trait StepProgram: Clone + Send + Sync + 'static {
    /// What is kept of each vertex.
    type State: State;
    /// What an edge carries.
    type Message: Message;

    /// What stands for no message: reduced with a message it gives that message.
    const NOTHING: Self::Message;

    /// Whether `finalize` runs for every vertex in each superstep, with [`StepProgram::NOTHING`] where none arrived.
    const EVERY_VERTEX: bool = false;

    /// Whether the weights of edges matter: whether [`StepProgram::along`] is called.
    const WEIGHTED: bool = false;

    /// The messages that a waiting vertex needs of the active vertices in its row, so that it can look for them. With [`Pull::All`] no
    /// active vertex waits, and messages do not change a vertex that does not wait.
    const PULL: Pull = Pull::Never;

    /// Whether rows may be walked along again and again.
    const REREADS: bool = false;

    /// Whether a vertex with this state waits for messages.
    fn waits(&self, _vertex: u32, _state: &Self::State) -> bool {
        false
    }

    /// The message of an active vertex with [`Pull::First`]. If two messages reach a vertex, the sender with the smaller number wins.
    fn said_by(&self, _vertex: u32) -> Self::Message {
        Self::NOTHING
    }

    /// What an active vertex sends along each of its edges; `None` sends nothing.
    fn edge_program(&self, vertex: u32, state: &Self::State, degree: u32) -> Option<Self::Message>;

    /// What arrives at vertex `to` along an edge of this weight.
    fn along(&self, _to: u32, message: Self::Message, _weight: f64) -> Self::Message {
        message
    }

    /// Combines two messages to one vertex; associative and commutative.
    fn reduce(&self, a: Self::Message, b: Self::Message) -> Self::Message;

    /// As `reduce`, of two messages to this vertex: what steps call.
    #[inline(always)]
    fn reduce_at(&self, _vertex: u32, a: Self::Message, b: Self::Message) -> Self::Message {
        self.reduce(a, b)
    }

    /// The new state of a vertex.
    fn finalize(&self, vertex: u32, message: Self::Message, state: &Self::State) -> Self::State;

    /// Whether a message can still improve on what [`StepProgram::kept`] gave: then each one that does counts as new.
    const CELLS_KEEP_STATE: bool = false;

    /// A message that a vertex with this state has seen already: every message that would change nothing is passed over
    /// where it meets this one. Nothing but supersteps may change states then.
    fn kept(&self, _state: &Self::State) -> Self::Message {
        Self::NOTHING
    }

    /// Whether a vertex with this new and old state takes part in the next superstep.
    fn is_active(&self, vertex: u32, new: &Self::State, old: &Self::State) -> bool;

    /// What an active vertex adds to the sum that `gathered` is given, which wraps.
    fn gather(&self, _vertex: u32, _state: &Self::State, _degree: u32) -> u64 {
        0
    }

    /// Called between the edges and `finalize` with the sum of `gather` over all active vertices.
    fn gathered(&mut self, _sum: u64) {}

    /// What a vertex adds to [`super::Done::change`].
    fn change(&self, _new: &Self::State, _old: &Self::State) -> u64 {
        0
    }
}

/// The operation of sort-reduce that a program's `reduce` is.
#[derive(Clone)]
pub(super) struct Reduce<P>(pub P);

impl<P: StepProgram> Operation for Reduce<P> {
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
