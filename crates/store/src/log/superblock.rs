//! The superblock describes the devices of a store and the addresses of its log. Every device has two slots for the
//! superblock.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use super::{Devices, FIRST_LOG_EXTENT, LogExtents, SUPERBLOCK_EXTENT, io_error, record::COUNTER_LIMIT};
use crate::{
    Device, EXTENT_BYTES, Error, ExtentAddress, PAGE_BYTES, Result, SEGMENT_EXTENTS,
    device::{metadata_buffer, path_of},
    log::encoding::{Cursor, put_bytes, put_u32},
    random::random_u64,
};

const SUPERBLOCK_MAGIC: &[u8; 8] = b"INSHSUPR";
/// Stores of version 1, from before the first release, have no log and cannot be read. Superblocks of version 2 have no
/// branches.
const SUPERBLOCK_VERSION: u32 = 3;
const SUPERBLOCK_VERSION_MIN: u32 = 2;
/// The largest number of branches that a superblock records. A drive that was missing during more branches counts as
/// diverged.
const BRANCHES_MAX: usize = 1000;

const SLOT_BYTES: usize = EXTENT_BYTES / 2;
const SUPERBLOCK_HEADER_BYTES: usize = 40;

/// `DeviceEntry` describes a device in the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The number of the device in the store.
    pub number: u16,
    /// The random UUID of the device.
    pub uuid: [u8; 16],
    /// The recorded folder of the device.
    pub path: PathBuf,
    /// The largest number of bytes that the store may take on the device. The value is `None` if there is no limit.
    pub limit_bytes: Option<u64>,
    /// True if the device is being added or removed. The store then writes no new data to it.
    pub is_leaving: bool,
}

/// `Superblock` describes the store. Every device contains the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub store: [u8; 16],
    /// The sequence number of this superblock. A newer superblock has a higher number.
    pub sequence: u64,
    /// The number of the current log. Records with another generation number belong to other logs.
    pub generation: u64,
    /// Random numbers that identify branches. Each change of the store while a device of its log is missing begins a
    /// branch.
    pub branches: Vec<u64>,
    pub devices: Vec<DeviceEntry>,
    pub log: LogExtents,
    pub spare: LogExtents,
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

    /// Decodes a slot. Returns the number of the device to which the slot was written, and the superblock. The result
    /// is `None` if the slot is damaged or of another version.
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
            let log: LogExtents = body.list(|body| {
                body.list(|body| Some(ExtentAddress { device: body.u16()?, extent: body.u32()? }))
            })?;
            let is_whole =
                !log.is_empty() && !log[0].is_empty() && log.iter().all(|copy| copy.len() == log[0].len());
            is_whole.then_some(log)
        };
        let (log, spare) = (places(&mut body)?, places(&mut body)?);
        let superblock = Superblock { store, sequence, generation, branches, devices, log, spare };
        (body.0.is_empty() && superblock.is_sound()).then_some((device, superblock))
    }

    /// Returns true if the superblock is consistent. The counters must be below their limit, and no device may appear
    /// twice. The extents of the log and of the spare log must be different, on known devices, and at addresses for
    /// data.
    fn is_sound(&self) -> bool {
        let numbers: BTreeSet<u16> = self.devices.iter().map(|entry| entry.number).collect();
        let places: BTreeSet<ExtentAddress> = self.places().collect();
        self.sequence < COUNTER_LIMIT
            && self.generation < COUNTER_LIMIT
            && numbers.len() == self.devices.len()
            && places.len() == self.places().count()
            && places.iter().all(|place| place.is_for_data() && numbers.contains(&place.device))
    }

    /// Returns true if this superblock is the same as `other` or a successor of `other`. This superblock then includes
    /// all acknowledged changes that `other` includes: a change either reaches every device of the log before it is
    /// acknowledged, or begins a branch.
    pub fn descends_from(&self, other: &Superblock) -> bool {
        other.branches.last().is_none_or(|branch| self.branches.contains(branch))
    }

    /// Begins a branch if a device of the log is missing, since another process that sees only that device could also
    /// change the store. Each change of the store must first call this function.
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

    /// Returns the UUID of the device with this number.
    pub fn uuid_of(&self, number: u16) -> Option<[u8; 16]> {
        self.devices.iter().find(|entry| entry.number == number).map(|entry| entry.uuid)
    }

    /// Returns true if the store may write new data to a device.
    pub fn takes_data(&self, number: u16) -> bool {
        self.devices.iter().any(|entry| entry.number == number && !entry.is_leaving)
    }

    /// Returns the addresses of the log's extents and of the spare log's extents.
    pub fn places(&self) -> impl Iterator<Item = ExtentAddress> {
        self.log.iter().chain(&self.spare).flatten().copied()
    }
}

