//! Tests of inputs: compressed files, files of unknown size, byte order marks, and error messages for files that cannot
//! be read.

use std::{fs, io::Write, os::unix::fs::symlink};

use crate::{nodes::cluster, util::Folder};

const TEXT: &str = "hello\nworld\n";

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Returns the text in formats that Inshore does not decompress. Each entry has a file name, the content, and the name
/// of the format.
fn refused() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let xz = [
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x1c,
        0x00, 0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0x01, 0x00, 0x0b, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x0a, 0x77,
        0x6f, 0x72, 0x6c, 0x64, 0x0a, 0x00, 0x87, 0xc6, 0xce, 0x77, 0xce, 0x46, 0x2b, 0xae, 0x00, 0x01, 0x24,
        0x0c, 0xa6, 0x18, 0xd8, 0xd8, 0x1f, 0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
    ];
    let lzma = [
        0x5d, 0x00, 0x00, 0x80, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x34, 0x19, 0x49,
        0xee, 0x8d, 0xdd, 0x16, 0xaa, 0x61, 0x84, 0xab, 0x35, 0x09, 0x61, 0x69, 0xeb, 0xff, 0xfd, 0x35, 0xc0,
    ];
    vec![
        ("text.xz", xz.to_vec(), "xz"),
        ("text.lzma", lzma.to_vec(), "lzma"),
        ("text.Z", vec![0x1f, 0x9d, 0x90, 0x68, 0xca, 0xb0, 0x61, 0xf3, 0xb6], "compress"),
        // The format is recognized by the content, and not by the name of the file.
        ("text.txt", xz.to_vec(), "xz"),
    ]
}

#[test]
fn compressed_files_are_unpacked_by_every_verb_or_refused_by_name() {
    let folder = Folder::new();
    folder.write("text", TEXT);
    for format in ["gzip", "bzip2", "zstd", "lz4"] {
        folder.run(&format!("compress text -o packed --format {format} --force --quiet")).ok();
        // The same content is tried under a name without an extension, and under a name with the extension of CSV.
        for name in ["packed", "packed.csv"] {
            if name != "packed" {
                fs::copy(folder.path("packed"), folder.path(name)).unwrap();
            }
            let said = folder.run(&format!("count words {name} --top 3 --quiet")).ok().stdout;
            assert!(said.contains("hello") && said.contains("world"), "{format}: {said}");
            assert_eq!(folder.run(&format!("sort {name} -o - --quiet")).ok().stdout, TEXT, "{format}");
            assert_eq!(folder.run(&format!("search -z world {name}")).ok().stdout, "world\n", "{format}");
        }
        let said = folder.run("sql --quiet SELECT/**/max(hello)/**/FROM/**/'packed.csv'").ok().stdout;
        assert!(said.ends_with("world\n"), "{format}: {said}");
        folder.run(&format!("store put packed --name {format} --quiet")).ok();
        let said = folder.run(&format!("count words store:{format} --top 3 --quiet")).ok().stdout;
        assert!(said.contains("hello") && said.contains("world"), "{format}: {said}");
        let said = folder.run(&format!("search -z -n world store:{format}")).ok().stdout;
        assert_eq!(said, "2:world\n", "{format}");
        let said = folder.run(&format!("search -z -U o\\nw store:{format}")).ok().stdout;
        assert_eq!(said, TEXT, "{format}");
    }
    for (name, bytes, format) in refused() {
        folder.write(name, &bytes);
        folder.write("text.csv", &bytes);
        folder.run(&format!("store put {name} --quiet")).ok();
        for verb in [
            format!("count words {name}"),
            format!("count words store:{name}"),
            format!("sort {name} -o out"),
            format!("search -z hello {name}"),
            format!("search -z hello store:{name}"),
            format!("search -z -U hello {name}"),
            format!("graph import {name} --name g --format text"),
            format!("count kmers {name} -k 3 -o out.csv"),
            "sql SELECT/**/1/**/FROM/**/'text.csv'".to_string(),
            format!("language train {name} --name l"),
        ] {
            let said = folder.run(&verb).exits(2);
            let is_told = said.stderr.contains(&format!("it is compressed with {format}"));
            assert!(is_told && said.stderr.contains("text."), "{verb}: {}", said.stderr);
            assert!(!folder.path("out").exists() && !folder.path("out.csv").exists());
        }
        let said = folder.run(&format!("decompress {name} -o out")).exits(2);
        assert!(said.stderr.contains(&format!("got a file of {format}")), "{}", said.stderr);
    }
    // Without -z, a search reads the bytes unchanged.
    folder.run("search hello text.xz").ok();
}

