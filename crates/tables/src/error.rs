//! Errors of reading and writing files of records.

use std::io;

use arrow_schema::Field;
use inshore_store::{format_bytes, format_bytes_up, url_hint};

/// The limit, in bytes, on the length of a line. No reader of lines accepts a longer line, even if the budget is large.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// The result of reading or writing a table.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of files of records. A message names the file, the position in the file, the value found and the value
/// expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the budget or the store.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// An error of sort-reduce.
    #[error(transparent)]
    SortReduce(inshore_sortreduce::Error),
    /// A disk has too little free space for the job. The job checks the free space before it begins.
    #[error("{place}: not enough space: the job needs {what}, and {} are free", format_bytes(*free))]
    NoRoom {
        /// The store, or the folder of the result file.
        place: String,
        /// The required amount of space and its purpose.
        what: String,
        /// The number of bytes that are free.
        free: u64,
    },
    /// The operating system refused an operation on a file (no permission, disk full, I/O error).
    #[error("{file}: cannot {what}: {source}{}", url_hint(file, source))]
    Io {
        /// The file, or "standard input" or "standard output".
        file: String,
        /// The operation, as a verb phrase ("open it").
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line, row or field does not have the expected form.
    #[error("{place}: expected {expected}, got {found}")]
    BadValue {
        /// The file and the position in the file, for example "edges.txt:1042" or "edges.parquet: row 17, column
        /// 'src'". Rows are counted from 0.
        place: String,
        /// The expected form.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// A value of a text file (CSV, JSON lines) contradicts the column type inferred from the first rows.
    #[error("{place}: expected {expected}, got {found}")]
    Contradiction {
        /// The file and the line.
        place: String,
        /// The inferred type of the column, and advice for the user.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// The bytes of the file are truncated, corrupt, or in another format than the file name indicates.
    #[error("{file}: {what}")]
    Damaged {
        /// The file.
        file: String,
        /// The fault, with its position if known.
        what: String,
    },
    /// An indivisible piece of the file (such as a page or a line) is larger than the budget allows.
    #[error(
        "{place}: {what} of {} exceeds the limit of {} in memory{}",
        format_bytes(*bytes), format_bytes(*limit), advice(what, *limit, *enough)
    )]
    TooLarge {
        /// The file and the position in it.
        place: String,
        /// The kind of piece ("a Parquet page", "a zstd window", "a line").
        what: &'static str,
        /// The size of the piece in bytes. For lines and CSV records, the number of bytes at which reading stopped.
        bytes: u64,
        /// The maximum size that is accepted.
        limit: u64,
        /// A budget in which every piece of this kind in the file fits, if known.
        enough: Option<u64>,
    },
    /// The extension of a file name belongs to no format that can be read or written.
    #[error("{file}: the file extension {ending:?} cannot be {what}: expected {expected}")]
    UnknownEnding {
        /// The file.
        file: String,
        /// The extension, without an extension of compressed files such as "gz".
        ending: String,
        /// "read" or "written".
        what: &'static str,
        /// A list of the extensions that can be read or written.
        expected: &'static str,
    },
    /// A requested column is missing in the file, or several columns have its name.
    #[error("{file}: {}", no_column(column, *found, columns))]
    NoColumn {
        /// The file.
        file: String,
        /// The requested column.
        column: String,
        /// The number of columns that have this name.
        found: usize,
        /// The columns of the file.
        columns: Vec<String>,
    },
    /// The file is sound but uses a feature that is not supported.
    #[error("{file}: {what}")]
    Unsupported {
        /// The file.
        file: String,
        /// The feature, and advice on what to do instead.
        what: String,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl From<inshore_sortreduce::Error> for Error {
    fn from(error: inshore_sortreduce::Error) -> Self {
        match error {
            inshore_sortreduce::Error::Store(error) => Error::Store(error),
            other => Error::SortReduce(other),
        }
    }
}

impl Error {
    /// Returns whether the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(error) if error.is_cancelled())
    }

    /// Makes an [`Error::BadValue`] for a line of text: "edges.txt:1042: expected two vertex ids, got 'foo'". `found`
    /// is the text itself, which is quoted and cut after 60 characters.
    pub fn bad_line(file: &str, line: u64, expected: impl Into<String>, found: &[u8]) -> Self {
        Error::BadValue { place: format!("{file}:{line}"), expected: expected.into(), found: quote(found) }
    }

    /// Returns true if a text file should be read again with column types that fit all its rows.
    /// [`exact_columns`](crate::exact_columns) finds these types.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, Error::Contradiction { .. })
    }

    /// Makes an error for a value that contradicts the type of its column. If `is_known` is true, the type fits all
    /// rows or was set by the caller. Otherwise the type was inferred from the first rows.
    pub(crate) fn contradiction(
        file: &str,
        line: u64,
        (expected, is_known): (&str, bool),
        column: Option<&str>,
        found: &[u8],
    ) -> Self {
        let rows = if is_known { "other rows" } else { "the first rows" };
        let advice =
            column.map_or(String::new(), |column| format!(" (or name the column as text: --text {column})"));
        Error::Contradiction {
            place: format!("{file}:{line}"),
            expected: format!("{expected}, as in {rows}{advice}"),
            found: quote(found),
        }
    }

    /// Makes the error for a column of a type that [cannot be read](crate::is_readable).
    pub fn unread_type(file: &str, column: &Field) -> Error {
        let (name, kind) = (column.name(), column.data_type());
        let holds = if kind.is_nested() {
            "holds objects or arrays, which are not supported: it"
        } else {
            "is not supported: it"
        };
        let kind = quote(kind.to_string().as_bytes());
        let what = format!(
            "column '{name}' {holds} has the type {kind}, and supported types are integers, floating point numbers, decimals of 128 and \
             256 bits, text, bytes, booleans, dates, times and durations"
        );
        Error::unsupported(file, what)
    }

    pub(crate) fn io(file: impl Into<String>, what: &'static str, source: io::Error) -> Self {
        Error::Io { file: file.into(), what, source }
    }

    pub(crate) fn damaged(file: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Damaged { file: file.into(), what: what.into() }
    }

    pub(crate) fn unsupported(file: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Unsupported { file: file.into(), what: what.into() }
    }

    /// Unwraps an error of this crate from an [`io::Error`] that passed through a library.
    pub(crate) fn from_read(file: &str, source: io::Error) -> Self {
        match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::io(file, "read it", source),
        }
    }
}

