//! The meaning of the first line of CSV.

use clap::ValueEnum;

/// Tells whether the first line of CSV has the names of columns.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Header {
    /// The line has column names, even if names are numbers, empty or repeated (a second `a` is called `a_1`)
    Yes,
    /// The line is a row: columns are called column_1, column_2 and so on
    No,
}

impl Header {
    /// Converts the option for a request. Without the option (`None`), the first line must clearly be a line of names.
    pub fn has_names(asked: Option<Header>) -> Option<bool> {
        asked.map(|asked| matches!(asked, Header::Yes))
    }
}
