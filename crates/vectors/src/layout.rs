//! Describes the vectors of a spread file. A spread file consists of shards, which are distributed over nodes
//! (`crate::shards`).

use serde::{Deserialize, Serialize};

use crate::{
    Element, Error, Result,
    dataset::{CHECK_BYTES, VectorsInfo},
};

/// The current version of the layout.
pub(crate) const LAYOUT_VERSION: u32 = 1;

/// The description of the vectors of a spread file. The map of the file, which the nodes store, contains the
/// description as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorLayout {
    /// The kind of the bytes: `vectors`.
    pub kind: LayoutKind,
    /// The version of the layout: 1.
    pub version: u32,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
}

/// The kind of the bytes of a spread file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// The bytes are vectors, one row after the other.
    Vectors,
}

impl VectorLayout {
    /// The size of the check blocks of shards, in bytes.
    pub const BLOCK_BYTES: u64 = CHECK_BYTES as u64;

    /// Returns the layout of vectors with this element type and this number of dimensions.
    pub fn new(element: Element, dimensions: usize) -> VectorLayout {
        VectorLayout { kind: LayoutKind::Vectors, version: LAYOUT_VERSION, element, dimensions }
    }

    /// Returns the number of bytes of a vector.
    pub fn row_bytes(self) -> usize {
        self.element.row_bytes(self.dimensions)
    }

    /// Returns the number of bytes of a query.
    pub fn query_bytes(self) -> usize {
        self.element.queried().row_bytes(self.dimensions)
    }

    /// Checks the version and the number of dimensions.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`] if the version is unknown or the number of dimensions is out of range.
    pub fn check(self) -> Result<()> {
        let bad = |option, found: String, expected: String| Err(Error::BadOption { option, found, expected });
        let most = self.element.dimensions_max();
        match self.dimensions {
            _ if self.version != LAYOUT_VERSION => {
                bad("version", self.version.to_string(), LAYOUT_VERSION.to_string())
            }
            dimensions if dimensions == 0 || dimensions > most => {
                bad("dimensions", dimensions.to_string(), format!("1 to {most}"))
            }
            dimensions if self.element == Element::Bits && dimensions % 8 != 0 => {
                bad("dimensions", dimensions.to_string(), "a multiple of 8 for bits".to_string())
            }
            _ => Ok(()),
        }
    }

    /// Returns the properties of vectors that take `bytes` bytes. Error messages call these vectors `name`.
    ///
    /// # Errors
    /// - Returns the errors of [`VectorLayout::check`].
    /// - Returns [`Error::BadDataset`] if `bytes` is 0 or not a multiple of the size of a vector.
    pub fn info(self, name: &str, bytes: u64) -> Result<VectorsInfo> {
        self.check()?;
        let row_bytes = self.row_bytes() as u64;
        if bytes == 0 || !bytes.is_multiple_of(row_bytes) {
            return Err(Error::BadDataset {
                name: name.to_string(),
                what: "length",
                found: format!("{bytes} bytes"),
                expected: format!("a multiple of {row_bytes} bytes, those of a vector"),
            });
        }
        Ok(VectorsInfo::new(name, bytes / row_bytes, self.dimensions, self.element, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes store the description, so later versions must read the descriptions that this version writes.
    #[test]
    fn the_layout_is_checked_before_it_is_used() {
        let layout = VectorLayout::new(Element::Bf16, 100);
        assert_eq!((layout.row_bytes(), layout.info("some", 1000).unwrap().vectors), (200, 5));
        let refused = |layout: VectorLayout, bytes| layout.info("some", bytes).unwrap_err().to_string();
        let error = refused(layout, 1001);
        assert!(
            error.contains("some: length: found 1001 bytes, expected a multiple of 200 bytes"),
            "{error}"
        );
        assert!(refused(layout, 0).contains("found 0 bytes"));
        let error = refused(VectorLayout { version: 2, ..layout }, 1000);
        assert!(error.contains("version is 2: expected 1"), "{error}");
        assert!(refused(VectorLayout { dimensions: 0, ..layout }, 1000).contains("dimensions is 0"));
        let wide = VectorLayout { dimensions: usize::MAX, ..layout };
        assert!(refused(wide, 1000).contains("expected 1 to 32768"));
        let bits = VectorLayout { element: Element::Bits, dimensions: 9, ..layout };
        assert!(refused(bits, 1000).contains("dimensions is 9: expected a multiple of 8 for bits"));
    }
}
