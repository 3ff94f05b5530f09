//! These tests run each operation on each target, with the same input. They check that the answers are equal in
//! the normal form that the operation declares. An operation that cannot run on a target is refused by name.
#![cfg(all(feature = "graph", feature = "nodes", feature = "sql", feature = "vectors"))]

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arrow_array::{ArrayRef, FixedSizeListArray, Int32Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field, SchemaRef};
use inshore_kernel::Next;
use inshore_kernels::{
    BlockMatches, MultilineMatcher, Profiles, SearchOutput, SearchSummary, WalkedFile, decompress,
    text_source,
};
use inshore_nodes::{Agent, AgentConfig, ClientConfig, LoadOptions, Nodes, RunOptions, RunningAgent};
use inshore_ops::{
    Attachments, Entry, Error, NormalForm, OPERATIONS, OnNodes, RowReceiver, StoreUse, Target, TargetKind,
    can_run_stages, named, queries,
    split_points::{record_lines, row_group_offsets, separator},
    verbs::{Matches, Text},
    works_here,
};
use inshore_store::{Budget, Cancel, Context, Execution, FileReader, Job, Store};
use inshore_tables::Input;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A request, and the file name extension of its output if the operation writes an output. In the request, `@NAME`
/// stands for the input of that name; each target replaces it by its own path.
struct Row {
    request: Value,
    output: Option<&'static str>,
    /// True if nodes refuse an option of the request, though they support the operation.
    is_refused_on_nodes: bool,
}

fn row(request: Value, output: impl Into<Option<&'static str>>) -> Row {
    Row { request, output: output.into(), is_refused_on_nodes: false }
}

fn row_of_a_store(request: Value, output: impl Into<Option<&'static str>>) -> Row {
    Row { is_refused_on_nodes: true, ..row(request, output) }
}

/// Returns at least one test case for each operation, and one for each variant of an operation.
fn rows() -> Vec<Row> {
    let is_built = |row: &Row| OPERATIONS.iter().any(|entry| row.request["operation"] == entry.name);
    all_rows().into_iter().filter(is_built).collect()
}

