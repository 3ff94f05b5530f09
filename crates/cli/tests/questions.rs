//! Tests of `inshore sql` on the command line. The answers of queries are tested in the crate `inshore-sql`.

use crate::util::{Folder, Run};

/// Creates an `inshore sql` command with a query, and with `words` as further arguments.
fn sql(folder: &Folder, query: &str, words: &str) -> Run {
    folder.write("query.sql", query);
    folder.run(&format!("sql --file query.sql {words}"))
}

fn sales() -> Folder {
    let folder = Folder::new();
    folder.write("sales.csv", "town,item,amount\nUlm,tea,3\nKiel,tea,4\nUlm,salt,5\nKiel,,6\n");
    folder.write(
        "towns.jsonl",
        "{\"name\": \"Ulm\", \"people\": 126000}\n{\"name\": \"Bonn\", \"people\": 330000}\n",
    );
    folder
}

#[test]
fn files_are_asked_by_their_paths_and_by_names() {
    let folder = sales();
    let query = "SELECT town, sum(amount) AS amount FROM 'sales.csv' GROUP BY town ORDER BY town";
    let said = sql(&folder, query, "").ok();
    assert_eq!(said.stdout, "town,amount\nKiel,10\nUlm,8\n");
    assert!(said.stderr.contains("2 rows") && said.stderr.contains("peak memory"), "{}", said.stderr);
    let query =
        "SELECT s.town, t.people FROM s LEFT JOIN t ON s.town = t.name WHERE item IS NOT NULL ORDER BY 1, 2";
    let words = "--table s=sales.csv --table t=towns.jsonl --quiet";
    let said = sql(&folder, query, words).ok();
    assert_eq!(said.stdout, "town,people\nKiel,\nUlm,126000\nUlm,126000\n");
    assert_eq!(said.stderr, "");
    let query = "SELECT count(*) AS n, min(people) AS least FROM sales, towns";
    assert_eq!(sql(&folder, query, "--tables . --quiet").ok().stdout, "n,least\n8,126000\n");
    sql(&folder, "SELECT * FROM 'sales.csv'", "-o copy.parquet").ok();
    sql(&folder, "SELECT * FROM 'sales.csv'", "-o more.parquet").ok();
    let query = "SELECT count(*) AS n, count(item) AS items, sum(amount) AS all FROM '*.parquet'";
    assert_eq!(sql(&folder, query, "").ok().stdout, "n,items,all\n8,6,36\n");
    assert_eq!(folder.run("sql -").stdin("SELECT 1 + 1 AS two").ok().stdout, "two\n2\n");
    assert!(folder.scratch().is_empty());
}

#[test]
fn datasets_are_asked_as_files_are() {
    let folder = sales();
    folder.run("store put sales.csv --name sales.csv --quiet").ok();
    folder.run("store put towns.jsonl --name towns.jsonl --quiet").ok();
    let query = "SELECT s.town, sum(amount) AS amount, min(people) AS people FROM 'store:sales.csv' s \
        LEFT JOIN t ON s.town = t.name GROUP BY s.town ORDER BY 1";
    let said = sql(&folder, query, "--table t=store:towns.jsonl --quiet").ok();
    assert_eq!(said.stdout, "town,amount,people\nKiel,10,\nUlm,8,126000\n");
    // The Parquet file has several row groups of three columns. The dataset is read through only a few buffers.
    let query = "SELECT value AS k, value * 7919 % 100003 AS v, 'text ' || (value % 1000) AS s FROM generate_series(1, 1500000)";
    sql(&folder, query, "-o made.parquet --quiet").ok();
    folder.run("store put made.parquet --name made.parquet --quiet").ok();
    let query =
        "SELECT s, count(*) AS n, sum(v) AS v, max(k) AS k FROM '{}' WHERE k % 3 > 0 GROUP BY s ORDER BY s";
    let of_file = sql(&folder, &query.replace("{}", "made.parquet"), "--quiet").ok().stdout;
    assert_eq!(of_file.lines().count(), 1001);
    for words in ["--quiet --memory 24MiB", "--quiet --threads 1", "--quiet --memory 256MiB"] {
        let of_dataset = sql(&folder, &query.replace("{}", "store:made.parquet"), words).ok().stdout;
        assert!(of_dataset == of_file, "{words}");
    }
    let said = sql(&folder, "SELECT * FROM 'store:nothing'", "").exits(2);
    assert!(said.stderr.contains("nothing"), "{}", said.stderr);
    folder.run("store put sales.csv --name plain --quiet").ok();
    let said = sql(&folder, "SELECT * FROM 'store:plain'", "").exits(2);
    assert!(said.stderr.contains("store:plain") && said.stderr.contains("extension"), "{}", said.stderr);
    assert!(folder.scratch().is_empty());
}

