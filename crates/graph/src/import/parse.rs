//! Reads lines of text: SNAP and LDBC edge lists, LDBC vertices, Matrix Market.
//!
//! The calling thread cuts the input into blocks of whole lines. Each lane's thread parses one block after the other
//! into its lane.
//!
//! The lines of a METIS file may look like edges: a header of two numbers, then the neighbours of a vertex on each
//! line. [`Metis`] refuses such an input before the graph is published. An input counts as METIS if the number of lines
//! after the header and the number of neighbours are those that the header gives.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

use inshore_store::Job;
use inshore_tables::{Input, LineBlock, LineBlocks, cut_line};

use super::lane::{Lane, Lanes};
use crate::{Error, Result, csr::EdgeOperation, graph::VERTICES_MAX};

const TWO_IDS: &str = "two vertex ids";
const WITH_WEIGHT: &str = "two vertex ids and a finite weight";
/// The largest number of fields on a line of an edge list: two ids, and perhaps a weight and a time.
const FIELDS_MAX: usize = 4;
const ID_RANGE: &str = "an id from 0 to 18446744073709551615";

/// Reads an edge list: `source destination [weight]`. METIS files are refused if `is_guessed` is true.
pub(super) fn text<E: EdgeOperation>(
    job: &Job,
    input: &Input,
    lanes: &mut Lanes<E>,
    is_guessed: bool,
) -> Result<()> {
    let weighted = E::WEIGHTED;
    let quick = |lane: &mut Lane<E>, lines: &[u8]| {
        let ids = if weighted { None } else { two_ids(lines) };
        let Some((source, destination, used)) = ids else { return Ok(None) };
        lane.edge(source, destination, 1.0)?;
        Ok(Some(used))
    };
    let header = Cell::new(None);
    let look = |block: &LineBlock| -> Result<()> {
        if block.first_line == 1 {
            let (_, line) = block.lines().next().unwrap_or((1, b""));
            if is_matrix_market(line) {
                let expected = "an edge list (--format mtx reads Matrix Market)".to_string();
                return Err(bad_line(input, 1, LineFault { expected, found: Some(shown(line)) }));
            }
        }
        if header.get().is_none() {
            let first = block.lines().find(|(_, line)| !is_comment(line));
            header.set(first.map(|(number, line)| (number, Metis::of_header(line))));
        }
        Ok(())
    };
    let lines = each_line_quickly(job, input, lanes, look, quick, |lane, _, line| {
        let (source, destination, weight) = edge_of_line(line, weighted)?;
        Ok(lane.edge(source, destination, weight)?)
    })?;
    match header.get() {
        // A pipe cannot be read a second time, so METIS is not recognized in a pipe.
        Some((number, Some(metis)))
            if is_guessed
                && input.compressed_bytes().is_some()
                && metis.vertices == lines.after_header(number) =>
        {
            metis.refuse_if_it_is(job, input, number)
        }
        _ => Ok(()),
    }
}

/// Checks that the first bytes of a text may be those of a list of edges: see [`edges_of_lines`]. `name` is the name by
/// which errors call the text.
///
/// # Errors
/// Returns [`Error::BadInput`] if the text is in the format Matrix Market.
pub fn check_edge_text(name: &str, head: &[u8]) -> Result<()> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if !is_matrix_market(head) {
        return Ok(());
    }
    let (found, expected) = ("a Matrix Market file".to_string(), "an edge list".to_string());
    Err(Error::BadInput { place: name.to_string(), found, expected })
}

