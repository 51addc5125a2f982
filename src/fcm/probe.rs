//! Owns the message of a sweep: the least FCM takes, asked to be looked at and not to be sent.
//! Must never know: which devices are asked about.
//!
//! `validate_only` makes FCM do all it does for a message but deliver it. It does not ask APNs: a device token that
//! APNs has forgotten and FCM has not is called good.

use super::message::Template;
use crate::domain::recipient::Platform;

/// What stands before the target.
const HEAD: &str = r#"{"validate_only":true,"message":{""#;

impl Template {
    /// Ready but for target and time left, like any other.
    #[must_use]
    pub fn probe(platform: Platform) -> Self {
        let block = match platform {
            Platform::Android => r#","android":{"ttl":""#,
            Platform::Ios => r#","apns":{"headers":{"apns-expiration":""#,
            Platform::Web => r#","webpush":{"headers":{"TTL":""#,
        };
        let tail = match platform {
            Platform::Android => r#"s"}}}"#,
            Platform::Ios | Platform::Web => r#""}}}}"#,
        };
        Self::of_pieces(platform, HEAD, format!(r#","data":{{"type":"sweep"}}{block}"#).into(), tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipient::Address;
    use serde_json::{Value, json};

    #[test]
    fn it_is_the_least_message_there_is_and_never_one_to_be_sent() {
        for (platform, block) in [
            (Platform::Android, json!({"android": {"ttl": "87s"}})),
            (Platform::Ios, json!({"apns": {"headers": {"apns-expiration": "1800000087"}}})),
            (Platform::Web, json!({"webpush": {"headers": {"TTL": "87"}}})),
        ] {
            for (address, field) in [(Address::Token("a\"b".into()), "token"), (Address::Fid("a\"b".into()), "fid")] {
                let body = Template::probe(platform).body(&address, 1_800_000_087_500, 1_800_000_000_400);
                let mut want = block.clone();
                want["data"] = json!({"type": "sweep"});
                want[field] = "a\"b".into();
                let sent: Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(sent, json!({"validate_only": true, "message": want}));
            }
        }
    }
}
