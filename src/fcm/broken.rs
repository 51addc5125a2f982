//! Owns what it means that no answer came: decided from error types, never from their text.
//! Must never know: the HTTP client that reported it.

use std::error::Error;
use std::io;

use h2::Reason;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// No connection, or it was closed before the request was given to it. Provably not sent.
    Connect,
    /// The TLS handshake failed. Provably not sent.
    Tls,
    /// There is a connection, but the other side does not speak HTTP/2. Provably not sent.
    NotHttp2,
    /// The peer allowed no stream for it in time. Provably not sent, and no sign of ill health.
    NoStream,
    /// The peer says it did not process the request and is otherwise well: `REFUSED_STREAM`, or GOAWAY `NO_ERROR` above
    /// its last stream (RFC 9113, 8.7 and 6.8).
    Unprocessed,
    /// Not processed either, but the GOAWAY carries an error: the provider is not well.
    ResetBeforeProcessing,
    /// Reset, or the connection lost, after the request had left. It may have been processed.
    ResetAfterSending,
    /// The peer does not speak HTTP/2 as agreed, or demands HTTP/1.1.
    Protocol,
    /// No answer in time. It may have been processed.
    Timeout,
}

impl Broken {
    /// The name used in logs and failure rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Tls => "TLS handshake failed",
            Self::NotHttp2 => "the peer does not speak HTTP/2",
            Self::NoStream => "the provider allowed no further stream",
            Self::Unprocessed => "not processed by the provider",
            Self::ResetBeforeProcessing => "connection closed with an error before processing",
            Self::ResetAfterSending => "connection or stream reset after sending",
            Self::Protocol => "the peer broke the HTTP/2 protocol",
            Self::Timeout => "no answer in time",
        }
    }

    /// Reads an error of the HTTP client. `connecting` = the client says it had no connection yet.
    /// What is not known to be unsent counts as sent.
    #[must_use]
    pub fn read(error: &(dyn Error + 'static), connecting: bool) -> Self {
        if connecting {
            return if find::<rustls::Error>(error).is_some() { Self::Tls } else { Self::Connect };
        }
        if let Some(h2) = find::<h2::Error>(error) {
            return Self::of_h2(h2);
        }
        // hyper gives a request back as cancelled only when no byte of it was handed to the connection.
        match find::<hyper::Error>(error) {
            Some(hyper) if hyper.is_canceled() => Self::Connect,
            _ => Self::ResetAfterSending,
        }
    }

    /// What ended a request that had left.
    #[must_use]
    pub fn of_h2(error: &h2::Error) -> Self {
        match error.reason() {
            Some(Reason::HTTP_1_1_REQUIRED) if error.is_remote() => Self::Protocol,
            Some(Reason::REFUSED_STREAM) if error.is_remote() && error.is_reset() => Self::Unprocessed,
            // h2 ends a stream with the remote GOAWAY only if the stream lies above its last stream id. One at or below
            // it that is cut off later carries an I/O error instead.
            Some(Reason::NO_ERROR) if error.is_remote() && error.is_go_away() => Self::Unprocessed,
            Some(_) if error.is_remote() && error.is_go_away() => Self::ResetBeforeProcessing,
            Some(_) if error.is_library() => Self::Protocol,
            _ => Self::ResetAfterSending,
        }
    }
}

/// The first error of this type in the chain of causes, looking into I/O errors, which hide what they wrap.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<T>() {
            return Some(found);
        }
        let wrapped = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => current.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_error_is_found_inside_nested_io_errors() {
        let tls = rustls::Error::HandshakeNotComplete;
        let nested = io::Error::other(io::Error::other(tls));
        assert_eq!(Broken::read(&nested, true), Broken::Tls);
        assert_eq!(Broken::read(&io::Error::from(io::ErrorKind::ConnectionRefused), true), Broken::Connect);
    }

    #[test]
    fn what_is_not_understood_may_have_been_delivered() {
        let lost = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(Broken::read(&lost, false), Broken::ResetAfterSending);
        // A reason without a peer that named it proves nothing, REFUSED_STREAM included.
        let local = h2::Error::from(Reason::REFUSED_STREAM);
        assert_eq!(Broken::read(&local, false), Broken::ResetAfterSending);
        let worded = io::Error::other("REFUSED_STREAM: stream refused before processing");
        assert_eq!(Broken::read(&worded, false), Broken::ResetAfterSending);
    }
}
