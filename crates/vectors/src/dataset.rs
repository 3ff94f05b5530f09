//! A dataset of vectors. Layout: `docs/format.md`, "Vectors".
//!
//! ```text
//!   vectors   the elements of all vectors, in the order of their ids, without gaps
//!   center    f32 for each dimension: the mean of all vectors, rounded       f32, f16 and bf16 only
//!   content   what queries of images or documents need                       vectors of images or documents only
//! ```
//!
//! The id of a vector is its number, from 0. The center does not affect the answers: with any point near the data the
//! [filter](crate::filter) excludes most pairs.

use inshore_store::{CheckedFile, Dataset, Job, Store, format_bytes};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    Content, Error, Result,
    content::{CONTENT, read_content},
    element::{DIMENSIONS_MAX, Element},
};

/// The dataset kind of vectors.
pub(crate) const KIND: &str = "vectors";
pub(crate) const VECTORS: &str = "vectors";
pub(crate) const CENTER: &str = "center";
const MAGIC: [u8; 8] = *b"INSHVECT";
const VERSION: u32 = 1;

/// The attributes of a dataset of vectors.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    element: U32,
    dimensions: U32,
    reserved: U32,
    count: U64,
}

const _: () = assert!(size_of::<Header>() == 32);

/// Lists the properties of a dataset of vectors.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct VectorsInfo {
    /// Name in the store.
    pub name: String,
    /// Number of vectors.
    pub vectors: u64,
    /// Number of dimensions.
    pub dimensions: usize,
    /// Type of the elements.
    pub element: Element,
    /// Bytes on flash.
    pub bytes: u64,
}

impl VectorsInfo {
    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            element: self.element.code().into(),
            dimensions: (self.dimensions as u32).into(),
            reserved: 0.into(),
            count: self.vectors.into(),
        };
        header.as_bytes().to_vec()
    }

    fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<VectorsInfo> {
        let bad = |what, found: String, expected: String| Error::BadDataset {
            name: name.to_string(),
            what,
            found,
            expected,
        };
        let Ok(header) = Header::read_from_bytes(attributes) else {
            let (found, expected) = (attributes.len(), size_of::<Header>());
            return Err(bad("header", format!("{found} bytes"), format!("{expected} bytes")));
        };
        if header.magic != MAGIC {
            let show = |magic: &[u8]| magic.escape_ascii().to_string();
            return Err(bad("magic", show(&header.magic), show(&MAGIC)));
        }
        if header.version != VERSION {
            let expected = format!("{VERSION}: import it again, or use the version of Inshore that wrote it");
            return Err(bad("version", header.version.to_string(), expected));
        }
        let code = header.element.get();
        let element = Element::of_code(code).ok_or_else(|| {
            bad(
                "element",
                code.to_string(),
                "1 (f32), 2 (u8), 3 (i8), 4 (f16), 5 (bf16) or 6 (bits)".to_string(),
            )
        })?;
        let dimensions = header.dimensions.get() as usize;
        let most = element.dimensions_max();
        if dimensions == 0 || dimensions > most {
            return Err(bad("dimensions", dimensions.to_string(), format!("1 to {most}")));
        }
        if element == Element::Bits && !dimensions.is_multiple_of(8) {
            return Err(bad("dimensions", dimensions.to_string(), "a multiple of 8 for bits".to_string()));
        }
        let vectors = header.count.get();
        if vectors == 0 || vectors > u64::MAX / (4 * DIMENSIONS_MAX as u64) {
            return Err(bad("vectors", vectors.to_string(), "at least 1".to_string()));
        }
        Ok(VectorsInfo { name: name.to_string(), vectors, dimensions, element, bytes })
    }

    /// Returns the number of bytes of a vector.
    pub(crate) fn row_bytes(&self) -> usize {
        self.element.row_bytes(self.dimensions)
    }
}

impl std::fmt::Display for VectorsInfo {
    /// Writes one line for people.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let VectorsInfo { name, vectors, dimensions, element, bytes } = self;
        write!(out, "{name}: {vectors} vectors of {dimensions} {element}, {}", format_bytes(*bytes))
    }
}

