//! Our side of a module: gives it blocks, takes results, and ends it when it takes too long.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::{
    BATCH, FileBlocks, WasmLimits, WasmResult,
    wire::{ANSWER_BYTES, Answer, Ask, Call, HAS_STATE, LAST, PAYLOAD_BYTES, Say},
};
use crate::{
    CommandLimits, Ended, Error, Protections, Result, Sandbox,
    cgroup::Groups,
    channel::{Confinement, Order, Reply, Report, Task},
    command::confinement,
    host::Running,
    shared::Shared,
};

/// Blocks under way: one that the module works on, and one that lies ready.
const SLOTS: usize = 2;
/// Distances between slots are multiples of this; a longer block moves them apart.
const SLOT_BYTES: usize = 64 << 10;
/// Bytes kept of a module's log.
const LOG_BYTES: usize = 8 << 10;

/// Time for a process to end once it has closed its socket.
const GRACE: Duration = Duration::from_secs(5);
/// So often it is asked whether the module is still wanted.
const TICK: Duration = Duration::from_millis(100);

/// Takes a piece of a result.
pub type Output<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// Takes a piece of what comes of blocks that the module's process reads.
pub type BlockOutput<'a> = &'a mut dyn FnMut(BlockPart<'_>) -> io::Result<()>;

/// A piece of what the module emitted of a block of a file. The last one may be empty; of a block of which nothing was emitted
/// there is none.
#[derive(Clone, Copy, Debug)]
pub struct BlockPart<'a> {
    /// Which block, from 0.
    pub block: u64,
    /// Where its lines begin, as the module was told.
    pub offset: i64,
    /// Where in the file they end.
    pub end: u64,
    /// Whether nothing more comes of the block.
    pub is_last: bool,
    /// What was emitted.
    pub bytes: &'a [u8],
}

/// Takes what comes with answers.
type Take<'a> = &'a mut dyn FnMut(&Answer, &[u8]) -> io::Result<()>;

/// Whether a run is no longer wanted.
pub type Unwanted = Box<dyn Fn() -> bool + Send>;

/// An instance of a module in a process of its own, which ends with this.
pub struct WasmRun {
    socket: UnixStream,
    shared: Shared,
    result: WasmResult,
    unwanted: Unwanted,
    helper: Running,
    groups: Groups,
    limits: WasmLimits,
    slot_bytes: usize,
    /// The slot for the next block, and how many are not yet done.
    next_slot: usize,
    under_way: usize,
    /// What was asked for, to be named where it fails.
    asked: Ask,
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

impl fmt::Debug for WasmRun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("WasmRun").field("result", &self.result).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Whether a module can be run: whether it's valid, imports nothing unknown, exports what is expected, and says the right
    /// version; and what kind of result it has. None of that happens in our own process.
    ///
    /// # Errors
    /// [`Error::Module`] where it isn't such a module, and those of [`Sandbox::start_wasm`].
    pub fn check_wasm(&self, module: &[u8], limits: &WasmLimits) -> Result<WasmResult> {
        Ok(self.load(module, limits, Box::new(|| false))?.result)
    }

    /// Starts a module with these arguments: compiles it in a process of its own (about 10 ms, and 50 ms or more for each MiB
    /// of module) and has it initialised.
    ///
    /// # Errors
    /// [`Error::Module`], [`Error::Kernel`] where its `inshore_init` fails, [`Error::Ended`] at a limit; [`Error::Missing`] and
    /// [`Error::Helper`] as for commands.
    pub fn start_wasm(&self, module: &[u8], args: &[u8], limits: &WasmLimits) -> Result<WasmRun> {
        self.start_wasm_while_wanted(module, args, limits, Box::new(|| false))
    }

    /// As [`Sandbox::start_wasm`]; whenever the module is waited for, `unwanted` is asked ten times a second, and a yes ends it.
    ///
    /// # Errors
    /// As [`Sandbox::start_wasm`]; [`Error::Ended`] with [`Ended::Cancelled`].
    pub fn start_wasm_while_wanted(
        &self,
        module: &[u8],
        args: &[u8],
        limits: &WasmLimits,
        unwanted: Unwanted,
    ) -> Result<WasmRun> {
        let mut run = self.load(module, limits, unwanted)?;
        run.give(Ask::Init, args)?;
        Ok(run)
    }

