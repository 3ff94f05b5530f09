//! This module computes a bound on the memory of a search's automata before they are built.
//!
//! ```text
//!   many texts     one Aho-Corasick automaton: so much for each byte and each text
//!   expressions    a syntax tree, then an automaton (NFA) in both directions, then caches of it for each thread
//! ```
//!
//! The regex library enforces limits, but its errors do not say how much memory would be enough. This module therefore
//! computes a bound from the patterns. For literal texts, the bound is a multiple of their number of bytes. For regular
//! expressions, the bound is the sum of the sizes of all parts of the expression. For a repetition, the size of the
//! repeated part is multiplied by the number of repetitions. The memory of small patterns is not counted
//! ([`UNCOUNTED_BYTES`]).
//!
//! The following was measured with grep-regex 0.1.14 and regex-automata 0.4.18, by the growth of the peak resident
//! size. 100,000 texts of 4, 10 and 30 bytes took 350, 640 and 1,660 bytes each. 20,000 texts of 10 bytes with ignored
//! case took 5,620 bytes each.

use std::collections::HashMap;

use inshore_kernel::smallest_memory_bytes;
use inshore_store::{Budget, Reservation};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::hir::{Class, Hir, HirKind};

use super::PatternOptions;
use crate::Result;

/// The memory for automata that is not reserved, in bytes. A process may take 64 MiB beyond its budget. These 64 MiB
/// cover this memory and the program itself.
const UNCOUNTED_BYTES: u64 = 4 << 20;
/// The smallest number of literal texts for which the regex library builds one Aho-Corasick automaton.
const TEXTS_MIN: u64 = 3000;
/// The memory for each byte of a text while an Aho-Corasick automaton is built.
const TEXT_BYTE_BYTES: u64 = 60;
/// The memory for each text, in addition to the memory for its bytes.
const TEXT_BYTES: u64 = 280;
/// The memory for each byte of expressions while they are parsed and compiled.
const EXPRESSION_BYTE_BYTES: u64 = 230;
/// The memory for each character class in expressions, in bytes. A class may have many ranges.
const EXPRESSION_CLASS_BYTES: u64 = 8 << 10;
/// The memory for each byte of expressions with ignored case, where each letter becomes a character class.
const CASELESS_BYTE_BYTES: u64 = 620;
/// The limit on the estimated size of a pattern's syntax tree, in bytes. Up to this limit, the pattern is parsed to
/// compute the size of its automaton. Above this limit, the automaton is assumed to be `UNSEEN` times as large as the
/// tree.
const PARSED_BYTES_MAX: u64 = 32 << 20;
const UNSEEN: u64 = 16;
/// The memory for each state of an NFA.
const STATE_BYTES: u64 = 24;
/// The memory for each transition of an NFA.
const TRANSITION_BYTES: u64 = 8;
/// The memory for building the NFA for both search directions, in units of half the NFA's size. The measured memory was
/// 4.4 units.
const BUILDING_HALVES: u64 = 6;
/// The memory for the caches of a thread, in units of half the NFA's size. The cache of each search direction takes one
/// unit. The third unit is for the NFA simulation, which runs if a cache is too small.
const SEARCHING_HALVES: u64 = 3;
/// The caches of all threads together get the free budget divided by this number. Each cache also gets memory that is
/// proportional to the size of the NFA.
const CACHES_PART: u64 = 8;
/// The size of the smallest cache.
const CACHE_BYTES_MIN: u64 = 256 << 10;

/// The size of a set of patterns. It consists of the number of patterns, their total length in bytes, and the size of
/// their automata in bytes.
#[derive(Clone, Debug)]
pub struct PatternSize {
    options: PatternOptions,
    patterns: u64,
    bytes: u64,
    /// An upper bound on the number of character classes such as `\w`.
    classes: u64,
    is_plain: bool,
    nfas: Nfas,
    nfa_bytes: u64,
}

