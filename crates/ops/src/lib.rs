//! Operations: the verbs in which several libraries meet, here and on the machines that have the data.
//!
//! - [`works`] lists what nodes can do; [`queries`], [`sorting`], [`kmers`], [`commands`] and [`wasm`] are the works in which two
//!   libraries meet, [`apart`] does one in a child process.
//! - [`spreading`] finds where a file can be cut that is spread over nodes.
#![warn(missing_docs)]

#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod apart;
#[cfg(feature = "nodes")]
pub mod commands;
#[cfg(feature = "nodes")]
mod files;
#[cfg(feature = "nodes")]
pub mod kmers;
#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod queries;
#[cfg(feature = "nodes")]
pub mod sorting;
#[cfg(feature = "nodes")]
pub mod spreading;
#[cfg(all(test, feature = "nodes"))]
mod testing;
#[cfg(feature = "wasm")]
pub mod wasm;

/// Lists the kinds of work that a node of this build can do: where the kernels and the runtime of nodes meet. Some of them start
/// this program once more, which has to begin with [`child_main_if_asked`].
#[cfg(feature = "nodes")]
pub fn works() -> inshore_neardata::Works {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(apart::WorkApart::new(queries::Queries, inshore_sql::stack_bytes));
    #[cfg(feature = "wasm")]
    let works = works.with(wasm::WebAssembly);
    works
}

/// Lists those that are done within this process, for programs that are not ours. A query that takes more memory than it should is then
/// ended with all else.
#[cfg(feature = "nodes")]
pub fn works_within() -> inshore_neardata::Works {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(queries::Queries);
    works
}

#[cfg(feature = "nodes")]
fn works_here() -> inshore_neardata::Works {
    inshore_neardata::Works::default()
        .with(inshore_neardata::Parts::<inshore_neardata::Contents>::default())
        .with(inshore_neardata::Parts::<inshore_kernels::Search>::default())
        .with(inshore_kernels::CountsWords)
        .with(inshore_neardata::Parts::<inshore_kernels::LanguageOfText>::default())
        .with(inshore_kernels::Packs)
        .with(kmers::CountsKmers)
        .with(sorting::Sorts)
}

/// Does what this program was started once more for, if it was, and never returns then: to be called first thing in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "nodes", feature = "wasm"))]
    inshore_sandbox::child_main_if_asked();
    #[cfg(all(feature = "nodes", feature = "sql"))]
    inshore_sandbox::apart_main_if_asked(|socket, memory| {
        apart::work_apart(socket, memory, &[&queries::Queries]);
    });
}
