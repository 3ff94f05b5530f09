//! Helpers shared by the integration tests.
#![allow(dead_code)]

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

use arrow_array::{
    Array,
    cast::AsArray,
    types::{Float64Type, UInt32Type, UInt64Type},
};
use inshore_graph::{
    Answer, Graph, GraphInfo, ImportOptions, Kronecker, Regime, Result, Step, Tuning, import,
};
use inshore_sortreduce::Strategy;
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_tables::Input;

pub const MIB: u64 = 1 << 20;

/// A store in a folder of its own, removed on drop.
pub struct TestStore {
    pub folder: tempfile::TempDir,
    pub store: Store,
}

impl TestStore {
    pub fn new() -> TestStore {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        TestStore { folder, store }
    }

    pub fn job(&self, memory_bytes: u64, threads: usize) -> Job {
        self.store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap()
    }

    /// Writes a file for import.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes.as_ref()).unwrap();
        path
    }

    pub fn import(&self, name: &str, paths: &[PathBuf], options: &ImportOptions) -> Result<GraphInfo> {
        self.import_in(name, paths, options, 64 * MIB)
    }

    pub fn import_in(
        &self,
        name: &str,
        paths: &[PathBuf],
        options: &ImportOptions,
        memory_bytes: u64,
    ) -> Result<GraphInfo> {
        let job = self.job(memory_bytes, 2);
        let inputs: Vec<Input> = paths.iter().map(Input::new).collect();
        let info = import(&self.store, &job, name, &inputs, options)?;
        assert_eq!(job.budget().reserved_bytes(), 0, "import handed its memory back");
        Ok(info)
    }

    pub fn kronecker(&self, name: &str, scale: u32, memory_bytes: u64) -> Graph {
        let kronecker = Kronecker { scale, edge_factor: 16, seed: 1 };
        let job = self.job(memory_bytes, 2);
        inshore_graph::generate(&self.store, &job, name, &kronecker, false).unwrap();
        self.graph(name)
    }

    pub fn graph(&self, name: &str) -> Graph {
        Graph::open(&self.store, name).unwrap()
    }
}

/// The budget and the tuning of a job. An algorithm must give the same answer in all modes.
pub struct ExecutionMode {
    pub name: &'static str,
    pub memory_bytes: u64,
    pub threads: usize,
    pub tuning: Tuning,
}

/// Lists modes: a tiny and a huge budget, a tiny buffer that makes sorted runs spill, and narrow columns.
pub fn ways() -> Vec<ExecutionMode> {
    let way = |name, memory_bytes, threads, tuning| ExecutionMode { name, memory_bytes, threads, tuning };
    let spill = Tuning { strategy: Some(Strategy::Merge), chunk_bytes: Some(16 << 10), ..Tuning::default() };
    let columns = Tuning { column_vertices: Some(7), ..Tuning::default() };
    vec![
        way("16 MiB", 16 * MIB, 2, Tuning::default()),
        way("4 GiB", 4096 * MIB, 2, Tuning::default()),
        way("4 GiB, one thread", 4096 * MIB, 1, Tuning::default()),
        way("spilling", 16 * MIB, 2, spill),
        way("semi-external", 16 * MIB, 2, Tuning { regime: Some(Regime::SemiExternal), ..Tuning::default() }),
        way("columns in memory", 16 * MIB, 2, columns),
        way("columns on flash", 16 * MIB, 2, Tuning { regime: Some(Regime::External), ..columns }),
    ]
}

