//! `inshore kernel new` and `kernel build`.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use inshore::{
    ops::verbs::read_module,
    store::{NewFile, format_bytes, make_folder},
    wasm::{Module, WasmKernel},
};
use serde_json::json;

use crate::{
    args::{Build, Example, GlobalOptions, Language, New},
    report::outcome::{print_json, print_line},
    verbs::kernel::told,
};

/// Rust targets for WebAssembly. The first installed target is used.
const TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip1"];

const RUST_SDK: [(&str, &str); 2] = [
    ("inshore-sdk/Cargo.toml", include_str!("../../../../../sdk/rust/Cargo.toml")),
    ("inshore-sdk/src/lib.rs", include_str!("../../../../../sdk/rust/src/lib.rs")),
];
const C_HEADER: &str = include_str!("../../../../../sdk/c/inshore.h");

/// The source of an example.
fn source(language: Language, example: Example) -> &'static str {
    match (language, example) {
        (Language::Rust, Example::Scan) => include_str!("../../../../../sdk/rust/kernels/scan.rs"),
        (Language::Rust, Example::Search) => include_str!("../../../../../sdk/rust/kernels/search.rs"),
        (Language::Rust, Example::Words) => include_str!("../../../../../sdk/rust/kernels/words.rs"),
        (Language::C, Example::Scan) => include_str!("../../../../../sdk/c/scan.c"),
        (Language::C, Example::Search) => include_str!("../../../../../sdk/c/search.c"),
        (Language::C, Example::Words) => include_str!("../../../../../sdk/c/words.c"),
    }
}