/// Passes the edges of complete lines to `each`, as an import of text reads them: two ids on each line, and at most two
/// more fields, which are ignored. Comments and empty lines are skipped. `name` and `first_line` are the name of the text
/// and the number of the first of these lines, for errors.
///
/// ```
/// let mut edges = Vec::new();
/// inshore_graph::edges_of_lines("web", 1, b"# a comment\n1 2\n2\t3\t0.5\n", |source, target| {
///     edges.push((source, target));
///     Ok::<(), inshore_graph::Error>(())
/// })?;
/// assert_eq!(edges, [(1, 2), (2, 3)]);
/// # Ok::<(), inshore_graph::Error>(())
/// ```
///
/// # Errors
/// - Returns [`Error::BadInput`] if a line is malformed. The error names the text and the line.
/// - Returns the errors of `each`.
pub fn edges_of_lines<E: From<Error>>(
    name: &str,
    first_line: u64,
    lines: &[u8],
    mut each: impl FnMut(u64, u64) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    edges_with::<E, false>((name, first_line), lines, |source, target, _| each(source, target))
}

/// Passes the edges of complete lines and their weights to `each`, as an import of text with weights reads them: two ids
/// and a finite weight on each line, and at most one more field, which is ignored. See [`edges_of_lines`].
///
/// # Errors
/// Returns the errors of [`edges_of_lines`].
pub fn weighted_edges_of_lines<E: From<Error>>(
    name: &str,
    first_line: u64,
    lines: &[u8],
    each: impl FnMut(u64, u64, f64) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    edges_with::<E, true>((name, first_line), lines, each)
}

fn edges_with<E: From<Error>, const WEIGHTED: bool>(
    (name, first_line): (&str, u64),
    lines: &[u8],
    mut each: impl FnMut(u64, u64, f64) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (mut rest, mut number) = (lines, first_line);
    while !rest.is_empty() {
        if !WEIGHTED && let Some((source, target, used)) = two_ids(rest) {
            each(source, target, 1.0)?;
            (rest, number) = (&rest[used..], number + 1);
            continue;
        }
        let line;
        (line, rest) = cut_line(rest);
        if !is_comment(line) {
            let edge = edge_of_line(line, WEIGHTED);
            let (source, target, weight) = edge.map_err(|LineFault { expected, found }| {
                let found = found.unwrap_or_else(|| shown(line));
                Error::BadInput { place: format!("{name}:{number}"), found, expected }
            })?;
            each(source, target, weight)?;
        }
        number += 1;
    }
    Ok(())
}

/// Parses the ids of a line that may have more fields, and its weight, which is 1 if `weighted` is false.
fn edge_of_line(line: &[u8], weighted: bool) -> std::result::Result<(u64, u64, f64), LineFault> {
    let mut fields = Fields(line);
    let expected = if weighted { WITH_WEIGHT } else { TWO_IDS };
    let (source, target) = (fields.id(expected)?, fields.id(expected)?);
    let weight = if weighted { fields.weight(expected)? } else { 1.0 };
    check_more_fields(&fields, FIELDS_MAX - 2 - usize::from(weighted))?;
    Ok((source, target, weight))
}

/// Refuses a line with more than `max` further fields.
fn check_more_fields(fields: &Fields<'_>, max: usize) -> std::result::Result<(), LineFault> {
    match fields.0.is_empty() || fields.count() <= max {
        true => Ok(()),
        false => Err(LineFault { expected: format!("at most {FIELDS_MAX} fields"), found: None }),
    }
}

/// The header of a METIS file: the number of vertices, the number of edges, and the kinds of sizes and weights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Metis {
    vertices: u64,
    edges: u64,
    /// The number of fields before the neighbours of a vertex: its size and its weights.
    of_vertex: u64,
    has_edge_weights: bool,
}

impl Metis {
    /// Parses a first line if it can be a METIS header: `vertices edges [format [constraints]]`. The three digits of
    /// the format say whether vertices have sizes, whether vertices have weights, and whether edges have weights.
    fn of_header(line: &[u8]) -> Option<Metis> {
        let mut fields = Fields(line);
        let mut next = || (!Fields(fields.0).is_empty()).then(|| fields.id("").ok()).flatten();
        let (vertices, edges) = (next()?, next()?);
        let (format, constraints) = (next(), next());
        let digit = |tens: u64| format.unwrap_or(0) / tens % 10;
        let is_format = [1, 10, 100].iter().all(|&tens| digit(tens) < 2) && format.unwrap_or(0) < 1000;
        let weights = digit(10).saturating_mul(constraints.unwrap_or(1));
        (is_format && fields.is_empty()).then_some(Metis {
            vertices,
            edges,
            of_vertex: digit(100).saturating_add(weights),
            has_edge_weights: digit(1) == 1,
        })
    }

