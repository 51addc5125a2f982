//! Owns how an explanation is shown to people: the answer first, then what proves it, then what to do.
//! Must never know: how it was found.

use crate::wire::Explanation;

/// An explanation for people. Lines that would say nothing are left out.
pub(super) fn account(told: &Explanation) -> String {
    let subject =
        format!("{} in fan-out {}, {} of match {}", told.device_id, told.fanout_id, told.event_type, told.match_id);
    let lines = [
        ("device", Some(subject)),
        ("answer", Some(answer(told))),
        ("why", Some(told.text.clone())),
        ("certain", (!told.certain).then(|| "no".to_owned())),
        ("attempts", attempts(told)),
        ("provider", provider(told)),
        ("text", told.variant.clone()),
        ("ended", told.ended_at.clone()),
        ("retryable", told.retryable.map(|yes| if yes { "a replay would try it again" } else { "no" }.to_owned())),
        ("now", now(told)),
        ("to do", told.todo.clone()),
    ];
    let mut text = String::new();
    for (name, line) in lines {
        if let Some(line) = line {
            text.push_str(&format!("{name:<10} {line}\n"));
        }
    }
    text
}

fn answer(told: &Explanation) -> String {
    let answer = told.answer.replace('_', " ");
    match &told.cause {
        _ if told.answer == told.because => answer,
        Some(cause) => format!("{answer}: {} ({cause})", told.because),
        None => format!("{answer}: {}", told.because),
    }
}

fn attempts(told: &Explanation) -> Option<String> {
    let may = if told.may_have_arrived == Some(true) { "; it may have arrived" } else { "" };
    match (told.attempts, told.answer.as_str()) {
        (_, "not_a_recipient") => None,
        (Some(n), _) => Some(format!("{n}{may}")),
        (None, "delivered") => Some("not kept for each device that was delivered".to_owned()),
        (None, _) => Some(format!("not known{may}")),
    }
}

fn provider(told: &Explanation) -> Option<String> {
    match (told.status, &told.provider_text) {
        // Most texts begin with it.
        (Some(status), Some(text)) if !text.starts_with(&status.to_string()) => Some(format!("{status}: {text}")),
        (Some(status), None) => Some(status.to_string()),
        (_, text) => text.clone(),
    }
}

/// The device as it is now, which may be another than then.
fn now(told: &Explanation) -> Option<String> {
    let device = told.device.as_ref()?;
    let mut text = format!("the device is {}", device.state);
    if let Some(at) = &device.deleted_at {
        text.push_str(&format!(" since {at}"));
    }
    if let Some(at) = &device.registered_at {
        text.push_str(&format!(", registered {at}"));
    }
    if let (Some(then), Some(now)) = (told.device_version, device.version)
        && then != now
    {
        text.push_str(&format!(", changed since the send (version {then} then, {now} now)"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(more: serde_json::Value) -> Explanation {
        let mut told = json!({
            "fanout_id": "17", "device_id": "phone-1", "type": "goal", "match_id": "4711", "answer": "failed",
            "because": "token_dead", "certain": true, "text": "The app is gone.",
        });
        told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn a_failure_is_told_with_what_proves_it() {
        let text = account(&told(json!({
            "attempts": 1, "status": 404, "provider_text": "404 UNREGISTERED: Requested entity was not found.",
            "retryable": false,
            "variant": "goal/en/android", "device_version": 1, "device": {"state": "tombstoned", "version": 2},
        })));
        assert_eq!(
            text,
            "device     phone-1 in fan-out 17, goal of match 4711\n\
             answer     failed: token_dead\n\
             why        The app is gone.\n\
             attempts   1\n\
             provider   404 UNREGISTERED: Requested entity was not found.\n\
             text       goal/en/android\n\
             retryable  no\n\
             now        the device is tombstoned, changed since the send (version 1 then, 2 now)\n"
        );
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so() {
        let delivered = account(&told(json!({"answer": "delivered", "because": "delivered"})));
        assert!(delivered.contains("answer     delivered\n") && delivered.contains("not kept"), "{delivered}");
        let pending = account(&told(json!({"answer": "pending", "because": "in_hand", "may_have_arrived": true})));
        assert!(pending.contains("not known; it may have arrived"), "{pending}");
        let absent = account(&told(json!({"answer": "not_a_recipient", "because": "no_follow", "certain": false})));
        assert!(
            absent.contains("answer     not a recipient: no_follow\n") && absent.contains("certain    no\n"),
            "{absent}"
        );
        assert!(!absent.contains("attempts"), "{absent}");
    }
}
