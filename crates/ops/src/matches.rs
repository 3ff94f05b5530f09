//! The receiver of a search's matches.

use std::io;

use inshore_kernel::Next;
use inshore_kernels::{
    self as kernels, BlockMatches, MultilineMatcher, SearchOutput, SearchSummary, TextOptions, WalkedFile,
};
use inshore_store::Context;
use inshore_tables::Input;

use crate::error::{Error, Result};

/// A receiver of matches, in the order of files and blocks.
pub trait Matches: Send {
    /// Returns the kind of matches that the receiver needs.
    fn wanted(&self) -> SearchOutput;

    /// Returns the replacement of matches within the lines.
    fn replacement(&self) -> Option<&str> {
        None
    }

    /// Starts a search on nodes; the argument is true if files of several datasets are searched.
    fn begin_on_nodes(&mut self, _has_several: bool) {}

    /// Receives the matches in a block of a file.
    ///
    /// # Errors
    /// An error ends the search.
    fn found(&mut self, file: &WalkedFile, found: &BlockMatches) -> io::Result<Next>;

    /// Receives the error of a file that cannot be read completely, and returns true if the error is a
    /// failure.
    ///
    /// # Errors
    /// An error ends the search.
    fn failed(&mut self, file: &WalkedFile, error: &kernels::Error) -> io::Result<bool>;

    /// Receives the end of a file.
    ///
    /// # Errors
    /// An error ends the search.
    fn end(&mut self, file: &WalkedFile) -> io::Result<Next>;

    /// Searches texts one after the other for matches that span lines. `failed` receives the errors of texts.
    ///
    /// # Errors
    /// An error ends the search.
    fn across(
        &mut self,
        job: &Context,
        matching: &MultilineMatcher,
        texts: &mut dyn Iterator<Item = Text>,
        failed: &dyn Fn(&Error),
    ) -> Result<SearchSummary>;
}

/// A text that is searched in one piece, since matches may span lines.
#[derive(Debug)]
pub struct Text {
    /// The bytes of the text.
    pub input: Input,
    /// The name of the text.
    pub file: WalkedFile,
    /// The options to convert the bytes to text.
    pub options: TextOptions,
}
