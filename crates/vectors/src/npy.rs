//! Reads the header of a NumPy array file (format versions 1 to 3, numpy.lib.format).
//!
//! ```text
//!   \x93NUMPY  version: 2 bytes  length: 2 bytes (version 1) or 4 bytes  text of this length
//!   text: {'descr': '<f4', 'fortran_order': False, 'shape': (1000, 128), }
//! ```

use crate::{Error, Result, element::FileElement};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The largest length of the text in a header, in bytes. For an array without named fields, the text has about 100
/// bytes.
const TEXT_BYTES_MAX: u32 = 64 << 10;

#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    pub element: FileElement,
    /// The number of vectors, and the number of dimensions.
    pub shape: (u64, u64),
    /// The offset of the first element in bytes.
    pub start: u64,
}

/// Reads a header. `read` returns the next bytes of the file. `bad` creates an error. Its arguments are the position of
/// the fault, the value that was found, and a description of the expected value.
pub(crate) fn header(
    mut read: impl FnMut(u64, &str) -> Result<Vec<u8>>,
    bad: &impl Fn(&'static str, String, &'static str) -> Error,
) -> Result<Header> {
    let start = read(8, "the header")?;
    if !start.starts_with(MAGIC) {
        return Err(bad("the magic", start[..6].escape_ascii().to_string(), "\\x93NUMPY"));
    }
    let width = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(bad("the version", version.to_string(), "1, 2 or 3")),
    };
    let mut length = read(width, "the length of the header")?;
    length.resize(4, 0);
    let length = u32::from_le_bytes(length[..4].try_into().expect("4 bytes"));
    if length > TEXT_BYTES_MAX {
        return Err(bad("the length of the header", format!("{length} bytes"), "at most 65536 bytes"));
    }
    let text = read(length.into(), "the header")?;
    let text = String::from_utf8_lossy(&text);
    let value = |key| value_of(&text, key).ok_or_else(|| bad(key, "nothing".to_string(), "a value"));
    let element = match value("descr")?.trim_matches(['\'', '"']) {
        "<f4" => FileElement::F32,
        "<f8" => FileElement::F64,
        "<i4" => FileElement::I32,
        "<f2" => FileElement::F16,
        // This is the bfloat16 type of the package ml_dtypes, which NumPy itself does not know.
        "<V2" | "|V2" => FileElement::Bf16,
        "|u1" | "<u1" | "u1" => FileElement::U8,
        "|i1" | "<i1" | "i1" => FileElement::I8,
        found => {
            return Err(bad("descr", found.to_string(), "<f4, <f8, <f2, <V2 (bfloat16), <i4, |u1 or |i1"));
        }
    };
    match value("fortran_order")? {
        "False" => {}
        found => return Err(bad("fortran_order", found.to_string(), "False: an array in C order")),
    }
    let shape = value("shape")?;
    let fail = || bad("shape", shape.to_string(), "(vectors, dimensions)");
    let inside = shape.strip_prefix('(').and_then(|shape| shape.strip_suffix(')')).ok_or_else(fail)?;
    let numbers = inside.split(',').map(str::trim).filter(|number| !number.is_empty()).map(str::parse::<u64>);
    let shape = match numbers.collect::<std::result::Result<Vec<_>, _>>().map_err(|_| fail())?[..] {
        [dimensions] => (1, dimensions),
        [count, dimensions] => (count, dimensions),
        _ => return Err(fail()),
    };
    Ok(Header { element, shape, start: 8 + width + u64::from(length) })
}

/// Returns the text of the value of a key. The value ends at the next comma or closing brace outside of parentheses.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let place = text.find(&format!("'{key}'")).or_else(|| text.find(&format!("\"{key}\"")))?;
    let rest = text[place + key.len() + 2..].trim_start().strip_prefix(':')?.trim_start();
    let mut depth = 0;
    let end = rest.find(|letter| {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        matches!(letter, ',' | '}') && depth == 0
    })?;
    Some(rest[..end].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Header> {
        let mut rest = bytes;
        let read = |count: u64, _: &str| {
            let (part, left) = rest.split_at((count as usize).min(rest.len()));
            rest = left;
            let short = Error::BadFile {
                file: "a.npy".into(),
                place: String::new(),
                found: "its end".into(),
                expected: String::new(),
            };
            if part.len() as u64 == count { Ok(part.to_vec()) } else { Err(short) }
        };
        header(read, &|place, found, expected| Error::BadFile {
            file: "a.npy".into(),
            place: place.into(),
            found,
            expected: expected.into(),
        })
    }

    fn of(text: &str) -> Vec<u8> {
        [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn headers_are_read_or_refused_by_name() {
        let good = of("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 128), }   \n");
        let header = parse(&good).unwrap();
        assert_eq!((header.element, header.shape), (FileElement::F32, (3, 128)));
        assert_eq!(header.start, good.len() as u64);
        let one = parse(&of("{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }")).unwrap();
        assert_eq!((one.element, one.shape), (FileElement::U8, (1, 7)));
        for (text, wanted) in [
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (3, 128), }", "descr: found >f4"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 128), }", "fortran_order: found True"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 1, 1), }", "shape: found (3, 1, 1)"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, -1), }", "shape: found (3, -1)"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1), }",
                "shape: found",
            ),
            ("{'descr': '<f4', 'fortran_order': False, ", "shape: found nothing"),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
                "descr: found [('a', '<f4')]",
            ),
            ("", "descr: found nothing"),
        ] {
            let error = parse(&of(text)).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let good = of("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 128), }");
        for end in 0..good.len() {
            assert!(parse(&good[..end]).is_err(), "{end}");
        }
        assert!(parse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").is_err());
    }
}
