//! Owns throwaway Redis servers: each on a unix socket in a directory of its own, so that no port can be taken and
//! no other server reached by mistake.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Longest wait for a server to come up on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A Redis of one test, running or not. Killed by its pid when dropped.
pub struct RedisServer {
    dir: TempDir,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// Kept open: a server that cannot write its log stops.
    _log: Lines<BufReader<ChildStdout>>,
}

impl RedisServer {
    /// A place for a server that does not run yet.
    pub fn absent() -> Self {
        Self { dir: TempDir::with_prefix("fanfare-redis-").expect("a temporary directory"), running: None }
    }

    /// A running server.
    pub async fn start() -> Self {
        let mut server = Self::absent();
        server.run().await;
        server
    }

    /// Starts it, empty unless it has been told to `SAVE`.
    pub async fn run(&mut self) {
        self.run_with(&[]).await;
    }

    /// The same with more settings. Returns once it has loaded what it saved.
    pub async fn run_with(&mut self, settings: &[&str]) {
        let dir = self.dir.path();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "notice"])
            .arg("--unixsocket")
            .arg(self.socket())
            .arg("--dir")
            .arg(dir)
            .args(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|_| panic!("redis-server is not on PATH: run tests/run, which installs it"));
        let mut log = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut said = Vec::new();
        loop {
            let line = timeout(START, log.next_line()).await.expect("redis-server says nothing").expect("its log");
            let line = line.unwrap_or_else(|| panic!("redis-server ended: {said:#?}"));
            if line.contains("ready to accept connections") {
                break;
            }
            said.push(line);
        }
        self.running = Some(Running { child, _log: log });
        self.check_identity().await;
    }

    async fn check_identity(&self) {
        let info: String = self.command(&["INFO", "server"]).await;
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a pid in INFO");
        assert_eq!(pid.trim(), self.pid().to_string(), "another server answers");
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Where it is or will be.
    pub fn url(&self) -> SecretString {
        SecretString::from(format!("unix://{}", self.socket().display()))
    }

    fn pid(&self) -> u32 {
        self.running.as_ref().and_then(|running| running.child.id()).expect("a running server")
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> MultiplexedConnection {
        use secrecy::ExposeSecret;
        let client = redis::Client::open(self.url().expose_secret()).expect("its url");
        client.get_multiplexed_async_connection().await.expect("a connection")
    }

    /// Runs one command.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection().await).await.expect("an answer")
    }

    /// SIGSTOP: it accepts connections and says nothing.
    pub async fn freeze(&self) {
        self.signal("STOP").await;
    }

    /// SIGCONT.
    pub async fn thaw(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        let status = Command::new("sh").args(["-c", &kill]).status().await.expect("sh");
        assert!(status.success(), "{kill}");
    }

    /// kill -9; what it held is gone.
    pub async fn kill(&mut self) {
        let mut running = self.running.take().expect("a running server");
        running.child.kill().await.expect("killed");
    }
}
