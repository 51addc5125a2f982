//! Owns why this room cannot start: each message names the setting and the fix.
//! Must never know: answers to attempts; those are verdicts, not errors.

/// Settings this room cannot work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FcmError {
    /// Not a base URL.
    #[error("fcm.endpoint {0:?} is not a base URL; write https://HOST, or http://HOST:PORT for an emulator")]
    Endpoint(String),
    /// A character that would change the path of the URL, or nothing at all.
    #[error(
        "fcm.project_id {0:?} is not a project id; use letters, digits, '-', '.', ':' as shown in the Firebase console"
    )]
    ProjectId(String),
    /// The file holds no certificate that can be read.
    #[error("fcm.ca_file: {0}; it must hold at least one certificate in PEM form")]
    CaFile(String),
    /// No root certificate at all, so no server could be trusted.
    #[error("no root certificates found; install the package ca-certificates, or name a PEM file in fcm.ca_file")]
    NoRoots,
    /// The HTTP client could not be built.
    #[error("the HTTP client could not be built: {0}")]
    Client(String),
}
