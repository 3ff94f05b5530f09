//! Tests that a terminal shows untrusted text without acting on control sequences in it.

use std::process::{Command, Stdio};

use crate::util::Folder;

/// Control sequences that set the title of a terminal, and turn the following text red.
const OBEYED: &str = "\u{1b}]0;owned\u{7}\u{1b}[31m";
const SHOWN: &str = "\\u{1b}]0;owned\\u{7}\\u{1b}[31m";

/// Runs `inshore` with these arguments, which a shell splits. Returns the output that a terminal gets. Returns `None`
/// if no terminal can be created.
fn on_terminal(folder: &Folder, words: &str) -> Option<String> {
    let inshore = env!("CARGO_BIN_EXE_inshore");
    let line = format!("exec {inshore} {words} 2>errors");
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).current_dir(folder.path("")).stdin(Stdio::null());
    command.env("INSHORE_STORE", folder.path("store")).env("SHELL", "/bin/sh");
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: no terminal can be made here: script: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {text} {}", folder.read("errors"));
    Some(text)
}

#[test]
fn names_and_rows_that_a_terminal_would_obey_are_shown_to_it() {
    let folder = Folder::new();
    let name = format!("a{OBEYED}.txt");
    folder.write(&name, "fox\n");
    folder.write("rows.csv", format!("a\n\"x{OBEYED}\"\n"));
    folder.write("words", format!("x{OBEYED} "));
    for words in [
        "search --files --no-ignore -g 'a*'",
        "search -l --color never fox -g 'a*'",
        "search -c -H --color never fox -g 'a*'",
        "search -U --color never 'fox\\n' -g 'a*'",
        "checksum a*",
        "sql \"SELECT * FROM 'rows.csv'\"",
        "count words words --split --top 3",
    ] {
        let Some(sent) = on_terminal(&folder, words) else { return };
        assert!(sent.contains(SHOWN) && !sent.contains(['\u{1b}', '\u{7}']), "{words}: {sent:?}");
    }
    // A pipe gets the bytes unchanged.
    let listed = folder.run("search --files --no-ignore -g a*").ok().stdout;
    assert!(listed.contains(OBEYED), "{listed:?}");
}

#[test]
fn output_of_a_module_that_a_terminal_would_obey_is_shown_to_it() {
    let Some(folder) = crate::kernels::folder() else { return };
    folder.write("text", format!("a{OBEYED}\n"));
    let Some(sent) = on_terminal(&folder, "kernel run lines.wasm --args a text") else { return };
    assert!(sent.contains(SHOWN) && !sent.contains(['\u{1b}', '\u{7}']), "{sent:?}");
    let piped = folder.run("kernel run lines.wasm --args a text").ok().stdout;
    assert_eq!(piped, format!("a{OBEYED}\n"));
}
