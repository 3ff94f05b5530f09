//! Sends malformed bytes to an agent in a process of its own. The agent must survive, its memory must stay bounded, and
//! it must still answer valid requests.
//!
//! Each test request is a valid request that is damaged in one layer: the JSON, the protocol buffer that contains the
//! JSON, the gRPC frame of the protocol buffer, or the HTTP/2 frames. Every 200 seeds the test prints the seed, and
//! checks that the agent still works. INSHORE_SEEDS sets the number of seeds.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    nodes::Node,
    util::{Folder, PATIENCE, until},
};

/// Pseudo-random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Damages bytes in one to four places.
    fn broken(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.below(4) {
            let place = self.below(bytes.len());
            let end = (place + 1 + self.below(16)).min(bytes.len());
            match self.below(6) {
                _ if bytes.is_empty() => bytes.push(self.below(256) as u8),
                0 => bytes[place] ^= 1 << self.below(8),
                1 => bytes[place] = self.one_of(&[0, 0xff, 0x7f, 0x80]),
                2 => bytes.truncate(place),
                3 => {
                    let again = bytes[place..end].to_vec();
                    bytes.splice(place..place, again);
                }
                4 => drop(bytes.drain(place..end)),
                _ => {
                    let noise: Vec<u8> = (0..1 + self.below(40)).map(|_| self.below(256) as u8).collect();
                    bytes.splice(place..place, noise);
                }
            }
        }
        bytes
    }

    /// Replaces one value in the JSON by another.
    fn broken_json(&mut self, value: &mut Value) {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let go_on = self.below(4) > 0;
        match value {
            Value::Object(fields) if go_on && !fields.is_empty() => {
                let place = self.below(fields.len());
                let name = fields.keys().nth(place).expect("it has so many").clone();
                match self.below(8) {
                    0 => drop(fields.remove(&name)),
                    _ => self.broken_json(&mut fields[&name]),
                }
            }
            Value::Array(items) if go_on && !items.is_empty() => {
                let place = self.below(items.len());
                match self.below(8) {
                    0 => {
                        let again = items[place].clone();
                        items.extend(std::iter::repeat_n(again, 200));
                    }
                    _ => self.broken_json(&mut items[place]),
                }
            }
            _ => {
                *value = self.one_of(&[
                    json!(null),
                    json!(true),
                    json!(-1),
                    json!(0),
                    json!(1),
                    json!(u64::MAX),
                    json!(i64::MIN),
                    json!(1e300),
                    json!(0.5),
                    json!(""),
                    json!("\u{0}"),
                    json!("../../../etc/passwd"),
                    json!("x".repeat(100_000)),
                    json!({}),
                    json!([]),
                    json!([[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]),
                    serde_json::from_str(&deep(100)).expect("JSON"),
                ]);
            }
        }
    }
}

/// Builds a frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// Builds a field of type `bytes` of a protocol buffer.
fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(bytes.len()), bytes.to_vec()].concat()
}

