//! Tests of the verbs of `inshore store`, on one or several devices, with intact, damaged and full stores. Bytes must
//! be returned as they were put.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::util::{EDGES, Folder};

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

fn get(folder: &Folder, name: &str) -> Vec<u8> {
    folder.run(&format!("store get {name} -o out")).ok();
    let found = fs::read(folder.path("out")).unwrap();
    fs::remove_file(folder.path("out")).unwrap();
    found
}

#[test]
fn what_is_put_comes_out_again_from_files_and_pipes() {
    let folder = Folder::new();
    for (name, len) in [("empty", 0), ("small", 10), ("large", 5_000_001)] {
        folder.write(name, bytes(1, len));
        let said = folder.run(&format!("store put {name} --json")).ok().json();
        assert_eq!(said["summary"]["bytes"], len);
        folder.run(&format!("store put - --name {name}.piped --block 4KiB")).stdin(bytes(1, len)).ok();
        assert!(
            get(&folder, name) == bytes(1, len) && get(&folder, &format!("{name}.piped")) == bytes(1, len)
        );
    }
    folder.run("store put - --name text").stdin("some text").ok();
    assert_eq!(folder.run("store get text").ok().stdout, "some text");
    folder.run("store get large --offset 4999990 --length 1MiB -o tail").ok();
    assert!(fs::read(folder.path("tail")).unwrap() == bytes(1, 5_000_001)[4_999_990..]);
    let list = folder.run("store ls --json").ok().json();
    assert_eq!(list.as_array().unwrap().len(), 7);
    let stat = folder.run("store stat large.piped --json").ok().json();
    assert_eq!(
        (&stat["summary"]["files"][0]["block_bytes"], &stat["summary"]["sealed"]),
        (&4096.into(), &true.into())
    );
    folder.run("store rm large small").ok();
    assert!(folder.run("store get large").exits(2).stderr.contains("there is no dataset \"large\""));
}

#[test]
fn a_dataset_grows_until_it_is_sealed() {
    let folder = Folder::new();
    let mut all = Vec::new();
    for part in 0..5 {
        let more = bytes(part, 700_000 * part as usize);
        folder.run("store put - --name log --append").stdin(more.clone()).ok();
        all.extend(more);
    }
    assert!(get(&folder, "log") == all);
    assert!(folder.run("store put - --name log").stdin("x").exits(2).stderr.contains("exists already"));
    folder.run("store seal log").ok();
    assert!(folder.run("store put - --name log --append").stdin("x").exits(2).stderr.contains("is sealed"));
    assert!(get(&folder, "log") == all);
    folder.run("store verify").ok();
}

#[test]
fn reading_makes_no_store_and_what_is_wrong_is_told() {
    let folder = Folder::new();
    for words in ["store ls", "store df", "store rm a", "store get a", "store verify", "graph ls"] {
        assert!(folder.run(words).exits(2).stderr.contains("there is no store in"), "{words}");
    }
    assert!(!folder.path("store").exists());
    folder.run("store init one two --size 1GiB").ok();
    assert!(folder.run("store init two three").exits(2).stderr.contains("already holds a store"));
    assert!(folder.run("store init three three").exits(2).stderr.contains("given twice"));
    let two = ["--store", "two"].join(" ");
    assert!(folder.run(&format!("store put - {two}")).stdin("x").exits(2).stderr.contains("--name"));
    for (words, told) in [
        ("store put missing.file", "No such file"),
        ("store put . --name dot", "not a regular file"),
        ("store put - --name a/b", "bad name"),
        ("store put - --name x --parity 2+1", "need 3 devices, and the store has 2"),
        ("store get nothing", "there is no dataset \"nothing\""),
        ("store remove-device 7", "is not a device"),
        ("store add-device one", "already"),
        ("store remove-device one/../nowhere", "is not a device"),
    ] {
        let said = folder.run(&format!("{words} {two}")).stdin("x").exits(2).stderr;
        assert!(said.contains(told), "{words}: {said}");
    }
    for (words, told) in
        [("--block 5000", "power of two"), ("--parity 1+1", "4+2"), ("--copies 3", "expected 1 or 2")]
    {
        let said = folder.run(&format!("store put - --name x {words} {two}")).exits(2).stderr;
        assert!(said.contains(told), "{words}: {said}");
    }
    // The devices have the size that was given when the store was created.
    let df = folder.run(&format!("store df --json {two}")).ok().json();
    assert!(df.as_array().unwrap().iter().all(|device| device["capacity_bytes"] == 1 << 30));
}

