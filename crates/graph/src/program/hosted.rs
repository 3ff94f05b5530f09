//! Adapts programs of users to the engine's steps. Vertex numbers and bits become vertices and values, and panics of
//! every call are caught.

use std::sync::Arc;

use super::{
    Column, FixedWidth, MessageBits, SearchProgram, SuperstepInfo, VertexId, VertexProgram, host::Failures,
};
use crate::{
    algorithms::NONE,
    engine::{Pull, StepProgram},
};

/// A program of a user that the engine can run.
pub(super) trait Hosted: StepProgram {
    type Value: FixedWidth<Bits = Self::State>;

    const NAME: &'static str;

    /// Returns the position of the job as the program sees it. The caller sets this position for each superstep.
    fn at(&mut self) -> &mut SuperstepInfo;

    fn failures(&self) -> &Arc<Failures>;

    fn initial(&self, vertex: u32) -> Self::State;

    fn starts(&self, vertex: u32, state: &Self::State) -> bool;

    fn columns(&self) -> Vec<Column<Self::Value>>;
}

/// A program, its first failure, and the position of its job.
struct Host<P> {
    program: Arc<P>,
    failures: Arc<Failures>,
    at: SuperstepInfo,
}

impl<P> Clone for Host<P> {
    fn clone(&self) -> Host<P> {
        Host { program: self.program.clone(), failures: self.failures.clone(), at: self.at }
    }
}

impl<P> Host<P> {
    fn new(program: P) -> Host<P> {
        Host { program: Arc::new(program), failures: Arc::default(), at: SuperstepInfo::default() }
    }

    /// Calls a function of the program for a vertex.
    #[inline(always)]
    fn call<T>(
        &self,
        function: &'static str,
        vertex: u32,
        otherwise: T,
        call: impl FnOnce(&P, VertexId) -> T,
    ) -> T {
        let id = VertexId::of_number(vertex);
        self.failures.call(function, Some(vertex), otherwise, || call(&self.program, id))
    }
}

type BitsOf<T> = <T as FixedWidth>::Bits;