    /// Reads the file once more. Refuses the file if the lines after line `header` are the neighbours of vertices, and
    /// the numbers of vertices and edges are those that the header gives.
    fn refuse_if_it_is(self, job: &Job, input: &Input, header: u64) -> Result<()> {
        let Metis { vertices, edges, of_vertex, has_edge_weights } = self;
        let (mut vertex, mut numbers) = (0, 0u64);
        let mut blocks = LineBlocks::new(input.open(job.budget())?, 1 << 20);
        let mut recycled = Vec::new();
        while let Some(block) = blocks.next_block(recycled)? {
            job.check_cancelled()?;
            let is_row = |number, line: &[u8]| number > header && !matches!(line.first(), Some(b'#' | b'%'));
            for (_, line) in block.lines().filter(|(number, line)| is_row(*number, line)) {
                vertex += 1;
                let mut fields = Fields(line);
                let mut place = 0;
                while !fields.is_empty() {
                    let Ok(number) = fields.id("") else { return Ok(()) };
                    let is_neighbour =
                        place >= of_vertex && !(has_edge_weights && (place - of_vertex) % 2 == 1);
                    if is_neighbour && (number == vertex || !(1..=vertices).contains(&number)) {
                        return Ok(());
                    }
                    (place, numbers) = (place + 1, numbers + 1);
                }
            }
            recycled = block.bytes;
        }
        let each = if has_edge_weights { 4 } else { 2 };
        let expected = edges.checked_mul(each).zip(vertices.checked_mul(of_vertex));
        if vertex != vertices || expected.and_then(|(a, b)| a.checked_add(b)) != Some(numbers) {
            return Ok(());
        }
        Err(metis(input))
    }
}

/// Creates the error for an input in the format METIS.
pub(super) fn metis(input: &Input) -> Error {
    Error::BadInput {
        place: input.name().to_string(),
        found: "METIS (the neighbours of a vertex on each line)".to_string(),
        expected:
            "a list of edges, two vertex ids on each line (--format text reads the file as such a list)"
                .to_string(),
    }
}

/// Reads LDBC vertices: an id, and perhaps properties, on each line.
pub(super) fn vertices<E: EdgeOperation>(job: &Job, input: &Input, lanes: &mut Lanes<E>) -> Result<()> {
    each_line(job, input, lanes, |lane, _, line| Ok(lane.vertex(Fields(line).id("a vertex id")?)?))
}

/// Tells whether the first edge of an input has a third column.
pub(super) fn has_third_column(job: &Job, input: &Input) -> Result<bool> {
    let mut blocks = LineBlocks::new(input.open(job.budget())?, 64 << 10);
    while let Some(block) = blocks.next_block(Vec::new())? {
        if let Some((_, line)) = block.lines().find(|(_, line)| !is_comment(line)) {
            return Ok(line.split(|&byte| is_separator(byte)).filter(|field| !field.is_empty()).count() > 2);
        }
    }
    Ok(false)
}

/// The header of a Matrix Market file.
#[derive(Debug, PartialEq)]
pub(super) struct MatrixHeader {
    pub symmetric: bool,
    pub weighted: bool,
    /// The number of rows, which is also the number of columns. The vertex ids are 1, 2, ... up to this number.
    vertices: u64,
    entries: u64,
    /// The number of the line that has the size of the matrix.
    line: u64,
}

