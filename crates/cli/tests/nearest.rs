//! Tests of `inshore nearest` on the command line.

use std::{fs::File, io::Write, sync::Arc};

use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, types::Float32Type};
use parquet::arrow::ArrowWriter;

use crate::{nodes::cluster, util::Folder};

/// Returns the bytes of an .fbin file: the number of vectors, the number of dimensions, and the elements.
fn floats(rows: &[[f32; 2]]) -> Vec<u8> {
    let head = [(rows.len() as u32).to_le_bytes(), 2u32.to_le_bytes()].concat();
    head.into_iter().chain(rows.iter().flatten().flat_map(|x| x.to_le_bytes())).collect()
}

const POINTS: [[f32; 2]; 5] = [[0.0, 0.0], [3.0, 4.0], [1.0, 0.0], [1.0, 0.0], [-6.0, 8.0]];

fn with_points() -> Folder {
    let folder = Folder::new();
    folder.write("points.fbin", floats(&POINTS));
    folder.write("queries.fbin", floats(&[[0.0, 0.0], [1.0, 0.0]]));
    let said = folder.run("nearest import points.fbin --name points").ok();
    assert!(said.stdout.starts_with("points: 5 vectors of 2 f32, "), "{said:?}");
    folder
}

#[test]
fn the_nearest_vectors_come_as_csv_parquet_arrow_and_json() {
    let folder = with_points();
    let said = folder.run("nearest query points queries.fbin -k 3").ok();
    let expected =
        "query,rank,id,distance\n0,1,0,0.0\n0,2,2,1.0\n0,3,3,1.0\n1,1,2,0.0\n1,2,3,0.0\n1,3,0,1.0\n";
    assert_eq!(said.stdout, expected);
    assert!(
        said.stderr.starts_with("6 neighbours of 2 queries among 5 vectors of 2 f32\n"),
        "{}",
        said.stderr
    );
    folder.run("nearest query points queries.fbin -k 3 -o out.csv --memory 8MiB --threads 1").ok();
    assert_eq!(folder.read("out.csv"), expected);
    for ending in ["parquet", "arrow"] {
        folder.run(&format!("nearest query points queries.fbin -k 3 -o out.{ending}")).ok();
        let query = format!("SELECT * FROM 'out.{ending}' ORDER BY query, rank");
        folder.write("query.sql", query);
        assert_eq!(folder.run("sql --file query.sql").ok().stdout, expected, "{ending}");
    }
    let said = folder.run("nearest query points queries.fbin -k 9 --metric ip --json").ok().json();
    assert_eq!((&said["command"], &said["summary"]["rows"]), (&"nearest query".into(), &10.into()));
    assert_eq!(said["summary"]["plan"]["passes"], 1);
    let said = folder.run("nearest query points queries.fbin --explain --metric cosine -o -").ok();
    assert!(said.stderr.contains("1 pass over 40 bytes"), "{}", said.stderr);
    // The cosine distance of [-6, 8] and [1, 0] is 1 - (-0.6). A zero vector has the distance 1.
    assert!(
        said.stdout.contains("\n1,5,4,1.6\n") && said.stdout.contains("\n0,1,0,1.0\n"),
        "{}",
        said.stdout
    );
    let said = folder.run("nearest query points queries.fbin --radius 0.5").ok();
    assert_eq!(said.stdout, "query,rank,id,distance\n0,1,0,0.0\n1,1,2,0.0\n1,2,3,0.0\n");
}

#[test]
fn an_index_answers_with_a_recall_and_without_one_the_answer_is_exact() {
    let folder = with_points();
    let exact = folder.run("nearest query points queries.fbin -k 3").ok().stdout;
    folder.write("one.fbin", floats(&POINTS[..1]));
    let said = folder.run("nearest import one.fbin --name one").ok();
    assert!(said.stdout.starts_with("one: 1 vector of 2 f32, "), "{said:?}");
    let said = folder.run("nearest query points queries.fbin -k 3 --recall 0.9").ok();
    assert_eq!(said.stdout, exact);
    assert!(said.stderr.contains("note: points has no index, so the answer is exact"), "{}", said.stderr);
    let said = folder.run("nearest query points queries.fbin --probes 2").exits(2);
    assert!(said.stderr.contains("points has no index: build one"), "{}", said.stderr);
    let said = folder.run("nearest recall points queries.fbin").exits(2);
    assert!(said.stderr.contains("points has no index: build one"), "{}", said.stderr);

    let said = folder.run("nearest index points --lists 2 --memory 32MiB --explain").ok();
    assert!(said.stdout.starts_with("index of points for l2: 5 vectors in 2 lists of 1 group, "), "{said:?}");
    assert!(said.stderr.contains("plan: index: 2 lists in 1 groups"), "{}", said.stderr);
    for strategy in ["single", "batch"] {
        let said = folder
            .run(&format!("nearest query points queries.fbin -k 3 --recall 1 --strategy {strategy}"))
            .ok();
        assert_eq!(said.stdout, exact);
        let recall = format!("recall at 10 about 1.000 (2 of 2 lists each, {strategy})");
        assert!(said.stderr.contains(&recall), "{}", said.stderr);
    }
    let said = folder.run("nearest query points queries.fbin --recall 0.9 --json").ok().json();
    assert_eq!((&said["summary"]["queries"], &said["summary"]["lists"]), (&2.into(), &2.into()));
    let said = folder.run("nearest recall points queries.fbin -k 2 --json").ok().json();
    assert_eq!((&said["summary"]["k"], &said["summary"]["measured_on"]), (&2.into(), &"queries".into()));
    for (options, error) in [
        ("--recall 0.9 --metric ip", "expected l2, for which the index of points was built"),
        ("--recall 0", "expected above 0, and at most 1"),
        ("--recall 0.9 --probes 3", "cannot be used with"),
        ("--exact --recall 0.9", "cannot be used with"),
        ("--strategy batch", "strategy: found without recall or probes"),
    ] {
        let said = folder.run(&format!("nearest query points queries.fbin {options}")).exits(2);
        assert!(said.stderr.contains(error), "{options}: {}", said.stderr);
    }
    // If the vectors were replaced, their old index is refused, and a new index can be built.
    folder.run("store rm points").ok();
    folder.run("nearest import points.fbin --name points").ok();
    let said = folder.run("nearest query points queries.fbin --recall 0.9").exits(2);
    assert!(said.stderr.contains("an index of other vectors that were called points"), "{}", said.stderr);
    folder.run("nearest index points").ok();
    folder.run("nearest query points queries.fbin --recall 0.9").ok();
}

