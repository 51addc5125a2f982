//! A client that speaks HTTP/2 frame by frame over a socket of its own: what comes is seen as it comes, and nothing is
//! answered behind a test's back.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
const END: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// What a test reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Type, flags, stream, payload.
    Frame(u8, u8, u32, Vec<u8>),
    /// TCP FIN.
    End,
    /// TCP RST.
    Reset,
}

pub struct Frames {
    io: TcpStream,
    next_stream: u32,
    /// SETTINGS of the server, each as it came; acknowledged at once unless told otherwise.
    pub settings: Vec<Vec<(u16, u32)>>,
    pub acknowledges: bool,
}

impl Frames {
    /// Connects, says hello, and has the server's first SETTINGS and its acknowledgement of ours.
    pub async fn connect(emulator: &Emulator) -> Self {
        let mut io = TcpStream::connect(emulator.addr()).await.unwrap();
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut frames = Self { io, next_stream: 1, settings: Vec::new(), acknowledges: true };
        frames.write(SETTINGS, 0, 0, &[]).await;
        // The server's SETTINGS are taken by `read`; what is left is the acknowledgement.
        let ack = frames.read_until(|kind| kind == SETTINGS).await;
        assert_eq!(ack, Read::Frame(SETTINGS, ACK, 0, vec![]));
        assert_eq!(frames.settings.len(), 1, "the server's own come first");
        frames
    }

    pub async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.io.write_all(&frame).await.unwrap();
    }

    /// Opens a stream with a message for this token; its number.
    pub async fn send(&mut self, token: &str) -> u32 {
        let stream = self.open().await;
        self.write(DATA, END, stream, &goal(token)).await;
        stream
    }

    /// Opens a stream and leaves its body for later.
    pub async fn open(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        // From the static table: POST, http; then literals that no table remembers: path and authority.
        let mut block = vec![0x83, 0x86, 0x04, u8::try_from(SEND.len()).unwrap()];
        block.extend_from_slice(SEND.as_bytes());
        block.extend_from_slice(b"\x01\x08emulator");
        self.write(HEADERS, END_HEADERS, stream, &block).await;
        stream
    }

    /// The next frame or end, whatever it is.
    pub async fn read(&mut self) -> Read {
        timeout(LONG, self.read_next()).await.expect("something to read")
    }

    /// Nothing comes, and it does not end either.
    pub async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.read_next()).await.is_err()
    }

    /// The next frame of such a type, or the end.
    pub async fn read_until(&mut self, wanted: impl Fn(u8) -> bool) -> Read {
        loop {
            match self.read().await {
                Read::Frame(kind, ..) if !wanted(kind) => {}
                read => return read,
            }
        }
    }

    /// The whole answer to one stream: its status line is in a compressed block, so its body has to do.
    pub async fn body(&mut self, stream: u32) -> String {
        let mut body = Vec::new();
        loop {
            match self.read_until(|kind| matches!(kind, DATA | RST_STREAM | GOAWAY)).await {
                Read::Frame(DATA, flags, of, piece) if of == stream => {
                    body.extend_from_slice(&piece);
                    if flags & END != 0 {
                        return String::from_utf8(body).unwrap();
                    }
                }
                other => panic!("{other:?} instead of the body of {stream}"),
            }
        }
    }

    /// PING and its answer: whatever was sent before has been seen by then.
    pub async fn ping(&mut self) {
        self.write(PING, 0, 0, b"12345678").await;
        let pong = self.read_until(|kind| kind == PING).await;
        assert_eq!(pong, Read::Frame(PING, ACK, 0, b"12345678".to_vec()));
    }

    pub async fn acknowledge(&mut self) {
        self.write(SETTINGS, ACK, 0, &[]).await;
    }

    async fn read_next(&mut self) -> Read {
        loop {
            let mut head = [0; 9];
            match self.io.read_exact(&mut head).await {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Read::End,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Read::Reset,
                Err(error) => panic!("{error}"),
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.io.read_exact(&mut payload).await.unwrap();
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
            if kind != SETTINGS || flags & ACK != 0 {
                return Read::Frame(kind, flags, stream, payload);
            }
            let entry = |b: &[u8]| (u16::from_be_bytes([b[0], b[1]]), u32::from_be_bytes([b[2], b[3], b[4], b[5]]));
            self.settings.push(payload.chunks(6).map(entry).collect());
            if self.acknowledges {
                self.acknowledge().await;
            }
        }
    }
}

/// GOAWAY as it is on the wire.
pub fn goaway(last: u32, code: u32, words: &str) -> Read {
    let payload = [&last.to_be_bytes()[..], &code.to_be_bytes(), words.as_bytes()].concat();
    Read::Frame(GOAWAY, 0, 0, payload)
}

/// RST_STREAM as it is on the wire.
pub fn rst_stream(stream: u32, code: u32) -> Read {
    Read::Frame(RST_STREAM, 0, stream, code.to_be_bytes().to_vec())
}
