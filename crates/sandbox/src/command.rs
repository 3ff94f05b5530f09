//! A command, and running it: our side, which feeds it, reads it and watches it.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStringExt, process::ExitStatusExt},
    },
    path::PathBuf,
    process::{ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    CommandLimits, Ended, Error, Policy, Protection, Protections, Result, Sandbox,
    cgroup::Groups,
    channel::{Confinement, Order, Reply, Report, Task},
    folder::open_to_count,
    host::Running,
    memory::used_bytes,
    walk::occupied_bytes,
};

/// Bytes of output read at once, what a pipe holds.
const OUTPUT_BYTES: usize = 64 << 10;
/// Bytes kept of what a command says on standard error: its last, which says why it failed.
const ERRORS_BYTES: usize = 8 << 10;
/// How soon a wish to cancel is noticed.
const TICK: Duration = Duration::from_millis(20);
/// How often the working folder is looked at, and how many times longer than a look took, so that a folder of very many
/// files doesn't keep us looking.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_SHARE: u32 = 10;
/// How often the memory of all processes is looked at where no cgroup limits it, at most: a core fills some 100 MiB meanwhile.
const MEMORY_LOOK: Duration = Duration::from_millis(100);
/// What a helper gets beyond its deadline before it is taken for lost.
const GRACE: Duration = Duration::from_secs(5);

/// A Linux command, and all that it may touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which program: a path, as no path is searched for it. It may be outside the system's folders.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Where it works: a folder for this command alone, whose files it may read and write but not execute. Where we are
    /// root, it's given to the policy's user; where we aren't, and it keeps our own user from a folder in it, that user gets
    /// its rights back, so that all of it can be counted. What it leaves there is to be opened by [`crate::open_left`].
    /// [`crate::Folder`] makes one, and removes it with what was left.
    pub folder: PathBuf,
    /// Files and folders that it may read, besides the system's programs and libraries (`/usr`, `/bin`, `/lib*`). They must
    /// be readable for the policy's user too.
    pub readable: Vec<PathBuf>,
    /// Files and folders that it may read and write, on the same terms.
    pub writable: Vec<PathBuf>,
    /// All of its environment: nothing of ours is inherited.
    pub env: Vec<(OsString, OsString)>,
}

impl Command {
    /// A program that works in this folder, with no more files than that, and with the environment that programs expect:
    /// `PATH` of the system, `HOME` and `TMPDIR` the folder, and the plain `C` locale with UTF-8.
    pub fn new(program: impl Into<PathBuf>, folder: impl Into<PathBuf>) -> Command {
        let folder = folder.into();
        let env = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
            ("HOME", folder.clone().into_os_string()),
            ("TMPDIR", folder.clone().into_os_string()),
            ("LC_ALL", "C.UTF-8".into()),
        ];
        Command {
            program: program.into(),
            args: Vec::new(),
            folder,
            readable: Vec::new(),
            writable: Vec::new(),
            env: env.map(|(name, value): (&str, OsString)| (name.into(), value)).into(),
        }
    }

    /// With these arguments too.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Command {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// With this file or folder to read too.
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Command {
        self.readable.push(path.into());
        self
    }

    /// With this file or folder to write too.
    #[must_use]
    pub fn writable(mut self, path: impl Into<PathBuf>) -> Command {
        self.writable.push(path.into());
        self
    }
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response {
    /// Its exit status; none where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why we ended it, where we did.
    pub ended: Option<Ended>,
    /// Time from the start of the command to its end.
    pub wall: Duration,
    /// Processor time of all its processes, in their own code and in the kernel.
    pub user: Duration,
    /// See `user`.
    pub system: Duration,
    /// Most memory at a time: of all processes with the page cache that they caused where
    /// [`Protection::Memory`] was active, else the most that was seen of all processes, or of the largest one if that is more.
    pub memory_bytes_max: u64,
    /// Bytes of standard output handed over.
    pub output_bytes: u64,
    /// The last 8 KiB of standard error.
    pub errors: Vec<u8>,
    /// Which protections were active.
    pub active: Protections,
}

