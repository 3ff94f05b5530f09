//! Tests of the types that are guessed for text files, and of later rows that contradict a guess.

use std::fs;

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Decimal128Type, Float64Type, Int64Type, UInt64Type},
};
use arrow_schema::DataType;
use inshore_store::{Budget, Cancel, Job, Store};
use tempfile::TempDir;

use super::{TableReader, exact_columns, value_classes::WIDE};
use crate::{Error, Header, Input, Result};

struct TestFolder {
    folder: TempDir,
    job: Job,
}

impl TestFolder {
    fn new() -> TestFolder {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
        TestFolder { folder, job }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Input {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        Input::new(path)
    }

    fn open(&self, input: &Input, columns: Option<&[&str]>) -> Result<TableReader> {
        let columns: Option<Vec<String>> =
            columns.map(|columns| columns.iter().map(|name| name.to_string()).collect());
        TableReader::open_stored(input, columns.as_deref(), &[], 100, self.job.budget(), (0, 1))
    }

    fn read(&self, input: &Input, columns: Option<&[&str]>) -> Result<Vec<RecordBatch>> {
        let mut reader = self.open(input, columns)?;
        let mut batches = Vec::new();
        while let Some(batch) = reader.next_batch()? {
            batches.push(batch);
        }
        Ok(batches)
    }

    /// Returns the types of all columns, and all values as text.
    fn values(&self, input: &Input) -> Result<(Vec<DataType>, Vec<String>)> {
        let batches = self.read(input, None)?;
        let schema = batches[0].schema();
        let kinds = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let mut values = Vec::new();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                for column in batch.columns() {
                    values.push(arrow_cast::display::array_value_to_string(column, row).unwrap());
                }
            }
        }
        Ok((kinds, values))
    }

    fn refusal(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        self.read(&self.write(name, text), None).unwrap_err().to_string()
    }
}

/// Makes a file with one column `c`: the value `head` 1,100 times, and then `last`.
fn late(ending: &str, head: &str, last: &str) -> String {
    match ending {
        "csv" => format!("a,c\n{}0,{last}\n", format!("0,{head}\n").repeat(1100)),
        _ => format!("{}{{\"c\":{last}}}\n", format!("{{\"c\":{head}}}\n").repeat(1100)),
    }
}

#[test]
fn a_later_value_that_contradicts_the_first_rows_is_an_error_with_its_line() {
    let place = TestFolder::new();
    for (ending, head, last) in [
        ("csv", "7", "3.5"),
        ("csv", "7", "x"),
        ("csv", "7", "18446744073709551615"),
        ("csv", "0.5", "9007199254740993"),
        ("csv", "", "7"),
        ("jsonl", "7", "3.5"),
        ("jsonl", "7", "\"3\""),
        ("jsonl", "7", "true"),
        ("jsonl", "7", "18446744073709551615"),
        ("jsonl", "0.5", "9007199254740993"),
        ("jsonl", "true", "1"),
        ("jsonl", "null", "7"),
        ("jsonl", "7", "[1]"),
    ] {
        let name = format!("late.{ending}");
        let input = place.write(&name, late(ending, head, last));
        let error = place.read(&input, Some(&["c"])).unwrap_err();
        assert!(error.is_contradiction(), "{head} {last}: {error}");
        let line = if ending == "csv" { 1102 } else { 1101 };
        let error = error.to_string();
        assert!(error.contains(&format!("{name}:{line}: expected ")), "{head} {last}: {error}");
        assert!(error.contains("as in the first rows (or name the column as text: --text c)"), "{error}");
    }
}

