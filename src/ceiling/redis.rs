//! Owns the conversation with Redis: one connection, one script, and what can go wrong, by type.
//! Must never know: modes, lanes, or what is done while Redis is away.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, Script};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout};

use super::bucket::AHEAD;
use super::pace::{LONGEST_PAUSE, RECOVERY_PER_S};

/// A Redis that takes longer is away: a grant is needed now or not at all.
pub(super) const SILENCE: Duration = Duration::from_millis(100);

/// The full pace in the script's numbers.
pub(super) const FULL: i64 = 1_000_000;

/// Why Redis cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisAway {
    /// The URL means nothing.
    #[error("redis: bad url")]
    BadUrl,
    /// Nobody listens.
    #[error("redis: refused")]
    Refused,
    /// No answer within 100 ms.
    #[error("redis: silent")]
    Silent,
    /// The connection broke.
    #[error("redis: connection lost")]
    Lost,
    /// User or password refused while connecting.
    #[error("redis: authentication failed")]
    Auth,
    /// It answered with an error of this code: `READONLY`, `OOM`, `LOADING`, `WRONGTYPE`, `NOAUTH`, `NOSCRIPT` ...
    #[error("redis: {0}")]
    Answered(String),
    /// It answered something else than the script does.
    #[error("redis: answer without meaning")]
    Nonsense,
}

impl From<redis::RedisError> for RedisAway {
    fn from(error: redis::RedisError) -> Self {
        if error.is_timeout() {
            return Self::Silent;
        }
        if error.is_connection_refusal() {
            return Self::Refused;
        }
        match error.kind() {
            ErrorKind::Io => Self::Lost,
            ErrorKind::AuthenticationFailed => Self::Auth,
            ErrorKind::InvalidClientConfig => Self::BadUrl,
            ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Self::Nonsense,
            _ => Self::Answered(code(error.code().unwrap_or("ERR"))),
        }
    }
}

/// An error code as Redis writes them; whatever else a server sends is not repeated.
fn code(raw: &str) -> String {
    let is_code = !raw.is_empty() && raw.len() <= 20 && raw.bytes().all(|b| b.is_ascii_uppercase());
    if is_code { raw.to_owned() } else { "ERR".to_owned() }
}

/// What a lane asks the script, and what it remembers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub key: &'a str,
    pub per_s: f64,
    pub burst: f64,
    /// Grants asked for; 0 only tells and learns.
    pub want: u32,
    /// Pause still to wait.
    pub pause: Duration,
    /// Share of the ceiling applied now, millionths.
    pub pace_ppm: i64,
    /// The provider has told us since the last call.
    pub news: bool,
}

impl<'a> Ask<'a> {
    /// Asks for nothing and tells nothing: a ping that proves the script works.
    pub(super) const fn ping(key: &'a str, per_s: f64, burst: f64) -> Self {
        Self { key, per_s, burst, want: 0, pause: Duration::ZERO, pace_ppm: FULL, news: false }
    }
}

/// What the script answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub n: u32,
    /// Until the first grant is due, or until it is worth asking again.
    pub wait: Duration,
    /// How long ago the first grant was due, after a quiet time.
    pub credit: Duration,
    pub every: Duration,
    /// End of the pause, pace at the cut and time of the cut, by the server's clock; 0 = none.
    pub pause_us: i64,
    pub pace_ppm: i64,
    pub cut_us: i64,
    /// The server's clock.
    pub now_us: i64,
}

impl Answer {
    fn parse(raw: &[i64], want: u32) -> Option<Self> {
        let &[n, wait, every, pause_us, pace_ppm, cut_us, now_us] = raw else { return None };
        let n = u32::try_from(n).ok().filter(|n| *n <= want)?;
        let credit = Duration::from_micros(u64::try_from(-wait).unwrap_or(0));
        let wait = Duration::from_micros(u64::try_from(wait).or(if n > 0 { Ok(0) } else { Err(()) }).ok()?);
        let every = Duration::from_nanos(u64::try_from(every).ok().filter(|every| *every > 0)?);
        let sane = pause_us >= 0 && (1..=FULL).contains(&pace_ppm) && (0..=now_us).contains(&cut_us);
        sane.then_some(Self { n, wait, credit, every, pause_us, pace_ppm, cut_us, now_us })
    }

    /// Pause left when the script ran.
    pub(super) fn pause_left(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.pause_us - self.now_us).unwrap_or(0))
    }

    /// Share of the ceiling when the script ran.
    pub(super) fn share(&self) -> f64 {
        let since = self.now_us - self.cut_us.max(self.pause_us);
        let regained = RECOVERY_PER_S * since.max(0) as f64 / 1e6;
        (self.pace_ppm as f64 / FULL as f64 + regained).min(1.0)
    }
}

/// Reads the URL. An error never repeats it: it may hold a password.
pub(super) fn client(url: &SecretString) -> Result<Client, RedisAway> {
    Client::open(url.expose_secret()).map_err(|_| RedisAway::BadUrl)
}

