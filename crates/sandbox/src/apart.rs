//! Work of our own program in a process of its own, so that it can be ended: for work on what others ask, of which nobody can
//! foretell how much memory it takes, or when it ends.
//!
//! ```text
//!   our process                              our program once more
//!   Apart::start ── spawn ─────────────────► apart_main_if_asked: limits itself, then works
//!     socket ◄────── whatever they say ────►  socket
//!     memory ◄────── what is long ──────────  memory in common
//!     drop ───────── SIGKILL ──────────────►  a thread that looks how much memory there is, and ends all
//! ```
//!
//! It is not contained as commands and modules are: it is code of ours, with our rights, files and environment. What it gets is a
//! limit of memory: what it has resident or swapped out and nobody else could use (code and the page cache are not counted), looked at
//! every few milliseconds, the sooner the nearer it is, and behind that a limit of what it may write to at all, which an allocation of
//! gigabytes at once meets first. Between two looks each of its threads may touch 8 MiB at worst. Where the system itself has no memory
//! left, it is the first to go. It ends with the thread that started it.

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
    ends::{self, Last, UNKNOWN_SIZE, end_too_large},
    shared::Shared,
    sys,
};

/// The name that a program is started by to work apart, and then looks for.
const NAME: &str = "inshore-apart";
/// What it is told with the memory in common beside it, what it answers, and how long that may take.
const BEGIN: u8 = b'B';
const READY: u8 = b'R';
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long it does not look at its memory, at most and at least, and how fast each of its threads could fill it meanwhile: 8 GiB a
/// second is what the system hands out in huge pages. A look takes 2 us, and two changes of what a core does.
const LOOK_MAX: Duration = Duration::from_millis(20);
const LOOK_MIN: Duration = Duration::from_millis(1);
const BYTES_PER_MS: u64 = 8 << 20;
/// What is read of what the system says of a process.
const STATUS_BYTES: usize = 32 << 10;
/// Time for it to end once it has closed its socket.
const GRACE: Duration = Duration::from_secs(2);
/// Characters that are told of what it said first, and last.
const WORDS: usize = 300;

/// What a process apart may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApartLimits {
    /// Memory that it has resident, in bytes, code not counted.
    pub memory_bytes: u64,
    /// Bytes of stacks of its threads, which are room and no memory.
    pub stack_bytes: u64,
    /// Threads that work there.
    pub threads: usize,
}

/// A process apart, killed on drop.
#[derive(Debug)]
pub struct Apart {
    socket: UnixStream,
    shared: Shared,
    child: Option<Child>,
    words: File,
    limits: ApartLimits,
}

/// The memory that a process apart has in common with its parent: for what is long, which a socket would copy twice and wake who reads
/// for every 32 KiB of.
#[derive(Debug)]
pub struct ApartMemory(Shared);

impl ApartMemory {
    /// Puts these bytes at its start, which grows as far as it has to. The parent is not to [take](Apart::take) any meanwhile.
    ///
    /// # Errors
    /// The system's, where there is no memory left.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.put(0, bytes)
    }
}

/// What came of waiting for an end.
enum End {
    /// It ended by itself.
    Ended(ExitStatus),
    /// It did not, and was killed.
    Killed,
}