/// Builds uncompressed headers (RFC 7541, section 6.2.2), in which names and values are written in full.
fn headers(method: &str) -> Vec<u8> {
    let path = format!("/arrow.flight.protocol.FlightService/{method}");
    let all = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [vec![text.len() as u8], text.as_bytes().to_vec()].concat();
    all.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// A gRPC request: its method and its messages. A message has the number of a field, the JSON in this field, and the
/// bytes of further fields.
struct Request {
    method: &'static str,
    messages: Vec<(usize, Value, Vec<u8>)>,
}

fn requests(id: u64) -> Vec<Request> {
    let piece = json!({ "number": 0, "whole": 0, "dataset": "web.log", "id": id, "file": "piece-00000000", "from": 0,
        "to": 2, "offset": 0, "lines": 0 });
    let task = |kind: &str, arguments: Value| {
        json!({ "version": 4, "kind": kind, "arguments": arguments, "pieces": [piece.clone(), piece.clone()],
            "memory_bytes": 16 << 20, "deadline_ms": 2000, "alive_ms": 100 })
    };
    let options = json!({ "fixed": false, "ignore_case": false, "smart_case": false, "words": false, "lines": false,
        "invert": false, "crlf": false });
    let wanted = json!({ "lines": { "numbered": true, "spans": true, "before": 1, "after": 0 } });
    let arguments =
        json!({ "patterns": ["ERR(O|0)R"], "options": options, "wanted": wanted, "detect_binary": true });
    let get = |ticket: Value| Request { method: "DoGet", messages: vec![(1, ticket, Vec::new())] };
    let action = |kind: &str, body: Value| Request {
        method: "DoAction",
        messages: vec![(2, body, field(1, kind.as_bytes()))],
    };
    let step = |step: Value, body: &[u8]| (3, step, field(1000, body));
    let spread = "0123456789abcdef0123456789abcdef";
    let generation = json!({ "id": spread, "number": 1, "put_ms": 7 });
    let map = json!({ "version": 2, "generation": generation, "nodes": [{ "number": 1, "name": "a" }],
        "pieces": [{ "bytes": 4, "lines": 1, "nodes": [0] }] });
    let put = Request {
        method: "DoPut",
        messages: vec![
            step(
                json!({ "step": "begin", "version": 4, "name": "new", "id": spread, "block_bytes": 4096 }),
                b"",
            ),
            step(json!({ "step": "file", "name": "piece-00000000" }), b""),
            step(json!({ "step": "data" }), b"abc\n"),
            step(json!({ "step": "received" }), b""),
            step(json!({ "step": "commit", "map": map }), b""),
        ],
    };
    vec![
        get(task("read", json!({}))),
        get(task("search", arguments)),
        get(task(
            "count-words",
            json!({ "split": true, "ignore_case": false, "min_count": 1, "top": 9, "table_bytes": null }),
        )),
        action("status", json!({})),
        action("catalog", json!({})),
        action("map", json!([{ "name": "web.log", "id": id }, { "name": "nothing", "id": 7 }])),
        action("remove", json!({ "name": "nothing", "id": id })),
        action(
            "remove",
            json!({ "name": "nothing", "mark": { "version": 2, "name": "nothing", "generation": generation,
                "removed_ms": 8, "absent": [{ "number": 1, "name": "a" }] } }),
        ),
        action("drainage", json!({})),
        put,
    ]
}

/// Returns the bytes that a client sends for a request, damaged in one layer.
fn conversation(request: &Request, dice: &mut Dice) -> Vec<u8> {
    let layer = dice.below(5);
    let broken = dice.below(request.messages.len());
    let mut body = Vec::new();
    for (place, (number, value, more)) in request.messages.iter().enumerate() {
        let mut value = value.clone();
        let is_broken = place == broken;
        if is_broken && layer == 0 {
            dice.broken_json(&mut value);
        }
        let mut text = value.to_string().into_bytes();
        if is_broken && layer == 1 {
            text = dice.broken(text);
        }
        let mut message = [more.clone(), field(*number, &text)].concat();
        if is_broken && layer == 2 {
            message = dice.broken(message);
        }
        let mut prefix = [vec![0], (message.len() as u32).to_be_bytes().to_vec()].concat();
        if is_broken && layer == 3 {
            // The damaged frame header either claims compression although no algorithm is named, or has a wrong length.
            prefix = match dice.below(4) {
                0 => [vec![1], prefix[1..].to_vec()].concat(),
                1 => [vec![0], u32::MAX.to_be_bytes().to_vec()].concat(),
                2 => [vec![0], ((16u32 << 20) - 1).to_be_bytes().to_vec()].concat(),
                _ => dice.broken(prefix),
            };
        }
        body.extend(prefix);
        body.extend(message);
    }
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, &[]));
    out.extend(frame(1, 4, 1, &headers(request.method)));
    let chunks: Vec<&[u8]> = body.chunks(16 << 10).collect();
    for (place, chunk) in chunks.iter().enumerate() {
        out.extend(frame(0, u8::from(place + 1 == chunks.len()), 1, chunk));
    }
    match layer {
        4 => dice.broken(out),
        _ => out,
    }
}

