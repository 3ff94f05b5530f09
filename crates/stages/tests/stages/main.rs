//! Tests of the scheduler through its public interface.

mod costs;
mod faults;
mod plans;
mod reservations;
mod rules;
mod simulation;
thread_local! { static TRACING: std::cell::RefCell<Option<std::fs::File>> = const { std::cell::RefCell::new(None) }; }
