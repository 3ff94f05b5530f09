//! Calls a program's functions, and keeps what went wrong in one of them.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Error, Graph, Result};

/// The first thing that went wrong in a program, on whatever thread.
///
/// A panic that unwound through the engine would leave locks poisoned and other threads waiting. So each call of a program's
/// function is caught where it is made: the engine gets a harmless value and ends the superstep, calling the program no more. A call
/// that cannot panic costs nothing for that, since the compiler then drops what would catch.
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
    /// The result of `function`, or `otherwise` where it panics or one panicked before.
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

    /// Keeps what went wrong, unless something did before.
    #[cold]
    pub fn note(&self, function: &'static str, vertex: Option<u32>, what: String) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(Failure { function, vertex, what });
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// What went wrong so far, with the original id of the vertex.
    ///
    /// # Errors
    /// [`Error::Program`], if something did.
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
