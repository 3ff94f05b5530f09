//! What is sorted: files, or whatever somebody names when the one before was read.

use crate::{Input, Result};

/// Inputs that are sorted together, in this order. The next one is asked for when all of the one before was read.
pub struct Inputs<'a> {
    /// All of them, where they are known.
    pub(super) files: &'a [Input],
    bytes: Option<u64>,
    next: Box<dyn Iterator<Item = Result<Input>> + 'a>,
    /// What errors that are about all of them name.
    first: Option<String>,
}

impl<'a> Inputs<'a> {
    pub(super) fn files(files: &'a [Input]) -> Inputs<'a> {
        let bytes = files.iter().map(Input::bytes_here).sum();
        Inputs { files, bytes, next: Box::new(files.iter().cloned().map(Ok)), first: None }
    }

    /// Those that `next` gives, of `bytes` bytes together if that is known: room for scratch is looked for before the work
    /// begins then.
    pub fn asked(next: impl Iterator<Item = Result<Input>> + 'a, bytes: Option<u64>) -> Inputs<'a> {
        Inputs { files: &[], bytes, next: Box::new(next), first: None }
    }

    /// Bytes of all, where that is known.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// What errors about all of them call them.
    pub(super) fn name(&self) -> &str {
        self.first.as_deref().unwrap_or_default()
    }
}

impl Iterator for Inputs<'_> {
    type Item = Result<Input>;

    fn next(&mut self) -> Option<Result<Input>> {
        let next = self.next.next()?;
        if let Ok(input) = &next {
            self.first.get_or_insert_with(|| input.name().to_string());
        }
        Some(next)
    }
}
