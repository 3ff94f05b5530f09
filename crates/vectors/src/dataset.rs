//! A dataset of vectors. `docs/format.md`, "Vectors", describes the layout.
//!
//! ```text
//!   vectors   the elements of all rows, without gaps; removed vectors keep their rows
//!   center    f32 for each dimension: the mean of the imported vectors, rounded       only f32, f16 and bf16
//!   removed   the numbers of the rows of removed vectors                              if any vector was removed
//!   id-runs   the ids of rows, as runs of consecutive rows with consecutive ids       if ids differ from row numbers
//!   columns.parquet, id-column: the columns of a table (`crate::columns`)             if imported from a table
//!   content   the settings from which vectors of queries are computed                 only images and documents
//! ```
//!
//! The id of a vector is its row number, counted from 0, until vectors are replaced or rows are compacted
//! ([`crate::ids`]). The file `center` stores a point near the data. It only helps the [filter](crate::filter) to
//! exclude pairs, and any other point near the data would serve this purpose, too. Answers do not depend on the center.

use inshore_store::{CheckedFile, Dataset, Store, format_bytes};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    Error, Result,
    element::{DIMENSIONS_MAX, Element},
    id_run::{ID_MAX, IdRun},
    text::counted,
};

/// The dataset kind of vectors.
pub(crate) const KIND: &str = "vectors";
pub(crate) const VECTORS: &str = "vectors";
pub(crate) const CENTER: &str = "center";
pub(crate) const REMOVED: &str = "removed";
pub(crate) const ID_RUNS: &str = "id-runs";
pub(crate) const COLUMNS: &str = "columns.parquet";
pub(crate) const ID_COLUMN: &str = "id-column";
pub(crate) const CONTENT: &str = "content";
/// The size of a checksum block in bytes. A search reads about 1 MiB at a time, and each read contains whole vectors.
/// The first and the last checksum block of a read are read as a whole. This adds at most two blocks to each read.
pub(crate) const CHECK_BYTES: usize = 16 << 10;
const MAGIC: [u8; 8] = *b"INSHVECT";
/// The version of a dataset from which no vector was removed, and whose ids are row numbers.
const VERSION: u32 = 1;
/// The version of a dataset whose attributes also contain the number of removed rows and other counts of changes.
const CHANGED_VERSION: u32 = 2;

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

/// The attributes that follow the header. They exist from version 2 on.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChangedHeader {
    removed: U64,
    next_id: U64,
    id_runs: U64,
}

const _: () = assert!(size_of::<ChangedHeader>() == 24);

/// The properties of a dataset of vectors.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct VectorsInfo {
    /// The name in the store.
    pub name: String,
    /// The number of rows. Removed vectors keep their rows until the dataset is compacted.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type.
    pub element: Element,
    /// The number of bytes that the dataset takes on flash.
    pub bytes: u64,
    /// The number of rows whose vectors were removed.
    pub removed: u64,
    /// The id that the next added vector gets. It is larger than all ids that the dataset has used.
    pub next_id: u64,
    /// The number of runs of ids. A run is a sequence of consecutive rows with consecutive ids. The number is 0 if the
    /// id of each vector is its row number.
    #[serde(skip)]
    pub(crate) id_runs: u64,
}

impl VectorsInfo {
    /// Creates the properties of vectors that were never changed.
    pub(crate) fn new(
        name: &str,
        vectors: u64,
        dimensions: usize,
        element: Element,
        bytes: u64,
    ) -> VectorsInfo {
        let (name, next_id) = (name.to_string(), vectors);
        VectorsInfo { name, vectors, dimensions, element, bytes, removed: 0, next_id, id_runs: 0 }
    }

    /// Returns the number of vectors that were not removed.
    pub fn live(&self) -> u64 {
        self.vectors - self.removed
    }

