//! This code runs in the process of a WebAssembly module: it compiles the module, calls the module's functions,
//! and returns the results. The process is confined before this code runs.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    time::Instant,
};

use memchr::memmem;
use twox_hash::XxHash64;
use wasmtime::{
    Caller, Config, Engine, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder, TypedFunc,
    WasmParams, WasmResults,
};

use super::{
    BATCH,
    blocks::BlockRead,
    unpack::unpack,
    wire::{AnswerKind, BlockId, Call, CallKind, HAS_STATE, Outbox, PAYLOAD_BYTES},
};
use crate::shared::MappedMemory;

/// The version of the interface (imports and exports) between a module and this host.
const ABI: i32 = 1;
/// The size of a module's stack in bytes.
const STACK_BYTES: usize = 1 << 20;
/// The maximum number of elements of each WebAssembly table. The elements are functions that the module can call.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;
const TABLES_MAX: usize = 16;
/// The alignment of blocks in the module's memory, which is a multiple of every page size.
const ALIGN_BYTES: u32 = 64 << 10;
/// The address space that is reserved for a 32-bit memory from the beginning, so that the memory never moves.
const RESERVED_BYTES: u64 = 1 << 32;

/// Says why a run ends.
enum StopReason {
    /// The calling process, at the other end of the socket, has ended.
    Disconnected,
    /// The module is invalid or not a kernel.
    Invalid(String),
    /// The module failed.
    Failed(String),
}

impl From<io::Error> for StopReason {
    fn from(_: io::Error) -> StopReason {
        StopReason::Disconnected
    }
}

fn invalid(error: impl std::fmt::Display) -> StopReason {
    // The alternate format prints all causes of the error. The causes name the import and what is wrong with the
    // import.
    StopReason::Invalid(format!("{error:#}"))
}

fn not_shared(error: io::Error) -> StopReason {
    StopReason::Failed(format!("blocks cannot be shared with its process: {error}"))
}

fn failed(what: &str) -> impl FnOnce(wasmtime::Error) -> StopReason {
    // Only the root cause is reported. The outer errors give only a position in the module's code, without the
    // names of functions.
    move |error| StopReason::Failed(format!("{what}: {}", error.root_cause()))
}

/// Holds the state that host functions use.
struct Host {
    memory: Option<Memory>,
    limits: StoreLimits,
    /// Says why the module must not emit now; none if the module may emit.
    silent: Option<&'static str>,
    /// The range of the shared file in the module's memory, as start and end offset.
    lent: (u32, u32),
    /// The part of this range that holds the current block, which is the only part that the module may use now.
    own: (u32, u32),
    /// Sends answers to the calling process.
    out: Outbox<File>,
}

/// Holds a module that is ready to be called.
struct Instance {
    store: Store<Host>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    init: TypedFunc<(u32, u32), i32>,
    block: TypedFunc<(u32, u32, i64), i32>,
    state: Option<State>,
    /// The mapping of the shared file over a part of the module's memory.
    lent: Option<MappedMemory>,
}

/// Holds the exports of a module with a state.
struct State {
    state: TypedFunc<(), i32>,
    merge: TypedFunc<(u32, u32), i32>,
    finish: TypedFunc<(), i32>,
}

/// Serves calls until the socket is closed. The caller then has to end the process. `socket` carries calls and
/// answers, `shared` holds modules, arguments and blocks.
pub fn work(socket: OwnedFd, shared: OwnedFd, memory_bytes: u64) {
    // `File` makes only system calls that the filter allows.
    let (socket, shared) = (File::from(socket), File::from(shared));
    let mut instance = None;
    let (say, why) = match serve(&socket, &shared, memory_bytes, &mut instance) {
        Ok(()) | Err(StopReason::Disconnected) => return,
        Err(StopReason::Invalid(why)) => (AnswerKind::Invalid, why),
        Err(StopReason::Failed(why)) => (AnswerKind::Failed, why),
    };
    let mut first = None;
    let out = match &mut instance {
        // The results of earlier blocks are sent before the error.
        Some(instance) => instance.out(),
        None => first.insert(Outbox::new(socket)),
    };
    out.say(say, 0, &why.as_bytes()[..why.len().min(PAYLOAD_BYTES)]);
    let _ = out.send();
}

