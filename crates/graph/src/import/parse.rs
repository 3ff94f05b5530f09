//! Lines of text: SNAP and LDBC edge lists, LDBC vertices, Matrix Market.
//!
//! The calling thread reads and cuts the input into blocks of whole lines; each lane's thread parses one block
//! after the other into its lane.

use std::sync::atomic::{AtomicU64, Ordering};

use inshore_store::Job;
use inshore_tables::{Input, LineBlock, LineBlocks};

use super::lane::{Lane, Lanes};
use crate::{Error, Result, csr::EdgeOperation, graph::VERTICES_MAX};

const TWO_IDS: &str = "two vertex ids";
const WITH_WEIGHT: &str = "two vertex ids and a finite weight";
/// Fields of a line of an edge list: two ids, and perhaps a weight and a time.
const FIELDS_MAX: usize = 4;
const ID_RANGE: &str = "an id from 0 to 18446744073709551615";

/// An edge list: `source destination [weight]`.
pub(super) fn text<E: EdgeOperation>(job: &Job, input: &Input, lanes: &mut Lanes<E>) -> Result<()> {
    let weighted = E::WEIGHTED;
    each_line(job, input, lanes, |lane, _, line| {
        let mut fields = Fields(line);
        let expected = if weighted { WITH_WEIGHT } else { TWO_IDS };
        let (source, destination) = (fields.id(expected)?, fields.id(expected)?);
        let weight = if weighted { fields.weight(expected)? } else { 1.0 };
        if !fields.0.is_empty() && fields.count() > FIELDS_MAX - 2 - weighted as usize {
            return Err(Bad { expected: format!("at most {FIELDS_MAX} fields"), found: None }.into());
        }
        Ok(lane.edge(source, destination, weight)?)
    })
}

/// LDBC vertices: an id, and perhaps properties, on each line.
pub(super) fn vertices<E: EdgeOperation>(job: &Job, input: &Input, lanes: &mut Lanes<E>) -> Result<()> {
    each_line(job, input, lanes, |lane, _, line| Ok(lane.vertex(Fields(line).id("a vertex id")?)?))
}

/// Whether the first edge of an input has a third column.
pub(super) fn has_third_column(job: &Job, input: &Input) -> Result<bool> {
    let mut blocks = LineBlocks::new(input.open(job.budget())?, 64 << 10);
    while let Some(block) = blocks.next_block(Vec::new())? {
        if let Some((_, line)) = block.lines().find(|(_, line)| !is_comment(line)) {
            return Ok(line.split(|&byte| is_separator(byte)).filter(|field| !field.is_empty()).count() > 2);
        }
    }
    Ok(false)
}

/// The first lines of a Matrix Market file.
#[derive(Debug, PartialEq)]
pub(super) struct MatrixHeader {
    pub symmetric: bool,
    pub weighted: bool,
    /// Rows or columns, whichever are more: the ids are 1 to this.
    vertices: u64,
    entries: u64,
    /// The line with these numbers.
    line: u64,
}

/// Reads the header of a Matrix Market file: coordinates, of a general or symmetric matrix of numbers or of no
/// values.
pub(super) fn matrix_header(job: &Job, input: &Input) -> Result<MatrixHeader> {
    let mut blocks = LineBlocks::new(input.open(job.budget())?, 64 << 10);
    let bad = |line: u64, found: &[u8], expected: &str| {
        bad_line(input, line, Bad { expected: expected.into(), found: Some(shown(found)) })
    };
    let mut banner: Option<(bool, bool)> = None;
    while let Some(block) = blocks.next_block(Vec::new())? {
        for (number, line) in block.lines() {
            let Some((symmetric, weighted)) = banner else {
                banner = Some(parse_banner(line).ok_or_else(|| {
                    bad(
                        number,
                        line,
                        "'%%MatrixMarket matrix coordinate real|integer|pattern general|symmetric'",
                    )
                })?);
                continue;
            };
            if is_comment(line) {
                continue;
            }
            let mut fields = Fields(line);
            let expected = "rows, columns and entries";
            let mut next = || fields.id(expected).map_err(|_| bad(number, line, expected));
            let (rows, columns, entries) = (next()?, next()?, next()?);
            return Ok(MatrixHeader {
                symmetric,
                weighted,
                vertices: rows.max(columns),
                entries,
                line: number,
            });
        }
    }
    let expected = if banner.is_some() { "rows, columns and entries" } else { "a Matrix Market header" };
    Err(Error::BadInput {
        place: input.name().to_string(),
        found: "the end of the file".to_string(),
        expected: expected.to_string(),
    })
}

