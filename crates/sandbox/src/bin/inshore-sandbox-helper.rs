//! A helper of the sandbox that is nothing else: for libraries within programs that aren't ours, and for tests.

fn main() {
    inshore_sandbox::child_main_if_asked();
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        inshore_sandbox::child_main();
    }
    eprintln!("This program is started by the sandbox of Inshore; by itself it does nothing.");
    std::process::exit(2);
}