    fn load(&self, module: &[u8], limits: &WasmLimits, unwanted: Unwanted) -> Result<WasmRun> {
        let process_limits = CommandLimits {
            memory_bytes: limits.memory_bytes.saturating_add(limits.own_bytes),
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
        let shared = Shared::new().map_err(Error::system("make a file in memory"))?;
        let files = [theirs.as_fd(), shared.file().as_fd()];
        let helper = Running::start(&self.helper, &order, &files, Stdio::null(), Stdio::null())?;
        drop(theirs);
        let mut run = WasmRun {
            socket,
            shared,
            result: WasmResult::InOrder,
            unwanted,
            helper,
            groups,
            limits: limits.clone(),
            slot_bytes: 0,
            next_slot: 0,
            under_way: 0,
            asked: Ask::Load,
            since: Instant::now(),
            output_bytes: 0,
            log: VecDeque::new(),
            payload: vec![0; PAYLOAD_BYTES],
        };
        run.place(module, 0)?;
        run.call(Ask::Load, 0, module.len(), 0)?;
        if run.until_done(&mut nothing)?.code == HAS_STATE {
            run.result = WasmResult::State;
        }
        Ok(run)
    }
}

/// Takes what can't come: the module's side refuses to send it.
fn nothing(_: &Answer, _: &[u8]) -> io::Result<()> {
    Err(io::Error::other("it emits where nothing is expected"))
}

/// Takes what is emitted, of whichever block.
fn plain(output: Output<'_>) -> impl FnMut(&Answer, &[u8]) -> io::Result<()> {
    |_, bytes| output(bytes)
}

impl WasmRun {
    /// What kind of result the module has.
    pub fn result(&self) -> WasmResult {
        self.result
    }

    /// Gives the module a block that begins at `offset` of its source, and hands over what it has emitted by then, of earlier
    /// blocks too, in order. Returns while the module works on it: two blocks may be under way. Costs one copy of the block.
    ///
    /// # Errors
    /// Those of earlier blocks too: [`Error::Kernel`] where the module fails, [`Error::Ended`] at a limit,
    /// [`Error::Output`]. After an error the module is gone; any call gives an error then.
    pub fn block(&mut self, bytes: &[u8], offset: i64, output: Output<'_>) -> Result<()> {
        self.since = Instant::now();
        self.check_length(bytes.len() as u64, "inshore_block")?;
        if bytes.len() > self.slot_bytes {
            // Those under way lie where the slots are now.
            self.settle(output)?;
            // Somewhat more, so that not every longer one moves them.
            self.slot_bytes = (bytes.len() + bytes.len() / 8).next_multiple_of(SLOT_BYTES);
        }
        while self.under_way >= SLOTS {
            self.until_done(&mut plain(output))?;
        }
        if self.under_way == 0 {
            // Whoever waits for each block stays in the memory that is in a core's cache.
            self.next_slot = 0;
        }
        let position = self.next_slot * self.slot_bytes;
        self.place(bytes, position)?;
        self.call(Ask::Block, position, bytes.len(), offset)?;
        self.next_slot = (self.next_slot + 1) % SLOTS;
        self.under_way += 1;
        Ok(())
    }

    /// Has the module's process read blocks of a file, which is open for reading, and give them to the module, one after the
    /// other. Hands over what is emitted, and says how many blocks are done when it returns: fewer than all where enough was
    /// emitted, after a tenth of a second, and before a block that the process can't read: one whose last line is longer than
    /// 64 KiB, or where the file became shorter or reading fails. That one is to be [given](WasmRun::block), by whoever knows what
    /// it is. Blocks that were given before are done first, and nothing may come of them: [settle](WasmRun::settle) where it may.
    ///
    /// # Errors
    /// As [`WasmRun::block`].
    pub fn file_blocks(
        &mut self,
        file: BorrowedFd<'_>,
        blocks: &FileBlocks,
        output: BlockOutput<'_>,
    ) -> Result<u64> {
        self.settle_to(&mut nothing)?;
        let room = blocks.room_bytes();
        self.check_length(room, "inshore_block")?;
        self.slot_bytes = self.slot_bytes.max((room as usize).next_multiple_of(SLOT_BYTES));
        self.shared.grow(SLOTS * self.slot_bytes).map_err(Error::system("share a block"))?;
        self.call_with_file(Call { length: room, blocks: *blocks, ..self.call_of(Ask::Blocks) }, Some(file))?;
        let done = self.until_done(&mut |answer, bytes| {
            let Answer { code, place, .. } = *answer;
            let (block, offset, end) = (place.block, place.offset, place.end);
            if block >= blocks.count {
                return Err(io::Error::other("it says something of a block that it was not asked for"));
            }
            output(BlockPart { block, offset, end, is_last: code == LAST, bytes })
        })?;
        match done.place.block {
            count if count <= blocks.count => Ok(count),
            _ => self.stop(self.kernel("its process", "it has done more blocks than there are")).map(|()| 0),
        }
    }

