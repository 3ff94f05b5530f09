//! Restricts searches to the live vectors, which are the vectors that were not removed.

use std::{borrow::Cow, sync::Arc};

use inshore_store::Job;

use super::Search;
use crate::{Result, Vectors, live::live_rows};

/// Returns the options of a search, in which the selection contains only live vectors.
///
/// # Errors
/// - Returns the errors of [`live_rows`].
/// - Returns [`crate::Error::BadOption`] if the length of the selection is not the number of rows of the dataset.
pub(crate) fn among_live<'a>(job: &Job, vectors: &Vectors, search: &'a Search) -> Result<Cow<'a, Search>> {
    search.check_selection(vectors.info())?;
    let Some(mut live) = live_rows(job, vectors)? else { return Ok(Cow::Borrowed(search)) };
    if let Some(selection) = &search.selection {
        live.intersect(selection);
    }
    Ok(Cow::Owned(Search { selection: Some(Arc::new(live)), ..search.clone() }))
}