impl PatternSize {
    /// Returns the size of an empty set of patterns.
    pub fn new(options: &PatternOptions) -> PatternSize {
        PatternSize {
            options: *options,
            patterns: 0,
            bytes: 0,
            classes: 0,
            is_plain: true,
            nfas: Nfas::default(),
            nfa_bytes: 0,
        }
    }

    /// Adds a pattern to the set.
    pub fn add(&mut self, pattern: &str) {
        self.patterns += 1;
        self.bytes += pattern.len() as u64;
        let is_class = |byte: &u8| matches!(byte, b'\\' | b'[' | b'.');
        let classes = match self.options.fixed {
            true => 0,
            false => pattern.bytes().filter(is_class).count() as u64,
        };
        self.classes += classes;
        self.is_plain &= self.options.fixed || !pattern.chars().any(regex_syntax::is_meta_character);
        let parsed_bytes = pattern.len() as u64 * CASELESS_BYTE_BYTES + classes * EXPRESSION_CLASS_BYTES;
        let nfa_bytes = match parsed_bytes < PARSED_BYTES_MAX {
            true => self.nfas.bytes(pattern, &self.options),
            false => parsed_bytes * UNSEEN,
        };
        self.nfa_bytes = self.nfa_bytes.saturating_add(nfa_bytes);
    }

    /// Returns true if the regex library builds one Aho-Corasick automaton for all patterns.
    fn is_of_texts(&self) -> bool {
        let PatternOptions { ignore_case, smart_case, words, lines, .. } = self.options;
        self.is_plain && !(ignore_case || smart_case || words || lines) && self.patterns >= TEXTS_MIN
    }

    /// Returns a bound, in bytes, on the memory of the automata if `threads` threads search.
    fn memory_bytes(&self, threads: usize) -> u64 {
        if self.is_of_texts() {
            return self.least_bytes();
        }
        let is_caseless = self.options.ignore_case || self.options.smart_case;
        let each = if is_caseless { CASELESS_BYTE_BYTES } else { EXPRESSION_BYTE_BYTES };
        let parsed = self.bytes * each + self.patterns * TEXT_BYTES + self.classes * EXPRESSION_CLASS_BYTES;
        parsed.max(self.nfa_bytes.saturating_mul(BUILDING_HALVES + SEARCHING_HALVES * threads as u64) / 2)
    }

    /// Returns the memory, in bytes, of one Aho-Corasick automaton for all patterns. This is the smallest kind of
    /// automaton.
    fn least_bytes(&self) -> u64 {
        self.bytes * TEXT_BYTE_BYTES + self.patterns * TEXT_BYTES
    }

    /// Returns false if the patterns added so far exceed the budget with any kind of automaton. If the result is true,
    /// only [`Self::check`] determines whether the patterns fit.
    pub fn may_fit(&self, budget: &Budget) -> bool {
        self.least_bytes() <= UNCOUNTED_BYTES + budget.free_bytes()
    }

    /// Checks that the patterns fit in the budget, and returns the number of bytes to reserve.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the budget is too small. The error names a budget that is enough.
    pub fn check(&self, budget: &Budget) -> Result<u64> {
        let counted = self.memory_bytes(budget.threads()).saturating_sub(UNCOUNTED_BYTES);
        if counted > 0 {
            let what = || match self.patterns {
                1 => format!("searching for a pattern of {} bytes", self.bytes),
                patterns => format!("searching for {patterns} patterns of {} bytes", self.bytes),
            };
            budget.need(counted.saturating_add(smallest_memory_bytes(budget.threads())), what)?;
        }
        Ok(counted)
    }
}

/// The memory that is reserved for automata.
#[derive(Debug)]
pub(super) struct PatternMemory {
    /// The size of a cache in bytes. Each thread has two caches.
    pub cache_bytes: usize,
    /// The reservation of the memory. It must live as long as the automata.
    _reserved: Reservation,
}

