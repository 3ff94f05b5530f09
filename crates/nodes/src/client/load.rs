//! Spreads a file over nodes.
//!
//! ```text
//!   client: read ─► pieces that end with a record ─► piece n to node n mod N (and the next nodes, for copies)
//!   node:   Begin, (File, Data...)..., Received ─► answer; Commit with the map ─► answer
//! ```
//!
//! A dataset is invisible until every node has received all pieces that are sent to it. Each node then makes its pieces
//! visible, together with the map of the complete file. The map ([`FileMap`]) states which nodes hold each piece of the
//! file. A client that dies before the commits leaves no data. A client that dies between the commits leaves a dataset
//! that only some nodes have. The catalog reports this dataset, and `store rm` removes it.
//!
//! Cost: the file is sent over the wire once for each copy. A node writes the data directly to flash, without
//! its page cache.

use std::{
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use arrow_flight::{FlightData, PutResult};
use bytes::Bytes;
use futures::StreamExt;
use inshore_store::Context;
use memchr::{memchr, memchr_iter};
use tokio::sync::mpsc;

use super::{generations::now_ms, nodes::Node};
use crate::{
    Error, Nodes, Result,
    protocol::{
        DATA_BYTES, FileMap, Generation, LoadAnswer, LoadStep, MAP_BYTES_MAX, MAP_VERSION, MapNode, MapPiece,
        SpreadId, VERSION,
        csv::CsvRecord,
        piece_name,
        wire::{json, message_bytes},
    },
};

/// The minimum number of bytes of one read. The HTTP/2 library closes a connection if thousands of messages below 256
/// bytes wait to be sent on this connection.
const READ_BYTES: usize = 16 << 10;

/// The options for the upload of a file.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The number of nodes that hold each piece.
    pub copies: usize,
    /// The approximate size of a piece in bytes. With `None`, the size is derived from the length of the file.
    pub piece_bytes: Option<u64>,
    /// The size of a record in bytes if all records have this size; otherwise `None`.
    pub record_bytes: Option<u64>,
    /// The number of lines of a record, if all records have this number of lines and pieces have to end with a record.
    /// The number is 4 for FASTQ. Records are counted from the beginning of the file. Empty lines between two records
    /// belong to no record.
    pub record_lines: Option<u64>,
    /// The offsets at which pieces may end, in order: the ends of row groups for Parquet.
    pub ends: Option<Vec<u64>>,
    /// The field separator if the file is CSV, where a line feed between quotes does not end a record. With `None`,
    /// every line feed ends a record.
    pub separator: Option<u8>,
    /// The number of bytes that each checksum on the nodes covers.
    pub block_bytes: u64,
    /// A description of the bytes, which the map of the file keeps: see [`DistributedFile::description`].
    ///
    /// [`DistributedFile::description`]: crate::DistributedFile::description
    pub description: Option<serde_json::Value>,
}

impl Default for LoadOptions {
    /// Returns options for one copy, for pieces that end with a line, and for a checksum of each 64 KiB.
    fn default() -> Self {
        LoadOptions {
            copies: 1,
            piece_bytes: None,
            record_bytes: None,
            record_lines: None,
            ends: None,
            separator: None,
            block_bytes: 64 << 10,
            description: None,
        }
    }
}

/// The result of a load.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct LoadReport {
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The number of pieces.
    pub pieces: u64,
    /// The number of bytes sent over the network.
    pub bytes_moved: u64,
}

