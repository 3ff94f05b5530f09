//! Lists the datasets of nodes, and locates the pieces of files on nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::zip,
    mem,
    ops::Range,
};

use bytes::Bytes;
use inshore_kernel::ResumePosition;

use super::{
    generations::{self, DatasetListing, GenerationStatus},
    nodes::Node,
};
use crate::{
    Error, Nodes, Result,
    protocol::{
        DatasetKey, DatasetReplica, FileMap, MAP_VERSION, MAPS_MAX, MapAnswer, PieceRequest, SPREAD,
        SpreadId, piece_name, wire::json,
    },
};

/// The list of the datasets on a group of nodes, as reported by the nodes. The map of a spread file is requested only
/// when a caller requests the file.
#[derive(Debug)]
pub struct Catalog {
    nodes: Nodes,
    all: DatasetListing,
}

/// A file with the locations of its pieces on nodes.
#[derive(Clone, Debug)]
pub struct DistributedFile {
    /// The title: `store:NAME` or `store:NAME/FILE`, prefixed with `NODE:` if the name is ambiguous.
    pub title: String,
    /// The name of the dataset.
    pub dataset: String,
    /// The file in the dataset. The value is `None` for a spread file.
    pub file: Option<String>,
    /// The kind of the dataset.
    pub kind: String,
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
    /// The size of a record in bytes, if all records have this size and pieces end with a record; otherwise `None`.
    pub record_bytes: Option<u64>,
    /// The number of lines of a record, if all records have this number of lines and pieces end with a record;
    /// otherwise `None`.
    pub record_lines: Option<u64>,
    /// True if each piece ends at the end of a row group of Parquet.
    pub is_grouped: bool,
    /// The description of the bytes by the operation that loaded the file; `None` for a file without one.
    pub description: Option<serde_json::Value>,
    /// The id of a spread file: a later file of the same name has a different id. `None` for a dataset of one node.
    pub id: Option<SpreadId>,
    /// The reason why the file cannot be used, if any.
    pub fault: Option<String>,
}

/// A part of a file. A piece ends at the end of a line, a record or a row group.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The offset of the piece in the complete file, in bytes.
    pub offset: u64,
    /// The number of line feeds of the complete file before the piece, or 0 if the line feeds were not counted.
    pub lines_before: u64,
    /// The length of the piece in bytes.
    pub bytes: u64,
    /// The number of bytes at the beginning of the stored piece that are not read: see [`DistributedFile::slice`].
    pub(crate) from: u64,
    /// The copies of the piece, each with the index of its node, the number of the dataset on this node, and the name
    /// of the file.
    pub(crate) holders: Vec<Replica>,
    /// The nodes that should hold the piece according to the map, but do not hold it or did not answer.
    pub(crate) absent: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub node: usize,
    pub id: u64,
    pub file: String,
}

impl Piece {
    /// Returns the request to a holder for the bytes of the piece from a position on. The numbers are those of the piece
    /// and of the file in the request.
    pub(crate) fn request(
        &self,
        holder: &Replica,
        dataset: &str,
        (number, whole): (u64, u64),
        reach: ResumePosition,
    ) -> PieceRequest {
        PieceRequest {
            number,
            whole,
            dataset: dataset.to_string(),
            id: holder.id,
            file: holder.file.clone(),
            from: reach.bytes,
            to: self.bytes,
            offset: self.offset + reach.bytes,
            lines: self.lines_before + reach.lines,
        }
    }
}

impl DistributedFile {
    /// Returns the requests for a whole piece, each with the index of a node that holds the piece. `number` and `whole`
    /// are the numbers of the piece and of the file in the request.
    pub fn piece_requests(&self, piece: usize, number: u64, whole: u64) -> Vec<(usize, PieceRequest)> {
        let piece = &self.pieces[piece];
        let start = ResumePosition { bytes: piece.from, lines: 0 };
        let request = |holder: &Replica| piece.request(holder, &self.dataset, (number, whole), start);
        piece.holders.iter().map(|holder| (holder.node, request(holder))).collect()
    }