/// Encodes a path as text without loss. A path that is valid UTF-8 is not changed. For other paths, the text begins
/// with `%`. Then follow the bytes of the path, in which `%` and all non-ASCII bytes are written as `%` and two
/// hexadecimal digits. A path that is not encoded begins with `/`.
pub(super) fn encode_path(path: &Path) -> String {
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

/// Decodes a path. The result is `None` if the text is invalid.
pub(super) fn decode_path(text: &str) -> Option<PathBuf> {
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

/// Reads the newest superblock of a device, and the number of the device. The result is `None` if the device has no
/// superblock.
///
/// The first superblock of a store is written to slot 1. The store exists after the second superblock was written to
/// slot 0. If slot 0 is empty, the content of slot 1 is the remainder of an unfinished creation.
///
/// # Errors
/// Returns an error if a read fails, the version is unknown, or both slots are damaged.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Option<(u16, Superblock)>> {
    let mut newest: Option<(u16, Superblock)> = None;
    let mut buffer = metadata_buffer(SLOT_BYTES)?;
    let (mut other_version, mut is_blank) = (None, true);
    for slot in 0..2 {
        // The first page contains the length of the superblock. Most superblocks fit in one page.
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
            // If slot 1 has sequence number 1 and slot 0 is damaged, slot 0 contained the second superblock. The store
            // therefore exists.
            if let Some((_, first)) = &mut newest
                && !is_blank
            {
                first.sequence = first.sequence.max(2);
            }
            Ok(newest)
        }
    }
}

/// Returns true if a device contains more data than an unfinished creation of a store leaves. An unfinished creation
/// leaves a superblock in slot 1, and a record in the first page of each copy of the log. The function reads only the
/// first segment: the headers of its extents, and the pages at which a log begins or continues.
pub(crate) fn is_used(device: &dyn Device) -> Result<bool> {
    const NEW_LOGS: std::ops::Range<u32> = FIRST_LOG_EXTENT..FIRST_LOG_EXTENT + 4;
    // The header of each extent takes one page.
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

/// Reads both slots of a device's superblock. A slot that cannot be read or is damaged gives `None`.
pub(crate) fn superblock_slots(device: &dyn Device) -> [Option<Superblock>; 2] {
    [0, 1].map(|slot| {
        let mut buffer = metadata_buffer(SLOT_BYTES).ok()?;
        device.read(SUPERBLOCK_EXTENT, slot * SLOT_BYTES, &mut buffer).ok()?;
        Superblock::decode(&buffer).map(|(_, superblock)| superblock)
    })
}

/// Erases the superblock of a device, so that the device belongs to no store.
pub(crate) fn erase_superblock(device: &dyn Device) -> Result<()> {
    let zeros = metadata_buffer(PAGE_BYTES)?;
    // Slot 0 is erased first. If slot 0 is empty, the device belongs to no store, whatever the content of slot 1 is.
    for slot in 0..2 {
        device
            .write(SUPERBLOCK_EXTENT, slot * SLOT_BYTES, &zeros)
            .and_then(|()| device.sync())
            .map_err(io_error("erase the superblock", device))?;
    }
    Ok(())
}

/// Writes the superblock to every device that is present, and makes it durable.
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
