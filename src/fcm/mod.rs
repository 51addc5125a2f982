//! Owns FCM HTTP v1: messages, connections, credentials, and what an answer means.
//! Must never know: chunks, fan-outs, SQL, or when a retry is due.
//!
//! [`connections`] makes one attempt on a stream of its own and [`attempted`] says what it came to, with
//! [`classify`] reading the answer and [`broken`] reading the lack of one. [`message`] builds the body, [`oauth`]
//! keeps the access token fresh with the key of [`credentials`] or from the server of [`metadata`]. Only [`http`] knows
//! reqwest; a connection to FCM is spoken to with h2 itself, because no HTTP client tells how many streams the peer
//! allows and which requests left.

pub mod assertion;
pub mod attempted;
pub mod bearer;
pub mod broken;
pub mod checkup;
pub mod classify;
pub mod connections;
pub mod credentials;
mod dial;
mod envelope;
pub mod error;
pub mod http;
pub mod key_file;
mod link;
pub mod message;
pub mod metadata;
pub mod oauth;
mod probe;
mod pulse;
pub mod sanitise;
mod source;
mod tap;
mod tls;
mod token_answer;
