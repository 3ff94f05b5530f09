//! Shell completions and manual pages, generated from the definitions of the arguments.

use std::{io, io::Write, path::Path};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use inshore::store::{NewFile, make_folder};

use crate::args::Cli;

/// Prints the completions of `shell`.
pub fn completions(shell: Shell) -> Result<()> {
    // The script is built in memory first, since the generator panics if standard output is closed early.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inshore", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes the pages of all commands into `folder`, or without a folder the first page to standard output.
pub fn man(folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else {
        return Ok(clap_mangen::Man::new(Cli::command()).render(&mut io::stdout())?);
    };
    make_folder(folder).with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(command, folder)
}

/// Writes the page of a command and the pages of its subcommands.
fn write_pages(command: Command, folder: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), folder)?;
    }
    let page = clap_mangen::Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(NewFile::write_whole(&folder.join(page.get_filename()), &text)?)
}
