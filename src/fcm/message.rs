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
use crate::domain::text::shorten;

/// Data key of the event's id. Callers cannot use it or the next two: they are refused at the door.
pub const EVENT_ID_KEY: &str = "event_id";
/// Data key of the event's type.
pub const TYPE_KEY: &str = "type";
/// Data key of the match.
pub const MATCH_ID_KEY: &str = "match_id";

/// Largest message (firebase.google.com/docs/cloud-messaging: "4096 bytes"). Google does not say which parts count; here
/// all of the serialised message counts but the target, with room for the longest time left. That is the strictest
/// reading, and what Apple takes (4 KB for the payload FCM makes of it) is kept by it too.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Longest time to live FCM takes: 4 weeks.
pub const MAX_TTL_S: i64 = 2_419_200;

/// What stands before the target.
const HEAD: &str = r#"{"message":{""#;

/// Digits of the largest time that is ever put in, an `i64` of epoch seconds.
const MAX_DIGITS: usize = 19;

/// Why a message cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// FCM would refuse it, however short its body text were.
    #[error(
        "the message has {bytes} bytes, FCM takes at most {MAX_MESSAGE_BYTES}; {data} of them are data, {title} the title, \
         and only the body text is shortened; send less and let the app fetch the rest"
    )]
    TooLarge {
        /// Bytes of the message without its target.
        bytes: usize,
        /// Of them, keys and values of `data` as JSON writes them, the three of ours included.
        data: usize,
        /// Of them, the title.
        title: usize,
    },
    /// A fault of ours: the serialised form is not the one this file relies on.
    #[error("the message did not serialise as expected")]
    Unserialisable,
}

impl MessageError {
    /// JSON pointer to the part of the event whose fault it is.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::TooLarge { data, title, .. } if *title > *data => "/fields",
            _ => "/data",
        }
    }
}

/// A message of one variant, ready but for target and time left.
#[derive(Debug, Clone)]
pub struct Template {
    platform: Platform,
    head: &'static str,
    middle: Box<str>,
    tail: &'static str,
}

impl Template {
    /// Serialises the message for everybody who reads this text on this platform. A body text that makes it too large is
    /// shortened as far as needed, its last words replaced by an ellipsis.
    ///
    /// # Errors
    /// [`MessageError::TooLarge`] when FCM would refuse it even with one letter of body text.
    pub fn new(event: &Event, kind: &EventType, text: &Text, platform: Platform) -> Result<Self, MessageError> {
        Self::keyed(event, kind, text, (platform, &kind.collapse_key(event)))
    }

    /// The same under a collapse key of one's own: a correction replaces the message of what it corrects.
    ///
    /// # Errors
    /// As [`Template::new`].
    pub fn keyed(
        event: &Event,
        kind: &EventType,
        text: &Text,
        (platform, collapse_key): (Platform, &str),
    ) -> Result<Self, MessageError> {
        let (channel, sound, urgent) = (kind.channel.as_str(), kind.sound.as_str(), kind.high_priority);
        Self::fitted(event, text, platform, Style { channel, sound, urgent, collapse_key })
    }

    fn fitted(event: &Event, text: &Text, platform: Platform, style: Style<'_>) -> Result<Self, MessageError> {
        match Self::styled(event, text, platform, style) {
            Err(MessageError::TooLarge { bytes, data, title }) => {
                let shorter = shortened(text, bytes - MAX_MESSAGE_BYTES);
                shorter
                    .ok_or(MessageError::TooLarge { bytes, data, title })
                    .and_then(|shorter| Self::styled(event, &shorter, platform, style))
            }
            whole => whole,
        }
    }

