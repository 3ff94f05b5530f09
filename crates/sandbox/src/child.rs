//! This module runs code of the current program in a worker process that can be killed. This is for requests of
//! clients whose memory and time are unpredictable.
//!
//! ```text
//!   calling process                          the same program again
//!   ChildProcess::start ── spawn ─────────────────► apart_main_if_asked: sets its limits, then runs `work`
//!     socket ◄────── requests, answers ────►  socket
//!     memory ◄────── long answers ──────────  shared memory
//!     drop ───────── SIGKILL ──────────────►  a thread that measures memory, and ends the process at the limit
//! ```
//!
//! Unlike commands and modules, a worker process is not confined. It runs code of the current program with the
//! same rights, files and environment as the calling process (the parent). Only its memory is limited. A thread in
//! the worker measures the memory of the process every few milliseconds, more often near the limit. The measured
//! size is the memory that is resident or swapped out and belongs to no file. Code and the page cache do not
//! count. Between two measurements each thread of the worker may touch 8 MiB at worst. The system limits the
//! writable memory in addition, which stops a single allocation of gigabytes. If the system runs out of memory,
//! the kernel kills the worker first. The worker is killed when the thread that started it ends.

use std::{
    convert::Infallible,
    env, error,
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream, process::ExitStatusExt},
    },
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    Error, Helper, Result, WorkerEnd, allocator,
    channel::{receive_beside, send_beside},
    shared::SharedMemory,
    sys,
    worker_end::{self, LimitReport, UNKNOWN_SIZE, end_too_large},
};

/// The name (`argv[0]`) by which a program knows that it is started as a worker.
const NAME: &str = "inshore-apart";
/// The first byte to a worker. The file of the shared memory comes with this byte.
const BEGIN: u8 = b'B';
/// The worker's reply to the first byte.
const READY: u8 = b'R';
/// The longest time that the parent waits for the reply.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// The longest interval between two measurements.
const INTERVAL_MAX: Duration = Duration::from_millis(20);
/// The shortest interval between two measurements. A measurement takes 2 us and two context switches.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// The number of bytes that a thread can fill in a millisecond. The system provides huge pages at 8 GiB/s.
const BYTES_PER_MS: u64 = 8 << 20;
/// The maximum number of bytes that are read of `/proc/self/status`.
const STATUS_BYTES: usize = 32 << 10;
/// The time that a worker gets to end once its socket is closed.
const GRACE: Duration = Duration::from_secs(2);
/// An error message quotes this number of characters from the start of the worker's standard error, and as many
/// from its end.
const WORDS: usize = 300;

/// Limits the resources of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildLimits {
    /// Limits the resident memory in bytes, code not counted.
    pub memory_bytes: u64,
    /// Adds bytes of address space for the stacks of the worker's threads. Most of this space is never touched.
    pub stack_bytes: u64,
    /// Counts the worker's threads that can fill memory at the same time.
    pub threads: usize,
}

/// Holds a worker process, which is killed on drop.
#[derive(Debug)]
pub struct ChildProcess {
    socket: UnixStream,
    shared: SharedMemory,
    child: Option<Child>,
    words: File,
    limits: ChildLimits,
}

/// Holds the memory that a worker shares with the parent, for long answers: a socket would copy them twice and wake
/// the reader for every 32 KiB.
#[derive(Debug)]
pub struct ChildMemory(SharedMemory);

impl ChildMemory {
    /// Writes bytes at the start of the shared memory. The memory grows as needed. The parent must not
    /// [take](ChildProcess::take) bytes meanwhile.
    ///
    /// # Errors
    /// Returns the system's error if no memory is left.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.put(0, bytes)
    }
}

/// Says whether a worker ended in time.
enum Exit {
    /// The worker ended by itself.
    Exited(ExitStatus),
    /// The worker did not end in time, and was killed.
    Killed,
}

