//! The inputs of a sort. They are a list of files, or an iterator that returns the next file while the sort runs.

use crate::{Input, Result};

/// Inputs that are sorted together, in this order. The next input is requested after the previous input was read
/// completely.
pub struct Inputs<'a> {
    /// All files, if known.
    pub(super) files: &'a [Input],
    bytes: Option<u64>,
    next: Box<dyn Iterator<Item = Result<Input>> + 'a>,
    /// The name that stands for all inputs in errors. It is the name of the first input.
    first: Option<String>,
    /// True if the order in which inputs arrive may differ from the order of their numbers.
    pub(super) in_any_order: bool,
}

impl<'a> Inputs<'a> {
    pub(super) fn files(files: &'a [Input]) -> Inputs<'a> {
        let bytes = files.iter().map(Input::bytes_here).sum();
        let next = Box::new(files.iter().cloned().map(Ok));
        Inputs { files, bytes, next, first: None, in_any_order: false }
    }

    /// Creates inputs from an iterator. If the total size `bytes` is known, the sort checks before it begins that there
    /// is enough scratch space.
    pub fn asked(next: impl Iterator<Item = Result<Input>> + 'a, bytes: Option<u64>) -> Inputs<'a> {
        Inputs { files: &[], bytes, next: Box::new(next), first: None, in_any_order: false }
    }

    /// Lets the inputs arrive in any order. Rows with equal keys are ordered by the [numbers](Input::numbered) of their
    /// inputs. If only the first of several equal rows is kept, the first such row of each input is kept.
    #[must_use]
    pub fn in_any_order(self) -> Inputs<'a> {
        Inputs { in_any_order: true, ..self }
    }

    /// Applies a change to each input.
    #[must_use]
    pub fn changed(self, mut change: impl FnMut(Input) -> Input + 'a) -> Inputs<'a> {
        let Inputs { files, bytes, next, first, in_any_order } = self;
        let next = Box::new(next.map(move |input| input.map(&mut change)));
        Inputs { files, bytes, next, first, in_any_order }
    }

    /// Returns the total size of all inputs in bytes, if known.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns the name that stands for all inputs in errors.
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
