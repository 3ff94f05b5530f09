//! These tests count k-mers on nodes in this process, one of which may fail in the middle, and compare the result
//! with a local count of the whole file.

use std::{
    fs,
    io::Cursor,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use inshore_kernel::{Parts, TaskHandlers};
use inshore_nodes::{Agent, AgentConfig, ClientConfig, LoadOptions, RunningAgent};
use inshore_store::{Budget, Cancel, Limits, Store};
use inshore_tables::count_kmers;
use tempfile::TempDir;

use super::*;
use crate::{split_points::record_lines, testing::slow_store};

/// The planned fault of a node. The fault occurs after a given number of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Fails,
    Garbage,
    /// The node sends codes that are not ascending.
    Twice,
    /// The node sends a code with more bases than requested.
    Long,
}

type Plan = Arc<Mutex<(Fault, usize)>>;

/// The task handler for k-mers, with a planned fault.
struct Faulty(Plan);

impl TaskHandler for Faulty {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let (fault, after) = std::mem::replace(&mut *self.0.lock().unwrap(), (Fault::None, 0));
        CountsKmers.work(task, &mut FaultyReply { reply, fault, after })
    }
}

struct FaultyReply<'a> {
    reply: &'a mut dyn Reply,
    fault: Fault,
    after: usize,
}

impl Reply for FaultyReply<'_> {
    fn batch(&mut self, answer: RecordBatch) -> Result<(), Failure> {
        if self.after > 0 {
            self.after -= 1;
            return self.reply.batch(answer);
        }
        match std::mem::replace(&mut self.fault, Fault::None) {
            Fault::None => self.reply.batch(answer),
            Fault::Fails => Err("a planned fault".into()),
            Fault::Garbage => self.reply.batch(batch(KMERS, &[0; 9])),
            Fault::Twice => {
                self.reply.batch(answer.clone())?;
                self.reply.batch(answer)
            }
            Fault::Long => self.reply.batch(batch(KMERS, &pack_kmers(&[1u64 << 60], &[1]))),
        }
    }
}

struct Cluster {
    serving: Vec<RunningAgent>,
    plans: Vec<Plan>,
    folder: TempDir,
    nodes: Nodes,
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        Cluster::on(count, |folder| Store::open(folder).unwrap())
    }

    fn on(count: usize, open: impl Fn(PathBuf) -> Store) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let plans: Vec<Plan> = (0..count).map(|_| Arc::new(Mutex::new((Fault::None, 0)))).collect();
        let serve = |(number, plan): (usize, &Plan)| {
            let store = open(folder.path().join(format!("node{number}")));
            let works = TaskHandlers::default()
                .with(Faulty(plan.clone()))
                .with(Parts::<inshore_kernel::Contents>::default());
            let config = AgentConfig::new(format!("n{number}"), 64 << 20, 2);
            Agent::new(store, works, config).serve("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        let serving: Vec<RunningAgent> = plans.iter().enumerate().map(serve).collect();
        let addresses = serving.iter().map(|serving| serving.address().to_string()).collect();
        let nodes = Nodes::new(ClientConfig::new(addresses, None)).unwrap();
        Cluster { serving, plans, folder, nodes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, text: &[u8], copies: usize, piece_bytes: u64) {
        let load = LoadOptions {
            copies,
            piece_bytes: Some(piece_bytes),
            record_lines: record_lines(&[name]),
            block_bytes: 4096,
            ..LoadOptions::default()
        };
        self.nodes.put(&job(), name, (name, None), Cursor::new(text), &load).unwrap();
    }

    /// Counts k-mers on the nodes.
    fn count(
        &self,
        name: &str,
        options: &KmerOptions,
        partial: bool,
    ) -> Result<(KmerSummary, GatherReport), Error> {
        let wholes = self.nodes.catalog().unwrap().named(name)?;
        let run = RunOptions { partial, ..RunOptions::default() };
        let job = job();
        let counted =
            count_kmers_on_nodes(&self.nodes, &job, &wholes, &self.path("there.csv"), options, &run);
        assert_eq!(job.budget().reserved_bytes(), 0);
        counted
    }

    /// Counts the k-mers of the same text locally, and checks that the tables and the counts are equal.
    fn is_as_here(&self, counted: &KmerSummary, text: &[u8], options: &KmerOptions) {
        let store = Store::open(self.path("store")).unwrap();
        fs::write(self.path("text"), text).unwrap();
        let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
        let here =
            count_kmers(&job, &[Input::new(self.path("text"))], &self.path("here.csv"), options).unwrap();
        let numbers = |summary: &KmerSummary| {
            let KmerSummary { sequences, bases, kmers, distinct, written, ref histogram, .. } = *summary;
            (sequences, bases, kmers, distinct, written, histogram.clone())
        };
        assert_eq!(numbers(counted), numbers(&here));
        assert!(fs::read(self.path("there.csv")).unwrap() == fs::read(self.path("here.csv")).unwrap());
        fs::remove_file(self.path("there.csv")).unwrap();
    }
}

fn job() -> Context {
    Context::new(Budget::new(32 << 20, 2), Cancel::default())
}

fn bases(count: usize, seed: u64) -> String {
    let mut state = seed;
    let mut base = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        char::from(b"ACGT"[(state >> 61) as usize & 3])
    };
    (0..count).map(|_| base()).collect()
}

