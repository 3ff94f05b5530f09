//! Discovery finds the devices of a store by their superblocks, and chooses the newest valid superblock.

use std::{cell::RefCell, collections::BTreeMap};

use super::*;
use crate::log::is_used;
use crate::space::scratch::{announces_a_store, identity};

/// `Opener` opens a device that a superblock describes. Its arguments are the entry of the device, the entries of all
/// devices, and a function that returns true for the right device.
pub(crate) type Opener = Box<
    dyn Fn(&DeviceEntry, &[DeviceEntry], &dyn Fn(&dyn Device) -> bool) -> Option<Arc<dyn Device>>
        + Send
        + Sync,
>;

/// Numbers the given devices by their superblocks, and finds the other devices that these superblocks describe. The
/// result is `None` if there is no store: the store was never created, or its creation was not finished (see
/// [`read_superblock`]). `home` is the folder of the registry.
pub(super) fn gather(home: &Path, devices: &[Arc<dyn Device>], opener: &Opener) -> Result<Option<Devices>> {
    let mut known = Devices::new();
    let (mut store, mut failed, mut twice, mut uuids) = (None, None, None, BTreeMap::new());
    for device in devices {
        // A drive that fails counts as missing, as long as other drives are present.
        let found = read_superblock(device.as_ref()).unwrap_or_else(|error| {
            failed = Some(error);
            None
        });
        let Some((number, superblock)) = found else { continue };
        if *store.get_or_insert(superblock.store) != superblock.store {
            return Err(Error::BadFormat {
                path: PathBuf::from(device.name()),
                what: "store",
                found: "a device of another store".to_string(),
                expected: "devices of one store".to_string(),
            });
        }
        let uuid = superblock.uuid_of(number);
        let is_known = uuids.insert(number, uuid) == Some(uuid);
        if let Some(other) = known.insert(number, device.clone())
            && is_known
            && path_of(other.as_ref()) != path_of(device.as_ref())
        {
            twice = Some(Error::BadFormat {
                path: path_of(device.as_ref()),
                what: "superblock",
                found: format!("the superblock of device {number}, which is also in {}", other.name()),
                expected: "a superblock of its own".to_string(),
            });
        }
    }
    let none = || check_is_new(home, devices).map(|()| None);
    let Some(NewestSuperblock { superblock, .. }) = newest(&mut known, opener)? else {
        return failed.map_or_else(none, Err);
    };
    for device in devices {
        check_is_no_copy(device, &superblock)?;
    }
    if let Some(error) = twice {
        return Err(error);
    }
    // A device with data of a store must have had the second superblock. The store therefore exists, even if this
    // superblock is lost.
    let is_blank = |device: &Arc<dyn Device>| check_is_blank(device.as_ref()).is_ok();
    if superblock.sequence > 1 || !known.values().all(is_blank) {
        return Ok(Some(known));
    }
    // At this point, the present devices have only the first superblock of a store. If all devices are present, no
    // device has the second superblock, so the creation of the store was not finished.
    match superblock.devices.iter().find(|entry| !known.contains_key(&entry.number)) {
        Some(missing) if devices.len() < superblock.devices.len() => {
            Err(Error::NoDevice { number: missing.number })
        }
        _ => none(),
    }
}

/// Checks, before a store is created, that the folders contain no store whose superblocks are all lost.
fn check_is_new(home: &Path, devices: &[Arc<dyn Device>]) -> Result<()> {
    devices.iter().try_for_each(|device| check_is_blank(device.as_ref()))?;
    if announces_a_store(home) {
        return Err(lost_superblock(home.to_path_buf(), "the file scratch/lock belongs to a store"));
    }
    Ok(())
}