impl PatternMemory {
    /// Reserves memory for the automata of `patterns` in a budget.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the budget is too small. The error names a budget that is enough.
    pub fn take(
        patterns: &[impl AsRef<str>],
        options: &PatternOptions,
        budget: &Budget,
    ) -> Result<PatternMemory> {
        let mut size = PatternSize::new(options);
        patterns.iter().for_each(|pattern| size.add(pattern.as_ref()));
        let (counted, threads) = (size.check(budget)?, budget.threads() as u64);
        let caches = (budget.free_bytes() - counted) / CACHES_PART;
        let cache_bytes = (caches / 2 / threads).max(CACHE_BYTES_MIN);
        // If the budget is very small, the memory of the caches is not reserved. It is then a part of the 64 MiB that a
        // process may take beyond its budget.
        let is_roomy = budget.free_bytes() - counted - caches >= smallest_memory_bytes(budget.threads());
        let reserved = counted + if is_roomy { caches } else { 0 };
        Ok(PatternMemory {
            // The regex library needs a cache of at least about a third of this size.
            cache_bytes: (cache_bytes + size.nfa_bytes / 2) as usize,
            _reserved: budget.reserve(reserved, "automata of patterns")?,
        })
    }
}

/// Stores the sizes of the automata of character classes, so that each size is computed once.
#[derive(Clone, Debug, Default)]
struct Nfas {
    of_classes: HashMap<Vec<(char, char)>, u64>,
}

impl Nfas {
    /// Returns a bound, in bytes, on the size of a pattern's NFA for both search directions. An invalid pattern has
    /// size 0, since the regex library later reports the error.
    fn bytes(&mut self, pattern: &str, options: &PatternOptions) -> u64 {
        let PatternOptions { fixed, ignore_case, smart_case, .. } = *options;
        // The regex library looks for capital letters in all patterns together. If one pattern has capital letters, the
        // library takes less memory than this estimate.
        let is_caseless = ignore_case || smart_case && !pattern.chars().any(char::is_uppercase);
        let is_plain = fixed || !pattern.chars().any(regex_syntax::is_meta_character);
        if is_plain && !is_caseless {
            return 2 * (3 + pattern.len() as u64) * STATE_BYTES;
        }
        let mut parser = regex_syntax::ParserBuilder::new();
        parser.utf8(false).multi_line(true).crlf(options.crlf).case_insensitive(is_caseless);
        let parsed = match fixed {
            true => parser.build().parse(&regex_syntax::escape(pattern)),
            false => parser.build().parse(pattern),
        };
        parsed.map_or(0, |hir| self.of(&hir))
    }

