//! Our side of a module: gives it blocks, takes results, and ends it when it takes too long.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::{fs::FileExt, net::UnixStream, process::ExitStatusExt},
    },
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    WasmLimits,
    wire::{ANSWER_BYTES, Answer, Ask, Call, PAYLOAD_BYTES, Say},
};
use crate::{
    CommandLimits, Ended, Error, Protections, Result, Sandbox,
    cgroup::Groups,
    channel::{Confinement, Order, Reply, Report, Task},
    command::confinement,
    host::Running,
};

/// Blocks under way: one that the module works on, and one that lies ready.
const SLOTS: u64 = 2;
/// Smallest distance between slots; a longer block moves them apart.
const SLOT_BYTES_MIN: u64 = 1 << 20;
/// What a process needs beyond the module's memory: compiler, compiled code, runtime.
const OWN_BYTES: u64 = 256 << 20;
/// Bytes kept of a module's log.
const LOG_BYTES: usize = 8 << 10;

/// Time for a process to end once it has closed its socket.
const GRACE: Duration = Duration::from_secs(5);

/// Takes a piece of a result.
pub type Output<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// An instance of a module in a process of its own, which ends with this.
pub struct WasmRun {
    socket: UnixStream,
    shared: File,
    helper: Running,
    groups: Groups,
    limits: WasmLimits,
    slot_bytes: u64,
    /// Blocks given so far, and offsets of those not yet done.
    given: u64,
    under_way: VecDeque<i64>,
    /// Since when we wait for the module: not while our caller does something else.
    since: Instant,
    output_bytes: u64,
    log: VecDeque<u8>,
    payload: Vec<u8>,
}

/// What came of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WasmResponse {
    /// Time from the start of its process to its end.
    pub wall: Duration,
    /// Processor time of its process, compiling included.
    pub user: Duration,
    /// See `user`.
    pub system: Duration,
    /// Most memory of its process at a time.
    pub memory_bytes_max: u64,
    /// Bytes of results.
    pub output_bytes: u64,
    /// The last 8 KiB of what it logged.
    pub log: Vec<u8>,
    /// Which protections were active.
    pub active: Protections,
}

impl Sandbox {
    /// Whether a module can be run: whether it's valid, imports nothing unknown, exports what is expected, and says the right
    /// version. None of that happens in our own process.
    ///
    /// # Errors
    /// [`Error::Module`] where it isn't such a module, and those of [`Sandbox::start_wasm`].
    pub fn check_wasm(&self, module: &[u8], limits: &WasmLimits) -> Result<()> {
        self.load(module, limits).map(drop)
    }

    /// Starts a module with these arguments: compiles it in a process of its own (about 10 ms, and 50 ms or more for each MiB
    /// of module) and has it initialised.
    ///
    /// # Errors
    /// [`Error::Module`], [`Error::Kernel`] where its `inshore_init` fails, [`Error::Ended`] at a limit; [`Error::Missing`] and
    /// [`Error::Helper`] as for commands.
    pub fn start_wasm(&self, module: &[u8], args: &[u8], limits: &WasmLimits) -> Result<WasmRun> {
        let mut run = self.load(module, limits)?;
        let mut early = Vec::new();
        run.place(args, 0)?;
        run.call(Ask::Init, 0, args.len() as u64, 0)?;
        run.until_done(&mut |bytes| {
            early.extend_from_slice(bytes);
            Ok(())
        })?;
        if !early.is_empty() {
            return Err(run.kernel("inshore_init", "it emits, before it was given anything"));
        }
        Ok(run)
    }

