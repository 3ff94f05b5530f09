use arrow_array::cast::AsArray;
use inshore_kernel::OpenedSource;
use inshore_store::{Budget, Cancel};

use super::*;

fn files(texts: &[&'static [u8]]) -> impl Iterator<Item = (WalkedFile, Source)> + Send + use<> {
    let texts = texts.to_vec();
    texts.into_iter().enumerate().map(|(number, text)| {
        let open = move |_: &Context| Ok(OpenedSource::Stream(Box::new(text)));
        let candidate = WalkedFile { path: number.to_string().into(), is_named: number == 0 };
        (candidate, Source::new(number.to_string(), open))
    })
}

fn job() -> Context {
    Context::new(Budget::new(16 << 20, 2), Cancel::default())
}

fn budget() -> Budget {
    Budget::new(16 << 20, 2)
}

fn options(columns: SearchColumns) -> SearchTableOptions {
    SearchTableOptions { columns, ..SearchTableOptions::default() }
}

/// Returns all rows as text.
fn rows(table: &SearchTable, texts: &[&'static [u8]]) -> (Vec<String>, SearchSummary) {
    let mut rows = Vec::new();
    let each = |item: SearchItem| {
        let SearchItem::Rows(batch) = item else { panic!("a file that cannot be read") };
        let shown = |column: &ArrayRef, row| arrow_cast::display::array_value_to_string(column, row).unwrap();
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = batch.columns().iter().map(|column| shown(column, row)).collect();
            rows.push(cells.join("|"));
        }
        Ok(Next::Go)
    };
    let job = job();
    let summary = table.run(&job, files(texts), each).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    (rows, summary)
}

const TEXTS: [&[u8]; 3] = [b"no\nfox and fox\n", b"", b"\xc3\xbcber fox\r\nf\xff fox"];

#[test]
fn rows_have_line_numbers_offsets_and_spans_in_characters_or_bytes() {
    let new = |options| SearchTable::new(&["fox"], &PatternOptions::default(), options, &budget()).unwrap();
    let (found, summary) = rows(&new(options(SearchColumns::LinesWithSpans)), &TEXTS);
    let expected = [
        "0|2|3|fox and fox|[{start: 0, end: 3}, {start: 8, end: 11}]",
        "2|1|0|über fox\r|[{start: 5, end: 8}]",
        "2|2|11|f\u{fffd} fox|[{start: 3, end: 6}]",
    ];
    assert_eq!(found, expected);
    let expected = SearchSummary { files: 3, files_matched: 2, lines: 3, binary: 0, failed: 0 };
    assert_eq!(summary, expected);
    let as_bytes = SearchTableOptions { as_bytes: true, ..options(SearchColumns::LinesWithSpans) };
    let (found, _) = rows(&new(as_bytes), &TEXTS);
    assert!(found[1].ends_with("[{start: 6, end: 9}]"), "{found:?}");
    let (found, _) = rows(&new(SearchTableOptions { max_count: 1, ..options(SearchColumns::Lines) }), &TEXTS);
    assert_eq!(found, ["0|2|3|fox and fox", "2|1|0|über fox\r"]);
}

#[test]
fn lines_and_matches_are_counted() {
    let new = |options| SearchTable::new(&["fox"], &PatternOptions::default(), options, &budget()).unwrap();
    assert_eq!(rows(&new(options(SearchColumns::LineCounts)), &TEXTS).0, ["0|1", "2|2"]);
    assert_eq!(rows(&new(options(SearchColumns::MatchCounts)), &TEXTS).0, ["0|2", "2|2"]);
    let few = SearchTableOptions { max_count: 1, include_zero: true, ..options(SearchColumns::MatchCounts) };
    assert_eq!(rows(&new(few), &TEXTS).0, ["0|2", "1|0", "2|1"]);
    let how = PatternOptions { invert: true, ..PatternOptions::default() };
    let inverted = SearchTable::new(&["fox"], &how, options(SearchColumns::MatchCounts), &budget()).unwrap();
    assert_eq!(rows(&inverted, &TEXTS).0, ["0|1"]);
}

#[test]
fn a_binary_file_ends_at_its_first_nul_byte() {
    let texts: [&[u8]; 2] = [b"fox\n\0fox\n", b"fox \0\n"];
    let new = |options| SearchTable::new(&["fox"], &PatternOptions::default(), options, &budget()).unwrap();
    let (found, summary) = rows(&new(options(SearchColumns::Lines)), &texts);
    assert_eq!((found.len(), summary.binary), (0, 2));
    // Only the first of the files was named by the user.
    let (found, summary) = rows(&new(options(SearchColumns::LineCounts)), &texts);
    assert_eq!((found, summary.binary), (vec!["0|2".to_string()], 1));
    let text = SearchTableOptions { text: true, ..options(SearchColumns::LineCounts) };
    assert_eq!(rows(&new(text), &texts).0, ["0|2", "1|1"]);
}

#[test]
fn a_long_line_with_a_nul_byte_is_binary_and_no_failure() {
    let long = |fill: u8| -> &'static [u8] {
        let line = std::iter::repeat_n(fill, 4 << 20);
        b"fox\n".iter().copied().chain(line).collect::<Vec<u8>>().leak()
    };
    let texts = [b"fox\n", long(0), long(b'x')];
    for (columns, rows) in [(SearchColumns::Lines, 3), (SearchColumns::LineCounts, 1)] {
        let table =
            SearchTable::new(&["fox"], &PatternOptions::default(), options(columns), &budget()).unwrap();
        let (mut found, mut failed) = (0, Vec::new());
        let each = |item: SearchItem| {
            match item {
                SearchItem::Rows(batch) => found += batch.num_rows(),
                SearchItem::Failed(error) => failed.push(error.to_string()),
            }
            Ok(Next::Go)
        };
        let summary = table.run(&job(), files(&texts), each).unwrap();
        assert_eq!((found, summary.binary, summary.failed), (rows, 1, 1));
        assert!(failed[0].starts_with("2: the line at byte 4 exceeds"), "{failed:?}");
    }
}