#[test]
fn exact_columns_keep_every_value_of_all_rows() {
    let place = TestFolder::new();
    let huge = "99999999999999999999";
    for (ending, head, last, kind, value) in [
        ("csv", "7", "3.5", DataType::Float64, "3.5"),
        ("csv", "-7", "3", DataType::Int64, "3"),
        ("csv", "7", "18446744073709551615", DataType::UInt64, "18446744073709551615"),
        ("csv", "-7", "18446744073709551615", WIDE, "18446744073709551615"),
        ("csv", "7", huge, WIDE, huge),
        ("csv", "7", "x", DataType::Utf8, "x"),
        ("csv", "", "7", DataType::Int64, "7"),
        ("csv", "", "", DataType::Utf8, ""),
        ("jsonl", "7", "3.5", DataType::Float64, "3.5"),
        ("jsonl", "7", "18446744073709551615", DataType::UInt64, "18446744073709551615"),
        ("jsonl", "7", huge, WIDE, huge),
        ("jsonl", "7", "\"x\"", DataType::Utf8, "x"),
        ("jsonl", "true", "7", DataType::Utf8, "7"),
        ("jsonl", "null", "false", DataType::Boolean, "false"),
    ] {
        let input = place.write(&format!("late.{ending}"), late(ending, head, last));
        let exact = exact_columns(&place.job, &[input], &[]).unwrap().unwrap();
        let (kinds, values) = place.values(&exact[0]).unwrap();
        assert_eq!((kinds.last().unwrap(), &**values.last().unwrap()), (&kind, value), "{head} {last}");
        assert!(exact_columns(&place.job, &exact, &[]).unwrap().is_none(), "it is known already");
    }
    // If a value fits no type, the error names the line and gives advice.
    for (head, last) in [("1", "9".repeat(39)), ("0.5", "9007199254740993".to_string())] {
        let input = place.write("late.csv", late("csv", head, &last));
        let exact = exact_columns(&place.job, &[input], &[]).unwrap().unwrap();
        let error = place.read(&exact[0], None).unwrap_err().to_string();
        assert!(error.contains("late.csv:1102") && error.contains("--text c"), "{error}");
    }
}

#[test]
fn several_files_get_types_that_keep_the_values_of_all() {
    let place = TestFolder::new();
    let inputs = [place.write("a.csv", "x,y\n1,2\n"), place.write("b.csv", "x,y\n1.5,z\n")];
    let exact = exact_columns(&place.job, &inputs, &[]).unwrap().unwrap();
    for input in &exact {
        assert_eq!(place.values(input).unwrap().0, [DataType::Float64, DataType::Utf8]);
    }
    let inputs = [place.write("a.jsonl", "{\"x\":1}\n"), place.write("b.jsonl", "{\"y\":2}\n")];
    let exact = exact_columns(&place.job, &inputs, &[]).unwrap().unwrap();
    let reader = place.open(&exact[0], None).unwrap();
    assert_eq!(reader.schema().fields().len(), 2);
}

#[test]
fn big_whole_numbers_stay_apart() {
    let place = TestFolder::new();
    let input = place.write("ids.csv", "id\n12345678901234567890\n12345678901234567891\n");
    let batch = &place.read(&input, None).unwrap()[0];
    let ids = batch.column(0).as_primitive::<UInt64Type>();
    assert_eq!(ids.values(), &[12345678901234567890, 12345678901234567891]);
    let input = place.write("ids.jsonl", "{\"id\":-1}\n{\"id\":36893488147419103232}\n");
    let batch = &place.read(&input, None).unwrap()[0];
    let ids = batch.column(0).as_primitive::<Decimal128Type>();
    assert_eq!(ids.values(), &[-1, 1 << 65]);
}

#[test]
fn a_first_row_that_may_be_no_header_is_refused_without_the_header_option() {
    let place = TestFolder::new();
    for (text, why) in [
        ("1,2\n3,4\n", "'1' (a number)"),
        ("a,,c\n1,2,3\n", "'' (empty)"),
        ("a,b,a\n1,2,3\n", "'a' (a repeated name)"),
        ("country,2019\nx,1\n", "'2019' (a number)"),
        ("a,2020-01-31\nb,2020-02-01\n", "'2020-01-31' (a date or a time)"),
        ("1/1/2020\n1/2/2020\n", "'1/1/2020' (a date or a time)"),
        ("x,12:30:00.5\ny,1:00\n", "'12:30:00.5' (a date or a time)"),
        ("2020-01-01 00:00:00+01\n2020-01-01T01:00:00Z\n", "(a date or a time)"),
    ] {
        let error = place.refusal("n.csv", text);
        assert!(
            error.contains("n.csv:1: expected the names of columns, got ") && error.contains(why),
            "{error}"
        );
        assert!(error.contains("--header yes") && error.contains("--header no"), "{error}");
    }
    let input = place.write("n.csv", "1,2\n3,4\n");
    let batch = &place.read(&input.clone().with_header(Header::Absent), None).unwrap()[0];
    assert_eq!(batch.schema().field(1).name(), "column_2");
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[1, 3]);
    let batch = &place.read(&input.with_header(Header::Present), Some(&["2"])).unwrap()[0];
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[4]);
    // Column names may contain digits and the separators of dates.
    for text in ["2020-Q1,v1.2.3\n1,2\n", "a-1,b/2\n1,2\n", "-,/\n1,2\n"] {
        assert_eq!(place.read(&place.write("n.csv", text), None).unwrap()[0].num_rows(), 1, "{text}");
    }
    // The only row of a file without a header is returned.
    let one = place.write("one.csv", "1,2").with_header(Header::Absent);
    assert_eq!(place.values(&one).unwrap().1, ["1", "2"]);
}