/// Lists tunings that force each step by its name, and tunings that draw random choices in every layout. Their seeds
/// begin at `first`.
pub fn forced(first: u64) -> Vec<Tuning> {
    let draws = [None, Some(first), Some(first + 1)];
    let step = |step| draws.map(|draw| Tuning { step: Some(step), draw, ..Tuning::default() });
    let steps = Step::ALL.into_iter().flat_map(step);
    let drawn = (first..first + 8).map(|seed| Tuning { draw: Some(seed), ..Tuning::default() });
    let regimes = [Regime::Memory, Regime::SemiExternal, Regime::External].into_iter().flat_map(|regime| {
        (first + 8..first + 10).map(move |seed| Tuning {
            draw: Some(seed),
            regime: Some(regime),
            ..Tuning::default()
        })
    });
    let sorted = [Strategy::Merge, Strategy::Partition, Strategy::HashFirst].map(|strategy| Tuning {
        draw: Some(first + 10),
        strategy: Some(strategy),
        ..Tuning::default()
    });
    steps.chain(drawn).chain(regimes).chain(sorted).collect()
}

/// Reads all rows of an answer: the id of each vertex and its other columns as numbers (`None` for null).
pub fn rows(mut answer: Answer) -> Vec<(u64, Vec<Option<f64>>)> {
    let mut all = Vec::new();
    while let Some(batch) = answer.rows.next_batch().unwrap() {
        let ids = batch.column(0).as_primitive::<UInt64Type>().values().to_vec();
        for (row, id) in ids.into_iter().enumerate() {
            let values = batch.columns()[1..].iter().map(|column| {
                if column.is_null(row) {
                    return None;
                }
                Some(if let Some(column) = column.as_primitive_opt::<Float64Type>() {
                    column.value(row)
                } else if let Some(column) = column.as_primitive_opt::<UInt32Type>() {
                    column.value(row) as f64
                } else {
                    column.as_primitive::<UInt64Type>().value(row) as f64
                })
            });
            all.push((id, values.collect()));
        }
    }
    all
}

/// Returns the folder of real data, or prints a line that says that the test was skipped.
pub fn data(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("INSHORE_TEST_DATA").map_or(beside, PathBuf::from);
    let path = root.join("graphs").join(name);
    if !path.exists() {
        println!("skipped: no {} (INSHORE_TEST_DATA names the folder of test data)", path.display());
        return None;
    }
    Some(path)
}

/// Reads a file, decompressed if its name ends in `.gz`.
pub fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    match path.extension().is_some_and(|extension| extension == "gz") {
        true => flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        false => std::io::BufReader::new(file).read_to_end(&mut bytes).unwrap(),
    };
    bytes
}

/// Reads lines of `id value`. The values by which LDBC marks unreached vertices become `None`.
pub fn answers(path: &Path) -> Vec<(u64, Option<f64>)> {
    let text = String::from_utf8(read(path)).unwrap();
    let parse = |line: &str| {
        let (id, value) = line.split_once(' ').unwrap();
        let value = match value.trim() {
            "9223372036854775807" | "infinity" | "Infinity" => None,
            number => Some(number.parse().unwrap()),
        };
        (id.parse().unwrap(), value)
    };
    let mut all: Vec<_> = text.lines().map(parse).collect();
    all.sort_by_key(|(id, _)| *id);
    all
}

/// Asserts that two labelings divide the vertices in the same way, and that each label in `ours` is the smallest id of
/// its part.
pub fn assert_same_partition(ours: &[(u64, Vec<Option<f64>>)], theirs: &[(u64, Option<f64>)]) {
    use std::collections::HashMap;
    assert_eq!(ours.len(), theirs.len());
    let mut label_of = HashMap::new();
    let mut smallest: HashMap<u64, u64> = HashMap::new();
    for ((id, ours), (their_id, theirs)) in ours.iter().zip(theirs) {
        let (label, theirs) = (ours[0].unwrap() as u64, theirs.unwrap().to_bits());
        assert_eq!(id, their_id);
        assert_eq!(*label_of.entry(theirs).or_insert(label), label, "vertex {id}");
        smallest.entry(label).and_modify(|least| *least = (*least).min(*id)).or_insert(*id);
    }
    assert_eq!(label_of.len(), smallest.len(), "components of one label");
    assert!(smallest.iter().all(|(label, least)| label == least), "labels are the smallest ids");
}
