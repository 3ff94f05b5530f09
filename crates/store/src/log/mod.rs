//! The superblock and the log are the authoritative description of the content of a store. `docs/format.md` describes
//! their layout in "Superblock" and "Log". `docs/durability.md` explains why they survive any crash.
//!
//! ```text
//!   superblock   the devices, and the addresses of the log; two slots on every device, which are written in turn
//!   log          record 0: a checkpoint of the catalog | record 1: edits of a commit | record 2 | ...
//!                written in two copies or more, on as many devices as possible: see [`Placement`]
//!   spare log    the same number of extents, allocated in advance for the next checkpoint
//! ```
//!
//! A record is acknowledged after it is durable in all copies of the log. If only some copies contain the complete
//! record, the record is read from one of these copies. The log ends at the first record that no copy contains
//! completely. If a later record exists, an acknowledged record is damaged, which is an error. If the copies of a log
//! differ, the next commit begins a new log. Otherwise the copy that lacks a record could not be read on its own.

pub(crate) mod catalog;
pub(crate) mod encoding;
pub(crate) mod header;
mod placement;
mod record;
mod superblock;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

pub(crate) use self::placement::{Placement, spread};
use self::record::{RECORD_HEADER_BYTES, RecordHeader, record_bytes};
#[cfg(feature = "fuzzing")]
pub(crate) use self::record::{record_header_round_trip, record_header_sum};
pub use self::superblock::DeviceEntry;
pub(crate) use self::superblock::{
    Superblock, erase_superblock, is_used, read_superblock, superblock_slots, write_superblock,
};
use crate::{
    Catalog, Device, EXTENT_BYTES, Edit, Error, ExtentAddress, PAGE_BYTES, Result,
    device::{metadata_buffer, path_of},
    log::catalog::{decode_edits, encode_edits},
    random::random_uuid,
};

/// The devices of a store by their numbers.
pub(crate) type Devices = BTreeMap<u16, Arc<dyn Device>>;

/// The number of the extent that contains the superblock on every device.
pub(crate) const SUPERBLOCK_EXTENT: u32 = 1;
/// The number of the first free extent of an empty device. The first log begins in this extent.
const FIRST_LOG_EXTENT: u32 = SUPERBLOCK_EXTENT + 1;

/// The addresses of the extents of each copy of a log.
pub(crate) type LogExtents = Vec<Vec<ExtentAddress>>;

/// Returns a function that converts an I/O error of `device` to an [`Error`].
pub(crate) fn io_error(what: &'static str, device: &dyn Device) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(what, device.name(), error)
}

/// `Tail` is the position at which the next record of the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    offset: usize,
    number: u64,
    /// The checksum of the header of the previous record.
    before: u32,
}

impl Tail {
    const START: Tail = Tail { offset: 0, number: 0, before: 0 };
}

/// `LastRecord` identifies the last appended record of the log. The process that appends a record announces it to other
/// processes. Records are ordered by the generation of their log, and within a log by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastRecord {
    pub generation: u64,
    pub number: u64,
    /// The sequence number of the superblock when the record was the last record.
    pub sequence: u64,
}

/// `Log` is the log of a store, up to the last record that this process has read or written.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub superblock: Superblock,
    tail: Tail,
    /// True if a copy of the log that is present lacks a record that another copy contains.
    is_uneven: bool,
}

impl Log {
    /// Begins a new log: writes `catalog` as its first record, and then the superblock that refers to this log. After
    /// an error, the superblock refers to the old log or to the new log.
    ///
    /// The superblock is written twice, with two successive sequence numbers, so that both slots refer to the new log.
    /// If one slot is damaged later, the other slot then also leads to the newest commits.
    pub fn begin(devices: &Devices, superblock: Superblock, catalog: &Catalog, pinned: u64) -> Result<Log> {
        let mut log = Log { superblock, tail: Tail::START, is_uneven: false };
        log.append(devices, catalog.commit, &catalog.checkpoint(pinned))?;
        write_superblock(devices, &log.superblock)?;
        log.superblock.sequence += 1;
        write_superblock(devices, &log.superblock)?;
        Ok(log)
    }

