//! Calls a program's functions, and records the first failure.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Error, Graph, Result};

/// Holds the first failure of a program, on any thread.
///
/// A panic that unwound through the engine would leave locks poisoned and other threads waiting. A panic in a program's
/// function is therefore caught where the function is called. The engine gets a harmless value instead, makes no
/// further calls of the program, and ends the superstep. A call that cannot panic has no overhead, since the compiler
/// removes the code that catches panics.
#[derive(Default)]
pub(super) struct Failures {
    has_failed: AtomicBool,
    first: Mutex<Option<Failure>>,
}

#[derive(Clone)]
struct Failure {
    function: &'static str,
    vertex: Option<u32>,
    what: String,
}

impl Failures {
    /// Returns the result of `call`. If this call panics, or if a failure was recorded before, returns `otherwise`.
    /// `function` is the name in the error.
    #[inline(always)]
    pub fn call<T>(
        &self,
        function: &'static str,
        vertex: Option<u32>,
        otherwise: T,
        call: impl FnOnce() -> T,
    ) -> T {
        if self.has_failed.load(Ordering::Relaxed) {
            return otherwise;
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            self.note(function, vertex, format!("panicked: {}", text_of(&*panic)));
            otherwise
        })
    }

    /// Records a failure if it is the first one.
    #[cold]
    pub fn note(&self, function: &'static str, vertex: Option<u32>, what: String) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(Failure { function, vertex, what });
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Returns the recorded failure as an error, if there is one, with the original id of its vertex.
    ///
    /// # Errors
    /// Returns [`Error::Program`] if a failure was recorded.
    pub fn check(&self, graph: &Graph, job: &inshore_store::Job, program: &'static str) -> Result<()> {
        if !self.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(Failure { function, vertex, what }) = first else { return Ok(()) };
        let vertex = vertex.map(|number| graph.id_of(job, number)).transpose()?;
        Err(Error::Program { program, function, vertex, what })
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_string())
}
