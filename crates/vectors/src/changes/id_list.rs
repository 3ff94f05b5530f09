//! Lists of ids that a user gives.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    ops::Deref,
    path::Path,
};

use inshore_store::{Job, Reservation};

use crate::{Error, Result};

/// A list of ids of vectors. Its memory is reserved in the budget.
#[derive(Debug)]
pub struct IdList {
    ids: Vec<u64>,
    _reservation: Reservation,
}

impl Deref for IdList {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.ids
    }
}

impl IdList {
    /// Copies a list of ids.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the budget has too little free memory.
    pub fn of(job: &Job, ids: &[u64]) -> Result<IdList> {
        let reservation = job.budget().reserve(size_of_val(ids) as u64, "a list of ids")?;
        Ok(IdList { ids: ids.to_vec(), _reservation: reservation })
    }

    /// Reads a text file of ids. Ids are decimal numbers, separated by spaces, commas or line breaks. The file is read
    /// twice, and the first read counts the ids. The memory is 8 bytes for each id.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if a word is not a whole number. The error names the line.
    /// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn read(job: &Job, path: impl AsRef<Path>) -> Result<IdList> {
        let path = path.as_ref();
        let mut count = 0u64;
        each_word(path, |_, _| {
            count += 1;
            Ok(())
        })?;
        let reservation = job.budget().reserve(count * 8, "a list of ids")?;
        let mut ids = Vec::with_capacity(count as usize);
        each_word(path, |line, word| {
            let bad = |found: &str| Error::BadFile {
                file: path.display().to_string(),
                place: format!("line {line}"),
                found: format!("{found:?}"),
                expected: "an id, a whole number".to_string(),
            };
            if ids.len() as u64 == count {
                return Err(bad("more ids, since another program changes the file"));
            }
            ids.push(word.parse().map_err(|_| bad(word))?);
            Ok(())
        })?;
        Ok(IdList { ids, _reservation: reservation })
    }
}

/// A list of values of a column of ids. Its memory is reserved in the budget.
#[derive(Debug)]
pub struct ValueList {
    values: Vec<String>,
    _reservation: Reservation,
}

impl Deref for ValueList {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.values
    }
}

impl ValueList {
    /// Copies values.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the budget has too little free memory.
    pub fn of(job: &Job, values: Vec<String>) -> Result<ValueList> {
        let bytes = values.iter().map(|value| (size_of::<String>() + value.len()) as u64).sum();
        let reservation = job.budget().reserve(bytes, "a list of ids")?;
        Ok(ValueList { values, _reservation: reservation })
    }

    /// Reads a text file with one value on each line. Empty lines are ignored. The memory is the length of the file and
    /// 24 bytes for each line.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if a line is not UTF-8. The error names the line.
    /// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn read(job: &Job, path: impl AsRef<Path>) -> Result<ValueList> {
        let path = path.as_ref();
        let io = |error| inshore_store::Error::io("read", path, error);
        let open = || File::open(path).map_err(|error| inshore_store::Error::io("open", path, error));
        let (mut file, mut lines, mut bytes) = (BufReader::new(open()?), 1, 0);
        loop {
            let piece = file.fill_buf().map_err(io)?;
            let len = piece.len();
            if len == 0 {
                break;
            }
            lines += piece.iter().filter(|&&byte| byte == b'\n').count() as u64;
            bytes += len as u64;
            file.consume(len);
        }
        let held = bytes + lines * size_of::<String>() as u64;
        let reservation = job.budget().reserve(held, "a list of ids")?;
        let mut values = Vec::with_capacity(lines as usize);
        // A file that grows meanwhile is read up to the length that it had.
        for (line, value) in (1u64..).zip(BufReader::new(open()?.take(bytes)).split(b'\n')) {
            let mut value = value.map_err(io)?;
            if value.last() == Some(&b'\r') {
                value.pop();
            }
            if value.is_empty() {
                continue;
            }
            let value = String::from_utf8(value).map_err(|error| Error::BadFile {
                file: path.display().to_string(),
                place: format!("line {line}"),
                found: format!("{:?}", String::from_utf8_lossy(error.as_bytes())),
                expected: "UTF-8".to_string(),
            })?;
            values.push(value.into_boxed_str().into_string());
        }
        Ok(ValueList { values, _reservation: reservation })
    }
}

