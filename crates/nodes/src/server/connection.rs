//! Tracks open connections, and closes connections that send no request.
//!
//! - A connection is *new* until a request with a valid token arrives (without credentials, any request suffices).
//!   All earlier steps, which are TLS, the HTTP/2 preface and the request, may take
//!   [`ConnectionLimits::first_request`] in total.
//! - The first valid request *admits* the connection if a slot is free. The number of slots is limited, in total and
//!   for each address; for IPv6 an address means a /64 network, which a single machine can own. If no slot is free, the
//!   request is refused. The connection then stays new, and its period starts again, so that its client can retry.
//! - The number of new connections is limited to the number of slots. A new connection beyond the limit closes the
//!   oldest new connection of the address with the most new connections.
//!
//! Idle or invalid connections therefore cannot lock out other clients, however many there are. A client that sends a
//! request while all slots are in use gets a refusal, waits, and retries.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    io,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::Connected;

use crate::protocol::Connections;

/// The limits on the number of connections, and on the time to the first request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub connections: usize,
    pub per_address: usize,
    pub first_request: Duration,
}

/// All open connections.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    limits: ConnectionLimits,
    state: Mutex<State>,
    opened: AtomicU64,
    refused_full: AtomicU64,
    refused_address: AtomicU64,
    without_request: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    new: BTreeMap<u64, Arc<Connection>>,
    new_of: HashMap<IpAddr, usize>,
    admitted: usize,
    admitted_of: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    address: IpAddr,
    is_admitted: AtomicBool,
    is_closed: AtomicBool,
    /// The number of requests that were refused because no slot was free.
    refusals: AtomicU64,
    waker: AtomicWaker,
}

/// The handle with which a request admits its connection.
#[derive(Clone, Debug)]
pub(crate) struct ClientConnection {
    connection: Arc<Connection>,
    door: Arc<ConnectionLimiter>,
}

impl ClientConnection {
    /// Admits the connection because a valid request has arrived.
    ///
    /// # Errors
    /// Returns the reason why no slot is free. The client may retry.
    pub fn ask(&self) -> Result<(), String> {
        match self.connection.is_admitted() {
            true => Ok(()),
            false => self.door.take_in(&self.connection),
        }
    }
}