/// Returns FASTA: a sequence of many lines, some short sequences, and the first sequence again.
fn fasta() -> Vec<u8> {
    let long = bases(150_000, 1);
    let lines = |text: &str, width: usize| -> String {
        text.as_bytes()
            .chunks(width)
            .map(|line| format!("{}\n", std::str::from_utf8(line).unwrap()))
            .collect()
    };
    let short: String =
        (0..200).map(|number| format!(">s{number}\r\nNN{}\r\nnacgtn\r\n", bases(number, 7))).collect();
    format!(">long\n{}{short}>again\n{}", lines(&long, 61), lines(&long, 7)).into_bytes()
}

fn fastq() -> Vec<u8> {
    let genome = bases(60_000, 3);
    let read = |number: usize| {
        let start = number * 7919 % (genome.len() - 150);
        // The quality line begins with `@`, which is also the first letter of a record.
        format!("@r{number}\n{}\n+\n@{}\n", &genome[start..start + 150], "I".repeat(149))
    };
    (0..1500).map(read).collect::<String>().into_bytes()
}

#[test]
fn k_mers_on_nodes_are_those_here() {
    let cluster = Cluster::new(3);
    let (fasta, fastq) = (fasta(), fastq());
    cluster.put("genome.fa", &fasta, 1, 700);
    cluster.put("reads.fq", &fastq, 1, 5000);
    for (k, min_count, codes, canonical) in [
        (1, 1, true, true),
        (5, 1, false, true),
        (25, 2, true, true),
        (32, 1, false, false),
        (47, 1, false, true),
    ] {
        let options = KmerOptions { k, canonical, min_count, codes, resume: false };
        for (name, text) in [("genome.fa", &fasta), ("reads.fq", &fastq)] {
            let (summary, gathered) = cluster.count(name, &options, false).unwrap();
            cluster.is_as_here(&summary, text, &options);
            assert!(gathered.nodes.len() == 3 && gathered.nodes.iter().all(|node| node.bytes_read > 0));
        }
    }
    // Most 25-mers of a genome occur once. A packed 25-mer takes at most 5 bytes, compared with 12 bytes for the
    // code and count.
    let (summary, gathered) = cluster.count("genome.fa", &KmerOptions::default(), false).unwrap();
    let moved: u64 = gathered.nodes.iter().map(|node| node.bytes_moved).sum();
    assert!(moved < 3 * 5 * summary.distinct, "{moved} bytes of {} k-mers", summary.distinct);
}

