//! Tests of a node's status page: its contents, its access control, and its rendering in a browser.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use inshore::nodes::{Authority, Right, write_credentials};
use serde_json::Value;

use crate::{
    nodes::{Node, cluster, text},
    util::{Folder, PATIENCE, until},
};

/// Sends an HTTP request. Returns the head and the body of the response.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // A server that refuses a request may close the connection before all of the response was read.
    let _ = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_string(), body.to_string())
}

fn get(address: &str, path: &str) -> (String, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

fn status(address: &str) -> Value {
    let (head, body) = get(address, "/status.json");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"))
}

#[test]
fn a_page_tells_what_its_node_and_the_others_do() {
    let folder = Folder::new();
    let (others, named) = cluster(&folder, 2);
    let node =
        Node::start(&folder, "own", &format!("--name own --page 127.0.0.1:0 --peers {named},127.0.0.1:1"));
    let all = format!("{named},{}", node.address);
    folder.write("web.log", text());
    folder.run(&format!("store put web.log --node {all} --piece 100KiB --quiet")).ok();
    folder.run(&format!("search -c ERROR store:web.log --node {all}")).ok();
    let page = node.page.clone().unwrap();
    let (head, body) = get(&page, "/");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!body.contains("{{nonce}}") && !body.contains("https://"), "it needs nothing from elsewhere");
    // The test waits until the page shows that the nodes have read all shards.
    until("the page never tells of all that was read", || {
        let nodes = status(&page)["nodes"].as_array().unwrap().clone();
        assert!(nodes.len() == 4 && nodes[0]["is_own"] == true && nodes[0]["status"]["name"] == "own");
        let read = |node: &Value| node["status"]["bytes_read"].as_u64().unwrap_or(0);
        nodes[..3].iter().map(read).sum::<u64>() as usize >= text().len()
            && nodes[3]["error"].as_str().is_some_and(|why| why.contains("127.0.0.1:1"))
            && nodes[..3].iter().all(|node| !node["samples"].as_array().unwrap().is_empty())
    });
    let told = status(&page);
    let own = &told["nodes"][0]["status"];
    assert!(own["drives"][0]["path"].as_str().unwrap().ends_with("own") && own["done"].as_u64() > Some(0));
    drop(others);
    until("a lost peer is not told", || status(&page)["nodes"][1]["error"].is_string());

    let (head, metrics) = get(&page, "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = name.split('{').next().unwrap();
        assert!(value.parse::<f64>().is_ok() && metrics.contains(&format!("# TYPE {name} ")), "{line}");
    }
    let metric = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(metric("inshore_tasks_total{end=\"done\"}") >= 1.0 && metric("inshore_read_bytes_total") > 0.0);
    assert!(metric("inshore_connections_total") >= 1.0 && metric("inshore_tasks_running ") == 0.0);
    assert!(
        metric("inshore_drive_free_bytes{drive=\"0\"") > 0.0 && metric("process_resident_memory_bytes") > 0.0
    );
}

