//! The file `content` of a dataset. It stores the kind of content (images or documents) from which the vectors were
//! computed, and for documents also the vocabulary. `docs/format.md`, "Vectors", describes the layout.

use inshore_store::{CheckedFile, FileReader, FileWriter, Job};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::Vocabulary;
use crate::{
    Error, Result, Vectors, VectorsInfo,
    dataset::{CHECK_BYTES, CONTENT},
};

const MAGIC: [u8; 8] = *b"INSHCONT";
const VERSION: u32 = 1;
const IMAGES: u32 = 1;
const DOCUMENTS: u32 = 2;
/// The largest total length of all words, in bytes.
const WORDS_BYTES_MAX: u64 = 64 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    words_bytes: U64,
}

const _: () = assert!(size_of::<Header>() == 24);

/// The content from which the vectors of a dataset were computed.
#[derive(Debug)]
pub enum Content {
    /// Images. A vector is a joint histogram with 256 bins. Each element is the fraction of the image's pixels in one
    /// bin.
    Images,
    /// Documents. Each element of a vector states how often a word of the vocabulary occurs in the document.
    Documents(Vocabulary),
}

/// Writes the header and the words. A line feed follows each word.
pub(super) fn write_content(writer: &mut FileWriter, vocabulary: Option<&Vocabulary>) -> Result<()> {
    let words = vocabulary.map_or(&[][..], Vocabulary::words);
    let header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        kind: if vocabulary.is_some() { DOCUMENTS } else { IMAGES }.into(),
        words_bytes: words.iter().map(|word| word.len() as u64 + 1).sum::<u64>().into(),
    };
    writer.write(header.as_bytes())?;
    for word in words {
        writer.write(word.as_bytes())?;
        writer.write(b"\n")?;
    }
    Ok(())
}

impl Vectors {
    /// Returns the content from which the vectors were computed, or `None` if the vectors were imported from a file of
    /// vectors.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the file `content` is damaged or has an unknown version.
    /// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn content(&self, job: &Job) -> Result<Option<Content>> {
        self.content.as_ref().map(|file| read_content(job, self.info(), file)).transpose()
    }
}

/// Reads the file `content` of the vectors `info`.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the version is unknown, or if the number of words is not the number of
///   dimensions.
/// - Returns [`Error::Store`] if stored bytes are damaged, a read or write fails, or the budget has too little free
///   memory.
fn read_content(job: &Job, info: &VectorsInfo, file: &CheckedFile) -> Result<Content> {
    let bad = |what, found: String, expected: String| Error::BadDataset {
        name: format!("{}/{CONTENT}", info.name),
        what,
        found,
        expected,
    };
    let len = file.len();
    if len > WORDS_BYTES_MAX + size_of::<Header>() as u64 {
        return Err(bad("length", format!("{len} bytes"), format!("at most {WORDS_BYTES_MAX}")));
    }
    let _memory = job.budget().reserve(2 * len, "the vocabulary")?;
    let mut bytes = Vec::with_capacity(len as usize);
    let mut reader = FileReader::new(job, file, 0..len, CHECK_BYTES.max(file.block_bytes()))?;
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    let Ok((header, words)) = Header::read_from_prefix(&bytes) else {
        return Err(bad("length", format!("{len} bytes"), format!("at least {}", size_of::<Header>())));
    };
    if header.magic != MAGIC || header.version != VERSION {
        let found = format!("{} {}", header.magic.escape_ascii(), header.version);
        return Err(bad("magic and version", found, format!("{} {VERSION}", MAGIC.escape_ascii())));
    }
    if header.words_bytes != words.len() as u64 {
        return Err(bad("length", format!("{} bytes", words.len()), format!("{} bytes", header.words_bytes)));
    }
    match header.kind.get() {
        IMAGES => Ok(Content::Images),
        DOCUMENTS => {
            let words = std::str::from_utf8(words)
                .map_err(|error| bad("words", error.to_string(), "UTF-8".to_string()))?;
            let words: Vec<Box<str>> = words.split_terminator('\n').map(Box::from).collect();
            let (count, expected) = (words.len(), format!("{} distinct words", info.dimensions));
            match Vocabulary::new(job.budget(), words)? {
                Some(vocabulary) if count == info.dimensions => Ok(Content::Documents(vocabulary)),
                _ => Err(bad("words", format!("{count} words"), expected)),
            }
        }
        kind => Err(bad("kind", kind.to_string(), format!("{IMAGES} (images) or {DOCUMENTS} (documents)"))),
    }
}
