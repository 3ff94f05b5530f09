//! What the first line of CSV is.

#[cfg(feature = "records")]
use std::path::PathBuf;

use clap::ValueEnum;
use inshore::tables;
#[cfg(feature = "records")]
use inshore::tables::Input;

/// Whether the first line of CSV has the names of columns.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Header {
    /// It has, even where names are numbers, empty or there twice (the second `a` is called `a_1`)
    Yes,
    /// It is a row: columns are called column_1, column_2 and so on
    No,
}

impl Header {
    /// What a reader is told; without an option it has to look like names.
    pub fn of(asked: Option<Header>) -> tables::Header {
        match asked {
            None => tables::Header::Detected,
            Some(Header::Yes) => tables::Header::Present,
            Some(Header::No) => tables::Header::Absent,
        }
    }

    /// The inputs at some paths.
    #[cfg(feature = "records")]
    pub fn inputs(asked: Option<Header>, paths: &[PathBuf]) -> Vec<Input> {
        paths.iter().map(|path| Input::new(path).with_header(Header::of(asked))).collect()
    }
}