    /// Returns true if the attributes need the counts of changes.
    fn is_changed(&self) -> bool {
        (self.removed, self.next_id, self.id_runs) != (0, self.vectors, 0)
    }

    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let version = if self.is_changed() { CHANGED_VERSION } else { VERSION };
        let header = Header {
            magic: MAGIC,
            version: version.into(),
            element: self.element.code().into(),
            dimensions: (self.dimensions as u32).into(),
            reserved: 0.into(),
            count: self.vectors.into(),
        };
        let mut attributes = header.as_bytes().to_vec();
        if self.is_changed() {
            let (removed, next_id, id_runs) = (self.removed.into(), self.next_id.into(), self.id_runs.into());
            attributes.extend_from_slice(ChangedHeader { removed, next_id, id_runs }.as_bytes());
        }
        attributes
    }

    fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<VectorsInfo> {
        let bad = |what, found: String, expected: String| Error::BadDataset {
            name: name.to_string(),
            what,
            found,
            expected,
        };
        let wrong_length = |expected: usize| {
            bad("header", format!("{} bytes", attributes.len()), format!("{expected} bytes"))
        };
        let Ok((header, rest)) = Header::read_from_prefix(attributes) else {
            return Err(wrong_length(size_of::<Header>()));
        };
        if header.magic != MAGIC {
            let show = |magic: &[u8]| magic.escape_ascii().to_string();
            return Err(bad("magic", show(&header.magic), show(&MAGIC)));
        }
        let version = header.version.get();
        if version != VERSION && version != CHANGED_VERSION {
            let expected = format!(
                "{VERSION} or {CHANGED_VERSION}: import it again, or use the version of Inshore that wrote it"
            );
            return Err(bad("version", version.to_string(), expected));
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
        let info = VectorsInfo::new(name, vectors, dimensions, element, bytes);
        if version == VERSION {
            return if rest.is_empty() { Ok(info) } else { Err(wrong_length(size_of::<Header>())) };
        }
        let changed = ChangedHeader::read_from_bytes(rest)
            .map_err(|_| wrong_length(size_of::<Header>() + size_of::<ChangedHeader>()))?;
        let info = VectorsInfo {
            removed: changed.removed.get(),
            next_id: changed.next_id.get(),
            id_runs: changed.id_runs.get(),
            ..info
        };
        if info.removed > vectors {
            return Err(bad("removed vectors", info.removed.to_string(), format!("at most {vectors}")));
        }
        if info.next_id > ID_MAX + 1 || info.next_id < info.live() {
            let expected = format!("{} to {}", info.live(), ID_MAX + 1);
            return Err(bad("next id", info.next_id.to_string(), expected));
        }
        if info.id_runs > vectors {
            return Err(bad("runs of ids", info.id_runs.to_string(), format!("at most {vectors}")));
        }
        Ok(info)
    }

    /// Returns the number of bytes of a vector.
    pub(crate) fn row_bytes(&self) -> usize {
        self.element.row_bytes(self.dimensions)
    }
}

impl std::fmt::Display for VectorsInfo {
    /// Writes a summary of one line.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let VectorsInfo { name, dimensions, element, bytes, .. } = self;
        let vectors = counted(self.live(), "vector");
        write!(out, "{name}: {vectors} of {dimensions} {element}, {}", format_bytes(*bytes))
    }
}

/// A dataset of vectors whose files stay open. Later changes of the store do not affect it.
#[derive(Clone, Debug)]
pub struct Vectors {
    info: VectorsInfo,
    id: u64,
    /// The id of the first row. For a shard, this id is the number of rows in all earlier shards. Otherwise it is 0.
    pub(crate) first_id: u64,
    pub(crate) file: CheckedFile,
    pub(crate) center: Option<CheckedFile>,
    pub(crate) removed: Option<CheckedFile>,
    pub(crate) id_runs: Option<CheckedFile>,
    /// The file with the columns of the table from which the vectors were imported. The next field is the file with the
    /// name of the column of ids.
    pub(crate) columns: Option<CheckedFile>,
    pub(crate) id_column: Option<CheckedFile>,
    pub(crate) content: Option<CheckedFile>,
}

impl Vectors {
    /// Opens the vectors `name`.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`Error::BadDataset`] if the dataset does not hold vectors, or is damaged.
    pub fn open(store: &Store, name: &str) -> Result<Vectors> {
        Vectors::of(&store.dataset(name)?)
    }

    /// Opens the vectors of a dataset.
    ///
    /// # Errors
    /// Returns [`Error::BadDataset`] if the dataset does not hold vectors, or is damaged.
    pub(crate) fn of(dataset: &Dataset) -> Result<Vectors> {
        let name = dataset.name();
        if dataset.kind() != KIND {
            let (found, expected) = (dataset.kind().to_string(), KIND.to_string());
            return Err(Error::BadDataset { name: name.to_string(), what: "kind", found, expected });
        }
        let info = VectorsInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        let file = file_of(dataset, VECTORS, info.vectors * info.row_bytes() as u64)?;
        let center = match info.element {
            Element::F32 | Element::F16 | Element::Bf16 => {
                Some(file_of(dataset, CENTER, info.dimensions as u64 * 4)?)
            }
            Element::U8 | Element::I8 | Element::Bits => None,
        };
        let optional =
            |name, len: u64| if len == 0 { Ok(None) } else { file_of(dataset, name, len).map(Some) };
        let removed = optional(REMOVED, 8 * info.removed)?;
        let id_runs = optional(ID_RUNS, IdRun::BYTES * info.id_runs)?;
        let (columns, id_column) = (dataset.file(COLUMNS), dataset.file(ID_COLUMN));
        let content = dataset.file(CONTENT);
        let first_id = 0;
        Ok(Vectors {
            info,
            id: dataset.id(),
            first_id,
            file,
            center,
            removed,
            id_runs,
            columns,
            id_column,
            content,
        })
    }

