//! The superblock and the log are the authoritative record of a store. Layout: `docs/format.md`, "Superblock" and
//! "Log". The argument why they survive any crash: `docs/durability.md`.
//!
//! ```text
//!   superblock   two slots on every device, written in turn: the devices, and the place of the log
//!   log          record 0: a checkpoint of the catalog | record 1: edits of a commit | record 2 | ...
//!                written in two copies or more, on as many devices as possible: see [`Placement`]
//!   spare        as many extents again, taken in advance for the next checkpoint
//! ```
//!
//! A record counts once it is durable in all copies. If only some copies have a whole record, a whole one is used. The
//! log ends where no copy has a whole record, unless a later record follows: then an acknowledged record is damaged,
//! which is an error. If the copies of a log differ, a new log is begun before anything is appended; otherwise a copy
//! that lacks a record would be useless alone.

pub(crate) mod catalog;
pub(crate) mod encoding;
pub(crate) mod header;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Catalog, Device, EXTENT_BYTES, Edit, Error, PAGE_BYTES, Place, Result, SEGMENT_EXTENTS,
    device::{metadata_buffer, path_of},
    log::catalog::{decode_edits, encode_edits},
    log::encoding::{Cursor, put_bytes, put_u32},
    random::{random_u64, random_uuid},
};

/// The devices of a store by their numbers.
pub(crate) type Devices = BTreeMap<u16, Arc<dyn Device>>;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"INSHSUPR";
/// Version 1 belonged to stores before the first release, which had no log. Version 2 had no branches.
const SUPERBLOCK_VERSION: u32 = 3;
const SUPERBLOCK_VERSION_MIN: u32 = 2;
/// The largest number of branches in a superblock. A drive that was missing during more branches counts as diverged.
const BRANCHES_MAX: usize = 1000;
/// The extent of every device that holds its superblock.
pub(crate) const SUPERBLOCK_EXTENT: u32 = 1;
/// The first free extent of an empty device, in which the first log begins.
const FIRST_LOG_EXTENT: u32 = SUPERBLOCK_EXTENT + 1;
const SLOT_BYTES: usize = EXTENT_BYTES / 2;
const SUPERBLOCK_HEADER_BYTES: usize = 40;

/// The limit of counters. No store reaches it, and a counter below it can be incremented.
const COUNTER_LIMIT: u64 = 1 << 63;

const RECORD_MAGIC: &[u8; 8] = b"INSHRECD";
const RECORD_HEADER_BYTES: usize = 48;

/// `DeviceEntry` describes a device in the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The number of the device in the store.
    pub number: u16,
    /// A random id of the device.
    pub uuid: [u8; 16],
    /// The folder of the device when it was added, or at the last commit.
    pub path: PathBuf,
    /// The limit of the store's space on the device in bytes; `None` if there is no limit.
    pub limit_bytes: Option<u64>,
    /// True if the device is being removed and gets no new data.
    pub is_leaving: bool,
}

/// The places of the extents of each copy of a log.
pub(crate) type LogPlaces = Vec<Vec<Place>>;

/// `Superblock` is the description of the store on every device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub store: [u8; 16],
    /// The number of this superblock.
    pub sequence: u64,
    /// The number of the log. Records of other generations belong to other logs.
    pub generation: u64,
    /// Random numbers, one for each change of the store while a device of its log was missing.
    pub branches: Vec<u64>,
    pub devices: Vec<DeviceEntry>,
    pub log: LogPlaces,
    pub spare: LogPlaces,
}

