//! Limits the number of files that a node receives at the same time.
//!
//! A load takes memory of the node, but no slot, so loads do not delay tasks. A load needs little CPU time, and lasts
//! as long as its client sends data, which may be long.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inshore_store::Cancel;

use crate::server::queue::{Permit, Queue};

/// The memory for receiving a file, in bytes: buffers, received messages, lists and checksums.
pub(super) const RECEIVE_MEMORY_BYTES: u64 = 16 << 20;
/// The maximum number of simultaneous loads of all clients.
const LOADS_MAX: usize = 16;
/// The maximum number of simultaneous loads of one client.
const LOADS_OF_CLIENT_MAX: usize = 8;

/// The longest time that a load waits for admission. The wait is limited, since two clients could otherwise
/// wait forever, each for a node on which the other client has a load.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The running loads of a node.
#[derive(Debug, Default)]
pub(super) struct RunningLoads {
    by_client: Arc<Mutex<BTreeMap<String, usize>>>,
    stop: Cancel,
}

/// The permission to load a file, together with the memory that is reserved for the load.
#[derive(Debug)]
pub(super) struct LoadPermit {
    client: String,
    by_client: Arc<Mutex<BTreeMap<String, usize>>>,
    _memory: Permit,
}

impl RunningLoads {
    /// Admits a load immediately, or refuses the load.
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub fn enter(&self, client: &str, queue: &Queue) -> Result<LoadPermit, String> {
        let mut by_client = self.by_client.lock().expect("no panic under this lock");
        let (all, own) = (by_client.values().sum::<usize>(), by_client.get(client).copied().unwrap_or(0));
        if own >= LOADS_OF_CLIENT_MAX {
            return Err(format!("{client} is uploading {own} files already, the limit for a client"));
        }
        if all >= LOADS_MAX {
            return Err(format!("{all} files are being uploaded already, the limit of the node"));
        }
        let _memory = queue.reserve_without_slot(RECEIVE_MEMORY_BYTES)?;
        *by_client.entry(client.to_string()).or_default() += 1;
        Ok(LoadPermit { client: client.to_string(), by_client: self.by_client.clone(), _memory })
    }

    /// Admits a load as soon as the limits permit, or refuses the load after [`WAIT_MAX`].
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub async fn wait(&self, client: &str, queue: &Queue) -> Result<LoadPermit, String> {
        let arrived = Instant::now();
        loop {
            match self.enter(client, queue) {
                Ok(permit) => return Ok(permit),
                Err(why) if arrived.elapsed() > WAIT_MAX => return Err(why),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Returns the cancellation flag of all loads.
    pub fn stop(&self) -> Cancel {
        self.stop.clone()
    }
}

impl Drop for LoadPermit {
    fn drop(&mut self) {
        let mut by_client = self.by_client.lock().expect("no panic under this lock");
        if let Some(own) = by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_half_of_the_places_and_all_have_memory() {
        let (loads, queue) = (RunningLoads::default(), Queue::new(18 * RECEIVE_MEMORY_BYTES, 1, 1));
        let enter = |client: &str| loads.enter(client, &queue);
        let mut own: Vec<LoadPermit> = (0..8).map(|_| enter("a").unwrap()).collect();
        assert!(enter("a").unwrap_err().contains("a is uploading 8 files"));
        let _others: Vec<LoadPermit> = (0..8).map(|_| enter("b").unwrap()).collect();
        assert!(enter("c").unwrap_err().contains("16 files are being uploaded"));
        own.pop();
        let _third = enter("c").unwrap();
        own.clear();
        let memory = queue.reserve_without_slot(9 * RECEIVE_MEMORY_BYTES).unwrap();
        assert!(enter("a").unwrap_err().contains("leave 0 bytes of memory free"));
        drop(memory);
        enter("a").unwrap();
        assert_eq!(loads.by_client.lock().unwrap().len(), 2, "whoever has none is forgotten");
    }
}
