//! Tests of mounted datasets: a read returns the right bytes or an error, even if the store changes or is damaged.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use inshore::store::{BYTES, Budget, Cancel, Store};
use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use crate::{
    memory::Cgroup,
    util::{CommandOutput, EDGES, Folder, PATIENCE},
};

const MIB: u64 = 1 << 20;
/// A little longer than the time for which the kernel caches a name.
const LONG_AGO: Duration = Duration::from_millis(1100);

/// Tells whether this machine can mount. If it cannot, prints why.
fn usable() -> bool {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("skipped: /dev/fuse: {error}");
        return false;
    }
    // Root in a container may lack the right to mount (bit 21, CAP_SYS_ADMIN).
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let may_mount = u64::from_str_radix(rights, 16).unwrap() >> 21 & 1 == 1;
    let helped = Command::new("fusermount3").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !may_mount && !helped {
        println!("skipped: neither the right to mount nor fusermount3");
    }
    may_mount || helped
}

/// The mounted store of a test folder. On drop, the store is unmounted and its process is killed.
struct Mounted {
    child: Option<Child>,
    point: PathBuf,
}

impl Mounted {
    fn new(folder: &Folder, options: &str) -> Mounted {
        Mounted::wait(folder, |point| {
            folder.run(&format!("store mount {} {options}", point.display())).spawn()
        })
    }

    fn wait(folder: &Folder, start: impl FnOnce(&Path) -> Child) -> Mounted {
        let point = folder.path("mounted");
        fs::create_dir_all(&point).unwrap();
        let before = fs::metadata(&point).unwrap().dev();
        let mut child = start(&point);
        let begun = Instant::now();
        while fs::metadata(&point).unwrap().dev() == before {
            if child.try_wait().unwrap().is_some() {
                panic!("{:?}", child.wait_with_output().unwrap());
            }
            assert!(begun.elapsed() < PATIENCE, "not mounted after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(5));
        }
        Mounted { child: Some(child), point }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Sends the signal, if there is one, and waits until the command ends. The exit code must be 0, and the store must
    /// be unmounted.
    fn ends(mut self, signal: Option<Signal>) -> CommandOutput {
        let child = self.child.take().unwrap();
        if let Some(signal) = signal {
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        }
        let sent = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(sent.elapsed() < PATIENCE, "{signal:?}: {:?}", sent.elapsed());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let said = CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr) };
        assert_eq!(output.status.code(), Some(0), "{said:?}");
        let folder = fs::metadata(self.point.parent().unwrap()).unwrap().dev();
        let point = fs::metadata(&self.point).map(|point| point.dev());
        assert!(point.is_ok_and(|point| point == folder), "still mounted: {said:?}");
        said
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The result is ignored, since unmounting fails if nothing is mounted any more.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Creates a dataset with these files in the store.
fn put(folder: &Folder, name: &str, kind: &str, files: &[(&str, &[u8])]) {
    let store = Store::open(folder.path("store")).unwrap();
    let job = store.job(Budget::new(16 * MIB, 1), Cancel::default()).unwrap();
    let mut builder = store.create_dataset(&job, name, kind).unwrap();
    for (file, bytes) in files {
        let mut writer = builder.file(file, 65536, 1 << 20).unwrap();
        writer.write(bytes).unwrap();
        builder.add(writer).unwrap();
    }
    builder.commit(&[]).unwrap();
}

fn put_bytes(folder: &Folder, name: &str, bytes: &[u8]) {
    put(folder, name, BYTES, &[(BYTES, bytes)]);
}

fn remove(folder: &Folder, name: &str) {
    Store::open(folder.path("store")).unwrap().remove(name).unwrap();
}

/// Iterates over pseudo-random numbers. The same seed gives the same numbers.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    let step = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(Some(seed), step).skip(1).map(|state| state >> 24)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        random(seed).take(len.div_ceil(4)).flat_map(|n| (n as u32).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

fn errno(result: std::io::Result<impl Sized>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn a_mounted_dataset_reads_byte_for_byte() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    let sizes = [0, 1, 4096, 65_537, (2 << 20) - 1, 2 << 20, (9 << 20) + 777];
    let name = |len: usize| format!("of-{len}");
    sizes.iter().for_each(|&len| put_bytes(&folder, &name(len), &noise(len as u64, len)));
    for memory in ["8MiB", "64MiB"] {
        let mounted = Mounted::new(&folder, &format!("--memory {memory} --quiet"));
        for len in sizes {
            let bytes = noise(len as u64, len);
            let path = mounted.path(&name(len));
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.len(), metadata.mode() & 0o7777), (len as u64, 0o444));
            // Random reads come first, since the kernel has not cached any of the file yet.
            let file = File::open(&path).unwrap();
            let mut numbers = random(len as u64);
            for _ in 0..200 {
                let mut next = |most: u64| numbers.next().unwrap() % most;
                let (start, count) = (next(len as u64 + 5000), next(300_000) as usize);
                let mut found = vec![0; count];
                let mut read = 0;
                while read < count {
                    match file.read_at(&mut found[read..], start + read as u64).unwrap() {
                        0 => break,
                        more => read += more,
                    }
                }
                let start = (start as usize).min(len);
                assert!(
                    found[..read] == bytes[start..(start + count).min(len)],
                    "{start} + {count} of {len}"
                );
            }
            assert!(fs::read(&path).unwrap() == bytes, "{len} bytes in {memory}");
        }
        mounted.ends(Some(Signal::INT));
    }
}

