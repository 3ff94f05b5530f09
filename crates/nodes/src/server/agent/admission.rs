//! Admission control for requests. The headers of a request are checked before the body is read. Unfinished bodies
//! share a limited part of the node's memory.
//!
//! ```text
//!   headers ─► token ─► a right that the method may need ─► body, frame by frame ─► whole message ─► FlightService
//!                │           │                                │
//!                └───────────┴── refused                      └── refused: too long, too slow, or the share is full
//! ```
//!
//! A method with one message (`DoGet`, `DoAction`) holds its complete body in memory until the body ends.
//! Each byte therefore counts against the share of unfinished bodies
//! ([`Requests`](super::requests::Requests)), and the body has to arrive within
//! [`AgentConfig::request`](super::AgentConfig::request). A method with a stream of messages holds one
//! message at a time. A load reserves its own memory before its body is read (`loads.rs`), and the steps of a
//! traversal are so short that each connection may hold one step.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use arrow_flight::flight_service_server::FlightServiceServer;
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use hyper::body::{Frame, SizeHint};
use inshore_store::format_bytes;
use tokio::time::{Sleep, sleep};
use tonic::{
    Status as Refusal,
    body::Body,
    codegen::{
        Body as HttpBody, Service,
        http::{Request, Response},
    },
    server::NamedService,
};

use super::{Agent, requests::AccountedMemory};
use crate::{
    Right,
    protocol::wire::{MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX, ask_again},
    server::connection::ClientConnection,
};

/// The largest body of a request other than a task, in bytes. The longest of these requests names the nodes
/// that still hold a removed dataset.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// The largest message with a step of a traversal: 64 bytes and the framing.
const STEP_BYTES_MAX: usize = 1 << 10;
/// The length of the prefix of a gRPC message: a flag and a length.
const PREFIX_BYTES: u64 = 5;

/// The requirements of a method, checked before the body is read.
struct Method {
    /// The caller needs at least one of these rights. The body determines the exact right.
    any_of: &'static [Right],
    message_bytes_max: usize,
    /// True if the body is a single message.
    is_unary: bool,
}

impl Method {
    fn of_path(path: &str) -> Method {
        let (any_of, message_bytes_max, is_unary): (&[Right], _, _) = match path.rsplit('/').next() {
            Some("DoGet") => (&[Right::Read, Right::Relay], REQUEST_BYTES_MAX, true),
            Some("DoPut") => (&[Right::Write], REQUEST_BYTES_MAX, false),
            Some("DoExchange") => (&[Right::Run, Right::Relay], STEP_BYTES_MAX, false),
            Some("DoAction") => (&[Right::Read, Right::Write, Right::Administer], QUESTION_BYTES_MAX, true),
            // The node answers these methods without reading data.
            _ => (&Right::ALL, QUESTION_BYTES_MAX, true),
        };
        Method { any_of, message_bytes_max, is_unary }
    }
}

/// The service that checks requests before the agent's own service handles them.
#[derive(Clone)]
pub(super) struct Admission(pub Agent);

impl NamedService for Admission {
    const NAME: &'static str = <FlightServiceServer<Agent> as NamedService>::NAME;
}

impl Service<Request<Body>> for Admission {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Admission(agent) = self;
        let method = Method::of_path(request.uri().path());
        let admitted = agent.caller(request.headers()).and_then(|caller| {
            if let Some(guest) = request.extensions().get::<ClientConnection>() {
                guest.ask().map_err(ask_again)?;
            }
            caller.check_rights(method.any_of)?;
            Ok(caller)
        });
        match admitted {
            Ok(caller) => request.extensions_mut().insert(caller),
            Err(refusal) => {
                let response = agent.refuse(refusal).into_http();
                return futures::future::ready(Ok(response)).boxed();
            }
        };
        let request = match method.is_unary {
            true => request.map(|body| Body::new(CountedBody::new(agent, body, method.message_bytes_max))),
            false => request,
        };
        FlightServiceServer::new(agent.clone())
            .max_decoding_message_size(method.message_bytes_max)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .call(request)
    }
}

/// The body of a request with one message. The bytes of the body count against the share of unfinished bodies until the
/// body has ended and the message was parsed.
struct CountedBody {
    agent: Agent,
    body: Body,
    held: AccountedMemory,
    bytes_max: u64,
    patience: Duration,
    until: Pin<Box<Sleep>>,
}

impl CountedBody {
    fn new(agent: &Agent, body: Body, message_bytes_max: usize) -> CountedBody {
        let patience = agent.config().request;
        CountedBody {
            agent: agent.clone(),
            body,
            held: agent.0.requests.unfinished(),
            bytes_max: message_bytes_max as u64 + PREFIX_BYTES,
            patience,
            until: Box::pin(sleep(patience)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if self.until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Refusal::deadline_exceeded(format!(
                "the request was incomplete after {:.1} s: {} received",
                self.patience.as_secs_f64(),
                format_bytes(self.held.bytes())
            )))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let bytes = data.len() as u64;
            if self.held.bytes() + bytes > self.bytes_max {
                return Poll::Ready(Some(Err(Refusal::invalid_argument(format!(
                    "the request exceeds the limit of {} for its kind",
                    format_bytes(self.bytes_max - PREFIX_BYTES)
                )))));
            }
            if let Err(refusal) = self.agent.0.requests.more(&mut self.held, bytes) {
                return Poll::Ready(Some(Err(refusal)));
            }
        }
        Poll::Ready(frame)
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        let frame = ready!(self.poll(context));
        // A cancellation by the client does not count as a refusal.
        let refused = frame.map(|frame| match frame {
            Err(refusal) if refusal.code() != tonic::Code::Cancelled => Err(self.agent.refuse(refusal)),
            frame => frame,
        });
        Poll::Ready(refused)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_that_reads_a_body_asks_for_a_right_first() {
        let rights =
            |name: &str| Method::of_path(&format!("/arrow.flight.protocol.FlightService/{name}")).any_of;
        assert_eq!(rights("DoGet"), [Right::Read, Right::Relay]);
        assert_eq!(rights("DoPut"), [Right::Write]);
        assert_eq!(rights("DoExchange"), [Right::Run, Right::Relay]);
        assert_eq!(rights("DoAction"), [Right::Read, Right::Write, Right::Administer]);
        assert_eq!(rights("GetSchema"), Right::ALL);
    }
}
