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
    /// None: requests are counted.
    Nothing,
    /// Of several maps, the first one is given.
    FirstMap,
    /// This is given for maps.
    Maps(&'static str),
}

/// The actions that a liar was asked for, and how many maps each asks for.
type Asked = Arc<Mutex<Vec<(String, usize)>>>;

/// Hands on what an agent says, with changes.
struct Liar {
    agent: FlightServiceClient<Channel>,
    lie: Lie,
    given: Mutex<Option<Vec<u8>>>,
    asked: Asked,
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
        let kind = request.get_ref().r#type.clone();
        let (taken, is_map) = (kind == "take-back", kind == "map");
        let maps = serde_json::from_slice::<Vec<Value>>(&request.get_ref().body).map_or(0, |keys| keys.len());
        self.asked.lock().unwrap().push((kind, maps));
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
            Lie::FirstMap if is_map => {
                let answers = self.agent.clone().do_action(request.into_inner()).await?.into_inner();
                let bodies: Vec<u8> = answers.map(|body| body.unwrap().body.to_vec()).concat().await;
                let first = serde_json::Deserializer::from_slice(&bodies).into_iter::<Value>().next();
                Ok(only(first.unwrap().unwrap().to_string().into_bytes()))
            }
            Lie::Maps(given) if is_map => Ok(only(given.into())),
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

/// A client of the cluster, which speaks with a liar instead of its first node, and what that liar is asked for.
fn client_of(cluster: &Cluster, lie: Lie) -> (Nodes, Asked) {
    let serving: Vec<&Serving> = cluster.serving.iter().flatten().collect();
    let agent = format!("http://{}", serving[0].address());
    let address: SocketAddr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let asked = Asked::default();
    let of_liar = asked.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let agent = Channel::from_shared(agent).unwrap().connect_lazy();
            let agent = FlightServiceClient::new(agent).max_decoding_message_size(usize::MAX);
            let liar = FlightServiceServer::new(Liar { agent, lie, given: Mutex::default(), asked: of_liar });
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
    let error = told(client_of(&cluster, Lie::Endless).0.catalog().unwrap_err());
    assert!(error.contains("more than 268435456 bytes"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_piece_is_given_back_once_and_by_whom_it_was_asked_of() {
    let text = text(60_000);
    for lie in [Lie::Again, Lie::Others] {
        let cluster = Cluster::new(2);
        let (nodes, _) = client_of(&cluster, lie);
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
                help.unwrap().work(&own, Some(&own.store()), |_, pieces, _| {
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

/// Files of one line on three nodes, of each of which any node has the map.
fn many_files() -> (Cluster, Vec<String>) {
    let cluster = Cluster::new(3);
    let names: Vec<String> = (0..40).map(|number| format!("file-{number:02}")).collect();
    names.iter().for_each(|name| cluster.put(name, b"one line\n", 1, 1 << 20));
    (cluster, names)
}

#[test]
fn the_map_of_a_file_is_asked_for_when_the_file_is_named() {
    let (cluster, names) = many_files();
    let (nodes, asked) = client_of(&cluster, Lie::Nothing);
    let check = |expected: &[(&str, usize)], ask: &dyn Fn(&Catalog)| {
        asked.lock().unwrap().clear();
        ask(&nodes.catalog().unwrap());
        let asked = asked.lock().unwrap();
        let asked: Vec<(&str, usize)> = asked.iter().map(|(kind, maps)| (&**kind, *maps)).collect();
        assert_eq!(asked, [&[("status", 0), ("catalog", 0)][..], expected].concat());
    };
    check(&[], &|catalog| assert!(catalog.has("file-08")));
    check(&[("map", 1)], &|catalog| assert_eq!(catalog.named("file-07").unwrap()[0].bytes(), 9));
    // A third of all, in one request.
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
    let lies = [Lie::FirstMap, Lie::Maps(refused), Lie::Maps(of_another), Lie::Maps(""), Lie::Maps("{}")];
    for lie in lies {
        let (nodes, asked) = client_of(&cluster, lie);
        let wholes = nodes.catalog().unwrap().wholes().unwrap();
        assert_eq!(wholes.len(), names.len());
        assert!(wholes.iter().all(|whole| whole.bytes() == 9 && whole.fault.is_none()), "{lie:?}");
        let maps: Vec<usize> = asked.lock().unwrap().iter().map(|(_, maps)| *maps).collect();
        let rounds: Vec<usize> = match lie {
            Lie::Maps("" | "{}") => vec![14],
            _ => (1..=14).rev().collect(),
        };
        assert_eq!(maps[2..], rounds, "{lie:?}");
    }
    let alone = Cluster::new(1);
    alone.put("text", b"one line\n", 1, 1 << 20);
    for (given, expected) in [
        (refused, "the map is damaged"),
        (of_another, "a map of text that makes no sense"),
        ("", "0 maps of 1"),
        (r#"{"Err":""}{"Err":""}"#, "2 maps of 1"),
        ("{}", "JSON that is none"),
    ] {
        let catalog = client_of(&alone, Lie::Maps(given)).0.catalog().unwrap();
        let error = told(catalog.named("text").unwrap_err());
        assert!(error.starts_with("store:text: ") && error.contains(expected), "{error}");
        assert!(catalog.wholes().unwrap()[0].fault.as_ref().unwrap().contains(expected));
    }
}