fn all_rows() -> Vec<Row> {
    let table = |query: &str| {
        json!({ "operation": "sql", "version": 1, "query": query,
                "tables": [{ "name": "sales", "path": "@sales.csv" }] })
    };
    vec![
        row(json!({ "operation": "sort", "version": 1, "inputs": ["@lines.txt"] }), "txt"),
        row(
            json!({ "operation": "sort", "version": 1, "inputs": ["@lines.txt"], "unique": true,
                    "descending": true }),
            "txt",
        ),
        row(
            json!({ "operation": "sort", "version": 1, "inputs": ["@records.bin"],
                    "by": { "records": { "bytes": 20, "key": [4, 8] } } }),
            "bin",
        ),
        row(
            json!({ "operation": "sort", "version": 1, "inputs": ["@sales.csv"],
                    "by": { "columns": { "keys": [{ "column": "shop", "descending": true },
                                                  { "column": "price", "descending": false }] } } }),
            "csv",
        ),
        row(
            json!({ "operation": "reduce", "version": 1, "inputs": ["@sales.csv"], "by": ["shop"],
                    "aggregates": [{ "function": "count" }, { "function": "count", "column": "discount" },
                                   { "function": "sum", "column": "price" }, { "function": "mean", "column": "price" },
                                   { "function": "min", "column": "item" }, { "function": "max", "column": "price" },
                                   { "function": "sum", "column": "weight" }] }),
            "csv",
        ),
        row(
            json!({ "operation": "reduce", "version": 1, "inputs": ["@sales.csv"],
                    "aggregates": [{ "function": "sum", "column": "price" }] }),
            "csv",
        ),
        row(
            json!({ "operation": "search", "version": 1, "inputs": ["@lines.txt", "@texts.txt"],
                    "patterns": ["row 1[0-9]$", "HUND"], "matching": { "ignore_case": true } }),
            "csv",
        ),
        row(
            json!({ "operation": "search", "version": 1, "inputs": ["@lines.txt", "@texts.txt", "@sales.csv"],
                    "patterns": ["item1"], "matching": { "fixed": true },
                    "rows": { "columns": "match_counts", "include_zero": true } }),
            "csv",
        ),
        row(
            json!({ "operation": "search", "version": 1, "inputs": ["@texts.txt"], "patterns": ["Straße"],
                    "rows": { "max_count": 100 } }),
            "csv",
        ),
        row(json!({ "operation": "count kmers", "version": 1, "inputs": ["@genome.fa"], "k": 7 }), "csv"),
        row(
            json!({ "operation": "count kmers", "version": 1, "inputs": ["@reads.fastq"], "k": 40,
                    "canonical": false, "min_count": 2 }),
            "csv",
        ),
        row(
            json!({ "operation": "count values", "version": 1, "inputs": ["@sales.csv"],
                    "columns": ["shop", "item"] }),
            "csv",
        ),
        row(
            json!({ "operation": "count words", "version": 1, "inputs": ["@lines.txt"], "top": 5,
                    "ignore_case": true }),
            "csv",
        ),
        row(
            json!({ "operation": "count words", "version": 1, "inputs": ["@lines.txt", "@texts.txt"],
                    "split": true, "min_count": 3 }),
            "csv",
        ),
        row(
            json!({ "operation": "language train", "version": 1, "name": "trained", "grams": 300,
                    "inputs": ["@texts.txt", "@lines.txt", "@sales.csv"], "labels": ["de", "en", "de"] }),
            None,
        ),
        row(
            json!({ "operation": "language identify", "version": 1, "inputs": ["@texts.txt"],
                    "profiles": "europe", "lines": true }),
            "csv",
        ),
        row(
            json!({ "operation": "language identify", "version": 1, "inputs": ["@texts.txt", "@lines.txt"],
                    "profiles": "europe" }),
            "csv",
        ),
        row(json!({ "operation": "compress", "version": 1, "inputs": ["@lines.txt"] }), "zst"),
        row(
            json!({ "operation": "compress", "version": 1, "inputs": ["@records.bin"], "format": "gzip",
                    "level": 9 }),
            "out",
        ),
        row(json!({ "operation": "decompress", "version": 1, "inputs": ["@lines.txt.gz"] }), "txt"),
        row(
            json!({ "operation": "checksum", "version": 1, "inputs": ["@lines.txt", "@records.bin"],
                    "algorithm": "blake3" }),
            None,
        ),
        row(table("SELECT shop, item, price FROM sales WHERE price > 50"), "csv"),
        row(
            json!({ "operation": "kernel run", "version": 1, "inputs": ["@lines.txt"], "kernel": "hits" }),
            "bin",
        ),
        row(json!({ "operation": "kernel push", "version": 1, "inputs": ["@hits.wasm"] }), None),
        row(json!({ "operation": "kernel ls", "version": 1 }), None),
        row(json!({ "operation": "kernel rm", "version": 1, "inputs": ["gone"] }), None),
        row(
            json!({ "operation": "node run", "version": 1, "program": "wc", "inputs": ["@lines.txt"] }),
            "txt",
        ),
        row(
            json!({ "operation": "node traverse", "version": 1, "inputs": ["@pages.bin"], "starts": [3, 70],
                    "steps": 500, "page_bytes": 20, "at": 8 }),
            None,
        ),
        row(
            json!({ "operation": "node traverse", "version": 1, "inputs": ["@pages.bin"], "steps": 50,
                    "page_bytes": 20, "at": 8, "by": "client", "keep_bytes": 65536 }),
            None,
        ),
        row(
            json!({ "operation": "graph import", "version": 1, "inputs": ["@edges.txt"], "name": "imported",
                    "options": { "undirected": true, "weighted": true } }),
            None,
        ),
        row(
            json!({ "operation": "graph generate", "version": 1, "name": "kron", "reverse": true,
                    "kronecker": { "scale": 8, "edge_factor": 4, "seed": 3 } }),
            None,
        ),
        row(json!({ "operation": "graph ls", "version": 1 }), None),
        row(json!({ "operation": "graph info", "version": 1, "inputs": ["@links"] }), None),
        row(json!({ "operation": "graph rm", "version": 1, "inputs": ["store:copied"] }), None),
        row(
            json!({ "operation": "graph check", "version": 1, "inputs": ["@parts.csv"], "graph": "links",
                    "options": { "iterations": 10, "source": null } }),
            None,
        ),
        row(json!({ "operation": "graph export", "version": 1, "inputs": ["@links"] }), "csv"),
        row(
            json!({ "operation": "graph pagerank", "version": 1, "inputs": ["@links"], "iterations": 20,
                    "resume": 30.0 }),
            "csv",
        ),
        row(
            json!({ "operation": "graph pagerank", "version": 1, "inputs": ["@links"], "iterations": 20,
                    "tolerance": 0.01 }),
            "csv",
        ),
        row(
            json!({ "operation": "graph pagerank", "version": 1, "inputs": ["@links"],
                    "vertex_tolerance": 1e-3, "damping": 0.5 }),
            "csv",
        ),
        row(json!({ "operation": "graph bfs", "version": 1, "inputs": ["@links"], "source": 5 }), "csv"),
        row(
            json!({ "operation": "graph bfs", "version": 1, "inputs": ["@links"], "source": 5, "resume": 30.0 }),
            "csv",
        ),
        row(json!({ "operation": "graph sssp", "version": 1, "inputs": ["@links"], "source": 5 }), "csv"),
        row(
            json!({ "operation": "graph components", "version": 1, "inputs": ["@links"],
                    "tuning": { "regime": "semi_external" } }),
            "csv",
        ),
        row(
            json!({ "operation": "graph communities", "version": 1, "inputs": ["@links"], "iterations": 5,
                    "tuning": { "strategy": "merge" } }),
            "csv",
        ),
        row(json!({ "operation": "graph clustering", "version": 1, "inputs": ["@links"] }), "csv"),
        row(
            json!({ "operation": "graph betweenness", "version": 1, "inputs": ["@links"], "sources": 4,
                    "seed": 7 }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest import", "version": 1, "inputs": ["@points.u8bin"], "name": "imported",
                    "bits": false }),
            None,
        ),
        row(
            json!({ "operation": "nearest import content", "version": 1, "inputs": ["@lines.txt"],
                    "name": "counted", "content": "documents", "lines": true, "words": 50 }),
            None,
        ),
        row(
            json!({ "operation": "nearest query", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "points", "k": 3, "metric": "cosine" }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest import", "version": 1, "inputs": ["@documents.parquet"],
                    "name": "imported", "column": "embedding", "id": "document" }),
            None,
        ),
        row(
            json!({ "operation": "nearest query", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "documents", "k": 3, "where": "year > 2010 AND document <> 'document 3'",
                    "select": ["year", "_row"] }),
            "csv",
        ),
        row_of_a_store(
            json!({ "operation": "nearest index", "version": 1, "dataset": "points", "lists": 8, "seed": 3,
                    "copies": 3 }),
            None,
        ),
        row_of_a_store(
            json!({ "operation": "nearest query", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "points", "k": 3, "recall": 0.9, "strategy": "single" }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest index", "version": 1, "dataset": "points", "lists": 6, "seed": 3 }),
            None,
        ),
        row_of_a_store(
            json!({ "operation": "nearest index", "version": 1, "dataset": "documents", "seed": 3,
                    "lsh": { "tables": 2, "bits": null, "buckets": 30, "width": null } }),
            None,
        ),
        row(
            json!({ "operation": "nearest query", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "points", "k": 4, "probes": 200, "strategy": "batch" }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest join", "version": 1, "queries": "points", "dataset": "points",
                    "k": 3, "recall": 0.9, "strategy": "single" }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest graph", "version": 1, "dataset": "points", "k": 3,
                    "metric": "cosine" }),
            "csv",
        ),
        row(json!({ "operation": "nearest dedup", "version": 1, "dataset": "points", "cosine": 0.9 }), "csv"),
        row(
            json!({ "operation": "nearest dedup", "version": 1, "dataset": "points", "radius": 150.0,
                    "groups": true }),
            "csv",
        ),
        row(
            json!({ "operation": "nearest recall", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "points", "sample": 50 }),
            None,
        ),
        row(
            json!({ "operation": "nearest add", "version": 1, "inputs": ["@points.u8bin"], "dataset": "changed",
                    "bits": false, "column": null, "lines": false }),
            None,
        ),
        row(
            json!({ "operation": "nearest upsert", "version": 1, "inputs": ["@points.u8bin"],
                    "dataset": "changed", "ids": (100..300).collect::<Vec<u64>>(), "bits": false,
                    "column": null }),
            None,
        ),
        row(
            json!({ "operation": "nearest remove", "version": 1, "dataset": "changed", "ids": [3, 150] }),
            None,
        ),
        row(json!({ "operation": "nearest compact", "version": 1, "dataset": "changed" }), None),
        row(json!({ "operation": "nearest ls", "version": 1 }), None),
        row(json!({ "operation": "nearest info", "version": 1, "inputs": ["@points"] }), None),
        row(json!({ "operation": "nearest rm", "version": 1, "inputs": ["store:discarded"] }), None),
        row(
            json!({ "operation": "nearest rm", "version": 1, "inputs": ["store:discarded"], "index": true }),
            None,
        ),
        row(
            json!({ "operation": "store put", "version": 1, "inputs": ["@lines.txt"], "name": "copied" }),
            None,
        ),
        row(
            json!({ "operation": "store get", "version": 1, "inputs": ["@lines.txt"], "offset": 1000,
                    "length": 100_000 }),
            "txt",
        ),
        row(json!({ "operation": "store get", "version": 1, "inputs": ["@records.bin"] }), "bin"),
        row(json!({ "operation": "store ls", "version": 1 }), None),
        row(json!({ "operation": "store rm", "version": 1, "inputs": ["copied", "store:moved"] }), None),
        row(
            table("SELECT shop, count(*), sum(price), min(item), sum(weight) FROM sales GROUP BY shop"),
            "csv",
        ),
    ]
}

/// Operations that start the calling program again as a child process. The tests of the command line run these
/// operations on every target.
const BY_THE_COMMAND: [&str; 3] = ["kernel run", "kernel push", "node run"];

/// Local files. Each file is also a dataset of the local store, and a dataset on three nodes.
struct Setup {
    _serving: Vec<RunningAgent>,
    folder: TempDir,
    store: Store,
    nodes: OnNodes,
}

/// Returns a pseudo-random number.
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn bases(count: u64, seed: u64) -> String {
    (0..count).map(|base| ["A", "C", "G", "T"][(mixed(seed + base) % 4) as usize]).collect()
}