impl Superblock {
    pub fn encode(&self, device: u16) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.sequence.to_le_bytes());
        body.extend(self.generation.to_le_bytes());
        put_u32(&mut body, self.branches.len());
        self.branches.iter().for_each(|branch| body.extend(branch.to_le_bytes()));
        put_u32(&mut body, self.devices.len());
        for entry in &self.devices {
            body.extend(entry.number.to_le_bytes());
            body.extend(entry.uuid);
            put_bytes(&mut body, encode_path(&entry.path).as_bytes());
            body.extend(entry.limit_bytes.unwrap_or(0).to_le_bytes());
            body.push(entry.is_leaving as u8);
        }
        for log in [&self.log, &self.spare] {
            put_u32(&mut body, log.len());
            for copy in log {
                put_u32(&mut body, copy.len());
                for place in copy {
                    body.extend(place.device.to_le_bytes());
                    body.extend(place.extent.to_le_bytes());
                }
            }
        }
        let mut out = Vec::with_capacity(SUPERBLOCK_HEADER_BYTES + body.len());
        out.extend(SUPERBLOCK_MAGIC);
        out.extend(SUPERBLOCK_VERSION.to_le_bytes());
        out.extend([0; 4]);
        put_u32(&mut out, body.len());
        out.extend(device.to_le_bytes());
        out.extend([0; 2]);
        out.extend(self.store);
        out.extend(body);
        let sum = crc32fast::hash(&out[16..]);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes a slot: the number of the device to which it was written, and the superblock. The result is `None` if
    /// the slot is damaged or of another version.
    pub fn decode(slot: &[u8]) -> Option<(u16, Superblock)> {
        let mut header = Cursor(slot);
        if header.take(8)? != SUPERBLOCK_MAGIC {
            return None;
        }
        let version = header.u32()?;
        if !is_known(version) {
            return None;
        }
        let (sum, len) = (header.u32()?, header.u32()? as usize);
        let device = header.u16()?;
        header.take(2)?;
        let store = header.array()?;
        let covered = slot.get(16..SUPERBLOCK_HEADER_BYTES.checked_add(len)?)?;
        if crc32fast::hash(covered) != sum {
            return None;
        }
        let mut body = Cursor(header.take(len)?);
        let (sequence, generation) = (body.u64()?, body.u64()?);
        let branches = if version < 3 { Vec::new() } else { body.list(|body| body.u64())? };
        let devices = body.list(|body| {
            let (number, uuid, path) = (body.u16()?, body.array()?, decode_path(&body.string()?)?);
            let limit_bytes = Some(body.u64()?).filter(|&bytes| bytes > 0);
            let is_leaving = match body.u8()? {
                flag @ 0..=1 => flag == 1,
                _ => return None,
            };
            Some(DeviceEntry { number, uuid, path, limit_bytes, is_leaving })
        })?;
        let places = |body: &mut Cursor| {
            let log: LogPlaces =
                body.list(|body| body.list(|body| Some(Place { device: body.u16()?, extent: body.u32()? })))?;
            let is_whole =
                !log.is_empty() && !log[0].is_empty() && log.iter().all(|copy| copy.len() == log[0].len());
            is_whole.then_some(log)
        };
        let (log, spare) = (places(&mut body)?, places(&mut body)?);
        let superblock = Superblock { store, sequence, generation, branches, devices, log, spare };
        (body.0.is_empty() && superblock.is_sound()).then_some((device, superblock))
    }

    /// Returns true if the counters are below their limit, no device appears twice, and log and spare lie on known
    /// devices, at places for data, without overlap.
    fn is_sound(&self) -> bool {
        let numbers: BTreeSet<u16> = self.devices.iter().map(|entry| entry.number).collect();
        let places: BTreeSet<Place> = self.places().collect();
        self.sequence < COUNTER_LIMIT
            && self.generation < COUNTER_LIMIT
            && numbers.len() == self.devices.len()
            && places.len() == self.places().count()
            && places.iter().all(|place| place.is_for_data() && numbers.contains(&place.device))
    }

    /// Returns true if this superblock is the same as `other` or a successor. The other branch may then have changes
    /// that were never acknowledged, but no acknowledged changes: every device of the log knows an acknowledged
    /// change, or the change began a branch.
    pub fn descends_from(&self, other: &Superblock) -> bool {
        other.branches.last().is_none_or(|branch| self.branches.contains(branch))
    }

    /// Begins a branch if a device of the log is missing, since a process that sees only that device could change the
    /// store too. This must be called before each change of the store.
    pub fn branch(&mut self, devices: &Devices) {
        if self.log.iter().flatten().any(|place| !devices.contains_key(&place.device)) {
            self.begin_branch();
        }
    }

    pub fn begin_branch(&mut self) {
        self.branches.push(random_u64());
        let over = self.branches.len().saturating_sub(BRANCHES_MAX);
        self.branches.drain(..over);
    }

    /// Returns the UUID of a device.
    pub fn uuid_of(&self, number: u16) -> Option<[u8; 16]> {
        self.devices.iter().find(|entry| entry.number == number).map(|entry| entry.uuid)
    }

    /// Returns true if a device may get new data.
    pub fn takes_data(&self, number: u16) -> bool {
        self.devices.iter().any(|entry| entry.number == number && !entry.is_leaving)
    }

    /// Returns the places of the log and the spare.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.log.iter().chain(&self.spare).flatten().copied()
    }
}

