//! A folder with a store, and commands that run in this folder.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The time for which a test waits for an event. The time is so long that a test does not fail because the machine is
/// busy. Only a failing test waits for all of this time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A temporary folder. Commands run in this folder, and their store is its subfolder `store`.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// Creates a folder whose store has the graph `name` with these edges.
    pub fn with_graph(name: &str, edges: &str) -> Folder {
        let folder = Folder::new();
        folder.run(&format!("graph import - --name {name}")).stdin(edges).ok();
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Creates a command `inshore` with these arguments, split at spaces.
    pub fn run(&self, words: &str) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inshore"));
        command.args(words.split_whitespace());
        command.current_dir(self.0.path()).env_clear();
        command.env("HOME", self.0.path()).env("INSHORE_STORE", self.path("store"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { command, words: words.to_string(), stdin: None }
    }

    /// Returns the names of the graphs in the store.
    pub fn graphs(&self) -> Vec<String> {
        let all: serde_json::Value = serde_json::from_str(&self.run("graph ls --json").ok().stdout).unwrap();
        all.as_array().unwrap().iter().map(|graph| graph["name"].as_str().unwrap().to_string()).collect()
    }

    /// Returns the scratch folders of jobs.
    pub fn scratch(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("store/scratch")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    /// Waits until the command has a scratch folder and all of its threads sleep. The command then waits for its input.
    pub fn wait_for_job(&self, child: &mut Child) {
        let began = Instant::now();
        let mut idle_looks = 0;
        while idle_looks < 20 {
            assert!(child.try_wait().unwrap().is_none(), "the job ended before it began");
            assert!(began.elapsed() < PATIENCE, "the job never waits");
            let all = [vec![child.id()], children(child.id())].concat();
            let is_idle = !self.scratch().is_empty() && all.into_iter().all(all_threads_sleep);
            idle_looks = if is_idle { idle_looks + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a job has allocated extents of at least `bytes` bytes.
    pub fn wait_for_scratch(&self, bytes: u64, child: &mut Child) {
        let deadline = Instant::now() + PATIENCE;
        while self.scratch().iter().map(|path| bytes_taken(path)).sum::<u64>() < bytes {
            assert!(child.try_wait().unwrap().is_none(), "the job ended before it took {bytes} bytes");
            assert!(Instant::now() < deadline, "nothing was taken");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the parent of a running process.
pub fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok())?
}

/// Returns the running child processes of a process.
pub fn children(of: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|&process| parent(process) == Some(of)).collect()
}

/// Tells whether no thread of a process is running or able to run. A thread that waits for a core is able to run.
fn all_threads_sleep(process: u32) -> bool {
    // If the process or one of its threads has just ended, the result is false, and the caller checks again.
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let threads = threads.flatten();
    threads.map(|thread| thread.path().join("stat")).all(|path| {
        fs::read_to_string(path)
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
    })
}

/// Returns the processor time of a process. The process may have ended, but its parent must not have waited for it yet.
pub fn processor_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // The times are fields 14 and 15, counted from 1. The first element here is field 3.
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Returns the number of bytes in the extents that a job has recorded as allocated. A record has 10 bytes: a device, a
/// first extent, and the number of extents.
fn bytes_taken(folder: &Path) -> u64 {
    let runs = fs::read(folder.join("lease")).unwrap_or_default();
    let counts = runs.chunks_exact(10).map(|run| u32::from_le_bytes(run[6..].try_into().unwrap()));
    counts.map(|count| (count as u64) << 21).sum()
}

/// A command that has not been started.
pub struct Run {
    command: Command,
    words: String,
    stdin: Option<Vec<u8>>,
}

/// Output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// Parses standard output, which must be one JSON value on one line.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }
}

impl Run {
    /// Adds arguments, which may have spaces.
    pub fn arguments(mut self, arguments: &[&str]) -> Run {
        self.command.args(arguments);
        self.words = format!("{} {}", self.words, arguments.join(" "));
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Run {
        self.stdin = Some(bytes.into());
        self
    }

    /// Runs the command in a network namespace. `ip` is the path of the program that enters the namespace.
    pub fn within(self, ip: &Path, namespace: &str) -> Run {
        self.under(ip, &["netns", "exec", namespace])
    }

    /// Limits the address space of the command to this number of KiB, including the stacks of threads.
    pub fn with_address_space(self, kib: u64) -> Run {
        self.under(Path::new("/bin/sh"), &["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")])
    }

    /// Runs the command through another program, which gets these arguments and then the command.
    pub fn under(mut self, program: &Path, arguments: &[&str]) -> Run {
        let mut command = Command::new(program);
        command.args(arguments).arg(self.command.get_program()).args(self.command.get_args());
        command.current_dir(self.command.get_current_dir().expect("it has one")).env_clear();
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command = command;
        self
    }

    /// Runs the command in another folder, with the same store.
    pub fn inside(mut self, folder: &Path) -> Run {
        self.command.current_dir(folder);
        self
    }

    /// Redirects standard output to a file.
    pub fn stdout_to(mut self, file: fs::File) -> Run {
        self.command.stdout(file);
        self
    }

    /// Sets an environment variable. The environment of the command has only a few other variables.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    /// Runs the command, which must succeed, and returns its output.
    pub fn ok(self) -> CommandOutput {
        self.exits(0)
    }

    /// Runs the command, which must end with this exit code, and returns its output.
    pub fn exits(self, code: i32) -> CommandOutput {
        let words = self.words.clone();
        let (found, said) = self.ends();
        assert_eq!(found, Some(code), "inshore {words}: {said:#?}");
        said
    }

    /// Runs the command, and returns its exit code and its output.
    pub fn ends(mut self) -> (Option<i32>, CommandOutput) {
        if self.stdin.is_some() {
            self.command.stdin(Stdio::piped());
        }
        let mut child = self.command.spawn().unwrap();
        let feeder = self.stdin.map(|bytes| {
            let mut pipe = child.stdin.take().unwrap();
            // The error is ignored: a command that refuses its input early closes the pipe.
            std::thread::spawn(move || drop(pipe.write_all(&bytes)))
        });
        let output = child.wait_with_output().unwrap();
        if let Some(feeder) = feeder {
            feeder.join().unwrap();
        }
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let said = CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr) };
        (output.status.code(), said)
    }

    /// Starts the command, with a pipe to its standard input.
    pub fn spawn(mut self) -> Child {
        self.command.stdin(Stdio::piped()).spawn().unwrap()
    }
}

/// The edges of two triangles that share vertex 30, of a separate pair of vertices, and of a vertex with a self-loop.
pub const EDGES: &str = "\
# source target
10 20
20 30
30 10
30 40
40 50
50 30
70 60
80 80
";
