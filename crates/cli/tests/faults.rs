//! Tests of faults in nodes and network links. Each command must return the right answer, perhaps late or from a
//! replica. Otherwise it must fail in time, with an error that names the data that was not read. Nodes must also stop
//! working for clients that have disappeared.
//!
//! Some tests give each node a network namespace with a link of its own, which the test can cut and slow down. These
//! tests are skipped if the machine does not allow network namespaces (which need root).

use std::{
    path::PathBuf,
    process::{Child, Command},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    nodes::{Node, text},
    util::{CommandOutput, Folder, PATIENCE, Run, until},
};

/// The time limit, on any machine, of a command or a node that must not wait for a timeout.
const AT_ONCE: Duration = Duration::from_secs(15);
/// The time limit of a command with a deadline, or of a command that must notice a fault within some seconds. If a
/// command waited for the slowed node, it would take more than a minute.
const IN_TIME: Duration = Duration::from_secs(60);

/// A hub, and network namespaces with a link to the hub: one for each node, and the last one for the client.
struct Net {
    ip: PathBuf,
    tc: PathBuf,
    name: String,
    count: usize,
}

static NETS: AtomicUsize = AtomicUsize::new(0);

fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    folders.iter().map(|folder| PathBuf::from(folder).join(name)).find(|path| path.exists())
}

impl Net {
    /// Creates the network. If this machine does not allow that, prints why the test is skipped.
    fn new(count: usize) -> Option<Net> {
        let (Some(ip), Some(tc)) = (program("ip"), program("tc")) else {
            println!("skipped: there is no ip or no tc here");
            return None;
        };
        let name = format!("inft{}-{}", std::process::id(), NETS.fetch_add(1, Ordering::Relaxed));
        let net = Net { ip, tc, name, count };
        let hub = net.hub();
        let made = net.try_ip(&format!("netns add {hub}"))
            && net.try_ip(&format!("-n {hub} link add br0 type bridge"))
            && net.try_ip(&format!("-n {hub} link set br0 up"));
        if !made {
            println!("skipped: this machine allows no network namespaces");
            return None;
        }
        for place in 0..=count {
            let space = net.space(place);
            net.ip(&format!("netns add {space}"));
            net.ip(&format!("-n {hub} link add p{place} type veth peer name eth0 netns {space}"));
            net.ip(&format!("-n {hub} link set p{place} master br0 up"));
            net.ip(&format!("-n {space} address add {}/24 dev eth0", net.address(place)));
            net.ip(&format!("-n {space} link set eth0 up"));
            net.ip(&format!("-n {space} link set lo up"));
        }
        Some(net)
    }

    fn try_ip(&self, words: &str) -> bool {
        Command::new(&self.ip).args(words.split(' ')).output().is_ok_and(|done| done.status.success())
    }

    fn ip(&self, words: &str) {
        assert!(self.try_ip(words), "ip {words}");
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn space(&self, place: usize) -> String {
        format!("{}-{place}", self.name)
    }

    fn address(&self, place: usize) -> String {
        format!("10.78.0.{}", place + 1)
    }

    /// Cuts the link of a node in both directions.
    fn cut(&self, place: usize) {
        self.ip(&format!("-n {} link set p{place} down", self.hub()));
    }

    fn mend(&self, place: usize) {
        self.ip(&format!("-n {} link set p{place} up", self.hub()));
    }

    /// Returns the number of bytes that the namespace at index `place` has received.
    fn received(&self, place: usize) -> u64 {
        let words = format!("-n {} -s -j link show eth0", self.space(place));
        let shown = Command::new(&self.ip).args(words.split(' ')).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
    }

    /// Limits the rate at which a node sends.
    fn slow(&self, place: usize, rate: &str) {
        let words = format!(
            "-n {} qdisc replace dev eth0 root tbf rate {rate} burst 32kb latency 400ms",
            self.space(place)
        );
        let done = Command::new(&self.tc).args(words.split(' ')).output().unwrap();
        assert!(done.status.success(), "tc {words}");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for place in 0..=self.count {
            self.try_ip(&format!("netns del {}", self.space(place)));
        }
        self.try_ip(&format!("netns del {}", self.hub()));
    }
}

/// Nodes in a network. They have a dataset without replicas ("single"), and a dataset with two replicas ("safe").
struct Cluster {
    nodes: Vec<Node>,
    net: Net,
    folder: Folder,
    text: String,
}

impl Cluster {
    fn new(count: usize) -> Option<Cluster> {
        let net = Net::new(count)?;
        let folder = Folder::new();
        for place in 0..count {
            let address = net.address(place);
            folder.run(&format!("node credentials keys --for-node n{place} --address {address}")).ok();
        }
        folder.run("node credentials keys --for-client writer --rights read,run,write,administer").ok();
        let text = text().repeat(4);
        let mut cluster = Cluster { nodes: Vec::new(), net, folder, text };
        cluster.nodes = (0..count).map(|place| cluster.serve(place)).collect();
        cluster.folder.write("text", &cluster.text);
        for words in ["safe --copies 2", "single"] {
            let said = cluster.client(&format!("store put text --piece 500KiB --quiet --name {words}")).ok();
            assert_eq!(said.stderr, "");
        }
        Some(cluster)
    }