/// Returns the names of the inputs with their bytes.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let line = |row| format!("{} Some words of row {}\n", mixed(row) % 900, row % 70);
    let lines: String = (0..6000).map(line).collect();
    let record = |row: u64| {
        let key = (mixed(row) % 300) as u32;
        [&[b'-'; 4][..], &key.to_be_bytes(), &row.to_le_bytes(), &[b'+'; 4]].concat()
    };
    let sale = |row: u64| {
        let (shop, item) =
            (["Ulm", "", "\"Bad\nHomburg\"", "Köln"][(mixed(row) % 4) as usize], mixed(row) % 9);
        let discount = if row.is_multiple_of(3) { String::new() } else { (row % 5).to_string() };
        format!("{shop},item{item},{},{discount},{}\n", mixed(row) % 100, (mixed(row) % 1000) as f64 / 7.0)
    };
    let sales: String = (0..5000).map(sale).collect();
    let genome: String =
        (0..40).map(|row| format!(">{row}\n{}\n{}\n", bases(900, row * 7000), bases(300, row % 3))).collect();
    let read = |row: u64| format!("@{row}\n{}\n+\n{}\n", bases(60, (row % 200) * 100), "I".repeat(60));
    let text = |row| {
        ["der Hund läuft über die Straße und bellt\n", "the dog runs across the street and barks\n"]
            [(mixed(row) % 2) as usize]
    };
    let page = |row: u64| [&[b'-'; 8][..], &(mixed(row) % 8000).to_le_bytes(), &[b'+'; 4]].concat();
    let edge = |row: u64| format!("{} {} {}.5\n", mixed(row) % 300, mixed(row * 7) % 300, row % 4);
    let edges: String = (0..2000).map(edge).collect();
    vec![
        ("hits.wasm", b"a module, which no test here starts".to_vec()),
        ("lines.txt", lines.into_bytes()),
        ("pages.bin", (0..8000).flat_map(page).collect()),
        ("edges.txt", ("5 6 1.5\n".to_string() + &edges).into_bytes()),
        ("records.bin", (0..8000).flat_map(record).collect()),
        ("sales.csv", ("shop,item,price,discount,weight\n".to_string() + &sales).into_bytes()),
        ("genome.fa", genome.into_bytes()),
        ("reads.fastq", (0..1500).map(read).collect::<String>().into_bytes()),
        ("texts.txt", (0..3000).map(text).collect::<String>().into_bytes()),
    ]
}

fn context() -> Context {
    Context::new(Budget::new(256 << 20, 2), Cancel::default())
}

/// The code of stages in this process: a test program is no child process of a node.
fn works_in_stages() -> Vec<Arc<dyn inshore_stages::StageWork>> {
    let queries = queries::StageQueries(queries::QueryStages);
    vec![
        Arc::new(inshore_ops::sorting::StageSort),
        Arc::new(inshore_ops::graph_stages::StageGraphs),
        Arc::new(queries),
    ]
}