fn serve(
    socket: &File,
    shared: &File,
    memory_bytes: u64,
    instance: &mut Option<Instance>,
) -> Result<(), StopReason> {
    loop {
        let (call, file) = Call::receive(socket)?;
        let code = match (call.kind, &mut *instance) {
            (CallKind::Load, none) => {
                let mut bytes = vec![0; call.length as usize];
                shared.read_exact_at(&mut bytes, call.position)?;
                let loaded = none.insert(Instance::new(&bytes, memory_bytes, socket.try_clone()?)?);
                if loaded.state.is_some() { HAS_STATE } else { 0 }
            }
            (_, None) => return Err(StopReason::Disconnected),
            (CallKind::Blocks, Some(instance)) => {
                let file = File::from(file.ok_or(StopReason::Disconnected)?);
                instance.serve_blocks(shared, &call, &file)?
            }
            (_, Some(instance)) => {
                instance.out().begin(BlockId { offset: call.offset, ..BlockId::default() });
                instance.serve(shared, &call)?
            }
        };
        let out = instance.as_mut().ok_or(StopReason::Disconnected)?.out();
        out.say(AnswerKind::Done, code, &[]);
        out.send()?;
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_simd(true)
        .wasm_relaxed_simd(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .max_wasm_stack(STACK_BYTES)
        // The error message names the kind of trap. A backtrace would not help, since the names of functions are
        // missing.
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .memory_reservation(RESERVED_BYTES)
        .memory_may_move(false)
        // Copy-on-write images need system calls that the filter forbids. They help only from the second instance
        // on, and this process has one instance.
        .memory_init_cow(false);
    config
}

impl Instance {
    fn new(bytes: &[u8], memory_bytes: u64, out: File) -> Result<Instance, StopReason> {
        let engine = Engine::new(&config()).map_err(invalid)?;
        if bytes.starts_with(b"\0asm") && bytes.get(6) == Some(&1) {
            return Err(StopReason::Invalid("found a component, expected a module".to_string()));
        }
        let module = Module::new(&engine, bytes).map_err(invalid)?;
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(memory_bytes).unwrap_or(usize::MAX))
            .table_elements(TABLE_ELEMENTS_MAX)
            .tables(TABLES_MAX)
            .memories(1)
            .instances(1)
            .build();
        let host =
            Host { memory: None, limits, silent: None, lent: (0, 0), own: (0, 0), out: Outbox::new(out) };
        let mut store = Store::new(&engine, host);
        store.limiter(|host| &mut host.limits);
        let linker = linker(&engine).map_err(invalid)?;
        let pre = linker.instantiate_pre(&module).map_err(invalid)?;
        // This runs the module's start function, if the module has one.
        let instance = pre.instantiate(&mut store).map_err(failed("start"))?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| invalid("the module does not export its memory as 'memory'"))?;
        store.data_mut().memory = Some(memory);
        macro_rules! export {
            ($name:literal) => {
                instance
                    .get_typed_func(&mut store, $name)
                    .map_err(|error| invalid(format!("export '{}': {:#}", $name, error)))?
            };
        }
        let abi: TypedFunc<(), i32> = export!("inshore_abi");
        let (alloc, init, block) =
            (export!("inshore_alloc"), export!("inshore_init"), export!("inshore_block"));
        let names = ["inshore_state", "inshore_merge", "inshore_finish"];
        let there = names.map(|name| instance.get_export(&mut store, name).is_some());
        let state = match there {
            [false, false, false] => None,
            [true, true, true] => Some(State {
                state: export!("inshore_state"),
                merge: export!("inshore_merge"),
                finish: export!("inshore_finish"),
            }),
            _ => {
                let has = names.iter().zip(there).filter(|(_, there)| *there);
                let has: Vec<&str> = has.map(|(name, _)| *name).collect();
                let all = names.join(", ");
                let has = has.join(", ");
                return Err(invalid(format!(
                    "it exports {has}; a module exports all of {all}, or none of them"
                )));
            }
        };
        match abi.call(&mut store, ()).map_err(failed("inshore_abi"))? {
            ABI => Ok(Instance { store, memory, alloc, init, block, state, lent: None }),
            other => Err(invalid(format!("inshore_abi returns {other}, expected {ABI}"))),
        }
    }

    fn out(&mut self) -> &mut Outbox<File> {
        &mut self.store.data_mut().out
    }

    /// Reads blocks of a file and passes them to the module, until [`BATCH`] has passed or the module has emitted
    /// enough.
    fn serve_blocks(&mut self, shared: &File, call: &Call, file: &File) -> Result<i32, StopReason> {
        let began = Instant::now();
        let emitted = self.out().emitted_bytes();
        let offset = (call.blocks.base + call.blocks.start) as i64;
        self.out().begin(BlockId { offset, ..BlockId::default() });
        let (at, length) = self.lend(shared, call)?;
        let mut block = 0;
        while block < call.blocks.count {
            let room = &mut self.memory.data_mut(&mut self.store)[at as usize..][..length as usize];
            let lines = match call.blocks.read(file, block, room) {
                BlockRead::Lines(lines) => at + lines.start as u32..at + lines.end as u32,
                BlockRead::Nothing => at..at,
                BlockRead::NotHere => break,
            };
            if !lines.is_empty() {
                let first = call.blocks.start + block * call.blocks.stride;
                let in_file = |place: u32| first + u64::from(place - at);
                let offset = (call.blocks.base + in_file(lines.start)) as i64;
                self.out().begin(BlockId { block, offset, end: in_file(lines.end) });
                self.store.data_mut().own = (lines.start, lines.end);
                let code = self.call_block(lines.start, lines.end - lines.start, offset)?;
                if code < 0 {
                    return Ok(code);
                }
                self.out().end();
            }
            block += 1;
            let is_enough = self.out().emitted_bytes() - emitted >= call.blocks.enough_bytes;
            if is_enough || began.elapsed() >= BATCH {
                break;
            }
        }
        self.out().begin(BlockId { block, ..BlockId::default() });
        Ok(0)
    }

    fn call_block(&mut self, at: u32, length: u32, offset: i64) -> Result<i32, StopReason> {
        let why = "inshore_block emits: a module with a state emits in inshore_finish only";
        let silent = self.state.is_some().then_some(why);
        called(&mut self.store, &self.block, (at, length, offset), "inshore_block", silent)
    }

    /// Calls the function of a loaded module that the call names.
    fn serve(&mut self, shared: &File, call: &Call) -> Result<i32, StopReason> {
        let (at, length) = self.lend(shared, call)?;
        let none = || {
            StopReason::Failed(
                "it has no state: it does not export inshore_state, inshore_merge and inshore_finish"
                    .to_string(),
            )
        };
        if call.kind == CallKind::Block {
            return self.call_block(at, length, call.offset);
        }
        let Instance { store, init, state, .. } = self;
        let of_state = state.as_ref().ok_or_else(none);
        match call.kind {
            CallKind::Load | CallKind::Block | CallKind::Blocks => Err(StopReason::Disconnected),
            CallKind::Init => {
                let why = "inshore_init emits: there was no block yet";
                called(store, init, (at, length), "inshore_init", Some(why))
            }
            CallKind::State => called(store, &of_state?.state, (), "inshore_state", None),
            CallKind::Merge => {
                let why = "inshore_merge emits: a module with a state emits in inshore_finish only";
                called(store, &of_state?.merge, (at, length), "inshore_merge", Some(why))
            }
            CallKind::Finish => called(store, &of_state?.finish, (), "inshore_finish", None),
        }
    }

    /// Maps the used part of the shared file into the module's memory, unless it is mapped already. Returns the
    /// address and length of the call's bytes.
    fn lend(&mut self, shared: &File, call: &Call) -> Result<(u32, u32), StopReason> {
        if call.length == 0 {
            self.store.data_mut().own = (0, 0);
            return Ok((0, 0));
        }
        let too_long =
            || StopReason::Failed(format!("a block of {} bytes does not fit its memory", call.length));
        let capacity = u32::try_from(call.capacity).map_err(|_| too_long())?;
        let (from, to) = self.store.data().lent;
        if capacity > to - from {
            self.lend_more(shared, capacity, too_long)?;
        }
        let end = call.position.checked_add(call.length).filter(|end| *end <= call.capacity);
        end.ok_or(StopReason::Disconnected)?;
        let from = self.store.data().lent.0;
        let (at, length) = (from + call.position as u32, call.length as u32);
        self.store.data_mut().own = (at, at + length);
        Ok((at, length))
    }

    fn lend_more(
        &mut self,
        shared: &File,
        capacity: u32,
        too_long: impl Fn() -> StopReason,
    ) -> Result<(), StopReason> {
        if let Some(lent) = self.lent.take() {
            self.store.data_mut().lent = (0, 0);
            // SAFETY: the module's memory never moves or shrinks, and no reference to it is held between calls.
            unsafe { lent.take_back() }.map_err(not_shared)?;
        }
        let asked = capacity.checked_add(ALIGN_BYTES).ok_or_else(too_long)?;
        self.store.data_mut().silent = Some("inshore_alloc emits, which it must not");
        let at = self.alloc.call(&mut self.store, asked).map_err(failed("inshore_alloc"))?;
        if at == 0 {
            return Err(StopReason::Failed(format!("inshore_alloc returned 0: no room for {asked} bytes")));
        }
        let memory = self.memory.data_mut(&mut self.store);
        let room = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..asked as usize));
        room.ok_or_else(|| {
            StopReason::Failed(format!(
                "inshore_alloc returned {at} for {asked} bytes, which is outside its memory"
            ))
        })?;
        let from = at.next_multiple_of(ALIGN_BYTES);
        let start = self.memory.data_ptr(&self.store).wrapping_add(from as usize);
        // SAFETY: `from` is the start of a page, since the memory itself starts at a page. At least `capacity`
        // bytes of the module's memory follow. The memory never moves or shrinks, and no reference to it is held
        // between calls.
        self.lent =
            Some(unsafe { MappedMemory::lend(start, capacity as usize, shared) }.map_err(not_shared)?);
        self.store.data_mut().lent = (from, from + capacity);
        Ok(())
    }
}