    fn serve(&self, place: usize) -> Node {
        let serve = format!(
            "node serve --store store{place} --listen {}:4710 --credentials keys/node-n{place}.json --memory 64MiB --json --log none",
            self.net.address(place)
        );
        Node::started(self.folder.run(&serve).within(&self.net.ip, &self.net.space(place)))
    }

    /// Creates a command that names the nodes, and runs as the client.
    fn client(&self, words: &str) -> Run {
        let named: Vec<String> = (0..self.net.count).map(|place| self.net.address(place)).collect();
        let words = format!(
            "{words} --node {} --credentials keys/client-writer.json --memory 64MiB",
            named.join(",")
        );
        self.folder.run(&words).within(&self.net.ip, &self.net.space(self.net.count))
    }

    fn slow_all(&self, rate: &str) {
        (0..self.net.count).for_each(|place| self.net.slow(place, rate));
    }

    /// Runs a command, and calls `does` while the command is at work.
    fn in_the_middle(&self, words: &str, does: impl FnOnce()) -> (Option<i32>, CommandOutput, Duration) {
        thread::scope(|scope| {
            let before = self.net.received(self.net.count);
            let running = scope.spawn(|| self.client(words).ends());
            until("nothing comes", || self.net.received(self.net.count) > before + (1 << 20));
            assert!(!running.is_finished(), "{words}: it ended too early: {:?}", running.join().unwrap());
            let began = Instant::now();
            does();
            let (code, said) = running.join().unwrap();
            println!(
                "{words}: {code:?} after {:.1} s: {}",
                began.elapsed().as_secs_f64(),
                said.stderr.trim()
            );
            (code, said, began.elapsed())
        })
    }

    fn has_text(&self, name: &str) {
        assert!(self.folder.read(name) == self.text, "{name} is not what was put");
    }