#[test]
fn graphs_are_listed_and_their_files_can_be_had() {
    let folder = Folder::with_graph("g", EDGES);
    let said = folder.run("store get g").exits(2).stderr;
    assert!(said.contains("several files") && said.contains("out.edges"), "{said}");
    let stat = folder.run("store stat g --json").ok().json();
    let files = stat["summary"]["files"].as_array().unwrap();
    let edges = files.iter().find(|file| file["name"] == "out.edges").unwrap();
    folder.run("store get g --file out.edges -o edges").ok();
    assert_eq!(fs::read(folder.path("edges")).unwrap().len() as u64, edges["bytes"].as_u64().unwrap());
    let said = folder.run("store get g --file nothing").exits(2).stderr;
    assert!(said.contains("g has no file \"nothing\": its files are "), "{said}");
}

/// Flips a bit in one copy of each extent of a dataset, in the segment files of the devices.
fn damage(folder: &Folder, name: &str, copy: usize, devices: &[&str]) {
    let found = folder.run(&format!("store locate {name} --store {} --json", devices[0])).ok().json();
    for piece in found["summary"]["places"].as_array().unwrap() {
        let place = &piece["copies"][copy];
        let (device, extent) =
            (place["device"].as_u64().unwrap() as usize, place["extent"].as_u64().unwrap());
        let path = folder.path(devices[device]).join(format!("segment-{:08}", extent / 128));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (mut byte, at) = ([0], extent % 128 * (2 << 20) + 100);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 8], at).unwrap();
    }
}

#[test]
fn damage_is_found_named_and_mended_from_copies_and_parity() {
    let folder = Folder::new();
    let devices = ["one", "two", "three"];
    folder.run("store init one two three --size 2GiB").ok();
    let all = bytes(7, 9_000_000);
    for (name, words) in [("alone", ""), ("copied", "--copies 2"), ("parity", "--parity 2+1")] {
        folder.run(&format!("store put - --name {name} --store two {words}")).stdin(all.clone()).ok();
        folder.run("store verify --store one").ok();
        damage(&folder, name, 0, &devices[..]);
        let said = folder.run(&format!("store verify {name} --store one --json")).exits(1).json();
        let found = said["summary"]["damage"].as_array().unwrap();
        assert_eq!(found.len(), 5, "{name}: {said}");
        assert!(
            found
                .iter()
                .all(|damage| damage["file"] == format!("{name}/bytes") && damage["repaired"] == false)
        );
        let get = folder.run(&format!("store get {name} --store three -o out"));
        match name {
            "alone" => {
                let said = get.exits(2).stderr;
                assert!(said.contains("alone/bytes: damaged at offset 0"), "{said}");
                folder.run("store scrub --store one").exits(1);
                folder.run("store rm alone --store one").ok();
            }
            // The damage affects more extents of a group (two of data and one of parity) than the parity can repair.
            "parity" => drop(get.exits(2)),
            _ => {
                get.ok();
                assert!(fs::read(folder.path("out")).unwrap() == all, "{name}");
                folder.run("store verify --store one").ok();
                damage(&folder, name, 0, &devices[..]);
                folder.run("store scrub --store one").ok();
                folder.run("store verify --store one").ok();
            }
        }
    }
}

