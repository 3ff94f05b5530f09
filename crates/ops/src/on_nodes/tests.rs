//! These tests check that the result of a job on nodes is the same if the client processes some shards itself.

use std::{collections::BTreeMap, io::Cursor, path::Path, sync::Arc, thread, time::Duration};

use arrow_array::{RecordBatch, cast::AsArray, types::UInt64Type};
use inshore_kernel::{
    Block, Border, Contents, Event, Kernel, Next, Parts, Portable, ResumePosition, Source, TaskHandlers,
};
use inshore_kernels::{
    CountsWords, Format, GRAM_BYTES, LanguageOfText, Pack, PatternOptions, Profiles, Search, SearchOutput,
    TextUnit, WordOptions, count_words, decompress,
};
use inshore_nodes::{
    Agent, AgentConfig, ClientConfig, HereCost, LoadOptions, Nodes, RunOptions, RunningAgent, run_on_nodes,
};
use inshore_store::{Budget, Cancel, Context, Limits, Memory, Store, Throttled};
use serde_json::Value;
use tempfile::TempDir;

use super::count_words_on_nodes;

/// Wraps a kernel and delays each block, so that the nodes are slow.
struct Slow<K>(K);

impl<K: Kernel> Kernel for Slow<K> {
    type Error = K::Error;
    type Worker = K::Worker;
    type Part = K::Part;

    fn border(&self) -> Border {
        self.0.border()
    }

    fn worker(&self, job: &Context) -> Result<K::Worker, K::Error> {
        self.0.worker(job)
    }

    fn block(&self, worker: &mut K::Worker, block: &Block<'_>) -> Result<K::Part, K::Error> {
        thread::sleep(Duration::from_millis(80));
        self.0.block(worker, block)
    }
}

impl<K: Portable> Portable for Slow<K> {
    const KIND: &'static str = K::KIND;

    fn arguments(&self) -> Value {
        self.0.arguments()
    }

    fn of_arguments(arguments: &Value) -> Result<Self, K::Error> {
        K::of_arguments(arguments).map(Slow)
    }

    fn encode(part: &K::Part, out: &mut Vec<u8>) {
        K::encode(part, out);
    }

    fn decode(bytes: &[u8]) -> Option<K::Part> {
        K::decode(bytes)
    }

    fn suffices(&self, part: &K::Part) -> bool {
        self.0.suffices(part)
    }
}

struct Cluster {
    _serving: Vec<RunningAgent>,
    _folders: Vec<TempDir>,
    nodes: Nodes,
}

impl Cluster {
    fn new(text: &[u8], piece_bytes: u64) -> Cluster {
        Cluster::on(text, piece_bytes, |folder| Store::open(folder).unwrap())
    }

    fn on(text: &[u8], piece_bytes: u64, open: impl Fn(&Path) -> Store) -> Cluster {
        let folders: Vec<TempDir> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let serve = |folder: &TempDir| {
            let works = TaskHandlers::default()
                .with(Parts::<Slow<Search>>::default())
                .with(Parts::<Slow<LanguageOfText>>::default())
                .with(Parts::<Slow<Pack>>::default())
                .with(CountsWords)
                .with(Parts::<Contents>::default());
            let config = AgentConfig {
                drain: Duration::from_millis(100),
                task_memory_bytes: 64 << 20,
                ..AgentConfig::new("slow", 256 << 20, 2)
            };
            let agent = Agent::new(open(folder.path()), works, config);
            agent.serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let serving: Vec<RunningAgent> = folders.iter().map(serve).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        let options = LoadOptions { piece_bytes: Some(piece_bytes), ..LoadOptions::default() };
        nodes.put(&job(), "text", ("text", None), Cursor::new(text), &options).unwrap();
        Cluster { _serving: serving, _folders: folders, nodes }
    }

    /// Returns the encoded parts of the answer, and the cost of the client's own processing of shards.
    fn parts<K>(&self, kernel: &K, help_from: Option<Duration>) -> (Vec<(ResumePosition, Vec<u8>)>, HereCost)
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let wholes = self.nodes.catalog().unwrap().named("text").unwrap();
        let options = RunOptions { help_from, ..RunOptions::default() };
        let mut parts = Vec::new();
        let gathered = run_on_nodes(&self.nodes, &job(), kernel, &wholes, &options, |event: Event<'_, K>| {
            if let Some(part) = event.part.transpose()? {
                let mut written = Vec::new();
                K::encode(&part, &mut written);
                parts.push((event.reach, written));
            }
            Ok(Next::Go)
        });
        (parts, gathered.unwrap().here.unwrap_or_default())
    }

    /// Checks that the answer is the same whether or not the client processes some shards itself. After the first
    /// shards the client may stop, if the nodes have less of the machine's cores meanwhile.
    fn check<K>(&self, kernel: &K)
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let (alone, none) = self.parts(kernel, None);
        let (together, here) = self.parts(kernel, Some(Duration::from_millis(150)));
        assert!(none.pieces == 0 && here.pieces > 0, "{none:?} and {here:?} of {}", K::KIND);
        assert!(alone == together, "{}", K::KIND);
    }
}

