//! Owns the JSON of one message: serialised once per variant, with the target and the time left put in per device.
//! Must never know: connections, or whether the message is worth sending.
//!
//! The target is the first field of the message and the time left is the very last value, so a body is five pieces
//! put together, three of them ready. The app finds the event under [`EVENT_ID_KEY`], [`TYPE_KEY`] and
//! [`MATCH_ID_KEY`] beside the caller's own data; at-least-once delivery makes the first of them worth having.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::domain::catalogue::{EventType, Text};
use crate::domain::event::Event;
use crate::domain::recipient::{Address, Platform};

/// Data key of the event's id.
pub const EVENT_ID_KEY: &str = "fanfare_event_id";
/// Data key of the event's type.
pub const TYPE_KEY: &str = "fanfare_type";
/// Data key of the match.
pub const MATCH_ID_KEY: &str = "fanfare_match_id";

/// Largest message (firebase.google.com/docs/cloud-messaging: "4096 bytes"). Google does not say which parts count; here
/// all of the serialised message counts but the target, which is the strictest reading.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Longest time to live FCM takes: 4 weeks.
pub const MAX_TTL_S: u64 = 2_419_200;

/// Digits of the largest time that is ever put in, an `i64` of epoch seconds.
const MAX_DIGITS: usize = 19;

/// Why a message cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// FCM would refuse it.
    #[error("the message has {bytes} bytes, FCM takes at most {MAX_MESSAGE_BYTES}; shorten data or text")]
    TooLarge {
        /// Bytes of the message without its target.
        bytes: usize,
    },
    /// A fault of ours: the serialised form is not the one this file relies on.
    #[error("the message did not serialise as expected")]
    Unserialisable,
}

/// A message of one variant, ready but for target and time left.
#[derive(Debug, Clone)]
pub struct Template {
    platform: Platform,
    middle: Box<str>,
    tail: &'static str,
}

impl Template {
    /// Serialises the message for everybody who reads this text on this platform.
    ///
    /// # Errors
    /// [`MessageError::TooLarge`] when FCM would refuse it.
    pub fn new(event: &Event, kind: &EventType, text: &Text, platform: Platform) -> Result<Self, MessageError> {
        Self::with_collapse_key(event, kind, text, platform, &kind.collapse_key(event))
    }

    fn with_collapse_key(
        event: &Event,
        kind: &EventType,
        text: &Text,
        platform: Platform,
        collapse_key: &str,
    ) -> Result<Self, MessageError> {
        let nobody = Address::Token(String::new());
        let message = message(event, kind, text, block(kind, platform, collapse_key), &nobody);
        let whole = serde_json::to_string(&message).map_err(|_| MessageError::Unserialisable)?;
        let tail = tail(platform);
        let middle = whole
            .strip_prefix(r#"{"message":{"token":"""#)
            .and_then(|rest| rest.strip_suffix(tail))
            .and_then(|rest| rest.strip_suffix('0'))
            .ok_or(MessageError::Unserialisable)?;
        let bytes = middle.len() + MAX_DIGITS + tail.len();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(MessageError::TooLarge { bytes });
        }
        Ok(Self { platform, middle: middle.into(), tail })
    }

    /// The body for one device: `ttl_s` seconds are left at `now_epoch_s`. APNs takes an instant, the others a duration.
    #[must_use]
    pub fn body(&self, address: &Address, ttl_s: u64, now_epoch_s: i64) -> Bytes {
        // A string inside a JSON value prints with everything escaped, whatever the device token holds.
        let target = serde_json::Value::from(address.value()).to_string();
        let left = left(self.platform, ttl_s, now_epoch_s);
        let pieces = [r#"{"message":{""#, address.field(), "\":", &target, &self.middle, &left, self.tail];
        Bytes::from(pieces.concat())
    }
}

fn left(platform: Platform, ttl_s: u64, now_epoch_s: i64) -> String {
    let ttl_s = ttl_s.min(MAX_TTL_S);
    match platform {
        Platform::Ios => now_epoch_s.saturating_add_unsigned(ttl_s).to_string(),
        Platform::Android | Platform::Web => ttl_s.to_string(),
    }
}

const fn tail(platform: Platform) -> &'static str {
    match platform {
        Platform::Android => r#"s"}}}"#,
        Platform::Ios | Platform::Web => r#""}}}}"#,
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    message: Message<'a>,
}

/// Field order is part of the splice: the target first, the platform's block last.
#[derive(Serialize)]
struct Message<'a> {
    #[serde(flatten)]
    target: &'a Address,
    data: BTreeMap<&'a str, &'a str>,
    notification: Notification<'a>,
    #[serde(flatten)]
    block: Block<'a>,
}

