//! These tests run queries on nodes in this process. The drives of the nodes are slow, so that the client
//! processes some shards itself.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use arrow_cast::pretty::pretty_format_batches;
use inshore_kernel::{Contents, Parts, Portable, RequiredRight, TaskHandlers};
use inshore_nodes::{Agent, AgentConfig, ClientConfig, HereCost, LoadOptions, RunningAgent};
use inshore_sql::{Query, Tables};
use inshore_store::{Budget, Cancel, Context, Limits, Store};
use inshore_tables::Input;
use tempfile::TempDir;

use super::*;
use crate::{
    split_points::{row_group_offsets, separator},
    testing::{slow_store, write_parquet},
};

/// The handler of read tasks on a node. Only a limited number of reads succeed.
struct Reads(Arc<AtomicUsize>);

impl TaskHandler for Reads {
    fn kind(&self) -> &'static str {
        Contents::KIND
    }

    fn needs(&self) -> RequiredRight {
        Contents::NEEDS
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let left = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(_) => Parts::<Contents>::default().work(task, reply),
            Err(_) => Err("a planned fault of reading".into()),
        }
    }
}

struct Cluster {
    _serving: Vec<RunningAgent>,
    /// The number of reads of all nodes that still succeed.
    reads: Arc<AtomicUsize>,
    folder: TempDir,
    nodes: Nodes,
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        Cluster::within(count, Limits { bytes_per_second: 2 << 20, ..Limits::default() })
    }

    /// Starts nodes whose drives have these limits.
    fn within(count: usize, limits: Limits) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let reads = Arc::new(AtomicUsize::new(usize::MAX));
        let serve = |number: usize| {
            let store = slow_store(&folder.path().join(format!("node{number}")), limits);
            let config =
                AgentConfig { task_memory_bytes: 64 << 20, ..AgentConfig::new("slow", 256 << 20, 2) };
            let works = TaskHandlers::default().with(Queries).with(Reads(reads.clone()));
            Agent::new(store, works, config).serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let serving: Vec<RunningAgent> = (0..count).map(serve).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        Cluster { _serving: serving, reads, folder, nodes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies a local file to the nodes, in about this number of shards.
    fn put(&self, name: &str, pieces: u64) {
        let (bytes, budget) = (fs::read(self.path(name)).unwrap(), Budget::new(64 << 20, 1));
        let options = LoadOptions {
            piece_bytes: Some(bytes.len() as u64 / pieces),
            ends: row_group_offsets(&Input::new(self.path(name)), &budget).unwrap(),
            block_bytes: 4096,
            separator: separator(&[name]),
            ..LoadOptions::default()
        };
        let job = Context::new(budget, Cancel::default());
        self.nodes.put(&job, name, (name, Some(bytes.len() as u64)), Cursor::new(bytes), &options).unwrap();
    }

    /// Runs a query in which `TABLE` stands for the name of the table. Returns the rows as text, and the cost of
    /// the client's own processing of shards.
    fn ask(&self, query: &str, table: &str) -> (String, Option<HereCost>) {
        let store = Store::open(self.path("mine")).unwrap();
        let job = store.job(Budget::new(1 << 30, 2), Cancel::default()).unwrap();
        let options = RunOptions { help_from: Some(Duration::from_millis(60)), ..RunOptions::default() };
        let near = Arc::new(NodeTables::new(&self.nodes, options).unwrap());
        let query = query.replace("TABLE", &format!("'{table}'"));
        let mut query = Query::start(&job, &query, Tables::default().with_elsewhere(near.clone())).unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = query.next_batch().unwrap() {
            batches.push(batch);
        }
        drop(query);
        // The threads of an earlier attempt at the query may still hold memory.
        let until = Instant::now() + Duration::from_secs(120);
        while job.budget().reserved_bytes() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
        (pretty_format_batches(&batches).unwrap().to_string(), near.gathered().here)
    }
}

const ROWS: usize = 60_000;

fn write_table(csv: &Path, parquet: &Path) {
    let row = |row: usize| {
        let town = ["Ulm", "", "\"Bad\nHomburg\""][row * 7919 % 3];
        format!("{row},{town},{}\n", row * 31 % 7001)
    };
    fs::write(csv, "row,town,number\n".to_string() + &(0..ROWS).map(row).collect::<String>()).unwrap();
    write_parquet(csv, parquet, 1500);
}

const QUERIES: [&str; 4] = [
    "SELECT * FROM TABLE WHERE number % 3 <> 1 ORDER BY row",
    "SELECT town, count(*) a, sum(row) b, avg(number) c, count(DISTINCT number) d FROM TABLE GROUP BY town ORDER BY town",
    "SELECT number, max(row) a FROM TABLE GROUP BY number ORDER BY number",
    "SELECT row, town FROM TABLE ORDER BY number DESC, row LIMIT 20",
];

#[test]
fn what_slow_nodes_have_not_begun_of_a_query_is_done_here() {
    let cluster = Cluster::new(2);
    write_table(&cluster.path("t.csv"), &cluster.path("t.parquet"));
    for name in ["t.csv", "t.parquet"] {
        cluster.put(name, 24);
        let path = cluster.path(name);
        for query in QUERIES {
            let (expected, here) = cluster.ask(query, path.to_str().unwrap());
            assert!(here.is_none());
            let (found, here) = cluster.ask(query, &format!("store:{name}"));
            assert!(found == expected, "{name}: {query}: {here:?}");
            let here = here.unwrap();
            assert!(here.pieces > 0, "{name}: {query}: {here:?}");
        }
    }
}

#[test]
fn only_columns_that_a_query_needs_come_here() {
    let cluster = Cluster::within(1, Limits { latency: Duration::from_millis(50), ..Limits::default() });
    let (csv, parquet) = (cluster.path("t.csv"), cluster.path("t.parquet"));
    // Most bytes belong to a column that the query does not need.
    let row = |row: u64| {
        let word = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let noise = [word, !word, word.rotate_left(20), word.rotate_left(40)].map(|word| format!("{word:x}"));
        format!("{row},{},{}\n", noise.concat(), word >> 40)
    };
    fs::write(&csv, "row,noise,number\n".to_string() + &(0..20_000).map(row).collect::<String>()).unwrap();
    write_parquet(&csv, &parquet, 2000);
    cluster.put("t.parquet", 10);
    let size = fs::metadata(&parquet).unwrap().len();
    let query = "SELECT max(number) a, count(*) b FROM TABLE";
    let (expected, _) = cluster.ask(query, parquet.to_str().unwrap());
    let (found, here) = cluster.ask(query, "store:t.parquet");
    let here = here.unwrap();
    assert!(found == expected && here.pieces > 0, "{here:?}");
    assert!(here.bytes < here.pieces * size / 10 / 4, "{here:?} of {size}");
}

#[test]
fn a_query_whose_help_fails_is_answered_by_the_nodes() {
    let cluster = Cluster::new(2);
    write_table(&cluster.path("t.csv"), &cluster.path("t.parquet"));
    let mut failed = 0;
    for name in ["t.csv", "t.parquet"] {
        cluster.put(name, 24);
        for (number, query) in QUERIES.into_iter().enumerate() {
            let (expected, _) = cluster.ask(query, cluster.path(name).to_str().unwrap());
            // The limit allows the reads that infer the columns, and the reads of one or two shards.
            let reads = [2, 4][(number + usize::from(name == "t.csv")) % 2];
            cluster.reads.store(reads, Ordering::Relaxed);
            let (found, here) = cluster.ask(query, &format!("store:{name}"));
            assert!(found == expected, "{name}: {query}: {reads}: {here:?}");
            failed += usize::from(here.is_none_or(|here| here.why.contains("a planned fault")));
            cluster.reads.store(usize::MAX, Ordering::Relaxed);
        }
    }
    assert!(failed > 0);
}

#[test]
fn types_of_csv_with_many_line_feeds_in_quotes_are_those_of_a_reading_here() {
    let cluster = Cluster::within(2, Limits::default());
    // The first MiB has more line feeds than the number of rows from which columns are inferred, and ends within
    // quotes. The type of a column changes after the first MiB, but within these rows.
    let row = |row: usize, separator: char| {
        let lines = "the next line, \"\"quoted\"\"\tand on\n".repeat(64);
        let stars = if row < 900 { (row % 5).to_string() } else { format!("{}.5", row % 5) };
        format!("{row}{separator}\"{lines}\"{separator}{stars}\n")
    };
    for (name, separator) in [("t.csv", ','), ("t.tsv", '\t')] {
        let head = ["id", "text", "stars"].join(&separator.to_string()) + "\n";
        let text = head + &(0..2500).map(|number| row(number, separator)).collect::<String>();
        let first = &text.as_bytes()[..1 << 20];
        assert!(first.iter().filter(|&&byte| byte == b'\n').count() > 1001 && text.len() > 5 << 20);
        fs::write(cluster.path(name), text).unwrap();
        cluster.put(name, 7);
        for query in [
            "SELECT arrow_typeof(id) a, arrow_typeof(text) b, arrow_typeof(stars) c FROM TABLE LIMIT 1",
            "SELECT stars, count(*) a, sum(id) b, sum(length(text)) c FROM TABLE GROUP BY stars ORDER BY stars",
        ] {
            let (expected, _) = cluster.ask(query, cluster.path(name).to_str().unwrap());
            let (found, _) = cluster.ask(query, &format!("store:{name}"));
            assert_eq!(found, expected, "{name}: {query}");
        }
    }
}

#[test]
fn rows_of_csv_with_a_quote_in_a_word_are_those_of_a_reading_here() {
    let cluster = Cluster::within(2, Limits::default());
    let row = |row: usize, separator: char| match row % 10 {
        // The quote in each row with last digit 3 does not open a quoted field. The quote in each row with last
        // digit 7 opens a quoted field with line feeds.
        3 => format!("{row}{separator}5\" pipe{separator}x\n"),
        7 => format!("{row}{separator}\"two\n\"\"lines\"\"\n\"{separator}x\n"),
        _ => format!("{row}{separator}word{separator}\"x\"\n"),
    };
    for (name, separator) in [("t.csv", ','), ("t.tsv", '\t')] {
        let head = ["id", "text", "more"].join(&separator.to_string()) + "\n";
        let text = head + &(0..4000).map(|number| row(number, separator)).collect::<String>();
        fs::write(cluster.path(name), text).unwrap();
        // With 100 shards, at least one shard would begin within quotes if the division into shards ignored
        // quotes.
        cluster.put(name, 100);
        assert!(cluster.nodes.catalog().unwrap().named(name).unwrap()[0].pieces.len() > 90);
        let query = "SELECT text, more, count(*) a, sum(id) b FROM TABLE GROUP BY text, more ORDER BY text";
        let (expected, _) = cluster.ask(query, cluster.path(name).to_str().unwrap());
        let (found, _) = cluster.ask(query, &format!("store:{name}"));
        assert_eq!(found, expected, "{name}");
    }
}
