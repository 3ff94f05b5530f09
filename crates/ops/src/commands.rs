//! This module runs Linux commands on the nodes that store the data. The CompStor papers call such commands
//! minions.
//!
//! The operator of a node lists the allowed programs, each under a name. A client sends the name of a program, its
//! arguments, and a list of shards (parts of files on nodes). The bytes of the shards, in order, are the standard
//! input of the command. Standard output is sent back while the command runs. The last message holds the exit
//! status, the time, the memory, the end of standard error, and the active protections. [`inshore_sandbox`]
//! isolates the command, and kills all processes that the command leaves behind. The command runs in a new folder
//! in the system's folder for temporary files. The new folder is removed afterwards with all its contents: see
//! [`Folder`].
//!
//! An eighth of the task's memory, but at least 4 MiB, is for reading shards. The rest is for the command.
//!
//! The design follows the minions and responses in section 3.2.2 of the 2019 thesis (see docs/from-the-papers.md).

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
use inshore_kernel::{
    Contents, Error as ReadError, Event, Failure, Next, Reply, RequiredRight, Source, Task, TaskHandler, run,
};
use inshore_sandbox::{Command, CommandLimits, Folder, Helper, Policy, Response, Sandbox};
use inshore_store::Budget;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name by which requests select the task that runs a Linux command.
pub const COMMAND: &str = "command";

/// The minimum memory in bytes for reading shards, and also the minimum memory for the command.
const READING_BYTES_MIN: u64 = 4 << 20;

/// The arguments of a request to run a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandArguments {
    /// The name under which the node's operator allows the program.
    pub program: String,
    /// The arguments of the program.
    pub args: Vec<String>,
}

/// The outcome of a command on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandResponse {
    /// The exit status. The value is `None` if a signal ended the command.
    pub code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The reason for which the node ended the command. The value is `None` if the command ended by itself.
    pub ended: Option<String>,
    /// The time from the start to the end of the command, in seconds.
    pub seconds: f64,
    /// The processor time of all processes of the command, in seconds.
    pub cpu_seconds: f64,
    /// The peak memory of the command, in bytes.
    pub memory_bytes_max: u64,
    /// The number of bytes of standard output.
    pub output_bytes: u64,
    /// The end of standard error, as text.
    pub errors: String,
    /// The active protections of the sandbox.
    pub protections: String,
}

/// The task handler that runs the commands which the node's operator allows.
#[derive(Debug)]
pub struct Commands {
    sandbox: Sandbox,
    programs: BTreeMap<String, PathBuf>,
    limits: CommandLimits,
}

impl Commands {
    /// Returns a handler that runs these programs under this sandbox policy. The keys of `programs` are the names
    /// that clients use. The memory limit of a command is part of its task's memory, and does not come from
    /// `limits`. The current program must call [`inshore_sandbox::child_main_if_asked`] first.
    pub fn new(programs: BTreeMap<String, PathBuf>, policy: Policy, limits: CommandLimits) -> Commands {
        Commands { sandbox: Sandbox::new(Helper::own(), policy), programs, limits }
    }
}

impl TaskHandler for Commands {
    fn kind(&self) -> &'static str {
        COMMAND
    }

    fn needs(&self) -> RequiredRight {
        RequiredRight::Commands
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
        let memory_bytes = command_bytes.ok_or("a command needs a task with at least 8 MiB of memory")?;
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
                    // A command may end before it has read all of its input.
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
        // If the folder cannot be removed, the task fails, since the remaining files may fill the disk. The node's
        // log names the error and the client.
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

/// Returns the default limits, with this number of seconds as the limit of run time and of processor time.
pub fn command_limits(seconds: u64) -> CommandLimits {
    CommandLimits { wall: Duration::from_secs(seconds), cpu_seconds: seconds, ..CommandLimits::default() }
}

fn batch(bytes: &[u8]) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("output", DataType::Binary, false)]));
    let column: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
    RecordBatch::try_new(schema, vec![column]).expect("one column")
}

/// Returns the bytes of standard output in a batch. Returns `None` if the batch has no column of bytes.
pub fn command_output(batch: &RecordBatch) -> Option<Vec<u8>> {
    let column = batch.columns().first()?.as_binary_opt::<i32>()?;
    Some(column.iter().flatten().flatten().copied().collect())
}

/// The reader that provides the bytes of the shards as the standard input of a command.
struct Input {
    pieces: mpsc::Receiver<Vec<u8>>,
    piece: Vec<u8>,
    given: usize,
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.piece.len() {
            // The channel is closed after the last block of bytes. If the reading thread failed, that thread
            // returns the error.
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            (self.piece, self.given) = (piece, 0);
        }
        let len = out.len().min(self.piece.len() - self.given);
        out[..len].copy_from_slice(&self.piece[self.given..self.given + len]);
        self.given += len;
        Ok(len)
    }
}

/// Checks that a path is absolute and names an executable file.
///
/// # Errors
/// Returns a description of the problem.
pub fn check_program(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match path.is_absolute() && found.is_file() && found.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(format!("{}: expected the absolute path of a program", path.display())),
    }
}
