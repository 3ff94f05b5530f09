//! Tests that compare the neighbours found on nodes with those of a search in one store.

use std::{fs, net::SocketAddr, path::PathBuf, thread, time::Duration};

use arrow_array::{
    RecordBatch,
    cast::AsArray,
    types::{Float32Type, UInt32Type, UInt64Type},
};
use inshore_nodes::{
    Agent, AgentConfig, ClientConfig, LoadOptions, Nodes, RunOptions, RunningAgent, stream_from_nodes,
};
use inshore_store::{Budget, Cancel, Context, Execution, Job, Store};
use inshore_vectors::{
    Approximate, Element, Index, MeasuredOn, Metric, RecallTable, Search, SpreadIndexInfo, VectorFile,
    VectorLayout, Vectors, import, search,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    IndexOnNodes, KIND, SearchForm, SearchedOnNodes, VectorsOnNodes, describe_on_nodes, import_on_nodes,
    index_on_nodes, list_on_nodes, measure_recall_on_nodes, merge::rows_are_accepted, remove_index_on_nodes,
    remove_on_nodes, search_lists_on_nodes, search_on_nodes,
};
use crate::{error::Result, target::OnNodes, works_here};

/// A row of an answer. The fields are the query, the rank, the id, and the bits of the distance.
pub(super) type Row = (u64, u32, u64, u32);

pub(super) struct Cluster {
    serving: Vec<Option<RunningAgent>>,
    folder: TempDir,
    pub on: OnNodes,
}

impl Cluster {
    pub fn new(count: usize) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let serving: Vec<RunningAgent> = (0..count).map(|number| serve(&folder, number, any)).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        let on = OnNodes { nodes, options: RunOptions::default() };
        Cluster { serving: serving.into_iter().map(Some).collect(), folder, on }
    }

    pub fn store(&self) -> Store {
        Store::open(self.folder.path().join("mine")).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in a format that begins with the number of vectors and the number of dimensions.
    fn write(&self, name: &str, dimensions: usize, rows: &[u8], row_bytes: usize) -> VectorFile {
        let count = (rows.len() / row_bytes) as u32;
        let head = [count.to_le_bytes(), (dimensions as u32).to_le_bytes()].concat();
        fs::write(self.path(name), [&head[..], rows].concat()).unwrap();
        VectorFile::open(self.path(name)).unwrap()
    }

    /// Writes 3,000 vectors of `f32`, many of which are equal.
    fn points(&self) -> VectorFile {
        self.write("points.fbin", 6, &floats(3000 * 6), 24)
    }

    /// Writes 70 queries.
    fn queries(&self) -> VectorFile {
        self.write("queries.fbin", 6, &floats(70 * 6), 24)
    }

    pub fn load(&self, file: &VectorFile, copies: u8, piece_bytes: u64) -> Result<()> {
        import_on_nodes(&self.on, &plain(64 << 20), "points", file, (copies, Some(piece_bytes))).map(drop)
    }

    pub fn find(&self) -> VectorsOnNodes {
        VectorsOnNodes::find(&self.on, "points").unwrap()
    }

    pub fn stop(&mut self, node: usize) {
        drop(self.serving[node].take());
    }

    /// Starts a node again that was stopped, at the same address. The next command connects to all nodes again.
    fn start(&mut self, node: usize) {
        let address = self.on.nodes.addresses().nth(node).unwrap().parse().unwrap();
        self.serving[node] = Some(serve(&self.folder, node, address));
        self.begin();
    }

    /// Begins a new command, which also sends requests to nodes that were lost.
    fn begin(&mut self) {
        self.on.nodes = self.on.nodes.begin(None);
    }

    /// Returns the names of all datasets on the nodes.
    pub fn names(&self) -> Vec<String> {
        self.on.nodes.catalog().unwrap().wholes().unwrap().into_iter().map(|file| file.dataset).collect()
    }
}

/// Starts the node with the number `number`.
fn serve(folder: &TempDir, number: usize, address: SocketAddr) -> RunningAgent {
    let store = Store::open(folder.path().join(format!("node{number}"))).unwrap();
    let config = AgentConfig {
        drain: Duration::from_millis(50),
        task_memory_bytes: 24 << 20,
        ..AgentConfig::new("node", 64 << 20, 2)
    };
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(crate::queries::Queries);
    Agent::new(store, works, config).serve(address).unwrap()
}

/// Returns pseudo-random numbers below `most`.
pub(super) fn numbers(most: u64, seed: u64) -> impl Iterator<Item = u64> {
    (0u64..).map(move |number| {
        let mixed = (number + 1 + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20) % most
    })
}

fn floats(count: usize) -> Vec<u8> {
    let value = |number: u64| (number as f32 - 1.3) / 3.0;
    numbers(4, count as u64).take(count).flat_map(|number| value(number).to_le_bytes()).collect()
}

fn plain(memory_bytes: u64) -> Execution {
    Execution::Plain(Context::new(Budget::new(memory_bytes, 2), Cancel::default()))
}

