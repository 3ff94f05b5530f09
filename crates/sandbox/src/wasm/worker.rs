//! The module's side, in its process: compiles, calls, and hands results back. It's already contained when this begins.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::FileExt},
};

use memchr::memmem;
use twox_hash::XxHash64;
use wasmtime::{
    Caller, Config, Engine, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder, TypedFunc,
    WasmParams, WasmResults,
};

use super::{
    shared::Lent,
    unpack::unpack,
    wire::{Answer, Ask, Call, HAS_STATE, PAYLOAD_BYTES, Say},
};

/// The version of what a module imports and exports.
const ABI: i32 = 1;
/// Bytes of a module's stack.
const STACK_BYTES: usize = 1 << 20;
/// Elements of each of its tables, which hold functions to call.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;
const TABLES_MAX: usize = 16;
/// Where blocks lie begins at a multiple of this, which is one of every size of pages too.
const ALIGN_BYTES: u32 = 64 << 10;
/// Memory of 32-bit addresses is reserved at once, so that it never moves.
const RESERVED_BYTES: u64 = 1 << 32;

/// Why a run ends.
enum Stop {
    /// The other side is gone.
    Alone,
    /// The module isn't one of ours.
    NotOurs(String),
    /// The module did something that ends it.
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        Stop::Alone
    }
}

fn not_ours(error: impl std::fmt::Display) -> Stop {
    // With causes: which import, and what is wrong with it.
    Stop::NotOurs(format!("{error:#}"))
}

fn not_shared(error: io::Error) -> Stop {
    Stop::Failed(format!("blocks can't be shared with it: {error}"))
}

fn failed(what: &str) -> impl FnOnce(wasmtime::Error) -> Stop {
    // The root says what, what is around it says where in the module's code, which has no names.
    move |error| Stop::Failed(format!("{what}: {}", error.root_cause()))
}

/// What host functions use.
struct Host {
    memory: Option<Memory>,
    limits: StoreLimits,
    /// Why nothing may be emitted now; none where it may.
    silent: Option<&'static str>,
    /// Where the shared file lies in its memory: from, to.
    lent: (u32, u32),
    /// What of it is the module's now.
    own: (u32, u32),
    /// To the other side.
    out: File,
    /// Results that haven't been sent.
    gathered: Vec<u8>,
}

/// A module that is ready to be called.
struct Instance {
    store: Store<Host>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    init: TypedFunc<(u32, u32), i32>,
    block: TypedFunc<(u32, u32, i64), i32>,
    state: Option<State>,
    /// Where blocks lie.
    lent: Option<Lent>,
}

/// What a module exports that has a state.
struct State {
    state: TypedFunc<(), i32>,
    merge: TypedFunc<(u32, u32), i32>,
    finish: TypedFunc<(), i32>,
}

/// Serves calls until there are no more; then the process is to end. `socket` is for calls and answers, `shared` holds
/// modules, arguments and blocks.
pub fn work(socket: OwnedFd, shared: OwnedFd, memory_bytes: u64) {
    // As files: reads and writes are then the only system calls that it takes.
    let (socket, shared) = (File::from(socket), File::from(shared));
    let (say, why) = match serve(&socket, &shared, memory_bytes) {
        Ok(()) | Err(Stop::Alone) => return,
        Err(Stop::NotOurs(why)) => (Say::NotOurs, why),
        Err(Stop::Failed(why)) => (Say::Failed, why),
    };
    let why = &why.as_bytes()[..why.len().min(PAYLOAD_BYTES)];
    let _ = Answer::write(say, 0, why, &socket);
}