    /// Waits until the module is done with all blocks, and hands over what it emits.
    ///
    /// # Errors
    /// As [`WasmRun::block`].
    pub fn settle(&mut self, output: Output<'_>) -> Result<()> {
        self.settle_to(&mut plain(output))
    }

    fn settle_to(&mut self, take: Take<'_>) -> Result<()> {
        self.since = Instant::now();
        while self.under_way > 0 {
            self.until_done(take)?;
        }
        Ok(())
    }

    /// Refuses what is longer than the module's memory.
    fn check_length(&self, bytes: u64, what: &str) -> Result<()> {
        match self.limits.memory_bytes {
            limit if bytes <= limit => Ok(()),
            limit => {
                Err(self.kernel(what, &format!("{bytes} bytes are more than the {limit} of its memory")))
            }
        }
    }

    /// Has a module with a [state](WasmResult::State) hand it over, for another instance to [merge](WasmRun::merge). Nothing
    /// but [`WasmRun::end`] comes after it.
    ///
    /// # Errors
    /// As [`WasmRun::block`].
    pub fn state(&mut self, output: Output<'_>) -> Result<()> {
        self.settle_to(&mut nothing)?;
        self.call(Ask::State, 0, 0, 0)?;
        self.until_done(&mut plain(output)).map(drop)
    }

    /// Adds another instance's state to this one's.
    ///
    /// # Errors
    /// As [`WasmRun::block`]; [`Error::Kernel`] where the state doesn't fit the module's memory.
    pub fn merge(&mut self, state: &[u8]) -> Result<()> {
        self.settle_to(&mut nothing)?;
        self.check_length(state.len() as u64, "inshore_merge")?;
        self.give(Ask::Merge, state)
    }

    /// Has the module finish where it has a [state](WasmResult::State), hands over the rest of its results, and ends it.
    ///
    /// # Errors
    /// As [`WasmRun::block`].
    pub fn finish(mut self, output: Output<'_>) -> Result<WasmResponse> {
        self.settle(output)?;
        if self.result == WasmResult::State {
            self.call(Ask::Finish, 0, 0, 0)?;
            self.until_done(&mut plain(output))?;
        }
        self.end()
    }

