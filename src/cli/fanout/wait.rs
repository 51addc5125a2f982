//! Owns waiting for a fan-out, with progress for whoever watches.
//! Must never know: how it ends.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::super::Failure;
use super::super::target::Target;
use super::{show, text};
use crate::client::ClientError;
use crate::wire::Fanout;

/// What the end of the wait means: a fan-out that is paused or set aside is neither done nor under way.
fn end(fanout: &Fanout) -> Result<(), Failure> {
    let id = &fanout.id;
    match (fanout.state.as_str(), fanout.paused.as_deref()) {
        ("paused", why) => {
            let why = why.unwrap_or("budget");
            Err(Failure::Paused(format!("fan-out {id} is paused ({why}); `fanfare fanout resume {id}` lets it go on")))
        }
        _ => Ok(()),
    }
}

/// Shows progress until the fan-out is settled, then the fan-out.
pub(crate) async fn wait(target: &Target, id: &str, seconds: u64) -> Result<(), Failure> {
    let client = target.client()?;
    let until = Instant::now() + Duration::from_secs(seconds.min(86_400));
    let live = std::io::stderr().is_terminal();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Short polls while somebody watches, long ones otherwise.
        let step = left.min(Duration::from_secs(if live { 1 } else { 30 }));
        let fanout = match client.fanout(id, step).await {
            Ok(fanout) => fanout,
            // The service is busy: that is no answer to what we wait for.
            Err(ClientError::Refused(problem)) if problem.retryable && !left.is_zero() => {
                let pause = Duration::from_secs(problem.retry_after_s.unwrap_or(1).max(1));
                tokio::time::sleep(pause.min(left)).await;
                continue;
            }
            Err(fault) => return Err(target.failure(fault)),
        };
        let settled = fanout.settled_at.is_some() || matches!(fanout.state.as_str(), "set_aside" | "paused");
        if live {
            let end = if settled { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r\x1b[K{}{end}", text::progress(&fanout));
        }
        if settled {
            show(target, &fanout)?;
            return end(&fanout);
        }
        if left.is_zero() {
            show(target, &fanout)?;
            let again = format!("not settled after {seconds} s; `fanfare fanout show {id} --wait` goes on waiting");
            return Err(Failure::Runtime(again));
        }
    }
}