/// Encodes a path as text without loss. Valid UTF-8 stays as it is. For other paths the text is `%` and the bytes, in
/// which `%` and all non-ASCII bytes are written as `%` and two hexadecimal digits. A path itself begins with `/`.
fn encode_path(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.starts_with('%') => text.to_string(),
        _ => {
            let escape = |&byte: &u8| match byte {
                b'%' | 0x80.. => format!("%{byte:02x}"),
                byte => char::from(byte).to_string(),
            };
            "%".to_string() + &path.as_os_str().as_bytes().iter().map(escape).collect::<String>()
        }
    }
}

/// Decodes a path; `None` if the text is not valid.
fn decode_path(text: &str) -> Option<PathBuf> {
    let Some(encoded) = text.strip_prefix('%') else { return Some(text.into()) };
    let mut parts = encoded.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(&part.as_bytes()[2..]);
    }
    Some(OsString::from_vec(bytes).into())
}

fn is_known(version: u32) -> bool {
    (SUPERBLOCK_VERSION_MIN..=SUPERBLOCK_VERSION).contains(&version)
}

/// Makes an [`Error`] of an error of a device.
pub(crate) fn io_error(what: &'static str, device: &dyn Device) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(what, device.name(), error)
}

/// Reads the newest superblock of a device with the device's number; `None` if the device has none.
///
/// The first superblock of a store goes to slot 1, and the store exists once slot 0 holds another one. If slot 0 is
/// empty, the content of slot 1 is left from a creation that did not finish.
///
/// # Errors
/// I/O; an unknown version; damage in both slots.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Option<(u16, Superblock)>> {
    let mut newest: Option<(u16, Superblock)> = None;
    let mut buffer = metadata_buffer(SLOT_BYTES)?;
    let (mut other_version, mut is_blank) = (None, true);
    for slot in 0..2 {
        // The first page contains the length of the superblock, and most superblocks fit in one page.
        let offset = slot * SLOT_BYTES;
        let read = |buffer: &mut [u8]| {
            device.read(SUPERBLOCK_EXTENT, offset, buffer).map_err(io_error("read the superblock", device))
        };
        read(&mut buffer[..PAGE_BYTES])?;
        let word = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().expect("4 bytes"));
        is_blank &= slot == 1 || buffer[..PAGE_BYTES].iter().all(|&byte| byte == 0);
        if &buffer[..8] == SUPERBLOCK_MAGIC && !is_known(word(8)) {
            other_version = Some(word(8));
        }
        let body_len = if &buffer[..8] == SUPERBLOCK_MAGIC { word(16) as usize } else { 0 };
        let len = SUPERBLOCK_HEADER_BYTES.saturating_add(body_len).min(SLOT_BYTES);
        let len = len.next_multiple_of(PAGE_BYTES);
        if len > PAGE_BYTES {
            read(&mut buffer[..len])?;
        }
        if let Some(found) = Superblock::decode(&buffer[..len])
            && newest.as_ref().is_none_or(|(_, newest)| newest.sequence < found.1.sequence)
        {
            newest = Some(found);
        }
    }
    let bad = |what, found: String, expected: String| {
        Err(Error::BadFormat { path: PathBuf::from(device.name()), what, found, expected })
    };
    match (newest, other_version) {
        (None, Some(version)) if !is_blank => {
            bad("version of the store", version.to_string(), "2 or 3".to_string())
        }
        (None, None) if !is_blank => {
            Err(Error::LostSuperblock { path: path_of(device), found: "both copies are damaged".into() })
        }
        (mut newest, _) => {
            // Slot 0 was written and is damaged. It has the same content, and proves that the store exists.
            if let Some((_, first)) = &mut newest
                && !is_blank
            {
                first.sequence = first.sequence.max(2);
            }
            Ok(newest)
        }
    }
}