#[test]
fn a_lost_drive_is_made_again_from_the_others() {
    let folder = Folder::new();
    folder.run("store init one two three --size 2GiB").ok();
    let all = bytes(9, 30_000_000);
    folder.run("store put - --name copied --store one --copies 2").stdin(all.clone()).ok();
    folder.run("store put - --name parity --store one --parity 2+1").stdin(all.clone()).ok();
    fs::rename(folder.path("two"), folder.path("lost")).unwrap();
    for name in ["copied", "parity"] {
        folder.run(&format!("store get {name} --store one -o out")).ok();
        assert!(fs::read(folder.path("out")).unwrap() == all, "{name}");
    }
    let said = folder.run("store remove-device 1 --store one").exits(2).stderr;
    assert!(said.contains("\"parity\" needs 3 devices"), "{said}");
    folder.run("store add-device four --store one --size 2GiB").ok();
    folder.run("store remove-device 1 --store three").ok();
    folder.run("store verify --store four").ok();
    for name in ["copied", "parity"] {
        folder.run(&format!("store get {name} --store four -o out")).ok();
        assert!(fs::read(folder.path("out")).unwrap() == all, "{name}");
    }
    assert!(!folder.path("two").exists());
}

#[test]
fn a_drive_that_lost_its_superblock_leads_to_its_store_and_no_new_one_is_made_there() {
    let folder = Folder::new();
    folder.run("store init one two three --size 2GiB").ok();
    let all = bytes(9, 5_000_000);
    folder.run("store put - --name parity --store one --parity 2+1").stdin(all.clone()).ok();
    let lose = || {
        let segment = File::options().write(true).open(folder.path("one/segment-00000000")).unwrap();
        segment.write_all_at(&vec![0; 2 << 20], 2 << 20).unwrap();
    };
    let check = |name: &str, drive: &str, expected: &[u8]| {
        folder.run(&format!("store get {name} --store {drive} -o out")).ok();
        assert!(fs::read(folder.path("out")).unwrap() == expected, "{name} by {drive}");
    };
    lose();
    folder.run("store put - --name more --store one").stdin("more").ok();
    for drive in ["one", "two", "three"] {
        check("parity", drive, &all);
        check("more", drive, b"more");
    }
    let said = folder.run("store scrub --store three").exits(1).stdout;
    assert!(said.contains("the superblock of device 0") && said.contains("add-device"), "{said}");
    folder.run("store add-device one --store two --size 2GiB").ok();
    folder.run("store scrub --store two").ok();
    folder.run("store verify --store one").ok();
    check("parity", "one", &all);
    // Without the other drives, the store of this drive cannot be found. No command may create a new store on this
    // drive.
    lose();
    let away = |drive: &str| folder.path(&format!("{drive}-away"));
    ["two", "three"].iter().for_each(|drive| fs::rename(folder.path(drive), away(drive)).unwrap());
    for words in ["store get parity", "store ls", "store put - --name new", "store verify", "store scrub"] {
        let said = folder.run(&format!("{words} --store one")).stdin("x").exits(2).stderr;
        assert!(said.contains("is lost") && !said.contains("store init"), "{words}: {said}");
    }
    assert!(folder.run("store init one").exits(2).stderr.contains("is lost"));
    ["two", "three"].iter().for_each(|drive| fs::rename(away(drive), folder.path(drive)).unwrap());
    check("parity", "one", &all);
}

#[test]
fn drives_come_and_go_while_data_stays() {
    let folder = Folder::new();
    folder.run("store init one --size 2GiB").ok();
    let all = bytes(3, 40_000_000);
    folder.run("store put - --name a --store one").stdin(all.clone()).ok();
    folder.run("store add-device two --store one --size 2GiB").ok();
    folder.run("store compact --balance --store two").ok();
    let used = |device: usize| {
        let df = folder.run("store df --json --store two").ok().json();
        df[device]["dataset_bytes"].as_u64().unwrap()
    };
    assert!(used(0) > 10_000_000 && used(1) > 10_000_000);
    // The first device of the store can be removed too.
    folder.run("store remove-device one --store two").ok();
    folder.run("store get a --store two -o out").ok();
    assert!(fs::read(folder.path("out")).unwrap() == all);
    folder.run("store verify --store two").ok();
    folder.run("store put - --name b --store two").stdin("b").ok();
    assert!(folder.run("store ls --store one").exits(2).stderr.contains("no store"));
    assert_eq!(fs::read_dir(folder.path("one")).unwrap().count(), 0);
    assert!(folder.run("store remove-device two --store two").exits(2).stderr.contains("last device"));
}

