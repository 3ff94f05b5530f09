//! The command as a user has it: its binary, run in a folder and a store of its own.
//!
//! What the algorithms compute is tested where they are written; here it is that words do what they say, that
//! what goes wrong is told, and that nothing is lost whatever happens.

mod answers;
mod apart;
mod calls;
mod deadlines;
mod drives;
mod faults;
mod graphs;
mod hostile;
mod inputs;
mod kernels;
mod kills;
mod kmers;
mod languages;
mod manual;
mod memory;
mod mounts;
mod near_sorting;
mod nodes;
mod packaging;
mod packing;
mod pages;
mod power;
mod questions;
mod refusals;
mod resuming;
mod searching;
mod sorting;
mod stopping;
mod stores;
mod terminals;
mod util;
mod workers;
