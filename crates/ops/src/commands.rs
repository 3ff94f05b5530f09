//! Linux commands as work of a node: CompStor's minions.
//!
//! The operator of a node says which programs it runs, each under a name; a client names one, gives it arguments and the
//! pieces of files that become its standard input, in order. What it writes travels back as it comes; at its end the client
//! is told status, time, memory, the end of standard error, and which protections were active. How it is contained, and
//! ended with all that it has started: see [`inshore_sandbox`]. It works in a folder of its own among the system's temporary
//! files, which is removed with all that it left: see [`Folder`].
//!
//! Memory: of the task's memory an eighth is for reading, at least 4 MiB, and the rest the command's.
//!
//! Paper: minions and responses, 2019 thesis 3.2.2.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, Schema};
use inshore_neardata::{
    Contents, Error as ReadError, Event, Failure, Needs, Next, Reply, Source, Task, Work, run,
};
use inshore_sandbox::{Command, CommandLimits, Folder, Helper, Policy, Response, Sandbox};
use inshore_store::Budget;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What requests call this work.
pub const COMMAND: &str = "command";

/// Memory that reading takes, at least.
const READING_BYTES_MIN: u64 = 4 << 20;

/// What a client asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandArguments {
    /// The program, by the operator's name for it.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// What came of a command on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandResponse {
    /// Its exit status; none where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why the node ended it, where it did.
    pub ended: Option<String>,
    /// Time from its start to its end.
    pub seconds: f64,
    /// Processor time of all its processes.
    pub cpu_seconds: f64,
    /// Most memory at a time.
    pub memory_bytes_max: u64,
    /// Bytes of standard output.
    pub output_bytes: u64,
    /// The end of standard error.
    pub errors: String,
    /// Which protections were active.
    pub protections: String,
}

/// The work of running commands that the operator allows.
#[derive(Debug)]
pub struct Commands {
    sandbox: Sandbox,
    programs: BTreeMap<String, PathBuf>,
    limits: CommandLimits,
}

impl Commands {
    /// Runs these programs, named as clients name them, under this policy; memory is the task's and not the limits'. The
    /// program that this is part of has to begin with [`inshore_sandbox::child_main_if_asked`].
    pub fn new(programs: BTreeMap<String, PathBuf>, policy: Policy, limits: CommandLimits) -> Commands {
        Commands { sandbox: Sandbox::new(Helper::own(), policy), programs, limits }
    }
}

impl Work for Commands {
    fn kind(&self) -> &'static str {
        COMMAND
    }

    fn needs(&self) -> Needs {
        Needs::Commands
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources, .. } = task;
        let CommandArguments { program, args } = serde_json::from_value(arguments)?;
        let path = self.programs.get(&program).ok_or_else(|| {
            let allowed: Vec<&str> = self.programs.keys().map(String::as_str).collect();
            format!("the operator of this node does not allow '{program}': it allows {}", allowed.join(", "))
        })?;
        let memory_bytes = job.budget().memory_bytes();
        let reading_bytes = (memory_bytes / 8).max(READING_BYTES_MIN);
        let command_bytes =
            memory_bytes.checked_sub(reading_bytes).filter(|&bytes| bytes >= READING_BYTES_MIN);
        let memory_bytes = command_bytes.ok_or("a command needs a task of 8 MiB at least")?;
        let _memory = job.budget().reserve(memory_bytes, "a command")?;
        let limits = CommandLimits { memory_bytes, ..self.limits.clone() };
        let folder = Folder::create_in(&std::env::temp_dir())?;
        let command = Command::new(path, folder.path()).args(args);
        let reading = Budget::new(reading_bytes, 1);
        let read_job = job.within(reading);
        let (pieces, input) = mpsc::sync_channel::<Vec<u8>>(2);
        let ran = thread::scope(|scope| {
            let sources = sources.map(|source| match source {
                Ok(source) => source.source,
                Err(failure) => Source::new("a piece", |_| Err(ReadError::Stream(failure))),
            });
            let reader = scope.spawn(move || {
                run(&read_job, &Contents, sources, |event: Event<'_, Contents>| {
                    let gone = match event.part {
                        Some(part) => pieces.send(part?).is_err(),
                        None => false,
                    };
                    // A command need not read all of its input.
                    Ok(if gone { Next::Stop } else { Next::Go })
                })
            });
            let mut failed = None;
            let output = |bytes: &[u8]| {
                reply.batch(batch(bytes)).map_err(|failure| {
                    failed = Some(failure);
                    io::ErrorKind::BrokenPipe.into()
                })
            };
            let input = Input { pieces: input, piece: Vec::new(), given: 0 };
            let cancel = || job.cancel().is_cancelled();
            let ran = self.sandbox.run(&command, &limits, input, output, &cancel);
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (ran, failed, read) {
                (_, Some(failure), _) => Err(failure),
                (Err(error), ..) => Err(Failure::from(error)),
                (_, _, Err(error)) => Err(error.into()),
                (Ok(response), None, Ok(_)) => Ok(response),
            }
        });
        let removed = folder.remove();
        let response = ran?;
        // A node that fills up is worth more than an answer: its log says so, and who asked.
        removed?;
        job.check_cancelled()?;
        Ok(serde_json::to_value(told(&response))?)
    }
}

fn told(response: &Response) -> CommandResponse {
    CommandResponse {
        code: response.code,
        signal: response.signal,
        ended: response.ended.map(|ended| ended.to_string()),
        seconds: response.wall.as_secs_f64(),
        cpu_seconds: (response.user + response.system).as_secs_f64(),
        memory_bytes_max: response.memory_bytes_max,
        output_bytes: response.output_bytes,
        errors: String::from_utf8_lossy(&response.errors).into_owned(),
        protections: response.active.to_string(),
    }
}

/// Limits of commands as the operator of a node says them: time, and what they may write.
pub fn command_limits(seconds: u64) -> CommandLimits {
    CommandLimits { wall: Duration::from_secs(seconds), cpu_seconds: seconds, ..CommandLimits::default() }
}

fn batch(bytes: &[u8]) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("output", DataType::Binary, false)]));
    let column: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
    RecordBatch::try_new(schema, vec![column]).expect("one column")
}

/// The bytes of a batch of output; `None` where it is none.
pub fn command_output(batch: &RecordBatch) -> Option<Vec<u8>> {
    let column = batch.columns().first()?.as_binary_opt::<i32>()?;
    Some(column.iter().flatten().flatten().copied().collect())
}

/// What is read, as a command's standard input.
struct Input {
    pieces: mpsc::Receiver<Vec<u8>>,
    piece: Vec<u8>,
    given: usize,
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.piece.len() {
            // The reader's end is the end of the input; what it failed with is told by itself.
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            (self.piece, self.given) = (piece, 0);
        }
        let len = out.len().min(self.piece.len() - self.given);
        out[..len].copy_from_slice(&self.piece[self.given..self.given + len]);
        self.given += len;
        Ok(len)
    }
}

/// Whether a program can be allowed: a file that can be executed, by its whole path.
///
/// # Errors
/// What is wrong with it.
pub fn check_program(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match path.is_absolute() && found.is_file() && found.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(format!("{}: this is no whole path of a program", path.display())),
    }
}
