//! The vectors that satisfy a predicate, as requests to nodes contain them, and the answers of such requests.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_store::{Budget, Reservation};
use inshore_vectors::{MergedAnswer, RowSet, is_sparse};

use crate::error::{Error, Result};

/// The memory, in bytes, of a collected neighbour and of a query.
const NEIGHBOUR_BYTES: u64 = 32;
const QUERY_BYTES: u64 = 64;

/// The selected vectors of a search on nodes.
#[derive(Debug)]
pub(crate) struct SelectedOnNodes {
    pub rows: RowSet,
    /// The number of selected vectors.
    pub count: u64,
    /// The bitmap in base64.
    pub text: String,
    _memory: Reservation,
}

impl SelectedOnNodes {
    /// Prepares a set of vectors for requests. The memory is that of the text, and for a moment also of a copy of the
    /// bitmap.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error`] if the budget has too little free memory.
    pub fn new(budget: &Budget, rows: RowSet) -> Result<SelectedOnNodes> {
        let mut memory = budget.reserve(3 * RowSet::bytes(rows.len()), "a set of vectors as text")?;
        let text = BASE64.encode(rows.to_bytes());
        memory.resize(text.len() as u64)?;
        Ok(SelectedOnNodes { count: rows.count(), rows, text, _memory: memory })
    }

    /// Returns true if an exact search among the selected vectors is cheaper than a search in an index.
    pub fn is_sparse(&self) -> bool {
        is_sparse(&self.rows)
    }
}

/// The way in which a search on nodes treats its vectors and its answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchForm<'a> {
    /// The vectors that may be answers. `None` selects all vectors.
    pub selection: Option<&'a SelectedOnNodes>,
    /// True if the receiver of rows sends requests to nodes. The rows of a request are then passed on after its end,
    /// since the tasks of a receiver may have to wait for the tasks of the search.
    pub asks_nodes: bool,
}

impl SearchForm<'_> {
    /// Returns true if the neighbours of a request are collected before they are passed on.
    pub fn collects(&self) -> bool {
        self.selection.is_some() || self.asks_nodes
    }

    /// Returns the memory, in bytes, for the collected neighbours of a query.
    pub fn collected_bytes(&self, k: u64) -> u64 {
        if self.collects() { k.saturating_mul(NEIGHBOUR_BYTES) + QUERY_BYTES } else { 0 }
    }

    /// Returns the largest number of queries whose neighbours fit into a quarter of the memory, at least 1.
    pub fn queries_at_once(&self, free_bytes: u64, k: u64) -> u64 {
        let at_once = (free_bytes / 4).checked_div(self.collected_bytes(k));
        at_once.map_or(u64::MAX, |at_once| at_once.max(1))
    }

    /// Returns the bitmap of the selected vectors in base64.
    pub fn text(&self) -> Option<String> {
        self.selection.map(|selection| selection.text.clone())
    }

    /// Returns the number of bytes of the selected vectors in a request.
    pub fn text_bytes(&self) -> u64 {
        self.selection.map_or(0, |selection| selection.text.len() as u64)
    }
}

/// The nearest vectors of the queries of a request, as pairs of a key and an id.
pub(super) struct Collected {
    k: usize,
    near: Vec<Vec<(f64, u64)>>,
}

impl Collected {
    pub fn new(queries: u64, k: u64) -> Collected {
        Collected { k: usize::try_from(k).unwrap_or(usize::MAX), near: vec![Vec::new(); queries as usize] }
    }

    /// Adds the next neighbour of a query. Neighbours after the k-th one are dropped.
    pub fn add(&mut self, query: u64, key: f64, id: u64) {
        let near = &mut self.near[query as usize];
        if near.len() < self.k {
            near.push((key, id));
        }
    }

    /// Removes the neighbours of a query.
    pub fn clear(&mut self, query: u64) {
        self.near[query as usize].clear();
    }

    /// Passes the neighbours to an answer. `first` is the number of the first query.
    pub fn pass_to(self, first: u64, answer: &mut MergedAnswer<'_>) -> Result<()> {
        for (query, near) in (first..).zip(self.near) {
            for (key, id) in near {
                answer.add(query, key, id).map_err(Error::of_search)?;
            }
        }
        Ok(())
    }
}

/// Adds the next neighbour of a query to the collected neighbours. If none are collected, adds it to the answer, in which
/// the first query of the request has the number `first`.
///
/// # Errors
/// Returns the errors of the receiver of rows.
pub(super) fn add_neighbour(
    collected: &mut Option<Collected>,
    (first, answer): (u64, &mut MergedAnswer<'_>),
    (query, key, id): (u64, f64, u64),
) -> Result<()> {
    match collected {
        Some(collected) => {
            collected.add(query, key, id);
            Ok(())
        }
        None => answer.add(first + query, key, id).map_err(Error::of_search),
    }
}
