//! Tests that the blocks of every kind of source give its bytes in order, for any number of workers.

use std::{
    fs,
    io::Read,
    os::unix::fs::FileExt,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use arrow_array::RecordBatch;
use inshore_kernel::{
    Block, Border, Error, Event, Failure, FileBlocks, Kernel, Next, OpenedSource, Portable, Reply, Source,
    Sources, TaskSource, answer_parts, run, smallest_memory_bytes,
};
use inshore_store::{Budget, Cancel, Context, FileWriter, PlainFile, Store};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A compute kernel that returns the bytes, the offset and the first line number of each block.
struct Echo {
    border: Border,
    how: AccessMode,
    /// A function that the compute kernel calls before it processes the second and every later block.
    meanwhile: Option<Box<dyn Fn() + Sync>>,
}

/// The way in which the compute kernel gets blocks of files in the page cache.
#[derive(Clone, Copy, PartialEq)]
enum AccessMode {
    Copied,
    Windows,
    /// The compute kernel reads blocks itself.
    Itself,
}

#[derive(Debug)]
struct Part {
    offset: u64,
    line: u64,
    bytes: Vec<u8>,
}

impl Kernel for Echo {
    type Error = Error;
    type Worker = u64;
    type Part = Part;

    fn border(&self) -> Border {
        self.border
    }

    fn worker(&self, _: &Context) -> Result<u64, Error> {
        Ok(0)
    }

    fn takes_windows(&self) -> bool {
        self.how == AccessMode::Windows
    }

    fn reads_files(&self) -> bool {
        self.how == AccessMode::Itself
    }

    fn file_blocks(
        &self,
        worker: &mut u64,
        blocks: &FileBlocks<'_>,
        done: &mut Vec<Option<(u64, Part)>>,
    ) -> Result<(), Error> {
        let file = fs::File::from(blocks.file.try_clone_to_owned().unwrap());
        let mut text = vec![0; blocks.file_bytes as usize];
        for number in 0..blocks.count {
            let start = (blocks.start + number * blocks.stride) as usize;
            if let Some(meanwhile) = self.meanwhile.as_ref().filter(|_| start > 0) {
                meanwhile();
            }
            // The compute kernel stops before some blocks. It also stops if the file became shorter, so that it cannot
            // read a block.
            let is_left = start as u64 / blocks.stride % 7 == 3;
            if is_left || file.read_exact_at(&mut text, 0).is_err() {
                break;
            }
            let behind = |at: usize| match memchr::memchr(b'\n', &text[at..]) {
                _ if at == 0 => 0,
                Some(end) => at + end + 1,
                None => text.len(),
            };
            let end = (start + blocks.stride as usize).min(text.len());
            let lines = behind(start)..behind(end);
            *worker += lines.len() as u64;
            done.push((!lines.is_empty()).then(|| {
                let offset = blocks.base + lines.start as u64;
                (lines.end as u64, Part { offset, line: 0, bytes: text[lines].to_vec() })
            }));
        }
        Ok(())
    }

    fn block(&self, worker: &mut u64, block: &Block<'_>) -> Result<Part, Error> {
        if let Some(meanwhile) = self.meanwhile.as_ref().filter(|_| block.offset > 0) {
            meanwhile();
        }
        *worker += block.bytes.len() as u64;
        let line = if self.border == (Border::Line { numbered: true }) { block.first_line() } else { 0 };
        Ok(Part { offset: block.offset, line, bytes: block.bytes.to_vec() })
    }
}

/// Returns the reassembled bytes of each source, and the error that ended the source.
fn echo(job: &Context, border: Border, sources: Vec<Source>) -> Vec<(Vec<u8>, Option<String>)> {
    echo_by(job, Echo { border, how: AccessMode::Copied, meanwhile: None }, sources)
}

fn echo_by(job: &Context, kernel: Echo, sources: Vec<Source>) -> Vec<(Vec<u8>, Option<String>)> {
    let border = kernel.border;
    let mut all: Vec<(Vec<u8>, Option<String>)> = Vec::new();
    let mut open = false;
    let workers = run(job, &kernel, sources.into_iter(), |event: Event<'_, Echo>| {
        if !open {
            assert_eq!(event.source, all.len(), "sources come in order");
            all.push(Default::default());
            open = true;
        }
        let (bytes, failed) = all.last_mut().unwrap();
        match event.part {
            Some(Ok(part)) => {
                assert!(failed.is_none());
                assert_eq!(part.offset, bytes.len() as u64, "{}", event.name);
                if part.line > 0 {
                    let ends = bytes.iter().filter(|&&byte| byte == b'\n').count();
                    assert_eq!(part.line, ends as u64 + 1);
                }
                if matches!(border, Border::Line { .. }) {
                    assert!(bytes.is_empty() || bytes.ends_with(b"\n"), "blocks end with lines");
                }
                bytes.extend(part.bytes);
            }
            Some(Err(error)) => *failed = Some(error.to_string()),
            None => open = false,
        }
        Ok(Next::Go)
    });
    let seen: u64 = workers.unwrap().into_iter().sum();
    if all.iter().all(|(_, failed)| failed.is_none()) {
        assert_eq!(seen, all.iter().map(|(bytes, _)| bytes.len() as u64).sum::<u64>());
    }
    all
}

