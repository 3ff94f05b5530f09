//! These tests run ordinary commands, and commands that attack the sandbox. Each attack on a protection is made
//! twice. With the protection, the attack must fail. Without the protection, the attack must succeed, since
//! otherwise the test would show nothing.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use inshore_sandbox::{
    Command, CommandLimits, Error, Folder, Helper, Policy, Protection, Protections, Response, Result,
    Sandbox, Termination, open_left,
};

const MIB: u64 = 1 << 20;

/// The maximum time for which a test waits for an event. Only a failing test waits so long, so a busy machine
/// makes no test fail.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition `is_so` is true.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn helper() -> Helper {
    Helper::at(env!("CARGO_BIN_EXE_inshore-sandbox-helper"))
}

/// Returns a helper that is started through the program `setpriv`, which removes rights first.
fn weaker_helper(words: &[&str]) -> Helper {
    let own = [env!("CARGO_BIN_EXE_inshore-sandbox-helper"), "serve"];
    Helper::at("/usr/bin/setpriv").with_args(words.iter().chain(&own))
}

/// Returns a policy that wants all protections and requires none.
fn lenient() -> Policy {
    Policy { required: Protections::NONE, ..Policy::default() }
}

/// Makes a folder that the user who runs commands can enter.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn limits() -> CommandLimits {
    CommandLimits { wall: 2 * PATIENCE, ..CommandLimits::default() }
}

struct CommandOutput {
    response: Response,
    output: String,
}

impl CommandOutput {
    fn errors(&self) -> String {
        String::from_utf8_lossy(&self.response.errors).into_owned()
    }
}

fn run_with(
    sandbox: &Sandbox,
    command: &Command,
    limits: &CommandLimits,
    input: &str,
) -> Result<CommandOutput> {
    let mut output = Vec::new();
    let take = |bytes: &[u8]| {
        output.extend_from_slice(bytes);
        Ok(())
    };
    let response = sandbox.run(command, limits, input.as_bytes(), take, &|| false)?;
    Ok(CommandOutput { response, output: String::from_utf8_lossy(&output).into_owned() })
}

fn shell(folder: &Path, script: &str) -> Command {
    Command::new("/bin/sh", folder).args(["-c", script])
}

/// Runs a shell script in a new folder.
fn script(policy: Policy, limits: &CommandLimits, script: &str) -> CommandOutput {
    let folder = folder();
    run_with(&Sandbox::new(helper(), policy), &shell(folder.path(), script), limits, "").unwrap()
}

/// Returns true if a protection is available on this machine. Otherwise prints a line.
fn available(one: Protection) -> bool {
    let active = script(lenient(), &limits(), ":").response.active;
    if !active.contains(one) {
        println!("skipped: the protection '{one}' can't be had here");
    }
    active.contains(one)
}

fn without(one: Protection) -> Policy {
    Policy { wanted: Protections::ALL.without(one), ..lenient() }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|data| std::os::unix::fs::MetadataExt::uid(&data) == 0)
}

fn has_setpriv() -> bool {
    let has = is_root() && Path::new("/usr/bin/setpriv").exists();
    if !has {
        println!("skipped: needs root and setpriv");
    }
    has
}

/// The user id of the user `nobody`.
const NOBODY: u32 = 65534;

/// Runs a test of this binary as a user without rights, since root may read any file.
fn without_rights(name: &str, attack: Option<&Path>) {
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", name, "--nocapture"]).uid(NOBODY).gid(NOBODY);
    if let Some(attack) = attack {
        test.env(ATTACK, attack);
    }
    let done = test.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "as a user without rights: {said}");
}

/// Runs the test once more as a user without rights, if this process is root.
fn also_without_rights(name: &str) {
    if is_root() {
        without_rights(name, None);
    }
}

/// Lists the names in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// The environment variable that makes a test run as the attack.
const ATTACK: &str = "INSHORE_TEST_ATTACK";

/// Returns a command that runs a test of this binary. Some attacks are written as tests, which do nothing in an
/// ordinary test run.
fn own_attack(folder: &Path, name: &str) -> Command {
    let place = folder.join("bin");
    fs::create_dir(&place).unwrap();
    fs::copy(std::env::current_exe().unwrap(), place.join("attack")).unwrap();
    let work = folder.join("work");
    fs::create_dir(&work).unwrap();
    let mut command =
        Command::new(place.join("attack"), work).args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env.push((ATTACK.into(), "1".into()));
    command
}