/// Sends bytes to an agent, and reads a little of its answer. The agent may close the connection at any time.
fn say(address: &str, bytes: &[u8], patience: Duration) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.read(&mut [0; 4096]);
}

/// Returns the id of the only dataset, as the catalog lists it.
fn dataset_id(address: &str) -> u64 {
    let message = field(1, b"catalog");
    let body = [vec![0], (message.len() as u32).to_be_bytes().to_vec(), message].concat();
    let asked = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers("DoAction")),
    ];
    let asked = [asked.concat(), frame(0, 1, 1, &body)].concat();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&asked).unwrap();
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&heard).into_owned();
        let digits = text.split("\"id\":").nth(1).map(|rest| rest.split(',').next().unwrap());
        if let Some(id) = digits.and_then(|digits| digits.parse().ok()) {
            return id;
        }
        let len = stream.read(&mut piece).expect("an answer");
        assert!(len > 0, "it ends after {text}");
        heard.extend(&piece[..len]);
    }
}

fn resident_bytes_max(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn an_agent_outlives_whatever_is_sent_to_it() {
    let folder = Folder::new();
    let mut node = Node::start(&folder, "node0", "--log none --connections 32");
    let (address, process) = (node.address.clone(), node.id());
    folder.write("web.log", "a\nan ERROR\n".repeat(1000));
    folder.run(&format!("store put web.log --node {address} --quiet")).ok();
    let is_well = || {
        let said = folder.run(&format!("search -c ERROR store:web.log --node {address}")).ok();
        assert_eq!(said.stdout, "1000\n");
    };
    let began = Instant::now();
    let seeds = std::env::var("INSHORE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(600);
    let all = requests(dataset_id(&address));
    for seed in 1..=seeds {
        let mut dice = Dice::new(seed);
        let request = &all[dice.below(all.len())];
        let bytes = match dice.below(20) {
            0 => (0..dice.below(5000)).map(|_| dice.below(256) as u8).collect(),
            _ => conversation(request, &mut dice),
        };
        say(&address, &bytes, Duration::from_millis(12));
        if seed % 200 == 0 {
            println!("seed {seed}, after {:.1} s", began.elapsed().as_secs_f64());
            is_well();
        }
    }
    // This message exceeds the size limit, and its stream never ends. The agent may keep only a bounded part of the
    // message.
    let large = [vec![0], (64u32 << 20).to_be_bytes().to_vec(), vec![b' '; 40 << 20]].concat();
    let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    bytes.extend(frame(1, 4, 1, &headers("DoGet")));
    large.chunks(16 << 10).for_each(|chunk| bytes.extend(frame(0, 0, 1, chunk)));
    // In this request the headers never end.
    let mut endless = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    endless.extend(frame(1, 0, 1, &headers("DoGet")));
    (0..2000).for_each(|_| endless.extend(frame(9, 0, 1, &[0x40; 16_000])));
    for _ in 0..4 {
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| say(&address, &bytes, Duration::from_millis(100)))));
            scope.spawn(|| say(&address, &endless, Duration::from_millis(100)));
        });
    }
    is_well();
    until("tasks run on without clients", || {
        let status = folder.run(&format!("node status --node {address} --json")).ok().json();
        status[0]["status"]["running"].as_array().unwrap().is_empty()
    });
    // The agent may use 64 MiB for tasks, 64 MiB more for the process, and memory for the data in flight on 32
    // connections.
    let most = resident_bytes_max(process);
    println!("at most {} MiB were resident", most >> 20);
    assert!(most < 192 << 20, "{most} bytes were resident");
    let errors = node.stop();
    assert!(!errors.contains("panicked"), "{errors}");
}
