//! Owns `fanfare devices`: importing many, showing one.
//! Must never know: what makes a device valid; the service says.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::Subcommand;
use futures_util::{Stream, TryStreamExt};
use tokio_util::io::ReaderStream;

use super::target::{Target, print_json};
use super::{Failure, print};
use crate::wire::{DeviceAnswer, FollowEntry, ImportAnswer};

const EXAMPLE: &str = r#"A line (the file has one per device; `follows` replaces what the device followed, absent leaves it):
  {"id":"d1","user_id":"u1","token":"...","platform":"ios","locale":"pt-BR","follows":["team:ars","match:4711"],"muted":["corner"]}"#;

/// What `fanfare devices` can do.
#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// Import devices and what they follow from NDJSON, one object per line; wrong lines are told, the others kept.
    #[command(after_help = EXAMPLE)]
    Import {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The file, - for standard input.
        file: PathBuf,
    },
    /// Show one device.
    Show {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The device's id.
        id: String,
    },
}

/// Runs `fanfare devices`.
///
/// # Errors
/// [`Failure`] when the file cannot be read, the service does not answer or refuses, or lines were rejected.
pub async fn run(command: DevicesCommand) -> Result<(), Failure> {
    match command {
        DevicesCommand::Import { target, file } => import(&target, &file).await,
        DevicesCommand::Show { target, id } => {
            let device = target.client()?.device(&id).await.map_err(|fault| target.failure(fault))?;
            if target.json {
                return print_json(&device);
            }
            print(&account(&device))
        }
    }
}

async fn import(target: &Target, file: &Path) -> Result<(), Failure> {
    let client = target.client()?;
    let sent = Arc::new(AtomicU64::new(0));
    let input = open(file).await.map_err(|fault| Failure::Runtime(format!("{}: {fault}", file.display())))?;
    let counter = Arc::clone(&sent);
    let counted = input.inspect_ok(move |bytes: &Bytes| {
        counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    });
    let answer = tokio::select! {
        answer = client.import(counted) => answer.map_err(|fault| target.failure(fault))?,
        never = watch(&sent) => match never {},
    };
    if target.json {
        print_json(&answer)?;
    } else {
        print(&summary(&answer))?;
    }
    match answer.rejected_total {
        0 => Ok(()),
        1 => Err(Failure::Runtime("1 line was rejected; the others are kept".to_owned())),
        n => Err(Failure::Runtime(format!("{n} lines were rejected; the others are kept"))),
    }
}

type Input = std::pin::Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + Sync>>;

async fn open(file: &Path) -> std::io::Result<Input> {
    const PIECE: usize = 64 * 1024;
    if file.as_os_str() == "-" {
        return Ok(Box::pin(ReaderStream::with_capacity(tokio::io::stdin(), PIECE)));
    }
    let opened = tokio::fs::File::open(file).await?;
    if opened.metadata().await?.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    Ok(Box::pin(ReaderStream::with_capacity(opened, PIECE)))
}

/// Tells each second how much was sent, to people only.
async fn watch(sent: &AtomicU64) -> std::convert::Infallible {
    let live = std::io::stderr().is_terminal();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if live {
            let megabytes = sent.load(Ordering::Relaxed) as f64 / 1e6;
            let _ = write!(std::io::stderr(), "\r\x1b[K{megabytes:.1} MB sent");
            let _ = std::io::stderr().flush();
        }
    }
}

fn summary(answer: &ImportAnswer) -> String {
    let ImportAnswer { imported, updated, rejected, rejected_total } = answer;
    let mut text = format!("{imported} imported, {updated} updated, {rejected_total} rejected\n");
    for reject in rejected.iter().take(20) {
        text.push_str(&format!("  line {}: {}: {}\n", reject.line, reject.code, reject.reason));
    }
    if rejected.len() > 20 {
        text.push_str("  … `--json` lists up to 1,000\n");
    }
    text
}

fn account(d: &DeviceAnswer) -> String {
    let follow = |f: &FollowEntry| match &f.types {
        None => f.subject.clone(),
        Some(types) => format!("{} ({})", f.subject, types.join(", ")),
    };
    let follows: Vec<String> = d.follows.iter().map(follow).collect();
    let or_nothing = |list: Vec<String>| if list.is_empty() { "nothing".to_owned() } else { list.join("; ") };
    [
        format!("device     {} of user {}, {}", d.id, d.user_id, d.state),
        format!("address    {}, SHA-256 {}…", d.addressed_by, d.address_hash),
        format!("platform   {}, locale {}", d.platform, d.locale),
        format!("follows    {}", or_nothing(follows)),
        format!("muted      {}", or_nothing(d.muted.clone())),
        format!("registered {}\n", d.registered_at),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reject;

    #[test]
    fn the_first_rejects_are_told_by_line() {
        let reject = |line| Reject { line, code: "invalid".into(), reason: "/token: must not be empty".into() };
        let answer =
            ImportAnswer { imported: 2, updated: 1, rejected: (1..=30).map(reject).collect(), rejected_total: 30 };
        let text = summary(&answer);
        assert!(text.starts_with("2 imported, 1 updated, 30 rejected\n  line 1: invalid: /token"), "{text}");
        assert_eq!(text.lines().count(), 22);
    }
}