#[test]
fn a_pipeline_counts_the_lines_of_its_input() {
    let folder = folder();
    let sandbox = Sandbox::new(helper(), lenient());
    let input = "ax\nb\nxx\n".repeat(100_000);
    let ran = run_with(&sandbox, &shell(folder.path(), "grep x | wc -l"), &limits(), &input).unwrap();
    assert_eq!(ran.output.trim(), "200000", "{:?} {}", ran.response, ran.errors());
    assert!(ran.response.success());
    assert_eq!(ran.response.output_bytes, ran.output.len() as u64);
    assert!(ran.response.memory_bytes_max > 0);
    println!("{:?}", ran.response);
}

#[test]
fn files_are_read_and_written_where_that_was_allowed() {
    let (folder, data) = (folder(), folder());
    let (input, output) = (data.path().join("in"), data.path().join("out"));
    fs::write(&input, "b\na\n").unwrap();
    fs::write(&output, "").unwrap();
    fs::set_permissions(&output, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!("sort {} > own && cat own > {}", input.display(), output.display());
    let command = shell(folder.path(), &script).readable(&input).writable(&output);
    let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits(), "").unwrap();
    assert!(ran.response.success(), "{:?} {}", ran.response, ran.errors());
    assert_eq!(fs::read_to_string(output).unwrap(), "a\nb\n");
    assert_eq!(fs::read_to_string(folder.path().join("own")).unwrap(), "a\nb\n");
}

#[test]
fn awk_sort_and_python_work() {
    let ran =
        script(lenient(), &limits(), "seq 9 | awk '{print $1 * $1}' | sort -n --parallel=2 | tail -n 1");
    assert_eq!(ran.output, "81\n", "{}", ran.errors());
    if !Path::new("/usr/bin/python3").exists() {
        println!("skipped: no /usr/bin/python3");
        return;
    }
    let code = "import subprocess, threading; t = threading.Thread(target=print, args=[1]); t.start(); t.join(); \
        print(subprocess.run(['echo', '2'], capture_output=True).stdout)";
    let folder = folder();
    let command = Command::new("/usr/bin/python3", folder.path()).args(["-c", code]);
    let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits(), "").unwrap();
    assert_eq!(ran.output, "1\nb'2\\n'\n", "{}", ran.errors());
}

#[test]
fn status_and_errors_come_back() {
    let ran = script(lenient(), &limits(), "echo why >&2; exit 3");
    assert_eq!((ran.response.code, ran.errors().as_str()), (Some(3), "why\n"));
    let ran = script(lenient(), &limits(), "kill -SEGV $$");
    assert_eq!((ran.response.code, ran.response.signal), (None, Some(11)));
    assert_eq!(ran.response.ended, None);
}

#[test]
fn a_missing_program_is_an_error_that_names_it() {
    let folder = folder();
    let sandbox = Sandbox::new(helper(), lenient());
    for program in ["/no/such/program", "no-path"] {
        match run_with(&sandbox, &Command::new(program, folder.path()), &limits(), "") {
            Err(Error::Path { path, .. }) => assert_eq!(path, PathBuf::from(program)),
            other => panic!("{:?}", other.map(|ran| ran.response)),
        }
    }
    // The file exists, but is not executable.
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    assert!(matches!(
        run_with(&sandbox, &Command::new(&plain, folder.path()), &limits(), ""),
        Err(Error::Path { .. })
    ));
    let missing = shell(folder.path(), ":").readable("/no/such/file");
    assert!(matches!(run_with(&sandbox, &missing, &limits(), ""), Err(Error::Path { .. })));
}

#[test]
fn a_program_that_is_no_helper_is_refused_by_name() {
    let folder = folder();
    let sandbox = Sandbox::new(Helper::at("/bin/true"), lenient());
    match run_with(&sandbox, &shell(folder.path(), ":"), &limits(), "") {
        Err(Error::Helper { program, .. }) => assert_eq!(program, PathBuf::from("/bin/true")),
        other => panic!("{:?}", other.map(|ran| ran.response)),
    }
}

#[test]
fn a_required_protection_that_is_missing_is_refused_by_name() {
    for one in Protection::ALL {
        let policy = Policy { required: Protections::NONE.with(one), ..without(one) };
        let folder = folder();
        let command = shell(folder.path(), "touch ran");
        match run_with(&Sandbox::new(helper(), policy), &command, &limits(), "") {
            Err(Error::Missing { protection, .. }) => assert_eq!(protection, one),
            other => panic!("{one}: {:?}", other.map(|ran| ran.response)),
        }
        assert!(!folder.path().join("ran").exists());
    }
}

