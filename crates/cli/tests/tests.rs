//! Tests of the command line: each test runs the binary in a folder and with a store of its own.
//!
//! Other crates test the results of algorithms. These tests check that arguments work, that errors and damage are
//! reported, and that no data is lost after kills and power losses.

mod answers;
mod calls;
mod cluster;
mod cluster_graphs;
mod cluster_sql;
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
mod nearest;
mod nodes;
mod packaging;
mod packing;
mod pages;
mod power;
mod query_processes;
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
