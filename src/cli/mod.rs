//! Minimal: replaced when the branches meet.

pub mod devices;
pub mod fanout;
pub mod send;
pub mod target;

/// How a command fails.
#[derive(Debug)]
pub enum Failure {
    /// Exit 1.
    Runtime(String),
    /// Exit 2.
    Usage(String),
    /// Exit 69.
    Unavailable(String),
    /// Exit 75.
    Paused(String),
    /// Exit 78.
    Config(String),
}
