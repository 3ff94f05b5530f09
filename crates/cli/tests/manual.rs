//! Tests of help, completions, manual pages, and output to pipes.

use std::fs;

use crate::util::Folder;

#[test]
fn completions_know_the_commands_of_every_shell() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = folder.run(&format!("completions {shell}")).ok().stdout;
        assert!(script.contains("pagerank") && script.contains("memory"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    folder.run("man --out pages/man1").ok();
    let pages = fs::read_dir(folder.path("pages/man1")).unwrap();
    let mut names: Vec<String> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in
        ["inshore.1", "inshore-graph.1", "inshore-graph-pagerank.1", "inshore-graph-generate-kronecker.1"]
    {
        assert!(names.iter().any(|found| found == name), "no {name} in {names:?}");
    }
    let page = folder.read("pages/man1/inshore-graph-bfs.1");
    for word in ["Search breadth first", "\\-\\-source", "\\-\\-memory", "Examples"] {
        assert!(page.contains(word), "no {word} in\n{page}");
    }
    assert!(folder.run("man").ok().stdout.contains(".TH inshore 1"));
}

#[test]
fn help_and_version_go_to_standard_output() {
    let folder = Folder::new();
    for words in ["--help", "graph --help", "graph pagerank --help", "graph generate kronecker -h"] {
        let help = folder.run(words).ok().stdout;
        assert!(help.contains("Examples:") && help.contains("Usage: inshore"), "{words}: {help}");
    }
    let help = folder.run("graph pagerank --help").ok().stdout;
    assert!(help.contains("[default: 0.85]") && help.contains("--memory <SIZE>"), "{help}");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(folder.run("-V").ok().stdout, format!("inshore {version}\n"));
    let long = folder.run("--version").ok().stdout;
    let (first, rest) = long.split_once('\n').unwrap();
    let commit = first.strip_prefix(&format!("inshore {version} (")).unwrap().strip_suffix(')').unwrap();
    assert!(
        commit == "unknown" || commit.len() >= 7 && commit.chars().all(|c| c.is_ascii_hexdigit()),
        "{long}"
    );
    assert_eq!(rest, "features: graph records text sql wasm nodes vectors\n");
}

#[test]
fn a_pipe_gets_no_control_characters() {
    let folder = Folder::new();
    let said = folder.run("graph generate kronecker --scale 16 --name k --memory 16MiB").ok();
    let other = folder.run("graph pagerank k --top 5 --explain --memory 16MiB").ok();
    let error = folder.run("graph pagerank missing").exits(2);
    for text in [said.stdout, said.stderr, other.stdout, other.stderr, error.stderr] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