    /// Returns the length in bytes of the first record of a log that begins with this catalog.
    pub fn needed_bytes(catalog: &Catalog, pinned: u64) -> usize {
        record_bytes(encode_edits(&catalog.checkpoint(pinned)).len())
    }

    /// Returns true if the log has room for a further record with `edits`.
    pub fn has_room(&self, edits: &[Edit]) -> bool {
        self.tail.offset + record_bytes(encode_edits(edits).len()) <= self.capacity()
    }

    pub fn capacity(&self) -> usize {
        capacity(&self.superblock.log)
    }

    /// Returns the last record that this process has read or written.
    pub fn last(&self) -> LastRecord {
        let Superblock { generation, sequence, .. } = self.superblock;
        LastRecord { generation, number: self.tail.number - 1, sequence }
    }

    /// Appends a record to all copies of the log and makes it durable. The caller must have checked that the log has
    /// room.
    ///
    /// # Errors
    /// Returns an I/O error if a write fails. After an error, the log may or may not contain the record. Only a new
    /// read of the log shows which.
    pub fn append(&mut self, devices: &Devices, commit: u64, edits: &[Edit]) -> Result<()> {
        let body = encode_edits(edits);
        let len = record_bytes(body.len());
        assert!(self.tail.offset + len <= self.capacity(), "a log has room for its record");
        let header = RecordHeader {
            generation: self.superblock.generation,
            number: self.tail.number,
            before: self.tail.before,
            commit,
            body_len: body.len(),
            body_sum: crc32fast::hash(&body),
            sum: 0,
        };
        let header = header.encode(&self.superblock.store);
        let mut buffer = metadata_buffer(len)?;
        buffer[..RECORD_HEADER_BYTES].copy_from_slice(&header);
        buffer[RECORD_HEADER_BYTES..][..body.len()].copy_from_slice(&body);
        let mut touched: Vec<&Arc<dyn Device>> = Vec::new();
        for copy in &self.superblock.log {
            for (place, offset, part) in parts(copy, self.tail.offset, len) {
                let device = device(devices, place)?;
                device
                    .write(place.extent, offset, &buffer[part])
                    .map_err(io_error("write the log", device.as_ref()))?;
                if !touched.iter().any(|known| Arc::ptr_eq(known, device)) {
                    touched.push(device);
                }
            }
        }
        for device in touched {
            device.sync().map_err(io_error("sync the log", device.as_ref()))?;
        }
        let sum = u32::from_le_bytes(header[RECORD_HEADER_BYTES - 4..].try_into().expect("4 bytes"));
        self.tail = Tail { offset: self.tail.offset + len, number: self.tail.number + 1, before: sum };
        Ok(())
    }

    /// Reads a log from its first record.
    pub fn read(devices: &Devices, superblock: Superblock) -> Result<(Log, Catalog)> {
        let mut log = Log { superblock, tail: Tail::START, is_uneven: false };
        let mut catalog = Catalog::default();
        if log.follow(devices, &mut catalog, None)? == 0 {
            return Err(
                log.damaged(format!("no whole copy of record 0{}", log.places_of_next()), "a checkpoint")
            );
        }
        Ok((log, catalog))
    }

    /// Checks that the log contains `announced`, the latest record that a process announced. Only durable records are
    /// announced. If the log lacks the record, all copies of the record are damaged, or no superblock refers to the log
    /// of the record.
    pub fn check_reaches(&self, announced: Option<LastRecord>) -> Result<()> {
        let last = self.last();
        match announced {
            Some(announced) if announced.generation > last.generation => {
                let LastRecord { generation, number, .. } = announced;
                let devices = self.superblock.devices.iter();
                let places: Vec<String> = devices.map(|entry| format!("device {}", entry.number)).collect();
                let found = format!(
                    "log {}, although record {number} of log {generation} was written: the superblock with the place of that \
                     log is lost in extent {SUPERBLOCK_EXTENT} of {}",
                    last.generation,
                    places.join(" and of ")
                );
                Err(self.damaged(found, &format!("log {generation}")))
            }
            Some(announced) if announced.generation == last.generation && announced.number > last.number => {
                Err(self.lost_record(announced.number))
            }
            _ => Ok(()),
        }
    }