/// A connection that answered.
pub(super) struct Connection {
    connection: MultiplexedConnection,
    script: Script,
}

impl Connection {
    /// Connects, within [`SILENCE`]. The `PING` is for the reason: to somebody who has not authenticated, a server
    /// calls the long command of the script a protocol error, and only a short one `NOAUTH`.
    pub(super) async fn open(client: &Client) -> Result<Self, RedisAway> {
        let limits =
            AsyncConnectionConfig::new().set_connection_timeout(Some(SILENCE)).set_response_timeout(Some(SILENCE));
        let opening = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&limits).await?;
            redis::cmd("PING").query_async::<()>(&mut connection).await?;
            Ok::<_, RedisAway>(connection)
        };
        let connection = timeout(SILENCE, opening).await.map_err(|_| RedisAway::Silent)??;
        Ok(Self { connection, script: Script::new(include_str!("reserve.lua")) })
    }

    /// One call of the script, within [`SILENCE`]. A script the server has lost is loaded again once, by the client
    /// library; a second `NOSCRIPT` is an error. A timer of ours that rang late says nothing about Redis, so then
    /// the question is asked once more; what the first one may have reserved goes unused.
    pub(super) async fn ask(&mut self, ask: &Ask<'_>) -> Result<Answer, RedisAway> {
        let asked = Instant::now();
        match self.call(ask).await {
            Err(RedisAway::Silent) if asked.elapsed() > SILENCE + SILENCE / 2 => self.call(ask).await,
            other => other,
        }
    }

    /// What the server says of itself, within [`SILENCE`].
    pub(super) async fn info(&mut self) -> Result<String, RedisAway> {
        let cmd = redis::cmd("INFO");
        let asking = cmd.query_async::<String>(&mut self.connection);
        Ok(timeout(SILENCE, asking).await.map_err(|_| RedisAway::Silent)??)
    }

    /// Removes a key, if that may be; it expires anyway.
    pub(super) async fn forget(&mut self, key: &str) {
        let mut cmd = redis::cmd("DEL");
        cmd.arg(key);
        let _ = timeout(SILENCE, cmd.query_async::<()>(&mut self.connection)).await;
    }

    async fn call(&mut self, ask: &Ask<'_>) -> Result<Answer, RedisAway> {
        let mut call = self.script.key(ask.key);
        call.arg(1e6 / ask.per_s).arg(ask.burst).arg(ask.want);
        call.arg(AHEAD.as_micros() as u64).arg(LONGEST_PAUSE.as_micros() as u64).arg(RECOVERY_PER_S * FULL as f64);
        call.arg(ask.pause.as_micros() as u64).arg(ask.pace_ppm).arg(i64::from(ask.news));
        let calling = call.invoke_async::<Vec<i64>>(&mut self.connection);
        let raw = timeout(SILENCE, calling).await.map_err(|_| RedisAway::Silent)??;
        Answer::parse(&raw, ask.want).ok_or(RedisAway::Nonsense)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_means_nothing_is_no_answer() {
        let good = [3, 250, 111_111, 0, FULL, 0, 5_000_000];
        assert_eq!(Answer::parse(&good, 3).map(|answer| answer.n), Some(3));
        let twisted: [(usize, i64); 6] = [(0, 4), (0, -1), (2, 0), (3, -1), (4, FULL + 1), (5, 5_000_001)];
        for (i, value) in twisted {
            let mut raw = good;
            raw[i] = value;
            assert_eq!(Answer::parse(&raw, 3), None, "{raw:?}");
        }
        assert_eq!(Answer::parse(&good[..6], 3), None);
        let early = |n: i64| Answer::parse(&[n, -250, 111_111, 0, FULL, 0, 5_000_000], 3);
        let credit = early(3).map(|answer| (answer.wait, answer.credit));
        assert_eq!(credit, Some((Duration::ZERO, Duration::from_micros(250))));
        assert_eq!(early(0), None, "to ask again in the past");
        assert_eq!(Answer::parse(&[], 3), None);
    }

    #[test]
    fn the_share_grows_from_the_end_of_the_pause() {
        let mut answer = Answer::parse(&[0, 1, 1, 10_000_000, 500_000, 2_000_000, 4_000_000], 0).expect("sane");
        assert_eq!((answer.pause_left(), answer.share()), (Duration::from_secs(6), 0.5));
        answer.now_us = 14_000_000;
        assert_eq!((answer.pause_left(), answer.share()), (Duration::ZERO, 0.7));
    }

    #[test]
    fn only_a_code_is_repeated_from_what_a_server_says() {
        assert_eq!(code("READONLY"), "READONLY");
        assert_eq!(code("secret-token abc"), "ERR");
        assert_eq!(code(""), "ERR");
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        let error = client(&SecretString::from("redis://:hunter2@[bad")).expect_err("bad");
        assert_eq!(error, RedisAway::BadUrl);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