fn job(memory_bytes: u64, threads: usize) -> Context {
    Context::new(Budget::new(memory_bytes, threads), Cancel::default())
}

fn stream(bytes: Vec<u8>) -> Source {
    Source::new("stream", move |_| Ok(OpenedSource::Stream(Box::new(std::io::Cursor::new(bytes)))))
}

/// Returns a source that yields a few bytes at a time, as a pipe does.
fn trickle(bytes: Vec<u8>) -> Source {
    struct Trickle(std::io::Cursor<Vec<u8>>, usize);
    impl Read for Trickle {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.1 = self.1 * 5 % 10_007 + 1;
            let len = out.len().min(self.1);
            self.0.read(&mut out[..len])
        }
    }
    Source::new("trickle", move |_| {
        Ok(OpenedSource::Stream(Box::new(Trickle(std::io::Cursor::new(bytes), 7))))
    })
}

/// Returns `len` bytes of lines, each with up to `longest` bytes.
fn text(len: usize, longest: u64, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let line = (seed >> 33) % longest.max(1);
        bytes.extend((0..line).map(|i| b'a' + ((seed >> 20) + i) as u8 % 26));
        bytes.push(b'\n');
    }
    bytes.truncate(len);
    bytes
}

fn write_cold(path: &Path, bytes: &[u8]) {
    use std::os::fd::AsFd;
    fs::write(path, bytes).unwrap();
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn files_in_the_page_cache_may_be_looked_at_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("warm");
    for (len, longest) in [(32 << 20, 40), (40_000_000, 200), ((48 << 20) + 1, 9_000), (35_000_000, 900_000)]
    {
        let bytes = text(len, longest, len as u64);
        fs::write(&path, &bytes).unwrap();
        for (threads, numbered) in [(1, true), (2, false), (3, true)] {
            let border = Border::Line { numbered };
            let kernel = Echo { border, how: AccessMode::Windows, meanwhile: None };
            let found = echo_by(&job(64 << 20, threads), kernel, vec![Source::file(&path)]);
            assert!(found == [(bytes.clone(), None)], "{len} bytes, {threads} threads");
        }
    }
    // The file becomes shorter during the run. The removed bytes must cause an error. They must not appear as zeros and
    // must not cause a crash.
    let bytes = text(40 << 20, 100, 5);
    for left in [0, 5 << 20, (21 << 20) + 77, (40 << 20) - 5] {
        fs::write(&path, &bytes).unwrap();
        let short = path.clone();
        let cut = move || fs::File::options().write(true).open(&short).unwrap().set_len(left).unwrap();
        let border = Border::Line { numbered: false };
        let kernel = Echo { border, how: AccessMode::Windows, meanwhile: Some(Box::new(cut)) };
        let sources = vec![Source::file(&path), stream(b"next\n".to_vec())];
        let found = echo_by(&job(64 << 20, 2), kernel, sources);
        let (there, told) = &found[0];
        assert!(told.as_ref().is_some_and(|told| told.contains("became shorter")), "{left}: {told:?}");
        assert!(
            bytes.starts_with(there) && there.len() as u64 <= left.max(2 << 20),
            "{left}: {}",
            there.len()
        );
        assert_eq!(found[1], (b"next\n".to_vec(), None));
    }
}

