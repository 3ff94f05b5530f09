//! What patterns cost: regular expressions, and those of LIKE, of which the library makes regular expressions.
//!
//! One is parsed (hundreds of bytes of memory for each of its bytes, and tens of KiB for each class of Unicode), compiled to at most
//! 10 MiB, and then matched with at most one step for each of its states and each byte of a text; where groups are asked for, with a
//! place for each group in each state. A short one can have many states: `((a{99}){99}){99}`. So what it takes to parse and to match
//! is estimated, and its states are counted without making them.
//!
//! Functions that look for all matches may look through the rest of a text for each: the square of the steps that are counted here.

use std::{cell::RefCell, collections::HashMap};

use datafusion::{
    error::Result,
    logical_expr::{ColumnarValue, Expr},
};
use regex_syntax::{
    ParserBuilder,
    hir::{Class, Hir, HirKind},
};

use crate::{
    Error,
    growth::{Cost, Each, Once, of_texts},
};

/// Bytes of a pattern, at most.
const PATTERN_BYTES_MAX: usize = 64 << 10;
/// Memory to parse one, for each of its bytes and each class; and what that may come to.
const PARSED_BYTES: usize = 400;
const PARSED_CLASS_BYTES: usize = 40 << 10;
const PARSED_BYTES_MAX: usize = 48 << 20;
/// Groups of a pattern, at most.
const GROUPS_MAX: u64 = 100;
/// Flags of one, at most.
const FLAGS_MAX: usize = 8;
/// A pattern of the query's text with no more states, and no more at once, is left to the library, which plans with it.
const FEW_STATES: States = States { all: 10_000, at_once: 256, groups: GROUPS_MAX };
/// What is compiled to more is refused by the library.
const STATES_MAX: u64 = 400_000;
/// The bytes of a state, and of what each pattern has beside.
const STATE_BYTES: u64 = 64;
const COMPILED_BYTES: u64 = 8 << 10;
/// Steps that it takes to compile a state.
const COMPILE_STEPS: u64 = 300;

/// The language of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Language {
    Regexp,
    Like,
}

/// About how many states a pattern has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct States {
    /// In memory: a class of characters has one for each range of these.
    all: u64,
    /// Of which a text can be in at once: of a class, as many as a character has bytes.
    at_once: u64,
    /// Groups, of which each state has the places.
    groups: u64,
}

impl States {
    const NONE: States = States { all: 0, at_once: 0, groups: 0 };
    const TOO_MANY: States = States { all: u64::MAX, at_once: u64::MAX, groups: u64::MAX };

    fn are_within(self, most: States) -> bool {
        self.all <= most.all && self.at_once <= most.at_once && self.groups <= most.groups
    }
}

/// Whether a pattern can be parsed in the memory for that.
fn can_be_parsed(pattern: &str) -> bool {
    let escapes = pattern.bytes().zip(pattern.bytes().skip(1));
    let classes = escapes.filter(|&(sign, class)| sign == b'\\' && b"pPwWdDsS".contains(&class)).count();
    pattern.len() <= PATTERN_BYTES_MAX
        && pattern.len() * PARSED_BYTES + classes * PARSED_CLASS_BYTES <= PARSED_BYTES_MAX
}

impl Language {
    /// Those of a pattern, with capital letters and small ones alike.
    fn states(self, pattern: &str) -> States {
        match self {
            _ if !can_be_parsed(pattern) => States::TOO_MANY,
            // Any character of UTF-8 has about so many.
            Language::Like => {
                let bytes = pattern.len() as u64;
                States { all: 12 * bytes, at_once: 4 * bytes, groups: 0 }
            }
            Language::Regexp => {
                let parsed = ParserBuilder::new().case_insensitive(true).build().parse(pattern);
                // What is none is refused by the library.
                let Ok(parsed) = parsed else { return States::NONE };
                let states = |of_class: fn(usize) -> u64| states_of(&parsed, of_class).min(STATES_MAX);
                let groups = parsed.properties().explicit_captures_len() as u64;
                States {
                    all: states(|ranges| ranges as u64),
                    at_once: states(|ranges| ranges.min(4) as u64),
                    groups,
                }
            }
        }
    }

    /// Whether a pattern is one that any number of texts can be compared with.
    pub fn is_small(self, pattern: &Expr) -> bool {
        match pattern {
            Expr::Literal(value, _) if value.is_null() => true,
            Expr::Literal(value, _) => {
                value.try_as_str().flatten().is_some_and(|text| self.states(text).are_within(FEW_STATES))
            }
            _ => false,
        }
    }

