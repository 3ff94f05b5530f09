//! Tests loads that last long, and files with many pieces.

use std::{io::Read, net::SocketAddr};

use arrow_flight::{FlightData, PutResult, flight_service_client::FlightServiceClient};
use futures::StreamExt;
use tokio::{runtime::Runtime, sync::mpsc};
use tonic::{Status, transport::Channel};

use super::*;

/// An open load that has sent some data.
struct Open {
    out: mpsc::Sender<FlightData>,
    answers: tonic::Streaming<PutResult>,
}

fn step(step: Value, body: &[u8]) -> FlightData {
    FlightData {
        app_metadata: step.to_string().into(),
        data_body: body.to_vec().into(),
        ..FlightData::default()
    }
}

impl Open {
    async fn begin(address: SocketAddr, name: &str) -> Result<Open, Status> {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let (out, mut steps) = mpsc::channel(4);
        let begin =
            json!({ "step": "begin", "version": 4, "name": name, "id": "0".repeat(32), "block_bytes": 4096 });
        out.send(step(begin, b"")).await.unwrap();
        out.send(step(json!({ "step": "file", "name": "piece-00000000" }), b"")).await.unwrap();
        let steps = futures::stream::poll_fn(move |context| steps.poll_recv(context));
        let mut answers = FlightServiceClient::new(channel).do_put(steps).await?.into_inner();
        answers.next().await.unwrap()?;
        Ok(Open { out, answers })
    }

    async fn data(&self, body: &[u8]) {
        let _ = self.out.send(step(json!({ "step": "data" }), body)).await;
    }

    /// Returns the error with which the load ends.
    async fn ends(mut self) -> Status {
        loop {
            match self.answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended well"),
                Err(why) => return why,
            }
        }
    }
}

#[test]
fn loads_keep_no_task_waiting_and_end_with_their_node() {
    let mut cluster = Cluster::new(1);
    let text = text(3000);
    cluster.put("text", &text, 1, 1 << 20);
    let serving = cluster.serving[0].take().unwrap();
    let address = serving.address();
    let runtime = Runtime::new().unwrap();
    // The node has two slots, and memory for four loads.
    let loads: Vec<Open> = runtime.block_on(async {
        let begun = ["a", "b"].map(|name| Open::begin(address, name));
        let begun = futures::future::join_all(begun).await;
        begun.into_iter().map(Result::unwrap).collect()
    });
    runtime.block_on(loads[0].data(b"some\n"));
    let small = RunOptions { node_memory_bytes: Some(8 << 20), ..RunOptions::default() };
    let found = cluster.find(&find("needle"), "text", &small).unwrap();
    assert_eq!(found.places, expected(&text));
    // The node shuts down while the loads are idle.
    let ended = thread::spawn(move || serving.stop());
    for load in loads {
        let why = runtime.block_on(load.ends());
        assert!(why.message().contains("the node is shutting down"), "{why}");
    }
    ended.join().unwrap().unwrap();
    let store = Store::open(cluster._folders[0].path()).unwrap();
    assert_eq!(store.list().unwrap().len(), 1, "nothing of them is left");
}

#[test]
fn a_load_that_brings_nothing_is_one_that_makes_no_sense() {
    let cluster = Cluster::new(1);
    let runtime = Runtime::new().unwrap();
    let address = cluster.serving[0].as_ref().unwrap().address();
    let why = runtime.block_on(async {
        let load = Open::begin(address, "empty").await.unwrap();
        load.data(b"").await;
        load.ends().await
    });
    assert!(why.message().contains("a data message is empty"), "{why}");
}

/// The map of a file with many pieces is sent in several messages.
#[test]
fn a_file_of_many_pieces_is_read_as_one() {
    let cluster = Cluster::new(2);
    let text = text(60_000);
    cluster.put("text", &text, 2, 1000);
    let catalog = cluster.nodes.catalog().unwrap();
    let wholes = catalog.named("text").unwrap();
    assert!(wholes[0].pieces.len() > 2000, "{}", wholes[0].pieces.len());
    let found = cluster.find(&find("needle"), "text", &RunOptions::default()).unwrap();
    assert_eq!(found.places, expected(&text));
}

/// The input is a pipe whose writer flushes after each line, while the nodes are slow.
#[test]
fn what_comes_in_little_bits_is_sent_in_larger_ones() {
    struct Bits<'a>(&'a [u8]);
    impl Read for Bits<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let few = self.0.len().min(20).min(buffer.len());
            let (now, later) = self.0.split_at(few);
            buffer[..few].copy_from_slice(now);
            self.0 = later;
            Ok(few)
        }
    }
    let cluster = Cluster::new(1);
    let text = text(60_000);
    let loaded =
        cluster.nodes.put(&job(), "text", ("bits", None), Bits(&text), &LoadOptions::default()).unwrap();
    // Each message has an overhead of about 30 bytes.
    assert!(loaded.bytes_moved < text.len() as u64 * 101 / 100, "{loaded:?}");
    let found = cluster.find(&find("needle"), "text", &RunOptions::default()).unwrap();
    assert_eq!(found.places, expected(&text));
}
