//! How much memory the automata of a search take, told before they are built.
//!
//! ```text
//!   many texts     one Aho-Corasick automaton: so much for each byte and each text
//!   expressions    a syntax tree, then an automaton (NFA) in both directions, then caches of it for each thread
//! ```
//!
//! The engine has limits of its own, but fails where it meets one and does not say what would be enough. Sizes are therefore
//! bounded from the patterns: that of the first kind is a multiple of their bytes, and that of the second is found by adding up
//! what the parts of the expression take, since a repetition takes as often as much as what it repeats. Few patterns take so little
//! that it is not counted ([`UNCOUNTED_BYTES`]).
//!
//! Measured with grep-regex 0.1.14 and regex-automata 0.4.18, by the growth of the peak resident size: 100,000 texts of 4, 10 and 30 bytes
//! took 350, 640 and 1,660 bytes each; 20,000 of 10 bytes whose case makes no difference 5,620 bytes each.

use std::collections::HashMap;

use inshore_neardata::smallest_memory_bytes;
use inshore_store::{Budget, Reservation};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::hir::{Class, Hir, HirKind};

use super::PatternOptions;
use crate::Result;

/// What is not counted: so much the fixed part of the memory promise has room for, beside the program itself.
const UNCOUNTED_BYTES: u64 = 4 << 20;
/// From so many texts on the engine takes one Aho-Corasick automaton.
const TEXTS_MIN: u64 = 3000;
/// For each byte of a text, and each text, of an Aho-Corasick automaton while it is built.
const TEXT_BYTE_BYTES: u64 = 60;
const TEXT_BYTES: u64 = 280;
/// For each byte of expressions while they are parsed and compiled, and for each class in them, which may be large.
const EXPRESSION_BYTE_BYTES: u64 = 230;
const EXPRESSION_CLASS_BYTES: u64 = 8 << 10;
/// The same where case makes no difference, so that each letter is a class.
const CASELESS_BYTE_BYTES: u64 = 620;
/// A pattern whose tree may be larger is not parsed to find the size of its automaton, which is taken to be so many times as large.
const PARSED_BYTES_MAX: u64 = 32 << 20;
const UNSEEN: u64 = 16;
/// A state of an NFA, and a transition.
const STATE_BYTES: u64 = 24;
const TRANSITION_BYTES: u64 = 8;
/// Half of how often the bytes of an NFA in both directions are there while it is built (2.2 times were measured), and in the caches
/// of a thread: one for each direction, and one for the simulation that steps in where these fail.
const BUILDING_HALVES: u64 = 6;
const SEARCHING_HALVES: u64 = 3;
/// The share of the budget that caches of all threads may take, beside what their NFA needs; and a cache at least.
const CACHES_PART: u64 = 8;
const CACHE_BYTES_MIN: u64 = 256 << 10;

/// How many patterns there are, and how large they and their automata are.
#[derive(Clone, Debug)]
pub struct PatternSize {
    options: PatternOptions,
    patterns: u64,
    bytes: u64,
    /// Classes such as `\w` in them, at most.
    classes: u64,
    is_plain: bool,
    nfas: Nfas,
    nfa_bytes: u64,
}

impl PatternSize {
    /// Of no pattern.
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

    /// One pattern more.
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

    /// Whether the engine takes one Aho-Corasick automaton for them.
    fn is_of_texts(&self) -> bool {
        let PatternOptions { ignore_case, smart_case, words, lines, .. } = self.options;
        self.is_plain && !(ignore_case || smart_case || words || lines) && self.patterns >= TEXTS_MIN
    }

    /// What they take with so many threads.
    fn memory_bytes(&self, threads: usize) -> u64 {
        if self.is_of_texts() {
            return self.least_bytes();
        }
        let is_caseless = self.options.ignore_case || self.options.smart_case;
        let each = if is_caseless { CASELESS_BYTE_BYTES } else { EXPRESSION_BYTE_BYTES };
        let parsed = self.bytes * each + self.patterns * TEXT_BYTES + self.classes * EXPRESSION_CLASS_BYTES;
        parsed.max(self.nfa_bytes.saturating_mul(BUILDING_HALVES + SEARCHING_HALVES * threads as u64) / 2)
    }

    /// What the kind of automaton takes that takes the least.
    fn least_bytes(&self) -> u64 {
        self.bytes * TEXT_BYTE_BYTES + self.patterns * TEXT_BYTES
    }

    /// Whether a budget may have room for them, or for them and more.
    pub fn may_fit(&self, budget: &Budget) -> bool {
        self.least_bytes() <= UNCOUNTED_BYTES + budget.free_bytes()
    }

    /// Makes sure that a budget has room for them, and gives the bytes that count against it.
    ///
    /// # Errors
    /// [`crate::Error::Store`] with the budget that would do.
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

/// What automata may take.
#[derive(Debug)]
pub(super) struct PatternMemory {
    /// Bytes of a cache, of which each thread has two.
    pub cache_bytes: usize,
    /// Held as long as the automata are there.
    _reserved: Reservation,
}

impl PatternMemory {
    /// Takes memory for the automata of `patterns` from a budget.
    ///
    /// # Errors
    /// [`crate::Error::Store`] where there is too little, with the budget that would do.
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
        // Where only the least is there, caches are part of what is not counted.
        let is_roomy = budget.free_bytes() - counted - caches >= smallest_memory_bytes(budget.threads());
        let reserved = counted + if is_roomy { caches } else { 0 };
        Ok(PatternMemory {
            // The least that the engine makes a cache of is about a third.
            cache_bytes: (cache_bytes + size.nfa_bytes / 2) as usize,
            _reserved: budget.reserve(reserved, "automata of patterns")?,
        })
    }
}

/// The sizes of the automata of classes that were met.
#[derive(Clone, Debug, Default)]
struct Nfas {
    of_classes: HashMap<Vec<(char, char)>, u64>,
}

impl Nfas {
    /// Bytes of the NFA of a pattern in both directions, at most. What is no pattern takes nothing: the engine says why.
    fn bytes(&mut self, pattern: &str, options: &PatternOptions) -> u64 {
        let PatternOptions { fixed, ignore_case, smart_case, .. } = *options;
        // The engine asks all patterns together for capitals, and takes less where one of them has some.
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
            // Without what every automaton begins and ends with.
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
    fn the_size_of_an_automaton_is_that_of_its_parts() {
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
            // What every automaton begins and ends with is small.
            assert!(told + 1000 >= is && told <= 4 * is, "{pattern}: {told} instead of {is}");
        }
        assert_eq!(nfa("("), 0);
        assert!(nfa(r"((((\w{1000}){1000}){1000}){1000}){1000}") > 1 << 60);
    }

    #[test]
    fn patterns_that_take_too_much_are_refused_with_a_budget_that_is_enough() {
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
        // Files of patterns are looked at one by one, and told the same.
        let mut size = PatternSize::new(&PatternOptions { ignore_case: true, ..fixed });
        many.iter().for_each(|pattern| size.add(pattern));
        assert!(!size.may_fit(&Budget::new(1 << 20, 2)) && size.may_fit(&Budget::new(100 << 20, 2)));
        assert!(size.check(&Budget::new(100 << 20, 2)).is_err());
        // Of what is usual nothing is counted but caches.
        let usual = Budget::new(1 << 20, 2);
        PatternMemory::take(&[r"\w+ERROR\s\d{1,3}"], &PatternOptions::default(), &usual).unwrap();
        assert_eq!(usual.reserved_bytes_max(), 0);
    }
}