#[test]
fn a_search_tells_of_files_that_it_cannot_unpack_and_searches_the_others() {
    let folder = Folder::new();
    fs::create_dir(folder.path("logs")).unwrap();
    folder.write("logs/a.gz", gzip(TEXT.as_bytes()));
    for (name, bytes, _) in refused() {
        folder.write(&format!("logs/{name}"), bytes);
    }
    // Archives that the user did not name are treated as binary files.
    folder.write("logs/z.zip", b"PK\x03\x04\0\0hello\n");
    let said = folder.run("search -z hello logs").exits(2);
    assert_eq!(said.stdout, "logs/a.gz:hello\n");
    assert_eq!(said.stderr.lines().count(), 4, "{}", said.stderr);
    let said = folder.run("search -z hello logs/z.zip").exits(2);
    assert!(said.stderr.contains("it is a zip archive"), "{}", said.stderr);
}

#[test]
fn compressed_text_is_refused_by_name_on_nodes() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 2);
    folder.write("t.gz", gzip(&TEXT.repeat(1000).into_bytes()));
    folder.write("plain", TEXT.repeat(1000));
    folder.run("language train plain --name l --quiet").ok();
    let mut files = refused();
    files.push(("t.gz", fs::read(folder.path("t.gz")).unwrap(), "gzip"));
    for (name, bytes, format) in files {
        folder.write(name, bytes);
        folder.run(&format!("store put {name} --node {named} --quiet")).ok();
        for verb in ["count words", "language identify --profiles l", "sort -o out"] {
            let said = folder.run(&format!("{verb} store:{name} --node {named}")).exits(2);
            let expected = format!("store:{name}: it is compressed as a whole");
            assert!(
                said.stderr.contains(&expected) && said.stderr.contains(format),
                "{verb}: {}",
                said.stderr
            );
        }
    }
}

#[test]
fn gzip_that_is_padded_and_lz4_behind_a_skippable_frame_are_read() {
    let folder = Folder::new();
    let skippable = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    folder.write("text", TEXT);
    folder.run("compress text -o text.lz4 --quiet").ok();
    let lz4 = fs::read(folder.path("text.lz4")).unwrap();
    folder.run("compress text -o ours.gz --quiet").ok();
    let (ours, theirs) = (fs::read(folder.path("ours.gz")).unwrap(), gzip(TEXT.as_bytes()));
    let twice = TEXT.repeat(2);
    for (name, parts, expected) in [
        ("padded.gz", &[&theirs[..], &[0; 700]][..], TEXT),
        ("padded.gz", &[&ours, &[0; 512]], TEXT),
        ("between.gz", &[&theirs, &[0; 9], &ours, &[0; 1], &theirs], &TEXT.repeat(3)),
        ("behind.lz4", &[&skippable, &skippable, &lz4], TEXT),
        ("both.lz4", &[&lz4, &skippable, &lz4, &skippable], &twice),
        ("nothing.lz4", &[&skippable], ""),
    ] {
        folder.write(name, parts.concat());
        assert_eq!(folder.run(&format!("decompress {name} -o -")).ok().stdout, expected, "{name}");
        let mut sorted: Vec<&str> = expected.split_inclusive('\n').collect();
        sorted.sort_unstable();
        assert_eq!(folder.run(&format!("sort {name} -o - --quiet")).ok().stdout, sorted.concat(), "{name}");
    }
}

#[test]
fn files_that_do_not_know_their_size_are_read_to_their_end() {
    let folder = Folder::new();
    for (path, word) in
        [("/proc/version", "version"), ("/sys/kernel/mm/transparent_hugepage/enabled", "never")]
    {
        let Ok(text) = fs::read_to_string(path) else {
            println!("skipped: there is no {path}");
            continue;
        };
        assert_eq!(folder.run(&format!("search {word} {path}")).ok().stdout, text, "{path}");
        assert_eq!(folder.run(&format!("search -c {word} {path}")).ok().stdout, "1\n", "{path}");
        assert_eq!(folder.run(&format!("search -U {word}.* -c {path}")).ok().stdout, "1\n", "{path}");
        assert_eq!(folder.run(&format!("sort {path} -o - --quiet")).ok().stdout, text, "{path}");
        let said = folder.run(&format!("count words {path} --top 100 --quiet")).ok().stdout;
        assert!(said.contains(word), "{path}: {said}");
        folder.run(&format!("store put {path} --name it --quiet")).ok();
        assert_eq!(folder.run("store get it").ok().stdout, text, "{path}");
        folder.run("store rm it").ok();
        // The only line of the file is the header of the table, so the table has no rows.
        symlink(path, folder.path("it.csv")).unwrap();
        let said = folder.run("sql --quiet SELECT/**/count(*)/**/AS/**/n/**/FROM/**/'it.csv'").ok().stdout;
        assert_eq!(said, "n\n0\n", "{path}");
        fs::remove_file(folder.path("it.csv")).unwrap();
    }
}

