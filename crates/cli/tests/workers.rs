//! Tests of the worker process in which `inshore sql` runs with a memory limit. No query may exceed the limit, and a
//! worker must leave nothing behind, regardless of how it ends.

use std::{
    fs,
    io::{self, Read},
    process::{Child, Output},
    sync::atomic::{AtomicUsize, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    memory::Cgroup,
    util::{Folder, PATIENCE, Run, children, parent, until},
};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 24 * MIB;
/// Memory in addition to the budget. Every command may use `BESIDE`. A cgroup needs `BESIDE_IN_GROUP`, so that the
/// system does not kill the command.
const BESIDE: u64 = 64 * MIB;
const BESIDE_IN_GROUP: u64 = 96 * MIB;

fn sql(folder: &Folder, query: &str, words: &str) -> Run {
    folder.write("query.sql", query);
    folder.run(&format!("sql --file query.sql --threads 2 --memory {BUDGET} {words}"))
}

/// Creates a table of 60,000 rows with 20,000 different keys. Each row has a key and a text of 60 bytes.
fn with_table() -> Folder {
    let folder = Folder::new();
    let row = |row: usize| format!("{},{}{row:010}\n", row % 20_000, "abcdefghij".repeat(5));
    folder.write("t.csv", "k,s\n".to_string() + &(0..60_000).map(row).collect::<String>());
    folder
}

/// Waits until the process ends, and calls `look` repeatedly until then. If this takes too long, kills the process and
/// fails the test.
fn ends(mut child: Child, what: &str, mut look: impl FnMut()) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > 2 * PATIENCE {
            child.kill().unwrap();
            panic!("does not end: {what}");
        }
        look();
        sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

/// Lists queries with small inputs and large intermediate results. An entry has a description, the query, and the
/// expected answer if the memory suffices (empty: any answer).
fn hostile() -> Vec<(&'static str, String, &'static str)> {
    let columns = |column: &dyn Fn(usize) -> String| (0..200).map(column).collect::<Vec<_>>().join(", ");
    let in_list = (0..50_000).map(|n| format!("'abcdefghij{n}'")).collect::<Vec<_>>().join(", ");
    let query = |text: &str| text.to_string();
    vec![
        (
            "values that are repeated, in many columns",
            format!("SELECT {} FROM 't.csv'", columns(&|n| format!("repeat(s, {}) AS c{n}", n % 10 + 20))),
            "",
        ),
        (
            "values that are repeated, and counted",
            format!(
                "SELECT {} FROM 't.csv'",
                columns(&|n| format!("sum(length(repeat(s, {}))) AS c{n}", n % 40 + 2))
            ),
            "",
        ),
        (
            "a search of quadratic cost",
            query(
                "SELECT sum(length(regexp_replace(repeat(s, 20), '[a-j0-9]*Q|[a-j0-9]', '', 'g'))) AS n FROM 't.csv' WHERE k < 20",
            ),
            "n\n0\n",
        ),
        (
            "a recursion that doubles a text",
            query(
                "WITH RECURSIVE r AS (SELECT 1 AS n, 'x' AS s UNION ALL SELECT n + 1, s || s FROM r WHERE n < 40) SELECT max(length(s)) FROM r",
            ),
            "",
        ),
        (
            "a list of numbers",
            query("SELECT array_length(generate_series(1, 100000000)) AS n"),
            "n\n100000000\n",
        ),
        (
            "lists of numbers in rows",
            query("SELECT sum(array_length(generate_series(1, k))) AS n FROM 't.csv'"),
            "n\n599970000\n",
        ),
        ("a table of numbers", query("SELECT count(*) AS n FROM generate_series(1, 300000)"), "n\n300000\n"),
        (
            "one list of all values",
            query("SELECT array_length(array_agg(value)) AS n FROM generate_series(1, 9000000)"),
            "n\n9000000\n",
        ),
        (
            "lists of values by key",
            query(
                "SELECT count(*) AS n FROM (SELECT value % 20000 AS k, array_agg(repeat('x', 20)) AS a FROM generate_series(1, 2000000) GROUP BY 1)",
            ),
            "n\n20000\n",
        ),
        (
            "a long list of constants",
            format!("SELECT count(*) AS n FROM 't.csv' WHERE s IN ({in_list})"),
            "n\n0\n",
        ),
        (
            "all pairs of rows",
            query(
                "SELECT count(*) AS n FROM 't.csv' a, generate_series(1, 50) b WHERE length(a.s) > b.value",
            ),
            "n\n3000000\n",
        ),
        (
            "all pairs of rows, sorted",
            query(
                "SELECT a.s, b.s FROM (SELECT * FROM 't.csv' LIMIT 600) a, (SELECT * FROM 't.csv' LIMIT 600) b ORDER BY b.s, a.s",
            ),
            "",
        ),
        (
            "texts that are joined by key",
            query("SELECT count(a) AS n FROM (SELECT k, string_agg(s, ',') AS a FROM 't.csv' GROUP BY k)"),
            "n\n20000\n",
        ),
        (
            "one text of all",
            query("SELECT length(string_agg(s || s || s || s || s || s || s || s, ',')) AS n FROM 't.csv'"),
            "n\n28859999\n",
        ),
        (
            "medians by key",
            query(
                "SELECT count(m) AS n FROM (SELECT value % 100000 AS k, median(value) AS m FROM generate_series(1, 1500000) GROUP BY 1)",
            ),
            "n\n100000\n",
        ),
        (
            "sketches by key",
            query("SELECT count(d) AS n FROM (SELECT k, approx_distinct(s) AS d FROM 't.csv' GROUP BY k)"),
            "n\n20000\n",
        ),
        (
            "groups of texts that are made up",
            query(
                "SELECT count(*) AS n FROM (SELECT s || b.value AS g FROM 't.csv' a, generate_series(1, 8) b GROUP BY 1)",
            ),
            "n\n480000\n",
        ),
        (
            "a window over everything",
            query(
                "SELECT count(*) AS n FROM (SELECT lag(s, 3) OVER () AS a, max(s) OVER () AS b FROM 't.csv')",
            ),
            "n\n60000\n",
        ),
    ]
}

/// Queries whose functions have small inputs and large results, or large patterns. Each query must succeed or fail for
/// lack of memory. If the second text is not empty, an error of the query library with this text is allowed too.
const HOSTILE_FUNCTIONS: &[(&str, &str)] = &[
    ("SELECT repeat(arrow_cast('x', 'LargeUtf8'), 4000000000000)", ""),
    ("SELECT repeat(s, 100000) FROM 't.csv'", ""),
    ("SELECT repeat(s, k * 1000000) FROM 't.csv'", "string size overflow on repeat"),
    ("SELECT count(*) FROM 't.csv' WHERE repeat(s, 100000) < 'b'", ""),
    ("SELECT k, min(repeat(s, 100000)) FROM 't.csv' GROUP BY k", ""),
    ("SELECT lpad(s, 2000000000) FROM 't.csv'", ""),
    ("SELECT lpad(s, k * 1000000, 'é') FROM 't.csv'", ""),
    ("SELECT rpad('x', 2000000000, 'ab')", ""),
    ("SELECT range(1000000000)", ""),
    ("SELECT range(k, 100000000) FROM 't.csv'", ""),
    ("SELECT range(4000000000000, 0, -1)", ""),
    ("SELECT range(TIMESTAMP '2000-01-01', TIMESTAMP '2001-01-01', INTERVAL '1 millisecond')", ""),
    ("SELECT generate_series(1, 4000000000000)", ""),
    ("SELECT generate_series(DATE '0001-01-01', DATE '9999-12-31', INTERVAL '1 day')", ""),
    ("SELECT generate_series(DATE '2000-01-01', DATE '2000-02-01', INTERVAL '1 day -24 hours')", ""),
    ("SELECT array_repeat(1, 1000000000)", ""),
    ("SELECT array_repeat(NULL, 1000000000)", ""),
    ("SELECT sum(array_length(array_repeat(make_array(k, k), 1000000))) FROM 't.csv'", "exceeds the maximum"),
    ("SELECT array_resize([1], 1000000000, 7)", ""),
    ("SELECT sum(array_length(array_resize(make_array(s), 1000000))) FROM 't.csv'", "exceeds the maximum"),
    ("SELECT replace(repeat('a', 100000), 'a', repeat('b', 100000))", ""),
    ("SELECT replace(repeat(s, 100), 'a', repeat('b', 10000)) FROM 't.csv'", ""),
    ("SELECT regexp_replace(repeat('a', 1000), 'a', repeat('b', 100000), 'g')", ""),
    ("SELECT regexp_replace(repeat(s, 100), '[ab]', repeat('c', 10000), 'g') FROM 't.csv'", ""),
    ("SELECT regexp_match(repeat('a', 1000000), '((((((((((((((((((((a*))))))))))))))))))))')", ""),
    ("SELECT array_to_string(range(100000), repeat('x', 1000))", ""),
    ("SELECT sum(array_length(string_to_array(repeat('x', 3000000), 'x')))", ""),
    ("SELECT sum(array_length(arrays_zip(range(300000), range(300000), range(300000), range(300000))))", ""),
    ("SELECT array_replace_all(array_repeat('a', 100000), 'a', repeat('b', 10000))", ""),
    ("SELECT to_char(DATE '2000-01-01', repeat('%c', 500000))", ""),
    ("SELECT regexp_like(s, repeat('a', 3000000)) FROM 't.csv'", ""),
    ("SELECT s ~ repeat('a', 3000000) FROM 't.csv'", ""),
    ("SELECT s LIKE repeat('a', 3000000) || '_b' FROM 't.csv'", ""),
    ("SELECT count(*) FROM 't.csv' WHERE regexp_match(s, repeat('a', 70000)) IS NULL", ""),
    ("SELECT regexp_match(s, '[ab]*' || repeat('(a?)', 12000)) FROM 't.csv'", ""),
    (r"SELECT regexp_like(s, repeat('\w', 20000)) FROM 't.csv'", ""),
    ("SELECT sum(array_length(regexp_match(s, repeat('(a?)', 101)))) FROM 't.csv'", ""),
    ("SELECT s SIMILAR TO repeat('a', 70000) FROM 't.csv'", ""),
    ("SELECT s ILIKE repeat('a', 70000) || '_' FROM 't.csv'", ""),
    (r"SELECT regexp_like('x', 'a', 'i)' || repeat('\w', 200000) || '(?i') FROM 't.csv'", ""),
    ("SELECT regexp_count(s, 'a', 1, ')(') FROM 't.csv'", "Regular expression did not compile"),
    ("SELECT regexp_replace(s, 'a', 'b', 'gggggggggg') FROM 't.csv'", "regex parse error"),
    ("SELECT sum(array_length(regexp_match(s, 'a', s || '('))) FROM 't.csv'", "regex parse error"),
    ("SELECT repeat('x', 1000000), k FROM 't.csv'", ""),
    (
        "SELECT count(*) FROM 't.csv' WHERE named_struct('a', repeat('x', 1000000), 'b', k) = named_struct('a', 'x', 'b', 1)",
        "more than 2 GiB",
    ),
    ("SELECT CASE WHEN k > 1 THEN repeat('x', 1000000) ELSE s END FROM 't.csv'", "more than 2 GiB"),
    ("SELECT k, min(repeat('x', 1000000)) FROM 't.csv' GROUP BY k", "more than 2 GiB"),
    ("SELECT count(*) FROM 't.csv' WHERE s = repeat('x', 1000000)", ""),
    ("SELECT regexp_count(repeat('x', 1000000), '((a{99}){99}){99}')", "Regular expression did not compile"),
    ("SELECT regexp_instr(repeat('x', 1000000), '((a{99}){99}){99}')", "Regular expression did not compile"),
    ("SELECT regexp_replace(repeat('x', 1000000), '((a{99}){99}){99}', 'y')", "exceeds size limit"),
    ("SELECT regexp_like(repeat('x', 1000000), '((a{99}){99}){99}')", "CompiledTooBig"),
    ("SELECT repeat('x', 1000000) !~* '((a{99}){99}){99}'", "CompiledTooBig"),
    ("SELECT repeat('x', 1000000) SIMILAR TO '((a{99}){99}){99}'", "CompiledTooBig"),
    ("SELECT repeat('a', 1000000) LIKE concat('%', repeat('_', 20000), 'b')", "exceeds size limit"),
    ("SELECT repeat('a', 1000000) NOT ILIKE concat('%', repeat('_', 20000), 'b')", "exceeds size limit"),
    ("SELECT count(*) FROM 't.csv' WHERE levenshtein(s, repeat('x', 1000000)) > 5", "more than 2 GiB"),
    ("SELECT array_has_all(range(200000), range(300000, 500000))", ""),
    ("SELECT count(*) FROM 't.csv' WHERE s ~ (s || '$')", ""),
];

/// Pairs of a first value and an expression that doubles the value `x`. A query applies the expression thirteen times.
const DOUBLING: [(&str, &str); 11] = [
    ("repeat('x', 1000)", "concat(x, x)"),
    ("s", "concat(x, x)"),
    ("s", "concat_ws('-', x, x)"),
    ("repeat('x', 1000)", "x || x"),
    ("s", "x || x"),
    ("s", "overlay(x PLACING x FROM 1 FOR 0)"),
    ("s", "encode(x, 'hex')"),
    ("repeat(s, 50)", "replace(x, '2', '22')"),
    ("make_array(k)", "array_concat(x, x)"),
    ("make_array(k)", "x || x"),
    ("k", "[x, x]"),
];

/// Runs a query in a cgroup of its budget plus [`BESIDE_IN_GROUP`]. The query must succeed, or fail with one message,
/// which says that the query needs more memory, or which contains `refusal`. Returns false if no cgroup can be created.
///
/// In tests the program is not optimised, so its code is larger than the memory that a query may use in addition to its
/// budget. The pages of code are backed by a file, so the system evicts them if the group is short of memory. This test
/// therefore measures only anonymous memory.
fn keeps_to_its_memory(folder: &Folder, what: &str, query: &str, answer: &str, refusal: &str) -> bool {
    static GROUPS: AtomicUsize = AtomicUsize::new(0);
    let purpose = format!("hostile{}", GROUPS.fetch_add(1, Ordering::Relaxed));
    let Some(group) = Cgroup::new(&purpose, BUDGET + BESIDE_IN_GROUP) else {
        println!("skipped: no memory cgroup can be made here");
        return false;
    };
    folder.write("query.sql", query);
    let run = folder.run(&format!("--file query.sql --threads 2 --memory {BUDGET} --quiet"));
    let line = format!("{} exec \"$0\" sql \"$@\"", group.join());
    // `RUST_BACKTRACE` is 0, since any other value makes the panics of the query library visible.
    let child = run.under("/bin/sh".as_ref(), &["-c", &line]).env("RUST_BACKTRACE", "0").spawn();
    let mut peak = 0;
    let output = std::thread::scope(|scope| {
        // The output is read while the command runs. Only its beginning is kept.
        let (mut child, mut out) = (child, Vec::new());
        let mut stdout = child.stdout.take().unwrap();
        let reader = scope.spawn(move || {
            io::copy(&mut stdout.by_ref().take(1 << 16), &mut out).unwrap();
            io::copy(&mut stdout, &mut io::sink()).unwrap();
            out
        });
        let output = ends(child, what, || peak = peak.max(group.anonymous_bytes()));
        Output { stdout: reader.join().unwrap(), ..output }
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{what}: {:?}, {} MiB at most; {errors}", output.status.code(), peak / MIB);
    assert_eq!(group.kills(), 0, "{what}");
    match output.status.code() {
        Some(0) if answer.is_empty() => {}
        Some(0) => assert_eq!(String::from_utf8_lossy(&output.stdout), answer, "{what}"),
        Some(2) => {
            let is_told = errors.starts_with("inshore: the query needs more memory than it was given: ");
            let is_refused = !refusal.is_empty() && errors.contains(refusal);
            // A message of the query library may have further lines that show the pattern.
            let is_one =
                errors.matches("inshore: ").count() == 1 && (is_refused || errors.lines().count() == 1);
            assert!((is_told || is_refused) && is_one, "{what}: {errors}");
        }
        code => panic!("{what}: {code:?} {errors}"),
    }
    assert!(peak <= BUDGET + BESIDE, "{what}: {} MiB", peak / MIB);
    assert!(folder.scratch().is_empty(), "{what}");
    true
}

#[test]
fn a_sql_query_keeps_to_its_memory_whatever_it_asks() {
    let folder = with_table();
    let only = std::env::var("INSHORE_HOSTILE").unwrap_or_default();
    let mut asked = hostile().into_iter().filter(|(what, ..)| what.contains(&only));
    // If no cgroup can be created for one query, the other queries are skipped.
    asked.all(|(what, query, answer)| keeps_to_its_memory(&folder, what, &query, answer, ""));
}

#[test]
fn a_sql_query_keeps_to_its_memory_whatever_its_functions_make() {
    let folder = with_table();
    let only = std::env::var("INSHORE_HOSTILE").unwrap_or_default();
    let doubling = DOUBLING.map(|(first, doubled)| {
        let step = |number: usize| format!(", x{number} AS (SELECT {doubled} AS x FROM x{})", number - 1);
        let steps: String = (1..14).map(step).collect();
        (format!("WITH x0 AS (SELECT {first} AS x FROM 't.csv'){steps} SELECT x FROM x13"), "")
    });
    let functions = HOSTILE_FUNCTIONS.iter().map(|(query, refusal)| (query.to_string(), *refusal));
    let mut asked = functions.chain(doubling).filter(|(query, _)| query.contains(&only));
    asked.all(|(query, refusal)| keeps_to_its_memory(&folder, &query, &query, "", refusal));
}

/// Returns a query that uses up the memory with many small values.
fn large() -> String {
    let column = |number| format!("repeat(substr(s, {}), {})", number % 40 + 1, 16 + number / 40);
    let columns: Vec<String> = (0..200).map(column).collect();
    format!("SELECT {} FROM 't.csv'", columns.join(", "))
}

#[test]
fn a_sql_query_that_takes_too_much_leaves_nothing_but_a_message() {
    let folder = with_table();
    folder.write("out.csv", "old\n");
    let said = sql(&folder, &large(), "-o out.csv --quiet").exits(2);
    assert!(
        said.stderr.starts_with("inshore: the query needs more memory than it was given: at '"),
        "{said:?}"
    );
    assert!(said.stderr.contains("24 MiB") && said.stderr.contains("ProjectionExec"), "{said:?}");
    assert_eq!((said.stdout.as_str(), said.stderr.lines().count()), ("", 1), "{said:?}");
    assert_eq!(folder.read("out.csv"), "old\n");
    let names = fs::read_dir(folder.path("")).unwrap().count();
    assert_eq!(names, 4, "the table, the query, its output and the store");
    assert!(folder.scratch().is_empty());
    // This query makes one very large allocation.
    let query = "SELECT length(lpad('x', 500000000)) FROM 't.csv' LIMIT 1";
    let said = sql(&folder, query, "").exits(2);
    assert!(said.stderr.contains("needs more memory than it was given"), "{said:?}");
}

/// Starts a query that takes minutes, and waits until its worker has a scratch folder. Returns the command and the
/// worker's process id.
fn start_slow(folder: &Folder) -> (Child, u32) {
    let query = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 9)";
    start(folder, query)
}

fn start(folder: &Folder, query: &str) -> (Child, u32) {
    let mut child = sql(folder, query, "-o out.csv --quiet").spawn();
    let mut found = Vec::new();
    until("it starts a worker that has scratch", || {
        assert!(child.try_wait().unwrap().is_none(), "the query ended");
        found = children(child.id());
        found.len() == 1 && !folder.scratch().is_empty()
    });
    (child, found[0])
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_signal_to_a_sql_query_leaves_neither_file_nor_scratch_nor_process() {
    let folder = Folder::new();
    for (signal, to_both) in [(Signal::INT, false), (Signal::TERM, false), (Signal::INT, true)] {
        let (child, worker) = start_slow(&folder);
        // On Ctrl-C a terminal sends the signal to both processes, so this test does the same.
        if to_both {
            send(worker, signal);
        }
        send(child.id(), signal);
        let output = ends(child, "a stopped query", || {});
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {errors}");
        assert_eq!(errors, "inshore: the job was stopped before it was done; the store is unchanged\n");
        assert_eq!(parent(worker), None);
        assert!(folder.scratch().is_empty() && !folder.path("out.csv").exists(), "{signal:?}");
    }
}

/// Each of these queries has a batch or a constant expression that takes minutes or more, without a check for
/// cancellation.
const SLOW: [&str; 5] = [
    "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value * b.value % 7 = 3",
    "SELECT levenshtein(repeat('a', 2000000), repeat('b', 2000000))",
    "SELECT strpos(repeat('a', 2000000), concat(repeat('a', 1000000), 'b'))",
    "SELECT btrim(repeat('a', 2000000), concat(repeat('b', 1000000), 'a'))",
    "SELECT sum(levenshtein(x, reverse(x))) FROM (SELECT repeat(s, 1000) AS x FROM (SELECT s FROM 't.csv' LIMIT 100))",
];

#[test]
fn a_sql_query_that_does_not_hear_of_a_stop_is_ended_and_leaves_nothing() {
    let folder = with_table();
    // The first query gets only one signal. Its worker must end by itself after a time limit.
    for (query, is_twice) in SLOW.into_iter().zip([false, true, true, true, true]) {
        let (child, worker) = start(&folder, query);
        send(child.id(), Signal::INT);
        if is_twice {
            sleep(Duration::from_millis(200));
            send(child.id(), Signal::INT);
        }
        let output = ends(child, "a query that was stopped", || {});
        assert_eq!(output.status.code(), Some(130), "{query}: {output:?}");
        assert_eq!(parent(worker), None);
        assert!(folder.scratch().is_empty() && !folder.path("out.csv").exists(), "{query}");
    }
}

#[test]
fn a_sql_query_ends_with_its_parent_and_the_next_one_works() {
    let folder = Folder::new();
    let (mut child, worker) = start_slow(&folder);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the worker outlives its parent", || parent(worker).is_none());
    assert!(!folder.path("out.csv").exists());
    assert_eq!(sql(&folder, "SELECT 1 AS one", "--quiet").ok().stdout, "one\n1\n");
    assert!(folder.scratch().is_empty());
}

#[test]
fn a_sql_query_whose_worker_is_killed_says_so_and_leaves_nothing() {
    let folder = Folder::new();
    let (child, worker) = start_slow(&folder);
    send(worker, Signal::KILL);
    let output = ends(child, "a killed query", || {});
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && errors.contains("was killed"), "{errors}");
    assert!(folder.scratch().is_empty() && !folder.path("out.csv").exists());
}

#[test]
fn standard_input_and_output_of_a_sql_query_are_those_of_the_command() {
    let folder = Folder::new();
    assert_eq!(folder.run("sql - --quiet").stdin("SELECT 1 + 1 AS two").ok().stdout, "two\n2\n");
    let report = sql(&folder, "SELECT 1 AS one", "--json -o out.csv").ok().json();
    assert_eq!(report["summary"]["rows"], 1);
    assert!(report["report"]["memory_resident_bytes_max"].as_u64().unwrap() > MIB);
    let mut child = sql(&folder, "SELECT value FROM generate_series(1, 1000000)", "--quiet").spawn();
    let mut first = [0; 5];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = ends(child, "a query whose reader has seen enough", || {});
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
