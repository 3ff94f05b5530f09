//! The helper: a process of its own that sets a task up, watches it, and ends all of it.
//!
//! Three processes, so that each has one duty: the helper stays outside the new namespaces, keeps our rights and can't be
//! reached by the task; the first process inside (`init`) reaps orphans and, by ending, ends the namespace; the task has
//! given up everything.

mod calls;
mod confine;
mod files;
mod init;
mod supervise;

use std::{env, os::fd::AsFd, os::unix::net::UnixStream};

use crate::{
    channel::{self, Failure, Order, Reply},
    host, sys,
};

/// Becomes a helper if this program was started as one, and never returns then. To be called first thing in `main`, before
/// there are threads or anything of use is open.
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

/// Becomes a helper, whose orders come by standard input, a socket. For binaries that are started as one in another way than
/// [`child_main_if_asked`] knows, by a word of their command line for instance: see [`crate::Helper::with_args`].
pub fn child_main() -> ! {
    // What went wrong is said through the socket; where that is what went wrong, nobody listens.
    sys::exit(if serve().is_ok() { 0 } else { 1 });
}

fn serve() -> std::io::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    channel::send(&socket, &Reply::Ready, &[])?;
    let Some((order, files)) = channel::receive::<Order>(&socket)? else { return Ok(()) };
    // Of this process alone: the processes forked from it close theirs.
    let mut socket = Some(socket);
    let reply = match one_thread().and_then(|()| supervise::supervise(&mut socket, order, files)) {
        Ok(report) => Reply::Done(report),
        Err(failure) => Reply::Failed(failure),
    };
    channel::send(socket.as_ref().expect("closed in others only"), &reply, &[])
}

/// That we may fork.
fn one_thread() -> Result<(), Failure> {
    match sys::threads() {
        Ok(1) => Ok(()),
        Ok(_) => Err(Failure {
            missing: None,
            path: None,
            what: "become a helper: there are threads already, so it isn't the first thing that the program does".into(),
            errno: 0,
        }),
        Err(error) => Err(Failure::system("count our threads in /proc/self/task", &error)),
    }
}
