use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::ExtentAddress;
use std::ffi::OsStr;

#[test]
fn scratch_of_dead_owners_is_removed_and_scratch_of_living_ones_stays() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(home.path()).unwrap();
    let living = registry.lock().unwrap().join("").unwrap();
    fs::write(living.path().join("run"), "alive").unwrap();
    let dead = home.path().join("scratch/1-dead");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("lock"), "").unwrap();
    fs::write(dead.join("run"), "dead").unwrap();
    fs::write(dead.join("lease"), [1, 0, 2, 0, 0, 0, 3, 0, 0, 0]).unwrap();
    let torn = home.path().join("scratch/1-torn");
    fs::create_dir(&torn).unwrap();

    let run = Run { start: ExtentAddress { device: 1, extent: 2 }, count: 3 };
    let owners = registry.lock().unwrap().owners().unwrap();
    assert_eq!((owners.len(), owners[0].process), (1, std::process::id()));
    let left = registry.lock().unwrap().dead().unwrap();
    assert_eq!(left.lease, [run]);
    left.remove().unwrap();
    assert!(living.path().join("run").exists());
    assert!(!dead.exists() && !torn.exists());
    let second = registry.lock().unwrap().join("").unwrap();
    let path = second.path().to_path_buf();
    drop(second);
    assert!(!path.exists() && living.path().exists());
}

#[test]
fn a_removed_or_full_device_is_left_out() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(other.path().join("segment-00000000"), "").unwrap();
    let registry = Registry::open(home.path()).unwrap();
    registry.meet_on([other.path().to_path_buf()]);
    let guard = registry.lock().unwrap();
    let run = Run { start: ExtentAddress { device: 1, extent: 2 }, count: 3 };
    let early = guard.join("").unwrap();
    assert_eq!(early.members.lock().unwrap().len(), 2);
    // Another process removes the device from the store.
    fs::remove_dir_all(other.path().join("scratch")).unwrap();
    let late = guard.join("").unwrap();
    assert_eq!(late.members.lock().unwrap().len(), 1);
    for scratch in [&early, &late] {
        scratch.add_lease(run).unwrap();
        scratch.pin(Some(3)).unwrap();
    }
    assert_eq!((guard.leases().unwrap().len(), guard.pinned(9).unwrap()), (2, 3));
    assert_eq!(guard.dead().unwrap().lease, []);
    drop(guard);
    fs::remove_file(other.path().join("segment-00000000")).unwrap();
    registry.meet_on([other.path().to_path_buf()]);
    drop(registry.lock().unwrap());
    assert!(!other.path().join("scratch").exists());
}

#[test]
fn unreadable_state_of_an_owner_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(home.path()).unwrap();
    let living = registry.lock().unwrap().join("").unwrap();
    // A folder with the name of the file makes every read of the file fail.
    for name in ["lease", "pin", "keeps"] {
        let path = living.path().join(name);
        fs::create_dir(&path).unwrap();
        let guard = registry.lock().unwrap();
        assert!(guard.owners().is_err(), "{name}");
        match name {
            "lease" => assert!(guard.leases().is_err() && guard.dead().is_err()),
            "pin" => assert!(guard.pinned(7).is_err()),
            _ => assert!(guard.dead().is_ok()),
        }
        fs::remove_dir(path).unwrap();
    }
    assert_eq!(registry.lock().unwrap().owners().unwrap().len(), 1);
}

#[test]
fn an_unreadable_lock_makes_the_last_record_unknown() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(other.path().join("segment-00000000"), "").unwrap();
    let registry = Registry::open(home.path()).unwrap();
    registry.meet_on([other.path().to_path_buf()]);
    let last = LastRecord { generation: 1, number: 2, sequence: 3 };
    registry.announce_last_record(last);
    assert_eq!(registry.last_record(), Some(last));
    let lock = other.path().join("scratch/lock");
    fs::remove_file(&lock).unwrap();
    assert_eq!(registry.last_record(), Some(last), "a device that was taken out says nothing");
    fs::create_dir(&lock).unwrap();
    assert_eq!(registry.last_record(), None);
    assert!(registry.has_announced(last));
}

#[test]
fn announcements_of_the_log_and_of_discarded_space_are_independent() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(home.path()).unwrap();
    assert_eq!((registry.last_record(), registry.discarded()), (None, 0));
    registry.announce_discarded(7);
    assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
    let last = LastRecord { generation: 1, number: 2, sequence: 3 };
    registry.announce_last_record(last);
    assert_eq!((registry.last_record(), registry.discarded()), (Some(last), 7));
    registry.clear_last_record().unwrap();
    assert_eq!((registry.last_record(), registry.discarded()), (None, 7));
}

