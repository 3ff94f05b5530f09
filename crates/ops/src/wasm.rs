//! WebAssembly kernels: modules of users that run over local files, or on the nodes that hold the files.
//!
//! The nouns: a [`Module`] is code with a name; a [`WasmKernel`] is a module with its arguments, as a kernel of
//! the crate [`kernel`](inshore_kernel).
//!
//! ```text
//!   locally:    sources ─► run ─► instance for each worker ─► parts in order, or merged states ─► output
//!   on nodes:   the same on each node ─► parts or a state over the network ─► ordered or merged by the client ─► output
//! ```
//!
//! Each instance is a process of its own ([`sandbox`](inshore_sandbox)). The process reads files in the page
//! cache itself, and receives the blocks of all other sources. `docs/kernels-wasm.md` lists the exports of a
//! module. A request to a node carries the module, or only the name of a pushed module, which lies in a
//! dataset whose name ends with `.wasm`. In both cases the request carries the SHA-256 of the module, so that
//! all nodes run the same code.
//!
//! Memory: half of the free budget is for instances, the other half for reading. There is one instance for
//! each thread if each gets 64 MiB, otherwise fewer. 48 MiB of each share are for the process (compiler and
//! runtime, of which about 20 MiB are used); the module may use the rest.

#[cfg(feature = "nodes")]
mod nodes;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use inshore_kernel::{
    Block, Border, Error as ReadError, Event, FileBlocks, Kernel, MAP, Next, Portable, RequiredRight, SPREAD,
    Source, run, smallest_memory_bytes,
};
use inshore_sandbox::{
    BlockPart, Error as SandboxError, Helper, Policy, Sandbox, WasmLimits, WasmResponse, WasmResult, WasmRun,
};
use inshore_store::{Context, FileReader, Job, Reservation, Store, format_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[cfg(feature = "nodes")]
pub use self::nodes::{WebAssembly, run_wasm_on_nodes};

/// The name of this work in requests.
pub const WASM: &str = "wasm";
/// The ending of the names of datasets that hold modules.
pub const ENDING: &str = ".wasm";
/// The maximal size of a module in bytes, since a request carries the module.
pub const MODULE_BYTES_MAX: u64 = 8 << 20;

const MIB: u64 = 1 << 20;
/// The memory of an instance's process beside the memory of the module.
const OWN_BYTES: u64 = 48 * MIB;
/// The smallest memory of an instance.
const SHARE_BYTES_MIN: u64 = 64 * MIB;
/// The maximal memory of a module.
const MODULE_MEMORY_BYTES_MAX: u64 = 1024 * MIB;
/// The maximal time of one call into a module: for a block, at the start, or at the end.
const CALL: Duration = Duration::from_secs(20);
/// The maximal duration of an instance. Instances usually end with their job.
const WALL: Duration = Duration::from_secs(365 * 86_400);
/// A batch of blocks ends when its output reaches the maximal output of one block, divided by this number.
const ENOUGH: u64 = 4;
/// The size of a block in bytes. Smaller blocks are copied more slowly by the system; larger blocks do not
/// fit into the cache of a core.
const BLOCK_BYTES: usize = 512 << 10;

/// The result of running a kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of running a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading a source, the store or a node failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The module or its sandbox failed.
    #[error("kernel {name}: {source}")]
    Sandbox {
        /// The module's name.
        name: String,
        /// The failure of the module.
        source: SandboxError,
    },
    /// The module is invalid, or requires more than its limits.
    #[error("kernel {name}: {what}")]
    Kernel {
        /// The module's name.
        name: String,
        /// The reason.
        what: String,
    },
    /// The receiver of the result failed.
    #[error("cannot write the result of a kernel: {0}")]
    Write(#[source] io::Error),
}

impl Error {
    /// Returns true if the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Read(error) if error.is_cancelled())
    }
}

impl From<inshore_store::Error> for Error {
    fn from(error: inshore_store::Error) -> Error {
        Error::Read(error.into())
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        inshore_store::Error::from(error).into()
    }
}