    /// Reads and applies the records that were appended since the last read, and returns their number. `known` is the
    /// last appended record according to the announcements of processes. If `known` is `None`, the call searches the
    /// rest of the log for later records.
    ///
    /// # Errors
    /// Returns an error if a read fails, or if no copy contains a complete record but a later record exists.
    pub fn follow(
        &mut self,
        devices: &Devices,
        catalog: &mut Catalog,
        known: Option<LastRecord>,
    ) -> Result<u64> {
        let first = self.tail.number;
        while let Some((header, body, is_in_all)) = self.next_record(devices)? {
            self.is_uneven |= !is_in_all;
            let edits = decode_edits(&body).ok_or_else(|| {
                self.damaged(
                    format!("record {} with edits of an unknown kind", header.number),
                    "edits of this version",
                )
            })?;
            catalog.apply(header.commit, &edits);
            let len = record_bytes(header.body_len);
            self.tail =
                Tail { offset: self.tail.offset + len, number: header.number + 1, before: header.sum };
        }
        let later = match known {
            Some(last) if last.generation == self.superblock.generation => {
                (last.number >= self.tail.number).then_some(last.number)
            }
            _ => self.later_record(devices)?,
        };
        match later {
            Some(later) => Err(self.lost_record(later)),
            None => Ok(self.tail.number - first),
        }
    }

    /// Returns true if records can be appended to the log: all devices of all copies are present, and all copies
    /// contain the same records.
    pub fn is_fit(&self, devices: &Devices) -> bool {
        self.is_there(devices) && !self.is_uneven
    }

    /// Returns true if a copy of the log that is present lacks a record that another copy contains.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }

    /// Returns true if all devices of all copies of the log are present.
    fn is_there(&self, devices: &Devices) -> bool {
        self.superblock.log.iter().flatten().all(|place| devices.contains_key(&place.device))
    }

    /// Returns true if all devices of at least one copy of the log are present.
    fn is_readable(&self, devices: &Devices) -> bool {
        let is_there =
            |copy: &Vec<ExtentAddress>| copy.iter().all(|place| devices.contains_key(&place.device));
        self.superblock.log.iter().any(is_there)
    }

    /// Lists the damage of the superblocks and of each copy of the log, even if the intact copies are sufficient to
    /// read the store. `placement` is the wanted placement of the copies. For a missing device, `is_lost` returns true
    /// if its folder is present and only its superblock is lost.
    pub fn check(
        &self,
        devices: &Devices,
        placement: Placement,
        is_lost: impl Fn(&DeviceEntry) -> bool,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for entry in &self.superblock.devices {
            let Some(device) = devices.get(&entry.number) else {
                let (number, path) = (entry.number, entry.path.display());
                wrong.push(match is_lost(entry) {
                    true => format!(
                        "the superblock of device {number} ({path}) is lost: `inshore store add-device` with this folder \
                         rewrites it, and `inshore store scrub` then restores the rest of the device"
                    ),
                    false => format!("device {number} ({path}) is missing"),
                });
                continue;
            };
            let whole = superblock_slots(device.as_ref());
            for slot in (0..2).filter(|&slot| whole[slot].is_none()) {
                wrong.push(format!("slot {slot} of the superblock of {} is damaged", device.name()));
            }
            let is_old = |slot: &Superblock| slot.sequence < self.superblock.sequence;
            if whole.iter().all(|slot| slot.as_ref().is_some_and(is_old)) {
                wrong.push(format!("the superblock of {} is of an older state of the store", device.name()));
            }
        }
        let lies_on = spread(&self.superblock.log);
        if lies_on < placement.spread() {
            let count = |count: usize| if count == 1 { "1 drive".into() } else { format!("{count} drives") };
            wrong.push(format!(
                "copies of the log are on {}, expected {}: the log must survive the same losses as the data",
                count(lies_on),
                count(placement.spread())
            ));
        }
        for (number, copy) in self.superblock.log.iter().enumerate() {
            let superblock = Superblock { log: vec![copy.clone()], ..self.superblock.clone() };
            match Log::read(devices, superblock) {
                Ok((log, _)) if log.tail == self.tail => {}
                Ok((log, _)) => wrong.push(format!(
                    "copy {number} of the log is damaged, beginning at record {}",
                    log.tail.number
                )),
                Err(error) => wrong.push(format!("copy {number} of the log: {error}")),
            }
        }
        wrong
    }

