//! Documents as vectors. A vector has the counts of the words of a vocabulary.
//!
//! ```text
//!   files, or lines of a file ─► text, cut at ends of lines ─► words of each document, on all threads ─► counts
//! ```
//!
//! Texts are read in the same way as by `count words`: compressed files are decompressed, UTF-16 is converted, and
//! words follow the rules of Unicode, in lower case. A count is a byte, and does not rise above 255.
//!
//! The method is described in sections 6.1.3, 6.2.2 and 6.3.1 of the 2018 thesis (see docs/from-the-papers.md). The
//! thesis represents documents as bags of words over a fixed vocabulary of 8,000 words, with one byte for each count.
//! The thesis has no rule for the choice of the vocabulary. In this module it consists of the most frequent words of
//! all documents.

use std::{io::Read, ops::Range, path::PathBuf};

use inshore_kernels::{TextOptions, WordOptions, count_words, each_word, text_reader, text_source};
use inshore_store::{Job, Reservation};
use inshore_tables::Input;
use inshore_vectors::{
    CONSUMER_BYTES, ContentRows, Element, Error, Files, Result, RowBatch, Vocabulary, each_row, list_files,
};

/// The number of words in the vocabulary, if the request gives none.
pub(super) const WORDS: u64 = 8_000;
/// The largest length in bytes of a word in a vocabulary.
const WORD_BYTES_MAX: usize = 1024;
/// The bytes of text that are read before their words are counted.
const TEXT_BYTES: usize = 512 << 10;
/// The bytes of the vectors in a batch. A batch has at least one vector.
const ROWS_BYTES: usize = 4 << 20;
/// The memory, in bytes, for the text: the buffer with the text of the batch and the text after it, and the copy of the
/// text in lower case, which may be three times as long.
const READ_BYTES: u64 = 8 * TEXT_BYTES as u64;

fn text_options() -> TextOptions {
    TextOptions { unpack: true, ..TextOptions::default() }
}

fn word_options() -> WordOptions {
    WordOptions { ignore_case: true, ..WordOptions::default() }
}

/// Lists the documents: the input files, and all files in input folders and their subfolders, sorted by path. If
/// `are_lines` is true, the only input must be a file.
///
/// # Errors
/// - Returns [`Error::BadOption`] if `are_lines` is true and the inputs are not one file.
/// - Returns the errors of [`list_files`].
pub(super) fn document_files(job: &Job, inputs: &[PathBuf], are_lines: bool) -> Result<Files> {
    if are_lines && (inputs.len() != 1 || inputs[0].is_dir()) {
        let found = match inputs {
            [folder] => format!("{}, a folder", folder.display()),
            _ => format!("{} inputs", inputs.len()),
        };
        return Err(Error::BadOption { option: "lines", found, expected: "one file".to_string() });
    }
    list_files(job, inputs, |_| true, "files")
}

/// Returns the `count` most frequent words of all documents. Words with equal frequencies are ordered by their bytes.
///
/// # Errors
/// - Returns [`Error::BadFile`] if the documents have no words.
/// - Returns an error if a document cannot be read, or if the budget has too little free memory.
pub(super) fn vocabulary_of(job: &Job, files: &Files, count: u64) -> Result<Vocabulary> {
    let sources: Vec<_> = files.paths.iter().map(|path| text_source(path, text_options())).collect();
    job.start_phase("counting words", "bytes", 0);
    let options = WordOptions { top: count as usize, ..word_options() };
    let summary = count_words(job, sources.into_iter(), &options, |_| Ok(())).map_err(failed)?;
    let words = summary.top.into_iter().filter(|(word, _)| word.len() <= WORD_BYTES_MAX);
    let words: Vec<Box<str>> = words.map(|(word, _)| word.into()).collect();
    match Vocabulary::new(job.budget(), words)? {
        Some(vocabulary) => Ok(vocabulary),
        None => Err(Error::BadFile {
            file: files.paths.first().map_or(String::new(), |path| path.display().to_string()),
            place: "all documents".to_string(),
            found: "no words".to_string(),
            expected: "at least one".to_string(),
        }),
    }
}

fn failed(error: inshore_kernels::Error) -> Error {
    match error {
        inshore_kernels::Error::Store(error) => Error::Store(error),
        error => Error::Content(Box::new(error)),
    }
}

