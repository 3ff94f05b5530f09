//! This module is the first process inside the sandbox: it starts the task, reaps orphans, and reports the task's
//! status to the helper.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            process::CommandExt,
        },
    },
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
};
use serde::{Deserialize, Serialize};

use super::confine::{Outside, confine};
use crate::{
    Protections,
    channel::{Failure, HelperTask, Task},
    sys::{self, ForkResult},
};

/// Holds the result of a task, as far as the processes inside the sandbox know the result.
pub struct Outcome {
    /// Holds the exit status; none if the task was killed from outside the sandbox.
    pub status: Option<i32>,
    pub active: Protections,
}

/// A message to the helper. Each message is one line of JSON.
#[derive(Serialize, Deserialize)]
enum Message {
    Confined(Protections),
    Failed(Failure),
    Status(i32),
}

impl Outcome {
    /// Parses the messages.
    pub fn parse(text: &str) -> Result<Outcome, Failure> {
        let mut outcome = Outcome { status: None, active: Protections::NONE };
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Message::Confined(active)) => outcome.active = active,
                Ok(Message::Failed(failure)) => return Err(failure),
                Ok(Message::Status(status)) => outcome.status = Some(status),
                Err(error) => return Err(Failure::system("read the result of a task", &error.into())),
            }
        }
        Ok(outcome)
    }
}

fn say(mut pipe: &File, said: &Message) {
    let mut line = serde_json::to_vec(said).expect("made of plain values");
    line.push(b'\n');
    // If the write fails, the helper has ended, and the kernel will kill this process too.
    let _ = pipe.write_all(&line);
}

/// Is the main function of the first process in the sandbox: starts the task, reports its status through `pipe`,
/// and exits.
pub fn run(order: HelperTask, files: Vec<OwnedFd>, pipe: File, outside: Outside) -> ! {
    let result = start(order, files, &pipe, outside);
    match result {
        Ok(status) => say(&pipe, &Message::Status(status)),
        Err(failure) => say(&pipe, &Message::Failed(failure)),
    }
    sys::exit(0);
}

fn start(order: HelperTask, files: Vec<OwnedFd>, pipe: &File, outside: Outside) -> Result<i32, Failure> {
    let system = |what| move |error: io::Error| Failure::system(what, &error);
    sys::die_with_parent().map_err(system("watch the helper"))?;
    if abandoned(pipe) {
        sys::exit(1);
    }
    sys::adopt_orphans().map_err(system("adopt orphans"))?;
    let (started, starting) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("make a pipe")(error.into()))?;
    // SAFETY: this process was forked from a process with one thread, so it has one thread.
    let task = match unsafe { sys::fork() }.map_err(system("fork"))? {
        ForkResult::Child => {
            drop(started);
            become_task(order, files, File::from(starting), &outside);
        }
        ForkResult::Parent(pid) => pid,
    };
    // This process closes its copies of the files. Otherwise the reader of the task's output would not see the
    // output's end.
    drop((files, starting));
    let mut text = String::new();
    File::from(started).read_to_string(&mut text).map_err(system("wait for a task to start"))?;
    let confined = Outcome::parse(&text)?;
    say(pipe, &Message::Confined(confined.active));
    loop {
        match sys::wait(-1, true).map_err(system("wait for a task"))? {
            Some(waited) if waited.pid == task => return Ok(waited.status),
            _ => {}
        }
    }
}

/// Returns true if the helper ended before this process called `die_with_parent`.
fn abandoned(pipe: &File) -> bool {
    let mut files = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut files, Some(&now)).is_ok() && files[0].revents().contains(PollFlags::ERR)
}

/// Confines this process, and then runs the task of the order in it.
fn become_task(order: HelperTask, mut files: Vec<OwnedFd>, starting: File, outside: &Outside) -> ! {
    let result = match order.task {
        Task::Wasm { .. } if cfg!(not(feature = "wasm")) => Err(Failure {
            missing: None,
            path: None,
            what: "run a WebAssembly kernel: this helper was built without the feature 'wasm'".to_string(),
            errno: 0,
        }),
        _ => confine(&order.confinement, outside),
    };
    let failure = match result {
        Ok(active) => {
            say(&starting, &Message::Confined(active));
            match order.task {
                Task::Command { program, args, env } => execute(&program, args, env, files.pop()),
                Task::Wasm { memory_bytes } => run_module(memory_bytes, files, starting),
            }
        }
        Err(failure) => failure,
    };
    say(&starting, &Message::Failed(failure));
    sys::exit(1);
}

type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// Executes a program in this process. Returns only after a failure. All open files except the standard ones are
/// closed.
fn execute(program: &Path, args: Vec<Vec<u8>>, env: Variables, stdin: Option<OwnedFd>) -> Failure {
    if !program.as_os_str().as_bytes().contains(&b'/') {
        return Failure::path("start: expected a path with a '/'", program, &io::ErrorKind::NotFound.into());
    }
    let os = std::ffi::OsString::from_vec;
    let mut command = std::process::Command::new(program);
    command.args(args.into_iter().map(os));
    command.env_clear().envs(env.into_iter().map(|(name, value)| (os(name), os(value))));
    if let Some(stdin) = stdin {
        command.stdin(stdin);
    }
    let error = command.exec();
    Failure::path("start", program, &error)
}

#[cfg(feature = "wasm")]
fn run_module(memory_bytes: u64, files: Vec<OwnedFd>, starting: File) -> ! {
    let Ok([socket, shared]) = <[OwnedFd; 2]>::try_from(files) else {
        sys::exit(1);
    };
    // Closing this pipe tells the first process of the sandbox that the task has started.
    drop(starting);
    crate::wasm::work(socket, shared, memory_bytes);
    sys::exit(0);
}

#[cfg(not(feature = "wasm"))]
fn run_module(_: u64, _: Vec<OwnedFd>, _: File) -> ! {
    unreachable!("refused before anything was given up")
}
