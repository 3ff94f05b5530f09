//! What a search finds, for whoever prints it.

use std::io;

use inshore_kernels::{self as kernels, Candidate, Found, Matching, SearchSummary, TextOptions, Wanted};
use inshore_neardata::Next;
use inshore_store::Context;
use inshore_tables::Input;

use crate::error::{Error, Result};

/// Takes what a search finds, in the order of files and blocks.
pub trait Matches: Send {
    /// What of matches is wanted.
    fn wanted(&self) -> Wanted;

    /// What stands instead of matches in the lines that are given.
    fn replacement(&self) -> Option<&str> {
        None
    }

    /// Begins on nodes, where it is known now whether files of several datasets are searched.
    fn begin_on_nodes(&mut self, _has_several: bool) {}

    /// Takes what was found in a block of a file.
    ///
    /// # Errors
    /// What ends the search.
    fn found(&mut self, file: &Candidate, found: &Found) -> io::Result<Next>;

    /// Takes that a file cannot be read, or not to its end, and says whether that is a failure.
    ///
    /// # Errors
    /// What ends the search.
    fn failed(&mut self, file: &Candidate, error: &kernels::Error) -> io::Result<bool>;

    /// Takes the end of a file.
    ///
    /// # Errors
    /// What ends the search.
    fn end(&mut self, file: &Candidate) -> io::Result<Next>;

    /// Searches texts for matches that go across the ends of lines, one after the other. A text that fails is told to `failed`.
    ///
    /// # Errors
    /// What ends the search.
    fn across(
        &mut self,
        job: &Context,
        matching: &Matching,
        texts: &mut dyn Iterator<Item = Text>,
        failed: &dyn Fn(&Error),
    ) -> Result<SearchSummary>;
}

/// A text to be searched as a whole.
#[derive(Debug)]
pub struct Text {
    /// Its bytes.
    pub input: Input,
    /// What it is called.
    pub file: Candidate,
    /// How its bytes become text.
    pub options: TextOptions,
}
