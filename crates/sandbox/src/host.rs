//! Starting a helper.

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
    channel::{self, Order, Reply},
};

/// The name that a program is started by as a helper, and then looks for.
pub(crate) const NAME: &str = "inshore-sandbox";
/// Time for a helper to say that it is one: it does so before anything else.
const READY: Duration = Duration::from_secs(10);

/// The program that contains: any binary whose `main` begins with [`crate::child_main_if_asked`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    is_interpreter: bool,
}

impl Helper {
    /// Our own binary, also when its file has been replaced since it was started.
    pub fn own() -> Helper {
        Helper::at("/proc/self/exe")
    }

    /// Another one: for libraries within a program that isn't ours, such as Python.
    pub fn at(program: impl Into<PathBuf>) -> Helper {
        Helper { program: program.into(), args: Vec::new(), is_interpreter: false }
    }

    /// With these arguments, for a binary that calls [`crate::child_main`] on a word of its command line.
    #[must_use]
    pub fn with_args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Helper {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Starts it by its path, and not by a name that tells its task: an interpreter finds its libraries by its path, and its arguments lead to
    /// [`crate::apart_main`].
    #[must_use]
    pub fn by_its_path(self) -> Helper {
        Helper { is_interpreter: true, ..self }
    }

    /// Begins to start it by this name.
    pub(crate) fn command(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        if !self.is_interpreter {
            command.arg0(name);
        }
        command.args(&self.args);
        command
    }
}

/// Where code that is not trusted is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// What contains it.
    pub helper: Helper,
    /// How.
    pub policy: Policy,
}

impl Sandbox {
    /// With this policy.
    pub fn new(helper: Helper, policy: Policy) -> Sandbox {
        Sandbox { helper, policy }
    }
}

/// A helper that runs; killed on drop.
pub(crate) struct Running {
    pub socket: UnixStream,
    child: Child,
    program: PathBuf,
    /// Whether it has said its last word.
    reported: Cell<bool>,
}

impl Running {
    /// Starts a helper and gives it its order. Its standard output and error are what the task gets.
    pub fn start(
        helper: &Helper,
        order: &Order,
        files: &[BorrowedFd<'_>],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<Running> {
        let (socket, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
        let child = helper
            .command(NAME)
            // Nothing of ours: it may hold secrets.
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
        let running = Running { socket, child, program, reported: Cell::new(false) };
        running.socket.set_read_timeout(Some(READY)).map_err(Error::system("set a time limit"))?;
        match channel::receive(&running.socket) {
            Ok(Some((Reply::Ready, _))) => {}
            Ok(_) => return Err(running.wrong("it ended, or said something else than that it is ready")),
            Err(error) => return Err(running.wrong(&format!("it did not say that it is ready: {error}"))),
        }
        running.socket.set_read_timeout(None).map_err(Error::system("set a time limit"))?;
        channel::send(&running.socket, order, files).map_err(|error| running.wrong(&error.to_string()))?;
        Ok(running)
    }

    /// The helper's process: all that it contains descends from it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its last word. Blocks until then.
    pub fn reply(&self) -> Result<Reply> {
        match channel::receive(&self.socket) {
            Ok(Some((reply, _))) => {
                self.reported.set(true);
                Ok(reply)
            }
            Ok(None) => Err(self.wrong("it was ended")),
            Err(error) => Err(self.wrong(&error.to_string())),
        }
    }

    /// Asks it to end the task; it then reports as ever.
    pub fn stop(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    fn wrong(&self, reason: &str) -> Error {
        Error::Helper { program: self.program.clone(), reason: reason.to_string() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.reported.get() {
            // It ends at once, and what it contained has ended before.
            let _ = self.child.wait();
            return;
        }
        // It gets a moment to end what it contains (without a PID namespace nobody else could), then goes, and with it
        // its namespace.
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
