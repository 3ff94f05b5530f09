//! Validates the request of a task before the task enters the queue.

use std::sync::{Arc, atomic::Ordering};

use arrow_flight::Ticket;
use inshore_kernel::{RequiredRight, TaskHandler};
use tonic::{Request, Status as Refusal};

use super::super::{
    Agent,
    authentication::Caller,
    requests::{AccountedMemory, parse_request, short},
    visits::TraversalHandler,
};
use crate::{
    Right,
    protocol::{TRAVERSE, TaskRequest, VERSION},
};

/// A task that the node supports and that its caller may run.
pub(crate) struct ValidTask {
    pub(super) request: TaskRequest,
    pub(super) caller: Caller,
    pub(super) handler: Arc<dyn TaskHandler>,
    /// The accounted memory of the request.
    pub(super) memory: AccountedMemory,
}

impl ValidTask {
    pub fn is_traversal(&self) -> bool {
        self.request.kind == TRAVERSE
    }
}

impl Agent {
    /// Parses and checks the request of a task.
    ///
    /// # Errors
    /// Returns the refusal of the task. The refusal was already counted and logged.
    pub(crate) fn validate_task(&self, request: &Request<Ticket>) -> Result<ValidTask, Refusal> {
        // A caller without the right to read learns nothing about handlers or datasets. A node may run some tasks for its
        // clients.
        self.allowed(request, &[Right::Read, Right::Relay])?;
        let ticket = &request.get_ref().ticket;
        let memory = self.0.requests.hold(ticket).map_err(|refusal| self.refuse(refusal))?;
        let task: TaskRequest = parse_request(ticket).map_err(|refusal| self.refuse(refusal))?;
        if task.version != VERSION {
            let what = format!("version {} of requests, expected {VERSION}", task.version);
            return Err(self.refuse(Refusal::unimplemented(format!("this node does not support {what}"))));
        }
        if !task.trace.as_deref().is_none_or(is_trace) {
            let what = "invalid request: a trace id has at most 32 hexadecimal digits";
            return Err(self.refuse(Refusal::invalid_argument(what)));
        }
        let handler = self.handler(request, &task)?;
        let caller = self.allowed(request, rights(handler.needs()))?;
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(
                self.refuse(Refusal::unavailable("this node is shutting down and accepts no more tasks"))
            );
        }
        Ok(ValidTask { request: task, caller, handler, memory })
    }

    /// Returns the handler for the kind of a task.
    fn handler(
        &self,
        request: &Request<Ticket>,
        task: &TaskRequest,
    ) -> Result<Arc<dyn TaskHandler>, Refusal> {
        let handlers = &self.0.handlers;
        if task.kind == TRAVERSE {
            let caller = self.allowed(request, &[Right::Run])?;
            let handler = TraversalHandler::new(self, &caller, task);
            return Ok(Arc::new(handler.map_err(|refusal| self.refuse(refusal))?));
        }
        handlers.get(&task.kind).cloned().ok_or_else(|| {
            let known = handlers.kinds().collect::<Vec<_>>().join(", ");
            let kind = short(&task.kind);
            let what = format!("this node does not support tasks of the kind '{kind}': expected {known}");
            self.refuse(Refusal::unimplemented(what))
        })
    }
}

/// Returns true if a trace id can be written into the log.
fn is_trace(trace: &str) -> bool {
    (1..=32).contains(&trace.len()) && trace.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the rights of which a caller needs one for a kind of task that requires `required`.
fn rights(required: RequiredRight) -> &'static [Right] {
    match required {
        RequiredRight::Data => &[Right::Read],
        RequiredRight::BuiltIn => &[Right::Run],
        RequiredRight::Relay => &[Right::Run, Right::Relay],
        RequiredRight::Store => &[Right::Write],
        RequiredRight::WebAssembly => &[Right::RunWasm],
        RequiredRight::Commands => &[Right::RunCommands],
    }
}
