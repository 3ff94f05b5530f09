//! This module identifies the natural language of a text.
//!
//! [`Profiles`] hold for each language the n-grams (n = 4 bytes of normalised text) that are most frequent in a sample.
//! The language of a text is the language whose profile contains the largest number of the text's n-grams.
//!
//! Profiles become Bloom filters, as in the article that is cited below, but all languages share one filter. An entry
//! of the filter is a 64-bit word with one bit for each language, so that two look-ups determine which languages have
//! an n-gram. The counters of the languages are bit-sliced: one word holds the lowest bits of all counters, the next
//! word holds the next bits, and so on. The cost of an n-gram therefore does not depend on the number of languages.
//!
//! In normalised text, letters of ASCII and Latin-1 are in lower case, and letters of other scripts are unchanged. A
//! sequence of bytes that are not letters is replaced by one space. Spaces surround each line, so that no n-gram spans
//! two lines. A text may therefore be split after any line.
//!
//! # Cost
//!
//! Normalising a byte takes 1 ns. Looking up the n-gram at a byte takes 2 ns. A look-up consists of two loads from 1
//! MiB of filters and of 14 operations on machine words. Adding up the counters takes another 16 operations for each
//! language and text. The following times were measured for a CSV file with one row for each text, and include reading
//! the file. Documents of 1 KB took 8 ns for each byte, and single sentences took 22 ns for each byte.
//!
//! The method is described in the 2008 article, in the section "Language classification" and in figure 3 (see
//! docs/from-the-papers.md). The article uses 5,000 4-grams for each language and 4 hash functions of 16 Kbit each.
//! This module uses 2 hash functions of 64 Kbit each. The rate of false positives is the same (0.6 % at 5,000 n-grams),
//! and the number of look-ups is half as large.

mod columns;
mod portable;
mod table;
mod training;

use std::{cmp::Reverse, collections::HashMap, ops::Deref};

use inshore_kernel::{Block, Border, Event, Kernel, Next, Source, run};
use inshore_store::{Context, Job, Reservation, Store};
use serde::{Deserialize, Serialize};

pub use self::{
    columns::identify_column,
    portable::LanguageOfText,
    table::{LanguagePlace, LanguageSummary, LanguageTable},
    training::CountsGrams,
};
use crate::{Error, Result};

/// The size of an n-gram in bytes.
pub const GRAM_BYTES: usize = 4;
/// The largest number of languages in a set of profiles, since a 64-bit word has one bit for each language.
pub const LANGUAGES_MAX: usize = 64;
/// The kind of a dataset that holds profiles.
const KIND: &str = "language";
/// The name of the dataset's file.
const FILE: &str = "grams";
const VERSION: u32 = 1;
/// The memory for each n-gram in a hash map of counts, in bytes. The number includes the memory for growing the map.
pub const COUNTED_GRAM_BYTES: u64 = 48;

/// The profiles of a set of languages. The profile of a language consists of its most frequent n-grams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    languages: Vec<(String, Vec<u32>)>,
}

/// The attributes of the dataset, as JSON.
#[derive(Serialize, Deserialize)]
struct Attributes {
    version: u32,
    gram_bytes: usize,
    /// For each language, its label and the number of its n-grams. The n-grams of the languages follow each other in
    /// the file in this order.
    languages: Vec<(String, usize)>,
}

