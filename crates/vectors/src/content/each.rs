//! Processes a batch of items on several threads. Each item has its own row in the result.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{Error, Result};

/// Calls `work` with each item and its row. If `is_stopped` is true, no further items are started after an error. If
/// `is_stopped` is false, only a cancellation stops the function. Returns a list with one element for each item: the
/// error of the item, or `None`.
///
/// Items are started in order, so all items before the first error are complete.
pub fn each_row<T: Sync>(
    threads: usize,
    items: &[T],
    rows: &mut [u8],
    row_bytes: usize,
    is_stopped: bool,
    work: impl Fn(&T, &mut [u8]) -> Result<()> + Sync,
) -> Vec<Option<Error>> {
    let mut errors: Vec<Option<Error>> = items.iter().map(|_| None).collect();
    let failed = AtomicBool::new(false);
    {
        let next = Mutex::new(items.iter().zip(rows.chunks_exact_mut(row_bytes)).zip(&mut errors));
        let run = || {
            while !failed.load(Ordering::Relaxed) {
                let Some(((item, row), outcome)) = next.lock().expect("no panic under this lock").next()
                else {
                    break;
                };
                if let Err(error) = work(item, row) {
                    failed.store(is_stopped || error.is_cancelled(), Ordering::Relaxed);
                    *outcome = Some(error);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.min(items.len()) {
                scope.spawn(run);
            }
            run();
        });
    }
    errors
}
