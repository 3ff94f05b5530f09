//! This module is the side of the calling process in a run of a WebAssembly kernel. It sends blocks, receives
//! results, and ends a module that takes too long.

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
    wire::{ANSWER_BYTES, Answer, AnswerKind, Call, CallKind, HAS_STATE, LAST, PAYLOAD_BYTES},
};
use crate::{
    CommandLimits, Error, Protections, Result, Sandbox, Termination,
    cgroup::Cgroups,
    channel::{Confinement, HelperTask, Reply, Report, Task},
    command::confinement,
    host::RunningHelper,
    shared::SharedMemory,
};

/// The number of blocks in flight: the module works on one block, and the next is ready.
const SLOTS: usize = 2;
/// The size of a slot is a multiple of this number of bytes. A longer block makes the slots larger.
const SLOT_BYTES: usize = 64 << 10;
/// The number of bytes at the end of a module's log that are kept.
const LOG_BYTES: usize = 8 << 10;

/// The time within which a process must end after it has closed the socket.
const GRACE: Duration = Duration::from_secs(5);
/// The interval at which a run checks whether it is cancelled.
const TICK: Duration = Duration::from_millis(100);

/// A function that receives a part of a result.
pub type Output<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// A function that receives a part of the result of a block that the module's process has read.
pub type BlockOutput<'a> = &'a mut dyn FnMut(BlockPart<'_>) -> io::Result<()>;

/// Holds a part of the bytes that the module emitted for a block of a file. The last part may be empty. A block
/// for which nothing was emitted has no parts.
#[derive(Clone, Copy, Debug)]
pub struct BlockPart<'a> {
    /// The number of the block, from 0.
    pub block: u64,
    /// The offset of the block's first line, as the module sees it.
    pub offset: i64,
    /// The end of the block's last line in the file.
    pub end: u64,
    /// Says whether this is the block's last part.
    pub is_last: bool,
    /// Holds the emitted bytes.
    pub bytes: &'a [u8],
}

/// A function that receives answers of the module's process, with their bytes.
type AnswerSink<'a> = &'a mut dyn FnMut(&Answer, &[u8]) -> io::Result<()>;

/// A function that returns true if a run is cancelled.
pub type CancelCheck = Box<dyn Fn() -> bool + Send>;

/// Runs an instance of a module in a child process, which ends when the `WasmRun` is dropped.
pub struct WasmRun {
    socket: UnixStream,
    shared: SharedMemory,
    result: WasmResult,
    unwanted: CancelCheck,
    helper: RunningHelper,
    groups: Cgroups,
    limits: WasmLimits,
    slot_bytes: usize,
    /// The index of the slot for the next block.
    next_slot: usize,
    /// Counts the blocks in flight.
    under_way: usize,
    /// The current call, for error messages.
    current: CallKind,
    /// The start of the wait for the module. When the caller takes time for results, this start is moved by the
    /// same time.
    since: Instant,
    output_bytes: u64,
    log: VecDeque<u8>,
    payload: Vec<u8>,
}

/// Reports how a module ended and what the module used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WasmResponse {
    /// Holds the time from the start of the module's process to the end.
    pub wall: Duration,
    /// Holds the processor time of the process in user mode, compiling included.
    pub user: Duration,
    /// Holds the processor time of the process in the kernel.
    pub system: Duration,
    /// Holds the peak memory of the process.
    pub memory_bytes_max: u64,
    /// Counts the bytes of results.
    pub output_bytes: u64,
    /// Holds the last 8 KiB of the module's log.
    pub log: Vec<u8>,
    /// Lists the protections that were active.
    pub active: Protections,
}