#[test]
fn k_mers_that_slow_nodes_have_not_counted_are_counted_here() {
    let cluster = Cluster::on(2, |folder| {
        slow_store(&folder, Limits { bytes_per_second: 1 << 20, ..Limits::default() })
    });
    let store = Store::open(cluster.path("mine")).unwrap();
    let (help_from, help_on) = (Some(Duration::from_millis(60)), Some(store.clone()));
    let run = RunOptions { help_from, help_on, ..RunOptions::default() };
    for (name, text, lengths) in [("genome.fa", fasta(), &[21, 40][..]), ("reads.fq", fastq(), &[21])] {
        cluster.put(name, &text, 1, 16_000);
        let wholes = cluster.nodes.catalog().unwrap().named(name).unwrap();
        for &k in lengths {
            let options = KmerOptions { k, ..KmerOptions::default() };
            let job = store.job(Budget::new(256 << 20, 2), Cancel::default()).unwrap();
            let (nodes, output) = (&cluster.nodes, cluster.path("there.csv"));
            let counted = count_kmers_on_nodes(nodes, &job, &wholes, &output, &options, &run);
            let (summary, gathered) = counted.unwrap();
            assert_eq!(job.budget().reserved_bytes(), 0);
            cluster.is_as_here(&summary, &text, &options);
            let here = gathered.here.unwrap();
            assert!(here.pieces > 0, "{name}: {here:?}");
        }
    }
}

#[test]
fn a_node_that_fails_in_the_middle_is_made_up_for_by_copies() {
    let cluster = Cluster::new(3);
    let text = fasta();
    cluster.put("genome.fa", &text, 2, 20_000);
    let options = KmerOptions { k: 21, ..KmerOptions::default() };
    for fault in [Fault::Fails, Fault::Garbage, Fault::Twice] {
        for after in 0..4 {
            *cluster.plans[1].lock().unwrap() = (fault, after);
            let (summary, gathered) = cluster.count("genome.fa", &options, false).unwrap();
            cluster.is_as_here(&summary, &text, &options);
            let lost: Vec<_> = gathered.nodes.iter().filter_map(|node| node.lost.as_deref()).collect();
            assert_eq!(lost.len(), 1, "{fault:?} after {after}: {lost:?}");
        }
    }
}

#[test]
fn what_cannot_be_counted_leaves_nothing() {
    let cluster = Cluster::new(3);
    let text = fasta();
    cluster.put("genome.fa", &text, 1, 20_000);
    let options = KmerOptions { k: 21, ..KmerOptions::default() };
    let refused = |fault: Fault, after: usize, partial: bool| {
        *cluster.plans[1].lock().unwrap() = (fault, after);
        let error = cluster.count("genome.fa", &options, partial).unwrap_err().to_string();
        assert!(!cluster.path("there.csv").exists());
        error
    };
    for after in 0..4 {
        let error = refused(Fault::Fails, after, false);
        assert!(error.contains("a planned fault"), "{error}");
    }
    let error = refused(Fault::Fails, 2, true);
    assert!(error.contains("a part of its answer was used"), "{error}");
    let error = refused(Fault::Long, 1, false);
    assert!(error.contains("invalid rows, or rows out of order"), "{error}");
    // If the node fails before its first batch, the answers of the other nodes are a partial answer.
    *cluster.plans[1].lock().unwrap() = (Fault::Fails, 0);
    let (summary, gathered) = cluster.count("genome.fa", &options, true).unwrap();
    let (whole, _) = cluster.count("genome.fa", &options, false).unwrap();
    assert!(summary.kmers > 0 && summary.kmers < whole.kmers && !gathered.missing.is_empty());
}

#[test]
fn what_no_node_should_answer_is_none() {
    let row = |what: u8, bytes: &[u8]| Counted::<u64>::of_batch(&batch(what, bytes), &25).is_some();
    let ends = |offsets: &[u64]| {
        let placed = |&offset: &u64| PlacedEnds { whole: 0, offset, bytes: 9, ends: PieceEnds::default() };
        serde_json::to_vec(&offsets.iter().map(placed).collect::<Vec<_>>()).unwrap()
    };
    let (good, long) = (pack_kmers(&[1u64, 2], &[1, 1]), pack_kmers(&[1u64 << 50], &[1]));
    assert!(row(ENDS, &ends(&[0, 9])) && row(KMERS, &good) && !row(KMERS, &long) && !row(KMERS, &[]));
    assert!(!row(ENDS, &ends(&[9, 0])) && !row(ENDS, &ends(&[9, 9])) && !row(ENDS, b"[{}]"));
    assert!(!row(KMERS, &good[1..]) && !row(2, &good) && !row(KMERS, &vec![2; KMER_BLOCK_BYTES + 1]));
    let is_plain =
        |codes: &[u64], counts: &[u32]| Counted::<u64>::of_batch(&plain(codes, counts), &25).is_some();
    assert!(is_plain(&[1, 2], &[1, 1]) && !is_plain(&[2, 1], &[1, 1]) && !is_plain(&[1, 1], &[1, 1]));
    assert!(!is_plain(&[1], &[0]) && !is_plain(&[1 << 50], &[1]));
    let many: Vec<u64> = (0..=KMER_BLOCK_ROWS as u64).collect();
    assert!(is_plain(&many[1..], &vec![1; KMER_BLOCK_ROWS]) && !is_plain(&many, &vec![1; many.len()]));
    assert!(!row(ENDS, &ends(&(0..20_000).collect::<Vec<_>>())));
    let two = batch(KMERS, &good);
    let two = arrow_select::concat::concat_batches(&two.schema(), [&two, &two]).unwrap();
    assert!(Counted::<u64>::of_batch(&two, &25).is_none());
    let other: ArrayRef = Arc::new(UInt8Array::from(vec![1]));
    let no_bytes = RecordBatch::try_from_iter([("what", other)]).unwrap();
    assert!(Counted::<u64>::of_batch(&no_bytes, &25).is_none());
}

