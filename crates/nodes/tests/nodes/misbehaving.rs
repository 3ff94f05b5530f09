//! Tests nodes that follow the protocol but send false answers.

use std::net::SocketAddr;

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_client::FlightServiceClient,
    flight_service_server::{FlightService, FlightServiceServer},
};
use futures::{StreamExt, stream::BoxStream};
use inshore_nodes::stream_from_nodes;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Server},
};

use super::*;

#[derive(Clone, Copy, Debug)]
enum Misbehaviour {
    /// Every action is answered with an endless stream.
    Endless,
    /// The node claims to have finished more shards than it received.
    Greedy,
    /// The node's final answer names other shards than the node received.
    Others,
    /// All answers are correct; requests are recorded.
    Nothing,
    /// A request for several maps is answered with the first map only.
    FirstMap,
    /// Every request for maps is answered with this text.
    Maps(&'static str),
}

/// The recorded actions, with the number of maps that each action requests.
type RecordedActions = Arc<Mutex<Vec<(String, usize)>>>;

/// A proxy in front of an agent that changes the agent's answers.
struct MisbehavingProxy {
    agent: FlightServiceClient<Channel>,
    lie: Misbehaviour,
    asked: RecordedActions,
}

type Answer<T> = Result<Response<T>, Status>;
type Stream<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl FlightService for MisbehavingProxy {
    type HandshakeStream = Stream<HandshakeResponse>;
    type ListFlightsStream = Stream<FlightInfo>;
    type DoGetStream = Stream<FlightData>;
    type DoPutStream = Stream<PutResult>;
    type DoExchangeStream = Stream<FlightData>;
    type DoActionStream = Stream<arrow_flight::Result>;
    type ListActionsStream = Stream<ActionType>;

    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let lie = self.lie;
        let changed = move |message: Result<FlightData, Status>| {
            message.map(|mut message| {
                if let Ok(mut told) = serde_json::from_slice::<Value>(&message.app_metadata) {
                    match lie {
                        Misbehaviour::Greedy if told["pulls"]["finished"].is_u64() => {
                            told["pulls"]["finished"] = json!(100_000);
                        }
                        Misbehaviour::Others if told["shards"].is_array() => told["shards"] = json!([1]),
                        _ => {}
                    }
                    message.app_metadata = told.to_string().into();
                }
                message
            })
        };
        let answers = self.agent.clone().do_get(request.into_inner()).await?;
        Ok(answers.map(|messages| messages.map(changed).boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        let kind = request.get_ref().r#type.clone();
        let is_map = kind == "map";
        let maps = serde_json::from_slice::<Vec<Value>>(&request.get_ref().body).map_or(0, |keys| keys.len());
        self.asked.lock().unwrap().push((kind, maps));
        let said = |body: Vec<u8>| arrow_flight::Result { body: body.into() };
        let only = |body: Vec<u8>| Response::new(futures::stream::iter([Ok(said(body))]).boxed());
        match self.lie {
            Misbehaviour::Endless => {
                let more = move |_| Ok(said(vec![b' '; 1 << 20]));
                Ok(Response::new(futures::stream::repeat(()).map(more).boxed()))
            }
            Misbehaviour::FirstMap if is_map => {
                let answers = self.agent.clone().do_action(request.into_inner()).await?.into_inner();
                let bodies: Vec<u8> = answers.map(|body| body.unwrap().body.to_vec()).concat().await;
                let first = serde_json::Deserializer::from_slice(&bodies).into_iter::<Value>().next();
                Ok(only(first.unwrap().unwrap().to_string().into_bytes()))
            }
            Misbehaviour::Maps(given) if is_map => Ok(only(given.into())),
            _ => Ok(self.agent.clone().do_action(request.into_inner()).await?.map(Streaming::boxed)),
        }
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Answer<Self::HandshakeStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        Err(Status::unimplemented(""))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        Err(Status::unimplemented(""))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        Err(Status::unimplemented(""))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        Err(Status::unimplemented(""))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        let messages = request.into_inner().map(|message| message.expect("the client is well"));
        Ok(self.agent.clone().do_put(messages).await?.map(Streaming::boxed))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoExchangeStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        Err(Status::unimplemented(""))
    }
}

/// Returns a client of the cluster whose first node is replaced by a lying proxy, and the record of the proxy's
/// actions.
fn client_of(cluster: &Cluster, lie: Misbehaviour) -> (Nodes, RecordedActions) {
    let serving: Vec<&RunningAgent> = cluster.serving.iter().flatten().collect();
    let agent = format!("http://{}", serving[0].address());
    let address: SocketAddr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let asked = RecordedActions::default();
    let of_liar = asked.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let agent = Channel::from_shared(agent).unwrap().connect_lazy();
            let agent = FlightServiceClient::new(agent).max_decoding_message_size(usize::MAX);
            let liar = FlightServiceServer::new(MisbehavingProxy { agent, lie, asked: of_liar });
            Server::builder().add_service(liar.max_decoding_message_size(usize::MAX)).serve(address).await
        })
    });
    until("nobody listens", || std::net::TcpStream::connect(address).is_ok());
    let others = serving[1..].iter().map(|serving| serving.address().to_string());
    (client([address.to_string()].into_iter().chain(others).collect(), None), asked)
}

