//! What the first line of CSV is.

use clap::ValueEnum;

/// Whether the first line of CSV has the names of columns.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Header {
    /// It has, even where names are numbers, empty or there twice (the second `a` is called `a_1`)
    Yes,
    /// It is a row: columns are called column_1, column_2 and so on
    No,
}

impl Header {
    /// Tells a request whether the line has names; without an option the line has to look like names.
    pub fn has_names(asked: Option<Header>) -> Option<bool> {
        asked.map(|asked| matches!(asked, Header::Yes))
    }
}