impl Apart {
    /// Starts one and waits until it is ready, some milliseconds. `helper` is a program that begins with [`apart_main_if_asked`].
    ///
    /// # Errors
    /// [`Error::Path`] where the program cannot be started; [`Error::Helper`] where it is not ready within 10 s;
    /// [`Error::System`].
    pub fn start(helper: &Helper, limits: ApartLimits) -> Result<Apart> {
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let shared = Shared::new().map_err(Error::system("make a file in memory"))?;
        // What does not fit is lost, and does not hold it up.
        let (words, their_words) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| Error::system("make a pipe")(error.into()))?;
        let child = helper
            .command(NAME)
            .args(
                [limits.memory_bytes, limits.stack_bytes, limits.threads as u64]
                    .map(|number| number.to_string()),
            )
            // To find the names in it takes more memory than the work.
            .env_remove("RUST_BACKTRACE")
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(their_words)
            .spawn()
            .map_err(|source| Error::Path {
                what: "start it once more, to work apart".to_string(),
                path: helper.program.clone(),
                source,
            })?;
        let mut apart = Apart { socket, shared, child: Some(child), words: File::from(words), limits };
        // Where it has ended, it does not say that it is ready.
        let _ = send_beside(&apart.socket, &[BEGIN], &[apart.shared.file().as_fd()]);
        apart.socket.set_read_timeout(Some(READY_WITHIN)).map_err(Error::system("set a time limit"))?;
        let mut said = [0];
        match (&apart.socket).read_exact(&mut said) {
            Ok(()) if said == [READY] => {}
            _ => {
                let end = apart.end(Duration::from_millis(100));
                let why = apart.why(end).map(|end| end.to_string());
                let reason = why.unwrap_or_else(|| "it did not say that it works apart".to_string());
                return Err(Error::Helper { program: helper.program.clone(), reason });
            }
        }
        apart.socket.set_read_timeout(None).map_err(Error::system("set a time limit"))?;
        Ok(apart)
    }

    /// The way to it.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Adds the first `length` bytes of what it [put](ApartMemory::put) there. It is not to put anything meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn take(&mut self, length: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.shared.take(length, bytes)
    }

    /// Waits for its end, which is near once it has closed its socket or said its last word, and says why it ended where it did not
    /// end well. After 2 s it is killed.
    pub fn ended(mut self) -> Option<ApartEnd> {
        let end = self.end(GRACE);
        self.why(end)
    }

    fn why(&mut self, end: End) -> Option<ApartEnd> {
        let End::Ended(status) = end else {
            let text = "its process did not end by itself".to_string();
            return Some(ApartEnd { end: WorkerEnd::Killed(libc::SIGKILL), text });
        };
        let mut words = Vec::new();
        // As far as there are any: nobody else writes.
        let _ = self.words.read_to_end(&mut words);
        why(status, String::from_utf8_lossy(&words).trim(), self.limits.memory_bytes)
    }

    /// Gives it so much time, then kills it.
    fn end(&mut self, patience: Duration) -> End {
        let Some(mut child) = self.child.take() else { return End::Killed };
        let until = Instant::now() + patience;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return End::Ended(status),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        let _ = child.kill();
        let killed = Instant::now();
        while killed.elapsed() < GRACE {
            match child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                _ => return End::Killed,
            }
        }
        // A drive holds it up, which is no reason to hold us up.
        let waiting = thread::Builder::new().name("apart".to_string()).spawn(move || child.wait());
        drop(waiting);
        End::Killed
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// How a process apart ended that did not end well; as text, in a sentence whose subject is the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApartEnd {
    end: WorkerEnd,
    text: String,
}

impl ApartEnd {
    /// The kind of its end.
    pub fn end(&self) -> &WorkerEnd {
        &self.end
    }
}

impl fmt::Display for ApartEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl error::Error for ApartEnd {}

/// Why a process did not end well; nothing where it did.
fn why(status: ExitStatus, words: &str, memory_bytes: u64) -> Option<ApartEnd> {
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
        WorkerEnd::UnknownSize => "the system did not tell how much memory it has".to_string(),
        WorkerEnd::Killed(libc::SIGKILL) => {
            "it was killed, as the system does where its memory is short".to_string()
        }
        _ if words.is_empty() => format!("its process ended early ({status})"),
        _ => {
            let all: Vec<char> = words.chars().collect();
            let told: String = match all.len() > 2 * WORDS {
                true => [&all[..WORDS], &[' ', '.', '.', '.', ' '], &all[all.len() - WORDS..]]
                    .concat()
                    .iter()
                    .collect(),
                false => words.to_string(),
            };
            format!("its process ended early ({status}): {told}")
        }
    };
    Some(ApartEnd { end, text })
}

/// Works apart if this program was started to, and never returns then. To be called before anything else in `main` that takes
/// time or memory. `doing` tells what is done at the moment, for the message of a process that takes too much: it is called at its end, from
/// any thread and maybe with no memory left to allocate. Nothing is told where that is empty.
pub fn apart_main_if_asked(doing: fn() -> String, work: impl FnOnce(UnixStream, ApartMemory)) {
    let args: Vec<_> = env::args_os().collect();
    if args.first().is_some_and(|name| name == NAME) {
        main(&args, false, doing, work);
    }
}

/// The same for a program that finds out by other means that it was started to work apart: with the arguments that it got. Where
/// [`LimitedAllocator`](crate::LimitedAllocator) is its allocator, the limit is exact for large allocations.
pub fn apart_main(args: &[OsString], doing: fn() -> String, work: impl FnOnce(UnixStream, ApartMemory)) -> ! {
    main(args, true, doing, work)
}