#[test]
fn files_that_nodes_cannot_count_are_refused_with_what_to_do() {
    let cluster = Cluster::new(2);
    let fastq = fastq();
    let load = LoadOptions { piece_bytes: Some(5000), ..LoadOptions::default() };
    let put = |name: &str, text: &[u8], load: &LoadOptions| {
        cluster.nodes.put(&job(), name, (name, None), Cursor::new(text), load).unwrap();
    };
    put("old.fq", &fastq, &load);
    put("one.fq", &fastq, &LoadOptions::default());
    put("packed.fq", &[0x1f, 0x8b, 8, 0, 10, 1], &load);
    put("zst.fa", &[0x28, 0xb5, 0x2f, 0xfd, 10, 1], &load);
    put("text", b"\n\r\nGATTACA\n", &load);
    put("records", &fastq, &LoadOptions { record_bytes: Some(1000), ..load.clone() });
    put("groups", &fastq, &LoadOptions { ends: Some(vec![1000]), ..load.clone() });
    put("empty.fa", b"", &load);
    put("blank.fa", &[b'\n'; 9000], &load);
    let options = KmerOptions::default();
    for (name, expected) in [
        ("old.fq", "store:old.fq: its pieces end with lines, not with records of FASTQ: load it again"),
        ("packed.fq", "store:packed.fq: it is compressed as a whole"),
        ("zst.fa", "load it decompressed"),
        ("text", "store:text:3: expected '>' of FASTA or '@' of FASTQ, got 'GATTACA'"),
        ("records", "its pieces end with records of 1000 bytes"),
        ("groups", "row groups"),
    ] {
        let error = cluster.count(name, &options, false).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!cluster.path("there.csv").exists());
    }
    for name in ["empty.fa", "blank.fa"] {
        let (summary, _) = cluster.count(name, &options, false).unwrap();
        assert_eq!((summary.kmers, summary.written), (0, 0));
    }
    // The sequence begins after a few empty lines, each of which is a shard.
    let late = b"\n\r\n\n\r>a\nGATTACAGATTACA\nGATTACAGATTACA\n";
    cluster.put("late.fa", late, 1, 1);
    let (summary, _) = cluster.count("late.fa", &options, false).unwrap();
    cluster.is_as_here(&summary, late, &options);
    assert_eq!((summary.sequences, summary.kmers), (1, 4));
    let (summary, _) = cluster.count("one.fq", &options, false).unwrap();
    cluster.is_as_here(&summary, &fastq, &options);
    let error = cluster.count("one.fq", &KmerOptions { k: 64, ..options }, false).unwrap_err().to_string();
    assert!(error.contains("expected a k from 1 to 63"), "{error}");
    // The error of a damaged record names the file and the line.
    let mut bad = fastq.clone();
    let end = bad.len() - 100;
    bad[end..].fill(b'I');
    cluster.put("bad.fq", &bad, 1, 5000);
    let error = cluster.count("bad.fq", &options, false).unwrap_err().to_string();
    assert!(error.contains("store:bad.fq, from byte") && error.contains("truncated: record"), "{error}");
    assert!(cluster.serving.len() == 2);
}
