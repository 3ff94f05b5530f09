//! These tests run a task handler that follows the instructions in its arguments, in a child process of the test
//! program. A child process is the test program itself, started again with one test.

use std::{
    env, fs,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use arrow_array::{
    ArrayRef, RecordBatch, RecordBatchOptions, StringArray, StringViewArray, cast::AsArray, types::UInt64Type,
};
use arrow_cast::cast::cast;
use arrow_schema::{DataType, Schema};
use inshore_nodes::{open_pieces, protocol::PieceRequest};
use inshore_sandbox::apart_main_if_asked;
use inshore_store::{Budget, Cancel, FileReader, ProcessCounts, Store};
use serde_json::json;
use tempfile::TempDir;

use super::{
    protocol::{MessageHeader, ROWS, WORDS_BYTES_MAX},
    *,
};

struct Tries;

impl TaskHandler for Tries {
    fn kind(&self) -> &'static str {
        "tries"
    }

    fn smallest_memory_bytes(&self) -> u64 {
        24 * MIB
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        match arguments["what"].as_str().unwrap() {
            "numbers" => {}
            "fail" => return Err("a planned failure".into()),
            "long" => return Err("é".repeat(100_000).into()),
            "rows" => {
                let texts: Vec<String> = (1..=8).map(|row| "x".repeat(row * 100_000)).collect();
                let column: ArrayRef = match arguments["views"] == true {
                    true => Arc::new(StringViewArray::from_iter_values(texts)),
                    false => Arc::new(StringArray::from(texts)),
                };
                reply.batch(RecordBatch::try_from_iter([("text", column)])?)?;
                return Ok(Value::Null);
            }
            "leave" => {
                let (mut sources, leave) = sources.into_parts();
                return thread::scope(|scope| {
                    scope.spawn(move || while sources.next().is_some_and(|source| source.is_ok()) {});
                    thread::sleep(Duration::from_millis(300));
                    let numbers: ArrayRef = Arc::new(arrow_array::UInt64Array::from(vec![7]));
                    reply.batch(RecordBatch::try_from_iter([("number", numbers)])?)?;
                    leave();
                    Err("a planned failure".into())
                });
            }
            "panic" => panic!("a planned panic"),
            "sleep" => thread::sleep(Duration::from_secs(1000)),
            "large" => {
                let text = "x".repeat(arguments["bytes"].as_u64().unwrap() as usize);
                let column: ArrayRef = Arc::new(StringArray::from(vec![text]));
                reply.batch(RecordBatch::try_from_iter([("text", column)])?)?;
                return Ok(Value::Null);
            }
            "empty" => {
                let none: ArrayRef = Arc::new(arrow_array::NullArray::new(3));
                let numbers: ArrayRef = Arc::new(arrow_array::UInt64Array::from(Vec::<u64>::new()));
                let options = RecordBatchOptions::new().with_row_count(Some(5));
                reply.batch(match arguments["bytes"].as_u64().unwrap() {
                    0 => RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?,
                    1 => RecordBatch::try_from_iter([("none", none)])?,
                    _ => RecordBatch::try_from_iter([("numbers", numbers)])?,
                })?;
                return Ok(Value::Null);
            }
            other => panic!("{other}"),
        }
        let mut sums = Vec::new();
        for source in sources {
            let source = source?;
            let (file, range) = source.source.part().unwrap();
            let mut reader = FileReader::new(&job, file, range.clone(), 64 << 10)?;
            let mut sum = 0;
            while let Some(piece) = reader.next_piece()? {
                sum += piece.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            }
            sums.push(source.number);
            let numbers: ArrayRef = Arc::new(arrow_array::UInt64Array::from(vec![source.number, sum]));
            reply.batch(RecordBatch::try_from_iter([("number", numbers)])?)?;
        }
        Ok(json!({ "memory": job.budget().memory_bytes(), "numbers": sums }))
    }
}

/// The main function of child processes. In the process of the other tests, this test does nothing.
#[test]
fn runs_as_a_child() {
    apart_main_if_asked(at_work, |socket, memory| run_child(socket, memory, &[&Tries]));
}

/// The received batches, in the order of their arrival.
#[derive(Default)]
struct Answers {
    batches: Vec<RecordBatch>,
}

impl Reply for Answers {
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        self.batches.push(batch);
        Ok(())
    }
}