/// Reads the header of a Matrix Market file. The format must be coordinates, the matrix general or symmetric, and its
/// values numbers or absent.
pub(super) fn matrix_header(job: &Job, input: &Input) -> Result<MatrixHeader> {
    let mut blocks = LineBlocks::new(input.open(job.budget())?, 64 << 10);
    let bad = |line: u64, found: &[u8], expected: &str| -> Error {
        bad_line(input, line, LineFault { expected: expected.into(), found: Some(shown(found)) })
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
            if rows != columns {
                // In a matrix that is not square, a vertex would stand for a row and for an unrelated column.
                return Err(bad(number, line, "as many columns as rows, since both are the vertices"));
            }
            return Ok(MatrixHeader { symmetric, weighted, vertices: rows, entries, line: number });
        }
    }
    let expected = if banner.is_some() { "rows, columns and entries" } else { "a Matrix Market header" };
    Err(Error::BadInput {
        place: input.name().to_string(),
        found: "the end of the file".to_string(),
        expected: expected.to_string(),
    })
}

/// Tells whether the first line of an input is that of a Matrix Market file.
pub(super) fn is_matrix_market(line: &[u8]) -> bool {
    let name = line.strip_prefix(b"%%").or_else(|| line.strip_prefix(b"%"));
    name.and_then(|name| name.get(..12)).is_some_and(|name| name.eq_ignore_ascii_case(b"MatrixMarket"))
}

