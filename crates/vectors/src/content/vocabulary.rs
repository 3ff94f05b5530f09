//! The words whose numbers in a document are the elements of its vector.

use std::collections::HashMap;

use inshore_store::Budget;
use inshore_store::Reservation;

use crate::{Result, element::DIMENSIONS_MAX};

/// The memory of a word beside its bytes.
const WORD_BYTES: u64 = 96;

/// The words that documents are compared by. The dimension of a word is its number, from 0.
#[derive(Debug)]
pub struct Vocabulary {
    words: Vec<Box<str>>,
    dimensions: HashMap<Box<str>, u32>,
    _memory: Reservation,
}

impl Vocabulary {
    /// Creates a vocabulary of distinct words. The result is `None` if words are equal, empty, contain a line feed, are
    /// none, or are more than the dimensions of a vector.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(budget: &Budget, words: Vec<Box<str>>) -> Result<Option<Vocabulary>> {
        let bytes = words.iter().map(|word| 2 * word.len() as u64 + WORD_BYTES).sum();
        let memory = budget.reserve(bytes, "the vocabulary")?;
        let dimensions: HashMap<Box<str>, u32> = words.iter().cloned().zip(0..).collect();
        let is_word = |word: &str| !word.is_empty() && !word.contains('\n');
        let is_whole = dimensions.len() == words.len() && words.iter().all(|word| is_word(word));
        let is_sized = (1..=DIMENSIONS_MAX).contains(&words.len());
        Ok((is_whole && is_sized).then_some(Vocabulary { words, dimensions, _memory: memory }))
    }

    /// Returns the words, by dimension.
    pub fn words(&self) -> &[Box<str>] {
        &self.words
    }

    /// Counts a word of a document in the document's vector, up to 255.
    #[inline]
    pub fn count(&self, word: &str, row: &mut [u8]) {
        if let Some(&dimension) = self.dimensions.get(word) {
            let count = &mut row[dimension as usize];
            *count = count.saturating_add(1);
        }
    }
}
