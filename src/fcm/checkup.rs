//! Owns the questions `fanfare doctor` has for the provider: one access token, one connection, one message that is only
//! looked at. Nothing is asked twice.
//! Must never know: which answer is well and which is not.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::attempted::Attempted;
use super::bearer::Bearer;
use super::broken::Broken;
use super::connections::{ConnectionId, Settings, post, way};
use super::error::FcmError;
use super::http::{Target, TokenHttp, Wire};
use super::link::{Kept, Link};
use super::message::Template;
use super::source::{Source, TokenSource};
pub use super::token_answer::{Granted, TokenError};
use crate::domain::charge::Charge;
use crate::domain::recipient::{Address, Platform};

/// No app has it: FCM refuses it before it is anybody's.
const MADE_UP: &str = "fanfare-doctor-made-up-token";

/// Time the message would be useful for, ms. It is never sent.
const USEFUL_MS: i64 = 60_000;

/// What came of asking for an access token.
#[derive(Debug)]
pub struct TokenCall {
    /// From the request to the end of the answer.
    pub took: Duration,
    /// The access token, or why there is none.
    pub granted: Result<Granted, TokenError>,
    /// How far this machine's clock is ahead of the giver's, ms, right to half a second; none without a `Date`.
    pub ahead_ms: Option<i64>,
}

/// Asks for an access token once, charged like any other request.
pub async fn token_call(source: &TokenSource, http: &TokenHttp, charge: Arc<dyn Charge>) -> TokenCall {
    charge.charge().await;
    let source = Source::new(source.clone(), http.clone(), charge, SystemTime::now);
    let (before, begun) = (SystemTime::now(), Instant::now());
    let (granted, date) = source.ask_dated().await;
    TokenCall { took: begun.elapsed(), granted, ahead_ms: date.and_then(|date| ahead_ms(&date, before)) }
}

/// Why there is no connection to the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreached {
    /// A setting does not let one be made.
    #[error("{0}")]
    Settings(#[from] FcmError),
    /// It did not come up.
    #[error("{}", .0.as_str())]
    Broken(Broken),
}

/// A connection to the endpoint that has come up.
#[derive(Debug)]
pub struct Reached {
    link: Link,
    send: Target,
    /// Streams the peer allows at once (`SETTINGS_MAX_CONCURRENT_STREAMS`, RFC 9113 6.5.2); `u32::MAX` = no limit.
    pub streams: u32,
    /// TCP, TLS and the first words of HTTP/2.
    pub took: Duration,
}

/// Connects as a service does.
///
/// # Errors
/// [`Unreached`].
pub async fn reach(settings: &Settings) -> Result<Reached, Unreached> {
    let (dialler, send, _) = way(settings)?;
    let begun = Instant::now();
    let link = Link::dial(Arc::new(dialler), 1);
    let streams = link.spoken().await.map_err(Unreached::Broken)?;
    Ok(Reached { link, send, streams, took: begun.elapsed() })
}

/// What FCM said to a message it was only to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// As any attempt is judged.
    pub attempted: Attempted,
    /// How far this machine's clock is ahead of FCM's, ms, right to half a second; none without a `Date`.
    pub ahead_ms: Option<i64>,
}

impl Reached {
    /// One message to a device token that was made up, with `validate_only`: it reaches no phone. Leave for it is the
    /// caller's to get.
    pub async fn look(&self, bearer: &Bearer, within: Duration) -> Looked {
        let (before, begun) = (SystemTime::now(), Instant::now());
        let now_ms = ms(before);
        let body = Template::probe(Platform::Android).body(&made_up(), now_ms + USEFUL_MS, now_ms);
        let request = post(&self.send, &bearer.header(), body.len());
        let wire = match self.link.exchange(request, body, begun + within).await {
            Ok(wire) => wire,
            Err(Kept::Closed) => Wire::Broken(Broken::Connect),
            Err(Kept::NoStream) => Wire::Broken(Broken::NoStream),
        };
        let ahead_ms = match &wire {
            Wire::Answer(answer) => answer.date.as_deref().and_then(|date| ahead_ms(date, before)),
            Wire::Broken(_) => None,
        };
        let attempted = Attempted::judge(&wire, ConnectionId(1), begun.elapsed(), SystemTime::now());
        Looked { attempted, ahead_ms }
    }
}

fn made_up() -> Address {
    Address::Token(MADE_UP.to_owned())
}

fn ms(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// How far we are ahead of a peer that wrote this date between `before` and now. Dates have whole seconds, cut off.
fn ahead_ms(date: &str, before: SystemTime) -> Option<i64> {
    let theirs = ms(httpdate::parse_http_date(date).ok()?).saturating_add(500);
    Some(ms(before).midpoint(ms(SystemTime::now())).saturating_sub(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_second_a_date_names() {
        let now = SystemTime::now();
        for (apart_s, ahead) in [(0, 0), (600, 600_000)] {
            let theirs = now - Duration::from_secs(apart_s);
            let found = ahead_ms(&httpdate::fmt_http_date(theirs), now).unwrap();
            assert!((found - ahead).abs() <= 600, "{found}");
        }
        assert!(ahead_ms(&httpdate::fmt_http_date(now + Duration::from_secs(400)), now).unwrap() < -398_000);
        assert_eq!(ahead_ms("soon", now), None);
    }

    #[test]
    fn the_message_is_one_that_is_only_looked_at() {
        let body = Template::probe(Platform::Android).body(&made_up(), USEFUL_MS, 0);
        let sent: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&sent["validate_only"], &sent["message"]["token"]), (&true.into(), &MADE_UP.into()));
    }
}