#[test]
fn a_node_that_answers_without_end_is_told_from_one_that_answers() {
    let cluster = Cluster::new(1);
    let began = Instant::now();
    let error = told(client_of(&cluster, Misbehaviour::Endless).0.catalog().unwrap_err());
    assert!(error.contains("more than 268435456 bytes"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_node_that_pulls_more_than_it_was_handed_is_lost() {
    let text = text(60_000);
    for copies in [1, 2] {
        let cluster = Cluster::new(2);
        cluster.put("text", &text, copies, 60_000);
        let (nodes, _) = client_of(&cluster, Misbehaviour::Greedy);
        let wholes = nodes.catalog().unwrap().named("text").unwrap();
        let mut places = Vec::new();
        let each = |event: Event<'_, Find>| {
            places.extend(event.part.transpose()?.unwrap_or_default());
            Ok(Next::Go)
        };
        let found = run_on_nodes(&nodes, &job(), &find("needle"), &wholes, &RunOptions::default(), each);
        match copies {
            1 => {
                let error = told(found.unwrap_err());
                assert!(error.contains("it finished more shards than it was assigned"), "{error}");
            }
            _ => {
                assert_eq!(places, expected(&text));
                let lost = found.unwrap().nodes.into_iter().find_map(|node| node.lost);
                assert!(lost.unwrap().contains("it finished more shards than it was assigned"));
            }
        }
    }
}

#[test]
fn an_answer_about_other_shards_than_were_handed_out_counts_for_none() {
    let text = text(60_000);
    let cluster = Cluster::new(2);
    cluster.put("text", &text, 2, 60_000);
    let (nodes, _) = client_of(&cluster, Misbehaviour::Others);
    let wholes = nodes.catalog().unwrap().named("text").unwrap();
    let (arguments, options) = (find("needle").arguments(), RunOptions::default());
    let job = job();
    let mut streams =
        stream_from_nodes(&nodes, &job, (Find::KIND, true), arguments, &wholes, &options).unwrap();
    let before = streams.len();
    let liar = (0..before).find(|&stream| streams.node(stream) == nodes.addresses().next().unwrap());
    let liar = liar.unwrap();
    let why = loop {
        match streams.next(liar) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was believed"),
            Err(why) => break why,
        }
    };
    assert!(told(&why).contains("it ended before all its shards were read"), "{why}");
    // The other node has a copy of everything.
    streams.replace(liar, &why).unwrap();
    assert!(streams.len() > before);
    for stream in (0..streams.len()).filter(|&stream| stream != liar) {
        while streams.next(stream).unwrap().is_some() {}
    }
    assert_eq!(streams.missing(), 0);
}

/// Loads files of one line onto three nodes, and returns the files' names. Every node has each file's map.
fn many_files() -> (Cluster, Vec<String>) {
    let cluster = Cluster::new(3);
    let names: Vec<String> = (0..40).map(|number| format!("file-{number:02}")).collect();
    names.iter().for_each(|name| cluster.put(name, b"one line\n", 1, 1 << 20));
    (cluster, names)
}

#[test]
fn the_map_of_a_file_is_asked_for_when_the_file_is_named() {
    let (cluster, names) = many_files();
    let (nodes, asked) = client_of(&cluster, Misbehaviour::Nothing);
    let check = |expected: &[(&str, usize)], ask: &dyn Fn(&Catalog)| {
        asked.lock().unwrap().clear();
        ask(&nodes.catalog().unwrap());
        let asked = asked.lock().unwrap();
        let asked: Vec<(&str, usize)> = asked.iter().map(|(kind, maps)| (&**kind, *maps)).collect();
        assert_eq!(asked, [&[("status", 0), ("catalog", 0)][..], expected].concat());
    };
    check(&[], &|catalog| assert!(catalog.has("file-08")));
    check(&[("map", 1)], &|catalog| assert_eq!(catalog.named("file-07").unwrap()[0].bytes(), 9));
    // The client requests a third of the maps from each node, in one request.
    check(&[("map", 14)], &|catalog| {
        let wholes = catalog.wholes().unwrap();
        let titles: Vec<String> = wholes.iter().map(|whole| whole.title.clone()).collect();
        assert_eq!(titles, names.iter().map(|name| format!("store:{name}")).collect::<Vec<_>>());
        assert!(wholes.iter().all(|whole| whole.bytes() == 9 && whole.fault.is_none()));
    });
    check(&[("status", 0), ("catalog", 0), ("map", 1), ("remove", 0)], &|_| {
        assert_eq!(nodes.remove("file-07").unwrap(), 3);
    });
}

#[test]
fn a_map_that_a_node_does_not_give_is_asked_for_again_or_of_another_node() {
    let (cluster, names) = many_files();
    let of_another = r#"{"Ok":{"version":2,"generation":{"id":"00000000000000000000000000000000","number":1,"put_ms":1},
        "nodes":[],"pieces":[]}}"#;
    let refused = r#"{"Err":"the map is damaged"}"#;
    let lies = [
        Misbehaviour::FirstMap,
        Misbehaviour::Maps(refused),
        Misbehaviour::Maps(of_another),
        Misbehaviour::Maps(""),
        Misbehaviour::Maps("{}"),
    ];
    for lie in lies {
        let (nodes, asked) = client_of(&cluster, lie);
        let wholes = nodes.catalog().unwrap().wholes().unwrap();
        assert_eq!(wholes.len(), names.len());
        assert!(wholes.iter().all(|whole| whole.bytes() == 9 && whole.fault.is_none()), "{lie:?}");
        let maps: Vec<usize> = asked.lock().unwrap().iter().map(|(_, maps)| *maps).collect();
        let rounds: Vec<usize> = match lie {
            Misbehaviour::Maps("" | "{}") => vec![14],
            _ => (1..=14).rev().collect(),
        };
        assert_eq!(maps[2..], rounds, "{lie:?}");
    }
    let alone = Cluster::new(1);
    alone.put("text", b"one line\n", 1, 1 << 20);
    for (given, expected) in [
        (refused, "the map is damaged"),
        (of_another, "the map of the pieces of text is invalid"),
        ("", "0 maps for 1"),
        (r#"{"Err":""}{"Err":""}"#, "2 maps for 1"),
        ("{}", "invalid JSON"),
    ] {
        let catalog = client_of(&alone, Misbehaviour::Maps(given)).0.catalog().unwrap();
        let error = told(catalog.named("text").unwrap_err());
        assert!(error.starts_with("store:text: ") && error.contains(expected), "{error}");
        assert!(catalog.wholes().unwrap()[0].fault.as_ref().unwrap().contains(expected));
    }
}