#[test]
fn no_store_is_made_by_a_command_that_fails_before_it_needs_one() {
    let folder = Folder::new();
    folder.write("text", TEXT);
    folder.write("table.csv", "a,b\n1,2\n");
    for (words, expected) in [
        ("sort nosuch -o out", "nosuch: cannot open: No such file"),
        ("sort text -o nowhere/out", "nowhere/out: cannot open its folder"),
        ("sort store:text -o out", "store"),
        ("sort . -o out", "directory"),
        ("reduce nosuch.csv --by a --count -o out.csv", "No such file"),
        ("reduce table.csv --by a --count -o out.pdf", "pdf"),
        ("count words nosuch", "No such file"),
        ("count words store:nosuch", "there is no store"),
        ("count kmers nosuch -o out.csv", "No such file"),
        ("count values nosuch.csv --column a -o out.csv", "No such file"),
        ("graph import nosuch --name g", "No such file"),
        ("store put nosuch", "No such file"),
        ("language train nosuch.txt --name l", "No such file"),
    ] {
        let said = folder.run(words).exits(2);
        assert!(said.stderr.contains(expected), "{words}: {}", said.stderr);
        assert!(!folder.path("store").exists(), "{words} made a store: {}", said.stderr);
    }
    folder.run("sort text -o out").ok();
    assert!(folder.path("store").exists());
}

#[test]
fn results_go_to_devices_and_pipes() {
    let folder = Folder::new();
    folder.write("text", TEXT);
    folder.write("table.csv", "a,b\n1,2\n");
    let before = fs::metadata("/dev/null").unwrap().permissions();
    for words in [
        "sort text -o /dev/null",
        "sort table.csv --key a -o /dev/null",
        "reduce table.csv --by a --count -o /dev/null",
        "count words text -o /dev/null",
        "search hello text --output /dev/null",
        "compress text -o /dev/null",
        "sql --quiet -o /dev/null SELECT/**/1",
    ] {
        folder.run(words).ok();
        assert_eq!(fs::metadata("/dev/null").unwrap().permissions(), before, "{words}");
    }
    let pipe = folder.path("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let reader = std::thread::spawn(move || fs::read_to_string(pipe).unwrap());
    folder.run("sort text --reverse -o pipe --quiet").ok();
    assert_eq!(reader.join().unwrap(), "world\nhello\n");
    let said = folder.run("sort text -o .").exits(2);
    assert!(said.stderr.contains("not a plain file"), "{}", said.stderr);
}

#[test]
fn a_url_is_told_to_be_none_and_what_a_terminal_would_obey_is_shown() {
    let folder = Folder::new();
    folder.write("text", TEXT);
    for words in [
        "sort s3://bucket/a.csv -o out",
        "search x https://example.org/a.txt",
        "count words https://example.org/a.txt",
        "sql SELECT/**/*/**/FROM/**/'s3://bucket/a.parquet'",
        "graph import https://example.org/a.txt --name g",
        "compress gs://bucket/a",
        "sort text -o s3://bucket/out",
    ] {
        let said = folder.run(words).exits(2);
        assert!(said.stderr.contains("URLs are neither read nor written"), "{words}: {}", said.stderr);
    }
    let name = "a\u{1b}[31m\u{7}b.csv";
    folder.write(name, "a\n1\n");
    for words in [format!("sort {name} --key b -o out.csv"), format!("search x nosuch{name}")] {
        let said = folder.run(&words).exits(2);
        assert!(!said.stderr.contains(['\u{1b}', '\u{7}']), "{words}: {:?}", said.stderr);
        assert!(said.stderr.contains("a\\u{1b}[31m\\u{7}b.csv"), "{words}: {:?}", said.stderr);
    }
}
