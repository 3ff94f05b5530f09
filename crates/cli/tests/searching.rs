//! Compares `inshore search` with ripgrep, on a tree of files and on random patterns and texts.

use std::{fs, path::Path, process::Command};

use crate::util::Folder;

/// Returns the output and the exit code of ripgrep. Returns `None` unless version 13 of ripgrep is installed, since
/// other versions differ in details of context and colour.
fn ripgrep(folder: &Path, words: &[&str]) -> Option<(Vec<u8>, i32)> {
    static IS_KNOWN: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let output = Command::new("rg").arg("--version").output();
        output.is_ok_and(|output| output.stdout.starts_with(b"ripgrep 13."))
    });
    if !*IS_KNOWN {
        return None;
    }
    let mut command = Command::new("rg");
    let output = command.args(["--no-config", "--sort", "path"]).args(words).current_dir(folder).output();
    let output = output.ok()?;
    Some((output.stdout, output.status.code().unwrap()))
}

fn inshore(folder: &Path, words: &[&str]) -> (Vec<u8>, i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inshore"));
    command.arg("search").args(words).current_dir(folder).env_clear().env("HOME", folder);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.stdout, output.status.code().unwrap(), stderr)
}

fn compare(folder: &Path, words: &[&str]) -> bool {
    let Some((expected, code)) = ripgrep(folder, words) else {
        println!("skipped: ripgrep (rg) 13 is not installed");
        return false;
    };
    let (found, found_code, stderr) = inshore(folder, words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    assert!(
        found == expected && found_code == code,
        "{words:?}: exit code {found_code} ({code} expected), {stderr}\n--- found\n{}\n--- expected\n{}",
        text(&found),
        text(&expected)
    );
    true
}

fn tree() -> Folder {
    let folder = Folder::new();
    for name in ["src/deep", ".git", ".hidden", "target"] {
        fs::create_dir_all(folder.path(name)).unwrap();
    }
    folder.write("src/main.rs", "fn main() {\n    println!(\"Hello, world\");\n    // TODO: more\n}\n");
    folder.write(
        "src/deep/lib.rs",
        "pub fn add(a: u32, b: u32) -> u32 {\n    a + b // todo\n}\n\nfn sub() {}\n",
    );
    folder.write("src/notes.txt", "no end of line: TODO, todo, ToDo");
    folder.write("src/empty.txt", "");
    folder.write("src/crlf.txt", "one\r\ntwo TODO\r\n\r\nthree\r\n");
    folder.write("umlaut.txt", "Käse und Brot\nKÄSE\nstraße\n\u{2603} snow\n");
    folder.write("latin1.txt", b"caf\xe9 TODO\nplain\n");
    folder.write("binary.dat", b"TODO before\nthen a \0 byte\nTODO behind\n");
    folder.write("late.bin", [&b"TODO line\n".repeat(3000)[..], b"\0\nTODO\n"].concat());
    folder.write("utf16.txt", [0xff, 0xfe, b'T', 0, b'O', 0, b'D', 0, b'O', 0, b'\n', 0]);
    folder.write("marked.txt", "\u{feff}marked\nnot\n");
    folder.write(".hidden/file.txt", "TODO hidden\n");
    folder.write(".gitignore", "target\n*.log\n");
    folder.write("target/out.txt", "TODO built\n");
    folder.write("run.log", "TODO logged\n");
    folder.write(
        "many.txt",
        (0..400).map(|i| format!("line {i} {}\n", if i % 7 == 0 { "TODO" } else { "-" })).collect::<String>(),
    );
    folder.write("needles.txt", "TODO\nworld\nstra\u{df}e\n");
    folder
}

#[test]
fn a_tree_of_files_gives_what_ripgrep_gives() {
    let folder = tree();
    let cases: &[&[&str]] = &[
        &["TODO"],
        &["-n", "TODO"],
        &["-i", "todo"],
        &["-S", "todo"],
        &["-S", "ToDo"],
        &["-c", "TODO"],
        &["-c", "--include-zero", "TODO"],
        &["--count-matches", "-i", "todo"],
        &["-co", "-i", "todo"],
        &["-l", "TODO"],
        &["--files-without-match", "TODO"],
        &["-o", "-i", "todo"],
        &["-on", "[a-z]+ [a-z]+"],
        &["-ob", "o"],
        &["-b", "TODO"],
        &["--column", "o"],
        &["-w", "todo|a"],
        &["-x", "three|fn sub\\(\\) \\{\\}"],
        &["-x", "--crlf", "three|fn sub\\(\\) \\{\\}"],
        &["-v", "TODO"],
        &["-vc", "e"],
        &["-vn", "e", "src"],
        &["-F", "a + b"],
        &["-F", "-i", "KäSE"],
        &["-f", "needles.txt"],
        &["-f", "needles.txt", "-o", "src"],
        &["-e", "TODO", "-e", "snow"],
        &["-H", "TODO", "src/main.rs"],
        &["TODO", "src/main.rs"],
        &["-n", "TODO", "src/main.rs", "src/notes.txt"],
        &["-I", "TODO", "src"],
        &["--heading", "-n", "TODO", "src"],
        &["--heading", "-c", "TODO", "src"],
        &["-0l", "TODO"],
        &["-A1", "TODO"],
        &["-B2", "-n", "TODO"],
        &["-C3", "-n", "TODO", "many.txt"],
        &["-C1", "-n", "u32", "src"],
        &["-C1", "--heading", "-n", "u32|main", "src"],
        &["-A1", "-m2", "TODO", "many.txt"],
        &["-m1", "TODO", "many.txt", "src"],
        &["-m3", "-c", "TODO", "many.txt"],
        &["-g", "*.rs", "fn"],
        &["-g", "!*.rs", "fn|TODO"],
        &["-t", "rust", "fn"],
        &["-T", "rust", "TODO"],
        &["--hidden", "TODO"],
        &["--no-ignore", "TODO"],
        &["-u", "TODO"],
        &["-uu", "TODO", "-g", "!.git"],
        &["-a", "TODO", "binary.dat"],
        &["--max-depth", "1", "TODO"],
        &["--files"],
        &["--files", "src"],
        &["-q", "TODO"],
        &["-q", "nothing like it"],
        &["nothing like it"],
        &["-c", "nothing like it"],
        &["^", "src/main.rs"],
        &["$", "-c", "src"],
        &["^$", "-n", "src"],
        &["", "-c", "src"],
        &["\\bfn\\b", "-o"],
        &["(?i)straSSe|käse"],
        &["\\s+$", "-n"],
        &["[^a-z]", "-o", "src/notes.txt"],
        &["TODO", "binary.dat"],
        &["-n", "TODO", "binary.dat", "late.bin", "src/main.rs"],
        &["-c", "TODO", "binary.dat"],
        &["-l", "TODO", "binary.dat"],
        &["-v", "TODO", "binary.dat"],
        &["behind", "binary.dat"],
        &["--binary", "TODO", "-g", "*.dat"],
        &["-uuu", "TODO", "-g", "!.git"],
        &["\\AO|\\ATODO"],
        &["o\\z", "-c"],
        &["-o", "-A1", "TODO", "many.txt"],
        &["-o", "-C1", "-n", "-b", "l[a-z]*"],
        &["--count-matches", "-m2", "o", "many.txt"],
        &["--count-matches", "-m1", "e", "src"],
        &["-c", "--include-zero", "x{7}"],
        &["--files-without-match", "e"],
        &["^marked"],
        &["-n", "--column", "marked", "marked.txt"],
        &["-r", "<$0>", "TODO"],
        &["-r", "$2 ${1}0 $name", "-n", "(\\w+) (\\w+) (?P<name>\\w)?", "src"],
        &["-o", "-r", "[$1]", "([a-z])o"],
        &["-r", "xyz", "-ob", "o"],
        &["-r", "$$", "--column", "o", "src"],
        &["-r", "y", "-v", "TODO", "src"],
        &["-r", "y", "-C1", "-n", "u32", "src"],
        &["-r", "z", "-c", "TODO"],
        &["-r", "<>", "x*", "src"],
        &["-r", "", "--crlf", "[a-z]+$", "src/crlf.txt"],
        &["-r", "$1$1", "-m3", "(.)$", "many.txt"],
        &["-r", "> ", "--crlf", "^", "src/crlf.txt"],
        &["-r", "X", "--crlf", "x*", "src/crlf.txt"],
        &["-r", "y", "-v", "-C1", "TODO", "src"],
        &["-r", "x\n", "-o", "o", "src"],
        &["-r", "z", "--count-matches", "-m1", "o", "src"],
        &["-U", "-v", "-n", "-m1", "line 7\n", "many.txt"],
        &["-U", "-v", "-n", "-m2", "zz\n", "many.txt", "src"],
        &["-U", "-n", "-m2", "o\n?", "src"],
        &["-U", "-n", "-m2", "-A1", "1 -\nl", "many.txt"],
        &["-U", "--crlf", "-n", "two TODO\\r", "src/crlf.txt"],
        &["-U", "TODO"],
        &["-U", "-n", "\\{\n.*"],
        &["-U", "-n", "-o", "\\{\n\\s+\\w+"],
        &["-U", "-c", "\\s+"],
        &["-U", "--count-matches", "\\s+", "src"],
        &["-U", "-b", "[^a]\n", "src"],
        &["-U", "--column", "-n", "e\n[^\n]", "src", "many.txt"],
        &["-U", "--multiline-dotall", "-n", "fn.*?\\}", "src"],
        &["-U", "(?s)fn.*\\}", "src/main.rs", "src/deep/lib.rs"],
        &["-U", "-v", "-n", "\\{\n[^}]*\\}", "src"],
        &["-U", "-l", "o\n"],
        &["-U", "--files-without-match", "o\n"],
        &["-U", "-C1", "-n", "TODO\nline", "many.txt"],
        &["-U", "-q", "o\nx"],
        &["-U", "-m2", "TODO\nline", "many.txt"],
        &["-U", "-i", "-w", "todo\ntodo", "binary.dat", "src"],
        &["-U", "--crlf", "two TODO\r?\n", "src/crlf.txt"],
        &["--color", "always", "-n", "TODO", "-g", "!*.txt"],
    ];
    for words in cases {
        if words.contains(&"--color") {
            // The test checks only whether there are colours, since ripgrep resets colours more often than necessary.
            let (found, ..) = inshore(&folder.path(""), words);
            assert!(String::from_utf8_lossy(&found).contains("\x1b[1;31mTODO\x1b[0m"));
        } else if !compare(&folder.path(""), words) {
            return;
        }
    }
}

#[test]
fn random_patterns_and_texts_give_what_ripgrep_gives() {
    let folder = Folder::new();
    let mut seed = 7u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    // The patterns do not contain \b, since ripgrep 13 misses some of its matches after a letter that is not ASCII.
    let pieces = [
        "a", "b", "ab", "ba", ".", "a*", "b+", "(a|bb)", "[ab]", "[^a]", "^", "$", "ö", "\\w", "(?i)A",
        "a{2,3}", "c?",
    ];
    let letters = ["a", "b", "c", " ", "\n", "A", "ö", "aa", "bb", "ab", "\n\n", "ba", "-"];
    for case in 0..60 {
        let len = [10, 1000, 700_000][case % 3];
        let mut text = String::new();
        while text.len() < len {
            text.push_str(letters[random(letters.len())]);
        }
        folder.write("text", text);
        let count = 1 + random(4);
        let pattern: String = (0..count).map(|_| pieces[random(pieces.len())]).collect();
        let flags = [
            ["-n", "-b"],
            ["-c", "-v"],
            ["-o", "-n"],
            ["-i", "-c"],
            ["-w", "-n"],
            ["-x", "-b"],
            ["-n", "-C2"],
            ["-o", "-c"],
        ];
        let [first, second] = flags[random(flags.len())];
        if !compare(&folder.path(""), &[first, second, "-e", &pattern, "text"]) {
            return;
        }
    }
}

#[test]
fn what_goes_wrong_is_told_and_the_rest_is_searched() {
    let folder = tree();
    let (found, code, told) = inshore(&folder.path(""), &["TODO", "missing.txt", "src/main.rs"]);
    assert_eq!(code, 2);
    assert_eq!(String::from_utf8_lossy(&found), "src/main.rs:    // TODO: more\n");
    assert!(told.starts_with("inshore: missing.txt: ") && told.lines().count() == 1, "{told}");
    for (words, part) in [
        (&["(", "src"][..], "unclosed group"),
        (&["a\\nb", "src"], "; -U lets matches go across the ends of lines"),
        (&["-f", "nowhere", "src"], "nowhere: cannot read patterns"),
        (&["-t", "klingon", "x"], "unrecognized file type: klingon"),
        (&["-g", "[", "x"], "bad --glob"),
        (&["x", "store:nothing"], "store"),
    ] {
        let (found, code, told) = inshore(&folder.path(""), words);
        assert_eq!((found.len(), code), (0, 2), "{words:?}");
        assert!(told.contains(part), "{words:?}: {told}");
    }
}

#[test]
fn a_binary_file_without_lines_is_no_error_unless_it_was_asked_for() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("in")).unwrap();
    folder.write("in/zeros", vec![0; 8 << 20]);
    folder.write("in/text", "fox\n");
    let said = folder.run("search fox in --memory 16MiB --threads 2").ok();
    assert_eq!((&*said.stdout, &*said.stderr), ("in/text:fox\n", ""));
    let said = folder.run("search fox in --text --memory 16MiB --threads 2").exits(2);
    assert!(said.stderr.contains("in/zeros: the line at byte 0 exceeds"), "{}", said.stderr);
}

