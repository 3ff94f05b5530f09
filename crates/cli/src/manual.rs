//! Completions and manual pages, made from the words themselves.

use std::{fs, io, io::Write, path::Path};

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Prints the completions of `shell`.
pub fn completions(shell: Shell) -> Result<()> {
    // By way of memory: the generator panics where standard output is closed early.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inshore", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes the pages of all commands into `folder`, or the first one to standard output.
pub fn man(folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else {
        return Ok(clap_mangen::Man::new(Cli::command()).render(&mut io::stdout())?);
    };
    let told = || format!("cannot write manual pages to {}", folder.display());
    fs::create_dir_all(folder).with_context(told)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(told)
}