    /// Waits until no task runs on any node that answers.
    fn is_idle_soon(&self) {
        let began = Instant::now();
        until("tasks run on", || {
            let (_, said) = self.client("node status --json").ends();
            let all = said.json();
            let running = |node: &serde_json::Value| node["status"]["running"].as_array().map_or(0, Vec::len);
            all.as_array().unwrap().iter().map(running).sum::<usize>() == 0
        });
        println!("nothing runs after {:.1} s", began.elapsed().as_secs_f64());
    }
}

fn names_what_is_missing((code, said, took): (Option<i32>, CommandOutput, Duration), address: &str) {
    assert_eq!(code, Some(2), "{said:?}");
    let names = said.stderr.contains("store:single: bytes") && said.stderr.contains("were not read");
    assert!(names && said.stderr.contains(address), "{}", said.stderr);
    assert!(took < IN_TIME, "it took {took:?}");
}

#[test]
fn a_node_killed_in_the_middle_is_made_up_for_by_copies_or_named() {
    let Some(mut cluster) = Cluster::new(3) else { return };
    cluster.slow_all("8mbit");
    let (code, said, took) =
        cluster.in_the_middle("store get safe -o got --quiet", || cluster.nodes[1].send(Signal::KILL));
    assert!(code == Some(0) && took < PATIENCE, "{said:?}");
    cluster.has_text("got");
    cluster.nodes[1] = cluster.serve(1);
    let ended =
        cluster.in_the_middle("store get single -o none --quiet", || cluster.nodes[1].send(Signal::KILL));
    names_what_is_missing(ended, &cluster.net.address(1));
    assert!(!cluster.folder.path("none").exists());
    // The node is started again, and still has its data.
    cluster.nodes[1] = cluster.serve(1);
    cluster.client("store get single -o again --quiet").ok();
    cluster.has_text("again");
}

/// Cuts a link for `INSHORE_CUT_SECONDS` seconds.
#[test]
fn a_link_that_is_cut_is_survived_made_up_for_or_named() {
    let Some(cluster) = Cluster::new(3) else { return };
    cluster.slow_all("8mbit");
    let seconds =
        std::env::var("INSHORE_CUT_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(6);
    // The link is cut for a shorter time than any timeout.
    let (code, said, _) = cluster.in_the_middle("store get single -o late --quiet", || {
        cluster.net.cut(1);
        thread::sleep(Duration::from_secs(3));
        cluster.net.mend(1);
    });
    assert_eq!(code, Some(0), "{said:?}");
    cluster.has_text("late");
    let cut = |words: &str| {
        thread::scope(|scope| {
            let (code, said, took) = cluster.in_the_middle(words, || {
                scope.spawn(|| {
                    cluster.net.cut(1);
                    thread::sleep(Duration::from_secs(seconds));
                    cluster.net.mend(1);
                });
            });
            (code, said, took)
        })
    };
    let (code, said, took) = cut("store get safe -o made-up --quiet --silence 4");
    assert!(code == Some(0) && took < PATIENCE, "{said:?}");
    cluster.has_text("made-up");
    let ended = cut("store get single -o none --quiet --silence 4");
    names_what_is_missing(ended, &cluster.net.address(1));
    // The node accepts new work at once, since it has stopped working for the client that disappeared.
    cluster.client("search -q ERROR store:single").ok();
    cluster.is_idle_soon();
}

#[test]
fn a_node_a_hundred_times_slower_is_waited_for_left_or_named_at_the_deadline() {
    let Some(cluster) = Cluster::new(3) else { return };
    cluster.slow_all("40mbit");
    cluster.net.slow(1, "400kbit");
    let lines: String =
        cluster.text.lines().filter(|line| line.contains("ERROR")).map(|line| format!("{line}\n")).collect();
    let began = Instant::now();
    let said = cluster.client("search ERROR store:single").ok();
    assert!(said.stdout == lines, "it is late, but right");
    println!("right after {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let (code, said) = cluster.client("store get single -o none --quiet --deadline 3").ends();
    names_what_is_missing((code, said, began.elapsed()), &cluster.net.address(1));
    // Replicas have the node's data, so the client abandons the slow node after --stall seconds without progress.
    let began = Instant::now();
    cluster.client("store get safe -o got --quiet --stall 2").ok();
    cluster.has_text("got");
    println!("left, and right after {:.1} s", began.elapsed().as_secs_f64());
    assert!(began.elapsed() < IN_TIME, "it was waited for: {:?}", began.elapsed());
}

#[test]
fn a_node_that_hardly_gets_the_processor_is_waited_for() {
    let folder = Folder::new();
    let nodes: Vec<Node> = (0..2).map(|n| Node::start(&folder, &format!("node{n}"), "")).collect();
    let named = format!("{},{}", nodes[0].address, nodes[1].address);
    folder.write("web.log", text());
    folder.run(&format!("store put web.log --node {named} --piece 300KiB --quiet")).ok();
    let expected = text().lines().filter(|line| line.contains("ERROR")).count();
    let began = Instant::now();
    thread::scope(|scope| {
        let asked = scope.spawn(|| folder.run(&format!("search -c ERROR store:web.log --node {named}")).ok());
        while !asked.is_finished() {
            nodes[1].send(Signal::STOP);
            thread::sleep(Duration::from_millis(99));
            nodes[1].send(Signal::CONT);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked.join().unwrap().stdout, format!("{expected}\n"));
    });
    println!("right after {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn a_node_that_stands_still_is_lost() {
    let folder = Folder::new();
    let nodes: Vec<Node> = (0..2).map(|n| Node::start(&folder, &format!("node{n}"), "")).collect();
    let named = format!("{},{}", nodes[0].address, nodes[1].address);
    folder.write("web.log", text());
    folder.run(&format!("store put web.log --node {named} --piece 300KiB --copies 2 --quiet")).ok();
    let ask =
        |more: &str| folder.run(&format!("search -c ERROR store:web.log --node {named} --silence 2 {more}"));
    let right = ask("").ok().stdout;
    nodes[1].send(Signal::STOP);
    let began = Instant::now();
    let (code, said) = ask("--deadline 120").ends();
    println!("{code:?} after {:.1} s: {}", began.elapsed().as_secs_f64(), said.stderr);
    assert!(code == Some(0) && said.stdout == right, "{said:?}");
    nodes[1].send(Signal::CONT);
    assert_eq!(ask("").ok().stdout, right);
}

/// Starts a command that prints more than its reader takes. The command has little memory for buffered output.
fn stuck(folder: &Folder, words: &str) -> Child {
    folder.run(&format!("{words} --memory 32MiB")).spawn()
}

fn tasks(folder: &Folder, named: &str, name: &str) -> u64 {
    let status = folder.run(&format!("node status --node {named} --json")).ok().json();
    let count = |node: &serde_json::Value| match &node["status"][name] {
        serde_json::Value::Array(all) => all.len() as u64,
        count => count.as_u64().unwrap(),
    };
    status.as_array().unwrap().iter().map(count).sum()
}

#[test]
fn tasks_of_a_killed_client_end_within_seconds() {
    let folder = Folder::new();
    let nodes: Vec<Node> = (0..2).map(|n| Node::start(&folder, &format!("node{n}"), "")).collect();
    let named = format!("{},{}", nodes[0].address, nodes[1].address);
    folder.write("web.log", text().repeat(12));
    folder.run(&format!("store put web.log --node {named} --piece 1MiB --quiet")).ok();
    let mut client = stuck(&folder, &format!("store get web.log --node {named}"));
    until("nothing runs", || tasks(&folder, &named, "running") == 2);
    client.kill().unwrap();
    let began = Instant::now();
    until("tasks run on", || tasks(&folder, &named, "running") == 0);
    // The limit of this test is shorter than 20 s, the time that a node waits for a client that is alive but reads
    // nothing.
    println!("ended after {:.1} s", began.elapsed().as_secs_f64());
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    client.wait().unwrap();
}

#[test]
fn a_full_queue_refuses_with_the_reason() {
    let folder = Folder::new();
    let node = Node::start(&folder, "node0", "--slots 1 --queue 1");
    let named = &node.address;
    folder.write("web.log", text().repeat(12));
    folder.run(&format!("store put web.log --node {named} --piece 1MiB --quiet")).ok();
    let ask = format!("store get web.log --node {named}");
    let mut clients = vec![stuck(&folder, &ask)];
    until("nothing runs", || tasks(&folder, named, "running") == 1);
    clients.push(stuck(&folder, &ask));
    until("nothing waits", || tasks(&folder, named, "waiting") == 1);
    let began = Instant::now();
    // A full queue may soon have room again, so the client retries until the deadline.
    let said = folder.run(&format!("search ERROR store:web.log --node {named} --deadline 2")).exits(2);
    let is_told = said.stderr.contains("the queue is full: 1 tasks run and 1 wait");
    assert!(is_told || said.stderr.contains("deadline"), "{}", said.stderr);
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    for mut client in clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    until("nobody makes room", || tasks(&folder, named, "running") + tasks(&folder, named, "waiting") == 0);
    folder.run(&format!("search -q ERROR store:web.log --node {named}")).ok();
}
