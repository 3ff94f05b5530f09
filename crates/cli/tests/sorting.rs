//! Tests of `sort`, `reduce` and `count` on the command line. Other crates test the results in detail.

use std::{fs, process::Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::util::Folder;

/// Returns `count` unsorted lines. With a count of 400,000, the lines do not fit in 8 MiB of memory.
fn lines(count: u64) -> String {
    let mut text = String::new();
    for i in 0..count {
        let number = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text += &format!("{:x} and the rest of line {i}\n", number >> (number % 40));
    }
    text
}

#[test]
fn lines_are_sorted_as_sort_does_it() {
    let folder = Folder::new();
    folder.write("in.txt", lines(400_000));
    let said = folder.run("sort in.txt -o out.txt --memory 8MiB --explain").ok();
    assert!(said.stderr.contains("400000 lines") && said.stderr.contains("merge passes"), "{}", said.stderr);
    let status = Command::new("sort")
        .env("LC_ALL", "C")
        .args(["-o", "expected.txt", "in.txt"])
        .current_dir(folder.path("."))
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: no sort to compare with");
        return;
    }
    assert!(folder.read("out.txt") == folder.read("expected.txt"));
    let said = folder.run("sort - -o - --reverse --memory 8MiB --quiet").stdin(folder.read("in.txt")).ok();
    let mut expected: Vec<String> = folder.read("expected.txt").lines().map(str::to_string).collect();
    expected.reverse();
    assert!(said.stdout.lines().eq(expected.iter().map(String::as_str)));
    assert_eq!(said.stderr, "");
    assert!(folder.scratch().is_empty());
}

#[test]
fn records_and_tables_are_sorted_by_what_is_named() {
    let folder = Folder::new();
    folder.write("in.bin", "b2a1c3a0");
    folder.run("sort in.bin --record 2 --key-bytes 0..1 -o out.bin").ok();
    assert_eq!(folder.read("out.bin"), "a1a0b2c3");
    folder.run("sort in.bin --record 2 --key-bytes 0..1 --unique --reverse -o out.bin").ok();
    assert_eq!(folder.read("out.bin"), "c3b2a1");
    folder.write("in.csv", "name,price\npear,3\nfig,10\nlime,\nkiwi,3\n");
    folder.run("sort in.csv --key price:desc,name -o out.csv").ok();
    assert_eq!(folder.read("out.csv"), "name,price\nfig,10\nkiwi,3\npear,3\nlime,\n");
    let said = folder.run("sort in.csv --key cost -o none.csv").exits(2);
    assert!(said.stderr.contains("in.csv: no column 'cost'"), "{}", said.stderr);
    let said = folder.run("sort in.bin --record 2 --key-bytes 1..3 -o none.bin").exits(2);
    assert!(said.stderr.contains("--key-bytes 1..3 reaches beyond the 2 bytes"), "{}", said.stderr);
    let said = folder.run("sort in.bin --record 3 -o none.bin").exits(2);
    assert!(said.stderr.contains("not a multiple of the record size 3"), "{}", said.stderr);
    folder.write("t.parquet", "not read");
    let said = folder.run("sort t.parquet -o none.txt").exits(2);
    assert!(said.stderr.contains("give them with --key"), "{}", said.stderr);
    assert!(!folder.path("none.csv").exists() && !folder.path("none.bin").exists());
}

#[test]
fn a_first_line_that_may_be_a_row_is_taken_for_what_header_says() {
    let folder = Folder::new();
    folder.write("n.csv", "1,2\n3,4\n");
    for words in
        ["reduce n.csv --count -o -", "sort n.csv --key 1 -o -", "count values n.csv --column 1 -o -"]
    {
        let said = folder.run(words).exits(2);
        assert!(said.stderr.contains("n.csv:1: expected the names of columns"), "{}", said.stderr);
        assert!(said.stderr.contains("--header no"), "{}", said.stderr);
    }
    assert_eq!(folder.run("reduce n.csv --count --header no -o -").ok().stdout, "count\n2\n");
    assert_eq!(folder.run("reduce n.csv --count --header yes -o -").ok().stdout, "count\n1\n");
    let said = folder.run("sort n.csv --key column_2:desc --header no -o -").ok();
    assert_eq!(said.stdout, "column_1,column_2\n3,4\n1,2\n");
    assert!(said.stderr.contains("2 rows"), "{}", said.stderr);
    let said = folder.run("sql --table n=n.csv --header no --file q.sql");
    folder.write("q.sql", "SELECT sum(column_1) AS s FROM n");
    let said = said.ok();
    assert_eq!(said.stdout, "s\n4\n");
    assert!(said.stderr.contains("1 row") && !said.stderr.contains("1 rows"), "{}", said.stderr);
}

