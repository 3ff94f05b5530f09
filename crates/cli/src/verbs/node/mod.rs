//! Commands on nodes, and the effect of `--node` on other commands.

mod client;
mod credentials;
mod page;
mod repair;
pub mod run;
mod serve;
mod status;
pub mod traverse;

#[cfg(not(feature = "sql"))]
pub use self::client::are_named;
pub use self::{
    client::{connect, costs, refuse, run_options, tell_missing},
    credentials::credentials,
    repair::repair,
    serve::serve,
    status::status,
};