#[test]
fn a_kernel_may_read_files_in_the_page_cache_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("warm");
    let border = Border::Line { numbered: false };
    let kernel = |meanwhile| Echo { border, how: AccessMode::Itself, meanwhile };
    for (len, longest) in
        [(1, 1), (256 << 10, 40), (3_000_000, 70), (5_000_001, 90_000), (4_000_000, 900_000)]
    {
        let bytes = text(len, longest, len as u64);
        fs::write(&path, &bytes).unwrap();
        for threads in 1..4 {
            let sources = vec![Source::file(&path), stream(b"some\nmore".to_vec()), Source::file(&path)];
            let found = echo_by(&job(64 << 20, threads), kernel(None), sources);
            let [first, between, last] = &found[..] else { panic!("{} sources", found.len()) };
            assert!(first == last && first.0 == bytes && first.1.is_none(), "{len} bytes, {threads} threads");
            assert_eq!(*between, (b"some\nmore".to_vec(), None));
        }
    }
    // The file becomes shorter during the run.
    let bytes = text(3 << 20, 100, 5);
    for left in [0, 1 << 20, (2 << 20) + 77, (3 << 20) - 5] {
        fs::write(&path, &bytes).unwrap();
        let short = path.clone();
        let cut = move || fs::File::options().write(true).open(&short).unwrap().set_len(left).unwrap();
        let sources = vec![Source::file(&path), stream(b"next\n".to_vec())];
        let found = echo_by(&job(64 << 20, 2), kernel(Some(Box::new(cut))), sources);
        let (there, told) = &found[0];
        assert!(told.as_ref().is_some_and(|told| told.contains("became shorter")), "{left}: {told:?}");
        assert!(told.as_ref().is_some_and(|told| told.contains("warm")), "{left}: {told:?}");
        assert!(bytes.starts_with(there), "{left}");
        assert_eq!(found[1], (b"next\n".to_vec(), None));
    }
}

#[test]
fn every_kind_of_source_gives_its_bytes_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("store")).unwrap();
    for (number, (len, longest)) in [
        (0, 1),
        (1, 1),
        (1000, 10),
        (256 << 10, 40),
        ((256 << 10) + 1, 3),
        (900_000, 60),
        (5_000_000, 200),
        (5_000_000, 9_000),
        (7_000_000, 900_000),
        (3_000_000, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = text(len, longest, number as u64);
        let (warm, cold) = (folder.path().join("warm"), folder.path().join("cold"));
        fs::write(&warm, &bytes).unwrap();
        write_cold(&cold, &bytes);
        let name = format!("d{number}");
        let writing = store.job(Budget::new(64 << 20, 1), Cancel::default()).unwrap();
        let mut dataset = store.create_dataset(&writing, &name, "bytes").unwrap();
        let mut writer: FileWriter = dataset.file("bytes", 16 << 10, 1 << 20).unwrap();
        writer.write(&bytes).unwrap();
        dataset.add(writer).unwrap();
        dataset.commit(b"").unwrap();
        for threads in [1, 2, 5] {
            for border in [Border::Byte, Border::Line { numbered: false }, Border::Line { numbered: true }] {
                let budget = Budget::new((32 << 20) * threads as u64, threads);
                let job = store.job(budget, Cancel::default()).unwrap();
                let stored = store.dataset(&name).unwrap().file("bytes").unwrap();
                let sources = vec![
                    Source::file(&warm),
                    Source::dataset(&job, stored),
                    Source::file(&cold),
                    stream(bytes.clone()),
                    trickle(bytes.clone()),
                ];
                for (kind, (found, failed)) in echo(&job, border, sources).into_iter().enumerate() {
                    assert_eq!(failed, None);
                    assert!(found == bytes, "kind {kind} of {len} bytes, {threads} threads, {border:?}");
                }
                assert_eq!(job.budget().reserved_bytes(), 0);
            }
        }
    }
}

