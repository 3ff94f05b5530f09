//! These tests run worker processes. They check that answers arrive, and that a worker that exceeds a limit ends.

use std::{
    env,
    hint::black_box,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    process, thread,
    time::{Duration, Instant},
};

use inshore_sandbox::{ChildLimits, ChildMemory, ChildProcess, Helper, WorkerEnd, apart_main_if_asked};

const MIB: u64 = 1 << 20;

/// If this program was started as a worker, does what the first byte on the socket says. In an ordinary test run,
/// this test does nothing.
#[test]
fn worker_process() {
    apart_main_if_asked(
        || "a trial".to_string(),
        |mut socket: UnixStream, mut memory: ChildMemory| {
            let (mut asked, mut put) = ([0], 0);
            while socket.read_exact(&mut asked).is_ok() {
                match asked[0] {
                    b'e' => socket.write_all(b"echo").unwrap(),
                    // The worker's memory grows in steps of 1 MiB.
                    b'g' => loop {
                        black_box(Box::leak(vec![1u8; MIB as usize].into_boxed_slice()));
                    },
                    // A single allocation exceeds the limit.
                    b'l' => drop(black_box(vec![1u8; 8 << 30])),
                    // The worker reserves memory without touching it.
                    b'r' => {
                        let room: Vec<u8> = Vec::with_capacity(90 * MIB as usize);
                        socket
                            .write_all(&[b'k'; 4][..usize::from(black_box(room.capacity()) > 0) * 4])
                            .unwrap();
                    }
                    // The worker frees memory, which the allocator keeps for later allocations.
                    b'f' => {
                        let parts: Vec<Vec<u8>> = (0..700).map(|_| vec![1u8; 64 << 10]).collect();
                        let last = black_box(parts).pop();
                        socket.write_all(b"free").unwrap();
                        drop(last);
                    }
                    // The worker puts more bytes into the shared memory each time.
                    b'm' => {
                        put += 1;
                        memory.put(&vec![put as u8; put * 1_000_000]).unwrap();
                        socket.write_all(b"memo").unwrap();
                    }
                    b'p' => panic!("a planned panic"),
                    b'a' => process::abort(),
                    b's' => thread::sleep(Duration::from_secs(1000)),
                    _ => break,
                }
            }
        },
    );
}

fn start() -> ChildProcess {
    let helper =
        Helper::at(env::current_exe().unwrap()).with_args(["--exact", "worker_process", "--nocapture"]);
    ChildProcess::start(&helper, ChildLimits { memory_bytes: 64 * MIB, stack_bytes: 64 * MIB, threads: 1 })
        .unwrap()
}

fn ask(apart: &ChildProcess, what: u8) -> Vec<u8> {
    apart.socket().write_all(&[what]).unwrap();
    let mut answer = [0; 4];
    apart.socket().read_exact(&mut answer).map(|()| answer.to_vec()).unwrap_or_default()
}

#[test]
fn a_worker_answers_and_ends_with_its_socket() {
    let apart = start();
    assert_eq!(ask(&apart, b'e'), b"echo");
    assert_eq!(ask(&apart, b'r'), b"kkkk", "room is no memory");
    apart.socket().shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(apart.ended(), None);
}

#[test]
fn long_answers_come_through_shared_memory() {
    let mut apart = start();
    for length in 1..=5 {
        assert_eq!(ask(&apart, b'm'), b"memo");
        let mut bytes = b"before".to_vec();
        apart.take(length * 1_000_000, &mut bytes).unwrap();
        assert!(bytes.len() == 6 + length * 1_000_000);
        assert!(bytes[6..].iter().all(|&byte| byte == length as u8));
    }
}

#[test]
fn a_worker_over_its_memory_limit_ends_with_the_name_of_the_work() {
    // If the system refuses an allocation, the error does not name the current operation.
    for (what, place, doing) in [(b'g', "at 'a trial' ", "a trial"), (b'l', "", "")] {
        let apart = start();
        assert!(ask(&apart, what).is_empty());
        let end = apart.ended().unwrap();
        assert_eq!(end.to_string(), format!("{place}it wanted more memory than the 64 MiB that it had"));
        assert_eq!(end.end(), &WorkerEnd::TooLarge(doing.to_string()));
    }
}

#[test]
fn panics_and_aborts_are_reported() {
    for (what, words) in [(b'p', "a planned panic"), (b'a', "signal: 6")] {
        let apart = start();
        assert!(ask(&apart, what).is_empty());
        let told = apart.ended().unwrap().to_string();
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_program_that_is_no_worker_is_refused() {
    let limits = ChildLimits { memory_bytes: 64 * MIB, stack_bytes: 64 * MIB, threads: 1 };
    for program in ["/bin/true", "/bin/false"] {
        let error = ChildProcess::start(&Helper::at(program), limits).unwrap_err().to_string();
        assert!(error.contains(program) && error.contains("not a helper"), "{error}");
    }
    assert!(ChildProcess::start(&Helper::at("/no/such/program"), limits).is_err());
}

#[test]
fn freed_memory_is_returned_before_a_worker_ends() {
    let apart = start();
    for _ in 0..20 {
        assert_eq!(ask(&apart, b'f'), b"free");
    }
}

#[test]
fn a_dropped_worker_is_killed_whatever_it_does() {
    let apart = start();
    assert_eq!(ask(&apart, b'e'), b"echo");
    apart.socket().write_all(b"s").unwrap();
    let began = Instant::now();
    // The worker's end of the socket closes when the worker ends.
    let mut other = apart.socket().try_clone().unwrap();
    drop(apart);
    // The worker would sleep for a thousand seconds.
    assert!(began.elapsed() < Duration::from_secs(120));
    let end = other.read(&mut [0]);
    assert!(
        end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |&read| read == 0),
        "{end:?}"
    );
}
