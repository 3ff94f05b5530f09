//! Tests of the rights that a client needs for the requests of a job, and of the refusals of invalid requests.

use std::{
    io::{Cursor, ErrorKind},
    net::TcpListener,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};

use arrow_array::{RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_kernel::{Failure, TaskHandlers};
use inshore_nodes::{
    Agent, AgentConfig, Authority, ClientConfig, ClientCredentials, Error, LoadOptions, NodeCredentials,
    Nodes, Right, RunningAgent, SingleTask, TaskEvent, WatchedTask,
};
use inshore_stages::{
    InputPartition, JobStage, MapInputs, MergeInputs, Options, OutputWriter, StageTask, StageWork, StagesJob,
    run, with_stages,
};
use inshore_store::{Budget, Cancel, Context, FileReader, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(86_400);
const PATIENCE: Duration = Duration::from_secs(60);
const ID: &str = "0123456789abcdef0123456789abcdef";

/// A job whose map stage writes its input.
struct Copies;

impl StageWork for Copies {
    fn kind(&self) -> &'static str {
        "copies"
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        MapInputs { sources, .. }: MapInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        for source in sources {
            let source = source?.source;
            let (file, range) = source.part().ok_or("the input is a file of a dataset")?;
            let mut reader = FileReader::new(task.job, file, range.clone(), 64 << 10)?;
            while let Some(piece) = reader.next_piece()? {
                output.bytes(piece)?;
            }
        }
        Ok(())
    }

    fn merge(&self, _: &StageTask<'_>, _: MergeInputs, _: &mut OutputWriter) -> Result<(), Failure> {
        Err("there is no merge stage".into())
    }
}

/// A job that counts the bytes of its input.
struct Counts;

impl StageWork for Counts {
    fn kind(&self) -> &'static str {
        "counts"
    }

    fn map(
        &self,
        _: &StageTask<'_>,
        MapInputs { sources, .. }: MapInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let count = UInt64Array::from(vec![sources.bytes()]);
        output.batch(0, &RecordBatch::try_from_iter([("bytes", Arc::new(count) as _)])?)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let mut sum = 0;
        for batch in inputs.open_ranges(task.job)?.into_iter().flatten() {
            sum += batch?.column(0).as_primitive::<UInt64Type>().value(0);
        }
        output.bytes(format!("{sum}\n").as_bytes())
    }
}

/// A node with credentials, and the authority that issued them.
struct Setting {
    authority: Authority,
    credentials: NodeCredentials,
    serving: RunningAgent,
    _folder: TempDir,
}

impl Setting {
    fn new() -> Setting {
        let authority = Authority::create().unwrap();
        let credentials = authority.node("a", &["127.0.0.1".to_string()], DAY).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let works = with_stages(
            TaskHandlers::default(),
            vec![Arc::new(Copies), Arc::new(Counts)],
            Some(credentials.clone()),
        );
        let config = AgentConfig {
            drain: Duration::from_millis(100),
            credentials: Some(credentials.clone()),
            ..AgentConfig::new("a", 64 << 20, 2)
        };
        let agent = Agent::new(Store::open(folder.path()).unwrap(), works, config);
        let serving = agent.serve("127.0.0.1:0".parse().unwrap()).unwrap();
        Setting { authority, credentials, serving, _folder: folder }
    }

    fn nodes(&self, credentials: ClientCredentials) -> Nodes {
        let config = ClientConfig {
            connect: PATIENCE,
            silence: PATIENCE,
            answer: PATIENCE,
            ..ClientConfig::new(vec![self.serving.address().to_string()], Some(credentials))
        };
        Nodes::new(config).unwrap()
    }

    fn client(&self, rights: &[Right]) -> Nodes {
        self.nodes(self.authority.client("client", rights, DAY).unwrap())
    }

    /// Connects as a node does.
    fn peer(&self) -> Nodes {
        self.nodes(self.credentials.as_client())
    }

    fn certificate(&self) -> Option<String> {
        self.client(&[Right::Read]).certificates(&[0]).remove(0).unwrap()
    }

    fn session(&self, nodes: &[(String, Option<String>)]) -> Value {
        json!({
            "id": ID, "kind": "copies", "arguments": null, "slots": 1, "slot_bytes": 4 << 20, "nodes": nodes, "own": 0
        })
    }

    fn own(&self) -> Vec<(String, Option<String>)> {
        vec![(self.serving.address().to_string(), self.certificate())]
    }

    /// Returns the memory in use and the number of running tasks.
    fn used(&self) -> (u64, usize) {
        let status = self.serving.agent().status();
        (status.memory_used_bytes, status.running.len())
    }