    /// Returns the reasons why no node holds a piece.
    pub fn absence(&self, piece: usize) -> String {
        let Piece { offset, bytes, absent, .. } = &self.pieces[piece];
        let why = if absent.is_empty() { "no node holds them".to_string() } else { absent.join("; ") };
        format!("{}: bytes {offset} to {}: {why}", self.title, offset + bytes)
    }

    /// Returns a spread file of which only the name is known so far.
    fn spread(title: String, dataset: String) -> DistributedFile {
        DistributedFile {
            title,
            dataset,
            file: None,
            kind: SPREAD.to_string(),
            pieces: Vec::new(),
            record_bytes: None,
            record_lines: None,
            is_grouped: false,
            description: None,
            id: None,
            fault: None,
        }
    }

    /// Returns the length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Returns a byte range of the file as a separate file. Its pieces may begin and end within a line or a record.
    pub fn slice(&self, range: Range<u64>) -> DistributedFile {
        let cut = |piece: &Piece| {
            let from = range.start.max(piece.offset) - piece.offset;
            let to = range.end.min(piece.offset + piece.bytes).checked_sub(piece.offset)?;
            (from < to).then(|| Piece { from, bytes: to, ..piece.clone() })
        };
        DistributedFile { pieces: self.pieces.iter().filter_map(cut).collect(), ..self.clone() }
    }

    /// Returns the number of copies of the piece with the fewest copies.
    pub fn copies(&self) -> usize {
        self.pieces.iter().map(|piece| piece.holders.len()).min().unwrap_or(0)
    }

    /// Returns the addresses of the nodes that hold parts of the file.
    pub fn nodes<'a>(&self, nodes: &'a Nodes) -> Vec<&'a str> {
        let holders = self.pieces.iter().flat_map(|piece| piece.holders.iter().map(|holder| holder.node));
        let holders: BTreeSet<usize> = holders.collect();
        holders.into_iter().map(|node| nodes.0.nodes[node].address.as_str()).collect()
    }
}