/// The code of a kernel, with a name.
#[derive(Clone, Debug)]
pub struct Module {
    /// The name of the module, without an ending.
    pub name: String,
    /// The code in WebAssembly's binary format.
    pub bytes: Arc<[u8]>,
    /// True if nodes have a pushed module of this name.
    pub is_pushed: bool,
}

impl Module {
    /// Returns a module of these bytes.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the module is larger than [`MODULE_BYTES_MAX`].
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Result<Module> {
        let module = Module { name: name.into(), bytes: bytes.into(), is_pushed: false };
        match module.bytes.len() as u64 {
            0..=MODULE_BYTES_MAX => Ok(module),
            bytes => Err(module.bad(&format!(
                "it has {}, more than the limit of {}",
                format_bytes(bytes),
                format_bytes(MODULE_BYTES_MAX)
            ))),
        }
    }

    /// Reads the module that was pushed into the job's store under this name.
    ///
    /// # Errors
    /// [`inshore_store::Error::NotFound`]; [`Error::Kernel`] if the dataset is not a module.
    pub fn stored(job: &Job, name: &str) -> Result<Module> {
        let dataset = job.store().dataset(&dataset_of(name))?;
        let is_module = |file: &&str| dataset.kind() != SPREAD || *file != MAP;
        let files: Vec<&str> = dataset.file_names().filter(is_module).collect();
        let none = |what: &str| Error::Kernel { name: name.to_string(), what: what.to_string() };
        let [file] = files[..] else { return Err(none("the dataset of this name has several files")) };
        let file = dataset.file(file).expect("it has this name");
        if file.len() > MODULE_BYTES_MAX {
            return Err(none("the dataset of this name is too large for a kernel"));
        }
        let _memory = job.budget().reserve(file.len() + MIB, "a module")?;
        let mut reader = FileReader::new(job, &file, 0..file.len(), 256 << 10)?;
        let mut bytes = Vec::with_capacity(file.len() as usize);
        while let Some(piece) = reader.next_piece()? {
            bytes.extend_from_slice(piece);
        }
        Ok(Module { is_pushed: true, ..Module::new(name, bytes)? })
    }

    /// Writes the module into the job's store under its name.
    ///
    /// # Errors
    /// [`inshore_store::Error::NameExists`], and errors of writing to the store.
    pub fn put(&self, store: &Store, job: &Job) -> Result<()> {
        let mut builder = store.create_dataset(job, &dataset_of(&self.name), inshore_store::BYTES)?;
        let mut writer = builder.file_with_buffers(inshore_store::BYTES, 4096, 1 << 20, 2)?;
        writer.write(&self.bytes)?;
        builder.add(writer)?;
        Ok(builder.commit(&[])?)
    }

    /// Returns the SHA-256 of the module in hexadecimal.
    pub fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bad(&self, what: &str) -> Error {
        Error::Kernel { name: self.name.clone(), what: what.to_string() }
    }
}

/// Returns the name of the dataset that holds the module of this name.
pub fn dataset_of(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// The arguments of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arguments {
    /// The module's name.
    name: String,
    /// The SHA-256 of the module.
    sha256: String,
    /// The module in base 64, unless the node has the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// The arguments of the module.
    args: String,
}

impl Arguments {
    /// Returns the kernel of the request: from the module in the request, or from the job's store.
    fn kernel(&self, job: Option<&Job>) -> Result<WasmKernel> {
        let Arguments { name, sha256, module, args } = self;
        let bad = |what: &str| Error::Kernel { name: name.clone(), what: what.to_string() };
        let module = match (module, job) {
            (Some(text), _) => {
                let bytes = BASE64_STANDARD
                    .decode(text)
                    .map_err(|_| bad("the request has a module that is not in base 64"))?;
                Module::new(name, bytes)?
            }
            (None, Some(job)) => Module::stored(job, name)?,
            (None, None) => {
                return Err(bad("the request has only a name, and there is no store to find the kernel in"));
            }
        };
        if module.sha256() != *sha256 {
            return Err(bad("another kernel has this name here: push the kernel again, or run its file"));
        }
        Ok(WasmKernel::new(module, args))
    }
}