/// A file system of 512 MB whose image is a file. It is unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(folder: &Folder) -> Option<SmallDisk> {
        let (image, point) = (folder.path("image"), folder.path("disk"));
        File::create(&image).unwrap().set_len(512_000_000).unwrap();
        fs::create_dir(&point).unwrap();
        let done = |program: &str, words: &[&Path]| {
            Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
        };
        // No blocks of the file system are reserved for root.
        let words = ["-q", "-F", "-m0"].map(Path::new);
        if !done("mkfs.ext4", &[words[0], words[1], words[2], &image])
            || !done("mount", &[Path::new("-oloop"), &image, &point])
        {
            println!("skipped: no file system can be made in a file and mounted here");
            return None;
        }
        Some(SmallDisk(point))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn on_a_full_file_system_reading_deleting_and_compacting_go_on() {
    let folder = Folder::new();
    let Some(_disk) = SmallDisk::new(&folder) else { return };
    let put = |name: &str, len: usize| {
        folder
            .run(&format!("store put - --name {name} --store disk/store"))
            .stdin(bytes(name.len() as u8, len))
    };
    let mut names = Vec::new();
    for number in 0..60 {
        let name = format!("d{number}");
        let left = folder.run("store df --store disk/store --json");
        if number > 0 && left.ok().json()[0]["free_bytes"].as_u64().unwrap() < 40 << 20 {
            break;
        }
        put(&name, 15_000_000).ok();
        names.push(name);
    }
    assert!(names.len() > 15, "{} datasets", names.len());
    let said = put("toomuch", 100_000_000).exits(2).stderr;
    assert!(said.contains("no space left"), "{said}");
    // The put that failed left nothing, and all other datasets are complete.
    folder.run("store verify --store disk/store --memory 16MiB").ok();
    let list: Value = folder.run("store ls --store disk/store --json").ok().json();
    assert_eq!(list.as_array().unwrap().len(), names.len());
    folder.run(&format!("store get {} --store disk/store -o out", names[3])).ok();
    assert!(fs::read(folder.path("out")).unwrap() == bytes(names[3].len() as u8, 15_000_000));
    // Another program uses up the free space.
    let rest = File::create(folder.path("disk/rest")).unwrap();
    let mut at = 0;
    while rest.write_all_at(&[1; 65536], at).is_ok() && rest.sync_data().is_ok() {
        at += 65536;
    }
    folder.run(&format!("store get {} --store disk/store -o out", names[5])).ok();
    folder.run(&format!("store rm {} {} --store disk/store", names[0], names[7])).ok();
    folder.run("store compact --store disk/store --memory 16MiB").ok();
    put("again", 15_000_000).ok();
    folder.run("store verify --store disk/store --memory 16MiB").ok();
    for name in names.iter().skip(8) {
        folder.run(&format!("store rm {name} --store disk/store")).ok();
    }
    folder.run("store verify --store disk/store --memory 16MiB").ok();
}

#[test]
fn a_store_that_is_mounted_read_only_is_read_and_nothing_else() {
    let folder = Folder::new();
    let Some(_disk) = SmallDisk::new(&folder) else { return };
    let data = bytes(5, 5_000_000);
    folder.run("store put - --name data --store disk/store").stdin(data.clone()).ok();
    let mount = |how: &str| {
        let remounted = Command::new("mount").args(["-o", how]).arg(folder.path("disk")).status();
        assert!(remounted.unwrap().success());
    };
    mount("remount,ro");
    folder.run("store get data --store disk/store -o out").ok();
    assert!(fs::read(folder.path("out")).unwrap() == data);
    for words in ["ls", "stat data", "df", "jobs", "verify --memory 16MiB"] {
        folder.run(&format!("store {words} --store disk/store")).ok();
    }
    for words in ["put - --name more", "rm data", "compact"] {
        let said = folder.run(&format!("store {words} --store disk/store")).stdin("x").exits(2).stderr;
        assert!(said.contains("Read-only file system"), "{words}: {said}");
    }
    mount("remount,rw");
    folder.run("store put - --name more --store disk/store").stdin("x").ok();
}

