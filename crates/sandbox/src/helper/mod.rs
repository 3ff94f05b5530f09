//! This module is the helper: a process that sets up a task, watches the task, and kills all of its processes at the
//! end.
//!
//! Three processes have one duty each. The helper stays outside the new namespaces, keeps our rights and can't be
//! reached by the task. The first process inside (`init`) reaps orphans; when `init` ends, the namespace ends. The
//! task has given up all rights.

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
    // The socket carries errors; an error of the socket itself can't be reported.
    sys::exit(if serve().is_ok() { 0 } else { 1 });
}

fn serve() -> std::io::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    channel::send(&socket, &Reply::Ready, &[])?;
    let Some((order, files)) = channel::receive::<HelperTask>(&socket)? else { return Ok(()) };
    // The socket belongs to this process alone: the processes forked later close their copies.
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
