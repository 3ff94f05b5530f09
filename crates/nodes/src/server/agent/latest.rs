//! Runs a query that may hang, with a bounded wait, and stores its latest result.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

/// The latest result of a query to a drive, which may hang. At most one thread runs the query at a time.
#[derive(Debug, Default)]
pub(super) struct Latest<T>(Arc<(Mutex<State<T>>, Condvar)>);

#[derive(Debug, Default)]
struct State<T> {
    answer: T,
    is_asked: bool,
}

impl<T: Clone + Send + 'static> Latest<T> {
    /// Runs `ask` and returns the result, or the previous result if `ask` takes longer than `patience`. If
    /// `ask` returns `None`, the previous result stays.
    pub fn get(&self, patience: Duration, ask: impl FnOnce() -> Option<T> + Send + 'static) -> T {
        let (state, answered) = &*self.0;
        let mut now = state.lock().expect("no panic under this lock");
        if !now.is_asked {
            let shared = self.0.clone();
            let asking = thread::Builder::new().name("inshore-status".into()).spawn(move || {
                // A panicking query counts as a query without a result.
                let answer = panic::catch_unwind(AssertUnwindSafe(ask)).ok().flatten();
                let (state, answered) = &*shared;
                let mut now = state.lock().expect("no panic under this lock");
                if let Some(answer) = answer {
                    now.answer = answer;
                }
                now.is_asked = false;
                answered.notify_all();
            });
            // If the thread cannot be started, the next call tries again.
            now.is_asked = asking.is_ok();
        }
        let waited = answered.wait_timeout_while(now, patience, |now| now.is_asked);
        waited.expect("no panic under this lock").0.answer.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Instant};

    use super::*;

    #[test]
    fn a_question_that_hangs_is_answered_as_before_and_asked_once() {
        let latest = Latest::<u32>::default();
        let long = Duration::from_secs(60);
        assert_eq!(latest.get(long, || Some(1)), 1);
        assert_eq!(latest.get(long, || None), 1);
        let (hang, hanging) = mpsc::channel::<()>();
        let began = Instant::now();
        let hung = move || {
            let _ = hanging.recv();
            Some(2)
        };
        assert_eq!(latest.get(Duration::from_millis(20), hung), 1);
        assert_eq!(latest.get(Duration::from_millis(20), || unreachable!("one is asking")), 1);
        assert!(began.elapsed() < long);
        drop(hang);
        assert_eq!(Latest::<u32>::default().get(long, || panic!("for the test")), 0);
        // The query that hung delivers its result first.
        let last = (0..1000).map(|_| latest.get(long, || None)).find(|&answer| answer == 2);
        assert_eq!(last, Some(2));
    }
}
