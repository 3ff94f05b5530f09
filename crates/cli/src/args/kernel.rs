//! `inshore kernel`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum KernelCommand {
    New(New),
    Build(Build),
    Push(Push),
    Run(RunKernel),
    /// List the kernels that were pushed
    ///
    /// Those of the store, or of the nodes that --node names. They are datasets whose names end with .wasm.
    #[command(after_help = "\
Examples:
  inshore kernel ls
  inshore kernel ls --node a.lan,b.lan --json")]
    Ls,
    /// Remove kernels that were pushed
    ///
    /// From the store, or from all nodes that --node names. What runs goes on undisturbed.
    #[command(after_help = "\
Examples:
  inshore kernel rm errors
  inshore kernel rm errors --node a.lan,b.lan")]
    Rm {
        /// Their names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// Begin a kernel of your own: a folder with sources that build
///
/// The folder has a small kernel to change, what a kernel in that language is made with (nothing is fetched), and a README. A
/// kernel sees blocks of lines and arguments and nothing else; what it exports is told in docs/kernels-wasm.md.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel new errors
  inshore kernel new frequencies --from words
  inshore kernel new lines --language c --from scan")]
pub struct New {
    /// The folder, which is also the kernel's name
    #[arg(value_name = "NAME")]
    pub folder: PathBuf,
    /// What to write it in
    #[arg(long, value_enum, default_value = "rust")]
    pub language: Language,
    /// Which kernel to begin with
    #[arg(long, value_enum, default_value = "search")]
    pub from: Example,
}

/// A language that kernels are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Built by cargo for wasm32-unknown-unknown
    Rust,
    /// Built by clang
    C,
}

/// A kernel to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// Counts lines
    Scan,
    /// Gives lines that contain a text
    Search,
    /// Counts words
    Words,
}

/// Build a kernel, and look whether it can be run
///
/// A folder with a Cargo.toml is built by cargo, for wasm32-unknown-unknown; one with a .c file by clang. The module, NAME.wasm,
/// appears in the folder once it has been loaded in a sandbox and exports what a kernel has to. Names of tools are taken from
/// CARGO, RUSTC and CLANG where these are set.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel build errors
  CLANG=clang-19 inshore kernel build lines")]
pub struct Build {
    /// The folder
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
}

/// Put a kernel where it is to run
///
/// Into the store, or with --node into the store of each node, on all or none: then `kernel run NAME` finds it. It is a dataset
/// called NAME.wasm. Nothing is overwritten: remove the old one before (`kernel rm`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel push errors/errors.wasm
  inshore kernel push errors/errors.wasm --name errors-2 --node a.lan,b.lan")]
pub struct Push {
    /// The module
    #[arg(value_name = "MODULE")]
    pub module: PathBuf,
    /// What to call it [default: the file's name without .wasm]
    #[arg(long)]
    pub name: Option<String>,
}

/// Run a kernel over files, here or where they lie
///
/// The kernel is a module (FILE.wasm) or the name of one that was pushed. It gets the lines of all files, with all threads,
/// in a sandbox: no files, no network, no clock, only the memory of this job. Its result is written in the order of the files
/// and does not depend on threads, memory or nodes. With --node it runs on each node that has pieces of store:NAME; a module
/// that was not pushed there travels along. gzip, bzip2, zstd and lz4 are unpacked here. What it logs is told with --explain.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel run errors/errors.wasm --args timeout app.log app.log.1.gz
  inshore kernel run errors --args timeout store:app.log --node a.lan,b.lan --output errors.txt
  inshore kernel run words.wasm books/moby.txt --memory 512MiB --counters words.json")]
pub struct RunKernel {
    /// The module, or the name of one that was pushed
    #[arg(value_name = "KERNEL")]
    pub kernel: String,
    /// Files; - is standard input, store:NAME a dataset
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// What the kernel is started with
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    pub args: String,
    /// The file to write instead of standard output; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// A file for counters and facts as JSON
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
}