/// Calls a function of the module, which may emit unless `silent` holds a reason.
fn called<P: WasmParams, R: WasmResults>(
    store: &mut Store<Host>,
    function: &TypedFunc<P, R>,
    values: P,
    name: &str,
    silent: Option<&'static str>,
) -> Result<R, StopReason> {
    store.data_mut().silent = silent;
    function.call(store, values).map_err(failed(name))
}

impl Host {
    /// Refuses bytes that lie in the shared range, but not in the current block.
    fn check(&self, at: u32, length: u32) -> Result<(), wasmtime::Error> {
        let end = at.checked_add(length).ok_or_else(|| outside(at, length))?;
        let is_apart = length == 0 || end <= self.lent.0 || at >= self.lent.1;
        if is_apart || at >= self.own.0 && end <= self.own.1 {
            return Ok(());
        }
        Err(wasmtime::Error::msg(format!(
            "{length} bytes at {at} are not in its memory: they belong to another block"
        )))
    }
}

/// The caller of a host function, whose arguments are addresses in the module's memory.
type HostCaller<'a> = Caller<'a, Host>;

/// Returns bytes of the module's memory. They must lie within the memory, and outside the range into which the
/// calling process may be writing the next block.
fn bytes<'a>(caller: &'a HostCaller<'_>, at: u32, length: u32) -> Result<&'a [u8], wasmtime::Error> {
    let host = caller.data();
    let memory = host
        .memory
        .ok_or_else(|| wasmtime::Error::msg("a host function was called before the start of the module"))?;
    host.check(at, length)?;
    let rest = memory.data(caller).get(at as usize..);
    rest.and_then(|rest| rest.get(..length as usize)).ok_or_else(|| outside(at, length))
}