    fn styled(event: &Event, text: &Text, platform: Platform, style: Style<'_>) -> Result<Self, MessageError> {
        let nobody = Address::Token(String::new());
        let message = message(event, text, block(style, platform), &nobody);
        let whole = serde_json::to_string(&message).map_err(|_| MessageError::Unserialisable)?;
        let tail = tail(platform);
        let middle = whole
            .strip_prefix(r#"{"message":{"token":"""#)
            .and_then(|rest| rest.strip_suffix(tail))
            .and_then(|rest| rest.strip_suffix('0'))
            .ok_or(MessageError::Unserialisable)?;
        let bytes = middle.len() + MAX_DIGITS + tail.len();
        if bytes > MAX_MESSAGE_BYTES {
            let (data, title) = (written(&data(event)), written(&text.title));
            return Err(MessageError::TooLarge { bytes, data, title });
        }
        Ok(Self::of_pieces(platform, HEAD, middle.into(), tail))
    }

    /// One that is put together already.
    pub(super) const fn of_pieces(
        platform: Platform,
        head: &'static str,
        middle: Box<str>,
        tail: &'static str,
    ) -> Self {
        Self { platform, head, middle, tail }
    }

    /// The body for one device, with what is left of the time until the deadline; both in ms since the epoch.
    #[must_use]
    pub fn body(&self, address: &Address, deadline_ms: i64, now_ms: i64) -> Bytes {
        // A string inside a JSON value prints with everything escaped, whatever the device token holds.
        let target = serde_json::Value::from(address.value()).to_string();
        let left = left(self.platform, deadline_ms, now_ms);
        let pieces = [self.head, address.field(), "\":", &target, &self.middle, &left, self.tail];
        Bytes::from(pieces.concat())
    }
}

/// What the event type asks of a device, and the key under which a message replaces its predecessor.
#[derive(Clone, Copy)]
struct Style<'a> {
    channel: &'a str,
    sound: &'a str,
    urgent: bool,
    collapse_key: &'a str,
}

/// APNs takes the instant itself, the others whole seconds from now, rounded down: late is wrong. Only under the last
/// second it is rounded up, because 0 means something else to all three: now or never, so that a phone which is away
/// for that moment gets nothing (FCM `ttl`, RFC 8030 5.2, Apple `apns-expiration`).
fn left(platform: Platform, deadline_ms: i64, now_ms: i64) -> String {
    let seconds = match platform {
        Platform::Ios => {
            let now_s = now_ms.div_euclid(1000);
            deadline_ms.div_euclid(1000).clamp(now_s.saturating_add(1), now_s.saturating_add(MAX_TTL_S))
        }
        Platform::Android | Platform::Web => (deadline_ms.saturating_sub(now_ms) / 1000).clamp(1, MAX_TTL_S),
    };
    seconds.to_string()
}

/// The text with the longest body that JSON writes in at least `over` bytes less. `None` when nothing of it would be left.
fn shortened(text: &Text, over: usize) -> Option<Text> {
    let room = written(&text.body).checked_sub(over)?;
    // JSON writes no byte in less than one, and more in the more; how much more depends on which.
    let (mut fits, mut too_long) = (0, text.body.len().min(room + 1));
    while too_long - fits > 1 {
        let middle = usize::midpoint(fits, too_long);
        let narrowed = if written(&shorten(&text.body, middle)) <= room { &mut fits } else { &mut too_long };
        *narrowed = middle;
    }
    let body = shorten(&text.body, fits).into_owned();
    let left = !body.trim_end_matches(['\u{2069}', '…']).is_empty();
    left.then(|| Text { title: text.title.clone(), body })
}

/// Bytes of a value as JSON writes it.
fn written(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

const fn tail(platform: Platform) -> &'static str {
    match platform {
        Platform::Android => r#"s"}}}"#,
        Platform::Ios | Platform::Web => r#""}}}}"#,
    }
}

#[derive(Serialize)]
struct Request<'a> {
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

fn data(event: &Event) -> BTreeMap<&str, &str> {
    let mut data: BTreeMap<&str, &str> = event.data.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // Put in last, so that data cannot claim to be another event even where the door let it in.
    data.insert(EVENT_ID_KEY, event.id.as_str());
    data.insert(TYPE_KEY, &event.kind);
    data.insert(MATCH_ID_KEY, event.match_id.as_str());
    data
}