    fn load(&self, module: &[u8], limits: &WasmLimits) -> Result<WasmRun> {
        let process_limits = CommandLimits {
            memory_bytes: limits.memory_bytes.saturating_add(OWN_BYTES),
            cpu_seconds: u64::MAX,
            wall: limits.wall,
            processes: 1,
            file_bytes: 0,
            // Three, these two, and those of the rules while they are made.
            open_files: 32,
            ..CommandLimits::default()
        };
        let groups = self.groups(&process_limits);
        let order = Order {
            task: Task::Wasm { memory_bytes: limits.memory_bytes },
            confinement: Confinement {
                // Address space is reserved, not used.
                address_bytes: None,
                data_bytes: Some(process_limits.memory_bytes),
                ..confinement(&process_limits, &self.policy, &groups)
            },
            wall_us: u64::try_from(limits.wall.as_micros()).unwrap_or(u64::MAX),
        };
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let shared = memfd_create("inshore-blocks", MemfdFlags::CLOEXEC)
            .map_err(|error| Error::system("make a file in memory")(error.into()))?;
        let files = [theirs.as_fd(), shared.as_fd()];
        let helper = Running::start(&self.helper, &order, &files, Stdio::null(), Stdio::null())?;
        drop(theirs);
        let mut run = WasmRun {
            socket,
            shared: File::from(shared),
            helper,
            groups,
            limits: limits.clone(),
            slot_bytes: SLOT_BYTES_MIN,
            given: 0,
            under_way: VecDeque::new(),
            since: Instant::now(),
            output_bytes: 0,
            log: VecDeque::new(),
            payload: vec![0; PAYLOAD_BYTES],
        };
        run.place(module, 0)?;
        run.call(Ask::Load, 0, module.len() as u64, 0)?;
        run.until_done(&mut |_| Ok(()))?;
        Ok(run)
    }
}

impl WasmRun {
    /// Gives the module a block that begins at `offset` of its source, and hands over what it has emitted by then, of earlier
    /// blocks too, in order. Returns while the module works on it: two blocks may be under way. Costs a copy of the block
    /// here and one in the module's process.
    ///
    /// # Errors
    /// Those of earlier blocks too: [`Error::Kernel`] where the module fails, [`Error::Ended`] at a limit,
    /// [`Error::Output`]. After an error the module is gone; any call gives an error then.
    pub fn block(&mut self, bytes: &[u8], offset: i64, output: Output<'_>) -> Result<()> {
        self.since = Instant::now();
        let length = bytes.len() as u64;
        if length > self.limits.memory_bytes {
            let reason =
                format!("{length} bytes are more than the {} of its memory", self.limits.memory_bytes);
            return Err(self.kernel("inshore_block", &reason));
        }
        if length > self.slot_bytes {
            // Those under way lie where the slots are now.
            while !self.under_way.is_empty() {
                self.until_done(output)?;
            }
            self.slot_bytes = length.next_power_of_two();
        }
        while self.under_way.len() as u64 >= SLOTS {
            self.until_done(output)?;
        }
        let position = self.given % SLOTS * self.slot_bytes;
        self.place(bytes, position)?;
        self.call(Ask::Block, position, length, offset)?;
        self.given += 1;
        self.under_way.push_back(offset);
        Ok(())
    }

    /// Has the module finish, and hands over the rest of its results.
    ///
    /// # Errors
    /// As [`WasmRun::block`].
    pub fn finish(mut self, output: Output<'_>) -> Result<WasmResponse> {
        self.since = Instant::now();
        while !self.under_way.is_empty() {
            self.until_done(output)?;
        }
        self.call(Ask::Finish, 0, 0, 0)?;
        self.until_done(output)?;
        // It ends when it's asked for nothing more.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let report = self.report()?;
        Ok(WasmResponse {
            wall: Duration::from_micros(report.wall_us),
            user: Duration::from_micros(report.user_us),
            system: Duration::from_micros(report.system_us),
            memory_bytes_max: self.groups.memory_bytes_max().unwrap_or(report.resident_bytes_max),
            output_bytes: self.output_bytes,
            log: self.log.into(),
            active: report.active,
        })
    }

    /// Puts bytes into the shared file.
    fn place(&mut self, bytes: &[u8], position: u64) -> Result<()> {
        self.shared.write_all_at(bytes, position).map_err(Error::system("share a block"))
    }