/// Reads the available bytes, at least [`READ_BYTES`] unless the input ends. A pipe returns each small write
/// separately, and a connection accepts only few short messages at a time.
fn read_much(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut all = 0;
    while all < READ_BYTES {
        match input.read(&mut buffer[all..]) {
            Ok(0) => break,
            Ok(read) => all += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Returns the size of the pieces of a file of `len` bytes, or 256 MiB if the length is unknown. Pieces have at least 1
/// MiB. Unless a file is too small for this, each node gets at least one piece, and at most about 256 pieces.
pub fn default_piece_bytes(len: Option<u64>, nodes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let Some(len) = len else { return 256 * MIB };
    let each = len.div_ceil(nodes);
    if each < 64 * MIB { each.max(MIB) } else { (each / 256).max(64 * MIB) }
}

/// Returns the element of `ends` with which a piece that begins at `start` has a size closest to `piece_bytes`. Returns
/// `None` if the piece extends to the end of the file.
fn piece_end(ends: &[u64], start: u64, piece_bytes: u64) -> Option<u64> {
    let first = ends.partition_point(|&end| end <= start);
    let wanted = start.saturating_add(piece_bytes);
    let next = ends.partition_point(|&end| end < wanted).max(first);
    let before = ends[..next].last().filter(|&&end| end > start).copied();
    let after = ends.get(next).copied()?;
    Some(before.filter(|before| wanted - before <= after - wanted).unwrap_or(after))
}

impl Nodes {
    /// Spreads `input` over all nodes as the dataset `name`. Error messages use `called` as the name of the
    /// input. `len` is the length of the input, if known.
    ///
    /// Memory: four messages of 1 MiB for each node, and four further messages.
    ///
    /// # Errors
    /// - Returns [`Error::Input`] if an input cannot be read.
    /// - Returns [`Error::Lost`] if the connection to a node is lost.
    /// - Returns [`Error::Refused`] if a node refuses the data, for example because the node already has a dataset of
    ///   that name.
    ///
    /// After an error, no data remains on the nodes, unless the error occurred between two commits. The message of the
    /// error then says so.
    pub fn put(
        &self,
        job: &Context,
        name: &str,
        (called, len): (&str, Option<u64>),
        mut input: impl Read,
        options: &LoadOptions,
    ) -> Result<LoadReport> {
        let nodes = &self.0.nodes;
        let copies = options.copies.max(1);
        if copies > nodes.len() {
            let what = format!("{copies} copies need {copies} nodes, and there are {}", nodes.len());
            return Err(Error::Incomplete { name: name.to_string(), what });
        }
        let numbers = self.numbers()?;
        let id = SpreadId::random();
        let _memory =
            job.budget().reserve((4 * nodes.len() as u64 + 4) * DATA_BYTES as u64, "upload buffers")?;
        let mut loads = nodes.iter().map(|node| Load::begin(self, node)).collect::<Vec<_>>();
        let number = self.begin_loads(job, &mut loads, name, id, options.block_bytes)?;
        let generation = Generation { id, number, put_ms: now_ms() };
        let default = || default_piece_bytes(len, nodes.len() as u64);
        let piece_bytes = options.piece_bytes.unwrap_or_else(default).max(1);
        let mut cutting = Cutting::new(options, piece_bytes);
        let mut sender = PieceSender { nodes: self, job, loads, copies, pieces: Vec::new(), is_open: false };
        let mut loaded = LoadReport::default();
        let mut buffer = vec![0; DATA_BYTES];
        loop {
            self.0.check(|| format!("{} was read up to byte {}", called, loaded.bytes))?;
            job.check_cancelled()?;
            let read = read_much(&mut input, &mut buffer)
                .map_err(|source| Error::Input { name: called.to_string(), source })?;
            if read == 0 {
                break;
            }
            loaded.bytes += read as u64;
            job.progress().add(read as u64);
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let (now, later, is_over) = cutting.cut(rest);
                sender.write(now)?;
                sender.is_open = !is_over;
                rest = later;
            }
        }
        let PieceSender { mut loads, pieces, .. } = sender;
        self.end_pieces(job, &mut loads)?;
        loaded.pieces = pieces.len() as u64;
        let node = |(node, number): (&Arc<Node>, u64)| MapNode { number, name: node.address.clone() };
        let map_nodes = nodes.iter().zip(numbers).map(node).collect();
        let record_bytes = options.record_bytes.filter(|_| pieces.len() > 1);
        let is_grouped = options.ends.is_some();
        let record_lines = match cutting.ends {
            PieceBoundaries::LineRecords(_, lines) => Some(lines),
            _ => None,
        };
        let map = FileMap {
            version: MAP_VERSION,
            generation,
            record_bytes,
            record_lines,
            is_grouped,
            description: options.description.clone(),
            nodes: map_nodes,
            pieces,
        };
        if json(&map).len() > MAP_BYTES_MAX {
            let what = format!("{} pieces are too many: choose a larger --piece", map.pieces.len());
            return Err(Error::Incomplete { name: name.to_string(), what });
        }
        self.commit(job, &mut loads, name, map)?;
        loaded.bytes_moved = loads.iter().map(|load| load.moved).sum();
        Ok(loaded)
    }

    /// Begins a dataset on each node, and returns the number of its generation. The number exceeds the numbers of all
    /// removed generations known to the nodes, so that this dataset replaces them.
    fn begin_loads(
        &self,
        job: &Context,
        loads: &mut [Load<'_>],
        name: &str,
        id: SpreadId,
        block_bytes: u64,
    ) -> Result<u64> {
        let begin = LoadStep::Begin { version: VERSION, name: name.to_string(), id, block_bytes };
        for load in &mut *loads {
            load.send(self, job, &begin, Bytes::new())?;
        }
        let mut number = 1;
        for load in loads {
            match load.answer(self, job)? {
                LoadAnswer::Begun { generation } => number = number.max(generation.saturating_add(1)),
                other => {
                    return Err(load
                        .node
                        .bad_answer(&format!("{other:?} as the answer to the start of an upload")));
                }
            }
        }
        Ok(number)
    }

    /// Marks the end of the data, and checks that each node has received all bytes that were sent to this node.
    fn end_pieces(&self, job: &Context, loads: &mut [Load<'_>]) -> Result<()> {
        for load in &mut *loads {
            load.send(self, job, &LoadStep::Received, Bytes::new())?;
        }
        for load in loads {
            match load.answer(self, job)? {
                LoadAnswer::Received { bytes } if bytes == load.bytes => {}
                other => return Err(load.node.bad_answer(&format!("{other:?} after {} bytes", load.bytes))),
            }
        }
        Ok(())
    }

    /// Makes the dataset visible on each node.
    fn commit(&self, job: &Context, loads: &mut [Load<'_>], name: &str, map: FileMap) -> Result<()> {
        let step = LoadStep::Commit { map };
        let (mut failed, mut committed) = (None, 0);
        for load in &mut *loads {
            let done = load.send(self, job, &step, Bytes::new()).and_then(|()| load.answer(self, job));
            match done {
                Ok(_) => committed += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(()),
            Some(error) if committed == 0 => Err(error),
            Some(error) => {
                let what = format!(
                    "{committed} of {} nodes committed it, and then the upload failed: {error}",
                    loads.len()
                );
                Err(Error::Incomplete { name: name.to_string(), what })
            }
        }
    }

    /// Returns the numbers of all nodes. If a node does not answer, returns an error.
    fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for (place, found) in self.status().into_iter().enumerate() {
            let number = found.status?.node;
            if numbers.contains(&number) {
                return Err(self.0.nodes[place].bad_answer("it has the node id of another node: two addresses lead to one node, or two nodes share a store"));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }
}

/// The state of an upload: the connections to the nodes, and the pieces that were sent so far.
struct PieceSender<'a> {
    nodes: &'a Nodes,
    job: &'a Context,
    loads: Vec<Load<'a>>,
    copies: usize,
    pieces: Vec<MapPiece>,
    is_open: bool,
}

/// The state of dividing a file into pieces.
struct Cutting<'a> {
    piece_bytes: u64,
    ends: PieceBoundaries<'a>,
    /// The number of bytes of the file that belong to pieces so far.
    offset: u64,
    /// The number of bytes of the current piece so far.
    written: u64,
}

/// The positions at which a piece may end.
enum PieceBoundaries<'a> {
    At(&'a [u64]),
    /// A piece may end after any record. Every record has this number of bytes.
    Records(u64),
    /// A piece may end after any record of several lines. The values are the position in the current record, and the
    /// number of lines of each record.
    LineRecords(LineRecord, u64),
    Csv(CsvRecord),
    Lines,
}

impl<'a> Cutting<'a> {
    fn new(options: &'a LoadOptions, piece_bytes: u64) -> Cutting<'a> {
        let record_lines = options.record_lines.filter(|&lines| lines > 0);
        let ends = match (&options.ends, options.record_bytes, record_lines, options.separator) {
            (Some(ends), ..) => PieceBoundaries::At(ends),
            (_, Some(bytes), ..) => PieceBoundaries::Records(bytes),
            (_, _, Some(lines), _) => PieceBoundaries::LineRecords(LineRecord::default(), lines),
            (_, _, _, Some(separator)) => PieceBoundaries::Csv(CsvRecord::new(separator)),
            _ => PieceBoundaries::Lines,
        };
        Cutting { piece_bytes, ends, offset: 0, written: 0 }
    }

    /// Returns the bytes that belong to the current piece, the remaining bytes, and true if the piece ends between
    /// these two parts.
    fn cut<'b>(&mut self, bytes: &'b [u8]) -> (&'b [u8], &'b [u8], bool) {
        let end = self.end(bytes);
        let (now, later) = bytes.split_at(end.unwrap_or(bytes.len()));
        match &mut self.ends {
            PieceBoundaries::LineRecords(record, lines) => {
                record.end(now, usize::MAX, *lines);
            }
            PieceBoundaries::Csv(record) => record.pass(now),
            _ => {}
        }
        self.offset += now.len() as u64;
        self.written = if end.is_some() { 0 } else { self.written + now.len() as u64 };
        (now, later, end.is_some())
    }

    /// Returns the number of `bytes` that belong to the current piece, or `None` if the piece does not end within
    /// `bytes`.
    fn end(&self, bytes: &[u8]) -> Option<usize> {
        let within = |left: u64| (left <= bytes.len() as u64).then_some(left as usize);
        match &self.ends {
            PieceBoundaries::At(ends) => {
                let start = self.offset - self.written;
                return within(piece_end(ends, start, self.piece_bytes)? - self.offset);
            }
            PieceBoundaries::Records(bytes) => {
                return within((self.piece_bytes / bytes).max(1) * bytes - self.written);
            }
            _ => {}
        }
        let from = self.piece_bytes.saturating_sub(self.written + 1);
        let from = usize::try_from(from).ok().filter(|&from| from < bytes.len())?;
        match self.ends {
            PieceBoundaries::LineRecords(mut record, lines) => record.end(bytes, from, lines),
            PieceBoundaries::Csv(mut record) => record.end(bytes, from),
            _ => memchr(b'\n', &bytes[from..]).map(|end| from + end + 1),
        }
    }
}

/// The position in a record of several lines.
#[derive(Clone, Copy, Debug, Default)]
struct LineRecord {
    /// The number of complete lines of the record.
    lines: u64,
    /// True if the current line has bytes other than carriage returns.
    has_text: bool,
}

impl LineRecord {
    /// Advances to the first end of a record of `record_lines` lines whose line feed is at `from` or later, and returns
    /// the position after the line feed. Returns `None` if the bytes contain no such end.
    fn end(&mut self, bytes: &[u8], from: usize, record_lines: u64) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let feed = memchr(b'\n', &bytes[at..]).map(|feed| at + feed);
            let line = &bytes[at..feed.unwrap_or(bytes.len())];
            self.has_text |= line.iter().any(|&byte| byte != b'\r');
            let feed = feed?;
            let is_between = self.lines == 0 && !self.has_text;
            self.lines = if is_between { 0 } else { (self.lines + 1) % record_lines };
            self.has_text = false;
            at = feed + 1;
            if self.lines == 0 && feed >= from {
                return Some(at);
            }
        }
        None
    }
}

impl PieceSender<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.is_open {
            let first = self.pieces.len() % self.loads.len();
            let holders = (0..self.copies).map(|copy| ((first + copy) % self.loads.len()) as u16);
            let file = LoadStep::File { name: piece_name(self.pieces.len()) };
            self.pieces.push(MapPiece { bytes: 0, lines: 0, nodes: holders.collect() });
            self.is_open = true;
            for &holder in &self.pieces.last().expect("just pushed").nodes {
                self.loads[holder as usize].send(self.nodes, self.job, &file, Bytes::new())?;
            }
        }
        let piece = self.pieces.last_mut().expect("one is open");
        piece.bytes += bytes.len() as u64;
        piece.lines += memchr_iter(b'\n', bytes).count() as u64;
        let body = Bytes::copy_from_slice(bytes);
        for &holder in &piece.nodes {
            self.loads[holder as usize].send(self.nodes, self.job, &LoadStep::Data, body.clone())?;
        }
        Ok(())
    }
}

/// The upload to one node.
struct Load<'a> {
    node: &'a Arc<Node>,
    out: mpsc::Sender<FlightData>,
    answers: mpsc::Receiver<Result<LoadAnswer>>,
    bytes: u64,
    moved: u64,
}