#[test]
fn repeated_names_get_numbers_with_the_header_option() {
    let place = TestFolder::new();
    let input = place.write("n.csv", "a,a,a_1,a\n1,2,3,x\n").with_header(Header::Present);
    let batch = &place.read(&input, None).unwrap()[0];
    let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["a", "a_2", "a_1", "a_3"]);
    let batch = &place.read(&input, Some(&["a_2"])).unwrap()[0];
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[2]);
    // The column names stay the same if the types are inferred from all rows.
    let exact = exact_columns(&place.job, &[input], &[]).unwrap().unwrap();
    assert_eq!(place.values(&exact[0]).unwrap().1, ["1", "2", "3", "x"]);
}

#[test]
fn an_open_quote_is_refused_with_the_line_on_which_it_opens() {
    let place = TestFolder::new();
    for (text, line) in [
        ("a,b\n3,z\n1,\"cut here\n2,y\n", 3),
        ("a,b\n\"x,1\ny,2\n", 2),
        ("a,b\n\"x\ny\",\"z\n", 3),
        ("a,b\n1,2\n\"", 3),
        ("a,b\r\n\r\n1,\"", 3),
    ] {
        let error = place.refusal("q.csv", text);
        let expected = format!("q.csv:{line}: expected a closing quote for the quote that opens here");
        assert!(error.contains(&expected), "{text:?}: {error}");
    }
    // A stray quote turns all rows up to the next quote into one field.
    let error = place.refusal("q.csv", "a,b\n1,\"cut\n2,\"y\"\n");
    assert!(
        error.contains("q.csv:3: expected a separator or the end of the line after a closing quote"),
        "{error}"
    );
}

#[test]
fn returns_end_lines_before_a_feed_alone() {
    let place = TestFolder::new();
    let error = place.refusal("cr.csv", "a,b\r3,4\r1,2\r");
    assert!(error.contains("cr.csv:1: expected lines that end with a line feed"), "{error}");
    // Within quotes, a carriage return is an ordinary character, also at the end of the last field.
    let input = place.write("cr.csv", "a,b\r\n1,\"x\r\"\r\n2,\"y\r\n\"\n3,\"z\"\r\n4,w\r\n5,\"v\"\r");
    let batch = &place.read(&input, None).unwrap()[0];
    let values: Vec<&str> = batch.column(1).as_string::<i32>().iter().flatten().collect();
    assert_eq!(values, ["x\r", "y\r\n", "z", "w", "v"]);
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[1, 2, 3, 4, 5]);
}

#[test]
fn quoted_fields_of_any_length_are_read_unchanged() {
    let place = TestFolder::new();
    let long = "x\"\"y\n".repeat(60_000);
    let text = format!("a,b\n\"{long}\",1\n\"\",2\n\"p\"\"q\",3\n5\" pipe,4\n");
    let batch = &place.read(&place.write("q.csv", text), None).unwrap()[0];
    let texts = batch.column(0).as_string::<i32>();
    assert_eq!(texts.value(0), "x\"y\n".repeat(60_000));
    assert!(texts.is_null(1));
    assert_eq!((texts.value(2), texts.value(3)), ("p\"q", "5\" pipe"));
}