fn parse_banner(line: &[u8]) -> Option<(bool, bool)> {
    let line = std::str::from_utf8(line).ok()?.to_ascii_lowercase();
    let words: Vec<&str> = line.split_whitespace().collect();
    // Some programs write one percent sign instead of two.
    let ["%%matrixmarket" | "%matrixmarket", "matrix", "coordinate", values, symmetry] = words[..] else {
        return None;
    };
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

/// Reads a Matrix Market file: all rows and columns are vertices, entries are edges.
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
            return Err(LineFault {
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

/// The fault of a line. If `found` is `None`, the error quotes the whole line.
struct LineFault {
    expected: String,
    found: Option<String>,
}

enum LineError {
    LineFault(LineFault),
    Other(Error),
}

impl From<LineFault> for LineError {
    fn from(bad: LineFault) -> Self {
        LineError::LineFault(bad)
    }
}

impl From<Error> for LineError {
    fn from(error: Error) -> Self {
        LineError::Other(error)
    }
}

fn bad_line(input: &Input, line: u64, bad: LineFault) -> Error {
    Error::BadInput {
        place: format!("{}:{line}", input.name()),
        found: bad.found.unwrap_or_default(),
        expected: bad.expected,
    }
}

/// Returns the beginning of a text in quotes.
fn shown(bytes: &[u8]) -> String {
    const LEN: usize = 60;
    let more = if bytes.len() > LEN { "..." } else { "" };
    format!("'{}{more}'", String::from_utf8_lossy(&bytes[..bytes.len().min(LEN)]).escape_debug())
}

/// Calls `parse(lane, line number, line)` with all lines except comments and empty lines, in parallel.
fn each_line<E: EdgeOperation>(
    job: &Job,
    input: &Input,
    lanes: &mut Lanes<E>,
    parse: impl Fn(&mut Lane<E>, u64, &[u8]) -> std::result::Result<(), LineError> + Sync,
) -> Result<()> {
    each_line_quickly(job, input, lanes, |_| Ok(()), |_, _| Ok(None), parse).map(drop)
}

/// The number of lines of an input, and the number of comments. Empty lines do not count as comments.
struct LineTotals {
    lines: u64,
    comments: u64,
}

impl LineTotals {
    /// Returns the number of lines after line `header` that are not comments. All lines before the header must be
    /// comments.
    fn after_header(&self, header: u64) -> u64 {
        // If an empty line stood before the header, the result would be wrong by one. No METIS file has such a line.
        self.lines.saturating_sub(header).saturating_sub(self.comments.saturating_sub(header - 1))
    }
}

/// Calls `parse` as [`each_line`] does. Before that, `look` gets each block, in order. `quick` gets the remaining lines
/// of a block. If `quick` adds the first of these lines itself, it returns the length of that line with its line end.
fn each_line_quickly<E: EdgeOperation>(
    job: &Job,
    input: &Input,
    lanes: &mut Lanes<E>,
    look: impl Fn(&LineBlock) -> Result<()>,
    quick: impl Fn(&mut Lane<E>, &[u8]) -> Result<Option<usize>> + Sync,
    parse: impl Fn(&mut Lane<E>, u64, &[u8]) -> std::result::Result<(), LineError> + Sync,
) -> Result<LineTotals> {
    let mut lines = LineBlocks::new(input.open_ahead(job)?, lanes.block_bytes);
    let (mut position, mut has_end) = (0, true);
    let comments = AtomicU64::new(0);
    let read = |recycled: Option<LineBlock>| {
        let block = lines.next_block(recycled.map(|block| block.bytes).unwrap_or_default())?;
        job.progress().add(lines.position() - position);
        position = lines.position();
        if let Some(block) = &block {
            has_end = block.bytes.ends_with(b"\n");
            look(block)?;
        }
        Ok(block)
    };
    lanes.each_block(job, read, |lane, block: LineBlock| {
        let (mut rest, mut number) = (&block.bytes[..], block.first_line);
        while !rest.is_empty() {
            if let Some(used) = quick(lane, rest)? {
                (rest, number) = (&rest[used..], number + 1);
                continue;
            }
            let line;
            (line, rest) = cut_line(rest);
            number += 1;
            if is_comment(line) {
                let is_blank = !matches!(line.first(), Some(b'#' | b'%'));
                comments.fetch_add(u64::from(!is_blank), Ordering::Relaxed);
                continue;
            }
            parse(lane, number - 1, line).map_err(|error| match error {
                LineError::Other(error) => error,
                LineError::LineFault(LineFault { expected, found }) => {
                    let found = found.or_else(|| Some(shown(line)));
                    bad_line(input, number - 1, LineFault { expected, found })
                }
            })?;
        }
        Ok(block)
    })?;
    Ok(LineTotals { lines: lines.lines() + u64::from(!has_end), comments: comments.into_inner() })
}

/// Reads a line that consists of two ids with one tab, space or comma between them, as most lines of most files do.
/// Returns the ids, and the length of the line with its line end. Returns `None` for any other line, and near the end
/// of a block.
#[inline]
fn two_ids(lines: &[u8]) -> Option<(u64, u64, usize)> {
    let (source, place) = digits(lines, 0)?;
    if !matches!(lines[place], b'\t' | b' ' | b',') {
        return None;
    }
    let (destination, place) = digits(lines, place + 1)?;
    match (lines[place], lines.get(place + 1)) {
        (b'\n', _) => Some((source, destination, place + 1)),
        (b'\r', Some(b'\n')) => Some((source, destination, place + 2)),
        _ => None,
    }
}

/// Reads a number of 1 to 15 digits at offset `place`. Returns the number and the offset after it. Returns `None` if
/// there is no such number, or if fewer than 16 bytes remain.
///
/// A processor cannot predict the number of digits. Graphs of 16 million vertices, for example, have ids of seven
/// digits and of eight. No branch depends on the number of digits: 16 characters are read, and the digits are shifted
/// to the end.
#[inline(always)]
fn digits(bytes: &[u8], place: usize) -> Option<(u64, usize)> {
    let each = |byte: u8| u128::from_ne_bytes([byte; 16]);
    let characters = u128::from_le_bytes(bytes.get(place..place + 16)?.try_into().expect("16 bytes"));
    let digits = characters ^ each(b'0');
    // Every byte that is no digit gets its highest bit set. The carry of such a byte changes only bytes after it.
    let others = (digits.wrapping_add(each(0x80 - 10)) | digits) & each(0x80);
    let len = others.trailing_zeros() as usize / 8;
    if !(1..16).contains(&len) {
        return None;
    }
    let aligned = digits << (128 - 8 * len);
    Some((eight_digits(aligned as u64) * 100_000_000 + eight_digits((aligned >> 64) as u64), place + len))
}

/// Returns the number that eight digits stand for; the first digit is in the lowest byte. Digits are combined into
/// pairs, then into groups of four, and then into one number.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let half = 0x0000_00ff_0000_00ff;
    let upper = (pairs & half).wrapping_mul(0x000f_4240_0000_0064);
    let lower = ((pairs >> 16) & half).wrapping_mul(0x0000_2710_0000_0001);
    upper.wrapping_add(lower) >> 32
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b',' | b';')
}

/// Tells whether a line is a comment or has only separators.
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
    /// Tells whether only separators are left.
    fn is_empty(&self) -> bool {
        self.0.iter().all(|&byte| is_separator(byte))
    }

    /// Skips all separators before the next field. Returns false if two or more of the separators are commas or
    /// semicolons, since there is an empty field between two such separators.
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

    /// Returns the number of remaining fields.
    fn count(&self) -> usize {
        self.0.split(|&byte| is_separator(byte)).filter(|field| !field.is_empty()).count()
    }

    /// Parses the next field as an id.
    #[inline]
    fn id(&mut self, expected: &str) -> std::result::Result<u64, LineFault> {
        let follows = self.skip_separators();
        let digit = |byte: &u8| u64::from(byte.wrapping_sub(b'0'));
        let (mut value, mut len) = (0u64, 0);
        while let Some(digit) = self.0.get(len).map(digit).filter(|&digit| digit < 10) {
            value = value.wrapping_mul(10).wrapping_add(digit);
            len += 1;
        }
        let ends = self.0.get(len).is_none_or(|&byte| is_separator(byte));
        if len == 0 || !ends || !follows {
            return Err(LineFault { expected: expected.to_string(), found: None });
        }
        // A number of at most 19 digits cannot overflow 64 bits.
        if len > 19 {
            let exact = self.0[..len].iter().map(digit).try_fold(0u64, |value, digit| {
                value.checked_mul(10).and_then(|tens| tens.checked_add(digit))
            });
            let too_large =
                || LineFault { expected: ID_RANGE.to_string(), found: Some(shown(&self.0[..len])) };
            value = exact.ok_or_else(too_large)?;
        }
        self.0 = &self.0[len..];
        Ok(value)
    }

    /// Parses the next field as a finite number.
    fn weight(&mut self, expected: &str) -> std::result::Result<f64, LineFault> {
        let follows = self.skip_separators();
        let len = self.0.iter().position(|&byte| is_separator(byte)).unwrap_or(self.0.len());
        let text = std::str::from_utf8(&self.0[..len]).ok();
        let weight =
            text.and_then(|text| text.parse::<f64>().ok()).filter(|weight| weight.is_finite() && follows);
        self.0 = &self.0[len..];
        weight.ok_or_else(|| LineFault { expected: expected.to_string(), found: None })
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
    fn quick_lines_are_what_the_careful_way_reads() {
        let rest = "\n0\t0\n0 0\n0,0\n0 0\n0 0\n";
        let mut quick = 0;
        for digits in 1..=17u32 {
            for number in [10u64.pow(digits - 1), 10u64.pow(digits) - 1, 10u64.pow(digits) / 7 * 5] {
                for line in [
                    format!("{number}\t{number}"),
                    format!("{number} 7\r"),
                    format!("0,{number}"),
                    format!("{number}  7"),
                    format!("{number} 7 "),
                    format!("{number}\u{e9} 7"),
                    format!("{number}x 7"),
                    format!("{number} :7"),
                    format!(" {number} 7"),
                    format!("{number}"),
                    format!("{number}\n7"),
                ] {
                    if let Some((source, destination, used)) = two_ids((line.clone() + rest).as_bytes()) {
                        assert_eq!(ids(line.trim_end_matches('\r')), Some((source, destination)), "{line:?}");
                        assert_eq!(used, line.len() + 1, "{line:?}");
                        quick += 1;
                    }
                }
            }
        }
        // The quick function reads three forms of three numbers for each length up to 15 digits.
        assert_eq!(quick, 15 * 3 * 3);
        assert_eq!(two_ids(b"1 2\n"), None, "near the end");
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
