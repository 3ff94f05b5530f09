//! The vocabulary of a dataset of documents. For each word of the vocabulary, an element of a document's vector states
//! how often the word occurs in the document.

use std::collections::HashMap;

use inshore_store::Budget;
use inshore_store::Reservation;

use crate::{Result, element::DIMENSIONS_MAX};

/// The memory of a word in bytes, without the bytes of the word itself.
const WORD_BYTES: u64 = 96;

/// The words by which documents are compared. The position of a word, counted from 0, is its dimension.
#[derive(Debug)]
pub struct Vocabulary {
    words: Vec<Box<str>>,
    dimensions: HashMap<Box<str>, u32>,
    _memory: Reservation,
}

impl Vocabulary {
    /// Creates a vocabulary of distinct words. Returns `None` if two words are equal, if a word is empty or contains a
    /// line feed, if there are no words, or if there are more words than a vector can have dimensions.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the budget has too little free memory.
    pub fn new(budget: &Budget, words: Vec<Box<str>>) -> Result<Option<Vocabulary>> {
        let bytes = words.iter().map(|word| 2 * word.len() as u64 + WORD_BYTES).sum();
        let memory = budget.reserve(bytes, "the vocabulary")?;
        let dimensions: HashMap<Box<str>, u32> = words.iter().cloned().zip(0..).collect();
        let is_word = |word: &str| !word.is_empty() && !word.contains('\n');
        let is_whole = dimensions.len() == words.len() && words.iter().all(|word| is_word(word));
        let is_sized = (1..=DIMENSIONS_MAX).contains(&words.len());
        Ok((is_whole && is_sized).then_some(Vocabulary { words, dimensions, _memory: memory }))
    }

    /// Returns the words in the order of their dimensions.
    pub fn words(&self) -> &[Box<str>] {
        &self.words
    }

    /// Adds 1 to the element of `row` that counts `word`, unless the element has reached the largest value, 255. A word
    /// that is not in the vocabulary is ignored.
    #[inline]
    pub fn count(&self, word: &str, row: &mut [u8]) {
        if let Some(&dimension) = self.dimensions.get(word) {
            let count = &mut row[dimension as usize];
            *count = count.saturating_add(1);
        }
    }
}
