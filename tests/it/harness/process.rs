//! Owns a real `fanfare serve` in a process of its own, to be killed, and what it logs.
//! Must never know: what a test expects of it.

use std::ops::Deref;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::service::{Caller, World};

/// Longest wait for anything here. Generous: it only decides how long a broken test takes.
const PATIENCE: Duration = Duration::from_secs(150);

/// A running process. Killed when dropped.
pub struct Process {
    caller: Caller,
    /// `http://` address of the API.
    pub api: String,
    /// The same of the operations listener.
    pub ops: String,
    child: Child,
    lines: watch::Receiver<Vec<Value>>,
}

impl Deref for Process {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

/// How a process ended that ended by itself.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl World {
    /// The binary with this world's settings and nothing else.
    pub fn command(&self, arg: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
        command.arg(arg).env_clear().envs(&self.settings).env("LOG_FORMAT", "json");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs a command that ends by itself.
    pub async fn run(&self, arg: &str) -> Ended {
        let output = timeout(PATIENCE, self.command(arg).output()).await.expect("it ends").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Starts a service and waits until it serves.
    pub async fn spawn(&self) -> Process {
        let mut child = self.command("serve").spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut err = child.stderr.take().unwrap();
        let (sender, mut lines) = watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON in the log: {line}"));
                sender.send_modify(|lines| lines.push(line));
            }
        });
        let serving = timeout(PATIENCE, lines.wait_for(|lines| find(lines, "serving").is_some())).await;
        let Ok(Ok(said)) = serving.map(|seen| seen.map(|lines| find(&lines, "serving").unwrap().clone())) else {
            let mut text = String::new();
            let _ = timeout(PATIENCE, err.read_to_string(&mut text)).await;
            panic!("it does not serve: {text}");
        };
        tokio::spawn(async move { tokio::io::copy(&mut err, &mut tokio::io::stderr()).await });
        let url = |field: &str| format!("http://{}", said[field].as_str().unwrap());
        Process { caller: self.caller(&url("api")), api: url("api"), ops: url("ops"), child, lines }
    }
}

fn find<'a>(lines: &'a [Value], message: &str) -> Option<&'a Value> {
    lines.iter().find(|line| line["message"] == message)
}

impl Drop for Process {
    /// A test that fails shows what the process complained of.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in self.lines.borrow().iter().filter(|line| line["level"] != "INFO") {
                eprintln!("{line}");
            }
        }
    }
}

impl Process {
    /// kill -9.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM.
    pub async fn terminate(&self) {
        self.signal("-TERM").await;
    }

    /// A signal by its name, `-HUP`.
    pub async fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.pid().to_string()]).status().await;
        assert!(status.unwrap().success(), "kill {name} {}", self.pid());
    }

    /// Of the running process.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("a running process")
    }

    /// Waits until it has ended by itself, and all it logged is here.
    pub async fn ended(&mut self) -> ExitStatus {
        let status = timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        let _no_more = timeout(PATIENCE, self.lines.wait_for(|_| false)).await.expect("its log ends");
        status
    }

    /// All log lines so far.
    pub fn lines(&self) -> Vec<Value> {
        self.lines.borrow().clone()
    }

    /// The log lines with this message so far.
    pub fn said(&self, message: &str) -> Vec<Value> {
        self.lines.borrow().iter().filter(|line| line["message"] == message).cloned().collect()
    }

    /// The log lines so far that `wanted` wants.
    pub fn lines_that(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.lines.borrow().iter().filter(|line| wanted(line)).cloned().collect()
    }

    /// Waits for the `n`-th log line that `wanted` wants.
    pub async fn says(&self, n: usize, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut lines = self.lines.clone();
        let enough = |lines: &Vec<Value>| lines.iter().filter(|line| wanted(line)).count() >= n;
        match timeout(PATIENCE, lines.wait_for(enough)).await {
            Ok(lines) => lines.unwrap().iter().filter(|line| wanted(line)).nth(n - 1).unwrap().clone(),
            Err(_) => panic!("not said within {PATIENCE:?}: {:#?}", self.lines.borrow()),
        }
    }

    /// The line of a fan-out.
    pub async fn line(&self, fanout_id: &str) -> Value {
        self.says(1, |line| line["message"] == "fan-out finished" && line["fanout_id"] == fanout_id).await
    }
}