#[test]
fn an_index_with_codes_answers_single_queries_from_codes() {
    let folder = Folder::new();
    // A thousand vectors of 64 dimensions around ten centers.
    let value = |row: u32, place: u32| {
        let center = (row % 10 * 64 + place).wrapping_mul(2_654_435_761) >> 24;
        let noise = (row * 64 + place).wrapping_mul(2_246_822_519) >> 27;
        (center + noise) as f32
    };
    let mut bytes = [1000u32.to_le_bytes(), 64u32.to_le_bytes()].concat();
    bytes.extend((0..1000).flat_map(|row| (0..64).flat_map(move |place| value(row, place).to_le_bytes())));
    folder.write("base.fbin", bytes);
    folder.run("nearest import base.fbin --name base").ok();
    let said = folder.run("nearest index base --codes 2 --lists 20 --memory 32MiB --explain").ok();
    assert!(said.stdout.contains("; by codes of 2 bits ("), "{}", said.stdout);
    let described = folder.run("nearest info base").ok().stdout;
    assert!(described.contains("    codes          2 bits for each dimension, "), "{described}");
    let said = folder.run("nearest info base --json").ok().json();
    assert_eq!(said["summary"]["index"]["codes"]["bits"], 2);
    let exact = folder.run("nearest query base base.fbin -k 3 --exact").ok().stdout;
    let words = "nearest query base base.fbin -k 3 --probes 5 --strategy single --explain --memory 32MiB";
    let said = folder.run(words).ok();
    assert!(said.stderr.contains(", codes in memory, "), "{}", said.stderr);
    let same = said.stdout.lines().zip(exact.lines()).filter(|(found, exact)| found == exact).count();
    assert!(same > 2850, "{same} of 3000 neighbours");
    for (words, error) in [
        ("--codes 3", "expected 1, 2 or 4 bits for each dimension"),
        ("--codes 1 --copies 4", "cannot be used with"),
        ("--codes 1 --lsh", "cannot be used with"),
    ] {
        let said = folder.run(&format!("nearest index base {words}")).exits(2);
        assert!(said.stderr.contains(error), "{words}: {}", said.stderr);
    }
}

