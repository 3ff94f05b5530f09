//! Tests of searches, imports and files through the public interface.

mod exact;
mod files;
mod hazards;
mod real;
mod support;