fn main(
    args: &[OsString],
    is_exact: bool,
    doing: fn() -> String,
    work: impl FnOnce(UnixStream, ApartMemory),
) -> ! {
    let number = |text: &OsString| text.to_str()?.parse().ok();
    let numbers = args.last_chunk().and_then(|[memory, stack, threads]| {
        Some(ApartLimits {
            memory_bytes: number(memory)?,
            stack_bytes: number(stack)?,
            threads: usize::try_from(number(threads)?).ok()?,
        })
    });
    let numbers = numbers.ok_or_else(|| io::ErrorKind::InvalidInput.into());
    match numbers.and_then(|limits| begin(limits, is_exact, doing)) {
        Ok((socket, memory)) => work(socket, memory),
        Err(error) => {
            eprintln!("cannot begin to work apart: {error}");
            sys::exit(1);
        }
    }
    sys::exit(0);
}

/// Gives up what is not needed, and gives the ways to our parent.
fn begin(
    limits: ApartLimits,
    is_exact: bool,
    doing: fn() -> String,
) -> io::Result<(UnixStream, ApartMemory)> {
    sys::die_with_parent()?;
    // Whoever asks our parent to stop does not mean us: the parent waits for us, or ends us.
    sys::new_session()?;
    sys::ignore(libc::SIGTERM);
    sys::ignore(libc::SIGINT);
    // Refused in some containers, where the system then chooses as it likes.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    sys::limit(libc::RLIMIT_CORE, 0, 0)?;
    let most = limits.memory_bytes.saturating_add(limits.stack_bytes);
    sys::limit(libc::RLIMIT_DATA, most, most)?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let (_, mut beside) = receive_beside(&socket, &mut [0])?;
    let shared = beside.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
    // Who started us may have ended before we asked to end with him.
    let mut ends = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if ends[0].revents().contains(PollFlags::HUP) {
        sys::exit(1);
    }
    ends::begin(Last { say: File::from(io::stderr().as_fd().try_clone_to_owned()?), doing });
    if is_exact {
        allocator::limit(limits.memory_bytes, || match end_too_large() {});
    }
    let size = Size::open()?;
    thread::Builder::new()
        .name("memory".to_string())
        .stack_size(128 << 10)
        .spawn(move || watch(&size, limits, end_too_large))?;
    socket.write_all(&[READY])?;
    Ok((socket, ApartMemory(Shared::of(File::from(shared)))))
}

/// Looks how much memory this process has, for ever, and calls `end` when that is more than it was given.
pub(crate) fn watch(size: &Size, limits: ApartLimits, end: impl Fn() -> Infallible) -> Infallible {
    loop {
        let Some(mut bytes) = size.bytes() else { sys::exit(UNKNOWN_SIZE) };
        if bytes > limits.memory_bytes {
            // What was freed and is kept for the next allocation is not wanted by anybody.
            sys::give_back_freed();
            bytes = size.bytes().unwrap_or(u64::MAX);
        }
        let Some(left) = limits.memory_bytes.checked_sub(bytes) else { match end() {} };
        let filled_in = Duration::from_millis(left / BYTES_PER_MS / limits.threads.max(1) as u64);
        thread::sleep(filled_in.clamp(LOOK_MIN, LOOK_MAX));
    }
}

/// Tells how large this process is: nothing is opened or allocated to tell it.
pub(crate) struct Size(File);

impl Size {
    pub fn open() -> io::Result<Size> {
        let size = Size(File::open("/proc/self/status")?);
        match size.bytes() {
            Some(_) => Ok(size),
            None => Err(io::Error::other("the system does not tell how much memory a process has")),
        }
    }

    /// What is resident or swapped out and no file's.
    fn bytes(&self) -> Option<u64> {
        let mut text = [0; STATUS_BYTES];
        let length = self.0.read_at(&mut text, 0).ok()?;
        // Whole lines: a user of very many groups has a long one.
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
        // Without swap in the kernel there is no line of it.
        (found >= 2).then_some(kib << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::TOO_LARGE;

    #[test]
    fn an_end_is_told_as_what_it_was() {
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
    fn memory_that_is_touched_counts_and_room_does_not() {
        let size = Size::open().unwrap();
        let before = size.bytes().unwrap();
        let mut room: Vec<u8> = Vec::with_capacity(64 << 20);
        assert!(size.bytes().unwrap() < before + (32 << 20));
        room.resize(64 << 20, 1);
        assert!(size.bytes().unwrap() >= before + (48 << 20), "{}", std::hint::black_box(&room).len());
    }
}