    fn wait_until_idle(&self) {
        let began = Instant::now();
        while self.used() != (0, 0) {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.used());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn context() -> Context {
    Context::new(Budget::new(8 << 20, 1), Cancel::default())
}

fn task(kind: &'static str, arguments: Value) -> SingleTask {
    let memory_bytes = Some(if kind == "stage-session" { 32 << 20 } else { 0 });
    SingleTask { kind, arguments, pieces: Vec::new(), memory_bytes, trace: None }
}

/// Runs a task, and returns the bytes of its answer and its summary.
fn ask(nodes: &Nodes, task: SingleTask) -> Result<(Vec<u8>, Value), Error> {
    let (mut reader, mut bytes) = (nodes.read_task(0, task), Vec::new());
    while let Some(batch) = reader.next(&context())? {
        bytes.extend_from_slice(batch.column(1).as_binary::<i32>().value(0));
    }
    Ok((bytes, reader.summary().unwrap()))
}

/// Runs a task, and returns its summary.
fn summary(nodes: &Nodes, task: SingleTask) -> Result<Value, Error> {
    let mut reader = nodes.read_task(0, task);
    while reader.next(&context())?.is_some() {}
    Ok(reader.summary().unwrap())
}

fn refusal(nodes: &Nodes, kind: &'static str, arguments: Value) -> String {
    match ask(nodes, task(kind, arguments)) {
        Err(Error::Refused { what, .. }) => what,
        other => panic!("{kind} was not refused: {other:?}"),
    }
}

/// Opens a session, and waits until it is open.
fn open(nodes: &Nodes, request: Value) -> (WatchedTask, Receiver<TaskEvent>) {
    let (sender, events) = channel();
    let session = nodes.watch_task(0, task("stage-session", request), move |event| drop(sender.send(event)));
    match events.recv_timeout(PATIENCE).unwrap() {
        TaskEvent::Batch(_) => (session, events),
        TaskEvent::Ended(ended) => panic!("{ended:?}"),
    }
}

#[test]
fn a_node_fetches_what_a_session_has_and_does_nothing_else_on_another_node() {
    let setting = Setting::new();
    let client = setting.client(&[Right::Read, Right::Run, Right::Write]);
    let text = b"a line\nand another one\n".repeat(5000);
    let input = Cursor::new(text.clone());
    client.put(&context(), "text", ("text", None), input, &LoadOptions::default()).unwrap();
    let whole = client.catalog().unwrap().named("text").unwrap().remove(0);
    let pieces: Vec<_> = (0..whole.pieces.len() as u64)
        .flat_map(|piece| whole.piece_requests(piece as usize, piece, 0))
        .map(|(_, request)| request)
        .collect();
    let (session, _events) = open(&client, setting.session(&setting.own()));
    let attempt = |work: Value| json!({"session": ID, "token": 7, "stage": 0, "partition": 0, "work": work});
    let mapping = SingleTask { pieces: pieces.clone(), ..task("stage-attempt", attempt(json!("Map"))) };
    let (_, mapped) = ask(&client, mapping).unwrap();
    let checksum = &mapped["Finished"]["checksum"];
    let peer = setting.peer();
    let ranges = |session: &str, content: Value| json!({"session": session, "content": content});
    let outputs = json!({"Outputs": {"outputs": [[7, checksum]], "range": 0}});
    let content = json!({"Pieces": pieces});
    for content in [&outputs, &content] {
        let (bytes, _) = ask(&peer, task("stage-ranges", ranges(ID, content.clone()))).unwrap();
        assert!(bytes == text, "{content}: {} bytes", bytes.len());
    }
    // Without the id of a session, a node gets neither rows of outputs nor pieces.
    let other = ID.replace('0', "1");
    let (bytes, summary) = ask(&peer, task("stage-ranges", ranges(&other, outputs))).unwrap();
    assert!(bytes.is_empty() && summary["gone"] == json!([7]), "{summary}");
    assert!(refusal(&peer, "stage-ranges", ranges(&other, content)).contains("has ended"));
    let publish = json!({"Pieces": {"session": ID, "name": "new", "outputs": [[0, 7, checksum]]}});
    for (kind, arguments, right) in [
        ("stage-session", setting.session(&setting.own()), "run"),
        ("stage-attempt", attempt(json!("Map")), "run"),
        ("stage-attempt", attempt(json!("Delete")), "run"),
        ("stage-publish", publish.clone(), "write"),
        ("stage-publish", json!({"Check": {"name": "new"}}), "write"),
    ] {
        let told = refusal(&peer, kind, arguments);
        assert!(told.contains(&format!("a has no right to {right}")), "{kind}: {told}");
    }
    let reader = setting.client(&[Right::Read, Right::Run]);
    assert!(refusal(&reader, "stage-publish", publish.clone()).contains("no right to write"));
    // The pieces become a dataset, and a second session of the same id is refused.
    assert!(refusal(&client, "stage-session", setting.session(&setting.own())).contains("open already"));
    assert_eq!(ask(&client, task("stage-publish", publish)).unwrap().1["Pieces"]["generation"], 0);
    drop(session);
    setting.wait_until_idle();
    let listed = client.catalog().unwrap();
    assert!(listed.named("new").is_err(), "a dataset without a map is not visible");
}

#[test]
fn a_node_connects_to_no_host_without_a_certificate_of_its_authority() {
    let setting = Setting::new();
    let client = setting.client(&[Right::Read, Right::Run]);
    // The certificate of the node names another address of this machine than the one that listens.
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let foreign = Authority::create().unwrap();
    let foreign = foreign.node("b", &["127.0.0.2".to_string()], DAY).unwrap();
    let foreign = serde_json::to_value(&foreign).unwrap()["certificate"].as_str().unwrap().to_string();
    for certificate in [None, setting.certificate(), Some(foreign), Some("nonsense".to_string())] {
        let nodes: Vec<_> = setting.own().into_iter().chain([(target.clone(), certificate)]).collect();
        let told = refusal(&client, "stage-session", setting.session(&nodes));
        assert!(told.contains("certificate"), "{told}");
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "the node has connected");
    assert_eq!(setting.used(), (0, 0));
}

#[test]
fn invalid_requests_are_refused_and_leave_nothing() {
    let setting = Setting::new();
    let client = setting.client(&[Right::Read, Right::Run, Right::Write]);
    let session = |changed: Value| {
        let mut request = setting.session(&setting.own());
        for (field, value) in changed.as_object().unwrap() {
            request[field] = value.clone();
        }
        request
    };
    for (changed, expected) in [
        (json!({"id": ""}), "32 hexadecimal digits"),
        (json!({"id": "é".repeat(16)}), "32 hexadecimal digits"),
        (json!({"kind": "none"}), "does not support jobs of the kind 'none'"),
        (json!({"slots": 0}), "without slots"),
        (json!({"slots": u32::MAX, "slot_bytes": u64::MAX}), "too little memory"),
        (json!({"slots": 4000, "slot_bytes": 0}), "too little memory"),
        (json!({"trace": 7}), "invalid type"),
        (json!({"own": 1}), "unknown nodes"),
        (json!({"nodes": []}), "unknown nodes"),
        (json!({"nodes": [["127.0.0.1:1:1", null]]}), "invalid dns name"),
        (json!({"more": 1}), "unknown field"),
    ] {
        let told = refusal(&client, "stage-session", session(changed.clone()));
        assert!(told.contains(expected), "{changed}: {told}");
    }
    let (open, _events) = open(&client, session(json!({})));
    let attempt = |lists: &Value, work: &Value, reads: &Value| json!({"session": ID, "token": 1, "stage": 1, "partition": 0, "lists": lists, "work": work, "reads": reads});
    // Attempt 99 as the output of a partition, on a node: base 64 of three u32 and a u64.
    let list = |from: u32, partitions: u32, outputs: &str| json!([{"stage": 0, "partitions": partitions, "from": from, "to": from + 1, "outputs": outputs}]);
    let reads = |what: &str, stages: Value| {
        let mut reads = json!({"ranges": [], "states": [], "broadcasts": []});
        reads[what] = stages;
        reads
    };
    let none = || reads("ranges", json!([]));
    let (own, on_node_5, of_partition_7) =
        ("AAAAAGMAAAAAAAAAAQAAAAAAAAA", "AAAAAGMAAAAFAAAAAQAAAAAAAAA", "BwAAAGMAAAAAAAAAAQAAAAAAAAA");
    for (lists, work, reads, expected) in [
        (json!([]), json!("Merge"), reads("ranges", json!([0])), "the outputs of stage 0 is incomplete"),
        (list(1, 1, own), json!("Merge"), reads("ranges", json!([0])), "Behind"),
        (list(1, 1, own), json!("Map"), reads("broadcasts", json!([0])), "Behind"),
        (list(0, 1, on_node_5), json!("Map"), none(), "outputs of unknown partitions or nodes"),
        (list(0, 1, of_partition_7), json!("Map"), none(), "outputs of unknown partitions or nodes"),
        (list(0, 1, "AAAA"), json!("Map"), none(), "invalid request: an invalid list"),
        (list(0, 1, "=%="), json!("Map"), none(), "invalid request: an invalid list"),
        (list(0, 1, own), json!("Merge"), reads("ranges", json!([0])), "Gone"),
        (
            json!([{"stage": 7, "partitions": u32::MAX, "from": 0, "to": 1, "outputs": own}]),
            json!("Map"),
            none(),
            "the list of a stage's outputs",
        ),
        (json!([]), json!("Merge"), reads("states", json!([[0, 1]])), "Gone"),
        (json!([]), json!("Merge"), reads("states", json!([[5, 1]])), "stage 5 is incomplete"),
        (json!([]), json!("Map"), reads("broadcasts", json!([0])), "Gone"),
        (json!([]), json!({"MapOf": {"node": 5, "pieces": []}}), none(), "invalid request"),
        (
            json!([]),
            json!({"MapOf": {"node": 0, "pieces": [{"number": 0, "whole": 0, "dataset": "none", "id": 1, "file": "f",
            "from": 9, "to": 5, "offset": 0, "lines": 0}]}}),
            none(),
            "invalid request",
        ),
    ] {
        let told = match summary(&client, task("stage-attempt", attempt(&lists, &work, &reads))) {
            Ok(summary) => summary.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(expected) && !told.contains("panicked"), "{lists} {work} {reads}: {told}");
    }
    for trace in ["", "g", "0\n1", &"0".repeat(33)] {
        let attempt = attempt(&json!([]), &json!("Map"), &none());
        let told =
            summary(&client, SingleTask { trace: Some(trace.to_string()), ..task("stage-attempt", attempt) });
        assert!(
            told.unwrap_err().to_string().contains("a trace id has at most 32 hexadecimal digits"),
            "{trace}"
        );
    }
    drop(open);
    setting.wait_until_idle();
}

/// Loads a file onto the node, and returns a job that counts its bytes.
fn counting(nodes: &Nodes, bytes: usize) -> StagesJob {
    let input = Cursor::new(vec![b'\n'; bytes]);
    nodes.put(&context(), "text", ("text", None), input, &LoadOptions::default()).unwrap();
    let files = nodes.catalog().unwrap().named("text").unwrap();
    StagesJob {
        kind: "counts",
        arguments: Value::Null,
        stages: JobStage::map_and_merge(InputPartition::of_files(&files, 1 << 20).unwrap(), 1),
        slots: 1,
        slot_bytes: 4 << 20,
        options: Options { lease: Duration::from_millis(500), ..Options::default() },
    }
}

fn count(nodes: &Nodes, job: &StagesJob) -> String {
    let (finished, mut read) = (run(nodes, &context(), job).unwrap(), Vec::new());
    let mut keep = |bytes: &[u8]| {
        read.extend_from_slice(bytes);
        Ok(())
    };
    finished.read(&context(), &mut keep).unwrap();
    String::from_utf8(read).unwrap()
}

#[test]
fn a_session_that_waits_for_memory_longer_than_its_lease_is_not_lost() {
    let setting = Setting::new();
    let client = setting.client(&[Right::Read, Right::Run, Right::Write]);
    let job = counting(&client, 100_000);
    let hog =
        SingleTask { memory_bytes: Some(60 << 20), ..task("stage-session", setting.session(&setting.own())) };
    let (sender, events) = channel();
    let hog = client.watch_task(0, hog, move |event| drop(sender.send(event)));
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), TaskEvent::Batch(_)));
    std::thread::scope(|scope| {
        let counted = scope.spawn(|| count(&client, &job));
        // The scheduler looks for silent nodes once a second.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!counted.is_finished(), "the job did not wait");
        drop(hog);
        assert_eq!(counted.join().unwrap(), "100000\n");
    });
    setting.wait_until_idle();
}

#[test]
fn other_tasks_with_all_other_memory_of_a_node_do_not_fail_a_job() {
    let setting = Setting::new();
    let client = setting.client(&[Right::Read, Right::Run, Right::Write]);
    let job = counting(&client, 100_000);
    let needed = inshore_stages::memory_bytes(job.slot_bytes, job.slots);
    let rest = SingleTask {
        memory_bytes: Some((64 << 20) - needed),
        ..task("stage-session", setting.session(&setting.own()))
    };
    let (sender, events) = channel();
    let _other = client.watch_task(0, rest, move |event| drop(sender.send(event)));
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), TaskEvent::Batch(_)));
    assert_eq!(count(&client, &job), "100000\n");
}