    /// Returns the error for a lost next record. Record `later`, which is the lost record or a later record, proves
    /// that the lost record was written.
    fn lost_record(&self, later: u64) -> Error {
        let (number, places) = (self.tail.number, self.places_of_next());
        let found = format!("no whole copy of record {number}{places}, although record {later} was written");
        self.damaged(found, "whole records")
    }

    /// Returns a text with the address of the next record in each copy, for an error message.
    fn places_of_next(&self) -> String {
        let (index, offset) = (self.tail.offset / EXTENT_BYTES, self.tail.offset % EXTENT_BYTES);
        let places = self.superblock.log.iter().filter_map(|copy| copy.get(index));
        let places: Vec<String> =
            places.map(|place| format!("extent {} of device {}", place.extent, place.device)).collect();
        format!(" (at {offset} of {})", places.join(" and of "))
    }

    fn damaged(&self, found: String, expected: &str) -> Error {
        let devices = self.superblock.devices.iter().map(|entry| entry.path.display().to_string());
        let devices: Vec<String> = devices.collect();
        Error::BadFormat {
            path: PathBuf::from(devices.join(", ")),
            what: "log of the store",
            found,
            expected: expected.to_string(),
        }
    }

    /// Reads the next record. The returned flag is true if all copies that are present contain the record.
    fn next_record(&self, devices: &Devices) -> Result<Option<(RecordHeader, Vec<u8>, bool)>> {
        if self.tail.offset + PAGE_BYTES > self.capacity() {
            return Ok(None);
        }
        let (mut record, mut failed, mut is_in_all) = (None, None, true);
        for copy in &self.superblock.log {
            match self.record_of(devices, copy) {
                Ok(Some(found)) => record = record.or(Some(found)),
                Ok(None) => is_in_all = false,
                // A copy on a missing device is skipped, since a copy that is present contains every acknowledged
                // record.
                Err(Error::NoDevice { .. }) if self.is_readable(devices) => {}
                Err(error) => {
                    is_in_all = false;
                    failed = Some(error);
                }
            }
        }
        match (record, failed) {
            (Some((header, body)), _) => Ok(Some((header, body, is_in_all))),
            // If no copy contains the record and one copy could not be read, it is unknown whether the record exists.
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn record_of(
        &self,
        devices: &Devices,
        copy: &[ExtentAddress],
    ) -> Result<Option<(RecordHeader, Vec<u8>)>> {
        let mut first = metadata_buffer(PAGE_BYTES)?;
        read_log(devices, copy, self.tail.offset, &mut first)?;
        let Some(header) = RecordHeader::decode(&self.superblock.store, &first) else { return Ok(None) };
        let expected = (self.superblock.generation, self.tail.number, self.tail.before);
        if (header.generation, header.number, header.before) != expected {
            return Ok(None);
        }
        let len = record_bytes(header.body_len);
        if self.tail.offset + len > self.capacity() {
            return Ok(None);
        }
        let mut whole = metadata_buffer(len)?;
        read_log(devices, copy, self.tail.offset, &mut whole[..len])?;
        let body = whole[RECORD_HEADER_BYTES..][..header.body_len].to_vec();
        Ok((crc32fast::hash(&body) == header.body_sum).then_some((header, body)))
    }

    /// Searches all copies of the log for a record of this log with a higher number than the next record, and returns
    /// its number.
    fn later_record(&self, devices: &Devices) -> Result<Option<u64>> {
        let mut extent = metadata_buffer(EXTENT_BYTES)?;
        for copy in &self.superblock.log {
            let mut offset = self.tail.offset;
            while offset < self.capacity() {
                let len = EXTENT_BYTES - offset % EXTENT_BYTES;
                // If one copy cannot be read, another copy may still be readable.
                if read_log(devices, copy, offset, &mut extent[..len]).is_ok() {
                    let headers = extent[..len].chunks(PAGE_BYTES);
                    let mut headers =
                        headers.filter_map(|page| RecordHeader::decode(&self.superblock.store, page));
                    let later = headers.find(|header| {
                        header.generation == self.superblock.generation && header.number > self.tail.number
                    });
                    if let Some(later) = later {
                        return Ok(Some(later.number));
                    }
                }
                offset += len;
            }
        }
        Ok(None)
    }
}

pub(crate) fn capacity(log: &LogExtents) -> usize {
    log[0].len() * EXTENT_BYTES
}

fn device(devices: &Devices, place: ExtentAddress) -> Result<&Arc<dyn Device>> {
    devices.get(&place.device).ok_or(Error::NoDevice { number: place.device })
}

/// Splits the `len` bytes at `offset` of a copy of the log at the boundaries of extents. For each part, the iterator
/// returns the address of its extent, the offset in the extent, and the range of its bytes among the `len` bytes.
fn parts(
    copy: &[ExtentAddress],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (ExtentAddress, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let count = (EXTENT_BYTES - at % EXTENT_BYTES).min(len - done);
        done += count;
        Some((copy[at / EXTENT_BYTES], at % EXTENT_BYTES, done - count..done))
    })
}

fn read_log(devices: &Devices, copy: &[ExtentAddress], offset: usize, buffer: &mut [u8]) -> Result<()> {
    for (place, at, part) in parts(copy, offset, buffer.len()) {
        let device = device(devices, place)?;
        device
            .read(place.extent, at, &mut buffer[part])
            .map_err(io_error("read the log", device.as_ref()))?;
    }
    Ok(())
}

/// Creates a store on blank devices: numbers the devices, allocates two copies of the log and of the spare log, and
/// writes an empty catalog.
pub(crate) fn init(devices: &[Arc<dyn Device>], limit_bytes: Option<u64>) -> Result<(Devices, Superblock)> {
    let numbered: Devices = (0..).zip(devices.iter().cloned()).collect();
    let first = FIRST_LOG_EXTENT;
    let copies: [(u16, u32); 2] =
        if devices.len() > 1 { [(0, first), (1, first)] } else { [(0, first), (0, first + 2)] };
    let places = |next: u32| {
        copies.map(|(device, extent)| vec![ExtentAddress { device, extent: extent + next }]).to_vec()
    };
    let (log, spare) = (places(0), places(1));
    for place in log.iter().chain(&spare).flatten() {
        let device = &numbered[&place.device];
        if device.extents() <= place.extent {
            return Err(Error::io("create a store on", device.name(), rustix::io::Errno::NOSPC.into()));
        }
        for extent in [place.extent, SUPERBLOCK_EXTENT] {
            device
                .prepare(extent..extent + 1)
                .map_err(io_error("allocate space for the log", device.as_ref()))?;
        }
    }
    let entries = numbered.iter().map(|(&number, device)| DeviceEntry {
        number,
        uuid: random_uuid(),
        path: path_of(device.as_ref()),
        limit_bytes,
        is_leaving: false,
    });
    let superblock = Superblock {
        store: random_uuid(),
        sequence: 1,
        generation: 1,
        branches: Vec::new(),
        devices: entries.collect(),
        log,
        spare,
    };
    let log = Log::begin(&numbered, superblock, &Catalog::default(), 0)?;
    Ok((numbered, log.superblock))
}