#[test]
fn other_files_are_neither_read_nor_written_nor_executed() {
    if !available(Protection::Files) {
        return;
    }
    let other = folder();
    let secret = other.path().join("secret");
    fs::write(&secret, "secret\n").unwrap();
    fs::set_permissions(other.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o666)).unwrap();
    let (path, folder) = (secret.display(), other.path().display());
    let attacks = [
        format!("cat {path}"),
        format!("echo x >> {path}"),
        format!("truncate -s 1 {path}"),
        format!("ls {folder}"),
        format!("touch {folder}/new"),
        format!("ln {path} here"),
        "cp /bin/true mine && ./mine".to_string(),
        "cat /proc/self/mounts".to_string(),
    ];
    for attack in attacks {
        let ran = script(lenient(), &limits(), &attack);
        assert!(!ran.response.success() && ran.output.is_empty(), "{attack}: {:?}", ran.response);
        if attack.starts_with("ln ") {
            // A hard link between two file systems fails even without the protection.
            continue;
        }
        let ran = script(without(Protection::Files), &limits(), &attack);
        assert!(ran.response.success(), "without: {attack}: {}", ran.errors());
    }
}

/// The line that is printed when all sockets were made.
const SOCKETS: &str = "made all sockets";

#[test]
fn attack_sockets() {
    use std::{net, os::unix::net as local};
    if std::env::var_os(ATTACK).is_none() {
        return;
    }
    net::UdpSocket::bind("127.0.0.1:0").unwrap();
    net::TcpListener::bind("127.0.0.1:0").unwrap();
    local::UnixStream::pair().unwrap();
    println!("{SOCKETS}");
}

#[test]
fn no_socket_can_be_opened() {
    if !available(Protection::Calls) {
        return;
    }
    let attack = |policy| {
        let folder = folder();
        let command = own_attack(folder.path(), "attack_sockets");
        run_with(&Sandbox::new(helper(), policy), &command, &limits(), "").unwrap()
    };
    let ran = attack(lenient());
    assert!(!ran.output.contains(SOCKETS) && !ran.response.success(), "{}", ran.output);
    assert!(
        (ran.output.clone() + &ran.errors()).contains("not implemented"),
        "{}{}",
        ran.output,
        ran.errors()
    );
    let all = [Protection::Calls, Protection::Files, Protection::Network];
    let wanted = all.into_iter().fold(Protections::ALL, Protections::without);
    let ran = attack(Policy { wanted, ..lenient() });
    assert!(ran.output.contains(SOCKETS), "without: {}{}", ran.output, ran.errors());
    // With only the network namespace, sockets can be made, but reach no other socket.
    let wanted = Protections::ALL.without(Protection::Calls);
    let ran = attack(Policy { wanted, ..lenient() });
    assert!(!ran.output.contains(SOCKETS), "{}", ran.output);
}

#[test]
fn new_namespaces_and_tracing_are_refused() {
    if !available(Protection::Calls) || !available(Protection::User) {
        return;
    }
    let attack = "unshare --user true";
    assert!(!script(lenient(), &limits(), attack).response.success());
    assert!(script(without(Protection::Calls), &limits(), attack).response.success());
}

#[test]
fn the_user_has_no_rights() {
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    assert_eq!(script(lenient(), &limits(), "id -u; id -g; id -G").output, "65534\n65534\n65534\n");
    // Without the protection, the command's user is root, but the command has none of root's capabilities.
    let ran = script(without(Protection::User), &limits(), "id -u; chroot / true");
    assert!(ran.output == "0\n" && !ran.response.success(), "{:?}", ran.response);
}

#[test]
fn processes_are_limited() {
    if !available(Protection::Processes) {
        return;
    }
    let limits = CommandLimits { processes: 16, ..limits() };
    let attack = "i=0; while [ $i -lt 64 ]; do sleep 9 & i=$((i+1)); done; echo $i";
    let ran = script(lenient(), &limits, attack);
    assert!(!ran.response.success() && ran.errors().contains("fork"), "{}", ran.errors());
    let ran = script(without(Protection::Processes), &limits, attack);
    assert_eq!(ran.output, "64\n", "without: {}", ran.errors());
}

#[test]
fn a_fork_bomb_is_contained_and_gone_at_the_deadline() {
    if !available(Protection::Processes) || !available(Protection::Descendants) {
        return;
    }
    let limits = CommandLimits { processes: 32, wall: Duration::from_millis(700), ..limits() };
    let (start, folder) = (Instant::now(), folder());
    let bomb = "f() { f | f & }; f; while :; do sleep 1; done";
    let command = shell(folder.path(), &format!("marker=bomb{}; {bomb}", std::process::id()));
    let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits, "").unwrap();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(matches!(ran.response.ended, Some(Termination::Deadline)) || !ran.response.success());
    assert_eq!(living(&format!("bomb{}", std::process::id())), 0);
}

/// Lists processes whose command line contains the marker.
fn processes(marker: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let holds = |path: &Path| {
        fs::read(path.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(marker))
    };
    let found = processes.filter(|process| holds(&process.path()));
    found.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect()
}