impl Profiles {
    /// Returns the labels of the languages, sorted by their bytes.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.languages.iter().map(|(label, _)| &**label)
    }

    /// Returns how many n-grams the profile of a language has. Returns `None` if there is no such language.
    pub fn grams(&self, label: &str) -> Option<usize> {
        self.languages.iter().find(|(known, _)| known == label).map(|(_, grams)| grams.len())
    }

    /// Makes profiles of labelled samples. A profile consists of the `grams` most frequent n-grams of its sample. Among
    /// equally frequent n-grams, the smallest ones (by their bytes) are used. Each thread takes 48 bytes of the budget
    /// for each distinct n-gram that the thread has counted.
    ///
    /// # Errors
    /// - Returns [`Error::BadProfiles`] if there are no labels or too many labels, or if a sample has no letters.
    /// - Returns [`Error::Read`] if a source cannot be read.
    /// - Returns [`inshore_store::Error::OverBudget`] if the budget has no memory for further n-grams.
    pub fn train(job: &Context, samples: Vec<(String, Vec<Source>)>, grams: usize) -> Result<Profiles> {
        Profiles::of_samples(samples, grams, |sources| count(job, sources.into_iter()))
    }

    /// Makes profiles of samples as [`Profiles::train`] does. The caller's function `count` counts the n-grams of a
    /// sample.
    ///
    /// # Errors
    /// - Returns the errors of `count`.
    /// - Returns [`Error::BadProfiles`] if there are no labels or too many labels, or if a sample has no letters.
    pub fn of_samples<S>(
        samples: Vec<(String, Vec<S>)>,
        grams: usize,
        mut count: impl FnMut(Vec<S>) -> Result<HashMap<u32, u64>>,
    ) -> Result<Profiles> {
        let refuse = |what: String| Err(Error::BadProfiles { name: "training".to_string(), what });
        let mut all: HashMap<String, Vec<S>> = HashMap::new();
        for (label, sources) in samples {
            all.entry(label).or_default().extend(sources);
        }
        if all.is_empty() || all.len() > LANGUAGES_MAX {
            return refuse(format!("expected 1 to {LANGUAGES_MAX} languages, got {}", all.len()));
        }
        let mut languages = Vec::new();
        for (label, sources) in all {
            let counts = count(sources)?;
            let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
            if counts.is_empty() {
                return refuse(format!("the sample of {label:?} has no letters"));
            }
            counts.sort_unstable_by_key(|&(gram, count)| (Reverse(count), gram));
            let mut grams: Vec<u32> = counts.into_iter().take(grams).map(|(gram, _)| gram).collect();
            grams.sort_unstable();
            languages.push((label, grams));
        }
        languages.sort();
        Ok(Profiles { languages })
    }

    /// Stores the profiles as the dataset `name`.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::NameExists`] if the store already has a dataset with this name.
    /// - Returns [`Error::Store`] if the dataset cannot be written, or the budget has too little free memory.
    pub fn save(&self, store: &Store, job: &Job, name: &str) -> Result<()> {
        let mut dataset = store.create_dataset(job, name, KIND)?;
        let mut file = dataset.file(FILE, 64 << 10, 1 << 20)?;
        for (_, grams) in &self.languages {
            let bytes: Vec<u8> = grams.iter().flat_map(|gram| gram.to_le_bytes()).collect();
            file.write(&bytes)?;
        }
        dataset.add(file)?;
        let languages = self.languages.iter().map(|(label, grams)| (label.clone(), grams.len())).collect();
        let attributes = Attributes { version: VERSION, gram_bytes: GRAM_BYTES, languages };
        let attributes = serde_json::to_vec(&attributes).expect("text and numbers");
        Ok(dataset.commit(&attributes)?)
    }

    /// Reads profiles that [`Profiles::save`] stored.
    ///
    /// # Errors
    /// - Returns [`Error::BadProfiles`] if the dataset has another kind or version, or if its attributes do not match
    ///   its file.
    /// - Returns [`Error::Store`] if the dataset does not exist or cannot be read, or if the budget has too little free
    ///   memory.
    pub fn load(store: &Store, job: &Job, name: &str) -> Result<Profiles> {
        let refuse = |what: String| Error::BadProfiles { name: name.to_string(), what };
        let dataset = store.dataset(name)?;
        if dataset.kind() != KIND {
            return Err(refuse(format!("expected a dataset of the kind {KIND}, got {:?}", dataset.kind())));
        }
        let attributes: Attributes =
            serde_json::from_slice(dataset.attributes()).map_err(|error| refuse(error.to_string()))?;
        if (attributes.version, attributes.gram_bytes) != (VERSION, GRAM_BYTES) {
            let found = (attributes.version, attributes.gram_bytes);
            return Err(refuse(format!(
                "expected version and n-gram length {:?}, got {found:?}",
                (VERSION, GRAM_BYTES)
            )));
        }
        let file = dataset.file(FILE).ok_or_else(|| refuse(format!("it has no file {FILE:?}")))?;
        let total = attributes.languages.iter().try_fold(0usize, |sum, (_, count)| sum.checked_add(*count));
        let count = attributes.languages.len();
        let fits =
            total.and_then(|total| total.checked_mul(4)).is_some_and(|bytes| bytes as u64 == file.len());
        if !fits || !(1..=LANGUAGES_MAX).contains(&count) {
            return Err(refuse(format!(
                "the attributes list {count} languages, which do not match {} bytes of n-grams",
                file.len()
            )));
        }
        let _room = job.budget().reserve(2 * file.len(), "profiles of languages")?;
        let mut bytes = Vec::with_capacity(file.len() as usize);
        let mut reader = inshore_store::FileReader::new(job, &file, 0..file.len(), 64 << 10)?;
        while let Some(piece) = reader.next_piece()? {
            bytes.extend_from_slice(piece);
        }
        let (words, _) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let languages = attributes
            .languages
            .into_iter()
            .map(|(label, count)| (label, words.by_ref().take(count).collect()));
        Ok(Profiles { languages: languages.collect() })
    }
}