/// Returns true if a device holds more data than an unfinished creation of a store leaves: a superblock in slot 1, and
/// a record in the first page of each copy of the log. Only the first segment is read: the headers of its extents, and
/// the places at which a log begins or continues.
pub(crate) fn is_used(device: &dyn Device) -> Result<bool> {
    const NEW_LOGS: std::ops::Range<u32> = FIRST_LOG_EXTENT..FIRST_LOG_EXTENT + 4;
    // Each header takes a page.
    let headers = (0, 0..SEGMENT_EXTENTS as usize);
    let logs = NEW_LOGS.map(|extent| (extent, 1..16));
    let others = (NEW_LOGS.end..SEGMENT_EXTENTS.min(device.extents())).map(|extent| (extent, 0..1));
    let mut buffer = metadata_buffer(SEGMENT_EXTENTS as usize * PAGE_BYTES)?;
    for (extent, pages) in std::iter::once(headers).chain(logs).chain(others) {
        let bytes = &mut buffer[..pages.len() * PAGE_BYTES];
        device
            .read(extent, pages.start * PAGE_BYTES, bytes)
            .map_err(io_error("look for a store on", device))?;
        if bytes.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the two slots of a device's superblock, as far as they can be read.
pub(crate) fn superblock_slots(device: &dyn Device) -> [Option<Superblock>; 2] {
    [0, 1].map(|slot| {
        let mut buffer = metadata_buffer(SLOT_BYTES).ok()?;
        device.read(SUPERBLOCK_EXTENT, slot * SLOT_BYTES, &mut buffer).ok()?;
        Superblock::decode(&buffer).map(|(_, superblock)| superblock)
    })
}

/// Makes a device blank, so that it belongs to no store.
pub(crate) fn erase_superblock(device: &dyn Device) -> Result<()> {
    let zeros = metadata_buffer(PAGE_BYTES)?;
    // Slot 0 comes first: a device without it belongs to no store, whatever slot 1 holds.
    for slot in 0..2 {
        device
            .write(SUPERBLOCK_EXTENT, slot * SLOT_BYTES, &zeros)
            .and_then(|()| device.sync())
            .map_err(io_error("erase the superblock", device))?;
    }
    Ok(())
}

/// Writes the superblock to every device and makes it durable.
pub(crate) fn write_superblock(devices: &Devices, superblock: &Superblock) -> Result<()> {
    for entry in &superblock.devices {
        let Some(device) = devices.get(&entry.number) else { continue };
        let bytes = superblock.encode(entry.number);
        assert!(bytes.len() <= SLOT_BYTES, "a superblock of {} bytes", bytes.len());
        let mut buffer = metadata_buffer(bytes.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let offset = (superblock.sequence % 2) as usize * SLOT_BYTES;
        let len = bytes.len().next_multiple_of(PAGE_BYTES);
        device
            .write(SUPERBLOCK_EXTENT, offset, &buffer[..len])
            .and_then(|()| device.sync())
            .map_err(io_error("write the superblock", device.as_ref()))?;
    }
    Ok(())
}

/// `Tail` is the position of the next record.
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

/// `LastRecord` is the last record that was appended, as its writer announces it to other processes. A record is later
/// than another one if its log is later, or if its number in the same log is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastRecord {
    pub generation: u64,
    pub number: u64,
    /// The sequence of the superblock at that time.
    pub sequence: u64,
}

/// `Log` is the log as far as it was read or written.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub superblock: Superblock,
    tail: Tail,
    /// True if a record that was read is missing in some copy that is present.
    is_uneven: bool,
}

/// `Placement` is the wanted placement of the copies of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The number of devices on which a log can lie.
    pub devices: usize,
    /// The wanted number of copies: one more than the number of devices that may fail.
    pub copies: usize,
}