/// Counts the words of documents, in the order of the documents.
pub(super) struct Documents {
    job: Job,
    files: Files,
    /// True if each line of a file is a document. Otherwise each file is a document.
    are_lines: bool,
    vocabulary: Vocabulary,
    /// The number of files that have been opened.
    opened: usize,
    reader: Option<Box<dyn Read + Send>>,
    /// The text of the batch, and text behind it that was already read.
    text: Vec<u8>,
    /// The byte ranges, in `text`, of the documents of the batch. If `goes_on` is true, the last document continues in
    /// the next batch.
    documents: Vec<Range<usize>>,
    goes_on: bool,
    rows: Vec<u8>,
    paths: Vec<String>,
    _memory: Reservation,
}

impl Documents {
    /// Creates the source, which starts with the first document.
    ///
    /// # Errors
    /// Returns an error if the budget has too little free memory.
    pub fn new(job: &Job, files: Files, are_lines: bool, vocabulary: Vocabulary) -> Result<Documents> {
        let dimensions = vocabulary.words().len();
        let rows_bytes = (ROWS_BYTES / dimensions).max(1) * dimensions;
        let bytes = READ_BYTES + rows_bytes as u64;
        job.budget().need(bytes + CONSUMER_BYTES, || "counting the words of documents".to_string())?;
        let memory = job.budget().reserve(bytes, "documents")?;
        Ok(Documents {
            job: job.clone(),
            files,
            are_lines,
            vocabulary,
            opened: 0,
            reader: None,
            text: Vec::with_capacity(2 * TEXT_BYTES),
            documents: Vec::new(),
            goes_on: false,
            rows: vec![0; rows_bytes],
            paths: Vec::new(),
            _memory: memory,
        })
    }

    /// Opens the next file if no file is open. Returns false if all files have been read.
    fn is_open(&mut self) -> Result<bool> {
        if self.reader.is_none() && self.opened < self.files.paths.len() {
            let input = Input::new(&self.files.paths[self.opened]);
            let reader = text_reader(&input, text_options(), &self.job);
            self.reader = Some(reader.map_err(|error| failed(error.into()))?);
            self.opened += 1;
        }
        Ok(self.reader.is_some())
    }

