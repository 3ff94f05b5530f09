//! Passes the commit of the build to the command: the value of `INSHORE_COMMIT` if it is set, and otherwise the commit
//! that git reports.

use std::{env, process::Command};

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_string()).filter(|text| output.status.success() && !text.is_empty())
}

fn main() {
    println!("cargo::rerun-if-env-changed=INSHORE_COMMIT");
    let reference = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD"].into_iter().chain(reference.as_deref()) {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let given = env::var("INSHORE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit =
        given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=INSHORE_COMMIT={commit}");
}