impl Placement {
    /// Returns the placement that the datasets of a catalog need: if any m devices may fail, the log lies on m + 1
    /// devices, and on at least two. Only those of `devices` that take new data according to `superblock` can hold it.
    pub fn of(catalog: &Catalog, superblock: &Superblock, devices: &Devices) -> Placement {
        let devices = devices.keys().filter(|number| superblock.takes_data(**number)).count();
        let wanted = catalog.datasets.values().map(|record| record.redundancy.list_copies());
        let copies = wanted.max().unwrap_or(1).min(devices).max(2);
        Placement { devices, copies }
    }

    /// Returns the number of devices on which the log should lie.
    pub fn spread(&self) -> usize {
        self.copies.min(self.devices)
    }
}

/// Returns the number of devices that each hold a whole copy of the log: all but one of them may be lost.
pub(crate) fn spread(log: &LogPlaces) -> usize {
    let first =
        |copy: &Vec<Place>| copy.iter().all(|place| place.device == copy[0].device).then_some(copy[0].device);
    log.iter().filter_map(first).collect::<BTreeSet<u16>>().len()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordHeader {
    generation: u64,
    number: u64,
    before: u32,
    commit: u64,
    body_len: usize,
    body_sum: u32,
    sum: u32,
}

impl RecordHeader {
    fn encode(&self, store: &[u8; 16]) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = Vec::with_capacity(RECORD_HEADER_BYTES);
        out.extend(RECORD_MAGIC);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.commit.to_le_bytes());
        put_u32(&mut out, self.body_len);
        out.extend(self.body_sum.to_le_bytes());
        out.extend(self.before.to_le_bytes());
        out.extend(header_sum(store, &out).to_le_bytes());
        out.try_into().expect("48 bytes")
    }

    fn decode(store: &[u8; 16], bytes: &[u8]) -> Option<RecordHeader> {
        let mut header = Cursor(bytes);
        if header.take(8)? != RECORD_MAGIC {
            return None;
        }
        let (generation, number, commit) = (header.u64()?, header.u64()?, header.u64()?);
        let (body_len, body_sum, before, sum) =
            (header.u32()? as usize, header.u32()?, header.u32()?, header.u32()?);
        let right = sum == header_sum(store, &bytes[..RECORD_HEADER_BYTES - 4])
            && [generation, number, commit].iter().all(|&count| count < COUNTER_LIMIT);
        right.then_some(RecordHeader { generation, number, before, commit, body_len, body_sum, sum })
    }
}

/// Computes the checksum of a record's header. It also covers the store's UUID, which excludes the logs of other
/// stores.
fn header_sum(store: &[u8; 16], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(store);
    hasher.update(bytes);
    hasher.finalize()
}

impl Log {
    /// Begins a log: writes `catalog` as the first record and then the superblock that makes the log count. If this
    /// fails, the old log or the new one counts, and both have the same content.
    ///
    /// The superblock is written twice, with this sequence and the next, so that both slots name this log. If one of
    /// two slots is damaged, its sequence is unknown, and an older log in the other slot would lack the newest commits.
    pub fn begin(devices: &Devices, superblock: Superblock, catalog: &Catalog, pinned: u64) -> Result<Log> {
        let mut log = Log { superblock, tail: Tail::START, is_uneven: false };
        log.append(devices, catalog.commit, &catalog.checkpoint(pinned))?;
        write_superblock(devices, &log.superblock)?;
        log.superblock.sequence += 1;
        write_superblock(devices, &log.superblock)?;
        Ok(log)
    }

    /// Returns the length of the record that begins a log with this catalog.
    pub fn needed_bytes(catalog: &Catalog, pinned: u64) -> usize {
        record_bytes(encode_edits(&catalog.checkpoint(pinned)).len())
    }

    /// Returns true if a record of `edits` fits behind the last one.
    pub fn has_room(&self, edits: &[Edit]) -> bool {
        self.tail.offset + record_bytes(encode_edits(edits).len()) <= self.capacity()
    }

    pub fn capacity(&self) -> usize {
        capacity(&self.superblock.log)
    }

    /// Returns the last record that was read or written here.
    pub fn last(&self) -> LastRecord {
        let Superblock { generation, sequence, .. } = self.superblock;
        LastRecord { generation, number: self.tail.number - 1, sequence }
    }