#[test]
fn folders_in_a_lock_survive_encoding_and_older_locks_are_read() {
    let last = Some(LastRecord { generation: 1, number: 2, sequence: 3 });
    let folders = [&b"/a"[..], b"/data\xff", b"/data/b"];
    let record = [1u64, 2, 3].map(u64::to_le_bytes).concat();
    for count in 0..=folders.len() {
        let list: Vec<u8> = folders[..count].iter().flat_map(|folder| [*folder, &[0]].concat()).collect();
        let folders: Vec<_> =
            folders[..count].iter().map(|folder| PathBuf::from(OsStr::from_bytes(folder))).collect();
        // In the last two numbers, the first byte is a `/`, with which a list of folders would begin.
        for discarded in [0, 7, 0x2f, 0x2f2f_002f_002f] {
            let content = LockContent { last, discarded, folders: folders.clone() };
            let bytes = content.encode();
            assert_eq!(bytes, [&record[..], &discarded.to_le_bytes(), &list].concat());
            assert_eq!(LockContent::decode(&bytes), content);
        }
        let older = LockContent::decode(&[&record[..], &list].concat());
        assert_eq!(older, LockContent { last, discarded: 0, folders });
    }
    for len in 0..24 {
        assert_eq!(LockContent::decode(&record[..len]), LockContent::default());
    }
    assert_eq!(LockContent::decode(&[0; 24]), LockContent::default());
}

#[test]
fn a_shorter_list_of_folders_replaces_a_longer_one() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(other.path().join("segment-00000000"), "").unwrap();
    let registry = Registry::open(home.path()).unwrap();
    registry.meet_on([other.path().to_path_buf()]);
    registry.announce_last_record(LastRecord { generation: 1, number: 2, sequence: 3 });
    registry.announce_discarded(7);
    assert_eq!(announced_folders(home.path()).len(), 2);
    assert_eq!(announced_folders(home.path()), announced_folders(other.path()));
    registry.clear_last_record().unwrap();
    assert_eq!(announced_folders(home.path()).len(), 2);
    registry.remove(other.path()).unwrap();
    registry.announce_last_record(LastRecord { generation: 1, number: 3, sequence: 3 });
    assert_eq!((announced_folders(home.path()), registry.discarded()), (vec![home.path().to_path_buf()], 7));
}

#[test]
fn a_lease_is_the_union_over_the_folders_of_its_owner() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(other.path().join("segment-00000000"), "").unwrap();
    let registry = Registry::open(home.path()).unwrap();
    registry.meet_on([other.path().to_path_buf()]);
    let guard = registry.lock().unwrap();
    let owner = guard.join("").unwrap();
    let run = |extent| Run { start: ExtentAddress { device: 0, extent }, count: 2 };
    owner.add_lease(run(5)).unwrap();
    // Writes to each of the two drives fail once, as if the drive were full.
    let folders: Vec<PathBuf> = owner.members.lock().unwrap().iter().map(|(path, _)| path.clone()).collect();
    for (folder, missed) in folders.iter().zip([9, 20]) {
        let (lease, aside) = (folder.join("lease"), folder.join("aside"));
        fs::rename(&lease, &aside).unwrap();
        fs::create_dir(&lease).unwrap();
        owner.add_lease(run(missed)).unwrap();
        fs::remove_dir(&lease).unwrap();
        fs::rename(&aside, &lease).unwrap();
    }
    assert_eq!(guard.leases().unwrap(), [run(5), run(9), run(20)]);
}

#[test]
fn corrupt_leases_and_pins_are_ignored() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(home.path()).unwrap();
    let living = registry.lock().unwrap().join("").unwrap();
    let mut lease = vec![0; 10];
    // The entries are: a run that includes the headers of the first segment and the superblock, a run whose end
    // overflows, a valid run, and an incomplete run.
    lease.extend([0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
    lease.extend([0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    lease.extend([1, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    lease.extend([1, 0, 9]);
    fs::write(living.path().join("lease"), lease).unwrap();
    let guard = registry.lock().unwrap();
    assert_eq!(guard.leases().unwrap(), [Run { start: ExtentAddress { device: 1, extent: 2 }, count: 3 }]);
    fs::write(living.path().join("pin"), [255; 8]).unwrap();
    assert_eq!(guard.pinned(7).unwrap(), 7);
    // An incomplete pin counts as a pin of all commits.
    fs::write(living.path().join("pin"), [255; 3]).unwrap();
    assert_eq!(guard.pinned(7).unwrap(), 0);
}

#[test]
fn only_living_owners_have_leases_and_pins() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(home.path()).unwrap();
    let owners = [0, 1].map(|_| registry.lock().unwrap().join("").unwrap());
    assert_eq!(registry.lock().unwrap().oldest_pin().unwrap(), None);
    owners[0].pin(Some(7)).unwrap();
    owners[1].pin(Some(9)).unwrap();
    let run = |extent| Run { start: ExtentAddress { device: 0, extent }, count: 2 };
    owners[0].add_lease(run(5)).unwrap();
    owners[0].add_lease(run(9)).unwrap();
    let guard = registry.lock().unwrap();
    assert_eq!((guard.oldest_pin().unwrap(), guard.leases().unwrap()), (Some(7), vec![run(5), run(9)]));
    owners[0].pin(None).unwrap();
    assert_eq!(guard.oldest_pin().unwrap(), Some(9));
    drop(owners);
    assert_eq!((guard.oldest_pin().unwrap(), guard.leases().unwrap()), (None, vec![]));
}