    fn call(&mut self, ask: Ask, position: u64, length: u64, offset: i64) -> Result<()> {
        if self.under_way.is_empty() {
            self.since = Instant::now();
        }
        match (Call { ask, position, length, offset }).write(&self.socket) {
            Ok(()) => Ok(()),
            // It may have said why it ended.
            Err(_) => self.until_done(&mut |_| Ok(())).and(Err(self.kernel("call", "it has ended"))),
        }
    }

    /// Hands results over until a call has returned.
    fn until_done(&mut self, output: Output<'_>) -> Result<()> {
        loop {
            let mut header = [0; ANSWER_BYTES];
            self.read(&mut header)?;
            let answer =
                Answer::parse(&header).map_err(|error| self.kernel("its process", &error.to_string()))?;
            let mut payload = std::mem::take(&mut self.payload);
            let read = self.read(&mut payload[..answer.length]);
            let taken = read.and_then(|()| self.take(answer, &payload[..answer.length], output));
            self.payload = payload;
            if taken? {
                return Ok(());
            }
        }
    }

    /// Whether that was the end of a call.
    fn take(&mut self, answer: Answer, payload: &[u8], output: Output<'_>) -> Result<bool> {
        match answer.say {
            Say::Emit => {
                self.output_bytes += payload.len() as u64;
                if self.output_bytes > self.limits.output_bytes {
                    return self.end(Error::Ended(Ended::Output)).map(|()| false);
                }
                let start = Instant::now();
                let result = output(payload);
                // That it waited is not the module's fault.
                self.since += start.elapsed();
                result.or_else(|error| self.end(Error::Output(error))).map(|()| false)
            }
            Say::Log => {
                self.log.extend(payload);
                self.log.drain(..self.log.len().saturating_sub(LOG_BYTES));
                Ok(false)
            }
            Say::Done => {
                self.since = Instant::now();
                let offset = self.under_way.pop_front();
                if answer.code < 0 {
                    let what = match offset {
                        Some(offset) => format!("the block at {offset}"),
                        None => "inshore_init or inshore_finish".to_string(),
                    };
                    let error = self.kernel(&what, &format!("it returned the error {}", answer.code));
                    return self.end(error).map(|()| true);
                }
                Ok(true)
            }
            Say::NotOurs => Err(Error::Module { reason: text(payload) }),
            Say::Failed => {
                let reason = text(payload);
                let what =
                    self.under_way.front().map_or("a call".to_string(), |at| format!("the block at {at}"));
                Err(self.kernel(&what, &reason))
            }
        }
    }

    /// Ends it, and is that error.
    fn end(&mut self, error: Error) -> Result<()> {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.helper.stop();
        Err(error)
    }

    fn kernel(&self, what: &str, reason: &str) -> Error {
        Error::Kernel { what: what.to_string(), reason: reason.to_string() }
    }

    /// Reads all of it, within the time that the module has.
    fn read(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            // Looked at before each read: whoever talks without end is never waited for.
            let left = self.limits.call.saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return self.end(Error::Ended(Ended::Deadline));
            }
            self.socket.set_read_timeout(Some(left)).map_err(Error::system("set a time limit"))?;
            match (&self.socket).read(into) {
                Ok(0) => return self.ended(),
                Ok(length) => into = &mut into[length..],
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return self.ended(),
            }
        }
        Ok(())
    }

    /// Its process has ended, and not when it should: why.
    fn ended(&mut self) -> Result<()> {
        let report = self.report()?;
        let by_memory = self.groups.killed().then_some(Ended::Memory);
        if let Some(why) = report.ended.or(by_memory) {
            return Err(Error::Ended(why));
        }
        let status =
            report.status.map_or("unknown".to_string(), |status| ExitStatus::from_raw(status).to_string());
        Err(self.kernel("its process", &format!("it ended: {status}")))
    }

    fn report(&mut self) -> Result<Report> {
        // Its process has closed its end of the socket, and is expected to be at its own end.
        self.helper.socket.set_read_timeout(Some(GRACE)).map_err(Error::system("set a time limit"))?;
        match self.helper.reply()? {
            Reply::Done(report) => Ok(report),
            Reply::Failed(failure) => Err(failure.into()),
            Reply::Ready => Err(self.kernel("its process", "it is ready twice")),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