    /// Creates the description of vectors whose files are written but not yet published.
    pub(crate) fn unpublished(
        info: VectorsInfo,
        id: u64,
        file: CheckedFile,
        center: Option<CheckedFile>,
        id_runs: Option<CheckedFile>,
    ) -> Vectors {
        Vectors {
            info,
            id,
            first_id: 0,
            file,
            center,
            removed: None,
            id_runs,
            columns: None,
            id_column: None,
            content: None,
        }
    }

    /// Returns the vectors of a shard. The ids of its rows are consecutive and begin with `first_id`.
    ///
    /// # Errors
    /// Returns [`Error::BadDataset`] if the check blocks of the file are larger than those of a dataset of vectors. The
    /// read buffers have room only for the latter.
    pub(crate) fn shard(info: VectorsInfo, first_id: u64, file: &CheckedFile) -> Result<Vectors> {
        if file.block_bytes() > CHECK_BYTES {
            return Err(Error::BadDataset {
                name: file.name().to_string(),
                what: "check blocks",
                found: format_bytes(file.block_bytes() as u64),
                expected: format!("at most {}", format_bytes(CHECK_BYTES as u64)),
            });
        }
        Ok(Vectors { first_id, ..Vectors::unpublished(info, 0, file.clone(), None, None) })
    }

    /// Returns the random id of the dataset. A later dataset of the same name has another id; vectors that are added,
    /// replaced or removed do not change it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if the ids of vectors are the values of a column.
    pub fn has_id_column(&self) -> bool {
        self.id_column.is_some()
    }

    /// Returns the properties of the vectors.
    pub fn info(&self) -> &VectorsInfo {
        &self.info
    }
}

/// Returns a file of a dataset, and checks that the file has `len` bytes.
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
        VectorsInfo::new("sift", 1000, 128, Element::U8, 128_000)
    }

    /// The format must not change, because all later versions must be able to read a dataset with this header.
    #[test]
    fn the_header_has_these_bytes() {
        let expected = b"INSHVECT\x01\0\0\0\x02\0\0\0\x80\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0";
        assert_eq!(info().to_attributes(), expected);
        assert_eq!(VectorsInfo::from_attributes("sift", 128_000, expected).unwrap(), info());
        assert_eq!(Element::ALL.map(Element::code), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn the_header_of_changed_vectors_has_these_bytes() {
        let changed = VectorsInfo { removed: 3, next_id: 1002, id_runs: 2, ..info() };
        let base = b"INSHVECT\x02\0\0\0\x02\0\0\0\x80\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0";
        let counts = b"\x03\0\0\0\0\0\0\0\xea\x03\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        assert_eq!(changed.to_attributes(), [&base[..], counts].concat());
        let read = |info: &VectorsInfo| VectorsInfo::from_attributes("sift", 128_000, &info.to_attributes());
        assert_eq!(read(&changed).unwrap(), changed);
        let refused = |info: VectorsInfo| read(&info).unwrap_err().to_string();
        let more = refused(VectorsInfo { removed: 1001, ..changed.clone() });
        assert!(more.contains("removed vectors: found 1001, expected at most 1000"), "{more}");
        assert!(refused(VectorsInfo { next_id: 996, ..changed.clone() }).contains("next id: found 996"));
        assert!(refused(VectorsInfo { next_id: u64::MAX, ..changed.clone() }).contains("next id"));
        assert!(refused(VectorsInfo { id_runs: 1001, ..changed }).contains("runs of ids: found 1001"));
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
        assert!(change(8, 3).contains("version: found 3, expected 1 or 2: import it again"));
        assert!(change(8, 2).contains("header: found 32 bytes, expected 56 bytes"));
        assert!(change(12, 9).contains("element: found 9"));
        assert!(change(16, 0).contains("dimensions: found 0"));
        let bits = VectorsInfo { element: Element::Bits, dimensions: 65_535, ..info() }.to_attributes();
        let error = VectorsInfo::from_attributes("sift", 0, &bits).unwrap_err().to_string();
        assert!(error.contains("found 65535, expected a multiple of 8"), "{error}");
        assert!(change(31, 255).contains("vectors"));
        assert!(VectorsInfo::from_attributes("sift", 0, &good[..31]).is_err());
    }
}
