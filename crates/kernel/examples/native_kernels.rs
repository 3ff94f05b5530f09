//! Runs the compute kernels of `sdk/rust/kernels` as native code, with the same runner that runs them as WebAssembly.
//! Their run times are the baseline of the benchmark `bench/kernels.py`. `native_kernels scan|search|words THREADS
//! BLOCK_BYTES ARGUMENT FILE...` writes the result to standard output, and the run time in seconds to standard error.

use std::{
    cell::RefCell,
    error::Error,
    io::{self, Write},
    time::Instant,
};

use inshore_kernel::{Block, Border, Error as ReadError, Event, Kernel, Next, Source, run};
use inshore_sdk::{Kernel as Sdk, Output, State};
use inshore_store::{Budget, Cancel, Context};
use memchr::memmem;

#[path = "../../../sdk/rust/kernels/scan.rs"]
mod scan;
#[path = "../../../sdk/rust/kernels/search.rs"]
mod search;
#[path = "../../../sdk/rust/kernels/words.rs"]
mod words;

thread_local! {
    /// The bytes that the compute kernel has emitted on this thread.
    static EMITTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns the bytes to which a pointer and a length from a compute kernel refer.
///
/// # Safety
/// The bytes must stay valid as long as the returned slice is used.
unsafe fn bytes<'a>(at: *const u8, length: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees that the bytes are valid.
    unsafe { std::slice::from_raw_parts(at, length) }
}

#[unsafe(no_mangle)]
extern "C" fn inshore_emit(at: *const u8, length: usize) {
    // SAFETY: the compute kernel passes the pointer and the length of a valid slice.
    EMITTED.with_borrow_mut(|emitted| emitted.extend_from_slice(unsafe { bytes(at, length) }));
}

#[unsafe(no_mangle)]
extern "C" fn inshore_memmem(hay: *const u8, hay_len: usize, needle: *const u8, needle_len: usize) -> i64 {
    // SAFETY: the compute kernel passes pointers and lengths of valid slices.
    let (hay, needle) = unsafe { (bytes(hay, hay_len), bytes(needle, needle_len)) };
    memmem::find(hay, needle).map_or(-1, |at| at as i64)
}

/// A function that creates the state of a worker from the argument of the compute kernel.
type WorkerConstructor = fn(&[u8]) -> Result<Box<dyn Worker>, i32>;

/// A compute kernel of the SDK as a [`Kernel`] of this crate.
struct Native {
    argument: Vec<u8>,
    block_bytes: usize,
    make: WorkerConstructor,
}

/// The state of a worker.
trait Worker: Send {
    fn block(&mut self, block: &[u8], offset: u64) -> Result<(), i32>;
    fn save(&mut self);
    fn merge(&mut self, saved: &[u8]) -> Result<(), i32>;
    fn finish(&mut self);
}

/// An adapter for compute kernels whose workers merge their results in a state.
struct StatefulKernel<K>(K);
/// An adapter for compute kernels whose results are written in the order of the blocks.
struct OrderedKernel<K>(K);

impl<K: State + Send> Worker for StatefulKernel<K> {
    fn block(&mut self, block: &[u8], offset: u64) -> Result<(), i32> {
        self.0.block(block, offset, &mut Output::of_host())
    }

    fn save(&mut self) {
        self.0.save(&mut Output::of_host());
    }

    fn merge(&mut self, saved: &[u8]) -> Result<(), i32> {
        self.0.merge(saved)
    }

    fn finish(&mut self) {
        self.0.finish(&mut Output::of_host());
    }
}

impl<K: Sdk + Send> Worker for OrderedKernel<K> {
    fn block(&mut self, block: &[u8], offset: u64) -> Result<(), i32> {
        self.0.block(block, offset, &mut Output::of_host())
    }

    fn save(&mut self) {}

    fn merge(&mut self, _: &[u8]) -> Result<(), i32> {
        Ok(())
    }

    fn finish(&mut self) {}
}

fn failed(code: i32) -> ReadError {
    ReadError::Stream(format!("the kernel returned {code}").into())
}

impl Kernel for Native {
    type Error = ReadError;
    type Worker = Box<dyn Worker>;
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Line { numbered: false }
    }

    fn cached_block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn worker(&self, _: &Context) -> Result<Box<dyn Worker>, ReadError> {
        (self.make)(&self.argument).map_err(failed)
    }

    fn block(&self, worker: &mut Box<dyn Worker>, block: &Block<'_>) -> Result<Vec<u8>, ReadError> {
        worker.block(block.bytes, block.offset).map_err(failed)?;
        Ok(EMITTED.take())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, threads, block_bytes, argument, files @ ..] = &given[..] else {
        return Err("native_kernels scan|search|words THREADS BLOCK_BYTES ARGUMENT FILE...".into());
    };
    let make: WorkerConstructor = match kernel.as_str() {
        "scan" => |argument| Ok(Box::new(StatefulKernel(scan::Scan::new(argument)?))),
        "search" => |argument| Ok(Box::new(OrderedKernel(search::Search::new(argument)?))),
        "words" => |argument| Ok(Box::new(StatefulKernel(words::Words::new(argument)?))),
        other => return Err(format!("{other}: expected scan, search or words").into()),
    };
    let native = Native { argument: argument.clone().into_bytes(), block_bytes: block_bytes.parse()?, make };
    let job = Context::new(Budget::new(1 << 30, threads.parse()?), Cancel::default());
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout());
    let began = Instant::now();
    let sources: Vec<Source> = files.iter().map(Source::file).collect();
    let workers = run(&job, &native, sources.into_iter(), |event: Event<'_, Native>| {
        if let Some(part) = event.part {
            out.write_all(&part?).map_err(|error| ReadError::Stream(error.into()))?;
        }
        Ok(Next::Go)
    })?;
    let mut workers = workers.into_iter();
    let mut first = workers.next().expect("one for each thread");
    for mut other in workers {
        other.save();
        first.merge(&EMITTED.take()).map_err(failed)?;
    }
    first.finish();
    out.write_all(&EMITTED.take())?;
    out.flush()?;
    eprintln!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