/// Counts the n-grams of sources.
fn count(job: &Context, sources: impl Iterator<Item = Source> + Send) -> Result<HashMap<u32, u64>> {
    let kernel = CountGrams;
    let workers = run(job, &kernel, sources, |event: Event<'_, CountGrams>| match event.part {
        Some(Err(error)) => Err(error),
        _ => Ok(Next::Go),
    })?;
    let mut all: HashMap<u32, u64> = HashMap::new();
    for worker in workers {
        worker.counts.into_iter().for_each(|(gram, count)| *all.entry(gram).or_default() += count);
    }
    Ok(all)
}

/// The kernel that counts n-grams.
struct CountGrams;

struct GramCounts {
    text: Normaliser,
    counts: HashMap<u32, u64>,
    reservation: Reservation,
}

impl Kernel for CountGrams {
    type Error = Error;
    type Worker = GramCounts;
    type Part = ();

    fn border(&self) -> Border {
        Border::Line { numbered: false }
    }

    fn worker(&self, job: &Context) -> Result<GramCounts> {
        let reservation = job.budget().reserve(0, "counted n-grams")?;
        Ok(GramCounts { text: Normaliser::default(), counts: HashMap::new(), reservation })
    }

    fn block(&self, worker: &mut GramCounts, block: &Block<'_>) -> Result<()> {
        let GramCounts { text, counts, reservation } = worker;
        // Memory is reserved before each line is counted, so that the map never grows beyond the reservation.
        for line in block.bytes.split_inclusive(|&byte| byte == b'\n') {
            let most = (counts.len() + line.len() + 4) as u64;
            if most * COUNTED_GRAM_BYTES > reservation.bytes() {
                reservation.resize((2 * most).max(1 << 16) * COUNTED_GRAM_BYTES)?;
            }
            for gram in text.of(line).windows(GRAM_BYTES) {
                // An n-gram with two adjacent spaces spans two lines.
                if !gram.windows(2).any(|two| two == b"  ") {
                    let gram = u32::from_be_bytes(gram.try_into().expect("4 bytes"));
                    *counts.entry(gram).or_default() += 1;
                }
            }
        }
        Ok(())
    }
}

/// Converts text to its normalised form.
#[derive(Debug)]
struct Normaliser {
    classes: [u8; 256],
    text: Vec<u8>,
}

impl Default for Normaliser {
    fn default() -> Normaliser {
        let class = |byte: usize| match byte as u8 {
            letter if letter.is_ascii_alphabetic() => letter.to_ascii_lowercase(),
            byte @ 128.. => byte,
            b'\n' => b'\n',
            _ => b' ',
        };
        Normaliser { classes: std::array::from_fn(class), text: Vec::new() }
    }
}

