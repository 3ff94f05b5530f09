//! Which connections are open, and when one that asks for nothing is closed.
//!
//! - A connection is *new* until a request came over it whose token is good (without credentials: any request). It has
//!   [`DoorLimits::first_request`] of time for all that goes before: TLS, the greeting of HTTP/2, the request.
//! - Where all places are taken, the oldest new connection makes room for one that comes; where none is new, that one is closed.
//! - One address has so many places at most; of IPv6 that is a network of 64 bits, which one machine can have for itself.
//!
//! So connections that say nothing, or not the right thing, lock nobody out, however many there are.

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
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use super::protocol::Connections;

/// How many connections, and how long one may take to ask for something.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoorLimits {
    pub connections: usize,
    pub per_address: usize,
    pub first_request: Duration,
}

/// All open connections.
#[derive(Debug)]
pub(super) struct Door {
    limits: DoorLimits,
    state: Mutex<State>,
    opened: AtomicU64,
    refused_full: AtomicU64,
    refused_address: AtomicU64,
    without_request: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Arc<Guest>>,
    by_address: HashMap<IpAddr, usize>,
}

/// One end of a connection, as its requests see it.
#[derive(Debug)]
pub(super) struct Guest {
    address: IpAddr,
    has_asked: AtomicBool,
    is_closed: AtomicBool,
    waker: AtomicWaker,
}

impl Guest {
    /// A request came over the connection that is worth an answer.
    pub fn has_asked(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    fn is_new(&self) -> bool {
        !self.has_asked.load(Ordering::Relaxed) && !self.is_closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

impl Door {
    pub fn new(limits: DoorLimits) -> Arc<Door> {
        Arc::new(Door {
            limits,
            state: Mutex::default(),
            opened: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            refused_address: AtomicU64::new(0),
            without_request: AtomicU64::new(0),
        })
    }

    /// Takes a connection in, if there is a place for it.
    pub fn admit(self: &Arc<Self>, stream: TcpStream) -> Option<Visit> {
        let (number, guest) = self.enter(peer(stream.peer_addr().ok()?.ip()))?;
        let until = Box::pin(sleep(self.limits.first_request));
        Some(Visit { stream, number, guest, door: self.clone(), until })
    }

    fn enter(&self, address: IpAddr) -> Option<(u64, Arc<Guest>)> {
        let limits = &self.limits;
        let mut state = self.state();
        let mut to_close = None;
        let of_address = state.by_address.get(&address).copied().unwrap_or(0);
        // Whoever has all places that an address may have replaces his own.
        if of_address >= limits.per_address {
            to_close = state.oldest_new(|guest| guest.address == address);
            if to_close.is_none() {
                self.refused_address.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        } else if state.open.len() >= limits.connections {
            to_close = state.oldest_new(|_| true);
            if to_close.is_none() {
                self.refused_full.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        if let Some(number) = to_close {
            state.forget(number).expect("it was found").close();
        }
        let number = state.next;
        state.next += 1;
        let guest = Arc::new(Guest {
            address,
            has_asked: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        state.open.insert(number, guest.clone());
        *state.by_address.entry(address).or_default() += 1;
        drop(state);
        self.opened.fetch_add(1, Ordering::Relaxed);
        Some((number, guest))
    }

    fn leave(&self, number: u64, guest: &Guest) {
        self.state().forget(number);
        if !guest.has_asked.load(Ordering::Relaxed) {
            self.without_request.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What came of connections so far.
    pub fn counts(&self) -> Connections {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Connections {
            open: self.state().open.len() as u64,
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
    fn oldest_new(&self, is_meant: impl Fn(&Guest) -> bool) -> Option<u64> {
        let mut open = self.open.iter();
        open.find(|(_, guest)| guest.is_new() && is_meant(guest)).map(|(&number, _)| number)
    }

    /// Gives the place of a connection back, once.
    fn forget(&mut self, number: u64) -> Option<Arc<Guest>> {
        let guest = self.open.remove(&number)?;
        if let Some(count) = self.by_address.get_mut(&guest.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&guest.address);
            }
        }
        Some(guest)
    }
}

/// What counts as one address.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

/// A connection that has a place, which it gives back when it ends.
pub(super) struct Visit {
    stream: TcpStream,
    number: u64,
    guest: Arc<Guest>,
    door: Arc<Door>,
    until: Pin<Box<Sleep>>,
}

impl Visit {
    /// An error where the connection is to be closed.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.guest.has_asked.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.guest.waker.register(context.waker());
        let is_over = self.until.as_mut().poll(context).is_ready();
        match is_over || self.guest.is_closed.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.door.leave(self.number, &self.guest);
    }
}

impl Connected for Visit {
    type ConnectInfo = Arc<Guest>;

    fn connect_info(&self) -> Arc<Guest> {
        self.guest.clone()
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_closed(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A peer that reads nothing is not to keep its place by that.
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

    fn door(connections: usize, per_address: usize) -> Arc<Door> {
        Door::new(DoorLimits { connections, per_address, first_request: Duration::from_secs(10) })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_oldest_that_said_nothing_makes_room_and_nobody_else_does() {
        let door = door(3, 3);
        let first = door.enter(address(1)).unwrap();
        first.1.has_asked();
        let (second, third) = (door.enter(address(2)).unwrap(), door.enter(address(3)).unwrap());
        let fourth = door.enter(address(4)).unwrap();
        assert!(second.1.is_closed.load(Ordering::Relaxed), "it was the oldest new one");
        assert!(first.1.has_asked.load(Ordering::Relaxed) && third.1.is_new());
        third.1.has_asked();
        fourth.1.has_asked();
        assert!(door.enter(address(5)).is_none(), "all are at work");
        door.leave(second.0, &second.1);
        assert_eq!(door.counts().open, 3, "its place was given away already");
        door.leave(first.0, &first.1);
        assert!(door.enter(address(5)).is_some());
        let counts = door.counts();
        assert_eq!((counts.opened, counts.refused_full, counts.without_request), (5, 1, 1));
    }

    #[test]
    fn one_address_has_so_many_places() {
        let door = door(10, 2);
        let held: Vec<_> = (0..2).map(|_| door.enter(address(1)).unwrap()).collect();
        held.iter().for_each(|(_, guest)| guest.has_asked());
        assert!(door.enter(address(1)).is_none());
        assert!(door.enter(address(2)).is_some());
        assert_eq!(door.counts().refused_address, 1);
        door.leave(held[0].0, &held[0].1);
        let new = door.enter(address(1)).unwrap();
        // His own new one makes room, not that of another.
        assert!(door.enter(address(1)).is_some() && !new.1.is_new());
        let of_network = |text: &str| peer(text.parse().unwrap());
        assert_eq!(of_network("2001:db8:1:2:3::4"), of_network("2001:db8:1:2:ffff::"));
        assert_ne!(of_network("2001:db8:1:2::"), of_network("2001:db8:1:3::"));
        assert_eq!(of_network("::ffff:10.0.0.1"), address(1));
    }
}