/// At most this number of bytes of a word are read. No id has as many digits, so a longer word is an error in any case.
const WORD_BYTES_MAX: usize = 64;

/// Calls `each` with every word of a file and the number of its line. Lines are counted from 1.
fn each_word(path: &Path, mut each: impl FnMut(u64, &str) -> Result<()>) -> Result<()> {
    let io = |error| inshore_store::Error::io("read", path, error);
    let file = File::open(path).map_err(|error| inshore_store::Error::io("open", path, error))?;
    let mut file = BufReader::new(file);
    let (mut line, mut word) = (1, Vec::new());
    loop {
        let piece = file.fill_buf().map_err(io)?;
        let len = piece.len();
        let is_end = len == 0;
        for &byte in piece.iter().chain(if is_end { &b"\n"[..] } else { &[] }) {
            if byte.is_ascii_whitespace() || byte == b',' {
                if !word.is_empty() {
                    each(line, &String::from_utf8_lossy(&word))?;
                    word.clear();
                }
                line += u64::from(byte == b'\n');
            } else if word.len() < WORD_BYTES_MAX {
                word.push(byte);
            }
        }
        if is_end {
            return Ok(());
        }
        file.consume(len);
    }
}

#[cfg(test)]
mod tests {
    use inshore_store::{Budget, Cancel, Store};

    use super::*;

    #[test]
    fn a_file_of_ids_is_read_and_a_bad_word_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let read = |text: &str| {
            let path = folder.path().join("ids.txt");
            std::fs::write(&path, text).unwrap();
            IdList::read(&job, path).map(|ids| ids.to_vec()).map_err(|error| error.to_string())
        };
        assert_eq!(read("3\n1, 2\r\n\n18446744073709551615").unwrap(), [3, 1, 2, u64::MAX]);
        assert_eq!(read("").unwrap(), [0; 0]);
        let many: Vec<u64> = (0..20_000).collect();
        let text = many.iter().map(|id| format!("{id}\n")).collect::<String>();
        assert_eq!(read(&text).unwrap(), many);
        for word in ["x1", "-1", "1.0", "18446744073709551616", "\u{e4}"] {
            let error = read(&format!("1\n2\n{word}\n")).unwrap_err();
            assert!(
                error.ends_with(&format!("line 3: found {word:?}, expected an id, a whole number")),
                "{error}"
            );
        }
        let error = read(&"7".repeat(100)).unwrap_err();
        assert!(error.contains("line 1"), "{error}");
        assert_eq!(job.budget().reserved_bytes(), 0);
        let small = store.job(Budget::new(80_000, 1), Cancel::default()).unwrap();
        std::fs::write(folder.path().join("many"), &text).unwrap();
        assert!(IdList::read(&small, folder.path().join("many")).is_err());
        assert!(IdList::of(&small, &many).is_err());
        assert_eq!(*IdList::of(&small, &many[..9]).unwrap(), many[..9]);
    }

    #[test]
    fn a_file_of_values_has_one_on_each_line() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(1 << 10, 1), Cancel::default()).unwrap();
        let path = folder.path().join("ids.txt");
        std::fs::write(&path, "a b, c\r\n\n17\n\u{e4}").unwrap();
        assert_eq!(*ValueList::read(&job, &path).unwrap(), ["a b, c", "17", "\u{e4}"].map(String::from));
        std::fs::write(&path, b"a\n\xff\n").unwrap();
        let error = ValueList::read(&job, &path).unwrap_err().to_string();
        assert!(error.contains("line 2: found") && error.ends_with("expected UTF-8"), "{error}");
        std::fs::write(&path, "a\n".repeat(100)).unwrap();
        assert!(ValueList::read(&job, &path).is_err());
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}
