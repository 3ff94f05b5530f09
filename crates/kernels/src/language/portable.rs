//! Identifies languages in a task on a node. The client sends the profiles to the node, and the node returns the
//! languages.

use std::ops::Deref;

use inshore_kernel::{Block, Border, Event, Kernel, Next, Portable};
use inshore_store::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Classification, Classifier, GRAM_BYTES, Identify, LANGUAGES_MAX, LanguagePart, LanguageResult, Profiles,
    Reader, Scores, TextUnit, telling,
};
use crate::{Error, Result};

/// The arguments of a request. They contain the n-grams of each language.
#[derive(Serialize, Deserialize)]
struct LanguageArguments {
    by_line: bool,
    gram_bytes: usize,
    languages: Vec<(String, Vec<u32>)>,
}

/// Profiles, and the classifier that is made from them.
#[derive(Debug)]
struct OwnedClassifier {
    profiles: Profiles,
    classifier: Classifier,
}

impl Deref for OwnedClassifier {
    type Target = Classifier;

    fn deref(&self) -> &Classifier {
        &self.classifier
    }
}

/// The kernel that identifies the language of texts. The kernel owns its profiles, so that it can be sent to a node.
#[derive(Debug)]
pub struct LanguageOfText(Identify<OwnedClassifier>);

impl LanguageOfText {
    /// Creates the kernel with `profiles`.
    pub fn new(profiles: &Profiles, unit: TextUnit) -> LanguageOfText {
        let (profiles, classifier) = (profiles.clone(), Classifier::new(profiles));
        LanguageOfText(Identify { classifier: OwnedClassifier { profiles, classifier }, unit })
    }

    /// Returns the classifier that is made from the profiles.
    pub fn classifier(&self) -> &Classifier {
        &self.0.classifier
    }

    /// Returns a consumer of the kernel's events, which passes on languages as [`super::identify`] does.
    pub fn telling(
        &self,
        each: impl FnMut(LanguageResult<'_>) -> Result<()> + Send,
        failed: impl FnMut(Error) -> Result<()> + Send,
    ) -> impl FnMut(Event<'_, LanguageOfText>) -> Result<Next> + Send {
        telling(self.classifier(), self.0.unit, each, failed)
    }
}

impl Kernel for LanguageOfText {
    type Error = Error;
    type Worker = Reader;
    type Part = LanguagePart;

    fn border(&self) -> Border {
        self.0.border()
    }

    fn worker(&self, job: &Context) -> Result<Reader> {
        self.0.worker(job)
    }

    fn block(&self, reader: &mut Reader, block: &Block<'_>) -> Result<LanguagePart> {
        self.0.block(reader, block)
    }

    fn part_bytes(&self, part: &LanguagePart) -> u64 {
        self.0.part_bytes(part)
    }
}

const WHOLE: u8 = 0;
const LINES: u8 = 1;
/// The number that stands for no language.
const NONE: u8 = u8::MAX;
/// The size of the result for a line, in bytes. The result has the line's number, the language, and the confidence.
const LINE_BYTES: usize = 17;

impl Portable for LanguageOfText {
    const KIND: &'static str = "language";
    const CAN_HELP: bool = true;

    fn arguments(&self) -> Value {
        let Identify { classifier: OwnedClassifier { profiles, .. }, unit } = &self.0;
        let languages = profiles.languages.clone();
        let told = LanguageArguments { by_line: *unit == TextUnit::Line, gram_bytes: GRAM_BYTES, languages };
        serde_json::to_value(told).expect("plain data")
    }

    fn of_arguments(arguments: &Value) -> Result<Self> {
        let refuse = |what: String| Error::BadProfiles { name: "profiles of a request".to_string(), what };
        let told = LanguageArguments::deserialize(arguments).map_err(|error| refuse(error.to_string()))?;
        if told.gram_bytes != GRAM_BYTES {
            return Err(refuse(format!("expected n-grams of {GRAM_BYTES} bytes, got {}", told.gram_bytes)));
        }
        if told.languages.is_empty() || told.languages.len() > LANGUAGES_MAX {
            let found = told.languages.len();
            return Err(refuse(format!("expected 1 to {LANGUAGES_MAX} languages, got {found}")));
        }
        let unit = if told.by_line { TextUnit::Line } else { TextUnit::Source };
        Ok(LanguageOfText::new(&Profiles { languages: told.languages }, unit))
    }

