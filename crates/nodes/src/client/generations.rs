//! Decides which generations of a distributed dataset are dropped if one name has several generations.
//!
//! While a node is unreachable, a dataset can be removed and another dataset can be put under the name. When the node
//! is reachable again, its shards belong to another *generation* than the shards on the other nodes. No answer may
//! contain data of two generations.
//!
//! ```text
//!   node 1   shard of A ── rm ──► mark: A removed, node 3 absent ── put ──► shard of B (number 2), mark ── repair ─
//!   node 3   shard of A ── absent ─────────────────────────────────
//! ```
//!
//! - A [`Generation`] has a random id and a number. A put (the upload of a dataset) asks its nodes for the highest
//!   number in their tombstones of the name, and uses the next number.
//! - A [`Tombstone`] ("mark" in the figure) records that a generation was removed, and lists the nodes that have not
//!   confirmed the removal. The nodes that dropped their shards store the tombstone, in the attributes of a dataset of
//!   the kind [`REMOVED`], until a repair reaches the absent nodes.
//! - A query that finds two generations, or a generation with a tombstone, is an error ([`fault`]). [`Nodes::repair`]
//!   drops the [`outdated`] generations. A query itself drops nothing, since a wrong choice could not be undone.
//!
//! Only the nodes that a command names are compared: if a command names one node, the answer is about the data of
//! that node alone.

use std::collections::{BTreeMap, BTreeSet};

use time::OffsetDateTime;

use crate::{
    Error, Nodes, Result,
    protocol::{
        DatasetReplica, Generation, MAP_VERSION, MapNode, RemoveRequest, SpreadId, Tombstone, wire::json,
    },
};

impl Generation {
    /// Describes a dataset that a task writes now. The number follows from the time, so that it exceeds the numbers of
    /// generations of its name that tasks wrote before.
    pub fn now() -> Generation {
        Generation { id: SpreadId::random(), number: now_ms(), put_ms: now_ms() }
    }
}

impl SpreadId {
    /// Draws a random id.
    pub fn random() -> SpreadId {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the system gives random numbers");
        SpreadId(u128::from_le_bytes(random))
    }
}

/// Returns the time of this machine, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    (OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000).try_into().unwrap_or(0)
}

