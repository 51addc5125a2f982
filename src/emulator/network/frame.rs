//! Owns HTTP/2 frames as bytes: where one ends and the next begins, and the few that the emulator writes itself.
//! Must never know: why a frame is let through, dropped or put in.
//!
//! Written from RFC 9113, on purpose not on top of an HTTP/2 library: what a library would refuse to send is what has
//! to be sent here.

use std::ops::Range;

/// What every HTTP/2 client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes before the payload of a frame.
const HEAD: usize = 9;

/// Frame types used here.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
}

/// ACK of SETTINGS and PING; END_STREAM of HEADERS and DATA.
pub(super) const FIRST_FLAG: u8 = 1;
/// END_HEADERS of HEADERS.
const END_HEADERS: u8 = 4;
/// SETTINGS_MAX_CONCURRENT_STREAMS.
pub(super) const MAX_STREAMS: u16 = 3;
/// SETTINGS_INITIAL_WINDOW_SIZE.
pub(super) const INITIAL_WINDOW: u16 = 4;

/// What a frame says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    fn read(bytes: &[u8]) -> Self {
        let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) & 0x7fff_ffff;
        Self { kind: bytes[3], flags: bytes[4], stream }
    }

    /// ACK or END_STREAM, whichever the type has.
    pub(super) fn first_flag(self) -> bool {
        self.flags & FIRST_FLAG != 0
    }

    /// The last frame of its sender on this stream.
    pub(super) fn ends_stream(self) -> bool {
        self.kind == kind::RST_STREAM || (matches!(self.kind, kind::DATA | kind::HEADERS) && self.first_flag())
    }
}

/// Cuts bytes into whole frames.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    buffer: Vec<u8>,
    used: usize,
}

impl Cutter {
    /// More bytes, as they came.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.used));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame and where it is, for [`Self::bytes`]; good until more is fed.
    pub(super) fn next(&mut self) -> Option<(Head, Range<usize>)> {
        let rest = self.buffer.get(self.used..)?;
        let head = rest.get(..HEAD)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let whole = rest.len() >= HEAD + length;
        let at = self.used..self.used + HEAD + length;
        whole.then(|| {
            self.used = at.end;
            (Head::read(head), at)
        })
    }

    /// The bytes of a frame, head and payload.
    pub(super) fn bytes(&mut self, at: Range<usize>) -> &mut [u8] {
        &mut self.buffer[at]
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// SETTINGS with these parameters.
pub(super) fn settings(parameters: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        parameters.iter().flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes())).collect();
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// Writes a value over the one a SETTINGS frame has for a parameter, if it has one.
pub(super) fn set_parameter(frame: &mut [u8], id: u16, value: u32) {
    for entry in frame[HEAD..].chunks_exact_mut(6).filter(|entry| entry[..2] == id.to_be_bytes()) {
        entry[2..].copy_from_slice(&value.to_be_bytes());
    }
}

/// The value a SETTINGS frame has for a parameter.
pub(super) fn parameter(frame: &[u8], id: u16) -> Option<u32> {
    let mut entries = frame[HEAD..].chunks_exact(6).filter(|entry| entry[..2] == id.to_be_bytes());
    entries.next_back().map(|entry| u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]))
}

/// GOAWAY: the last stream that was or may be processed, an error code, words for a log.
pub(super) fn goaway(last: u32, code: u32, words: &str) -> Vec<u8> {
    let payload = [&last.to_be_bytes()[..], &code.to_be_bytes(), words.as_bytes()].concat();
    frame(kind::GOAWAY, 0, 0, &payload)
}

/// WINDOW_UPDATE of the connection.
pub(super) fn window_update(bytes: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes())
}

/// HEADERS with `:status: 103` and nothing else. Written as a literal that no table remembers, so that it does not
/// disturb the compression of the headers around it.
pub(super) fn early_hints(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS, stream, b"\x08\x03103")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_whatever_pieces_they_come_in() {
        let all = [settings(&[(3, 7)]), goaway(5, 2, "bye"), window_update(9), settings(&[])].concat();
        for size in 1..all.len() {
            let mut cutter = Cutter::default();
            let (mut heads, mut whole) = (Vec::new(), Vec::new());
            for piece in all.chunks(size) {
                cutter.feed(piece);
                while let Some((head, at)) = cutter.next() {
                    heads.push(head.kind);
                    whole.extend_from_slice(cutter.bytes(at));
                }
            }
            assert_eq!((heads, &whole), (vec![4, 7, 8, 4], &all), "pieces of {size}");
        }
    }

    #[test]
    fn a_parameter_is_read_and_overwritten_in_its_place() {
        let mut frame = settings(&[(1, 4096), (MAX_STREAMS, 200), (INITIAL_WINDOW, 65_535)]);
        set_parameter(&mut frame, MAX_STREAMS, 4);
        assert_eq!(frame, settings(&[(1, 4096), (MAX_STREAMS, 4), (INITIAL_WINDOW, 65_535)]));
        assert_eq!((parameter(&frame, MAX_STREAMS), parameter(&frame, 9)), (Some(4), None));
        set_parameter(&mut frame, 9, 1);
        assert_eq!(parameter(&frame, 9), None, "what is not there is not added");
    }

    #[test]
    fn the_reserved_bit_of_a_stream_is_ignored() {
        let head = Head::read(&[0, 0, 4, 3, 0, 0x80, 0, 0, 5]);
        assert_eq!(head, Head { kind: kind::RST_STREAM, flags: 0, stream: 5 });
    }
}
