//! The words of `inshore store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum StoreCommand {
    Mount(Mount),
}

/// Show the datasets as read-only files in a folder
///
/// A dataset of plain bytes is a file, any other (a graph) a folder with its files; what is put or removed meanwhile
/// comes and goes within a second. Every byte is checked: what is damaged is an input/output error, told once on
/// standard error, and never wrong bytes. A file that is open stays readable although its dataset is removed.
///
/// The command stays in the foreground until Ctrl-C, SIGTERM or `fusermount3 -u MOUNTPOINT`, and then ends with exit
/// code 0. It needs /dev/fuse, and for users other than root fusermount3 (of the package fuse3).
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store mount /mnt/data
  inshore store mount /mnt/data --memory 64MiB --store /mnt/nvme/store
  inshore store mount /mnt/data --allow-other")]
pub struct Mount {
    /// An empty folder
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Let other users read too (if not root, /etc/fuse.conf must say user_allow_other)
    #[arg(long)]
    pub allow_other: bool,
}
