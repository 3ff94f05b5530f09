//! `inshore kernel`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum KernelCommand {
    New(New),
    Build(Build),
    Push(Push),
    Run(RunKernel),
    /// List the kernels in the store
    ///
    /// Lists the kernels of the local store, or of the nodes that --node names. Kernels are datasets whose names end
    /// with .wasm.
    #[command(after_help = "\
Examples:
  inshore kernel ls
  inshore kernel ls --node a.lan,b.lan --json")]
    Ls,
    /// Remove kernels from the store
    ///
    /// Removes the kernels from the local store, or from all nodes that --node names. A run that has begun is not
    /// affected.
    #[command(after_help = "\
Examples:
  inshore kernel rm errors
  inshore kernel rm errors --node a.lan,b.lan")]
    Rm {
        /// Names of the kernels
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// Create a kernel of your own: a folder with sources that can be built at once
///
/// The folder has a small kernel as a starting point, all files that a kernel in that language needs (no download), and
/// a README. A kernel sees only blocks of lines and its arguments; docs/kernels-wasm.md describes its exports.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel new errors
  inshore kernel new frequencies --from words
  inshore kernel new lines --language c --from scan")]
pub struct New {
    /// The folder, which is also the name of the kernel
    #[arg(value_name = "NAME")]
    pub folder: PathBuf,
    /// Language of the sources
    #[arg(long, value_enum, default_value = "rust")]
    pub language: Language,
    /// Kernel to start from
    #[arg(long, value_enum, default_value = "search")]
    pub from: Example,
}

/// Language of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Built by cargo for wasm32-unknown-unknown
    Rust,
    /// Built by clang
    C,
}

/// A kernel to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// Counts lines
    Scan,
    /// Returns lines that contain a text
    Search,
    /// Counts words
    Words,
}

/// Build a kernel, and check that it can run
///
/// A folder with a Cargo.toml is built by cargo for wasm32-unknown-unknown, and a folder with a .c file by clang. The
/// command writes the module NAME.wasm into the folder only if a sandbox can load the module and the module has the
/// required exports. The variables CARGO, RUSTC and CLANG override the names of the tools.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel build errors
  CLANG=clang-19 inshore kernel build lines")]
pub struct Build {
    /// The folder with the sources
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
}

/// Store a kernel for later runs
///
/// The kernel is stored in the local store. With --node the kernel is stored on every node, or on none if one node
/// fails. The kernel becomes the dataset NAME.wasm, which `kernel run NAME` finds. A stored kernel is never
/// overwritten: remove the old kernel first (`kernel rm`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel push errors/errors.wasm
  inshore kernel push errors/errors.wasm --name errors-2 --node a.lan,b.lan")]
pub struct Push {
    /// The WebAssembly module
    #[arg(value_name = "MODULE")]
    pub module: PathBuf,
    /// Name of the kernel [default: the file's name without .wasm]
    #[arg(long)]
    pub name: Option<String>,
}

/// Run a kernel over files, on this machine or on nodes
///
/// KERNEL is a module (FILE.wasm) or the name of a kernel in the store. The kernel processes the lines of all files on
/// all threads. Its sandbox has no files, no network and no clock, and only the memory of this job. The result is
/// written in the order of the files, and does not depend on the number of threads, on memory or on nodes. With --node
/// the kernel runs on each node that has shards of store:NAME. If the module is not stored on a node, it is sent with
/// the task. Local files in gzip, bzip2, zstd and lz4 are decompressed. --explain shows the log of the kernel.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore kernel run errors/errors.wasm --args timeout app.log app.log.1.gz
  inshore kernel run errors --args timeout store:app.log --node a.lan,b.lan --output errors.txt
  inshore kernel run words.wasm books/moby.txt --memory 512MiB --counters words.json")]
pub struct RunKernel {
    /// The module, or the name of a kernel in the store
    #[arg(value_name = "KERNEL")]
    pub kernel: String,
    /// Files; - is standard input, store:NAME a dataset
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Argument string of the kernel
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    pub args: String,
    /// The file to write instead of standard output; it appears complete or not at all
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the job's counters and results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
}