#[derive(Serialize)]
struct Notification<'a> {
    title: &'a str,
    body: &'a str,
}

/// In each of them the time left comes last.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Block<'a> {
    Android { collapse_key: &'a str, priority: &'static str, notification: AndroidNotification<'a>, ttl: String },
    Apns { payload: ApnsPayload<'a>, headers: ApnsHeaders },
    Webpush { notification: WebNotification<'a>, headers: WebHeaders },
}

#[derive(Serialize)]
struct AndroidNotification<'a> {
    channel_id: &'a str,
    sound: &'a str,
    tag: &'a str,
}

#[derive(Serialize)]
struct ApnsPayload<'a> {
    aps: Aps<'a>,
}

#[derive(Serialize)]
struct Aps<'a> {
    sound: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ApnsHeaders {
    apns_priority: &'static str,
    apns_collapse_id: String,
    apns_expiration: String,
}

#[derive(Serialize)]
struct WebNotification<'a> {
    tag: &'a str,
}

#[derive(Serialize)]
struct WebHeaders {
    #[serde(rename = "Urgency")]
    urgency: &'static str,
    #[serde(rename = "Topic")]
    topic: String,
    #[serde(rename = "TTL")]
    ttl: String,
}

fn message<'a>(
    event: &'a Event,
    kind: &'a EventType,
    text: &'a Text,
    block: Block<'a>,
    target: &'a Address,
) -> Envelope<'a> {
    let mut data: BTreeMap<&str, &str> = event.data.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    data.extend([
        (EVENT_ID_KEY, event.id.as_str()),
        (TYPE_KEY, kind.name.as_str()),
        (MATCH_ID_KEY, event.match_id.as_str()),
    ]);
    let notification = Notification { title: &text.title, body: &text.body };
    Envelope { message: Message { target, data, notification, block } }
}

/// The platform's block, with no time left.
fn block<'a>(kind: &'a EventType, platform: Platform, collapse_key: &'a str) -> Block<'a> {
    let urgent = kind.high_priority;
    match platform {
        Platform::Android => Block::Android {
            collapse_key,
            priority: if urgent { "HIGH" } else { "NORMAL" },
            notification: AndroidNotification { channel_id: &kind.channel, sound: &kind.sound, tag: collapse_key },
            ttl: "0s".to_owned(),
        },
        Platform::Ios => Block::Apns {
            payload: ApnsPayload { aps: Aps { sound: &kind.sound } },
            headers: ApnsHeaders {
                apns_priority: if urgent { "10" } else { "5" },
                apns_collapse_id: apns_collapse_id(collapse_key),
                apns_expiration: "0".to_owned(),
            },
        },
        Platform::Web => Block::Webpush {
            notification: WebNotification { tag: collapse_key },
            headers: WebHeaders {
                urgency: if urgent { "high" } else { "normal" },
                topic: short_hash(collapse_key),
                ttl: "0".to_owned(),
            },
        },
    }
}

/// At most 64 bytes (Apple: "must not exceed 64 bytes"), and a header's characters only.
fn apns_collapse_id(collapse_key: &str) -> String {
    let fits = collapse_key.len() <= 64 && collapse_key.bytes().all(|b| b.is_ascii_graphic());
    if fits { collapse_key.to_owned() } else { short_hash(collapse_key) }
}

/// 32 characters of the base64url alphabet, which is all a web push topic may be (RFC 8030, 5.4).
fn short_hash(text: &str) -> String {
    Sha256::digest(text).iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}