#[test]
fn what_is_no_look_at_the_page_is_refused() {
    let folder = Folder::new();
    let node = Node::start(&folder, "own", "--page 127.0.0.1:0");
    let page = node.page.as_deref().unwrap();
    let code = |request: &str| ask(page, request).0.split(' ').nth(1).unwrap_or("none").to_string();
    assert_eq!(code("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "200");
    // The request names a foreign host, whose name could resolve to this machine (DNS rebinding).
    assert_eq!(code("GET /status.json HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "403");
    assert_eq!(code("POST /status.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"), "405");
    assert_eq!(code("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"), "404");
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    assert_ne!(code(&long), "200");
    assert_ne!(code("nonsense\r\n\r\n"), "200");
    // The server closes connections that send nothing, so that such connections lock out other clients only for a short
    // time.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(page).unwrap()).collect();
    until("nobody is served beside silent connections", || {
        code("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == "200"
    });
    drop(silent);
    let said = folder.run("node serve --listen 127.0.0.1:0 --page 0.0.0.0:0").exits(2);
    assert!(said.stderr.contains("needs credentials"), "{}", said.stderr);
    let said = folder.run("node serve --peers a.lan").exits(2);
    assert!(said.stderr.contains("--page"), "{}", said.stderr);
}

const HOSTILE: &str = "<img src=x onerror=\"document.title='broken'\">\"'&</td>";

/// Returns the name of a headless browser, if one is installed.
fn browser() -> Option<&'static str> {
    let all = ["chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"];
    all.into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()))
}

fn look(browser: &str, folder: &Path, words: &[&str], url: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["300", browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--disable-dev-shm-usage", "--virtual-time-budget=6000"]);
    command.arg(format!("--user-data-dir={}", folder.join("browser").display()));
    let seen = command.args(words).arg(url).env("HOME", folder).output().unwrap();
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
    String::from_utf8_lossy(&seen.stdout).into_owned()
}

/// Returns the hash by which Chromium trusts a certificate. Returns `None` if openssl is not installed.
fn key_hash(certificate: &Path) -> Option<String> {
    let line = "openssl x509 -pubkey -noout -in \"$0\" | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64";
    let made = Command::new("sh").args(["-c", line]).arg(certificate).output().unwrap();
    let hash = String::from_utf8(made.stdout).unwrap().trim().to_string();
    (hash.len() == 44 && made.stderr.is_empty()).then_some(hash)
}

/// Tests the certificate in Chromium. Chromium refuses a TLS handshake with an unsupported type of key, even if an
/// option makes it trust the certificate.
#[test]
fn a_browser_opens_the_page_of_a_node_over_https() {
    let Some(browser) = browser() else {
        println!("skipped: there is no chromium here");
        return;
    };
    let folder = Folder::new();
    folder.run("node credentials keys --for-node own --address 127.0.0.1").ok();
    folder.run("node credentials keys --for-client ann --rights read").ok();
    let file = |name: &str| serde_json::from_str::<Value>(&folder.read(name)).unwrap();
    folder.write("own.pem", file("keys/node-own.json")["certificate"].as_str().unwrap());
    let Some(hash) = key_hash(&folder.path("own.pem")) else {
        println!("skipped: openssl is not installed");
        return;
    };
    let serve = "--credentials keys/node-own.json --log none --name own --page 0.0.0.0:0";
    let node = Node::start(&folder, "own", serve);
    let port = node.page.as_deref().unwrap().rsplit_once(':').unwrap().1;
    let client = file("keys/client-ann.json");
    let url = format!("https://ann:{}@127.0.0.1:{port}/", client["token"].as_str().unwrap());
    let trust = format!("--ignore-certificate-errors-spki-list={hash}");
    let seen = look(browser, &folder.path(""), &[&trust, "--dump-dom"], &url);
    for expected in [">own<", "Drive 0", "Credentials end"] {
        assert!(seen.contains(expected), "{expected} is not in {seen}");
    }
}

/// Checks the certificate chain with OpenSSL in strict mode, and allows only the signature algorithms that browsers
/// accept.
#[test]
fn openssl_takes_the_certificate_of_a_node_with_the_signatures_of_browsers() {
    if !Command::new("openssl").arg("version").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: openssl is not installed");
        return;
    }
    let folder = Folder::new();
    folder.run("node credentials keys --for-node own --address 127.0.0.1,own.lan").ok();
    let own: Value = serde_json::from_str(&folder.read("keys/node-own.json")).unwrap();
    folder.write("ca.pem", own["authority"].as_str().unwrap());
    folder.write("own.pem", own["certificate"].as_str().unwrap());
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        command.args(words.split(' ')).current_dir(folder.path("")).stdin(std::process::Stdio::null());
        let made = command.output().unwrap();
        assert!(made.status.success(), "{words}: {}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8_lossy(&made.stdout).into_owned()
    };
    openssl("verify -x509_strict -purpose sslserver -verify_hostname own.lan -CAfile ca.pem own.pem");
    let node = Node::start(&folder, "own", "--credentials keys/node-own.json --log none");
    let signatures =
        "ECDSA+SHA256:RSA-PSS+SHA256:RSA+SHA256:ECDSA+SHA384:RSA-PSS+SHA384:RSA-PSS+SHA512:RSA+SHA512";
    let said = openssl(&format!(
        "s_client -connect {} -sigalgs {signatures} -CAfile ca.pem -verify_return_error -verify_ip 127.0.0.1 -alpn h2",
        node.address
    ));
    assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
}

/// Copies the screenshots of the page to the folder `INSHORE_SCREENSHOTS`, if this variable is set.
#[test]
fn a_browser_shows_nodes_drives_and_tasks_and_runs_no_names() {
    let Some(browser) = browser() else {
        println!("skipped: there is no chromium here");
        return;
    };
    let folder = Folder::new();
    folder.run("node credentials keys --for-node own --address 127.0.0.1").ok();
    let authority: Authority = inshore::nodes::read_credentials(&folder.path("keys/authority.json")).unwrap();
    let day = Duration::from_secs(86_400);
    let client = authority.client(HOSTILE, &Right::ALL, day).unwrap();
    write_credentials(&folder.path("keys/hostile.json"), &client).unwrap();
    let keys = "--credentials keys/node-own.json --log none";
    let peers: Vec<Node> = (0..2)
        .map(|n| Node::start(&folder, &format!("node{n}"), &format!("{keys} --name peer{n}")))
        .collect();
    let named = peers.iter().map(|node| node.address.clone()).collect::<Vec<_>>().join(",");
    let page = format!("--page 127.0.0.1:0 --peers {named},127.0.0.1:1 --peer-credentials keys/hostile.json");
    let node = Node::start(&folder, "own", &format!("{keys} --name own {page}"));
    let all = format!("--node {named},{} --credentials keys/hostile.json", node.address);
    folder.write("web.log", text().repeat(12));
    folder.run(&format!("store put web.log --name a<b>&c {all} --piece 1MiB --quiet")).ends();
    folder.run(&format!("store put web.log {all} --piece 1MiB --quiet")).ok();
    // No process reads the output of this command, and little of the output is buffered, so the command runs until the
    // test ends.
    let mut running = folder.run(&format!("search -n well store:web.log {all} --memory 32MiB")).spawn();
    let page = node.page.clone().unwrap();
    until("nothing runs", || {
        let nodes = status(&page)["nodes"].as_array().unwrap().clone();
        nodes.iter().any(|node| node["status"]["running"].as_array().is_some_and(|tasks| !tasks.is_empty()))
    });
    for _ in 0..10 {
        folder.run(&format!("search -c ERROR store:web.log {all}")).ok();
    }
    let url = format!("http://{page}/");
    let seen = look(browser, &folder.path(""), &["--dump-dom"], &url);
    for expected in ["peer0", "peer1", ">own<", "no answer", "127.0.0.1:1", "web.log", "Drive 0", "line-near"]
    {
        assert!(seen.contains(expected), "{expected} is not in {seen}");
    }
    assert!(seen.contains("&lt;img src=x") && !seen.contains("<img"), "a name became a part of the page");
    assert!(!seen.contains("<title>broken"), "a name was run");
    for (name, words) in [
        ("wide-light", &["--window-size=1280,1180"][..]),
        ("wide-dark", &["--window-size=1280,1180", "--force-dark-mode"]),
        ("narrow-light", &["--window-size=500,2000"]),
    ] {
        let file = folder.path(&format!("{name}.png"));
        let screenshot = format!("--screenshot={}", file.display());
        look(browser, &folder.path(""), &[words, &[screenshot.as_str()]].concat(), &url);
        let picture = std::fs::read(&file).unwrap();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{name}: {} bytes", picture.len());
        if let Ok(keep) = std::env::var("INSHORE_SCREENSHOTS") {
            std::fs::copy(&file, Path::new(&keep).join(format!("{name}.png"))).unwrap();
        }
    }
    let _ = running.kill();
    let _ = running.wait();
}