impl Response {
    /// Whether it came to an end by itself, and said that all went well.
    pub fn success(&self) -> bool {
        self.ended.is_none() && self.code == Some(0)
    }
}

impl Sandbox {
    /// Runs a command to its end.
    ///
    /// `input` is read by a thread of its own and becomes standard input; a command need not read it all. If a read of it
    /// blocks for ever, so does this, after the command's end. Standard output goes to `output`, up to 64 KiB at a time; an
    /// error from it ends the command. `cancel` is asked about fifty times a second. Costs about 5 ms a command.
    ///
    /// # Errors
    /// Before anything has run: [`Error::Missing`] where a protection that the policy requires can't be had, [`Error::Path`]
    /// where the program can't be started or a file can't be opened, [`Error::Helper`]. Later: [`Error::Input`] and
    /// [`Error::Output`] from the caller's ends; then the command has been ended. That the command failed or was ended at a
    /// limit isn't an error: see [`Response`].
    pub fn run(
        &self,
        command: &Command,
        limits: &CommandLimits,
        input: impl Read + Send,
        output: impl FnMut(&[u8]) -> io::Result<()>,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Response> {
        let folder = open_to_count(&command.folder)?;
        let groups = self.groups(limits);
        let order = order(command, limits, &self.policy, &groups);
        let pipe =
            || pipe_with(PipeFlags::CLOEXEC).map_err(|error| Error::system("make a pipe")(error.into()));
        let ((stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)) =
            (pipe()?, pipe()?, pipe()?);
        let helper = Running::start(
            &self.helper,
            &order,
            &[stdin_theirs.as_fd()],
            Stdio::from(stdout_theirs),
            Stdio::from(stderr_theirs),
        )?;
        drop(stdin_theirs);
        let mut watch = Watch {
            helper,
            stdout: File::from(stdout),
            stderr: File::from(stderr),
            output,
            errors: VecDeque::new(),
            output_bytes: 0,
            memory_bytes_max: 0,
            ended: None,
            failed: None,
        };
        let is_counted = groups.active().contains(Protection::Memory);
        let memory_bytes =
            (self.policy.wanted.contains(Protection::Memory) && !is_counted).then_some(limits.memory_bytes);
        let (fed, seen) = thread::scope(|scope| {
            let feeder = scope.spawn(move || feed(input, stdin));
            let seen = watch.until_end(folder.as_fd(), limits, memory_bytes, cancel);
            // Closed either way: with the helper everything is gone that could keep the feeder waiting.
            let seen = watch.close(seen, &groups);
            (feeder.join(), seen)
        });
        let response = seen?;
        fed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(Error::Input)?;
        Ok(response)
    }

    pub(crate) fn groups(&self, limits: &CommandLimits) -> Groups {
        let Policy { cgroup, wanted, .. } = &self.policy;
        Groups::make(cgroup.as_deref(), *wanted, limits.memory_bytes, limits.processes)
    }
}

/// What a helper is told.
fn order(command: &Command, limits: &CommandLimits, policy: &Policy, groups: &Groups) -> Order {
    let bytes = |text: &OsString| text.clone().into_vec();
    Order {
        task: Task::Command {
            program: command.program.clone(),
            args: command.args.iter().map(bytes).collect(),
            env: command.env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        },
        confinement: Confinement {
            folder: command.folder.clone(),
            readable: command.readable.clone(),
            writable: command.writable.clone(),
            program: Some(command.program.clone()),
            ..confinement(limits, policy, groups)
        },
        wall_us: u64::try_from(limits.wall.as_micros()).unwrap_or(u64::MAX),
    }
}

/// With no files.
pub(crate) fn confinement(limits: &CommandLimits, policy: &Policy, groups: &Groups) -> Confinement {
    Confinement {
        wanted: policy.wanted,
        required: policy.required,
        user: policy.user,
        group: policy.group,
        folder: PathBuf::from("/"),
        readable: Vec::new(),
        writable: Vec::new(),
        program: None,
        groups: groups.to_join(),
        group_protections: groups.active(),
        processes_file: groups.processes_file(),
        address_bytes: (!groups.active().contains(Protection::Memory)).then_some(limits.memory_bytes),
        data_bytes: None,
        cpu_seconds: limits.cpu_seconds,
        processes: limits.processes,
        file_bytes: limits.file_bytes,
        open_files: limits.open_files,
    }
}

/// Copies until either end has had enough. Only what the reader says is an error.
fn feed(mut input: impl Read, stdin: OwnedFd) -> io::Result<()> {
    let mut stdin = File::from(stdin);
    let mut buffer = vec![0; OUTPUT_BYTES];
    loop {
        let length = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if stdin.write_all(&buffer[..length]).is_err() {
            return Ok(());
        }
    }
}

/// What is watched while a command runs.
struct Watch<O> {
    helper: Running,
    stdout: File,
    stderr: File,
    output: O,
    errors: VecDeque<u8>,
    output_bytes: u64,
    /// The most that was seen where no cgroup counts it.
    memory_bytes_max: u64,
    /// Why it was ended, where we and not the helper did.
    ended: Option<Ended>,
    /// What the consumer said.
    failed: Option<io::Error>,
}

impl<O: FnMut(&[u8]) -> io::Result<()>> Watch<O> {
    /// Lets the helper go, and makes a response of what is known.
    fn close(self, seen: Result<Report>, groups: &Groups) -> Result<Response> {
        drop(self.helper);
        let Watch { failed, ended, output_bytes, memory_bytes_max, errors, .. } = self;
        match failed {
            Some(error) => Err(Error::Output(error)),
            None => {
                let mut report = seen?;
                report.resident_bytes_max = report.resident_bytes_max.max(memory_bytes_max);
                Ok(response(report, ended, output_bytes, errors.into(), groups))
            }
        }
    }