#[test]
fn many_readers_at_once_get_the_right_bytes_in_the_smallest_budget() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    for number in 0..6 {
        put_bytes(&folder, &number.to_string(), &noise(number, 7 << 20));
    }
    let mounted = Mounted::new(&folder, "--memory 8MiB --quiet");
    thread::scope(|scope| {
        for reader in 0..12 {
            let path = mounted.path(&(reader % 6).to_string());
            scope.spawn(move || assert!(fs::read(path).unwrap() == noise(reader % 6, 7 << 20)));
        }
    });
    mounted.ends(Some(Signal::INT));
}

#[test]
fn a_dataset_of_several_files_is_a_folder() {
    if !usable() {
        return;
    }
    let folder = Folder::with_graph("web", EDGES);
    put(&folder, "parts", "other", &[("a", b"alpha"), ("b.c", b""), ("bytes", b"beta")]);
    put_bytes(&folder, "plain", b"gamma");
    let mounted = Mounted::new(&folder, "--quiet");
    assert_eq!(mounted.names(""), ["parts", "plain", "web"]);
    assert_eq!(mounted.names("parts"), ["a", "b.c", "bytes"]);
    assert_eq!(fs::read(mounted.path("parts/a")).unwrap(), b"alpha");
    assert_eq!(fs::read(mounted.path("parts/b.c")).unwrap(), b"");
    assert_eq!(fs::read(mounted.path("parts/bytes")).unwrap(), b"beta");
    assert!(mounted.names("web").contains(&"out.index".to_string()), "{:?}", mounted.names("web"));
    for missing in ["nothing", "parts/nothing", "plain/bytes", ".hidden"] {
        assert!(!mounted.path(missing).exists(), "{missing}");
    }
    mounted.ends(Some(Signal::TERM));
}

#[test]
fn what_is_put_and_removed_meanwhile_comes_and_goes() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    folder.run("store init store").ok();
    let mounted = Mounted::new(&folder, "--quiet");
    assert_eq!(mounted.names(""), [""; 0]);
    put_bytes(&folder, "a", b"first");
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"first");
    let first = fs::metadata(mounted.path("a")).unwrap();
    remove(&folder, "a");
    put_bytes(&folder, "a", b"other");
    // The file is read at once, while the kernel still caches the name of the removed dataset.
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"other");
    thread::sleep(LONG_AGO);
    let other = fs::metadata(mounted.path("a")).unwrap();
    assert!(first.ino() != other.ino() && first.modified().unwrap() != other.modified().unwrap());
    remove(&folder, "a");
    assert_eq!(errno(File::open(mounted.path("a"))), Some(Errno::NOENT));
    mounted.ends(Some(Signal::INT));
}

#[test]
fn what_is_appended_meanwhile_is_there_within_a_second() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    folder.write("x", "first ");
    folder.run("store put x --name log --append").ok();
    let mounted = Mounted::new(&folder, "--quiet");
    assert_eq!(fs::read(mounted.path("log")).unwrap(), b"first ");
    let mut open = File::open(mounted.path("log")).unwrap();
    let first = open.metadata().unwrap();
    folder.run("store put x --name log --append").ok();
    thread::sleep(LONG_AGO);
    assert_eq!(fs::read(mounted.path("log")).unwrap(), b"first first ");
    let then = fs::metadata(mounted.path("log")).unwrap();
    assert!(then.len() == 12 && then.modified().unwrap() != first.modified().unwrap());
    // An open file keeps its old content.
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert_eq!(found, b"first ");
    drop(open);
    mounted.ends(Some(Signal::INT));
}

