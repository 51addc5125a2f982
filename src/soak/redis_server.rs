//! Owns the Redis that can be taken away: a server of the soak's own, or a way to a given one that can be cut.
//! Must never know: what it is used for.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::SoakError;
use super::fleet::signal;
use super::home::Home;

/// Longest wait for a server to come up on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A Redis.
pub enum Redis {
    /// A server on a socket in the soak's directory. Killed when dropped.
    Own {
        /// Its socket.
        socket: PathBuf,
        /// Its process.
        child: Child,
    },
    /// Somebody else's, reached through a door that can be shut.
    Given {
        /// The URL with this door for an address.
        url: String,
        /// Whether bytes pass: open, silent, shut.
        state: watch::Sender<Way>,
    },
}

/// What becomes of bytes between an instance and a given Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They pass.
    Open,
    /// They do not, and nobody is told.
    Silent,
    /// Connections end, new ones too.
    Shut,
}

impl Redis {
    /// A server of the soak's own, empty, and without a port that could be taken.
    ///
    /// # Errors
    /// [`SoakError::Unavailable`] when there is no `redis-server`.
    pub async fn start(home: &Home) -> Result<Self, SoakError> {
        let socket = home.file("redis.sock");
        let child = run(&socket).await?;
        Ok(Self::Own { socket, child })
    }

    /// A door before the Redis at `redis://HOST:PORT`.
    ///
    /// # Errors
    /// [`SoakError::Usage`] for other URLs: what is between TLS and a socket cannot be cut here.
    pub async fn before(url: &str) -> Result<Self, SoakError> {
        let usage =
            || SoakError::Usage("--redis takes redis://HOST:PORT here, whose connections can be cut".to_owned());
        let rest = url.strip_prefix("redis://").ok_or_else(usage)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, address) = authority.rsplit_once('@').map_or(("", authority), |(user, address)| (user, address));
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:6379") };
        TcpStream::connect(&address)
            .await
            .map_err(|fault| SoakError::Unavailable(format!("--redis {address}: {fault}")))?;
        let part = |fault: std::io::Error| SoakError::Part(fault.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(part)?;
        let at = if user.is_empty() { String::new() } else { format!("{user}@") };
        let url = format!("redis://{at}{}/{path}", listener.local_addr().map_err(part)?);
        let (state, seen) = watch::channel(Way::Open);
        tokio::spawn(accept(listener, address, seen));
        Ok(Self::Given { url, state })
    }

    /// Where instances find it.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Own { socket, .. } => format!("unix://{}", socket.display()),
            Self::Given { url, .. } => url.clone(),
        }
    }

    /// It is there and says nothing.
    ///
    /// # Errors
    /// [`SoakError::Part`].
    pub fn freeze(&self) -> Result<(), SoakError> {
        match self {
            Self::Own { child, .. } => signal(child.id(), Signal::STOP),
            Self::Given { state, .. } => {
                state.send_replace(Way::Silent);
                Ok(())
            }
        }
    }

    /// It is gone, and what it held with it if it is ours.
    ///
    /// # Errors
    /// [`SoakError::Part`].
    pub async fn kill(&mut self) -> Result<(), SoakError> {
        match self {
            Self::Own { child, .. } => child.kill().await.map_err(|fault| SoakError::Part(fault.to_string())),
            Self::Given { state, .. } => {
                state.send_replace(Way::Shut);
                Ok(())
            }
        }
    }

    /// It is back, after either.
    ///
    /// # Errors
    /// [`SoakError`].
    pub async fn mend(&mut self) -> Result<(), SoakError> {
        match self {
            Self::Own { socket, child } => {
                if matches!(child.try_wait(), Ok(None)) {
                    return signal(child.id(), Signal::CONT);
                }
                *child = run(socket).await?;
                Ok(())
            }
            Self::Given { state, .. } => {
                state.send_replace(Way::Open);
                Ok(())
            }
        }
    }
}

async fn run(socket: &PathBuf) -> Result<Child, SoakError> {
    let missing =
        |fault| SoakError::Unavailable(format!("redis-server: {fault}; install it, or name one with --redis"));
    let mut child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"])
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(missing)?;
    let Some(out) = child.stdout.take() else { return Ok(child) };
    let mut log = BufReader::new(out).lines();
    let ready = async {
        while let Ok(Some(line)) = log.next_line().await {
            if line.contains("ready to accept connections") {
                return true;
            }
        }
        false
    };
    if !timeout(START, ready).await.unwrap_or(false) {
        return Err(SoakError::Unavailable("redis-server does not start".to_owned()));
    }
    // A server that cannot write its log stops.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    Ok(child)
}

async fn accept(listener: TcpListener, server: String, state: watch::Receiver<Way>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(carry(client, server.clone(), state.clone()));
    }
}

/// Carries bytes both ways as long as the way is open. After a silence the connection ends: nobody knows what was lost.
async fn carry(mut client: TcpStream, server: String, mut state: watch::Receiver<Way>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let mut hindered = state.clone();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        _ = hindered.wait_for(|way| *way != Way::Open) => {}
    }
    // Held open, whatever comes.
    let _ = state.wait_for(|way| *way != Way::Silent).await;
}
