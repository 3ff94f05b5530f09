//! This module runs a command, from the side of the calling process. It writes the command's input, reads the
//! output, and checks the limits.

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
    CommandLimits, Error, Policy, Protection, Protections, Result, Sandbox, Termination,
    cgroup::Cgroups,
    channel::{Confinement, HelperTask, Reply, Report, Task},
    folder::open_to_count,
    host::RunningHelper,
    memory::used_bytes,
    walk::occupied_bytes,
};

/// The maximum number of bytes of output in one read, which is the capacity of a pipe.
const OUTPUT_BYTES: usize = 64 << 10;
/// The number of bytes at the end of standard error that the response contains. The last bytes usually say why the
/// command failed.
const ERRORS_BYTES: usize = 8 << 10;
/// The interval at which the caller's function `cancel` is called.
const TICK: Duration = Duration::from_millis(20);
/// The interval at which the working folder is measured. The interval is also at least `MEASURE_SHARE` times as long
/// as the last measurement took, so that a folder of very many files doesn't keep this process busy.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);
const MEASURE_SHARE: u32 = 10;
/// The shortest interval at which the memory of all processes is measured if no cgroup limits the memory. A core
/// fills some 100 MiB in this time.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);
/// The time after the deadline within which the helper must report the end of the command. Otherwise the run
/// fails.
const GRACE: Duration = Duration::from_secs(5);

/// Describes a Linux command, and all files that the command may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The path of the program. No search path is used. The program may lie outside the system's folders.
    pub program: PathBuf,
    /// Lists the arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Names the working folder: a folder for this command alone, whose files the command may read and write but
    /// not execute. If this process is root, the policy's user becomes the owner of the folder. If this process is
    /// not root, the command runs as the same user and can remove this user's rights to a subfolder. The sandbox
    /// then restores the rights, so that all files can be counted. Use [`crate::open_left`] to open files that the
    /// command left in the folder. [`crate::Folder`] creates such a folder, and removes the folder with its
    /// content.
    pub folder: PathBuf,
    /// Lists files and folders that the command may read, besides the system's programs and libraries (`/usr`,
    /// `/bin`, `/lib*`). The files must be readable for the policy's user too.
    pub readable: Vec<PathBuf>,
    /// Lists files and folders that the command may read and write. The files must be writable for the policy's user
    /// too.
    pub writable: Vec<PathBuf>,
    /// Lists all environment variables of the command. The command inherits no variable of this process.
    pub env: Vec<(OsString, OsString)>,
}

impl Command {
    /// Makes a command that works in this folder and has access to no further files. The environment has the
    /// variables that programs expect: `PATH` is that of the system, `HOME` and `TMPDIR` are the folder, and the
    /// locale is `C` with UTF-8.
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

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Command {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a file or folder that the command may read.
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Command {
        self.readable.push(path.into());
        self
    }

    /// Adds a file or folder that the command may write.
    #[must_use]
    pub fn writable(mut self, path: impl Into<PathBuf>) -> Command {
        self.writable.push(path.into());
        self
    }
}

/// Reports how a command ended and what the command used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response {
    /// Holds the exit status; none if a signal ended the command.
    pub code: Option<i32>,
    /// Holds the signal that ended the command.
    pub signal: Option<i32>,
    /// Says why the sandbox ended the command; none if the sandbox did not end it.
    pub ended: Option<Termination>,
    /// Holds the time from the start of the command to the end.
    pub wall: Duration,
    /// Holds the processor time of all processes in user mode.
    pub user: Duration,
    /// Holds the processor time of all processes in the kernel.
    pub system: Duration,
    /// Holds the peak memory in bytes. If [`Protection::Memory`] was active, this is the memory of all processes
    /// and of the page cache that they caused. Otherwise this is the larger of two numbers: the largest measured
    /// sum over all processes, and the peak of the largest process.
    pub memory_bytes_max: u64,
    /// Counts the bytes of standard output that were passed to the caller.
    pub output_bytes: u64,
    /// Holds the last 8 KiB of standard error.
    pub errors: Vec<u8>,
    /// Lists the protections that were active.
    pub active: Protections,
}

impl Response {
    /// Returns true if the command ended by itself, with the exit status 0.
    pub fn success(&self) -> bool {
        self.ended.is_none() && self.code == Some(0)
    }
}

impl Sandbox {
    /// Runs a command to its end.
    ///
    /// A separate thread reads `input`, which becomes the command's standard input. A command need not read all of
    /// the input. If a read of `input` blocks for ever, this method blocks too, after the command's end. Standard
    /// output goes to `output`, up to 64 KiB at a time; an error from `output` ends the command. `cancel` is
    /// called about fifty times a second, and ends the command by returning true. A run takes about 5 ms in
    /// addition to the command's own time.
    ///
    /// # Errors
    /// - Returns [`Error::Missing`] if a protection that the policy requires is not available.
    /// - Returns [`Error::Path`] if the program can't be started or a file can't be opened.
    /// - Returns [`Error::Helper`] if the helper process fails before the command runs.
    /// - Returns [`Error::Input`] if the caller's `input` fails while the command runs. The command has then been
    ///   ended.
    /// - Returns [`Error::Output`] if the caller's `output` fails while the command runs. The command has then been
    ///   ended.
    ///
    /// A command that failed or was ended at a limit isn't an error: see [`Response`].
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
        let helper = RunningHelper::start(
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
            // This call always drops the helper, which ends all processes of the command. Then no process can keep
            // the thread `feeder` waiting.
            let seen = watch.close(seen, &groups);
            (feeder.join(), seen)
        });
        let response = seen?;
        fed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(Error::Input)?;
        Ok(response)
    }

    pub(crate) fn groups(&self, limits: &CommandLimits) -> Cgroups {
        let Policy { cgroup, wanted, .. } = &self.policy;
        Cgroups::make(cgroup.as_deref(), *wanted, limits.memory_bytes, limits.processes)
    }
}

