//! Owns a wire to the provider that can go wrong in the ways a network does: a TCP proxy whose conduct a test changes.
//! Must never know: what is carried.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::service::World;

/// How the wire behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// As it should.
    Carry,
    /// Connections stay open and new ones are made, but nothing comes through any more.
    Swallow,
    /// The connections open now swallow; new ones are carried.
    SwallowOld,
    /// Every connection ends, and a new one is refused: nobody listens.
    Refuse,
}

/// A running wire. Ends with its test.
pub struct Wire {
    pub addr: SocketAddr,
    conduct: Arc<watch::Sender<Conduct>>,
    accepted: Arc<AtomicUsize>,
}

impl World {
    /// Puts a wire between services started from now on and the emulator's sends.
    pub async fn wire(&mut self) -> Wire {
        let wire = Wire::start(self.emulator.addr()).await;
        self.set("FCM__ENDPOINT", format!("http://{}", wire.addr));
        wire
    }
}

impl Wire {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let conduct = Arc::new(watch::Sender::new(Conduct::Carry));
        let accepted = Arc::new(AtomicUsize::new(0));
        tokio::spawn(run(listener, to, Arc::clone(&conduct), Arc::clone(&accepted)));
        Self { addr, conduct, accepted }
    }

    /// Behaves like this from now on.
    pub fn now(&self, conduct: Conduct) {
        self.conduct.send_replace(conduct);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn run(
    mut listener: TcpListener,
    to: SocketAddr,
    conduct: Arc<watch::Sender<Conduct>>,
    accepted: Arc<AtomicUsize>,
) {
    let addr = listener.local_addr().unwrap();
    let mut changes = conduct.subscribe();
    loop {
        let refusing = *changes.borrow_and_update() == Conduct::Refuse;
        if refusing {
            drop(listener);
            if changes.wait_for(|now| *now != Conduct::Refuse).await.is_err() {
                return;
            }
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(addr).unwrap();
            listener = socket.listen(128).unwrap();
        }
        tokio::select! {
            taken = listener.accept() => {
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(carry(taken.unwrap().0, to, conduct.subscribe()));
            }
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

async fn carry(client: TcpStream, to: SocketAddr, mut conduct: watch::Receiver<Conduct>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    // A connection made under SwallowOld is a new one.
    let swallowing = *conduct.borrow_and_update() == Conduct::Swallow;
    let gate = watch::Sender::new(!swallowing);
    let (up, down) = (gate.subscribe(), gate.subscribe());
    tokio::select! {
        () = pump(from_client, to_server, up) => {}
        () = pump(from_server, to_client, down) => {}
        () = obey(conduct, gate) => {}
    }
}

/// Opens and shuts the gate of one connection, until it is to end.
async fn obey(mut conduct: watch::Receiver<Conduct>, gate: watch::Sender<bool>) {
    while conduct.changed().await.is_ok() {
        match *conduct.borrow_and_update() {
            // What was swallowed once stays swallowed: its peer may have forgotten it.
            Conduct::Carry => {}
            Conduct::Swallow | Conduct::SwallowOld => drop(gate.send_replace(false)),
            Conduct::Refuse => return,
        }
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut open: watch::Receiver<bool>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}
