//! What lies where.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::zip,
    ops::Range,
};

use bytes::Bytes;
use futures::{StreamExt, future::FutureExt, stream};

use super::{
    Error, Nodes, Result,
    client::Node,
    protocol::{DatasetKey, Held, Map, piece_name},
    wire::json,
};

/// Maps that are asked for at once: a node reads eight at a time.
const MAPS: usize = 24;

/// The holdings of a number of nodes, as they were told when the nodes were asked. Maps of spread files are asked for when the files
/// are named.
#[derive(Debug)]
pub struct Catalog {
    nodes: Nodes,
    all: AllHeld,
}

#[derive(Debug)]
struct AllHeld {
    /// All datasets, and the nodes that hold them.
    held: Vec<(usize, Held)>,
    /// The place of each node by its number.
    numbers: BTreeMap<u64, usize>,
    /// Nodes that gave no answer, and why.
    lost: Vec<(String, String)>,
}

/// A dataset that is spread: its name, and the number of the load.
type Spread<'a> = (&'a str, u64);

/// A file as it lies on nodes.
#[derive(Clone, Debug)]
pub struct Whole {
    /// What it is called: `store:NAME`, or `store:NAME/FILE`, with `NODE:` before it where others have the same name.
    pub title: String,
    /// The dataset.
    pub dataset: String,
    /// The file in it, where that is not one file that was spread.
    pub file: Option<String>,
    /// The kind of the dataset.
    pub kind: String,
    /// Its pieces, in order.
    pub pieces: Vec<Piece>,
    /// Bytes of a record, where pieces end with one; none where they end with a line.
    pub record_bytes: Option<u64>,
    /// Lines of a record, where pieces end with one of so many lines.
    pub record_lines: Option<u64>,
    /// Whether pieces end with a row group of Parquet.
    pub is_grouped: bool,
    /// Why it cannot be used, where that is so.
    pub fault: Option<String>,
}

/// A part of a file that ends with a line.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Bytes of the whole before it.
    pub offset: u64,
    /// Line feeds of the whole before it; 0 where nobody counted.
    pub lines_before: u64,
    /// Its length.
    pub bytes: u64,
    /// Bytes at its beginning that are not wanted: see [`Whole::slice`].
    pub(super) from: u64,
    /// Who has it: the number of the node, its dataset's number, and the file there.
    pub(super) holders: Vec<Holder>,
    /// Who should have it and has it not, or is not there.
    pub(super) absent: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub node: usize,
    pub id: u64,
    pub file: String,
}

impl Whole {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Only some bytes of it, to be read as they are.
    pub fn slice(&self, range: Range<u64>) -> Whole {
        let cut = |piece: &Piece| {
            let from = range.start.max(piece.offset) - piece.offset;
            let to = range.end.min(piece.offset + piece.bytes).checked_sub(piece.offset)?;
            (from < to).then(|| Piece { from, bytes: to, ..piece.clone() })
        };
        Whole { pieces: self.pieces.iter().filter_map(cut).collect(), ..self.clone() }
    }

    /// On how many nodes each piece is, at least.
    pub fn copies(&self) -> usize {
        self.pieces.iter().map(|piece| piece.holders.len()).min().unwrap_or(0)
    }

    /// The addresses of the nodes that hold some of it.
    pub fn nodes<'a>(&self, nodes: &'a Nodes) -> Vec<&'a str> {
        let holders = self.pieces.iter().flat_map(|piece| piece.holders.iter().map(|holder| holder.node));
        let holders: BTreeSet<usize> = holders.collect();
        holders.into_iter().map(|node| nodes.0.nodes[node].address.as_str()).collect()
    }
}