#[test]
fn a_drive_that_became_read_only_is_read_and_can_be_taken_away() {
    let folder = Folder::new();
    let Some(_disk) = SmallDisk::new(&folder) else { return };
    folder.run("store init one disk/two").ok();
    let data = bytes(5, 5_000_000);
    folder.run("store put - --name data --copies 2 --store one").stdin(data.clone()).ok();
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(folder.path("disk")).status();
    assert!(remounted.unwrap().success());
    for store in ["one", "disk/two"] {
        folder.run(&format!("store get data --store {store} -o out")).ok();
        assert!(fs::read(folder.path("out")).unwrap() == data);
        for words in ["ls", "stat data", "df", "jobs", "verify --memory 16MiB"] {
            folder.run(&format!("store {words} --store {store}")).ok();
        }
    }
    let said = folder.run("store rm data --store one").exits(2).stderr;
    assert!(said.contains("Read-only file system"), "{said}");
    folder.run("store get data --store one -o out").ok();
    assert!(Command::new("umount").arg(folder.path("disk")).status().unwrap().success());
    folder.run("store put - --name more --store one").stdin("x").ok();
    folder.run("store get data --store one -o out").ok();
    assert!(fs::read(folder.path("out")).unwrap() == data);
}

#[test]
fn what_a_command_leaves_behind_is_told() {
    let folder = Folder::new();
    let said = folder.run("store put - --name a").stdin("a").ok().stderr;
    assert!(said.contains("created a new store in"), "{said}");
    let said = folder.run("store put - --name b").stdin("b").ok().stderr;
    assert!(!said.contains("a new store"), "{said}");
    let said = folder.run("store rm a nope").exits(2).stderr;
    assert!(said.contains("removed: a\n") && said.contains("there is no dataset \"nope\""), "{said}");
    let said = folder.run("store get b --json").exits(2).stderr;
    assert!(said.contains("give -o FILE"), "{said}");
    folder.run("store put - --name log --append --block 4KiB").stdin("a").ok();
    folder.run("store put - --name log --append").stdin("b").ok();
    let said = folder.run("store put - --name log --append --block 8KiB").stdin("c").exits(2).stderr;
    assert!(said.contains("with blocks of 4 KiB"), "{said}");
    assert_eq!(folder.run("store get log").ok().stdout, "ab");
    for output in ["store/segment-00000000", "store/new"] {
        let said = folder.run(&format!("store get b -o {output}")).exits(2).stderr;
        assert!(said.contains("a device of the store"), "{said}");
    }
    assert_eq!(folder.run("store get b").ok().stdout, "b");
    // The dataset is stored even if the command cannot write to standard output.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_inshore"))
        .args(["store", "put", "Cargo.toml", "--name", "full", "--append", "--store"])
        .arg(folder.path("store"))
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(status.status.code() == Some(2) && said.contains("full is stored, but the message"), "{said}");
    folder.run("store stat full").ok();
}