/// Makes the order (the task and its protections) for a helper that runs the command.
fn order(command: &Command, limits: &CommandLimits, policy: &Policy, groups: &Cgroups) -> HelperTask {
    let bytes = |text: &OsString| text.clone().into_vec();
    HelperTask {
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

/// Returns the confinement for these limits and this policy, without access to any file.
pub(crate) fn confinement(limits: &CommandLimits, policy: &Policy, groups: &Cgroups) -> Confinement {
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

/// Copies `input` to the command until `input` ends or the command closes its standard input. Only an error of
/// `input` is returned.
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

/// Reads the output of a running command, and checks its limits.
struct Watch<O> {
    helper: RunningHelper,
    stdout: File,
    stderr: File,
    output: O,
    errors: VecDeque<u8>,
    output_bytes: u64,
    /// Holds the largest memory that was measured if no cgroup counts memory.
    memory_bytes_max: u64,
    /// Says why this process ended the command; none if this process did not end it.
    ended: Option<Termination>,
    /// Holds the error that the caller's function `output` returned.
    failed: Option<io::Error>,
}

impl<O: FnMut(&[u8]) -> io::Result<()>> Watch<O> {
    /// Drops the helper, and makes the response.
    fn close(self, seen: Result<Report>, groups: &Cgroups) -> Result<Response> {
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

    /// Passes output to the caller until the helper has reported the command's end and all output has been read.
    /// `memory_bytes` limits the memory of all processes together; it is set if no cgroup limits the memory.
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
        let (mut measure_at, mut memory_measure_at) = (start + MEASURE_INTERVAL, start);
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
                // All processes of the command have ended. The pipes are at their end, unless a process outside
                // the sandbox holds them open.
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
                self.end(Termination::Cancelled);
            } else if self.ended.is_none() && now > measure_at {
                match occupied_bytes(folder, limits.folder_bytes) {
                    Ok(bytes) if bytes <= limits.folder_bytes => {}
                    Ok(_) => self.end(Termination::Folder),
                    // If the folder's bytes can't be counted, the folder may have any size, so the command is
                    // ended.
                    Err(error) => self.end(Termination::FolderUnseen { errno: error.raw_os_error() }),
                }
                measure_at = Instant::now() + MEASURE_INTERVAL.max(now.elapsed() * MEASURE_SHARE);
            } else if self.ended.is_none()
                && let Some(limit) = memory_bytes.filter(|_| now > memory_measure_at)
            {
                let used = used_bytes(self.helper.id(), limit);
                let used = used.map_err(Error::system("read the memory of a command in /proc"))?;
                self.memory_bytes_max = self.memory_bytes_max.max(used);
                if used > limit {
                    self.end(Termination::Memory);
                }
                memory_measure_at = Instant::now() + MEMORY_INTERVAL.max(now.elapsed() * MEASURE_SHARE);
            }
        }
        Ok(report.expect("looped until then"))
    }

    /// Reads standard output. Returns false at its end.
    fn take_output(&mut self, buffer: &mut [u8], limit: u64) -> Result<bool> {
        let length =
            self.stdout.read(buffer).map_err(Error::system("read the standard output of a command"))?;
        let keep = (length as u64).min(limit - self.output_bytes) as usize;
        if self.ended.is_none() && keep > 0 {
            if let Err(error) = (self.output)(&buffer[..keep]) {
                self.failed = Some(error);
                self.end(Termination::Cancelled);
            }
            self.output_bytes += keep as u64;
        }
        if keep < length && self.ended.is_none() {
            self.end(Termination::Output);
        }
        Ok(length > 0)
    }

    /// Reads standard error. Returns false at its end.
    fn take_errors(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let length =
            self.stderr.read(buffer).map_err(Error::system("read the standard error of a command"))?;
        self.errors.extend(&buffer[length.saturating_sub(ERRORS_BYTES)..length]);
        self.errors.drain(..self.errors.len().saturating_sub(ERRORS_BYTES));
        Ok(length > 0)
    }

    fn end(&mut self, why: Termination) {
        self.ended = Some(why);
        // If this fails, the helper has ended already, and the next read of its socket reports this.
        let _ = self.helper.stop();
    }
}

/// Waits at most [`TICK`]. Returns, for each file, whether it can be read or is at its end.
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
    ended: Option<Termination>,
    output_bytes: u64,
    errors: Vec<u8>,
    groups: &Cgroups,
) -> Response {
    let status = report.status.map(ExitStatus::from_raw);
    let signal = status.and_then(|status| status.signal());
    let by_signal = match signal {
        Some(libc::SIGXCPU) => Some(Termination::Cpu),
        Some(libc::SIGXFSZ) => Some(Termination::FileSize),
        _ => None,
    };
    let by_memory = groups.killed().then_some(Termination::Memory);
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
