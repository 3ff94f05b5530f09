//! This module defines the interface through which a search passes on its matches.

use std::io;

use inshore_kernel::Next;
use inshore_kernels::{
    self as kernels, BlockMatches, MultilineMatcher, SearchOutput, SearchSummary, TextOptions, WalkedFile,
};
use inshore_store::Context;
use inshore_tables::Input;

use crate::error::{Error, Result};

/// Receives the matches of a search, in the order of files and blocks.
pub trait Matches: Send {
    /// Returns the kind of matches that the receiver needs.
    fn wanted(&self) -> SearchOutput;

    /// Returns the text that replaces each match in the lines. Returns `None` if matches are not replaced.
    fn replacement(&self) -> Option<&str> {
        None
    }

    /// Announces that a search on nodes begins. The argument is true if files of several datasets are searched.
    fn begin_on_nodes(&mut self, _has_several: bool) {}

    /// Receives the matches in a block of a file.
    ///
    /// # Errors
    /// An error of the receiver ends the search.
    fn found(&mut self, file: &WalkedFile, found: &BlockMatches) -> io::Result<Next>;

    /// Receives the error of a file that cannot be read completely. Returns true if the error counts as a failure,
    /// and false if the file counts as binary.
    ///
    /// # Errors
    /// An error of the receiver ends the search.
    fn failed(&mut self, file: &WalkedFile, error: &kernels::Error) -> io::Result<bool>;

    /// Is called after the last match of a file.
    ///
    /// # Errors
    /// An error of the receiver ends the search.
    fn end(&mut self, file: &WalkedFile) -> io::Result<Next>;

    /// Searches texts one after the other for matches that span lines. `failed` receives the errors of texts.
    ///
    /// # Errors
    /// An error of the receiver ends the search.
    fn across(
        &mut self,
        job: &Context,
        matching: &MultilineMatcher,
        texts: &mut dyn Iterator<Item = Text>,
        failed: &dyn Fn(&Error),
    ) -> Result<SearchSummary>;
}

/// A text that is searched as a whole, since matches may span lines.
#[derive(Debug)]
pub struct Text {
    /// The bytes of the text.
    pub input: Input,
    /// The name of the text.
    pub file: WalkedFile,
    /// The options to convert the bytes to text.
    pub options: TextOptions,
}