#[test]
fn datasets_are_joined_with_each_other_and_with_themselves() {
    let folder = with_points();
    folder.run("nearest import queries.fbin --name queries").ok();
    let of_file = folder.run("nearest query points queries.fbin -k 3").ok().stdout;
    let said = folder.run("nearest join queries points -k 3").ok();
    assert_eq!(said.stdout, of_file);
    let wanted = "6 neighbours of 2 queries among 5 vectors of 2 f32\n";
    assert!(said.stderr.starts_with(wanted), "{}", said.stderr);
    let said = folder.run("nearest graph points -k 1 -o graph.csv --explain --memory 8MiB").ok();
    // Vectors 2 and 3 are equal, and each is the neighbour of the other.
    let expected =
        "query,rank,id,distance\n0,1,2,1.0\n1,1,2,4.472136\n2,1,3,0.0\n3,1,2,0.0\n4,1,1,9.848858\n";
    assert_eq!(folder.read("graph.csv"), expected);
    assert!(said.stderr.contains("1 pass over 40 bytes"), "{}", said.stderr);
    let said = folder.run("nearest graph points -k 1 --recall 0.9").ok();
    assert_eq!(said.stdout, expected);
    assert!(said.stderr.contains("note: points has no index, so the answer is exact"), "{}", said.stderr);
    folder.run("nearest index points --lists 2 --memory 32MiB").ok();
    for strategy in ["single", "batch"] {
        let words = format!("nearest graph points -k 1 --recall 1 --strategy {strategy}");
        assert_eq!(folder.run(&words).ok().stdout, expected);
    }
    folder.write("wide.u8bin", [1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
    folder.run("nearest import wide.u8bin --name wide").ok();
    for (words, wanted) in [
        (
            "nearest join wide points",
            "wide: vector 0: found 3 dimensions, expected 2, as the vectors of points",
        ),
        ("nearest join none points", "none"),
        ("nearest join queries none", "none"),
        ("nearest graph points --metric jaccard", "metric is jaccard"),
        ("nearest graph points --strategy batch", "strategy: found without recall or probes"),
        ("nearest graph points --exact --recall 0.9", "cannot be used with"),
        ("nearest graph points -o out.txt", "out.txt"),
        ("nearest graph points --memory 100KiB", "budget"),
    ] {
        let said = folder.run(words).exits(2);
        assert!(said.stderr.contains(wanted), "{words}: {}", said.stderr);
    }
}

#[test]
fn near_duplicates_are_pairs_or_groups() {
    let folder = with_points();
    let said = folder.run("nearest dedup points --radius 4.5 --explain").ok();
    let expected = "id,duplicate,distance\n0,2,1.0\n0,3,1.0\n1,2,4.472136\n1,3,4.472136\n2,3,0.0\n";
    assert_eq!(said.stdout, expected);
    let wanted = "5 pairs of near-duplicates among 5 vectors of 2 f32\n";
    assert!(said.stderr.contains(wanted) && said.stderr.contains("1 pass over 40 bytes"), "{}", said.stderr);
    let said = folder.run("nearest dedup points --radius 1 --groups").ok();
    assert_eq!(said.stdout, "id,group\n0,0\n2,0\n3,0\n");
    let wanted = "3 vectors in 1 group of near-duplicates among 5 vectors";
    assert!(said.stderr.starts_with(wanted), "{}", said.stderr);
    folder.run("nearest dedup points --cosine 0.9 -o out.csv --memory 8MiB --threads 1").ok();
    assert_eq!(folder.read("out.csv"), "id,duplicate,distance\n2,3,0.0\n");
    folder.run("nearest dedup points --metric ip --radius 14 -o out.csv").ok();
    assert_eq!(folder.read("out.csv"), "id,duplicate,distance\n1,4,14.0\n");
    let said = folder.run("nearest dedup points --radius 4.5 --recall 0.9 --json").ok().json();
    assert_eq!((&said["summary"]["rows"], &said["summary"]["plan"]["passes"]), (&5.into(), &1.into()));
    let said = folder.run("nearest dedup points --radius 4.5 --probes 2").exits(2);
    assert!(said.stderr.contains("points has no index: build one"), "{}", said.stderr);
    folder.run("nearest index points --lists 2 --memory 32MiB").ok();
    let said = folder.run("nearest dedup points --radius 4.5 --recall 1").ok();
    assert_eq!(said.stdout, expected);
    assert!(said.stderr.contains("approximate (2 of 2 lists each)"), "{}", said.stderr);
    for (options, wanted) in [
        ("", "<--cosine <S>|--radius <R>>"),
        ("--cosine 0.9 --radius 1", "cannot be used with"),
        ("--cosine 0.9 --metric cosine", "cannot be used with"),
        ("--cosine 97", "cosine: found 97, expected -1 to 1"),
        ("--radius -1", "radius is -1: expected a distance, at least 0"),
        ("--cosine 0.9 --recall 0.9", "expected l2, for which the index of points was built"),
        ("--radius 1 --recall 2", "recall is 2"),
        ("--radius 1 -o out.txt", "out.txt"),
        ("--radius 1 --memory 100KiB", "budget"),
    ] {
        let said = folder.run(&format!("nearest dedup points {options}")).exits(2);
        assert!(said.stderr.contains(wanted), "{options}: {}", said.stderr);
    }
}

#[test]
fn vectors_and_their_index_are_listed_described_and_removed() {
    let folder = with_points();
    let said = folder.run("nearest info points").ok().stdout;
    assert!(said.starts_with("points\n  vectors          5\n  dimensions       2\n"), "{said}");
    assert!(
        said.contains("\n  element type     f32\n") && said.ends_with("\n  index            none\n"),
        "{said}"
    );
    folder.run("nearest index points --lists 2 --metric ip --memory 32MiB").ok();
    folder.run("nearest import points.fbin --name more").ok();
    let said = folder.run("nearest ls").ok().stdout;
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["name", "vectors", "dimensions", "elements"]);
    assert_eq!((&lines[1][..4], lines[1].last()), (&["more", "5", "2", "f32"][..], Some(&"none")), "{said}");
    assert_eq!((&lines[2][..4], lines[2].last()), (&["points", "5", "2", "f32"][..], Some(&"ip")), "{said}");
    let json = folder.run("nearest ls --json").ok().json();
    assert_eq!((&json[0]["name"], &json[1]["index"]["lists"]), (&"more".into(), &2.into()));
    let said = folder.run("nearest info points").ok().stdout;
    assert!(said.contains("\n    metric         ip\n    lists          2 in 1 group, "), "{said}");
    // The date of the measurement has the form 2026-01-31. The last line of the table is the recall with all lists.
    let date = said.split_once("    measured       ").unwrap().1;
    assert!(
        date[..10].chars().filter(|c| *c == '-').count() == 2 && date[10..].starts_with(", on "),
        "{said}"
    );
    assert!(said.ends_with("\n    2              1.0000\n"), "{said}");
    let json = folder.run("nearest info points --json").ok().json();
    assert_eq!(
        (&json["command"], &json["summary"]["index"]["metric"]),
        (&"nearest info".into(), &"ip".into())
    );

    folder.run("nearest rm points --index").ok();
    assert!(folder.run("nearest info points").ok().stdout.ends_with("index            none\n"));
    let said = folder.run("nearest rm points --index").exits(2);
    assert!(said.stderr.contains("points has no index to remove"), "{}", said.stderr);
    folder.run("nearest index points").ok();
    let said = folder.run("nearest rm points unknown").exits(2);
    assert!(said.stderr.contains("there is no dataset \"unknown\""), "{}", said.stderr);
    assert!(said.stderr.contains("removed: points"), "{}", said.stderr);
    let listed = folder.run("store ls").ok().stdout;
    assert!(!listed.contains("points") && listed.contains("more"), "{listed}");
    let said = folder.run("nearest info points").exits(2);
    assert!(said.stderr.contains("there is no dataset \"points\""), "{}", said.stderr);
    folder.run("nearest rm more").ok();
    assert!(folder.run("nearest ls").ok().stderr.contains("no vectors in "));
}

#[test]
fn bits_are_compared_by_hamming_and_jaccard() {
    let folder = Folder::new();
    // The three vectors of two bytes are 0000, ff00 and 0f00 in hexadecimal digits.
    folder.write("bits.u8bin", [3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 255, 0, 15, 0]);
    folder.write("queries.u8bin", [1, 0, 0, 0, 2, 0, 0, 0, 7, 0]);
    let said = folder.run("nearest import bits.u8bin --bits --name bits").ok();
    assert!(said.stdout.starts_with("bits: 3 vectors of 16 bits, "), "{said:?}");
    let said = folder.run("nearest query bits queries.u8bin --metric hamming").ok();
    assert_eq!(said.stdout, "query,rank,id,distance\n0,1,2,1.0\n0,2,0,3.0\n0,3,1,5.0\n");
    let said = folder.run("nearest query bits queries.u8bin --metric jaccard -k 2").ok();
    assert_eq!(said.stdout, "query,rank,id,distance\n0,1,2,0.25\n0,2,1,0.625\n");
    let said = folder.run("nearest query bits queries.u8bin").exits(2);
    let wanted = "metric is l2: expected hamming or jaccard for vectors of bits";
    assert!(said.stderr.contains(wanted), "{}", said.stderr);
    let said = folder.run("nearest index bits").exits(2);
    assert!(said.stderr.contains("elements: found bits, expected f32, u8 or i8"), "{}", said.stderr);
    assert!(said.stderr.contains("--lsh --metric hamming` builds hash tables"), "{}", said.stderr);
    folder.write("floats.fbin", floats(&POINTS));
    let said = folder.run("nearest import floats.fbin --bits --name x").exits(2);
    assert!(said.stderr.contains("found f32, expected u8, of eight bits each"), "{}", said.stderr);
}

#[test]
fn vectors_are_a_dataset_like_others() {
    let folder = with_points();
    let said = folder.run("store ls").ok().stdout;
    assert!(said.contains("points  vectors"), "{said}");
    assert!(folder.run("store stat points").ok().stdout.contains("center"));
    folder.run("store verify").ok();
    let said = folder.run("nearest import points.fbin --name points").exits(2);
    assert!(said.stderr.contains("points"), "{}", said.stderr);
    folder.run("store rm points").ok();
    let said = folder.run("nearest query points queries.fbin").exits(2);
    assert!(said.stderr.contains("points"), "{}", said.stderr);
}

/// All vectors are equal, so that the search cannot skip a vector because of its distance.
#[test]
fn vectors_of_sixteen_times_the_budget_are_searched_within_it() {
    let folder = Folder::new();
    let count = 1u32 << 20;
    let mut file = File::create(folder.path("many.u8bin")).unwrap();
    file.write_all(&[count.to_le_bytes(), 128u32.to_le_bytes()].concat()).unwrap();
    file.set_len(8 + u64::from(count) * 128).unwrap();
    folder.write("queries.u8bin", [&2u32.to_le_bytes()[..], &128u32.to_le_bytes(), &[1; 256]].concat());
    let within = |words: &str| {
        let told = folder.run(&format!("{words} --memory 8MiB --json")).ok().json();
        let report = &told["report"];
        assert!(report["memory_reserved_bytes_max"].as_u64().unwrap() <= 8 << 20, "{report}");
        assert!(report["memory_resident_bytes_max"].as_u64().unwrap() <= 72 << 20, "{report}");
    };
    within("nearest import many.u8bin --name many");
    within("nearest query many queries.u8bin -k 3 -o out.csv");
    let distance = "11.313708";
    let rows = |query| format!("{query},1,0,{distance}\n{query},2,1,{distance}\n{query},3,2,{distance}\n");
    assert_eq!(folder.read("out.csv"), format!("query,rank,id,distance\n{}{}", rows(0), rows(1)));
}

/// Writes a table of 400 documents around a circle, of which every second one is in English.
fn write_documents(folder: &Folder) {
    write_some_documents(folder, "docs.parquet", 0..400);
}

/// Writes some of the documents to a file.
fn write_some_documents(folder: &Folder, name: &str, rows: std::ops::Range<i64>) {
    let angle = |row: i64| row as f32 / 400.0 * std::f32::consts::TAU;
    let list = |row: i64| Some(vec![Some(angle(row).cos()), Some(angle(row).sin())]);
    let lang = |row: i64| ["en", "de"][row as usize % 2];
    let columns: [(&str, ArrayRef); 4] = [
        ("doc_id", Arc::new(StringArray::from_iter_values(rows.clone().map(|row| format!("d{row}"))))),
        ("embedding", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows.clone().map(list)))),
        ("lang", Arc::new(StringArray::from_iter_values(rows.clone().map(lang)))),
        ("year", Arc::new(Int64Array::from_iter_values(rows.map(|row| 1990 + row / 10)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(folder.path(name)).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn vectors_of_a_table_are_selected_by_a_predicate_and_answered_with_columns() {
    let folder = Folder::new();
    write_documents(&folder);
    folder.write("queries.fbin", floats(&[[1.0, 0.0], [-1.0, 0.0]]));
    let said = folder.run("nearest import docs.parquet --name docs --id doc_id").ok();
    assert!(said.stdout.starts_with("docs: 400 vectors of 2 f32, "), "{said:?}");
    assert!(said.stdout.trim_end().ends_with("; columns doc_id, lang, year"), "{said:?}");
    let ask = |options: &[&str]| {
        folder.run("nearest query docs queries.fbin -k 2 --memory 64MiB").arguments(options)
    };
    let said = ask(&["--select", "year,lang"]).ok();
    assert_eq!(
        said.stdout.lines().take(2).collect::<Vec<_>>(),
        ["query,rank,id,distance,year,lang", "0,1,d0,0.0,1990,en"]
    );
    // Documents of German from 2015 on have odd numbers from 250 on.
    let german = ["--where", "lang = 'de' AND year >= 2015 -- a comment", "--select", "year"];
    let said = ask(&german).ok();
    let ids: Vec<_> = said.stdout.lines().skip(1).map(|line| line.split(',').nth(2).unwrap()).collect();
    assert_eq!(ids, ["d399", "d397", "d251", "d253"]);
    assert!(
        said.stderr.starts_with("4 neighbours of 2 queries among 75 selected vectors of 2 f32\n"),
        "{said:?}"
    );
    folder.run("nearest index docs --lists 20 --memory 64MiB").ok();
    let exact = said.stdout;
    let said = ask(&[&german[..], &["--recall", "0.95", "--explain"]].concat()).ok();
    assert_eq!(said.stdout, exact);
    assert!(said.stderr.contains("among 75 of 400 vectors"), "{said:?}");
    // Fewer than one of a hundred: an exact answer, and k of k.
    let said = ask(&["--where", "_row IN (7, 300, 20)", "--recall", "0.95"]).ok();
    assert_eq!(said.stdout.lines().count(), 1 + 4);
    assert!(said.stderr.contains("only 3 vectors selected, so the answer is exact"), "{said:?}");
    for (options, wanted) in [
        (["--where", "yeer > 3"], "year"),
        (["--where", "year >"], "not valid SQL"),
        (["--where", "true); DROP TABLE docs"], "inshore: "),
        (["--select", "title"], "doc_id, lang, year, _row"),
    ] {
        let said = ask(&options).exits(2);
        assert!(said.stderr.contains(wanted), "{options:?}: {}", said.stderr);
    }
    folder.write("points.fbin", floats(&POINTS));
    let said = folder.run("nearest add docs points.fbin").exits(2);
    let message =
        "docs: columns: found those of a table, expected none, to add a file of vectors: add a table";
    assert!(said.stderr.contains(message), "{said:?}");
    let said = folder.run("nearest add docs docs.parquet").exits(2);
    assert!(said.stderr.contains("column 'doc_id': found \"d0\", expected an id that no vector"), "{said:?}");
    let said = folder.run("nearest remove docs --ids 399").exits(2);
    assert!(
        said.stderr.contains("ids is \"399\": expected values of the column 'doc_id' of docs"),
        "{said:?}"
    );
    let said = folder.run("nearest import docs.parquet --name more --id lang").exits(2);
    assert!(said.stderr.contains("column 'lang': found \"de\" twice"), "{said:?}");
    let said = folder.run("nearest import points.fbin --name more --column embedding").exits(2);
    assert!(said.stderr.contains("column"), "{said:?}");
    assert!(!folder.run("store ls").ok().stdout.contains("more"));
}

#[test]
fn rows_that_are_added_and_replaced_are_selected_as_imported_ones() {
    let folder = Folder::new();
    write_documents(&folder);
    for (name, rows) in [("base", 0..200), ("more", 200..390), ("new", 380..400)] {
        write_some_documents(&folder, &format!("{name}.parquet"), rows);
    }
    folder.write("queries.fbin", floats(&[[1.0, 0.0], [-1.0, 0.0]]));
    folder.run("nearest import docs.parquet --name whole --id doc_id").ok();
    folder.run("nearest import base.parquet --name docs --id doc_id").ok();
    folder.run("nearest index docs --lists 10 --memory 64MiB").ok();
    let said = folder.run("nearest add docs more.parquet --column embedding --memory 24MiB").ok();
    assert!(said.stdout.starts_with("190 added; docs: 390 vectors of 2 f32, "), "{said:?}");
    let said = folder.run("nearest upsert docs new.parquet --memory 24MiB").ok();
    assert!(said.stdout.starts_with("10 added, 10 replaced; docs: 400 vectors of 2 f32, "), "{said:?}");
    let answers = |name: &str, options: &str| -> Vec<String> {
        let words = ["--select", "year,lang", "--where", "lang = 'de' AND year >= 2015", "--memory", "64MiB"];
        let said =
            folder.run(&format!("nearest query {name} queries.fbin -k 30 {options}")).arguments(&words);
        said.ok().stdout.lines().map(String::from).collect()
    };
    // Two documents at the same distance may change places, since one of them was replaced.
    let sorted = |name: &str, options: &str| {
        let mut rows: Vec<String> =
            answers(name, options).iter().map(|row| row.splitn(3, ',').nth(2).unwrap().to_string()).collect();
        rows.sort();
        rows
    };
    for options in ["", "--probes 10"] {
        assert_eq!(sorted("docs", options), sorted("whole", ""), "{options}");
    }
    folder.run("nearest compact docs --memory 64MiB").ok();
    for options in ["", "--probes 10"] {
        assert_eq!(sorted("docs", options), sorted("whole", ""), "{options}");
    }
    let said = folder.run("nearest upsert docs new.parquet --ids 1,2").exits(2);
    assert!(said.stderr.contains("the column 'doc_id' of the table has the ids"), "{said:?}");
    let said = folder.run("nearest upsert docs queries.fbin").exits(2);
    assert!(
        said.stderr.contains("inputs: found 1, expected a file of vectors and a file of ids"),
        "{said:?}"
    );
    let said = folder.run("nearest add docs queries.fbin --column embedding").exits(2);
    assert!(said.stderr.contains("column: found with another file, expected with a table"), "{said:?}");
    folder.write("gone.txt", "d399\r\nd397\n");
    let said = folder.run("nearest remove docs --ids gone.txt").ok();
    assert!(said.stdout.starts_with("2 removed; docs: 398 vectors"), "{said:?}");
    let rows = answers("docs", "");
    assert!(rows[1].starts_with("0,1,d395,"), "{rows:?}");
    write_some_documents(&folder, "again.parquet", 397..398);
    folder.run("nearest add docs again.parquet").ok();
    let rows = answers("docs", "");
    assert!(rows[1].starts_with("0,1,d397,") && rows[2].starts_with("0,2,d395,"), "{rows:?}");
    folder.run("nearest add docs new.parquet").exits(2);
    folder.run("nearest upsert docs new.parquet").ok();
    assert_eq!(sorted("docs", ""), sorted("whole", ""));
    folder.run("nearest compact docs").ok();
    // The counts of SQL are those of the rows that are left after the compaction.
    let said =
        folder.run("sql").arguments(&["SELECT count(*) FROM 'store:docs/columns.parquet'", "-o", "-"]).ok();
    assert!(said.stdout.contains("400"), "{said:?}");
}

#[test]
fn refusals_name_the_file_and_the_place() {
    let folder = with_points();
    let mut bytes = floats(&POINTS);
    bytes[8 + 3 * 8..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    folder.write("bad.fbin", &bytes);
    folder.write("short.fbin", &bytes[..20]);
    folder.write("ragged.bvecs", [2, 0, 0, 0, 7, 7, 1, 0, 0, 0, 7, 7]);
    for (words, wanted) in [
        (
            "nearest import bad.fbin --name x",
            "bad.fbin: vector 3, dimension 0: found NaN, expected a finite number",
        ),
        ("nearest import short.fbin --name x", "short.fbin: its length: found 20 bytes, expected 48 bytes"),
        (
            "nearest import ragged.bvecs --name x",
            "ragged.bvecs: vector 1, at byte 6: found 1 dimensions, expected 2",
        ),
        ("nearest import none.npy --name x", "none.npy"),
        ("nearest import points.csv --name x", "points.csv: the ending of the name: found .csv"),
        (
            "nearest import points.csv --name x",
            "or .npy for vectors, or .parquet or .arrow for a table; `--images`",
        ),
        ("nearest query points points.csv", "found .csv, expected .fvecs"),
        ("nearest query points table.parquet", "found .parquet, expected .fvecs"),
        ("nearest query points table.parquet", "a column of a table must be written to one of these files"),
        ("nearest add points points.png", "only vectors that were imported from a table take .parquet"),
        (
            "nearest index points --metric hamming",
            "`nearest index --lsh --metric hamming` builds hash tables",
        ),
        ("nearest query points queries.fbin -k -1", "invalid value '-1' for '-k <K>'"),
        ("nearest query points bad.fbin", "bad.fbin: vector 3, dimension 0: found NaN"),
        ("nearest query points queries.fbin --radius -1", "radius is -1: expected a distance, at least 0"),
        ("nearest query points queries.fbin --radius nan", "radius is NaN"),
        ("nearest query points queries.fbin -o out.txt", "out.txt"),
        ("nearest query points queries.fbin -k 0", "0 is not in 1.."),
        ("nearest query points queries.fbin --memory 100KiB", "budget"),
        ("nearest graph points -k 2 --node a.lan", "this command does not run on nodes"),
    ] {
        folder.write("points.csv", "1,2\n");
        folder.write("points.png", "not an image");
        folder.write("table.parquet", "not a table");
        let said = folder.run(words).exits(2);
        assert!(said.stderr.contains(wanted), "{words}: {}", said.stderr);
    }
    assert!(!folder.path("out.txt").exists());
    assert_eq!(folder.run("store ls").ok().stdout.lines().count(), 2, "a header and the points");
}

#[test]
fn a_killed_import_leaves_nothing() {
    let folder = with_points();
    // The file is sparse: it consists of zeros, and takes no space on the drive.
    let count = 1u32 << 23;
    let mut file = File::create(folder.path("many.u8bin")).unwrap();
    file.write_all(&[count.to_le_bytes(), 128u32.to_le_bytes()].concat()).unwrap();
    file.set_len(8 + u64::from(count) * 128).unwrap();
    let mut child = folder.run("nearest import many.u8bin --name many --memory 8MiB --quiet").spawn();
    folder.wait_for_scratch(4 << 20, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = folder.run("store ls").ok().stdout;
    assert!(said.contains("points") && !said.contains("many"), "{said}");
    folder.run("store verify").ok();
    folder.run("nearest import points.fbin --name many").ok();
    assert!(folder.scratch().is_empty());
}

/// Returns a grey PNG whose data is stored without compression.
fn png(width: u32, rows: &[Vec<u8>]) -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8; 4], data: &[u8]| {
        let whole = [&kind[..], data].concat();
        png.extend((data.len() as u32).to_be_bytes());
        png.extend(&whole);
        let mut crc = flate2::Crc::new();
        crc.update(&whole);
        png.extend(crc.sum().to_be_bytes());
    };
    let size = [width.to_be_bytes(), (rows.len() as u32).to_be_bytes()].concat();
    chunk(b"IHDR", &[&size[..], &[8, 0, 0, 0, 0]].concat());
    let mut data = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    rows.iter().for_each(|row| data.write_all(&[&[0], &row[..]].concat()).unwrap());
    chunk(b"IDAT", &data.finish().unwrap());
    chunk(b"IEND", &[]);
    png
}

#[test]
fn images_and_documents_are_imported_and_queried_as_files() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("photos")).unwrap();
    let plain = |grey: u8| png(4, &vec![vec![grey; 4]; 4]);
    folder.write("photos/a.png", plain(10));
    folder.write("photos/b.png", plain(250));
    folder.write("photos/bad.png", &plain(1)[..40]);
    folder.write("query.png", plain(200));
    let said = folder.run("nearest import photos --images --name photos").exits(2);
    assert!(said.stderr.contains("photos/bad.png: the image: found"), "{}", said.stderr);
    let said = folder.run("nearest import photos --images --skip-errors --name photos").ok();
    assert!(said.stdout.starts_with("photos: 2 vectors of 256 f32, "), "{said:?}");
    assert!(said.stderr.contains("1 malformed file was left out: photos/bad.png"), "{}", said.stderr);
    let said = folder.run("nearest query photos query.png -k 1").ok();
    assert_eq!(said.stdout, "query,rank,id,distance\n0,1,1,0.0\n");
    let said = folder.run("nearest query photos query.png -k 2 --select path").ok();
    assert!(said.stdout.contains("\n0,1,1,0.0,photos/b.png\n0,2,0,"), "{}", said.stdout);

    folder.write("lines.txt", "the cat sat\n\nthe dog, the dog\n");
    folder.write("queries.txt", "DOG\nnothing of these\n");
    let said = folder.run("nearest import lines.txt --documents --lines --name lines").ok();
    assert!(said.stdout.starts_with("lines: 3 vectors of 4 u8, "), "{said:?}");
    let before = folder.run("nearest query lines queries.txt --lines -k 3 --metric cosine").ok();
    folder.write("added.txt", "zebras only\n\n");
    let said = folder.run("nearest add lines added.txt --lines").ok();
    assert!(said.stdout.starts_with("2 added (ids 3 to 4); lines: 5 vectors of 4 u8"), "{said:?}");
    let said = folder.run("nearest add lines added.txt").exits(2);
    assert!(
        said.stderr.contains("lines is false: expected true: each document of lines is a line"),
        "{said:?}"
    );
    let said = folder.run("nearest add photos query.png photos/a.png").ok();
    assert!(said.stdout.starts_with("2 added (ids 2 to 3); photos: 4 vectors of 256 f32"), "{said:?}");
    let said = folder.run("nearest query photos query.png -k 2 --select path").ok();
    assert!(said.stdout.ends_with("\n0,1,1,0.0,photos/b.png\n0,2,2,0.0,query.png\n"), "{}", said.stdout);
    let said = folder.run("nearest add photos query.png --lines").exits(2);
    assert!(said.stderr.contains("lines: photos has images, expected documents"), "{said:?}");
    let said = folder.run("nearest add photos query.png --column path").exits(2);
    assert!(said.stderr.contains("column: found with files that are no vectors and no table"), "{said:?}");
    folder.write("many.fbin", floats(&POINTS));
    let said = folder.run("nearest add photos many.fbin").exits(2);
    assert!(said.stderr.contains("photos: columns: found the paths of files"), "{said:?}");
    folder.run("nearest remove lines --ids 4").ok();
    folder.run("nearest compact lines").ok();
    let said = folder.run("nearest query lines queries.txt --lines -k 3 --metric cosine").ok();
    assert_eq!(said.stdout, before.stdout);
    let said = folder.run("nearest query lines queries.txt --lines -k 3 --metric cosine").ok();
    let rows: Vec<&str> = said.stdout.lines().collect();
    // The second line of either file has no words, and all its distances are 1.
    assert_eq!(rows[2..], ["0,2,0,1.0", "0,3,1,1.0", "1,1,0,1.0", "1,2,1,1.0", "1,3,2,1.0"], "{said:?}");
    assert!(rows[1].starts_with("0,1,2,0.29289"), "{said:?}");
    let said = folder.run("nearest query photos query.png --lines").exits(2);
    assert!(said.stderr.contains("the queries are images, expected documents"), "{}", said.stderr);
}

#[test]
fn hash_tables_are_built_asked_and_described() {
    let folder = with_points();
    let rows: Vec<[f32; 2]> = (0..600).map(|n| [(n % 30) as f32, (n / 30) as f32]).collect();
    folder.write("grid.fbin", floats(&rows));
    folder.run("nearest import grid.fbin --name grid").ok();
    let said =
        folder.run("nearest index grid --lsh --tables 4 --bits 5 --seed 3 --memory 32MiB --explain").ok();
    assert!(
        said.stdout.starts_with("hash tables of grid for l2: 600 vectors in 4 tables of 32 buckets"),
        "{said:?}"
    );
    assert!(
        said.stderr.contains("4 tables of 32 buckets, 5 functions each (p-stable projections)"),
        "{said:?}"
    );
    let said = folder.run("nearest info grid").ok();
    for part in [
        "grid.index, hash tables (LSH)",
        "p-stable projections, cells of ",
        "seed 3",
        "buckets probed recall at 10",
    ] {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    assert!(folder.run("nearest ls").ok().stdout.contains("l2, lsh"));
    let said = folder.run("nearest query grid queries.fbin -k 1 --probes 16 --memory 32MiB --explain").ok();
    assert_eq!(said.stdout, "query,rank,id,distance\n0,1,0,0.0\n1,1,1,0.0\n");
    assert!(said.stderr.contains("(16 of 128 buckets each)"), "{}", said.stderr);
    let exact = folder.run("nearest query grid queries.fbin -k 5").ok().stdout;
    let said = folder.run("nearest query grid queries.fbin -k 5 --recall 1").ok();
    assert_eq!(said.stdout, exact);
    let expected = "about 600 of 600 vectors would be candidates of each query (128 of 128 buckets), so the answer is exact";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    let said = folder.run("nearest recall grid queries.fbin -k 2 --memory 32MiB").ok();
    assert!(said.stdout.contains("recall at 2 of 2 queries"), "{said:?}");
    let said = folder.run("nearest dedup grid --radius 1 --probes 4").exits(2);
    assert!(said.stderr.contains("found hash tables, expected inverted lists"), "{}", said.stderr);
    let said = folder.run("nearest index grid --lsh --metric ip").exits(2);
    assert!(said.stderr.contains("there are no hash functions for ip"), "{}", said.stderr);
    folder.run("nearest index grid --lsh --lists 4").exits(2);
    folder.run("nearest index grid --tables 4").exits(2);
    folder.write("more.fbin", floats(&rows[..599]));
    folder.run("nearest add grid more.fbin").ok();
    let said = folder.run("nearest query grid queries.fbin -k 1 --probes 16 --memory 32MiB").ok();
    let expected =
        "599 added after the build of the index), so the answer is exact: `inshore nearest compact grid`";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    let said = folder.run("nearest index grid --lists 4 --memory 32MiB").ok();
    assert!(said.stdout.starts_with("index of grid for l2: 1199 vectors in "), "{said:?}");
}

#[test]
fn vectors_on_nodes_are_searched_as_here_and_each_node_tells_its_work() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    let row = |row: u32| [(row * 7919 % 1000) as f32 / 8.0, (row % 37) as f32];
    folder.write("points.fbin", floats(&(0..50_000).map(row).collect::<Vec<_>>()));
    folder.write("queries.fbin", floats(&(0..60).map(row).collect::<Vec<_>>()));
    folder.run("nearest import points.fbin --name points").ok();
    let said =
        folder.run(&format!("nearest import points.fbin --name points --node {named} --piece 64KiB")).ok();
    assert!(said.stdout.starts_with("points: 50000 vectors of 2 f32, 390.6 KiB"), "{said:?}");
    let here = folder.run("nearest query points queries.fbin -k 20").ok().stdout;
    let query =
        format!("nearest query points queries.fbin -k 20 --node {named} --memory 24MiB --node-memory 24MiB");
    let said = folder.run(&format!("{query} --explain")).ok();
    assert!(said.stdout == here && here.lines().count() == 1201);
    let expected = "1200 neighbours of 60 queries among 50000 vectors of 2 f32 on 3 nodes\n";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    for facts in ["store:points: 390.6 KiB, pieces 7, copies 1, nodes 3", " vectors read, ", " sent here"] {
        assert!(said.stderr.contains(facts), "{facts}: {}", said.stderr);
    }
    folder.run(&format!("{query} -o there.csv")).ok();
    assert!(folder.read("there.csv") == here);

    let said = folder.run(&format!("{query} --recall 0.9")).ok();
    let notice =
        "points has no index, so the answer is exact: `inshore nearest index points --node ...` builds one";
    assert!(said.stdout == here && said.stderr.contains(notice), "{}", said.stderr);
    let said = folder.run(&format!("{query} --probes 3")).exits(2);
    assert!(said.stderr.contains("points has no index"), "{}", said.stderr);
    let index = format!("nearest index points --lists 40 --node {named} --memory 32MiB --node-memory 24MiB");
    let said = folder.run(&index).ok();
    assert!(said.stdout.starts_with("points: an index of 50000 vectors by l2, "), "{said:?}");
    let said = folder.run(&format!("{query} --recall 0.9 --explain")).ok();
    assert!(
        said.stderr.contains(" lists each)") && said.stderr.contains(" parts of lists read, "),
        "{}",
        said.stderr
    );
    assert_eq!(said.stdout.lines().count(), 1201);
    let said = folder.run(&format!("{query} --probes 100")).ok();
    assert!(said.stdout == here, "{}", said.stderr);

    let said = folder.run(&format!("nearest ls --node {named}")).ok();
    assert!(said.stdout.contains("points    50000           2  f32       390.6 KiB  l2"), "{said:?}");
    let said = folder.run(&format!("nearest info points --node {named}")).ok();
    for part in
        ["  shards           7, each on 1 of the nodes\n", "    metric         l2\n", " recall at 10\n"]
    {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    let said = folder.run(&format!("nearest info points --node {named} --json")).ok();
    assert!(said.stdout.contains("\"stored_on\""), "{said:?}");

    let said = folder.run(&format!("nearest recall points queries.fbin -k 5 --node {named}")).ok();
    assert!(said.stdout.starts_with("recall at 5 of 60 queries: "), "{said:?}");

    for (command, why) in [
        (
            "nearest query points queries.fbin --where a=1",
            "columns: found none, expected vectors that were imported from Parquet or Arrow",
        ),
        ("nearest index points --copies 2", "--copies does not work with --node: lists of vectors on nodes"),
        ("nearest index points --codes 1", "--codes does not work with --node: lists of vectors on nodes"),
        ("nearest recall points queries.fbin --lines", "--lines does not work with --node: "),
        ("nearest compact points", "this command does not run on nodes: "),
        ("nearest add points queries.fbin", "nearest import, index, query, recall, ls, info and rm"),
    ] {
        let said = folder.run(&format!("{command} --node {named}")).exits(2);
        assert!(said.stderr.contains(why), "{}", said.stderr);
    }
    let said = folder.run("nearest import points.fbin --name more --copies 2").exits(2);
    assert!(said.stderr.contains("--copies needs --node: a local store has vectors once"), "{}", said.stderr);
    folder.run(&format!("nearest rm points --index --node {named}")).ok();
    let said = folder.run(&format!("nearest rm points --index --node {named}")).exits(2);
    assert!(said.stderr.contains("points has no index"), "{}", said.stderr);
    folder.run(&format!("nearest rm points --node {named}")).ok();
    let said = folder.run(&format!("nearest ls --node {named}")).ok();
    assert!(said.stdout.is_empty() && said.stderr.contains("no vectors on these nodes"), "{said:?}");
}

#[test]
fn a_table_on_nodes_is_selected_by_a_predicate_and_answered_with_ids_and_columns_as_here() {
    let folder = Folder::new();
    let (_nodes, named) = cluster(&folder, 3);
    write_documents(&folder);
    folder.write("queries.fbin", floats(&[[1.0, 0.0], [-1.0, 0.0]]));
    let import = "nearest import docs.parquet --name docs --id doc_id";
    folder.run(import).ok();
    let said = folder.run(&format!("{import} --node {named} --copies 2 --memory 32MiB")).ok();
    assert!(said.stdout.starts_with("docs: 400 vectors of 2 f32, 3.1 KiB"), "{said:?}");
    assert!(said.stdout.trim_end().ends_with("; columns doc_id, lang, year"), "{said:?}");
    let query = "nearest query docs queries.fbin -k 3";
    let there = format!("{query} --node {named} --memory 24MiB");
    let german = ["--where", "lang = 'de' AND year >= 2015", "--select", "year,lang"];
    for options in [&[][..], &german[2..], &german[..], &["--radius", "0.01"], &["--where", "year < 0"]] {
        let here = folder.run(query).arguments(options).ok();
        let said = folder.run(&there).arguments(options).ok();
        assert!(said.stdout == here.stdout, "{options:?}: {said:?}, {here:?}");
        let counted = if options.contains(&"--where") {
            " of 400 vectors of 2 f32 on "
        } else {
            " among 400 vectors of"
        };
        assert!(said.stderr.contains(counted), "{options:?}: {said:?}");
    }
    folder.run(&format!("nearest index docs --lists 20 --node {named} --memory 32MiB")).ok();
    let exact = folder.run(&there).arguments(&german).ok().stdout;
    let said = folder.run(&there).arguments(&[&german[..], &["--recall", "0.95"]].concat()).ok();
    assert!(
        said.stdout == exact && said.stderr.contains(" among 75 of 400 vectors of 2 f32 on "),
        "{said:?}"
    );
    let said = folder.run(&there).arguments(&["--where", "_row IN (7, 300, 20)", "--recall", "0.95"]).ok();
    assert_eq!(said.stdout.lines().count(), 1 + 6);
    assert!(said.stderr.contains("only 3 vectors selected, so the answer is exact"), "{said:?}");
    for (options, wanted) in [
        (["--where", "yeer > 3"], "year"),
        (["--where", "year >"], "not valid SQL"),
        (["--where", "true); DROP TABLE docs"], "inshore: "),
        (["--select", "title"], "doc_id, lang, year, _row"),
    ] {
        let said = folder.run(&there).arguments(&options).exits(2);
        assert!(said.stderr.contains(wanted), "{options:?}: {}", said.stderr);
    }
    let said = folder.run(&format!("{import} --node {named}")).exits(2);
    assert!(said.stderr.contains("store:docs: the nodes have a dataset of this name"), "{}", said.stderr);
    let said =
        folder.run(&format!("nearest import docs.parquet --name more --id lang --node {named}")).exits(2);
    assert!(said.stderr.contains("column 'lang': found \"de\" twice"), "{said:?}");
    folder.run(&format!("nearest rm docs --node {named}")).ok();
    let said = folder.run(&format!("store ls --node {named}")).ok();
    assert!(!said.stdout.contains("docs") && !said.stdout.contains("more"), "{said:?}");
}
