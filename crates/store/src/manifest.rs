//! What a dataset consists of, as one small checked file. Layout: `docs/format.md`, "Manifest".

use std::path::Path;

use crate::{Error, PAGE_BYTES, Result};

const MAGIC: &[u8; 8] = b"INSHDATA";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
/// No manifest of a dataset that this version can hold is larger.
const BYTES_MAX: u64 = 1 << 30;

/// One file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its name in the dataset's folder.
    pub name: String,
    /// Bytes of data, without padding and checksum pages.
    pub len: u64,
    /// The unit of checking.
    pub block_bytes: u32,
    /// The CRC-32 of each checksum page.
    pub roots: Vec<u32>,
}

/// What a dataset consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Which crate's format it is in ("graph").
    pub kind: String,
    /// That crate's own header.
    pub attributes: Vec<u8>,
    /// Its files.
    pub files: Vec<FileRecord>,
}

impl Manifest {
    /// The manifest as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_bytes(&mut body, self.kind.as_bytes());
        put_bytes(&mut body, &self.attributes);
        put_u32(&mut body, self.files.len());
        for file in &self.files {
            put_bytes(&mut body, file.name.as_bytes());
            body.extend(file.len.to_le_bytes());
            body.extend(file.block_bytes.to_le_bytes());
            put_u32(&mut body, file.roots.len());
            file.roots.iter().for_each(|root| body.extend(root.to_le_bytes()));
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crc32fast::hash(&body).to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// Reads `bytes` of the file at `path`.
    ///
    /// # Errors
    /// [`Error::BadFormat`] for another magic, version, length, checksum or structure.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Manifest> {
        let bad = |what, found: String, expected: String| Error::BadFormat {
            path: path.to_path_buf(),
            what,
            found,
            expected,
        };
        if bytes.len() < HEADER_BYTES {
            let expected = format!("at least {HEADER_BYTES} bytes");
            return Err(bad("length", format!("{} bytes", bytes.len()), expected));
        }
        let (header, body) = bytes.split_at(HEADER_BYTES);
        let mut header = Cursor(header);
        let magic = header.take(8).expect("a whole header");
        if magic != MAGIC {
            let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
            return Err(bad("magic", show(magic), show(MAGIC)));
        }
        let version = header.u32().expect("a whole header");
        if version != VERSION {
            return Err(bad("version", version.to_string(), VERSION.to_string()));
        }
        let (sum, len) = (header.u32().expect("a whole header"), header.u64().expect("a whole header"));
        if len != body.len() as u64 {
            return Err(bad("length", format!("{} bytes", body.len()), format!("{len} bytes")));
        }
        let found = crc32fast::hash(body);
        if found != sum {
            return Err(bad("checksum", format!("{found:08x}"), format!("{sum:08x}")));
        }
        parse_body(body)
            .ok_or_else(|| bad("structure", "a broken one".into(), "kind, attributes, files".into()))
    }

    /// Reads the manifest at `path`.
    pub(crate) fn read(path: &Path) -> Result<Manifest> {
        let len = std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?.len();
        if len > BYTES_MAX {
            return Err(Error::BadFormat {
                path: path.to_path_buf(),
                what: "length",
                found: format!("{len} bytes"),
                expected: format!("at most {BYTES_MAX} bytes"),
            });
        }
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        Manifest::decode(path, &bytes)
    }
}

fn put_u32(bytes: &mut Vec<u8>, value: usize) {
    bytes.extend(u32::try_from(value).expect("a part of a manifest under 4 GiB").to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put_u32(bytes, part.len());
    bytes.extend(part);
}

fn parse_body(body: &[u8]) -> Option<Manifest> {
    let mut body = Cursor(body);
    let kind = body.string()?;
    let attributes = body.bytes()?.to_vec();
    let count = body.u32()?;
    let mut files = Vec::new();
    for _ in 0..count {
        let (name, len, block_bytes, roots) = (body.string()?, body.u64()?, body.u32()?, body.u32()?);
        let roots = body.take(roots as usize * 4)?;
        let roots = roots.chunks_exact(4).map(|root| u32::from_le_bytes(root.try_into().expect("4 bytes")));
        let file = FileRecord { name, len, block_bytes, roots: roots.collect() };
        if !is_sound(&file) {
            return None;
        }
        files.push(file);
    }
    body.0.is_empty().then_some(Manifest { kind, attributes, files })
}

/// Whether the numbers fit together, so that no later arithmetic on them can go wrong.
fn is_sound(file: &FileRecord) -> bool {
    let block = file.block_bytes as usize;
    if block == 0 || !block.is_multiple_of(PAGE_BYTES) || file.len > 1 << 62 || file.name.contains('/') {
        return false;
    }
    let blocks = file.len.div_ceil(block as u64);
    file.roots.len() as u64 == blocks.div_ceil(PAGE_BYTES as u64 / 4)
}

/// Reads little-endian parts; `None` where they run out.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Manifest {
        let file = |name: &str, len, roots| FileRecord { name: name.into(), len, block_bytes: 4096, roots };
        Manifest {
            kind: "test".into(),
            attributes: vec![1, 2, 3],
            files: vec![file("a", 5000, vec![7]), file("b", 0, vec![]), file("c", 4096 * 1025, vec![1, 2])],
        }
    }

    #[test]
    fn a_manifest_survives_encoding() {
        let manifest = example();
        assert_eq!(Manifest::decode(Path::new("m"), &manifest.encode()).unwrap(), manifest);
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let bytes = example().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(Path::new("m"), &damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Manifest::decode(Path::new("m"), &bytes[..len]).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_hostile_body_with_a_right_checksum_never_panics(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = Vec::new();
            bytes.extend(MAGIC);
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(crc32fast::hash(&body).to_le_bytes());
            bytes.extend((body.len() as u64).to_le_bytes());
            bytes.extend(body);
            let _ = Manifest::decode(Path::new("m"), &bytes);
        }
    }
}