/// Checks that a device without a superblock, or with only the first superblock of a store, contains no data of a
/// store. Only the data that an unfinished creation leaves is allowed.
pub(crate) fn check_is_blank(device: &dyn Device) -> Result<()> {
    let lost = |trace: &str| Err(lost_superblock(path_of(device), trace));
    if let Some(folder) = device.folder() {
        if announces_a_store(folder) {
            return lost("the file scratch/lock belongs to a store");
        }
        let list = |error| Error::io("list", folder, error);
        for entry in std::fs::read_dir(folder).map_err(list)? {
            let name = entry.map_err(list)?.file_name().to_string_lossy().into_owned();
            if name.starts_with("segment-") && name != "segment-00000000" {
                return lost(&format!("the file {name} exists"));
            }
        }
    }
    if is_used(device)? { lost("the device has extents, or a log, of a store") } else { Ok(()) }
}

fn lost_superblock(path: PathBuf, trace: &str) -> Error {
    Error::LostSuperblock { path, found: format!("there is none, although {trace}") }
}

/// Checks that a folder is not a copy of a device whose original is still in its recorded folder.
fn check_is_no_copy(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<()> {
    let found = read_superblock(device.as_ref()).ok().flatten();
    let (Some(folder), Some((number, own))) = (device.folder(), found) else { return Ok(()) };
    let entry = superblock.devices.iter().find(|entry| entry.number == number);
    let Some(entry) = entry.filter(|entry| Some(entry.uuid) == own.uuid_of(number)) else { return Ok(()) };
    let path = &*entry.path;
    if identity(path).is_none_or(|recorded| Some(recorded) == identity(folder)) {
        return Ok(());
    }
    // If the recorded folder cannot be read as a device, it is not the original.
    let there =
        crate::Directory::open(path, None).ok().and_then(|there| read_superblock(&there).ok().flatten());
    match there {
        Some((found, other)) if found == number && other.uuid_of(found) == own.uuid_of(number) => {
            Err(Error::IsACopy { copy: folder.to_path_buf(), number, path: path.to_path_buf() })
        }
        _ => Ok(()),
    }
}

/// Returns the folders of devices.
pub(super) fn folders(devices: &Devices) -> Vec<PathBuf> {
    devices.values().filter_map(|device| device.folder()).map(Path::to_path_buf).collect()
}

/// Records the current folders of the devices in the superblock. If a device was moved, a branch is begun. The branch
/// distinguishes the moved device from a copy of the device in the old folder.
pub(super) fn note_places(superblock: &mut Superblock, devices: &Devices) {
    let mut is_moved = false;
    for entry in &mut superblock.devices {
        let place = devices.get(&entry.number).and_then(|device| device.folder());
        if let Some(place) = place
            && *place != *entry.path
            // If both paths lead to the same folder, the device was not moved.
            && identity(&entry.path) != identity(place)
        {
            (entry.path, is_moved) = (place.to_path_buf(), true);
        }
    }
    if is_moved {
        superblock.begin_branch();
    }
}

/// `NewestSuperblock` is the newest superblock of all devices.
pub(super) struct NewestSuperblock {
    pub superblock: Superblock,
    /// True if some devices have an older superblock, or are not in their recorded folders.
    pub is_stale: bool,
    /// The folders without an intact superblock in which a device of the store should be.
    pub unreadable: Vec<PathBuf>,
}

/// Chooses the newest superblock. Removes devices from `devices` that no longer belong to the store, or whose
/// superblock cannot be read.
fn newest_of(devices: &mut Devices) -> Result<Option<NewestSuperblock>> {
    let mut found: BTreeMap<u16, Superblock> = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for (&number, device) in devices.iter() {
        match read_superblock(device.as_ref()) {
            Ok(superblock) => found.extend(superblock.map(|(_, superblock)| (number, superblock))),
            Err(error) => drop(failed.insert(number, error)),
        }
    }
    if found.is_empty()
        && let Some((_, error)) = failed.pop_first()
    {
        return Err(error);
    }
    // A drive that fails counts as missing.
    devices.retain(|number, _| !failed.contains_key(number));
    let mut newest: Option<&Superblock> = None;
    for other in found.values() {
        let known = newest.unwrap_or(other);
        newest = match (known.descends_from(other), other.descends_from(known)) {
            (true, true) if known.sequence < other.sequence => Some(other),
            (true, _) => Some(known),
            (false, true) => Some(other),
            (false, false) => return Err(diverged(devices, &found, [known, other])),
        };
    }
    let Some(newest) = newest else { return Ok(None) };
    devices.retain(|number, _| {
        let own = found.get(number).map(|own| own.uuid_of(*number));
        newest.uuid_of(*number).is_some_and(|uuid| own.is_none_or(|own| own == Some(uuid)))
    });
    let mut placed = newest.clone();
    note_places(&mut placed, devices);
    let is_old = |(number, own): (&u16, &Superblock)| {
        devices.contains_key(number) && (own.sequence, &own.branches) != (newest.sequence, &newest.branches)
    };
    let is_stale = placed != *newest || found.iter().any(is_old);
    // The sequence number is set to the highest number on any device. The next superblock then has a higher number than
    // both slots of all devices.
    let sequence = found.values().map(|own| own.sequence).max().unwrap_or(newest.sequence);
    let superblock = Superblock { sequence, ..newest.clone() };
    Ok(Some(NewestSuperblock { superblock, is_stale, unreadable: Vec::new() }))
}

/// Returns the error for two superblocks of which neither descends from the other.
fn diverged(devices: &Devices, found: &BTreeMap<u16, Superblock>, [one, other]: [&Superblock; 2]) -> Error {
    let side = |one: &Superblock, other: &Superblock| {
        let is_of_it = |own: &Superblock| one.descends_from(own) && !other.descends_from(own);
        let mut own: Devices = devices.clone();
        own.retain(|number, _| found.get(number).is_some_and(is_of_it));
        let names: Vec<String> =
            own.iter().map(|(number, device)| format!("device {number} ({})", device.name())).collect();
        let last = match Log::read(&own, one.clone()) {
            Ok((_, catalog)) => {
                let count = catalog.datasets.len();
                format!("commit {} with {count} dataset{}", catalog.commit, if count == 1 { "" } else { "s" })
            }
            Err(_) => "its log cannot be read".to_string(),
        };
        format!("{}, at {last},", names.join(" and "))
    };
    Error::Diverged { one: side(one, other), other: side(other, one) }
}

/// Finds the newest superblock of all devices, and opens the other devices that this superblock describes. The result
/// is `None` if there is no superblock.
///
/// # Errors
/// - Returns [`Error::Diverged`] if two groups of devices have different commits.
/// - Returns an error if no superblock can be read.
pub(super) fn newest(devices: &mut Devices, opener: &Opener) -> Result<Option<NewestSuperblock>> {
    loop {
        let Some(known) = newest_of(devices)? else { return Ok(None) };
        let (mut is_new, unreadable) = (false, RefCell::new(Vec::new()));
        let Superblock { store, devices: entries, .. } = &known.superblock;
        for entry in entries {
            if devices.contains_key(&entry.number) {
                continue;
            }
            let is_it = |device: &dyn Device| match read_superblock(device) {
                Ok(Some((number, found))) => {
                    (number, found.store, found.uuid_of(number)) == (entry.number, *store, Some(entry.uuid))
                }
                _ => {
                    let folder = device.folder().filter(|folder| *folder == entry.path);
                    unreadable.borrow_mut().extend(folder.map(Path::to_path_buf));
                    false
                }
            };
            // A missing device is no error at this point, since many operations do not need it.
            if let Some(device) = opener(entry, entries, &is_it) {
                devices.insert(entry.number, device);
                is_new = true;
            }
        }
        if !is_new {
            return Ok(Some(NewestSuperblock { unreadable: unreadable.into_inner(), ..known }));
        }
    }
}