#[test]
fn a_removal_does_not_disturb_who_has_the_file_open() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    let (old, new) = (noise(1, 12 << 20), noise(2, 12 << 20));
    put_bytes(&folder, "data", &old);
    let mounted = Mounted::new(&folder, "--memory 8MiB --quiet");
    let mut file = File::open(mounted.path("data")).unwrap();
    let mut found = vec![0; 100_000];
    file.read_exact(&mut found).unwrap();
    remove(&folder, "data");
    // Without the open file, the extents of the removed dataset would be free, and the new datasets would overwrite
    // them.
    put_bytes(&folder, "data", &new);
    put_bytes(&folder, "more", &new);
    thread::sleep(LONG_AGO);
    assert!(fs::read(mounted.path("data")).unwrap() == new);
    file.read_to_end(&mut found).unwrap();
    assert!(found == old);
    assert_eq!(file.metadata().unwrap().len(), old.len() as u64);
    drop(file);
    mounted.ends(Some(Signal::INT));
}

#[test]
fn a_flipped_bit_is_an_error_that_is_told_once_and_never_wrong_bytes() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    let bytes = noise(5, 5 << 20);
    put_bytes(&folder, "data", &bytes);
    let segment = folder.path("store/segment-00000000");
    let mut flash = fs::read(&segment).unwrap();
    let damaged = (3 << 20) + 70_000..(3 << 20) + 70_064;
    let place = flash.windows(64).position(|window| *window == bytes[damaged.clone()]).unwrap();
    flash[place] ^= 1;
    fs::write(&segment, flash).unwrap();

    let mounted = Mounted::new(&folder, "--memory 8MiB --quiet");
    assert_eq!(errno(fs::read(mounted.path("data"))), Some(Errno::IO));
    let file = File::open(mounted.path("data")).unwrap();
    let block = (3 << 20) + 65_536..(3 << 20) + 131_072;
    // Repeated reads that fail must not exhaust any resource.
    for _ in 0..2 {
        for start in (0..bytes.len()).step_by(4096) {
            let mut page = [0; 4096];
            let read = file.read_exact_at(&mut page, start as u64);
            match block.contains(&start) {
                true => assert_eq!(errno(read), Some(Errno::IO), "{start}"),
                false => {
                    read.unwrap();
                    assert!(page == bytes[start..start + 4096], "{start}");
                }
            }
        }
    }
    drop(file);
    let said = mounted.ends(Some(Signal::INT));
    assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    let line = format!("inshore: data/bytes: damaged at offset {}: checksum is ", block.start);
    assert!(said.stderr.starts_with(&line), "{said:?}");
    assert!(said.stdout.contains("reads failed"), "{said:?}");
}

#[test]
fn writing_is_refused() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    put_bytes(&folder, "data", b"bytes");
    let mounted = Mounted::new(&folder, "--quiet");
    let (data, new) = (mounted.path("data"), mounted.path("new"));
    assert_eq!(errno(fs::write(&new, b"x")), Some(Errno::ROFS));
    assert_eq!(errno(File::options().write(true).open(&data)), Some(Errno::ROFS));
    assert_eq!(errno(fs::remove_file(&data)), Some(Errno::ROFS));
    assert_eq!(errno(fs::rename(&data, &new)), Some(Errno::ROFS));
    assert_eq!(errno(fs::create_dir(&new)), Some(Errno::ROFS));
    assert_eq!(fs::read(&data).unwrap(), b"bytes");
    mounted.ends(Some(Signal::INT));
}

#[test]
fn a_signal_unmounts_and_ends_the_command() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    put_bytes(&folder, "data", b"bytes");
    for signal in [Signal::INT, Signal::TERM] {
        let mounted = Mounted::new(&folder, "--json");
        fs::read(mounted.path("data")).unwrap();
        let point = mounted.point.clone();
        let said = mounted.ends(Some(signal));
        let summary = &said.json()["summary"];
        assert_eq!((&summary["files_opened"], &summary["bytes_served"]), (&1.into(), &5.into()));
        assert_eq!(said.stderr, "");
        assert_eq!(fs::read_dir(point).unwrap().count(), 0);
        assert!(folder.scratch().is_empty(), "{signal:?}");
    }
}

#[test]
fn a_signal_unmounts_although_a_file_is_open() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    put_bytes(&folder, "data", &noise(1, 4 << 20));
    let mounted = Mounted::new(&folder, "--quiet");
    let (file, point) = (File::open(mounted.path("data")).unwrap(), mounted.point.clone());
    let said = mounted.ends(Some(Signal::INT));
    assert!(said.stderr.contains("still open"), "{said:?}");
    assert_eq!(fs::read_dir(point).unwrap().count(), 0);
    assert!(file.read_exact_at(&mut [0; 100], 3 << 20).is_err());
}

