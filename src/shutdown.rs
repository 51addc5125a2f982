//! Owns the signals to the process: the first asks for a drain, the second ends it at once; SIGHUP asks for a reload.
//! Must never know: what has to be drained or reloaded.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels the token at the first SIGTERM or SIGINT; at the second the process exits with 130 or 143 (128 + its
/// number), which is what a shell reports for a process such a signal killed.
///
/// # Errors
/// When the operating system refuses a handler.
pub fn on_signals() -> io::Result<CancellationToken> {
    watch(|code| std::process::exit(code))
}

/// SIGHUP from now on, which without this ends a process. One that comes before it is waited for is not lost.
///
/// # Errors
/// When the operating system refuses a handler.
pub fn on_hangup() -> io::Result<Hangups> {
    signal(SignalKind::hangup()).map(Hangups)
}

/// SIGHUPs as they come.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Waits for the next; several that came meanwhile count as one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

fn watch(exit: impl FnOnce(i32) + Send + 'static) -> io::Result<CancellationToken> {
    let mut signals = Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? };
    let drain = CancellationToken::new();
    let cancel = drain.clone();
    tokio::spawn(async move {
        let (name, _) = signals.next().await;
        tracing::info!(target: "fanfare::shutdown", signal = name, "draining; a second signal exits at once");
        cancel.cancel();
        let (name, code) = signals.next().await;
        tracing::warn!(target: "fanfare::shutdown", signal = name, code, "exiting without a drain");
        exit(code);
    });
    Ok(drain)
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// The next signal's name and exit code.
    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.term.recv() => ("SIGTERM", 143),
            _ = self.int.recv() => ("SIGINT", 130),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hangup_that_nobody_waited_for_yet_is_not_lost() {
        let mut hangups = on_hangup().unwrap();
        send("-HUP").await;
        hangups.next().await;
    }

    /// Sends this test process a signal; the handlers of `watch` keep it alive.
    async fn send(signal: &str) {
        let status =
            tokio::process::Command::new("kill").args([signal, &std::process::id().to_string()]).status().await;
        assert!(status.unwrap().success(), "kill {signal}");
    }

    #[tokio::test]
    async fn the_first_signal_asks_for_a_drain_and_the_second_exits_with_its_number() {
        for (second, code) in [("-INT", 130), ("-TERM", 143)] {
            let (exited, exit) = tokio::sync::oneshot::channel();
            let drain = watch(move |code| exited.send(code).unwrap()).unwrap();
            assert!(!drain.is_cancelled());
            send("-TERM").await;
            drain.cancelled().await;
            send(second).await;
            assert_eq!(exit.await.unwrap(), code);
        }
    }
}