fn message<'a>(event: &'a Event, text: &'a Text, block: Block<'a>, target: &'a Address) -> Request<'a> {
    let notification = Notification { title: &text.title, body: &text.body };
    Request { message: Message { target, data: data(event), notification, block } }
}

/// The platform's block, with no time left.
fn block(style: Style<'_>, platform: Platform) -> Block<'_> {
    let Style { channel, sound, urgent, collapse_key } = style;
    match platform {
        Platform::Android => Block::Android {
            collapse_key,
            priority: if urgent { "HIGH" } else { "NORMAL" },
            notification: AndroidNotification { channel_id: channel, sound, tag: collapse_key },
            ttl: "0s".to_owned(),
        },
        Platform::Ios => Block::Apns {
            payload: ApnsPayload { aps: Aps { sound } },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{EventId, MatchId};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn event(data: &[(&str, &str)]) -> Event {
        Event {
            id: EventId::parse("evt-8841").unwrap(),
            kind: "goal".to_owned(),
            match_id: MatchId::parse("4711").unwrap(),
            occurred_ms: 0,
            subjects: vec!["match:4711".to_owned()],
            fields: BTreeMap::new(),
            data: data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            useful_for_s: 120,
            supersedes: None,
        }
    }

    fn style(collapse_key: &str) -> Style<'_> {
        Style { channel: "goals", sound: "goal.wav", urgent: true, collapse_key }
    }

    fn text() -> Text {
        Text { title: "GOAL! \"67'\"".to_owned(), body: "Arsenal 2-1 Chelsea ⚽".to_owned() }
    }

    fn template(platform: Platform, key: &str) -> Template {
        Template::styled(&event(&[("deeplink", "app://m")]), &text(), platform, style(key)).unwrap()
    }

    fn sent(platform: Platform) -> Value {
        let body =
            template(platform, "goal:4711").body(&Address::Token("t".to_owned()), 1_800_000_087_500, 1_800_000_000_400);
        serde_json::from_slice(&body).unwrap()
    }

    fn common() -> Value {
        json!({
            "token": "t",
            "data": {"deeplink": "app://m", "event_id": "evt-8841", "type": "goal", "match_id": "4711"},
            "notification": {"title": "GOAL! \"67'\"", "body": "Arsenal 2-1 Chelsea ⚽"},
        })
    }

    #[test]
    fn android_gets_its_time_to_live_as_a_duration() {
        let mut want = common();
        want["android"] = json!({"collapse_key": "goal:4711", "priority": "HIGH", "ttl": "87s",
            "notification": {"channel_id": "goals", "sound": "goal.wav", "tag": "goal:4711"}});
        assert_eq!(sent(Platform::Android), json!({ "message": want }));
    }

    #[test]
    fn ios_gets_it_as_an_instant() {
        let mut want = common();
        want["apns"] = json!({"payload": {"aps": {"sound": "goal.wav"}},
            "headers": {"apns-priority": "10", "apns-collapse-id": "goal:4711", "apns-expiration": "1800000087"}});
        assert_eq!(sent(Platform::Ios), json!({ "message": want }));
    }

    #[test]
    fn the_web_gets_a_topic_of_its_alphabet() {
        let mut message = sent(Platform::Web);
        let topic = message["message"]["webpush"]["headers"]["Topic"].take();
        let topic = topic.as_str().unwrap();
        assert!(topic.len() <= 32 && topic.bytes().all(|b| b.is_ascii_alphanumeric()), "{topic}");
        let mut want = common();
        want["webpush"] =
            json!({"notification": {"tag": "goal:4711"}, "headers": {"Urgency": "high", "TTL": "87", "Topic": null}});
        assert_eq!(message, json!({ "message": want }));
    }

    #[test]
    fn a_long_or_odd_collapse_key_fits_apns_and_stays_the_same_for_all() {
        for key in ["k".repeat(65), "ключ".to_owned(), "a b".to_owned(), "a\r\nb".to_owned()] {
            let id = apns_collapse_id(&key);
            assert!(id.len() <= 64 && id.bytes().all(|b| b.is_ascii_graphic()), "{id}");
            assert_eq!(id, apns_collapse_id(&key));
            assert_ne!(id, apns_collapse_id(&format!("{key}x")));
        }
        assert_eq!(apns_collapse_id(&"k".repeat(64)), "k".repeat(64));
    }

    #[test]
    fn our_own_keys_cannot_be_taken() {
        let stolen = event(&[(EVENT_ID_KEY, "other")]);
        let template = Template::styled(&stolen, &text(), Platform::Web, style("k")).unwrap();
        let body: Value = serde_json::from_slice(&template.body(&Address::Fid("f".to_owned()), 1, 1)).unwrap();
        assert_eq!(body["message"]["data"][EVENT_ID_KEY], "evt-8841");
        assert_eq!(body["message"]["fid"], "f");
    }

    #[test]
    fn a_message_over_the_limit_is_refused_with_its_size() {
        let fill = |n: usize| {
            let long = "x".repeat(n);
            Template::styled(&event(&[("k", &long)]), &text(), Platform::Android, style("c"))
        };
        let Err(MessageError::TooLarge { bytes, .. }) = fill(4096) else { panic!("taken") };
        let overhead = bytes - 4096;
        assert!(fill(MAX_MESSAGE_BYTES - overhead).is_ok());
        let Err(error) = fill(MAX_MESSAGE_BYTES - overhead + 1) else { panic!("taken") };
        let MessageError::TooLarge { bytes: 4097, data, title } = error else { panic!("{error}") };
        let ours = r#"{"event_id":"evt-8841","k":"","match_id":"4711","type":"goal"}"#.len();
        assert_eq!((data, title), (MAX_MESSAGE_BYTES - overhead + 1 + ours, 15), "{error}");
        assert_eq!(error.field(), "/data");
    }

    #[test]
    fn the_time_left_is_the_deadline_never_zero_and_never_beyond_fcms_limit() {
        let at = |platform, left_ms: i64| left(platform, 1_800_000_000_500 + left_ms, 1_800_000_000_500);
        for (left_ms, ttl, expiration) in [
            (87_000, "87", "1800000087"),
            (87_999, "87", "1800000088"),
            (1_999, "1", "1800000002"),
            (999, "1", "1800000001"),
            (1, "1", "1800000001"),
            (0, "1", "1800000001"),
            (-5_000, "1", "1800000001"),
            (9_000_000_000, "2419200", "1802419200"),
        ] {
            assert_eq!(at(Platform::Android, left_ms), ttl, "{left_ms}");
            assert_eq!(at(Platform::Web, left_ms), ttl, "{left_ms}");
            assert_eq!(at(Platform::Ios, left_ms), expiration, "{left_ms}");
        }
        for (deadline, now) in [(i64::MAX, i64::MIN), (i64::MIN, i64::MAX), (i64::MAX, i64::MAX)] {
            for platform in Platform::ALL {
                assert!(left(*platform, deadline, now).len() <= MAX_DIGITS);
            }
        }
    }

    #[test]
    fn a_body_that_is_too_long_is_cut_to_the_last_byte_that_fits() {
        for (unit, escaped) in
            [("x", 1), ("\"", 2), ("👨‍👩‍👧‍👦", 25), ("🇧🇷", 8), ("e\u{301}", 3), ("سّ", 4), ("각", 9), ("得", 3)]
        {
            let long = Text { body: unit.repeat(6000 / unit.len()), ..text() };
            let template = Template::fitted(&event(&[]), &long, Platform::Android, style("c")).unwrap();
            let bytes = template.middle.len() + MAX_DIGITS + template.tail.len();
            assert!(bytes <= MAX_MESSAGE_BYTES, "{unit}: {bytes}");
            let sent: Value = serde_json::from_slice(&template.body(&Address::Token("t".to_owned()), 9, 9)).unwrap();
            let body = sent["message"]["notification"]["body"].as_str().unwrap().to_owned();
            let kept = body.strip_suffix('…').unwrap();
            assert_eq!(kept, unit.repeat(kept.len() / unit.len()), "whole graphemes only");
            assert!(bytes + escaped > MAX_MESSAGE_BYTES, "{unit}: {bytes}, one more would have fitted");
        }
    }

    #[test]
    fn a_body_of_which_nothing_would_be_left_is_a_refusal() {
        let room = {
            let one = Text { body: "x…".to_owned(), ..text() };
            let template = Template::fitted(&event(&[("k", "")]), &one, Platform::Ios, style("c")).unwrap();
            MAX_MESSAGE_BYTES - template.middle.len() - MAX_DIGITS - template.tail.len()
        };
        let long = Text { body: "x".repeat(50), ..text() };
        let fitted = |n: usize| Template::fitted(&event(&[("k", &"d".repeat(n))]), &long, Platform::Ios, style("c"));
        assert!(fitted(room).is_ok());
        assert!(matches!(fitted(room + 1), Err(MessageError::TooLarge { .. })));
        let titled = Text { title: "t".repeat(5000), ..long.clone() };
        let error = Template::fitted(&event(&[]), &titled, Platform::Web, style("c")).unwrap_err();
        assert_eq!(error.field(), "/fields", "{error}");
    }

    /// The platform's block with its time left, set where it belongs and not spliced.
    fn timed<'a>(mut block: Block<'a>, left: &str) -> Block<'a> {
        match &mut block {
            Block::Android { ttl, .. } => *ttl = format!("{left}s"),
            Block::Apns { headers, .. } => left.clone_into(&mut headers.apns_expiration),
            Block::Webpush { headers, .. } => left.clone_into(&mut headers.ttl),
        }
        block
    }

    fn hostile() -> impl Strategy<Value = String> {
        let nasty = prop::sample::select(vec![
            "\"",
            "\\",
            "\"}}}",
            "\",\"topic\":\"all",
            "\u{0}",
            "\u{2028}",
            "0s\"}}}",
            "{\"message\":{\"token\":\"\"",
        ]);
        prop_oneof![any::<String>(), (any::<String>(), nasty).prop_map(|(a, b)| a + b)]
    }

    proptest! {
        #[test]
        fn the_pieces_add_up_to_the_whole_message(
            token in hostile(), fid in any::<bool>(), key in hostile(), value in hostile(), collapse in hostile(),
            ttl in 0_i64..5_000_000_000, now in 0_i64..4_000_000_000_000, which in 0_usize..3, high in any::<bool>(),
        ) {
            let platform = Platform::ALL[which];
            let (event, style) = (event(&[(&key, &value)]), Style { urgent: high, ..style(&collapse) });
            let address = if fid { Address::Fid(token.clone()) } else { Address::Token(token.clone()) };
            let template = Template::styled(&event, &text(), platform, style);
            prop_assume!(template.is_ok());
            let body = template.unwrap().body(&address, now + ttl, now);
            let block = timed(block(style, platform), &left(platform, now + ttl, now));
            let want = serde_json::to_vec(&message(&event, &text(), block, &address)).unwrap();
            prop_assert_eq!(std::str::from_utf8(&body).unwrap(), std::str::from_utf8(&want).unwrap());
            let parsed: Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(parsed["message"][address.field()].as_str(), Some(token.as_str()));
            prop_assert_eq!(parsed.as_object().unwrap().len(), 1);
            prop_assert_eq!(parsed["message"].as_object().unwrap().len(), 4);
        }
    }
}