    /// Adds to what a function makes of texts of so many bytes what it takes to compare them with a pattern. `stop` is asked between rows.
    ///
    /// # Errors
    /// [`Error::Query`] for a pattern that is too large, and flags that are none; what `stop` gives.
    pub fn cost(
        self,
        made: Cost,
        rows: usize,
        text: &Each<u64>,
        (pattern, flags): (&ColumnarValue, Option<&ColumnarValue>),
        stop: &dyn Fn() -> Result<()>,
    ) -> Result<Cost> {
        let refused = |what: String| Err(Error::Query(what).into());
        // They become a part of the pattern.
        let are_flags =
            |flags: &str| flags.len() <= FLAGS_MAX && flags.bytes().all(|flag| flag.is_ascii_alphabetic());
        let flags = flags.map_or(Ok(Each::Same(true)), |flags| of_texts(flags, true, are_flags))?;
        if (0..rows).any(|row| !flags.at(row)) {
            return refused(format!("flags of a pattern are letters, {FLAGS_MAX} at most"));
        }
        let known = RefCell::new((HashMap::<String, (u32, States)>::new(), Ok(())));
        let states = of_texts(pattern, (0, States::NONE), |pattern| {
            let (known, stopped) = &mut *known.borrow_mut();
            if let Some(states) = known.get(pattern) {
                return *states;
            }
            if stopped.is_ok() {
                *stopped = stop();
            }
            let states = if stopped.is_ok() { self.states(pattern) } else { States::NONE };
            let number = known.len() as u32;
            known.insert(pattern.to_string(), (number, states));
            (number, states)
        })?;
        let (known, stopped) = known.into_inner();
        stopped?;
        let most = States { groups: GROUPS_MAX, ..States::TOO_MANY };
        if !known.values().all(|(_, states)| states.are_within(most)) {
            return refused(format!(
                "a pattern is larger than is allowed ({PATTERN_BYTES_MAX} bytes, {GROUPS_MAX} groups, about a thousand classes)"
            ));
        }
        // Those that are not the same for all rows are compiled, and those of regular expressions kept for the batch.
        let is_kept = self == Language::Regexp && matches!(pattern, ColumnarValue::Array(_));
        let once = is_kept.then(|| {
            let mut bytes = vec![0; known.len()];
            for (number, states) in known.values() {
                bytes[*number as usize] = states.all * STATE_BYTES + COMPILED_BYTES;
            }
            // Where it is null nothing is compiled, but for whose number it has.
            Once { of_row: (0..rows).map(|row| states.at(row).0).collect(), bytes }
        });
        let compiles = if matches!(pattern, ColumnarValue::Array(_)) { COMPILE_STEPS } else { 0 };
        let mut compiled = vec![false; known.len()];
        let steps = (0..rows).map(|row| {
            let ((number, states), matched) = (states.at(row), text.at(row));
            let is_first =
                compiled.get_mut(number as usize).is_some_and(|done| !std::mem::replace(done, true));
            let compiling = if is_first { states.all * compiles } else { 0 };
            states.at_once.saturating_mul(matched).saturating_add(compiling)
        });
        let steps = Each::Of(steps.collect());
        Ok(Cost { is_at_most: true, steps, once, ..made })
    }
}

/// About how many states an expression has, with those of a class of so many ranges of characters. The parser allows 250 levels.
fn states_of(expression: &Hir, of_class: fn(usize) -> u64) -> u64 {
    let states_of = |part: &Hir| states_of(part, of_class);
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Unicode(class)) => 1 + of_class(class.ranges().len()),
        HirKind::Class(Class::Bytes(_)) => 1,
        HirKind::Repetition(repeated) => {
            let times = repeated.max.unwrap_or(repeated.min.saturating_add(1)).max(1);
            states_of(&repeated.sub).saturating_add(1).saturating_mul(times.into())
        }
        HirKind::Capture(capture) => states_of(&capture.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(states_of).fold(1, u64::saturating_add)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_without_making_them() {
        let states = |pattern: &str| Language::Regexp.states(pattern);
        assert_eq!(states(&r"\w".repeat(2000)), States::TOO_MANY);
        assert_eq!(states("(a)(?:b)(c(?<d>e))").groups, 3);
        assert_eq!(states("(never closed"), States::NONE);
        assert!((1..20).contains(&states("^ab+c$").all));
        let words = states(r"\w+@\w+\.com");
        assert!((300..10_000).contains(&words.all) && words.at_once < 40, "{words:?}");
        assert!((2000..20_000).contains(&states("(a{10}){100}").at_once));
        for many in ["((a{99}){99}){99}", &"a{65536}".repeat(1000)] {
            let states = states(many);
            assert_eq!((states.all, states.at_once), (STATES_MAX, STATES_MAX));
        }
        assert_eq!(states(&"a".repeat(PATTERN_BYTES_MAX + 1)), States::TOO_MANY);
        assert_eq!(Language::Like.states("a%_"), States { all: 36, at_once: 12, groups: 0 });
    }
}