    fn encode(part: &LanguagePart, out: &mut Vec<u8>) {
        match part {
            LanguagePart::Whole(scores) => {
                out.push(WHOLE);
                scores.counts.iter().for_each(|count| out.extend(count.to_le_bytes()));
            }
            LanguagePart::Lines(lines) if lines.is_empty() => {}
            LanguagePart::Lines(lines) => {
                out.push(LINES);
                for (number, verdict) in lines {
                    out.extend(number.to_le_bytes());
                    out.push(verdict.map_or(NONE, |verdict| verdict.language as u8));
                    out.extend(verdict.map_or(0.0, |verdict| verdict.confidence).to_le_bytes());
                }
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<LanguagePart> {
        let (&what, rest) = bytes.split_first()?;
        match what {
            WHOLE => {
                let (counts, none) = rest.as_chunks::<8>();
                let counts: Vec<u64> = counts.iter().map(|count| u64::from_le_bytes(*count)).collect();
                (none.is_empty() && counts.len() <= LANGUAGES_MAX)
                    .then_some(LanguagePart::Whole(Scores { counts }))
            }
            LINES => {
                let (lines, none) = rest.as_chunks::<LINE_BYTES>();
                let line = |line: &[u8; LINE_BYTES]| {
                    let number = u64::from_le_bytes(line[..8].try_into().ok()?);
                    let confidence = f64::from_le_bytes(line[9..].try_into().ok()?);
                    let language = line[8] as usize;
                    match line[8] {
                        NONE => Some((number, None)),
                        _ if language >= LANGUAGES_MAX => None,
                        _ => Some((number, Some(Classification { language, confidence }))),
                    }
                };
                let lines = lines.iter().map(line).collect::<Option<Vec<_>>>()?;
                none.is_empty().then_some(LanguagePart::Lines(lines))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_kernel_is_made_again_of_what_travels_and_nonsense_is_refused() {
        let profiles = crate::language::tests::profiles(500);
        let kernel = LanguageOfText::new(&profiles, TextUnit::Line);
        let again = LanguageOfText::of_arguments(&kernel.arguments()).unwrap();
        assert_eq!(again.0.classifier.profiles, profiles);
        assert_eq!(again.0.unit, TextUnit::Line);
        let mut arguments = kernel.arguments();
        arguments["languages"] = Value::Array(Vec::new());
        assert!(LanguageOfText::of_arguments(&arguments).unwrap_err().to_string().contains("got 0"));
        assert!(LanguageOfText::of_arguments(&Value::Null).is_err());
    }

    proptest! {
        #[test]
        fn parts_are_read_as_they_were_written(
            counts in proptest::collection::vec(any::<u64>(), 1..64),
            lines in proptest::collection::vec((any::<u64>(), proptest::option::of((0..64usize, 0.0..1.0))), 1..50),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            LanguageOfText::encode(&LanguagePart::Whole(Scores { counts: counts.clone() }), &mut bytes);
            match LanguageOfText::decode(&bytes) {
                Some(LanguagePart::Whole(scores)) => prop_assert_eq!(scores.counts, counts),
                other => prop_assert!(false, "{:?}", other),
            }
            let verdict = |(language, confidence)| Classification { language, confidence };
            let lines: Vec<_> = lines.into_iter().map(|(line, found)| (line, found.map(verdict))).collect();
            bytes.clear();
            LanguageOfText::encode(&LanguagePart::Lines(lines.clone()), &mut bytes);
            match LanguageOfText::decode(&bytes) {
                Some(LanguagePart::Lines(found)) => prop_assert_eq!(found, lines),
                other => prop_assert!(false, "{:?}", other),
            }
            // A truncated result is either invalid or a valid result with fewer lines.
            bytes.truncate(cut.index(bytes.len()));
            let found = LanguageOfText::decode(&bytes);
            prop_assert!(bytes.len() % LINE_BYTES == 1 || found.is_none());
        }
    }
}