/// A module with its arguments.
pub struct WasmKernel {
    module: Module,
    args: String,
    sandbox: Sandbox,
    block_bytes: usize,
    prepared: OnceLock<Prepared>,
}

impl std::fmt::Debug for WasmKernel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WasmKernel").field("module", &self.module.name).finish_non_exhaustive()
    }
}

/// The instances and the memory that is reserved for them.
struct Prepared {
    limits: WasmLimits,
    result: WasmResult,
    /// The maximal output of a block in bytes.
    part_bytes_max: u64,
    instances: Vec<Mutex<Instance>>,
    next: AtomicUsize,
    _memory: Reservation,
}

/// A slot for an instance.
enum Instance {
    /// Not yet started.
    None,
    Runs(Box<WasmRun>),
    /// The instance failed, with the reason.
    Failed(String),
}

/// The resources that running a kernel took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WasmSummary {
    /// The number of instances of the module.
    pub instances: u64,
    /// The processor time of all instances, compilation included.
    pub cpu_seconds: f64,
    /// The largest memory of one instance.
    pub memory_bytes_max: u64,
    /// The end of the log of all instances.
    pub log: String,
    /// The size of the result in bytes.
    pub output_bytes: u64,
    /// The active protections of the sandbox.
    pub protections: String,
}

impl WasmSummary {
    fn add(&mut self, response: &WasmResponse) {
        self.instances += 1;
        self.cpu_seconds += (response.user + response.system).as_secs_f64();
        self.memory_bytes_max = self.memory_bytes_max.max(response.memory_bytes_max);
        self.log.push_str(&String::from_utf8_lossy(&response.log));
        self.protections = response.active.to_string();
    }
}

/// A function that receives the bytes of a result.
pub type Output<'a> = &'a mut (dyn FnMut(&[u8]) -> io::Result<()> + Send);

/// Returns the smallest budget in bytes for a kernel with this number of threads.
pub fn smallest_wasm_memory_bytes(threads: usize) -> u64 {
    let reading = smallest_memory_bytes(threads) + (threads * BLOCK_BYTES * 2) as u64;
    SHARE_BYTES_MIN + threads as u64 * (MIB + MIB / ENOUGH) + reading + 4 * MIB
}

impl WasmKernel {
    /// Returns a kernel that runs a module with these arguments. The current program has to begin with
    /// [`inshore_sandbox::child_main_if_asked`].
    pub fn new(module: Module, args: &str) -> WasmKernel {
        WasmKernel {
            module,
            args: args.to_string(),
            sandbox: Sandbox::new(Helper::own(), Policy::default()),
            block_bytes: BLOCK_BYTES,
            prepared: OnceLock::new(),
        }
    }

    /// Returns the same kernel, run by another program.
    #[must_use]
    pub fn with_helper(mut self, helper: Helper) -> WasmKernel {
        self.sandbox.helper = helper;
        self
    }

    /// Returns the same kernel with another block size, which does not change the result.
    #[must_use]
    pub fn with_blocks(mut self, bytes: usize) -> WasmKernel {
        self.block_bytes = bytes;
        self
    }

    /// Checks that the module can run, and returns the kind of its result.
    ///
    /// # Errors
    /// [`Error::Sandbox`].
    pub fn check(&self) -> Result<WasmResult> {
        let limits =
            WasmLimits { call: CALL, memory_bytes: MODULE_MEMORY_BYTES_MAX, ..WasmLimits::default() };
        self.sandbox.check_wasm(&self.module.bytes, &limits).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: SandboxError) -> Error {
        match source {
            SandboxError::Ended(inshore_sandbox::Termination::Cancelled) => {
                inshore_store::Error::Cancelled.into()
            }
            SandboxError::Output(error) => Error::Write(error),
            source => Error::Sandbox { name: self.module.name.clone(), source },
        }
    }

