//! This module manages the instances of a kernel: their processes, their reserved memory, and their states.

use std::{
    io,
    sync::{Mutex, MutexGuard, atomic::AtomicUsize},
    time::Duration,
};

use inshore_kernel::smallest_memory_bytes;
use inshore_sandbox::{Error as SandboxError, WasmLimits, WasmResponse, WasmResult, WasmRun};
use inshore_store::{Context, Reservation, format_bytes};
use serde::{Deserialize, Serialize};

use super::{BLOCK_BYTES, Error, MIB, Result, WasmKernel};

/// The memory of an instance's process in addition to the memory of the module.
const OWN_BYTES: u64 = 48 * MIB;
/// The minimum memory of an instance in bytes.
const SHARE_BYTES_MIN: u64 = 64 * MIB;
/// The maximum memory of a module in bytes.
pub(super) const MODULE_MEMORY_BYTES_MAX: u64 = 1024 * MIB;
/// The maximal time of one call into a module: for a block, at the start, or at the end.
pub(super) const CALL: Duration = Duration::from_secs(20);
/// The maximal duration of an instance. Instances usually end with their job.
const WALL: Duration = Duration::from_secs(365 * 86_400);
/// A batch of blocks ends when the output of the batch reaches the maximum output of one block, divided by this
/// number.
pub(super) const ENOUGH: u64 = 4;

/// The instances and the memory that is reserved for them.
pub(super) struct Prepared {
    pub(super) limits: WasmLimits,
    pub(super) result: WasmResult,
    /// The maximal output of a block in bytes.
    pub(super) part_bytes_max: u64,
    pub(super) instances: Vec<Mutex<Instance>>,
    pub(super) next: AtomicUsize,
    pub(super) _memory: Reservation,
}

/// The state of a slot for an instance.
pub(super) enum Instance {
    /// The instance is not yet started.
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
    /// The last part of each instance's log, one after the other.
    pub log: String,
    /// The size of the result in bytes.
    pub output_bytes: u64,
    /// The active protections of the sandbox.
    pub protections: String,
}

impl WasmSummary {
    pub(super) fn add(&mut self, response: &WasmResponse) {
        self.instances += 1;
        self.cpu_seconds += (response.user + response.system).as_secs_f64();
        self.memory_bytes_max = self.memory_bytes_max.max(response.memory_bytes_max);
        self.log.push_str(&String::from_utf8_lossy(&response.log));
        self.protections = response.active.to_string();
    }
}

/// Returns the smallest budget in bytes for a kernel with this number of threads.
pub fn smallest_wasm_memory_bytes(threads: usize) -> u64 {
    let reading = smallest_memory_bytes(threads) + (threads * BLOCK_BYTES * 2) as u64;
    SHARE_BYTES_MIN + threads as u64 * (MIB + MIB / ENOUGH) + reading + 4 * MIB
}

impl WasmKernel {
    /// Reserves memory for all instances before reading starts, and starts the first instance.
    pub(super) fn prepare(&self, job: &Context) -> Result<&Prepared> {
        let (budget, threads) = (job.budget(), job.budget().threads());
        let given = budget.free_bytes();
        let what = || format!("a WebAssembly kernel with {threads} threads");
        budget.need(smallest_wasm_memory_bytes(threads), what)?;
        let part_bytes_max = (given / 16 / threads as u64).clamp(MIB, 64 * MIB);
        let half = (given / 2).max(SHARE_BYTES_MIN);
        let instances = (half / SHARE_BYTES_MIN).clamp(1, threads as u64);
        let share = (half / instances).min(OWN_BYTES + MODULE_MEMORY_BYTES_MAX);
        // This memory holds the output of the current block, and the other outputs of the same batch.
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

    pub(super) fn start(&self, job: &Context, limits: &WasmLimits) -> Result<WasmRun> {
        let cancel = job.cancel().clone();
        let unwanted = Box::new(move || cancel.is_cancelled());
        let (module, args) = (&self.module.bytes, self.args.as_bytes());
        let started = self.sandbox.start_wasm_while_wanted(module, args, limits, unwanted);
        started.map_err(|source| self.failed(source))
    }

    pub(super) fn prepared(&self) -> &Prepared {
        self.prepared.get().expect("prepared before anything is read")
    }

    /// Returns the running instance of a slot.
    pub(super) fn running<'a>(&self, place: &'a mut Instance) -> Result<&'a mut WasmRun> {
        match place {
            Instance::Runs(run) => Ok(run),
            Instance::Failed(what) => Err(self.module.bad(what)),
            Instance::None => unreachable!("started with its worker"),
        }
    }

    /// Returns the result of a call to an instance. After an error, the slot is [`Instance::Failed`].
    pub(super) fn ended<T>(
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
    pub(super) fn merge(&self, job: &Context) -> Result<(Box<WasmRun>, WasmSummary)> {
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

    /// Removes an instance from its slot, and returns the instance.
    pub(super) fn take(&self, place: &Mutex<Instance>) -> Result<Option<Box<WasmRun>>> {
        match std::mem::replace(&mut *lock(place), Instance::None) {
            Instance::Runs(run) => Ok(Some(run)),
            Instance::Failed(what) => Err(self.module.bad(&what)),
            Instance::None => Ok(None),
        }
    }

    /// Copies the state out of an instance.
    pub(super) fn state(&self, job: &Context, run: &mut WasmRun) -> Result<State> {
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

    pub(super) fn too_much(&self, error: Option<inshore_store::RuntimeError>, limit: u64) -> Error {
        match error {
            Some(error) => error.into(),
            None => self.module.bad(&format!(
                "its state is larger than its memory of {}: raise --memory",
                format_bytes(limit)
            )),
        }
    }

    /// Ends all instances, and returns the resources that they took.
    pub(super) fn end(&self) -> Result<WasmSummary> {
        let mut summary = WasmSummary::default();
        for place in &self.prepared().instances {
            if let Some(run) = self.take(place)? {
                summary.add(&run.end().map_err(|source| self.failed(source))?);
            }
        }
        Ok(summary)
    }
}

/// Collects the output of a block, up to a limit in bytes.
pub(super) struct Emitted {
    pub(super) part: Vec<u8>,
    pub(super) limit: u64,
    /// The offset of the block whose output exceeded the limit.
    pub(super) is_full: Option<i64>,
}

impl Emitted {
    pub(super) fn new(limit: u64) -> Emitted {
        Emitted { part: Vec::new(), limit, is_full: None }
    }

    pub(super) fn add(&mut self, bytes: &[u8], offset: i64) -> io::Result<()> {
        if (self.part.len() + bytes.len()) as u64 > self.limit {
            self.is_full = Some(offset);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.part.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.part)
    }
}

/// The state of an instance, in a buffer whose memory is reserved in the budget.
pub(super) struct State {
    pub(super) bytes: Vec<u8>,
    pub(super) memory: Reservation,
}

impl State {
    /// Appends bytes. The error is that of the budget if the budget has too little memory, and `None` if the state
    /// would exceed `limit`.
    pub(super) fn add(
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}