fn living(marker: &str) -> usize {
    processes(marker).len()
}

/// Runs a command that leaves a daemon (a process that forked twice, has a session, ignores signals and never
/// ends). Returns true if the daemon still runs after the command.
fn daemon_lives(sandbox: &Sandbox, folder: &Path) -> bool {
    static DAEMONS: AtomicUsize = AtomicUsize::new(0);
    let marker = format!("daemon{}-{}.", std::process::id(), DAEMONS.fetch_add(1, Ordering::Relaxed));
    let daemon = "trap \"\" TERM HUP INT; touch started; while :; do sleep 1; done";
    let script = format!(
        "(setsid sh -c '{daemon}' {marker} > /dev/null 2>&1 < /dev/null &)
        until [ -e started ]; do sleep 0.02; done"
    );
    // If the sandbox waited for the daemon, the command would run until the deadline.
    let ran = run_with(sandbox, &shell(folder, &script), &limits(), "").unwrap();
    assert!(ran.response.success(), "{:?} {}", ran.response, ran.errors());
    let left = processes(&marker);
    for &process in &left {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    !left.is_empty()
}

#[test]
fn nothing_outlives_a_command() {
    if !available(Protection::Descendants) {
        return;
    }
    assert!(!daemon_lives(&Sandbox::new(helper(), lenient()), folder().path()));
    // The second run also has no cgroup, since a cgroup could not be removed while the daemon lives.
    let wanted = Protections::NONE.with(Protection::Files).with(Protection::Calls).with(Protection::User);
    assert!(daemon_lives(&Sandbox::new(helper(), Policy { wanted, ..lenient() }), folder().path()));
}

#[test]
fn nothing_outlives_a_command_where_there_are_no_namespaces() {
    if !has_setpriv() {
        return;
    }
    let sandbox = Sandbox::new(weaker_helper(&["--bounding-set", "-sys_admin"]), lenient());
    let folder = folder();
    assert!(!daemon_lives(&sandbox, folder.path()));
    let limits = CommandLimits { processes: 32, wall: Duration::from_millis(700), ..limits() };
    let marker = format!("scan{}", std::process::id());
    let command =
        shell(folder.path(), &format!("marker={marker}; f() {{ f | f & }}; f; while :; do sleep 1; done"));
    let ran = run_with(&sandbox, &command, &limits, "").unwrap();
    assert!(!ran.response.active.contains(Protection::Network), "{}", ran.response.active);
    assert!(ran.response.active.contains(Protection::Descendants), "{}", ran.response.active);
    assert_eq!(living(&marker), 0);
}

#[test]
fn a_user_without_rights_has_the_same_protections() {
    if !has_setpriv() {
        return;
    }
    let helper = weaker_helper(&["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let command = shell(folder.path(), "i=0; while [ $i -lt 64 ]; do sleep 9 & i=$((i+1)); done; echo $i");
    let limits = CommandLimits { processes: 16, ..limits() };
    let ran = run_with(&Sandbox::new(helper.clone(), lenient()), &command, &limits, "").unwrap();
    if !ran.response.active.contains(Protection::Network) {
        println!("skipped: no user namespaces here");
        return;
    }
    assert_eq!(ran.response.active, Protections::ALL.without(Protection::Memory));
    assert!(ran.errors().contains("fork"), "{:?} {}", ran.response, ran.errors());
    assert!(!daemon_lives(&Sandbox::new(helper, lenient()), folder.path()));
}

#[test]
fn attack_by_dying() {
    // This is not an attack by the command: the process that started the command is killed meanwhile.
    let Some(folder) = std::env::var_os(ATTACK) else { return };
    let folder = Path::new(&folder);
    let command = shell(folder, &format!(": {}; touch started; while :; do sleep 1; done", folder.display()));
    let _ = run_with(&Sandbox::new(helper(), lenient()), &command, &limits(), "");
}

#[test]
fn a_command_ends_with_the_process_that_started_it() {
    let folder = folder();
    let mut starter = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attack_by_dying"])
        .env(ATTACK, folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("it does not begin", || folder.path().join("started").exists());
    let marker = folder.path().to_str().unwrap();
    assert!(living(marker) > 0);
    starter.kill().unwrap();
    starter.wait().unwrap();
    until("it lives on", || living(marker) == 0);
    // The next process removes the cgroups that the killed process could not remove.
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "awk_sort_and_python_work"])
        .stdout(std::process::Stdio::null())
        .status();
    assert!(again.unwrap().success());
    assert_eq!(groups(starter.id()), [] as [PathBuf; 0]);
}

/// Lists the cgroups of a process.
fn groups(of: u32) -> Vec<PathBuf> {
    let prefix = format!("inshore-{of}-");
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                found.push(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn links_and_pipes_that_a_command_left_are_not_followed() {
    let folder = folder();
    let left =
        "echo x > plain; mkdir sub; echo y > sub/plain; ln -s /etc/passwd link; ln -s /etc up; mkfifo pipe";
    let ran =
        run_with(&Sandbox::new(helper(), lenient()), &shell(folder.path(), left), &limits(), "").unwrap();
    assert!(ran.response.success(), "{}", ran.errors());
    let open = |name: &str| open_left(folder.path(), Path::new(name));
    for (name, content) in [("plain", "x\n"), ("sub/plain", "y\n")] {
        assert_eq!(io::read_to_string(open(name).unwrap()).unwrap(), content);
    }
    for name in ["link", "up/passwd", "pipe", "sub", "../x", "/etc/passwd", "missing"] {
        assert!(matches!(open(name), Err(Error::Path { .. })), "{name}");
    }
}

#[test]
fn memory_of_all_processes_together_is_limited() {
    if !available(Protection::Memory) {
        return;
    }
    let limits = CommandLimits { memory_bytes: 100 * MIB, ..limits() };
    // Each process keeps the bytes that it has read in memory. It continues when all four processes have read
    // their bytes or were killed.
    let attack = "for i in 1 2 3 4; do head -c 48M /dev/zero | tail -c 48M | (head -c 1 > /dev/null; touch $i; \
        until [ -e 1 -a -e 2 -a -e 3 -a -e 4 ]; do sleep 0.02; done; wc -c) & done; wait";
    let ran = script(lenient(), &limits, attack);
    assert_eq!(ran.response.ended, Some(Termination::Memory), "{:?}", ran.response);
    assert!(ran.response.memory_bytes_max <= limits.memory_bytes);
    let ran = script(without(Protection::Memory), &limits, attack);
    assert_eq!(ran.output.matches("50331647").count(), 4, "without: {}", ran.errors());
}

#[test]
fn memory_of_all_processes_together_is_limited_without_a_cgroup() {
    let limits = CommandLimits { memory_bytes: 100 * MIB, ..limits() };
    // Each process takes less memory than the limit, and keeps the memory until the end.
    let attack = "for i in 1 2 3 4; do head -c 48M /dev/zero | tail -c 48M | (head -c 1 > /dev/null; touch $i; \
        until [ -e never ]; do sleep 0.02; done) & done; wait";
    let ungrouped = Policy { cgroup: Some("/nowhere".into()), ..lenient() };
    let ran = script(ungrouped.clone(), &limits, attack);
    assert!(!ran.response.active.contains(Protection::Memory), "{}", ran.response.active);
    assert_eq!(ran.response.ended, Some(Termination::Memory), "{:?}", ran.response);
    assert!(ran.response.memory_bytes_max > limits.memory_bytes, "{:?}", ran.response);
    // Memory pages that a process shares with its children count once.
    if Path::new("/usr/bin/python3").exists() {
        let shares = "exec python3 -c 'import os, time
x = b\"x\" * (40 << 20)
for i in range(4):
    if not os.fork():
        time.sleep(2)
        os._exit(0)
for i in range(4):
    os.wait()'";
        let ran = script(ungrouped, &limits, shares);
        assert!(ran.response.success(), "{:?} {}", ran.response, ran.errors());
    } else {
        println!("skipped: no python3 that forks");
    }
}

#[test]
fn a_program_that_reserves_space_writes_it_instead() {
    if !Path::new("/usr/bin/fallocate").exists() || !available(Protection::Calls) {
        println!("skipped: needs fallocate of util-linux, and a filter of calls");
        return;
    }
    let attack = "fallocate -l 1MiB a; stat -c %s a; fallocate --posix -l 1MiB b && stat -c %b b";
    let ran = script(lenient(), &limits(), attack);
    assert!(ran.errors().contains("not supported"), "{}", ran.errors());
    let sizes: Vec<u64> = ran.output.lines().map(|line| line.parse().unwrap()).collect();
    assert!(matches!(sizes[..], [0, blocks] if blocks >= 2048), "{}", ran.output);
}

#[test]
fn a_process_that_allocates_without_end_is_ended() {
    // With a cgroup, the kernel kills the process. Without a cgroup, the process exits when an allocation fails.
    for policy in [lenient(), without(Protection::Memory)] {
        let grouped = policy.wanted.contains(Protection::Memory) && available(Protection::Memory);
        let limits = CommandLimits { memory_bytes: 64 * MIB, ..limits() };
        let ran = script(policy, &limits, "exec tail /dev/zero");
        assert!(!ran.response.success());
        assert_eq!(ran.response.ended == Some(Termination::Memory), grouped, "{:?}", ran.response);
        assert!(ran.response.memory_bytes_max <= 64 * MIB, "{:?}", ran.response);
    }
}

#[test]
fn endless_output_is_cut_off() {
    let limits = CommandLimits { output_bytes: 1_000_000, ..limits() };
    let ran = script(lenient(), &limits, "exec yes");
    assert_eq!((ran.response.ended, ran.output.len()), (Some(Termination::Output), 1_000_000));
    let limits = CommandLimits { output_bytes: 4, ..limits };
    let ran = script(lenient(), &limits, "echo yes");
    assert!(ran.response.success(), "exactly as much as allowed");
}

#[test]
fn an_endless_file_is_cut_off() {
    let limits = CommandLimits { file_bytes: MIB, ..limits() };
    let ran = script(lenient(), &limits, "exec head -c 4M /dev/zero > file");
    assert_eq!(ran.response.ended, Some(Termination::FileSize), "{:?}", ran.response);
    let ran = script(
        lenient(),
        &CommandLimits { file_bytes: 4 * MIB, ..limits },
        "exec head -c 4M /dev/zero > file",
    );
    assert!(ran.response.success());
}

#[test]
fn endless_files_end_the_command() {
    let limits = CommandLimits { folder_bytes: 8 * MIB, ..limits() };
    let attack = "i=0; while :; do head -c 1M /dev/zero > $i; i=$((i+1)); sleep 0.05; done";
    let ran = script(lenient(), &limits, attack);
    assert_eq!(ran.response.ended, Some(Termination::Folder), "{:?}", ran.response);
    assert!(ran.response.wall < PATIENCE);
}

#[test]
fn an_unreadable_folder_is_counted_for_root_and_for_other_users() {
    also_without_rights("an_unreadable_folder_is_counted_for_root_and_for_other_users");
    let limits = CommandLimits { folder_bytes: 8 * MIB, ..limits() };
    let writes = "i=0; while [ $i -lt 1000 ]; do head -c 1M /dev/zero > x/$i; i=$((i+1)); sleep 0.05; done";
    for hides in ["chmod 311 x", "chmod 311 .", "chmod 300 x .", "mkdir y; chmod 0 y"] {
        let ran = script(lenient(), &limits, &format!("mkdir x; {hides}; {writes}"));
        assert_eq!(ran.response.ended, Some(Termination::Folder), "{hides}: {:?}", ran.response);
    }
    // Files in a folder without rights count too, and cause no error.
    let ran = script(lenient(), &limits, "mkdir x; head -c 1M /dev/zero > x/1; chmod 0 x .; sleep 1");
    assert!(ran.response.success(), "{:?} {}", ran.response, ran.errors());
    let hides = "mkdir x; head -c 9M /dev/zero > x/1; chmod 0 x .; sleep 1000";
    let ran = script(lenient(), &limits, hides);
    assert_eq!(ran.response.ended, Some(Termination::Folder), "{:?}", ran.response);
}

#[test]
fn a_folder_that_cannot_be_read_ends_the_command_with_the_reason() {
    let name = "a_folder_that_cannot_be_read_ends_the_command_with_the_reason";
    if let Some(folder) = std::env::var_os(ATTACK) {
        let command = shell(Path::new(&folder), "exec sleep 1000");
        let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits(), "").unwrap();
        assert_eq!(ran.response.ended, Some(Termination::FolderUnseen { errno: libc::EACCES }));
        let told = ran.response.ended.unwrap().to_string();
        assert!(told.starts_with("its working folder could not be read: Permission denied"), "{told}");
        return;
    }
    if !is_root() {
        println!("skipped: needs root, to make a folder that is another user's");
        return;
    }
    let folder = folder();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::create_dir(folder.path().join("theirs")).unwrap();
    fs::set_permissions(folder.path().join("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
    without_rights(name, Some(folder.path()));
}

/// The depth of a folder tree. Its end cannot be reached by a path or by keeping all folders open.
const DEEP: usize = 5_000;

#[test]
fn attack_by_depth() {
    if std::env::var_os(ATTACK).is_none() {
        return;
    }
    for _ in 0..DEEP {
        fs::create_dir("d").unwrap();
        std::env::set_current_dir("d").unwrap();
    }
    fs::write("file", vec![1; 48 << 20]).unwrap();
    thread::sleep(2 * PATIENCE);
}

#[test]
fn a_tree_of_5000_nested_folders_is_counted_and_removed() {
    also_without_rights("a_tree_of_5000_nested_folders_is_counted_and_removed");
    // This limit of open files is that of most systems, and less than the number of folders.
    let few = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(1024), ..few };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let (program, parent) = (folder(), folder());
    let left = Folder::create_in(parent.path()).unwrap();
    let command = own_attack(program.path(), "attack_by_depth");
    let command = Command { folder: left.path().to_path_buf(), ..command };
    // The folders take at most 20 MiB. Only with the file in the deepest folder is the limit exceeded.
    let limits = CommandLimits { folder_bytes: 40 * MIB, ..limits() };
    let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits, "").unwrap();
    assert_eq!(ran.response.ended, Some(Termination::Folder), "{:?} {}", ran.response, ran.errors());
    let start = Instant::now();
    left.remove().unwrap();
    println!("removed in {:?}", start.elapsed());
    assert_eq!(names_in(parent.path()), [] as [&str; 0]);
}

/// The environment variable that holds the folder to which the links of an attack point.
const OUTSIDE: &str = "INSHORE_TEST_OUTSIDE";

#[test]
fn attack_by_links() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if std::env::var_os(ATTACK).is_none() {
        return;
    }
    fs::create_dir("x").unwrap();
    fs::write("x/file", "").unwrap();
    let folder = fs::File::open("x").unwrap();
    let outside = PathBuf::from(std::env::var_os(OUTSIDE).unwrap());
    std::os::unix::fs::symlink(&outside, "link").unwrap();
    std::os::unix::fs::symlink(outside.join("file"), "link_to_file").unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        folder.set_permissions(fs::Permissions::from_mode(0o311)).unwrap();
        for _ in 0..1000 {
            // Each call swaps the names of the folder and the link.
            renameat_with(CWD, "x", CWD, "link", RenameFlags::EXCHANGE).unwrap();
        }
    }
}

#[test]
fn nothing_outside_is_counted_or_changed_or_removed_through_a_link() {
    also_without_rights("nothing_outside_is_counted_or_changed_or_removed_through_a_link");
    let (program, parent, outside) = (folder(), folder(), folder());
    fs::write(outside.path().join("file"), vec![1; 2 << 20]).unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let left = Folder::create_in(parent.path()).unwrap();
    let mut command = own_attack(program.path(), "attack_by_links");
    command.folder = left.path().to_path_buf();
    command.env.push((OUTSIDE.into(), outside.path().into()));
    let limits = CommandLimits { folder_bytes: MIB, ..limits() };
    let ran = run_with(&Sandbox::new(helper(), lenient()), &command, &limits, "").unwrap();
    assert!(ran.response.success(), "{:?} {}{}", ran.response, ran.output, ran.errors());
    left.remove().unwrap();
    assert_eq!(names_in(parent.path()), [] as [&str; 0]);
    assert_eq!(fs::metadata(outside.path()).unwrap().permissions().mode() & 0o7777, 0o555);
    assert_eq!(fs::metadata(outside.path().join("file")).unwrap().len(), 2 << 20);
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn files_that_a_command_leaves_are_removed() {
    also_without_rights("files_that_a_command_leaves_are_removed");
    let leaves = "mkdir -p a/b/c d; echo x > a/b/c/file; ln -s / a/link; mkfifo a/pipe; echo > a/-rf; \
        chmod 0 a/b/c/file a/b/c; chmod 311 a/b; chmod 555 a; chmod 0 d .";
    let parent = folder();
    for drops in [false, true] {
        let left = Folder::create_in(parent.path()).unwrap();
        let ran = run_with(&Sandbox::new(helper(), lenient()), &shell(left.path(), leaves), &limits(), "");
        let ran = ran.unwrap();
        assert!(ran.response.success(), "{:?} {}", ran.response, ran.errors());
        assert_eq!(names_in(parent.path()).len(), 1);
        if drops {
            drop(left)
        } else {
            left.remove().unwrap()
        }
        assert_eq!(names_in(parent.path()), [] as [&str; 0]);
    }
}

#[test]
fn attack_by_leaving() {
    // This is not an attack by the command: the process that made the folder ends without removing it.
    let Some(parent) = std::env::var_os(ATTACK) else { return };
    let left = Folder::create_in(Path::new(&parent)).unwrap();
    fs::create_dir(left.path().join("x")).unwrap();
    fs::write(left.path().join("x/file"), "x").unwrap();
    fs::set_permissions(left.path().join("x"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(left.path(), fs::Permissions::from_mode(0o000)).unwrap();
    std::process::exit(0);
}

#[test]
fn folders_of_dead_processes_are_removed_and_those_of_living_ones_stay() {
    also_without_rights("folders_of_dead_processes_are_removed_and_those_of_living_ones_stay");
    let parent = folder();
    let living = Folder::create_in(parent.path()).unwrap();
    fs::write(living.path().join("file"), "x").unwrap();
    fs::write(parent.path().join("inshore-command-file"), "").unwrap();
    fs::create_dir(parent.path().join("another")).unwrap();
    std::os::unix::fs::symlink("another", parent.path().join("inshore-command-link")).unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attack_by_leaving"])
        .env(ATTACK, parent.path())
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(names_in(parent.path()).len(), 5);
    let next = Folder::create_in(parent.path()).unwrap();
    let mut names = names_in(parent.path());
    names.retain(|name| !name.contains(&format!("-{}-", std::process::id())));
    names.sort();
    assert_eq!(names, ["another", "inshore-command-file", "inshore-command-link"]);
    assert!(living.path().join("file").exists() && next.path().exists());
}

#[test]
fn processor_time_is_limited() {
    let limits = CommandLimits { cpu_seconds: 1, ..limits() };
    let ran = script(lenient(), &limits, "while :; do :; done");
    assert_eq!(ran.response.ended, Some(Termination::Cpu), "{:?}", ran.response);
    // The system counts processor time in clock ticks. On a busy machine, other processes get a part of each tick.
    assert!(ran.response.user + ran.response.system > Duration::from_millis(500));
}

#[test]
fn a_deadline_ends_commands_that_ignore_signals() {
    let limits = CommandLimits { wall: Duration::from_millis(300), ..limits() };
    for attack in ["sleep 1000", "trap '' TERM HUP INT XCPU; while :; do :; done", "kill -STOP $$"] {
        let start = Instant::now();
        let ran = script(lenient(), &limits, attack);
        assert_eq!(ran.response.ended, Some(Termination::Deadline), "{attack}");
        assert!(start.elapsed() < PATIENCE, "{attack}: {:?}", start.elapsed());
        assert!(ran.response.wall >= limits.wall);
    }
}

#[test]
fn a_deadline_holds_while_the_consumer_is_stuck() {
    let limits = CommandLimits { wall: Duration::from_millis(300), ..limits() };
    let folder = folder();
    // The consumer of the output returns only after the command has ended.
    let marker = folder.path().to_str().unwrap();
    let slow = |_: &[u8]| {
        until("it lives on", || living(marker) == 0);
        Ok(())
    };
    let sandbox = Sandbox::new(helper(), lenient());
    let command = shell(folder.path(), &format!(": {marker}; echo; while :; do sleep 1; done"));
    let response = sandbox.run(&command, &limits, io::empty(), slow, &|| false).unwrap();
    assert_eq!(response.ended, Some(Termination::Deadline));
}

#[test]
fn a_command_is_cancelled() {
    let (folder, wish) = (folder(), AtomicBool::new(false));
    let start = Instant::now();
    let response = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            wish.store(true, Ordering::Relaxed);
        });
        let sandbox = Sandbox::new(helper(), lenient());
        let asked = || wish.load(Ordering::Relaxed);
        sandbox
            .run(&shell(folder.path(), "exec sleep 1000"), &limits(), io::empty(), |_| Ok(()), &asked)
            .unwrap()
    });
    assert_eq!(response.ended, Some(Termination::Cancelled));
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn binary_output_is_handed_over_unchanged() {
    let ran = script(lenient(), &limits(), "head -c 300000 /dev/urandom >&2; head -c 100000 /dev/urandom");
    assert!(ran.response.success());
    assert_eq!((ran.response.output_bytes, ran.response.errors.len()), (100_000, 8192));
}

#[test]
fn unread_input_is_no_error() {
    let folder = folder();
    let sandbox = Sandbox::new(helper(), lenient());
    let ran = run_with(&sandbox, &shell(folder.path(), "head -n 1"), &limits(), &"line\n".repeat(1_000_000))
        .unwrap();
    assert_eq!(ran.output, "line\n");
}

#[test]
fn errors_of_either_end_end_the_command() {
    struct BrokenReader;
    impl io::Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let folder = folder();
    let sandbox = Sandbox::new(helper(), lenient());
    let (command, limits) = (shell(folder.path(), "cat; echo; sleep 1000"), limits());
    let start = Instant::now();
    let full = |_: &[u8]| Err(io::Error::other("full"));
    assert!(matches!(sandbox.run(&command, &limits, io::empty(), full, &|| false), Err(Error::Output(_))));
    let short = shell(folder.path(), "cat");
    assert!(matches!(
        sandbox.run(&short, &limits, BrokenReader, |_| Ok(()), &|| false),
        Err(Error::Input(_))
    ));
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn groups_are_removed() {
    let ran = script(lenient(), &limits(), ":");
    if !ran.response.active.contains(Protection::Memory) {
        println!("skipped: no memory cgroup can be made here");
        return;
    }
    // Cgroups of parallel tests of this process may exist, but each is removed in the end.
    let before = groups(std::process::id());
    until(&format!("{before:?}"), || before.iter().all(|path| !path.exists()));
}