    /// Hands output over until the helper has reported and everything has been read. All processes have `memory_bytes` together, where
    /// that is looked at here.
    fn until_end(
        &mut self,
        folder: BorrowedFd<'_>,
        limits: &CommandLimits,
        memory_bytes: Option<u64>,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Report> {
        let mut buffer = vec![0; OUTPUT_BYTES];
        let (mut stdout_open, mut stderr_open, mut report) = (true, true, None);
        let start = Instant::now();
        let (mut look_at, mut memory_look_at) = (start + LOOK, start);
        let mut given_up = None;
        while stdout_open || stderr_open || report.is_none() {
            let [stdout, stderr, reply] = ready([
                stdout_open.then_some(self.stdout.as_fd()),
                stderr_open.then_some(self.stderr.as_fd()),
                report.is_none().then_some(self.helper.socket.as_fd()),
            ])?;
            if stdout {
                stdout_open = self.take_output(&mut buffer, limits.output_bytes)?;
            }
            if stderr {
                stderr_open = self.take_errors(&mut buffer)?;
            }
            if reply {
                match self.helper.reply()? {
                    Reply::Done(done) => report = Some(done),
                    Reply::Failed(failure) => return Err(failure.into()),
                    Reply::Ready => unreachable!("said before the order was given"),
                }
            }
            let now = Instant::now();
            if report.is_some() {
                // Nothing is left that could write: pipes are at their end, or someone outside holds them.
                let given_up = *given_up.get_or_insert(now + GRACE);
                if now > given_up {
                    break;
                }
            } else if now > start + limits.wall.saturating_add(GRACE) {
                return Err(Error::System {
                    what: "end a command at its deadline".to_string(),
                    source: io::ErrorKind::TimedOut.into(),
                });
            } else if self.ended.is_none() && cancel() {
                self.end(Ended::Cancelled);
            } else if self.ended.is_none() && now > look_at {
                match occupied_bytes(folder, limits.folder_bytes) {
                    Ok(bytes) if bytes <= limits.folder_bytes => {}
                    Ok(_) => self.end(Ended::Folder),
                    // What can't be counted may be any number.
                    Err(error) => self.end(Ended::FolderUnseen { errno: error.raw_os_error() }),
                }
                look_at = Instant::now() + LOOK.max(now.elapsed() * LOOK_SHARE);
            } else if self.ended.is_none()
                && let Some(limit) = memory_bytes.filter(|_| now > memory_look_at)
            {
                let used = used_bytes(self.helper.id(), limit);
                let used = used.map_err(Error::system("look at the memory of a command in /proc"))?;
                self.memory_bytes_max = self.memory_bytes_max.max(used);
                if used > limit {
                    self.end(Ended::Memory);
                }
                memory_look_at = Instant::now() + MEMORY_LOOK.max(now.elapsed() * LOOK_SHARE);
            }
        }
        Ok(report.expect("looped until then"))
    }

    /// Whether there may be more.
    fn take_output(&mut self, buffer: &mut [u8], limit: u64) -> Result<bool> {
        let length = self.stdout.read(buffer).map_err(Error::system("read what a command wrote"))?;
        let keep = (length as u64).min(limit - self.output_bytes) as usize;
        if self.ended.is_none() && keep > 0 {
            if let Err(error) = (self.output)(&buffer[..keep]) {
                self.failed = Some(error);
                self.end(Ended::Cancelled);
            }
            self.output_bytes += keep as u64;
        }
        if keep < length && self.ended.is_none() {
            self.end(Ended::Output);
        }
        Ok(length > 0)
    }

    /// As above.
    fn take_errors(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let length = self.stderr.read(buffer).map_err(Error::system("read what a command wrote"))?;
        self.errors.extend(&buffer[length.saturating_sub(ERRORS_BYTES)..length]);
        self.errors.drain(..self.errors.len().saturating_sub(ERRORS_BYTES));
        Ok(length > 0)
    }

    fn end(&mut self, why: Ended) {
        self.ended = Some(why);
        // If that fails, the helper is gone already, which its socket says next.
        let _ = self.helper.stop();
    }
}

/// Which of these have something to read, or are at their end; waits a tick for one.
fn ready(files: [Option<BorrowedFd<'_>>; 3]) -> Result<[bool; 3]> {
    let open: Vec<_> = files.iter().flatten().collect();
    let mut polled: Vec<_> =
        open.iter().map(|file| PollFd::from_borrowed_fd(**file, PollFlags::IN)).collect();
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    match poll(&mut polled, Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Error::system("wait for a command")(error.into())),
    }
    let mut results = polled.iter().map(|file| !file.revents().is_empty());
    Ok(files.map(|file| file.is_some() && results.next().expect("one for each that is open")))
}

fn response(
    report: Report,
    ended: Option<Ended>,
    output_bytes: u64,
    errors: Vec<u8>,
    groups: &Groups,
) -> Response {
    let status = report.status.map(ExitStatus::from_raw);
    let signal = status.and_then(|status| status.signal());
    let by_signal = match signal {
        Some(libc::SIGXCPU) => Some(Ended::Cpu),
        Some(libc::SIGXFSZ) => Some(Ended::FileSize),
        _ => None,
    };
    let by_memory = groups.killed().then_some(Ended::Memory);
    Response {
        code: status.and_then(|status| status.code()),
        signal,
        ended: ended.or(report.ended).or(by_memory).or(by_signal),
        wall: Duration::from_micros(report.wall_us),
        user: Duration::from_micros(report.user_us),
        system: Duration::from_micros(report.system_us),
        memory_bytes_max: groups.memory_bytes_max().unwrap_or(report.resident_bytes_max),
        output_bytes,
        errors,
        active: report.active,
    }
}