struct Bench {
    _folder: TempDir,
    store: Store,
    pieces: Vec<PieceRequest>,
}

const PIECES: u64 = 20;
const PIECE_BYTES: u64 = 100_000;

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(16 * MIB, 1), Cancel::default()).unwrap();
        let mut builder = store.create_dataset(&job, "data", "test").unwrap();
        let mut writer = builder.file("bytes", 4096, 64 << 10).unwrap();
        let bytes: Vec<u8> = (0..PIECES * PIECE_BYTES).map(|place| (place / PIECE_BYTES) as u8).collect();
        writer.write(&bytes).unwrap();
        builder.add(writer).unwrap();
        builder.commit(&[]).unwrap();
        let id = store.dataset("data").unwrap().id();
        let piece = |number: u64| PieceRequest {
            number,
            whole: 0,
            dataset: "data".to_string(),
            id,
            file: "bytes".to_string(),
            from: number * PIECE_BYTES,
            to: (number + 1) * PIECE_BYTES,
            offset: 0,
            lines: 0,
        };
        Bench { _folder: folder, store, pieces: (0..PIECES).map(piece).collect() }
    }

    fn job(&self) -> Job {
        self.store.job(Budget::new(64 * MIB, 2), Cancel::default()).unwrap()
    }

    fn work(&self) -> ChildProcessWork<Tries> {
        let helper = Helper::at(env::current_exe().unwrap()).with_args([
            "--exact",
            "child_process::tests::runs_as_a_child",
            "--nocapture",
        ]);
        ChildProcessWork::new(Tries, |_| 0).with_helper(helper)
    }

    /// Runs the task over the first `pieces` shards.
    fn run(&self, job: &Job, arguments: Value, pieces: u64) -> (Result<Value, Failure>, Answers) {
        let (of_job, all) = (job.clone(), self.pieces.clone());
        let next = all.into_iter().take(pieces as usize).map(move |piece| {
            let mut opened = open_pieces(&of_job, vec![piece])?;
            Ok(opened.pop().unwrap())
        });
        let sources = Sources::pulled(next, PIECES * PIECE_BYTES, PIECES as usize);
        let mut answers = Answers::default();
        let done = self.work().work(Task { job: job.clone(), arguments, sources }, &mut answers);
        assert_eq!(job.budget().reserved_bytes(), 0);
        (done, answers)
    }
}

#[test]
fn what_it_answers_comes_of_the_pieces_that_are_handed_out() {
    let bench = Bench::new();
    for pieces in [PIECES, 3, 0] {
        let job = bench.job();
        let (done, answers) = bench.run(&job, json!({ "what": "numbers" }), pieces);
        let done = done.unwrap();
        assert_eq!(done["memory"], 64 * MIB - own_bytes(2) - 8 * MIB);
        let rows = answers.batches.iter().map(|batch| batch.column(0).as_primitive::<UInt64Type>());
        let rows: Vec<(u64, u64)> = rows.map(|column| (column.value(0), column.value(1))).collect();
        assert_eq!(rows, (0..pieces).map(|number| (number, number * PIECE_BYTES)).collect::<Vec<_>>());
        let read = job.counters().bytes_read();
        assert!(read >= pieces * PIECE_BYTES, "{read}");
        // The store holds scratch files of this job, and none of the child's job.
        let scratch = fs::read_dir(bench.store.path().join("scratch")).unwrap().flatten();
        let is_job = |name: &str| name.starts_with(|first: char| first.is_ascii_digit());
        assert_eq!(scratch.filter(|entry| is_job(&entry.file_name().to_string_lossy())).count(), 1);
    }
}

#[test]
fn how_it_failed_is_told() {
    let bench = Bench::new();
    for (arguments, words) in [
        (json!({ "what": "fail" }), "a planned failure"),
        (json!({ "what": "panic" }), "the task panicked"),
        (json!({ "what": "large", "bytes": 2 * MIB }), "more than the limit of 1.6 MiB"),
        (json!({ "what": "large", "bytes": 200 * MIB }), "it wanted more memory than the 56 MiB that it had"),
    ] {
        let (done, answers) = bench.run(&bench.job(), arguments, PIECES);
        let told = done.unwrap_err().to_string();
        assert!(told.contains(words) && answers.batches.is_empty(), "{told}");
    }
    let (done, answers) = bench.run(&bench.job(), json!({ "what": "large", "bytes": MIB / 2 }), PIECES);
    assert_eq!(answers.batches[0].column(0).as_string::<i32>().value(0).len() as u64, MIB / 2);
    done.unwrap();
    let job = bench.store.job(Budget::new(59 * MIB, 2), Cancel::default()).unwrap();
    let told = bench.run(&job, json!({ "what": "numbers" }), PIECES).0.unwrap_err().to_string();
    assert!(told.contains("60 MiB"), "{told}");
}

