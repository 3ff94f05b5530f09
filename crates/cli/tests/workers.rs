//! `inshore sql` runs in a worker process with a limit of memory: no query takes more, and a worker leaves nothing behind, however
//! it ends.

use std::{
    fs,
    io::{self, Read},
    process::{Child, Output},
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
/// Beside the budget: what all commands may have, and what no cgroup of the budget and so much may end.
const BESIDE: u64 = 64 * MIB;
const BESIDE_IN_GROUP: u64 = 96 * MIB;

fn sql(folder: &Folder, query: &str, words: &str) -> Run {
    folder.write("query.sql", query);
    folder.run(&format!("sql --file query.sql --threads 2 --memory {BUDGET} {words}"))
}

/// A table of 60,000 rows: 20,000 keys with three texts of 60 bytes each.
fn with_table() -> Folder {
    let folder = Folder::new();
    let row = |row: usize| format!("{},{}{row:010}\n", row % 20_000, "abcdefghij".repeat(5));
    folder.write("t.csv", "k,s\n".to_string() + &(0..60_000).map(row).collect::<String>());
    folder
}

/// Ends by itself, or is killed and fails the test.
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

/// Queries that take much of little, and what comes of each where the memory is enough.
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

/// The program is not optimised in tests: the code of a query is larger than all that it may have beside its budget. It is a file's, so the
/// group takes it away where it is short; what is no file's counts here.
#[test]
fn a_sql_query_keeps_to_its_memory_whatever_it_asks() {
    let folder = with_table();
    let only = std::env::var("INSHORE_HOSTILE").unwrap_or_default();
    for (what, query, answer) in hostile().into_iter().filter(|(what, ..)| what.contains(&only)) {
        let Some(group) = Cgroup::new("hostile", BUDGET + BESIDE_IN_GROUP) else {
            println!("skipped: no memory cgroup can be made here");
            return;
        };
        folder.write("query.sql", query);
        let run = folder.run(&format!("--file query.sql --threads 2 --memory {BUDGET} --quiet"));
        let line = format!("{} exec \"$0\" sql \"$@\"", group.join());
        let child = run.under("/bin/sh".as_ref(), &["-c", &line]).spawn();
        let mut peak = 0;
        let output = std::thread::scope(|scope| {
            // Its output is read meanwhile, and thrown away.
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
                assert!(is_told && errors.lines().count() == 1, "{what}: {errors}");
            }
            code => panic!("{what}: {code:?} {errors}"),
        }
        assert!(peak <= BUDGET + BESIDE, "{what}: {} MiB", peak / MIB);
        assert!(folder.scratch().is_empty(), "{what}");
    }
}

/// Takes all memory that there is, in values that no function of the query makes too much of.
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
    // All at once, and more than the system gives.
    let query = "SELECT length(lpad('x', 500000000)) FROM 't.csv' LIMIT 1";
    let said = sql(&folder, query, "").exits(2);
    assert!(said.stderr.contains("needs more memory than it was given"), "{said:?}");
}

/// Starts a query that takes minutes and waits until its worker has scratch.
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
        // As a terminal does, which knows nothing of parents.
        if to_both {
            send(worker, signal);
        }
        send(child.id(), signal);
        let output = ends(child, "a stopped query", || {});
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {errors}");
        assert_eq!(errors, "inshore: stopped before it was done; the store is as it was\n");
        assert_eq!(parent(worker), None);
        assert!(folder.scratch().is_empty() && !folder.path("out.csv").exists(), "{signal:?}");
    }
}

/// A batch of this takes minutes, in which nobody hears of a stop.
#[test]
fn a_sql_query_that_does_not_hear_of_a_stop_is_ended_and_leaves_nothing() {
    let folder = Folder::new();
    let query = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value * b.value % 7 = 3";
    let (child, worker) = start(&folder, query);
    send(child.id(), Signal::INT);
    sleep(Duration::from_millis(200));
    send(child.id(), Signal::INT);
    let output = ends(child, "a query that was stopped twice", || {});
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(parent(worker), None);
    assert!(folder.scratch().is_empty() && !folder.path("out.csv").exists());
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
