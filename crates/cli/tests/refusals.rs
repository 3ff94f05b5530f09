//! Tests that errors are reported with the right exit code, and as early as possible.

use std::{fs, io::Read, process::Command, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use parquet::{
    arrow::ArrowWriter,
    file::{metadata::KeyValue, properties::WriterProperties},
};

use crate::util::{EDGES, Folder, Run};

/// Runs a command that must fail, with a one-line error and no standard output. A note that a new store was created may
/// precede the error. Returns the error.
fn refused(run: Run) -> String {
    let said = run.exits(2);
    assert_eq!(said.stdout, "");
    let made = said.stderr.starts_with("note: created a new store in ");
    let rest = if made { said.stderr.split_once('\n').unwrap().1 } else { &said.stderr };
    let line = rest.strip_prefix("inshore: ").unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!(line.lines().count(), 1, "{said:?}");
    line.trim_end().to_string()
}

#[test]
fn a_bad_line_is_named_by_file_and_number() {
    let folder = Folder::new();
    folder.write("edges.txt", "1 2\n2 3\nfoo 4\n");
    let line = refused(folder.run("graph import edges.txt --name g"));
    assert!(line.starts_with("edges.txt:3: expected ") && line.contains("foo"), "{line}");
    let line = refused(folder.run("graph import - --name g").stdin("1 2\n3\n"));
    assert!(line.starts_with("standard input:2: expected "), "{line}");
    assert_eq!(folder.graphs(), [""; 0]);
    assert!(folder.scratch().is_empty());
}

#[test]
fn a_name_that_exists_is_refused_and_the_old_graph_stays() {
    let folder = Folder::with_graph("g", EDGES);
    let line = refused(folder.run("graph import - --name g").stdin("1 2\n"));
    assert!(line.contains("\"g\" exists already"), "{line}");
    let line = refused(folder.run("graph generate kronecker --scale 8 --name g"));
    assert!(line.contains("\"g\" exists already"), "{line}");
    assert!(folder.run("graph info g").ok().stdout.contains("8 (1 self-loops)"));
}

#[test]
fn inputs_that_are_no_graph_are_refused_by_name() {
    let folder = Folder::new();
    folder.write("empty.txt", "# nothing\n");
    let line = refused(folder.run("graph import empty.txt --name g"));
    assert!(line.starts_with("empty.txt: no edges"), "{line}");
    let line = refused(folder.run("graph import missing.txt --name g"));
    assert!(line.starts_with("missing.txt: cannot ") && line.contains("No such file"), "{line}");
    folder.write("short.txt.gz", [0x1f, 0x8b, 8, 0, 0]);
    let line = refused(folder.run("graph import short.txt.gz --name g"));
    assert!(line.starts_with("short.txt.gz: "), "{line}");
    let line = refused(folder.run("graph import - --name bad/name").stdin(EDGES));
    assert!(line.starts_with("bad name \"bad/name\""), "{line}");
}

#[test]
fn a_graph_or_vertex_that_is_not_there_is_named() {
    let folder = Folder::with_graph("g", EDGES);
    for words in ["pagerank web", "bfs web --source 1", "info web", "export web -o a.csv", "check web a.csv"]
    {
        let line = refused(folder.run(&format!("graph {words}")));
        assert!(line.starts_with("there is no dataset \"web\" in "), "{line}");
    }
    assert_eq!(refused(folder.run("graph bfs g --source 11")), "g has no vertex 11");
}

#[test]
fn shortest_paths_without_weights_or_with_some_below_zero_are_refused() {
    let folder = Folder::with_graph("g", EDGES);
    let line = refused(folder.run("graph sssp g --source 10"));
    assert_eq!(line, "g: expected edges with weights (import --weighted keeps them), got none");
    folder.run("graph import - --name n --weighted").stdin("1 2 0.5\n2 3 -0.25\n").ok();
    let line = refused(folder.run("graph sssp n --source 1"));
    assert_eq!(line, "n: expected weights of 0 or more, got -0.25");
}

#[test]
fn a_budget_too_small_is_refused_with_the_smallest_that_works() {
    let folder = Folder::with_graph("g", EDGES);
    for words in ["pagerank g", "bfs g --source 10", "components g", "generate kronecker --scale 4 --name k"]
    {
        let line = refused(folder.run(&format!("graph {words} --memory 1MiB")));
        assert!(line.contains("smallest budget that works is 8 MiB"), "{line}");
    }
    let line = refused(folder.run("graph import - --name h --memory 1MiB").stdin(EDGES));
    assert!(line.contains("smallest budget that works is 8 MiB"), "{line}");
    for words in
        ["pagerank g", "bfs g --source 10", "components g", "communities g", "clustering g", "betweenness g"]
    {
        folder.run(&format!("graph {words} --memory 8MiB --top 5 -o out.parquet")).ok();
    }
}

/// Returns the budget that an error message names.
fn named(line: &str) -> Option<String> {
    let behind = |mark: &str| line.split_once(mark).map(|(_, rest)| rest.to_string());
    let size = behind("the smallest budget that works is ").or_else(|| {
        let rest = behind(": a budget of ")?;
        Some(rest.split_once(" is enough")?.0.to_string())
    })?;
    Some(size.split_whitespace().take(2).collect())
}

/// Tests that a job succeeds with the budget that its error names, so that a user need not try several budgets.
#[test]
fn each_command_works_in_the_budget_that_its_refusal_names() {
    let folder = Folder::with_graph("g", EDGES);
    folder.write("w.txt", "1 2 0.5\n2 3 0.25\n");
    folder.write("edges.txt", EDGES);
    folder.write("text", "the quick brown fox\n".repeat(500));
    folder.write("x.fa", format!(">x\n{}\n", "ACGTTGCAAC".repeat(50)));
    let rows: String = (0..500).map(|row| format!("{},{},s{}\n", row % 50, row, row % 9)).collect();
    folder.write("t.csv", format!("k,v,s\n{rows}"));
    let needles = |count| (0..count).map(|number| format!("needle {number}\n")).collect::<String>();
    folder.write("needles", needles(100_000));
    folder.write("few", needles(5_000));
    for ready in [
        "graph import w.txt --weighted --name w",
        "graph import edges.txt --reverse --name u",
        "store put text --name text",
        "sort t.csv --key k -o t.parquet",
        "language train en=text --name p",
        "compress text --format gzip -o text.gz",
        "compress text --format bzip2 -o text.bz2",
        "compress text --format zstd -o text.zst",
        "compress text --format lz4 -o text.lz4",
    ] {
        folder.run(&format!("{ready} --memory 256MiB")).ok();
    }
    let mut refused = 0;
    for (number, words) in [
        "graph import edges.txt --name g#",
        "graph generate kronecker --scale 6 --name k#",
        "graph export g -o g#.parquet",
        "graph pagerank g -o ranks#.parquet",
        "graph bfs g --source 10 -o tree#.csv",
        "graph sssp w --source 1 -o paths#.csv",
        "graph components u -o c#.csv",
        "graph betweenness u -o b#.csv",
        "graph communities u -o d#.csv",
        "graph clustering u -o e#.csv",
        "store put text --name x#",
        "store get text -o got#",
        "store get text -o -",
        "store verify",
        "store scrub",
        "store compact",
        "sort text -o sorted#",
        "sort text --unique -o unique#",
        "sort text.lz4 -o unpacked#",
        "sort text.bz2 -o unpacked2#",
        "sort t.csv --key k -o t#.csv",
        "sort t.csv --key k -o t#.parquet",
        "sort t.parquet --key s -o s#.arrow",
        "reduce t.csv --by k --sum v -o sums#.parquet",
        "reduce t.csv --by s --count -o counts#.parquet",
        "reduce t.parquet --by s,k --max v -o maxima#.csv",
        "count values t.csv --column k -o values#.csv",
        "count kmers x.fa -k 5 -o mers#.parquet",
        "count kmers x.fa -k 41 -o longmers#.csv",
        "count words text --top 3",
        "count words text -o words#.parquet",
        "count words text.gz --split -o words#.csv",
        "search fox text",
        "search -c fox store:text",
        "search -z fox text.gz",
        "search -z fox text.bz2",
        "search -z fox text.zst",
        "search -z fox text.lz4",
        "search -U fox text",
        "search -r cat fox text",
        "search -F -f needles -v text",
        "search -i -F -f few -v text",
        "search -v (\\w{1,200}\\d){3,6}x text",
        "sql SELECT(1) -o one#.csv",
        "compress text --format gzip -o packed#.gz",
        "compress text --format bzip2 -o packed#.bz2",
        "compress text --format zstd -o packed#.zst",
        "compress text --format zstd --level 9 -o better#.zst",
        "compress text --format lz4 -o packed#.lz4",
        "decompress text.gz -o text#.1",
        "decompress text.bz2 -o text#.2",
        "decompress text.zst -o text#.3",
        "decompress text.lz4 -o text#.4",
        "checksum text",
        "language train en=text --name q#",
        "language identify --profiles p text",
    ]
    .into_iter()
    .enumerate()
    {
        let threads = [1, 2, 5][number % 3];
        let run = |memory: &str| {
            let words = words.replace('#', &format!("{number}-{memory}"));
            folder.run(&format!("{words} --threads {threads} --memory {memory} --quiet"))
        };
        let (code, said) = run("1MiB").ends();
        if code == Some(0) {
            continue;
        }
        let size = named(&said.stderr).unwrap_or_else(|| panic!("{words}: {said:?}"));
        refused += 1;
        let (code, said) = run(&size).ends();
        assert_eq!(code, Some(0), "{words} --threads {threads} in {size}: {said:?}");
    }
    assert!(refused > 30, "{refused}");
}

/// Creates a Parquet file of three columns with random values. Each column is one page. The footer has a metadata entry
/// whose value has `footer_bytes` bytes.
fn large_pages(rows: u64, has_dictionary: bool, footer_bytes: usize) -> Vec<u8> {
    let mixed = |row: u64| (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) >> 20;
    let columns: [(&str, ArrayRef); 3] = [
        ("src", Arc::new(UInt64Array::from_iter_values((0..rows).map(mixed)))),
        ("dst", Arc::new(UInt64Array::from_iter_values((0..rows).map(|row| mixed(row * 7))))),
        ("s", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{:x}", mixed(row * 3)))))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let key = KeyValue::new("of another program".to_string(), "x".repeat(footer_bytes));
    let properties = WriterProperties::builder()
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(1 << 30)
        .set_write_batch_size(rows as usize)
        .set_dictionary_page_size_limit(1 << 30)
        .set_dictionary_enabled(has_dictionary)
        .set_key_value_metadata(Some(vec![key]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_page_or_footer_of_parquet_that_is_too_large_is_refused_with_a_budget_that_works() {
    let folder = Folder::new();
    folder.write("plain.parquet", large_pages(500_000, false, 0));
    folder.write("dictionary.parquet", large_pages(300_000, true, 0));
    folder.write("footer.parquet", large_pages(1_000, true, 7 << 20));
    folder.write(
        "groups.sql",
        "SELECT s, count(*), max(src) FROM 'plain.parquet' GROUP BY s ORDER BY s LIMIT 9",
    );
    folder.write("order.sql", "SELECT * FROM 'dictionary.parquet' ORDER BY src, s");
    folder.write("footer.sql", "SELECT count(DISTINCT s) FROM 'footer.parquet'");
    let mut refused = 0;
    for (number, words) in [
        "sort plain.parquet --key src -o sorted#.parquet",
        "sort dictionary.parquet --key s -o sorted#.csv",
        "sort footer.parquet --key s -o sorted#.arrow",
        "reduce plain.parquet --by src --max dst -o groups#.parquet",
        "reduce plain.parquet --by s --count -o groups#.parquet",
        "reduce dictionary.parquet --by s --sum src -o groups#.csv",
        "count values dictionary.parquet --column s -o values#.csv",
        "graph import plain.parquet --name g#",
        "graph import dictionary.parquet --reverse --name g#",
        "sql --file groups.sql -o answer#.csv",
        "sql --file order.sql -o answer#.parquet",
        "sql --file footer.sql -o answer#.csv",
    ]
    .into_iter()
    .enumerate()
    {
        for (threads, memory) in [(1, "24MiB"), (3, "24MiB"), (4, "40MiB")] {
            let run = |memory: &str| {
                let words = words.replace('#', &format!("{number}-{threads}-{memory}"));
                folder.run(&format!("{words} --threads {threads} --memory {memory} --quiet"))
            };
            let (code, said) = run(memory).ends();
            if code == Some(0) {
                continue;
            }
            let size = named(&said.stderr).unwrap_or_else(|| panic!("{words}: {said:?}"));
            refused += usize::from(said.stderr.contains("Parquet"));
            let (code, again) = run(&size).ends();
            assert_eq!(code, Some(0), "{words} --threads {threads} in {size}, after {said:?}: {again:?}");
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn rows_that_are_too_many_for_a_budget_are_refused_before_any_are_read() {
    let folder = Folder::new();
    std::fs::File::create(folder.path("huge")).unwrap().set_len(1 << 40).unwrap();
    let line = refused(folder.run("sort huge -o sorted --memory 8MiB --threads 2"));
    assert!(line.starts_with("sorting 1 TiB of rows cannot work in 8 MiB"), "{line}");
    assert!(named(&line).is_some_and(|size| size.ends_with("GiB")), "{line}");
}

#[test]
fn words_that_are_not_understood_are_usage_errors() {
    let folder = Folder::with_graph("g", EDGES);
    for (words, hint) in [
        ("graph pagerank g --memory lots", "bad size"),
        ("graph pagerank g --threads 0", "--threads"),
        ("graph pagerank g --top 0", "--top"),
        ("graph pagerank", "NAME"),
        ("graph rank g", "rank"),
        ("graph bfs g", "--source"),
        ("graph import a.txt", "--name"),
        ("graph import a.txt --name a --format pdf", "possible values"),
        ("completions tcl", "possible values"),
    ] {
        let said = folder.run(words).exits(2);
        assert!(said.stderr.starts_with("error: ") && said.stderr.contains(hint), "{words}: {said:?}");
        assert_eq!(said.stdout, "");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let folder = Folder::with_graph("g", EDGES);
    let line = refused(folder.run("graph pagerank g -o ranks.pdf"));
    assert!(line.contains("ranks.pdf") && line.contains("pdf"), "{line}");
    let line = refused(folder.run("graph pagerank g -o nowhere/ranks.csv"));
    assert!(line.starts_with("nowhere/ranks.csv: cannot open its folder"), "{line}");
    let line = refused(folder.run("graph pagerank g -o - --top 3"));
    assert!(line.contains("standard output"), "{line}");
    let line = refused(folder.run("graph pagerank g -o - --json"));
    assert!(line.contains("standard output"), "{line}");
}

#[test]
fn a_folder_of_other_things_is_no_store() {
    let folder = Folder::new();
    folder.write("thesis.tex", "");
    let line = refused(folder.run("graph ls --store ."));
    assert!(line.contains("is not an Inshore store"), "{line}");
}

#[test]
fn without_a_place_for_the_store_the_ways_to_name_one_are_told() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_inshore")).args(["graph", "ls"]).env_clear().output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--store") && stderr.contains("INSHORE_STORE"), "{stderr}");
}

#[test]
fn damage_on_flash_is_an_error_that_names_the_graph_and_not_an_answer() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 10 --name k").ok();
    let path = folder.path("store/segment-00000000");
    let mut bytes = fs::read(&path).unwrap();
    // The headers, the superblock and the log are in the first six extents. In each later extent, one bit is flipped.
    for extent in bytes.chunks_mut(2 << 20).skip(6).filter(|extent| extent.len() > 100) {
        extent[100] ^= 1;
    }
    fs::write(&path, bytes).unwrap();
    let line = refused(folder.run("graph pagerank k --top 3"));
    assert!(line.starts_with("k/out.index: damaged at offset 0"), "{line}");
    folder.run("graph rm k").ok();
    assert_eq!(folder.graphs(), [""; 0]);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_quietly() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 15 --name k").ok();
    for words in ["graph pagerank k --iterations 1 -o -", "graph pagerank k --iterations 1 --top 30000"] {
        let mut child = folder.run(words).spawn();
        let mut first = [0; 6];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"vertex");
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!stderr.contains("inshore:") && !stderr.contains("panicked"), "{words}: {stderr}");
    }
}