fn serve(socket: &File, shared: &File, memory_bytes: u64) -> Result<(), Stop> {
    let mut instance = None;
    loop {
        let call = Call::read(socket)?;
        let code = match (call.ask, &mut instance) {
            (Ask::Load, none) => {
                let mut bytes = vec![0; call.length as usize];
                shared.read_exact_at(&mut bytes, call.position)?;
                let loaded = none.insert(Instance::new(&bytes, memory_bytes, socket.try_clone()?)?);
                if loaded.state.is_some() { HAS_STATE } else { 0 }
            }
            (_, None) => return Err(Stop::Alone),
            (_, Some(instance)) => instance.serve(shared, &call)?,
        };
        if let Some(instance) = &mut instance {
            instance.store.data_mut().send()?;
        }
        Answer::write(Say::Done, code, &[], socket)?;
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
        // What a trap was is said; where, only names could tell.
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .memory_reservation(RESERVED_BYTES)
        .memory_may_move(false)
        // Would take system calls that it doesn't have, for instances beyond the first, of which there are none.
        .memory_init_cow(false);
    config
}

impl Instance {
    fn new(bytes: &[u8], memory_bytes: u64, out: File) -> Result<Instance, Stop> {
        let engine = Engine::new(&config()).map_err(not_ours)?;
        if bytes.starts_with(b"\0asm") && bytes.get(6) == Some(&1) {
            return Err(Stop::NotOurs("a component; expected a module".to_string()));
        }
        let module = Module::new(&engine, bytes).map_err(not_ours)?;
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(memory_bytes).unwrap_or(usize::MAX))
            .table_elements(TABLE_ELEMENTS_MAX)
            .tables(TABLES_MAX)
            .memories(1)
            .instances(1)
            .build();
        let host = Host {
            memory: None,
            limits,
            silent: None,
            lent: (0, 0),
            own: (0, 0),
            out,
            gathered: Vec::with_capacity(PAYLOAD_BYTES),
        };
        let mut store = Store::new(&engine, host);
        store.limiter(|host| &mut host.limits);
        let linker = linker(&engine).map_err(not_ours)?;
        let pre = linker.instantiate_pre(&module).map_err(not_ours)?;
        // Runs its start function, if it has one.
        let instance = pre.instantiate(&mut store).map_err(failed("start"))?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| not_ours("no memory is exported as 'memory'"))?;
        store.data_mut().memory = Some(memory);
        macro_rules! export {
            ($name:literal) => {
                instance
                    .get_typed_func(&mut store, $name)
                    .map_err(|error| not_ours(format!("export '{}': {:#}", $name, error)))?
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
                return Err(not_ours(format!("it exports {has}: a module has all of {all}, or none")));
            }
        };
        match abi.call(&mut store, ()).map_err(failed("inshore_abi"))? {
            ABI => Ok(Instance { store, memory, alloc, init, block, state, lent: None }),
            other => Err(not_ours(format!("inshore_abi gives {other}, expected {ABI}"))),
        }
    }

    /// Does what is asked of a module that was loaded.
    fn serve(&mut self, shared: &File, call: &Call) -> Result<i32, Stop> {
        let (at, length) = self.lend(shared, call)?;
        let none = || Stop::Failed("it has no state, and was asked for one".to_string());
        let Instance { store, init, block, state, .. } = self;
        let has_state = state.is_some();
        let of_state = state.as_ref().ok_or_else(none);
        match call.ask {
            Ask::Load => Err(Stop::Alone),
            Ask::Init => {
                let why = "inshore_init emits: it was given nothing yet";
                called(store, init, (at, length), "inshore_init", Some(why))
            }
            Ask::Block => {
                let why =
                    "inshore_block emits: what a module with a state has to say comes from inshore_finish";
                called(store, block, (at, length, call.offset), "inshore_block", has_state.then_some(why))
            }
            Ask::State => called(store, &of_state?.state, (), "inshore_state", None),
            Ask::Merge => {
                let why = "inshore_merge emits: what comes of it is told by inshore_finish";
                called(store, &of_state?.merge, (at, length), "inshore_merge", Some(why))
            }
            Ask::Finish => called(store, &of_state?.finish, (), "inshore_finish", None),
        }
    }

    /// Has the shared file lie in the module's memory, as far as it's used, and gives the place of the bytes that a call is
    /// about.
    fn lend(&mut self, shared: &File, call: &Call) -> Result<(u32, u32), Stop> {
        if call.length == 0 {
            self.store.data_mut().own = (0, 0);
            return Ok((0, 0));
        }
        let too_long = || Stop::Failed(format!("a block of {} bytes doesn't fit its memory", call.length));
        let capacity = u32::try_from(call.capacity).map_err(|_| too_long())?;
        let (from, to) = self.store.data().lent;
        if capacity > to - from {
            self.lend_more(shared, capacity, too_long)?;
        }
        let end = call.position.checked_add(call.length).filter(|end| *end <= call.capacity);
        end.ok_or(Stop::Alone)?;
        let from = self.store.data().lent.0;
        let (at, length) = (from + call.position as u32, call.length as u32);
        self.store.data_mut().own = (at, at + length);
        Ok((at, length))
    }

    fn lend_more(&mut self, shared: &File, capacity: u32, too_long: impl Fn() -> Stop) -> Result<(), Stop> {
        if let Some(lent) = self.lent.take() {
            self.store.data_mut().lent = (0, 0);
            // SAFETY: the module's memory never moves or shrinks, and nobody holds a reference to it between calls.
            unsafe { lent.take_back() }.map_err(not_shared)?;
        }
        let asked = capacity.checked_add(ALIGN_BYTES).ok_or_else(too_long)?;
        self.store.data_mut().silent = Some("inshore_alloc emits");
        let at = self.alloc.call(&mut self.store, asked).map_err(failed("inshore_alloc"))?;
        if at == 0 {
            return Err(Stop::Failed(format!("inshore_alloc has no room for {asked} bytes")));
        }
        let memory = self.memory.data_mut(&mut self.store);
        let room = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..asked as usize));
        room.ok_or_else(|| {
            Stop::Failed(format!("inshore_alloc gave {at} for {asked} bytes, which isn't in its memory"))
        })?;
        let from = at.next_multiple_of(ALIGN_BYTES);
        let start = self.memory.data_ptr(&self.store).wrapping_add(from as usize);
        // SAFETY: from `from` on, which begins a page as the memory itself does, there are at least `capacity` bytes of the
        // module's memory, which never moves or shrinks; nobody holds a reference to it between calls.
        self.lent = Some(unsafe { Lent::lend(start, capacity as usize, shared) }.map_err(not_shared)?);
        self.store.data_mut().lent = (from, from + capacity);
        Ok(())
    }
}