fn outside(at: u32, length: u32) -> wasmtime::Error {
    wasmtime::Error::msg(format!("{length} bytes at {at} are not in its memory"))
}

fn linker(engine: &Engine) -> Result<Linker<Host>, wasmtime::Error> {
    let mut linker = Linker::new(engine);
    linker.func_wrap("inshore", "emit", emit)?;
    linker.func_wrap("inshore", "log", log)?;
    linker.func_wrap(
        "inshore",
        "memmem",
        |caller: HostCaller<'_>, hay: u32, hay_len: u32, needle: u32, needle_len: u32| {
            let (hay, needle) = (bytes(&caller, hay, hay_len)?, bytes(&caller, needle, needle_len)?);
            Ok(memmem::find(hay, needle).map_or(-1, |at| at as i64))
        },
    )?;
    linker.func_wrap("inshore", "hash64", |caller: HostCaller<'_>, at: u32, length: u32, seed: i64| {
        Ok(XxHash64::oneshot(seed as u64, bytes(&caller, at, length)?) as i64)
    })?;
    linker.func_wrap("inshore", "decompress", decompress)?;
    Ok(linker)
}

fn emit(mut caller: HostCaller<'_>, at: u32, length: u32) -> Result<(), wasmtime::Error> {
    if let Some(why) = caller.data().silent {
        return Err(wasmtime::Error::msg(why));
    }
    // The bytes are checked first and borrowed again afterwards, since the second borrow also includes the outbox.
    bytes(&caller, at, length)?;
    let memory = caller.data().memory.expect("looked at just now");
    let (memory, host) = memory.data_and_store_mut(&mut caller);
    Ok(host.out.emit(&memory[at as usize..][..length as usize])?)
}