impl Setup {
    fn new() -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let serve = |number: usize| {
            let store = Store::open(folder.path().join(format!("node{number}"))).unwrap();
            let config =
                AgentConfig { task_memory_bytes: 96 << 20, ..AgentConfig::new("node", 256 << 20, 2) };
            let works = works_here().with(queries::Queries);
            Agent::new(store, inshore_stages::with_stages(works, works_in_stages(), None), config)
                .serve("127.0.0.1:0".parse().unwrap())
                .unwrap()
        };
        let serving: Vec<RunningAgent> = (0..3).map(serve).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        let store = Store::open(folder.path().join("mine")).unwrap();
        let options = RunOptions { help_from: None, ..RunOptions::default() };
        let setup = Setup { _serving: serving, folder, store, nodes: OnNodes { nodes, options } };
        files().iter().for_each(|(name, bytes)| setup.put(name, bytes));
        setup.train();
        setup.import_graph("links");
        setup.load_edges("links");
        setup
    }

    /// Divides the edges of a graph into shards on the nodes, where a cluster reads them.
    fn load_edges(&self, name: &str) {
        let bytes = fs::read(self.path("edges.txt")).unwrap();
        let options = LoadOptions { piece_bytes: Some(bytes.len() as u64 / 7), ..LoadOptions::default() };
        self.nodes
            .nodes
            .put(&context(), name, (name, Some(bytes.len() as u64)), &bytes[..], &options)
            .unwrap();
    }

    fn import_graph(&self, name: &str) {
        let edges = json!({ "operation": "graph import", "inputs": [self.path("edges.txt")], "name": name,
                            "options": { "weighted": true } });
        self.run_one(TargetKind::Local, edges, None);
    }

    /// Writes the components of a graph to a file.
    fn write_components(&self, name: &str) -> Vec<u8> {
        let request = json!({ "operation": "graph components", "inputs": ["links"] });
        self.run_one(TargetKind::Local, request, Some(name)).1
    }

    fn job(&self) -> Job {
        self.store.job(Budget::new(256 << 20, 2), Cancel::default()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file to the local folder, to the local store, and to the nodes.
    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        let job = self.job();
        let mut dataset = self.store.create_dataset(&job, name, "bytes").unwrap();
        let mut file = dataset.file(name, 64 << 10, 1 << 20).unwrap();
        file.write(bytes).unwrap();
        dataset.add(file).unwrap();
        dataset.commit(b"").unwrap();
        let options = LoadOptions {
            piece_bytes: Some(bytes.len() as u64 / 7),
            record_bytes: name.ends_with(".bin").then_some(20),
            record_lines: record_lines(&[name]),
            separator: separator(&[name]),
            ends: row_group_offsets(&Input::new(&path), job.budget()).unwrap(),
            ..LoadOptions::default()
        };
        let whole = (name, Some(bytes.len() as u64));
        self.nodes.nodes.put(&context(), name, whole, bytes, &options).unwrap();
    }

    /// Writes the profiles of two languages to the local store, and a compressed file to the folder.
    fn train(&self) {
        let job = self.job();
        let sample = |label: &str, text: &str| {
            let path = self.path(label);
            fs::write(&path, text.repeat(50)).unwrap();
            (label.to_string(), vec![text_source(&path, Default::default())])
        };
        let german = sample("de", "der Hund bellt, die Katze schläft und das Kind läuft über die Straße\n");
        let english = sample("en", "the dog barks, the cat sleeps and the child runs across the street\n");
        let profiles = Profiles::train(&job, vec![german, english], 500).unwrap();
        profiles.save(&self.store, &job, "europe").unwrap();
        self.import_points("points");
        self.load_points("points");
        self.import_documents();
        let lines = fs::read(self.path("lines.txt")).unwrap();
        let packed = fs::File::create(self.path("lines.txt.gz")).unwrap();
        let format = inshore_kernels::Format::Gzip;
        inshore_kernels::compress(&context(), "lines.txt", &lines[..], packed, format, None).unwrap();
        let packed = fs::read(self.path("lines.txt.gz")).unwrap();
        self.put("lines.txt.gz", &packed);
    }

    /// Writes a file of 200 vectors of 8 bytes, which are also a dataset of the local store.
    fn import_points(&self, name: &str) {
        let head = [200u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
        let bytes: Vec<u8> = head.into_iter().chain((0..1600).map(|byte| mixed(byte) as u8)).collect();
        fs::write(self.path("points.u8bin"), bytes).unwrap();
        let points = self.path("points.u8bin");
        let request = json!({ "operation": "nearest import", "inputs": [points], "name": name });
        self.run_one(TargetKind::Local, request, None);
    }

    /// Divides the vectors into shards on the nodes.
    fn load_points(&self, name: &str) {
        let request = json!({ "operation": "nearest import", "inputs": [self.path("points.u8bin")],
                              "name": name, "piece_bytes": 200 });
        self.run_one(TargetKind::Nodes, request, None);
    }

    /// Writes a table of 200 documents with vectors of 8 bytes, which are also a dataset of the local store and in
    /// shards on the nodes.
    fn import_documents(&self) {
        let values: ArrayRef =
            Arc::new(UInt8Array::from_iter_values((0..1600).map(|byte| mixed(byte) as u8)));
        let item = Arc::new(Field::new("item", DataType::UInt8, false));
        let names = (0..200).map(|row| format!("document {row}"));
        let years = (0..200).map(|row| 2000 + row % 30);
        let columns: [(&str, ArrayRef); 3] = [
            ("embedding", Arc::new(FixedSizeListArray::new(item, 8, values, None))),
            ("document", Arc::new(StringArray::from_iter_values(names))),
            ("year", Arc::new(Int32Array::from_iter_values(years))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = fs::File::create(self.path("documents.parquet")).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let documents = self.path("documents.parquet");
        let mut request = json!({ "operation": "nearest import", "inputs": [documents], "name": "documents",
                                  "id": "document" });
        self.run_one(TargetKind::Local, request.clone(), None);
        request["piece_bytes"] = json!(200);
        self.run_one(TargetKind::Nodes, request, None);
    }

    /// Imports the vectors under a name that may exist already, and builds their index.
    fn index_points(&self, name: &str, place: TargetKind) {
        match place {
            TargetKind::Local => {
                if self.store.dataset(name).is_ok() {
                    self.store.remove(name).unwrap();
                }
                self.import_points(name);
            }
            TargetKind::Nodes | TargetKind::Cluster => {
                if self.nodes.nodes.catalog().unwrap().has(name) {
                    self.nodes.nodes.remove(name).unwrap();
                }
                self.load_points(name);
            }
        }
        let request = json!({ "operation": "nearest index", "dataset": name, "lists": 8 });
        self.run_one(place, request, None);
    }

    fn target(&self, place: TargetKind) -> Target {
        match place {
            TargetKind::Local => Target::Local,
            TargetKind::Nodes => Target::Nodes(self.nodes.clone()),
            TargetKind::Cluster => Target::Cluster(self.nodes.clone()),
        }
    }

    /// Returns a request with the paths of its inputs at a target. If the names of inputs appear in the output,
    /// the local target reads the inputs from the local store, so that the names equal those on nodes.
    fn request(&self, row: &Row, place: TargetKind, output: &Path) -> Value {
        let by_name = ["checksum", "language identify", "search", "store get"];
        let operation = row.request["operation"].as_str().unwrap();
        let is_info = operation == "nearest info";
        let has_graph =
            operation.starts_with("graph ") && !["graph import", "graph check"].contains(&operation);
        let by_name = has_graph || is_info || by_name.contains(&operation);
        let prefix = match place {
            TargetKind::Local if !by_name => format!("{}/", self.folder.path().display()),
            // The input of these operations is a local file, even if the target is nodes.
            TargetKind::Nodes | TargetKind::Cluster
                if ["store put", "nearest import", "nearest query", "nearest recall"]
                    .contains(&operation) =>
            {
                format!("{}/", self.folder.path().display())
            }
            _ => "store:".to_string(),
        };
        let mut request: Value =
            serde_json::from_str(&row.request.to_string().replace('@', &prefix)).unwrap();
        if row.output.is_some() {
            request["output"] = json!(output);
        }
        request
    }

    /// Runs a request of version 1, and returns the answer and the bytes of the output file.
    fn run_one(&self, place: TargetKind, mut request: Value, output: Option<&str>) -> (Value, Vec<u8>) {
        request["version"] = json!(1);
        if let Some(output) = output {
            request["output"] = json!(self.path(output));
        }
        let job = Execution::Stored(self.job());
        let failed = |error: &Error| panic!("{error}");
        let attachments = Attachments { failed: Some(&failed), ..Attachments::default() };
        let answer = named(&request).unwrap().run(&request, &self.target(place), &job, attachments).unwrap();
        (answer, output.map(|name| fs::read(self.path(name)).unwrap()).unwrap_or_default())
    }

    /// Writes a small dataset to a target.
    fn put_at(&self, place: TargetKind, name: &str) {
        fs::write(self.path("small"), "small\n").unwrap();
        self.run_one(
            place,
            json!({ "operation": "store put", "inputs": [self.path("small")], "name": name }),
            None,
        );
    }

    /// Removes a dataset of the local store, and returns the bytes of its files and its attributes.
    fn take_dataset(&self, name: &str) -> Vec<u8> {
        let job = self.job();
        let dataset = self.store.dataset(name).unwrap();
        let mut bytes = dataset.attributes().to_vec();
        for file in dataset.file_names().map(|name| dataset.file(name).unwrap()) {
            let mut reader = FileReader::new(&job, &file, 0..file.len(), 64 << 10).unwrap();
            while let Some(piece) = reader.next_piece().unwrap() {
                bytes.extend_from_slice(piece);
            }
        }
        self.store.remove(name).unwrap();
        bytes
    }

    /// Runs a test case on a target, and returns the bytes of the output and the answer.
    fn run(&self, entry: &Entry, row: &Row, place: TargetKind) -> (Vec<u8>, Value) {
        let output = self.path(&format!("{place}.{}", row.output.unwrap_or("none")));
        let request = self.request(row, place, &output);
        // Columns of vectors on nodes need scratch space.
        let has_columns = ["where", "column"].iter().any(|field| request.get(*field).is_some());
        let job = match entry.store.is_needed(place) || entry.store == StoreUse::Datasets || has_columns {
            true => Execution::Stored(self.job()),
            false => Execution::Plain(context()),
        };
        match entry.name {
            "store rm" => ["copied", "moved"].iter().for_each(|name| self.put_at(place, name)),
            "kernel rm" => self.put_at(place, "gone.wasm"),
            "graph rm" => self.import_graph("copied"),
            "nearest rm" => self.index_points("discarded", place),
            "nearest add" | "nearest upsert" | "nearest remove" | "nearest compact" => {
                self.index_points("changed", place);
            }
            "graph check" => drop(self.write_components("parts.csv")),
            _ => {}
        }
        let done = entry.run(&request, &self.target(place), &job, Attachments::default());
        let answer = done.unwrap_or_else(|error| panic!("{request} on {place}: {error}"));
        assert_eq!(job.budget().reserved_bytes(), 0, "{request} on {place} kept memory");
        if entry.name == "store put" {
            let (_, got) =
                self.run_one(place, json!({ "operation": "store get", "inputs": ["copied"] }), Some("got"));
            assert!(
                got == fs::read(self.path("lines.txt")).unwrap(),
                "what was put on {place} is not what is there"
            );
            self.run_one(place, json!({ "operation": "store rm", "inputs": ["copied"] }), None);
        }
        if entry.name == "nearest import" {
            let removed = json!({ "operation": "nearest rm", "inputs": [request["name"]] });
            self.run_one(place, removed, None);
        }
        if entry.form == NormalForm::Dataset {
            return (self.take_dataset(request["name"].as_str().unwrap()), answer);
        }
        let written = row.output.map(|_| fs::read(&output).unwrap());
        if written.is_some() {
            fs::remove_file(&output).unwrap();
        }
        (written.unwrap_or_default(), answer)
    }
}

/// An answer in the normal form in which answers are compared.
#[derive(Debug)]
enum Normal {
    Bytes(Vec<u8>),
    Rows(Vec<Vec<String>>),
    Answer(Value),
    /// The fields that are compared only if both answers have them.
    Common(Value),
}

/// Returns an answer with only the files that all targets have, under their local names. The kinds of the datasets
/// are removed, since they depend on the target.
fn common(mut answer: Value) -> Value {
    if let Some(datasets) = answer["datasets"].as_array_mut() {
        // A list of vectors has no kinds.
        let are_vectors = datasets.iter().all(|dataset| dataset["kind"].is_null());
        for dataset in datasets.iter_mut() {
            dataset["name"] = json!(dataset["name"].as_str().unwrap().trim_start_matches("store:"));
            dataset.as_object_mut().unwrap().remove("kind");
            remove_index_size(dataset);
        }
        let names: Vec<&str> = match are_vectors {
            true => vec!["points"],
            false => files().iter().map(|(name, _)| *name).collect(),
        };
        datasets.retain(|dataset| names.contains(&dataset["name"].as_str().unwrap()));
        assert_eq!(datasets.len(), names.len());
    }
    remove_index_size(&mut answer);
    // The points of a table of recall depend on the lists of the index.
    answer.as_object_mut().unwrap().remove("points");
    if answer["columns"].as_array().is_some_and(|columns| !columns.is_empty()) {
        // The bytes of vectors in a store include their columns, and those on nodes do not.
        answer.as_object_mut().unwrap().remove("bytes");
    }
    answer
}

/// Removes what depends on the sample of an index, since the samples of a store and of nodes differ.
fn remove_index_size(answer: &mut Value) {
    if let Some(index) = answer.get_mut("index").and_then(Value::as_object_mut) {
        ["lists", "groups", "sample", "recall"].iter().for_each(|field| _ = index.remove(*field));
    }
}

/// Removes the times at which recall was measured, since they differ. An index with copies has two tables of recall.
fn remove_time(answer: &mut Value) {
    match answer {
        Value::Object(fields) => {
            fields.remove("measured_seconds");
            fields.values_mut().for_each(remove_time);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_time),
        _ => {}
    }
}

/// Returns true if two answers are equal in all fields that both have.
fn is_common(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter().all(|(name, value)| other.get(name).is_none_or(|other| is_common(value, other)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_common(one, other))
        }
        (one, other) => one == other,
    }
}

fn normal(form: NormalForm, written: Vec<u8>, answer: Value) -> Normal {
    let rows = |sorted: bool| {
        // A line feed within quotes also splits a row, but in both answers alike.
        let mut rows: Vec<Vec<String>> = String::from_utf8(written.clone())
            .unwrap()
            .lines()
            .map(|line| line.split(',').map(str::to_string).collect())
            .collect();
        if sorted {
            rows[1..].sort();
        }
        Normal::Rows(rows)
    };
    match form {
        NormalForm::Bytes | NormalForm::Dataset => Normal::Bytes(written),
        NormalForm::Unpacked => {
            let mut unpacked = Vec::new();
            decompress(&context(), "an answer", &written[..], &mut unpacked).unwrap();
            assert!(written.len() < unpacked.len());
            Normal::Bytes(unpacked)
        }
        NormalForm::Rows => rows(false),
        NormalForm::SortedRows => rows(true),
        NormalForm::Answer => {
            // The cost report of the nodes, which the other target does not have, is removed.
            let mut answer = answer;
            let fields = answer.as_object_mut().unwrap();
            let attachments = ["nodes", "missing", "here", "bytes_moved", "seconds", "jobs"];
            attachments.iter().for_each(|field| _ = fields.remove(*field));
            remove_time(&mut answer);
            Normal::Answer(answer)
        }
        NormalForm::Common => {
            let mut answer = common(answer);
            remove_time(&mut answer);
            Normal::Common(answer)
        }
    }
}

/// Compares two fields. Fractions may differ by one part in 10^12. All other fields must be equal.
fn is_same(field: &str, other: &str) -> bool {
    let fraction = |field: &str| field.contains('.').then(|| field.parse::<f64>().ok()).flatten();
    match (fraction(field), fraction(other)) {
        (Some(one), Some(two)) => (one - two).abs() <= 1e-12 * one.abs().max(two.abs()),
        _ => field == other,
    }
}

fn assert_same(one: &Normal, other: &Normal, title: &str) {
    match (one, other) {
        (Normal::Bytes(one), Normal::Bytes(other)) => {
            assert!(!one.is_empty(), "{title}: nothing was written");
            assert!(one == other, "{title}: {} bytes and {} differ", one.len(), other.len());
        }
        (Normal::Rows(one), Normal::Rows(other)) => {
            assert!(one.len() > 1, "{title}: no row was written");
            assert_eq!(one.len(), other.len(), "{title}");
            for (one, other) in one.iter().zip(other) {
                let same =
                    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other));
                assert!(same, "{title}: {one:?} and {other:?}");
            }
        }
        (Normal::Answer(one), Normal::Answer(other)) => assert_eq!(one, other, "{title}"),
        (Normal::Common(one), Normal::Common(other)) => {
            assert!(is_common(one, other), "{title}: {one} and {other}");
        }
        _ => panic!("{title}: {one:?} and {other:?}"),
    }
}

