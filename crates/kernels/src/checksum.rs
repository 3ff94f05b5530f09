//! This module computes checksums of files, in the formats of `sha256sum` and similar programs.

use std::{
    fmt::{self, Display, Formatter, Write},
    hash::Hasher,
    io::Read,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

use inshore_store::Context;
use inshore_tables::Input;
use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

use crate::{Error, Result};

/// Names a checksum algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// Computes SHA-256, as `sha256sum` does.
    Sha256,
    /// Computes BLAKE3, as `b3sum` does.
    Blake3,
    /// Computes MD5, as `md5sum` does. MD5 protects only against accidental changes.
    Md5,
    /// Computes XXH64 with seed 0, as `xxhsum -H64` does. XXH64 protects only against accidental changes.
    Xxh64,
    /// Computes CRC-32 of IEEE 802.3, as gzip does. CRC-32 protects only against accidental changes.
    Crc32,
}

/// The number of bytes that one read requests.
const BLOCK_BYTES: usize = 1 << 20;

impl Checksum {
    /// All checksum algorithms.
    pub const ALL: [Checksum; 5] =
        [Checksum::Sha256, Checksum::Blake3, Checksum::Md5, Checksum::Xxh64, Checksum::Crc32];

    /// Returns how many hexadecimal digits a checksum of this algorithm has.
    pub fn letters(self) -> usize {
        match self {
            Checksum::Sha256 | Checksum::Blake3 => 64,
            Checksum::Md5 => 32,
            Checksum::Xxh64 => 16,
            Checksum::Crc32 => 8,
        }
    }

    /// Returns the checksum of all bytes of `input` in hexadecimal. In errors, the input is called `name`. The function
    /// takes 1 MiB of memory. SHA-256 processes about 1 to 2 GB/s on processors with SHA instructions. BLAKE3, XXH64
    /// and CRC-32 process 3 GB/s or more. MD5 processes 0.6 GB/s.
    ///
    /// # Errors
    /// - Returns [`Error::Input`] if a read fails.
    /// - Returns [`Error::Store`] if the job was stopped or the budget has too little free memory.
    pub fn of(self, job: &Context, name: &str, input: impl Read) -> Result<String> {
        match self {
            Checksum::Sha256 => each(job, name, input, Sha256::new(), |sum, block| sum.update(block))
                .map(|sum| hex(&sum.finalize())),
            Checksum::Blake3 => {
                let sum = each(job, name, input, blake3::Hasher::new(), |sum, block| _ = sum.update(block))?;
                Ok(sum.finalize().to_hex().to_string())
            }
            Checksum::Md5 => each(job, name, input, Md5::new(), |sum, block| sum.update(block))
                .map(|sum| hex(&sum.finalize())),
            Checksum::Xxh64 => each(job, name, input, XxHash64::with_seed(0), |sum, block| sum.write(block))
                .map(|sum| format!("{:016x}", sum.finish())),
            Checksum::Crc32 => {
                each(job, name, input, crc32fast::Hasher::new(), |sum, block| sum.update(block))
                    .map(|sum| format!("{:08x}", sum.finalize()))
            }
        }
    }
}

/// Returns the checksum of each file, in the order of `inputs`. Each thread of the job reads one file at a time.
///
/// # Errors
/// Each file has its own result, with the errors of [`Checksum::of`]. If the job was stopped, the result of a file that
/// was not yet read is [`inshore_store::Error::Cancelled`].
pub fn checksum_files(job: &Context, algorithm: Checksum, inputs: &[Input]) -> Vec<Result<String>> {
    let next = Mutex::new(inputs.iter().enumerate());
    let done: Mutex<Vec<(usize, Result<String>)>> = Mutex::default();
    let work = || loop {
        let Some((place, input)) = next.lock().expect("no panic under this lock").next() else { return };
        let input = input.clone().stopped_by(job.cancel());
        let opened = job.check_cancelled().map_err(Error::from);
        let opened = opened.and_then(|()| Ok(input.open_as_is()?));
        let found = opened.and_then(|bytes| algorithm.of(job, input.name(), bytes));
        done.lock().expect("no panic under this lock").push((place, found));
    };
    thread::scope(|scope| {
        (1..job.budget().threads().min(inputs.len())).for_each(|_| _ = scope.spawn(work));
        work();
    });
    let mut done = done.into_inner().expect("no panic under this lock");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, found)| found).collect()
}

