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

/// Writes to stdout. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Runtime(format!("stdout cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