    /// Reserves memory for all instances before reading starts, and starts the first instance.
    fn prepare(&self, job: &Context) -> Result<&Prepared> {
        let (budget, threads) = (job.budget(), job.budget().threads());
        let given = budget.free_bytes();
        let what = || format!("a WebAssembly kernel with {threads} threads");
        budget.need(smallest_wasm_memory_bytes(threads), what)?;
        let part_bytes_max = (given / 16 / threads as u64).clamp(MIB, 64 * MIB);
        let half = (given / 2).max(SHARE_BYTES_MIN);
        let instances = (half / SHARE_BYTES_MIN).clamp(1, threads as u64);
        let share = (half / instances).min(OWN_BYTES + MODULE_MEMORY_BYTES_MAX);
        // The output of one block that is being made, and the other outputs of the same batch.
        let parts = part_bytes_max + part_bytes_max / ENOUGH;
        let memory = instances * share + threads as u64 * parts;
        let memory = budget.reserve(memory, "instances of a WebAssembly kernel")?;
        let limits = WasmLimits {
            memory_bytes: share - OWN_BYTES,
            own_bytes: OWN_BYTES,
            call: CALL,
            wall: WALL,
            output_bytes: u64::MAX,
        };
        let first = self.start(job, &limits)?;
        let result = first.result();
        let mut places = vec![Mutex::new(Instance::Runs(Box::new(first)))];
        places.resize_with(instances as usize, || Mutex::new(Instance::None));
        let next = AtomicUsize::new(0);
        let prepared = Prepared { limits, result, part_bytes_max, instances: places, next, _memory: memory };
        Ok(self.prepared.get_or_init(|| prepared))
    }

    fn start(&self, job: &Context, limits: &WasmLimits) -> Result<WasmRun> {
        let cancel = job.cancel().clone();
        let unwanted = Box::new(move || cancel.is_cancelled());
        let (module, args) = (&self.module.bytes, self.args.as_bytes());
        let started = self.sandbox.start_wasm_while_wanted(module, args, limits, unwanted);
        started.map_err(|source| self.failed(source))
    }

    fn prepared(&self) -> &Prepared {
        self.prepared.get().expect("prepared before anything is read")
    }