#[test]
fn rows_that_contradict_the_first_ones_are_read_again_from_files_and_told_of_standard_input() {
    let folder = Folder::new();
    let rows: String = (0..30_000).map(|row| format!("{row}\n")).collect();
    folder.write("late.csv", format!("a\n{rows}0.5\n"));
    let said = folder.run("reduce - --max a -o -").stdin(folder.read("late.csv")).exits(2);
    assert!(said.stderr.contains("standard input:30002: expected a whole number"), "{}", said.stderr);
    assert!(said.stderr.contains("--text a"), "{}", said.stderr);
    assert_eq!(folder.run("reduce late.csv --min a --count -o -").ok().stdout, "count,min_a\n30001,0.0\n");
    // The query has to start again, and then writes the output file again from the beginning.
    folder.write("q.sql", "SELECT a FROM 'late.csv'");
    folder.run("sql --file q.sql -o out.csv").ok();
    assert_eq!(folder.read("out.csv").lines().count(), 30_002);
    assert!(folder.read("out.csv").contains("\n0.5\n"));
    let said = folder.run("sql --file q.sql").exits(2);
    assert!(said.stderr.contains("late.csv:30002"), "{}", said.stderr);
}

#[test]
fn a_budget_too_small_is_refused_with_one_that_works() {
    let folder = Folder::new();
    folder.write("in.csv", "a,b\n1,2\n");
    folder.write("in.fa", ">x\nACGTACGT\n");
    for words in [
        "sort in.csv -o out.csv --threads 2",
        "sort in.csv --key a -o out.csv --threads 2",
        "reduce in.csv --by a --sum b -o out.csv --threads 2",
        "reduce in.csv --by a --first b -o out.csv --threads 2",
        "count kmers in.fa -k 3 -o out.csv --threads 2",
    ] {
        let said = folder.run(&format!("{words} --memory 1MiB")).exits(2).stderr;
        let smallest = said.trim().rsplit_once("the smallest budget that works is ").expect(&said).1;
        folder.run(&format!("{words} --memory {}", smallest.replace(' ', ""))).ok();
    }
}

#[test]
fn groups_are_computed_and_told() {
    let folder = Folder::new();
    folder.write("in.csv", "shop,price,when\na,1,5\nb,2,4\na,3,1\n,4,9\n");
    folder
        .run("reduce in.csv --by shop --count --sum price --mean price --min when --first when -o out.csv")
        .ok();
    let expected =
        "shop,count,sum_price,mean_price,min_when,first_when\na,2,4,2.0,1,5\nb,1,2,2.0,4,4\n,1,4,4.0,9,9\n";
    assert_eq!(folder.read("out.csv"), expected);
    let said = folder.run("reduce in.csv --count --max price -o - --quiet").ok();
    assert_eq!(said.stdout, "count,max_price\n4,4\n");
    let json = folder.run("reduce in.csv --by price --count -o out.parquet --json").ok().json();
    assert_eq!(
        (json["summary"]["groups"].as_u64(), json["summary"]["way"].as_str()),
        (Some(4), Some("numbers"))
    );
    folder.run("count values in.csv --column shop -o values.csv").ok();
    assert_eq!(folder.read("values.csv"), "shop,count\na,2\nb,1\n,1\n");
    let said = folder.run("reduce in.csv --by shop --sum shop -o none.csv").exits(2);
    assert!(said.stderr.contains("column 'shop' has type Utf8, which has no sum"), "{}", said.stderr);
    assert!(folder.run("reduce in.csv -o none.csv").exits(2).stderr.contains("nothing to compute"));
    assert!(!folder.path("none.csv").exists());
}

#[test]
fn kmers_are_counted_on_both_strands() {
    let folder = Folder::new();
    folder.write("in.fa", ">one\nACGTA\nC\n>two\nNNGTA\n");
    let said = folder.run("count kmers in.fa -k 3 -o out.csv --histogram spectrum.csv").ok();
    assert!(
        said.stderr.contains("5 3-mers of 2 sequences, 2 different, 2 written to out.csv"),
        "{}",
        said.stderr
    );
    assert_eq!(folder.read("out.csv"), "kmer,count\nACG,2\nGTA,3\n");
    assert_eq!(folder.read("spectrum.csv"), "count,kmers\n1,0\n2,1\n3,1\n");
    folder.run("count kmers in.fa -k 3 --forward --min-count 2 -o out.csv").ok();
    assert_eq!(folder.read("out.csv"), "kmer,count\nGTA,2\n");
    let said = folder.run("count kmers in.fa -k 64 -o out.csv").exits(2);
    assert!(said.stderr.contains("64 is not in 1..=63"), "{}", said.stderr);
    folder.write("no.fa", "ACGT\n");
    assert!(folder.run("count kmers no.fa -o none.csv").exits(2).stderr.contains("expected '>' of FASTA"));
    assert!(!folder.path("none.csv").exists());
}

#[test]
fn a_signal_stops_a_sort_and_leaves_neither_output_nor_scratch() {
    let folder = Folder::new();
    folder.write("in.txt", lines(2_000_000));
    folder.write("out.txt", "as it was\n");
    let mut child = folder.run("sort in.txt -o out.txt --memory 8MiB").spawn();
    folder.wait_for_scratch(1 << 20, &mut child);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(folder.read("out.txt"), "as it was\n");
    assert!(folder.scratch().is_empty());
    let left = fs::read_dir(folder.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("part")).collect();
    assert!(left.is_empty(), "{left:?}");
}