    /// Appends a record to all copies and makes it durable. The caller has checked that there is room.
    ///
    /// # Errors
    /// I/O. The record may then count or not; only a new read of the log decides this.
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

    /// Reads a log from its start.
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

    /// Checks that the log contains `announced`, the latest record that a process announced. That record was durable. If it
    /// is missing, all its copies are damaged, or no superblock names its log any more.
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

    /// Applies the records that were appended since the last read, and returns their number. `known` is the last
    /// appended record that is known; without it, the rest of the log is searched for a later one.
    ///
    /// # Errors
    /// I/O; damage, which is a record without a whole copy before a later record.
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

    /// Returns true if records can be appended: all devices of all copies are present, and all copies are equal.
    pub fn is_fit(&self, devices: &Devices) -> bool {
        self.is_there(devices) && !self.is_uneven
    }

    /// Returns true if a record that was read is missing in some copy that is present.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }

    /// Returns true if all devices of all copies are present.
    fn is_there(&self, devices: &Devices) -> bool {
        self.superblock.log.iter().flatten().all(|place| devices.contains_key(&place.device))
    }

    /// Returns true if all devices of one copy are present.
    fn is_readable(&self, devices: &Devices) -> bool {
        let is_there = |copy: &Vec<Place>| copy.iter().all(|place| devices.contains_key(&place.device));
        self.superblock.log.iter().any(is_there)
    }

    /// Lists the damage of the superblocks and of each copy of the log, even if together they are sufficient. `placement` is
    /// the wanted placement. For a missing device, `is_lost` returns true if only its superblock is lost.
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

    /// Returns the error for a lost next record, given that record `later`, the same or a later one, was written.
    fn lost_record(&self, later: u64) -> Error {
        let (number, places) = (self.tail.number, self.places_of_next());
        let found = format!("no whole copy of record {number}{places}, although record {later} was written");
        self.damaged(found, "whole records")
    }

    /// Describes the place of the next record in each copy, as the end of a sentence.
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