/// The graph algorithms that run on a cluster, too.
const GRAPHS_ON_CLUSTER: [&str; 4] = ["graph pagerank", "graph bfs", "graph sssp", "graph components"];

#[test]
fn every_operation_gives_the_same_answer_at_every_target_or_is_refused() {
    let setup = Setup::new();
    let (mut seen, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for row in rows() {
        let entry = named(&row.request).unwrap();
        seen.insert(entry.name);
        let expected = (!BY_THE_COMMAND.contains(&entry.name)).then(|| {
            let (written, answer) = setup.run(entry, &row, entry.places[0]);
            normal(entry.form, written, answer)
        });
        for place in TargetKind::ALL {
            let title = format!("{} on {place}", row.request);
            let sorts_tables = entry.name == "sort" && row.request["by"]["columns"].is_object();
            let has = |field: &str| row.request.get(field).is_some();
            let resumes_or_converges =
                GRAPHS_ON_CLUSTER.contains(&entry.name) && (has("resume") || has("vertex_tolerance"));
            let is_refused = match place {
                TargetKind::Local => false,
                TargetKind::Nodes => row.is_refused_on_nodes,
                TargetKind::Cluster => {
                    let is_here_too = row.is_refused_on_nodes && entry.places.contains(&place);
                    sorts_tables || resumes_or_converges || is_here_too
                }
            };
            if is_refused {
                let request = setup.request(&row, place, &setup.path("none.csv"));
                let job = Execution::Plain(context());
                let error =
                    entry.run(&request, &setup.target(place), &job, Attachments::default()).unwrap_err();
                assert!(matches!(error, Error::UnsupportedOption { .. }), "{title}: {error}");
                continue;
            }
            if entry.places.contains(&place) {
                let Some(expected) = &expected else { continue };
                let (written, answer) = setup.run(entry, &row, place);
                // A sort and graphs on a cluster tell of their stages instead. A query tells of both.
                let sorts = place == TargetKind::Cluster
                    && (entry.name == "sort" || GRAPHS_ON_CLUSTER.contains(&entry.name));
                let has_keys = match entry.name {
                    "sql" => row.request["query"].as_str().is_some_and(|query| query.contains("GROUP BY")),
                    "reduce" => row.request["by"].is_array(),
                    name => name == "count values",
                };
                let groups = place == TargetKind::Cluster && has_keys;
                assert_eq!(answer["jobs"][0]["stages"].is_array(), sorts || groups, "{title}: {answer}");
                let tells_of_nodes = place != TargetKind::Local && !sorts && entry.form != NormalForm::Common;
                assert_eq!(answer["nodes"].is_array(), tells_of_nodes, "{title}: {answer}");
                if tells_of_nodes && !groups {
                    assert_eq!(answer["nodes"].as_array().unwrap().len(), 3, "{title}: {answer}");
                }
                assert_same(expected, &normal(entry.form, written, answer), &title);
                continue;
            }
            let request = setup.request(&row, place, &setup.path("none"));
            let job = Execution::Plain(context());
            let error = entry.run(&request, &setup.target(place), &job, Attachments::default()).unwrap_err();
            assert!(
                matches!(error, Error::Unsupported { operation, place: at } if (operation, at) == (entry.name, place)),
                "{title}: {error}"
            );
            refused.insert((entry.name, place.to_string()));
        }
    }
    let all: BTreeSet<&str> = OPERATIONS.iter().map(|entry| entry.name).collect();
    assert_eq!(seen, all, "every operation has a row");
    let on_nodes = ["node run", "node traverse"].map(|name| (name, TargetKind::Local.to_string()));
    let on_both =
        ["import", "index", "query", "recall", "ls", "info", "rm"].map(|verb| format!("nearest {verb}"));
    let here_only = |name: &&&str| {
        name.starts_with("graph ") || name.starts_with("nearest ") && !on_both.contains(&name.to_string())
    };
    let here_only: Vec<&str> = all.iter().filter(here_only).copied().collect();
    let not_on_cluster = here_only.iter().copied().filter(|name| !GRAPHS_ON_CLUSTER.contains(name));
    let not_on_cluster = not_on_cluster.map(|name| (name, TargetKind::Cluster.to_string()));
    let not_on_nodes = here_only.iter().map(|name| (*name, TargetKind::Nodes.to_string()));
    assert_eq!(refused, not_on_nodes.chain(on_nodes).chain(not_on_cluster).collect());
}

/// A receiver that counts rows.
#[derive(Default)]
struct Counted {
    rows: usize,
    ended: bool,
}

impl RowReceiver for Counted {
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> inshore_ops::Result<()> {
        assert!(job.job().is_some() && schema.field(0).name() == "vertex");
        Ok(())
    }

    fn batch(&mut self, batch: RecordBatch) -> inshore_ops::Result<()> {
        self.rows += batch.num_rows();
        Ok(())
    }

    fn end(&mut self) -> inshore_ops::Result<()> {
        self.ended = true;
        Ok(())
    }
}

#[test]
fn an_algorithm_gives_its_rows_to_a_file_and_to_a_receiver_from_the_graph_that_is_open() {
    let setup = Setup::new();
    let graph = inshore_graph::Graph::open(&setup.store, "links").unwrap();
    setup.run_one(TargetKind::Local, json!({ "operation": "store rm", "inputs": ["links"] }), None);
    let run = |output: Option<&str>, rows: Option<&mut Counted>, graph: Option<&inshore_graph::Graph>| {
        let mut request = json!({ "operation": "graph components", "version": 1, "inputs": ["store:links"] });
        if let Some(output) = output {
            request["output"] = json!(setup.path(output));
        }
        let job = Execution::Stored(setup.job());
        let rows = rows.map(|rows| rows as &mut dyn RowReceiver);
        let attachments = Attachments { rows, graph, ..Attachments::default() };
        named(&request).unwrap().run(&request, &Target::Local, &job, attachments)
    };
    let mut counted = Counted::default();
    let answer = run(Some("parts.csv"), Some(&mut counted), Some(&graph)).unwrap();
    let lines = fs::read_to_string(setup.path("parts.csv")).unwrap().lines().count();
    assert_eq!((counted.rows as u64, counted.ended, lines), (graph.vertices(), true, counted.rows + 1));
    assert_eq!(answer["components"], run(None, None, Some(&graph)).unwrap()["components"]);
    let error = run(None, None, None).unwrap_err();
    assert!(matches!(error, Error::Graph(_)) && error.to_string().contains("links"), "{error}");
    let error = run(Some("parts.xlsx"), None, Some(&graph)).unwrap_err();
    assert!(matches!(error, Error::Table(_)), "{error}");
}

#[test]
fn graphs_are_listed_checked_and_removed_and_other_datasets_are_not() {
    let setup = Setup::new();
    let run = |request: Value| setup.run_one(TargetKind::Local, request, None).0;
    let listed = run(json!({ "operation": "graph ls" }));
    let info = run(json!({ "operation": "graph info", "inputs": ["store:links"] }));
    assert_eq!(listed, json!({ "graphs": [info] }));
    let right = String::from_utf8(setup.write_components("parts.csv")).unwrap();
    let check = |text: &str| {
        fs::write(setup.path("parts.csv"), text).unwrap();
        run(json!({ "operation": "graph check", "graph": "links", "inputs": [setup.path("parts.csv")] }))
    };
    assert_eq!(check(&right)["good"], true);
    let last = right.trim_end().lines().last().unwrap();
    let vertex = last.split(',').next().unwrap();
    let wrong = check(&right.replace(&format!("\n{last}\n"), &format!("\n{vertex},{vertex}\n")));
    assert!(wrong["good"] == false && wrong["facts"][0].is_string(), "{wrong}");

    let told = AtomicUsize::new(0);
    let failed = |_: &Error| _ = told.fetch_add(1, Ordering::Relaxed);
    let request = json!({ "operation": "graph rm", "version": 1, "inputs": ["lines.txt", "none", "links"] });
    let (job, attachments) =
        (Execution::Stored(setup.job()), Attachments { failed: Some(&failed), ..Attachments::default() });
    let answer = named(&request).unwrap().run(&request, &Target::Local, &job, attachments).unwrap();
    assert_eq!((answer, told.into_inner()), (json!({ "removed": ["links"] }), 2));
    assert!(setup.store.dataset("lines.txt").is_ok() && setup.store.dataset("links").is_err());
}

#[test]
fn vectors_are_listed_described_and_removed_with_their_index_and_other_datasets_are_not() {
    let setup = Setup::new();
    let run = |request: Value| setup.run_one(TargetKind::Local, request, None).0;
    let info = |name: &str| run(json!({ "operation": "nearest info", "inputs": [name] }));
    let is_stored = |name: &str| setup.store.dataset(name).is_ok();
    let plain = info("store:points");
    assert_eq!((&plain["vectors"], &plain["element"]), (&json!(200), &json!("u8")), "{plain}");
    assert_eq!((&plain["dimensions"], &plain["bytes"]), (&json!(8), &json!(1600)), "{plain}");
    assert!(plain["index"].is_null() && plain.get("index_error").is_none(), "{plain}");
    setup.index_points("indexed", TargetKind::Local);
    let indexed = info("indexed");
    let index = &indexed["index"];
    assert_eq!((&index["metric"], &index["vectors"]), (&json!("l2"), &json!(200)), "{indexed}");
    assert!(index["recall"]["points"].as_array().is_some_and(|points| !points.is_empty()), "{indexed}");
    assert!(index["recall"]["measured_seconds"].as_u64() > Some(1_600_000_000), "{indexed}");
    assert!(
        indexed["list_sizes"]["largest"].as_u64() >= indexed["list_sizes"]["planned"].as_u64(),
        "{indexed}"
    );
    run(json!({ "operation": "nearest rm", "inputs": ["documents"] }));
    assert_eq!(indexed["imported_from"], "vectors");
    // A list of all vectors reads neither the directories of their indexes nor the vectors' own files.
    let listed = |mut described: Value| {
        let fields = described.as_object_mut().unwrap();
        ["list_sizes", "imported_from"].iter().for_each(|field| _ = fields.remove(*field));
        described
    };
    let expected = json!({ "datasets": [listed(indexed), listed(plain)] });
    assert_eq!(run(json!({ "operation": "nearest ls" })), expected);

    // Removes only the index.
    let removed = run(json!({ "operation": "nearest rm", "inputs": ["indexed"], "index": true }));
    assert_eq!(removed, json!({ "removed": ["indexed"] }));
    assert!(info("indexed")["index"].is_null() && !is_stored("indexed.index"));
    // Removes vectors together with their index. Then removes the index alone after its vectors were replaced.
    setup.index_points("indexed", TargetKind::Local);
    run(json!({ "operation": "nearest rm", "inputs": ["indexed"] }));
    assert!(!is_stored("indexed") && !is_stored("indexed.index"));
    setup.index_points("indexed", TargetKind::Local);
    setup.store.remove("indexed").unwrap();
    setup.import_points("indexed");
    let stale = info("indexed");
    assert!(stale["index"].is_null(), "{stale}");
    assert!(stale["index_error"].as_str().unwrap().contains("an index of other vectors"), "{stale}");
    run(json!({ "operation": "nearest rm", "inputs": ["indexed"], "index": true }));
    assert!(is_stored("indexed") && info("indexed").get("index_error").is_none());

    let failed = |inputs: &[&str], index: bool| {
        let told = std::sync::Mutex::new(Vec::new());
        let failed = |error: &Error| told.lock().unwrap().push(error.to_string());
        let attachments = Attachments { failed: Some(&failed), ..Attachments::default() };
        let request = json!({ "operation": "nearest rm", "version": 1, "inputs": inputs, "index": index });
        let job = Execution::Stored(setup.job());
        let answer = named(&request).unwrap().run(&request, &Target::Local, &job, attachments).unwrap();
        (answer, told.into_inner().unwrap())
    };
    let (answer, told) = failed(&["lines.txt", "unknown", "indexed"], false);
    assert_eq!(answer, json!({ "removed": ["indexed"] }));
    assert!(told[0].contains("lines.txt: kind: found bytes, expected vectors"), "{told:?}");
    assert!(told[1].contains("there is no dataset \"unknown\"") && told.len() == 2, "{told:?}");
    assert!(is_stored("lines.txt") && !is_stored("indexed"));
    let (answer, told) = failed(&["points", "unknown"], true);
    assert_eq!(answer, json!({ "removed": [] }));
    assert!(told[0].contains("points has no index") && told[1].contains("\"unknown\""), "{told:?}");
    let request = json!({ "operation": "nearest info", "version": 1, "inputs": ["unknown"] });
    let job = Execution::Stored(setup.job());
    let error =
        named(&request).unwrap().run(&request, &Target::Local, &job, Attachments::default()).unwrap_err();
    assert!(error.to_string().contains("there is no dataset \"unknown\""), "{error}");
}

#[test]
fn the_plan_names_the_files_on_nodes_before_the_job_describes_its_decisions() {
    let setup = Setup::new();
    let plans = |place: TargetKind, request: Value, output: Option<&str>| {
        let mut request = request;
        request["version"] = json!(1);
        if let Some(output) = output {
            request["output"] = json!(setup.path(output));
        }
        let job = Execution::Stored(setup.job());
        job.progress().listen();
        named(&request).unwrap().run(&request, &setup.target(place), &job, Attachments::default()).unwrap();
        job.progress().take_told()
    };
    let get = json!({ "operation": "store get", "inputs": ["lines.txt"] });
    let found = plans(TargetKind::Nodes, get.clone(), Some("got"));
    let pieces = setup.nodes.nodes.catalog().unwrap().named("lines.txt").unwrap()[0].pieces.len();
    assert!(
        found[0].starts_with("store:lines.txt: ")
            && found[0].contains(&format!("pieces {pieces}, copies 1, nodes 3")),
        "{found:?}"
    );
    assert_eq!(plans(TargetKind::Local, get, Some("got")), [""; 0]);
    let words = json!({ "operation": "count words", "inputs": ["store:lines.txt", "store:texts.txt"] });
    assert_eq!(plans(TargetKind::Nodes, words, None)[0].lines().count(), 2);
    let query =
        json!({ "operation": "nearest query", "inputs": [setup.path("points.u8bin")], "dataset": "points" });
    let found = plans(TargetKind::Local, query, None);
    assert!(found[0].starts_with("1 pass over "), "{found:?}");
}

#[test]
fn a_node_runs_stages_if_it_has_their_tasks_and_is_not_draining() {
    let setup = Setup::new();
    for node in setup.nodes.nodes.status() {
        let mut status = node.status.unwrap();
        assert!(can_run_stages(&status), "{:?}", status.kinds);
        status.draining = true;
        assert!(!can_run_stages(&status));
        status.draining = false;
        status.kinds.retain(|kind| kind != "stage-publish");
        assert!(!can_run_stages(&status));
    }
}

#[test]
fn a_job_without_a_store_is_refused_where_one_is_needed() {
    let setup = Setup::new();
    for row in rows() {
        let entry = named(&row.request).unwrap();
        if entry.name == "kernel push" {
            // The operation checks the module before it needs a store, and this file is not a valid module.
            continue;
        }
        for place in TargetKind::ALL
            .into_iter()
            .filter(|&place| entry.store.is_needed(place) && entry.places.contains(&place))
        {
            let request = setup.request(&row, place, &setup.path("none.csv"));
            let job = Execution::Plain(context());
            let error = entry.run(&request, &setup.target(place), &job, Attachments::default()).unwrap_err();
            assert!(
                matches!(error, Error::NeedsStore { operation } if operation == entry.name),
                "{request} on {place}: {error}"
            );
        }
    }
}

#[test]
fn options_that_a_target_does_not_have_are_refused_by_name() {
    let setup = Setup::new();
    let sales = || json!({ "version": 1, "inputs": ["store:sales.csv"], "output": "none.csv" });
    let with = |operation: &str, more: Value| {
        let mut request = sales();
        request["operation"] = json!(operation);
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let first = json!([{ "function": "first", "column": "item" }]);
    for (request, expected) in [
        (with("sort", json!({ "resume": true })), "resume"),
        (with("count kmers", json!({ "resume": true })), "resume"),
        (with("count values", json!({ "columns": ["shop"], "resume": true })), "resume"),
        (with("reduce", json!({ "aggregates": first })), "first"),
        (with("compress", json!({ "remove": true })), "remove"),
        (with("decompress", json!({ "remove": true })), "remove"),
        (with("language identify", json!({ "profiles": "europe", "column": "item" })), "column"),
        (with("store put", json!({ "name": "more", "append": true })), "append"),
        (with("store put", json!({ "name": "more", "parity": [4, 2] })), "parity"),
        (with("search", json!({ "patterns": ["Ulm"], "unpack": true })), "unpack"),
        (with("search", json!({ "patterns": ["Ulm"], "walk": { "globs": ["*.csv"] } })), "walk"),
        (with("search", json!({ "patterns": ["a\nb"], "multiline": true })), "multiline"),
        (
            with("nearest query", json!({ "dataset": "points", "probes": 2, "strategy": "single" })),
            "strategy",
        ),
        (json!({ "operation": "nearest index", "version": 1, "dataset": "points", "copies": 2 }), "copies"),
        (json!({ "operation": "nearest index", "version": 1, "dataset": "points", "codes": 1 }), "codes"),
        (json!({ "operation": "nearest index", "version": 1, "dataset": "points", "lsh": {} }), "lsh"),
        (
            json!({ "operation": "nearest index", "version": 1, "dataset": "points", "resume": true }),
            "resume",
        ),
        (with("nearest query", json!({ "dataset": "points", "lines": true })), "lines"),
        (with("nearest recall", json!({ "dataset": "points", "lines": true })), "lines"),
    ] {
        let entry = named(&request).unwrap();
        for at in TargetKind::ON_NODES.into_iter().filter(|place| entry.places.contains(place)) {
            let job = Execution::Stored(setup.job());
            let error = entry.run(&request, &setup.target(at), &job, Attachments::default()).unwrap_err();
            assert!(
                matches!(error, Error::UnsupportedOption { operation, option, place, .. }
                    if (operation, option, place) == (entry.name, expected, at)),
                "{request} on {at}: {error}"
            );
        }
    }
}

#[test]
fn what_is_put_into_the_store_here_has_no_pieces_and_what_is_not_there_is_named() {
    let setup = Setup::new();
    let run = |more: Value| {
        let mut request = json!({ "version": 1, "inputs": [setup.path("lines.txt")] });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let job = Execution::Stored(setup.job());
        named(&request).unwrap().run(&request, &Target::Local, &job, Attachments::default()).unwrap_err()
    };
    for (field, value) in [("piece_bytes", 70_000), ("record_bytes", 10), ("copies", 3)] {
        let error = run(json!({ "operation": "store put", "name": "more", (field): value }));
        assert!(
            matches!(error, Error::UnsupportedOption { option, place: TargetKind::Local, .. } if option == field),
            "{error}"
        );
    }
    let error = run(json!({ "operation": "store put", "name": "more", "inputs": ["a", "b"] }));
    assert!(error.to_string().contains("inputs: expected one, got 2"), "{error}");
    let output = setup.path("out");
    let get = |more: Value| {
        let mut request = json!({ "operation": "store get", "output": output });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run(request)
    };
    let error = get(json!({ "inputs": ["store:lines.txt/none"] }));
    assert!(matches!(error, Error::NoFile { ref files, .. } if files[..] == ["lines.txt"]), "{error}");
    let error = get(json!({ "inputs": ["lines.txt"], "offset": 1_u64 << 40 }));
    assert!(matches!(error, Error::BeyondEnd { .. }), "{error}");
    let device = setup.store.path().join("new");
    let error = get(json!({ "inputs": ["lines.txt"], "output": device }));
    assert!(matches!(error, Error::InStore { .. }), "{error}");
    assert!(!output.exists());

    // If a dataset cannot be removed, the error is reported, and the other datasets are removed.
    setup.put_at(TargetKind::Local, "gone");
    let request = json!({ "operation": "store rm", "version": 1, "inputs": ["none", "gone"] });
    let told = AtomicUsize::new(0);
    let failed = |_: &Error| _ = told.fetch_add(1, Ordering::Relaxed);
    let job = Execution::Stored(setup.job());
    let attachments = Attachments { failed: Some(&failed), ..Attachments::default() };
    let answer = named(&request).unwrap().run(&request, &Target::Local, &job, attachments).unwrap();
    assert_eq!((answer, told.into_inner()), (json!({ "removed": ["gone"] }), 1));
}

/// Collects the results of a search: the matching lines of each file, the files that could not be read, and the
/// files that were searched completely.
#[derive(Default)]
struct Taken {
    lines: Vec<(String, u64)>,
    failed: Vec<String>,
    ended: Vec<String>,
    texts: usize,
}

impl Matches for Taken {
    fn wanted(&self) -> SearchOutput {
        SearchOutput::LineCount
    }

    fn found(&mut self, file: &WalkedFile, found: &BlockMatches) -> io::Result<Next> {
        let title = file.path.display().to_string();
        match self.lines.last_mut().filter(|(last, _)| *last == title) {
            Some((_, lines)) => *lines += found.line_count,
            None => self.lines.push((title, found.line_count)),
        }
        Ok(Next::Go)
    }

    fn failed(&mut self, file: &WalkedFile, _: &inshore_kernels::Error) -> io::Result<bool> {
        self.failed.push(file.path.display().to_string());
        Ok(true)
    }

    fn end(&mut self, file: &WalkedFile) -> io::Result<Next> {
        self.ended.push(file.path.display().to_string());
        Ok(Next::Go)
    }

    fn across(
        &mut self,
        _job: &Context,
        _matching: &MultilineMatcher,
        texts: &mut dyn Iterator<Item = Text>,
        _failed: &dyn Fn(&Error),
    ) -> inshore_ops::Result<SearchSummary> {
        self.texts = texts.count();
        Ok(SearchSummary { files: self.texts as u64, ..SearchSummary::default() })
    }
}

#[test]
fn a_search_gives_its_blocks_to_who_takes_them_and_tells_what_it_cannot_read() {
    let setup = Setup::new();
    let folder = |name: &str| setup.path(name).display().to_string();
    let search = |inputs: Vec<String>, place: TargetKind, more: Value| {
        let mut request =
            json!({ "operation": "search", "version": 1, "inputs": inputs, "patterns": ["row 7"] });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (mut taken, told) = (Taken::default(), AtomicUsize::new(0));
        let failed = |_: &Error| _ = told.fetch_add(1, Ordering::Relaxed);
        let attachments =
            Attachments { failed: Some(&failed), matches: Some(&mut taken), ..Attachments::default() };
        let job = Execution::Stored(setup.job());
        let answer = named(&request).unwrap().run(&request, &setup.target(place), &job, attachments).unwrap();
        (taken, answer, told.into_inner())
    };
    let everywhere = Vec::from(["lines.txt", "texts.txt"]);
    let here = everywhere.iter().map(|name| folder(name)).chain([folder("none")]).collect();
    let (taken, answer, told) = search(here, TargetKind::Local, json!({}));
    let lines = taken.lines.iter().map(|(_, lines)| lines).sum::<u64>();
    assert_eq!((lines, told, taken.ended.len()), (86, 1, 2), "{:?}", taken.lines);
    assert_eq!(
        (&answer["lines"], &answer["files"], &answer["files_matched"]),
        (&json!(86), &json!(2), &json!(1))
    );

    let there: Vec<String> = everywhere.iter().map(|name| format!("store:{name}")).collect();
    let (on_nodes, answer, told) = search(there.clone(), TargetKind::Nodes, json!({}));
    assert_eq!((&answer["lines"], told), (&json!(86), 0));
    let (stored, ..) = search(there.clone(), TargetKind::Local, json!({}));
    let sum = |taken: &Taken| taken.lines.iter().map(|(_, lines)| lines).sum::<u64>();
    assert_eq!((on_nodes.ended.clone(), sum(&on_nodes)), (stored.ended.clone(), sum(&stored)));

    let across = json!({ "multiline": true, "patterns": ["7\n[0-9]"] });
    let (taken, answer, _) = search(there, TargetKind::Local, across.clone());
    assert_eq!((taken.texts, &answer["files"]), (2, &json!(2)));
    let mut request = json!({ "operation": "search", "version": 1, "inputs": [folder("lines.txt")] });
    request.as_object_mut().unwrap().extend(across.as_object().unwrap().clone());
    let job = Execution::Plain(context());
    let error =
        named(&request).unwrap().run(&request, &Target::Local, &job, Attachments::default()).unwrap_err();
    assert!(error.to_string().contains("multiline: "), "{error}");
    request["inputs"] = json!(["store:lines.txt"]);
    request["multiline"] = json!(false);
    request["patterns"] = json!(["7"]);
    let error =
        named(&request).unwrap().run(&request, &Target::Local, &job, Attachments::default()).unwrap_err();
    assert!(matches!(error, Error::NeedsStore { operation: "search" }), "{error}");
    request["inputs"] = json!([]);
    let nodes = setup.target(TargetKind::Nodes);
    let error = named(&request).unwrap().run(&request, &nodes, &job, Attachments::default()).unwrap_err();
    assert!(matches!(error, Error::NoInput { operation: "search" }), "{error}");
}

#[test]
fn a_request_is_read_as_it_was_written_and_what_it_does_not_know_is_refused() {
    for row in rows() {
        let (request, entry) = (&row.request, named(&row.request).unwrap());
        let full = entry.read(request).unwrap();
        assert_eq!(entry.read(&full).unwrap(), full);
        // The full request has all fields of the short request, and default values for the other fields.
        for (field, value) in request.as_object().unwrap() {
            let is_same = full[field] == *value || value.is_array() || value.is_object();
            assert!(is_same, "{field} of {request}: {full}");
        }
        let changed = |field: &str, value: Value| {
            let mut request = request.clone();
            request[field] = value;
            entry.read(&request).map(drop)
        };
        let error = changed("colour", json!("red")).unwrap_err();
        assert!(matches!(error, Error::Request { .. }) && error.to_string().contains("colour"), "{error}");
        for (version, found) in [(json!(2), "2"), (json!("1"), "\"1\""), (json!(null), "null")] {
            let error = changed("version", version).unwrap_err().to_string();
            let expected = format!("operation `{}`: the request has version {found}, expected 1", entry.name);
            assert_eq!(error, expected);
        }
        let error = changed("inputs", json!("one")).unwrap_err();
        assert!(error.to_string().contains("inputs: "), "{error}");
    }
    let unknown = json!({ "operation": "paint", "version": 1 });
    let error = named(&unknown).unwrap_err();
    assert!(
        error.to_string().starts_with("operation \"paint\": unknown in this build, which has: sort, "),
        "{error}"
    );
    let other = json!({ "operation": "sort", "version": 1 });
    assert!(matches!(OPERATIONS[1].read(&other), Err(Error::Request { operation: "reduce", .. })));
}