impl Connection {
    fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

impl ConnectionLimiter {
    pub fn new(limits: ConnectionLimits) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            limits,
            state: Mutex::default(),
            opened: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            refused_address: AtomicU64::new(0),
            without_request: AtomicU64::new(0),
        })
    }

    /// Accepts a new connection.
    pub fn accept(self: &Arc<Self>, stream: TcpStream) -> io::Result<ConnectionStream> {
        let connection = self.enter(peer(stream.peer_addr()?.ip()));
        let until = Box::pin(sleep(self.limits.first_request));
        let guest = ClientConnection { connection, door: self.clone() };
        Ok(ConnectionStream { stream, guest, refusals: 0, until })
    }

    fn enter(&self, address: IpAddr) -> Arc<Connection> {
        let mut state = self.state();
        if state.new.len() >= self.limits.connections {
            state.close_oldest_new();
        }
        let connection = Arc::new(Connection {
            number: state.next,
            address,
            is_admitted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        });
        state.next += 1;
        state.new.insert(connection.number, connection.clone());
        *state.new_of.entry(address).or_default() += 1;
        drop(state);
        self.opened.fetch_add(1, Ordering::Relaxed);
        connection
    }

    fn take_in(&self, connection: &Connection) -> Result<(), String> {
        let ConnectionLimits { connections, per_address, .. } = self.limits;
        let mut state = self.state();
        let of_address = state.admitted_of.get(&connection.address).copied().unwrap_or(0);
        let refused = if of_address >= per_address {
            Some((&self.refused_address, format!("{of_address} connections from this address are open")))
        } else if state.admitted >= connections {
            Some((&self.refused_full, format!("{} connections are open", state.admitted)))
        } else {
            None
        };
        if let Some((counter, why)) = refused {
            // Several retries of a client count as one refusal.
            if connection.refusals.fetch_add(1, Ordering::Relaxed) == 0 {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            return Err(format!("{why}, which is the limit"));
        }
        // If the connection is no longer new, the connection was closed, or a parallel request has already admitted the
        // connection.
        if state.forget_new(connection.number).is_some() {
            state.admitted += 1;
            *state.admitted_of.entry(connection.address).or_default() += 1;
            connection.is_admitted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn leave(&self, connection: &Connection) {
        let mut state = self.state();
        if connection.is_admitted() {
            state.admitted -= 1;
            less(&mut state.admitted_of, connection.address);
            return;
        }
        state.forget_new(connection.number);
        if connection.refusals.load(Ordering::Relaxed) == 0 {
            self.without_request.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counters of connections so far.
    pub fn counts(&self) -> Connections {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = {
            let state = self.state();
            state.admitted + state.new.len()
        };
        Connections {
            open: open as u64,
            limit: self.limits.connections as u64,
            opened: count(&self.opened),
            refused_full: count(&self.refused_full),
            refused_address: count(&self.refused_address),
            without_request: count(&self.without_request),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

impl State {
    /// Closes the oldest new connection of the address with the most new connections: a flood from one address
    /// closes its own connections.
    fn close_oldest_new(&mut self) {
        let Some((&address, _)) = self.new_of.iter().max_by_key(|&(_, &count)| count) else { return };
        let oldest = self.new.values().find(|connection| connection.address == address);
        let number = oldest.expect("an address is counted as long as it has some").number;
        self.forget_new(number).expect("it was found").close();
    }

    /// Removes a connection from the new connections. Returns `None` if the connection is not among the new
    /// connections.
    fn forget_new(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.new.remove(&number)?;
        less(&mut self.new_of, connection.address);
        Some(connection)
    }
}

/// Decrements the count of an address.
fn less(counts: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

/// Returns the key for counting the connections of an address: for IPv6 the /64 network.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

/// The stream of a connection. Dropping the stream frees its slot.
pub(crate) struct ConnectionStream {
    stream: TcpStream,
    guest: ClientConnection,
    /// The number of refused requests when the current period began.
    refusals: u64,
    until: Pin<Box<Sleep>>,
}

impl ConnectionStream {
    /// Returns an error if the connection has to be closed.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let connection = &self.guest.connection;
        if connection.is_admitted() {
            return Ok(());
        }
        connection.waker.register(context.waker());
        while self.until.as_mut().poll(context).is_ready() {
            let refusals = connection.refusals.load(Ordering::Relaxed);
            if refusals == self.refusals {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The client waits for a slot and retries, so the period starts again.
            self.refusals = refusals;
            self.until.as_mut().reset(Instant::now() + self.guest.door.limits.first_request);
        }
        match connection.is_closed() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl Drop for ConnectionStream {
    fn drop(&mut self) {
        self.guest.door.leave(&self.guest.connection);
    }
}

impl Connected for ConnectionStream {
    type ConnectInfo = ClientConnection;

    fn connect_info(&self) -> ClientConnection {
        self.guest.clone()
    }
}

impl AsyncRead for ConnectionStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_closed(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A peer that reads nothing must not occupy its slot forever.
        self.poll_closed(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_closed(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(connections: usize, per_address: usize) -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(ConnectionLimits {
            connections,
            per_address,
            first_request: Duration::from_secs(10),
        })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn enter(door: &Arc<ConnectionLimiter>, last: u8) -> ClientConnection {
        ClientConnection { connection: door.enter(address(last)), door: door.clone() }
    }

    fn leave(guest: &ClientConnection) {
        guest.door.leave(&guest.connection);
    }

    #[test]
    fn the_oldest_that_said_nothing_makes_room_and_nobody_else_does() {
        let door = door(3, 3);
        let asked = enter(&door, 1);
        asked.ask().unwrap();
        let new: Vec<ClientConnection> = (2..5).map(|last| enter(&door, last)).collect();
        let more = enter(&door, 2);
        let closed: Vec<bool> = new.iter().map(|guest| guest.connection.is_closed()).collect();
        assert_eq!(closed.iter().filter(|&&closed| closed).count(), 1, "{closed:?}");
        // The address of the new connection has the most new connections, and the oldest of these is the new connection
        // itself.
        let own = enter(&door, 2);
        assert!(new[0].connection.is_closed() || more.connection.is_closed());
        assert!(!asked.connection.is_closed() && !own.connection.is_closed());
        own.ask().unwrap();
        assert_eq!(door.counts().open, 4, "two that asked, and two that are new");
        new.iter().chain([&more, &own, &asked]).for_each(leave);
        let counts = door.counts();
        assert_eq!((counts.open, counts.opened, counts.without_request), (0, 6, 4));
    }

    #[test]
    fn a_connection_without_a_place_is_told_so_and_gets_the_next_one() {
        let door = door(3, 2);
        let held: Vec<ClientConnection> = (0..2).map(|_| enter(&door, 1)).collect();
        held.iter().for_each(|guest| guest.ask().unwrap());
        let third = enter(&door, 1);
        for _ in 0..3 {
            let why = third.ask().unwrap_err();
            assert_eq!(why, "2 connections from this address are open, which is the limit");
        }
        enter(&door, 2).ask().unwrap();
        let full = enter(&door, 3);
        assert_eq!(full.ask().unwrap_err(), "3 connections are open, which is the limit");
        let counts = door.counts();
        assert_eq!((counts.refused_address, counts.refused_full), (1, 1), "each is counted once");
        leave(&held[0]);
        third.ask().unwrap();
        held[1].ask().unwrap();
        assert!(full.ask().is_err());
        leave(&third);
        full.ask().unwrap();
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let of_network = |text: &str| peer(text.parse().unwrap());
        assert_eq!(of_network("2001:db8:1:2:3::4"), of_network("2001:db8:1:2:ffff::"));
        assert_ne!(of_network("2001:db8:1:2::"), of_network("2001:db8:1:3::"));
        assert_eq!(of_network("::ffff:10.0.0.1"), address(1));
    }
}
