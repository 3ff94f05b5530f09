//! This module starts helpers, and exchanges messages with them.

use std::{
    cell::Cell,
    ffi::OsString,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use crate::{
    Error, Policy, Result,
    channel::{self, HelperTask, Reply},
};

/// The name (`argv[0]`) by which a program recognizes that it was started as a helper.
pub(crate) const NAME: &str = "inshore-sandbox";
/// The maximum time until a helper has sent its first message, which says that it is ready.
const READY: Duration = Duration::from_secs(10);

/// Names the program that sets up protections: any binary whose `main` begins with [`crate::child_main_if_asked`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    is_interpreter: bool,
}

impl Helper {
    /// Uses the program of this process as the helper, even if the program's file was replaced after the start.
    pub fn own() -> Helper {
        Helper::at("/proc/self/exe")
    }

    /// Uses a separate program as the helper. This is for a library inside a foreign program, such as the Python
    /// interpreter.
    pub fn at(program: impl Into<PathBuf>) -> Helper {
        Helper { program: program.into(), args: Vec::new(), is_interpreter: false }
    }

    /// Adds arguments, for a binary that calls [`crate::child_main`] on a certain command-line argument.
    #[must_use]
    pub fn with_args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Helper {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Passes the helper's path as `argv[0]`, instead of a name that marks a helper or a worker. An interpreter
    /// such as Python finds its libraries by this path. The caller passes arguments ([`Helper::with_args`]) that make
    /// the interpreter call [`crate::apart_main`].
    #[must_use]
    pub fn by_its_path(self) -> Helper {
        Helper { is_interpreter: true, ..self }
    }

    /// Prepares a command that starts the helper with this name as `argv[0]`.
    pub(crate) fn command(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        if !self.is_interpreter {
            command.arg0(name);
        }
        command.args(&self.args);
        command
    }
}

/// Runs untrusted code, with a helper and a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Names the program that sets up the protections.
    pub helper: Helper,
    /// Says which protections to set up and to require.
    pub policy: Policy,
}

impl Sandbox {
    /// Makes a sandbox from a helper and a policy.
    pub fn new(helper: Helper, policy: Policy) -> Sandbox {
        Sandbox { helper, policy }
    }
}

/// Holds a running helper, which is killed on drop.
pub(crate) struct RunningHelper {
    pub socket: UnixStream,
    child: Child,
    program: PathBuf,
    /// Records whether the helper has sent the last message.
    reported: Cell<bool>,
}

impl RunningHelper {
    /// Starts a helper and sends the order. The task inherits the helper's standard output and error.
    pub fn start(
        helper: &Helper,
        order: &HelperTask,
        files: &[BorrowedFd<'_>],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<RunningHelper> {
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let child = helper
            .command(NAME)
            // The helper inherits no environment variables, since these may hold secrets.
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(|source| Error::Path {
                what: "start the helper of the sandbox".to_string(),
                path: helper.program.clone(),
                source,
            })?;
        let program = helper.program.clone();
        let running = RunningHelper { socket, child, program, reported: Cell::new(false) };
        running.socket.set_read_timeout(Some(READY)).map_err(Error::system("set a time limit"))?;
        match channel::receive(&running.socket) {
            Ok(Some((Reply::Ready, _))) => {}
            Ok(_) => return Err(running.wrong("it ended, or sent another message than 'ready'")),
            Err(error) => return Err(running.wrong(&format!("it did not report that it is ready: {error}"))),
        }
        running.socket.set_read_timeout(None).map_err(Error::system("set a time limit"))?;
        channel::send(&running.socket, order, files).map_err(|error| running.wrong(&error.to_string()))?;
        Ok(running)
    }

    /// Returns the process id of the helper. All processes of the task are descendants of the helper.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Blocks until the helper sends the last message, and returns the message.
    pub fn reply(&self) -> Result<Reply> {
        match channel::receive(&self.socket) {
            Ok(Some((reply, _))) => {
                self.reported.set(true);
                Ok(reply)
            }
            Ok(None) => Err(self.wrong("it ended without a report")),
            Err(error) => Err(self.wrong(&error.to_string())),
        }
    }

    /// Asks the helper to end the task; the helper then reports as usual.
    pub fn stop(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    fn wrong(&self, reason: &str) -> Error {
        Error::Helper { program: self.program.clone(), reason: reason.to_string() }
    }
}

impl Drop for RunningHelper {
    fn drop(&mut self) {
        if self.reported.get() {
            // The task has ended already, and the helper exits immediately after its last message.
            let _ = self.child.wait();
            return;
        }
        // The helper gets one second to end the task, since without a PID namespace only the helper can do this.
        // Then the helper is killed, which ends the namespace, too.
        let _ = self.stop();
        for _ in 0..500 {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