impl ChildProcess {
    /// Starts a worker and waits some milliseconds until the worker is ready. `helper` is a program that begins with
    /// [`apart_main_if_asked`].
    ///
    /// # Errors
    /// - Returns [`Error::Path`] if the program cannot be started.
    /// - Returns [`Error::Helper`] if the worker is not ready within 10 s.
    /// - Returns [`Error::System`] if the operating system refuses a call.
    pub fn start(helper: &Helper, limits: ChildLimits) -> Result<ChildProcess> {
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let shared = SharedMemory::new().map_err(Error::system("make a file in memory"))?;
        // Bytes that do not fit into this pipe are lost, so that a full pipe does not block the worker.
        let (words, their_words) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| Error::system("make a pipe")(error.into()))?;
        let child = helper
            .command(NAME)
            .args(
                [limits.memory_bytes, limits.stack_bytes, limits.threads as u64]
                    .map(|number| number.to_string()),
            )
            // Looking up the symbol names for a backtrace takes more memory than the worker's usual tasks.
            .env_remove("RUST_BACKTRACE")
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(their_words)
            .spawn()
            .map_err(|source| Error::Path {
                what: "start a worker process".to_string(),
                path: helper.program.clone(),
                source,
            })?;
        let mut apart = ChildProcess { socket, shared, child: Some(child), words: File::from(words), limits };
        // If the worker has ended, the read below fails.
        let _ = send_beside(&apart.socket, &[BEGIN], &[apart.shared.file().as_fd()]);
        apart.socket.set_read_timeout(Some(READY_WITHIN)).map_err(Error::system("set a time limit"))?;
        let mut said = [0];
        match (&apart.socket).read_exact(&mut said) {
            Ok(()) if said == [READY] => {}
            _ => {
                let end = apart.end(Duration::from_millis(100));
                let why = apart.why(end).map(|end| end.to_string());
                let reason = why.unwrap_or_else(|| "it did not report that it is ready".to_string());
                return Err(Error::Helper { program: helper.program.clone(), reason });
            }
        }
        apart.socket.set_read_timeout(None).map_err(Error::system("set a time limit"))?;
        Ok(apart)
    }

    /// Returns the socket to the worker.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Appends the first `length` bytes of the shared memory, which the worker has [put](ChildMemory::put) there,
    /// to `bytes`. The worker must not put bytes meanwhile.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn take(&mut self, length: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.shared.take(length, bytes)
    }

    /// Waits until the worker has ended. Call this after the worker has closed the socket or sent its last answer.
    /// Returns the reason if the worker failed. If the worker does not end within 2 s, it is killed.
    pub fn ended(mut self) -> Option<ChildFailure> {
        let end = self.end(GRACE);
        self.why(end)
    }

    fn why(&mut self, end: Exit) -> Option<ChildFailure> {
        let Exit::Exited(status) = end else {
            let text = "its process did not end in time and was killed".to_string();
            return Some(ChildFailure { end: WorkerEnd::Killed(libc::SIGKILL), text });
        };
        let mut words = Vec::new();
        // Only the worker writes to this pipe, and the worker has ended.
        let _ = self.words.read_to_end(&mut words);
        why(status, String::from_utf8_lossy(&words).trim(), self.limits.memory_bytes)
    }

    /// Waits for the worker's end, and kills the worker after `patience`.
    fn end(&mut self, patience: Duration) -> Exit {
        let Some(mut child) = self.child.take() else { return Exit::Killed };
        let until = Instant::now() + patience;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Exit::Exited(status),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        let _ = child.kill();
        let killed = Instant::now();
        while killed.elapsed() < GRACE {
            match child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                _ => return Exit::Killed,
            }
        }
        // A slow drive delays the worker's end. A separate thread waits for the end.
        let waiting = thread::Builder::new().name("apart".to_string()).spawn(move || child.wait());
        drop(waiting);
        Exit::Killed
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Says how a worker failed. The text is a clause about the worker, such as "it was killed".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildFailure {
    end: WorkerEnd,
    text: String,
}

impl ChildFailure {
    /// Returns the kind of end.
    pub fn end(&self) -> &WorkerEnd {
        &self.end
    }
}

impl fmt::Display for ChildFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl error::Error for ChildFailure {}

