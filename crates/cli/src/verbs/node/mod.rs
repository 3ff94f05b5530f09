//! Commands on nodes, and the effect of `--node` on other commands.

mod client;
mod credentials;
mod page;
mod repair;
pub mod run;
mod serve;
mod status;
pub mod traverse;

pub use self::{
    client::{are_named, connect, costs, refuse, run_options, stages, tell_missing},
    credentials::credentials,
    repair::repair,
    serve::serve,
    status::status,
};
