//! Owns FCM HTTP v1: messages, connections, credentials, and what an answer means.
//! Must never know: chunks, fan-outs, SQL, or when a retry is due.
//!
//! [`connections`] makes one attempt on a stream of its own and [`attempted`] says what it came to, with
//! [`classify`] reading the answer and [`broken`] reading the lack of one. [`message`] builds the body, [`oauth`]
//! keeps the access token fresh with the key of [`credentials`] or from the server of [`metadata`]. Only [`http`] knows
//! reqwest.

pub mod assertion;
pub mod attempted;
pub mod bearer;
pub mod broken;
pub mod classify;
pub mod connections;
pub mod credentials;
mod dial;
mod envelope;
pub mod error;
pub mod http;
pub mod message;
pub mod metadata;
pub mod oauth;
pub mod sanitise;
mod tls;
mod token_answer;