#[test]
fn surrogate_pairs_of_every_plane_are_read() {
    let place = TestFolder::new();
    let all: Vec<char> = (1..=16).flat_map(|plane| char::from_u32((plane << 16) + 0xbb7)).collect();
    let escaped = |letter: &char| {
        let mut units = [0; 2];
        let units = letter.encode_utf16(&mut units);
        format!("{{\"c\":\"\\u{:04x}\\u{:04x}\"}}\n", units[0], units[1])
    };
    let text: String = all.iter().map(escaped).collect();
    let batch = &place.read(&place.write("s.jsonl", text), None).unwrap()[0];
    let found: Vec<String> = batch.column(0).as_string::<i32>().iter().flatten().map(String::from).collect();
    assert_eq!(found, all.iter().map(char::to_string).collect::<Vec<_>>());
    let error = place.refusal("s.jsonl", "{\"c\":\"x\"}\n{\"c\":\"\\ud842\"}\n");
    assert!(error.contains("s.jsonl:2"), "half a pair is no letter: {error}");
}

#[test]
fn a_late_member_fails_only_readers_of_all_columns() {
    let place = TestFolder::new();
    let text = format!("{}{{\"c\":8,\"note\":\"rare\"}}\n", "{\"c\":7}\n".repeat(1000));
    let input = place.write("late.jsonl", text);
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(rows(&place.read(&input, Some(&["c"])).unwrap()), 1001);
    let error = place.read(&input, None).unwrap_err();
    assert!(error.is_contradiction() && error.to_string().contains("late.jsonl:1001"), "{error}");
    let whole = input.clone().with_whole_rows(true);
    assert!(place.read(&whole, Some(&["c"])).unwrap_err().is_contradiction());
    let exact = exact_columns(&place.job, &[input], &[]).unwrap().unwrap();
    let batches = place.read(&exact[0], None).unwrap();
    let last = batches.last().unwrap();
    assert_eq!(last.column(1).as_string::<i32>().value(last.num_rows() - 1), "rare");
}

#[test]
fn a_mark_of_byte_order_is_no_part_of_the_first_line() {
    let place = TestFolder::new();
    let input = place.write("m.jsonl", "\u{feff}{\"a\":1}\n");
    assert_eq!(place.values(&input).unwrap().1, ["1"]);
    let input = place.write("m.csv", "\u{feff}\"a\",b\n1,2\n");
    assert_eq!(place.open(&input, None).unwrap().schema().field(0).name(), "a");
}

#[test]
fn json_of_any_shape_is_read_or_refused_with_its_line() {
    let place = TestFolder::new();
    let input =
        place.write("j.jsonl", "{\"a\":1,\"b\":{\"c\":[1]},\"a\":2}\r\n\n  {\"b\":[],\"a\":null}\n{}\n");
    let batches = place.read(&input, Some(&["a"])).unwrap();
    let values: Vec<Option<i64>> = batches[0].column(0).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(values, [Some(2), None, None], "the last of two values counts");
    let error = place.open(&input, Some(&["b"])).err().unwrap().to_string();
    assert!(error.contains("column 'b' holds objects or arrays, which are not supported"), "{error}");
    for bad in ["{\"a\":1", "[1]", "{\"a\":1}{\"a\":2}", "{a:1}", "nothing"] {
        let error = place.refusal("j.jsonl", format!("{{\"a\":1}}\n{bad}\n{{\"a\":1}}\n"));
        assert!(error.contains("j.jsonl:2: expected an object in a line"), "{error}");
    }
    let numbers = place.write("j.jsonl", "{\"a\":1}\n{\"a\":0.5}\n{\"a\":-2e3}\n");
    let batches = place.read(&numbers, None).unwrap();
    assert_eq!(batches[0].column(0).as_primitive::<Float64Type>().values(), &[1.0, 0.5, -2000.0]);
}

#[test]
fn named_types_are_returned_or_an_error() {
    let place = TestFolder::new();
    let input = place.write("j.jsonl", "{\"id\":\"7\"}\n{\"id\":8}\n");
    let columns = [("id", DataType::UInt64)];
    let mut reader = TableReader::open(&input, &columns, 10, place.job.budget()).unwrap();
    let batch = reader.next_batch().unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<UInt64Type>().values(), &[7, 8]);
    let input = place.write("j.jsonl", "{\"id\":7}\n".repeat(1100) + "{\"id\":8.5}\n");
    let mut reader = TableReader::open(&input, &columns, 10_000, place.job.budget()).unwrap();
    let error = reader.next_batch().unwrap_err();
    assert!(matches!(error, Error::BadValue { .. }) && error.to_string().contains("j.jsonl:1101"), "{error}");
}