impl Nodes {
    /// The datasets of all nodes, where nodes of which number are, and those that gave no answer.
    fn held(&self) -> Result<AllHeld> {
        let mut numbers = BTreeMap::new();
        let mut lost = Vec::new();
        let mut first_error = None;
        for (place, found) in self.status().into_iter().enumerate() {
            match found.status {
                Ok(status) => {
                    if let Some(other) = numbers.insert(status.node, place) {
                        let other = &self.0.nodes[other].address;
                        let what = format!("as the same node as {other}: they share a store");
                        return Err(self.0.nodes[place].bad_answer(&what));
                    }
                }
                Err(error) => {
                    lost.push((found.address, error.to_string()));
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| numbers.is_empty()) {
            return Err(error);
        }
        let mut held: Vec<(usize, Held)> = Vec::new();
        for (place, answered) in self.each(|_| ("catalog", Bytes::new())).into_iter().enumerate() {
            let node = &self.0.nodes[place];
            match answered {
                Ok(answers) => {
                    for answer in answers {
                        held.push((place, node.read(&answer)?));
                    }
                }
                Err(error) if !lost.iter().any(|(address, _)| *address == node.address) => {
                    lost.push((node.address.clone(), error.to_string()));
                }
                Err(_) => {}
            }
        }
        Ok(AllHeld { held, numbers, lost })
    }

    /// Asks all nodes what they hold. Those that give no answer are told in the catalog.
    ///
    /// # Errors
    /// Where no node answers; [`Error::BadAnswer`].
    pub fn catalog(&self) -> Result<Catalog> {
        Ok(Catalog { nodes: self.clone(), all: self.held()? })
    }

    /// The files of the datasets whose names are meant.
    fn wholes(&self, all: &AllHeld, is_meant: impl Fn(&str) -> bool) -> Vec<Whole> {
        let AllHeld { held, numbers, lost } = all;
        let held: Vec<&(usize, Held)> = held.iter().filter(|(_, held)| is_meant(&held.name)).collect();
        let mut wholes = Vec::new();
        let mut spreads: BTreeMap<Spread<'_>, Vec<&(usize, Held)>> = BTreeMap::new();
        let mut counts: BTreeMap<&str, BTreeSet<(u64, usize)>> = BTreeMap::new();
        for entry in held.iter().copied() {
            let (place, dataset) = entry;
            // What is spread is one dataset, however many nodes have some of it.
            let one = dataset.spread.map_or((dataset.id, *place), |spread| (spread, usize::MAX));
            counts.entry(&dataset.name).or_default().insert(one);
            if let Some(spread) = dataset.spread {
                spreads.entry((&dataset.name, spread)).or_default().push(entry);
            }
        }
        let is_only = |name: &str| counts[name].len() == 1;
        for (place, dataset) in held.iter().filter(|(_, dataset)| dataset.spread.is_none()) {
            let node = &self.0.nodes[*place].address;
            let single = dataset.files.len() == 1;
            for (file, bytes) in &dataset.files {
                let name = &dataset.name;
                let mut title = if single { format!("store:{name}") } else { format!("store:{name}/{file}") };
                if !is_only(name) {
                    title = format!("{node}:{title}");
                }
                let holders = vec![Holder { node: *place, id: dataset.id, file: file.clone() }];
                let piece =
                    Piece { offset: 0, lines_before: 0, bytes: *bytes, from: 0, holders, absent: Vec::new() };
                wholes.push(Whole {
                    title,
                    dataset: name.clone(),
                    file: Some(file.clone()),
                    kind: dataset.kind.clone(),
                    pieces: vec![piece],
                    record_bytes: None,
                    record_lines: None,
                    is_grouped: false,
                    fault: None,
                });
            }
        }
        let maps = self.maps(&spreads);
        for ((name, map), on) in zip(maps, spreads.into_values()) {
            let kind = on[0].1.kind.clone();
            let mut title = format!("store:{name}");
            if !is_only(name) {
                title = format!("{}:{title}", self.0.nodes[on[0].0].address);
            }
            let dataset = name.to_string();
            // One that was just removed, or is damaged, does not keep from the others.
            let (map, fault) = match map {
                Ok(map) => (map, None),
                Err(error) => (Map::default(), Some(error.to_string())),
            };
            let Map { record_bytes, record_lines, is_grouped, .. } = map;
            let place_of = |node: &super::protocol::MapNode| numbers.get(&node.number).copied();
            let (mut offset, mut lines_before) = (0, 0);
            let mut pieces = Vec::with_capacity(map.pieces.len());
            for (number, piece) in map.pieces.iter().enumerate() {
                let (mut holders, mut absent) = (Vec::new(), Vec::new());
                for &node in &piece.nodes {
                    let node = &map.nodes[node as usize];
                    let place = place_of(node);
                    match place.and_then(|place| on.iter().find(|(other, _)| *other == place)) {
                        Some((place, dataset)) => {
                            holders.push(Holder { node: *place, id: dataset.id, file: piece_name(number) });
                        }
                        None => absent.push(match place {
                            Some(place) => {
                                format!("{} (it has none of {name})", self.0.nodes[place].address)
                            }
                            None => match lost.iter().find(|(address, _)| *address == node.name) {
                                Some((_, why)) => why.clone(),
                                None => format!("{} (it is not among the nodes that answer)", node.name),
                            },
                        }),
                    }
                }
                pieces.push(Piece { offset, lines_before, bytes: piece.bytes, from: 0, holders, absent });
                offset += piece.bytes;
                lines_before += piece.lines;
            }
            wholes.push(Whole {
                title,
                dataset,
                file: None,
                kind,
                pieces,
                record_bytes,
                record_lines,
                is_grouped,
                fault,
            });
        }
        // Files of one dataset in its order, those of one name by nodes.
        let first_node = |whole: &Whole| Some(whole.pieces.first()?.holders.first()?.node);
        wholes.sort_by_key(|whole| (whole.dataset.clone(), first_node(whole)));
        wholes
    }

    /// The maps of spread files with their names, some asked for at once.
    fn maps<'a>(&self, spreads: &BTreeMap<Spread<'a>, Vec<&(usize, Held)>>) -> Vec<(&'a str, Result<Map>)> {
        let asked = spreads.iter().enumerate().map(|(number, (&(name, spread), on))| {
            // Nodes share the work.
            let first = number % on.len();
            let on: Vec<_> = on[first..].iter().chain(&on[..first]).copied().collect();
            async move { (name, self.map(name, spread, &on).await) }.boxed()
        });
        self.0.runtime.block_on(stream::iter(asked).buffered(MAPS).collect())
    }

    /// The map of a spread file, from any node that has it.
    async fn map(&self, name: &str, spread: u64, on: &[&(usize, Held)]) -> Result<Map> {
        let mut failed = None;
        for (place, dataset) in on {
            let asked = DatasetKey { name: name.to_string(), id: dataset.id };
            let node: &Node = &self.0.nodes[*place];
            let answered = node.ask("map", json(&asked), self.0.answer).await;
            let read = answered.and_then(|answers| {
                let map: Map = node.read(&answers.concat())?;
                match map.is_sound() && map.spread == spread {
                    true => Ok(map),
                    false => Err(node.bad_answer(&format!("a map of {name} that makes no sense"))),
                }
            });
            match read {
                Ok(map) => return Ok(map),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::NotFound { name: name.to_string() }))
    }

    /// Removes a dataset from all nodes that have some of it, and says from how many.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Incomplete`] where some node did not answer: then some of it may be left.
    pub fn remove(&self, name: &str) -> Result<usize> {
        let AllHeld { held, lost, .. } = self.held()?;
        let on: Vec<&(usize, Held)> = held.iter().filter(|(_, held)| held.name == name).collect();
        if on.is_empty() {
            return Err(Error::NotFound { name: format!("store:{name}") });
        }
        for (place, held) in &on {
            self.ask(*place, "remove", json(&DatasetKey { name: name.to_string(), id: held.id }))?;
        }
        match lost.first() {
            None => Ok(on.len()),
            Some((_, why)) => {
                let what = format!("removed from {} nodes, but {why}", on.len());
                Err(Error::Incomplete { name: name.to_string(), what })
            }
        }
    }
}

impl Catalog {
    /// All files, by title. The map of each that is spread is asked for.
    pub fn wholes(&self) -> Vec<Whole> {
        self.nodes.wholes(&self.all, |_| true)
    }

    /// Nodes that gave no answer, and why.
    pub fn lost(&self) -> &[(String, String)] {
        &self.all.lost
    }

    /// The files that `NAME` (all of a dataset's, on all nodes) or `NAME/FILE` means. Their maps are asked for, and no others.
    ///
    /// # Errors
    /// [`Error::NotFound`], which says which nodes did not answer; [`Error::Incomplete`] for a file whose map no node gives.
    pub fn named(&self, named: &str) -> Result<Vec<Whole>> {
        let (name, file) = named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
        let mut found = self.nodes.wholes(&self.all, |dataset| dataset == name);
        found.retain(|whole| file.is_none_or(|file| whole.file.as_deref() == Some(file)));
        if let Some(Whole { title, fault: Some(what), .. }) = found.iter().find(|whole| whole.fault.is_some())
        {
            return Err(Error::Incomplete { name: title.clone(), what: what.clone() });
        }
        if file.is_some() {
            // As it was named, also where it is all of its dataset.
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

    /// Whether a node has a dataset of this name.
    pub fn has(&self, name: &str) -> bool {
        self.all.held.iter().any(|(_, held)| held.name == name)
    }
}