#[test]
fn a_drive_that_leaves_stays_or_was_lost_is_told_of() {
    let folder = Folder::new();
    folder.run("store init one two --size 1GiB").ok();
    // The store has two datasets of one extent each. They are on different drives.
    for name in ["a", "b"] {
        folder.run(&format!("store put - --name {name} --store one")).stdin(name).ok();
    }
    let device = |name: &str| {
        let found = folder.run(&format!("store locate {name} --store one --json")).ok().json();
        found["summary"]["places"][0]["copies"][0]["device"].as_u64().unwrap()
    };
    assert_ne!(device("a"), device("b"));
    let kept = folder.run("store remove-device 1 --keep --json --store one").ok().json();
    assert_eq!((&kept["summary"]["number"], &kept["summary"]["kept"]), (&1.into(), &true.into()));
    fs::rename(folder.path("two"), folder.path("lost")).unwrap();
    let said = folder.run("store put - --name c --copies 2 --store one").stdin("c").exits(2).stderr;
    assert!(said.contains("1 missing"), "{said}");
    let lost = if device("a") == 1 { "a" } else { "b" };
    let said = folder.run("store remove-device 1 --store one").exits(2).stderr;
    assert!(
        said.contains("device 1 is missing") && said.contains(&format!("its data of {lost} has ")),
        "{said}"
    );
    let df = folder.run("store df --json --store one").ok().json();
    assert_eq!(df[1]["state"], "missing");
    fs::rename(folder.path("lost"), folder.path("two")).unwrap();
    assert_eq!(folder.run("store df --json --store one").ok().json()[1]["state"], "ok");
    let said = folder.run("store remove-device one --store one").ok().stderr;
    assert!(
        said.contains(&format!("INSHORE_STORE={}", folder.path("two").canonicalize().unwrap().display())),
        "{said}"
    );
    assert_eq!(folder.run("store get a --store two").ok().stdout, "a");
}

#[test]
fn the_smallest_memory_for_put_is_named_and_works() {
    let folder = Folder::new();
    folder.write("data", bytes(5, 9_000_000));
    folder.run("store init s0 s1 s2 s3 s4 s5 --size 256MiB").ok();
    for words in ["", "--parity 2+1", "--parity 4+2", "--block 2MiB", "--parity 4+2 --block 2MiB"] {
        let put_in_least = |put: &str| {
            let said = folder.run(&format!("{put} --memory 4MiB")).exits(2).stderr;
            let smallest = said.trim_end().rsplit("is ").next().unwrap().replace(' ', "");
            folder.run(&format!("{put} --memory {smallest}")).ok();
        };
        put_in_least(&format!("store put data --name data --store s0 {words}"));
        // Appended bytes get the same redundancy as the bytes that the dataset has.
        folder.run(&format!("store put data --name log --store s0 --append {words}")).ok();
        put_in_least("store put data --name log --store s0 --append");
        folder.run("store verify --store s5").ok();
        folder.run("store rm data log --store s0").ok();
    }
}

#[test]
fn many_that_begin_to_append_at_once_all_append() {
    let folder = Folder::new();
    folder.run("store init store").ok();
    folder.write("data", [7; 1000]);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| folder.run("store put data --name log --append").ok());
        }
    });
    assert_eq!(get(&folder, "log").len(), 6000);
}

#[test]
fn a_store_that_went_two_ways_is_told_and_one_side_given_up() {
    let folder = Folder::new();
    let (mv, one, two) =
        (|from: &str, to: &str| fs::rename(folder.path(from), folder.path(to)).unwrap(), "one", "two");
    folder.run("store init one two --size 1GiB").ok();
    mv(two, "away");
    folder.run("store put - --name x --store one").stdin("x").ok();
    mv(one, "gone");
    mv("away", two);
    folder.run("store put - --name y --store two").stdin("y").ok();
    mv("gone", one);
    for words in ["store ls", "store put - --name z", "store scrub"] {
        let said = folder.run(&format!("{words} --store two")).exits(2).stderr;
        assert!(said.contains("/one") && said.contains("/two") && said.contains("store rejoin"), "{said}");
    }
    folder.run("store rejoin two --store one").ok();
    folder.run("store scrub --store two").ok();
    assert_eq!(folder.run("store get x --store two").ok().stdout, "x");
    assert!(folder.run("store get y --store two").exits(2).stderr.contains("there is no dataset \"y\""));
    // The folders are now in different places, so the option must name both.
    fs::create_dir(folder.path("far")).unwrap();
    mv(two, "far/other");
    let stores = format!("{}:{}", folder.path("one").display(), folder.path("far/other").display());
    folder.run(&format!("store put - --name z --copies 2 --store {stores}")).stdin("z").ok();
    folder.run("store verify --store far/other").ok();
}