impl Normaliser {
    /// Normalises each line of `bytes`, and puts spaces around the line. The first line begins after [`GRAM_BYTES`]
    /// spaces.
    fn of(&mut self, bytes: &[u8]) -> &[u8] {
        let Normaliser { classes, text } = self;
        let lines = memchr::memchr_iter(b'\n', bytes).count() + 1;
        // Each line feed becomes [`GRAM_BYTES`] spaces, so that no n-gram has letters of two lines.
        text.clear();
        text.resize(bytes.len() + GRAM_BYTES * (lines + 1), b' ');
        let (mut place, mut before, mut raw) = (GRAM_BYTES, b' ', 0);
        for &byte in bytes {
            // A capital letter of Latin-1 has two bytes in UTF-8. The second byte is 32 less than the second byte of
            // the small letter.
            let is_capital = raw == 0xc3 && (0x80..=0x9e).contains(&byte) && byte != 0x97;
            raw = byte;
            let class = classes[byte as usize];
            if class == b'\n' {
                text[place..place + GRAM_BYTES].fill(b' ');
                place += GRAM_BYTES;
                before = b' ';
                continue;
            }
            text[place] = class + u8::from(is_capital) * 32;
            place += usize::from(class != b' ' || before != b' ');
            before = class;
        }
        if bytes.last().is_some_and(|&last| last != b'\n') {
            text[place..place + GRAM_BYTES].fill(b' ');
            place += GRAM_BYTES;
        }
        &text[..place]
    }
}

/// Identifies the language of texts.
#[derive(Debug)]
pub struct Classifier {
    labels: Vec<String>,
    /// The first filter. It is an array of words that have one bit for each language. Each n-gram has one word in this
    /// filter and one word in `second`.
    first: Vec<u64>,
    second: Vec<u64>,
}

const FILTER: usize = 1 << 16;

/// Returns the indexes of an n-gram's entries in both filters.
#[inline]
fn places(gram: u32) -> (usize, usize) {
    let product = u64::from(gram).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((product >> 48) as usize, (product >> 24) as usize % FILTER)
}

/// The scores of a text: for each language, how many n-grams of the text are in the profile of the language.
#[derive(Clone, Debug)]
pub struct Scores {
    counts: Vec<u64>,
}

/// The result of classifying a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classification {
    /// The index of the language in [`Classifier::labels`].
    pub language: usize,
    /// The confidence, from 0 to 1. It is the difference between the counts of the best and the second-best language,
    /// divided by the count of the best language.
    pub confidence: f64,
}

impl Scores {
    /// Adds the scores of another section of the same text.
    pub fn add(&mut self, other: &Scores) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// Returns the language with the largest count. If several languages have this count, the first of them is
    /// returned. Returns `None` if no profile contains any n-gram of the text.
    pub fn verdict(&self) -> Option<Classification> {
        let (language, &best) =
            self.counts.iter().enumerate().max_by_key(|&(at, count)| (count, Reverse(at)))?;
        let others = self.counts.iter().enumerate().filter(|&(at, _)| at != language);
        let next = others.map(|(_, &count)| count).max().unwrap_or(0);
        (best > 0).then(|| Classification { language, confidence: (best - next) as f64 / best as f64 })
    }
}

/// The buffers of a worker that classifies texts.
#[derive(Debug, Default)]
pub struct Reader(Normaliser);

impl Classifier {
    /// The memory of a classifier in bytes.
    pub const BYTES: u64 = 2 * (FILTER * 8) as u64;

    /// Makes a classifier for the languages of `profiles`.
    pub fn new(profiles: &Profiles) -> Classifier {
        let (mut first, mut second) = (vec![0; FILTER], vec![0; FILTER]);
        for (number, (_, grams)) in profiles.languages.iter().enumerate() {
            for &gram in grams {
                let (a, b) = places(gram);
                first[a] |= 1 << number;
                second[b] |= 1 << number;
            }
        }
        Classifier { labels: profiles.labels().map(str::to_string).collect(), first, second }
    }

    /// Returns the labels in the order of their indexes.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Returns scores of zero.
    pub fn no_scores(&self) -> Scores {
        Scores { counts: vec![0; self.labels.len()] }
    }