/// Returns the advice that an error gives if a piece of a file, such as a page or a line, is too large.
fn advice(what: &str, limit: u64, enough: Option<u64>) -> String {
    match enough {
        Some(enough) => format!(": a budget of {} is enough", format_bytes_up(enough)),
        None if what == "a line" && limit >= LINE_BYTES_MAX => String::new(),
        None => " (a larger --memory helps)".to_string(),
    }
}

/// Returns the message about a column name that is missing or repeated. The message lists the columns of the file.
fn no_column(column: &str, found: usize, columns: &[String]) -> String {
    let all =
        if columns.is_empty() { String::new() } else { format!("; the columns are {}", columns.join(", ")) };
    if found > 1 {
        return format!("{found} columns are called '{column}', expected one{all}");
    }
    match nearest(column, columns) {
        Some(name) => format!("no column '{column}', did you mean '{name}'?{}", all.replacen(';', "", 1)),
        None => format!("no column '{column}'{all}"),
    }
}

/// Returns the name that is most similar to `wanted`. Their edit distance must be at most one plus a quarter of the
/// letters of `wanted`.
fn nearest<'a>(wanted: &str, names: &'a [String]) -> Option<&'a str> {
    let lower = wanted.to_lowercase();
    let is_short = |name: &&'a String| name.len().max(wanted.len()) <= NAME_BYTES_MAX;
    let distance = |name: &'a String| (edits(&lower, &name.to_lowercase()), &**name);
    let (edits, name) = names.iter().filter(is_short).map(distance).min_by_key(|&(edits, _)| edits)?;
    (edits <= 1 + wanted.chars().count() / 4).then_some(name)
}

/// Returns the edit distance of two words. This is the smallest number of insertions, deletions and replacements that
/// turn one word into the other. The function is implemented here because a crate for it would be an additional
/// dependency of every build.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut before = line;
        row[0] = line + 1;
        for (place, &here) in other.iter().enumerate() {
            let replaced = before + usize::from(here != letter);
            before = row[place + 1];
            row[place + 1] = replaced.min(row[place] + 1).min(before + 1);
        }
    }
    row[other.len()]
}

/// Longer names are not compared, since the time of a comparison is proportional to the product of both lengths.
const NAME_BYTES_MAX: usize = 100;

/// Quotes the beginning of an untrusted text, so that it fits one line of an error message.
pub(crate) fn quote(text: &[u8]) -> String {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN)]);
    let short: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { format!("'{short}...'") } else { format!("'{short}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_column_is_refused_with_the_most_similar_name() {
        let told = |column: &str, found, columns: &[&str]| {
            let columns = columns.iter().map(|name| name.to_string()).collect();
            Error::NoColumn { file: "f".into(), column: column.into(), found, columns }.to_string()
        };
        let columns = ["shop", "price"];
        assert_eq!(
            told("prize", 0, &columns),
            "f: no column 'prize', did you mean 'price'? the columns are shop, price"
        );
        assert_eq!(
            told("Price", 0, &columns[1..]),
            "f: no column 'Price', did you mean 'price'? the columns are price"
        );
        assert_eq!(told("cost", 0, &columns), "f: no column 'cost'; the columns are shop, price");
        assert_eq!(told("cost", 0, &[]), "f: no column 'cost'");
        assert_eq!(
            told("a", 2, &["a", "a"]),
            "f: 2 columns are called 'a', expected one; the columns are a, a"
        );
        assert_eq!((edits("", "ab"), edits("kitten", "sitting"), edits("a", "a")), (2, 3, 0));
        assert!(told("prices", 0, &[&"a".repeat(1 << 20), "price"]).contains("did you mean 'price'?"));
    }

    #[test]
    fn a_bad_line_is_quoted_short_and_on_one_line() {
        let error = Error::bad_line("edges.txt", 1042, "two vertex ids", b"foo");
        assert_eq!(error.to_string(), "edges.txt:1042: expected two vertex ids, got 'foo'");
        let long = Error::bad_line("e", 1, "a number", &[b'\n'; 1000]).to_string();
        assert!(!long.contains('\n') && long.len() < 200 && long.ends_with("...'"), "{long}");
    }
}