/// Decompresses bytes of the module's memory into another range of the memory.
fn decompress(
    mut caller: HostCaller<'_>,
    from: u32,
    from_len: u32,
    to: u32,
    to_len: u32,
) -> Result<i64, wasmtime::Error> {
    bytes(&caller, from, from_len)?;
    bytes(&caller, to, to_len)?;
    let (from, to) =
        (from as usize..from as usize + from_len as usize, to as usize..to as usize + to_len as usize);
    let memory = caller.data().memory.expect("looked at just now").data_mut(&mut caller);
    let (packed, room) = if from.end <= to.start {
        let (before, behind) = memory.split_at_mut(to.start);
        (&before[from], &mut behind[..to_len as usize])
    } else if to.end <= from.start {
        let (before, behind) = memory.split_at_mut(from.start);
        (&behind[..from_len as usize], &mut before[to])
    } else {
        return Err(wasmtime::Error::msg("decompress: the input and the output overlap"));
    };
    Ok(unpack(packed, room).map_or_else(|error| error as i64, |length| length as i64))
}

fn log(mut caller: HostCaller<'_>, at: u32, length: u32) -> Result<(), wasmtime::Error> {
    bytes(&caller, at, length)?;
    let memory = caller.data().memory.expect("looked at just now");
    let (memory, host) = memory.data_and_store_mut(&mut caller);
    let text = &memory[at as usize..][..length as usize];
    host.out.say(AnswerKind::Log, 0, &text[..text.len().min(PAYLOAD_BYTES)]);
    // The log is sent at once, since it may explain why the module never returned.
    Ok(host.out.send()?)
}