    /// Scores a text. The text may also be some complete lines of a longer text.
    pub fn score(&self, reader: &mut Reader, text: &[u8]) -> Scores {
        let mut scores = self.no_scores();
        let text = reader.0.of(text);
        // No n-gram ends within the spaces at the beginning of the text.
        self.count(&text[GRAM_BYTES..], &mut scores.counts);
        scores
    }

    fn count(&self, text: &[u8], counts: &mut [u64]) {
        let first: &[u64; FILTER] = self.first[..].try_into().expect("made so long");
        let second: &[u64; FILTER] = self.second[..].try_into().expect("made so long");
        let mut gram = u32::from_ne_bytes([b' '; GRAM_BYTES]);
        // A counter of 4 bits can count up to 15 n-grams. A counter of 8 bits can count up to 255 n-grams, and 255 is
        // 17 times 15.
        for part in text.chunks(15 * 17) {
            let mut high = [0u64; 8];
            for some in part.chunks(15) {
                let mut low = [0u64; 4];
                for &byte in some {
                    gram = gram << 8 | u32::from(byte);
                    let (a, b) = places(gram);
                    let mut carry = first[a] & second[b];
                    for plane in &mut low {
                        (*plane, carry) = (*plane ^ carry, *plane & carry);
                    }
                }
                let mut carry = 0;
                for (plane, bit) in high.iter_mut().zip(low.into_iter().chain([0; 4])) {
                    let sum = *plane ^ bit;
                    (*plane, carry) = (sum ^ carry, *plane & bit | carry & sum);
                }
            }
            for (number, count) in counts.iter_mut().enumerate() {
                let bits = high.iter().enumerate().map(|(place, plane)| (plane >> number & 1) << place);
                *count += bits.sum::<u64>();
            }
        }
    }
}

/// The units of text whose language is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextUnit {
    /// Each source is a text.
    Source,
    /// Each line is a text.
    Line,
}

/// The language of a source or of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageResult<'a> {
    /// The name of the source.
    pub name: &'a str,
    /// The number of the line, from 1. The value is `None` for a complete source.
    pub line: Option<u64>,
    /// The language. The value is `None` if no profile contains any n-gram of the text.
    pub verdict: Option<Classification>,
}