impl fmt::Debug for WasmRun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("WasmRun").field("result", &self.result).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Checks that a module is valid, has only known imports, has the expected exports, and reports the right ABI
    /// version; returns the kind of result. The module is compiled and run in a child process only.
    ///
    /// # Errors
    /// Returns [`Error::Module`] if the bytes are not such a module. Also returns the errors of
    /// [`Sandbox::start_wasm`].
    pub fn check_wasm(&self, module: &[u8], limits: &WasmLimits) -> Result<WasmResult> {
        Ok(self.load(module, limits, Box::new(|| false))?.result)
    }

    /// Starts a module with these arguments: compiles the module in a child process (about 10 ms, and 50 ms or more
    /// for each MiB of module) and calls `inshore_init`.
    ///
    /// # Errors
    /// - Returns [`Error::Module`] if the bytes are not a valid module.
    /// - Returns [`Error::Kernel`] if `inshore_init` fails.
    /// - Returns [`Error::Ended`] if the module reaches a limit.
    /// - Returns [`Error::Missing`] if a protection that the policy requires is not available.
    /// - Returns [`Error::Helper`] if the helper process fails.
    pub fn start_wasm(&self, module: &[u8], args: &[u8], limits: &WasmLimits) -> Result<WasmRun> {
        self.start_wasm_while_wanted(module, args, limits, Box::new(|| false))
    }

    /// Starts a module as [`Sandbox::start_wasm`] does. While the run waits for the module, `unwanted` is called
    /// ten times a second, and ends the run by returning true.
    ///
    /// # Errors
    /// - Returns the errors of [`Sandbox::start_wasm`].
    /// - Returns [`Error::Ended`] with [`Termination::Cancelled`] if the run was cancelled.
    pub fn start_wasm_while_wanted(
        &self,
        module: &[u8],
        args: &[u8],
        limits: &WasmLimits,
        unwanted: CancelCheck,
    ) -> Result<WasmRun> {
        let mut run = self.load(module, limits, unwanted)?;
        run.give(CallKind::Init, args)?;
        Ok(run)
    }

    fn load(&self, module: &[u8], limits: &WasmLimits, unwanted: CancelCheck) -> Result<WasmRun> {
        let process_limits = CommandLimits {
            memory_bytes: limits.memory_bytes.saturating_add(limits.own_bytes),
            cpu_seconds: u64::MAX,
            wall: limits.wall,
            processes: 1,
            file_bytes: 0,
            // The process has three standard files, a socket, the shared file, and the files of the landlock rules
            // while the rules are made.
            open_files: 32,
            ..CommandLimits::default()
        };
        let groups = self.groups(&process_limits);
        let order = HelperTask {
            task: Task::Wasm { memory_bytes: limits.memory_bytes },
            confinement: Confinement {
                // The address space is not limited, since the WebAssembly runtime reserves more of it than it
                // uses.
                address_bytes: None,
                data_bytes: Some(process_limits.memory_bytes),
                ..confinement(&process_limits, &self.policy, &groups)
            },
            wall_us: u64::try_from(limits.wall.as_micros()).unwrap_or(u64::MAX),
        };
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let shared = SharedMemory::new().map_err(Error::system("make a file in memory"))?;
        let files = [theirs.as_fd(), shared.file().as_fd()];
        let helper = RunningHelper::start(&self.helper, &order, &files, Stdio::null(), Stdio::null())?;
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
            current: CallKind::Load,
            since: Instant::now(),
            output_bytes: 0,
            log: VecDeque::new(),
            payload: vec![0; PAYLOAD_BYTES],
        };
        run.place(module, 0)?;
        run.call(CallKind::Load, 0, module.len(), 0)?;
        if run.until_done(&mut nothing)?.code == HAS_STATE {
            run.result = WasmResult::State;
        }
        Ok(run)
    }
}

/// The receiver of results during calls in which a module must not emit. The module's process refuses to emit in
/// these calls, so a result is an error.
fn nothing(_: &Answer, _: &[u8]) -> io::Result<()> {
    Err(io::Error::other("it called emit in a function that must not emit"))
}

/// Returns a receiver that passes on the emitted bytes of all blocks.
fn plain(output: Output<'_>) -> impl FnMut(&Answer, &[u8]) -> io::Result<()> {
    |_, bytes| output(bytes)
}