#[test]
fn compressed_files_standard_input_and_datasets_are_searched() {
    use std::io::Write;
    let folder = Folder::new();
    let lines: String = (0..200_000).map(|i| format!("line {i}\n")).collect();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines.as_bytes()).unwrap();
    folder.write("lines.gz", packed.finish().unwrap());
    folder.write("lines", &lines);
    let expected = "77777:line 77776\n177777:line 177776\n";
    assert_eq!(folder.run("search -z -n 7777[6]$ lines.gz").ok().stdout, expected);
    assert_eq!(folder.run("search -n 7777[6]$ lines").ok().stdout, expected);
    assert_eq!(folder.run("search -n 7777[6]$ -").stdin(lines.clone()).ok().stdout, expected);
    assert_eq!(folder.run("search -n 7777[6]$").stdin(lines).ok().stdout, expected);
    folder.run("store put lines --name lines --quiet").ok();
    assert_eq!(folder.run("search -n 7777[6]$ store:lines").ok().stdout, expected);
    assert_eq!(folder.run("search -c 7777[6]$ store:lines lines").ok().stdout, "lines:2\nstore:lines:2\n");
    folder.run("search -c 7777[6]$ lines --output found.txt --counters counters.json").ok();
    assert_eq!(folder.read("found.txt"), "2\n");
    let counters: serde_json::Value = serde_json::from_str(&folder.read("counters.json")).unwrap();
    assert_eq!(counters["summary"]["matched"], true);
    assert!(folder.run("search nothing lines").exits(1).stdout.is_empty());
}