#[test]
fn unmounting_from_outside_ends_the_command() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    put_bytes(&folder, "data", b"bytes");
    let mounted = Mounted::new(&folder, "--quiet");
    assert_eq!(fs::read(mounted.path("data")).unwrap(), b"bytes");
    let unmounted = Command::new("fusermount3").arg("-u").arg(&mounted.point).status();
    if !unmounted.is_ok_and(|status| status.success()) {
        unmount(&mounted.point, UnmountFlags::empty()).unwrap();
    }
    mounted.ends(None);
    assert!(folder.scratch().is_empty());
}

#[test]
fn only_an_empty_folder_is_a_mountpoint() {
    let folder = Folder::new();
    folder.run("store init store").ok();
    folder.write("file", "");
    fs::create_dir(folder.path("full")).unwrap();
    folder.write("full/thesis.tex", "");
    fs::create_dir(folder.path("empty")).unwrap();
    for (words, told) in [
        ("missing", "missing: no such folder"),
        ("file", "file: not a folder"),
        ("full", "full: the folder is not empty (it has \"thesis.tex\")"),
        ("empty --memory 7MiB", "the smallest budget that works is 8 MiB"),
    ] {
        // Without /dev/fuse the command fails before it checks the budget.
        if words.contains("memory") && !usable() {
            continue;
        }
        let said = folder.run(&format!("store mount {words}")).exits(2);
        assert!(said.stderr.starts_with("inshore: ") && said.stderr.contains(told), "{said:?}");
        assert_eq!((said.stdout.as_str(), said.stderr.lines().count()), ("", 1), "{said:?}");
    }
}

#[test]
fn more_open_files_than_the_budget_has_room_for_are_refused() {
    if !usable() {
        return;
    }
    let folder = Folder::new();
    let names: Vec<String> = (0..150).map(|number| number.to_string()).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    put(&folder, "many", "other", &files);
    let mounted = Mounted::new(&folder, "--memory 8MiB --quiet");
    let opened: Vec<_> = names.iter().map(|name| File::open(mounted.path("many").join(name))).collect();
    let refused = opened.into_iter().partition::<Vec<_>, _>(|file| file.is_ok());
    assert!(refused.0.len() > 50 && !refused.1.is_empty(), "{} of {}", refused.1.len(), names.len());
    for (file, name) in refused.0.iter().zip(&names) {
        let mut found = [0; 10];
        let read = file.as_ref().unwrap().read_at(&mut found, 0).unwrap();
        assert_eq!(&found[..read], name.as_bytes());
    }
    assert!(refused.1.into_iter().all(|error| errno(error) == Some(Errno::NFILE)));
    drop(refused.0);
    assert_eq!(fs::read(mounted.path("many/149")).unwrap(), b"149");
    let said = mounted.ends(Some(Signal::INT));
    assert!(said.stderr.contains("too many files are open"), "{said:?}");
}

#[test]
fn a_mount_keeps_its_budget_however_many_read() {
    if !usable() {
        return;
    }
    const BUDGET: u64 = 8 * MIB;
    let folder = Folder::new();
    let bytes = noise(3, 40 << 20);
    for number in 0..4 {
        put_bytes(&folder, &number.to_string(), &bytes);
    }
    let group = Cgroup::new("mount", BUDGET + 96 * MIB);
    if group.is_none() {
        println!("skipped: no memory cgroup can be made here; only the resident size is checked");
    }
    let join = group.as_ref().map_or(String::new(), |group| group.join());
    let mounted = Mounted::wait(&folder, |point| {
        let mut command = Command::new("/bin/sh");
        let words = format!("store mount {} --memory 8MiB --json", point.display());
        command.arg("-c").arg(format!("{join}exec \"$0\" {words}")).arg(env!("CARGO_BIN_EXE_inshore"));
        command.env("INSHORE_STORE", folder.path("store"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    thread::scope(|scope| {
        for reader in 0..8u64 {
            let (path, bytes) = (mounted.path(&(reader % 4).to_string()), &bytes);
            scope.spawn(move || {
                if reader < 4 {
                    assert!(fs::read(&path).unwrap() == *bytes);
                    return;
                }
                let file = File::open(&path).unwrap();
                for start in random(reader).take(500).map(|n| n as usize % (bytes.len() - 9000)) {
                    let mut found = [0; 9000];
                    file.read_exact_at(&mut found, start as u64).unwrap();
                    assert!(found == bytes[start..start + 9000], "{start}");
                }
            });
        }
    });
    let report = mounted.ends(Some(Signal::INT)).json()["report"].clone();
    let peak = report["memory_resident_bytes_max"].as_u64().unwrap();
    println!("{} MiB resident at most", peak / MIB);
    assert!(peak <= BUDGET + 64 * MIB, "{} MiB resident", peak / MIB);
    assert!(report["memory_reserved_bytes_max"].as_u64().unwrap() <= BUDGET);
}
