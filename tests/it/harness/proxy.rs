//! Owns a wire that a test can cut: a TCP proxy in front of a real server.
//! Must never know: what is carried, but for the few frames of Postgres that [`Proxy::lose_answer_to`] looks for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// Longest wait for an answer to lose.
const PATIENCE: Duration = Duration::from_secs(30);

/// The last bytes of every answer of Postgres outside a transaction: `ReadyForQuery`, idle.
const ANSWERED: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];

/// A running proxy. Ends with its test.
pub struct Proxy {
    /// Where clients connect to.
    pub addr: SocketAddr,
    whole: Arc<watch::Sender<bool>>,
    trap: Arc<Trap>,
}

/// Which answers are lost, and how many were.
struct Trap {
    armed: Mutex<Armed>,
    sprung: watch::Sender<u32>,
}

#[derive(Default)]
struct Armed {
    /// Part of the statement.
    part: String,
    /// Shorter answers pass.
    at_least: usize,
    /// How many are still to be lost.
    times: u32,
}

impl Proxy {
    /// A proxy in front of the server at `server`: host and port, or the path of a unix socket.
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let whole = Arc::new(watch::Sender::new(true));
        let trap = Arc::new(Trap { armed: Mutex::default(), sprung: watch::Sender::new(0) });
        tokio::spawn(accept(listener, server.to_owned(), Arc::clone(&whole), Arc::clone(&trap)));
        Self { addr, whole, trap }
    }

    /// Ends every connection, and every new one as soon as it is made.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Lets new connections live again.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }

    /// Ends a connection right after the server has answered a statement that contains `part`, before the client
    /// sees the answer; the first `times` answers of `at_least` bytes. Only for connections made from now on.
    pub fn lose_answer_to(&self, part: &str, at_least: usize, times: u32) {
        *self.trap.armed.lock().unwrap() = Armed { part: part.to_owned(), at_least, times };
    }

    /// Waits until `n` answers were lost.
    pub async fn lost(&self, n: u32) {
        let mut sprung = self.trap.sprung.subscribe();
        let all = tokio::time::timeout(PATIENCE, sprung.wait_for(|sprung| *sprung >= n)).await;
        all.expect("an answer to lose").unwrap();
    }
}

async fn accept(listener: TcpListener, server: String, whole: Arc<watch::Sender<bool>>, trap: Arc<Trap>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut state = whole.subscribe();
        if !*state.borrow_and_update() {
            continue;
        }
        let (server, trap) = (server.clone(), Arc::clone(&trap));
        tokio::spawn(async move {
            let _ = client.set_nodelay(true);
            let carrying = async {
                if server.starts_with('/') {
                    let Ok(server) = UnixStream::connect(server).await else { return };
                    carry(client, server.into_split(), &trap).await;
                } else {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let _ = server.set_nodelay(true);
                    carry(client, server.into_split(), &trap).await;
                }
            };
            tokio::select! {
                () = carrying => {}
                _ = state.changed() => {}
            }
        });
    }
}

/// Until either side ends.
async fn carry<R, W>(client: TcpStream, (from_server, to_server): (R, W), trap: &Trap)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (from_client, to_client) = client.into_split();
    let caught = watch::Sender::new(false);
    tokio::select! {
        () = requests(from_client, to_server, trap, &caught) => {}
        () = answers(from_server, to_client, trap, &caught) => {}
    }
}

async fn requests(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    trap: &Trap,
    caught: &watch::Sender<bool>,
) {
    let mut watched = Statements::default();
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if watched.executes(&bytes[..n], trap) {
            caught.send_replace(true);
        }
        if to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    trap: &Trap,
    caught: &watch::Sender<bool>,
) {
    let mut tail = Vec::new();
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if *caught.borrow() {
            tail.extend_from_slice(&bytes[..n]);
            // Only a whole answer says that the statement is committed.
            if !tail.ends_with(&ANSWERED) {
                continue;
            }
            if trap.springs(tail.len()) {
                return;
            }
            caught.send_replace(false);
            if to.write_all(&std::mem::take(&mut tail)).await.is_err() {
                return;
            }
        } else if to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

impl Trap {
    /// Whether an answer of so many bytes is lost.
    fn springs(&self, bytes: usize) -> bool {
        let mut armed = self.armed.lock().unwrap();
        if armed.times == 0 || bytes < armed.at_least {
            return false;
        }
        armed.times -= 1;
        self.sprung.send_modify(|n| *n += 1);
        true
    }
}

/// The statements one connection has prepared that the trap waits for.
#[derive(Default)]
struct Statements {
    buffer: Vec<u8>,
    started: bool,
    names: Vec<Vec<u8>>,
}

impl Statements {
    /// Whether what the client says now executes one of them.
    fn executes(&mut self, bytes: &[u8], trap: &Trap) -> bool {
        let part = trap.armed.lock().unwrap().part.clone();
        self.buffer.extend_from_slice(bytes);
        let mut found = false;
        while let Some((kind, body)) = self.frame() {
            let mut words = body.split(|b| *b == 0);
            let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            match kind {
                b'P' if !part.is_empty() && String::from_utf8_lossy(second).contains(&part) => {
                    self.names.push(first.to_vec());
                }
                b'B' => found |= self.names.iter().any(|name| name == second),
                _ => {}
            }
        }
        found
    }

    /// The next whole frame. The first one, and a request for TLS before it, have no kind.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let skip = usize::from(self.started);
        let length = self.buffer.get(skip..skip + 4)?;
        let end = skip + u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let frame: Vec<u8> = if self.buffer.len() >= end { self.buffer.drain(..end).collect() } else { return None };
        let (kind, body) = if self.started { (frame[0], &frame[5..]) } else { (0, &frame[4..]) };
        let asks_for_tls = !self.started && body == 80_877_103_u32.to_be_bytes();
        self.started |= !asks_for_tls;
        Some((kind, body.to_vec()))
    }
}