pub(super) fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let (queries, ids) = (batch.column(0), batch.column(2));
    let (queries, ids) = (queries.as_primitive::<UInt64Type>(), ids.as_primitive::<UInt64Type>());
    let (ranks, distances) =
        (batch.column(1).as_primitive::<UInt32Type>(), batch.column(3).as_primitive::<Float32Type>());
    let row = |row| (queries.value(row), ranks.value(row), ids.value(row), distances.value(row).to_bits());
    (0..batch.num_rows()).map(row).collect()
}

pub(super) fn local(job: &Job, vectors: &Vectors, queries: &VectorFile, options: &Search) -> Vec<Row> {
    let mut rows = Vec::new();
    search(job, vectors, queries, options, &mut |batch| {
        rows.extend(rows_of(&batch));
        Ok(())
    })
    .unwrap();
    rows
}

pub(super) fn on_nodes(
    vectors: &VectorsOnNodes,
    memory_bytes: u64,
    queries: &VectorFile,
    options: &Search,
) -> Result<(Vec<Row>, SearchedOnNodes)> {
    let (job, mut rows) = (plain(memory_bytes), Vec::new());
    let found = search_on_nodes(vectors, &job, queries, (options, &SearchForm::default()), &mut |batch| {
        rows.extend(rows_of(&batch));
        Ok(())
    });
    assert_eq!(job.budget().reserved_bytes(), 0);
    found.map(|(searched, _)| (rows, searched))
}

pub(super) fn options_of(metric: Metric, k: u64) -> Search {
    Search { metric, k, ..Search::default() }
}

#[test]
fn answers_on_any_number_of_nodes_equal_those_of_one_store_bit_for_bit() {
    use Metric::{Cosine, Hamming, Ip, Jaccard, L2};
    for count in 1..=3 {
        let cluster = Cluster::new(count);
        let bytes: Vec<u8> = numbers(5, 3).take(2500 * 8).map(|byte| byte as u8 + 125).collect();
        let halves: Vec<u8> = numbers(3, 5).take(1500 * 4).flat_map(|n| [n as u8 * 64, 0x3c]).collect();
        let cases = [
            (cluster.points(), cluster.queries(), vec![L2, Ip, Cosine]),
            (
                cluster.write("bytes.u8bin", 8, &bytes, 8),
                cluster.write("q.u8bin", 8, &bytes[..400], 8),
                vec![L2, Cosine, Hamming],
            ),
            (
                cluster.write("halves.hbin", 4, &halves, 8),
                cluster.write("q4.fbin", 4, &floats(40), 16),
                vec![L2, Ip],
            ),
            (
                cluster.write("bits.b1bin", 64, &bytes, 8),
                cluster.write("q.b1bin", 64, &bytes[800..1200], 8),
                vec![Hamming, Jaccard],
            ),
        ];
        for (file, queries, metrics) in &cases {
            let (store, name) = (cluster.store(), "points");
            let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
            import(&store, &job, name, file).unwrap();
            let vectors = Vectors::open(&store, name).unwrap();
            // The size gives about 40 shards.
            cluster.load(file, 1, vectors.info().bytes / 40).unwrap();
            let spread = cluster.find();
            assert_eq!(spread.info.vectors, file.count());
            assert!(spread.file.pieces.len() >= 35, "{} pieces", spread.file.pieces.len());
            for &metric in metrics {
                for k in [1, 7, 400] {
                    let expected = local(&job, &vectors, queries, &options_of(metric, k));
                    let (found, searched) =
                        on_nodes(&spread, 64 << 20, queries, &options_of(metric, k)).unwrap();
                    assert!(found == expected, "{count} nodes, {metric:?}, {k} neighbours");
                    assert_eq!((searched.passes, searched.rows), (1, expected.len() as u64));
                    let read: u64 = searched.by_node.iter().map(|node| node.vectors).sum();
                    assert_eq!((searched.by_node.len(), read), (count, file.count()));
                }
                // The radius equals the distance of a neighbour.
                let rows = local(&job, &vectors, queries, &options_of(metric, 9));
                let radius = Some(f64::from(f32::from_bits(rows[8].3)).abs());
                let near = Search { radius, ..options_of(metric, 50) };
                let (found, _) = on_nodes(&spread, 64 << 20, queries, &near).unwrap();
                assert!(
                    found == local(&job, &vectors, queries, &near),
                    "{count} nodes, {metric:?}, {radius:?}"
                );
            }
            store.remove(name).unwrap();
            cluster.on.nodes.remove(name).unwrap();
        }
    }
}

#[test]
fn queries_that_do_not_fit_in_one_request_need_several_and_give_the_same_answer() {
    let cluster = Cluster::new(2);
    let wide = cluster.write("wide.fbin", 4000, &floats(60 * 4000), 16_000);
    cluster.load(&wide, 1, 300_000).unwrap();
    let spread = cluster.find();
    let expected = on_nodes(&spread, 256 << 20, &wide, &options_of(Metric::L2, 5)).unwrap();
    let found = on_nodes(&spread, 12 << 20, &wide, &options_of(Metric::L2, 5)).unwrap();
    assert_eq!((expected.1.passes, expected.0.len()), (1, 300));
    assert!(found.1.passes > 2 && found.0 == expected.0, "{} passes", found.1.passes);
}