/// Reads a dataset of vectors whose files stay open: later changes of the store do not touch it.
#[derive(Clone, Debug)]
pub struct Vectors {
    info: VectorsInfo,
    id: u64,
    pub(crate) file: CheckedFile,
    pub(crate) center: Option<CheckedFile>,
    content: Option<CheckedFile>,
}

impl Vectors {
    /// Opens the vectors `name`.
    ///
    /// # Errors
    /// [`inshore_store::Error::NotFound`]; [`Error::BadDataset`] if the dataset holds no vectors or is damaged.
    pub fn open(store: &Store, name: &str) -> Result<Vectors> {
        let dataset = store.dataset(name)?;
        if dataset.kind() != KIND {
            let (found, expected) = (dataset.kind().to_string(), KIND.to_string());
            return Err(Error::BadDataset { name: name.to_string(), what: "kind", found, expected });
        }
        let info = VectorsInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        let file = file_of(&dataset, VECTORS, info.vectors * info.row_bytes() as u64)?;
        let center = match info.element {
            Element::F32 | Element::F16 | Element::Bf16 => {
                Some(file_of(&dataset, CENTER, info.dimensions as u64 * 4)?)
            }
            Element::U8 | Element::I8 | Element::Bits => None,
        };
        Ok(Vectors { info, id: dataset.id(), file, center, content: dataset.file(CONTENT) })
    }

    /// Returns the random id of the dataset. A later dataset of the same name has another id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the content from which the vectors were computed; `None` for vectors of a file.
    ///
    /// # Errors
    /// [`Error::BadDataset`] for damage and other versions; I/O; too little memory.
    pub fn content(&self, job: &Job) -> Result<Option<Content>> {
        self.content.as_ref().map(|file| read_content(job, &self.info, file)).transpose()
    }

    /// Returns the properties of the vectors.
    pub fn info(&self) -> &VectorsInfo {
        &self.info
    }
}

/// Returns a file of a dataset whose length must be `len` bytes.
pub(crate) fn file_of(dataset: &Dataset, name: &str, len: u64) -> Result<CheckedFile> {
    let bad = |what, found| Error::BadDataset {
        name: format!("{}/{name}", dataset.name()),
        what,
        found,
        expected: format!("{len} bytes"),
    };
    let file = dataset.file(name).ok_or_else(|| bad("file", "no such file".to_string()))?;
    match file.len() == len {
        true => Ok(file),
        false => Err(bad("length", format!("{} bytes", file.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> VectorsInfo {
        VectorsInfo {
            name: "sift".into(),
            vectors: 1000,
            dimensions: 128,
            element: Element::U8,
            bytes: 128_000,
        }
    }

    /// The format is frozen: a dataset of today must be readable for ever.
    #[test]
    fn the_header_has_these_bytes() {
        let expected = b"INSHVECT\x01\0\0\0\x02\0\0\0\x80\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0";
        assert_eq!(info().to_attributes(), expected);
        assert_eq!(VectorsInfo::from_attributes("sift", 128_000, expected).unwrap(), info());
        assert_eq!(Element::ALL.map(Element::code), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_header_of_another_format_is_refused_by_name() {
        let good = info().to_attributes();
        let change = |place: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[place] = byte;
            VectorsInfo::from_attributes("sift", 0, &bytes).unwrap_err().to_string()
        };
        assert!(change(0, b'X').contains("magic"));
        assert!(change(8, 2).contains("version: found 2, expected 1: import it again"));
        assert!(change(12, 9).contains("element: found 9"));
        assert!(change(16, 0).contains("dimensions: found 0"));
        let bits = VectorsInfo { element: Element::Bits, dimensions: 65_535, ..info() }.to_attributes();
        let error = VectorsInfo::from_attributes("sift", 0, &bits).unwrap_err().to_string();
        assert!(error.contains("found 65535, expected a multiple of 8"), "{error}");
        assert!(change(31, 255).contains("vectors"));
        assert!(VectorsInfo::from_attributes("sift", 0, &good[..31]).is_err());
    }
}