/// Calls one of its functions, which may emit unless a reason is given why not.
fn called<P: WasmParams, R: WasmResults>(
    store: &mut Store<Host>,
    function: &TypedFunc<P, R>,
    values: P,
    name: &str,
    silent: Option<&'static str>,
) -> Result<R, Stop> {
    store.data_mut().silent = silent;
    function.call(store, values).map_err(failed(name))
}

impl Host {
    /// Refuses bytes that lie where blocks do, but not in the present one.
    fn check(&self, at: u32, length: u32) -> Result<(), wasmtime::Error> {
        let end = at.checked_add(length).ok_or_else(|| outside(at, length))?;
        let is_apart = length == 0 || end <= self.lent.0 || at >= self.lent.1;
        if is_apart || at >= self.own.0 && end <= self.own.1 {
            return Ok(());
        }
        Err(wasmtime::Error::msg(format!(
            "{length} bytes at {at} are not in its memory: they are another block's"
        )))
    }

    /// Sends what was gathered.
    fn send(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            Answer::write(Say::Emit, 0, &self.gathered, &self.out)?;
            self.gathered.clear();
        }
        self.out.flush()
    }
}

/// A function that a module calls with bytes of its own memory.
type HostCaller<'a> = Caller<'a, Host>;

/// The bytes that a module speaks of, checked: in its memory, and not where our process may be writing the next block.
fn bytes<'a>(caller: &'a HostCaller<'_>, at: u32, length: u32) -> Result<&'a [u8], wasmtime::Error> {
    let host = caller.data();
    let memory = host.memory.ok_or_else(|| wasmtime::Error::msg("called before it was started"))?;
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
    // Looked at before anything is done, then taken piece by piece, since it lies beside what it is gathered into.
    bytes(&caller, at, length)?;
    let memory = caller.data().memory.expect("looked at just now");
    let (memory, host) = memory.data_and_store_mut(&mut caller);
    let mut rest = &memory[at as usize..][..length as usize];
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(PAYLOAD_BYTES - host.gathered.len()));
        host.gathered.extend_from_slice(now);
        rest = later;
        if host.gathered.len() == PAYLOAD_BYTES {
            host.send()?;
        }
    }
    Ok(())
}

/// Unpacks what lies at one place to another.
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
        return Err(wasmtime::Error::msg("decompress: what is unpacked lies where it is unpacked to"));
    };
    Ok(unpack(packed, room).map_or_else(|error| error as i64, |length| length as i64))
}

fn log(caller: HostCaller<'_>, at: u32, length: u32) -> Result<(), wasmtime::Error> {
    let text = bytes(&caller, at, length)?;
    let text = &text[..text.len().min(PAYLOAD_BYTES)];
    Ok(Answer::write(Say::Log, 0, text, &caller.data().out)?)
}