/// Formats a time for people.
fn utc(ms: u64) -> String {
    let time =
        i64::try_from(ms / 1000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let Some(time) = time else { return "at an unknown time".to_string() };
    let (date, clock) = (time.date(), time.time());
    let month = u8::from(date.month());
    let (hour, minute, second) = clock.as_hms();
    format!("{:04}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", date.year(), date.day())
}

/// The datasets on all nodes, as reported by the nodes.
#[derive(Debug)]
pub(crate) struct DatasetListing {
    /// The datasets, each with the index of its node.
    pub held: Vec<(usize, DatasetReplica)>,
    /// The tombstones, each with the index of its node.
    pub marks: Vec<(usize, DatasetReplica)>,
    /// Maps the number of each node that answered to the index of the node.
    pub numbers: BTreeMap<u64, usize>,
    /// The nodes that did not answer, with the reasons.
    pub lost: Vec<(String, String)>,
}

/// A generation of a name, according to the nodes that answered.
#[derive(Clone, Debug)]
pub(crate) struct GenerationStatus {
    pub generation: Generation,
    /// The indexes of the nodes that hold shards, and the numbers of their datasets.
    pub holders: Vec<(usize, u64)>,
    /// The indexes of the nodes that store a tombstone, and the tombstones.
    marks: Vec<(usize, Tombstone)>,
}

impl GenerationStatus {
    fn is_removed(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Returns the description of the generation for errors.
    fn told(&self, address: impl Fn(usize) -> String) -> String {
        let Generation { id, put_ms, .. } = self.generation;
        let removed = self
            .marks
            .first()
            .map_or(String::new(), |(_, mark)| format!(", removed {}", utc(mark.removed_ms)));
        let nodes: Vec<String> = self.holders.iter().map(|(place, _)| address(*place)).collect();
        format!("{id} (put {}{removed}; on {})", utc(put_ms), nodes.join(", "))
    }
}

/// Returns the generations of each dataset name that is distributed or was removed.
pub(crate) fn by_name(all: &DatasetListing) -> BTreeMap<&str, Vec<GenerationStatus>> {
    let mut known: BTreeMap<(&str, SpreadId), GenerationStatus> = BTreeMap::new();
    for (place, held) in all.held.iter().chain(&all.marks) {
        let Some(generation) = held.generation else { continue };
        let entry = known.entry((&held.name, generation.id));
        let known =
            entry.or_insert_with(|| GenerationStatus { generation, holders: Vec::new(), marks: Vec::new() });
        match &held.mark {
            Some(mark) => known.marks.push((*place, mark.clone())),
            None => known.holders.push((*place, held.id)),
        }
    }
    let mut by_name: BTreeMap<&str, Vec<GenerationStatus>> = BTreeMap::new();
    for ((name, _), known) in known {
        by_name.entry(name).or_default().push(known);
    }
    by_name
}

/// Returns the reason if the shards of a name cannot be read: the shards belong to several generations or to a
/// removed generation.
pub(crate) fn fault(
    name: &str,
    known: &[GenerationStatus],
    address: impl Fn(usize) -> String,
) -> Option<String> {
    let there: Vec<&GenerationStatus> = known.iter().filter(|known| !known.holders.is_empty()).collect();
    let what = match &there[..] {
        [] => return None,
        [only] if !only.is_removed() => return None,
        [_] => "these nodes have a generation that was removed",
        _ => "these nodes have different generations",
    };
    let told: Vec<String> = there.iter().map(|known| known.told(&address)).collect();
    Some(format!(
        "{what}: {}: `inshore store repair {name}` removes outdated generations",
        told.join(" and ")
    ))
}

/// Returns the outdated generations of a name, which a repair drops. A generation is outdated if it has a tombstone, or
/// if another generation has a higher number. If several other generations remain, `keep` selects the generation that
/// stays.
///
/// # Errors
/// Returns an error that describes the choice which the user has to make.
pub(crate) fn outdated(
    known: &[GenerationStatus],
    keep: Option<SpreadId>,
    address: impl Fn(usize) -> String,
) -> std::result::Result<Vec<&GenerationStatus>, String> {
    let is_live = |known: &&GenerationStatus| !known.holders.is_empty() && !known.is_removed();
    let newest = known.iter().filter(is_live).map(|known| known.generation.number).max();
    let current: Vec<&GenerationStatus> =
        known.iter().filter(is_live).filter(|known| Some(known.generation.number) == newest).collect();
    let kept = match (&current[..], keep) {
        (all, Some(keep)) => {
            let named = all.iter().find(|known| known.generation.id == keep);
            let told: Vec<String> = all.iter().map(|known| known.told(&address)).collect();
            Some(named.ok_or_else(|| {
                format!("--keep {keep} is not one of its live generations: {}", told.join(" and "))
            })?)
        }
        (several @ [_, _, ..], None) => {
            let told: Vec<String> = several.iter().map(|known| known.told(&address)).collect();
            return Err(format!(
                "neither of these generations replaces the other: {}: --keep ID keeps one and removes the others",
                told.join(" and ")
            ));
        }
        (one, None) => one.first(),
    };
    let kept = kept.map(|kept| kept.generation.id);
    Ok(known.iter().filter(|known| Some(known.generation.id) != kept).collect())
}

/// A generation whose shards or tombstones a repair removed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GenerationRepair {
    /// The name of the dataset.
    pub name: String,
    /// The id of the generation.
    pub id: SpreadId,
    /// The time of the put, by the clock of the client that put the dataset.
    pub put: String,
    /// The nodes whose shards were dropped.
    pub nodes: Vec<String>,
    /// The unreachable nodes that may still have shards. The other nodes store a tombstone until a repair
    /// reaches these nodes.
    pub absent: Vec<String>,
}

impl Nodes {
    /// Removes a dataset from all nodes that hold parts of the dataset, and returns the number of nodes.
    ///
    /// # Errors
    /// - Returns [`Error::NotFound`] if no node has the dataset.
    /// - Returns [`Error::Incomplete`] if a node did not answer. Parts of the dataset may remain on that node.
    pub fn remove(&self, name: &str) -> Result<usize> {
        let all = self.held()?;
        let plain = all.held.iter().filter(|(_, held)| held.name == name && held.generation.is_none());
        let plain: Vec<(usize, RemoveRequest)> = plain
            .map(|(place, held)| {
                (*place, RemoveRequest { name: held.name.clone(), id: Some(held.id), mark: None })
            })
            .collect();
        let known = by_name(&all).remove(name).unwrap_or_default();
        if plain.is_empty() && known.iter().all(|known| known.holders.is_empty()) {
            return Err(Error::NotFound { name: format!("store:{name}") });
        }
        let mut from = plain.len();
        for (_, removed) in self.remove_from(&plain) {
            removed?;
        }
        let mut absent = BTreeSet::new();
        for known in &known {
            absent.extend(self.drop_shards(&all, name, known)?);
            from += known.holders.len();
        }
        let why = match (all.lost.first(), absent.is_empty()) {
            (None, true) => return Ok(from),
            (Some((_, why)), _) => why.clone(),
            (None, false) => "not all of its nodes were given".to_string(),
        };
        let mut what = format!("removed from {from} nodes, but {why}");
        if !absent.is_empty() {
            let absent: Vec<String> = absent.into_iter().collect();
            what = format!(
                "{what}; once the node is back, `inshore store repair {name}` removes the rest from {}",
                absent.join(", ")
            );
        }
        Err(Error::Incomplete { name: name.to_string(), what })
    }

    /// Drops shards that a tombstone or a newer generation makes outdated, for the given names or all names,
    /// and removes tombstones that every node has confirmed. If several live generations of a name remain,
    /// `keep` selects the generation that stays.
    ///
    /// # Errors
    /// - Returns [`Error::NotFound`] if no node has the dataset.
    /// - Returns [`Error::Incomplete`] if the user has to make a choice. In this case, nothing was dropped.
    /// - Returns the errors of the nodes.
    pub fn repair(&self, names: &[String], keep: Option<SpreadId>) -> Result<Vec<GenerationRepair>> {
        let all = self.held()?;
        let by_name = by_name(&all);
        if let Some(name) = names.iter().find(|name| !by_name.contains_key(name.as_str())) {
            let lost = all.lost.first().map_or(String::new(), |(_, why)| format!(" ({why})"));
            return Err(Error::NotFound { name: format!("store:{name}{lost}") });
        }
        let wanted =
            by_name.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|one| one == *name));
        let address = |place: usize| self.0.nodes[place].address.clone();
        let mut to_drop = Vec::new();
        for (name, known) in wanted {
            let outdated = outdated(known, keep, address);
            let outdated =
                outdated.map_err(|what| Error::Incomplete { name: format!("store:{name}"), what })?;
            to_drop.extend(outdated.into_iter().map(|known| (*name, known)));
        }
        let mut repaired = Vec::new();
        for (name, known) in to_drop {
            let absent = self.drop_shards(&all, name, known)?;
            let Generation { id, put_ms, .. } = known.generation;
            let nodes = known.holders.iter().map(|(place, _)| address(*place)).collect();
            let absent = absent.into_iter().collect();
            repaired.push(GenerationRepair { name: name.to_string(), id, put: utc(put_ms), nodes, absent });
        }
        Ok(repaired)
    }

    /// Drops the shards of a generation from all nodes that answered. Returns the names of the absent nodes that may
    /// have shards. The nodes that answered store a tombstone for the absent nodes.
    fn drop_shards(
        &self,
        all: &DatasetListing,
        name: &str,
        known: &GenerationStatus,
    ) -> Result<BTreeSet<String>> {
        let generation = known.generation;
        let unconfirmed: Vec<MapNode> = match &known.marks[..] {
            // If no node returns a readable map, the nodes with shards are unknown, so no tombstone is written. A node
            // that is lost during this request is then reported as lost, but not as absent.
            [] => {
                let maps = self.maps(&[(name, known)])?;
                maps.into_iter().flatten().flat_map(|map| map.nodes).collect()
            }
            // A node has confirmed the removal if at least one tombstone does not list the node as absent.
            [(_, first), others @ ..] => {
                let is_in_all = |node: &&MapNode| {
                    let has =
                        |mark: &Tombstone| mark.absent.iter().any(|absent| absent.number == node.number);
                    others.iter().all(|(_, mark)| has(mark))
                };
                first.absent.iter().filter(is_in_all).cloned().collect()
            }
        };
        let absent: Vec<MapNode> =
            unconfirmed.into_iter().filter(|node| !all.numbers.contains_key(&node.number)).collect();
        let removed_ms = known.marks.first().map_or_else(now_ms, |(_, mark)| mark.removed_ms);
        let mark = |absent: &[MapNode]| {
            let (name, absent) = (name.to_string(), absent.to_vec());
            Some(Tombstone { version: MAP_VERSION, name, generation, removed_ms, absent })
        };
        let removal = |id: Option<u64>, absent: &[MapNode]| RemoveRequest {
            name: name.to_string(),
            id,
            mark: mark(absent),
        };
        let mut targets: BTreeMap<usize, Option<u64>> =
            known.marks.iter().map(|(place, _)| (*place, None)).collect();
        targets.extend(known.holders.iter().map(|(place, id)| (*place, Some(*id))));
        let targets: Vec<(usize, RemoveRequest)> =
            targets.into_iter().map(|(place, id)| (place, removal(id, &absent))).collect();
        let (mut failed, mut done) = (Vec::new(), Vec::new());
        for (place, removed) in self.remove_from(&targets) {
            match removed {
                Ok(()) => done.push(place),
                Err(error) => failed.push((place, error)),
            }
        }
        if failed.is_empty() {
            return Ok(absent.into_iter().map(|node| node.name).collect());
        }
        // A node that was lost during the removal counts as absent.
        let mut absent = absent;
        for (place, _) in &failed {
            let number = all.numbers.iter().find(|(_, other)| *other == place).map(|(&number, _)| number);
            let name = self.0.nodes[*place].address.clone();
            absent.extend(number.map(|number| MapNode { number, name }));
        }
        let marks: Vec<(usize, RemoveRequest)> =
            done.iter().map(|&place| (place, removal(None, &absent))).collect();
        let marked = self.remove_from(&marks).iter().filter(|(_, marked)| marked.is_ok()).count();
        let (_, error) = failed.swap_remove(0);
        let what = format!(
            "removed from {} nodes, of which {marked} recorded the removal, and then failed: {error}",
            done.len()
        );
        Err(Error::Incomplete { name: name.to_string(), what })
    }

    /// Sends removal requests to several nodes in parallel.
    fn remove_from(&self, asked: &[(usize, RemoveRequest)]) -> Vec<(usize, Result<()>)> {
        let questions = asked.iter().map(|(place, removal)| (*place, "remove", json(removal))).collect();
        let answers = self.ask_some(questions).into_iter().map(|answer| answer.map(drop));
        asked.iter().map(|(place, _)| *place).zip(answers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tombstones::mark_name;

    fn known(id: u128, number: u64, holders: &[usize], is_marked: bool) -> GenerationStatus {
        let generation = Generation { id: SpreadId(id), number, put_ms: 1_780_000_000_000 };
        let absent = vec![MapNode { number: 3, name: "c:4710".to_string() }];
        let mark = Tombstone {
            version: MAP_VERSION,
            name: "x".to_string(),
            generation,
            removed_ms: 1_780_000_001_000,
            absent,
        };
        GenerationStatus {
            generation,
            holders: holders.iter().map(|&place| (place, 7)).collect(),
            marks: is_marked.then_some((0, mark)).into_iter().collect(),
        }
    }

    fn address(place: usize) -> String {
        ["a", "b", "c"][place].to_string()
    }

    #[test]
    fn a_mark_or_a_higher_number_outdates_and_what_is_left_is_chosen() {
        let ids = |known: &[GenerationStatus], keep: Option<u128>| {
            let outdated = outdated(known, keep.map(SpreadId), address)?;
            Ok::<_, String>(outdated.iter().map(|known| known.generation.id.0).collect::<Vec<_>>())
        };
        assert_eq!(ids(&[known(1, 1, &[0, 1], false)], None).unwrap(), []);
        // The dataset was removed and put again while one node was absent. The node is now reachable again.
        let replaced = [known(1, 1, &[2], true), known(2, 2, &[0, 1], false)];
        assert_eq!(ids(&replaced, None).unwrap(), [1]);
        assert!(ids(&replaced, Some(1)).unwrap_err().contains("not one of its live generations"));
        // The nodes with the tombstones are lost: the number alone makes the generation outdated.
        assert_eq!(ids(&[known(1, 1, &[2], false), known(2, 2, &[1], false)], None).unwrap(), [1]);
        // In the first case, only a tombstone remains. In the second case, a shard of a removed generation also
        // remains.
        assert_eq!(ids(&[known(1, 1, &[], true)], None).unwrap(), [1]);
        assert_eq!(ids(&[known(1, 1, &[2], true)], None).unwrap(), [1]);
        // Generations 1 and 2 were put independently, and both have number 1.
        let two = [known(1, 1, &[0], false), known(2, 1, &[1], false), known(3, 1, &[2], true)];
        let why = ids(&two, None).unwrap_err();
        assert!(
            why.contains("00001 (put 2026-05-28 20:26:40 UTC; on a)") && why.contains("--keep ID"),
            "{why}"
        );
        assert_eq!(ids(&two, Some(2)).unwrap(), [1, 3]);
        assert!(ids(&two, Some(3)).unwrap_err().contains("--keep"));
    }

    #[test]
    fn shards_of_two_generations_or_of_a_removed_one_are_a_fault_that_names_them() {
        let told = |known: &[GenerationStatus]| fault("x", known, address);
        assert_eq!(told(&[known(1, 1, &[0, 1], false)]), None);
        assert_eq!(told(&[known(1, 1, &[], true), known(2, 2, &[0], false)]), None);
        let removed = told(&[known(1, 1, &[2], true)]).unwrap();
        assert_eq!(
            removed,
            "these nodes have a generation that was removed: 00000000000000000000000000000001 \
             (put 2026-05-28 20:26:40 UTC, removed 2026-05-28 20:26:41 UTC; on c): `inshore store repair x` removes outdated generations"
        );
        let two = told(&[known(1, 1, &[2], false), known(2, 1, &[0, 1], false)]).unwrap();
        assert!(
            two.contains("on c) and 00000000000000000000000000000002 (put") && two.contains("on a, b)"),
            "{two}"
        );
    }

    #[test]
    fn ids_attributes_and_marks_are_written_as_the_format_says() {
        let known = known(0x0123_4567_89ab_cdef_0011_2233_4455_6677, 2, &[], true);
        let attributes = known.generation.attributes();
        let hex: String = attributes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "7766554433221100efcdab89674523010200000000000000008844709e010000");
        assert_eq!(Generation::of_attributes(&attributes), Some(known.generation));
        // These bytes are attributes of version 1.
        assert_eq!(Generation::of_attributes(&[1; 8]), None);
        assert_eq!(mark_name(known.generation.id), "removed-0123456789abcdef0011223344556677");
        let text = r#"{"version":2,"name":"x","generation":{"id":"0123456789abcdef0011223344556677","number":2,"put_ms":1780000000000},"removed_ms":1780000001000,"absent":[{"number":3,"name":"c:4710"}]}"#;
        assert_eq!(json(&known.marks[0].1), text.as_bytes());
        for bad in ["", "0123", "0123456789abcdef00112233445566zz", "+123456789abcdef0011223344556677"] {
            assert!(bad.parse::<SpreadId>().is_err(), "{bad}");
        }
    }
}