#[test]
fn many_small_sources_come_in_their_order_and_a_bad_one_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..300).map(|number| folder.path().join(format!("{number}"))).collect();
    for (number, path) in paths.iter().enumerate() {
        if number % 50 != 7 {
            fs::write(path, text(number * 97, 50, number as u64)).unwrap();
        }
    }
    for threads in [1, 2, 8] {
        let found = echo(
            &job(256 << 20, threads),
            Border::Line { numbered: true },
            paths.iter().map(Source::file).collect(),
        );
        assert_eq!(found.len(), paths.len());
        for (number, (bytes, failed)) in found.iter().enumerate() {
            match number % 50 == 7 {
                true => assert!(
                    failed.as_ref().unwrap().contains(&format!("{}: cannot open", paths[number].display()))
                ),
                false => assert!(failed.is_none() && *bytes == text(number * 97, 50, number as u64)),
            }
        }
    }
}

#[test]
fn a_line_that_does_not_fit_is_refused_by_name_and_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    let mut bytes = text(500_000, 50, 3);
    *bytes.last_mut().unwrap() = b'\n';
    bytes.extend(vec![b'x'; 6 << 20]);
    bytes.extend(b"\nend\n");
    fs::write(&path, &bytes).unwrap();
    let cold = folder.path().join("cold");
    write_cold(&cold, &bytes);
    let sources = || vec![Source::file(&path), stream(bytes.clone()), Source::file(&cold)];
    let line = Border::Line { numbered: true };
    for (found, failed) in echo(&job(8 << 20, 2), line, sources()) {
        assert!(failed.unwrap().contains(": the line at byte 500000 exceeds the "));
        assert!(bytes.starts_with(&found));
    }
    assert!(echo(&job(8 << 20, 2), Border::Byte, sources()).iter().all(|(found, _)| *found == bytes));
    for (found, failed) in echo(&job(128 << 20, 2), line, sources()) {
        assert_eq!(failed, None);
        assert!(found == bytes);
    }
}

#[test]
fn a_consumer_may_leave_a_source_or_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, text(9 << 20, 60, 1)).unwrap();
    for threads in [1, 3] {
        let job = job(64 << 20, threads);
        let kernel =
            Echo { border: Border::Line { numbered: true }, how: AccessMode::Copied, meanwhile: None };
        let log = Mutex::new(Vec::new());
        let sources =
            (0..5).map(|number| if number == 2 { stream(text(9 << 20, 9, 2)) } else { Source::file(&path) });
        run(&job, &kernel, sources, |event: Event<'_, Echo>| {
            log.lock().unwrap().push((event.source, event.part.is_some()));
            Ok(match event.source {
                3 => Next::Stop,
                _ => Next::SkipSource,
            })
        })
        .unwrap();
        let expected = [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false), (3, true)];
        assert_eq!(*log.lock().unwrap(), expected);
    }
}

#[test]
fn an_error_of_the_consumer_and_a_stop_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, text(9 << 20, 60, 1)).unwrap();
    let kernel = Echo { border: Border::Byte, how: AccessMode::Copied, meanwhile: None };
    let job = job(64 << 20, 2);
    let broken = || Error::Stream("no more room".into());
    let ended = run(&job, &kernel, [Source::file(&path)].into_iter(), |_| Err(broken()));
    assert_eq!(ended.unwrap_err().to_string(), "no more room");
    let ended =
        run(&job, &kernel, std::iter::repeat_with(|| Source::file(&path)), |event: Event<'_, Echo>| {
            if event.source == 3 {
                job.cancel().cancel();
            }
            Ok(Next::Go)
        });
    assert!(ended.unwrap_err().is_cancelled());
}