impl WasmRun {
    /// Returns the module's kind of result.
    pub fn result(&self) -> WasmResult {
        self.result
    }

    /// Sends the module a block that begins at `offset` of the source. Passes the bytes that the module has
    /// emitted so far, also for earlier blocks, to `output` in order. Returns before the module has processed the
    /// block, since two blocks may be in flight. The bytes of the block are copied once.
    ///
    /// # Errors
    /// - Returns [`Error::Kernel`] if the module fails.
    /// - Returns [`Error::Ended`] if the module reaches a limit.
    /// - Returns [`Error::Output`] if the caller's output fails.
    ///
    /// The error may have been caused by an earlier block. After an error the module's process has ended, and any call
    /// returns an error.
    pub fn block(&mut self, bytes: &[u8], offset: i64, output: Output<'_>) -> Result<()> {
        self.since = Instant::now();
        self.check_length(bytes.len() as u64, "inshore_block")?;
        if bytes.len() > self.slot_bytes {
            // The blocks in flight are in the present slots, so they are finished before the slots become larger.
            self.settle(output)?;
            // The slots are an eighth larger than this block, so that a slightly longer block fits too.
            self.slot_bytes = (bytes.len() + bytes.len() / 8).next_multiple_of(SLOT_BYTES);
        }
        while self.under_way >= SLOTS {
            self.until_done(&mut plain(output))?;
        }
        if self.under_way == 0 {
            // If no block is in flight, the first slot is used again, since its bytes are probably in a core's
            // cache.
            self.next_slot = 0;
        }
        let position = self.next_slot * self.slot_bytes;
        self.place(bytes, position)?;
        self.call(CallKind::Block, position, bytes.len(), offset)?;
        self.next_slot = (self.next_slot + 1) % SLOTS;
        self.under_way += 1;
        Ok(())
    }