fn parse_banner(line: &[u8]) -> Option<(bool, bool)> {
    let line = std::str::from_utf8(line).ok()?.to_ascii_lowercase();
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["%%matrixmarket", "matrix", "coordinate", values, symmetry] = words[..] else { return None };
    let weighted = match values {
        "real" | "integer" | "double" => true,
        "pattern" => false,
        _ => return None,
    };
    match symmetry {
        "general" => Some((false, weighted)),
        "symmetric" => Some((true, weighted)),
        _ => None,
    }
}

/// A Matrix Market file: all rows and columns are vertices, entries are edges.
pub(super) fn matrix_market<E: EdgeOperation>(job: &Job, input: &Input, lanes: &mut Lanes<E>) -> Result<()> {
    let header = matrix_header(job, input)?;
    if header.vertices > VERTICES_MAX {
        return Err(Error::TooManyVertices { found: header.vertices, limit: VERTICES_MAX });
    }
    for vertex in 1..=header.vertices {
        lanes.lanes[0].vertex(vertex)?;
    }
    let seen = AtomicU64::new(0);
    each_line(job, input, lanes, |lane, number, line| {
        if number <= header.line {
            return Ok(());
        }
        let mut fields = Fields(line);
        let expected = if header.weighted { "row, column and value" } else { "row and column" };
        let (row, column) = (fields.id(expected)?, fields.id(expected)?);
        let weight = if header.weighted { fields.weight(expected)? } else { 1.0 };
        let inside = 1..=header.vertices;
        if !inside.contains(&row) || !inside.contains(&column) {
            return Err(Bad {
                expected: format!("row and column from 1 to {}", header.vertices),
                found: None,
            }
            .into());
        }
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(lane.edge(row, column, weight)?)
    })?;
    let seen = seen.into_inner();
    if seen != header.entries {
        let (found, expected) = (format!("{seen} entries"), format!("{} entries", header.entries));
        return Err(Error::BadInput { place: input.name().to_string(), found, expected });
    }
    Ok(())
}

/// What is wrong with a line; `found` is the whole line where it is not said.
struct Bad {
    expected: String,
    found: Option<String>,
}

enum LineError {
    Bad(Bad),
    Other(Error),
}

impl From<Bad> for LineError {
    fn from(bad: Bad) -> Self {
        LineError::Bad(bad)
    }
}

impl From<Error> for LineError {
    fn from(error: Error) -> Self {
        LineError::Other(error)
    }
}

fn bad_line(input: &Input, line: u64, bad: Bad) -> Error {
    Error::BadInput {
        place: format!("{}:{line}", input.name()),
        found: bad.found.unwrap_or_default(),
        expected: bad.expected,
    }
}

/// The beginning of what stands there, in quotes.
fn shown(bytes: &[u8]) -> String {
    const LEN: usize = 60;
    let more = if bytes.len() > LEN { "..." } else { "" };
    format!("'{}{more}'", String::from_utf8_lossy(&bytes[..bytes.len().min(LEN)]).escape_debug())
}

/// Calls `parse(lane, line number, line)` for all lines but comments and empty ones, in parallel.
fn each_line<E: EdgeOperation>(
    job: &Job,
    input: &Input,
    lanes: &mut Lanes<E>,
    parse: impl Fn(&mut Lane<E>, u64, &[u8]) -> std::result::Result<(), LineError> + Sync,
) -> Result<()> {
    let mut lines = LineBlocks::new(input.open(job.budget())?, lanes.block_bytes);
    let mut position = 0;
    let read = |recycled: Option<LineBlock>| {
        let block = lines.next_block(recycled.map(|block| block.bytes).unwrap_or_default())?;
        job.progress().add(lines.position() - position);
        position = lines.position();
        Ok(block)
    };
    lanes.each_block(job, read, |lane, block: LineBlock| {
        for (number, line) in block.lines() {
            if is_comment(line) {
                continue;
            }
            parse(lane, number, line).map_err(|error| match error {
                LineError::Other(error) => error,
                LineError::Bad(Bad { expected, found }) => {
                    let found = found.or_else(|| Some(shown(line)));
                    bad_line(input, number, Bad { expected, found })
                }
            })?;
        }
        Ok(block)
    })
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b',' | b';')
}