#[test]
fn a_search_across_lines_reads_what_it_must_and_says_where_it_cannot() {
    let folder = Folder::new();
    let text = format!("{}begin\nmiddle\nend\n", "a line of no interest\n".repeat(700_000));
    folder.write("text", &text);
    folder.run("compress text -o text.bz2 --format bzip2").ok();
    folder.run("compress text -o text.lz4 --format lz4").ok();
    folder.run("store put text --name text --quiet").ok();
    let found = "700001:begin\n700002:middle\n700003:end\n";
    for source in ["text", "-z text.bz2", "-z text.lz4", "store:text"] {
        let said = folder.run(&format!("search -U -n begin\\n(.*\\n)*?end {source} --memory 64MiB")).ok();
        assert_eq!(said.stdout, found, "{source}");
    }
    assert_eq!(folder.run("search -z -c middle text.bz2 text.lz4").ok().stdout, "text.bz2:1\ntext.lz4:1\n");
    for name in ["text.bz2", "text.lz4"] {
        let packed = fs::read(folder.path(name)).unwrap();
        folder.write(name, [&packed[..], &packed[..]].concat());
        assert_eq!(folder.run(&format!("search -z -c middle {name}")).ok().stdout, "2\n");
        folder.write(name, &packed[..packed.len() - 9]);
        for words in ["-c middle", "-U begin\\n"] {
            let said = folder.run(&format!("search -z {words} {name}")).exits(2);
            assert!(said.stderr.starts_with(&format!("inshore: {name}: truncated: ")), "{}", said.stderr);
        }
    }
    let said = folder.run("search -U -r <$1> (mid)dle\\n text --memory 64MiB").ok();
    assert_eq!(said.stdout, "<mid>\n");
    let said = folder.run("search -U begin\\nmiddle text --memory 16MiB").exits(2);
    assert!(said.stderr.contains("text: a search across lines (-U) reads all of a file"), "{}", said.stderr);
    folder.write("many", "a\n".repeat(1_500_000));
    let said = folder.run("search -U -o a\\n many --memory 16MiB").exits(2);
    assert!(said.stderr.contains("many: adjacent matches"), "{}", said.stderr);
    let long = "$0".repeat(1000);
    let said = folder.run(&format!("search -U -r {long} a\\n many --memory 32MiB")).exits(2);
    assert!(said.stderr.contains("many: adjacent matches"), "{}", said.stderr);
    assert_eq!(folder.run("search -U -c a\\n many --memory 16MiB").ok().stdout, "1500000\n");
    // Binary files that the user did not name are skipped, even if they exceed the memory. Datasets are searched
    // unchanged, including a byte order mark.
    fs::create_dir(folder.path("in")).unwrap();
    folder.write("in/zeros", vec![0; 40 << 20]);
    folder.write("in/text", "fox\nhen\n");
    let said = folder.run("search -U fox\\nhen in --memory 16MiB").ok();
    assert_eq!((&*said.stdout, &*said.stderr), ("in/text:fox\nin/text:hen\n", ""));
    folder.write("marked", "\u{feff}fox\nhen\n");
    folder.run("store put marked --name marked --quiet").ok();
    assert_eq!(folder.run("search -U -o -b x\\nh store:marked").ok().stdout, "5:x\n5:h\n");
    // A pattern whose matches cannot span lines needs no more memory with -U than without it.
    assert_eq!(folder.run("search -U -c middle text --memory 16MiB").ok().stdout, "1\n");
}

