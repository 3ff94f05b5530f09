//! Checksums of files, in the words of `sha256sum` and its kin.

use std::{
    fmt::{self, Display, Formatter, Write},
    hash::Hasher,
    io::Read,
};

use inshore_store::Job;
use md5::Md5;
use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

use crate::{Error, Result};

/// How bytes become a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256, as of `sha256sum`.
    Sha256,
    /// BLAKE3, as of `b3sum`.
    Blake3,
    /// MD5, as of `md5sum`: against accidents only.
    Md5,
    /// XXH64 with seed 0, as of `xxhsum -H64`: against accidents only.
    Xxh64,
    /// CRC-32 of IEEE 802.3, as in gzip: against accidents only.
    Crc32,
}

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 20;

impl Checksum {
    /// All of them.
    pub const ALL: [Checksum; 5] =
        [Checksum::Sha256, Checksum::Blake3, Checksum::Md5, Checksum::Xxh64, Checksum::Crc32];

    /// Letters of a checksum in hexadecimal.
    pub fn letters(self) -> usize {
        match self {
            Checksum::Sha256 | Checksum::Blake3 => 64,
            Checksum::Md5 => 32,
            Checksum::Xxh64 => 16,
            Checksum::Crc32 => 8,
        }
    }

    /// The checksum of all of `input`, called `name` in errors, in hexadecimal. Holds 1 MiB. About 1 to 2 GB/s with
    /// instructions for SHA, 3 and more with BLAKE3, XXH64 and CRC-32, 0.6 with MD5.
    ///
    /// # Errors
    /// [`Error::Input`]; [`Error::Store`] where the job was stopped.
    pub fn of(self, job: &Job, name: &str, input: impl Read) -> Result<String> {
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

fn each<S>(
    job: &Job,
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

    /// The published checksums of "abc": FIPS 180-4, RFC 1321, BLAKE3's and xxHash's own, and of "123456789" for CRC-32.
    #[test]
    fn published_checksums_come_out() {
        let job = Job::without_store(Budget::new(8 << 20, 1), Cancel::default());
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
