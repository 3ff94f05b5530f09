//! This program is only a helper of the sandbox. It is for libraries inside foreign programs, such as the Python
//! interpreter, and for tests.

fn main() {
    inshore_sandbox::child_main_if_asked();
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        inshore_sandbox::child_main();
    }
    eprintln!(
        "inshore-sandbox-helper: only the sandbox of Inshore starts this program; it does nothing by itself"
    );
    std::process::exit(2);
}