#[test]
fn the_smallest_budget_works_and_a_smaller_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let bytes = text(3 << 20, 60, 1);
    write_cold(&path, &bytes);
    let least = smallest_memory_bytes(2);
    let found =
        echo(&job(least, 2), Border::Line { numbered: true }, vec![Source::file(&path), Source::file(&path)]);
    assert!(found.iter().all(|(found, failed)| *found == bytes && failed.is_none()));
    let kernel = Echo { border: Border::Byte, how: AccessMode::Copied, meanwhile: None };
    let refused = run(&job(100_000, 2), &kernel, [Source::file(&path)].into_iter(), |_| Ok(Next::Go));
    assert!(matches!(refused, Err(Error::Store(inshore_store::Error::OverBudget { .. }))));
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, text(5 << 20, 60, 1)).unwrap();
    let opened = PlainFile::open(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let source = Source::new("file", move |_| Ok(OpenedSource::File(opened)));
    let found = echo(&job(64 << 20, 2), Border::Line { numbered: true }, vec![source]);
    assert!(found[0].1.as_ref().unwrap().contains("the file became shorter"), "{:?}", found[0].1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_lines_come_back(
        len in 0usize..2_000_000, longest in 1u64..600_000, seed: u64, threads in 1usize..4, numbered: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (warm, cold) = (folder.path().join("warm"), folder.path().join("cold"));
        let bytes = text(len, longest, seed);
        fs::write(&warm, &bytes).unwrap();
        write_cold(&cold, &bytes);
        let sources = vec![Source::file(&warm), Source::file(&cold), trickle(bytes.clone())];
        for (found, failed) in echo(&job((16 << 20) * threads as u64, threads), Border::Line { numbered }, sources) {
            prop_assert_eq!(failed, None);
            prop_assert!(found == bytes);
        }
    }
}

/// A compute kernel that panics at its first block.
struct PanickingKernel;

impl Kernel for PanickingKernel {
    type Error = Error;
    type Worker = ();
    type Part = ();

    fn border(&self) -> Border {
        Border::Byte
    }

    fn worker(&self, _: &Context) -> Result<(), Error> {
        Ok(())
    }

    fn block(&self, (): &mut (), _: &Block<'_>) -> Result<(), Error> {
        panic!("as it was asked to")
    }
}

impl Portable for PanickingKernel {
    const KIND: &'static str = "panics";

    fn arguments(&self) -> Value {
        json!({})
    }

    fn of_arguments(_: &Value) -> Result<PanickingKernel, Error> {
        Ok(PanickingKernel)
    }

    fn encode((): &(), _: &mut Vec<u8>) {}

    fn decode(_: &[u8]) -> Option<()> {
        Some(())
    }
}

/// A reply sink that refuses every batch.
struct RefusingReply;

impl Reply for RefusingReply {
    fn batch(&mut self, _: RecordBatch) -> Result<(), Failure> {
        Err(inshore_store::Error::Cancelled.into())
    }
}

#[test]
fn a_thread_that_panics_ends_the_wait_of_another_for_a_source() {
    let (leave, left) = mpsc::channel::<()>();
    let first = TaskSource { number: 0, whole: 0, source: stream(vec![7; 100]), stored: None };
    let mut first = Some(first);
    let was_left = Arc::new(AtomicBool::new(false));
    let waits = was_left.clone();
    let next = std::iter::from_fn(move || {
        first.take().map(Ok).or_else(|| {
            waits.store(left.recv_timeout(Duration::from_secs(60)).is_ok(), Ordering::Relaxed);
            None
        })
    });
    let sources = Sources::pulled(next, 100, 2).left_by(move || leave.send(()).unwrap_or_default());
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        answer_parts(&job(8 << 20, 2), &PanickingKernel, sources, &mut RefusingReply)
            .map_err(|failure| failure.to_string())
    }));
    assert!(ran.is_err());
    assert!(was_left.load(Ordering::Relaxed), "it was waited for");
}
