//! These tests run queries with exchanges on nodes in this process, and compare their rows with those of a local run.

use std::{fs, io::Cursor, path::PathBuf};

use arrow_cast::pretty::pretty_format_batches;
use inshore_kernel::TaskHandlers;
use inshore_nodes::{Agent, AgentConfig, ClientConfig, LoadOptions, RunningAgent};
use inshore_sql::{Query, Tables};
use inshore_store::{Budget, Cancel, Context, Store};
use inshore_tables::Input;
use tempfile::TempDir;

use super::*;
use crate::{
    split_points::{row_group_offsets, separator},
    testing::write_parquet,
};

struct Cluster {
    serving: Vec<Option<RunningAgent>>,
    folder: TempDir,
    nodes: Nodes,
}

impl Cluster {
    fn new(count: usize, memory_bytes: u64) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let serve = |number: usize| {
            let store = Store::open(folder.path().join(format!("node{number}"))).unwrap();
            let config = AgentConfig {
                drain: Duration::ZERO,
                ..AgentConfig::new(format!("node {number}"), memory_bytes, 2)
            };
            let works = TaskHandlers::default().with(Queries).with(Reads);
            // The tests of the command run stages in child processes.
            let works = inshore_stages::with_stages(works, vec![Arc::new(StageQueries(QueryStages))], None);
            Some(Agent::new(store, works, config).serve("127.0.0.1:0".parse().unwrap()).unwrap())
        };
        let serving: Vec<Option<RunningAgent>> = (0..count).map(serve).collect();
        let addresses = serving.iter().flatten().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        Cluster { serving, folder, nodes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, pieces: u64) {
        let (bytes, budget) = (fs::read(self.path(name)).unwrap(), Budget::new(64 << 20, 1));
        let options = LoadOptions {
            piece_bytes: Some(bytes.len() as u64 / pieces),
            ends: row_group_offsets(&Input::new(self.path(name)), &budget).unwrap(),
            copies: self.serving.len().min(2),
            block_bytes: 4096,
            separator: separator(&[name]),
            ..LoadOptions::default()
        };
        let job = Context::new(budget, Cancel::default());
        self.nodes.put(&job, name, (name, Some(bytes.len() as u64)), Cursor::new(bytes), &options).unwrap();
    }

    /// Runs a query, and returns its rows as sorted lines of text, and the costs of its jobs.
    fn ask(&self, query: &str, ending: &str, elsewhere: Option<&Arc<NodeTables>>) -> Result<Vec<String>> {
        let store = Store::open(self.path("mine")).unwrap();
        let job = store.job(Budget::new(256 << 20, 2), Cancel::default()).unwrap();
        let mut tables = Tables::default();
        for table in TABLES {
            let name = format!("{table}.{ending}");
            let path = match elsewhere {
                Some(_) => PathBuf::from(format!("store:{name}")),
                None => self.path(&name),
            };
            tables = tables.with_files(table, &[path]);
        }
        let tables = match elsewhere {
            Some(near) => tables.with_elsewhere(near.clone()),
            None => tables,
        };
        let mut query = Query::start(&job, query, tables)?;
        let mut batches = Vec::new();
        while let Some(batch) = query.next_batch()? {
            batches.push(batch);
        }
        let text = pretty_format_batches(&batches).unwrap().to_string();
        let mut lines: Vec<String> = text.lines().map(ToString::to_string).collect();
        lines.sort_unstable();
        Ok(lines)
    }

    fn exchanging(&self) -> Arc<NodeTables> {
        Arc::new(NodeTables::new(&self.nodes, RunOptions::default()).unwrap().with_exchanges())
    }

