//! Owns the instances: real `fanfare serve` processes, started, killed, asked to end, started again; and what they log.
//! Must never know: why.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use secrecy::SecretString;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::SoakError;
use crate::client::Client;
use crate::config::Environment;

/// Longest wait for an instance to serve.
const START: Duration = Duration::from_secs(60);
/// Longest wait for an instance to drain: its own grace, and some.
const DRAIN: Duration = Duration::from_secs(45);

/// How a running instance is reached.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Its place in the fleet, which its successors take.
    pub seat: usize,
    /// Of its API.
    pub client: Client,
    /// Address of its operations listener.
    pub ops: String,
    /// Its process.
    pub pid: u32,
}

/// Where the instances are now; a clone sees the same.
#[derive(Debug, Clone, Default)]
pub struct Seats(Arc<Mutex<Vec<Seat>>>);

impl Seats {
    /// Those that run.
    #[must_use]
    pub fn all(&self) -> Vec<Seat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Seat>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The instances of one soak. Whatever still runs is killed when this is dropped.
pub struct Fleet {
    binary: PathBuf,
    settings: Environment,
    secret: SecretString,
    log: mpsc::UnboundedSender<Value>,
    /// By place.
    children: Vec<Option<Child>>,
    /// Those that run.
    pub seats: Seats,
}

impl Fleet {
    /// Of `size` instances, none of which runs yet. `settings` go over the environment of this process; every line an
    /// instance logs goes to `log`.
    #[must_use]
    pub fn new(
        binary: PathBuf,
        settings: Environment,
        secret: SecretString,
        size: usize,
        log: mpsc::UnboundedSender<Value>,
    ) -> Self {
        let children = (0..size).map(|_| None).collect();
        Self { binary, settings, secret, log, children, seats: Seats::default() }
    }

    /// How many there are when all run.
    #[must_use]
    pub fn size(&self) -> usize {
        self.children.len()
    }

    fn command(&self, arg: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(arg).envs(&self.settings).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }

    /// Makes the schema.
    ///
    /// # Errors
    /// [`SoakError`] with what it complained of; [`SoakError::Unavailable`] when the database is not there.
    pub async fn migrate(&self) -> Result<(), SoakError> {
        let output = self.command("migrate").output().await.map_err(|fault| SoakError::Part(fault.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(said(output.status.code(), &String::from_utf8_lossy(&output.stderr)))
    }

    /// Starts the instance of this place and waits until it serves.
    ///
    /// # Errors
    /// [`SoakError`] with what it complained of.
    pub async fn start(&mut self, seat: usize) -> Result<(), SoakError> {
        let mut child = self.command("serve").spawn().map_err(|fault| SoakError::Part(fault.to_string()))?;
        let serving = match child.stdout.take() {
            Some(out) => read(out, self.log.clone()),
            None => watch::channel(None).1,
        };
        let said = match wait(serving).await {
            Some(said) => said,
            None => return Err(complaint(&mut child).await),
        };
        if let Some(mut err) = child.stderr.take() {
            // Whoever writes on needs a reader.
            tokio::spawn(async move { tokio::io::copy(&mut err, &mut tokio::io::sink()).await });
        }
        let url = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
        let client = Client::new(&format!("http://{}", url("api")), self.secret.clone())
            .map_err(|fault| SoakError::Part(fault.to_string()))?;
        let pid = child.id().unwrap_or_default();
        self.children[seat] = Some(child);
        self.seats.change(|seats| seats.push(Seat { seat, client, ops: url("ops"), pid }));
        Ok(())
    }

    /// kill -9.
    ///
    /// # Errors
    /// [`SoakError::Part`] when it does not end.
    pub async fn kill(&mut self, seat: usize) -> Result<(), SoakError> {
        self.seats.change(|seats| seats.retain(|s| s.seat != seat));
        let Some(mut child) = self.children[seat].take() else { return Ok(()) };
        child.kill().await.map_err(|fault| SoakError::Part(format!("kill -9: {fault}")))
    }

    /// SIGTERM, and the wait for the end of its drain.
    ///
    /// # Errors
    /// [`SoakError::Part`] when it does not end well, or not in time; it is killed then.
    pub async fn terminate(&mut self, seat: usize) -> Result<(), SoakError> {
        self.seats.change(|seats| seats.retain(|s| s.seat != seat));
        let Some(mut child) = self.children[seat].take() else { return Ok(()) };
        signal(child.id(), Signal::TERM)?;
        match timeout(DRAIN, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(SoakError::Part(format!("an instance ended with {status} after SIGTERM"))),
            Ok(Err(fault)) => Err(SoakError::Part(fault.to_string())),
            Err(_) => {
                let _ = child.kill().await;
                Err(SoakError::Part(format!("an instance did not drain within {} s", DRAIN.as_secs())))
            }
        }
    }
}

/// Sends a signal to a process of ours.
///
/// # Errors
/// [`SoakError::Part`] when it has ended.
pub fn signal(pid: Option<u32>, signal: Signal) -> Result<(), SoakError> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| SoakError::Part("a process has ended by itself".to_owned()))?;
    kill_process(pid, signal).map_err(|fault| SoakError::Part(format!("{signal:?}: {fault}")))
}

/// Passes on what it logs, and gives the line that says where it serves.
fn read(out: tokio::process::ChildStdout, log: mpsc::UnboundedSender<Value>) -> watch::Receiver<Option<Value>> {
    let (sender, serving) = watch::channel(None);
    tokio::spawn(async move {
        let mut lines = BufReader::new(out).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let line: Value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if line["message"] == "serving" {
                sender.send_replace(Some(line.clone()));
            }
            // Nobody collects any more when the soak has ended.
            let _ = log.send(line);
        }
    });
    serving
}

async fn wait(mut serving: watch::Receiver<Option<Value>>) -> Option<Value> {
    let seen = timeout(START, serving.wait_for(Option::is_some)).await;
    seen.ok()?.ok()?.clone()
}

/// What an instance that does not serve wrote on stderr.
async fn complaint(child: &mut Child) -> SoakError {
    let mut text = String::new();
    if let Some(mut err) = child.stderr.take() {
        let _ = timeout(Duration::from_secs(2), err.read_to_string(&mut text)).await;
    }
    let _ = child.start_kill();
    let code = timeout(Duration::from_secs(2), child.wait()).await.ok().and_then(Result::ok);
    said(code.and_then(|status| status.code()), &text)
}

fn said(code: Option<i32>, text: &str) -> SoakError {
    let text = text.trim().trim_start_matches("fanfare: ").to_owned();
    match code {
        Some(69) => SoakError::Unavailable(text),
        Some(78) => SoakError::Config(text),
        _ => SoakError::Part(format!("an instance does not serve: {text}")),
    }
}