#[test]
fn lines_that_replacements_make_too_long_are_refused() {
    let folder = Folder::new();
    folder.write("text", "e".repeat(200_000) + "\n");
    let long = "$0$0$0$0".repeat(1000);
    let said = folder.run(&format!("search e+ text -c -r {long} --memory 16MiB")).ok();
    assert_eq!(said.stdout, "1\n");
    let said = folder.run(&format!("search e+ text -r {long} --memory 16MiB")).exits(2);
    assert!(said.stderr.contains("replacing matches makes the lines"), "{}", said.stderr);
}

#[test]
fn json_lines_are_those_of_ripgrep() {
    let folder = tree();
    for words in [
        &["--json", "-i", "todo", "src"][..],
        &["--json", "TODO", "latin1.txt"],
        &["--json", "-A1", "u32", "src"],
        &["--json", "-U", "\\{\n.*", "src"],
    ] {
        let Some((expected, _)) = ripgrep(&folder.path(""), words) else {
            println!("skipped: ripgrep (rg) 13 is not installed");
            return;
        };
        let (found, code, _) = inshore(&folder.path(""), words);
        assert_eq!(code, 0);
        let parse = |bytes: &[u8]| -> Vec<serde_json::Value> {
            let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
            let values = lines.map(|line| serde_json::from_slice::<serde_json::Value>(line).unwrap());
            // These messages have times and the number of searched bytes, which differ between the two programs.
            values.filter(|value| value["type"] != "end" && value["type"] != "summary").collect()
        };
        assert_eq!(parse(&found), parse(&expected), "{words:?}");
    }
}