#[test]
fn a_lost_node_is_replaced_by_copies_or_named_with_what_was_not_read() {
    let mut cluster = Cluster::new(3);
    let (points, queries) = (cluster.points(), cluster.queries());
    cluster.load(&points, 2, 8000).unwrap();
    let near = options_of(Metric::L2, 20);
    let (expected, _) = on_nodes(&cluster.find(), 64 << 20, &queries, &near).unwrap();
    let looked_up = cluster.find();
    cluster.stop(1);
    // The node is lost after the shards were looked up in the first search, and before that in the second search.
    assert!(on_nodes(&looked_up, 64 << 20, &queries, &near).unwrap().0 == expected);
    assert!(on_nodes(&cluster.find(), 64 << 20, &queries, &near).unwrap().0 == expected);
    let lost: Vec<String> = cluster.on.nodes.addresses().map(str::to_string).collect();
    cluster.stop(2);
    let error = on_nodes(&cluster.find(), 64 << 20, &queries, &near).unwrap_err().to_string();
    assert!(error.contains("store:points: bytes ") && error.contains("were not read"), "{error}");
    assert!(error.contains(&lost[1]) && error.contains(&lost[2]), "{error}");
    // The answer may be partial only if the options allow a partial answer.
    let mut partial = cluster.find();
    partial.on.options.partial = true;
    let (job, mut rows) = (plain(64 << 20), 0);
    let found = search_on_nodes(&partial, &job, &queries, (&near, &SearchForm::default()), &mut |batch| {
        rows += batch.num_rows();
        Ok(())
    });
    let (_, gathered) = found.unwrap();
    assert!(!gathered.missing.is_empty() && rows == 70 * 20, "{gathered:?}");
}

#[test]
fn several_clients_of_the_same_nodes_get_the_same_answer() {
    let cluster = Cluster::new(2);
    let (points, queries) = (cluster.points(), cluster.queries());
    cluster.load(&points, 1, 10_000).unwrap();
    let near = options_of(Metric::Cosine, 10);
    let (expected, _) = on_nodes(&cluster.find(), 64 << 20, &queries, &near).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let addresses = cluster.on.nodes.addresses().map(str::to_string).collect();
                let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
                let on = OnNodes { nodes, options: RunOptions::default() };
                let vectors = VectorsOnNodes::find(&on, "points").unwrap();
                for _ in 0..3 {
                    assert!(on_nodes(&vectors, 32 << 20, &queries, &near).unwrap().0 == expected);
                }
            });
        }
    });
}

#[test]
fn a_hostile_request_is_refused_and_the_node_goes_on() {
    let cluster = Cluster::new(1);
    let (points, queries) = (cluster.points(), cluster.queries());
    cluster.load(&points, 1, 10_000).unwrap();
    let vectors = cluster.find();
    let refused = |change: &dyn Fn(&mut Value)| {
        let layout = VectorLayout::new(Element::F32, 6);
        let mut arguments = json!({ "layout": layout, "queries": "", "k": 3, "metric": "l2" });
        arguments["queries"] = json!("AAAA".repeat(8));
        change(&mut arguments);
        let (job, run) = (plain(64 << 20), RunOptions::default());
        let files = std::slice::from_ref(&vectors.file);
        let streams = stream_from_nodes(&cluster.on.nodes, &job, (KIND, false), arguments, files, &run);
        streams.and_then(|mut streams| streams.next(0)).map(drop).unwrap_err().to_string()
    };
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let error = refused(change);
        assert!(error.contains(expected), "{error}: expected {expected}");
    };
    check(&|to| to["k"] = json!(u64::MAX), "4294967295 neighbours of each of 1 queries");
    check(&|to| to["k"] = json!(0), "k is 0");
    check(&|to| to["queries"] = json!("AAAA".repeat(9)), "expected 32 bytes");
    check(&|to| to["queries"] = json!("?"), "Invalid");
    check(&|to| to["queries"] = json!(""), "no vectors");
    check(&|to| to["queries"] = json!("A".repeat(15 << 20)), "queries");
    check(&|to| to["queries"] = json!("AADAfwAA".to_string() + &"AAAA".repeat(6)), "NaN");
    check(&|to| to["layout"]["dimensions"] = json!(0), "dimensions is 0");
    check(&|to| to["layout"]["dimensions"] = json!(u64::MAX), "expected 1 to 32768");
    let other = |to: &mut Value| {
        to["layout"]["dimensions"] = json!(7);
        to["queries"] = json!("AAAA".repeat(9) + "AA==");
    };
    check(&other, "expected a multiple of 28 bytes, those of a vector");
    check(&|to| to["layout"]["version"] = json!(2), "version is 2");
    check(&|to| to["layout"]["element"] = json!("f65"), "f65");
    check(&|to| to["metric"] = json!("hamming"), "metric is hamming");
    check(&|to| to["radius_bits"] = json!(f64::NAN.to_bits()), "radius is NaN");
    check(&|to| to["more"] = json!(1), "more");
    assert!(!on_nodes(&vectors, 64 << 20, &queries, &options_of(Metric::L2, 3)).unwrap().0.is_empty());
}

