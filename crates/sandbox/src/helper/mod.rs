//! This module is the helper: a process that starts a task, waits for the task's end, and then kills all processes
//! of the task.
//!
//! There are three processes, each with one duty. The helper stays outside the new namespaces, keeps the rights of
//! the process that started it, and can't be reached by the task. The first process inside the namespaces (`init`)
//! reaps orphans. When `init` ends, the process namespace ends. The task is a process that has given up all
//! rights.

mod calls;
mod confine;
mod files;
mod init;
mod supervise;

use std::{env, os::fd::AsFd, os::unix::net::UnixStream};

use crate::{
    channel::{self, Failure, HelperTask, Reply},
    host, sys,
};

/// Becomes a helper if this program was started as one, and never returns then. Call this first in `main`, before the
/// program starts threads or opens files.
///
/// ```no_run
/// inshore_sandbox::child_main_if_asked();
/// // ... and the rest of `main`
/// ```
pub fn child_main_if_asked() {
    if env::args_os().next().is_some_and(|name| name == host::NAME) {
        child_main();
    }
}

/// Becomes a helper that receives its task over standard input, which is a socket. A binary that is not started under
/// the name which [`child_main_if_asked`] recognizes calls this function, for example when it sees a certain argument:
/// see [`crate::Helper::with_args`].
pub fn child_main() -> ! {
    // Errors are sent over the socket. An error of the socket itself can't be reported.
    sys::exit(if serve().is_ok() { 0 } else { 1 });
}

fn serve() -> std::io::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    channel::send(&socket, &Reply::Ready, &[])?;
    let Some((order, files)) = channel::receive::<HelperTask>(&socket)? else { return Ok(()) };
    // Only this process uses the socket. The processes that are forked later close their copies.
    let mut socket = Some(socket);
    let reply = match one_thread().and_then(|()| supervise::supervise(&mut socket, order, files)) {
        Ok(report) => Reply::Done(report),
        Err(failure) => Reply::Failed(failure),
    };
    channel::send(socket.as_ref().expect("closed in others only"), &reply, &[])
}

/// Checks that the process may fork, which needs a single thread.
fn one_thread() -> Result<(), Failure> {
    match sys::threads() {
        Ok(1) => Ok(()),
        Ok(_) => Err(Failure {
            missing: None,
            path: None,
            what: "become a helper: there are threads already; call `child_main` first in `main`".into(),
            errno: 0,
        }),
        Err(error) => Err(Failure::system("count threads in /proc/self/task", &error)),
    }
}
