//! Nodes that speak as nodes do, and lie.

use std::{collections::BTreeSet, net::SocketAddr};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_client::FlightServiceClient,
    flight_service_server::{FlightService, FlightServiceServer},
};
use futures::{StreamExt, stream::BoxStream};
use inshore_neardata::nodes::{HelpWith, stream_with_help};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Server},
};

use super::{
    helping::{helping, slow},
    *,
};

#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Any question is answered without end.
    Endless,
    /// What was given back once is given back again and again.
    Again,
    /// Pieces that another node was asked for are given back.
    Others,
}

/// Hands on what an agent says, with changes.
struct Liar {
    agent: FlightServiceClient<Channel>,
    lie: Lie,
    given: Mutex<Option<Vec<u8>>>,
}

type Said<T> = Result<Response<T>, Status>;
type Stream<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl FlightService for Liar {
    type HandshakeStream = Stream<HandshakeResponse>;
    type ListFlightsStream = Stream<FlightInfo>;
    type DoGetStream = Stream<FlightData>;
    type DoPutStream = Stream<PutResult>;
    type DoExchangeStream = Stream<FlightData>;
    type DoActionStream = Stream<arrow_flight::Result>;
    type ListActionsStream = Stream<ActionType>;

    async fn do_get(&self, request: Request<Ticket>) -> Said<Self::DoGetStream> {
        Ok(self.agent.clone().do_get(request.into_inner()).await?.map(Streaming::boxed))
    }

    async fn do_action(&self, request: Request<Action>) -> Said<Self::DoActionStream> {
        let taken = request.get_ref().r#type == "take-back";
        let said = |body: Vec<u8>| arrow_flight::Result { body: body.into() };
        let only = |body: Vec<u8>| Response::new(futures::stream::iter([Ok(said(body))]).boxed());
        match self.lie {
            Lie::Endless => {
                let more = move |_| Ok(said(vec![b' '; 1 << 20]));
                Ok(Response::new(futures::stream::repeat(()).map(more).boxed()))
            }
            Lie::Again if taken => {
                if let Some(body) = self.given.lock().unwrap().clone() {
                    return Ok(only(body));
                }
                let mut answers = self.agent.clone().do_action(request.into_inner()).await?.into_inner();
                let body = answers.next().await.unwrap()?.body.to_vec();
                if serde_json::from_slice::<Value>(&body).unwrap()["piece"].is_u64() {
                    *self.given.lock().unwrap() = Some(body.clone());
                }
                Ok(only(body))
            }
            // Nodes have the pieces of a file in turn, and this is the first one.
            Lie::Others if taken => Ok(only(br#"{"piece":1}"#.to_vec())),
            _ => Ok(self.agent.clone().do_action(request.into_inner()).await?.map(Streaming::boxed)),
        }
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Said<Self::HandshakeStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Said<Self::ListFlightsStream> {
        Err(Status::unimplemented(""))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Said<FlightInfo> {
        Err(Status::unimplemented(""))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Said<PollInfo> {
        Err(Status::unimplemented(""))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Said<SchemaResult> {
        Err(Status::unimplemented(""))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Said<Self::DoPutStream> {
        let messages = request.into_inner().map(|message| message.expect("the client is well"));
        Ok(self.agent.clone().do_put(messages).await?.map(Streaming::boxed))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Said<Self::DoExchangeStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Said<Self::ListActionsStream> {
        Err(Status::unimplemented(""))
    }
}

/// A client of the cluster, which speaks with a liar instead of its first node.
fn client_of(cluster: &Cluster, lie: Lie) -> Nodes {
    let serving: Vec<&Serving> = cluster.serving.iter().flatten().collect();
    let agent = format!("http://{}", serving[0].address());
    let address: SocketAddr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let agent = Channel::from_shared(agent).unwrap().connect_lazy();
            let agent = FlightServiceClient::new(agent).max_decoding_message_size(usize::MAX);
            let liar = FlightServiceServer::new(Liar { agent, lie, given: Mutex::default() });
            Server::builder().add_service(liar.max_decoding_message_size(usize::MAX)).serve(address).await
        })
    });
    until("nobody listens", || std::net::TcpStream::connect(address).is_ok());
    let others = serving[1..].iter().map(|serving| serving.address().to_string());
    client([address.to_string()].into_iter().chain(others).collect(), None)
}

#[test]
fn a_node_that_answers_without_end_is_told_from_one_that_answers() {
    let cluster = Cluster::new(1);
    let began = Instant::now();
    let error = told(client_of(&cluster, Lie::Endless).catalog().unwrap_err());
    assert!(error.contains("more than 268435456 bytes"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_piece_is_given_back_once_and_by_whom_it_was_asked_of() {
    let text = text(60_000);
    for lie in [Lie::Again, Lie::Others] {
        let cluster = Cluster::new(2);
        let nodes = client_of(&cluster, lie);
        let options = LoadOptions { piece_bytes: Some(60_000), block_bytes: 4096, ..LoadOptions::default() };
        nodes.put(&job(), "text", ("text", None), Cursor::new(&text), &options).unwrap();
        let wholes = nodes.catalog().unwrap().named("text").unwrap();
        // All of it in one answer.
        let arguments = slow(100).arguments();
        let with = HelpWith { all_moves: true, answers_early: true, ..HelpWith::default() };
        let job = job();
        let store = tempfile::tempdir().unwrap();
        let store = Store::open(store.path()).unwrap();
        let own = store.job(Budget::new(256 << 20, 2), Cancel::default()).unwrap();
        let asked =
            stream_with_help(&nodes, &own, (Find::KIND, true), arguments, &wholes, &helping(200), with);
        let (streams, help) = asked.unwrap();
        let taken = Mutex::new(Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                help.unwrap().work(&own, |_, pieces, _| {
                    for piece in pieces {
                        let mut piece = piece?;
                        taken.lock().unwrap().push(piece.number);
                        std::io::copy(&mut piece, &mut std::io::sink())?;
                    }
                    Ok(json!({}))
                });
            });
            // One that gives back another's pieces is asked no more; one that gives its own back gives some.
            thread::sleep(Duration::from_secs(2));
            if matches!(lie, Lie::Again) {
                until("nothing is given back", || !taken.lock().unwrap().is_empty());
            }
            drop(streams);
        });
        let taken = taken.into_inner().unwrap();
        assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "{lie:?}: {taken:?}");
        match lie {
            Lie::Others => assert!(taken.iter().all(|piece| piece % 2 == 1), "{taken:?}"),
            _ => assert!(!taken.is_empty()),
        }
        // Each for itself.
        let mut places = Vec::new();
        let each = |event: Event<'_, Find>| {
            places.extend(event.part.transpose()?.unwrap_or_default());
            Ok(Next::Go)
        };
        run_on_nodes(&nodes, &job, &slow(30), &wholes, &helping(100), each).unwrap();
        assert_eq!(places, expected(&text), "{lie:?}");
    }
}
