//! This module processes pieces in parallel, and returns the results in the order of the pieces.

use std::{collections::VecDeque, thread};

use crossbeam_channel::{Receiver, bounded};

use crate::Result;

/// Runs `work` on the pieces that `next` returns, on `threads` threads. Calls `done` with the results, in the order of
/// the pieces. `next` and `done` run on the caller's thread. The function calls `next` only if at most `threads` pieces
/// are in work. A piece is in work from the time when `next` returns it until `done` receives its result.
pub(crate) fn in_order<T: Send, R: Send>(
    threads: usize,
    mut next: impl FnMut() -> Result<Option<T>>,
    work: impl Fn(T) -> Result<R> + Sync,
    mut done: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let (tasks, queue) = bounded::<(T, crossbeam_channel::Sender<Result<R>>)>(threads);
        for _ in 0..threads {
            let (queue, work) = (queue.clone(), &work);
            scope.spawn(move || {
                for (task, answer) in queue {
                    // If `next` or `done` failed, the receiver no longer exists.
                    let _ = answer.send(work(task));
                }
            });
        }
        drop(queue);
        let mut flying: VecDeque<Receiver<Result<R>>> = VecDeque::new();
        let take = |flying: &mut VecDeque<Receiver<Result<R>>>| {
            flying.pop_front().map(|answer| answer.recv().expect("workers answer what they took"))
        };
        while let Some(task) = next()? {
            let (answer, receiver) = bounded(1);
            tasks.send((task, answer)).expect("workers live as long as there are tasks");
            flying.push_back(receiver);
            while flying.len() > threads {
                if let Some(result) = take(&mut flying) {
                    done(result?)?;
                }
            }
        }
        drop(tasks);
        while let Some(result) = take(&mut flying) {
            done(result?)?;
        }
        Ok(())
    })
}
