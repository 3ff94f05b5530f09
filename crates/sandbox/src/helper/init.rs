//! The first process inside: starts the task, reaps what others leave, and tells the helper how it ended.

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
    channel::{Failure, Order, Task},
    sys::{self, Forked},
};

/// What came of a task, as far as it's known inside.
pub struct Outcome {
    /// None where it was ended from outside.
    pub status: Option<i32>,
    pub active: Protections,
}

/// What is written to the helper, a line each.
#[derive(Serialize, Deserialize)]
enum Said {
    Confined(Protections),
    Failed(Failure),
    Status(i32),
}

impl Outcome {
    /// Of the lines that were written.
    pub fn parse(text: &str) -> Result<Outcome, Failure> {
        let mut outcome = Outcome { status: None, active: Protections::NONE };
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Said::Confined(active)) => outcome.active = active,
                Ok(Said::Failed(failure)) => return Err(failure),
                Ok(Said::Status(status)) => outcome.status = Some(status),
                Err(error) => return Err(Failure::system("read what came of a task", &error.into())),
            }
        }
        Ok(outcome)
    }
}

fn say(mut pipe: &File, said: &Said) {
    let mut line = serde_json::to_vec(said).expect("made of plain values");
    line.push(b'\n');
    // If nobody listens, the helper is gone, and we are about to be.
    let _ = pipe.write_all(&line);
}

/// The whole life of the first process.
pub fn run(order: Order, files: Vec<OwnedFd>, pipe: File, outside: Outside) -> ! {
    let result = start(order, files, &pipe, outside);
    match result {
        Ok(status) => say(&pipe, &Said::Status(status)),
        Err(failure) => say(&pipe, &Said::Failed(failure)),
    }
    sys::exit(0);
}

fn start(order: Order, files: Vec<OwnedFd>, pipe: &File, outside: Outside) -> Result<i32, Failure> {
    let system = |what| move |error: io::Error| Failure::system(what, &error);
    sys::die_with_parent().map_err(system("watch the helper"))?;
    if abandoned(pipe) {
        sys::exit(1);
    }
    sys::adopt_orphans().map_err(system("adopt orphans"))?;
    let (started, starting) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("make a pipe")(error.into()))?;
    // SAFETY: forked from a process with one thread, it has one itself.
    let task = match unsafe { sys::fork() }.map_err(system("fork"))? {
        Forked::Child => {
            drop(started);
            become_task(order, files, File::from(starting), &outside);
        }
        Forked::Parent(pid) => pid,
    };
    // So that the end of the task's input and output is seen when the task is at its end.
    drop((files, starting));
    let mut text = String::new();
    File::from(started).read_to_string(&mut text).map_err(system("wait for a task to start"))?;
    let confined = Outcome::parse(&text)?;
    say(pipe, &Said::Confined(confined.active));
    loop {
        match sys::wait(-1, true).map_err(system("wait for a task"))? {
            Some(waited) if waited.pid == task => return Ok(waited.status),
            _ => {}
        }
    }
}

/// Whether the helper ended before we asked to end with it.
fn abandoned(pipe: &File) -> bool {
    let mut files = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut files, Some(&now)).is_ok() && files[0].revents().contains(PollFlags::ERR)
}

/// The task: gives up all that it isn't to have, then is what was ordered.
fn become_task(order: Order, mut files: Vec<OwnedFd>, starting: File, outside: &Outside) -> ! {
    let result = match order.task {
        Task::Wasm { .. } if cfg!(not(feature = "wasm")) => Err(Failure {
            missing: None,
            path: None,
            what: "run a module: this helper was built without WebAssembly".to_string(),
            errno: 0,
        }),
        _ => confine(&order.confinement, outside),
    };
    let failure = match result {
        Ok(active) => {
            say(&starting, &Said::Confined(active));
            match order.task {
                Task::Command { program, args, env } => execute(&program, args, env, files.pop()),
                Task::Wasm { memory_bytes } => run_module(memory_bytes, files, starting),
            }
        }
        Err(failure) => failure,
    };
    say(&starting, &Said::Failed(failure));
    sys::exit(1);
}

type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns only if it failed. All other files than the standard ones are closed by executing.
fn execute(program: &Path, args: Vec<Vec<u8>>, env: Variables, stdin: Option<OwnedFd>) -> Failure {
    if !program.as_os_str().as_bytes().contains(&b'/') {
        return Failure::path("start: a path is expected", program, &io::ErrorKind::NotFound.into());
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
    // Tells that it has started.
    drop(starting);
    crate::wasm::work(socket, shared, memory_bytes);
    sys::exit(0);
}

#[cfg(not(feature = "wasm"))]
fn run_module(_: u64, _: Vec<OwnedFd>, _: File) -> ! {
    unreachable!("refused before anything was given up")
}