/// When the task fails, a second thread of the child process waits for a shard, and a thread of the node waits for
/// a shard to send.
#[test]
fn a_failure_ends_the_wait_for_a_piece() {
    let bench = Bench::new();
    let job = bench.job();
    let (leave, left) = mpsc::channel();
    let (of_job, mut first) = (job.clone(), bench.pieces.first().cloned());
    let next = std::iter::from_fn(move || match first.take() {
        Some(piece) => open_pieces(&of_job, vec![piece]).map(|mut opened| opened.pop()).transpose(),
        None => {
            // The iterator waits until the task takes no more shards, or fails after a time limit.
            let why =
                left.recv_timeout(Duration::from_secs(120)).map_or("nobody left it", |()| "it was left");
            Some(Err(why.into()))
        }
    });
    let sources = Sources::pulled(next, PIECE_BYTES, 2).left_by(move || leave.send(()).unwrap_or_default());
    let mut answers = Answers::default();
    let began = Instant::now();
    let task = Task { job: job.clone(), arguments: json!({ "what": "leave" }), sources };
    let done = bench.work().work(task, &mut answers);
    assert_eq!(done.unwrap_err().to_string(), "a planned failure");
    assert_eq!(answers.batches.len(), 1, "rows come while a piece is waited for");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn rows_that_are_too_many_to_be_sent_at_once_are_sent_a_few_at_a_time() {
    let bench = Bench::new();
    for views in [false, true] {
        let (done, answers) = bench.run(&bench.job(), json!({ "what": "rows", "views": views }), PIECES);
        done.unwrap();
        let texts = answers.batches.iter().map(|batch| cast(batch.column(0), &DataType::Utf8).unwrap());
        let lengths = texts.flat_map(|column| {
            column.as_string::<i32>().iter().map(|text| text.unwrap().len()).collect::<Vec<_>>()
        });
        let expected: Vec<usize> = (1..=8).map(|row| row * 100_000).collect();
        assert_eq!(lengths.collect::<Vec<_>>(), expected, "{views}");
        assert!(answers.batches.len() > 2);
    }
    let told = bench.run(&bench.job(), json!({ "what": "long" }), PIECES).0.unwrap_err().to_string();
    assert!(told.len() <= WORDS_BYTES_MAX + 4 && told.ends_with("é ..."), "{}", told.len());
}

#[test]
fn batches_of_no_bytes_come_too() {
    let bench = Bench::new();
    for (kind, rows) in [(0, 5), (1, 3), (2, 0)] {
        let (done, answers) = bench.run(&bench.job(), json!({ "what": "empty", "bytes": kind }), PIECES);
        done.unwrap();
        let found: Vec<usize> = answers.batches.iter().map(|batch| batch.num_rows()).collect();
        assert_eq!(found, [rows], "{kind}");
    }
}

#[test]
fn memory_is_shared_out_within_what_there_is() {
    assert_eq!([60, 128, 256, 1024, 4096].map(|mib| threads_within(mib * MIB)), [2, 2, 18, 114, 498]);
}

#[test]
fn headers_come_back_as_they_were() {
    let counts = ProcessCounts { bytes_read: 1, bytes_written: 1 << 40, repairs: 3, cpu_us: u64::MAX };
    let header = MessageHeader { kind: ROWS, length: 1 << 33, counts };
    assert_eq!(MessageHeader::parse(&header.to_bytes()), header);
}

#[test]
fn one_that_is_stopped_ends_at_once() {
    let bench = Bench::new();
    let job = bench.job();
    let (tell, told) = mpsc::channel();
    let cancel = job.cancel().clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        cancel.cancel();
        tell.send(Instant::now()).unwrap();
    });
    let (done, _) = bench.run(&job, json!({ "what": "sleep" }), PIECES);
    assert!(done.unwrap_err().to_string().contains("stop"));
    // Without the stop, the task would take a thousand seconds.
    assert!(told.recv().unwrap().elapsed() < Duration::from_secs(120));
}