/// Parses names and checksums from the output of `sha256sum` and similar programs. Returns checksums in lower case. In
/// errors, the file is called `list`.
///
/// # Errors
/// Returns [`Error::BadList`] if a line is invalid, or if the text has no checksum.
pub fn listed_checksums(list: &Path, text: &str, algorithm: Checksum) -> Result<Vec<(PathBuf, String)>> {
    let is_sum =
        |sum: &str| sum.len() == algorithm.letters() && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut wanted = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let parts = line.split_once(' ').and_then(|(sum, name)| Some((sum, name.strip_prefix([' ', '*'])?)));
        match parts {
            Some((sum, name)) if is_sum(sum) && !name.is_empty() => {
                wanted.push((PathBuf::from(name), sum.to_ascii_lowercase()));
            }
            _ => {
                let letters = algorithm.letters();
                let what = format!(
                    "expected a checksum of {algorithm} ({letters} hexadecimal digits), two spaces and a name"
                );
                return Err(Error::BadList { place: format!("{}:{}", list.display(), number + 1), what });
            }
        }
    }
    if wanted.is_empty() {
        let what = "the list has no checksum".to_string();
        return Err(Error::BadList { place: list.display().to_string(), what });
    }
    Ok(wanted)
}

fn each<S>(
    job: &Context,
    name: &str,
    mut input: impl Read,
    mut sum: S,
    add: impl Fn(&mut S, &[u8]),
) -> Result<S> {
    let _memory = job.budget().reserve(BLOCK_BYTES as u64, "a block of a file")?;
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        job.check_cancelled()?;
        match input.read(&mut block) {
            Ok(0) => return Ok(sum),
            Ok(read) => {
                add(&mut sum, &block[..read]);
                job.progress().add(read as u64);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Input { name: name.to_string(), source }),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Display for Checksum {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Checksum::Sha256 => "sha256",
            Checksum::Blake3 => "blake3",
            Checksum::Md5 => "md5",
            Checksum::Xxh64 => "xxh64",
            Checksum::Crc32 => "crc32",
        })
    }
}

impl std::str::FromStr for Checksum {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|sum| sum.to_string() == text);
        found.ok_or_else(|| "expected sha256, blake3, md5, xxh64 or crc32".to_string())
    }
}

#[cfg(test)]
mod tests {
    use inshore_store::{Budget, Cancel};

    use super::*;

    #[test]
    fn checksums_come_in_the_order_of_files_and_errors_are_per_file() {
        let folder = tempfile::tempdir().unwrap();
        let inputs: Vec<Input> =
            (0..20).map(|number| Input::new(folder.path().join(number.to_string()))).collect();
        for input in inputs.iter().filter(|input| !input.name().ends_with('7')) {
            std::fs::write(input.path().unwrap(), input.name()).unwrap();
        }
        let job = Context::new(Budget::new(8 << 20, 3), Cancel::default());
        let found = checksum_files(&job, Checksum::Crc32, &inputs);
        for (input, found) in inputs.iter().zip(found) {
            match found {
                Ok(sum) => {
                    let name = input.name();
                    assert_eq!(sum, Checksum::Crc32.of(&job, name, name.as_bytes()).unwrap());
                }
                Err(error) => assert!(error.to_string().contains("7: cannot open"), "{error}"),
            }
        }
        job.cancel().cancel();
        let stopped = checksum_files(&job, Checksum::Crc32, &inputs);
        assert!(stopped.into_iter().all(|found| found.unwrap_err().is_cancelled()));
    }

    #[test]
    fn checksum_lists_are_parsed_and_errors_name_the_line() {
        let read = |text: &str| listed_checksums(Path::new("sums"), text, Checksum::Crc32);
        let read_well = read("CBF43926  a b\n\n00000000 *c\n").unwrap();
        assert_eq!(read_well, [("a b".into(), "cbf43926".to_string()), ("c".into(), "00000000".to_string())]);
        assert!(
            read("cbf43926  a\ncbf4  b\n")
                .unwrap_err()
                .to_string()
                .starts_with("sums:2: expected a checksum")
        );
        assert!(read("\n").unwrap_err().to_string().contains("no checksum"));
    }

    /// The values are the published checksums of "abc" (FIPS 180-4, RFC 1321, the documents of BLAKE3 and xxHash),
    /// and of "123456789" for CRC-32.
    #[test]
    fn published_checksums_match() {
        let job = Context::new(Budget::new(8 << 20, 1), Cancel::default());
        let cases = [
            (Checksum::Sha256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (Checksum::Blake3, "abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (Checksum::Md5, "abc", "900150983cd24fb0d6963f7d28e17f72"),
            (Checksum::Xxh64, "abc", "44bc2cf5ad770999"),
            (Checksum::Crc32, "123456789", "cbf43926"),
        ];
        for (checksum, text, expected) in cases {
            assert_eq!(checksum.of(&job, "text", text.as_bytes()).unwrap(), expected, "{checksum}");
            assert_eq!(expected.len(), checksum.letters());
            let long = vec![b'a'; 3 * BLOCK_BYTES + 5];
            let once = checksum.of(&job, "text", &long[..]).unwrap();
            let pieces = (&long[..7]).chain(&long[7..]);
            assert_eq!(once, checksum.of(&job, "text", pieces).unwrap());
        }
    }
}