    /// Makes the module's process read blocks of a file, which is open for reading, and pass the blocks to the
    /// module in order. Passes the emitted bytes to `output`, and returns the number of blocks that are done. The
    /// process stops early if the module has emitted enough, after a tenth of a second, and before a block that it
    /// can't read (because the last line is longer than 64 KiB, the file became shorter, or reading fails). The
    /// caller then reads such a block and [sends](WasmRun::block) the bytes. Blocks that were sent before are done
    /// first, and must not emit anything. If they may emit, call [settle](WasmRun::settle) first.
    ///
    /// # Errors
    /// Returns the errors of [`WasmRun::block`].
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
        self.call_with_file(
            Call { length: room, blocks: *blocks, ..self.call_of(CallKind::Blocks) },
            Some(file),
        )?;
        let done = self.until_done(&mut |answer, bytes| {
            let Answer { code, place, .. } = *answer;
            let (block, offset, end) = (place.block, place.offset, place.end);
            if block >= blocks.count {
                return Err(io::Error::other("protocol error: results of a block that was not requested"));
            }
            output(BlockPart { block, offset, end, is_last: code == LAST, bytes })
        })?;
        match done.place.block {
            count if count <= blocks.count => Ok(count),
            _ => self
                .stop(self.kernel("its process", "protocol error: more blocks reported than sent"))
                .map(|()| 0),
        }
    }

    /// Waits until the module has processed all blocks, and passes on the emitted bytes.
    ///
    /// # Errors
    /// Returns the errors of [`WasmRun::block`].
    pub fn settle(&mut self, output: Output<'_>) -> Result<()> {
        self.settle_to(&mut plain(output))
    }

    fn settle_to(&mut self, take: AnswerSink<'_>) -> Result<()> {
        self.since = Instant::now();
        while self.under_way > 0 {
            self.until_done(take)?;
        }
        Ok(())
    }

    /// Refuses bytes that are longer than the module's memory.
    fn check_length(&self, bytes: u64, what: &str) -> Result<()> {
        match self.limits.memory_bytes {
            limit if bytes <= limit => Ok(()),
            limit => Err(self.kernel(what, &format!("{bytes} bytes do not fit its memory of {limit} bytes"))),
        }
    }

    /// Makes a module with a [state](WasmResult::State) emit its state, which another instance can then
    /// [merge](WasmRun::merge). Only [`WasmRun::end`] may follow.
    ///
    /// # Errors
    /// Returns the errors of [`WasmRun::block`].
    pub fn state(&mut self, output: Output<'_>) -> Result<()> {
        self.settle_to(&mut nothing)?;
        self.call(CallKind::State, 0, 0, 0)?;
        self.until_done(&mut plain(output)).map(drop)
    }

    /// Merges another instance's state into this instance's state.
    ///
    /// # Errors
    /// - Returns the errors of [`WasmRun::block`].
    /// - Returns [`Error::Kernel`] if the state doesn't fit the module's memory.
    pub fn merge(&mut self, state: &[u8]) -> Result<()> {
        self.settle_to(&mut nothing)?;
        self.check_length(state.len() as u64, "inshore_merge")?;
        self.give(CallKind::Merge, state)
    }

    /// Ends the module, and passes on the rest of the result. A module with a [state](WasmResult::State) emits its
    /// result now.
    ///
    /// # Errors
    /// Returns the errors of [`WasmRun::block`].
    pub fn finish(mut self, output: Output<'_>) -> Result<WasmResponse> {
        self.settle(output)?;
        if self.result == WasmResult::State {
            self.call(CallKind::Finish, 0, 0, 0)?;
            self.until_done(&mut plain(output))?;
        }
        self.end()
    }

    /// Ends the module, and reports the resources used.
    ///
    /// # Errors
    /// - Returns [`Error::Helper`] if the helper process fails.
    /// - Returns [`Error::System`] if the operating system refuses a call.
    pub fn end(mut self) -> Result<WasmResponse> {
        // The process ends when this side of the socket is closed.
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

    /// Returns the last 8 KiB of the module's log.
    pub fn log(&self) -> Vec<u8> {
        self.log.iter().copied().collect()
    }

    /// Makes a call with these bytes, and waits for the call's end.
    fn give(&mut self, kind: CallKind, bytes: &[u8]) -> Result<()> {
        self.slot_bytes = self.slot_bytes.max(bytes.len().next_multiple_of(SLOT_BYTES));
        self.place(bytes, 0)?;
        self.call(kind, 0, bytes.len(), 0)?;
        self.until_done(&mut nothing).map(drop)
    }

    /// Writes bytes to the shared file.
    fn place(&mut self, bytes: &[u8], position: usize) -> Result<()> {
        let room = self.shared.grow(SLOTS * self.slot_bytes);
        room.and_then(|()| self.shared.put(position, bytes)).map_err(Error::system("share a block"))
    }

    fn call(&mut self, kind: CallKind, position: usize, length: usize, offset: i64) -> Result<()> {
        let (position, length) = (position as u64, length as u64);
        self.call_with_file(Call { position, length, offset, ..self.call_of(kind) }, None)
    }

    /// Makes a call without bytes.
    fn call_of(&self, kind: CallKind) -> Call {
        let capacity = (SLOTS * self.slot_bytes) as u64;
        Call { kind, position: 0, length: 0, offset: 0, capacity, blocks: FileBlocks::default() }
    }

    fn call_with_file(&mut self, call: Call, file: Option<BorrowedFd<'_>>) -> Result<()> {
        if self.under_way == 0 {
            self.since = Instant::now();
        }
        self.current = call.kind;
        match call.send(&self.socket, file) {
            Ok(()) => Ok(()),
            // The process may have sent the reason for its end.
            Err(_) => self.until_done(&mut |_, _| Ok(())).and(Err(self.kernel("call", "it has ended"))),
        }
    }

    /// Passes on results until a call has returned, and returns the last answer.
    fn until_done(&mut self, take: AnswerSink<'_>) -> Result<Answer> {
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

    /// Handles an answer, and returns true if the answer ends a call.
    fn take(&mut self, answer: &Answer, payload: &[u8], take: AnswerSink<'_>) -> Result<bool> {
        match answer.say {
            AnswerKind::Emit => {
                self.output_bytes += payload.len() as u64;
                if self.output_bytes > self.limits.output_bytes {
                    return self.stop(Error::Ended(Termination::Output)).map(|()| false);
                }
                let start = Instant::now();
                let result = take(answer, payload);
                // The module's time limit does not count the consumer's delay.
                self.since += start.elapsed();
                result.or_else(|error| self.stop(Error::Output(error))).map(|()| false)
            }
            AnswerKind::Log => {
                self.log.extend(payload);
                self.log.drain(..self.log.len().saturating_sub(LOG_BYTES));
                Ok(false)
            }
            AnswerKind::Done => {
                self.since = Instant::now();
                self.under_way = self.under_way.saturating_sub(1);
                if answer.code < 0 {
                    let reason = format!("it returned the error code {}", answer.code);
                    return self.stop(self.kernel(&self.what(answer), &reason)).map(|()| true);
                }
                Ok(true)
            }
            AnswerKind::Invalid => Err(Error::Module { reason: text(payload) }),
            AnswerKind::Failed => Err(self.kernel(&self.what(answer), &text(payload))),
        }
    }

    /// Returns the name of the call or block to which an answer belongs, for error messages.
    fn what(&self, answer: &Answer) -> String {
        match self.current {
            CallKind::Block | CallKind::Blocks => format!("the block at {}", answer.place.offset),
            asked => asked.name().to_string(),
        }
    }

    /// Ends the module's process, and returns the error.
    fn stop(&mut self, error: Error) -> Result<()> {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.helper.stop();
        Err(error)
    }

    fn kernel(&self, what: &str, reason: &str) -> Error {
        Error::Kernel { what: what.to_string(), reason: reason.to_string() }
    }

    /// Returns the time limit of the current call. If the module's process reads several blocks, the last block
    /// may begin when [`BATCH`] is almost over, so the limit is longer by this time.
    fn allowed(&self) -> Duration {
        self.limits.call + if self.current == CallKind::Blocks { BATCH } else { Duration::ZERO }
    }

    /// Fills `into` with bytes from the module's process, within the time limit of the current call.
    fn read(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            // The limit is checked before each read, so that a module that sends without end is stopped too.
            let left = self.allowed().saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return self.stop(Error::Ended(Termination::Deadline));
            }
            self.socket.set_read_timeout(Some(left.min(TICK))).map_err(Error::system("set a time limit"))?;
            match (&self.socket).read(into) {
                Ok(0) => return self.ended(),
                Ok(length) => into = &mut into[length..],
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    if (self.unwanted)() {
                        return self.stop(Error::Ended(Termination::Cancelled));
                    }
                }
                Err(_) => return self.ended(),
            }
        }
        Ok(())
    }

    /// Returns the reason for an unexpected end of the module's process.
    fn ended(&mut self) -> Result<()> {
        let report = self.report()?;
        let by_memory = self.groups.killed().then_some(Termination::Memory);
        if let Some(why) = report.ended.or(by_memory) {
            return Err(Error::Ended(why));
        }
        let status =
            report.status.map_or("unknown".to_string(), |status| ExitStatus::from_raw(status).to_string());
        Err(self.kernel("its process", &format!("it ended: {status}")))
    }

    fn report(&mut self) -> Result<Report> {
        // The connection to the process is closed, so the process should end soon.
        self.helper.socket.set_read_timeout(Some(GRACE)).map_err(Error::system("set a time limit"))?;
        match self.helper.reply()? {
            Reply::Done(report) => Ok(report),
            Reply::Failed(failure) => Err(failure.into()),
            Reply::Ready => Err(self.kernel("its process", "protocol error: ready reported twice")),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