impl<'a> Load<'a> {
    fn begin(nodes: &Nodes, node: &'a Arc<Node>) -> Load<'a> {
        let (out, mut messages) = mpsc::channel::<FlightData>(2);
        let (tell, answers) = mpsc::channel(4);
        let asked = node.clone();
        nodes.0.runtime.spawn(async move {
            let node = &*asked;
            let stream = futures::stream::poll_fn(move |context| messages.poll_recv(context));
            let mut answers = match node.client().do_put(node.request(stream)).await {
                Ok(answers) => answers.into_inner(),
                Err(refusal) => {
                    let _ = tell.send(Err(node.error(&refusal))).await;
                    return;
                }
            };
            while let Some(answer) = answers.next().await {
                let answer = match answer {
                    Ok(PutResult { app_metadata }) => node.read(&app_metadata),
                    Err(refusal) => Err(node.error(&refusal)),
                };
                if tell.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Load { node, out, answers, bytes: 0, moved: 0 }
    }

    /// Sends a step of the upload. If the node is slow, the function may wait for a long time.
    fn send(&mut self, nodes: &Nodes, job: &Context, step: &LoadStep, body: Bytes) -> Result<()> {
        self.bytes += body.len() as u64;
        let message = FlightData { app_metadata: json(step), data_body: body, ..FlightData::default() };
        self.moved += message_bytes(&message);
        self.node.bytes_out.fetch_add(message_bytes(&message), std::sync::atomic::Ordering::Relaxed);
        let mut message = Some(message);
        loop {
            self.check(nodes, job)?;
            let reserved = nodes.0.runtime.block_on(async {
                tokio::time::timeout(Duration::from_millis(100), self.out.reserve()).await
            });
            match reserved {
                Ok(Ok(place)) => {
                    place.send(message.take().expect("sent once"));
                    return Ok(());
                }
                // The node accepts no more steps. Its answer contains the reason.
                Ok(Err(_)) => {
                    return Err(match nodes.0.runtime.block_on(self.answers.recv()) {
                        Some(Err(error)) => error,
                        _ => self.node.lost("the node closed the upload".to_string()),
                    });
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the next answer. The node may need a long time to write.
    fn answer(&mut self, nodes: &Nodes, job: &Context) -> Result<LoadAnswer> {
        loop {
            let waited = nodes.0.runtime.block_on(async {
                tokio::time::timeout(Duration::from_millis(100), self.answers.recv()).await
            });
            match waited {
                Ok(Some(answer)) => return answer,
                Ok(None) => return Err(self.node.lost("the node ended the upload".to_string())),
                Err(_) => self.check(nodes, job)?,
            }
        }
    }

    /// Fails if the deadline has passed or the job was cancelled.
    fn check(&self, nodes: &Nodes, job: &Context) -> Result<()> {
        nodes.0.check(|| format!("node {} has not received all of it", self.node.address))?;
        Ok(job.check_cancelled()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_piece_for_each_node_and_not_too_many() {
        const MIB: u64 = 1 << 20;
        assert_eq!(default_piece_bytes(Some(0), 4), MIB);
        assert_eq!(default_piece_bytes(Some(100 * MIB), 4), 25 * MIB);
        assert_eq!(default_piece_bytes(Some(6 << 30), 4), 64 * MIB);
        assert!((20u64 << 40) / default_piece_bytes(Some(20 << 40), 20) <= 20 * 256);
        assert_eq!(default_piece_bytes(None, 4), 256 * MIB);
    }

    /// Returns the ends of pieces of about `piece_bytes` in a text that is read in blocks of `block_bytes`.
    fn piece_ends(text: &[u8], options: &LoadOptions, piece_bytes: u64, block_bytes: usize) -> Vec<usize> {
        let (mut cutting, mut at, mut ends) = (Cutting::new(options, piece_bytes), 0, Vec::new());
        for block in text.chunks(block_bytes) {
            let mut rest = block;
            while !rest.is_empty() {
                let (now, later, is_over) = cutting.cut(rest);
                (at, rest) = (at + now.len(), later);
                ends.extend(is_over.then_some(at));
            }
        }
        ends
    }

    #[test]
    fn pieces_of_csv_with_a_quote_in_a_word_end_with_records() {
        for separator in [',', '\t'] {
            let row = |row: usize| match row % 10 {
                // Row 3 of every ten rows has a quote that opens no quoted field. Row 7 has a quoted field with line
                // feeds.
                3 => format!("{row}{separator}5\" pipe{separator}x\n"),
                7 => format!("{row}{separator}\"two\n\"\"lines\"\"\n\"{separator}x\n"),
                _ => format!("{row}{separator}word{separator}\"x\"\n"),
            };
            let rows: Vec<String> = (0..2000).map(row).collect();
            let mut at = 0;
            let record_ends: Vec<usize> = rows.iter().map(|row| (at += row.len(), at).1).collect();
            let text = rows.concat().into_bytes();
            let options = LoadOptions { separator: Some(separator as u8), ..LoadOptions::default() };
            for (piece_bytes, block_bytes) in [(1, 7), (500, 64), (500, 333), (1000, 1 << 20), (2000, 1)] {
                let found = piece_ends(&text, &options, piece_bytes, block_bytes);
                // Each piece ends with the first record that makes the piece large enough.
                let mut start = 0;
                let expected = record_ends.iter().copied().filter(|&end| {
                    let is_enough = (end - start) as u64 >= piece_bytes;
                    if is_enough {
                        start = end;
                    }
                    is_enough
                });
                assert!(found.iter().copied().eq(expected), "{piece_bytes} {block_bytes}: {found:?}");
                assert!(found.len() >= 8, "{found:?}");
            }
        }
    }

    #[test]
    fn a_quote_is_a_letter_where_a_file_is_no_csv() {
        let text = b"\"a\nb\"\n\"\nc\n";
        assert_eq!(piece_ends(text, &LoadOptions::default(), 1, 4), [3, 6, 8, 10]);
        let records = LoadOptions { record_bytes: Some(3), separator: Some(b','), ..LoadOptions::default() };
        assert_eq!(piece_ends(text, &records, 1, 4), [3, 6, 9]);
    }

    #[test]
    fn records_of_lines_end_with_their_last_one() {
        // The text has a quality line that begins as a record does, empty lines between two records, an empty
        // line in a record, and half a record.
        let text = b"\n@a\nAC\n+\n@I\n\r\n\n@b\r\n\r\n+\r\n\r\n@c\nA\n+\n@\n@d\nA";
        let ends: Vec<Option<usize>> =
            (0..text.len()).map(|from| LineRecord::default().end(text, from, 4)).collect();
        // The position after an empty line between two records is also an end.
        assert_eq!(ends[..2], [Some(1), Some(12)]);
        let mut all: Vec<usize> = ends.iter().flatten().copied().collect();
        all.dedup();
        assert_eq!(all, [1, 12, 14, 15, 26, 35]);
        assert!(
            text[15..].starts_with(b"@b") && text[26..].starts_with(b"@c") && text[35..].starts_with(b"@d")
        );
        // The size of the parts in which the text is read does not affect the result.
        for size in 1..text.len() {
            let (mut record, mut at, mut found) = (LineRecord::default(), 0, Vec::new());
            for part in text.chunks(size) {
                let mut rest = part;
                while let Some(end) = record.end(rest, 0, 4) {
                    rest = &rest[end..];
                    found.push(at + part.len() - rest.len());
                }
                at += part.len();
            }
            assert_eq!(found, all, "{size}");
        }
    }

    #[test]
    fn pieces_end_where_they_may() {
        let ends = [100, 210, 290, 400];
        let pieces = |bytes: u64| {
            let (mut start, mut found) = (0, Vec::new());
            while let Some(end) = piece_end(&ends, start, bytes) {
                assert!(ends.contains(&end) && end > start);
                found.push(end);
                start = end;
            }
            found
        };
        assert_eq!(pieces(1), [100, 210, 290, 400]);
        assert_eq!(pieces(200), [210]);
        assert_eq!(pieces(130), [100, 210, 290]);
        assert!(pieces(10_000).is_empty());
        assert_eq!(piece_end(&[], 0, 5), None);
    }
}