#[test]
fn rows_come_in_batches_and_the_consumer_may_stop() {
    let table =
        SearchTable::new(&["x"], &PatternOptions::default(), options(SearchColumns::Lines), &budget())
            .unwrap();
    let text: &'static [u8] = "x yz\n".repeat(100_000).leak().as_bytes();
    let mut lines = Vec::new();
    let take = |item: SearchItem| {
        if let SearchItem::Rows(batch) = item {
            lines.push(batch.num_rows());
        }
        Ok(if lines.len() == 3 { Next::Stop } else { Next::Go })
    };
    table.run(&job(), files(&[text]), take).unwrap();
    assert!(lines.len() == 3 && lines.iter().all(|&rows| rows < 10_000), "{lines:?}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_item_in_order() {
    let table =
        SearchTable::new(&["x"], &PatternOptions::default(), options(SearchColumns::Lines), &budget())
            .unwrap();
    let missing = WalkedFile { path: "missing".into(), is_named: true };
    let source = missing.source(crate::TextOptions::default());
    let mut seen = Vec::new();
    let take = |item: SearchItem| {
        seen.push(match item {
            SearchItem::Rows(batch) => batch.column(0).as_string::<i32>().value(0).to_string(),
            SearchItem::Failed(error) => error.to_string(),
        });
        Ok(Next::Go)
    };
    let all = files(&[b"x\n"]).chain([(missing, source)]).chain(files(&[b"x\n"]));
    let summary = table.run(&job(), all, take).unwrap();
    assert!(seen[0] == "0" && seen[1].starts_with("missing: cannot open") && seen[2] == "0", "{seen:?}");
    assert_eq!((summary.files, summary.failed), (3, 1));
}