#[test]
fn an_answer_that_cannot_be_right_is_not_accepted() {
    let good = [(0, -0.5, 7), (0, -0.5, 9), (0, 2.0, 1), (1, 0.0, 0)];
    assert!(rows_are_accepted(&good, 2, 10));
    // The invalid rows are out of order, are repeated, or contain an unknown query, an unknown vector or NaN.
    for bad in [
        [good[1], good[0]],
        [good[0], good[0]],
        [good[3], good[0]],
        [good[0], (2, 0.0, 1)],
        [good[0], (1, 0.0, 10)],
        [good[0], (1, f64::NAN, 1)],
    ] {
        assert!(!rows_are_accepted(&bad, 2, 10), "{bad:?}");
    }
}

#[test]
fn a_malformed_vector_is_named_and_leaves_nothing_on_the_nodes() {
    let cluster = Cluster::new(2);
    let mut rows = floats(50_000 * 6);
    rows[40_000 * 24 + 8..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = cluster.write("bad.fbin", 6, &rows, 24);
    let error = cluster.load(&file, 1, 100_000).unwrap_err().to_string();
    assert!(error.contains("bad.fbin: vector 40000, dimension 2: found NaN"), "{error}");
    let error = VectorsOnNodes::find(&cluster.on, "points").unwrap_err().to_string();
    assert!(error.contains("store:points: not found"), "{error}");
    // The name must be free after the error.
    cluster.load(&cluster.points(), 2, 100_000).unwrap();
    let error = cluster.load(&cluster.points(), 1, 100_000).unwrap_err().to_string();
    assert!(error.contains("points"), "{error}");
    let error = cluster.load(&cluster.points(), 3, 100_000).unwrap_err().to_string();
    assert!(error.contains("3 copies need 3 nodes"), "{error}");
}

#[test]
fn a_dataset_without_vectors_is_named() {
    let cluster = Cluster::new(1);
    let put = |name: &str, options: &LoadOptions| {
        cluster.on.nodes.put(&plain(64 << 20), name, (name, None), &b"12345678"[..], options).unwrap();
        VectorsOnNodes::find(&cluster.on, name).unwrap_err().to_string()
    };
    let error = put("text", &LoadOptions::default());
    assert!(error.contains("store:text: the dataset has no vectors"), "{error}");
    let with = |description: Value| LoadOptions { description: Some(description), ..LoadOptions::default() };
    let error = put("other", &with(json!({ "kind": "lists" })));
    assert!(error.contains("store:other: its description is not one of vectors"), "{error}");
    let mut described = json!(VectorLayout::new(Element::F32, 2));
    for columns in [json!(7), json!({}), json!({ "dataset_id": 7 }), json!({ "dataset_id": "", "more": 1 })] {
        described["columns"] = columns;
        let error = put("odd", &with(described.clone()));
        assert!(error.contains("store:odd: its description is not one of vectors"), "{error}");
        cluster.on.nodes.remove("odd").unwrap();
    }
    let error = put("cut", &with(json!(VectorLayout::new(Element::F32, 3))));
    assert!(error.contains("cut: length: found 8 bytes, expected a multiple of 12 bytes"), "{error}");
}

/// Returns the answer of a search in an index, and the statistics of the search.
fn approximate(
    vectors: &VectorsOnNodes,
    queries: &VectorFile,
    options: &Search,
    probes: Option<u64>,
) -> Result<(Vec<Row>, SearchedOnNodes)> {
    let (job, mut rows) = (plain(24 << 20), Vec::new());
    let index = IndexOnNodes::find(vectors, &job)?.expect("an index");
    let wanted = Approximate { recall: 0.9, probes, strategy: None };
    let how = (options, &SearchForm::default(), &wanted);
    let found = search_lists_on_nodes(vectors, &index, &job, queries, how, &mut |batch| {
        rows.extend(rows_of(&batch));
        Ok(())
    });
    drop(index);
    assert_eq!(job.budget().reserved_bytes(), 0);
    found.map(|(searched, _)| (rows, searched))
}

pub(super) fn build(cluster: &Cluster, options: &Index) -> Result<SpreadIndexInfo> {
    let job = plain(24 << 20);
    let built = index_on_nodes(&cluster.on, &job, "points", options);
    assert_eq!(job.budget().reserved_bytes(), 0);
    built
}

/// Writes 6,000 vectors of 8 dimensions near 40 points. Also writes some of these vectors as queries.
pub(super) fn clustered(cluster: &Cluster, element: Element) -> (VectorFile, VectorFile) {
    let (far, near): (Vec<u64>, Vec<u64>) =
        (numbers(200, 11).take(40 * 8).collect(), numbers(12, 12).take(6000 * 8).collect());
    let values = near.iter().enumerate().map(|(place, near)| {
        let (row, dimension) = (place / 8, place % 8);
        far[(row * 7919 % 40) * 8 + dimension] + near
    });
    let (ending, bytes): (&str, Vec<u8>) = match element {
        Element::F32 => ("fbin", values.flat_map(|value| (value as f32 / 4.0).to_le_bytes()).collect()),
        Element::I8 => ("i8bin", values.map(|value| (value / 2) as u8).collect()),
        _ => ("u8bin", values.map(|value| value as u8).collect()),
    };
    let row_bytes = bytes.len() / 6000;
    let queries = &bytes[..50 * row_bytes];
    (
        cluster.write(&format!("clustered.{ending}"), 8, &bytes, row_bytes),
        cluster.write(&format!("queries.{ending}"), 8, queries, row_bytes),
    )
}

#[test]
fn an_index_has_the_same_lists_and_answers_on_any_number_of_nodes() {
    for (element, metric) in
        [(Element::F32, Metric::L2), (Element::U8, Metric::Cosine), (Element::I8, Metric::Ip)]
    {
        let options = Index { metric, lists: Some(60), seed: 5, copies: None, codes: None };
        let near = options_of(metric, 10);
        let mut first: Option<(SpreadIndexInfo, Vec<Row>)> = None;
        for (nodes, copies, piece_bytes) in [(1, 1, 1 << 20), (2, 2, 20_000), (3, 1, 3_000)] {
            let cluster = Cluster::new(nodes);
            let (file, queries) = clustered(&cluster, element);
            cluster.load(&file, copies, piece_bytes).unwrap();
            let built = build(&cluster, &options).unwrap();
            let vectors = cluster.find();
            let (rows, searched) = approximate(&vectors, &queries, &near, Some(4)).unwrap();
            let (expected, _) = on_nodes(&vectors, 24 << 20, &queries, &near).unwrap();
            let found =
                expected.iter().filter(|row| rows.iter().any(|other| (other.0, other.2) == (row.0, row.2)));
            let recall = found.count() as f64 / expected.len() as f64;
            assert!(metric != Metric::L2 || recall > 0.6, "{recall}");
            // All lists together contain all vectors, so the answer must be exact.
            let (all, _) = approximate(&vectors, &queries, &near, Some(built.lists)).unwrap();
            assert!(all == expected, "{element} on {nodes} nodes");
            let radius = Search { radius: Some(f64::from(f32::from_bits(expected[5].3))), ..near.clone() };
            let (all, _) = approximate(&vectors, &queries, &radius, Some(built.lists)).unwrap();
            assert!(all == on_nodes(&vectors, 24 << 20, &queries, &radius).unwrap().0);
            let by_recall = approximate(&vectors, &queries, &near, None).unwrap().1;
            let probed = by_recall.approximate.unwrap();
            assert!(probed.probes < built.lists || probed.recall_estimate == Some(1.0), "{probed:?}");
            let compared: u64 = searched.by_node.iter().map(|node| node.compared).sum();
            assert!(compared < 50 * 6000 / 4 && compared > 50 * 10, "{compared}");
            let same = |info: &SpreadIndexInfo| {
                let mut info = info.clone();
                (info.vectors_id, info.lists_id) = (String::new(), String::new());
                info.recall.measured_seconds = 0;
                info
            };
            match &first {
                None => first = Some((same(&built), rows)),
                Some((info, expected)) => {
                    assert_eq!(same(&built), *info, "{nodes} nodes");
                    assert!(rows == *expected, "{element} on {nodes} nodes");
                }
            }
        }
    }
}

#[test]
fn probed_lists_have_as_many_vectors_as_neighbours_are_wanted() {
    let cluster = Cluster::new(2);
    let (file, queries) = clustered(&cluster, Element::F32);
    cluster.load(&file, 1, 20_000).unwrap();
    build(&cluster, &Index { lists: Some(100), ..Index::default() }).unwrap();
    let (rows, _) = approximate(&cluster.find(), &queries, &options_of(Metric::L2, 500), Some(1)).unwrap();
    assert_eq!(rows.len(), 50 * 500);
    let (rows, _) = approximate(&cluster.find(), &queries, &options_of(Metric::L2, 9000), Some(1)).unwrap();
    assert_eq!(rows.len(), 50 * 6000);
    let error = approximate(&cluster.find(), &queries, &options_of(Metric::Ip, 5), Some(1)).unwrap_err();
    assert!(error.to_string().contains("metric is ip: expected l2, for which the index"), "{error}");
}

#[test]
fn an_index_that_is_not_one_of_the_vectors_is_refused_and_built_again() {
    let mut cluster = Cluster::new(3);
    let (file, queries) = clustered(&cluster, Element::U8);
    cluster.load(&file, 2, 5_000).unwrap();
    let options = Index { lists: Some(30), ..Index::default() };
    assert!(IndexOnNodes::find(&cluster.find(), &plain(24 << 20)).unwrap().is_none());
    build(&cluster, &options).unwrap();
    assert_eq!(cluster.names(), ["points", "points.index", "points.index.lists"]);
    // A second build has another number of lists.
    let sample = build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap().sample;
    assert!((540..740).contains(&sample), "{sample}");
    let near = options_of(Metric::L2, 7);
    let (expected, _) = approximate(&cluster.find(), &queries, &near, Some(3)).unwrap();
    // The index must be refused for other vectors of the same name.
    cluster.on.nodes.remove("points").unwrap();
    cluster.load(&file, 2, 5_000).unwrap();
    let error = approximate(&cluster.find(), &queries, &near, Some(3)).unwrap_err().to_string();
    assert!(error.contains("store:points.index: this is an index of other vectors"), "{error}");
    build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    assert!(approximate(&cluster.find(), &queries, &near, Some(3)).unwrap().0 == expected);
    // If a node is lost, the search uses copies of its lists. If there are no copies, the error must name the lists.
    cluster.stop(0);
    assert!(approximate(&cluster.find(), &queries, &near, Some(3)).unwrap().0 == expected);
    // A build without one of the nodes must fail.
    let error = build(&cluster, &options).unwrap_err().to_string();
    assert!(error.contains(cluster.on.nodes.addresses().next().unwrap()), "{error}");
    cluster.stop(1);
    let error = approximate(&cluster.find(), &queries, &near, Some(3)).map(drop).unwrap_err().to_string();
    assert!(error.contains("points"), "{error}");
}

#[test]
fn a_hostile_request_for_lists_is_refused() {
    let cluster = Cluster::new(1);
    let (file, queries) = clustered(&cluster, Element::U8);
    cluster.load(&file, 1, 20_000).unwrap();
    let count = build(&cluster, &Index { lists: Some(30), ..Index::default() }).unwrap().lists;
    let vectors = cluster.find();
    let lists = super::parts::dataset_on_nodes(&cluster.on, "points.index.lists").unwrap().unwrap();
    let ask = |kind: &'static str, arguments: Value| {
        let (job, run) = (plain(64 << 20), RunOptions::default());
        let files = std::slice::from_ref(&lists);
        let streams = stream_from_nodes(&cluster.on.nodes, &job, (kind, false), arguments, files, &run);
        streams.and_then(|mut streams| streams.next(0)).map(drop).unwrap_err().to_string()
    };
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut arguments = json!({ "layout": vectors.layout, "queries": "AAAAAAAAAAA=", "lists": "AQAAAA==",
            "counts": "AQAAAA==", "lists_count": count, "first_ids": [0, 2500, 5000], "k": 3, "metric": "l2" });
        change(&mut arguments);
        let error = ask(super::lists::KIND, arguments);
        assert!(error.contains(expected), "{error}: expected {expected}");
    };
    check(&|to| to["lists"] = json!("////fw=="), "a list is 2147483647: expected below");
    check(&|to| to["lists"] = json!("AQA="), "numbers of 32 bits are cut");
    check(&|to| to["counts"] = json!("/////w=="), "more lists are counted than there are");
    check(&|to| to["counts"] = json!("AAAAAA=="), "lists of no query");
    check(&|to| to["counts"] = json!(""), "lists of no query");
    check(&|to| to["lists_count"] = json!(0), "the number of lists is 0");
    check(&|to| to["lists_count"] = json!(u64::MAX), "the number of lists is 18446744073709551615");
    check(&|to| to["lists_count"] = json!(count + 1), "and 12 bytes for each vector");
    check(&|to| to["queries"] = json!("AAAA"), "queries is 3 bytes: expected 8 bytes");
    check(&|to| to["k"] = json!(u64::MAX), "neighbours of each of 1 queries");
    check(&|to| to["first_ids"] = json!([]), "no first vector of shard 0");
    check(&|to| to["first_ids"] = json!([u64::MAX]), "no first vector of shard 0");
    check(&|to| to["layout"]["dimensions"] = json!(9), "queries is 8 bytes: expected 9 bytes");
    check(&|to| to["metric"] = json!("jaccard"), "metric is jaccard");
    // Invalid requests for a sample and invalid requests to write lists must be refused too.
    let plan = json!({ "seed": 0, "held_out": 0, "end": u64::MAX, "lists": 1, "rows_max": 1 });
    let of_bits = VectorLayout::new(Element::Bits, 64);
    let error = ask(super::index::SAMPLE_KIND, json!({ "layout": of_bits, "plan": plan }));
    assert!(error.contains("expected f32, u8 or i8, of which lists can be built"), "{error}");
    let error = ask(super::index::WRITE_KIND, json!({ "vectors": 3 }));
    assert!(error.contains("invalid type"), "{error}");
    assert!(!approximate(&vectors, &queries, &options_of(Metric::L2, 3), Some(1)).unwrap().0.is_empty());
}