/// Says why a process failed. Returns `None` if the process succeeded.
fn why(status: ExitStatus, words: &str, memory_bytes: u64) -> Option<ChildFailure> {
    let end = match (WorkerEnd::of(status, words), status.signal()) {
        (WorkerEnd::Exited(0), _) => return None,
        (_, Some(libc::SIGABRT)) if words.contains("memory allocation of") => {
            WorkerEnd::TooLarge(String::new())
        }
        (end, _) => end,
    };
    let text = match &end {
        WorkerEnd::TooLarge(doing) => {
            let place = if doing.is_empty() { String::new() } else { format!("at '{doing}' ") };
            format!("{place}it wanted more memory than the {} MiB that it had", memory_bytes >> 20)
        }
        WorkerEnd::UnknownSize => "the system did not tell how much memory it used".to_string(),
        WorkerEnd::Killed(libc::SIGKILL) => {
            "it was killed, maybe because the system ran out of memory".to_string()
        }
        _ if words.is_empty() => format!("the child process ended early ({status})"),
        _ => {
            let all: Vec<char> = words.chars().collect();
            let told: String = match all.len() > 2 * WORDS {
                true => [&all[..WORDS], &[' ', '.', '.', '.', ' '], &all[all.len() - WORDS..]]
                    .concat()
                    .iter()
                    .collect(),
                false => words.to_string(),
            };
            format!("the child process ended early ({status}): {told}")
        }
    };
    Some(ChildFailure { end, text })
}

/// Becomes a worker and never returns, if this program was started as a worker. Call this in `main` before
/// anything that takes time or memory. `doing` returns the name of the current operation, for the error message of
/// a worker that exceeds the memory limit. `doing` is called at that moment, from any thread, possibly with no
/// memory left to allocate. An empty name is omitted from the message.
pub fn apart_main_if_asked(doing: fn() -> String, work: impl FnOnce(UnixStream, ChildMemory)) {
    let args: Vec<_> = env::args_os().collect();
    if args.first().is_some_and(|name| name == NAME) {
        main(&args, false, doing, work);
    }
}

/// Runs as a worker and never returns. The program must have been started as a worker, with the command-line
/// arguments `args`. If the allocator is a [`LimitedAllocator`](crate::LimitedAllocator), the limit is exact for
/// large allocations.
pub fn apart_main(args: &[OsString], doing: fn() -> String, work: impl FnOnce(UnixStream, ChildMemory)) -> ! {
    main(args, true, doing, work)
}

fn main(
    args: &[OsString],
    is_exact: bool,
    doing: fn() -> String,
    work: impl FnOnce(UnixStream, ChildMemory),
) -> ! {
    let number = |text: &OsString| text.to_str()?.parse().ok();
    let numbers = args.last_chunk().and_then(|[memory, stack, threads]| {
        Some(ChildLimits {
            memory_bytes: number(memory)?,
            stack_bytes: number(stack)?,
            threads: usize::try_from(number(threads)?).ok()?,
        })
    });
    let numbers = numbers.ok_or_else(|| io::ErrorKind::InvalidInput.into());
    match numbers.and_then(|limits| begin(limits, is_exact, doing)) {
        Ok((socket, memory)) => work(socket, memory),
        Err(error) => {
            eprintln!("cannot start a worker process: {error}");
            sys::exit(1);
        }
    }
    sys::exit(0);
}

/// Sets the limits, and returns the socket and the shared memory.
fn begin(
    limits: ChildLimits,
    is_exact: bool,
    doing: fn() -> String,
) -> io::Result<(UnixStream, ChildMemory)> {
    sys::die_with_parent()?;
    // A signal to the parent's process group must not reach the worker: the parent waits for the worker, or kills it.
    sys::new_session()?;
    sys::ignore(libc::SIGTERM);
    sys::ignore(libc::SIGINT);
    // Some containers refuse this setting. If memory runs out, the kernel then chooses the process to kill by its
    // own rules.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    sys::limit(libc::RLIMIT_CORE, 0, 0)?;
    let most = limits.memory_bytes.saturating_add(limits.stack_bytes);
    sys::limit(libc::RLIMIT_DATA, most, most)?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let (_, mut beside) = receive_beside(&socket, &mut [0])?;
    let shared = beside.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
    // The parent may have ended before the call of `die_with_parent`.
    let mut ends = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if ends[0].revents().contains(PollFlags::HUP) {
        sys::exit(1);
    }
    worker_end::begin(LimitReport { say: File::from(io::stderr().as_fd().try_clone_to_owned()?), doing });
    if is_exact {
        allocator::limit(limits.memory_bytes, || match end_too_large() {});
    }
    let size = ProcessSize::open()?;
    thread::Builder::new()
        .name("memory".to_string())
        .stack_size(128 << 10)
        .spawn(move || watch(&size, limits, end_too_large))?;
    socket.write_all(&[READY])?;
    Ok((socket, ChildMemory(SharedMemory::of(File::from(shared)))))
}