#[test]
fn types_of_json_lines_and_csv_are_found_or_said() {
    let folder = Folder::new();
    folder.write(
        "mixed.jsonl",
        "{\"a\": 1, \"b\": true, \"c\": \"x\"}\n\n{\"b\": null, \"a\": 2.5, \"d\": [1]}\n{\"c\": \"y\\n\", \"e\": 12345678901234}\n",
    );
    let said = sql(&folder, "SELECT a, b, c, e FROM 'mixed.jsonl'", "--quiet").ok();
    assert_eq!(said.stdout, "a,b,c,e\n1.0,true,x,\n2.5,,,\n,,\"y\n\",12345678901234\n");
    let said = sql(&folder, "SELECT d FROM 'mixed.jsonl'", "").exits(2);
    assert!(said.stderr.contains("column 'd' holds objects or arrays"), "{}", said.stderr);
    folder.write("late.jsonl", "{\"a\": 1}\n".repeat(2000) + "{\"a\": \"x\"}\n");
    let said = sql(&folder, "SELECT sum(a) FROM 'late.jsonl'", "").exits(2);
    assert!(said.stderr.contains("'sum' does not take String"), "{}", said.stderr);
    folder.write("bad.jsonl", "{\"a\": 1}\n{\"a\": \n");
    let said = sql(&folder, "SELECT * FROM 'bad.jsonl'", "").exits(2);
    assert!(said.stderr.contains("bad.jsonl:2:"), "{}", said.stderr);
    folder.write("zip.csv", "zip\n01067\n");
    assert_eq!(sql(&folder, "SELECT zip FROM 'zip.csv'", "--quiet").ok().stdout, "zip\n1067\n");
    assert_eq!(sql(&folder, "SELECT zip FROM 'zip.csv'", "--text zip --quiet").ok().stdout, "zip\n01067\n");
}

#[test]
fn plans_and_ways_are_told() {
    let folder = sales();
    let query = "EXPLAIN SELECT town, count(*) FROM 'sales.csv' GROUP BY town ORDER BY town";
    let said = sql(&folder, query, "").ok();
    for node in
        ["SortReduceGroup: GROUP BY town", "SortReduceOrder: ORDER BY", "Scan: sales.csv, columns=[town]"]
    {
        assert!(said.stdout.contains(node), "no {node} in\n{}", said.stdout);
    }
    let said = sql(&folder, "SELECT DISTINCT town FROM 'sales.csv'", "--explain -o towns.csv").ok();
    assert!(said.stderr.contains("GROUP BY town: in memory"), "{}", said.stderr);
    let said = sql(&folder, "EXPLAIN ANALYZE SELECT DISTINCT town FROM 'sales.csv'", "").ok();
    assert!(said.stdout.contains("ran=in memory"), "{}", said.stdout);
    let said = sql(&folder, "SELECT DISTINCT town FROM 'sales.csv'", "--json -o towns.csv").ok();
    let facts: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(facts["summary"]["rows"], 2);
    assert_eq!(facts["summary"]["operators"][0]["ways"][0], "in memory");
}

#[test]
fn what_cannot_be_asked_is_refused_by_name() {
    let folder = sales();
    for (query, expected) in [
        ("SELECT * FROM sales", "there is no table called sales"),
        ("SELECT * FROM 'missing.csv'", "missing.csv: cannot open it"),
        ("SELECT * FROM 'no*.csv'", "no*.csv: no file matches"),
        ("SELECT price FROM 'sales.csv'", "price"),
        ("SELEC 1", "SELEC"),
        ("CREATE TABLE x AS SELECT 1", "only queries are supported"),
        ("COPY (SELECT 1) TO 'x.csv'", "only queries are supported"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
        ("SELECT amount / 0 FROM 'sales.csv'", "zero"),
    ] {
        let said = sql(&folder, query, "-o x.csv").exits(2);
        assert!(said.stderr.contains(expected), "{query}: {}", said.stderr);
        assert!(!folder.path("x.csv").exists(), "{query}");
    }
    let said = sql(&folder, "SELECT 1", "--memory 8MiB").exits(2);
    assert!(said.stderr.contains("24 MiB"), "{}", said.stderr);
    let said = folder.run("sql").exits(2);
    assert!(said.stderr.contains("QUERY"), "{}", said.stderr);
    folder.write("deep.sql", format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000)));
    let said = folder.run("sql --file deep.sql").exits(2);
    assert!(said.stderr.contains("nested too deep"), "{}", said.stderr);
}

/// In this query, a batch of 8,192 rows would have 160 MB of text.
#[test]
fn long_texts_are_sorted_and_written_in_the_least_memory() {
    let folder = Folder::new();
    let mut rows = String::from("k,t\n");
    for row in 0..3_000u64 {
        let key = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        rows += &format!("{row},{key:08}{}\n", "x".repeat(5_000 + (key % 30_000) as usize));
    }
    folder.write("long.csv", rows);
    let least = "--memory 24MiB --threads 2 --quiet";
    sql(&folder, "SELECT * FROM 'long.csv' ORDER BY t", &format!("{least} -o sorted.parquet")).ok();
    let query = "SELECT count(*) AS n, count(DISTINCT k) AS keys FROM 'sorted.parquet'";
    assert_eq!(sql(&folder, query, least).ok().stdout, "n,keys\n3000,3000\n");
}