/// Defines the host of one kind of programs, with the functions that all kinds have.
macro_rules! host {
    ($(#[$doc:meta])* $hosted:ident, $kind:ident) => {
        $(#[$doc])*
        pub(super) struct $hosted<P>(Host<P>);

        impl<P> Clone for $hosted<P> {
            fn clone(&self) -> Self {
                $hosted(self.0.clone())
            }
        }

        impl<P: $kind> $hosted<P> {
            pub fn new(program: P) -> Self {
                $hosted(Host::new(program))
            }
        }

        impl<P: $kind> Hosted for $hosted<P> {
            type Value = P::Value;
            const NAME: &'static str = P::NAME;

            fn at(&mut self) -> &mut SuperstepInfo {
                &mut self.0.at
            }

            fn failures(&self) -> &Arc<Failures> {
                &self.0.failures
            }

            fn initial(&self, vertex: u32) -> Self::State {
                let none = Self::State::default();
                self.0.call("initial", vertex, none, |program, id| program.initial(id).to_bits())
            }

            fn starts(&self, vertex: u32, state: &Self::State) -> bool {
                self.0.call("starts", vertex, false, |program, id| {
                    program.starts(id, P::Value::from_bits(*state))
                })
            }

            fn columns(&self) -> Vec<Column<P::Value>> {
                self.0.failures.call("columns", None, Vec::new(), || self.0.program.columns())
            }
        }
    };
}

host! {
    /// Hosts a [`VertexProgram`].
    HostedVertices, VertexProgram
}

host! {
    /// Hosts a [`SearchProgram`]: a message is the number of its sender.
    HostedSearch, SearchProgram
}

impl<P: VertexProgram> HostedVertices<P> {
    /// Returns the bits of a message. Records a failure if these bits are reserved.
    #[inline(always)]
    fn checked(&self, function: &'static str, vertex: u32, bits: BitsOf<P::Message>) -> BitsOf<P::Message> {
        if bits == Self::NOTHING {
            let what = "returned a message with all bits set, which is a reserved value".to_string();
            self.0.failures.note(function, Some(vertex), what);
        }
        bits
    }
}

impl<P: VertexProgram> StepProgram for HostedVertices<P> {
    type State = BitsOf<P::Value>;
    type Message = BitsOf<P::Message>;
    const NOTHING: Self::Message = <BitsOf<P::Message> as MessageBits>::RESERVED;
    const EVERY_VERTEX: bool = P::NEEDS.every_vertex;
    const WEIGHTED: bool = P::NEEDS.weights;
    // If every vertex sends in each superstep, destination blocks make a copy of the rows in memory unnecessary.
    const REREADS: bool = !P::NEEDS.every_vertex;

    #[inline]
    fn edge_program(&self, vertex: u32, state: &Self::State, degree: u32) -> Option<Self::Message> {
        let sent = self.0.call("edge_program", vertex, None, |program, id| {
            let value = P::Value::from_bits(*state);
            program.edge_program(&self.0.at, id, value, degree.into()).map(P::Message::to_bits)
        });
        sent.map(|bits| self.checked("edge_program", vertex, bits))
    }

    #[inline]
    fn along(&self, to: u32, message: Self::Message, weight: f64) -> Self::Message {
        let bits = self.0.call("along", to, message, |program, _| {
            program.along(P::Message::from_bits(message), weight).to_bits()
        });
        self.checked("along", to, bits)
    }

    #[inline]
    fn reduce(&self, a: Self::Message, b: Self::Message) -> Self::Message {
        self.reduce_at(NONE, a, b)
    }

    #[inline]
    fn reduce_at(&self, vertex: u32, a: Self::Message, b: Self::Message) -> Self::Message {
        if a == Self::NOTHING {
            return b;
        }
        if b == Self::NOTHING {
            return a;
        }
        let bits = self.0.call("reduce", vertex, a, |program, _| {
            program.reduce(P::Message::from_bits(a), P::Message::from_bits(b)).to_bits()
        });
        self.checked("reduce", vertex, bits)
    }

    #[inline]
    fn finalize(&self, vertex: u32, message: Self::Message, state: &Self::State) -> Self::State {
        self.0.call("finalize", vertex, *state, |program, id| {
            let message = (message != Self::NOTHING).then(|| P::Message::from_bits(message));
            program.finalize(&self.0.at, id, message, P::Value::from_bits(*state)).to_bits()
        })
    }

    #[inline]
    fn is_active(&self, vertex: u32, new: &Self::State, old: &Self::State) -> bool {
        self.0.call("is_active", vertex, false, |program, _| {
            program.is_active(P::Value::from_bits(*new), P::Value::from_bits(*old))
        })
    }

    #[inline]
    fn aggregate(&self, vertex: u32, state: &Self::State, degree: u32) -> u64 {
        self.0.call("aggregate", vertex, 0, |program, _| {
            program.aggregate(P::Value::from_bits(*state), degree.into())
        })
    }

    fn set_aggregate(&mut self, sum: u64) {
        self.0.at.aggregate = sum;
    }
}

impl<P: SearchProgram> StepProgram for HostedSearch<P> {
    type State = BitsOf<P::Value>;
    type Message = u32;
    const NOTHING: u32 = NONE;
    const PULL: Pull = Pull::First;

    #[inline]
    fn waits(&self, vertex: u32, state: &Self::State) -> bool {
        self.0.call("waits", vertex, false, |program, _| program.waits(P::Value::from_bits(*state)))
    }

    #[inline]
    fn message_of(&self, vertex: u32) -> u32 {
        vertex
    }

    #[inline]
    fn edge_program(&self, vertex: u32, _state: &Self::State, _degree: u32) -> Option<u32> {
        Some(vertex)
    }

    #[inline]
    fn reduce(&self, a: u32, b: u32) -> u32 {
        a.min(b)
    }

    fn finalize(&self, vertex: u32, sender: u32, state: &Self::State) -> Self::State {
        if !self.waits(vertex, state) {
            return *state;
        }
        let new = self.0.call("reached", vertex, *state, |program, id| {
            let (from, value) = (VertexId::of_number(sender), P::Value::from_bits(*state));
            program.reached(&self.0.at, id, from, value).to_bits()
        });
        if self.waits(vertex, &new) {
            let what = "returned a value for which the vertex still counts as unvisited".to_string();
            self.0.failures.note("reached", Some(vertex), what);
        }
        new
    }

    /// Returns 0, so that a reached vertex accepts no message: messages are reduced to the smallest, and no vertex
    /// number is below 0.
    fn kept(&self, _state: &Self::State) -> u32 {
        0
    }

    fn is_active(&self, vertex: u32, new: &Self::State, old: &Self::State) -> bool {
        self.waits(vertex, old) && !self.waits(vertex, new)
    }
}