#[test]
fn paths_and_exit_codes_agree_with_the_lines_that_are_shown_before_a_nul_byte() {
    let folder = Folder::new();
    fs::create_dir(folder.path("dir")).unwrap();
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    // In `before`, a match precedes a NUL byte after the first 64 KiB. In `behind`, the match follows this NUL byte. In
    // `early`, the file begins with a NUL byte.
    for (name, text) in [
        ("before", format!("{numbers}wanted\n\0\n")),
        ("behind", format!("{numbers}\0\nwanted\n")),
        ("early", "\0\nwanted\n".to_string()),
    ] {
        folder.write(&format!("dir/{name}"), text);
    }
    for name in ["before", "behind", "early"] {
        for (place, is_named) in [(format!("dir/{name}"), true), (format!("dir -g {name}"), false)] {
            let shown = folder.run(&format!("search wanted {place}")).ends();
            let has_match = is_named || name == "before";
            assert_eq!(shown.0, Some(i32::from(!has_match)), "{place}: {:?}", shown.1);
            for threads in [1, 2] {
                let paths = folder.run(&format!("search -l wanted {place} --threads {threads}")).ends();
                let expected = if has_match { format!("dir/{name}\n") } else { String::new() };
                assert_eq!((paths.0, &*paths.1.stdout), (shown.0, &*expected), "{place}");
                let quiet = folder.run(&format!("search -q wanted {place} --threads {threads}")).ends();
                assert_eq!(quiet.0, shown.0, "{place}");
            }
        }
    }
    folder.run("store put dir/behind --name behind --quiet").ok();
    assert_eq!(folder.run("search -l wanted store:behind").ok().stdout, "store:behind\n");
}