    /// Returns the running instance of a slot.
    fn running<'a>(&self, place: &'a mut Instance) -> Result<&'a mut WasmRun> {
        match place {
            Instance::Runs(run) => Ok(run),
            Instance::Failed(what) => Err(self.module.bad(what)),
            Instance::None => unreachable!("started with its worker"),
        }
    }

    /// Converts the outcome of a call; after an error the slot holds a failed instance.
    fn ended<T>(
        &self,
        place: &mut Instance,
        ended: std::result::Result<T, SandboxError>,
        emitted: &Emitted,
    ) -> Result<T> {
        ended.map_err(|source| {
            let Some(offset) = emitted.is_full else {
                *place = Instance::Failed(source.to_string());
                return self.failed(source);
            };
            let most = format_bytes(emitted.limit);
            let what = format!("it emits more than {most} for the block at {offset}: raise --memory");
            *place = Instance::Failed(what.clone());
            self.module.bad(&what)
        })
    }

    /// Merges the states of all instances into the first instance, and returns that instance with the
    /// resources of all others.
    fn merge(&self, job: &Context) -> Result<(Box<WasmRun>, WasmSummary)> {
        let prepared = self.prepared();
        let mut summary = WasmSummary::default();
        let (first, others) = prepared.instances.split_first().expect("there is one");
        let mut first = self.take(first)?.expect("the first was started");
        for other in others {
            let Some(mut other) = self.take(other)? else { continue };
            let state = self.state(job, &mut other)?;
            summary.add(&other.end().map_err(|source| self.failed(source))?);
            first.merge(&state.bytes).map_err(|source| self.failed(source))?;
        }
        Ok((first, summary))
    }

    /// Takes an instance out of its slot.
    fn take(&self, place: &Mutex<Instance>) -> Result<Option<Box<WasmRun>>> {
        match std::mem::replace(&mut *lock(place), Instance::None) {
            Instance::Runs(run) => Ok(Some(run)),
            Instance::Failed(what) => Err(self.module.bad(&what)),
            Instance::None => Ok(None),
        }
    }

    /// Copies the state out of an instance.
    fn state(&self, job: &Context, run: &mut WasmRun) -> Result<State> {
        let limit = self.prepared().limits.memory_bytes;
        let mut state =
            State { bytes: Vec::new(), memory: job.budget().reserve(0, "the state of a kernel")? };
        let mut failed = None;
        let done = run.state(&mut |bytes: &[u8]| {
            let added = state.add(bytes, limit);
            added.map_err(|error| {
                failed = Some(error);
                io::ErrorKind::OutOfMemory.into()
            })
        });
        match (done, failed) {
            (_, Some(error)) => Err(self.too_much(error, limit)),
            (Err(source), None) => Err(self.failed(source)),
            (Ok(()), None) => Ok(state),
        }
    }

    fn too_much(&self, error: Option<inshore_store::RuntimeError>, limit: u64) -> Error {
        match error {
            Some(error) => error.into(),
            None => self.module.bad(&format!(
                "its state is larger than its memory of {}: raise --memory",
                format_bytes(limit)
            )),
        }
    }

    /// Ends all instances, and returns the resources that they took.
    fn end(&self) -> Result<WasmSummary> {
        let mut summary = WasmSummary::default();
        for place in &self.prepared().instances {
            if let Some(run) = self.take(place)? {
                summary.add(&run.end().map_err(|source| self.failed(source))?);
            }
        }
        Ok(summary)
    }

    /// Runs the kernel over sources.
    fn read(
        &self,
        job: &Context,
        sources: impl Iterator<Item = Source> + Send,
        output: Output<'_>,
    ) -> Result<u64> {
        let mut bytes = 0;
        run(job, self, sources, |event: Event<'_, WasmKernel>| {
            let Some(part) = event.part else { return Ok(Next::Go) };
            let part = part?;
            if !part.is_empty() {
                bytes += part.len() as u64;
                output(&part).map_err(Error::Write)?;
            }
            Ok(Next::Go)
        })?;
        Ok(bytes)
    }

    /// Calls the final function of the instance that holds the merged state.
    fn finish(&self, last: WasmRun, output: Output<'_>, summary: &mut WasmSummary) -> Result<()> {
        let mut bytes = 0;
        let finished = last.finish(&mut |part| {
            bytes += part.len() as u64;
            output(part)
        });
        summary.add(&finished.map_err(|source| self.failed(source))?);
        summary.output_bytes = bytes;
        Ok(())
    }
}

/// The output of a block, up to a limit.
struct Emitted {
    part: Vec<u8>,
    limit: u64,
    /// The offset of the block whose output exceeded the limit.
    is_full: Option<i64>,
}

impl Emitted {
    fn new(limit: u64) -> Emitted {
        Emitted { part: Vec::new(), limit, is_full: None }
    }

    fn add(&mut self, bytes: &[u8], offset: i64) -> io::Result<()> {
        if (self.part.len() + bytes.len()) as u64 > self.limit {
            self.is_full = Some(offset);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.part.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.part)
    }
}

/// The state of an instance, in a reserved buffer.
struct State {
    bytes: Vec<u8>,
    memory: Reservation,
}

