//! Searches files, and passes the result of each block to a closure.

use std::{collections::VecDeque, sync::Mutex};

use inshore_kernel::{Event, Next, Source, run};
use inshore_store::Context;

use super::Search;
use crate::{Result, WalkedFile};

impl Search {
    /// Searches `files`, and passes the result of each block with its file to `each`, in the order of files and blocks.
    ///
    /// The search takes as much memory as [`inshore_kernel::run`].
    ///
    /// # Errors
    /// - Returns the errors of `each`.
    /// - Returns [`crate::Error::Store`] if the job was stopped or has too little memory.
    ///
    /// If a file cannot be read, the function passes the error to `each` and continues with the next file.
    pub fn run(
        &self,
        job: &Context,
        files: impl Iterator<Item = (WalkedFile, Source)> + Send,
        mut each: impl FnMut(&WalkedFile, Event<'_, Search>) -> Result<Next> + Send,
    ) -> Result<()> {
        let begun: Mutex<VecDeque<WalkedFile>> = Mutex::default();
        let sources = files.map(|(candidate, source)| {
            begun.lock().expect("no panic under this lock").push_back(candidate);
            source
        });
        run(job, self, sources, |event: Event<'_, Search>| {
            let mut begun = begun.lock().expect("no panic under this lock");
            let candidate = begun.front().expect("a source that was asked for");
            let is_end = event.part.is_none();
            let next = each(candidate, event)?;
            if is_end {
                begun.pop_front();
            }
            Ok(next)
        })?;
        Ok(())
    }
}
