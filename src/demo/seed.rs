//! Owns the demo's followers: mostly well, a few as real ones are.
//! Must never know: how the service takes them in.

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream;

/// What the followers are, in words.
pub const MIX: &str = "in every 100 one dead, one invalid and one flaky (503 first); one of all stalls for 3 s";

/// NDJSON of `n` followers of `match:{run}`. The emulator answers by how a device token begins.
pub fn followers(run: &str, n: u32) -> impl Stream<Item = std::io::Result<Bytes>> + Send + Sync + 'static {
    let run = run.to_owned();
    stream::iter((0..n).map(move |i| Ok(Bytes::from(line(&run, i)))))
}

/// Which of every hundred are dead.
const DEAD: u32 = 11;

/// The id of a device that is dead, or of the first when there are too few for one.
#[must_use]
pub fn dead_one(run: &str, followers: u64) -> String {
    id(run, if followers > u64::from(DEAD) { DEAD } else { 0 })
}

fn id(run: &str, i: u32) -> String {
    format!("demo-{run}-{i}")
}

fn line(run: &str, i: u32) -> String {
    let answer = match i % 100 {
        DEAD => "dead",
        37 => "invalid-field",
        73 => "flaky503",
        _ if i == 500 => "slow-3000",
        _ => "ok",
    };
    let platform = ["android", "ios", "web"][(i % 3) as usize];
    let locale = ["en", "pt-BR", "es", "tr", "ar"][(i % 5) as usize];
    let device = serde_json::json!({
        "id": id(run, i),
        "user_id": format!("demo-user-{i}"),
        "token": format!("{answer}-{run}-{i}"),
        "platform": platform,
        "locale": locale,
        "follows": [format!("match:{run}")],
    });
    format!("{device}\n")
}