impl Nodes {
    /// Requests the list of datasets from all nodes.
    pub(crate) fn held(&self) -> Result<DatasetListing> {
        let mut numbers = BTreeMap::new();
        let mut lost = Vec::new();
        let mut first_error = None;
        for (place, found) in self.status().into_iter().enumerate() {
            match found.status {
                Ok(status) => {
                    if let Some(other) = numbers.insert(status.node, place) {
                        let other = &self.0.nodes[other].address;
                        let what = format!(
                            "it has the node id of {other}: both addresses lead to one node, or two nodes share a store"
                        );
                        return Err(self.0.nodes[place].bad_answer(&what));
                    }
                }
                // The deadline has passed, so further requests could not be answered in time.
                Err(error @ Error::Deadline { .. }) => return Err(error),
                Err(error) => {
                    lost.push((found.address, error.to_string()));
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| numbers.is_empty()) {
            return Err(error);
        }
        let (mut held, mut marks) = (Vec::new(), Vec::new());
        for (place, answered) in self.each(|_| ("catalog", Bytes::new())).into_iter().enumerate() {
            let node = &self.0.nodes[place];
            match answered {
                Ok(answers) => {
                    for answer in answers {
                        let one: DatasetReplica = node.read(&answer)?;
                        let all = if one.mark.is_some() { &mut marks } else { &mut held };
                        all.push((place, one));
                    }
                }
                Err(error @ Error::Deadline { .. }) => return Err(error),
                Err(error) if !lost.iter().any(|(address, _)| *address == node.address) => {
                    numbers.retain(|_, other| *other != place);
                    lost.push((node.address.clone(), error.to_string()));
                }
                Err(_) => {}
            }
        }
        Ok(DatasetListing { held, marks, numbers, lost })
    }

    /// Requests the list of datasets from all nodes. The catalog lists the nodes that do not answer.
    ///
    /// # Errors
    /// - Returns the first error if no node answers.
    /// - Returns [`Error::BadAnswer`] if the answer of a node is invalid.
    pub fn catalog(&self) -> Result<Catalog> {
        Ok(Catalog { nodes: self.clone(), all: self.held()? })
    }

    /// Returns the files of the datasets that `is_meant` selects. Only the maps of these datasets are
    /// requested.
    fn wholes(&self, all: &DatasetListing, is_meant: impl Fn(&str) -> bool) -> Result<Vec<DistributedFile>> {
        let DatasetListing { held, .. } = all;
        let held: Vec<&(usize, DatasetReplica)> =
            held.iter().filter(|(_, dataset)| is_meant(&dataset.name)).collect();
        let mut wholes = Vec::new();
        let mut counts: BTreeMap<&str, BTreeSet<(u128, usize)>> = BTreeMap::new();
        for (place, dataset) in held.iter().copied() {
            // A spread dataset counts as one dataset, regardless of the number of its nodes.
            let plain = (dataset.id.into(), *place);
            let one = dataset.generation.map_or(plain, |generation| (generation.id.0, usize::MAX));
            counts.entry(&dataset.name).or_default().insert(one);
        }
        let is_only = |name: &str| counts[name].len() == 1;
        let address = |place: usize| self.0.nodes[place].address.clone();
        for (place, dataset) in held.iter().filter(|(_, dataset)| dataset.generation.is_none()) {
            wholes.extend(self.plain_files(*place, dataset, is_only(&dataset.name)));
        }
        let by_name = generations::by_name(all);
        let meant = by_name.iter().filter(|(name, _)| is_meant(name));
        let there = meant.flat_map(|(&name, known)| known.iter().map(move |known| (name, known)));
        let there: Vec<(&str, &GenerationStatus)> =
            there.filter(|(_, known)| !known.holders.is_empty()).collect();
        for (&(name, known), map) in zip(&there, self.maps(&there)?) {
            let on = &known.holders;
            let mut title = format!("store:{name}");
            if !is_only(name) {
                title = format!("{}:{title}", address(on[0].0));
            }
            // A file that was just removed or is damaged is listed without pieces, and does not prevent the listing of
            // the other files.
            let (map, unread) = match map {
                Ok(map) => (map, None),
                Err(why) => (FileMap::default(), Some(why)),
            };
            let mut whole = DistributedFile {
                record_bytes: map.record_bytes,
                record_lines: map.record_lines,
                is_grouped: map.is_grouped,
                description: map.description.clone(),
                id: Some(known.generation.id),
                fault: generations::fault(name, &by_name[name], address).or(unread),
                ..DistributedFile::spread(title, name.to_string())
            };
            whole.pieces = self.located_pieces(name, &map, known, all);
            wholes.push(whole);
        }
        // The sort keeps the order of the files of a dataset. Datasets with the same name are sorted by node.
        let first_node = |whole: &DistributedFile| Some(whole.pieces.first()?.holders.first()?.node);
        wholes.sort_by_key(|whole| (whole.dataset.clone(), first_node(whole)));
        Ok(wholes)
    }

    /// Returns the files of a dataset that one node holds alone. The titles contain the node's address unless
    /// the name is unique (`is_only`).
    fn plain_files(&self, place: usize, dataset: &DatasetReplica, is_only: bool) -> Vec<DistributedFile> {
        let (node, name) = (&self.0.nodes[place].address, &dataset.name);
        if dataset.kind == SPREAD {
            let title = format!("{node}:store:{name}");
            return vec![DistributedFile {
                fault: Some(of_earlier_version(name)),
                ..DistributedFile::spread(title, name.clone())
            }];
        }
        let single = dataset.files.len() == 1;
        let file = |(file, bytes): &(String, u64)| {
            let mut title = if single { format!("store:{name}") } else { format!("store:{name}/{file}") };
            if !is_only {
                title = format!("{node}:{title}");
            }
            let holders = vec![Replica { node: place, id: dataset.id, file: file.clone() }];
            let piece =
                Piece { offset: 0, lines_before: 0, bytes: *bytes, from: 0, holders, absent: Vec::new() };
            DistributedFile {
                title,
                dataset: name.clone(),
                file: Some(file.clone()),
                kind: dataset.kind.clone(),
                pieces: vec![piece],
                record_bytes: None,
                record_lines: None,
                is_grouped: false,
                description: None,
                id: None,
                fault: None,
            }
        };
        dataset.files.iter().map(file).collect()
    }

    /// Returns the pieces of a map. Each piece lists the nodes that hold it, and the nodes that should hold
    /// it but do not.
    fn located_pieces(
        &self,
        name: &str,
        map: &FileMap,
        known: &GenerationStatus,
        all: &DatasetListing,
    ) -> Vec<Piece> {
        let DatasetListing { numbers, lost, .. } = all;
        let mut pieces = Vec::with_capacity(map.pieces.len());
        let (mut offset, mut lines_before) = (0, 0);
        for (number, piece) in map.pieces.iter().enumerate() {
            let (mut holders, mut absent) = (Vec::new(), Vec::new());
            for &node in &piece.nodes {
                let node = &map.nodes[node as usize];
                let place = numbers.get(&node.number).copied();
                match place.and_then(|place| known.holders.iter().find(|(other, _)| *other == place)) {
                    Some(&(node, id)) => holders.push(Replica { node, id, file: piece_name(number) }),
                    None => absent.push(match place {
                        Some(place) => format!("{} (it has no shard of {name})", self.0.nodes[place].address),
                        None => match lost.iter().find(|(address, _)| *address == node.name) {
                            Some((_, why)) => why.clone(),
                            None => format!("{} (it did not answer)", node.name),
                        },
                    }),
                }
            }
            let bytes = piece.bytes;
            pieces.push(Piece { offset, lines_before, bytes, from: 0, holders, absent });
            offset += piece.bytes;
            lines_before += piece.lines;
        }
        pieces
    }

    /// Returns the map of each spread file, or the reason why no node returns the map. One request contains
    /// the names of many files. If a node fails to return a map, the next request for this map goes to the
    /// next holder of the file.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deadline has passed.
    pub(crate) fn maps(&self, files: &[(&str, &GenerationStatus)]) -> Result<Vec<MapAnswer>> {
        let none = |(name, _): &(&str, &GenerationStatus)| {
            Err(Error::NotFound { name: name.to_string() }.to_string())
        };
        let mut maps: Vec<MapAnswer> = files.iter().map(none).collect();
        // For each file, the number of nodes that did not return the map so far.
        let mut refused = vec![0; files.len()];
        loop {
            let mut asked: BTreeMap<usize, Vec<(usize, DatasetKey)>> = BTreeMap::new();
            for (file, (name, GenerationStatus { holders, .. })) in files.iter().enumerate() {
                if maps[file].is_err() && refused[file] < holders.len() {
                    // The holder of a file that receives the request depends on the index of the file, so that the
                    // requests are distributed over the nodes.
                    let (place, id) = holders[(file + refused[file]) % holders.len()];
                    let of_node = asked.entry(place).or_default();
                    if of_node.len() < MAPS_MAX {
                        of_node.push((file, DatasetKey { name: name.to_string(), id }));
                    }
                }
            }
            if asked.is_empty() {
                return Ok(maps);
            }
            let keys =
                |files: &[(usize, DatasetKey)]| json(&files.iter().map(|(_, key)| key).collect::<Vec<_>>());
            let questions = asked.iter().map(|(&place, of_node)| (place, "map", keys(of_node))).collect();
            for ((place, of_node), answered) in zip(asked, self.ask_some(questions)) {
                let node = &self.0.nodes[place];
                let answers = match answered.and_then(|bodies| read_maps(node, of_node.len(), &bodies)) {
                    Ok(answers) => answers,
                    Err(error @ Error::Deadline { .. }) => return Err(error),
                    Err(error) => vec![Err(error.to_string()); of_node.len()],
                };
                // Maps that did not fit in the node's answer are requested again in the next iteration.
                for ((file, key), answer) in zip(of_node, answers) {
                    maps[file] = answer.and_then(|map| {
                        let is_right = map.is_sound() && map.generation == files[file].1.generation;
                        let what = || format!("the map of the pieces of {} is invalid", key.name);
                        if is_right { Ok(map) } else { Err(node.bad_answer(&what()).to_string()) }
                    });
                    refused[file] += usize::from(maps[file].is_err());
                }
            }
        }
    }
}

/// Parses the answer of a node to a request for a number (`asked`) of maps.
fn read_maps(node: &Node, asked: usize, bodies: &[Bytes]) -> Result<Vec<MapAnswer>> {
    let mut answers: Vec<MapAnswer> = node.read_all(&bodies.concat())?;
    if !(1..=asked).contains(&answers.len()) {
        return Err(node.bad_answer(&format!("{} maps for {asked} requests", answers.len())));
    }
    for what in answers.iter_mut().filter_map(|answer| answer.as_mut().err()) {
        *what = Error::Refused { node: node.address.clone(), what: mem::take(what) }.to_string();
    }
    Ok(answers)
}

/// Returns the reason why shards that an earlier version of Inshore stored are not read.
fn of_earlier_version(name: &str) -> String {
    format!(
        "an earlier version of Inshore stored it (map version 1, expected {MAP_VERSION}): read it with that version, remove it (`inshore store rm {name}`) and put it again"
    )
}

impl Catalog {
    /// Returns all files, sorted by title. The maps of all spread files are requested.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deadline has passed.
    pub fn wholes(&self) -> Result<Vec<DistributedFile>> {
        self.nodes.wholes(&self.all, |_| true)
    }

    /// Returns the nodes that did not answer, with the reasons.
    pub fn lost(&self) -> &[(String, String)] {
        &self.all.lost
    }

    /// Returns the files with the name `NAME` (all files of a dataset, on all nodes) or `NAME/FILE`. The maps
    /// of these files are requested.
    ///
    /// # Errors
    /// - Returns [`Error::NotFound`] if no node has the dataset. If a node did not answer, the error names that node.
    /// - Returns [`Error::Incomplete`] if the nodes have several generations of the dataset, or if no node returns the
    ///   description of the locations of its pieces.
    /// - Returns [`Error::Deadline`] if the deadline passes before the call has finished.
    pub fn named(&self, named: &str) -> Result<Vec<DistributedFile>> {
        let (name, file) = named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
        let mut found = self.nodes.wholes(&self.all, |dataset| dataset == name)?;
        found.retain(|whole| file.is_none_or(|file| whole.file.as_deref() == Some(file)));
        if let Some(DistributedFile { dataset, fault: Some(what), .. }) =
            found.iter().find(|whole| whole.fault.is_some())
        {
            return Err(Error::Incomplete { name: format!("store:{dataset}"), what: what.clone() });
        }
        if file.is_some() {
            // The title of a file is the name that the caller passed, even if the dataset has only one file.
            found.iter_mut().for_each(|whole| {
                let file = whole.file.as_deref().unwrap_or_default();
                let end = format!("/{file}");
                if !whole.title.ends_with(&end) {
                    whole.title.push_str(&end);
                }
            });
        }
        if !found.is_empty() {
            return Ok(found);
        }
        let mut name = format!("store:{named}");
        if let Some((_, why)) = self.all.lost.first() {
            name = format!("{name} ({why})");
        }
        Err(Error::NotFound { name })
    }

    /// Returns the files of the dataset `name`, also those with a [fault](DistributedFile::fault). The maps of these
    /// files are requested.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the deadline has passed.
    pub fn files_of(&self, name: &str) -> Result<Vec<DistributedFile>> {
        self.nodes.wholes(&self.all, |dataset| dataset == name)
    }

    /// Returns true if a node has a dataset of this name.
    pub fn has(&self, name: &str) -> bool {
        self.all.held.iter().any(|(_, held)| held.name == name)
    }
}
