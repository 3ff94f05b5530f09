//! Starts and stops the server of an agent.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::sync::watch;
use tonic::transport::{Identity, Server, ServerTlsConfig, server::TcpIncoming};
use tracing::{info, warn};

use super::{Agent, admission::Admission};
use crate::{
    Error, NodeCredentials, Result,
    error::{chain, no_thread},
    protocol::CredentialExpiry,
    server::queue::QueueLoad,
};

/// A running agent. The agent serves until this handle is dropped or stopped.
#[derive(Debug)]
pub struct RunningAgent {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    agent: Agent,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl Agent {
    /// Starts serving on `address`, in background threads. Port 0 selects any free port.
    ///
    /// # Errors
    /// - Returns [`Error::Credentials`] if `address` is reachable from other machines and the agent has no credentials.
    /// - Returns [`Error::Address`] if binding the address fails.
    pub fn serve(self, address: SocketAddr) -> Result<RunningAgent> {
        let config = &self.0.config;
        if config.credentials.is_none() && !address.ip().is_loopback() {
            return Err(Error::Credentials {
                what: format!(
                    "{address} can be reached by other machines: to serve them a node needs credentials (`inshore node credentials` creates them)"
                ),
            });
        }
        let bad = move |what: String| Error::Address { address: address.to_string(), what };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("inshore-node")
            .enable_all()
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let incoming = {
            let _inside = runtime.enter();
            TcpIncoming::bind(address).map_err(|error| bad(error.to_string()))?.with_nodelay(Some(true))
        };
        let bound = incoming.local_addr().map_err(|error| bad(error.to_string()))?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .concurrency_limit_per_connection(64)
            .max_concurrent_streams(64);
        if let Some(credentials) = &config.credentials {
            let renewal = credentials.renewal()?;
            runtime.spawn(warn_of_expiry(credentials.expires()?, config.name.clone(), renewal));
            let NodeCredentials { certificate, key, .. } = credentials;
            let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
            server = server.tls_config(tls).map_err(|error| Error::Credentials { what: chain(&error) })?;
        }
        let service = Admission(self.clone());
        let (stop, mut stopped) = watch::channel(false);
        let (agent, drain) = (self.clone(), config.drain);
        let connections = self.0.connections.clone();
        let incoming = incoming.filter_map(move |connection| {
            // A connection that has already been closed is skipped.
            let accepted = connection.map(|stream| connections.accept(stream).ok()).transpose();
            std::future::ready(accepted)
        });
        info!(node = self.0.config.name, address = %bound, "serves");
        let started = thread::Builder::new().name("inshore-node".into()).spawn(move || {
            let served = runtime.block_on(async {
                let mut stop = stopped.clone();
                let ended = server.add_service(service).serve_with_incoming_shutdown(incoming, async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                    agent.drain(drain).await;
                });
                tokio::select! {
                    ended = ended => ended.map_err(|error| bad(chain(&error))),
                    // Idle connections that stay open do not delay the end of the server.
                    () = async {
                        let _ = stopped.wait_for(|stop| *stop).await;
                        tokio::time::sleep(drain + Duration::from_secs(2)).await;
                    } => Ok(()),
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            served
        });
        let thread = Some(started.map_err(|error| no_thread(&address, &error))?);
        Ok(RunningAgent { address: bound, stop, agent: self, thread })
    }

    /// Refuses new tasks, waits until the running tasks have ended, and cancels the rest after `patience`.
    async fn drain(&self, patience: Duration) {
        self.0.draining.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let is_idle = || self.0.queue.fullness() == QueueLoad { used_bytes: 0, waiting: 0 };
        while !is_idle() && began.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for task in self.0.tasks().values() {
            warn!(kind = task.kind, client = task.client, "stopped: the node ends");
            task.job.cancel().cancel();
        }
        self.0.loads.stop().cancel();
    }
}

impl RunningAgent {
    /// Returns the address on which the agent serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Stops the agent. The agent refuses new tasks, and waits for running tasks for at most the time
    /// [`AgentConfig::drain`](super::AgentConfig::drain).
    ///
    /// # Errors
    /// Returns the error that ended the server.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Returns true if the server thread has ended by itself, which is an error. The call does not wait.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_finished())
    }

    fn end(&mut self) -> Result<()> {
        let _ = self.stop.send(true);
        match self.thread.take().map(thread::JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for RunningAgent {
    /// Cancels all tasks and stops the server without draining.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.agent.0.draining.store(true, Ordering::Relaxed);
            self.agent.0.tasks().values().for_each(|task| task.job.cancel().cancel());
            self.agent.0.loads.stop().cancel();
            let _ = self.end();
        }
    }
}

/// Logs once a day a warning for each of the node's credentials that expires soon.
async fn warn_of_expiry(expires: CredentialExpiry, node: String, renewal: String) {
    loop {
        for warning in expires.warnings(&node) {
            warn!(node, "{warning}: `{renewal}` creates new ones");
        }
        tokio::time::sleep(Duration::from_secs(86_400)).await;
    }
}