/// Comments, and lines of nothing but separators.
fn is_comment(line: &[u8]) -> bool {
    match line.first() {
        Some(b'0'..=b'9') => false,
        Some(b'#' | b'%') => true,
        _ => line.iter().all(|&byte| is_separator(byte)),
    }
}

/// Takes fields from the front of a line.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Any number of spaces and tabs, and among them one comma or semicolon at most: two have an empty field between
    /// them.
    #[inline]
    fn skip_separators(&mut self) -> bool {
        let mut commas = 0;
        while let [first, rest @ ..] = self.0
            && is_separator(*first)
        {
            commas += matches!(first, b',' | b';') as u32;
            self.0 = rest;
        }
        commas < 2
    }

    /// How many fields are left.
    fn count(&self) -> usize {
        self.0.split(|&byte| is_separator(byte)).filter(|field| !field.is_empty()).count()
    }

    /// The next field as an id.
    #[inline]
    fn id(&mut self, expected: &str) -> std::result::Result<u64, Bad> {
        let follows = self.skip_separators();
        let mut value = 0u64;
        let mut len = 0;
        let mut overflow = false;
        while let Some(digit) =
            self.0.get(len).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10)
        {
            let (tens, over) = value.overflowing_mul(10);
            let (sum, carry) = tens.overflowing_add(digit as u64);
            (value, overflow) = (sum, overflow | over | carry);
            len += 1;
        }
        let ends = self.0.get(len).is_none_or(|&byte| is_separator(byte));
        if len == 0 || !ends || !follows {
            return Err(Bad { expected: expected.to_string(), found: None });
        }
        if overflow {
            return Err(Bad { expected: ID_RANGE.to_string(), found: Some(shown(&self.0[..len])) });
        }
        self.0 = &self.0[len..];
        Ok(value)
    }

    /// The next field as a finite number.
    fn weight(&mut self, expected: &str) -> std::result::Result<f64, Bad> {
        let follows = self.skip_separators();
        let len = self.0.iter().position(|&byte| is_separator(byte)).unwrap_or(self.0.len());
        let text = std::str::from_utf8(&self.0[..len]).ok();
        let weight =
            text.and_then(|text| text.parse::<f64>().ok()).filter(|weight| weight.is_finite() && follows);
        self.0 = &self.0[len..];
        weight.ok_or_else(|| Bad { expected: expected.to_string(), found: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(line: &str) -> Option<(u64, u64)> {
        let mut fields = Fields(line.as_bytes());
        Some((fields.id(TWO_IDS).ok()?, fields.id(TWO_IDS).ok()?))
    }

    #[test]
    fn ids_are_read_between_any_separators() {
        for line in ["1 2", "1\t2", " 1  2 ", "1,2", "1;2", "1, 2, 0.5", "01 2"] {
            assert_eq!(ids(line), Some((1, 2)), "{line:?}");
        }
        for line in
            ["", "1", "1 ", "a b", "1 b", "-1 2", "1.5 2", "1x 2", "1,,2", "1 2\r3", "1 18446744073709551616"]
        {
            assert_eq!(ids(line), None, "{line:?}");
        }
        assert_eq!(ids("18446744073709551615 0"), Some((u64::MAX, 0)));
    }

    #[test]
    fn comments_and_empty_lines_are_no_edges() {
        for line in ["# a", "% a", "", " ", "\t"] {
            assert!(is_comment(line.as_bytes()), "{line:?}");
        }
        for line in ["1 2", " 1 2", "a"] {
            assert!(!is_comment(line.as_bytes()), "{line:?}");
        }
    }

    #[test]
    fn banners_of_dense_complex_or_skew_matrices_are_refused() {
        let banner = |rest: &str| parse_banner(format!("%%MatrixMarket matrix {rest}").as_bytes());
        assert_eq!(banner("coordinate real general"), Some((false, true)));
        assert_eq!(banner("coordinate pattern symmetric"), Some((true, false)));
        for rest in ["array real general", "coordinate complex general", "coordinate real skew-symmetric"] {
            assert_eq!(banner(rest), None, "{rest}");
        }
    }
}