impl State {
    /// Appends bytes. The error is the budget's if memory is short, and `None` if the limit is reached.
    fn add(
        &mut self,
        more: &[u8],
        limit: u64,
    ) -> std::result::Result<(), Option<inshore_store::RuntimeError>> {
        let length = (self.bytes.len() + more.len()) as u64;
        if length > limit {
            return Err(None);
        }
        if length > self.bytes.capacity() as u64 {
            // During the copy into a larger buffer the old buffer is still allocated.
            let room = (2 * length).max(64 << 10);
            self.memory.resize(room + self.bytes.len() as u64).map_err(Some)?;
            self.bytes.reserve_exact(room as usize - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}

impl Kernel for WasmKernel {
    type Error = Error;
    /// The number of the slot of the instance.
    type Worker = usize;
    /// The output of the module for a block.
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Line { numbered: false }
    }

    fn cached_block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn worker(&self, job: &Context) -> Result<usize> {
        let prepared = self.prepared();
        let number = prepared.next.fetch_add(1, Ordering::Relaxed) % prepared.instances.len();
        let mut place = lock(&prepared.instances[number]);
        if matches!(*place, Instance::None) {
            *place = Instance::Runs(Box::new(self.start(job, &prepared.limits)?));
        }
        Ok(number)
    }

    fn reads_files(&self) -> bool {
        true
    }

    fn file_blocks(
        &self,
        number: &mut usize,
        blocks: &FileBlocks<'_>,
        done: &mut Vec<Option<(u64, Vec<u8>)>>,
    ) -> Result<()> {
        let prepared = self.prepared();
        let FileBlocks { file, file_bytes, start, stride, count, base } = *blocks;
        let enough_bytes = prepared.part_bytes_max / ENOUGH;
        let asked = inshore_sandbox::FileBlocks { start, stride, count, file_bytes, base, enough_bytes };
        let mut emitted = Emitted::new(prepared.part_bytes_max);
        let mut place = lock(&prepared.instances[*number]);
        let ended = self.running(&mut place)?.file_blocks(file, &asked, &mut |part: BlockPart<'_>| {
            emitted.add(part.bytes, part.offset)?;
            if part.is_last {
                done.resize_with(part.block as usize, || None);
                done.push(Some((part.end, emitted.take())));
            }
            Ok(())
        });
        let count = self.ended(&mut place, ended, &emitted)?;
        done.resize_with(count as usize, || None);
        Ok(())
    }

    fn block(&self, number: &mut usize, block: &Block<'_>) -> Result<Vec<u8>> {
        if block.bytes.is_empty() {
            return Ok(Vec::new());
        }
        let prepared = self.prepared();
        let offset = block.offset as i64;
        let mut emitted = Emitted::new(prepared.part_bytes_max);
        let mut take = |bytes: &[u8]| emitted.add(bytes, offset);
        let mut place = lock(&prepared.instances[*number]);
        let run = self.running(&mut place)?;
        let mut ended = run.block(block.bytes, offset, &mut take);
        if prepared.result == WasmResult::InOrder {
            // The output of a block is complete only after the block's end.
            ended = ended.and_then(|()| run.settle(&mut take));
        }
        self.ended(&mut place, ended, &emitted)?;
        Ok(emitted.take())
    }

    fn part_bytes(&self, part: &Vec<u8>) -> u64 {
        (part.capacity() + size_of::<Vec<u8>>()) as u64
    }
}

impl Portable for WasmKernel {
    const KIND: &'static str = WASM;
    const NEEDS: RequiredRight = RequiredRight::WebAssembly;

    fn arguments(&self) -> Value {
        let Module { name, bytes, is_pushed } = &self.module;
        let arguments = Arguments {
            name: name.clone(),
            sha256: self.module.sha256(),
            module: (!is_pushed).then(|| BASE64_STANDARD.encode(bytes)),
            args: self.args.clone(),
        };
        serde_json::to_value(arguments).expect("plain data")
    }

    fn of_arguments(arguments: &Value) -> Result<WasmKernel> {
        parsed(arguments)?.kernel(None)
    }

    fn encode(part: &Vec<u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(part);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

fn parsed(arguments: &Value) -> Result<Arguments> {
    Arguments::deserialize(arguments).map_err(|error| Error::Read(ReadError::Stream(Box::new(error))))
}

/// Runs a kernel over sources, and passes on its result: the output for each block in order, or the output of
/// the merged states at the end.
///
/// # Errors
/// [`Error::Sandbox`] and [`Error::Kernel`] if the module fails; [`Error::Read`] if reading a source fails or
/// the budget is too small; [`Error::Write`].
pub fn run_wasm(
    job: &Context,
    kernel: &WasmKernel,
    sources: impl Iterator<Item = Source> + Send,
    output: Output<'_>,
) -> Result<WasmSummary> {
    let result = kernel.prepare(job)?.result;
    let output_bytes = kernel.read(job, sources, output)?;
    match result {
        WasmResult::InOrder => Ok(WasmSummary { output_bytes, ..kernel.end()? }),
        WasmResult::State => {
            let (last, mut summary) = kernel.merge(job)?;
            kernel.finish(*last, output, &mut summary)?;
            Ok(summary)
        }
    }
}