/// Identifies the language of each source or of each line that is not empty, and passes the results to `each` in order.
///
/// # Errors
/// - Returns the errors of `each` and of `failed`.
/// - Returns [`Error::Store`] if the job was stopped.
///
/// If a source cannot be read, the function passes the error to `failed`. If `failed` returns `Ok`, the source is
/// skipped. If `failed` returns an error, the run ends.
pub fn identify(
    job: &Context,
    classifier: &Classifier,
    sources: impl Iterator<Item = Source> + Send,
    unit: TextUnit,
    each: impl FnMut(LanguageResult<'_>) -> Result<()> + Send,
    failed: impl FnMut(Error) -> Result<()> + Send,
) -> Result<()> {
    run(job, &Identify { classifier, unit }, sources, telling(classifier, unit, each, failed))?;
    Ok(())
}

/// Creates a consumer for [`run`], which passes the languages that a kernel found to `each`.
fn telling<K: Kernel<Part = LanguagePart, Error = Error>>(
    classifier: &Classifier,
    unit: TextUnit,
    mut each: impl FnMut(LanguageResult<'_>) -> Result<()> + Send,
    mut failed: impl FnMut(Error) -> Result<()> + Send,
) -> impl FnMut(Event<'_, K>) -> Result<Next> + Send {
    let (mut whole, mut is_failed) = (classifier.no_scores(), false);
    move |event: Event<'_, K>| {
        let name = event.name;
        match event.part {
            Some(Ok(LanguagePart::Whole(scores))) => whole.add(&scores),
            Some(Ok(LanguagePart::Lines(lines))) => {
                for (line, verdict) in lines {
                    each(LanguageResult { name, line: Some(line), verdict })?;
                }
            }
            Some(Err(error)) if error.is_cancelled() => return Err(error),
            Some(Err(error)) => {
                failed(error)?;
                is_failed = true;
            }
            None => {
                let scores = std::mem::replace(&mut whole, classifier.no_scores());
                if unit == TextUnit::Source && !std::mem::take(&mut is_failed) {
                    each(LanguageResult { name, line: None, verdict: scores.verdict() })?;
                }
            }
        }
        Ok(Next::Go)
    }
}

/// The kernel that identifies languages.
#[derive(Debug)]
struct Identify<C> {
    classifier: C,
    unit: TextUnit,
}

/// The result of a block.
#[derive(Debug)]
pub enum LanguagePart {
    /// The scores of a block, which is a part of the text.
    Whole(Scores),
    /// The number and the language of each line.
    Lines(Vec<(u64, Option<Classification>)>),
}

impl<C: Deref<Target = Classifier> + Sync> Kernel for Identify<C> {
    type Error = Error;
    type Worker = Reader;
    type Part = LanguagePart;

    fn border(&self) -> Border {
        Border::Line { numbered: self.unit == TextUnit::Line }
    }

    fn worker(&self, _: &Context) -> Result<Reader> {
        Ok(Reader::default())
    }

    fn block(&self, reader: &mut Reader, block: &Block<'_>) -> Result<LanguagePart> {
        if self.unit == TextUnit::Source {
            return Ok(LanguagePart::Whole(self.classifier.score(reader, block.bytes)));
        }
        let mut lines = Vec::new();
        for (number, line) in (block.first_line()..).zip(block.bytes.split_inclusive(|&byte| byte == b'\n')) {
            if !line.trim_ascii().is_empty() {
                lines.push((number, self.classifier.score(reader, line).verdict()));
            }
        }
        Ok(LanguagePart::Lines(lines))
    }

    fn part_bytes(&self, part: &LanguagePart) -> u64 {
        match part {
            LanguagePart::Whole(scores) => 8 * scores.counts.len() as u64,
            LanguagePart::Lines(lines) => 32 * lines.capacity() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use inshore_kernel::OpenedSource;
    use inshore_store::{Budget, Cancel};
    use proptest::prelude::*;

    use super::*;

    fn source(text: &str) -> Source {
        let bytes = text.as_bytes().to_vec();
        Source::new("text", move |_| Ok(OpenedSource::Stream(Box::new(std::io::Cursor::new(bytes)))))
    }

    fn job(threads: usize) -> Context {
        Context::new(Budget::new(256 << 20, threads), Cancel::default())
    }

    pub(super) fn profiles(grams: usize) -> Profiles {
        let samples = [
            ("en", "The quick brown fox jumps over the lazy dog.\nWhere there is a will there is a way.\n"),
            (
                "de",
                "Der schnelle braune Fuchs springt über den faulen Hund.\nWo ein Wille ist, da ist auch ein Weg.\n",
            ),
            ("fr", "Le renard brun saute par-dessus le chien paresseux.\nQuand on veut, on peut. ÉTÉ été\n"),
        ];
        let samples = samples.map(|(label, text)| (label.to_string(), vec![source(text)]));
        Profiles::train(&job(2), samples.into(), grams).unwrap()
    }

    /// Scores a text with a simple method, as the reference. The n-grams of each line are looked up in a set for each
    /// language.
    fn naive(profiles: &Profiles, text: &str) -> Vec<u64> {
        let mut counts = vec![0; profiles.languages.len()];
        let sets: Vec<HashSet<u32>> =
            profiles.languages.iter().map(|(_, grams)| grams.iter().copied().collect()).collect();
        for line in text.split('\n') {
            for gram in naive_grams(line) {
                for (count, set) in counts.iter_mut().zip(&sets) {
                    *count += u64::from(set.contains(&gram));
                }
            }
        }
        counts
    }

    fn naive_grams(line: &str) -> Vec<u32> {
        let fold = |letter: char| match letter {
            'A'..='Z' | 'À'..='Ö' | 'Ø'..='Þ' => char::from_u32(letter as u32 + 32).unwrap(),
            letter => letter,
        };
        let letters: String = line
            .chars()
            .map(|letter| if letter.is_ascii() && !letter.is_ascii_alphabetic() { ' ' } else { fold(letter) })
            .collect();
        let words: Vec<&str> = letters.split(' ').filter(|word| !word.is_empty()).collect();
        let text = format!(" {} ", words.join(" "));
        text.as_bytes().windows(4).map(|gram| u32::from_be_bytes(gram.try_into().unwrap())).collect()
    }

    #[test]
    fn languages_of_texts_are_identified() {
        let profiles = profiles(5000);
        assert_eq!(profiles.labels().collect::<Vec<_>>(), ["de", "en", "fr"]);
        let classifier = Classifier::new(&profiles);
        let text = |text: &str| classifier.score(&mut Reader::default(), text.as_bytes()).verdict();
        assert_eq!(text("the dog is over there").unwrap().language, 1);
        assert_eq!(text("der Hund ist faul").unwrap().language, 0);
        assert_eq!(text("LE CHIEN, PARESSEUX: ÉTÉ!").unwrap().language, 2);
        assert_eq!(text("0123 4567"), None);
        assert_eq!(text(""), None);
    }

    #[test]
    fn profiles_round_trip_and_invalid_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
        let profiles = profiles(50);
        profiles.save(&store, &job, "some").unwrap();
        assert_eq!(Profiles::load(&store, &job, "some").unwrap(), profiles);
        assert_eq!(profiles.grams("en"), Some(50));
        let write = |name: &str, kind: &str, attributes: &[u8]| {
            let mut dataset = store.create_dataset(&job, name, kind).unwrap();
            let file = dataset.file(FILE, 4096, 4096).unwrap();
            dataset.add(file).unwrap();
            dataset.commit(attributes).unwrap();
            Profiles::load(&store, &job, name).unwrap_err().to_string()
        };
        assert!(write("a", "bytes", b"").contains("expected a dataset of the kind language"));
        assert!(write("b", KIND, b"nonsense").starts_with("b: "));
        let attributes = |version: u32, count: u64| {
            format!(r#"{{"version":{version},"gram_bytes":4,"languages":[["x",{count}],["y",{count}]]}}"#)
        };
        assert!(write("c", KIND, attributes(2, 0).as_bytes()).contains("expected version"));
        for (name, count) in [("d", 1), ("e", u64::MAX), ("f", u64::MAX / 2), ("g", 1 << 62)] {
            assert!(
                write(name, KIND, attributes(1, count).as_bytes()).contains("which do not match"),
                "{count}"
            );
        }
    }

    #[test]
    fn no_languages_too_many_and_empty_samples_are_refused() {
        let train = |samples: Vec<(String, Vec<Source>)>| {
            Profiles::train(&job(1), samples, 10).unwrap_err().to_string()
        };
        assert!(train(Vec::new()).contains("expected 1 to 64 languages, got 0"));
        let many = (0..65).map(|number| (number.to_string(), vec![source("text")])).collect();
        assert!(train(many).contains("got 65"));
        assert!(train(vec![("x".to_string(), vec![source("123\n")])]).contains("has no letters"));
    }

    proptest! {
        #[test]
        fn scores_equal_those_of_sets_wherever_a_text_is_cut(
            words in proptest::collection::vec(
                prop_oneof![Just("the "), Just("fox"), Just("\n"), Just(" "), Just("über "), Just("Der"), Just("ÉTÉ"), Just("."), Just("ch"), Just("7"), Just("\n\n")],
                0..300,
            ),
            cut in any::<prop::sample::Index>(),
        ) {
            let profiles = profiles(5000);
            let classifier = Classifier::new(&profiles);
            let text = words.concat();
            let mut reader = Reader::default();
            let whole = classifier.score(&mut reader, text.as_bytes());
            // The profiles have so few n-grams that the filters give no false positives.
            prop_assert_eq!(&whole.counts, &naive(&profiles, &text));
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let cut = cut.index(lines.len() + 1);
            let mut parts = classifier.score(&mut reader, lines[..cut].concat().as_bytes());
            parts.add(&classifier.score(&mut reader, lines[cut..].concat().as_bytes()));
            prop_assert_eq!(parts.counts, whole.counts);
        }
    }
}