fn job() -> Context {
    Context::new(Budget::new(256 << 20, 2), Cancel::default())
}

fn text(bytes: usize) -> Vec<u8> {
    let line = |row: usize| match row % 5 {
        2 => format!("{row} der Hund ist faul und der Fuchs springt\n"),
        _ => format!("{row} the dog is lazy and the fox jumps {}\n", "over ".repeat(row % 7)),
    };
    let mut text = Vec::with_capacity(bytes + 100);
    for row in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.extend(line(row).into_bytes());
    }
    text.truncate(bytes);
    text
}

#[test]
fn searches_and_languages_are_the_same_with_the_clients_help() {
    let cluster = Cluster::new(&text(3 << 20), 100 << 10);
    for wanted in [
        SearchOutput::LineCount,
        SearchOutput::MatchCount,
        SearchOutput::Lines { numbered: true, spans: true, before: 1, after: 1 },
    ] {
        let (patterns, budget) = (["[0-9]3 the", "Hund"], inshore_store::Budget::new(64 << 20, 1));
        let search = Search::new(&patterns, &PatternOptions::default(), wanted, true, &budget).unwrap();
        cluster.check(&search);
    }
    let sample = |words: &'static str| {
        vec![Source::new(words, move |_| {
            Ok(inshore_kernel::OpenedSource::Stream(Box::new(Cursor::new(words.repeat(20)))))
        })]
    };
    let samples = vec![
        ("en".to_string(), sample("the dog is lazy and the fox jumps over it\n")),
        ("de".to_string(), sample("der Hund ist faul und der Fuchs springt\n")),
    ];
    let profiles = Profiles::train(&job(), samples, 1000 * GRAM_BYTES).unwrap();
    cluster.check(&LanguageOfText::new(&profiles, TextUnit::Line));
    cluster.check(&LanguageOfText::new(&profiles, TextUnit::Source));
}

#[test]
fn the_client_counts_words_that_slow_nodes_have_not_counted() {
    let slow = |folder: &Path| {
        let limits = Limits { bytes_per_second: 1 << 20, ..Limits::default() };
        let drive = Throttled::new(Arc::new(Memory::new(64)), limits);
        Store::open_on(folder, vec![Arc::new(drive)]).unwrap()
    };
    let text = text(2 << 20);
    let cluster = Cluster::on(&text, 64 << 10, slow);
    let wholes = cluster.nodes.catalog().unwrap().named("text").unwrap();
    let options = WordOptions { min_count: 2, ..WordOptions::default() };
    let add = |found: &mut BTreeMap<String, u64>, batch: RecordBatch| {
        let (words, counts) = (batch.column(0).as_string::<i32>(), batch.column(1));
        let counts = counts.as_primitive::<UInt64Type>().values();
        let counted = words.iter().flatten().zip(counts).map(|(word, count)| (word.to_string(), *count));
        found.extend(counted);
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let own_job = store.job(Budget::new(256 << 20, 2), Cancel::default()).unwrap();
    let mut expected = BTreeMap::new();
    let own = text.clone();
    let here = Source::new("text", |_| Ok(inshore_kernel::OpenedSource::Stream(Box::new(Cursor::new(own)))));
    let all = count_words(&own_job, std::iter::once(here), &options, |batch| {
        add(&mut expected, batch);
        Ok(())
    });
    let count = |help_on: Option<Store>| {
        let run =
            RunOptions { help_from: Some(Duration::from_millis(150)), help_on, ..RunOptions::default() };
        let mut found = BTreeMap::new();
        let counted = count_words_on_nodes(&cluster.nodes, &job(), &wholes, &options, &run, |batch| {
            add(&mut found, batch);
            Ok(())
        });
        let (summary, gathered) = counted.unwrap();
        assert!(found == expected, "{gathered:?}");
        assert_eq!(summary.words, all.as_ref().unwrap().words);
        assert_eq!(summary.bytes, text.len() as u64);
        gathered.here.unwrap()
    };
    let here = count(Some(store.clone()));
    assert!(here.pieces > 0, "{here:?}");
    let here = count(None);
    assert!(here.pieces == 0 && here.why.contains("no store"), "{here:?}");
}

#[test]
fn text_compressed_with_the_clients_help_round_trips() {
    let text = text(40 << 20);
    let cluster = Cluster::new(&text, 5 << 20);
    let packed = |help_from| {
        let (parts, here) = cluster.parts(&Pack::new(Format::Lz4, None).unwrap(), help_from);
        assert_eq!(here.pieces > 0, help_from.is_some(), "{here:?}");
        let packed: Vec<u8> = parts.into_iter().flat_map(|(_, part)| part).collect();
        let mut again = Vec::new();
        decompress(&job(), "packed", &packed[..], &mut again).unwrap();
        assert!(again == text);
        packed.len()
    };
    let (alone, together) = (packed(None), packed(Some(Duration::from_millis(150))));
    assert!(alone.abs_diff(together) < alone / 50, "{alone} and {together} bytes");
}
