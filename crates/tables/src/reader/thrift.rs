//! Parses the part of Thrift's compact protocol that is needed to check a Parquet file before the library reads it.
//!
//! The `parquet` crate allocates a page's stated size before it reads the page, and walks the schema by recursion
//! without a limit of depth. This module therefore reads two structures first. It reads the sizes in the header of a
//! page, and computes the depth of the schema in the footer. All other fields are skipped. Fields that are nested too
//! deeply are refused.
//!
//! ```text
//! struct: (delta of field id << 4 | type) value ... 00     integers: zigzag, 7 bits a byte, low bits first
//! list:   (length << 4 | type) values ...                  binary: length, bytes
//! ```

/// The deepest nesting that is parsed. The library has the same limit.
const DEPTH_MAX: usize = 64;

const BOOL_TRUE: u8 = 1;
const BOOL_FALSE: u8 = 2;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// The sizes in a page header (`PageHeader` and `DataPageHeaderV2` in parquet.thrift).
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PageHeader {
    /// The size of this header in the file, in bytes.
    pub header_bytes: usize,
    pub is_dictionary: bool,
    pub uncompressed_bytes: i32,
    pub compressed_bytes: i32,
    /// The size, in bytes, of the repetition and definition levels in a page of version 2. The levels precede the
    /// values and are never compressed. In pages of other versions, the size is 0.
    pub levels_bytes: i64,
    pub values_are_compressed: bool,
}

/// Reads the page header at the start of `bytes`. Returns `None` if the header is malformed or does not end within
/// `bytes`.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut input = Compact { bytes, at: 0 };
    let mut header = PageHeader { values_are_compressed: true, ..PageHeader::default() };
    let mut seen = 0u32;
    let mut last = 0;
    while let Some((id, kind)) = input.field(last)? {
        // If a field occurs twice, the library and this parser might use different values of the field. Repeated fields
        // are therefore refused.
        if id <= last {
            return None;
        }
        last = id;
        seen |= 1 << id.min(31);
        match id {
            1 => header.is_dictionary = input.integer()? == 2,
            2 => header.uncompressed_bytes = input.integer()?.try_into().ok()?,
            3 => header.compressed_bytes = input.integer()?.try_into().ok()?,
            8 => input.data_page_v2(kind, &mut header)?,
            _ => input.skip(kind, DEPTH_MAX)?,
        }
    }
    header.header_bytes = input.at;
    (seen & 0b1110 == 0b1110).then_some(header)
}

/// Returns how deeply the schema in a footer (`FileMetaData` in parquet.thrift) is nested. The root has depth 1.
/// Returns `None` if the footer is malformed.
pub(super) fn schema_depth(footer: &[u8]) -> Option<usize> {
    let mut input = Compact { bytes: footer, at: 0 };
    let mut depth = None;
    let mut last = 0;
    while let Some((id, kind)) = input.field(last)? {
        last = id;
        if id == 2 && kind == LIST && depth.is_none() {
            depth = Some(input.schema_depth()?);
        } else if id == 2 {
            return None;
        } else {
            input.skip(kind, DEPTH_MAX)?;
        }
    }
    depth
}

struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Compact<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the id and the type of the next field of a struct. Returns `Some(None)` at the end of the struct.
    fn field(&mut self, last: i64) -> Option<Option<(i64, u8)>> {
        let byte = self.byte()?;
        match (byte >> 4, byte & 15) {
            (_, 0) => Some(None),
            (0, kind) => Some(Some((self.integer()?, kind))),
            (delta, kind) => Some(Some((last.checked_add(delta.into())?, kind))),
        }
    }

    fn list(&mut self) -> Option<(u64, u8)> {
        let byte = self.byte()?;
        let length = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Some((length, byte & 15))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            BOOL_TRUE | BOOL_FALSE => {}
            3 => self.advance(1)?,
            4..=6 => _ = self.varint()?,
            7 => self.advance(8)?,
            8 => {
                let length = self.varint()?;
                self.advance(length)?;
            }
            9 | 10 => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth))?;
            }
            11 => {
                let length = self.varint()?;
                let kinds = if length > 0 { self.byte()? } else { 0 };
                (0..length).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })?;
            }
            STRUCT => {
                while let Some((_, kind)) = self.field(0)? {
                    self.skip(kind, depth)?;
                }
            }
            13 => self.advance(16)?,
            _ => return None,
        }
        Some(())
    }

    /// Skips an element of a list. A truth value in a list takes one byte. A truth value in a field takes no byte,
    /// since the type code of the field contains the value.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        if matches!(kind, BOOL_TRUE | BOOL_FALSE) { self.advance(1) } else { self.skip(kind, depth) }
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.bytes.len()).then(|| self.at = end)
    }

    fn data_page_v2(&mut self, kind: u8, header: &mut PageHeader) -> Option<()> {
        if kind != STRUCT {
            return None;
        }
        let mut last = 0;
        while let Some((id, kind)) = self.field(last)? {
            if id <= last {
                return None;
            }
            last = id;
            match id {
                5 | 6 => header.levels_bytes += i64::from(u32::try_from(self.integer()?).ok()?),
                7 => header.values_are_compressed = kind == BOOL_TRUE,
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        Some(())
    }

    /// Returns the depth of the schema tree. The tree is stored as a list of `SchemaElement`, each with the number of
    /// its children.
    fn schema_depth(&mut self) -> Option<usize> {
        let (length, kind) = self.list()?;
        if kind != STRUCT {
            return None;
        }
        // For each level above the current element, `open` holds how many children are still to come.
        let mut open: Vec<u64> = Vec::new();
        let mut deepest = 0;
        for _ in 0..length {
            let children = self.schema_element()?;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            open.push(children);
            deepest = deepest.max(open.len());
        }
        Some(deepest)
    }

    fn schema_element(&mut self) -> Option<u64> {
        let (mut children, mut last) = (0, 0);
        while let Some((id, kind)) = self.field(last)? {
            last = id;
            if id == 5 {
                children = u64::try_from(self.integer()?).ok()?;
            } else {
                self.skip(kind, DEPTH_MAX)?;
            }
        }
        Some(children)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 127 {
            bytes.push(value as u8 | 128);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// Encodes a page type, the uncompressed and compressed sizes, and a v1 data page header with statistics.
    fn header(uncompressed: i32, compressed: i32) -> Vec<u8> {
        let zigzag = |value: i32| varint(((value << 1) ^ (value >> 31)) as u32 as u64);
        let parts: [&[u8]; 9] = [
            &[0x15, 0],
            &[0x15],
            &zigzag(uncompressed),
            &[0x15],
            &zigzag(compressed),
            &[0x2c, 0x15, 20, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c],
            &[0x18, 3, b'm', b'a', b'x', 0],
            &[0],
            &[0],
        ];
        parts.concat()
    }

    #[test]
    fn the_sizes_of_a_page_are_read_from_its_header() {
        let bytes = header(1_000_000, 77);
        let found = page_header(&[&bytes[..], b"the page"].concat()).unwrap();
        assert_eq!((found.uncompressed_bytes, found.compressed_bytes), (1_000_000, 77));
        assert_eq!(found.header_bytes, bytes.len());
        for length in 0..bytes.len() {
            assert_eq!(page_header(&bytes[..length]), None, "cut at {length}");
        }
    }

    #[test]
    fn a_size_given_twice_is_refused() {
        let mut bytes = header(100, 77);
        bytes.pop();
        bytes.extend([0x05, 4, 2, 0]);
        assert_eq!(page_header(&bytes), None);
    }

    #[test]
    fn the_depth_of_a_schema_is_found_without_recursion() {
        let element = |children: u8| [0x48, 1, b'n', 0x15, children * 2, 0];
        let footer = |counts: &[u8]| {
            let mut bytes = vec![0x15, 2, 0x19, 0xfc];
            bytes.extend(varint(counts.len() as u64));
            counts.iter().for_each(|&count| bytes.extend(element(count)));
            bytes.push(0);
            bytes
        };
        assert_eq!(schema_depth(&footer(&[2, 0, 0])), Some(2));
        assert_eq!(schema_depth(&footer(&[2, 1, 0, 0])), Some(3));
        assert_eq!(schema_depth(&footer(&[1; 100_000])), Some(100_000));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (page_header(&bytes), schema_depth(&bytes));
        }
    }
}