    /// Reads the next record. The flag is true if all copies that are present have it.
    fn next_record(&self, devices: &Devices) -> Result<Option<(RecordHeader, Vec<u8>, bool)>> {
        if self.tail.offset + PAGE_BYTES > self.capacity() {
            return Ok(None);
        }
        let (mut record, mut failed, mut is_in_all) = (None, None, true);
        for copy in &self.superblock.log {
            match self.record_of(devices, copy) {
                Ok(Some(found)) => record = record.or(Some(found)),
                Ok(None) => is_in_all = false,
                // A missing device has no answer; another copy has every acknowledged record.
                Err(Error::NoDevice { .. }) if self.is_readable(devices) => {}
                Err(error) => {
                    is_in_all = false;
                    failed = Some(error);
                }
            }
        }
        match (record, failed) {
            (Some((header, body)), _) => Ok(Some((header, body, is_in_all))),
            // The record is unknown if no copy gave it and one copy could not be read.
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn record_of(&self, devices: &Devices, copy: &[Place]) -> Result<Option<(RecordHeader, Vec<u8>)>> {
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

    /// Returns the number of a record of this generation after the next one, if any copy has one.
    fn later_record(&self, devices: &Devices) -> Result<Option<u64>> {
        let mut extent = metadata_buffer(EXTENT_BYTES)?;
        for copy in &self.superblock.log {
            let mut offset = self.tail.offset;
            while offset < self.capacity() {
                let len = EXTENT_BYTES - offset % EXTENT_BYTES;
                // If one copy cannot be read, another one may be.
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

/// Returns the length of a record with a body of `body_len` bytes.
fn record_bytes(body_len: usize) -> usize {
    (RECORD_HEADER_BYTES + body_len).next_multiple_of(PAGE_BYTES)
}

pub(crate) fn capacity(log: &LogPlaces) -> usize {
    log[0].len() * EXTENT_BYTES
}

fn device(devices: &Devices, place: Place) -> Result<&Arc<dyn Device>> {
    devices.get(&place.device).ok_or(Error::NoDevice { number: place.device })
}

/// Cuts `len` bytes at `offset` of a copy of the log at the borders of extents: place, offset there, and range of the
/// bytes.
fn parts(
    copy: &[Place],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (Place, usize, std::ops::Range<usize>)> {
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

fn read_log(devices: &Devices, copy: &[Place], offset: usize, buffer: &mut [u8]) -> Result<()> {
    for (place, at, part) in parts(copy, offset, buffer.len()) {
        let device = device(devices, place)?;
        device
            .read(place.extent, at, &mut buffer[part])
            .map_err(io_error("read the log", device.as_ref()))?;
    }
    Ok(())
}

/// Creates a store on blank devices: numbers them, allocates two copies of log and spare, and writes an empty catalog.
pub(crate) fn init(devices: &[Arc<dyn Device>], limit_bytes: Option<u64>) -> Result<(Devices, Superblock)> {
    let numbered: Devices = (0..).zip(devices.iter().cloned()).collect();
    let first = FIRST_LOG_EXTENT;
    let copies: [(u16, u32); 2] =
        if devices.len() > 1 { [(0, first), (1, first)] } else { [(0, first), (0, first + 2)] };
    let places =
        |next: u32| copies.map(|(device, extent)| vec![Place { device, extent: extent + next }]).to_vec();
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

/// Decodes the header of a log record and encodes it again. The result is `None` if the header is not valid, and
/// otherwise true if both are equal.
#[cfg(feature = "fuzzing")]
pub(crate) fn record_header_round_trip(store: &[u8; 16], bytes: &[u8]) -> Option<bool> {
    let header = RecordHeader::decode(store, bytes)?;
    Some(RecordHeader::decode(store, &header.encode(store)).as_ref() == Some(&header))
}

/// Returns the checksum that the header of a log record must have.
#[cfg(feature = "fuzzing")]
pub(crate) fn record_header_sum(store: &[u8; 16], bytes: &[u8]) -> u32 {
    header_sum(store, &bytes[..RECORD_HEADER_BYTES - 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_survives_its_encoding_as_text() {
        for bytes in [&b"/a/b"[..], b"/\xc3\xa4", b"/x\xff/%41", b"%", b"%zz", b"", b"/\xfe\xff"] {
            let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
            assert_eq!(decode_path(&encode_path(path)).as_deref(), Some(path));
        }
        assert_eq!(encode_path(Path::new("/\u{e4}%")), "/\u{e4}%");
        for text in ["%%", "%%4", "%%g1", "%/a%\u{e4}"] {
            assert_eq!(decode_path(text), None, "{text}");
        }
    }

    #[test]
    fn impossible_superblocks_and_records_are_refused() {
        let place = |device, extent| Place { device, extent };
        let entry = |number| {
            let path = PathBuf::from("d");
            DeviceEntry { number, uuid: [1; 16], path, limit_bytes: None, is_leaving: false }
        };
        let (log, spare) = (vec![vec![place(0, 2)], vec![place(1, 2)]], vec![vec![place(0, 3)]]);
        let devices = vec![entry(0), entry(1)];
        let whole = Superblock {
            store: [7; 16],
            sequence: 2,
            generation: 1,
            branches: vec![3, 4],
            devices,
            log,
            spare,
        };
        let decodes = |superblock: &Superblock| Superblock::decode(&superblock.encode(0)).is_some();
        assert!(decodes(&whole));
        for bad in [(0, 1), (0, 0), (0, 128), (0, 2), (2, 9)] {
            let spare = vec![vec![place(bad.0, bad.1)]];
            assert!(!decodes(&Superblock { spare, ..whole.clone() }), "{bad:?}");
        }
        assert!(!decodes(&Superblock { devices: vec![entry(0), entry(1), entry(1)], ..whole.clone() }));
        assert!(!decodes(&Superblock { sequence: u64::MAX, ..whole.clone() }));
        assert!(!decodes(&Superblock { generation: u64::MAX, ..whole.clone() }));
        for (commit, is_right) in [(9, true), (u64::MAX, false)] {
            let header = RecordHeader {
                generation: 1,
                number: 0,
                before: 0,
                commit,
                body_len: 4,
                body_sum: 0,
                sum: 0,
            };
            let bytes = header.encode(&whole.store);
            assert_eq!(RecordHeader::decode(&whole.store, &bytes).is_some(), is_right);
        }
    }
}