#[test]
fn vectors_on_nodes_are_listed_described_and_removed_with_their_index_and_other_datasets_are_not() {
    let cluster = Cluster::new(3);
    let on = &cluster.on;
    let (file, _) = clustered(&cluster, Element::U8);
    cluster.load(&file, 2, 5_000).unwrap();
    let options = LoadOptions { record_bytes: Some(1), ..LoadOptions::default() };
    on.nodes.put(&plain(64 << 20), "text", ("text", Some(5)), &b"text\n"[..], &options).unwrap();
    let bare = describe_on_nodes(on, "points").unwrap();
    assert_eq!((bare.vectors.vectors, bare.vectors.dimensions, bare.copies), (6000, 8, 2));
    assert!(bare.index.is_none() && bare.index_error.is_none() && bare.stored_on.len() == 3);
    assert!(bare.to_string().ends_with("\n  index            none"), "{bare}");
    let built = build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    let described = describe_on_nodes(on, "points").unwrap();
    assert_eq!(described.index.as_ref(), Some(&built));
    let text = described.to_string();
    for part in
        ["points\n  vectors          6000\n", "    metric         l2\n", "lists probed   recall at 10"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(list_on_nodes(on).unwrap(), (vec![described], Vec::new()));

    // Only the index is removed. A second removal finds no index.
    assert_eq!(remove_index_on_nodes(on, "points").unwrap(), 3);
    assert_eq!(describe_on_nodes(on, "points").unwrap(), bare);
    let error = remove_index_on_nodes(on, "points").unwrap_err().to_string();
    assert!(error.contains("points has no index"), "{error}");
    // The index of replaced vectors is named, and is removed with the vectors.
    build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    on.nodes.remove("points").unwrap();
    cluster.load(&file, 1, 5_000).unwrap();
    let stale = describe_on_nodes(on, "points").unwrap();
    assert!(stale.index_error.unwrap().contains("this is an index of other vectors"));
    assert_eq!(remove_on_nodes(on, "points").unwrap(), 3);
    assert_eq!(cluster.names(), ["text"]);
    // An index whose vectors no longer exist can be removed.
    cluster.load(&file, 1, 5_000).unwrap();
    build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    on.nodes.remove("points").unwrap();
    remove_index_on_nodes(on, "points").unwrap();
    assert_eq!(cluster.names(), ["text"]);

    let refused = |error: crate::Error, expected: &str| {
        assert!(error.to_string().contains(expected), "{error}: expected {expected}");
    };
    refused(remove_on_nodes(on, "text").unwrap_err(), "store:text: kind: found other bytes");
    refused(remove_on_nodes(on, "points").unwrap_err(), "store:points: not found");
    refused(remove_index_on_nodes(on, "points").unwrap_err(), "store:points: not found");
    refused(describe_on_nodes(on, "text").unwrap_err(), "the dataset has no vectors");
    // A dataset of a user that has the name of an index is not removed with the vectors.
    cluster.load(&file, 1, 5_000).unwrap();
    on.nodes.put(&plain(64 << 20), "points.index", ("text", Some(5)), &b"text\n"[..], &options).unwrap();
    refused(remove_on_nodes(on, "points").unwrap_err(), "store:points.index: kind: found other bytes");
    refused(remove_index_on_nodes(on, "points").unwrap_err(), "store:points.index: kind: found other bytes");
    assert_eq!(cluster.names(), ["points", "points.index", "text"]);
}

#[test]
fn a_removal_names_a_node_that_is_away_and_is_finished_once_the_node_is_back() {
    let mut cluster = Cluster::new(3);
    let (file, _) = clustered(&cluster, Element::U8);
    cluster.load(&file, 1, 5_000).unwrap();
    build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    let away = cluster.on.nodes.addresses().nth(1).unwrap().to_string();
    let names_it =
        |error: crate::Error| assert!(error.to_string().contains(&away), "{error}: expected {away}");
    cluster.stop(1);
    cluster.begin();
    names_it(remove_index_on_nodes(&cluster.on, "points").unwrap_err());
    cluster.begin();
    names_it(remove_index_on_nodes(&cluster.on, "points").unwrap_err());
    names_it(remove_on_nodes(&cluster.on, "points").unwrap_err());
    cluster.begin();
    names_it(remove_on_nodes(&cluster.on, "points").unwrap_err());
    let (listed, notes) = list_on_nodes(&cluster.on).unwrap();
    assert!(listed.is_empty() && notes.len() == 1 && notes[0].contains(&away), "{notes:?}");
    cluster.start(1);
    let (listed, notes) = list_on_nodes(&cluster.on).unwrap();
    let expected = "store:points: these nodes have a generation that was removed";
    assert!(listed.is_empty() && notes.len() == 1 && notes[0].contains(expected), "{notes:?}");
    assert_eq!(remove_on_nodes(&cluster.on, "points").unwrap(), 1);
    assert!(cluster.names().is_empty(), "{:?}", cluster.names());
    // The name is free again.
    cluster.load(&file, 1, 5_000).unwrap();
    assert_eq!(describe_on_nodes(&cluster.on, "points").unwrap().vectors.vectors, 6000);
}

fn measure(cluster: &Cluster, queries: &VectorFile, sample: u64, k: u64) -> Result<RecallTable> {
    let job = plain(24 << 20);
    let measured = measure_recall_on_nodes(&cluster.find(), &job, queries, (sample, k));
    assert_eq!(job.budget().reserved_bytes(), 0);
    measured
}

/// Returns the table of recall that searches use.
fn used_table(cluster: &Cluster) -> RecallTable {
    describe_on_nodes(&cluster.on, "points").unwrap().index.unwrap().recall
}

#[test]
fn recall_is_measured_on_queries_and_equals_that_of_the_searches_on_any_number_of_nodes() {
    let mut first: Option<RecallTable> = None;
    for (nodes, copies, piece_bytes) in [(1, 1, 1 << 20), (3, 2, 5_000)] {
        let cluster = Cluster::new(nodes);
        let (file, queries) = clustered(&cluster, Element::U8);
        cluster.load(&file, copies, piece_bytes).unwrap();
        let built = build(&cluster, &Index { lists: Some(60), seed: 5, ..Index::default() }).unwrap();
        assert_eq!(built.recall.measured_on, MeasuredOn::HeldOutVectors);
        let table = measure(&cluster, &queries, 1000, 7).unwrap();
        assert_eq!((table.queries, table.k, table.measured_on), (50, 7, MeasuredOn::Queries));
        assert_eq!(used_table(&cluster), table);
        // The recall of a point is that of a search with as many lists.
        let near = options_of(Metric::L2, 7);
        let (expected, _) = on_nodes(&cluster.find(), 24 << 20, &queries, &near).unwrap();
        for point in &table.points {
            let (rows, _) = approximate(&cluster.find(), &queries, &near, Some(point.probes)).unwrap();
            let found =
                expected.iter().filter(|row| rows.iter().any(|other| (other.0, other.2) == (row.0, row.2)));
            let recall = found.count() as f32 / expected.len() as f32;
            assert_eq!(recall, point.recall, "{} lists", point.probes);
        }
        // A search by recall probes as many lists as the table says.
        let by_recall = approximate(&cluster.find(), &queries, &near, None).unwrap().1.approximate.unwrap();
        assert_eq!(by_recall.probes, table.probes_for(0.9, built.lists));
        let points = |table: &RecallTable| table.points.clone();
        match &first {
            None => first = Some(table),
            Some(first) => assert_eq!(points(first), points(&table)),
        }
        // A sample is taken at equal intervals.
        let some = measure(&cluster, &queries, 3, 2).unwrap();
        assert_eq!((some.queries, some.k), (3, 2));
        assert_eq!(used_table(&cluster), some);
    }
}

#[test]
fn a_table_of_recall_is_replaced_completely_or_not_at_all() {
    let mut cluster = Cluster::new(2);
    let (file, queries) = clustered(&cluster, Element::U8);
    cluster.load(&file, 2, 5_000).unwrap();
    let error = measure(&cluster, &queries, 10, 5).unwrap_err().to_string();
    assert!(error.contains("points has no index"), "{error}");
    let built = build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    for (sample, k, expected) in [(0, 5, "sample is 0"), (5, 0, "k is 0")] {
        let error = measure(&cluster, &queries, sample, k).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(used_table(&cluster), built.recall);
    let tables = |cluster: &Cluster| {
        let names = cluster.names().into_iter();
        names.filter(|name| name.starts_with("points.index.recall.")).collect::<Vec<_>>()
    };
    let one = measure(&cluster, &queries, 10, 5).unwrap();
    assert_eq!(tables(&cluster), ["points.index.recall.0"]);
    let two = measure(&cluster, &queries, 20, 5).unwrap();
    assert_eq!(tables(&cluster), ["points.index.recall.1"]);
    assert!(one != two && used_table(&cluster) == two);
    // A measurement that was interrupted after the write of its table leaves two tables. The later one is used.
    let kept = cluster.on.nodes.catalog().unwrap().files_of("points.index.recall.1").unwrap();
    let put = |description: Value| {
        let options = LoadOptions {
            copies: 2,
            record_bytes: Some(1),
            description: Some(description),
            ..LoadOptions::default()
        };
        let name = "points.index.recall.0";
        cluster.on.nodes.put(&plain(64 << 20), name, (name, Some(1)), &b"x"[..], &options).unwrap();
    };
    let mut later = kept[0].description.clone().unwrap();
    later["number"] = json!(later["number"].as_u64().unwrap() + 1);
    later["recall"] = serde_json::to_value(&one).unwrap();
    put(later.clone());
    assert_eq!(used_table(&cluster), one);
    let two = measure(&cluster, &queries, 20, 5).unwrap();
    assert_eq!(
        (tables(&cluster), used_table(&cluster)),
        (vec!["points.index.recall.1".to_string()], two.clone())
    );
    // A table of another index is ignored, and is replaced by the next measurement.
    later["number"] = json!(1000);
    later["index_id"] = json!("00000000000000000000000000000001");
    put(later);
    assert_eq!(used_table(&cluster), two);
    measure(&cluster, &queries, 20, 5).unwrap();
    assert_eq!(tables(&cluster), ["points.index.recall.0"]);
    // A node that is away is named, and the table remains.
    let table = used_table(&cluster);
    cluster.stop(1);
    cluster.begin();
    let error = measure(&cluster, &queries, 10, 5).unwrap_err().to_string();
    assert!(error.contains(cluster.on.nodes.addresses().nth(1).unwrap()), "{error}");
    assert_eq!(used_table(&cluster), table);
    cluster.start(1);
    // A new index has the table of its build.
    let built = build(&cluster, &Index { lists: Some(20), ..Index::default() }).unwrap();
    assert_eq!((used_table(&cluster), tables(&cluster)), (built.recall, Vec::new()));
    measure(&cluster, &queries, 10, 5).unwrap();
    remove_on_nodes(&cluster.on, "points").unwrap();
    assert!(cluster.names().is_empty(), "{:?}", cluster.names());
}