    /// Ends it, and tells what it took.
    ///
    /// # Errors
    /// [`Error::Helper`], [`Error::System`].
    pub fn end(mut self) -> Result<WasmResponse> {
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

    /// The end of what it logged so far.
    pub fn log(&self) -> Vec<u8> {
        self.log.iter().copied().collect()
    }

    /// Makes a call that is about these bytes, and waits for its end.
    fn give(&mut self, ask: Ask, bytes: &[u8]) -> Result<()> {
        self.slot_bytes = self.slot_bytes.max(bytes.len().next_multiple_of(SLOT_BYTES));
        self.place(bytes, 0)?;
        self.call(ask, 0, bytes.len(), 0)?;
        self.until_done(&mut nothing).map(drop)
    }

    /// Puts bytes into the shared file.
    fn place(&mut self, bytes: &[u8], position: usize) -> Result<()> {
        let room = self.shared.grow(SLOTS * self.slot_bytes);
        room.and_then(|()| self.shared.put(position, bytes)).map_err(Error::system("share a block"))
    }

    fn call(&mut self, ask: Ask, position: usize, length: usize, offset: i64) -> Result<()> {
        let (position, length) = (position as u64, length as u64);
        self.call_with_file(Call { position, length, offset, ..self.call_of(ask) }, None)
    }

    /// A call that is about nothing yet.
    fn call_of(&self, ask: Ask) -> Call {
        let capacity = (SLOTS * self.slot_bytes) as u64;
        Call { ask, position: 0, length: 0, offset: 0, capacity, blocks: FileBlocks::default() }
    }

    fn call_with_file(&mut self, call: Call, file: Option<BorrowedFd<'_>>) -> Result<()> {
        if self.under_way == 0 {
            self.since = Instant::now();
        }
        self.asked = call.ask;
        match call.send(&self.socket, file) {
            Ok(()) => Ok(()),
            // It may have said why it ended.
            Err(_) => self.until_done(&mut |_, _| Ok(())).and(Err(self.kernel("call", "it has ended"))),
        }
    }

    /// Hands results over until a call has returned, and gives its last answer.
    fn until_done(&mut self, take: Take<'_>) -> Result<Answer> {
        loop {
            let mut header = [0; ANSWER_BYTES];
            self.read(&mut header)?;
            let answer =
                Answer::parse(&header).map_err(|error| self.kernel("its process", &error.to_string()))?;
            let mut payload = std::mem::take(&mut self.payload);
            let read = self.read(&mut payload[..answer.length]);
            let taken = read.and_then(|()| self.take(&answer, &payload[..answer.length], take));
            self.payload = payload;
            if taken? {
                return Ok(answer);
            }
        }
    }

    /// Whether that was the end of a call.
    fn take(&mut self, answer: &Answer, payload: &[u8], take: Take<'_>) -> Result<bool> {
        match answer.say {
            Say::Emit => {
                self.output_bytes += payload.len() as u64;
                if self.output_bytes > self.limits.output_bytes {
                    return self.stop(Error::Ended(Ended::Output)).map(|()| false);
                }
                let start = Instant::now();
                let result = take(answer, payload);
                // That it waited is not the module's fault.
                self.since += start.elapsed();
                result.or_else(|error| self.stop(Error::Output(error))).map(|()| false)
            }
            Say::Log => {
                self.log.extend(payload);
                self.log.drain(..self.log.len().saturating_sub(LOG_BYTES));
                Ok(false)
            }
            Say::Done => {
                self.since = Instant::now();
                self.under_way = self.under_way.saturating_sub(1);
                if answer.code < 0 {
                    let reason = format!("it returned the error {}", answer.code);
                    return self.stop(self.kernel(&self.what(answer), &reason)).map(|()| true);
                }
                Ok(true)
            }
            Say::NotOurs => Err(Error::Module { reason: text(payload) }),
            Say::Failed => Err(self.kernel(&self.what(answer), &text(payload))),
        }
    }

    /// What an answer is about, as errors name it.
    fn what(&self, answer: &Answer) -> String {
        match self.asked {
            Ask::Block | Ask::Blocks => format!("the block at {}", answer.place.offset),
            asked => asked.name().to_string(),
        }
    }

    /// Ends it, and is that error.
    fn stop(&mut self, error: Error) -> Result<()> {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.helper.stop();
        Err(error)
    }

    fn kernel(&self, what: &str, reason: &str) -> Error {
        Error::Kernel { what: what.to_string(), reason: reason.to_string() }
    }

    /// Time for what was asked: a block of several has as much as any, and may be begun when the time for the batch is over.
    fn allowed(&self) -> Duration {
        self.limits.call + if self.asked == Ask::Blocks { BATCH } else { Duration::ZERO }
    }

    /// Reads all of it, within the time that the module has.
    fn read(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            // Looked at before each read: whoever talks without end is never waited for.
            let left = self.allowed().saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return self.stop(Error::Ended(Ended::Deadline));
            }
            self.socket.set_read_timeout(Some(left.min(TICK))).map_err(Error::system("set a time limit"))?;
            match (&self.socket).read(into) {
                Ok(0) => return self.ended(),
                Ok(length) => into = &mut into[length..],
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    if (self.unwanted)() {
                        return self.stop(Error::Ended(Ended::Cancelled));
                    }
                }
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