    fn of(&mut self, hir: &Hir) -> u64 {
        let state = 2 * STATE_BYTES;
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => state,
            HirKind::Literal(literal) => literal.0.len() as u64 * state,
            HirKind::Class(class) => self.of_class(class),
            HirKind::Capture(capture) => 2 * state + self.of(&capture.sub),
            HirKind::Repetition(repeated) => {
                let times = repeated.max.unwrap_or(repeated.min.saturating_add(1)).max(1);
                (state + self.of(&repeated.sub)).saturating_mul(u64::from(times))
            }
            HirKind::Concat(all) | HirKind::Alternation(all) => {
                let each = all.iter().map(|one| self.of(one).saturating_add(TRANSITION_BYTES));
                each.fold(state, u64::saturating_add)
            }
        }
    }

    fn of_class(&mut self, class: &Class) -> u64 {
        let ranges: Vec<(char, char)> = match class {
            Class::Unicode(class) => {
                class.ranges().iter().map(|range| (range.start(), range.end())).collect()
            }
            Class::Bytes(class) => return 2 * (STATE_BYTES + class.ranges().len() as u64 * TRANSITION_BYTES),
        };
        if ranges.last().is_none_or(|(_, end)| end.is_ascii()) {
            return 2 * (STATE_BYTES + ranges.len() as u64 * TRANSITION_BYTES);
        }
        *self.of_classes.entry(ranges).or_insert_with(|| {
            let built = |hir: &Hir, is_reverse: bool| {
                let config = thompson::Config::new()
                    .utf8(false)
                    .reverse(is_reverse)
                    .which_captures(WhichCaptures::None);
                let nfa = NFA::compiler().configure(config).build_from_hir(hir);
                nfa.map_or(0, |nfa| nfa.memory_usage() as u64)
            };
            let (one, none) = (Hir::class(class.clone()), Hir::empty());
            // Every automaton has states for its beginning and end. These states are subtracted from the size.
            let of =
                |is_reverse| built(&one, is_reverse).saturating_sub(built(&none, is_reverse)) + STATE_BYTES;
            of(false) + of(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nfa(pattern: &str) -> u64 {
        Nfas::default().bytes(pattern, &PatternOptions::default())
    }

    #[test]
    fn the_size_bound_of_an_automaton_is_close() {
        let compiled = |pattern: &str| {
            let built = |is_reverse| {
                let config = thompson::Config::new().reverse(is_reverse).which_captures(WhichCaptures::None);
                NFA::compiler().configure(config).build(pattern).unwrap().memory_usage() as u64
            };
            built(false) + built(true)
        };
        for pattern in [
            r"abc",
            r"\w{20}x",
            r"(\w{1,20}\d){3,6}x",
            r"(?i)the quick brown fox{10}",
            r"[a-z]{1,300}[^x]",
            r"\pL+|\d{3,}|.*x",
            r"(?:a|b|cde|[0-9ä]{7})*",
        ] {
            let (told, is) = (nfa(pattern), compiled(pattern));
            // The bound does not include the few states for the beginning and end that every automaton has.
            assert!(told + 1000 >= is && told <= 4 * is, "{pattern}: {told} instead of {is}");
        }
        assert_eq!(nfa("("), 0);
        assert!(nfa(r"((((\w{1000}){1000}){1000}){1000}){1000}") > 1 << 60);
    }

    #[test]
    fn large_patterns_are_refused_with_a_sufficient_budget() {
        let many: Vec<String> = (0..100_000).map(|number| format!("needle {number}")).collect();
        let fixed = PatternOptions { fixed: true, ..PatternOptions::default() };
        let expression = [r"(\w{1,200}\d){3,6}x".to_string()];
        for (patterns, options) in [(&many[..], fixed), (&expression[..], PatternOptions::default())] {
            let error = PatternMemory::take(patterns, &options, &Budget::new(8 << 20, 2)).unwrap_err();
            let crate::Error::Store(inshore_store::Error::BudgetTooSmall { smallest, .. }) = error else {
                panic!("{error}")
            };
            let budget = Budget::new(smallest, 2);
            let memory = PatternMemory::take(patterns, &options, &budget).unwrap();
            assert!(budget.free_bytes() >= smallest_memory_bytes(2));
            assert!(budget.reserved_bytes() > 16 << 20);
            drop(memory);
            assert!(PatternMemory::take(patterns, &options, &Budget::new(smallest - 1, 2)).is_err());
        }
        // The size of a set of patterns is the sum of the sizes of its patterns.
        let mut size = PatternSize::new(&PatternOptions { ignore_case: true, ..fixed });
        many.iter().for_each(|pattern| size.add(pattern));
        assert!(!size.may_fit(&Budget::new(1 << 20, 2)) && size.may_fit(&Budget::new(100 << 20, 2)));
        assert!(size.check(&Budget::new(100 << 20, 2)).is_err());
        // The automata of a common pattern are so small that their memory is not reserved.
        let usual = Budget::new(1 << 20, 2);
        PatternMemory::take(&[r"\w+ERROR\s\d{1,3}"], &PatternOptions::default(), &usual).unwrap();
        assert_eq!(usual.reserved_bytes_max(), 0);
    }
}
