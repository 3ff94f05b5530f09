//! Tests answers over a slow link, which a proxy between client and node simulates.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use inshore_nodes::read_from_nodes;

use super::*;

/// Starts a proxy that forwards the node's bytes at a limited rate, and returns the proxy's address.
fn slow_link(node: SocketAddr, bytes_per_second: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(node) = TcpStream::connect(node) else { return };
            let (to_node, to_client) = (node.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || hand_on(client, to_node, u64::MAX));
            thread::spawn(move || hand_on(node, to_client, bytes_per_second));
        }
    });
    address
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, bytes_per_second: u64) {
    let (began, mut handed) = (Instant::now(), 0);
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        handed += count as u64;
        let due = Duration::from_secs_f64(handed as f64 / bytes_per_second as f64);
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn what_waits_for_a_slow_link_is_compressed_where_that_makes_it_smaller() {
    let cluster = Cluster::new(1);
    let node = cluster.serving[0].as_ref().unwrap().address();
    let nodes = client(vec![slow_link(node, 6 << 20).to_string()], None);
    let words = text(700_000);
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    })
    .take(12 << 20)
    .collect();
    for (name, bytes, least, most) in [("words", words, 0.05, 0.7), ("noise", noise, 1.0, 1.05)] {
        cluster.put(name, &bytes, 1, 64 << 20);
        let whole = &nodes.catalog().unwrap().named(name).unwrap()[0];
        let before = nodes.bytes_in();
        let read = read_from_nodes(&nodes, &job(), whole, 0..bytes.len() as u64, &RunOptions::default());
        assert!(read.unwrap() == bytes, "{name}");
        let share = (nodes.bytes_in() - before) as f64 / bytes.len() as f64;
        assert!((least..most).contains(&share), "{name}: {share} of {} came over the link", bytes.len());
    }
}