/// Measures the memory of this process for ever, and calls `end` when the process exceeds the limit.
pub(crate) fn watch(size: &ProcessSize, limits: ChildLimits, end: impl Fn() -> Infallible) -> Infallible {
    loop {
        let Some(mut bytes) = size.bytes() else { sys::exit(UNKNOWN_SIZE) };
        if bytes > limits.memory_bytes {
            // The allocator keeps freed memory for later allocations. This memory is returned to the system before
            // the second measurement.
            sys::give_back_freed();
            bytes = size.bytes().unwrap_or(u64::MAX);
        }
        let Some(left) = limits.memory_bytes.checked_sub(bytes) else { match end() {} };
        let filled_in = Duration::from_millis(left / BYTES_PER_MS / limits.threads.max(1) as u64);
        thread::sleep(filled_in.clamp(INTERVAL_MIN, INTERVAL_MAX));
    }
}

/// Measures the size of this process, without opening or allocating anything.
pub(crate) struct ProcessSize(File);

impl ProcessSize {
    pub fn open() -> io::Result<ProcessSize> {
        let size = ProcessSize(File::open("/proc/self/status")?);
        match size.bytes() {
            Some(_) => Ok(size),
            None => Err(io::Error::other("the system does not tell how much memory a process has")),
        }
    }

    /// Returns the bytes that are resident or swapped out and belong to no file.
    fn bytes(&self) -> Option<u64> {
        let mut text = [0; STATUS_BYTES];
        let length = self.0.read_at(&mut text, 0).ok()?;
        // An incomplete last line is ignored. The text may be incomplete, since the line of a user in very many
        // groups is long.
        let whole = text[..length].iter().rposition(|&byte| byte == b'\n')?;
        let mut kib = 0;
        let mut found = 0;
        for line in text[..whole].split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
            if let b"RssAnon" | b"RssShmem" | b"VmSwap" = &line[..colon] {
                let number = str::from_utf8(&line[colon + 1..]).ok()?.trim().trim_end_matches(" kB");
                kib += number.parse::<u64>().ok()?;
                found += 1;
            }
        }
        // A kernel without swap writes no line `VmSwap`.
        (found >= 2).then_some(kib << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_end::TOO_LARGE;

    #[test]
    fn an_exit_status_becomes_a_message() {
        let of = |raw, words| why(ExitStatus::from_raw(raw), words, 64 << 20).map(|end| end.to_string());
        assert_eq!(of(0, "said on its way"), None);
        let too_large = Some("it wanted more memory than the 64 MiB that it had".to_string());
        assert_eq!(of(TOO_LARGE << 8, ""), too_large);
        assert_eq!(
            of(TOO_LARGE << 8, "said\0Sort: k"),
            too_large.clone().map(|text| format!("at 'Sort: k' {text}"))
        );
        assert_eq!(of(libc::SIGABRT, "panicked before\nmemory allocation of 99 bytes failed"), too_large);
        for (raw, words, part) in [
            (libc::SIGKILL, "", "killed"),
            (libc::SIGABRT, "stack overflow", "stack overflow"),
            (1 << 8, "", "exit status: 1"),
        ] {
            let told = of(raw, words).unwrap();
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn touched_memory_counts_and_reserved_memory_does_not() {
        let size = ProcessSize::open().unwrap();
        let before = size.bytes().unwrap();
        let mut room: Vec<u8> = Vec::with_capacity(64 << 20);
        assert!(size.bytes().unwrap() < before + (32 << 20));
        room.resize(64 << 20, 1);
        assert!(size.bytes().unwrap() >= before + (48 << 20), "{}", std::hint::black_box(&room).len());
    }
}
