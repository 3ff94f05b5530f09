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
};

use super::wire::{Answer, Ask, Call, PAYLOAD_BYTES, Say};

/// The version of what a module imports and exports.
const ABI: i32 = 1;
/// Bytes of a module's stack.
const STACK_BYTES: usize = 1 << 20;
/// Elements of each of its tables, which hold functions to call.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;
const TABLES_MAX: usize = 16;
/// Buffers for blocks are multiples of this, so that a somewhat longer block doesn't take a new one.
const BUFFER_BYTES: u32 = 64 << 10;

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

fn failed(what: &str) -> impl FnOnce(wasmtime::Error) -> Stop {
    // The root says what, what is around it says where in the module's code, which has no names.
    move |error| Stop::Failed(format!("{what}: {}", error.root_cause()))
}

/// What host functions use.
struct Host {
    memory: Option<Memory>,
    limits: StoreLimits,
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
    finish: TypedFunc<(), i32>,
    /// Where blocks go, and how long they may be there.
    buffer: (u32, u32),
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
                *none = Some(Instance::new(&bytes, memory_bytes, socket.try_clone()?)?);
                0
            }
            (_, None) => return Err(Stop::Alone),
            (Ask::Init, Some(instance)) => instance.call_init(shared, &call)?,
            (Ask::Block, Some(instance)) => instance.call_block(shared, &call)?,
            (Ask::Finish, Some(instance)) => {
                instance.finish.call(&mut instance.store, ()).map_err(failed("inshore_finish"))?
            }
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
        let host = Host { memory: None, limits, out, gathered: Vec::with_capacity(PAYLOAD_BYTES) };
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
        let (alloc, init, block, finish) = (
            export!("inshore_alloc"),
            export!("inshore_init"),
            export!("inshore_block"),
            export!("inshore_finish"),
        );
        match abi.call(&mut store, ()).map_err(failed("inshore_abi"))? {
            ABI => Ok(Instance { store, memory, alloc, init, block, finish, buffer: (0, 0) }),
            other => Err(not_ours(format!("inshore_abi gives {other}, expected {ABI}"))),
        }
    }

    fn call_init(&mut self, shared: &File, call: &Call) -> Result<i32, Stop> {
        let (at, length) = self.put(shared, call)?;
        self.init.call(&mut self.store, (at, length)).map_err(failed("inshore_init"))
    }

    fn call_block(&mut self, shared: &File, call: &Call) -> Result<i32, Stop> {
        let (at, length) = self.put(shared, call)?;
        self.block.call(&mut self.store, (at, length, call.offset)).map_err(failed("inshore_block"))
    }

    /// Reads from the shared file into the module's memory.
    fn put(&mut self, shared: &File, call: &Call) -> Result<(u32, u32), Stop> {
        let too_long = || Stop::Failed(format!("a block of {} bytes doesn't fit its memory", call.length));
        let length = u32::try_from(call.length).map_err(|_| too_long())?;
        if length > self.buffer.1 {
            let asked = length.checked_next_multiple_of(BUFFER_BYTES).ok_or_else(too_long)?;
            let at = self.alloc.call(&mut self.store, asked).map_err(failed("inshore_alloc"))?;
            if at == 0 {
                return Err(Stop::Failed(format!("inshore_alloc has no room for {asked} bytes")));
            }
            self.buffer = (at, asked);
        }
        let at = self.buffer.0;
        let memory = self.memory.data_mut(&mut self.store);
        let room = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..length as usize));
        let room = room.ok_or_else(|| {
            Stop::Failed(format!("inshore_alloc gave {at} for {length} bytes, which isn't in its memory"))
        })?;
        shared.read_exact_at(room, call.position)?;
        Ok((at, length))
    }
}

impl Host {
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

/// The bytes that a module speaks of, checked.
fn bytes<'a>(caller: &'a HostCaller<'_>, at: u32, length: u32) -> Result<&'a [u8], wasmtime::Error> {
    let memory = caller.data().memory.ok_or_else(|| wasmtime::Error::msg("called before it was started"))?;
    let rest = memory.data(caller).get(at as usize..);
    rest.and_then(|rest| rest.get(..length as usize))
        .ok_or_else(|| wasmtime::Error::msg(format!("{length} bytes at {at} are not in its memory")))
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
    Ok(linker)
}

fn emit(mut caller: HostCaller<'_>, at: u32, length: u32) -> Result<(), wasmtime::Error> {
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

fn log(caller: HostCaller<'_>, at: u32, length: u32) -> Result<(), wasmtime::Error> {
    let text = bytes(&caller, at, length)?;
    let text = &text[..text.len().min(PAYLOAD_BYTES)];
    Ok(Answer::write(Say::Log, 0, text, &caller.data().out)?)
}