#[test]
fn patterns_that_begin_with_a_dash_and_flags_that_are_given_twice_are_understood() {
    let folder = Folder::new();
    folder.write("text", "a-foo\n-x\nb\n");
    for (words, expected) in [
        ("-e -foo text", "a-foo\n"),
        ("-e -x -e b text", "-x\nb\n"),
        ("-e-foo text", "a-foo\n"),
        ("--regexp -foo text", "a-foo\n"),
        ("-o foo -r -bar text", "-bar\n"),
        ("-n -n b text", "3:b\n"),
        ("-m 1 -m 2 . text", "a-foo\n-x\n"),
        ("-A 5 -A 0 foo text", "a-foo\n"),
        ("-i -i -s B text", ""),
        ("-c -c --color never --color never . text", "3\n"),
        ("-N -n b text --threads 1 --threads 2", "3:b\n"),
    ] {
        let (_, said) = folder.run(&format!("search {words}")).ends();
        assert_eq!(said.stdout, expected, "{words}: {}", said.stderr);
        assert_eq!(said.stderr, "", "{words}");
    }
}

#[test]
fn lines_near_the_last_match_that_is_wanted_are_shown_whether_they_match_or_not() {
    let folder = Folder::new();
    folder.write("text", "a\nb\nm\nd\nm\nm\ng\nm\nm\nj\n");
    // The expected lines are those of GNU grep 3.8.
    for (words, expected) in [
        ("-m2 -A3", "3:m\n4-d\n5:m\n6-m\n7-g\n8-m\n"),
        ("-m1 -A1", "3:m\n4-d\n"),
        ("-m1 -A2", "3:m\n4-d\n5-m\n"),
        ("-m1 -C2", "1-a\n2-b\n3:m\n4-d\n5-m\n"),
        ("-m3", "3:m\n5:m\n6:m\n"),
        ("-m4 -A9", "3:m\n4-d\n5:m\n6:m\n7-g\n8:m\n9-m\n10-j\n"),
    ] {
        assert_eq!(folder.run(&format!("search -n {words} m text")).ok().stdout, expected, "{words}");
    }
    // If matches span lines, the search finds one more match before it stops at the limit.
    let said = folder.run("search -U -n -m1 -A3 d\\nm text").ok().stdout;
    assert_eq!(said, "4:d\n5:m\n6-m\n7-g\n8-m\n");
    let said = folder.run("search -U -n -m1 -A2 (?s)b\\nm text").ok().stdout;
    assert_eq!(said, "2:b\n3:m\n4-d\n5-m\n");
    let said = folder.run("search -U -c -m1 -A3 (?s)m\\nm text").ok().stdout;
    assert_eq!(said, "1\n");
}

#[test]
fn a_hole_longer_than_a_line_may_be_is_binary_and_what_lies_behind_it_is_searched() {
    let folder = Folder::new();
    let file = fs::File::create(folder.path("sparse")).unwrap();
    let write =
        |text: &[u8], place: u64| std::os::unix::fs::FileExt::write_all_at(&file, text, place).unwrap();
    // The file starts with more than 64 KiB of text: with a NUL byte in the first 64 KiB, the whole file would be
    // binary.
    let start = "filler\n".repeat(20_000) + "first\n";
    write(start.as_bytes(), 0);
    // With 16 MiB of memory, the limit on the length of a line is far below the length of the hole.
    write(b"inside\nbehind\nlast\n", 30 << 20);
    let offset = start.len();
    let message = &*format!("binary file matches (found \"\\0\" byte around offset {offset})\n");
    let stream = fs::read(folder.path("sparse")).unwrap();
    for threads in [1, 2] {
        let how = format!("--threads {threads} --memory 16MiB");
        for (pattern, expected) in
            [("first", "first\n"), ("inside", message), ("behind", message), ("last", message)]
        {
            let said = folder.run(&format!("search {pattern} sparse {how}")).ok();
            assert_eq!(said.stdout, expected, "{pattern}");
            assert_eq!(folder.run(&format!("search -l {pattern} sparse {how}")).ok().stdout, "sparse\n");
            assert_eq!(folder.run(&format!("search -c {pattern} sparse {how}")).ok().stdout, "1\n");
            let piped = folder.run(&format!("search {pattern} - {how}")).stdin(stream.clone()).ok();
            assert_eq!(piped.stdout, expected, "{pattern}");
        }
        assert_eq!(folder.run(&format!("search nothing sparse {how}")).exits(1).stderr, "");
        // If the file is searched as text, the zeros are one line, which is too long.
        let said = folder.run(&format!("search -a inside sparse {how}")).exits(2);
        let expected = format!("the line at byte {offset} exceeds");
        assert!(said.stderr.contains(&expected), "{}", said.stderr);
    }
}