fn manifest(name: &str) -> String {
    format!(
        "[package]
name = \"{name}\"
version = \"0.1.0\"
edition = \"2021\"
publish = false

[lib]
crate-type = [\"cdylib\"]

[dependencies]
inshore-sdk = {{ path = \"inshore-sdk\" }}

[profile.release]
lto = true
panic = \"abort\"
strip = true

# Of no workspace above it.
[workspace]
"
    )
}

/// Enables SIMD instructions on vectors of 128 bits, and bulk memory operations, which the sandbox supports.
const CARGO_CONFIG: &str = "\
[target.'cfg(target_arch = \"wasm32\")']
rustflags = [\"-C\", \"target-feature=+simd128,+bulk-memory\"]
";

fn readme(name: &str, language: Language, example: Example) -> String {
    let (needs, what) = match language {
        Language::Rust => (
            "Rust with the target wasm32-unknown-unknown (`rustup target add wasm32-unknown-unknown`)",
            "`src/lib.rs` is the kernel, `inshore-sdk/` what it is made with",
        ),
        Language::C => (
            "clang and lld (`apt install clang lld`)",
            "`kernel.c` is the kernel, `inshore.h` what it is made with",
        ),
    };
    let arguments = if example == Example::Search { " --args TEXT" } else { "" };
    format!(
        "# {name}

A kernel of Inshore. {what}.

    inshore kernel build {name}
    inshore kernel run {name}/{name}.wasm{arguments} some.txt
    inshore kernel push {name}/{name}.wasm --node a.lan,b.lan
    inshore kernel run {name}{arguments} store:some.txt --node a.lan,b.lan

Building needs {needs}; nothing is fetched.

A kernel gets whole lines, in blocks of any size, in as many instances as there are threads and nodes. What it gives may not
depend on that: either it works on each line by itself, and what it writes comes out in order; or it adds up, and its states
are merged.
"
    )
}

pub fn new(options: &GlobalOptions, words: &New) -> Result<()> {
    let New { folder, language, from } = words;
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_first = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    if !is_first || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter)) {
        bail!("{}: a kernel's name is a letter, then letters, digits, '-' and '_'", folder.display());
    }
    if folder.exists() {
        bail!("{}: the folder exists already: remove it or choose another name", folder.display());
    }
    let mut files = vec![("README.md", readme(name, *language, *from))];
    match language {
        Language::Rust => {
            files.push(("Cargo.toml", manifest(name)));
            files.push((".cargo/config.toml", CARGO_CONFIG.to_string()));
            files.push((".gitignore", "/target\n*.wasm\n".to_string()));
            files.push(("src/lib.rs", source(*language, *from).to_string()));
            files.extend(RUST_SDK.map(|(path, text)| (path, text.to_string())));
        }
        Language::C => {
            files.push((".gitignore", "*.wasm\n".to_string()));
            files.push(("kernel.c", source(*language, *from).to_string()));
            files.push(("inshore.h", C_HEADER.to_string()));
        }
    }
    for (path, text) in &files {
        let path = folder.join(path);
        let above = path.parent().expect("it is in the folder");
        make_folder(above).with_context(|| format!("{}: cannot create the folder", above.display()))?;
        NewFile::write_whole(&path, text.as_bytes())?;
    }
    if options.json {
        let files: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
        return Ok(print_json(&json!({ "command": "kernel new", "folder": folder, "files": files }))?);
    }
    if !options.quiet {
        print_line(&format!(
            "{}: a kernel to change; `inshore kernel build {0}` builds it",
            folder.display()
        ))?;
    }
    Ok(())
}

pub fn build(options: &GlobalOptions, words: &Build) -> Result<()> {
    let folder = &words.folder;
    let whole = folder.canonicalize().with_context(|| folder.display().to_string())?;
    let name =
        whole.file_name().and_then(|name| name.to_str()).context("a folder with a name is expected")?;
    let module = match folder.join("Cargo.toml").is_file() {
        true => build_rust(&whole)?,
        false => build_c(&whole)?,
    };
    let module = Module { name: name.to_string(), ..module };
    let result = WasmKernel::new(module.clone(), "").check()?;
    let path = folder.join(format!("{name}.wasm"));
    NewFile::write_whole(&path, &module.bytes)?;
    let bytes = module.bytes.len() as u64;
    if options.json {
        let made =
            json!({ "command": "kernel build", "module": path, "bytes": bytes, "sha256": module.sha256() });
        return Ok(print_json(&made)?);
    }
    if !options.quiet {
        print_line(&format!("{}: {}, with {}", path.display(), format_bytes(bytes), told(result)))?;
    }
    Ok(())
}

/// Returns the path or name of a tool: the value of the environment variable, or the default name.
fn tool(variable: &str, name: &str) -> OsString {
    env::var_os(variable).unwrap_or_else(|| name.into())
}

/// Runs a tool, which prints its own errors on standard error. `missing` explains the error if the tool cannot be run.
fn run(command: &mut Command, missing: &str) -> Result<()> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot run {shown}: {missing}"))?;
    if !status.success() {
        bail!("{shown} failed to build the kernel ({status}): see its messages above");
    }
    Ok(())
}

fn build_rust(folder: &Path) -> Result<Module> {
    let missing =
        "building a kernel in Rust needs Rust (https://rustup.rs), or another one named by CARGO and RUSTC";
    let rustc = tool("RUSTC", "rustc");
    let sysroot = Command::new(&rustc).args(["--print", "sysroot"]).current_dir(folder).output();
    let sysroot = sysroot.with_context(|| format!("cannot run {}: {missing}", rustc.to_string_lossy()))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    let target = TARGETS.into_iter().find(|target| sysroot.join("lib/rustlib").join(target).is_dir());
    let Some(target) = target else {
        bail!(
            "Rust in {} has no target {}: `rustup target add {1}` installs it",
            sysroot.display(),
            TARGETS[0]
        );
    };
    let mut cargo = Command::new(tool("CARGO", "cargo"));
    cargo.args(["build", "--release", "--target", target]).current_dir(folder);
    // The option sets the folder for the module, which would otherwise depend on the user's configuration of cargo.
    cargo.arg("--target-dir").arg(folder.join("target"));
    run(&mut cargo, missing)?;
    let made = folder.join("target").join(target).join("release");
    let found = fs::read_dir(&made).with_context(|| made.display().to_string())?;
    let mut modules: Vec<PathBuf> = found
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm"))
        .collect();
    match (modules.pop(), modules.is_empty()) {
        (Some(module), true) => Ok(read_module(&module)?),
        (None, _) => {
            bail!(
                "{}: cargo built no module in this folder: check that crate-type is [\"cdylib\"]",
                made.display()
            )
        }
        (Some(_), false) => {
            bail!("{}: the folder has several modules: remove the folder target", made.display())
        }
    }
}

fn build_c(folder: &Path) -> Result<Module> {
    let found = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut sources: Vec<PathBuf> = found
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "c"))
        .collect();
    sources.sort();
    if sources.is_empty() {
        bail!("{}: a folder with a Cargo.toml or a .c file is expected", folder.display());
    }
    let aside = tempfile::tempdir().context("cannot create a folder for the module")?;
    let module = aside.path().join("kernel.wasm");
    let mut clang = Command::new(tool("CLANG", "clang"));
    clang.args(["--target=wasm32", "-O2", "-nostdlib", "-fno-builtin", "-msimd128", "-mbulk-memory"]);
    clang.args(["-Wl,--no-entry", "-Wl,--strip-all", "-o"]).arg(&module).args(&sources).current_dir(folder);
    run(&mut clang, "building a kernel in C needs clang and lld, or another clang named by CLANG")?;
    Ok(read_module(&module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_has_the_functions_of_its_result() {
        for language in [Language::Rust, Language::C] {
            for example in [Example::Scan, Example::Search, Example::Words] {
                let text = source(language, example);
                let merges = text.contains("fn merge") || text.contains("inshore_merge");
                assert_eq!(merges, example != Example::Search, "{language:?} {example:?}");
            }
        }
    }
}
