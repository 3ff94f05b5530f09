//! Tests of the scheduler through its public interface.

mod costs;
mod faults;
mod plans;
mod reservations;
mod rules;
mod scale;
mod simulation;
