//! Work in a process apart: what it says arrives, and what it takes too much of ends it.

use std::{
    env,
    hint::black_box,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    process, thread,
    time::{Duration, Instant},
};

use inshore_sandbox::{Apart, ApartLimits, ApartMemory, Helper, WorkerEnd, apart_main_if_asked};

const MIB: u64 = 1 << 20;

/// Not a test where this program was started to work apart: then it does what the first byte says.
#[test]
fn works_apart() {
    apart_main_if_asked(
        || "a trial".to_string(),
        |mut socket: UnixStream, mut memory: ApartMemory| {
            let (mut asked, mut put) = ([0], 0);
            while socket.read_exact(&mut asked).is_ok() {
                match asked[0] {
                    b'e' => socket.write_all(b"echo").unwrap(),
                    // Page by page, as memory grows.
                    b'g' => loop {
                        black_box(Box::leak(vec![1u8; MIB as usize].into_boxed_slice()));
                    },
                    // At once.
                    b'l' => drop(black_box(vec![1u8; 8 << 30])),
                    // Room that is not touched.
                    b'r' => {
                        let room: Vec<u8> = Vec::with_capacity(90 * MIB as usize);
                        socket
                            .write_all(&[b'k'; 4][..usize::from(black_box(room.capacity()) > 0) * 4])
                            .unwrap();
                    }
                    // Freed, and by habit kept for what comes next.
                    b'f' => {
                        let parts: Vec<Vec<u8>> = (0..700).map(|_| vec![1u8; 64 << 10]).collect();
                        let last = black_box(parts).pop();
                        socket.write_all(b"free").unwrap();
                        drop(last);
                    }
                    // Longer each time, in the memory in common.
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

fn start() -> Apart {
    let helper = Helper::at(env::current_exe().unwrap()).with_args(["--exact", "works_apart", "--nocapture"]);
    Apart::start(&helper, ApartLimits { memory_bytes: 64 * MIB, stack_bytes: 64 * MIB, threads: 1 }).unwrap()
}

fn ask(apart: &Apart, what: u8) -> Vec<u8> {
    apart.socket().write_all(&[what]).unwrap();
    let mut answer = [0; 4];
    apart.socket().read_exact(&mut answer).map(|()| answer.to_vec()).unwrap_or_default()
}

#[test]
fn it_answers_and_ends_with_its_socket() {
    let apart = start();
    assert_eq!(ask(&apart, b'e'), b"echo");
    assert_eq!(ask(&apart, b'r'), b"kkkk", "room is no memory");
    apart.socket().shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(apart.ended(), None);
}

#[test]
fn what_is_long_comes_through_memory_in_common() {
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
fn more_memory_than_it_was_given_ends_it_and_is_told() {
    // Where the system refuses to give any, nobody can tell at what.
    for (what, place, doing) in [(b'g', "at 'a trial' ", "a trial"), (b'l', "", "")] {
        let apart = start();
        assert!(ask(&apart, what).is_empty());
        let end = apart.ended().unwrap();
        assert_eq!(end.to_string(), format!("{place}it wanted more memory than the 64 MiB that it had"));
        assert_eq!(end.end(), &WorkerEnd::TooLarge(doing.to_string()));
    }
}

#[test]
fn another_end_is_told_as_what_it_was() {
    for (what, words) in [(b'p', "a planned panic"), (b'a', "signal: 6")] {
        let apart = start();
        assert!(ask(&apart, what).is_empty());
        let told = apart.ended().unwrap().to_string();
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_program_that_does_not_work_apart_is_refused() {
    let limits = ApartLimits { memory_bytes: 64 * MIB, stack_bytes: 64 * MIB, threads: 1 };
    for program in ["/bin/true", "/bin/false"] {
        let error = Apart::start(&Helper::at(program), limits).unwrap_err().to_string();
        assert!(error.contains(program) && error.contains("not a helper"), "{error}");
    }
    assert!(Apart::start(&Helper::at("/no/such/program"), limits).is_err());
}

#[test]
fn what_was_freed_is_given_back_before_it_ends() {
    let apart = start();
    for _ in 0..20 {
        assert_eq!(ask(&apart, b'f'), b"free");
    }
}

#[test]
fn one_that_is_let_go_is_killed_whatever_it_does() {
    let apart = start();
    assert_eq!(ask(&apart, b'e'), b"echo");
    apart.socket().write_all(b"s").unwrap();
    let began = Instant::now();
    // The other end of its socket is gone with it.
    let mut other = apart.socket().try_clone().unwrap();
    drop(apart);
    // What it does takes a thousand seconds.
    assert!(began.elapsed() < Duration::from_secs(120));
    let end = other.read(&mut [0]);
    assert!(
        end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |&read| read == 0),
        "{end:?}"
    );
}
