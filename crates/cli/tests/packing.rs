//! Tests of `compress`, `decompress` and `checksum` on the command line. The formats themselves are tested in the
//! crates that implement them.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    time::{Duration, SystemTime},
};

use crate::util::Folder;

#[test]
fn files_become_smaller_and_come_back_as_they_were() {
    let folder = Folder::new();
    let text = "a line that is there many times\n".repeat(100_000);
    for (format, ending) in [("zstd", "zst"), ("gzip", "gz"), ("bzip2", "bz2"), ("lz4", "lz4")] {
        folder.write("a.txt", &text);
        folder.write("b.txt", "short");
        let path = folder.path("a.txt");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        let said = folder.run(&format!("compress a.txt b.txt --format {format} --rm")).ok();
        assert!(said.stdout.contains("2 files, 3.1 MiB became"), "{}", said.stdout);
        assert!(!path.exists());
        folder.run(&format!("decompress a.txt.{ending} b.txt.{ending} --rm")).ok();
        assert!(folder.read("a.txt") == text && folder.read("b.txt") == "short");
        let facts = fs::metadata(&path).unwrap();
        assert_eq!(facts.permissions().mode() & 0o777, 0o640);
        assert_eq!(facts.modified().unwrap(), time);
        assert!(!folder.path(&format!("a.txt.{ending}")).exists());
    }
    folder.run("compress - -o c.gz --level 9").stdin("from a pipe").ok();
    assert_eq!(folder.run("decompress c.gz -o -").ok().stdout, "from a pipe");
    assert_eq!(folder.run("search -c pipe c.gz").ok().stdout, "1\n");
}

#[test]
fn small_output_files_replace_old_ones_and_never_truncate_them() {
    let folder = Folder::new();
    folder.write("reads.fa", ">a\nACGTACGTACGT\n");
    for words in ["count kmers reads.fa -k 3 -o k.csv --histogram FILE", "search A reads.fa --counters FILE"]
    {
        folder.write("FILE", "what was there before");
        let mut old = fs::File::open(folder.path("FILE")).unwrap();
        folder.run(words).ok();
        assert_ne!(folder.read("FILE"), "what was there before", "{words}");
        let mut held = String::new();
        old.read_to_string(&mut held).unwrap();
        assert_eq!(held, "what was there before", "{words}");
    }
}

#[test]
fn nothing_is_lost_or_replaced_unasked() {
    let folder = Folder::new();
    folder.write("a.txt", "one");
    folder.write("a.txt.zst", "kept");
    let said = folder.run("compress a.txt").exits(2);
    assert!(said.stderr.contains("a.txt.zst: it exists already: --force"), "{}", said.stderr);
    assert_eq!(folder.read("a.txt.zst"), "kept");
    folder.run("compress a.txt --force").ok();
    let said = folder.run("compress a.txt.zst").exits(2);
    assert!(said.stderr.contains("it is compressed already"), "{}", said.stderr);
    let said = folder.run("decompress a.txt").exits(2);
    assert!(said.stderr.contains("pass -o"), "{}", said.stderr);
    folder.write("bad.gz", "no gzip");
    folder.write("good.txt", "good");
    let said = folder.run("decompress bad.gz -o out").exits(2);
    assert!(said.stderr.contains("bad.gz: expected gzip, bzip2, zstd or lz4"), "{}", said.stderr);
    assert!(!folder.path("out").exists());
    let said = folder.run("compress good.txt -o ./good.txt --force --rm").exits(2);
    assert!(said.stderr.contains("the output is the input file"), "{}", said.stderr);
    assert_eq!(folder.read("good.txt"), "good");
    // If one file fails, the other files are compressed nevertheless.
    let said = folder.run("compress missing.txt good.txt").exits(2);
    assert!(said.stderr.contains("missing.txt") && folder.path("good.txt.zst").exists(), "{}", said.stderr);
    let said = folder.run("compress good.txt --format lz4 --level 3").exits(2);
    assert!(said.stderr.contains("lz4 has no level 3: expected 1 to 1"), "{}", said.stderr);
    let said = folder.run("compress a.txt good.txt -o both.zst").exits(2);
    assert!(said.stderr.contains("is one file, and 2 inputs are given"), "{}", said.stderr);
    let said = folder.run("compress good.txt --format bzip2 --memory 1MiB").exits(2);
    assert!(said.stderr.contains("compressing as bzip2"), "{}", said.stderr);
}

#[test]
fn checksums_are_those_of_others_and_are_checked() {
    let folder = Folder::new();
    folder.write("a", "abc");
    folder.write("b c", "");
    let sums = folder.run("checksum a").ok().stdout;
    assert_eq!(sums, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n");
    assert_eq!(
        folder.run("checksum - --algorithm md5").stdin("abc").ok().stdout,
        "900150983cd24fb0d6963f7d28e17f72  -\n"
    );
    let list = sums + "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 *b c\n";
    folder.write("list", &list);
    assert_eq!(folder.run("checksum --check list").ok().stdout, "a: OK\nb c: OK\n");
    folder.write("a", "abd");
    assert_eq!(folder.run("checksum --check list").exits(1).stdout, "a: FAILED\nb c: OK\n");
    folder.write("list", "zz  a\n");
    let said = folder.run("checksum --check list").exits(2);
    assert!(said.stderr.contains("list:1: expected a checksum of sha256"), "{}", said.stderr);
    let said = folder.run("checksum missing a").exits(2);
    assert!(
        said.stderr.contains("missing") && said.stdout.ends_with("  a\n"),
        "{}{}",
        said.stderr,
        said.stdout
    );
}
