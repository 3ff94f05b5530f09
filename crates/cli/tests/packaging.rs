//! Tests of the files that are installed together with the program.

use std::{path::PathBuf, process::Command};

use crate::util::Folder;

fn unit() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/inshore-node.service");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn systemd_understands_the_unit_of_a_node() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("skipped: there is no systemd-analyze here");
        return;
    }
    let folder = Folder::new();
    // In tests the program is not in the folder of an installation.
    folder.write(
        "inshore-node.service",
        unit().replace("/usr/local/bin/inshore", env!("CARGO_BIN_EXE_inshore")),
    );
    let path = folder.path("inshore-node.service");
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let of_us: Vec<&str> = said.lines().filter(|line| line.contains("inshore-node")).collect();
    assert!(of_us.is_empty(), "{said}");
}

#[test]
fn the_unit_says_what_the_program_understands() {
    let unit = unit().replace("\\\n", " ");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words = line.split_once(' ').unwrap().1;
    let words = words.replace("${CREDENTIALS_DIRECTORY}", "no-such-folder").replace("$INSHORE_ARGUMENTS", "");
    let folder = Folder::new();
    let said = folder.run(&words).exits(2);
    assert!(said.stderr.contains("no-such-folder/node.json"), "{}", said.stderr);
}