    /// Reads until `text` has `TEXT_BYTES` bytes or the file ends. At the end of the file, closes it and returns true.
    fn read(&mut self) -> Result<bool> {
        let Some(reader) = &mut self.reader else { return Ok(true) };
        while self.text.len() < TEXT_BYTES {
            let missing = (TEXT_BYTES - self.text.len()) as u64;
            let path = &self.files.paths[self.opened - 1];
            let read = reader.by_ref().take(missing).read_to_end(&mut self.text);
            if read.map_err(|error| inshore_store::Error::io("read", path, error))? == 0 {
                self.reader = None;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fills the batch with whole files. A file that does not fit continues in the next batch. Returns the number of
    /// bytes of the batch.
    fn fill_with_files(&mut self, documents_max: usize) -> Result<usize> {
        let mut start = 0;
        while self.documents.len() < documents_max && self.is_open()? {
            match self.read()? {
                true => {
                    self.documents.push(start..self.text.len());
                    self.paths.push(self.files.paths[self.opened - 1].display().to_string());
                    self.goes_on = false;
                    start = self.text.len();
                }
                // If the batch has other documents, this document starts in the next batch. Otherwise the whole text
                // belongs to this document.
                false if start > 0 => break,
                false => return self.cut(),
            }
            if self.text.len() >= TEXT_BYTES {
                break;
            }
        }
        Ok(start)
    }

    /// Fills the batch with lines. Returns the number of bytes of the batch.
    fn fill_with_lines(&mut self, documents_max: usize) -> Result<usize> {
        let is_end = !self.is_open()? || self.read()?;
        let mut start = 0;
        while self.documents.len() < documents_max {
            let rest = &self.text[start..];
            match rest.iter().position(|&byte| byte == b'\n') {
                Some(line) => {
                    self.documents.push(start..start + line);
                    start += line + 1;
                }
                // The last line of a file may lack a line feed. A line that began in an earlier batch also ends with
                // the file.
                None if is_end && (!rest.is_empty() || self.goes_on) => {
                    self.documents.push(start..self.text.len());
                    start = self.text.len();
                }
                None if !is_end && start == 0 => return self.cut(),
                None => break,
            }
            self.goes_on = false;
        }
        Ok(start)
    }

    /// Takes the text up to its last line feed or white space as a part of a document that continues in the next batch.
    /// The batch has no other document.
    fn cut(&mut self) -> Result<usize> {
        let line = self.text.iter().rposition(|&byte| byte == b'\n');
        let Some(end) = line.or_else(|| self.text.iter().rposition(u8::is_ascii_whitespace)) else {
            return Err(Error::BadFile {
                file: self.files.paths[self.opened - 1].display().to_string(),
                place: "its text".to_string(),
                found: format!("{TEXT_BYTES} bytes without white space"),
                expected: "words".to_string(),
            });
        };
        self.documents.push(0..end + 1);
        self.goes_on = true;
        Ok(end + 1)
    }

    /// Counts the words of the batch.
    fn count(&mut self) -> Result<()> {
        let Documents { job, documents, text, rows, vocabulary, .. } = self;
        let dimensions = vocabulary.words().len();
        let options = word_options();
        let errors = each_row(job.budget().threads(), documents, rows, dimensions, true, |document, row| {
            let text = &text[document.clone()];
            each_word(text, &options, &mut String::new(), |word| vocabulary.count(word, row));
            job.check_cancelled()?;
            Ok(())
        });
        errors.into_iter().flatten().next().map_or(Ok(()), Err)
    }
}

impl ContentRows for Documents {
    fn vocabulary(&self) -> Option<&Vocabulary> {
        Some(&self.vocabulary)
    }

    fn element(&self) -> Element {
        Element::U8
    }

    fn dimensions(&self) -> usize {
        self.vocabulary.words().len()
    }

    fn total(&self) -> (&'static str, u64) {
        ("documents", if self.are_lines { 0 } else { self.files.paths.len() as u64 })
    }

    fn next(&mut self) -> Result<Option<RowBatch<'_>>> {
        let dimensions = self.dimensions();
        let documents_max = self.rows.len() / dimensions;
        let (mut used, mut complete) = (0, 0);
        self.paths.clear();
        while complete == 0 {
            self.job.check_cancelled()?;
            let goes_on = self.goes_on;
            self.documents.clear();
            self.text.drain(..used);
            used = match self.are_lines {
                true => self.fill_with_lines(documents_max)?,
                false => self.fill_with_files(documents_max)?,
            };
            if self.documents.is_empty() {
                return Ok(None);
            }
            // A document that continues from the previous batch is the first of this batch, and its counts are kept.
            self.rows[if goes_on { dimensions } else { 0 }..].fill(0);
            self.count()?;
            complete = self.documents.len() - usize::from(self.goes_on);
        }
        self.text.drain(..used);
        self.job.progress().add(complete as u64);
        Ok(Some(RowBatch { rows: &self.rows[..complete * dimensions], paths: &self.paths }))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, fs, path::Path};

    use inshore_store::{Budget, Cancel, Store};

    use super::*;

    fn job(folder: &Path, memory_bytes: u64, threads: usize) -> Job {
        let store = Store::open(folder.join("store")).unwrap();
        store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap()
    }

    /// Counts the words of texts whose words are separated by white space.
    fn naive(texts: &[String], words: u64) -> (Vec<String>, Vec<Vec<u8>>) {
        let of = |text: &str| -> Vec<String> {
            text.to_lowercase().split_whitespace().map(String::from).collect()
        };
        let mut all: HashMap<String, u64> = HashMap::new();
        texts.iter().flat_map(|text| of(text)).for_each(|word| *all.entry(word).or_default() += 1);
        let mut vocabulary: Vec<(String, u64)> = all.into_iter().collect();
        vocabulary.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
        vocabulary.truncate(words as usize);
        let vocabulary: Vec<String> = vocabulary.into_iter().map(|(word, _)| word).collect();
        let row = |text: &String| {
            let found = of(text);
            let count = |word: &String| found.iter().filter(|found| *found == word).count().min(255) as u8;
            vocabulary.iter().map(count).collect()
        };
        let rows = texts.iter().map(row).collect();
        (vocabulary, rows)
    }

    fn counted(
        job: &Job,
        inputs: &[PathBuf],
        are_lines: bool,
        words: u64,
    ) -> (Vec<String>, Vec<Vec<u8>>, Vec<String>) {
        let files = document_files(job, inputs, are_lines).unwrap();
        let vocabulary = vocabulary_of(job, &files, words).unwrap();
        let names = vocabulary.words().iter().map(|word| word.to_string()).collect();
        let mut documents = Documents::new(job, files, are_lines, vocabulary).unwrap();
        let (dimensions, mut rows, mut paths) = (documents.dimensions(), Vec::new(), Vec::new());
        while let Some(batch) = documents.next().unwrap() {
            rows.extend(batch.rows.chunks(dimensions).map(<[u8]>::to_vec));
            paths.extend_from_slice(batch.paths);
        }
        drop(documents);
        assert_eq!(job.budget().reserved_bytes(), 0);
        (names, rows, paths)
    }

    /// Returns texts of several kinds: empty, with Unicode, with a word that occurs more than 255 times, and longer
    /// than a batch.
    fn texts(separator: &str) -> Vec<String> {
        let long: Vec<String> = (0..150_000u64).map(|number| format!("w{}", number * number % 977)).collect();
        let mut texts = vec![
            String::new(),
            "Straße STRASSE straße naïve Ελλάδα ΕΛΛΆΔΑ".to_string(),
            "the ".repeat(300),
            long.join(separator),
            "last w1 w4 the".to_string(),
            String::new(),
        ];
        texts.extend((0..3000u64).map(|number| format!("w{} The w{}", number % 50, number * 7 % 977)));
        texts
    }

    #[test]
    fn counts_of_files_equal_a_scalar_count() {
        let folder = tempfile::tempdir().unwrap();
        let documents = folder.path().join("documents");
        fs::create_dir_all(documents.join("deep")).unwrap();
        let texts = texts("\n");
        let paths: Vec<PathBuf> =
            (0..texts.len()).map(|number| documents.join(format!("deep/{number:05}.txt"))).collect();
        paths.iter().zip(&texts).for_each(|(path, text)| fs::write(path, text).unwrap());
        fs::write(documents.join(".hidden"), "hidden hidden").unwrap();
        for (words, memory_bytes, threads) in [(8_000, 64 << 20, 1), (20, 256 << 20, 3)] {
            let (vocabulary, expected) = naive(&texts, words);
            let job = job(folder.path(), memory_bytes, threads);
            let (names, rows, found) = counted(&job, std::slice::from_ref(&documents), false, words);
            assert_eq!(names, vocabulary);
            assert!(rows == expected, "counts with {words} words");
            assert!(found.iter().map(PathBuf::from).eq(paths.iter().cloned()));
        }
    }

    #[test]
    fn counts_of_lines_equal_a_scalar_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.txt");
        let texts = texts(" ");
        let (vocabulary, expected) = naive(&texts, 500);
        let joined = texts.join("\n");
        let long_last = [&texts[4..], &texts[3..4]].concat();
        let (_, expected_last) = naive(&long_last, 500);
        for (text, expected) in [
            (joined.clone(), &expected),
            (joined + "\r\n", &expected),
            (long_last.join("\n"), &expected_last),
        ] {
            fs::write(&path, text).unwrap();
            let job = job(folder.path(), 64 << 20, 2);
            let (names, rows, paths) = counted(&job, std::slice::from_ref(&path), true, 500);
            assert_eq!((names.len(), paths.len()), (vocabulary.len(), 0));
            assert!(rows == *expected, "{} and {} lines", rows.len(), expected.len());
        }
    }

    #[test]
    fn documents_without_words_and_texts_without_spaces_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signs.txt");
        let job = job(folder.path(), 64 << 20, 1);
        let inputs = [path.clone()];
        fs::write(&path, "-- ... !!\n\n").unwrap();
        let files = document_files(&job, &inputs, false).unwrap();
        let error = vocabulary_of(&job, &files, 10).unwrap_err().to_string();
        assert!(error.contains("signs.txt: all documents: found no words"), "{error}");
        fs::write(&path, "x".repeat(2 * TEXT_BYTES)).unwrap();
        let vocabulary = Vocabulary::new(job.budget(), vec!["x".into()]).unwrap().unwrap();
        let mut documents = Documents::new(&job, files, false, vocabulary).unwrap();
        let error = documents.next().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("signs.txt: its text: found 524288 bytes without white space"), "{error}");
        let error = document_files(&job, &[folder.path().to_path_buf()], true).unwrap_err().to_string();
        assert!(error.contains("lines is") && error.contains("a folder: expected one file"), "{error}");
    }
}