    fn wait_until_idle(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        let is_idle = || {
            self.nodes.begin(None).status().into_iter().all(|node| {
                node.status.map_or(true, |status| status.running.is_empty() && status.memory_used_bytes == 0)
            })
        };
        while !is_idle() {
            assert!(Instant::now() < until, "a job is left on a node");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The handler of read tasks.
struct Reads;

impl TaskHandler for Reads {
    fn kind(&self) -> &'static str {
        <inshore_kernel::Contents as inshore_kernel::Portable>::KIND
    }

    fn needs(&self) -> inshore_kernel::RequiredRight {
        <inshore_kernel::Contents as inshore_kernel::Portable>::NEEDS
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        inshore_kernel::Parts::<inshore_kernel::Contents>::default().work(task, reply)
    }
}

const TABLES: [&str; 3] = ["sales", "shops", "towns"];

/// Writes three tables with missing values, keys of different frequency, and keys that only one table has. Each table is
/// stored as Parquet and as CSV. The number of rows is known of a Parquet file only, so that sides of its joins are
/// broadcast.
fn write_tables(cluster: &Cluster, rows: usize) {
    let sale = |row: usize| {
        let shop = if row.is_multiple_of(17) { String::new() } else { (row * 7919 % 211).to_string() };
        let amount = ["0.0", "-0.0", "1.5", "2.25", ""][row * 31 % 5];
        format!("{row},{shop},{},{amount}\n", row * 104_729 % 1009)
    };
    let sales = "id,shop,number,amount\n".to_string() + &(0..rows).map(sale).collect::<String>();
    fs::write(cluster.path("sales.csv"), sales).unwrap();
    let shop = |shop: usize| format!("{shop},{},{}\n", shop % 23, ["big", "small", ""][shop % 3]);
    let shops = "shop,town,size\n".to_string() + &(100..400).map(shop).collect::<String>();
    fs::write(cluster.path("shops.csv"), shops).unwrap();
    let town = |town: usize| format!("{town},\"{}\"\n", ["Ulm", "Kiel", "Bad\nHomburg"][town % 3]);
    let towns = "town,name\n".to_string() + &(0..30).map(town).collect::<String>();
    fs::write(cluster.path("towns.csv"), towns).unwrap();
    for (table, rows, pieces) in [("sales", rows / 20, 10), ("shops", 50, 3), ("towns", 30, 1)] {
        let names = ["csv", "parquet"].map(|ending| format!("{table}.{ending}"));
        write_parquet(&cluster.path(&names[0]), &cluster.path(&names[1]), rows);
        names.iter().for_each(|name| cluster.put(name, pieces));
    }
}

/// Queries, and the number of jobs in stages that each of them runs on CSV and on Parquet.
const QUERIES: [(&str, [usize; 2]); 37] = [
    ("SELECT shop, count(*), sum(number), avg(number), min(id), max(id) FROM sales GROUP BY shop", [1, 1]),
    ("SELECT shop, number % 10 n, count(DISTINCT id % 100) FROM sales GROUP BY shop, n", [1, 1]),
    ("SELECT DISTINCT number FROM sales", [1, 1]),
    ("SELECT amount, count(*) FROM sales GROUP BY amount", [1, 1]),
    ("SELECT s.id, t.size FROM sales s JOIN shops t ON s.shop = t.shop WHERE s.number < 100", [1, 1]),
    ("SELECT s.id, t.town FROM sales s LEFT JOIN shops t ON s.shop = t.shop WHERE s.number < 50", [1, 1]),
    ("SELECT t.shop, s.id FROM sales s RIGHT JOIN shops t ON s.shop = t.shop AND s.number < 20", [1, 1]),
    ("SELECT t.shop, s.id FROM sales s FULL JOIN shops t ON s.shop = t.shop WHERE s.id IS NULL OR s.number < 9", [1, 1]),
    ("SELECT shop, town FROM shops t WHERE EXISTS (SELECT 1 FROM sales s WHERE s.shop = t.shop)", [1, 1]),
    ("SELECT shop, town FROM shops t WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.shop = t.shop)", [1, 1]),
    ("SELECT count(*) FROM sales WHERE shop IN (SELECT shop FROM shops WHERE size = 'big')", [1, 1]),
    ("SELECT count(*) FROM sales WHERE shop NOT IN (SELECT shop FROM shops)", [0, 0]),
    ("SELECT name, size, sum(number) n, count(*) c FROM sales JOIN shops USING (shop) JOIN towns USING (town)
      GROUP BY name, size ORDER BY n DESC", [1, 1]),
    ("SELECT name, count(*) c FROM sales JOIN shops USING (shop) JOIN towns USING (town) GROUP BY name
      HAVING count(*) > 10 ORDER BY c DESC, name LIMIT 2", [1, 1]),
    ("SELECT one.id, other.id FROM sales one JOIN sales other ON one.id = other.number WHERE one.id < 40", [1, 1]),
    ("SELECT id, rank() OVER (PARTITION BY shop ORDER BY number, id) r FROM sales WHERE number < 200", [1, 1]),
    ("SELECT id, sum(number) OVER (PARTITION BY shop) r FROM sales WHERE number < 100", [1, 1]),
    ("SELECT id, row_number() OVER (ORDER BY id) r FROM sales WHERE number < 10", [0, 0]),
    ("SELECT count(*), sum(number) FROM sales", [0, 0]),
    ("SELECT id FROM sales ORDER BY number DESC, id LIMIT 7", [0, 0]),
    ("SELECT shop FROM sales WHERE number > (SELECT avg(number) FROM sales) AND id < 300 GROUP BY shop", [1, 1]),
    ("SELECT shop, count(*) FROM sales GROUP BY shop UNION ALL SELECT town, count(*) FROM shops GROUP BY town", [2, 2]),
    ("SELECT number FROM sales WHERE number < 90 INTERSECT SELECT shop FROM shops", [1, 1]),
    ("SELECT s.id, t.name FROM sales s CROSS JOIN towns t WHERE s.id < 5", [0, 1]),
    // Sides of a join whose other side is not on nodes, or depends on a subquery.
    ("SELECT g.shop, g.n, v.m FROM (SELECT shop, count(*) n FROM sales GROUP BY shop) g
      JOIN (VALUES (3, 4), (5, 6), (7, 8)) v(shop, m) ON g.shop = v.shop", [1, 1]),
    ("SELECT g.shop, n, m FROM (SELECT shop, count(*) n FROM sales GROUP BY shop) g JOIN
      (SELECT shop, max(id) m FROM sales WHERE id > (SELECT avg(number) FROM sales) GROUP BY shop) o
      ON g.shop = o.shop", [1, 1]),
    ("SELECT number, sum(id) FROM sales WHERE number < 0 GROUP BY number", [1, 1]),
    ("SELECT count(*), sum(s.id) FROM sales s JOIN shops t ON s.number BETWEEN t.shop AND t.shop + 3", [0, 1]),
    ("SELECT s.id, t.shop FROM sales s LEFT JOIN shops t ON s.number < t.shop AND t.shop < 103 WHERE s.id < 90", [0, 1]),
    ("SELECT count(*), min(name) FROM sales JOIN shops USING (shop) JOIN towns USING (town)", [1, 1]),
    ("SELECT t.town, count(*) FROM towns t LEFT JOIN shops o USING (town) LEFT JOIN sales s ON s.shop = o.shop
      GROUP BY t.town", [1, 1]),
    ("SELECT id FROM sales s WHERE number < 60 AND (id < 300 OR EXISTS (SELECT 1 FROM shops t WHERE t.shop = s.shop))", [1, 1]),
    ("SELECT s.id, name FROM sales s JOIN shops USING (shop) JOIN towns t USING (town) ORDER BY s.number, s.id LIMIT 9", [1, 1]),
    // Values of subqueries: several, within each other, of text, and none.
    ("SELECT shop, count(*) FROM sales WHERE number < (SELECT max(number) FROM sales WHERE id < (SELECT min(shop) FROM shops))
      AND id >= (SELECT count(*) FROM towns) GROUP BY shop", [1, 1]),
    ("SELECT town, count(*) FROM shops WHERE size >= (SELECT min(name) FROM towns WHERE town = 1) GROUP BY town", [1, 1]),
    ("SELECT town, count(*), (SELECT max(name) FROM towns WHERE town > 99) m FROM shops GROUP BY town", [1, 1]),
    ("SELECT count(*), max(id) FROM sales WHERE number > (SELECT avg(shop) FROM shops)", [0, 0]),
];

#[test]
fn queries_with_exchanges_give_the_rows_of_a_local_run() {
    let cluster = Cluster::new(3, 320 << 20);
    write_tables(&cluster, 20_000);
    let mut differing = Vec::new();
    for (query, jobs) in QUERIES {
        for (ending, jobs) in ["csv", "parquet"].into_iter().zip(jobs) {
            let expected = cluster.ask(query, ending, None).unwrap();
            let near = cluster.exchanging();
            let found = cluster.ask(query, ending, Some(&near));
            let ran = near.jobs().len();
            differing.extend(match found {
                Ok(found) if found == expected && ran == jobs => None,
                Ok(found) if found == expected => Some(format!("{query}, {ending}: {ran} jobs, not {jobs}")),
                Ok(found) => {
                    Some(format!("{query}, {ending}: {} lines, not {}", found.len(), expected.len()))
                }
                Err(error) => Some(format!("{query}, {ending}: {error}")),
            });
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
    cluster.wait_until_idle();
}

#[test]
fn a_node_that_is_lost_before_a_query_is_replaced_by_replicas() {
    let mut cluster = Cluster::new(3, 320 << 20);
    write_tables(&cluster, 2000);
    let query = QUERIES[12].0;
    let expected = cluster.ask(query, "csv", None).unwrap();
    drop(cluster.serving[1].take());
    for ending in ["csv", "parquet"] {
        assert_eq!(cluster.ask(query, ending, Some(&cluster.exchanging())).unwrap(), expected);
    }
    cluster.wait_until_idle();
}

#[test]
fn nodes_without_enough_memory_are_named_with_the_memory_that_suffices() {
    let cluster = Cluster::new(2, 48 << 20);
    write_tables(&cluster, 2000);
    let error = cluster.ask(QUERIES[0].0, "csv", Some(&cluster.exchanging())).unwrap_err().to_string();
    assert!(error.contains("--node-memory") && error.contains("24 MiB"), "{error}");
    cluster.wait_until_idle();
}

/// The side of the join is small by its number of rows, and does not fit in a slot. The query then runs again, and both
/// sides are divided.
#[test]
fn a_side_that_does_not_fit_in_memory_is_not_broadcast() {
    let cluster = Cluster::new(2, 200 << 20);
    write_tables(&cluster, 20_000);
    let query = "SELECT count(*), sum(length(large.text))
        FROM (SELECT id, repeat(cast(id AS varchar), 900) text FROM sales) large JOIN sales s ON s.number = large.id";
    let expected = cluster.ask(query, "parquet", None).unwrap();
    let near = cluster.exchanging();
    assert_eq!(cluster.ask(query, "parquet", Some(&near)).unwrap(), expected);
    let jobs = near.jobs();
    let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert!(job.stages.iter().all(|stage| !stage.name.contains("join sales")), "{job:?}");
    cluster.wait_until_idle();
}

#[test]
fn a_query_that_fails_on_a_value_fails_at_once() {
    let cluster = Cluster::new(2, 320 << 20);
    write_tables(&cluster, 2000);
    for query in [
        "SELECT shop, count(*) FROM sales GROUP BY shop, 1 / (id - 1000)",
        "SELECT count(*) FROM sales JOIN shops USING (shop) WHERE 1 / (id - 1000) < 5",
    ] {
        let error = cluster.ask(query, "parquet", Some(&cluster.exchanging())).unwrap_err().to_string();
        assert!(error.to_lowercase().contains("divide by zero") && !error.contains("times"), "{error}");
    }
    cluster.wait_until_idle();
}
